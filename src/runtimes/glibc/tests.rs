use super::*;
use crate::facts::{Certainty, Holder, Mode, Reentrancy, ResourceId, ResourceKind, Timeout, Wakers};
use crate::runtimes::tests::{MadeUp, pthread_of, sp_of};
use crate::units::{ProcessIx, ThreadRef, Tid};

const GLOBAL: Addr = Addr(0x7f00_0000_0000);
const HEAP: u64 = 0x5000_0000;

fn decoder(version: &str) -> GlibcDecoder {
    let subject = Subject::version(Version::parse(version)).with("arch", "x86_64");
    GlibcDecoder {
        version: Some(version.to_owned()),
        layouts: Structs::choose(Layouts::glibc(), &subject).unwrap(),
        global: Some(RtldGlobal { at: GLOBAL, size: 4336 }),
        subject,
        streams: vec![],
        dynamic: true,
        foreign: false,
        gaps: vec![],
    }
}

fn made_up() -> MadeUp {
    let mut made = MadeUp::new();
    made.map(HEAP, 0x10000).map(GLOBAL.0, 0x2000);
    made.memory.put(GLOBAL, &[0; 4336]);
    made.memory.put_u64(GLOBAL.offset(0xa00), 1);
    for lock in [0xa08, 0xa30, 0xa58] {
        made.memory.put_u32(GLOBAL.offset(lock + 16), 1);
    }
    made
}

fn wait(at: u64, op: u64, value: u64) -> Option<(u64, [u64; 6])> {
    Some((202, [at, op, value, 0, 0, 0]))
}

fn mutex(made: &mut MadeUp, at: u64, words: [u32; 5]) {
    made.memory.put(Addr(at), &[0; 40]);
    for (i, word) in words.iter().enumerate() {
        made.memory.put_u32(Addr(at + 4 * i as u64), *word);
    }
}

fn thread(index: u32) -> Holder {
    Holder::Thread(ThreadRef { process: ProcessIx(0), thread: index })
}

#[test]
fn a_mutex_names_its_owner() {
    let mut made = made_up();
    made.thread(100, wait(HEAP, 0x80, 2));
    made.thread(101, None);
    mutex(&mut made, HEAP, [2, 0, 101, 1, 0]);
    let facts = made.decode(&decoder("2.36"));
    assert_eq!(facts.waits.len(), 1);
    assert_eq!(facts.waits[0].on, ResourceId::At(ProcessIx(0), Addr(HEAP)));
    assert_eq!(facts.resources[0].kind, ResourceKind::Mutex);
    assert_eq!(facts.resources[0].reentrancy, Reentrancy::Plain);
    assert_eq!((facts.holds[0].holder, facts.holds[0].certainty), (thread(1), Certainty::Recorded));
    assert_eq!(facts.holds[0].evidence[0].0, "`__owner` of the mutex at 0x50000000 is 101");
}

#[test]
fn every_kind_of_mutex_is_read() {
    // (lock, count, owner, users, kind), operation, value, reentrant
    let tid = 101;
    let cases: [([u32; 5], u64, u64, Reentrancy); 9] = [
        ([2, 3, tid, 1, 1], 0x80, 2, Reentrancy::Recursive),
        ([2, 0, tid, 1, 2], 0x80, 2, Reentrancy::Plain),
        ([2, 0, tid, 1, 3], 0x80, 2, Reentrancy::Plain),
        ([2, 0, tid, 4, 0x280], 0, 2, Reentrancy::Plain),
        // robust: 0x90 from 2.43 on, 0x290 before
        ([0x8000_0000 | tid, 1, tid, 1, 0x90], 0, 0x8000_0000 | 101, Reentrancy::Plain),
        ([0x8000_0000 | tid, 1, tid, 1, 0x290], 0, 0x8000_0000 | 101, Reentrancy::Plain),
        // priority-inheriting: the word names the owner, the operation says so
        ([0x8000_0000 | tid, 1, tid, 1, 0x220], 0x86, 0, Reentrancy::Plain),
        ([0x8000_0000 | tid, 1, tid, 1, 0x21], 0x8d, 0, Reentrancy::Recursive),
        // priority-protected, ceiling 1
        ([0x8_0002, 0, tid, 1, 0x240], 0x80, 0x8_0002, Reentrancy::Plain),
    ];
    for (words, op, value, reentrancy) in cases {
        let mut made = made_up();
        made.thread(100, wait(HEAP, op, value));
        made.thread(101, None);
        mutex(&mut made, HEAP, words);
        let facts = made.decode(&decoder("2.36"));
        assert_eq!(facts.holds.first().map(|h| h.holder), Some(thread(1)), "{words:x?}");
        assert_eq!(facts.resources[0].reentrancy, reentrancy, "{words:x?}");
    }
}

