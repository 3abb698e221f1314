//! What threads of one process wait for and only another process can do: to end, to read a pipe that is full, to write to one
//! that is empty, to let go of a lock in shared memory or of a file.
//!
//! A decoder sees one process. Here those of a whole run are joined: the end of a child that is part of the run is up to its
//! threads, and room in a pipe to those who have its reading end open.

use super::{ANY_CHILD, BY_FCNTL, FILES, FOR_ROOM, OF_OPEN_FILE, PIPES};
use crate::facts::{Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, ResourceId, ResourceKind, Wakers};
use crate::snapshot::Snapshot;
use crate::target::Descriptor;
use crate::units::{Pid, ProcessIx, ThreadRef};
use std::collections::{BTreeMap, BTreeSet};

/// Threads of one process that are listed as able to do it, at most.
const MAX_THREADS: usize = 256;

/// What the machine tells of processes of the run and of others, beyond what was read of each.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// Who has the reading end of a pipe open, by inode: of pipes that somebody waits for room in.
    pub readers: BTreeMap<u64, BTreeSet<Pid>>,
    /// Who has the writing end of a pipe open: of pipes that somebody reads.
    pub writers: BTreeMap<u64, BTreeSet<Pid>>,
    /// Processes that may have any of these pipes open: relatives of the run whose descriptors could not all be read.
    pub unread: BTreeSet<Pid>,
    /// The signals each of these catches, as a mask; absent where that is not known.
    pub caught: BTreeMap<Pid, u64>,
    /// The children of processes of which a thread waits for any child.
    pub children: BTreeMap<Pid, Vec<Pid>>,
    /// Numbers of threads of our own PID namespace that are recorded as owners and had ended before this look began.
    pub gone: BTreeSet<i32>,
    /// Who waits for and who holds locks of files; where there was an earlier look, as it stood between the two.
    pub file_locks: Vec<FileLock>,
    /// Locks of files as they stood while all processes were held; only where a thread polls for one.
    pub locks_when_held: Vec<FileLock>,
    /// The inodes of the files whose locks threads poll for.
    pub polled: BTreeMap<ResourceId, u64>,
    /// The inodes of the FIFOs that threads blocked in `open` open.
    pub fifos: BTreeMap<ThreadRef, u64>,
    /// The places of stopped processes at their terminals.
    pub terminals: BTreeMap<Pid, super::stopped::Terminal>,
    /// Threads that did not move since the look before; absent where this is the first.
    pub still: Option<BTreeSet<ThreadRef>>,
}

/// A lock of a file, or a wait for one, as the kernel lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// What the holder and those that wait for it have in common.
    pub number: u64,
    /// Whether it is waited for, not held.
    pub blocked: bool,
    /// How it was taken.
    pub by: LockCall,
    /// The process that holds it or waits.
    pub process: Pid,
    /// The file's inode.
    pub inode: u64,
}

/// How a lock of a file is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockCall {
    /// `flock`: kept by all that share the open file.
    Flock,
    /// `fcntl` with `F_SETLK`, `lockf`: kept by one process.
    Fcntl,
}

/// What the facts of a run ask of the machine.
#[derive(Clone, Debug, Default)]
pub struct Questions {
    /// Whose reading ends.
    pub full: BTreeSet<u64>,
    /// Whose writing ends.
    pub empty: BTreeSet<u64>,
    /// Whether locks of files are waited for.
    pub file_locks: bool,
    /// Processes of which a thread waits for any child.
    pub parents: BTreeSet<ProcessIx>,
}

impl Questions {
    /// Those of one process's facts.
    #[must_use]
    pub fn of(facts: &Facts) -> Questions {
        let mut asked = Questions::default();
        for wait in &facts.waits {
            match wait.on {
                ResourceId::Shared { device: PIPES, inode, offset: FOR_ROOM } => drop(asked.full.insert(inode)),
                ResourceId::Shared { device: PIPES, inode, .. } => drop(asked.empty.insert(inode)),
                ResourceId::Numbered(_, ResourceKind::FileLock, _) => asked.file_locks = true,
                ResourceId::Numbered(p, ResourceKind::ProcessExit, ANY_CHILD) => drop(asked.parents.insert(p)),
                _ => {}
            }
        }
        asked
    }

