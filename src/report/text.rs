//! The report a person reads: one sentence; one line per edge with its proof; the stacks of the cycle only, marked *waits
//! here* and *took it here*; why that is a deadlock and what to change; then everybody else in counted groups.

use super::Case;
use super::crowd;
use super::frames::Frames;
use super::paint::{Pen, Style, unbroken};
use super::stacks::{self, Mark};
use super::tasks;
use crate::facts::{Certainty, Evidence, Hold, Holder, ResourceId, ResourceKind, Timeout, Wait};
use crate::graph::Step;
use crate::units::{ThreadRef, Tid};
use crate::verdict::{Kind, Voice};
use std::collections::BTreeSet;

/// Whose stacks the text report shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Threads {
    /// Everybody's.
    All,
    /// Those of the cycle in full; everybody else folded into counted groups.
    #[default]
    Blocked,
    /// Only those of the cycle.
    Cycle,
}

/// Which part of the text report is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// Who waits for whom, without stacks and stories.
    Edges,
    /// Why, and what to change, without stacks.
    Story,
}

/// How the text report looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextOptions {
    /// ANSI colours.
    pub color: bool,
    /// Columns.
    pub width: usize,
    /// Whose stacks.
    pub threads: Threads,
    /// Interpreter-internal frames, addresses and all evidence too.
    pub verbose: bool,
    /// Which part.
    pub part: Part,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions { color: false, width: 80, threads: Threads::Blocked, verbose: false, part: Part::Whole }
    }
}

/// Narrowest page: below it words are cut, not the layout.
const NARROWEST: usize = 48;
/// Widest: longer lines are hard to read.
const WIDEST: usize = 120;
/// Pieces of evidence an edge shows without `verbose`, for the hold and for the wait.
const PROOFS: usize = 2;
const WAIT_PROOFS: usize = 1;
/// Columns of the word before a proof: `witnessed` and a blank.
const LABEL: usize = 10;

/// Processes told one by one; where there are more those that are alike are told together.
const PROCESSES: usize = 6;
/// Processes alike that are named.
const LISTED: usize = 8;

/// The report as text, ending with a newline.
#[must_use]
pub fn text(case: &Case<'_>, options: &TextOptions) -> String {
    let voice = Voice::new(case.graph, case.facts, case.snapshots, case.stacks);
    let pen = Pen { color: options.color, width: options.width.clamp(NARROWEST, WIDEST) };
    let page = Page { case, options, pen, voice: &voice, frames: Frames::new(&voice, case) };
    let mut out = page.headline();
    out += &page.processes();
    out += &page.cycles();
    out += &page.orphans();
    out += &page.stalls();
    if options.part == Part::Whole {
        out += &page.everyone_else();
        out += &tasks::list(&page);
    }
    out += &page.warnings();
    out
}

pub(super) struct Page<'a> {
    pub case: &'a Case<'a>,
    pub options: &'a TextOptions,
    pub pen: Pen,
    pub voice: &'a Voice<'a>,
    pub frames: Frames<'a>,
}

