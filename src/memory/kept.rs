//! What was read while the process was held, kept for thinking about afterwards.

use super::{Memory, ReadError};
use crate::units::Addr;
use std::collections::BTreeMap;

/// Extents of bytes by address. Extents never overlap; touching ones are joined only when read across.
#[derive(Default, Clone)]
pub struct Kept {
    extents: BTreeMap<u64, Vec<u8>>,
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
        let mut start = at.0;
        let mut rest = bytes;
        while !rest.is_empty() {
            // skip what an extent at or before `start` already covers
            if let Some((from, had)) = self.extents.range(..=start).next_back() {
                let end = from.saturating_add(had.len() as u64);
                if end > start {
                    let skip = usize::try_from(end - start).unwrap_or(usize::MAX).min(rest.len());
                    rest = rest.get(skip..).unwrap_or(&[]);
                    start = end;
                    continue;
                }
            }
            let room = match self.extents.range(start..).next() {
                Some((next, _)) => usize::try_from(next - start).unwrap_or(usize::MAX).min(rest.len()),
                None => rest.len(),
            };
            let (now, later) = rest.split_at(room);
            self.extents.insert(start, now.to_vec());
            start = start.saturating_add(room as u64);
            rest = later;
        }
    }

    /// Whether every byte of the range is kept.
    #[must_use]
    pub fn covers(&self, at: Addr, len: usize) -> bool {
        let mut here = at.0;
        let end = at.0.saturating_add(len as u64);
        while here < end {
            match self.extents.range(..=here).next_back() {
                Some((from, had)) if from.saturating_add(had.len() as u64) > here => {
                    here = from.saturating_add(had.len() as u64);
                }
                _ => return false,
            }
        }
        true
    }

    /// The extents, ascending: where each starts and its bytes.
    pub fn extents(&self) -> impl Iterator<Item = (Addr, &[u8])> {
        self.extents.iter().map(|(a, b)| (Addr(*a), b.as_slice()))
    }

    /// Bytes kept in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.extents.values().map(Vec::len).sum()
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
        let mut here = at.0;
        let mut rest = buf;
        while !rest.is_empty() {
            let (from, had) = self.extents.range(..=here).next_back().ok_or(ReadError::Released(Addr(here)))?;
            let skip = usize::try_from(here - from).map_err(|_| ReadError::Released(Addr(here)))?;
            let bytes = had.get(skip..).filter(|b| !b.is_empty()).ok_or(ReadError::Released(Addr(here)))?;
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
    fn what_nobody_read_is_released() {
        let mut k = Kept::new();
        k.keep(Addr(0x1000), &[1; 8]);
        let mut b = [0; 8];
        assert_eq!(k.read(Addr(0x1004), &mut b), Err(ReadError::Released(Addr(0x1008))));
        assert_eq!(k.read(Addr(0x900), &mut b), Err(ReadError::Released(Addr(0x900))));
    }
}
