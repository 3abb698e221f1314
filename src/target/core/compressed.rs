//! Compressed cores, as systemd and scripts leave them: gzip, zstd, lz4, xz.
//!
//! A core is read at random, so it is unpacked into a temporary file that has no name; pages of zeros stay holes.
//! Its first bytes are looked at before the rest is unpacked: what is no core of ours ends there. A core's own headers say
//! how long it is, and nothing behind that is unpacked.

use super::super::TargetError;
use super::segments;
use crate::memory::{FileBytes, u16_at, u64_at};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Memory one decoder may take, in bytes: dictionaries and windows beyond it are refused.
const MEMORY: u64 = 192 << 20;
/// The largest window of a zstd frame, in bytes (`zstd --long=27`); the decoder holds one and a half of it while it grows.
const ZSTD_WINDOW: u64 = 128 << 20;
/// A core may be this much larger than the file it is packed in: `RATIO` times, and `FLOOR` bytes. gzip packs 1,032 bytes
/// into one at most; others do better on zeros.
const RATIO: u64 = 1100;
const FLOOR: u64 = 1 << 30;
/// The part of the free space of the temporary folder that is taken at most: nine tenths.
const TENTHS: u64 = 9;
/// Bytes kept of a core's beginning: its headers, 65,534 program headers among them.
const HEAD: usize = 4 << 20;
/// Bytes unpacked at once.
const STEP: usize = 1 << 16;
/// What is left out where it is zero.
const PAGE: usize = 4096;

/// What a file is compressed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packing {
    Gzip,
    Zstd,
    Lz4,
    Xz,
}

impl Packing {
    /// By the first bytes: RFC 1952, RFC 8878, the LZ4 frame format (its legacy form too), the .xz file format.
    fn of(bytes: &[u8]) -> Option<Packing> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Packing::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Packing::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => Some(Packing::Lz4),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Packing::Xz),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
            Packing::Lz4 => "lz4",
            Packing::Xz => "xz",
        }
    }

    /// The command that unpacks a file of this kind, whatever memory it takes.
    fn command(self) -> &'static str {
        match self {
            Packing::Gzip => "gzip -dk",
            Packing::Zstd => "zstd -d --long=31",
            Packing::Lz4 => "lz4 -d",
            Packing::Xz => "xz -dk",
        }
    }

    fn reader(self, packed: &[u8]) -> Box<dyn Read + '_> {
        match self {
            Packing::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Packing::Zstd => Box::new(Frames { rest: packed, open: None, start: zstd_frame }),
            Packing::Lz4 => Box::new(Frames { rest: packed, open: None, start: lz4_frame }),
            Packing::Xz => {
                let limit = u32::try_from(MEMORY >> 10).unwrap_or(u32::MAX);
                Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, limit))
            }
        }
    }
}

fn invalid(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

/// One frame, opened: reads bytes, and says what follows the frame once it is read.
trait Frame<'a> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    /// What follows it; an error where it broke off.
    fn end(self: Box<Self>) -> io::Result<&'a [u8]>;
}

/// Frames one after the other, those to be skipped left out (RFC 8878, 3.1.2; lz4 has the same).
struct Frames<'a> {
    rest: &'a [u8],
    open: Option<Box<dyn Frame<'a> + 'a>>,
    start: fn(&'a [u8]) -> io::Result<Box<dyn Frame<'a> + 'a>>,
}

impl Read for Frames<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut frame = match self.open.take() {
                Some(frame) => frame,
                None if self.rest.is_empty() => return Ok(0),
                None => {
                    if let Some(after) = skipped(self.rest) {
                        self.rest = after;
                        continue;
                    }
                    (self.start)(std::mem::take(&mut self.rest))?
                }
            };
            match frame.read(buf)? {
                0 => self.rest = frame.end()?,
                n => {
                    self.open = Some(frame);
                    return Ok(n);
                }
            }
        }
    }
}

