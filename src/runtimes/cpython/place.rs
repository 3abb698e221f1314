//! Which thread of the process each thread state runs on, and the Python stack of each thread.

use super::census::Census;
use super::code::{Code, is_installed};
use super::frames::PyFrame;
use super::objects::{Objects, words_of};
use super::threads::PyThread;
use crate::memory::MemoryExt;
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{Addr, PthreadT, Tid};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// A thread state, its interpreter, and the thread it runs on.
#[derive(Clone, Copy)]
pub(super) struct Placed<'a> {
    /// Index into the census's interpreters.
    pub interpreter: usize,
    pub thread: &'a PyThread,
    /// Index into the snapshot's threads.
    pub index: usize,
    /// Whether it is the one its thread runs at present (as far as that can be told): the inner one of several.
    pub runs: bool,
}

/// Every thread state that could be placed, and how many of each interpreter could not.
pub(super) struct Places<'a> {
    pub placed: Vec<Placed<'a>>,
    pub lost: Vec<usize>,
    by_pthread: HashMap<u64, usize>,
}

impl<'a> Places<'a> {
    /// Finds the thread of each thread state: by `pthread_t`, which survives a fork, then by the kernel's id.
    pub(super) fn find(objects: &Objects<'_>, census: &'a Census, threads: &[ThreadState]) -> Places<'a> {
        let by_tid: HashMap<u64, usize> =
            threads.iter().enumerate().filter_map(|(i, t)| Some((u64::try_from(t.tid.0).ok()?, i))).collect();
        let mut by_pthread: HashMap<u64, usize> = threads
            .iter()
            .enumerate()
            .filter_map(|(i, t)| Some((t.registers.as_ref()?.tls_base.filter(|b| *b != 0)?, i)))
            .collect();
        // a thread state that is made by hand (`PyThreadState_New`; up to 3.12.1 every subinterpreter's) bears the ids of the
        // thread that made it, not of the one that runs it
        let current: HashMap<u64, usize> = match census.key {
            Some(key) => by_pthread.iter().filter_map(|(p, i)| Some((current_state(objects, *p, key)?, *i))).collect(),
            None => states_in_tls(objects, census, &by_pthread, &by_tid),
        };
        let mut placed = Vec::new();
        let mut lost = vec![0; census.interpreters.len()];
        for (n, interpreter) in census.interpreters.iter().enumerate() {
            for thread in &interpreter.threads {
                let kernel = || {
                    let tid = match thread.native {
                        Some(tid) => tid,
                        None => u64::try_from(objects.int32(Addr(thread.pthread), PthreadT::TID).ok()?).ok()?,
                    };
                    by_tid.get(&tid).copied()
                };
                let running = current.get(&thread.addr.0).copied();
                let index = running.or_else(|| by_pthread.get(&thread.pthread).copied()).or_else(kernel);
                match index {
                    Some(index) => {
                        if running.is_none() {
                            by_pthread.entry(thread.pthread).or_insert(index);
                        }
                        placed.push(Placed { interpreter: n, thread, index, runs: running.is_some() });
                    }
                    // 0: not bound to a thread yet
                    None if thread.pthread == 0 => {}
                    None => {
                        if let Some(lost) = lost.get_mut(n) {
                            *lost += 1;
                        }
                    }
                }
            }
        }
        Places { placed, lost, by_pthread }
    }

    /// The thread whose `threading.get_ident()` is this.
    pub(super) fn by_ident(&self, ident: u64) -> Option<usize> {
        self.by_pthread.get(&ident).copied()
    }

    /// The thread whose ident a lock keeps as its owner's; else the id of the one that is not in this process, 0 where it
    /// ended. A fork copies the threads' descriptors, which still tell their ids. `None` where it may be either.
    pub(super) fn owner(&self, objects: &Objects<'_>, snapshot: &Snapshot, ident: u64) -> Option<Result<usize, Tid>> {
        if let Some(index) = self.by_ident(ident) {
            return Some(Ok(index));
        }
        let told = match objects.word(Addr(ident), PthreadT::SELF) {
            Ok(this) if this == ident => objects.int32(Addr(ident), PthreadT::TID).ok()?,
            Err(_) if snapshot.mapping_at(Addr(ident)).is_some() => return None,
            _ => 0,
        };
        let pthread = |t: &ThreadState| t.registers.as_ref().and_then(|r| r.tls_base);
        if told > 0 {
            return Some(match snapshot.thread_by_tid(Tid(told)) {
                Some(index) if snapshot.threads.get(index).and_then(pthread).is_none() => Ok(index),
                // another thread that has the id by now
                Some(_) => Err(Tid(0)),
                None => Err(Tid(told)),
            });
        }
        // a thread whose `pthread_t` is not known may be it
        snapshot.threads.iter().all(|t| pthread(t).is_some()).then_some(Err(Tid(0)))
    }

    /// The Python frames of each thread that has any, shims left out, newest first.
    pub(super) fn stacks(&self, census: &Census) -> BTreeMap<usize, PyStack<'a>> {
        let mut out: BTreeMap<usize, PyStack<'a>> = BTreeMap::new();
        for p in &self.placed {
            out.entry(p.index).or_default().states.push(*p);
        }
        let codes = census.codes.borrow();
        for stack in out.values_mut() {
            // one thread inside a subinterpreter has two: the inner one is what PyGILState_Ensure would find
            stack.states.sort_by_key(|p| (!p.runs, p.thread.bound_gilstate != Some(true), p.interpreter));
            for p in &stack.states {
                let Some(chain) = census.chains.get(&p.thread.addr) else { continue };
                stack.raw.extend(&chain.frames);
            }
            stack.frames = stack
                .raw
                .iter()
                .filter(|f| !f.shim)
                .map(|f| Framed { frame: *f, code: codes.find(f.code).cloned() })
                .collect();
        }
        out
    }
}