#[test]
fn what_only_looks_like_a_mutex_has_no_owner() {
    let tid = 101;
    let cases: [([u32; 5], u64, u64, &str); 8] = [
        ([2, 0, tid, 0, 0], 0x80, 2, "an owner without a user"),
        ([2, 7, tid, 1, 0], 0x80, 2, "a depth on a normal mutex"),
        ([2, 0, tid, 1, 4], 0x80, 2, "an unknown kind bit"),
        ([2, 0, tid, 1, u32::MAX], 0x80, 2, "a destroyed mutex"),
        ([0, 0, tid, 1, 0], 0x80, 2, "an owner of a free word"),
        ([2, 0, tid, 1, 0], 0x80, 1, "another value than a mutex waits with"),
        ([2, 0, tid, 1, 0], 0, 2, "a shared wait on a private mutex"),
        ([2, 0, 5, 1, 0], 0x80, 2, "an owner that is no thread, and no libc frame"),
    ];
    for (words, op, value, why) in cases {
        let mut made = made_up();
        made.thread(100, wait(HEAP, op, value));
        made.thread(101, None);
        mutex(&mut made, HEAP, words);
        let facts = made.decode(&decoder("2.36"));
        assert!(facts.holds.is_empty() && facts.waits.is_empty(), "{why}: {:?}", facts.resources);
    }
    // list links on a mutex that is not robust
    let mut made = made_up();
    made.thread(100, wait(HEAP, 0x80, 2));
    made.thread(101, None);
    mutex(&mut made, HEAP, [2, 0, tid, 1, 0]);
    made.memory.put_u64(Addr(HEAP + 24), 0x1234);
    assert!(made.decode(&decoder("2.36")).holds.is_empty());
}

#[test]
fn the_loader_s_locks_are_read_even_when_nobody_waits() {
    let mut made = made_up();
    made.thread(100, wait(GLOBAL.0 + 0xa30, 0x80, 2));
    made.thread(101, None);
    made.memory.put_u32(GLOBAL.offset(0xa30), 2).put_u32(GLOBAL.offset(0xa34), 1);
    made.memory.put_u32(GLOBAL.offset(0xa38), 101).put_u32(GLOBAL.offset(0xa3c), 1);
    // held, nobody waits
    made.memory.put_u32(GLOBAL.offset(0xa08), 1).put_u32(GLOBAL.offset(0xa0c), 1);
    made.memory.put_u32(GLOBAL.offset(0xa10), 100).put_u32(GLOBAL.offset(0xa14), 1);
    let facts = made.decode(&decoder("2.36"));
    let name = |id| facts.resources.iter().find(|r| r.id == id).and_then(|r| r.name.clone());
    assert_eq!(name(facts.waits[0].on).as_deref(), Some("_dl_load_write_lock"));
    let mut held: Vec<_> = facts.holds.iter().map(|h| (name(h.of).unwrap(), h.holder)).collect();
    held.sort();
    held.dedup();
    assert_eq!(held, [("_dl_load_lock".to_owned(), thread(0)), ("_dl_load_write_lock".to_owned(), thread(1))]);
}

#[test]
fn a_join_names_the_thread_it_waits_for() {
    let mut made = made_up();
    let joined = pthread_of(1).0;
    made.thread(100, wait(joined + 0x2d0, 0x109, 101));
    made.thread(101, None);
    let facts = made.decode(&decoder("2.36"));
    let exit = ThreadRef { process: ProcessIx(0), thread: 1 };
    assert_eq!(facts.waits[0].on, ResourceId::ThreadExit(exit));
    assert_eq!((facts.holds[0].holder, facts.holds[0].certainty), (thread(1), Certainty::Recorded));
    // since 2.43 the futex is joinstate, and its value no tid
    made.snapshot.threads[0].syscall.as_mut().unwrap().args = [joined + 0x628, 0x109, 2, 0, 0, 0];
    let facts = made.decode(&decoder("2.43"));
    assert_eq!(facts.waits[0].on, ResourceId::ThreadExit(exit));
    assert!(made.decode(&decoder("2.42")).waits.is_empty(), "0x628 is no join before 2.43");
    // a minicore without the files does not tell the version: either way, as both are checked against the threads
    for (offset, value) in [(0x628, 2), (0x2d0, 101)] {
        made.snapshot.threads[0].syscall.as_mut().unwrap().args = [joined + offset, 0x109, value, 0, 0, 0];
        assert_eq!(made.decode(&decoder("unknown")).waits[0].on, ResourceId::ThreadExit(exit), "{offset:#x}");
    }
}

