//! What a process has open, as `/proc` tells it: links and, of pipes, which end. And who else has a pipe open.

use super::proc::{parse_stat, read_short};
use crate::target::Descriptor;
use crate::units::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Descriptors of one process read at most.
const MAX_OPEN: usize = 4096;
/// Processes looked at for who has a pipe open, at most.
const MAX_PROCESSES: usize = 32_768;

/// What `pid` has open, as far as it may be read.
pub(super) fn read_descriptors(directory: &Path) -> BTreeMap<i32, Descriptor> {
    let entries = fs::read_dir(directory.join("fd")).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let to = fs::read_link(entry.path()).ok()?.display().to_string();
        let pipe = pipe_of(&to);
        // O_RDONLY, O_WRONLY, O_RDWR: 0, 1, 2
        let access = pipe.and_then(|_| flags(&directory.join(format!("fdinfo/{number}")))).map(|f| f & 3);
        let (reads, writes) = (matches!(access, Some(0 | 2)), matches!(access, Some(1 | 2)));
        Some((number, Descriptor { to, pipe, reads, writes }))
    };
    entries.take(MAX_OPEN).filter_map(read).collect()
}

/// The inode of `pipe:[88123]`.
fn pipe_of(link: &str) -> Option<u64> {
    link.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok()
}

/// The `flags:` of a file of `fdinfo`, in octal.
fn flags(path: &Path) -> Option<u32> {
    let bytes = read_short(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    u32::from_str_radix(text.lines().find_map(|l| l.strip_prefix("flags:"))?.trim(), 8).ok()
}

/// Whether a call on the descriptor `number` waits for it to be ready, as opposed to failing at once (`O_NONBLOCK`).
pub(super) fn blocks(directory: &Path, number: i32) -> bool {
    const O_NONBLOCK: u32 = 0o4000;
    flags(&directory.join(format!("fdinfo/{number}"))).is_some_and(|f| f & O_NONBLOCK == 0)
}

/// Processes by the inode of a pipe they have open.
pub type Ends = BTreeMap<u64, BTreeSet<Pid>>;

/// Who has which ends of pipes open.
#[derive(Clone, Debug, Default)]
pub struct PipeEnds {
    /// Of pipes whose reading ends were asked for.
    pub readers: Ends,
    /// Of pipes whose writing ends were asked for.
    pub writers: Ends,
    /// Relatives whose descriptors could not all be read: they may have inherited any of these pipes.
    pub unread: BTreeSet<Pid>,
}

/// The processes that have the reading ends of the pipes `read` and the writing ends of the pipes `written` open, as far as
/// may be read. Relatives of `run` are what runs below it or below a parent of one of it.
#[must_use]
pub fn ends_of(read: &BTreeSet<u64>, written: &BTreeSet<u64>, run: &BTreeSet<Pid>) -> PipeEnds {
    let mut ends = PipeEnds::default();
    if read.is_empty() && written.is_empty() {
        return ends;
    }
    let mut parents: BTreeMap<Pid, Pid> = BTreeMap::new();
    let mut unread = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten().take(MAX_PROCESSES) {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()).map(Pid) else { continue };
        let stat = read_short(&entry.path().join("stat")).ok().and_then(|bytes| parse_stat(&bytes));
        parents.extend(stat.as_ref().map(|s| (pid, Pid(s.parent))));
        let open = read_descriptors(&entry.path());
        if (open.len() >= MAX_OPEN || !may_be_listed(&entry.path())) && stat.is_some_and(|s| !s.is_dead()) {
            unread.push(pid);
        }
        for (_, open) in open {
            let Some(pipe) = open.pipe else { continue };
            if open.reads && read.contains(&pipe) {
                ends.readers.entry(pipe).or_default().insert(pid);
            }
            if open.writes && written.contains(&pipe) {
                ends.writers.entry(pipe).or_default().insert(pid);
            }
        }
    }
    ends.unread = unread.into_iter().filter(|pid| is_relative(*pid, run, &parents)).collect();
    ends
}

/// Whether the descriptors of a process may be listed. Of one that has ended there is nothing to list.
fn may_be_listed(directory: &Path) -> bool {
    !fs::read_dir(directory.join("fd")).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Whether `pid` runs below one of `run` or below a parent of one of them; the first process of all is nobody's relative.
fn is_relative(pid: Pid, run: &BTreeSet<Pid>, parents: &BTreeMap<Pid, Pid>) -> bool {
    const MAX_ABOVE: usize = 64;
    let parent = |p: &Pid| parents.get(p).copied().filter(|p| p.0 > 1);
    let elders: BTreeSet<Pid> = run.iter().copied().chain(run.iter().filter_map(parent)).collect();
    std::iter::successors(Some(pid), parent).take(MAX_ABOVE).any(|p| elders.contains(&p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_of_a_pipe_of_our_own() {
        let (reads, writes) = std::io::pipe().unwrap();
        let open = read_descriptors(Path::new("/proc/self"));
        let (r, w) = (&open[&reads.as_raw_fd()], &open[&writes.as_raw_fd()]);
        assert_eq!((r.reads, r.writes, w.reads, w.writes), (true, false, false, true));
        assert!(r.pipe.is_some() && r.pipe == w.pipe, "{r:?} {w:?}");
        let pipe = r.pipe.unwrap();
        let us = Pid(std::process::id().cast_signed());
        let run = BTreeSet::from([us]);
        let ends = ends_of(&BTreeSet::from([pipe]), &BTreeSet::new(), &run);
        assert!(ends.readers[&pipe].contains(&us) && ends.writers.is_empty());
        let ends = ends_of(&BTreeSet::new(), &BTreeSet::from([pipe]), &run);
        assert!(ends.writers[&pipe].contains(&us) && ends.readers.is_empty() && !ends.unread.contains(&us));
        assert_eq!(pipe_of("socket:[12]"), None);
        let parents: BTreeMap<Pid, Pid> =
            [(10, 1), (20, 10), (30, 20), (31, 20), (40, 31), (50, 10)].map(|(p, of)| (Pid(p), Pid(of))).into();
        let relatives = |p: i32| is_relative(Pid(p), &BTreeSet::from([Pid(30)]), &parents);
        assert_eq!([10, 20, 30, 31, 40, 50].map(relatives), [false, true, true, true, true, false]);
        let own = Path::new("/proc/self");
        assert!(blocks(own, reads.as_raw_fd()) && !blocks(own, i32::MAX));
    }
}
