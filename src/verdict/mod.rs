//! Graph → verdict: what kind of hang this is, how sure, why, and what to change. `patterns/` holds one file per pattern.
//!
//! Knows nothing of formats: it gives words, the report lays them out.

mod actors;
mod blocked;
mod headline;
#[cfg(test)]
pub(crate) mod made_up;
mod movement;
pub mod patterns;
mod rings;
mod stall;
#[cfg(test)]
mod tests;
mod voice;

pub use blocked::{Blocked, Component};
pub use movement::Movement;
pub use voice::{Voice, function_name, is_std_header, plain};

use crate::facts::{Certainty, Facts, Hold, Holder, ResourceId, Timeout, Wait};
use crate::graph::{Graph, Step};
use crate::snapshot::Snapshot;
use crate::units::{ThreadRef, Tid};
use crate::unwind::Stack;
use actors::Handler;
use patterns::{Scene, Shape};
use std::collections::{BTreeMap, VecDeque};

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
    let blocked = Blocked::of(look);
    let case = Case { look, voice: &voice, blocked: &blocked };
    let mut suspects = verdict.take_cycles(case);
    verdict.take_orphans(case);
    suspects.extend(verdict.take_rings(case));
    verdict.cycles.sort_by_key(|c| std::cmp::Reverse(c.certainty));
    if verdict.cycles.is_empty() && verdict.orphans.is_empty() {
        verdict.take_stalls(case, &suspects);
    }
    verdict.note_suspicions(case, &suspects);
    verdict.queue_up(look);
    verdict.decide(look);
    verdict.headline = headline::of(&verdict, case);
    verdict
}

/// What a verdict is made of.
#[derive(Clone, Copy)]
struct Case<'a> {
    look: &'a Look<'a>,
    voice: &'a Voice<'a>,
    blocked: &'a Blocked,
}

/// A cycle that is not claimed, and why not: in a sentence without a full stop.
struct Suspect {
    steps: Vec<Step>,
    why: String,
    /// Whether its waits have time-outs and were begun anew.
    retried: bool,
}

