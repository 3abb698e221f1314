//! The unwinder against `eu-stack -q` of elfutils: the same pcs, frame by frame, on real programs.

mod support;

use hangscope::diagnose::{self, Diagnosis, Options};
use hangscope::snapshot::Snapshot;
use hangscope::units::Pid;
use hangscope::unwind::{Stack, StackEnd, Trust};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program that hangs; ended when dropped.
struct Hung(Child);

impl Hung {
    /// Starts it, and waits until all its threads sleep.
    fn start(command: &mut Command) -> Hung {
        let hung = Hung::busy(command);
        support::running::settled(hung.0.id()).unwrap();
        hung
    }

    /// Starts a program whose threads run on.
    fn busy(command: &mut Command) -> Hung {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{command:?} said {line:?}");
        Hung(child)
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: needs {tool}");
    }
    found
}

/// The pcs eu-stack gives of a process, by thread.
fn oracle(pid: i32) -> BTreeMap<i32, Vec<u64>> {
    eu_stack(&["-p", &pid.to_string()])
}

fn eu_stack(what: &[&str]) -> BTreeMap<i32, Vec<u64>> {
    let out = Command::new("eu-stack").args(["-q", "-n", "0"]).args(what).output().unwrap();
    let mut threads = BTreeMap::new();
    let mut here = 0;
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        if let Some(tid) = line.strip_prefix("TID ") {
            here = tid.trim_end_matches(':').parse().unwrap();
            threads.insert(here, Vec::new());
        } else if line.starts_with('#') {
            let pc = line.split_whitespace().nth(1).unwrap().trim_start_matches("0x");
            threads.get_mut(&here).unwrap().push(u64::from_str_radix(pc, 16).unwrap());
        }
    }
    threads
}

struct Unwound {
    snapshot: Snapshot,
    stacks: Vec<Stack>,
}

fn unwind(pid: i32) -> Unwound {
    let options = Options { samples: Some(1), ..Options::default() };
    only(diagnose::live(&[Pid(pid)], &options).unwrap())
}

fn only(diagnosis: Diagnosis) -> Unwound {
    let Diagnosis { mut snapshots, mut stacks, .. } = diagnosis;
    Unwound { snapshot: snapshots.remove(0), stacks: stacks.remove(0) }
}

impl Unwound {
    fn pcs(&self) -> BTreeMap<i32, Vec<u64>> {
        let pcs = |s: &Stack| s.frames.iter().map(|f| f.pc.addr.0).collect();
        self.snapshot.threads.iter().zip(&self.stacks).map(|(t, s)| (t.tid.0, pcs(s))).collect()
    }

    fn name(&self, pc: hangscope::snapshot::Pc) -> String {
        let module = self.snapshot.module_at(pc.lookup()).map_or("?", |(_, m)| m.name());
        self.snapshot.function_at(pc).map_or(format!("{module}:?"), |(f, _)| format!("{module}:{}", f.name))
    }

    fn picture(&self) -> String {
        let mut text = String::new();
        for (t, s) in self.snapshot.threads.iter().zip(&self.stacks) {
            text += &format!("thread {} {:?}\n", t.tid, s.end);
            for f in &s.frames {
                text += &format!("  {:#x} {:?} {}\n", f.pc.addr.0, f.trust, self.name(f.pc));
            }
        }
        text
    }
}

/// Asserts that every thread has the same pcs as eu-stack gives, and all but `endless` end where the thread began.
fn assert_like_eu_stack(pid: i32, endless: usize) -> Unwound {
    let theirs = oracle(pid);
    let ours = unwind(pid);
    assert_alike(&ours, &theirs);
    let lost = ours.stacks.iter().filter(|s| s.end != StackEnd::Complete).count();
    assert_eq!(lost, endless, "{}", ours.picture());
    ours
}

