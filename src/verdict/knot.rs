//! Knots: threads that wait for a signal any thread could give, where every thread that could give it waits in turn.
//!
//! A condition variable has no holder, so no cycle of the graph goes through it. What can be shown is that nobody is left:
//! the greatest set of threads that can only be woken by threads of the set. It is found by taking away, again and again,
//! every thread that something outside the set could wake. A set alone is no deadlock (an idle pool is one); a deadlock is
//! claimed only where a thread of the set holds what another one of it waits for, while it waits for a signal itself.

use super::Look;
use crate::facts::{Certainty, Evidence, Hold, Holder, Mode, ResourceId, Timeout, Wait, Wakers};
use crate::graph::Step;
use crate::units::{ProcessIx, ThreadRef};
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
pub(super) fn closes(look: &Look<'_>, steps: &[Step]) -> bool {
    let returnable = |s: &Step| look.facts.returnable.contains_key(&s.waits_for);
    if !steps.iter().any(returnable) {
        return true;
    }
    let silent = |s: &Step| look.facts.handlers.get(&s.thread.process).is_some_and(Vec::is_empty);
    let stuck = stuck(look, &BTreeSet::new());
    steps.iter().all(|s| stuck.contains(&s.thread) && silent(s))
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
    let waiters: Vec<(ThreadRef, ResourceId)> = graph
        .waits
        .values()
        .filter(|w| w.thread != holder && stuck.contains(&w.thread) && graph.blockers(w.thread).contains(&holder))
        .map(|w| (w.thread, w.on))
        .collect();
    // a joiner waits for an end, not for something the holder could let go of: main joining an idle worker is no knot
    let (second, held) = waiters.iter().copied().find(|(_, on)| !matches!(on, ResourceId::ThreadExit(_)))?;
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

/// The greatest set of threads that only threads of the set could wake; `free` ones are not of it.
pub(super) fn stuck(look: &Look<'_>, free: &BTreeSet<ThreadRef>) -> BTreeSet<ThreadRef> {
    let graph = look.graph;
    let mut threads: BTreeMap<ProcessIx, usize> = BTreeMap::new();
    for (p, snapshot) in look.snapshots.iter().enumerate() {
        // a thread that is not listed is one more that could wake others
        let all = snapshot.threads.len() + usize::from(snapshot.unlisted);
        threads.insert(ProcessIx(u32::try_from(p).unwrap_or(u32::MAX)), all);
    }
    let waits_for_good = |w: &&Wait| {
        let moved = look.movement.is_some_and(|m| m.moved.contains(&w.thread));
        match w.timeout {
            Timeout::None => !moved,
            // it wakes and sleeps again by itself: that it moved says nothing
            Timeout::Periodic => true,
            Timeout::Some | Timeout::Seconds(_) => false,
        }
    };
    let mut stuck: BTreeSet<ThreadRef> = graph
        .waits
        .values()
        .filter(waits_for_good)
        .map(|w| w.thread)
        .filter(|t| !free.contains(t) && !graph.woken.contains(t))
        .collect();
    loop {
        let mut inside: BTreeMap<ProcessIx, usize> = BTreeMap::new();
        for t in &stuck {
            *inside.entry(t.process).or_default() += 1;
        }
        let can_be_woken = |t: &ThreadRef| {
            let Some(wait) = graph.waits.get(t) else { return true };
            let holders = graph.holders(wait.on);
            let out = |h: &Hold| match h.holder {
                Holder::Thread(u) => !stuck.contains(&u),
                Holder::Gone(..) => false,
                Holder::Process(_) => true,
            };
            let anyone = look.facts.returnable.contains_key(&wait.on);
            match wakers(look, wait).map(|w| if anyone { Wakers::AnyThread } else { w }) {
                None | Some(Wakers::Outside) => true,
                Some(Wakers::AnyThread) => {
                    // shared memory: any process may signal
                    let shared = matches!(wait.on, ResourceId::Shared { .. });
                    shared || inside.get(&t.process) < threads.get(&t.process)
                }
                // an unknown holder may let go at any time
                Some(Wakers::Holders) if holders.is_empty() => true,
                Some(Wakers::Holders) if wait.mode == Mode::Any => holders.iter().any(out),
                // it needs all of them: one that cannot let go is enough
                Some(Wakers::Holders) => holders.iter().all(|h| out(h) || h.holder == Holder::Thread(*t)),
            }
        };
        let woken: Vec<ThreadRef> = stuck.iter().filter(|t| can_be_woken(t)).copied().collect();
        if woken.is_empty() {
            return stuck;
        }
        for t in woken {
            stuck.remove(&t);
        }
    }
}

fn wakers(look: &Look<'_>, wait: &Wait) -> Option<Wakers> {
    look.graph.resource(wait.on).map(|r| r.wakers)
}