impl Page<'_> {
    fn headline(&self) -> String {
        let verdict = self.case.verdict;
        let style = match verdict.kind {
            kind if kind.is_stuck() => Style::Alarm,
            Kind::Stalled => Style::Warn,
            _ => Style::Good,
        };
        let headline = keep_names(&verdict.headline);
        let (label, rest) = match headline.find(": ") {
            Some(i) => headline.split_at(i),
            None => (headline.as_str(), ""),
        };
        self.pen.flow("", "", 0, &[(style, label), (Style::Bold, rest), (Style::Bold, ".")])
    }

    /// Whether an interpreter of the process at `index` has a GIL that is in use.
    fn has_gil(&self, index: usize) -> bool {
        self.case.graph.resources.iter().any(|(id, r)| {
            r.kind == ResourceKind::Gil
                && matches!(id, ResourceId::At(process, _) if usize::try_from(process.0).is_ok_and(|p| p == index))
        })
    }

    /// `process 4711 · python3 load.py · CPython 3.11.2 · glibc 2.36 · 9 threads · held for 1.4 ms`.
    fn processes(&self) -> String {
        let mut out = String::new();
        // the first tells how it was looked at; many others that are alike are told together
        let mut others: Vec<(Vec<String>, Vec<String>)> = Vec::new();
        for (i, snapshot) in self.case.snapshots.iter().enumerate() {
            let pid = snapshot.process.pid.to_string();
            let mut parts = Vec::new();
            let mut command = super::command(&snapshot.process.command);
            if let Some(program) = command.first_mut() {
                *program = program.rsplit('/').next().unwrap_or_default().to_owned();
            }
            parts.push(command.join(" "));
            let notes = self.case.runtimes.get(i).map_or(&[][..], Vec::as_slice);
            for (name, called) in [("cpython", "CPython"), ("rocm", "HIP"), ("glibc", "glibc"), ("musl", "musl")] {
                // of a device's runtime only a version says that it is there
                let known = |n: &&crate::facts::RuntimeNote| n.name == name && (name != "rocm" || n.version.is_some());
                if let Some(note) = notes.iter().find(known) {
                    let version = note.version.as_deref().map(|v| format!(" {}", super::sentence(v)));
                    let gil = if self.has_gil(i) { "the GIL switched on" } else { "no GIL" };
                    let build = note.build.filter(|b| *b != "gil").map(|b| format!(" ({b}, {gil})"));
                    parts.push(format!("{called}{}{}", version.unwrap_or_default(), build.unwrap_or_default()));
                }
            }
            parts.push(count(snapshot.threads.len(), "thread"));
            if i == 0 {
                if let Some(pause) = self.case.captured.pause {
                    parts.push(format!("held for {:.1} ms", pause.as_secs_f64() * 1e3));
                }
                match self.case.captured.source {
                    "core" => parts.push("from a core".to_owned()),
                    "bridge" => parts.push("through a debugger".to_owned()),
                    _ => {}
                }
                if self.case.verdict.looks > 1 {
                    parts.push("two looks".to_owned());
                }
            }
            parts.retain(|p| !p.is_empty());
            let parts: Vec<String> = parts.iter().map(|p| unbroken(p)).collect();
            match others.iter_mut().find(|(same, pids)| *same == parts && !pids.is_empty()) {
                Some((_, pids)) if i > 0 && self.case.snapshots.len() > PROCESSES => pids.push(pid),
                _ => others.push((parts, vec![pid])),
            }
        }
        for (parts, pids) in others {
            let who = match pids.as_slice() {
                [one] => unbroken(&format!("process {one}")),
                many => {
                    let named = many.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
                    let more = many.len().saturating_sub(LISTED);
                    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                    format!("{} processes alike, {named}{more}", many.len())
                }
            };
            let line: Vec<String> = std::iter::once(who).chain(parts).collect();
            out += &self.pen.paragraph(0, Style::Dim, &line.join(" ·\u{a0}"));
        }
        out
    }

    pub(super) fn title(&self, text: &str) -> String {
        format!("\n{}\n", self.pen.ink(Style::Title, text))
    }

    fn cycles(&self) -> String {
        let mut out = String::new();
        let cycles = &self.case.verdict.cycles;
        let mut shown: BTreeSet<ThreadRef> = BTreeSet::new();
        for (n, cycle) in cycles.iter().enumerate() {
            let of = if cycles.len() > 1 { format!(" (cycle {} of {})", n + 1, cycles.len()) } else { String::new() };
            out += &self.title(&format!("Who waits for whom{of}"));
            for (i, step) in cycle.steps.iter().enumerate() {
                out += &self.edge(&cycle.steps, i, step);
            }
            for (i, step) in cycle.steps.iter().enumerate() {
                if shown.insert(step.thread) {
                    // what the step before waits for is what this thread holds
                    let before = cycle.steps.get((i + cycle.steps.len() - 1) % cycle.steps.len());
                    out += &self.stack(step.thread, before.map(|s| s.waits_for).as_slice());
                }
            }
            out += &self.story(self.why(cycle.steps.len()), &cycle.explanation, &cycle.advice);
        }
        out
    }

    fn why(&self, threads: usize) -> &'static str {
        match threads {
            1 => "Why it cannot go on",
            2 => "Why neither can go on",
            _ => "Why none can go on",
        }
    }

    fn story(&self, why: &str, explanation: &str, advice: &str) -> String {
        if self.options.part == Part::Edges {
            return String::new();
        }
        let mut out = self.title(why);
        out += &self.pen.paragraph(2, Style::Plain, &keep_names(explanation));
        if !advice.is_empty() {
            out += &self.title("What to change");
            out += &self.pen.paragraph(2, Style::Plain, advice);
        }
        out
    }

    /// One edge of a cycle, drawn as a part of the ring.
    fn edge(&self, steps: &[Step], i: usize, step: &Step) -> String {
        let (first, rest) = match (i, steps.len()) {
            (_, 1) => ("  ↻ ", "    "),
            (0, _) => ("  ┌▶ ", "  │  "),
            (i, n) if i + 1 == n => ("  └▶ ", "     "),
            _ => ("  ├▶ ", "  │  "),
        };
        let hold = self.hold(step.waits_for, step.held_by);
        let held_by = if step.held_by == step.thread { "itself".to_owned() } else { self.voice.short(step.held_by) };
        self.line(first, rest, step.thread, hold, &held_by)
    }

    /// `T waits for X, held by U — recorded`, and the proofs beneath.
    fn line(&self, first: &str, rest: &str, waiter: ThreadRef, hold: Option<&Hold>, held_by: &str) -> String {
        let Some(wait) = self.case.graph.waits.get(&waiter) else { return String::new() };
        let indent = first.chars().count();
        let ink = |s: &str| self.pen.ink(Style::Alarm, s);
        let (who, what) = (unbroken(&self.voice.short(waiter)), self.voice.waits(wait.on));
        let held_by = &unbroken(held_by);
        let (verb, thing) = split_verb(&what);
        let mut spans: Vec<(Style, &str)> = vec![(Style::Bold, &who), (Style::Plain, verb), (Style::Thing, thing)];
        let certainty = hold.map_or(Certainty::Inferred, |h| h.certainty);
        let exit = matches!(wait.on, ResourceId::ThreadExit(_));
        if !exit && !held_by.is_empty() {
            let signal = hold.is_some_and(|h| h.mode == crate::facts::Mode::Any);
            let how = match signal {
                true if self.is_of_processes(wait.on) => ", which only ",
                true => ", a signal that ",
                false if self.is_device(wait.on) => ", to be set by ",
                false if self.is_future(wait.on) => ", to be completed by ",
                false => ", held by ",
            };
            spans.push((Style::Plain, how));
            spans.push((Style::Bold, held_by));
            if signal {
                let could = if self.is_of_processes(wait.on) { " could end" } else { " could give" };
                spans.push((Style::Plain, could));
            }
        }
        let mut out = self.pen.flow(&ink(first), &ink(rest), indent, &spans);
        let mut proof = |label: (Style, &str), evidence: &[Evidence], most: usize| {
            let most = if self.options.verbose { usize::MAX } else { most };
            let lines: Vec<String> = evidence.iter().take(most).map(|e| super::sentence(&e.0)).collect();
            let gap = " ".repeat(LABEL.saturating_sub(label.1.chars().count()));
            let pad = format!("{}{}{gap}", ink(rest), self.pen.ink(label.0, label.1));
            let hang = format!("{}{}", ink(rest), " ".repeat(LABEL));
            let text = self.pen.flow(&pad, &hang, indent + LABEL, &[(Style::Dim, &lines.join("; "))]);
            out += text.trim_end();
            out.push('\n');
        };
        if let Some(hold) = hold {
            proof((certainty_style(certainty), certainty.word()), &hold.evidence, PROOFS);
        }
        if !wait.evidence.is_empty() {
            proof((Style::Plain, "waits"), &wait.evidence, WAIT_PROOFS);
        }
        if self.options.verbose {
            for beneath in self.case.graph.beneath.get(&waiter).into_iter().flatten().rev() {
                proof((Style::Plain, "beneath"), &beneath.evidence, PROOFS);
            }
        }
        out
    }

    /// Whether it is something one completes, and nobody holds.
    fn is_future(&self, id: ResourceId) -> bool {
        let nobodys = [ResourceKind::PythonFuture, ResourceKind::ProcessExit, ResourceKind::Pipe];
        self.case.graph.resource(id).is_some_and(|r| nobodys.contains(&r.kind)) || self.is_device(id)
    }

    /// Whether it is the end of a process, or room in a pipe.
    fn is_of_processes(&self, id: ResourceId) -> bool {
        let kinds = [ResourceKind::ProcessExit, ResourceKind::Pipe];
        self.case.graph.resource(id).is_some_and(|r| kinds.contains(&r.kind))
    }

    fn is_device(&self, id: ResourceId) -> bool {
        self.case.graph.resource(id).is_some_and(|r| crate::verdict::patterns::is_device(r.kind))
    }

    fn hold(&self, id: ResourceId, t: ThreadRef) -> Option<&Hold> {
        let deduced = || self.case.verdict.inferred_holds.iter().find(|h| h.of == id && h.holder == Holder::Thread(t));
        self.case.graph.hold(id, t).or_else(deduced)
    }

    /// A thread's stack with its marks: where it waits, and where it took each of `holds`.
    pub(super) fn stack(&self, t: ThreadRef, holds: &[ResourceId]) -> String {
        if self.options.part != Part::Whole {
            return String::new();
        }
        let mut marks: Vec<Mark> = Vec::new();
        if let Some(wait) = self.case.graph.waits.get(&t) {
            marks.push(Mark::waits(wait));
        }
        let kept = holds.iter().filter(|id| !self.is_future(**id));
        let real: Vec<&Hold> = kept.filter_map(|id| self.case.graph.hold(*id, t)).collect();
        for hold in &real {
            marks.extend(Mark::took(hold, (real.len() > 1).then(|| self.voice.name(hold.of))));
        }
        let mut facts: Vec<String> = Vec::new();
        let held: Vec<ResourceId> =
            real.iter().filter(|h| !matches!(h.of, ResourceId::ThreadExit(_))).map(|h| h.of).collect();
        if !held.is_empty() {
            facts.push(self.voice.holds(&held));
        }
        if let Some(wait) = self.case.graph.waits.get(&t) {
            facts.push(self.voice.waits(wait.on));
        }
        let head = self.voice.thread(t);
        let facts = facts.iter().map(|f| format!(" {}", unbroken(&format!("· {f}")))).collect::<String>();
        let mut out = String::from("\n");
        let head = head.replacen("thread", "Thread", 1);
        // that one who waits sleeps goes without saying; a wait that wakes now and then looks alive, which says nothing either
        let wait = self.case.graph.waits.get(&t);
        let periodic = wait.is_some_and(|w| w.timeout == Timeout::Periodic);
        let asleep = |s: &char| wait.is_some() && (*s == 'S' || periodic && *s == 'R');
        let state = self.voice.state(t).and_then(|s| s.state).filter(|s| !asleep(s));
        let state = state.map(|s| format!(", {}", state_word(s)));
        let facts = format!("{}{facts}", state.unwrap_or_default());
        out += &self.pen.flow("", "  ", 2, &[(Style::Bold, &head), (Style::Dim, &facts)]);
        out += &stacks::table(self, t, &marks);
        out
    }

    /// Whether `tid` is a thread of the process of `t`.
    fn lives(&self, t: ThreadRef, tid: Tid) -> bool {
        self.voice.snapshot(t).is_some_and(|s| s.threads.iter().any(|o| o.tid == tid))
    }

    fn orphans(&self) -> String {
        let mut out = String::new();
        for orphan in &self.case.verdict.orphans {
            out += &self.title("Who waits for whom");
            let hold = self.case.graph.holders(orphan.resource).iter().find(|h| matches!(h.holder, Holder::Gone(..)));
            let gone = match orphan.owner.0 {
                0 => "nobody in this process".to_owned(),
                tid if orphan.waiters.first().is_some_and(|t| self.lives(*t, orphan.owner)) => {
                    format!("{tid}, which is frozen")
                }
                tid => format!("tid {tid}, which does not exist"),
            };
            if let Some(first) = orphan.waiters.first() {
                out += &self.line("  ✗ ", "    ", *first, hold, &gone);
                out += &self.more(orphan.waiters.len() - 1, "wait", "for it too");
                out += &self.stack(*first, &[]);
            }
            out += &self.story("Why it cannot go on", &orphan.explanation, &orphan.advice);
        }
        out
    }

    fn more(&self, n: usize, verb: &str, what: &str) -> String {
        match n {
            0 => String::new(),
            1 => format!("    1 other thread {verb}s {what}\n"),
            n => format!("    {n} other threads {verb} {what}\n"),
        }
    }

    fn stalls(&self) -> String {
        let mut out = String::new();
        for stall in &self.case.verdict.stalls {
            out += &self.title("Who waits for whom");
            let held: Vec<ResourceId> = self.wanted_from(stall.root, &stall.behind);
            for id in &held {
                let waiters: Vec<ThreadRef> = self.case.graph.waiters(*id).collect();
                if let Some(first) = waiters.first() {
                    let hold = self.hold(*id, stall.root);
                    out += &self.line("  → ", "    ", *first, hold, &self.voice.short(stall.root));
                    out += &self.more(waiters.len() - 1, "wait", "for it too");
                }
            }
            out += &self.line("  → ", "    ", stall.root, None, "");
            out += &self.stack(stall.root, &held);
            out += &self.story("What it waits for", &stall.explanation, &stall.advice);
        }
        out
    }

    fn wanted_from(&self, root: ThreadRef, behind: &[ThreadRef]) -> Vec<ResourceId> {
        let wanted: BTreeSet<ResourceId> =
            behind.iter().filter_map(|t| self.case.graph.waits.get(t)).map(|w: &Wait| w.on).collect();
        self.case.graph.held_by(root).map(|h| h.of).filter(|id| wanted.contains(id)).collect()
    }

    fn everyone_else(&self) -> String {
        if self.options.threads == Threads::Cycle {
            return String::new();
        }
        let told: BTreeSet<ThreadRef> = self.case.verdict.protagonists().into_iter().collect();
        let others: Vec<ThreadRef> =
            super::all_threads(self.case.snapshots).into_iter().filter(|t| !told.contains(t)).collect();
        if others.is_empty() {
            return String::new();
        }
        let mut out = if told.is_empty() {
            self.title(&format!("What they do: {}", count(others.len(), "thread")))
        } else {
            self.title(&format!("Everyone else: {}", count(others.len(), "thread")))
        };
        if self.options.threads == Threads::All {
            out.pop();
            for t in others {
                let holds: Vec<ResourceId> = self.case.graph.held_by(t).map(|h| h.of).collect();
                out += &self.stack(t, &holds);
            }
            return out;
        }
        out += &crowd::groups(self, &others);
        out
    }

    fn warnings(&self) -> String {
        let warnings = self.case.warnings();
        if warnings.is_empty() {
            return String::new();
        }
        let mut out = String::from("\n");
        for line in warnings {
            let mark = self.pen.ink(Style::Warn, "! ");
            out += &self.pen.flow(&mark, "  ", 2, &[(Style::Plain, &line)]);
        }
        out
    }
}

