//! While a process is held: no job control, since Ctrl-Z would stop us, and with us the one we hold; and the CPU before others,
//! since it waits for us.
#![allow(unsafe_code)] // nix has no priorities

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// While it lives, the signals that stop a program wait, and the system lets us run before others where it may: ordinary users
/// get no such priority. Both end when it is dropped.
///
/// For the thread that makes it and those it starts meanwhile, and so for the tracer: the others must not be there or
/// block them too.
pub struct Undisturbed {
    before: Option<SigSet>,
    priority: i32,
}

impl Undisturbed {
    /// Makes them wait.
    #[must_use]
    pub fn begin() -> Undisturbed {
        let stops: SigSet = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect();
        let before = stops.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
        // SAFETY: calls by value; 0 is the calling thread (Linux: priorities are the thread's own).
        let priority = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        set_priority(-20);
        Undisturbed { before, priority }
    }
}

/// Sets the calling thread's own priority, where that is allowed.
fn set_priority(priority: i32) {
    // SAFETY: as above.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, priority) };
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        set_priority(self.priority);
        if let Some(before) = &self.before {
            let _ = before.thread_set_mask();
        }
    }
}
