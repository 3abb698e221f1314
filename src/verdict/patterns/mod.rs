//! Patterns: what kind of mistake a hang is, why nobody can go on, and what to change. One file each.
//!
//! A pattern looks at a cycle (or an orphan, or a stalled chain) and at the frames between taking and waiting; it never
//! makes or breaks one. Several may fit: the first of [`ALL`] that does is told. Its order is from the most particular to
//! the most general:
//!
//! 1. `fork-inherited-lock`, then `dead-owner` speak of orphans;
//! 2. `pipe-full`, then `peer-wait` by pipes that stay empty, then `pool-self-wait`, before all others that speak of cycles: who should do the work waits for it;
//! 3. `signal-handler-relock`, `finalizer-relock`, then `non-reentrant-relock` speak of cycles of one: what interrupted the
//!    critical section before what called out of it;
//! 4. `import-cycle`, then `gil-held-across-wait` before `join-while-holding`: with the GIL held, the GIL is what to let go of;
//! 5. `gpu-wait` of cycles through the device; then `callback-under-lock` before `lock-order-inversion`: where the lock is held by an API that calls back, the callback is
//!    what to change; otherwise the order is;
//! 6. `lost-wakeup-suspected`, `io-wait`, `peer-wait`, `gpu-wait` speak of stalled chains;
//! 7. `other` fits everything.

mod callback_under_lock;
mod dead_owner;
mod finalizer_relock;
mod fork_inherited;
mod gil_held_across_wait;
mod import_cycle;
mod join_while_holding;
mod lock_order_inversion;
mod loop_self_wait;
mod lost_result;
mod lost_wakeup;
mod non_reentrant_relock;
mod other;
mod outside_wait;
mod pipe_full;
mod pipe_silent;
mod pool_self_wait;
mod signal_handler_relock;
mod terminal_stop;

use super::{Component, Look, Voice, plain};
use crate::facts::{Certainty, Entered, Hold, ManagedFrame, Mode, ResourceId, ResourceKind, Wait};
use crate::graph::Step;
use crate::units::{FrameIx, ThreadRef, Tid};

/// One pattern.
pub struct Pattern {
    /// The contract's word.
    pub word: &'static str,
    /// Recognises it and tells it.
    pub tell: fn(&Scene<'_>) -> Option<Story>,
}

/// Every pattern, most particular first.
pub const ALL: &[Pattern] = &[
    fork_inherited::PATTERN,
    dead_owner::PATTERN,
    pipe_full::PATTERN,
    pipe_silent::PATTERN,
    pool_self_wait::PATTERN,
    signal_handler_relock::PATTERN,
    finalizer_relock::PATTERN,
    non_reentrant_relock::PATTERN,
    import_cycle::PATTERN,
    gil_held_across_wait::PATTERN,
    outside_wait::GPU_CYCLE,
    join_while_holding::PATTERN,
    callback_under_lock::PATTERN,
    lock_order_inversion::PATTERN,
    lost_result::PATTERN,
    terminal_stop::PATTERN,
    lost_wakeup::PATTERN,
    outside_wait::GPU,
    outside_wait::PEER,
    outside_wait::IO,
    other::PATTERN,
];

/// What a pattern says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Story {
    /// Why nobody can go on. Sentences.
    pub explanation: String,
    /// What to change. Sentences.
    pub advice: String,
    /// Whose doing it is, where one thread is to be named.
    pub culprit: Option<ThreadRef>,
}

/// What there is to recognise.
#[derive(Clone, Copy)]
pub enum Shape<'a> {
    /// A cycle, one step per thread.
    Cycle(&'a [Step]),
    /// A lock whose owner does not exist.
    Orphan {
        /// The lock.
        resource: ResourceId,
        /// Who held it, where that is recorded.
        owner: Tid,
        /// Who waits for it.
        waiters: &'a [ThreadRef],
    },
    /// A chain of waits that ends in a thread that does not move.
    Chain {
        /// That thread.
        root: ThreadRef,
        /// What it holds and others wait for, most waited for first. Empty where it is in the way of nobody.
        holds: &'a [ResourceId],
        /// How many wait behind it.
        behind: usize,
        /// The threads that only one another could wake, where it is one of such.
        closed: Option<&'a Component>,
    },
}

