//! A program under control: threads are held at instruction after instruction, and at each a look is taken.

use super::chance::Chance;
use super::code::Class;
use super::control::{Step, Traced};
use super::ledger::Ledger;
use super::look;
use hangscope::diagnose::{self, Diagnosis, Options};
use hangscope::facts::Certainty;
use hangscope::units::Pid;
use hangscope::verdict::Kind;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Steps from one point to the next at most.
const MAX_STEPS: usize = 1500;
/// Points remembered for breakpoints.
const MAX_LEARNT: usize = 4096;
/// Faults of one program that are saved.
const MAX_SAVED: usize = 12;
/// Processes whose files are kept.
const MAX_KEPT: usize = 8;

/// What the looks at one program found.
#[derive(Default)]
pub struct Tally {
    pub looks: u64,
    pub kinds: BTreeMap<Kind, u64>,
    /// Holders named of locks that the program tells of.
    pub holders: u64,
    /// Looks in which a holder was named that was none, by how sure it was.
    pub wrong_holders: BTreeMap<Certainty, u64>,
    /// Looks that failed, by why.
    pub failed: BTreeMap<String, u64>,
    pub faults: Vec<String>,
    pub steps: u64,
    pub looking: Duration,
    /// How far the program came meanwhile.
    pub beats: u64,
}

impl Tally {
    /// Verdicts of one kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.kinds.get(&kind).copied().unwrap_or(0)
    }
}

/// Looks at a program that nobody holds, by the live access method: two looks each, a moment apart, so that what moved between
/// them counts.
pub fn look_live(name: &str, pids: &[i32], chance: &mut Chance, until: Instant, into: &Path) -> Tally {
    let mut tally = Tally::default();
    let pids: Vec<Pid> = pids.iter().map(|pid| Pid(*pid)).collect();
    while Instant::now() < until {
        let options = Options { samples: Some(2), interval: chance.micros(10_000), ..Options::default() };
        let began = Instant::now();
        let said = diagnose::live(&pids, &options);
        tally.looking += began.elapsed();
        let diagnosis = match said {
            Ok(diagnosis) => diagnosis,
            Err(why) => {
                println!("{name}: {why}");
                break;
            }
        };
        tally.looks += 1;
        let verdict = &diagnosis.verdict;
        *tally.kinds.entry(verdict.kind).or_default() += 1;
        let stuck = verdict.kind.is_stuck() || !verdict.cycles.is_empty();
        if stuck || verdict.kind == Kind::Stalled {
            let path = into.join(format!("{}-live-{}.txt", name.replace([' ', '/'], "-"), tally.looks));
            std::fs::write(&path, look::report(&diagnosis)).expect("the report is saved");
            let line = format!("{name}, two looks: {} ({})", verdict.headline, path.display());
            println!("{} {line}", if stuck { "FAULT" } else { "stalled" });
            if stuck {
                tally.faults.push(line);
            }
        }
        std::thread::sleep(chance.micros(3000));
    }
    tally
}

/// Control over one running program.
pub struct Session<'a> {
    name: &'a str,
    seed: u64,
    chance: Chance,
    traced: Traced,
    main: i32,
    ledger: Option<&'a File>,
    /// Where faults are saved.
    into: &'a Path,
    learnt: Vec<u64>,
    /// Diagnoses whose files are opened.
    earlier: HashMap<i32, Diagnosis>,
    points: u64,
    pub tally: Tally,
}

/// How a thread is brought to its first point.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Wherever it is.
    Step,
    /// It runs to an instruction that followed an atomic one before.
    Breakpoint,
    /// It runs to the entry or the return of a system call.
    Call,
    /// It stays where it is, asleep or not, while the others run.
    Frozen,
}

