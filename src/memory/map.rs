//! A file's bytes, read as they are wanted into memory of our own.
//!
//! A file that is mapped can be cut short or rewritten by others while it is looked at: then the next access ends the process
//! (SIGBUS), or what was checked is no longer what is used. So each part is read once, when it is first asked for, and stays
//! as it was read. A part that can no longer be read is as good as absent.
#![allow(unsafe_code)] // parts are filled in behind a shared reference

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes read together.
const PART: usize = 64 << 10;

/// States of a part.
const ABSENT: u8 = 0;
const THERE: u8 = 1;
const LOST: u8 = 2;

/// The bytes of a file, or of an ELF image copied out of memory. Cheap to clone.
#[derive(Clone)]
pub struct FileBytes(Repr);

#[derive(Clone)]
enum Repr {
    File(Arc<Parts>),
    Owned(Arc<Vec<u8>>),
}

/// Fills a buffer from an offset of a file, whole or not at all.
pub type ReadAt = dyn Fn(&mut [u8], u64) -> io::Result<()> + Send + Sync;

/// A file and what was read of it.
struct Parts {
    read_at: Box<ReadAt>,
    len: usize,
    /// As much room as the file is long. Only pages that were written take memory.
    room: MmapRaw,
    /// Of each part whether it is in `room`.
    states: Box<[AtomicU8]>,
    filling: Mutex<()>,
}

impl Parts {
    /// Whether every part that the range touches is there. The range lies within the file.
    fn has(&self, range: &Range<usize>) -> bool {
        let parts = range.start / PART..range.end.div_ceil(PART);
        let there = |states: &[AtomicU8]| states.iter().all(|s| s.load(Ordering::Acquire) == THERE);
        self.states.get(parts.clone()).is_some_and(there) || self.fill(parts)
    }

    /// Reads the parts that were not read yet. Whether all are there then.
    fn fill(&self, parts: Range<usize>) -> bool {
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        let state = |part: usize| self.states.get(part).map_or(LOST, |s| s.load(Ordering::Acquire));
        let mut next = parts.start;
        while next < parts.end {
            match state(next) {
                THERE => next += 1,
                ABSENT => {
                    let end = (next..parts.end).find(|p| state(*p) != ABSENT).unwrap_or(parts.end);
                    let outcome = if self.read(next..end).is_ok() { THERE } else { LOST };
                    for s in self.states.get(next..end).unwrap_or(&[]) {
                        s.store(outcome, Ordering::Release);
                    }
                    next = end;
                }
                _ => return false,
            }
        }
        self.states.get(parts).is_some_and(|s| s.iter().all(|s| s.load(Ordering::Acquire) == THERE))
    }

    /// Reads these parts from the file. Called under the lock, for parts that are not there.
    fn read(&self, parts: Range<usize>) -> io::Result<()> {
        let (from, to) = (parts.start * PART, parts.end.saturating_mul(PART).min(self.len));
        // SAFETY: `from..to` lies within `room`, which is `len` bytes of our own. Nobody else has a reference to these bytes:
        // `slice` gives out only parts that are there, these are not, and the lock is held by us alone.
        let room = unsafe { std::slice::from_raw_parts_mut(self.room.as_mut_ptr().add(from), to.saturating_sub(from)) };
        (self.read_at)(room, from as u64)
    }

    fn slice(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        if range.is_empty() {
            return Some(&[]);
        }
        // SAFETY: the range lies within `room`; its parts are there, and a part that is there is never written again.
        self.has(&range)
            .then(|| unsafe { std::slice::from_raw_parts(self.room.as_ptr().add(range.start), range.len()) })
    }
}

