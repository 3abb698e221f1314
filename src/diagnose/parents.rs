//! Locks of Python that a fork copied while a thread held them: that thread is in the parent, and so is its `with` line.
//!
//! The parent is read like any process that is not stopped, if it still is the program that forked. What it shows is of
//! now; what the child's copy says is of the fork.

use super::{Captured, How, Options, Prepared, Understood, pause, understand};
use crate::facts::{Certainty, Gap, Holder, ResourceId, ResourceKind};
use crate::memory::Memory;
use crate::target::live::{Live, is_younger};
use crate::target::{Process, Target};
use crate::units::{Addr, Pid, ProcessIx};
use crate::verdict::plain;
use std::time::SystemTime;

/// Locks of one process asked for at most.
const MAX_ASKED: usize = 16;
/// `AT_RANDOM`: where the kernel puts 16 random bytes for each program it starts. A fork copies them, an exec makes new ones.
const AT_RANDOM: u64 = 25;

/// A lock whose holder is not in the process that waits for it.
struct Orphan {
    id: ResourceId,
    at: Addr,
    kind: ResourceKind,
    name: String,
}

/// The locks of a forked process that a thread of its parent held at the fork.
fn orphans(child: &Understood) -> Vec<Orphan> {
    if child.snapshot.process.forked != Some(true) {
        return Vec::new();
    }
    let facts = &child.facts;
    let gone = |id| facts.holds.iter().any(|h| h.of == id && matches!(h.holder, Holder::Gone(..)));
    let locks = facts.resources.iter().filter(|r| {
        let lock = matches!(r.kind, ResourceKind::PythonLock | ResourceKind::PythonRlock);
        lock && gone(r.id) && facts.waits.iter().any(|w| w.on == r.id)
    });
    let orphan = |r: &crate::facts::Resource| match r.id {
        ResourceId::At(_, at) => Some(Orphan {
            id: r.id,
            at,
            kind: r.kind,
            name: r.name.clone().unwrap_or_else(|| format!("the lock at {at}")),
        }),
        _ => None,
    };
    locks.filter_map(orphan).take(MAX_ASKED).collect()
}

/// Asks the parents of live processes.
pub(super) fn consult(processes: &mut [Understood], options: &Options) {
    for i in 0..processes.len() {
        let Some(child) = processes.get(i) else { continue };
        let orphans = orphans(child);
        if orphans.is_empty() {
            continue;
        }
        let Some(parent) = child.snapshot.process.parent.as_ref().map(|p| p.pid) else { continue };
        let pid = child.snapshot.process.pid;
        let told: Vec<(Orphan, Result<String, String>)> =
            match processes.iter().find(|p| p.snapshot.process.pid == parent) {
                Some(known) => {
                    let known = is_same_program(pid, parent).map(|()| known);
                    orphans.into_iter().map(|o| (told(&o, pid, known.clone()), o)).map(|(t, o)| (o, t)).collect()
                }
                None => {
                    let seen = is_same_program(pid, parent).and_then(|()| glance(parent, options));
                    let seen = seen.as_ref().map_err(Clone::clone);
                    orphans.into_iter().map(|o| (told(&o, pid, seen.clone()), o)).map(|(t, o)| (o, t)).collect()
                }
            };
        let Some(child) = processes.get_mut(i) else { continue };
        for (orphan, said) in told {
            match said {
                Ok(said) => drop(child.facts.inherited.insert(orphan.id, said)),
                Err(why) => child.facts.gaps.push(Gap(format!(
                    "who held {} in the parent when it forked cannot be looked up there: {why}",
                    orphan.name
                ))),
            }
        }
    }
}

/// Says that there is nobody to ask. `why`: the reason.
pub(super) fn regret(process: &mut Understood, why: &str) {
    for orphan in orphans(process) {
        process.facts.gaps.push(Gap(format!(
            "who held {} in the parent when it forked cannot be looked up there: {why}",
            orphan.name
        )));
    }
}

