//! One sample in one place, through every door.

use crate::debuggers::Debugger;
use crate::expect::{Expect, Known, Looked};
use crate::support::places::Place;
use crate::support::running::{self, Running};
use crate::support::{self, Said, Scratch, hangscope};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A way to reach a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Stopped for an instant.
    Attach,
    /// Not stopped at all.
    NoStop,
    /// The core that `attach --save-core` wrote.
    Minicore,
    /// The same, on a machine that has none of the target's files.
    Elsewhere,
    /// gcore's core.
    Gcore,
    /// Inside gdb, attached to it.
    Gdb,
    /// Inside gdb, on gcore's core.
    GdbCore,
    /// Inside lldb, attached to it.
    Lldb,
    /// Inside lldb, on gcore's core.
    LldbCore,
    /// The kernel's.
    Kernel,
}

/// What came of it.
pub enum Cell {
    Good(Duration),
    Skipped,
    /// There is no such way from this place.
    Absent,
    Bad(String),
}

impl Door {
    pub const ALL: [Door; 10] = [
        Door::Attach,
        Door::NoStop,
        Door::Minicore,
        Door::Elsewhere,
        Door::Gcore,
        Door::Gdb,
        Door::GdbCore,
        Door::Lldb,
        Door::LldbCore,
        Door::Kernel,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Door::Attach => "attach",
            Door::NoStop => "no-stop",
            Door::Minicore => "minicore",
            Door::Elsewhere => "elsewhere",
            Door::Gcore => "gcore",
            Door::Gdb => "gdb",
            Door::GdbCore => "gdb core",
            Door::Lldb => "lldb",
            Door::LldbCore => "lldb core",
            Door::Kernel => "kernel core",
        }
    }

    /// The door that makes the core it opens.
    pub fn needs(self) -> Option<Door> {
        match self {
            Door::Minicore | Door::Elsewhere => Some(Door::Attach),
            Door::GdbCore | Door::LldbCore => Some(Door::Gcore),
            _ => None,
        }
    }

    /// What it lacks here.
    pub fn obstacle(self) -> Option<String> {
        match self {
            Door::Gcore if !support::has_command("gcore") => Some("gcore (apt install gdb)".into()),
            Door::Gdb | Door::GdbCore => Debugger::Gdb.obstacle(),
            Door::Lldb | Door::LldbCore => Debugger::Lldb.obstacle(),
            Door::Kernel => running::kernel_core_obstacle(),
            _ => None,
        }
    }
}

/// A sample, its variant, and where it runs.
pub struct Row {
    pub sample: String,
    variant: String,
    args: Vec<String>,
    pub place: Place,
    pub expect: Expect,
    /// Whether it goes through the debuggers' doors too.
    pub debuggers: bool,
    /// The doors that were asked for.
    pub doors: Vec<Door>,
}

/// The table's first line.
pub fn heading() -> String {
    let mut line = format!("{:<36} {:<16}", "sample", "on");
    Door::ALL.iter().for_each(|d| line += &format!(" {:>11}", d.word()));
    line
}

impl Row {
    pub fn new(sample: &str, variant: &str, args: Vec<String>, place: &Place, expect: &Expect) -> Row {
        let (place, expect) = (place.clone(), expect.clone());
        Row {
            sample: sample.into(),
            variant: variant.into(),
            args,
            place,
            expect,
            debuggers: true,
            doors: Door::ALL.to_vec(),
        }
    }

    /// `abba-mutex/robust`.
    pub fn label(&self) -> String {
        if self.variant.is_empty() { self.sample.clone() } else { format!("{}/{}", self.sample, self.variant) }
    }

    /// `abba-mutex/robust@sid`.
    pub fn name(&self) -> String {
        format!("{}@{}", self.label(), self.place.name)
    }

    /// Its line of the table.
    pub fn line(&self, cells: &[(Door, Cell)]) -> String {
        let mut line = format!("{:<36} {:<16}", self.label(), self.place.name);
        for (_, cell) in cells {
            line += &match cell {
                Cell::Good(took) => format!(" {:>8} ms", took.as_millis()),
                Cell::Absent => format!(" {:>11}", "-"),
                Cell::Skipped => format!(" {:>11}", "skipped"),
                Cell::Bad(_) => format!(" {:>11}", "FAILED"),
            };
        }
        line
    }

