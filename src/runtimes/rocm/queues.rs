//! HSA queues in host memory: how far the device got, and what it has not done yet.

use super::kernels::Kernels;
use super::signals::{self, Signals};
use crate::layout::{Layouts, StructLayout, Subject};
use crate::memory::{Memory, MemoryExt, ReadError};
use crate::units::{Addr, PAGE};

/// Bytes of a packet.
const PACKET: u64 = 64;
/// The last of the queue types. Source: `hsa.h`, `hsa_queue_type_t`.
const COOPERATIVE: u64 = 2;
/// The largest ring believed, in packets (HIP's have 16384).
const MAX_PACKETS: u64 = 1 << 20;
/// Packets read before the read index (the device takes a packet before it has done it), after it, and before the write
/// index.
const BEFORE: u64 = 16;
const AFTER: u64 = 48;

/// A queue as it stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Queue {
    /// Its address: the public `hsa_queue_t*`.
    pub at: Addr,
    /// Packets the device has taken.
    pub read: u64,
    /// Packets that were put in.
    pub write: u64,
    base: Addr,
    size: u64,
    /// The signal that says why the device stopped it.
    pub inactive: Addr,
}

/// What a packet is. Source: HSA runtime specification 1.2, `hsa_packet_type_t`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A kernel, by its descriptor's address on the device.
    Kernel(u64),
    /// It waits for all of these signals to be 0.
    Barrier(Vec<Addr>),
    /// It waits for one of these signals to be 0.
    BarrierOr(Vec<Addr>),
    /// Work for an agent.
    Agent,
    /// A packet of AMD's own making.
    Vendor,
    /// Not filled in yet, or done.
    Nothing,
}

/// A packet of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Packet {
    /// Its number, counted from the queue's first.
    pub id: u64,
    /// What it is.
    pub work: Work,
    /// The signal it completes; null: none.
    pub completes: Addr,
}

pub(super) fn layout() -> Option<&'static StructLayout> {
    Layouts::rocm().layout("amd_queue_t", &Subject::default())
}

/// The doorbell of the queue that a page begins with: `None` where the page's first words are no queue's. Each lies at the
/// beginning of a page of its own (ROCR-Runtime src/core/runtime/amd_aql_queue.cpp), and says how far into it its read index is.
pub(super) fn doorbell_in(page: &[u8]) -> Option<Addr> {
    let layout = layout()?;
    let word = |name: &str| layout.field(name)?.word_of(page);
    let at = layout.field("read_dispatch_id")?.offset;
    let (base, doorbell, size) = (word("base_address")?, word("doorbell_signal")?, word("size")?);
    let shaped = word("read_dispatch_id_field_base_byte_offset")? == at && word("type")? <= COOPERATIVE;
    let sane = size.is_power_of_two() && size <= MAX_PACKETS && base != 0 && base.is_multiple_of(PAGE);
    (shaped && sane && doorbell != 0 && doorbell.is_multiple_of(signals::SIZE)).then_some(Addr(doorbell))
}

impl Queue {
    /// The queue at `at`, if its doorbell is `doorbell`. `Err`: it is one, but its indexes make no sense.
    pub fn read(memory: &dyn Memory, at: Addr, doorbell: Addr) -> Option<Result<Queue, String>> {
        let image = layout()?.read(memory, at)?;
        if image.word("doorbell_signal")? != doorbell.0 {
            return None;
        }
        let queue = Queue {
            at,
            read: image.word("read_dispatch_id")?,
            write: image.word("write_dispatch_id")?,
            base: Addr(image.word("base_address")?),
            size: image.word("size")?,
            inactive: Addr(image.word("queue_inactive_signal")?),
        };
        let sane = queue.size.is_power_of_two() && queue.size <= MAX_PACKETS;
        // a queue may be asked for more than it has room for; the producer then waits
        let pending = queue.write.checked_sub(queue.read).filter(|n| sane && *n <= queue.size.saturating_mul(2));
        Some(match pending {
            Some(_) => Ok(queue),
            None => Err(format!(
                "queue {at} makes no sense: read {}, write {}, of {} packets",
                queue.read, queue.write, queue.size
            )),
        })
    }