impl<'a> Session<'a> {
    pub fn new(name: &'a str, pids: &[i32], ledger: Option<&'a File>, into: &'a Path, seed: u64) -> Session<'a> {
        Session {
            name,
            seed,
            chance: Chance::new(seed),
            traced: Traced::seize(pids),
            main: pids.first().copied().unwrap_or(0),
            ledger,
            into,
            learnt: Vec::new(),
            earlier: HashMap::new(),
            points: 0,
            tally: Tally::default(),
        }
    }

    /// Takes looks until the time is over or the program ended.
    pub fn run(&mut self, until: Instant) {
        let before = Ledger::read(self.ledger).beats;
        while Instant::now() < until && !self.traced.threads(self.main).is_empty() {
            self.episode();
            self.breathe();
        }
        self.tally.steps = self.traced.steps;
        self.tally.beats = Ledger::read(self.ledger).beats.wrapping_sub(before);
    }

    /// Everything runs for a moment.
    fn breathe(&mut self) {
        let end = Instant::now() + self.chance.micros(1500);
        while Instant::now() < end {
            self.traced.pump();
            std::thread::sleep(Duration::from_micros(30));
        }
        self.traced.pump();
    }

    fn episode(&mut self) {
        let Some(pid) = self.chance.one_of(&self.traced.processes()) else { return };
        let Some(first) = self.chance.one_of(&self.traced.threads(pid)) else { return };
        if !self.traced.hold(first) {
            return;
        }
        let way = match self.chance.below(100) {
            0..50 => Way::Step,
            50..70 => Way::Breakpoint,
            70..85 => Way::Call,
            _ => Way::Frozen,
        };
        let second = if self.chance.percent(30) { self.chance.one_of(&self.traced.threads(pid)) } else { None };
        let second = second.filter(|s| *s != first);
        self.follow(pid, first, second, way);
        for tid in [Some(first), second].into_iter().flatten() {
            self.traced.release(tid);
        }
    }

    /// Looks at the points of one thread, or of two.
    fn follow(&mut self, pid: i32, first: i32, second: Option<i32>, way: Way) {
        if !self.approach(first, pid, way) {
            return;
        }
        self.look(pid, first, way);
        if let Some(second) = second {
            // it may wait for what the first has taken
            let arrived = self.traced.hold(second) && (matches!(way, Way::Frozen) || self.step_to_point(second));
            if arrived {
                self.look(pid, second, way);
            }
        }
        for _ in 0..self.chance.below(24) {
            let one = if second.is_some() && self.chance.percent(50) { second.unwrap_or(first) } else { first };
            if !self.traced.stands(one) {
                return;
            }
            let on = match way {
                Way::Frozen if self.chance.percent(70) => true,
                // a window may be a few instructions long
                _ if self.chance.percent(30) => !matches!(self.traced.step(one), Step::Lost),
                _ => self.step_to_point(one),
            };
            if !on {
                return;
            }
            self.look(pid, one, way);
        }
    }

    fn approach(&mut self, tid: i32, pid: i32, way: Way) -> bool {
        match way {
            Way::Frozen => true,
            Way::Step => self.step_to_point(tid),
            Way::Call => {
                for _ in 0..=self.chance.below(3) {
                    self.traced.run_to_call(tid, Duration::from_millis(8));
                }
                self.traced.stands(tid)
            }
            Way::Breakpoint => {
                let at: Vec<u64> = (0..4).filter_map(|_| self.chance.one_of(&self.learnt)).collect();
                if at.is_empty() || self.traced.processes().first() != Some(&pid) && self.chance.percent(50) {
                    return self.step_to_point(tid);
                }
                self.traced.set_breakpoints(tid, &at);
                self.traced.run_to_breakpoint(tid, Duration::from_millis(12));
                self.traced.clear_breakpoints(tid);
                self.traced.stands(tid)
            }
        }
    }

    /// Steps to the instruction behind the next atomic one or system call, or to where it sleeps. False where it ended.
    fn step_to_point(&mut self, tid: i32) -> bool {
        for _ in 0..MAX_STEPS {
            match self.traced.step(tid) {
                Step::Did(Class::Plain) => {}
                Step::Did(Class::Syscall) => return true,
                Step::Did(Class::Atomic) => {
                    if let Some(registers) = self.traced.registers(tid) {
                        self.learn(registers.rip);
                    }
                    return true;
                }
                Step::Asleep => return true,
                Step::Lost => return false,
            }
        }
        // nothing on its way: where it is is as good as elsewhere
        true
    }

    fn learn(&mut self, at: u64) {
        if let Err(i) = self.learnt.binary_search(&at)
            && self.learnt.len() < MAX_LEARNT
        {
            self.learnt.insert(i, at);
        }
    }

    /// Lets the others run until they sleep, holds them, looks, lets them go on.
    fn look(&mut self, pid: i32, tid: i32, way: Way) {
        self.points += 1;
        let bound = match self.chance.below(10) {
            0..2 => Duration::ZERO,
            2..8 => Duration::from_micros(600),
            _ => Duration::from_millis(4),
        };
        self.traced.settle(pid, bound);
        let apart = self.chance.percent(25);
        let others = self.traced.hold_rest(pid, apart.then_some(&mut self.chance));
        let began = Instant::now();
        let said = look::look(&self.traced, pid, self.earlier.get(&pid));
        self.tally.looking += began.elapsed();
        match said {
            Ok(diagnosis) => {
                self.judge(&diagnosis, pid, tid, way);
                if self.earlier.len() >= MAX_KEPT && !self.earlier.contains_key(&pid) {
                    self.earlier.retain(|p, _| *p == self.main);
                }
                self.earlier.insert(pid, diagnosis);
            }
            Err(why) => *self.tally.failed.entry(why.replace(&pid.to_string(), "PID")).or_default() += 1,
        }
        for tid in others {
            self.traced.release(tid);
        }
    }

    fn judge(&mut self, diagnosis: &Diagnosis, pid: i32, tid: i32, way: Way) {
        self.tally.looks += 1;
        let kind = diagnosis.verdict.kind;
        *self.tally.kinds.entry(kind).or_default() += 1;
        let (wrong, compared) = Ledger::read(self.ledger).contradicts(diagnosis);
        self.tally.holders += compared;
        if let Some(sure) = wrong.iter().map(|(sure, _)| *sure).max() {
            *self.tally.wrong_holders.entry(sure).or_default() += 1;
        }
        let stuck = kind.is_stuck() || !diagnosis.verdict.cycles.is_empty();
        if !stuck && wrong.is_empty() && kind != Kind::Stalled {
            return;
        }
        let mut what = if stuck { diagnosis.verdict.headline.clone() } else { kind.word().to_owned() };
        for (_, wrong) in &wrong {
            what += &format!("; {wrong}");
        }
        let saved = self.save(diagnosis, pid, tid, way, &what);
        let line = format!("{}, point {}, thread {tid}, {way:?}: {what} ({})", self.name, self.points, saved.display());
        if stuck || !wrong.is_empty() {
            println!("FAULT {line}");
            self.tally.faults.push(line);
        } else {
            println!("stalled {line}");
        }
    }

    /// Writes the core and the report; where they are.
    fn save(&self, diagnosis: &Diagnosis, pid: i32, tid: i32, way: Way, what: &str) -> PathBuf {
        let name = format!("{}-{:x}-{}", self.name.replace([' ', '/'], "-"), self.seed, self.points);
        let path = self.into.join(&name);
        if self.tally.faults.len() >= MAX_SAVED {
            return PathBuf::from("not saved: there are others");
        }
        let registers = self.traced.registers(tid).map_or(0, |r| r.rip);
        let text = format!(
            "{}, seed {:#x}, point {}: process {pid}, thread {tid} held at {registers:#x} ({way:?})\n{what}\n\n{}",
            self.name,
            self.seed,
            self.points,
            look::report(diagnosis)
        );
        let saved = std::fs::write(self.into.join(format!("{name}.txt")), text);
        let saved = saved.and_then(|()| look::save_core(diagnosis, pid, &self.into.join(format!("{name}.core"))));
        if let Err(e) = saved {
            println!("{}: {e}", path.display());
        }
        path
    }
}
