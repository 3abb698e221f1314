//! Made-up processes for tests: threads, locks, waits and holds in a few lines, with stacks whose functions have names.

use crate::arch::{Arch, RegisterFile};
use crate::facts::{
    Certainty, Evidence, Facts, GilRole, Hold, Holder, ManagedFrame, ManagedThread, Mode, Reentrancy, Resource,
    ResourceId, ResourceKind, Timeout, Wait, Wakers,
};
use crate::graph::Graph;
use crate::memory::{FileBytes, Memory, ReadError};
use crate::snapshot::{Pc, Snapshot};
use crate::target::{Files, Mapping, Parent, Permissions, Process, Target, TargetError, ThreadState};
use crate::units::{Addr, FrameIx, HostTid, Pid, ProcessIx, ThreadRef, Tid};
use crate::unwind::{Frame, Stack, StackEnd, Trust};
use crate::verdict::{Look, Movement, Verdict, judge};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// One made-up run: processes, their threads, and what the decoders would have said.
#[derive(Default)]
pub(crate) struct Made {
    processes: Vec<Vec<MadeThread>>,
    pub(crate) facts: Facts,
    pub(crate) partial: bool,
    pub(crate) unplaced: usize,
    /// Threads may be missing from the processes' lists.
    pub(crate) unlisted: bool,
    /// The processes were forked without an exec, by this parent.
    pub(crate) parent: Option<Parent>,
    /// The signals the processes catch; `None`: not known.
    pub(crate) caught: Option<u64>,
    /// The cycles stood at the earlier look, too.
    pub(crate) retried: bool,
    /// Threads that moved between two looks; `None`: one look.
    pub(crate) moved: Option<Vec<ThreadRef>>,
    /// Threads that wait for a device which got on between them.
    pub(crate) devices_moved: Vec<ThreadRef>,
    /// Threads that were woken between two looks and sleep in the same place again.
    pub(crate) slept_anew: Vec<ThreadRef>,
    /// Threads that were ready to run all the time.
    pub(crate) starved: Vec<ThreadRef>,
}

struct MadeThread {
    tid: i32,
    name: String,
    state: Option<char>,
    /// Innermost first: function and module.
    native: Vec<(String, String)>,
}

impl Made {
    /// One process, no threads yet.
    pub(crate) fn new() -> Made {
        Made { processes: vec![Vec::new()], caught: Some(0), ..Made::default() }
    }

    /// Threads are added to another process from here on.
    pub(crate) fn next_process(&mut self) {
        self.processes.push(Vec::new());
    }

    fn here(&self) -> ProcessIx {
        ProcessIx(u32::try_from(self.processes.len() - 1).unwrap())
    }

    /// A sleeping thread.
    pub(crate) fn thread(&mut self, tid: i32, name: &str) -> ThreadRef {
        let process = self.here();
        let threads = self.processes.last_mut().unwrap();
        threads.push(MadeThread { tid, name: name.to_owned(), state: Some('S'), native: Vec::new() });
        ThreadRef { process, thread: u32::try_from(threads.len() - 1).unwrap() }
    }

    /// A thread on a CPU.
    pub(crate) fn running(&mut self, tid: i32, name: &str) -> ThreadRef {
        let t = self.thread(tid, name);
        self.made(t).state = Some('R');
        t
    }

    fn made(&mut self, t: ThreadRef) -> &mut MadeThread {
        &mut self.processes[t.process.0 as usize][t.thread as usize]
    }

    /// Sets a thread's state letter.
    pub(crate) fn state(&mut self, t: ThreadRef, state: char) {
        self.made(t).state = Some(state);
    }

    /// A thread's native stack, innermost first: `"function module"`. The function `SIGNAL` is a signal frame.
    pub(crate) fn native(&mut self, t: ThreadRef, frames: &[&str]) {
        let split = |f: &&str| {
            let (function, module) = f.split_once(' ').unwrap();
            (function.to_owned(), module.to_owned())
        };
        self.made(t).native = frames.iter().map(split).collect();
    }

    /// A thread's Python frames, innermost first: function, file, line, the native frame that runs it.
    pub(crate) fn python(&mut self, t: ThreadRef, gil: Option<GilRole>, frames: &[(&str, &str, u32, u32)]) {
        let name = self.made(t).name.clone();
        let frames = frames
            .iter()
            .map(|(function, file, line, native)| ManagedFrame {
                function: (*function).to_owned(),
                file: (*file).to_owned(),
                line: Some(*line),
                native: Some(FrameIx(*native)),
                entered: None,
                locals: None,
            })
            .collect();
        self.facts.managed.push((t, ManagedThread { name: Some(name), frames, gil }));
    }

