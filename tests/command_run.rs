//! `hangscope run`: CMD's output, exit status and signals are its own; its whole tree is diagnosed, then ended.

mod support;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::running::settled;

const HANGSCOPE: &str = env!("CARGO_BIN_EXE_hangscope");

fn run(arguments: &[&str]) -> Output {
    Command::new(HANGSCOPE).arg("run").args(arguments).stdin(Stdio::null()).output().expect("hangscope starts")
}

/// Whoever started the tests may ignore keys (a shell's background job does), and no shell can trap what it was given
/// ignored.
const WITH_KEYS: [&str; 2] = ["env", "--default-signal=INT,QUIT"];

fn start(arguments: &[&str]) -> Child {
    let [env, keys] = WITH_KEYS;
    Command::new(env)
        .args([keys, HANGSCOPE, "run"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hangscope starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The first line CMD writes: it is ready then.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("a piped stdout");
    // one byte at a time: what follows is left in the pipe
    let mut byte = [0];
    while out.read(&mut byte).is_ok_and(|n| n == 1) && byte != *b"\n" {
        line.push(char::from(byte[0]));
    }
    line
}

/// Waits, but not for ever: a hang in here is a failure, not a stuck test run.
fn finish(mut child: Child) -> Output {
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("it can be waited for").is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            panic!("hangscope run did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

fn send(child: &Child, signal: Signal) {
    signal::kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it can be signalled");
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').and_then(|at| stat.get(at + 2..at + 3)).is_some_and(|s| s != "Z" && s != "X")
}

#[test]
fn output_and_exit_code_are_the_commands_own() {
    let out = run(&["--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((text(&out.stdout).as_str(), text(&out.stderr).as_str()), ("out\n", "err\n"));
    assert_eq!(out.status.code(), Some(7));
    let out = run(&["--timeout", "60s", "--", "true"]);
    assert_eq!((out.status.code(), out.stdout.len(), out.stderr.len()), (Some(0), 0, 0));
}

#[test]
fn the_command_may_stand_without_dashes_and_keeps_its_options() {
    let out = run(&["--timeout", "60s", "sh", "-c", "echo \"$@\"", "sh", "--json", "-o", "x", "-q"]);
    assert_eq!(text(&out.stdout), "--json -o x -q\n");
}

#[test]
fn standard_input_is_the_commands() {
    let mut child = Command::new(HANGSCOPE)
        .args(["run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    assert_eq!(text(&finish(child).stdout), "through\n");
}

#[test]
fn death_by_a_signal_is_passed_on_as_such() {
    for (name, signal) in [("TERM", Signal::SIGTERM), ("KILL", Signal::SIGKILL), ("SEGV", Signal::SIGSEGV)] {
        let out = run(&["--", "sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(out.status.signal(), Some(signal as i32), "{out:?}");
        assert!(!out.status.core_dumped(), "one core is enough");
    }
    // what a shell makes of it
    let shell =
        Command::new("sh").args(["-c", "\"$0\" run -- sh -c 'kill -TERM $$'; echo $?", HANGSCOPE]).output().unwrap();
    assert!(text(&shell.stdout).ends_with("143\n"), "{shell:?}");
}

#[test]
fn a_command_that_cannot_be_run_is_told_as_a_shell_tells_it() {
    let missing = run(&["--", "/nonexistent/command"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).starts_with("hangscope: cannot run /nonexistent/command: "), "{missing:?}");
    let no_program = run(&["--", "/etc/passwd"]);
    assert!(text(&missing.stderr).contains("there is no such file; check the path"), "{missing:?}");
    assert_eq!(no_program.status.code(), Some(126));
    assert_eq!(run(&["--timeout", "soon", "--", "true"]).status.code(), Some(2));
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn signals_are_passed_on_to_the_command() {
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = start(&["--", "sh", "-c", &script]);
        assert_eq!(first_line(&mut child), "ready");
        send(&child, signal);
        let out = finish(child);
        assert_eq!((text(&out.stdout).as_str(), out.status.code()), (format!("got {name}\n").as_str(), Some(5)));
    }
}

#[test]
fn the_command_has_the_signals_we_were_given() {
    let out = run(&["--", "sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status"]);
    let alone = Command::new("sh").args(["-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status"]).output().unwrap();
    assert_eq!(text(&out.stdout), text(&alone.stdout));
}

#[test]
fn a_hung_command_is_named_and_ended_at_the_deadline() {
    let began = Instant::now();
    let mut child = start(&["--timeout", "700ms", "--", HANGSCOPE, "demo-child", "abba-mutex"]);
    let pid = first_line(&mut child).strip_prefix("started ").expect("the demo starts").to_string();
    let out = finish(child);
    let report = text(&out.stderr);
    assert_eq!(out.status.code(), Some(124), "{report}");
    assert!(began.elapsed() >= Duration::from_millis(700));
    assert!(report.lines().next().is_some_and(|l| l.contains("still running after 700ms")), "{report}");
    assert!(report.contains("DEADLOCK") && report.contains("accounts_mutex"), "{report}");
    assert!(out.stdout.is_empty(), "the report must not mix with the command's output: {out:?}");
    assert!(!is_running(&pid));
}

#[test]
fn a_hung_command_is_named_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let file_name = file.to_str().unwrap();
    let mut child = start(&["--json", "-o", file_name, "--", HANGSCOPE, "demo-child", "self-relock"]);
    let pid = first_line(&mut child).strip_prefix("started ").expect("the demo starts").to_string();
    settled(pid.parse().expect("a pid")).unwrap();
    send(&child, Signal::SIGQUIT);
    let out = finish(child);
    assert_eq!(out.status.code(), Some(124), "{out:?}");
    assert!(!is_running(&pid));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).expect("JSON alone");
    assert_eq!(report["schema"], "hangscope/1");
    assert_eq!(report["verdict"]["kind"], "self-deadlock", "{report:#}");
    assert!(text(&out.stderr).contains(file_name), "{out:?}");
}

/// Grandchildren too, those in sessions of their own, those whose parents have gone, and those that ignore SIGTERM.
#[test]
fn the_whole_tree_is_diagnosed_as_one_and_ended() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("pids");
    let script = format!(
        "sleep 100 & echo $! >> {0}\n\
         (sh -c 'setsid sleep 100 & echo $! >> {0}') \n\
         sh -c 'trap \"\" TERM; sleep 100 & echo $! >> {0}; echo $$ >> {0}; wait' &\n\
         \"$0\" demo-child abba-mutex &\n\
         wait",
        list.display()
    );
    let mut child = start(&["--timeout", "1500ms", "--", "sh", "-c", &script, HANGSCOPE]);
    let hung = first_line(&mut child).strip_prefix("started ").expect("the demo starts").to_string();
    let out = finish(child);
    let report = text(&out.stderr);
    assert_eq!(out.status.code(), Some(124), "{report}");
    let pids = fs::read_to_string(&list).unwrap();
    assert_eq!(pids.lines().count(), 4, "{pids}");
    for pid in pids.lines().chain([hung.as_str()]) {
        assert!(!is_running(pid), "process {pid} was left behind\n{report}");
        assert!(report.contains(&format!("\nprocess {pid} ")), "process {pid} was not looked at\n{report}");
    }
    let headlines = report.lines().filter(|l| l.starts_with("DEADLOCK")).count();
    assert!(headlines == 1 && report.contains(&format!("of process {hung}")), "one verdict on all:\n{report}");
}

#[test]
fn a_report_that_cannot_be_written_is_not_lost() {
    let out = run(&["--timeout", "300ms", "-o", "/nonexistent/report", "--", "sleep", "100"]);
    let report = text(&out.stderr);
    assert_eq!(out.status.code(), Some(124));
    assert!(report.contains("cannot write the report to /nonexistent/report"), "{report}");
    assert!(report.lines().count() > 2, "the report itself: {report}");
}

#[test]
fn what_the_command_leaves_running_is_left_alone_when_it_ends() {
    let out = run(&["--timeout", "60s", "--", "sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!"]);
    let pid = text(&out.stdout).trim().to_string();
    assert_eq!(out.status.code(), Some(0));
    assert!(is_running(&pid));
    signal::kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
}

/// Types `keys` at a terminal where `hangscope run` is, once CMD has said "ready"; all that the terminal showed.
///
/// `script` gives the command to `$SHELL -c`. That shell must not stay beside hangscope in the terminal's foreground
/// group: dash would, and would die of the same keys. So it is always `/bin/sh`, and it `exec`s.
fn at_a_terminal(command: &str, keys: &[u8]) -> Option<String> {
    if !Path::new("/usr/bin/script").exists() {
        eprintln!("skipped: needs script (bsdutils)");
        return None;
    }
    let mut script = Command::new("/usr/bin/script")
        .args(["-qec", &format!("exec {} {command}", WITH_KEYS.join(" ")), "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script starts");
    let mut out = BufReader::new(script.stdout.take().expect("piped"));
    let mut shown = String::new();
    while !shown.contains("ready") && out.read_line(&mut shown).is_ok_and(|n| n > 0) {}
    let mut keyboard = script.stdin.take().expect("piped");
    keyboard.write_all(keys).expect("keys can be typed");
    let _ = keyboard.flush();
    let mut rest = Vec::new();
    let _ = out.read_to_end(&mut rest);
    drop(keyboard);
    let status = script.wait().expect("script ends");
    Some(format!("{shown}{}[{}]", text(&rest), status.code().unwrap_or(-1)))
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let count = "trap 'echo got INT' INT; trap 'exit 6' USR1; echo ready; sleep 0.4; sleep 0.4; kill -USR1 $$";
    let Some(shown) = at_a_terminal(&format!("{HANGSCOPE} run -- sh -c \"{}\"", count.replace('$', "\\$")), b"\x03")
    else {
        return;
    };
    assert_eq!(shown.matches("got INT").count(), 1, "{shown}");
    assert!(shown.ends_with("[6]"), "{shown}");
}

#[test]
fn ctrl_backslash_asks_for_the_report() {
    let Some(shown) = at_a_terminal(&format!("{HANGSCOPE} run -- sh -c 'echo ready; exec sleep 100'"), b"\x1c") else {
        return;
    };
    assert!(shown.contains("asked to report"), "{shown}");
    assert!(shown.ends_with("[124]"), "{shown}");
}
