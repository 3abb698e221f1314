//! Rings that no single holder makes: a pool whose own workers wait for it, a pipe of which any thread of a process could read,
//! and knots, where the one who should give a signal needs what the waiting thread holds.
//!
//! They are looked for in the blocked components that depend on no other. A component alone is no deadlock (it may be a pool
//! whose last feeder is gone); a deadlock is claimed only where a thread of it holds what another one waits for, while it
//! waits for a signal itself. Who that other one is nothing records: it is chosen by evidence, and where that does not decide
//! between threads of different make, nobody is.

use super::actors::{Handler, wakers};
use super::blocked::{Blocked, Component};
use super::{Look, Voice, stall};
use crate::facts::{Certainty, Evidence, Hold, Holder, Mode, ResourceId, ResourceKind, Timeout, Wait, Wakers};
use crate::graph::Step;
use crate::units::{FrameIx, ThreadRef};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A ring, and the holds it deduces: one for each thread that could as well be the one.
pub(super) struct Ring {
    pub steps: Vec<Step>,
    pub holds: Vec<Hold>,
    pub handler: Handler,
}

/// The rings of a look, ordered by their first thread.
pub(super) fn find(look: &Look<'_>, voice: &Voice<'_>, blocked: &Blocked) -> Vec<Ring> {
    let mut rings: Vec<Ring> = Vec::new();
    for component in blocked.sinks() {
        let handler = component.handler;
        let of_several = of_several(look, voice, component);
        rings.extend(of_several.into_iter().map(|steps| Ring { steps, holds: Vec::new(), handler }));
        if component.is_signalled {
            rings.extend(component.threads.iter().filter_map(|t| knot_of(look, voice, component, *t)));
        }
    }
    rings.sort_by(|a, b| a.steps.cmp(&b.steps));
    rings
}

/// Whether all threads of a ring stand where they stood at the look before and slept all the time; where this is the only
/// look, whether no other thread of their processes runs, which might be about to end it.
pub(super) fn stands_still(look: &Look<'_>, steps: &[Step]) -> bool {
    let Some(movement) = look.movement else {
        let among: BTreeSet<ThreadRef> = steps.iter().map(|s| s.thread).collect();
        let processes: BTreeSet<_> = among.iter().map(|t| t.process).collect();
        let others = stall::threads(look).into_iter().filter(|t| processes.contains(&t.process) && !among.contains(t));
        return others.into_iter().all(|t| stall::doing(look, t) != stall::Doing::Runs);
    };
    let still = |s: &Step| match look.graph.waits.get(&s.thread).map(|w| w.timeout) {
        _ if look.facts.devices.contains_key(&s.thread) => stall::doing(look, s.thread) == stall::Doing::Waits,
        // it wakes now and then, and may be seen on its way back to sleep: what it waits for is held all the same
        Some(Timeout::Periodic) => true,
        _ => !movement.moved.contains(&s.thread),
    };
    steps.iter().all(still)
}

/// Rings through waits that any one of several holders could end. Of a pool whose own workers wait for it, the workers one
/// after the other.
fn of_several(look: &Look<'_>, voice: &Voice<'_>, component: &Component) -> Vec<Vec<Step>> {
    let any = |w: &&Wait| w.mode == Mode::Any && wakers(look, w) == Some(Wakers::Holders);
    let waits = component.threads.iter().filter_map(|t| look.graph.waits.get(t));
    let mut by_resource: BTreeMap<ResourceId, Vec<ThreadRef>> = BTreeMap::new();
    for wait in waits.filter(any) {
        by_resource.entry(wait.on).or_default().push(wait.thread);
    }
    let mut out: Vec<Vec<Step>> = Vec::new();
    // a process that waits for another's end does for it what else that waits for only where nobody else could
    for parents in [false, true] {
        for (id, waiters) in &by_resource {
            let mine: Vec<ThreadRef> = waiters.iter().copied().filter(|t| look.graph.hold(*id, *t).is_some()).collect();
            let steps = match mine.as_slice() {
                [] => waiters.iter().find_map(|t| round_from(look, voice, component, *t, parents)),
                workers => {
                    let next = workers.iter().cycle().skip(1);
                    let step = |(t, n): (&ThreadRef, &ThreadRef)| Step { thread: *t, waits_for: *id, held_by: *n };
                    Some(workers.iter().zip(next).map(step).collect())
                }
            };
            out.extend(steps.filter(|s| !out.contains(s) && !contradicts(&out, s)));
        }
        if !out.is_empty() {
            break;
        }
    }
    out
}

