//! Healthy programs whose threads contend for locks, the GIL, mutexes and a condition, looked at again and again, one stop
//! each: never a cycle, never an orphan. `HANGSCOPE_SNAPSHOTS` sets how many looks there are in all (default 200; 10,000 take some minutes with `--release`).

mod support;

use hangscope::diagnose::{self, Options};
use hangscope::units::Pid;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::build::{self, Toolchain};
use support::places::{self, Place};
use support::{Scratch, running};

/// Samples without an end to their moving.
const PYTHON: [&str; 3] = ["moving-locks", "moving-condition", "moving-gil"];
const NATIVE: &str = "moving-mutexes";

#[test]
fn no_snapshot_of_a_healthy_program_shows_a_cycle() {
    let in_all: u32 = std::env::var("HANGSCOPE_SNAPSHOTS").ok().map_or(200, |n| n.parse().expect("a number of looks"));
    let pythons = places::python_places(&[]);
    assert!(!pythons.is_empty(), "needs a CPython");
    let mut rows: Vec<(&str, Place)> = vec![(NATIVE, Place::host())];
    for place in &pythons {
        rows.extend(PYTHON.iter().map(|sample| (*sample, place.clone())));
    }
    let each = in_all.div_ceil(u32::try_from(rows.len()).unwrap());
    let (next, looks) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, std::num::NonZero::get) {
            scope.spawn(|| {
                while let Some((sample, place)) = rows.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let began = Instant::now();
                    looks.fetch_add(look(sample, place, each), Ordering::Relaxed);
                    println!("{sample:<18} {:<16} {each:>5} looks, {} ms", place.name, began.elapsed().as_millis());
                }
            });
        }
    });
    println!("{} looks, no cycle", looks.load(Ordering::Relaxed));
    assert!(looks.into_inner() >= in_all, "fewer looks than asked for");
}

/// Looks so often; panics where one calls the program stuck.
fn look(sample: &str, place: &Place, times: u32) -> u32 {
    let dir = build::build(sample, &[], Toolchain::Host, None).expect("the sample");
    let scratch = Scratch::new(&format!("healthy-{sample}-{}", place.name));
    let program = running::start(place, &dir, &[], scratch.path()).expect("the sample runs");
    let options = Options { samples: Some(1), max_pause: Duration::from_secs(20), ..Options::default() };
    for i in 0..times {
        let diagnosis = diagnose::live(&[Pid(program.pid)], &options).expect("a diagnosis");
        let verdict = &diagnosis.verdict;
        assert!(
            !verdict.kind.is_stuck() && verdict.cycles.is_empty(),
            "{sample} on {}, look {i}: {}",
            place.name,
            verdict.headline
        );
    }
    program.is_unharmed().expect("it runs on");
    times
}
