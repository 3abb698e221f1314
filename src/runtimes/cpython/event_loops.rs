//! Event loops: the threads that run them, their tasks, the futures they complete, and what suspended tasks hold.

use super::calls::is_asyncios;
use super::census::Census;
use super::holds::{Holds, Witnessed};
use super::inferred::Inference;
use super::locks::Lock;
use super::names::Names;
use super::objects::Objects;
use super::place::Framed;
use super::tasks::{Chained, LoopKind, RunningLoop, Task, awaited_future, chained, loop_of, read_tasks};
use super::thread_names::find_module;
use crate::memory::MemoryExt;
use crate::units::Addr;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What was read of it.
#[derive(Default)]
pub(super) struct EventLoops {
    pub loops: Vec<RunningLoop>,
    pub tasks: Vec<Task>,
    /// Whether those are all there are.
    pub complete: bool,
    pub chained: Vec<Chained>,
    /// Locks that suspended tasks hold.
    pub suspended: Vec<Suspended>,
    /// What a person calls the objects that tasks wait for.
    pub names: HashMap<Addr, String>,
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
        idents: &HashMap<u64, usize>,
    ) -> EventLoops {
        let mut work = EventLoops::default();
        let mut awaited: BTreeSet<Addr> = BTreeSet::new();
        for (thread, frames) in stacks.clone() {
            work.loops.extend(loop_of(objects, thread, frames));
            awaited.extend(awaited_future(objects, frames));
        }
        let foreign = || census.interpreters.iter().any(|i| find_module(objects, i.modules, "uvloop.loop").is_some());
        if !work.loops.is_empty() || foreign() {
            let busy: HashSet<Addr> = stacks.clone().flat_map(|(_, s)| s.iter().map(|f| f.frame.addr)).collect();
            (work.tasks, work.complete) = read_tasks(objects, census, &busy);
            work.loops.extend(foreign_loops(objects, &work, stacks, idents));
            work.suspended = suspended(objects, census, &work.tasks);
            work.names = names(objects, &work.tasks);
        }
        awaited
            .extend(work.tasks.iter().flat_map(|t| t.work.into_iter().chain(t.gathered_work.iter().map(|(_, w)| *w))));
        if !awaited.is_empty() {
            work.chained = awaited.iter().filter_map(|f| chained(objects, &work.loops, *f)).collect();
        }
        work
    }
}

/// Bytes of a loop object looked at.
const MAX_LOOP: u64 = 4096;

/// The loops of uvloop that threads run: no frame of Python's is theirs, but the loop keeps the ident of its thread while it
/// runs (uvloop `loop.pyx`, `_thread_id`).
fn foreign_loops<'f>(
    objects: &Objects<'_>,
    work: &EventLoops,
    stacks: impl Iterator<Item = (usize, &'f [Framed])> + Clone,
    idents: &HashMap<u64, usize>,
) -> Vec<RunningLoop> {
    let unknown = |l: &Addr| !work.loops.iter().any(|r| r.at == *l);
    let loops: BTreeSet<Addr> = work.tasks.iter().map(|t| t.event_loop).filter(unknown).collect();
    let runner = |at: Addr| {
        let size = objects.type_of(at).filter(|_| objects.is_kind_of(at, "uvloop.loop.Loop"))?.basicsize.min(MAX_LOOP);
        let bytes = objects.memory.read_vec(at, usize::try_from(size).ok()?).ok()?;
        super::objects::words_of(&bytes).skip(2).find_map(|w| idents.get(&w).copied())
    };
    let running = |at: Addr| {
        let thread = runner(at)?;
        // what asked it to run is the newest frame unless it runs a callback
        let newest = stacks.clone().find(|(t, _)| *t == thread).and_then(|(_, s)| s.first());
        let file = newest.and_then(|f| f.code.as_ref()).map(|c| c.file.as_str()).unwrap_or_default();
        let waits = file.ends_with("/asyncio/runners.py") || file.ends_with("/uvloop/__init__.py");
        Some(RunningLoop { thread, at, kind: LoopKind::Uvloop, in_callback: !waits, exhausted: false })
    };
    loops.into_iter().filter_map(running).collect()
}

/// Items of a suspended frame's value stack among which asynchronous generators are looked for, and how many of them at most.
const MAX_STACK: u64 = 32;
const MAX_GENERATORS: usize = 8;
/// Objects that tasks wait for of which names are looked for at most, and tasks whose variables are searched for one.
const MAX_NAMED: usize = 64;
const MAX_NAMERS: usize = 4;

/// The names of what tasks wait for, by the variables of those tasks.
fn names(objects: &Objects<'_>, tasks: &[Task]) -> HashMap<Addr, String> {
    let mut who: BTreeMap<Addr, Vec<&[Framed]>> = BTreeMap::new();
    for task in tasks {
        let wanted = task.call.as_ref().and_then(|c| c.object);
        for object in wanted.into_iter().chain(task.wants) {
            if who.len() < MAX_NAMED || who.contains_key(&object) {
                let namers = who.entry(object).or_default();
                if namers.len() < MAX_NAMERS {
                    // asyncio's own frames call everything `self`
                    let own = task.frames.iter().position(|f| !is_asyncios(f)).unwrap_or(task.frames.len());
                    namers.push(task.frames.get(own..).unwrap_or_default());
                }
            }
        }
    }
    let names = Names::new(objects);
    who.into_iter().filter_map(|(object, stacks)| Some((object, names.find(object, &stacks)?))).collect()
}

/// The `with` blocks the tasks are suspended in.
fn suspended(objects: &Objects<'_>, census: &Census, tasks: &[Task]) -> Vec<Suspended> {
    let holds = Holds::new(objects);
    let inference = Inference::new(objects);
    let class = |m: Addr| objects.type_of(m).map(|t| t.name.clone()).unwrap_or_default();
    let other = |m: Addr| Held::Other(m, class(m));
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
                    holds.managers(block.manager, inner, &mut codes, 0, &mut |m| {
                        out.push(Suspended { task, frame, line, held: other(m) });
                    });
                }
                for held in found {
                    let doubt = held.shared.map(str::to_owned);
                    let (lock, via, shared) = (held.lock, held.via, held.shared);
                    let manager = block.manager;
                    let mut w = Witnessed { thread: 0, lock, frame, line, manager, via, doubt, shared };
                    // given back by hand inside the block: it proves nothing, or not enough
                    if inference.weigh(&mut w, &t.frames, None) && w.doubt.is_none() {
                        out.push(Suspended { task, frame, line, held: Held::Thread(w.lock) });
                    }
                }
            }
            // asynchronous generators that it iterates over, or has at hand: they stay inside their blocks between two items
            for generator in generators_of(objects, framed) {
                holds.managers_of_generator(generator, &[], &mut codes, 1, &mut |m| {
                    out.push(Suspended { task, frame, line: None, held: other(m) });
                });
            }
        }
    }
    out
}

/// The asynchronous generators among a frame's variables and on its value stack.
fn generators_of(objects: &Objects<'_>, framed: &Framed) -> Vec<Addr> {
    let Some(code) = framed.code.as_ref().filter(|c| !c.is_of_asyncio()) else { return Vec::new() };
    let mut values = objects.top_of_stack(&framed.frame, code, MAX_STACK);
    values.extend(objects.locals(&framed.frame, code).into_iter().map(|(_, v)| v));
    values.retain(|v| objects.is(*v, "async_generator"));
    values.sort_unstable();
    values.dedup();
    values.truncate(MAX_GENERATORS);
    values
}
