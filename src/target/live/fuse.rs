//! Files whose file system is a program: where that program hangs, who asks it for a file may sleep where not even SIGKILL wakes
//! it (Linux `fs/fuse/dev.c`, `request_wait_answer`). A thread that sleeps so would keep our own process from ending. So a child
//! asks first, and is left behind where there is no answer.
#![allow(unsafe_code)] // fork, and plain system calls in the child

use super::proc::read_file;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a child may ask.
const PATIENCE: Duration = Duration::from_secs(1);

/// The FUSE mounts that a process sees.
pub(super) struct FuseMounts {
    /// Its root directory, as we see it.
    root: PathBuf,
    points: Vec<PathBuf>,
    /// Those that did not answer.
    silent: Mutex<BTreeSet<PathBuf>>,
}

impl FuseMounts {
    /// Those of the process one of whose living threads has this `/proc` directory.
    pub(super) fn of(directory: &Path) -> FuseMounts {
        let points = parse_mountinfo(&read_file(&directory.join("mountinfo")).unwrap_or_default());
        FuseMounts { root: directory.join("root"), points, silent: Mutex::default() }
    }

    /// Whether asking for the file at `path`, as the process names it, comes to an end. Where no FUSE mount has it, it does.
    pub(super) fn answers(&self, path: &Path) -> bool {
        let Some(point) = self.points.iter().filter(|p| path.starts_with(p)).max_by_key(|p| p.as_os_str().len()) else {
            return true;
        };
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.contains(point) {
            return false;
        }
        let answers = child_is_answered(&self.root.join(path.strip_prefix("/").unwrap_or(path)));
        if !answers {
            silent.insert(point.clone());
        }
        answers
    }
}

/// The mount points of FUSE file systems: field 5, and after the lone `-` the type. Source: Linux
/// `Documentation/filesystems/proc.rst`, `/proc/PID/mountinfo`.
fn parse_mountinfo(bytes: &[u8]) -> Vec<PathBuf> {
    let point = |line: &[u8]| {
        let mut words = line.split(|b| *b == b' ');
        let point = words.nth(4)?;
        let kind = words.skip_while(|w| *w != b"-").nth(1)?;
        (matches!(kind, b"fuse" | b"fuseblk") || kind.starts_with(b"fuse."))
            .then(|| PathBuf::from(OsStr::from_bytes(&unescape(point))))
    };
    bytes.split(|b| *b == b'\n').filter_map(point).collect()
}

/// Undoes `\040` and its like.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match tail.split_at_checked(3).filter(|_| *first == b'\\').and_then(|(d, after)| Some((octal(d)?, after))) {
            Some((byte, after)) => {
                out.push(byte);
                rest = after;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Whether a child that opens the file and reads a byte of it ends in time. What it finds does not matter.
fn child_is_answered(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return true };
    // SAFETY: the child makes plain system calls only, none of which needs a lock or memory that another thread may hold.
    let child = match unsafe { fork() } {
        Ok(ForkResult::Child) => unsafe { ask(&path) },
        Ok(ForkResult::Parent { child }) => child,
        Err(_) => return false,
    };
    let until = Instant::now() + PATIENCE;
    while matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
        if Instant::now() >= until {
            let _ = kill(child, Signal::SIGKILL);
            std::thread::sleep(Duration::from_millis(10));
            let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// What the child does.
///
/// # Safety
/// To be called in the child of a fork only: it closes every descriptor, and ends.
unsafe fn ask(path: &CString) -> ! {
    // SAFETY: system calls on values and on memory of our own: `path` and two places on this stack.
    unsafe {
        // nobody waits for the end of our output because of a child that sleeps on
        if libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32) != 0 {
            (0..4096).for_each(|fd| {
                libc::close(fd);
            });
        }
        let mut stat: libc::stat = std::mem::zeroed();
        let mut byte = 0u8;
        // the first one is 0; what is no regular file is not opened
        let found = libc::open(path.as_ptr(), libc::O_PATH);
        if found == 0 && libc::fstat(0, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG {
            let opened = libc::open(c"/proc/self/fd/0".as_ptr(), libc::O_RDONLY);
            libc::read(opened, (&raw mut byte).cast(), 1);
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fuse_mounts_are_listed_with_their_own_names() {
        let info = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            40 22 0:39 / /mnt/a\\040b rw,nosuid shared:5 master:1 - fuse.sshfs host:/ rw\n\
            41 22 0:40 / /blk rw - fuseblk /dev/sdb rw\n41 22 0:41 / /sys/fs/fuse/connections rw - fusectl none rw\nrubbish\n";
        let points = parse_mountinfo(info);
        let named: Vec<_> = points.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(named, ["/mnt/a b", "/blk"]);
    }

    #[test]
    fn who_is_answered_ends_and_who_is_not_asked_is_not_waited_for() {
        assert!(child_is_answered(Path::new("/proc/self/maps")) && child_is_answered(Path::new("/nowhere")));
        let mounts = |points| FuseMounts { root: "/".into(), points, silent: Mutex::default() };
        assert!(mounts(Vec::new()).answers(Path::new("/etc/passwd")));
        let silent = mounts(vec!["/silent".into()]);
        silent.silent.lock().unwrap().insert("/silent".into());
        assert!(!silent.answers(Path::new("/silent/x")) && silent.answers(Path::new("/silently/x")));
    }
}
