//! The same as a stop without stopping: what `/proc` and memory give of threads that sleep.

use super::Live;
use super::proc::{SyscallLine, in_parallel, read_look, read_syscall};
use super::stopped::{StopLimits, Stopped, mapping_at};
use crate::arch::x86_64;
use crate::arch::{Arch, RegisterFile, ThreadRegisters};
use crate::memory::{i32_at, u64_at};
use crate::target::{Mapping, Progress, TargetError, ThreadState};
use crate::units::{Addr, HostTid, PAGE, PthreadT, Tid};
use std::collections::{BTreeMap, BTreeSet};

impl Live {
    /// Gives the same as [`Live::stop`] without stopping or tracing anything. Registers are those a thread asleep in a
    /// system call shows in `/proc`: program counter, stack pointer and arguments. [`Stopped::release`] checks that each
    /// thread still sleeps in the same call, and takes the registers of those that moved away again.
    ///
    /// # Errors
    /// [`TargetError::NoSuchProcess`] when the process ended; as [`Live::open`] for its mappings.
    pub fn observe(&self, limits: &StopLimits) -> Result<Stopped<'_>, TargetError> {
        let mappings = self.known_mappings()?;
        let mut threads = Vec::new();
        let mut watched = Vec::new();
        for (mut state, line) in in_parallel(&self.looks(), |look| self.describe(look, None)) {
            match line {
                Some(line @ SyscallLine::In { .. }) => {
                    state.registers = Some(registers_of(&line));
                    watched.push((state.host_tid, line));
                }
                Some(SyscallLine::Running) => state.missing = Some("it runs: no registers without stopping it".into()),
                _ => {}
            }
            threads.push(state);
        }
        if threads.is_empty() {
            return Err(TargetError::NoSuchProcess(self.process.pid));
        }
        let mut warnings = self.warnings.clone();
        warnings.push("nothing was stopped: registers are those /proc shows for sleeping threads".to_string());
        if let Some(e) = self.remote.remote.refused() {
            warnings.push(format!("the memory of process {} may not be read: {e}", self.process.pid));
        }
        let mut stopped = Stopped::new(self, limits, mappings);
        (stopped.threads, stopped.watched, stopped.warnings) = (threads, watched, warnings);
        stopped.renew_mappings();
        stopped.find_thread_pointers();
        Ok(stopped)
    }
}

impl Stopped<'_> {
    /// Where nothing is stopped: takes the registers from threads that moved since they were first looked at.
    ///
    /// The same call with the same arguments is not enough: a thread that takes a lock again and again comes back to the same
    /// wait, and what was read of it in between would prove a lock held that it waits for. So it must not have run at all,
    /// except to begin a futex wait with a time-out anew (as every wait for the GIL does, each 5 ms): such a thread still
    /// waits for what somebody else holds, and a cycle stands only if that one did not run.
    pub(super) fn drop_moved(&self, threads: &mut [ThreadState]) {
        let progress: BTreeMap<HostTid, Option<Progress>> = threads.iter().map(|t| (t.host_tid, t.progress)).collect();
        let has_moved = |tid: HostTid, line: &SyscallLine| {
            if read_syscall(&self.live.tasks, tid).ok().flatten().as_ref() != Some(line) {
                return true;
            }
            let before = progress.get(&tid).copied().flatten();
            let now = || read_look(&self.live.tasks, tid).and_then(|look| look.progress);
            !is_timed_futex(line) && before.is_some() && before != now()
        };
        let moved: BTreeSet<HostTid> =
            self.watched.iter().filter(|(tid, line)| has_moved(*tid, line)).map(|(tid, _)| *tid).collect();
        for t in threads.iter_mut().filter(|t| moved.contains(&t.host_tid)) {
            t.registers = None;
            t.syscall = None;
            t.sp_pc = None;
            t.wchan = None;
            t.missing = Some("it moved while it was read without being stopped".to_string());
        }
    }

    /// `/proc` does not tell `fs_base`. With glibc it is the address of the thread's `struct pthread`, which lies near the
    /// top of the thread's stack; the first thread's lies at the end of an anonymous mapping, or at the heap's start in a static
    /// program. Where two claim to be the same thread's, none is taken.
    fn find_thread_pointers(&mut self) {
        const PAGES: u64 = 2;
        const TOP: u64 = 64 << 10;
        const ENDS: usize = 64;
        let stacks = self.threads.iter().filter_map(|t| {
            let sp = t.registers.as_ref()?.sp()?;
            let m = mapping_at(&self.mappings, Addr(sp)).filter(|m| m.path.is_none())?;
            Some((Addr(m.end.0.saturating_sub(PAGES * PAGE)).max(m.start), m.end))
        });
        let private = |m: &&Mapping| m.permissions.write && !m.permissions.shared;
        // later mappings may have been joined to its lower end; it was among the first made, and those lie highest
        let anonymous = self.mappings.iter().rev().filter(private).filter(|m| m.path.is_none());
        let ends = anonymous.map(|m| (Addr(m.end.0.saturating_sub(TOP)).max(m.start), m.end)).take(ENDS);
        let heap = self.mappings.iter().filter(|m| m.path.as_ref().is_some_and(|p| p.as_os_str() == "[heap]"));
        let heads = heap.map(|m| (m.start, m.end.min(m.start.offset((PAGES * PAGE) as i64))));
        let mut places: Vec<(Addr, Addr)> = stacks.chain(ends).chain(heads).collect();
        places.sort_unstable();
        places.dedup();
        let ranges: Vec<(Addr, usize)> = places
            .into_iter()
            .filter_map(|(at, end)| Some((at, usize::try_from(end.0.checked_sub(at.0)?).ok()?)))
            .collect();
        let (bytes, pieces) = self.live.remote.read_ranges(&ranges, &self.mappings);
        let mut found: BTreeMap<Tid, Option<Addr>> = BTreeMap::new();
        for (at, from, len) in pieces {
            let piece = bytes.get(from..from.saturating_add(len)).unwrap_or(&[]);
            for (tid, base) in find_pthreads(at, piece) {
                found.entry(tid).and_modify(|b| *b = b.filter(|b| *b == base)).or_insert(Some(base));
            }
        }
        for t in &mut self.threads {
            if let (Some(r), Some(Some(base))) = (&mut t.registers, found.get(&t.tid)) {
                r.tls_base = Some(base.0);
            }
        }
    }
}

