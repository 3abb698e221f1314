//! Verdicts on made-up processes.

mod closed;
mod interpreters;
mod returnable;

use super::made_up::Made;
use super::{Behind, Kind, Verdict};
use crate::facts::{
    Certainty, DeviceWait, GilRole, Holder, Mode, Reentrancy, ResourceId, ResourceKind, Timeout, Wakers,
};
use crate::units::{FrameIx, ThreadRef, Tid};

/// Two threads, two mutexes, opposite orders.
fn abba() -> (Made, ThreadRef, ThreadRef) {
    let mut made = Made::new();
    let (a, b) = (made.thread(10, "transfer"), made.thread(11, "audit"));
    let (left, right) = (made.mutex("left", 0x1000), made.mutex("right", 0x2000));
    made.holds(a, left);
    made.waits(a, right);
    made.holds(b, right);
    made.waits(b, left);
    (made, a, b)
}

/// Main keeps the GIL and waits for a condition variable; workers want the GIL.
fn pool_against_gil(workers: i32) -> (Made, ThreadRef, Vec<ThreadRef>) {
    let mut made = Made::new();
    let gil = made.gil();
    let done = made.resource(ResourceKind::Condvar, "", 0x3000);
    let main = made.thread(100, "MainThread");
    made.holds(main, gil);
    made.waits(main, done).mode = Mode::Any;
    let workers: Vec<ThreadRef> = (0..workers).map(|i| made.thread(101 + i, &format!("worker-{i}"))).collect();
    for w in &workers {
        made.waits(*w, gil);
    }
    (made, main, workers)
}

#[test]
fn two_mutexes_in_opposite_orders() {
    let (made, a, b) = abba();
    let v = made.judged();
    assert_eq!((v.kind, v.certainty, v.exit_code()), (Kind::Deadlock, Some(Certainty::Recorded), 1));
    assert!(!v.wants_second_look());
    let [cycle] = v.cycles.as_slice() else { panic!("{:?}", v.cycles) };
    assert_eq!(cycle.pattern, "lock-order-inversion");
    assert_eq!(cycle.steps.iter().map(|s| (s.thread, s.held_by)).collect::<Vec<_>>(), [(a, b), (b, a)]);
    assert_eq!(
        v.headline,
        "DEADLOCK, 2 threads, proven: thread 10 “transfer” holds the mutex left and waits for the mutex right, \
         thread 11 “audit” holds the mutex right and waits for the mutex left"
    );
    assert!(cycle.advice.contains("std::scoped_lock"), "{}", cycle.advice);
}

#[test]
fn the_certainty_is_that_of_the_weakest_hold() {
    let (mut made, ..) = abba();
    made.facts.holds[1].certainty = Certainty::Witnessed;
    assert_eq!(made.judged().certainty, Some(Certainty::Witnessed));
    made.facts.holds[0].certainty = Certainty::Inferred;
    let v = made.judged();
    assert_eq!((v.kind, v.certainty), (Kind::Deadlock, Some(Certainty::Inferred)));
    assert!(v.headline.contains("inferred") && !v.headline.contains("proven"), "{}", v.headline);
    assert!(v.cycles[0].explanation.contains("(inferred)"), "{}", v.cycles[0].explanation);
    assert!(v.wants_second_look());
}

#[test]
fn a_ring_of_three_and_one_who_only_queues() {
    let mut made = Made::new();
    let threads: Vec<_> = (0..3).map(|i| made.thread(20 + i, &format!("philosopher-{i}"))).collect();
    let forks: Vec<_> = (0..3).map(|i| made.mutex("", 0x1000 + 0x40 * i)).collect();
    for i in 0..3 {
        made.holds(threads[i], forks[i]);
        made.waits(threads[i], forks[(i + 1) % 3]);
    }
    let guest = made.thread(30, "guest");
    made.waits(guest, forks[0]);
    let late = made.thread(31, "late");
    made.joins(late, guest);
    let v = made.judged();
    assert_eq!(v.cycles.len(), 1);
    assert_eq!(v.cycles[0].steps.len(), 3);
    assert_eq!(v.cycles[0].steps[0].thread, threads[0]);
    assert_eq!(
        v.blocked_behind,
        [Behind { thread: guest, behind: threads[0] }, Behind { thread: late, behind: threads[0] }]
    );
    assert!(v.headline.ends_with("2 other threads only wait behind them"), "{}", v.headline);
}

