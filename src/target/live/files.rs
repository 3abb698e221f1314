//! Files as the target sees them: through its root, checked against the mapping, then by the kernel's own links to what
//! is mapped.
//!
//! The target chooses the names, and may have put anything there since: a pipe whose opening waits, a device whose opening acts.
//! So a file is first found without being opened (`O_PATH`), and opened only when it is seen to be a regular one.

use super::bounded;
use super::fuse::FuseMounts;
use super::guarded::PATIENCE;
use crate::memory::FileBytes;
use crate::target::{Files, Mapping, TargetError};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, fstat, major, minor};
use nix::sys::statfs::fstatfs;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Opens the files of one process.
#[derive(Clone)]
pub(super) struct ProcessFiles(Arc<Places>);

/// Where its files are found.
#[derive(Clone)]
struct Places {
    /// `/proc/PID/task/TID` of a living thread.
    directory: PathBuf,
    /// Its program, as its own mapping names it.
    exe: Option<PathBuf>,
    /// Directories of separate debug files that were named to us.
    debug_directories: Vec<PathBuf>,
    mounts: Arc<FuseMounts>,
}

impl ProcessFiles {
    /// For the process one of whose living threads has this `/proc` directory.
    pub(super) fn new(directory: PathBuf, exe: Option<PathBuf>, mounts: Arc<FuseMounts>) -> ProcessFiles {
        ProcessFiles(Arc::new(Places { directory, exe, debug_directories: Vec::new(), mounts }))
    }

    /// The same, with more directories of separate debug files, most wanted first.
    pub(super) fn with_debug_directories(mut self, directories: Vec<PathBuf>) -> ProcessFiles {
        Arc::make_mut(&mut self.0).debug_directories = directories;
        self
    }
}

