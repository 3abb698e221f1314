//! Other things glibc sleeps on: read-write locks, condition variables, semaphores, barriers, `FILE` locks.
//!
//! Each reader is given the futex a thread sleeps on and says what stands there, or nothing. A word that could be two
//! things is claimed by neither unless the fields around it agree.

use super::owners::{Owner, Owners};
use crate::layout::{StructImage, StructLayout};
use crate::memory::{Memory, MemoryExt};
use crate::runtimes::futex::{FutexWait, Op};
use crate::units::{Addr, PAGE};

/// A read-write lock and how the thread waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rwlock {
    /// Where it lies.
    pub at: Addr,
    /// The tid of the thread that holds it for writing; 0: none.
    pub writer: i32,
    /// How many hold it for reading, as far as the words tell.
    pub readers: u32,
    /// Whether the waiting thread wants to read.
    pub wants_to_read: bool,
    /// Whether it may be shared between processes.
    pub shared: bool,
    /// Whether the word slept on may change without waking the sleeper, and has not come to what wakes it.
    pub sleeps_on: bool,
}

/// `readers`: a reader phase is over, a writer phase is on.
const WRPHASE: u32 = 1;
/// `readers`: a writer holds it or is the first to wait.
const WRLOCKED: u32 = 2;
/// `readers`: readers that are not counted sleep on this word until writers are done, where writers are preferred.
const RWAITING: u32 = 4;
/// `readers`: where the count of readers begins.
const READER_SHIFT: u32 = 3;

impl Rwlock {
    /// Reads the lock a sleeper waits for: readers sleep on the word at +8, writers on +12, or on +8 once they are first
    /// and wait for readers to leave. Where writers are preferred, readers sleep at +0 before a writer that waits for other
    /// readers. Source: glibc nptl/pthread_rwlock_common.c.
    pub fn read(
        memory: &(impl Memory + ?Sized),
        layout: &StructLayout,
        futex: &FutexWait,
        owners: &Owners,
    ) -> Option<Rwlock> {
        if layout.field("__readers").is_none() {
            return Rwlock::read_before_2_25(memory, layout, futex, owners);
        }
        // since 2.25 only with an absolute limit, or none: a bitset wait
        if futex.op != Op::WaitBitset {
            return None;
        }
        let word = match (futex.at.0.is_multiple_of(8), futex.value) {
            (true, 2..=3) => "__wrphase_futex",
            (false, 3) => "__writers_futex",
            (true, r) if r & (WRPHASE | WRLOCKED | RWAITING) == WRLOCKED | RWAITING && r >> READER_SHIFT > 0 => {
                "__readers"
            }
            _ => return None,
        };
        let base = Addr(futex.at.0.checked_sub(layout.offset(word)?)?);
        let image = layout.read(memory, base)?;
        let read = |field: &str| u32::try_from(image.word(field)?).ok();
        let (readers, writers) = (read("__readers")?, read("__writers")?);
        let (phase, queue) = (read("__wrphase_futex")?, read("__writers_futex")?);
        let writer = image.int("__cur_writer")?;
        let count = readers >> READER_SHIFT;
        let sane = plain_rwlock(&image)?
            && phase <= 3
            && queue <= 3
            && count < MAX_USERS
            && writers & 0x7fff_ffff < MAX_USERS
            && (writer == 0 || readers & WRLOCKED != 0 && owners.by_tid(writer).is_some());
        let writer_phase = readers & WRPHASE != 0;
        let locked = readers & WRLOCKED != 0;
        // once the word has changed, the thread has been woken and what it slept for may be gone
        let changed = futex.changed_word(memory);
        let (wants_to_read, fits) = match (word, futex.value) {
            // a reader waits for the writer phase to end, registered in the count
            ("__wrphase_futex", 3) => (true, writer_phase && count > 0),
            // the first writer waits for the writer phase to begin
            ("__wrphase_futex", _) => (false, locked),
            // further writers wait for the first; they are counted only where writers are preferred
            ("__writers_futex", _) => (false, locked),
            // a reader lets writers go first, not registered in the count
            _ => (true, image.word("__flags")? != 0),
        };
        let wants_on = word == "__readers" && !writer_phase && locked && readers & RWAITING != 0 && count > 0;
        let readers = if writer_phase { 0 } else { count };
        (sane && (fits || changed)).then_some(Rwlock {
            at: base,
            writer,
            readers,
            wants_to_read,
            shared: !futex.private,
            sleeps_on: wants_on,
        })
    }