#[test]
fn a_long_ring_is_told_by_its_beginning() {
    let mut made = Made::new();
    let threads: Vec<_> = (0..500).map(|i| made.thread(1000 + i, "r, thread 2")).collect();
    let locks: Vec<_> = (0..500u64).map(|i| made.mutex("", 0x1000 + 0x40 * i)).collect();
    for i in 0..500 {
        made.holds(threads[i], locks[i]);
        made.waits(threads[i], locks[(i + 1) % 500]);
    }
    let v = made.judged();
    assert_eq!(v.cycles.len(), 1);
    assert_eq!(
        v.headline,
        "DEADLOCK, a ring of 500 threads, proven: thread 1000 “r, thread 2” holds the mutex at 0x1000 and waits for the \
         mutex at 0x1040, and so on round to the first"
    );
}

#[test]
fn two_cycles_are_both_told() {
    let (mut made, ..) = abba();
    let (c, d) = (made.thread(12, "c"), made.thread(13, "d"));
    let (x, y) = (made.mutex("x", 0x3000), made.mutex("y", 0x4000));
    made.holds(c, x);
    made.waits(c, y);
    made.holds(d, y).certainty = Certainty::Witnessed;
    made.waits(d, x);
    let v = made.judged();
    assert_eq!(v.cycles.iter().map(|c| c.certainty).collect::<Vec<_>>(), [Certainty::Recorded, Certainty::Witnessed]);
    assert!(v.headline.ends_with("; there is 1 more cycle"), "{}", v.headline);
    assert_eq!(v.root_causes.len(), 2);
}

#[test]
fn a_timed_wait_breaks_the_proof() {
    for timeout in [Timeout::Some, Timeout::Seconds(0.9)] {
        let (mut made, ..) = abba();
        made.facts.waits[0].timeout = timeout;
        let v = made.judged();
        assert!(!v.kind.is_stuck(), "{}", v.headline);
        assert!(v.cycles.is_empty());
        assert!(v.notes.iter().any(|n| n.contains("time-out")), "{:?}", v.notes);
    }
}

#[test]
fn the_kind_of_a_mutex_decides_over_a_second_taking() {
    for (reentrancy, kind) in [
        (Reentrancy::Plain, Kind::SelfDeadlock),
        (Reentrancy::Recursive, Kind::Stalled),
        (Reentrancy::Unknown, Kind::Stalled),
    ] {
        let mut made = Made::new();
        let t = made.thread(10, "registrar");
        let m = made.mutex("registry", 0x1000);
        made.entry(m).reentrancy = reentrancy;
        made.holds(t, m);
        made.waits(t, m);
        let v = made.judged();
        assert_eq!(v.kind, kind, "{reentrancy:?}: {}", v.headline);
        if kind == Kind::SelfDeadlock {
            assert_eq!(v.cycles[0].pattern, "non-reentrant-relock");
            assert_eq!(
                v.headline,
                "SELF-DEADLOCK, proven: thread 10 “registrar” holds the mutex registry and waits for it again"
            );
            assert_eq!(v.exit_code(), 1);
        }
    }
}

#[test]
fn a_lock_whose_owner_is_gone() {
    let mut made = Made::new();
    let m = made.mutex("table", 0x1000);
    let waiters = [made.thread(10, "a"), made.thread(11, "b")];
    made.held_by(Holder::Gone(waiters[0].process, Tid(99)), m);
    for w in waiters {
        made.waits(w, m);
    }
    let v = made.judged();
    assert_eq!((v.kind, v.certainty, v.exit_code()), (Kind::OrphanedLock, Some(Certainty::Recorded), 1));
    assert_eq!(v.orphans[0].pattern, "dead-owner");
    assert_eq!(v.orphans[0].waiters, waiters);
    assert_eq!(v.root_causes[0].thread, None);
    assert_eq!(
        v.headline,
        "ORPHANED LOCK, proven: the mutex table is held by tid 99, which is no thread of this process; 2 threads wait for it for ever"
    );
    // nobody waits: nothing is wrong yet
    made.facts.waits.clear();
    assert_eq!(made.judged().kind, Kind::Idle);
}

