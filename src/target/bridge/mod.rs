//! The bridge: a process or core that a debugger has open. It serves memory, registers and mappings over two pipes.
//!
//! We ask, the debugger answers, one line each way (`plugins/PROTOCOL.md`). What it does not tell comes from what lies beside
//! it: `/proc` where the process is one of this machine, the core file where it reads one. Knows nothing of what bytes mean.

mod sections;
mod served;
mod tls;
mod told;
pub mod wire;

use super::core::files::CoreFiles;
use super::core::identity::inner_tids;
use super::core::{CoreFile, CoreOptions};
use super::live::proc;
use super::live::{Live, split_command};
use super::{AT_ENTRY, Files, Mapping, PF_FORKNOEXEC, Process, Target, TargetError, ThreadState};
use crate::arch::{Arch, ThreadRegisters, x86_64};
use crate::memory::{FileBytes, Memory, ReadError};
use crate::units::{Addr, HostTid, PAGE, Pid, Tid};
use served::Served;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use told::{Before, Kind, Told, ToldThread};
use wire::{Answer, Broken, Peer, Unanswered, hex, shown, subject};

/// The version of the protocol: both ends must speak the same.
pub const VERSION: u32 = 1;

/// Bytes of an answer that lists things, at most.
const MAX_LIST: usize = 256 << 20;
/// Bytes of a short answer.
const MAX_SHORT: usize = 64 << 10;
/// Bytes of a file brought over at most.
const MAX_FILE: u64 = 1 << 30;
/// Bytes of live stack asked for ahead, of each thread and of all.
const MAX_STACK: usize = 1 << 20;
const MAX_STACKS: usize = 256 << 20;
/// Bytes below the stack pointer that belong to the function (the System V ABI's red zone).
const RED_ZONE: u64 = 128;
/// How long a person may look at a page of the report before the next is wanted.
const PAGER: Duration = Duration::from_secs(3600);

/// Why there is nothing to look at through the debugger. One line each: what, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BridgeError {
    /// The conversation failed.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The debugger refused something we cannot do without.
    #[error("the debugger does not give {0}: {1}")]
    Refused(String, String),
    /// The plugin was printed by another hangscope.
    #[error(
        "the plugin speaks version {0} of the bridge and this hangscope version {VERSION}: print it anew with `hangscope plugin`"
    )]
    Version(String),
    /// No process, no core.
    #[error("the debugger has no process: run or attach to one, or open a core with its program")]
    NoProcess,
    /// The target runs.
    #[error(
        "the program is running: interrupt it first (Ctrl-C, `interrupt`; `interrupt -a` in non-stop mode), then repeat the command"
    )]
    Running,
    /// Killed while the debugger held it.
    #[error("the process has ended, though the debugger still shows it: `continue` lets it see that")]
    Ended,
    /// No thread.
    #[error("the debugger shows no thread: the process has ended")]
    NoThreads,
    /// Threads without registers.
    #[error(
        "the debugger gives no registers of any thread; the target may have ended, or its register description is missing"
    )]
    NoRegisters,
}

/// Where files are, and how patient to be.
#[derive(Clone, Debug)]
pub struct BridgeOptions {
    /// A directory that holds the program's file system (`--sysroot`); else the debugger's own.
    pub sysroot: Option<PathBuf>,
    /// Directories of separate debug files, most wanted first.
    pub debug_dirs: Vec<PathBuf>,
    /// How long to wait for one answer.
    pub patience: Duration,
}

/// The conversation. After the first failure nothing more is asked.
struct Line {
    peer: Mutex<Box<dyn Peer>>,
    broken: Mutex<Option<Broken>>,
    patience: Duration,
}

impl Line {
    /// The words of an answer.
    fn ask(&self, request: &str, most: usize) -> Result<Vec<String>, Unanswered> {
        let answer = self.ask_within(request, most, self.patience)?;
        Ok(answer.words().map(|w| String::from_utf8_lossy(w).into_owned()).collect())
    }

