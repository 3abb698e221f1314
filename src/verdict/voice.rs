//! How threads and resources are called in sentences. One voice for headline, explanations and reports.

use crate::facts::{DeviceCall, Facts, ManagedThread, Resource, ResourceId, ResourceKind};
use crate::graph::Graph;
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{FrameIx, ThreadRef, harmless_text};
use crate::unwind::Stack;
use std::collections::BTreeMap;

/// Longest name shown, in characters. Names come from the target.
const MAX_NAME: usize = 80;

/// Names things.
pub struct Voice<'a> {
    graph: &'a Graph,
    snapshots: &'a [Snapshot],
    stacks: &'a [Vec<Stack>],
    managed: BTreeMap<ThreadRef, &'a ManagedThread>,
    called: BTreeMap<(ThreadRef, FrameIx), &'a str>,
    device_calls: &'a BTreeMap<ThreadRef, Vec<DeviceCall>>,
}

impl<'a> Voice<'a> {
    /// Over the rooms' values.
    #[must_use]
    pub fn new(graph: &'a Graph, facts: &'a Facts, snapshots: &'a [Snapshot], stacks: &'a [Vec<Stack>]) -> Voice<'a> {
        let mut managed: BTreeMap<ThreadRef, &ManagedThread> = BTreeMap::new();
        for (thread, m) in &facts.managed {
            // one thread may live in several interpreters: the one with frames speaks
            let better = managed.get(thread).is_none_or(|old| m.frames.len() > old.frames.len());
            if better {
                managed.insert(*thread, m);
            }
        }
        let called = facts.called.iter().map(|c| ((c.thread, c.frame), c.function.as_str())).collect();
        Voice { graph, snapshots, stacks, managed, called, device_calls: &facts.device_calls }
    }

    /// The kernel's view of a thread.
    #[must_use]
    pub fn state(&self, t: ThreadRef) -> Option<&'a ThreadState> {
        self.snapshots.get(t.process.0 as usize)?.threads.get(t.thread as usize)
    }

    /// The interpreter's view of a thread.
    #[must_use]
    pub fn managed(&self, t: ThreadRef) -> Option<&'a ManagedThread> {
        self.managed.get(&t).copied()
    }

    /// The thread's native stack.
    #[must_use]
    pub fn stack(&self, t: ThreadRef) -> Option<&'a Stack> {
        self.stacks.get(t.process.0 as usize)?.get(t.thread as usize)
    }

    /// The process a thread belongs to.
    #[must_use]
    pub fn snapshot(&self, t: ThreadRef) -> Option<&'a Snapshot> {
        self.snapshots.get(t.process.0 as usize)
    }

    /// The symbol of a native frame as the file writes it, without version suffix.
    #[must_use]
    pub fn symbol(&self, t: ThreadRef, frame: FrameIx) -> Option<String> {
        let pc = self.stack(t)?.frames.get(frame.0 as usize)?.pc;
        let Some((symbol, _)) = self.snapshot(t)?.function_at(pc) else { return self.called(t, frame) };
        let name = function_name(&symbol.name);
        (!name.is_empty()).then_some(name)
    }

    /// Where in a device's library a thread waits, as the end of a sentence: ` in hipModuleLoadData, through
    /// hsa_code_object_reader_create_from_memory`; nothing where it is in none.
    #[must_use]
    pub fn in_device_call(&self, t: ThreadRef) -> String {
        let calls = self.device_calls.get(&t).map_or(&[][..], Vec::as_slice);
        let inner = calls.last().filter(|_| calls.len() > 1);
        match (calls.first(), inner) {
            (Some(outer), Some(inner)) if inner.function != outer.function => {
                format!(" in {}, through {}", function_name(&outer.function), function_name(&inner.function))
            }
            (Some(outer), _) => format!(" in {}", function_name(&outer.function)),
            (None, _) => String::new(),
        }
    }

    /// ` in hipModuleLoadData`: the outermost call of a device's library alone; where it is in none, ` for the GPU`.
    #[must_use]
    pub fn in_outer_device_call(&self, t: ThreadRef) -> String {
        match self.device_calls.get(&t).and_then(|calls| calls.first()) {
            Some(outer) => format!(" in {}", function_name(&outer.function)),
            None => " for the GPU".to_owned(),
        }
    }

    /// What its caller called the function of a native frame that has no symbol.
    #[must_use]
    pub fn called(&self, t: ThreadRef, frame: FrameIx) -> Option<String> {
        self.called.get(&(t, frame)).map(|name| function_name(name))
    }

    /// A native frame as `function (file:line)`, as far as that is known: of inlined functions the innermost that is the
    /// program's own.
    #[must_use]
    pub fn place(&self, t: ThreadRef, frame: FrameIx) -> Option<String> {
        let pc = self.stack(t)?.frames.get(frame.0 as usize)?.pc;
        let snapshot = self.snapshot(t)?;
        let lines = snapshot.lines(pc);
        let own = lines.iter().find(|l| !l.file.as_deref().is_some_and(is_std_header)).or(lines.last());
        let described = snapshot.describe(pc);
        let function = own.and_then(|l| l.function.clone()).or(described.function).or_else(|| self.called(t, frame))?;
        let function = function_name(&function);
        let file = own.and_then(|l| l.file.as_deref()).map(|f| plain(f.rsplit('/').next().unwrap_or(f)));
        Some(match (file, own.and_then(|l| l.line)) {
            (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
            _ => function,
        })
    }

    /// The function of the innermost frame of `t` from `from` outwards that belongs to the program: of where a thread once
    /// was, the line it stands at now says nothing.
    #[must_use]
    pub fn own_function(&self, t: ThreadRef, from: FrameIx) -> Option<String> {
        let own = self.own_frame(t, from)?;
        let pc = self.stack(t)?.frames.get(own.0 as usize)?.pc;
        let symbol = self.snapshot(t)?.describe(pc).function.map(|name| function_name(&name));
        symbol.or_else(|| self.called(t, own))
    }

    /// The innermost frame of `t` from `from` outwards that belongs to the program and not to the C or C++ library or the
    /// loader, as [`Voice::place`] gives it.
    #[must_use]
    pub fn own_place(&self, t: ThreadRef, from: FrameIx) -> Option<String> {
        self.place(t, self.own_frame(t, from)?)
    }

    /// The name of a native frame that belongs to the program.
    #[must_use]
    pub fn own_name(&self, t: ThreadRef, frame: FrameIx) -> Option<String> {
        (self.own_frame(t, frame)? == frame).then(|| self.own_function(t, frame))?
    }

    fn own_frame(&self, t: ThreadRef, from: FrameIx) -> Option<FrameIx> {
        let frames = self.stack(t)?.frames.len();
        (from.0..u32::try_from(frames).ok()?).map(FrameIx).find(|f| {
            let module = self.module(t, *f).unwrap_or_default();
            let runtime = ["libc.so", "libc-2", "libpthread", "ld-", "libdl", "libstdc++", "libc++"];
            !runtime.iter().any(|m| module.starts_with(m))
        })
    }

    /// The file name of the module a native frame lies in.
    #[must_use]
    pub fn module(&self, t: ThreadRef, frame: FrameIx) -> Option<String> {
        let ix = self.stack(t)?.frames.get(frame.0 as usize)?.module?;
        Some(plain(self.snapshot(t)?.module(ix)?.name()))
    }

    /// The program's name for a thread, else the kernel's.
    #[must_use]
    pub fn thread_name(&self, t: ThreadRef) -> Option<String> {
        let python = self.managed(t).and_then(|m| m.name.as_deref());
        python.or_else(|| self.state(t)?.name.as_deref()).filter(|n| !n.is_empty()).map(plain)
    }

    /// `411 “load-3”`; with several processes `411 “load-3” of 2201`.
    #[must_use]
    pub fn short(&self, t: ThreadRef) -> String {
        let tid = self.state(t).map_or_else(|| "?".to_owned(), |s| s.tid.to_string());
        let name = self.thread_name(t).map(|n| format!(" “{n}”")).unwrap_or_default();
        let process = match self.snapshot(t) {
            Some(s) if self.snapshots.len() > 1 => format!(" of process {}", s.process.pid),
            _ => String::new(),
        };
        format!("{tid}{name}{process}")
    }

    /// `thread 411 “load-3”`.
    #[must_use]
    pub fn thread(&self, t: ThreadRef) -> String {
        format!("thread {}", self.short(t))
    }

    /// What a resource is called in a headline or on an edge: `the GIL`, `_dl_load_write_lock`, `the mutex at 0x55…`.
    #[must_use]
    pub fn name(&self, id: ResourceId) -> String {
        let Some(resource) = self.graph.resource(id) else { return "something unknown".to_owned() };
        if let ResourceId::ThreadExit(t) = id {
            return format!("the end of {}", self.thread(t));
        }
        match &resource.name {
            Some(name) if resource.kind == ResourceKind::Gil => {
                let name = plain(name);
                if name.starts_with("the ") { name } else { format!("the {name}") }
            }
            // `the mutex accounts`; loader locks and the like say in their names what they are
            Some(name)
                if is_plain_lock(resource.kind) && !says(name, noun(resource.kind)) && !name.starts_with("the ") =>
            {
                format!("the {} {}", noun(resource.kind), plain(name))
            }
            Some(name) => plain(name),
            None if resource.kind == ResourceKind::Gil => "the GIL".to_owned(),
            None => match resource.address {
                Some(at) => format!("the {} at {at}", noun(resource.kind)),
                None => format!("{} {}", article(noun(resource.kind)), noun(resource.kind)),
            },
        }
    }

    /// What a resource is called where there is room to say what it is: `the loader's link-map lock (_dl_load_write_lock)`,
    /// `mutex ipc_import_mutex (libfoo.so)`.
    #[must_use]
    pub fn thing(&self, id: ResourceId) -> String {
        let Some(resource) = self.graph.resource(id) else { return "something unknown".to_owned() };
        match (resource.kind, &resource.name) {
            (ResourceKind::Gil | ResourceKind::ThreadExit, _) | (_, None) => self.name(id),
            (ResourceKind::LoaderLock | ResourceKind::LoaderWriteLock | ResourceKind::LoaderTlsLock, Some(name)) => {
                format!("the {} ({})", noun(resource.kind), plain(name))
            }
            // names given by decoders often say what they are (`pipe 88123`); the noun is then not said twice
            (kind, Some(name)) => {
                let name = plain(name);
                if says(&name, noun(kind)) || name.starts_with("the ") {
                    name
                } else {
                    format!("the {} {name}", noun(kind))
                }
            }
        }
    }

    /// `holds the GIL, jobs`; a stop of all threads is held up.
    #[must_use]
    pub fn holds(&self, ids: &[ResourceId]) -> String {
        let is_stop =
            |id: &&ResourceId| self.resource(**id).is_some_and(|r| r.kind == ResourceKind::PythonStopTheWorld);
        let (stops, others): (Vec<&ResourceId>, Vec<&ResourceId>) = ids.iter().partition(is_stop);
        let list = |verb: &str, ids: Vec<&ResourceId>| {
            let names: Vec<String> = ids.into_iter().map(|id| self.name(*id)).collect();
            (!names.is_empty()).then(|| format!("{verb} {}", names.join(", ")))
        };
        [list("holds", others), list("holds up", stops)].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// The resource.
    #[must_use]
    pub fn resource(&self, id: ResourceId) -> Option<&'a Resource> {
        self.graph.resource(id)
    }

    /// `waits for the GIL`, `waits for thread 415 “w” to end`, `waits to be signalled on …`.
    #[must_use]
    pub fn waits(&self, id: ResourceId) -> String {
        if let ResourceId::ThreadExit(t) = id {
            return format!("waits for {} to end", self.thread(t));
        }
        let name = self.name(id);
        // decoders of system calls name the call: `read from fd 5`, `epoll on fd 3`; but also `child 81`, `a signal`
        let thing = ["the ", "a ", "an ", "any ", "its ", "child "].iter().any(|word| name.starts_with(word));
        match self.resource(id).map(|r| r.kind) {
            // `the shared state of a std::future`: a decoder that names the thing knows more than that it is signalled
            Some(ResourceKind::Condvar) if self.resource(id).is_some_and(names_itself) => format!("waits for {name}"),
            Some(ResourceKind::Condvar | ResourceKind::PythonCondition) => format!("waits to be signalled on {name}"),
            Some(ResourceKind::Timer) if name == "sleep" => "sleeps".to_owned(),
            Some(
                ResourceKind::Pipe
                | ResourceKind::Socket
                | ResourceKind::Eventfd
                | ResourceKind::Epoll
                | ResourceKind::Poll
                | ResourceKind::Timer
                | ResourceKind::Device
                | ResourceKind::FileIo
                | ResourceKind::Unknown,
            ) if !thing => format!("waits in {name}"),
            _ => format!("waits for {name}"),
        }
    }
}

