//! What the tests start gets what a login gives, whatever started the tests: `nohup` and a shell's background jobs ignore
//! signals, others block some, mask permissions or speak another language.
//!
//! A signal that is ignored here gets a handler that does nothing: so it still does nothing here, and `exec` makes its default of
//! it.
#![allow(unsafe_code)] // dispositions, before there is any thread

use nix::libc::{self, c_int};

/// Called before `main`, and so before the test harness starts threads.
#[used]
#[unsafe(link_section = ".init_array")]
static START_AFRESH: extern "C" fn() = start_afresh;

extern "C" fn nothing(_: c_int) {}

extern "C" fn start_afresh() {
    // Rust's own start-up has SIGPIPE ignored; what concerns the terminal stays as the shell wants it
    const STAY: [c_int; 4] = [libc::SIGPIPE, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    for signal in (1..=64).filter(|s| !STAY.contains(s)) {
        // SAFETY: all bytes zero is a valid sigaction; the handler does nothing at all
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN {
                action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
    // SAFETY: there is one thread yet; the strings end with a zero
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::umask(0o022);
        for name in [c"LC_ALL", c"LC_MESSAGES", c"LC_CTYPE", c"LANG", c"LANGUAGE"] {
            libc::unsetenv(name.as_ptr());
        }
    }
}
