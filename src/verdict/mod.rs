//! Graph → verdict: what kind of hang this is, how sure, why, and what to change. `patterns/` holds one file per pattern.
//!
//! Knows nothing of formats: it gives words, the report lays them out.

mod headline;
mod knot;
#[cfg(test)]
pub(crate) mod made_up;
mod movement;
mod nobody;
pub mod patterns;
mod stall;
mod stuck;
#[cfg(test)]
mod tests;
mod voice;

pub use movement::Movement;
pub use voice::{Voice, function_name, is_std_header, plain};

use crate::facts::{Certainty, Facts, Hold, Holder, ResourceId, Timeout};
use crate::graph::{Graph, Step};
use crate::snapshot::Snapshot;
use crate::units::{ThreadRef, Tid};
use crate::unwind::Stack;
use patterns::{Scene, Shape};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a verdict rests on: one instant of one or more processes, and what moved since an earlier one.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// Who waits for whom.
    pub graph: &'a Graph,
    /// What the runtimes found, all processes' together.
    pub facts: &'a Facts,
    /// The processes, indexed by `ProcessIx`.
    pub snapshots: &'a [Snapshot],
    /// A stack for each thread of each process.
    pub stacks: &'a [Vec<Stack>],
    /// What moved between an earlier look and this one. `None`: this is the only look.
    pub movement: Option<&'a Movement>,
    /// Whether parts of the target could not be read.
    pub partial: bool,
    /// Threads of which nobody can tell where they are: their code or their stacks could not be read.
    pub unplaced: usize,
}

/// What kind of hang, gravest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A cycle over two or more threads.
    Deadlock,
    /// A cycle of one.
    SelfDeadlock,
    /// The holder does not exist.
    OrphanedLock,
    /// No cycle; the rest wait behind one thread that waits for something that is named.
    Stalled,
    /// Threads are running.
    Busy,
    /// Threads wait for work, as they do in health.
    Idle,
}

impl Kind {
    /// The contract's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Deadlock => "deadlock",
            Kind::SelfDeadlock => "self-deadlock",
            Kind::OrphanedLock => "orphaned-lock",
            Kind::Stalled => "stalled",
            Kind::Busy => "busy",
            Kind::Idle => "idle",
        }
    }

    /// Whether nothing but outside help ends it.
    #[must_use]
    pub fn is_stuck(self) -> bool {
        matches!(self, Kind::Deadlock | Kind::SelfDeadlock | Kind::OrphanedLock)
    }
}

/// One cycle, explained.
#[derive(Clone, PartialEq, Debug)]
pub struct Cycle {
    /// The contract's word for its pattern.
    pub pattern: &'static str,
    /// That of its weakest hold.
    pub certainty: Certainty,
    /// Why nobody can go on, in sentences.
    pub explanation: String,
    /// What to change in the code, in sentences.
    pub advice: String,
    /// Round the cycle once, from its smallest thread.
    pub steps: Vec<Step>,
}

/// A thread that only queues behind one that is stuck.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Behind {
    /// Who queues.
    pub thread: ThreadRef,
    /// Behind whom.
    pub behind: ThreadRef,
}

/// Where it begins.
#[derive(Clone, PartialEq, Debug)]
pub struct RootCause {
    /// The thread whose doing it is; `None` where that thread does not exist any more.
    pub thread: Option<ThreadRef>,
    /// The contract's word.
    pub pattern: &'static str,
    /// One or two sentences.
    pub explanation: String,
}

/// A lock whose holder does not exist.
#[derive(Clone, PartialEq, Debug)]
pub struct Orphan {
    /// The lock.
    pub resource: ResourceId,
    /// Who held it, as the lock records it.
    pub owner: Tid,
    /// Who waits for it, ascending.
    pub waiters: Vec<ThreadRef>,
    /// The contract's word for its pattern.
    pub pattern: &'static str,
    /// How sure it is that this owner holds it.
    pub certainty: Certainty,
    /// Why nobody can go on.
    pub explanation: String,
    /// What to change.
    pub advice: String,
}

/// A chain of waits that ends in a thread which does not move.
#[derive(Clone, PartialEq, Debug)]
pub struct Stall {
    /// The thread all others of the chain wait behind.
    pub root: ThreadRef,
    /// Who waits behind it, ascending.
    pub behind: Vec<ThreadRef>,
    /// The cycle that its chain runs into, where somebody outside it may yet open it; else empty.
    pub suspected: Vec<Step>,
    /// The contract's word for its pattern.
    pub pattern: &'static str,
    /// That of the weakest hold of the chain; `None` where no hold is part of it.
    pub certainty: Option<Certainty>,
    /// What the root waits for and what that means.
    pub explanation: String,
    /// What to do.
    pub advice: String,
}

