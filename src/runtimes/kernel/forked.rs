//! Locks that record no owner, in a process that was forked and has one thread.
//!
//! A fork copies the memory and one thread. A lock of the C library that another thread held at that moment stays taken in
//! the child: of the locks inside glibc only some are made anew there (glibc `sysdeps/nptl/fork.h`, `posix/fork.c`: malloc,
//! stdio and the loader's since 2.24 to 2.34; not the resolver's, the time zone's, `__exit_funcs_lock`). No field tells who
//! held it, but the one thread that is left is the one that waits. The lock of a Python module that is being imported is such
//! a lock while its owner lets go of it: the owner is struck out first, the waiters are woken afterwards.

use crate::facts::{Certainty, Evidence, Facts, Hold, Holder, Mode, ResourceId, ResourceKind, Timeout, Wait, Wakers};
use crate::snapshot::Snapshot;
use crate::units::{ProcessIx, ThreadRef, Tid};
use crate::unwind::Stack;

/// Adds that such a lock was left taken by a thread of the parent, where nothing else is possible.
pub fn join(snapshots: &[Snapshot], stacks: &[Vec<Stack>], facts: &mut Facts) {
    let mut holds = Vec::new();
    for (index, snapshot) in snapshots.iter().enumerate() {
        let [_] = snapshot.threads.as_slice() else { continue };
        if snapshot.unlisted || snapshot.process.forked != Some(true) {
            continue;
        }
        let thread = ThreadRef { process: ProcessIx(u32::try_from(index).unwrap_or(u32::MAX)), thread: 0 };
        // the code that a handler interrupted may hold it
        let stack = stacks.get(index).and_then(|s| s.first());
        if stack.is_none_or(|s| s.frames.iter().any(|f| f.signal)) {
            continue;
        }
        let waits = facts.waits.iter().filter(|w| w.thread == thread);
        holds.extend(waits.filter(|w| is_left_taken(facts, w)).map(|w| left_behind(snapshot, thread.process, w.on)));
    }
    facts.holds.extend(holds);
}

/// Whether a thread waits, without end, for such a lock in the process's own memory that nobody is known to hold.
fn is_left_taken(facts: &Facts, wait: &Wait) -> bool {
    let lock = facts.resources.iter().any(|r| {
        let kind = matches!(
            r.kind,
            ResourceKind::LibcLock
                | ResourceKind::AllocatorLock
                | ResourceKind::AtforkLock
                | ResourceKind::ExitLock
                | ResourceKind::PythonImportLock
        );
        r.id == wait.on && kind && r.wakers == Wakers::Holders
    });
    let held = facts.holds.iter().any(|h| h.of == wait.on);
    let private = matches!(wait.on, ResourceId::At(..));
    lock && private && !held && wait.timeout == Timeout::None && !facts.woken.contains(&wait.thread)
}

fn left_behind(snapshot: &Snapshot, process: ProcessIx, of: ResourceId) -> Hold {
    let parent = snapshot.process.parent.as_ref().map_or_else(String::new, |p| format!(" from process {}", p.pid));
    let evidence = Evidence::new(format!(
        "process {} was forked{parent} without an exec, and its only thread waits for the lock: who took it is not here",
        snapshot.process.pid
    ));
    Hold {
        holder: Holder::Gone(process, Tid(0)),
        of,
        mode: Mode::Exclusive,
        certainty: Certainty::Inferred,
        taken_at: None,
        taken_at_managed: None,
        evidence: vec![evidence],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Reentrancy, Resource};
    use crate::runtimes::tests::MadeUp;
    use crate::units::{Addr, FrameIx};

    /// Whether the lock counts as left behind in a process made by `change`.
    fn left(kind: ResourceKind, change: impl Fn(&mut MadeUp, &mut Facts)) -> bool {
        let mut made = MadeUp::new();
        made.thread(100, Some((202, [0x6000, 0x80, 2, 0, 0, 0])));
        made.snapshot.process.forked = Some(true);
        let id = ResourceId::At(ProcessIx(0), Addr(0x6000));
        let mut facts = Facts::default();
        facts.resources.push(Resource {
            id,
            kind,
            name: None,
            address: None,
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        });
        facts.waits.push(Wait {
            thread: ThreadRef { process: ProcessIx(0), thread: 0 },
            on: id,
            mode: Mode::Exclusive,
            timeout: Timeout::None,
            frame: FrameIx(0),
            managed_frame: None,
            evidence: Vec::new(),
        });
        change(&mut made, &mut facts);
        join(&[made.snapshot], &[made.stacks], &mut facts);
        facts.holds.iter().any(|h| matches!(h.holder, Holder::Gone(_, Tid(0))))
    }

    #[test]
    fn only_where_nothing_else_is_possible() {
        assert!(left(ResourceKind::LibcLock, |_, _| {}));
        assert!(left(ResourceKind::PythonImportLock, |_, _| {}));
        assert!(!left(ResourceKind::Mutex, |_, _| {}), "it records its owner");
        assert!(!left(ResourceKind::LibcLock, |m, _| m.snapshot.process.forked = Some(false)), "started by exec");
        assert!(!left(ResourceKind::LibcLock, |m, _| m.snapshot.process.forked = None));
        assert!(!left(ResourceKind::LibcLock, |m, _| _ = m.thread(101, None)), "the other thread may hold it");
        assert!(!left(ResourceKind::LibcLock, |m, _| m.snapshot.unlisted = true));
        assert!(!left(ResourceKind::LibcLock, |_, f| f.waits[0].timeout = Timeout::Some));
        assert!(!left(ResourceKind::LibcLock, |_, f| _ = f.woken.insert(f.waits[0].thread)));
        assert!(
            !left(ResourceKind::LibcLock, |m, _| m.stacks[0].frames[0].signal = true),
            "what a handler interrupted may hold it"
        );
    }
}