#[test]
fn a_callback_of_dl_iterate_phdr_that_wants_the_gil() {
    let made = Made::loader_against_gil();
    let v = made.judged();
    assert_eq!((v.kind, v.certainty), (Kind::Deadlock, Some(Certainty::Recorded)));
    assert_eq!(v.blocked_behind.len(), 6);
    let cycle = &v.cycles[0];
    assert_eq!(cycle.pattern, "callback-under-lock");
    for words in [
        "Thread 411 “load-3” is inside dl_iterate_phdr",
        "_dl_load_write_lock",
        "In one of them, a Python function called through ctypes, it waits for the GIL",
        "The order is the GIL first, the loader's locks second: thread 411 “load-3” took them the other way round",
    ] {
        assert!(cycle.explanation.contains(words), "{words}: {}", cycle.explanation);
    }
    assert!(cycle.advice.contains("dl_iterate_phdr callback"), "{}", cycle.advice);
    assert_eq!(v.root_causes[0].thread.map(|t| t.thread), Some(1));
}

#[test]
fn without_a_callback_between_it_is_the_order_that_is_wrong() {
    let mut made = Made::loader_against_gil();
    // no frames: only who waits for whom is known
    made.native(ThreadRef { process: Default::default(), thread: 1 }, &[]);
    let cycle = &made.judged().cycles[0];
    assert_eq!(cycle.pattern, "lock-order-inversion");
    assert!(cycle.explanation.contains("the GIL first, the loader's locks second"), "{}", cycle.explanation);
    assert!(cycle.advice.contains("dlopen"), "{}", cycle.advice);
}

#[test]
fn a_cxx_mutex_against_the_gil() {
    let mut made = Made::new();
    let gil = made.gil();
    let ipc = made.mutex("ipc_import_mutex (libipc.so)", 0x5000);
    let (a, b) = (made.thread(7, "importer-0"), made.thread(8, "importer-1"));
    made.holds(a, ipc);
    made.waits(a, gil);
    made.holds(b, gil);
    made.waits(b, ipc);
    let v = made.judged();
    let cycle = &v.cycles[0];
    assert_eq!(cycle.pattern, "lock-order-inversion");
    assert!(cycle.explanation.contains("the GIL first, ipc_import_mutex (libipc.so) second"), "{}", cycle.explanation);
    assert!(cycle.advice.contains("declare the guard that releases the GIL"), "{}", cycle.advice);
    assert_eq!(v.root_causes[0].thread, Some(a));
}

#[test]
fn native_code_that_calls_python_under_its_mutex() {
    let mut made = Made::new();
    let gil = made.gil();
    let m = made.mutex("registry", 0x5000);
    let (a, b) = (made.thread(7, "a"), made.thread(8, "b"));
    made.native(
        a,
        &[
            "take_gil libpython3.11.so.1.0",
            "PyEval_RestoreThread libpython3.11.so.1.0",
            "_PyEval_EvalFrameDefault libpython3.11.so.1.0",
            "notify_all_listeners libipc.so",
        ],
    );
    made.python(a, Some(GilRole::Waits), &[("on_change", "/srv/app.py", 5, 2)]);
    made.holds(a, m).taken_at = Some(FrameIx(3));
    made.waits(a, gil).frame = FrameIx(1);
    made.holds(b, gil);
    made.waits(b, m);
    let cycle = &made.judged().cycles[0];
    assert_eq!(cycle.pattern, "callback-under-lock");
    assert!(cycle.explanation.contains("notify_all_listeners"), "{}", cycle.explanation);
    assert!(cycle.explanation.contains("on_change (app.py:5)"), "{}", cycle.explanation);
}

#[test]
fn joining_a_thread_that_wants_the_gil() {
    let mut made = Made::new();
    let gil = made.gil();
    let (main, worker) = (made.thread(402, "MainThread"), made.thread(415, "worker"));
    made.holds(main, gil);
    made.joins(main, worker);
    made.waits(worker, gil);
    let v = made.judged();
    assert_eq!((v.kind, v.certainty), (Kind::Deadlock, Some(Certainty::Recorded)));
    assert_eq!(v.cycles[0].pattern, "gil-held-across-wait");
    assert_eq!(
        v.headline,
        "DEADLOCK, 2 threads, proven: thread 402 “MainThread” holds the GIL and waits for thread 415 “worker” to end, \
         thread 415 “worker” waits for the GIL"
    );
}

