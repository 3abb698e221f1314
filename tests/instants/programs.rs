//! The programs: what there is, how it is built, where it runs.

use super::support::build::{compile_in_root, compile_on_host};
use super::support::places::{self, Place, Root};
use super::support::{has_command, home};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A healthy program in one place.
#[derive(Clone)]
pub struct Program {
    /// As the table and `HANGSCOPE_INSTANTS_ONLY` name it: `locks.c mutex-normal @host`.
    pub name: String,
    /// Its source below `programs/`.
    pub source: &'static str,
    /// What it is to do.
    pub kind: &'static str,
    pub place: Place,
}

const LOCKS: &[&str] = &[
    "mutex-normal",
    "mutex-recursive",
    "mutex-errorcheck",
    "mutex-adaptive",
    "mutex-robust",
    "mutex-pi",
    "mutex-robust-pi",
    "mutex-pshared",
    "mutex-pshared-robust",
    "mutex-timed",
    "mutex-timed-pi",
    "mutex-try",
    "mutex-dies-robust",
    "mutex-dies-robust-pi",
    "rwlock",
    "rwlock-writers",
    "cond",
    "cond-timed",
    "sem",
    "sem-queue",
    "sem-timed",
    "sem-handler",
    "barrier",
    "once",
    "spin",
];

const LIBRARY: &[&str] = &[
    "malloc",
    "malloc-own",
    "fork",
    "fork-own",
    "atfork",
    "stdio",
    "stdio-fork",
    "loader",
    "loader-fork",
    "resolver",
    "churn",
    "churn-fork",
    "cancel",
    "setxid",
];

const BETWEEN: &[&str] = &[
    "pipe",
    "pipe-ping",
    "socket",
    "socket-ping",
    "threads",
    "threads-ping",
    "flock",
    "fcntl",
    "children",
    "pshared",
    "pshared-robust",
    "pshared-pi",
    "pshared-cond",
    "pshared-rwlock",
    "pshared-barrier",
    "pshared-sem",
];

const CXX: &[&str] =
    &["mutex", "timed", "shared", "condition", "once", "future", "semaphore", "latch", "atomic", "barrier"];

const RUST: &[&str] = &["mutex", "rwlock", "condvar", "once", "channels", "park", "scope"];

const PYTHON: &[&str] = &[
    "locks",
    "condition",
    "barrier",
    "guards",
    "queues",
    "pools",
    "threads",
    "imports",
    "garbage",
    "logging",
    "tracing",
    "signals",
    "asyncio",
    "asyncio-threads",
    "fork",
    "spawn",
    "pool-fork",
    "pool-forkserver",
    "pool-spawn",
    "executor-fork",
    "executor-spawn",
    "objects-fork",
    "objects-spawn",
];

/// Sources and what each can do; those in C run in every root too.
const NATIVE: &[(&str, &[&str])] =
    &[("locks.c", LOCKS), ("library.c", LIBRARY), ("between.c", BETWEEN), ("standard.cpp", CXX), ("standard.rs", RUST)];

/// All of them.
pub fn all() -> Vec<Program> {
    let roots = places::roots();
    let mut programs = Vec::new();
    let mut add = |source: &'static str, kind: &'static str, place: &Place| {
        let name = format!("{source} {kind} @{}", place.name);
        programs.push(Program { name, source, kind, place: place.clone() });
    };
    let native: Vec<Place> = places::native_places(&roots).into_iter().filter(|p| !p.own_pids).collect();
    for (source, kinds) in NATIVE {
        for kind in *kinds {
            for place in native.iter().filter(|p| source.ends_with(".c") || p.root.is_none()) {
                add(source, kind, place);
            }
        }
    }
    let pythons = places::python_places(&roots);
    for kind in PYTHON {
        for place in &pythons {
            add("python.py", kind, place);
        }
    }
    programs
}

/// Builds the program: the directory, as this machine names it.
pub fn build(program: &Program) -> Result<PathBuf, String> {
    let sources = home().join("tests/instants/programs");
    let toolchain = if program.place.root.is_some() { "oldest" } else { "host" };
    let into = home().join("target/instants").join(toolchain).join(program.source);
    let text = |name: &str| std::fs::read_to_string(sources.join(name)).map_err(|e| format!("{name}: {e}"));
    let io = |e: std::io::Error| e.to_string();
    std::fs::create_dir_all(&into).map_err(io)?;
    let mut source = text(program.source)?;
    let target = match program.source.ends_with(".py") {
        true => into.join("program.py"),
        false => into.join("program"),
    };
    if program.source.ends_with(".py") {
        return std::fs::write(&target, source).map_err(io).map(|()| into);
    }
    // one file is what the compilers of the roots are given
    source = source.replace("#include \"ledger.h\"", &text("ledger.h")?);
    let whole = into.join(program.source);
    if target.is_file() && std::fs::read_to_string(&whole).is_ok_and(|had| had == source) {
        return Ok(into);
    }
    let _ = std::fs::remove_file(&target);
    std::fs::write(&whole, source).map_err(io)?;
    if program.source.ends_with(".rs") {
        build_with_rustc(&whole, &target)?;
        return Ok(into);
    }
    let mut flags: Vec<String> = ["-ldl", "-lrt"].map(String::from).to_vec();
    if program.source.ends_with(".cpp") {
        flags.push("-std=c++20".to_owned());
    }
    match &program.place.root {
        Some(_) => compile_in_root(&oldest()?, &whole, &target, &flags)?,
        None => compile_on_host(&whole, &target, &flags)?,
    }
    Ok(into)
}

/// What its compiler links runs on every newer glibc.
fn oldest() -> Result<Root, String> {
    places::roots().into_iter().next().ok_or_else(|| "there is no root".to_owned())
}

fn build_with_rustc(source: &Path, target: &Path) -> Result<(), String> {
    if !has_command("rustc") {
        return Err("needs rustc".to_owned());
    }
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-O", "-g", "-o"]).arg(target).arg(source);
    let said = super::support::run(rustc, std::time::Duration::from_secs(300))?;
    if said.status.success() { Ok(()) } else { Err(said.err) }
}
