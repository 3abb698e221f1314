//! Compressed cores, as systemd and scripts leave them: gzip, zstd, lz4, xz.
//!
//! A core is mapped and read at random, so it is unpacked into a temporary file that has no name; runs of zeros stay holes.

use super::super::TargetError;
use crate::memory::FileBytes;
use std::fs::File;
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};

/// Bytes of an unpacked core at most: a file may claim to be anything.
const BOUND: u64 = 256 << 30;

/// What a file is compressed with, and the command that unpacks it.
#[derive(Clone, Copy)]
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

    fn unpack(self, mut packed: &[u8], to: &mut Sparse) -> io::Result<()> {
        match self {
            Packing::Gzip => io::copy(&mut flate2::read::MultiGzDecoder::new(packed), to).map(drop),
            Packing::Lz4 => io::copy(&mut lz4_flex::frame::FrameDecoder::new(packed), to).map(drop),
            Packing::Xz => {
                lzma_rs::xz_decompress(&mut packed, to).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
            }
            Packing::Zstd => {
                while let Some(magic) = packed.first_chunk::<4>() {
                    // frames to be skipped, as parallel compressors write them (RFC 8878, 3.1.2)
                    if (0x184D_2A50..=0x184D_2A5F).contains(&u32::from_le_bytes(*magic)) {
                        let length =
                            packed.get(4..8).and_then(<[u8]>::first_chunk).map_or(0, |n| u32::from_le_bytes(*n));
                        let skip = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(8);
                        packed.consume(skip.min(packed.len()));
                        continue;
                    }
                    let mut frame = ruzstd::decoding::StreamingDecoder::new(&mut packed)
                        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                    copy_all(&mut frame, to)?;
                }
                Ok(())
            }
        }
    }
}

/// Like `io::copy`, in large steps.
fn copy_all(from: &mut impl Read, to: &mut Sparse) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 18];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => to.write_all(buffer.get(..n).unwrap_or_default())?,
        }
    }
}

/// A file in which whole blocks of zeros are left out.
struct Sparse {
    file: File,
    length: u64,
}

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.length.saturating_add(bytes.len() as u64) > BOUND {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if bytes.iter().all(|b| *b == 0) {
            self.file.seek(SeekFrom::Current(i64::try_from(bytes.len()).unwrap_or(0)))?;
        } else {
            self.file.write_all(bytes)?;
        }
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)
    }
}

/// `bytes` as they are, or unpacked. A stream that breaks off gives what came before, with a warning.
pub(super) fn unpack(bytes: FileBytes, name: &str, warnings: &mut Vec<String>) -> Result<FileBytes, TargetError> {
    let Some(packing) = Packing::of(&bytes) else { return Ok(bytes) };
    let bad = |why: String| TargetError::BadCore { path: name.to_owned(), cause: why };
    let kind = packing.name();
    let place = std::env::temp_dir();
    let file = tempfile::tempfile().map_err(|e| {
        bad(format!("it is compressed with {kind} and no file can be made in {}: {e}", place.display()))
    })?;
    let mut to = Sparse { file, length: 0 };
    let outcome = packing.unpack(&bytes, &mut to);
    to.flush().map_err(|e| bad(format!("it is compressed with {kind} and cannot be unpacked: {e}")))?;
    if let Err(e) = outcome {
        if e.kind() == io::ErrorKind::StorageFull {
            let advice = "unpack it where there is room, or set TMPDIR";
            return Err(bad(format!("it is compressed with {kind} and {} is full; {advice}", place.display())));
        }
        if to.length == 0 {
            return Err(bad(format!("it begins as a {kind} file but cannot be unpacked: {e}")));
        }
        warnings.push(format!(
            "the {kind} stream of {name} breaks off after {} MiB ({e}); what came before is used",
            to.length >> 20
        ));
    }
    if to.length == 0 {
        return Err(bad(format!("it is a {kind} file with nothing in it")));
    }
    FileBytes::map(&to.file).map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn content() -> Vec<u8> {
        let mut content: Vec<u8> = (0..300_000u32).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
        content[100_000..250_000].fill(0);
        content.extend([0; 70_000]);
        content
    }

    #[test]
    fn every_packing_gives_back_the_bytes() {
        let content = content();
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(&content).unwrap();
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut content.as_slice(), &mut xz).unwrap();
        for packed in [gzip(&content), zstd(&content), lz4.finish().unwrap(), xz] {
            let (got, warnings) = unpacked(&packed).unwrap();
            assert!(got[..] == content[..], "{:x?}", &packed[..4]);
            assert!(warnings.is_empty());
        }
        assert_eq!(unpacked(b"as it is").unwrap().0[..], *b"as it is");
    }

    #[test]
    fn frames_follow_each_other() {
        let content = content();
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let packed = [zstd(&content[..1000]), skipped.to_vec(), zstd(&content[1000..])].concat();
        assert!(unpacked(&packed).unwrap().0[..] == content[..]);
        let packed = [gzip(&content[..1000]), gzip(&content[1000..])].concat();
        assert!(unpacked(&packed).unwrap().0[..] == content[..]);
    }

    #[test]
    fn a_stream_that_breaks_off_gives_what_came_before() {
        let content = content();
        let packed = gzip(&content);
        let (got, warnings) = unpacked(&packed[..packed.len() / 2]).unwrap();
        assert!(!got.is_empty() && content.starts_with(&got));
        assert!(warnings.iter().any(|w| w.contains("breaks off")), "{warnings:?}");
    }

    #[test]
    fn what_is_none_has_its_line() {
        assert!(unpacked(&[0x28, 0xb5, 0x2f, 0xfd, 0]).unwrap_err().contains("begins as a zstd file"));
        assert!(unpacked(&[0x1f, 0x8b, 8, 0]).unwrap_err().contains("begins as a gzip file"));
        assert!(unpacked(&[0x04, 0x22, 0x4d, 0x18]).unwrap_err().contains("lz4"));
        assert!(unpacked(b"\xfd7zXZ\0\0").unwrap_err().contains("xz"));
        assert!(unpacked(&gzip(b"")).unwrap_err().contains("nothing in it"));
    }
}
