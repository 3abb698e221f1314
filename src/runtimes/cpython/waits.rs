//! What each Python thread waits for: first the lock its futex tells, then what the frames around make of it.

use super::code::is_installed;
use super::conditions::is_condition;
use super::gil::{futex_wait, has_timeout};
use super::locks::{Lock, LockKind, Sleep};
use super::objects::Objects;
use super::offsets::FrameLayout;
use super::place::{Framed, PyStack};
use crate::facts::ResourceKind;
use crate::memory::MemoryExt;
use crate::target::ThreadState;
use crate::units::{Addr, PthreadT};

/// What a thread waits for.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// A lock object.
    Lock(Lock),
    /// An object other threads signal: a condition, an event, a queue, a future.
    Signal(Signal),
    /// The end of the thread with this `threading.get_ident()`.
    ThreadEnd { ident: u64 },
    /// A module's import lock.
    Import { lock: Addr, module: Option<String>, owner: Option<u64> },
}

/// A wait for a signal.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    pub kind: ResourceKind,
    pub object: Addr,
    pub type_name: String,
    /// What of the object is waited for, where that is not what others wait for in health: the condition, and words.
    pub part: Option<(Addr, &'static str)>,
    /// Whether idle threads wait so.
    pub idle: bool,
}

/// One thread's wait.
#[derive(Clone, Debug)]
pub(super) struct PyWait {
    pub wanted: Wanted,
    pub timeout: bool,
    /// Whether what it waits for has happened: it has only not run since.
    pub over: bool,
    /// Index of the innermost frame that is not part of the waiting itself: where the program waits.
    pub frame: usize,
    pub evidence: Vec<String>,
}

impl PyWait {
    fn new(wanted: Wanted, frame: usize, evidence: Vec<String>) -> PyWait {
        PyWait { wanted, timeout: false, over: false, frame, evidence }
    }

    /// Says that the wait is over. It then ends by itself, like one with a time-out.
    fn ends(&mut self, why: &str) {
        (self.timeout, self.over) = (true, true);
        self.evidence.push(format!("{why}: the thread has only to run"));
    }
}

/// Bytes above the stack pointer in which a parked thread's record lies at most.
const MAX_PARK: u64 = 64 * 1024;

/// What a futex tells.
enum Asleep {
    On(Lock),
    /// On the exit event of the thread with this ident (`Thread.join` since 3.13), which this byte is.
    Exit {
        ident: u64,
        byte: Addr,
    },
}

/// How a thread was found asleep.
struct Sleeper {
    asleep: Asleep,
    how: String,
    /// Whether the parking lot has taken it off its list already.
    unparked: bool,
}

/// What the thread with this Python stack waits for, if it waits for something of Python's.
pub(super) fn wait_of(objects: &Objects<'_>, state: &ThreadState, stack: &PyStack<'_>) -> Option<PyWait> {
    let syscall = state.syscall.as_ref()?;
    let futex = futex_wait(syscall)?;
    let sleeper = asleep_on(objects, state, futex, stack)?;
    let mut wait = by_frames(objects, &stack.frames, &sleeper.asleep).unwrap_or_else(|| by_object(&sleeper.asleep));
    wait.timeout = has_timeout(syscall);
    wait.evidence.insert(0, sleeper.how.clone());
    if let Some(why) = ended(objects, &sleeper, &wait) {
        wait.ends(why);
    }
    Some(wait)
}

/// The wait for the very object a thread sleeps on.
fn by_object(asleep: &Asleep) -> PyWait {
    let wanted = match asleep {
        Asleep::On(lock) if lock.kind == LockKind::SimpleQueue => Wanted::Signal(Signal {
            kind: ResourceKind::PythonQueue,
            object: lock.addr,
            type_name: "queue.SimpleQueue".to_owned(),
            part: None,
            idle: true,
        }),
        Asleep::On(lock) => Wanted::Lock(lock.clone()),
        Asleep::Exit { ident, .. } => Wanted::ThreadEnd { ident: *ident },
    };
    PyWait::new(wanted, 0, Vec::new())
}

