//! The kernel's settings, our own rights, and what is installed.

use super::Check;
use crate::commands::python;
use crate::layout::Layouts;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::{ptrace, uio};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Number of CAP_SYS_PTRACE in the masks of `/proc/PID/status`.
pub const CAP_SYS_PTRACE: u32 = 19;

pub fn checks() -> Vec<Check> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capable = has_capability(&status, CAP_SYS_PTRACE);
    let scope = read_trimmed("/proc/sys/kernel/yama/ptrace_scope");
    let contained = container();
    let mut all = vec![attach(scope.as_deref(), capable), trace_a_child(contained.is_some())];
    all.push(rights(capable, &status));
    all.push(match &contained {
        Some(how) => Check::note("container", how.clone()),
        None => Check::note("container", "none"),
    });
    all.extend(hidden_processes());
    all.extend(cores());
    all.push(pythons_understood());
    all.extend(python_here());
    all.push(debug_files());
    all.push(debuggers());
    all
}

pub fn read_trimmed(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

/// The value of one line of `/proc/PID/status`.
pub fn status_line<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

pub fn has_capability(status: &str, number: u32) -> bool {
    let mask = status_line(status, "CapEff").and_then(|m| u64::from_str_radix(m, 16).ok()).unwrap_or(0);
    mask >> number & 1 == 1
}

/// Whether processes that are not ours to watch may be attached to.
/// Source: Linux `Documentation/admin-guide/LSM/Yama.rst`.
fn attach(scope: Option<&str>, capable: bool) -> Check {
    const WHAT: &str = "attach";
    let instead = "`hangscope run -- CMD` needs no right at all; or `sudo hangscope attach PID`";
    match (scope, capable) {
        (Some("3"), _) => Check::limited(
            WHAT,
            "ptrace_scope is 3: nobody may attach until the next boot",
            "take a core (`kill -ABRT PID`) and use `hangscope core`; or `attach --no-stop`",
        ),
        (_, true) => Check::ok(WHAT, "to every process (CAP_SYS_PTRACE)"),
        (None | Some("0"), false) => Check::ok(WHAT, "to your own processes"),
        (Some("1"), false) => Check::limited(
            WHAT,
            "ptrace_scope is 1: only to processes that hangscope started",
            format!("{instead}; or for all, until reboot: `sudo sysctl kernel.yama.ptrace_scope=0`"),
        ),
        (Some(other), false) => {
            Check::limited(WHAT, format!("ptrace_scope is {other}: only with CAP_SYS_PTRACE"), instead)
        }
    }
}

/// Proves on a child of our own that seizing and reading work: a seccomp filter shows in no setting.
fn trace_a_child(contained: bool) -> Check {
    const WHAT: &str = "run, demo";
    let mend = if contained {
        "start the container with `--cap-add SYS_PTRACE` or `--security-opt seccomp=unconfined`"
    } else {
        "a seccomp filter or security module refuses ptrace: run outside of it"
    };
    match try_on_a_child() {
        Ok(()) => Check::ok(WHAT, "a child process was traced and read"),
        Err(why) => Check::limited(WHAT, format!("a child process cannot be traced: {why}"), mend),
    }
}

fn try_on_a_child() -> Result<(), String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(exe)
        .args(["demo-child", "idle"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut line = String::new();
    let said = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    let pid = Pid::from_raw(child.id().cast_signed());
    let result = match said {
        Some(Ok(n)) if n > 0 => seize_and_read(pid),
        _ => Err("it did not start".to_string()),
    };
    let _ = child.kill();
    let _ = child.wait();
    result
}

fn seize_and_read(pid: Pid) -> Result<(), String> {
    ptrace::seize(pid, ptrace::Options::empty()).map_err(|e| format!("PTRACE_SEIZE: {}", e.desc()))?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|e| e.to_string())?;
    let first = maps.split('-').next().and_then(|a| usize::from_str_radix(a, 16).ok()).ok_or("it has no memory")?;
    let mut bytes = [0; 4];
    let remote = [uio::RemoteIoVec { base: first, len: bytes.len() }];
    let read = uio::process_vm_readv(pid, &mut [IoSliceMut::new(&mut bytes)], &remote);
    read.map(drop).map_err(|e| format!("process_vm_readv: {}", e.desc()))
}

/// Our rights, in the kernel's words.
fn rights(capable: bool, status: &str) -> Check {
    let uid = nix::unistd::geteuid();
    let seccomp = match status_line(status, "Seccomp") {
        Some("0") | None => "no seccomp filter",
        Some("1") => "strict seccomp",
        _ => "a seccomp filter",
    };
    let whole = read_trimmed("/proc/self/uid_map").is_none_or(|m| m.ends_with("4294967295"));
    let namespace = if whole { "" } else { ", in a user namespace" };
    let with = if capable { "with" } else { "without" };
    Check::note("rights", format!("uid {uid}{namespace}, {with} CAP_SYS_PTRACE, {seccomp}"))
}

/// What kind of container this is, if any.
fn container() -> Option<String> {
    let marks = [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")];
    let by_file = marks.iter().find(|(file, _)| Path::new(file).exists()).map(|(_, name)| (*name).to_string());
    let by_cgroup = || {
        let cgroups = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
        ["kubepods", "docker", "containerd", "lxc", "libpod"]
            .iter()
            .find(|n| cgroups.contains(*n))
            .map(ToString::to_string)
    };
    let kubernetes = || std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "kubernetes".to_string());
    let by_init = || std::env::var("container").ok().filter(|c| !c.is_empty());
    // the first PID namespace has a fixed inode: PROC_PID_INIT_INO of include/linux/proc_ns.h
    let foreign = fs::read_link("/proc/self/ns/pid").is_ok_and(|l| l.as_os_str() != "pid:[4026531836]");
    let name = kubernetes().or(by_file).or_else(by_cgroup).or_else(by_init);
    match (name, foreign) {
        (Some(name), true) => Some(format!("{name}; only its own processes can be seen")),
        (Some(name), false) => Some(format!("{name}, in the host's PID namespace")),
        (None, true) => Some("a PID namespace of its own; only its processes can be seen".to_string()),
        (None, false) => None,
    }
}

/// `hidepid` hides other users' processes altogether.
fn hidden_processes() -> Option<Check> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let options = mounts.lines().find_map(|l| {
        let mut words = l.split(' ').skip(1);
        (words.next()? == "/proc").then(|| words.nth(1).unwrap_or_default().to_string())
    })?;
    let hides = options.split(',').find(|o| o.starts_with("hidepid=") && !matches!(*o, "hidepid=0" | "hidepid=off"))?;
    if nix::unistd::geteuid().is_root() {
        return None;
    }
    Some(Check::limited("other users", format!("/proc is mounted with {hides}"), "`sudo hangscope …`"))
}

