//! `hangscope demo [NAME]`: starts an embedded program that deadlocks, diagnoses it, ends it.
//!
//! Exit code: 0 where the deadlock was named as expected, 2 where it was not, or no demo could be started. (`attach`
//! gives 1 for a deadlock; a demo that finds its deadlock has succeeded.)

mod native;

use crate::cli::{Common, Demo, DemoChild};
use crate::commands::python;
use crate::diagnose;
use crate::units::Pid;
use crate::verdict::Kind;
use anyhow::{Context, anyhow, bail};
use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a demo may take to start and to run into its deadlock.
const PATIENCE: Duration = Duration::from_secs(20);
/// A demo hangs when all its threads slept in a futex this many looks in a row…
const LOOKS: u32 = 5;
/// …this far apart.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// A program that deadlocks.
struct Program {
    name: &'static str,
    what: &'static str,
    source: Source,
    /// Threads once it hangs.
    threads: usize,
    /// What the verdict must be.
    kind: Kind,
    /// Resource kinds on its cycle.
    on_cycle: &'static [&'static str],
}

enum Source {
    /// A Python program; needs ctypes only.
    Python(&'static str),
    /// This very binary, by its hidden verb.
    Native,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "loader-lock-vs-gil",
        what: "a callback from the loader wants the GIL, the GIL's holder wants the loader's lock",
        source: Source::Python(include_str!("../../../samples/demo/loader_lock_vs_gil.py")),
        threads: 8,
        kind: Kind::Deadlock,
        on_cycle: &["gil", "loader-write-lock"],
    },
    Program {
        name: "mutex-vs-gil",
        what: "a native mutex taken with and without the GIL",
        source: Source::Python(include_str!("../../../samples/demo/mutex_vs_gil.py")),
        threads: 5,
        kind: Kind::Deadlock,
        on_cycle: &["gil", "mutex"],
    },
    Program {
        name: "join-vs-gil",
        what: "a thread that needs the GIL is joined by the thread that keeps it",
        source: Source::Python(include_str!("../../../samples/demo/join_vs_gil.py")),
        threads: 2,
        kind: Kind::Deadlock,
        on_cycle: &["gil", "thread-exit"],
    },
    Program {
        name: "abba-mutex",
        what: "two native threads take two mutexes in opposite order",
        source: Source::Native,
        threads: 3,
        kind: Kind::Deadlock,
        on_cycle: &["mutex", "mutex"],
    },
    Program {
        name: "self-relock",
        what: "a native thread takes a mutex that it holds already",
        source: Source::Native,
        threads: 2,
        kind: Kind::SelfDeadlock,
        on_cycle: &["mutex"],
    },
];

/// Runs a demo.
///
/// # Errors
/// When it cannot be started, or is not named as it should be.
pub fn run(args: &Demo, common: &Common) -> anyhow::Result<u8> {
    if args.list {
        return list();
    }
    let mut running = match &args.name {
        Some(name) => {
            let program = PROGRAMS.iter().find(|p| p.name == name);
            Running::start(program.with_context(|| no_such(name))?, args.python.as_deref())?
        }
        None => start_default(args.python.as_deref(), common)?,
    };
    if io::stderr().is_terminal() && !common.quiet {
        eprintln!(
            "hangscope: demo {}: process {} hangs now; this is what `attach` says of it\n",
            running.program.name, running.pid
        );
    }
    let diagnosis = diagnose::live(&[running.pid], &common.diagnose_options());
    running.end();
    let diagnosis = diagnosis?;
    super::deliver(&diagnosis, common)?;
    let program = running.program;
    let kinds = cycle_kinds(&diagnosis);
    if diagnosis.verdict.kind != program.kind || !same(&kinds, program.on_cycle) {
        bail!(
            "this should have been a {} over {}; please report it",
            program.kind.word(),
            program.on_cycle.join(" and ")
        );
    }
    Ok(0)
}

/// The resource kinds of the first cycle.
fn cycle_kinds(diagnosis: &diagnose::Diagnosis) -> Vec<&'static str> {
    let steps = diagnosis.verdict.cycles.first().map(|c| c.steps.as_slice()).unwrap_or_default();
    steps.iter().filter_map(|s| diagnosis.graph.resources.get(&s.waits_for)).map(|r| r.kind.word()).collect()
}

fn same(found: &[&str], expected: &[&str]) -> bool {
    let sorted = |words: &[&str]| {
        let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
        words.sort();
        words
    };
    sorted(found) == sorted(expected)
}

fn list() -> anyhow::Result<u8> {
    let mut out = io::stdout().lock();
    for program in PROGRAMS {
        let needs = match program.source {
            Source::Python(_) => "python3",
            Source::Native => "native",
        };
        writeln!(out, "{:<20} {:<8} {}", program.name, needs, program.what)?;
    }
    Ok(0)
}

fn no_such(name: &str) -> String {
    let names: Vec<&str> = PROGRAMS.iter().map(|p| p.name).collect();
    format!("there is no demo '{name}'; there are {}", names.join(", "))
}

