//! The kernel: the system call each thread sleeps in, what it waits for and for how long.
//!
//! Knows nothing of locks in user memory: a futex is named by its address only, and whoever knows the lock behind it
//! says more.

pub mod between;
mod calls;
pub mod forked;
mod instant;
mod opening;
pub mod stopped;

pub use instant::inquire;

use super::futex::FutexWait;
use super::{Decoder, Held, Runtime, View};
use crate::arch::Syscall;
use crate::facts::{Evidence, Facts, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait, Wakers};
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::Snapshot;
use crate::target::Descriptor;
use crate::units::{Addr, FrameIx, harmless};
use calls::{Call, Limit, Object};

/// The kernel is in every process.
pub struct Kernel;

impl Runtime for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn find(&self, _snapshot: &Snapshot, _memory: &dyn Memory) -> Option<Box<dyn Decoder>> {
        Some(Box::new(KernelDecoder))
    }
}

struct KernelDecoder;

/// `struct pollfd`s read of one call, at most.
const MAX_POLLED: u64 = 1024;
/// Bytes of an `fd_set`.
const FD_SET: usize = 128;
/// Descriptors a name lists.
const LISTED: usize = 6;

impl Decoder for KernelDecoder {
    fn gather(&self, held: &Held<'_>) {
        let mut wanted = Vec::new();
        for call in held.threads.iter().filter_map(|t| t.syscall) {
            let known = call.number.and_then(calls::find);
            match known.map(|c| c.object) {
                Some(Object::PollSet) => wanted.push(poll_set(&call)),
                Some(Object::SelectSet) => {
                    wanted.extend(call.args.iter().skip(1).take(3).map(|set| (Addr(*set), FD_SET)));
                }
                Some(Object::FutexSet) => wanted.push((Addr(call.args[0]), 24 * 8)),
                Some(Object::Path(i)) => wanted.push((Addr(arg(&call, i)), opening::MAX_PATH)),
                Some(_) => {}
                // a restarted call: poll, a sleep, or a futex
                None => wanted.extend([poll_set(&call), (Addr(call.args[0]), 16), (Addr(call.args[2]), 16)]),
            }
            wanted.extend(known.and_then(|c| instant::mask_at(c, &call)).map(|at| (at, 8)));
            if let Some(at) = known.and_then(|c| limit_at(c.limit, &call)) {
                wanted.push((at, 16));
            }
        }
        wanted.retain(|(at, len)| !at.is_null() && *len > 0 && held.snapshot.mapping_at(*at).is_some());
        held.memory.expect(&wanted);
    }

    fn decode(&self, view: &View<'_>) -> Facts {
        let mut facts = Facts::default();
        for index in 0..view.snapshot.threads.len() {
            if let Some((wait, resource)) = self.wait_of(view, index) {
                if let Some(opening) = opening::of(view, index) {
                    facts.openings.insert(wait.thread, opening);
                }
                self.note_over(view, index, &mut facts);
                facts.resources.push(resource);
                facts.waits.push(wait);
            }
        }
        facts
    }
}

fn poll_set(call: &Syscall) -> (Addr, usize) {
    let bytes = (call.args[1] & 0xffff_ffff).min(MAX_POLLED) * 8;
    (Addr(call.args[0]), usize::try_from(bytes).unwrap_or(0))
}

fn arg(call: &Syscall, index: usize) -> u64 {
    call.args.get(index).copied().unwrap_or(0)
}

