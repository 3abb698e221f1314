//! A process held still, or looked at as if it were: threads with registers, and memory that keeps what it reads.

use super::Live;
use super::descriptors::blocks;
use super::guarded::PATIENCE;
use super::proc::{Look, SyscallLine, is_device, is_render_node, read_look};
use super::refusal::{cause_of_refusal, read_tracer};
use super::tracer::{Bounds, Caught, Ended, Order, Report, Shared, trace};
use crate::arch::Syscall;
use crate::arch::x86_64::{self, USER_REGS};
use crate::memory::{Kept, Memory, ReadError};
use crate::target::{Files, Mapping, Process, Target, TargetError, ThreadState};
use crate::units::{Addr, HostTid, PAGE};
use nix::errno::Errno;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Limits of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopLimits {
    /// The longest any thread is held, of all processes that are held together; when it is over all are let go, and what was
    /// not read by then is missing.
    pub max_pause: Duration,
    /// The longest to wait for one thread to come to its stop.
    pub per_thread: Duration,
    /// Bytes of live stack read for each thread, from its stack pointer outwards.
    pub max_stack: usize,
}

impl Default for StopLimits {
    fn default() -> StopLimits {
        StopLimits { max_pause: Duration::from_secs(2), per_thread: Duration::from_millis(100), max_stack: 1 << 20 }
    }
}

/// Bytes of stack read in all before each thread's share is cut to [`CUT_STACK`].
const MAX_STACKS: usize = 256 << 20;
/// Bytes of stack for each thread where there are very many deep ones.
const CUT_STACK: usize = 64 << 10;
/// Bytes below the stack pointer that belong to the function (the System V ABI's red zone).
const RED_ZONE: u64 = 128;
/// Bytes from `fs_base` up that hold glibc's `struct pthread` (2,304 to 2,496 in 2.17 to 2.43), in whole pages.
const PTHREAD: u64 = PAGE;
/// Bytes fetched ahead by one [`Memory::expect`] at most; the rest is read when it is asked for.
const MAX_BATCH: usize = 256 << 20;
/// Bytes, and ranges, read by one call at most: between two of them the time is looked at.
const CALL: (usize, usize) = (4 << 20, 1024);
/// Ranges of a render node fetched ahead at most, and bytes of each: every one is a call, and slow.
const MAX_RENDER: (usize, usize) = (256, 4096);

/// A process held still ([`Live::stop`]) or only watched ([`Live::observe`]). Dropping it lets everything run on.
pub struct Stopped<'a> {
    pub(super) live: &'a Live,
    limits: StopLimits,
    pub(super) threads: Vec<ThreadState>,
    /// `syscall` lines as first read, where nothing holds the threads: they must read the same at the end.
    pub(super) watched: Vec<(HostTid, SyscallLine)>,
    pub(super) mappings: Arc<Vec<Mapping>>,
    kept: Mutex<Kept>,
    shared: Arc<Shared>,
    tracer: Option<Tracer>,
    /// The tracer's last word, until there is a tracer.
    ended: Option<Receiver<Ended>>,
    /// How the pause was, once it is over.
    was_held: Option<Ended>,
    calls_before: u64,
    /// Whether there may be threads that are not among [`Stopped::threads`].
    unlisted: bool,
    /// Threads that were not interrupted because the time was over.
    not_reached: usize,
    pub(super) warnings: Vec<String>,
}

/// The running tracer of one process: a word, or this dropped, makes it let go.
struct Tracer {
    done: Sender<usize>,
    /// The number of the process among those it traces.
    number: usize,
    ended: Receiver<Ended>,
    /// The thread that traces, shared by all processes that are held together.
    thread: Arc<TracerThread>,
}

/// The thread that traces. Who drops it last waits for its end, which lets go of what could not be detached.
struct TracerThread(Option<JoinHandle<()>>);

impl Drop for TracerThread {
    fn drop(&mut self) {
        let _ = self.0.take().map(JoinHandle::join);
    }
}

/// What is left of a stop.
pub struct Released {
    /// Every byte read.
    pub kept: Kept,
    /// The threads; where nothing was stopped, those that moved meanwhile have lost their registers.
    pub threads: Vec<ThreadState>,
    /// First interrupt to last detach; zero where nothing was stopped.
    pub pause: Duration,
    /// Lines for the report.
    pub warnings: Vec<String>,
    /// Whether the pause ended before all was read, or memory did not answer.
    pub cut_short: bool,
    /// System calls made while anything was held.
    pub syscalls_in_pause: u64,
    /// The mappings, where they are no longer those read before the stop.
    pub mappings: Option<Vec<Mapping>>,
    /// Whether there may be threads that are not listed.
    pub unlisted: bool,
}