/// Why a wait is over though its thread still sleeps, if it is: threads are stopped one after the other, and one that has been
/// woken may not have run before it was stopped itself.
fn ended(objects: &Objects<'_>, sleeper: &Sleeper, wait: &PyWait) -> Option<&'static str> {
    if sleeper.unparked {
        return Some("the parking lot has woken it");
    }
    match &sleeper.asleep {
        Asleep::On(lock) if lock.kind == LockKind::SimpleQueue => {
            let filled = objects.simple_queue(lock.addr).is_ok_and(|items| !items.is_empty());
            return filled.then_some("there is something in the queue");
        }
        // nobody sleeps on a free lock unless it was let go of meanwhile
        Asleep::On(lock) if !lock.locked => return Some("the lock it sleeps on is free"),
        Asleep::Exit { byte, .. } if objects.memory.read_u8(*byte).is_ok_and(|b| b & EVENT_SET != 0) => {
            return Some("the thread it joins has ended");
        }
        Asleep::On(_) | Asleep::Exit { .. } => {}
    }
    match &wait.wanted {
        Wanted::Signal(signal) => signalled(objects, signal),
        Wanted::Import { owner: None, .. } => Some("nobody owns the module's lock"),
        _ => None,
    }
}

/// `_Py_ONCE_INITIALIZED`, alias the set bit of a `PyEvent` (CPython `Include/internal/pycore_lock.h`, `_Py_LOCKED`; 3.13 on).
const EVENT_SET: u8 = 1;

/// Why the object of a signal says that the wait for it is over: its state is set before its waiters are notified (CPython
/// `Lib/threading.py`, `Event.set`, `Barrier._release`; `Lib/concurrent/futures/_base.py`, `Future.set_result`; 3.8 to 3.15).
fn signalled(objects: &Objects<'_>, signal: &Signal) -> Option<&'static str> {
    let field = |name: &str| objects.attribute(signal.object, name);
    match signal.kind {
        ResourceKind::PythonEvent => {
            let set = field("_flag").is_some_and(|f| objects.is(f, "bool") && objects.int(f) == Ok(1));
            set.then_some("the event is set")
        }
        ResourceKind::PythonBarrier => {
            // 0: it waits for the others. A negative number is none that `int` reads
            let filling = field("_state").is_none_or(|s| objects.int(s) == Ok(0));
            (signal.part.is_none() && !filling).then_some("the barrier is being left")
        }
        ResourceKind::PythonFuture => {
            let state = field("_state")?;
            let done = ["FINISHED", "CANCELLED", "CANCELLED_AND_NOTIFIED"].iter().any(|s| objects.string_is(state, s));
            done.then_some("the future is done")
        }
        _ => None,
    }
}

/// The lock, or event, whose futex this is.
fn asleep_on(objects: &Objects<'_>, state: &ThreadState, futex: Addr, stack: &PyStack<'_>) -> Option<Sleeper> {
    if let Some(ParkedAt { byte, unparked, .. }) = parked_at(objects, state, futex) {
        let sleeper = |asleep, how| Some(Sleeper { asleep, how, unparked });
        let how =
            format!("its futex {futex} is the semaphore of a parking-lot entry on its own stack, for address {byte}");
        for distance in objects.o.locks.park_distances() {
            let object = Addr(byte.0.wrapping_sub(distance));
            if let Some(lock) = objects.lock(object).filter(|l| l.sleep == Some(Sleep::Parked(byte))) {
                return sleeper(Asleep::On(lock), format!("{how}, which is inside the lock at {object}"));
            }
        }
        if let Some(ident) = exit_of(objects, byte) {
            let how = format!("{how}, the exit event of the thread with ident {ident:#x}");
            return sleeper(Asleep::Exit { ident, byte }, how);
        }
        return sleeper(Asleep::On(on_stack(objects, stack, Sleep::Parked(byte))?), how);
    }
    let lock = on_stack(objects, stack, Sleep::Semaphore(futex))?;
    let how = format!("its futex {futex} is the semaphore of the lock at {}", lock.addr);
    Some(Sleeper { asleep: Asleep::On(lock), how, unparked: false })
}

/// What a thread is parked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ParkedAt {
    /// The address it is parked for.
    pub byte: Addr,
    /// Whether it parked with a record of its own, as one does who wants a mutex.
    pub by_mutex: bool,
    /// Whether it was taken off the list of those who are parked: it is about to wake.
    pub unparked: bool,
}

/// A thread's stack pointer.
pub(super) fn stack_pointer(state: &ThreadState) -> Option<u64> {
    state.registers.as_ref().and_then(|r| r.sp()).or_else(|| state.sp_pc.map(|(sp, _)| sp))
}

/// The address a thread is parked for (since 3.13), if the futex is the semaphore of a `wait_entry` on its own stack.
pub(super) fn parked_at(objects: &Objects<'_>, state: &ThreadState, futex: Addr) -> Option<ParkedAt> {
    let (addr, sema) = objects.o.locks.park?;
    let sp = stack_pointer(state)?;
    let entry = futex.0.checked_sub(sema)?;
    let on_stack = |at: u64| at >= sp && at - sp <= MAX_PARK;
    if !on_stack(entry) {
        return None;
    }
    let wanted = objects.addr(Addr(entry), addr).ok().filter(|a| !a.is_null())?;
    // whoever holds such a byte has seen the waiter: its second bit says so, or the event is not set yet
    objects.memory.read_u8(wanted).ok()?;
    let by_mutex = objects.addr(Addr(entry), 0).is_ok_and(|argument| on_stack(argument.0));
    let entry = Addr(entry);
    let unparked = objects.o.locks.hand_over.is_some_and(|(f, _)| objects.byte(entry, f) == Ok(1));
    (!is_handed_over(objects, entry)).then_some(ParkedAt { byte: wanted, by_mutex, unparked })
}

/// Whether the one who let go has handed the mutex to this waiter already: it then owns it and only has to wake up.
fn is_handed_over(objects: &Objects<'_>, entry: Addr) -> bool {
    let Some((unparking, handed)) = objects.o.locks.hand_over else { return false };
    let argument = objects.addr(entry, 0).unwrap_or(Addr::NULL);
    let is = |at: Addr, f: u64| objects.byte(at, f).is_ok_and(|b| b == 1);
    !argument.is_null() && is(entry, unparking) && is(argument, handed)
}

/// The ident of the thread whose `ThreadHandle.thread_is_exiting` is this byte.
fn exit_of(objects: &Objects<'_>, byte: Addr) -> Option<u64> {
    let (exiting, ident) = objects.o.locks.handle?;
    let handle = Addr(byte.0.checked_sub(exiting)?);
    let ident = objects.word(handle, ident).ok().filter(|i| *i != 0)?;
    // a `pthread_t` points at itself
    (objects.word(Addr(ident), PthreadT::SELF).ok()? == ident).then_some(ident)
}

/// A lock object on the value stack or among the locals of the newest frames that sleeps so. Left-overs on the stack do no
/// harm: the address decides.
fn on_stack(objects: &Objects<'_>, stack: &PyStack<'_>, sleep: Sleep) -> Option<Lock> {
    let framed = stack.frames.first()?;
    let code = framed.code.as_ref()?;
    let is_it = |at: Addr| objects.lock(at).filter(|l| l.sleep == Some(sleep));
    for word in objects.stack_words(&framed.frame, code) {
        if let Some(lock) = is_it(word) {
            return Some(lock);
        }
        // a bound method: `acquire = lock.acquire; acquire()`, or the exit method of a `with` that still waits
        if objects.is(word, "builtin_function_or_method")
            && let Some(lock) = objects.addr(word, objects.o.cfunction_self).ok().and_then(is_it)
        {
            return Some(lock);
        }
    }
    objects.locals(&framed.frame, code).into_iter().find_map(|(_, value)| is_it(value))
}

/// What the frames make of the sleep: a condition, an event, a queue… A function's name says little: it counts only where the
/// lock that the thread sleeps on is the one that the object at hand keeps for this wait.
fn by_frames(objects: &Objects<'_>, frames: &[Framed], asleep: &Asleep) -> Option<PyWait> {
    let wait = |wanted, depth, why: &str| Some(PyWait::new(wanted, outside(frames, depth), vec![why.to_owned()]));
    let top = frames.first()?;
    let lock = match asleep {
        Asleep::Exit { ident, .. } => {
            let depth = usize::from(top.is("threading.py", "join"));
            return wait(Wanted::ThreadEnd { ident: *ident }, depth, "it waits for the thread's exit event");
        }
        Asleep::On(lock) => lock,
    };
    if top.is("threading.py", "_shutdown") {
        let ident = thread_of_lock(objects, top, lock.addr)?;
        let why = "threading._shutdown waits for the thread's own lock before the interpreter ends";
        return wait(Wanted::ThreadEnd { ident }, 1, why);
    }
    let this = top.first_argument(objects)?;
    let is_its = |name: &str| objects.attribute(this, name) == Some(lock.addr);
    if top.is("threading.py", "wait") && is_its("_lock") {
        let why = "it was notified and takes the condition's lock again, in Condition.wait";
        return wait(Wanted::Lock(lock.clone()), 1, why);
    }
    if top.is("threading.py", "wait") && local(objects, top, "waiter") == Some(lock.addr) && is_condition(objects, this)
    {
        let (wanted, depth, why) = around_condition(objects, frames, this);
        return wait(wanted, depth, &why);
    }
    if top.is("threading.py", "_acquire_restore") && is_its("_lock") {
        let in_wait =
            frames.get(1).is_some_and(|f| f.is("threading.py", "wait") && f.first_argument(objects) == Some(this));
        let why = "it takes the condition's lock again, in Condition._acquire_restore";
        return wait(Wanted::Lock(lock.clone()), 1 + usize::from(in_wait), why);
    }
    if top.is("threading.py", "_wait_for_tstate_lock")
        && (is_its("_tstate_lock") || local(objects, top, "lock") == Some(lock.addr))
    {
        let ident = objects.attribute(this, "_ident").and_then(|i| objects.int(i).ok())?;
        let inside = frames.iter().skip(1).take_while(|f| f.is("threading.py", "join")).count();
        return wait(Wanted::ThreadEnd { ident }, 1 + inside, "Thread.join waits for the thread's own lock");
    }
    // its inner lock is one like others: who is inside its block has it
    if objects.is(this, "_ModuleLock") && is_its("wakeup") {
        let owner = objects.attribute(this, "owner").and_then(|o| objects.int(o).ok());
        let module = objects.attribute(this, "name").and_then(|n| objects.string(n).ok());
        let why = "it is in _ModuleLock.acquire, and sleeps on the lock's `wakeup`";
        return wait(Wanted::Import { lock: this, module, owner }, 1, why);
    }
    None
}

/// The local variable of this name.
fn local(objects: &Objects<'_>, framed: &Framed, name: &str) -> Option<Addr> {
    let locals = objects.locals(&framed.frame, framed.code.as_ref()?);
    locals.into_iter().find(|(n, _)| n == name).map(|(_, v)| v)
}

/// Up to 3.12: the ident of the thread whose `_tstate_lock` this is, looked for among the threads that `threading` keeps in
/// `_active`.
fn thread_of_lock(objects: &Objects<'_>, framed: &Framed, lock: Addr) -> Option<u64> {
    let globals = match &objects.o.frame {
        FrameLayout::Object(f) => f.globals,
        FrameLayout::Inline(f) => f.globals,
    };
    let globals = objects.addr(framed.frame.addr, globals).ok().filter(|g| !g.is_null())?;
    let entries = objects.dict(globals).ok()?;
    let (_, active) = entries.into_iter().find(|(name, _)| objects.string_is(*name, "_active"))?;
    let threads = objects.dict(active).ok()?;
    let (_, thread) = threads.into_iter().find(|(_, t)| objects.attribute(*t, "_tstate_lock") == Some(lock))?;
    objects.attribute(thread, "_ident").and_then(|i| objects.int(i).ok())
}

/// The frames of a wait on a condition: whose condition it is.
fn around_condition(objects: &Objects<'_>, frames: &[Framed], condition: Addr) -> (Wanted, usize, String) {
    let mut depth = 1;
    // Condition.wait_for
    if frames.get(depth).is_some_and(|f| f.is("threading.py", "wait_for")) {
        depth += 1;
    }
    let mut signal = Signal {
        kind: ResourceKind::PythonCondition,
        object: condition,
        type_name: "threading.Condition".to_owned(),
        part: None,
        idle: true,
    };
    let mut why = "it is in Condition.wait".to_owned();
    while let Some(framed) = frames.get(depth) {
        let Some(owner) = owner_of_condition(objects, framed, condition) else { break };
        why = format!("it is in {}, which waits on the condition at {condition}", owner.type_name);
        signal = owner;
        depth += 1;
    }
    (Wanted::Signal(signal), outside(frames, depth), why)
}

/// A method of the standard library that waits on a condition of its own object: the object must keep that very condition.
fn owner_of_condition(objects: &Objects<'_>, framed: &Framed, condition: Addr) -> Option<Signal> {
    let code = framed.code.as_ref().filter(|c| !is_installed(&c.file))?;
    let this = framed.first_argument(objects)?;
    let class = objects.type_of(this)?.name.clone();
    let has = |name: &str| objects.attribute(this, name).is_some();
    let (kind, module, field) = match (code.file_name(), code.name.as_str()) {
        ("threading.py", "wait") if has("_flag") => (ResourceKind::PythonEvent, "threading", "_cond"),
        ("threading.py", "acquire") if has("_value") => (ResourceKind::PythonSemaphore, "threading", "_cond"),
        ("threading.py", "wait" | "_wait" | "_enter") if has("_parties") => {
            (ResourceKind::PythonBarrier, "threading", "_cond")
        }
        ("queue.py", "get") => (ResourceKind::PythonQueue, "queue", "not_empty"),
        ("queue.py", "put") => (ResourceKind::PythonQueue, "queue", "not_full"),
        ("queue.py", "join") => (ResourceKind::PythonQueue, "queue", "all_tasks_done"),
        ("_base.py", "result" | "exception") => (ResourceKind::PythonFuture, "concurrent.futures", "_condition"),
        _ => return None,
    };
    if objects.attribute(this, field) != Some(condition) {
        return None;
    }
    // who waits for room, or for all to be done, waits for other calls than who waits for an item
    let part = match (kind, code.name.as_str()) {
        (ResourceKind::PythonQueue, "put") => Some((condition, "room in")),
        (ResourceKind::PythonQueue, "join") => Some((condition, "all tasks of")),
        _ => None,
    };
    let idle = part.is_none() && matches!(kind, ResourceKind::PythonQueue | ResourceKind::PythonEvent);
    Some(Signal { kind, object: this, type_name: format!("{module}.{class}"), part, idle })
}

/// The index of the program's own frame, `depth` or the last there is.
fn outside(frames: &[Framed], depth: usize) -> usize {
    depth.min(frames.len().saturating_sub(1))
}
