//! Closed sets, handlers of signals, deduced rings: who could end a wait, and who is named for it.

use super::{abba, pool_against_gil};
use crate::facts::{Certainty, Mode, ResourceId, ResourceKind, Timeout, Wakers};
use crate::units::ThreadRef;
use crate::verdict::Kind;
use crate::verdict::made_up::Made;

#[test]
fn a_closed_set_of_threads_is_stalled() {
    let mut made = Made::new();
    let (main, worker) = (made.thread(1, "main"), made.thread(2, "worker"));
    let c = made.resource(ResourceKind::Condvar, "", 0x20);
    made.joins(main, worker);
    made.waits(worker, c);
    made.two_looks(&[]);
    let v = made.judged();
    assert_eq!((v.kind, v.exit_code(), v.certainty), (Kind::Stalled, 3, Some(Certainty::Inferred)));
    assert_eq!(
        v.headline,
        "STALLED, nobody is left to wake it: thread 2 “worker” waits to be signalled on the condition variable at 0x20; 1 \
         thread waits behind it"
    );
    let said = &v.stalls[0].explanation;
    assert!(said.contains("thread 1 “main” waits for thread 2 “worker” to end"), "{said}");
    // no handler may signal a condition variable: what is caught changes nothing
    made.caught = None;
    assert_eq!(made.judged().kind, Kind::Stalled);
    // one thread that work arrives on, and it is a pool at rest
    let other = made.thread(3, "accepts");
    let socket = made.resource(ResourceKind::Socket, "accept on fd 3", 0x30);
    made.waits(other, socket);
    let v = made.judged();
    assert_eq!((v.kind, v.exit_code()), (Kind::Idle, 0), "{}", v.headline);
}

#[test]
fn a_closed_set_that_a_handler_may_open() {
    let mut made = Made::new();
    let (main, worker) = (made.thread(1, "main"), made.thread(2, "worker"));
    let s = made.resource(ResourceKind::Semaphore, "", 0x20);
    made.joins(main, worker);
    made.waits(worker, s);
    for two in [false, true] {
        if two {
            made.two_looks(&[]);
        }
        made.caught = Some(0);
        let v = made.judged();
        assert_eq!(v.kind, Kind::Stalled);
        assert!(v.stalls[0].explanation.contains("nothing can wake it any more"), "{}", v.stalls[0].explanation);
        made.caught = None;
        let v = made.judged();
        assert_eq!(v.kind, Kind::Stalled);
        assert!(v.stalls[0].explanation.contains("a core does not tell"), "{}", v.stalls[0].explanation);
        made.caught = Some(1 << 13);
        let v = made.judged();
        assert_eq!(v.kind, Kind::Idle);
        assert!(v.headline.contains("or for the handler of a signal"), "{}", v.headline);
        assert!(!v.headline.contains("nothing is stuck"), "{}", v.headline);
    }
}

/// One thread keeps a mutex while it waits for a semaphore; the other wants the mutex.
fn semaphore_under_mutex() -> Made {
    let mut made = Made::new();
    let (one, two) = (made.thread(1, "one"), made.thread(2, "two"));
    let (m, s) = (made.mutex("A", 0x10), made.resource(ResourceKind::Semaphore, "S", 0x20));
    made.holds(one, m);
    made.waits(one, s);
    made.waits(two, m);
    made
}

#[test]
fn a_semaphore_that_a_handler_may_post_makes_no_deadlock() {
    let mut made = semaphore_under_mutex();
    assert_eq!(made.judged().kind, Kind::Deadlock, "nothing is caught");
    for (caught, words) in [(None, "a core does not tell"), (Some(1 << 13), "handlers of signals")] {
        made.caught = caught;
        let v = made.judged();
        assert_eq!((v.kind, v.exit_code()), (Kind::Stalled, 3), "{}", v.headline);
        assert!(v.headline.starts_with("STALLED, a deadlock suspected, not proven: thread 1"), "{}", v.headline);
        assert!(v.stalls[0].explanation.contains(words), "{}", v.stalls[0].explanation);
    }
    // of a ring of mutexes no handler opens anything
    let (mut made, ..) = abba();
    made.caught = Some(1 << 13);
    assert_eq!(made.judged().kind, Kind::Deadlock);
}

