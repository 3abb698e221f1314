//! Who is blocked: the threads that nobody outside could wake, and how they depend on each other.
//!
//! One and-or graph. A thread needs every holder of what it waits for to let go, or any one of several, or any thread of its
//! process: that is one node, awake as long as one thread of the process is. Blocked is the greatest set of threads that only
//! threads of the set could wake: it is what remains when all that can be woken have been taken away. Of its strongly connected
//! components those that depend on no other are where it begins: a ring, a knot, a closed set, a lock whose holder is gone.
//! Handlers of signals act though all threads wait; they are asked of each component, not of the set.

use super::Look;
use super::actors::{self, Handler, wakers};
use crate::facts::{Holder, Mode, ResourceId, Timeout, Wait, Wakers};
use crate::graph::{self, Graph};
use crate::units::{ProcessIx, ThreadRef};
use std::collections::{BTreeMap, BTreeSet};

/// The blocked threads of a look. Computed once per verdict.
#[derive(Debug, Default)]
pub struct Blocked {
    threads: BTreeSet<ThreadRef>,
    /// Each before those that depend on it.
    components: Vec<Component>,
    of: BTreeMap<ThreadRef, usize>,
}

/// Threads of which each depends on all others.
#[derive(Debug)]
pub struct Component {
    /// Who.
    pub threads: BTreeSet<ThreadRef>,
    /// Whether they depend on nobody but themselves.
    pub is_sink: bool,
    /// Whether some of them wait for what any thread of the process could do.
    pub(super) is_signalled: bool,
    /// Whether the handler of a signal may end one of their waits.
    pub(super) handler: Handler,
}

/// A node: a thread, or any thread of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Thread(ThreadRef),
    AnyThread(ProcessIx),
}

impl Blocked {
    /// Finds them.
    pub(super) fn of(look: &Look<'_>) -> Blocked {
        let threads = find(look);
        let mut edges: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
        for t in &threads {
            let to = depends_on(look, &threads, *t);
            for node in &to {
                if let Node::AnyThread(p) = node {
                    edges.entry(*node).or_insert_with(|| {
                        threads.iter().filter(|t| t.process == *p).map(|t| Node::Thread(*t)).collect()
                    });
                }
            }
            edges.insert(Node::Thread(*t), to);
        }
        let mut blocked = Blocked { threads, ..Blocked::default() };
        for nodes in graph::sinks_first(&edges, |to| *to) {
            blocked.add(look, &edges, &nodes);
        }
        blocked
    }

    fn add(&mut self, look: &Look<'_>, edges: &BTreeMap<Node, Vec<Node>>, nodes: &BTreeSet<Node>) {
        let thread = |n: &Node| match n {
            Node::Thread(t) => Some(*t),
            Node::AnyThread(_) => None,
        };
        let threads: BTreeSet<ThreadRef> = nodes.iter().filter_map(thread).collect();
        if threads.is_empty() {
            return;
        }
        let is_sink = nodes.iter().flat_map(|n| edges.get(n).into_iter().flatten()).all(|to| nodes.contains(to));
        let waits = || threads.iter().filter_map(|t| look.graph.waits.get(t));
        let handler = waits().map(|w| self.handler(look, w)).max().unwrap_or(Handler::None);
        let is_signalled = waits().any(|w| wakers(look, w) == Some(Wakers::AnyThread));
        self.of.extend(threads.iter().map(|t| (*t, self.components.len())));
        self.components.push(Component { threads, is_sink, is_signalled, handler });
    }

    /// Whether the handler of a signal may end the wait. One in Python does not run as long as the main thread cannot.
    fn handler(&self, look: &Look<'_>, wait: &Wait) -> Handler {
        let handler = actors::handler(look, wait);
        let native = look.graph.resource(wait.on).is_some_and(|r| {
            matches!(r.kind, crate::facts::ResourceKind::Semaphore | crate::facts::ResourceKind::Futex)
        });
        let deaf = || actors::deaf_main(look, wait.thread.process).is_some_and(|main| self.threads.contains(&main));
        if handler != Handler::None && !native && deaf() { Handler::None } else { handler }
    }

    /// Whether only blocked threads could wake `t`.
    pub fn contains(&self, t: ThreadRef) -> bool {
        self.threads.contains(&t)
    }

    /// Those of which `t` is one.
    pub fn component(&self, t: ThreadRef) -> Option<&Component> {
        self.components.get(*self.of.get(&t)?)
    }

    /// Where it begins: the components that depend on no other, in an order that only the look decides.
    pub fn sinks(&self) -> impl Iterator<Item = &Component> {
        self.components.iter().filter(|c| c.is_sink)
    }
}

