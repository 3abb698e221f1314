//! Python locks as facts: who waits for which, who holds which, and what they are called.

use super::facts::Telling;
use super::holds::Witnessed;
use super::inferred::Probable;
use super::locks::{Lock, LockKind, Sleep};
use super::place::Framed;
use super::waits::{PyWait, Signal, Wanted};
use crate::facts::{
    Certainty, Evidence, Facts, GilRole, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, TakenAt,
    Timeout, Wait, Wakers,
};
use crate::units::{Addr, FrameIx, Tid};
use std::collections::BTreeMap;

/// Frames between a read of a pipe, or the wait for the turn to read, and the `get` of the queue.
const MAX_READER_FRAMES: usize = 8;

impl Telling<'_> {
    /// Tells of every lock that a thread waits for or proves to hold.
    pub(super) fn tell_locks(&self, roles: &BTreeMap<usize, GilRole>, facts: &mut Facts) {
        let mut locks: BTreeMap<Addr, Lock> = BTreeMap::new();
        for w in &self.scene.witnessed {
            locks.insert(w.lock.addr, w.lock.clone());
        }
        let mut told: Vec<ResourceId> = Vec::new();
        for (index, wait) in &self.scene.waits {
            if roles.get(index) == Some(&GilRole::Waits) || self.scene.attachments.parked.contains_key(index) {
                continue;
            }
            if wait.over {
                facts.woken.insert(self.thread(*index));
            }
            if let Some(pooled) = self.tell_future(*index, wait, &mut told, facts) {
                facts.waits.push(pooled);
                continue;
            }
            let Some(on) = self.wanted(wait, &mut locks, &mut told, facts) else { continue };
            facts.waits.push(self.wait(*index, wait, on));
        }
        for lock in locks.values() {
            self.tell_lock(lock, facts);
        }
    }

    pub(super) fn wait(&self, index: usize, wait: &PyWait, on: ResourceId) -> Wait {
        let natives = self.natives.get(&index);
        // the loop that runs the program's own frame; without merged stacks the innermost there is, or at least the interpreter
        let frame = natives
            .and_then(|n| n.get(wait.frame).copied().flatten())
            .or_else(|| self.innermost_loop(index))
            .or_else(|| self.innermost_own_frame(index))
            .unwrap_or(FrameIx(0));
        Wait {
            thread: self.thread(index),
            on,
            mode: match wait.wanted {
                Wanted::Signal(_) => Mode::Any,
                _ => Mode::Exclusive,
            },
            timeout: if wait.timeout { Timeout::Some } else { Timeout::None },
            frame,
            managed_frame: u32::try_from(wait.frame).ok(),
            evidence: wait.evidence.iter().map(|e| Evidence::new(e.as_str())).chain(self.will_be_given(wait)).collect(),
        }
    }

    /// What gives back a lock that is used as a signal.
    fn will_be_given(&self, wait: &PyWait) -> Option<Evidence> {
        let Wanted::Lock(lock) = &wait.wanted else { return None };
        let giver = self.scene.awaited.get(&lock.addr)?;
        let when = if giver.pending { ", when its signal or its time comes" } else { "" };
        Some(Evidence::new(format!("{} gives the lock back without taking it{when}", giver.place)))
    }

    /// The resource of a wait; tells of those that are no lock objects.
    fn wanted(
        &self,
        wait: &PyWait,
        locks: &mut BTreeMap<Addr, Lock>,
        told: &mut Vec<ResourceId>,
        facts: &mut Facts,
    ) -> Option<ResourceId> {
        let at = |a: Addr| ResourceId::At(self.view.process, a);
        match &wait.wanted {
            Wanted::Lock(lock) => {
                locks.entry(lock.addr).or_insert_with(|| lock.clone());
                Some(self.id_of(lock))
            }
            Wanted::Signal(signal) => {
                let id = at(signal.part.map_or(signal.object, |(condition, _)| condition));
                if !told.contains(&id) {
                    told.push(id);
                    let name = match self.scene.names.get(&signal.object) {
                        Some(name) => format!("{} {name}", signal.type_name),
                        None => signal.type_name.clone(),
                    };
                    facts.resources.push(Resource {
                        id,
                        kind: signal.kind,
                        name: Some(signal.part.map_or(name.clone(), |(_, part)| format!("{part} {name}"))),
                        address: Some(signal.object),
                        reentrancy: Reentrancy::Unknown,
                        wakers: if self.is_exhausted(signal) { Wakers::Holders } else { Wakers::AnyThread },
                        idle: signal.idle,
                    });
                    facts.holds.extend(self.permits(signal, id));
                }
                Some(id)
            }
            Wanted::ThreadEnd { ident } => {
                let index = self.scene.places.by_ident(*ident)?;
                let id = ResourceId::ThreadExit(self.thread(index));
                if !told.contains(&id) {
                    told.push(id);
                    facts.resources.push(Resource {
                        id,
                        kind: ResourceKind::PythonThread,
                        name: Some(match self.name_of_thread(index) {
                            Some(name) => format!("the end of thread {} \"{name}\"", self.tid(index)),
                            None => format!("the end of thread {}", self.tid(index)),
                        }),
                        address: None,
                        reentrancy: Reentrancy::Plain,
                        wakers: Wakers::Holders,
                        idle: false,
                    });
                    facts.holds.push(Hold {
                        holder: Holder::Thread(self.thread(index)),
                        of: id,
                        mode: Mode::Exclusive,
                        certainty: Certainty::Recorded,
                        taken_at: None,
                        taken_at_managed: None,
                        evidence: vec![Evidence::new(format!(
                            "the joined Thread's ident {ident:#x} is the pthread of thread {}",
                            self.tid(index)
                        ))],
                    });
                }
                Some(id)
            }
            Wanted::Import { lock, module, owner } => {
                let id = at(*lock);
                if !told.contains(&id) {
                    told.push(id);
                    self.tell_import(id, *lock, module.as_deref(), *owner, facts);
                }
                Some(id)
            }
        }
    }

    /// Whether all permits of a semaphore are known to be in `with` blocks: it counts how many there were, and nobody's code
    /// gives one back by hand.
    fn is_exhausted(&self, signal: &Signal) -> bool {
        let o = self.objects;
        let count = |name: &str| o.attribute(signal.object, name).and_then(|v| o.int(v).ok());
        let held = self.scene.permits.iter().filter(|p| p.semaphore == signal.object).count() as u64;
        signal.kind == ResourceKind::PythonSemaphore
            && !self.scene.released.contains(&signal.object)
            && count("_value") == Some(0)
            && count("_initial_value").is_some_and(|n| n > 0 && n == held)
    }

    /// Who is inside the `with` block of a semaphore: each has a permit, and any of them could give one.
    fn permits<'s>(&'s self, signal: &'s Signal, id: ResourceId) -> impl Iterator<Item = Hold> + 's {
        let mine = self.scene.permits.iter().filter(|p| p.semaphore == signal.object);
        mine.map(move |p| {
            let framed = self.scene.stacks.get(&p.thread).and_then(|s| s.frames.get(p.frame));
            let function = framed.and_then(|f| f.code.as_ref()).map_or("?", |c| c.function.as_str());
            Hold {
                holder: Holder::Thread(self.thread(p.thread)),
                of: id,
                mode: Mode::Any,
                certainty: Certainty::Witnessed,
                taken_at: None,
                taken_at_managed: u32::try_from(p.frame).ok().map(|frame| TakenAt { frame, line: p.line }),
                evidence: vec![Evidence::new(format!(
                    "thread {} is inside a `with` block of {function} that took one of its permits",
                    self.tid(p.thread)
                ))],
            }
        })
    }

    fn tell_import(&self, id: ResourceId, lock: Addr, module: Option<&str>, owner: Option<u64>, facts: &mut Facts) {
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::PythonImportLock,
            name: module.map(|m| format!("import lock of {m}")),
            address: Some(lock),
            reentrancy: Reentrancy::Recursive,
            wakers: Wakers::Holders,
            idle: false,
        });
        let Some(index) = owner.and_then(|o| self.scene.places.by_ident(o)) else { return };
        let taken_at =
            self.scene.stacks.get(&index).and_then(|s| {
                s.frames.iter().position(|f| f.code.as_ref().is_some_and(|c| c.name == "_find_and_load"))
            });
        facts.holds.push(Hold {
            holder: Holder::Thread(self.thread(index)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: taken_at.and_then(|i| Some(TakenAt { frame: u32::try_from(i).ok()?, line: None })),
            evidence: vec![Evidence::new(format!("_ModuleLock.owner is the ident of thread {}", self.tid(index)))],
        });
    }

    /// Shared memory is named by its file, so that two processes meet.
    fn id_of(&self, lock: &Lock) -> ResourceId {
        if let (LockKind::SemLock | LockKind::Semaphore, Some(Sleep::Semaphore(sem))) = (lock.kind, lock.sleep)
            && let Some(m) = self.view.snapshot.mapping_at(sem)
            && m.permissions.shared
            && m.inode != 0
        {
            let offset = m.offset.wrapping_add(sem.0.wrapping_sub(m.start.0));
            return ResourceId::Shared { device: m.device, inode: m.inode, offset };
        }
        ResourceId::At(self.view.process, lock.addr)
    }

    fn tell_lock(&self, lock: &Lock, facts: &mut Facts) {
        let id = self.id_of(lock);
        let name = match (self.scene.names.get(&lock.addr), lock.kind) {
            (Some(name), _) => name.clone(),
            (None, _) => lock.type_name.to_owned(),
        };
        let awaited = self.scene.awaited.get(&lock.addr);
        // another process has it: nothing here says how that one gets on
        let elsewhere = lock.kind == LockKind::SemLock && lock.locked && (lock.owner.is_none() || self.is_copied());
        facts.resources.push(Resource {
            id,
            kind: match lock.kind {
                LockKind::Lock => ResourceKind::PythonLock,
                LockKind::RLock => ResourceKind::PythonRlock,
                LockKind::Buffered => ResourceKind::PythonIoLock,
                LockKind::SemLock => ResourceKind::PythonLock,
                LockKind::Semaphore => ResourceKind::PythonSemaphore,
                LockKind::SimpleQueue => ResourceKind::PythonQueue,
            },
            name: Some(name),
            address: Some(lock.addr),
            reentrancy: match lock.kind {
                LockKind::Lock => Reentrancy::Plain,
                LockKind::RLock => Reentrancy::Recursive,
                // a thread that enters it again gets an error, not a hang
                LockKind::Buffered => Reentrancy::Recursive,
                LockKind::SemLock | LockKind::Semaphore | LockKind::SimpleQueue => Reentrancy::Unknown,
            },
            wakers: match lock.kind {
                LockKind::SimpleQueue => Wakers::AnyThread,
                LockKind::Semaphore => Wakers::Outside,
                // where a core does not tell which memory is shared, no other process's hold will meet it
                LockKind::SemLock if elsewhere && matches!(id, ResourceId::At(..)) => Wakers::Outside,
                _ => match awaited.filter(|_| !self.scene.probable.contains_key(&lock.addr)) {
                    Some(giver) if giver.pending => Wakers::Outside,
                    Some(_) => Wakers::AnyThread,
                    None => Wakers::Holders,
                },
            },
            idle: matches!(lock.kind, LockKind::SimpleQueue | LockKind::Semaphore)
                || awaited.is_some()
                || elsewhere
                || self.is_readers_turn(lock),
        });
        facts.returnable.extend(self.scene.returnable.get(&lock.addr).map(|how| (id, how.clone())));
        let blocks: Vec<&Witnessed> = self.scene.witnessed.iter().filter(|w| w.lock.addr == lock.addr).collect();
        match lock.owner {
            Some(ident) => facts.holds.extend(self.recorded(lock, id, ident, &blocks)),
            None if lock.locked && blocks.is_empty() => {
                let probable = self.scene.probable.get(&lock.addr).map(|p| self.by_inference(p, id));
                facts.holds.extend(probable.or_else(|| self.inherited(lock, id)));
            }
            None if lock.locked => facts.holds.extend(blocks.iter().map(|w| self.by_block(w, id))),
            None => {}
        }
    }

    /// Whether a lock is that of a queue between processes, for which its readers wait their turn: one of them waits in the
    /// pipe under it, as long as there is nothing to read.
    fn is_readers_turn(&self, lock: &Lock) -> bool {
        let gets = |index: &usize| {
            let frames = self.scene.stacks.get(index).map_or(&[][..], |s| s.frames.as_slice());
            frames.iter().take(MAX_READER_FRAMES).any(|f| f.is("queues.py", "get"))
        };
        let waits =
            self.scene.waits.iter().filter(|(_, w)| matches!(&w.wanted, Wanted::Lock(l) if l.addr == lock.addr));
        let holds = self.scene.witnessed.iter().filter(|w| w.lock.addr == lock.addr).map(|w| &w.thread);
        lock.kind == LockKind::SemLock && waits.map(|(index, _)| index).chain(holds).any(gets)
    }

    /// A hold that the lock itself records.
    fn recorded(&self, lock: &Lock, id: ResourceId, ident: u64, blocks: &[&Witnessed]) -> Option<Hold> {
        let index = match self.scene.places.owner(self.objects, self.view.snapshot, ident)? {
            Ok(index) => index,
            Err(gone) => return Some(self.left_behind(lock, id, ident, gone)),
        };
        let block = blocks.iter().find(|w| w.thread == index);
        // what the parent had taken at the fork is counted in the copy, too, and its frames are there
        let copied = lock.kind == LockKind::SemLock && self.is_copied();
        if copied || (lock.lendable && block.is_none() && self.scene.lent.contains(&lock.addr)) {
            return None;
        }
        let mut evidence = vec![Evidence::new(format!(
            "the owner field of the {} at {} is {ident:#x}, the ident of thread {}",
            lock.type_name,
            lock.addr,
            self.tid(index)
        ))];
        evidence.extend(block.map(|w| self.block_evidence(w)));
        let lent = lock.lendable && block.is_none();
        if lent {
            evidence.push(Evidence::new(
                "inferred, since any process may give such a lock back, and its taker does not see it",
            ));
        }
        Some(Hold {
            holder: Holder::Thread(self.thread(index)),
            of: id,
            mode: Mode::Exclusive,
            certainty: if lent { Certainty::Inferred } else { Certainty::Recorded },
            taken_at: None,
            taken_at_managed: block.and_then(|w| taken_at(w)),
            evidence,
        })
    }

    /// Whether this process is the copy of another one, in which `multiprocessing` has not forgotten what that one holds.
    fn is_copied(&self) -> bool {
        let mut stacks = self.scene.stacks.values();
        // or a package made after it
        let bootstraps =
            |f: &Framed| f.code.as_ref().is_some_and(|c| c.name == "_bootstrap" && c.file_name() == "process.py");
        self.view.snapshot.process.forked == Some(true) && !stacks.any(|s| s.frames.iter().any(bootstraps))
    }

    /// A hold by a thread that is not in this process; its id is 0 where nothing tells it.
    fn left_behind(&self, lock: &Lock, id: ResourceId, ident: u64, tid: Tid) -> Hold {
        let who = if tid.0 == 0 { "a thread".to_owned() } else { format!("thread {tid}") };
        Hold {
            holder: Holder::Gone(self.view.process, tid),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!(
                "the owner field of the {} at {} is {ident:#x}, the ident of {who} that is not in this process",
                lock.type_name, lock.addr
            ))],
        }
    }

    /// Who held an owner-less lock that the only thread of a forked process waits for: a thread of the parent, where nobody
    /// here can have taken it or could give it back. One of `multiprocessing` is every process's, and no orphan by the fork.
    fn inherited(&self, lock: &Lock, id: ResourceId) -> Option<Hold> {
        let snapshot = self.view.snapshot;
        let alone = snapshot.process.forked == Some(true) && snapshot.threads.len() == 1;
        if lock.kind != LockKind::Lock || !alone {
            return None;
        }
        // what else could happen to it: a signal, whose handler gives it back
        let unhandled = self.census.handlers.as_ref().is_some_and(Vec::is_empty);
        let why = match (unhandled, self.scene.own.contains(&lock.addr)) {
            (true, _) => "no signal has a handler in Python",
            (false, false) => "no code of the program takes it but by `with`, or gives it back",
            (false, true) => return None,
        };
        Some(Hold {
            holder: Holder::Gone(self.view.process, Tid(0)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Inferred,
            taken_at: None,
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!(
                "the {} at {} is taken; this process was forked without an exec, has this one thread, and no frame \
                 of it has taken the lock; {why}",
                lock.type_name, lock.addr
            ))],
        })
    }

    /// A hold that the holder's own stack proves.
    fn by_block(&self, w: &Witnessed, id: ResourceId) -> Hold {
        Hold {
            holder: Holder::Thread(self.thread(w.thread)),
            of: id,
            mode: Mode::Exclusive,
            certainty: if w.doubt.is_some() { Certainty::Inferred } else { Certainty::Witnessed },
            taken_at: None,
            taken_at_managed: taken_at(w),
            evidence: vec![self.block_evidence(w)],
        }
    }

    /// A hold that is the likeliest reading of the holder's code.
    fn by_inference(&self, p: &Probable, id: ResourceId) -> Hold {
        let framed = self.scene.stacks.get(&p.thread).and_then(|s| s.frames.get(p.frame));
        let code = framed.and_then(|f| f.code.as_ref());
        let (function, file) = code.map_or(("?", "?"), |c| (c.function.as_str(), c.file_name()));
        let line = p.line.map(|l| format!(":{l}")).unwrap_or_default();
        let how = match &p.generator {
            Some(generator) => format!(
                "{function} in thread {} has the generator {generator}, which is suspended inside the `with` block of the lock \
                 at line {}; no other thread has it",
                self.tid(p.thread),
                p.line.map_or("?".to_owned(), |l| l.to_string()),
            ),
            None => format!(
                "{function} ({file}{line}) in thread {} calls acquire on `{}` before where it stands, without a \
                 release since; no other thread's code does, and the lock is taken",
                self.tid(p.thread),
                p.name
            ),
        };
        Hold {
            holder: Holder::Thread(self.thread(p.thread)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Inferred,
            taken_at: None,
            // what a generator took its own frame took, which is not on the stack
            taken_at_managed: (p.generator.is_none())
                .then(|| Some(TakenAt { frame: u32::try_from(p.frame).ok()?, line: p.line }))
                .flatten(),
            evidence: vec![Evidence::new(how)],
        }
    }

    fn block_evidence(&self, w: &Witnessed) -> Evidence {
        let framed = self.scene.stacks.get(&w.thread).and_then(|s| s.frames.get(w.frame));
        let code = framed.and_then(|f| f.code.as_ref());
        let function = code.map_or("?", |c| c.function.as_str());
        let place = match (code, w.line) {
            (Some(code), Some(line)) => format!(" at {}:{line}", code.file_name()),
            _ => String::new(),
        };
        let via = w.via.as_ref().map(|v| format!(", through {v}")).unwrap_or_default();
        let doubt = w.doubt.as_ref().map(|d| format!("; inferred, since {d}")).unwrap_or_default();
        Evidence::new(format!(
            "thread {} is inside the `with` block of {function}{place}: its value stack keeps the lock's exit method{via}{doubt}",
            self.tid(w.thread)
        ))
    }
}

fn taken_at(w: &Witnessed) -> Option<TakenAt> {
    Some(TakenAt { frame: u32::try_from(w.frame).ok()?, line: w.line })
}
