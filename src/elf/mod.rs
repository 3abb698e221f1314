//! One ELF file: build-id, segments, symbols, CFI sections, its separate debug file, lines and inlined functions.
//!
//! Knows nothing of processes: addresses here are the file's own ([`Vaddr`]).

use crate::memory::FileBytes;
use crate::units::Vaddr;
use std::sync::Arc;

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

/// A parsed file. Indexes are built on first use and kept.
pub struct ElfFile {
    _bytes: FileBytes,
}

impl ElfFile {
    /// Reads the headers; nothing else yet.
    ///
    /// # Errors
    /// [`ElfError::Malformed`].
    pub fn parse(bytes: FileBytes) -> Result<ElfFile, ElfError> {
        Ok(ElfFile { _bytes: bytes })
    }

    /// The GNU build-id.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        None
    }

    /// The `PT_LOAD` segments, in file order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &[]
    }

    /// The symbol of exactly this name, from `.dynsym`, then `.symtab` (its own, `.gnu_debugdata`'s or the separate
    /// debug file's).
    #[must_use]
    pub fn find_symbol(&self, _name: &str) -> Option<Symbol> {
        None
    }

    /// The function whose `[vaddr, vaddr + size)` holds `at`. A nearest symbol that ends before `at` is no answer:
    /// in a stripped libc it would be wrong.
    #[must_use]
    pub fn symbol_at(&self, _at: Vaddr) -> Option<Symbol> {
        None
    }

    /// The data object whose extent holds `at`.
    #[must_use]
    pub fn object_at(&self, _at: Vaddr) -> Option<Symbol> {
        None
    }

    /// The bytes of a segment at a file address, from the file: only for segments that are not writable.
    #[must_use]
    pub fn read_only_bytes(&self, _at: Vaddr, _len: usize) -> Option<&[u8]> {
        None
    }
}
