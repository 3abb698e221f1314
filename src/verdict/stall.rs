//! Chains: a thread waits for a lock, its holder waits for something else, and so on to a thread that waits for nothing
//! another thread of the run is known to give. Where that thread does not move, all wait behind it.

use super::actors::{self, Handler};
use super::patterns::{Scene, Shape, is_device, is_end, is_lock};
use super::voice::capital;
use super::{Case, Component, Look, Movement, Stall, Suspect};
use crate::facts::{Certainty, DeviceWait, Hold, Holder, ResourceId, ResourceKind, Timeout, Wait, Wakers};
use crate::target::ThreadState;
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
        None if executes(state) => Doing::Runs,
        None => Doing::Unknown,
    }
}

/// Whether a thread was on a CPU at this instant, or would have been, whatever it waits for now and then.
pub(super) fn is_on_cpu(state: &ThreadState) -> bool {
    state.state == Some('R') || executes(state)
}

/// Whether a thread was executing at this instant: it was stopped outside any system call.
fn executes(state: &ThreadState) -> bool {
    let asleep = matches!(state.state, Some('S' | 'T' | 't' | 'Z'));
    state.registers.is_some() && state.syscall.is_none() && !asleep
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

/// Chains by the thread they end in.
#[derive(Default)]
struct Chains {
    behind: BTreeMap<ThreadRef, BTreeSet<ThreadRef>>,
    weakest: BTreeMap<ThreadRef, Certainty>,
}

impl Chains {
    /// A thread waits behind `root`, or is it.
    fn add(&mut self, suspects: &[Suspect], thread: ThreadRef, root: ThreadRef, certainty: Option<Certainty>) {
        // a cycle is told once, whoever of it is met first
        let round = suspect_at(suspects, root);
        let root = round.and_then(|s| s.steps.first()).map_or(root, |s| s.thread);
        let is_part = round.is_some_and(|r| r.steps.iter().any(|s| s.thread == thread));
        let behind = self.behind.entry(root).or_default();
        if !is_part && root != thread {
            behind.insert(thread);
        }
        if let Some(c) = certainty {
            self.weakest.entry(root).and_modify(|w| *w = (*w).min(c)).or_insert(c);
        }
    }
}

/// The stalls of a look, the one with the most threads behind it first.
pub(super) fn find(case: Case<'_>, suspects: &[Suspect], inferred: &[Hold]) -> Vec<Stall> {
    let Case { look, voice, .. } = case;
    let mut chains = find_chains(look, suspects);
    // where nobody is left all wait for the same reason, and it is told once
    let closed: Vec<(ThreadRef, &Component)> = find_closed(case);
    let of = |t: &ThreadRef| closed.iter().find(|(_, c)| c.threads.contains(t));
    chains.behind.retain(|root, _| of(root).is_none());
    for (root, component) in &closed {
        chains.weakest.insert(*root, Certainty::Inferred);
        chains.behind.insert(*root, behind(look, component, *root));
    }
    let mut order: Vec<(ThreadRef, BTreeSet<ThreadRef>)> = chains.behind.into_iter().collect();
    order.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.cmp(&b.0)));
    order.truncate(MAX_STALLS);
    order
        .into_iter()
        .map(|(root, behind)| {
            let holds = wanted(look, root);
            let closed = of(&root).map(|(_, c)| *c);
            let shape = Shape::Chain { root, holds: &holds, behind: behind.len(), closed };
            let scene = Scene { look, voice, shape, inferred };
            let (pattern, mut story) = scene.told();
            let suspected = suspect_at(suspects, root);
            if let Some(suspect) = suspected {
                let round = Scene { shape: Shape::Cycle(&suspect.steps), ..scene };
                let waits = format!("{}. Suspected: {}.", capital(&round.round()), suspect.why);
                (story.explanation, story.advice) = (waits, SUSPECTED.to_owned());
            }
            Stall {
                root,
                suspected: suspected.map(|s| s.steps.clone()).unwrap_or_default(),
                certainty: chains.weakest.get(&root).copied(),
                pattern,
                explanation: story.explanation,
                advice: story.advice,
                behind: behind.into_iter().collect(),
            }
        })
        .collect()
}