/// On whom of the blocked threads the wait of `t` depends.
fn depends_on(look: &Look<'_>, threads: &BTreeSet<ThreadRef>, t: ThreadRef) -> Vec<Node> {
    let Some(wait) = look.graph.waits.get(&t) else { return Vec::new() };
    match wakers(look, wait) {
        Some(Wakers::AnyThread) => vec![Node::AnyThread(t.process)],
        Some(Wakers::Holders) => {
            let holders = look.graph.holders(wait.on).iter().filter_map(|h| match h.holder {
                Holder::Thread(u) if threads.contains(&u) && (u != t || takes_again(look.graph, wait)) => Some(u),
                _ => None,
            });
            holders.map(Node::Thread).collect()
        }
        None | Some(Wakers::Outside) => Vec::new(),
    }
}

/// Whether the thread that waits holds what it waits for itself, and cannot take it twice.
fn takes_again(graph: &Graph, wait: &Wait) -> bool {
    let hold = graph.hold(wait.on, wait.thread);
    // any of several: it is one of those that could
    hold.is_some_and(|h| {
        wait.mode == Mode::Any || graph.resource(wait.on).is_some_and(|r| graph::self_loop(r, wait, h))
    })
}

/// The greatest set of threads that only threads of the set could wake. Each thread leaves it at most once, and whoever
/// waited for it is looked at again.
fn find(look: &Look<'_>) -> BTreeSet<ThreadRef> {
    let mut set = Set::new(look, candidates(look));
    let mut leaving: Vec<ThreadRef> = set.inside.iter().copied().filter(|t| set.can_be_woken(*t)).collect();
    while let Some(t) = leaving.pop() {
        leaving.extend(set.leave(t));
    }
    set.inside
}

/// The threads that wait for good, for all that is known of them alone.
fn candidates(look: &Look<'_>) -> BTreeSet<ThreadRef> {
    let waits_for_good = |w: &&Wait| {
        let moved = look.movement.is_some_and(|m| m.moved.contains(&w.thread));
        match w.timeout {
            Timeout::None => !moved,
            // it wakes and sleeps again by itself: that it moved says nothing
            Timeout::Periodic => true,
            Timeout::Some | Timeout::Seconds(_) => false,
        }
    };
    let threads = look.graph.waits.values().filter(waits_for_good).map(|w| w.thread);
    threads.filter(|t| !look.graph.woken.contains(t)).collect()
}

/// Holds of one resource.
#[derive(Clone, Copy, Default)]
struct Holds {
    /// By threads of the set, and by threads that are gone: these do not let go.
    locked: usize,
    /// By others.
    open: usize,
}

/// A set of threads that shrinks.
struct Set<'a> {
    look: &'a Look<'a>,
    inside: BTreeSet<ThreadRef>,
    /// Threads of each process that are not inside, those not listed among them.
    awake: BTreeMap<ProcessIx, usize>,
    /// Threads of each process that waited for a signal when all were inside.
    signalled: BTreeMap<ProcessIx, Vec<ThreadRef>>,
    holds: BTreeMap<ResourceId, Holds>,
    held_by: BTreeMap<ThreadRef, Vec<ResourceId>>,
}

