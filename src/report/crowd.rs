//! Everybody who is not part of the story, folded into counted groups of equal stacks.

use super::frames::{FrameKind, Named};
use super::paint::{Style, unbroken};
use super::stacks;
use super::text::{Page, state_word};
use crate::units::ThreadRef;
use std::collections::BTreeMap;

/// Frames of a group's stack shown.
const FRAMES: usize = 4;
/// Threads of a group named.
const NAMED: usize = 4;
/// Groups shown without `verbose`.
const GROUPS: usize = 20;

/// What makes threads of one group alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    doing: String,
    behind: Option<String>,
    frames: Vec<String>,
}

/// The groups, largest first.
pub(super) fn groups(page: &Page<'_>, threads: &[ThreadRef]) -> String {
    let behind: BTreeMap<ThreadRef, ThreadRef> =
        page.case.verdict.blocked_behind.iter().map(|b| (b.thread, b.behind)).collect();
    let mut groups: BTreeMap<Alike, Vec<ThreadRef>> = BTreeMap::new();
    for t in threads {
        let alike = Alike {
            doing: doing(page, *t),
            behind: behind.get(t).map(|b| page.voice.short(*b)),
            frames: top(page, *t),
        };
        groups.entry(alike).or_default().push(*t);
    }
    let mut order: Vec<(Alike, Vec<ThreadRef>)> = groups.into_iter().collect();
    order.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.1.cmp(&b.1)));
    let width = order.first().map_or(1, |(_, t)| t.len().to_string().len());
    let most = if page.options.verbose { usize::MAX } else { GROUPS };
    let mut out = String::new();
    for (alike, members) in order.iter().take(most) {
        let first = format!("  {:>width$} × ", members.len());
        let indent = first.chars().count();
        let pad = " ".repeat(indent);
        let behind =
            alike.behind.as_ref().map(|b| format!(" {}", unbroken(&format!("· behind {b}")))).unwrap_or_default();
        out += &page.pen.flow(
            &page.pen.ink(Style::Bold, &first),
            &pad,
            indent,
            &[(Style::Plain, &alike.doing), (Style::Dim, &behind)],
        );
        if !alike.frames.is_empty() {
            out += &page.pen.paragraph(
                indent,
                Style::Code,
                &alike.frames.iter().map(|f| unbroken(f)).collect::<Vec<_>>().join(" ←\u{a0}"),
            );
        }
        out += &page.pen.paragraph(indent, Style::Dim, &names(page, members));
    }
    if let Some(rest) = order.get(most..).filter(|r| !r.is_empty()) {
        let threads: usize = rest.iter().map(|(_, t)| t.len()).sum();
        out += &format!("  and {threads} more threads in {} more groups; -v shows them\n", rest.len());
    }
    out
}

fn doing(page: &Page<'_>, t: ThreadRef) -> String {
    match (page.case.graph.waits.get(&t), page.voice.state(t)) {
        (Some(wait), _) => page.voice.waits(wait.on),
        (None, Some(state)) => match state.missing.as_deref().or(state.state.map(state_word)) {
            Some(word) => super::sentence(word),
            None => "doing what is not known".to_owned(),
        },
        (None, None) => "doing what is not known".to_owned(),
    }
}

/// The few innermost frames that say something.
fn top(page: &Page<'_>, t: ThreadRef) -> Vec<String> {
    let frames = page.frames.of(t);
    let keep = stacks::shown(&frames, &|_| false);
    let python = frames.iter().any(|f| f.kind == FrameKind::Python);
    let says = |f: &Named| {
        f.function.is_some()
            && (f.kind == FrameKind::Python || !(python && matches!(f.domain, Some("libc" | "loader"))))
    };
    let shown = frames.iter().zip(keep).filter(|(f, keep)| *keep && says(f)).map(|(f, _)| f);
    shown
        .take(FRAMES)
        .map(|f| {
            let name = f.function.clone().unwrap_or_default();
            match (f.kind, &f.file) {
                (_, Some(file)) => {
                    let line = f.line.map(|l| format!(":{l}")).unwrap_or_default();
                    format!("{name} ({}{line})", stacks::short_path(file))
                }
                _ => name,
            }
        })
        .collect()
}

fn names(page: &Page<'_>, members: &[ThreadRef]) -> String {
    let most = if page.options.verbose { usize::MAX } else { NAMED };
    // "and 1 more" is no shorter than the one
    let most = if members.len() == most.saturating_add(1) { members.len() } else { most };
    let named: Vec<String> = members.iter().take(most).map(|t| unbroken(&page.voice.short(*t))).collect();
    match members.len().saturating_sub(most) {
        0 => named.join(", "),
        n => format!("{} {}", named.join(", "), unbroken(&format!("and {n} more"))),
    }
}
