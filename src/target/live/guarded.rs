//! The target's memory, read without being kept waiting: a read that gets no answer is given up after a limit, and what did
//! not answer is left out from then on.

use super::bounded;
use super::remote::{Pieces, Remote};
use super::stopped::mapping_at;
use crate::memory::{ReadError, u64_at};
use crate::target::Mapping;
use crate::units::{Addr, PAGE};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one read may take while nobody is held.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// What one read is given at least.
const SHORTEST: Duration = Duration::from_millis(100);
/// Reads given up before no more are tried.
const MAX_SILENT: usize = 8;
/// Tries of one batch: after each that was given up, less of it is asked for.
const TRIES: usize = MAX_SILENT + 1;

/// Memory that did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Silent {
    pub start: Addr,
    pub end: Addr,
    /// What is mapped there.
    pub path: Option<PathBuf>,
    /// How long we waited.
    pub waited: Duration,
    /// Whether not even pages that are present are read there any more.
    whole: bool,
}

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Silent { start, end, waited, .. } = self;
        let path = self.path.as_ref().map_or_else(|| "anonymous memory".to_owned(), |p| p.display().to_string());
        let left = if self.whole { "nothing more of it is read" } else { "what of it was not in memory is left out" };
        write!(
            f,
            "reading {start}-{end} ({path}) got no answer within {waited:?}: a page that userfaultfd or its file system "
        )?;
        write!(f, "has to bring does not come; {left}")
    }
}

/// The target's memory. Each read has a limit.
pub(super) struct Guarded {
    pub(super) remote: Arc<Remote>,
    /// `/proc/PID/task/TID/pagemap`, which tells of each page whether it is there.
    pagemap: PathBuf,
    limit: Mutex<Duration>,
    silent: Mutex<Vec<Silent>>,
}

impl Guarded {
    /// Opens the memory of the process one of whose living threads has this `/proc` directory and number.
    pub(super) fn open(directory: &Path, tid: i32) -> Guarded {
        Guarded {
            remote: Arc::new(Remote::open(directory, tid)),
            pagemap: directory.join("pagemap"),
            limit: Mutex::new(PATIENCE),
            silent: Mutex::default(),
        }
    }

    /// How long one read may take from now on.
    pub(super) fn set_limit(&self, limit: Duration) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    /// The limit of the next read: shorter after each that was given up, so that all of them together stay within twice the
    /// limit and a little.
    fn limit(&self) -> Duration {
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let given_up = u32::try_from(self.marks().len()).unwrap_or(u32::MAX);
        (limit / 2u32.saturating_pow(given_up)).max(SHORTEST.min(limit))
    }

    fn marks(&self) -> MutexGuard<'_, Vec<Silent>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What did not answer so far.
    pub(super) fn silent(&self) -> Vec<Silent> {
        self.marks().clone()
    }

    /// Fills `buf` from `at`: all, or none and why. `by_mem`: through `/proc/PID/mem` in any case.
    pub(super) fn read(&self, at: Addr, buf: &mut [u8], by_mem: bool, maps: &[Mapping]) -> Result<(), ReadError> {
        let (remote, pagemap, silent, len) = (Arc::clone(&self.remote), self.pagemap.clone(), self.silent(), buf.len());
        let job = move || {
            if answering(&[(at, len)], &silent, &pagemap) != [(at, len)] {
                return Err(ReadError::NoAnswer(at));
            }
            let mut bytes = vec![0; len];
            let read = if by_mem { remote.read_by_mem(at, &mut bytes) } else { remote.read(at, &mut bytes) };
            read.map(|()| bytes)
        };
        match bounded::run(self.limit(), job) {
            Some(read) => read.map(|bytes| buf.copy_from_slice(&bytes)),
            None => {
                self.leave_out(&[(at, len)], maps);
                Err(ReadError::NoAnswer(at))
            }
        }
    }

    /// As [`Remote::read_ranges`], less what does not answer.
    pub(super) fn read_ranges(&self, ranges: &[(Addr, usize)], maps: &[Mapping]) -> (Vec<u8>, Pieces) {
        let ranges: Arc<[(Addr, usize)]> = ranges.into();
        for _ in 0..TRIES {
            let (remote, pagemap, silent) = (Arc::clone(&self.remote), self.pagemap.clone(), self.silent());
            let wanted = Arc::clone(&ranges);
            let job = move || remote.read_ranges(&answering(&wanted, &silent, &pagemap));
            if let Some(had) = bounded::run(self.limit(), job) {
                return had;
            }
            self.leave_out(&ranges, maps);
        }
        (Vec::new(), Pieces::new())
    }

