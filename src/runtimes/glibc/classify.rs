//! The decision procedure: from a thread's futex to what it waits for and who holds that.

use super::frames::{self, Frames, Innermost};
use super::futex::{FutexWait, Op};
use super::loader::{LoaderLock, LoaderLocks};
use super::mutex::Mutex;
use super::objects::{self, Rwlock};
use super::owners::{Owner, Owners};
use super::{GlibcDecoder, heap_of};
use crate::facts::{
    Certainty, Evidence, Facts, Gap, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Wait, Wakers,
};
use crate::layout::{FrameSignature, Layouts};
use crate::memory::MemoryExt;
use crate::runtimes::View;
use crate::units::{Addr, FrameIx, Tid};
use std::collections::BTreeSet;

/// One instant as this decoder sees it.
pub(super) struct Scene<'a> {
    decoder: &'a GlibcDecoder,
    view: &'a View<'a>,
    owners: Owners,
    loader: LoaderLocks,
    futexes: Vec<Option<FutexWait>>,
}

/// What a thread was found to wait for.
struct Found {
    resource: Resource,
    mode: Mode,
    evidence: Vec<Evidence>,
    holds: Vec<Hold>,
}

impl Found {
    fn new(resource: Resource) -> Found {
        Found { resource, mode: Mode::Exclusive, evidence: Vec::new(), holds: Vec::new() }
    }

    fn because(mut self, text: impl Into<String>) -> Found {
        self.evidence.push(Evidence::new(text));
        self
    }

    fn any(mut self) -> Found {
        self.mode = Mode::Any;
        self.resource.wakers = Wakers::AnyThread;
        self
    }

    fn held(mut self, hold: Option<Hold>) -> Found {
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
        Scene { decoder, view, owners, loader, futexes }
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
        self.join(futex)
            .or_else(|| self.mutex(index, futex, frames, innermost))
            .or_else(|| self.io_lock(futex, frames))
            .or_else(|| self.arena(index, futex))
            .or_else(|| self.condvar(index, futex, true))
            .or_else(|| self.rwlock(futex))
            .or_else(|| self.semaphore(futex))
            .or_else(|| self.barrier(futex))
            .or_else(|| self.condvar(index, futex, false))
            .or_else(|| self.once(index, futex, innermost))
            .or_else(|| self.inner_lock(index, futex, frames))
    }

