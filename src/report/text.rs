//! The report a person reads.

use super::Case;

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
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions { color: false, width: 80, threads: Threads::Blocked, verbose: false }
    }
}

/// The report as text, ending with a newline.
#[must_use]
pub fn text(case: &Case<'_>, _options: &TextOptions) -> String {
    format!("{}\n", case.verdict.headline)
}
