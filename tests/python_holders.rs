//! Never a false holder: programs that take locks at random, in every way there is, are stopped at random moments, on every
//! interpreter there is, and what hangscope says each thread holds is compared with what the program wrote down.
//!
//! A stop is a SIGSTOP, so that nothing moves between reading the notes and looking. `HANGSCOPE_STOPS` sets how many there
//! are in all (default 2,100).

mod support;

use hangscope::diagnose::{self, Options};
use hangscope::facts::{Certainty, Holder, ResourceKind};
use hangscope::units::Pid;
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use support::places::{self, Installed, Place};
use support::running::{self, Running};
use support::{Scratch, home};

const THREADS: usize = 5;
const LOCKS: usize = 13;

/// What a thread notes of a lock.
mod noted {
    pub const FREE: u8 = 0;
    pub const MOVING: u8 = 1;
    pub const WITH: u8 = 2;
    pub const ACQUIRED: u8 = 3;
    pub const GENERATOR: u8 = 4;
    pub const STACKED: u8 = 5;
}

/// The program's notes at one instant.
#[derive(PartialEq)]
struct Notes(Vec<u8>);

impl Notes {
    fn read(path: &Path) -> Notes {
        let bytes = std::fs::read(path).expect("the notes");
        assert_eq!(bytes.len(), 8 * (LOCKS + THREADS) + LOCKS * THREADS);
        Notes(bytes)
    }

    fn word(&self, i: usize) -> u64 {
        u64::from_le_bytes(self.0[8 * i..8 * i + 8].try_into().unwrap())
    }

    fn lock_at(&self, address: u64) -> Option<usize> {
        (0..LOCKS).find(|i| self.word(*i) == address)
    }

    fn thread_of(&self, tid: i32) -> Option<usize> {
        (0..THREADS).find(|i| self.word(LOCKS + i) == u64::try_from(tid).unwrap())
    }

    fn of(&self, thread: usize, lock: usize) -> u8 {
        self.0[8 * (LOCKS + THREADS) + thread * LOCKS + lock]
    }

    /// Who says that it has the lock.
    fn holder(&self, lock: usize) -> Option<usize> {
        (0..THREADS).find(|t| self.of(*t, lock) > noted::MOVING)
    }
}

/// Found of noted, for one way to hold a lock.
#[derive(Default, Clone, Copy)]
struct Tally {
    noted: u32,
    found: u32,
}

#[derive(Default)]
struct Counts {
    stops: u32,
    /// By what the program noted.
    by_note: BTreeMap<u8, Tally>,
    /// Proven holds of a lock its thread is just taking or giving back: nothing to compare with.
    moving: u32,
    inferred: u32,
    inferred_wrong: u32,
    wrong: Vec<String>,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.stops += other.stops;
        self.moving += other.moving;
        self.inferred += other.inferred;
        self.inferred_wrong += other.inferred_wrong;
        self.wrong.extend(other.wrong);
        for (note, tally) in other.by_note {
            let sum = self.by_note.entry(note).or_default();
            sum.noted += tally.noted;
            sum.found += tally.found;
        }
    }

    fn of(&self, note: u8) -> Tally {
        self.by_note.get(&note).copied().unwrap_or_default()
    }

    fn line(&self) -> String {
        let of = |note| {
            let t = self.of(note);
            format!("{}/{}", t.found, t.noted)
        };
        format!(
            "{:>6} {:>13} {:>13} {:>11} {:>11} {:>8} {:>9} {:>6} {:>6}",
            self.stops,
            of(noted::WITH),
            of(noted::ACQUIRED),
            of(noted::GENERATOR),
            of(noted::STACKED),
            self.moving,
            self.inferred,
            self.inferred_wrong,
            self.wrong.len()
        )
    }
}

/// One program: where it runs, and its words.
struct Row {
    place: Place,
    modes: Vec<String>,
    stops: u32,
    seed: usize,
}

