//! Qt: which thread a `QThread::wait` waits for, and whose slot a blocking queued call waits for.

use super::calls::Call;
use super::{Scene, kind_of};
use crate::arch::x86_64::{CALLEE_SAVED, RSP};
use crate::facts::{Certainty, Evidence, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Wakers};
use crate::memory::{Memory, MemoryExt};
use crate::runtimes::Held;
use crate::units::Addr;
use std::collections::BTreeSet;

/// Whether a module file is Qt's core library.
pub(super) fn is_core(name: &str) -> bool {
    name.starts_with("libQt5Core") || name.starts_with("libQt6Core")
}

/// `QObject::d_ptr` behind the virtual table (qtbase src/corelib/kernel/qobject.h), and `QObjectData::q_ptr` that points back.
const D_PTR: i64 = 8;
const Q_PTR: i64 = 8;
/// The part of `QObjectPrivate` in which `threadData` lies, in all of Qt 5 and 6.
const PRIVATE: Range = (0x20, 0x60);
/// The part of `QThreadData` in which `threadId`, the `pthread_t`, lies.
const THREAD_DATA: Range = (0, 0x100);
type Range = (usize, usize);

/// Frames between a wait and the call that queues the slot, and bytes of each.
const MAX_FRAMES: usize = 6;
const MAX_FRAME: u64 = 4096;

/// What [`Scene::of_qt`] will read of the objects among `words`.
pub(super) fn wanted(held: &Held<'_>, words: &[u64]) -> Vec<(Addr, usize)> {
    let memory = held.memory;
    let mut out = Vec::new();
    for object in words.iter().map(|w| Addr(*w)) {
        let Some(private) = private_of(memory, object) else { continue };
        out.extend([(object, 16), (private, PRIVATE.1)]);
        out.extend(pointers(memory, private, PRIVATE).into_iter().map(|data| (data, THREAD_DATA.1)));
    }
    out.retain(|(at, _)| held.snapshot.mapping_at(*at).is_some());
    out
}

/// The private part of a `QObject`, if one stands at `object`: each points at the other.
fn private_of(memory: &(impl Memory + ?Sized), object: Addr) -> Option<Addr> {
    let private = memory.read_addr(object.offset(D_PTR)).ok().filter(|p| p.0.is_multiple_of(8) && !p.is_null())?;
    (memory.read_addr(private.offset(Q_PTR)) == Ok(object)).then_some(private)
}

fn pointers(memory: &(impl Memory + ?Sized), at: Addr, (from, to): Range) -> Vec<Addr> {
    let bytes = memory.read_vec(at.offset(from as i64), to - from).unwrap_or_default();
    let words = bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?)));
    words.filter(|w| w.is_multiple_of(8) && *w > 0xffff).map(Addr).collect()
}

