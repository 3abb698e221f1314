//! Which threads wait for the device, and on what: from the kernel driver's call, or from the library's call they spin in.

use super::calls::{Call, Calls};
use super::device::Device;
use super::signals::Signal;
use crate::arch::Syscall;
use crate::arch::x86_64::{CALLEE_SAVED, RSP};
use crate::facts::{
    Certainty, DeviceWait, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind,
    Timeout, Wait, Wakers,
};
use crate::layout::{Layouts, StructLayout, Subject};
use crate::memory::{Memory, MemoryExt};
use crate::runtimes::View;
use crate::units::{Addr, FrameIx};
use crate::unwind::Frame;
use std::collections::BTreeMap;

/// `ioctl`, and the calls a polling loop makes.
const IOCTL: u64 = 16;
const FUTEX: u64 = 202;
const PAUSES: [u64; 3] = [24, 35, 230];
/// Events of one wait that are read; bytes of the stack looked through for a signal.
const MAX_EVENTS: u64 = 4096;
const MAX_STACK: u64 = 16 << 10;
/// Milliseconds from which on the driver is asked to wait for ever (the HSA runtime passes this and asks again).
const FOR_EVER: u64 = 0xffff_fffe;
/// What is said where the device has nothing to do at all.
const NO_QUEUE: &str = "there is no queue, the program is to set it";
/// Marks a number that is a thread's.
const OWN: u64 = 1 << 40;

/// A wait in the kernel driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EventWait {
    /// Where its arguments lie.
    pub args: Addr,
    /// The events, as far as they could be read.
    pub events: Vec<u32>,
    /// How many there are.
    pub count: u64,
    /// Whether all of them must come.
    pub all: bool,
    /// Milliseconds at most; absent: for ever.
    pub timeout: Option<u64>,
}

fn args_layout() -> Option<&'static StructLayout> {
    Layouts::rocm().layout("kfd_ioctl_wait_events_args", &Subject::default())
}

/// Where the arguments of the driver's wait lie, if `call` is one.
pub(super) fn wait_events_args(call: &Syscall) -> Option<(Addr, usize)> {
    let [_, request, args, ..] = call.args;
    let is_wait = call.number == Some(IOCTL) && Some(request & 0xffff_ffff) == Layouts::rocm().number("wait_events");
    is_wait.then(|| Some((Addr(args), usize::try_from(args_layout()?.size?).ok()?)))?
}

/// Where the events of a wait lie.
pub(super) fn events_range(memory: &dyn Memory, args: Addr) -> Option<(Addr, usize)> {
    let image = args_layout()?.read(memory, args)?;
    let each = Layouts::rocm().layout("kfd_event_data", &Subject::default())?.size?;
    let bytes = image.word("num_events")?.min(MAX_EVENTS).checked_mul(each)?;
    Some((Addr(image.word("events_ptr")?), usize::try_from(bytes).ok()?))
}

impl EventWait {
    /// Reads the arguments of `call`. Where they cannot be read the wait is one for nothing known.
    pub fn read(memory: &dyn Memory, call: &Syscall) -> Option<EventWait> {
        let (args, _) = wait_events_args(call)?;
        let mut wait = EventWait { args, events: Vec::new(), count: 0, all: false, timeout: None };
        let Some(image) = args_layout()?.read(memory, args) else { return Some(wait) };
        wait.count = image.word("num_events")?;
        wait.all = image.word("wait_for_all")? != 0;
        wait.timeout = image.word("timeout").filter(|ms| *ms < FOR_EVER);
        let event = Layouts::rocm().layout("kfd_event_data", &Subject::default())?;
        let (field, each) = (event.field("event_id")?, usize::try_from(event.size?).ok()?);
        let bytes = events_range(memory, args).and_then(|(at, len)| memory.read_vec(at, len).ok()).unwrap_or_default();
        let ids = bytes.chunks_exact(each).filter_map(|e| u32::try_from(field.word_of(e)?).ok());
        wait.events = ids.collect();
        Some(wait)
    }
}

/// One instant's waits for the device.
pub(super) struct Waits<'a> {
    pub view: &'a View<'a>,
    pub calls: &'a Calls<'a>,
    pub device: &'a Device<'a>,
}

/// What a thread was found to wait for.
struct Found {
    resource: Resource,
    timeout: Timeout,
    evidence: Vec<Evidence>,
    device: DeviceWait,
    signal: Option<Addr>,
}

