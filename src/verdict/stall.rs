//! Chains: a thread waits for a lock, its holder waits for something else, and so on to a thread that waits for nothing
//! another thread of the run is known to give. Where that thread does not move, all wait behind it.

use super::patterns::{Scene, Shape, is_device, is_lock};
use super::voice::capital;
use super::{Look, Movement, Stall, Voice, nobody};
use crate::facts::{Certainty, DeviceWait, Holder, ResourceId, Timeout, Wait, Wakers};
use crate::graph::Step;
use crate::units::{ProcessIx, ThreadRef};
use std::collections::{BTreeMap, BTreeSet};

/// What to do about a cycle that is suspected.
const SUSPECTED: &str = "Look whether other code gives the lock back. If none does, take locks in one order everywhere, and by \
                         `with`: then the stacks prove who holds them.";

/// Stalls told at most.
const MAX_STALLS: usize = 8;

/// What one thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    /// It runs, or moved between the looks.
    Runs,
    /// It waits, and does not move as far as can be told.
    Waits,
    /// It waits for a bounded time.
    WaitsAWhile,
    /// Blocked in the kernel where nothing can wake it (state D).
    Kernel,
    /// It sleeps, on what is not known.
    Unknown,
}

/// What `t` is doing.
pub(super) fn doing(look: &Look<'_>, t: ThreadRef) -> Doing {
    let Some(state) = look.snapshots.get(t.process.0 as usize).and_then(|s| s.threads.get(t.thread as usize)) else {
        return Doing::Unknown;
    };
    let wait = look.graph.waits.get(&t);
    if let Some(doing) = look.facts.devices.get(&t).and_then(|d| at_device(look, t, d)) {
        return doing;
    }
    let (moved, ran) = match look.movement {
        Some(m) => (m.moved.contains(&t), m.ran.contains(&t)),
        None => (false, state.state == Some('R')),
    };
    // it is about to run; unless the second look finds it where it was, its wake-up lost
    if look.graph.woken.contains(&t) && (look.movement.is_none() || moved || ran) {
        return Doing::Runs;
    }
    // it would run if it were given a CPU
    if look.movement.is_some_and(|m| m.starved.contains(&t)) {
        return Doing::Runs;
    }
    match wait.map(|w| w.timeout) {
        // its waking up now and then is part of the wait
        Some(Timeout::Periodic) => Doing::Waits,
        Some(Timeout::None) if moved || ran => Doing::Runs,
        Some(Timeout::None) => Doing::Waits,
        Some(Timeout::Some | Timeout::Seconds(_)) if ran => Doing::Runs,
        Some(Timeout::Some | Timeout::Seconds(_)) => Doing::WaitsAWhile,
        None if moved || ran => Doing::Runs,
        None if state.state == Some('D') => Doing::Kernel,
        // registers outside any system call: it was executing
        None if state.registers.is_some()
            && state.syscall.is_none()
            && !matches!(state.state, Some('S' | 'T' | 't' | 'Z')) =>
        {
            Doing::Runs
        }
        None => Doing::Unknown,
    }
}

/// What a thread that waits for a device is doing, where memory shows how the device gets on: a thread that polls runs and
/// does not get on, and one that sleeps may be about to wake.
fn at_device(look: &Look<'_>, t: ThreadRef, wait: &DeviceWait) -> Option<Doing> {
    let timed = look.graph.waits.get(&t).is_none_or(|w| w.timeout != Timeout::None);
    if wait.over {
        // what it waits for has happened: it is about to wake; unless it still sleeps at the second look, its event lost
        let asleep =
            |m: &Movement| !wait.polls && !m.devices.contains(&t) && !m.moved.contains(&t) && !m.ran.contains(&t);
        return Some(if look.movement.is_some_and(asleep) && !timed { Doing::Waits } else { Doing::Runs });
    }
    if wait.pulse.is_empty() || timed {
        return None;
    }
    // where no queue tells, a thread that slept anew may have been woken in between
    let alone = wait.pulse.len() <= SIGNAL_ALONE;
    let moved = |m: &Movement| m.devices.contains(&t) || (!wait.polls && alone && m.moved.contains(&t));
    Some(if look.movement.is_some_and(moved) { Doing::Runs } else { Doing::Waits })
}

