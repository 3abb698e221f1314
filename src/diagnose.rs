//! The corridor: prepare, pause, release, think. The only module that knows all the rooms (but `report`, which it only
//! hands its case to).
//!
//! A live process goes through four beats. **Prepare**, while it runs: mappings, modules, runtimes, layouts, symbol
//! addresses. **Pause**: registers, stacks, and what each decoder gathers; reads only, nothing is opened, unwound or
//! named. **Release**. **Think**: unwinding, facts, graph, verdict, on what was kept. A core only thinks.
//!
//! Unwinding happens after the release because every live stack is kept whole: at 2,000 threads it would otherwise be the
//! longest part of the pause.

mod parents;
mod pause;

use crate::facts::{Facts, Gap, Hold, Holder, Opening, PolledFile, ResourceId, RuntimeNote};
use crate::graph::Graph;
use crate::memory::{Kept, Memory};
use crate::runtimes::kernel::between::{Around, FileLock, LockCall, Questions, owners_elsewhere};
use crate::runtimes::kernel::stopped::Terminal;
use crate::runtimes::{self, Decoder, Held, Running, View, kernel};
use crate::snapshot::{Snapshot, WithImages};
use crate::target::bridge::Bridge;
use crate::target::core::{CoreFile, CoreOptions};
use crate::target::live::{self, Live, PipeEnds};
use crate::target::output::{Readers, write_file};
use crate::target::{Target, TargetError, minicore};
use crate::units::{Addr, ModuleIx, Pid, ProcessIx, ThreadRef};
use crate::unwind::{self, Stack};
use crate::verdict::{self, Look, Movement, Verdict};
use pause::pause;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Paths that threads of one process open, or poll for, looked up at most.
const MAX_PATHS: usize = 64;

/// What the command line says about how to look.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nothing is stopped, nothing traced.
    pub no_stop: bool,
    /// The longest a process may be held.
    pub max_pause: Duration,
    /// Looks to take. `None`: one, and a second where the first proves no deadlock.
    pub samples: Option<u32>,
    /// Time between looks.
    pub interval: Duration,
    /// Where a core's files are found.
    pub sysroot: Option<PathBuf>,
    /// Directories with separate debug files.
    pub debug_dirs: Vec<PathBuf>,
    /// Where to write a minicore.
    pub save_core: Option<PathBuf>,
    /// Whether to read the variables of interpreters' frames.
    pub locals: bool,
    /// Processes that nobody named: found below those that were. That one of them ends meanwhile is no gap.
    pub found: BTreeSet<Pid>,
}

impl Options {
    /// Whether an error says no more than that a process nobody named has ended.
    fn is_no_gap(&self, pid: Pid, error: &DiagnoseError) -> bool {
        let ended = matches!(error, DiagnoseError::Target(TargetError::NoSuchProcess(_) | TargetError::Zombie(_)));
        ended && self.found.contains(&pid)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            no_stop: false,
            max_pause: Duration::from_secs(2),
            samples: None,
            interval: Duration::from_millis(500),
            sysroot: None,
            debug_dirs: Vec::new(),
            save_core: None,
            locals: false,
            found: BTreeSet::new(),
        }
    }
}

