//! One thread's stack as lines: marks, function, place. What says nothing about the hang is left out and counted.

use super::frames::{FrameKind, Named};
use super::paint::{Style, squeeze};
use super::text::Page;
use crate::facts::{Hold, Wait};
use crate::units::{FrameIx, ThreadRef};
use crate::verdict::is_std_header;

/// Frames of one stack shown without `verbose`: the innermost ones; marked frames are always shown.
const MOST: usize = 24;

/// A mark on a frame.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    label: String,
    style: Style,
    native: Option<FrameIx>,
    managed: Option<u32>,
    /// The line it is about, where the frame may stand at another one.
    line: Option<u32>,
}

impl Mark {
    pub(super) fn waits(wait: &Wait) -> Mark {
        Mark {
            label: "waits here".to_owned(),
            style: Style::Alarm,
            native: Some(wait.frame),
            managed: wait.managed_frame,
            line: None,
        }
    }

    /// `None` where no frame shows the taking.
    pub(super) fn took(hold: &Hold, name: Option<String>) -> Option<Mark> {
        (hold.taken_at.is_some() || hold.taken_at_managed.is_some()).then(|| Mark {
            label: name.map_or_else(|| "took it here".to_owned(), |n| format!("took {n}")),
            style: Style::Warn,
            native: hold.taken_at,
            managed: hold.taken_at_managed.map(|t| t.frame),
            line: hold.taken_at_managed.and_then(|t| t.line),
        })
    }

    /// The mark moved to the native frame where the program's own native code lies between that and the interpreter's:
    /// there the interpreter's frame is not the one that waits.
    fn nearest(&self, frames: &[Named]) -> Mark {
        let managed = frames.iter().position(|f| f.kind == FrameKind::Python && f.managed == self.managed);
        let native = frames.iter().position(|f| f.kind == FrameKind::Native && f.native == self.native);
        let between = match (native, managed) {
            (Some(native), Some(managed)) if self.managed.is_some() => frames.get(native + 1..managed),
            _ => None,
        };
        let own = |f: &Named| f.kind != FrameKind::Python && f.function.is_some() && !of_runtime(f);
        let mut mark = self.clone();
        if between.is_some_and(|b| b.iter().any(own)) {
            mark.managed = None;
        }
        mark
    }

    /// Whether it marks this frame: the interpreter's where it names one, else the native one.
    pub(super) fn is_on(&self, frame: &Named) -> bool {
        match (self.managed, frame.kind) {
            (Some(m), FrameKind::Python) => frame.managed == Some(m),
            (Some(_), _) => false,
            (None, FrameKind::Native) => frame.native == self.native && frame.native.is_some(),
            (None, _) => false,
        }
    }
}

/// One line of the table.
struct Row {
    mark: Option<(Style, String)>,
    function: String,
    style: Style,
    place: String,
    /// Where the place is too long for the page.
    short: String,
    /// Variables, a line each.
    locals: Vec<String>,
    /// What is left out behind it.
    omitted: Vec<String>,
}

/// The stack of `t` as a table of marks, functions and places.
pub(super) fn table(page: &Page<'_>, t: ThreadRef, marks: &[Mark]) -> String {
    let frames = page.frames.of(t);
    if frames.is_empty() {
        let why = page.voice.state(t).and_then(|s| s.missing.clone()).unwrap_or_else(|| "no stack".to_owned());
        return page.pen.paragraph(4, Style::Dim, &super::sentence(&why));
    }
    let (rows, hidden) = rows(page, &frames, marks);
    // one column for the marks, the same for every thread
    let longest = rows.iter().filter_map(|r| r.mark.as_ref()).map(|(_, m)| m.chars().count()).max().unwrap_or(0);
    let mark_width = longest.clamp("took it here".len(), 24);
    let longest = rows.iter().map(|r| r.function.chars().count()).max().unwrap_or(0);
    let room = page.pen.width.saturating_sub(2 + mark_width + 3);
    let place_width = rows.iter().map(|r| r.place.chars().count()).max().unwrap_or(0);
    // the place gets what it needs, up to half; the function the rest
    let place_width = place_width.min((room / 2).max(room.saturating_sub(longest + 2)));
    let function_width = longest.min(room.saturating_sub(place_width + 2));
    let mut out = String::new();
    for row in rows {
        let (style, mark) = row.mark.unwrap_or((Style::Plain, String::new()));
        let mark = squeeze(&mark, mark_width);
        let arrow = if mark.is_empty() { "  " } else { "▸ " };
        let pad = " ".repeat(mark_width.saturating_sub(mark.chars().count()));
        let function = squeeze(&row.function, function_width);
        let gap = " ".repeat(function_width.saturating_sub(function.chars().count()) + 2);
        let fits = row.place.chars().count() <= place_width;
        let place = squeeze(if fits { &row.place } else { &row.short }, place_width);
        let line = format!(
            "  {pad}{} {}{}{gap}{}",
            page.pen.ink(style, &mark),
            page.pen.ink(style, arrow),
            page.pen.ink(row.style, &function),
            page.pen.ink(Style::Dim, &place),
        );
        out += line.trim_end();
        out.push('\n');
        for local in row.locals {
            let text = squeeze(&local, page.pen.width.saturating_sub(mark_width + 9));
            out += &format!("  {}{}\n", " ".repeat(mark_width + 5), page.pen.ink(Style::Dim, &text));
        }
        for omitted in row.omitted {
            out += &page.pen.paragraph(mark_width + 5, Style::Dim, &format!("({omitted})"));
        }
    }
    if hidden > 0 && page.options.threads != super::Threads::All {
        let words = match hidden {
            1 => "1 frame left out".to_owned(),
            n => format!("{n} frames left out"),
        };
        out += &page.pen.paragraph(mark_width + 5, Style::Dim, &format!("({words}; -v shows them)"));
    }
    out
}