/// Holds every thread of every process and reads its registers, all processes side by side and within one
/// [`StopLimits::max_pause`]. Once it returns, all are held. States, names and counters are read before the first thread
/// notices anything. Threads asleep where nothing interrupts (state D) are left alone and described from `/proc`.
///
/// # Errors
/// For each process: [`TargetError::Refused`] with the one cause found when none of its threads may be traced,
/// [`TargetError::NoSuchProcess`] when it ended.
#[must_use]
pub fn stop_all<'a>(lives: &[&'a Live], limits: &StopLimits) -> Vec<Result<Stopped<'a>, TargetError>> {
    let mut stops: Vec<Result<Stop<'a>, TargetError>> = lives.iter().map(|live| live.prepare_stop(limits)).collect();
    let ready: Vec<&mut Stop<'a>> = stops.iter_mut().flatten().collect();
    let failure = start(ready, limits).err();
    let finish = |stop: Result<Stop<'a>, TargetError>| {
        let mut stop = stop?;
        let Some(report) = stop.report.take() else {
            let source = std::io::Error::other(failure.clone().unwrap_or_else(|| "the tracer ended early".to_owned()));
            return Err(TargetError::Io { what: "tracing".to_string(), source });
        };
        // from here on dropping `stopped` lets go
        let mut stopped = stop.stopped;
        stopped.take(report, &stop.looks)?;
        stopped.renew_mappings();
        Ok(stopped)
    };
    stops.into_iter().map(finish).collect()
}

/// A process about to be held.
struct Stop<'a> {
    stopped: Stopped<'a>,
    looks: Vec<Look>,
    /// What the tracer is to do; taken when it starts.
    order: Option<Order>,
    report: Option<Report>,
}

impl Live {
    /// As [`stop_all`], for one process.
    ///
    /// # Errors
    /// As there.
    pub fn stop(&self, limits: &StopLimits) -> Result<Stopped<'_>, TargetError> {
        stop_all(&[self], limits).pop().unwrap_or(Err(TargetError::NoSuchProcess(self.process.pid)))
    }

    /// Looks at every thread from outside.
    fn prepare_stop(&self, limits: &StopLimits) -> Result<Stop<'_>, TargetError> {
        let pid = self.process.pid;
        let mappings = self.known_mappings()?;
        let mut looks = self.looks();
        // a thread in state D may have been there for an instant only
        for look in looks.iter_mut().filter(|l| l.stat.state == 'D') {
            if let Some(again) = read_look(&self.tasks, look.host_tid) {
                *look = again;
            }
        }
        let another = |l: &Look| l.host_tid.0 == pid.0 && l.stat.began != self.began;
        if looks.is_empty() || looks.iter().any(another) {
            return Err(TargetError::NoSuchProcess(pid));
        }
        if looks.iter().all(|l| l.tracer != 0) {
            return Err(self.refused());
        }
        let mut stopped = Stopped::new(self, limits, mappings);
        stopped.threads = looks.iter().filter_map(|l| why_not(l).map(|why| self.describe(l, Some(why)).0)).collect();
        let (ended, ended_from) = channel();
        let order = Order {
            tasks: self.tasks.clone(),
            threads: looks.iter().map(|l| l.host_tid).collect(),
            skip: stopped.threads.iter().map(|t| t.host_tid).collect(),
            shared: Arc::clone(&stopped.shared),
            ended,
        };
        stopped.ended = Some(ended_from);
        Ok(Stop { stopped, looks, order: Some(order), report: None })
    }

    fn refused(&self) -> TargetError {
        let (cause, remedy) = cause_of_refusal(self.process.pid);
        TargetError::Refused { pid: self.process.pid, cause, remedy }
    }
}

