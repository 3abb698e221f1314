//! Verdicts that rest on what an interpreter tells: its locks, its handlers, its pools and loops.

use super::Made;
use super::{Kind, Verdict};
use crate::facts::{
    Certainty, Entered, Holder, Mode, Reentrancy, ResourceId, ResourceKind, SignalHandler, TakenAt, Task, Wakers,
};
use crate::target::Parent;
use crate::units::{Addr, FrameIx, Pid, ProcessIx, ThreadRef, Tid};

/// Main joins a worker, which waits for a signal of this kind; the interpreter has these signal handlers.
fn signalled(kind: ResourceKind, handlers: Option<Vec<SignalHandler>>) -> (Made, ThreadRef, ThreadRef) {
    let mut made = Made::new();
    let (main, worker) = (made.thread(1, "MainThread"), made.thread(2, "worker"));
    let signal = made.resource(kind, "it", 0x20);
    made.entry(signal).wakers = Wakers::AnyThread;
    made.joins(main, worker);
    made.waits(worker, signal).mode = Mode::Any;
    made.facts.handlers.extend(handlers.map(|h| (ProcessIx(0), h)));
    made.two_looks(&[]);
    (made, main, worker)
}

#[test]
fn nobody_is_left_to_give_a_signal() {
    let (made, main, worker) = signalled(ResourceKind::PythonBarrier, Some(Vec::new()));
    let v = made.judged();
    assert_eq!((v.kind, v.certainty, v.exit_code()), (Kind::Stalled, Some(Certainty::Inferred), 3));
    let stall = &v.stalls[0];
    assert_eq!((stall.pattern, stall.root, stall.behind.as_slice()), ("lost-wakeup-suspected", worker, &[main][..]));
    assert_eq!(
        v.headline,
        "STALLED, nobody is left to wake it: thread 2 “worker” waits for it; 1 thread waits behind it"
    );
}

#[test]
fn somebody_may_be_left_to_give_a_signal() {
    let kind = |made: &Made| made.judged().kind;
    let (made, ..) = signalled(ResourceKind::PythonBarrier, None);
    let v = made.judged();
    assert_eq!(v.kind, Kind::Stalled);
    let said = &v.stalls[0].explanation;
    assert!(said.contains("whether the program has such a handler is not known"), "{said}");
    let handler = SignalHandler { signal: 15, function: Some("stop".to_owned()) };
    let (made, ..) = signalled(ResourceKind::PythonBarrier, Some(vec![handler]));
    assert_eq!(kind(&made), Kind::Idle, "a handler may give it");
    let (mut made, ..) = signalled(ResourceKind::PythonBarrier, Some(Vec::new()));
    let other = made.thread(3, "reader");
    let pipe = made.resource(ResourceKind::Pipe, "pipe", 0x30);
    made.entry(pipe).wakers = Wakers::Outside;
    made.waits(other, pipe);
    assert_eq!(kind(&made), Kind::Idle, "a thread that the outside wakes");
    let (mut made, ..) = signalled(ResourceKind::PythonBarrier, Some(Vec::new()));
    made.thread(3, "unknown");
    assert_eq!(kind(&made), Kind::Idle, "a thread of which nothing is known");
    let (mut made, _, worker) = signalled(ResourceKind::PythonBarrier, Some(Vec::new()));
    made.two_looks(&[worker]);
    assert_eq!(kind(&made), Kind::Busy, "it moved");
    let (mut made, ..) = signalled(ResourceKind::PythonBarrier, Some(Vec::new()));
    let native = made.thread(3, "native");
    let semaphore = made.resource(ResourceKind::Semaphore, "asked", 0x30);
    made.entry(semaphore).wakers = Wakers::AnyThread;
    made.entry(semaphore).idle = true;
    made.waits(native, semaphore);
    assert_eq!(kind(&made), Kind::Stalled, "a handler in C may post it, and there is none");
    made.caught = Some(1 << 9);
    assert_eq!(kind(&made), Kind::Idle, "a handler in C may post it");
}

