//! One file per verb. Everything here may fail with one line for the person; exit codes are the contract's.

pub mod attach;
pub mod bridge;
pub mod core;
pub mod demo;
pub mod doctor;
pub mod plugin;
pub mod python;
pub mod run;

use crate::cli::{Cli, Command, Common, Format, Threads};
use crate::diagnose::Diagnosis;
use crate::report::{self, Captured, Case};
use crate::target::output::{Readers, write_file};
use crate::units::harmless;
use anyhow::Context;
use std::io::Write;
use std::path::Path;

/// Exit code for wrong usage, or where nothing could be analysed.
pub const NOTHING: u8 = 2;

/// Runs the verb; the value is the exit code.
///
/// # Errors
/// One line: what, where, what to try.
pub fn run(cli: &Cli) -> anyhow::Result<u8> {
    for (option, place) in cli
        .common
        .sysroot
        .iter()
        .map(|p| ("--sysroot", p))
        .chain(cli.common.debug_dir.iter().map(|p| ("--debug-dir", p)))
    {
        if !place.is_dir() {
            let why = if place.exists() { "is not a directory" } else { "does not exist" };
            anyhow::bail!("{option}: {} {why}; name the directory that holds the files", place.display());
        }
    }
    match &cli.command {
        Command::Attach(a) => attach::run(a, &cli.common),
        Command::Core(c) => core::run(c, &cli.common),
        Command::Bridge(b) => bridge::run(b, &cli.common),
        Command::Plugin(p) => plugin::run(p, &cli.common),
        Command::Run(r) => run::run(r, &cli.common),
        Command::Demo(d) => demo::run(d, &cli.common),
        Command::Doctor(d) => doctor::run(d, &cli.common),
        Command::DemoChild(d) => demo::child(d),
    }
}

/// An error as one line: the causes joined, never a backtrace.
#[must_use]
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !line.contains(&cause) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&cause);
        }
    }
    line.chars().map(|c| if c == '\n' { ' ' } else { harmless(c) }).collect()
}

/// Writes the report of `diagnosis` where the options say and gives the exit code of its verdict.
///
/// # Errors
/// When the report cannot be written.
pub fn deliver(diagnosis: &Diagnosis, common: &Common) -> anyhow::Result<u8> {
    let text = render(diagnosis, common, false);
    match &common.output {
        Some(path) => {
            if let Err(e) = write_text(path, &text) {
                // what was found is told; it may not be there a second time
                let _ = std::io::stdout().lock().write_all(text.as_bytes());
                return Err(e)
                    .context(format!("cannot write the report to {}, so it is on standard output", path.display()));
            }
        }
        None => match std::io::stdout().lock().write_all(text.as_bytes()) {
            // a reader that has seen enough (`| head`) is no failure
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            other => other.context("cannot write the report to standard output")?,
        },
    }
    Ok(diagnosis.verdict.exit_code())
}

/// Writes `text` to the file of `-o`: all of it, or none.
///
/// # Errors
/// Those of [`write_file`].
pub fn write_text(path: &Path, text: &str) -> std::io::Result<()> {
    write_file(path, Readers::Umask, |out| out.write_all(text.as_bytes()))
}

/// The report as the options want it.
#[must_use]
pub fn render(diagnosis: &Diagnosis, common: &Common, to_stderr: bool) -> String {
    render_part(diagnosis, common, to_stderr, report::Part::Whole)
}

/// A part of the report as the options want it.
#[must_use]
pub fn render_part(diagnosis: &Diagnosis, common: &Common, to_stderr: bool, part: report::Part) -> String {
    let captured = Captured {
        at: diagnosis.captured.at,
        source: diagnosis.captured.source,
        pause: diagnosis.captured.pause,
        warnings: diagnosis.captured.warnings.clone(),
    };
    let case = Case {
        snapshots: &diagnosis.snapshots,
        stacks: &diagnosis.stacks,
        facts: &diagnosis.facts,
        runtimes: &diagnosis.runtimes,
        graph: &diagnosis.graph,
        verdict: &diagnosis.verdict,
        captured: &captured,
    };
    match common.form() {
        Format::Json => report::json(&case),
        Format::Dot => report::dot(&case),
        Format::Svg => report::svg(&case),
        Format::Text => report::text(
            &case,
            &report::TextOptions {
                color: common.colored(to_stderr),
                width: terminal_width(),
                threads: match common.threads {
                    Threads::All => report::Threads::All,
                    Threads::Blocked => report::Threads::Blocked,
                    Threads::Cycle => report::Threads::Cycle,
                },
                verbose: common.verbose,
                part,
            },
        ),
    }
}

/// Columns to fill: `COLUMNS`, else 80; never under 60 nor over 120.
fn terminal_width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse::<usize>().ok());
    columns.unwrap_or(80).clamp(60, 120)
}
