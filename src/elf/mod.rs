//! One ELF file: build-id, segments, symbols, CFI sections, its separate debug file, lines and inlined functions.
//!
//! Knows nothing of processes: addresses here are the file's own ([`Vaddr`]).

mod cfi;
mod companion;
mod dynamic;
mod headers;
mod landing;
mod lines;
mod names;
mod section;
mod symbols;

use crate::memory::FileBytes;
use crate::units::Vaddr;
pub use cfi::{CfaRule, RowScratch, Rule, UnwindRow};
use cfi::{EhFrameHdr, FrameSection};
pub use companion::DebugFiles;
use companion::{Companion, find_debug_file, find_supplement, mini_tables};
use headers::{Headers, SHF_EXECINSTR, SHT_DYNSYM, SHT_GNU_HASH, SHT_NOBITS, SHT_SYMTAB, SHT_VERSYM};
pub use landing::{LANDING_TABLE_BOUND, LandingTable};
pub use names::demangle;

use lines::Lines;
use section::Part;
use std::ops::Range;
use std::path::PathBuf;
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
    /// What was added to the pointers of its dynamic section, if it came from memory.
    pointer_bias: u64,
    own_tables: Vec<Table>,
    /// Its path as the target names it, and what opens the files that go with it.
    origin: Option<(PathBuf, Arc<dyn DebugFiles>)>,
    companion: OnceLock<Option<Companion>>,
    all_tables: OnceLock<Vec<Table>>,
    lines: OnceLock<Option<Lines>>,
    functions: OnceLock<Index>,
    objects: OnceLock<Index>,
    eh_frame: OnceLock<Option<FrameSection>>,
    debug_frame: OnceLock<Option<FrameSection>>,
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
        Ok(ElfFile::assemble(bytes, headers, extents, 0))
    }

    /// Puts a file together. `pointer_bias`: what was added to the pointers of its dynamic section, if it came from memory.
    fn assemble(bytes: FileBytes, headers: Headers, extents: Vec<Extent>, pointer_bias: u64) -> ElfFile {
        let own_tables = tables_by_sections(&bytes, &headers);
        let mut file = ElfFile {
            bytes,
            headers,
            extents,
            build_id: None,
            pointer_bias,
            own_tables,
            origin: None,
            companion: OnceLock::new(),
            all_tables: OnceLock::new(),
            lines: OnceLock::new(),
            functions: OnceLock::new(),
            objects: OnceLock::new(),
            eh_frame: OnceLock::new(),
            debug_frame: OnceLock::new(),
        };
        file.build_id = file.find_build_id();
        if file.own_tables.is_empty() {
            file.own_tables.extend(file.table_by_dynamic());
        }
        file
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

    /// Where the section of this name wants to lie in memory; `None` for one that is not loaded.
    #[must_use]
    pub fn section_at(&self, name: &str) -> Option<Vaddr> {
        let section = self.headers.section(&self.bytes, name)?;
        (section.flags & headers::SHF_ALLOC != 0).then_some(Vaddr(section.vaddr))
    }

    /// The `PT_LOAD` segments, in file order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.headers.segments
    }

    /// Lets the file find what was stripped from it: separate debug files, looked for on first need. `path`: the file's,
    /// as the target names it.
    #[must_use]
    pub fn with_debug_files(mut self, path: PathBuf, files: Arc<dyn DebugFiles>) -> ElfFile {
        self.origin = Some((path, files));
        self
    }

    /// The separate debug file.
    fn companion(&self) -> Option<&Companion> {
        let find = || {
            let (path, files) = self.origin.as_ref()?;
            find_debug_file(&self.bytes, &self.headers, self.build_id(), path, &**files)
        };
        self.companion.get_or_init(find).as_ref()
    }

    /// Its own tables, and where it was stripped of `.symtab` those kept elsewhere.
    fn tables(&self) -> &[Table] {
        self.all_tables.get_or_init(|| {
            let mut tables = self.own_tables.clone();
            if !self.headers.sections.iter().any(|s| s.kind == SHT_SYMTAB) {
                match self.companion().map(Companion::tables).filter(|t| !t.is_empty()) {
                    Some(more) => tables.extend(more),
                    None => tables.extend(mini_tables(&self.bytes, &self.headers)),
                }
            }
            tables
        })
    }

    /// Where `at` stands in the source, innermost inlined function first; the last is the function that was called. Empty
    /// where there is no debug information, which is opened and indexed on first use: not for every frame of a process.
    #[must_use]
    pub fn locate(&self, at: Vaddr) -> Vec<Location> {
        self.lines.get_or_init(|| self.open_lines()).as_ref().map_or_else(Vec::new, |l| l.locate(at.0))
    }

    /// Whether the file itself has debug information, as opposed to one that goes with it.
    #[must_use]
    pub fn has_debug_information(&self) -> bool {
        self.headers.section(&self.bytes, ".debug_info").is_some()
    }

    fn open_lines(&self) -> Option<Lines> {
        let files = self.origin.as_ref();
        if self.headers.section(&self.bytes, ".debug_info").is_some() {
            let sup = files.and_then(|(path, files)| find_supplement(&self.bytes, &self.headers, path, &**files));
            return Lines::open((&self.bytes, &self.headers), sup.as_ref().map(|s| (&s.bytes, &s.headers)));
        }
        let debug = self.companion()?;
        let sup = files.and_then(|(_, files)| debug.find_supplement(&**files));
        Lines::open((&debug.bytes, &debug.headers), sup.as_ref().map(|s| (&s.bytes, &s.headers)))
    }

    /// The symbol of exactly this name, from `.dynsym`, then `.symtab` (its own, `.gnu_debugdata`'s or the separate
    /// debug file's).
    #[must_use]
    pub fn find_symbol(&self, name: &str) -> Option<Symbol> {
        let own = self.own_tables.iter().find_map(|t| t.find(name));
        own.or_else(|| self.tables().iter().skip(self.own_tables.len()).find_map(|t| t.find(name)))
    }

    /// Whether `.dynsym` defines this name.
    #[must_use]
    pub fn exports(&self, name: &str) -> bool {
        self.own_tables.first().is_some_and(|t| t.find(name).is_some())
    }

    /// The functions of `.dynsym`: what it exports.
    pub fn exported_functions(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.own_tables.first().into_iter().flat_map(Table::functions)
    }

    /// The thread-local variable of exactly this name: its `vaddr` is its offset in the file's TLS image.
    #[must_use]
    pub fn find_tls_symbol(&self, name: &str) -> Option<Symbol> {
        let own = self.own_tables.iter().find_map(|t| t.find_tls(name));
        own.or_else(|| self.tables().iter().skip(self.own_tables.len()).find_map(|t| t.find_tls(name)))
    }

    /// The function whose `[vaddr, vaddr + size)` holds `at`. A nearest symbol that ends before `at` is no answer:
    /// in a stripped libc it would be wrong.
    #[must_use]
    pub fn symbol_at(&self, at: Vaddr) -> Option<Symbol> {
        let index = self.functions.get_or_init(|| Index::build(self.tables(), Wanted::Functions));
        let found = index.find(self.tables(), at.0)?;
        if found.sized {
            return Some(found.symbol);
        }
        // assembly gave no size: call frame information must not say that another function begins or this one ends between
        let same = match self.frame_description_at(at) {
            Some(covers) => covers.contains(&found.symbol.vaddr.0),
            None => self.frame_description_at(found.symbol.vaddr).is_none(),
        };
        same.then_some(found.symbol)
    }

    /// The data object whose extent holds `at`.
    #[must_use]
    pub fn object_at(&self, at: Vaddr) -> Option<Symbol> {
        let index = self.objects.get_or_init(|| Index::build(self.tables(), Wanted::Objects));
        index.find(self.tables(), at.0).map(|f| f.symbol)
    }

    /// What call frame information says of `at`: `.eh_frame` first, then `.debug_frame`.
    #[must_use]
    pub fn unwind_row(&self, at: Vaddr, scratch: &mut RowScratch) -> Option<UnwindRow> {
        self.eh_frame().and_then(|s| s.row(at, scratch)).or_else(|| self.debug_frame().and_then(|s| s.row(at, scratch)))
    }

    /// The addresses of the frame description that covers `at`: usually one function, or its hot or cold part.
    #[must_use]
    pub fn frame_description_at(&self, at: Vaddr) -> Option<Range<u64>> {
        self.eh_frame().and_then(|s| s.covers(at)).or_else(|| self.debug_frame().and_then(|s| s.covers(at)))
    }

    /// The language-specific data of the frame description that covers `at`: where its landing pads are told.
    #[must_use]
    pub fn landing_table(&self, at: Vaddr) -> Option<LandingTable> {
        self.eh_frame().and_then(|s| s.landing_table(at))
    }

    fn eh_frame(&self) -> Option<&FrameSection> {
        self.eh_frame.get_or_init(|| self.open_eh_frame()).as_ref()
    }

    /// Finds `.eh_frame` as the running program does, by `PT_GNU_EH_FRAME`; its section header only tells its end.
    fn open_eh_frame(&self) -> Option<FrameSection> {
        let section = self.headers.section(&self.bytes, ".eh_frame").filter(|s| s.kind != SHT_NOBITS);
        let hdr = self.headers.eh_frame_hdr.and_then(|part| {
            let range = self.range_at(Vaddr(part.vaddr), None)?;
            let size = usize::try_from(part.size).ok()?.min(range.len());
            let range = range.start..range.start.checked_add(size)?;
            let head = self.bytes.get_at(range.start, EhFrameHdr::HEAD.min(range.len()))?;
            Some((EhFrameHdr::parse(head, range.len(), part.vaddr)?, range, part.vaddr))
        });
        let Some((hdr, at, base)) = hdr else {
            let section = section?;
            let range = self.headers.bytes_of(&self.bytes, section)?;
            return Some(FrameSection::eh(self.bytes.clone(), range, section.vaddr, None));
        };
        let range = match section.filter(|s| s.vaddr == hdr.eh_frame) {
            Some(section) => self.headers.bytes_of(&self.bytes, section)?,
            None => self.range_at(Vaddr(hdr.eh_frame), None)?,
        };
        let table = hdr.table.map(|t| (at.start + t.start..at.start + t.end, base));
        Some(FrameSection::eh(self.bytes.clone(), range, hdr.eh_frame, table))
    }

    fn debug_frame(&self) -> Option<&FrameSection> {
        self.debug_frame
            .get_or_init(|| {
                let own = Part::section(&self.bytes, &self.headers, ".debug_frame");
                let section = match own.into_bytes() {
                    Some(own) => own,
                    None => {
                        let debug = self.companion()?;
                        Part::section(&debug.bytes, &debug.headers, ".debug_frame").into_bytes()?
                    }
                };
                Some(FrameSection::debug(section.0, section.1))
            })
            .as_ref()
    }

    /// Which bytes of the file stand at `at`: `len` of them, or all to the end of the segment.
    fn range_at(&self, at: Vaddr, len: Option<usize>) -> Option<Range<usize>> {
        self.extents.iter().find_map(|e| {
            let skip = usize::try_from(at.0.checked_sub(e.vaddr)?).ok()?;
            let from = e.bytes.start.checked_add(skip).filter(|f| *f < e.bytes.end)?;
            let to = len.map_or(Some(e.bytes.end), |n| from.checked_add(n)).filter(|t| *t <= e.bytes.end)?;
            Some(from..to)
        })
    }

    /// The bytes of a segment at a file address, from the file: only for segments that are not writable.
    #[must_use]
    pub fn read_only_bytes(&self, at: Vaddr, len: usize) -> Option<&[u8]> {
        self.slice(at, len, false)
    }

    /// The loaded, read-only parts another machine needs to unwind and to name functions without this file: headers,
    /// notes, dynamic symbols, call frame information. Where each lies, and its bytes, in whole pages of its segment:
    /// [`ElfFile::from_memory`] reads by the page.
    #[must_use]
    pub fn analysis_parts(&self) -> Vec<(Vaddr, &[u8])> {
        const NAMES: [&str; 11] = [
            ".note.gnu.build-id",
            ".gnu.hash",
            ".hash",
            ".dynsym",
            ".dynstr",
            ".gnu.version",
            ".rela.plt",
            ".eh_frame_hdr",
            ".eh_frame",
            ".dynamic",
            ".PyRuntime",
        ];
        let first = self.extents.iter().find(|e| e.bytes.start == 0 && !e.writable);
        let headers = first.and_then(|e| {
            let len = e.bytes.len().min(usize::try_from(crate::units::PAGE).ok()?);
            Some((Vaddr(e.vaddr), self.bytes.get_at(0, len)?))
        });
        let sections = NAMES.iter().filter_map(|name| {
            let section = self.headers.section(&self.bytes, name).filter(|s| s.kind != SHT_NOBITS)?;
            let len = usize::try_from(section.size).ok()?;
            self.read_only_pages(section.vaddr, len)
        });
        headers.into_iter().chain(sections).collect()
    }

    /// What tells this file from another build of it: its header, program headers and notes. Where each lies, and its
    /// bytes; about 2 KiB.
    #[must_use]
    pub fn identity_parts(&self) -> Vec<(Vaddr, &[u8])> {
        let first = self.extents.iter().find(|e| e.bytes.start == 0 && !e.writable);
        let headers = first.and_then(|e| {
            let file = headers::parse_file_header(self.bytes.get_at(0, headers::EHDR)?).ok()?;
            let table = usize::from(file.program_header_count).checked_mul(headers::PHDR)?;
            let end = usize::try_from(file.program_headers).ok()?.checked_add(table)?;
            Some((Vaddr(e.vaddr), self.bytes.get_at(0, end.min(e.bytes.len()))?))
        });
        let notes = self.headers.notes.iter().filter_map(|(vaddr, size, _)| {
            Some((Vaddr(*vaddr), self.read_only_bytes(Vaddr(*vaddr), usize::try_from(*size).ok()?)?))
        });
        headers.into_iter().chain(notes).collect()
    }

    /// The pages around a part of a read-only segment, as far as the segment goes.
    fn read_only_pages(&self, at: u64, len: usize) -> Option<(Vaddr, &[u8])> {
        let page = crate::units::PAGE;
        let end = at.checked_add(u64::try_from(len).ok()?)?;
        let extent = self
            .extents
            .iter()
            .filter(|e| !e.writable)
            .find(|e| e.vaddr <= at && end <= e.vaddr.saturating_add(e.bytes.len() as u64))?;
        let from = (at & !(page - 1)).max(extent.vaddr);
        let to = end.checked_next_multiple_of(page)?.min(extent.vaddr.checked_add(extent.bytes.len() as u64)?);
        let len = usize::try_from(to.checked_sub(from)?).ok()?;
        Some((Vaddr(from), self.read_only_bytes(Vaddr(from), len)?))
    }

    /// The bytes the file gives at one of its addresses, writable segments included.
    fn bytes_at(&self, at: Vaddr, len: usize) -> Option<&[u8]> {
        self.slice(at, len, true)
    }

    fn slice(&self, at: Vaddr, len: usize, writable: bool) -> Option<&[u8]> {
        self.extents.iter().filter(|e| writable || !e.writable).find_map(|e| {
            let skip = usize::try_from(at.0.checked_sub(e.vaddr)?).ok()?;
            let from = e.bytes.start.checked_add(skip)?;
            let to = from.checked_add(len).filter(|to| *to <= e.bytes.end)?;
            self.bytes.get(from..to)
        })
    }
}

/// The symbol tables the section headers name, `.dynsym` first.
fn tables_by_sections(bytes: &FileBytes, headers: &Headers) -> Vec<Table> {
    let range = |kind: u32| headers.sections.iter().find(|s| s.kind == kind).and_then(|s| headers.bytes_of(bytes, s));
    let code_ends: Arc<[Option<u64>]> = headers
        .sections
        .iter()
        .map(|s| if s.flags & SHF_EXECINSTR != 0 { s.vaddr.checked_add(s.size) } else { None })
        .collect();
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
                code_ends: Arc::clone(&code_ends),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
