//! Knots: threads that wait for a signal any thread could give, where every thread that could give it waits in turn.
//!
//! A condition variable has no holder, so no cycle of the graph goes through it. What can be shown is that nobody is left:
//! the greatest set of threads that can only be woken by threads of the set. It is found by taking away, again and again,
//! every thread that something outside the set could wake. A set alone is no deadlock (an idle pool is one); a deadlock is
//! claimed only where a thread of the set holds what another one of it waits for, while it waits for a signal itself.

use super::Look;
use super::stuck::stuck;
use crate::facts::{Certainty, Evidence, Hold, Holder, Mode, ResourceId, Wait, Wakers};
use crate::graph::Step;
use crate::units::ThreadRef;
use std::collections::{BTreeMap, BTreeSet};

/// A knot: the cycle that shows it, and the holds it deduces.
pub(super) struct Knot {
    pub steps: Vec<Step>,
    pub holds: Vec<Hold>,
}

/// The knots of a look, ordered by their first thread. Threads of `told` are stuck for a reason already found: they count
/// as free here, since behind a proven cycle everything seems knotted.
pub(super) fn find(look: &Look<'_>, told: &BTreeSet<ThreadRef>) -> Vec<Knot> {
    // most runs have no thread that waits for a signal and is in somebody's way
    let wanted: BTreeSet<ThreadRef> = look.graph.waits.keys().flat_map(|t| look.graph.blockers(*t)).collect();
    let signalled = |t: &ThreadRef| look.graph.waits.get(t).is_some_and(|w| wakers(look, w) == Some(Wakers::AnyThread));
    if !wanted.iter().any(signalled) {
        return Vec::new();
    }
    let stuck = stuck(look, told);
    let mut knots: Vec<Knot> = Vec::new();
    for (holder, wait) in &look.graph.waits {
        if !stuck.contains(holder) || wakers(look, wait) != Some(Wakers::AnyThread) {
            continue;
        }
        if let Some(knot) = knot_of(look, &stuck, *holder, wait) {
            knots.push(knot);
        }
    }
    knots.sort_by(|a, b| a.steps.cmp(&b.steps));
    knots
}

/// Cycles through waits that any one of several holders could end (a pool's workers), where all of them are stuck. Of a pool
/// whose own workers wait for it, the workers one after the other.
pub(super) fn find_any(look: &Look<'_>, told: &BTreeSet<ThreadRef>) -> Vec<Vec<Step>> {
    let any = |w: &&Wait| w.mode == Mode::Any && wakers(look, w) == Some(Wakers::Holders);
    if !look.graph.waits.values().any(|w| any(&w)) {
        return Vec::new();
    }
    let stuck = stuck(look, told);
    let mut by_resource: BTreeMap<ResourceId, Vec<ThreadRef>> = BTreeMap::new();
    for wait in look.graph.waits.values().filter(any).filter(|w| stuck.contains(&w.thread)) {
        by_resource.entry(wait.on).or_default().push(wait.thread);
    }
    let mut out: Vec<Vec<Step>> = Vec::new();
    for (id, waiters) in by_resource {
        let mine: Vec<ThreadRef> = waiters.iter().copied().filter(|t| look.graph.hold(id, *t).is_some()).collect();
        let steps = match mine.as_slice() {
            [] => waiters.iter().find_map(|t| round_from(look, &stuck, *t)),
            workers => {
                let next = workers.iter().cycle().skip(1);
                Some(workers.iter().zip(next).map(|(t, n)| Step { thread: *t, waits_for: id, held_by: *n }).collect())
            }
        };
        out.extend(steps.filter(|s| !out.contains(s)));
    }
    out
}

/// Whether a cycle of the graph is a deadlock: where others than the holder may give one of its locks back, only if every
/// thread that could is stuck itself, and no handler of a signal could run in one of them.
pub(super) fn closes(look: &Look<'_>, steps: &[Step], is_stuck: impl Fn(ThreadRef) -> bool) -> bool {
    let returnable = |s: &Step| look.facts.returnable.contains_key(&s.waits_for);
    if !steps.iter().any(returnable) {
        return true;
    }
    let silent = |s: &Step| look.facts.handlers.get(&s.thread.process).is_some_and(Vec::is_empty);
    steps.iter().all(|s| is_stuck(s.thread) && silent(s))
}

/// The shortest way from `start` back to itself, over whom each waits for, among stuck threads.
fn round_from(look: &Look<'_>, stuck: &BTreeSet<ThreadRef>, start: ThreadRef) -> Option<Vec<Step>> {
    let mut came: BTreeMap<ThreadRef, Step> = BTreeMap::new();
    let mut next = std::collections::VecDeque::from([start]);
    while let Some(t) = next.pop_front() {
        let Some(wait) = look.graph.waits.get(&t) else { continue };
        for hold in look.graph.holders(wait.on) {
            let Holder::Thread(u) = hold.holder else { continue };
            if u == t || !stuck.contains(&u) || came.contains_key(&u) {
                continue;
            }
            came.insert(u, Step { thread: t, waits_for: wait.on, held_by: u });
            if u == start {
                let mut steps = Vec::new();
                let mut at = start;
                while let Some(step) = came.get(&at) {
                    steps.push(*step);
                    at = step.thread;
                    if at == start {
                        break;
                    }
                }
                steps.reverse();
                let first = steps.iter().enumerate().min_by_key(|(_, s)| s.thread).map_or(0, |(i, _)| i);
                steps.rotate_left(first);
                return Some(steps);
            }
            next.push_back(u);
        }
    }
    None
}

/// The knot in which `holder`, which waits for a signal, keeps something another stuck thread needs.
fn knot_of(look: &Look<'_>, stuck: &BTreeSet<ThreadRef>, holder: ThreadRef, wait: &Wait) -> Option<Knot> {
    let graph = look.graph;
    let waiters = graph.behind(holder).iter().filter(|t| **t != holder && stuck.contains(t));
    let mut waiters = waiters.filter_map(|t| Some((*t, graph.waits.get(t)?.on)));
    // a joiner waits for an end, not for something the holder could let go of: main joining an idle worker is no knot
    let (second, held) = waiters.find(|(_, on)| !matches!(on, ResourceId::ThreadExit(_)))?;
    let deduced = Hold {
        holder: Holder::Thread(second),
        of: wait.on,
        mode: Mode::Any,
        certainty: Certainty::Inferred,
        taken_at: None,
        taken_at_managed: None,
        evidence: vec![Evidence::new(
            "no thread is recorded as the one to signal; every thread that could waits, directly or through others, for what \
             the waiting thread holds, or for a signal itself",
        )],
    };
    let mut steps = vec![
        Step { thread: holder, waits_for: wait.on, held_by: second },
        Step { thread: second, waits_for: held, held_by: holder },
    ];
    let first = steps.iter().enumerate().min_by_key(|(_, s)| s.thread).map_or(0, |(i, _)| i);
    steps.rotate_left(first);
    Some(Knot { steps, holds: vec![deduced] })
}

fn wakers(look: &Look<'_>, wait: &Wait) -> Option<Wakers> {
    look.graph.resource(wait.on).map(|r| r.wakers)
}
