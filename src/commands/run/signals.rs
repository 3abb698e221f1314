//! Signals as something to read: all are blocked, none is lost, none ends or stops us.

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A signal that came.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Which.
    pub number: i32,
    /// `si_code`: who made it (`sigaction(2)`).
    pub code: i32,
    /// Who sent it.
    pub from: u32,
    /// The value of `sigqueue(3)`.
    pub value: Option<u64>,
}

/// All signals meant for this process.
pub struct Signals {
    fd: SignalFd,
    /// The mask as it was.
    pub inherited: SigSet,
}

impl Signals {
    /// Blocks all and reads them from now on.
    ///
    /// # Errors
    /// When there can be no further descriptor.
    pub fn take() -> Result<Signals, Errno> {
        let inherited = SigSet::thread_get_mask()?;
        let all = SigSet::all();
        all.thread_block()?;
        Ok(Signals { fd: signal_fd(&all)?, inherited })
    }

    /// The same in a new process: what came before is the parent's.
    ///
    /// # Errors
    /// When there can be no further descriptor.
    pub fn again(&self) -> Result<Signals, Errno> {
        Ok(Signals { fd: signal_fd(&SigSet::all())?, inherited: self.inherited })
    }

    /// All that came.
    pub fn drain(&self) -> Vec<Received> {
        let mut all = Vec::new();
        while let Ok(Some(info)) = self.fd.read_signal() {
            let code = info.ssi_code;
            let value = (code == libc::SI_QUEUE).then_some(info.ssi_ptr);
            all.push(Received { number: info.ssi_signo.cast_signed(), code, from: info.ssi_pid, value });
        }
        all
    }

    /// Sleeps until a signal comes, `other` can be read, or `until` passes.
    pub fn sleep(&self, other: Option<BorrowedFd<'_>>, until: Option<Instant>) {
        let timeout = match until.map(|u| u.saturating_duration_since(Instant::now())) {
            None => PollTimeout::NONE,
            // rounded up, so that we do not spin through the last millisecond; in slices poll can count
            Some(left) => PollTimeout::try_from((left + Duration::from_micros(999)).min(Duration::from_secs(3600)))
                .unwrap_or(PollTimeout::MAX),
        };
        let mut fds = vec![PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        fds.extend(other.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        if poll(&mut fds, timeout).is_err_and(|e| e != Errno::EINTR) {
            // short of memory: no reason to spin
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn signal_fd(all: &SigSet) -> Result<SignalFd, Errno> {
    SignalFd::with_flags(all, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}