    fn read_before_2_25(
        memory: &(impl Memory + ?Sized),
        layout: &StructLayout,
        futex: &FutexWait,
        owners: &Owners,
    ) -> Option<Rwlock> {
        let wants_to_read = futex.at.0.is_multiple_of(8);
        let word = if wants_to_read { "__readers_wakeup" } else { "__writer_wakeup" };
        let base = Addr(futex.at.0.checked_sub(layout.offset(word)?)?);
        let image = layout.read(memory, base)?;
        let word = |field: &str| u32::try_from(image.word(field)?).ok();
        let queued = word(if wants_to_read { "__nr_readers_queued" } else { "__nr_writers_queued" })?;
        let (readers, writer) = (word("__nr_readers")?, image.int("__cur_writer")?);
        let held = if writer == 0 { readers > 0 } else { readers == 0 && owners.by_tid(writer).is_some() };
        let sane = plain_rwlock(&image)? && word("__lock")? <= 2 && (1..MAX_USERS).contains(&queued) && held;
        (sane && readers < MAX_USERS).then_some(Rwlock {
            at: base,
            writer,
            readers,
            wants_to_read,
            shared: !futex.private,
            sleeps_on: false,
        })
    }
}

/// Readers, writers or waiters of one object we believe.
const MAX_USERS: u32 = 1 << 20;

/// What both rwlock layouts have in common: small `__flags` and `__shared`.
fn plain_rwlock(image: &StructImage<'_>) -> Option<bool> {
    let shared = image.int("__shared")?;
    Some(image.word("__flags")? <= 2 && matches!(shared, 0 | 1 | 0x80))
}

/// Bytes of a waiter's stack searched for its `[condition][mutex]` pair; met at 0x08 (2.23) to 0xc8 (2.43).
pub(super) const PAIR_SEARCH: u64 = 0x400;

/// Where the condition variable lies if `futex` is one of its words, one answer for each layout.
pub(super) fn condvar_bases<'a>(
    layouts: &'a [&'a StructLayout],
    futex: &'a FutexWait,
) -> impl Iterator<Item = (Addr, &'a StructLayout)> {
    layouts.iter().filter_map(|layout| {
        let word = match (layout.offset("__g_signals"), layout.offset("__futex")) {
            // two groups of waiters, one word each; the object is aligned to 8 bytes
            (Some(signals), _) => signals + futex.at.0 % 8,
            (None, Some(word)) => word,
            _ => return None,
        };
        let base = Addr(futex.at.0.checked_sub(word)?);
        base.0.is_multiple_of(8).then_some((base, *layout))
    })
}

/// The adjacent words `[base][pointer]` on a stack from `sp` upwards: (bytes above `sp`, base, pointer). The waiting
/// function keeps them for the case of its thread's cancellation (glibc nptl/pthread_cond_wait.c, `cbuffer`).
pub(super) fn find_pairs(memory: &(impl Memory + ?Sized), sp: Addr, bases: &[Addr]) -> Vec<(u64, Addr, Addr)> {
    let words = stack_words(memory, sp);
    let pairs = words.iter().zip(words.iter().skip(1)).enumerate();
    pairs
        .filter(|(_, (base, _))| bases.contains(base))
        .map(|(i, (base, other))| (8 * i as u64, *base, *other))
        .collect()
}

/// The words on a stack from `sp` upwards, as many as [`PAIR_SEARCH`] holds; fewer near the stack's end.
pub(super) fn stack_words(memory: &(impl Memory + ?Sized), sp: Addr) -> Vec<Addr> {
    let to_page_end = PAGE - sp.0 % PAGE;
    let lengths = [PAIR_SEARCH, PAIR_SEARCH.min(to_page_end)];
    let read = |len: &u64| memory.read_vec(sp, usize::try_from(*len).ok()?).ok();
    let bytes = lengths.iter().find_map(read).unwrap_or_default();
    bytes.chunks_exact(8).filter_map(|w| Some(Addr(u64::from_le_bytes(w.try_into().ok()?)))).collect()
}

