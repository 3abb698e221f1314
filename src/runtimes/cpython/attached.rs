//! Threads of an interpreter built without the GIL: whether they are attached, the critical sections they are in, and the
//! stops of the world they ask for or wait through.
//!
//! Without a GIL a thread is *attached* while it may touch objects, and *detached* while it sleeps or blocks in the usual way;
//! blocking detaches it and suspends its critical sections, so that only attached threads hold any. A collection (and a few
//! others) stops the world: it waits until no other thread is attached. CPython `Python/pystate.c`, `stop_the_world`;
//! `Python/critical_section.c`. Read so on 3.13.5 and 3.14.7; of 3.15 the headers say the same.

use super::census::Census;
use super::gil::{futex_wait, left_futex};
use super::objects::Objects;
use super::place::{Placed, Places};
use super::waits::{parked_at, stack_pointer};
use crate::layout::{Subject, Table};
use crate::memory::{MemoryExt, WalkEnd, walk};
use crate::target::ThreadState;
use crate::units::Addr;
use std::collections::BTreeMap;

/// Offsets of what only builds without the GIL have.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachOffsets {
    /// `PyThreadState.state`.
    pub state: u64,
    /// `PyThreadState.critical_section`.
    pub critical_section: u64,
    /// `PyObject.ob_mutex`.
    pub ob_mutex: u64,
    /// `PyCriticalSection._cs_mutex` and `PyCriticalSection2._cs_mutex2`.
    mutexes: (u64, u64),
    /// Of an interpreter, and of the runtime.
    stop: StopOffsets,
    global_stop: StopOffsets,
    /// `_PyRuntimeState.stoptheworld_mutex`: taken by whoever stops a world.
    stop_lock: u64,
}

/// `struct _stoptheworld_state` inside another struct.
#[derive(Clone, Copy, Debug)]
struct StopOffsets {
    mutex: u64,
    requested: u64,
    world_stopped: u64,
    stop_event: u64,
    countdown: u64,
    requester: u64,
}

impl AttachOffsets {
    /// Takes them from a table; `None` for builds with the GIL.
    pub(super) fn choose(table: &Table, subject: &Subject) -> Option<AttachOffsets> {
        let field = |of: &str, name: &str| table.layout(of, subject).and_then(|s| s.offset(name));
        let stop = |of: &str| {
            Some(StopOffsets {
                mutex: field(of, "stoptheworld.mutex")?,
                requested: field(of, "stoptheworld.requested")?,
                world_stopped: field(of, "stoptheworld.world_stopped")?,
                stop_event: field(of, "stoptheworld.stop_event")?,
                countdown: field(of, "stoptheworld.thread_countdown")?,
                requester: field(of, "stoptheworld.requester")?,
            })
        };
        Some(AttachOffsets {
            ob_mutex: field("PyObject", "ob_mutex")?,
            state: field("PyThreadState", "state")?,
            critical_section: field("PyThreadState", "critical_section")?,
            mutexes: (field("PyCriticalSection", "_cs_mutex")?, field("PyCriticalSection2", "_cs_mutex2")?),
            stop: stop("PyInterpreterState")?,
            global_stop: stop("_PyRuntimeState")?,
            stop_lock: field("_PyRuntimeState", "stoptheworld_mutex")?,
        })
    }
}

/// `_Py_THREAD_ATTACHED` (CPython `Include/internal/pycore_pystate.h`).
const ATTACHED: i32 = 1;

/// A stop of the world under way.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    /// Its record (`_PyRuntime.stoptheworld`, or the interpreter's): also the mutex that a second requester waits for.
    pub record: Addr,
    /// What the requester sleeps on while threads are still attached.
    pub event: Addr,
    /// Its thread; `None` where it cannot be told.
    pub requester: Option<usize>,
    /// How its thread is known.
    pub known_by: String,
    /// Whether all threads have stopped.
    pub stopped: bool,
    /// How many threads it still waits for, by its own count.
    pub countdown: i64,
    /// The threads that are still attached.
    pub attached: Vec<usize>,
}

