//! What nix does not give as it is needed here: real-time signals, children looked at without reaping, handles of processes.
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{ForkResult, fork};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{self, AssertUnwindSafe};

/// What became of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum How {
    /// It ended with this exit code.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// This signal stopped it.
    Stopped(i32),
    /// It goes on.
    Continued,
}

/// Which children to look at.
#[derive(Clone, Copy)]
pub enum Whose {
    /// All.
    Any,
    /// The one with this PID.
    One(i32),
}

/// A child has ended; it stays a zombie.
pub const ENDED: c_int = libc::WEXITED | libc::WNOWAIT;
/// A child has ended; it is reaped.
pub const REAP: c_int = libc::WEXITED;
/// A child was stopped or goes on; each is told once.
pub const JOB: c_int = libc::WSTOPPED | libc::WCONTINUED;

/// `waitid` that does not wait.
///
/// # Errors
/// `ECHILD` where there is no such child at all, running or ended: the proof that nobody is left.
pub fn child(whose: Whose, what: c_int) -> Result<Option<(i32, How)>, Errno> {
    let (kind, id) = match whose {
        Whose::Any => (libc::P_ALL, 0),
        Whose::One(pid) => (libc::P_PID, libc::id_t::try_from(pid).map_err(|_| Errno::EINVAL)?),
    };
    // SAFETY: all bytes zero is a valid siginfo_t
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t at the address of one
    Errno::result(unsafe { libc::waitid(kind, id, &raw mut info, what | libc::WNOHANG) })?;
    // SAFETY: waitid fills both fields, or leaves the zeros
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    Ok(Some(match info.si_code {
        libc::CLD_EXITED => (pid, How::Exited(status)),
        libc::CLD_KILLED | libc::CLD_DUMPED => (pid, How::Killed(status)),
        libc::CLD_CONTINUED => (pid, How::Continued),
        _ => (pid, How::Stopped(status)),
    }))
}

/// Whether the process is a child of ours that was not reaped: its PID cannot be another process's then.
pub fn is_child(pid: i32) -> bool {
    child(Whose::One(pid), ENDED).is_ok()
}

/// Sends a signal to a child of ours, with the value that came with it. The caller knows that it was not reaped.
pub fn send(pid: i32, signal: i32, value: Option<u64>) {
    // to 0 and below it would go to groups
    if pid <= 0 {
        return;
    }
    match value {
        Some(value) => {
            let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value as usize) };
            // SAFETY: numbers go in; the pointer is never followed here
            let _ = unsafe { libc::sigqueue(pid, signal, value) };
        }
        // SAFETY: numbers alone
        None => drop(Errno::result(unsafe { libc::kill(pid, signal) })),
    }
}

/// A process, whatever becomes of its PID (Linux 5.3).
pub struct Handle(OwnedFd);

impl Handle {
    /// Of the process that has this PID now.
    ///
    /// # Errors
    /// Where there is none, or the kernel knows no such handles.
    pub fn open(pid: i32) -> Result<Handle, Errno> {
        // SAFETY: numbers alone
        let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
        // SAFETY: the kernel gave this descriptor to us alone; it is closed on exec
        Ok(Handle(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends it a signal.
    pub fn send(&self, signal: i32) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: numbers and a null pointer, which stands for the information `kill` gives
        let _ = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, none, 0) };
    }

    /// Whether it has ended, reaped or not. What cannot be asked counts as ended.
    pub fn has_ended(&self) -> bool {
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) != Ok(0)
    }
}

/// Starts `child` in a process of its own, which ends with what it returns.
///
/// # Errors
/// When there can be no further process.
pub fn start(child: impl FnOnce() -> i32) -> Result<i32, Errno> {
    // SAFETY: called while we have one thread, so that no lock is copied while it is held
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let code = panic::catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends the process without the parent's clean-up
            unsafe { libc::_exit(code) }
        }
    }
}

/// Sets what a signal does: nothing (`ignore`), or its default. Allocates nothing.
pub fn set_disposition(signal: i32, ignore: bool) {
    // SAFETY: all bytes zero is a valid sigaction: no flags, an empty mask, SIG_DFL
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: no code of ours runs in signal context
    let _ = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}

/// Sends the signal to us, with its default action and not blocked. Returns where that does not end us, or once we go on.
pub fn raise(signal: i32) {
    set_disposition(signal, false);
    // SAFETY: a set on the stack, filled before it is used; then numbers alone
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}