#[test]
fn joining_a_thread_that_wants_a_mutex() {
    let mut made = Made::new();
    let m = made.mutex("state", 0x1000);
    let (main, worker) = (made.thread(1, "main"), made.thread(2, "worker"));
    made.holds(main, m);
    made.joins(main, worker);
    made.waits(worker, m);
    let v = made.judged();
    assert_eq!(v.cycles[0].pattern, "join-while-holding");
    assert!(v.cycles[0].advice.contains("Join after the lock is released"));
}

#[test]
fn a_pool_that_needs_the_gil_its_user_keeps() {
    let (made, main, workers) = pool_against_gil(4);
    let v = made.judged();
    assert_eq!((v.kind, v.certainty), (Kind::Deadlock, Some(Certainty::Inferred)));
    assert!(v.wants_second_look());
    let cycle = &v.cycles[0];
    assert_eq!(cycle.pattern, "gil-held-across-wait");
    assert_eq!(
        cycle.steps.iter().map(|s| (s.thread, s.held_by)).collect::<Vec<_>>(),
        [(main, workers[0]), (workers[0], main)]
    );
    assert_eq!(v.blocked_behind.len(), 3);
    assert_eq!(v.inferred_holds.len(), 4, "each of them could give the signal");
    assert!(
        v.headline.starts_with("DEADLOCK, 2 threads, inferred, if it was not moving: thread 100"),
        "{}",
        v.headline
    );
    assert!(
        v.headline.contains("any of 4 threads could signal it, thread 101 “worker-0” among them"),
        "{}",
        v.headline
    );
    for words in
        ["inferred", "recorded as held by thread 100 “MainThread”", "The 4 threads that could wake it wait for the GIL"]
    {
        assert!(cycle.explanation.contains(words), "{words}: {}", cycle.explanation);
    }
}

#[test]
fn one_thread_that_could_still_signal_makes_it_no_knot() {
    // outside, running, timed, of unknown doing, or waiting for a lock whose holder is not known
    for case in 0..5 {
        let (mut made, ..) = pool_against_gil(4);
        let other = made.thread(200, "other");
        match case {
            0 => {
                let poll = made.resource(ResourceKind::Poll, "poll on fd 3", 0x10);
                made.waits(other, poll);
            }
            1 => made.state(other, 'R'),
            2 => {
                let c = made.resource(ResourceKind::Condvar, "", 0x20);
                made.waits(other, c).timeout = Timeout::Seconds(1.0);
            }
            3 => {}
            _ => {
                let m = made.mutex("whose?", 0x30);
                made.waits(other, m);
            }
        }
        let v = made.judged();
        assert!(!v.kind.is_stuck(), "case {case}: {}", v.headline);
        made.two_looks(if case == 1 { std::slice::from_ref(&other) } else { &[] });
        let v = made.judged();
        assert_eq!(v.kind, Kind::Stalled, "case {case}: {}", v.headline);
        assert!(v.stalls.iter().any(|s| s.pattern == "gil-held-across-wait"), "case {case}: {:?}", v.stalls);
    }
}

#[test]
fn a_thread_that_is_not_listed_may_give_the_signal() {
    let (mut made, ..) = pool_against_gil(2);
    assert_eq!(made.judged().kind, Kind::Deadlock);
    made.unlisted = true;
    assert!(!made.judged().kind.is_stuck(), "{}", made.judged().headline);
}

#[test]
fn a_signaller_that_moved_is_not_stuck() {
    let (mut made, main, _) = pool_against_gil(2);
    made.two_looks(&[main]);
    let v = made.judged();
    assert_eq!(v.kind, Kind::Busy, "{}", v.headline);
}

#[test]
fn who_was_woken_is_not_stuck() {
    let (mut made, main, _) = pool_against_gil(2);
    made.facts.woken.insert(main);
    let v = made.judged();
    assert_eq!(v.kind, Kind::Busy, "{}", v.headline);
    let (mut made, a, b) = abba();
    made.facts.woken.insert(a);
    assert!(!made.judged().kind.is_stuck(), "{}", made.judged().headline);
    made.facts.woken = [a, b].into();
    assert!(made.judged().cycles.is_empty(), "{}", made.judged().headline);
}