    /// Whether it has room for no more: its producer has asked for all of it.
    pub fn is_full(&self) -> bool {
        self.pending() >= self.size
    }

    /// Packets the device has not taken.
    pub fn pending(&self) -> u64 {
        self.write.saturating_sub(self.read)
    }

    /// Whether every packet that is pending is among those read.
    pub fn all_read(&self) -> bool {
        self.pending() <= AFTER.saturating_mul(2)
    }

    /// The numbers of the packets worth reading: round the read index, and the last ones.
    fn window(&self) -> impl Iterator<Item = u64> + use<> {
        let (read, write, size) = (self.read, self.write, self.size);
        let first = read.saturating_sub(BEFORE).max(write.saturating_sub(size));
        let middle = read.saturating_add(AFTER).min(write);
        let last = write.saturating_sub(AFTER).max(middle);
        (first..middle).chain(last..write)
    }

    fn slot(&self, id: u64) -> Addr {
        Addr(self.base.0.wrapping_add((id % self.size.max(1)).wrapping_mul(PACKET)))
    }

    /// Where those packets lie, for reading them together.
    pub fn ranges(&self) -> Vec<(Addr, usize)> {
        self.window().map(|id| (self.slot(id), PACKET as usize)).collect()
    }

    /// Those packets; and why some could not be read.
    pub fn packets(&self, memory: &dyn Memory) -> (Vec<Packet>, Option<ReadError>) {
        let mut packets = Vec::new();
        let mut missing = None;
        for id in self.window() {
            match memory.read_vec(self.slot(id), PACKET as usize) {
                Ok(bytes) => packets.extend(Packet::parse(id, &bytes)),
                Err(why) => missing = missing.or(Some(why)),
            }
        }
        (packets, missing)
    }
}

impl Packet {
    fn parse(id: u64, bytes: &[u8]) -> Option<Packet> {
        let layout = Layouts::rocm().layout("hsa_packet_t", &Subject::default())?;
        let field = |name: &str| layout.field(name)?.word_of(bytes);
        let header = field("header")?;
        let work = match header & 0xff {
            0 => Work::Vendor,
            2 => Work::Kernel(field("kernel_object")?),
            3 => Work::Barrier(depends(layout, bytes)),
            5 => Work::BarrierOr(depends(layout, bytes)),
            4 => Work::Agent,
            _ => Work::Nothing,
        };
        Some(Packet { id, work, completes: Addr(field("completion_signal")?) })
    }

    /// The signals it waits for.
    pub fn waits_for(&self) -> &[Addr] {
        match &self.work {
            Work::Barrier(on) | Work::BarrierOr(on) => on,
            _ => &[],
        }
    }

    /// What a person would call it.
    pub fn describe(&self, kernels: &Kernels, signals: &Signals) -> String {
        match &self.work {
            Work::Kernel(object) => match kernels.name_of(*object) {
                Some(name) => format!("kernel `{name}`"),
                None => format!("a kernel (its descriptor is at {object:#x} on the device)"),
            },
            Work::Barrier(on) | Work::BarrierOr(on) => {
                let open = on.iter().filter_map(|s| signals.at(*s)).find(|s| s.value != 0);
                match open {
                    Some(s) => format!("a barrier that waits for signal {}, which reads {}", s.at, s.value),
                    None => "a barrier".to_owned(),
                }
            }
            Work::Agent => "a packet for an agent".to_owned(),
            Work::Vendor => "a packet of AMD's own format".to_owned(),
            Work::Nothing => "a packet that is not filled in".to_owned(),
        }
    }
}

/// The signals a barrier waits for.
fn depends(layout: &StructLayout, bytes: &[u8]) -> Vec<Addr> {
    let Some(field) = layout.field("dep_signal") else { return Vec::new() };
    let from = usize::try_from(field.offset).unwrap_or(usize::MAX);
    let words = bytes.get(from..).unwrap_or(&[]).chunks_exact(8).take(usize::try_from(field.count).unwrap_or(0));
    words.filter_map(|w| Some(Addr(u64::from_le_bytes(w.try_into().ok()?)))).filter(|a| !a.is_null()).collect()
}
