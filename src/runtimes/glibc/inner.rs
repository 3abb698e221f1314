//! libc's own locks: those of files, of the allocator, of `pthread_once`, and bare words without an owner.

use super::classify::{Found, Scene};
use super::frames::{self, Frames, Innermost};
use super::{heap_of, objects};
use crate::facts::{Certainty, Evidence, Hold, Holder, Mode, Reentrancy, ResourceId, ResourceKind};
use crate::memory::MemoryExt;
use crate::runtimes::futex::{FutexWait, Op};
use crate::units::{Addr, FrameIx};
use std::collections::HashMap;

/// Threads inside functions that keep a lock.
#[derive(Default)]
pub(super) struct Families {
    /// By the lock's family; ascending.
    inside: HashMap<&'static str, Vec<Inside>>,
    /// Whether there are threads that may hold one though it does not show.
    unseen: bool,
}

/// A thread inside functions of a family.
struct Inside {
    thread: usize,
    /// The outermost frame by which it may hold a lock of the family.
    keeps: Option<FrameIx>,
    /// The outermost frame of the family among those that a signal's handler interrupted.
    interrupted: Option<FrameIx>,
    /// Whether it takes the family's locks one after the other (`fork`): which of them it has while it sleeps does not show.
    doubtful: bool,
}

/// Whether a thread sleeps as for one of libc's own locks (glibc `sysdeps/nptl/lowlevellock.h`).
fn is_inner_wait(futex: &FutexWait) -> bool {
    futex.op == Op::Wait && futex.private && futex.value == 2
}

/// Words of `pthread_once` that are looked for on all stacks at most.
const MAX_ONCE_WORDS: usize = 64;