    /// These and another process's.
    #[must_use]
    pub fn and(mut self, other: Questions) -> Questions {
        self.full.extend(other.full);
        self.empty.extend(other.empty);
        self.parents.extend(other.parents);
        self.file_locks |= other.file_locks;
        self
    }
}

/// The owners in shared memory that are no threads of the processes themselves.
#[must_use]
pub fn owners_elsewhere(facts: &Facts) -> BTreeSet<i32> {
    let elsewhere = |h: &Hold| match h.holder {
        Holder::Process(pid) if is_shared_memory(h.of) && h.certainty == Certainty::Recorded => Some(pid.0),
        _ => None,
    };
    facts.holds.iter().filter_map(elsewhere).collect()
}

fn is_shared_memory(id: ResourceId) -> bool {
    matches!(id, ResourceId::Shared { device, .. } if device != PIPES)
}

/// A lock in shared memory records its owner's tid; to the other process that is no thread of its own. Here it may be one of
/// the run's, if that shares the memory; or there is none such any more.
fn find_owners(snapshots: &[Snapshot], gone: &BTreeSet<i32>, facts: &mut Facts) {
    let mut by_tid: BTreeMap<i32, Vec<(usize, ThreadRef)>> = BTreeMap::new();
    for (p, snapshot) in snapshots.iter().enumerate() {
        for (thread, t) in snapshot.threads.iter().zip(threads_of(snapshots, p)) {
            by_tid.entry(thread.tid.0).or_default().push((p, t));
        }
    }
    let shares = |p: usize, id: ResourceId| match id {
        ResourceId::Shared { device, inode, .. } => snapshots
            .get(p)
            .is_some_and(|s| s.mappings.iter().any(|m| m.permissions.shared && (m.device, m.inode) == (device, inode))),
        _ => false,
    };
    let waiters: BTreeMap<ResourceId, ThreadRef> = facts.waits.iter().map(|w| (w.on, w.thread)).collect();
    for hold in &mut facts.holds {
        let Holder::Process(tid) = hold.holder else { continue };
        if !is_shared_memory(hold.of) || hold.certainty != Certainty::Recorded {
            continue;
        }
        let candidates: Vec<_> =
            by_tid.get(&tid.0).into_iter().flatten().filter(|(p, _)| shares(*p, hold.of)).collect();
        let waiter = waiters.get(&hold.of).copied();
        let ours = waiter.and_then(|t| snapshots.get(t.process.0 as usize)).is_some_and(is_of_our_namespace);
        match (candidates.as_slice(), waiter) {
            // of the same number in two namespaces either may be meant
            ([(_, one)], _) => hold.holder = Holder::Thread(*one),
            ([], Some(t)) if ours && gone.contains(&tid.0) => {
                hold.holder = Holder::Gone(t.process, crate::units::Tid(tid.0));
                hold.evidence.push(Evidence::new(format!("there was no thread {tid} any more when it was read")));
            }
            _ => {}
        }
    }
}

/// Whether the process calls its threads as we do.
fn is_of_our_namespace(snapshot: &Snapshot) -> bool {
    snapshot.threads.iter().all(|t| t.tid.0 == t.host_tid.0)
}

