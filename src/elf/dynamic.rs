//! What the dynamic section says, for files without section headers and for images read from memory: the vdso, files
//! that are gone, cores without their binaries.

use super::cfi::EhFrameHdr;
use super::headers::{EHDR, Headers, PHDR, parse_file_header};
use super::symbols::{SYM, Table, count_by_gnu_hash};
use super::{ElfError, ElfFile, Extent};
use crate::memory::{FileBytes, Memory, u32_at, u64_at};
use crate::units::{Addr, PAGE, Vaddr};
use std::sync::Arc;

const DT_PLTRELSZ: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;

/// Bytes read of one image at most.
const IMAGE_BOUND: usize = 128 << 20;
/// Program headers read at most; the largest seen is 14.
const SEGMENT_BOUND: u16 = 256;
/// Dynamic entries, symbols and bytes of strings believed at most.
const ENTRY_BOUND: usize = 1 << 12;
const SYMBOL_BOUND: usize = 1 << 22;
const STRING_BOUND: u64 = 64 << 20;
/// Bytes of one relocation (`Elf64_Rela`), and of a table of them believed at most.
const RELA: usize = 24;
const RELA_BOUND: u64 = 64 << 20;
/// `R_X86_64_GLOB_DAT` and `R_X86_64_JUMP_SLOT`: the slot gets the address of a symbol.
const GLOB_DAT: u64 = 6;
const JUMP_SLOT: u64 = 7;

/// The tables a dynamic section names, as file addresses.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Dynamic {
    symbols: u64,
    strings: u64,
    strings_size: u64,
    hash: Option<u64>,
    gnu_hash: Option<u64>,
    versions: Option<u64>,
    /// Relocations of the procedure linkage table, and all others: where they lie and their bytes.
    plt_relocations: (u64, u64),
    relocations: (u64, u64),
}

impl Dynamic {
    /// Reads the entries. The loader of glibc adds the load bias to the pointers in place, the kernel does not for the
    /// vdso: `to_vaddr` takes either.
    fn parse(bytes: &[u8], to_vaddr: impl Fn(u64) -> u64) -> Option<Dynamic> {
        let mut d = Dynamic::default();
        for entry in bytes.chunks_exact(16).take(ENTRY_BOUND) {
            let value = u64_at(entry, 8)?;
            match u64_at(entry, 0)? {
                0 => break,
                DT_SYMTAB => d.symbols = to_vaddr(value),
                DT_STRTAB => d.strings = to_vaddr(value),
                DT_STRSZ => d.strings_size = value,
                DT_HASH => d.hash = Some(to_vaddr(value)),
                DT_GNU_HASH => d.gnu_hash = Some(to_vaddr(value)),
                DT_VERSYM => d.versions = Some(to_vaddr(value)),
                DT_JMPREL => d.plt_relocations.0 = to_vaddr(value),
                DT_PLTRELSZ => d.plt_relocations.1 = value.min(RELA_BOUND),
                DT_RELA => d.relocations.0 = to_vaddr(value),
                DT_RELASZ => d.relocations.1 = value.min(RELA_BOUND),
                _ => {}
            }
        }
        (d.symbols != 0 && d.strings != 0 && d.strings_size <= STRING_BOUND).then_some(d)
    }

    /// Bytes of the `.gnu.hash` at most: to the next table, which follows it in every file seen.
    fn gnu_hash_room(&self) -> Option<(u64, u64)> {
        let from = self.gnu_hash?;
        let others = [Some(self.symbols), Some(self.strings), self.hash, self.versions];
        let to = others.into_iter().flatten().filter(|v| *v > from).min();
        Some((from, to.map_or(1 << 16, |to| (to - from).min(STRING_BOUND))))
    }
}

/// Pieces of an image copied out of memory, one after the other.
#[derive(Default)]
struct Pieces {
    bytes: Vec<u8>,
    extents: Vec<Extent>,
}

impl Pieces {
    /// Copies `[vaddr, vaddr + len)`, as far as it can be read from the start on.
    fn load(&mut self, memory: &dyn Memory, bias: u64, vaddr: u64, len: u64, writable: bool) -> Option<&[u8]> {
        let from = self.bytes.len();
        let len = usize::try_from(len).ok()?.min(IMAGE_BOUND.checked_sub(from)?);
        let mut done = 0;
        while done < len {
            let at = Addr(vaddr.wrapping_add(bias)).checked_add(done as u64)?;
            let in_page = usize::try_from(PAGE - at.0 % PAGE).ok()?;
            // long runs in large pieces, and page by page where one fails
            let mut step = in_page.checked_add(1 << 20)?.min(len - done);
            let start = from.checked_add(done)?;
            self.bytes.resize(start.checked_add(step)?, 0);
            if memory.read(at, self.bytes.get_mut(start..)?).is_err() {
                step = in_page.min(len - done);
                self.bytes.truncate(start.checked_add(step)?);
                if memory.read(at, self.bytes.get_mut(start..)?).is_err() {
                    self.bytes.truncate(start);
                    break;
                }
            }
            done += step;
        }
        if done == 0 {
            return None;
        }
        self.extents.push(Extent { vaddr, bytes: from..from + done, writable });
        self.bytes.get(from..)
    }

