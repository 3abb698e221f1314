//! Verdict → report: one file per format, and the wire types of `hangscope/1`.
//!
//! Decides nothing: it lays out what the rooms before it said.

mod crowd;
mod dot;
mod drawing;
mod frames;
pub mod json;
mod paint;
mod repeats;
mod stacks;
mod svg;
mod tasks;
#[cfg(test)]
mod tests;
mod text;
mod time;

pub use dot::dot;
pub use json::json;
pub use svg::svg;
pub use text::{Part, TextOptions, Threads, text};

use crate::facts::{Facts, RuntimeNote};
use crate::graph::Graph;
use crate::snapshot::Snapshot;
use crate::units::{ProcessIx, ThreadRef, harmless_text};
use crate::unwind::Stack;
use crate::verdict::Verdict;
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

/// How and when the target was captured.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When.
    pub at: SystemTime,
    /// The contract's word: `live`, `core`, `bridge`.
    pub source: &'static str,
    /// How long the target was held; absent where it was not.
    pub pause: Option<Duration>,
    /// What is missing and what would mend it, one line each. Gaps of the facts and notes of graph and verdict are added by
    /// the report.
    pub warnings: Vec<String>,
}

/// Everything a report is made of.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// The processes, indexed by `ProcessIx`.
    pub snapshots: &'a [Snapshot],
    /// A stack for each thread of each process.
    pub stacks: &'a [Vec<Stack>],
    /// What the runtimes found, all processes' together.
    pub facts: &'a Facts,
    /// For each process what its runtimes are (`Facts::runtime` of each decoder).
    pub runtimes: &'a [Vec<RuntimeNote>],
    /// Who waits for whom.
    pub graph: &'a Graph,
    /// What is wrong.
    pub verdict: &'a Verdict,
    /// How and when.
    pub captured: &'a Captured,
}

impl Case<'_> {
    /// Everything that is missing or worth knowing, each line once: the door's, the decoders' gaps, the graph's and the
    /// verdict's notes.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let (mut out, mut told) = (Vec::new(), HashSet::new());
        let gaps = self.facts.gaps.iter().map(|g| &g.0);
        for line in self.captured.warnings.iter().chain(gaps).chain(&self.graph.notes).chain(&self.verdict.notes) {
            let line = sentence(line);
            if told.insert(line.clone()) {
                out.push(line);
            }
        }
        out
    }
}

/// A line made harmless: control characters replaced, length bounded.
fn sentence(line: &str) -> String {
    harmless_text(line, 2000)
}

/// What of the command line may be shown: the program, and the script or module an interpreter runs. Arguments may hold
/// secrets. Source of the options: CPython `Python/getopt.c`.
fn command(args: &[String]) -> Vec<String> {
    let Some(program) = args.first() else { return Vec::new() };
    let mut out = vec![sentence(program)];
    let base = program.rsplit('/').next().unwrap_or(program);
    if !base.starts_with("python") {
        return out;
    }
    let mut rest = args.iter().skip(1);
    while let Some(arg) = rest.next() {
        let Some(letters) = arg.strip_prefix('-').filter(|l| !l.is_empty()) else {
            out.push(sentence(arg));
            break;
        };
        // the one long option that takes a value of its own
        if letters.starts_with('-') {
            if arg == "--check-hash-based-pycs" {
                rest.next();
            }
            continue;
        }
        // letters may stand together; what follows one that takes a value is that value
        let Some(at) = letters.find(['c', 'm', 'W', 'X']) else { continue };
        let (letter, value) = letters.split_at(at).1.split_at(1);
        let value = if value.is_empty() { rest.next().map(String::as_str) } else { Some(value) };
        match letter {
            "c" => out.push("-c".to_owned()),
            "m" => {
                out.push("-m".to_owned());
                out.extend(value.map(sentence));
            }
            _ => continue,
        }
        break;
    }
    out
}

/// Every thread of the run, in order.
fn all_threads(snapshots: &[Snapshot]) -> Vec<ThreadRef> {
    let mut out = Vec::new();
    for (p, snapshot) in snapshots.iter().enumerate() {
        for t in 0..snapshot.threads.len() {
            if let (Ok(p), Ok(thread)) = (u32::try_from(p), u32::try_from(t)) {
                out.push(ThreadRef { process: ProcessIx(p), thread });
            }
        }
    }
    out
}
