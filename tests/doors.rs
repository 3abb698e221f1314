//! Every sample, wherever it can run, through every door: one verdict, that of its `expect.toml`.
//!
//! Prints a row for each (sample, place), a column for each door. The words given on the command line choose:
//! `abba-mutex/robust@sid:gdb core`, or a part of it (`@sid`, `abba:lldb`). What cannot run here is skipped and said; in CI it fails.

mod support;

#[path = "doors/debuggers.rs"]
mod debuggers;
#[path = "doors/expect.rs"]
mod expect;
#[path = "doors/row.rs"]
mod row;

use expect::Expect;
use row::{Cell, Door, Row};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;
use support::build::{self, Toolchain};
use support::places::{self, Installed, Place};

/// The hangs from the field: on every interpreter there is. The other Python samples run on one of each minor version, unless
/// `HANGSCOPE_MATRIX=all` or words on the command line choose otherwise.
const EVERYWHERE: [&str; 8] = [
    "loader-lock-vs-gil",
    "hip-module-load-vs-gil",
    "ipc-mutex-vs-gil",
    "worker-pool-vs-gil",
    "join-vs-gil",
    "lazy-call-initialised",
    "lazy-call-draining",
    "python-abba",
];

/// The interpreters that CI must have.
const REQUIRED: [&str; 4] = ["3.11", "3.13", "3.13t", "3.15"];

fn main() -> ExitCode {
    let began = Instant::now();
    let chosen = Chosen::from_arguments();
    let roots = places::roots();
    let native = places::native_places(&roots);
    let mut pythons = None; // asked for only where a row needs them
    let whole_matrix = std::env::var_os("HANGSCOPE_MATRIX").is_some_and(|v| v == "all");
    let mut rows: Vec<Row> = Vec::new();
    let mut skips: Vec<String> = Vec::new();
    for name in build::sample_names() {
        let expect = Expect::read(&name);
        if !chosen.may_hold(&name) {
            continue;
        }
        let places: &[Place] = match expect.is_python() {
            true => pythons.get_or_insert_with(|| places::python_places(&roots)),
            false => &native,
        };
        let everywhere = !chosen.words.is_empty() || whole_matrix || EVERYWHERE.contains(&name.as_str());
        let places: Vec<Place> =
            places.iter().filter(|p| expect.needs.as_ref().is_none_or(|needs| p.has_library(needs))).cloned().collect();
        if let (true, Some(needs)) = (places.is_empty(), &expect.needs) {
            skips.push(format!("skipped: {name} needs {needs} in a root (tests/roots puts it there)"));
        }
        let old_enough = |p: &&Place| {
            let since = expect.since.as_ref().is_none_or(|since| p.is_since(since));
            since && expect.until.as_ref().is_none_or(|until| p.is_until(until))
        };
        let here = |p: &&Place| !expect.is_of_host() || (p.root.is_none() && !p.own_pids);
        let places: Vec<Place> = places.iter().filter(old_enough).filter(here).cloned().collect();
        for place in places.iter().filter(|p| everywhere || !expect.is_python() || is_first_of_minor(p, &places)) {
            for (variant, args) in expect.variants() {
                let expect = expect.at(place);
                let place = if expect.gil { place.with_gil() } else { place.clone() };
                let mut row = Row::new(&name, &variant, args, &place, expect);
                row.debuggers = whole_matrix || is_debugged(&row, &places);
                if chosen.holds(&row) {
                    row.doors = chosen.doors(&row);
                    rows.push(row);
                }
            }
        }
    }
    if chosen.list {
        rows.iter().for_each(|r| println!("{}: test", r.name()));
        return ExitCode::SUCCESS;
    }
    let mut failures: Vec<(String, String)> = Vec::new();
    if let Some(pythons) = &pythons {
        for minor in REQUIRED {
            if !pythons.iter().any(|p: &Place| p.minor().as_deref() == Some(minor)) {
                skips.push(format!("skipped: needs a CPython {minor} (tests/roots makes one)"));
            }
        }
    }
    skips.extend(Door::ALL.iter().filter_map(|d| d.obstacle()).map(|why| format!("skipped: needs {why}")));
    skips.sort();
    skips.dedup();
    for skip in &skips {
        println!("{skip}");
        if support::in_ci() && !rows.is_empty() {
            failures.push(("ci".into(), skip.clone()));
        }
    }

    let prepared = match prepare(&rows) {
        Ok(prepared) => prepared,
        Err(why) => {
            println!("the samples cannot be built: {why}");
            return ExitCode::FAILURE;
        }
    };
    let results = run_all(&rows, &prepared);
    let (mut passed, mut skipped) = (0, 0);
    for (row, cells) in rows.iter().zip(results) {
        for (door, cell) in cells {
            match cell {
                Cell::Good(_) => passed += 1,
                Cell::Absent => {}
                Cell::Skipped => skipped += 1,
                Cell::Bad(why) => failures.push((format!("{} {}", row.name(), door.word()), why)),
            }
        }
    }
    for (name, why) in &failures {
        println!("\n{name}:\n  {}", why.replace('\n', "\n  "));
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {skipped} ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        failures.len(),
        began.elapsed().as_secs_f64()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Samples that go through the debuggers wherever they run; all others where a person is likeliest to sit before them, on this
/// machine and on one interpreter: a debugger takes a second or two to start.
const DEBUGGED: [&str; 2] = ["loader-lock-vs-gil/walk@", "abba-mutex/normal@"];

fn is_debugged(row: &Row, places: &[Place]) -> bool {
    let home = match row.place.python {
        None => row.place.root.is_none() && !row.place.own_pids,
        Some(_) => row.place.minor().as_deref() == Some("3.11") && is_first_of_minor(&row.place, places),
    };
    home || DEBUGGED.iter().any(|name| row.name().starts_with(name))
}

/// Whether `place` stands for its minor version: the root's interpreter, stripped as users have it, before others.
fn is_first_of_minor(place: &Place, all: &[Place]) -> bool {
    let of_minor = || all.iter().filter(|p| p.minor() == place.minor());
    let first = of_minor().find(|p| p.root.is_some()).or_else(|| of_minor().next());
    first.is_some_and(|p| p.name == place.name)
}

/// What the command line asks for, in libtest's words as far as they matter here. `SAMPLE@PLACE:DOOR`, each part optional and
/// a piece of the name it means: what holds all parts of one of the words runs.
struct Chosen {
    words: Vec<Wanted>,
    list: bool,
}

struct Wanted {
    sample: String,
    place: String,
    door: String,
}

impl Wanted {
    fn from_word(word: &str) -> Wanted {
        let (row, door) = word.split_once(':').unwrap_or((word, ""));
        let (sample, place) = row.split_once('@').unwrap_or((row, ""));
        Wanted { sample: sample.into(), place: place.into(), door: door.into() }
    }
}

impl Chosen {
    fn from_arguments() -> Chosen {
        let mut words = Vec::new();
        let mut list = false;
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => list = true,
                "--test-threads" | "--skip" | "--format" | "--color" | "-Z" => drop(arguments.next()),
                flag if flag.starts_with('-') => {}
                word => words.push(Wanted::from_word(word)),
            }
        }
        Chosen { words, list }
    }

    fn words_for<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = &'a Wanted> {
        let label = row.label();
        self.words.iter().filter(move |w| label.contains(&w.sample) && row.place.name.contains(&w.place))
    }

    fn holds(&self, row: &Row) -> bool {
        self.words.is_empty() || self.words_for(row).next().is_some()
    }

    /// The doors the row goes through: those asked for, and those that make what these look at.
    fn doors(&self, row: &Row) -> Vec<Door> {
        let asked = |d: &Door| self.words.is_empty() || self.words_for(row).any(|w| d.word().contains(&w.door));
        let asked: Vec<Door> = Door::ALL.into_iter().filter(asked).collect();
        Door::ALL.into_iter().filter(|d| asked.iter().any(|a| a == d || a.needs() == Some(*d))).collect()
    }

    /// Could a row of this sample be chosen? Saves asking every interpreter for its version.
    fn may_hold(&self, sample: &str) -> bool {
        let meant = |w: &Wanted| sample.contains(w.sample.split('/').next().unwrap_or_default());
        self.words.is_empty() || self.words.iter().any(meant)
    }
}

