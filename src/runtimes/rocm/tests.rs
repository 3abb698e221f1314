//! The decoder on made-up memory: signals, queues and packets written by hand, and such as no runtime would write.

use super::device::Device;
use super::kernels::Kernels;
use super::monitors::MonitorLayouts;
use super::signals::{Signal, Signals};
use super::*;
use crate::facts::{DeviceWait, Facts, ResourceId, ResourceKind, Timeout};
use crate::memory::Fake;
use crate::runtimes::tests::{MadeUp, sp_of};
use crate::units::{ProcessIx, ThreadRef};
use std::time::Instant;

const MAGIC: u64 = 0x71FC_CA6A_3D5D_5276;
const WAIT_EVENTS: u64 = 0xC018_4B0C;
const PAGE_OF_SIGNALS: u64 = 0x1000_0000;
const QUEUE: u64 = 0x2000_0000;
const RING: u64 = 0x3000_0000;
const ARGS: u64 = 0x4000_0000;
const SIZE: u64 = 64;

/// Signal number `n` of the page.
fn handle(n: u64) -> Addr {
    Addr(PAGE_OF_SIGNALS + n * signals::SIZE)
}

fn put_signal(m: &mut Fake, n: u64, kind: i64, value: i64, event: u32) {
    let at = handle(n);
    m.put(at, &[0; 128]).put_u64(at, kind.cast_unsigned()).put_u64(at.offset(8), value.cast_unsigned());
    m.put_u32(at.offset(24), event).put_u64(at.offset(80), MAGIC).put_u64(at.offset(72), 0x5000_0000 + n * 64);
}

/// A queue whose doorbell is signal 0.
fn put_queue(m: &mut Fake, read: u64, write: u64, size: u64) {
    m.put(Addr(PAGE_OF_SIGNALS), &[0; 4096]);
    put_signal(m, 0, -1, 0x7000, 0);
    m.put_u64(handle(0).offset(48), QUEUE);
    let at = Addr(QUEUE);
    m.put(at, &[0; 256]).put_u64(at.offset(8), RING).put_u64(at.offset(16), handle(0).0);
    m.put_u32(at.offset(24), size as u32).put_u64(at.offset(56), write).put_u64(at.offset(128), read);
    m.put(Addr(RING), &[0; (SIZE * 64) as usize]);
}

fn put_packet(m: &mut Fake, id: u64, kind: u16, completes: Addr, dep: Addr) {
    let at = Addr(RING + id % SIZE * 64);
    m.put(at, &[0; 64]).put(at, &kind.to_le_bytes()).put_u64(at.offset(56), completes.0).put_u64(at.offset(8), dep.0);
}

fn decoder() -> RocmDecoder {
    RocmDecoder {
        version: Some("5.2.21153".to_owned()),
        places: Places { pages: vec![Addr(PAGE_OF_SIGNALS)], ..Places::default() },
        kernels: Kernels::default(),
        dispatch: Dispatch::default(),
        monitors: MonitorLayouts::choose(&Subject::version(Version::parse("5.2.21153"))),
        gaps: Vec::new(),
        notes: Vec::new(),
    }
}

/// A thread asleep on one event, in a process with a queue of three packets: a kernel, a barrier, and a barrier that
/// completes signal 1.
fn wedged() -> MadeUp {
    let mut made = MadeUp::new();
    let m = &mut made.memory;
    put_queue(m, 118, 121, SIZE);
    put_signal(m, 1, 1, 1, 7);
    put_signal(m, 2, 1, 0, 0);
    put_packet(m, 118, 2, Addr::NULL, Addr::NULL);
    m.put_u64(Addr(RING + 118 % SIZE * 64 + 32), 0xd00);
    put_packet(m, 119, 3, Addr::NULL, Addr::NULL);
    put_packet(m, 120, 3, handle(1), Addr::NULL);
    m.put_u64(Addr(ARGS), ARGS + 0x100).put_u32(Addr(ARGS + 8), 1).put_u32(Addr(ARGS + 12), 1);
    m.put_u32(Addr(ARGS + 16), 0xffff_fffe).put_u32(Addr(ARGS + 20), 0);
    m.put(Addr(ARGS + 0x100), &[0; 48]).put_u32(Addr(ARGS + 0x128), 7);
    for at in [PAGE_OF_SIGNALS, QUEUE, RING, ARGS] {
        made.map(at, 0x1000);
    }
    made.thread(100, Some((16, [3, WAIT_EVENTS, ARGS, 0, 0, 0])));
    made
}

fn first(made: &MadeUp) -> (Facts, Option<DeviceWait>) {
    let facts = made.decode(&decoder());
    let device = facts.devices.get(&ThreadRef { process: ProcessIx(0), thread: 0 }).cloned();
    (facts, device)
}

