//! What was read while the process was held, kept for thinking about afterwards.

use super::{Memory, ReadError};
use crate::units::{Addr, ByAddr, PAGE};
use std::collections::{BTreeMap, HashMap};

/// Extents of bytes by address. Extents never overlap; touching ones are joined only when read across.
///
/// Bytes read together are kept in the buffer they were read into; extents are views of such buffers.
#[derive(Default, Clone)]
pub struct Kept {
    buffers: Vec<Vec<u8>>,
    extents: BTreeMap<u64, Extent>,
    /// Where whole pages of extents that are not long begin: buffer, and offset in it. Most reads are of such pages.
    pages: HashMap<u64, (usize, usize), ByAddr>,
    bytes: usize,
}

/// Bytes of an extent whose pages are listed one by one at most; longer ones are stacks.
const LISTED: usize = 16 * PAGE as usize;

/// A piece of one buffer.
#[derive(Clone, Copy)]
struct Extent {
    buffer: usize,
    from: usize,
    len: usize,
}

impl Kept {
    /// Nothing kept yet.
    #[must_use]
    pub fn new() -> Kept {
        Kept::default()
    }

    /// Keeps `bytes` as what stood at `at`. Bytes already kept stay as they were: the first reading of an instant
    /// counts.
    pub fn keep(&mut self, at: Addr, bytes: &[u8]) {
        if !self.covers(at, bytes.len()) {
            self.keep_buffer(bytes.to_vec(), &[(at, 0, bytes.len())]);
        }
    }

    /// Keeps pieces of one buffer, each given as where it stood, where it begins in the buffer, and its length. Nothing
    /// is copied. Pieces that do not lie in the buffer, or reach beyond the end of the address space, are passed over; bytes
    /// already kept stay as they were.
    pub fn keep_buffer(&mut self, bytes: Vec<u8>, pieces: &[(Addr, usize, usize)]) {
        let buffer = self.buffers.len();
        for (at, from, len) in pieces {
            let inside = from.checked_add(*len).is_some_and(|end| end <= bytes.len());
            // the last byte there is has no address after it
            if inside && at.checked_add(*len as u64).is_some() {
                self.add(at.0, Extent { buffer, from: *from, len: *len });
            }
        }
        self.buffers.push(bytes);
    }

    /// Adds what of the extent is not covered yet.
    fn add(&mut self, at: u64, extent: Extent) {
        let Extent { buffer, mut from, len: mut rest } = extent;
        let mut start = at;
        while rest > 0 {
            // skip what an extent at or before `start` already covers
            if let Some((have, had)) = self.extents.range(..=start).next_back() {
                let end = have.saturating_add(had.len as u64);
                if end > start {
                    let skip = usize::try_from(end - start).unwrap_or(usize::MAX).min(rest);
                    (from, rest, start) = (from + skip, rest - skip, end);
                    continue;
                }
            }
            let len = match self.extents.range(start..).next() {
                Some((next, _)) => usize::try_from(next - start).unwrap_or(usize::MAX).min(rest),
                None => rest,
            };
            self.extents.insert(start, Extent { buffer, from, len });
            if len <= LISTED {
                let first = usize::try_from(start.wrapping_neg() % PAGE).unwrap_or(len);
                let whole = (first..len).step_by(PAGE as usize).filter(|skip| len - skip >= PAGE as usize);
                self.pages.extend(whole.map(|skip| (start.wrapping_add(skip as u64), (buffer, from + skip))));
            }
            self.bytes += len;
            (from, rest, start) = (from + len, rest - len, start.saturating_add(len as u64));
        }
    }

    /// Whether every byte of the range is kept.
    #[must_use]
    pub fn covers(&self, at: Addr, len: usize) -> bool {
        self.in_page(at, len).is_some() || self.missing(at, len).is_none()
    }

    /// The bytes of a range that lies in one listed page.
    fn in_page(&self, at: Addr, len: usize) -> Option<&[u8]> {
        let skip = usize::try_from(at.0 % PAGE).ok()?;
        if len > PAGE as usize - skip {
            return None;
        }
        let (buffer, from) = self.pages.get(&at.page().0)?;
        self.buffers.get(*buffer)?.get(from + skip..from + skip + len)
    }

    /// The first byte of the range that is not kept.
    #[must_use]
    pub fn missing(&self, at: Addr, len: usize) -> Option<Addr> {
        let mut here = at.0;
        let end = at.0.saturating_add(len as u64);
        while here < end {
            match self.extents.range(..=here).next_back() {
                Some((from, had)) if from.saturating_add(had.len as u64) > here => {
                    here = from.saturating_add(had.len as u64);
                }
                _ => return Some(Addr(here)),
            }
        }
        None
    }

    /// The extents, ascending: where each starts and its bytes.
    pub fn extents(&self) -> impl Iterator<Item = (Addr, &[u8])> {
        self.extents.iter().map(|(a, e)| (Addr(*a), self.bytes_of(e)))
    }

