//! A process however it is reached: the [`Target`] trait and its doors.
//!
//! Doors carry threads, registers, mappings and bytes. They decode nothing and decide nothing.

pub mod bridge;
pub mod core;
pub mod live;
pub mod minicore;
pub mod output;

use crate::arch::{Arch, Syscall, ThreadRegisters};
use crate::memory::{FileBytes, Memory};
use crate::units::{Addr, HostTid, Pid, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Who the process is.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its id: for a live process in our own PID namespace, for a core as the core says.
    pub pid: Pid,
    /// The program's path as the target sees it.
    pub exe: Option<PathBuf>,
    /// The command line. Reports show only the program's name and a script's.
    pub command: Vec<String>,
    /// The CPU.
    pub arch: Arch,
    /// The auxiliary vector: (type, value) pairs, without the closing `AT_NULL`.
    pub auxv: Vec<(u64, u64)>,
    /// Whether it was forked and runs on without an exec (`PF_FORKNOEXEC`, Linux `include/linux/sched.h`), so that it
    /// inherited its memory, locks and all, from its parent. Absent where nothing says.
    pub forked: Option<bool>,
    /// Of a forked process: its parent, where that is known.
    pub parent: Option<Parent>,
    /// The signals it catches with a function of its own, as a mask (signal 1 is bit 0): `SigCgt` of `/proc/PID/status`. Absent
    /// where nothing says: other people's cores do not.
    pub caught: Option<u64>,
    /// What it has open, where that is known: live processes only. A core does not tell.
    pub descriptors: BTreeMap<i32, Descriptor>,
    /// What the kernel said of it while it was held. A core does not tell.
    pub at_instant: AtInstant,
}

/// What the kernel says of a held process beyond its memory: whether what its threads wait for has come. Threads are stopped
/// one after another, so one that was stopped late may have given what another was seen waiting for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AtInstant {
    /// The descriptors that were asked about, by number.
    pub ready: BTreeMap<i32, Readiness>,
    /// Children that have ended and are not collected yet, as our PID namespace numbers them.
    pub ended: BTreeSet<Pid>,
    /// Threads with a signal pending that they wait for or that would make them run a handler.
    pub signalled: BTreeSet<HostTid>,
}

/// What to ask the kernel about a held process: of threads whose wait another thread may have ended since.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inquiry {
    /// Descriptors that threads wait on, as they were known before.
    pub descriptors: BTreeMap<i32, Descriptor>,
    /// Children of which the end is waited for, as our PID namespace numbers them.
    pub children: BTreeSet<Pid>,
    /// Whether a thread waits for the end of any child.
    pub any_child: bool,
    /// Threads that wait for signals, and which: the lowest bit for the first.
    pub signals: BTreeMap<HostTid, u64>,
}

/// What a call on a descriptor would find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// Reading (accepting) would not wait: there is something, or the other end is closed.
    pub to_read: bool,
    /// Writing (connecting) would not wait: there is room, or the other end is closed.
    pub to_write: bool,
}

/// An open file of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// What the kernel calls it: `/path`, `pipe:[88123]`, `socket:[88124]`, `anon_inode:[eventfd]`.
    pub to: String,
    /// The inode of a pipe.
    pub pipe: Option<u64>,
    /// Of a pipe: whether this is (also) its reading end.
    pub reads: bool,
    /// Of a pipe: whether this is (also) its writing end.
    pub writes: bool,
}

/// The parent of a forked process, as it is now: what it was at the fork it may have lost since.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parent {
    /// Its id. After the parent's end, whoever took the process on.
    pub pid: Pid,
    /// Its threads, as its own PID namespace numbers them, with the kernel's names for them. Empty where they are not known.
    pub threads: Vec<(Tid, String)>,
}

/// `PF_FORKNOEXEC` of a task's flags: forked, and no exec since. In `/proc/PID/stat` and in a core's `NT_PRPSINFO`.
pub const PF_FORKNOEXEC: u64 = 0x40;

/// Entry of the auxiliary vector: where the program's headers lie. Source: Linux `include/uapi/linux/auxvec.h`.
pub(crate) const AT_PHDR: u64 = 3;
/// Likewise: where the program begins.
pub(crate) const AT_ENTRY: u64 = 9;

impl Process {
    /// The value of one auxiliary vector entry (`AT_PHDR` 3, `AT_BASE` 7, `AT_ENTRY` 9, `AT_SYSINFO_EHDR` 33).
    #[must_use]
    pub fn auxv(&self, kind: u64) -> Option<u64> {
        self.auxv.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v)
    }

    /// Where the program itself (not its loader) begins.
    #[must_use]
    pub fn entry(&self) -> Option<Addr> {
        self.auxv(AT_ENTRY).map(Addr)
    }
}

/// One thread at the instant of the stop.
#[derive(Clone, Debug)]
pub struct ThreadState {
    /// As the target's PID namespace names it (as `__owner` fields do).
    pub tid: Tid,
    /// As our namespace names it. In a core the same number as `tid`.
    pub host_tid: HostTid,
    /// The kernel's name for it (`comm`), where known.
    pub name: Option<String>,
    /// The state letter of `/proc/PID/task/TID/stat` *before* we stopped it: `R`, `S`, `D`, `T`, `Z`…
    pub state: Option<char>,
    /// Its registers; absent where it could not be stopped in time or the core lacks them.
    pub registers: Option<ThreadRegisters>,
    /// The system call it sleeps in: from the registers, else from `/proc/PID/task/TID/syscall`.
    pub syscall: Option<Syscall>,
    /// Stack pointer and program counter where only `/proc` gave them (no registers).
    pub sp_pc: Option<(u64, u64)>,
    /// The kernel function it sleeps in (`wchan`), read only where nothing better was to be had.
    pub wchan: Option<String>,
    /// Counters that tell movement between two looks; absent in a core.
    pub progress: Option<Progress>,
    /// Why something about this thread is missing, as one line for the report.
    pub missing: Option<String>,
}

