//! Graphs of made-up facts.

use super::{Graph, Step, display_name};
use crate::facts::{
    Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait,
    Wakers,
};
use crate::units::{Addr, FrameIx, ProcessIx, ThreadRef, Tid};

fn thread(n: u32) -> ThreadRef {
    ThreadRef { process: ProcessIx(0), thread: n }
}

fn at(n: u64) -> ResourceId {
    ResourceId::At(ProcessIx(0), Addr(n))
}

fn resource(id: ResourceId, kind: ResourceKind) -> Resource {
    Resource {
        id,
        kind,
        name: None,
        address: None,
        reentrancy: Reentrancy::Plain,
        wakers: Wakers::Holders,
        idle: false,
    }
}

fn wait(t: u32, on: ResourceId) -> Wait {
    Wait {
        thread: thread(t),
        on,
        mode: Mode::Exclusive,
        timeout: Timeout::None,
        frame: FrameIx(0),
        managed_frame: None,
        evidence: Vec::new(),
    }
}

fn hold(t: u32, of: ResourceId) -> Hold {
    Hold {
        holder: Holder::Thread(thread(t)),
        of,
        mode: Mode::Exclusive,
        certainty: Certainty::Recorded,
        taken_at: None,
        taken_at_managed: None,
        evidence: Vec::new(),
    }
}

/// Thread `i` of `n` holds lock `i` and waits for the next.
fn ring(n: u32) -> Facts {
    let mut facts = Facts::default();
    for i in 0..n {
        facts.resources.push(resource(at(u64::from(i)), ResourceKind::Mutex));
        facts.holds.push(hold(i, at(u64::from(i))));
        facts.waits.push(wait(i, at(u64::from((i + 1) % n))));
    }
    facts
}

#[test]
fn a_lock_given_back_during_a_wait_is_not_held_across_it() {
    // thread 0 holds the GIL (1) and wants its mutex (2), which thread 1 has between two waits for the GIL
    let mut facts = Facts {
        resources: vec![resource(at(1), ResourceKind::Gil), resource(at(2), ResourceKind::Mutex)],
        holds: vec![hold(0, at(1)), hold(1, at(2))],
        waits: vec![wait(0, at(2)), wait(1, at(1))],
        ..Facts::default()
    };
    assert_eq!(Graph::build(&facts).cycles.len(), 1);
    facts.given_back.insert(at(2), at(1));
    let graph = Graph::build(&facts);
    assert!(graph.cycles.is_empty() && graph.holders(at(2)).is_empty());
    assert_eq!((graph.blockers(thread(0)), graph.woken.contains(&thread(0))), (Vec::new(), true));
    // a signal handler that waits for something else keeps it for as long
    facts.resources.push(resource(at(3), ResourceKind::Mutex));
    facts.waits[1].on = at(3);
    facts.holds.push(hold(0, at(3)));
    let graph = Graph::build(&facts);
    assert_eq!((graph.cycles.len(), graph.woken.is_empty()), (1, true));
    // nor does a thread that is gone give it back
    facts.holds[1].holder = Holder::Gone(ProcessIx(0), Tid(9));
    assert_eq!(Graph::build(&facts).holders(at(2)).len(), 1);
}

#[test]
fn the_wait_nearest_the_application_is_the_threads_wait() {
    let mut facts = Facts {
        resources: vec![resource(at(1), ResourceKind::Gil), resource(at(2), ResourceKind::Condvar)],
        ..Facts::default()
    };
    let mut beneath = wait(0, at(2));
    beneath.frame = FrameIx(1);
    let mut near = wait(0, at(1));
    near.frame = FrameIx(3);
    for order in [[&beneath, &near], [&near, &beneath]] {
        facts.waits = order.map(Clone::clone).to_vec();
        let graph = Graph::build(&facts);
        assert_eq!(graph.waits[&thread(0)].on, at(1));
        assert_eq!(graph.beneath[&thread(0)][0].on, at(2));
        assert_eq!(graph.waiters(at(1)).collect::<Vec<_>>(), [thread(0)]);
        assert_eq!(graph.waiters(at(2)).count(), 0);
    }
}