/// A shape and everything needed to tell its story.
pub struct Scene<'a> {
    /// The instant.
    pub look: &'a Look<'a>,
    /// How things are called.
    pub voice: &'a Voice<'a>,
    /// What there is to recognise.
    pub shape: Shape<'a>,
    /// Holds deduced by elimination.
    pub inferred: &'a [Hold],
}

impl<'a> Scene<'a> {
    /// The first pattern that fits, and its story.
    #[must_use]
    pub fn told(&self) -> (&'static str, Story) {
        let first = ALL.iter().find_map(|p| (p.tell)(self).map(|story| (p.word, story)));
        first.unwrap_or_else(|| ("other", Story { explanation: String::new(), advice: String::new(), culprit: None }))
    }

    /// The steps of a cycle; none for other shapes.
    #[must_use]
    pub fn steps(&self) -> &'a [Step] {
        match self.shape {
            Shape::Cycle(steps) => steps,
            Shape::Orphan { .. } | Shape::Chain { .. } => &[],
        }
    }

    /// The steps with the resource each one's thread holds: what the step before it waits for.
    pub fn holding(&self) -> impl Iterator<Item = (Step, ResourceId)> + '_ {
        let steps = self.steps();
        steps.iter().enumerate().filter_map(|(i, s)| {
            let before = steps.get((i + steps.len() - 1) % steps.len().max(1))?;
            Some((*s, before.waits_for))
        })
    }

    /// A resource's kind.
    #[must_use]
    pub fn kind(&self, id: ResourceId) -> ResourceKind {
        self.look.graph.resource(id).map_or(ResourceKind::Unknown, |r| r.kind)
    }

    /// A thread's wait.
    #[must_use]
    pub fn wait(&self, t: ThreadRef) -> Option<&'a Wait> {
        self.look.graph.waits.get(&t)
    }

    /// The hold of `id` by `t`, a decoder's or a deduced one.
    #[must_use]
    pub fn hold(&self, id: ResourceId, t: ThreadRef) -> Option<&'a Hold> {
        let deduced = || self.inferred.iter().find(|h| h.of == id && h.holder == crate::facts::Holder::Thread(t));
        self.look.graph.hold(id, t).or_else(deduced)
    }

    /// That of the weakest hold of the cycle.
    #[must_use]
    pub fn certainty(&self) -> Certainty {
        let each =
            self.steps().iter().map(|s| self.hold(s.waits_for, s.held_by).map_or(Certainty::Inferred, |h| h.certainty));
        each.min().unwrap_or(Certainty::Inferred)
    }

    /// The native frame of `t`, outside the frame that waits, whose symbol is one of `names`; the innermost such.
    #[must_use]
    pub fn caller_named(&self, t: ThreadRef, names: &[&str]) -> Option<FrameIx> {
        let after = self.wait(t).map_or(0, |w| w.frame.0);
        let frames = self.voice.stack(t)?.frames.len();
        (after..u32::try_from(frames).ok()?)
            .map(FrameIx)
            .find(|f| self.voice.symbol(t, *f).is_some_and(|s| names.contains(&s.as_str())))
    }

    /// What `dl_iterate_phdr`, `dlopen` and their like called on `t`: the frame just inside `api`, by its name where it has
    /// one. Frames of `api`'s own module are passed over.
    #[must_use]
    pub fn called_back(&self, t: ThreadRef, api: FrameIx) -> Option<String> {
        let own = self.voice.module(t, api);
        let least = self.wait(t).map_or(0, |w| w.frame.0);
        let frames = self.voice.managed(t).map_or(&[][..], |m| m.frames.as_slice());
        if let Some(entered) = frames.iter().rev().find(|f| f.native.is_some_and(|n| least <= n.0 && n < api)) {
            return Some(format!("the Python function {}", place(entered)));
        }
        // the foreign function interfaces: what they call is Python, even where its frame does not stand yet
        let inside = |prefix: &str| {
            let mut frames = (least..api.0).map(FrameIx);
            frames.any(|f| self.voice.module(t, f).is_some_and(|m| m.starts_with(prefix)))
        };
        for (interface, prefix) in [("ctypes", "_ctypes."), ("cffi", "_cffi_backend.")] {
            if inside(prefix) {
                return Some(format!("a Python function called through {interface}"));
            }
        }
        (least..api.0).rev().map(FrameIx).find_map(|f| {
            let module = self.voice.module(t, f);
            if module == own || module.as_deref().is_some_and(is_loader) {
                return None;
            }
            match (self.voice.symbol(t, f), module) {
                (Some(name), Some(module)) => Some(format!("{name} ({module})")),
                (Some(name), None) => Some(name),
                (None, Some(module)) => Some(format!("a function of {module}")),
                (None, None) => Some("generated code".to_owned()),
            }
        })
    }

    /// The innermost Python frame of `t` as `function (file:line)`.
    #[must_use]
    pub fn python_place(&self, t: ThreadRef) -> Option<String> {
        self.voice.managed(t)?.frames.first().map(place)
    }

    /// Where `t` waits, as a person would say it: its innermost Python frame if that lies within its innermost native frame
    /// that is neither library nor interpreter, else that frame.
    #[must_use]
    pub fn waiting_place(&self, t: ThreadRef) -> Option<String> {
        let wait = self.wait(t)?;
        let index = wait.managed_frame.unwrap_or(0) as usize;
        let python = self.voice.managed(t).and_then(|m| m.frames.get(index));
        let Some(python) = python else { return self.voice.own_place(t, wait.frame) };
        let runs = python.native?;
        let library = |m: &str| {
            ["lib", "ld-"].iter().any(|l| m.starts_with(l))
                && ["libc.so", "libc-2", "libpthread", "ld-", "libdl", "libstdc++", "libc++", "libpython", "libffi"]
                    .iter()
                    .any(|l| m.starts_with(l))
                || m.starts_with("python")
                || m.starts_with("_ctypes.")
        };
        let own = (wait.frame.0..runs.0).map(FrameIx).find(|f| !self.voice.module(t, *f).is_none_or(|m| library(&m)));
        own.and_then(|f| self.voice.place(t, f)).or_else(|| Some(place(python)))
    }

    /// The Python frame that took `hold`, as `function (file:line)`.
    #[must_use]
    pub fn taken_place(&self, hold: &Hold) -> Option<String> {
        let crate::facts::Holder::Thread(t) = hold.holder else { return None };
        let taken = hold.taken_at_managed?;
        let mut frame = self.voice.managed(t)?.frames.get(taken.frame as usize)?.clone();
        frame.line = taken.line.or(frame.line);
        Some(place(&frame))
    }

    /// In a cycle of one: the frames between where the thread waits and where it took the lock, innermost first. Python's by
    /// value, native ones by index. Empty where nothing shows the taking.
    #[must_use]
    pub fn between(&self, step: &Step) -> (Vec<&'a ManagedFrame>, Vec<FrameIx>) {
        let (Some(wait), Some(hold)) = (self.wait(step.thread), self.hold(step.waits_for, step.thread)) else {
            return (Vec::new(), Vec::new());
        };
        let frames = self.voice.managed(step.thread).map_or(&[][..], |m| m.frames.as_slice());
        let taken = hold.taken_at_managed.map(|t| t.frame as usize);
        let first = wait.managed_frame.map_or(0, |f| f as usize);
        let python: Vec<&ManagedFrame> = match taken {
            Some(taken) => frames.get(first + 1..taken).unwrap_or_default().iter().collect(),
            None => Vec::new(),
        };
        // where only the interpreter's frame took it, the native frame that runs it bounds the native ones
        let outer = hold.taken_at.or_else(|| frames.get(taken?)?.native);
        let native = outer.map_or_else(Vec::new, |o| (wait.frame.0.saturating_add(1)..o.0).map(FrameIx).collect());
        (python, native)
    }

    /// In a cycle of one: the Python frame, from the one that waits to just inside the one that took the lock, that was
    /// entered without being called, and how.
    #[must_use]
    pub fn entered(&self, step: &Step) -> Option<(Entered, &'a ManagedFrame)> {
        let (wait, hold) = (self.wait(step.thread)?, self.hold(step.waits_for, step.thread)?);
        let from = wait.managed_frame? as usize;
        let frames = self.voice.managed(step.thread)?.frames.get(from..hold.taken_at_managed?.frame as usize)?;
        frames.iter().find_map(|f| Some((f.entered?, f)))
    }

    /// What a person would call the frames between: `seed_all, lazy_init`; bounded.
    #[must_use]
    pub fn between_told(&self, step: &Step) -> String {
        let (python, native) = self.between(step);
        let mut names: Vec<String> = python.iter().map(|f| plain(&f.function)).collect();
        if names.is_empty() {
            names = native.iter().filter_map(|f| self.voice.own_name(step.thread, *f)).collect();
        }
        names.dedup();
        match names.len() {
            0 => String::new(),
            1..=4 => format!(" Between the two: {}.", lock_order_inversion::list(&names)),
            n => format!(
                " Between the two: {} and {} more.",
                names.iter().take(3).cloned().collect::<Vec<_>>().join(", "),
                n - 3
            ),
        }
    }

    /// `Thread 402 holds _lock, which it took in lazy_call (cuda.py:31), and takes it again in lazy_call (cuda.py:31).`
    #[must_use]
    pub fn twice(&self, step: &Step) -> String {
        let voice = self.voice;
        let hold = self.hold(step.waits_for, step.thread);
        let taken = hold.and_then(|h| self.taken_place(h).or_else(|| voice.own_function(step.thread, h.taken_at?)));
        let taken = taken.map(|p| format!(", which it took in {p},")).unwrap_or_default();
        let again =
            self.waiting_place(step.thread).map_or_else(|| " a second time".to_owned(), |p| format!(" again in {p}"));
        format!(
            "{} holds {}{}{taken} and takes it{again}.{}",
            super::voice::capital(&voice.thread(step.thread)),
            voice.thing(step.waits_for),
            self.doubt(step.waits_for, step.thread),
            self.between_told(step),
        )
    }

    /// ` (inferred)` where the hold is; nothing where it is proven. For the middle of a sentence.
    #[must_use]
    pub fn doubt(&self, id: ResourceId, t: ThreadRef) -> &'static str {
        match self.hold(id, t).map(|h| h.certainty) {
            Some(Certainty::Recorded | Certainty::Witnessed) => "",
            Some(Certainty::Inferred) | None => " (inferred)",
        }
    }

    /// `thread 402 “MainThread” holds the GIL and waits for ipc_import_mutex`, step by step, as one sentence.
    #[must_use]
    pub fn round(&self) -> String {
        self.parts().join(", ")
    }

    /// The first part of [`Scene::round`].
    #[must_use]
    pub fn beginning(&self) -> String {
        self.parts().into_iter().next().unwrap_or_default()
    }

    fn parts(&self) -> Vec<String> {
        self.holding()
            .map(|(step, holds)| {
                let who = self.voice.thread(step.thread);
                let waits = self.voice.waits(step.waits_for) + &self.voice.in_device_call(step.thread);
                match self.kind(holds) {
                    // nobody "holds" his own end or a signal he might give
                    ResourceKind::ThreadExit
                    | ResourceKind::PythonThread
                    | ResourceKind::PythonFuture
                    | ResourceKind::ProcessExit
                    | ResourceKind::Pipe => {
                        format!("{who} {waits}")
                    }
                    kind if is_device(kind) => format!("the GPU waits for a callback in {who}, which {waits}"),
                    _ if self.signals(step.thread, holds) => match self.alike(holds) {
                        0 | 1 => format!("{who} could signal it but {waits}"),
                        n => format!("any of {n} threads could signal it, {who} among them, but {waits}"),
                    },
                    _ => {
                        format!("{who} {}{} and {waits}", self.voice.holds(&[holds]), self.doubt(holds, step.thread))
                    }
                }
            })
            .collect()
    }

    /// How many threads could as well be the one that ends the wait for `id`.
    #[must_use]
    pub fn alike(&self, id: ResourceId) -> usize {
        self.inferred.iter().filter(|h| h.of == id).count()
    }

    /// Whether `t` is not the holder of `id` but one who could end the wait for it.
    #[must_use]
    pub fn signals(&self, t: ThreadRef, id: ResourceId) -> bool {
        self.look.graph.hold(id, t).is_none() && self.hold(id, t).is_some_and(|h| h.mode == Mode::Any)
    }
}

