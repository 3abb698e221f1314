//! The ELF headers: program headers, section headers, notes. Reads only bytes and trusts none of them.

use super::{ElfError, Segment};
use crate::memory::{FileBytes, u16_at, u32_at, u64_at};
use crate::units::Vaddr;
use std::ops::Range;

/// A NUL-terminated string at `at`, without the NUL.
pub(super) fn string_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|b| *b == 0)?;
    rest.get(..end)
}

/// The part of `bytes` that `offset` and `size`, as a header gives them, mean: `None` where it reaches past the end.
pub(super) fn range_of(bytes: &FileBytes, offset: u64, size: u64) -> Option<Range<usize>> {
    let from = usize::try_from(offset).ok()?;
    let to = from.checked_add(usize::try_from(size).ok()?)?;
    (to <= bytes.len()).then_some(from..to)
}

/// Bytes of an ELF64 file header.
pub(super) const EHDR: usize = 64;
/// Bytes of an ELF64 program header.
pub(super) const PHDR: usize = 56;
const SHDR: usize = 64;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// `SHT_SYMTAB`.
pub(super) const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;
/// `SHT_NOBITS`: the section has no bytes in this file.
pub(super) const SHT_NOBITS: u32 = 8;
/// `SHT_DYNSYM`.
pub(super) const SHT_DYNSYM: u32 = 11;
/// `SHT_GNU_versym`.
pub(super) const SHT_VERSYM: u32 = 0x6fff_ffff;
/// `SHT_GNU_HASH`.
pub(super) const SHT_GNU_HASH: u32 = 0x6fff_fff6;

/// `SHF_ALLOC`.
pub(super) const SHF_ALLOC: u64 = 2;
/// `SHF_EXECINSTR`.
pub(super) const SHF_EXECINSTR: u64 = 4;
/// `SHF_COMPRESSED`.
pub(super) const SHF_COMPRESSED: u64 = 0x800;

/// Any range of addresses a program header names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub vaddr: u64,
    pub size: u64,
}

/// One section header. Names stay in their table until asked for.
#[derive(Clone, Debug)]
pub(super) struct Section {
    name: usize,
    pub kind: u32,
    pub flags: u64,
    pub vaddr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
}

/// What the headers say.
#[derive(Debug, Default)]
pub(super) struct Headers {
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
    names: Range<usize>,
    pub eh_frame_hdr: Option<Part>,
    pub dynamic: Option<Part>,
    pub notes: Vec<(u64, u64, u64)>,
}

/// The fields of the file header that matter here, checked to be a 64-bit little-endian ELF file.
pub(super) struct FileHeader {
    pub program_headers: u64,
    pub program_header_count: u16,
    section_headers: u64,
    section_count: u16,
    section_names: u16,
}

/// Reads the file header.
pub(super) fn parse_file_header(bytes: &[u8]) -> Result<FileHeader, ElfError> {
    let bad = |what: &str| ElfError::Malformed(what.to_owned());
    let header = bytes.get(..EHDR).ok_or_else(|| bad("shorter than its header"))?;
    if header.get(..4) != Some(b"\x7fELF") {
        return Err(bad("no ELF magic"));
    }
    if header.get(4..6) != Some(&[2, 1]) {
        return Err(bad("not 64-bit little-endian"));
    }
    let short = || bad("shorter than its header");
    let entry = u16_at(header, 54).ok_or_else(short)?;
    let count = u16_at(header, 56).ok_or_else(short)?;
    if count != 0 && usize::from(entry) != PHDR {
        return Err(bad("program headers of an unknown size"));
    }
    let section_entry = u16_at(header, 58).ok_or_else(short)?;
    let known_sections = usize::from(section_entry) == SHDR;
    Ok(FileHeader {
        program_headers: u64_at(header, 32).ok_or_else(short)?,
        program_header_count: count,
        section_headers: if known_sections { u64_at(header, 40).ok_or_else(short)? } else { 0 },
        section_count: u16_at(header, 60).ok_or_else(short)?,
        section_names: u16_at(header, 62).ok_or_else(short)?,
    })
}

