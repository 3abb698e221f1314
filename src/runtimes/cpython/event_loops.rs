//! Event loops: the threads that run them, their tasks, the futures they complete, and what suspended tasks hold.

use super::census::Census;
use super::holds::{Holds, Witnessed};
use super::inferred::Inference;
use super::locks::Lock;
use super::objects::Objects;
use super::place::Framed;
use super::tasks::{Chained, RunningLoop, Task, awaited_future, chained, loop_of, read_tasks};
use crate::units::Addr;
use std::collections::{BTreeSet, HashSet};

/// What was read of it.
#[derive(Default)]
pub(super) struct EventLoops {
    pub loops: Vec<RunningLoop>,
    pub tasks: Vec<Task>,
    pub chained: Vec<Chained>,
    /// Locks that suspended tasks hold.
    pub suspended: Vec<Suspended>,
}

/// A `with` block of a suspended task.
#[derive(Clone, Debug)]
pub(super) struct Suspended {
    /// Index into the tasks.
    pub task: usize,
    /// Index into the task's frames.
    pub frame: usize,
    /// The line of the `with` statement.
    pub line: Option<u32>,
    pub held: Held,
}

/// What a suspended task holds.
#[derive(Clone, Debug)]
pub(super) enum Held {
    /// A lock of threads.
    Thread(Lock),
    /// A context manager that is no lock of threads, an `asyncio.Lock` for one; and its class.
    Other(Addr, String),
}

impl EventLoops {
    /// Reads what there is, by the stacks of all threads.
    pub(super) fn look<'f>(
        objects: &Objects<'_>,
        census: &Census,
        stacks: impl Iterator<Item = (usize, &'f [Framed])> + Clone,
    ) -> EventLoops {
        let mut work = EventLoops::default();
        let mut awaited: BTreeSet<Addr> = BTreeSet::new();
        for (thread, frames) in stacks.clone() {
            work.loops.extend(loop_of(objects, thread, frames));
            awaited.extend(awaited_future(objects, frames));
        }
        if !awaited.is_empty() {
            work.chained = awaited.iter().filter_map(|f| chained(objects, &work.loops, *f)).collect();
        }
        if !work.loops.is_empty() {
            let busy: HashSet<Addr> = stacks.flat_map(|(_, s)| s.iter().map(|f| f.frame.addr)).collect();
            work.tasks = read_tasks(objects, census, &busy);
            work.suspended = suspended(objects, census, &work.tasks);
        }
        work
    }
}

/// The `with` blocks the tasks are suspended in.
fn suspended(objects: &Objects<'_>, census: &Census, tasks: &[Task]) -> Vec<Suspended> {
    let holds = Holds::new(objects);
    let inference = Inference::new(objects);
    let class = |m: Addr| objects.type_of(m).map(|t| t.name.clone()).unwrap_or_default();
    let mut codes = census.codes.borrow_mut();
    let mut out = Vec::new();
    for (task, t) in tasks.iter().enumerate() {
        for (frame, framed) in t.frames.iter().enumerate() {
            for block in holds.blocks_of(framed) {
                let mut found = Vec::new();
                let inner = t.frames.get(..frame).unwrap_or_default();
                holds.follow(&block, inner, &mut codes, &mut |held| found.push(held));
                let line = block.line;
                if found.is_empty() {
                    out.push(Suspended { task, frame, line, held: Held::Other(block.manager, class(block.manager)) });
                }
                for held in found {
                    let doubt = held.shared.map(str::to_owned);
                    let (lock, via, shared) = (held.lock, held.via, held.shared);
                    let mut w = Witnessed { thread: 0, lock, frame, line, via, doubt, shared };
                    // given back by hand inside the block: it proves nothing, or not enough
                    if inference.weigh(&mut w, &t.frames, false) && w.doubt.is_none() {
                        out.push(Suspended { task, frame, line, held: Held::Thread(w.lock) });
                    }
                }
            }
        }
    }
    out
}