#[test]
fn a_thread_asleep_is_told_with_signal_queue_and_packets() {
    let (facts, device) = first(&wedged());
    assert_eq!(facts.waits.len(), 1);
    assert_eq!((facts.waits[0].on, facts.waits[0].timeout), (ResourceId::At(ProcessIx(0), handle(1)), Timeout::None));
    assert_eq!((facts.resources[0].kind, facts.resources[0].idle), (ResourceKind::GpuSignal, false));
    let device = device.unwrap();
    assert!(!device.polls && !device.over);
    assert_eq!(
        device.state,
        [
            format!("signal {} reads 1", handle(1)),
            format!("packet 120 of queue {QUEUE:#x} completes it: a barrier"),
            format!(
                "queue {QUEUE:#x} has 3 packets pending (read 118, write 121); the oldest is a kernel (its descriptor is at \
                 0xd00 on the device)"
            ),
        ]
    );
}

#[test]
fn the_pulse_beats_when_the_device_gets_on_and_not_when_work_is_added() {
    let pulse = |change: &dyn Fn(&mut Fake)| {
        let mut made = wedged();
        change(&mut made.memory);
        first(&made).1.unwrap().pulse
    };
    let before = pulse(&|_| {});
    assert_eq!(before, pulse(&|_| {}));
    assert_ne!(
        before,
        pulse(&|m| {
            m.put_u64(Addr(QUEUE + 128), 119);
        }),
        "a packet was taken"
    );
    assert_ne!(
        before,
        pulse(&|m| {
            m.put_u64(handle(1).offset(8), 0);
        }),
        "the signal was set"
    );
    assert_eq!(
        before,
        pulse(&|m| {
            m.put_u64(Addr(QUEUE + 56), 122);
        }),
        "a packet was added"
    );
}

#[test]
fn without_a_stack_only_who_waits_for_one_event_is_somebody_s_wait() {
    let mut made = wedged();
    made.memory.put_u32(Addr(ARGS + 12), 0);
    let (facts, device) = first(&made);
    assert!(facts.resources[0].idle, "any of its events: the runtime's own thread");
    assert!(device.unwrap().polls);
}

#[test]
fn a_limit_in_milliseconds_is_one() {
    let mut made = wedged();
    made.memory.put_u32(Addr(ARGS + 16), 1500);
    assert_eq!(first(&made).0.waits[0].timeout, Timeout::Seconds(1.5));
}

#[test]
fn pages_that_are_lacking_are_said_to_be() {
    let mut made = wedged();
    let mut holed = Fake::new();
    for (from, len) in [(PAGE_OF_SIGNALS, 4096), (QUEUE, 256), (ARGS, 24), (ARGS + 0x100, 48)] {
        holed.put(Addr(from), &made.memory.read_vec(Addr(from), len).unwrap());
    }
    made.memory = holed;
    let (facts, device) = first(&made);
    assert!(facts.gaps.iter().any(|g| g.0.contains("3 packets pending in queue")), "{:?}", facts.gaps);
    let state = device.unwrap().state;
    assert!(state.iter().any(|s| s.ends_with("(read 118, write 121)")), "the indexes are told all the same: {state:?}");
}

fn needs_host(made: &MadeUp) -> Option<(Signal, String)> {
    let kernels = Kernels::default();
    let signals = Signals::read(&made.memory, &[Addr(PAGE_OF_SIGNALS)]);
    Device::read(&made.memory, signals, &[], &kernels).needs_host(handle(1))
}

#[test]
fn the_program_must_set_what_no_packet_completes() {
    let mut made = wedged();
    assert_eq!(needs_host(&made), None, "a kernel is at the head");
    put_packet(&mut made.memory, 118, 3, Addr::NULL, handle(2));
    assert_eq!(needs_host(&made), None, "its signal is set");
    put_signal(&mut made.memory, 2, 1, 1, 0);
    let (signal, said) = needs_host(&made).unwrap();
    assert_eq!(signal.at, handle(2));
    assert!(said.starts_with(&format!("packet 118 of queue {QUEUE:#x} waits for signal {}, which reads 1", handle(2))));
    put_packet(&mut made.memory, 118, 5, Addr::NULL, handle(2));
    assert_eq!(needs_host(&made), None, "one of several would do");
    put_packet(&mut made.memory, 118, 3, Addr::NULL, handle(2));
    put_packet(&mut made.memory, 119, 2, handle(2), Addr::NULL);
    assert_eq!(needs_host(&made), None, "a packet completes it");
    put_packet(&mut made.memory, 119, 2, Addr::NULL, Addr::NULL);
    made.memory.put_u64(Addr(QUEUE + 56), 118 + 128);
    assert_eq!(needs_host(&made), None, "a packet that was not read may complete it");
}

