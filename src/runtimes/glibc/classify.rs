//! The decision procedure: from a thread's futex to what it waits for and who holds that.

use super::GlibcDecoder;
use super::frames::{Frames, Innermost};
use super::inner::Families;
use super::loader::{LoaderLock, LoaderLocks};
use super::mutex::{self, Mutex};
use super::objects::{self, Rwlock};
use super::owners::{Owner, Owners};
use crate::facts::{
    Certainty, Evidence, Facts, Gap, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Wait, Wakers,
};
use crate::layout::{FrameSignature, Layouts, StructLayout};
use crate::memory::MemoryExt;
use crate::runtimes::View;
use crate::runtimes::futex::{FutexWait, Op};
use crate::units::{Addr, Tid};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One instant as this decoder sees it.
pub(super) struct Scene<'a> {
    pub(super) decoder: &'a GlibcDecoder,
    pub(super) view: &'a View<'a>,
    pub(super) owners: Owners,
    loader: LoaderLocks,
    pub(super) futexes: Vec<Option<FutexWait>>,
    /// Holders found by looking at all threads, once for each resource.
    holders: RefCell<HashMap<ResourceId, Option<Hold>>>,
    /// Threads inside functions that keep one of libc's inner locks, by the lock's family; found once.
    pub(super) families: OnceCell<Families>,
    /// Words of `pthread_once` looked for on all stacks so far.
    pub(super) once_words: Cell<usize>,
    /// Names of globals, once for each address.
    names: RefCell<HashMap<Addr, Option<String>>>,
}

/// Waiters of a condition variable that is being destroyed, told at most.
const MAX_DESTROYED_FOR: usize = 64;

/// What a thread was found to wait for.
pub(super) struct Found {
    resource: Resource,
    mode: Mode,
    evidence: Vec<Evidence>,
    holds: Vec<Hold>,
    /// Whether threads sleep on though the word has another value by now than the one they went to sleep on. Of most objects
    /// nobody does when all is at rest (glibc 2.17 to 2.43): a condition's signals, a semaphore's value, a lock's 2 (`nptl/
    /// pthread_cond_wait.c`, `sem_waitcommon.c`, `lowlevellock.h`).
    sleeps_on: bool,
}

impl Found {
    pub(super) fn new(resource: Resource) -> Found {
        Found { resource, mode: Mode::Exclusive, evidence: Vec::new(), holds: Vec::new(), sleeps_on: false }
    }

    fn sleeping_on(mut self, sleeps_on: bool) -> Found {
        self.sleeps_on = sleeps_on;
        self
    }

    pub(super) fn because(mut self, text: impl Into<String>) -> Found {
        self.evidence.push(Evidence::new(text));
        self
    }

    fn any(mut self) -> Found {
        self.mode = Mode::Any;
        self.resource.wakers = Wakers::AnyThread;
        self
    }

    pub(super) fn held(mut self, hold: Option<Hold>) -> Found {
        self.holds.extend(hold);
        self
    }
}

