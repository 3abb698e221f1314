//! Never a false holder: threads take locks at random, in every way the language has, and write down what they hold; the
//! process is stopped at random moments, and what hangscope says each thread holds is compared with what is written.
//!
//! `HANGSCOPE_STOPS=2000` stops each interpreter that often; the default is a short run. A table is printed.

mod support;

use hangscope::facts::{Certainty, Facts, Holder, ResourceId};
use hangscope::graph::Graph;
use hangscope::memory::{Memory, MemoryExt};
use hangscope::runtimes::{Held, View};
use hangscope::snapshot::{Snapshot, WithImages};
use hangscope::target::live::{Live, StopLimits};
use hangscope::units::{Addr, Pid, ProcessIx};
use hangscope::unwind::unwind_all;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use support::places::{Installed, Place, python_places, roots};
use support::running::{Running, start};
use support::{Scratch, home};

const THREADS: usize = 12;

/// What one thread has written down.
#[derive(Debug)]
struct Written {
    /// Locks it surely holds.
    held: BTreeSet<u64>,
    /// Locks it may be seen to hold.
    maybe: BTreeSet<u64>,
}

/// What a run found.
#[derive(Default, Debug)]
struct Count {
    stops: u32,
    threads: u32,
    held: u32,
    missed: u32,
    wrong: u32,
    cycles: u32,
    unmerged: u32,
}

fn stops() -> u32 {
    std::env::var("HANGSCOPE_STOPS").ok().and_then(|n| n.parse().ok()).unwrap_or(10)
}

/// The record, as it stood at the stop, by kernel id.
fn read_record(memory: &dyn Memory, at: Addr) -> Option<BTreeMap<i32, Written>> {
    let bytes = memory.read_vec(at, 4096 + 64 * THREADS).ok()?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let lock = |n: u8| word(8 + 8 * usize::from(n));
    assert!(word(0) < 128);
    let mut out = BTreeMap::new();
    for i in 0..THREADS {
        let slot = &bytes[4096 + 64 * i..][..64];
        let tid = i32::try_from(u64::from_le_bytes(slot[..8].try_into().unwrap())).unwrap();
        let (n, moving) = (usize::from(slot[8]), slot[9]);
        let mut written = Written { held: BTreeSet::new(), maybe: BTreeSet::new() };
        for k in &slot[10..10 + n] {
            let set = if k & 128 != 0 { &mut written.maybe } else { &mut written.held };
            set.insert(lock(k & 127));
        }
        if moving > 0 {
            written.held.remove(&lock(moving - 1));
            written.maybe.insert(lock(moving - 1));
        }
        // a recursive lock taken loosely and firmly
        written.maybe = written.maybe.difference(&written.held).copied().collect();
        out.insert(tid, written);
    }
    Some(out)
}

fn compare(facts: &Facts, snapshot: &Snapshot, record: &BTreeMap<i32, Written>, count: &mut Count, what: &str) {
    let known: BTreeSet<u64> = record.values().flat_map(|w| w.held.iter().chain(&w.maybe)).copied().collect();
    let mut found: BTreeMap<i32, BTreeSet<u64>> = BTreeMap::new();
    for hold in facts.holds.iter().filter(|h| h.certainty > Certainty::Inferred) {
        if let (Holder::Thread(t), ResourceId::At(_, at)) = (hold.holder, hold.of) {
            let tid = snapshot.threads[t.thread as usize].tid.0;
            let is_lock = facts.resources.iter().any(|r| r.id == hold.of && r.kind.word().starts_with("python-"));
            if is_lock {
                found.entry(tid).or_default().insert(at.0);
            }
        }
    }
    for (tid, written) in record {
        let found = found.remove(tid).unwrap_or_default();
        count.threads += 1;
        count.held += written.held.len() as u32;
        for lock in written.held.difference(&found) {
            count.missed += 1;
            println!("{what}: thread {tid} holds {lock:#x} unseen; known {known:x?}");
        }
        for lock in found.difference(&written.held).filter(|l| !written.maybe.contains(l)) {
            count.wrong += 1;
            println!("{what}: thread {tid} does not hold {lock:#x} ({written:x?})");
            for h in facts.holds.iter().filter(|h| matches!(h.of, ResourceId::At(_, at) if at.0 == *lock)) {
                println!("    {h:?}");
            }
        }
    }
}