/// An argument as the kernel reads an `int`: its low 32 bits.
fn int_arg(call: &Syscall, index: usize) -> i32 {
    let [a, b, c, d, ..] = arg(call, index).to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Where the time limit lies in memory, if it does.
fn limit_at(limit: Limit, call: &Syscall) -> Option<Addr> {
    let at = match limit {
        Limit::Timespec(i) | Limit::Timeval(i) | Limit::Deadline(i) => arg(call, i),
        Limit::Clock => arg(call, 2),
        Limit::Never | Limit::Millis(_) => 0,
    };
    (at != 0).then_some(Addr(at))
}

/// Seconds of a `struct timespec` (or `timeval`, whose second word counts `fraction`s of a second).
fn seconds(memory: &dyn Memory, at: Addr, fraction: f64) -> Option<f64> {
    let whole = memory.read_u64(at).ok().filter(|s| *s < 1 << 40)?;
    let part = memory.read_u64(at.offset(8)).ok().filter(|p| (*p as f64) < fraction)?;
    Some(whole as f64 + part as f64 / fraction)
}

/// How long the call waits at most.
fn timeout(memory: &dyn Memory, limit: Limit, call: &Syscall) -> Timeout {
    let read = |at, fraction| seconds(memory, at, fraction).map_or(Timeout::Some, Timeout::Seconds);
    match limit {
        Limit::Never => Timeout::None,
        Limit::Millis(i) => match int_arg(call, i) {
            ms if ms < 0 => Timeout::None,
            ms => Timeout::Seconds(f64::from(ms) / 1e3),
        },
        Limit::Clock if int_arg(call, 1) & 1 != 0 => Timeout::Some, // TIMER_ABSTIME
        _ => match (limit_at(limit, call), limit) {
            (None, _) => Timeout::None,
            (Some(at), Limit::Timespec(_) | Limit::Clock) => read(at, 1e9),
            (Some(at), Limit::Timeval(_)) => read(at, 1e6),
            (Some(_), _) => Timeout::Some,
        },
    }
}

/// What a call waits for: number within its kind, what a person would call it, and who can take part.
struct Named {
    id: ResourceId,
    /// Absent where an address is all there is.
    name: Option<String>,
    address: Option<Addr>,
}

impl KernelDecoder {
    /// Notes a thread whose wait is over by what the kernel says of this instant, or whose futex has another value by now.
    fn note_over(&self, view: &View<'_>, index: usize, facts: &mut Facts) {
        let Some(syscall) = view.syscall(index) else { return };
        let over = syscall.number.and_then(calls::find).and_then(|call| instant::over(view, index, call, &syscall));
        if over.is_some() {
            facts.woken.insert(view.thread(index));
        }
        if FutexWait::parse(&syscall).is_some_and(|f| f.changed(view.memory).is_some()) {
            facts.changed.insert(view.thread(index));
        }
    }

    fn wait_of(&self, view: &View<'_>, index: usize) -> Option<(Wait, Resource)> {
        let thread = view.snapshot.threads.get(index)?;
        let dead_slow = thread.state == Some('D');
        let Some(syscall) = view.syscall(index) else {
            return dead_slow.then(|| uninterruptible(view, index));
        };
        let Some(call) = syscall.number.and_then(calls::find) else {
            return Some(unnamed(view, index, &syscall));
        };
        if call.object == Object::Futex && FutexWait::parse(&syscall).is_none() {
            return None;
        }
        // fcntl blocks only for its locks: F_SETLKW and F_OFD_SETLKW
        if call.name == "fcntl" && !matches!(arg(&syscall, 1), F_SETLKW | F_OFD_SETLKW) {
            return Some(unnamed(view, index, &syscall));
        }
        let open = descriptor(view, call, &syscall);
        let kind = match call.kind {
            ResourceKind::Unknown if open.is_some_and(|d| d.pipe.is_some()) => ResourceKind::Pipe,
            ResourceKind::Unknown if open.is_some_and(|d| d.to.starts_with("socket:")) => ResourceKind::Socket,
            // an uninterruptible read or write is a disk's or a network file system's
            ResourceKind::Unknown if dead_slow => ResourceKind::FileIo,
            kind => kind,
        };
        let mut named = name(view, index, call, kind, &syscall);
        if let Some(open) = open {
            named.name = match kind {
                ResourceKind::FileLock => Some(format!("the lock of {}", of_open(open))),
                _ => named.name.map(|n| format!("{n} ({})", of_open(open))),
            };
        }
        if let Some(inode) = open.and_then(|d| d.pipe) {
            let offset = if matches!(call.object, Object::To(_)) { FOR_ROOM } else { 0 };
            named.id = ResourceId::Shared { device: PIPES, inode, offset };
        }
        let futex = FutexWait::parse(&syscall);
        let said = futex.map_or_else(|| in_call(call.name, &syscall), |f| f.describe());
        let mut evidence = vec![Evidence::new(said)];
        // a semaphore that was posted, say: the thread has only not run since, and needs nobody
        let changed = futex.and_then(|f| f.changed(view.memory));
        evidence.extend(changed.map(|now| Evidence::new(format!("the futex's word has become {now} meanwhile"))));
        evidence.extend(instant::over(view, index, call, &syscall).map(Evidence::new));
        if let Some(wchan) = thread.wchan.as_deref().filter(|w| !w.is_empty() && *w != "0") {
            evidence.push(Evidence::new(format!("asleep in the kernel's {wchan}")));
        }
        let wait = Wait {
            thread: view.thread(index),
            on: named.id,
            mode: Mode::Exclusive,
            timeout: match futex {
                Some(futex) => futex.timeout(view.memory),
                None => timeout(view.memory, call.limit, &syscall),
            },
            frame: FrameIx(0),
            managed_frame: None,
            evidence,
        };
        let resource = Resource {
            id: named.id,
            kind,
            name: named.name,
            address: named.address,
            reentrancy: Reentrancy::Unknown,
            wakers: match call.kind {
                ResourceKind::Futex if changed.is_some() => Wakers::Outside,
                // in memory that may be shared another process may wake it, and of a set each word is one of its own
                ResourceKind::Futex if futex.is_some_and(|f| !f.may_be_shared(view.snapshot)) => Wakers::AnyThread,
                _ => Wakers::Outside,
            },
            idle: call.idle && !dead_slow,
        };
        Some((wait, resource))
    }
}

/// The open file that a call reads or writes.
fn descriptor<'v>(view: &View<'v>, call: &Call, syscall: &Syscall) -> Option<&'v Descriptor> {
    let (Object::From(i) | Object::To(i)) = call.object else { return None };
    view.snapshot.process.descriptors.get(&int_arg(syscall, i))
}