    /// Notes what kept a read of these ranges waiting: the first page that is not there, as those before it have been brought
    /// in by the read itself. Of its mapping only pages that are there are read from now on.
    fn leave_out(&self, ranges: &[(Addr, usize)], maps: &[Mapping]) {
        let waited = self.limit();
        let (wanted, pagemap, silent) = (ranges.to_vec(), self.pagemap.clone(), self.silent());
        let mapped: Vec<(Addr, Addr)> = maps.iter().filter(|m| m.permissions.read).map(|m| (m.start, m.end)).collect();
        let first_absent = move || {
            let asked = answering(&wanted, &silent, &pagemap);
            let pages = asked.iter().flat_map(|(at, len)| pages_of(*at, *len));
            let is_mapped = |at: Addr| {
                let i = mapped.partition_point(|m| m.1 <= at);
                mapped.get(i).is_some_and(|m| m.0 <= at)
            };
            let file = File::open(&pagemap).ok()?;
            pages.filter(|page| is_mapped(*page)).find(|page| !is_present(&file, *page))
        };
        let absent = bounded::run(waited, first_absent).flatten();
        let mark = |m: &Mapping, whole| Silent { start: m.start, end: m.end, path: m.path.clone(), waited, whole };
        let mut marks = self.marks();
        match absent.and_then(|at| mapping_at(maps, at)) {
            Some(m) => marks.push(mark(m, false)),
            // it is not known which: none of them is asked again
            None => {
                let mut all: Vec<Silent> = Vec::new();
                for m in ranges.iter().filter_map(|(at, _)| mapping_at(maps, *at)) {
                    if all.last().is_none_or(|last| last.start != m.start) {
                        all.push(mark(m, true));
                    }
                }
                marks.extend(all);
            }
        }
        if marks.len() >= MAX_SILENT {
            marks.push(Silent { start: Addr::NULL, end: Addr(u64::MAX), path: None, waited, whole: true });
        }
    }
}

/// The part of `ranges` that is worth asking for: without what does not answer, and in its mappings only what is there.
fn answering(ranges: &[(Addr, usize)], silent: &[Silent], pagemap: &Path) -> Vec<(Addr, usize)> {
    if silent.is_empty() {
        return ranges.to_vec();
    }
    let file = File::open(pagemap).ok();
    let asked = |page: Addr| {
        let end = page.0.saturating_add(PAGE);
        let mut marks = silent.iter().filter(|s| s.start.0 < end && page < s.end).peekable();
        let untouched = marks.peek().is_none();
        untouched || marks.all(|s| !s.whole) && file.as_ref().is_some_and(|f| is_present(f, page))
    };
    let mut out: Vec<(Addr, usize)> = Vec::new();
    for (at, len) in ranges {
        let end = at.0.saturating_add(*len as u64);
        if !silent.iter().any(|s| s.start.0 < end && *at < s.end) {
            out.push((*at, *len));
            continue;
        }
        let mut joined = false;
        for page in pages_of(*at, *len) {
            if !asked(page) {
                joined = false;
                continue;
            }
            let (from, upto) = (page.max(*at), page.0.saturating_add(PAGE).min(end));
            let part = usize::try_from(upto.saturating_sub(from.0)).unwrap_or(0);
            match out.last_mut().filter(|_| joined) {
                Some((_, had)) => *had += part,
                None => out.push((from, part)),
            }
            joined = true;
        }
    }
    out
}

/// The pages a range touches.
fn pages_of(at: Addr, len: usize) -> impl Iterator<Item = Addr> {
    let end = at.0.saturating_add(len as u64);
    let step = usize::try_from(PAGE).unwrap_or(usize::MAX);
    (at.page().0..end).step_by(step).map(Addr)
}

/// Whether a page is there: bit 63 of its entry (Linux `Documentation/admin-guide/mm/pagemap.rst`). Telling brings no page in.
fn is_present(pagemap: &File, page: Addr) -> bool {
    let mut entry = [0; 8];
    let read = pagemap.read_exact_at(&mut entry, page.0 / PAGE * 8);
    read.is_ok() && u64_at(&entry, 0).is_some_and(|e| e >> 63 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_was_silent_only_pages_that_are_there_are_asked_for() {
        let page = PAGE as usize;
        // a buffer of which one page was never touched, between two that were
        let mut room = vec![0u8; 16 * page];
        let first = Addr(room.as_ptr() as u64).offset(PAGE as i64).page();
        let start = usize::try_from(first.0 - room.as_ptr() as u64).unwrap();
        room[start] = 1;
        room[start + 2 * page] = 1;
        let own = Path::new("/proc/self/pagemap");
        let file = File::open(own).unwrap();
        let there: Vec<bool> = (0..3).map(|i| is_present(&file, first.offset(i * PAGE as i64))).collect();
        assert!(there[0] && there[2], "{there:?}");
        let silent = |whole| {
            let (start, end) = (first.offset(PAGE as i64), first.offset(3 * PAGE as i64));
            [Silent { start, end, path: None, waited: PATIENCE, whole }]
        };
        let ranges = [(first.offset(8), 3 * page - 8), (Addr(0x10), 8)];
        assert_eq!(answering(&ranges, &[], own), ranges);
        let cut = answering(&ranges, &silent(true), own);
        assert_eq!(cut, [(first.offset(8), page - 8), (Addr(0x10), 8)]);
        let cut = answering(&ranges, &silent(false), own);
        if there[1] {
            assert_eq!(cut, ranges);
        } else {
            let last = (first.offset(2 * PAGE as i64), page);
            assert_eq!(cut, [(first.offset(8), page - 8), last, (Addr(0x10), 8)]);
        }
    }
}
