//! Who runs where, holds what and waits for what: everything of Python's side, before native stacks are known.

use super::attached::Attachments;
use super::census::Census;
use super::entered;
use super::event_loops::EventLoops;
use super::executors::{Pool, find_pools};
use super::givers::{Giver, Givers};
use super::holds::{Holds, Witnessed};
use super::inferred::{Inference, Probable, Taking};
use super::lock_files::{self, Polling};
use super::locks::{Lock, LockKind};
use super::names::Names;
use super::objects::Objects;
use super::place::{Places, PyStack};
use super::process_pools::{self, ProcessPool};
use super::waits::{PyWait, Wanted, wait_of};
use crate::facts::{Entered, ResourceKind};
use crate::target::ThreadState;
use crate::units::Addr;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is seen of one CPython.
pub(super) struct Scene<'a> {
    pub places: Places<'a>,
    /// By index into the snapshot's threads.
    pub stacks: BTreeMap<usize, PyStack<'a>>,
    pub witnessed: Vec<Witnessed>,
    /// By index into the snapshot's threads.
    pub waits: BTreeMap<usize, PyWait>,
    /// Who probably holds the locks that are waited for and that nothing proves held.
    pub probable: HashMap<Addr, Probable>,
    /// Locks that others than the holder may give back: how, in words.
    pub returnable: BTreeMap<Addr, String>,
    /// Threads inside the `with` blocks of semaphores that are waited for.
    pub permits: Vec<Permit>,
    /// Semaphores of which a function gives permits back that it does not take.
    pub released: BTreeSet<Addr>,
    /// Locks between processes that code of somebody else gives back, or may be handed.
    pub lent: BTreeSet<Addr>,
    /// Taken locks without a holder that shows, which code of this process may have taken or may give back.
    pub own: BTreeSet<Addr>,
    /// Taken locks, inside the block of which nobody is, that a function gives back which does not take them: signals.
    pub awaited: BTreeMap<Addr, Giver>,
    pub pools: Vec<Pool>,
    pub process_pools: Vec<ProcessPool>,
    /// Threads that poll for locks of files, by index into the snapshot's threads.
    pub lock_files: BTreeMap<usize, Polling>,
    /// Names of the objects held and waited for.
    pub names: HashMap<Addr, String>,
    /// What entered the frames of threads that wait for their own locks, by thread and frame.
    pub entered: HashMap<(usize, usize), Entered>,
    /// Event loops.
    pub event_loops: EventLoops,
    /// What only builds without the GIL have.
    pub attachments: Attachments,
}

/// When a look is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beat {
    /// Before or after the target is held.
    Thought,
    /// While it is: for what is read, and briefly.
    Pause,
}

/// A permit of a semaphore, by the `with` block it was taken for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permit {
    pub semaphore: Addr,
    /// Index into the snapshot's threads.
    pub thread: usize,
    /// Index of the frame with the `with` statement.
    pub frame: usize,
    /// The line of that statement.
    pub line: Option<u32>,
}

/// Frames of one stack in which names of a lock are looked for.
const MAX_HANDLE_FRAMES: usize = 48;
/// Waiters of one object whose variables are searched for its name.
const MAX_NAMERS: usize = 4;

