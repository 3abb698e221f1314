//! Healthy programs whose threads contend for locks, the GIL, mutexes and a condition, looked at again and again, one stop
//! each: never a cycle, never an orphan. On every interpreter there is, the Debian roots' too. `HANGSCOPE_SNAPSHOTS` sets how
//! many looks there are in all (default 300; 10,000 take some minutes with `--release`).

mod support;

use hangscope::diagnose::{self, Options};
use hangscope::units::Pid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::build::{self, Toolchain};
use support::places::{self, Installed, Place};
use support::{Scratch, running};

/// Samples without an end to their moving.
const PYTHON: [&str; 5] = ["moving-locks", "moving-condition", "moving-gil", "moving-sections", "moving-worlds"];
const NATIVE: &str = "moving-mutexes";

#[test]
fn no_snapshot_of_a_healthy_program_shows_a_cycle() {
    let in_all: u32 = std::env::var("HANGSCOPE_SNAPSHOTS").ok().map_or(300, |n| n.parse().expect("a number of looks"));
    let roots = places::roots();
    let installed: BTreeMap<String, Installed> =
        roots.iter().map(|root| (root.suite.clone(), Installed::new(root).expect("a directory in the root"))).collect();
    let pythons = places::python_places(&roots);
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
                    looks.fetch_add(look(sample, place, &installed, each), Ordering::Relaxed);
                    println!("{sample:<18} {:<20} {each:>5} looks, {} ms", place.name, began.elapsed().as_millis());
                }
            });
        }
    });
    println!("{} looks, no cycle", looks.load(Ordering::Relaxed));
    assert!(looks.into_inner() >= in_all, "fewer looks than asked for");
}

/// Builds it; for the roots with the oldest of their compilers, whose glibc all others can take the place of.
fn build_for(sample: &str, place: &Place) -> PathBuf {
    let oldest = places::roots().into_iter().next();
    let toolchain = if place.root.is_some() { Toolchain::OldestRoot } else { Toolchain::Host };
    build::build(sample, &[], toolchain, oldest.as_ref()).expect("the sample")
}

/// Looks so often; panics where one calls the program stuck.
fn look(sample: &str, place: &Place, installed: &BTreeMap<String, Installed>, times: u32) -> u32 {
    let dir = build_for(sample, place);
    let scratch_name = format!("healthy-{sample}-{}", place.name);
    let scratch = Scratch::new(&scratch_name);
    let program = match place.root.as_ref().and_then(|root| installed.get(&root.suite)) {
        Some(installed) => {
            let inside = installed.add(&scratch_name, &dir).expect("copied into the root");
            running::start(place, &inside, &[], Path::new("/tmp"))
        }
        None => running::start(place, &dir, &[], scratch.path()),
    };
    let program = program.expect("the sample runs");
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
