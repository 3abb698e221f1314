//! A core made by hand goes through the writer and the door; then it is damaged in thousands of ways.

use super::*;
use crate::arch::x86_64::{USER_REGS, parse_user_regs, sleeping_syscall};
use crate::arch::{Arch, Syscall};
use crate::memory::{Kept, MemoryExt};
use crate::target::minicore::{Minicore, write};
use crate::target::{Parent, Permissions};
use crate::units::{HostTid, Pid, Tid};

fn thread(host_tid: i32, tid: i32, words: &[(usize, u64)]) -> ThreadState {
    let mut raw = vec![0u8; USER_REGS];
    for (i, word) in words {
        raw[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    let registers = parse_user_regs(&raw);
    ThreadState {
        tid: Tid(tid),
        host_tid: HostTid(host_tid),
        name: Some(format!("thread {tid}")),
        state: Some('S'),
        syscall: registers.as_ref().and_then(sleeping_syscall),
        registers,
        sp_pc: None,
        wchan: None,
        progress: None,
        missing: None,
    }
}

fn mapping(start: u64, end: u64, letters: &str, path: Option<(&str, u64)>) -> Mapping {
    Mapping {
        start: Addr(start),
        end: Addr(end),
        offset: path.map_or(0, |p| p.1),
        permissions: Permissions {
            read: letters.contains('r'),
            write: letters.contains('w'),
            execute: letters.contains('x'),
            shared: letters.contains('s'),
        },
        device: (8, 1),
        inode: 77,
        path: path.map(|p| p.0.into()),
        deleted: false,
    }
}

struct Made {
    process: Process,
    threads: Vec<ThreadState>,
    unlisted: bool,
    mappings: Vec<Mapping>,
    kept: Kept,
}

fn made() -> Made {
    let process = Process {
        pid: Pid(1000),
        exe: Some("/bin/odd name".into()),
        command: vec!["odd name".into(), "--with blank".into(), String::new()],
        arch: Arch::X86_64,
        auxv: vec![(33, 0x7000_0000), (9, 0x40_1040)],
        forked: Some(true),
        parent: Some(Parent { pid: Pid(999), threads: vec![(Tid(999), "odd\tname".into()), (Tid(1001), "w".into())] }),
        caught: Some(0x4002),
        descriptors: std::collections::BTreeMap::new(),
        at_instant: Default::default(),
    };
    let futex = [(15, 202), (10, (-512i64) as u64), (14, 0x50_0010), (16, 0x40_1050), (19, 0x60_0ff0), (21, 0x50_0800)];
    let mut gone = thread(1003, 4, &[]);
    gone.registers = None;
    gone.missing = Some("in state D: it could not be stopped".into());
    gone.syscall = Some(Syscall { number: Some(0), args: [3, 0, 0, 0, 0, 0] });
    gone.sp_pc = Some((0x60_0100, 0x40_1100));
    gone.wchan = Some("pipe_read".into());
    let threads = vec![thread(1000, 2, &futex), thread(1002, 3, &[(15, 219), (10, (-516i64) as u64)]), gone];
    let mappings = vec![
        mapping(0x40_0000, 0x40_1000, "rp", Some(("/bin/odd name", 0))),
        mapping(0x40_1000, 0x40_3000, "rxp", Some(("/bin/odd name", 0x1000))),
        mapping(0x50_0000, 0x50_2000, "rwp", None),
        mapping(0x5f_f000, 0x60_0000, "p", None),
        mapping(0x60_0000, 0x60_1000, "rwp", Some(("[stack]", 0))),
        mapping(0x6f_0000, 0x6f_4000, "rws", Some(("/dev/shm/x", 0x2000))),
        mapping(0x7000_0000, 0x7000_2000, "rxp", Some(("[vdso]", 0))),
    ];
    let mut kept = Kept::new();
    kept.keep(Addr(0x50_0010), &[1, 2, 3, 4]);
    kept.keep(Addr(0x50_0014), &[5; 12]);
    kept.keep(Addr(0x50_0ff8), &[6; 16]);
    kept.keep(Addr(0x60_0ff0), &[7; 16]);
    kept.keep(Addr(0x40_1ff0), &[8; 8]);
    kept.keep(Addr(0x5f_fff8), &[9; 16]); // across a border
    kept.keep(Addr(0x9000_0000), &[10; 3]); // in no mapping
    Made { process, threads, unlisted: false, mappings, kept }
}

fn bytes_of(made: &Made) -> Vec<u8> {
    let mut out = Vec::new();
    let files = [(Addr(0x40_0000), vec![11; 64]), (Addr(0x50_0000), vec![12; 64])];
    let core = Minicore {
        process: &made.process,
        threads: &made.threads,
        unlisted: made.unlisted,
        mappings: &made.mappings,
        kept: &made.kept,
        files: &files,
    };
    let n = write(&core, &mut out).unwrap();
    assert_eq!(n, out.len() as u64);
    out
}

fn open(bytes: Vec<u8>) -> Result<CoreFile, TargetError> {
    CoreFile::parse(FileBytes::owned(bytes), "made", &CoreOptions::default())
}

#[test]
fn a_minicore_comes_back_as_it_was() {
    let made = made();
    let core = open(bytes_of(&made)).unwrap();
    let p = core.process();
    assert_eq!(
        (p.pid, &p.exe, &p.command, &p.auxv),
        (made.process.pid, &made.process.exe, &made.process.command, &made.process.auxv)
    );
    assert_eq!(core.mappings().unwrap(), made.mappings);
    assert_eq!(format!("{:?}", core.threads().unwrap()), format!("{:?}", made.threads));
    for (at, bytes) in made.kept.extents() {
        assert_eq!(core.read_vec(at, bytes.len()).unwrap(), bytes, "at {at}");
    }
    assert_eq!(core.read_vec(Addr(0x40_0000), 64).unwrap(), [11; 64]);
    let mut around = [12; 64];
    around[16..20].copy_from_slice(&[1, 2, 3, 4]);
    around[20..32].copy_from_slice(&[5; 12]);
    assert_eq!(core.read_vec(Addr(0x50_0000), 64).unwrap(), around, "what was read wins over the file");
    assert!(core.warnings().is_empty(), "{:?}", core.warnings());
}

#[test]
fn what_was_not_read_is_not_invented() {
    let core = open(bytes_of(&made())).unwrap();
    assert_eq!(core.read_u8(Addr(0x50_0100)), Err(ReadError::NotInCore(Addr(0x50_0100))));
    assert_eq!(core.read_u64(Addr(0x50_1004)), Err(ReadError::NotInCore(Addr(0x50_1008))));
    assert_eq!(core.read_u8(Addr(0x6f_0000)), Err(ReadError::NotInCore(Addr(0x6f_0000))));
    assert_eq!(core.read_u8(Addr(0x40_3000)), Err(ReadError::Unmapped(Addr(0x40_3000))));
    assert_eq!(core.read_u64(Addr(u64::MAX - 3)), Err(ReadError::Unmapped(Addr(u64::MAX - 3))));
}

#[test]
fn without_our_notes_the_mappings_are_the_union() {
    let mut bytes = bytes_of(&made());
    while let Some(at) = bytes.windows(10).position(|w| w == b"hangscope\0") {
        bytes[at] = b'H';
    }
    let core = open(bytes).unwrap();
    let mappings = core.mappings().unwrap();
    let files: Vec<_> = mappings
        .iter()
        .filter(|m| m.is_file())
        .map(|m| (m.start.0, m.end.0, m.offset, m.permissions.execute))
        .collect();
    assert_eq!(
        files,
        [(0x40_0000, 0x40_1000, 0, false), (0x40_1000, 0x40_3000, 0x1000, true), (0x6f_0000, 0x6f_4000, 0x2000, false)]
    );
    assert!(mappings.iter().any(|m| m.start == Addr(0x7000_0000) && m.path.as_deref() == Some(Path::new("[vdso]"))));
    assert_eq!(core.process().exe.as_deref(), Some(Path::new("/bin/odd name")));
    assert_eq!(core.threads().unwrap().len(), 2);
}

#[test]
fn many_segments_are_counted_in_the_section_header() {
    let mut made = made();
    made.mappings.push(mapping(0x1_0000_0000, 0x1_1000_0000, "rwp", None));
    for i in 0..70_000u64 {
        made.kept.keep(Addr(0x1_0000_0000 + i * 32), &i.to_le_bytes());
    }
    let core = open(bytes_of(&made)).unwrap();
    assert_eq!(core.read_u64(Addr(0x1_0000_0000 + 69_999 * 32)).unwrap(), 69_999);
    assert!(core.read_u8(Addr(0x1_0000_0000 + 8)).is_err());
}

fn message(bytes: &[u8]) -> String {
    open(bytes.to_vec()).err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn each_wrong_file_has_its_line() {
    let good = bytes_of(&made());
    let with = |at: usize, new: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        message(&bytes)
    };
    assert!(message(b"hello").contains("not an ELF file"));
    assert!(message(&[0x28, 0xb5, 0x2f, 0xfd, 0]).contains("zstd"));
    assert!(message(b"BZh9").contains("`bzip2 -dk made`"));
    assert!(with(16, &[3, 0]).contains("it is a program or library"));
    assert_eq!(with(18, &[183, 0]), "made is an aarch64 core; hangscope reads 64-bit x86_64 ones");
    assert!(with(18, &[247, 0]).starts_with("made is a 64-bit little-endian machine-247 core"));
    assert!(with(4, &[1]).starts_with("made is an x32 (32-bit x86-64) core"));
    for (header, machine) in [
        ([1, 1, 3, 0], "an i386 (32-bit x86) core"),
        ([2, 2, 22, 0], "an s390x (big-endian) core"),
        ([2, 2, 21, 0], "a ppc64 (big-endian) core"),
        ([2, 1, 21, 0], "a ppc64le core"),
        ([1, 1, 183, 0], "an aarch64 ILP32 core"),
        ([2, 1, 243, 0], "a riscv64 core"),
    ] {
        let mut bytes = good.clone();
        let [class, order, low, high] = header;
        (bytes[4], bytes[5]) = (class, order);
        for (at, word) in [(16, [4, 0]), (18, [low, high])] {
            let word = if order == 2 { [word[1], word[0]] } else { word };
            bytes[at..at + 2].copy_from_slice(&word);
        }
        assert!(message(&bytes).starts_with(&format!("made is {machine};")), "{}", message(&bytes));
    }
    assert!(message(&good[..40]).contains("cut off inside its headers"));
    assert!(message(&good[..600]).contains("cut off before its notes"));
    assert!(with(56, &[0, 0]).contains("no program headers"));
    let mut none = made();
    none.threads.clear();
    assert!(message(&bytes_of(&none)).contains("holds no thread"));
}

#[test]
fn a_truncated_core_gives_what_it_has() {
    let good = bytes_of(&made());
    let core = open(good[..good.len() - 8].to_vec()).unwrap();
    assert_eq!(core.threads().unwrap().len(), 3);
    assert_eq!(core.read_vec(Addr(0x50_0010), 4).unwrap(), [1, 2, 3, 4]);
    assert!(core.read_u8(Addr(0x9000_0000)).is_err());
    let expected =
        format!("the core is truncated: {} of {} bytes; memory beyond is missing", good.len() - 8, good.len());
    assert_eq!(core.warnings(), [expected]);
    assert!(!core.may_lack_threads(), "its notes are whole");
}

#[test]
fn notes_that_break_off_may_lack_threads() {
    let good = bytes_of(&made());
    assert!(!open(good.clone()).unwrap().may_lack_threads());
    // the second thread's note claims to be longer than the file
    let size = 336u32.to_le_bytes();
    let at = good.windows(4).enumerate().filter(|(_, w)| *w == size).map(|(i, _)| i).nth(1).unwrap();
    let mut damaged = good.clone();
    damaged[at..at + 4].fill(0x7f);
    assert!(open(damaged).unwrap().may_lack_threads());
    let notes = usize::try_from(u64::from_le_bytes(good[64 + 8..64 + 16].try_into().unwrap())).unwrap();
    assert!(open(good[..notes + 700].to_vec()).unwrap().may_lack_threads(), "cut off within its notes");
}

#[test]
fn threads_that_were_missing_when_it_was_written_are_still_missing() {
    let mut made = made();
    made.unlisted = true;
    let core = open(bytes_of(&made)).unwrap();
    assert!(core.may_lack_threads());
    assert_eq!(core.threads().unwrap().len(), made.threads.len());
}

/// A small generator with a fixed beginning (xorshift64*), so that a failure comes again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }
}

/// Opens damaged bytes and uses everything: nothing may panic, hang or allocate without bound.
fn use_all(bytes: Vec<u8>) {
    let Ok(core) = open(bytes) else { return };
    let mappings = core.mappings().unwrap();
    let threads = core.threads().unwrap();
    let files = core.files();
    assert!(mappings.windows(2).all(|w| w[0].end <= w[1].start), "mappings overlap");
    assert!(threads.windows(2).all(|w| w[0].host_tid <= w[1].host_tid));
    for m in mappings.iter().take(40) {
        let _ = core.read_u64(m.start);
        let _ = core.read_vec(m.end.offset(-8), 16);
        let _ = files.open(m);
    }
    let _ = core.warnings();
}

#[test]
fn damage_does_no_harm() {
    let good = bytes_of(&made());
    let head = 64 + 56 * 20;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..6000 {
        let mut bytes = good.clone();
        for _ in 0..=dice.roll(4) {
            // half of the damage goes into the headers
            let at = dice.roll(if round % 2 == 0 { head } else { bytes.len() });
            match dice.roll(3) {
                0 => bytes[at] ^= 1 << dice.roll(8),
                1 => bytes[at] = 0xff,
                _ => {
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].fill(if dice.roll(2) == 0 { 0xff } else { 0 });
                }
            }
        }
        if round % 5 == 0 {
            bytes.truncate(dice.roll(good.len()));
        }
        use_all(bytes);
    }
    for len in 0..good.len() {
        use_all(good[..len].to_vec());
    }
}