impl<'a> Scene<'a> {
    /// Looks at the threads of an instant.
    pub(super) fn look(objects: &Objects<'_>, census: &'a Census, threads: &[ThreadState], beat: Beat) -> Scene<'a> {
        let places = Places::find(objects, census, threads);
        let stacks = places.stacks(census);
        let mut codes = census.codes.borrow_mut();
        let mut witnessed =
            Holds::new(objects).witnessed(stacks.iter().map(|(i, s)| (*i, s.frames.as_slice())), &mut codes);
        drop(codes);
        let waits: BTreeMap<usize, PyWait> =
            stacks.iter().filter_map(|(i, stack)| Some((*i, wait_of(objects, threads.get(*i)?, stack)?))).collect();
        let (inference, holds) = (Inference::new(objects), Holds::new(objects));
        witnessed.retain_mut(|w| {
            let waits = waits_for(&waits, w.lock.addr, w.thread);
            let frames = stacks.get(&w.thread).map_or(&[][..], |s| s.frames.as_slice());
            if w.lock.kind != LockKind::Lock {
                return true;
            }
            let mut codes = census.codes.borrow_mut();
            let since = holds.entered_since(w, frames, &mut codes);
            inference.weigh(w, frames, waits) && inference.weigh_managers(w, since, &mut codes)
        });
        doubt_contested(&mut witnessed, &waits);
        let mut given: BTreeMap<Addr, Given> = BTreeMap::new();
        for w in witnessed.iter_mut().filter(|w| w.lock.kind == LockKind::Lock) {
            let waits_for_it = |thread: usize| waits_for(&waits, w.lock.addr, thread);
            if !waits.keys().any(|t| waits_for_it(*t).is_some()) {
                continue;
            }
            if let Some(giver) = inference.giver(w.lock.addr, w.thread, &stacks, &waits_for_it) {
                let tid = threads.get(giver).map_or(0, |t| t.tid.0);
                let how = format!("thread {tid} stands in code that gives it back without taking it");
                w.doubt.get_or_insert_with(|| how.clone());
                given.insert(w.lock.addr, Given { how, and_taken: true });
            }
        }
        let mut probable = infer((&inference, &Holds::new(objects)), census, &stacks, &witnessed, &waits);
        let handlers = census.handlers.as_deref().unwrap_or_default();
        let permits = find_permits(objects, &stacks, &waits);
        let lendable = waits.keys().filter_map(|t| wanted_by(&waits, *t)).filter(|l| l.lendable);
        let lendable = lendable.filter_map(|l| Some((l.addr, places.by_ident(l.owner?)?))).collect();
        let mut claims = Claims {
            witnessed: &mut witnessed,
            probable: &mut probable,
            permits: &permits,
            lendable,
            released: BTreeSet::new(),
            lent: BTreeSet::new(),
            given,
            unclaimed: BTreeMap::new(),
            own: BTreeSet::new(),
            awaited: BTreeMap::new(),
        };
        claims.find_unclaimed(&waits);
        // the code of whole modules: read by the rehearsal, thought about after the release
        if beat == Beat::Thought {
            claims.doubt_given(objects, &inference, census, &stacks, handlers, &waits);
        }
        let (released, lent, given) = (claims.released, claims.lent, claims.given);
        let (own, awaited) = (claims.own, claims.awaited);
        prefer_takers(&inference, &stacks, &mut witnessed, &mut probable, &waits);
        let returnable = find_returnable(&inference, &stacks, &witnessed, &probable, &waits, &given);
        let pools = find_pools(objects, &stacks);
        let process_pools = process_pools::find(objects, &stacks);
        let lock_files = lock_files::find(objects, &stacks, threads);
        let attachments = Attachments::look(objects, census, &places, threads, |i| waits.contains_key(&i));
        let names = name_all(objects, &stacks, &witnessed, &waits, &attachments);
        let entered = entered::find(objects, &stacks, &witnessed, &waits);
        let all = stacks.iter().map(|(i, s)| (*i, s.frames.as_slice()));
        let idents = stacks.iter().flat_map(|(i, s)| s.states.iter().map(|p| (p.thread.pthread, *i))).collect();
        let event_loops = EventLoops::look(objects, census, all, &idents);
        Scene {
            places,
            stacks,
            witnessed,
            waits,
            probable,
            returnable,
            permits,
            released,
            lent,
            own,
            awaited,
            pools,
            process_pools,
            lock_files,
            names,
            entered,
            event_loops,
            attachments,
        }
    }
}

/// The lock that a thread waits for.
fn wanted_by(waits: &BTreeMap<usize, PyWait>, thread: usize) -> Option<&Lock> {
    match waits.get(&thread).map(|w| &w.wanted) {
        Some(Wanted::Lock(lock)) => Some(lock),
        _ => None,
    }
}

/// Of a thread that waits for `lock`, the frame that does.
fn waits_for(waits: &BTreeMap<usize, PyWait>, lock: Addr, thread: usize) -> Option<usize> {
    wanted_by(waits, thread).filter(|l| l.addr == lock).and_then(|_| waits.get(&thread)).map(|w| w.frame)
}

/// Two threads inside the blocks of one lock: one of them has given it back in a way that does not show. Who waits for the
/// lock is that one.
fn doubt_contested(witnessed: &mut Vec<Witnessed>, waits: &BTreeMap<usize, PyWait>) {
    // how many claim it, and how many of them without a doubt
    let mut claims: BTreeMap<Addr, (usize, usize)> = BTreeMap::new();
    for w in witnessed.iter().filter(|w| w.lock.kind == LockKind::Lock) {
        let (all, sure) = claims.entry(w.lock.addr).or_default();
        *all += 1;
        *sure += usize::from(w.doubt.is_none());
    }
    witnessed.retain_mut(|w| {
        match claims.get(&w.lock.addr) {
            None | Some((0 | 1, _)) => return true,
            Some((_, 1)) => return w.doubt.is_none(),
            Some(_) => {}
        }
        w.is_shared("another thread is inside a block of the same lock");
        wanted_by(waits, w.thread).is_none_or(|l| l.addr != w.lock.addr)
    });
}

