//! The live door: a running process, looked at from outside or held still for an instant with ptrace.
//!
//! Nothing is ever written to the target, and every way out lets it run on. Knows nothing of ELF, stacks or locks.
//!
//! - [`Live`] is the running process: what `/proc` tells without stopping it.
//! - [`Live::stop`] holds it: every thread seized, interrupted and read, until [`Stopped`] is released or dropped.
//! - [`Live::observe`] gives the same without stopping anything, for `--no-stop` and where ptrace is refused.

mod at_instant;
mod bounded;
mod descriptors;
mod family;
mod files;
mod fuse;
mod guarded;
mod observed;
mod parsers;
mod paths;
pub(super) mod proc;
mod refusal;
mod remote;
mod stopped;
mod tracer;
mod undisturbed;

pub use descriptors::{PipeEnds, ends_of};
pub use family::{children, descendants};
pub use parsers::parse_all;
pub use paths::{fifo_of, file_of};
pub use proc::{LockLine, is_gone, read_caught_signals, read_file_locks, read_terminal};
pub use refusal::ptrace_refusal;
pub use stopped::{Released, StopLimits, Stopped, stop_all};
pub use undisturbed::Undisturbed;

use crate::arch::{Arch, Syscall};
use crate::memory::{Memory, ReadError};
use crate::target::{Files, Mapping, PF_FORKNOEXEC, Parent, Process, Progress, Target, TargetError, ThreadState};
use crate::units::{Addr, HostTid, Pid, Tid};
use guarded::Guarded;
use nix::errno::Errno;
use proc::{Look, Stat, SyscallLine};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A running process. Reading it stops nothing.
pub struct Live {
    process: Process,
    /// When its leader began.
    began: u64,
    /// `/proc/PID/task`.
    tasks: PathBuf,
    /// `/proc/PID/task/TID` of a thread that lived when it was opened: the leader may have ended before the others.
    directory: PathBuf,
    remote: Guarded,
    files: files::ProcessFiles,
    /// The mappings as last read.
    mappings: Mutex<Option<Arc<Vec<Mapping>>>>,
    warnings: Vec<String>,
}

/// One thread as a look from outside finds it: what moves when it runs.
pub type Movement = (HostTid, Option<char>, Option<Progress>, Option<Syscall>, Option<(u64, u64)>);

impl Live {
    /// Opens the process `pid`, or the process that thread `pid` belongs to.
    ///
    /// # Errors
    /// [`TargetError::NoSuchProcess`], [`Zombie`](TargetError::Zombie), [`KernelThread`](TargetError::KernelThread),
    /// [`WrongArch`](TargetError::WrongArch), and [`Refused`](TargetError::Refused) where not even its mappings may be read.
    pub fn open(pid: Pid) -> Result<Live, TargetError> {
        let gone = || TargetError::NoSuchProcess(pid);
        check_proc()?;
        if pid.0 <= 0 {
            return Err(gone());
        }
        let own = PathBuf::from(format!("/proc/{pid}"));
        let status = proc::parse_status(&read_or_gone(&own.join("status"), pid)?);
        let mut warnings = Vec::new();
        let process = status.process.map_or(pid, Pid);
        if process != pid {
            warnings.push(format!("{pid} is a thread of process {process}: looking at the whole process"));
        }
        let tasks = PathBuf::from(format!("/proc/{process}/task"));
        let leader = tasks.join(process.to_string());
        let stat = proc::parse_stat(&read_or_gone(&leader.join("stat"), pid)?).ok_or_else(gone)?;
        if stat.is_kernel() {
            return Err(TargetError::KernelThread(pid));
        }
        let directory = if stat.is_dead() { find_living(&tasks).ok_or(TargetError::Zombie(pid))? } else { leader };
        let number = directory.file_name().and_then(OsStr::to_str).and_then(|n| n.parse().ok()).unwrap_or(process.0);
        let exe = std::fs::read_link(directory.join("exe")).ok().map(without_deleted);
        let mounts = Arc::new(fuse::FuseMounts::of(&directory));
        let answers = exe.as_deref().is_none_or(|exe| mounts.answers(exe));
        warnings.extend(check_arch(&directory, process, answers)?);
        let auxv = proc::read_file(&directory.join("auxv")).unwrap_or_default();
        // it lies on the program's own stack
        let cmdline = directory.join("cmdline");
        let command = bounded::run(guarded::PATIENCE, move || proc::read_file(&cmdline).unwrap_or_default());
        if command.is_none() {
            warnings.push(format!("the command line of process {process} did not come within {:?}", guarded::PATIENCE));
        }
        Ok(Live {
            began: stat.began,
            process: Process {
                pid: process,
                exe: exe.clone(),
                command: split_command(&command.unwrap_or_default()),
                arch: Arch::X86_64,
                auxv: proc::parse_auxv(&auxv),
                forked: Some(stat.flags & PF_FORKNOEXEC != 0),
                parent: parent(&stat),
                caught: status.caught,
                descriptors: descriptors::read_descriptors(&directory),
                at_instant: Default::default(),
            },
            remote: Guarded::open(&directory, number),
            files: files::ProcessFiles::new(directory.clone(), exe, mounts),
            tasks,
            directory,
            mappings: Mutex::new(None),
            warnings,
        })
    }

