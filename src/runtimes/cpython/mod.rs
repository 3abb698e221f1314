//! CPython 3.8 to 3.15: interpreters, threads, frames, names, the GIL.
//!
//! Reads the interpreter's own structures by the tables of `symbols/layouts/cpython/`; runs no code in the target. Knows
//! nothing of native locks: where a thread waits for the GIL inside a condition variable, another decoder says the latter.

mod attached;
mod attached_facts;
mod calls;
mod census;
mod code;
mod conditions;
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
mod lock_files;
mod locks;
mod loops;
mod merge;
mod names;
mod objects;
mod offsets;
mod place;
mod pool_facts;
pub mod process_pools;
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

use crate::arch::ThreadRegisters;
use crate::facts::Facts;
use crate::memory::Memory;
use crate::runtimes::{Decoder, Held, Running, Runtime, View};
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{Addr, PthreadT};
use census::Census;
use find::Found;
use objects::Objects;
use rehearse::{Cast, Rehearsal, Rehearsed};
use scene::{Beat, Scene};
use std::collections::BTreeMap;

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
        Some(Box::new(Interpreters { found, casts: Vec::new(), pages: Rehearsed::default(), polls: false }))
    }
}

/// The CPythons of one process.
struct Interpreters {
    found: Vec<Found>,
    /// What the rehearsal of each took the threads for, where it came to its end.
    casts: Vec<Option<Cast>>,
    /// What it looked at.
    pages: Rehearsed,
    /// Whether a thread polled for the lock of a file then.
    polls: bool,
}

/// Reads everything and keeps nothing: for the pages it touches.
fn read_once(found: &Found, memory: &dyn Memory, threads: &[ThreadState], locals: bool) {
    let Ok(offsets) = &found.offsets else { return };
    let objects = Objects::new(memory, offsets);
    let Ok(census) = Census::take(&objects, found) else { return };
    look(&objects, &census, threads, Beat::Pause, locals);
}

fn look<'a>(objects: &Objects<'_>, census: &'a Census, threads: &[ThreadState], beat: Beat, locals: bool) -> Scene<'a> {
    let scene = Scene::look(objects, census, threads, beat);
    for stack in scene.stacks.values().filter(|_| locals) {
        stack.frames.iter().take(locals::MAX_FRAMES).for_each(|framed| drop(objects.told_locals(framed)));
    }
    scene
}

/// The same on the running target, whose threads are not known yet but by their system calls. What they are taken for.
fn rehearse(
    found: &Found,
    memory: &dyn Memory,
    mut threads: Vec<ThreadState>,
    locals: bool,
    polls: &mut bool,
) -> Option<Cast> {
    let objects = Objects::new(memory, found.offsets.as_ref().ok()?);
    let census = Census::take(&objects, found).ok()?;
    let mut pthreads: BTreeMap<u64, u64> = BTreeMap::new();
    let mut shared = false;
    for state in census.interpreters.iter().flat_map(|i| &i.threads).filter(|t| t.pthread != 0) {
        let own = || u64::try_from(objects.int32(Addr(state.pthread), PthreadT::TID).ok()?).ok();
        let Some(tid) = state.native.or_else(own) else { continue };
        shared |= pthreads.insert(tid, state.pthread).is_some();
    }
    for t in &mut threads {
        let tls_base = u64::try_from(t.tid.0).ok().and_then(|tid| pthreads.get(&tid).copied());
        let known = ThreadRegisters { tls_base, ..ThreadRegisters::unknown() };
        t.registers = tls_base.map(|_| known);
    }
    let scene = look(&objects, &census, &threads, Beat::Thought, locals);
    *polls |= !scene.lock_files.is_empty();
    // what more of the threads is looked at than a cast holds
    if (shared && census.key.is_none()) || !scene.attachments.stops.is_empty() {
        return None;
    }
    Some(Cast::new(&objects, &census, &threads))
}

impl Decoder for Interpreters {
    fn rehearse(&mut self, running: &Running<'_>) {
        let rehearsal = Rehearsal::new(running.memory);
        let threads = (running.threads)();
        let polls = &mut self.polls;
        let each = self.found.iter().map(|f| rehearse(f, &rehearsal, threads.clone(), running.locals, polls));
        self.casts = each.collect();
        self.pages = rehearsal.end();
    }

    fn gather(&self, held: &Held<'_>) {
        held.memory.expect(&self.pages.ranges());
        let same = |(found, cast): (&Found, &Option<Cast>)| match (&found.offsets, cast) {
            (Ok(offsets), Some(cast)) => cast.is(&Objects::new(held.memory, offsets), held.threads),
            (Ok(_), None) => false,
            (Err(_), _) => true,
        };
        let rehearsed = self.casts.len() == self.found.len() && self.found.iter().zip(&self.casts).all(same);
        if rehearsed && self.pages.stands(held.memory) {
            return;
        }
        for f in &self.found {
            read_once(f, held.memory, held.threads, held.locals);
        }
    }

    fn wants_file_locks(&self) -> bool {
        self.polls
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