/// What moves when a thread runs. Units: switches since the thread began; clock ticks (1/100 s on x86-64).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
    /// User and system time.
    pub ticks: u64,
}

/// What may be done with a mapping's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Shared with other processes (`MAP_SHARED`).
    pub shared: bool,
}

/// One mapping of the address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First byte.
    pub start: Addr,
    /// One past the last byte.
    pub end: Addr,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Permissions; a core's file notes do not tell them, its segments do.
    pub permissions: Permissions,
    /// Device (major, minor) and inode of the file; zeros where unknown.
    pub device: (u32, u32),
    /// See `device`.
    pub inode: u64,
    /// The file as the target names it, without a ` (deleted)` suffix, or a name in brackets (`[stack]`, `[vdso]`).
    pub path: Option<PathBuf>,
    /// Whether the file was deleted or replaced after it was mapped.
    pub deleted: bool,
}

impl Mapping {
    /// Whether `at` lies inside.
    #[must_use]
    pub fn contains(&self, at: Addr) -> bool {
        self.start <= at && at < self.end
    }

    /// Whether a file (not `[heap]`, `[stack]` or anonymous memory) stands behind it.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.path.as_ref().is_some_and(|p| p.is_absolute())
    }
}

/// Opens the files behind mappings, as the target sees them. Outlives the stop.
pub trait Files: Send + Sync {
    /// The bytes of the file behind `mapping`.
    ///
    /// # Errors
    /// [`TargetError::File`] when it cannot be opened, or is known not to be the file that was mapped.
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError>;

    /// The bytes of any file by the path the target would use (separate debug files, `/usr/lib/debug/…`).
    ///
    /// # Errors
    /// [`TargetError::File`] when there is none.
    fn open_path(&self, path: &std::path::Path) -> Result<FileBytes, TargetError>;

    /// More directories that hold separate debug files (`--debug-dir`), most wanted first; `/usr/lib/debug` is last.
    fn debug_directories(&self) -> Vec<PathBuf> {
        vec![PathBuf::from("/usr/lib/debug")]
    }
}

/// A process held still, or its core. Nobody asks which.
pub trait Target: Memory {
    /// Who it is.
    fn process(&self) -> &Process;

    /// Its threads, ascending by `host_tid`.
    ///
    /// # Errors
    /// When not one thread can be had.
    fn threads(&self) -> Result<Vec<ThreadState>, TargetError>;

    /// Its mappings, ascending by address, without overlaps.
    ///
    /// # Errors
    /// When they cannot be had at all.
    fn mappings(&self) -> Result<Vec<Mapping>, TargetError>;

    /// Opens files as the target sees them.
    fn files(&self) -> Arc<dyn Files>;

    /// Whether there may be threads that [`Target::threads`] does not give.
    fn may_lack_threads(&self) -> bool {
        false
    }

    /// Lines for the report about what this door could not give, collected so far.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Why a process or core could not be reached. Messages are one line: what, where, what to try.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// There is no such process, or it ended before it could be read.
    #[error("no process {0}: it does not exist or has ended; check the number with `ps`")]
    NoSuchProcess(Pid),
    /// The process has ended but its parent has not collected it.
    #[error("process {0} is a zombie: it has ended and waits for its parent to collect it; look at the parent")]
    Zombie(Pid),
    /// A thread of the kernel.
    #[error("process {0} is a kernel thread: it has no user memory to read")]
    KernelThread(Pid),
    /// The system said no.
    #[error("cannot attach to {pid}: {cause}; {remedy}")]
    Refused {
        /// The process.
        pid: Pid,
        /// The one cause found.
        cause: String,
        /// The smallest mend.
        remedy: String,
    },
    /// `/proc` is of no use here.
    #[error("{cause}; {remedy}")]
    NoProc {
        /// What is wrong with it.
        cause: &'static str,
        /// What mends it.
        remedy: &'static str,
    },
    /// A CPU or word size we do not read.
    #[error("{what} is {} {found} {kind}; hangscope reads 64-bit x86_64 ones", article(.found))]
    WrongArch {
        /// The process or file.
        what: String,
        /// What it is: `32-bit x86`, `aarch64`…
        found: String,
        /// `process` or `core`.
        kind: &'static str,
    },
    /// The file is not an ELF core, or one too damaged to read.
    #[error("cannot read {path} as a core: {cause}")]
    BadCore {
        /// The file.
        path: String,
        /// What is wrong and what to try.
        cause: String,
    },
    /// A file that could not be opened.
    #[error("cannot open {path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// Why.
        cause: String,
    },
    /// The debugger at the other end of a bridge has nothing to look at, or the conversation with it failed.
    #[error(transparent)]
    Bridge(#[from] bridge::BridgeError),
    /// A system call failed in a way none of the above names.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

/// The indefinite article before `word`.
fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'x']) || word.starts_with("s390") { "an" } else { "a" }
}