/// Why there is no diagnosis at all.
#[derive(Debug, thiserror::Error)]
pub enum DiagnoseError {
    /// The process or core could not be reached.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// No process was named.
    #[error("no process to look at; name one by its PID")]
    Nothing,
    /// The minicore could not be written.
    #[error("cannot write the core to {path}: {source}")]
    Save {
        /// Where it should have gone.
        path: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

/// Everything found out, ready to be told.
pub struct Diagnosis {
    /// The processes, indexed by `ProcessIx`.
    pub snapshots: Vec<Snapshot>,
    /// A stack for each thread of each process.
    pub stacks: Vec<Vec<Stack>>,
    /// What all runtimes found in all processes.
    pub facts: Facts,
    /// What each process's runtimes are.
    pub runtimes: Vec<Vec<RuntimeNote>>,
    /// Who waits for whom.
    pub graph: Graph,
    /// What is wrong.
    pub verdict: Verdict,
    /// How the capture went.
    pub captured: Captured,
    /// Locks of files as they stood just after.
    pub file_locks: Vec<FileLock>,
}

/// How the capture went.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When.
    pub at: SystemTime,
    /// The contract's word: `live`, `core` or `bridge`.
    pub source: &'static str,
    /// How long the target was held: of several processes the longest.
    pub pause: Option<Duration>,
    /// System calls made while it was held, all processes together.
    pub syscalls_in_pause: u64,
    /// What is missing and what would mend it.
    pub warnings: Vec<String>,
    /// Whether something that could have changed the verdict could not be read.
    pub partial: bool,
    /// Whether the core that was asked for could not be written.
    pub unsaved: bool,
}

/// A running process made ready: everything that may take time is done before it is held.
struct Prepared {
    live: Live,
    snapshot: Snapshot,
    decoders: Vec<Box<dyn Decoder>>,
}

impl Prepared {
    fn new(pid: Pid, options: &Options) -> Result<Prepared, DiagnoseError> {
        let live = Live::open(pid)?.with_debug_directories(options.debug_dirs.clone());
        let snapshot = Snapshot::prepare(&live)?;
        snapshot.images_of_absent_files(&live);
        let mut decoders = find_runtimes(&snapshot, &live);
        let running = Running { memory: &live, threads: &|| live.calls(), locals: options.locals };
        decoders.iter_mut().for_each(|d| d.rehearse(&running));
        Ok(Prepared { live, snapshot, decoders })
    }
}

fn find_runtimes(snapshot: &Snapshot, memory: &dyn Memory) -> Vec<Box<dyn Decoder>> {
    runtimes::all().into_iter().filter_map(|r| r.find(snapshot, memory)).collect()
}

/// One process after its pause.
struct Taken {
    snapshot: Snapshot,
    decoders: Vec<Box<dyn Decoder>>,
    kept: Kept,
}

/// What was read of one process: what a minicore holds.
struct Read {
    kept: Kept,
    file_pages: Vec<(Addr, Vec<u8>)>,
}

/// Diagnoses running processes as one graph.
///
/// # Errors
/// When none of the processes could be captured; of several, those that could not are warnings.
pub fn live(pids: &[Pid], options: &Options) -> Result<Diagnosis, DiagnoseError> {
    let mut first: Option<(Diagnosis, Vec<Read>)> = None;
    let mut looks = 0;
    let mut last_at = Instant::now();
    loop {
        let at = Instant::now();
        let taken = look(pids, options, first.as_ref().map(|(f, _)| (f, at.duration_since(last_at))));
        let (mut over, (mut diagnosis, kept)) = match (taken, first.take()) {
            (Ok(taken), _) => (false, taken),
            // it ended since: what was seen before is all there will ever be
            (Err(why), Some((mut before, kept))) => {
                before.captured.warnings.push(format!("no further look: {why}"));
                (before.captured.partial, before.verdict.partial) = (true, true);
                (true, (before, kept))
            }
            (Err(why), None) => return Err(why),
        };
        looks += 1;
        over |= match options.samples {
            Some(n) => looks >= n,
            None => looks >= 2 || !diagnosis.verdict.wants_second_look(),
        };
        if over {
            if let Some(path) = &options.save_core {
                // what was found is told whatever becomes of the core
                if let Err(why) = save(path, &diagnosis, &kept) {
                    diagnosis.captured.warnings.push(why.to_string());
                    diagnosis.captured.unsaved = true;
                }
            }
            return Ok(diagnosis);
        }
        last_at = at;
        // what the stop itself made them do is not to be taken for their own moves
        let settle = options.interval / 10;
        std::thread::sleep(settle);
        diagnosis.snapshots.iter_mut().for_each(renew_counters);
        first = Some((diagnosis, kept));
        std::thread::sleep(options.interval - settle);
    }
}

/// Takes the counters of each thread as they are now, for the next look to compare with.
fn renew_counters(snapshot: &mut Snapshot) {
    let counters = live::counters(snapshot.process.pid);
    for thread in &mut snapshot.threads {
        // of one that has ended the old ones stay
        thread.progress = counters.get(&thread.host_tid).copied().or(thread.progress);
    }
}

/// Takes one look at all processes and thinks about it.
fn look(
    pids: &[Pid],
    options: &Options,
    earlier: Option<(&Diagnosis, Duration)>,
) -> Result<(Diagnosis, Vec<Read>), DiagnoseError> {
    let mut warnings = Vec::new();
    let mut prepared = Vec::new();
    let (mut failure, mut ended) = (None, None);
    // owners that the look before found recorded: who has ended by now has not let go of what is still recorded later
    let owners = earlier.map(|(e, _)| owners_elsewhere(&e.facts)).unwrap_or_default();
    let gone = owners.into_iter().filter(|tid| live::is_gone(*tid)).collect();
    for pid in pids {
        match Prepared::new(*pid, options) {
            Ok(p) => prepared.push(p),
            Err(e) if options.is_no_gap(*pid, &e) => {
                ended.get_or_insert(e);
            }
            Err(e) => {
                // of several processes one that cannot be reached silences no other
                warnings.push(e.to_string());
                failure.get_or_insert(e);
            }
        }
    }
    // a process and one of its threads, or two of them: one process
    let mut known = BTreeSet::new();
    prepared.retain(|p| known.insert(p.snapshot.process.pid));
    let at = SystemTime::now();
    let mut captured = Captured {
        at,
        source: "live",
        pause: None,
        syscalls_in_pause: 0,
        warnings: Vec::new(),
        partial: false,
        unsaved: false,
    };
    let (taken, polled_locks) = pause(prepared, options, &mut captured, &mut warnings, &mut failure);
    if taken.is_empty() {
        return Err(failure.or(ended).unwrap_or(DiagnoseError::Nothing));
    }
    captured.partial |= failure.is_some();
    captured.warnings = warnings;
    let mut processes = Vec::new();
    let mut kept = Vec::new();
    for t in taken {
        let ix = ProcessIx(u32::try_from(processes.len()).unwrap_or(u32::MAX));
        let how = How { note_pages: options.save_core.is_some(), locals: options.locals };
        let mut understood = understand(ix, t.snapshot, &t.kept, &t.decoders, how);
        kept.push(Read { kept: t.kept, file_pages: std::mem::take(&mut understood.file_pages) });
        processes.push(understood);
    }
    parents::consult(&mut processes, options);
    let mut around = look_around(&processes, gone);
    around.locks_when_held = polled_locks.into_iter().flatten().map(file_lock).collect();
    Ok((think(processes, captured, around, earlier), kept))
}

fn file_lock(line: live::LockLine) -> FileLock {
    FileLock {
        number: line.number,
        blocked: line.blocked,
        by: if line.flock { LockCall::Flock } else { LockCall::Fcntl },
        process: Pid(line.process),
        inode: line.inode,
    }
}

/// What the machine tells of what these processes wait for and others could do.
fn look_around(processes: &[Understood], gone: BTreeSet<i32>) -> Around {
    let asked = processes.iter().map(|p| Questions::of(&p.facts)).fold(Questions::default(), Questions::and);
    let run = processes.iter().map(|p| p.snapshot.process.pid).collect();
    let PipeEnds { readers, writers, unread } = live::ends_of(&asked.full, &asked.empty, &run);
    let catches = |pid: &Pid| Some((*pid, live::read_caught_signals(pid.0)?));
    let caught = writers.values().flatten().filter_map(catches).collect();
    let pid_of = |p: &ProcessIx| Some(processes.get(p.0 as usize)?.snapshot.process.pid);
    let parents = asked.parents.iter().filter_map(pid_of);
    let children = parents.filter_map(|pid| Some((pid, live::children(pid)?))).collect();
    let locks = if asked.file_locks { live::read_file_locks() } else { Vec::new() };
    let file_locks = locks.into_iter().map(file_lock).collect();
    let fifo = |p: &Understood| {
        let pid = p.snapshot.process.pid;
        let found = |(t, o): (&ThreadRef, &Opening)| Some((*t, live::fifo_of(pid, &o.path, o.directory)?));
        p.facts.openings.iter().take(MAX_PATHS).filter_map(found).collect::<Vec<_>>()
    };
    let fifos = processes.iter().flat_map(fifo).collect();
    let polled = |p: &Understood| {
        let pid = p.snapshot.process.pid;
        let found = |(id, f): (&ResourceId, &PolledFile)| Some((*id, live::file_of(pid, &f.path)?));
        p.facts.polled.iter().take(MAX_PATHS).filter_map(found).collect::<Vec<_>>()
    };
    let polled = processes.iter().flat_map(polled).collect();
    let stopped = |p: &&Understood| p.snapshot.threads.iter().any(|t| t.state == Some('T'));
    let terminal = |p: &Understood| Some((p.snapshot.process.pid, live::read_terminal(p.snapshot.process.pid)?));
    let terminals = processes.iter().filter(stopped).filter_map(terminal);
    let terminals = terminals.map(|(pid, (group, foreground))| (pid, Terminal { group, foreground })).collect();
    Around {
        readers,
        writers,
        unread,
        caught,
        children,
        gone,
        file_locks,
        fifos,
        polled,
        terminals,
        ..Around::default()
    }
}

/// Diagnoses a core.
///
/// # Errors
/// When it cannot be read as one.
pub fn core(path: &Path, exe: Option<&Path>, options: &Options) -> Result<Diagnosis, DiagnoseError> {
    let core = CoreFile::open(
        path,
        &CoreOptions {
            exe: exe.map(Path::to_path_buf),
            resolved: Vec::new(),
            sysroot: options.sysroot.clone(),
            debug_dirs: options.debug_dirs.clone(),
        },
    )?;
    let mut snapshot = Snapshot::prepare(&core)?;
    snapshot.images_from_memory(&core);
    let threads = core.threads()?;
    snapshot.freeze(threads, None);
    let decoders = find_runtimes(&snapshot, &WithImages::new(&core, &snapshot));
    let mut understood =
        understand(ProcessIx(0), snapshot, &core, &decoders, How { locals: options.locals, ..How::default() });
    parents::regret(&mut understood, "a core holds one process");
    let captured = Captured {
        at: std::fs::metadata(path).and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now()),
        source: "core",
        pause: None,
        syscalls_in_pause: 0,
        warnings: core.warnings(),
        partial: core.is_truncated() || core.may_lack_threads(),
        unsaved: false,
    };
    Ok(think(vec![understood], captured, Around::default(), None))
}

