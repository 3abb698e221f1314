//! The one sentence.

use super::patterns::{Scene, Shape};
use super::{Case, Kind, Look, Verdict, Voice, actors, stall};
use crate::facts::{Certainty, ResourceId, ResourceKind, Wait, Wakers};
use crate::graph::Step;
use crate::units::ThreadRef;

/// Threads a headline names; a longer ring is told by its ends.
const NAMED: usize = 3;

pub(super) fn of(verdict: &Verdict, case: Case<'_>) -> String {
    let Case { look, voice, .. } = case;
    match verdict.kind {
        Kind::Deadlock | Kind::SelfDeadlock => cycle(verdict, look, voice),
        Kind::OrphanedLock => orphan(verdict, voice),
        Kind::Stalled => stalled(verdict, look, voice),
        Kind::Busy | Kind::Idle if look.unplaced > 0 => in_part(look),
        Kind::Busy => busy(verdict, look),
        Kind::Idle => idle(verdict, case),
    }
}

fn sure(certainty: Option<Certainty>) -> &'static str {
    match certainty {
        Some(Certainty::Recorded | Certainty::Witnessed) => "proven",
        Some(Certainty::Inferred) | None => "inferred",
    }
}

fn cycle(verdict: &Verdict, look: &Look<'_>, voice: &Voice<'_>) -> String {
    let is_self = verdict.kind == Kind::SelfDeadlock;
    let Some(cycle) = verdict.cycles.iter().find(|c| is_self || c.steps.len() > 1) else { return String::new() };
    let sure = match (sure(Some(cycle.certainty)), verdict.looks) {
        ("inferred", 1) => "inferred, if it was not moving",
        (sure, _) => sure,
    };
    let scene = Scene { look, voice, shape: Shape::Cycle(&cycle.steps), inferred: &verdict.inferred_holds };
    let mut out = match cycle.steps.as_slice() {
        [step] => format!("SELF-DEADLOCK, {sure}: {} {}", voice.thread(step.thread), alone(look, voice, *step)),
        steps if steps.len() <= NAMED => format!("DEADLOCK, {} threads, {sure}: {}", steps.len(), scene.round()),
        steps => {
            let first = scene.beginning();
            format!("DEADLOCK, a ring of {} threads, {sure}: {first}, and so on round to the first", steps.len())
        }
    };
    let queued = queued(verdict);
    if !queued.is_empty() {
        out += &format!("; {queued}");
    }
    match verdict.cycles.len() - 1 {
        0 => {}
        1 => out += "; there is 1 more cycle",
        n => out += &format!("; there are {n} more cycles"),
    }
    out
}

/// How a thread waits for itself.
fn alone(look: &Look<'_>, voice: &Voice<'_>, step: Step) -> String {
    let id = step.waits_for;
    let waits = voice.waits(id);
    if look.graph.resource(id).is_some_and(|r| r.kind == ResourceKind::WorkerPool) {
        return format!("waits for work that is queued in {}, and is its only worker", voice.name(id));
    }
    if look.graph.resource(id).is_some_and(|r| r.kind == ResourceKind::PythonTask) {
        return "runs an event loop whose tasks all wait for each other".to_owned();
    }
    if look.graph.resource(id).is_some_and(|r| r.kind == ResourceKind::Pipe) {
        return format!("{waits}, which only its own process could end");
    }
    let mine = || look.facts.tasks.iter().filter(|t| t.thread == Some(step.thread));
    if mine().any(|t| t.completes.contains(&id)) {
        return format!("{waits}, which only its own event loop can complete");
    }
    if let Some(task) = mine().find(|t| t.holds.contains(&id)) {
        return format!("{waits}, which task “{}” of its own event loop holds", super::plain(&task.name));
    }
    format!("holds {} and waits for it again", voice.name(id))
}

fn queued(verdict: &Verdict) -> String {
    match verdict.blocked_behind.len() {
        0 => String::new(),
        1 => "1 other thread only waits behind".to_owned() + behind(verdict),
        n => format!("{n} other threads only wait behind") + behind(verdict),
    }
}

fn behind(verdict: &Verdict) -> &'static str {
    if verdict.kind == Kind::Deadlock { " them" } else { " it" }
}

fn orphan(verdict: &Verdict, voice: &Voice<'_>) -> String {
    let Some(orphan) = verdict.orphans.first() else { return String::new() };
    let who = match orphan.waiters.as_slice() {
        [one] => format!("{} waits for it", voice.thread(*one)),
        many => format!("{} threads wait for it", many.len()),
    };
    let frozen = orphan.waiters.first().and_then(|w| super::patterns::frozen(voice, *w, orphan.owner));
    let frozen =
        frozen.map(|t| format!("is held by {}, which the shutdown of the interpreter has frozen", voice.thread(t)));
    let held = match (orphan.pattern, orphan.owner.0) {
        ("fork-inherited-lock", 0) => "was held by a thread of the parent when it forked, which is not here".to_owned(),
        ("fork-inherited-lock", tid) => {
            format!("is held by thread {tid}, which stayed behind in the parent at the fork")
        }
        (_, 0) => "is held by nobody who could let go".to_owned(),
        (_, tid) => format!("is held by tid {tid}, which is no thread of this process"),
    };
    let task = voice.resource(orphan.resource).is_some_and(|r| r.kind == ResourceKind::PythonTask);
    let held =
        if task { "is locked, and no task is left that would release it".to_owned() } else { frozen.unwrap_or(held) };
    format!("ORPHANED LOCK, {}: {} {held}; {who} for ever", sure(Some(orphan.certainty)), voice.name(orphan.resource))
}