/// `pipe 88123`, `a socket`, a file's name without its directories.
fn of_open(open: &Descriptor) -> String {
    match (open.pipe, open.to.as_str()) {
        (Some(inode), _) => format!("pipe {inode}"),
        (None, to) if to.starts_with("socket:") => "a socket".to_owned(),
        (None, to) if to.starts_with("/dev/") => {
            to.trim_start_matches("/dev/").chars().take(64).map(harmless).collect()
        }
        (None, to) => {
            let short = to.rsplit('/').next().unwrap_or(to);
            short
                .strip_prefix("anon_inode:")
                .unwrap_or(short)
                .trim_matches(['[', ']'])
                .chars()
                .take(64)
                .map(harmless)
                .collect()
        }
    }
}

/// A thread in a call the table does not have.
fn unnamed(view: &View<'_>, index: usize, syscall: &Syscall) -> (Wait, Resource) {
    let call = match syscall.number {
        Some(n) => format!("system call {n}"),
        None => "an interrupted system call".to_owned(),
    };
    outside(view, index, ResourceKind::Unknown, call.clone(), Evidence::new(in_call(&call, syscall)))
}

/// A thread in state D of which nothing else is known.
fn uninterruptible(view: &View<'_>, index: usize) -> (Wait, Resource) {
    let wchan = view.snapshot.threads.get(index).and_then(|t| t.wchan.clone()).filter(|w| !w.is_empty() && w != "0");
    let name = wchan.as_ref().map_or_else(|| "the kernel".to_owned(), |w| format!("the kernel ({w})"));
    let evidence = match wchan {
        Some(w) => format!("state D (uninterruptible), asleep in the kernel's {w}"),
        None => "state D (uninterruptible)".to_owned(),
    };
    outside(view, index, ResourceKind::Device, name, Evidence::new(evidence))
}

fn outside(view: &View<'_>, index: usize, kind: ResourceKind, name: String, why: Evidence) -> (Wait, Resource) {
    let id = ResourceId::Numbered(view.process, kind, own_number(view, index));
    let wait = Wait {
        thread: view.thread(index),
        on: id,
        mode: Mode::Exclusive,
        timeout: Timeout::None,
        frame: FrameIx(0),
        managed_frame: None,
        evidence: vec![why],
    };
    let resource = Resource {
        id,
        kind,
        name: Some(name),
        address: None,
        reentrancy: Reentrancy::Unknown,
        wakers: Wakers::Outside,
        idle: false,
    };
    (wait, resource)
}

