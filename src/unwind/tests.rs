//! Walks over made-up stacks: the code is the C library's, the rest is invented.

use super::*;
use crate::arch::{Arch, ThreadRegisters, x86_64};
use crate::memory::{Fake, FileBytes, ReadError};
use crate::snapshot::WithImages;
use crate::target::{Files, Mapping, Permissions, Process, Target, TargetError};
use crate::units::{HostTid, Pid, Tid};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STACK: u64 = 0x7000_0000_0000;
const STACK_BYTES: u64 = 0x8000;
const LIBC: u64 = 0x7f00_0000_0000;

struct Host;

impl Files for Host {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        self.open_path(mapping.path.as_deref().unwrap_or(Path::new("/nowhere")))
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        let cause = |e: std::io::Error| TargetError::File { path: path.display().to_string(), cause: e.to_string() };
        FileBytes::of_file(File::open(path).map_err(cause)?).map_err(cause)
    }
}

/// A process made of the C library at [`LIBC`] and a stack at [`STACK`].
struct Made(Vec<Mapping>);

impl Memory for Made {
    fn read(&self, at: Addr, _: &mut [u8]) -> Result<(), ReadError> {
        Err(ReadError::Unmapped(at))
    }
}

impl Target for Made {
    fn process(&self) -> &Process {
        static NOBODY: Process = Process {
            pid: Pid(1),
            exe: None,
            command: Vec::new(),
            arch: Arch::X86_64,
            auxv: Vec::new(),
            forked: None,
            parent: None,
            caught: None,
            descriptors: std::collections::BTreeMap::new(),
            at_instant: crate::target::AtInstant {
                ready: std::collections::BTreeMap::new(),
                ended: std::collections::BTreeSet::new(),
                signalled: std::collections::BTreeSet::new(),
            },
        };
        &NOBODY
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(Vec::new())
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(self.0.clone())
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(Host)
    }
}

fn libc_path() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("libc.so")).unwrap().into()
}

fn made() -> Snapshot {
    let permissions = |x, w| Permissions { read: true, write: w, execute: x, shared: false };
    let mapping = |start: u64, len: u64, offset, path: Option<PathBuf>, p| Mapping {
        start: Addr(start),
        end: Addr(start + len),
        offset,
        permissions: p,
        device: (0, 0),
        inode: 0,
        path,
        deleted: false,
    };
    let libc = crate::elf::ElfFile::parse(Host.open_path(&libc_path()).unwrap()).unwrap();
    let mut mappings = vec![mapping(STACK, STACK_BYTES, 0, None, permissions(false, true))];
    for s in libc.segments().iter().filter(|s| !s.writable) {
        let from = s.vaddr.0 & !0xfff;
        let len = (s.vaddr.0 + s.memory_size - from).next_multiple_of(0x1000);
        mappings.push(mapping(
            LIBC + from,
            len,
            s.offset & !0xfff,
            Some(libc_path()),
            permissions(s.executable, false),
        ));
    }
    Snapshot::prepare(&Made(mappings)).unwrap()
}

fn thread(registers: &[(crate::arch::Reg, u64)]) -> ThreadState {
    let mut file = RegisterFile::default();
    for (reg, value) in registers {
        file.write(*reg, *value);
    }
    let registers =
        ThreadRegisters { arch: Arch::X86_64, file, tls_base: None, syscall_register: None, raw: Vec::new() };
    ThreadState {
        tid: Tid(1),
        host_tid: HostTid(1),
        name: None,
        state: None,
        registers: Some(registers),
        syscall: None,
        sp_pc: None,
        wchan: None,
        progress: None,
        missing: None,
    }
}

fn walk(snapshot: &mut Snapshot, memory: &Fake, registers: &[(crate::arch::Reg, u64)]) -> Stack {
    snapshot.freeze(vec![thread(registers)], None);
    unwind_all(snapshot, &WithImages::new(memory, snapshot)).remove(0)
}

fn function(snapshot: &Snapshot, name: &str) -> u64 {
    snapshot.modules.iter().find_map(|m| m.find_symbol(name)).unwrap().0.0
}