impl Case<'_> {
    /// Who may open a cycle through a lock that others than its holder may give back, in words; `None` where nobody is left to.
    fn who_may_open(self, steps: &[Step]) -> Option<Option<String>> {
        let of = |s: &Step| Some((s.waits_for, self.look.facts.returnable.get(&s.waits_for)?));
        let (id, why) = steps.iter().find_map(of)?;
        if steps.iter().all(|s| self.is_left_alone(s.thread)) {
            return None;
        }
        Some(Some(format!(
            "a deadlock, unless something else gives {} back; that is not excluded, since {why}, and a thread that waits for \
             none of these, or the handler of a signal, may do so",
            self.voice.name(id)
        )))
    }

    /// Whether nobody is left to wake a thread: only blocked threads could, and no handler of a signal may.
    fn is_left_alone(self, t: ThreadRef) -> bool {
        self.blocked.component(t).is_some_and(|c| c.handler == Handler::None)
    }

    /// Why a cycle that is deduced is not claimed: nothing where it moved, which makes it no cycle; of one look that others ran,
    /// who may be about to open it. `None` where it is to be claimed.
    fn may_move(self, steps: &[Step], certainty: Certainty) -> Option<Option<String>> {
        if certainty > Certainty::Inferred || rings::stands_still(self.look, steps) {
            return None;
        }
        let one_look = "a deadlock, if it was not moving: this is one look, and other threads ran at that instant";
        Some(self.look.movement.is_none().then(|| one_look.to_owned()))
    }

    /// What the handler of a signal may do about a cycle.
    fn handler_may(self, handler: Handler, steps: &[Step]) -> String {
        let signalled = |s: &&Step| {
            let wait = self.look.graph.waits.get(&s.thread);
            wait.is_some_and(|w| actors::handler(self.look, w) != Handler::None)
        };
        let thing =
            steps.iter().find(signalled).map_or_else(|| "one of them".to_owned(), |s| self.voice.name(s.waits_for));
        format!("a deadlock, unless the handler of a signal ends the wait for {thing}; {}", handler.known())
    }
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

    /// Takes the cycles of the graph that nobody can open; gives those that somebody may.
    fn take_cycles(&mut self, case: Case<'_>) -> Vec<Suspect> {
        let Case { look, voice, .. } = case;
        let mut suspects = Vec::new();
        for steps in &look.graph.cycles {
            let timed =
                steps.iter().find(|s| look.graph.waits.get(&s.thread).is_some_and(|w| ends_by_itself(w.timeout)));
            if let Some(step) = timed {
                let who = voice.thread(step.thread);
                if look.movement.is_some_and(|m| m.retried.contains(steps)) {
                    let why = format!(
                        "a deadlock that is retried, unless who gives up gives back what it holds: {who} waits with a \
                         time-out and has begun anew since the look before, and the cycle stands as it stood then"
                    );
                    suspects.push(Suspect { steps: steps.clone(), why, retried: true });
                } else {
                    let may =
                        if look.movement.is_none() { "; it may be one that is tried again and again" } else { "" };
                    self.notes.push(format!(
                        "{} threads wait for each other, but {who} waits with a time-out: not a deadlock, it will break the \
                         cycle{may}",
                        steps.len(),
                    ));
                }
                continue;
            }
            let scene = Scene { look, voice, shape: Shape::Cycle(steps), inferred: &[] };
            if let Some(why) = case.who_may_open(steps).or_else(|| case.may_move(steps, scene.certainty())) {
                suspects.extend(why.map(|why| Suspect { steps: steps.clone(), why, retried: false }));
            } else {
                self.add_cycle(look, voice, steps.clone());
            }
        }
        suspects
    }

    /// Tells of the cycles that somebody outside them may yet open, where no stall does.
    fn note_suspicions(&mut self, case: Case<'_>, suspects: &[Suspect]) {
        for suspect in suspects {
            if !self.stalls.iter().any(|s| s.suspected == suspect.steps) {
                let inferred = &self.inferred_holds;
                let scene = Scene { look: case.look, voice: case.voice, shape: Shape::Cycle(&suspect.steps), inferred };
                let note = format!("a deadlock is suspected, not proven: {}: {}", scene.round(), suspect.why);
                self.notes.push(note);
            }
        }
    }

    /// Takes the rings that are deduced; gives those that somebody may open.
    fn take_rings(&mut self, case: Case<'_>) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        for ring in rings::find(case.look, case.voice, case.blocked) {
            let why = match ring.handler {
                Handler::None => case.may_move(&ring.steps, Certainty::Inferred),
                handler => Some(Some(case.handler_may(handler, &ring.steps))),
            };
            self.inferred_holds.extend(ring.holds);
            match why {
                None => self.add_cycle(case.look, case.voice, ring.steps),
                Some(why) => suspects.extend(why.map(|why| Suspect { steps: ring.steps, why, retried: false })),
            }
        }
        suspects
    }

    fn take_orphans(&mut self, case: Case<'_>) {
        let Case { look, voice, .. } = case;
        for (id, holds) in &look.graph.holds {
            let gone = |h: &Hold| match h.holder {
                Holder::Gone(_, tid) => Some((tid, h.certainty)),
                Holder::Thread(_) | Holder::Process(_) => None,
            };
            let Some((owner, certainty)) = holds.iter().find_map(gone) else { continue };
            let shutting_down = |w: &&Wait| look.facts.shutting_down.contains(&w.thread.process);
            let waits = look.graph.waiters(*id).filter_map(|t| look.graph.waits.get(&t));
            let needs_it = |w: &&Wait| look.graph.needs_holders(w) && !ends_by_itself(w.timeout);
            let waiters: Vec<ThreadRef> = waits
                .filter(needs_it)
                .filter(|w| certainty > Certainty::Inferred || shutting_down(w) || case.is_left_alone(w.thread))
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

    fn take_stalls(&mut self, case: Case<'_>, suspects: &[Suspect]) {
        self.stalls = stall::find(case, suspects, &self.inferred_holds);
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
        } else if stall::threads(look).iter().any(|t| stall::doing(look, *t) == stall::Doing::Runs)
            || self.looks == 1 && look.snapshots.iter().flat_map(|s| &s.threads).any(stall::is_on_cpu)
        {
            (Kind::Busy, None)
        } else {
            (Kind::Idle, None)
        };
        if self.looks == 1 && !self.kind.is_stuck() {
            self.notes.push("this is one look: it cannot tell hung from slow".to_owned());
        }
    }
}
