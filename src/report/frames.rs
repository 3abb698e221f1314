//! One thread's frames as a person reads them: native and interpreter frames in one list, innermost first, with names.

use super::{Case, repeats};
use crate::facts::{Holder, ManagedFrame};
use crate::snapshot::{Pc, Snapshot};
use crate::units::{Addr, FrameIx, ThreadRef, harmless_text};
use crate::unwind::Trust;
use crate::verdict::{Voice, function_name, plain};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// What kind of frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum FrameKind {
    Native,
    /// A native function the compiler put into the next one.
    Inlined,
    Python,
}

/// One frame, named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub kind: FrameKind,
    pub function: Option<String>,
    pub module: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub pc: Option<Addr>,
    pub trust: Option<Trust>,
    pub domain: Option<&'static str>,
    /// Index into the native stack; for a Python frame that of the evaluation loop that runs it.
    pub native: Option<FrameIx>,
    /// Index into the interpreter's frames.
    pub managed: Option<u32>,
    /// Whether this native frame is an evaluation loop whose Python frames are shown.
    pub runs_python: bool,
    /// Variables, where they were asked for: name and value.
    pub locals: Option<Vec<(String, String)>>,
    /// What is left out behind it.
    pub omitted: Option<Omitted>,
}

/// Frames left out, counted from 0 in the whole stack, both included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Omitted {
    pub first: usize,
    pub last: usize,
    /// The functions that repeat in them, in the order of the stack; empty where the stack was too deep to be shown whole.
    pub repeats: Vec<String>,
}

impl Omitted {
    /// `frames 12 to 99,980 repeat: f → g`: callers first.
    pub(super) fn sentence(&self) -> String {
        let (first, last) = (grouped(self.first), grouped(self.last));
        if self.repeats.is_empty() {
            return format!("frames {first} to {last} are left out");
        }
        let called: Vec<&str> = self.repeats.iter().rev().map(String::as_str).collect();
        format!("frames {first} to {last} repeat: {}", called.join(" → "))
    }
}

/// A number as people read it: `99,980`.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Frames of one thread that a report shows at most, those of all threads together, and what each thread has in any case.
const MOST: usize = 2048;
const ALL: usize = 1 << 18;
const LEAST: usize = 64;
/// Functions of a cycle that are named.
const NAMED: usize = 6;

/// What is known of one pc.
struct Place {
    /// Innermost first; the last is the function itself, those before are inlined into it.
    functions: Vec<Function>,
    module: Option<String>,
}

struct Function {
    name: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

/// A frame something is said of: the native one, the interpreter's.
type Marked = (Option<FrameIx>, Option<u32>);

/// Names frames; each pc once.
pub(super) struct Frames<'a> {
    voice: &'a Voice<'a>,
    /// Frames that something is said of: they are never left out.
    marks: HashMap<ThreadRef, Vec<Marked>>,
    most: usize,
    places: RefCell<HashMap<(u32, Pc, bool), Rc<Place>>>,
}

