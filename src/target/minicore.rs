//! Writes a minicore: an ordinary ELF core that holds only what the analysis needs. Kilobytes instead of gigabytes.
//!
//! Every mapping has its segments, so that rights and extents are known; only bytes that were read are in the file.
//! Nothing is filled in: what was not read is a segment part without file bytes, as the kernel writes what it does not
//! dump. Debuggers open it; `core` reads it back.

use super::core::own;
use super::{AT_PHDR, Mapping, PF_FORKNOEXEC, Process, ThreadState};
use crate::arch::x86_64::{PRSTATUS_HEADER, USER_REGS};
use crate::memory::{Kept, Memory, MemoryExt, u64_at};
use crate::units::{Addr, PAGE};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

/// What goes into a minicore.
pub struct Minicore<'a> {
    /// Who the process is.
    pub process: &'a Process,
    /// Its threads. One without registers is told in a note of our own, not in an `NT_PRSTATUS`.
    pub threads: &'a [ThreadState],
    /// Whether there may be threads beside these.
    pub unlisted: bool,
    /// Its mappings, ascending.
    pub mappings: &'a [Mapping],
    /// What was read while it was held.
    pub kept: &'a Kept,
    /// Bytes of mapped files that another machine will need, by their address in the process; what was read wins over
    /// them.
    pub files: &'a [(Addr, Vec<u8>)],
}

const EHDR: u64 = 64;
const PHDR: u64 = 56;
const SHDR: u64 = 64;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
/// `PN_XNUM`: this many program headers or more are counted in section header 0.
const PN_XNUM: u64 = 0xffff;

/// One loadable segment: its bytes stand at its start, the rest was not read.
struct Segment<'a> {
    at: u64,
    memory_size: u64,
    flags: u32,
    bytes: Vec<&'a [u8]>,
}

impl Segment<'_> {
    fn file_size(&self) -> u64 {
        self.bytes.iter().map(|b| b.len() as u64).sum()
    }
}

/// Writes `core` to `out`; returns the bytes written.
///
/// # Errors
/// Those of `out`.
pub fn write(core: &Minicore<'_>, out: &mut dyn Write) -> io::Result<u64> {
    let segments = segments(core);
    let notes = notes(core)?;
    let headers = segments.len() as u64 + 1;
    let many = headers >= PN_XNUM;
    let notes_at = EHDR + headers * PHDR + if many { SHDR } else { 0 };

    let mut head = Vec::new();
    // e_ident: 64-bit, little-endian, version 1, System V
    head.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for half in [4u16, 62] {
        head.extend_from_slice(&half.to_le_bytes()); // ET_CORE, EM_X86_64
    }
    head.extend_from_slice(&1u32.to_le_bytes());
    let section_at = if many { EHDR + headers * PHDR } else { 0 };
    for word in [0, EHDR, section_at] {
        head.extend_from_slice(&word.to_le_bytes()); // entry, program headers, section headers
    }
    head.extend_from_slice(&0u32.to_le_bytes());
    let count = u16::try_from(headers.min(PN_XNUM)).unwrap_or(u16::MAX);
    for half in [64, 56, count, if many { 64 } else { 0 }, u16::from(many), 0] {
        head.extend_from_slice(&half.to_le_bytes());
    }
    program_header(&mut head, (PT_NOTE, 0), notes_at, 0, (notes.len() as u64, 0), 4);
    let mut at = notes_at + notes.len() as u64;
    for s in &segments {
        let size = s.file_size();
        program_header(&mut head, (PT_LOAD, s.flags), at, s.at, (size, s.memory_size), 1);
        at += size;
    }
    if many {
        let mut section = [0u8; SHDR as usize];
        let count = u32::try_from(headers).map_err(|_| io::Error::other("too many segments for a core"))?;
        section[44..48].copy_from_slice(&count.to_le_bytes()); // sh_info
        head.extend_from_slice(&section);
    }
    out.write_all(&head)?;
    out.write_all(&notes)?;
    for bytes in segments.iter().flat_map(|s| &s.bytes) {
        out.write_all(bytes)?;
    }
    out.flush()?;
    Ok(at)
}