    /// A resource of the current process at an address.
    pub(crate) fn resource(&mut self, kind: ResourceKind, name: &str, at: u64) -> ResourceId {
        let id = ResourceId::At(self.here(), Addr(at));
        let (wakers, idle) = match kind {
            ResourceKind::Condvar | ResourceKind::Futex | ResourceKind::Semaphore => (Wakers::AnyThread, true),
            ResourceKind::Poll
            | ResourceKind::Epoll
            | ResourceKind::Pipe
            | ResourceKind::Socket
            | ResourceKind::Timer => (Wakers::Outside, true),
            _ => (Wakers::Holders, false),
        };
        let reentrancy = match kind {
            ResourceKind::Mutex | ResourceKind::PythonLock => Reentrancy::Plain,
            ResourceKind::LoaderLock | ResourceKind::LoaderWriteLock | ResourceKind::PythonRlock => {
                Reentrancy::Recursive
            }
            _ => Reentrancy::Unknown,
        };
        self.facts.resources.push(Resource {
            id,
            kind,
            name: (!name.is_empty()).then(|| name.to_owned()),
            address: Some(Addr(at)),
            reentrancy,
            wakers,
            idle,
        });
        id
    }

    /// The entry of a resource, to change what [`Made::resource`] assumed.
    pub(crate) fn entry(&mut self, id: ResourceId) -> &mut Resource {
        self.facts.resources.iter_mut().find(|r| r.id == id).unwrap()
    }

    pub(crate) fn gil(&mut self) -> ResourceId {
        self.resource(ResourceKind::Gil, "GIL", 0x7f00_0000)
    }

    pub(crate) fn mutex(&mut self, name: &str, at: u64) -> ResourceId {
        self.resource(ResourceKind::Mutex, name, at)
    }

    /// `t` waits for `on`, for ever; for a GIL periodically.
    pub(crate) fn waits(&mut self, t: ThreadRef, on: ResourceId) -> &mut Wait {
        let gil = self.facts.resources.iter().any(|r| r.id == on && r.kind == ResourceKind::Gil);
        self.facts.waits.push(Wait {
            thread: t,
            on,
            mode: Mode::Exclusive,
            timeout: if gil { Timeout::Periodic } else { Timeout::None },
            frame: FrameIx(0),
            managed_frame: None,
            evidence: vec![Evidence::new("futex register points into it")],
        });
        self.facts.waits.last_mut().unwrap()
    }

    /// `t` joins `other`.
    pub(crate) fn joins(&mut self, t: ThreadRef, other: ThreadRef) -> &mut Wait {
        self.waits(t, ResourceId::ThreadExit(other))
    }

    /// `t` holds `of`, as a field says.
    pub(crate) fn holds(&mut self, t: ThreadRef, of: ResourceId) -> &mut Hold {
        self.held_by(Holder::Thread(t), of)
    }