/// The loader's lock against the GIL where there is a Python we understand, else two native mutexes.
fn start_default(python: Option<&Path>, common: &Common) -> anyhow::Result<Running> {
    let [first, .., native, _] = PROGRAMS else { bail!("no demo is embedded") };
    if python.is_some() {
        return Running::start(first, python);
    }
    let why = match python::ask(Path::new("python3")) {
        Some(found) if found.understood => match Running::start(first, None) {
            Ok(running) => return Ok(running),
            Err(why) => super::one_line(&why),
        },
        Some(found) => format!("python3 is {}, which is not understood", found.name),
        None => "there is no python3".to_string(),
    };
    if !common.quiet {
        eprintln!("hangscope: {why}; showing {} instead", native.name);
    }
    Running::start(native, None)
}

/// A demo that hangs. Dropping it ends it.
struct Running {
    program: &'static Program,
    child: Child,
    /// The process that hangs: the child, or what the child has become.
    pid: Pid,
    /// Holds the program's source while it runs, so that the report can name its lines.
    directory: Option<PathBuf>,
    /// Ended and reaped: `pid` may be somebody else's by now.
    ended: bool,
}

impl Running {
    fn start(program: &'static Program, python: Option<&Path>) -> anyhow::Result<Running> {
        let (mut command, directory) = match program.source {
            Source::Python(source) => {
                let directory = directory_for(program.name, source)?;
                let file = directory.join(format!("{}.py", program.name.replace('-', "_")));
                let mut command = Command::new(python.unwrap_or(Path::new("python3")));
                command.arg("-B").arg(file);
                (command, Some(directory))
            }
            Source::Native => {
                let mut command = Command::new(std::env::current_exe().context("cannot find our own program")?);
                command.args(["demo-child", program.name]);
                (command, None)
            }
        };
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = match started {
            Ok(child) => child,
            Err(e) => {
                remove(directory.as_deref());
                let name = Path::new(command.get_program()).display();
                return Err(anyhow!(e).context(format!("demo {} needs {name}, which cannot be started", program.name)));
            }
        };
        let pid = Pid(child.id().cast_signed());
        let mut running = Running { program, child, pid, directory, ended: false };
        running.pid = running.read_pid()?;
        running.wait_until_it_hangs()?;
        Ok(running)
    }

    /// The `started PID` line.
    fn read_pid(&mut self) -> anyhow::Result<Pid> {
        let out = self.child.stdout.take().context("the demo has no output")?;
        let (to_us, from_reader) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(out).read_line(&mut line);
            let _ = to_us.send(line);
        });
        let line = from_reader.recv_timeout(PATIENCE).unwrap_or_default();
        let pid = line.strip_prefix("started ").and_then(|p| p.trim().parse().ok());
        pid.map(Pid).with_context(|| format!("demo {} did not start", self.program.name))
    }

    fn wait_until_it_hangs(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut looks = 0;
        while looks < LOOKS {
            if let Some(status) = self.child.try_wait()? {
                bail!("demo {} ended instead of hanging: {status}", self.program.name);
            }
            if Instant::now() > until {
                bail!("demo {} does not hang on this machine", self.program.name);
            }
            std::thread::sleep(BETWEEN_LOOKS);
            looks = if all_asleep(self.pid, self.program.threads) { looks + 1 } else { 0 };
        }
        Ok(())
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if self.pid.0 != self.child.id().cast_signed() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid.0), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove(self.directory.take().as_deref());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the process has `threads` threads and all of them sleep in a futex.
fn all_asleep(pid: Pid, threads: usize) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let calls: Vec<Option<String>> =
        tasks.flatten().map(|task| fs::read_to_string(task.path().join("syscall")).ok()).collect();
    let futex = nix::libc::SYS_futex.to_string();
    calls.len() == threads
        && calls.iter().all(|call| call.as_deref().and_then(|c| c.split_whitespace().next()) == Some(futex.as_str()))
}

/// A directory of our own with the program in it.
fn directory_for(name: &str, source: &str) -> anyhow::Result<PathBuf> {
    let at = std::env::temp_dir().join(format!("hangscope-demo-{}", std::process::id()));
    fs::create_dir(&at).with_context(|| format!("cannot make {}", at.display()))?;
    let file = at.join(format!("{}.py", name.replace('-', "_")));
    if let Err(e) = fs::write(&file, source) {
        remove(Some(&at));
        return Err(anyhow!(e).context(format!("cannot write {}", file.display())));
    }
    Ok(at)
}

fn remove(directory: Option<&Path>) {
    if let Some(at) = directory {
        let _ = fs::remove_dir_all(at);
    }
}

/// The hidden verb: becomes a native demo. Returns only where it does not hang.
///
/// # Errors
/// When there is no such demo or its threads cannot be started.
pub fn child(args: &DemoChild) -> anyhow::Result<u8> {
    native::hang(&args.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_python_demo_says_that_it_started_and_ends_by_itself() {
        for program in PROGRAMS {
            if let Source::Python(source) = program.source {
                assert!(source.contains("print(\"started\", os.getpid(), flush=True)"), "{}", program.name);
                assert!(source.contains("signal.alarm("), "{}", program.name);
            }
        }
    }

    #[test]
    fn the_default_falls_back_to_a_native_demo() {
        let [first, .., native, _] = PROGRAMS else { panic!("too few demos") };
        assert!(matches!(first.source, Source::Python(_)) && first.name == "loader-lock-vs-gil");
        assert!(matches!(native.source, Source::Native) && native.name == "abba-mutex");
    }

    #[test]
    fn cycles_are_compared_without_regard_to_order() {
        assert!(same(&["gil", "mutex"], &["mutex", "gil"]));
        assert!(!same(&["mutex"], &["mutex", "mutex"]));
    }
}
