//! Facts → wait-for graph: threads and resources; waits-for and held-by. Components first, then cycles.
//!
//! Knows nothing of memory, stacks or words. Everything it gives is ordered: equal facts give equal graphs.

mod cycles;
#[cfg(test)]
mod tests;

pub use cycles::sinks_first;

use crate::facts::{
    Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait,
    Wakers,
};
use crate::units::ThreadRef;
use std::collections::{BTreeMap, BTreeSet};

/// One step round a cycle: `thread` waits for `waits_for`, which `held_by` holds and the next step's thread is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Step {
    /// Who waits.
    pub thread: ThreadRef,
    /// For what.
    pub waits_for: ResourceId,
    /// Who holds it.
    pub held_by: ThreadRef,
}

/// What the facts say about who waits for whom.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Every resource, one entry each, whatever the number of decoders that saw it.
    pub resources: BTreeMap<ResourceId, Resource>,
    /// Each waiting thread's one wait: of several the one whose frame lies nearest the application.
    pub waits: BTreeMap<ThreadRef, Wait>,
    /// The waits that lie beneath a thread's wait (the condition variable under the GIL), innermost first.
    pub beneath: BTreeMap<ThreadRef, Vec<Wait>>,
    /// Who holds what: one entry per holder, ordered by holder. Disputed claims are not among them.
    pub holds: BTreeMap<ResourceId, Vec<Hold>>,
    /// Resources whose holder two facts of equal certainty dispute. Nothing is concluded from them.
    pub disputed: BTreeSet<ResourceId>,
    /// Cycles in which each wait needs *that* holder, each turned to begin at its smallest thread; ordered. Waits that end
    /// by themselves are in it like others: the verdict reads their time-outs.
    pub cycles: Vec<Vec<Step>>,
    /// Threads whose wait is over, though they have not run since: they are behind nobody.
    pub woken: BTreeSet<ThreadRef>,
    /// Lines for the report: disputes, bounds that were hit.
    pub notes: Vec<String>,
    /// Who waits for what, each list ascending.
    waiters: BTreeMap<ResourceId, Vec<ThreadRef>>,
    /// Who cannot go on without whom, each list ascending.
    behind: BTreeMap<ThreadRef, Vec<ThreadRef>>,
}

impl Graph {
    /// Builds the graph of all processes' facts.
    #[must_use]
    pub fn build(facts: &Facts) -> Graph {
        let mut graph = Graph { resources: merge_resources(facts), woken: facts.woken.clone(), ..Graph::default() };
        graph.take_waits(facts);
        graph.take_holds(facts);
        graph.let_go(facts);
        graph.look_elsewhere();
        let edges = graph.edges();
        for (thread, to) in &edges {
            for (_, blocker) in to {
                graph.behind.entry(*blocker).or_default().push(*thread);
            }
        }
        let (cycles, cut) = cycles::find(&edges);
        graph.cycles = cycles;
        if cut {
            graph.notes.push(format!("more than {} cycles: the rest is not shown", cycles::MAX_CYCLES));
        }
        graph
    }

    /// The resource named `id`. Every id met in a wait or a hold has one.
    #[must_use]
    pub fn resource(&self, id: ResourceId) -> Option<&Resource> {
        self.resources.get(&id)
    }

    /// What is known of the holders of `id`.
    #[must_use]
    pub fn holders(&self, id: ResourceId) -> &[Hold] {
        self.holds.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The hold of `id` by `thread`.
    #[must_use]
    pub fn hold(&self, id: ResourceId, thread: ThreadRef) -> Option<&Hold> {
        self.holders(id).iter().find(|h| h.holder == Holder::Thread(thread))
    }

    /// The threads that wait for `id`, ascending.
    pub fn waiters(&self, id: ResourceId) -> impl Iterator<Item = ThreadRef> + '_ {
        self.waiters.get(&id).into_iter().flatten().copied()
    }

