//! The tracer: seizes, interrupts, reads registers, detaches. All of it in one thread of its own.
//!
//! ptrace binds a tracee to the *thread* that seized it, and a tracee that never came to its stop (asleep in the kernel
//! where nothing interrupts) cannot be detached: only the tracer's end lets go of it. So the tracer is a thread that ends.
//! It also keeps the limit: when the time is over it detaches by itself, whatever the others are doing.
//!
//! Should hangscope be killed meanwhile, the kernel lets all tracees run on (`PTRACE_O_EXITKILL` is never set), and since
//! stops are looked at without consuming them (`WNOWAIT`), a signal on its way to the target is not lost either.
#![allow(unsafe_code)] // waitid and GETREGSET: nix refuses real-time signals in the one, hides the length of the other

use super::Undisturbed;
use super::proc::{read_state, read_tasks};
use crate::arch::x86_64::USER_REGS;
use crate::units::HostTid;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid as NixPid;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Passes over the thread list before we settle for what we have: a program that makes threads faster than they can be
/// seized would otherwise keep us.
const PASSES: usize = 64;

/// Time kept for letting one thread go: measured at 3 to 12 us, the more the busier the machine is.
const DETACH: Duration = Duration::from_micros(10);

/// `PTRACE_EVENT_STOP`, as the upper half of a stop's code (Linux `include/uapi/linux/ptrace.h`).
const EVENT_STOP: i32 = 128;

/// What became of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caught {
    /// Held; its register set as the kernel gave it.
    Held(Vec<u8>),
    /// It did not come to a stop in time.
    Late,
    /// It was not interrupted: the time was over.
    NotReached,
    /// It ended.
    Gone,
    /// The system refused to trace it.
    Refused(Errno),
}

/// What the tracer reports once all threads are held.
#[derive(Debug)]
pub(super) struct Report {
    /// Every thread tried, ascending.
    pub caught: Vec<(HostTid, Caught)>,
    /// The passes ran out while threads were still being made, or these could not be listed.
    pub unsettled: bool,
}

/// What the tracer says at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    /// First interrupt to last detach; `None` where nothing was interrupted.
    pub pause: Option<Duration>,
    /// Threads that had ended while they were held.
    pub lost: usize,
    /// Whether the limit ended the pause rather than the caller.
    pub timed_out: bool,
}

/// What the tracer and the caller share.
#[derive(Default)]
pub(super) struct Shared {
    /// Set before the first thread runs on: what is read afterwards is of no instant.
    pub released: AtomicBool,
    /// System calls of the tracer during the pause.
    pub calls: AtomicU64,
}

/// What the tracer is to do with one process.
pub(super) struct Order {
    /// `/proc/PID/task`.
    pub tasks: PathBuf,
    /// Threads to seize, as known before.
    pub threads: Vec<HostTid>,
    /// Threads to leave alone.
    pub skip: BTreeSet<HostTid>,
    /// What the caller sees of it.
    pub shared: Arc<Shared>,
    /// Where its end is told.
    pub ended: Sender<Ended>,
}

/// How long the tracer may take, for all processes together.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// The longest the first thread may be held.
    pub max_pause: Duration,
    /// How long to wait for one thread before its state is looked at, and again after half that time.
    pub per_thread: Duration,
}

/// A thread we have seized.
struct Tracee {
    tid: HostTid,
    state: State,
}

enum State {
    /// Seized and running.
    Running,
    /// Interrupted, not yet at its stop.
    Awaited(Instant),
    /// At its stop. `signal` was on its way to it and must go on with it.
    Held {
        registers: Vec<u8>,
        signal: i32,
    },
    /// Given up waiting; still ours.
    Late,
    Gone,
    Refused(Errno),
}

/// Everything seized of one process. Dropping it detaches, so that an error or panic on the way does too.
struct Tracees<'a> {
    order: &'a Order,
    list: Vec<Tracee>,
    known: BTreeSet<HostTid>,
    /// Whether there may be threads that are not in the list.
    unsettled: bool,
    /// When its first thread was interrupted.
    began: Option<Instant>,
}

/// When what is to end. All of it, in whichever process, keeps to one clock.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    bounds: Bounds,
}

impl Clock {
    /// A part of the longest pause is over.
    fn is_past(&self, part: u32, of: u32) -> bool {
        self.began.elapsed() >= self.bounds.max_pause * part / of
    }

    /// When stops are no longer waited for: half the time is for reading.
    fn stops_until(&self) -> Instant {
        self.began + self.bounds.max_pause / 2
    }

