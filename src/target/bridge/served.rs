//! The target's memory, as the debugger serves it: pages are asked for many at a time and kept, for the process stands still.

use super::Line;
use super::wire::{Unanswered, unhex};
use crate::memory::{Memory, ReadError};
use crate::target::Mapping;
use crate::target::core::CoreFile;
use crate::target::live::Live;
use crate::target::live::proc::is_device;
use crate::units::{Addr, PAGE};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages of a range asked for at most.
const RANGE: u64 = 64;
/// Pages of one request at most, 8 MiB of digits; and over a debugger's own remote connection, which is slow.
const REQUEST: u64 = 1024;
const REMOTE_REQUEST: u64 = 256;
/// Pages read together where one is wanted: neighbours are cheap. And where one after the other is wanted in the same mapping,
/// as in an interpreter's heap: a question costs more than the bytes.
const AROUND: u64 = 4;
const FAR_AROUND: u64 = RANGE;
const REMOTE_AROUND: u64 = 8;
/// Single pages wanted of a mapping before more is read at once, and pages kept in all after which no more is.
const OFTEN: u32 = 6;
const MANY_PAGES: usize = 1 << 15;
/// Pages kept at most.
const MAX_PAGES: usize = 1 << 18;

/// A stretch of address space that may be asked for.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
    readable: bool,
}

type Page = Option<Box<[u8]>>;

/// The memory of the target.
pub(super) struct Served {
    line: Arc<Line>,
    spans: Vec<Span>,
    /// Whether what lies in no span is known not to be mapped.
    whole: bool,
    /// The core itself, where it can be opened: it is read instead.
    core: Option<Arc<CoreFile>>,
    /// The process itself, where this machine lets us read it: the same bytes, without the digits.
    process: Option<Arc<Live>>,
    /// Whether the debugger itself asks another for each byte.
    remote: bool,
    pages: Mutex<HashMap<u64, Page>>,
    /// By the start of a mapping, how often single pages of it were wanted.
    wanted: Mutex<HashMap<u64, u32>>,
}

impl Served {
    pub fn new(
        line: Arc<Line>,
        mappings: &[Mapping],
        whole: bool,
        core: Option<Arc<CoreFile>>,
        process: Option<Arc<Live>>,
        remote: bool,
    ) -> Served {
        let span = |m: &Mapping| Span {
            start: m.start.0 / PAGE,
            end: m.end.0.div_ceil(PAGE),
            // reading a device can act
            readable: !is_device(m) && (m.permissions.read || !whole),
        };
        let spans = mappings.iter().map(span).collect();
        Served { line, spans, whole, core, process, remote, pages: Mutex::default(), wanted: Mutex::default() }
    }

    fn span(&self, page: u64) -> Option<Span> {
        let i = self.spans.partition_point(|s| s.end <= page);
        self.spans.get(i).copied().filter(|s| s.start <= page)
    }