#[test]
fn handles_that_are_none() {
    let mut m = Fake::new();
    put_queue(&mut m, 0, 0, SIZE);
    put_signal(&mut m, 1, 1, 1, 7);
    put_signal(&mut m, 2, 0, 1, 7);
    put_signal(&mut m, 3, 9, 1, 7);
    assert!(Signal::read(&m, handle(1)).is_some());
    for (what, at) in [
        ("freed", handle(2)),
        ("of no kind", handle(3)),
        ("with hint bits", handle(1).offset(1)),
        ("between two", handle(1).offset(64)),
        ("without magic", handle(4)),
        ("unmapped", Addr(0x8000_0000)),
        ("null", Addr::NULL),
        ("at the end of memory", Addr(u64::MAX - 127)),
    ] {
        assert_eq!(Signal::read(&m, at), None, "{what}");
    }
}

#[test]
fn queues_that_make_no_sense_are_said_and_passed_over() {
    for (read, write, size) in [
        (121, 118, SIZE),
        (0, u64::MAX, SIZE),
        (u64::MAX, u64::MAX, 0),
        (0, 3, 0),
        (0, 3, 63),
        (0, 3, 1 << 31),
        (0, 3 * SIZE, SIZE),
    ] {
        let mut made = wedged();
        let m = &mut made.memory;
        m.put_u32(Addr(QUEUE + 24), size as u32).put_u64(Addr(QUEUE + 56), write).put_u64(Addr(QUEUE + 128), read);
        let (facts, device) = first(&made);
        assert!(facts.gaps.iter().any(|g| g.0.contains("makes no sense")), "{read} {write} {size}: {:?}", facts.gaps);
        assert!(device.unwrap().state.iter().any(|s| s == "no queue was found"));
    }
    // at the end of its numbers, and at the end of memory
    for (read, write, base) in [(u64::MAX - 3, u64::MAX - 1, RING), (118, 121, u64::MAX - 40), (118, 121, 0)] {
        let mut made = wedged();
        let m = &mut made.memory;
        m.put_u64(Addr(QUEUE + 8), base).put_u64(Addr(QUEUE + 56), write).put_u64(Addr(QUEUE + 128), read);
        assert!(first(&made).1.is_some());
    }
}

#[test]
fn barriers_that_wait_for_one_another_end() {
    let mut made = wedged();
    put_signal(&mut made.memory, 2, 1, 1, 0);
    put_packet(&mut made.memory, 118, 3, handle(2), handle(1));
    put_packet(&mut made.memory, 119, 3, handle(1), handle(2));
    put_packet(&mut made.memory, 120, 3, handle(1), handle(1));
    assert!(first(&made).1.is_some());
    assert_eq!(needs_host(&made), None);
}

#[test]
fn arguments_that_lead_nowhere() {
    for (at, value) in [(ARGS, 0), (ARGS, u64::MAX), (ARGS + 8, u64::MAX), (ARGS + 0x128, u64::MAX)] {
        let mut made = wedged();
        made.memory.put_u64(Addr(at), value);
        assert_eq!(first(&made).0.waits.len(), 1, "{at:#x} {value:#x}");
    }
    let mut made = MadeUp::new();
    made.thread(100, Some((16, [3, WAIT_EVENTS, 0xdead, 0, 0, 0])));
    let (facts, _) = first(&made);
    assert!(facts.resources[0].idle, "nothing is known of it");
}

/// A monitor with a name, whose owner runs on the second thread's stack; the first thread sleeps on its semaphore.
fn contended(name: &[u8]) -> MadeUp {
    const MONITOR: u64 = 0x6000_0000;
    let mut made = MadeUp::new();
    let semaphore = Addr(MONITOR + 0x400);
    let thread = Addr(MONITOR + 0x800);
    let first = made.thread(100, Some((202, [semaphore.0 + 8, 0x189, 0, 0, 0, 0])));
    made.thread(101, None);
    made.map(MONITOR, 0x1000);
    let node = sp_of(first).offset(0x40);
    let m = &mut made.memory;
    m.put(sp_of(first), &[0; 2048]).put_u64(sp_of(first).offset(0x20), MONITOR);
    m.put_u64(node, 0).put_u64(node.offset(8), semaphore.0);
    m.put(Addr(MONITOR), &[0; 0x1000]).put_u64(Addr(MONITOR), node.0 | 1).put(Addr(MONITOR + 8), name);
    m.put_u64(Addr(MONITOR + 88), thread.0);
    m.put_u64(thread.offset(96), sp_of(1).0 + 0x9000).put_u64(thread.offset(104), 0xa000);
    made
}