/// Where each row's sample lies, as its place names it, and what keeps it there.
struct Prepared {
    dirs: Vec<std::path::PathBuf>,
    installed: BTreeMap<String, Installed>,
}

fn prepare(rows: &[Row]) -> Result<Prepared, String> {
    let oldest = places::roots().into_iter().find(|r| r.suite == "bullseye");
    let mut prepared = Prepared { dirs: Vec::new(), installed: BTreeMap::new() };
    for row in rows {
        let toolchain = if row.place.root.is_some() { Toolchain::OldestRoot } else { Toolchain::Host };
        let built = build::build(&row.sample, &row.expect.flags, toolchain, oldest.as_ref())?;
        let dir = match &row.place.root {
            None => built,
            Some(root) => {
                let at = match prepared.installed.entry(root.suite.clone()) {
                    std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::btree_map::Entry::Vacant(entry) => {
                        entry.insert(Installed::new(root).map_err(|e| e.to_string())?)
                    }
                };
                at.add(&row.sample, &built).map_err(|e| e.to_string())?
            }
        };
        prepared.dirs.push(dir);
    }
    Ok(prepared)
}

/// Runs the rows, a few at a time, and prints each as it is done.
fn run_all(rows: &[Row], prepared: &Prepared) -> Vec<Vec<(Door, Cell)>> {
    let _kept_until_done = &prepared.installed;
    if !rows.is_empty() {
        println!("{}", row::heading());
    }
    let next = Mutex::new(0);
    let done: Mutex<BTreeMap<usize, Vec<(Door, Cell)>>> = Mutex::new(BTreeMap::new());
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) + 1; // much of a row is waiting
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let i = {
                        let mut next = next.lock().expect("no worker panics");
                        *next += 1;
                        *next - 1
                    };
                    let Some(row) = rows.get(i) else { break };
                    let mut cells = row.run(&prepared.dirs[i], i);
                    println!("{}", row.line(&cells));
                    // A machine too busy to let a sample reach its place, or a thread fall asleep again between two looks,
                    // gets a second chance, and it is told. A healthy program gets one only where it was called busy.
                    let whys =
                        || cells.iter().filter_map(|(_, c)| if let Cell::Bad(why) = c { Some(why) } else { None });
                    let again = whys().next().is_some()
                        && (!row.expect.healthy || whys().all(|why| why.contains("kind is busy")));
                    if again {
                        for (door, cell) in &cells {
                            if let Cell::Bad(why) = cell {
                                println!("again: {} {}: {}", row.name(), door.word(), why.replace('\n', " "));
                            }
                        }
                        cells = row.run(&prepared.dirs[i], i);
                        println!("{}", row.line(&cells));
                    }
                    done.lock().expect("no worker panics").insert(i, cells);
                }
            });
        }
    });
    done.into_inner().expect("no worker panics").into_values().collect()
}
