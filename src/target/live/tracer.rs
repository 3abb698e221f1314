//! The tracer: seizes, interrupts, reads registers, detaches. All of it in one thread of its own.
//!
//! ptrace binds a tracee to the *thread* that seized it, and a tracee that never came to its stop (asleep in the kernel
//! where nothing interrupts) cannot be detached: only the tracer's end lets go of it. So the tracer is a thread that ends.
//! It also keeps the limit: when the time is over it detaches by itself, whatever the others are doing.
//!
//! Should hangscope be killed meanwhile, the kernel lets all tracees run on (`PTRACE_O_EXITKILL` is never set), and since
//! stops are looked at without consuming them (`WNOWAIT`), a signal on its way to the target is not lost either.
#![allow(unsafe_code)] // waitid and GETREGSET: nix refuses real-time signals in the one, hides the length of the other

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

/// `PTRACE_EVENT_STOP`, as the upper half of a stop's code (Linux `include/uapi/linux/ptrace.h`).
const EVENT_STOP: i32 = 128;

/// What became of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caught {
    /// Held; its register set as the kernel gave it.
    Held(Vec<u8>),
    /// It did not come to a stop in time.
    Late,
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
    /// First interrupt to last detach.
    pub pause: Duration,
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

/// What the tracer is to do.
pub(super) struct Order {
    /// `/proc/PID/task`.
    pub tasks: PathBuf,
    /// Threads to seize, as known before.
    pub threads: Vec<HostTid>,
    /// Threads to leave alone.
    pub skip: BTreeSet<HostTid>,
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

/// Everything seized. Dropping it detaches, so that an error or panic on the way does too.
struct Tracees {
    list: Vec<Tracee>,
    shared: Arc<Shared>,
    began: Option<Instant>,
}

/// Carries out `order`: reports once everything is held, waits until `done` says so (a word, or its other end dropped) or
/// the time is over, and lets go. A failed report lets go at once.
pub(super) fn trace(order: &Order, shared: &Arc<Shared>, report: &Sender<Report>, done: &Receiver<()>) -> Ended {
    let mut tracees =
        Tracees { list: Vec::with_capacity(order.threads.len()), shared: Arc::clone(shared), began: None };
    for tid in order.threads.iter().filter(|t| !order.skip.contains(t)) {
        tracees.seize(*tid);
    }
    if !tracees.list.iter().any(|t| matches!(t.state, State::Running)) {
        let _ = report.send(tracees.report(false));
        return Ended::default();
    }
    let began = Instant::now();
    let deadline = began + order.max_pause;
    tracees.began = Some(began);
    tracees.interrupt();
    let mut known: BTreeSet<HostTid> = order.threads.iter().copied().collect();
    let mut unsettled = true;
    for _ in 0..PASSES {
        // half the time at most: the other half is for reading
        tracees.await_stops(order, began + order.max_pause / 2);
        // only threads that still ran could have made new ones: once a pass finds none, all are held
        let Some(fresh) = tracees.find_new(order, &mut known) else { break };
        if fresh.is_empty() {
            unsettled = false;
            break;
        }
        if Instant::now() >= deadline {
            break;
        }
        for tid in fresh {
            tracees.seize(tid);
        }
        tracees.interrupt();
    }
    let mut timed_out = false;
    if report.send(tracees.report(unsettled)).is_ok() {
        let left = deadline.saturating_duration_since(Instant::now());
        timed_out = matches!(done.recv_timeout(left), Err(RecvTimeoutError::Timeout));
    }
    let lost = tracees.release();
    Ended { pause: began.elapsed(), lost, timed_out }
}

impl Tracees {
    fn count(&self) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Seizes one thread: it runs on and notices nothing.
    fn seize(&mut self, tid: HostTid) {
        if self.began.is_some() {
            self.count();
        }
        let state = match ptrace::seize(NixPid::from_raw(tid.0), ptrace::Options::empty()) {
            Ok(()) => State::Running,
            Err(Errno::ESRCH) => State::Gone,
            Err(e) => State::Refused(e),
        };
        self.list.push(Tracee { tid, state });
    }

    /// Interrupts all that run.
    fn interrupt(&mut self) {
        let now = Instant::now();
        for t in &mut self.list {
            if matches!(t.state, State::Running) {
                self.shared.calls.fetch_add(1, Ordering::Relaxed);
                t.state = match ptrace::interrupt(NixPid::from_raw(t.tid.0)) {
                    Ok(()) => State::Awaited(now),
                    Err(_) => State::Gone,
                };
            }
        }
    }