/// The value a thread keeps under a `pthread_key_t` of the first block: `struct pthread.specific_1stblock` at 0x310 (glibc on
/// x86-64; read so on 2.36 and 2.43), 16 bytes a key, the data in the second word.
pub(super) fn current_state(objects: &Objects<'_>, pthread: u64, key: i32) -> Option<u64> {
    let key = u64::try_from(key).ok().filter(|k| *k < 32)?;
    objects.word(Addr(pthread), 0x310 + 16 * key + 8).ok().filter(|v| *v != 0)
}

/// Bytes beneath the thread pointer in which an interpreter that is loaded from the start has its thread-local variables.
const TLS_WINDOW: u64 = 4096;

/// Since 3.15, without a `pthread_key_t`: the thread states that threads keep in thread-local variables (`_Py_tss_tstate`,
/// `_Py_tss_gilstate`), where several thread states claim one thread.
fn states_in_tls(
    objects: &Objects<'_>,
    census: &Census,
    by_pthread: &HashMap<u64, usize>,
    by_tid: &HashMap<u64, usize>,
) -> HashMap<u64, usize> {
    let mut claims: HashMap<u64, usize> = HashMap::new();
    let mut pthreads: BTreeMap<u64, usize> = by_pthread.iter().map(|(p, i)| (*p, *i)).collect();
    let mut known: HashMap<u64, Option<usize>> = HashMap::new();
    for thread in census.interpreters.iter().flat_map(|i| &i.threads).filter(|t| t.pthread != 0) {
        *claims.entry(thread.pthread).or_default() += 1;
        known.insert(thread.addr.0, None);
        if let Some(index) = thread.native.and_then(|tid| by_tid.get(&tid)) {
            pthreads.entry(thread.pthread).or_insert(*index);
        }
    }
    if claims.values().all(|n| *n < 2) {
        return HashMap::new();
    }
    let windows: Vec<(Addr, usize)> =
        pthreads.keys().map(|p| (Addr(p.saturating_sub(TLS_WINDOW)), TLS_WINDOW as usize)).collect();
    objects.memory.expect(&windows);
    let mut twice = Vec::new();
    for ((at, _), index) in windows.iter().zip(pthreads.values()) {
        // the area may begin within the window
        let read = |skip: u64| {
            let len = usize::try_from(TLS_WINDOW - skip).ok()?;
            objects.memory.read_vec(at.checked_add(skip)?, len).ok()
        };
        let parts = [0, TLS_WINDOW * 3 / 4, TLS_WINDOW * 15 / 16];
        let Some(bytes) = parts.into_iter().find_map(read) else { continue };
        for word in words_of(&bytes) {
            match known.get_mut(&word) {
                Some(found @ None) => *found = Some(*index),
                Some(Some(other)) if other != index => twice.push(word),
                _ => {}
            }
        }
    }
    // a stale copy in another thread's variables proves nothing
    let found = known.into_iter().filter_map(|(state, index)| Some((state, index?)));
    found.filter(|(state, _)| !twice.contains(state)).collect()
}

/// One thread's Python stack.
#[derive(Default)]
pub(super) struct PyStack<'a> {
    /// Its thread states, the inner one first.
    pub states: Vec<Placed<'a>>,
    /// Its frames with the shims.
    pub raw: Vec<PyFrame>,
    /// Its frames, newest first; in the order of the managed thread's frames.
    pub frames: Vec<Framed>,
}

/// A Python frame and its code object, where that could be read.
#[derive(Clone, Debug)]
pub(super) struct Framed {
    pub frame: PyFrame,
    pub code: Option<Rc<Code>>,
}

