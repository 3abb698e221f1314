//! From what was read to facts: managed threads with merged stacks, the GIL's holder and waiters.

use super::census::Census;
use super::find::Found;
use super::gil::{Gil, GilCall, calls_for_it, futex_wait, left_futex, strip_clone, surely_takes};
use super::loops::Loops;
use super::merge::{Grouping, count_loops, merge};
use super::objects::Objects;
use super::offsets::{FrameLayout, NoOffsets, Offsets};
use super::threads::{Doubt, Interpreter, PyThread};
use crate::facts::{
    Certainty, Evidence, Facts, Gap, GilRole, Hold, Holder, ManagedFrame, ManagedThread, Mode, Reentrancy, Resource,
    ResourceId, ResourceKind, RuntimeNote, Timeout, Wait, Wakers,
};
use crate::memory::WalkEnd;
use crate::runtimes::View;
use crate::units::{Addr, FrameIx, ThreadRef, Tid};
use crate::unwind::Trust;
use std::collections::HashMap;

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
            let loops = Loops::new(found);
            Telling { found, view, o: offsets, objects: &objects, census: &census, loops }.tell(&mut facts);
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

struct Telling<'a> {
    found: &'a Found,
    view: &'a View<'a>,
    o: &'a Offsets,
    objects: &'a Objects<'a>,
    census: &'a Census,
    loops: Loops,
}

/// A thread state, its interpreter, and the thread it runs on.
struct Placed<'a> {
    interpreter: usize,
    thread: &'a PyThread,
    index: usize,
}

