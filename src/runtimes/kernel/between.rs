//! What threads of one process wait for and only another process can do: to end, to read a pipe that is full.
//!
//! A decoder sees one process. Here those of a whole run are joined: the end of a child that is part of the run is up to its
//! threads, and room in a pipe to those who have its reading end open.

use super::{FOR_ROOM, PIPES};
use crate::facts::{Certainty, Evidence, Facts, Hold, Holder, Mode, ResourceId, ResourceKind, Wakers};
use crate::snapshot::Snapshot;
use crate::units::{Pid, ProcessIx, ThreadRef};
use std::collections::{BTreeMap, BTreeSet};

/// Threads of one process that are listed as able to do it, at most.
const MAX_THREADS: usize = 256;

/// The pipes that threads of the run wait for room in, by inode.
#[must_use]
pub fn full_pipes(facts: &Facts) -> BTreeSet<u64> {
    facts.waits.iter().filter_map(|w| full_pipe(w.on)).collect()
}

fn full_pipe(id: ResourceId) -> Option<u64> {
    match id {
        ResourceId::Shared { device: PIPES, inode, offset: FOR_ROOM } => Some(inode),
        _ => None,
    }
}

/// A lock in shared memory records its owner's tid; to the other process that is no thread of its own. Here it may be one of
/// the run's.
fn find_owners(snapshots: &[Snapshot], facts: &mut Facts) {
    let mut by_tid: BTreeMap<i32, Vec<ThreadRef>> = BTreeMap::new();
    for (p, snapshot) in snapshots.iter().enumerate() {
        for (thread, t) in snapshot.threads.iter().zip(threads_of(snapshots, p)) {
            by_tid.entry(thread.tid.0).or_default().push(t);
        }
    }
    for hold in &mut facts.holds {
        if let (Holder::Process(tid), ResourceId::Shared { .. }, Certainty::Recorded) =
            (hold.holder, hold.of, hold.certainty)
            // of the same number in two namespaces either may be meant
            && let Some([one]) = by_tid.get(&tid.0).map(Vec::as_slice)
        {
            hold.holder = Holder::Thread(*one);
        }
    }
}

/// Adds who could end such waits. `readers`: every process known to have the reading end of a pipe open.
pub fn join(snapshots: &[Snapshot], readers: &BTreeMap<u64, BTreeSet<Pid>>, facts: &mut Facts) {
    find_owners(snapshots, facts);
    let wanted: BTreeSet<ResourceId> = facts.waits.iter().map(|w| w.on).collect();
    for id in wanted {
        let holds = match (id, full_pipe(id)) {
            (_, Some(inode)) => of_pipe(id, inode, snapshots, readers.get(&inode)),
            (ResourceId::Numbered(process, ResourceKind::ProcessExit, pid), _) => of_child(id, process, pid, snapshots),
            _ => continue,
        };
        if holds.is_empty() {
            continue;
        }
        facts.holds.extend(holds);
        for resource in facts.resources.iter_mut().filter(|r| r.id == id) {
            resource.wakers = Wakers::Holders;
        }
        for wait in facts.waits.iter_mut().filter(|w| w.on == id) {
            wait.mode = Mode::Any;
        }
    }
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
    let plain = |s: &Snapshot| s.threads.iter().all(|t| t.tid.0 == t.host_tid.0);
    let is_it = |s: &Snapshot| {
        let leader = s.threads.iter().find(|t| t.host_tid.0 == s.process.pid.0);
        let named = leader.is_some_and(|t| u64::try_from(t.tid.0) == Ok(pid));
        let ours = s.process.parent.as_ref().map(|p| p.pid) == parent.map(|p| p.process.pid);
        named && (ours || (plain(s) && parent.is_some_and(plain)))
    };
    let Some(child) = snapshots.iter().position(is_it) else { return Vec::new() };
    let why = format!("it is a thread of process {pid}, the end of which is waited for");
    holds_by(id, snapshots, child, Certainty::Recorded, &why)
}

/// Room in a pipe is made by whoever has its reading end open.
fn of_pipe(id: ResourceId, inode: u64, snapshots: &[Snapshot], readers: Option<&BTreeSet<Pid>>) -> Vec<Hold> {
    let mut out = Vec::new();
    let Some(readers) = readers else { return out };
    for pid in readers {
        let Some(index) = snapshots.iter().position(|s| s.process.pid == *pid) else {
            let why = format!("process {pid}, which is not looked at, has the reading end of pipe {inode} open");
            out.push(hold(id, Holder::Process(*pid), Certainty::Inferred, &why));
            continue;
        };
        let open = snapshots.get(index).map(|s| &s.process.descriptors);
        let fd = open.and_then(|o| o.iter().find(|(_, d)| d.reads && d.pipe == Some(inode))).map(|(fd, _)| *fd);
        let fd = fd.map_or_else(String::new, |fd| format!(" as fd {fd}"));
        let alone = if readers.len() == 1 { ", and no other process has" } else { "" };
        let why = format!("it is a thread of process {pid}, which has the reading end of pipe {inode} open{fd}{alone}");
        out.extend(holds_by(id, snapshots, index, Certainty::Inferred, &why));
    }
    out
}