/// What a thread waits for besides locks.
#[derive(Clone, Debug)]
pub(super) enum Parked {
    /// It asked for this stop, and waits until every other thread has stopped.
    UntilStopped(usize),
    /// It may go on when this stop is over.
    UntilRestarted(usize, String),
    /// A critical section of an object, or another mutex of C code.
    Mutex(Mutex, String),
}

/// A `PyMutex`.
#[derive(Clone, Debug)]
pub(super) struct Mutex {
    pub addr: Addr,
    /// The object whose critical section it is, and its type's name.
    pub object: Option<(Addr, String)>,
    /// The owner that stands behind it: `_PyRecursiveMutex.thread`.
    pub owner: Option<u64>,
}

/// An active critical section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub thread: usize,
    pub mutex: Addr,
    pub record: Addr,
}

/// A critical section of two objects that a thread has yet to enter: it has the first or neither, and its record names none
/// before it has both. CPython `Python/critical_section.c`, `_PyCriticalSection2_BeginSlow`: the mutex at the lower address is
/// taken first, and kept while the thread waits for the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entering {
    pub thread: usize,
    pub record: Addr,
    /// The mutex that it waits for.
    pub wants: Addr,
}

/// Everything of one instant that only builds without the GIL have; `parked` tells of PyMutexes in other builds too.
#[derive(Default)]
pub(super) struct Attachments {
    pub stops: Vec<Stop>,
    pub sections: Vec<Section>,
    pub entering: Vec<Entering>,
    /// By index into the snapshot's threads.
    pub parked: BTreeMap<usize, Parked>,
}

impl Attachments {
    /// Looks for them. Threads whose lock is known already (`known`) are not looked at again.
    pub(super) fn look(
        objects: &Objects<'_>,
        census: &Census,
        places: &Places<'_>,
        threads: &[ThreadState],
        known: impl Fn(usize) -> bool,
    ) -> Attachments {
        let mut found = Attachments::default();
        if let Some(o) = objects.o.attach {
            found.find_stops(objects, &o, census, places, threads);
            for p in places.placed.iter().filter(|p| p.thread.state == Some(ATTACHED)) {
                found.sections.extend(active_sections(objects, &o, p, threads.get(p.index)));
            }
        }
        for (index, state) in threads.iter().enumerate().filter(|(i, _)| !known(*i)) {
            if let Some(parked) = found.parked_on(objects, census, places, index, state) {
                if let (Parked::Mutex(mutex, _), Some(o)) = (&parked, objects.o.attach) {
                    found.entering.extend(entering(objects, &o, places, index, mutex.addr));
                }
                found.parked.insert(index, parked);
            }
        }
        found
    }

    /// The objects whose critical sections are waited for, each with one who waits.
    pub(super) fn objects(&self) -> BTreeMap<Addr, usize> {
        let object = |(index, parked): (&usize, &Parked)| match parked {
            Parked::Mutex(Mutex { object: Some((object, _)), .. }, _) => Some((*object, *index)),
            _ => None,
        };
        self.parked.iter().filter_map(object).collect()
    }

    fn find_stops(
        &mut self,
        objects: &Objects<'_>,
        o: &AttachOffsets,
        census: &Census,
        places: &Places<'_>,
        threads: &[ThreadState],
    ) {
        let each = census.interpreters.iter().enumerate().map(|(n, i)| (i.addr, o.stop, Some(n)));
        for (base, s, interpreter) in each.chain(std::iter::once((census.runtime, o.global_stop, None))) {
            let mine = |p: &&Placed<'_>| interpreter.is_none_or(|n| n == p.interpreter);
            let mine: Vec<&Placed<'_>> = places.placed.iter().filter(mine).collect();
            self.stops.extend(read_stop(objects, base, s, &mine, threads));
        }
    }