    fn ask_within(&self, request: &str, most: usize, patience: Duration) -> Result<Answer, Unanswered> {
        if let Some(broken) = self.failure() {
            return Err(broken.into());
        }
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        let said = wire::ask(peer.as_mut(), request, most, patience);
        if let Err(Unanswered::Broken(why)) = &said {
            *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
        }
        said
    }

    /// Asks for what we cannot do without.
    fn need(&self, request: &str, most: usize) -> Result<Vec<String>, BridgeError> {
        self.ask(request, most).map_err(|e| match e {
            Unanswered::Refused(why) => BridgeError::Refused(subject(request).to_owned(), why),
            Unanswered::Broken(why) => why.into(),
        })
    }

    fn give_up(&self, what: &str, why: &str) {
        let broken = Broken::Garbage(what.to_owned(), why.to_owned());
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(broken);
    }

    fn failure(&self) -> Option<Broken> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_broken(&self) -> bool {
        self.failure().is_some()
    }
}

/// What lies beside the debugger and tells what it does not.
enum Beside {
    Process(Arc<Live>),
    Core(Arc<CoreFile>),
    Nothing,
}

impl Beside {
    fn target(&self) -> Option<&dyn Target> {
        match self {
            Beside::Process(live) => Some(live.as_ref()),
            Beside::Core(core) => Some(core.as_ref()),
            Beside::Nothing => None,
        }
    }
}

/// A process held still by a debugger, or a core it has open.
pub struct Bridge {
    line: Arc<Line>,
    memory: Arc<Served>,
    process: Process,
    threads: Vec<ThreadState>,
    mappings: Vec<Mapping>,
    files: Arc<dyn Files>,
    selected: Option<HostTid>,
    beside: Beside,
    /// Files found as a core's are, where nothing lies beside.
    found: Option<Arc<CoreFiles>>,
    /// Whether the mappings are all there are.
    whole: bool,
    /// Whether the debugger told of as many threads as are taken, or more.
    many_threads: bool,
    warnings: Vec<String>,
}