    fn at(&self, vaddr: u64) -> Option<&[u8]> {
        let extent = self
            .extents
            .iter()
            .find(|e| vaddr.checked_sub(e.vaddr).is_some_and(|skip| skip < (e.bytes.end - e.bytes.start) as u64))?;
        let skip = usize::try_from(vaddr - extent.vaddr).ok()?;
        self.bytes.get(extent.bytes.clone())?.get(skip..)
    }
}

impl ElfFile {
    /// The image of a file as it lies in memory at `base` (where its first byte is mapped), `span` bytes long as far as
    /// the mappings tell: program headers, dynamic symbols, call frame information and build-id, as far as `memory` has
    /// them.
    ///
    /// # Errors
    /// [`ElfError::Malformed`] where there are no readable headers at `base`.
    pub fn from_memory(memory: &dyn Memory, base: Addr, span: u64) -> Result<ElfFile, ElfError> {
        let unreadable = |_| ElfError::Malformed(format!("no ELF headers can be read at {base}"));
        let mut header = [0; EHDR];
        memory.read(base, &mut header).map_err(unreadable)?;
        let file = parse_file_header(&header)?;
        let count = usize::from(file.program_header_count.min(SEGMENT_BOUND));
        let mut table = vec![0; count * PHDR];
        let at = base.checked_add(file.program_headers).filter(|_| file.program_headers < PAGE * 16);
        let at = at.ok_or_else(|| ElfError::Malformed("its program headers lie far from its start".to_owned()))?;
        memory.read(at, &mut table).map_err(unreadable)?;
        let mut headers = Headers::default();
        headers.parse_segments(&table);
        let first = headers.segments.iter().find(|s| s.offset < PAGE).map_or(0, |s| s.vaddr.0 & !(PAGE - 1));
        let bias = base.0.wrapping_sub(first);

        let mut pieces = Pieces::default();
        load_image(&mut pieces, memory, &headers, bias, span);
        let Pieces { bytes, extents } = pieces;
        Ok(ElfFile::assemble(FileBytes::owned(bytes), headers, extents, bias))
    }

    fn dynamic(&self) -> Option<Dynamic> {
        let part = self.headers.dynamic?;
        let size = usize::try_from(part.size).ok()?.min(ENTRY_BOUND * 16);
        let range = self.range_at(Vaddr(part.vaddr), None)?;
        let bytes = self.bytes.get_at(range.start, size.min(range.len()))?;
        let bias = self.pointer_bias;
        Dynamic::parse(bytes, |v| unrelocated(&self.headers, bias, v))
    }

    /// The symbol whose address the loader puts into the slot at `slot` of the global offset table: what a call through the
    /// procedure linkage table reaches. From the relocations, so whether or not the slot was filled yet.
    #[must_use]
    pub fn import_at(&self, slot: Vaddr) -> Option<Arc<str>> {
        let dynamic = self.dynamic()?;
        let tables = [dynamic.plt_relocations, dynamic.relocations];
        let index = tables.into_iter().find_map(|(at, size)| {
            let range = self.range_at(Vaddr(at), None).filter(|_| size > 0)?;
            let size = usize::try_from(size).ok()?.min(range.end - range.start);
            let table = self.bytes.get(range.start..range.start + size)?;
            table.chunks_exact(RELA).find_map(|entry| {
                let info = u64_at(entry, 8).filter(|i| matches!(i & 0xffff_ffff, GLOB_DAT | JUMP_SLOT))?;
                (u64_at(entry, 0)? == slot.0).then_some(info >> 32)
            })
        })?;
        self.own_tables.first()?.name_at(usize::try_from(index).ok()?)
    }

    /// The dynamic symbol table by the dynamic section.
    pub(super) fn table_by_dynamic(&self) -> Option<Table> {
        let dynamic = self.dynamic()?;
        let tail = |vaddr: u64| self.bytes.get(self.range_at(Vaddr(vaddr), None)?);
        let count = symbol_count(&dynamic, tail)?;
        let symbols = self.range_at(Vaddr(dynamic.symbols), None)?;
        let have = (symbols.end - symbols.start) / SYM;
        let symbols = symbols.start..symbols.start + have.min(count) * SYM;
        let strings = self.range_at(Vaddr(dynamic.strings), None)?;
        let size = usize::try_from(dynamic.strings_size).ok()?.min(strings.end - strings.start);
        Some(Table {
            bytes: self.bytes.clone(),
            symbols,
            strings: strings.start..strings.start + size,
            versions: dynamic.versions.and_then(|v| self.range_at(Vaddr(v), None)),
            hash: dynamic.gnu_hash.and_then(|v| self.range_at(Vaddr(v), None)),
            code_ends: Arc::new([]),
        })
    }
}

