//! Attaching never hangs and never harms, whatever the target does: memory that never comes, whole trees, little time.

#[path = "support/inherited.rs"]
mod inherited;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Compiles a program.
fn compile(path: &str) -> PathBuf {
    compile_with(path, "", &[])
}

/// The same with more arguments; `suffix` tells the results apart.
fn compile_with(path: &str, suffix: &str, arguments: &[&str]) -> PathBuf {
    let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unharmed-{name}{suffix}-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let built = Command::new("cc").args(["-O1", "-g", "-pthread", "-o"]).arg(&out).args(arguments).arg(source).status();
    assert!(built.is_ok_and(|s| s.success()), "needs cc");
    out
}

/// A running program, ended when dropped.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn of(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a run of hangscope gave, and how long it took.
struct Ran {
    out: String,
    code: Option<i32>,
    took: Duration,
}

fn hangscope(arguments: &[&str]) -> Ran {
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_hangscope"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut out).unwrap();
    let code = child.wait().unwrap().code();
    // lines are wrapped
    let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
    Ran { out, code, took: began.elapsed() }
}

/// Waits until no thread of the process is stopped or traced.
fn runs_on(pid: u32) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let status = |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("status")).ok();
        let states: Vec<String> = tasks.flatten().filter_map(status).collect();
        let held = |s: &String| s.contains("State:\tt") || s.contains("State:\tT") || !s.contains("TracerPid:\t0");
        if !states.iter().any(held) {
            return;
        }
        assert!(Instant::now() < until, "{pid} does not run on: {states:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn memory_that_never_comes_is_given_up_and_named() {
    let program = compile("tests/live/silent.c");
    let mut p = Running::of(Command::new(&program).args(["some", "arguments"]));
    if p.line() != "ready" {
        println!("skipped: needs the right to use userfaultfd");
        return;
    }
    let (pid, text) = (p.child.id(), p.child.id().to_string());
    for how in [&["--samples", "1"][..], &["--samples", "1", "--no-stop"]] {
        let mut arguments = vec!["attach"];
        arguments.extend(how);
        arguments.push(&text);
        let ran = hangscope(&arguments);
        assert!(ran.took < Duration::from_secs(20), "{:?}", ran.took);
        assert!(ran.out.contains("(anonymous memory) got no answer within"), "{}", ran.out);
        // the others are told: the thread whose stack is there
        assert!(ran.out.contains("other (silent.c:"), "{}", ran.out);
        assert!(!ran.out.contains("the pause reached its limit"), "{}", ran.out);
        assert!(ran.code.is_some_and(|c| c == 3 || c == 4), "{:?} {}", ran.code, ran.out);
        runs_on(pid);
    }
}

#[test]
fn the_longest_pause_holds_for_many_threads_on_a_busy_machine() {
    const THREADS: u32 = 2000;
    let limit = Duration::from_millis(100);
    // a thread more costs no more than this, and all of it no more than that
    let allowed = limit + Duration::from_micros(20) * THREADS + Duration::from_millis(10);
    let mut p = Running::of(Command::new(compile("benches/threads.c")).arg(THREADS.to_string()));
    assert_eq!(p.line(), "ready");
    let (pid, text) = (p.child.id(), p.child.id().to_string());
    let busy: Vec<_> = (0..3).map(|_| Running::of(Command::new("sh").args(["-c", "while :; do :; done"]))).collect();
    // whoever else runs here may take the CPU from the one that lets go
    let pause = |_| {
        let ran = hangscope(&["attach", "--json", "--samples", "1", "--max-pause", "100ms", &text]);
        let us = ran.out.split_once("\"pause_us\": ").unwrap().1.split(',').next().unwrap();
        Duration::from_micros(us.parse().unwrap())
    };
    let shortest = (0..3).map(pause).min().unwrap();
    drop(busy);
    runs_on(pid);
    assert!(shortest <= allowed, "{shortest:?} of {allowed:?}");
}