fn stalled(verdict: &Verdict, look: &Look<'_>, voice: &Voice<'_>) -> String {
    let Some(stall) = verdict.stalls.first() else { return String::new() };
    let gpu = look
        .graph
        .waits
        .get(&stall.root)
        .is_some_and(|w| look.graph.resource(w.on).is_some_and(|r| super::patterns::is_device(r.kind)));
    let device = look.facts.devices.get(&stall.root).filter(|_| gpu);
    let lost = look.graph.waits.get(&stall.root).is_some_and(|w| look.facts.lost_results.contains_key(&w.on));
    let label = match stall.pattern {
        _ if device.is_some_and(|d| d.program) => "STALLED",
        _ if gpu => "WAITING FOR THE GPU",
        _ if lost => "STALLED, a result is lost",
        "lost-wakeup-suspected" => "STALLED, nobody is left to wake it",
        "peer-wait" => "WAITING FOR ANOTHER PROCESS",
        _ if !look.graph.waits.contains_key(&stall.root) => "BLOCKED IN THE KERNEL",
        _ => "STALLED",
    };
    let is_end = |id| look.graph.resource(id).is_some_and(|r| super::patterns::is_end(r.kind));
    let holds: Vec<ResourceId> = {
        let mut held: Vec<_> = look
            .graph
            .held_by(stall.root)
            .filter(|h| !is_end(h.of))
            .filter(|h| stall.behind.iter().any(|t| look.graph.waits.get(t).is_some_and(|w| w.on == h.of)))
            .map(|h| h.of)
            .collect();
        held.dedup();
        held
    };
    let waits = match look.graph.waits.get(&stall.root) {
        Some(wait) => match device.and_then(|d| Some((d.program, d.brief.as_deref()?))) {
            Some((false, brief)) => format!("waits{}: {brief}", voice.in_outer_device_call(stall.root)),
            Some((true, brief)) => {
                format!("{}{}: {brief}", voice.waits(wait.on), voice.in_device_call(stall.root))
            }
            None => voice.waits(wait.on) + &voice.in_device_call(stall.root),
        },
        None => match voice.state(stall.root).and_then(|s| s.wchan.as_deref()) {
            Some(wchan) => format!("is blocked in {}", super::plain(wchan)),
            None => "is blocked in state D".to_owned(),
        },
    };
    let holds = if holds.is_empty() { String::new() } else { format!("{} and ", voice.holds(&holds)) };
    let behind = match stall.behind.len() {
        0 => String::new(),
        1 => "; 1 thread waits behind it".to_owned(),
        n => format!("; {n} threads wait behind it"),
    };
    if !stall.suspected.is_empty() {
        let scene = Scene { look, voice, shape: Shape::Cycle(&stall.suspected), inferred: &verdict.inferred_holds };
        return format!("STALLED, a deadlock suspected, not proven: {}", scene.round());
    }
    let unknown = look
        .graph
        .waits
        .get(&stall.root)
        .is_some_and(|w| look.graph.needs_holders(w) && look.graph.holders(w.on).is_empty());
    let unknown = if unknown { ", whose holder is not recorded" } else { "" };
    let unknown = if stall.pattern == "pipe-full" { ", which is full" } else { unknown };
    let cycle = if stall.pattern == "lost-wakeup-suspected" { ":" } else { ", no cycle:" };
    format!("{label}{cycle} {} {holds}{waits}{unknown}{behind}", voice.thread(stall.root))
}

/// Nothing was found, and there are threads of which nothing is known.
fn in_part(look: &Look<'_>) -> String {
    let all: usize = look.snapshots.iter().map(|s| s.threads.len()).sum();
    let (who, rest) = match (look.unplaced, all) {
        (1, 1) => ("the only thread is".to_owned(), ""),
        (n, all) if n >= all => (format!("all {} are", threads(n)), ""),
        (1, all) => (format!("1 of {} is", threads(all)), "; nothing else is seen to be stuck"),
        (n, all) => (format!("{n} of {} are", threads(all)), "; nothing else is seen to be stuck"),
    };
    format!("CANNOT TELL: {who} where code or stack could not be read{rest}")
}

