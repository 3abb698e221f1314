//! Healthy programs whose threads contend for locks, the GIL, mutexes and a condition, looked at again and again, one stop
//! each: never a cycle, never an orphan. On every interpreter there is, the Debian roots' too. `HANGSCOPE_SNAPSHOTS` sets how
//! many looks there are in all (default 300; 10,000 take some minutes with `--release`). A tenth as many are taken of programs
//! one of whose threads gets next to no CPU, so that states last in which it has just taken something, or is about to.

mod support;

use hangscope::diagnose::{self, Options};
use hangscope::units::Pid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::build::{self, Toolchain};
use support::places::{self, Installed, Place};
use support::running::Running;
use support::{Scratch, has_command, in_ci, running};

/// Samples without an end to their moving.
const PYTHON: [&str; 5] = ["moving-locks", "moving-condition", "moving-gil", "moving-sections", "moving-worlds"];
const NATIVE: &str = "moving-mutexes";

/// Looks at one program of a starved thread before another thread of another one is chosen.
const LOOKS_PER_VICTIM: u32 = 4;

/// One at a time: the starving takes all CPUs.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn no_snapshot_of_a_healthy_program_shows_a_cycle() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    look_everywhere(wanted(), look);
}

#[test]
fn no_snapshot_of_a_program_with_a_starved_thread_shows_a_cycle() {
    if !has_command("chrt") {
        assert!(!in_ci(), "needs chrt");
        println!("skipped: needs chrt");
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let _busy: Vec<Spinning> = (0..2 * cpus).map(|_| Spinning::start()).collect();
    look_everywhere(wanted().div_ceil(10), look_at_the_starved);
}

fn wanted() -> u32 {
    std::env::var("HANGSCOPE_SNAPSHOTS").ok().map_or(300, |n| n.parse().expect("a number of looks"))
}

/// A process that wants all of a CPU.
struct Spinning(Child);

impl Spinning {
    fn start() -> Spinning {
        Spinning(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh"))
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

type Look = fn(&str, &Place, &BTreeMap<String, Installed>, u32) -> u32;

/// Looks so often in all, at each sample in each place as often as at any other, or, where that is too often, at some.
fn look_everywhere(in_all: u32, look: Look) {
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
    let step = (rows.len() / in_all.max(1) as usize).max(1);
    let rows: Vec<_> = rows.into_iter().step_by(step).collect();
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
    let options = Options { samples: Some(1), max_pause: Duration::from_secs(20), ..Options::default() };
    with_program(sample, place, installed, |program| {
        for i in 0..times {
            look_once(sample, place, program, &options, i);
        }
    });
    times
}

/// The same, while one of its threads gets what CPU nobody else wants.
fn look_at_the_starved(sample: &str, place: &Place, installed: &BTreeMap<String, Installed>, times: u32) -> u32 {
    let options = Options { samples: Some(1), ..Options::default() };
    for first in (0..times).step_by(LOOKS_PER_VICTIM as usize) {
        with_program(sample, place, installed, |program| {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", program.pid)).expect("its threads");
            let mut threads: Vec<String> =
                tasks.flatten().map(|t| t.file_name().to_string_lossy().into_owned()).collect();
            threads.sort();
            let victim = &threads[(first / LOOKS_PER_VICTIM) as usize % threads.len()];
            let done = Command::new("chrt").args(["--idle", "--pid", "0", victim]).status().expect("chrt");
            assert!(done.success(), "chrt of thread {victim}");
            for i in first..times.min(first + LOOKS_PER_VICTIM) {
                look_once(sample, place, program, &options, i);
            }
        });
    }
    times
}

/// Starts the sample and gives it to `see`.
fn with_program(sample: &str, place: &Place, installed: &BTreeMap<String, Installed>, see: impl FnOnce(&Running)) {
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
    see(&program);
    program.is_unharmed().expect("it runs on");
}

fn look_once(sample: &str, place: &Place, program: &Running, options: &Options, i: u32) {
    let diagnosis = diagnose::live(&[Pid(program.pid)], options).expect("a diagnosis");
    let verdict = &diagnosis.verdict;
    assert!(
        !verdict.kind.is_stuck() && verdict.cycles.is_empty(),
        "{sample} on {}, look {i}: {}",
        place.name,
        verdict.headline
    );
}
