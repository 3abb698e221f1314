//! Locks that record no owner: those of Rust's standard library, parking_lot, C++'s one-time initialisation and futures,
//! Abseil and Qt. Each is recognised by the call that waits for it, and its holder by what the holder's frames would give back.
//!
//! Knows nothing of glibc's own objects, which record their owners, nor of what a program does with its locks.

mod calls;
mod holders;
mod qt;
mod words;

use super::futex::{FutexWait, Op};
use super::{Decoder, Held, Runtime, View};
use crate::arch::code::{Argument, Callee, argument};
use crate::arch::x86_64::{CALLEE_SAVED, RDI};
use crate::facts::{
    Evidence, Facts, Hold, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait, Wakers,
};
use crate::layout::FrameSignature;
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::Snapshot;
use crate::units::{Addr, FrameIx, ModuleIx};
use crate::unwind::{Frame, Trust};
use calls::Call;
use holders::Release;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;
use words::State;

/// Libraries whose locks record no owner.
pub struct Unowned;

impl Runtime for Unowned {
    fn name(&self) -> &'static str {
        "unowned"
    }

    fn find(&self, snapshot: &Snapshot, _memory: &dyn Memory) -> Option<Box<dyn Decoder>> {
        Some(Box::new(UnownedDecoder { qt: snapshot.modules.iter().any(|m| qt::is_core(m.name())) }))
    }
}

struct UnownedDecoder {
    /// Whether Qt is loaded.
    qt: bool,
}

/// Words of a waiting thread's stack that are looked at for the lock's address while the target is held.
const STACK_WORDS: usize = 256;
/// Addresses read at most.
const MAX_WANTED: usize = 8192;

impl Decoder for UnownedDecoder {
    fn gather(&self, held: &Held<'_>) {
        let mut wanted = Vec::new();
        for thread in held.threads {
            let futex = thread.syscall.and_then(|call| FutexWait::parse(&call));
            // who sleeps on a word of the lock itself has it read by others; parking_lot, Abseil and Qt sleep elsewhere
            let Some(registers) =
                thread.registers.as_ref().filter(|_| futex.is_some_and(|f| f.op == Op::Wait || self.qt))
            else {
                continue;
            };
            let mut words: Vec<u64> = CALLEE_SAVED.iter().filter_map(|reg| registers.file.read(*reg)).collect();
            let sp = registers.sp().map(Addr);
            let stack = sp.and_then(|sp| held.memory.read_vec(sp, STACK_WORDS * 8).ok()).unwrap_or_default();
            words.extend(stack.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?))));
            words.sort_unstable();
            words.dedup();
            let is_data = |at: &u64| {
                at.is_multiple_of(4) && held.snapshot.mapping_at(Addr(*at)).is_some_and(|m| m.permissions.write)
            };
            words.retain(is_data);
            wanted.extend(words.iter().map(|at| (Addr(*at), 16)));
            if self.qt {
                wanted.extend(qt::wanted(held, &words));
            }
            if wanted.len() >= MAX_WANTED {
                break;
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted.truncate(MAX_WANTED);
        held.memory.expect(&wanted);
    }

    fn decode(&self, view: &View<'_>) -> Facts {
        let mut facts = Facts::default();
        Scene::new(view).decode(&mut facts);
        facts
    }
}

/// One instant as this decoder sees it.
struct Scene<'a> {
    view: &'a View<'a>,
    /// The futex of each thread.
    futexes: Vec<Option<FutexWait>>,
    /// The call each thread waits in.
    calls: Vec<Option<Call>>,
    /// What it waits for there.
    objects: Vec<Option<Addr>>,
    named: RefCell<HashMap<Addr, Vec<(String, bool)>>>,
    rust: RefCell<HashMap<ModuleIx, bool>>,
    /// What the landing pad of a thread's frame gives back.
    released: RefCell<HashMap<(usize, usize), Releases>>,
    /// Whether a function gives a lock back, by how it is called.
    release_calls: RefCell<HashMap<Callee, bool>>,
    /// Functions followed so far.
    followed: Cell<usize>,
    /// The landing pad of a call, by where it returns to.
    pads: RefCell<HashMap<Addr, Option<Pad>>>,
}

