//! What the kernel says of a held process: whether what its threads were seen waiting for has come meanwhile.
//!
//! A descriptor is asked through one of our own for the same open file (`pidfd_getfd`) and a `poll` that does not wait. That
//! reads nothing and moves nothing: the open file has one reference more for some microseconds, and the target, which keeps
//! its own, stands still. The numbers of a pipe's readers and writers count open files, not references, so they stay as they
//! are; opening `/proc/PID/fd/N` would change them. Where the kernel has no such call (before 5.6) or refuses it, nothing
//! is known.
#![allow(unsafe_code)] // pidfd_open and pidfd_getfd, which nix does not have

use super::family;
use super::proc::{parse_stat, parse_status, read_file, read_short};
use super::stopped::Stopped;
use crate::target::{AtInstant, Descriptor, Inquiry, Readiness};
use crate::units::{HostTid, Pid};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

/// Descriptors asked about at most.
const MAX_DESCRIPTORS: usize = 64;
/// Children looked at, and threads whose children are listed, at most.
const MAX_CHILDREN: usize = 64;
/// Threads whose pending signals are read at most.
const MAX_SIGNALLED: usize = 16;

impl Stopped<'_> {
    /// Asks the kernel. To be called while the process is held, when all its threads stand.
    #[must_use]
    pub fn ask(&self, inquiry: &Inquiry) -> AtInstant {
        let pid = self.live.process.pid;
        let (ready, calls) = readiness(pid, &inquiry.descriptors);
        let ended = self.ended_children(inquiry);
        // each file: open, read, close
        let files = inquiry.signals.len().min(MAX_SIGNALLED) + inquiry.children.len().min(MAX_CHILDREN);
        self.live.remote.remote.calls.fetch_add(calls + 3 * files as u64, Ordering::Relaxed);
        AtInstant {
            ready,
            ended,
            signalled: inquiry
                .signals
                .iter()
                .take(MAX_SIGNALLED)
                .filter_map(|(t, m)| self.is_signalled(*t, *m))
                .collect(),
        }
    }

    /// The thread, if one of these signals is pending for it.
    fn is_signalled(&self, tid: HostTid, mask: u64) -> Option<HostTid> {
        let status = read_short(&self.live.tasks.join(tid.0.to_string()).join("status")).ok()?;
        (parse_status(&status).pending & mask != 0).then_some(tid)
    }

    fn ended_children(&self, inquiry: &Inquiry) -> BTreeSet<Pid> {
        let mut asked = inquiry.children.clone();
        if inquiry.any_child && self.threads.len() <= MAX_CHILDREN {
            asked.extend(family::children(self.live.process.pid).unwrap_or_default());
            self.live.remote.remote.calls.fetch_add(3 * (self.threads.len() + asked.len()) as u64, Ordering::Relaxed);
        }
        asked.into_iter().take(MAX_CHILDREN).filter(|child| has_ended(*child)).collect()
    }
}

/// Whether a process that was there has ended.
fn has_ended(pid: Pid) -> bool {
    match read_short(Path::new(&format!("/proc/{pid}/stat"))) {
        Ok(bytes) => parse_stat(&bytes).is_some_and(|s| s.is_dead()),
        Err(e) => e == Errno::ENOENT,
    }
}

/// What calls on these descriptors of `pid` would find, and how many system calls it took to know.
fn readiness(pid: Pid, asked: &BTreeMap<i32, Descriptor>) -> (BTreeMap<i32, Readiness>, u64) {
    let mut asked = asked.iter().filter(|(_, d)| may_be_asked(d)).take(MAX_DESCRIPTORS).peekable();
    if asked.peek().is_none() {
        return (BTreeMap::new(), 0);
    }
    let Ok(process) = pidfd_open(pid) else { return (BTreeMap::new(), 1) };
    let ours: Vec<(i32, OwnedFd)> = asked
        .filter_map(|(number, open)| {
            let ours = pidfd_getfd(&process, *number).ok()?;
            // the number may be another file's by now
            let to = std::fs::read_link(format!("/proc/self/fd/{}", ours.as_raw_fd())).ok()?;
            (to.as_os_str() == open.to.as_str()).then_some((*number, ours))
        })
        .collect();
    let events = PollFlags::POLLIN | PollFlags::POLLOUT;
    let mut polled: Vec<PollFd<'_>> = ours.iter().map(|(_, fd)| PollFd::new(fd.as_fd(), events)).collect();
    // pidfd_open, poll and the last close; each descriptor: getfd, readlink, close
    let calls = 3 + 3 * ours.len() as u64;
    if poll(&mut polled, PollTimeout::ZERO).is_err() {
        return (BTreeMap::new(), calls);
    }
    let found = ours.iter().zip(&polled).filter_map(|((number, _), p)| Some((*number, of_events(p.revents()?))));
    (found.collect(), calls)
}

