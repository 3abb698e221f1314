//! A core's headers: refusing what is no core of ours, and its loadable segments as memory.

use crate::memory::{FileBytes, Memory, ReadError, u16_at, u32_at, u64_at};
use crate::target::{Mapping, Permissions, TargetError};
use crate::units::Addr;
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::ProgramHeader;
use goblin::elf::header::{
    EI_CLASS, EI_DATA, ELFCLASS32, ELFCLASS64, ELFDATA2MSB, ELFMAG, EM_386, EM_AARCH64, EM_ARM, EM_LOONGARCH, EM_MIPS,
    EM_PPC, EM_PPC64, EM_RISCV, EM_S390, EM_SPARCV9, EM_X86_64, ET_CORE, ET_DYN, ET_EXEC, ET_REL,
};
use goblin::elf::program_header::{PF_R, PF_W, PF_X, PT_LOAD, PT_NOTE};

/// Bytes of a 64-bit ELF header and of a program header.
pub(super) const EHDR: usize = 64;
pub(super) const PHDR: usize = 56;

/// One `PT_LOAD`, clipped so that no two overlap and none leaves the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub start: u64,
    pub end: u64,
    /// Where its bytes begin in the file.
    offset: usize,
    /// Bytes the file really holds for it, from `start`.
    len: usize,
    pub permissions: Permissions,
}

/// The segments of a core, ascending and disjoint: its memory.
#[derive(Debug)]
pub(super) struct Segments {
    bytes: FileBytes,
    pub loads: Vec<Load>,
    /// All that was mapped, dumped or not: (start, end), ascending.
    spans: Vec<(u64, u64)>,
}

/// What the headers told.
pub(super) struct Headers {
    pub segments: Segments,
    /// The note segments: where in the file, and their alignment.
    notes: Vec<(usize, usize, usize)>,
    pub truncated: bool,
}

impl Headers {
    /// Whether a note segment reaches beyond the end of the file.
    pub fn notes_are_cut(&self) -> bool {
        self.notes.iter().any(|(at, len, _)| at.saturating_add(*len) > self.segments.bytes.len())
    }

    /// The bytes of each note segment, cut at the end of the file, and its alignment.
    pub fn notes(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.notes.iter().filter_map(|(at, len, align)| {
            Some((self.segments.bytes.get(*at..at.saturating_add(*len).min(self.segments.bytes.len()))?, *align))
        })
    }
}

/// What a file that does not begin as ELF is, and how to make a core of it. `packed`: what it was unpacked from.
fn foreign(bytes: &[u8], name: &str, packed: Option<&str>) -> String {
    if let Some(kind) = packed {
        let what = match bytes {
            [b'M', b'D', b'M', b'P', ..] => "is a minidump, not an ELF core",
            _ => "is not an ELF file",
        };
        return format!("it is compressed with {kind}, and what is in it {what}");
    }
    match bytes {
        [b'B', b'Z', b'h', ..] => format!("it is compressed with bzip2; unpack it first: `bzip2 -dk {name}`"),
        [b'M', b'D', b'M', b'P', ..] => "it is a minidump, not an ELF core".into(),
        _ if bytes.starts_with(b"ProblemType:") => {
            format!("it is an apport report; unpack it first: `apport-unpack {name} DIR`, then open DIR/CoreDump")
        }
        _ => "it is not an ELF file".into(),
    }
}

/// What a person calls the machine of an ELF file. Source: `elf.h`, the `EM_` constants.
fn machine_name(machine: u16, class: u8, big_endian: bool) -> String {
    let wide = class == ELFCLASS64;
    let name = match (machine, wide, big_endian) {
        (EM_X86_64, true, _) => "big-endian x86-64",
        (EM_X86_64, ..) => "x32 (32-bit x86-64)",
        (EM_386, ..) => "i386 (32-bit x86)",
        (EM_AARCH64, true, false) => "aarch64",
        (EM_AARCH64, true, true) => "big-endian aarch64",
        (EM_AARCH64, ..) => "aarch64 ILP32",
        (EM_ARM, ..) => "32-bit Arm",
        (EM_RISCV, true, _) => "riscv64",
        (EM_RISCV, ..) => "riscv32 (32-bit)",
        (EM_PPC64, _, false) => "ppc64le",
        (EM_PPC64, ..) => "ppc64 (big-endian)",
        (EM_PPC, ..) => "32-bit PowerPC (big-endian)",
        (EM_S390, true, _) => "s390x (big-endian)",
        (EM_S390, ..) => "s390 (32-bit, big-endian)",
        (EM_MIPS, true, _) => "64-bit MIPS",
        (EM_MIPS, ..) => "32-bit MIPS",
        (EM_SPARCV9, ..) => "sparc64 (big-endian)",
        (EM_LOONGARCH, ..) => "loongarch64",
        _ => {
            let bits = if wide { 64 } else { 32 };
            let order = if big_endian { "big" } else { "little" };
            return format!("{bits}-bit {order}-endian machine-{machine}");
        }
    };
    name.to_owned()
}

