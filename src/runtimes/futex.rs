//! The futex a thread sleeps on, from its system call's arguments. The kernel's interface: whose lock the word is part of
//! is for each runtime to say.

use crate::arch::Syscall;
use crate::facts::Timeout;
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::Snapshot;
use crate::target::Mapping;
use crate::units::Addr;

/// A sleeping `futex(2)` or `futex_wait(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FutexWait {
    /// The futex word.
    pub at: Addr,
    /// Which operation.
    pub op: Op,
    /// Whether the call says that the word is private to the process (`FUTEX_PRIVATE_FLAG`).
    pub private: bool,
    /// The value the word had when the thread went to sleep (0 or 1 for the PI operations).
    pub value: u32,
    /// Pointer to the time limit; null: none.
    limit: Addr,
    /// Whether the limit counts from the call, as opposed to being a point in time.
    relative: bool,
}

/// The operations that sleep. Source: Linux `include/uapi/linux/futex.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// `FUTEX_WAIT`.
    Wait,
    /// `FUTEX_WAIT_BITSET`, and `futex_wait(2)`.
    WaitBitset,
    /// `FUTEX_LOCK_PI` and `FUTEX_LOCK_PI2`: the word names the owner.
    LockPi,
    /// `FUTEX_WAIT_REQUEUE_PI`.
    WaitRequeuePi,
}

const PRIVATE: u32 = 0x80;
/// Of a lock the kernel knows: the owner's tid (Linux `include/uapi/linux/futex.h`).
const FUTEX_TID_MASK: u32 = 0x3fff_ffff;

/// Whether memory may be shared with another process. Mappings tell of a live process. A core does not say which are shared,
/// but lists those of files, of which shared memory always has one.
fn may_be_shared(snapshot: &Snapshot, at: Addr) -> bool {
    let Some(mapping) = snapshot.mapping_at(at) else { return true };
    let live = snapshot.mappings.iter().any(|m| m.inode != 0);
    let lists_files = snapshot.mappings.iter().any(Mapping::is_file);
    let private = !mapping.permissions.shared && (live || lists_files && !mapping.is_file());
    !private
}

/// Whether an operation of `futex(2)`, as it stands in a register, waits for a word to change (`FUTEX_WAIT`,
/// `FUTEX_WAIT_BITSET`), whatever its flags. It is an `int`: what stands in the upper half of the register is junk.
pub(crate) fn is_plain_wait(operation: u64) -> bool {
    const FLAGS: u64 = 0x80 | 0x100;
    matches!(operation & u64::from(u32::MAX) & !FLAGS, 0 | 9)
}

impl FutexWait {
    /// `None` where the call is no futex, or one that does not sleep (a wake).
    pub fn parse(call: &Syscall) -> Option<FutexWait> {
        let [a0, a1, a2, a3, a4, _] = call.args;
        let low = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
        let wait = match call.number? {
            202 => {
                let op = match low(a1) & 0x7f {
                    0 => Op::Wait,
                    9 => Op::WaitBitset,
                    6 | 13 => Op::LockPi,
                    11 => Op::WaitRequeuePi,
                    _ => return None,
                };
                FutexWait {
                    at: Addr(a0),
                    op,
                    private: low(a1) & PRIVATE != 0,
                    value: low(a2),
                    limit: Addr(a3),
                    relative: op == Op::Wait,
                }
            }
            // futex_wait(2), since Linux 6.7: uaddr, val, mask, flags (low two bits: size, 2 is 32 bits), timeout
            455 if a3 & 3 == 2 => FutexWait {
                at: Addr(a0),
                op: Op::WaitBitset,
                private: low(a3) & PRIVATE != 0,
                value: low(a1),
                limit: Addr(a4),
                relative: false,
            },
            _ => return None,
        };
        wait.at.0.is_multiple_of(4).then_some(wait)
    }

    /// The value the word must have for the thread to go to sleep, where that is what the operation means.
    pub fn sleeps_on_value(&self) -> Option<u32> {
        matches!(self.op, Op::Wait | Op::WaitBitset).then_some(self.value)
    }

    /// The value the word has now, where it is not the one the thread went to sleep on: somebody has changed it since. Of a
    /// priority-inheriting lock: where it names no owner any more.
    pub fn changed(&self, memory: &dyn Memory) -> Option<u32> {
        let now = memory.read_u32(self.at).ok()?;
        let changed = match (self.op, self.sleeps_on_value()) {
            (Op::LockPi, _) => now & FUTEX_TID_MASK == 0,
            (_, Some(slept_on)) => now != slept_on,
            (_, None) => false,
        };
        changed.then_some(now)
    }

    /// Whether the word has another value than the one the thread went to sleep on.
    pub fn changed_word(&self, memory: &(impl Memory + ?Sized)) -> bool {
        memory.read_u32(self.at).is_ok_and(|now| now != self.value)
    }

    /// Whether another process may wake the thread: without `FUTEX_PRIVATE_FLAG`, in memory that may be shared. The flag
    /// alone does not tell: libstdc++ and libc++ leave it off in private memory, too.
    pub fn may_be_shared(&self, snapshot: &Snapshot) -> bool {
        !self.private && may_be_shared(snapshot, self.at)
    }

    /// Whether the wait has a time limit.
    pub fn timed(&self) -> bool {
        !self.limit.is_null()
    }

    /// Where the time limit lies, for reading it along.
    pub fn limit(&self) -> Option<Addr> {
        self.timed().then_some(self.limit)
    }

