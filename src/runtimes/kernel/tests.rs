use super::*;
use crate::facts::Holder;
use crate::runtimes::tests::MadeUp;
use crate::units::{Pid, ProcessIx};

fn decode(made: &MadeUp) -> Facts {
    made.decode(&KernelDecoder)
}

#[test]
fn poll_names_its_descriptors_and_its_limit() {
    let mut made = MadeUp::new();
    made.thread(100, Some((7, [0x5000, 3, 2500, 0, 0, 0])));
    for (i, fd) in [5i32, -1, 7].iter().enumerate() {
        made.memory.put_u32(Addr(0x5000 + 8 * i as u64), *fd as u32).put_u32(Addr(0x5004 + 8 * i as u64), 1);
    }
    let facts = decode(&made);
    assert_eq!(facts.resources[0].name.as_deref(), Some("poll on fd 5, 7"));
    assert_eq!(facts.resources[0].kind, ResourceKind::Poll);
    assert!(facts.resources[0].idle);
    assert_eq!(facts.resources[0].wakers, Wakers::Outside);
    assert_eq!(facts.waits[0].timeout, Timeout::Seconds(2.5));
}

#[test]
fn a_poll_set_that_was_not_read_is_not_an_empty_one() {
    let mut made = MadeUp::new();
    made.thread(100, Some((7, [0x5000, 1, u64::MAX, 0, 0, 0])));
    made.thread(101, Some((7, [0, 0, 100, 0, 0, 0])));
    let facts = decode(&made);
    assert_eq!(facts.resources[0].name.as_deref(), Some("poll on descriptors that were not read"));
    assert_eq!(facts.waits[0].timeout, Timeout::None);
    assert_eq!(facts.resources[1].name.as_deref(), Some("poll on no descriptor: a sleep"));
}

#[test]
fn select_reads_all_three_sets() {
    let mut made = MadeUp::new();
    made.memory.put_u64(Addr(0x5000), 1 << 3).put_u64(Addr(0x6000), 1 << 9);
    made.thread(100, Some((23, [10, 0x5000, 0x6000, 0, 0, 0])));
    assert_eq!(decode(&made).resources[0].name.as_deref(), Some("select on fd 3, 9"));
}

#[test]
fn children_are_named_by_pid() {
    let mut made = MadeUp::new();
    made.thread(100, Some((61, [4711, 0, 0, 0, 0, 0])));
    made.thread(101, Some((61, [u64::MAX, 0, 0, 0, 0, 0])));
    made.thread(102, Some((247, [1, 4711, 0, 4, 0, 0])));
    let facts = decode(&made);
    assert_eq!(facts.resources[0].name.as_deref(), Some("child 4711"));
    assert_eq!(facts.resources[1].name.as_deref(), Some("any child"));
    assert_eq!(facts.waits[0].on, facts.waits[2].on, "wait4 and waitid for one child are one resource");
}

#[test]
fn a_reader_and_a_writer_of_one_descriptor_wait_for_two_things() {
    let mut made = MadeUp::new();
    made.thread(100, Some((0, [3, 0x5000, 1, 0, 0, 0])));
    made.thread(101, Some((1, [3, 0x5000, 1, 0, 0, 0])));
    let facts = decode(&made);
    assert_eq!(facts.resources[0].name.as_deref(), Some("read from fd 3"));
    assert_eq!(facts.resources[1].name.as_deref(), Some("write to fd 3"));
    assert_ne!(facts.waits[0].on, facts.waits[1].on);
}

#[test]
fn a_sleep_tells_its_seconds_and_a_futex_its_address() {
    let mut made = MadeUp::new();
    made.memory.put_u64(Addr(0x5000), 30).put_u64(Addr(0x5008), 500_000_000);
    made.thread(100, Some((230, [0, 0, 0x5000, 0, 0, 0])));
    made.thread(101, Some((202, [0x6000, 0x80, 2, 0, 0, 0])));
    made.thread(102, Some((202, [0x6000, 0x81, 1, 0, 0, 0])));
    let facts = decode(&made);
    assert_eq!((facts.waits.len(), facts.waits[0].timeout), (2, Timeout::Seconds(30.5)), "a wake is no wait");
    assert_eq!(facts.waits[1].on, ResourceId::At(ProcessIx(0), Addr(0x6000)));
    assert_eq!(facts.resources[1].kind, ResourceKind::Futex);
}

#[test]
fn a_futex_whose_word_has_changed_needs_nobody() {
    let mut made = MadeUp::new();
    made.memory.put_u32(Addr(0x6000), 0);
    made.thread(100, Some((202, [0x6000, 0x189, 0, 0, 0, 0])));
    assert_eq!(decode(&made).resources[0].wakers, Wakers::AnyThread);
    // a semaphore that was posted: the thread has only not run since
    made.memory.put_u32(Addr(0x6000), 1);
    assert_eq!(decode(&made).resources[0].wakers, Wakers::Outside);
}

