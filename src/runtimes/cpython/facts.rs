//! From what was read to facts: managed threads with merged stacks; the GIL and the locks in files of their own.

use super::census::Census;
use super::find::Found;
use super::locals::MAX_FRAMES as MAX_LOCAL_FRAMES;
use super::loops::Loops;
use super::merge::{Grouping, count_loops, merge};
use super::objects::Objects;
use super::offsets::{FrameLayout, NoOffsets, Offsets};
use super::place::PyStack;
use super::scene::{Beat, Scene};
use super::threads::Doubt;
use crate::facts::{Facts, Gap, GilRole, ManagedFrame, ManagedThread, RuntimeNote, SignalHandler};
use crate::memory::WalkEnd;
use crate::runtimes::View;
use crate::units::{FrameIx, ThreadRef, Tid};
use std::collections::BTreeMap;

/// Everything this CPython tells.
pub(super) fn facts_of(found: &Found, view: &View<'_>) -> Facts {
    let mut facts = Facts {
        runtime: Some(RuntimeNote {
            name: "cpython",
            version: Some(found.version.text.clone()),
            build: Some(if found.free_threaded { "free-threaded" } else { "gil" }),
        }),
        ..Facts::default()
    };
    let offsets = match &found.offsets {
        Ok(o) => o,
        Err(why) => {
            facts.gaps.push(unknown_version(found, why));
            return facts;
        }
    };
    let objects = Objects::new(view.memory, offsets);
    match Census::take(&objects, found) {
        Ok(census) => {
            let scene = Scene::look(&objects, &census, &view.snapshot.threads, Beat::Thought);
            let loops = Loops::new(found);
            let natives = BTreeMap::new();
            Telling { found, view, o: offsets, objects: &objects, census: &census, scene: &scene, loops, natives }
                .tell(&mut facts);
        }
        Err(doubt) => facts.gaps.push(doubted(found, &doubt)),
    }
    facts
}

fn unknown_version(found: &Found, why: &NoOffsets) -> Gap {
    let version = &found.version.text;
    Gap(match why {
        NoOffsets::UnknownVersion => {
            format!("CPython {version} is not known to this hangscope (3.8 to 3.15 are): native stacks only")
        }
        NoOffsets::Lacks(what) => format!("the tables for CPython {version} lack {what}: native stacks only"),
    })
}

fn doubted(found: &Found, doubt: &Doubt) -> Gap {
    let (version, module, at) = (&found.version.text, &found.module, found.runtime);
    Gap(match doubt {
        Doubt::Unreadable(e) => format!("CPython {version} in {module}: _PyRuntime at {at} cannot be read: {e}"),
        Doubt::Uninitialised => {
            format!("CPython {version} in {module} has no interpreter: it is starting, has ended, or was never started")
        }
        Doubt::Inconsistent(why) => {
            format!("CPython {version} in {module}: {why}; its Python frames and locks are left out")
        }
    })
}

/// All that is at hand while telling.
pub(super) struct Telling<'a> {
    pub found: &'a Found,
    pub view: &'a View<'a>,
    pub o: &'a Offsets,
    pub objects: &'a Objects<'a>,
    pub census: &'a Census,
    pub scene: &'a Scene<'a>,
    pub loops: Loops,
    /// The native frame that runs each Python frame, by index into the snapshot's threads.
    pub natives: BTreeMap<usize, Vec<Option<FrameIx>>>,
}