/// The holders of locks met so far, and why nobody is named.
type Known = BTreeMap<ResourceId, (Vec<Hold>, Option<String>)>;
/// A landing pad, and the code it is part of.
type Pad = (Addr, Range<u64>);
/// What one landing pad gives back.
type Releases = Rc<[Release]>;

/// A lock that is waited for.
struct Lock {
    id: ResourceId,
    at: Addr,
    kind: ResourceKind,
    state: Option<State>,
    /// Where the function begins that waits for it, outermost of the library's.
    waited_in: Addr,
    /// Where the function begins that asked for it.
    asked_in: Option<Addr>,
}

impl Lock {
    fn is_initialisation(&self) -> bool {
        matches!(self.kind, ResourceKind::Once | ResourceKind::StaticInitGuard)
    }

    fn is_lock(&self) -> bool {
        self.is_initialisation()
            || matches!(self.kind, ResourceKind::Mutex | ResourceKind::Rwlock | ResourceKind::Spinlock)
    }
}

/// The kind a signature's `waits` names.
fn kind_of(signature: &FrameSignature) -> Option<ResourceKind> {
    if signature.means.word("gives_back").is_some() {
        return Some(ResourceKind::Unknown);
    }
    Some(match signature.means.word("waits")? {
        "mutex" => ResourceKind::Mutex,
        "rwlock" => ResourceKind::Rwlock,
        "condvar" => ResourceKind::Condvar,
        "once" => ResourceKind::Once,
        "static-init-guard" => ResourceKind::StaticInitGuard,
        "semaphore" => ResourceKind::Semaphore,
        "barrier" => ResourceKind::Barrier,
        "worker-pool" => ResourceKind::WorkerPool,
        "thread-exit" => ResourceKind::ThreadExit,
        "spinlock" => ResourceKind::Spinlock,
        "futex" => ResourceKind::Futex,
        _ => return None,
    })
}