    fn at(&self, at: Addr) -> ResourceId {
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

    fn resource(&self, id: ResourceId, kind: ResourceKind, at: Addr) -> Resource {
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
        let (symbol, into, module) = self.view.snapshot.object_at(at)?;
        let name = crate::elf::demangle(&symbol.name);
        Some(match into {
            0 => format!("{name} ({})", module.name()),
            _ => format!("{name}+{into:#x} ({})", module.name()),
        })
    }

    fn tid(&self, index: usize) -> i32 {
        self.view.snapshot.threads.get(index).map_or(0, |t| t.tid.0)
    }

    /// A hold read from a field that names a tid.
    fn recorded(&self, of: ResourceId, at: Addr, what: &str, field: &str, tid: i32) -> Option<Hold> {
        let shared = matches!(of, ResourceId::Shared { .. });
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

    /// Adds where the holder took it, if its frames show.
    fn placed(&self, hold: Option<Hold>, at: Addr) -> Option<Hold> {
        let mut hold = hold?;
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
        let mut hold = owner.and_then(|tid| self.recorded(id, lock.at, lock.name, "`__owner`", tid));
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
        let (base, owner) = objects::joined(self.view.memory, self.decoder.layouts.pthread, futex, &self.owners)?;
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
        let field = if self.decoder.layouts.pthread.field("joinstate").is_some() { "joinstate" } else { "tid" };
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
        Some(Found::new(resource).because(evidence).held(Some(hold)))
    }

    fn mutex(&self, index: usize, futex: &FutexWait, frames: &Frames<'_>, innermost: Innermost) -> Option<Found> {
        let mutex = Mutex::read(self.view.memory, self.decoder.layouts.mutex, futex.at)?;
        if !mutex.fits(futex) {
            return None;
        }
        let id = self.shared_at(mutex.at, !futex.private);
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
        let hold = owner.and_then(|tid| self.recorded(id, mutex.at, "mutex", mutex.holder_field(), tid));
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
        Some(found.held(self.placed(hold, mutex.at)))
    }

    /// Whether the thread's stack pairs some condition variable with this mutex: it waits to take it again.
    fn pair_with_mutex(&self, index: usize, mutex: Addr) -> bool {
        let sp = self.view.snapshot.threads.get(index).and_then(|t| t.registers.as_ref()).and_then(|r| r.sp());
        let Some(sp) = sp.map(Addr) else { return false };
        let mut before = None;
        for at in (0..objects::PAIR_SEARCH).step_by(8) {
            let Some(word) = sp.checked_add(at).and_then(|here| self.view.memory.read_addr(here).ok()) else { break };
            let condition = before.filter(|_| word == mutex).filter(|base: &Addr| base.0.is_multiple_of(8));
            if condition.is_some_and(|base| self.condvar_at(base)) {
                return true;
            }
            before = Some(word);
        }
        false
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
        let resource =
            Resource { idle: true, ..self.resource(self.shared_at(base, !futex.private), ResourceKind::Condvar, base) };
        let mut found =
            Found::new(resource).any().because(format!("the futex is part of the condition variable at {base}"));
        if let (Some(mutex), Some((at, ..))) = (mutex, pair) {
            let name = self.name_of(mutex).map(|n| format!(" {n}")).unwrap_or_default();
            found = found.because(format!(
                "its stack pairs the condition with the mutex{name} at {mutex} (stack pointer + {at:#x})"
            ));
        }
        Some(found)
    }

    fn rwlock(&self, futex: &FutexWait) -> Option<Found> {
        let lock = Rwlock::read(self.view.memory, self.decoder.layouts.rwlock?, futex, &self.owners)?;
        let id = self.shared_at(lock.at, lock.shared);
        let mut resource = self.resource(id, ResourceKind::Rwlock, lock.at);
        resource.reentrancy = Reentrancy::Plain;
        let wish = if lock.wants_to_read { "read" } else { "write" };
        let mut found =
            Found::new(resource).because(format!("the futex is part of the rwlock at {}, to {wish}", lock.at));
        found.mode = if lock.wants_to_read { Mode::Shared } else { Mode::Exclusive };
        if lock.writer != 0 {
            let hold = self.recorded(id, lock.at, "rwlock", "`__cur_writer`", lock.writer);
            return Some(found.held(self.placed(hold, lock.at)));
        }
        found = found.because(match lock.readers {
            0 => "no holder is recorded at this instant".to_owned(),
            1 => "one reader holds it; glibc does not record which".to_owned(),
            n => format!("{n} readers hold it; glibc does not record which"),
        });
        Some(found)
    }

    fn semaphore(&self, futex: &FutexWait) -> Option<Found> {
        let (at, waiters) = objects::semaphore(self.view.memory, self.decoder.layouts.semaphore?, futex)?;
        let id = self.shared_at(at, !futex.private);
        let resource = Resource { idle: true, ..self.resource(id, ResourceKind::Semaphore, at) };
        let text = format!("the futex is a semaphore at {at}: value 0, {waiters} waiting");
        Some(Found::new(resource).any().because(text))
    }

    fn barrier(&self, futex: &FutexWait) -> Option<Found> {
        let (at, here, count) = objects::barrier(self.view.memory, self.decoder.layouts.barrier?, futex)?;
        let id = self.shared_at(at, !futex.private);
        let resource = self.resource(id, ResourceKind::Barrier, at);
        let text = format!("the futex is part of the barrier at {at}: {here} of {count} have arrived");
        Some(Found::new(resource).any().because(text))
    }

    /// A lock of glibc that records its owner as a `struct pthread` pointer: a `FILE`'s, the list of files', `exit`'s.
    fn io_lock(&self, futex: &FutexWait, frames: &Frames<'_>) -> Option<Found> {
        if futex.op != Op::Wait || !futex.private || futex.value != 2 {
            return None;
        }
        let (owner, _) = objects::io_lock(self.view.memory, self.decoder.layouts.io_lock?, futex.at, &self.owners)?;
        let file = self.file_of(futex.at);
        let exit = frames.meanings().any(|(_, s)| s.means.word("kind") == Some("exit-lock"));
        let (kind, name) = match file {
            Some(name) => (ResourceKind::StdioLock, Some(name)),
            None if exit && self.in_libc(futex.at) => (ResourceKind::ExitLock, Some("exit's lock".to_owned())),
            None if self.in_libc(futex.at) => (ResourceKind::StdioLock, Some("stdio's list of files".to_owned())),
            None => (ResourceKind::LibcLock, None),
        };
        let id = self.at(futex.at);
        let mut resource = self.resource(id, kind, futex.at);
        resource.name = name.or(resource.name);
        resource.reentrancy = Reentrancy::Recursive;
        let evidence =
            format!("the owner pointer of the lock at {} is the pthread_t of thread {}", futex.at, self.tid(owner));
        let hold = Hold {
            holder: Holder::Thread(self.view.thread(owner)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(evidence)],
        };
        let hold = self.placed_by_kind(hold, "stdio-lock");
        Some(
            Found::new(resource)
                .because(format!("the futex is a lock with an owner pointer at {}", futex.at))
                .held(Some(hold)),
        )
    }

    /// The outermost frame of the holder inside a function of this kind of lock.
    fn placed_by_kind(&self, mut hold: Hold, kind: &str) -> Hold {
        if let Holder::Thread(thread) = hold.holder {
            let frames = Frames::of(self.view, usize::try_from(thread.thread).unwrap_or(usize::MAX));
            hold.taken_at =
                frames.all_meanings().filter(|(_, s)| s.means.word("kind") == Some(kind)).last().map(|(ix, _)| ix);
        }
        hold
    }

    /// The `FILE` a lock belongs to: a standard stream, or one `fopen` allocated together with its lock.
    fn file_of(&self, lock: Addr) -> Option<String> {
        let file = self.decoder.layouts.file?;
        let lock_of = |at: Addr| file.field("_lock")?.read_addr(self.view.memory, at).ok();
        if let Some((_, name)) = self.decoder.streams.iter().find(|(at, _)| lock_of(*at) == Some(lock)) {
            return Some((*name).to_owned());
        }
        let pair = self.decoder.layouts.locked_file?;
        let at = Addr(lock.0.checked_sub(pair.offset("lock")?)?);
        if lock_of(at) != Some(lock) {
            return None;
        }
        let number = file.field("_fileno")?.read(self.view.memory, at).ok()?;
        Some(if number >= 0 { format!("the FILE of fd {number}") } else { format!("the FILE at {at}") })
    }

    /// A malloc arena's lock: by its place at the start of a heap that points back at it, or by the empty bins that follow
    /// it, which point at themselves.
    fn arena(&self, index: usize, futex: &FutexWait) -> Option<Found> {
        let lock = futex.op == Op::Wait && futex.private && futex.value == 2;
        if !lock {
            return None;
        }
        let by_heap = || {
            let heap = heap_of(futex.at)?;
            let layout = self.decoder.layouts.heap?;
            let back = layout.field("ar_ptr")?.read_addr(self.view.memory, heap).ok()?;
            let fits = futex.at.0 - heap.0 == layout.offset("arena")? && back == futex.at;
            fits.then(|| format!("the futex is the mutex of the malloc arena of the heap at {heap}"))
        };
        let by_bins = || {
            let bins = self.in_libc(futex.at) && objects::bins_follow(self.view.memory, futex.at);
            bins.then(|| format!("the futex at {} is the mutex of malloc's main arena: its bins follow it", futex.at))
        };
        let (text, main) = match by_heap() {
            Some(text) => (text, false),
            None => (by_bins()?, true),
        };
        let mut resource = self.resource(self.at(futex.at), ResourceKind::AllocatorLock, futex.at);
        let name = if main { "malloc's main arena".to_owned() } else { format!("malloc's arena at {}", futex.at) };
        resource.name = Some(name);
        resource.reentrancy = Reentrancy::Plain;
        let hold = self.by_family(index, futex, resource.id, "malloc");
        Some(Found::new(resource).because(text).held(hold))
    }

    fn seen_in(&self, frames: &Frames<'_>) -> String {
        match frames.name(frames.edge()) {
            Some(name) => format!("the thread is inside {name} (frame {})", frames.edge().0),
            None => format!("the thread is inside libc (frame {})", frames.edge().0),
        }
    }

    /// Whether an address lies in libc's own data.
    fn in_libc(&self, at: Addr) -> bool {
        let snapshot = self.view.snapshot;
        let of_module = |name: &str| frames::is_libc(name) || name.starts_with("libpthread");
        if let Some((_, module)) = snapshot.module_at(at) {
            return of_module(module.name());
        }
        // .bss: the nameless mapping right behind the file's last
        let Some(mapping) = snapshot.mapping_at(at).filter(|m| m.path.is_none()) else { return false };
        snapshot.modules.iter().any(|m| m.end == mapping.start && of_module(m.name()))
    }

    /// One of libc's inner locks: a bare word without an owner, named by the functions that wait for it.
    fn inner_lock(&self, index: usize, futex: &FutexWait, frames: &Frames<'_>) -> Option<Found> {
        let lock = futex.op == Op::Wait && futex.private && futex.value == 2;
        if !lock || !self.in_libc(futex.at) {
            return None;
        }
        let signature = frames.meanings().map(|(_, s)| s).find(|s| s.means.word("family").is_some());
        let kind = match signature.and_then(|s| s.means.word("kind")) {
            Some("allocator-lock") => ResourceKind::AllocatorLock,
            Some("stdio-lock") => ResourceKind::StdioLock,
            Some("atfork-lock") => ResourceKind::AtforkLock,
            Some("exit-lock") => ResourceKind::ExitLock,
            _ => ResourceKind::LibcLock,
        };
        let mut resource = self.resource(self.at(futex.at), kind, futex.at);
        resource.reentrancy = Reentrancy::Plain;
        if let Some(name) = signature.and_then(|s| s.means.word("name")) {
            resource.name = Some(name.to_owned());
        }
        let family = signature.and_then(|s| s.means.word("family"));
        let hold = family.and_then(|family| self.by_family(index, futex, resource.id, family));
        let text = format!("the futex is a lock without an owner field in libc's data at {}", futex.at);
        Some(Found::new(resource).because(text).because(self.seen_in(frames)).held(hold))
    }

    /// The one thread that is inside a function of the same family and does not itself wait for this word: it, or what the
    /// waiter's own signal handler interrupted.
    fn by_family(&self, index: usize, futex: &FutexWait, of: ResourceId, family: &str) -> Option<Hold> {
        let is_family =
            |(ix, s): (FrameIx, &'static FrameSignature)| (s.means.word("family") == Some(family)).then_some(ix);
        let mut inside = Vec::new();
        for other in 0..self.view.snapshot.threads.len() {
            let waits_here = self.futexes.get(other).copied().flatten().is_some_and(|f| f.at == futex.at);
            let frames = Frames::of(self.view, other);
            let at = if other == index {
                frames.interrupted_meanings().filter_map(is_family).last()
            } else if waits_here {
                None
            } else {
                frames.all_meanings().filter_map(is_family).last()
            };
            if let Some(at) = at {
                inside.push((other, at, frames.name(at)));
            }
        }
        let [(holder, at, name)] = inside.as_slice() else { return None };
        let name = name.as_deref().unwrap_or("libc");
        let text = if *holder == index {
            format!("the signal handler interrupted {name} (frame {}) of the same thread", at.0)
        } else {
            format!(
                "inferred: thread {} is the only other one inside such a function: {name} (frame {})",
                self.tid(*holder),
                at.0
            )
        };
        Some(Hold {
            holder: Holder::Thread(self.view.thread(*holder)),
            of,
            mode: Mode::Exclusive,
            certainty: Certainty::Inferred,
            taken_at: Some(*at),
            taken_at_managed: None,
            evidence: vec![Evidence::new(text)],
        })
    }

    /// `pthread_once` in progress elsewhere: the holder is the thread whose libc frames still carry the same word.
    fn once(&self, index: usize, futex: &FutexWait, innermost: Innermost) -> Option<Found> {
        // bit 0: in progress, bit 1: done; the rest counts forks (glibc nptl/pthread_once.c)
        let in_progress = futex.op == Op::Wait && futex.private && !futex.timed() && futex.value & 3 == 1;
        // the word alone says too little: 1 is many a program's own lock, but none that libc sleeps on
        let now = self.view.memory.read_u32(futex.at).ok()?;
        if !in_progress || now != futex.value || innermost != Innermost::Libc {
            return None;
        }
        let holders: Vec<(usize, FrameIx)> = (0..self.view.snapshot.threads.len())
            .filter(|other| *other != index)
            .filter(|other| self.futexes.get(*other).copied().flatten().is_none_or(|f| f.at != futex.at))
            .filter_map(|other| Some((other, Frames::of(self.view, other).carried_by_libc(futex.at)?)))
            .collect();
        let id = self.at(futex.at);
        let mut resource = self.resource(id, ResourceKind::Once, futex.at);
        resource.reentrancy = Reentrancy::Plain;
        let hold = match holders.as_slice() {
            [(holder, at)] => Some(Hold {
                holder: Holder::Thread(self.view.thread(*holder)),
                of: id,
                mode: Mode::Exclusive,
                certainty: Certainty::Witnessed,
                taken_at: Some(*at),
                taken_at_managed: None,
                evidence: vec![Evidence::new(format!(
                    "thread {} runs its initialiser: libc's frame {} still carries the once word {}",
                    self.tid(*holder),
                    at.0,
                    futex.at
                ))],
            }),
            _ => None,
        };
        let text = format!("the futex is a pthread_once_t in progress at {}", futex.at);
        Some(Found::new(resource).because(text).held(hold))
    }
}
