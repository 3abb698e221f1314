//! What hangscope is given and cannot use: one clear line each, or a marked partial answer; the contract's exit codes; no panic.

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::build::{self, Toolchain};
use support::places::Place;
use support::running::{self, Running};
use support::{Said, Scratch, hangscope};

/// Runs hangscope; it must end soon, not by a signal, and not panic.
fn run(command: Command) -> Said {
    let shown = format!("{command:?}");
    let said = support::run(command, Duration::from_secs(60)).unwrap_or_else(|why| panic!("{shown}: {why}"));
    assert!(!said.err.contains("panicked") && !said.err.contains("RUST_BACKTRACE"), "{shown}: {}", said.err);
    assert!([0, 1, 2, 3, 4].contains(&said.code()), "{shown}: exit code {}: {}", said.code(), said.err);
    said
}

fn attach(pid: &str, more: &[&str]) -> Said {
    let mut command = hangscope();
    command.arg("attach").args(more).arg(pid);
    run(command)
}

fn core(path: &Path) -> Said {
    let mut command = hangscope();
    command.arg("core").arg(path).arg("--json");
    run(command)
}

/// Refused: exit code 2, nothing on stdout, one line on stderr that holds one of `words`.
#[track_caller]
fn is_refused(said: &Said, words: &[&str]) {
    assert_eq!(said.code(), 2, "stdout {}\nstderr {}", said.out, said.err);
    assert_eq!(said.out, "");
    assert_eq!(said.err.trim_end().lines().count(), 1, "not one line: {}", said.err);
    let line = said.err.to_lowercase();
    assert!(words.iter().any(|w| line.contains(w)), "says none of {words:?}: {}", said.err);
}

/// Either refused in one line, or a report that says what it lacks.
#[track_caller]
fn is_refused_or_partial(said: &Said) -> Option<Value> {
    if said.code() == 2 {
        assert_eq!(said.err.trim_end().lines().count(), 1, "not one line: {}", said.err);
        assert_eq!(said.out, "");
        return None;
    }
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {} {}", said.out, said.err));
    Some(report)
}

/// Its warnings, in one string.
fn warnings(report: &Value) -> String {
    let all = report["captured"]["warnings"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

/// The report's first sentence.
fn headline(said: &Said) -> String {
    serde_json::from_str::<Value>(&said.out).unwrap_or_default()["verdict"]["headline"].to_string()
}

fn built(sample: &str) -> PathBuf {
    build::build(sample, &[], Toolchain::Host, None).expect("the sample is built")
}

fn start(sample: &str, scratch: &Scratch) -> Running {
    running::start(&Place::host(), &built(sample), &[], scratch.path()).expect("the sample runs")
}

/// A child that is killed and waited for when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Skipped here, a failure in CI.
fn lacks(what: &str) {
    assert!(!support::in_ci(), "needs {what}");
    println!("skipped: needs {what}");
}

#[test]
fn no_such_process() {
    // Beyond the largest pid_max there is.
    is_refused(&attach("4194305", &[]), &["no such process", "no process", "does not exist"]);
}

#[test]
fn a_vanished_process() {
    let mut child = Command::new("true").spawn().expect("true");
    child.wait().expect("it ends");
    is_refused(&attach(&child.id().to_string(), &[]), &["no such process", "no process", "does not exist"]);
}

#[test]
fn no_process_at_all() {
    for word in ["0", "-1", "4711x", "99999999999999999999", ""] {
        let said = attach(word, &["--json"]);
        assert_eq!(said.code(), 2, "{word:?}: {}", said.out);
        assert!(!said.err.trim().is_empty() && said.out.is_empty(), "{word:?}");
    }
}

#[test]
fn a_kernel_thread() {
    let is_kernel_thread = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|l| l == "PPid:\t2") && !status.contains("VmSize")
    };
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = pids.filter_map(|e| e.file_name().to_string_lossy().parse().ok());
    let Some(pid) = pids.find(is_kernel_thread) else {
        println!("skipped: needs a kernel thread in this PID namespace");
        return;
    };
    is_refused(&attach(&pid.to_string(), &[]), &["kernel thread"]);
    is_refused(&attach(&pid.to_string(), &["--no-stop"]), &["kernel thread"]);
}

