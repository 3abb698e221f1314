//! What a process has open, as `/proc` tells it: links and, of pipes, which end. And who else has a pipe open.

use super::proc::read_short;
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

/// The processes that have the reading ends of the pipes `read` and the writing ends of the pipes `written` open, as far as
/// may be read.
#[must_use]
pub fn ends_of(read: &BTreeSet<u64>, written: &BTreeSet<u64>) -> (Ends, Ends) {
    let (mut readers, mut writers) = (Ends::new(), Ends::new());
    if read.is_empty() && written.is_empty() {
        return (readers, writers);
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten().take(MAX_PROCESSES) {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()).map(Pid) else { continue };
        for (_, open) in read_descriptors(&entry.path()) {
            let Some(pipe) = open.pipe else { continue };
            if open.reads && read.contains(&pipe) {
                readers.entry(pipe).or_default().insert(pid);
            }
            if open.writes && written.contains(&pipe) {
                writers.entry(pipe).or_default().insert(pid);
            }
        }
    }
    (readers, writers)
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
        let (readers, writers) = ends_of(&BTreeSet::from([pipe]), &BTreeSet::new());
        assert!(readers[&pipe].contains(&us) && writers.is_empty());
        let (readers, writers) = ends_of(&BTreeSet::new(), &BTreeSet::from([pipe]));
        assert!(writers[&pipe].contains(&us) && readers.is_empty());
        assert_eq!(pipe_of("socket:[12]"), None);
        let own = Path::new("/proc/self");
        assert!(blocks(own, reads.as_raw_fd()) && !blocks(own, i32::MAX));
    }
}