/// `poll(0x7ffc…, 2, -1) in the thread's registers`: the call with its first arguments.
fn in_call(name: &str, call: &Syscall) -> String {
    let args: Vec<String> = call.args.iter().take(3).map(|a| format!("{a:#x}")).collect();
    format!("in {name}({}, …) by its registers", args.join(", "))
}

/// A number only this thread has: what it waits for is its own (a sleep, a signal).
fn own_number(view: &View<'_>, index: usize) -> u64 {
    let tid = view.snapshot.threads.get(index).map_or(0, |t| t.tid.0);
    OWN | u64::from(tid.unsigned_abs())
}

/// Marks a number that is a thread's, not a descriptor's or a process's.
const OWN: u64 = 1 << 40;
/// The device that names pipes of all processes, by inode.
const PIPES: (u32, u32) = (u32::MAX, 0);
/// The device that names locks of files of all processes, by inode and the kernel's number of the lock.
const FILES: (u32, u32) = (u32::MAX, 1);
/// The device that names FIFOs whose other end is not open, by inode, and which end is waited for.
const FIFOS: (u32, u32) = (u32::MAX, 2);
/// Marks a descriptor waited on for a lock that `fcntl` takes, not `flock`.
const BY_FCNTL: u64 = 1 << 33;
/// Marks one that belongs to the open file, of which the kernel's list names no process.
const OF_OPEN_FILE: u64 = 1 << 34;
/// Commands of `fcntl` (Linux `include/uapi/asm-generic/fcntl.h`).
const F_SETLKW: u64 = 7;
const F_OFD_SETLKW: u64 = 38;
/// The number that stands for any child.
const ANY_CHILD: u64 = 1 << 41;
/// Marks a descriptor waited on for room: another thing than the same descriptor waited on for data.
const FOR_ROOM: u64 = 1 << 32;

fn name(view: &View<'_>, index: usize, call: &Call, kind: ResourceKind, syscall: &Syscall) -> Named {
    let process = view.process;
    let fd = |i: usize| int_arg(syscall, i);
    let numbered = |number: u64, name: String| Named {
        id: ResourceId::Numbered(process, kind, number),
        name: Some(name),
        address: None,
    };
    match call.object {
        Object::From(i) => {
            let mark = match (call.name, arg(syscall, 1)) {
                ("fcntl", F_OFD_SETLKW) => OF_OPEN_FILE,
                ("fcntl", _) => BY_FCNTL,
                _ => 0,
            };
            numbered(mark | u64::from(fd(i).unsigned_abs()), of_descriptor(call.name, fd(i)))
        }
        Object::To(i) => numbered(FOR_ROOM | u64::from(fd(i).unsigned_abs()), format!("{} to fd {}", call.name, fd(i))),
        Object::Between(a, b) => {
            let number = own_number(view, index);
            numbered(number, format!("{} from fd {} to fd {}", call.name, fd(a), fd(b)))
        }
        Object::PollSet | Object::SelectSet => {
            let fds = match call.object {
                Object::PollSet => polled(view.memory, syscall),
                _ => selected(view.memory, syscall),
            };
            let number = fds.as_deref().map_or(own_number(view, index), |fds| set_number(view, index, fds));
            numbered(number, of_set(call.name, fds.as_deref()))
        }
        Object::Child => match fd(0) {
            pid if pid > 0 => numbered(u64::from(pid.unsigned_abs()), format!("child {pid}")),
            -1 => numbered(ANY_CHILD, "any child".to_owned()),
            0 => numbered(own_number(view, index), "a child of its process group".to_owned()),
            group => numbered(own_number(view, index), format!("a child of process group {}", group.unsigned_abs())),
        },
        Object::ChildId => match (fd(0), fd(1)) {
            (1, pid) => numbered(u64::from(pid.unsigned_abs()), format!("child {pid}")),
            (2, group) => numbered(own_number(view, index), format!("a child of process group {group}")),
            (3, pidfd) => numbered(own_number(view, index), format!("the process of pidfd {pidfd}")),
            _ => numbered(ANY_CHILD, "any child".to_owned()),
        },
        Object::Futex => {
            let at = Addr(syscall.args[0]);
            Named { id: ResourceId::At(process, at), name: None, address: Some(at) }
        }
        // any of them may end the wait: it is no wait for the first one
        Object::FutexSet => {
            // struct futex_waitv: u64 val, u64 uaddr, u32 flags, u32 reserved
            let first = view.memory.read_addr(Addr(syscall.args[0].wrapping_add(8)));
            let first = first.map(|at| format!(", the first at {at}")).unwrap_or_default();
            numbered(own_number(view, index), format!("any of {} futexes{first}", syscall.args[1] & 0xff))
        }
        Object::SystemV => numbered(u64::from(fd(0).unsigned_abs()), format!("{} on System V id {}", call.name, fd(0))),
        Object::Path(_) => numbered(
            own_number(view, index),
            opening::of(view, index).map_or_else(|| call.name.to_owned(), |o| opening::describe(&o)),
        ),
        Object::Nothing => numbered(own_number(view, index), of_nothing(call, kind)),
    }
}