/// A pointer of the dynamic section as a file address, whether or not the loader added the bias to it.
fn unrelocated(headers: &Headers, bias: u64, value: u64) -> u64 {
    let inside =
        |v: u64| headers.segments.iter().any(|s| v.checked_sub(s.vaddr.0).is_some_and(|into| into < s.memory_size));
    let less = value.wrapping_sub(bias);
    if !inside(value) && inside(less) { less } else { value }
}

fn symbol_count<'a>(dynamic: &Dynamic, tail: impl Fn(u64) -> Option<&'a [u8]>) -> Option<usize> {
    let by_hash = dynamic.hash.and_then(&tail).and_then(|h| usize::try_from(u32_at(h, 4)?).ok());
    let by_gnu_hash = || dynamic.gnu_hash.and_then(&tail).and_then(count_by_gnu_hash);
    let by_distance = || usize::try_from(dynamic.strings.checked_sub(dynamic.symbols)?).ok().map(|n| n / SYM);
    by_hash.or_else(by_gnu_hash).or_else(by_distance).filter(|n| *n <= SYMBOL_BOUND)
}

/// Copies what the rest of this room reads of an image.
fn load_image(pieces: &mut Pieces, memory: &dyn Memory, headers: &Headers, bias: u64, span: u64) {
    let segment_of = |vaddr: u64| {
        headers.segments.iter().find(|s| vaddr.checked_sub(s.vaddr.0).is_some_and(|into| into < s.memory_size))
    };
    // small ones (the vdso is two pages) whole
    if span <= 1 << 18 {
        let mut whole = true;
        for s in headers.segments.iter().filter(|s| s.memory_size <= span) {
            let loaded = pieces.load(memory, bias, s.vaddr.0, s.memory_size, s.writable).map_or(0, <[u8]>::len);
            whole &= s.writable || loaded as u64 == s.memory_size;
        }
        if whole {
            return;
        }
        // a minicore has only the parts
        *pieces = Pieces::default();
    }
    load_parts(pieces, memory, headers, bias, &segment_of);
}

fn load_parts<'h>(
    pieces: &mut Pieces,
    memory: &dyn Memory,
    headers: &Headers,
    bias: u64,
    segment_of: &dyn Fn(u64) -> Option<&'h super::Segment>,
) {
    let rest_of_segment =
        |vaddr: u64| segment_of(vaddr).map_or(0, |s| s.memory_size.saturating_sub(vaddr.wrapping_sub(s.vaddr.0)));
    for (vaddr, size, _) in &headers.notes {
        pieces.load(memory, bias, *vaddr, (*size).min(PAGE), false);
    }
    if let Some(part) = headers.eh_frame_hdr {
        let hdr = pieces.load(memory, bias, part.vaddr, part.size.min(rest_of_segment(part.vaddr)), false);
        if let Some(hdr) = hdr.and_then(|b| EhFrameHdr::parse(b, b.len(), part.vaddr)) {
            pieces.load(memory, bias, hdr.eh_frame, rest_of_segment(hdr.eh_frame), false);
        }
    }
    let Some(part) = headers.dynamic else { return };
    let size = part.size.min((ENTRY_BOUND * 16) as u64);
    let dynamic = pieces
        .load(memory, bias, part.vaddr, size, true)
        .and_then(|b| Dynamic::parse(b, |v| unrelocated(headers, bias, v)));
    let Some(dynamic) = dynamic else { return };
    if let Some(hash) = dynamic.hash {
        pieces.load(memory, bias, hash, 8, false);
    }
    if let Some((hash, room)) = dynamic.gnu_hash_room() {
        pieces.load(memory, bias, hash, room.min(rest_of_segment(hash)), false);
    }
    let Some(count) = symbol_count(&dynamic, |v| pieces.at(v)) else { return };
    pieces.load(memory, bias, dynamic.symbols, (count * SYM) as u64, false);
    pieces.load(memory, bias, dynamic.strings, dynamic.strings_size, false);
    if let Some(versions) = dynamic.versions {
        pieces.load(memory, bias, versions, (count * 2) as u64, false);
    }
    let (at, size) = dynamic.plt_relocations;
    if size > 0 {
        pieces.load(memory, bias, at, size.min(rest_of_segment(at)), false);
    }
}