impl Waits<'_> {
    pub fn decode(&self, facts: &mut Facts) {
        let callbacks = self.in_callbacks();
        for index in 0..self.view.snapshot.threads.len() {
            let calls = self.calls.of(index);
            let Some(mut found) = self.of(index, &calls) else { continue };
            let thread = self.view.thread(index);
            if let (Some(signal), [callback]) = (found.signal, callbacks.as_slice())
                && let Some(hold) = self.host_hold(signal, *callback, found.resource.id)
            {
                found.resource.wakers = Wakers::Holders;
                facts.holds.push(hold);
            }
            facts.waits.push(Wait {
                thread,
                on: found.resource.id,
                mode: Mode::Exclusive,
                timeout: found.timeout,
                frame: edge(&calls),
                managed_frame: None,
                evidence: found.evidence,
            });
            facts.resources.push(found.resource);
            facts.devices.insert(thread, found.device);
        }
    }

    fn of(&self, index: usize, calls: &[Call]) -> Option<Found> {
        let syscall = self.view.syscall(index);
        if let Some(wait) = syscall.and_then(|call| EventWait::read(self.view.memory, &call)) {
            return Some(self.asleep(index, calls, &wait));
        }
        // further in than the library there is nothing but the C library: else it called back, and that is what waits
        let innermost = calls.first().filter(|c| self.only_libc(index, c.frames.start))?;
        let call = syscall.and_then(|call| call.number);
        let polls = match syscall {
            None => true,
            Some(_) => call.is_some_and(|n| PAUSES.contains(&n)),
        };
        if innermost.domain != "hsa" {
            return self.by_name(index, calls, polls);
        }
        if polls {
            return self.spinning(index, calls, innermost);
        }
        // between two waits it prepares the next: no more of a progress; a lock it sleeps for is another's to tell
        let works = call != Some(FUTEX) && self.is_service(index, calls);
        works.then(|| self.service(index, 0, vec![Evidence::new("it is between two waits for the GPU's events")]))
    }

    /// Whether the frames further in than `end` are the C library's or the kernel's.
    fn only_libc(&self, index: usize, end: usize) -> bool {
        let inside = self.calls.frames(index).get(..end).unwrap_or(&[]);
        inside.iter().all(|f| {
            let module = f.module.and_then(|ix| self.view.snapshot.module(ix)).map_or("", |m| m.name());
            ["libc.so", "libc-2", "libpthread", "[vdso]", "ld-linux"].iter().any(|p| module.starts_with(p))
        })
    }

    /// Whether the thread is the HSA runtime's own: it does nothing but wait for events and hand them on.
    fn is_service(&self, index: usize, calls: &[Call]) -> bool {
        let Some(outermost) = calls.last().filter(|_| calls.iter().all(|c| c.domain == "hsa")) else { return false };
        let beyond = self.calls.frames(index).get(outermost.frames.end..).unwrap_or(&[]);
        let begins = |f: &Frame| {
            let module = f.module.and_then(|ix| self.view.snapshot.module(ix)).map_or("", |m| m.name());
            ["libc.so", "libc-2", "libpthread"].iter().any(|p| module.starts_with(p))
        };
        outermost.function.as_deref().is_none_or(|f| !f.starts_with("hsa_")) && beyond.iter().all(begins)
    }

    /// The HSA runtime's own threads that run a callback: code of others further in than its own.
    fn in_callbacks(&self) -> Vec<usize> {
        let all = 0..self.view.snapshot.threads.len();
        all.filter(|index| {
            let calls = self.calls.of(*index);
            let Some(own) = calls.last() else { return false };
            self.is_service(*index, std::slice::from_ref(own)) && !self.only_libc(*index, own.frames.start)
        })
        .filter(|index| self.view.syscall(*index).is_none_or(|call| wait_events_args(&call).is_none()))
        .collect()
    }

    /// Whether the stack of the thread at `index`, from its innermost frame to its outermost one in the libraries, or the
    /// registers its frames keep name the signal.
    fn mentions(&self, index: usize, signal: &Signal) -> bool {
        let calls = self.calls.of(index);
        let frames = self.calls.frames(index).get(..calls.last().map_or(0, |c| c.frames.end)).unwrap_or(&[]);
        let (Some(first), Some(last)) = (frames.first(), frames.last()) else { return false };
        let kept = frames.iter().flat_map(|f| CALLEE_SAVED.iter().filter_map(|r| f.registers.read(*r)));
        let mut words = kept.chain(self.words_between(first, last));
        words.any(|w| self.device.signals.named_by(w).is_some_and(|s| s.at == signal.at))
    }

    /// The words of the stack from where one frame begins to where another, further out, ends.
    fn words_between(&self, first: &Frame, last: &Frame) -> Vec<u64> {
        let Some((sp, cfa)) = first.registers.read(RSP).zip(last.cfa) else { return Vec::new() };
        let len = usize::try_from(cfa.0.saturating_sub(sp).min(MAX_STACK)).unwrap_or(0);
        let bytes = self.view.memory.read_vec(Addr(sp), len).unwrap_or_default();
        bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?))).collect()
    }

    /// What tells that the device waits for a callback, which the thread at `callback` runs: inferred, since nothing records
    /// which callback is to set the signal.
    fn host_hold(&self, signal: Addr, callback: usize, of: ResourceId) -> Option<Hold> {
        let (needed, said) = self.device.needs_host(signal)?;
        // some other callback, or none, may be what is to set it
        if !self.mentions(callback, &needed) {
            return None;
        }
        let tid = self.view.snapshot.threads.get(callback)?.tid;
        let calls = self.calls.of(callback);
        let taken_at = calls.last().and_then(|c| u32::try_from(c.frames.start).ok()).map(FrameIx);
        Some(Hold {
            holder: Holder::Thread(self.view.thread(callback)),
            of,
            mode: Mode::Exclusive,
            certainty: Certainty::Inferred,
            taken_at,
            taken_at_managed: None,
            evidence: vec![
                Evidence::new(format!("{said}, so that the program is to set it")),
                Evidence::new(format!(
                    "thread {tid}, the HSA runtime's own, is in a callback, and HIP's frames beneath it hold signal {}",
                    needed.at
                )),
            ],
        })
    }

    /// Asleep in the driver.
    fn asleep(&self, index: usize, calls: &[Call], wait: &EventWait) -> Found {
        let count = if wait.count == 1 { "1 event".to_owned() } else { format!("{} events", wait.count) };
        let of = if wait.all { "all of " } else { "any of " };
        let of = if wait.count == 1 { "" } else { of };
        let said = format!("ioctl(AMDKFD_IOC_WAIT_EVENTS) for {of}{count}, its arguments at {}", wait.args);
        let mut evidence = vec![Evidence::new(said)];
        // without a stack nothing tells the runtime's own thread from another: only who waits for one event is believed
        if self.is_service(index, calls) || (calls.is_empty() && !(wait.all && wait.count == 1)) {
            return self.service(index, wait.count, evidence);
        }
        let timeout = wait.timeout.map_or(Timeout::None, |ms| Timeout::Seconds(ms as f64 / 1e3));
        let candidates: Vec<Signal> = wait.events.iter().flat_map(|e| self.device.signals.of_event(*e)).collect();
        let signal = self.choose(index, calls, &candidates);
        if let (Some(signal), [event]) = (&signal, wait.events.as_slice()) {
            evidence.push(Evidence::new(format!("event {event} is that of signal {}", signal.at)));
        }
        self.found(index, calls, signal, false, timeout, evidence)
    }

    fn service(&self, index: usize, count: u64, evidence: Vec<Evidence>) -> Found {
        let name = match count {
            0 => "the GPU's events (the HSA runtime's own thread)".to_owned(),
            n => format!("any of {n} of the GPU's events (the HSA runtime's own thread)"),
        };
        let mut resource = self.own(index, ResourceKind::GpuSignal, name);
        resource.idle = true;
        // nothing it does says that the program gets on
        let device = DeviceWait { polls: true, pulse: vec![0], ..DeviceWait::default() };
        Found { resource, timeout: Timeout::None, evidence, device, signal: None }
    }

    /// In a loop inside the HSA runtime.
    fn spinning(&self, index: usize, calls: &[Call], innermost: &Call) -> Option<Found> {
        let evidence = |call: &str| vec![Evidence::new(format!("it polls, in {call}: it runs and does not get on"))];
        if self.is_service(index, calls) {
            return Some(self.service(index, 0, evidence("the HSA runtime's event thread")));
        }
        // a call that only looks whether the device is done returns at once
        if calls.iter().filter_map(Call::signature).any(|s| s.means.word("looks").is_some()) {
            return None;
        }
        let always = innermost.signature().is_some_and(|s| s.means.word("always").is_some());
        let signal = self.choose(index, calls, &[]);
        // calls that do other work as well wait only where a signal that is not done says so
        let waits = innermost.waits().is_some() && (always || signal.is_some_and(|s| s.value > 0));
        let function = innermost.function.as_deref().unwrap_or("the HSA runtime");
        waits.then(|| self.found(index, calls, signal, true, Timeout::None, evidence(function)))
    }

    /// In a library of which the names are all we know.
    fn by_name(&self, index: usize, calls: &[Call], polls: bool) -> Option<Found> {
        let innermost = calls.first()?;
        if innermost.domain == "hip"
            && polls
            && let Some(found) = self.full_queue(index, calls)
        {
            return Some(found);
        }
        let call = calls.iter().take_while(|c| c.domain == innermost.domain).filter(|c| c.waits().is_some()).last()?;
        let sleeps = self.view.syscall(index).and_then(|c| c.number).is_some_and(|n| ASLEEP.contains(&n));
        if call.domain == "hip" {
            return if polls { self.polling_hip(index, calls, call) } else { None };
        }
        if !(polls || sleeps) {
            return None;
        }
        let function = call.function.as_deref()?;
        let until = call.signature()?.means.word("until")?;
        let kind = if call.waits() == Some("collective") { ResourceKind::Collective } else { ResourceKind::GpuStream };
        let what = if kind == ResourceKind::Collective { "the other ranks" } else { "the GPU" };
        let how = if polls { "polls" } else { "sleeps" };
        let evidence = vec![Evidence::new(format!("it {how} in {function}, which returns when {until}"))];
        let device = DeviceWait { polls, ..DeviceWait::default() };
        Some(Found {
            resource: self.own(index, kind, what.to_owned()),
            timeout: Timeout::None,
            evidence,
            device,
            signal: None,
        })
    }

    /// In a loop inside HIP itself, which since 6.4 polls a word of its own for some calls. Told only of calls that do
    /// nothing but wait, and where a queue has work pending: whether the device gets on, the queues tell.
    fn polling_hip(&self, index: usize, calls: &[Call], call: &Call) -> Option<Found> {
        let signature = call.signature().filter(|s| s.means.word("synchronises").is_some())?;
        let function = call.function.as_deref()?;
        let waiting: Vec<_> = self.device.waiting().collect();
        if waiting.is_empty() || !self.yields(index, calls) {
            return None;
        }
        let until = signature.means.word("until")?;
        let said = format!("it polls in {function}, which returns when {until}: it runs and does not get on");
        let device = DeviceWait {
            polls: true,
            over: false,
            pulse: self.device.any_pulse(),
            state: waiting.iter().take(3).flat_map(|r| self.device.describe_queue(r)).collect(),
            program: false,
            collective: self.device.waits_for_ranks(None),
            brief: self.device.brief(None),
        };
        let evidence = vec![Evidence::new(said)];
        let resource = self.own(index, ResourceKind::GpuStream, "the GPU".to_owned());
        Some(Found { resource, timeout: Timeout::None, evidence, device, signal: None })
    }

    /// In a loop inside HIP until a queue, which is full, has room for another packet (ROCclr device/rocm/rocvirtual.cpp,
    /// dispatchGenericAqlPacket: it asks for an index, then yields until the device has come near enough).
    fn full_queue(&self, index: usize, calls: &[Call]) -> Option<Found> {
        let mut full = self.device.rings.iter().filter(|r| r.queue.is_full());
        let ring = full.next().filter(|_| full.next().is_none() && self.yields(index, calls))?;
        let queue = &ring.queue;
        let state = self.device.describe_queue(ring);
        let mut evidence =
            vec![Evidence::new(format!("it polls until queue {} has room: it runs and does not get on", queue.at))];
        evidence.extend(state.iter().map(Evidence::new));
        let device = DeviceWait {
            polls: true,
            over: false,
            pulse: vec![queue.at.0, queue.read],
            state,
            program: false,
            collective: self.device.waits_for_ranks(None),
            brief: Some(format!("{}, and there is room for no more", self.device.brief_queue(ring))),
        };
        let resource = Resource {
            id: ResourceId::At(self.view.process, queue.at),
            kind: ResourceKind::GpuQueue,
            name: None,
            address: Some(queue.at),
            reentrancy: Reentrancy::Unknown,
            wakers: Wakers::Outside,
            idle: false,
        };
        Some(Found { resource, timeout: Timeout::None, evidence, device, signal: None })
    }

    /// Whether the innermost frames are the library's own, or `sched_yield` called by it.
    fn yields(&self, index: usize, calls: &[Call]) -> bool {
        let inside = self.calls.frames(index).get(..calls.first().map_or(0, |c| c.frames.start)).unwrap_or(&[]);
        inside.iter().all(|f| {
            let name = self.view.snapshot.function_at(f.pc).map(|(s, _)| s.name);
            name.is_some_and(|n| matches!(&*n, "sched_yield" | "__sched_yield"))
        })
    }

    fn found(
        &self,
        index: usize,
        calls: &[Call],
        signal: Option<Signal>,
        polls: bool,
        timeout: Timeout,
        evidence: Vec<Evidence>,
    ) -> Found {
        // HIP waits for "below 1" everywhere: rocclr device/rocm/rocvirtual.hpp, WaitForSignal
        let below_one = calls.iter().any(|c| c.domain == "hip");
        let Some(signal) = signal else {
            // whether the device gets on, its queues tell
            let waiting: Vec<_> = self.device.waiting().collect();
            let device = DeviceWait {
                polls,
                over: false,
                pulse: if waiting.is_empty() { Vec::new() } else { self.device.any_pulse() },
                state: waiting.iter().take(3).flat_map(|r| self.device.describe_queue(r)).collect(),
                program: false,
                collective: self.device.waits_for_ranks(None),
                brief: self.device.brief(None).filter(|_| !waiting.is_empty()),
            };
            let resource = self.own(index, ResourceKind::GpuSignal, "the GPU".to_owned());
            return Found { resource, timeout, evidence, device, signal: None };
        };
        let program = self.device.is_idle() && !(below_one && self.device.rings.is_empty());
        let device = DeviceWait {
            polls,
            over: below_one && signal.value < 1,
            // HIP's work lies in queues: where none was found, nothing tells whether the device gets on
            pulse: if polls && below_one && self.device.rings.is_empty() {
                Vec::new()
            } else {
                self.device.pulse(&signal)
            },
            state: self.device.describe(&signal, below_one),
            program,
            collective: self.device.waits_for_ranks(Some(signal.at)),
            brief: self.device.brief(Some(signal.at)).or_else(|| program.then(|| NO_QUEUE.to_owned())),
        };
        let mut evidence = evidence;
        evidence.extend(device.state.iter().map(Evidence::new));
        let resource = Resource {
            id: ResourceId::At(self.view.process, signal.at),
            kind: ResourceKind::GpuSignal,
            name: None,
            address: Some(signal.at),
            reentrancy: Reentrancy::Unknown,
            wakers: Wakers::Outside,
            idle: false,
        };
        Found { resource, timeout, evidence, device, signal: Some(signal.at) }
    }

    /// A resource only this thread waits for.
    fn own(&self, index: usize, kind: ResourceKind, name: String) -> Resource {
        let tid = self.view.snapshot.threads.get(index).map_or(0, |t| t.tid.0);
        Resource {
            id: ResourceId::Numbered(self.view.process, kind, OWN | u64::from(tid.unsigned_abs())),
            kind,
            name: Some(name),
            address: None,
            reentrancy: Reentrancy::Unknown,
            wakers: Wakers::Outside,
            idle: false,
        }
    }

    /// The signal a thread waits for: of `candidates` (all signals where there are none) the one its registers and stack
    /// name most often within the libraries, one that is not done before one that is.
    fn choose(&self, index: usize, calls: &[Call], candidates: &[Signal]) -> Option<Signal> {
        if let [one] = candidates {
            return Some(*one);
        }
        let frames = self.calls.frames(index);
        let outer = calls.iter().find(|c| c.domain != "hsa").map(|c| c.frames.start);
        let end = outer.or_else(|| calls.last().map(|c| c.frames.end)).unwrap_or(0);
        let inside = frames.get(..=end).or_else(|| frames.get(..end)).unwrap_or(&[]);
        let mut named: BTreeMap<Addr, (usize, Signal)> = BTreeMap::new();
        let mut count = |word: u64| {
            let fits = |s: &Signal| candidates.is_empty() || candidates.contains(s);
            if let Some(signal) = self.device.signals.named_by(word).filter(fits) {
                named.entry(signal.at).or_insert((0, signal)).0 += 1;
            }
        };
        for frame in inside {
            CALLEE_SAVED.iter().filter_map(|r| frame.registers.read(*r)).for_each(&mut count);
        }
        if let (Some(first), Some(last)) = (inside.first(), inside.last()) {
            self.words_between(first, last).into_iter().for_each(&mut count);
        }
        let open = |s: &Signal| s.value > 0;
        named.into_values().max_by_key(|(n, s)| (open(s), *n, std::cmp::Reverse(s.at))).map(|(_, s)| s)
    }
}

/// System calls in which CUDA, NCCL and Level Zero sleep: `poll`, `ioctl`, `futex`, `ppoll`, and a read of a socket.
const ASLEEP: [u64; 6] = [7, IOCTL, 202, 271, 0, 45];

/// The outermost frame of the libraries' calls that follow on one another.
fn edge(calls: &[Call]) -> FrameIx {
    let mut end = 0;
    for (i, call) in calls.iter().enumerate() {
        if i > 0 && call.frames.start != end {
            break;
        }
        end = call.frames.end;
    }
    FrameIx(u32::try_from(end.saturating_sub(1)).unwrap_or(0))
}
