//! Builds the samples, once: with the machine's compiler for the machine, with bullseye's for the roots.

use super::home;
use super::places::Root;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Which compiler built it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Toolchain {
    /// The machine's `cc` and `c++`.
    Host,
    /// Those of the oldest root: what they link runs on every newer glibc.
    OldestRoot,
}

/// Every sample's name, sorted.
pub fn sample_names() -> Vec<String> {
    let dir = home().join("samples");
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .expect("the samples")
        .flatten()
        // a program whose `expect.toml` is missing is noticed where that is read
        .filter(|e| ["program.c", "program.cpp", "program.rs", "program.py"].iter().any(|p| e.path().join(p).is_file()))
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Builds one sample into `target/samples/{host,oldest}/NAME`: `program.c`, `program.cpp` and `program.rs` become `program`,
/// `lib*.c` and `lib*.cpp` shared objects; `*.py` is copied. What is newer than its sources stays. The directory.
pub fn build(name: &str, flags: &[String], toolchain: Toolchain, oldest: Option<&Root>) -> Result<PathBuf, String> {
    // two tests of one program want the same sample at once: the second must not take the first's half-made one
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let sources = home().join("samples").join(name);
    let kind = if toolchain == Toolchain::Host { "host" } else { "oldest" };
    let into = home().join("target/samples").join(kind).join(name);
    std::fs::create_dir_all(&into).map_err(|e| e.to_string())?;
    for entry in std::fs::read_dir(&sources).map_err(|e| e.to_string())?.flatten() {
        let source = entry.path();
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let target = match source.extension().and_then(|e| e.to_str()) {
            Some("py") => into.join(entry.file_name()),
            Some("c" | "cpp") if stem.starts_with("lib") => into.join(format!("{stem}.so")),
            Some("c" | "cpp" | "rs") => into.join(&stem),
            _ => continue,
        };
        let shared = [home().join("samples/ready.h"), sources.join("expect.toml")];
        let included: Vec<PathBuf> = shared.into_iter().chain(rocm_headers()).chain([source.clone()]).collect();
        if is_newer(&target, &included) {
            continue;
        }
        if source.extension().is_some_and(|e| e == "py") {
            std::fs::copy(&source, &target).map_err(|e| e.to_string())?;
        } else {
            match toolchain {
                Toolchain::Host if source.extension().is_some_and(|e| e == "rs") => {
                    compile_rust(&source, &target, flags)?
                }
                Toolchain::Host => compile_on_host(&source, &target, flags)?,
                Toolchain::OldestRoot => {
                    let root = oldest.ok_or("needs the bullseye root, whose compiler builds for all roots")?;
                    compile_in_root(root, &source, &target, flags)?;
                }
            }
        }
    }
    Ok(into)
}

/// The headers of the samples for AMD's GPU runtimes.
fn rocm_headers() -> Vec<PathBuf> {
    let dir = std::fs::read_dir(home().join("samples/rocm")).into_iter().flatten().flatten();
    dir.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "h")).collect()
}

fn is_newer(target: &Path, sources: &[PathBuf]) -> bool {
    let changed = |p: &Path| p.metadata().and_then(|m| m.modified()).ok();
    let Some(built) = changed(target) else { return false };
    sources.iter().all(|s| changed(s).is_some_and(|t: SystemTime| t < built))
}

/// The compiler and its arguments for one source file.
fn compiler(source: &Path, target: &Path, flags: &[String]) -> Vec<String> {
    let is_c = source.extension().is_some_and(|e| e == "c");
    let mut words: Vec<String> =
        if is_c { vec!["cc".into(), "-std=gnu11".into()] } else { vec!["c++".into(), "-std=c++17".into()] };
    words.extend(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"].map(String::from));
    if target.extension().is_some_and(|e| e == "so") {
        words.extend(["-shared", "-fPIC"].map(String::from));
    }
    words.extend(["-o".into(), target.display().to_string(), source.display().to_string()]);
    words.extend(flags.iter().cloned());
    words
}

/// Compiles one file with the machine's compiler.
pub fn compile_on_host(source: &Path, target: &Path, flags: &[String]) -> Result<(), String> {
    // Built beside and renamed: another test process may be running the old one.
    let making = target.with_file_name(format!(
        "making-{}-{}",
        std::process::id(),
        target.file_name().unwrap_or_default().to_string_lossy()
    ));
    let words = compiler(source, &making, flags);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    finish(command, source)?;
    std::fs::rename(&making, target).map_err(|e| e.to_string())
}

/// Compiles one Rust program, with what `ready.h` exports linked to it.
fn compile_rust(source: &Path, target: &Path, flags: &[String]) -> Result<(), String> {
    let making = target.with_file_name(format!("making-{}", std::process::id()));
    let ready = target.with_file_name("ready.o");
    let header = home().join("samples/ready.h");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O2", "-fPIC", "-DREADY_EXPORT", "-x", "c", "-c", "-o"]).arg(&ready).arg(&header);
    finish(command, &header)?;
    let mut command = Command::new("rustc");
    command.args(["--edition=2024", "-O", "-Dwarnings", "-o"]).arg(&making).arg(source);
    command.arg(format!("-Clink-arg={}", ready.display())).args(flags);
    finish(command, source)?;
    std::fs::rename(&making, target).map_err(|e| e.to_string())
}

/// Compiles one file with the compiler of a root; `target` is this machine's path.
pub fn compile_in_root(root: &Root, source: &Path, target: &Path, flags: &[String]) -> Result<(), String> {
    let at = format!(
        "/opt/hangscope-build/{}-{}",
        std::process::id(),
        source.file_name().unwrap_or_default().to_string_lossy()
    );
    let inside = root.path.join(&at[1..]);
    let made = (|| {
        std::fs::create_dir_all(inside.join("one")).map_err(|e| e.to_string())?;
        let copy = Path::new(&at).join("one").join(source.file_name().unwrap_or_default());
        let output = Path::new(&at).join(target.file_name().unwrap_or_default());
        let host = |p: &Path| root.path.join(p.strip_prefix("/").unwrap_or(p));
        std::fs::copy(source, host(&copy)).map_err(|e| e.to_string())?;
        std::fs::copy(home().join("samples/ready.h"), inside.join("ready.h")).map_err(|e| e.to_string())?;
        std::fs::create_dir_all(inside.join("rocm")).map_err(|e| e.to_string())?;
        for header in rocm_headers() {
            let to = inside.join("rocm").join(header.file_name().unwrap_or_default());
            std::fs::copy(&header, to).map_err(|e| e.to_string())?;
        }
        let mut command = Command::new("chroot");
        command.arg(&root.path).args(compiler(&copy, &output, flags));
        finish(command, source)?;
        let making = target.with_extension(format!("making-{}", std::process::id()));
        std::fs::copy(host(&output), &making).map_err(|e| e.to_string())?;
        std::fs::rename(&making, target).map_err(|e| e.to_string())
    })();
    let _ = std::fs::remove_dir_all(&inside);
    made
}

fn finish(command: Command, source: &Path) -> Result<(), String> {
    let said = super::run(command, std::time::Duration::from_secs(120))?;
    if said.status.success() { Ok(()) } else { Err(format!("{} does not compile: {}", source.display(), said.err)) }
}