    pub(crate) fn held_by(&mut self, holder: Holder, of: ResourceId) -> &mut Hold {
        self.facts.holds.push(Hold {
            holder,
            of,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new("owner field names it")],
        });
        self.facts.holds.last_mut().unwrap()
    }

    /// Two looks were taken, and these moved between them.
    pub(crate) fn two_looks(&mut self, moved: &[ThreadRef]) {
        self.moved = Some(moved.to_vec());
    }

    /// Thread 411 walks the loaded objects and wants the GIL in its callback; main keeps the GIL and wants the walk's lock.
    pub(crate) fn loader_against_gil() -> Made {
        let mut made = Made::new();
        let gil = made.gil();
        let write = made.resource(ResourceKind::LoaderWriteLock, "_dl_load_write_lock", 0x9000);
        let main = made.thread(402, "MainThread");
        made.native(
            main,
            &[
                "__lll_lock_wait libc.so.6",
                "pthread_mutex_lock libc.so.6",
                "dl_iterate_phdr libc.so.6",
                "hipModuleLoadData libamdhip64.so",
                "ffi_call libffi.so.8",
                "_PyEval_EvalFrameDefault libpython3.11.so.1.0",
                "Py_RunMain libpython3.11.so.1.0",
                "_start python3",
            ],
        );
        made.python(
            main,
            Some(GilRole::Holds),
            &[("launch", "/srv/kernels.py", 88, 5), ("<module>", "/srv/train.py", 12, 5)],
        );
        made.holds(main, gil);
        made.waits(main, write).frame = FrameIx(1);
        let load = made.thread(411, "load-3");
        made.native(
            load,
            &[
                "pthread_cond_timedwait libc.so.6",
                "take_gil libpython3.11.so.1.0",
                "PyGILState_Ensure libpython3.11.so.1.0",
                "closure_fcn _ctypes.cpython-311-x86_64-linux-gnu.so",
                "ffi_closure_unix64 libffi.so.8",
                "dl_iterate_phdr libc.so.6",
                "ffi_call libffi.so.8",
                "_PyEval_EvalFrameDefault libpython3.11.so.1.0",
                "start_thread libc.so.6",
            ],
        );
        made.python(load, Some(GilRole::Waits), &[("find_library", "/srv/loader.py", 31, 7)]);
        made.holds(load, write).taken_at = Some(FrameIx(5));
        made.waits(load, gil).frame = FrameIx(2);
        for i in 0..6 {
            let t = made.thread(420 + i, &format!("load-{}", 4 + i));
            made.waits(t, gil);
        }
        made
    }

    /// Gives everything made to `see`.
    pub(crate) fn seen<T>(&self, see: impl FnOnce(&Seen) -> T) -> T {
        self.looked(|look| {
            let verdict = judge(look);
            let Look { snapshots, stacks, facts, graph, .. } = *look;
            see(&Seen { snapshots, stacks, facts, graph, verdict: &verdict })
        })
    }

    /// Gives the look at everything made, before it is judged.
    pub(super) fn looked<T>(&self, see: impl FnOnce(&Look<'_>) -> T) -> T {
        let (snapshots, stacks) = self.build();
        let graph = Graph::build(&self.facts);
        let movement = self.moved.as_ref().map(|moved| Movement {
            apart: Duration::from_millis(500),
            moved: moved.iter().chain(&self.slept_anew).copied().collect(),
            ran: moved.iter().copied().collect(),
            retried: if self.retried { graph.cycles.iter().cloned().collect() } else { Default::default() },
            elsewhere: moved.iter().copied().collect(),
            devices: self.devices_moved.iter().copied().collect(),
            starved: self.starved.iter().copied().collect(),
        });
        see(&Look {
            graph: &graph,
            facts: &self.facts,
            snapshots: &snapshots,
            stacks: &stacks,
            movement: movement.as_ref(),
            partial: self.partial,
            unplaced: self.unplaced,
        })
    }

    /// The verdict.
    pub(crate) fn judged(&self) -> Verdict {
        self.seen(|seen| seen.verdict.clone())
    }

    fn build(&self) -> (Vec<Snapshot>, Vec<Vec<Stack>>) {
        let mut snapshots = Vec::new();
        let mut all_stacks = Vec::new();
        for (p, threads) in self.processes.iter().enumerate() {
            let mut target = MadeTarget::of(threads, Pid(4000 + i32::try_from(p).unwrap()));
            target.process.forked = Some(self.parent.is_some());
            target.process.parent.clone_from(&self.parent);
            target.process.caught = self.caught;
            let mut snapshot = Snapshot::prepare(&target).unwrap();
            snapshot.unlisted = self.unlisted;
            snapshot.freeze(threads.iter().map(state_of).collect(), None);
            all_stacks.push(threads.iter().map(|t| target.stack(t, &snapshot)).collect());
            snapshots.push(snapshot);
        }
        (snapshots, all_stacks)
    }
}

/// What tests look at.
pub(crate) struct Seen<'a> {
    pub(crate) snapshots: &'a [Snapshot],
    pub(crate) stacks: &'a [Vec<Stack>],
    pub(crate) facts: &'a Facts,
    pub(crate) graph: &'a Graph,
    pub(crate) verdict: &'a Verdict,
}

fn state_of(t: &MadeThread) -> ThreadState {
    ThreadState {
        tid: Tid(t.tid),
        host_tid: HostTid(t.tid),
        name: Some(t.name.chars().take(15).collect()),
        state: t.state,
        registers: None,
        syscall: None,
        sp_pc: None,
        wchan: None,
        progress: None,
        missing: None,
    }
}

/// Every module has room for this many functions, 16 bytes each.
const SLOTS: u64 = 0x10_0000;
const FUNCTION: u64 = 16;

struct MadeTarget {
    process: Process,
    /// Module name → its functions in order of address.
    modules: BTreeMap<String, Vec<String>>,
}

impl MadeTarget {
    fn of(threads: &[MadeThread], pid: Pid) -> MadeTarget {
        let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (function, module) in threads.iter().flat_map(|t| &t.native) {
            let functions = modules.entry(module.clone()).or_default();
            if !functions.contains(function) {
                functions.push(function.clone());
            }
        }
        let process = Process {
            pid,
            exe: Some(PathBuf::from("/usr/bin/python3")),
            command: vec!["/usr/bin/python3".to_owned(), "/home/user/train.py".to_owned(), "--token=secret".to_owned()],
            arch: Arch::X86_64,
            auxv: Vec::new(),
            forked: Some(false),
            parent: None,
            caught: None,
            descriptors: std::collections::BTreeMap::new(),
            at_instant: Default::default(),
        };
        MadeTarget { process, modules }
    }

