//! A thread's stack: frames innermost first, each with its registers and its trust.
//!
//! Knows nothing of runtimes. Reads only stacks and CFI.

mod fallback;
mod interrupted;
mod placed;
mod rules;
mod walk;
mod window;

use crate::arch::RegisterFile;
use crate::memory::Memory;
use crate::snapshot::{Pc, Snapshot};
use crate::target::ThreadState;
use crate::units::{Addr, ModuleIx};
pub use interrupted::find_interrupted_stacks;
pub use placed::count_unplaced;
use walk::Walker;

/// How a frame was found; ordered from guess to certainty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Trust {
    /// A word on the stack that looks like a return address.
    Scan,
    /// The saved frame pointer chain.
    FramePointer,
    /// Call frame information.
    Cfi,
    /// The thread's own registers, or those a signal frame saved.
    Context,
}

/// One native frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Where it executes, or will return to.
    pub pc: Pc,
    /// Its canonical frame address: the stack pointer before the call that made it. Absent where unknown.
    pub cfa: Option<Addr>,
    /// The registers as they were in this frame; callee-saved ones recovered, unknown ones absent.
    pub registers: RegisterFile,
    /// How it was found.
    pub trust: Trust,
    /// The module its pc lies in.
    pub module: Option<ModuleIx>,
    /// Whether this is a signal frame: the next frame outwards is the interrupted one.
    pub signal: bool,
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackEnd {
    /// The thread's outermost frame: CFI says there is no caller.
    Complete,
    /// No more frames could be found.
    Lost,
    /// The bound on frames was reached.
    Bound,
    /// The thread had no registers.
    NoRegisters,
}

/// A thread's native stack.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// Why it ends where it does.
    pub end: StackEnd,
}

/// Frames a walk gives at most; fewer where there are very many threads, see [`unwind_all`].
pub const MAX_FRAMES: usize = 4096;

/// Frames of all threads together before each thread's share is cut, and the least share.
const ALL_FRAMES: usize = 2_000_000;
const LEAST_FRAMES: usize = 512;

/// Threads below which one core does all the work.
const FEW: usize = 32;

/// Workers at most.
const WORKERS: usize = 8;

/// Unwinds every thread of `snapshot`, in its order. With more than some 500 threads each has a share of two million
/// frames, 512 at least, so that memory stays bounded.
#[must_use]
pub fn unwind_all(snapshot: &Snapshot, memory: &(dyn Memory + Sync)) -> Vec<Stack> {
    let threads = &snapshot.threads;
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS);
    let share = (ALL_FRAMES / threads.len().max(1)).clamp(LEAST_FRAMES, MAX_FRAMES);
    let unwind = |some: &[ThreadState]| {
        let mut walker = Walker::new(snapshot, memory, share);
        some.iter().map(|t| unwind_thread(&mut walker, t)).collect::<Vec<_>>()
    };
    if threads.len() < FEW || cores == 1 {
        return unwind(threads);
    }
    let each = threads.len().div_ceil(cores);
    std::thread::scope(|scope| {
        let workers: Vec<_> = threads.chunks(each).map(|some| (some, scope.spawn(|| unwind(some)))).collect();
        let mut stacks = Vec::with_capacity(threads.len());
        for (some, worker) in workers {
            match worker.join() {
                Ok(done) => stacks.extend(done),
                Err(_) => stacks.extend(some.iter().map(|_| Stack { frames: Vec::new(), end: StackEnd::Lost })),
            }
        }
        stacks
    })
}

fn unwind_thread(walker: &mut Walker<'_>, thread: &ThreadState) -> Stack {
    match &thread.registers {
        Some(registers) => walker.walk(registers.file),
        None => Stack { frames: Vec::new(), end: StackEnd::NoRegisters },
    }
}

#[cfg(test)]
mod tests;
