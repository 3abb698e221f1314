//! The observer: a process of its own between `run` and CMD, which diagnoses when it is told to.
//!
//! As CMD's parent and the subreaper of its tree it is the ancestor of all it looks at, so that Yama lets it. What goes wrong in
//! a diagnosis (memory that never comes, a fault) is the end of this process alone; `run`, subreaper too, then inherits the
//! tree and ends it. Where `run` itself is killed, the observer ends the tree.
//!
//! It stays in `run`'s process group and counts the signals it gets: a signal that comes to both was sent to the group, so
//! CMD has it already.

use super::channel::{Channel, Order, Outcome, Word};
use super::inherited::{self, OpenFiles};
use super::signals::Signals;
use super::sys::{self, Handle, How, Whose};
use super::tree::{self, GRACE, KILL, Tree};
use crate::cli::Common;
use crate::diagnose::{self, Diagnosis, Options};
use crate::units::{ProcessIx, ThreadRef};
use crate::verdict::{Kind, Voice, plain};
use nix::errno::Errno;
use nix::libc::{SIGCHLD, SIGCONT};
use nix::sys::prctl;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The stack of the thread that diagnoses: what a main thread usually has.
const STACK: usize = 8 << 20;
/// Processes told of by [`meanwhile`].
const TOLD: usize = 12;
/// How often `run` is woken until it says that it is awake.
const NUDGE: Duration = Duration::from_millis(100);

/// What `run` gives its observer.
pub struct Start<'a> {
    pub command: &'a [OsString],
    pub common: &'a Common,
    pub files: OpenFiles,
    pub ignore_quit: bool,
    /// Where the report goes.
    pub report: &'a File,
}

struct Observer {
    channel: Channel,
    signals: Signals,
    run: Option<Handle>,
    /// CMD's PID. It is not reaped by us while `run` may signal it.
    command: i32,
    counts: BTreeMap<i32, u32>,
    ended: bool,
    /// Whether `run` may sleep stopped while CMD goes on.
    nudging: bool,
    diagnosing: Arc<AtomicBool>,
}

/// Starts CMD, and serves `run` until it says that all is over or is gone. The exit code.
pub fn serve(start: &Start<'_>, socket: UnixStream, signals: &Signals, run: i32) -> i32 {
    let began = || -> Option<(Channel, Signals)> {
        prctl::set_child_subreaper(true).ok()?;
        Some((Channel::new(socket).ok()?, signals.again().ok()?))
    };
    let Some((mut channel, signals)) = began() else { return 1 };
    // its PID is still its own while it is our parent
    let run = Handle::open(run).ok().filter(|_| nix::unistd::getppid().as_raw() == run);
    let command = match spawn(start, &signals) {
        Ok(pid) => pid,
        Err(e) => {
            channel.send(&Word::Failed(e));
            return 0;
        }
    };
    channel.send(&Word::Started(command));
    super::let_go_of_standard_streams();
    inherited::set_title(&format!("observer of {}", nix::unistd::getppid()));
    let diagnosing = Arc::new(AtomicBool::new(false));
    let counts = BTreeMap::new();
    Observer { channel, signals, run, command, counts, ended: false, nudging: false, diagnosing }.serve(start)
}

/// Starts CMD in our own process group, so that the terminal stays its: Ctrl-C, Ctrl-Z and reading from it work as without
/// us. On failure the error's number.
fn spawn(start: &Start<'_>, signals: &Signals) -> Result<i32, i32> {
    let Some((program, arguments)) = start.command.split_first() else { return Err(Errno::ENOENT as i32) };
    let mut command = Command::new(program);
    command.args(arguments);
    inherited::give_back(&mut command, signals.inherited, start.files, start.ignore_quit);
    match command.spawn() {
        Ok(child) => Ok(child.id().cast_signed()),
        Err(e) => Err(e.raw_os_error().unwrap_or(Errno::EINVAL as i32)),
    }
}

impl Observer {
    fn serve(mut self, start: &Start<'_>) -> i32 {
        loop {
            self.count();
            self.look_at_children();
            let mut drained = false;
            while let Some(order) = self.channel.receive() {
                match order {
                    Order::Signals => {
                        self.count();
                        drained = true;
                        let counts = std::mem::take(&mut self.counts);
                        self.channel.send(&Word::Signals(counts));
                    }
                    Order::Diagnose => self.diagnose(start),
                    Order::End => return self.end(true),
                    Order::Awake => self.nudging = false,
                }
            }
            if self.channel.closed {
                return self.end(false);
            }
            if drained {
                // the end of a child may be among what was just read: look before the next sleep
                continue;
            }
            if self.nudging {
                self.wake_run();
            }
            self.signals.sleep(Some(self.channel_fd()), self.nudging.then(|| Instant::now() + NUDGE));
        }
    }

