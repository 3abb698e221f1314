//! What the fuzz targets and `tests/fuzz_smoke.rs` run: bytes nobody should trust, through the rooms that read them.
//!
//! Each entry point takes any bytes and must come back: no panic, no walk without end, no memory by the target's measure.

mod dice;
mod image;
mod made;
mod odd;
mod peer;
mod spoilt;

use hangscope::elf::{ElfFile, RowScratch};
use hangscope::facts::{Facts, RuntimeNote};
use hangscope::graph::Graph;
use hangscope::memory::{FileBytes, Memory};
use hangscope::report::{self, Captured, Case, TextOptions, Threads};
use hangscope::runtimes::{self, Held, View};
use hangscope::snapshot::{Snapshot, WithImages};
use hangscope::target::bridge::{Bridge, BridgeOptions};
use hangscope::target::core::{CoreFile, CoreOptions};
use hangscope::target::{Target, ThreadState};
use hangscope::units::{ProcessIx, Vaddr, harmless};
use hangscope::unwind::Stack;
use hangscope::verdict::{Look, judge};
use std::sync::OnceLock;
use std::time::SystemTime;

pub use dice::Dice;
use made::{Made, Runtime};
use peer::Noise;
use spoilt::Spoilt;

/// A core from its bytes: headers, notes, and all that is concluded from it.
pub fn core(bytes: &[u8]) {
    if let Ok(core) = CoreFile::parse(FileBytes::owned(bytes.to_vec()), "core", &CoreOptions::default()) {
        analyse(&core, &core);
    }
}

/// An ELF file from its bytes.
pub fn elf(bytes: &[u8]) {
    let Ok(elf) = ElfFile::parse(FileBytes::owned(bytes.to_vec())) else { return };
    let _ = (elf.build_id(), elf.find_symbol("main"), elf.find_tls_symbol("errno"), elf.section_at(".PyRuntime"));
    let _ = (elf.analysis_parts(), elf.identity_parts());
    let mut scratch = RowScratch::new();
    let mut dice = Dice::new(bytes);
    let starts: Vec<u64> = elf.segments().iter().take(8).map(|s| s.vaddr.0).collect();
    for start in starts.into_iter().chain([0, 0x1000, u64::MAX - 8]) {
        for _ in 0..16 {
            let at = Vaddr(start.wrapping_add(dice.below(0x4000)));
            let _ = (elf.symbol_at(at), elf.object_at(at), elf.frame_description_at(at), elf.locate(at));
            let _ = (elf.unwind_row(at, &mut scratch), elf.read_only_bytes(at, 64));
        }
    }
}

/// A debugger that answers what it likes.
pub fn bridge(bytes: &[u8]) {
    let patience = std::time::Duration::from_secs(1);
    let options = BridgeOptions { sysroot: None, debug_dirs: Vec::new(), patience };
    if let Ok(bridge) = Bridge::connect(Box::new(Noise::new(&mut Dice::new(bytes))), &options) {
        analyse(&bridge, &bridge);
    }
}

/// A process whose CPython is noise.
pub fn cpython(bytes: &[u8]) {
    decode(bytes, Runtime::CPython);
}

/// A process whose glibc objects are noise.
pub fn glibc(bytes: &[u8]) {
    decode(bytes, Runtime::Glibc);
}

/// A process whose GPU runtime is noise.
pub fn rocm(bytes: &[u8]) {
    decode(bytes, Runtime::Rocm);
}

/// A compressed core: the first byte says what with, where the others do not say it themselves.
pub fn compressed(bytes: &[u8]) {
    const MAGIC: [&[u8]; 4] = [&[0x1f, 0x8b, 8, 0], &[0x28, 0xb5, 0x2f, 0xfd], &[4, 0x22, 0x4d, 0x18], b"\xfd7zXZ\0"];
    if MAGIC.iter().any(|magic| bytes.starts_with(magic)) {
        return core(bytes);
    }
    let Some((which, rest)) = bytes.split_first() else { return };
    core(&[MAGIC[usize::from(which % 4)], rest].concat());
}

/// The files of `/proc`.
pub fn proc(bytes: &[u8]) {
    hangscope::target::live::parse_all(bytes);
}