/// An address in `name` just behind a call instruction.
fn return_address(snapshot: &Snapshot, name: &str) -> u64 {
    let start = function(snapshot, name);
    let image = snapshot.modules[0].image().unwrap();
    let at = |i: u64| image.elf.read_only_bytes(image.bias.to_vaddr(Addr(start + i)), 1).unwrap()[0];
    (0..4000).find(|i| at(*i) == 0xe8).unwrap() + start + 5
}

#[test]
fn an_empty_stack_is_lost_and_a_thread_without_registers_says_so() {
    let mut snapshot = made();
    let pc = function(&snapshot, "qsort");
    let stack = walk(&mut snapshot, &Fake::new(), &[(x86_64::RIP, pc), (x86_64::RSP, STACK + 0x100)]);
    assert_eq!((stack.frames.len(), stack.end), (1, StackEnd::Lost));
    let mut bare = thread(&[]);
    bare.registers = None;
    snapshot.freeze(vec![bare], None);
    assert_eq!(unwind_all(&snapshot, &Fake::new())[0].end, StackEnd::NoRegisters);
}

#[test]
fn a_return_to_null_is_the_end_and_one_to_data_is_lost() {
    let mut snapshot = made();
    let pc = function(&snapshot, "qsort");
    let mut memory = Fake::new();
    memory.put_u64(Addr(STACK + 0x100), 0);
    let start = [(x86_64::RIP, pc), (x86_64::RSP, STACK + 0x100)];
    assert_eq!(walk(&mut snapshot, &memory, &start).end, StackEnd::Complete);
    memory.put_u64(Addr(STACK + 0x100), STACK);
    let lost = walk(&mut snapshot, &memory, &start);
    assert_eq!((lost.frames.len(), lost.end), (1, StackEnd::Lost));
}

#[test]
fn a_frame_pointer_that_points_at_itself_does_not_hold_the_walk() {
    let mut snapshot = made();
    let mut memory = Fake::new();
    let back = return_address(&snapshot, "getdelim");
    for i in 0..STACK_BYTES / 8 {
        memory.put_u64(Addr(STACK + i * 8), STACK + 0x200);
    }
    memory.put_u64(Addr(STACK + 0x208), back);
    // generated code, of which nothing is known
    let nowhere = 0x1000;
    let registers = [(x86_64::RIP, nowhere), (x86_64::RSP, STACK + 0x100), (x86_64::RBP, STACK + 0x200)];
    let stack = walk(&mut snapshot, &memory, &registers);
    assert_eq!(stack.frames[1].pc.addr.0, back);
    assert_eq!(stack.frames[1].trust, Trust::FramePointer);
    assert_eq!(stack.frames[1].registers.read(x86_64::RBX), None);
    assert!(stack.frames.len() < 10);
}

#[test]
fn random_stacks_end_within_bounds() {
    let mut snapshot = made();
    let names = ["qsort", "getdelim", "fopen", "getaddrinfo", "strtod", "regcomp", "system", "fwrite", "dprintf"];
    let backs: Vec<u64> = names.iter().map(|n| return_address(&snapshot, n)).collect();
    let mut state = 7u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut longest = 0;
    for _ in 0..20 {
        let mut memory = Fake::new();
        for i in 0..STACK_BYTES / 8 {
            let word = match next(20) {
                0..=16 => backs[usize::try_from(next(backs.len() as u64)).unwrap()],
                17 => STACK + (next(STACK_BYTES) & !7),
                18 => LIBC + next(0x20_0000),
                _ => next(u64::MAX),
            };
            memory.put_u64(Addr(STACK + i * 8), word);
        }
        let registers: Vec<_> = (0..17).map(|n| (crate::arch::Reg(n), STACK + (next(STACK_BYTES) & !7))).collect();
        let mut registers = registers;
        registers[7].1 = STACK + (next(0x1000) & !7);
        registers[16].1 = backs[usize::try_from(next(backs.len() as u64)).unwrap()] + next(3);
        let stack = walk(&mut snapshot, &memory, &registers);
        assert!(stack.frames.len() <= MAX_FRAMES);
        for pair in stack.frames.windows(2) {
            let (inner, outer) = (&pair[0], &pair[1]);
            assert!(inner.signal || outer.registers.read(x86_64::RSP) > inner.registers.read(x86_64::RSP));
        }
        longest = longest.max(stack.frames.len());
    }
    assert!(longest > 5, "the stacks were no good: {longest}");
}