impl<'a> Scene<'a> {
    fn new(view: &'a View<'a>) -> Scene<'a> {
        let threads = view.snapshot.threads.len();
        let mut scene = Scene {
            view,
            futexes: (0..threads).map(|i| FutexWait::parse(&view.syscall(i)?)).collect(),
            calls: Vec::new(),
            objects: Vec::new(),
            named: RefCell::default(),
            rust: RefCell::default(),
            released: RefCell::default(),
            release_calls: RefCell::default(),
            followed: Cell::new(0),
            pads: RefCell::default(),
        };
        for index in 0..threads {
            let futex = scene.futexes.get(index).copied().flatten();
            let call = futex.and_then(|f| scene.call(index, Some(&f)));
            let object = call.as_ref().zip(futex).and_then(|(c, f)| scene.object(index, c, &f));
            scene.calls.push(call);
            scene.objects.push(object);
        }
        scene
    }

    fn frames(&self, thread: usize) -> &'a [Frame] {
        self.view.stacks.get(thread).map_or(&[], |s| s.frames.as_slice())
    }

    fn tid(&self, index: usize) -> i32 {
        self.view.snapshot.threads.get(index).map_or(0, |t| t.tid.0)
    }

    /// Where the object lies that a call waits for.
    fn object(&self, index: usize, call: &Call, futex: &FutexWait) -> Option<Addr> {
        let word = call.signature.means.word("word");
        let fits = |at: &Addr| {
            let mapped = self.view.snapshot.mapping_at(*at).is_some_and(|m| m.permissions.write);
            mapped && word.is_none_or(|w| self.state(w, *at) != Some(State::Odd))
        };
        call.signature.means.words("object").iter().find_map(|place| match place.as_str() {
            "futex" => Some(futex.at),
            "futex - 4" => Some(futex.at.offset(-4)),
            "argument 0" => self.first_argument(index, call).filter(fits),
            _ => None,
        })
    }

    /// The first argument of the call a thread waits in.
    fn first_argument(&self, index: usize, call: &Call) -> Option<Addr> {
        let caller = self.frames(index).get(call.last + 1).filter(|f| f.trust >= Trust::Cfi && !f.signal)?;
        let (code, start) = self.code_before(caller)?;
        match argument(self, &code, start.0, caller.pc.addr.0, RDI, &caller.registers) {
            Argument::Is(at) => Some(Addr(at)),
            Argument::Computed => None,
        }
    }

    fn decode(&self, facts: &mut Facts) {
        let mut known = Known::new();
        for index in 0..self.calls.len() {
            let Some((call, Some(futex))) = self.calls.get(index).zip(self.futexes.get(index)) else { continue };
            if let Some((resource, wait, holds)) = self.own_lock(index, call.as_ref(), futex, &mut known) {
                facts.resources.push(resource);
                facts.waits.push(wait);
                facts.holds.extend(holds);
                continue;
            }
            let Some(call) = call else { continue };
            let Some(kind) = kind_of(call.signature).filter(|k| *k != ResourceKind::Unknown) else { continue };
            if let Some((resource, hold, why)) = self.of_qt(index, call) {
                self.add(facts, index, call, futex, resource, vec![why]);
                facts.holds.extend(hold);
                continue;
            }
            let object = self.objects.get(index).copied().flatten();
            let at = object.unwrap_or(futex.at);
            let lock = self.lock(index, call, kind, at, object.is_some());
            let resource = self.resource(&lock, index, call, object.is_some());
            let mut why = Vec::new();
            if let Some(state) = lock.state {
                why.extend(said_of(state));
            }
            if lock.state == Some(State::Free) {
                facts.woken.insert(self.view.thread(index));
            }
            if lock.is_lock() && object.is_some() {
                let fresh = !known.contains_key(&lock.id);
                let (holds, doubt) = known.entry(lock.id).or_insert_with(|| self.holders(&lock));
                why.extend(doubt.clone());
                if holds.is_empty() {
                    facts.unseen.insert(lock.id);
                }
                if fresh {
                    facts.holds.extend(holds.iter().cloned());
                }
            }
            self.add(facts, index, call, futex, resource, why);
        }
    }

    /// A lock that the program built itself: a word it sleeps on, which a landing pad of some frame gives back.
    fn own_lock(
        &self,
        index: usize,
        call: Option<&Call>,
        futex: &FutexWait,
        known: &mut Known,
    ) -> Option<(Resource, Wait, Vec<Hold>)> {
        let nothing_known = call.is_none_or(|c| kind_of(c.signature) == Some(ResourceKind::Futex));
        if !nothing_known || !self.is_by_syscall(index) {
            return None;
        }
        let last = call.map_or(0, |c| c.last);
        let id = ResourceId::At(self.view.process, futex.at);
        let lock =
            Lock { id, at: futex.at, kind: ResourceKind::Futex, state: None, waited_in: Addr(0), asked_in: None };
        let fresh = !known.contains_key(&id);
        let (holds, _) = known.entry(id).or_insert_with(|| self.holders(&lock));
        let [hold] = holds.as_slice() else { return None };
        let name = self.global(futex.at);
        let resource = Resource {
            id,
            kind: ResourceKind::Mutex,
            name,
            address: Some(futex.at),
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        };
        let wait = Wait {
            thread: self.view.thread(index),
            on: id,
            mode: hold.mode,
            timeout: self.timeout(futex),
            frame: FrameIx(u32::try_from(last).unwrap_or(0)),
            managed_frame: None,
            evidence: vec![
                Evidence::new("the word is a lock of the program's own: a landing pad gives it back"),
                Evidence::new(futex.describe()),
            ],
        };
        let holds = if fresh { holds.clone() } else { Vec::new() };
        Some((resource, wait, holds))
    }

    fn add(
        &self,
        facts: &mut Facts,
        index: usize,
        call: &Call,
        futex: &FutexWait,
        resource: Resource,
        more: Vec<String>,
    ) {
        let last = u32::try_from(call.last).unwrap_or(0);
        let mut evidence = vec![Evidence::new(format!("the thread waits in {} (frame {last})", call.said))];
        evidence.extend(more.into_iter().map(Evidence::new));
        evidence.push(Evidence::new(futex.describe()));
        let shared = call.signature.means.word("mode") == Some("shared");
        facts.waits.push(Wait {
            thread: self.view.thread(index),
            on: resource.id,
            mode: match resource.wakers {
                Wakers::AnyThread => Mode::Any,
                _ if shared => Mode::Shared,
                _ => Mode::Exclusive,
            },
            timeout: self.timeout(futex),
            frame: FrameIx(last),
            managed_frame: None,
            evidence,
        });
        facts.resources.push(resource);
    }

    fn timeout(&self, futex: &FutexWait) -> Timeout {
        futex.timeout(self.view.memory)
    }

    fn lock(&self, index: usize, call: &Call, kind: ResourceKind, at: Addr, found: bool) -> Lock {
        let frames = self.frames(index);
        let word = call.signature.means.word("word").filter(|_| found);
        Lock {
            id: ResourceId::At(self.view.process, at),
            at,
            kind,
            state: word.and_then(|w| self.state(w, at)),
            waited_in: frames.get(call.last).and_then(|f| self.function(f)).unwrap_or(Addr(0)),
            asked_in: frames.get(call.last + 1).and_then(|f| self.function(f)),
        }
    }

    fn resource(&self, lock: &Lock, index: usize, call: &Call, found: bool) -> Resource {
        let means = &call.signature.means;
        let anyone = means.word("anyone").is_some();
        // of a lock that could not be found nobody is known to have it
        let wakers = if anyone || !found { Wakers::AnyThread } else { Wakers::Holders };
        Resource {
            id: lock.id,
            kind: lock.kind,
            name: self.name(lock, index, call),
            address: Some(lock.at),
            reentrancy: Reentrancy::Plain,
            wakers,
            idle: means.word("idle").is_some(),
        }
    }

    /// The name of the global at `at`.
    fn global(&self, at: Addr) -> Option<String> {
        let (symbol, into, module) = self.view.snapshot.object_at(at)?;
        let name = crate::elf::demangle(&symbol.name);
        // where libstdc++ has those sleep whose own word is too long or too short
        if name.starts_with("std::__detail::__waiter_pool") {
            return None;
        }
        let name = match name.strip_prefix("guard variable for ") {
            Some(variable) => format!("the initialisation of {variable}"),
            None if into > 0 => format!("{name}+{into:#x}"),
            None => name,
        };
        Some(format!("{name} ({})", module.name()))
    }

    /// A global's name; else what a person would call a thing of this type at this address.
    fn name(&self, lock: &Lock, index: usize, call: &Call) -> Option<String> {
        if let Some(name) = self.global(lock.at) {
            return Some(name);
        }
        if lock.kind == ResourceKind::StaticInitGuard {
            let caller = self.frames(index).get(call.last + 1)?;
            let function = self.view.snapshot.function_at(caller.pc).map(|(s, _)| crate::elf::demangle(&s.name));
            return Some(match function {
                Some(function) => format!("the initialisation of a static variable of {function}"),
                None => format!("the initialisation of a static variable, guard at {}", lock.at),
            });
        }
        let named = call.signature.means.word("named")?;
        // a type's name; else a phrase, with its article
        Some(if named.contains(' ') { named.to_owned() } else { format!("the {named} at {}", lock.at) })
    }
}

/// What a lock's word says, in words.
fn said_of(state: State) -> Option<String> {
    Some(match state {
        State::Held => "its word says that it is taken".to_owned(),
        State::Shared(u64::MAX) => "its word says that readers have it".to_owned(),
        State::Shared(n) => format!("its word says that readers have it: {n}"),
        State::Free => "its word says that nobody has it: the thread is about to take it".to_owned(),
        State::Odd => return None,
    })
}