/// A block that is doubted, and another thread whose code shows that it took the lock by hand: that one has it.
fn prefer_takers(
    inference: &Inference<'_>,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    witnessed: &mut Vec<Witnessed>,
    probable: &mut HashMap<Addr, Probable>,
    waits: &BTreeMap<usize, PyWait>,
) {
    let doubted = |w: &Witnessed| w.doubt.is_some() && w.lock.kind == LockKind::Lock;
    witnessed.retain(|w| {
        let wants = |thread: usize| waits_for(waits, w.lock.addr, thread);
        if !doubted(w) || !waits.keys().any(|t| wants(*t).is_some()) {
            return true;
        }
        match inference.holder(w.lock.addr, stacks, &wants).filter(|p| p.thread != w.thread) {
            Some(taker) => {
                probable.insert(w.lock.addr, taker);
                false
            }
            None => true,
        }
    });
}

/// The threads inside blocks of semaphores that are waited for.
fn find_permits(
    objects: &Objects<'_>,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    waits: &BTreeMap<usize, PyWait>,
) -> Vec<Permit> {
    let is_semaphore = |wait: &PyWait| match &wait.wanted {
        Wanted::Signal(signal) if signal.kind == ResourceKind::PythonSemaphore => Some(signal.object),
        _ => None,
    };
    let wanted: BTreeSet<Addr> = waits.values().filter_map(is_semaphore).collect();
    let mut out = Vec::new();
    if wanted.is_empty() {
        return out;
    }
    let holds = Holds::new(objects);
    for (thread, stack) in stacks {
        for (frame, framed) in stack.frames.iter().enumerate() {
            let blocks = holds.blocks_of(framed).into_iter().filter(|b| wanted.contains(&b.manager));
            out.extend(blocks.map(|b| Permit { semaphore: b.manager, thread: *thread, frame, line: b.line }));
        }
    }
    out
}

/// What is thought of who holds what.
struct Claims<'c> {
    witnessed: &'c mut Vec<Witnessed>,
    probable: &'c mut HashMap<Addr, Probable>,
    permits: &'c [Permit],
    /// Who took the locks between processes that are waited for.
    lendable: BTreeMap<Addr, usize>,
    /// Semaphores of which somebody's code gives permits back.
    released: BTreeSet<Addr>,
    /// Locks between processes that somebody's code gives back, or may be handed.
    lent: BTreeSet<Addr>,
    /// Locks that somebody's code gives back without taking them.
    given: BTreeMap<Addr, Given>,
    /// Taken locks that nothing shows the holder of, each with one who waits.
    unclaimed: BTreeMap<Addr, usize>,
    /// Those of them that the process may have taken, or may give back, itself.
    own: BTreeSet<Addr>,
    /// Taken locks, inside the block of which nobody is, that a function gives back which does not take them.
    awaited: BTreeMap<Addr, Giver>,
}

/// Code that gives a lock back without taking it.
#[derive(Clone, Debug)]
struct Given {
    /// Which, in words.
    how: String,
    /// Whether other code takes the lock by hand: whoever is inside a block of it may then have called the one, and another
    /// thread the other.
    and_taken: bool,
}

