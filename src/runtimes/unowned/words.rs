//! What the words of locks say: held, and by how many; or free. Each is read as its library writes it.

use super::Scene;
use crate::memory::MemoryExt;
use crate::units::Addr;

/// How a lock stands by its word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// One has it alone.
    Held,
    /// This many have it together.
    Shared(u64),
    /// Nobody has it.
    Free,
    /// The word is none such a lock has.
    Odd,
}

/// Bits of `std::sync::RwLock` (rust library/std/src/sys/sync/rwlock/futex.rs): readers, or all of them for a writer.
const RUST_READERS: u32 = (1 << 30) - 1;
/// Bits of `absl::Mutex` (abseil-cpp absl/synchronization/mutex.cc): held by readers, has waiters, held by a writer; above them
/// the readers' count, where nobody waits.
const ABSL_READER: u64 = 1;
const ABSL_WAIT: u64 = 4;
const ABSL_WRITER: u64 = 8;
/// Bits of parking_lot's locks (src/raw_mutex.rs, src/raw_rwlock.rs).
const PARKING_LOCKED: u8 = 1;
const PARKING_WRITER: u64 = 8;
const PARKING_READER: u64 = 16;
/// Bits of the first word of a guard of gcc's (libstdc++-v3/libsupc++/guard.cc): done, and being initialised.
const GUARD_DONE: u32 = 1;
const GUARD_PENDING: u32 = 0x100;
/// The same of LLVM's (libcxxabi/src/cxa_guard_impl.h): the second byte, being initialised.
const GUARD_PENDING_LLVM: u32 = 0x200;

impl Scene<'_> {
    /// How the lock at `at`, whose word is of this kind, stands. `None`: nothing is known of such words, or it was not read.
    pub(super) fn state(&self, word: &str, at: Addr) -> Option<State> {
        let memory = self.view.memory;
        Some(match word {
            "rust mutex" => match memory.read_u32(at).ok()? {
                0 => State::Free,
                1 | 2 => State::Held,
                _ => State::Odd,
            },
            "rust rwlock" => match memory.read_u32(at).ok()? & RUST_READERS {
                0 => State::Free,
                RUST_READERS => State::Held,
                n => State::Shared(u64::from(n)),
            },
            // COMPLETE is 0 and RUNNING 1 since 1.84, QUEUED a bit; before, RUNNING was 2, QUEUED 3 and COMPLETE 4
            "rust once" => match memory.read_u32(at).ok()? {
                1 | 2 | 3 | 5 => State::Held,
                0 | 4 => State::Free,
                _ => State::Odd,
            },
            "absl mutex" => {
                let bits = memory.read_u64(at).ok()?;
                match (bits & ABSL_WRITER, bits & ABSL_READER) {
                    (0, 0) => State::Free,
                    (0, _) if bits & ABSL_WAIT != 0 => State::Shared(u64::MAX),
                    (0, _) => State::Shared(bits >> 8),
                    (_, 0) => State::Held,
                    _ => State::Odd,
                }
            }
            "parking_lot mutex" => match memory.read_u8(at).ok()? {
                bits if bits > 3 => State::Odd,
                bits if bits & PARKING_LOCKED == 0 => State::Free,
                _ => State::Held,
            },
            "parking_lot rwlock" => match memory.read_u64(at).ok()? {
                bits if bits & PARKING_WRITER != 0 => State::Held,
                bits if bits / PARKING_READER > 0 => State::Shared(bits / PARKING_READER),
                _ => State::Free,
            },
            "qt mutex" => match memory.read_u64(at).ok()? {
                0 => State::Free,
                _ => State::Held,
            },
            "guard" => match memory.read_u32(at).ok()? {
                bits if bits & (GUARD_PENDING | GUARD_PENDING_LLVM) != 0 => State::Held,
                bits if bits & GUARD_DONE != 0 => State::Free,
                _ => State::Odd,
            },
            _ => return None,
        })
    }
}