impl Headers {
    /// Reads the headers of a whole file. Section headers that make no sense are as good as none; program headers that
    /// make no sense are an error.
    pub(super) fn parse(bytes: &FileBytes) -> Result<Headers, ElfError> {
        let file = parse_file_header(bytes.get(0..EHDR.min(bytes.len())).unwrap_or(&[]))?;
        let mut headers = Headers::default();
        headers.parse_sections(bytes, &file);
        let mut count = u64::from(file.program_header_count);
        if count == 0xffff {
            // PN_XNUM: the real count stands in the first section header's sh_info
            let at = usize::try_from(file.section_headers).ok().and_then(|o| o.checked_add(44));
            count = at.and_then(|at| u32_at(bytes.get_at(at, 4)?, 0)).map_or(count, u64::from);
        }
        let table = range_of(bytes, file.program_headers, count.saturating_mul(PHDR as u64))
            .and_then(|r| bytes.get(r))
            .ok_or_else(|| ElfError::Malformed("its program headers lie beyond its end".to_owned()))?;
        headers.parse_segments(table);
        Ok(headers)
    }

    /// Reads a table of program headers.
    pub(super) fn parse_segments(&mut self, table: &[u8]) {
        for entry in table.chunks_exact(PHDR) {
            let (Some(kind), Some(flags)) = (u32_at(entry, 0), u32_at(entry, 4)) else { continue };
            let word = |i: usize| u64_at(entry, 8 + i * 8).unwrap_or(0);
            let (offset, vaddr, file_size, memory_size, align) = (word(0), word(1), word(3), word(4), word(5));
            match kind {
                PT_LOAD => self.segments.push(Segment {
                    vaddr: Vaddr(vaddr),
                    memory_size,
                    offset,
                    file_size,
                    writable: flags & 2 != 0,
                    executable: flags & 1 != 0,
                }),
                PT_DYNAMIC => self.dynamic = Some(Part { vaddr, size: memory_size }),
                PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(Part { vaddr, size: memory_size }),
                PT_NOTE => self.notes.push((vaddr, memory_size, align)),
                _ => {}
            }
        }
    }

    fn parse_sections(&mut self, bytes: &FileBytes, file: &FileHeader) {
        if file.section_headers == 0 {
            return;
        }
        let Ok(from) = usize::try_from(file.section_headers) else { return };
        let Some(first) = bytes.get_at(from, SHDR) else { return };
        // with 0xff00 sections or more, count and name index stand in the first header (SHN_XINDEX)
        let count = match file.section_count {
            0 => u64_at(first, 32).and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
            n => usize::from(n),
        };
        let names = match file.section_names {
            0xffff => u32_at(first, 40).and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
            n => usize::from(n),
        };
        let count = count.min(bytes.len().saturating_sub(from) / SHDR);
        for entry in bytes.get_at(from, count * SHDR).unwrap_or(&[]).chunks_exact(SHDR) {
            let (Some(name), Some(kind), Some(flags)) = (u32_at(entry, 0), u32_at(entry, 4), u64_at(entry, 8)) else {
                return;
            };
            let word = |at: usize| u64_at(entry, at).unwrap_or(0);
            self.sections.push(Section {
                name: usize::try_from(name).unwrap_or(usize::MAX),
                kind,
                flags,
                vaddr: word(16),
                offset: word(24),
                size: word(32),
                link: u32_at(entry, 40).unwrap_or(0),
            });
        }
        if let Some(table) = self.sections.get(names) {
            self.names = range_of(bytes, table.offset, table.size).unwrap_or(0..0);
        }
    }

