//! CPython 3.8 to 3.15: interpreters, threads, frames, names, the GIL.
//!
//! Reads the interpreter's own structures by the tables of `symbols/layouts/cpython/`; runs no code in the target. Knows
//! nothing of native locks: where a thread waits for the GIL inside a condition variable, another decoder says the latter.

#![allow(dead_code)] // the readers of locks come next

mod census;
mod code;
mod facts;
mod find;
mod frames;
mod gil;
mod lines;
mod loops;
mod merge;
mod objects;
mod offsets;
mod rehearse;
mod thread_names;
mod threads;

use crate::facts::Facts;
use crate::memory::Memory;
use crate::runtimes::{Decoder, Held, Runtime, View};
use crate::snapshot::Snapshot;
use crate::units::Addr;
use census::Census;
use find::Found;
use objects::Objects;

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
            read_once(f, &rehearsal);
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

/// Reads everything and keeps nothing: for the pages it touches.
fn read_once(found: &Found, memory: &dyn Memory) {
    if let Ok(offsets) = &found.offsets {
        let _ = Census::take(&Objects::new(memory, offsets), found);
    }
}

impl Decoder for Interpreters {
    fn gather(&self, held: &Held<'_>) {
        held.memory.expect(&self.pages);
        for f in &self.found {
            read_once(f, held.memory);
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