#[test]
fn an_uninterruptible_thread_names_the_kernel_function() {
    let mut made = MadeUp::new();
    let i = made.thread(100, None);
    made.thread(101, None);
    made.snapshot.threads[i].state = Some('D');
    made.snapshot.threads[i].wchan = Some("nfs_wait_bit_killable".into());
    let facts = decode(&made);
    assert_eq!(facts.waits.len(), 1, "a running thread waits for nothing");
    assert_eq!(facts.resources[0].name.as_deref(), Some("the kernel (nfs_wait_bit_killable)"));
    assert_eq!(facts.resources[0].kind, ResourceKind::Device);
}

#[test]
fn a_restarted_poll_is_known_by_its_code() {
    let mut made = MadeUp::new();
    let i = made.thread(100, Some((219, [0, 0, 100, 0, 0, 0])));
    made.snapshot.threads[i].syscall = Some(Syscall { number: None, args: [0, 0, 100, 0, 0, 0] });
    assert_eq!(decode(&made).resources[0].name.as_deref(), Some("an interrupted system call"));
    let mut code = [0x90; 26];
    code[17..22].copy_from_slice(&[0xb8, 7, 0, 0, 0]);
    code[24..].copy_from_slice(&[0x0f, 0x05]);
    made.memory.put(Addr(0x40_1000 - 26), &code);
    assert_eq!(decode(&made).resources[0].name.as_deref(), Some("poll on no descriptor: a sleep"));
}

#[test]
fn a_set_of_futexes_is_no_wait_for_the_first() {
    let mut made = MadeUp::new();
    made.memory.put_u64(Addr(0x5000), 2).put_u64(Addr(0x5008), 0x6000);
    made.thread(100, Some((449, [0x5000, 2, 0, 0, 0, 0])));
    made.thread(101, Some((449, [0x9000, 3, 0, 0, 0, 0])));
    let facts = decode(&made);
    assert_eq!(facts.resources[0].name.as_deref(), Some("any of 2 futexes, the first at 0x6000"));
    assert_eq!(facts.resources[1].name.as_deref(), Some("any of 3 futexes"), "the array was not read");
    assert!(facts.waits.iter().all(|w| matches!(w.on, ResourceId::Numbered(..))), "{:?}", facts.waits);
    assert!(facts.resources.iter().all(|r| r.wakers == Wakers::Outside), "each word has flags of its own");
}

#[test]
fn another_process_may_wake_what_is_not_private() {
    let mut made = MadeUp::new();
    // futex_wait(2): flags say 32 bits, then also private
    made.thread(100, Some((455, [0x6000, 0, 0, 2, 0, 0])));
    made.thread(101, Some((455, [0x7000, 0, 0, 0x82, 0, 0])));
    let wakers: Vec<_> = decode(&made).resources.iter().map(|r| r.wakers).collect();
    assert_eq!(wakers, [Wakers::Outside, Wakers::AnyThread]);
}

/// A thread in `openat` of `orders.fifo`, for writing.
fn opens_fifo() -> (MadeUp, Facts) {
    let mut made = MadeUp::new();
    made.thread(100, Some((257, [(-100i64).cast_unsigned(), 0x5000, 0o1, 0, 0, 0])));
    made.memory.put(Addr(0x5000), &[0; 64]).put(Addr(0x5000), b"/tmp/orders.fifo");
    let facts = decode(&made);
    (made, facts)
}

#[test]
fn an_open_names_its_file() {
    let (_, facts) = opens_fifo();
    assert_eq!(facts.resources[0].name.as_deref(), Some("open of /tmp/orders.fifo for writing"));
    let opening = facts.openings.values().next().unwrap();
    assert_eq!((opening.path.as_slice(), opening.directory, opening.writes), (&b"/tmp/orders.fifo"[..], None, true));
    let mut made = MadeUp::new();
    made.thread(100, Some((2, [0x5000, 0, 0, 0, 0, 0])));
    let facts = decode(&made);
    assert_eq!(facts.resources[0].name.as_deref(), Some("open"), "the path was not read");
    assert!(facts.openings.is_empty());
}

#[test]
fn the_open_of_a_fifo_waits_for_its_other_end() {
    let (made, mut facts) = opens_fifo();
    let thread = facts.waits[0].thread;
    let around = between::Around { fifos: [(thread, 77)].into(), ..between::Around::default() };
    between::join(&[made.snapshot], &around, &mut facts);
    assert_eq!(facts.resources[0].name.as_deref(), Some("the FIFO orders.fifo to be opened for reading"));
    assert_eq!((facts.resources[0].kind, facts.resources[0].id), (ResourceKind::Pipe, facts.waits[0].on));
    assert!(matches!(facts.waits[0].on, ResourceId::Shared { inode: 77, .. }));
}