/// Waits on a futex with a time-out: its fourth argument points at one. A wait that the kernel restarts had one too.
fn is_timed_futex(line: &SyscallLine) -> bool {
    let Some(call) = line.call() else { return false };
    let [_, _, _, timeout, ..] = call.args;
    call.number.is_none() || (call.number == Some(x86_64::SYS_FUTEX) && timeout != 0)
}

/// The registers a `syscall` line tells. What it does not tell stays unknown; there are no raw bytes.
fn registers_of(line: &SyscallLine) -> ThreadRegisters {
    let mut file = RegisterFile::default();
    if let Some((sp, pc)) = line.sp_pc() {
        file.write(x86_64::RSP, sp);
        file.write(x86_64::RIP, pc);
    }
    let call = line.call();
    if let Some(call) = call {
        let regs = [x86_64::RDI, x86_64::RSI, x86_64::RDX, x86_64::R10, x86_64::R8, x86_64::R9];
        for (reg, value) in regs.into_iter().zip(call.args) {
            file.write(reg, value);
        }
    }
    let number = call.map(|c| c.number.unwrap_or(x86_64::RESTART_SYSCALL)).and_then(|n| i64::try_from(n).ok());
    ThreadRegisters { arch: Arch::X86_64, file, tls_base: None, syscall_register: number, raw: Vec::new() }
}

/// Finds every glibc `struct pthread` in `bytes`, which stood at `at`: it points at itself, twice, and holds its
/// thread's id.
fn find_pthreads(at: Addr, bytes: &[u8]) -> Vec<(Tid, Addr)> {
    let first = usize::try_from(at.0.wrapping_neg() % 64).unwrap_or(0);
    // it is aligned to a cache line
    (first..bytes.len())
        .step_by(64)
        .filter_map(|from| {
            let here = at.checked_add(from as u64)?;
            let itself = u64_at(bytes, from)? == here.0 && u64_at(bytes, from + PthreadT::SELF as usize)? == here.0;
            let tid = i32_at(bytes, from + PthreadT::TID as usize).filter(|tid| *tid > 0 && itself)?;
            Some((Tid(tid), here))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::live::proc::parse_syscall;

    #[test]
    fn only_a_futex_wait_with_a_time_out_may_begin_anew() {
        let timed = |line: &[u8]| is_timed_futex(&parse_syscall(line).unwrap());
        assert!(timed(b"202 0x7f00 0x189 0x0 0x7f9d0f475e40 0x0 0xffffffff 0x7ffe10 0x7f22"));
        assert!(timed(b"219 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffe10 0x7f22"));
        assert!(!timed(b"202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffe10 0x7f22"));
        assert!(!timed(b"232 0x4 0x7f00 0x1 0x64 0x0 0x0 0x7ffe10 0x7f22"));
    }

    #[test]
    fn a_struct_pthread_is_known_by_pointing_at_itself() {
        let at = Addr(0x7f00_0000_0020);
        let mut bytes = vec![0u8; 0x1000];
        let mut put = |offset: usize, value: u64| bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        let whole = 0xa0; // 0x7f00000000c0, a multiple of 64
        put(whole, at.0 + whole as u64);
        put(whole + 0x10, at.0 + whole as u64);
        put(whole + 0x2d0, 77);
        let only_once = 0x4a0;
        put(only_once, at.0 + only_once as u64);
        put(only_once + 0x2d0, 78);
        let without_thread = 0x8a0;
        put(without_thread, at.0 + without_thread as u64);
        put(without_thread + 0x10, at.0 + without_thread as u64);
        assert_eq!(find_pthreads(at, &bytes), [(Tid(77), Addr(0x7f00_0000_00c0))]);
    }
}