/// The thread of the process that is the owner of an orphaned lock: one that lives, but that the shutdown of the interpreter
/// has frozen.
pub(in crate::verdict) fn frozen(voice: &Voice<'_>, waiter: ThreadRef, owner: Tid) -> Option<ThreadRef> {
    let index = voice.snapshot(waiter)?.threads.iter().position(|t| t.tid == owner)?;
    Some(ThreadRef { process: waiter.process, thread: u32::try_from(index).ok()? })
}

/// `function (file.py:88)`; of the path the last part.
pub(super) fn place(frame: &ManagedFrame) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or(&frame.file);
    let line = frame.line.map(|l| format!(":{l}")).unwrap_or_default();
    format!("{} ({}{line})", plain(&frame.function), plain(file))
}

/// Whether a module is the dynamic loader.
pub(super) fn is_loader(module: &str) -> bool {
    module.starts_with("ld-")
        || module.starts_with("ld.so")
        || module.starts_with("libdl.so")
        || module.starts_with("libdl-")
}

/// Whether a kind is something one thread takes and gives back: a lock of any make.
#[must_use]
pub fn is_lock(kind: ResourceKind) -> bool {
    matches!(
        kind,
        ResourceKind::Gil
            | ResourceKind::LoaderLock
            | ResourceKind::LoaderWriteLock
            | ResourceKind::LoaderTlsLock
            | ResourceKind::Mutex
            | ResourceKind::Rwlock
            | ResourceKind::Once
            | ResourceKind::StaticInitGuard
            | ResourceKind::Spinlock
            | ResourceKind::AllocatorLock
            | ResourceKind::StdioLock
            | ResourceKind::AtforkLock
            | ResourceKind::ExitLock
            | ResourceKind::LibcLock
            | ResourceKind::PythonLock
            | ResourceKind::PythonRlock
            | ResourceKind::PythonMutex
            | ResourceKind::PythonImportLock
            | ResourceKind::PythonIoLock
            | ResourceKind::PythonStopTheWorld
            | ResourceKind::FileLock
    )
}

