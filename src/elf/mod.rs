//! One ELF file: build-id, segments, symbols, CFI sections, its separate debug file, lines and inlined functions.
//!
//! Knows nothing of processes: addresses here are the file's own ([`Vaddr`]).

mod headers;
mod symbols;

use crate::memory::FileBytes;
use crate::units::Vaddr;
use headers::{Headers, SHF_EXECINSTR, SHT_DYNSYM, SHT_GNU_HASH, SHT_SYMTAB, SHT_VERSYM};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use symbols::{Index, Table, Wanted};

/// One `PT_LOAD` segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where the file wants it.
    pub vaddr: Vaddr,
    /// Bytes in memory.
    pub memory_size: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// `PF_W`.
    pub writable: bool,
    /// `PF_X`.
    pub executable: bool,
}

/// A symbol with the extent the file gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// The name as the file writes it: mangled, without a version suffix.
    pub name: Arc<str>,
    /// Its address.
    pub vaddr: Vaddr,
    /// Its size in bytes (0: the file does not say).
    pub size: u64,
}

/// A source position of an address, innermost inlined function first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// The function, demangled.
    pub function: Option<String>,
    /// The source file as the debug information names it.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
    /// Whether this function was inlined into the next one of the list.
    pub inlined: bool,
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// It is no ELF file, or its headers make no sense.
    #[error("not a readable ELF file: {0}")]
    Malformed(String),
}

/// Bytes that stand at a file address, and whether the program may change them.
#[derive(Clone, Debug)]
struct Extent {
    vaddr: u64,
    bytes: Range<usize>,
    writable: bool,
}

/// A parsed file. Indexes are built on first use and kept.
pub struct ElfFile {
    bytes: FileBytes,
    headers: Headers,
    extents: Vec<Extent>,
    build_id: Option<Vec<u8>>,
    own_tables: Vec<Table>,
    functions: OnceLock<Index>,
    objects: OnceLock<Index>,
}

impl ElfFile {
    /// Reads the headers; nothing else yet.
    ///
    /// # Errors
    /// [`ElfError::Malformed`].
    pub fn parse(bytes: FileBytes) -> Result<ElfFile, ElfError> {
        let headers = Headers::parse(&bytes)?;
        let extents = headers
            .segments
            .iter()
            .filter_map(|s| {
                let end = (bytes.len() as u64).min(s.offset.checked_add(s.file_size)?);
                let range = headers::range_of(&bytes, s.offset, end.checked_sub(s.offset)?)?;
                Some(Extent { vaddr: s.vaddr.0, bytes: range, writable: s.writable })
            })
            .collect();
        let own_tables = tables_by_sections(&bytes, &headers);
        let mut file = ElfFile {
            bytes,
            headers,
            extents,
            build_id: None,
            own_tables,
            functions: OnceLock::new(),
            objects: OnceLock::new(),
        };
        file.build_id = file.find_build_id();
        Ok(file)
    }

    fn find_build_id(&self) -> Option<Vec<u8>> {
        let by_segment = self.headers.notes.iter().find_map(|(vaddr, size, align)| {
            let notes = self.bytes_at(Vaddr(*vaddr), usize::try_from(*size).ok()?)?;
            headers::build_id_in(notes, *align)
        });
        let found = by_segment
            .or_else(|| self.headers.note_sections(&self.bytes).find_map(|notes| headers::build_id_in(notes, 4)));
        found.map(<[u8]>::to_vec)
    }

    /// The GNU build-id.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// The `PT_LOAD` segments, in file order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.headers.segments
    }

    fn tables(&self) -> &[Table] {
        &self.own_tables
    }

    /// The symbol of exactly this name, from `.dynsym`, then `.symtab` (its own, `.gnu_debugdata`'s or the separate
    /// debug file's).
    #[must_use]
    pub fn find_symbol(&self, name: &str) -> Option<Symbol> {
        self.tables().iter().find_map(|t| t.find(name))
    }

    /// The thread-local variable of exactly this name: its `vaddr` is its offset in the file's TLS image.
    #[must_use]
    pub fn find_tls_symbol(&self, name: &str) -> Option<Symbol> {
        self.tables().iter().find_map(|t| t.find_tls(name))
    }

    /// The function whose `[vaddr, vaddr + size)` holds `at`. A nearest symbol that ends before `at` is no answer:
    /// in a stripped libc it would be wrong.
    #[must_use]
    pub fn symbol_at(&self, at: Vaddr) -> Option<Symbol> {
        let index = self.functions.get_or_init(|| Index::build(self.tables(), Wanted::Functions, |n| self.code_end(n)));
        let found = index.find(self.tables(), at.0)?;
        Some(found.symbol)
    }

    /// The data object whose extent holds `at`.
    #[must_use]
    pub fn object_at(&self, at: Vaddr) -> Option<Symbol> {
        let index = self.objects.get_or_init(|| Index::build(self.tables(), Wanted::Objects, |_| None));
        index.find(self.tables(), at.0).map(|f| f.symbol)
    }

    /// The end of an executable section, by its number.
    fn code_end(&self, section: u16) -> Option<u64> {
        let section = self.headers.sections.get(usize::from(section)).filter(|s| s.flags & SHF_EXECINSTR != 0)?;
        section.vaddr.checked_add(section.size)
    }

    /// The bytes of a segment at a file address, from the file: only for segments that are not writable.
    #[must_use]
    pub fn read_only_bytes(&self, at: Vaddr, len: usize) -> Option<&[u8]> {
        self.slice(at, len, false)
    }

    /// The bytes the file gives at one of its addresses, writable segments included.
    fn bytes_at(&self, at: Vaddr, len: usize) -> Option<&[u8]> {
        self.slice(at, len, true)
    }

    fn slice(&self, at: Vaddr, len: usize, writable: bool) -> Option<&[u8]> {
        self.extents.iter().filter(|e| writable || !e.writable).find_map(|e| {
            let skip = usize::try_from(at.0.checked_sub(e.vaddr)?).ok()?;
            self.bytes.get(e.bytes.clone())?.get(skip..skip.checked_add(len)?)
        })
    }
}

/// The symbol tables the section headers name, `.dynsym` first.
fn tables_by_sections(bytes: &FileBytes, headers: &Headers) -> Vec<Table> {
    let range = |kind: u32| headers.sections.iter().find(|s| s.kind == kind).and_then(|s| headers.bytes_of(bytes, s));
    [SHT_DYNSYM, SHT_SYMTAB]
        .into_iter()
        .filter_map(|kind| {
            let section = headers.sections.iter().find(|s| s.kind == kind)?;
            let strings = headers.sections.get(usize::try_from(section.link).ok()?)?;
            let dynamic = kind == SHT_DYNSYM;
            Some(Table {
                bytes: bytes.clone(),
                symbols: headers.bytes_of(bytes, section)?,
                strings: headers.bytes_of(bytes, strings)?,
                versions: dynamic.then(|| range(SHT_VERSYM)).flatten(),
                hash: dynamic.then(|| range(SHT_GNU_HASH)).flatten(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