impl Telling<'_> {
    fn tell(mut self, facts: &mut Facts) {
        self.learn_loops();
        let placed = self.place(facts);
        let mut roles: HashMap<usize, GilRole> = HashMap::new();
        for gil in &self.census.gils {
            self.tell_gil(gil, &placed, &mut roles, facts);
        }
        for (at, e) in &self.census.lost_gils {
            facts.gaps.push(Gap(format!("the GIL at {at} cannot be read: {e}")));
        }
        self.tell_threads(&placed, &roles, facts);
    }

    /// Where symbols leave evaluation loops out, learns them from the calls to them.
    fn learn_loops(&mut self) {
        let python: usize = self.census.chains.values().map(|c| count_loops(self.grouping(), &c.frames)).sum();
        let native: usize = self.view.stacks.iter().map(|s| self.loops.of(s).len()).sum();
        if native < python {
            self.loops.learn(self.view);
        }
    }

    /// Finds the thread each thread state runs on.
    fn place(&self, facts: &mut Facts) -> Vec<Placed<'_>> {
        let threads = &self.view.snapshot.threads;
        let by_tid: HashMap<u64, usize> =
            threads.iter().enumerate().filter_map(|(i, t)| Some((u64::try_from(t.tid.0).ok()?, i))).collect();
        let by_pthread: HashMap<u64, usize> = threads
            .iter()
            .enumerate()
            .filter_map(|(i, t)| Some((t.registers.as_ref()?.tls_base.filter(|b| *b != 0)?, i)))
            .collect();
        let mut placed = Vec::new();
        for (n, interpreter) in self.census.interpreters.iter().enumerate() {
            let mut lost = 0usize;
            for thread in &interpreter.threads {
                let index = by_pthread.get(&thread.pthread).or_else(|| by_tid.get(&thread.native?)).copied();
                match index {
                    Some(index) => placed.push(Placed { interpreter: n, thread, index }),
                    // not bound to a thread yet (0), or a thread that ended without taking its state along
                    None if thread.pthread == 0 => {}
                    None => lost += 1,
                }
            }
            if lost > 0 {
                facts.gaps.push(Gap(format!(
                    "{lost} thread state(s) of the interpreter belong to no thread of this process: those threads ended or stayed behind at a fork"
                )));
            }
            if let Some(why) = walk_gap(interpreter) {
                facts.gaps.push(why);
            }
        }
        placed
    }

    fn resource_of(&self, gil: &Gil) -> ResourceId {
        ResourceId::At(self.view.process, gil.addr)
    }

    fn tell_gil(&self, gil: &Gil, placed: &[Placed<'_>], roles: &mut HashMap<usize, GilRole>, facts: &mut Facts) {
        if !gil.enabled {
            return;
        }
        let id = self.resource_of(gil);
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::Gil,
            name: Some(gil.name.clone()),
            address: Some(gil.addr),
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        });
        let shares =
            |p: &&Placed<'_>| self.census.interpreters.get(p.interpreter).is_some_and(|i| i.gil == Some(gil.addr));
        let mine: Vec<&Placed<'_>> = placed.iter().filter(shares).collect();
        let named = gil.holder();
        let holder = named.and_then(|h| mine.iter().find(|p| p.thread.addr == h).copied());
        let holder = holder.filter(|h| !self.contradicted(gil, h));
        if let Some(h) = holder {
            roles.insert(h.index, GilRole::Holds);
            facts.holds.push(self.hold(h, id));
        } else if let Some(h) = named.filter(|h| !mine.iter().any(|p| p.thread.addr == *h)) {
            facts.gaps.push(Gap(format!(
                "the {} says it is held by the thread state {h}, which belongs to no thread of this process",
                gil.name
            )));
        }
        for p in &mine {
            if holder.is_some_and(|h| h.index == p.index) {
                continue;
            }
            if let Some(wait) = self.wait_of(gil, p.index, id)
                && roles.insert(p.index, GilRole::Waits).is_none()
            {
                facts.waits.push(wait);
            }
        }
        // threads whose thread state was taken out of the list, or is not linked yet
        for (index, state) in self.view.snapshot.threads.iter().enumerate() {
            let futex = state.syscall.as_ref().and_then(futex_wait);
            if roles.contains_key(&index) || futex.and_then(|f| gil.meaning_of(&self.o.gil, f)) != Some(GilCall::Waits)
            {
                continue;
            }
            if let Some(wait) = self.wait_of(gil, index, id) {
                roles.insert(index, GilRole::Waits);
                facts.waits.push(wait);
            }
        }
    }

    fn thread(&self, index: usize) -> ThreadRef {
        self.view.thread(index)
    }

    fn tid(&self, index: usize) -> Tid {
        self.view.snapshot.threads.get(index).map_or(Tid(0), |t| t.tid)
    }

    /// Whether something says that the thread state the GIL names does not hold it: in the few instructions around taking
    /// and dropping, `last_holder` still names the one before.
    fn contradicted(&self, gil: &Gil, holder: &Placed<'_>) -> bool {
        let sleeps_for_it = self.view.snapshot.threads.get(holder.index).and_then(|t| futex_wait(t.syscall.as_ref()?));
        let current = self.o.runtime_tstate_current.and_then(|f| self.objects.addr(self.found.runtime, f).ok());
        holder.thread.holds_gil == Some(false)
            || current.is_some_and(|c| c != holder.thread.addr)
            || sleeps_for_it.and_then(|f| gil.meaning_of(&self.o.gil, f)) == Some(GilCall::Waits)
    }

    fn hold(&self, holder: &Placed<'_>, id: ResourceId) -> Hold {
        let mut evidence = vec![Evidence::new(format!(
            "gil.locked is 1 and gil.last_holder is the thread state {} of thread {}",
            holder.thread.addr,
            self.tid(holder.index)
        ))];
        if let Some(current) = self.o.runtime_tstate_current.and_then(|f| self.objects.addr(self.found.runtime, f).ok())
            && current == holder.thread.addr
        {
            evidence.push(Evidence::new("_PyRuntime.gilstate.tstate_current names the same thread state"));
        }
        if holder.thread.holds_gil == Some(true) {
            evidence.push(Evidence::new("the thread state's own holds_gil is set"));
        }
        Hold {
            holder: Holder::Thread(self.thread(holder.index)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence,
        }
    }

    /// The wait of the thread at `index` for `gil`, if it waits for it: by its futex, or, between two of the periodic
    /// waits, by the functions it is in.
    fn wait_of(&self, gil: &Gil, index: usize, id: ResourceId) -> Option<Wait> {
        let state = self.view.snapshot.threads.get(index)?;
        let futex = state.syscall.as_ref().and_then(futex_wait);
        let meaning = futex.and_then(|f| gil.meaning_of(&self.o.gil, f));
        // the wait ends every 5 ms; a busy machine lets the thread lie there before it waits again
        let left = state.registers.as_ref().and_then(left_futex);
        let left = left.filter(|f| gil.meaning_of(&self.o.gil, *f) == Some(GilCall::Waits));
        let evidence = match (meaning, futex, &state.syscall) {
            (Some(GilCall::Waits), Some(f), _) => format!("its futex {f} lies inside gil.cond"),
            (Some(GilCall::Switching), ..) => return None,
            (None, None, _) if left.is_some() => {
                let at = left.unwrap_or(Addr::NULL);
                format!("its wait on the futex {at} inside gil.cond has just ended; it has not taken the GIL yet")
            }
            (Some(GilCall::Passing), ..) | (None, None, None) => {
                let (function, trust) = self.taking(index)?;
                if trust < Trust::Cfi {
                    return None;
                }
                format!("it stands in {function}, between two waits on gil.cond")
            }
            _ => return None,
        };
        let frame = self.taking_frame(index);
        Some(Wait {
            thread: self.thread(index),
            on: id,
            mode: Mode::Exclusive,
            timeout: Timeout::Periodic,
            frame,
            managed_frame: None,
            evidence: vec![Evidence::new(evidence)],
        })
    }

    /// The name of the function at a frame, clone suffixes stripped.
    fn function(&self, index: usize, frame: usize) -> Option<String> {
        let frame = self.view.stacks.get(index)?.frames.get(frame)?;
        let (symbol, _) = self.view.snapshot.function_at(frame.pc)?;
        Some(strip_clone(&symbol.name).to_owned())
    }

    /// The innermost function that is sure to be taking the GIL, before any evaluation loop.
    fn taking(&self, index: usize) -> Option<(String, Trust)> {
        let stack = self.view.stacks.get(index)?;
        for (i, frame) in stack.frames.iter().take(MAX_TAKING).enumerate() {
            if self.loops.contain(frame.pc.lookup()) {
                return None;
            }
            if let Some(name) = self.function(index, i).filter(|n| surely_takes(n)) {
                return Some((name, frame.trust));
            }
        }
        None
    }

    /// The outermost frame of the taking, so that it is nearest the application: the evaluation loop where that takes the
    /// GIL itself.
    fn taking_frame(&self, index: usize) -> FrameIx {
        let Some(stack) = self.view.stacks.get(index) else { return FrameIx(0) };
        let mut outermost = None;
        for (i, frame) in stack.frames.iter().take(MAX_TAKING).enumerate() {
            if self.loops.contain(frame.pc.lookup()) {
                return frame_ix(outermost.unwrap_or(i));
            }
            if self.function(index, i).is_some_and(|n| calls_for_it(&n)) {
                outermost = Some(i);
            }
        }
        frame_ix(outermost.unwrap_or(0))
    }

    fn grouping(&self) -> Grouping {
        match &self.o.frame {
            FrameLayout::Object(_) => Grouping::One,
            FrameLayout::Inline(f) if f.is_entry.is_some() => Grouping::Entry,
            FrameLayout::Inline(_) => Grouping::Shim,
        }
    }

    fn tell_threads(&self, placed: &[Placed<'_>], roles: &HashMap<usize, GilRole>, facts: &mut Facts) {
        let mut by_index: HashMap<usize, Vec<&Placed<'_>>> = HashMap::new();
        for p in placed {
            by_index.entry(p.index).or_default().push(p);
        }
        let mut indexes: Vec<usize> = by_index.keys().copied().collect();
        indexes.sort_unstable();
        let mut unmatched = Vec::new();
        for index in indexes {
            let Some(states) = by_index.get_mut(&index) else { continue };
            // one thread inside a subinterpreter has two: the inner one is what PyGILState_Ensure would find
            states.sort_by_key(|p| (p.thread.bound_gilstate != Some(true), p.interpreter));
            let (thread, matched) = self.managed(index, states, roles.get(&index).copied());
            if !matched {
                unmatched.push(self.tid(index).0);
            }
            facts.managed.push((self.thread(index), thread));
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

    fn managed(&self, index: usize, states: &[&Placed<'_>], gil: Option<GilRole>) -> (ManagedThread, bool) {
        let stack = self.view.stacks.get(index);
        let loops = stack.map(|s| self.loops.of(s)).unwrap_or_default();
        let frames: Vec<_> = states
            .iter()
            .filter_map(|p| self.census.chains.get(&p.thread.addr))
            .flat_map(|c| &c.frames)
            .copied()
            .collect();
        let (merged, matched) = merge(self.grouping(), &frames, &loops);
        // without a native stack there is nothing to match
        let matched = matched || stack.is_none_or(|s| s.frames.is_empty());
        let frames = merged
            .into_iter()
            .map(|(frame, native)| match self.census.codes.find(frame.code) {
                Some(code) => ManagedFrame {
                    function: code.function.clone(),
                    file: code.file.clone(),
                    line: code.line_of(self.objects, &frame),
                    native,
                },
                None => ManagedFrame { function: "?".to_owned(), file: "?".to_owned(), line: None, native },
            })
            .collect();
        let name = states.iter().find_map(|p| self.census.names.get(p.interpreter)?.get(&p.thread.pthread).cloned());
        (ManagedThread { name, frames, gil }, matched)
    }
}

/// Frames from the innermost in which a thread can be taking the GIL.
const MAX_TAKING: usize = 16;

fn frame_ix(i: usize) -> FrameIx {
    FrameIx(u32::try_from(i).unwrap_or(u32::MAX))
}

/// What a walk that did not end by itself leaves out.
fn walk_gap(interpreter: &Interpreter) -> Option<Gap> {
    let n = interpreter.threads.len();
    let what = format!("the list of thread states of the interpreter at {}", interpreter.addr);
    Some(Gap(match interpreter.end {
        WalkEnd::Complete => return None,
        WalkEnd::Bound => format!("{what} is longer than {n}: the rest is left out"),
        WalkEnd::Circle(at) => format!("{what} makes no sense after {n} entries (at {at}): the rest is left out"),
        WalkEnd::Unreadable(e) => format!("{what} breaks off after {n} entries: {e}"),
    }))
}