/// Refuses what is no core of ours by its first [`EHDR`] bytes. `packed`: what it was unpacked from.
pub(super) fn check(bytes: &[u8], name: &str, packed: Option<&str>) -> Result<(), TargetError> {
    let bad = |cause: String| TargetError::BadCore { path: name.to_owned(), cause };
    if !bytes.starts_with(ELFMAG) {
        return Err(bad(foreign(bytes, name, packed)));
    }
    let cut = || cut_off(bytes.len(), name);
    let class = *bytes.get(EI_CLASS).ok_or_else(cut)?;
    let big_endian = *bytes.get(EI_DATA).ok_or_else(cut)? == ELFDATA2MSB;
    let word = |at| u16_at(bytes, at).map(|w| if big_endian { w.swap_bytes() } else { w }).ok_or_else(cut);
    let (kind, machine) = (word(16)?, word(18)?);
    match kind {
        ET_CORE => {}
        ET_EXEC | ET_DYN => {
            return Err(bad(
                "it is a program or library, not a core; give the core here and the program with --exe".into()
            ));
        }
        ET_REL => return Err(bad("it is an object file, not a core".into())),
        _ => return Err(bad(format!("its ELF type is {kind}, not that of a core (4)"))),
    }
    if class != ELFCLASS64 && class != ELFCLASS32 {
        return Err(bad(format!("its ELF header is damaged (class {class})")));
    }
    if class != ELFCLASS64 || machine != EM_X86_64 || big_endian {
        let found = machine_name(machine, class, big_endian);
        return Err(TargetError::WrongArch { what: name.to_owned(), found, kind: "core" });
    }
    Ok(())
}

fn cut_off(len: usize, name: &str) -> TargetError {
    let cause = format!("it is cut off inside its headers ({len} bytes)");
    TargetError::BadCore { path: name.to_owned(), cause }
}

/// Checks that `bytes` are a core we can read and lists its segments.
pub(super) fn parse(bytes: FileBytes, name: &str, warnings: &mut Vec<String>) -> Result<Headers, TargetError> {
    check(bytes.get_at(0, EHDR.min(bytes.len())).unwrap_or_default(), name, None)?;
    let bad = |cause: String| TargetError::BadCore { path: name.to_owned(), cause };
    let cut = || cut_off(bytes.len(), name);
    let headers = program_headers(&bytes, warnings).ok_or_else(cut)?;
    if headers.is_empty() {
        return Err(bad("it has no program headers".into()));
    }
    let mut loads = Vec::new();
    let mut notes = Vec::new();
    let mut whole = 0u64;
    for p in &headers {
        if matches!(p.p_type, PT_LOAD | PT_NOTE) && p.p_filesz > 0 {
            whole = whole.max(p.p_offset.saturating_add(p.p_filesz));
        }
        match p.p_type {
            PT_NOTE => {
                let at = usize::try_from(p.p_offset).unwrap_or(usize::MAX);
                let len = usize::try_from(p.p_filesz).unwrap_or(usize::MAX);
                notes.push((at, len, if p.p_align == 8 { 8 } else { 4 }));
            }
            PT_LOAD => loads.extend(load(p, bytes.len())),
            _ => {}
        }
    }
    let truncated = whole > bytes.len() as u64;
    if truncated {
        warnings.push(format!("the core is truncated: {} of {whole} bytes; memory beyond is missing", bytes.len()));
    }
    let overlaps = disjoin(&mut loads);
    if overlaps > 0 {
        warnings.push(format!(
            "the core is damaged: {overlaps} of its segments overlap others; of each overlap the first in address order is read"
        ));
    }
    let segments = Segments { bytes, loads, spans: Vec::new() };
    Ok(Headers { segments, notes, truncated })
}

