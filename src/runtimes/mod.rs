//! Runtimes that know their own locks: memory and stacks → facts. One folder each.
//!
//! A decoder knows no other decoder. Trouble becomes a [`Gap`](crate::facts::Gap), never a failure of the run.

use crate::facts::Facts;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{ProcessIx, ThreadRef};
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
}

/// All runtimes we know. Order does not matter.
#[must_use]
pub fn all() -> Vec<&'static dyn Runtime> {
    vec![]
}