/// Starts the tracer of all these processes and waits for its reports.
fn start(mut stops: Vec<&mut Stop<'_>>, limits: &StopLimits) -> Result<(), String> {
    if stops.is_empty() {
        return Ok(());
    }
    let bounds = Bounds { max_pause: limits.max_pause, per_thread: limits.per_thread };
    let (report_to, reports) = channel();
    let (done, done_from) = channel();
    let orders: Vec<Order> = stops.iter_mut().filter_map(|s| s.order.take()).collect();
    // one read must leave time for others; beyond the limit nobody is held anyway
    let patience = (limits.max_pause / 8).clamp(Duration::from_millis(50), Duration::from_secs(1));
    stops.iter().for_each(|s| s.stopped.live.remote.set_limit(patience));
    let thread = std::thread::Builder::new()
        .name("hangscope".to_string())
        .spawn(move || trace(&orders, bounds, &report_to, &done_from))
        .map_err(|e| format!("starting the tracer: {e}"))?;
    let thread = Arc::new(TracerThread(Some(thread)));
    for (number, stop) in stops.iter_mut().enumerate() {
        let Some(ended) = stop.stopped.ended.take() else { continue };
        stop.stopped.tracer = Some(Tracer { done: done.clone(), number, ended, thread: Arc::clone(&thread) });
    }
    drop(done);
    for (number, report) in reports.iter().take(stops.len()) {
        if let Some(stop) = stops.get_mut(number) {
            stop.report = Some(report);
        }
    }
    Ok(())
}

/// Why a thread is left alone, if it is.
fn why_not(look: &Look) -> Option<String> {
    match look.stat.state {
        'D' => Some("it sleeps in the kernel where nothing interrupts it (state D): no registers".to_string()),
        'Z' | 'X' | 'x' => Some("it has ended; the process lives on in its other threads".to_string()),
        _ if look.tracer != 0 => Some(format!("{} traces it: no registers", read_tracer(look.tracer))),
        _ => None,
    }
}

impl<'a> Stopped<'a> {
    /// Nothing held yet.
    pub(super) fn new(live: &'a Live, limits: &StopLimits, mappings: Arc<Vec<Mapping>>) -> Stopped<'a> {
        Stopped {
            live,
            limits: *limits,
            threads: Vec::new(),
            watched: Vec::new(),
            mappings,
            kept: Mutex::new(Kept::new()),
            shared: Arc::new(Shared::default()),
            tracer: None,
            ended: None,
            was_held: None,
            calls_before: live.remote.remote.calls.load(Ordering::Relaxed),
            unlisted: false,
            not_reached: 0,
            warnings: live.warnings.clone(),
        }
    }

    /// Its threads, ascending by `host_tid`.
    #[must_use]
    pub fn thread_states(&self) -> &[ThreadState] {
        &self.threads
    }

    /// Its memory: every page read is kept. [`Memory::expect`] reads many ranges at once.
    #[must_use]
    pub fn memory(&self) -> &dyn Memory {
        self
    }

    /// Reads the live stack of every thread that has a stack pointer, all in a few calls, and with it the page of its
    /// `struct pthread`. From below the stack pointer to the end of the stack, at most [`StopLimits::max_stack`] bytes each.
    pub fn read_stacks(&self) {
        let stacks: Vec<(Addr, usize)> = self.threads.iter().filter_map(|t| self.live_stack(t)).collect();
        let total = stacks.iter().map(|(_, len)| *len).fold(0usize, usize::saturating_add);
        let share = if total > MAX_STACKS { CUT_STACK } else { usize::MAX };
        let mut ranges: Vec<(Addr, usize)> = stacks.into_iter().map(|(at, len)| (at, len.min(share))).collect();
        let pthreads = self.threads.iter().filter_map(|t| t.registers.as_ref()?.tls_base);
        ranges.extend(pthreads.map(|base| (Addr(base), PTHREAD as usize)));
        self.expect(&ranges);
    }

    /// System calls made since the first interrupt.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.live.remote.remote.calls.load(Ordering::Relaxed).saturating_sub(self.calls_before)
            + self.shared.calls.load(Ordering::Relaxed)
    }

