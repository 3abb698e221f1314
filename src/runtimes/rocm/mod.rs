//! ROCm: what threads in the HIP and HSA runtimes wait for, and how the device stands as far as host memory shows it. Of
//! CUDA, NCCL and Level Zero the calls by name only.
//!
//! The libraries export C names only, and a call that an exported function hands on leaves no frame of its own: names are
//! taken from the calls. Signals are known by a number the runtime writes into each, queues by the doorbells among them. No
//! symbols of the runtimes are needed. Knows nothing of interpreters, nor of what runs on the device.

mod call_site;
mod calls;
mod device;
mod dispatch;
mod init;
mod kernels;
mod monitors;
mod queues;
mod signals;
mod waits;

use super::{Decoder, Held, Runtime, View};
use crate::arch::x86_64::CALLEE_SAVED;
use crate::elf::demangle;
use crate::facts::{CalledAs, DeviceCall, Facts, Gap, RuntimeNote};
use crate::layout::{Subject, Version};
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{Addr, FrameIx, PAGE};
use calls::{Calls, domain_of, is_hip_runtime};
use device::{Device, MAX_QUEUES};
use dispatch::Dispatch;
use kernels::Kernels;
use monitors::{MonitorLayouts, Monitors};
use queues::Queue;
use signals::{Places, Signals};
use std::collections::BTreeSet;
use waits::Waits;

/// AMD's runtimes, and those of others by name.
pub struct Rocm;

impl Runtime for Rocm {
    fn name(&self) -> &'static str {
        "rocm"
    }

    fn find(&self, snapshot: &Snapshot, memory: &dyn Memory) -> Option<Box<dyn Decoder>> {
        RocmDecoder::find(snapshot, memory).map(|d| Box::new(d) as Box<dyn Decoder>)
    }
}

/// What was found of device libraries before the target was held.
struct RocmDecoder {
    /// HIP's version, by its file: `5.2.21153`.
    version: Option<String>,
    /// Where signals and queues lie.
    places: Places,
    kernels: Kernels,
    dispatch: Dispatch,
    /// Of HIP's own locks, where this version has some.
    monitors: Option<MonitorLayouts>,
    gaps: Vec<Gap>,
    notes: Vec<String>,
}

/// Bytes of a thread's stack looked through for signals while the target is held; signals read of one look.
const MAX_STACK: usize = 8 << 10;
const MAX_CANDIDATES: usize = 4096;
/// Queues told of where nobody waits for them.
const MAX_TOLD: usize = 3;

impl RocmDecoder {
    fn find(snapshot: &Snapshot, memory: &dyn Memory) -> Option<RocmDecoder> {
        let mut of_device = snapshot.modules.iter().filter_map(|m| domain_of(m.name())).peekable();
        of_device.peek()?;
        let has_hsa = of_device.any(|domain| domain == "hsa");
        let mut hips: Vec<String> = snapshot
            .modules
            .iter()
            .filter(|m| is_hip_runtime(m.name()))
            .map(|m| m.path.display().to_string())
            .collect();
        hips.sort();
        hips.dedup();
        let version = hips.first().and_then(|path| version_of(path.rsplit('/').next()?));
        let notes = if hips.len() > 1 {
            vec![format!(
                "two HIP runtimes are loaded, {}: each keeps its own streams, locks and modules, a known cause of trouble",
                hips.join(" and ")
            )]
        } else {
            Vec::new()
        };
        let mut gaps = Vec::new();
        let (mut places, mut kernels) = (Places::default(), Kernels::default());
        if has_hsa {
            places = signals::find_places(snapshot, memory);
            if places.more {
                gaps.push(Gap(format!(
                    "only {} signals of the GPU were read",
                    places.pages.len() as u64 * PAGE / signals::SIZE
                )));
            }
            kernels = Kernels::find(snapshot, memory);
        }
        let dispatch = Dispatch::find(snapshot, memory);
        let subject = Subject::version(version.as_deref().and_then(Version::parse)).with("arch", "x86_64");
        let monitors = version.as_ref().and_then(|_| MonitorLayouts::choose(&subject));
        Some(RocmDecoder { version, places, kernels, dispatch, monitors, gaps, notes })
    }

    /// What a thread's registers and stack may name as signals: aligned, and in memory that can be written.
    fn candidates(held: &Held<'_>, thread: &ThreadState) -> Vec<Addr> {
        let Some(registers) = &thread.registers else { return Vec::new() };
        let in_library = || {
            let pc = registers.pc().map(Addr)?;
            domain_of(held.snapshot.module_at(pc)?.1.name())
        };
        let waits = thread.syscall.is_some_and(|c| waits::wait_events_args(&c).is_some());
        if !waits && in_library().is_none() {
            return Vec::new();
        }
        let words = CALLEE_SAVED.iter().filter_map(|r| registers.file.read(*r));
        let stack = registers.sp().map(|sp| stack_words(held.memory, Addr(sp))).unwrap_or_default();
        let mut found: Vec<Addr> = words.chain(stack).map(Addr).filter(|a| may_be_signal(held.snapshot, *a)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The words of the stack above `sp`, as far as they can be read, up to [`MAX_STACK`] bytes.
fn stack_words(memory: &dyn Memory, sp: Addr) -> Vec<u64> {
    let whole = (0..MAX_STACK / 1024).map_while(|i| memory.read_vec(sp.offset((i * 1024) as i64), 1024).ok());
    let bytes: Vec<u8> = whole.flatten().collect();
    bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?))).collect()
}

fn may_be_signal(snapshot: &Snapshot, at: Addr) -> bool {
    let plain = || snapshot.mapping_at(at).is_some_and(|m| m.permissions.write && !m.permissions.execute);
    at.0.is_multiple_of(signals::SIZE) && !at.is_null() && plain()
}