#[test]
fn threads_that_all_wait_for_work_are_at_rest() {
    let pool = |main: ResourceKind, other: ResourceKind| {
        let mut made = Made::new();
        for (at, kind) in [(0x20, main), (0x30, other)] {
            let t = made.thread(i32::try_from(at).unwrap(), "t");
            let on = made.resource(kind, "", at);
            made.entry(on).wakers = Wakers::AnyThread;
            made.entry(on).idle = true;
            made.waits(t, on).mode = Mode::Any;
        }
        made.facts.handlers.insert(ProcessIx(0), Vec::new());
        made.two_looks(&[]);
        made.judged().kind
    };
    let (queue, event) = (ResourceKind::PythonQueue, ResourceKind::PythonEvent);
    assert_eq!([pool(queue, queue), pool(event, queue), pool(event, event)], [Kind::Idle, Kind::Idle, Kind::Stalled]);
}

/// A thread that holds a Python lock taken in `lazy_call`, and takes it again in `inner` below `between`.
fn python_relock(between: &str, native: &[&str]) -> Made {
    let mut made = Made::new();
    let t = made.thread(7, "user");
    let mut stack = vec!["sem_wait libc.so.6", "_PyEval_EvalFrameDefault libpython3.11.so.1.0"];
    stack.extend(native);
    stack.push("_PyEval_EvalFrameDefault libpython3.11.so.1.0");
    let outer = u32::try_from(stack.len() - 1).unwrap();
    made.native(t, &stack);
    made.python(t, None, &[("inner", "/a.py", 5, 1), (between, "/a.py", 9, 1), ("lazy_call", "/a.py", 7, outer)]);
    let lock = made.resource(ResourceKind::PythonLock, "app._lock", 0x10);
    made.holds(t, lock).taken_at_managed = Some(TakenAt { frame: 2, line: Some(6) });
    let wait = made.waits(t, lock);
    wait.managed_frame = Some(0);
    wait.frame = FrameIx(1);
    made
}

#[test]
fn what_stands_between_two_takings_decides_their_pattern() {
    let libpython = "libpython3.11.so.1.0";
    for (between, native, pattern, words) in [
        ("seed_all", vec![], "non-reentrant-relock", "Between the two: seed_all."),
        ("Session.__del__", vec![], "finalizer-relock", "Session.__del__ runs between the two"),
        ("cb", vec![format!("handle_weakrefs {libpython}")], "finalizer-relock", "weakref callback"),
        (
            "on_term",
            vec![format!("_PyErr_CheckSignalsTstate {libpython}")],
            "signal-handler-relock",
            "A signal handler runs",
        ),
    ] {
        let native: Vec<&str> = native.iter().map(String::as_str).collect();
        let v = python_relock(between, &native).judged();
        assert_eq!(v.kind, Kind::SelfDeadlock);
        assert_eq!(v.cycles[0].pattern, pattern, "{between}");
        let told = &v.cycles[0].explanation;
        assert!(told.contains(words) && told.contains("took in lazy_call (a.py:6)"), "{told}");
    }
}

#[test]
fn a_signal_frame_between_two_takings_of_a_mutex() {
    let mut made = Made::new();
    let t = made.thread(7, "main");
    made.native(
        t,
        &["pthread_mutex_lock libc.so.6", "on_term app", "SIGNAL libc.so.6", "memcpy libc.so.6", "update app"],
    );
    let m = made.mutex("state", 0x10);
    made.holds(t, m).taken_at = Some(FrameIx(4));
    made.waits(t, m);
    let v = made.judged();
    assert_eq!(v.cycles[0].pattern, "signal-handler-relock");
    assert!(v.cycles[0].explanation.contains("took in update"), "{}", v.cycles[0].explanation);
    assert!(v.cycles[0].explanation.contains("Between the two: on_term."), "{}", v.cycles[0].explanation);
}