#[test]
fn a_monitor_without_hip_s_frames_is_not_looked_for() {
    // no frame and no word of the stack lies in libamdhip64: it is somebody else's semaphore
    let facts = contended(b"Device lock").decode(&decoder());
    assert!(facts.waits.is_empty() && facts.gaps.is_empty(), "{:?}", facts.waits);
}

/// What is said of the first thread's wait, were its frames HIP's.
fn monitor(made: &MadeUp) -> Option<(String, Option<usize>)> {
    let view = made.view();
    let (dispatch, layouts) = (Dispatch::default(), decoder().monitors?);
    let calls = Calls::new(&view, &dispatch);
    let monitors = super::monitors::Monitors { view: &view, calls: &calls, layouts: &layouts };
    monitors.told(0)
}

#[test]
fn a_monitor_is_found_by_its_waiter_and_tells_its_owner() {
    let made = contended(b"Device lock");
    assert_eq!(monitor(&made), Some(("Device lock".to_owned(), Some(1))));
    // the next in turn is named by onDeck_ instead
    let mut next = contended(b"Device lock");
    next.memory.put_u64(Addr(0x6000_0000), 1).put_u64(Addr(0x6000_0000 + 72), 0x6000_0400);
    assert_eq!(monitor(&next), Some(("Device lock".to_owned(), Some(1))));
    // a list that does not lead to it, an owner on nobody's stack, a name that is none
    let mut other = contended(b"Device lock");
    other.memory.put_u64(Addr(0x6000_0000), 0x6000_0600 | 1);
    assert_eq!(monitor(&other), None);
    let mut gone = contended(b"Device lock");
    gone.memory.put_u64(Addr(0x6000_0800 + 96), 0x1000);
    assert_eq!(monitor(&gone), Some(("Device lock".to_owned(), None)));
    for name in [&b""[..], b"\x01\x02", &[b'a'; 64]] {
        assert_eq!(monitor(&contended(name)), None);
    }
    // a ring of waiters ends
    let mut ring = contended(b"Device lock");
    ring.memory.put_u64(Addr(0x6000_0600), 0x6000_0600).put_u64(Addr(0x6000_0000), 0x6000_0601);
    assert_eq!(monitor(&ring), None);
}

/// Words that come from nowhere, the same ones every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn noise_is_survived() {
    let began = Instant::now();
    for seed in 1..200 {
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let mut made = wedged();
        made.thread(101, Some((202, [0x6000_0408, 0x189, 0, 0, 0, 0])));
        for _ in 0..40 {
            let area = [PAGE_OF_SIGNALS, QUEUE, RING, ARGS, sp_of(0).0][(noise.next() % 5) as usize];
            let at = Addr(area + noise.next() % 512 * 8 % 256);
            let interesting = [0, 1, u64::MAX, MAGIC, QUEUE, RING, handle(1).0, handle(2).0, 1 << 63, noise.next()];
            made.memory.put_u64(at, interesting[(noise.next() % 10) as usize]);
        }
        let facts = made.decode(&decoder());
        assert!(facts.holds.is_empty(), "noise proves nothing");
    }
    assert!(began.elapsed().as_secs() < 60);
}

#[test]
fn versions_by_file_name() {
    assert_eq!(version_of("libamdhip64.so.5.2.21153").as_deref(), Some("5.2.21153"));
    for none in ["libamdhip64.so", "libamdhip64.so.5", "libamdhip64.so.5.", "libamdhip64.so.5.x"] {
        assert_eq!(version_of(none), None, "{none}");
    }
}

#[test]
fn libraries_by_their_names() {
    for (module, domain) in [
        ("libamdhip64.so.6.4.43484", "hip"),
        ("libamdhip64.so", "hip"),
        ("libhsa-runtime64.so.1", "hsa"),
        ("libhsakmt.so.1.0.6", "hsa"),
        ("librccl.so.1", "nccl"),
        ("libnccl.so.2", "nccl"),
        ("libcuda.so.550.54.14", "cuda"),
        ("libcudart-9335f6a2.so.12", "cuda"),
        ("libze_loader.so.1", "level-zero"),
        ("librocprofiler-sdk.so.1", "hip"),
    ] {
        assert_eq!(domain_of(module), Some(domain), "{module}");
    }
    for module in ["libc.so.6", "libcudann.so", "libhsa.so", "python3.11", "libamdhip.so"] {
        assert_eq!(domain_of(module), None, "{module}");
    }
}