    /// Starts the sample (`dir` as the place names it) and goes through each door.
    pub fn run(&self, dir: &Path, number: usize) -> Vec<(Door, Cell)> {
        let scratch = Scratch::new(&format!("row-{number}"));
        let cwd = match &self.place.root {
            Some(_) => dir.join(format!("cwd-{number}")),
            None => scratch.path().join("cwd"),
        };
        let seen = match &self.place.root {
            Some(root) => root.path.join(cwd.strip_prefix("/").unwrap_or(&cwd)),
            None => cwd.clone(),
        };
        let started = std::fs::create_dir_all(&seen)
            .map_err(|e| e.to_string())
            .and_then(|()| running::start(&self.place, dir, &self.args, &cwd));
        let cells = match started {
            Ok(mut sample) => {
                let known = Known { pid: sample.own_pid, names: sample.thread_names() };
                let through = |door: &Door| (*door, self.through(*door, &mut sample, &known, scratch.path()));
                Door::ALL.iter().map(through).collect()
            }
            Err(why) => {
                Door::ALL.iter().map(|door| (*door, Cell::Bad(format!("it cannot be started: {why}")))).collect()
            }
        };
        if self.place.root.is_some() {
            let _ = std::fs::remove_dir_all(&seen);
        }
        cells
    }

    /// How often to look at a moving program: as often as the sample says where native programs run and on one interpreter,
    /// a tenth of it on the others, which differ in nothing that moves.
    fn snapshots(&self) -> u32 {
        let whole = self.place.python.is_none() || self.place.name == "bookworm-3.11" || self.place.root.is_none();
        let whole = whole && !self.place.name.starts_with("pyenv-");
        if whole { self.expect.snapshots } else { self.expect.snapshots.div_ceil(10) }
    }

    fn through(&self, door: Door, sample: &mut Running, known: &Known, scratch: &Path) -> Cell {
        if door == Door::Elsewhere && self.place.root.is_none() {
            return Cell::Absent;
        }
        let debugger = matches!(door, Door::Gdb | Door::GdbCore | Door::Lldb | Door::LldbCore);
        if debugger && !self.debuggers || !self.doors.contains(&door) {
            return Cell::Absent;
        }
        if door.obstacle().is_some() {
            return Cell::Skipped;
        }
        let said = match door {
            Door::Attach => self.attach(sample, known, scratch),
            Door::NoStop => self.no_stop(sample, known),
            Door::Minicore => self.core(&scratch.join("minicore"), known),
            Door::Elsewhere => self.elsewhere(&scratch.join("minicore"), known),
            Door::Gcore => gcore(sample, scratch).and_then(|(core, looked)| self.core_of(&core, known, looked)),
            Door::Gdb => self.debugged(Debugger::Gdb, sample, known, scratch),
            Door::GdbCore => self.debugged_core(Debugger::Gdb, sample, known, scratch),
            Door::Lldb => self.debugged(Debugger::Lldb, sample, known, scratch),
            Door::LldbCore => self.debugged_core(Debugger::Lldb, sample, known, scratch),
            Door::Kernel => sample.abort_for_core().and_then(|core| self.core(&core, known)),
        };
        match said {
            Ok(took) => Cell::Good(took),
            Err(why) => Cell::Bad(why),
        }
    }

    fn attach(&self, sample: &Running, known: &Known, scratch: &Path) -> Result<Duration, String> {
        let minicore = scratch.join("minicore").display().to_string();
        let took = self.live(sample, known, &["--save-core", &minicore], Looked::Twice)?;
        if self.expect.tree {
            self.live(sample, known, &[], Looked::Twice)?;
        }
        for i in 0..self.snapshots() {
            let mut command = hangscope();
            command.args(["attach", &sample.pid.to_string(), "--json", "--samples", "1"]);
            self.judge(command, known, Looked::Once).map_err(|why| format!("snapshot {i}: {why}"))?;
        }
        if self.expect.snapshots > 0 {
            sample.is_unharmed()?;
        }
        Ok(took)
    }

    fn live(&self, sample: &Running, known: &Known, more: &[&str], looked: Looked) -> Result<Duration, String> {
        let mut command = hangscope();
        command.args(["attach", &sample.pid.to_string(), "--json"]).args(more);
        // a core is of one process
        if self.expect.tree && more.iter().all(|word| *word != "--save-core") {
            command.arg("--tree");
        }
        let took = self.judge(command, known, looked);
        sample.is_unharmed()?;
        took
    }

    /// Threads that wait for the GIL wake every 5 ms for a moment, and without a stop one that is awake just then waits for
    /// nothing: the verdict may take a few looks. It must be right once, and of a healthy program each time.
    fn no_stop(&self, sample: &Running, known: &Known) -> Result<Duration, String> {
        let looks = if self.expect.healthy || !self.expect.is_python() { 1 } else { 8 };
        let mut said = Err(String::new());
        for _ in 0..looks {
            said = self.live(sample, known, &["--no-stop"], Looked::Unstopped);
            if said.is_ok() {
                break;
            }
        }
        said
    }