/// A pool whose two workers are in tasks; the first `waiting` of them wait for more of the pool's work.
fn exhausted_pool(waiting: usize) -> (Made, Vec<ThreadRef>) {
    let mut made = Made::new();
    let pool = made.resource(ResourceKind::WorkerPool, "executor \"io\"", 0x5000);
    let workers: Vec<ThreadRef> = (0..2).map(|i| made.thread(20 + i, &format!("io_{i}"))).collect();
    for (i, w) in workers.iter().enumerate() {
        let hold = made.holds(*w, pool);
        (hold.mode, hold.certainty) = (Mode::Shared, Certainty::Witnessed);
        if i < waiting {
            made.waits(*w, pool).mode = Mode::Any;
        }
    }
    (made, workers)
}

#[test]
fn a_pool_whose_workers_wait_for_its_work() {
    let (made, workers) = exhausted_pool(2);
    let v = made.judged();
    assert_eq!((v.kind, v.certainty), (Kind::Deadlock, Some(Certainty::Witnessed)));
    let [cycle] = v.cycles.as_slice() else { panic!("{:?}", v.cycles) };
    assert_eq!(cycle.pattern, "pool-self-wait");
    assert_eq!(cycle.steps.iter().map(|s| s.thread).collect::<Vec<_>>(), workers);
    assert!(cycle.explanation.contains("All 2 workers"), "{}", cycle.explanation);
}

#[test]
fn a_worker_that_is_still_at_work_saves_the_pool() {
    let (made, _) = exhausted_pool(1);
    assert!(!made.judged().kind.is_stuck());
}

#[test]
fn queued_work_that_waits_for_its_own_submitter() {
    // main keeps a lock and waits for queued work; the pool's workers want the lock
    let (mut made, workers) = exhausted_pool(0);
    let lock = made.resource(ResourceKind::PythonLock, "lock", 0x6000);
    let pool = made.facts.holds[0].of;
    let main = made.thread(10, "MainThread");
    made.holds(main, lock).certainty = Certainty::Witnessed;
    made.waits(main, pool).mode = Mode::Any;
    for w in &workers {
        made.waits(*w, lock);
    }
    let v = made.judged();
    assert_eq!(v.kind, Kind::Deadlock);
    let [cycle] = v.cycles.as_slice() else { panic!("{:?}", v.cycles) };
    assert_eq!((cycle.pattern, cycle.steps.len()), ("pool-self-wait", 2));
}

/// A forked process whose thread waits for a mutex of this owner.
fn forked_with_owner(owner: i32) -> Verdict {
    let mut made = Made::new();
    made.parent =
        Some(Parent { pid: Pid(3900), threads: vec![(Tid(3900), "main".into()), (Tid(3905), "keeper".into())] });
    let m = made.mutex("registry", 0x1000);
    let leader = made.thread(4000, "child");
    made.held_by(Holder::Gone(leader.process, Tid(owner)), m);
    made.waits(leader, m);
    made.judged()
}

#[test]
fn an_owner_that_stayed_behind_at_the_fork() {
    let v = forked_with_owner(3905);
    assert_eq!((v.kind, v.orphans[0].pattern), (Kind::OrphanedLock, "fork-inherited-lock"));
    let told = &v.orphans[0].explanation;
    assert!(told.contains("its owner is 3905, the thread “keeper” of the parent 3900"), "{told}");
    // ended in the parent since: but its id is older than the process
    let v = forked_with_owner(3990);
    assert_eq!(v.orphans[0].pattern, "fork-inherited-lock");
    // begun after the fork: a thread of this very process that ended
    let v = forked_with_owner(4007);
    assert_eq!(v.orphans[0].pattern, "dead-owner");
}

#[test]
fn an_owner_that_the_interpreter_has_frozen() {
    let mut made = Made::new();
    let lock = made.resource(ResourceKind::PythonRlock, "log_lock", 0x1000);
    let main = made.thread(4000, "MainThread");
    let daemon = made.thread(4001, "daemon");
    made.held_by(Holder::Gone(daemon.process, Tid(4001)), lock);
    made.waits(main, lock);
    let v = made.judged();
    assert_eq!((v.kind, v.orphans[0].pattern), (Kind::OrphanedLock, "dead-owner"));
    assert!(
        v.headline.contains("held by thread 4001 “daemon”, which the shutdown of the interpreter has frozen"),
        "{}",
        v.headline
    );
}