/// What is wrong, how sure that is, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The gravest thing found.
    pub kind: Kind,
    /// Of the weakest hold it rests on; `None` where it rests on none (`busy`, `idle`).
    pub certainty: Option<Certainty>,
    /// One sentence.
    pub headline: String,
    /// Deadlocks, surest first, then in the order of their threads.
    pub cycles: Vec<Cycle>,
    /// Locks whose holder is gone.
    pub orphans: Vec<Orphan>,
    /// Chains that end in a thread that does not move; the one most threads wait behind first.
    pub stalls: Vec<Stall>,
    /// Threads that merely queue behind a cycle, an orphan's waiter or a stalled root.
    pub blocked_behind: Vec<Behind>,
    /// Where it begins.
    pub root_causes: Vec<RootCause>,
    /// Holds the verdict deduced by elimination, for the steps of a cycle that no decoder's hold supports.
    pub inferred_holds: Vec<Hold>,
    /// Lines worth saying that did not decide: a cycle that a time-out will break, that one look cannot tell hung from slow.
    pub notes: Vec<String>,
    /// Whether parts of the target could not be read.
    pub partial: bool,
    /// How many looks it rests on.
    pub looks: u8,
}

impl Verdict {
    /// The contract's exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Deadlock | Kind::SelfDeadlock | Kind::OrphanedLock => 1,
            Kind::Stalled => 3,
            Kind::Busy | Kind::Idle if self.partial => 4,
            Kind::Busy | Kind::Idle => 0,
        }
    }

    /// Whether a second look could change it: only what a field or a stack proves stands after one.
    #[must_use]
    pub fn wants_second_look(&self) -> bool {
        !(self.kind.is_stuck() && self.certainty > Some(Certainty::Inferred))
    }

    /// The threads its cycles, orphans and stalls are about, in the order they are told.
    #[must_use]
    pub fn protagonists(&self) -> Vec<ThreadRef> {
        let mut out: Vec<ThreadRef> = Vec::new();
        let cycles = self.cycles.iter().flat_map(|c| c.steps.iter().map(|s| s.thread));
        let orphans = self.orphans.iter().filter_map(|o| o.waiters.first().copied());
        let stalls = self.stalls.iter().map(|s| s.root);
        for t in cycles.chain(orphans).chain(stalls) {
            if !out.contains(&t) {
                out.push(t);
            }
        }
        out
    }
}

/// Judges a look.
#[must_use]
pub fn judge(look: &Look<'_>) -> Verdict {
    let voice = Voice::new(look.graph, look.facts, look.snapshots, look.stacks);
    let mut verdict = Verdict {
        kind: Kind::Idle,
        certainty: None,
        headline: String::new(),
        cycles: Vec::new(),
        orphans: Vec::new(),
        stalls: Vec::new(),
        blocked_behind: Vec::new(),
        root_causes: Vec::new(),
        inferred_holds: Vec::new(),
        notes: look.facts.notes.clone(),
        partial: look.partial || look.unplaced > 0,
        looks: if look.movement.is_some() { 2 } else { 1 },
    };
    verdict.take_cycles(look, &voice);
    verdict.take_orphans(look, &voice);
    verdict.take_knots(look, &voice);
    verdict.cycles.sort_by_key(|c| std::cmp::Reverse(c.certainty));
    if verdict.cycles.is_empty() && verdict.orphans.is_empty() {
        verdict.take_stalls(look, &voice);
    }
    verdict.note_suspicions(look, &voice);
    verdict.queue_up(look);
    verdict.decide(look);
    verdict.headline = headline::of(&verdict, look, &voice);
    verdict
}

/// Whether a wait ends by itself.
fn ends_by_itself(timeout: Timeout) -> bool {
    matches!(timeout, Timeout::Some | Timeout::Seconds(_))
}

impl Verdict {
    fn add_cycle(&mut self, look: &Look<'_>, voice: &Voice<'_>, steps: Vec<Step>) {
        let scene = Scene { look, voice, shape: Shape::Cycle(&steps), inferred: &self.inferred_holds };
        let (pattern, story) = scene.told();
        let certainty = scene.certainty();
        self.root_causes.push(RootCause { thread: story.culprit, pattern, explanation: story.explanation.clone() });
        self.cycles.push(Cycle { pattern, certainty, explanation: story.explanation, advice: story.advice, steps });
    }

    fn take_cycles(&mut self, look: &Look<'_>, voice: &Voice<'_>) {
        let stuck = LazyCell::new(|| stuck::stuck(look, &BTreeSet::new()));
        for steps in &look.graph.cycles {
            let timed =
                steps.iter().find(|s| look.graph.waits.get(&s.thread).is_some_and(|w| ends_by_itself(w.timeout)));
            match timed {
                None if knot::closes(look, steps, |t| stuck.contains(&t)) => self.add_cycle(look, voice, steps.clone()),
                // told by the stalls
                None => {}
                Some(step) => self.notes.push(format!(
                    "{} threads wait for each other, but {} waits with a time-out: not a deadlock, it will break the cycle",
                    steps.len(),
                    voice.thread(step.thread)
                )),
            }
        }
    }

