//! What moved between two looks: what tells hung from slow.

use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{ProcessIx, ThreadRef};
use std::collections::BTreeSet;
use std::time::Duration;

/// Voluntary switches a thread makes because *we* stop and release it between the two counts: one to halt, one to sleep
/// again, and one to spare.
const OUR_OWN_SWITCHES: u64 = 3;

/// Which threads of the later look moved since the earlier one.
#[derive(Clone, Debug, Default)]
pub struct Movement {
    /// Time between the looks.
    pub apart: Duration,
    /// Threads that ran, slept anew, or stand elsewhere. Threads born between the looks are among them.
    pub moved: BTreeSet<ThreadRef>,
    /// Threads that used the CPU: running in the later look, or their CPU time grew.
    pub ran: BTreeSet<ThreadRef>,
}

impl Movement {
    /// Compares an earlier look with the one that is judged. Processes are matched by pid, threads by tid.
    #[must_use]
    pub fn between(earlier: &[Snapshot], later: &[Snapshot], apart: Duration) -> Movement {
        let mut movement = Movement { apart, ..Movement::default() };
        for (p, now) in later.iter().enumerate() {
            let before = earlier.iter().find(|s| s.process.pid == now.process.pid);
            for (t, thread) in now.threads.iter().enumerate() {
                let (Ok(p), Ok(t)) = (u32::try_from(p), u32::try_from(t)) else { continue };
                let at = ThreadRef { process: ProcessIx(p), thread: t };
                let was = before.and_then(|s| s.threads.iter().find(|o| o.host_tid == thread.host_tid));
                let ran = thread.state == Some('R') || was.is_some_and(|was| cpu_grew(was, thread));
                if ran {
                    movement.ran.insert(at);
                }
                if ran || was.is_none_or(|was| stands_elsewhere(was, thread)) {
                    movement.moved.insert(at);
                }
            }
        }
        movement
    }
}

fn cpu_grew(was: &ThreadState, is: &ThreadState) -> bool {
    matches!((was.progress, is.progress), (Some(a), Some(b)) if b.ticks > a.ticks)
}

fn stands_elsewhere(was: &ThreadState, is: &ThreadState) -> bool {
    let switched = matches!((was.progress, is.progress),
        (Some(a), Some(b)) if b.voluntary.saturating_sub(a.voluntary) > OUR_OWN_SWITCHES);
    let place = |t: &ThreadState| match &t.registers {
        Some(r) => (r.pc(), r.sp()),
        None => (t.sp_pc.map(|(_, pc)| pc), t.sp_pc.map(|(sp, _)| sp)),
    };
    // absolute time-outs are arguments: the call's number and first argument are enough to tell one wait from another
    // after our own stop a timed call shows as `restart_syscall`, its number gone: no other call than before
    let another_call = match (was.syscall, is.syscall) {
        (Some(a), Some(b)) => a.args[0] != b.args[0] || matches!((a.number, b.number), (Some(a), Some(b)) if a != b),
        (a, b) => a.is_some() != b.is_some(),
    };
    switched || place(was) != place(is) || another_call
}