/// Diagnoses what a debugger has open: it stands still, so everything is read when it is wanted.
///
/// # Errors
/// When the debugger went away, or did not keep to the protocol.
pub fn bridge(bridge: &Bridge) -> Result<Diagnosis, DiagnoseError> {
    bridge_again(bridge, None)
}

/// As [`bridge`], with the files that an earlier look at the same process has opened.
///
/// # Errors
/// Those of [`bridge`].
pub fn bridge_again(bridge: &Bridge, earlier: Option<&Snapshot>) -> Result<Diagnosis, DiagnoseError> {
    let mut snapshot = Snapshot::prepare(bridge)?;
    if let Some(earlier) = earlier {
        snapshot.share_images(earlier);
    }
    if bridge.is_live() {
        snapshot.images_of_absent_files(bridge);
    } else {
        snapshot.images_from_memory(bridge);
    }
    snapshot.freeze(bridge.threads()?, None);
    let decoders = find_runtimes(&snapshot, &WithImages::new(bridge, &snapshot));
    // many small reads become few questions
    bridge.expect(&unwind::find_interrupted_stacks(&snapshot, &snapshot.threads, bridge));
    let held = Held { threads: &snapshot.threads, snapshot: &snapshot, memory: bridge, locals: false };
    decoders.iter().for_each(|d| d.gather(&held));
    let mut understood = understand(ProcessIx(0), snapshot, bridge, &decoders, How::default());
    parents::regret(&mut understood, "a debugger shows one process");
    if let Some(failure) = bridge.failure() {
        return Err(failure.into());
    }
    let captured = Captured {
        at: SystemTime::now(),
        source: "bridge",
        pause: None,
        syscalls_in_pause: 0,
        warnings: bridge.warnings(),
        partial: bridge.is_partial() || bridge.may_lack_threads(),
        unsaved: false,
    };
    Ok(think(vec![understood], captured, Around::default(), None))
}

