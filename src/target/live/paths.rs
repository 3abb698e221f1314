//! Which file a path of a process leads to.

use crate::units::Pid;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The inode of the FIFO that `path` names in the process `pid`; `None` where it names none, or may not be looked up.
/// A relative path starts at the descriptor `directory`, or at the working directory.
#[must_use]
pub fn fifo_of(pid: Pid, path: &[u8], directory: Option<i32>) -> Option<u64> {
    inode_of(pid, path, directory, SFlag::S_IFIFO)
}

/// The inode of the regular file that `path` names in the process `pid`, likewise.
#[must_use]
pub fn file_of(pid: Pid, path: &[u8]) -> Option<u64> {
    inode_of(pid, path, None, SFlag::S_IFREG)
}

/// The file itself is not opened (`O_PATH`): a reader of a FIFO that appeared would let the target's open succeed.
fn inode_of(pid: Pid, path: &[u8], directory: Option<i32>, kind: SFlag) -> Option<u64> {
    let path = Path::new(OsStr::from_bytes(path));
    let process = PathBuf::from(format!("/proc/{pid}"));
    let found = match path.strip_prefix("/") {
        Ok(below) => open_in_root(&process.join("root"), below)?,
        Err(_) => {
            let from = directory.map_or_else(|| process.join("cwd"), |fd| process.join(format!("fd/{fd}")));
            open(&from.join(path), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok()?
        }
    };
    let stat = fstat(found.as_fd()).ok()?;
    let is = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    (is == kind).then_some(stat.st_ino)
}

fn open_in_root(root: &Path, path: &Path) -> Option<OwnedFd> {
    let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
    openat2(root.as_fd(), path, how).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_is_told_from_other_files() {
        let place = tempfile::tempdir().unwrap();
        let us = Pid(std::process::id().cast_signed());
        let at = place.path().join("orders.fifo");
        nix::unistd::mkfifo(&at, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        assert!(fifo_of(us, at.as_os_str().as_bytes(), None).is_some());
        assert_eq!(fifo_of(us, b"/proc/self/exe", None), None);
        assert_eq!(fifo_of(us, b"no/such/file", None), None);
        let plain = place.path().join("cache.lock");
        std::fs::write(&plain, "").unwrap();
        assert!(file_of(us, plain.as_os_str().as_bytes()).is_some());
        assert_eq!(
            (fifo_of(us, plain.as_os_str().as_bytes(), None), file_of(us, at.as_os_str().as_bytes())),
            (None, None)
        );
        let directory = std::fs::File::open(place.path()).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&directory);
        assert_eq!(
            fifo_of(us, b"orders.fifo", Some(fd)),
            fifo_of(us, at.as_os_str().as_bytes(), None),
            "relative to a directory"
        );
        std::os::unix::fs::symlink("orders.fifo", place.path().join("link")).unwrap();
        assert!(fifo_of(us, b"link", Some(fd)).is_some());
    }
}