    /// What `thread` holds, in the order of the resources.
    pub fn held_by(&self, thread: ThreadRef) -> impl Iterator<Item = &Hold> + '_ {
        self.holds.values().flatten().filter(move |h| h.holder == Holder::Thread(thread))
    }

    /// Whether `wait` can end only when every holder lets go, as opposed to any one of several, a signal, or the outside.
    #[must_use]
    pub fn needs_holders(&self, wait: &Wait) -> bool {
        wait.mode != Mode::Any && self.resource(wait.on).is_some_and(|r| r.wakers == Wakers::Holders)
    }

    /// The threads `thread` cannot go on without: the holders of what it waits for, where each of them must let go. Its own
    /// hold counts only where the resource cannot be taken twice.
    #[must_use]
    pub fn blockers(&self, thread: ThreadRef) -> Vec<ThreadRef> {
        let waits = self.waits.get(&thread).filter(|w| self.needs_holders(w) && !self.woken.contains(&thread));
        let Some(wait) = waits else { return Vec::new() };
        let Some(resource) = self.resource(wait.on) else { return Vec::new() };
        self.holders(wait.on)
            .iter()
            .filter_map(|h| match h.holder {
                Holder::Thread(t) if t == thread => self_loop(resource, wait, h).then_some(t),
                Holder::Thread(t) => Some(t),
                Holder::Gone(..) | Holder::Process(_) => None,
            })
            .collect()
    }

    /// The threads that cannot go on without `thread`, ascending: [`Graph::blockers`] turned round.
    #[must_use]
    pub fn behind(&self, thread: ThreadRef) -> &[ThreadRef] {
        self.behind.get(&thread).map_or(&[], Vec::as_slice)
    }

    fn edges(&self) -> BTreeMap<ThreadRef, Vec<(ResourceId, ThreadRef)>> {
        let edges = |(thread, wait): (&ThreadRef, &Wait)| {
            let to: Vec<_> = self.blockers(*thread).into_iter().map(|t| (wait.on, t)).collect();
            (!to.is_empty()).then_some((*thread, to))
        };
        self.waits.iter().filter_map(edges).collect()
    }

    fn take_waits(&mut self, facts: &Facts) {
        let mut all: BTreeMap<ThreadRef, Vec<Wait>> = BTreeMap::new();
        for wait in &facts.waits {
            all.entry(wait.thread).or_default().push(wait.clone());
            self.know(wait.on);
        }
        for (thread, mut waits) in all {
            // nearest the application last; where two frames agree the resource that says more wins
            let weight = |on| self.resource(on).map_or(0, |r| weight(r.kind));
            let order = |w: &Wait| (w.frame, weight(w.on), std::cmp::Reverse(w.on));
            waits.sort_by_key(order);
            let mut kept: Vec<Wait> = Vec::new();
            for wait in waits {
                match kept.iter_mut().find(|k| k.on == wait.on && k.mode == wait.mode) {
                    Some(same) => {
                        same.frame = same.frame.max(wait.frame);
                        add_evidence(&mut same.evidence, &wait.evidence);
                        same.managed_frame = wait.managed_frame.or(same.managed_frame);
                        same.timeout = firmer(same.timeout, wait.timeout);
                    }
                    None => kept.push(wait),
                }
            }
            // an account of a wait met before may have put it nearer the application than those after it
            kept.sort_by_key(order);
            if let Some(top) = kept.pop() {
                self.waiters.entry(top.on).or_default().push(thread);
                self.waits.insert(thread, top);
            }
            if !kept.is_empty() {
                self.beneath.insert(thread, kept);
            }
        }
    }

    fn take_holds(&mut self, facts: &Facts) {
        let mut all: BTreeMap<ResourceId, BTreeMap<Holder, Hold>> = BTreeMap::new();
        for hold in &facts.holds {
            self.know(hold.of);
            let holders = all.entry(hold.of).or_default();
            match holders.get_mut(&hold.holder) {
                Some(same) => merge_hold(same, hold),
                None => {
                    holders.insert(hold.holder, hold.clone());
                }
            }
        }
        // a thread's end is held by the thread itself, whether or not a decoder says so
        for id in self.resources.keys() {
            if let ResourceId::ThreadExit(thread) = id {
                all.entry(*id).or_default().entry(Holder::Thread(*thread)).or_insert_with(|| Hold {
                    holder: Holder::Thread(*thread),
                    of: *id,
                    mode: Mode::Exclusive,
                    certainty: Certainty::Recorded,
                    taken_at: None,
                    taken_at_managed: None,
                    evidence: vec![Evidence::new("a join ends when the joined thread ends")],
                });
            }
        }
        for (id, holders) in all {
            let kept = self.settle(id, holders.into_values().collect());
            if !kept.is_empty() {
                self.holds.insert(id, kept);
            }
        }
    }

    /// Takes away the holds that end by themselves, because their holders are between two waits during which they are given
    /// back. Who sleeps for such a lock is about to have it.
    fn let_go(&mut self, facts: &Facts) {
        for (lock, waited) in &facts.given_back {
            let Some(holds) = self.holds.get_mut(lock) else { continue };
            let before = holds.len();
            holds.retain(|h| match h.holder {
                Holder::Thread(t) => self.waits.get(&t).is_none_or(|w| w.on != *waited),
                Holder::Gone(..) | Holder::Process(_) => true,
            });
            if holds.len() < before {
                self.woken.extend(self.waiters.get(lock).into_iter().flatten());
            }
            if holds.is_empty() {
                self.holds.remove(lock);
            }
        }
    }

    /// Who is blocked in a pipe makes no room in it, nor does it write what it waits to read: it is nobody to wait for, where
    /// others have the other end, too.
    fn look_elsewhere(&mut self) {
        let resources = &self.resources;
        for (id, holds) in &mut self.holds {
            if resources.get(id).is_none_or(|r| r.kind != ResourceKind::Pipe) {
                continue;
            }
            let waits = &self.waits;
            let is_blocked = |h: &Hold| match h.holder {
                Holder::Thread(t) => waits.get(&t).is_some_and(|w| w.on == *id),
                Holder::Gone(..) | Holder::Process(_) => false,
            };
            if !holds.iter().all(is_blocked) {
                holds.retain(|h| !is_blocked(h));
            }
        }
    }

    /// Where one holds it alone nobody else can hold it: the best certainty is believed, and two equal ones are a dispute.
    fn settle(&mut self, id: ResourceId, holds: Vec<Hold>) -> Vec<Hold> {
        if holds.len() < 2 || holds.iter().all(|h| h.mode != Mode::Exclusive) {
            return holds;
        }
        let best = holds.iter().map(|h| h.certainty).max().unwrap_or(Certainty::Inferred);
        // a field that names who is gone may be older than what a living thread's own stack shows
        let gone = holds.iter().any(|h| h.certainty == best && matches!(h.holder, Holder::Gone(..)));
        let least = if gone { best.min(Certainty::Witnessed) } else { best };
        let kept: Vec<Hold> = holds.into_iter().filter(|h| h.certainty >= least).collect();
        if kept.len() > 1 && kept.iter().any(|h| h.mode == Mode::Exclusive) {
            let name = self.resource(id).map_or_else(|| "a resource".to_owned(), display_name);
            self.notes.push(format!(
                "{name}: {} {} holders contradict each other; nothing is concluded from them",
                kept.len(),
                least.word()
            ));
            self.disputed.insert(id);
            return Vec::new();
        }
        kept
    }

    /// A resource nobody described can be ended by anything: nothing is concluded from it.
    fn know(&mut self, id: ResourceId) {
        self.resources.entry(id).or_insert_with(|| Resource {
            id,
            kind: match id {
                ResourceId::ThreadExit(_) => ResourceKind::ThreadExit,
                ResourceId::Numbered(_, kind, _) => kind,
                ResourceId::At(..) | ResourceId::Shared { .. } => ResourceKind::Unknown,
            },
            name: None,
            address: match id {
                ResourceId::At(_, at) => Some(at),
                _ => None,
            },
            reentrancy: Reentrancy::Unknown,
            wakers: if matches!(id, ResourceId::ThreadExit(_)) { Wakers::Holders } else { Wakers::Outside },
            idle: false,
        });
    }
}

