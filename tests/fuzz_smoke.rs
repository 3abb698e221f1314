//! The entry points of the fuzz targets, a few thousand times with always the same numbers: on made-up processes, on real
//! files, and on real programs' cores with words spoilt. Nothing panics, hangs, or takes memory by the target's measure.

#[path = "../fuzz/src/lib.rs"]
mod fuzzed;
mod support;

use fuzzed::Dice;
use hangscope::target::core::{CoreFile, CoreOptions};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::build::{Toolchain, build};
use support::places::{Place, python_places};
use support::{Scratch, hangscope, in_ci, run, running};

/// Address space of this test: an allocation by a number of the target's ends it.
const ROOM: u64 = 6 << 30;
/// What no single input may take. A debug build on a busy machine takes a few milliseconds for most.
const LONGEST: Duration = Duration::from_secs(20);
/// Resident memory the inputs may take in all, beyond what was there before.
const MEMORY: u64 = 512 << 20;

fn resident_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Runs `one` on inputs numbered from 0, and says which took too long or too much.
fn many(count: u64, mut one: impl FnMut(u64)) {
    let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, ROOM.min(hard), hard).unwrap();
    let before = resident_peak();
    for i in 0..count {
        let began = Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(i)));
        assert!(outcome.is_ok(), "input {i} panicked");
        assert!(began.elapsed() < LONGEST, "input {i} took {:?}", began.elapsed());
        let grew = resident_peak().saturating_sub(before);
        assert!(grew < MEMORY, "input {i} took {} MiB", grew >> 20);
    }
}

/// Bytes of an input: always the same for a number.
fn input(i: u64, words: u64) -> Vec<u8> {
    let seed = i.to_le_bytes();
    let mut dice = Dice::new(&seed);
    dice.word();
    (0..words).flat_map(|_| dice.word().to_le_bytes()).collect()
}

/// `bytes` with a few of those in front of `end` changed.
fn changed(bytes: &[u8], end: usize, i: u64) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let seed = i.to_le_bytes();
    let mut dice = Dice::new(&seed);
    dice.word();
    let end = end.min(out.len()) as u64;
    for _ in 0..1 + dice.below(24) {
        let at = usize::try_from(dice.below(end)).unwrap();
        let value = dice.word().to_le_bytes();
        let len = dice.pick(&[1, 1, 2, 4, 8]).min(out.len() - at);
        out[at..at + len].copy_from_slice(if dice.once_in(3) { &[0xff; 8][..len] } else { &value[..len] });
    }
    if dice.once_in(8) {
        out.truncate(usize::try_from(dice.below(end)).unwrap());
    }
    out
}

#[test]
fn a_made_up_cpython() {
    many(200, |i| fuzzed::cpython(&input(i, 8)));
}

#[test]
fn a_made_up_glibc() {
    many(1500, |i| fuzzed::glibc(&input(i, 8)));
}

#[test]
fn a_made_up_gpu_runtime() {
    many(200, |i| fuzzed::rocm(&input(i, 8)));
}

#[test]
fn reports_of_odd_facts() {
    many(100, |i| fuzzed::report(&input(i, 8)));
}

#[test]
fn files_of_proc() {
    let own = |name: &str| std::fs::read(format!("/proc/self/{name}")).expect("our own");
    for name in ["stat", "status", "syscall", "maps", "auxv"] {
        let bytes = own(name);
        many(300, |i| fuzzed::proc(&changed(&bytes, bytes.len(), i)));
    }
    many(300, |i| fuzzed::proc(&changed(b"3: -> FLOCK  ADVISORY  WRITE 4711 fe:01:9437 0 EOF\n", 50, i)));
}

#[test]
fn a_debugger_that_answers_what_it_likes() {
    many(400, |i| fuzzed::bridge(&input(i, 4)));
}

#[test]
fn an_elf_file() {
    // this machine's loader: small, with every section that matters
    let loader = std::fs::read("/lib64/ld-linux-x86-64.so.2").expect("a loader");
    let headers = |i: u64| if i.is_multiple_of(2) { 0x400 } else { loader.len() };
    many(1000, |i| fuzzed::elf(&changed(&loader, headers(i), i)));
    // section headers stand at the end
    many(500, |i| {
        let mut turned = loader.clone();
        turned.reverse();
        let mut spoilt = changed(&turned, 0x900, i);
        spoilt.reverse();
        fuzzed::elf(&spoilt);
    });
}

/// Cores of real hung programs: a native one, and where there is a Python one of it.
fn real_cores(scratch: &Scratch) -> Vec<PathBuf> {
    let mut cores = vec![core_of("abba-mutex", scratch)];
    if !python_places(&[]).is_empty() {
        cores.push(core_of("lazy-call-initialised", scratch));
    } else {
        assert!(!in_ci(), "no python3");
        eprintln!("skipped: no python3");
    }
    cores
}

fn packed_by(packer: &str, path: &Path) -> Vec<u8> {
    let words = if packer == "lz4" { "-qc1" } else { "-c1" };
    let out = std::process::Command::new(packer).arg(words).arg(path).output().expect(packer);
    assert!(out.status.success(), "{packer}");
    out.stdout
}

fn core_of(name: &str, scratch: &Scratch) -> PathBuf {
    let dir = build(name, &[], Toolchain::Host, None).unwrap();
    let python = || python_places(&[]).into_iter().next().expect("a python3");
    let place = if dir.join("program.py").exists() { python() } else { Place::host() };
    let program = running::start(&place, &dir, &[], scratch.path()).unwrap();
    let core = scratch.path().join(name);
    let mut command = hangscope();
    command.args(["attach", &program.pid.to_string(), "-o", "/dev/null", "--save-core"]).arg(&core);
    let said = run(command, Duration::from_secs(60)).unwrap();
    assert_eq!(said.code(), 1, "{}", said.err);
    core
}

#[test]
fn real_programs_with_words_spoilt() {
    let scratch = Scratch::new("fuzz");
    for path in real_cores(&scratch) {
        let core = CoreFile::open(&path, &CoreOptions::default()).unwrap();
        many(100, |i| fuzzed::spoil(&core, &input(i, 4)));
        let bytes = std::fs::read(&path).unwrap();
        // the headers and notes stand in front
        many(60, |i| fuzzed::core(&changed(&bytes, 0x4000, i)));
        for packer in ["gzip", "xz", "zstd", "lz4"] {
            let packed = packed_by(packer, &path);
            many(30, |i| fuzzed::compressed(&changed(&packed, if i % 2 == 0 { 64 } else { packed.len() }, i)));
        }
    }
}