#[test]
fn a_second_account_may_put_a_wait_nearest_the_application() {
    let mut facts = Facts {
        resources: vec![resource(at(1), ResourceKind::Mutex), resource(at(2), ResourceKind::Condvar)],
        ..Facts::default()
    };
    facts.waits =
        [(1, 1), (2, 2), (1, 3)].map(|(on, frame)| Wait { frame: FrameIx(frame), ..wait(0, at(on)) }).to_vec();
    let graph = Graph::build(&facts);
    assert_eq!((graph.waits[&thread(0)].on, graph.waits[&thread(0)].frame), (at(1), FrameIx(3)));
}

#[test]
fn who_is_behind_whom_is_who_blocks_whom_turned_round() {
    let mut facts = ring(3);
    facts.waits.push(wait(7, at(1)));
    let graph = Graph::build(&facts);
    assert_eq!(graph.behind(thread(1)), [thread(0), thread(7)]);
    assert!(graph.behind(thread(7)).is_empty());
}

#[test]
fn at_one_frame_the_resource_that_says_more_wins() {
    let mut facts = Facts {
        resources: vec![resource(at(1), ResourceKind::Futex), resource(at(2), ResourceKind::PythonLock)],
        ..Facts::default()
    };
    facts.waits = vec![wait(0, at(2)), wait(0, at(1))];
    assert_eq!(Graph::build(&facts).waits[&thread(0)].on, at(2));
}

#[test]
fn two_accounts_of_one_wait_are_one_and_claim_the_less() {
    let mut facts = Facts { resources: vec![resource(at(1), ResourceKind::Mutex)], ..Facts::default() };
    let (mut a, mut b) = (wait(0, at(1)), wait(0, at(1)));
    a.evidence = vec![Evidence::new("a")];
    b.evidence = vec![Evidence::new("b"), Evidence::new("a")];
    b.frame = FrameIx(2);
    b.timeout = Timeout::Seconds(2.0);
    facts.waits = vec![a, b];
    let graph = Graph::build(&facts);
    let one = &graph.waits[&thread(0)];
    assert_eq!((one.frame, one.timeout, one.evidence.len()), (FrameIx(2), Timeout::Seconds(2.0), 2));
    assert!(graph.beneath.is_empty());
}

#[test]
fn a_better_informed_decoder_describes_the_resource() {
    let mut facts = Facts::default();
    let mut futex = resource(at(1), ResourceKind::Futex);
    futex.wakers = Wakers::AnyThread;
    futex.name = Some("futex at 0x1".to_owned());
    let mut mutex = resource(at(1), ResourceKind::Rwlock);
    mutex.address = Some(Addr(1));
    for order in [[&futex, &mutex], [&mutex, &futex]] {
        facts.resources = order.map(Clone::clone).to_vec();
        let graph = Graph::build(&facts);
        let one = graph.resource(at(1)).unwrap();
        assert_eq!((one.kind, one.wakers), (ResourceKind::Rwlock, Wakers::Holders));
        assert_eq!(one.address, Some(Addr(1)));
    }
}

#[test]
fn contradicting_owners_prove_nothing() {
    let mut facts = ring(2);
    facts.holds.push(hold(5, at(0)));
    let graph = Graph::build(&facts);
    assert!(graph.disputed.contains(&at(0)) && graph.holders(at(0)).is_empty());
    assert!(graph.cycles.is_empty());
    assert_eq!(graph.notes.len(), 1);
    assert!(graph.notes[0].contains("contradict"), "{:?}", graph.notes);
}

#[test]
fn an_owner_that_is_gone_may_have_let_go_of_what_a_living_one_shows_to_hold() {
    let mut facts = ring(2);
    facts.holds[0].certainty = Certainty::Witnessed;
    facts.holds.push(Hold { holder: Holder::Gone(ProcessIx(0), Tid(77)), ..hold(9, at(0)) });
    let graph = Graph::build(&facts);
    assert!(graph.disputed.contains(&at(0)) && graph.cycles.is_empty());
    // a guess is no such sight
    facts.holds[0].certainty = Certainty::Inferred;
    let graph = Graph::build(&facts);
    assert!(matches!(graph.holders(at(0)), [one] if matches!(one.holder, Holder::Gone(..))));
}