/// The name of a resource, else its kind and address.
#[must_use]
pub fn display_name(resource: &Resource) -> String {
    match (&resource.name, resource.address) {
        (Some(name), _) => name.clone(),
        (None, Some(at)) => format!("{} at {at}", resource.kind.word()),
        (None, None) => resource.kind.word().to_owned(),
    }
}

/// Waiting for one's own hold is a cycle of one where the resource cannot be taken twice: read with its kind. Two shared
/// takings do not exclude each other.
#[must_use]
pub fn self_loop(resource: &Resource, wait: &Wait, hold: &Hold) -> bool {
    resource.reentrancy == Reentrancy::Plain && !(wait.mode == Mode::Shared && hold.mode == Mode::Shared)
}

/// How much a kind says; a plain futex is what a decoder reports when it knows nothing better.
fn weight(kind: ResourceKind) -> u8 {
    match kind {
        ResourceKind::Unknown => 0,
        ResourceKind::Futex => 1,
        ResourceKind::Condvar | ResourceKind::Mutex | ResourceKind::Semaphore => 2,
        _ => 3,
    }
}

fn merge_resources(facts: &Facts) -> BTreeMap<ResourceId, Resource> {
    let mut out: BTreeMap<ResourceId, Resource> = BTreeMap::new();
    for new in &facts.resources {
        let Some(old) = out.get_mut(&new.id) else {
            out.insert(new.id, new.clone());
            continue;
        };
        if weight(new.kind) > weight(old.kind) {
            // the better informed decoder knows who can end the wait, too
            let name = new.name.clone().or_else(|| old.name.take());
            let address = new.address.or(old.address);
            *old = Resource { name, address, ..new.clone() };
            continue;
        }
        let equal = weight(new.kind) == weight(old.kind);
        old.name = old.name.take().or_else(|| new.name.clone());
        old.address = old.address.or(new.address);
        if equal {
            old.idle |= new.idle;
            old.reentrancy = match (old.reentrancy, new.reentrancy) {
                (a, Reentrancy::Unknown) => a,
                (Reentrancy::Unknown, b) => b,
                (a, b) if a == b => a,
                _ => Reentrancy::Unknown,
            };
            // the weaker claim wins: a false deadlock is the worst answer
            old.wakers = match (old.wakers, new.wakers) {
                (Wakers::Outside, _) | (_, Wakers::Outside) => Wakers::Outside,
                (Wakers::AnyThread, _) | (_, Wakers::AnyThread) => Wakers::AnyThread,
                _ => Wakers::Holders,
            };
        }
    }
    out
}

