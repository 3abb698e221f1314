//! Damaged interpreter state: bits flipped, pointers made wild, lists made circular, sizes made huge. Whatever is read, the
//! decoder ends in time and does not panic.

mod support;

use hangscope::facts::Facts;
use hangscope::memory::{Memory, ReadError};
use hangscope::runtimes::{Decoder, Held, View};
use hangscope::snapshot::{Snapshot, WithImages};
use hangscope::target::live::{Live, StopLimits, ptrace_refusal};
use hangscope::units::{Addr, Pid, ProcessIx};
use hangscope::unwind::{Stack, unwind_all};
use std::time::{Duration, Instant};
use support::places::{Installed, python_places, roots};
use support::running::start;
use support::{Scratch, home};

/// Memory that lies now and then, always in the same way for the same place.
struct Damaged<'a> {
    inner: &'a (dyn Memory + Sync),
    seed: u64,
    /// One in so many places is damaged.
    one_in: u64,
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

impl Memory for Damaged<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.inner.read(at, buf)?;
        let first = at.0.div_ceil(8) * 8;
        for word in (first..).step_by(8) {
            let from = usize::try_from(word - at.0).unwrap();
            let Some(bytes) = buf.get_mut(from..from + 8) else { break };
            let luck = mix(word ^ self.seed);
            if !luck.is_multiple_of(self.one_in) {
                continue;
            }
            let old = u64::from_le_bytes(bytes.try_into().unwrap());
            let new = match (luck >> 32) % 8 {
                0 => old ^ (1 << ((luck >> 40) % 64)),
                1 => word,
                2 => at.0,
                3 => u64::MAX - (luck >> 50),
                4 => 0,
                5 => old.wrapping_add(8 * ((luck >> 40) % 16)),
                6 => luck >> 20,
                _ => old << 1,
            };
            bytes.copy_from_slice(&new.to_le_bytes());
        }
        if first > at.0 && mix(at.0 ^ self.seed).is_multiple_of(self.one_in) {
            // small fields too; a string without a byte has none
            if let Some(byte) = buf.first_mut() {
                *byte ^= 1 << (self.seed % 8);
            }
        }
        Ok(())
    }
}

struct Scene {
    decoder: Box<dyn Decoder>,
    snapshot: Snapshot,
    kept: hangscope::memory::Kept,
    stacks: Vec<Stack>,
}

impl Scene {
    fn decode(&self, seed: u64, one_in: u64) -> Facts {
        let whole = WithImages::new(&self.kept, &self.snapshot);
        let memory = Damaged { inner: &whole, seed, one_in };
        let view = View {
            process: ProcessIx(0),
            snapshot: &self.snapshot,
            stacks: &self.stacks,
            memory: &memory,
            locals: true,
        };
        self.decoder.decode(&view)
    }
}

fn look_at(pid: i32) -> Scene {
    let runtime = hangscope::runtimes::all().into_iter().find(|r| r.name() == "cpython").unwrap();
    let live = Live::open(Pid(pid)).unwrap();
    let mut snapshot = Snapshot::prepare(&live).unwrap();
    // finding it in damaged memory finds it, something else or nothing
    for seed in 0..20 {
        let memory = Damaged { inner: &live, seed, one_in: 40 };
        let _ = runtime.find(&snapshot, &memory);
    }
    let decoder = runtime.find(&snapshot, &live).expect("a CPython");
    let stopped = live.stop(&StopLimits::default()).unwrap();
    stopped.read_stacks();
    decoder.gather(&Held {
        threads: stopped.thread_states(),
        snapshot: &snapshot,
        memory: stopped.memory(),
        locals: true,
    });
    let released = stopped.release();
    snapshot.freeze(released.threads, released.mappings);
    let stacks = unwind_all(&snapshot, &WithImages::new(&released.kept, &snapshot));
    Scene { decoder, snapshot, kept: released.kept, stacks }
}

#[test]
fn damaged_interpreters_are_read_without_harm() {
    let roots = roots();
    let scratch = Scratch::new("hostile");
    let rounds: u64 = std::env::var("HANGSCOPE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let mut ran = 0;
    for place in python_places(&roots) {
        let installed = place.root.as_ref().map(|r| Installed::new(r).unwrap());
        let source = home().join("tests/cpython/hung");
        let dir = match &installed {
            Some(installed) => installed.add(&place.name, &source).unwrap(),
            None => source,
        };
        let cwd = if place.root.is_some() { dir.clone() } else { scratch.path().to_path_buf() };
        let running = start(&place, &dir, &[], &cwd).unwrap_or_else(|e| panic!("{}: {e}", place.name));
        if let Some((cause, _)) = ptrace_refusal(Pid(running.pid)) {
            println!("skipped: needs ptrace: {cause}");
            return;
        }
        let scene = look_at(running.pid);
        drop(running);
        let whole = scene.decode(0, u64::MAX);
        assert!(whole.waits.len() > 20 && whole.holds.len() > 5, "{}: {whole:?}", place.name);
        let (mut slowest, mut waits, mut gaps) = (Duration::ZERO, 0, 0);
        for seed in 1..=rounds {
            // from a word here and there to rubble
            for one_in in [20_000, 1_000, 100, 7] {
                let began = Instant::now();
                let facts = scene.decode(seed, one_in);
                slowest = slowest.max(began.elapsed());
                waits += facts.waits.len();
                gaps += facts.gaps.len();
            }
        }
        println!("{}: {rounds} rounds, slowest {slowest:?}, {waits} waits, {gaps} gaps", place.name);
        assert!(slowest < Duration::from_secs(10), "{}: a damaged interpreter took {slowest:?}", place.name);
        ran += 1;
    }
    if ran == 0 {
        println!("skipped: needs a CPython");
    }
}
