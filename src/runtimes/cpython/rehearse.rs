//! A rehearsal on the running target, so that the pause has little to do.
//!
//! What a hung interpreter consists of does not move between the rehearsal and the stop. So the walk that thinking will do
//! is done before: the pages it looks at are remembered, and which words of them. Held, those pages are read together. Where
//! every word is the same, so is the walk, and all that it would read has been read; only where one is not, the walk is done
//! again.

use super::census::Census;
use super::gil::futex_wait;
use super::objects::Objects;
use super::place::current_state;
use super::waits::stack_pointer;
use crate::memory::{Memory, MemoryExt, ReadError};
use crate::target::ThreadState;
use crate::units::{Addr, ByAddr, PAGE, Tid};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Pages looked at in a rehearsal at most: 256 MiB.
const MAX_PAGES: usize = 65_536;
/// Words of a page, and the 64-bit masks that hold a bit for each.
const WORDS: usize = PAGE as usize / 8;
const MASKS: usize = WORDS / 64;

/// A page, and which of its words were looked at.
struct Page {
    bytes: Box<[u8]>,
    looked: [u64; MASKS],
}

impl Page {
    /// Copies bytes from `skip` on, as many as there are room and page for, and notes that they were looked at.
    fn copy(&mut self, skip: usize, room: &mut [u8]) -> usize {
        let n = room.len().min(self.bytes.len().saturating_sub(skip));
        if let (Some(bytes), Some(room)) = (self.bytes.get(skip..skip + n), room.get_mut(..n)) {
            room.copy_from_slice(bytes);
        }
        let last = (skip + n).div_ceil(8);
        for word in skip / 8..last {
            if let Some(mask) = self.looked.get_mut(word / 64) {
                *mask |= 1 << (word % 64);
            }
        }
        n
    }

    /// The bytes from the first to the last word that was looked at.
    fn span(&self) -> Option<Range<usize>> {
        let first = self.looked.iter().position(|m| *m != 0)?;
        let last = self.looked.iter().rposition(|m| *m != 0)?;
        let from = first * 64 + self.looked.get(first)?.trailing_zeros() as usize;
        let upto = last * 64 + 64 - self.looked.get(last)?.leading_zeros() as usize;
        Some(from * 8..upto * 8)
    }

    /// Whether `now`, which stands at `span`, has the same words where they were looked at.
    fn agrees(&self, span: &Range<usize>, now: &[u8]) -> bool {
        let Some(then) = self.bytes.get(span.clone()) else { return false };
        let looked = |word: usize| self.looked.get(word / 64).is_some_and(|m| m >> (word % 64) & 1 == 1);
        let words = then.as_chunks::<8>().0.iter().zip(now.as_chunks::<8>().0);
        then == now || words.enumerate().all(|(i, (a, b))| a == b || !looked(span.start / 8 + i))
    }
}

/// Memory that reads whole pages, once each, and knows which, and what of them was looked at.
pub(super) struct Rehearsal<'a> {
    inner: &'a dyn Memory,
    pages: RefCell<HashMap<u64, Option<Page>, ByAddr>>,
    /// Whether something was read without being remembered.
    overflown: Cell<bool>,
}

/// What is left of a rehearsal.
#[derive(Default)]
pub(super) struct Rehearsed {
    /// Ascending.
    pages: Vec<(u64, Page)>,
    /// Addresses of pages that could not be read.
    absent: Vec<u64>,
    whole: bool,
}

impl Rehearsed {
    /// The ranges of pages that were read.
    pub(super) fn ranges(&self) -> Vec<(Addr, usize)> {
        let mut out: Vec<(Addr, usize)> = Vec::new();
        for (page, _) in &self.pages {
            match out.last_mut() {
                Some((at, len)) if at.0 + *len as u64 == *page => *len += PAGE as usize,
                _ => out.push((Addr(*page), PAGE as usize)),
            }
        }
        out
    }

