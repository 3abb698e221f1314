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
            // one line: the causes joined, never a backtrace
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
            eprintln!("hangscope: {}", line.replace('\n', " "));
            ExitCode::from(commands::NOTHING)
        }
    }
}
