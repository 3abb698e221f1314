//! The device as the host's memory shows it: signals, queues, packets, and what a signal waits for.

use super::kernels::Kernels;
use super::queues::{Packet, Queue, Work};
use super::signals::{Signal, Signals};
use crate::facts::Gap;
use crate::memory::{Memory, MemoryExt, ReadError};
use crate::units::Addr;
use std::collections::BTreeSet;

/// Queues read at most.
pub(super) const MAX_QUEUES: usize = 256;
/// Signals followed from one to the next: a barrier's signal may be another queue's.
const MAX_CHAIN: usize = 8;

/// A queue and those of its packets that were read.
pub(super) struct Ring {
    pub queue: Queue,
    pub packets: Vec<Packet>,
    /// Whether all could be read that were asked for.
    pub complete: bool,
}

/// All of it.
pub(super) struct Device<'a> {
    pub signals: Signals,
    pub rings: Vec<Ring>,
    kernels: &'a Kernels,
    pub gaps: Vec<Gap>,
}

impl<'a> Device<'a> {
    /// Reads the queues of the doorbells among `signals` and those of `found`, their packets, and the signals of those.
    pub fn read(memory: &dyn Memory, mut signals: Signals, found: &[(Addr, Addr)], kernels: &'a Kernels) -> Device<'a> {
        let mut gaps = Vec::new();
        let mut rings = Vec::new();
        let mut doorbells = signals.queues(found);
        // where a doorbell can be read and is none, the queue is one that was given up
        let mut unread = None;
        doorbells.retain(|(doorbell, _)| {
            let missing = signals.at(*doorbell).is_none().then(|| memory.read_u64(*doorbell).err());
            match missing {
                None => true,
                Some(why) => {
                    unread = why.or(unread);
                    why.is_some()
                }
            }
        });
        if let Some(why) = unread {
            let why = match why {
                ReadError::NotInCore(_) => "are not in the core".to_owned(),
                why => format!("could not be read: {why}"),
            };
            gaps.push(Gap(format!("signals of the GPU {why}: for which of them a thread waits is not told")));
        }
        if doorbells.len() > MAX_QUEUES {
            gaps.push(Gap(format!("of {} GPU queues the first {MAX_QUEUES} were read", doorbells.len())));
        }
        for (doorbell, at) in doorbells.into_iter().take(MAX_QUEUES) {
            match Queue::read(memory, at, doorbell) {
                Some(Ok(queue)) => {
                    let (packets, missing) = queue.packets(memory);
                    if let Some(why) = missing.filter(|_| queue.pending() > 0) {
                        gaps.push(Gap(ring_missing(&queue, why)));
                    }
                    rings.push(Ring { queue, packets, complete: missing.is_none() });
                }
                Some(Err(why)) => gaps.push(Gap(why)),
                None => {}
            }
        }
        for packet in rings.iter().flat_map(|r| &r.packets) {
            signals.learn(memory, packet.completes);
            for s in packet.waits_for() {
                signals.learn(memory, *s);
            }
        }
        for ring in &rings {
            signals.learn(memory, ring.queue.inactive);
        }
        Device { signals, rings, kernels, gaps }
    }

    /// The queue and packet that complete `signal`: of several the first that is not done.
    pub fn producer(&self, signal: Addr) -> Option<(&Ring, &Packet)> {
        let of = |ring: &'_ Ring| ring.packets.iter().position(|p| p.completes == signal && p.work != Work::Nothing);
        self.rings.iter().find_map(|ring| Some((ring, ring.packets.get(of(ring)?)?)))
    }

    /// Numbers that change as the device comes nearer to `signal`: of its queue, and those its barriers wait for; of all
    /// queues where none is known to complete it.
    pub fn pulse(&self, signal: &Signal) -> Vec<u64> {
        let mut pulse = vec![signal.at.0, signal.value.cast_unsigned()];
        let mut seen = BTreeSet::new();
        self.follow(signal.at, &mut seen, &mut pulse);
        if seen.len() < 2 {
            pulse.extend(self.rings.iter().flat_map(|r| [r.queue.at.0, r.queue.read, r.queue.write]));
        }
        pulse
    }

    /// Numbers that change as the device gets on at all; empty where no queue was found.
    pub fn any_pulse(&self) -> Vec<u64> {
        self.rings.iter().flat_map(|r| [r.queue.at.0, r.queue.read]).collect()
    }

    /// Whether no queue that was found has anything to do.
    pub fn is_idle(&self) -> bool {
        self.rings.iter().all(|r| r.queue.pending() == 0 && r.packets.iter().all(|p| self.is_done(p)))
    }

    /// Whether a packet is done, as far as its signal tells.
    fn is_done(&self, packet: &Packet) -> bool {
        packet.work == Work::Nothing || self.signals.at(packet.completes).is_none_or(|s| s.value < 1)
    }

    /// The queues with packets pending.
    pub fn waiting(&self) -> impl Iterator<Item = &Ring> + '_ {
        self.rings.iter().filter(|r| r.queue.pending() > 0)
    }