    /// What a thread that sleeps in the parking lot sleeps for, if it is one of the things of this file.
    fn parked_on(
        &self,
        objects: &Objects<'_>,
        census: &Census,
        places: &Places<'_>,
        index: usize,
        state: &ThreadState,
    ) -> Option<Parked> {
        if let Some(n) = self.stops.iter().position(|s| s.requester == Some(index) && !s.stopped) {
            return Some(Parked::UntilStopped(n));
        }
        let at = parked_at(objects, state, state.syscall.as_ref().and_then(futex_wait)?)?;
        let how =
            format!("its futex is the semaphore of a parking-lot entry on its own stack, for the address {}", at.byte);
        if let Some(restart) = self.until_restarted(objects, census, places, index, at.byte) {
            return Some(Parked::UntilRestarted(restart, how));
        }
        // mutexes park with a record of their own, events and the like without; and the mutex knows that it has waiters
        let waited_for = objects.memory.read_u8(at.byte).is_ok_and(|b| b & HAS_WAITERS != 0);
        if !at.by_mutex || !waited_for {
            return None;
        }
        let object = objects.o.attach.and_then(|o| section_wanted(objects, &o, places, index, at.byte));
        let owner = objects.o.imports_lock.and_then(|f| {
            let lock = census.interpreters.iter().find(|i| i.addr.checked_add(f) == Some(at.byte))?;
            // `_PyRecursiveMutex`: the mutex, then the thread
            objects.word(lock.addr, f + 8).ok().filter(|owner| *owner != 0)
        });
        Some(Parked::Mutex(Mutex { addr: at.byte, object, owner }, how))
    }

    /// The stop that a thread waits out: parked on its own state, on the record's mutex, or on the lock of all who stop a world.
    fn until_restarted(
        &self,
        objects: &Objects<'_>,
        census: &Census,
        places: &Places<'_>,
        index: usize,
        byte: Addr,
    ) -> Option<usize> {
        let o = objects.o.attach?;
        let own = places.placed.iter().find(|p| p.index == index && p.thread.addr.checked_add(o.state) == Some(byte));
        let is_lock = census.runtime.checked_add(o.stop_lock) == Some(byte);
        self.stops.iter().position(|s| {
            let mine = own.is_some_and(|p| {
                let interpreter = census.interpreters.get(p.interpreter);
                interpreter.and_then(|i| i.addr.checked_add(o.stop.mutex)) == Some(s.record)
                    || census.runtime.checked_add(o.global_stop.mutex) == Some(s.record)
            });
            s.requester != Some(index) && (mine || is_lock || s.record == byte)
        })
    }
}

/// `_Py_HAS_PARKED` of a `PyMutex` (CPython `Include/internal/pycore_lock.h`).
const HAS_WAITERS: u8 = 2;
/// `_Py_LOCKED`.
pub(super) const LOCKED: u8 = 1;