#[test]
fn a_zombie() {
    let zombie = Guard(Command::new("true").spawn().expect("true"));
    let stat = format!("/proc/{}/stat", zombie.0.id());
    let mut patience = 2000;
    while !std::fs::read_to_string(&stat).expect("not waited for yet").contains(") Z ") && patience > 0 {
        std::thread::sleep(Duration::from_millis(1));
        patience -= 1;
    }
    is_refused(&attach(&zombie.0.id().to_string(), &[]), &["zombie", "has ended", "exited"]);
}

#[test]
fn another_users_process() {
    if !nix::unistd::geteuid().is_root() || !support::has_command("setpriv") {
        return lacks("root and setpriv");
    }
    let scratch = Scratch::new("other-user");
    let sample = start("abba-behind", &scratch);
    // Where nobody can run it, whatever the rights of the crate's own directory.
    let open = tempfile::tempdir().expect("a directory");
    let copy = open.path().join("hangscope");
    std::fs::copy(env!("CARGO_BIN_EXE_hangscope"), &copy).expect("a copy");
    for path in [open.path(), &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("its rights");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", "-all"]).arg(&copy);
    command.args(["attach", "--json", &sample.pid.to_string()]);
    let said = run(command);
    assert!([2, 4].contains(&said.code()), "exit code {}: {} {}", said.code(), said.out, said.err);
    if let Some(report) = is_refused_or_partial(&said) {
        assert!(warnings(&report).contains("attach"), "{}", warnings(&report));
    } else {
        is_refused(&said, &["permission", "not permitted", "may not", "belongs to user"]);
    }
    sample.is_unharmed().expect("unharmed");
}

/// A program of 32 bits in 96 bytes: `pause` for ever.
fn elf32(machine: u16, kind: u16) -> Vec<u8> {
    let code: &[u8] = &[0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7]; // mov eax, 29; int 0x80; jmp back
    let mut elf = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let base = 0x0804_8000_u32;
    let words = |elf: &mut Vec<u8>, all: &[u32]| all.iter().for_each(|w| elf.extend(w.to_le_bytes()));
    elf.extend(kind.to_le_bytes());
    elf.extend(machine.to_le_bytes());
    words(&mut elf, &[1, base + 84, 52, 0, 0]);
    for half in [52_u16, 32, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    let size = 84 + u32::try_from(code.len()).expect("small");
    words(&mut elf, &[1, 0, base, base, size, size, 5, 0x1000]);
    elf.extend(code);
    elf
}

#[test]
fn a_32_bit_process() {
    let scratch = Scratch::new("elf32");
    let program = scratch.path().join("pauses");
    std::fs::write(&program, elf32(3, 2)).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its rights");
    let Ok(child) = Command::new(&program).stdin(Stdio::null()).spawn() else {
        println!("skipped: needs a kernel that runs 32-bit programs");
        return;
    };
    let child = Guard(child);
    is_refused(&attach(&child.0.id().to_string(), &[]), &["32-bit"]);
}

/// An ELF header of 64 bits with no segment.
fn elf64(machine: u16, kind: u16) -> Vec<u8> {
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    elf.extend(kind.to_le_bytes());
    elf.extend(machine.to_le_bytes());
    elf.extend(1_u32.to_le_bytes());
    for word in [0_u64, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 0, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    elf
}

#[test]
fn files_that_are_no_core() {
    let scratch = Scratch::new("no-core");
    let write = |name: &str, bytes: &[u8]| {
        let path = scratch.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    };
    is_refused(&core(&scratch.path().join("absent")), &["no such file"]);
    is_refused(&core(scratch.path()), &["directory", "not a core", "no core"]);
    is_refused(&core(&write("empty", b"")), &["empty"]);
    is_refused(
        &core(&write("text", b"this is a text of some length, and no ELF file at all, however long it goes on")),
        &["core"],
    );
    is_refused(&core(&write("magic", b"\x7fELF")), &["core", "truncated", "short"]);
    is_refused(&core(Path::new(env!("CARGO_BIN_EXE_hangscope"))), &["not a core", "no core"]);
    is_refused(&core(&write("elf32", &elf32(3, 4))), &["32-bit"]);
    is_refused(&core(&write("arm32", &elf32(40, 4))), &["32-bit"]);
    is_refused(&core(&write("riscv", &elf64(243, 4))), &["riscv", "architecture", "machine"]);
    is_refused(
        &core(&write("big-endian", &{
            let mut elf = elf64(0x1600, 0x0400);
            elf[5] = 2;
            elf
        })),
        &["endian", "architecture", "machine"],
    );
    is_refused(&core(&write("no-segments", &elf64(62, 4))), &["core", "thread", "note"]);
}

#[test]
fn a_core_of_another_cpu() {
    let scratch = Scratch::new("aarch64");
    let path = scratch.path().join("core");
    std::fs::write(&path, elf64(183, 4)).expect("written");
    is_refused(&core(&path), &["aarch64", "thread", "note"]);
}

/// A kernel core of a deadlock and the program it is of, both in the scratch directory.
fn kernel_core(scratch: &Scratch) -> Option<(PathBuf, PathBuf)> {
    if let Some(why) = running::kernel_core_obstacle() {
        lacks(&why);
        return None;
    }
    let program = scratch.path().join("program");
    std::fs::copy(built("abba-behind").join("program"), &program).expect("a copy");
    let mut sample = running::start(&Place::host(), scratch.path(), &[], scratch.path()).expect("the sample runs");
    let core = sample.abort_for_core().expect("a core");
    Some((core, program))
}

#[test]
fn a_truncated_core() {
    let scratch = Scratch::new("truncated");
    let Some((path, _)) = kernel_core(&scratch) else { return };
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the core");
    let whole = file.metadata().expect("its size").len();
    let mut named = 0;
    for keep in (1..10).rev().map(|tenth| whole * tenth / 10).chain([20_000, 4_096, 100]) {
        file.set_len(keep).expect("cut");
        if let Some(report) = is_refused_or_partial(&core(&path)) {
            assert!(warnings(&report).contains("truncated"), "{keep} of {whole}: {}", warnings(&report));
            named += 1;
        }
    }
    assert!(named > 0, "no truncated core gave a partial answer");
}

#[test]
fn a_corrupted_core() {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new("corrupted");
    let Some((path, _)) = kernel_core(&scratch) else { return };
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("the core");
    let whole = file.metadata().expect("its size").len();
    // A linear congruence, so that each run is the same.
    let mut state = 1_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..160 {
        // Headers, program headers and notes come first: that is where it hurts most.
        let below = if round % 4 == 3 { whole - 8 } else { 16 << 10 };
        let mut mend = Vec::new();
        for _ in 0..=round % 5 {
            let at = next(below) & !7;
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).expect("read");
            mend.push((at, bytes));
            match round % 3 {
                0 => bytes[usize::try_from(next(8)).expect("small")] ^= 1 << next(8),
                1 => bytes.fill(0xff),
                _ => bytes.fill(0x7f),
            }
            file.write_all_at(&bytes, at).expect("written");
        }
        is_refused_or_partial(&core(&path));
        for (at, bytes) in mend.into_iter().rev() {
            file.write_all_at(&bytes, at).expect("mended");
        }
    }
    assert_eq!(core(&path).code(), 1, "the mended core is whole again");
}

#[test]
fn a_core_whose_program_is_missing_or_replaced() {
    let scratch = Scratch::new("replaced");
    let Some((path, program)) = kernel_core(&scratch) else { return };
    let whole = core(&path);
    assert_eq!(whole.code(), 1, "{} {}", headline(&whole), whole.err);
    std::fs::copy(built("ring-of-three").join("program"), &program).expect("replaced");
    for what in ["replaced", "missing"] {
        let said = core(&path);
        assert!([1, 4].contains(&said.code()), "{what}: exit code {}: {}", said.code(), said.err);
        let report = is_refused_or_partial(&said).expect("a report");
        assert!(warnings(&report).contains("program"), "{what}: {}", warnings(&report));
        for function in ["dine", "philosopher"] {
            assert!(!said.out.contains(function), "{what}: names of another program: {function}");
        }
        let _ = std::fs::remove_file(&program);
    }
}

#[test]
fn killed_in_the_middle() {
    let scratch = Scratch::new("killed");
    for round in 0..24_u64 {
        let sample = start("abba-behind", &scratch);
        let mut command = hangscope();
        command.args(["attach", "--json", &sample.pid.to_string()]);
        let pid = sample.pid;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(500 * round));
            drop(sample);
        });
        let said = run(command);
        killer.join().expect("killed");
        if let Some(report) = is_refused_or_partial(&said) {
            assert_eq!(report["schema"], "hangscope/1", "round {round}, pid {pid}");
        }
    }
}