fn merge_hold(into: &mut Hold, other: &Hold) {
    if other.certainty > into.certainty {
        into.certainty = other.certainty;
        into.taken_at = other.taken_at.or(into.taken_at);
        into.taken_at_managed = other.taken_at_managed.or(into.taken_at_managed);
        let mut evidence = other.evidence.clone();
        add_evidence(&mut evidence, &into.evidence);
        into.evidence = evidence;
    } else {
        into.taken_at = into.taken_at.or(other.taken_at);
        into.taken_at_managed = into.taken_at_managed.or(other.taken_at_managed);
        add_evidence(&mut into.evidence, &other.evidence);
    }
    if other.mode == Mode::Exclusive {
        into.mode = Mode::Exclusive;
    }
}

fn add_evidence(to: &mut Vec<Evidence>, more: &[Evidence]) {
    for e in more {
        if !to.contains(e) {
            to.push(e.clone());
        }
    }
}

/// Of two accounts of one wait the one that claims less: a wait that may end by itself proves nothing. The exception is
/// the periodic wait, which a decoder knows better than the one that sees only its time-out.
fn firmer(a: Timeout, b: Timeout) -> Timeout {
    match (a, b) {
        (Timeout::Periodic, _) | (_, Timeout::Periodic) => Timeout::Periodic,
        (Timeout::None, other) | (other, Timeout::None) => other,
        (Timeout::Seconds(x), _) | (_, Timeout::Seconds(x)) => Timeout::Seconds(x),
        (Timeout::Some, Timeout::Some) => Timeout::Some,
    }
}
