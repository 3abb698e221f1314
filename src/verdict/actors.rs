//! Who could end a wait: the threads that hold what is waited for, any thread of the process, the handler of a signal, or
//! something outside.
//!
//! A handler runs in a thread that waits, so it acts though all threads wait. What it may do is little: POSIX lets a C handler
//! post a semaphore (`sem_post`, signal-safety(7)) and the kernel lets it wake a futex; neither lets it unlock a mutex or signal
//! a condition variable. A handler in Python is run by the main thread between two instructions, and there it may do anything.

use super::Look;
use crate::facts::{Certainty, Holder, ResourceId, ResourceKind, Wait, Wakers};
use crate::units::{ProcessIx, ThreadRef};

/// Signals whose handlers run for what the thread itself does, or are the C library's own (32 and 33).
const RUNTIMES_OWN: u64 = bit(4) | bit(5) | bit(6) | bit(7) | bit(8) | bit(11) | bit(13) | bit(31) | bit(32) | bit(33);
/// CPython catches it for `KeyboardInterrupt`.
const SIGINT: u32 = 2;

const fn bit(signal: u32) -> u64 {
    match signal {
        1..=64 => 1 << (signal - 1),
        _ => 0,
    }
}

/// Whether the handler of a signal may end a wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Handler {
    /// There is none, or none that may act on such a thing.
    None,
    /// Nothing tells whether there is one: a core without the table of handlers.
    Unknown,
    /// A function of the program is the handler of a signal.
    Caught,
}

impl Handler {
    /// What is known of it, in a sentence without a full stop.
    pub(super) fn known(self) -> &'static str {
        match self {
            Handler::None => "no function of the program that could is the handler of a signal",
            Handler::Unknown => "whether the program has such a handler is not known here: a core does not tell",
            Handler::Caught => "functions of the program are handlers of signals, and what they do is not known",
        }
    }
}

/// Who could end `wait`, whatever they do now. `None` where nothing is known of the resource.
pub(super) fn wakers(look: &Look<'_>, wait: &Wait) -> Option<Wakers> {
    let resource = look.graph.resource(wait.on)?;
    let wakers = match resource.wakers {
        Wakers::Holders if is_anyones(look, wait.on) => Wakers::AnyThread,
        wakers => wakers,
    };
    // shared memory: any process may signal
    let shared = matches!(wait.on, ResourceId::Shared { .. });
    Some(if wakers == Wakers::AnyThread && shared { Wakers::Outside } else { wakers })
}

/// Whether others than the holder may give a lock back: where its decoder says so, and where its holder is only thought to
/// have stayed behind at a fork.
fn is_anyones(look: &Look<'_>, id: ResourceId) -> bool {
    let kind = look.graph.resource(id).map(|r| r.kind);
    // what a thread kept that the shutdown of the interpreter ended or froze was not left behind at a fork
    let deduced = |h: &crate::facts::Hold| match h.holder {
        Holder::Gone(p, _) => {
            h.certainty == Certainty::Inferred
                && kind.is_some_and(is_python_signal)
                && !look.facts.shutting_down.contains(&p)
        }
        Holder::Thread(_) | Holder::Process(_) => false,
    };
    look.facts.returnable.contains_key(&id) || look.graph.holders(id).iter().any(deduced)
}

/// Whether the handler of a signal may end `wait`, before it is asked whether the main thread could run it.
pub(super) fn handler(look: &Look<'_>, wait: &Wait) -> Handler {
    let Some(resource) = look.graph.resource(wait.on) else { return Handler::Unknown };
    if wakers(look, wait) != Some(Wakers::AnyThread) {
        return Handler::None;
    }
    match resource.kind {
        ResourceKind::Semaphore | ResourceKind::Futex => native_handler(look, wait.thread.process),
        // of an event loop's tasks SIGINT cancels the first (asyncio.Runner, since CPython 3.11)
        ResourceKind::PythonTask => python_handler(look, wait.thread.process, &[SIGINT]),
        kind if is_python_signal(kind) || is_anyones(look, wait.on) => python_handler(look, wait.thread.process, &[]),
        _ => Handler::None,
    }
}

/// Kinds that code in Python ends from wherever it runs.
fn is_python_signal(kind: ResourceKind) -> bool {
    matches!(
        kind,
        ResourceKind::PythonLock
            | ResourceKind::PythonCondition
            | ResourceKind::PythonEvent
            | ResourceKind::PythonSemaphore
            | ResourceKind::PythonQueue
            | ResourceKind::PythonBarrier
            | ResourceKind::PythonFuture
            | ResourceKind::PythonTask
    )
}

