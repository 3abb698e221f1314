//! Cycles through locks that others than the holder may give back.

use super::abba;
use crate::facts::{Certainty, Holder, ResourceKind, SignalHandler};
use crate::units::{ProcessIx, Tid};
use crate::verdict::Kind;
use crate::verdict::made_up::Made;

/// Two threads in each other's way by locks that anyone may give back; no handler of a signal.
fn by_hand() -> Made {
    let (mut made, ..) = abba();
    for id in made.facts.resources.iter().map(|r| r.id).collect::<Vec<_>>() {
        made.facts.returnable.insert(id, "it was taken by hand".to_owned());
    }
    made.facts.handlers.insert(ProcessIx(0), Vec::new());
    made
}

#[test]
fn it_is_a_deadlock_where_nobody_is_left_to_give_one_back() {
    let mut made = by_hand();
    assert_eq!(made.judged().kind, Kind::Deadlock);
    // who only waits for those could not either
    let main = made.thread(12, "MainThread");
    let first = made.facts.holds[0].holder;
    let crate::facts::Holder::Thread(first) = first else { panic!("{first:?}") };
    made.joins(main, first);
    assert_eq!(made.judged().kind, Kind::Deadlock);
}

#[test]
fn it_is_suspected_where_somebody_may() {
    let mut made = by_hand();
    let reader = made.thread(12, "reader");
    let pipe = made.resource(ResourceKind::Pipe, "", 0x3000);
    made.waits(reader, pipe);
    let v = made.judged();
    assert!(!v.kind.is_stuck() && v.cycles.is_empty(), "{}", v.headline);
    made.two_looks(&[]);
    let v = made.judged();
    assert_eq!(v.kind, Kind::Stalled);
    assert!(v.headline.starts_with("STALLED, a deadlock suspected, not proven: thread 10"), "{}", v.headline);
    assert_eq!(v.stalls.iter().filter(|s| !s.suspected.is_empty()).count(), 1, "told once");
    assert!(v.stalls[0].explanation.contains("taken by hand"), "{}", v.stalls[0].explanation);
    // a hold that only its holder can end is proof enough
    made.facts.returnable.clear();
    assert_eq!(made.judged().kind, Kind::Deadlock);
}

#[test]
fn the_handler_of_a_signal_may() {
    let mut made = by_hand();
    made.facts.handlers.insert(ProcessIx(0), vec![SignalHandler { signal: 10, function: None }]);
    assert!(!made.judged().kind.is_stuck());
    // nor is it known of a process of which nothing tells whether it has any
    made.facts.handlers.clear();
    assert!(!made.judged().kind.is_stuck());
}

#[test]
fn a_lock_left_behind_at_a_fork_may_be_given_back_by_a_handler() {
    let mut made = Made::new();
    let t = made.thread(10, "MainThread");
    let lock = made.resource(ResourceKind::PythonLock, "L", 0x10);
    made.held_by(Holder::Gone(ProcessIx(0), Tid(0)), lock).certainty = Certainty::Inferred;
    made.waits(t, lock);
    made.facts.handlers.insert(ProcessIx(0), Vec::new());
    assert_eq!(made.judged().kind, Kind::OrphanedLock);
    made.facts.handlers.insert(ProcessIx(0), vec![SignalHandler { signal: 14, function: None }]);
    assert_eq!(made.judged().kind, Kind::Stalled);
    made.facts.handlers.clear();
    assert_eq!(made.judged().kind, Kind::Stalled, "whether there is one is not known");
    made.facts.shutting_down.insert(ProcessIx(0));
    assert_eq!(made.judged().kind, Kind::OrphanedLock, "who took it ended with the interpreter");
    made.facts.shutting_down.clear();
    made.two_looks(&[t]);
    assert_eq!(made.judged().kind, Kind::Busy);
    // one that records its owner is nobody else's to give back
    made.facts.holds[0].certainty = Certainty::Recorded;
    assert_eq!(made.judged().kind, Kind::OrphanedLock);
}
