//! The tasks of event loops, with `verbose`: where each is suspended, and what it awaits.

use super::paint::Style;
use super::sentence;
use super::text::Page;
use crate::facts::Task;
use crate::units::ThreadRef;
use std::collections::BTreeMap;

/// Tasks listed.
const LISTED: usize = 256;

/// One line for each task, by the thread that runs its loop.
pub(super) fn list(page: &Page<'_>) -> String {
    let tasks = &page.case.facts.tasks;
    if !page.options.verbose || tasks.is_empty() {
        return String::new();
    }
    let mut loops: BTreeMap<Option<ThreadRef>, Vec<&Task>> = BTreeMap::new();
    for task in tasks.iter().take(LISTED) {
        loops.entry(task.thread).or_default().push(task);
    }
    let mut out = String::new();
    for (thread, tasks) in loops {
        out += &page.title(&match thread {
            Some(t) => format!("Tasks of the event loop that {} runs", page.voice.thread(t)),
            None => "Tasks of event loops that no thread runs".to_owned(),
        });
        for task in tasks {
            let name = sentence(&format!("“{}”", task.name));
            let place = task.place.as_deref().map(|p| sentence(&format!(" in {p}"))).unwrap_or_default();
            let awaits = task.awaits.as_deref().map(|a| sentence(&format!(", awaits {a}"))).unwrap_or_default();
            out +=
                &page.pen.flow("  ", "    ", 2, &[(Style::Bold, &name), (Style::Plain, &place), (Style::Dim, &awaits)]);
        }
    }
    match tasks.len().saturating_sub(LISTED) {
        0 => out,
        n => out + &format!("  {n} more\n"),
    }
}
