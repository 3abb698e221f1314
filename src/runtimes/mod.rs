//! Runtimes that know their own locks: memory and stacks → facts. One folder each.
//!
//! A decoder knows no other decoder. Trouble becomes a [`Gap`](crate::facts::Gap), never a failure of the run.

#[cfg(test)]
pub(crate) mod tests;

pub mod cpython;
pub(crate) mod futex;
pub mod glibc;
pub mod kernel;
pub mod rocm;
pub mod unowned;

use crate::arch::Syscall;
use crate::arch::x86_64::{BYTES_BEFORE_SYSCALL, number_before};
use crate::facts::Facts;
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{Addr, ProcessIx, ThreadRef};
use crate::unwind::Stack;

/// Something that may live in a process and knows its own locks.
pub trait Runtime: Sync {
    /// Its name: `glibc`, `cpython`.
    fn name(&self) -> &'static str;

    /// Looks for it. Called while the target runs: may open files and choose layouts, so that nothing of that is done
    /// while the target is held. `memory` is the running target's: good for what does not change once it is loaded.
    fn find(&self, snapshot: &Snapshot, memory: &dyn Memory) -> Option<Box<dyn Decoder>>;
}

/// A runtime found in one process.
pub trait Decoder: Send + Sync {
    /// Called once for a live process, while it still runs: does what makes the reads of [`Decoder::gather`] few. Nothing read
    /// here is believed.
    fn rehearse(&mut self, _running: &Running<'_>) {}

    /// Called while the target is held, after every thread's live stack was read: reads what [`Decoder::decode`] will
    /// want and keeps no result, since a door keeps all that was read. No file is opened here, nothing is unwound or
    /// named; reads are batched with [`Memory::expect`]. A core needs none of it and is not asked.
    fn gather(&self, held: &Held<'_>);

    /// Whether a thread seems to poll for the lock of a file, so that the kernel's list of such locks is wanted as it stands
    /// while the target is held: a moment later the thread may have the lock.
    fn wants_file_locks(&self) -> bool {
        false
    }

    /// What this runtime can tell about this instant. Called after the release, on what was kept.
    fn decode(&self, view: &View<'_>) -> Facts;
}

/// The target before it is held.
pub struct Running<'a> {
    /// Its memory, which moves.
    pub memory: &'a dyn Memory,
    /// The threads with the system calls they are in, ascending; no registers. Each call looks anew.
    pub threads: &'a dyn Fn() -> Vec<ThreadState>,
    /// Whether the variables of interpreters' frames will be asked for.
    pub locals: bool,
}

/// The target while it is held.
pub struct Held<'a> {
    /// The threads of the instant.
    pub threads: &'a [ThreadState],
    /// Mappings and modules.
    pub snapshot: &'a Snapshot,
    /// Its memory; every page read is kept.
    pub memory: &'a dyn Memory,
    /// Whether the variables of interpreters' frames will be asked for.
    pub locals: bool,
}

/// One process at its instant, with stacks: what decoders look at. Read-only.
pub struct View<'a> {
    /// Which process of the run this is.
    pub process: ProcessIx,
    /// Threads, mappings, modules.
    pub snapshot: &'a Snapshot,
    /// A stack for each thread, in the same order.
    pub stacks: &'a [Stack],
    /// What was kept, the core's bytes, and read-only parts of files beneath.
    pub memory: &'a (dyn Memory + Sync),
    /// Whether the variables of interpreters' frames are asked for.
    pub locals: bool,
}

impl View<'_> {
    /// The reference of the thread at `index` of the snapshot.
    #[must_use]
    pub fn thread(&self, index: usize) -> ThreadRef {
        ThreadRef { process: self.process, thread: u32::try_from(index).unwrap_or(u32::MAX) }
    }

    /// The system call the thread at `index` sleeps in. Where the kernel shows only `restart_syscall` the number is taken
    /// from the code before the instruction, else from the names of the functions around it, else from what the arguments
    /// can mean; it stays `None` where nothing tells.
    #[must_use]
    pub fn syscall(&self, index: usize) -> Option<Syscall> {
        let thread = self.snapshot.threads.get(index)?;
        let call = thread.syscall?;
        if call.number.is_some() {
            return Some(call);
        }
        let pc = thread.registers.as_ref().and_then(|r| r.pc()).or(thread.sp_pc.map(|(_, pc)| pc)).map(Addr);
        let number = pc
            .and_then(|pc| self.number_by_code(pc))
            .or_else(|| self.number_by_frames(index))
            .or_else(|| self.number_by_arguments(&call.args));
        Some(Syscall { number, ..call })
    }

    /// The number the code just before `pc` loads. Only calls that sleep for a time are entered again as
    /// `restart_syscall`: `poll`, the `nanosleep`s and `futex`.
    fn number_by_code(&self, pc: Addr) -> Option<u64> {
        let mut code = [0; BYTES_BEFORE_SYSCALL + 2];
        // behind the instruction, or (on the way back into the call) on it
        [pc, pc.offset(2)].into_iter().find_map(|end| {
            self.memory.read(end.offset(-(code.len() as i64)), &mut code).ok()?;
            number_before(&code).filter(|n| [POLL, NANOSLEEP, FUTEX, CLOCK_NANOSLEEP].contains(n))
        })
    }

    /// The number by the first function with a telling name among the innermost frames. Since 2.41 glibc makes its calls
    /// through one common function, some frames deep.
    fn number_by_frames(&self, index: usize) -> Option<u64> {
        let frames = self.stacks.get(index).map_or(&[][..], |s| s.frames.as_slice());
        frames.iter().take(8).find_map(|frame| {
            let (function, _) = self.snapshot.function_at(frame.pc)?;
            match &*function.name {
                "poll" | "__poll" => Some(POLL),
                "nanosleep" | "__nanosleep" | "clock_nanosleep" | "__clock_nanosleep" => Some(CLOCK_NANOSLEEP),
                "pthread_cond_timedwait" | "pthread_cond_clockwait" | "sem_timedwait" | "sem_clockwait" => Some(FUTEX),
                _ => None,
            }
        })
    }

    /// The number by the arguments, which a restart leaves as they were: a clock's number, a flag and a time that can be
    /// read; or an aligned word of writable memory, an operation that sleeps, and a time.
    fn number_by_arguments(&self, args: &[u64; 6]) -> Option<u64> {
        let [a0, a1, a2, a3, ..] = *args;
        let is_time = |at: u64| {
            let part = self.memory.read_u64(Addr(at.wrapping_add(8)));
            at != 0 && part.is_ok_and(|nanoseconds| nanoseconds < 1_000_000_000)
        };
        let operation = a1 & 0xffff_ffff;
        let sleeps = matches!(operation & 0x7f, 0 | 9) && operation < 0x200;
        let word = a0 != 0 && a0.is_multiple_of(4) && self.snapshot.mapping_at(Addr(a0)).is_some();
        if sleeps && word && is_time(a3) {
            return Some(FUTEX);
        }
        (a0 < 12 && a1 < 2 && is_time(a2)).then_some(CLOCK_NANOSLEEP)
    }
}

/// `poll` (Linux `arch/x86/entry/syscalls/syscall_64.tbl`, and the three below).
const POLL: u64 = 7;
const NANOSLEEP: u64 = 35;
const FUTEX: u64 = 202;
const CLOCK_NANOSLEEP: u64 = 230;

/// All runtimes we know. Order does not matter.
#[must_use]
pub fn all() -> Vec<&'static dyn Runtime> {
    vec![&kernel::Kernel, &glibc::Glibc, &cpython::CPython, &rocm::Rocm, &unowned::Unowned]
}