fn program_header(out: &mut Vec<u8>, kind: (u32, u32), offset: u64, at: u64, sizes: (u64, u64), align: u64) {
    out.extend_from_slice(&kind.0.to_le_bytes());
    out.extend_from_slice(&kind.1.to_le_bytes());
    for word in [offset, at, 0, sizes.0, sizes.1, align] {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// Adds `bytes` where nothing stands yet.
fn add<'a>(all: &mut BTreeMap<u64, &'a [u8]>, at: u64, bytes: &'a [u8]) {
    let mut start = at;
    let mut rest = bytes;
    while !rest.is_empty() {
        let covered = all.range(..=start).next_back().map(|(from, had)| from.saturating_add(had.len() as u64));
        if let Some(end) = covered.filter(|end| *end > start) {
            let skip = usize::try_from(end - start).unwrap_or(usize::MAX).min(rest.len());
            rest = rest.get(skip..).unwrap_or(&[]);
            start = end;
            continue;
        }
        let room = match all.range(start..).next() {
            Some((next, _)) => usize::try_from(next - start).unwrap_or(usize::MAX).min(rest.len()),
            None => rest.len(),
        };
        let (now, later) = rest.split_at(room);
        all.insert(start, now);
        start = start.saturating_add(room as u64);
        rest = later;
    }
}

/// Cuts the piece that runs across `bound` in two.
fn cut(pieces: &mut BTreeMap<u64, &[u8]>, bound: u64) {
    let Some((from, bytes)) = pieces.range(..bound).next_back().map(|(from, bytes)| (*from, *bytes)) else { return };
    let below = usize::try_from(bound - from).unwrap_or(usize::MAX);
    if let Some((below, above)) = bytes.split_at_checked(below).filter(|(_, above)| !above.is_empty()) {
        pieces.insert(from, below);
        pieces.insert(bound, above);
    }
}

/// Pieces that touch, joined: where each run begins, and its pieces.
fn runs<'a, 'p>(pieces: impl Iterator<Item = (&'p u64, &'p &'a [u8])>) -> Vec<(u64, Vec<&'a [u8]>)>
where
    'a: 'p,
{
    let mut runs: Vec<(u64, Vec<&[u8]>)> = Vec::new();
    let mut end = None;
    for (at, bytes) in pieces {
        match runs.last_mut() {
            Some((_, run)) if end == Some(*at) => run.push(bytes),
            _ => runs.push((*at, vec![bytes])),
        }
        end = at.checked_add(bytes.len() as u64);
    }
    runs
}

/// The segments, ascending: each mapping cut where read bytes begin.
fn segments<'a>(core: &Minicore<'a>) -> Vec<Segment<'a>> {
    let mut pieces = BTreeMap::new();
    for (at, bytes) in core.kept.extents() {
        add(&mut pieces, at.0, bytes);
    }
    for (at, bytes) in core.files {
        add(&mut pieces, at.0, bytes);
    }
    for m in core.mappings {
        cut(&mut pieces, m.start.0);
        cut(&mut pieces, m.end.0);
    }
    let mut segments = Vec::new();
    // bytes read outside every mapping: it appeared after the mappings were listed
    let loose = |from: u64, to: Option<u64>, segments: &mut Vec<Segment<'a>>| {
        let range = (std::ops::Bound::Included(from), to.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded));
        for (at, bytes) in runs(pieces.range(range)) {
            let memory_size = bytes.iter().map(|b| b.len() as u64).sum();
            segments.push(Segment { at, memory_size, flags: PF_R, bytes });
        }
    };
    let mut last_end = 0;
    for m in core.mappings.iter().filter(|m| m.start < m.end) {
        if m.start.0 < last_end {
            continue;
        }
        loose(last_end, Some(m.start.0), &mut segments);
        last_end = m.end.0;
        let p = m.permissions;
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        let flags = flag(p.read, PF_R) | flag(p.write, PF_W) | flag(p.execute, PF_X);
        let mut runs = runs(pieces.range(m.start.0..m.end.0));
        if runs.first().is_none_or(|(at, _)| *at > m.start.0) {
            runs.insert(0, (m.start.0, Vec::new()));
        }
        let ends: Vec<u64> = runs.iter().skip(1).map(|(at, _)| *at).chain([m.end.0]).collect();
        for ((at, bytes), end) in runs.into_iter().zip(ends) {
            segments.push(Segment { at, memory_size: end - at, flags, bytes });
        }
    }
    loose(last_end, None, &mut segments);
    segments
}

fn note(out: &mut Vec<u8>, name: &str, kind: u32, desc: &[u8]) -> io::Result<()> {
    let size = |n: usize| u32::try_from(n).map_err(|_| io::Error::other("a note is too large for a core"));
    for word in [size(name.len() + 1)?, size(desc.len())?, kind] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(desc);
    out.resize(out.len().next_multiple_of(4), 0);
    Ok(())
}