/// A library in use, and the program that sleeps in it.
fn asleep(suffix: &str) -> (PathBuf, Running) {
    let library = compile_with("tests/live/asleep.c", suffix, &["-DLIBRARY", "-shared", "-fPIC"]);
    let program = compile_with("tests/live/asleep.c", &format!("{suffix}-program"), &["-ldl"]);
    let mut p = Running::of(Command::new(program).arg(&library));
    assert_eq!(p.line(), "ready");
    // it has written, but may not sleep yet, and on its way there its own code must not be gone
    let until = Instant::now() + Duration::from_secs(10);
    while !std::fs::read_to_string(format!("/proc/{}/syscall", p.child.id())).is_ok_and(|s| s.starts_with("230 ")) {
        assert!(Instant::now() < until, "it does not sleep");
        std::thread::sleep(Duration::from_millis(1));
    }
    (library, p)
}

#[test]
fn a_library_that_is_rewritten_meanwhile_ends_nobody() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (library, p) = asleep("-rewritten");
    let pid = p.child.id().to_string();
    let whole = std::fs::read(&library).unwrap();
    let (over, rounds) = (AtomicBool::new(false), std::sync::atomic::AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::os::unix::fs::FileExt;
            let file = std::fs::File::options().write(true).open(&library).unwrap();
            for len in [0, 64, 4096, whole.len() / 2].into_iter().cycle() {
                file.set_len(len as u64).unwrap();
                file.write_all_at(&whole, 0).unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..25 {
            let ran = hangscope(&["attach", "--samples", "1", &pid]);
            let known = ran.code.is_some_and(|c| [0, 3, 4].contains(&c));
            if !known {
                over.store(true, Ordering::Relaxed);
            }
            assert!(known, "{:?} {}", ran.code, ran.out);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(rounds.into_inner() > 25);
    runs_on(p.child.id());
}

#[test]
fn a_pipe_or_a_device_under_a_librarys_name_is_not_opened() {
    let (library, p) = asleep("-replaced");
    let pid = p.child.id().to_string();
    let pipe = |at: &Path| nix::unistd::mkfifo(at, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::remove_file(&library).unwrap();
    for kind in ["pipe", "link to a pipe", "link to a device"] {
        match kind {
            "pipe" => pipe(&library),
            "link to a pipe" => {
                let elsewhere = library.with_extension("pipe");
                pipe(&elsewhere);
                std::os::unix::fs::symlink(elsewhere, &library).unwrap();
            }
            _ => std::os::unix::fs::symlink("/dev/tty", &library).unwrap(),
        }
        let ran = hangscope(&["attach", "--samples", "1", &pid]);
        assert!(ran.took < Duration::from_secs(20) && ran.code.is_some(), "{kind}: {:?}", ran.took);
        assert!(ran.out.contains("waits for"), "{kind}: {}", ran.out);
        std::fs::remove_file(&library).unwrap();
        runs_on(p.child.id());
    }
}

#[test]
fn children_that_end_meanwhile_are_no_gap() {
    let script = "echo ready; while :; do true & true & sleep 0.003 & sleep 0.01; done";
    let mut p = Running::of(Command::new("bash").args(["-c", script]));
    assert_eq!(p.line(), "ready");
    let pid = p.child.id().to_string();
    for _ in 0..15 {
        let ran = hangscope(&["attach", "--tree", "--samples", "1", &pid]);
        assert!(!ran.out.contains("no process") && !ran.out.contains("zombie"), "{}", ran.out);
        assert_ne!(ran.code, Some(4), "{}", ran.out);
    }
    // one that was named is missed
    let ran = hangscope(&["attach", "--samples", "1", &pid, "4000000"]);
    assert!(ran.out.contains("no process 4000000"), "{}", ran.out);
}

#[test]
fn a_proc_that_tells_nothing_is_said_to_be_so() {
    let hangscope = env!("CARGO_BIN_EXE_hangscope");
    let cases = [
        (["-p", "-f"], format!("exec {hangscope} attach 1"), "/proc tells of another PID namespace than ours"),
        (["-m", "-f"], format!("mount -t tmpfs none /proc && exec {hangscope} attach 1"), "/proc is not mounted here"),
    ];
    for (namespaces, script, said) in cases {
        let Ok(out) = Command::new("unshare").args(namespaces).args(["sh", "-c", &script]).output() else {
            println!("skipped: needs unshare");
            return;
        };
        let text = String::from_utf8_lossy(&out.stderr);
        if text.contains("unshare") || text.contains("mount:") {
            println!("skipped: needs the right to make namespaces: {text}");
            continue;
        }
        assert!(text.contains(said) && text.lines().count() == 1, "{text}");
        assert_eq!(out.status.code(), Some(2));
    }
}