fn rows(page: &Page<'_>, frames: &[Named], marks: &[Mark]) -> (Vec<Row>, usize) {
    let verbose = page.options.verbose;
    let marks: Vec<Mark> = marks.iter().map(|m| m.nearest(frames)).collect();
    let marked = |f: &Named| marks.iter().find(|m| m.is_on(f));
    let shown = shown(frames, &|f| marked(f).is_some());
    let mut rows: Vec<Row> = Vec::new();
    let mut hidden = 0;
    let mut unnamed: Option<(String, usize)> = None;
    for (frame, shown) in frames.iter().zip(shown) {
        let mark = marked(frame);
        let told = verbose || mark.is_some() || rows.len() < MOST;
        if !verbose && mark.is_none() && (!shown || rows.len() >= MOST) {
            hidden += 1;
        } else if !verbose && mark.is_none() && frame.function.is_none() {
            // frames without a name say nothing one by one
            let module = frame.module.clone().unwrap_or_default();
            match (&mut unnamed, rows.last_mut()) {
                (Some((of, n)), Some(last)) if *of == module => {
                    *n += 1;
                    last.function = format!("({n} functions without names)");
                }
                _ => {
                    rows.push(row(page, frame, None));
                    unnamed = Some((module, 1));
                }
            }
        } else {
            unnamed = None;
            // a frame that took something at one line and now stands at another is shown at both
            let here: Vec<&Mark> = marks.iter().filter(|m| m.is_on(frame)).collect();
            if here.iter().all(|m| m.line.is_some() && m.line != frame.line) {
                rows.push(Row { locals: Vec::new(), ..row(page, frame, None) });
            }
            for mark in here {
                let line = mark.line.or(frame.line);
                rows.push(row(page, &Named { line, ..frame.clone() }, Some(mark)));
            }
        }
        if let (Some(omitted), true, Some(last)) = (&frame.omitted, told, rows.last_mut()) {
            last.omitted.push(omitted.sentence());
            unnamed = None;
        }
    }
    (rows, hidden)
}

fn row(page: &Page<'_>, frame: &Named, mark: Option<&Mark>) -> Row {
    let function = match (&frame.function, page.options.verbose, frame.pc) {
        (Some(name), _, _) => name.clone(),
        (None, true, Some(pc)) => pc.to_string(),
        (None, _, _) if mark.is_some() => "(a function without a name)".to_owned(),
        (None, _, _) => "(1 function without a name)".to_owned(),
    };
    Row {
        mark: mark.map(|m| (m.style, m.label.clone())),
        function,
        style: match frame.kind {
            FrameKind::Python => Style::Code,
            FrameKind::Inlined => Style::Dim,
            FrameKind::Native => Style::Plain,
        },
        place: place(frame, page.options.verbose),
        short: match (&frame.file, frame.line) {
            (Some(file), Some(line)) => format!("{}:{line}", short_path(file)),
            _ => place(frame, false),
        },
        locals: frame.locals.iter().flatten().map(|(name, value)| format!("{name} = {value}")).collect(),
        omitted: Vec::new(),
    }
}