/// Kinds whose names are the program's own variables.
fn is_plain_lock(kind: ResourceKind) -> bool {
    matches!(
        kind,
        ResourceKind::Mutex
            | ResourceKind::Rwlock
            | ResourceKind::Condvar
            | ResourceKind::Semaphore
            | ResourceKind::Barrier
            | ResourceKind::Once
            | ResourceKind::Spinlock
    )
}

/// Whether a file is a header of the C++ library: not a place a person wrote.
#[must_use]
pub fn is_std_header(file: &str) -> bool {
    (file.contains("/include/") && file.contains("/c++/")) || file.starts_with("/rustc/")
}

/// A function's name without what compilers and linkers add: `add.constprop.0`, `memcpy@@GLIBC_2.14`.
#[must_use]
pub fn function_name(name: &str) -> String {
    let mut name = name.split('@').next().unwrap_or_default();
    for added in [".constprop.", ".isra.", ".part.", ".lto_priv.", ".cold", ".llvm."] {
        if let Some((before, _)) = name.split_once(added).filter(|(before, _)| !before.is_empty()) {
            name = before;
        }
    }
    plain(name)
}

/// Whether a name already says what it is.
fn says(name: &str, noun: &str) -> bool {
    let lower = name.to_lowercase();
    noun.split(' ').any(|w| lower.contains(&w.to_lowercase()))
}

fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// The plain word for a kind, in sentences.
#[must_use]
pub(super) fn noun(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Gil => "GIL",
        ResourceKind::LoaderLock => "loader's lock",
        ResourceKind::LoaderWriteLock => "loader's link-map lock",
        ResourceKind::LoaderTlsLock => "loader's TLS lock",
        ResourceKind::Rwlock => "read-write lock",
        ResourceKind::Condvar => "condition variable",
        ResourceKind::StaticInitGuard => "guard of a static variable",
        ResourceKind::ThreadExit => "end of a thread",
        ResourceKind::AllocatorLock => "allocator's lock",
        ResourceKind::StdioLock => "stdio lock",
        ResourceKind::AtforkLock => "at-fork lock",
        ResourceKind::ExitLock => "exit lock",
        ResourceKind::LibcLock => "lock inside libc",
        ResourceKind::PythonLock => "Lock",
        ResourceKind::PythonRlock => "RLock",
        ResourceKind::PythonMutex => "PyMutex",
        ResourceKind::PythonImportLock => "import lock",
        ResourceKind::PythonCondition => "Condition",
        ResourceKind::PythonEvent => "Event",
        ResourceKind::PythonSemaphore => "Semaphore",
        ResourceKind::PythonQueue => "queue",
        ResourceKind::PythonBarrier => "Barrier",
        ResourceKind::PythonFuture => "future",
        ResourceKind::PythonThread => "end of a thread",
        ResourceKind::PythonIoLock => "lock of a buffered file",
        ResourceKind::PythonTask => "task",
        ResourceKind::PythonStopTheWorld => "stop of the world",
        ResourceKind::WorkerPool => "worker pool",
        ResourceKind::GpuSignal => "GPU signal",
        ResourceKind::GpuQueue => "GPU queue",
        ResourceKind::GpuStream => "GPU stream",
        ResourceKind::ProcessExit => "end of a process",
        ResourceKind::FileLock => "file lock",
        ResourceKind::FileIo => "file",
        ResourceKind::Unknown => "unknown event",
        other => other.word(),
    }
}

/// A phrase as the beginning of a sentence: `thread 4` becomes `Thread 4`. A symbol's name stays as it is written.
#[must_use]
pub(super) fn capital(phrase: &str) -> String {
    let ours = ["the ", "thread ", "a ", "an "].iter().any(|word| phrase.starts_with(word));
    let mut chars = phrase.chars();
    match chars.next() {
        Some(first) if ours => first.to_uppercase().chain(chars).collect(),
        _ => phrase.to_owned(),
    }
}

/// A name from the target made harmless: no control characters, bounded. Names are bytes of someone else's memory.
#[must_use]
pub fn plain(name: &str) -> String {
    let mut out = harmless_text(name, MAX_NAME + 1);
    if out.len() > MAX_NAME && out.chars().count() > MAX_NAME {
        out = out.chars().take(MAX_NAME - 1).collect();
        out.push('…');
    }
    out
}
/// Whether a resource's name is a phrase of its own, with its article.
fn names_itself(resource: &Resource) -> bool {
    resource.name.as_ref().is_some_and(|name| name.starts_with("the "))
}