impl Bridge {
    /// Agrees the version with the debugger and asks for everything but memory.
    ///
    /// # Errors
    /// [`TargetError::Bridge`] when there is nothing to look at or the debugger does not keep to the protocol;
    /// [`TargetError::WrongArch`].
    pub fn connect(peer: Box<dyn Peer>, options: &BridgeOptions) -> Result<Bridge, TargetError> {
        let line = Arc::new(Line { peer: Mutex::new(peer), broken: Mutex::default(), patience: options.patience });
        let debugger = greet(&line)?;
        let mut told = match told::process(&line.need("process", MAX_SHORT)?).map_err(BridgeError::from)? {
            Before::Process(told) => told,
            Before::Nothing => return Err(BridgeError::NoProcess.into()),
            Before::Running => return Err(BridgeError::Running.into()),
            Before::Other(arch) => {
                return Err(TargetError::WrongArch {
                    what: "what the debugger has open".into(),
                    found: arch,
                    kind: "process",
                });
            }
        };
        if told.kind == Kind::Live && !is_held_here(told.pid) {
            told.kind = Kind::Remote;
        }
        let mut warnings = Vec::new();
        let listed = line.need(&format!("threads {}", told::wanted()), MAX_LIST)?;
        let many_threads = listed.len() >= told::MAX_THREADS;
        let listed = told::threads(&listed).map_err(BridgeError::from)?;
        if listed.is_empty() {
            return Err(BridgeError::NoThreads.into());
        }
        if listed.iter().all(|t| t.registers.is_none()) {
            return Err(BridgeError::NoRegisters.into());
        }
        let core_options = CoreOptions {
            exe: told.exe.clone().filter(|exe| exe.is_file()),
            sysroot: options.sysroot.clone().or_else(|| told.sysroot.clone().filter(|d| d.is_dir())),
            debug_dirs: options.debug_dirs.clone(),
            resolved: match told.kind {
                Kind::Live => Vec::new(),
                Kind::Core | Kind::Remote => told::files(&line.ask("files", MAX_LIST).unwrap_or_default()),
            },
        };
        let beside = beside(&told, &core_options, options, &mut warnings)?;
        let (mappings, whole) = mappings(&line, &mut told, &listed, &beside, &mut warnings)?;
        let process = process(&line, &told, &beside, &mappings);
        let core = if let Beside::Core(core) = &beside { Some(Arc::clone(core)) } else { None };
        let process_itself = match &beside {
            Beside::Process(live) => Some(live).filter(|live| reads_the_same(&line, live, &listed)).cloned(),
            _ => None,
        };
        let remote = told.kind == Kind::Remote;
        let memory = Arc::new(Served::new(Arc::clone(&line), &mappings, whole, core, process_itself, remote));
        let mut threads = threads(listed, &beside, &mut warnings);
        memory.expect(&live_stacks(&threads, &mappings));
        if matches!(beside, Beside::Nothing) {
            let told = threads.iter().map(|t| (t.host_tid.0, t.registers.as_ref()));
            let inner = inner_tids(told, &mappings, memory.as_ref());
            for t in &mut threads {
                t.tid = inner.get(&t.host_tid.0).map_or(t.tid, |tid| Tid(*tid));
            }
        }
        tls::fill_in(&mut threads, &mappings, memory.as_ref());
        syscalls(&mut threads, memory.as_ref());
        let without = threads.iter().filter(|t| t.registers.as_ref().is_some_and(|r| r.tls_base.is_none())).count();
        if without > 0 {
            warnings.push(format!("{debugger} does not give fs_base of {without} thread(s): what hangs on their thread structure is not known"));
        }
        let mut found = None;
        let files: Arc<dyn Files> = match beside.target() {
            Some(target) => target.files(),
            None => {
                let mut files = CoreFiles::new(memory.clone(), &process, &mappings, &core_options);
                if told.kind == Kind::Remote {
                    let (bring, fetches) = (bring(&line, told.pid), told.fetches);
                    files = files.on_another_machine(Box::new(move |path| if fetches { bring(path) } else { None }));
                }
                found.insert(Arc::new(files)).clone()
            }
        };
        if let Some(broken) = line.failure() {
            return Err(BridgeError::from(broken).into());
        }
        let selected = told.selected;
        Ok(Bridge {
            line,
            memory,
            process,
            threads,
            mappings,
            files,
            selected,
            beside,
            found,
            whole,
            many_threads,
            warnings,
        })
    }