#[test]
fn a_knot_of_many_waiters_on_two_signals() {
    // main keeps the GIL and waits for worker; worker wants a mutex whose holder waits for a signal, too
    let (mut made, main, workers) = pool_against_gil(1);
    let m = made.mutex("queue", 0x40);
    let c = made.resource(ResourceKind::Condvar, "", 0x50);
    let (feeder, eater) = (made.thread(300, "feeder"), made.thread(301, "eater"));
    made.holds(feeder, m);
    made.waits(feeder, c);
    made.waits(eater, m);
    let v = made.judged();
    assert_eq!(v.kind, Kind::Deadlock);
    assert_eq!(v.cycles.len(), 2, "{:?}", v.cycles);
    assert!(v.cycles.iter().any(|c| c.steps.iter().any(|s| s.thread == main || s.thread == workers[0])));
}

#[test]
fn behind_a_proven_cycle_no_knot_is_seen() {
    let (mut made, a, _) = abba();
    // the holder of a third lock waits for a signal that only stuck threads could give
    let m = made.mutex("third", 0x60);
    let c = made.resource(ResourceKind::Condvar, "", 0x70);
    let (x, y) = (made.thread(50, "x"), made.thread(51, "y"));
    made.holds(x, m);
    made.waits(x, c);
    made.waits(y, m);
    let v = made.judged();
    assert_eq!(v.certainty, Some(Certainty::Recorded));
    let [cycle] = v.cycles.as_slice() else { panic!("{:?}", v.cycles) };
    assert_eq!(cycle.steps[0].thread, a);
}

#[test]
fn an_idle_pool_is_idle() {
    let mut made = Made::new();
    let main = made.thread(1, "main");
    let work = made.resource(ResourceKind::Condvar, "", 0x10);
    for i in 0..8 {
        let w = made.thread(2 + i, "pool");
        made.waits(w, work);
    }
    let poll = made.resource(ResourceKind::Epoll, "epoll on fd 4", 0x20);
    made.waits(main, poll);
    for looks in [1, 2] {
        if looks == 2 {
            made.two_looks(&[]);
        }
        let v = made.judged();
        assert_eq!((v.kind, v.certainty, v.exit_code()), (Kind::Idle, None, 0), "{}", v.headline);
    }
}

#[test]
fn main_joining_an_idle_worker_is_idle() {
    let mut made = Made::new();
    let (main, worker) = (made.thread(1, "main"), made.thread(2, "server"));
    let epoll = made.resource(ResourceKind::Epoll, "epoll on fd 4", 0x20);
    made.joins(main, worker);
    made.waits(worker, epoll);
    made.two_looks(&[]);
    assert_eq!(made.judged().kind, Kind::Idle);
}

#[test]
fn a_holder_that_computes_is_busy() {
    let mut made = Made::new();
    let m = made.mutex("results", 0x10);
    let computes = made.running(1, "computes");
    made.holds(computes, m);
    for i in 0..3 {
        let t = made.thread(2 + i, "wants");
        made.waits(t, m);
    }
    assert_eq!(made.judged().kind, Kind::Busy);
    made.two_looks(&[computes]);
    let v = made.judged();
    assert_eq!((v.kind, v.exit_code()), (Kind::Busy, 0));
    assert_eq!(v.headline, "BUSY: nothing is stuck; 1 of 4 threads runs, 3 wait for a lock");
    assert!(v.stalls.is_empty() && v.notes.is_empty());
}

#[test]
fn a_gil_between_two_owners_is_busy_work() {
    // the GIL is free for an instant: its waiters are not stalled
    let mut made = Made::new();
    let gil = made.gil();
    for i in 0..3 {
        let t = made.thread(1 + i, "python");
        made.waits(t, gil);
    }
    for two in [false, true] {
        if two {
            made.two_looks(&[]);
        }
        let v = made.judged();
        assert!(matches!(v.kind, Kind::Busy | Kind::Idle), "{}", v.headline);
    }
}

#[test]
fn all_wait_behind_one_that_waits_outside() {
    let mut made = Made::new();
    let gil = made.gil();
    let main = made.thread(402, "MainThread");
    let socket = made.resource(ResourceKind::Socket, "recvfrom from fd 7", 0x20);
    made.holds(main, gil);
    made.waits(main, socket);
    for i in 0..6 {
        let t = made.thread(403 + i, "load");
        made.waits(t, gil);
    }
    made.two_looks(&[]);
    let v = made.judged();
    assert_eq!((v.kind, v.exit_code(), v.certainty), (Kind::Stalled, 3, Some(Certainty::Recorded)));
    assert_eq!(
        v.headline,
        "STALLED, no cycle: thread 402 “MainThread” holds the GIL and waits in recvfrom from fd 7; 6 threads wait behind it"
    );
    assert_eq!(v.stalls[0].pattern, "io-wait");
    assert!(v.stalls[0].advice.starts_with("Let go of the GIL"), "{}", v.stalls[0].advice);
    assert_eq!(v.blocked_behind.len(), 6);
    assert_eq!(v.root_causes[0].thread, Some(main));
    made.two_looks(&[main]);
    assert_eq!(made.judged().kind, Kind::Busy, "its holder moves");
}