fn read_stop(
    objects: &Objects<'_>,
    base: Addr,
    s: StopOffsets,
    mine: &[&Placed<'_>],
    threads: &[ThreadState],
) -> Option<Stop> {
    let requested = objects.byte(base, s.requested).ok()?;
    let stopped = objects.byte(base, s.world_stopped).ok()?;
    // two `bool`s: anything else is no such record
    if requested != 1 || stopped > 1 {
        return None;
    }
    let countdown = objects.word(base, s.countdown).ok()?.cast_signed();
    let state = objects.addr(base, s.requester).ok()?;
    let event = base.checked_add(s.stop_event)?;
    let (requester, known_by) = match state.is_null() {
        false => {
            let p = mine.iter().find(|p| p.thread.addr == state)?;
            (Some(p.index), format!("its record names the thread state {state}"))
        }
        // a thread that has no thread state yet makes room for it
        true => {
            let sleeps = |t: &ThreadState| {
                let left = || t.registers.as_ref().and_then(left_futex);
                let futex = t.syscall.as_ref().and_then(futex_wait).or_else(left);
                futex.and_then(|f| parked_at(objects, t, f)).is_some_and(|p| p.byte == event)
            };
            let who = threads.iter().position(sleeps);
            (who, format!("its record names no thread state, and the thread sleeps on the record's event at {event}"))
        }
    };
    let mut attached: Vec<usize> =
        mine.iter().filter(|p| p.thread.state == Some(ATTACHED) && p.thread.addr != state).map(|p| p.index).collect();
    attached.sort_unstable();
    attached.dedup();
    attached.retain(|i| Some(*i) != requester);
    Some(Stop {
        record: base.checked_add(s.mutex)?,
        event,
        requester,
        known_by,
        stopped: stopped == 1,
        countdown,
        attached,
    })
}

/// Critical sections of one thread looked at.
const MAX_SECTIONS: usize = 256;
/// Bits of the pointers between them: suspended; of two mutexes.
const INACTIVE: u64 = 1;
const OF_TWO: u64 = 2;

/// The critical sections an attached thread is in: records on its own stack that are not suspended, whose mutex is taken.
fn active_sections(
    objects: &Objects<'_>,
    o: &AttachOffsets,
    p: &Placed<'_>,
    state: Option<&ThreadState>,
) -> Vec<Section> {
    let mut out = Vec::new();
    let Some(sp) = state.and_then(stack_pointer) else { return out };
    let Ok(newest) = objects.word(p.thread.addr, o.critical_section) else { return out };
    let mut tagged = newest;
    let (_, end) = walk(Addr(newest & !3), MAX_SECTIONS, |record| {
        if record.0 >= sp && tagged & INACTIVE == 0 {
            let second = (tagged & OF_TWO != 0).then_some(o.mutexes.1);
            for field in std::iter::once(o.mutexes.0).chain(second) {
                let mutex = objects.addr(record, field)?;
                let taken = !mutex.is_null() && objects.memory.read_u8(mutex).is_ok_and(|b| b & LOCKED != 0);
                if taken {
                    out.push(Section { thread: p.index, mutex, record });
                }
            }
        }
        tagged = objects.word(record, 0)?;
        Ok(Some(Addr(tagged & !3)))
    });
    // a list that makes no sense proves nothing
    if matches!(end, WalkEnd::Circle(_) | WalkEnd::Bound) {
        out.clear();
    }
    out
}

/// The critical section of two objects that a thread waits to enter, if it waits for one of those.
fn entering(
    objects: &Objects<'_>,
    o: &AttachOffsets,
    places: &Places<'_>,
    index: usize,
    wants: Addr,
) -> Option<Entering> {
    let newest = |p: &Placed<'_>| objects.word(p.thread.addr, o.critical_section).unwrap_or(0);
    let tagged = places.placed.iter().filter(|p| p.index == index).map(newest).find(|r| r & OF_TWO != 0)?;
    let record = Addr(tagged & !3);
    let unset = |field| objects.addr(record, field).is_ok_and(Addr::is_null);
    (unset(o.mutexes.0) && unset(o.mutexes.1)).then_some(Entering { thread: index, record, wants })
}

/// The object whose critical section a thread waits for: its newest record has no mutex yet, and the byte it is parked for is
/// the object's `ob_mutex`.
fn section_wanted(
    objects: &Objects<'_>,
    o: &AttachOffsets,
    places: &Places<'_>,
    index: usize,
    byte: Addr,
) -> Option<(Addr, String)> {
    let waits = places.placed.iter().filter(|p| p.index == index).any(|p| {
        let newest = objects.word(p.thread.addr, o.critical_section).map_or(0, |r| r & !3);
        newest != 0 && objects.addr(Addr(newest), o.mutexes.0).is_ok_and(Addr::is_null)
    });
    let object = Addr(byte.0.checked_sub(o.ob_mutex)?);
    let kind = objects.type_of(object).filter(|_| waits)?;
    // a type has a type
    objects.type_of(kind.addr)?;
    Some((object, kind.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::super::threads::PyThread;
    use super::*;
    use crate::runtimes::tests::{MadeUp, pthread_of, sp_of};

    const RUNTIME: u64 = 0x10_0000;
    const INTERPRETER: u64 = 0x30_0000;
    /// `PyInterpreterState.stoptheworld` in 3.13t.
    const STOP: u64 = INTERPRETER + 10744;
    const OBJECT: u64 = 0x50_0000;

    fn state_of(index: usize) -> u64 {
        0x40_0000 + 0x1000 * index as u64
    }

    /// Threads of one interpreter, each with its `state` and the byte it is parked for (0: it runs).
    fn process(threads: &[(i32, u64)]) -> (MadeUp, Census) {
        let mut made = MadeUp::new();
        made.memory.put(Addr(RUNTIME), &[0; 0x4000]).put(Addr(INTERPRETER), &[0; 0x4000]);
        let mut states = Vec::new();
        for (index, (state, byte)) in threads.iter().enumerate() {
            // the parking lot's entry, 64 bytes above the stack pointer, with a mutex's own record 64 further
            let entry = sp_of(index).0 + 64;
            made.memory.put(sp_of(index), &[0; 0x400]).put(Addr(state_of(index)), &[0; 0x200]);
            made.memory.put_u64(Addr(entry), entry + 64).put_u64(Addr(entry + 8), *byte);
            made.memory.put_u32(Addr(state_of(index) + 40), state.cast_unsigned());
            made.thread(
                100 + i32::try_from(index).unwrap(),
                (*byte != 0).then_some((202, [entry + 16, 393, 0, 0, 0, 0])),
            );
            states.push(PyThread {
                addr: Addr(state_of(index)),
                pthread: pthread_of(index).0,
                native: None,
                frame: Addr::NULL,
                holds_gil: None,
                bound_gilstate: None,
                state: Some(*state),
            });
        }
        let census = Census::made_up(Addr(RUNTIME), Addr(INTERPRETER), states);
        (made, census)
    }

    fn look(made: &MadeUp, census: &Census) -> Attachments {
        let o = Offsets::choose((13, Some(5)), true, None).unwrap();
        let objects = Objects::new(&made.memory, &o);
        let threads = &made.snapshot.threads;
        let places = Places::find(&objects, census, threads);
        assert_eq!(places.placed.len(), census.interpreters[0].threads.len());
        Attachments::look(&objects, census, &places, threads, |_| false)
    }

    fn stop(made: &mut MadeUp, requested: u8, countdown: u64, requester: u64) {
        made.memory.put(Addr(STOP + 1), &[requested, 0]);
        made.memory.put_u64(Addr(STOP + 8), countdown).put_u64(Addr(STOP + 16), requester);
    }

    #[test]
    fn a_stop_its_requester_who_is_in_the_way_and_who_waits_it_out() {
        // it asks; it is attached; it is suspended and parked on its own state; it sleeps detached; it asks after the first
        let mut threads = [(1, STOP + 4), (1, 0), (2, state_of(2) + 40), (0, 0), (2, STOP)];
        let (mut made, census) = process(&threads);
        stop(&mut made, 1, 1, state_of(0));
        let found = look(&made, &census);
        assert_eq!(found.stops.len(), 1);
        assert_eq!((found.stops[0].requester, found.stops[0].attached.as_slice()), (Some(0), &[1][..]));
        let told: Vec<(usize, bool)> =
            found.parked.iter().map(|(i, p)| (*i, matches!(p, Parked::UntilStopped(0)))).collect();
        assert_eq!(told, [(0, true), (2, false), (4, false)]);
        assert!(matches!(found.parked[&2], Parked::UntilRestarted(0, _)));
        // over, or no such record
        for requested in [0, 7] {
            stop(&mut made, requested, 1, state_of(0));
            assert!(look(&made, &census).stops.is_empty());
        }
        // of a thread that has no thread state yet, the place where it sleeps tells
        threads[0].0 = 0;
        let (mut made, mut census) = process(&threads);
        stop(&mut made, 1, 1, 0);
        census.interpreters[0].threads.remove(0);
        let found = look(&made, &census);
        assert_eq!((found.stops[0].requester, found.stops[0].attached.as_slice()), (Some(0), &[1][..]));
        assert!(matches!(found.parked[&0], Parked::UntilStopped(0)));
    }

    /// A list with a critical section, its mutex locked and waited for.
    fn object(made: &mut MadeUp) {
        let (kind, of_types, name) = (OBJECT + 0x400, OBJECT + 0x800, OBJECT + 0xc00);
        made.memory.put(Addr(OBJECT), &[0; 0x1000]).put(Addr(OBJECT + 10), &[3]).put(Addr(name), b"list");
        made.memory.put_u64(Addr(OBJECT + 24), kind).put_u64(Addr(kind + 24), of_types);
        made.memory.put_u64(Addr(kind + 40), name).put_u64(Addr(of_types + 40), name);
    }

    #[test]
    fn only_attached_threads_hold_critical_sections() {
        let record = sp_of(0).0 + 0x200;
        for (state, tag, holds) in [(1, 0, true), (1, 2, true), (1, 1, false), (0, 0, false), (2, 0, false)] {
            let (mut made, census) = process(&[(state, 0), (0, OBJECT + 10)]);
            object(&mut made);
            made.memory.put_u64(Addr(state_of(0) + 176), record | tag).put_u64(Addr(record + 8), OBJECT + 10);
            // who waits has a record without a mutex
            made.memory.put_u64(Addr(state_of(1) + 176), (sp_of(1).0 + 0x200) | 1);
            let found = look(&made, &census);
            let holders: Vec<usize> = found.sections.iter().map(|s| s.thread).collect();
            assert_eq!(holders, if holds { &[0][..] } else { &[] }, "state {state}, tag {tag}");
            let Some(Parked::Mutex(mutex, _)) = found.parked.get(&1) else { panic!("it waits") };
            assert_eq!(mutex.object, Some((Addr(OBJECT), "list".to_owned())));
        }
    }

    #[test]
    fn who_enters_two_sections_has_a_record_that_names_neither() {
        let record = sp_of(0).0 + 0x200;
        for (tag, first, enters) in [(3, 0, true), (2, 0, true), (1, 0, false), (3, OBJECT + 10, false)] {
            let (mut made, census) = process(&[(0, OBJECT + 10)]);
            object(&mut made);
            made.memory.put_u64(Addr(state_of(0) + 176), record | tag).put_u64(Addr(record + 8), first);
            let expected = Entering { thread: 0, record: Addr(record), wants: Addr(OBJECT + 10) };
            assert_eq!(look(&made, &census).entering, if enters { vec![expected] } else { vec![] }, "tag {tag}");
        }
    }

    #[test]
    fn a_mutex_in_a_row_of_others_is_no_critical_section() {
        let (mut made, census) = process(&[(0, OBJECT + 10), (0, OBJECT + 10)]);
        object(&mut made);
        // no record of a critical section
        let found = look(&made, &census);
        let Some(Parked::Mutex(mutex, _)) = found.parked.get(&0) else { panic!("it waits") };
        assert_eq!((mutex.addr, &mutex.object), (Addr(OBJECT + 10), &None));
        // nobody is known to wait: whoever let go is waking it
        made.memory.put(Addr(OBJECT + 10), &[1]);
        assert!(look(&made, &census).parked.is_empty());
    }

    #[test]
    fn a_circle_of_critical_sections_proves_nothing() {
        let record = sp_of(0).0 + 0x200;
        let (mut made, census) = process(&[(1, 0)]);
        object(&mut made);
        made.memory.put_u64(Addr(state_of(0) + 176), record).put_u64(Addr(record), record);
        made.memory.put_u64(Addr(record + 8), OBJECT + 10);
        assert!(look(&made, &census).sections.is_empty());
        // nor does one that is not on the thread's own stack
        made.memory.put_u64(Addr(OBJECT + 0xf00), 0).put_u64(Addr(OBJECT + 0xf08), OBJECT + 10);
        made.memory.put_u64(Addr(state_of(0) + 176), OBJECT + 0xf00);
        assert!(look(&made, &census).sections.is_empty());
    }
}