    /// Whether files are opened as the process itself sees them, so that none needs to be replaced from memory.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.beside, Beside::Process(_))
    }

    /// Whether parts of the target are out of reach: a truncated core, mappings that nobody lists.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.whole || matches!(&self.beside, Beside::Core(core) if core.is_truncated())
    }

    /// The thread the person has selected in the debugger.
    #[must_use]
    pub fn selected(&self) -> Option<HostTid> {
        self.selected
    }

    /// Why what was read cannot be judged: the conversation ended early, or the process did.
    #[must_use]
    pub fn failure(&self) -> Option<TargetError> {
        if let Some(broken) = self.line.failure() {
            return Some(BridgeError::from(broken).into());
        }
        let gone =
            || matches!(Live::open(self.process.pid), Err(TargetError::Zombie(_) | TargetError::NoSuchProcess(_)));
        (self.is_live() && gone()).then(|| BridgeError::Ended.into())
    }

    /// Shows `text` to the person, in the debugger's own way.
    ///
    /// # Errors
    /// When the debugger is gone. A person who has seen enough is no failure.
    pub fn print(&self, text: &str) -> Result<(), TargetError> {
        self.tell(&format!("print {}", hex(text.as_bytes())), PAGER)
    }

    /// Sets the debugger's variable `name`.
    ///
    /// # Errors
    /// When the debugger is gone. One that has no variables is no failure.
    pub fn set(&self, name: &str, value: &str) -> Result<(), TargetError> {
        self.tell(&format!("set {name} {}", hex(value.as_bytes())), self.line.patience)
    }

    /// Selects the thread and its frame with this program counter and stack pointer: whether there is one.
    ///
    /// # Errors
    /// When the debugger is gone.
    pub fn select(&self, thread: HostTid, pc: Addr, sp: Option<Addr>) -> Result<bool, TargetError> {
        let sp = sp.map_or_else(|| "-".to_owned(), |sp| format!("{:x}", sp.0));
        match self.line.ask(&format!("select {thread} {:x} {sp}", pc.0), MAX_SHORT) {
            Ok(_) => Ok(true),
            Err(Unanswered::Refused(_)) => Ok(false),
            Err(Unanswered::Broken(broken)) => Err(BridgeError::from(broken).into()),
        }
    }

    /// Ends the conversation with the exit code.
    ///
    /// # Errors
    /// When the debugger is gone.
    pub fn end(&self, code: u8) -> Result<(), TargetError> {
        self.tell(&format!("end {code}"), self.line.patience)
    }

    fn tell(&self, request: &str, patience: Duration) -> Result<(), TargetError> {
        match self.line.ask_within(request, MAX_SHORT, patience) {
            Ok(_) | Err(Unanswered::Refused(_)) => Ok(()),
            Err(Unanswered::Broken(broken)) => Err(BridgeError::from(broken).into()),
        }
    }
}

/// Agrees the version; the debugger's name and version.
fn greet(line: &Line) -> Result<String, BridgeError> {
    let said = line.need(&format!("hello {VERSION} {}", env!("CARGO_PKG_VERSION")), MAX_SHORT)?;
    match said.as_slice() {
        [version, name, theirs, ..] if *version == VERSION.to_string() => {
            Ok(format!("{} {}", shown(name), shown(theirs)))
        }
        [version, ..] if *version != VERSION.to_string() => Err(BridgeError::Version(shown(version))),
        _ => Err(Broken::Garbage("hello".into(), "words are missing".into()).into()),
    }
}

/// Whether a process of this machine is held by the debugger that started us, or by a server it started (lldb). The same
/// number may belong to another process where the target's machine is another one.
fn is_held_here(pid: i32) -> bool {
    let field = |pid: i32, name: &str| -> Option<i32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    let parent = |pid: i32| field(pid, "PPid").filter(|p| *p > 0);
    let Some(tracer) = field(pid, "TracerPid").filter(|t| *t > 0) else { return false };
    let ours: Vec<i32> =
        std::iter::successors(parent(nix::unistd::getpid().as_raw()), |p| parent(*p)).take(6).collect();
    ours.contains(&tracer) || parent(tracer).is_some_and(|p| ours.contains(&p))
}

fn beside(
    told: &Told,
    core: &CoreOptions,
    options: &BridgeOptions,
    warnings: &mut Vec<String>,
) -> Result<Beside, BridgeError> {
    match told.kind {
        Kind::Live => match Live::open(Pid(told.pid)) {
            Ok(live) => {
                warnings.extend(live.warnings());
                return Ok(Beside::Process(Arc::new(live.with_debug_directories(options.debug_dirs.clone()))));
            }
            Err(TargetError::Zombie(_)) => return Err(BridgeError::Ended),
            Err(e) => warnings.push(format!("{e}; going by what the debugger tells")),
        },
        Kind::Core => match told.core.as_deref().map(|path| CoreFile::open(path, core)) {
            Some(Ok(core)) => return Ok(Beside::Core(Arc::new(core))),
            Some(Err(e)) => warnings.push(format!("{e}; going by what the debugger tells")),
            None => warnings.push("the debugger does not name the core it reads; going by what it tells".into()),
        },
        Kind::Remote => {}
    }
    Ok(Beside::Nothing)
}