fn find_chains(look: &Look<'_>, suspects: &[Suspect]) -> Chains {
    let mut chains = Chains::default();
    // who is about to run may have what nobody is known to hold
    let runners = threads(look).into_iter().filter(|t| match look.movement {
        Some(m) => m.starved.contains(t),
        None => doing(look, *t) == Doing::Runs,
    });
    let running: BTreeSet<ProcessIx> = runners.map(|t| t.process).collect();
    // as may who was caught between two of its periodic waits
    let executing = look.snapshots.iter().enumerate().filter(|(_, s)| s.threads.iter().any(is_on_cpu));
    let executing = executing.filter_map(|(p, _)| u32::try_from(p).ok().map(ProcessIx));
    let mut may_hold = running.clone();
    may_hold.extend(executing.filter(|_| look.movement.is_none()));
    let awake: BTreeSet<ProcessIx> =
        threads(look).into_iter().filter(|t| doing(look, *t) == Doing::Runs).map(|t| t.process).collect();
    for wait in look.graph.waits.values() {
        if doing(look, wait.thread) != Doing::Waits {
            continue;
        }
        if is_lost(look, wait) {
            chains.add(suspects, wait.thread, wait.thread, None);
            continue;
        }
        if is_for_others(look, wait) {
            if !awake.contains(&wait.thread.process) {
                chains.add(suspects, wait.thread, wait.thread, None);
            }
            continue;
        }
        let counts = look.graph.resource(wait.on).is_some_and(|r| (is_lock(r.kind) || is_device(r.kind)) && !r.idle);
        if let Some((root, certainty)) = root_of(look, (&running, &may_hold), wait.thread).filter(|_| counts) {
            chains.add(suspects, wait.thread, root, certainty);
        }
    }
    for suspect in suspects {
        let waits = |s: &crate::graph::Step| doing(look, s.thread) == Doing::Waits;
        if let Some(first) = suspect.steps.first().filter(|_| suspect.retried || suspect.steps.iter().all(waits)) {
            // one look, and others run: who waits may be about to go on
            if look.movement.is_some() || !suspect.steps.iter().any(|s| running.contains(&s.thread.process)) {
                chains.add(suspects, first.thread, first.thread, None);
            }
        }
    }
    if look.movement.is_some() {
        // seen twice in state D at the same place: blocked in the kernel, whoever waits behind it
        for t in threads(look).into_iter().filter(|t| doing(look, *t) == Doing::Kernel) {
            chains.behind.entry(t).or_default();
        }
    }
    chains
}

/// Whether a thread waits for a result that nobody is left to send, and nothing that could be on its way moved.
fn is_lost(look: &Look<'_>, wait: &Wait) -> bool {
    let Some(lost) = look.facts.lost_results.get(&wait.on) else { return false };
    lost.waits.iter().all(|t| match look.movement {
        Some(movement) => !movement.moved.contains(t),
        None => doing(look, *t) == Doing::Waits,
    })
}

/// Whether a thread waits for what no work arrives on: the end of a process, room in a pipe or a socket, a file to be opened.
/// Where that is up to threads that were read, one of them may be about to do it. A device is told by how it gets on.
fn is_for_others(look: &Look<'_>, wait: &Wait) -> bool {
    let Some(resource) = look.graph.resource(wait.on) else { return false };
    let kind = match resource.kind {
        ResourceKind::ProcessExit => true,
        ResourceKind::Signal | ResourceKind::Pipe | ResourceKind::Socket | ResourceKind::FileIo => !resource.idle,
        _ => false,
    };
    let full = resource.kind == ResourceKind::Pipe;
    let holders = look.graph.holders(wait.on).iter().filter_map(|h| match h.holder {
        Holder::Thread(t) => Some(t),
        Holder::Gone(..) | Holder::Process(_) => None,
    });
    // a process that was read tells by itself how it gets on; who reads a pipe, only that it does not now
    let mut holders = holders.peekable();
    kind && (holders.peek().is_none() || (full && holders.all(|t| doing(look, t) != Doing::Runs)))
}

/// The closed sets: threads that wait without a time-out, each for what only another one of them could do; one thread to tell
/// each by. Threads that all wait for work are at rest, and so are those that the handler of a signal may wake.
fn find_closed(case: Case<'_>) -> Vec<(ThreadRef, &Component)> {
    let look = case.look;
    let tell = |c: &&Component| {
        let waits = || c.threads.iter().filter_map(|t| look.graph.waits.get(t));
        // who waits for an event beside workers may wait for the end, which Ctrl-C brings as well
        let for_end = |w: &Wait| look.graph.resource(w.on).is_some_and(|r| r.kind == ResourceKind::PythonEvent);
        let for_work = |w: &Wait| actors::is_for_work(look, w);
        let at_rest = waits().all(|w| for_work(w) || for_end(w)) && waits().any(for_work);
        if !c.is_signalled || at_rest || c.handler == Handler::Caught {
            return None;
        }
        let signalled = waits().filter(|w| actors::wakers(look, w) == Some(Wakers::AnyThread));
        // the one that should go on, with the most behind it
        let key = |w: &&Wait| (urgency(look, w), std::cmp::Reverse(behind(look, c, w.thread).len()), w.thread);
        signalled.min_by_key(key).map(|w| w.thread)
    };
    case.blocked.sinks().filter_map(|c| tell(&c).map(|root| (root, c))).collect()
}