/// Adds who could end waits that are up to other processes.
pub fn join(snapshots: &[Snapshot], around: &Around, facts: &mut Facts) {
    find_owners(snapshots, &around.gone, facts);
    wake_the_unknown(facts);
    name_file_locks(snapshots, &around.file_locks, facts);
    super::opening::name_fifos(&around.fifos, facts);
    let wanted: BTreeSet<ResourceId> = facts.waits.iter().map(|w| w.on).collect();
    for id in wanted {
        let holds = match id {
            ResourceId::Shared { device: PIPES, inode, offset: FOR_ROOM } => {
                of_pipe(id, inode, snapshots, around.readers.get(&inode), around, "reading")
            }
            ResourceId::Shared { device: PIPES, inode, .. } => {
                let writers = around.writers.get(&inode);
                let may_be_interrupted = |pid: &Pid| catches_signals(*pid, snapshots, around, facts);
                match writers {
                    // a handler may write
                    Some(w) if w.iter().any(may_be_interrupted) => Vec::new(),
                    _ => of_pipe(id, inode, snapshots, writers, around, "writing"),
                }
            }
            ResourceId::Shared { device: FILES, .. } => of_file_lock(id, snapshots, around),
            ResourceId::Numbered(_, ResourceKind::FileLock, _) => of_polled_lock(id, snapshots, around, facts),
            ResourceId::Numbered(process, ResourceKind::ProcessExit, ANY_CHILD) => {
                of_any_child(id, process, snapshots, around)
            }
            ResourceId::Numbered(process, ResourceKind::ProcessExit, pid) => of_child(id, process, pid, snapshots),
            _ => continue,
        };
        if holds.is_empty() {
            continue;
        }
        let any = holds.iter().any(|h| h.mode == Mode::Any);
        facts.holds.extend(holds);
        for resource in facts.resources.iter_mut().filter(|r| r.id == id) {
            resource.wakers = Wakers::Holders;
            if matches!(id, ResourceId::Shared { device: FILES, .. })
                || matches!(id, ResourceId::Numbered(_, ResourceKind::FileLock, _))
            {
                // another opening of the same file is another taker
                resource.reentrancy = Reentrancy::Plain;
            }
        }
        for wait in facts.waits.iter_mut().filter(|w| any && w.on == id) {
            wait.mode = Mode::Any;
        }
    }
}

/// Of a futex that nobody knows more of than its address: who sleeps on another value than it has now has been woken, or will
/// find it changed. Who knows the lock behind a word knows better: some change under those who sleep on them.
fn wake_the_unknown(facts: &mut Facts) {
    let plain: BTreeSet<ResourceId> =
        facts.resources.iter().filter(|r| r.kind == ResourceKind::Futex).map(|r| r.id).collect();
    let told: BTreeSet<ResourceId> =
        facts.resources.iter().filter(|r| r.kind != ResourceKind::Futex).map(|r| r.id).collect();
    let known: BTreeSet<ThreadRef> =
        facts.waits.iter().filter(|w| told.contains(&w.on) || !plain.contains(&w.on)).map(|w| w.thread).collect();
    facts.woken.extend(facts.changed.difference(&known));
}

/// Signals whose handlers run for what the thread itself does, or are libc's own (32 and 33).
const NO_SURPRISE: u64 = bit(4) | bit(5) | bit(6) | bit(7) | bit(8) | bit(11) | bit(13) | bit(31) | bit(32) | bit(33);
const SIGINT: u32 = 2;

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Whether a signal may make the process run a function of its own, whatever its threads wait for.
fn catches_signals(pid: Pid, snapshots: &[Snapshot], around: &Around, facts: &Facts) -> bool {
    let Some(caught) = around.caught.get(&pid) else { return true };
    let index = snapshots.iter().position(|s| s.process.pid == pid).and_then(|i| u32::try_from(i).ok());
    // the interpreter catches SIGINT for KeyboardInterrupt; it tells whether the program has handlers
    let handlers = index.and_then(|i| facts.handlers.get(&ProcessIx(i)));
    let interpreters = if handlers.is_some_and(Vec::is_empty) { bit(SIGINT) } else { 0 };
    caught & !NO_SURPRISE & !interpreters != 0
}

fn threads_of(snapshots: &[Snapshot], index: usize) -> impl Iterator<Item = ThreadRef> + '_ {
    let n = snapshots.get(index).map_or(0, |s| s.threads.len());
    let process = ProcessIx(u32::try_from(index).unwrap_or(u32::MAX));
    (0..n).map(move |t| ThreadRef { process, thread: u32::try_from(t).unwrap_or(u32::MAX) })
}

fn hold(of: ResourceId, holder: Holder, certainty: Certainty, why: &str) -> Hold {
    Hold {
        holder,
        of,
        mode: Mode::Any,
        certainty,
        taken_at: None,
        taken_at_managed: None,
        evidence: vec![Evidence::new(why)],
    }
}

/// Each thread of a process as one that could do it. Where the list is cut the process as a whole stands for the rest: of the
/// threads that are not listed nothing is known.
fn holds_by(of: ResourceId, snapshots: &[Snapshot], index: usize, certainty: Certainty, why: &str) -> Vec<Hold> {
    let mut out: Vec<Hold> =
        threads_of(snapshots, index).take(MAX_THREADS).map(|t| hold(of, Holder::Thread(t), certainty, why)).collect();
    let cut = snapshots.get(index).filter(|s| s.threads.len() > MAX_THREADS);
    out.extend(cut.map(|s| {
        let rest = format!("it is one of the threads of process {} that are not listed here", s.process.pid);
        hold(of, Holder::Process(s.process.pid), Certainty::Inferred, &rest)
    }));
    out
}

