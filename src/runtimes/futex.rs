//! The futex a thread sleeps on, from its system call's arguments. The kernel's interface: whose lock the word is part of
//! is for each runtime to say.

use crate::arch::Syscall;
use crate::facts::Timeout;
use crate::memory::{Memory, MemoryExt};
use crate::units::Addr;

/// A sleeping `futex(2)` or `futex_wait(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FutexWait {
    /// The futex word.
    pub at: Addr,
    /// Which operation.
    pub op: Op,
    /// Whether the word is private to the process (`FUTEX_PRIVATE_FLAG`).
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

    /// The value the word has now, where it is not the one the thread went to sleep on: somebody has changed it since.
    pub fn changed(&self, memory: &dyn Memory) -> Option<u32> {
        let slept_on = self.sleeps_on_value()?;
        memory.read_u32(self.at).ok().filter(|now| *now != slept_on)
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
}
