//! Holds threads of a program by ptrace: one or two at chosen instructions, the others for the length of a look.

use super::chance::Chance;
use super::code::{Class, Code};
use super::raw::{self, EVENT_STOP};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::getregs;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Offset of the debug registers in `struct user` (Linux `arch/x86/include/asm/user_64.h`).
const DEBUG_REGISTERS: usize = 848;
/// How long a thread may take to come to the stop that was asked for.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a system call may take before the thread is taken to sleep in it.
const IN_CALL: Duration = Duration::from_millis(4);

/// What a system call that is to be made again seems to return (Linux `include/linux/errno.h`).
const RESTARTED: std::ops::RangeInclusive<i64> = -516..=-512;

/// Why a thread stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    /// A single step, or a breakpoint.
    Trap,
    /// The entry or the return of a system call.
    Call,
    /// A signal is about to be delivered.
    Signal,
    /// Asked for, or a new thread's first, or another thing the kernel tells.
    Event,
}

struct Thread {
    pid: i32,
    /// Stands; what for, until someone asked.
    stands: Option<Option<Stop>>,
    /// On its way to it.
    signal: i32,
    /// Does not go on by itself after a stop.
    held: bool,
    breakpoints: bool,
}

/// Where a step led.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// One instruction on; its class.
    Did(Class),
    /// It sleeps in a system call, and was stopped there.
    Asleep,
    /// It ended, or cannot be stopped.
    Lost,
}

/// A program and all it forks.
pub struct Traced {
    threads: BTreeMap<i32, Thread>,
    pub code: Code,
    pub steps: u64,
}

impl Traced {
    /// Seizes all threads of these processes.
    pub fn seize(pids: &[i32]) -> Traced {
        let mut traced = Traced { threads: BTreeMap::new(), code: Code::default(), steps: 0 };
        for pid in pids {
            // a thread made meanwhile by one not yet seized is not traced: until none is new
            while tasks(*pid).into_iter().map(|tid| traced.seize_one(*pid, tid)).filter(|new| *new).count() > 0 {}
        }
        traced
    }

    fn seize_one(&mut self, pid: i32, tid: i32) -> bool {
        if self.threads.contains_key(&tid) {
            return false;
        }
        let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACESYSGOOD;
        let seized = raw::ptrace(libc::PTRACE_SEIZE, tid, 0, usize::try_from(options).expect("bits"));
        if seized.is_ok() {
            self.threads.insert(tid, Thread::running(pid));
        }
        seized.is_ok()
    }

    /// Its processes.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.threads.values().map(|t| t.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The threads of one process.
    pub fn threads(&self, pid: i32) -> Vec<i32> {
        self.threads.iter().filter(|(_, t)| t.pid == pid).map(|(tid, _)| *tid).collect()
    }

    /// Whether the thread stands.
    pub fn stands(&self, tid: i32) -> bool {
        self.threads.get(&tid).is_some_and(|t| t.stands.is_some())
    }

    /// The registers of a thread that stands.
    pub fn registers(&self, tid: i32) -> Option<libc::user_regs_struct> {
        self.stands(tid).then(|| getregs(Pid::from_raw(tid)).ok()).flatten()
    }

    /// Takes what the kernel has to tell; threads that are not held go on.
    pub fn pump(&mut self) {
        // the end of this is when nothing is left to tell, or no child is
        while let Ok(Some((tid, status))) = raw::wait(-1, libc::WNOHANG) {
            self.take(tid, status);
        }
    }

    fn take(&mut self, tid: i32, status: i32) {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            self.threads.remove(&tid);
            return;
        }
        if !libc::WIFSTOPPED(status) {
            return;
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let stop = match (event, signal) {
            (0, libc::SIGTRAP) => Stop::Trap,
            (0, s) if s == libc::SIGTRAP | 0x80 => Stop::Call,
            (0, _) => Stop::Signal,
            _ => Stop::Event,
        };
        // a new thread may tell of itself before its maker does
        let thread = self.threads.entry(tid).or_insert_with(|| Thread::running(process_of(tid).unwrap_or(tid)));
        thread.stands = Some(Some(stop));
        if stop == Stop::Signal {
            thread.signal = signal;
        }
        if event != 0 && event != EVENT_STOP {
            self.code.forget(self.threads[&tid].pid);
        }
        if !self.threads[&tid].held {
            self.go_on(tid, libc::PTRACE_CONT);
        }
    }

