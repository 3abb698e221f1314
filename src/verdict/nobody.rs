//! Processes in which nobody is left: every thread waits, without a time-out, for what only another one of them could do.
//!
//! Claimed only of what an interpreter tells, since it also tells whether the program has signal handlers: a handler runs in
//! a thread that waits, and may wake others. Threads that wait for work alone are idle, whoever should give it.

use super::{Look, stuck};
use crate::facts::{ResourceKind, Wakers};
use crate::units::{ProcessIx, ThreadRef};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A process that nobody is left in.
pub(super) struct Forsaken {
    /// The thread it is told by: one that waits for a signal.
    pub root: ThreadRef,
    /// Who waits behind that one, ascending.
    pub behind: BTreeSet<ThreadRef>,
}

/// What a wait says about whether its thread should go on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Waits {
    /// For the others to be done: it is not meant to last.
    Should,
    /// For an event, which may be that of the end.
    May,
    /// For work.
    Work,
}

fn waits(look: &Look<'_>, t: ThreadRef) -> Option<Waits> {
    let resource = look.graph.resource(look.graph.waits.get(&t)?.on)?;
    Some(match resource.kind {
        ResourceKind::PythonEvent => Waits::May,
        ResourceKind::PythonThread
        | ResourceKind::PythonBarrier
        | ResourceKind::PythonFuture
        | ResourceKind::PythonSemaphore => Waits::Should,
        ResourceKind::PythonQueue if !resource.idle => Waits::Should,
        _ if resource.idle => Waits::Work,
        _ => return None,
    })
}

/// Whether a thread waits for a semaphore of the C library.
fn semaphore(look: &Look<'_>, t: ThreadRef) -> bool {
    let on = look.graph.waits.get(&t).and_then(|w| look.graph.resource(w.on));
    on.is_some_and(|r| r.kind == ResourceKind::Semaphore)
}

/// Whether nobody is left in the process of `t`, and how many threads that has.
pub(super) fn is_left(look: &Look<'_>, t: ThreadRef) -> Option<usize> {
    let all = forsaken(look).remove(&t.process)?;
    all.contains(&t).then_some(all.len())
}

/// Every process that nobody is left in, one thread to tell it by.
pub(super) fn find(look: &Look<'_>) -> Vec<Forsaken> {
    let tell = |(_, all): (ProcessIx, BTreeSet<ThreadRef>)| {
        let signalled = |t: &&ThreadRef| {
            look.graph.waits.get(t).and_then(|w| look.graph.resource(w.on)).map(|r| r.wakers) == Some(Wakers::AnyThread)
        };
        let roots = all.iter().filter(signalled).map(|t| (*t, behind(look, &all, *t)));
        // the one that should go on, with the most behind it
        let (root, behind) = roots.min_by_key(|(t, b)| (waits(look, *t), std::cmp::Reverse(b.len()), *t))?;
        Some(Forsaken { root, behind })
    };
    forsaken(look).into_iter().filter_map(tell).collect()
}

/// Who waits for `root`, directly or through others.
fn behind(look: &Look<'_>, all: &BTreeSet<ThreadRef>, root: ThreadRef) -> BTreeSet<ThreadRef> {
    let mut out = BTreeSet::new();
    let mut next = VecDeque::from([root]);
    while let Some(t) = next.pop_front() {
        for u in look.graph.behind(t) {
            if *u != root && all.contains(u) && out.insert(*u) {
                next.push_back(*u);
            }
        }
    }
    out
}

fn forsaken(look: &Look<'_>) -> BTreeMap<ProcessIx, BTreeSet<ThreadRef>> {
    let silent = |p: &ProcessIx| look.facts.handlers.get(p).is_some_and(Vec::is_empty);
    let processes: BTreeSet<ProcessIx> =
        look.graph.waits.keys().filter(|t| waits(look, **t).is_some()).map(|t| t.process).filter(silent).collect();
    if processes.is_empty() {
        return BTreeMap::new();
    }
    let stuck = stuck::stuck(look, &BTreeSet::new());
    let whole = |p: ProcessIx| {
        let threads = look.snapshots.get(p.0 as usize)?.threads.len();
        let all: BTreeSet<ThreadRef> = stuck.iter().copied().filter(|t| t.process == p).collect();
        let should = || all.iter().any(|t| waits(look, *t) == Some(Waits::Should));
        let may = || all.iter().any(|t| waits(look, *t) == Some(Waits::May));
        // the one thing a handler in C may give: sem_post is safe there, and no interpreter tells of such a handler
        let posted = || all.iter().any(|t| semaphore(look, *t));
        let works = || all.iter().any(|t| waits(look, *t) == Some(Waits::Work));
        (threads > 0 && all.len() == threads && !posted() && (should() || (may() && !works()))).then_some((p, all))
    };
    processes.into_iter().filter_map(whole).collect()
}