    /// Where the work that `signal` waits for stands in few words: `3 packets are pending in queue 0x…, the oldest is kernel
    /// `vector_add``. Of queues that wait for one another the last is told; `None` where no queue is known to hold it up.
    pub fn brief(&self, signal: Option<Addr>) -> Option<String> {
        match (self.last_of_chain(signal), self.waiting().count()) {
            (Some(ring), _) => Some(self.brief_queue(ring)),
            (None, 0) if self.rings.is_empty() => None,
            (None, 0) => Some("no queue has packets pending, the program is to set it".to_owned()),
            (None, many) => Some(format!("{many} queues have packets pending")),
        }
    }

    /// Whether the oldest kernel that `signal` waits for is a collective's: RCCL names them so (src/device/generate.py).
    pub fn waits_for_ranks(&self, signal: Option<Addr>) -> bool {
        let head = self.last_of_chain(signal).and_then(|ring| self.oldest(ring));
        let Some(Work::Kernel(object)) = head.map(|p| &p.work) else { return false };
        let name = self.kernels.name_of(*object).unwrap_or_default();
        ["ncclDevKernel", "ncclKernel", "mscclKernel", "rcclGenericKernel"].iter().any(|p| name.starts_with(p))
    }

    /// The queue that `signal` waits for in the end, of queues that wait for one another; where it is not known which completes
    /// it, the only one with packets pending.
    fn last_of_chain(&self, signal: Option<Addr>) -> Option<&Ring> {
        let Some((mut at, _)) = signal.and_then(|s| self.producer(s)) else {
            let mut waiting = self.waiting();
            return waiting.next().filter(|_| waiting.next().is_none());
        };
        let mut seen = BTreeSet::from([at.queue.at]);
        while let Some((next, _)) = self.holds_up(at).filter(|_| seen.len() < MAX_CHAIN) {
            if !seen.insert(next.queue.at) {
                break;
            }
            at = next;
        }
        Some(at)
    }

    /// `3 packets are pending in queue 0x…, the oldest is kernel `vector_add``.
    pub fn brief_queue(&self, ring: &Ring) -> String {
        let q = &ring.queue;
        let count = match q.pending() {
            // the device has taken all of them, and is not done with the last
            0 => return format!("queue {} has not done what it has taken", q.at),
            1 => format!("1 packet is pending in queue {}", q.at),
            n => format!("{n} packets are pending in queue {}", q.at),
        };
        match self.oldest(ring) {
            Some(packet) if q.pending() == 1 => format!("{count}, {}", packet.describe(self.kernels, &self.signals)),
            Some(packet) => format!("{count}, the oldest is {}", packet.describe(self.kernels, &self.signals)),
            None => count,
        }
    }