/// Whether the words at `base` can be a condition variable somebody waits on.
pub(super) fn condvar_plausible(memory: &(impl Memory + ?Sized), layout: &StructLayout, base: Addr) -> bool {
    let plausible = || {
        let image = layout.read(memory, base)?;
        let word = |field: &str| image.word(field);
        if layout.field("__futex").is_some() {
            let waiters = word("__nwaiters")? >> 1;
            let (total, woken) = (word("__total_seq")?, word("__woken_seq")?);
            return Some(word("__lock")? <= 2 && (1..u64::from(MAX_USERS)).contains(&waiters) && woken < total);
        }
        let wrefs = word("__wrefs")?;
        // bit 2: being destroyed; waiters are counted from bit 3
        let waiters = wrefs >> 3;
        // both sequences count in steps of two, bit 0 tells the group; g1 begins before what was handed out
        let (wseq, g1_start) = (word("__wseq")? >> 1, word("__g1_start")? >> 1);
        let lock = word("__g1_orig_size")? & 3;
        Some((1..u64::from(MAX_USERS)).contains(&waiters) && g1_start <= wseq && wseq > 0 && lock <= 2)
    };
    plausible().unwrap_or(false)
}

/// A semaphore: where it lies, its value and how many wait. Source: glibc nptl/sem_waitcommon.c (64-bit atomics).
pub(super) fn semaphore(
    memory: &(impl Memory + ?Sized),
    layout: &StructLayout,
    futex: &FutexWait,
) -> Option<(Addr, u32, u32)> {
    if futex.value != 0 || futex.op != Op::WaitBitset || !futex.at.0.is_multiple_of(8) {
        return None;
    }
    let image = layout.read(memory, futex.at)?;
    let word = |field: &str| u32::try_from(image.word(field)?).ok();
    let (value, waiters, private) = (word("value")?, word("nwaiters")?, image.int("private")?);
    // private is the flag xored into futex operations: 0 private, 128 shared
    let sane = (1..MAX_USERS).contains(&waiters) && private == if futex.private { 0 } else { 0x80 };
    (sane && i32::try_from(value).is_ok()).then_some((futex.at, value, waiters))
}

/// A barrier as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Barrier {
    /// Where it lies.
    pub at: Addr,
    /// How many have arrived in this round.
    pub here: u32,
    /// How many it takes.
    pub count: u32,
    /// Whether the round that the thread sleeps for is over.
    pub passed: bool,
}

/// A barrier. Source: glibc nptl/pthread_barrier_wait.c.
pub(super) fn barrier(memory: &(impl Memory + ?Sized), layout: &StructLayout, futex: &FutexWait) -> Option<Barrier> {
    if futex.op != Op::Wait || futex.timed() {
        return None;
    }
    let base = Addr(futex.at.0.checked_sub(layout.offset("current_round")?)?);
    let image = layout.read(memory, base)?;
    let word = |field: &str| u32::try_from(image.word(field)?).ok();
    let (arrived, round, count, out) = (word("in")?, word("current_round")?, word("count")?, word("out")?);
    let here = arrived.checked_sub(round)?;
    let shared = image.int("shared")? == if futex.private { 0 } else { 0x80 };
    let passed = futex.value != round;
    // how many it takes to pass is what rounds count by
    let rounds = [round, futex.value].iter().all(|r| r.checked_rem(count) == Some(0));
    let sane = (passed || (1..count).contains(&here)) && here <= count && count < MAX_USERS && out <= arrived;
    (sane && shared && rounds).then_some(Barrier { at: base, here, count, passed })
}

