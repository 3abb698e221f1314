//! Reading and parsing the few `/proc` files the door needs. Parsers touch only bytes; readers one file each.
//!
//! Not by the crate procfs-core (0.18): it refuses a whole `status` or `maps` for one name or path that is no UTF-8, or for a field that
//! is missing, and would lose that process.

use crate::arch::Syscall;
use crate::target::{Mapping, Permissions, Progress};
use crate::units::{Addr, HostTid, Pid, Tid};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal;
use nix::sys::stat::Mode;
use nix::unistd::{Pid as NixPid, read};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Bytes a `/proc` file may have before we stop reading it.
const MAX_FILE: usize = 256 << 20;

/// Reads a whole `/proc` file: open, reads until empty, close; no `fstat`, as they have no size.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, Errno> {
    let fd = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut out = Vec::new();
    let mut piece = vec![0u8; 16 << 10];
    loop {
        match read(&fd, &mut piece) {
            Ok(0) => return Ok(out),
            Ok(n) => out.extend_from_slice(piece.get(..n).unwrap_or(&[])),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        if out.len() > MAX_FILE {
            return Ok(out);
        }
    }
}

/// Reads a short `/proc` file with one read: all of it comes at once, as each is made in one piece below 4 KiB.
pub(super) fn read_short(path: &Path) -> Result<Vec<u8>, Errno> {
    let fd = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut piece = [0u8; 4096];
    let n = read(&fd, &mut piece)?;
    Ok(piece.get(..n).unwrap_or(&[]).to_vec())
}

/// What `/proc/…/stat` says. Source: Linux `fs/proc/array.c`, `do_task_stat`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::target) struct Stat {
    /// The name, at most 15 bytes (64 for kernel threads).
    pub name: String,
    /// The state letter.
    pub state: char,
    /// The parent, in our namespace; 0 where it is outside.
    pub parent: i32,
    /// `PF_*` flags.
    pub flags: u64,
    /// User and system time, in clock ticks.
    pub ticks: u64,
    /// When it began, in clock ticks since the machine did: tells it from a later one of the same number.
    pub began: u64,
}

impl Stat {
    /// Whether it is a thread of the kernel (`PF_KTHREAD`).
    pub(super) fn is_kernel(&self) -> bool {
        self.flags & 0x0020_0000 != 0
    }

    /// Whether it has ended.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Parses `stat`. The name may hold spaces and parentheses, so fields count from the last `)`.
pub(in crate::target) fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(bytes);
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let name = text.get(open + 1..close)?.to_string();
    let rest: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    // fields after the name: 0 state, 1 parent, 6 flags, 11 utime, 12 stime, 19 starttime
    let number = |i: usize| rest.get(i)?.parse::<u64>().ok();
    Some(Stat {
        name,
        state: rest.first()?.chars().next()?,
        parent: rest.get(1)?.parse().ok()?,
        flags: number(6)?,
        ticks: number(11)?.saturating_add(number(12)?),
        began: number(19)?,
    })
}

/// The process group of a process, and the group in the foreground of its controlling terminal; `None` where it has none.
#[must_use]
pub fn read_terminal(pid: Pid) -> Option<(i32, i32)> {
    parse_terminal(&read_short(Path::new(&format!("/proc/{pid}/stat"))).ok()?)
}

/// Fields after the name: 2 process group, 4 controlling terminal, 5 its foreground group (proc_pid_stat(5)).
fn parse_terminal(stat: &[u8]) -> Option<(i32, i32)> {
    let text = String::from_utf8_lossy(stat);
    let rest: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().take(6).collect();
    let number = |i: usize| rest.get(i)?.parse::<i32>().ok();
    (number(4)? != 0).then_some((number(2)?, number(5)?))
}

/// What `/proc/…/status` says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::target) struct Status {
    /// The process it belongs to, in our namespace.
    pub process: Option<i32>,
    /// Who traces it; 0 for nobody.
    pub tracer: Option<i32>,
    /// Its id in its own, innermost PID namespace: the last column of `NSpid`.
    pub inner: Option<Tid>,
    /// Real, effective, saved and filesystem user.
    pub users: Option<[u32; 4]>,
    /// Real, effective, saved and filesystem group.
    pub groups: Option<[u32; 4]>,
    /// Effective capabilities.
    pub capabilities: Option<u64>,
    /// Seccomp mode: 0 none, 1 strict, 2 filter.
    pub seccomp: Option<u32>,
    /// Voluntary context switches.
    pub voluntary: Option<u64>,
    /// Involuntary context switches.
    pub involuntary: Option<u64>,
    /// Signals with a handler, the lowest bit for the first.
    pub caught: Option<u64>,
    /// Signals pending for the thread or for its process.
    pub pending: u64,
}