/// How much a wait says that its thread should go on: 0, it waits for the others to be done; 1, for an event, which may be that
/// of the end; 2, for work.
fn urgency(look: &Look<'_>, wait: &Wait) -> u8 {
    let kind = look.graph.resource(wait.on).map_or(ResourceKind::Unknown, |r| r.kind);
    match kind {
        ResourceKind::PythonBarrier | ResourceKind::PythonFuture | ResourceKind::PythonSemaphore => 0,
        ResourceKind::PythonQueue if !actors::is_for_work(look, wait) => 0,
        _ if actors::is_for_work(look, wait) => 2,
        _ => 1,
    }
}

/// Who of a component waits for `root`, directly or through others.
fn behind(look: &Look<'_>, component: &Component, root: ThreadRef) -> BTreeSet<ThreadRef> {
    let mut out = BTreeSet::new();
    let mut next = vec![root];
    while let Some(t) = next.pop() {
        for u in look.graph.behind(t) {
            if *u != root && component.threads.contains(u) && out.insert(*u) {
                next.push(*u);
            }
        }
    }
    out
}

/// The cycle through `root` that is not claimed.
fn suspect_at(suspects: &[Suspect], root: ThreadRef) -> Option<&Suspect> {
    suspects.iter().find(|s| s.steps.iter().any(|s| s.thread == root))
}

/// What `root` holds and somebody waits for, most waited for first.
fn wanted(look: &Look<'_>, root: ThreadRef) -> Vec<ResourceId> {
    let mut held: Vec<(usize, ResourceId)> = look
        .graph
        .held_by(root)
        .filter(|h| look.graph.resource(h.of).is_some_and(|r| !is_end(r.kind)))
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
/// Processes of `running` have threads that are about to run, and have not been seen to go on; those of `may_hold` have threads
/// that may have what nobody is known to hold.
fn root_of(
    look: &Look<'_>,
    (running, may_hold): (&BTreeSet<ProcessIx>, &BTreeSet<ProcessIx>),
    from: ThreadRef,
) -> Option<(ThreadRef, Option<Certainty>)> {
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
        if wait.is_some_and(|w| changes_hands(look, w) || may_be_a_runner_s(look, w)) {
            return None;
        }
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
            // a lock whose holder is not known may be about to be released by who runs; and a GIL nobody holds is about to be
            // taken by one of its waiters
            (_, None) if is_unfounded(look, running, from, at) => return None,
            (_, None) if wait.is_some_and(|w| w.timeout == Timeout::Periodic) => return None,
            (_, None) if may_hold.contains(&at.process) && wait.is_some_and(|w| is_up_to_anyone(look, w)) => {
                return None;
            }
            (_, None) => return Some((at, weakest)),
        }
    }
}

/// Whether somebody waited for the same lock in both looks and was woken in between: it was given back meanwhile.
fn changes_hands(look: &Look<'_>, wait: &Wait) -> bool {
    let Some(m) = look.movement.filter(|_| look.graph.needs_holders(wait)) else { return false };
    let untimed = |t: &ThreadRef| look.graph.waits.get(t).is_some_and(|w| w.timeout == Timeout::None);
    let again = |t: ThreadRef| m.moved.contains(&t) && !m.elsewhere.contains(&t) && untimed(&t);
    look.graph.waiters(wait.on).any(again)
}

/// Whether a thread that runs may hold what is waited for, since its stack would not show it.
fn may_be_a_runner_s(look: &Look<'_>, wait: &Wait) -> bool {
    let unseen = look.facts.unseen.contains(&wait.on) && look.graph.holders(wait.on).is_empty();
    let runs = |t: &ThreadRef| t.process == wait.thread.process && !look.graph.waits.contains_key(t);
    unseen && look.movement.is_some_and(|m| m.ran.iter().any(runs))
}

/// Whether one look tells nothing of a chain that ends where it begins: somebody runs.
fn is_unfounded(look: &Look<'_>, running: &BTreeSet<ProcessIx>, from: ThreadRef, at: ThreadRef) -> bool {
    at == from && look.movement.is_none() && running.contains(&at.process) && !look.facts.devices.contains_key(&at)
}