#[test]
fn one_look_says_that_it_cannot_tell() {
    let (mut made, ..) = abba();
    made.facts.waits.clear();
    let v = made.judged();
    assert!(v.notes.iter().any(|n| n.contains("cannot tell hung from slow")));
    made.two_looks(&[]);
    assert!(made.judged().notes.is_empty());
}

#[test]
fn a_lock_of_unknown_holder_stalls_where_nobody_runs() {
    let mut made = Made::new();
    let m = made.resource(ResourceKind::AllocatorLock, "", 0x10);
    let t = made.thread(1, "a");
    made.waits(t, m);
    for two in [false, true] {
        if two {
            made.two_looks(&[]);
        }
        let v = made.judged();
        assert_eq!(v.kind, Kind::Stalled);
        assert!(v.headline.contains("whose holder is not recorded"), "{}", v.headline);
    }
    made.moved = None;
    made.running(2, "b");
    assert_eq!(made.judged().kind, Kind::Busy, "one look: who runs may be about to give it back");
}

#[test]
fn who_is_about_to_run_may_hold_what_nobody_is_known_to_hold() {
    let mut made = Made::new();
    let (first, second) = (made.mutex("first", 0x10), made.resource(ResourceKind::PythonLock, "second", 0x20));
    let (a, b, c) = (made.thread(1, "a"), made.thread(2, "b"), made.thread(3, "c"));
    made.waits(a, first);
    made.holds(b, first);
    made.waits(b, second);
    assert_eq!(made.judged().kind, Kind::Stalled);
    made.state(c, 'R');
    assert_eq!(made.judged().kind, Kind::Busy, "one look");
    // two looks: one that runs has had the time to give it back
    made.two_looks(&[c]);
    assert_eq!(made.judged().kind, Kind::Stalled);
    made.starved = vec![c];
    assert_eq!(made.judged().kind, Kind::Busy, "it got no CPU");
    // what is held is held whoever runs
    let gil = made.gil();
    made.holds(a, second);
    made.starved.clear();
    made.waits(c, gil);
    assert!(made.judged().kind.is_stuck(), "{}", made.judged().headline);
}

#[test]
fn state_d_seen_twice_is_named() {
    let mut made = Made::new();
    let t = made.thread(402, "reader");
    made.state(t, 'D');
    assert_eq!(made.judged().kind, Kind::Idle);
    made.two_looks(&[]);
    let v = made.judged();
    assert_eq!(v.kind, Kind::Stalled);
    assert!(v.headline.starts_with("BLOCKED IN THE KERNEL"), "{}", v.headline);
    assert_eq!(v.stalls[0].pattern, "io-wait");
}

#[test]
fn in_part_and_nothing_found_is_code_4() {
    let (mut made, ..) = abba();
    made.partial = true;
    assert_eq!(made.judged().exit_code(), 1);
    made.facts.waits.clear();
    assert_eq!(made.judged().exit_code(), 4);
}

#[test]
fn threads_that_nobody_can_place_are_not_called_idle() {
    let (mut made, ..) = abba();
    made.unplaced = 1;
    assert_eq!(made.judged().kind, Kind::Deadlock);
    made.facts.waits.clear();
    let said = |made: &Made| (made.judged().exit_code(), made.judged().headline);
    let (code, headline) = said(&made);
    assert_eq!(code, 4);
    assert!(
        headline.starts_with("CANNOT TELL: 1 of ") && headline.ends_with("nothing else is seen to be stuck"),
        "{headline}"
    );
    made.unplaced = 100;
    assert!(said(&made).1.starts_with("CANNOT TELL: all "));
}