#[test]
fn a_deduced_ring_stands_still_or_is_none() {
    let mut made = semaphore_under_mutex();
    let one = made.facts.waits[0].thread;
    made.two_looks(&[]);
    let v = made.judged();
    assert!(v.kind == Kind::Deadlock && !v.headline.contains("if it was not moving"), "{}", v.headline);
    made.two_looks(&[one]);
    assert_eq!(made.judged().kind, Kind::Busy);
    // by elimination among threads that run, in one look
    let (mut made, ..) = abba();
    made.facts.holds[0].certainty = Certainty::Inferred;
    assert_eq!(made.judged().kind, Kind::Deadlock);
    made.running(9, "runs");
    let v = made.judged();
    assert_eq!(v.kind, Kind::Busy, "{}", v.headline);
    assert!(v.notes.iter().any(|n| n.contains("if it was not moving")), "{:?}", v.notes);
    made.facts.holds[0].certainty = Certainty::Witnessed;
    assert_eq!(made.judged().kind, Kind::Deadlock, "what a stack proves stands after one look");
}

#[test]
fn who_should_signal_is_chosen_by_evidence() {
    let (mut made, main, workers) = pool_against_gil(1);
    // with a lower number than the pool's thread, and nothing to do with the pool
    let gil = made.facts.waits[1].on;
    let other = made.thread(99, "logger");
    made.waits(other, gil);
    made.native(main, &["pthread_cond_wait libc.so.6", "Pool::run libpool.so", "main python3"]);
    made.native(other, &["pthread_cond_timedwait libc.so.6", "log_forever liblog.so"]);
    made.native(workers[0], &["pthread_cond_timedwait libc.so.6", "Pool::work libpool.so"]);
    made.facts.waits.reverse();
    let v = made.judged();
    let [cycle] = v.cycles.as_slice() else { panic!("{:?}", v.cycles) };
    assert!(cycle.steps.iter().any(|s| s.held_by == workers[0]), "{}", v.headline);
    assert!(!v.headline.contains("logger"), "{}", v.headline);
    // nothing speaks for one of two threads of different make: nobody is named
    made.native(workers[0], &["pthread_cond_timedwait libc.so.6", "work libother.so"]);
    let v = made.judged();
    assert_eq!((v.kind, v.cycles.len()), (Kind::Stalled, 0), "{}", v.headline);
    assert!(v.stalls[0].behind.contains(&other) && v.stalls[0].behind.contains(&workers[0]));
}

#[test]
fn idle_is_no_word_for_a_child_or_a_full_pipe() {
    for (kind, idle, word) in
        [(ResourceKind::ProcessExit, false, "peer-wait"), (ResourceKind::Pipe, false, "pipe-full")]
    {
        let mut made = Made::new();
        let t = made.thread(1, "main");
        let r = made.resource(kind, "child 81", 0x20);
        (made.entry(r).wakers, made.entry(r).idle) = (Wakers::Outside, idle);
        made.waits(t, r);
        let v = made.judged();
        assert_eq!((v.kind, v.exit_code(), v.stalls[0].pattern), (Kind::Stalled, 3, word), "{}", v.headline);
        made.running(2, "computes");
        assert_eq!(made.judged().kind, Kind::Busy, "a thread of the same process runs");
    }
}

#[test]
fn a_futex_of_unknown_make_may_be_a_lock() {
    let mut made = Made::new();
    let runs = made.running(1, "runs");
    let word = made.resource(ResourceKind::Futex, "", 0x20);
    for i in 0..3 {
        let t = made.thread(2 + i, "row");
        made.waits(t, word);
    }
    made.two_looks(&[runs]);
    let v = made.judged();
    assert_eq!(v.headline, "BUSY: nothing is stuck; 1 of 4 threads runs, 3 wait for a futex, which may be a lock");
}

#[test]
fn an_idle_parent_hides_no_stuck_child() {
    let mut made = Made::new();
    let parent = made.thread(1, "parent");
    let poll = made.resource(ResourceKind::Poll, "poll on fd 3", 0x10);
    made.waits(parent, poll);
    made.next_process();
    let (a, b) = (made.thread(2, "child"), made.thread(3, "waits"));
    let c = made.resource(ResourceKind::Condvar, "", 0x20);
    made.joins(a, b);
    made.waits(b, c);
    made.two_looks(&[parent]);
    let v = made.judged();
    assert_eq!((v.kind, v.stalls[0].root), (Kind::Stalled, b), "{}", v.headline);
}

