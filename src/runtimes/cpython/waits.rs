//! What each Python thread waits for: first the lock its futex tells, then what the frames around make of it.

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
    /// Index of the innermost frame that is not part of the waiting itself: where the program waits.
    pub frame: usize,
    pub evidence: Vec<String>,
}

impl PyWait {
    fn is_about_to_end(&mut self) {
        self.timeout = true;
        self.evidence.push("it has been woken already, and has only to run".to_owned());
    }
}

/// Bytes above the stack pointer in which a parked thread's record lies at most.
const MAX_PARK: u64 = 64 * 1024;

/// What a futex tells.
enum Asleep {
    On(Lock),
    /// On the exit event of the thread with this ident (`Thread.join` since 3.13).
    Exit(u64),
}

/// What the thread with this Python stack waits for, if it waits for something of Python's.
pub(super) fn wait_of(objects: &Objects<'_>, state: &ThreadState, stack: &PyStack<'_>) -> Option<PyWait> {
    let syscall = state.syscall.as_ref()?;
    let futex = futex_wait(syscall)?;
    let (asleep, how) = asleep_on(objects, state, futex, stack)?;
    let timeout = has_timeout(syscall);
    let frames = &stack.frames;
    if let Some(mut wait) = by_frames(objects, frames, &asleep) {
        wait.timeout = timeout;
        wait.evidence.insert(0, how);
        // the lock of its own that it sleeps on is free: it has been woken, and has only to run
        if matches!(&asleep, Asleep::On(lock) if lock.kind == LockKind::Lock && !lock.locked) {
            wait.is_about_to_end();
        }
        return Some(wait);
    }
    match asleep {
        Asleep::On(lock) if lock.kind == LockKind::SimpleQueue => {
            let wanted = Wanted::Signal(Signal {
                kind: ResourceKind::PythonQueue,
                object: lock.addr,
                type_name: "queue.SimpleQueue".to_owned(),
                part: None,
                idle: true,
            });
            let mut wait = PyWait { wanted, timeout, frame: 0, evidence: vec![how] };
            if objects.simple_queue(lock.addr).is_ok_and(|items| !items.is_empty()) {
                wait.is_about_to_end();
            }
            Some(wait)
        }
        Asleep::On(lock) => Some(PyWait { wanted: Wanted::Lock(lock), timeout, frame: 0, evidence: vec![how] }),
        Asleep::Exit(ident) => {
            Some(PyWait { wanted: Wanted::ThreadEnd { ident }, timeout, frame: 0, evidence: vec![how] })
        }
    }
}

/// The lock, or event, whose futex this is.
fn asleep_on(objects: &Objects<'_>, state: &ThreadState, futex: Addr, stack: &PyStack<'_>) -> Option<(Asleep, String)> {
    if let Some(ParkedAt { byte, .. }) = parked_at(objects, state, futex) {
        let how =
            format!("its futex {futex} is the semaphore of a parking-lot entry on its own stack, for address {byte}");
        for distance in objects.o.locks.park_distances() {
            let object = Addr(byte.0.wrapping_sub(distance));
            if let Some(lock) = objects.lock(object).filter(|l| l.sleep == Some(Sleep::Parked(byte))) {
                return Some((Asleep::On(lock), format!("{how}, which is inside the lock at {object}")));
            }
        }
        if let Some(ident) = exit_of(objects, byte) {
            return Some((Asleep::Exit(ident), format!("{how}, the exit event of the thread with ident {ident:#x}")));
        }
        if let Some(lock) = on_stack(objects, stack, Sleep::Parked(byte)) {
            return Some((Asleep::On(lock), how));
        }
        return None;
    }
    let lock = on_stack(objects, stack, Sleep::Semaphore(futex))?;
    let how = format!("its futex {futex} is the semaphore of the lock at {}", lock.addr);
    Some((Asleep::On(lock), how))
}

