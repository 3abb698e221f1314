//! Verdict → report: one file per format, and the wire types of `hangscope/1`.
//!
//! Decides nothing: it lays out what the rooms before it said.

mod crowd;
mod dot;
mod drawing;
mod frames;
pub mod json;
mod paint;
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
use crate::units::{ProcessIx, ThreadRef, harmless};
use crate::unwind::Stack;
use crate::verdict::Verdict;
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
        let mut out: Vec<String> = Vec::new();
        let gaps = self.facts.gaps.iter().map(|g| &g.0);
        for line in self.captured.warnings.iter().chain(gaps).chain(&self.graph.notes).chain(&self.verdict.notes) {
            let line = sentence(line);
            if !out.contains(&line) {
                out.push(line);
            }
        }
        out
    }
}

/// A line made harmless: control characters replaced, length bounded.
fn sentence(line: &str) -> String {
    line.chars().take(2000).map(harmless).collect()
}

/// What of the command line may be shown: the program, and the script or module an interpreter runs. Arguments may hold
/// secrets.
fn command(snapshot: &Snapshot) -> Vec<String> {
    let args = &snapshot.process.command;
    let Some(program) = args.first() else { return Vec::new() };
    let mut out = vec![sentence(program)];
    let base = program.rsplit('/').next().unwrap_or(program);
    if !base.starts_with("python") {
        return out;
    }
    let mut rest = args.iter().skip(1);
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "-c" => {
                out.push("-c".to_owned());
                break;
            }
            "-m" => {
                out.push("-m".to_owned());
                out.extend(rest.next().map(|m| sentence(m)));
                break;
            }
            // options of the interpreter that take a value of their own
            "-W" | "-X" | "--check-hash-based-pycs" => {
                rest.next();
            }
            option if option.starts_with('-') && option.len() > 1 => {}
            script => {
                out.push(sentence(script));
                break;
            }
        }
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
