//! `hangscope run [--timeout D] -- CMD...`: the observer that stands outside the locks.
//!
//! CMD runs as if it had been started alone: its output, its exit status and the signals it is sent are its own. At the
//! deadline, or on SIGQUIT, every process below us is diagnosed before any is ended.
//!
//! ```text
//! run (supervisor): signals, deadline, ends the tree
//!  └─ observer: starts CMD, diagnoses the tree; may die or hang
//!      └─ CMD and its processes
//! ```
//!
//! Being their ancestors, both need no privilege; as child subreapers they stay the ancestors of what CMD leaves behind.

mod channel;
mod inherited;
mod observer;
mod output;
mod signals;
mod supervisor;
mod sys;
mod terminal;
mod tree;

use crate::cli::{Common, Format, Run};
use anyhow::Context;
use channel::Outcome;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use output::Output;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use supervisor::{Event, Supervisor};
use sys::How;
use terminal::Terminal;

/// `run`: the deadline passed, or a report was asked for.
pub const DEADLINE: u8 = 124;
/// CMD could not be executed, as shells say it.
const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found, as shells say it.
const NOT_FOUND: u8 = 127;

/// How long the report may wait for its reader before the tree is ended, and again afterwards.
const READER: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// Runs CMD to its end, or to its diagnosis.
///
/// # Errors
/// When we cannot watch over a child at all. CMD that cannot be started gives 126 or 127, as a shell would.
pub fn run(args: &Run, common: &Common) -> anyhow::Result<u8> {
    let Some(program) = args.command.first() else {
        anyhow::bail!("no command given; write hangscope run -- CMD");
    };
    let report = report_file().context("cannot prepare to watch over the command")?;
    let terminal = Terminal::save();
    let deadline = args.timeout.and_then(|t| Instant::now().checked_add(t));
    let mut supervisor = Supervisor::start(&args.command, common, &report, deadline)
        .context("cannot prepare to watch over the command")?;
    let why = match supervisor.watch() {
        Event::Ended(how) => {
            supervisor.dismiss();
            if let Some(terminal) = &terminal {
                terminal.restore(matches!(how, How::Killed(_)));
            }
            return Ok(pass_on(how));
        }
        Event::NotStarted(error) => {
            supervisor.dismiss();
            let line = format!("hangscope: cannot run {}: {}", program.to_string_lossy(), why_not(program, &error));
            let _ = writeln!(io::stderr(), "{line}");
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
        }
        Event::Lost(how) => {
            supervisor.end();
            anyhow::bail!("the process that starts the command is gone: {how}");
        }
        Event::Deadline => format!("still running after {}", spoken(args.timeout.unwrap_or_default())),
        Event::Asked => "asked to report (SIGQUIT)".to_owned(),
    };
    let outcome = supervisor.diagnose(args.report_within);
    let hurried = matches!(outcome, Err((_, true)));
    let mut output = Output::new();
    tell(&mut output, &program.to_string_lossy(), &why, outcome, &report, common);
    if !hurried {
        output.finish(READER[0], &mut || supervisor.asked_to_end().is_some());
    }
    for survivor in supervisor.end() {
        output.say(&format!("hangscope: process {survivor} does not end, not even by SIGKILL; it stays behind\n"));
    }
    if let Some(terminal) = &terminal {
        terminal.restore(true);
    }
    output.finish(READER[1], &mut || supervisor.asked_to_end().is_some());
    Ok(DEADLINE)
}

/// A file without a name, which the observer writes and we read.
fn report_file() -> io::Result<File> {
    match memfd_create(c"report", MFdFlags::MFD_CLOEXEC) {
        Ok(fd) => Ok(fd.into()),
        Err(_) => tempfile::tempfile(),
    }
}

/// CMD has them now. Where we kept them, whoever writes to CMD or reads from it would not see that CMD closed its end.
fn let_go_of_standard_streams() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdin(&null);
        let _ = nix::unistd::dup2_stdout(&null);
    }
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

/// Tells what was found: the report to stderr or the file of `-o`, or why there is none.
fn tell(
    output: &mut Output,
    program: &str,
    why: &str,
    outcome: Result<Outcome, (String, bool)>,
    report: &File,
    common: &Common,
) {
    let (outcome, failed) = match outcome {
        Ok(outcome) => match outcome.failed {
            Some(why) => (None, Some(why)),
            None => (Some(outcome), None),
        },
        Err((why, _)) => (None, Some(why)),
    };
    if !common.quiet {
        let count = outcome.as_ref().map_or(1, |o| o.processes);
        let among = if count > 1 { format!("; its tree has {count} processes") } else { String::new() };
        output.say(&format!("hangscope: {program}: {why}{among}\n"));
    }
    if let Some(why) = failed {
        output.say(&format!("hangscope: the diagnosis failed: {why}\n"));
    }
    let Some(outcome) = outcome else { return };
    if outcome.left_out > 0 {
        output.say(&format!("hangscope: {} more processes of the tree were not looked at\n", outcome.left_out));
    }
    // a report that says of a command out of time that nothing is stuck must not stand alone
    if !common.quiet || common.form() == Format::Text {
        for line in &outcome.meanwhile {
            output.say(&format!("hangscope: {line}\n"));
        }
    }
    let mut text = match read_all(report) {
        Ok(text) => text,
        Err(e) => return output.say(&format!("hangscope: the diagnosis failed: its report cannot be read: {e}\n")),
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    match &common.output {
        Some(path) => output.file(path, text, common.quiet),
        None => output.say(&text),
    }
}

/// All of a file, from its beginning.
fn read_all(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Ends as CMD ended: with its exit code, or by the signal that killed it, so that whoever waits for us sees the same.
/// Where that signal does not end us (process 1 of a container), 128 + its number, as a shell says it.
fn pass_on(how: How) -> u8 {
    match how {
        How::Exited(code) => u8::try_from(code).unwrap_or(u8::MAX),
        How::Killed(signal) | How::Stopped(signal) => {
            // one core is enough, and it is CMD's
            if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
                let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
            }
            sys::raise(signal);
            u8::try_from(128 + signal).unwrap_or(u8::MAX)
        }
        How::Continued => 0,
    }
}

/// `SIGBUS`; a real-time signal by its number.
fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
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
