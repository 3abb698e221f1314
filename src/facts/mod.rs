//! What runtimes found, as plain data: resources, waits, holds, evidence, gaps.
//!
//! Knows nothing of memory or stacks beyond frame numbers.

use crate::units::{Addr, FrameIx, Pid, ProcessIx, ThreadRef, Tid};
use std::collections::{BTreeMap, BTreeSet};

mod kinds;
pub use kinds::ResourceKind;

/// Names a resource: address space and address. Shared memory is named by file and offset, so that two processes meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ResourceId {
    /// Something in one process's memory, by the address of the object itself (the mutex, not its futex word).
    At(ProcessIx, Addr),
    /// Something in shared memory: device, inode, offset in the file.
    Shared {
        /// Device number (major, minor).
        device: (u32, u32),
        /// Inode.
        inode: u64,
        /// Bytes from the start of the file.
        offset: u64,
    },
    /// A thread's own end (what a join waits for).
    ThreadExit(ThreadRef),
    /// Something without an address: the thing `number` of its kind in one process (a file descriptor, a child's pid).
    Numbered(ProcessIx, ResourceKind, u64),
}

/// Whether the holder may take it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reentrancy {
    /// It may: a recursive mutex, an `RLock`. Waiting for one's own is then no self-deadlock.
    Recursive,
    /// It may not: a normal or error-checking mutex, a `Lock`.
    Plain,
    /// Nothing says.
    #[default]
    Unknown,
}

/// Who can end a wait for the resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wakers {
    /// Its holders, by letting go.
    #[default]
    Holders,
    /// Any other thread of the process that can run: condition variables, events, semaphores, futures.
    AnyThread,
    /// Something outside the process: a descriptor, a timer, a signal, a child, the GPU.
    Outside,
}

/// Anything a thread can wait for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    /// Its name in the graph.
    pub id: ResourceId,
    /// Its kind, in the contract's words.
    pub kind: ResourceKind,
    /// What a person would call it: `GIL`, `_dl_load_write_lock`, `ipc_import_mutex (libfoo.so)`. Absent where only an
    /// address is known.
    pub name: Option<String>,
    /// Where it lies.
    pub address: Option<Addr>,
    /// Whether its holder may take it again.
    pub reentrancy: Reentrancy,
    /// Who can end a wait for it.
    pub wakers: Wakers,
    /// Whether an idle program waits for such a thing in health (a pool's condition variable, `poll`), as opposed to a lock.
    pub idle: bool,
}

/// What a fact rests on: a short sentence that names the address, field, register or frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Evidence(pub String);

impl Evidence {
    /// From anything that reads as a sentence. No full stop.
    pub fn new(text: impl Into<String>) -> Evidence {
        Evidence(text.into())
    }
}

/// How sure a hold is; a cycle is as sure as its weakest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Certainty {
    /// Deduced from roles or by elimination.
    Inferred,
    /// The holder's own stack proves it.
    Witnessed,
    /// A field in the target's memory names the holder.
    Recorded,
}

impl Certainty {
    /// The contract's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Certainty::Inferred => "inferred",
            Certainty::Witnessed => "witnessed",
            Certainty::Recorded => "recorded",
        }
    }
}

/// How it is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With others of the same mode (readers).
    Shared,
    /// Any one of several would do (a condition any thread can signal).
    Any,
}

impl Mode {
    /// The contract's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Any => "any",
        }
    }
}

/// Whether a wait ends by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Timeout {
    /// Never.
    None,
    /// It wakes now and then and waits again (the GIL's 5 ms): as good as never.
    Periodic,
    /// It gives up after a time; how long is not known.
    Some,
    /// It gives up after this many seconds in all.
    Seconds(f64),
}

/// A thread waits for a resource.
#[derive(Clone, PartialEq, Debug)]
pub struct Wait {
    /// Who.
    pub thread: ThreadRef,
    /// For what.
    pub on: ResourceId,
    /// How it would take it.
    pub mode: Mode,
    /// Whether the wait ends by itself.
    pub timeout: Timeout,
    /// The native frame that shows it, nearest the application: of two decoders' waits for one thread the one with the
    /// larger frame is the thread's wait, the other lies beneath it as evidence. Frame 0 where nothing says more.
    pub frame: FrameIx,
    /// The interpreter's frame that waits (index into the thread's [`ManagedThread::frames`]), for *waits here*; absent
    /// where the thread runs no such code.
    pub managed_frame: Option<u32>,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}

/// Who holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Holder {
    /// A thread of the run.
    Thread(ThreadRef),
    /// A tid that is no thread of this process: it ended, or stayed behind at a fork. 0 where nothing tells which it was.
    Gone(ProcessIx, Tid),
    /// A process that is not part of the run.
    Process(Pid),
}

