//! The terminal CMD was given: whoever is killed cannot put it back in order.

use nix::errno::Errno;
use nix::sys::signal;
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp, tcsetpgrp};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The terminal whose foreground group is ours, with its modes.
pub struct Terminal {
    fd: OwnedFd,
    modes: Termios,
}

impl Terminal {
    /// As it is now; `None` where there is none, or where it is another's turn.
    pub fn save() -> Option<Terminal> {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()].into_iter().find_map(|fd| {
            let ours = tcgetpgrp(fd).is_ok_and(|group| group == getpgrp());
            let modes = tcgetattr(fd).ok().filter(|_| ours)?;
            Some(Terminal { fd: fd.try_clone_to_owned().ok()?, modes })
        })
    }

    /// Takes the terminal back from a group of which nobody is left, and where CMD was killed restores the modes. What a
    /// command sets that ends by itself stays: `stty` is one.
    pub fn restore(&self, killed: bool) {
        let foreground = tcgetpgrp(&self.fd);
        let deserted = |group| signal::killpg(group, None) == Err(Errno::ESRCH);
        if foreground.is_ok_and(|group| group != getpgrp() && deserted(group)) {
            let _ = tcsetpgrp(&self.fd, getpgrp());
        }
        // the shell may have it by now
        if killed && tcgetpgrp(&self.fd) == Ok(getpgrp()) && tcgetattr(&self.fd).is_ok_and(|now| now != self.modes) {
            let _ = tcsetattr(&self.fd, SetArg::TCSANOW, &self.modes);
        }
    }
}
