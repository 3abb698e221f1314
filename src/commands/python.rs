//! Asking an interpreter who it is.

use crate::layout::Layouts;
use std::path::Path;
use std::process::{Command, Stdio};

/// An interpreter's own account of itself.
pub struct Interpreter {
    /// `cpython 3.11.2`.
    pub name: String,
    /// Whether there are tables for it.
    pub understood: bool,
}

/// Runs `python` and asks. `None` where it cannot be run.
#[must_use]
pub fn ask(python: &Path) -> Option<Interpreter> {
    let question = "import sys; print(sys.implementation.name, *sys.version_info[:3])";
    let mut command = Command::new(python);
    let out = command.args(["-S", "-c", question]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, major, minor, patch] = words.as_slice() else { return None };
    let known = *name == "cpython" && *major == "3" && minor.parse().is_ok_and(understood);
    Some(Interpreter { name: format!("{name} {major}.{minor}.{patch}"), understood: known })
}

/// Whether CPython 3.`minor` has tables.
#[must_use]
pub fn understood(minor: u32) -> bool {
    Layouts::cpython_versions().any(|(m, _)| m == minor)
}