/// A task of the loop that `runs` runs.
fn task(made: &mut Made, runs: ThreadRef) -> &mut Task {
    let id = ResourceId::At(runs.process, Addr(0x9000));
    made.facts.tasks.push(Task {
        id,
        name: "Task-2".into(),
        thread: Some(runs),
        place: Some("work (loop.py:5)".into()),
        awaits: None,
        holds: Vec::new(),
        completes: Vec::new(),
    });
    made.facts.tasks.last_mut().unwrap()
}

#[test]
fn a_loop_that_blocks_on_its_own_future() {
    let mut made = Made::new();
    let future = made.resource(ResourceKind::PythonFuture, "the future of task “Task-2”", 0x1000);
    made.facts.resources[0].reentrancy = Reentrancy::Plain;
    let main = made.thread(10, "MainThread");
    made.holds(main, future).certainty = Certainty::Witnessed;
    made.waits(main, future);
    task(&mut made, main).completes.push(future);
    let v = made.judged();
    assert_eq!((v.kind, v.cycles[0].pattern), (Kind::SelfDeadlock, "pool-self-wait"));
    assert!(
        v.headline.ends_with("waits for the future of task “Task-2”, which only its own event loop can complete"),
        "{}",
        v.headline
    );
    let told = &v.cycles[0].explanation;
    assert!(
        told.contains("blocks on the future of task “Task-2”, suspended in work (loop.py:5), which belongs"),
        "{told}"
    );
}

#[test]
fn a_lock_held_across_an_await() {
    let mut made = Made::new();
    let lock = made.resource(ResourceKind::PythonLock, "jobs", 0x1000);
    let main = made.thread(10, "MainThread");
    made.holds(main, lock).certainty = Certainty::Witnessed;
    made.waits(main, lock);
    task(&mut made, main).holds.push(lock);
    let v = made.judged();
    assert_eq!((v.kind, v.cycles[0].pattern), (Kind::SelfDeadlock, "pool-self-wait"));
    assert!(v.headline.contains("which task “Task-2” of its own event loop holds"), "{}", v.headline);
    assert!(
        v.cycles[0].explanation.starts_with("Task “Task-2”, suspended in work (loop.py:5), holds"),
        "{}",
        v.cycles[0].explanation
    );
}

#[test]
fn a_python_signal_handler_is_named() {
    let mut made = Made::new();
    let lock = made.resource(ResourceKind::PythonLock, "stats", 0x1000);
    let main = made.thread(10, "MainThread");
    let hold = made.holds(main, lock);
    hold.certainty = Certainty::Witnessed;
    hold.taken_at_managed = Some(TakenAt { frame: 1, line: Some(7) });
    made.waits(main, lock).managed_frame = Some(0);
    made.python(main, None, &[("on_term", "app.py", 5, 4), ("update", "app.py", 8, 9)]);
    // without knowing what entered the handler it is a plain second taking
    assert_eq!(made.judged().cycles[0].pattern, "non-reentrant-relock");
    made.facts.managed[0].1.frames[0].entered = Some(Entered::Signal(15));
    let v = made.judged();
    assert_eq!(v.cycles[0].pattern, "signal-handler-relock");
    assert!(
        v.cycles[0].explanation.contains("The handler of SIGTERM, on_term (app.py:5), runs"),
        "{}",
        v.cycles[0].explanation
    );
    made.facts.managed[0].1.frames[0].entered = Some(Entered::WeakReference);
    assert_eq!(made.judged().cycles[0].pattern, "finalizer-relock");
}

#[test]
fn who_was_caught_between_two_waits_for_the_gil_may_have_the_mutex_around_it() {
    let mut made = Made::new();
    let (main, other) = (made.thread(10, "MainThread"), made.running(11, "other"));
    let (mutex, gil) = (made.mutex("_PyRuntime+0x1b8", 0x1000), made.gil());
    // `__owner` is not set yet
    made.waits(main, mutex);
    made.waits(other, gil);
    assert_eq!(made.judged().kind, Kind::Busy);
    made.state(other, 'S');
    assert_eq!(made.judged().kind, Kind::Stalled);
}
