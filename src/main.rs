//! The `hangscope` program.

use clap::Parser;
use hangscope::cli::{self, Cli};
use hangscope::commands;
use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = cli::with_verb(std::env::args_os().collect());
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error, &arguments),
    };
    match commands::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("hangscope: {}", commands::one_line(&error));
            ExitCode::from(commands::NOTHING)
        }
    }
}

/// Help where it was asked for; else what was wrong, in one line. In a debugger nobody typed `hangscope bridge`, and stdout
/// is where requests go: there the debugger's own help is named.
fn wrong_usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let is_pipe = |n| std::fs::metadata(format!("/proc/self/fd/{n}")).is_ok_and(|m| m.file_type().is_fifo());
    let verb = cli::verb(arguments);
    let debugger = verb.as_deref() == Some("bridge") && is_pipe(0) && is_pipe(1);
    let (line, asked) = cli::usage(error, if debugger { None } else { Some(verb.as_deref().unwrap_or_default()) });
    if asked && !debugger {
        error.exit();
    }
    eprintln!("hangscope: {line}");
    ExitCode::from(if asked { 0 } else { commands::NOTHING })
}
