//! Healthy programs, held at any of their instructions: never a deadlock, never a holder that holds nothing.
//!
//! Looks at random moments of a quiet machine find a program's threads where they sleep. Here ptrace stops one thread or two
//! where it matters (behind an atomic instruction, in a system call or on the return from one, in a signal's handler, asleep
//! while others run), the others run until they sleep, and then one look is taken. The program tells in shared memory what
//! its threads have taken, so that a holder who is none is noticed too.
//!
//! - `HANGSCOPE_INSTANTS_SECONDS`: how long, all programs together (default 60; in CI 180).
//! - `HANGSCOPE_INSTANTS_ONLY`: words; programs whose names have them all.
//! - `HANGSCOPE_INSTANTS_SEED`: what chance begins with; a fault is printed with it.
//! - `HANGSCOPE_INSTANTS_KEEP`: where faults are saved; else in the temporary directory.

#[path = "instants/chance.rs"]
mod chance;
#[path = "instants/code.rs"]
mod code;
#[path = "instants/control.rs"]
mod control;
#[path = "instants/ledger.rs"]
mod ledger;
#[path = "instants/look.rs"]
mod look;
#[path = "instants/programs.rs"]
mod programs;
#[path = "instants/raw.rs"]
mod raw;
#[path = "instants/session.rs"]
mod session;
mod support;

use chance::Chance;
use hangscope::target::live::descendants;
use hangscope::units::Pid;
use hangscope::verdict::Kind;
use programs::Program;
use session::{Session, Tally, look_live};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::places::Installed;
use support::{in_ci, running};

/// The least time a program gets: starting it and reading its files takes a second.
const LEAST: Duration = Duration::from_secs(3);

fn setting(name: &str) -> Option<String> {
    std::env::var(format!("HANGSCOPE_INSTANTS_{name}")).ok().filter(|v| !v.is_empty())
}

#[test]
fn no_instant_of_a_healthy_program_shows_a_deadlock() {
    let seconds = setting("SECONDS").map_or(if in_ci() { 180 } else { 60 }, |s| s.parse().expect("seconds"));
    if seconds == 0 {
        println!("skipped: no time is given to it");
        return;
    }
    let only = setting("ONLY").unwrap_or_default();
    let seed = setting("SEED").map(|s| parse_seed(&s));
    let keep = setting("KEEP").map_or_else(|| std::env::temp_dir().join("hangscope-instants"), PathBuf::from);
    std::fs::create_dir_all(&keep).expect("a directory for faults");
    let wanted = |p: &Program| only.split_whitespace().all(|word| p.name.contains(word));
    let mut programs: Vec<Program> = programs::all().into_iter().filter(wanted).collect();
    assert!(!programs.is_empty(), "no program is called {only}");
    let mut chance = Chance::new(seed.unwrap_or_else(|| std::process::id().into()));
    // where there is no time for all, other ones each time
    for i in (1..programs.len()).rev() {
        programs.swap(i, chance.below(i + 1));
    }
    let began = Instant::now();
    let end = began + Duration::from_secs(seconds);
    let mut table: BTreeMap<String, Tally> = BTreeMap::new();
    for (i, program) in programs.iter().enumerate() {
        let now = Instant::now();
        if now >= end {
            break;
        }
        let left = u32::try_from(programs.len() - i).expect("few programs");
        let share = (end.duration_since(now) / left).max(LEAST);
        let seed = seed.unwrap_or_else(|| chance.next());
        match look_at(program, share, &keep, seed) {
            Ok([held, live]) => {
                table.insert(program.name.clone(), held);
                table.insert(format!("{}, live", program.name), live);
            }
            Err(why) => {
                assert!(!in_ci() || why.starts_with("needs"), "{}: {why}", program.name);
                println!("{}: {why}", program.name);
            }
        }
    }
    print_table(&table);
    judge(&table, &keep);
}

fn parse_seed(text: &str) -> u64 {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).expect("a number in hexadecimal digits")
}