    fn channel_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.channel)
    }

    fn count(&mut self) {
        for signal in self.signals.drain().into_iter().filter(|s| s.number != SIGCHLD) {
            *self.counts.entry(signal.number).or_default() += 1;
        }
    }

    /// Tells what became of CMD, and reaps what its processes left behind.
    fn look_at_children(&mut self) {
        // the stops of a thread that is traced are the tracer's
        let diagnosing = self.diagnosing.load(Ordering::Acquire);
        while !diagnosing && let Ok(Some((_, how))) = sys::child(Whose::One(self.command), sys::JOB) {
            self.nudging |= how == How::Continued;
            self.channel.send(&Word::Command(how));
        }
        let how = tree::reap_all_but(self.command);
        if let Some(how) = how.filter(|_| !self.ended) {
            self.channel.send(&Word::Command(how));
            (self.ended, self.nudging) = (true, true);
        }
    }

    fn wake_run(&self) {
        if let Some(run) = &self.run {
            run.send(SIGCONT);
        }
    }

    /// In a thread of its own: this one goes on to listen.
    fn diagnose(&mut self, start: &Start<'_>) {
        let (Ok(file), Ok(mut channel)) = (start.report.try_clone(), self.channel.another()) else {
            return self.channel.send(&Word::Report(failed("no further file can be opened")));
        };
        let (common, diagnosing) = (start.common.clone(), Arc::clone(&self.diagnosing));
        diagnosing.store(true, Ordering::Release);
        let work = move || {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| diagnose_tree(&common, &file)))
                .unwrap_or_else(|_| failed("the analysis broke off; please report this"));
            // before the word: after it children may be waited for again
            diagnosing.store(false, Ordering::Release);
            channel.send(&Word::Report(outcome));
        };
        if let Err(e) = thread::Builder::new().stack_size(STACK).spawn(work) {
            self.diagnosing.store(false, Ordering::Release);
            self.channel.send(&Word::Report(failed(&format!("no thread can be started: {e}"))));
        }
    }

    /// Ends the tree: on order, or because `run` is gone.
    fn end(mut self, on_order: bool) -> i32 {
        let signals = &self.signals;
        let mut pause = |time| {
            signals.sleep(None, Some(Instant::now() + time));
            signals.drain();
            false
        };
        let survivors = Tree::new_of_all().end(GRACE, KILL, &mut pause);
        if on_order {
            self.channel.send(&Word::Ended(survivors));
        } else {
            let _ = writeln!(std::io::stderr(), "hangscope: run was killed, so its command was ended");
        }
        0
    }
}

fn failed(why: &str) -> Outcome {
    Outcome { failed: Some(why.to_owned()), processes: 0, left_out: 0, meanwhile: Vec::new() }
}

/// Diagnoses every process, as one graph, and writes the report to `file`.
fn diagnose_tree(common: &Common, file: &File) -> Outcome {
    let (pids, left_out) = match tree::to_diagnose() {
        Ok(found) => found,
        Err(why) => return failed(&why),
    };
    // what the command starts comes and goes; its whole tree is looked at, whoever is there
    let options = Options { found: pids.iter().copied().collect(), ..common.diagnose_options() };
    let told = match diagnose::live(&pids, &options) {
        Ok(d) => {
            let text = super::super::render(&d, common, common.output.is_none());
            file.write_all_at(text.as_bytes(), 0).map(|()| meanwhile(&d)).map_err(|e| e.to_string())
        }
        Err(e) => Err(super::super::one_line(&e.into())),
    };
    let (failed, meanwhile) = match told {
        Ok(lines) => (None, lines),
        Err(why) => (Some(why), Vec::new()),
    };
    Outcome { failed, processes: pids.len(), left_out, meanwhile }
}

/// Where nothing is found to be stuck: what the command did all the same, a line for each process's main thread.
fn meanwhile(d: &Diagnosis) -> Vec<String> {
    let doing = match d.verdict.kind {
        Kind::Busy => "busy",
        Kind::Idle => "waiting",
        _ => return Vec::new(),
    };
    let voice = Voice::new(&d.graph, &d.facts, &d.snapshots, &d.stacks);
    let mut lines = vec![format!("no deadlock was found, but the command had not ended: it was {doing}")];
    for (i, snapshot) in d.snapshots.iter().enumerate().take(TOLD) {
        let Ok(process) = u32::try_from(i) else { break };
        let main = snapshot.threads.iter().position(|t| t.tid.0 == snapshot.process.pid.0).unwrap_or(0);
        let thread = ThreadRef { process: ProcessIx(process), thread: u32::try_from(main).unwrap_or(0) };
        let does = match d.graph.waits.get(&thread) {
            Some(wait) => voice.waits(wait.on),
            None if snapshot.threads.get(main).is_some_and(|t| t.state == Some('R')) => "runs".to_owned(),
            None => "waits for something unknown".to_owned(),
        };
        let name = snapshot.process.command.first().map(|c| plain(c)).unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or_default();
        lines.push(format!("  process {} ({name}): its main thread {does}", snapshot.process.pid));
    }
    if d.snapshots.len() > TOLD {
        lines.push(format!("  and {} more processes", d.snapshots.len() - TOLD));
    }
    lines
}