#[test]
fn both_layouts_of_a_condition_are_told_by_the_pair_on_the_stack() {
    // (version, offset of the first futex word, offset of wrefs)
    for (version, word, wrefs) in [("2.36", 0x28, 36), ("2.41", 0x20, 28), ("2.39", 0x20, 28)] {
        for group in [0, 4] {
            let mut made = made_up();
            made.thread(100, wait(HEAP + 0x100 + word + group, 0x189, 0));
            made.memory.put(Addr(HEAP), &[0; 0x400]);
            made.memory.put_u64(Addr(HEAP + 0x100), 2).put_u32(Addr(HEAP + 0x100 + wrefs), 8);
            mutex(&mut made, HEAP, [0, 0, 0, 1, 0]);
            made.memory.put(sp_of(0), &[0; 0x400]);
            made.memory.put_u64(sp_of(0).offset(0x50), HEAP + 0x100).put_u64(sp_of(0).offset(0x58), HEAP);
            let facts = made.decode(&decoder(version));
            assert_eq!(facts.waits[0].on, ResourceId::At(ProcessIx(0), Addr(HEAP + 0x100)), "{version} {group}");
            assert_eq!(facts.resources[0].kind, ResourceKind::Condvar);
            assert!(facts.holds.is_empty(), "a condition has no owner");
            assert!(facts.woken.is_empty());
            made.memory.put_u32(Addr(HEAP + 0x100 + word + group), 2);
            let signalled = made.decode(&decoder(version));
            assert_eq!(signalled.resources[0].kind, ResourceKind::Condvar);
            assert_eq!(signalled.woken.len(), 1, "{version} {group}: it has only not run since");
        }
    }
}