/// The notes in the kernel's order: the first thread, the process, then the other threads; ours last.
fn notes(core: &Minicore<'_>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let main = |t: &&ThreadState| t.host_tid.0 == core.process.pid.0;
    let others = core.threads.iter().filter(|t| !main(t));
    let mut status = core.threads.iter().filter(main).chain(others).filter_map(|t| prstatus(core.process, t));
    if let Some(first) = status.next() {
        note(&mut out, "CORE", NT_PRSTATUS, &first)?;
    }
    note(&mut out, "CORE", NT_PRPSINFO, &prpsinfo(core))?;
    let auxv: Vec<u8> =
        core.process.auxv.iter().chain([&(0, 0)]).flat_map(|(k, v)| [*k, *v]).flat_map(u64::to_le_bytes).collect();
    note(&mut out, "CORE", NT_AUXV, &auxv)?;
    note(&mut out, "CORE", NT_FILE, &files(core.mappings))?;
    for desc in status {
        note(&mut out, "CORE", NT_PRSTATUS, &desc)?;
    }
    note(&mut out, own::NAME, own::PROCESS, &own::write_process(core.process))?;
    note(&mut out, own::NAME, own::THREADS, &own::write_threads(core.threads, core.unlisted))?;
    note(&mut out, own::NAME, own::MAPS, &own::write_maps(core.mappings))?;
    Ok(out)
}

/// `struct elf_prstatus` (Linux `include/linux/elfcore.h`), 336 bytes on x86-64: `pr_pid` at 32, registers at 112.
fn prstatus(process: &Process, thread: &ThreadState) -> Option<Vec<u8>> {
    let registers = thread.registers.as_ref()?.raw.get(..USER_REGS)?;
    let mut desc = vec![0; 32];
    for id in [thread.tid.0, 0, process.pid.0, 0] {
        desc.extend_from_slice(&id.to_le_bytes()); // pr_pid, pr_ppid, pr_pgrp, pr_sid
    }
    desc.resize(PRSTATUS_HEADER, 0);
    desc.extend_from_slice(registers);
    desc.resize(336, 0);
    Some(desc)
}

/// `struct elf_prpsinfo`, 136 bytes on x86-64: state letter at 1, `pr_flag` at 8, `pr_pid` at 24, name at 40, command line at 56.
fn prpsinfo(core: &Minicore<'_>) -> Vec<u8> {
    let main = core.threads.iter().find(|t| t.host_tid.0 == core.process.pid.0);
    let mut desc = vec![0, b'S', 0, 0];
    desc.resize(8, 0);
    // PF_RANDOMIZE with it, so that flags told are not all zero
    let flags: u64 = core.process.forked.map_or(0, |forked| 0x0040_0000 | if forked { PF_FORKNOEXEC } else { 0 });
    desc.extend_from_slice(&flags.to_le_bytes());
    desc.resize(24, 0);
    desc.extend_from_slice(&core.process.pid.0.to_le_bytes());
    desc.resize(40, 0);
    let name = main.and_then(|t| t.name.as_deref()).unwrap_or_default();
    desc.extend(name.bytes().take(15));
    desc.resize(56, 0);
    desc.extend(core.process.command.join(" ").bytes().take(79));
    desc.resize(136, 0);
    desc
}

/// The `NT_FILE` note: count, page size, (start, end, offset in pages) each, then the paths.
fn files(mappings: &[Mapping]) -> Vec<u8> {
    let files: Vec<(&Mapping, &[u8])> = mappings
        .iter()
        .filter(|m| m.is_file())
        .filter_map(|m| Some((m, m.path.as_ref()?.as_os_str().as_bytes())))
        .collect();
    let mut desc = Vec::new();
    desc.extend_from_slice(&(files.len() as u64).to_le_bytes());
    desc.extend_from_slice(&PAGE.to_le_bytes());
    for (m, _) in &files {
        for word in [m.start.0, m.end.0, m.offset / PAGE] {
            desc.extend_from_slice(&word.to_le_bytes());
        }
    }
    for (m, path) in files {
        desc.extend_from_slice(path);
        if m.deleted {
            desc.extend_from_slice(b" (deleted)");
        }
        desc.push(0);
    }
    desc
}

const AT_PHNUM: u64 = 5;
const AT_BASE: u64 = 7;
const AT_SYSINFO_EHDR: u64 = 33;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const DT_DEBUG: u64 = 21;
/// Loaded files followed at most.
const MAX_MODULES: usize = 4096;
/// Bytes of one mapping taken at most.
const MAX_MAPPING: usize = 1 << 17;
/// Bytes of `struct pthread` at most: 2,496 in glibc 2.32 to 2.35, less in others.
const PTHREAD: usize = 0x9c0;