impl<'a> Set<'a> {
    fn new(look: &'a Look<'a>, inside: BTreeSet<ThreadRef>) -> Set<'a> {
        let mut awake: BTreeMap<ProcessIx, usize> = BTreeMap::new();
        for (p, snapshot) in look.snapshots.iter().enumerate() {
            // a thread that is not listed is one more that could wake others
            let all = snapshot.threads.len() + usize::from(snapshot.unlisted);
            awake.insert(ProcessIx(u32::try_from(p).unwrap_or(u32::MAX)), all);
        }
        let mut signalled: BTreeMap<ProcessIx, Vec<ThreadRef>> = BTreeMap::new();
        for t in &inside {
            if let Some(awake) = awake.get_mut(&t.process) {
                *awake = awake.saturating_sub(1);
            }
            if look.graph.waits.get(t).is_some_and(|w| wakers(look, w) == Some(Wakers::AnyThread)) {
                signalled.entry(t.process).or_default().push(*t);
            }
        }
        let mut holds: BTreeMap<ResourceId, Holds> = BTreeMap::new();
        let mut held_by: BTreeMap<ThreadRef, Vec<ResourceId>> = BTreeMap::new();
        for hold in look.graph.holds.values().flatten() {
            let of = holds.entry(hold.of).or_default();
            match hold.holder {
                Holder::Thread(t) if inside.contains(&t) => {
                    held_by.entry(t).or_default().push(hold.of);
                    of.locked += 1;
                }
                Holder::Gone(..) => of.locked += 1,
                Holder::Thread(_) | Holder::Process(_) => of.open += 1,
            }
        }
        Set { look, inside, awake, signalled, holds, held_by }
    }

    /// Whether somebody outside the set could wake `t`.
    fn can_be_woken(&self, t: ThreadRef) -> bool {
        let Some(wait) = self.look.graph.waits.get(&t) else { return true };
        let holds = self.holds.get(&wait.on);
        match (wakers(self.look, wait), holds) {
            (None | Some(Wakers::Outside), _) => true,
            (Some(Wakers::AnyThread), _) => self.awake.get(&t.process).is_some_and(|n| *n > 0),
            // an unknown holder may let go at any time
            (Some(Wakers::Holders), None) => true,
            (Some(Wakers::Holders), Some(holds)) if wait.mode == Mode::Any => holds.open > 0,
            // it needs all of them: one that cannot let go is enough
            (Some(Wakers::Holders), Some(holds)) => {
                let own = self.held_by.get(&t).is_some_and(|h| h.contains(&wait.on));
                holds.locked == usize::from(own && !takes_again(self.look.graph, wait))
            }
        }
    }

    /// Lets `t` leave; gives those that can be woken since.
    fn leave(&mut self, t: ThreadRef) -> Vec<ThreadRef> {
        if !self.inside.remove(&t) {
            return Vec::new();
        }
        let mut again: Vec<ThreadRef> = Vec::new();
        if let Some(awake) = self.awake.get_mut(&t.process) {
            *awake += 1;
            again.extend(self.signalled.remove(&t.process).unwrap_or_default());
        }
        for id in self.held_by.get(&t).into_iter().flatten() {
            let Some(holds) = self.holds.get_mut(id) else { continue };
            holds.locked = holds.locked.saturating_sub(1);
            holds.open += 1;
            // of many holders only the first and the last two to go change anything
            if holds.open == 1 || holds.locked <= 1 {
                again.extend(self.look.graph.waiters(*id));
            }
        }
        again.retain(|t| self.inside.contains(t) && self.can_be_woken(*t));
        again
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::Made;
    use super::*;
    use crate::facts::{Hold, ResourceKind};
    use crate::units::Tid;

    /// The same by the plain meaning of it: take away who can be woken, until nobody can.
    fn blocked_by_rounds(look: &Look<'_>) -> BTreeSet<ThreadRef> {
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
            .filter(|t| !graph.woken.contains(t))
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
                match wakers(look, wait) {
                    None | Some(Wakers::Outside) => true,
                    Some(Wakers::AnyThread) => inside.get(&t.process) < threads.get(&t.process),
                    // an unknown holder may let go at any time
                    Some(Wakers::Holders) if holders.is_empty() => true,
                    Some(Wakers::Holders) if wait.mode == Mode::Any => holders.iter().any(out),
                    // it needs all of them: one that cannot let go is enough
                    Some(Wakers::Holders) => {
                        holders.iter().all(|h| out(h) || (h.holder == Holder::Thread(*t) && !takes_again(graph, wait)))
                    }
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

    /// Numbers that look random, always the same ones (Knuth's constants).
    fn dice(seed: &mut u64) -> impl FnMut(u64) -> u64 + '_ {
        |n| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % n
        }
    }

    #[test]
    fn it_is_what_rounds_of_taking_away_leave() {
        let mut seed = 1;
        let mut dice = dice(&mut seed);
        let (mut some, mut not_all) = (0, 0);
        for _ in 0..400 {
            let mut made = Made::new();
            let mut threads = Vec::new();
            for process in 0..1 + dice(2) {
                if process > 0 {
                    made.next_process();
                }
                threads.extend((0..2 + dice(7)).map(|i| made.thread(100 + i as i32, "t")));
            }
            let kind = |n: u64| match n {
                0 => ResourceKind::Pipe,
                1..5 => ResourceKind::Condvar,
                _ => ResourceKind::Mutex,
            };
            let things: Vec<ResourceId> = (0..6).map(|i| made.resource(kind(dice(16)), "", 0x1000 + i)).collect();
            for (i, t) in threads.iter().enumerate() {
                if dice(32) > 0 {
                    let wait = made.waits(*t, things[dice(6) as usize]);
                    wait.mode = if dice(4) == 0 { Mode::Any } else { Mode::Exclusive };
                }
                if dice(4) > 0 {
                    made.holds(*t, things[(i + dice(3) as usize) % 6]).mode = Mode::Shared;
                }
            }
            if dice(8) == 0 {
                made.held_by(Holder::Gone(ProcessIx(0), Tid(7)), things[0]).mode = Mode::Shared;
            }
            made.looked(|look| {
                let found = find(look);
                assert_eq!(found, blocked_by_rounds(look), "{:?}", look.graph);
                some += usize::from(!found.is_empty());
                not_all += usize::from(found.len() < look.graph.waits.len());
            });
        }
        assert!(some > 50 && not_all > 50, "{some} {not_all}");
    }
}