#[test]
fn a_rwlock_s_writer_is_recorded_and_its_readers_are_counted() {
    let mut made = made_up();
    // a writer holds it, a reader and a writer wait
    let words = [0xb, 1, 3, 3, 0, 0, 102, 0, 0, 0, 0, 0, 0, 0];
    words.iter().enumerate().for_each(|(i, w)| {
        made.memory.put_u32(Addr(HEAP + 4 * i as u64), *w);
    });
    made.thread(100, wait(HEAP + 8, 0x189, 3));
    made.thread(101, wait(HEAP + 12, 0x189, 3));
    made.thread(102, None);
    let facts = made.decode(&decoder("2.36"));
    assert_eq!(facts.waits.len(), 2);
    assert!(facts.waits.iter().all(|w| w.on == ResourceId::At(ProcessIx(0), Addr(HEAP))));
    assert_eq!(facts.holds.iter().map(|h| h.holder).collect::<Vec<_>>(), [thread(2)]);
    // two readers hold it, the first writer waits
    let mut made = made_up();
    let words = [0x12, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    words.iter().enumerate().for_each(|(i, w)| {
        made.memory.put_u32(Addr(HEAP + 4 * i as u64), *w);
    });
    made.thread(100, wait(HEAP + 8, 0x189, 2));
    let facts = made.decode(&decoder("2.36"));
    assert!(facts.holds.is_empty());
    assert!(facts.waits[0].evidence.iter().any(|e| e.0.contains("2 readers")), "{:?}", facts.waits[0].evidence);
}

#[test]
fn semaphores_and_barriers_have_no_owner() {
    let mut made = made_up();
    made.memory.put(Addr(HEAP), &[0; 0x200]);
    made.memory.put_u32(Addr(HEAP + 4), 1); // one waiter
    made.thread(100, wait(HEAP, 0x189, 0));
    made.memory.put_u32(Addr(HEAP + 0x100), 2).put_u32(Addr(HEAP + 0x108), 3);
    made.thread(101, wait(HEAP + 0x104, 0x80, 0));
    let facts = made.decode(&decoder("2.36"));
    let kinds: Vec<_> = facts.resources.iter().map(|r| r.kind).collect();
    assert_eq!(kinds, [ResourceKind::Semaphore, ResourceKind::Barrier]);
    assert!(facts.waits[1].evidence[0].0.contains("2 of 3 have arrived"), "{}", facts.waits[1].evidence[0].0);
    assert!(facts.holds.is_empty());
}

#[test]
fn a_file_s_lock_names_its_owner_by_pthread() {
    let mut made = made_up();
    let (file, lock) = (HEAP + 0x100, HEAP + 0x1e0);
    made.memory.put(Addr(HEAP), &[0; 0x400]);
    made.memory.put_u64(Addr(file + 0x88), lock).put_u32(Addr(file + 0x70), 7);
    made.memory.put_u32(Addr(lock), 2).put_u32(Addr(lock + 4), 1).put_u64(Addr(lock + 8), pthread_of(1).0);
    made.thread(100, wait(lock, 0x80, 2));
    made.thread(101, None);
    let facts = made.decode(&decoder("2.36"));
    assert_eq!(facts.resources[0].kind, ResourceKind::StdioLock);
    assert_eq!(facts.resources[0].name.as_deref(), Some("the FILE of fd 7"));
    assert_eq!(facts.holds[0].holder, thread(1));
}

#[test]
fn time_limits_are_told() {
    let mut made = made_up();
    made.memory.put_u64(Addr(0x6000_0000), 10).put_u64(Addr(0x6000_0008), 0);
    let call = |op: u64| Some((202, [HEAP, op, 2, 0x6000_0000, 0, 0]));
    made.thread(100, call(0x80));
    made.thread(101, call(0x189));
    made.thread(102, None);
    mutex(&mut made, HEAP, [2, 0, 102, 1, 0]);
    let facts = made.decode(&decoder("2.36"));
    let timeouts: Vec<_> = facts.waits.iter().map(|w| w.timeout).collect();
    assert_eq!(timeouts, [Timeout::Seconds(10.0), Timeout::Some]);
}

#[test]
fn a_core_that_numbers_threads_otherwise_is_read_by_struct_pthread() {
    let mut made = made_up();
    made.thread(2, wait(HEAP, 0x80, 2));
    made.thread(3, None);
    // gcore from outside a PID namespace writes outer ids
    for (thread, outer) in made.snapshot.threads.iter_mut().zip([24424, 24425]) {
        thread.tid = Tid(outer);
    }
    mutex(&mut made, HEAP, [2, 0, 3, 1, 0]);
    assert_eq!(made.decode(&decoder("2.36")).holds[0].holder, thread(1));
}

#[test]
fn reading_around_a_word_stops_at_page_ends() {
    let pieces: Vec<_> = around(Addr(0x5010)).collect();
    assert_eq!(pieces, [(Addr(0x4f30), 0xd0), (Addr(0x5000), 0x50)]);
    assert_eq!(around(Addr(0x5100)).count(), 2, "the second is empty and left out by the caller");
}

#[test]
fn noise_is_not_read_as_anything() {
    // every word of a page of noise as a futex, with every operation glibc sleeps with
    let mut seed = 1u64;
    let mut made = made_up();
    let noise: Vec<u8> = (0..0x1000)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        })
        .collect();
    made.memory.put(Addr(HEAP), &noise);
    for i in 0..64u64 {
        let op = [0x80, 0x189, 0, 0x109, 0x86, 0x89][(i % 6) as usize];
        made.thread(100 + i as i32, wait(HEAP + 0x200 + 4 * i, op, i % 4));
    }
    let facts = made.decode(&decoder("2.36"));
    assert!(facts.holds.is_empty(), "{:?}", facts.holds);
}

#[test]
fn a_semaphore_that_may_be_shared_is_posted_from_outside() {
    let mut made = made_up();
    made.thread(100, wait(HEAP, 0x109, 0));
    made.memory.put(Addr(HEAP), &[0; 32]);
    made.memory.put_u64(Addr(HEAP), 1 << 32).put_u32(Addr(HEAP + 8), 0x80);
    let facts = made.decode(&decoder("2.36"));
    assert_eq!((facts.resources[0].kind, facts.resources[0].wakers), (ResourceKind::Semaphore, Wakers::Outside));
    made.snapshot.mappings[0].inode = 7;
    let facts = made.decode(&decoder("2.36"));
    assert_eq!(facts.resources[0].wakers, Wakers::AnyThread);
}