impl<'a> Scene<'a> {
    pub fn new(decoder: &'a GlibcDecoder, view: &'a View<'a>) -> Scene<'a> {
        let owners = Owners::read(view.snapshot, view.memory, decoder.layouts.pthread);
        let loader = decoder.global.map_or_else(LoaderLocks::default, |global| {
            LoaderLocks::find(view.memory, global, Layouts::glibc(), &decoder.subject, decoder.layouts.mutex)
        });
        let futexes = (0..view.snapshot.threads.len()).map(|i| FutexWait::parse(&view.syscall(i)?)).collect();
        Scene {
            decoder,
            view,
            owners,
            loader,
            futexes,
            holders: RefCell::default(),
            families: OnceCell::new(),
            once_words: Cell::new(0),
            names: RefCell::default(),
        }
    }

    pub fn decode(&self, facts: &mut Facts) {
        if let Some(doubt) = &self.loader.doubt {
            facts.gaps.push(Gap(format!("the loader's locks: {doubt}")));
        }
        // always read, waited for or not: a chain may pass through them
        for lock in &self.loader.locks {
            let (resource, hold, _) = self.loader_lock(lock);
            if hold.is_some() {
                facts.resources.push(resource);
                facts.holds.extend(hold);
            }
        }
        let mut said = BTreeSet::new();
        for (index, futex) in self.futexes.iter().enumerate() {
            let Some(futex) = futex else { continue };
            let frames = Frames::of(self.view, index);
            let Some(found) = self.classify(index, futex, &frames) else { continue };
            let mut evidence = found.evidence;
            evidence.push(Evidence::new(futex.describe()));
            if let Some(now) = futex.changed(self.view.memory).filter(|_| !found.sleeps_on) {
                facts.woken.insert(self.view.thread(index));
                evidence
                    .push(Evidence::new(format!("the futex's word has become {now} meanwhile: it is about to go on")));
            }
            facts.waits.push(Wait {
                thread: self.view.thread(index),
                on: found.resource.id,
                mode: found.mode,
                timeout: futex.timeout(self.view.memory),
                frame: frames.edge(),
                managed_frame: None,
                evidence,
            });
            for hold in found.holds {
                if said.insert((hold.of, hold.holder)) {
                    facts.holds.push(hold);
                }
            }
            facts.resources.push(found.resource);
        }
    }

    /// What the thread at `index` waits for. `None`: nothing of glibc's; the kernel's word for it stands.
    fn classify(&self, index: usize, futex: &FutexWait, frames: &Frames<'_>) -> Option<Found> {
        if let Some(global) = self.decoder.global.filter(|g| g.contains(futex.at)) {
            return Some(self.in_loader(futex, global.at));
        }
        let innermost = frames.innermost(self.decoder.dynamic);
        if innermost == Innermost::Program {
            return None;
        }
        if frames.is_glibcs_own(futex.at) {
            return self.refused_mutex(futex, frames);
        }
        self.join(futex)
            .or_else(|| self.mutex(index, futex, frames, innermost))
            .or_else(|| self.io_lock(futex, frames))
            .or_else(|| self.arena(futex))
            .or_else(|| self.condvar(index, futex, true))
            .or_else(|| self.rwlock(futex, innermost))
            .or_else(|| self.destroyed_condvar(futex, frames))
            .or_else(|| self.semaphore(futex, innermost))
            .or_else(|| self.barrier(futex, innermost))
            .or_else(|| self.condvar(index, futex, false))
            .or_else(|| self.once(futex, innermost))
            .or_else(|| self.inner_lock(futex, frames))
    }

    pub(super) fn at(&self, at: Addr) -> ResourceId {
        ResourceId::At(self.view.process, at)
    }

    /// The id of an object that processes may share: file and offset where it lies in a shared mapping of a file.
    fn shared_at(&self, at: Addr, shared: bool) -> ResourceId {
        match self.view.snapshot.mapping_at(at).filter(|m| shared && m.permissions.shared && m.inode != 0) {
            Some(m) => ResourceId::Shared {
                device: m.device,
                inode: m.inode,
                offset: m.offset.saturating_add(at.0 - m.start.0),
            },
            None => self.at(at),
        }
    }

    /// Any thread may end the wait; where nothing tells which processes' threads, it is the outside that does.
    fn anyone(&self, found: Found, futex: &FutexWait) -> Found {
        let mut found = found.any();
        if futex.may_be_shared(self.view.snapshot) && matches!(found.resource.id, ResourceId::At(..)) {
            found.resource.wakers = Wakers::Outside;
        }
        found
    }

    pub(super) fn resource(&self, id: ResourceId, kind: ResourceKind, at: Addr) -> Resource {
        Resource {
            id,
            kind,
            name: self.name_of(at),
            address: Some(at),
            reentrancy: Reentrancy::Unknown,
            wakers: Wakers::Holders,
            idle: false,
        }
    }

    /// A global's name as a person would say it: `ipc_import_mutex (libfoo.so)`.
    fn name_of(&self, at: Addr) -> Option<String> {
        if let Some(known) = self.names.borrow().get(&at) {
            return known.clone();
        }
        let name = self.find_name(at);
        self.names.borrow_mut().insert(at, name.clone());
        name
    }

    fn find_name(&self, at: Addr) -> Option<String> {
        let (symbol, into, module) = self.view.snapshot.object_at(at)?;
        let name = crate::elf::demangle(&symbol.name);
        Some(match into {
            0 => format!("{name} ({})", module.name()),
            _ => format!("{name}+{into:#x} ({})", module.name()),
        })
    }

    pub(super) fn tid(&self, index: usize) -> i32 {
        self.view.snapshot.threads.get(index).map_or(0, |t| t.tid.0)
    }

    /// A hold read from a field that names a tid.
    fn recorded(&self, of: ResourceId, at: Addr, what: &str, field: &str, tid: i32, shared: bool) -> Option<Hold> {
        let said = format!("{field} of the {what} at {at} is {tid}");
        let (holder, evidence) = match self.owners.by_tid(tid)? {
            Owner::Thread(index) => (Holder::Thread(self.view.thread(index)), said),
            Owner::Gone(tid) if shared => (
                Holder::Process(crate::units::Pid(tid)),
                format!("{said}, no thread of this process: one of another process that shares the memory"),
            ),
            Owner::Gone(tid) => (
                Holder::Gone(self.view.process, Tid(tid)),
                format!("{said}, which is no thread of this process: it ended, or stayed behind at a fork"),
            ),
        };
        Some(Hold {
            holder,
            of,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(evidence)],
        })
    }

