//! Strongly connected components, then the elementary cycles inside each: bounded, ordered, without recursion.

use super::Step;
use crate::facts::ResourceId;
use crate::units::ThreadRef;
use std::collections::{BTreeMap, BTreeSet};

/// Cycles given at most. Exclusive locks make one cycle per component; only locks with many readers make more.
pub(super) const MAX_CYCLES: usize = 64;
/// Edges walked at most while looking for cycles in one component beyond its first.
const MAX_WALK: usize = 200_000;

type Edges = BTreeMap<ThreadRef, Vec<(ResourceId, ThreadRef)>>;

/// Every elementary cycle, each beginning at its smallest thread, ordered; and whether a bound cut the list.
pub(super) fn find(edges: &Edges) -> (Vec<Vec<Step>>, bool) {
    let mut found: BTreeSet<Vec<Step>> = BTreeSet::new();
    let mut cut = false;
    for component in components(edges) {
        cut |= cycles_of(edges, &component, &mut found);
    }
    // shortest first within one starting thread: the short cycle is the one a person should read
    let mut cycles: Vec<Vec<Step>> = found.into_iter().collect();
    cycles.sort_by(|a, b| (a.first(), a.len(), a).cmp(&(b.first(), b.len(), b)));
    (cycles, cut)
}

/// Tarjan's strongly connected components; only those that hold a cycle. Ordered by smallest thread.
fn components(edges: &Edges) -> Vec<BTreeSet<ThreadRef>> {
    let has_cycle = |c: &BTreeSet<ThreadRef>| {
        c.len() > 1 || c.iter().any(|t| edges.get(t).is_some_and(|to| to.iter().any(|(_, u)| u == t)))
    };
    let mut out: Vec<_> = sinks_first(edges, |(_, to)| *to).into_iter().filter(has_cycle).collect();
    out.sort();
    out
}

/// Tarjan's strongly connected components, each before those that lead to it. `to` says where an edge leads.
pub fn sinks_first<N: Copy + Ord, E>(edges: &BTreeMap<N, Vec<E>>, to: impl Fn(&E) -> N) -> Vec<BTreeSet<N>> {
    let mut state = Tarjan {
        index: BTreeMap::new(),
        low: BTreeMap::new(),
        on_stack: BTreeSet::new(),
        stack: Vec::new(),
        out: Vec::new(),
    };
    for root in edges.keys() {
        if !state.index.contains_key(root) {
            state.visit(edges, &to, *root);
        }
    }
    state.out
}

struct Tarjan<N> {
    index: BTreeMap<N, usize>,
    low: BTreeMap<N, usize>,
    on_stack: BTreeSet<N>,
    stack: Vec<N>,
    out: Vec<BTreeSet<N>>,
}

impl<N: Copy + Ord> Tarjan<N> {
    fn enter(&mut self, t: N) {
        let n = self.index.len();
        self.index.insert(t, n);
        self.low.insert(t, n);
        self.stack.push(t);
        self.on_stack.insert(t);
    }

    fn lower(&mut self, t: N, to: usize) {
        if let Some(low) = self.low.get_mut(&t) {
            *low = (*low).min(to);
        }
    }

    fn visit<E>(&mut self, edges: &BTreeMap<N, Vec<E>>, to: &impl Fn(&E) -> N, root: N) {
        self.enter(root);
        let mut work = vec![(root, 0usize)];
        while let Some((t, next)) = work.pop() {
            if let Some(u) = edges.get(&t).and_then(|e| e.get(next)).map(to) {
                work.push((t, next + 1));
                match self.index.get(&u).copied() {
                    None => {
                        self.enter(u);
                        work.push((u, 0));
                    }
                    Some(i) if self.on_stack.contains(&u) => self.lower(t, i),
                    Some(_) => {}
                }
                continue;
            }
            let low = self.low.get(&t).copied().unwrap_or(0);
            if let Some((parent, _)) = work.last().copied() {
                self.lower(parent, low);
            }
            if self.index.get(&t) == Some(&low) {
                let mut component = BTreeSet::new();
                while let Some(u) = self.stack.pop() {
                    self.on_stack.remove(&u);
                    component.insert(u);
                    if u == t {
                        break;
                    }
                }
                self.out.push(component);
            }
        }
    }
}

/// Adds the cycles of one component: from each thread, ascending, the walks through larger threads that come back to it.
/// The shortest cycle through the component's smallest cyclic thread is found first, by breadth, so that the bound never
/// hides all of them. Returns whether a bound was hit.
fn cycles_of(edges: &Edges, component: &BTreeSet<ThreadRef>, found: &mut BTreeSet<Vec<Step>>) -> bool {
    let inside = |from: ThreadRef, least: ThreadRef| {
        edges.get(&from).into_iter().flatten().filter(move |(_, u)| *u >= least && component.contains(u))
    };
    let Some(first) = component.first() else { return false };
    if let Some(cycle) = shortest(&inside, *first) {
        found.insert(cycle);
    }
    // as many edges as threads: one ring, and it is found (a ring of thousands is then no square of thousands)
    if component.iter().map(|t| inside(*t, *first).count()).sum::<usize>() == component.len() {
        return false;
    }
    let mut walked = 0usize;
    for start in component {
        let mut path: Vec<Step> = Vec::new();
        let mut on_path = BTreeSet::from([*start]);
        let mut work: Vec<Vec<(ResourceId, ThreadRef)>> = vec![inside(*start, *start).copied().collect()];
        while let Some(choices) = work.last_mut() {
            let Some((on, to)) = choices.pop() else {
                work.pop();
                if let Some(step) = path.pop() {
                    on_path.remove(&step.held_by);
                }
                continue;
            };
            walked += 1;
            if found.len() >= MAX_CYCLES || walked > MAX_WALK {
                return true;
            }
            let from = path.last().map_or(*start, |s| s.held_by);
            let step = Step { thread: from, waits_for: on, held_by: to };
            if to == *start {
                let mut cycle = path.clone();
                cycle.push(step);
                found.insert(cycle);
            } else if on_path.insert(to) {
                path.push(step);
                work.push(inside(to, *start).copied().collect());
            }
        }
    }
    false
}

/// The shortest cycle through `start`, by breadth-first search.
fn shortest<'a, F, I>(inside: &F, start: ThreadRef) -> Option<Vec<Step>>
where
    F: Fn(ThreadRef, ThreadRef) -> I,
    I: Iterator<Item = &'a (ResourceId, ThreadRef)>,
{
    let mut came_by: BTreeMap<ThreadRef, Step> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(from) = queue.pop_front() {
        for (on, to) in inside(from, start) {
            let step = Step { thread: from, waits_for: *on, held_by: *to };
            if *to == start {
                let mut cycle = vec![step];
                let mut at = from;
                while at != start {
                    let step = came_by.get(&at)?;
                    cycle.push(*step);
                    at = step.thread;
                }
                cycle.reverse();
                return Some(cycle);
            }
            if !came_by.contains_key(to) {
                came_by.insert(*to, step);
                queue.push_back(*to);
            }
        }
    }
    None
}
