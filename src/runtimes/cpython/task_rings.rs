//! Event loops that have nothing left to do because their tasks wait for each other: each for an `asyncio.Lock` the next one
//! holds, or for the next one's end; or all for a lock whose holder has ended.
//!
//! Said of the loop's thread only where nothing else can bring it to run a callback: no timer, nothing ready, no descriptor
//! but its own, no task that could still go on. Otherwise it is a note.

use super::event_loops::Held;
use super::facts::Telling;
use super::tasks::{RunningLoop, Task};
use crate::facts::{
    Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait,
    Wakers,
};
use crate::units::{Addr, FrameIx, Tid};
use std::collections::{BTreeMap, BTreeSet};

/// Tasks of one ring told by name.
const MAX_NAMED: usize = 6;

/// What keeps a task from going on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Behind {
    /// The end of the task at this index, or a lock (its address) that it holds.
    Task(usize, Option<Addr>),
    /// A lock that is taken, and that no task is inside of.
    Lost(Addr),
    /// The end of work that an executor has: its `concurrent.futures.Future`.
    Work(Addr),
}

/// Tasks that wait for each other, each with what it is behind; or all that wait for a lost lock.
struct Ring {
    tasks: Vec<(usize, Behind)>,
    lost: Option<Addr>,
}

impl Telling<'_> {
    /// Tells of loops whose tasks wait for each other.
    pub(super) fn tell_rings(&self, facts: &mut Facts) {
        let work = &self.scene.event_loops;
        for running in work.loops.iter().filter(|l| !l.in_callback) {
            // of tasks that were not read one may be able to go on
            let exhausted = running.exhausted && work.complete;
            self.tell_ring(RunningLoop { exhausted, ..*running }, facts);
        }
    }

    fn tell_ring(&self, running: RunningLoop, facts: &mut Facts) {
        let tasks = &self.scene.event_loops.tasks;
        let mine: Vec<usize> =
            (0..tasks.len()).filter(|i| tasks.get(*i).is_some_and(|t| t.event_loop == running.at)).collect();
        let timed = self.timed(&mine);
        let behind: BTreeMap<usize, Vec<Behind>> = mine
            .iter()
            .filter(|i| !timed.contains(i))
            .filter_map(|i| Some((*i, self.behind(tasks.get(*i)?))).filter(|(_, b)| !b.is_empty()))
            .collect();
        let for_ever = stuck(&behind, |_| false);
        let Some(Ring { tasks: ring, lost }) = ring_of(&behind, &for_ever) else {
            self.tell_work_awaited(running, &mine, &behind, facts);
            return;
        };
        let stuck = for_ever;
        let words = self.ring_words(&ring, lost);
        let tid = self.tid(running.thread);
        let all = mine.iter().all(|i| stuck.contains(i));
        if !all || !running.exhausted || (lost.is_some() && self.may_be_called_back(running)) {
            facts.notes.push(format!("in the event loop that thread {tid} runs {words}"));
            return;
        }
        // the lock of the first that waits for one; where all wait for ends, the first task
        let lock = ring.iter().find_map(|(_, b)| match b {
            Behind::Task(_, lock) => *lock,
            Behind::Lost(lock) => Some(*lock),
            Behind::Work(_) => None,
        });
        let Some(at) = lock.or_else(|| ring.first().and_then(|(i, _)| tasks.get(*i)).map(|t| t.at)) else { return };
        let id = ResourceId::At(self.view.process, at);
        facts.resources.retain(|r| r.id != id);
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::PythonTask,
            name: Some(match lock {
                Some(lock) => self.name_of_lock(lock),
                None => "the tasks of its event loop".to_owned(),
            }),
            address: Some(at),
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        });
        let holder = match lost {
            Some(_) => Holder::Gone(self.view.process, Tid(0)),
            None => Holder::Thread(self.thread(running.thread)),
        };
        facts.holds.push(Hold {
            holder,
            of: id,
            mode: Mode::Exclusive,
            certainty: if lost.is_some() { Certainty::Inferred } else { Certainty::Witnessed },
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![
                Evidence::new(words),
                Evidence::new(format!(
                    "the loop at {} waits in its selector with nothing ready, no timer and no descriptor but its own, and all \
                     its {} tasks are of those or wait for them",
                    running.at,
                    mine.len()
                )),
            ],
        });
        let (frame, managed_frame) = self.outside_loop(running);
        facts.waits.push(Wait {
            thread: self.thread(running.thread),
            on: id,
            mode: Mode::Exclusive,
            timeout: Timeout::None,
            frame,
            managed_frame,
            evidence: vec![Evidence::new(format!("thread {tid} runs that loop: _run_once is on its stack, in select"))],
        });
    }

    /// Whether a thread beside the loop's may make the loop run a callback, which may give a lock back: any but the workers of
    /// executors that wait for work.
    fn may_be_called_back(&self, running: RunningLoop) -> bool {
        let idle = |thread: &usize| {
            self.scene.pools.iter().flat_map(|p| &p.workers).any(|w| w.thread == *thread && w.task.is_none())
        };
        self.scene.stacks.iter().any(|(t, s)| *t != running.thread && !s.frames.is_empty() && !idle(t))
    }

    /// A loop that has nothing left to do because its tasks wait for work of executors, or for tasks that do: the threads that
    /// do that work, or would have to be done with theirs first, are all that can bring it to go on.
    fn tell_work_awaited(
        &self,
        running: RunningLoop,
        mine: &[usize],
        behind: &BTreeMap<usize, Vec<Behind>>,
        facts: &mut Facts,
    ) {
        let waits = stuck(behind, |_| true);
        if !running.exhausted || mine.is_empty() || !mine.iter().all(|i| waits.contains(i)) {
            return;
        }
        let mut works: Vec<Addr> = behind
            .values()
            .flatten()
            .filter_map(|b| match b {
                Behind::Work(future) => Some(*future),
                _ => None,
            })
            .collect();
        works.sort_unstable();
        works.dedup();
        let mut workers: BTreeSet<usize> = BTreeSet::new();
        for work in &works {
            let Some(threads) = self.workers_of(*work) else { return };
            workers.extend(threads);
        }
        if workers.is_empty() {
            return;
        }
        let id = ResourceId::At(self.view.process, running.at);
        let name = self.name_of_work(&works);
        let mode = if workers.len() == 1 { Mode::Exclusive } else { Mode::Any };
        facts.resources.retain(|r| r.id != id);
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::PythonTask,
            name: Some(name.clone()),
            address: Some(running.at),
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        });
        let tid = self.tid(running.thread);
        for worker in &workers {
            facts.holds.push(Hold {
                holder: Holder::Thread(self.thread(*worker)),
                of: id,
                mode,
                certainty: Certainty::Witnessed,
                taken_at: None,
                taken_at_managed: None,
                evidence: vec![Evidence::new(format!(
                    "{} for {name}, or for tasks that do, and the loop at {} waits in its selector with nothing ready, no \
                     timer and no descriptor but its own; thread {} is in such work, or in work that is before it",
                    match mine.len() {
                        1 => "the only task of the loop waits".to_owned(),
                        n => format!("all {n} tasks of the loop wait"),
                    },
                    running.at,
                    self.tid(*worker)
                ))],
            });
        }
        let (frame, managed_frame) = self.outside_loop(running);
        facts.waits.push(Wait {
            thread: self.thread(running.thread),
            on: id,
            mode,
            timeout: Timeout::None,
            frame,
            managed_frame,
            evidence: vec![Evidence::new(format!("thread {tid} runs that loop: _run_once is on its stack, in select"))],
        });
    }

    /// The threads that keep this work from ending: the one that does it, or where it is queued in an executor all of whose
    /// workers are in other tasks, those. `None` where that is not known, or somebody is free to begin it.
    fn workers_of(&self, future: Addr) -> Option<Vec<usize>> {
        for pool in &self.scene.pools {
            if let Some(worker) = pool.workers.iter().find(|w| w.task.is_some_and(|(f, _)| f == future)) {
                return Some(vec![worker.thread]);
            }
            if pool.queued.contains(&future) {
                return pool.is_exhausted().then(|| pool.workers.iter().map(|w| w.thread).collect());
            }
        }
        // a coroutine of another loop: its thread is in a callback that it has not returned from
        let work = &self.scene.event_loops;
        let other = work.chained.iter().find(|c| c.future == future).and_then(|c| self.runner(c.event_loop))?;
        other.in_callback.then(|| vec![other.thread])
    }

    /// Tasks that a time-out will end: inside `asyncio.timeout` or its like, or waited for by `wait_for`.
    fn timed(&self, mine: &[usize]) -> BTreeSet<usize> {
        let work = &self.scene.event_loops;
        let bounds = |class: &str| ["imeout", "CancelScope", "After"].iter().any(|w| class.contains(w));
        let inside = work.suspended.iter().filter(|s| matches!(&s.held, Held::Other(_, class) if bounds(class)));
        let mut out: BTreeSet<usize> = inside.map(|s| s.task).collect();
        let waited: BTreeSet<Addr> =
            mine.iter().filter_map(|i| work.tasks.get(*i)).flat_map(|t| t.bounds.iter().copied()).collect();
        out.extend(mine.iter().copied().filter(|i| work.tasks.get(*i).is_some_and(|t| waited.contains(&t.at))));
        out
    }

    /// What keeps a task from going on; empty where that is nothing known.
    fn behind(&self, task: &Task) -> Vec<Behind> {
        let work = &self.scene.event_loops;
        if let Some(lock) = &task.wants {
            let inside = work.suspended.iter().filter(|s| matches!(&s.held, Held::Other(m, _) if m == lock));
            let mut holders: Vec<usize> = inside.map(|s| s.task).collect();
            holders.dedup();
            return match holders.as_slice() {
                [one] => vec![Behind::Task(*one, Some(*lock))],
                [] => vec![Behind::Lost(*lock)],
                _ => Vec::new(),
            };
        }
        if let Some(future) = task.work {
            return vec![Behind::Work(future)];
        }
        let index = |at: Addr| work.tasks.iter().position(|t| t.at == at);
        if let Some(other) = task.waiter.and_then(index) {
            return vec![Behind::Task(other, None)];
        }
        // asyncio.gather and a TaskGroup end when all their children have ended, or one has failed: each must be known
        let child = |at: &Addr| {
            let work = || task.gathered_work.iter().find(|(child, _)| child == at).map(|(_, work)| Behind::Work(*work));
            index(*at).map(|i| Behind::Task(i, None)).or_else(work)
        };
        task.gathers.iter().map(child).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// The frames of the program that ran the loop.
    fn outside_loop(&self, running: RunningLoop) -> (FrameIx, Option<u32>) {
        let frames = self.scene.stacks.get(&running.thread).map_or(&[][..], |s| s.frames.as_slice());
        let runs = frames.iter().position(|f| f.is("base_events.py", "_run_once")).unwrap_or(0);
        let own = |f: &super::place::Framed| f.code.as_ref().is_some_and(|c| !c.is_of_asyncio());
        let at = frames.iter().skip(runs).position(own).map_or(runs, |i| runs + i);
        let native = self.natives.get(&running.thread).and_then(|n| n.get(at).copied().flatten());
        (native.or_else(|| self.innermost_loop(running.thread)).unwrap_or(FrameIx(0)), u32::try_from(at).ok())
    }

    /// `the asyncio.Lock accounts (local of main)`, or by its address.
    fn name_of_lock(&self, lock: Addr) -> String {
        match self.scene.event_loops.names.get(&lock) {
            Some(name) => format!("the asyncio.Lock {name}"),
            None => format!("the asyncio.Lock at {lock}"),
        }
    }

    /// `task “a” holds the asyncio.Lock at 0x… (taken in both (x.py:4)) and waits for …`.
    fn ring_words(&self, ring: &[(usize, Behind)], lost: Option<Addr>) -> String {
        let work = &self.scene.event_loops;
        let name = |i: usize| work.tasks.get(i).map_or_else(|| "?".to_owned(), |t| format!("task “{}”", t.name));
        let place = |i: usize| {
            let own = |f: &&super::place::Framed| f.code.as_ref().is_some_and(|c| !c.is_of_asyncio());
            let framed = work.tasks.get(i).and_then(|t| t.frames.iter().find(own));
            framed.and_then(|f| self.place(f)).map(|p| format!(", in {p},")).unwrap_or_default()
        };
        let parts: Vec<String> = ring
            .iter()
            .take(MAX_NAMED)
            .map(|(i, b)| match b {
                Behind::Task(j, Some(lock)) => {
                    let lock = self.name_of_lock(*lock);
                    format!("{}{} waits for {lock}, which {} holds", name(*i), place(*i), name(*j))
                }
                Behind::Task(j, None) => format!("{}{} waits for the end of {}", name(*i), place(*i), name(*j)),
                Behind::Work(_) => format!("{}{} waits for work of an executor", name(*i), place(*i)),
                Behind::Lost(lock) => format!(
                    "{}{} waits for {}, which is locked though no task is inside an `async with` of it",
                    name(*i),
                    place(*i),
                    self.name_of_lock(*lock)
                ),
            })
            .collect();
        let more = if ring.len() > MAX_NAMED { ", and so on round" } else { "" };
        let tail =
            if lost.is_some() { ": the task that took it has ended, or took it without `async with`" } else { "" };
        format!("{}{more}{tail}", parts.join(", and "))
    }
}