/// Reads what a debugger wants of a minicore beyond what the analysis reads, so that a door which keeps what is read has it:
/// the vdso, the writable data of libc and the loader, the list of loaded files, and each thread's `struct pthread`. For use while the
/// process is held; what cannot be read is passed over.
pub fn gather(memory: &dyn Memory, process: &Process, mappings: &[Mapping], threads: &[ThreadState]) {
    let holding = |at: u64| mappings.iter().find(|m| m.contains(Addr(at)));
    // a thread's structure ends where its stack's mapping does, or before
    let descriptor = |at: u64| Some((Addr(at), usize::try_from(holding(at)?.end.0 - at).ok()?.min(PTHREAD)));
    let mut ranges: Vec<(Addr, usize)> =
        threads.iter().filter_map(|t| descriptor(t.registers.as_ref()?.tls_base?)).collect();
    let loader = process.auxv(AT_BASE).filter(|at| *at != 0).and_then(holding).and_then(|m| m.path.as_ref());
    let vdso = process.auxv(AT_SYSINFO_EHDR).and_then(holding);
    let data = mappings.iter().filter(|m| {
        // libthread_db begins at a pointer in libc's (before 2.34: libpthread's) data, and goes on in the loader's
        let path = m.path.as_ref().filter(|_| m.permissions.write);
        let name = path.and_then(|p| p.file_name()?.to_str()).unwrap_or_default();
        let (stem, _) = name.split_once(".so").unwrap_or((name, ""));
        let libc = ["libc", "libpthread"].contains(&stem.split('-').next().unwrap_or_default());
        path.is_some() && (libc || path == loader)
    });
    for m in data.chain(vdso) {
        let len = m.end.0.saturating_sub(m.start.0);
        if let Some(len) = usize::try_from(len).ok().filter(|len| *len <= MAX_MAPPING) {
            ranges.push((m.start, len));
        }
    }
    memory.expect(&ranges);
    for (at, len) in ranges {
        let _ = memory.read_vec(at, len);
    }
    let _ = read_link_maps(memory, process);
}

/// Reads the program's headers and dynamic section, `r_debug`, and the list of `struct link_map` with the names and
/// dynamic sections they point at. `None` where the chain ends early, as for static programs.
///
/// Source: `<link.h>`: `r_map` is at 8 in `struct r_debug`; `l_name` at 8, `l_ld` at 16, `l_next` at 24 in `struct link_map`.
fn read_link_maps(memory: &dyn Memory, process: &Process) -> Option<()> {
    let at = Addr(process.auxv(AT_PHDR)?);
    let len = usize::try_from(process.auxv(AT_PHNUM)?.min(512) * PHDR).ok()?;
    let headers = memory.read_vec(at, len).ok()?;
    let header = |kind: u32| headers.chunks_exact(56).find(|h| h.starts_with(&kind.to_le_bytes()));
    let bias = header(PT_PHDR).and_then(|h| u64_at(h, 16)).map_or(0, |vaddr| at.0.wrapping_sub(vaddr));
    let dynamic = header(PT_DYNAMIC)?;
    let size = usize::try_from(u64_at(dynamic, 40)?.min(1 << 16)).ok()?;
    let entries = memory.read_vec(Addr(u64_at(dynamic, 16)?.wrapping_add(bias)), size).ok()?;
    let debug = entries.chunks_exact(16).find(|e| u64_at(e, 0) == Some(DT_DEBUG)).and_then(|e| u64_at(e, 8))?;
    let debug = memory.read_vec(Addr(debug), 40).ok()?;
    let first = Addr(u64_at(&debug, 8)?);
    crate::memory::walk(first, MAX_MODULES, |map| {
        let bytes = memory.read_vec(map, 40)?;
        let _ = u64_at(&bytes, 8).map(|name| memory.read_c_string(Addr(name), 4096));
        let _ = u64_at(&bytes, 16).map(|dynamic| read_dynamic(memory, Addr(dynamic)));
        Ok(u64_at(&bytes, 24).map(Addr))
    });
    Some(())
}

/// Reads a dynamic section up to its closing `DT_NULL`.
fn read_dynamic(memory: &dyn Memory, at: Addr) -> Option<()> {
    const STEP: usize = 256;
    for i in 0..64 {
        let bytes = memory.read_vec(at.checked_add(i * STEP as u64)?, STEP).ok()?;
        if bytes.chunks_exact(16).any(|entry| entry.starts_with(&[0; 8])) {
            break;
        }
    }
    Some(())
}