    /// Waits until every interrupted thread stands, has ended, or its time is over. One after another: while we wait for
    /// the first the others come to their stops, so that each costs one call. A thread that only waits for a CPU is given
    /// until `deadline`: on a busy machine that takes its time, but it does come. One found in state D twice is given up.
    fn await_stops(&mut self, order: &Order, deadline: Instant) {
        for t in &mut self.list {
            let State::Awaited(since) = t.state else { continue };
            let mut until = deadline.min(since + order.per_thread);
            let mut tries = 0u32;
            let mut asleep = 0u32;
            t.state = loop {
                self.shared.calls.fetch_add(1, Ordering::Relaxed);
                match read_stop(t.tid) {
                    Ok(Some(code)) => {
                        self.shared.calls.fetch_add(1, Ordering::Relaxed);
                        break match read_registers(t.tid) {
                            Ok(registers) => State::Held { registers, signal: signal_on_its_way(code) },
                            Err(_) => State::Gone,
                        };
                    }
                    Ok(None) if Instant::now() < until => give_way(tries),
                    Ok(None) => {
                        self.shared.calls.fetch_add(3, Ordering::Relaxed);
                        asleep += u32::from(read_state(&order.tasks, t.tid) == Some('D'));
                        if asleep > 1 || Instant::now() >= deadline {
                            break State::Late;
                        }
                        until = deadline.min(until + order.per_thread / 2);
                    }
                    Err(_) => break State::Gone,
                }
                tries = tries.saturating_add(1);
            };
        }
    }

    /// Threads that were not known before; `None` where they cannot be listed.
    fn find_new(&self, order: &Order, known: &mut BTreeSet<HostTid>) -> Option<Vec<HostTid>> {
        // open, two reads or more, close
        self.shared.calls.fetch_add(4, Ordering::Relaxed);
        let now = read_tasks(&order.tasks).ok()?;
        Some(now.into_iter().filter(|t| known.insert(*t)).collect())
    }

    fn report(&self, unsettled: bool) -> Report {
        let mut caught: Vec<(HostTid, Caught)> = self
            .list
            .iter()
            .map(|t| {
                let c = match &t.state {
                    State::Held { registers, .. } => Caught::Held(registers.clone()),
                    State::Running | State::Awaited(_) | State::Late => Caught::Late,
                    State::Gone => Caught::Gone,
                    State::Refused(e) => Caught::Refused(*e),
                };
                (t.tid, c)
            })
            .collect();
        caught.sort_by_key(|(tid, _)| *tid);
        Report { caught, unsettled }
    }

    /// Lets every thread run on. Gives how many had ended.
    fn release(&mut self) -> usize {
        self.shared.released.store(true, Ordering::SeqCst);
        let mut lost = 0;
        for t in std::mem::take(&mut self.list) {
            let signal = match t.state {
                State::Held { signal, .. } => signal,
                State::Gone | State::Refused(_) => continue,
                // it may have come to its stop since; if not, our end will let go of it
                State::Running | State::Awaited(_) | State::Late => match read_stop(t.tid) {
                    Ok(Some(code)) => signal_on_its_way(code),
                    _ => continue,
                },
            };
            self.shared.calls.fetch_add(1, Ordering::Relaxed);
            lost += usize::from(detach(t.tid, signal).is_err());
        }
        lost
    }
}

impl Drop for Tracees {
    fn drop(&mut self) {
        self.release();
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
        let order = Order {
            tasks,
            threads: vec![HostTid(pid)],
            skip: BTreeSet::new(),
            max_pause: Duration::from_secs(2),
            per_thread: Duration::from_millis(50),
        };
        let (report_to, report) = std::sync::mpsc::channel();
        let (done, done_from) = std::sync::mpsc::channel();
        let tracer = std::thread::spawn(move || trace(&order, &Arc::default(), &report_to, &done_from));
        let caught = report.recv().unwrap().caught;
        let traced = status();
        done.send(()).unwrap();
        let ended = tracer.join().unwrap();
        assert_eq!(caught, [(HostTid(pid), Caught::Late)]);
        assert!(!traced.contains("TracerPid:\t0"));
        assert!(ended.pause < Duration::from_secs(1) && !ended.timed_out);
        let until = Instant::now() + Duration::from_secs(2);
        while !status().contains("TracerPid:\t0") {
            assert!(Instant::now() < until, "{}", status());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
