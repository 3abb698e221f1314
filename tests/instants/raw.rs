//! The two system calls the controller is made of. nix knows no real-time signals, which glibc cancels threads with.

#![allow(unsafe_code)] // two calls that take numbers only

use nix::errno::Errno;
use nix::libc;

/// `PTRACE_EVENT_STOP` (Linux `include/uapi/linux/ptrace.h`).
pub const EVENT_STOP: i32 = 128;

/// A request whose address and data are numbers, or offsets in the tracee.
pub fn ptrace(request: libc::c_uint, tid: i32, address: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: of the requests made here (SEIZE, INTERRUPT, CONT, SINGLESTEP, SYSCALL, POKEUSER) none touches memory of ours
    Errno::result(unsafe { libc::ptrace(request, tid, address, data) }).map(drop)
}

/// Waits for a tracee of this thread: its tid and its status; none where `flags` have WNOHANG and nothing happened.
pub fn wait(tid: i32, flags: i32) -> Result<Option<(i32, i32)>, Errno> {
    let mut status = 0;
    // SAFETY: `status` lives through the call
    let found =
        Errno::result(unsafe { libc::waitpid(tid, &raw mut status, flags | libc::__WALL | libc::__WNOTHREAD) })?;
    Ok((found != 0).then_some((found, status)))
}