impl Scene<'_> {
    /// What a call of Qt waits for where that is another thread; with who holds it, and why.
    pub(super) fn of_qt(&self, index: usize, call: &Call) -> Option<(Resource, Option<Hold>, String)> {
        if call.queued {
            return Some(self.queued_slot(index, call));
        }
        if kind_of(call.signature) == Some(ResourceKind::ThreadExit) {
            return Some(self.end_of_thread(index, call));
        }
        None
    }

    /// A slot of another thread, or a function it is asked to run: the caller waits until that thread's event loop has run it.
    fn queued_slot(&self, index: usize, call: &Call) -> (Resource, Option<Hold>, String) {
        let at =
            self.objects.get(index).copied().flatten().or(self.futexes.get(index).copied().flatten().map(|f| f.at));
        let at = at.unwrap_or(Addr(0));
        let id = ResourceId::At(self.view.process, at);
        let receivers = self.receivers(index, call);
        let mut one = receivers.iter();
        let receiver = one.next().copied().filter(|_| one.next().is_none());
        let (name, why) = match receiver {
            Some(t) => (
                format!("the slot of thread {}, queued to its event loop", self.tid(t)),
                format!(
                    "the call is a blocking queued one, and the receiver's QThreadData names thread {}",
                    self.tid(t)
                ),
            ),
            None => (
                "the slot of another thread, queued to its event loop".to_owned(),
                "the call is a blocking queued one: it waits until the receiver's event loop has run the slot"
                    .to_owned(),
            ),
        };
        let hold = receiver.map(|t| Hold {
            holder: Holder::Thread(self.view.thread(t)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Witnessed,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!(
                "the QObjects at hand in the emitter's frames belong to thread {}, whose event loop is to run the slot",
                self.tid(t)
            ))],
        });
        let resource = Resource {
            id,
            kind: ResourceKind::Semaphore,
            name: Some(name),
            address: Some(at),
            reentrancy: Reentrancy::Plain,
            wakers: if receiver.is_some() { Wakers::Holders } else { Wakers::AnyThread },
            idle: false,
        };
        (resource, hold, why)
    }

    /// The other threads to which the objects belong that the frames of a queued call have at hand.
    fn receivers(&self, index: usize, call: &Call) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        for i in call.last..call.last + MAX_FRAMES {
            let values = self.values(index, i);
            found.extend(values.into_iter().filter_map(|v| self.thread_of(Addr(v))).filter(|t| *t != index));
            if !found.is_empty() {
                break;
            }
        }
        found
    }

    /// The thread a `QObject` lives in.
    fn thread_of(&self, object: Addr) -> Option<usize> {
        let memory = self.view.memory;
        let private = private_of(memory, object)?;
        pointers(memory, private, PRIVATE).into_iter().find_map(|data| {
            let ids = pointers(memory, data, THREAD_DATA);
            ids.into_iter().find_map(|id| self.view.snapshot.thread_by_pthread(crate::units::PthreadT(id.0)))
        })
    }

    /// Aligned values a frame has in its part of the stack, and in registers its callees keep.
    fn values(&self, thread: usize, index: usize) -> BTreeSet<u64> {
        let Some(frame) = self.frames(thread).get(index) else { return BTreeSet::new() };
        let mut out: BTreeSet<u64> = CALLEE_SAVED.iter().filter_map(|reg| frame.registers.read(*reg)).collect();
        let sp = frame.registers.read(RSP).map(Addr);
        if let Some((sp, cfa)) = sp.zip(frame.cfa).filter(|(sp, cfa)| sp < cfa && cfa.0 - sp.0 <= MAX_FRAME) {
            let bytes = usize::try_from(cfa.0 - sp.0).ok().and_then(|len| self.view.memory.read_vec(sp, len).ok());
            let bytes = bytes.unwrap_or_default();
            out.extend(bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?))));
        }
        out.retain(|v| v.is_multiple_of(8) && *v > 0xffff);
        out
    }

    /// The end of a `QThread`: that of the thread whose start function still has the object at hand.
    fn end_of_thread(&self, index: usize, call: &Call) -> (Resource, Option<Hold>, String) {
        let started = call.signature.means.words("started");
        let at_hand = self.objects.get(index).copied().flatten();
        let mine: BTreeSet<u64> = match at_hand {
            Some(object) => BTreeSet::from([object.0]),
            None => (call.last..call.last + 2).flat_map(|i| self.values(index, i)).collect(),
        };
        let starts = |t: &usize| {
            self.frames(*t).iter().enumerate().rev().take(MAX_FRAMES).any(|(i, frame)| {
                let function = self.view.snapshot.function_at(frame.pc);
                let named = function.is_some_and(|(f, _)| {
                    let name = crate::elf::demangle(&f.name);
                    started.iter().any(|s| *s == *super::calls::plain(&name))
                });
                named && self.values(*t, i).iter().any(|v| mine.contains(v) && self.is_object(Addr(*v)))
            })
        };
        let mut found = (0..self.view.snapshot.threads.len()).filter(|t| *t != index).filter(starts);
        let thread = found.next().filter(|_| found.next().is_none());
        let object = at_hand.unwrap_or(Addr(0));
        let (id, why) = match thread {
            Some(t) => (
                ResourceId::ThreadExit(self.view.thread(t)),
                format!("thread {} was started for the same QThread", self.tid(t)),
            ),
            None => {
                (ResourceId::At(self.view.process, object), "which thread runs the QThread was not found".to_owned())
            }
        };
        let resource =
            Resource {
                id,
                kind: ResourceKind::ThreadExit,
                name: Some(thread.map_or_else(
                    || "the end of a QThread".to_owned(),
                    |t| format!("the end of thread {}", self.tid(t)),
                )),
                address: at_hand,
                reentrancy: Reentrancy::Plain,
                wakers: if thread.is_some() { Wakers::Holders } else { Wakers::AnyThread },
                idle: false,
            };
        (resource, None, why)
    }

    fn is_object(&self, at: Addr) -> bool {
        private_of(self.view.memory, at).is_some()
    }
}