/// Numbers of a pulse that tells only of a signal: its address and its value.
const SIGNAL_ALONE: usize = 2;

/// Every thread of the look.
pub(super) fn threads(look: &Look<'_>) -> Vec<ThreadRef> {
    let each = |(p, n): (usize, usize)| {
        let process = ProcessIx(u32::try_from(p).unwrap_or(u32::MAX));
        (0..u32::try_from(n).unwrap_or(u32::MAX)).map(move |thread| ThreadRef { process, thread })
    };
    look.snapshots.iter().map(|s| s.threads.len()).enumerate().flat_map(each).collect()
}

/// The stalls of a look, the one with the most threads behind it first; and cycles a time-out will break, as notes.
pub(super) fn find(look: &Look<'_>, voice: &Voice<'_>) -> Vec<Stall> {
    let graph = look.graph;
    let mut behind: BTreeMap<ThreadRef, BTreeSet<ThreadRef>> = BTreeMap::new();
    let mut weakest: BTreeMap<ThreadRef, Certainty> = BTreeMap::new();
    // who is about to run may have what nobody is known to hold
    let runners = threads(look).into_iter().filter(|t| match look.movement {
        Some(m) => m.starved.contains(t),
        None => doing(look, *t) == Doing::Runs,
    });
    let running: BTreeSet<ProcessIx> = runners.map(|t| t.process).collect();
    for wait in graph.waits.values() {
        let counts = graph.resource(wait.on).is_some_and(|r| (is_lock(r.kind) || is_device(r.kind)) && !r.idle);
        if !counts || doing(look, wait.thread) != Doing::Waits {
            continue;
        }
        if let Some((root, certainty)) = root_of(look, &running, wait.thread) {
            // a cycle is told once, whoever of it is met first
            let round = round_at(look, root);
            let root = round.first().map_or(root, |s| s.thread);
            if !round.iter().any(|s| s.thread == wait.thread) && root != wait.thread {
                behind.entry(root).or_default().insert(wait.thread);
            } else {
                behind.entry(root).or_default();
            }
            if let Some(c) = certainty {
                weakest.entry(root).and_modify(|w| *w = (*w).min(c)).or_insert(c);
            }
        }
    }
    if look.movement.is_some() {
        // seen twice in state D at the same place: blocked in the kernel, whoever waits behind it
        for t in threads(look).into_iter().filter(|t| doing(look, *t) == Doing::Kernel) {
            behind.entry(t).or_default();
        }
    }
    // where nobody is left all wait for the same reason, and it is told once
    let forsaken = nobody::find(look);
    behind.retain(|root, _| forsaken.iter().all(|f| f.root.process != root.process));
    for f in &forsaken {
        weakest.insert(f.root, Certainty::Inferred);
    }
    let mut order: Vec<(ThreadRef, BTreeSet<ThreadRef>)> = behind.into_iter().collect();
    order.extend(forsaken.into_iter().map(|f| (f.root, f.behind)));
    order.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.cmp(&b.0)));
    order.truncate(MAX_STALLS);
    order
        .into_iter()
        .map(|(root, behind)| {
            let holds = wanted(look, root);
            let scene =
                Scene { look, voice, shape: Shape::Chain { root, holds: &holds, behind: behind.len() }, inferred: &[] };
            let (pattern, mut story) = scene.told();
            let suspected = round_at(look, root);
            if !suspected.is_empty() {
                let round = Scene { shape: Shape::Cycle(&suspected), ..scene };
                let waits = format!("{}. Suspected: {}.", capital(&round.round()), round.who_may_give());
                (story.explanation, story.advice) = (waits, SUSPECTED.to_owned());
            }
            Stall {
                root,
                suspected,
                certainty: weakest.get(&root).copied(),
                pattern,
                explanation: story.explanation,
                advice: story.advice,
                behind: behind.into_iter().collect(),
            }
        })
        .collect()
}