impl Telling<'_> {
    fn tell(mut self, facts: &mut Facts) {
        self.learn_loops();
        facts.gaps.extend(walk_gap("the list of interpreters", self.census.interpreters.len(), self.census.end));
        for (interpreter, lost) in self.census.interpreters.iter().zip(&self.scene.places.lost) {
            let what = format!("the list of thread states of the interpreter at {}", interpreter.addr);
            facts.gaps.extend(walk_gap(&what, interpreter.threads.len(), interpreter.end));
            if *lost > 0 {
                facts.gaps.push(Gap(format!(
                    "{lost} thread state(s) of the interpreter belong to no thread of this process: those threads ended or \
                     stayed behind at a fork"
                )));
            }
        }
        self.merge_stacks(facts);
        let mut roles: BTreeMap<usize, GilRole> = BTreeMap::new();
        for gil in &self.census.gils {
            self.tell_gil(gil, &mut roles, facts);
        }
        for (at, e) in &self.census.lost_gils {
            facts.gaps.push(Gap(format!("the GIL at {at} cannot be read: {e}")));
        }
        self.tell_attached(facts);
        self.tell_locks(&roles, facts);
        self.tell_handlers(facts);
        self.tell_work(facts);
        self.tell_lock_files(facts);
        self.tell_process_pools(facts);
        self.tell_frozen(facts);
        for (index, stack) in &self.scene.stacks {
            let thread = self.managed(*index, stack, roles.get(index).copied());
            facts.managed.push((self.thread(*index), thread));
        }
    }

    /// The handlers of signals.
    fn tell_handlers(&self, facts: &mut Facts) {
        if let Some(handlers) = &self.census.handlers {
            let each = handlers.iter().map(|(signal, function)| SignalHandler {
                signal: *signal,
                function: self.objects.function_name(*function),
            });
            facts.handlers.entry(self.view.process).or_default().extend(each);
        }
    }

    /// Where symbols leave evaluation loops out, learns them from the calls to them.
    fn learn_loops(&mut self) {
        let grouping = self.grouping();
        let python: usize = self.scene.stacks.values().map(|s| count_loops(grouping, &s.raw)).sum();
        let native: usize = self.view.stacks.iter().map(|s| self.loops.of(s).len()).sum();
        if native < python {
            self.loops.learn(self.view);
        }
    }

    fn grouping(&self) -> Grouping {
        match &self.o.frame {
            FrameLayout::Object(_) => Grouping::One,
            FrameLayout::Inline(f) if f.is_entry.is_some() => Grouping::Entry,
            FrameLayout::Inline(_) => Grouping::Shim,
        }
    }

    /// Finds the native frame that runs each Python frame.
    fn merge_stacks(&mut self, facts: &mut Facts) {
        let mut unmatched = Vec::new();
        for (index, stack) in &self.scene.stacks {
            let native = self.view.stacks.get(*index);
            let loops = native.map(|s| self.loops.of(s)).unwrap_or_default();
            let (merged, matched) = merge(self.grouping(), &stack.raw, &loops);
            // without a native stack there is nothing to match
            if !matched && native.is_some_and(|s| !s.frames.is_empty()) {
                unmatched.push(self.tid(*index).0);
            }
            self.natives.insert(*index, merged.into_iter().map(|(_, n)| n).collect());
        }
        if !unmatched.is_empty() {
            let list = unmatched.iter().take(8).map(i32::to_string).collect::<Vec<_>>().join(", ");
            let more = if unmatched.len() > 8 { ", …" } else { "" };
            facts.gaps.push(Gap(format!(
                "Python and native stacks do not match in {} thread(s) ({list}{more}): both are shown, not merged",
                unmatched.len()
            )));
        }
    }

    fn managed(&self, index: usize, stack: &PyStack<'_>, gil: Option<GilRole>) -> ManagedThread {
        let natives = self.natives.get(&index);
        let frames = stack
            .frames
            .iter()
            .enumerate()
            .map(|(i, framed)| {
                let native = natives.and_then(|n| n.get(i).copied().flatten());
                match &framed.code {
                    Some(code) => ManagedFrame {
                        function: code.function.clone(),
                        file: code.file.clone(),
                        line: code.line_of(self.objects, &framed.frame),
                        native,
                        entered: self.entered(index, stack, i),
                        locals: (self.view.locals && i < MAX_LOCAL_FRAMES).then(|| self.objects.told_locals(framed)),
                    },
                    None => ManagedFrame {
                        function: "?".to_owned(),
                        file: "?".to_owned(),
                        line: None,
                        native,
                        entered: None,
                        locals: None,
                    },
                }
            })
            .collect();
        ManagedThread { name: self.name_of_thread(index), frames, gil }
    }

    /// The name the program gave the thread at `index`.
    pub(super) fn name_of_thread(&self, index: usize) -> Option<String> {
        let states = &self.scene.stacks.get(&index)?.states;
        states.iter().find_map(|p| self.census.names.get(p.interpreter)?.get(&p.thread.pthread).cloned())
    }

    pub(super) fn thread(&self, index: usize) -> ThreadRef {
        self.view.thread(index)
    }

    pub(super) fn tid(&self, index: usize) -> Tid {
        self.view.snapshot.threads.get(index).map_or(Tid(0), |t| t.tid)
    }
}

pub(super) fn frame_ix(i: usize) -> FrameIx {
    FrameIx(u32::try_from(i).unwrap_or(u32::MAX))
}

/// What a walk that did not end by itself leaves out.
fn walk_gap(what: &str, n: usize, end: WalkEnd) -> Option<Gap> {
    Some(Gap(match end {
        WalkEnd::Complete => return None,
        WalkEnd::Bound => format!("{what} is longer than {n}: the rest is left out"),
        WalkEnd::Circle(at) => format!("{what} makes no sense after {n} entries (at {at}): the rest is left out"),
        WalkEnd::Unreadable(e) => format!("{what} breaks off after {n} entries: {e}"),
    }))
}