/// Whether the process reads as the debugger shows it, by the stacks of some threads: one that replays what it has recorded
/// shows another memory.
fn reads_the_same(line: &Line, live: &Live, threads: &[ToldThread]) -> bool {
    let each = threads.len().div_ceil(4).max(1);
    let stacks = threads.iter().step_by(each).filter_map(|t| t.registers.as_ref()?.sp());
    let pages: Vec<Addr> = stacks.map(|sp| Addr(sp).page()).collect();
    let request: String = pages.iter().map(|at| format!(" {:x} {PAGE:x}", at.0)).collect();
    let Ok(told) = line.ask_within(&format!("read{request}"), MAX_SHORT, line.patience) else { return false };
    let same = |(at, word): (&Addr, &[u8])| {
        let mut own = [0; PAGE as usize];
        live.read(*at, &mut own).is_ok() && wire::unhex(word).is_some_and(|told| told == own)
    };
    !pages.is_empty() && told.words().count() == pages.len() && pages.iter().zip(told.words()).all(same)
}

/// The mappings, and whether what they leave out is known not to be mapped.
fn mappings(
    line: &Arc<Line>,
    told: &mut Told,
    threads: &[ToldThread],
    beside: &Beside,
    warnings: &mut Vec<String>,
) -> Result<(Vec<Mapping>, bool), TargetError> {
    if let Some(target) = beside.target() {
        return Ok((target.mappings()?, true));
    }
    if told.kind == Kind::Remote {
        let bytes = bring(line, told.pid)(Path::new("/proc/self/maps"));
        let mappings = bytes.and_then(|b| b.all().map(proc::parse_maps)).unwrap_or_default();
        if !mappings.is_empty() && are_of(&mappings, threads) {
            return Ok((mappings, true));
        }
        // what the debugger fetches is not of the target's machine (lldb, connected to a gdbserver, fetches from ours)
        told.fetches = false;
    }
    let words = line.need("maps", MAX_LIST)?;
    let (mappings, rights) = told::maps(&words).map_err(BridgeError::from)?;
    if mappings.is_empty() {
        let why = "no mapping is listed; open the core with its program, or load symbols".to_owned();
        return Err(BridgeError::Refused("maps".into(), why).into());
    }
    if !rights {
        warnings.push("the debugger lists only mapped files: other memory is read where something points to it".into());
    }
    Ok((mappings, rights))
}

/// Whether every thread executes, and has its stack, where something is mapped.
fn are_of(mappings: &[Mapping], threads: &[ToldThread]) -> bool {
    let at = |at: u64| mappings.get(mappings.partition_point(|m| m.end.0 <= at)).filter(|m| m.contains(Addr(at)));
    threads.iter().filter_map(|t| t.registers.as_ref()).all(|r| {
        let runs = r.pc().and_then(at).is_some_and(|m| m.permissions.execute);
        runs && r.sp().and_then(at).is_some()
    })
}

fn process(line: &Arc<Line>, told: &Told, beside: &Beside, mappings: &[Mapping]) -> Process {
    if let Some(target) = beside.target() {
        return target.process().clone();
    }
    let bring = bring(line, told.pid);
    let proc = |name: &str| match told.kind {
        Kind::Remote if told.fetches => {
            bring(&Path::new("/proc/self").join(name)).and_then(|b| b.all().map(<[u8]>::to_vec))
        }
        _ => None,
    };
    let auxv = match proc("auxv").map(|bytes| proc::parse_auxv(&bytes)).filter(|a| !a.is_empty()) {
        Some(auxv) => auxv,
        None => line.ask("auxv", MAX_SHORT).ok().and_then(|words| told::auxv(&words).ok()).unwrap_or_default(),
    };
    // the program is the file that the entry point lies in
    let entry = auxv.iter().find(|(kind, _)| *kind == AT_ENTRY).map(|(_, at)| Addr(*at));
    let program = entry.and_then(|at| mappings.iter().find(|m| m.contains(at) && m.is_file())?.path.clone());
    let exe = program.or_else(|| told.exe.clone());
    let command = proc("cmdline").map(|bytes| split_command(&bytes)).filter(|c| !c.is_empty());
    Process {
        pid: Pid(told.pid),
        command: command.unwrap_or_else(|| exe.iter().map(|e| e.display().to_string()).collect()),
        exe,
        arch: Arch::X86_64,
        auxv,
        forked: proc("stat").and_then(|bytes| proc::parse_stat(&bytes)).map(|s| s.flags & PF_FORKNOEXEC != 0),
        parent: None,
        caught: proc("status").and_then(|bytes| proc::parse_status(&bytes).caught),
        descriptors: std::collections::BTreeMap::new(),
        at_instant: Default::default(),
    }
}