    /// When `held` threads are to be let go, so that the last of them runs on when the time is over.
    fn release_at(&self, held: usize) -> Instant {
        let detaches = DETACH.saturating_mul(u32::try_from(held).unwrap_or(u32::MAX));
        self.began + self.bounds.max_pause - detaches.min(self.bounds.max_pause / 2)
    }
}

/// Carries out `orders`, all side by side: reports each process once everything is held, waits until `done` names it (or its
/// other end is dropped) or the time is over, and lets go. A report that nobody takes lets go at once.
pub(super) fn trace(orders: &[Order], bounds: Bounds, report: &Sender<(usize, Report)>, done: &Receiver<usize>) {
    let _undisturbed = Undisturbed::begin();
    let mut processes: Vec<Tracees> = orders.iter().map(Tracees::seize_all).collect();
    let clock = Clock { began: Instant::now(), bounds };
    for p in &mut processes {
        p.interrupt(&clock);
    }
    for _ in 0..PASSES {
        for p in processes.iter_mut().filter(|p| p.unsettled) {
            p.await_stops(&clock);
        }
        // only threads that still ran could have made new ones: once a pass finds none, all are held
        for p in processes.iter_mut().filter(|p| p.unsettled) {
            p.seize_new();
        }
        if processes.iter().all(|p| !p.unsettled) || clock.is_past(1, 2) {
            break;
        }
        for p in processes.iter_mut().filter(|p| p.unsettled) {
            p.interrupt(&clock);
        }
    }
    let asked = processes.iter().enumerate().all(|(i, p)| report.send((i, p.report())).is_ok());
    let held = processes.iter().map(|p| p.list.len()).sum();
    let mut open: BTreeSet<usize> = if asked { (0..processes.len()).collect() } else { BTreeSet::new() };
    let mut late = Vec::new();
    while !open.is_empty() {
        let left = clock.release_at(held).saturating_duration_since(Instant::now());
        // one that came to its stop after its process was let go must not stand there
        let nap = if late.is_empty() { left } else { left.min(Duration::from_millis(10)) };
        match done.recv_timeout(nap) {
            Ok(i) => {
                if let Some(p) = processes.get_mut(i).filter(|_| open.remove(&i)) {
                    p.end(false, &mut late);
                }
            }
            Err(RecvTimeoutError::Timeout) if nap < left => {}
            Err(RecvTimeoutError::Timeout) => {
                processes.iter().for_each(Tracees::announce);
                for (i, p) in processes.iter_mut().enumerate() {
                    if open.remove(&i) {
                        p.end(true, &mut late);
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        late.retain(|tid| !let_go_late(*tid));
    }
}

/// Lets go of a thread that came to its stop late. Whether there is nothing more to do for it.
fn let_go_late(tid: HostTid) -> bool {
    match read_stop(tid) {
        Ok(None) => false,
        Ok(Some(code)) => {
            let _ = detach(tid, signal_on_its_way(code));
            true
        }
        Err(_) => true,
    }
}

impl<'a> Tracees<'a> {
    fn count(&self, calls: u64) {
        self.order.shared.calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// Seizes every thread that is known: they run on and notice nothing.
    fn seize_all(order: &'a Order) -> Tracees<'a> {
        let list = Vec::with_capacity(order.threads.len());
        let known = order.threads.iter().copied().collect();
        let mut tracees = Tracees { order, list, known, unsettled: true, began: None };
        for tid in order.threads.iter().filter(|t| !order.skip.contains(t)) {
            tracees.seize(*tid);
        }
        tracees.unsettled = tracees.list.iter().any(|t| matches!(t.state, State::Running));
        tracees
    }

    /// Seizes one thread: it runs on and notices nothing.
    fn seize(&mut self, tid: HostTid) {
        if self.began.is_some() {
            self.count(1);
        }
        let state = match ptrace::seize(NixPid::from_raw(tid.0), ptrace::Options::empty()) {
            Ok(()) => State::Running,
            Err(Errno::ESRCH) => State::Gone,
            Err(e) => State::Refused(e),
        };
        self.list.push(Tracee { tid, state });
    }

    /// Interrupts all that run, as far as a quarter of the time goes: each must come to its stop, be read and be let go in
    /// the rest. Those that are not reached run on.
    fn interrupt(&mut self, clock: &Clock) {
        let now = Instant::now();
        let mut calls = 0;
        for (i, t) in self.list.iter_mut().filter(|t| matches!(t.state, State::Running)).enumerate() {
            if i % 16 == 0 && clock.is_past(1, 4) {
                break;
            }
            self.began.get_or_insert(now);
            calls += 1;
            t.state = match ptrace::interrupt(NixPid::from_raw(t.tid.0)) {
                Ok(()) => State::Awaited(now),
                Err(_) => State::Gone,
            };
        }
        self.count(calls);
    }

    /// Waits until every interrupted thread stands, has ended, or its time is over. One after another: while we wait for
    /// the first the others come to their stops, so that each costs one call. A thread that only waits for a CPU is given
    /// until half the time is over: on a busy machine that takes its time, but it does come. One found in state D twice is
    /// given up.
    fn await_stops(&mut self, clock: &Clock) {
        let (order, deadline) = (self.order, clock.stops_until());
        let calls = &order.shared.calls;
        for t in &mut self.list {
            let State::Awaited(since) = t.state else { continue };
            let mut until = deadline.min(since + clock.bounds.per_thread);
            let mut tries = 0u32;
            let mut asleep = 0u32;
            t.state = loop {
                calls.fetch_add(1, Ordering::Relaxed);
                match read_stop(t.tid) {
                    Ok(Some(code)) => {
                        calls.fetch_add(1, Ordering::Relaxed);
                        break match read_registers(t.tid) {
                            Ok(registers) => State::Held { registers, signal: signal_on_its_way(code) },
                            Err(_) => State::Gone,
                        };
                    }
                    Ok(None) if Instant::now() < until => give_way(tries),
                    Ok(None) => {
                        calls.fetch_add(3, Ordering::Relaxed);
                        asleep += u32::from(read_state(&order.tasks, t.tid) == Some('D'));
                        if asleep > 1 || Instant::now() >= deadline {
                            break State::Late;
                        }
                        until = deadline.min(until + clock.bounds.per_thread / 2);
                    }
                    Err(_) => break State::Gone,
                }
                tries = tries.saturating_add(1);
            };
        }
    }

    /// Seizes threads that were not known before, and so is settled where there are none. Where they cannot be listed there
    /// is nothing more to find.
    fn seize_new(&mut self) {
        // open, two reads or more, close
        self.count(4);
        let Ok(now) = read_tasks(&self.order.tasks) else {
            // a process whose threads have all ended has none
            self.unsettled = self.order.tasks.exists();
            return;
        };
        let fresh: Vec<HostTid> = now.into_iter().filter(|t| self.known.insert(*t)).collect();
        self.unsettled = !fresh.is_empty();
        for tid in fresh {
            self.seize(tid);
        }
    }

    fn report(&self) -> Report {
        let mut caught: Vec<(HostTid, Caught)> = self
            .list
            .iter()
            .map(|t| {
                let c = match &t.state {
                    State::Held { registers, .. } => Caught::Held(registers.clone()),
                    State::Running => Caught::NotReached,
                    State::Awaited(_) | State::Late => Caught::Late,
                    State::Gone => Caught::Gone,
                    State::Refused(e) => Caught::Refused(*e),
                };
                (t.tid, c)
            })
            .collect();
        caught.sort_by_key(|(tid, _)| *tid);
        Report { caught, unsettled: self.unsettled }
    }

    /// Says that what is read from now on is of no instant.
    fn announce(&self) {
        self.order.shared.released.store(true, Ordering::SeqCst);
    }

    /// Ends the pause of this process and tells so.
    fn end(&mut self, timed_out: bool, late: &mut Vec<HostTid>) {
        let lost = self.release(late);
        let _ = self.order.ended.send(Ended { pause: self.began.map(|b| b.elapsed()), lost, timed_out });
    }

    /// Lets every thread run on. Gives how many had ended; those that never came to their stop are added to `late`.
    fn release(&mut self, late: &mut Vec<HostTid>) -> usize {
        self.announce();
        let mut lost = 0;
        for t in std::mem::take(&mut self.list) {
            match t.state {
                State::Held { signal, .. } => {
                    self.count(1);
                    lost += usize::from(detach(t.tid, signal).is_err());
                }
                State::Gone | State::Refused(_) => {}
                // it may have come to its stop since; if not, our end will let go of it
                State::Running | State::Awaited(_) | State::Late => {
                    if !let_go_late(t.tid) {
                        late.push(t.tid);
                    }
                }
            }
        }
        lost
    }
}

impl Drop for Tracees<'_> {
    fn drop(&mut self) {
        self.release(&mut Vec::new());
    }
}

/// A thread comes to its stop when it is next scheduled: gives way at first, then sleeps longer and longer, to 1 ms.
fn give_way(tries: u32) {
    match tries {
        0..=1 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(16u64 << (tries - 2).min(6))),
    }
}

/// The signal a stop's code says was about to be delivered; 0 for the stop we asked for and for a group-stop.
fn signal_on_its_way(code: i32) -> i32 {
    if code >> 8 == EVENT_STOP { 0 } else { code & 0x7f }
}

/// The code of the stop `tid` stands at, without consuming it; `None` while it still runs.
fn read_stop(tid: HostTid) -> Result<Option<i32>, Errno> {
    // SAFETY: siginfo_t is plain data for which all zeros is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let id = libc::id_t::try_from(tid.0).map_err(|_| Errno::ESRCH)?;
    // SAFETY: `info` lives through the call and is ours to write; waitid touches nothing else.
    Errno::result(unsafe { libc::waitid(libc::P_PID, id, &raw mut info, options) })?;
    // SAFETY: waitid fills the fields of a child's change, or leaves the zeros, of which si_pid is 0.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some(status))
}

/// The general register set of a held thread: 216 bytes, or 68 for a 32-bit one.
fn read_registers(tid: HostTid) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0u8; USER_REGS];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to `iov_base`, which is `bytes`, and the length to `iov`; both
    // live through the call.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid.0, libc::NT_PRSTATUS, &raw mut iov) })?;
    bytes.truncate(iov.iov_len);
    Ok(bytes)
}

/// Lets a held thread run on, with the signal that was on its way.
fn detach(tid: HostTid, signal: i32) -> Result<(), Errno> {
    // SAFETY: PTRACE_DETACH takes the signal's number by value and touches no memory of ours. nix cannot be used: it
    // knows no real-time signals.
    Errno::result(unsafe {
        libc::ptrace(libc::PTRACE_DETACH, tid.0, std::ptr::null_mut::<libc::c_void>(), libc::c_long::from(signal))
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_delivery_stop_has_a_signal_to_pass_on() {
        assert_eq!(signal_on_its_way(libc::SIGTRAP | EVENT_STOP << 8), 0);
        assert_eq!(signal_on_its_way(libc::SIGSTOP | EVENT_STOP << 8), 0);
        assert_eq!(signal_on_its_way(libc::SIGUSR1), libc::SIGUSR1);
        assert_eq!(signal_on_its_way(40), 40);
    }
    /// A vfork parent can be seized and interrupted but never comes to its stop, and what is not stopped cannot be
    /// detached.
    #[test]
    fn the_tracers_end_lets_go_of_what_never_stopped() {
        use std::io::Read;
        use std::process::{Command, Stdio};
        let program = std::env::temp_dir().join(format!("hangscope-vfork-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/target.c");
        let built = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status();
        assert!(built.is_ok_and(|s| s.success()), "needs cc");
        let mut child = Command::new(&program).arg("vfork").stdout(Stdio::piped()).spawn().unwrap();
        std::fs::remove_file(&program).unwrap();
        let mut ready = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        let pid = child.id().cast_signed();
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        // it has written, but may not sleep in the kernel yet
        while !status().contains("State:\tD") {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (ended_to, ended) = std::sync::mpsc::channel();
        let order = Order {
            tasks,
            threads: vec![HostTid(pid)],
            skip: BTreeSet::new(),
            shared: Arc::default(),
            ended: ended_to,
        };
        let bounds = Bounds { max_pause: Duration::from_secs(2), per_thread: Duration::from_millis(50) };
        let (report_to, report) = std::sync::mpsc::channel();
        let (done, done_from) = std::sync::mpsc::channel();
        let tracer = std::thread::spawn(move || trace(&[order], bounds, &report_to, &done_from));
        let caught = report.recv().unwrap().1.caught;
        let traced = status();
        done.send(0).unwrap();
        tracer.join().unwrap();
        let ended = ended.recv().unwrap();
        assert_eq!(caught, [(HostTid(pid), Caught::Late)]);
        assert!(!traced.contains("TracerPid:\t0"));
        assert!(ended.pause.unwrap() < Duration::from_secs(1) && !ended.timed_out);
        let until = Instant::now() + Duration::from_secs(2);
        while !status().contains("TracerPid:\t0") {
            assert!(Instant::now() < until, "{}", status());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
