//! `hangscope doctor`: what is possible here and for one process.

#[path = "support/inherited.rs"]
mod inherited;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hangscope"));
    command.arg("doctor").args(arguments).stdin(Stdio::null()).output().expect("hangscope starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A native process that does nothing. Ended when dropped.
struct Idle(Child);

impl Idle {
    fn start() -> Idle {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hangscope"));
        let mut child = command.args(["demo-child", "idle"]).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("started "));
        Idle(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_machine_is_told_and_each_limit_has_its_mend() {
    let out = doctor(&["--json"]);
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(told["schema"], "hangscope-doctor/1");
    let checks = told["machine"].as_array().expect("checks");
    for what in ["attach", "run, demo", "rights", "container", "cores", "Python", "debug files", "debuggers"] {
        assert!(checks.iter().any(|c| c["what"] == what), "nothing about {what}: {told:#}");
    }
    let limited: Vec<_> = checks.iter().filter(|c| c["state"] == "limited").collect();
    assert!(limited.iter().all(|c| c["mend"].is_string()), "{limited:#?}");
    assert_eq!(out.status.code(), Some(if limited.is_empty() { 0 } else { 4 }));
    assert_eq!(told["possible"], if limited.is_empty() { "all" } else { "part" });
}

/// A child of ours can be traced wherever this test suite is of any use.
#[test]
fn tracing_is_proven_on_a_child() {
    let told: serde_json::Value = serde_json::from_slice(&doctor(&["--json"]).stdout).expect("JSON");
    let checks = told["machine"].as_array().expect("checks");
    let traced = checks.iter().find(|c| c["what"] == "run, demo").expect("a check");
    assert_eq!(traced["state"], "ok", "{traced:#}");
}

#[test]
fn a_process_and_its_files_are_told() {
    let idle = Idle::start();
    let out = doctor(&[&idle.pid()]);
    let told = text(&out.stdout);
    assert!(told.contains(&format!("Process {}", idle.pid())) && told.contains("x86-64"), "{told}");
    assert!(told.contains("glibc (libc.so.6)"), "{told}");
    assert!(told.contains(".symtab") && told.contains(".eh_frame"), "{told}");
    assert!(told.lines().all(|l| l.chars().count() <= 80), "{told}");
}

#[test]
fn nobody_a_zombie_and_a_kernel_thread_are_said_so() {
    let nobody = doctor(&["2147483647"]);
    assert_eq!(nobody.status.code(), Some(2));
    assert_eq!(text(&nobody.stderr).lines().count(), 1, "{nobody:?}");
    assert_eq!(doctor(&["soup"]).status.code(), Some(2));

    let mut ended = Command::new("true").spawn().expect("true starts");
    let pid = ended.id().to_string();
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    while !stat().contains(") Z") {
        std::thread::yield_now();
    }
    let zombie = doctor(&[&pid]);
    let _ = ended.wait();
    assert_eq!(zombie.status.code(), Some(4));
    assert!(text(&zombie.stdout).contains("has ended"), "{}", text(&zombie.stdout));

    // process 2 is kthreadd, where the host's processes can be seen
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|n| n.trim() == "kthreadd") {
        let kernel = doctor(&["2"]);
        assert_eq!(kernel.status.code(), Some(4));
        assert!(text(&kernel.stdout).contains("kernel thread"), "{}", text(&kernel.stdout));
    } else {
        eprintln!("skipped: needs to see the kernel's threads");
    }
}
