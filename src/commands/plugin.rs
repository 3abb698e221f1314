//! `hangscope plugin gdb|lldb`: the debugger's half of the bridge, as it is embedded in this binary.

use crate::cli::{Common, Debugger, Plugin};
use anyhow::Context;
use std::io::Write;

const GDB: &str = include_str!("../../plugins/gdb/hangscope.py");
const LLDB: &str = include_str!("../../plugins/lldb/hangscope.py");

/// The line of a plugin that says which binary to start.
const BINARY: &str = "BINARY = \"hangscope\"";

/// Prints the plugin; it will start this very binary.
///
/// # Errors
/// When it cannot be written.
pub fn run(args: &Plugin, common: &Common) -> anyhow::Result<u8> {
    let text = match args.debugger {
        Debugger::Gdb => GDB,
        Debugger::Lldb => LLDB,
    };
    let text = match std::env::current_exe().ok().and_then(|exe| serde_json::to_string(&exe).ok()) {
        Some(exe) => text.replacen(BINARY, &format!("BINARY = {exe}"), 1),
        None => text.to_owned(),
    };
    match &common.output {
        Some(path) => super::write_text(path, &text).with_context(|| format!("cannot write {}", path.display()))?,
        None => match std::io::stdout().lock().write_all(text.as_bytes()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            other => other.context("cannot write the plugin to standard output")?,
        },
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gdb_without_python_says_so_first() {
        let first = GDB.lines().find(|l| !l.starts_with('#')).unwrap();
        assert!(first.starts_with("echo ") && first.contains("needs a gdb with Python") && first.ends_with("\\n"));
    }

    #[test]
    fn plugins_stay_thin_and_say_which_binary() {
        for text in [GDB, LLDB] {
            assert!(text.lines().count() < 200, "{} lines", text.lines().count());
            assert_eq!(text.matches(BINARY).count(), 1);
            assert!(text.lines().all(|l| l.chars().count() <= 120 && l == l.trim_end()));
            assert!(text.contains(&format!("VERSION = {}\n", crate::target::bridge::VERSION)));
        }
    }
}
