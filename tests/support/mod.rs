//! What the tests on real programs share: building the samples, the places to run them, and running them.
#![allow(dead_code)] // each test file uses its part

pub mod build;
mod inherited;
pub mod places;
pub mod running;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Where the crate lies.
pub fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// In CI what is missing is a failure; elsewhere it is skipped, and said.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|v| v == "true" || v == "1")
}

/// Is there such a command?
pub fn has_command(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// A directory of this test process alone, under `target/samples/run`; removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it. Those of processes that are gone are removed.
    pub fn new(name: &str) -> Scratch {
        let all = home().join("target/samples/run");
        remove_dead(&all);
        let dir = all.join(format!("{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a scratch directory");
        Scratch(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes what a killed test run left: entries named `PID` or `PID-…` of no process.
pub fn remove_dead(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_string_lossy();
        let pid = pid.split('-').next().unwrap_or_default();
        if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// What a command said and how it ended.
pub struct Said {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Said {
    /// The exit code; 128 + the signal where one ended it, as a shell says it.
    pub fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// Runs a command to its end, within `limit`; after that it is killed, and that is the error.
pub fn run(mut command: Command, limit: Duration) -> Result<Said, String> {
    let out = tempfile::tempfile().map_err(|e| e.to_string())?;
    let err = tempfile::tempfile().map_err(|e| e.to_string())?;
    let clone = |f: &std::fs::File| f.try_clone().map_err(|e| e.to_string());
    command.stdin(Stdio::null()).stdout(clone(&out)?).stderr(clone(&err)?);
    let began = Instant::now();
    let mut child = command.spawn().map_err(|e| format!("cannot start {:?}: {e}", command.get_program()))?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            break status;
        }
        if began.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{:?} did not end within {limit:?}", command.get_program()));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = began.elapsed();
    Ok(Said { status, out: text_of(out)?, err: text_of(err)?, took })
}

fn text_of(mut file: std::fs::File) -> Result<String, String> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The program under test, ready for arguments.
pub fn hangscope() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hangscope"))
}