impl Claims<'_> {
    /// Finds the locks that nothing shows the holder of.
    fn find_unclaimed(&mut self, waits: &BTreeMap<usize, PyWait>) {
        for (thread, lock) in waits.keys().filter_map(|t| Some((*t, wanted_by(waits, *t)?))) {
            let claimed =
                self.witnessed.iter().any(|w| w.lock.addr == lock.addr) || self.probable.contains_key(&lock.addr);
            if lock.kind == LockKind::Lock && lock.locked && !claimed {
                self.unclaimed.insert(lock.addr, thread);
            }
        }
    }

    /// Doubts the holds of locks that code of somebody else gives back, or may be handed.
    fn doubt_given(
        &mut self,
        objects: &Objects<'_>,
        inference: &Inference<'_>,
        census: &Census,
        stacks: &BTreeMap<usize, PyStack<'_>>,
        handlers: &[(u32, Addr)],
        waits: &BTreeMap<usize, PyWait>,
    ) {
        let locks = waits.keys().filter_map(|t| wanted_by(waits, *t)).filter(|l| l.kind == LockKind::Lock);
        let wanted: BTreeSet<Addr> = locks.map(|l| l.addr).collect();
        let held = self.witnessed.iter().map(|w| (w.lock.addr, w.thread));
        let held: BTreeMap<Addr, usize> = held
            .chain(self.probable.iter().map(|(lock, p)| (*lock, p.thread)))
            .filter(|(lock, _)| wanted.contains(lock))
            .chain(self.permits.iter().map(|p| (p.semaphore, p.thread)))
            .chain(self.lendable.iter().map(|(lock, t)| (*lock, *t)))
            .collect();
        if held.is_empty() && self.unclaimed.is_empty() {
            return;
        }
        let handlers: Vec<Addr> = handlers.iter().map(|(_, f)| *f).collect();
        let givers = Givers::look(objects, inference, stacks.values().map(|s| s.frames.as_slice()), &handlers);
        let mut codes = census.codes.borrow_mut();
        for (lock, waiter) in &self.unclaimed {
            let frames = stacks.get(waiter).into_iter().flat_map(|s| s.frames.iter().take(MAX_HANDLE_FRAMES));
            let giver = givers.of(*lock, frames.clone(), &mut codes);
            if let Some(giver) = giver.clone().filter(|g| g.named) {
                self.awaited.insert(*lock, giver);
            }
            if giver.is_some() || givers.may_be_taken(*lock, frames, &mut codes) {
                self.own.insert(*lock);
            }
        }
        for (lock, holder) in held {
            let wants = |t: usize| wanted_by(waits, t).is_some_and(|l| l.addr == lock);
            let users = stacks.iter().filter(|(t, _)| **t == holder || wants(**t));
            let frames = users.flat_map(|(_, s)| s.frames.iter().take(MAX_HANDLE_FRAMES));
            let giver = givers.of(lock, frames, &mut codes);
            if giver.is_none() && !givers.incomplete {
                continue;
            }
            if let Some(giver) = giver.clone().filter(|g| g.named)
                && self.probable.contains_key(&lock)
            {
                // what comes by itself gives it back whoever took it
                if giver.pending {
                    self.probable.remove(&lock);
                }
                self.awaited.insert(lock, giver);
            }
            let handed = giver.is_some();
            let doubt = match &giver {
                Some(g) if !g.named => format!("{} gives back locks that it is handed", g.place),
                Some(g) => format!("{} gives it back without taking it", g.place),
                None => "the program's code could not be read to its end: some of it may give the lock back".to_owned(),
            };
            if self.permits.iter().any(|p| p.semaphore == lock) {
                self.released.insert(lock);
            } else if self.lendable.contains_key(&lock) {
                self.lent.extend(giver.is_some().then_some(lock));
            } else {
                // where nobody takes it by hand it was not given back under the block: another's block would show, or it be free
                let and_taken = giver.is_some_and(|g| g.taken_by_hand);
                let doubtful = and_taken || !handed;
                for w in self.witnessed.iter_mut().filter(|w| w.lock.addr == lock && doubtful) {
                    w.doubt.get_or_insert_with(|| doubt.clone());
                }
                self.given.entry(lock).or_insert(Given { how: doubt, and_taken });
            }
        }
    }
}

