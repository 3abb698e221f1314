//! A moving window on a stack, so that a walk pays for memory by the page and not by the word.

use crate::memory::Memory;
use crate::units::{Addr, PAGE};

/// Bytes read ahead; a typical thread's live stack.
const AHEAD: usize = 16 << 10;
/// Bytes kept below the word asked for: saved registers lie just under the CFA.
const BEHIND: u64 = 256;

/// Words of the target's memory, read in larger pieces where they can be had.
pub(super) struct Window<'a> {
    memory: &'a dyn Memory,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(super) fn new(memory: &'a dyn Memory) -> Window<'a> {
        Window { memory, start: 0, bytes: Vec::new() }
    }

    /// The 64-bit word at `at`.
    pub(super) fn word(&mut self, at: u64) -> Option<u64> {
        if let Some(word) = self.had(at) {
            return Some(word);
        }
        let end_of_page = (at & !(PAGE - 1)).checked_add(PAGE)?;
        let in_page = usize::try_from(end_of_page - at).ok()?;
        let behind = at.saturating_sub(BEHIND).max(at & !(PAGE - 1));
        let filled = self.fill(behind, AHEAD)
            || (in_page >= 8
                && (self.fill(behind, in_page + usize::try_from(at - behind).ok()?) || self.fill(at, in_page)))
            || self.fill(at, 8);
        if filled { self.had(at) } else { None }
    }

    /// Bytes at `at`, past the window.
    pub(super) fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        self.memory.read(Addr(at), buf).ok()
    }

    fn had(&self, at: u64) -> Option<u64> {
        let skip = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(skip..skip.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn fill(&mut self, from: u64, len: usize) -> bool {
        self.bytes.resize(len, 0);
        let read = from.checked_add(len as u64).is_some() && self.memory.read(Addr(from), &mut self.bytes).is_ok();
        self.start = from;
        if !read {
            self.bytes.clear();
        }
        read
    }
}