#[test]
fn a_process_that_is_traced_already() {
    if !support::has_command("strace") {
        return lacks("strace");
    }
    let scratch = Scratch::new("traced");
    let sample = start("abba-behind", &scratch);
    let mut command = Command::new("strace");
    command.args(["-f", "-o", "/dev/null", "-p", &sample.pid.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
    let tracer = Guard(command.spawn().expect("strace"));
    let mut patience = 5000;
    while sample.status("TracerPid").as_deref() == Some("0") && patience > 0 {
        std::thread::sleep(Duration::from_millis(1));
        patience -= 1;
    }
    let said = attach(&sample.pid.to_string(), &["--json"]);
    let report = is_refused_or_partial(&said).expect("what /proc gives without stopping");
    assert!([1, 4].contains(&said.code()), "exit code {}: {}", said.code(), said.err);
    assert!(warnings(&report).contains("traces it already"), "{}", warnings(&report));
    assert_eq!(sample.status("TracerPid"), Some(tracer.0.id().to_string()), "still its tracer's");
}

#[test]
fn a_stopped_process_stays_stopped() {
    let scratch = Scratch::new("stopped");
    let sample = start("abba-behind", &scratch);
    sample.signal(Signal::SIGSTOP).expect("stopped");
    let is_stopped = || sample.status("State").is_some_and(|s| s.starts_with('T'));
    let mut patience = 2000;
    while !is_stopped() && patience > 0 {
        std::thread::sleep(Duration::from_millis(1));
        patience -= 1;
    }
    let said = attach(&sample.pid.to_string(), &["--json"]);
    assert_eq!(said.code(), 1, "{} {}", headline(&said), said.err);
    assert!(is_stopped(), "it is {:?}", sample.status("State"));
    sample.signal(Signal::SIGCONT).expect("continued");
    let mut patience = 2000;
    while sample.is_unharmed().is_err() && patience > 0 {
        std::thread::sleep(Duration::from_millis(1));
        patience -= 1;
    }
    sample.is_unharmed().expect("it runs on");
}

#[test]
fn a_disk_that_is_full_costs_only_what_was_to_be_written() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = child.id().to_string();
    let core = attach(&pid, &["--save-core", "/dev/full"]);
    let report = attach(&pid, &["-o", "/dev/full"]);
    child.kill().unwrap();
    child.wait().unwrap();
    for (said, lost) in [(&core, "the core to /dev/full"), (&report, "the report to /dev/full")] {
        assert_eq!(said.code(), 2, "{}", said.err);
        assert!(said.err.contains("cannot write") && said.err.contains(lost), "{}", said.err);
        assert!(said.out.contains("IDLE: nothing is stuck"), "the report itself: {}", said.out);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
    assert!(core.out.contains("! cannot write the core"), "{}", core.out);
}

#[test]
fn an_interrupted_look_lets_go() {
    let scratch = Scratch::new("interrupted");
    let sample = start("idle-pool", &scratch);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        for round in 0..8_u64 {
            let mut command = hangscope();
            command.args(["attach", "--json", "--samples", "50", "--interval", "1ms", &sample.pid.to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = Guard(command.spawn().expect("it starts"));
            std::thread::sleep(Duration::from_millis(3 + 5 * round));
            let pid = nix::unistd::Pid::from_raw(i32::try_from(child.0.id()).expect("a pid"));
            let _ = nix::sys::signal::kill(pid, signal);
            child.0.wait().expect("it ends");
            sample.is_unharmed().unwrap_or_else(|why| panic!("{signal}, round {round}: {why}"));
        }
    }
}

#[test]
fn durations_without_end() {
    for (option, value) in [("--max-pause", "18000000000000000000s"), ("--interval", "9000000000000000000s")] {
        let said = attach(&std::process::id().to_string(), &[option, value]);
        assert_eq!((said.code(), said.out.as_str()), (2, ""), "{}", said.err);
        assert!(said.err.contains("a hundred years is the most"), "{}", said.err);
    }
}

#[test]
fn a_process_and_its_thread_are_one_process() {
    let sleeper = Guard(Command::new("sleep").arg("60").spawn().expect("sleep"));
    let scratch = Scratch::new("bad-input-threads");
    let program = start("abba-mutex", &scratch);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", program.pid)).expect("its threads").flatten();
    let mut tids: Vec<String> = tasks.map(|t| t.file_name().to_string_lossy().into_owned()).collect();
    tids.push(sleeper.0.id().to_string());
    let more: Vec<&str> = std::iter::once("--json").chain(tids.iter().map(String::as_str)).collect();
    let said = attach(&program.pid.to_string(), &more);
    let report: Value = serde_json::from_str(&said.out).expect("a report");
    let pids: Vec<i64> =
        report["processes"].as_array().expect("processes").iter().filter_map(|p| p["pid"].as_i64()).collect();
    assert_eq!(pids.len(), 2, "{pids:?}");
    assert_eq!(said.code(), 1, "{}", headline(&said));
}

#[test]
fn a_pause_without_time_is_a_partial_answer() {
    let scratch = Scratch::new("bad-input-no-time");
    let program = start("idle-pool", &scratch);
    // A fast machine may read all of it before the limit is looked at: then nothing is missing, and nothing is said.
    let mut cut = 0;
    for _ in 0..100 {
        let said = attach(&program.pid.to_string(), &["--json", "--samples", "1", "--max-pause", "0"]);
        let report = is_refused_or_partial(&said).expect("a report");
        let said_why = warnings(&report);
        let limited = ["the pause reached its limit", "did not come to a stop"].iter().any(|w| said_why.contains(w));
        assert_eq!(said.code(), if limited { 4 } else { 0 }, "{} {}", headline(&said), warnings(&report));
        cut += usize::from(limited);
        if cut == 3 {
            break;
        }
    }
    assert!(cut > 0, "no pause of 100 reached its limit of no time at all");
    program.is_unharmed().expect("it runs on");
}

#[test]
fn ended_between_two_looks() {
    let mut sleeper = Guard(Command::new("sleep").arg("60").spawn().expect("sleep"));
    let pid = sleeper.0.id().to_string();
    let looks = std::thread::spawn(move || attach(&pid, &["--json", "--interval", "2s", "--samples", "2"]));
    std::thread::sleep(Duration::from_millis(1000));
    sleeper.0.kill().expect("it is ours");
    sleeper.0.wait().expect("it ends");
    let said = looks.join().expect("hangscope ends");
    // on a slow machine it may be gone before the first look
    if let Some(report) = is_refused_or_partial(&said) {
        assert_eq!(said.code(), 4, "{}", headline(&said));
        assert!(warnings(&report).contains("no further look"), "{}", warnings(&report));
    }
}

#[test]
fn names_do_not_drive_the_terminal() {
    let scratch = Scratch::new("bad-input-names");
    let hostile = "s\u{1b}]0;x\u{7}\u{9b}31m\u{202e}\u{2028}\u{ad}\u{200b}\nx";
    let program = scratch.path().join(hostile);
    std::fs::copy("/bin/sleep", &program).expect("a copy");
    let sleeper = Guard(Command::new(&program).arg("60").spawn().expect("sleep"));
    let pid = sleeper.0.id().to_string();
    let missing = scratch.path().join(format!("{hostile}.core"));
    for said in [
        attach(&pid, &["-v", "--threads", "all"]),
        attach(&pid, &["--json"]),
        attach(&pid, &["--no-stop"]),
        core(&missing),
    ] {
        for c in said.out.chars().chain(said.err.trim_end().chars()) {
            assert!(c == '\n' || hangscope::units::harmless(c) == c, "{c:?} in {} {}", said.out, said.err);
        }
    }
    let said = attach(&pid, &["--json"]);
    let report: Value = serde_json::from_str(&said.out).expect("a report");
    assert_eq!(report["processes"][0]["exe"].as_str(), program.to_str(), "JSON keeps the name");
}