    fn oldest<'r>(&self, ring: &'r Ring) -> Option<&'r Packet> {
        ring.packets.iter().find(|p| p.id == ring.queue.read && ring.queue.pending() > 0)
    }

    /// The queue and packet that complete the signal for which the barrier at the head of `ring` waits.
    fn holds_up(&self, ring: &Ring) -> Option<(&Ring, &Packet)> {
        let open = self.oldest(ring)?.waits_for().iter().filter_map(|s| self.signals.at(*s)).find(|s| s.value != 0);
        self.producer(open?.at)
    }

    fn follow(&self, signal: Addr, seen: &mut BTreeSet<Addr>, pulse: &mut Vec<u64>) {
        if seen.len() > MAX_CHAIN || !seen.insert(signal) {
            return;
        }
        let Some((ring, _)) = self.producer(signal) else { return };
        if seen.insert(ring.queue.at) {
            pulse.extend([ring.queue.at.0, ring.queue.read]);
        }
        for packet in &ring.packets {
            for s in packet.waits_for() {
                pulse.extend(self.signals.at(*s).map(|s| s.value.cast_unsigned()));
                self.follow(*s, seen, pulse);
            }
        }
    }

    /// The signal that the program itself must set before the device can come to `signal`, and the packet that waits for it:
    /// a barrier at the head of a queue waits for it, and no packet of any queue completes it.
    pub fn needs_host(&self, signal: Addr) -> Option<(Signal, String)> {
        let mut at = signal;
        for _ in 0..MAX_CHAIN {
            let (ring, last) = self.producer(at)?;
            let head = ring.packets.iter().find(|p| p.id >= ring.queue.read && p.work != Work::Nothing)?;
            let Work::Barrier(on) = &head.work else { return None };
            let open =
                on.iter().filter_map(|s| self.signals.at(*s)).find(|s| s.value != 0).filter(|_| head.id <= last.id)?;
            if self.producer(open.at).is_none() {
                // a packet that was not read could be the one
                let sure = self.rings.iter().all(|r| r.complete && r.queue.all_read());
                let said = format!(
                    "packet {} of queue {} waits for signal {}, which reads {} and which no packet of any queue completes",
                    head.id, ring.queue.at, open.at, open.value
                );
                return sure.then_some((open, said));
            }
            at = open.at;
        }
        None
    }

    /// How the device stands with regard to `signal`, in sentences. `below_one`: the wait is known to be for a value < 1.
    pub fn describe(&self, signal: &Signal, below_one: bool) -> Vec<String> {
        let wanted = if below_one { ", and the wait is for a value below 1" } else { "" };
        let mut said = vec![format!("signal {} reads {}{wanted}", signal.at, signal.value)];
        if below_one && signal.value < 1 {
            said.push("that has happened: the thread is about to wake, or its event was lost".to_owned());
        }
        match self.producer(signal.at) {
            Some((ring, packet)) => {
                let what = packet.describe(self.kernels, &self.signals);
                said.push(format!("packet {} of queue {} completes it: {what}", packet.id, ring.queue.at));
                said.extend(self.describe_queue(ring));
                said.extend(self.behind(ring));
            }
            None => {
                let waiting: Vec<&Ring> = self.waiting().collect();
                said.extend(waiting.iter().take(3).flat_map(|r| self.describe_queue(r)));
                if waiting.is_empty() {
                    said.push(match self.rings.len() {
                        0 => "no queue was found".to_owned(),
                        _ => "no queue has packets pending: it is the program that is to set it".to_owned(),
                    });
                }
            }
        }
        said
    }

    /// The queues that the queue of `ring` waits for, one after the other: the barrier at its head waits for a signal that a
    /// packet of another queue completes.
    fn behind(&self, ring: &Ring) -> Vec<String> {
        let mut said = Vec::new();
        let mut seen = BTreeSet::from([ring.queue.at]);
        let mut at = ring;
        while let Some((next, packet)) = self.holds_up(at) {
            if seen.len() >= MAX_CHAIN || !seen.insert(next.queue.at) {
                break;
            }
            said.push(format!("packet {} of queue {} completes that one", packet.id, next.queue.at));
            said.extend(self.describe_queue(next));
            at = next;
        }
        said
    }

    /// `queue 0x… has 3 packets pending (read 118, write 121); the oldest is kernel `vector_add``.
    pub fn describe_queue(&self, ring: &Ring) -> Vec<String> {
        let q = &ring.queue;
        let counts = format!("(read {}, write {})", q.read, q.write);
        let mut said = vec![match q.pending() {
            0 => format!("queue {} has no packets pending {counts}", q.at),
            1 => format!("queue {} has 1 packet pending {counts}", q.at),
            n => format!("queue {} has {n} packets pending {counts}", q.at),
        }];
        if let Some(oldest) = self.oldest(ring) {
            let what = oldest.describe(self.kernels, &self.signals);
            if let Some(first) = said.first_mut() {
                *first += &format!("; the oldest is {what}");
            }
        }
        if let Some(error) = self.signals.at(q.inactive).filter(|s| s.value != 0) {
            said.push(format!("the device stopped queue {} with error {:#x}", q.at, error.value));
        }
        said
    }
}

fn ring_missing(queue: &Queue, why: ReadError) -> String {
    let n = queue.pending();
    let packets = if n == 1 { "1 packet".to_owned() } else { format!("{n} packets") };
    match why {
        ReadError::NotInCore(_) => {
            format!("the ring of queue {} is not in the core: its {packets} pending are not told", queue.at)
        }
        why => format!("the {packets} pending in queue {} could not all be read: {why}", queue.at),
    }
}