/// Parses `status`; what is absent stays `None` (`NSpid` came with Linux 4.1).
pub(in crate::target) fn parse_status(bytes: &[u8]) -> Status {
    let text = String::from_utf8_lossy(bytes);
    let mut s = Status::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            "Tgid" => s.process = value.parse().ok(),
            "TracerPid" => s.tracer = value.parse().ok(),
            "NSpid" => s.inner = value.split_ascii_whitespace().next_back().and_then(|v| v.parse().ok()).map(Tid),
            "Uid" => s.users = parse_four(value),
            "Gid" => s.groups = parse_four(value),
            "SigCgt" => s.caught = u64::from_str_radix(value, 16).ok(),
            "SigPnd" | "ShdPnd" => s.pending |= u64::from_str_radix(value, 16).unwrap_or(0),
            "CapEff" => s.capabilities = u64::from_str_radix(value, 16).ok(),
            "Seccomp" => s.seccomp = value.parse().ok(),
            "voluntary_ctxt_switches" => s.voluntary = value.parse().ok(),
            "nonvoluntary_ctxt_switches" => s.involuntary = value.parse().ok(),
            _ => {}
        }
    }
    s
}

fn parse_four(value: &str) -> Option<[u32; 4]> {
    let v: Vec<u32> = value.split_ascii_whitespace().filter_map(|x| x.parse().ok()).collect();
    v.try_into().ok()
}

/// What `/proc/…/syscall` says. Source: Linux `fs/proc/base.c`, `proc_pid_syscall`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SyscallLine {
    /// On a CPU, or about to be.
    Running,
    /// Asleep in a system call.
    In {
        /// Number and arguments.
        call: Syscall,
        /// Stack pointer.
        sp: u64,
        /// Program counter.
        pc: u64,
    },
    /// Asleep outside system calls (a page fault, a stop).
    Outside {
        /// Stack pointer.
        sp: u64,
        /// Program counter.
        pc: u64,
    },
}

impl SyscallLine {
    /// The system call, if it is in one.
    pub(super) fn call(&self) -> Option<Syscall> {
        match self {
            SyscallLine::In { call, .. } => Some(*call),
            _ => None,
        }
    }

    /// Stack pointer and program counter; a zombie's zeros count as none.
    pub(super) fn sp_pc(&self) -> Option<(u64, u64)> {
        match self {
            SyscallLine::Running => None,
            SyscallLine::In { sp, pc, .. } | SyscallLine::Outside { sp, pc } => (*sp != 0).then_some((*sp, *pc)),
        }
    }
}

/// Parses `syscall`: `running`, `-1 SP PC`, or `NR A0..A5 SP PC`.
pub(super) fn parse_syscall(bytes: &[u8]) -> Option<SyscallLine> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    if text == "running" {
        return Some(SyscallLine::Running);
    }
    let mut words = text.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut hex = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let Ok(number) = u64::try_from(number) else {
        return Some(SyscallLine::Outside { sp: hex()?, pc: hex()? });
    };
    let mut args = [0; 6];
    for a in &mut args {
        *a = hex()?;
    }
    let number = (number != crate::arch::x86_64::RESTART_SYSCALL).then_some(number);
    Some(SyscallLine::In { call: Syscall { number, args }, sp: hex()?, pc: hex()? })
}

/// Parses `maps`. Lines that do not parse are passed over; what overlaps an earlier mapping (the file is read in pieces
/// while the target runs) too.
pub(in crate::target) fn parse_maps(bytes: &[u8]) -> Vec<Mapping> {
    let mut out: Vec<Mapping> = Vec::new();
    for line in bytes.split(|b| *b == b'\n') {
        let Some(m) = parse_mapping(line) else { continue };
        if out.last().is_none_or(|last| last.end <= m.start) {
            out.push(m);
        }
    }
    out
}