/// What follows a frame that is to be skipped, where one begins here.
fn skipped(bytes: &[u8]) -> Option<&[u8]> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    if !(0x184D_2A50..=0x184D_2A5F).contains(&u32::from_le_bytes(*magic)) {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    Some(rest.get(length..).unwrap_or_default())
}

struct ZstdFrame<'a> {
    decoder: StreamingDecoder<&'a [u8], FrameDecoder>,
    /// Whether the input ended before the frame did.
    cut: bool,
}

fn zstd_frame<'a>(bytes: &'a [u8]) -> io::Result<Box<dyn Frame<'a> + 'a>> {
    match StreamingDecoder::new_with_max_window_size(bytes, ZSTD_WINDOW) {
        Ok(decoder) => Ok(Box::new(ZstdFrame { decoder, cut: false })),
        Err(e @ FrameDecoderError::WindowSizeTooBig { .. }) => Err(io::Error::new(io::ErrorKind::OutOfMemory, e)),
        Err(e) => Err(invalid(e)),
    }
}

impl<'a> Frame<'a> for ZstdFrame<'a> {
    /// The decoder keeps a whole window back until the frame ends. Where the input ends first, an empty last block (RFC 8878,
    /// 3.1.1.2, a checksum behind it) makes it give that out: blocks that are cut have added nothing.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.decoder.read(buf) {
            Err(e) if self.cut || !self.decoder.get_ref().is_empty() => Err(e),
            Err(e) => {
                self.cut = true;
                let end: &[u8] = &[1, 0, 0, 0, 0, 0, 0];
                let ended = self.decoder.decoder.decode_blocks(end, BlockDecodingStrategy::UptoBlocks(1));
                if ended.is_err() { Err(e) } else { self.decoder.read(buf) }
            }
            read => read,
        }
    }

    fn end(self: Box<Self>) -> io::Result<&'a [u8]> {
        if self.cut { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(self.decoder.into_inner()) }
    }
}

struct Lz4Frame<'a> {
    whole: &'a [u8],
    decoder: lz4_flex::frame::FrameDecoder<&'a [u8]>,
}

fn lz4_frame<'a>(whole: &'a [u8]) -> io::Result<Box<dyn Frame<'a> + 'a>> {
    Ok(Box::new(Lz4Frame { whole, decoder: lz4_flex::frame::FrameDecoder::new(whole) }))
}

impl<'a> Frame<'a> for Lz4Frame<'a> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buf)
    }

    /// The decoder takes an end of the input for the end of the frame. The legacy form has no other; the frame format ends
    /// with four zero bytes, and the checksum of the content where bit 2 of its flags says so (LZ4 frame format 1.6.4).
    fn end(self: Box<Self>) -> io::Result<&'a [u8]> {
        let rest = self.decoder.into_inner();
        let taken = self.whole.get(..self.whole.len().saturating_sub(rest.len())).unwrap_or_default();
        let legacy = taken.starts_with(&[0x02, 0x21, 0x4c, 0x18]);
        let checksum = if taken.get(4).is_some_and(|flags| flags & 4 != 0) { 4 } else { 0 };
        let ended =
            taken.len().checked_sub(checksum).and_then(|n| taken.get(..n)).is_some_and(|t| t.ends_with(&[0; 4]));
        if legacy && taken.len() > 4 || ended {
            return Ok(rest);
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// A file in which pages of zeros are left out.
struct Sparse {
    file: File,
    length: u64,
    /// Bytes that are no hole.
    written: u64,
    /// Those there is room for.
    room: u64,
}

impl Sparse {
    /// Appends `bytes`.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let into = usize::try_from(self.length % PAGE as u64).unwrap_or(0);
            let (page, later) = rest.split_at_checked(PAGE - into).unwrap_or((rest, &[]));
            if page.iter().any(|b| *b != 0) {
                self.written += page.len() as u64;
                if self.written > self.room {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.file.write_all_at(page, self.length)?;
            }
            self.length += page.len() as u64;
            rest = later;
        }
        Ok(())
    }
}