    fn may_ask(&self, page: u64) -> bool {
        self.span(page).map_or(!self.whole, |s| s.readable)
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<u64, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages to read along with one that is wanted.
    fn neighbours(&self, page: u64, kept: usize) -> Range<u64> {
        let Some(home) = self.span(page) else { return page..page };
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let times = wanted.entry(home.start).or_default();
        *times = times.saturating_add(1);
        let far = if self.remote { REMOTE_AROUND } else { FAR_AROUND };
        let block = if *times > OFTEN && kept < MANY_PAGES { far } else { AROUND };
        let first = page / block * block;
        first.max(home.start)..first.saturating_add(block).min(home.end)
    }

    /// Asks for those of `wanted` that are not known yet.
    fn fetch(&self, pages: &mut HashMap<u64, Page>, wanted: BTreeSet<u64>) {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for page in wanted {
            if pages.contains_key(&page) || pages.len() >= MAX_PAGES {
                continue;
            }
            if !self.may_ask(page) {
                pages.insert(page, None);
                continue;
            }
            match ranges.last_mut() {
                // a range stays inside one mapping: the next may not be readable
                Some((first, count))
                    if *first + *count == page
                        && *count < RANGE
                        && self.span(page).is_none_or(|s| s.start <= *first) =>
                {
                    *count += 1;
                }
                _ => ranges.push((page, 1)),
            }
        }
        let ranges = self.take(pages, ranges);
        let failed = self.ask(pages, &ranges);
        // a hole somewhere in it: page by page
        let single: Vec<(u64, u64)> =
            failed.iter().filter(|(_, n)| *n > 1).flat_map(|(first, n)| (*first..first + n).map(|p| (p, 1))).collect();
        let failed = failed.into_iter().filter(|(_, n)| *n == 1).chain(self.ask(pages, &single));
        for (page, _) in failed.collect::<Vec<_>>() {
            pages.insert(page, None);
        }
    }

    /// Reads of `ranges` what can be had without the debugger, and keeps it; returns the rest.
    fn take(&self, pages: &mut HashMap<u64, Page>, ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        let Some(process) = &self.process else { return ranges };
        let bytes = |(first, n): &(u64, u64)| {
            Some((Addr(first.checked_mul(PAGE)?), usize::try_from(n.checked_mul(PAGE)?).ok()?))
        };
        let wanted: Vec<(Addr, usize)> = ranges.iter().map(|r| bytes(r).unwrap_or((Addr::NULL, 0))).collect();
        let mut rest = Vec::new();
        process.read_each(&wanted, &mut |i, bytes| {
            let Some((first, n)) = ranges.get(i) else { return };
            match bytes.filter(|b| !b.is_empty()) {
                Some(bytes) => {
                    let each = (*first..).zip(bytes.chunks_exact(PAGE as usize));
                    pages.extend(each.map(|(page, bytes)| (page, Some(bytes.into()))));
                }
                None => rest.push((*first, *n)),
            }
        });
        rest
    }

    /// Asks for `ranges` and keeps what came; returns those that were refused.
    fn ask(&self, pages: &mut HashMap<u64, Page>, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut failed = Vec::new();
        let mut rest = ranges;
        while !rest.is_empty() {
            let mut size = 0;
            let fits = |(_, n): &&(u64, u64)| {
                size += n;
                size <= if self.remote { REMOTE_REQUEST } else { REQUEST }
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count.min(rest.len()));
            rest = later;
            let request: String = now.iter().map(|(p, n)| format!(" {:x} {:x}", p * PAGE, n * PAGE)).collect();
            let bytes: u64 = now.iter().map(|(_, n)| n * PAGE).sum();
            let most = usize::try_from(bytes * 2).unwrap_or(usize::MAX).saturating_add(now.len() * 2 + 1024);
            let answer = match self.line.ask_within(&format!("read{request}"), most, self.line.patience) {
                Ok(answer) => answer,
                Err(Unanswered::Refused(_)) => {
                    failed.extend_from_slice(now);
                    continue;
                }
                Err(Unanswered::Broken(_)) => return failed,
            };
            let came = answer.words().count();
            if came != now.len() {
                self.line.give_up("read", &format!("{came} ranges where {} were asked for", now.len()));
                return failed;
            }
            for (word, (first, n)) in answer.words().zip(now) {
                if word == b"-" {
                    failed.push((*first, *n));
                    continue;
                }
                let want = usize::try_from(n * PAGE).unwrap_or(usize::MAX);
                let Some(bytes) = unhex(word).filter(|b| b.len() == want) else {
                    self.line.give_up("read", &format!("{} digits where {} were asked for", word.len(), want * 2));
                    return failed;
                };
                for (page, bytes) in (*first..).zip(bytes.chunks_exact(PAGE as usize)) {
                    pages.insert(page, Some(bytes.into()));
                }
            }
        }
        failed
    }

    fn missing(&self, at: u64) -> ReadError {
        match self.span(at / PAGE) {
            _ if self.line.is_broken() => ReadError::Lost,
            None if self.whole => ReadError::Unmapped(Addr(at)),
            _ => ReadError::Refused(Addr(at)),
        }
    }
}

/// The pages of a range, a bounded number of them.
fn pages_of(at: Addr, len: usize) -> std::ops::RangeInclusive<u64> {
    let last = at.0.saturating_add((len as u64).saturating_sub(1)) / PAGE;
    let first = at.0 / PAGE;
    first..=last.min(first.saturating_add(MAX_PAGES as u64))
}

impl Memory for Served {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        if let Some(core) = &self.core {
            // lldb fills with zeros what the core does not hold
            return core.read(at, buf);
        }
        if buf.is_empty() {
            return Ok(());
        }
        let mut pages = self.pages();
        let wanted = pages_of(at, buf.len());
        // all or none: where a part is out of reach, the rest is not asked for
        let out_of_reach = |p: &u64| pages.get(p).map_or(!self.may_ask(*p), Option::is_none);
        if let Some(page) = wanted.clone().find(out_of_reach) {
            return Err(self.missing(at.0.max(page.saturating_mul(PAGE))));
        }
        let unknown = wanted.clone().filter(|p| !pages.contains_key(p)).count();
        if unknown > 0 {
            let mut set: BTreeSet<u64> = wanted.clone().collect();
            if unknown == 1 {
                set.extend(self.neighbours(at.0 / PAGE, pages.len()));
            }
            self.fetch(&mut pages, set);
        }
        let mut here = at.0;
        let mut rest = buf;
        while !rest.is_empty() {
            let into = usize::try_from(here % PAGE).unwrap_or(0);
            let n = rest.len().min(PAGE as usize - into);
            let (now, later) = rest.split_at_mut(n);
            match pages.get(&(here / PAGE)).and_then(Option::as_ref).and_then(|p| p.get(into..into + n)) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => return Err(self.missing(here)),
            }
            rest = later;
            if !rest.is_empty() {
                here = here.checked_add(n as u64).ok_or(ReadError::Unmapped(Addr(here)))?;
            }
        }
        Ok(())
    }

    fn expect(&self, ranges: &[(Addr, usize)]) {
        if self.core.is_some() {
            return;
        }
        let wanted: BTreeSet<u64> = ranges
            .iter()
            .filter(|(_, len)| *len > 0)
            .flat_map(|(at, len)| pages_of(*at, *len))
            .take(MAX_PAGES)
            .collect();
        self.fetch(&mut self.pages(), wanted);
    }
}