    fn base(&self, module: &str) -> u64 {
        let i = self.modules.keys().position(|m| m == module).unwrap();
        0x7000_0000_0000 + u64::try_from(i).unwrap() * SLOTS
    }

    fn stack(&self, t: &MadeThread, snapshot: &Snapshot) -> Stack {
        let frame = |(i, (function, module)): (usize, &(String, String))| {
            let slot = self.modules[module].iter().position(|f| f == function).unwrap();
            let addr = Addr(self.base(module) + 0x1000 + u64::try_from(slot).unwrap() * FUNCTION + 8);
            Frame {
                pc: Pc { addr, exact: i == 0 },
                cfa: None,
                registers: RegisterFile::default(),
                trust: if i == 0 { Trust::Context } else { Trust::Cfi },
                module: snapshot.module_at(addr).map(|(ix, _)| ix),
                signal: function == "SIGNAL",
            }
        };
        Stack { frames: t.native.iter().enumerate().map(frame).collect(), end: StackEnd::Complete }
    }
}

impl Memory for MadeTarget {
    fn read(&self, at: Addr, _buf: &mut [u8]) -> Result<(), ReadError> {
        Err(ReadError::Unmapped(at))
    }
}

impl Target for MadeTarget {
    fn process(&self) -> &Process {
        &self.process
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(Vec::new())
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        let mapping = |module: &String| Mapping {
            start: Addr(self.base(module)),
            end: Addr(self.base(module) + SLOTS),
            offset: 0,
            permissions: Permissions { read: true, write: false, execute: true, shared: false },
            device: (0, 0),
            inode: 0,
            path: Some(Path::new("/usr/lib").join(module)),
            deleted: false,
        };
        Ok(self.modules.keys().map(mapping).collect())
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(MadeFiles { modules: self.modules.clone() })
    }
}

struct MadeFiles {
    modules: BTreeMap<String, Vec<String>>,
}

impl Files for MadeFiles {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        let name = mapping.path.as_ref().unwrap().file_name().unwrap().to_str().unwrap();
        Ok(FileBytes::owned(elf(&self.modules[name])))
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        Err(TargetError::File { path: path.display().to_string(), cause: "made up".to_owned() })
    }
}

/// A little ELF library: one executable segment that begins with the header, and a symbol for each function.
fn elf(functions: &[String]) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut symbols = vec![0u8; 24];
    for (i, function) in functions.iter().enumerate() {
        let name = u32::try_from(names.len()).unwrap();
        names.extend(function.as_bytes());
        names.push(0);
        symbols.extend(name.to_le_bytes());
        symbols.extend([0x12, 0]); // global function
        symbols.extend(1u16.to_le_bytes()); // defined in .text
        symbols.extend((0x1000 + u64::try_from(i).unwrap() * FUNCTION).to_le_bytes());
        symbols.extend(FUNCTION.to_le_bytes());
    }
    let section_names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let (symbols_at, names_at) = (0x8000u64, 0x8000 + symbols.len() as u64);
    let section_names_at = names_at + names.len() as u64;
    let sections_at = (section_names_at + section_names.len() as u64).next_multiple_of(8);
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend(3u16.to_le_bytes()); // ET_DYN
    out.extend(62u16.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    for word in [0u64, 64, sections_at] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 64, 5, 4] {
        out.extend(half.to_le_bytes());
    }
    // PT_LOAD, r-x
    out.extend(1u32.to_le_bytes());
    out.extend(5u32.to_le_bytes());
    for word in [0u64, 0, 0, SLOTS, SLOTS, 0x1000] {
        out.extend(word.to_le_bytes());
    }
    out.resize(0x8000, 0);
    out.extend(&symbols);
    out.extend(&names);
    out.extend(section_names);
    out.resize(usize::try_from(sections_at).unwrap(), 0);
    let mut section =
        |name: u32, kind: u32, flags: u64, at: u64, offset: u64, size: u64, link: u32, info: u32, each: u64| {
            out.extend(name.to_le_bytes());
            out.extend(kind.to_le_bytes());
            for word in [flags, at, offset, size] {
                out.extend(word.to_le_bytes());
            }
            out.extend(link.to_le_bytes());
            out.extend(info.to_le_bytes());
            for word in [1u64, each] {
                out.extend(word.to_le_bytes());
            }
        };
    section(0, 0, 0, 0, 0, 0, 0, 0, 0);
    section(1, 1, 6, 0x1000, 0x1000, 0x7000, 0, 0, 0);
    section(7, 2, 0, 0, symbols_at, symbols.len() as u64, 3, 1, 24);
    section(15, 3, 0, 0, names_at, names.len() as u64, 0, 0, 0);
    section(23, 3, 0, 0, section_names_at, section_names.len() as u64, 0, 0, 0);
    out
}
