//! A made-up target for tests: regions of bytes, nothing else.

use super::{Memory, ReadError};
use crate::units::Addr;
use std::collections::BTreeMap;

/// Memory written by hand: a stack or a mutex in ten lines. Bytes outside what was put are [`ReadError::Unmapped`].
#[derive(Default, Clone, Debug)]
pub struct Fake {
    bytes: BTreeMap<u64, u8>,
}

impl Fake {
    /// Empty memory.
    #[must_use]
    pub fn new() -> Fake {
        Fake::default()
    }

    /// Writes `bytes` at `at`, over what was there.
    pub fn put(&mut self, at: Addr, bytes: &[u8]) -> &mut Fake {
        for (i, b) in bytes.iter().enumerate() {
            self.bytes.insert(at.0 + i as u64, *b);
        }
        self
    }

    /// Writes a 64-bit word.
    pub fn put_u64(&mut self, at: Addr, value: u64) -> &mut Fake {
        self.put(at, &value.to_le_bytes())
    }

    /// Writes a 32-bit word.
    pub fn put_u32(&mut self, at: Addr, value: u32) -> &mut Fake {
        self.put(at, &value.to_le_bytes())
    }
}

impl Memory for Fake {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        for (i, b) in buf.iter_mut().enumerate() {
            let here = at.0.checked_add(i as u64).ok_or(ReadError::Unmapped(at))?;
            *b = *self.bytes.get(&here).ok_or(ReadError::Unmapped(Addr(here)))?;
        }
        Ok(())
    }
}
