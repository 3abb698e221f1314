//! Bytes of the target: the [`Memory`] trait, why a read failed, typed readers, bounded walks, kept pages, file bytes.
//!
//! Knows nothing of what the bytes mean, nor of how a process is stopped.

mod fake;
mod kept;
mod map;
mod words;

pub use fake::Fake;
pub use kept::Kept;
pub use map::{FileBytes, ReadAt};
pub use words::{i32_at, u16_at, u32_at, u64_at};

use crate::units::Addr;

/// Bytes of the target, wherever they come from. The smallest seam in the house.
pub trait Memory {
    /// Fills `buf` from `at`: all of it, or none and the reason.
    ///
    /// # Errors
    /// The first byte that could not be had decides; `buf` is then unspecified.
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError>;

    /// Says that these ranges (start, bytes) will be read, so that a door that pays per system call can fetch them
    /// together. Ranges that cannot be read are passed over in silence; a later read of them gives the reason.
    fn expect(&self, _ranges: &[(Addr, usize)]) {}

    /// Reads ranges (start, bytes) and hands each one's bytes to `each`, in order, with the range's number; `None` for one
    /// that cannot be had whole. A door that pays per system call reads many at once. The caller bounds the sum.
    fn read_each(&self, ranges: &[(Addr, usize)], each: &mut dyn FnMut(usize, Option<&[u8]>)) {
        let mut room = Vec::new();
        for (i, (at, len)) in ranges.iter().enumerate() {
            room.resize(*len, 0);
            each(i, self.read(*at, &mut room).is_ok().then_some(room.as_slice()));
        }
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        (**self).read(at, buf)
    }

    fn expect(&self, ranges: &[(Addr, usize)]) {
        (**self).expect(ranges);
    }

    fn read_each(&self, ranges: &[(Addr, usize)], each: &mut dyn FnMut(usize, Option<&[u8]>)) {
        (**self).read_each(ranges, each);
    }
}

/// Why bytes could not be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// No mapping covers the address.
    #[error("{0} is not mapped")]
    Unmapped(Addr),
    /// The core holds no bytes for the address and no verified file does.
    #[error("{0} is not in the core")]
    NotInCore(Addr),
    /// The system refused the read.
    #[error("reading {0} was refused")]
    Refused(Addr),
    /// The page did not come within the limit: a userfaultfd handler or a file system has to bring it and does not.
    #[error("reading {0} got no answer")]
    NoAnswer(Addr),
    /// The process runs again and nobody read this page while it was held.
    #[error("{0} was not read while the process was held")]
    Released(Addr),
    /// The process is gone.
    #[error("the process is gone")]
    Lost,
}

/// Typed reads, for every [`Memory`]. All numbers are little-endian, as on both CPUs.
pub trait MemoryExt: Memory {
    /// An unsigned byte.
    ///
    /// # Errors
    /// As [`Memory::read`]; so for all readers here.
    fn read_u8(&self, at: Addr) -> Result<u8, ReadError> {
        let mut b = [0; 1];
        self.read(at, &mut b)?;
        Ok(b[0])
    }

    /// An unsigned 16-bit word.
    #[allow(missing_docs)]
    fn read_u16(&self, at: Addr) -> Result<u16, ReadError> {
        let mut b = [0; 2];
        self.read(at, &mut b)?;
        Ok(u16::from_le_bytes(b))
    }

    /// An unsigned 32-bit word.
    fn read_u32(&self, at: Addr) -> Result<u32, ReadError> {
        let mut b = [0; 4];
        self.read(at, &mut b)?;
        Ok(u32::from_le_bytes(b))
    }

    /// A signed 32-bit word.
    fn read_i32(&self, at: Addr) -> Result<i32, ReadError> {
        let mut b = [0; 4];
        self.read(at, &mut b)?;
        Ok(i32::from_le_bytes(b))
    }

    /// An unsigned 64-bit word.
    fn read_u64(&self, at: Addr) -> Result<u64, ReadError> {
        let mut b = [0; 8];
        self.read(at, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    /// A pointer.
    fn read_addr(&self, at: Addr) -> Result<Addr, ReadError> {
        self.read_u64(at).map(Addr)
    }

    /// `len` bytes; the caller has bounded `len`.
    fn read_vec(&self, at: Addr, len: usize) -> Result<Vec<u8>, ReadError> {
        let mut v = vec![0; len];
        self.read(at, &mut v)?;
        Ok(v)
    }

    /// The bytes of a NUL-terminated string, without the NUL, cut at `max` bytes. Reads in pieces that do not cross a
    /// 64-byte line, so that a string at the end of a mapping is had.
    fn read_c_string(&self, at: Addr, max: usize) -> Result<Vec<u8>, ReadError> {
        let mut out = Vec::new();
        let mut here = at;
        while out.len() < max {
            let room = usize::try_from(64 - (here.0 & 63)).unwrap_or(64).min(max - out.len());
            let mut piece = [0u8; 64];
            let Some(piece) = piece.get_mut(..room) else { break };
            self.read(here, piece)?;
            if let Some(end) = piece.iter().position(|b| *b == 0) {
                out.extend(piece.iter().take(end));
                return Ok(out);
            }
            out.extend_from_slice(piece);
            here = here.checked_add(room as u64).ok_or(ReadError::Unmapped(here))?;
        }
        Ok(out)
    }
}

impl<M: Memory + ?Sized> MemoryExt for M {}

/// How a bounded walk over a linked list ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkEnd {
    /// At the list's own end.
    Complete,
    /// The bound was reached: there may be more.
    Bound,
    /// A node came twice: the list runs in a circle that does not close at its head.
    Circle(Addr),
    /// A link could not be read.
    Unreadable(ReadError),
}

/// Walks a linked list from `first`, calling `next` for each node until it gives `Ok(None)` or null, a node repeats, or
/// `bound` nodes were seen. Returns the nodes in order and how the walk ended.
pub fn walk(
    first: Addr,
    bound: usize,
    mut next: impl FnMut(Addr) -> Result<Option<Addr>, ReadError>,
) -> (Vec<Addr>, WalkEnd) {
    let mut nodes = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut here = first;
    loop {
        if here.is_null() {
            return (nodes, WalkEnd::Complete);
        }
        if nodes.len() >= bound {
            return (nodes, WalkEnd::Bound);
        }
        if !seen.insert(here) {
            return (nodes, WalkEnd::Circle(here));
        }
        nodes.push(here);
        match next(here) {
            Ok(Some(n)) => here = n,
            Ok(None) => return (nodes, WalkEnd::Complete),
            Err(e) => return (nodes, WalkEnd::Unreadable(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_ends_the_walk() {
        let (nodes, end) = walk(Addr(1), 100, |a| Ok(Some(Addr(a.0 % 3 + 1))));
        assert_eq!(nodes.len(), 3);
        assert_eq!(end, WalkEnd::Circle(Addr(1)));
    }

    #[test]
    fn the_bound_ends_the_walk() {
        let (nodes, end) = walk(Addr(1), 10, |a| Ok(Some(a.offset(8))));
        assert_eq!((nodes.len(), end), (10, WalkEnd::Bound));
    }

    #[test]
    fn a_string_at_the_end_of_a_mapping_is_had() {
        let mut m = Fake::new();
        m.put(Addr(0x1000), b"xxxxhello\0");
        assert_eq!(m.read_c_string(Addr(0x1004), 100).unwrap_err(), ReadError::Unmapped(Addr(0x100a)));
        m.put(Addr(0x2000), &[b'a'; 64]);
        assert_eq!(m.read_c_string(Addr(0x2000), 64).unwrap().len(), 64);
    }
}