fn python_handler(look: &Look<'_>, process: ProcessIx, but: &[u32]) -> Handler {
    match look.facts.handlers.get(&process).map(|known| known.iter().all(|h| but.contains(&h.signal))) {
        Some(true) => Handler::None,
        Some(false) => Handler::Caught,
        None => Handler::Unknown,
    }
}

/// Of the signals that are caught, those that an interpreter's table names only set a flag when they come.
fn native_handler(look: &Look<'_>, process: ProcessIx) -> Handler {
    let caught = look.snapshots.get(process.0 as usize).and_then(|s| s.process.caught);
    let Some(caught) = caught else { return Handler::Unknown };
    let interpreters = look.facts.handlers.get(&process);
    let interpreters = interpreters.map_or(0, |known| known.iter().fold(bit(SIGINT), |all, h| all | bit(h.signal)));
    if caught & !RUNTIMES_OWN & !interpreters == 0 { Handler::None } else { Handler::Caught }
}

/// The thread that runs the handlers in Python of its process, if it waits where it runs none: for the GIL, or inside native
/// code that a signal does not bring back.
pub(super) fn deaf_main(look: &Look<'_>, process: ProcessIx) -> Option<ThreadRef> {
    let snapshot = look.snapshots.get(process.0 as usize)?;
    let main = snapshot.threads.iter().position(|t| t.host_tid.0 == snapshot.process.pid.0)?;
    let main = ThreadRef { process, thread: u32::try_from(main).ok()? };
    let kind = look.graph.resource(look.graph.waits.get(&main)?.on)?.kind;
    let deaf = matches!(
        kind,
        ResourceKind::Gil
            | ResourceKind::Mutex
            | ResourceKind::Rwlock
            | ResourceKind::Condvar
            | ResourceKind::Once
            | ResourceKind::StaticInitGuard
            | ResourceKind::LoaderLock
            | ResourceKind::LoaderWriteLock
            | ResourceKind::LoaderTlsLock
    );
    deaf.then_some(main)
}

/// Whether a wait for this is one that work arrives on: from outside, or out of a queue. A thread that waits so is at rest.
pub(super) fn is_for_work(look: &Look<'_>, wait: &Wait) -> bool {
    let Some(resource) = look.graph.resource(wait.on) else { return false };
    match resource.kind {
        ResourceKind::PythonQueue => resource.idle,
        _ => resource.idle && resource.wakers == Wakers::Outside,
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::Made;
    use super::*;
    use crate::facts::SignalHandler;

    #[test]
    fn a_handler_in_c_may_post_a_semaphore_and_no_more() {
        for (kind, may) in [
            (ResourceKind::Semaphore, true),
            (ResourceKind::Futex, true),
            (ResourceKind::Condvar, false),
            (ResourceKind::Mutex, false),
        ] {
            let mut made = Made::new();
            let t = made.thread(1, "t");
            let s = made.resource(kind, "", 0x10);
            made.waits(t, s);
            let said = |made: &Made| made.looked(|look| handler(look, &look.graph.waits[&t]));
            let or_none = |h| if may { h } else { Handler::None };
            assert_eq!(said(&made), Handler::None, "{kind:?}: nothing is caught");
            made.caught = None;
            assert_eq!(said(&made), or_none(Handler::Unknown), "{kind:?}");
            made.caught = Some(bit(14));
            assert_eq!(said(&made), or_none(Handler::Caught), "{kind:?}");
            made.caught = Some(bit(11) | bit(32) | bit(33));
            assert_eq!(said(&made), Handler::None, "{kind:?}: faults, and the C library's own");
        }
    }

    #[test]
    fn an_interpreters_signals_wake_no_semaphore() {
        let mut made = Made::new();
        let t = made.thread(1, "t");
        let s = made.resource(ResourceKind::Semaphore, "", 0x10);
        made.waits(t, s);
        made.caught = Some(bit(SIGINT) | bit(10));
        let said = |made: &Made| made.looked(|look| handler(look, &look.graph.waits[&t]));
        assert_eq!(said(&made), Handler::Caught);
        made.facts.handlers.insert(t.process, vec![SignalHandler { signal: 10, function: None }]);
        assert_eq!(said(&made), Handler::None);
        made.facts.handlers.insert(t.process, Vec::new());
        assert_eq!(said(&made), Handler::Caught, "10 is not the interpreter's");
    }
}