    /// Whether every word that was looked at is in `memory` as it was then.
    pub(super) fn stands(&self, memory: &dyn Memory) -> bool {
        let mut now = [0; PAGE as usize];
        let same = |(at, page): &(u64, Page)| {
            let Some(span) = page.span() else { return true };
            let Some(now) = now.get_mut(..span.len()) else { return false };
            memory.read(Addr(at + span.start as u64), now).is_ok() && page.agrees(&span, now)
        };
        self.whole && self.pages.iter().all(same) && self.absent.iter().all(|at| memory.read_u8(Addr(*at)).is_err())
    }
}

impl<'a> Rehearsal<'a> {
    pub(super) fn new(inner: &'a dyn Memory) -> Rehearsal<'a> {
        Rehearsal { inner, pages: RefCell::default(), overflown: Cell::new(false) }
    }

    /// Ends it.
    pub(super) fn end(self) -> Rehearsed {
        let mut pages = Vec::new();
        let mut absent = Vec::new();
        for (at, page) in self.pages.into_inner() {
            match page {
                Some(page) => pages.push((at, page)),
                None => absent.push(at),
            }
        }
        pages.sort_unstable_by_key(|(at, _)| *at);
        Rehearsed { pages, absent, whole: !self.overflown.get() }
    }

    /// Fetches runs of pages that are not known: where each begins, and its bytes.
    fn fetch(&self, runs: &[(Addr, usize)]) {
        let mut known = self.pages.borrow_mut();
        if known.len() >= MAX_PAGES {
            return;
        }
        let mut broken = Vec::new();
        self.inner.read_each(runs, &mut |i, bytes| {
            let Some((at, len)) = runs.get(i) else { return };
            let Some(bytes) = bytes else {
                broken.extend((at.0..at.0.saturating_add(*len as u64)).step_by(PAGE as usize));
                return;
            };
            for (page, bytes) in (at.0..).step_by(PAGE as usize).zip(bytes.chunks_exact(PAGE as usize)) {
                known.insert(page, Some(Page { bytes: bytes.into(), looked: [0; MASKS] }));
            }
        });
        // one of them is not there
        for at in broken {
            let mut bytes = vec![0; PAGE as usize];
            let had = runs.iter().any(|(_, len)| *len > PAGE as usize) && self.inner.read(Addr(at), &mut bytes).is_ok();
            known.insert(at, had.then(|| Page { bytes: bytes.into(), looked: [0; MASKS] }));
        }
    }
}

/// The pages a range touches.
fn pages_of(at: Addr, len: usize) -> Range<u64> {
    let from = at.page().0;
    from..at.0.saturating_add(len.max(1) as u64).saturating_add(PAGE - 1) & !(PAGE - 1)
}

impl Memory for Rehearsal<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        // nearly all reads lie in one page, and nearly all in one that is known
        let skip = usize::try_from(at.0 & (PAGE - 1)).unwrap_or(0);
        if let Some(Some(page)) = self.pages.borrow_mut().get_mut(&at.page().0)
            && skip + buf.len() <= page.bytes.len()
        {
            page.copy(skip, buf);
            return Ok(());
        }
        self.expect(&[(at, buf.len())]);
        let mut known = self.pages.borrow_mut();
        let mut here = at.0;
        let mut rest = &mut *buf;
        while !rest.is_empty() {
            let Some(found) = known.get_mut(&(here & !(PAGE - 1))) else {
                self.overflown.set(true);
                return self.inner.read(at, buf);
            };
            let Some(page) = found else { return self.inner.read(at, buf) };
            let n = page.copy(usize::try_from(here & (PAGE - 1)).unwrap_or(0), rest);
            rest = rest.split_at_mut(n).1;
            here = here.saturating_add(n.max(1) as u64);
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
        let runs: Vec<(Addr, usize)> = wanted
            .chunk_by(|a, b| a + PAGE == *b)
            .filter_map(|run| Some((Addr(*run.first()?), run.len() * PAGE as usize)))
            .collect();
        if !runs.is_empty() {
            self.fetch(&runs);
        }
    }
}

/// What a rehearsal took the threads for: they do the same when they are held, or the walk is done again.
pub(super) struct Cast {
    parts: Vec<Part>,
    /// All thread states; a thread that was taken for none may not turn out to run one.
    states: BTreeSet<u64>,
    key: Option<i32>,
    /// Where GILs lie. Who waits for one wakes now and then, and waits for nothing else.
    gils: Vec<Range<u64>>,
}

