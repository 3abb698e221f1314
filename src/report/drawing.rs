//! What a drawing shows, whatever its form: threads that wait or hold, resources, and who waits for whom. Threads that only
//! queue for the same thing are one node.

use super::{Case, all_threads, sentence};
use crate::facts::{Hold, Holder, ResourceId};
use crate::units::ThreadRef;
use crate::verdict::Voice;
use std::collections::{BTreeMap, BTreeSet};

/// Threads of one queue drawn one by one.
const QUEUE: usize = 3;
/// Columns of a label's line.
const LABEL: usize = 34;

pub(super) struct Node {
    pub lines: Vec<String>,
    /// A thread or several; else a resource.
    pub thread: bool,
    /// Part of what is stuck.
    pub alarm: bool,
    /// Its place in the first cycle, counted round it.
    pub ring: Option<usize>,
}

pub(super) struct Edge {
    pub from: usize,
    pub to: usize,
    pub label: String,
    pub alarm: bool,
}

pub(super) struct Drawing {
    pub title: String,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Thread(ThreadRef),
    Queue(ResourceId),
    Thing(ResourceId),
    Gone(Holder),
}

impl Drawing {
    pub fn of(case: &Case<'_>) -> Drawing {
        let voice = Voice::new(case.graph, case.facts, case.snapshots, case.stacks);
        let mut drawing =
            Drawing { title: wrapped(&case.verdict.headline, 100).join("\n"), nodes: Vec::new(), edges: Vec::new() };
        let mut known: BTreeMap<Key, usize> = BTreeMap::new();
        let steps: Vec<_> = case.verdict.cycles.iter().flat_map(|c| &c.steps).collect();
        let alarm: BTreeSet<Key> =
            steps.iter().flat_map(|s| [Key::Thread(s.thread), Key::Thing(s.waits_for)]).collect();
        let round = case.verdict.cycles.first().map_or(&[][..], |c| c.steps.as_slice());
        let ring: Vec<Key> = round.iter().flat_map(|s| [Key::Thread(s.thread), Key::Thing(s.waits_for)]).collect();
        let told: BTreeSet<ThreadRef> = case.verdict.protagonists().into_iter().collect();
        let mut node = |drawing: &mut Drawing, key: Key, text: String| {
            *known.entry(key).or_insert_with(|| {
                drawing.nodes.push(Node {
                    lines: wrapped(&text, LABEL),
                    thread: matches!(key, Key::Thread(_) | Key::Queue(_) | Key::Gone(_)),
                    alarm: alarm.contains(&key),
                    ring: ring.iter().position(|k| *k == key),
                });
                drawing.nodes.len() - 1
            })
        };
        // queues: who waits for the same thing, holds nothing others want, and is no part of the story
        let holders: BTreeSet<ThreadRef> = case
            .graph
            .holds
            .iter()
            .filter(|(id, _)| case.graph.waiters(**id).next().is_some())
            .flat_map(|(_, holds)| holds)
            .filter_map(|h| if let Holder::Thread(t) = h.holder { Some(t) } else { None })
            .collect();
        // each ascending
        let mut queues: BTreeMap<ResourceId, Vec<ThreadRef>> = BTreeMap::new();
        for t in all_threads(case.snapshots) {
            if let Some(wait) = case.graph.waits.get(&t)
                && !told.contains(&t)
                && !holders.contains(&t)
            {
                queues.entry(wait.on).or_default().push(t);
            }
        }
        queues.retain(|_, threads| threads.len() > QUEUE);
        let mut drawn: BTreeSet<Key> = BTreeSet::new();
        for t in all_threads(case.snapshots) {
            let Some(wait) = case.graph.waits.get(&t) else { continue };
            let queue = queues.get(&wait.on).filter(|q| q.binary_search(&t).is_ok());
            let key = if queue.is_some() { Key::Queue(wait.on) } else { Key::Thread(t) };
            if !drawn.insert(key) {
                continue;
            }
            let text = queue.map_or_else(|| voice.short(t), |q| format!("{} threads", q.len()));
            let from = node(&mut drawing, key, text);
            let to = node(&mut drawing, Key::Thing(wait.on), voice.name(wait.on));
            let alarm = steps.iter().any(|s| s.thread == t && s.waits_for == wait.on);
            drawing.edges.push(Edge { from, to, label: "waits for".into(), alarm });
        }
        let wanted: Vec<ResourceId> = drawn
            .iter()
            .filter_map(|k| if let Key::Thread(t) = k { case.graph.waits.get(t) } else { None })
            .map(|w| w.on)
            .chain(queues.keys().copied())
            .collect();
        for id in wanted.into_iter().collect::<BTreeSet<_>>() {
            let deduced = case.verdict.inferred_holds.iter().filter(|h| h.of == id);
            let holds: Vec<&Hold> = case.graph.holders(id).iter().chain(deduced).collect();
            for hold in holds {
                let (key, text) = match hold.holder {
                    Holder::Thread(t) => (Key::Thread(t), voice.short(t)),
                    Holder::Gone(_, tid) => (Key::Gone(hold.holder), format!("tid {tid}, which is gone")),
                    Holder::Process(pid) => (Key::Gone(hold.holder), format!("process {pid}")),
                };
                let from = node(&mut drawing, Key::Thing(id), voice.name(id));
                let to = node(&mut drawing, key, text);
                let alarm = steps.iter().any(|s| s.waits_for == id && Key::Thread(s.held_by) == key);
                let label = format!("held by, {}", hold.certainty.word());
                drawing.edges.push(Edge { from, to, label, alarm });
            }
        }
        drawing
    }
}

/// The words in lines of at most `width` columns; longer words stand alone.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