#[test]
fn a_surer_owner_beats_a_guess_and_equal_facts_merge() {
    let mut facts = ring(2);
    let mut guess = hold(5, at(0));
    guess.certainty = Certainty::Inferred;
    facts.holds.insert(0, guess);
    let mut again = hold(0, at(0));
    again.certainty = Certainty::Witnessed;
    again.taken_at = Some(FrameIx(4));
    facts.holds.insert(0, again);
    let graph = Graph::build(&facts);
    let [one] = graph.holders(at(0)) else { panic!("{:?}", graph.holders(at(0))) };
    assert_eq!((one.certainty, one.taken_at), (Certainty::Recorded, Some(FrameIx(4))));
    assert_eq!(graph.cycles.len(), 1);
}

#[test]
fn what_nobody_described_proves_nothing() {
    let mut facts = ring(2);
    facts.resources.clear();
    assert!(Graph::build(&facts).cycles.is_empty());
}

#[test]
fn a_joined_thread_holds_its_own_end() {
    let facts = Facts {
        waits: vec![wait(0, ResourceId::ThreadExit(thread(1))), wait(1, ResourceId::ThreadExit(thread(0)))],
        ..Facts::default()
    };
    let graph = Graph::build(&facts);
    assert_eq!(graph.cycles.len(), 1);
    assert_eq!(graph.holders(ResourceId::ThreadExit(thread(1)))[0].certainty, Certainty::Recorded);
}

#[test]
fn cycles_begin_at_their_smallest_thread() {
    let mut facts = ring(3);
    facts.waits.rotate_left(2);
    let graph = Graph::build(&facts);
    let expected: Vec<Step> = (0..3)
        .map(|i| Step { thread: thread(i), waits_for: at(u64::from((i + 1) % 3)), held_by: thread((i + 1) % 3) })
        .collect();
    assert_eq!(graph.cycles, [expected]);
}

#[test]
fn readers_make_several_cycles_and_a_bound_ends_them() {
    // every thread reads every lock and waits to write one: each pair is a cycle, and so is each longer round
    let mut facts = Facts::default();
    let n = 9;
    for i in 0..n {
        facts.resources.push(resource(at(u64::from(i)), ResourceKind::Rwlock));
        facts.waits.push(wait(i, at(u64::from(i))));
        for j in (0..n).filter(|j| *j != i) {
            let mut read = hold(j, at(u64::from(i)));
            read.mode = Mode::Shared;
            facts.holds.push(read);
        }
    }
    let graph = Graph::build(&facts);
    assert_eq!(graph.cycles.len(), super::cycles::MAX_CYCLES);
    assert!(graph.notes.iter().any(|n| n.contains("cycles")), "{:?}", graph.notes);
    assert!(graph.cycles.is_sorted_by_key(|c| c.first().map(|s| s.thread)));
    for cycle in &graph.cycles {
        for (a, b) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
            assert_eq!(a.held_by, b.thread);
        }
    }
}

#[test]
fn a_ring_of_thousands_is_one_cycle() {
    let graph = Graph::build(&ring(5000));
    assert_eq!(graph.cycles.len(), 1);
    assert_eq!(graph.cycles[0].len(), 5000);
    assert!(graph.notes.is_empty());
}

#[test]
fn shared_takings_of_one_thread_do_not_exclude_each_other() {
    let mut facts = Facts::default();
    facts.resources.push(resource(at(0), ResourceKind::Rwlock));
    let mut read = hold(0, at(0));
    read.mode = Mode::Shared;
    facts.holds.push(read);
    let mut again = wait(0, at(0));
    again.mode = Mode::Shared;
    facts.waits.push(again);
    assert!(Graph::build(&facts).cycles.is_empty());
    // to write what one reads is a deadlock with oneself
    facts.waits[0].mode = Mode::Exclusive;
    assert_eq!(Graph::build(&facts).cycles.len(), 1);
}

#[test]
fn a_gone_owner_is_no_edge() {
    let mut facts = ring(2);
    facts.holds[0].holder = Holder::Gone(ProcessIx(0), Tid(77));
    assert!(Graph::build(&facts).cycles.is_empty());
}

#[test]
fn names_fall_back_to_kind_and_address() {
    let mut r = resource(at(0x10), ResourceKind::Mutex);
    assert_eq!(display_name(&r), "mutex");
    r.address = Some(Addr(0x10));
    assert_eq!(display_name(&r), "mutex at 0x10");
    r.name = Some("left".to_owned());
    assert_eq!(display_name(&r), "left");
}