impl Places {
    /// Finds `path` inside the target's root; links in it, absolute ones too, stay inside that root.
    fn find_in_root(&self, path: &Path) -> std::io::Result<File> {
        let root =
            open(&self.directory.join("root"), OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let how = OpenHow::new().flags(FOUND).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        match openat2(root.as_fd(), path, how) {
            Ok(fd) => Ok(File::from(fd)),
            // before Linux 5.6, or cut off by a filter
            Err(nix::errno::Errno::ENOSYS | nix::errno::Errno::EPERM) => {
                let relative = path.strip_prefix("/").unwrap_or(path);
                find(&self.directory.join("root").join(relative))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// The kernel's link to the very file that is mapped; needs `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`.
    fn find_mapped(&self, mapping: &Mapping) -> std::io::Result<File> {
        let name = format!("{:x}-{:x}", mapping.start.0, mapping.end.0);
        // only the process directory has it, and only while its leader lives
        let process = self.directory.parent().and_then(Path::parent).unwrap_or(&self.directory);
        find(&process.join("map_files").join(name))
    }
}

impl Places {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        let Some(path) = mapping.path.as_deref().filter(|p| p.is_absolute()) else {
            return Err(failed(Path::new("?"), "no file is mapped there"));
        };
        let mut cause = "it was deleted or replaced after it was mapped".to_string();
        if !mapping.deleted {
            match self.find_in_root(path) {
                Ok(file) if is_mapped_file(&file, mapping) => return read(path, &file),
                Ok(_) => cause = "another file has its name now".to_string(),
                Err(e) => cause = e.to_string(),
            }
        }
        match self.find_mapped(mapping) {
            Ok(file) => return read(path, &file),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                cause.push_str("; as root it can still be read");
            }
            Err(_) => {}
        }
        if self.exe.as_deref() == Some(path)
            && let Ok(file) = find(&self.directory.join("exe"))
            && is_mapped_file(&file, mapping)
        {
            return read(path, &file);
        }
        Err(failed(path, &cause))
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        // directories named to us are ours, all other paths the target's
        if self.debug_directories.iter().any(|d| path.starts_with(d))
            && let Ok(file) = find(path)
        {
            return read(path, &file);
        }
        let file = self.find_in_root(path).map_err(|e| failed(path, &e.to_string()))?;
        read(path, &file)
    }
}

/// As the server of the files' file system may never answer, each is opened within a limit.
impl Files for ProcessFiles {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        let (places, wanted) = (Arc::clone(&self.0), mapping.clone());
        let silent = || Err(failed(mapping.path.as_deref().unwrap_or(Path::new("?")), SILENT));
        if mapping.path.as_deref().is_some_and(|path| !self.0.mounts.answers(path)) {
            return silent();
        }
        bounded::run(PATIENCE, move || places.open(&wanted)).unwrap_or_else(silent)
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        let (places, wanted) = (Arc::clone(&self.0), path.to_path_buf());
        let silent = || Err(failed(path, SILENT));
        if !self.0.mounts.answers(path) {
            return silent();
        }
        bounded::run(PATIENCE, move || places.open_path(&wanted)).unwrap_or_else(silent)
    }

    fn debug_directories(&self) -> Vec<PathBuf> {
        let mut all = self.0.debug_directories.clone();
        all.push(PathBuf::from("/usr/lib/debug"));
        all
    }
}

/// Why there is no file.
const SILENT: &str = "its file system does not answer";

/// How a file is found without being opened.
const FOUND: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// Finds a file, by whatever links lead to it.
fn find(path: &Path) -> std::io::Result<File> {
    Ok(File::from(open(path, FOUND, Mode::empty())?))
}

/// Fills `buf`, unless the file's server does not answer: then never again.
fn read_bounded(file: &Arc<File>, silent: &AtomicBool, buf: &mut [u8], at: u64) -> std::io::Result<()> {
    let (file, len) = (Arc::clone(file), buf.len());
    let job = move || {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).map(|()| bytes)
    };
    let read = if silent.load(Ordering::Relaxed) { None } else { bounded::run(PATIENCE, job) };
    match read {
        Some(bytes) => buf.copy_from_slice(&bytes?),
        None => {
            silent.store(true, Ordering::Relaxed);
            return Err(std::io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Opens a file that was found, if it is a regular one.
fn read(path: &Path, found: &File) -> Result<FileBytes, TargetError> {
    let opened = || {
        let meta = found.metadata()?;
        if !meta.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // the very file that was found, whatever its name stands for by now
        let file = Arc::new(File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?);
        let silent = AtomicBool::new(false);
        FileBytes::of_reader(meta.len(), Box::new(move |buf, at| read_bounded(&file, &silent, buf, at)))
    };
    opened().map_err(|e| failed(path, &e.to_string()))
}

fn failed(path: &Path, cause: &str) -> TargetError {
    TargetError::File { path: path.display().to_string(), cause: cause.to_string() }
}

/// File systems whose `stat` tells another device (and some another inode) than the mapping does: overlayfs, btrfs, bcachefs,
/// fuse, aufs. Source: Linux `include/uapi/linux/magic.h`.
const STACKED: [i64; 5] = [0x794c_7630, 0x9123_683e, 0xca45_1a4e, 0x6573_5546, 0x6175_6673];

/// Whether `file` is the one that was mapped, by device and inode. Where the file system tells other numbers to `stat` than
/// to `maps`, the inode alone, or the name alone (the kernel says of a mapped file whether its name is gone).
fn is_mapped_file(file: &File, mapping: &Mapping) -> bool {
    let Ok(stat) = fstat(file) else { return false };
    let device = (u32::try_from(major(stat.st_dev)), u32::try_from(minor(stat.st_dev)));
    if stat.st_ino == mapping.inode && device == (Ok(mapping.device.0), Ok(mapping.device.1)) {
        return true;
    }
    fstatfs(file).is_ok_and(|s| STACKED.contains(&s.filesystem_type().0))
}

#[cfg(test)]
mod tests {
    use super::super::proc::parse_maps;
    use super::*;

    fn own() -> (ProcessFiles, Vec<Mapping>) {
        let exe = std::fs::read_link("/proc/self/exe").ok();
        let pid = std::process::id();
        let directory = PathBuf::from(format!("/proc/{pid}/task/{pid}"));
        let mounts = Arc::new(FuseMounts::of(&directory));
        let files = ProcessFiles::new(directory, exe, mounts);
        (files, parse_maps(&std::fs::read("/proc/self/maps").unwrap()))
    }

    #[test]
    fn every_file_we_have_mapped_opens() {
        let (files, maps) = own();
        let libc = maps.iter().find(|m| m.path.as_ref().is_some_and(|p| p.ends_with("libc.so.6"))).unwrap();
        let bytes = files.open(libc).unwrap();
        assert_eq!(bytes.get_at(0, 4), Some(&b"\x7fELF"[..]));
    }

    #[test]
    fn another_file_of_the_same_name_is_not_taken() {
        let (files, maps) = own();
        let mut libc = maps.into_iter().find(|m| m.path.as_ref().is_some_and(|p| p.ends_with("libc.so.6"))).unwrap();
        libc.inode += 1;
        libc.end = libc.end.offset(4096); // no such range: the kernel's link is not to be had
        assert!(matches!(files.open(&libc), Err(TargetError::File { cause, .. }) if cause.contains("another file")));
        libc.deleted = true;
        assert!(matches!(files.open(&libc), Err(TargetError::File { cause, .. }) if cause.contains("deleted")));
    }

    #[test]
    fn a_mapping_without_a_file_and_a_directory_are_refused() {
        let (files, maps) = own();
        let stack = maps.iter().find(|m| !m.is_file()).unwrap();
        assert!(files.open(stack).is_err());
        assert!(files.open_path(Path::new("/proc")).is_err());
    }
}