fn cores() -> Vec<Check> {
    const WHAT: &str = "cores";
    let pattern = read_trimmed("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let limit = getrlimit(Resource::RLIMIT_CORE).map_or(0, |l| l.0);
    let mut all = vec![match pattern.strip_prefix('|') {
        Some(program) if program.contains("systemd-coredump") => Check::note(WHAT, "kept by systemd-coredump")
            .mended_by("`coredumpctl dump PID -o core` writes one to a file"),
        Some(program) if program.contains("apport") => Check::note(WHAT, "taken by apport").mended_by(
            "`apport-unpack /var/crash/FILE DIR` gives DIR/CoreDump; or `sudo sysctl kernel.core_pattern=core.%p`",
        ),
        Some(program) => {
            Check::note(WHAT, format!("piped to {}", program.split_whitespace().next().unwrap_or("a program")))
        }
        None if limit == 0 => Check::note(WHAT, "none are written by programs started here: their limit is 0")
            .mended_by("`ulimit -c unlimited` before the program starts; `gcore PID` needs no limit"),
        None => Check::note(WHAT, format!("written as '{pattern}'")),
    }];
    let filter = read_trimmed("/proc/self/coredump_filter").and_then(|f| u32::from_str_radix(&f, 16).ok());
    // bit 0: anonymous private memory, where stacks and heaps lie. Source: core(5)
    if let Some(filter) = filter.filter(|f| f & 1 == 0) {
        let found = format!("coredump_filter is {filter:#x}: cores have no stacks");
        all.push(Check::limited(
            "core filter",
            found,
            "`echo 0x33 > /proc/self/coredump_filter` before the program starts",
        ));
    }
    if let Some(value) = read_trimmed("/proc/sys/fs/suid_dumpable").filter(|v| v != "0") {
        all.push(Check::note("suid cores", format!("suid_dumpable is {value}: set-user-id programs dump too")));
    }
    all
}

fn pythons_understood() -> Check {
    let versions: Vec<String> = Layouts::cpython_versions()
        .map(|(minor, free_threaded)| format!("3.{minor}{}", if free_threaded { "t" } else { "" }))
        .collect();
    Check::ok("Python", format!("understands CPython {}", versions.join(" ")))
}

/// Whether the Python first on the path is one we understand. It is asked, not guessed.
fn python_here() -> Option<Check> {
    let found = python::ask(Path::new("python3"))?;
    Some(if found.understood {
        Check::ok("python3", found.name)
    } else {
        Check::note("python3", format!("{}: native stacks and locks only", found.name))
    })
}

fn debug_files() -> Check {
    let directory = Path::new("/usr/lib/debug/.build-id");
    let count: usize = fs::read_dir(directory)
        .map(|d| d.flatten().filter_map(|e| fs::read_dir(e.path()).ok()).map(Iterator::count).sum())
        .unwrap_or(0);
    match count {
        0 => Check::note("debug files", "none under /usr/lib/debug; names come from the programs themselves"),
        n => Check::note("debug files", format!("{n} under {}", directory.display())),
    }
}

fn debuggers() -> Check {
    let found: Vec<&str> = ["gdb", "gcore", "lldb"].into_iter().filter(|n| find_on_path(n).is_some()).collect();
    let list = if found.is_empty() { "none".to_string() } else { found.join(", ") };
    Check::note("debuggers", format!("{list} (none is needed)"))
}

fn find_on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|d| d.join(name)).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn attaching_depends_on_scope_and_capability() {
        for (scope, capable, state) in [
            (None, false, State::Ok),
            (Some("0"), false, State::Ok),
            (Some("1"), false, State::Limited),
            (Some("1"), true, State::Ok),
            (Some("2"), false, State::Limited),
            (Some("2"), true, State::Ok),
            (Some("3"), true, State::Limited),
        ] {
            let check = attach(scope, capable);
            assert_eq!(check.state, state, "{scope:?} {capable}");
            assert_eq!(check.mend.is_some(), state == State::Limited);
        }
    }

    #[test]
    fn capabilities_are_read_from_their_mask() {
        assert!(has_capability("Name:\tx\nCapEff:\t0000000000080000\n", CAP_SYS_PTRACE));
        assert!(!has_capability("CapPrm:\t0000000000080000\nCapEff:\t0000000000040000\n", CAP_SYS_PTRACE));
        assert!(!has_capability("", CAP_SYS_PTRACE));
    }
}
