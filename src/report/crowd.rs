//! Everybody who is not part of the story, folded into counted groups of equal stacks.

use super::frames::Named;
use super::paint::{Style, unbroken};
use super::stacks::{self, Mark};
use super::text::{Page, state_word};
use crate::units::ThreadRef;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// Frames of a group's stack shown.
const FRAMES: usize = 4;
/// Threads of a group named.
const NAMED: usize = 3;
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
    let mut outlines: HashMap<Same, Vec<String>> = HashMap::new();
    let seeds = [RandomState::new(), RandomState::new()];
    for t in threads {
        let frames = outlines.entry(same(page, *t, &seeds)).or_insert_with(|| outline(page, *t)).clone();
        let alike = Alike { doing: doing(page, *t), behind: behind.get(t).map(|b| page.voice.short(*b)), frames };
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
        let behind = alike
            .behind
            .as_ref()
            .filter(|b| !alike.doing.contains(*b))
            .map(|b| format!(" {}", unbroken(&format!("· behind {b}"))))
            .unwrap_or_default();
        out += &page.pen.flow(
            &page.pen.ink(Style::Bold, &first),
            &pad,
            indent,
            &[(Style::Plain, &alike.doing), (Style::Dim, &behind)],
        );
        let stack = frames(page, members);
        if !stack.is_empty() {
            out += &page.pen.paragraph(indent, Style::Code, &stack);
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

/// The few innermost frames that say something: not those of the C library, where others are there.
fn telling(page: &Page<'_>, t: ThreadRef, frames: Vec<Named>) -> Vec<Named> {
    let mark = page.case.graph.waits.get(&t).map(Mark::waits);
    let marked = |f: &Named| mark.as_ref().is_some_and(|m| m.is_on(f));
    let keep = stacks::shown(&frames, &marked);
    let mut shown: Vec<Named> =
        frames.into_iter().zip(keep).filter(|(f, keep)| *keep && f.function.is_some()).map(|(f, _)| f).collect();
    let library = |f: &Named| matches!(f.domain, Some("libc" | "loader"));
    if !shown.iter().all(library) {
        shown.retain(|f| !library(f));
    }
    shown.truncate(FRAMES);
    shown
}

/// What two threads share whose outlines are the same: thousands of workers are named once. A hash of it, as stacks are
/// deep: by two seeds, so that stacks that differ do not meet.
type Same = (u64, u64);

fn same(page: &Page<'_>, t: ThreadRef, seeds: &[RandomState; 2]) -> Same {
    let [first, second] = seeds.each_ref().map(|seed| {
        let mut hasher = seed.build_hasher();
        for frame in page.voice.stack(t).map_or(&[][..], |s| s.frames.as_slice()) {
            frame.pc.addr.0.hash(&mut hasher);
        }
        for frame in page.voice.managed(t).map_or(&[][..], |m| m.frames.as_slice()) {
            (frame.function.as_str(), frame.native.map(|n| n.0)).hash(&mut hasher);
        }
        let wait = page.case.graph.waits.get(&t).map(|w| (w.frame.0, w.managed_frame));
        wait.hash(&mut hasher);
        hasher.finish()
    });
    (first, second)
}

/// Functions only: threads that differ by a line of one function are alike.
fn outline(page: &Page<'_>, t: ThreadRef) -> Vec<String> {
    let frames = telling(page, t, page.frames.outline(t));
    frames.into_iter().filter_map(|f| f.function).collect()
}

/// The frames of a group as its first thread shows them.
fn frames(page: &Page<'_>, members: &[ThreadRef]) -> String {
    let Some(first) = members.first() else { return String::new() };
    let named = |f: Named| {
        let name = f.function.unwrap_or_default();
        match f.file {
            Some(file) => {
                let line = f.line.map(|l| format!(":{l}")).unwrap_or_default();
                format!("{name} ({}{line})", stacks::short_path(&file))
            }
            None => name,
        }
    };
    let frames = telling(page, *first, page.frames.of(*first));
    frames.into_iter().map(|f| unbroken(&named(f))).collect::<Vec<_>>().join(" ←\u{a0}")
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