/// A resource is held.
#[derive(Clone, PartialEq, Debug)]
pub struct Hold {
    /// By whom.
    pub holder: Holder,
    /// What.
    pub of: ResourceId,
    /// How it was taken.
    pub mode: Mode,
    /// How sure this is.
    pub certainty: Certainty,
    /// The native frame of the holder that took it, where one shows: for *took it here*.
    pub taken_at: Option<FrameIx>,
    /// The interpreter's frame that took it: the frame of the `with` statement. Absent where none shows.
    pub taken_at_managed: Option<TakenAt>,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}

/// Where interpreted code took something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenAt {
    /// Index into the holder's [`ManagedThread::frames`].
    pub frame: u32,
    /// The line of the taking (the `with` statement), from 1. The frame itself may stand at a later one by now.
    pub line: Option<u32>,
}

/// A frame of an interpreter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagedFrame {
    /// Function or method, qualified where the interpreter knows it so.
    pub function: String,
    /// Source file as the interpreter names it.
    pub file: String,
    /// Line being executed, from 1; absent where unknown.
    pub line: Option<u32>,
    /// The native frame (an evaluation loop) that runs it; absent where the two stacks could not be matched.
    pub native: Option<FrameIx>,
    /// What made it run, where the code of the frame beneath did not call it.
    pub entered: Option<Entered>,
    /// Its variables; absent where nobody asked for them.
    pub locals: Option<Vec<Local>>,
}

/// A variable of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// Its name.
    pub name: String,
    /// Its value in a few words: `42`, `"text"`, `Session at 0x7f…`.
    pub value: String,
}

/// What makes the interpreter run a function that the code beneath it did not call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entered {
    /// This signal: the function is its handler, run between two instructions of the frame beneath.
    Signal(u32),
    /// The end of an object: the function is its finaliser (`__del__`).
    Finalizer,
    /// The end of an object: the function is the callback of a weak reference to it.
    WeakReference,
}

/// What an interpreter says of a thread.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ManagedThread {
    /// The name the program gave it.
    pub name: Option<String>,
    /// Its frames, innermost first.
    pub frames: Vec<ManagedFrame>,
    /// Whether it holds or waits for the interpreter's lock: `holds`, `waits`.
    pub gil: Option<GilRole>,
}

/// A thread's relation to the GIL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GilRole {
    /// Holds it.
    Holds,
    /// Waits for it.
    Waits,
}

/// A frame whose function has no symbol, by the name its caller called it by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CalledAs {
    /// Whose frame.
    pub thread: ThreadRef,
    /// Which.
    pub frame: FrameIx,
    /// The exported function the call names. What runs is often another one it jumped to.
    pub function: String,
}

/// A call of a device's library that a thread is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCall {
    /// The exported function: `hipStreamSynchronize`.
    pub function: String,
    /// The outermost of its frames.
    pub frame: FrameIx,
}

/// A wait for a device, as far as the host's memory shows how the device gets on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceWait {
    /// Whether the thread polls: it uses the CPU, and that is no progress.
    pub polls: bool,
    /// Whether what it waits for has happened: it is about to go on.
    pub over: bool,
    /// Numbers in host memory that change as the device gets on; empty where none is known.
    pub pulse: Vec<u64>,
    /// How the device stands, in sentences without full stops.
    pub state: Vec<String>,
    /// Whether no work of the device is pending that could end the wait: the program itself is to do so.
    pub program: bool,
    /// Whether it waits behind a collective, whose kernel waits on the device for all ranks to take part.
    pub collective: bool,
    /// How the device stands in few words, for a headline: `3 packets are pending in queue 0x…, the oldest is kernel `vector_add``.
    pub brief: Option<String>,
}

/// Something that could not be read, and what would mend it. Reported as a warning.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gap(pub String);

/// A task of an event loop: it runs in the loop's thread, between its awaits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Its name in the graph; of kind `python-task`.
    pub id: ResourceId,
    /// The name the program gave it, or the one it got: `Task-2`.
    pub name: String,
    /// The thread that runs its loop; `None` where none does.
    pub thread: Option<ThreadRef>,
    /// Where it is suspended: `fetch (client.py:12)`.
    pub place: Option<String>,
    /// What it waits for, in words: `asyncio.Lock jobs, which Task-3 holds`.
    pub awaits: Option<String>,
    /// Locks of threads that it holds while it is suspended.
    pub holds: Vec<ResourceId>,
    /// Futures that are completed when it ends.
    pub completes: Vec<ResourceId>,
}

/// A function of the program that a signal makes a thread run, whatever that waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignalHandler {
    /// The signal's number.
    pub signal: u32,
    /// What the function is called, where that is known.
    pub function: Option<String>,
}

/// The file that a thread blocked in `open` opens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Its path as the program gave it, without the closing zero.
    pub path: Vec<u8>,
    /// The descriptor of the directory a relative path starts from; absent where it is the working directory.
    pub directory: Option<i32>,
    /// Whether it is opened for reading alone.
    pub reads: bool,
    /// Whether it is opened for writing alone.
    pub writes: bool,
}

/// A file whose lock a thread polls for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolledFile {
    /// Its path as the program gave it.
    pub path: Vec<u8>,
    /// Whether the file itself is the lock, so that nothing records its holder; else it is locked by `flock` or `fcntl`.
    pub by_existence: bool,
}

