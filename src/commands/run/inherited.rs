//! What we were started with, and CMD is to be started with: Rust's start-up changes some of it before `main`.
#![allow(unsafe_code)]

use super::sys;
use nix::libc::{self, c_char, c_int};
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::SigSet;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Ignored signals: bit n − 1 for signal n.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Standard descriptors that were closed: bit n for descriptor n. Rust opens `/dev/null` there.
static CLOSED: AtomicU64 = AtomicU64::new(0);
/// Our arguments as `ps` shows them.
static ARGUMENTS: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
/// Their bytes.
static ARGUMENTS_LEN: AtomicUsize = AtomicUsize::new(0);

/// glibc calls what stands in `.init_array` with `main`'s arguments, before Rust's start-up.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn(c_int, *const *mut c_char) = record;

extern "C" fn record(count: c_int, arguments: *const *mut c_char) {
    for signal in 1..=64 {
        // SAFETY: all bytes zero is a valid sigaction; the kernel writes one at the address of one
        let ignored = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
        };
        if ignored {
            IGNORED.fetch_or(1 << (signal - 1), Ordering::Relaxed);
        }
    }
    for fd in 0..3 {
        // SAFETY: numbers alone
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
    let Some(last) = usize::try_from(count).ok().and_then(|n| n.checked_sub(1)) else { return };
    if cfg!(not(target_env = "gnu")) || arguments.is_null() {
        return;
    }
    // SAFETY: argv has `count` strings, which the kernel laid one behind the other
    unsafe {
        let (first, last) = (*arguments, *arguments.add(last));
        let end = last.addr() + libc::strlen(last);
        ARGUMENTS.store(first, Ordering::Relaxed);
        ARGUMENTS_LEN.store(end.saturating_sub(first.addr()), Ordering::Relaxed);
    }
}

/// Whether we were started with this signal ignored.
pub fn is_ignored(signal: i32) -> bool {
    (1..=64).contains(&signal) && IGNORED.load(Ordering::Relaxed) & 1 << (signal - 1) != 0
}

/// Lets `ps` and `pkill -f` see `title` instead of our arguments. Only where nobody reads these any more.
pub fn set_title(title: &str) {
    let (to, len) = (ARGUMENTS.load(Ordering::Relaxed), ARGUMENTS_LEN.load(Ordering::Relaxed));
    if !to.is_null() {
        let n = title.len().min(len);
        // SAFETY: `len` writable bytes lie there, of which Rust has made its copy before
        unsafe {
            std::ptr::write_bytes(to, 0, len);
            std::ptr::copy_nonoverlapping(title.as_ptr().cast(), to, n);
        }
    }
    let _ = nix::sys::prctl::set_name(c"observer");
}

/// The limit on open files, raised for us as far as it goes.
#[derive(Clone, Copy)]
pub struct OpenFiles(Option<(rlim_t, rlim_t)>);

impl OpenFiles {
    /// Raises it.
    pub fn raise() -> OpenFiles {
        let before = getrlimit(Resource::RLIMIT_NOFILE).ok();
        if let Some((soft, hard)) = before.filter(|(soft, hard)| soft < hard) {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard.min(soft.max(65_536)), hard);
        }
        OpenFiles(before)
    }
}

/// Gives CMD what we were given: the signal mask, what signals are ignored, which standard descriptors are closed, the limit
/// on open files. With `ignore_quit` it ignores SIGQUIT until it says otherwise: Ctrl-\\ reaches every process of the
/// terminal; it asks us for a report, and CMD must live to be reported on.
pub fn give_back(command: &mut Command, mask: SigSet, files: OpenFiles, ignore_quit: bool) {
    let prepare = move || {
        for signal in [libc::SIGPIPE, libc::SIGCHLD] {
            sys::set_disposition(signal, is_ignored(signal));
        }
        if ignore_quit {
            sys::set_disposition(libc::SIGQUIT, true);
        }
        if let OpenFiles(Some((soft, hard))) = files {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, soft, hard);
        }
        for fd in (0..3).filter(|fd| CLOSED.load(Ordering::Relaxed) & 1 << fd != 0) {
            // SAFETY: nothing runs after this but exec
            let _ = unsafe { libc::close(fd) };
        }
        mask.thread_set_mask()?;
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated, no lock is taken
    unsafe { command.pre_exec(prepare) };
}
