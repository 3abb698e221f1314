//! One process: what stands between it and us.

use super::Check;
use super::machine::{CAP_SYS_PTRACE, has_capability, read_trimmed, status_line};
use crate::commands::python::understood;
use anyhow::bail;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// `e_machine` of x86-64 (the ELF header, bytes 18 and 19).
const EM_X86_64: u16 = 62;

/// Everything about the process itself.
pub fn checks(pid: i32) -> anyhow::Result<Vec<Check>> {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        bail!("there is no process {pid} here; `ps -e` lists those there are (a container sees only its own)");
    };
    let name = status_line(&status, "Name").unwrap_or("?");
    let threads = status_line(&status, "Threads").unwrap_or("?");
    let mut all = Vec::new();
    if status_line(&status, "State").is_some_and(|s| s.starts_with(['Z', 'X'])) {
        return Ok(vec![Check::limited(
            "state",
            format!("{name} has ended; its parent has not noticed"),
            parent_of(&status),
        )]);
    }
    if status_line(&status, "Kthread") == Some("1") || read_trimmed(&format!("/proc/{pid}/maps")).as_deref() == Some("")
    {
        let instead = format!("`cat /proc/{pid}/stack` shows where it waits in the kernel");
        return Ok(vec![Check::limited(
            "state",
            format!("{name} is a kernel thread: it has no memory of its own"),
            instead,
        )]);
    }
    all.push(Check::note(
        "program",
        format!("{name}, {threads} thread{}{}", if threads == "1" { "" } else { "s" }, states_of(pid)),
    ));
    all.push(access(pid, &status));
    all.extend(architecture(pid));
    all.extend(tracer(&status));
    all.extend(namespace(pid, &status));
    // who may not attach may not read these either
    if let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) {
        all.extend(libc(&maps));
        all.extend(python(&maps));
    }
    Ok(all)
}

fn parent_of(status: &str) -> String {
    match status_line(status, "PPid") {
        Some(parent) => format!("look at its parent: `hangscope attach {parent}`"),
        None => "look at its parent".to_string(),
    }
}

/// How many threads are in the states that matter.
fn states_of(pid: i32) -> String {
    let letters: Vec<char> = fs::read_dir(format!("/proc/{pid}/task"))
        .map(|tasks| {
            let stat = |t: fs::DirEntry| fs::read_to_string(t.path().join("stat")).ok();
            tasks
                .flatten()
                .filter_map(stat)
                .filter_map(|s| s.get(s.rfind(')')? + 1..)?.trim_start().chars().next())
                .collect()
        })
        .unwrap_or_default();
    let count = |wanted: &str| letters.iter().filter(|l| wanted.contains(**l)).count();
    let said = [(count("R"), "running"), (count("D"), "deep in the kernel"), (count("Tt"), "stopped")];
    said.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!(", {n} {word}")).collect()
}