/// The end of a child is up to its threads, where it is part of the run.
fn of_child(id: ResourceId, process: ProcessIx, pid: u64, snapshots: &[Snapshot]) -> Vec<Hold> {
    // a number of another PID namespace names another process here: there the parent must be known
    let parent = snapshots.get(process.0 as usize);
    let is_it = |s: &Snapshot| {
        let leader = s.threads.iter().find(|t| t.host_tid.0 == s.process.pid.0);
        let named = leader.is_some_and(|t| u64::try_from(t.tid.0) == Ok(pid));
        let ours = s.process.parent.as_ref().map(|p| p.pid) == parent.map(|p| p.process.pid);
        named && (ours || (is_of_our_namespace(s) && parent.is_some_and(is_of_our_namespace)))
    };
    let Some(child) = snapshots.iter().position(is_it) else { return Vec::new() };
    let why = format!("it is a thread of process {pid}, the end of which is waited for");
    holds_by(id, snapshots, child, Certainty::Recorded, &why)
}

/// The end of any child ends the wait.
fn of_any_child(id: ResourceId, process: ProcessIx, snapshots: &[Snapshot], around: &Around) -> Vec<Hold> {
    let parent = snapshots.get(process.0 as usize).map(|s| s.process.pid);
    let mut out = Vec::new();
    for pid in parent.and_then(|p| around.children.get(&p)).into_iter().flatten() {
        match snapshots.iter().position(|s| s.process.pid == *pid) {
            Some(child) => {
                let why = format!("it is a thread of process {pid}, a child, and the end of any child is waited for");
                out.extend(holds_by(id, snapshots, child, Certainty::Recorded, &why));
            }
            None => {
                let why = format!("process {pid}, which is not looked at, is a child");
                out.push(hold(id, Holder::Process(*pid), Certainty::Inferred, &why));
            }
        }
    }
    out
}

/// Room in a pipe is made by whoever has its reading end open; something to read by whoever has the writing end.
fn of_pipe(
    id: ResourceId,
    inode: u64,
    snapshots: &[Snapshot],
    who: Option<&BTreeSet<Pid>>,
    around: &Around,
    end: &str,
) -> Vec<Hold> {
    let mut out = Vec::new();
    let Some(who) = who else { return out };
    for pid in around.unread.iter().filter(|p| !who.contains(*p)) {
        let why = format!(
            "process {pid}, whose descriptors could not all be read, may have the {end} end of pipe {inode} open"
        );
        out.push(hold(id, Holder::Process(*pid), Certainty::Inferred, &why));
    }
    for pid in who {
        let Some(index) = snapshots.iter().position(|s| s.process.pid == *pid) else {
            let why = format!("process {pid}, which is not looked at, has the {end} end of pipe {inode} open");
            out.push(hold(id, Holder::Process(*pid), Certainty::Inferred, &why));
            continue;
        };
        let open = snapshots.get(index).map(|s| &s.process.descriptors);
        let has = |d: &Descriptor| d.pipe == Some(inode) && if end == "reading" { d.reads } else { d.writes };
        let fd = open.and_then(|o| o.iter().find(|(_, d)| has(d))).map(|(fd, _)| *fd);
        let fd = fd.map_or_else(String::new, |fd| format!(" as fd {fd}"));
        let alone = if who.len() == 1 && around.unread.is_empty() { ", and no other process has" } else { "" };
        let why = format!("it is a thread of process {pid}, which has the {end} end of pipe {inode} open{fd}{alone}");
        out.extend(holds_by(id, snapshots, index, Certainty::Inferred, &why));
    }
    out
}