#[test]
fn two_processes_meet_at_a_shared_mutex() {
    let mut made = Made::new();
    let shared = |n| ResourceId::Shared { device: (0, 5), inode: 77, offset: n };
    let a = made.thread(10, "a");
    let here = made.mutex("", 0x10);
    let mut other = made.entry(here).clone();
    other.id = shared(0);
    made.facts.resources.push(other.clone());
    other.id = shared(64);
    made.facts.resources.push(other);
    made.next_process();
    let b = made.thread(20, "b");
    made.holds(a, shared(0));
    made.waits(a, shared(64));
    made.holds(b, shared(64));
    made.waits(b, shared(0));
    let v = made.judged();
    assert_eq!(v.kind, Kind::Deadlock);
    assert!(v.headline.contains("thread 10 “a” of process 4000"), "{}", v.headline);
    assert!(v.headline.contains("thread 20 “b” of process 4001"), "{}", v.headline);
}

#[test]
fn an_any_of_wait_over_several_holders_is_no_cycle() {
    let mut made = Made::new();
    let s = made.resource(ResourceKind::PythonSemaphore, "slots", 0x10);
    made.entry(s).wakers = Wakers::Holders;
    let m = made.mutex("m", 0x20);
    let (a, b, c) = (made.thread(1, "a"), made.thread(2, "b"), made.running(3, "c"));
    made.holds(a, m);
    made.waits(a, s).mode = Mode::Any;
    made.holds(b, s).mode = Mode::Any;
    made.holds(c, s).mode = Mode::Any;
    made.waits(b, m);
    assert!(!made.judged().kind.is_stuck(), "c may still give its slot back");
}

#[test]
fn equal_facts_in_another_order_give_an_equal_verdict() {
    let mut made = Made::loader_against_gil();
    let first = made.judged();
    made.facts.waits.reverse();
    made.facts.holds.reverse();
    made.facts.resources.reverse();
    made.facts.managed.reverse();
    assert_eq!(made.judged(), first);
}

#[test]
fn names_from_the_target_cannot_write_on_the_terminal() {
    let (mut made, ..) = abba();
    let evil = made.thread(12, "\u{1b}[2Jevil\n\u{202e}name");
    made.waits(evil, ResourceId::At(evil.process, crate::units::Addr(0x1000)));
    made.joins(ThreadRef { process: evil.process, thread: 0 }, evil).frame = FrameIx(9);
    let v = made.judged();
    assert!(!v.headline.contains(['\u{1b}', '\n', '\u{202e}']), "{:?}", v.headline);
}

#[test]
fn a_full_pipe_whose_reader_waits_for_the_writer() {
    let mut made = Made::new();
    let parent = made.thread(1, "parent");
    let exit = made.resource(ResourceKind::ProcessExit, "child 2", 0x20);
    made.next_process();
    let child = made.thread(2, "child");
    let pipe = made.resource(ResourceKind::Pipe, "write to fd 1 (pipe 7)", 0x30);
    for (waits, on, could) in [(parent, exit, child), (child, pipe, parent)] {
        made.entry(on).wakers = crate::facts::Wakers::Holders;
        made.waits(waits, on).mode = Mode::Any;
        let hold = made.holds(could, on);
        (hold.mode, hold.certainty) = (Mode::Any, Certainty::Inferred);
    }
    made.entry(pipe).idle = false;
    made.two_looks(&[]);
    let v = made.judged();
    assert_eq!((v.kind, v.certainty), (Kind::Deadlock, Some(Certainty::Inferred)));
    assert_eq!((v.cycles.len(), v.cycles[0].pattern), (1, "pipe-full"));
    // the same where the child waits for something to read
    made.entry(pipe).idle = true;
    let v = made.judged();
    assert_eq!((v.cycles.len(), v.cycles[0].pattern), (1, "peer-wait"));
    assert!(v.cycles[0].explanation.contains("writing end"), "{}", v.cycles[0].explanation);
    // a thread of the parent that may read it later
    made.two_looks(&[parent]);
    assert_eq!(made.judged().kind, Kind::Busy);
}

/// Main holds the GIL and polls for a signal of the GPU; two others want the GIL.
fn gil_across_gpu() -> (Made, ThreadRef) {
    let mut made = Made::new();
    let gil = made.gil();
    let main = made.running(402, "MainThread");
    let signal = made.resource(ResourceKind::GpuSignal, "", 0x7f00);
    made.entry(signal).wakers = Wakers::Outside;
    made.holds(main, gil);
    made.waits(main, signal);
    let state = vec!["queue 0x10 has 3 packets pending (read 118, write 121)".to_owned()];
    made.facts
        .devices
        .insert(main, DeviceWait { polls: true, over: false, pulse: vec![1, 2, 3], state, ..DeviceWait::default() });
    for i in 0..2 {
        let t = made.thread(403 + i, "load");
        made.waits(t, gil).timeout = Timeout::Periodic;
    }
    (made, main)
}