    /// Lets everything run on and gives what was kept.
    #[must_use]
    pub fn release(mut self) -> Released {
        self.let_go();
        let ended = self.was_held;
        let (calls, not_reached) = (self.calls(), self.not_reached);
        let mut warnings = std::mem::take(&mut self.warnings);
        let mut threads = std::mem::take(&mut self.threads);
        match ended {
            Some(ended) => {
                if ended.timed_out {
                    let limit = self.limits.max_pause;
                    warnings.push(format!(
                        "the pause reached its limit of {limit:?}: what was not read by then is missing"
                    ));
                }
                if not_reached > 0 {
                    warnings.push(format!(
                        "{not_reached} of {} threads were not reached within the limit of the pause; a longer --max-pause does",
                        threads.len()
                    ));
                }
                if ended.lost > 0 {
                    warnings.push(format!("{} thread(s) ended while the process was held", ended.lost));
                }
            }
            None => self.drop_moved(&mut threads),
        }
        let silent = self.live.remote.silent();
        warnings.extend(silent.iter().map(|s| s.to_string()));
        let now = self.live.read_mappings().ok().filter(|now| **now != *self.mappings);
        Released {
            kept: std::mem::take(&mut *self.kept()),
            threads,
            pause: ended.and_then(|e| e.pause).unwrap_or_default(),
            warnings,
            cut_short: ended.is_some_and(|e| e.timed_out) || not_reached > 0 || !silent.is_empty(),
            syscalls_in_pause: if ended.is_some() { calls } else { 0 },
            mappings: now.map(|m| m.to_vec()),
            unlisted: self.unlisted,
        }
    }

    /// Lets everything run on, where something is held, and waits until it does. What was kept stays.
    pub fn let_go(&mut self) {
        let Some(Tracer { done, number, ended, thread }) = self.tracer.take() else { return };
        let _ = done.send(number);
        drop(done);
        self.was_held = Some(ended.recv().unwrap_or_default());
        drop(thread);
        self.live.remote.set_limit(PATIENCE);
    }

    /// Books the tracer's report.
    fn take(&mut self, report: Report, looks: &[Look]) -> Result<(), TargetError> {
        let live = self.live;
        if !report.caught.iter().any(|(_, c)| matches!(c, Caught::Held(_) | Caught::Late | Caught::NotReached)) {
            if report.caught.iter().any(|(_, c)| matches!(c, Caught::Refused(_))) {
                return Err(live.refused());
            }
            if self.threads.iter().all(|t| matches!(t.state, Some('Z' | 'X'))) {
                return Err(TargetError::NoSuchProcess(live.process.pid));
            }
        }
        self.not_reached = report.caught.iter().filter(|(_, c)| *c == Caught::NotReached).count();
        // they run: what they make meanwhile is not known
        self.unlisted |= self.not_reached > 0;
        if report.unsettled {
            self.warnings.push("threads were being made faster than they could be held: some may be missing".into());
            self.unlisted = true;
        }
        for (tid, caught) in report.caught {
            // threads that began after the looks are looked at now: there are few
            let look = match looks.binary_search_by_key(&tid, |l| l.host_tid) {
                Ok(i) => looks.get(i).cloned(),
                Err(_) => read_look(&live.tasks, tid),
            };
            if caught == Caught::Gone {
                continue;
            }
            let Some(look) = look else {
                self.warnings.push(format!("thread {tid} could not be looked at and is left out"));
                self.unlisted = true;
                continue;
            };
            let state = match caught {
                Caught::Held(bytes) => {
                    let mut state = held(&look, &bytes);
                    state.syscall = state.syscall.or_else(|| self.cut_write(&state));
                    state
                }
                Caught::Gone => continue,
                Caught::Late => live.describe(&look, Some("it did not come to a stop in time: no registers".into())).0,
                Caught::NotReached => {
                    live.describe(&look, Some("the limit of the pause came before its turn: no registers".into())).0
                }
                Caught::Refused(Errno::EPERM) => {
                    let again = read_look(&live.tasks, tid).unwrap_or(look);
                    let why = why_not(&again).unwrap_or_else(|| "tracing it was refused: no registers".to_string());
                    live.describe(&again, Some(why)).0
                }
                Caught::Refused(e) => live.describe(&look, Some(format!("tracing it failed ({e}): no registers"))).0,
            };
            self.threads.push(state);
        }
        self.threads.sort_by_key(|t| t.host_tid);
        Ok(())
    }

    /// The write a thread slept in until our stop ended it with a part of it written.
    fn cut_write(&self, thread: &ThreadState) -> Option<Syscall> {
        let call = x86_64::interrupted_write(thread.registers.as_ref().filter(|_| thread.state == Some('S'))?)?;
        let [fd, ..] = call.args;
        // open, read, close; few threads come here
        self.shared.calls.fetch_add(3, Ordering::Relaxed);
        blocks(&self.live.directory, i32::try_from(fd).ok()?).then_some(call)
    }