#[test]
fn who_holds_is_what_the_program_wrote_down() {
    let in_all: u32 = std::env::var("HANGSCOPE_STOPS").ok().map_or(2_100, |n| n.parse().expect("a number of stops"));
    let roots = places::roots();
    let pythons = places::python_places(&roots);
    assert!(!pythons.is_empty(), "needs a CPython");
    let modes: [&[&str]; 3] = [&[], &["trace"], &["unlock"]];
    let each = in_all.div_ceil(u32::try_from(pythons.len() * modes.len()).unwrap());
    let mut rows = Vec::new();
    for place in &pythons {
        for words in modes {
            let seed = rows.len() + 1;
            let modes = words.iter().map(|w| (*w).to_string()).collect();
            rows.push(Row { place: place.clone(), modes, stops: each, seed });
        }
    }
    println!(
        "{:<24} {:>6} {:>13} {:>13} {:>11} {:>11} {:>8} {:>9} {:>6} {:>6}",
        "found of noted", "stops", "with", "acquire", "generator", "ExitStack", "moving", "inferred", "wrong", "FALSE"
    );
    let next = Mutex::new(0);
    let all = Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, std::num::NonZero::get) {
            scope.spawn(|| {
                loop {
                    let i = {
                        let mut next = next.lock().unwrap();
                        *next += 1;
                        *next - 1
                    };
                    let Some(row) = rows.get(i) else { break };
                    let counts = row.run(i);
                    println!("{:<24} {}", format!("{} {}", row.place.name, row.modes.join(" ")), counts.line());
                    all.lock().unwrap().add(counts);
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    println!("{:<24} {}", "all", all.line());
    assert!(all.wrong.is_empty(), "{} false:\n{}", all.wrong.len(), all.wrong.join("\n"));
    let with = all.of(noted::WITH);
    assert!(
        all.stops >= in_all && with.noted > all.stops,
        "hardly any lock was held: {with_noted}",
        with_noted = with.noted
    );
    assert!(
        (with.noted - with.found) * 1000 <= with.noted * MISSED_IN_1000,
        "{} of {} missed",
        with.noted - with.found,
        with.noted
    );
}

/// Locks held by `with` that may be missed: a thread caught between two instructions of the block's first or last line.
const MISSED_IN_1000: u32 = 5;

impl Row {
    fn run(&self, number: usize) -> Counts {
        let sources = home().join("tests/python_holders");
        let scratch = Scratch::new(&format!("holders-{number}"));
        let installed = self.place.root.as_ref().map(|root| Installed::new(root).expect("a directory in the root"));
        let (dir, cwd) = match &installed {
            Some(installed) => {
                let dir = installed.add(&format!("python-holders-{number}"), &sources).expect("a copy in the root");
                (dir.clone(), dir)
            }
            None => (sources, scratch.path().to_path_buf()),
        };
        let mut words = vec!["notes".to_string(), self.seed.to_string()];
        words.extend(self.modes.iter().cloned());
        let program = running::start(&self.place, &dir, &words, &cwd).expect("the program");
        let counts = self.watch(&program);
        drop(program);
        // one directory for all rows of this process: kept until the last
        std::mem::forget(installed);
        counts
    }

    fn watch(&self, program: &Running) -> Counts {
        let path = program.cwd.join("notes");
        let options = Options { samples: Some(1), max_pause: Duration::from_secs(20), ..Options::default() };
        let mut random = u64::try_from(self.seed).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut counts = Counts::default();
        for _ in 0..self.stops {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_micros(500 + random % 16_000));
            program.signal(Signal::SIGSTOP).expect("a stop");
            wait_for_stop(program);
            let notes = Notes::read(&path);
            let diagnosis = diagnose::live(&[Pid(program.pid)], &options).expect("a diagnosis");
            assert!(notes == Notes::read(&path), "it moved while it was stopped");
            program.signal(Signal::SIGCONT).expect("it goes on");
            self.compare(&notes, &diagnosis, &mut counts);
        }
        counts
    }

    fn compare(&self, notes: &Notes, diagnosis: &diagnose::Diagnosis, counts: &mut Counts) {
        counts.stops += 1;
        let threads = &diagnosis.snapshots[0].threads;
        let mut claims: BTreeMap<(usize, usize), String> = BTreeMap::new();
        // what an ExitStack holds is never more than inferred
        let mut stacked: BTreeSet<(usize, usize)> = BTreeSet::new();
        let place = format!("{} {}", self.place.name, self.modes.join(" "));
        if diagnosis.verdict.kind.is_stuck() {
            counts.wrong.push(format!("{place}: {}", diagnosis.verdict.headline));
        }
        for hold in &diagnosis.facts.holds {
            let Some(resource) = diagnosis.facts.resources.iter().find(|r| r.id == hold.of) else { continue };
            if !matches!(resource.kind, ResourceKind::PythonLock | ResourceKind::PythonRlock) {
                continue;
            }
            let (Some(lock), Holder::Thread(t)) = (resource.address.and_then(|a| notes.lock_at(a.0)), hold.holder)
            else {
                continue;
            };
            let tid = threads[t.thread as usize].tid.0;
            let evidence: Vec<&str> = hold.evidence.iter().map(|e| e.0.as_str()).collect();
            let said = format!("lock {lock} by thread {tid}, {}: {}", hold.certainty.word(), evidence.join("; "));
            let Some(thread) = notes.thread_of(tid) else {
                counts.wrong.push(format!("{place}: {said}: no such worker"));
                continue;
            };
            let other = notes.holder(lock).filter(|h| *h != thread);
            let is_wrong = notes.of(thread, lock) == noted::FREE || other.is_some();
            if hold.certainty == Certainty::Inferred {
                counts.inferred += 1;
                counts.inferred_wrong += u32::from(is_wrong);
                if !is_wrong && notes.of(thread, lock) == noted::STACKED {
                    stacked.insert((lock, thread));
                }
                continue;
            }
            if notes.of(thread, lock) == noted::STACKED && matches!(resource.kind, ResourceKind::PythonLock) {
                counts.wrong.push(format!("{place}: {said}: whoever has the ExitStack may close it"));
            }
            if is_wrong {
                let frames: Vec<String> = diagnosis
                    .facts
                    .managed
                    .iter()
                    .filter(|(r, _)| *r == t)
                    .flat_map(|(_, m)| &m.frames)
                    .map(|f| format!("{}:{}", f.function, f.line.unwrap_or(0)))
                    .collect();
                counts.wrong.push(format!(
                    "{place}: {said}: noted {} by it, held by {other:?}; its frames: {}",
                    notes.of(thread, lock),
                    frames.join(" ")
                ));
            }
            counts.moving += u32::from(notes.of(thread, lock) == noted::MOVING);
            if claims.keys().any(|(l, h)| *l == lock && *h != thread) {
                counts.wrong.push(format!("{place}: {said}: and by another"));
            }
            claims.insert((lock, thread), said);
        }
        for thread in 0..THREADS {
            for lock in 0..LOCKS {
                let note = notes.of(thread, lock);
                if note > noted::MOVING {
                    let tally = counts.by_note.entry(note).or_default();
                    tally.noted += 1;
                    let found = claims.contains_key(&(lock, thread)) || stacked.contains(&(lock, thread));
                    tally.found += u32::from(found);
                }
            }
        }
    }
}

fn wait_for_stop(program: &Running) {
    let began = Instant::now();
    let is_stopped = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", program.pid)).expect("its threads").flatten();
        tasks
            .map(|t| std::fs::read_to_string(t.path().join("stat")).unwrap_or_default())
            .all(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
    };
    while !is_stopped() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not stop");
        std::thread::sleep(Duration::from_micros(100));
    }
}