/// A result of a `multiprocessing.Pool` that nobody is left to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostResult {
    /// The pool's own threads that hand out tasks and take in results.
    pub handlers: Vec<ThreadRef>,
    /// The processes that are its workers now.
    pub workers: Vec<i32>,
    /// How many workers ended before their time.
    pub ended: u64,
    /// The threads that would move if the result were on its way; empty until the processes were joined.
    pub waits: Vec<ThreadRef>,
}

/// What a runtime said about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuntimeNote {
    /// `glibc`, `cpython`…
    pub name: &'static str,
    /// Its version where known: `2.36`, `3.11.2`.
    pub version: Option<String>,
    /// The build kind where it matters: `gil`, `free-threaded`.
    pub build: Option<&'static str>,
}

/// Everything one decoder found out about one instant.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Resources named by the waits and holds, and others worth knowing.
    pub resources: Vec<Resource>,
    /// Who waits.
    pub waits: Vec<Wait>,
    /// Who holds.
    pub holds: Vec<Hold>,
    /// What interpreters say of threads.
    pub managed: Vec<(ThreadRef, ManagedThread)>,
    /// Tasks of event loops.
    pub tasks: Vec<Task>,
    /// Names of frames that have no symbol.
    pub called: Vec<CalledAs>,
    /// The calls of device libraries that threads are in, outermost first.
    pub device_calls: BTreeMap<ThreadRef, Vec<DeviceCall>>,
    /// Threads whose wait is over, though they have not run since: they need nobody any more.
    pub woken: BTreeSet<ThreadRef>,
    /// Threads asleep on a futex whose word has another value by now than the one they went to sleep on. Who knows the object
    /// the word is part of says whether that wakes them; of a word that nobody knows it does.
    pub changed: BTreeSet<ThreadRef>,
    /// Locks that a runtime keeps around a wait and gives back while it lasts (the mutex around a condition variable), by
    /// lock: what is waited for. A thread that waits for that and still has the lock is between two waits and lets go of it
    /// at once.
    pub given_back: BTreeMap<ResourceId, ResourceId>,
    /// What is known of waits for devices.
    pub devices: BTreeMap<ThreadRef, DeviceWait>,
    /// The handlers of signals an interpreter of the process has. A process that is absent is one of which it is not known.
    pub handlers: BTreeMap<ProcessIx, Vec<SignalHandler>>,
    /// Locks that others than the holder may give back, and how that is known, in words: a cycle through one is a deadlock
    /// only where nobody is left to do it.
    pub returnable: BTreeMap<ResourceId, String>,
    /// Locks that record no owner and whose holder no stack shows. A frame shows only at a call what it would give back, so a
    /// thread that runs may have any of them.
    pub unseen: BTreeSet<ResourceId>,
    /// Locks that a fork copied while a thread of the parent held them: what the parent shows of its own copies now, each in
    /// a sentence without a full stop.
    pub inherited: BTreeMap<ResourceId, String>,
    /// The files that threads blocked in `open` open.
    pub openings: BTreeMap<ThreadRef, Opening>,
    /// The files of locks that threads poll for.
    pub polled: BTreeMap<ResourceId, PolledFile>,
    /// Results that are waited for and will not come, by the event they set.
    pub lost_results: BTreeMap<ResourceId, LostResult>,
    /// Processes whose interpreter shuts down: its other threads have ended or are frozen, with all they hold.
    pub shutting_down: BTreeSet<ProcessIx>,
    /// Threads that their terminal stopped, and by which signal.
    pub terminal_stops: BTreeMap<ThreadRef, &'static str>,
    /// What is worth knowing but is no part of the graph; said once, like a warning.
    pub notes: Vec<String>,
    /// What could not be read.
    pub gaps: Vec<Gap>,
    /// What the runtime is.
    pub runtime: Option<RuntimeNote>,
}

impl Facts {
    /// Adds another decoder's facts to these.
    pub fn absorb(&mut self, other: Facts) {
        self.resources.extend(other.resources);
        self.waits.extend(other.waits);
        self.holds.extend(other.holds);
        self.managed.extend(other.managed);
        self.tasks.extend(other.tasks);
        self.called.extend(other.called);
        self.device_calls.extend(other.device_calls);
        self.woken.extend(other.woken);
        self.changed.extend(other.changed);
        self.given_back.extend(other.given_back);
        self.devices.extend(other.devices);
        for (process, handlers) in other.handlers {
            self.handlers.entry(process).or_default().extend(handlers);
        }
        self.returnable.extend(other.returnable);
        self.unseen.extend(other.unseen);
        self.inherited.extend(other.inherited);
        self.openings.extend(other.openings);
        self.polled.extend(other.polled);
        self.lost_results.extend(other.lost_results);
        self.shutting_down.extend(other.shutting_down);
        self.terminal_stops.extend(other.terminal_stops);
        self.notes.extend(other.notes);
        self.gaps.extend(other.gaps);
    }
}