/// The greatest set of tasks each of which waits only for tasks of the set, or for a lock nobody will release; `work` says
/// of which work of executors the end is not to be expected either.
fn stuck(behind: &BTreeMap<usize, Vec<Behind>>, work: impl Fn(Addr) -> bool) -> BTreeSet<usize> {
    let mut stuck: BTreeSet<usize> = behind.keys().copied().collect();
    loop {
        // one that fails is enough to let its parent go on
        let holds_up = |b: &Behind| match b {
            Behind::Task(j, _) => stuck.contains(j),
            Behind::Lost(_) => true,
            Behind::Work(future) => work(*future),
        };
        let free: Vec<usize> =
            behind.iter().filter(|(i, b)| stuck.contains(i) && !b.iter().all(holds_up)).map(|(i, _)| *i).collect();
        if free.is_empty() {
            return stuck;
        }
        for i in free {
            stuck.remove(&i);
        }
    }
}

/// A ring among the stuck tasks, or the ones that wait for a lost lock: each with what it is behind.
fn ring_of(behind: &BTreeMap<usize, Vec<Behind>>, stuck: &BTreeSet<usize>) -> Option<Ring> {
    let next = |i: &usize| {
        behind.get(i)?.iter().copied().find(|b| match b {
            Behind::Task(j, _) => stuck.contains(j),
            Behind::Lost(_) => true,
            Behind::Work(_) => false,
        })
    };
    let mut seen: Vec<(usize, Behind)> = Vec::new();
    let mut at = *stuck.first()?;
    loop {
        let b = next(&at)?;
        if let Some(from) = seen.iter().position(|(i, _)| *i == at) {
            let mut ring = seen.split_off(from);
            let first = ring.iter().enumerate().min_by_key(|(_, (i, _))| *i).map_or(0, |(n, _)| n);
            ring.rotate_left(first);
            return Some(Ring { tasks: ring, lost: None });
        }
        seen.push((at, b));
        match b {
            Behind::Task(j, _) => at = j,
            Behind::Work(_) => return None,
            Behind::Lost(lock) => {
                let waits = |i: &usize| behind.get(i).is_some_and(|b| b.contains(&Behind::Lost(lock)));
                let waiters = stuck.iter().copied().filter(waits).map(|i| (i, Behind::Lost(lock)));
                return Some(Ring { tasks: waiters.collect(), lost: Some(lock) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(edges: &[(usize, usize)], lost: &[usize]) -> BTreeMap<usize, Vec<Behind>> {
        let mut out: BTreeMap<usize, Vec<Behind>> = BTreeMap::new();
        for (i, j) in edges {
            out.entry(*i).or_default().push(Behind::Task(*j, None));
        }
        for i in lost {
            out.entry(*i).or_default().push(Behind::Lost(Addr(0x77)));
        }
        out
    }

    #[test]
    fn a_ring_and_those_behind_it() {
        // 0 gathers 2 and 3, which wait for each other; 4 waits for 5, of which nothing is known
        let b = behind(&[(0, 3), (0, 2), (2, 3), (3, 2), (4, 5)], &[]);
        let s = stuck(&b, |_| false);
        assert_eq!(s, BTreeSet::from([0, 2, 3]));
        let Ring { tasks: ring, lost } = ring_of(&b, &s).unwrap();
        assert_eq!((ring.iter().map(|(i, _)| *i).collect::<Vec<_>>(), lost), (vec![2, 3], None));
    }

    #[test]
    fn a_chain_that_ends_in_a_task_that_runs_is_no_ring() {
        let b = behind(&[(0, 1), (1, 2)], &[]);
        assert!(stuck(&b, |_| false).is_empty());
        assert!(ring_of(&b, &stuck(&b, |_| false)).is_none());
    }

    #[test]
    fn work_of_an_executor_holds_up_as_long_as_it_lasts() {
        let mut b = behind(&[(0, 1), (2, 0)], &[]);
        b.insert(1, vec![Behind::Work(Addr(0x88))]);
        assert!(stuck(&b, |_| false).is_empty());
        assert_eq!(stuck(&b, |f| f == Addr(0x88)).len(), 3);
        assert!(ring_of(&b, &stuck(&b, |_| true)).is_none());
    }

    #[test]
    fn a_child_that_may_fail_lets_its_parent_go_on() {
        // 0 gathers 1 and 2; 1 waits for a lock of 0, of 2 nothing is known, or it is work
        let mut b = behind(&[(0, 1), (1, 0), (0, 2)], &[]);
        assert!(stuck(&b, |_| false).is_empty());
        b.insert(2, vec![Behind::Work(Addr(0x88))]);
        assert!(stuck(&b, |_| false).is_empty());
        assert_eq!(stuck(&b, |_| true).len(), 3);
    }

    #[test]
    fn a_lost_lock_keeps_all_that_wait_for_it() {
        let b = behind(&[(0, 1)], &[1, 2]);
        let s = stuck(&b, |_| false);
        assert_eq!(s.len(), 3);
        let Ring { tasks: waiters, lost } = ring_of(&b, &s).unwrap();
        assert_eq!((waiters.len(), lost), (2, Some(Addr(0x77))));
    }
}