/// What brings files of a remote target: `/proc/self/NAME` is the target's own, other paths are as it sees them.
fn bring(line: &Arc<Line>, pid: i32) -> impl Fn(&Path) -> Option<FileBytes> + Send + Sync + use<> {
    let line = Arc::clone(line);
    move |path: &Path| {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let inside = path.strip_prefix("/").unwrap_or(path);
        let wanted = match path.strip_prefix("/proc/self") {
            Ok(own) => vec![proc.join(own)],
            Err(_) => vec![proc.join("root").join(inside), path.to_owned()],
        };
        wanted.iter().find_map(|path| bring_one(&line, path))
    }
}

fn bring_one(line: &Line, path: &Path) -> Option<FileBytes> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("hangscope-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let directory = std::env::temp_dir().join(name);
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => {}
        Err(e) => {
            line.give_up("fetch", &format!("no room for files in {}: {e}", directory.display()));
            return None;
        }
    }
    let here = directory.join("file");
    let request = format!("fetch {} {}", hex(path.as_os_str().as_bytes()), hex(here.as_os_str().as_bytes()));
    let bytes = line.ask(&request, MAX_SHORT).ok().and_then(|_| {
        let file = std::fs::File::open(&here).ok()?;
        let meta = file.metadata().ok().filter(|m| m.is_file() && m.len() <= MAX_FILE)?;
        (meta.len() > 0).then(|| FileBytes::of_file(file).ok())?
    });
    let _ = std::fs::remove_dir_all(&directory);
    bytes
}

/// The threads the debugger tells of, with what lies beside; and those it does not tell of.
fn threads(told: Vec<ToldThread>, beside: &Beside, warnings: &mut Vec<String>) -> Vec<ThreadState> {
    let known = match beside.target().map(Target::threads) {
        Some(Ok(threads)) => threads,
        Some(Err(e)) => {
            warnings.push(e.to_string());
            Vec::new()
        }
        None => Vec::new(),
    };
    let of_core = matches!(beside, Beside::Core(_));
    let mut out: Vec<ThreadState> = Vec::new();
    let mut others = 0;
    for t in told {
        let also = known.binary_search_by_key(&t.tid, |k| k.host_tid).ok().and_then(|i| known.get(i));
        if also.is_none() && t.registers.is_none() {
            // rocgdb lists the waves of a GPU among the threads
            others += 1;
            continue;
        }
        let registers = match (t.registers, also.and_then(|k| k.registers.as_ref())) {
            (Some(told), Some(core)) => Some(completed(told, core)),
            (None, Some(core)) => Some(core.clone()),
            (told, None) => told,
        };
        // what /proc says of a thread that a debugger holds: its call, if the debugger tells no number
        let call = registers.as_ref().is_some_and(|r| r.syscall_register.is_none());
        out.push(ThreadState {
            tid: also.map_or(Tid(t.tid.0), |k| k.tid),
            host_tid: t.tid,
            name: also.and_then(|k| k.name.clone()).or(t.name),
            // stopped by the debugger: what it did before is not known
            state: also.and_then(|k| k.state).filter(|_| of_core),
            missing: registers.is_none().then(|| "the debugger gives no registers of it".to_owned()),
            syscall: also.and_then(|k| k.syscall).filter(|_| call),
            sp_pc: None,
            wchan: None,
            progress: None,
            registers,
        });
    }
    if others > 0 {
        warnings.push(format!("{others} thread(s) the debugger lists have no registers of this CPU and are left out"));
    }
    let told: std::collections::HashSet<HostTid> = out.iter().map(|t| t.host_tid).collect();
    let hidden = known.into_iter().filter(|k| !told.contains(&k.host_tid) && !matches!(k.state, Some('Z' | 'X')));
    out.extend(hidden.map(|mut k| {
        if k.registers.is_none() {
            k.missing = Some("the debugger does not show it".to_owned());
        }
        k
    }));
    out.sort_by_key(|t| t.host_tid);
    out
}

