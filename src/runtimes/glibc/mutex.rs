//! `pthread_mutex_t`: does it stand here, of which kind is it, who owns it.

use crate::facts::Reentrancy;
use crate::layout::StructLayout;
use crate::memory::Memory;
use crate::runtimes::futex::{FutexWait, Op};
use crate::units::Addr;

/// A mutex as it stands in memory. Made only where the bytes read as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mutex {
    /// Where it lies.
    pub at: Addr,
    /// The futex word.
    pub lock: u32,
    /// How often a recursive one is held.
    pub count: u32,
    /// The owner field; 0: nobody.
    pub owner: i32,
    /// Holders and condition waiters.
    pub users: u32,
    kind: u32,
}

const KIND_TYPE: u32 = 0x3;
const RECURSIVE: u32 = 1;
const ERRORCHECK: u32 = 2;
const ADAPTIVE: u32 = 3;
const ROBUST: u32 = 0x10;
const PRIO_INHERIT: u32 = 0x20;
const PRIO_PROTECT: u32 = 0x40;
const PSHARED: u32 = 0x80;
/// Elision on and off. The second is set on robust, PI, PP and shared mutexes by 2.18 to 2.42 and means nothing here.
const ELISION: u32 = 0x300;

const FUTEX_WAITERS: u32 = 0x8000_0000;
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;
const FUTEX_TID_MASK: u32 = 0x3fff_ffff;
/// Where a priority-protected mutex keeps its ceiling in the word.
const PP_CEILING_SHIFT: u32 = 19;
/// Holders and condition waiters of one mutex we believe.
const MAX_USERS: u32 = 1 << 20;

/// Where a mutex may begin if `at` points at it, or at its kind.
pub(super) fn starts(layout: &StructLayout, at: Addr) -> impl Iterator<Item = Addr> + use<> {
    let kind = layout.offset("__kind").and_then(|offset| at.0.checked_sub(offset)).map(Addr);
    [Some(at), kind].into_iter().flatten().filter(|at| !at.is_null() && at.0.is_multiple_of(8))
}

impl Mutex {
    /// Reads the mutex at `at`; `None` where the bytes are no mutex's.
    ///
    /// Beyond what each field may be, fields must agree: an owner implies a locked word and a user, a depth implies a
    /// recursive kind, list links a robust one. Source: glibc nptl/pthread_mutex_lock.c, pthread_mutex_init.c.
    pub fn read(memory: &(impl Memory + ?Sized), layout: &StructLayout, at: Addr) -> Option<Mutex> {
        if !at.0.is_multiple_of(8) {
            return None;
        }
        let image = layout.read(memory, at)?;
        let word = |field: &str| u32::try_from(image.word(field)?).ok();
        let mutex = Mutex {
            at,
            lock: word("__lock")?,
            count: word("__count")?,
            owner: image.int("__owner")?,
            users: word("__nusers")?,
            kind: word("__kind")? & !ELISION,
        };
        let linked = image.word("__list.prev")? != 0 || image.word("__list.next")? != 0;
        let spins = image.value("__spins")?;
        (mutex.plausible() && (!linked || mutex.is(ROBUST)) && (spins == 0 || mutex.kind & KIND_TYPE == ADAPTIVE))
            .then_some(mutex)
    }

    fn plausible(&self) -> bool {
        let known = KIND_TYPE | ROBUST | PRIO_INHERIT | PRIO_PROTECT | PSHARED;
        if self.kind & !known != 0 || self.is(PRIO_INHERIT) && self.is(PRIO_PROTECT) || self.users > MAX_USERS {
            return false;
        }
        let counts = self.is(ROBUST) || self.is(PRIO_INHERIT) || self.kind & KIND_TYPE == RECURSIVE;
        if !counts && self.count != 0 || self.count > MAX_USERS || self.owner < 0 {
            return false;
        }
        if self.owner_in_word() {
            // the owner field follows the word, and may lag behind it
            return true;
        }
        let state = if self.is(PRIO_PROTECT) { self.lock & ((1 << PP_CEILING_SHIFT) - 1) } else { self.lock };
        let held = state == 1 || state == 2;
        if self.owner == 0 {
            state <= 2
        } else {
            held && self.users > 0 && (self.kind & KIND_TYPE != RECURSIVE || self.count > 0)
        }
    }

