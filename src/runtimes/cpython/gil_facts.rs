//! The GIL as facts: its holder, its waiters, and where they stand.

use super::facts::{Telling, frame_ix};
use super::gil::{Gil, GilCall, calls_for_it, futex_wait, left_futex, strip_clone, surely_takes};
use super::place::Placed;
use crate::facts::{
    Certainty, Evidence, Facts, Gap, GilRole, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind,
    Timeout, Wait, Wakers,
};
use crate::units::FrameIx;
use crate::unwind::Trust;
use std::collections::BTreeMap;

/// Frames from the innermost in which a thread can be taking the GIL.
const MAX_TAKING: usize = 16;

impl Telling<'_> {
    /// Tells of one GIL, and notes each thread's part in it.
    pub(super) fn tell_gil(&self, gil: &Gil, roles: &mut BTreeMap<usize, GilRole>, facts: &mut Facts) {
        if !gil.enabled {
            return;
        }
        let id = ResourceId::At(self.view.process, gil.addr);
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::Gil,
            name: Some(gil.name.clone()),
            address: Some(gil.addr),
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        });
        for mutex in gil.mutexes(&self.o.gil) {
            facts.given_back.insert(ResourceId::At(self.view.process, mutex), id);
        }
        let shares =
            |p: &&Placed<'_>| self.census.interpreters.get(p.interpreter).is_some_and(|i| i.gil == Some(gil.addr));
        let mine: Vec<&Placed<'_>> = self.scene.places.placed.iter().filter(shares).collect();
        let named = gil.holder();
        let holder = named.and_then(|h| mine.iter().find(|p| p.thread.addr == h).copied());
        let holder = holder.filter(|h| !self.contradicted(gil, h));
        if let Some(h) = holder {
            roles.insert(h.index, GilRole::Holds);
            facts.holds.push(self.gil_hold(h, id));
        } else if let Some(h) = named.filter(|h| !mine.iter().any(|p| p.thread.addr == *h)) {
            facts.gaps.push(Gap(format!(
                "the {} says it is held by the thread state {h}, which belongs to no thread of this process",
                gil.name
            )));
        }
        for p in &mine {
            // a thread inside a subinterpreter asks for that one's GIL; only an address tells otherwise
            let inner = self.scene.stacks.get(&p.index).and_then(|s| s.states.first());
            let outer = inner.is_some_and(|i| i.thread.addr != p.thread.addr && !shares(&i));
            if holder.is_none_or(|h| h.index != p.index) && !outer {
                self.tell_gil_wait(gil, p.index, id, roles, facts);
            }
        }
        // threads whose thread state was taken out of the list, or is not linked yet
        for (index, state) in self.view.snapshot.threads.iter().enumerate() {
            let futex = state.syscall.as_ref().and_then(futex_wait);
            if futex.and_then(|f| gil.meaning_of(&self.o.gil, f)) == Some(GilCall::Waits) {
                self.tell_gil_wait(gil, index, id, roles, facts);
            }
            if let Some(wait) = self.gil_handover(gil, index, id) {
                facts.woken.insert(wait.thread);
                facts.waits.push(wait);
            }
        }
    }

    fn tell_gil_wait(
        &self,
        gil: &Gil,
        index: usize,
        id: ResourceId,
        roles: &mut BTreeMap<usize, GilRole>,
        facts: &mut Facts,
    ) {
        if roles.contains_key(&index) {
            return;
        }
        if let Some((wait, asleep)) = self.gil_wait(gil, index, id) {
            roles.insert(index, GilRole::Waits);
            // it finds the GIL free when it looks next
            if !asleep && gil.locked == 0 {
                facts.woken.insert(wait.thread);
            }
            facts.waits.push(wait);
        }
    }

    /// Whether something says that the thread state the GIL names does not hold it: in the few instructions around taking
    /// and dropping, `last_holder` still names the one before.
    fn contradicted(&self, gil: &Gil, holder: &Placed<'_>) -> bool {
        let sleeps_for_it = self.view.snapshot.threads.get(holder.index).and_then(|t| futex_wait(t.syscall.as_ref()?));
        let current = self.o.runtime_tstate_current.and_then(|f| self.objects.addr(self.found.runtime, f).ok());
        // bound to this thread by whoever made it, while this thread runs another
        let elsewhere = !holder.runs && self.scene.places.placed.iter().any(|p| p.index == holder.index && p.runs);
        elsewhere
            || holder.thread.holds_gil == Some(false)
            || current.is_some_and(|c| c != holder.thread.addr)
            || sleeps_for_it.and_then(|f| gil.meaning_of(&self.o.gil, f)) == Some(GilCall::Waits)
    }

    fn gil_hold(&self, holder: &Placed<'_>, id: ResourceId) -> Hold {
        let mut evidence = vec![Evidence::new(format!(
            "gil.locked is 1 and gil.last_holder is the thread state {} of thread {}",
            holder.thread.addr,
            self.tid(holder.index)
        ))];
        if self.o.runtime_tstate_current.is_some() {
            evidence.push(Evidence::new("_PyRuntime.gilstate.tstate_current names the same thread state"));
        }
        if holder.thread.holds_gil == Some(true) {
            evidence.push(Evidence::new("the thread state itself says so (`holds_gil`; in 3.12 `active`)"));
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
    /// waits, by the functions it is in. And whether it sleeps.
    fn gil_wait(&self, gil: &Gil, index: usize, id: ResourceId) -> Option<(Wait, bool)> {
        let state = self.view.snapshot.threads.get(index)?;
        let futex = state.syscall.as_ref().and_then(futex_wait);
        let meaning = futex.and_then(|f| gil.meaning_of(&self.o.gil, f));
        // the wait ends every 5 ms; a busy machine lets the thread lie there before it waits again
        let left = state.registers.as_ref().and_then(left_futex);
        let left = left.filter(|f| gil.meaning_of(&self.o.gil, *f) == Some(GilCall::Waits));
        let evidence = match (meaning, futex, left, &state.syscall) {
            (Some(GilCall::Waits), Some(f), ..) => format!("its futex {f} lies inside gil.cond"),
            (Some(GilCall::Switching), ..) => return None,
            (None, None, Some(at), _) => {
                format!("its wait on the futex {at} inside gil.cond has just ended; it has not taken the GIL yet")
            }
            (Some(GilCall::Passing), ..) | (None, None, None, None) => {
                let (function, trust) = self.taking(index)?;
                if trust < Trust::Cfi {
                    return None;
                }
                format!("it stands in {function}, between two waits on gil.cond")
            }
            _ => return None,
        };
        let (frame, foreign) = self.taking_frame(index);
        let runs_python = self.scene.stacks.get(&index).is_some_and(|s| !s.frames.is_empty());
        let wait = Wait {
            thread: self.thread(index),
            on: id,
            mode: Mode::Exclusive,
            timeout: Timeout::Periodic,
            frame,
            managed_frame: (runs_python && !foreign).then_some(0),
            evidence: vec![Evidence::new(evidence)],
        };
        Some((wait, futex.is_some()))
    }

    /// The wait of the thread at `index` that has just given the GIL away on request and lets another one take it first
    /// (`drop_gil` of CPython 3.8 to 3.15, `FORCE_SWITCHING`). It is over once whoever asked has the GIL: it needs nobody who
    /// holds anything, and without being told so it would look like a wait on a condition nobody is left to signal.
    fn gil_handover(&self, gil: &Gil, index: usize, id: ResourceId) -> Option<Wait> {
        let futex = futex_wait(self.view.snapshot.threads.get(index)?.syscall.as_ref()?)?;
        (gil.meaning_of(&self.o.gil, futex)? == GilCall::Switching).then(|| Wait {
            thread: self.thread(index),
            on: id,
            mode: Mode::Any,
            timeout: Timeout::None,
            frame: self.taking_frame(index).0,
            managed_frame: None,
            evidence: vec![Evidence::new(format!(
                "it has given the GIL away and goes on once another thread has taken it: its futex {futex} lies inside \
                 gil.switch_cond"
            ))],
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
    /// GIL itself. The second value says whether native code re-enters Python there (`PyGILState_Ensure`).
    pub(super) fn taking_frame(&self, index: usize) -> (FrameIx, bool) {
        let Some(stack) = self.view.stacks.get(index) else { return (FrameIx(0), false) };
        let mut outermost = None;
        let mut foreign = false;
        for (i, frame) in stack.frames.iter().take(MAX_TAKING).enumerate() {
            if self.loops.contain(frame.pc.lookup()) {
                return (frame_ix(outermost.unwrap_or(i)), foreign);
            }
            if let Some(name) = self.function(index, i).filter(|n| calls_for_it(n)) {
                outermost = Some(i);
                foreign = name == "PyGILState_Ensure";
            }
        }
        (frame_ix(outermost.unwrap_or(0)), foreign)
    }

    /// The innermost evaluation loop of a thread.
    pub(super) fn innermost_loop(&self, index: usize) -> Option<FrameIx> {
        let stack = self.view.stacks.get(index)?;
        stack.frames.iter().position(|f| self.loops.contain(f.pc.lookup())).map(frame_ix)
    }

    /// The innermost frame of a thread in the interpreter's own module.
    pub(super) fn innermost_own_frame(&self, index: usize) -> Option<FrameIx> {
        let stack = self.view.stacks.get(index)?;
        let is_own = |m| self.view.snapshot.module(m).is_some_and(|m| m.name() == self.found.module);
        stack.frames.iter().position(|f| f.module.is_some_and(is_own)).map(frame_ix)
    }
}