/// `waits for the GIL` as ` waits for ` and `the GIL`.
fn split_verb(phrase: &str) -> (&'static str, &str) {
    for (verb, spaced) in [
        ("waits to be signalled on ", " waits to be signalled on "),
        ("waits for ", " waits for "),
        ("waits in ", " waits in "),
        ("is blocked in ", " is blocked in "),
    ] {
        if let Some(thing) = phrase.strip_prefix(verb) {
            return (spaced, thing);
        }
    }
    (" ", phrase)
}

/// A thread's number and its name stay on one line.
fn keep_names(text: &str) -> String {
    text.replace(" “", "\u{a0}“")
}

fn certainty_style(certainty: Certainty) -> Style {
    match certainty {
        Certainty::Recorded | Certainty::Witnessed => Style::Good,
        Certainty::Inferred => Style::Warn,
    }
}

/// The state letter of `/proc/PID/stat` as a word.
pub(super) fn state_word(state: char) -> &'static str {
    match state {
        'R' => "running",
        'S' => "sleeping",
        'D' => "uninterruptible (D)",
        'T' => "stopped",
        't' => "stopped by a tracer",
        'Z' | 'X' => "dead",
        'I' => "idle",
        _ => "state unknown",
    }
}

/// `1 thread`, `9 threads`.
pub(super) fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