    /// The same process, with more directories of separate debug files (`--debug-dir`), most wanted first.
    #[must_use]
    pub fn with_debug_directories(mut self, directories: Vec<PathBuf>) -> Live {
        self.files = self.files.with_debug_directories(directories);
        self
    }

    /// What moves when a thread runs, for each thread: state letter, counters, system call, stack pointer and program
    /// counter. Stops nothing. Counters move by an attach too: compare two looks that have none between them.
    #[must_use]
    pub fn progress(&self) -> Vec<Movement> {
        proc::in_parallel(&self.looks(), |look| {
            let line = proc::read_syscall(&self.tasks, look.host_tid).ok().flatten();
            let call = line.and_then(|l| l.call());
            (look.host_tid, Some(look.stat.state), look.progress, call, line.and_then(|l| l.sp_pc()))
        })
    }

    /// The threads with the system calls they are in, ascending, and nothing else: cheaper than [`Target::threads`].
    #[must_use]
    pub fn calls(&self) -> Vec<ThreadState> {
        let tids = proc::read_tasks(&self.tasks).unwrap_or_default();
        // in a namespace of its own each thread has another number there
        let status =
            proc::read_short(&self.directory.join("status")).map(|b| proc::parse_status(&b)).unwrap_or_default();
        let leader = self.directory.file_name().and_then(OsStr::to_str).and_then(|n| n.parse().ok()).map(Tid);
        let alike = status.inner.is_none() || status.inner == leader;
        proc::in_parallel(&tids, |tid| {
            let own = || proc::read_short(&self.tasks.join(tid.0.to_string()).join("status")).ok();
            let inner = if alike { None } else { own().and_then(|b| proc::parse_status(&b).inner) };
            let line = proc::read_syscall(&self.tasks, *tid).ok().flatten();
            ThreadState {
                tid: inner.unwrap_or(Tid(tid.0)),
                host_tid: *tid,
                name: None,
                state: None,
                registers: None,
                syscall: line.and_then(|l| l.call()),
                sp_pc: line.and_then(|l| l.sp_pc()),
                wchan: None,
                progress: None,
                missing: None,
            }
        })
    }

    /// Looks at every thread once, ascending. Threads that end meanwhile are left out.
    fn looks(&self) -> Vec<Look> {
        let tids = proc::read_tasks(&self.tasks).unwrap_or_default();
        proc::in_parallel(&tids, |tid| proc::read_look(&self.tasks, *tid)).into_iter().flatten().collect()
    }

    /// A thread described by what `/proc` gives, with `missing` as the reason why there is no more, and its `syscall` line.
    fn describe(&self, look: &Look, missing: Option<String>) -> (ThreadState, Option<SyscallLine>) {
        let (line, refused) = match proc::read_syscall(&self.tasks, look.host_tid) {
            Ok(line) => (line, None),
            Err(Errno::EACCES | Errno::EPERM) => (None, Some("its system call may not be read".to_string())),
            Err(_) => (None, None),
        };
        let state = ThreadState {
            tid: look.tid,
            host_tid: look.host_tid,
            name: Some(look.stat.name.clone()),
            state: Some(look.stat.state),
            registers: None,
            syscall: line.and_then(|l| l.call()),
            sp_pc: line.and_then(|l| l.sp_pc()),
            wchan: proc::read_wchan(&self.tasks, look.host_tid),
            progress: look.progress,
            missing: missing.or(refused),
        };
        (state, line)
    }