    /// The hold of `of`, found once for all its waiters.
    pub(super) fn once_for_all(&self, of: ResourceId, find: impl FnOnce() -> Option<Hold>) -> Option<Hold> {
        if let Some(known) = self.holders.borrow().get(&of) {
            return known.clone();
        }
        let hold = find();
        self.holders.borrow_mut().insert(of, hold.clone());
        hold
    }

    /// Adds where the holder took it, if its frames show.
    fn placed(&self, hold: Option<Hold>, at: Addr) -> Option<Hold> {
        let hold = hold?;
        self.once_for_all(hold.of, || self.find_place(hold, at))
    }

    fn find_place(&self, mut hold: Hold, at: Addr) -> Option<Hold> {
        if let Holder::Thread(thread) = hold.holder {
            let frames = Frames::of(self.view, usize::try_from(thread.thread).ok()?);
            hold.taken_at = frames.names_in_code(at).or_else(|| frames.mentions(at));
        }
        Some(hold)
    }

    fn loader_lock(&self, lock: &LoaderLock) -> (Resource, Option<Hold>, Option<Mutex>) {
        let id = self.at(lock.at);
        let resource = Resource {
            name: Some(lock.name.to_owned()),
            reentrancy: Reentrancy::Recursive,
            ..self.resource(id, lock.kind, lock.at)
        };
        let mutex = Mutex::read(self.view.memory, self.decoder.layouts.mutex, lock.at);
        let owner = mutex.and_then(|m| m.holder());
        let mut hold = owner.and_then(|tid| self.recorded(id, lock.at, lock.name, "`__owner`", tid, false));
        if let Some(hold) = &mut hold {
            if let Holder::Thread(thread) = hold.holder {
                let frames = Frames::of(self.view, usize::try_from(thread.thread).unwrap_or(usize::MAX));
                if let Some((ix, function)) = frames.took_loader_lock(lock.name) {
                    hold.taken_at = Some(ix);
                    let text = format!("thread {} is inside {function} (frame {})", self.tid_of(thread.thread), ix.0);
                    hold.evidence.push(Evidence::new(text));
                }
            }
            hold.evidence.push(Evidence::new(format!("{} was found {}", lock.name, self.loader.how)));
        }
        (resource, hold, mutex)
    }