    fn core(&self, core: &Path, known: &Known) -> Result<Duration, String> {
        self.core_of(core, known, Looked::Once)
    }

    /// The root is hidden from hangscope by a mount of its own.
    fn elsewhere(&self, core: &Path, known: &Known) -> Result<Duration, String> {
        let root = self.place.root.as_ref().ok_or("only a root can be hidden")?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount -t tmpfs none \"$0\" && exec \"$@\""]).arg(&root.path);
        command.arg(hangscope().get_program()).arg("core").arg(core).arg("--json");
        self.judge(command, known, Looked::Elsewhere)
    }

    fn core_of(&self, core: &Path, known: &Known, looked: Looked) -> Result<Duration, String> {
        let mut command = hangscope();
        command.arg("core").arg(core).arg("--json");
        if let Some(root) = &self.place.root {
            command.arg("--sysroot").arg(&root.path);
        }
        self.judge(command, known, looked)
    }

    fn debugged(
        &self,
        debugger: Debugger,
        sample: &Running,
        known: &Known,
        scratch: &Path,
    ) -> Result<Duration, String> {
        let report = scratch.join("bridge.json");
        let command = debugger.attach(sample.pid, scratch, &report)?;
        let said = self.judge_report(command, &report, known, Looked::Once);
        sample.is_unharmed()?;
        said
    }

    /// On the core that gcore wrote for the door before.
    fn debugged_core(
        &self,
        debugger: Debugger,
        sample: &Running,
        known: &Known,
        scratch: &Path,
    ) -> Result<Duration, String> {
        let core = scratch.join(format!("gcore.{}", sample.pid));
        let looked = if scratch.join("damaged").exists() { Looked::Damaged } else { Looked::Once };
        let exe = sample.exe()?;
        let root = self.place.root.as_ref().map(|r| r.path.as_path());
        let report = scratch.join("bridge.json");
        self.judge_report(debugger.core(&core, &exe, root, scratch, &report)?, &report, known, looked)
    }

    /// Runs a debugger that lets hangscope write `report`, and ends as hangscope would.
    fn judge_report(&self, command: Command, report: &Path, known: &Known, looked: Looked) -> Result<Duration, String> {
        let _ = std::fs::remove_file(report);
        let shown = format!("{command:?}");
        let mut said = support::run(command, Duration::from_secs(120))?;
        said.err = format!("{}\n{}", said.out, said.err);
        said.out = std::fs::read_to_string(report).unwrap_or_default();
        self.compare(&shown, &said, known, looked)
    }

    /// Runs hangscope and compares what it says.
    fn judge(&self, command: Command, known: &Known, looked: Looked) -> Result<Duration, String> {
        let shown = format!("{command:?}");
        let said = support::run(command, Duration::from_secs(60))?;
        self.compare(&shown, &said, known, looked)
    }

    fn compare(&self, shown: &str, said: &Said, known: &Known, looked: Looked) -> Result<Duration, String> {
        if said.err.contains("panicked") {
            return Err(format!("it panicked: {}", said.err));
        }
        let report: Value = serde_json::from_str(&said.out)
            .map_err(|e| format!("{shown}\nno JSON ({e}), exit code {}: {}", said.code(), said.err.trim()))?;
        self.expect.check(&report, said.code(), known, looked).map_err(|why| format!("{shown}\n{why}"))?;
        Ok(said.took)
    }
}

/// gcore's core, and whether it is whole. gdb before 14 gives up a whole segment at a page it may not read, and since glibc 2.42
/// the guard page of a thread's stack lies inside the stack's mapping: such a stack is all zeros.
fn gcore(sample: &Running, scratch: &Path) -> Result<(std::path::PathBuf, Looked), String> {
    let mut command = Command::new("gcore");
    command.arg("-o").arg(scratch.join("gcore")).arg(sample.pid.to_string());
    let said = support::run(command, Duration::from_secs(120))?;
    let core = scratch.join(format!("gcore.{}", sample.pid));
    let lost =
        |line: &str| line.contains("Memory read failed for corefile section") && !line.contains("0xffffffffff600000");
    let mut looked = Looked::Once;
    if said.err.lines().any(lost) {
        looked = Looked::Damaged;
        std::fs::write(scratch.join("damaged"), "").map_err(|e| e.to_string())?; // for the doors behind
    }
    if core.is_file() { Ok((core, looked)) } else { Err(format!("gcore wrote nothing: {}", said.err.trim())) }
}