/// The version a library's file name ends in: `libamdhip64.so.5.2.21153` is 5.2.21153. One number is the interface's.
fn version_of(file: &str) -> Option<String> {
    let (_, version) = file.split_once(".so.")?;
    let numbers = version.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    (numbers && version.contains('.')).then(|| version.to_owned())
}

impl Decoder for RocmDecoder {
    fn gather(&self, held: &Held<'_>) {
        let memory = held.memory;
        let mapped = |at: &Addr| held.snapshot.mapping_at(*at).is_some();
        // three rounds, each by what the one before found
        let waits: Vec<(Addr, usize)> = held
            .threads
            .iter()
            .filter_map(|t| waits::wait_events_args(&t.syscall?))
            .filter(|(at, _)| mapped(at))
            .collect();
        let mut handles: BTreeSet<Addr> = BTreeSet::new();
        for thread in held.threads {
            if handles.len() < MAX_CANDIDATES {
                handles.extend(RocmDecoder::candidates(held, thread));
            }
        }
        let mut wanted: Vec<(Addr, usize)> = self.places.pages.iter().map(|page| (*page, PAGE as usize)).collect();
        wanted.extend(waits.iter().copied());
        wanted.extend(handles.iter().map(|at| (*at, signals::SIZE as usize)));
        wanted.extend(self.kernels.ranges());
        wanted.extend(self.dispatch.ranges());
        let monitors = self.monitors.as_ref().map(|l| (l, l.candidates(held.snapshot, memory, held.threads)));
        wanted.extend(monitors.iter().flat_map(|(_, found)| found));
        wanted.retain(|(at, _)| mapped(at));
        memory.expect(&wanted);

        let mut signals = Signals::read(memory, &self.places.pages);
        for at in &handles {
            signals.learn(memory, *at);
        }
        let mut doorbells = signals.queues(&self.places.queues);
        doorbells.truncate(MAX_QUEUES);
        let size = queues::layout().and_then(|l| usize::try_from(l.size?).ok()).unwrap_or(0);
        let mut wanted: Vec<(Addr, usize)> = doorbells.iter().map(|(_, queue)| (*queue, size)).collect();
        wanted.extend(waits.iter().filter_map(|(args, _)| waits::events_range(memory, *args)));
        wanted.extend(monitors.iter().flat_map(|(layouts, found)| layouts.owners(memory, found)));
        wanted.retain(|(at, len)| *len > 0 && mapped(at));
        memory.expect(&wanted);

        let queues = doorbells.iter().filter_map(|(doorbell, at)| Queue::read(memory, *at, *doorbell)?.ok());
        let mut rings: Vec<(Addr, usize)> = queues.flat_map(|q| q.ranges()).collect();
        rings.retain(|(at, _)| mapped(at));
        memory.expect(&rings);
        // the signals of the packets, where they lie in none of the pages
        let device = Device::read(memory, signals, &self.places.queues, &self.kernels);
        drop(device);
    }

    fn decode(&self, view: &View<'_>) -> Facts {
        let mut facts = Facts { gaps: self.gaps.clone(), notes: self.notes.clone(), ..Facts::default() };
        facts.runtime = Some(RuntimeNote { name: "rocm", version: self.version.clone(), build: None });
        let calls = Calls::new(view, &self.dispatch);
        let mut signals = Signals::read(view.memory, &self.places.pages);
        for index in 0..view.snapshot.threads.len() {
            let thread = view.thread(index);
            let of_thread = calls.of(index);
            for call in &of_thread {
                let (Some(function), Some(frame)) = (&call.function, call.frames.end.checked_sub(1)) else { continue };
                let frame = FrameIx(u32::try_from(frame).unwrap_or(u32::MAX));
                if call.hidden {
                    facts.called.push(CalledAs { thread, frame, function: function.clone() });
                }
                // that the thunk is a library of its own on some systems says nothing
                if function.starts_with("hsaKmt") && of_thread.iter().any(|c| c.domain == "hsa" && c != call) {
                    continue;
                }
                let said = DeviceCall { function: demangle(function), frame };
                facts.device_calls.entry(thread).or_default().insert(0, said);
            }
            learn_of_thread(view, index, &mut signals);
        }
        let device = Device::read(view.memory, signals, &self.places.queues, &self.kernels);
        Waits { view, calls: &calls, device: &device }.decode(&mut facts);
        if let Some(layouts) = &self.monitors {
            Monitors { view, calls: &calls, layouts }.decode(&mut facts);
        }
        init::decode(view, &calls, &mut facts);
        // a thread that cannot be placed may be the one that waits; or nobody does, and the program only forgot to
        if facts.devices.values().all(|d| d.state.is_empty()) {
            let pending = device.waiting().take(MAX_TOLD).map(|ring| device.brief_queue(ring));
            facts.notes.extend(pending.map(|what| format!("no thread is seen to wait for the GPU, where {what}")));
        }
        if !facts.devices.is_empty() {
            facts.gaps.extend(device.gaps);
        }
        facts
    }
}

/// Reads the signals a thread's registers and stack name, where they lie outside the pages that were searched.
fn learn_of_thread(view: &View<'_>, index: usize, signals: &mut Signals) {
    let Some(thread) = view.snapshot.threads.get(index) else { return };
    let held = Held { threads: &view.snapshot.threads, snapshot: view.snapshot, memory: view.memory, locals: false };
    for at in RocmDecoder::candidates(&held, thread) {
        signals.learn(view.memory, at);
    }
}

#[cfg(test)]
mod tests;
