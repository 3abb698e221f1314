//! The system calls of x86-64 that can block: number, name, what they wait for, which argument says how long.
//!
//! Source: Linux `arch/x86/entry/syscalls/syscall_64.tbl`; each was seen blocked on 6.18 where a program can make it so.

use crate::facts::ResourceKind;

/// Where a call's arguments name what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Object {
    /// A descriptor in this argument, waited on until something comes.
    From(usize),
    /// A descriptor in this argument, waited on until it takes more.
    To(usize),
    /// Descriptors in two arguments.
    Between(usize, usize),
    /// `struct pollfd` array and count in the first two arguments.
    PollSet,
    /// `nfds` and three `fd_set`s in the first four arguments.
    SelectSet,
    /// A child: the pid argument of `wait4`.
    Child,
    /// A child: the id type and id of `waitid`.
    ChildId,
    /// The futex word in the first argument.
    Futex,
    /// An array of `struct futex_waitv` and its length in the first two arguments.
    FutexSet,
    /// A System V semaphore set or message queue in the first argument.
    SystemV,
    /// A path in this argument, flags in the next: `open`, `openat`.
    Path(usize),
    /// Nothing an argument names.
    Nothing,
}

/// Where a call's time limit stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    /// It has none.
    Never,
    /// Milliseconds as a signed 32-bit argument; negative is never.
    Millis(usize),
    /// Pointer to a relative `struct timespec`; null is never.
    Timespec(usize),
    /// Pointer to a relative `struct timeval`; null is never.
    Timeval(usize),
    /// Pointer to a `struct timespec` that may be a point in time; null is never.
    Deadline(usize),
    /// `clock_nanosleep`: flags in the second argument, `struct timespec` in the third.
    Clock,
}

/// One blocking call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub number: u64,
    pub name: &'static str,
    pub kind: ResourceKind,
    pub object: Object,
    pub limit: Limit,
    /// Whether a healthy idle program sleeps in it.
    pub idle: bool,
}

const fn call(number: u64, name: &'static str, kind: ResourceKind, object: Object, limit: Limit, idle: bool) -> Call {
    Call { number, name, kind, object, limit, idle }
}

use Limit::{Clock, Deadline, Millis, Never, Timespec, Timeval};
use Object::{Between, Child, ChildId, From, Futex, FutexSet, Nothing, Path, PollSet, SelectSet, SystemV, To};
use ResourceKind as K;