    /// The bytes of a section in this file; `None` where it has none.
    pub(super) fn bytes_of(&self, bytes: &FileBytes, section: &Section) -> Option<Range<usize>> {
        (section.kind != SHT_NOBITS).then(|| range_of(bytes, section.offset, section.size)).flatten()
    }

    /// The first section of this name.
    pub(super) fn section(&self, bytes: &FileBytes, name: &str) -> Option<&Section> {
        let names = bytes.get(self.names.clone())?;
        self.sections.iter().find(|s| {
            let Some(rest) = names.get(s.name..) else { return false };
            rest.get(..name.len()) == Some(name.as_bytes()) && rest.get(name.len()) == Some(&0)
        })
    }

    /// The bytes of the first section of this name, where they are not compressed.
    pub(super) fn section_bytes<'a>(&self, bytes: &'a FileBytes, name: &str) -> Option<&'a [u8]> {
        let section = self.section(bytes, name)?;
        if section.flags & SHF_COMPRESSED != 0 {
            return None;
        }
        bytes.get(self.bytes_of(bytes, section)?)
    }

    /// The bytes of every note section (for files that have no program headers for them, such as debug files).
    pub(super) fn note_sections<'a>(&'a self, bytes: &'a FileBytes) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.sections.iter().filter(|s| s.kind == SHT_NOTE).filter_map(move |s| bytes.get(self.bytes_of(bytes, s)?))
    }
}

/// The GNU build-id in a run of notes (`NT_GNU_BUILD_ID` 3, owner `GNU`).
pub(super) fn build_id_in(notes: &[u8], align: u64) -> Option<&[u8]> {
    let align = if align == 8 { 8usize } else { 4 };
    let round = |n: usize| n.checked_add(align - 1).map(|n| n & !(align - 1));
    let mut rest = notes;
    loop {
        let name_size = usize::try_from(u32_at(rest, 0)?).ok()?;
        let size = usize::try_from(u32_at(rest, 4)?).ok()?;
        let kind = u32_at(rest, 8)?;
        let name = rest.get(12..12usize.checked_add(name_size)?)?;
        let from = round(12usize.checked_add(name_size)?)?;
        let description = rest.get(from..from.checked_add(size)?)?;
        if kind == 3 && name == b"GNU\0" && !description.is_empty() && size <= 64 {
            return Some(description);
        }
        rest = rest.get(round(from.checked_add(size)?)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: u32, name: &[u8], description: &[u8]) -> Vec<u8> {
        let mut v = Vec::new();
        v.extend((name.len() as u32).to_le_bytes());
        v.extend((description.len() as u32).to_le_bytes());
        v.extend(kind.to_le_bytes());
        v.extend(name);
        v.resize(v.len().next_multiple_of(4), 0);
        v.extend(description);
        v.resize(v.len().next_multiple_of(4), 0);
        v
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let mut notes = note(1, b"GNU\0", &[0; 16]);
        notes.extend(note(3, b"XYZ\0", &[7; 4]));
        notes.extend(note(3, b"GNU\0", &[9; 20]));
        assert_eq!(build_id_in(&notes, 4), Some(&[9u8; 20][..]));
    }

    #[test]
    fn a_note_that_claims_too_much_ends_the_search() {
        let mut notes = note(3, b"GNU\0", &[9; 20]);
        notes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(build_id_in(&notes, 4), None);
        assert_eq!(build_id_in(&[], 4), None);
    }

    #[test]
    fn headers_beyond_the_end_are_an_error_and_sections_beyond_it_are_none() {
        let mut file = vec![0u8; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[54] = 56;
        file[58] = 64;
        file[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        file[60] = 5;
        let parse = |file: &[u8]| Headers::parse(&FileBytes::owned(file.to_vec()));
        assert!(parse(&file).unwrap().sections.is_empty());
        file[56] = 1;
        file[32..40].copy_from_slice(&(u64::MAX - 3).to_le_bytes());
        assert!(parse(&file).is_err());
        assert!(parse(&file[..40]).is_err());
    }
}