impl<'a> Frames<'a> {
    pub(super) fn new(voice: &'a Voice<'a>, case: &Case<'_>) -> Frames<'a> {
        let mut marks: HashMap<ThreadRef, Vec<Marked>> = HashMap::new();
        for (t, wait) in &case.graph.waits {
            marks.entry(*t).or_default().push((Some(wait.frame), wait.managed_frame));
        }
        for hold in case.graph.holds.values().flatten().chain(&case.verdict.inferred_holds) {
            if let Holder::Thread(t) = hold.holder {
                marks.entry(t).or_default().push((hold.taken_at, hold.taken_at_managed.map(|at| at.frame)));
            }
        }
        let threads: usize = case.snapshots.iter().map(|s| s.threads.len()).sum();
        Frames { voice, marks, most: (ALL / threads.max(1)).clamp(LEAST, MOST), places: RefCell::default() }
    }

    /// The frames of `t`, innermost first. An evaluation loop stands after the interpreter frames it runs. Interpreter
    /// frames that could not be matched stand where their neighbours do; where none could, after the native ones.
    pub(super) fn of(&self, t: ThreadRef) -> Vec<Named> {
        self.frames(t, true)
    }

    /// As [`Frames::of`], without lines and inlined functions of native code: opens no debug information.
    pub(super) fn outline(&self, t: ThreadRef) -> Vec<Named> {
        self.frames(t, false)
    }

    fn frames(&self, t: ThreadRef, with_lines: bool) -> Vec<Named> {
        let (Some(snapshot), Some(stack)) = (self.voice.snapshot(t), self.voice.stack(t)) else { return Vec::new() };
        let managed: &[ManagedFrame] = self.voice.managed(t).map_or(&[], |m| m.frames.as_slice());
        let mut run_by: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut unmatched = Vec::new();
        let mut here: Option<u32> = None;
        for (i, frame) in managed.iter().enumerate() {
            here = frame.native.map(|n| n.0).or(here);
            match here.filter(|n| (*n as usize) < stack.frames.len()) {
                Some(n) => run_by.entry(n).or_default().push(i),
                None => unmatched.push(i),
            }
        }
        // those before the first match belong with it
        if let (Some(first), false) = (run_by.values_mut().next(), unmatched.is_empty()) {
            unmatched.append(first);
            *first = std::mem::take(&mut unmatched);
        }
        let mut out = Vec::with_capacity(stack.frames.len() + managed.len());
        for (i, frame) in stack.frames.iter().enumerate() {
            let ix = FrameIx(u32::try_from(i).unwrap_or(u32::MAX));
            let mine = run_by.get(&ix.0);
            for m in mine.into_iter().flatten() {
                out.extend(managed.get(*m).map(|f| python(f, *m, Some(ix))));
            }
            let place = self.place(t.process.0, snapshot, frame.pc, with_lines);
            let last = place.functions.len().saturating_sub(1);
            for (n, function) in place.functions.iter().enumerate() {
                let name = function.name.clone().or_else(|| self.voice.called(t, ix));
                out.push(Named {
                    kind: if n == last { FrameKind::Native } else { FrameKind::Inlined },
                    domain: domain(place.module.as_deref(), name.as_deref()),
                    function: name,
                    module: place.module.clone(),
                    file: function.file.clone(),
                    line: function.line,
                    pc: Some(frame.pc.addr),
                    trust: Some(frame.trust),
                    native: Some(ix),
                    managed: None,
                    runs_python: mine.is_some() && n == last,
                    locals: None,
                    omitted: None,
                });
            }
        }
        out.extend(unmatched.into_iter().filter_map(|m| managed.get(m).map(|f| python(f, m, None))));
        self.fold(t, out)
    }

    /// Leaves out what repeats, and the middle of what is too deep.
    fn fold(&self, t: ThreadRef, frames: Vec<Named>) -> Vec<Named> {
        let marks = self.marks.get(&t).map_or(&[][..], Vec::as_slice);
        let marked = |i: usize| {
            frames.get(i).is_some_and(|f| {
                let native = f.kind != FrameKind::Python && f.native.is_some();
                marks.iter().any(|(n, m)| native && f.native == *n || f.managed.is_some() && f.managed == *m)
            })
        };
        let keys = frames.iter().map(|f| {
            let unnamed = f.pc.filter(|_| f.function.is_none());
            (f.kind, f.function.as_deref(), f.module.as_deref(), f.file.as_deref(), unnamed)
        });
        let kept = repeats::fold(keys, marked, self.most);
        if kept.len() == frames.len() {
            return frames;
        }
        let omitted = |at: usize, gap: repeats::Gap| {
            let cycle = frames.get((at + 1).saturating_sub(gap.period)..=at).unwrap_or_default();
            let cycle = if gap.period == 0 { &[] } else { cycle };
            // the interpreter's own frames between those of the program say nothing
            let python = cycle.iter().any(|f| f.kind == FrameKind::Python);
            let telling = cycle.iter().filter(|f| !python || f.kind == FrameKind::Python);
            let mut names: Vec<String> =
                telling.map(|f| f.function.clone().unwrap_or_else(|| "a function without a name".to_owned())).collect();
            names.dedup();
            if names.len() > NAMED {
                // each once, as they are met first
                let mut met = HashSet::new();
                names.retain(|name| met.insert(name.clone()));
                names.truncate(NAMED);
            }
            Omitted { first: gap.first, last: gap.last, repeats: names }
        };
        let gaps: Vec<Option<Omitted>> = kept.iter().map(|(i, gap)| gap.map(|g| omitted(*i, g))).collect();
        let mut frames: Vec<Option<Named>> = frames.into_iter().map(Some).collect();
        let taken = kept.into_iter().zip(gaps).filter_map(|((i, _), omitted)| {
            let frame = frames.get_mut(i)?.take()?;
            Some(Named { omitted, ..frame })
        });
        taken.collect()
    }

    fn place(&self, process: u32, snapshot: &Snapshot, pc: Pc, with_lines: bool) -> Rc<Place> {
        if let Some(known) = self.places.borrow().get(&(process, pc, with_lines)) {
            return Rc::clone(known);
        }
        let described = snapshot.describe(pc);
        let module = described.module.and_then(|ix| snapshot.module(ix)).map(|m| plain(m.name()));
        let name = described.function.as_deref().map(function_name);
        // nobody mends the C library or the interpreter: their debug information, the largest there is, stays unopened
        let foreign = matches!(domain(module.as_deref(), None), Some("libc" | "loader" | "cpython"));
        let lines = if foreign || !with_lines { Vec::new() } else { snapshot.lines(pc) };
        let mut functions: Vec<Function> = lines
            .into_iter()
            .map(|l| Function {
                name: l.function.as_deref().map(function_name),
                file: l.file.as_deref().map(plain_path),
                line: l.line,
            })
            .collect();
        match functions.last_mut() {
            Some(outermost) => outermost.name = name.or(outermost.name.take()),
            None => functions.push(Function { name, file: None, line: None }),
        }
        let place = Rc::new(Place { functions, module });
        self.places.borrow_mut().insert((process, pc, with_lines), Rc::clone(&place));
        place
    }
}

fn python(frame: &ManagedFrame, index: usize, native: Option<FrameIx>) -> Named {
    Named {
        kind: FrameKind::Python,
        function: Some(plain(&frame.function)),
        module: None,
        file: Some(plain_path(&frame.file)),
        line: frame.line,
        pc: None,
        trust: None,
        domain: Some("cpython"),
        native,
        managed: u32::try_from(index).ok(),
        runs_python: false,
        locals: frame
            .locals
            .as_ref()
            .map(|all| all.iter().map(|l| (plain(&l.name), harmless_text(&l.value, 512))).collect()),
        omitted: None,
    }
}

/// A path made harmless; unlike a name it is shown whole.
fn plain_path(path: &str) -> String {
    harmless_text(path, 1024)
}

/// Which part of the world a frame belongs to, by the name of its module.
fn domain(module: Option<&str>, function: Option<&str>) -> Option<&'static str> {
    let module = module?;
    let starts = |names: &[&str]| names.iter().any(|n| module.starts_with(n));
    if starts(&["libc.so", "libc-2", "libpthread", "libm.so", "librt.so", "ld-musl"]) {
        Some("libc")
    } else if starts(&["ld-linux", "ld-2", "ld.so", "libdl.so", "libdl-2"]) {
        Some("loader")
    } else if starts(&["libpython3", "python3", "_ctypes.", "_asyncio.", "_queue.", "_multiprocessing."])
        || module == "python"
    {
        Some("cpython")
    } else if starts(&["libamdhip64", "libhiprtc", "libamd_comgr", "libroctx64", "libroctracer64", "librocprofiler"]) {
        Some("hip")
    } else if starts(&["libhsa-runtime64", "libhsakmt"]) {
        Some("hsa")
    } else if starts(&["libcuda.", "libcudart", "libnvrtc", "libnvidia-ptxjitcompiler", "libcudadebugger"]) {
        Some("cuda")
    } else if starts(&["libnccl.", "libnccl-", "librccl."]) {
        Some("nccl")
    } else if starts(&["libze_"]) {
        Some("level-zero")
    } else if starts(&["libstdc++", "libgcc_s", "libc++"]) {
        Some("cxx")
    } else if function.is_some_and(|f| f.starts_with("std::rt::") || f.starts_with("core::ops::")) {
        Some("rust")
    } else {
        None
    }
}