/// Runs one program under control.
fn look_at(program: &Program, share: Duration, keep: &Path, seed: u64) -> Result<[Tally; 2], String> {
    let io = |e: std::io::Error| e.to_string();
    let built = programs::build(program)?;
    let scratch = support::Scratch::new(&format!("instants-{seed:x}"));
    let installed = program.place.root.as_ref().map(Installed::new).transpose().map_err(io)?;
    let (dir, ledger) = match &installed {
        Some(installed) => {
            let dir = installed.add("instants", &built).map_err(io)?;
            (dir.clone(), dir.join("ledger"))
        }
        None => (built, scratch.path().join("ledger")),
    };
    let cwd = ledger.parent().unwrap_or(Path::new("/tmp"));
    let args = [program.kind.to_owned(), ledger.display().to_string()];
    let program_runs = running::start(&program.place, &dir, &args, cwd)?;
    let file = std::fs::File::open(program_runs.cwd.join("ledger")).ok();
    let mut pids = vec![program_runs.pid];
    pids.extend(descendants(Pid(program_runs.pid)).into_iter().map(|p| p.0));
    let mut chance = Chance::new(seed);
    let live = look_live(&program.name, &pids, &mut chance, Instant::now() + share / 6, keep);
    let mut session = Session::new(&program.name, &pids, file.as_ref(), keep, seed);
    session.run(Instant::now() + share - share / 6);
    let held = std::mem::take(&mut session.tally);
    if !held.faults.is_empty() || !live.faults.is_empty() {
        println!("repeat with HANGSCOPE_INSTANTS_ONLY='{}' HANGSCOPE_INSTANTS_SEED={seed:#x}", program.name);
    }
    Ok([held, live])
}

const KINDS: [Kind; 6] =
    [Kind::Deadlock, Kind::SelfDeadlock, Kind::OrphanedLock, Kind::Stalled, Kind::Busy, Kind::Idle];

fn print_table(table: &BTreeMap<String, Tally>) {
    let mut head = format!("{:<44} {:>7}", "program", "looks");
    for kind in KINDS {
        head += &format!(" {:>13}", kind.word());
    }
    println!("{head} {:>8} {:>6} {:>7} {:>9} {:>9}", "holders", "wrong", "ms/look", "steps", "beats");
    let mut total = Tally::default();
    for (name, tally) in table {
        println!("{}", row(name, tally));
        total.looks += tally.looks;
        total.steps += tally.steps;
        total.beats += tally.beats;
        total.holders += tally.holders;
        total.looking += tally.looking;
        for (kind, n) in &tally.kinds {
            *total.kinds.entry(*kind).or_default() += n;
        }
        for (sure, n) in &tally.wrong_holders {
            *total.wrong_holders.entry(*sure).or_default() += n;
        }
        for (why, n) in &tally.failed {
            println!("    {n} looks failed: {why}");
        }
    }
    println!("{}", row("all", &total));
}

fn row(name: &str, tally: &Tally) -> String {
    let mut row = format!("{name:<44} {:>7}", tally.looks);
    for kind in KINDS {
        row += &format!(" {:>13}", tally.count(kind));
    }
    let wrong: u64 = tally.wrong_holders.values().sum();
    let each = tally.looking.as_secs_f64() * 1000.0 / tally.looks.max(1) as f64;
    format!("{row} {:>8} {wrong:>6} {each:>7.2} {:>9} {:>9}", tally.holders, tally.steps, tally.beats)
}

fn judge(table: &BTreeMap<String, Tally>, keep: &Path) {
    let faults: Vec<&String> = table.values().flat_map(|t| &t.faults).collect();
    assert!(faults.is_empty(), "{} faults, saved in {}, the first: {}", faults.len(), keep.display(), faults[0]);
    let looks: u64 = table.values().map(|t| t.looks).sum();
    assert!(looks > 0, "no look was taken");
    let stalled: u64 = table.values().map(|t| t.count(Kind::Stalled)).sum();
    println!("stalled: {stalled} of {looks}");
}