    fn bytes_of(&self, e: &Extent) -> &[u8] {
        self.buffers.get(e.buffer).and_then(|b| b.get(e.from..e.from.saturating_add(e.len))).unwrap_or(&[])
    }

    /// Bytes kept in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }
}

impl Memory for Kept {
    /// # Errors
    /// [`ReadError::Released`] with the first byte that was not kept.
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        if let Some(bytes) = self.in_page(at, buf.len()) {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        let mut here = at.0;
        let mut rest = buf;
        while !rest.is_empty() {
            let (from, had) = self.extents.range(..=here).next_back().ok_or(ReadError::Released(Addr(here)))?;
            let skip = usize::try_from(here - from).map_err(|_| ReadError::Released(Addr(here)))?;
            let bytes = self.bytes_of(had).get(skip..).filter(|b| !b.is_empty());
            let bytes = bytes.ok_or(ReadError::Released(Addr(here)))?;
            let n = bytes.len().min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(bytes.get(..n).unwrap_or(&[]));
            rest = later;
            here = here.saturating_add(n as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reading_counts_and_extents_join() {
        let mut k = Kept::new();
        k.keep(Addr(0x1004), &[4, 5, 6, 7]);
        k.keep(Addr(0x1000), &[9; 12]);
        let mut b = [0; 12];
        k.read(Addr(0x1000), &mut b).unwrap();
        assert_eq!(b, [9, 9, 9, 9, 4, 5, 6, 7, 9, 9, 9, 9]);
        assert!(k.covers(Addr(0x1000), 12));
        assert!(!k.covers(Addr(0x1000), 13));
        assert_eq!(k.len(), 12);
    }

    #[test]
    fn pages_are_found_where_they_were_read_first() {
        let mut k = Kept::new();
        let page = PAGE as usize;
        k.keep(Addr(0x2ff8), &[7; 8]);
        k.keep_buffer([[1; 0x1000], [2; 0x1000], [3; 0x1000]].concat(), &[(Addr(0x1000), 0, 3 * page)]);
        k.keep_buffer(vec![9; 3 * page], &[(Addr(0x2000), 0, 3 * page)]);
        let at = |at: u64| {
            let mut b = [0; 2];
            k.read(Addr(at), &mut b).map(|()| b)
        };
        assert_eq!([at(0x1000), at(0x1fff), at(0x2ff6)], [Ok([1, 1]), Ok([1, 2]), Ok([2, 2])]);
        assert_eq!([at(0x2ff8), at(0x2fff), at(0x3ffe)], [Ok([7, 7]), Ok([7, 3]), Ok([3, 3])]);
        assert_eq!([at(0x3fff), at(0x4ffe)], [Ok([3, 9]), Ok([9, 9])]);
        assert_eq!(at(0x4fff), Err(ReadError::Released(Addr(0x5000))));
        assert!(k.covers(Addr(0x1000), 4 * page) && !k.covers(Addr(0x4fff), 2) && k.covers(Addr(0x3123), 8));
        assert_eq!(k.len(), 4 * page);
    }

    #[test]
    fn what_nobody_read_is_released() {
        let mut k = Kept::new();
        k.keep(Addr(0x1000), &[1; 8]);
        let mut b = [0; 8];
        assert_eq!(k.read(Addr(0x1004), &mut b), Err(ReadError::Released(Addr(0x1008))));
        assert_eq!(k.read(Addr(0x900), &mut b), Err(ReadError::Released(Addr(0x900))));
    }

    #[test]
    fn pieces_of_one_buffer_overlap_and_overreach() {
        let mut k = Kept::new();
        let buffer: Vec<u8> = (0..16).collect();
        k.keep_buffer(
            buffer,
            &[(Addr(0x2000), 4, 4), (Addr(0x2002), 8, 4), (Addr(0x3000), 10, 7), (Addr(0x3000), 15, 1)],
        );
        let mut b = [0; 6];
        k.read(Addr(0x2000), &mut b).unwrap();
        assert_eq!(b, [4, 5, 6, 7, 10, 11]);
        assert_eq!(k.missing(Addr(0x2000), 8), Some(Addr(0x2006)));
        assert_eq!(
            k.extents().map(|(a, b)| (a.0, b.len())).collect::<Vec<_>>(),
            [(0x2000, 4), (0x2004, 2), (0x3000, 1)]
        );
        assert_eq!(k.len(), 7);
    }

    #[test]
    fn nothing_is_kept_beyond_the_end_of_the_address_space() {
        let mut k = Kept::new();
        for at in [u64::MAX, u64::MAX - 3, u64::MAX - 3] {
            k.keep(Addr(at), &[1; 8]);
        }
        k.keep(Addr(u64::MAX - 15), &[2; 8]);
        assert_eq!(k.len(), 8);
        assert!(k.read(Addr(u64::MAX - 3), &mut [0; 4]).is_err());
    }
}
