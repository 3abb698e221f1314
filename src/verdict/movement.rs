//! What moved between two looks: what tells hung from slow.

use crate::facts::{Facts, Timeout};
use crate::graph::{Graph, Step};
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{HostTid, ProcessIx, ThreadRef};
use std::collections::{BTreeSet, HashMap};
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
    /// Threads that stand elsewhere: at another instruction, with another stack pointer, in another call, or born since.
    pub elsewhere: BTreeSet<ThreadRef>,
    /// Cycles of the later look that have a time-out and stood at the earlier one, too, though its waits were begun anew since.
    pub retried: BTreeSet<Vec<Step>>,
    /// Threads that used the CPU: running in the later look, or their CPU time grew.
    pub ran: BTreeSet<ThreadRef>,
    /// Threads that were ready to run in both looks and got no CPU in between: the machine keeps them from getting on.
    pub starved: BTreeSet<ThreadRef>,
    /// Threads that wait for a device which got on between the looks, or that did not wait for it before.
    pub devices: BTreeSet<ThreadRef>,
}

impl Movement {
    /// Compares an earlier look with the one that is judged. Processes are matched by pid, threads by tid.
    #[must_use]
    pub fn between(earlier: &[Snapshot], later: &[Snapshot], apart: Duration) -> Movement {
        let mut movement = Movement { apart, ..Movement::default() };
        for (p, now) in later.iter().enumerate() {
            let before = earlier.iter().find(|s| s.process.pid == now.process.pid);
            if let Ok(p) = u32::try_from(p) {
                movement.compare(ProcessIx(p), before.map(|s| s.threads.as_slice()), &now.threads);
            }
        }
        movement
    }

    /// The threads that stood still between the looks.
    #[must_use]
    pub fn still(&self, later: &[Snapshot]) -> BTreeSet<ThreadRef> {
        let each = |(p, s): (u32, &Snapshot)| {
            let threads = u32::try_from(s.threads.len()).unwrap_or(u32::MAX);
            (0..threads).map(move |thread| ThreadRef { process: ProcessIx(p), thread })
        };
        (0..).zip(later).flat_map(each).filter(|t| !self.moved.contains(t) && !self.ran.contains(t)).collect()
    }

    /// Compares what the looks showed of devices: of each thread that waits for one now.
    pub fn compare_devices(&mut self, earlier: (&[Snapshot], &Facts), later: (&[Snapshot], &Facts)) {
        for (t, now) in &later.1.devices {
            let id = |snapshots: &[Snapshot], t: ThreadRef| {
                let snapshot = snapshots.get(t.process.0 as usize)?;
                Some((snapshot.process.pid, snapshot.threads.get(t.thread as usize)?.host_tid))
            };
            let me = id(later.0, *t);
            let before = earlier.1.devices.iter().find(|(was, _)| me.is_some() && id(earlier.0, **was) == me);
            if before.is_none_or(|(_, was)| was.pulse != now.pulse) {
                self.devices.insert(*t);
            }
        }
    }

    /// Compares the cycles that time-outs may break. One whose wait has not been begun anew may still be about to end.
    pub fn compare_cycles(&mut self, earlier: (&[Snapshot], &Graph), later: (&[Snapshot], &Graph)) {
        let pids = |s: &[Snapshot]| s.iter().map(|s| s.process.pid).collect::<Vec<_>>();
        if pids(earlier.0) != pids(later.0) {
            return;
        }
        let host = |s: &[Snapshot], t: ThreadRef| {
            s.get(t.process.0 as usize).and_then(|s| s.threads.get(t.thread as usize)).map(|t| t.host_tid)
        };
        let timed = |s: &Step| {
            let timeout = later.1.waits.get(&s.thread).map(|w| w.timeout);
            matches!(timeout, Some(Timeout::Some | Timeout::Seconds(_)))
        };
        let named = |s: &[Snapshot], steps: &[Step]| {
            let mut all: Vec<_> = steps.iter().map(|x| (x.thread.process, host(s, x.thread), x.waits_for)).collect();
            all.sort_unstable();
            all
        };
        let before: BTreeSet<_> = earlier.1.cycles.iter().map(|c| named(earlier.0, c)).collect();
        let anew = |s: &Step| !timed(s) || (self.moved.contains(&s.thread) && !self.elsewhere.contains(&s.thread));
        let stands = |c: &&Vec<Step>| {
            c.iter().any(timed) && c.iter().all(anew) && before.contains(&named(later.0, c.as_slice()))
        };
        let retried: BTreeSet<Vec<Step>> = later.1.cycles.iter().filter(stands).cloned().collect();
        self.retried = retried;
    }