/// Whether a kind is the end of a thread or a process: nobody lets go of that.
#[must_use]
pub fn is_end(kind: ResourceKind) -> bool {
    matches!(kind, ResourceKind::ThreadExit | ResourceKind::PythonThread | ResourceKind::ProcessExit)
}

/// Whether a kind is a device's: something a GPU does.
#[must_use]
pub fn is_device(kind: ResourceKind) -> bool {
    matches!(kind, ResourceKind::GpuSignal | ResourceKind::GpuQueue | ResourceKind::GpuStream)
}

/// Whether a kind is one of the loader's locks.
#[must_use]
pub fn is_loader_lock(kind: ResourceKind) -> bool {
    matches!(kind, ResourceKind::LoaderLock | ResourceKind::LoaderWriteLock | ResourceKind::LoaderTlsLock)
}

/// Whether a wait for this kind is for another thread to have done something, rather than for a lock.
#[must_use]
pub fn is_rendezvous(kind: ResourceKind) -> bool {
    matches!(
        kind,
        ResourceKind::ThreadExit
            | ResourceKind::PythonThread
            | ResourceKind::Condvar
            | ResourceKind::Semaphore
            | ResourceKind::Barrier
            | ResourceKind::Futex
            | ResourceKind::PythonCondition
            | ResourceKind::PythonEvent
            | ResourceKind::PythonSemaphore
            | ResourceKind::PythonQueue
            | ResourceKind::PythonBarrier
            | ResourceKind::PythonFuture
            | ResourceKind::PythonTask
            | ResourceKind::WorkerPool
    )
}
