//! Runtimes that know their own locks: memory and stacks → facts. One folder each.
//!
//! A decoder knows no other decoder. Trouble becomes a [`Gap`](crate::facts::Gap), never a failure of the run.

#[cfg(test)]
pub(crate) mod tests;

pub mod cpython;
pub mod glibc;
pub mod kernel;

use crate::arch::Syscall;
use crate::arch::x86_64::{BYTES_BEFORE_SYSCALL, number_before};
use crate::facts::Facts;
use crate::memory::Memory;
use crate::snapshot::{Pc, Snapshot};
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
    /// Called while the target is held, after every thread's live stack was read: reads what [`Decoder::decode`] will
    /// want and keeps no result, since a door keeps all that was read. No file is opened here, nothing is unwound or
    /// named; reads are batched with [`Memory::expect`]. A core needs none of it and is not asked.
    fn gather(&self, held: &Held<'_>);

    /// What this runtime can tell about this instant. Called after the release, on what was kept.
    fn decode(&self, view: &View<'_>) -> Facts;
}

/// The target while it is held.
pub struct Held<'a> {
    /// The threads of the instant.
    pub threads: &'a [ThreadState],
    /// Mappings and modules.
    pub snapshot: &'a Snapshot,
    /// Its memory; every page read is kept.
    pub memory: &'a dyn Memory,
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
}

impl View<'_> {
    /// The reference of the thread at `index` of the snapshot.
    #[must_use]
    pub fn thread(&self, index: usize) -> ThreadRef {
        ThreadRef { process: self.process, thread: u32::try_from(index).unwrap_or(u32::MAX) }
    }

    /// The system call the thread at `index` sleeps in. Where the kernel shows only `restart_syscall` the number is taken
    /// from the code before the instruction, else from the name of the function around it; it stays `None` where
    /// neither tells.
    #[must_use]
    pub fn syscall(&self, index: usize) -> Option<Syscall> {
        let thread = self.snapshot.threads.get(index)?;
        let call = thread.syscall?;
        if call.number.is_some() {
            return Some(call);
        }
        let pc = thread.registers.as_ref().and_then(|r| r.pc()).or(thread.sp_pc.map(|(_, pc)| pc))?;
        Some(Syscall { number: self.interrupted_number(Addr(pc), &call.args), ..call })
    }

    /// The number behind a `restart_syscall` at `pc`. Only calls that sleep for a time are entered again so: the
    /// `nanosleep`s, `poll` and `futex`.
    fn interrupted_number(&self, pc: Addr, args: &[u64; 6]) -> Option<u64> {
        let mut code = [0; BYTES_BEFORE_SYSCALL + 2];
        let from = pc.offset(-(code.len() as i64));
        let by_code = self.memory.read(from, &mut code).ok().and_then(|()| number_before(&code));
        if by_code.is_some_and(|n| [7, 35, 202, 230].contains(&n)) {
            return by_code;
        }
        let (function, _) = self.snapshot.function_at(Pc { addr: pc, exact: true })?;
        match &*function.name {
            "poll" | "__poll" => Some(7),
            "nanosleep" | "__nanosleep" => Some(35),
            "clock_nanosleep" | "__clock_nanosleep" => Some(230),
            // syscall(2) itself: a futex when the arguments read as a timed wait on an aligned word that is mapped
            "syscall" => {
                let wait = matches!(args[1] & 0x7f, 0 | 9) && args[1] < 0x200 && args[3] != 0;
                (wait && args[0].is_multiple_of(4) && self.snapshot.mapping_at(Addr(args[0])).is_some()).then_some(202)
            }
            _ => None,
        }
    }
}

/// All runtimes we know. Order does not matter.
#[must_use]
pub fn all() -> Vec<&'static dyn Runtime> {
    vec![&kernel::Kernel, &glibc::Glibc, &cpython::CPython]
}