/// Which of the locks that are waited for others than their holders may give back, and how that is known.
///
/// A plain Lock is anyone's to release. Taken by hand it may be a signal, whatever code gives it; getattr and C code show no
/// names. Inside a `with` block it is not, as long as those who want it do so by `with` too: let in under a block that is
/// still entered, one of the two would release a lock that is free, and fail. The same holds for a function that gives back
/// what it takes. But who takes it by hand and keeps it may be waiting for somebody's signal. And where the program has both
/// code that gives the lock back and code that takes it by hand, a block may have called the one (`with unlocked(lock):`) and
/// another thread have it by the other.
fn find_returnable(
    inference: &Inference<'_>,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    witnessed: &[Witnessed],
    probable: &HashMap<Addr, Probable>,
    waits: &BTreeMap<usize, PyWait>,
    given: &BTreeMap<Addr, Given>,
) -> BTreeMap<Addr, String> {
    let mut out = BTreeMap::new();
    for (thread, lock) in waits.keys().filter_map(|t| Some((*t, wanted_by(waits, *t)?))) {
        if out.contains_key(&lock.addr) || !matches!(lock.kind, LockKind::Lock | LockKind::SemLock) {
            continue;
        }
        let block = witnessed.iter().find(|w| w.lock.addr == lock.addr);
        let taken = stacks.get(&thread).map_or(Taking::ByHand, |s| inference.taking(lock.addr, &s.frames));
        let how = match (block, probable.get(&lock.addr)) {
            (Some(Witnessed { shared: Some(how), .. }), _) => Some((*how).to_owned()),
            (Some(_), _) if lock.kind == LockKind::SemLock => None,
            (Some(_), _) => match (given.get(&lock.addr), taken) {
                (Some(given), _) if given.and_taken => Some(given.how.clone()),
                (_, Taking::ByWith) | (None, Taking::AndGiving) => None,
                (Some(given), _) => Some(given.how.clone()),
                (None, Taking::ByHand) => Some(
                    "who waits for it takes it by hand and gives it back nowhere in the same function, as one does who waits                      for a signal"
                        .to_owned(),
                ),
            },
            (None, Some(Probable { generator: Some(_), .. })) => {
                Some("whoever has the generator may go on with it".to_owned())
            }
            (None, None) if lock.kind == LockKind::Lock || !lock.lendable => None,
            (None, _) => given.get(&lock.addr).map(|g| g.how.clone()).or_else(|| {
                let who = if lock.lendable { "process" } else { "thread" };
                Some(format!("it was taken by hand, without `with`, and any {who} may give such a lock back"))
            }),
        };
        out.extend(how.map(|how| (lock.addr, how)));
    }
    out
}

/// Looks for the probable holders of the taken locks that nothing proves held.
fn infer(
    (inference, holds): (&Inference<'_>, &Holds<'_>),
    census: &Census,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    witnessed: &[Witnessed],
    waits: &BTreeMap<usize, PyWait>,
) -> HashMap<Addr, Probable> {
    let mut unproven: Vec<Addr> = waits
        .keys()
        .filter_map(|t| wanted_by(waits, *t))
        .filter_map(|lock| {
            let proven = lock.owner.is_some() || witnessed.iter().any(|w| w.lock.addr == lock.addr);
            (lock.kind == LockKind::Lock && lock.locked && !proven).then_some(lock.addr)
        })
        .collect();
    unproven.sort_unstable();
    unproven.dedup();
    unproven
        .into_iter()
        .filter_map(|lock| {
            let waits = |thread: usize| waits_for(waits, lock, thread);
            let by_hand = inference.holder(lock, stacks, &waits);
            let holder = by_hand.or_else(|| in_generator(holds, lock, stacks, census))?;
            inference.giver(lock, holder.thread, stacks, &waits).is_none().then_some((lock, holder))
        })
        .collect()
}

/// The one thread that has a suspended generator which is inside the block of `lock`.
fn in_generator(
    holds: &Holds<'_>,
    lock: Addr,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    census: &Census,
) -> Option<Probable> {
    let mut codes = census.codes.borrow_mut();
    let mut found: Vec<Probable> = Vec::new();
    for (thread, stack) in stacks {
        let mut frames = stack.frames.iter().take(MAX_HANDLE_FRAMES).enumerate();
        found.extend(frames.find_map(|(frame, framed)| {
            let (name, line) = holds.in_generators(framed, lock, &mut codes)?;
            Some(Probable { thread: *thread, frame, line, name: String::new(), generator: Some(name) })
        }));
    }
    if found.len() == 1 { found.pop() } else { None }
}

fn name_all(
    objects: &Objects<'_>,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    witnessed: &[Witnessed],
    waits: &BTreeMap<usize, PyWait>,
    attachments: &Attachments,
) -> HashMap<Addr, String> {
    let mut who: BTreeMap<Addr, Vec<usize>> = BTreeMap::new();
    for w in witnessed {
        who.entry(w.lock.addr).or_default().push(w.thread);
    }
    for (object, thread) in attachments.objects() {
        who.entry(object).or_default().push(thread);
    }
    for (thread, wait) in waits {
        let object = match &wait.wanted {
            Wanted::Lock(lock) => lock.addr,
            Wanted::Signal(signal) => signal.object,
            Wanted::ThreadEnd { .. } | Wanted::Import { .. } => continue,
        };
        let namers = who.entry(object).or_default();
        if namers.len() < MAX_NAMERS {
            namers.push(*thread);
        }
    }
    let names = Names::new(objects);
    who.into_iter()
        .filter_map(|(object, threads)| {
            let stacks: Vec<_> = threads.iter().filter_map(|t| stacks.get(t)).map(|s| s.frames.as_slice()).collect();
            Some((object, names.find(object, &stacks)?))
        })
        .collect()
}
