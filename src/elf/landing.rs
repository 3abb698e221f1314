//! Landing pads: where a function goes on when an exception passes through one of its calls, by the language-specific data
//! area (`.gcc_except_table`) its frame description names. What a landing pad gives back, the frame holds.
//!
//! Source: Itanium C++ ABI, "Exception Handling Tables"; gcc/except.cc, LLVM EHStreamer.cpp; seen of g++ 12 and rustc 1.95.

use crate::memory::{u16_at, u32_at, u64_at};
use crate::units::Vaddr;
use std::ops::Range;

/// The language-specific data of one frame description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LandingTable {
    /// Where the data begins.
    pub at: Vaddr,
    /// The code the frame description covers.
    pub covers: Range<u64>,
}

/// Bytes of a table looked at: enough for some ten thousand call sites.
pub const LANDING_TABLE_BOUND: usize = 64 << 10;
/// Call sites looked at.
const MAX_SITES: usize = 1 << 14;

const OMIT: u8 = 0xff;
const ULEB128: u8 = 0x01;
const PC_RELATIVE: u8 = 0x10;

/// Reads through the table.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Address of the first byte.
    base: u64,
}

impl Cursor<'_> {
    fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn uleb128(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A value in one of the encodings that compilers use for these tables (`DW_EH_PE_*`, LSB Core).
    fn encoded(&mut self, encoding: u8) -> Option<u64> {
        let here = self.base.wrapping_add(self.at as u64);
        let (value, len) = match encoding & 0x0f {
            ULEB128 => (self.uleb128()?, 0),
            0x02 => (u64::from(u16_at(self.bytes, self.at)?), 2),
            0x03 => (u64::from(u32_at(self.bytes, self.at)?), 4),
            0x00 | 0x04 | 0x0c => (u64_at(self.bytes, self.at)?, 8),
            0x0b => (i64::from(u32_at(self.bytes, self.at)?.cast_signed()).cast_unsigned(), 4),
            _ => return None,
        };
        self.at += len;
        match encoding & 0xf0 {
            0 => Some(value),
            PC_RELATIVE => Some(here.wrapping_add(value)),
            _ => None,
        }
    }
}

impl LandingTable {
    /// The landing pad of the call at `pc` (an address within the call instruction). `bytes`: those from [`LandingTable::at`]
    /// on, as far as they could be had. `None` where an exception would pass by, or the table makes no sense.
    #[must_use]
    pub fn landing_pad(&self, bytes: &[u8], pc: Vaddr) -> Option<Vaddr> {
        let mut c = Cursor { bytes, at: 0, base: self.at.0 };
        let start = match c.u8()? {
            OMIT => self.covers.start,
            encoding => c.encoded(encoding)?,
        };
        if c.u8()? != OMIT {
            c.uleb128()?;
        }
        let encoding = c.u8()?;
        let len = usize::try_from(c.uleb128()?).ok()?;
        let end = c.at.checked_add(len)?;
        for _ in 0..MAX_SITES {
            if c.at >= end {
                break;
            }
            let from = c.encoded(encoding)?;
            let len = c.encoded(encoding)?;
            let pad = c.encoded(encoding)?;
            c.uleb128()?;
            let from = self.covers.start.wrapping_add(from);
            if pc.0 < from {
                // call sites stand in the order of their addresses
                return None;
            }
            if pc.0 - from < len {
                return (pad != 0).then(|| Vaddr(start.wrapping_add(pad)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> LandingTable {
        LandingTable { at: Vaddr(0x2000), covers: 0x1000..0x1100 }
    }

    #[test]
    fn a_call_has_the_landing_pad_its_site_says() {
        // no start, no types, uleb128; sites 0x10+8 → 0x80, 0x20+0x90 → none
        let bytes = [0xff, 0xff, 0x01, 9, 0x10, 8, 0x80, 1, 0, 0x20, 0x90, 1, 0, 0];
        let pad = |at| table().landing_pad(&bytes, Vaddr(at));
        assert_eq!(pad(0x1012), Some(Vaddr(0x1080)));
        assert_eq!((pad(0x100f), pad(0x1018), pad(0x1030), pad(0x10f0)), (None, None, None, None));
    }

    #[test]
    fn a_start_of_its_own_and_four_byte_fields_are_read() {
        // start: pcrel sdata4 at 0x2001, → 0x3001; types at uleb128; udata4
        let mut bytes = vec![0x1b];
        bytes.extend(0x1000i32.to_le_bytes());
        bytes.extend([0x9b, 0x20, 0x03, 13]);
        for word in [0x10u32, 8, 0x40] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.push(1);
        assert_eq!(table().landing_pad(&bytes, Vaddr(0x1010)), Some(Vaddr(0x3041)));
        for cut in 0..bytes.len() {
            let _ = table().landing_pad(&bytes[..cut], Vaddr(0x1010));
        }
        assert_eq!(table().landing_pad(&[0xff, 0xff, 0x01, 0xff, 0xff, 0xff], Vaddr(0x1010)), None);
    }
}