impl Scene<'_> {
    /// A lock of glibc that records its owner as a `struct pthread` pointer: a `FILE`'s, the list of files', `exit`'s.
    pub(super) fn io_lock(&self, futex: &FutexWait, frames: &Frames<'_>) -> Option<Found> {
        if !is_inner_wait(futex) {
            return None;
        }
        let (owner, _) = objects::io_lock(self.view.memory, self.decoder.layouts.io_lock?, futex.at, &self.owners)?;
        let file = self.file_of(futex.at);
        let exit = frames.meanings().any(|(_, s)| s.means.word("kind") == Some("exit-lock"));
        let (kind, name) = match file {
            Some(name) => (ResourceKind::StdioLock, Some(name)),
            None if exit && self.in_libc(futex.at) => (ResourceKind::ExitLock, Some("exit's lock".to_owned())),
            None if self.in_libc(futex.at) => (ResourceKind::StdioLock, Some("stdio's list of files".to_owned())),
            None => (ResourceKind::LibcLock, None),
        };
        let id = self.at(futex.at);
        let mut resource = self.resource(id, kind, futex.at);
        resource.name = name.or(resource.name);
        resource.reentrancy = Reentrancy::Recursive;
        let evidence =
            format!("the owner pointer of the lock at {} is the pthread_t of thread {}", futex.at, self.tid(owner));
        let hold = Hold {
            holder: Holder::Thread(self.view.thread(owner)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(evidence)],
        };
        let hold = self.once_for_all(id, || Some(self.placed_by_kind(hold, "stdio-lock")));
        Some(
            Found::new(resource)
                .because(format!("the futex is a lock with an owner pointer at {}", futex.at))
                .held(hold),
        )
    }

    /// The outermost frame of the holder inside a function of this kind of lock.
    fn placed_by_kind(&self, mut hold: Hold, kind: &str) -> Hold {
        if let Holder::Thread(thread) = hold.holder {
            let frames = Frames::of(self.view, usize::try_from(thread.thread).unwrap_or(usize::MAX));
            hold.taken_at =
                frames.all_meanings().filter(|(_, s)| s.means.word("kind") == Some(kind)).last().map(|(ix, _)| ix);
        }
        hold
    }

    /// The `FILE` a lock belongs to: a standard stream, or one `fopen` allocated together with its lock.
    fn file_of(&self, lock: Addr) -> Option<String> {
        let file = self.decoder.layouts.file?;
        let lock_of = |at: Addr| file.field("_lock")?.read_addr(self.view.memory, at).ok();
        if let Some((_, name)) = self.decoder.streams.iter().find(|(at, _)| lock_of(*at) == Some(lock)) {
            return Some((*name).to_owned());
        }
        let pair = self.decoder.layouts.locked_file?;
        let at = Addr(lock.0.checked_sub(pair.offset("lock")?)?);
        if lock_of(at) != Some(lock) {
            return None;
        }
        let number = file.field("_fileno")?.read(self.view.memory, at).ok()?;
        Some(if number >= 0 { format!("the FILE of fd {number}") } else { format!("the FILE at {at}") })
    }

    /// A malloc arena's lock.
    pub(super) fn arena(&self, futex: &FutexWait) -> Option<Found> {
        let (text, main) = self.arena_at(futex)?;
        let mut resource = self.resource(self.at(futex.at), ResourceKind::AllocatorLock, futex.at);
        let name = if main { "malloc's main arena".to_owned() } else { format!("malloc's arena at {}", futex.at) };
        resource.name = Some(name);
        resource.reentrancy = Reentrancy::Plain;
        let hold = self.by_family(futex, resource.id, "malloc");
        Some(Found::new(resource).because(text).held(hold))
    }

    /// Whether the futex is a malloc arena's lock, by its place at the start of a heap that points back at it, or by the empty
    /// bins that follow it, which point at themselves: how it is known, and whether it is the main arena.
    fn arena_at(&self, futex: &FutexWait) -> Option<(String, bool)> {
        if !is_inner_wait(futex) {
            return None;
        }
        let by_heap = || {
            let heap = heap_of(futex.at)?;
            let layout = self.decoder.layouts.heap?;
            let back = layout.field("ar_ptr")?.read_addr(self.view.memory, heap).ok()?;
            let fits = futex.at.0 - heap.0 == layout.offset("arena")? && back == futex.at;
            fits.then(|| format!("the futex is the mutex of the malloc arena of the heap at {heap}"))
        };
        let by_bins = || {
            let bins = self.in_libc(futex.at) && objects::bins_follow(self.view.memory, futex.at);
            bins.then(|| format!("the futex at {} is the mutex of malloc's main arena: its bins follow it", futex.at))
        };
        by_heap().map(|text| (text, false)).or_else(|| Some((by_bins()?, true)))
    }

    fn seen_in(&self, frames: &Frames<'_>) -> String {
        match frames.name(frames.edge()) {
            Some(name) => format!("the thread is inside {name} (frame {})", frames.edge().0),
            None => format!("the thread is inside libc (frame {})", frames.edge().0),
        }
    }

    /// Whether an address lies in libc's own data.
    fn in_libc(&self, at: Addr) -> bool {
        let snapshot = self.view.snapshot;
        let of_module = |name: &str| frames::is_libc(name) || name.starts_with("libpthread");
        if let Some((_, module)) = snapshot.module_at(at) {
            return of_module(module.name());
        }
        // .bss: the nameless mapping right behind the file's last
        let Some(mapping) = snapshot.mapping_at(at).filter(|m| m.path.is_none()) else { return false };
        snapshot.modules.iter().any(|m| m.end == mapping.start && of_module(m.name()))
    }

    /// One of libc's inner locks: a bare word without an owner, named by the functions that wait for it.
    pub(super) fn inner_lock(&self, futex: &FutexWait, frames: &Frames<'_>) -> Option<Found> {
        if !is_inner_wait(futex) || !self.in_libc(futex.at) {
            return None;
        }
        let signature = frames.meanings().map(|(_, s)| s).find(|s| s.means.word("family").is_some());
        let kind = match signature.and_then(|s| s.means.word("kind")) {
            Some("allocator-lock") => ResourceKind::AllocatorLock,
            Some("stdio-lock") => ResourceKind::StdioLock,
            Some("atfork-lock") => ResourceKind::AtforkLock,
            Some("exit-lock") => ResourceKind::ExitLock,
            _ => ResourceKind::LibcLock,
        };
        let mut resource = self.resource(self.at(futex.at), kind, futex.at);
        resource.reentrancy = Reentrancy::Plain;
        if let Some(name) = signature.and_then(|s| s.means.word("name")) {
            resource.name = Some(name.to_owned());
        }
        let family = signature.and_then(|s| s.means.word("family"));
        let hold = family.and_then(|family| self.by_family(futex, resource.id, family));
        let text = format!("the futex is a lock without an owner field in libc's data at {}", futex.at);
        Some(Found::new(resource).because(text).because(self.seen_in(frames)).held(hold))
    }

    /// The one thread that can hold the lock at this word, by elimination.
    fn by_family(&self, futex: &FutexWait, of: ResourceId, family: &str) -> Option<Hold> {
        self.once_for_all(of, || self.find_by_family(futex, of, family))
    }

    /// The one thread that is inside a function of the family, beneath what it sleeps for: a thread that sleeps for one lock of
    /// a family holds none of it by the function it sleeps in. While threads are at work inside libc, one of them may hold it
    /// unseen: then only one of these is believed, which goes on by itself.
    fn find_by_family(&self, futex: &FutexWait, of: ResourceId, family: &str) -> Option<Hold> {
        // let go of since the waiter fell asleep, and the waiter not woken yet
        if self.view.memory.read_u32(futex.at) == Ok(0) {
            return None;
        }
        let families = self.families();
        let mut inside = families.inside.get(family).into_iter().flatten().filter_map(|i| {
            let waits_here = self.futexes.get(i.thread).copied().flatten().is_some_and(|f| f.at == futex.at);
            Some((i, if waits_here { i.interrupted } else { i.keeps }?, waits_here))
        });
        let (holder, at, waits_here) = inside.next()?;
        let at_work = self.may_hold_unseen(holder.thread);
        if inside.next().is_some() || !at_work && (families.unseen || holder.doubtful) {
            return None;
        }
        let holder = holder.thread;
        let name = Frames::of(self.view, holder).name(at);
        let name = name.as_deref().unwrap_or("libc");
        let (tid, ix) = (self.tid(holder), at.0);
        let text = if waits_here {
            format!("inferred: a signal handler of thread {tid} interrupted its {name} (frame {ix})")
        } else {
            format!("inferred: thread {tid} is the only other one inside such a function: {name} (frame {ix})")
        };
        Some(Hold {
            holder: Holder::Thread(self.view.thread(holder)),
            of,
            mode: Mode::Exclusive,
            certainty: Certainty::Inferred,
            taken_at: Some(at),
            taken_at_managed: None,
            evidence: vec![Evidence::new(text)],
        })
    }

    /// Who is inside functions of which family: all threads are looked through once, however many locks are waited for.
    fn families(&self) -> &Families {
        self.families.get_or_init(|| {
            let threads = 0..self.view.snapshot.threads.len();
            let mut families = Families {
                unseen: self.view.snapshot.unlisted || threads.clone().any(|t| self.may_hold_unseen(t)),
                ..Families::default()
            };
            for thread in threads {
                self.note_families(thread, &mut families.inside);
            }
            families
        })
    }

    /// Whether a thread may hold one of libc's locks though no function tells: it is in libc and not asleep, where functions
    /// without names call one another and take locks and give them back, or nobody knows where it is.
    fn may_hold_unseen(&self, thread: usize) -> bool {
        let Some(state) = self.view.snapshot.threads.get(thread) else { return true };
        if matches!(state.state, Some('Z' | 'X' | 'x')) || self.view.syscall(thread).is_some() {
            return false;
        }
        let frames = Frames::of(self.view, thread);
        state.registers.is_none() || frames.inside() > 0 || frames.innermost(self.decoder.dynamic) == Innermost::Unknown
    }

    fn note_families(&self, thread: usize, families: &mut HashMap<&'static str, Vec<Inside>>) {
        let frames = Frames::of(self.view, thread);
        let asleep_for = self.family_slept_for(thread, &frames);
        let calls_back = frames.interrupted_from().min(frames.inside());
        let mut note = |family: &'static str, ix: FrameIx, doubtful: bool| {
            let list = families.entry(family).or_default();
            if list.last().is_none_or(|i: &Inside| i.thread != thread) {
                list.push(Inside { thread, keeps: None, interrupted: None, doubtful: false });
            }
            let Some(inside) = list.last_mut() else { return };
            let outside = usize::try_from(ix.0).is_ok_and(|ix| ix >= calls_back);
            if outside || asleep_for != Some(family) || doubtful {
                inside.keeps = Some(ix);
                inside.doubtful |= doubtful;
            }
        };
        for (ix, signature) in frames.all_meanings() {
            if let Some(family) = signature.means.word("family") {
                note(family, ix, false);
            }
            // how many of them it has by now does not show
            for family in signature.means.words("takes in turn") {
                note(family, ix, true);
            }
        }
        for (ix, signature) in frames.interrupted_meanings() {
            if let Some(family) = signature.means.word("family")
                && let Some(inside) = families.get_mut(family).and_then(|l| l.last_mut()).filter(|i| i.thread == thread)
            {
                inside.interrupted = Some(ix);
            }
        }
    }

    /// The family of the inner lock a thread sleeps for.
    fn family_slept_for(&self, thread: usize, frames: &Frames<'_>) -> Option<&'static str> {
        let futex = self.futexes.get(thread).copied().flatten()?;
        if !is_inner_wait(&futex) {
            return None;
        }
        if self.arena_at(&futex).is_some() {
            return Some("malloc");
        }
        frames.meanings().find_map(|(_, s)| s.means.word("family")).filter(|_| self.in_libc(futex.at))
    }

    /// `pthread_once` in progress elsewhere: the holder is the thread whose libc frames still carry the same word.
    pub(super) fn once(&self, futex: &FutexWait, innermost: Innermost) -> Option<Found> {
        // bit 0: in progress, bit 1: done; the rest counts forks (glibc nptl/pthread_once.c)
        let in_progress = futex.op == Op::Wait && futex.private && !futex.timed() && futex.value & 3 == 1;
        // the word alone says too little: 1 is many a program's own lock, but none that libc sleeps on
        let now = self.view.memory.read_u32(futex.at).ok()?;
        if !in_progress || now != futex.value || innermost != Innermost::Libc {
            return None;
        }
        let id = self.at(futex.at);
        let mut resource = self.resource(id, ResourceKind::Once, futex.at);
        resource.reentrancy = Reentrancy::Plain;
        let hold = self.once_for_all(id, || self.initialiser(futex.at, id));
        let text = format!("the futex is a pthread_once_t in progress at {}", futex.at);
        Some(Found::new(resource).because(text).held(hold))
    }

    /// The one thread whose libc frames carry a once word while they run the program's initialiser.
    fn initialiser(&self, word: Addr, of: ResourceId) -> Option<Hold> {
        if self.once_words.replace(self.once_words.get() + 1) >= MAX_ONCE_WORDS {
            return None;
        }
        let waits_here = |thread: &usize| self.futexes.get(*thread).copied().flatten().is_some_and(|f| f.at == word);
        let mut found = (0..self.view.snapshot.threads.len())
            .filter(|thread| !waits_here(thread))
            .filter_map(|thread| Some((thread, Frames::of(self.view, thread).carried_by_libc(word)?)));
        let (holder, at) = found.next()?;
        if found.next().is_some() {
            return None;
        }
        let tid = self.tid(holder);
        let text =
            format!("thread {tid} runs its initialiser: libc's frame {} still carries the once word {word}", at.0);
        Some(Hold {
            holder: Holder::Thread(self.view.thread(holder)),
            of,
            mode: Mode::Exclusive,
            certainty: Certainty::Witnessed,
            taken_at: Some(at),
            taken_at_managed: None,
            evidence: vec![Evidence::new(text)],
        })
    }
}