#[test]
fn a_reader_that_lets_writers_go_first_sleeps_on_the_count_of_readers() {
    // one reader has it, a writer waits for it to leave, and a second reader for the writer: __flags says writers first
    let words = [0xe, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    let mut made = made_up();
    words.iter().enumerate().for_each(|(i, w)| {
        made.memory.put_u32(Addr(HEAP + 4 * i as u64), *w);
    });
    made.thread(100, wait(HEAP, 0x189, 0xe));
    made.thread(101, wait(HEAP + 8, 0x189, 2));
    let facts = made.decode(&decoder("2.36"));
    let modes: Vec<_> = facts.waits.iter().map(|w| (w.on, w.mode)).collect();
    let at = ResourceId::At(ProcessIx(0), Addr(HEAP));
    assert_eq!(modes, [(at, Mode::Shared), (at, Mode::Exclusive)]);
    assert!(facts.woken.is_empty());
}

#[test]
fn what_readers_of_a_rwlock_sleep_on_changes_under_them() {
    let rwlock = |readers: u32| {
        let mut made = made_up();
        [readers, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0].iter().enumerate().for_each(|(i, w)| {
            made.memory.put_u32(Addr(HEAP + 4 * i as u64), *w);
        });
        made.thread(100, wait(HEAP, 0x189, 0x16));
        let layouts = &decoder("2.36").layouts;
        let futex = FutexWait::parse(&made.snapshot.threads[0].syscall.unwrap()).unwrap();
        let owners = super::owners::Owners::read(&made.snapshot, &made.memory, layouts.pthread);
        objects::Rwlock::read(&made.memory, layouts.rwlock.unwrap(), &futex, &owners).map(|r| r.sleeps_on)
    };
    assert_eq!(rwlock(0x16), Some(true), "two readers have it");
    assert_eq!(rwlock(0x0e), Some(true), "one has left: nobody is woken");
    assert_eq!(rwlock(0x03), Some(false), "the writer has it: all are woken");
}

#[test]
fn a_barrier_that_was_passed_and_a_semaphore_that_was_posted_are_known_by_their_words() {
    let mut made = made_up();
    made.memory.put(Addr(HEAP), &[0; 0x200]);
    made.memory.put_u32(Addr(HEAP), 1).put_u32(Addr(HEAP + 4), 2);
    let layouts = decoder("2.36").layouts;
    let futex = |args| FutexWait::parse(&crate::arch::Syscall { number: Some(202), args }).unwrap();
    let semaphore = objects::semaphore(&made.memory, layouts.semaphore.unwrap(), &futex([HEAP, 0x189, 0, 0, 0, 0]));
    assert_eq!(semaphore, Some((Addr(HEAP), 1, 2)));
    // in, current_round, count, shared, out: three have come and gone, and one is back
    for (i, word) in [4, 3, 3, 0, 3].iter().enumerate() {
        made.memory.put_u32(Addr(HEAP + 0x100 + 4 * i as u64), *word);
    }
    let at =
        |value| objects::barrier(&made.memory, layouts.barrier.unwrap(), &futex([HEAP + 0x104, 0x80, value, 0, 0, 0]));
    assert_eq!(at(0).map(|b| (b.here, b.count, b.passed)), Some((1, 3, true)));
    assert_eq!(at(3).map(|b| b.passed), Some(false));
    assert_eq!(at(1).map(|b| b.passed), None, "no round begins there");
}

#[test]
fn a_condition_of_old_changes_under_those_who_sleep_on_it() {
    // since the first slept on 1, a second came: __futex 2, two waits, none woken
    let mut made = made_up();
    made.memory.put(Addr(HEAP), &[0; 0x400]);
    made.memory.put_u32(Addr(HEAP + 4), 2).put_u64(Addr(HEAP + 8), 2).put_u32(Addr(HEAP + 40), 4);
    made.thread(100, wait(HEAP + 4, 0x189, 1));
    let facts = made.decode(&decoder("2.23"));
    assert_eq!((facts.resources[0].kind, facts.woken.len()), (ResourceKind::Condvar, 0));
    // one signal was sent and not taken yet
    made.memory.put_u64(Addr(HEAP + 16), 1);
    assert_eq!(made.decode(&decoder("2.23")).woken.len(), 1);
}

#[test]
fn a_robust_mutex_that_went_to_another_owner_wakes_nobody_else() {
    let mut made = made_up();
    made.thread(100, wait(HEAP, 0, 0x8000_0000 | 102));
    made.thread(101, None);
    mutex(&mut made, HEAP, [0x8000_0000 | 101, 1, 101, 1, 0x90]);
    let facts = made.decode(&decoder("2.36"));
    assert_eq!((facts.holds[0].holder, facts.woken.len()), (thread(1), 0));
    // a plain one that was given back
    let mut made = made_up();
    made.thread(100, wait(HEAP, 0x80, 2));
    made.thread(101, None);
    mutex(&mut made, HEAP, [1, 0, 101, 1, 0]);
    assert_eq!(made.decode(&decoder("2.36")).woken.len(), 1);
}