fn assert_alike(ours: &Unwound, theirs: &BTreeMap<i32, Vec<u64>>) {
    let pcs = ours.pcs();
    assert_eq!(pcs.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    // in the order of the threads, which is that of their ids
    for ((tid, pcs), stack) in pcs.iter().zip(&ours.stacks) {
        let mut expected = hex(&theirs[tid]);
        if stack.end != StackEnd::Complete {
            // eu-stack goes on by a frame pointer that belongs to another stack, if there is one
            expected.truncate(pcs.len());
        }
        assert_eq!(hex(pcs), expected, "thread {tid}\n{}", ours.picture());
    }
    let sure = ours.stacks.iter().flat_map(|s| &s.frames).all(|f| f.trust >= Trust::Cfi);
    assert!(sure, "{}", ours.picture());
    let frames: usize = ours.stacks.iter().map(|s| s.frames.len()).sum();
    println!("{frames} frames of {} threads as eu-stack gives them", ours.stacks.len());
}

fn hex(pcs: &[u64]) -> Vec<String> {
    pcs.iter().map(|p| format!("{p:#x}")).collect()
}

fn compile(compiler: &str, source: &str, flags: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unwind").join(source);
    let status =
        Command::new(compiler).args(flags).arg("-pthread").arg("-o").arg(&program).arg(source).status().unwrap();
    assert!(status.success());
    (dir, program)
}

#[test]
fn shapes_of_c_stacks() {
    if !have("eu-stack") || !have("gcc") {
        return;
    }
    for flags in [&["-O2"][..], &["-O0", "-g"], &["-O2", "-s", "-fomit-frame-pointer"], &["-O1", "-static"]] {
        let (_dir, program) = compile("gcc", "frames.c", flags);
        let hung = Hung::start(&mut Command::new(&program));
        // a coroutine ends in glibc's `__start_context`, whose CFI does not say that it has no caller (2.36)
        assert_like_eu_stack(hung.pid(), 1);
    }
}

#[test]
fn shapes_of_cxx_stacks() {
    if !have("eu-stack") || !have("g++") {
        return;
    }
    for flags in [&["-O2"][..], &["-O0", "-g"], &["-O2", "-s"]] {
        let (_dir, program) = compile("g++", "frames.cpp", flags);
        let hung = Hung::start(&mut Command::new(&program));
        assert_like_eu_stack(hung.pid(), 0);
    }
}

/// The interpreters found: the system's and pyenv's.
fn pythons() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/usr/bin/python3")];
    if let Some(home) = std::env::var_os("HOME")
        && let Ok(versions) = std::fs::read_dir(Path::new(&home).join(".pyenv/versions"))
    {
        found.extend(versions.filter_map(Result::ok).map(|v| v.path().join("bin/python3")));
    }
    found.retain(|p| p.exists());
    found.sort();
    found
}

#[test]
fn python_stacks() {
    let pythons = pythons();
    if pythons.is_empty() {
        println!("skipped: needs python3");
    }
    if !have("eu-stack") {
        return;
    }
    for python in pythons {
        let hung = Hung::start(Command::new(&python).arg("tests/unwind/threads.py"));
        println!("{}", python.display());
        assert_like_eu_stack(hung.pid(), 0);
    }
}

/// Large libraries worth mapping, where they are installed.
fn large_libraries() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for prefix in ["libLLVM", "libpython3", "libstdc++.so", "libclang-cpp"] {
        for dir in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
            let Ok(entries) = std::fs::read_dir(dir) else { continue };
            let names = entries.filter_map(Result::ok).map(|e| e.path());
            let is_one = |p: &PathBuf| {
                let name = p.file_name().unwrap().to_string_lossy().into_owned();
                name.starts_with(prefix) && name.contains(".so")
            };
            found.extend(names.filter(is_one).min());
        }
    }
    found
}