#[test]
fn a_cycle_that_is_retried_is_not_idle() {
    let (mut made, a, b) = abba();
    made.facts.waits[0].timeout = Timeout::Seconds(0.05);
    let v = made.judged();
    assert!(v.notes.iter().any(|n| n.ends_with("it may be one that is tried again and again")), "{:?}", v.notes);
    made.two_looks(&[a]);
    made.retried = true;
    let v = made.judged();
    assert_eq!((v.kind, v.exit_code()), (Kind::Stalled, 3), "{}", v.headline);
    assert!(v.headline.starts_with("STALLED, a deadlock suspected, not proven: thread 10"), "{}", v.headline);
    assert!(v.stalls[0].explanation.contains("a deadlock that is retried"), "{}", v.stalls[0].explanation);
    assert_eq!(v.stalls[0].suspected.iter().map(|s| s.thread).collect::<Vec<_>>(), [a, b]);
}

#[test]
fn a_full_pipe_is_named_as_long_as_its_reader_does_something_else() {
    let mut made = Made::new();
    let (writer, reader) = (made.thread(1, "writer"), made.thread(2, "reader"));
    let pipe = made.resource(ResourceKind::Pipe, "write to fd 1 (pipe 7)", 0x20);
    let poll = made.resource(ResourceKind::Epoll, "epoll on fd 3", 0x30);
    made.entry(pipe).idle = false;
    up_to(&mut made, writer, pipe, &[reader]);
    made.waits(reader, poll);
    made.two_looks(&[]);
    let v = made.judged();
    assert_eq!((v.kind, v.stalls[0].root), (Kind::Stalled, writer), "{}", v.headline);
    assert!(v.headline.ends_with("waits in write to fd 1 (pipe 7), which is full"), "{}", v.headline);
    let said = &v.stalls[0].explanation;
    assert!(said.contains("does not read: thread 2 “reader” waits in epoll on fd 3"), "{said}");
    made.two_looks(&[reader]);
    assert_eq!(made.judged().kind, Kind::Busy);
}

/// `waits` could be ended by any of `could`.
fn up_to(made: &mut Made, waits: ThreadRef, on: ResourceId, could: &[ThreadRef]) {
    made.entry(on).wakers = Wakers::Holders;
    made.waits(waits, on).mode = Mode::Any;
    for t in could {
        let hold = made.holds(*t, on);
        (hold.mode, hold.certainty) = (Mode::Any, Certainty::Inferred);
    }
}

#[test]
fn a_shell_that_waits_for_its_child_does_not_write_to_it() {
    let mut made = Made::new();
    // the shell has inherited the writing end; who writes is the feeder, which waits for what the child is to write
    let shell = made.thread(1, "sh");
    let exit = made.resource(ResourceKind::ProcessExit, "child 2", 0x10);
    made.next_process();
    let child = made.thread(2, "child");
    let input = made.resource(ResourceKind::Pipe, "read from fd 0 (pipe 7)", 0x20);
    made.next_process();
    let feeder = made.thread(3, "feeder");
    let output = made.resource(ResourceKind::Pipe, "read from fd 4 (pipe 8)", 0x30);
    up_to(&mut made, shell, exit, &[child]);
    up_to(&mut made, child, input, &[shell, feeder]);
    up_to(&mut made, feeder, output, &[child]);
    made.two_looks(&[]);
    let v = made.judged();
    let [cycle] = v.cycles.as_slice() else { panic!("{:?}", v.cycles) };
    assert_eq!(
        cycle.steps.iter().map(|s| (s.thread, s.held_by)).collect::<Vec<_>>(),
        [(child, feeder), (feeder, child)]
    );
    assert_eq!(v.kind, Kind::Deadlock);
}

#[test]
fn who_is_blocked_in_a_pipe_reads_it_not() {
    let mut made = Made::new();
    let (first, second, reader) = (made.thread(1, "first"), made.thread(2, "second"), made.thread(3, "reader"));
    let m = made.mutex("log", 0x10);
    let pipe = made.resource(ResourceKind::Pipe, "write to fd 1 (pipe 7)", 0x20);
    made.entry(pipe).idle = false;
    up_to(&mut made, first, pipe, &[first, second, reader]);
    made.waits(second, pipe).mode = Mode::Any;
    made.holds(second, m);
    made.waits(reader, m);
    made.two_looks(&[]);
    let v = made.judged();
    let [cycle] = v.cycles.as_slice() else { panic!("{:?}", v.cycles) };
    assert_eq!(
        cycle.steps.iter().map(|s| (s.thread, s.held_by)).collect::<Vec<_>>(),
        [(second, reader), (reader, second)]
    );
}