#[test]
fn a_lock_that_is_polled_for_is_held_by_whom_the_kernel_names() {
    let polls = |by_existence, threads: i32| {
        let mut made = MadeUp::new();
        for tid in 100..100 + threads {
            made.thread(tid, Some((230, [0, 0, 0, 0, 0, 0])));
        }
        let mut facts = decode(&made);
        let id = ResourceId::Numbered(ProcessIx(0), ResourceKind::FileLock, 1 << 42 | 100);
        facts.waits[0].on = id;
        facts.resources[0].id = id;
        let path = b"cache.lock".to_vec();
        facts.polled.insert(id, crate::facts::PolledFile { path, by_existence });
        let lock = |inode, blocked| between::FileLock {
            number: 1,
            blocked,
            by: between::LockCall::Flock,
            process: Pid(100),
            inode,
        };
        let locks_when_held = vec![lock(5, false), lock(7, true), lock(7, false)];
        let around = between::Around { locks_when_held, polled: [(id, 7)].into(), ..between::Around::default() };
        between::join(&[made.snapshot], &around, &mut facts);
        facts.holds.iter().map(|h| (h.mode, h.certainty)).collect::<Vec<_>>()
    };
    use crate::facts::Certainty;
    assert_eq!(polls(false, 1), [(Mode::Exclusive, Certainty::Recorded)]);
    assert_eq!(polls(false, 2), [(Mode::Any, Certainty::Inferred); 2], "either thread may have taken it");
    assert_eq!(polls(true, 1), [], "nothing records who made the file");
}

#[test]
fn threads_beyond_the_list_of_a_child_may_end_it() {
    for (threads, rest) in [(3, 0), (300, 1)] {
        let mut parent = MadeUp::new();
        parent.thread(100, Some((61, [500, 0, 0, 0, 0, 0])));
        let mut facts = decode(&parent);
        let mut child = MadeUp::new();
        child.snapshot.process.pid = Pid(500);
        for tid in 500..500 + threads {
            child.thread(tid, None);
        }
        between::join(&[parent.snapshot, child.snapshot], &between::Around::default(), &mut facts);
        assert_eq!(
            facts.holds.iter().filter(|h| matches!(h.holder, Holder::Thread(_))).count(),
            threads.min(256) as usize
        );
        assert_eq!(facts.holds.iter().filter(|h| h.holder == Holder::Process(Pid(500))).count(), rest, "{threads}");
    }
}

#[test]
fn what_came_since_a_thread_was_seen_to_wait_wakes_it() {
    use crate::target::Readiness;
    let mut made = MadeUp::new();
    made.thread(100, Some((0, [3, 0x5000, 1, 0, 0, 0])));
    made.thread(101, Some((1, [4, 0x5000, 1, 0, 0, 0])));
    made.thread(102, Some((61, [4711, 0, 0, 0, 0, 0])));
    made.memory.put_u32(Addr(0x6000), 3).put_u32(Addr(0x6004), 1);
    made.thread(103, Some((7, [0x6000, 1, u64::MAX, 0, 0, 0])));
    let woken = |made: &MadeUp| decode(made).woken.iter().map(|t| t.thread).collect::<Vec<_>>();
    assert!(woken(&made).is_empty());
    let instant = &mut made.snapshot.process.at_instant;
    instant.ready.insert(3, Readiness { to_read: false, to_write: true });
    instant.ready.insert(4, Readiness { to_read: true, to_write: false });
    assert!(woken(&made).is_empty(), "the other way round it is nothing they wait for");
    let instant = &mut made.snapshot.process.at_instant;
    instant.ready.insert(3, Readiness { to_read: true, to_write: false });
    instant.ready.insert(4, Readiness { to_read: false, to_write: true });
    instant.ended.insert(Pid(4711));
    assert_eq!(woken(&made), [0, 1, 2, 3]);
}

#[test]
fn a_plain_futex_that_changed_wakes_and_one_that_is_known_does_not() {
    let mut made = MadeUp::new();
    made.memory.put_u32(Addr(0x5000), 1);
    made.thread(100, Some((202, [0x5000, 0x80, 0, 0, 0, 0])));
    let mut facts = decode(&made);
    assert_eq!((facts.changed.len(), facts.woken.len()), (1, 0));
    let known = facts.clone();
    between::join(&[], &between::Around::default(), &mut facts);
    assert_eq!(facts.woken.len(), 1);
    let mut facts = known;
    facts.resources[0].kind = ResourceKind::Mutex;
    between::join(&[], &between::Around::default(), &mut facts);
    assert!(facts.woken.is_empty());
}
