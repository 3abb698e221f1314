//! `hangscope demo`: each embedded program deadlocks, is named, and is gone afterwards.

#[path = "support/inherited.rs"]
mod inherited;

use std::process::{Command, Output, Stdio};

fn hangscope(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hangscope"));
    command.args(arguments).stdin(Stdio::null()).output().expect("hangscope starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON report of a demo that was named as it should be.
fn report_of(arguments: &[&str]) -> serde_json::Value {
    let out = hangscope(&[&["demo", "--json"], arguments].concat());
    assert_eq!(out.status.code(), Some(0), "{arguments:?}: {}\n{}", text(&out.stderr), text(&out.stdout));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let pid = report["processes"][0]["pid"].as_i64().expect("a pid");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the demo {pid} was left behind");
    report
}

/// The kinds of resource on the first cycle, sorted.
fn kinds_on_cycle(report: &serde_json::Value) -> Vec<String> {
    let resources = report["resources"].as_array().expect("resources");
    let steps = report["verdict"]["cycles"][0]["steps"].as_array().expect("a cycle");
    let kind =
        |id: &serde_json::Value| resources.iter().find(|r| r["id"] == *id).map(|r| r["kind"].as_str().unwrap_or(""));
    let mut kinds: Vec<String> = steps.iter().filter_map(|s| kind(&s["waits_for"])).map(str::to_owned).collect();
    kinds.sort();
    kinds
}

/// A Python that the demos can be run with, or why they are skipped.
fn python() -> Option<String> {
    let doctor: serde_json::Value = serde_json::from_slice(&hangscope(&["doctor", "--json"]).stdout).expect("JSON");
    let checks = doctor["machine"].as_array().expect("checks");
    let here = checks.iter().find(|c| c["what"] == "python3" && c["state"] == "ok");
    if here.is_none() {
        assert!(!std::env::var("CI").is_ok_and(|v| v == "true"), "needs a python3 that is understood");
        eprintln!("skipped: needs a python3 that is understood");
    }
    here.map(|_| "python3".to_string())
}

#[test]
fn the_list_names_every_demo() {
    let out = hangscope(&["demo", "--list"]);
    let list = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0));
    let names: Vec<&str> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(names, ["loader-lock-vs-gil", "mutex-vs-gil", "join-vs-gil", "abba-mutex", "self-relock"]);
}

#[test]
fn native_demos_are_named() {
    let abba = report_of(&["abba-mutex"]);
    assert_eq!(abba["verdict"]["kind"], "deadlock");
    assert_eq!(abba["verdict"]["certainty"], "recorded");
    assert_eq!(abba["verdict"]["cycles"][0]["pattern"], "lock-order-inversion");
    assert_eq!(kinds_on_cycle(&abba), ["mutex", "mutex"]);
    let relock = report_of(&["self-relock"]);
    assert_eq!(relock["verdict"]["kind"], "self-deadlock");
    assert_eq!(relock["verdict"]["cycles"][0]["pattern"], "non-reentrant-relock");
}

#[test]
fn python_demos_are_named() {
    let Some(python) = python() else { return };
    let loader = report_of(&["loader-lock-vs-gil", "--python", &python]);
    assert_eq!(loader["verdict"]["certainty"], "recorded");
    assert_eq!(kinds_on_cycle(&loader), ["gil", "loader-write-lock"]);
    assert_eq!(loader["verdict"]["blocked_behind"].as_array().map(Vec::len), Some(6), "{loader:#}");
    assert_eq!(kinds_on_cycle(&report_of(&["mutex-vs-gil"])), ["gil", "mutex"]);
    assert_eq!(kinds_on_cycle(&report_of(&["join-vs-gil"])), ["gil", "thread-exit"]);
}

#[test]
fn the_default_is_the_loader_and_the_gil_or_else_two_mutexes() {
    if python().is_some() {
        assert_eq!(kinds_on_cycle(&report_of(&[])), ["gil", "loader-write-lock"]);
    }
    let mut alone = Command::new(env!("CARGO_BIN_EXE_hangscope"));
    let out = alone.arg("demo").env("PATH", "/nonexistent").stdin(Stdio::null()).output().expect("hangscope starts");
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("there is no python3; showing abba-mutex instead"), "{}", text(&out.stderr));
    assert!(text(&out.stdout).starts_with("DEADLOCK"), "{}", text(&out.stdout));
}

#[test]
fn what_cannot_be_started_is_one_line() {
    for arguments in [&["demo", "no-such"][..], &["demo", "loader-lock-vs-gil", "--python", "/nonexistent/python"]] {
        let out = hangscope(arguments);
        assert_eq!(out.status.code(), Some(2));
        assert!(out.stdout.is_empty());
        assert_eq!(text(&out.stderr).lines().count(), 1, "{}", text(&out.stderr));
    }
}