/// The condition variable whose waiters a thread waits for, to destroy it: it sleeps on `__wrefs`, where bit 2 says that it is
/// being destroyed and the waiters are counted from bit 3. Source: glibc nptl/pthread_cond_destroy.c, since 2.25.
pub(super) fn destroyed_condvar<'a>(
    layouts: &'a [&'a StructLayout],
    futex: &'a FutexWait,
) -> impl Iterator<Item = (Addr, &'a StructLayout)> {
    let waits = futex.op == Op::Wait && !futex.timed() && futex.value & 4 != 0 && (8..MAX_USERS).contains(&futex.value);
    layouts.iter().filter(move |_| waits).filter_map(|layout| {
        let base = Addr(futex.at.0.checked_sub(layout.offset("__wrefs")?)?);
        base.0.is_multiple_of(8).then_some((base, *layout))
    })
}

/// Whether threads that sleep on a condition of before 2.25 have been woken: some signals were sent that nobody has taken
/// yet. Its word counts waits, too, and so changes under those who sleep on. Source: glibc 2.17 to 2.24
/// nptl/pthread_cond_wait.c.
pub(super) fn old_condvar_signalled(
    memory: &(impl Memory + ?Sized),
    layout: &StructLayout,
    base: Addr,
) -> Option<bool> {
    layout.field("__futex")?;
    let image = layout.read(memory, base)?;
    Some(image.word("__wakeup_seq")? > image.word("__woken_seq")?)
}

/// The lock of a `FILE`, of the list of all, or of `exit`: a word, a depth and a pointer to the owner's `struct pthread`.
/// Gives the owner's thread and the depth field. Source: glibc sysdeps/nptl/stdio-lock.h.
pub(super) fn io_lock(
    memory: &(impl Memory + ?Sized),
    layout: &StructLayout,
    at: Addr,
    owners: &Owners,
) -> Option<(usize, i32)> {
    let image = layout.read(memory, at)?;
    let word = image.word("lock")?;
    let depth = image.int("cnt")?;
    let owner = owners.by_pthread(Addr(image.word("owner")?))?;
    ((1..=2).contains(&word) && (0..1 << 16).contains(&depth)).then_some((owner, depth))
}

/// Bytes of a `malloc_state` looked at: its bins lie within, in every version from 2.23 to 2.43.
pub(super) const ARENA: u64 = 0x880;

/// Whether an arena's bins follow the lock at `at`: an empty bin is two pointers to itself, inside the arena, and of 127
/// bins most are empty. Source: glibc malloc/malloc.c struct malloc_state, malloc_init_state.
pub(super) fn bins_follow(memory: &(impl Memory + ?Sized), at: Addr) -> bool {
    const EMPTY: usize = 64;
    let Ok(bytes) = memory.read_vec(at, ARENA as usize) else { return false };
    let words: Vec<u64> = bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?))).collect();
    let inside = |word: &u64| (at.0..at.0.saturating_add(ARENA)).contains(word);
    words.iter().zip(words.iter().skip(1)).filter(|(a, b)| a == b && inside(a)).count() >= EMPTY
}

/// The tid whose end a join waits for: the futex is the joined thread's own `tid` field, or its `joinstate` where the
/// layout has one. Source: glibc nptl/pthread_join_common.c.
pub(super) fn joined(
    memory: &(impl Memory + ?Sized),
    layout: &StructLayout,
    futex: &FutexWait,
    owners: &Owners,
) -> Option<(Addr, Owner)> {
    let (field, value) = match layout.field("joinstate") {
        Some(field) => (field, None),
        None => (layout.field("tid")?, Some(futex.value)),
    };
    let base = Addr(futex.at.0.checked_sub(field.offset)?);
    let tid = super::owners::own_tid(memory, layout, base);
    if let Some(value) = value {
        let expected = i32::try_from(value).ok().filter(|v| *v > 0)?;
        if tid.is_some_and(|tid| tid != expected) {
            return None;
        }
        let by_base = owners.by_pthread(base).map(Owner::Thread);
        // the struct was not read: a known pthread_t, or nothing
        let owner = by_base.or_else(|| tid.and_then(|_| owners.by_tid(expected)))?;
        return Some((base, owner));
    }
    // joinable is 2, exiting 1 (glibc nptl/descr.h, since 2.43)
    if !(1..=2).contains(&futex.value) {
        return None;
    }
    let owner = owners.by_pthread(base).map(Owner::Thread).or_else(|| tid.and_then(|tid| owners.by_tid(tid)))?;
    Some((base, owner))
}
