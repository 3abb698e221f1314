//! CPython 3.8 to 3.15: interpreters, threads, frames, names, the GIL.
//!
//! Reads the interpreter's own structures by the tables of `symbols/layouts/cpython/`; runs no code in the target. Knows
//! nothing of native locks: where a thread waits for the GIL inside a condition variable, another decoder says the latter.

mod attached;
mod attached_facts;
mod calls;
mod census;
mod code;
mod containers;
mod entered;
mod event_loop_facts;
mod event_loops;
mod executors;
mod facts;
mod find;
mod frames;
mod frozen;
mod futures;
mod gil;
mod gil_facts;
mod givers;
mod holds;
mod inferred;
mod lines;
mod locals;
mod lock_facts;
mod locks;
mod loops;
mod merge;
mod names;
mod objects;
mod offsets;
mod place;
mod pool_facts;
mod rehearse;
mod scene;
mod signals;
mod slots;
mod task_rings;
mod tasks;
mod thread_names;
mod threads;
mod waits;
mod with_blocks;

use crate::facts::Facts;
use crate::memory::Memory;
use crate::runtimes::{Decoder, Held, Runtime, View};
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::Addr;
use census::Census;
use find::Found;
use objects::Objects;
use scene::{Beat, Scene};

/// The CPython interpreter.
pub struct CPython;

impl Runtime for CPython {
    fn name(&self) -> &'static str {
        "cpython"
    }

    fn find(&self, snapshot: &Snapshot, memory: &dyn Memory) -> Option<Box<dyn Decoder>> {
        let found = find::find_all(snapshot, memory);
        if found.is_empty() {
            return None;
        }
        let rehearsal = rehearse::Rehearsal::new(memory);
        for f in &found {
            read_once(f, &rehearsal, &[], false);
        }
        Some(Box::new(Interpreters { found, pages: rehearsal.into_ranges() }))
    }
}

/// The CPythons of one process.
struct Interpreters {
    found: Vec<Found>,
    /// What a rehearsal looked at.
    pages: Vec<(Addr, usize)>,
}

/// Reads everything and keeps nothing: for the pages it touches. Without threads it is a rehearsal.
fn read_once(found: &Found, memory: &dyn Memory, threads: &[ThreadState], locals: bool) {
    let Ok(offsets) = &found.offsets else { return };
    let objects = Objects::new(memory, offsets);
    let Ok(census) = Census::take(&objects, found) else { return };
    if threads.is_empty() {
        scene::rehearse(&objects, &census);
    } else {
        let scene = Scene::look(&objects, &census, threads, Beat::Pause);
        for stack in scene.stacks.values().filter(|_| locals) {
            stack.frames.iter().take(locals::MAX_FRAMES).for_each(|framed| drop(objects.told_locals(framed)));
        }
    }
}

impl Decoder for Interpreters {
    fn gather(&self, held: &Held<'_>) {
        held.memory.expect(&self.pages);
        for f in &self.found {
            read_once(f, held.memory, held.threads, held.locals);
        }
    }

    fn decode(&self, view: &View<'_>) -> Facts {
        let mut all = Facts::default();
        for f in &self.found {
            let facts = facts::facts_of(f, view);
            let runtime = facts.runtime.clone();
            all.absorb(facts);
            all.runtime = all.runtime.or(runtime);
        }
        all
    }
}