/// What a thread is parked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ParkedAt {
    /// The address it is parked for.
    pub byte: Addr,
    /// Whether it parked with a record of its own, as one does who wants a mutex.
    pub by_mutex: bool,
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
    (!is_handed_over(objects, Addr(entry))).then_some(ParkedAt { byte: wanted, by_mutex })
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

/// What the frames make of the sleep: a condition, an event, a queue…
fn by_frames(objects: &Objects<'_>, frames: &[Framed], asleep: &Asleep) -> Option<PyWait> {
    let wait = |wanted, frame, why: String| Some(PyWait { wanted, timeout: false, frame, evidence: vec![why] });
    let top = frames.first()?;
    if let Asleep::On(lock) = asleep
        && top.is("threading.py", "_shutdown")
    {
        let ident = thread_of_lock(objects, top, lock.addr)?;
        let why = "threading._shutdown waits for the thread's own lock before the interpreter ends".to_owned();
        return wait(Wanted::ThreadEnd { ident }, outside(frames, 1), why);
    }
    let this = top.first_argument(objects)?;
    let kind = objects.type_of(this)?;
    match asleep {
        Asleep::On(lock) if top.is("threading.py", "wait") && kind.name == "Condition" => {
            if objects.attribute(this, "_lock") == Some(lock.addr) {
                let why = "it was notified and takes the condition's lock again, in Condition.wait".to_owned();
                return wait(Wanted::Lock(lock.clone()), outside(frames, 1), why);
            }
            let (wanted, depth, why) = around_condition(objects, frames, this);
            wait(wanted, depth, why)
        }
        Asleep::On(lock) if top.is("threading.py", "_acquire_restore") => {
            let why = "it takes the condition's lock again, in Condition._acquire_restore".to_owned();
            wait(Wanted::Lock(lock.clone()), outside(frames, 1), why)
        }
        Asleep::On(_) if top.is("threading.py", "_wait_for_tstate_lock") => {
            let ident = objects.attribute(this, "_ident").and_then(|i| objects.int(i).ok())?;
            let inside = frames.iter().skip(1).take_while(|f| f.is("threading.py", "join")).count();
            let depth = outside(frames, 1 + inside);
            wait(Wanted::ThreadEnd { ident }, depth, "Thread.join waits for the thread's own lock".to_owned())
        }
        Asleep::Exit(ident) if top.is("threading.py", "join") => {
            wait(Wanted::ThreadEnd { ident: *ident }, outside(frames, 1), "it is in Thread.join".to_owned())
        }
        Asleep::On(_) if kind.name == "_ModuleLock" => {
            let owner = objects.attribute(this, "owner").and_then(|o| objects.int(o).ok());
            let module = objects.attribute(this, "name").and_then(|n| objects.string(n).ok());
            let why = "it is in _ModuleLock.acquire".to_owned();
            wait(Wanted::Import { lock: this, module, owner }, outside(frames, 1), why)
        }
        _ => None,
    }
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

/// A method of the standard library that waits on a condition of its own object.
fn owner_of_condition(objects: &Objects<'_>, framed: &Framed, condition: Addr) -> Option<Signal> {
    let code = framed.code.as_ref()?;
    let this = framed.first_argument(objects)?;
    let class = objects.type_of(this)?.name.clone();
    let (kind, module) = match (code.file_name(), code.name.as_str(), class.as_str()) {
        ("threading.py", "wait", "Event") => (ResourceKind::PythonEvent, "threading"),
        ("threading.py", "acquire", "Semaphore" | "BoundedSemaphore") => (ResourceKind::PythonSemaphore, "threading"),
        ("threading.py", "wait" | "_wait" | "_enter", "Barrier") => (ResourceKind::PythonBarrier, "threading"),
        ("queue.py", "get" | "put" | "join", _) => (ResourceKind::PythonQueue, "queue"),
        ("_base.py", "result" | "exception", "Future") => (ResourceKind::PythonFuture, "concurrent.futures"),
        _ => return None,
    };
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