impl FileBytes {
    /// The bytes of `file` as it is long now. None of them is read yet.
    ///
    /// # Errors
    /// When the file is empty, is no regular file, or there is no room for it.
    pub fn of_file(file: File) -> io::Result<FileBytes> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        FileBytes::of_reader(meta.len(), Box::new(move |buf, at| file.read_exact_at(buf, at)))
    }

    /// The `len` bytes that `read_at` gives. None of them is read yet.
    ///
    /// # Errors
    /// When there are none, or there is no room for them.
    pub fn of_reader(len: u64, read_at: Box<ReadAt>) -> io::Result<FileBytes> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"));
        }
        let room: MmapMut = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        let states = (0..len.div_ceil(PART)).map(|_| AtomicU8::new(ABSENT)).collect();
        Ok(FileBytes(Repr::File(Arc::new(Parts { read_at, len, room: room.into(), states, filling: Mutex::new(()) }))))
    }

    /// Bytes that did not come from a file.
    #[must_use]
    pub fn owned(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Repr::Owned(Arc::new(bytes)))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::File(f) => f.len,
            Repr::Owned(v) => v.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a range; `None` where it reaches past the end, or the file can no longer be read there. Ask for what is
    /// wanted, not for more: it is read.
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        match &self.0 {
            Repr::File(f) => f.slice(range),
            Repr::Owned(v) => v.get(range),
        }
    }

    /// `len` bytes from `at`.
    #[must_use]
    pub fn get_at(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.get(at..at.checked_add(len)?)
    }

    /// All of it.
    #[must_use]
    pub fn all(&self) -> Option<&[u8]> {
        self.get(0..self.len())
    }

    /// The bytes from `range.start` up to the first NUL, without it: a string of a table that lies at `range`. Reads little
    /// more than the string.
    #[must_use]
    pub fn string(&self, range: Range<usize>) -> Option<&[u8]> {
        let mut window = 256;
        loop {
            let end = range.start.checked_add(window)?.min(range.end);
            let bytes = self.get(range.start..end)?;
            if let Some(len) = bytes.iter().position(|b| *b == 0) {
                return bytes.get(..len);
            }
            if end == range.end {
                return None;
            }
            window = window.checked_mul(4)?;
        }
    }

    /// Reads all of it once, from the start, and keeps nothing.
    #[must_use]
    pub fn reader(&self) -> impl io::Read + '_ {
        Reader { bytes: self, at: 0 }
    }

    /// Where the bytes lie in our own memory: an identity, never read through.
    #[must_use]
    pub fn address(&self) -> usize {
        match &self.0 {
            Repr::File(f) => f.room.as_ptr().addr(),
            Repr::Owned(v) => v.as_ptr().addr(),
        }
    }
}

/// See [`FileBytes::reader`].
struct Reader<'a> {
    bytes: &'a FileBytes,
    at: usize,
}

impl io::Read for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = match &self.bytes.0 {
            Repr::File(f) => {
                let n = buf.len().min(f.len.saturating_sub(self.at));
                (f.read_at)(buf.get_mut(..n).unwrap_or(&mut []), self.at as u64)?;
                n
            }
            Repr::Owned(v) => v.get(self.at..).unwrap_or(&[]).read(buf)?,
        };
        self.at += n;
        Ok(n)
    }
}

impl std::fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> (tempfile::NamedTempFile, FileBytes) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let read = FileBytes::of_file(file.reopen().unwrap()).unwrap();
        (file, read)
    }

    #[test]
    fn parts_are_read_when_they_are_asked_for_and_stay_as_they_were() {
        let whole: Vec<u8> = (0..3 * PART + 10).map(|i| (i % 251) as u8).collect();
        let (named, bytes) = file(&whole);
        assert_eq!((bytes.len(), bytes.get(PART - 2..PART + 2)), (whole.len(), whole.get(PART - 2..PART + 2)));
        // rewritten, then cut short
        std::fs::write(named.path(), vec![0; whole.len()]).unwrap();
        assert_eq!(bytes.get_at(PART, 5), whole.get(PART..PART + 5));
        assert_eq!(bytes.get_at(2 * PART, 5), Some(&[0; 5][..]));
        named.as_file().set_len(PART as u64).unwrap();
        assert_eq!(bytes.get_at(3 * PART, 5), None);
        assert_eq!(bytes.all(), None);
        assert_eq!(bytes.get_at(0, 5), whole.get(..5));
        assert_eq!((bytes.get_at(usize::MAX, 2), bytes.get_at(whole.len(), 1)), (None, None));
        assert_eq!(bytes.get(whole.len()..whole.len()), Some(&[][..]));
    }

    #[test]
    fn strings_end_at_their_nul_or_not_at_all() {
        let mut long = vec![b'x'; 1000];
        long.extend(b"\0rest");
        let (_file, bytes) = file(&long);
        assert_eq!(bytes.string(0..long.len()), long.get(..1000));
        assert_eq!(bytes.string(990..1001), long.get(990..1000));
        assert_eq!(bytes.string(1001..long.len()), None);
        assert_eq!(bytes.string(1000..1001), Some(&[][..]));
        assert_eq!(FileBytes::owned(b"ab\0".to_vec()).string(1..3), Some(&b"b"[..]));
    }

    #[test]
    fn several_threads_read_one_file() {
        let whole: Vec<u8> = (0..20 * PART).map(|i| (i / PART) as u8).collect();
        let (_file, bytes) = file(&whole);
        std::thread::scope(|scope| {
            for t in 0..4usize {
                let (bytes, whole) = (&bytes, &whole);
                scope.spawn(move || {
                    for i in 0..20 {
                        let at = (i * 7 + t * 3) % 20 * PART;
                        assert_eq!(bytes.get_at(at, PART), whole.get(at..at + PART));
                    }
                });
            }
        });
    }
}
