//! Verdict → report: one file per format, and the wire types of `hangscope/1`.
//!
//! Decides nothing: it lays out what the rooms before it said.

mod json;
mod text;

pub use json::json;
pub use text::{TextOptions, Threads, text};

use crate::facts::{Facts, RuntimeNote};
use crate::graph::Graph;
use crate::snapshot::Snapshot;
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