    fn tid_of(&self, index: u32) -> i32 {
        usize::try_from(index).map_or(0, |i| self.tid(i))
    }

    /// Any futex inside `_rtld_global` is the loader's.
    fn in_loader(&self, futex: &FutexWait, global: Addr) -> Found {
        if let Some(lock) = self.loader.at(futex.at) {
            let (resource, hold, _) = self.loader_lock(lock);
            let inside = format!("{} lies in ld.so's _rtld_global, at {:#x}", lock.name, lock.at.0 - global.0);
            return Found::new(resource).held(hold).because(inside);
        }
        let offset = futex.at.0 - global.0;
        let table = Layouts::glibc();
        let row = table.layout("rtld_global", &self.decoder.subject);
        let name = row.and_then(|r| r.fields().find(|(_, f)| f.offset == offset).map(|(n, _)| n.to_owned()));
        let mut resource = self.resource(self.at(futex.at), ResourceKind::LibcLock, futex.at);
        resource.name = Some(name.unwrap_or_else(|| format!("_rtld_global+{offset:#x}")));
        Found::new(resource)
    }

    fn join(&self, futex: &FutexWait) -> Option<Found> {
        let joined = |layout: &&StructLayout| objects::joined(self.view.memory, layout, futex, &self.owners);
        let (layout, (base, owner)) = self.decoder.layouts.joins.iter().find_map(|l| Some((*l, joined(l)?)))?;
        let Owner::Thread(joined) = owner else { return None };
        let thread = self.view.thread(joined);
        let tid = self.tid(joined);
        let id = ResourceId::ThreadExit(thread);
        let resource = Resource {
            name: Some(format!("the end of thread {tid}")),
            address: Some(base),
            reentrancy: Reentrancy::Plain,
            ..self.resource(id, ResourceKind::ThreadExit, base)
        };
        let field = if layout.field("joinstate").is_some() { "joinstate" } else { "tid" };
        let evidence = format!("the futex is `{field}` in the struct pthread at {base} of thread {tid}");
        let hold = Hold {
            holder: Holder::Thread(thread),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!("thread {tid} has not ended: {evidence}"))],
        };
        // the word lies in the thread's stack, of which gcore writes zeros where a guard page stops it (gdb 13, glibc since
        // 2.42): a thread that is listed has not ended
        Some(Found::new(resource).because(evidence).held(Some(hold)).sleeping_on(true))
    }

    fn mutex(&self, index: usize, futex: &FutexWait, frames: &Frames<'_>, innermost: Innermost) -> Option<Found> {
        let mutex = Mutex::read(self.view.memory, self.decoder.layouts.mutex, futex.at)?;
        if !mutex.fits(futex) {
            return None;
        }
        let id = self.shared_at(mutex.at, !futex.private);
        let shared = futex.may_be_shared(self.view.snapshot);
        let named = self.means(frames, "waits", "mutex").is_some();
        let pair = self.pair_with_mutex(index, mutex.at);
        let owner = mutex.holder();
        let sure = match owner.and_then(|tid| self.owners.by_tid(tid)) {
            Some(Owner::Thread(_)) => true,
            // bytes that only look like a mutex name dead owners: libc itself must be what sleeps
            Some(Owner::Gone(_)) => innermost == Innermost::Libc && mutex.users > 0,
            None => owner.is_none() && (named || pair || mutex.owner_died()),
        };
        if !sure {
            return None;
        }
        let resource = Resource { reentrancy: mutex.reentrancy(), ..self.resource(id, ResourceKind::Mutex, mutex.at) };
        let kind = mutex.kind();
        let hold = owner.and_then(|tid| self.recorded(id, mutex.at, "mutex", mutex.holder_field(), tid, shared));
        let mut found = Found::new(resource).because(format!("the futex is a mutex ({kind}) at {}", mutex.at));
        if pair {
            found = found.because("it was woken from a condition wait and takes the mutex again");
        }
        match owner {
            None if mutex.owner_died() => found = found.because("the word says its owner died (FUTEX_OWNER_DIED)"),
            None => found = found.because(format!("{} names nobody at this instant", mutex.holder_field())),
            Some(_) => {}
        }
        if mutex.count > 1 {
            found = found.because(format!("it is taken {} times over (`__count`)", mutex.count));
        }
        // who sleeps for a robust one sleeps on while it goes from one owner to the next
        let sleeps_on = mutex.is_robust() && owner.is_some();
        Some(found.held(self.placed(hold, mutex.at)).sleeping_on(sleeps_on))
    }

    /// The priority-inheriting mutex that the kernel would not let a thread wait for, since it would wait for itself
    /// (`EDEADLK`) or the owner has ended (`ESRCH`): glibc then has the thread sleep for ever on a variable of its own.
    /// Source: glibc nptl/pthread_mutex_lock.c, "Delay the thread indefinitely"; since 2.31 by a futex.
    fn refused_mutex(&self, futex: &FutexWait, frames: &Frames<'_>) -> Option<Found> {
        let layout = self.decoder.layouts.mutex;
        let fits = |at: Addr| {
            let mutex = Mutex::read(self.view.memory, layout, at)?;
            (mutex.is_priority_inheriting() && mutex.holder().is_some()).then_some(mutex)
        };
        let mut mutexes: BTreeMap<Addr, Mutex> =
            frames.first_argument().and_then(fits).map(|m| (m.at, m)).into_iter().collect();
        if mutexes.is_empty() {
            // the functions keep the mutex's address, or that of its kind
            let starts = frames.glibcs_own_values().into_iter().flat_map(|v| mutex::starts(layout, Addr(v)));
            mutexes = starts.filter_map(fits).map(|m| (m.at, m)).collect();
        }
        let at = futex.at;
        let said = format!(
            "it sleeps on a variable of glibc's own, at {at}, where nobody wakes it: the kernel would not let it wait for a \
             priority-inheriting mutex, since it would wait for itself (EDEADLK) or the owner has ended (ESRCH)"
        );
        let named = self.means(frames, "waits", "mutex").is_some();
        let mutex = match mutexes.values().next() {
            Some(mutex) if mutexes.len() == 1 => *mutex,
            _ if named => {
                let mut resource = self.resource(self.at(at), ResourceKind::Mutex, at);
                resource.name = Some("a priority-inheriting mutex".to_owned());
                return Some(Found::new(resource).because(said));
            }
            // whoever wakes it is libc's to know
            _ => {
                let resource = self.resource(self.at(at), ResourceKind::Futex, at);
                let found = Found::new(Resource { wakers: Wakers::Outside, ..resource });
                return Some(found.because(format!("{at} is a variable of glibc's own")));
            }
        };
        let shared = mutex.may_be_shared();
        let id = self.shared_at(mutex.at, shared);
        let hold =
            mutex.holder().and_then(|tid| self.recorded(id, mutex.at, "mutex", mutex.holder_field(), tid, shared));
        let resource = Resource { reentrancy: mutex.reentrancy(), ..self.resource(id, ResourceKind::Mutex, mutex.at) };
        let found = Found::new(resource).because(format!("the mutex ({}) at {}", mutex.kind(), mutex.at)).because(said);
        Some(found.held(self.placed(hold, mutex.at)))
    }

    /// Whether the thread's stack pairs some condition variable with this mutex: it waits to take it again.
    fn pair_with_mutex(&self, index: usize, mutex: Addr) -> bool {
        let sp = self.view.snapshot.threads.get(index).and_then(|t| t.registers.as_ref()).and_then(|r| r.sp());
        let words = sp.map(|sp| objects::stack_words(self.view.memory, Addr(sp))).unwrap_or_default();
        let mut pairs = words.iter().zip(words.iter().skip(1));
        pairs.any(|(base, other)| *other == mutex && base.0.is_multiple_of(8) && self.condvar_at(*base))
    }

    fn condvar_at(&self, base: Addr) -> bool {
        self.view.snapshot.mapping_at(base).is_some_and(|m| m.permissions.write)
            && self.decoder.layouts.condvars.iter().any(|l| objects::condvar_plausible(self.view.memory, l, base))
    }

    fn means<'f>(&self, frames: &'f Frames<'_>, key: &'f str, word: &'f str) -> Option<&'static FrameSignature> {
        frames.meanings().map(|(_, s)| s).find(|s| s.means.words(key).iter().any(|w| w == word))
    }

    fn condvar(&self, index: usize, futex: &FutexWait, by_pair: bool) -> Option<Found> {
        if matches!(futex.op, Op::LockPi) {
            return None;
        }
        let candidates: Vec<_> = objects::condvar_bases(&self.decoder.layouts.condvars, futex).collect();
        let bases: Vec<Addr> = candidates.iter().map(|(base, _)| *base).collect();
        let memory = self.view.memory;
        let sp = self.view.snapshot.threads.get(index)?.registers.as_ref().and_then(|r| r.sp()).map(Addr);
        let pairs = sp.map(|sp| objects::find_pairs(memory, sp, &bases)).unwrap_or_default();
        let users = |m: &Addr| Mutex::read(memory, self.decoder.layouts.mutex, *m).is_some_and(|m| m.users > 0);
        let pair = pairs.into_iter().find(|(_, _, mutex)| users(mutex));
        let (base, mutex) = match pair {
            Some((_, base, mutex)) => (base, Some(mutex)),
            None if by_pair => return None,
            // no pair: the words alone must read as one condition variable, not as two
            None => {
                let mut plausible =
                    candidates.iter().filter(|(base, layout)| objects::condvar_plausible(memory, layout, *base));
                let (base, _) = plausible.next()?;
                if plausible.any(|(other, _)| other != base) {
                    return None;
                }
                (*base, None)
            }
        };
        let layout = candidates.iter().find(|(b, _)| *b == base).map(|(_, layout)| *layout);
        let old = layout.and_then(|layout| objects::old_condvar_signalled(memory, layout, base));
        let resource =
            Resource { idle: true, ..self.resource(self.shared_at(base, !futex.private), ResourceKind::Condvar, base) };
        let mut found = self
            .anyone(Found::new(resource), futex)
            .because(format!("the futex is part of the condition variable at {base}"))
            .sleeping_on(old == Some(false));
        if let (Some(mutex), Some((at, ..))) = (mutex, pair) {
            let name = self.name_of(mutex).map(|n| format!(" {n}")).unwrap_or_default();
            found = found.because(format!(
                "its stack pairs the condition with the mutex{name} at {mutex} (stack pointer + {at:#x})"
            ));
        }
        Some(found)
    }

    fn rwlock(&self, futex: &FutexWait, innermost: Innermost) -> Option<Found> {
        let lock = Rwlock::read(self.view.memory, self.decoder.layouts.rwlock?, futex, &self.owners)?;
        // bytes that only look like a rwlock name dead writers: libc itself must be what sleeps
        let changed = futex.changed_word(self.view.memory);
        let gone = matches!(self.owners.by_tid(lock.writer), Some(Owner::Gone(_)));
        if (gone || changed) && innermost != Innermost::Libc {
            return None;
        }
        let shared = futex.may_be_shared(self.view.snapshot);
        let id = self.shared_at(lock.at, lock.shared);
        let mut resource = self.resource(id, ResourceKind::Rwlock, lock.at);
        resource.reentrancy = Reentrancy::Plain;
        let wish = if lock.wants_to_read { "read" } else { "write" };
        let mut found =
            Found::new(resource).because(format!("the futex is part of the rwlock at {}, to {wish}", lock.at));
        found.sleeps_on = lock.sleeps_on;
        found.mode = if lock.wants_to_read { Mode::Shared } else { Mode::Exclusive };
        if lock.writer != 0 {
            let hold = self.recorded(id, lock.at, "rwlock", "`__cur_writer`", lock.writer, shared);
            return Some(found.held(self.placed(hold, lock.at)));
        }
        found = found.because(match lock.readers {
            0 => "no holder is recorded at this instant".to_owned(),
            1 => "one reader holds it; glibc does not record which".to_owned(),
            n => format!("{n} readers hold it; glibc does not record which"),
        });
        Some(found)
    }

    fn semaphore(&self, futex: &FutexWait, innermost: Innermost) -> Option<Found> {
        let (at, value, waiters) = objects::semaphore(self.view.memory, self.decoder.layouts.semaphore?, futex)?;
        // a word of another value is less like one
        if value != 0 && innermost != Innermost::Libc {
            return None;
        }
        let id = self.shared_at(at, !futex.private);
        let resource = Resource { idle: true, ..self.resource(id, ResourceKind::Semaphore, at) };
        let text = format!("the futex is a semaphore at {at}: value {value}, {waiters} waiting");
        Some(self.anyone(Found::new(resource), futex).because(text))
    }

    fn barrier(&self, futex: &FutexWait, innermost: Innermost) -> Option<Found> {
        let barrier = objects::barrier(self.view.memory, self.decoder.layouts.barrier?, futex)?;
        if barrier.passed && innermost != Innermost::Libc {
            return None;
        }
        let (at, here, count) = (barrier.at, barrier.here, barrier.count);
        let id = self.shared_at(at, !futex.private);
        let resource = self.resource(id, ResourceKind::Barrier, at);
        let text = match barrier.passed {
            false => format!("the futex is part of the barrier at {at}: {here} of {count} have arrived"),
            true => format!("the futex is part of the barrier at {at}, the round of which is over"),
        };
        Some(self.anyone(Found::new(resource), futex).because(text))
    }

    /// A condition variable that is to be destroyed: it waits until those who wait on it have left.
    fn destroyed_condvar(&self, futex: &FutexWait, frames: &Frames<'_>) -> Option<Found> {
        let memory = self.view.memory;
        let named = self.means(frames, "waits", "condvar's waiters").is_some();
        let mut candidates = objects::destroyed_condvar(&self.decoder.layouts.condvars, futex)
            .filter(|(base, layout)| objects::condvar_plausible(memory, layout, *base));
        let (base, _) = candidates.next().filter(|_| named)?;
        if candidates.any(|(other, _)| other != base) {
            return None;
        }
        let of = self.name_of(base).unwrap_or_else(|| format!("at {base}"));
        let id = self.at(futex.at);
        let mut resource = self.resource(id, ResourceKind::Condvar, base);
        resource.name = Some(format!("{of} under destruction"));
        resource.reentrancy = Reentrancy::Plain;
        let text = format!("the futex is `__wrefs` of the condition variable at {base}, which is being destroyed");
        let waits_on_it = |thread: usize| {
            let wait = self.futexes.get(thread).copied().flatten();
            wait.is_some_and(|f| objects::condvar_bases(&self.decoder.layouts.condvars, &f).any(|(b, _)| b == base))
        };
        let mut found =
            Found::new(resource).because(text).sleeping_on(memory.read_u32(futex.at).is_ok_and(|w| w >> 3 != 0));
        for thread in (0..self.futexes.len()).filter(|t| waits_on_it(*t)).take(MAX_DESTROYED_FOR) {
            found.holds.push(Hold {
                holder: Holder::Thread(self.view.thread(thread)),
                of: id,
                mode: Mode::Shared,
                certainty: Certainty::Witnessed,
                taken_at: None,
                taken_at_managed: None,
                evidence: vec![Evidence::new(format!("thread {} waits on that condition variable", self.tid(thread)))],
            });
        }
        Some(found)
    }
}