    fn compare(&mut self, process: ProcessIx, earlier: Option<&[ThreadState]>, later: &[ThreadState]) {
        let by_tid: HashMap<HostTid, &ThreadState> =
            earlier.into_iter().flatten().map(|thread| (thread.host_tid, thread)).collect();
        for (t, thread) in (0..).zip(later) {
            let at = ThreadRef { process, thread: t };
            let was = by_tid.get(&thread.host_tid).copied();
            let ran = thread.state == Some('R') || was.is_some_and(|was| cpu_grew(was, thread));
            if ran {
                self.ran.insert(at);
            }
            if was.is_some_and(|was| starved(was, thread)) {
                self.starved.insert(at);
            }
            let elsewhere = was.is_none_or(|was| stands_elsewhere(was, thread));
            if elsewhere {
                self.elsewhere.insert(at);
            }
            if ran || elsewhere || was.is_some_and(|was| slept_anew(was, thread)) {
                self.moved.insert(at);
            }
        }
    }
}

fn cpu_grew(was: &ThreadState, is: &ThreadState) -> bool {
    matches!((was.progress, is.progress), (Some(a), Some(b)) if b.ticks > a.ticks)
}

fn starved(was: &ThreadState, is: &ThreadState) -> bool {
    let ready = [was, is].iter().all(|t| t.state == Some('R'));
    let stood = matches!((was.progress, is.progress),
        (Some(a), Some(b)) if a.ticks == b.ticks && b.voluntary.saturating_sub(a.voluntary) <= OUR_OWN_SWITCHES);
    ready && stood
}

fn slept_anew(was: &ThreadState, is: &ThreadState) -> bool {
    matches!((was.progress, is.progress),
        (Some(a), Some(b)) if b.voluntary.saturating_sub(a.voluntary) > OUR_OWN_SWITCHES)
}