    fn is(&self, flag: u32) -> bool {
        self.kind & flag != 0
    }

    fn owner_in_word(&self) -> bool {
        self.is(ROBUST) || self.is(PRIO_INHERIT)
    }

    /// The tid of the holder; `None` where it is free, or taken this very moment and not yet signed.
    pub fn holder(&self) -> Option<i32> {
        if self.owner_in_word() {
            let tid = self.lock & FUTEX_TID_MASK;
            return i32::try_from(tid).ok().filter(|tid| *tid != 0);
        }
        (self.owner != 0).then_some(self.owner)
    }

    /// Whether its last owner died holding it, and nobody took it since (robust mutexes only).
    pub fn owner_died(&self) -> bool {
        self.owner_in_word() && self.lock & FUTEX_OWNER_DIED != 0 && self.lock & FUTEX_TID_MASK == 0
    }

    /// Whether the kernel lends the holder its waiters' priority, and so knows who waits for whom.
    pub fn is_priority_inheriting(&self) -> bool {
        self.is(PRIO_INHERIT)
    }

    /// Whether it survives its owner's end: it names its owner in the word that threads sleep on.
    pub fn is_robust(&self) -> bool {
        self.is(ROBUST)
    }

    /// Whether processes may share it.
    pub fn may_be_shared(&self) -> bool {
        self.is(PSHARED) || self.is(ROBUST)
    }

    /// Where the holder is written, for evidence.
    pub fn holder_field(&self) -> &'static str {
        if self.owner_in_word() { "the word" } else { "`__owner`" }
    }

    /// Whether a thread that sleeps so can be one that waits for this mutex.
    pub fn fits(&self, futex: &FutexWait) -> bool {
        // robust waits are never private
        if futex.at != self.at || self.may_be_shared() == futex.private {
            return false;
        }
        match futex.op {
            Op::LockPi | Op::WaitRequeuePi => self.is(PRIO_INHERIT),
            Op::Wait | Op::WaitBitset if self.is(PRIO_INHERIT) => false,
            Op::Wait | Op::WaitBitset if self.is(ROBUST) => {
                futex.value & FUTEX_WAITERS != 0 && futex.value & FUTEX_TID_MASK != 0
            }
            // a plain lock sleeps on a bitset only with a time limit (pthread_mutex_timedlock)
            Op::WaitBitset if !futex.timed() => false,
            Op::Wait | Op::WaitBitset if self.is(PRIO_PROTECT) => {
                futex.value & ((1 << PP_CEILING_SHIFT) - 1) == 2
                    && futex.value >> PP_CEILING_SHIFT == self.lock >> PP_CEILING_SHIFT
            }
            Op::Wait | Op::WaitBitset => futex.value == 2,
        }
    }

    /// Whether its holder may take it again.
    pub fn reentrancy(&self) -> Reentrancy {
        if self.kind & KIND_TYPE == RECURSIVE { Reentrancy::Recursive } else { Reentrancy::Plain }
    }

    /// Its kind in words, for evidence: `normal`, `recursive, robust`.
    pub fn kind(&self) -> String {
        let first = match self.kind & KIND_TYPE {
            RECURSIVE => "recursive",
            ERRORCHECK => "error-checking",
            ADAPTIVE => "adaptive",
            _ => "normal",
        };
        let mut words = vec![first];
        let flags = [(ROBUST, "robust"), (PRIO_INHERIT, "priority-inheriting"), (PRIO_PROTECT, "priority-protected")];
        words.extend(flags.iter().filter(|(flag, _)| self.is(*flag)).map(|(_, word)| *word));
        if self.is(PSHARED) && !self.is(ROBUST) {
            words.push("process-shared");
        }
        words.join(", ")
    }
}