/// Gives waits for locks of files the name of the lock, where the kernel's list says which it is.
fn name_file_locks(snapshots: &[Snapshot], locks: &[FileLock], facts: &mut Facts) {
    let mut names: BTreeMap<ResourceId, ResourceId> = BTreeMap::new();
    for wait in &facts.waits {
        let ResourceId::Numbered(p, ResourceKind::FileLock, number) = wait.on else { continue };
        let Some(pid) = snapshots.get(p.0 as usize).map(|s| s.process.pid) else { continue };
        if number & OF_OPEN_FILE != 0 || facts.polled.contains_key(&wait.on) {
            continue;
        }
        let by = if number & BY_FCNTL == 0 { LockCall::Flock } else { LockCall::Fcntl };
        let mut blocked = locks.iter().filter(|l| l.blocked && l.process == pid && l.by == by);
        let Some(first) = blocked.next() else { continue };
        // threads of one process may wait for several: nothing tells which waits for which
        if blocked.all(|l| l.number == first.number) {
            let offset = u64::from(by == LockCall::Fcntl) << 32 | first.number;
            names.insert(wait.on, ResourceId::Shared { device: FILES, inode: first.inode, offset });
        }
    }
    for wait in &mut facts.waits {
        wait.on = names.get(&wait.on).copied().unwrap_or(wait.on);
    }
    for resource in &mut facts.resources {
        resource.id = names.get(&resource.id).copied().unwrap_or(resource.id);
    }
}

/// Who keeps a lock of a file, by the kernel's list. That was read while the process ran: proof only where it has one thread,
/// which stood still from before to after.
fn of_file_lock(id: ResourceId, snapshots: &[Snapshot], around: &Around) -> Vec<Hold> {
    let ResourceId::Shared { offset, .. } = id else { return Vec::new() };
    let number = offset & u64::from(u32::MAX);
    let locks = around.file_locks.iter().filter(|l| l.number == number && !l.blocked);
    // what a thread did since is not known
    let still = |t: &ThreadRef| around.still.as_ref().map(|still| still.contains(t));
    holds_of_locks(id, snapshots, locks, still)
}

/// Who keeps the lock of a file that a thread polls for. One that polls does not let go of it meanwhile.
fn of_polled_lock(id: ResourceId, snapshots: &[Snapshot], around: &Around, facts: &Facts) -> Vec<Hold> {
    let Some(inode) = around.polled.get(&id).filter(|_| facts.polled.get(&id).is_some_and(|f| !f.by_existence)) else {
        return Vec::new();
    };
    let locks = around.locks_when_held.iter().filter(|l| l.inode == *inode && !l.blocked);
    // who holds it was held as well
    let still = |_: &ThreadRef| Some(true);
    holds_of_locks(id, snapshots, locks, still)
}

/// Holds by the processes that the kernel's list names. `still`: whether a thread did nothing since the list was read;
/// `None` where that is not known.
fn holds_of_locks<'a>(
    id: ResourceId,
    snapshots: &[Snapshot],
    locks: impl Iterator<Item = &'a FileLock>,
    still: impl Fn(&ThreadRef) -> Option<bool>,
) -> Vec<Hold> {
    let mut out = Vec::new();
    for lock in locks {
        let what = match lock.by {
            LockCall::Flock => "flock",
            LockCall::Fcntl => "fcntl",
        };
        let pid = lock.process;
        let why = format!("/proc/locks names process {pid} as the one that took it, by {what}");
        let Some(index) = snapshots.iter().position(|s| s.process.pid == pid) else {
            out.push(Hold { mode: Mode::Exclusive, ..hold(id, Holder::Process(pid), Certainty::Recorded, &why) });
            continue;
        };
        let threads: Vec<ThreadRef> = threads_of(snapshots, index).collect();
        match threads.as_slice() {
            [one] if still(one) == Some(true) => {
                out.push(Hold { mode: Mode::Exclusive, ..hold(id, Holder::Thread(*one), Certainty::Recorded, &why) });
            }
            [first, ..] if still(first).is_none() => {}
            _ => out.extend(holds_by(id, snapshots, index, Certainty::Inferred, &why)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_of_faults_are_no_surprise() {
        assert_eq!(NO_SURPRISE & bit(SIGINT), 0);
        let of = |mask: u64| {
            let around = Around { caught: BTreeMap::from([(Pid(7), mask)]), ..Around::default() };
            catches_signals(Pid(7), &[], &around, &Facts::default())
        };
        assert!(!of(0) && !of(bit(11) | bit(32)) && of(bit(10)) && of(bit(SIGINT)) && of(bit(17)));
        assert!(catches_signals(Pid(8), &[], &Around::default(), &Facts::default()), "what is not known may be so");
    }
}