    /// Tells of the cycles that somebody outside them may yet open, where no stall does.
    fn note_suspicions(&mut self, look: &Look<'_>, voice: &Voice<'_>) {
        let timed = |s: &Step| look.graph.waits.get(&s.thread).is_some_and(|w| ends_by_itself(w.timeout));
        for steps in look.graph.cycles.iter().filter(|c| !c.iter().any(timed)) {
            let told =
                self.cycles.iter().any(|c| c.steps == *steps) || self.stalls.iter().any(|s| s.suspected == *steps);
            if !told {
                let scene = Scene { look, voice, shape: Shape::Cycle(steps), inferred: &[] };
                self.notes.push(format!(
                    "a deadlock is suspected, not proven: {}: {}",
                    scene.round(),
                    scene.who_may_give()
                ));
            }
        }
    }

    fn take_knots(&mut self, look: &Look<'_>, voice: &Voice<'_>) {
        let cycles = self.cycles.iter().flat_map(|c| c.steps.iter().map(|s| s.thread));
        let told: BTreeSet<ThreadRef> = cycles.chain(self.orphans.iter().flat_map(|o| o.waiters.clone())).collect();
        for steps in knot::find_any(look, &told) {
            self.add_cycle(look, voice, steps);
        }
        for knot in knot::find(look, &told) {
            self.inferred_holds.extend(knot.holds);
            self.add_cycle(look, voice, knot.steps);
        }
    }

    fn take_orphans(&mut self, look: &Look<'_>, voice: &Voice<'_>) {
        for (id, holds) in &look.graph.holds {
            let Some((owner, certainty)) = holds.iter().find_map(|h| match h.holder {
                Holder::Gone(_, tid) => Some((tid, h.certainty)),
                _ => None,
            }) else {
                continue;
            };
            let waiters: Vec<ThreadRef> = look
                .graph
                .waits
                .values()
                .filter(|w| w.on == *id && look.graph.needs_holders(w) && !ends_by_itself(w.timeout))
                .map(|w| w.thread)
                .collect();
            if waiters.is_empty() {
                continue;
            }
            let shape = Shape::Orphan { resource: *id, owner, waiters: &waiters };
            let (pattern, story) = Scene { look, voice, shape, inferred: &[] }.told();
            self.root_causes.push(RootCause { thread: None, pattern, explanation: story.explanation.clone() });
            self.orphans.push(Orphan {
                resource: *id,
                owner,
                waiters,
                pattern,
                certainty,
                explanation: story.explanation,
                advice: story.advice,
            });
        }
    }

    fn take_stalls(&mut self, look: &Look<'_>, voice: &Voice<'_>) {
        self.stalls = stall::find(look, voice);
        for stall in &self.stalls {
            self.root_causes.push(RootCause {
                thread: Some(stall.root),
                pattern: stall.pattern,
                explanation: stall.explanation.clone(),
            });
        }
    }

    /// Threads that wait, directly or through others, for one that is stuck: each behind the one it reaches first.
    fn queue_up(&mut self, look: &Look<'_>) {
        let mut stuck: BTreeMap<ThreadRef, ThreadRef> = BTreeMap::new();
        for t in self.cycles.iter().flat_map(|c| c.steps.iter().map(|s| s.thread)) {
            stuck.insert(t, t);
        }
        for t in self.stalls.iter().map(|s| s.root) {
            stuck.insert(t, t);
        }
        for orphan in &self.orphans {
            let first = orphan.waiters.first().copied();
            for t in &orphan.waiters {
                stuck.insert(*t, first.unwrap_or(*t));
            }
        }
        let mut next: VecDeque<ThreadRef> = stuck.keys().copied().collect();
        while let Some(t) = next.pop_front() {
            let Some(behind) = stuck.get(&t).copied() else { continue };
            for w in look.graph.behind(t) {
                if !stuck.contains_key(w) {
                    stuck.insert(*w, behind);
                    next.push_back(*w);
                }
            }
        }
        self.blocked_behind =
            stuck.into_iter().filter(|(t, b)| t != b).map(|(thread, behind)| Behind { thread, behind }).collect();
    }

    fn decide(&mut self, look: &Look<'_>) {
        let cycle = self.cycles.iter().find(|c| c.steps.len() > 1);
        (self.kind, self.certainty) = if let Some(cycle) = cycle {
            (Kind::Deadlock, Some(cycle.certainty))
        } else if let Some(cycle) = self.cycles.first() {
            (Kind::SelfDeadlock, Some(cycle.certainty))
        } else if let Some(orphan) = self.orphans.first() {
            (Kind::OrphanedLock, Some(orphan.certainty))
        } else if let Some(stall) = self.stalls.first() {
            (Kind::Stalled, stall.certainty)
        } else if stall::threads(look).iter().any(|t| stall::doing(look, *t) == stall::Doing::Runs) {
            (Kind::Busy, None)
        } else {
            (Kind::Idle, None)
        };
        if self.looks == 1 && !self.kind.is_stuck() {
            self.notes.push("this is one look: it cannot tell hung from slow".to_owned());
        }
    }
}