/// Whether the kernel would let us attach: opening its memory asks the same question and disturbs nothing.
/// Source: Linux `fs/proc/base.c` `__mem_open` (PTRACE_MODE_ATTACH), `security/yama/yama_lsm.c`.
fn access(pid: i32, status: &str) -> Check {
    const WHAT: &str = "attach";
    let error = match File::open(format!("/proc/{pid}/mem")) {
        Ok(_) => return Check::ok(WHAT, "allowed"),
        Err(e) => e,
    };
    let ours = nix::unistd::geteuid().to_string();
    let owner = status_line(status, "Uid").and_then(|u| u.split_whitespace().next()).unwrap_or("?").to_string();
    let mine = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let scope = read_trimmed("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_else(|| "0".into());
    let sudo = format!("`sudo hangscope attach {pid}`; without any right: `hangscope attach --no-stop {pid}`");
    if !matches!(error.kind(), ErrorKind::PermissionDenied) {
        return Check::limited(WHAT, format!("its memory cannot be opened: {error}"), sudo);
    }
    if has_capability(&mine, CAP_SYS_PTRACE) {
        let found = "refused in spite of CAP_SYS_PTRACE: a security module, or another user namespace";
        return Check::limited(
            WHAT,
            found,
            format!("run hangscope on the host, or `hangscope attach --no-stop {pid}`"),
        );
    }
    let found = if owner != ours {
        format!("refused: it belongs to uid {owner}, we are uid {ours}")
    } else if scope != "0" {
        format!("refused: ptrace_scope is {scope} and hangscope did not start it")
    } else {
        "refused: it is not dumpable (set-user-id, file capabilities, or prctl)".to_string()
    };
    Check::limited(WHAT, found, sudo)
}

fn architecture(pid: i32) -> Option<Check> {
    const WHAT: &str = "CPU";
    let mut header = [0; 20];
    File::open(format!("/proc/{pid}/exe")).ok()?.read_exact(&mut header).ok()?;
    let [0x7f, b'E', b'L', b'F', class, .., low, high] = header else { return None };
    let machine = u16::from_le_bytes([low, high]);
    Some(match (class, machine) {
        (2, EM_X86_64) => Check::ok(WHAT, "x86-64"),
        (1, _) => Check::limited(WHAT, "a 32-bit program: not understood", "build it for 64 bits"),
        (_, other) => {
            let found = format!("ELF machine {other}: not understood");
            Check::limited(WHAT, found, "only x86-64 programs are understood in this version")
        }
    })
}

fn tracer(status: &str) -> Option<Check> {
    let tracer = status_line(status, "TracerPid").filter(|t| *t != "0")?;
    let name = read_trimmed(&format!("/proc/{tracer}/comm")).unwrap_or_else(|| "?".into());
    let mend = format!("end or detach process {tracer}; `hangscope attach --no-stop` works meanwhile");
    Some(Check::limited("traced", format!("by {name} ({tracer}): nobody else can attach"), mend))
}

fn namespace(pid: i32, status: &str) -> Option<Check> {
    let ids: Vec<&str> = status_line(status, "NSpid")?.split_whitespace().collect();
    let inside = ids.last().filter(|_| ids.len() > 1)?;
    let root = fs::read_link(format!("/proc/{pid}/root")).map_or_else(|_| "?".into(), |r| r.display().to_string());
    let found = format!("calls itself {inside} in its PID namespace; its files are opened through its root ({root})");
    Some(Check::note("container", found))
}

/// The paths of mapped files, each once.
fn files(maps: &str) -> Vec<&str> {
    let mut paths: Vec<&str> = maps.lines().filter_map(|l| l.find('/').and_then(|at| l.get(at..))).collect();
    paths.dedup();
    paths
}

fn libc(maps: &str) -> Option<Check> {
    let names = files(maps).into_iter().filter_map(|p| Path::new(p).file_name()?.to_str());
    for name in names {
        if name.starts_with("ld-musl") {
            let mend = "native stacks are shown; its locks only as futexes";
            return Some(Check::limited("libc", format!("musl ({name}): its locks are not understood"), mend));
        }
        if name == "libc.so.6" || name.starts_with("libc-2.") {
            return Some(Check::ok("libc", format!("glibc ({name})")));
        }
    }
    Some(Check::note("libc", "none mapped: statically linked, or not C"))
}

/// The interpreter by the names of its files: `libpython3.11.so.1.0`, `python3.11`.
fn python(maps: &str) -> Option<Check> {
    const WHAT: &str = "Python";
    let paths = files(maps);
    let minor = |name: &str| -> Option<u32> {
        let at = name.find("python3.")? + "python3.".len();
        let rest = name.get(at..)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let names: Vec<&str> = paths.iter().filter_map(|p| Path::new(p).file_name()?.to_str()).collect();
    let found = names.iter().find(|n| n.starts_with("libpython3.") || n.starts_with("python3."))?;
    let n = minor(found)?;
    Some(if understood(n) {
        Check::ok(WHAT, format!("3.{n} ({found})"))
    } else {
        let mend = "native stacks and locks are shown; a newer hangscope may know it";
        Check::limited(WHAT, format!("3.{n} ({found}): its structures are not known"), mend)
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_process_is_told_by_the_files_it_maps() {
        let maps = "55d0-55d1 r-xp 0 08:01 9 /usr/bin/python3.11\n7f00-7f01 r-xp 0 08:01 7 /usr/lib/x86_64-linux-gnu/libc.so.6\n";
        assert_eq!(libc(maps).map(|c| c.state), Some(State::Ok));
        assert_eq!(python(maps).map(|c| c.state), Some(State::Ok));
        let odd =
            "7f00-7f01 r-xp 0 08:01 7 /lib/ld-musl-x86_64.so.1\n7f00-7f01 r-xp 0 08:01 7 /o/libpython3.99.so.1.0\n";
        assert_eq!(libc(odd).map(|c| c.state), Some(State::Limited));
        assert_eq!(python(odd).map(|c| c.state), Some(State::Limited));
        assert!(python("7f00-7f01 r-xp 0 08:01 7 /opt/python3.11/lib/libfoo.so\n").is_none());
    }

    #[test]
    fn nobody_by_that_number_is_one_line() {
        let error = checks(i32::MAX).unwrap_err().to_string();
        assert!(error.starts_with("there is no process 2147483647") && !error.contains('\n'));
    }

    #[test]
    fn we_ourselves_can_be_looked_at() {
        let all = checks(std::process::id().cast_signed()).unwrap();
        assert!(all.iter().any(|c| c.what == "attach" && c.state == State::Ok), "{all:?}");
        assert!(all.iter().any(|c| c.what == "CPU"));
    }
}
