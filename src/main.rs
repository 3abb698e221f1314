//! The `hangscope` program.

use clap::Parser;
use hangscope::cli::Cli;
use hangscope::commands;
use std::io::IsTerminal;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    match commands::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("hangscope: {}", commands::one_line(&error));
            ExitCode::from(commands::NOTHING)
        }
    }
}

/// Of a debugger's command only the errors, in one line each: clap would speak of `hangscope bridge`, which nobody typed.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    let verb = std::env::args_os().nth(1).is_some_and(|verb| verb == "bridge");
    if !verb || std::io::stdin().is_terminal() {
        error.exit();
    }
    eprintln!("hangscope: {}", commands::bridge::usage(error));
    ExitCode::from(commands::NOTHING)
}