    /// Reads the mappings again when a thread stands or has its stack where none was known.
    pub(super) fn renew_mappings(&mut self) {
        let known = |at: u64| mapping_at(&self.mappings, Addr(at)).is_some();
        let strange = |t: &ThreadState| {
            t.registers.as_ref().is_some_and(|r| !r.sp().is_none_or(known) || !r.pc().is_none_or(known))
        };
        if self.threads.iter().any(strange)
            && let Ok(new) = self.live.read_mappings()
        {
            // open, reads of a page each, close: about 40 mappings a page
            self.shared.calls.fetch_add(2 + new.len() as u64 / 40, Ordering::Relaxed);
            self.mappings = new;
        }
    }

    /// The live part of a thread's stack: from the page of its red zone to the end of its stack.
    fn live_stack(&self, thread: &ThreadState) -> Option<(Addr, usize)> {
        let sp = thread.registers.as_ref().and_then(|r| r.sp()).or(thread.sp_pc.map(|(sp, _)| sp))?;
        let mapping = mapping_at(&self.mappings, Addr(sp)).filter(|m| m.permissions.read)?;
        let start = Addr(sp.saturating_sub(RED_ZONE)).page().max(mapping.start);
        let end = self.end_of_stack(mapping, start);
        // a thread made by glibc has its struct pthread at the very top of its stack's mapping
        let base = thread.registers.as_ref().and_then(|r| r.tls_base).filter(|b| sp <= *b && Addr(*b) < end);
        let top = base.map_or(end, |b| Addr(b.saturating_add(PTHREAD)).min(end));
        let len = usize::try_from(top.0.saturating_sub(start.0)).ok()?;
        Some((start, len.min(self.limits.max_stack)))
    }

    /// Where a stack that begins in `mapping` ends: one whose pages were advised about, or registered with userfaultfd, lies
    /// in several mappings.
    fn end_of_stack(&self, mapping: &Mapping, start: Addr) -> Addr {
        let mut end = mapping.end;
        while end.0.saturating_sub(start.0) < self.limits.max_stack as u64
            && let Some(next) = mapping_at(&self.mappings, end)
            && next.start == end
            && (next.permissions, &next.path, next.inode) == (mapping.permissions, &mapping.path, mapping.inode)
        {
            end = next.end;
        }
        end
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of `ranges` is readable and not kept yet, in whole pages, touching ones joined.
    fn missing_pages(&self, ranges: &[(Addr, usize)]) -> Vec<(Addr, usize)> {
        let mut wanted: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        let kept = self.kept();
        for (at, len) in ranges.iter().filter(|(at, len)| !kept.covers(*at, *len)) {
            let end = at.0.saturating_add(*len as u64);
            let (mut from, end) = (at.page().0, end.checked_next_multiple_of(PAGE).unwrap_or(end));
            while let Some(m) = (from < end).then(|| mapping_at(&self.mappings, Addr(from))).flatten() {
                let upto = end.min(m.end.0);
                if m.permissions.read && !is_device(m) && !is_render_node(m) {
                    wanted.push((from, upto));
                }
                from = upto;
            }
        }
        wanted.sort_unstable();
        let mut out: Vec<(Addr, usize)> = Vec::with_capacity(wanted.len());
        let mut room = MAX_BATCH;
        let mut reached = 0;
        for (from, upto) in wanted {
            let from = from.max(reached);
            reached = reached.max(upto);
            let Some(len) = upto.checked_sub(from).and_then(|l| usize::try_from(l).ok()) else { continue };
            let len = len.min(room);
            if len == 0 || kept.covers(Addr(from), len) {
                continue;
            }
            room -= len;
            match out.last_mut() {
                Some((at, had)) if at.0.saturating_add(*had as u64) == from => *had += len,
                _ => out.push((Addr(from), len)),
            }
        }
        out
    }

    /// Whether nothing is held any more, so that nothing more can be read of that instant.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.released.load(Ordering::SeqCst)
    }

    /// Reads into `buf` and keeps just that, unless the process ran on meanwhile.
    fn keep_single(&self, at: Addr, buf: &mut [u8], by_mem: bool) -> Result<(), ReadError> {
        if self.is_over() {
            return Err(ReadError::Released(at));
        }
        self.live.remote.read(at, buf, by_mem, &self.mappings)?;
        if self.is_over() {
            return Err(ReadError::Released(at));
        }
        self.kept().keep(at, buf);
        Ok(())
    }

