//! `hangscope doctor [PID]`: what is and is not possible here, and the command that mends it.
//!
//! Exit code: 0 where all that matters is possible, 4 where something is not, 2 where there is no such process. Nothing is
//! stopped or changed; the one process traced is a child of our own.

mod machine;
mod modules;
mod process;

use crate::cli::{Common, Doctor, Format};
use anyhow::Context;
use comfy_table::{ContentArrangement, Table, presets};
use modules::Symbols;
use std::collections::BTreeMap;
use std::io::Write;

/// All that matters is possible.
const ALL: u8 = 0;
/// Something that matters is not.
const PART: u8 = 4;

/// How a check went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Possible.
    Ok,
    /// Worth knowing; nothing that matters hangs on it.
    Note,
    /// Not possible, or only in part.
    Limited,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Limited => "limited",
        }
    }
}

/// One thing looked at.
#[derive(Clone, Debug)]
struct Check {
    what: &'static str,
    state: State,
    found: String,
    /// The command that mends it, or what to do instead.
    mend: Option<String>,
}

impl Check {
    fn ok(what: &'static str, found: impl Into<String>) -> Check {
        Check { what, state: State::Ok, found: found.into(), mend: None }
    }

    fn note(what: &'static str, found: impl Into<String>) -> Check {
        Check { what, state: State::Note, found: found.into(), mend: None }
    }

    fn limited(what: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
        Check { what, state: State::Limited, found: found.into(), mend: Some(mend.into()) }
    }

    fn mended_by(mut self, mend: impl Into<String>) -> Check {
        self.mend = Some(mend.into());
        self
    }
}

/// Looks, and tells.
///
/// # Errors
/// When there is no such process.
pub fn run(args: &Doctor, common: &Common) -> anyhow::Result<u8> {
    let machine = machine::checks();
    let (process, modules) = match args.pid {
        Some(pid) => (process::checks(pid)?, modules::of(pid)),
        None => (Vec::new(), Vec::new()),
    };
    let code = if machine.iter().chain(&process).any(|c| c.state == State::Limited) { PART } else { ALL };
    let text = match common.form() {
        Format::Json => json(args.pid, &machine, &process, &modules, code),
        _ => text(args.pid, &machine, &process, &modules),
    };
    match &common.output {
        Some(path) => {
            crate::commands::write_text(path, &text).with_context(|| format!("cannot write to {}", path.display()))?
        }
        // a reader that has seen enough (`| head`) is no failure
        None => drop(std::io::stdout().lock().write_all(text.as_bytes())),
    }
    Ok(code)
}

fn text(pid: Option<i32>, machine: &[Check], process: &[Check], modules: &[modules::Module]) -> String {
    let mut out = format!("This machine\n{}\n", table_of(machine));
    if let Some(pid) = pid {
        out.push_str(&format!("\nProcess {pid}\n{}\n", table_of(process)));
    }
    if !modules.is_empty() {
        out.push_str(&format!("\nIts files\n{}\n", table_of_modules(modules)));
    }
    let mut mends = empty_table();
    for check in machine.iter().chain(process) {
        if let Some(mend) = &check.mend {
            mends.add_row([check.what, mend]);
        }
    }
    for mend in modules::mends(modules) {
        mends.add_row(["names", &mend]);
    }
    if mends.row_iter().next().is_some() {
        out.push_str(&format!("\nWhat mends it\n{mends}\n"));
    }
    // the table fills its columns with blanks
    out.lines().map(str::trim_end).flat_map(|line| [line, "\n"]).collect()
}

/// Columns to fill, as the reports do.
fn width() -> u16 {
    u16::try_from(super::terminal_width()).unwrap_or(80)
}

fn empty_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(width());
    table
}

fn table_of(checks: &[Check]) -> Table {
    let mut table = empty_table();
    for check in checks {
        table.add_row([check.state.word(), check.what, &check.found]);
    }
    table
}

/// Files by where their names come from: a Python program has hundreds.
fn table_of_modules(modules: &[modules::Module]) -> Table {
    const NAMED: usize = 8;
    let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for module in modules {
        groups.entry((module.symbols.kind(), module.unwind)).or_default().push(module.name());
    }
    let mut table = empty_table();
    table.add_row(["names from", "unwinds by", "files"]);
    for ((symbols, unwind), names) in groups {
        let mut list = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        if names.len() > NAMED {
            list.push_str(&format!(" and {} more", names.len() - NAMED));
        }
        table.add_row([symbols, unwind, &list]);
    }
    table
}

fn json(pid: Option<i32>, machine: &[Check], process: &[Check], modules: &[modules::Module], code: u8) -> String {
    let checks = |list: &[Check]| -> Vec<serde_json::Value> {
        let one =
            |c: &Check| serde_json::json!({"what": c.what, "state": c.state.word(), "found": c.found, "mend": c.mend});
        list.iter().map(one).collect()
    };
    let files: Vec<serde_json::Value> = modules
        .iter()
        .map(|m| {
            let debug = if let Symbols::Separate(path) = &m.symbols { Some(path) } else { None };
            let why = if let Symbols::Unreadable(why) = &m.symbols { Some(why) } else { None };
            serde_json::json!({
                "file": m.path, "symbols": m.symbols.kind(), "debug_file": debug, "error": why, "unwind": m.unwind,
            })
        })
        .collect();
    let all = serde_json::json!({
        "schema": "hangscope-doctor/1", "pid": pid, "machine": checks(machine), "process": checks(process),
        "files": files, "possible": if code == ALL { "all" } else { "part" },
    });
    format!("{all:#}\n")
}