/// Ascending by number.
pub(super) const CALLS: &[Call] = &[
    call(0, "read", K::Unknown, From(0), Never, true),
    call(1, "write", K::Unknown, To(0), Never, false),
    call(2, "open", K::FileIo, Path(0), Never, false),
    call(3, "close", K::FileIo, From(0), Never, false),
    call(7, "poll", K::Poll, PollSet, Millis(2), true),
    call(9, "mmap", K::FileIo, Nothing, Never, false),
    call(11, "munmap", K::FileIo, Nothing, Never, false),
    call(16, "ioctl", K::Device, From(0), Never, false),
    call(17, "pread64", K::Unknown, From(0), Never, true),
    call(18, "pwrite64", K::Unknown, To(0), Never, false),
    call(19, "readv", K::Unknown, From(0), Never, true),
    call(20, "writev", K::Unknown, To(0), Never, false),
    call(23, "select", K::Poll, SelectSet, Timeval(4), true),
    call(26, "msync", K::FileIo, Nothing, Never, false),
    call(28, "madvise", K::FileIo, Nothing, Never, false),
    call(34, "pause", K::Signal, Nothing, Never, true),
    call(35, "nanosleep", K::Timer, Nothing, Timespec(0), true),
    call(40, "sendfile", K::Unknown, Between(1, 0), Never, false),
    call(42, "connect", K::Socket, To(0), Never, false),
    call(43, "accept", K::Socket, From(0), Never, true),
    call(44, "sendto", K::Socket, To(0), Never, false),
    call(45, "recvfrom", K::Socket, From(0), Never, true),
    call(46, "sendmsg", K::Socket, To(0), Never, false),
    call(47, "recvmsg", K::Socket, From(0), Never, true),
    call(56, "clone", K::ProcessExit, Nothing, Never, false),
    call(58, "vfork", K::ProcessExit, Nothing, Never, false),
    call(59, "execve", K::ThreadExit, Nothing, Never, false),
    call(61, "wait4", K::ProcessExit, Child, Never, false),
    call(65, "semop", K::Semaphore, SystemV, Never, false),
    call(69, "msgsnd", K::Unknown, SystemV, Never, false),
    call(70, "msgrcv", K::Unknown, SystemV, Never, true),
    call(72, "fcntl", K::FileLock, From(0), Never, false),
    call(73, "flock", K::FileLock, From(0), Never, false),
    call(74, "fsync", K::FileIo, To(0), Never, false),
    call(75, "fdatasync", K::FileIo, To(0), Never, false),
    call(128, "rt_sigtimedwait", K::Signal, Nothing, Timespec(2), true),
    call(130, "rt_sigsuspend", K::Signal, Nothing, Never, true),
    call(162, "sync", K::FileIo, Nothing, Never, false),
    call(202, "futex", K::Futex, Futex, Deadline(3), false),
    call(208, "io_getevents", K::FileIo, Nothing, Timespec(4), true),
    call(220, "semtimedop", K::Semaphore, SystemV, Timespec(3), false),
    call(230, "clock_nanosleep", K::Timer, Nothing, Clock, true),
    call(231, "exit_group", K::ThreadExit, Nothing, Never, false),
    call(232, "epoll_wait", K::Epoll, From(0), Millis(3), true),
    call(242, "mq_timedsend", K::Unknown, To(0), Deadline(4), false),
    call(243, "mq_timedreceive", K::Unknown, From(0), Deadline(4), true),
    call(247, "waitid", K::ProcessExit, ChildId, Never, false),
    call(257, "openat", K::FileIo, Path(1), Never, false),
    call(270, "pselect6", K::Poll, SelectSet, Timespec(4), true),
    call(271, "ppoll", K::Poll, PollSet, Timespec(2), true),
    call(275, "splice", K::Unknown, Between(0, 2), Never, false),
    call(276, "tee", K::Unknown, Between(0, 1), Never, false),
    call(278, "vmsplice", K::Pipe, To(0), Never, false),
    call(281, "epoll_pwait", K::Epoll, From(0), Millis(3), true),
    call(288, "accept4", K::Socket, From(0), Never, true),
    call(295, "preadv", K::Unknown, From(0), Never, true),
    call(296, "pwritev", K::Unknown, To(0), Never, false),
    call(299, "recvmmsg", K::Socket, From(0), Timespec(4), true),
    call(307, "sendmmsg", K::Socket, To(0), Never, false),
    call(318, "getrandom", K::Device, Nothing, Never, false),
    call(324, "membarrier", K::Unknown, Nothing, Never, false),
    call(326, "copy_file_range", K::FileIo, Between(0, 2), Never, false),
    call(327, "preadv2", K::Unknown, From(0), Never, true),
    call(328, "pwritev2", K::Unknown, To(0), Never, false),
    call(426, "io_uring_enter", K::FileIo, From(0), Never, true),
    call(435, "clone3", K::ProcessExit, Nothing, Never, false),
    call(441, "epoll_pwait2", K::Epoll, From(0), Timespec(3), true),
    call(449, "futex_waitv", K::Futex, FutexSet, Deadline(3), false),
    call(455, "futex_wait", K::Futex, Futex, Deadline(4), false),
];

/// The blocking call with this number.
pub(super) fn find(number: u64) -> Option<&'static Call> {
    CALLS.binary_search_by_key(&number, |c| c.number).ok().and_then(|i| CALLS.get(i))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(CALLS.windows(2).all(|w| w[0].number < w[1].number));
        assert_eq!(find(202).map(|c| c.name), Some("futex"));
        assert!(find(39).is_none(), "getpid does not block");
    }
}