/// The cycle through `root` that is no deadlock only because somebody outside it may give one of its locks back.
fn round_at(look: &Look<'_>, root: ThreadRef) -> Vec<Step> {
    let through = |c: &&Vec<Step>| c.iter().any(|s| s.thread == root);
    let timed = |s: &Step| look.graph.waits.get(&s.thread).is_some_and(|w| super::ends_by_itself(w.timeout));
    let untimed = |c: &&Vec<Step>| !c.iter().any(timed);
    look.graph.cycles.iter().filter(through).find(untimed).cloned().unwrap_or_default()
}

/// What `root` holds and somebody waits for, most waited for first.
fn wanted(look: &Look<'_>, root: ThreadRef) -> Vec<ResourceId> {
    let mut held: Vec<(usize, ResourceId)> = look
        .graph
        .held_by(root)
        .filter(|h| !matches!(h.of, ResourceId::ThreadExit(_)))
        .map(|h| (look.graph.waiters(h.of).count(), h.of))
        .filter(|(n, _)| *n > 0)
        .collect();
    held.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    held.into_iter().map(|(_, id)| id).collect()
}

/// Whether any thread may be the one to end a wait: nobody is known to hold what is waited for, and it is nothing outside.
fn is_up_to_anyone(look: &Look<'_>, wait: &Wait) -> bool {
    let inside = look.graph.resource(wait.on).is_some_and(|r| r.wakers != Wakers::Outside && !is_device(r.kind));
    inside && look.graph.holders(wait.on).is_empty()
}

/// Where the chain from `from` ends, if in a thread that does not move; and the weakest hold passed on the way.
/// Processes of `running` have threads that are about to run, and have not been seen to go on.
fn root_of(look: &Look<'_>, running: &BTreeSet<ProcessIx>, from: ThreadRef) -> Option<(ThreadRef, Option<Certainty>)> {
    let graph = look.graph;
    let mut seen = BTreeSet::from([from]);
    let mut at = from;
    let mut weakest: Option<Certainty> = None;
    loop {
        let wait = graph.waits.get(&at);
        let next = wait.filter(|w| graph.needs_holders(w)).and_then(|w| {
            graph.holders(w.on).iter().find_map(|h| match h.holder {
                Holder::Thread(t) if t != at => Some((t, h.certainty)),
                _ => None,
            })
        });
        match (doing(look, at), next) {
            (Doing::Runs, _) => return None,
            // one look cannot tell a short sleep from a long one, nor what a thread does that nothing is known of
            (Doing::WaitsAWhile, _) if look.movement.is_none() => return None,
            (Doing::Unknown, None) if look.movement.is_none() => return None,
            (_, Some((t, certainty))) => {
                weakest = Some(weakest.map_or(certainty, |w| w.min(certainty)));
                if !seen.insert(t) {
                    // round to a thread seen before: a cycle that a time-out or an uncertain hold keeps from being one
                    return (look.movement.is_some()).then_some((t, weakest));
                }
                at = t;
            }
            // a lock whose holder is not known: with one look it may be about to be released; and a GIL nobody holds is
            // about to be taken by one of its waiters
            (_, None) if at == from && look.movement.is_none() && !look.facts.devices.contains_key(&at) => return None,
            (_, None) if wait.is_some_and(|w| w.timeout == Timeout::Periodic) => return None,
            (_, None) if running.contains(&at.process) && wait.is_some_and(|w| is_up_to_anyone(look, w)) => {
                return None;
            }
            (_, None) => return Some((at, weakest)),
        }
    }
}