#[test]
fn a_process_that_maps_much() {
    if !have("eu-stack") || !have("gcc") {
        return;
    }
    const PLUGS: usize = 100;
    let (dir, program) = compile("gcc", "large.c", &["-O2", "-g", "-fno-optimize-sibling-calls"]);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unwind/plug.c");
    for some in (1..=PLUGS).collect::<Vec<_>>().chunks(4) {
        let jobs: Vec<Child> = some
            .iter()
            .map(|i| {
                let out = dir.path().join(format!("libplug{i}.so"));
                let mut gcc = Command::new("gcc");
                gcc.args(["-O2", "-shared", "-fPIC", "-fno-optimize-sibling-calls", "-o"]).arg(out);
                gcc.arg(format!("-DID={i}")).arg(&source).spawn().unwrap()
            })
            .collect();
        assert!(jobs.into_iter().all(|mut j| j.wait().unwrap().success()));
    }
    let hung =
        Hung::start(Command::new(&program).arg(dir.path()).args([&PLUGS.to_string(), "40"]).args(large_libraries()));
    let unwound = assert_like_eu_stack(hung.pid(), 0);
    assert!(unwound.snapshot.modules.len() > PLUGS);
}

/// The names of the main thread's frames with their trust, innermost first, the C library's left out.
fn names(unwound: &Unwound) -> Vec<(String, Trust)> {
    let frames = unwound.stacks[0].frames.iter();
    let named = frames.map(|f| (unwound.name(f.pc), f.trust)).filter(|(n, _)| !n.starts_with("libc"));
    named.map(|(n, t)| (n.trim_start_matches("program:").to_owned(), t)).collect()
}

/// Runs `bare HOW` and asserts which frames of the program are found, and that the C library below `main` is reached again.
fn assert_bare(flags: &[&str], how: &str, expected: &[(&str, Trust)]) {
    let (_dir, program) = compile("gcc", "bare.c", flags);
    let hung = Hung::start(Command::new(&program).arg(how));
    let unwound = unwind(hung.pid());
    let names = names(&unwound);
    let found: Vec<(&str, Trust)> = names.iter().map(|(n, t)| (n.as_str(), *t)).collect();
    assert_eq!(found, expected, "{flags:?} {how}\n{}", unwound.picture());
}