/// Bytes of `place`'s file system that may be taken.
fn room(place: &Path) -> u64 {
    let free = nix::sys::statvfs::statvfs(place).map(|s| s.blocks_available().saturating_mul(s.fragment_size()));
    free.map_or(u64::MAX, |free| free / 10 * TENTHS)
}

/// Where the last segment of the core that begins with `head` ends, if `head` holds its program headers and they are counted
/// in its header.
fn told_end(head: &[u8]) -> Option<u64> {
    let at = usize::try_from(u64_at(head, 32)?).ok()?;
    let count = usize::from(u16_at(head, 56)?);
    let table = head.get(at..at.checked_add(count.checked_mul(segments::PHDR)?)?)?;
    let known = (1..0xffff).contains(&count) && usize::from(u16_at(head, 54)?) == segments::PHDR;
    let ends = table.chunks_exact(segments::PHDR).filter_map(|p| u64_at(p, 8)?.checked_add(u64_at(p, 32)?));
    let end = ends.max().unwrap_or(0);
    known.then_some(end.max(at.saturating_add(table.len()) as u64))
}

/// How unpacking ended.
enum End {
    /// All of the core is there.
    Whole,
    /// It is larger than such a file may become.
    TooLarge,
    /// The stream broke off.
    Broken(io::Error),
}

/// Unpacks into `to` until the stream ends, the core does, or `most` bytes are there.
fn copy(from: &mut dyn Read, to: &mut Sparse, mut head: Vec<u8>, most: u64) -> io::Result<End> {
    to.append(&head)?;
    let mut buffer = vec![0; STEP];
    let mut end = None;
    loop {
        if end.is_none() && head.len() < HEAD {
            end = told_end(&head);
        }
        if end.is_some_and(|end| to.length >= end) {
            return Ok(End::Whole);
        }
        if to.length >= most {
            return Ok(End::TooLarge);
        }
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(End::Whole),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Ok(End::Broken(e)),
        };
        let bytes = buffer.get(..n).unwrap_or_default();
        to.append(bytes)?;
        if end.is_none() && head.len() < HEAD {
            head.extend_from_slice(bytes);
        }
    }
}