/// Whether a ring names another thread for a wait than one of those already told.
fn contradicts(told: &[Vec<Step>], steps: &[Step]) -> bool {
    let differs = |a: &Step, b: &Step| a.thread == b.thread && a.held_by != b.held_by;
    told.iter().flatten().any(|a| steps.iter().any(|b| differs(a, b)))
}

/// The shortest way from `start` back to itself, over whom each waits for, within a component; of equally short ones that of
/// the best evidence. Where not `parents`, no process is thought to do something for another whose end it waits for.
fn round_from(
    look: &Look<'_>,
    voice: &Voice<'_>,
    component: &Component,
    start: ThreadRef,
    parents: bool,
) -> Option<Vec<Step>> {
    let mut came: BTreeMap<ThreadRef, Step> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(t) = next.pop_front() {
        let Some(wait) = look.graph.waits.get(&t) else { continue };
        let holders = look.graph.holders(wait.on).iter().filter_map(|h| match h.holder {
            Holder::Thread(u) => Some(u),
            Holder::Gone(..) | Holder::Process(_) => None,
        });
        let fits = |u: &ThreadRef| *u != t && component.threads.contains(u) && !came.contains_key(u);
        let mut holders: Vec<ThreadRef> =
            holders.filter(fits).filter(|u| parents || !waits_for_end_of(look, *u, t)).collect();
        holders.sort_by_cached_key(|u| (std::cmp::Reverse(rank(look, voice, wait, *u)), *u));
        for u in holders {
            came.insert(u, Step { thread: t, waits_for: wait.on, held_by: u });
            if u == start {
                return Some(back_from(&came, start));
            }
            next.push_back(u);
        }
    }
    None
}

fn back_from(came: &BTreeMap<ThreadRef, Step>, start: ThreadRef) -> Vec<Step> {
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
    turned(steps)
}

/// The ring from its smallest thread on.
fn turned(mut steps: Vec<Step>) -> Vec<Step> {
    let first = steps.iter().enumerate().min_by_key(|(_, s)| s.thread).map_or(0, |(i, _)| i);
    steps.rotate_left(first);
    steps
}

/// Whether `t` waits for the end of the process of `other`.
fn waits_for_end_of(look: &Look<'_>, t: ThreadRef, other: ThreadRef) -> bool {
    let Some(wait) = look.graph.waits.get(&t) else { return false };
    look.graph.resource(wait.on).is_some_and(|r| r.kind == ResourceKind::ProcessExit)
        && t.process != other.process
        && look
            .graph
            .holders(wait.on)
            .iter()
            .any(|h| matches!(h.holder, Holder::Thread(u) if u.process == other.process))
}

