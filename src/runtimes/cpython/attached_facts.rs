//! Stops of the world and critical sections as facts.

use super::attached::{Entering, LOCKED, Mutex, Parked, Stop};
use super::facts::{Telling, frame_ix};
use super::objects::words_of;
use crate::arch::x86_64;
use crate::facts::{
    Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait,
    Wakers,
};
use crate::memory::MemoryExt;
use crate::units::Addr;
use crate::unwind::{Frame, Trust};
use std::collections::BTreeSet;

/// Frames between the sleep of a thread and the one that enters its critical section at most.
const MAX_ENTERING_FRAMES: usize = 24;
/// Frames of the functions that enter it for others.
const MAX_CALLERS: usize = 3;
/// Bytes of one frame of the interpreter's looked at.
const MAX_FRAME: usize = 1024;

impl Telling<'_> {
    /// Tells of threads that stop the world, wait until they may go on, or wait for a mutex of C code.
    pub(super) fn tell_attached(&self, facts: &mut Facts) {
        if self.o.attach.is_some() && self.o.by_headers {
            facts.notes.push(format!(
                "free-threaded CPython {} is read by its headers alone: no such interpreter was at hand to compare",
                self.found.version.text
            ));
        }
        let scene = &self.scene.attachments;
        let mut told: BTreeSet<Addr> = BTreeSet::new();
        for (index, parked) in &scene.parked {
            match parked {
                Parked::UntilStopped(n) => {
                    let Some(stop) = scene.stops.get(*n) else { continue };
                    if told.insert(stop.event) {
                        self.tell_stop(stop, facts);
                    }
                    let evidence = format!(
                        "it asked for a stop of all threads ({}); the record at {} counts {} that have not stopped",
                        stop.known_by, stop.record, stop.countdown
                    );
                    // it looks again every millisecond
                    facts.waits.push(self.parked_wait(*index, self.at(stop.event), Timeout::Periodic, evidence));
                }
                Parked::UntilRestarted(n, how) => {
                    let Some(stop) = scene.stops.get(*n) else { continue };
                    if told.insert(stop.record) {
                        self.tell_restart(stop, facts);
                    }
                    let evidence =
                        format!("{how}: it goes on when the stop that the record at {} tells is over", stop.record);
                    facts.waits.push(self.parked_wait(*index, self.at(stop.record), Timeout::None, evidence));
                }
                Parked::Mutex(mutex, how) => {
                    if told.insert(mutex.addr) {
                        self.tell_mutex(mutex, facts);
                    }
                    let timed = self.view.syscall(*index).is_some_and(|c| super::gil::has_timeout(&c));
                    let timeout = if timed { Timeout::Some } else { Timeout::None };
                    facts.waits.push(self.parked_wait(*index, self.at(mutex.addr), timeout, how.clone()));
                }
            }
        }
    }

    /// The wait, at the outermost frame of the interpreter's own before the program's.
    fn parked_wait(&self, index: usize, on: ResourceId, timeout: Timeout, evidence: String) -> Wait {
        let (frame, foreign) = self.taking_frame(index);
        let frame = match frame.0 {
            0 => self.innermost_loop(index).or_else(|| self.innermost_own_frame(index)).unwrap_or(frame_ix(0)),
            _ => frame,
        };
        let runs_python = self.scene.stacks.get(&index).is_some_and(|s| !s.frames.is_empty());
        Wait {
            thread: self.thread(index),
            on,
            mode: Mode::Exclusive,
            timeout,
            frame,
            managed_frame: (runs_python && !foreign).then_some(0),
            evidence: vec![Evidence::new(evidence)],
        }
    }

    /// What a requester waits for: every thread that is still attached must stop, or detach.
    fn tell_stop(&self, stop: &Stop, facts: &mut Facts) {
        let id = self.at(stop.event);
        facts.resources.push(world(id, "the stop of all threads", stop.event));
        // the record counts those it waits for; where that differs a thread is just on its way
        let counted = i64::try_from(stop.attached.len()).is_ok_and(|n| n == stop.countdown);
        for index in &stop.attached {
            facts.holds.push(Hold {
                holder: Holder::Thread(self.thread(*index)),
                of: id,
                // each of them must
                mode: Mode::Shared,
                certainty: if counted { Certainty::Recorded } else { Certainty::Inferred },
                taken_at: None,
                taken_at_managed: None,
                evidence: vec![Evidence::new(format!(
                    "the thread state of thread {} is attached, and the record at {} counts {} such",
                    self.tid(*index),
                    stop.record,
                    stop.countdown
                ))],
            });
        }
    }

    /// What stopped threads wait for: the requester lets them go on when it is done.
    fn tell_restart(&self, stop: &Stop, facts: &mut Facts) {
        let id = self.at(stop.record);
        facts.resources.push(world(id, "the end of the stop of all threads", stop.record));
        let Some(index) = stop.requester else { return };
        facts.holds.push(Hold {
            holder: Holder::Thread(self.thread(index)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!(
                "thread {} asked for the stop that the record at {} tells: {}",
                self.tid(index),
                stop.record,
                stop.known_by
            ))],
        });
    }

    /// The thread that took this mutex as the first of two whose critical section it is entering. The record names neither
    /// yet; the frame that enters has the record and the second mutex in registers that calls leave alone, and keeps the first
    /// in one or on its stack. Whoever called it has the object.
    fn kept_while_entering(&self, mutex: Addr) -> Option<Entering> {
        let object = Addr(mutex.0.checked_sub(self.o.attach?.ob_mutex)?);
        let keeps = |e: &&Entering| {
            let stack = self.view.stacks.get(e.thread);
            let frames = stack.map_or(&[][..], |s| s.frames.as_slice());
            let sure = frames.iter().take_while(|f| f.trust >= Trust::Cfi).count().min(MAX_ENTERING_FRAMES);
            let frames = frames.get(..sure).unwrap_or_default();
            let enters = |f: &Frame| {
                let has = |at: Addr| f.registers.known().any(|(_, value)| value == at.0);
                has(e.record) && has(e.wants) && self.keeps(f, mutex)
            };
            let at = frames.iter().position(enters);
            let callers = at.and_then(|i| frames.get(i.saturating_add(1)..)).unwrap_or_default();
            e.wants > mutex && callers.iter().take(MAX_CALLERS).any(|f| self.keeps(f, object))
        };
        let taken = self.objects.memory.read_u8(mutex).is_ok_and(|b| b & LOCKED != 0);
        let mut found = self.scene.attachments.entering.iter().filter(keeps);
        match (found.next(), found.next()) {
            (Some(one), None) if taken => Some(*one),
            _ => None,
        }
    }

    /// Whether a frame has this address in a register or on its own part of the stack.
    fn keeps(&self, frame: &Frame, at: Addr) -> bool {
        let on_stack = || {
            let from = frame.registers.read(x86_64::RSP)?;
            let len = usize::try_from(frame.cfa?.0.checked_sub(from)?).ok().filter(|n| *n <= MAX_FRAME)?;
            let bytes = self.objects.memory.read_vec(Addr(from), len).ok()?;
            Some(words_of(&bytes).any(|word| word == at.0))
        };
        frame.registers.known().any(|(_, value)| value == at.0) || on_stack() == Some(true)
    }

    fn tell_mutex(&self, mutex: &Mutex, facts: &mut Facts) {
        let id = self.at(mutex.addr);
        let name = match &mutex.object {
            Some((object, kind)) => {
                let which = self.scene.names.get(object).cloned().unwrap_or_else(|| format!("at {object}"));
                Some(format!("the critical section of the {kind} {which}"))
            }
            None if mutex.owner.is_some() => Some("the interpreter's import lock".to_owned()),
            None => self.view.snapshot.object_at(mutex.addr).map(|(symbol, into, module)| {
                let name = crate::elf::demangle(&symbol.name);
                let into = if into == 0 { String::new() } else { format!("+{into:#x}") };
                format!("{name}{into} ({})", module.name())
            }),
        };
        facts.resources.push(Resource {
            id,
            kind: if mutex.owner.is_some() { ResourceKind::PythonImportLock } else { ResourceKind::PythonMutex },
            name,
            address: Some(mutex.addr),
            reentrancy: if mutex.owner.is_some() { Reentrancy::Recursive } else { Reentrancy::Plain },
            wakers: Wakers::Holders,
            idle: false,
        });
        let owner = mutex.owner.and_then(|ident| self.scene.places.by_ident(ident));
        facts.holds.extend(owner.map(|index| Hold {
            holder: Holder::Thread(self.thread(index)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!("its owner field is the ident of thread {}", self.tid(index)))],
        }));
        if let Some(entering) = self.kept_while_entering(mutex.addr) {
            facts.holds.push(Hold {
                holder: Holder::Thread(self.thread(entering.thread)),
                of: id,
                mode: Mode::Exclusive,
                certainty: Certainty::Witnessed,
                taken_at: None,
                taken_at_managed: None,
                evidence: vec![Evidence::new(format!(
                    "thread {} enters the critical section of two objects by the record at {}: it took this mutex first, as \
                     the one at the lower address, and its frame keeps it while it waits for the other at {}",
                    self.tid(entering.thread),
                    entering.record,
                    entering.wants
                ))],
            });
        }
        let mut sections = self.scene.attachments.sections.iter().filter(|s| s.mutex == mutex.addr);
        // two at once: one of them has just let go
        let (Some(section), None) = (sections.next(), sections.next()) else { return };
        let index = section.thread;
        facts.holds.push(Hold {
            holder: Holder::Thread(self.thread(index)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Witnessed,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!(
                "thread {} is attached and has an active critical section of it, by the record at {} on its own stack",
                self.tid(index),
                section.record
            ))],
        });
    }
}

fn world(id: ResourceId, name: &str, at: Addr) -> Resource {
    Resource {
        id,
        kind: ResourceKind::PythonStopTheWorld,
        name: Some(name.to_owned()),
        address: Some(at),
        reentrancy: Reentrancy::Plain,
        wakers: Wakers::Holders,
        idle: false,
    }
}