/// One process understood.
struct Understood {
    snapshot: Snapshot,
    stacks: Vec<Stack>,
    facts: Facts,
    runtimes: Vec<RuntimeNote>,
    /// Pages of files that were read, for the minicore.
    file_pages: Vec<(Addr, Vec<u8>)>,
    /// Threads of which nobody can tell where they are.
    unplaced: usize,
}

/// How to understand it.
#[derive(Clone, Copy, Default)]
struct How {
    /// For a minicore: which pages of files are read.
    note_pages: bool,
    /// Variables of interpreters' frames.
    locals: bool,
}

fn understand(
    process: ProcessIx,
    snapshot: Snapshot,
    memory: &(dyn Memory + Sync),
    decoders: &[Box<dyn Decoder>],
    how: How,
) -> Understood {
    let layered = WithImages::new(memory, &snapshot);
    let layered = if how.note_pages { layered.noting_pages() } else { layered };
    let stacks = unwind::unwind_all(&snapshot, &layered);
    let view = View { process, snapshot: &snapshot, stacks: &stacks, memory: &layered, locals: how.locals };
    let mut facts = Facts::default();
    let mut notes = Vec::new();
    for decoder in decoders {
        let mut found = decoder.decode(&view);
        notes.extend(found.runtime.take());
        facts.absorb(found);
    }
    forget_the_unlisted(process, &snapshot, &mut facts);
    let file_pages = layered.pages_used();
    let unplaced = unwind::count_unplaced(&snapshot, &stacks, &layered);
    Understood { snapshot, stacks, facts, runtimes: notes, file_pages, unplaced }
}