    /// The mappings as last read, or read now.
    fn known_mappings(&self) -> Result<Arc<Vec<Mapping>>, TargetError> {
        let known = self.mappings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Some(m) => Ok(m),
            None => self.read_mappings(),
        }
    }

    fn read_mappings(&self) -> Result<Arc<Vec<Mapping>>, TargetError> {
        let pid = self.process.pid;
        let maps = self.directory.join("maps");
        let bytes = match bounded::run(guarded::PATIENCE, move || proc::read_file(&maps)) {
            Some(Ok(b)) => b,
            Some(Err(e)) => return Err(self.failed("reading its mappings", e)),
            None => return Err(self.failed("reading its mappings", Errno::ETIMEDOUT)),
        };
        let mappings = Arc::new(proc::parse_maps(&bytes));
        if mappings.is_empty() {
            return Err(TargetError::NoSuchProcess(pid));
        }
        *self.mappings.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&mappings));
        Ok(mappings)
    }

    fn failed(&self, what: &str, e: Errno) -> TargetError {
        failed(self.process.pid, what, e)
    }
}

impl Memory for Live {
    /// Memory of devices is not read; that of render nodes by their driver.
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        let mappings = self.known_mappings().map_err(|_| ReadError::Lost)?;
        match stopped::mapping_at(&mappings, at) {
            Some(m) if proc::is_device(m) => Err(ReadError::Refused(at)),
            m => self.remote.read(at, buf, m.is_some_and(proc::is_render_node), &mappings),
        }
    }

    fn read_each(&self, ranges: &[(Addr, usize)], each: &mut dyn FnMut(usize, Option<&[u8]>)) {
        let Ok(mappings) = self.known_mappings() else { return };
        // together only what lies in one mapping of plain memory
        let plain = |(at, len): &(Addr, usize)| {
            let mapping = stopped::mapping_at(&mappings, *at).filter(|m| m.permissions.read);
            let end = at.checked_add(*len as u64);
            mapping.is_some_and(|m| !proc::is_device(m) && !proc::is_render_node(m) && end.is_some_and(|e| e <= m.end))
        };
        let wanted: Vec<(Addr, usize)> = ranges.iter().filter(|r| plain(r)).copied().collect();
        let (bytes, pieces) = self.remote.read_ranges(&wanted, &mappings);
        let mut pieces = pieces.iter().peekable();
        let mut room = Vec::new();
        for (i, range) in ranges.iter().enumerate() {
            let (at, len) = *range;
            let whole = pieces.next_if(|p| p.0 == at && p.2 == len && plain(range));
            if let Some(had) = whole.and_then(|(_, from, len)| bytes.get(*from..from.checked_add(*len)?)) {
                each(i, Some(had));
                continue;
            }
            // parts of a range are of no use
            while plain(range) && pieces.next_if(|p| p.0.0.wrapping_sub(at.0) < len as u64).is_some() {}
            room.resize(len, 0);
            each(i, self.read(at, &mut room).is_ok().then_some(room.as_slice()));
        }
    }
}

impl Target for Live {
    fn process(&self) -> &Process {
        &self.process
    }

    /// The threads as `/proc` tells them: no registers.
    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        let threads = proc::in_parallel(&self.looks(), |l| self.describe(l, None).0);
        if threads.is_empty() { Err(TargetError::NoSuchProcess(self.process.pid)) } else { Ok(threads) }
    }

    /// Reads them anew.
    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        self.read_mappings().map(|m| m.to_vec())
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(self.files.clone())
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

/// Turns a system call's refusal to tell about `pid` into what a person can use.
fn failed(pid: Pid, what: &str, e: Errno) -> TargetError {
    match e {
        Errno::EACCES | Errno::EPERM => {
            let (cause, remedy) = refusal::cause_of_refusal(pid);
            TargetError::Refused { pid, cause, remedy }
        }
        Errno::ENOENT | Errno::ESRCH => TargetError::NoSuchProcess(pid),
        e => TargetError::Io { what: format!("process {pid}: {what}"), source: e.into() },
    }
}

/// Whether `/proc` tells of the processes we can see: mounted, and of our own PID namespace.
fn check_proc() -> Result<(), TargetError> {
    let own = std::process::id().to_string();
    match std::fs::read_link("/proc/self") {
        Ok(to) if to.as_os_str() == own.as_str() => Ok(()),
        Err(_) if !Path::new("/proc/version").exists() => Err(TargetError::NoProc {
            cause: "/proc is not mounted here",
            remedy: "mount it (`mount -t proc proc /proc`)",
        }),
        _ => Err(TargetError::NoProc {
            cause: "/proc tells of another PID namespace than ours",
            remedy: "mount our own (`mount -t proc proc /proc`), or run hangscope where that /proc belongs to",
        }),
    }
}

fn read_or_gone(path: &Path, pid: Pid) -> Result<Vec<u8>, TargetError> {
    proc::read_short(path).map_err(|e| failed(pid, "reading its state", e))
}