    /// How long it waits. A limit that is a point in time says only that there is one.
    pub fn timeout(&self, memory: &dyn Memory) -> Timeout {
        if !self.timed() {
            return Timeout::None;
        }
        let whole = memory.read_u64(self.limit).ok().filter(|s| self.relative && *s < 1 << 40);
        let part = memory.read_u64(self.limit.offset(8)).ok().filter(|n| *n < 1_000_000_000);
        match (whole, part) {
            (Some(s), Some(n)) => Timeout::Seconds(s as f64 + n as f64 / 1e9),
            _ => Timeout::Some,
        }
    }

    /// The call as evidence: `futex(0x7f…, FUTEX_WAIT_PRIVATE, 2) in the thread's registers`.
    pub fn describe(&self) -> String {
        let op = match self.op {
            Op::Wait => "FUTEX_WAIT",
            Op::WaitBitset => "FUTEX_WAIT_BITSET",
            Op::LockPi => "FUTEX_LOCK_PI",
            Op::WaitRequeuePi => "FUTEX_WAIT_REQUEUE_PI",
        };
        let private = if self.private { "_PRIVATE" } else { "" };
        format!("futex({}, {op}{private}, {}) in the thread's registers", self.at, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Fake;

    fn futex(number: u64, args: [u64; 6]) -> Option<FutexWait> {
        FutexWait::parse(&Syscall { number: Some(number), args })
    }

    #[test]
    fn wakes_and_other_calls_are_no_waits() {
        for op in [1, 3, 4, 5, 7, 0x81, 0x85, 0x8c] {
            assert_eq!(futex(202, [0x1000, op, 1, 0, 0, 0]), None, "operation {op:#x}");
        }
        assert_eq!(futex(7, [0x1000, 0x80, 2, 0, 0, 0]), None);
        assert_eq!(futex(202, [0x1001, 0x80, 2, 0, 0, 0]), None, "a futex word is aligned");
    }

    #[test]
    fn the_realtime_flag_is_no_time_limit() {
        let sem = futex(202, [0x1000, 0x189, 0, 0, 0, 0xffff_ffff]).unwrap();
        assert_eq!((sem.op, sem.private, sem.timeout(&Fake::new())), (Op::WaitBitset, true, Timeout::None));
        assert_eq!(sem.describe(), "futex(0x1000, FUTEX_WAIT_BITSET_PRIVATE, 0) in the thread's registers");
    }

    #[test]
    fn only_a_relative_limit_tells_seconds() {
        let mut m = Fake::new();
        m.put_u64(Addr(0x9000), 5).put_u64(Addr(0x9008), 250_000_000);
        let relative = futex(202, [0x1000, 0x80, 2, 0x9000, 0, 0]).unwrap();
        assert_eq!(relative.timeout(&m), Timeout::Seconds(5.25));
        let absolute = futex(202, [0x1000, 0x189, 2, 0x9000, 0, 0]).unwrap();
        assert_eq!(absolute.timeout(&m), Timeout::Some);
        assert_eq!(relative.timeout(&Fake::new()), Timeout::Some);
    }

    #[test]
    fn upper_halves_of_int_arguments_are_junk() {
        let wait = futex(202, [0x1000, 0xffff_ffff_0000_0080, 0x1234_0000_0002, 0, 0, 0]).unwrap();
        assert_eq!((wait.op, wait.value), (Op::Wait, 2));
    }
    #[test]
    fn the_flag_alone_does_not_tell_private_memory() {
        use crate::runtimes::tests::MadeUp;
        let mut made = MadeUp::new();
        made.map(0x1000, 0x1000).map(0x8000, 0x1000);
        let plain = futex(202, [0x1000, 0, 1, 0, 0, 0]).unwrap();
        let flagged = futex(202, [0x1000, 0x80, 1, 0, 0, 0]).unwrap();
        assert!(plain.may_be_shared(&made.snapshot), "nothing tells");
        assert!(!flagged.may_be_shared(&made.snapshot));
        // a core lists mappings of files, of which shared memory is one
        made.snapshot.mappings[1].path = Some("/usr/lib/libc.so.6".into());
        assert!(!plain.may_be_shared(&made.snapshot));
        made.snapshot.mappings[0].path = Some("/dev/zero".into());
        assert!(plain.may_be_shared(&made.snapshot));
        // a live process tells
        made.snapshot.mappings[0].inode = 7;
        assert!(!plain.may_be_shared(&made.snapshot));
        made.snapshot.mappings[0].permissions.shared = true;
        assert!(plain.may_be_shared(&made.snapshot) && !flagged.may_be_shared(&made.snapshot));
    }

    #[test]
    fn a_word_is_changed_where_it_is_another_or_names_no_owner() {
        let mut m = Fake::new();
        m.put_u32(Addr(0x1000), 2);
        let changed = |op: u64, value: u64, m: &Fake| futex(202, [0x1000, op, value, 0, 0, 0]).unwrap().changed(m);
        assert_eq!((changed(0x80, 2, &m), changed(0x80, 1, &m)), (None, Some(2)));
        m.put_u32(Addr(0x1000), 0x8000_0007);
        assert_eq!(changed(0x86, 0, &m), None);
        m.put_u32(Addr(0x1000), 0x8000_0000);
        assert_eq!(changed(0x86, 0, &m), Some(0x8000_0000));
    }

    #[test]
    fn an_operation_is_an_int() {
        for (operation, waits) in [(0x80, true), (0xdead_beef_0000_0189, true), (0x81, false), (0x1_0000_0006, false)] {
            assert_eq!(is_plain_wait(operation), waits, "{operation:#x}");
        }
    }
}