    /// Reads ranges of whole pages and keeps them, as far as the process did not run on meanwhile.
    fn fetch(&self, ranges: &[(Addr, usize)]) -> Result<(), ReadError> {
        for part in calls_for(ranges) {
            let released = ReadError::Released(part.first().map_or(Addr::NULL, |r| r.0));
            if self.is_over() {
                return Err(released);
            }
            let (bytes, pieces) = self.live.remote.read_ranges(&part, &self.mappings);
            if self.is_over() {
                return Err(released);
            }
            self.kept().keep_buffer(bytes, &pieces);
        }
        Ok(())
    }
}

/// Ranges split into calls that do not take long.
fn calls_for(ranges: &[(Addr, usize)]) -> Vec<Vec<(Addr, usize)>> {
    let (bytes, many) = CALL;
    let mut calls: Vec<Vec<(Addr, usize)>> = Vec::new();
    let mut room = 0;
    for (at, len) in ranges {
        let (mut at, mut rest) = (*at, *len);
        while rest > 0 {
            if room == 0 || calls.last().is_none_or(|c| c.len() >= many) {
                calls.push(Vec::new());
                room = bytes;
            }
            let part = rest.min(room);
            if let Some(call) = calls.last_mut() {
                call.push((at, part));
            }
            (at, rest, room) = (at.offset(i64::try_from(part).unwrap_or(i64::MAX)), rest - part, room - part);
        }
    }
    calls
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Memory for Stopped<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        if self.kept().read(at, buf).is_ok() {
            return Ok(());
        }
        let ranges = self.missing_pages(&[(at, buf.len())]);
        if !ranges.is_empty() {
            self.fetch(&ranges)?;
        }
        let missing = {
            let kept = self.kept();
            match kept.missing(at, buf.len()) {
                None => return kept.read(at, buf),
                Some(missing) => missing,
            }
        };
        // what the batch did not give: find out why, or have it another way
        match mapping_at(&self.mappings, missing) {
            None => Err(ReadError::Unmapped(missing)),
            Some(m) if is_device(m) => Err(ReadError::Refused(missing)),
            Some(m) if is_render_node(m) || !m.permissions.read => {
                // nothing else is to be touched on the way
                let inside = m.contains(at) && at.checked_add(buf.len() as u64).is_some_and(|end| end <= m.end);
                if !inside {
                    return Err(ReadError::Unmapped(missing));
                }
                self.keep_single(at, buf, true)
            }
            Some(_) => self.keep_single(at, buf, false),
        }
    }

    fn expect(&self, ranges: &[(Addr, usize)]) {
        let pages = self.missing_pages(ranges);
        if !pages.is_empty() {
            let _ = self.fetch(&pages);
        }
        let on_render_node = |at: Addr| mapping_at(&self.mappings, at).is_some_and(is_render_node);
        let (count, len) = MAX_RENDER;
        for (at, len) in ranges.iter().filter(|r| r.1 <= len && on_render_node(r.0)).take(count) {
            let _ = self.read(*at, &mut vec![0; *len]);
        }
    }
}

impl Target for Stopped<'_> {
    fn process(&self) -> &Process {
        &self.live.process
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(self.threads.clone())
    }

    /// As read before the stop, and again if a thread stood where none was known.
    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(self.mappings.to_vec())
    }

    fn files(&self) -> Arc<dyn Files> {
        self.live.files()
    }

    fn may_lack_threads(&self) -> bool {
        self.unlisted
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

/// A held thread.
fn held(look: &Look, bytes: &[u8]) -> ThreadState {
    let registers = x86_64::parse_user_regs(bytes);
    let missing = registers.is_none().then(|| match bytes.len() {
        68 => "it runs 32-bit code: no registers".to_string(),
        n => format!("its registers came as {n} bytes instead of {USER_REGS}"),
    });
    ThreadState {
        tid: look.tid,
        host_tid: look.host_tid,
        name: Some(look.stat.name.clone()),
        state: Some(look.stat.state),
        syscall: registers.as_ref().and_then(x86_64::sleeping_syscall),
        registers,
        sp_pc: None,
        wchan: None,
        progress: look.progress,
        missing,
    }
}

/// The mapping that holds `at`.
pub(super) fn mapping_at(mappings: &[Mapping], at: Addr) -> Option<&Mapping> {
    let i = mappings.partition_point(|m| m.end <= at);
    mappings.get(i).filter(|m| m.contains(at))
}