/// One thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    tid: Tid,
    /// The futex it waits at, and its stack pointer then.
    futex: Option<(Addr, Option<u64>)>,
    /// The thread pointer, of those that have a thread state.
    pthread: Option<u64>,
}

fn part(state: &ThreadState, gils: &[Range<u64>]) -> Part {
    let of_gil = |at: &Addr| gils.iter().any(|g| g.contains(&at.0));
    let futex = state.syscall.as_ref().and_then(futex_wait).filter(|at| !of_gil(at));
    let pthread = state.registers.as_ref().and_then(|r| r.tls_base);
    Part { tid: state.tid, futex: futex.map(|at| (at, stack_pointer(state))), pthread }
}

impl Cast {
    pub(super) fn new(objects: &Objects<'_>, census: &Census, threads: &[ThreadState]) -> Cast {
        let size = objects.o.gil.size as u64;
        let gils: Vec<Range<u64>> = census.gils.iter().map(|g| g.addr.0..g.addr.0.saturating_add(size)).collect();
        let states = census.interpreters.iter().flat_map(|i| &i.threads).map(|t| t.addr.0).collect();
        Cast { parts: threads.iter().map(|t| part(t, &gils)).collect(), states, key: census.key, gils }
    }

    /// Whether these threads are who was rehearsed.
    pub(super) fn is(&self, objects: &Objects<'_>, threads: &[ThreadState]) -> bool {
        let same = |(then, state): (&Part, &ThreadState)| {
            let now = part(state, &self.gils);
            if then.pthread.is_some() {
                return *then == now;
            }
            let stranger = || Some(self.states.contains(&current_state(objects, now.pthread?, self.key?)?));
            (then.tid, then.futex) == (now.tid, now.futex) && stranger() != Some(true)
        };
        self.parts.len() == threads.len() && self.parts.iter().zip(threads).all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Fake;

    struct Counting(Fake, Cell<u32>);

    impl Memory for Counting {
        fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
            self.1.set(self.1.get() + 1);
            self.0.read(at, buf)
        }
    }

    #[test]
    fn each_page_is_read_once_and_remembered() {
        let mut m = Fake::new();
        m.put(Addr(0x1000), &[7; 0x2000]).put(Addr(0x8ff8), &[1; 8]);
        let m = Counting(m, 0.into());
        let r = Rehearsal::new(&m);
        assert_eq!(r.read_u64(Addr(0x1ffc)), Ok(0x0707_0707_0707_0707));
        assert_eq!(r.read_u8(Addr(0x1000)), Ok(7));
        assert_eq!(m.1.get(), 1, "two pages in one read, then none");
        assert_eq!(r.read_u8(Addr(0x8ff8)), Ok(1), "what is there of a page that is not all there");
        assert!(r.read_u8(Addr(0x4000)).is_err());
        assert_eq!(r.end().ranges(), [(Addr(0x1000), 0x2000)]);
    }

    #[test]
    fn only_words_that_were_looked_at_count() {
        let mut m = Fake::new();
        m.put(Addr(0x1000), &[7; 0x2000]);
        let r = Rehearsal::new(&m);
        assert!(r.read_u64(Addr(0x1ffc)).is_ok() && r.read_u8(Addr(0x1208)).is_ok());
        assert!(r.read_u8(Addr(0x5000)).is_err());
        let then = r.end();
        assert!(then.stands(&m));
        m.put_u64(Addr(0x1200), 1).put_u64(Addr(0x1210), 1).put_u64(Addr(0x2008), 1);
        assert!(then.stands(&m), "neighbours");
        for at in [0x1208, 0x1ff8, 0x2000] {
            let mut other = Fake::new();
            other.put(Addr(0x1000), &[7; 0x2000]).put(Addr(at + 7), &[8]);
            assert!(!then.stands(&other), "{at:x}");
        }
        m.put(Addr(0x5000), &[0; 0x1000]);
        assert!(!then.stands(&m), "what was not there is");
    }
}