/// Where threads may be missing from the list, an owner that is not in it may well live: nobody is then said to be gone.
fn forget_the_unlisted(process: ProcessIx, snapshot: &Snapshot, facts: &mut Facts) {
    if !snapshot.unlisted {
        return;
    }
    let before = facts.holds.len();
    let gone = |h: &Hold| match h.holder {
        Holder::Gone(p, tid) => p == process && snapshot.thread_by_tid(tid).is_none(),
        Holder::Thread(_) | Holder::Process(_) => false,
    };
    facts.holds.retain(|h| !gone(h));
    if facts.holds.len() < before {
        let why = "a lock's owner is not among the threads that are listed, but some may be missing from the list";
        facts.gaps.push(Gap(format!("{why}: whether it lives is not known")));
    }
}

/// Facts → graph → verdict.
fn think(
    processes: Vec<Understood>,
    mut captured: Captured,
    mut around: Around,
    earlier: Option<(&Diagnosis, Duration)>,
) -> Diagnosis {
    let mut facts = Facts::default();
    let (mut snapshots, mut stacks, mut runtimes) = (Vec::new(), Vec::new(), Vec::new());
    let unplaced = processes.iter().map(|p| p.unplaced).sum();
    for p in processes {
        facts.absorb(p.facts);
        snapshots.push(p.snapshot);
        stacks.push(p.stacks);
        runtimes.push(p.runtimes);
    }
    let mut movement = earlier.map(|(e, apart)| Movement::between(&e.snapshots, &snapshots, apart));
    let file_locks = std::mem::take(&mut around.file_locks);
    if let (Some((e, _)), Some(movement)) = (earlier, &movement) {
        around.still = Some(movement.still(&snapshots));
        around.file_locks.clone_from(&e.file_locks);
    }
    kernel::between::join(&snapshots, &around, &mut facts);
    kernel::forked::join(&snapshots, &stacks, &mut facts);
    runtimes::cpython::process_pools::join(&snapshots, &mut facts);
    for pid in kernel::stopped::join(&snapshots, &around.terminals, &mut facts) {
        facts
            .notes
            .push(format!("process {pid} is stopped by a signal (state T): it does nothing until kill -CONT {pid}"));
    }
    let graph = Graph::build(&facts);
    if let (Some((e, _)), Some(movement)) = (earlier, &mut movement) {
        movement.compare_devices((&e.snapshots, &e.facts), (&snapshots, &facts));
        movement.compare_cycles((&e.snapshots, &e.graph), (&snapshots, &graph));
    }
    let unread = snapshots.iter().flat_map(|s| &s.threads).any(|t| t.registers.is_none() && t.state != Some('Z'));
    if unread && captured.warnings.is_empty() {
        captured.warnings.push("threads that did not come to a stop are described from /proc alone".to_owned());
    }
    let verdict = verdict::judge(&Look {
        graph: &graph,
        facts: &facts,
        snapshots: &snapshots,
        stacks: &stacks,
        movement: movement.as_ref(),
        partial: captured.partial || unread,
        unplaced,
    });
    Diagnosis { snapshots, stacks, facts, runtimes, graph, verdict, captured, file_locks }
}

