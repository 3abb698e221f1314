//! Functions that run though the code beneath them did not call them: handlers of signals, finalisers, callbacks of weak
//! references. They are known by what they are given, since stripped interpreters have no names for what calls them.

use super::facts::Telling;
use super::objects::Objects;
use super::offsets::FrameLayout;
use super::place::{Framed, PyStack};
use super::waits::{PyWait, Wanted};
use crate::facts::Entered;
use crate::units::Addr;
use std::collections::{BTreeMap, HashMap};

/// Arguments of a function looked at: `self`, and two more.
const MAX_ARGUMENTS: u64 = 3;
/// Frames of one stack looked at, newest first.
const MAX_FRAMES: usize = 256;
/// Signals are numbered from 1 to 64.
const MAX_SIGNAL: u64 = 64;

/// What entered the frames of threads that wait for a lock they hold themselves, by thread and frame.
pub(super) fn find(
    objects: &Objects<'_>,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    witnessed: &[super::holds::Witnessed],
    waits: &BTreeMap<usize, PyWait>,
) -> HashMap<(usize, usize), Entered> {
    let mut out = HashMap::new();
    for w in witnessed {
        let waits_for_own = |wait: &PyWait| matches!(&wait.wanted, Wanted::Lock(l) if l.addr == w.lock.addr);
        if !waits.get(&w.thread).is_some_and(waits_for_own) {
            continue;
        }
        let Some(stack) = stacks.get(&w.thread) else { continue };
        for (i, pair) in stack.frames.windows(2).enumerate().take(w.frame.min(MAX_FRAMES)) {
            let [framed, beneath] = pair else { continue };
            if let Some(entered) = of(objects, framed, beneath) {
                out.insert((w.thread, i), entered);
            }
        }
    }
    out
}

/// What entered `framed`, which runs on top of `beneath`.
fn of(objects: &Objects<'_>, framed: &Framed, beneath: &Framed) -> Option<Entered> {
    let code = framed.code.as_ref()?;
    if code.name == "__del__" {
        return Some(Entered::Finalizer);
    }
    let arguments: Vec<Option<Addr>> = (0..MAX_ARGUMENTS).map(|i| objects.local(&framed.frame, code, i)).collect();
    // a handler is given the signal's number and the frame it interrupts
    for pair in arguments.windows(2) {
        if let [Some(number), Some(frame)] = pair
            && objects.is(*number, "int")
            && let Ok(n) = objects.int(*number)
            && (1..=MAX_SIGNAL).contains(&n)
            && is_frame_object_of(objects, *frame, beneath.frame.addr)
        {
            return u32::try_from(n).ok().map(Entered::Signal);
        }
    }
    // a callback is given the reference, whose object is gone
    let dead = |a: &Addr| objects.is_weak_reference(*a) && objects.is_gone(*a);
    arguments.iter().take(2).flatten().any(dead).then_some(Entered::WeakReference)
}

/// Whether `object` is the `frame` object of the frame at `at`. Up to 3.10 it is the frame itself.
fn is_frame_object_of(objects: &Objects<'_>, object: Addr, at: Addr) -> bool {
    objects.is(object, "frame")
        && match (&objects.o.frame, objects.o.frame_object_frame) {
            (FrameLayout::Object(_), _) => object == at,
            (FrameLayout::Inline(_), Some(f)) => objects.addr(object, f).is_ok_and(|a| a == at),
            (FrameLayout::Inline(_), None) => false,
        }
}

impl Telling<'_> {
    /// What entered frame `i` of the thread at `index`. A function that another Python function called runs in the same
    /// evaluation loop where the interpreter has it so (since 3.11): those were not entered.
    pub(super) fn entered(&self, index: usize, stack: &PyStack<'_>, i: usize) -> Option<Entered> {
        let entered = self.scene.entered.get(&(index, i)).copied()?;
        let inline = matches!(self.o.frame, FrameLayout::Inline(_));
        let natives = self.natives.get(&index);
        let native = |i: usize| natives.and_then(|n| n.get(i).copied().flatten());
        let same = inline && i + 1 < stack.frames.len() && native(i).is_some() && native(i) == native(i + 1);
        (!same).then_some(entered)
    }
}