/// Whether the parent still runs the program that forked.
fn is_same_program(child: Pid, parent: Pid) -> Result<(), String> {
    let open = |pid| Live::open(pid).map_err(|e| e.to_string());
    let random = |live: &Live| {
        let at = Addr(live.process().auxv(AT_RANDOM)?);
        let mut bytes = [0; 16];
        live.read(at, &mut bytes).ok().map(|()| (at, bytes))
    };
    let (child, parent) = (open(child)?, open(parent)?);
    let (of_child, of_parent) = (random(&child), random(&parent));
    match (of_child, of_parent) {
        (Some(a), Some(b)) if a == b => Ok(()),
        (Some(_), Some(_)) => {
            Err(format!("{} runs another program than the one that forked", called(parent.process())))
        }
        _ => Err(format!("the memory of {} may not be read", called(parent.process()))),
    }
}

/// `process 4711 (init), its parent now,`.
fn called(process: &Process) -> String {
    let name = process.exe.as_ref().and_then(|e| e.file_name()).map(|n| n.to_string_lossy().into_owned());
    let name = name.map(|n| format!(" ({})", plain(&n))).unwrap_or_default();
    format!("process {}{name}, its parent now,", process.pid)
}

/// Looks at a process without stopping it.
fn glance(pid: Pid, options: &Options) -> Result<Understood, String> {
    let options = Options { no_stop: true, save_core: None, samples: Some(1), locals: false, ..options.clone() };
    let prepared = Prepared::new(pid, &options).map_err(|e| e.to_string())?;
    let mut captured = Captured {
        at: SystemTime::now(),
        source: "live",
        pause: None,
        syscalls_in_pause: 0,
        warnings: Vec::new(),
        partial: false,
        unsaved: false,
    };
    let (mut warnings, mut failure) = (Vec::new(), None);
    let (mut taken, _) = pause(vec![prepared], &options, &mut captured, &mut warnings, &mut failure);
    let Some(t) = taken.pop() else {
        return Err(failure.map_or_else(|| "it is gone".to_owned(), |e| e.to_string()));
    };
    Ok(understand(ProcessIx(0), t.snapshot, &t.kept, &t.decoders, How::default()))
}

/// What the parent shows of its own copy of the lock, in a sentence without a full stop.
fn told(orphan: &Orphan, child: Pid, parent: Result<&Understood, String>) -> Result<String, String> {
    let parent = parent?;
    let pid = parent.snapshot.process.pid;
    let facts = &parent.facts;
    let same =
        |r: &&crate::facts::Resource| r.kind == orphan.kind && matches!(r.id, ResourceId::At(_, at) if at == orphan.at);
    let id = facts.resources.iter().find(same).map(|r| r.id);
    let holds = facts.holds.iter().filter(|h| Some(h.of) == id && h.certainty > Certainty::Inferred);
    let holder = holds.filter_map(|h| match h.holder {
        Holder::Thread(t) => Some((h, t, parent.snapshot.threads.get(t.thread as usize)?)),
        _ => None,
    });
    // one that moved while it was read proves nothing
    let Some((hold, t, thread)) = holder.into_iter().find(|(_, _, thread)| thread.registers.is_some()) else {
        return Ok(format!(
            "no thread of the parent, process {pid}, shows now that it holds the parent's own copy: who held it at the fork \
             has let go of that copy since, or was not in a `with` block"
        ));
    };
    let managed = facts.managed.iter().find(|(who, _)| *who == t).map(|(_, m)| m);
    let name = managed.and_then(|m| m.name.clone()).or_else(|| thread.name.clone());
    let name = name.map(|n| format!(" “{}”", plain(&n))).unwrap_or_default();
    let place = hold.taken_at_managed.and_then(|taken| {
        let frame = managed?.frames.get(taken.frame as usize)?;
        let file = frame.file.rsplit('/').next().unwrap_or(&frame.file);
        let line = taken.line.map(|l| format!(":{l}")).unwrap_or_default();
        let function = plain(&frame.function);
        Some(format!(" by the `with` of {function} ({}{line})", plain(file)))
    });
    let place = place.unwrap_or_default();
    let who = format!("thread {}{name} of the parent, process {pid}, holds the parent's own copy now,", thread.tid);
    Ok(match is_younger((pid, thread.host_tid), child) {
        Some(true) => format!("{who} taken{place}, but began after the fork: it is not the one who held it then"),
        _ => format!(
            "{who} taken{place}: it lived at the fork, and may be the one who held it then; it can let go of that copy alone"
        ),
    })
}