#[test]
fn a_thread_that_polls_a_device_gets_on_only_with_the_device() {
    let (mut made, main) = gil_across_gpu();
    made.two_looks(&[main]);
    let v = made.judged();
    assert_eq!((v.kind, v.stalls[0].pattern, v.stalls[0].behind.len()), (Kind::Stalled, "gil-held-across-wait", 2));
    assert!(v.headline.starts_with("WAITING FOR THE GPU, no cycle: thread 402"), "{}", v.headline);
    let said = &v.stalls[0].explanation;
    assert!(said.contains("Queue 0x10 has 3 packets pending (read 118, write 121)."), "{said}");
    made.devices_moved = vec![main];
    assert_eq!(made.judged().kind, Kind::Busy, "the queue moved on");
}

#[test]
fn what_a_device_has_done_is_not_waited_for_unless_the_event_was_lost() {
    let (mut made, main) = gil_across_gpu();
    made.facts.devices.get_mut(&main).unwrap().over = true;
    made.two_looks(&[main]);
    assert_eq!(made.judged().kind, Kind::Busy, "it is about to see it");
    made.facts.devices.get_mut(&main).unwrap().polls = false;
    made.state(main, 'S');
    made.moved = None;
    assert_eq!(made.judged().kind, Kind::Busy, "one look: it is about to wake");
    made.two_looks(&[]);
    assert_eq!(made.judged().kind, Kind::Stalled, "it still sleeps at the second look");
}

#[test]
fn a_cycle_through_the_gpu_is_inferred_and_told_as_one() {
    let (mut made, main) = gil_across_gpu();
    let callback = made.thread(410, "callback");
    let (gil, signal) = (made.gil(), made.resource(ResourceKind::GpuSignal, "", 0x7f00));
    made.entry(signal).wakers = Wakers::Holders;
    made.waits(callback, gil).timeout = Timeout::Periodic;
    made.holds(callback, signal).certainty = Certainty::Inferred;
    made.two_looks(&[main]);
    let v = made.judged();
    assert_eq!((v.kind, v.certainty), (Kind::Deadlock, Some(Certainty::Inferred)));
    assert_eq!(v.cycles[0].pattern, "gil-held-across-wait");
    assert!(v.headline.contains("the GPU waits for a callback in thread 410"), "{}", v.headline);
    assert!(v.cycles[0].explanation.contains("is inferred"), "{}", v.cycles[0].explanation);
}

#[test]
fn a_lock_that_changes_hands_stalls_nobody() {
    let mut made = Made::new();
    let main = made.thread(1, "main");
    let lock = made.mutex("results", 0x20);
    let waiters: Vec<ThreadRef> = (0..3).map(|i| made.thread(2 + i, "wants")).collect();
    for t in &waiters {
        made.waits(*t, lock);
    }
    made.joins(main, waiters[0]);
    made.two_looks(&[]);
    assert_eq!(made.judged().kind, Kind::Stalled);
    // one of those who wait was woken meanwhile: the lock was given back
    made.slept_anew = vec![waiters[2]];
    let v = made.judged();
    assert_eq!((v.kind, v.stalls.len()), (Kind::Busy, 0), "{}", v.headline);
    // one came to it only now: that says nothing of the lock
    made.slept_anew.clear();
    made.two_looks(&[waiters[2]]);
    assert_eq!(made.judged().kind, Kind::Stalled);
}

#[test]
fn a_lock_that_records_no_owner_may_be_a_running_thread_s() {
    let mut made = Made::new();
    let lock = made.mutex("TABLE", 0x20);
    let (t, runs) = (made.thread(1, "wants"), made.running(2, "computes"));
    made.waits(t, lock);
    made.two_looks(&[runs]);
    assert_eq!(made.judged().kind, Kind::Stalled);
    made.facts.unseen.insert(lock);
    assert_eq!(made.judged().kind, Kind::Busy);
    made.two_looks(&[]);
    made.state(runs, 'S');
    assert_eq!(made.judged().kind, Kind::Stalled, "nobody runs");
}