fn stands_elsewhere(was: &ThreadState, is: &ThreadState) -> bool {
    let place = |t: &ThreadState| match &t.registers {
        Some(r) => (r.pc(), r.sp()),
        None => (t.sp_pc.map(|(_, pc)| pc), t.sp_pc.map(|(sp, _)| sp)),
    };
    // absolute time-outs are arguments: the call's number and first argument are enough to tell one wait from another. A
    // call we interrupted may come back as restart_syscall, without its number (poll always does)
    let another_call = match (was.syscall, is.syscall) {
        (Some(a), Some(b)) => a.args[0] != b.args[0] || matches!((a.number, b.number), (Some(a), Some(b)) if a != b),
        (None, None) => false,
        _ => true,
    };
    place(was) != place(is) || another_call
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Syscall;
    use crate::target::Progress;
    use crate::verdict::made_up::Made;

    /// Whether a thread moved, ran, when its later state is changed by `change`.
    fn moved(change: impl Fn(&mut ThreadState)) -> (bool, bool) {
        let mut made = Made::new();
        let t = made.thread(7, "a");
        made.seen(|seen| {
            let state = |change: &dyn Fn(&mut ThreadState)| {
                let mut state = seen.snapshots[0].threads[0].clone();
                state.syscall = Some(Syscall { number: Some(202), args: [0x1000, 0x80, 2, 0, 0, 0] });
                state.progress = Some(Progress { voluntary: 10, involuntary: 1, ticks: 5 });
                state.sp_pc = Some((0x7000, 0x4000));
                change(&mut state);
                state
            };
            let movement = compare(&[state(&|_| {})], &[state(&change)]);
            (movement.moved.contains(&t), movement.ran.contains(&t))
        })
    }

    #[test]
    fn who_is_ready_and_gets_no_cpu_is_starved() {
        let mut made = Made::new();
        let t = made.thread(7, "a");
        made.seen(|seen| {
            let state = |letter, voluntary, ticks| {
                let mut state = seen.snapshots[0].threads[0].clone();
                (state.state, state.progress) = (Some(letter), Some(Progress { voluntary, involuntary: 1, ticks }));
                state
            };
            let starved = |was, is, voluntary, ticks| {
                compare(&[state(was, 10, 5)], &[state(is, voluntary, ticks)]).starved.contains(&t)
            };
            assert!(starved('R', 'R', 10, 5) && starved('R', 'R', 12, 5));
            assert!(!starved('R', 'R', 10, 6), "it ran");
            assert!(!starved('R', 'R', 40, 5), "it slept in between");
            assert!(!starved('S', 'R', 10, 5) && !starved('R', 'S', 10, 5));
        });
    }

    fn compare(earlier: &[ThreadState], later: &[ThreadState]) -> Movement {
        let mut movement = Movement::default();
        movement.compare(ProcessIx(0), Some(earlier), later);
        movement
    }

    #[test]
    fn what_moves_and_what_does_not() {
        assert_eq!(moved(|_| {}), (false, false));
        let syscall = |number, first| Some(Syscall { number, args: [first, 0, 0, 0, 0, 0] });
        assert_eq!(moved(|t| t.syscall = syscall(None, 0x1000)), (false, false), "restarted after our stop");
        assert_eq!(moved(|t| t.syscall = syscall(Some(202), 0x2000)), (true, false), "another futex");
        assert_eq!(moved(|t| t.syscall = syscall(Some(0), 0x1000)), (true, false), "another call");
        assert_eq!(moved(|t| t.syscall = None), (true, false));
        assert_eq!(moved(|t| t.sp_pc = Some((0x7000, 0x4004))), (true, false), "stands elsewhere");
        let progress = |voluntary, ticks| Some(Progress { voluntary, involuntary: 1, ticks });
        assert_eq!(moved(|t| t.progress = progress(12, 5)), (false, false), "our own stop");
        assert_eq!(moved(|t| t.progress = progress(40, 5)), (true, false), "slept anew");
        assert_eq!(moved(|t| t.progress = progress(10, 6)), (true, true), "used the CPU");
        assert_eq!(moved(|t| t.state = Some('R')), (true, true));
        assert_eq!(moved(|t| t.host_tid = crate::units::HostTid(8)), (true, false), "born between the looks");
    }

    #[test]
    fn a_cycle_is_retried_where_its_timed_wait_began_anew() {
        let mut made = Made::new();
        let (a, b) = (made.thread(1, "a"), made.thread(2, "b"));
        let (x, y) = (made.mutex("x", 0x10), made.mutex("y", 0x20));
        made.holds(a, x);
        made.waits(a, y).timeout = Timeout::Seconds(0.05);
        made.holds(b, y);
        made.waits(b, x);
        let retried = |earlier: &Made, moved: &[ThreadRef], elsewhere: &[ThreadRef]| {
            earlier.seen(|was| {
                made.seen(|is| {
                    let mut movement = Movement {
                        moved: moved.iter().copied().collect(),
                        elsewhere: elsewhere.iter().copied().collect(),
                        ..Movement::default()
                    };
                    movement.compare_cycles((was.snapshots, was.graph), (is.snapshots, is.graph));
                    movement.retried.len()
                })
            })
        };
        assert_eq!(retried(&made, &[a], &[]), 1);
        assert_eq!(retried(&made, &[], &[]), 0, "the same wait may still end");
        assert_eq!(retried(&made, &[a], &[a]), 0, "it stands elsewhere");
        assert_eq!(retried(&Made::new(), &[a], &[]), 0, "there was no such cycle");
    }
}
