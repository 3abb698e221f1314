//! `hangscope run [--timeout D] -- CMD...`: the observer that stands outside the locks.
//!
//! CMD runs as if it had been started alone: its output, its exit status and the signals it is sent are its own. At the
//! deadline, or on SIGQUIT, every process below us is diagnosed before any is ended. Being the ancestor, we need no
//! privilege for that; as child subreaper we stay the ancestor of what CMD leaves behind.

mod child;
mod tree;

use crate::cli::{Common, Run};
use crate::diagnose;
use crate::units::Pid;
use anyhow::Context;
use child::{Child, Event};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

/// `run`: the deadline passed, or a report was asked for.
pub const DEADLINE: u8 = 124;
/// CMD could not be executed, as shells say it.
const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found, as shells say it.
const NOT_FOUND: u8 = 127;

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
            eprintln!("hangscope: cannot run {}: {}", program.to_string_lossy(), why_not(program, &error));
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
    let outcome = diagnose_tree(&pids, common);
    report(&program.to_string_lossy(), &why, outcome, (pids.len(), left_out), common);
    for survivor in child.end_tree() {
        eprintln!("hangscope: process {survivor} does not end, not even by SIGKILL; it stays behind");
    }
    Ok(DEADLINE)
}

/// Why CMD could not be started, and what to try.
fn why_not(program: &OsString, error: &io::Error) -> String {
    let path = Path::new(program);
    let is_path = path.components().count() > 1 || path.is_absolute() || path.starts_with(".");
    match error.kind() {
        io::ErrorKind::NotFound if program.is_empty() => "the command is empty; write hangscope run -- CMD".to_owned(),
        io::ErrorKind::NotFound if path.exists() && is_path => {
            "the interpreter or loader it names is not there; look at its first line, or at what `file` says of it"
                .to_owned()
        }
        io::ErrorKind::NotFound if is_path => "there is no such file; check the path".to_owned(),
        io::ErrorKind::NotFound => "it is not on the PATH; give its path, or for shell syntax sh -c '...'".to_owned(),
        io::ErrorKind::PermissionDenied if path.is_dir() => "it is a directory; name a program in it".to_owned(),
        io::ErrorKind::PermissionDenied if path.is_file() => {
            "it may not be executed; chmod +x makes a program of it, or name its interpreter before it".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Diagnoses every process, as one graph. Nothing here can fail or panic its way out: the tree is still to be ended.
fn diagnose_tree(pids: &[Pid], common: &Common) -> Result<String, String> {
    let options = common.diagnose_options();
    let all = || match diagnose::live(pids, &options) {
        Ok(d) => Ok(super::render(&d, common, common.output.is_none())),
        Err(e) => Err(super::one_line(&e.into())),
    };
    panic::catch_unwind(AssertUnwindSafe(all))
        .unwrap_or_else(|_| Err("the analysis broke off; please report this".to_owned()))
}

/// Writes the report to stderr or the file of `-o`. What goes wrong is told and no more. `count`: processes of the tree, and
/// how many more there are.
fn report(
    program: &str,
    why: &str,
    outcome: Result<String, String>,
    (count, left_out): (usize, usize),
    common: &Common,
) {
    let (mut out, silent) = match outcome {
        Ok(text) => (text, None),
        Err(line) => (String::new(), Some(format!("hangscope: not looked at: {line}"))),
    };
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    let mut stderr = io::stderr().lock();
    // a broken stderr must not keep us from ending the tree
    let mut say = |text: &str| drop(stderr.write_all(text.as_bytes()));
    if !common.quiet {
        let among = if count > 1 { format!("; its tree has {count} processes") } else { String::new() };
        say(&format!("hangscope: {program}: {why}{among}\n"));
    }
    if let Some(line) = silent {
        say(&format!("{line}\n"));
    }
    if left_out > 0 {
        say(&format!("hangscope: {left_out} more processes of the tree were not looked at\n"));
    }
    match &common.output {
        Some(path) => match super::write_text(path, &out) {
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
}
