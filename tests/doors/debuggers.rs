//! The debuggers whose plugin is a door: starting them, sourcing the plugin, and ending as hangscope would.

use crate::support::{hangscope, has_command};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A debugger with a plugin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Debugger {
    Gdb,
    Lldb,
}

/// lldb 16 or later; Debian's own name carries the version.
fn lldb() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    let works = |name: &&str| {
        let mut ask = Command::new(name);
        ask.args(["--no-lldbinit", "-b", "-o", "script print('can' + 'script')"]);
        has_command(name) && ask.output().is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("canscript"))
    };
    *FOUND.get_or_init(|| ["lldb-21", "lldb-19", "lldb-18", "lldb-17", "lldb-16"].into_iter().find(works))
}

impl Debugger {
    /// What is missing here.
    pub fn obstacle(self) -> Option<String> {
        match self {
            Debugger::Gdb if !has_command("gdb") => Some("gdb (apt install gdb)".into()),
            Debugger::Lldb if lldb().is_none() => Some("lldb 16 (apt install lldb-16 python3-lldb-16)".into()),
            _ => None,
        }
    }

    /// The plugin, printed by hangscope itself.
    fn plugin(self, scratch: &Path) -> Result<PathBuf, String> {
        let (word, name) = match self {
            Debugger::Gdb => ("gdb", "hangscope-gdb.py"),
            Debugger::Lldb => ("lldb", "hangscope_lldb.py"),
        };
        let path = scratch.join(name);
        let said = hangscope().args(["plugin", word, "-o"]).arg(&path).status().map_err(|e| e.to_string())?;
        if said.success() { Ok(path) } else { Err(format!("hangscope plugin {word}: {said}")) }
    }

    /// Attaches to `pid`, lets hangscope write `report`, detaches.
    pub fn attach(self, pid: i32, scratch: &Path, report: &Path) -> Result<Command, String> {
        let plugin = self.plugin(scratch)?;
        Ok(match self {
            Debugger::Gdb => {
                let mut gdb = gdb(&plugin, report);
                gdb.arg("-p").arg(pid.to_string()).args(["-ex", "detach", "-ex", "quit $hangscope_exit_code"]);
                gdb
            }
            Debugger::Lldb => lldb_with(&plugin, report, &["-p", &pid.to_string()], &["detach"]),
        })
    }

    /// Opens `core` of the program `exe`, whose file system is `root`, and lets hangscope write `report`.
    pub fn core(
        self,
        core: &Path,
        exe: &Path,
        root: Option<&Path>,
        scratch: &Path,
        report: &Path,
    ) -> Result<Command, String> {
        let plugin = self.plugin(scratch)?;
        // a link of another mount namespace names the file as that sees it
        let exe = match root {
            Some(root) if !exe.starts_with(root) => root.join(exe.strip_prefix("/").unwrap_or(exe)),
            _ => exe.to_path_buf(),
        };
        Ok(match self {
            Debugger::Gdb => {
                let mut gdb = gdb(&plugin, report);
                if let Some(root) = root {
                    gdb.arg("-iex").arg(format!("set sysroot {}", root.display()));
                }
                gdb.arg(exe).arg(core).args(["-ex", "quit $hangscope_exit_code"]);
                gdb
            }
            Debugger::Lldb => {
                let (core, exe) = (core.display().to_string(), exe.display().to_string());
                let root = root.map(|r| format!(" --sysroot {}", r.display())).unwrap_or_default();
                let report = PathBuf::from(format!("{}{root}", report.display()));
                lldb_with(&plugin, &report, &["-c", &core, &exe], &[])
            }
        })
    }
}

fn gdb(plugin: &Path, report: &Path) -> Command {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-batch", "-x"]).arg(plugin);
    gdb.arg("-ex").arg(format!("hangscope json {}", report.display()));
    gdb
}

fn lldb_with(plugin: &Path, report: &Path, target: &[&str], after: &[&str]) -> Command {
    let mut lldb = Command::new(lldb().unwrap_or("lldb"));
    lldb.args(["--no-lldbinit", "-b"]).args(target);
    lldb.arg("-o").arg(format!("command script import {}", plugin.display()));
    lldb.arg("-o").arg(format!("hangscope json {}", report.display()));
    for command in after {
        lldb.args(["-o", command]);
    }
    lldb.args(["-o", "script lldb.debugger.HandleCommand('quit %d' % lldb.hangscope_exit_code)"]);
    lldb
}