fn of_descriptor(call: &str, fd: i32) -> String {
    match call {
        "epoll_wait" | "epoll_pwait" | "epoll_pwait2" => format!("epoll on fd {fd}"),
        "accept" | "accept4" => format!("accept on fd {fd}"),
        "flock" | "fcntl" => format!("the lock of fd {fd}"),
        "ioctl" => format!("ioctl on fd {fd}"),
        "close" => format!("close of fd {fd}"),
        "io_uring_enter" => format!("io_uring of fd {fd}"),
        call => format!("{} from fd {fd}", call.trim_end_matches("64").trim_end_matches('2')),
    }
}

/// `None`: the set could not be read.
fn of_set(call: &str, fds: Option<&[i32]>) -> String {
    let call = call.trim_end_matches('6');
    let Some(fds) = fds else { return format!("{call} on descriptors that were not read") };
    let list: Vec<String> = fds.iter().take(LISTED).map(i32::to_string).collect();
    match (fds.len(), fds.len().saturating_sub(LISTED)) {
        (0, _) => format!("{call} on no descriptor: a sleep"),
        (_, 0) => format!("{call} on fd {}", list.join(", ")),
        (_, more) => format!("{call} on fd {} and {more} more", list.join(", ")),
    }
}

fn of_nothing(call: &Call, kind: ResourceKind) -> String {
    match (call.name, kind) {
        ("nanosleep" | "clock_nanosleep", _) => "sleep".to_owned(),
        (_, ResourceKind::Signal) => "a signal".to_owned(),
        ("vfork" | "clone" | "clone3", _) => "its new child to execute a program or to end".to_owned(),
        ("exit_group" | "execve", _) => "the end of the other threads".to_owned(),
        (name, _) => name.to_owned(),
    }
}

/// One descriptor is the thing itself; a set of several is this thread's own.
fn set_number(view: &View<'_>, index: usize, fds: &[i32]) -> u64 {
    match fds {
        [one] => u64::from(one.unsigned_abs()),
        _ => own_number(view, index),
    }
}

/// The descriptors of a `struct pollfd` array (int fd, short events, short revents), negative ones left out.
fn polled(memory: &dyn Memory, call: &Syscall) -> Option<Vec<i32>> {
    let (at, len) = poll_set(call);
    let bytes = if len == 0 { Vec::new() } else { memory.read_vec(at, len).ok()? };
    let fds = bytes.chunks_exact(8).filter_map(|e| Some(i32::from_le_bytes(e.get(..4)?.try_into().ok()?)));
    Some(fds.filter(|fd| *fd >= 0).collect())
}

/// The descriptors of `select`'s three sets, ascending.
fn selected(memory: &dyn Memory, call: &Syscall) -> Option<Vec<i32>> {
    let count = usize::try_from(int_arg(call, 0)).unwrap_or(0).min(FD_SET * 8);
    let mut all = [0u8; FD_SET];
    for set in call.args.iter().skip(1).take(3).filter(|set| **set != 0 && count > 0) {
        let len = count.div_ceil(64) * 8; // whole words, as the kernel reads them
        let bytes = memory.read_vec(Addr(*set), len).ok()?;
        all.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum |= byte);
    }
    let has = |fd: &usize| all.get(fd / 8).is_some_and(|byte| byte & (1 << (fd % 8)) != 0);
    Some((0..count).filter(has).filter_map(|fd| i32::try_from(fd).ok()).collect())
}

#[cfg(test)]
mod tests;