/// The knot in which `holder`, which waits for a signal, keeps something another thread of the component needs.
fn knot_of(look: &Look<'_>, voice: &Voice<'_>, component: &Component, holder: ThreadRef) -> Option<Ring> {
    let graph = look.graph;
    let wait = graph.waits.get(&holder).filter(|w| wakers(look, w) == Some(Wakers::AnyThread))?;
    let waiters = graph.behind(holder).iter().filter(|t| **t != holder && component.threads.contains(t));
    let waiters = waiters.filter_map(|t| Some((*t, graph.waits.get(t)?.on)));
    // a joiner waits for an end, not for something the holder could let go of: main joining an idle worker is no knot
    let waiters: Vec<_> = waiters.filter(|(_, on)| !matches!(on, ResourceId::ThreadExit(_))).collect();
    let ranked: Vec<(u32, ThreadRef, ResourceId)> =
        waiters.iter().map(|(t, on)| (rank(look, voice, wait, *t), *t, *on)).collect();
    let best = ranked.iter().map(|(rank, ..)| *rank).max()?;
    let likely: Vec<(ThreadRef, ResourceId)> =
        ranked.into_iter().filter(|(rank, ..)| *rank == best).map(|(_, t, on)| (t, on)).collect();
    let (second, held) = *likely.first()?;
    // of threads that are all of one make any may stand for all
    let entry = |t: ThreadRef| entry_of(voice, t);
    if !likely.iter().all(|(t, on)| *on == held && entry(*t) == entry(second)) {
        return None;
    }
    let others = likely.len();
    let deduced = |t: ThreadRef| Hold {
        holder: Holder::Thread(t),
        of: wait.on,
        mode: Mode::Any,
        certainty: Certainty::Inferred,
        taken_at: None,
        taken_at_managed: None,
        evidence: vec![Evidence::new(format!(
            "{}no thread is recorded as the one to signal; every thread that could waits, directly or through others, for \
             what the waiting thread holds, or for a signal itself",
            if others > 1 { format!("one of {others} threads alike: ") } else { String::new() }
        ))],
    };
    let steps = vec![
        Step { thread: holder, waits_for: wait.on, held_by: second },
        Step { thread: second, waits_for: held, held_by: holder },
    ];
    let holds = likely.iter().map(|(t, _)| deduced(*t)).collect();
    Some(Ring { steps: turned(steps), holds, handler: component.handler })
}

/// What a thread is for: the outermost function of the program it runs, in Python and natively.
fn entry_of(voice: &Voice<'_>, t: ThreadRef) -> (Option<String>, Option<String>) {
    let python = voice.managed(t).and_then(|m| m.frames.last()).map(|f| format!("{} {}", f.file, f.function));
    let frames = voice.stack(t).map_or(0, |s| u32::try_from(s.frames.len()).unwrap_or(u32::MAX));
    let native = (0..frames).rev().map(FrameIx).find_map(|f| voice.own_name(t, f));
    // the threads of Python all begin in the same function of threading.py: what they are for is the one within
    let within = |f: &&crate::facts::ManagedFrame| !f.file.ends_with("threading.py");
    let python = voice
        .managed(t)
        .and_then(|m| m.frames.iter().rev().find(within))
        .map(|f| format!("{} {}", f.file, f.function))
        .or(python);
    (python, native)
}

/// How much speaks for `t` as the one who ends `wait`: it is inside the function that waits, or has a frame of the same source
/// file or module as the wait.
fn rank(look: &Look<'_>, voice: &Voice<'_>, wait: &Wait, t: ThreadRef) -> u32 {
    let waiter = wait.thread;
    let mut rank = 0;
    let frames = |t: ThreadRef| voice.managed(t).map_or(&[][..], |m| m.frames.as_slice());
    if let Some(here) = frames(waiter).get(wait.managed_frame.unwrap_or(0) as usize) {
        let mut inside = 0;
        for f in frames(t).iter().filter(|f| f.file == here.file) {
            inside = inside.max(if f.function == here.function { 4 } else { 2 });
        }
        rank += inside;
    }
    let native = |t: ThreadRef| 0..voice.stack(t).map_or(0, |s| u32::try_from(s.frames.len()).unwrap_or(u32::MAX));
    let own = native(waiter).skip(wait.frame.0 as usize).map(FrameIx).find_map(|f| {
        let name = voice.own_name(waiter, f)?;
        Some((name, voice.module(waiter, f)))
    });
    if let Some((name, module)) = own {
        let mut inside = 0;
        for f in native(t).map(FrameIx).filter(|f| voice.module(t, *f) == module) {
            let same = voice.own_name(t, f).is_some_and(|n| n == name);
            inside = inside.max(if same { 4 } else { 2 });
        }
        rank += inside;
    }
    // who works through a queue of its own is there for something else
    rank + u32::from(look.graph.waits.get(&t).is_some_and(|w| !super::actors::is_for_work(look, w)))
}