fn parse_mapping(line: &[u8]) -> Option<Mapping> {
    // START-END PERMS OFFSET MAJOR:MINOR INODE [spaces PATH]
    let mut rest = line;
    let mut word = || {
        let at = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
        let (word, tail) = rest.split_at(at);
        rest = tail.get(1..).unwrap_or(&[]);
        std::str::from_utf8(word).ok()
    };
    let (start, end) = word()?.split_once('-')?;
    let permissions = word()?.as_bytes();
    let offset = u64::from_str_radix(word()?, 16).ok()?;
    let (major, minor) = word()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = word()?.parse().ok()?;
    let start = Addr(u64::from_str_radix(start, 16).ok()?);
    let end = Addr(u64::from_str_radix(end, 16).ok()?);
    if start >= end {
        return None;
    }
    let path = rest.trim_ascii_start();
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(p) => (p, true),
        None => (path, false),
    };
    Some(Mapping {
        start,
        end,
        offset,
        permissions: Permissions {
            read: permissions.first() == Some(&b'r'),
            write: permissions.get(1) == Some(&b'w'),
            execute: permissions.get(2) == Some(&b'x'),
            shared: permissions.get(3) == Some(&b's'),
        },
        device,
        inode,
        path: (!path.is_empty()).then(|| PathBuf::from(OsString::from_vec(unescape(path)))),
        deleted,
    })
}

/// Undoes the one escape the kernel makes in `maps`: a newline as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// Parses `auxv`, without the closing `AT_NULL`.
pub(in crate::target) fn parse_auxv(bytes: &[u8]) -> Vec<(u64, u64)> {
    let word = |w: &[u8]| w.try_into().map(u64::from_le_bytes).unwrap_or(0);
    bytes
        .chunks_exact(16)
        .map(|pair| {
            let (kind, value) = pair.split_at(8);
            (word(kind), word(value))
        })
        .take_while(|(kind, _)| *kind != 0)
        .collect()
}

/// The threads listed in a `task` directory, ascending.
pub(super) fn read_tasks(directory: &Path) -> std::io::Result<Vec<HostTid>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        if let Some(tid) = entry?.file_name().to_str().and_then(|n| n.parse().ok()) {
            out.push(HostTid(tid));
        }
    }
    out.sort_unstable();
    Ok(out)
}

/// One look at a thread from outside.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// Which.
    pub host_tid: HostTid,
    /// As its own namespace names it.
    pub tid: Tid,
    /// Name, state, flags and time.
    pub stat: Stat,
    /// Who traces it; 0 for nobody.
    pub tracer: i32,
    /// Counters.
    pub progress: Option<Progress>,
}

/// Looks at one thread of the process whose `task` directory is given: reads `stat` and `status`. `None` when it ended.
pub(super) fn read_look(tasks: &Path, host_tid: HostTid) -> Option<Look> {
    let directory = tasks.join(host_tid.0.to_string());
    let stat = parse_stat(&read_short(&directory.join("stat")).ok()?)?;
    let status = parse_status(&read_short(&directory.join("status")).ok()?);
    let progress = status.voluntary.zip(status.involuntary).map(|(voluntary, involuntary)| Progress {
        voluntary,
        involuntary,
        ticks: stat.ticks,
    });
    Some(Look {
        host_tid,
        tid: status.inner.unwrap_or(Tid(host_tid.0)),
        stat,
        tracer: status.tracer.unwrap_or(0),
        progress,
    })
}

/// Whether there is no thread of this number in our PID namespace, or one that has ended.
#[must_use]
pub fn is_gone(tid: i32) -> bool {
    if tid <= 0 || signal::kill(NixPid::from_raw(tid), None) == Err(Errno::ESRCH) {
        return true;
    }
    let stat = read_short(Path::new(&format!("/proc/{tid}/stat"))).ok().and_then(|b| parse_stat(&b));
    stat.is_some_and(|s| s.is_dead())
}

/// The signals a process has handlers for, the lowest bit for the first.
#[must_use]
pub fn read_caught_signals(pid: i32) -> Option<u64> {
    parse_status(&read_short(Path::new(&format!("/proc/{pid}/status"))).ok()?).caught
}

/// A line of `/proc/locks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockLine {
    /// What a lock and those that wait for it have in common.
    pub number: u64,
    /// Whether the process waits for it.
    pub blocked: bool,
    /// Whether `flock` took it, as opposed to `fcntl` for the whole process.
    pub flock: bool,
    /// The process.
    pub process: i32,
    /// The file's inode.
    pub inode: u64,
}

/// Locks of files listed at most.
const MAX_LOCKS: usize = 65_536;