/// A thread's registers as the debugger tells them, what it leaves out taken from the core where both agree.
fn completed(mut told: ThreadRegisters, core: &ThreadRegisters) -> ThreadRegisters {
    if told.pc() == core.pc() && told.sp() == core.sp() {
        told.tls_base = told.tls_base.or(core.tls_base);
        told.syscall_register = told.syscall_register.or(core.syscall_register);
        told.raw.clone_from(&core.raw);
    }
    told
}

/// The system call each thread sleeps in, by its registers; where they lack the number, by what is known already, else
/// without one.
fn syscalls(threads: &mut [ThreadState], memory: &dyn Memory) {
    for t in threads {
        let Some(registers) = &t.registers else { continue };
        if registers.syscall_register.is_some() {
            t.syscall = x86_64::sleeping_syscall(registers);
        } else if t.syscall.is_none() {
            let mut code = [0; 2];
            if registers.pc().is_some_and(|pc| memory.read(Addr(pc).offset(-2), &mut code).is_ok()) {
                t.syscall = x86_64::sleeping_unnumbered(registers, code);
            }
        }
    }
}

/// Every thread's live stack: where it begins and its bytes.
fn live_stacks(threads: &[ThreadState], mappings: &[Mapping]) -> Vec<(Addr, usize)> {
    let share = MAX_STACK.min(MAX_STACKS / threads.len().max(1));
    let stack = |t: &ThreadState| {
        let registers = t.registers.as_ref()?;
        let sp = registers.sp()?;
        let mapping = mappings.get(mappings.partition_point(|m| m.end.0 <= sp)).filter(|m| m.contains(Addr(sp)))?;
        let start = Addr(sp.saturating_sub(RED_ZONE)).page().max(mapping.start);
        // glibc keeps struct pthread above the stack it gave the thread
        let base = registers.tls_base.filter(|b| sp <= *b && mapping.contains(Addr(*b)));
        let top = base.map_or(mapping.end, |b| Addr(b.saturating_add(PAGE)).min(mapping.end));
        Some((start, usize::try_from(top.0.saturating_sub(start.0)).ok()?.min(share)))
    };
    let bases = threads.iter().filter_map(|t| Some((Addr(t.registers.as_ref()?.tls_base?), PAGE as usize)));
    threads.iter().filter_map(stack).chain(bases).collect()
}

impl Memory for Bridge {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.memory.read(at, buf)
    }

    fn expect(&self, ranges: &[(Addr, usize)]) {
        self.memory.expect(ranges);
    }
}

impl Target for Bridge {
    fn process(&self) -> &Process {
        &self.process
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(self.threads.clone())
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(self.mappings.clone())
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::clone(&self.files)
    }

    fn may_lack_threads(&self) -> bool {
        self.many_threads || matches!(&self.beside, Beside::Core(core) if core.may_lack_threads())
    }

    fn warnings(&self) -> Vec<String> {
        let mut all = self.warnings.clone();
        if let Beside::Core(core) = &self.beside {
            all.extend(core.warnings());
        }
        all.extend(self.found.iter().flat_map(|files| files.warnings()));
        all
    }
}