/// The program headers the file really holds. More than 65,534 are counted in the first section header (`PN_XNUM`).
fn program_headers(bytes: &FileBytes, warnings: &mut Vec<String>) -> Option<Vec<ProgramHeader>> {
    let header = bytes.get_at(0, EHDR)?;
    let at = usize::try_from(u64_at(header, 32)?).unwrap_or(usize::MAX);
    let section = usize::try_from(u64_at(header, 40)?).unwrap_or(usize::MAX);
    let size = u16_at(header, 54)?;
    let mut count = usize::from(u16_at(header, 56)?);
    if count == 0xffff {
        // sh_info of section header 0, 44 bytes in
        let told = section.checked_add(44).filter(|_| section >= EHDR).and_then(|at| u32_at(bytes.get_at(at, 4)?, 0));
        match told.and_then(|n| usize::try_from(n).ok()) {
            Some(n) => count = n,
            None => warnings.push(
                "the core has more than 65,534 segments and lacks the section header that counts them; those beyond are missing".into(),
            ),
        }
    }
    if usize::from(size) != PHDR && count > 0 {
        return None;
    }
    let room = bytes.len().saturating_sub(at) / PHDR;
    if count > room {
        warnings.push(format!("the core is damaged: it counts {count} segments, {room} of which are in the file"));
        count = room;
    }
    let table = bytes.get_at(at.min(bytes.len()), count * PHDR)?;
    ProgramHeader::parse(table, 0, count, Ctx::new(Container::Big, Endian::Little)).ok()
}

fn load(p: &ProgramHeader, file_len: usize) -> Option<Load> {
    let end = p.p_vaddr.saturating_add(p.p_memsz.max(p.p_filesz));
    let offset = usize::try_from(p.p_offset).unwrap_or(usize::MAX);
    let len = usize::try_from(p.p_filesz).unwrap_or(usize::MAX).min(file_len.saturating_sub(offset));
    let len = len.min(usize::try_from(end - p.p_vaddr).unwrap_or(usize::MAX));
    let has = |flag| p.p_flags & flag != 0;
    let permissions = Permissions { read: has(PF_R), write: has(PF_W), execute: has(PF_X), shared: false };
    (end > p.p_vaddr).then_some(Load { start: p.p_vaddr, end, offset, len, permissions })
}

/// Sorts and clips so that no two overlap; the one that begins first keeps the overlap. Returns how many were clipped.
fn disjoin(loads: &mut Vec<Load>) -> usize {
    loads.sort_by_key(|l| (l.start, l.end));
    let mut clipped = 0;
    let mut last_end = 0;
    loads.retain_mut(|l| {
        if l.start < last_end {
            clipped += 1;
            let gone = last_end.min(l.end) - l.start;
            let gone_bytes = usize::try_from(gone).unwrap_or(usize::MAX);
            l.start += gone;
            l.offset = l.offset.saturating_add(gone_bytes);
            l.len = l.len.saturating_sub(gone_bytes);
        }
        last_end = last_end.max(l.end);
        l.start < l.end
    });
    clipped
}

impl Segments {
    /// Tells which ranges were mapped, so that a failed read can say whether the core or the target lacked the bytes.
    pub fn set_spans(&mut self, mappings: &[Mapping]) {
        self.spans = mappings.iter().map(|m| (m.start.0, m.end.0)).collect();
    }

    fn missing(&self, at: u64) -> ReadError {
        let i = self.spans.partition_point(|(_, end)| *end <= at);
        match self.spans.get(i) {
            Some((start, _)) if *start <= at => ReadError::NotInCore(Addr(at)),
            _ => ReadError::Unmapped(Addr(at)),
        }
    }

    /// The dumped bytes from `at`, as far as its segment holds them, at most `wanted`.
    fn dumped(&self, at: u64, wanted: usize) -> Option<&[u8]> {
        let load = self.loads.get(self.loads.partition_point(|l| l.end <= at))?;
        let into = usize::try_from(at.checked_sub(load.start)?).ok()?;
        let left = load.len.checked_sub(into).filter(|n| *n > 0)?;
        let from = load.offset.checked_add(into)?;
        self.bytes.get_at(from, left.min(wanted))
    }
}

impl Memory for Segments {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        let mut here = at.0;
        let mut rest = buf;
        while !rest.is_empty() {
            let bytes = self.dumped(here, rest.len()).ok_or_else(|| self.missing(here))?;
            let n = bytes.len().min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(bytes.get(..n).unwrap_or(&[]));
            rest = later;
            if !rest.is_empty() {
                here = here.checked_add(n as u64).ok_or(ReadError::Unmapped(Addr(here)))?;
            }
        }
        Ok(())
    }
}