/// Reports of facts that no decoder would tell: whatever a name holds, no format lets it out.
pub fn report(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let made = Made::new(&mut dice, Runtime::CPython);
    let Ok(mut snapshot) = Snapshot::prepare(&made) else { return };
    snapshot.freeze(made.threads().unwrap_or_default(), None);
    let stacks = hangscope::unwind::unwind_all(&snapshot, &WithImages::new(&made, &snapshot));
    let facts = odd::facts(&mut dice, snapshot.threads.len());
    let notes = odd::notes(&mut dice);
    conclude(snapshot, stacks, &facts, notes, Vec::new());
}

fn decode(bytes: &[u8], runtime: Runtime) {
    match real_core() {
        Some(core) => spoil(core, bytes),
        None => {
            let made = Made::new(&mut Dice::new(bytes), runtime);
            analyse(&made, &made);
        }
    }
}

/// A real core with some of its words and registers spoilt.
pub fn spoil(core: &CoreFile, bytes: &[u8]) {
    let spoilt = Spoilt::new(core, &mut Dice::new(bytes));
    analyse(&spoilt, &spoilt);
}

/// The core that `HANGSCOPE_FUZZ_CORE` names, if it does: `hangscope attach PID --save-core FILE` makes one.
fn real_core() -> Option<&'static CoreFile> {
    static CORE: OnceLock<Option<CoreFile>> = OnceLock::new();
    CORE.get_or_init(|| {
        let path = std::env::var_os("HANGSCOPE_FUZZ_CORE")?;
        Some(CoreFile::open(path.as_ref(), &CoreOptions::default()).expect("HANGSCOPE_FUZZ_CORE is a core"))
    })
    .as_ref()
}

/// All that is done with a process: runtimes, stacks, facts, graph, verdict, reports.
fn analyse(target: &dyn Target, memory: &(dyn Memory + Sync)) {
    let Ok(mut snapshot) = Snapshot::prepare(target) else { return };
    let Ok(threads) = target.threads() else { return };
    snapshot.images_from_memory(memory);
    let decoders: Vec<_> = {
        let layered = WithImages::new(memory, &snapshot);
        runtimes::all().into_iter().filter_map(|r| r.find(&snapshot, &layered)).collect()
    };
    gather(&decoders, &threads, &snapshot, memory);
    snapshot.freeze(threads, None);
    let mut facts = Facts::default();
    let mut notes = Vec::new();
    let stacks = {
        let layered = WithImages::new(memory, &snapshot);
        let stacks = hangscope::unwind::unwind_all(&snapshot, &layered);
        let view = View { process: ProcessIx(0), snapshot: &snapshot, stacks: &stacks, memory: &layered, locals: true };
        for decoder in &decoders {
            let mut found = decoder.decode(&view);
            notes.extend(found.runtime.take());
            facts.absorb(found);
        }
        stacks
    };
    conclude(snapshot, stacks, &facts, notes, target.warnings());
}

/// Graph, verdict and reports of what was found.
fn conclude(snapshot: Snapshot, stacks: Vec<Stack>, facts: &Facts, notes: Vec<RuntimeNote>, warnings: Vec<String>) {
    let (snapshots, stacks, notes) = ([snapshot], [stacks], [notes]);
    let graph = Graph::build(facts);
    let look = Look {
        graph: &graph,
        facts,
        snapshots: &snapshots,
        stacks: &stacks,
        movement: None,
        partial: false,
        unplaced: 0,
    };
    let verdict = judge(&look);
    let captured = Captured { at: SystemTime::UNIX_EPOCH, source: "core", pause: None, warnings };
    let case = Case {
        snapshots: &snapshots,
        stacks: &stacks,
        facts,
        runtimes: &notes,
        graph: &graph,
        verdict: &verdict,
        captured: &captured,
    };
    let every = TextOptions { threads: Threads::All, verbose: true, ..TextOptions::default() };
    for text in [report::text(&case, &TextOptions::default()), report::text(&case, &every), report::json(&case)] {
        is_harmless(&text);
    }
    is_harmless(&report::dot(&case));
    is_harmless(&report::svg(&case));
}

/// Nothing in it is obeyed by a terminal, and there is an end to it.
fn is_harmless(text: &str) {
    let bad = text.chars().find(|c| *c != '\n' && harmless(*c) != *c);
    assert_eq!(bad, None, "{text}");
    assert!(text.len() < 64 << 20, "{} bytes", text.len());
}

fn gather(
    decoders: &[Box<dyn runtimes::Decoder>],
    threads: &[ThreadState],
    snapshot: &Snapshot,
    memory: &(dyn Memory + Sync),
) {
    for decoder in decoders {
        decoder.gather(&Held { threads, snapshot, memory, locals: true });
    }
}