/// Writes the minicore of each process: `FILE`, and for further processes `FILE.PID`.
fn save(path: &Path, diagnosis: &Diagnosis, read: &[Read]) -> Result<(), DiagnoseError> {
    for (i, (snapshot, read)) in diagnosis.snapshots.iter().zip(read).enumerate() {
        let path = match i {
            0 => path.to_path_buf(),
            _ => PathBuf::from(format!("{}.{}", path.display(), snapshot.process.pid)),
        };
        let failed = |source| DiagnoseError::Save { path: path.display().to_string(), source };
        let used = modules_in_use(snapshot, diagnosis.stacks.get(i));
        let mut files = read.file_pages.clone();
        files.extend(snapshot.modules.iter().flat_map(|m| m.identity_bytes()));
        files.extend(used.iter().filter_map(|m| snapshot.module(*m)).flat_map(|m| m.analysis_bytes()));
        let core = minicore::Minicore {
            process: &snapshot.process,
            threads: &snapshot.threads,
            unlisted: snapshot.unlisted,
            mappings: &snapshot.mappings,
            kept: &read.kept,
            files: &files,
        };
        write_file(&path, Readers::Owner, |out| minicore::write(&core, out).map(drop)).map_err(failed)?;
    }
    Ok(())
}

/// The modules some frame lies in, and those runtimes read by name.
fn modules_in_use(snapshot: &Snapshot, stacks: Option<&Vec<Stack>>) -> BTreeSet<ModuleIx> {
    let mut used: BTreeSet<ModuleIx> =
        stacks.into_iter().flatten().flat_map(|s| &s.frames).filter_map(|f| f.module).collect();
    for (i, m) in snapshot.modules.iter().enumerate() {
        let name = m.name();
        if ["ld-linux", "ld-2", "libc.so", "libc-2", "libpthread", "libpython", "libhsa-runtime64"]
            .iter()
            .any(|p| name.starts_with(p))
        {
            used.extend(u32::try_from(i).ok().map(ModuleIx));
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Certainty, Mode, ResourceId};
    use crate::units::Tid;
    use crate::verdict::made_up::Made;

    #[test]
    fn nobody_is_gone_from_a_list_that_may_lack_threads() {
        let mut made = Made::new();
        made.thread(10, "a");
        let hold = |tid| Hold {
            holder: Holder::Gone(ProcessIx(0), Tid(tid)),
            of: ResourceId::At(ProcessIx(0), Addr(u64::from(tid.unsigned_abs()))),
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: Vec::new(),
        };
        for (unlisted, left, gaps) in [(false, 2, 0), (true, 1, 1)] {
            made.unlisted = unlisted;
            made.seen(|seen| {
                // 10 is listed: a thread that is frozen, say
                let mut facts = Facts { holds: vec![hold(10), hold(99)], ..Facts::default() };
                forget_the_unlisted(ProcessIx(0), &seen.snapshots[0], &mut facts);
                assert_eq!((facts.holds.len(), facts.gaps.len()), (left, gaps));
            });
        }
    }
}
