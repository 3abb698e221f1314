//! `run` itself: watches over CMD, passes signals on, keeps the deadline, ends the tree. It reads nothing of any other
//! process's memory; whatever becomes of its observer, it goes on.

use super::channel::{Channel, Order, Outcome, Word};
use super::inherited::{self, OpenFiles};
use super::observer::{self, Start};
use super::signals::{Received, Signals};
use super::sys::{self, Handle, How, Whose};
use super::tree::{self, GRACE, KILL, PATIENCE, Tree};
use crate::cli::Common;
use nix::errno::Errno;
use nix::libc::{self, SI_TIMER, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use nix::sys::prctl;
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::{getpgrp, setpgid};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the observer may take to say which signals it got.
const ANSWER: Duration = Duration::from_millis(200);
/// Rounds in which signals are sorted: more only come from a flood.
const ROUNDS: usize = 8;
/// How often a stopped `run` is woken once the deadline has passed.
const WAKE: Duration = Duration::from_secs(1);

/// What ended the watch.
pub enum Event {
    /// CMD ended.
    Ended(How),
    /// CMD could not be started.
    NotStarted(io::Error),
    /// The deadline passed.
    Deadline,
    /// SIGQUIT came.
    Asked,
    /// The observer ended before CMD ran.
    Lost(String),
}

/// `run`, watching.
pub struct Supervisor {
    signals: Signals,
    channel: Channel,
    observer: i32,
    /// How the observer ended, once it has.
    observer_ended: Option<String>,
    tree: Tree,
    /// CMD's PID once it runs. Nobody reaps it while we may signal it.
    command: Option<i32>,
    handle: Option<Handle>,
    ended: Option<How>,
    not_started: Option<i32>,
    counts: Option<BTreeMap<i32, u32>>,
    outcome: Option<Outcome>,
    survivors: Option<Vec<i32>>,
    stopped: bool,
    deadline: Option<Instant>,
    /// Wakes us at the deadline where we are stopped.
    _wake_up: Option<Timer>,
}

impl Supervisor {
    /// Starts the observer, and it CMD.
    ///
    /// # Errors
    /// When the kernel does not let us watch over a child.
    pub fn start(
        command: &[OsString],
        common: &Common,
        report: &File,
        deadline: Option<Instant>,
    ) -> io::Result<Supervisor> {
        // an inherited "ignore" would have the kernel reap CMD, and its exit status with it
        sys::set_disposition(SIGCHLD, false);
        let signals = Signals::take()?;
        // before CMD exists: whatever stops us from then on, we are woken
        let wake_up = deadline.and_then(wake_at);
        let tree = Tree::new();
        prctl::set_child_subreaper(true)?;
        let files = OpenFiles::raise();
        let (ours, theirs) = UnixStream::pair()?;
        let us = nix::unistd::getpid().as_raw();
        let start = Start { command, common, files, ignore_quit: super::on_a_terminal(), report };
        let mut for_child = Some((ours, theirs));
        let observer = sys::start(|| {
            let Some((_, theirs)) = for_child.take() else { return 1 };
            observer::serve(&start, theirs, &signals, us)
        })?;
        let Some((ours, _)) = for_child else { return Err(Errno::EINVAL.into()) };
        super::let_go_of_standard_streams();
        Ok(Supervisor {
            signals,
            channel: Channel::new(ours)?,
            observer,
            observer_ended: None,
            tree,
            command: None,
            handle: None,
            ended: None,
            not_started: None,
            counts: None,
            outcome: None,
            survivors: None,
            stopped: false,
            deadline,
            _wake_up: wake_up,
        })
    }

    /// Waits for CMD's end, the deadline or SIGQUIT, passing signals on.
    pub fn watch(&mut self) -> Event {
        let deadline = self.deadline;
        loop {
            // signals first: one of them may tell of what is heard next
            let came = self.came();
            self.hear();
            if let Some(how) = self.ended {
                return Event::Ended(how);
            }
            if let Some(error) = self.not_started {
                return Event::NotStarted(io::Error::from_raw_os_error(error));
            }
            if let (None, Some(why)) = (self.command, &self.observer_ended) {
                return Event::Lost(why.clone());
            }
            if !came.is_empty() {
                if self.pass_on(came) {
                    self.hear();
                    return self.ended.map_or(Event::Asked, Event::Ended);
                }
                continue;
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                self.hear();
                return self.ended.map_or(Event::Deadline, Event::Ended);
            }
            if std::mem::take(&mut self.stopped) && !inherited::is_ignored(SIGTSTP) {
                self.stop_too();
                continue;
            }
            self.signals.sleep(self.observer_ended.is_none().then(|| self.channel.as_fd()), deadline);
        }
    }

    /// Takes in all that the observer says, and what became of it and of CMD.
    fn hear(&mut self) {
        while let Some(word) = self.channel.receive() {
            match word {
                Word::Started(pid) => {
                    self.handle = Handle::open(pid).ok();
                    self.command = Some(pid);
                }
                Word::Failed(error) => self.not_started = Some(error),
                Word::Command(How::Stopped(_)) => self.stopped = true,
                Word::Command(How::Continued) => {
                    self.stopped = false;
                    self.channel.send(&Order::Awake);
                }
                Word::Command(how) => self.ended = Some(how),
                Word::Signals(counts) => self.counts = Some(counts),
                Word::Report(outcome) => self.outcome = Some(outcome),
                Word::Ended(survivors) => self.survivors = Some(survivors),
            }
        }
        if self.observer_ended.is_none() {
            match sys::child(Whose::One(self.observer), sys::REAP) {
                Ok(Some((_, How::Killed(signal)))) => {
                    self.observer_ended = Some(format!("it was killed by {}", super::signal_name(signal)));
                }
                Ok(Some(_)) | Err(_) => self.observer_ended = Some("it ended".to_owned()),
                Ok(None) => {}
            }
        } else if let Some(command) = self.command.filter(|_| self.ended.is_none()) {
            // it is our child now, and so is whom its processes leave behind
            self.ended = tree::reap_all_but(command);
        }
    }

    /// Signals for us or for CMD that came: not those by which we are only woken.
    fn came(&self) -> Vec<Received> {
        let only_wakes = |s: &Received| {
            s.number == SIGCHLD || s.number == SIGCONT && (s.code == SI_TIMER || s.from.cast_signed() == self.observer)
        };
        self.signals.drain().into_iter().filter(|s| !only_wakes(s)).collect()
    }

    /// Passes on to CMD what it has not got already. Whether a report was asked for.
    fn pass_on(&mut self, came: Vec<Received>) -> bool {
        let (came, mut of_group) = self.sort_out(came);
        let mut asked = false;
        for signal in came {
            if signal.number == SIGQUIT {
                asked = true;
                continue;
            }
            let kernel_made = signal.code > libc::SI_USER;
            let has_it = match of_group.get_mut(&signal.number) {
                // what the terminal sends, it sends to the group
                _ if kernel_made && [SIGINT, SIGTSTP, SIGWINCH].contains(&signal.number) => true,
                Some(n) if *n > 0 => {
                    *n -= 1;
                    true
                }
                _ => kernel_made && self.counts.is_none(),
            };
            if has_it {
                continue;
            }
            match (self.command, &self.handle) {
                (Some(_), Some(handle)) if signal.value.is_none() => handle.send(signal.number),
                (Some(pid), _) => sys::send(pid, signal.number, signal.value),
                (None, _) => {}
            }
        }
        asked
    }

    /// Of signals that came to us, how many of each came to the observer too: these were sent to our group, and CMD has them.
    /// Whoever signals a group holds the kernel's list of tasks meanwhile, and `setpgid` waits for that: so each signal that
    /// one of us has, the other has as well afterwards.
    fn sort_out(&mut self, mut came: Vec<Received>) -> (Vec<Received>, BTreeMap<i32, u32>) {
        let mut of_group: BTreeMap<i32, u32> = BTreeMap::new();
        let observer = nix::unistd::Pid::from_raw(self.observer);
        for _ in 0..ROUNDS {
            self.counts = None;
            let _ = setpgid(observer, getpgrp());
            self.channel.send(&Order::Signals);
            let until = Instant::now() + ANSWER;
            while self.counts.is_none() && self.observer_ended.is_none() && Instant::now() < until {
                self.signals_or_channel(until);
                self.hear();
            }
            let Some(counts) = &self.counts else { break };
            for (signal, n) in counts {
                *of_group.entry(*signal).or_default() += n;
            }
            let _ = setpgid(observer, getpgrp());
            let more = self.came();
            if more.is_empty() {
                break;
            }
            came.extend(more);
        }
        (came, of_group)
    }

    /// Sleeps until the observer says something, or `until`.
    fn signals_or_channel(&self, until: Instant) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.min(WAKE)).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// CMD was stopped: so are we, that the shell sees it. Where no shell is there to wake us the kernel does not stop us; at
    /// the deadline our timer wakes us, and the observer does when CMD goes on.
    fn stop_too(&mut self) {
        sys::raise(SIGTSTP);
    }

    /// Has the tree diagnosed, within `limit`.
    ///
    /// # Errors
    /// Why there is no report: one line, and whether we were asked to end.
    pub fn diagnose(&mut self, limit: Duration) -> Result<Outcome, (String, bool)> {
        if let Some(how) = &self.observer_ended {
            return Err((format!("the process that makes it is gone: {how}"), false));
        }
        self.channel.send(&Order::Diagnose);
        // it may have been stopped with the group
        sys::send(self.observer, SIGCONT, None);
        let until = Instant::now() + limit;
        loop {
            self.hear();
            if let Some(outcome) = self.outcome.take() {
                return Ok(outcome);
            }
            if let Some(how) = &self.observer_ended {
                return Err((format!("the process that made it is gone: {how}"), false));
            }
            if let Some(signal) = self.asked_to_end() {
                self.dismiss();
                return Err((format!("interrupted by {}", super::signal_name(signal)), true));
            }
            if Instant::now() >= until {
                self.dismiss();
                return Err((format!("it took longer than {}", super::spoken(limit)), false));
            }
            self.signals.sleep(Some(self.channel.as_fd()), Some(until));
        }
    }

    /// A signal that tells us to end, and that we were not started to ignore.
    pub fn asked_to_end(&self) -> Option<i32> {
        let ends = |n: &i32| [SIGINT, SIGTERM, SIGHUP].contains(n) && !inherited::is_ignored(*n);
        self.came().into_iter().map(|s| s.number).find(ends)
    }

    /// Ends the observer; what is below it is ours then.
    pub fn dismiss(&mut self) {
        if self.observer_ended.is_some() {
            return;
        }
        sys::send(self.observer, SIGKILL, None);
        let until = Instant::now() + WAKE;
        while self.observer_ended.is_none() && Instant::now() < until {
            self.signals.sleep(None, Some(Instant::now() + Duration::from_millis(10)));
            // signals that come now stay for those who ask for them
            self.hear();
        }
    }

    /// Ends the tree and returns who did not go. A signal that tells us to end shortens it.
    pub fn end(&mut self) -> Vec<i32> {
        let mut grace = GRACE;
        let mut kill = KILL;
        if self.observer_ended.is_none() {
            self.channel.send(&Order::End);
            let until = Instant::now() + GRACE + KILL * PATIENCE + WAKE;
            while self.survivors.is_none() && self.observer_ended.is_none() && Instant::now() < until {
                self.signals.sleep(Some(self.channel.as_fd()), Some(until));
                self.hear();
                if self.asked_to_end().is_some() {
                    grace = Duration::ZERO;
                    break;
                }
            }
            self.dismiss();
            if self.survivors.is_some() || Instant::now() >= until {
                // it did what can be done
                (grace, kill) = (Duration::ZERO, WAKE);
            }
        }
        let signals = &self.signals;
        let mut pause = |time| {
            signals.sleep(None, Some(Instant::now() + time));
            let ends = |s: &Received| [SIGINT, SIGTERM, SIGHUP].contains(&s.number) && !inherited::is_ignored(s.number);
            signals.drain().iter().any(ends)
        };
        self.tree.end(grace, kill, &mut pause)
    }
}

/// Wakes us at the deadline if we are stopped then, and again each second.
fn wake_at(deadline: Instant) -> Option<Timer> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGCONT, si_value: 0 });
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, event).ok()?;
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let when = Expiration::IntervalDelayed(left.into(), WAKE.into());
    timer.set(when, TimerSetTimeFlags::empty()).ok()?;
    Some(timer)
}