    /// Lets a thread that stands go on in one of ptrace's ways, with the signal that was on its way.
    fn go_on(&mut self, tid: i32, how: libc::c_uint) {
        let Some(thread) = self.threads.get_mut(&tid).filter(|t| t.stands.is_some()) else { return };
        let signal = usize::try_from(std::mem::take(&mut thread.signal)).unwrap_or(0);
        thread.stands = None;
        // one that was killed tells so by itself
        let _ = raw::ptrace(how, tid, 0, signal);
    }

    /// Waits until a held thread stands; why it does. None where it ended or did not come in time.
    fn await_stop(&mut self, tid: i32, patience: Duration) -> Option<Stop> {
        let began = Instant::now();
        let mut tries = 0;
        loop {
            self.pump();
            match self.threads.get_mut(&tid)?.stands.as_mut() {
                Some(why) => return Some(why.take().unwrap_or(Stop::Event)),
                None if began.elapsed() > patience => return None,
                None => {}
            }
            tries += 1;
            if tries < 20 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(20)) }
        }
    }

    /// Holds a thread where it is.
    pub fn hold(&mut self, tid: i32) -> bool {
        let Some(thread) = self.threads.get_mut(&tid) else { return false };
        thread.held = true;
        if thread.stands.is_some() {
            return true;
        }
        let stands = raw::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).is_ok() && self.await_stop(tid, PATIENCE).is_some();
        if !stands && let Some(thread) = self.threads.get_mut(&tid) {
            thread.held = false;
        }
        stands
    }

    /// Lets a thread go.
    pub fn release(&mut self, tid: i32) {
        self.clear_breakpoints(tid);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.held = false;
        }
        self.go_on(tid, libc::PTRACE_CONT);
    }

    /// Holds all threads of a process that are not held yet, for a look, and gives them. With `apart` one after another, the
    /// next some time after the one before stands: the longest a real attach takes for it.
    pub fn hold_rest(&mut self, pid: i32, apart: Option<&mut Chance>) -> Vec<i32> {
        let mut stopped = Vec::new();
        if let Some(chance) = apart {
            let mut rest = self.not_held(pid);
            while !rest.is_empty() {
                let tid = rest.swap_remove(chance.below(rest.len()));
                self.hold(tid);
                stopped.push(tid);
                std::thread::sleep(chance.micros(300));
            }
        }
        loop {
            let rest = self.not_held(pid);
            if rest.is_empty() {
                return stopped;
            }
            for tid in &rest {
                if let Some(t) = self.threads.get_mut(tid) {
                    t.held = true;
                    let _ = raw::ptrace(libc::PTRACE_INTERRUPT, *tid, 0, 0);
                }
            }
            for tid in rest {
                // one in vfork does not come
                self.await_stop(tid, PATIENCE);
                stopped.push(tid);
            }
        }
    }

    fn not_held(&self, pid: i32) -> Vec<i32> {
        self.threads.iter().filter(|(_, t)| t.pid == pid && !t.held).map(|(tid, _)| *tid).collect()
    }

    /// Moves a held thread on by one instruction.
    pub fn step(&mut self, tid: i32) -> Step {
        let Some(registers) = self.registers(tid) else { return Step::Lost };
        let Some(thread) = self.threads.get(&tid) else { return Step::Lost };
        let (pid, signalled) = (thread.pid, thread.signal != 0);
        // a system call that was interrupted is made again first; at its entry its result is ENOSYS
        let result = registers.rax.cast_signed();
        let again = registers.orig_rax.cast_signed() >= 0 && (RESTARTED.contains(&result) || result == -38);
        let class = match self.code.class(pid, registers.rip) {
            _ if again => Class::Syscall,
            _ if signalled => Class::Plain,
            class => class,
        };
        for _ in 0..50 {
            self.steps += 1;
            self.go_on(tid, libc::PTRACE_SINGLESTEP);
            let stop = if class == Class::Syscall { self.await_stop(tid, IN_CALL) } else { self.await_step(tid) };
            match stop {
                Some(Stop::Trap | Stop::Call) => return Step::Did(class),
                // its handler's first instruction is one step on
                Some(Stop::Signal | Stop::Event) => {}
                None if !self.threads.contains_key(&tid) => return Step::Lost,
                None => {
                    let _ = raw::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0);
                    return match self.await_stop(tid, PATIENCE) {
                        Some(Stop::Trap) => Step::Did(class),
                        Some(_) => Step::Asleep,
                        None => self.lose(tid),
                    };
                }
            }
        }
        self.lose(tid)
    }

    fn lose(&mut self, tid: i32) -> Step {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.held = false;
        }
        self.go_on(tid, libc::PTRACE_CONT);
        Step::Lost
    }

    /// Waits for the end of a step that sleeps nowhere.
    fn await_step(&mut self, tid: i32) -> Option<Stop> {
        match raw::wait(tid, 0) {
            Ok(Some((found, status))) => self.take(found, status),
            Ok(None) | Err(Errno::EINTR) => {}
            Err(_) => {
                self.threads.remove(&tid);
            }
        }
        self.threads.get_mut(&tid)?.stands.as_mut().map(|why| why.take().unwrap_or(Stop::Event))
    }

    /// Lets a held thread run to the next entry or return of a system call.
    pub fn run_to_call(&mut self, tid: i32, patience: Duration) -> bool {
        self.run(tid, libc::PTRACE_SYSCALL, patience)
    }

    /// Lets a held thread run to one of its breakpoints.
    pub fn run_to_breakpoint(&mut self, tid: i32, patience: Duration) -> bool {
        self.run(tid, libc::PTRACE_CONT, patience)
    }

    /// Runs it on; false where it had to be stopped.
    fn run(&mut self, tid: i32, how: libc::c_uint, patience: Duration) -> bool {
        let began = Instant::now();
        while let Some(left) = patience.checked_sub(began.elapsed()) {
            self.go_on(tid, how);
            match self.await_stop(tid, left) {
                Some(Stop::Trap | Stop::Call) => return true,
                Some(Stop::Signal | Stop::Event) => {}
                None => break,
            }
        }
        self.hold(tid);
        false
    }

    /// Stops a held thread at up to four instructions when it runs on.
    pub fn set_breakpoints(&mut self, tid: i32, at: &[u64]) {
        let mut enabled = 0;
        for (i, at) in at.iter().take(4).enumerate() {
            let at = usize::try_from(*at).unwrap_or(0);
            if raw::ptrace(libc::PTRACE_POKEUSER, tid, DEBUG_REGISTERS + i * 8, at).is_ok() {
                enabled |= 1 << (i * 2);
            }
        }
        let set = raw::ptrace(libc::PTRACE_POKEUSER, tid, DEBUG_REGISTERS + 7 * 8, enabled).is_ok();
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.breakpoints = set;
        }
    }

    /// Takes them away.
    pub fn clear_breakpoints(&mut self, tid: i32) {
        let Some(thread) = self.threads.get_mut(&tid).filter(|t| t.breakpoints && t.stands.is_some()) else { return };
        thread.breakpoints = false;
        let _ = raw::ptrace(libc::PTRACE_POKEUSER, tid, DEBUG_REGISTERS + 7 * 8, 0);
    }

    /// Lets the threads that are not held run until all of them sleep, or the time is over.
    pub fn settle(&mut self, pid: i32, bound: Duration) {
        let began = Instant::now();
        loop {
            self.pump();
            let mut rest = self.threads.iter().filter(|(_, t)| t.pid == pid && !t.held);
            if !rest.any(|(tid, _)| runs(pid, *tid)) || began.elapsed() >= bound {
                return;
            }
            std::thread::sleep(Duration::from_micros(40));
        }
    }
}

/// Ends the program: threads that are traced are collected one by one before their process is.
impl Drop for Traced {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(10) {
            match raw::wait(-1, libc::WNOHANG) {
                Ok(Some((tid, status))) => self.take(tid, status),
                Ok(None) => std::thread::sleep(Duration::from_micros(200)),
                Err(_) => return,
            }
        }
    }
}

impl Thread {
    fn running(pid: i32) -> Thread {
        Thread { pid, stands: None, signal: 0, held: false, breakpoints: false }
    }
}

fn tasks(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn process_of(tid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("Tgid:"))?.trim().parse().ok()
}

fn runs(pid: i32, tid: i32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    let state = stat.iter().rposition(|b| *b == b')').and_then(|i| stat.get(i + 2));
    state == Some(&b'R')
}