/// The locks of files that processes hold and wait for; those of other kinds (leases, open file descriptions) are left out.
#[must_use]
pub fn read_file_locks() -> Vec<LockLine> {
    let bytes = read_file(Path::new("/proc/locks")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.lines().filter_map(parse_lock).take(MAX_LOCKS).collect()
}

/// Parses `3: -> FLOCK  ADVISORY  WRITE 4711 fe:01:9437 0 EOF`; the arrow marks who waits. Source: Linux `fs/locks.c`,
/// `lock_get_status`.
pub(super) fn parse_lock(line: &str) -> Option<LockLine> {
    let (number, rest) = line.split_once(':')?;
    let rest = rest.trim_start();
    let blocked = rest.starts_with("->");
    let mut words = rest.trim_start_matches("->").split_ascii_whitespace();
    let flock = match words.next()? {
        "FLOCK" => true,
        "POSIX" => false,
        _ => return None,
    };
    let process = words.nth(2)?.parse().ok().filter(|pid| *pid > 0)?;
    let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
    Some(LockLine { number: number.trim().parse().ok()?, blocked, flock, process, inode })
}

/// A thread's state letter.
pub(super) fn read_state(tasks: &Path, host_tid: HostTid) -> Option<char> {
    let bytes = read_short(&tasks.join(host_tid.0.to_string()).join("stat")).ok()?;
    parse_stat(&bytes).map(|s| s.state)
}

/// Applies `f` to every item, by several threads where there are many: each `/proc` file costs the kernel some ten
/// microseconds. The results are in the order of the items.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    const FEW: usize = 64;
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8).min(items.len() / FEW + 1);
    let share = items.len().div_ceil(workers).max(1);
    if workers <= 1 {
        return items.iter().map(f).collect();
    }
    let f = &f;
    std::thread::scope(|scope| {
        let parts: Vec<_> =
            items.chunks(share).map(|c| scope.spawn(move || c.iter().map(f).collect::<Vec<R>>())).collect();
        // a part that panicked is left out: its threads are then as if they had ended
        parts.into_iter().filter_map(|p| p.join().ok()).flatten().collect()
    })
}

/// Whether reading the mapping's memory could touch a device: registers and doorbells act when they are read.
/// Render nodes (`/dev/dri/`) are no such: see [`is_render_node`].
pub(in crate::target) fn is_device(m: &Mapping) -> bool {
    let Some(path) = &m.path else { return false };
    let harmless = ["/dev/zero", "/dev/shm", "/dev/hugepages", "/dev/dri"];
    (path.starts_with("/dev") && !harmless.iter().any(|h| path.starts_with(h)))
        || path.starts_with("/sys")
        || path.starts_with("/proc")
}

/// Whether the mapping is memory of a GPU's render node: its driver reads it for us through `/proc/PID/mem` only, and slowly.
pub(super) fn is_render_node(m: &Mapping) -> bool {
    m.path.as_ref().is_some_and(|p| p.starts_with("/dev/dri"))
}

/// Reads a thread's `syscall` line.
pub(super) fn read_syscall(tasks: &Path, host_tid: HostTid) -> Result<Option<SyscallLine>, Errno> {
    read_short(&tasks.join(host_tid.0.to_string()).join("syscall")).map(|b| parse_syscall(&b))
}