/// `kernels.py:88`, `libfoo.so`, `import.cpp:31 libfoo.so`.
pub(super) fn place(frame: &Named, verbose: bool) -> String {
    let line = frame.line.map(|l| format!(":{l}")).unwrap_or_default();
    let file = frame.file.as_deref().map(|f| if verbose { f.to_owned() } else { short_path(f) });
    match (file, &frame.module) {
        (Some(file), Some(module)) => format!("{file}{line} {module}"),
        (Some(file), None) => format!("{file}{line}"),
        (None, Some(module)) => module.clone(),
        (None, None) => String::new(),
    }
}

/// The end of a path that says enough: what follows `site-packages`, two parts for `__init__.py`, else the last.
pub(super) fn short_path(path: &str) -> String {
    for root in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, rest)) = path.rsplit_once(root) {
            return rest.to_owned();
        }
    }
    let parts: Vec<&str> = path.rsplit('/').take(2).collect();
    match parts.as_slice() {
        [last @ ("__init__.py" | "__main__.py"), before] if !before.is_empty() => format!("{before}/{last}"),
        [last, ..] => (*last).to_owned(),
        [] => path.to_owned(),
    }
}

/// Functions of the interpreter that say how a thread came to wait: kept where the interpreter's other frames are not.
const TELLING: &[&str] = &[
    "take_gil",
    "PyGILState_Ensure",
    "PyEval_RestoreThread",
    "PyEval_AcquireThread",
    "PyThreadState_Swap",
    "PyImport_ImportModule",
    "PyImport_Import",
    "PyImport_ImportModuleLevelObject",
];

/// Where a thread begins: nothing to learn there.
const BEGINNINGS: &[&str] = &[
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "Py_BytesMain",
    "Py_RunMain",
    "pymain_main",
    "execute_native_thread_routine",
    "thread_run",
    "pythread_wrapper",
];

/// Where a Python thread begins, in `threading.py`.
const PYTHON_BEGINNINGS: &[&str] =
    &["Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap", "run", "_bootstrap_inner", "_bootstrap"];

/// Whether a native frame belongs to the interpreter, its foreign function interfaces or the language's libraries.
fn of_runtime(f: &Named) -> bool {
    let module = f.module.as_deref().unwrap_or_default();
    matches!(f.domain, Some("libc" | "loader" | "cpython" | "cxx"))
        || ["libffi", "_cffi_backend"].iter().any(|m| module.starts_with(m))
        || module.contains(".cpython-3")
        || f.file.as_deref().is_some_and(is_std_header)
}

/// Which frames are shown without `verbose`: not the interpreter's own, not the foreign function interface's, not what
/// lies inside the marked innermost frame, not a thread's beginning.
pub(super) fn shown(frames: &[Named], marked: &dyn Fn(&Named) -> bool) -> Vec<bool> {
    let first_mark = frames.iter().position(marked);
    let has_python = frames.iter().any(|f| f.kind == FrameKind::Python);
    let mut keep: Vec<bool> = frames
        .iter()
        .enumerate()
        .map(|(i, f)| {
            let telling = f.function.as_deref().is_some_and(|n| TELLING.contains(&n));
            if marked(f) {
                return true;
            }
            if f.kind == FrameKind::Python {
                let begins = f.function.as_deref().is_some_and(|n| PYTHON_BEGINNINGS.contains(&n));
                return !(begins && f.file.as_deref().is_some_and(|p| p.ends_with("/threading.py")));
            }
            if f.file.as_deref().is_some_and(is_std_header) {
                return false;
            }
            let inside = first_mark.is_some_and(|m| i < m) && matches!(f.domain, Some("libc" | "loader" | "cpython"));
            if telling && !inside {
                return true;
            }
            let module = f.module.as_deref().unwrap_or_default();
            let interpreter =
                f.runs_python || (f.domain == Some("cpython") && has_python) || module.starts_with("libffi");
            !interpreter && !inside
        })
        .collect();
    // the outermost frames of the C library are a thread's beginning
    for (f, keep) in frames.iter().zip(keep.iter_mut()).rev() {
        if f.kind == FrameKind::Python || marked(f) {
            break;
        }
        let beginning = f.function.as_deref().is_none_or(|n| BEGINNINGS.contains(&n));
        let of_runtime =
            matches!(f.domain, Some("libc" | "cxx" | "cpython")) || f.function.as_deref() == Some("_start");
        if !(beginning && of_runtime || !*keep) {
            break;
        }
        *keep = false;
    }
    keep
}