impl Framed {
    /// Whether it executes the function `name` of the standard library's file with this last part: `threading.py`.
    pub(super) fn is(&self, file: &str, name: &str) -> bool {
        self.code.as_ref().is_some_and(|c| c.name == name && c.file_name() == file && !is_installed(&c.file))
    }

    /// Whether it may be a method of the class of this name, by its function's qualified name; before 3.11 there is none.
    pub(super) fn may_be_of(&self, class: &str) -> bool {
        let is_of = |c: &Rc<Code>| match c.function.rsplit_once('.') {
            Some((qualifier, _)) => qualifier.rsplit('.').next() == Some(class),
            None => true,
        };
        self.code.as_ref().is_some_and(is_of)
    }

    /// Its first argument: `self`, in a method.
    pub(super) fn first_argument(&self, objects: &Objects<'_>) -> Option<Addr> {
        let code = self.code.as_ref()?;
        objects.local(&self.frame, code, 0).or_else(|| objects.first_argument_in_cell(&self.frame, code))
    }
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::runtimes::tests::{MadeUp, pthread_of};

    /// Thread states of two threads of 3.15, which has no key: each address and the thread whose `pthread_t` it bears.
    fn census(states: &[(u64, usize)]) -> Census {
        let state = |(addr, thread): &(u64, usize)| PyThread {
            addr: Addr(*addr),
            pthread: pthread_of(*thread).0,
            native: Some(100 + *thread as u64),
            frame: Addr::NULL,
            holds_gil: None,
            bound_gilstate: None,
            state: None,
        };
        Census::made_up(Addr::NULL, Addr(0x30_0000), states.iter().map(state).collect())
    }

    #[test]
    fn who_runs_a_thread_state_made_by_another_thread_its_own_variables_tell() {
        let o = Offsets::choose((15, None), false, None).unwrap();
        let mut made = MadeUp::new();
        made.thread(100, None);
        made.thread(101, None);
        for thread in 0..2 {
            made.memory.put(pthread_of(thread).offset(-0x400), &[0; 0x400]);
        }
        made.memory.put_u64(pthread_of(0).offset(-0x18), 0xa000).put_u64(pthread_of(1).offset(-0x18), 0xb000);
        // thread 0 made both
        let census = census(&[(0xa000, 0), (0xb000, 0)]);
        let places = Places::find(&Objects::new(&made.memory, &o), &census, &made.snapshot.threads);
        let told: Vec<_> = places.placed.iter().map(|p| (p.thread.addr.0, p.index, p.runs)).collect();
        assert_eq!(told, [(0xa000, 0, true), (0xb000, 1, true)]);
        // a copy in two threads' variables tells nothing
        made.memory.put_u64(pthread_of(0).offset(-0x20), 0xb000);
        let places = Places::find(&Objects::new(&made.memory, &o), &census, &made.snapshot.threads);
        let told: Vec<_> = places.placed.iter().map(|p| (p.thread.addr.0, p.index, p.runs)).collect();
        assert_eq!(told, [(0xa000, 0, true), (0xb000, 0, false)]);
    }

    #[test]
    fn an_owner_is_gone_only_where_no_thread_can_be_it() {
        let o = Offsets::choose((15, None), false, None).unwrap();
        let mut made = MadeUp::new();
        made.thread(100, None);
        made.thread(101, None);
        let none = census(&[]);
        let owner = |made: &MadeUp, ident: u64| {
            let objects = Objects::new(&made.memory, &o);
            Places::find(&objects, &none, &made.snapshot.threads).owner(&objects, &made.snapshot, ident)
        };
        let (other, foreign) = (pthread_of(1).0, 0x7f55_0000_0000_u64);
        assert_eq!(owner(&made, other), Some(Ok(1)));
        assert_eq!(owner(&made, foreign), Some(Err(Tid(0))), "its memory is gone with it");
        made.map(foreign, 0x1000);
        assert_eq!(owner(&made, foreign), None, "its memory cannot be read");
        made.memory.put(Addr(foreign), &[0; 0x400]);
        made.memory.put_u64(Addr(foreign + PthreadT::SELF), foreign).put_u32(Addr(foreign + PthreadT::TID), 77);
        assert_eq!(owner(&made, foreign), Some(Err(Tid(77))), "left behind at a fork");
        made.memory.put_u32(Addr(foreign + PthreadT::TID), 101);
        assert_eq!(owner(&made, foreign), Some(Err(Tid(0))), "its number is another thread's");
        made.memory.put_u32(Addr(foreign + PthreadT::TID), 0);
        assert_eq!(owner(&made, foreign), Some(Err(Tid(0))), "it has ended");
        // a thread in the kernel's deep sleep has no registers
        made.snapshot.threads[1].registers = None;
        assert_eq!(owner(&made, other), Some(Ok(1)));
        assert_eq!(owner(&made, foreign), None);
    }
}