fn watch(running: &Running, stops: u32, what: &str, count: &mut Count) {
    let runtime = hangscope::runtimes::all().into_iter().find(|r| r.name() == "cpython").unwrap();
    let live = Live::open(Pid(running.pid)).unwrap();
    let snapshot = Snapshot::prepare(&live).unwrap();
    let decoder = runtime.find(&snapshot, &live).expect("a CPython");
    let record =
        snapshot.mappings.iter().find(|m| m.path.as_ref().is_some_and(|p| p.ends_with("record"))).unwrap().start;
    let mut random = 12345u32;
    for _ in 0..stops {
        random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
        std::thread::sleep(Duration::from_micros(u64::from(random >> 16) % 4000));
        let mut snapshot = Snapshot::prepare(&live).unwrap();
        let stopped = live.stop(&StopLimits::default()).unwrap();
        stopped.read_stacks();
        decoder.gather(&Held { threads: stopped.thread_states(), snapshot: &snapshot, memory: stopped.memory() });
        // a machine too busy to read it all in time lets go first: nothing is known of that instant
        let written = read_record(stopped.memory(), record);
        let released = stopped.release();
        let Some(written) = written else { continue };
        snapshot.freeze(released.threads, released.mappings);
        let memory = WithImages::new(&released.kept, &snapshot);
        let stacks = unwind_all(&snapshot, &memory);
        let view = View { process: ProcessIx(0), snapshot: &snapshot, stacks: &stacks, memory: &memory };
        let facts = decoder.decode(&view);
        compare(&facts, &snapshot, &written, count, what);
        count.cycles += Graph::build(&facts).cycles.len() as u32;
        count.unmerged += facts.gaps.iter().filter(|g| g.0.contains("do not match")).count() as u32;
        count.stops += 1;
    }
}

/// Puts the program where the place finds it; the directory as the place names it.
fn install(place: &Place, installed: Option<&Installed>, scratch: &Scratch) -> PathBuf {
    let source = home().join("tests/cpython/random");
    match installed {
        Some(installed) => installed.add(&place.name, &source).unwrap(),
        None => {
            let dir = scratch.path().join(&place.name);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::copy(source.join("program.py"), dir.join("program.py")).unwrap();
            dir
        }
    }
}

#[test]
fn what_is_said_to_be_held_is_what_is_held() {
    let roots = roots();
    let places = python_places(&roots);
    if places.is_empty() {
        println!("skipped: needs a CPython");
        return;
    }
    let only = std::env::var("HANGSCOPE_PLACE").ok();
    let scratch = Scratch::new("random");
    let mut table = Vec::new();
    for place in places.iter().filter(|p| only.as_ref().is_none_or(|o| p.name.contains(o.as_str()))) {
        let installed = place.root.as_ref().map(|r| Installed::new(r).unwrap());
        let dir = install(place, installed.as_ref(), &scratch);
        for trace in ["plain", "trace"] {
            let mut count = Count::default();
            let limit = 60 + stops();
            let args = [stops().to_string().as_str(), &THREADS.to_string(), trace, &limit.to_string()]
                .map(ToString::to_string);
            let running = start(place, &dir, &args, &dir).unwrap_or_else(|e| panic!("{}: {e}", place.name));
            if let Some((cause, _)) = hangscope::target::live::ptrace_refusal(Pid(running.pid)) {
                println!("skipped: needs ptrace: {cause}");
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
            watch(&running, stops(), &format!("{} {trace}", place.name), &mut count);
            table.push((place.name.clone(), trace, count));
        }
    }
    println!(
        "{:<18} {:<6} {:>6} {:>8} {:>7} {:>7} {:>6} {:>7} {:>9}",
        "interpreter", "", "stops", "threads", "locks", "missed", "wrong", "cycles", "unmerged"
    );
    for (name, trace, c) in &table {
        println!(
            "{name:<18} {trace:<6} {:>6} {:>8} {:>7} {:>7} {:>6} {:>7} {:>9}",
            c.stops, c.threads, c.held, c.missed, c.wrong, c.cycles, c.unmerged
        );
    }
    for (name, trace, c) in &table {
        assert_eq!(c.wrong, 0, "{name} {trace}: a false holder");
        assert_eq!(c.cycles, 0, "{name} {trace}: a cycle in a healthy program");
        // a thread that really runs may stand at a conditional jump which the compiler left out of its table
        assert!(c.missed * 200 <= c.held.max(200), "{name} {trace}: {} of {} locks unseen", c.missed, c.held);
    }
}