fn of_events(found: PollFlags) -> Readiness {
    let closed = found.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
    Readiness {
        to_read: closed || found.contains(PollFlags::POLLIN),
        to_write: closed || found.contains(PollFlags::POLLOUT),
    }
}

/// Whether asking harms nothing and the answer is about the target: of an epoll the `poll` drops entries that look idle to us,
/// and a signalfd tells of our own signals. Files and devices are their drivers' to answer, and do not wait so.
fn may_be_asked(open: &Descriptor) -> bool {
    const ANONYMOUS: [&str; 5] = ["[eventfd]", "[timerfd]", "[pidfd]", "inotify", "[inotify]"];
    let to = open.to.as_str();
    to.starts_with("pipe:[")
        || (to.starts_with("socket:[") && !*MARKS_SOCKETS)
        || to.strip_prefix("anon_inode:").is_some_and(|kind| ANONYMOUS.contains(&kind))
}

/// Whether a socket would take our own network class and priority when we take a descriptor for it: with the controllers of
/// version 1 control groups (Linux `net/core/sock.c`, `__receive_sock`).
static MARKS_SOCKETS: LazyLock<bool> = LazyLock::new(|| {
    let groups = read_file(Path::new("/proc/self/cgroup")).unwrap_or_default();
    String::from_utf8_lossy(&groups).lines().any(|l| l.contains("net_cls") || l.contains("net_prio"))
});

/// A descriptor for the process; close-on-exec.
fn pidfd_open(pid: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: pidfd_open takes numbers only and touches no memory of ours.
    own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.0, 0) })
}

/// A descriptor of ours for what the process has open as `number`; close-on-exec.
fn pidfd_getfd(process: &OwnedFd, number: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: pidfd_getfd takes numbers only and touches no memory of ours.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

fn own(result: libc::c_long) -> Result<OwnedFd, Errno> {
    let fd = i32::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::super::descriptors::read_descriptors;
    use super::*;
    use std::io::Write;

    /// What calls on descriptors of our own would find.
    fn of_our_own(fds: &[i32]) -> Vec<Option<Readiness>> {
        let mut open = read_descriptors(Path::new("/proc/self"));
        open.retain(|fd, _| fds.contains(fd));
        let (found, _) = readiness(Pid(std::process::id().cast_signed()), &open);
        fds.iter().map(|fd| found.get(fd).copied()).collect()
    }

    #[test]
    fn a_pipe_is_empty_then_full_then_closed() {
        let (reads, mut writes) = std::io::pipe().unwrap();
        let ends = [reads.as_raw_fd(), writes.as_raw_fd()];
        let states = |fds| -> Vec<(bool, bool)> {
            of_our_own(fds).into_iter().map(|r| r.map_or((false, false), |r| (r.to_read, r.to_write))).collect()
        };
        assert_eq!(states(&ends), [(false, false), (false, true)]);
        writes.write_all(b"x").unwrap();
        assert_eq!(states(&ends), [(true, false), (false, true)]);
        writes.write_all(&[0; 65_535]).unwrap();
        assert_eq!(states(&ends), [(true, false), (false, false)], "it is full");
        drop(writes);
        assert!(states(&ends[..1])[0].0, "nothing will come: a read would say so at once");
    }

    #[test]
    fn a_number_that_is_another_file_s_by_now_tells_nothing() {
        let (reads, _writes) = std::io::pipe().unwrap();
        let mut open = read_descriptors(Path::new("/proc/self"));
        open.retain(|fd, _| *fd == reads.as_raw_fd());
        open.values_mut().for_each(|d| d.to = "pipe:[1]".into());
        assert!(readiness(Pid(std::process::id().cast_signed()), &open).0.is_empty());
    }

    #[test]
    fn what_a_poll_would_change_is_not_asked() {
        let open = |to: &str| Descriptor { to: to.into(), pipe: None, reads: false, writes: false };
        for to in ["anon_inode:[eventpoll]", "anon_inode:[signalfd]", "/dev/tty", "/tmp/fifo", "/dev/kfd"] {
            assert!(!may_be_asked(&open(to)), "{to}");
        }
        assert!(may_be_asked(&open("anon_inode:[eventfd]")) && may_be_asked(&open("pipe:[7]")));
    }

    #[test]
    fn a_child_has_ended_before_it_is_collected() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id().cast_signed());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !has_ended(pid) {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(has_ended(pid) && !has_ended(Pid(std::process::id().cast_signed())));
    }
}
