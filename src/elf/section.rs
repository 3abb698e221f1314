//! Sections of debug information as gimli reads them: parts of a mapped file, or decompressed ones.

use super::headers::{Headers, SHF_COMPRESSED};
use crate::memory::{FileBytes, u32_at, u64_at};
use gimli::{Error, LittleEndian, Reader, ReaderOffsetId};
use std::borrow::Cow;
use std::io::Read;
use std::ops::Range;

/// Bytes of one decompressed section at most.
const SECTION_BOUND: u64 = 2 << 30;
/// Bytes of `.gnu_debugdata` once decompressed, at most; the largest seen is 3 MiB.
const MINI_BOUND: u64 = 128 << 20;
/// KiB its decoder may take: the dictionary of `xz -9` and a little.
const MINI_MEMORY: u32 = 80 << 10;
/// `ELFCOMPRESS_ZLIB` and `ELFCOMPRESS_ZSTD` (ELF gABI, section compression).
const ZLIB: u32 = 1;
const ZSTD: u32 = 2;
/// Bytes of an ELF64 compression header.
const CHDR: usize = 24;

/// Bytes searched at once for the end of a string.
const FIND: usize = 256;

/// A part of a file's bytes that can be cloned and cut without copying.
#[derive(Clone)]
pub(super) struct Part {
    bytes: FileBytes,
    range: Range<usize>,
}

impl Part {
    /// Nothing.
    pub(super) fn empty() -> Part {
        Part { bytes: FileBytes::owned(Vec::new()), range: 0..0 }
    }

    /// The section of this name, decompressed where it is compressed; empty where there is none.
    pub(super) fn section(bytes: &FileBytes, headers: &Headers, name: &str) -> Part {
        Part::of_section(bytes, headers, name).unwrap_or_else(Part::empty)
    }

    fn of_section(bytes: &FileBytes, headers: &Headers, name: &str) -> Option<Part> {
        let section = headers.section(bytes, name)?;
        let range = headers.bytes_of(bytes, section)?;
        if section.flags & SHF_COMPRESSED == 0 {
            return Some(Part { bytes: bytes.clone(), range });
        }
        let compressed = bytes.get(range)?;
        let size = u64_at(compressed, 8)?;
        if size > SECTION_BOUND {
            return None;
        }
        let packed = compressed.get(CHDR..)?;
        // it grows as it is read: the size is the file's claim
        let mut out = Vec::new();
        match u32_at(compressed, 0)? {
            ZLIB => flate2::read::ZlibDecoder::new(packed).take(size).read_to_end(&mut out).ok()?,
            ZSTD => ruzstd::decoding::StreamingDecoder::new(packed).ok()?.take(size).read_to_end(&mut out).ok()?,
            _ => return None,
        };
        let range = 0..out.len();
        Some(Part { bytes: FileBytes::owned(out), range })
    }

    /// The bytes it is a part of and which part; `None` where it is empty.
    pub(super) fn into_bytes(self) -> Option<(FileBytes, Range<usize>)> {
        (!self.range.is_empty()).then_some((self.bytes, self.range))
    }

    fn slice(&self) -> gimli::Result<&[u8]> {
        self.bytes.get(self.range.clone()).ok_or_else(|| self.short())
    }

    fn short(&self) -> Error {
        Error::UnexpectedEof(self.offset_id())
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Part({:?})", self.range)
    }
}

impl Reader for Part {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    fn empty(&mut self) {
        self.range.end = self.range.start;
    }

    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        if self.len() < len {
            return Err(self.short());
        }
        self.range.end = self.range.start + len;
        Ok(())
    }

    fn offset_from(&self, base: &Part) -> usize {
        self.range.start.saturating_sub(base.range.start)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.bytes.address().saturating_add(self.range.start) as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let into = usize::try_from(id.0.checked_sub(self.offset_id().0)?).ok()?;
        (into <= self.len()).then_some(into)
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        // in pieces: the section may be large, and what is looked for near
        let mut from = self.range.start;
        while from < self.range.end {
            let end = from.saturating_add(FIND).min(self.range.end);
            let piece = self.bytes.get(from..end).ok_or_else(|| self.short())?;
            if let Some(at) = piece.iter().position(|b| *b == byte) {
                return Ok(from - self.range.start + at);
            }
            from = end;
        }
        Err(self.short())
    }

    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        if self.len() < len {
            return Err(self.short());
        }
        self.range.start += len;
        Ok(())
    }

    fn split(&mut self, len: usize) -> gimli::Result<Part> {
        let mut first = self.clone();
        first.truncate(len)?;
        self.skip(len)?;
        Ok(first)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        Ok(self.slice()?.into())
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        std::str::from_utf8(self.slice()?).map(Cow::from).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        Ok(String::from_utf8_lossy(self.slice()?))
    }

    fn read_slice(&mut self, buf: &mut [u8]) -> gimli::Result<()> {
        if self.len() < buf.len() {
            return Err(self.short());
        }
        let from = self.bytes.get_at(self.range.start, buf.len()).ok_or_else(|| self.short())?;
        buf.copy_from_slice(from);
        self.range.start += buf.len();
        Ok(())
    }
}

/// The ELF file in a `.gnu_debugdata` section (xz).
pub(super) fn decompress_mini(compressed: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let reader = lzma_rust2::XzReader::new_mem_limit(compressed, true, MINI_MEMORY);
    let taken = reader.take(MINI_BOUND + 1).read_to_end(&mut out).ok()?;
    (taken as u64 <= MINI_BOUND).then_some(out)
}