fn busy(verdict: &Verdict, look: &Look<'_>) -> String {
    let all = stall::threads(look);
    let running = all.iter().filter(|t| stall::doing(look, **t) == stall::Doing::Runs).count();
    let first = if verdict.looks > 1 && !verdict.partial { "nothing is stuck" } else { "nothing is seen to be stuck" };
    let runs = if running == 1 { "runs" } else { "run" };
    format!("BUSY: {first}; {running} of {} {runs}, {}", threads(all.len()), for_locks(look))
}

/// How many wait for locks, and how many for what may be one: `3 wait for a lock`, `2 wait for the GIL`.
fn for_locks(look: &Look<'_>) -> String {
    let kinds = || look.graph.waits.values().filter_map(|w| look.graph.resource(w.on));
    let locks = kinds().filter(|r| super::patterns::is_lock(r.kind) && !r.idle).count();
    let gil = kinds().filter(|r| r.kind == ResourceKind::Gil).count();
    // locks of Rust's library, Abseil, Go and others are bare words
    let maybe = kinds().filter(|r| r.kind == ResourceKind::Futex).count();
    match (locks, maybe) {
        (0, 0) => "none waits for a lock".to_owned(),
        (0, n) => format!("{} for a futex, which may be a lock", waits(n)),
        (n, 0) if n == gil => format!("{} for the GIL", waits(n)),
        (n, 0) => format!("{} for a lock", waits(n)),
        (n, m) => format!("{} for a lock, {} for a futex, which may be one", waits(n), waits(m)),
    }
}

/// Threads wait, none is seen to be stuck. That nothing is stuck is claimed only where all wait for what work arrives on, or
/// behind such a thread, or for a bounded time.
fn idle(verdict: &Verdict, case: Case<'_>) -> String {
    let Case { look, blocked, .. } = case;
    let all = stall::threads(look);
    let wait = |t: &ThreadRef| look.graph.waits.get(t);
    let sure = |w: &Wait| {
        super::ends_by_itself(w.timeout)
            || actors::is_for_work(look, w)
            || look.graph.resource(w.on).is_some_and(|r| r.idle || !super::patterns::is_lock(r.kind))
                && !blocked.contains(w.thread)
                && look.graph.resource(w.on).is_some_and(|r| r.kind != ResourceKind::Futex)
    };
    let claimed = verdict.looks > 1 && !verdict.partial && all.iter().all(|t| wait(t).is_some_and(sure));
    let first = if claimed { "nothing is stuck" } else { "nothing is seen to be stuck" };
    if !all.is_empty() && all.iter().all(|t| blocked.contains(*t)) {
        let signalled = |t: &&ThreadRef| wait(t).is_some_and(|w| actors::wakers(look, w) == Some(Wakers::AnyThread));
        let handler = all
            .iter()
            .filter(signalled)
            .any(|t| wait(t).is_some_and(|w| actors::handler(look, w) != actors::Handler::None));
        return match (all.len(), handler) {
            (1, true) => format!("IDLE: {first}; the only thread waits for the handler of a signal"),
            (1, false) => format!("IDLE: {first}; the only thread waits for work"),
            (n, true) => {
                format!("IDLE: {first}; all {} wait for one another, or for the handler of a signal", threads(n))
            }
            (n, false) => format!("IDLE: {first}; all {} wait for work", threads(n)),
        };
    }
    let rest_of = |t: &&ThreadRef| wait(t).is_some_and(|w| !sure(w));
    let locks: Vec<&Wait> = look.graph.waits.values().filter(|w| is_for_lock(look, w)).collect();
    let timed = locks.iter().all(|w| super::ends_by_itself(w.timeout));
    let unknown = all.iter().filter(rest_of).count();
    let unseen = all.iter().filter(|t| wait(t).is_none()).count();
    let rest = match (locks.len(), unknown, all.len()) {
        (0, 0, 1) if unseen > 0 => "the only thread sleeps, on what is not known".to_owned(),
        (0, 0, n) if unseen > 0 => {
            let sleep = if unseen == 1 { "sleeps" } else { "sleep" };
            format!("{unseen} of {} {sleep}, on what is not known, the rest for work or for the outside", threads(n))
        }
        (0, 0, 1) => "the only thread waits for work or for the outside".to_owned(),
        (0, 0, n) => format!("all {} wait for work or for the outside", threads(n)),
        (0, m, n) => {
            format!("{m} of {} {} for what may be a lock, the rest for work or for the outside", threads(n), verb(m))
        }
        (n, _, all) => {
            let how = if timed { "a lock with a time-out" } else { "a lock" };
            format!("{n} of {} {} for {how}, the rest for work or for the outside", threads(all), verb(n))
        }
    };
    format!("IDLE: {first}; {rest}")
}

fn is_for_lock(look: &Look<'_>, wait: &Wait) -> bool {
    look.graph.resource(wait.on).is_some_and(|r| super::patterns::is_lock(r.kind) && !r.idle)
}

fn verb(n: usize) -> &'static str {
    if n == 1 { "waits" } else { "wait" }
}

fn threads(n: usize) -> String {
    if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") }
}

fn waits(n: usize) -> String {
    if n == 1 { "1 waits".to_owned() } else { format!("{n} wait") }
}
