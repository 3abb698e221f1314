//! A rehearsal on the running target, so that the reads of the pause are few.
//!
//! What a hung interpreter consists of does not move between the rehearsal and the stop. The pages looked at are
//! remembered and asked for together once the target is held; only what changed meanwhile costs a read of its own.

use crate::memory::{Memory, ReadError};
use crate::units::{Addr, PAGE};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Pages looked at in a rehearsal at most: 256 MiB.
const MAX_PAGES: usize = 65_536;

/// Memory that reads whole pages, once each, and knows which.
pub(super) struct Rehearsal<'a> {
    inner: &'a dyn Memory,
    pages: RefCell<BTreeMap<u64, Option<Box<[u8]>>>>,
}

impl<'a> Rehearsal<'a> {
    pub(super) fn new(inner: &'a dyn Memory) -> Rehearsal<'a> {
        Rehearsal { inner, pages: RefCell::default() }
    }

    /// The ranges of pages that were looked at.
    pub(super) fn into_ranges(self) -> Vec<(Addr, usize)> {
        let mut out: Vec<(Addr, usize)> = Vec::new();
        for (page, _) in self.pages.into_inner().into_iter().filter(|(_, bytes)| bytes.is_some()) {
            match out.last_mut() {
                Some((at, len)) if at.0 + *len as u64 == page => *len += PAGE as usize,
                _ => out.push((Addr(page), PAGE as usize)),
            }
        }
        out
    }

    /// Fetches the pages `from..` that are not known, neighbours together.
    fn fetch(&self, from: u64, pages: usize) {
        let mut known = self.pages.borrow_mut();
        if known.len() >= MAX_PAGES {
            return;
        }
        let mut bytes = vec![0; pages * PAGE as usize];
        if self.inner.read(Addr(from), &mut bytes).is_ok() {
            for (i, page) in bytes.chunks_exact(PAGE as usize).enumerate() {
                known.insert(from + i as u64 * PAGE, Some(page.into()));
            }
            return;
        }
        // one of them is not there
        for i in 0..pages as u64 {
            let at = from + i * PAGE;
            let mut page = vec![0; PAGE as usize];
            let had = pages > 1 && self.inner.read(Addr(at), &mut page).is_ok();
            known.insert(at, had.then(|| page.into()));
        }
    }
}

/// The pages a range touches.
fn pages_of(at: Addr, len: usize) -> std::ops::Range<u64> {
    let from = at.page().0;
    from..at.0.saturating_add(len.max(1) as u64).saturating_add(PAGE - 1) & !(PAGE - 1)
}

impl Memory for Rehearsal<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        // nearly all reads lie in one page, and nearly all in one that is known
        let (first, skip) = (at.page().0, usize::try_from(at.0 & (PAGE - 1)).unwrap_or(0));
        if let Some(Some(page)) = self.pages.borrow().get(&first)
            && let Some(bytes) = page.get(skip..skip.saturating_add(buf.len()))
        {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        self.expect(&[(at, buf.len())]);
        let known = self.pages.borrow();
        let mut here = at.0;
        let mut rest = &mut *buf;
        while !rest.is_empty() {
            let Some(Some(page)) = known.get(&(here & !(PAGE - 1))) else {
                drop(known);
                return self.inner.read(at, buf);
            };
            let skip = usize::try_from(here & (PAGE - 1)).unwrap_or(0);
            let n = (page.len() - skip).min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(page.get(skip..skip + n).unwrap_or_default());
            rest = later;
            here = here.saturating_add(n as u64);
        }
        Ok(())
    }

    fn expect(&self, ranges: &[(Addr, usize)]) {
        let mut wanted: Vec<u64> = Vec::new();
        {
            let known = self.pages.borrow();
            for (at, len) in ranges {
                let pages = pages_of(*at, *len).step_by(PAGE as usize);
                wanted.extend(pages.filter(|p| !known.contains_key(p)).take(MAX_PAGES));
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        for run in wanted.chunk_by(|a, b| a + PAGE == *b) {
            if let Some(first) = run.first() {
                self.fetch(*first, run.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Fake, MemoryExt};

    #[test]
    fn each_page_is_read_once_and_remembered() {
        struct Counting(Fake, std::cell::Cell<u32>);
        impl Memory for Counting {
            fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
                self.1.set(self.1.get() + 1);
                self.0.read(at, buf)
            }
        }
        let mut m = Fake::new();
        m.put(Addr(0x1000), &[7; 0x2000]).put(Addr(0x8ff8), &[1; 8]);
        let m = Counting(m, 0.into());
        let r = Rehearsal::new(&m);
        assert_eq!(r.read_u64(Addr(0x1ffc)), Ok(0x0707_0707_0707_0707));
        assert_eq!(r.read_u8(Addr(0x1000)), Ok(7));
        assert_eq!(m.1.get(), 1, "two pages in one read, then none");
        assert_eq!(r.read_u8(Addr(0x8ff8)), Ok(1), "what is there of a page that is not all there");
        assert!(r.read_u8(Addr(0x4000)).is_err());
        assert_eq!(r.into_ranges(), [(Addr(0x1000), 0x2000)]);
    }
}
