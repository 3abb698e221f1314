//! Threads that the end of the interpreter has frozen: since 3.13.8 or so a daemon thread that asks for the GIL after the
//! interpreter has begun to end sleeps for ever in `pause()` (CPython `Python/thread_pthread.h`, `PyThread_hang_thread`). Its
//! thread state is unlinked and freed. It does not wait for the GIL, and what it holds is never let go.

use super::facts::Telling;
use super::gil::strip_clone;
use super::locks::LockKind;
use super::waits::Wanted;
use crate::facts::{
    Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait,
    Wakers,
};
use crate::units::{FrameIx, Tid};
use std::collections::BTreeSet;

/// `pause` on x86-64 (Linux `arch/x86/entry/syscalls/syscall_64.tbl`).
const PAUSE: u64 = 34;
/// Frames from the innermost in which such a thread shows what it was about.
const MAX_FRAMES: usize = 16;
/// Functions that take the GIL. Stripped interpreters still name the first four.
const TAKES: &[&str] = &[
    "PyEval_RestoreThread",
    "PyGILState_Ensure",
    "PyEval_AcquireThread",
    "PyThread_hang_thread",
    "take_gil",
    "_PyEval_AcquireLock",
    "_PyThreadState_Attach",
];

impl Telling<'_> {
    /// Tells of frozen threads, and that nobody lets go of what they hold.
    pub(super) fn tell_frozen(&self, facts: &mut Facts) {
        let finalizing = self.o.runtime_finalizing.and_then(|f| self.objects.addr(self.found.runtime, f).ok());
        let Some(by) = finalizing.filter(|t| !t.is_null()) else { return };
        facts.shutting_down.insert(self.view.process);
        let frozen: BTreeSet<usize> =
            (0..self.view.snapshot.threads.len()).filter(|i| !self.scene.stacks.contains_key(i)).collect();
        let frozen: Vec<(usize, FrameIx, String)> =
            frozen.into_iter().filter_map(|i| self.taking_for_ever(i).map(|(f, n)| (i, f, n))).collect();
        if frozen.is_empty() {
            // up to 3.13.5 such threads end instead, with what they hold
            self.tell_kept_for_ever(&[], facts);
            return;
        }
        let id = ResourceId::Numbered(self.view.process, ResourceKind::Signal, PAUSE);
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::Signal,
            name: Some("the end of the process (frozen by interpreter shutdown)".to_owned()),
            address: None,
            reentrancy: Reentrancy::Unknown,
            wakers: Wakers::Outside,
            idle: true,
        });
        for (index, frame, function) in &frozen {
            facts.waits.push(Wait {
                thread: self.thread(*index),
                on: id,
                mode: Mode::Exclusive,
                timeout: Timeout::None,
                frame: *frame,
                managed_frame: None,
                evidence: vec![Evidence::new(format!(
                    "it sleeps in pause() under {function}, has no thread state any more, and _PyRuntime._finalizing is the \
                     thread state {by}: the interpreter froze it when it asked for the GIL"
                ))],
            });
        }
        for hold in &mut facts.holds {
            if let Holder::Thread(t) = hold.holder
                && let Some((index, ..)) = frozen.iter().find(|(i, ..)| self.thread(*i) == t)
            {
                hold.holder = Holder::Gone(self.view.process, self.tid(*index));
                hold.evidence.push(Evidence::new("that thread is frozen by the shutdown of the interpreter"));
            }
        }
        self.tell_kept_for_ever(&frozen.iter().map(|(i, ..)| *i).collect::<Vec<_>>(), facts);
    }

    /// Where only one thread is left that is not frozen, nobody lets go of a lock it waits for.
    fn tell_kept_for_ever(&self, frozen: &[usize], facts: &mut Facts) {
        let rest: Vec<usize> = (0..self.view.snapshot.threads.len()).filter(|i| !frozen.contains(i)).collect();
        let [last] = rest.as_slice() else { return };
        let Some(wait) = self.scene.waits.get(last).filter(|w| !w.timeout) else { return };
        let Wanted::Lock(lock) = &wait.wanted else { return };
        let id = self.at(lock.addr);
        if lock.kind != LockKind::Lock || !lock.locked || facts.holds.iter().any(|h| h.of == id) {
            return;
        }
        let tid = match frozen {
            [one] => self.tid(*one),
            _ => Tid(0),
        };
        facts.holds.push(Hold {
            holder: Holder::Gone(self.view.process, tid),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Inferred,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!(
                "the lock at {} is taken, thread {} waits for it, the interpreter is shutting down, and {}",
                lock.addr,
                self.tid(*last),
                if frozen.is_empty() { "no other thread is left" } else { "every other thread is frozen by that" }
            ))],
        });
    }

    /// The function under which a thread sleeps in `pause()`, if that function takes the GIL, and its frame.
    fn taking_for_ever(&self, index: usize) -> Option<(FrameIx, String)> {
        if self.view.syscall(index)?.number != Some(PAUSE) {
            return None;
        }
        let stack = self.view.stacks.get(index)?;
        stack.frames.iter().enumerate().take(MAX_FRAMES).find_map(|(i, frame)| {
            let at = FrameIx(u32::try_from(i).ok()?);
            if self.loops.contain(frame.pc.lookup()) {
                return Some((at, "the evaluation loop".to_owned()));
            }
            let (symbol, _) = self.view.snapshot.function_at(frame.pc)?;
            let name = strip_clone(&symbol.name);
            TAKES.contains(&name).then(|| (at, name.to_owned()))
        })
    }
}
