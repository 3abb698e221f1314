//! No job control while a process is held: Ctrl-Z would stop us, and with us the one we hold.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// While it lives, the signals that stop a program wait. They come when it is dropped.
///
/// For the thread that makes it and those it starts meanwhile, and so for the tracer: the others must not be there or
/// block them too.
pub struct Undisturbed {
    before: Option<SigSet>,
}

impl Undisturbed {
    /// Makes them wait.
    #[must_use]
    pub fn begin() -> Undisturbed {
        let stops: SigSet = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect();
        Undisturbed { before: stops.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok() }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = before.thread_set_mask();
        }
    }
}