/// The directory of a thread that has not ended.
fn find_living(tasks: &Path) -> Option<PathBuf> {
    let alive = |d: &PathBuf| {
        let stat: Option<Stat> = proc::read_short(&d.join("stat")).ok().and_then(|b| proc::parse_stat(&b));
        stat.is_some_and(|s| !s.is_dead())
    };
    proc::read_tasks(tasks).ok()?.into_iter().map(|t| tasks.join(t.to_string())).find(alive)
}

/// Looks at the program's ELF header: class and machine, where its file system `answers`. A program that cannot be read may still be looked at: gives why.
fn check_arch(directory: &Path, pid: Pid, answers: bool) -> Result<Option<String>, TargetError> {
    let exe = directory.join("exe");
    let read = move || {
        use std::io::Read;
        let mut head = [0u8; 20];
        std::fs::File::open(exe)?.read_exact(&mut head).map(|()| head)
    };
    let head = match answers.then(|| bounded::run(guarded::PATIENCE, read)).flatten() {
        Some(Ok(head)) => head,
        Some(Err(e)) => {
            return match e.raw_os_error().map(Errno::from_raw) {
                // the same right as for its memory
                Some(e @ (Errno::EACCES | Errno::EPERM | Errno::ESRCH)) => Err(failed(pid, "opening its program", e)),
                Some(Errno::ENOENT) if !directory.exists() => Err(TargetError::NoSuchProcess(pid)),
                None => Ok(None),
                Some(_) => Ok(Some(format!("the program of process {pid} cannot be read: {e}"))),
            };
        }
        None => {
            return Ok(Some(format!("the program of process {pid} cannot be read: its file system does not answer")));
        }
    };
    let [magic @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, m0, m1] = head;
    let [m, e, l, f, class] = magic;
    if [m, e, l, f] != *b"\x7fELF" {
        return Ok(None);
    }
    match name_of_machine(class, u16::from_le_bytes([m0, m1])) {
        None => Ok(None),
        Some(found) => Err(TargetError::WrongArch { what: format!("process {pid}"), found, kind: "process" }),
    }
}

/// The name of a machine we do not read, by `EI_CLASS` and `e_machine`; `None` for 64-bit x86-64.
fn name_of_machine(class: u8, machine: u16) -> Option<String> {
    Some(match (class, machine) {
        (2, 62) => return None,
        (1, 3) => "32-bit x86".to_string(),
        (1, 62) => "x32".to_string(),
        (1, 40) => "32-bit arm".to_string(),
        (_, 183) => "aarch64".to_string(),
        (_, 243) => "riscv".to_string(),
        (_, m) => format!("machine {m}"),
    })
}

/// The counters of each thread of a process, as they are now. Empty where it has ended.
#[must_use]
pub fn counters(pid: Pid) -> BTreeMap<HostTid, Progress> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let looks = proc::in_parallel(&proc::read_tasks(&tasks).unwrap_or_default(), |tid| proc::read_look(&tasks, *tid));
    looks.into_iter().flatten().filter_map(|l| Some((l.host_tid, l.progress?))).collect()
}

/// Whether a thread of one process began after another process did; `None` where one of them is gone. By the clock's ticks:
/// of two that began within one it is not told.
#[must_use]
pub fn is_younger(thread: (Pid, HostTid), than: Pid) -> Option<bool> {
    let began = |pid: Pid, tid: HostTid| {
        let stat = proc::read_short(Path::new(&format!("/proc/{pid}/task/{tid}/stat"))).ok()?;
        proc::parse_stat(&stat).map(|s| s.began)
    };
    Some(began(thread.0, thread.1)? > began(than, HostTid(than.0))?)
}

/// Threads of a parent named at most.
const MAX_PARENT_THREADS: usize = 4096;

/// The parent of a forked process and its threads.
fn parent(stat: &Stat) -> Option<Parent> {
    let pid = Pid(stat.parent);
    if stat.flags & PF_FORKNOEXEC == 0 || pid.0 <= 0 {
        return None;
    }
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let mut tids = proc::read_tasks(&tasks).unwrap_or_default();
    tids.truncate(MAX_PARENT_THREADS);
    let looks = proc::in_parallel(&tids, |tid| proc::read_look(&tasks, *tid));
    let threads = looks.into_iter().flatten().map(|l| (l.tid, l.stat.name)).collect();
    Some(Parent { pid, threads })
}

/// The arguments, split at the NULs.
pub(super) fn split_command(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|b| *b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// A link's target without the mark the kernel puts on names that are gone.
fn without_deleted(path: PathBuf) -> PathBuf {
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(p) => PathBuf::from(OsStr::from_bytes(p)),
        None => path,
    }
}