/// Reads the kernel function a thread sleeps in; `None` where the kernel hides it (`0`).
pub(super) fn read_wchan(tasks: &Path, host_tid: HostTid) -> Option<String> {
    let bytes = read_short(&tasks.join(host_tid.0.to_string()).join("wchan")).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_string();
    (!text.is_empty() && text != "0").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_at_the_terminal() {
        assert_eq!(parse_terminal(b"7 (a) b (c)) T 42 70 7 34816 55 0"), Some((70, 55)));
        assert_eq!(parse_terminal(b"7 (a) T 42 70 7 0 -1 0"), None, "no terminal");
        assert_eq!(parse_terminal(b"7 (a) T 42"), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let s = parse_stat(b"42 (a) S (b) R 1 42 42 0 -1 4194304 1 2 3 4 70 30 0 0 20 0 1 0 5 6 7").unwrap();
        assert_eq!((s.name.as_str(), s.state, s.flags, s.ticks, s.began), ("a) S (b", 'R', 4_194_304, 100, 5));
        assert!(!s.is_kernel());
        assert_eq!(parse_stat(b"42 (a"), None);
    }

    #[test]
    fn what_may_be_a_device_is_told_apart() {
        let of = |path: &str| parse_maps(format!("1000-2000 rw-s 00000000 00:05 7 {path}\n").as_bytes()).remove(0);
        for path in ["/dev/kfd", "/dev/nvidia0", "/dev/mem", "/sys/devices/pci0000:00/resource0"] {
            assert!(is_device(&of(path)), "{path}");
        }
        for path in ["/dev/zero (deleted)", "/dev/shm/x", "/devices/x", "/SYSV0", "[heap]", "/dev/dri/renderD128"] {
            assert!(!is_device(&of(path)), "{path}");
        }
        assert!(is_render_node(&of("/dev/dri/renderD128")) && !is_render_node(&of("/dev/dri2")));
    }

    #[test]
    fn lines_of_locks() {
        let held = parse_lock("2: FLOCK  ADVISORY  WRITE 4711 fe:01:9437 0 EOF").unwrap();
        assert_eq!((held.number, held.blocked, held.flock, held.process), (2, false, true, 4711));
        assert_eq!(held.inode, 9437);
        let waits = parse_lock("2: -> POSIX  ADVISORY  READ 12 00:2e:7 0 100").unwrap();
        assert_eq!((waits.blocked, waits.flock, waits.process), (true, false, 12));
        for other in
            ["3: OFDLCK ADVISORY  WRITE -1 fe:01:9 0 EOF", "4: LEASE  ACTIVE    READ  9 fe:01:9 0 EOF", "", "x"]
        {
            assert_eq!(parse_lock(other), None, "{other}");
        }
    }

    #[test]
    fn what_has_ended_is_gone() {
        let us = std::process::id().cast_signed();
        assert!(!is_gone(us) && !is_gone(1) && is_gone(0) && is_gone(i32::MAX));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        // first a zombie, then nothing
        while !is_gone(pid) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(is_gone(pid));
    }

    #[test]
    fn many_items_keep_their_order() {
        let items: Vec<u32> = (0..1000).collect();
        assert_eq!(in_parallel(&items, |i| i + 1), (1..1001).collect::<Vec<_>>());
        assert_eq!(in_parallel(&items[..3], |i| i + 1), [1, 2, 3]);
        assert!(in_parallel(&items[..0], |i| i + 1).is_empty());
    }

    #[test]
    fn the_last_column_of_nspid_is_the_targets_own() {
        let s =
            parse_status(b"Name:\tx\nTgid:\t9\nTracerPid:\t0\nNSpid:\t24424\t17\t2\nUid:\t1\t2\t3\t4\nSeccomp:\t2\n");
        assert_eq!(s.inner, Some(Tid(2)));
        assert_eq!(s.users, Some([1, 2, 3, 4]));
        assert_eq!((s.tracer, s.seccomp, s.voluntary), (Some(0), Some(2), None));
    }

    #[test]
    fn syscall_lines() {
        assert_eq!(parse_syscall(b"running\n"), Some(SyscallLine::Running));
        assert_eq!(parse_syscall(b"-1 0x0 0x0\n").and_then(|l| l.sp_pc()), None);
        let l = parse_syscall(b"202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffe10 0x7f22\n").unwrap();
        assert_eq!(l.call().unwrap().number, Some(202));
        assert_eq!(l.call().unwrap().args[0], 0x7f00);
        assert_eq!(l.sp_pc(), Some((0x7ffe10, 0x7f22)));
        let l = parse_syscall(b"219 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8").unwrap();
        assert_eq!(l.call().unwrap().number, None);
        assert_eq!(parse_syscall(b"202 0x1"), None);
    }

    #[test]
    fn mappings_with_odd_names() {
        let m = parse_maps(
            b"7f00-8000 r-xp 00001000 fd:01 77    /tmp/a b\\012c (deleted)\n\
              8000-9000 rw-s 00000000 00:00 0 \n\
              8800-9900 rw-s 00000000 00:00 0 \n\
              junk\n\
              ffff-fffff ---p 00000000 00:00 0                          [stack]\n",
        );
        assert_eq!(m.len(), 3);
        assert_eq!(m[0].path.as_deref(), Some(Path::new("/tmp/a b\nc")));
        assert!(m[0].deleted && m[0].permissions.execute && m[0].is_file());
        assert_eq!((m[0].device, m[0].inode, m[0].offset), ((0xfd, 1), 77, 0x1000));
        assert!(m[1].permissions.shared && m[1].path.is_none());
        assert_eq!(m[2].path.as_deref(), Some(Path::new("[stack]")));
    }
}