/// `bytes` as they are, or unpacked. A stream that breaks off gives what came before, with a warning.
pub(super) fn unpack(bytes: FileBytes, name: &str, warnings: &mut Vec<String>) -> Result<FileBytes, TargetError> {
    let Some(packing) = Packing::of(bytes.get_at(0, bytes.len().min(8)).unwrap_or_default()) else { return Ok(bytes) };
    let kind = packing.name();
    let bad = |cause: String| TargetError::BadCore { path: name.to_owned(), cause };
    let broken = |e: io::Error| match e.kind() {
        io::ErrorKind::OutOfMemory => bad(format!(
            "unpacking this {kind} file takes more than {} MiB of memory; unpack it first: `{} {name}`",
            MEMORY >> 20,
            packing.command()
        )),
        io::ErrorKind::UnexpectedEof => bad(format!("it begins as a {kind} file but is cut off")),
        _ => bad(format!("it begins as a {kind} file but cannot be unpacked: {e}")),
    };
    let packed = bytes.all().ok_or_else(|| bad("it cannot be read".to_owned()))?;
    let mut from = packing.reader(packed);
    let mut head = Vec::new();
    let begun = from.as_mut().take(segments::EHDR as u64).read_to_end(&mut head);
    match begun {
        Err(e) if head.is_empty() => return Err(broken(e)),
        _ if head.is_empty() => return Err(bad(format!("it is a {kind} file with nothing in it"))),
        _ => {}
    }
    segments::check(&head, name, Some(kind))?;
    let place = std::env::temp_dir();
    let file = tempfile::tempfile().map_err(|e| {
        bad(format!("it is compressed with {kind} and no file can be made in {}: {e}", place.display()))
    })?;
    let mut to = Sparse { file, length: 0, written: 0, room: room(&place) };
    let most = (bytes.len() as u64).saturating_mul(RATIO).saturating_add(FLOOR);
    let outcome = match begun {
        Ok(_) => copy(from.as_mut(), &mut to, head, most),
        Err(e) => to.append(&head).map(|()| End::Broken(e)),
    };
    let mib = to.length >> 20;
    match outcome {
        Ok(End::Whole) => {}
        Ok(End::TooLarge) => warnings.push(format!(
            "{name} would be more than {} times as large once unpacked; its first {mib} MiB are used; unpack it first: \
             `{} {name}`",
            RATIO,
            packing.command()
        )),
        Ok(End::Broken(e)) if e.kind() == io::ErrorKind::OutOfMemory => return Err(broken(e)),
        Ok(End::Broken(e)) => {
            let why = if e.kind() == io::ErrorKind::UnexpectedEof { String::new() } else { format!(" ({e})") };
            warnings
                .push(format!("the {kind} stream of {name} breaks off after {mib} MiB{why}; what came before is used"));
        }
        Err(e) if e.kind() == io::ErrorKind::StorageFull => {
            let advice = "unpack it where there is room, or set TMPDIR";
            return Err(bad(format!("it is compressed with {kind} and {} lacks room; {advice}", place.display())));
        }
        Err(e) => return Err(bad(format!("it is compressed with {kind} and cannot be unpacked: {e}"))),
    }
    to.file.set_len(to.length).map_err(|e| bad(e.to_string()))?;
    FileBytes::of_file(to.file).map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn unpacked(bytes: &[u8]) -> Result<(FileBytes, Vec<String>), String> {
        let mut warnings = Vec::new();
        unpack(FileBytes::owned(bytes.to_vec()), "made", &mut warnings)
            .map(|b| (b, warnings))
            .map_err(|e| e.to_string())
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn lz4(bytes: &[u8]) -> Vec<u8> {
        use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};
        let mut to = FrameEncoder::with_frame_info(FrameInfo::new().block_size(BlockSize::Max64KB), Vec::new());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    fn xz(bytes: &[u8]) -> Vec<u8> {
        let mut to = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(0)).unwrap();
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    type Packer = fn(&[u8]) -> Vec<u8>;
    const PACKERS: [Packer; 4] = [gzip, zstd, lz4, xz];

    /// A core's headers, one segment of `size` bytes among them.
    fn head(size: u64) -> Vec<u8> {
        let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
        for word in [0, 64, 0] {
            head.extend(u64::to_le_bytes(word));
        }
        head.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        head.extend([1, 0, 0, 0, 4, 0, 0, 0]);
        for word in [120, 0x1000, 0, size, size, 1] {
            head.extend(u64::to_le_bytes(word));
        }
        head
    }

    fn content() -> Vec<u8> {
        let mut content = head(400_000);
        // noise that no packer makes smaller: several blocks of each
        content.extend((0..360_000u32).map(|n| (n.wrapping_mul(0x9e37_79b9).wrapping_mul(n | 1) >> 24) as u8));
        content[100_000..120_000].fill(0);
        content.resize(400_120, 0);
        content
    }

    #[test]
    fn every_packing_gives_back_the_bytes() {
        let content = content();
        for pack in PACKERS {
            let packed = pack(&content);
            let (got, warnings) = unpacked(&packed).unwrap();
            assert!(got.all() == Some(&content[..]), "{:x?}", &packed[..4]);
            assert!(warnings.is_empty());
        }
        assert_eq!(unpacked(b"as it is").unwrap().0.all(), Some(&b"as it is"[..]));
    }

    #[test]
    fn frames_follow_each_other() {
        let content = content();
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        for pack in PACKERS {
            let (first, second) = (pack(&content[..1000]), pack(&content[1000..]));
            let mut ways = vec![[first.clone(), second.clone()].concat()];
            match Packing::of(&first).unwrap() {
                Packing::Zstd | Packing::Lz4 => ways.push([first, skipped.to_vec(), second].concat()),
                Packing::Xz => ways.push([first, vec![0; 8], second].concat()),
                Packing::Gzip => {}
            }
            for packed in ways {
                let (got, warnings) = unpacked(&packed).unwrap();
                assert!(got.all() == Some(&content[..]), "{:x?}", &packed[..4]);
                assert!(warnings.is_empty(), "{warnings:?}");
            }
        }
    }

    #[test]
    fn a_stream_that_breaks_off_gives_what_came_before() {
        let content = content();
        for pack in PACKERS {
            let packed = pack(&content);
            for eighths in [3, 5, 7] {
                let (got, warnings) = unpacked(&packed[..packed.len() * eighths / 8]).unwrap();
                assert!(content.starts_with(got.all().unwrap()) && got.len() < content.len(), "{:x?}", &packed[..4]);
                assert!(got.len() > 40_000 * (eighths - 2), "{:x?} {}", &packed[..4], got.len());
                assert!(warnings.iter().any(|w| w.contains("breaks off")), "{:x?} {warnings:?}", &packed[..4]);
            }
        }
    }

    #[test]
    fn what_a_core_does_not_tell_of_is_not_unpacked() {
        let mut long = content();
        long.resize(6 << 20, 0);
        for pack in PACKERS {
            let (got, _) = unpacked(&pack(&long)).unwrap();
            assert!(got.len() <= 400_120 + 2 * STEP, "{}", got.len());
        }
    }

    #[test]
    fn a_core_grows_no_further_than_such_a_file_may() {
        let mut to = Sparse { file: tempfile::tempfile().unwrap(), length: 0, written: 0, room: u64::MAX };
        let head = head(1 << 40);
        let end = copy(&mut io::repeat(0), &mut to, head, 10 << 20);
        assert!(matches!(end, Ok(End::TooLarge)));
        assert!(to.length < 11 << 20 && to.written < 8192, "{} {}", to.length, to.written);
        to.room = to.written + 5000;
        let full = copy(&mut io::repeat(1), &mut to, Vec::new(), u64::MAX);
        assert!(full.is_err_and(|e| e.kind() == io::ErrorKind::StorageFull));
    }

    #[test]
    fn no_window_takes_more_memory_than_is_given() {
        // RFC 8878, 3.1.1.1.2: exponent 20 of a window descriptor is 1 GiB
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, 20 << 3, 1, 0, 0];
        assert!(unpacked(&frame).unwrap_err().contains("--long=31"));
        let mut options = lzma_rust2::XzOptions::with_preset(0);
        options.lzma_options.dict_size = 512 << 20;
        let mut to = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        to.write_all(&head(0)).unwrap();
        assert!(unpacked(&to.finish().unwrap()).unwrap_err().contains("xz -dk"));
    }

    #[test]
    fn what_is_none_has_its_line() {
        assert!(unpacked(&[0x28, 0xb5, 0x2f, 0xfd, 0]).unwrap_err().contains("begins as a zstd file"));
        assert!(unpacked(&[0x1f, 0x8b, 8, 0]).unwrap_err().contains("begins as a gzip file"));
        assert!(unpacked(&[0x04, 0x22, 0x4d, 0x18]).unwrap_err().contains("lz4"));
        assert!(unpacked(b"\xfd7zXZ\0\0").unwrap_err().contains("xz"));
        for pack in PACKERS {
            assert!(unpacked(&pack(b"")).unwrap_err().contains("nothing in it"), "{:x?}", &pack(b"")[..4]);
            let zeros = unpacked(&pack(&vec![0; 1 << 20])).unwrap_err();
            assert!(zeros.contains("is not an ELF file") && zeros.lines().count() == 1, "{zeros}");
        }
    }
}
