//! `hangscope run [--timeout D] -- CMD...`: the observer that stands outside the locks.
//!
//! CMD runs as if it had been started alone: its output, its exit status and the signals it is sent are its own. At the
//! deadline, or on SIGQUIT, every process below us is diagnosed before any is ended. Being the ancestor, we need no
//! privilege for that; as child subreaper we stay the ancestor of what CMD leaves behind.

mod child;
mod tree;

use crate::cli::{Common, Format, Run};
use crate::diagnose;
use crate::units::Pid;
use anyhow::Context;
use child::{Child, Event};
use std::io::{self, IsTerminal, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// `run`: the deadline passed, or a report was asked for.
pub const DEADLINE: u8 = 124;
/// CMD could not be executed, as shells say it.
const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found, as shells say it.
const NOT_FOUND: u8 = 127;

/// Processes diagnosed at once: each is held by a thread of its own.
const AT_ONCE: usize = 8;
/// Processes diagnosed at all. A larger tree is a build, not a deadlock; what is left out is said.
const AT_MOST: usize = 128;

/// Runs CMD to its end, or to its diagnosis.
///
/// # Errors
/// When we cannot watch over a child at all. CMD that cannot be started gives 126 or 127, as a shell would.
pub fn run(args: &Run, common: &Common) -> anyhow::Result<u8> {
    let Some((program, arguments)) = args.command.split_first() else {
        anyhow::bail!("no command given; write hangscope run -- CMD");
    };
    let mut child = match Child::spawn(program, arguments) {
        Ok(child) => child,
        Err(child::SpawnError::Start(error)) => {
            eprintln!("hangscope: cannot run {}: {error}", program.to_string_lossy());
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
        }
        Err(other) => return Err(other.into()),
    };
    let deadline = args.timeout.and_then(|t| Instant::now().checked_add(t));
    let why = match child.watch(deadline).context("cannot wait for the command")? {
        Event::Ended(status) => return Ok(child::pass_on(status)),
        Event::Deadline => {
            format!("still running after {}", spoken(args.timeout.unwrap_or_default()))
        }
        Event::Asked => "asked to report (SIGQUIT)".to_string(),
    };
    let (pids, left_out) = tree::of_our_children();
    let findings = diagnose_each(&pids, common);
    report(&program.to_string_lossy(), &why, findings, left_out, common);
    for survivor in child.end_tree() {
        eprintln!("hangscope: process {survivor} does not end, not even by SIGKILL; it stays behind");
    }
    Ok(DEADLINE)
}

/// What was found out about one process of the tree.
struct Finding {
    pid: Pid,
    /// The exit code `attach` would give, and the report; or why there is none.
    outcome: Result<(u8, String), String>,
}

impl Finding {
    /// 0 is the gravest: the contract's order of exit codes 1, 3, 4, 0, then what could not be analysed.
    fn rank(&self) -> u8 {
        match &self.outcome {
            Ok((1, _)) => 0,
            Ok((3, _)) => 1,
            Ok((4, _)) => 2,
            Ok(_) => 3,
            Err(_) => 4,
        }
    }
}

/// Diagnoses every process, a few at a time; gravest first. Nothing here can fail or panic its way out: the tree is still
/// to be ended.
fn diagnose_each(pids: &[Pid], common: &Common) -> Vec<Finding> {
    let options = common.diagnose_options();
    let next = AtomicUsize::new(0);
    let findings = Mutex::new(Vec::new());
    let work = || {
        while let Some((at, pid)) = pids.get(next.fetch_add(1, Ordering::Relaxed)).map(|p| (p.0, *p)) {
            let one = || match diagnose::live(&[pid], &options) {
                Ok(d) => Ok((d.verdict.exit_code(), super::render(&d, common, common.output.is_none()))),
                Err(e) => Err(super::one_line(&e.into())),
            };
            let outcome = panic::catch_unwind(AssertUnwindSafe(one))
                .unwrap_or_else(|_| Err(format!("the analysis of process {at} broke off; please report this")));
            findings.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Finding { pid, outcome });
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(pids.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut findings = findings.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    findings.sort_by_key(|f| (f.rank(), pids.iter().position(|p| *p == f.pid)));
    findings
}

/// Writes the reports to stderr or the file of `-o`. What goes wrong is told and no more.
fn report(program: &str, why: &str, findings: Vec<Finding>, left_out: usize, common: &Common) {
    let count = findings.len();
    let mut out = String::new();
    let (mut reports, mut silent) = (Vec::new(), Vec::new());
    for finding in findings {
        match finding.outcome {
            Ok((_, text)) => reports.push((finding.pid, text)),
            Err(line) => silent.push(format!("hangscope: not looked at: {line}")),
        }
    }
    for (i, (pid, text)) in reports.iter().enumerate() {
        if common.form() == Format::Text && count > 1 {
            let rule = format!("--- process {pid} ({}), {} of {} ", tree::name(*pid), i + 1, reports.len());
            out.push_str(&format!("{rule}{}\n", "-".repeat(79_usize.saturating_sub(rule.len()))));
        }
        out.push_str(text);
        if !text.ends_with('\n') {
            out.push('\n');
        }
    }
    let mut stderr = io::stderr().lock();
    // a broken stderr must not keep us from ending the tree
    let mut say = |text: &str| drop(stderr.write_all(text.as_bytes()));
    if !common.quiet {
        let among =
            if count > 1 { format!("; its tree has {count} processes, the gravest first") } else { String::new() };
        say(&format!("hangscope: {program}: {why}{among}\n"));
    }
    for line in silent {
        say(&format!("{line}\n"));
    }
    if left_out > 0 {
        say(&format!("hangscope: {left_out} more processes of the tree were not looked at\n"));
    }
    match &common.output {
        Some(path) => match std::fs::write(path, &out) {
            Ok(()) if common.quiet => {}
            Ok(()) => say(&format!("hangscope: the report is in {}\n", path.display())),
            Err(e) => say(&format!("hangscope: cannot write the report to {}: {e}\n{out}", path.display())),
        },
        None => say(&out),
    }
}

/// A duration as a person writes it: `60s`, `1h30m`, `1.5s`.
fn spoken(d: Duration) -> String {
    let (s, ms) = (d.as_secs(), d.subsec_millis());
    match (s / 3600, s % 3600 / 60, s % 60) {
        _ if ms > 0 && s == 0 => format!("{ms}ms"),
        _ if ms > 0 => format!("{:.1}s", d.as_secs_f64()),
        (0, 0, s) => format!("{s}s"),
        (0, m, 0) => format!("{m}m"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, 0, 0) => format!("{h}h"),
        (h, m, 0) => format!("{h}h{m}m"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

/// Whether Ctrl-\ can be pressed for us: then CMD must not die of it before it is looked at.
fn on_a_terminal() -> bool {
    io::stdin().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_spoken_as_they_are_written() {
        for (ms, said) in [(60_000, "1m"), (90_000, "1m30s"), (5_400_000, "1h30m"), (2_500, "2.5s"), (300, "300ms")] {
            assert_eq!(spoken(Duration::from_millis(ms)), said);
        }
        assert_eq!(spoken(Duration::from_secs(7)), "7s");
        assert_eq!(spoken(Duration::from_secs(3605)), "1h0m5s");
    }

    #[test]
    fn the_gravest_comes_first() {
        let finding = |outcome| Finding { pid: Pid(1), outcome };
        let mut all = [
            finding(Err("no".into())),
            finding(Ok((0, String::new()))),
            finding(Ok((4, String::new()))),
            finding(Ok((3, String::new()))),
            finding(Ok((1, String::new()))),
        ];
        all.sort_by_key(Finding::rank);
        let codes: Vec<Option<u8>> = all.iter().map(|f| f.outcome.as_ref().ok().map(|o| o.0)).collect();
        assert_eq!(codes, [Some(1), Some(3), Some(4), Some(0), None]);
    }
}