const NO_TABLES: [&str; 4] =
    ["-O1", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-optimize-sibling-calls"];

#[test]
fn without_call_frame_information() {
    if !have("gcc") {
        return;
    }
    use Trust::{Cfi, Context, FramePointer, Scan};
    let with = [&NO_TABLES[..], &["-fno-omit-frame-pointer"]].concat();
    let without = [&NO_TABLES[..], &["-fomit-frame-pointer"]].concat();
    let chain = |t| [("innermost", Cfi), ("third", t), ("second", t), ("first", t), ("main", t), ("_start", Cfi)];
    assert_bare(&with, "plain", &chain(FramePointer));
    assert_bare(&without, "plain", &chain(Scan));
    // the program's own table gives way where there is none
    let tables = ["-O1", "-fno-optimize-sibling-calls"];
    assert_bare(&tables, "plain", &chain(Cfi));
    let null = [
        ("innermost", Cfi),
        ("handler", Cfi),
        ("?:?", Context),
        ("through_null", FramePointer),
        ("main", Cfi),
        ("_start", Cfi),
    ];
    assert_bare(&tables, "null", &null);
    let generated = [
        ("innermost", Cfi),
        ("third", Cfi),
        ("second", Cfi),
        ("first", Cfi),
        ("call_second", Cfi),
        ("?:?", Cfi),
        ("main", FramePointer),
        ("_start", Cfi),
    ];
    assert_bare(&tables, "generated", &generated);
    let trampoline = [("innermost", Cfi), ("handler", Cfi), ("own_restorer", Cfi), ("main", Cfi), ("_start", Cfi)];
    assert_bare(&tables, "trampoline", &trampoline);
}

fn gcore(pid: i32, dir: &Path) -> PathBuf {
    let made = Command::new("gcore").arg("-o").arg(dir.join("core")).arg(pid.to_string()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    dir.join(format!("core.{pid}"))
}

fn core(path: &Path) -> Unwound {
    only(diagnose::core(path, None, &Options::default()).unwrap())
}

/// Takes a core of `pid`, wherever its threads stand, and compares what both make of it.
fn assert_core_alike(pid: i32, dir: &Path) -> Unwound {
    let (ours, theirs) = from_core(pid, dir);
    assert_alike(&ours, &theirs);
    ours
}

/// What we and eu-stack make of a core of the process.
fn from_core(pid: i32, dir: &Path) -> (Unwound, BTreeMap<i32, Vec<u64>>) {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let file = gcore(pid, dir);
    let theirs = eu_stack(&["--core", &file.display().to_string(), "-e", &exe.display().to_string()]);
    let ours = core(&file);
    std::fs::remove_file(&file).unwrap();
    (ours, theirs)
}

#[test]
fn wherever_a_thread_stands() {
    if !have("eu-stack") || !have("gcc") || !have("gcore") {
        return;
    }
    for flags in [&["-O2"][..], &["-O0"], &["-O1", "-s", "-fomit-frame-pointer", "-Wl,-z,ibtplt"]] {
        let (dir, program) = compile("gcc", "busy.c", flags);
        let busy = Hung::busy(&mut Command::new(&program));
        for _ in 0..3 {
            assert_core_alike(busy.pid(), dir.path());
        }
    }
}

#[test]
fn every_sample() {
    if !have("eu-stack") || !have("gcc") || !have("gcore") {
        return;
    }
    for name in support::build::sample_names() {
        let expect: toml::Table = toml::from_str(
            &std::fs::read_to_string(support::home().join("samples").join(&name).join("expect.toml")).unwrap(),
        )
        .unwrap();
        if let Some(needs) = expect.get("needs") {
            println!("{name}: not on this machine, it needs {needs}");
            continue;
        }
        let words = |v: Option<&toml::Value>| -> Vec<String> {
            v.and_then(|v| v.as_array()).into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)).collect()
        };
        let args = words(expect.get("variants").and_then(|v| v.as_table()?.values().next()));
        let built =
            support::build::build(&name, &words(expect.get("flags")), support::build::Toolchain::Host, None).unwrap();
        let mut place = support::places::Place::host();
        if built.join("program.py").exists() {
            let Some(python) = pythons().pop() else { continue };
            place.python = Some((python, String::new()));
        }
        let version = |key: &str| expect.get(key).and_then(toml::Value::as_str);
        if version("since").is_some_and(|v| !place.is_since(v)) || version("until").is_some_and(|v| !place.is_until(v))
        {
            println!("{name}: not on this Python");
            continue;
        }
        let scratch = support::Scratch::new(&format!("unwind-{name}"));
        let running = support::running::start(&place, &built, &args, scratch.path()).unwrap();
        println!("{name}");
        if name == "idle-memfd-code" {
            // eu-stack ends at code without call-frame information
            let (ours, theirs) = from_core(running.pid, scratch.path());
            let goes_on =
                |(tid, pcs): (i32, Vec<u64>)| pcs.len() > theirs[&tid].len() && pcs.starts_with(&theirs[&tid]);
            assert!(ours.pcs().into_iter().all(goes_on), "{}", ours.picture());
            continue;
        }
        assert_core_alike(running.pid, scratch.path());
    }
}

#[test]
fn cores_and_minicores() {
    if !have("eu-stack") || !have("gcc") || !have("gcore") {
        return;
    }
    let (dir, program) = compile("gcc", "frames.c", &["-O2", "-g"]);
    let hung = Hung::start(&mut Command::new(&program));
    let small = dir.path().join("small");
    let options = Options { samples: Some(1), save_core: Some(small.clone()), ..Options::default() };
    let live = only(diagnose::live(&[Pid(hung.pid())], &options).unwrap());
    let big = gcore(hung.pid(), dir.path());
    let exe = program.display().to_string();
    let theirs = eu_stack(&["--core", &big.display().to_string(), "-e", &exe]);
    drop(hung);
    let ours = core(&big);
    assert_alike(&ours, &theirs);
    assert_eq!(ours.pcs(), live.pcs());
    assert_eq!(core(&small).pcs(), live.pcs());
    // without the program: its call frame information is in the minicore
    std::fs::remove_file(&program).unwrap();
    let alone = core(&small);
    assert_eq!(alone.pcs(), live.pcs());
    let trusts = |u: &Unwound| u.stacks.iter().flat_map(|s| &s.frames).map(|f| f.trust).collect::<Vec<_>>();
    assert_eq!(trusts(&alone), trusts(&live));
}
