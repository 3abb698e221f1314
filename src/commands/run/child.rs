//! CMD as our child: started, watched, told of signals, ended with all that is below it.

use super::{on_a_terminal, tree};
use crate::units::Pid;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{self, SaFlags, SigAction, SigHandler, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, waitpid};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// How long the tree may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// How long SIGKILL may take: only a process deep in the kernel needs longer.
const KILL: Duration = Duration::from_secs(5);

/// Signals that are CMD's: who sends them to us means it.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

/// Why CMD does not run.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// It could not be started.
    #[error("cannot start the command: {0}")]
    Start(#[source] io::Error),
    /// The kernel does not let us watch over it.
    #[error("cannot prepare to watch over the command: {0}")]
    Watch(#[from] Errno),
}

/// What ended the watch.
pub enum Event {
    /// CMD ended.
    Ended(ExitStatus),
    /// The deadline passed.
    Deadline,
    /// SIGQUIT came.
    Asked,
}

/// CMD, running, and the signals meant for us.
pub struct Child {
    process: std::process::Child,
    signals: SignalFd,
}

impl Child {
    /// Starts CMD in our own process group, so that the terminal stays its: Ctrl-C, Ctrl-Z and reading from it work as
    /// without us.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn spawn(program: &OsString, arguments: &[OsString]) -> Result<Child, SpawnError> {
        // an inherited "ignore" would have the kernel reap CMD, and its exit status with it
        set_disposition(Signal::SIGCHLD, SigHandler::SigDfl)?;
        prctl::set_child_subreaper(true)?;
        let inherited = SigSet::thread_get_mask()?;
        let mut mask: SigSet = PASSED_ON.into_iter().collect();
        mask.add(Signal::SIGCHLD);
        mask.add(Signal::SIGQUIT);
        // blocked before CMD exists, so that none is lost
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let mut command = Command::new(program);
        command.args(arguments);
        before_exec(&mut command, inherited, on_a_terminal());
        let process = command.spawn().map_err(SpawnError::Start);
        Ok(Child { process: process?, signals })
    }

    /// Waits for CMD's end, the deadline or SIGQUIT, passing signals on.
    ///
    /// # Errors
    /// When the kernel does not let us wait.
    pub fn watch(&mut self, deadline: Option<Instant>) -> io::Result<Event> {
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(Event::Ended(status));
            }
            self.reap_strangers();
            let Some((signal, from_a_process)) = self.next_signal(deadline)? else {
                return Ok(self.process.try_wait()?.map_or(Event::Deadline, Event::Ended));
            };
            match signal {
                Signal::SIGCHLD => {}
                Signal::SIGQUIT => return Ok(self.process.try_wait()?.map_or(Event::Asked, Event::Ended)),
                // what the terminal sends, it sends to CMD as well
                other if from_a_process => drop(signal::kill(self.nix_pid(), other)),
                _ => {}
            }
        }
    }

    fn nix_pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.process.id().cast_signed())
    }

    /// The next signal for us and whether a process (not the terminal) sent it; `None` once `until` has passed.
    fn next_signal(&self, until: Option<Instant>) -> io::Result<Option<(Signal, bool)>> {
        loop {
            if let Some(info) = self.signals.read_signal()? {
                let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok()) else {
                    continue;
                };
                return Ok(Some((signal, info.ssi_code <= libc::SI_USER)));
            }
            let timeout = match until.map(|u| u.saturating_duration_since(Instant::now())) {
                None => PollTimeout::NONE,
                Some(Duration::ZERO) => return Ok(None),
                // rounded up, so that we do not spin through the last millisecond; in slices poll can count
                Some(left) => PollTimeout::try_from((left + Duration::from_micros(999)).min(Duration::from_secs(3600)))
                    .unwrap_or(PollTimeout::MAX),
            };
            match poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Reaps what CMD's processes left behind and we, as subreaper, inherited.
    fn reap_strangers(&self) {
        let own = self.nix_pid().as_raw();
        for pid in tree::descendants().into_iter().filter(|p| p.0 != own) {
            // those that are no child of ours, or still run, answer so
            let _ = waitpid(nix::unistd::Pid::from_raw(pid.0), Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Ends everything below us: SIGTERM, a grace, SIGKILL. Returns who did not go.
    pub fn end_tree(&mut self) -> Vec<Pid> {
        for pid in tree::descendants() {
            let pid = nix::unistd::Pid::from_raw(pid.0);
            let _ = signal::kill(pid, Signal::SIGTERM);
            // a stopped process takes SIGTERM only once it goes on
            let _ = signal::kill(pid, Signal::SIGCONT);
        }
        if self.all_gone(Instant::now() + GRACE, true) {
            return Vec::new();
        }
        let until = Instant::now() + KILL;
        // again and again: what is being killed may still fork
        while Instant::now() < until {
            for pid in tree::descendants() {
                let _ = signal::kill(nix::unistd::Pid::from_raw(pid.0), Signal::SIGKILL);
            }
            if self.all_gone((Instant::now() + Duration::from_millis(100)).min(until), false) {
                return Vec::new();
            }
        }
        tree::descendants().into_iter().filter(|p| tree::lives(*p)).collect()
    }

    /// Reaps until nothing is left below us, or `until`. Someone who asks us to end (`hurried`) ends the wait.
    fn all_gone(&mut self, until: Instant, hurried: bool) -> bool {
        loop {
            let _ = self.process.try_wait();
            self.reap_strangers();
            if !tree::descendants().into_iter().any(tree::lives) {
                return true;
            }
            // woken by the end of a child; of a grandchild only its own parent hears
            let slice = Instant::now() + Duration::from_millis(20);
            match self.next_signal(Some(slice.min(until))) {
                Ok(Some((Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP, _))) if hurried => return false,
                Ok(_) if Instant::now() < until => {}
                _ => return false,
            }
        }
    }
}

/// Gives CMD the signal mask we were given. With `ignore_quit` it ignores SIGQUIT until it says otherwise: Ctrl-\\ reaches
/// every process of the terminal; it asks us for a report, and CMD must live to be reported on.
#[allow(unsafe_code)]
fn before_exec(command: &mut Command, mask: SigSet, ignore_quit: bool) {
    let prepare = move || {
        mask.thread_set_mask()?;
        if ignore_quit {
            set_disposition(Signal::SIGQUIT, SigHandler::SigIgn)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only sigprocmask and sigaction are called; nothing is allocated, no lock is taken
    unsafe { command.pre_exec(prepare) };
}

#[allow(unsafe_code)]
fn set_disposition(of: Signal, handler: SigHandler) -> Result<(), Errno> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: only ever `SIG_DFL` or `SIG_IGN`: no code of ours runs in signal context
    unsafe { signal::sigaction(of, &action) }.map(drop)
}

/// Ends as CMD ended: with its exit code, or by the signal that killed it, so that whoever waits for us sees the same.
/// Where that signal does not end us (process 1 of a container), 128 + its number, as a shell says it.
pub fn pass_on(status: ExitStatus) -> u8 {
    if let Some(code) = status.code() {
        return u8::try_from(code).unwrap_or(u8::MAX);
    }
    let number = status.signal().unwrap_or(0);
    if let Ok(signal) = Signal::try_from(number) {
        // one core is enough, and it is CMD's
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
        }
        // Rust's own handler for SIGSEGV and its ignoring of SIGPIPE must not come between
        let _ = set_disposition(signal, SigHandler::SigDfl);
        let _ = [signal].into_iter().collect::<SigSet>().thread_unblock();
        let _ = signal::raise(signal);
    }
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
