//! The `hangscope` program.

use clap::Parser;
use hangscope::cli::Cli;
use hangscope::commands;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("hangscope: {}", commands::one_line(&error));
            ExitCode::from(commands::NOTHING)
        }
    }
}
