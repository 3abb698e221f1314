//! Files we write: whole, or not at all.
//!
//! A file is written without a name and gets its name when it is whole: nobody finds half of it, whatever ends us. What had
//! the name before is replaced, and no symbolic link is followed: who may write to the directory may not make us write
//! elsewhere. Devices and pipes are written to as they are. Knows nothing of what is written.

use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::linkat;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Who may read the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// Its owner alone: it holds another program's memory.
    Owner,
    /// As the umask has it.
    Umask,
}

impl Readers {
    fn mode(self) -> u32 {
        match self {
            Readers::Owner => 0o600,
            Readers::Umask => 0o666,
        }
    }
}

/// Writes what `fill` gives to `path`. `/dev/stdout`, `/dev/stderr` and `/dev/fd/N` mean what they do in a shell.
///
/// # Errors
/// Those of the system and of `fill`; a directory, a disk or a pipe that nobody reads. A file of that name is then as it was
/// before.
pub fn write_file(
    path: &Path,
    readers: Readers,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    // the limit of a file's size is then an error of the write, not the end of us
    let mut too_large = SigSet::empty();
    too_large.add(Signal::SIGXFSZ);
    let restore = too_large.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    let outcome = write_quietly(path, readers, fill);
    // once it is pending it would end us as soon as it is let in
    if outcome.is_ok()
        && let Ok(before) = restore
    {
        let _ = before.thread_set_mask();
    }
    outcome
}

fn write_quietly(path: &Path, readers: Readers, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if let Some(stream) = open_stream(path) {
        return filled(stream?, fill).map(drop);
    }
    let before = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    let kind = before.as_ref().map(fs::Metadata::file_type);
    let refused = |why: &str| Err(io::Error::other(why));
    match kind {
        Some(kind) if kind.is_dir() => return refused("it is a directory; name a file"),
        Some(kind) if kind.is_block_device() => return refused("it is a disk; name a file"),
        Some(kind) if kind.is_socket() => return refused("it is a socket; name a file or a pipe"),
        Some(kind) if kind.is_fifo() || kind.is_char_device() => {
            return filled(open_present(path)?, fill).map(drop);
        }
        _ => {}
    }
    // a file in a directory that is not ours, or one that is mounted by itself: its bytes can be changed, not its name
    let in_place = || match kind.filter(fs::FileType::is_file) {
        Some(_) if readers == Readers::Umask => {
            Some(OpenOptions::new().write(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(path))
        }
        _ => None,
    };
    let file = match NewFile::create(path, readers) {
        Ok(file) => file,
        Err(e) => return filled(in_place().unwrap_or(Err(e))?, fill).map(drop),
    };
    // what only some could read stays so
    if let Some(mode) = before.filter(fs::Metadata::is_file).map(|m| m.permissions().mode() & 0o777 | 0o600) {
        let own = file.file.metadata()?.permissions().mode() & 0o777;
        if own & mode != own {
            file.file.set_permissions(Permissions::from_mode(own & mode))?;
        }
    }
    filled(&file.file, fill)?;
    let whole = file.file.try_clone()?;
    match file.name_it(path) {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
            (&whole).rewind()?;
            io::copy(&mut &whole, &mut in_place().unwrap_or(Err(e))?).map(drop)
        }
        named => named,
    }
}

/// Lets `fill` write to `to`, and flushes.
fn filled<W: Write>(to: W, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<W> {
    let mut out = BufWriter::new(to);
    fill(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)
}

/// An open file of ours by the name the system gives it, at its end: what stands in it stays.
fn open_stream(path: &Path) -> Option<io::Result<File>> {
    let name = path.to_str()?;
    let number = match name {
        "/dev/stdout" => "1",
        "/dev/stderr" => "2",
        _ => name.strip_prefix("/dev/fd/").or_else(|| name.strip_prefix("/proc/self/fd/"))?,
    };
    number.bytes().all(|b| b.is_ascii_digit()).then(|| {
        // opened anew, as the shell does; a socket cannot be, but can be copied
        let link = format!("/proc/self/fd/{number}");
        let anew = OpenOptions::new().append(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open(link);
        match (anew, number) {
            (Ok(file), _) => blocking(file),
            (Err(_), "1") => duplicate(io::stdout()),
            (Err(_), "2") => duplicate(io::stderr()),
            (Err(e), _) => Err(e),
        }
    })
}

fn duplicate(stream: impl std::os::fd::AsFd) -> io::Result<File> {
    Ok(File::from(stream.as_fd().try_clone_to_owned()?))
}

/// Opens a device, or a pipe: one that nobody reads would hold us for ever.
fn open_present(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK;
    match OpenOptions::new().write(true).custom_flags(flags).open(path) {
        Ok(file) => blocking(file),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Err(io::Error::other("nobody reads from this pipe")),
        Err(e) => Err(e),
    }
}

fn blocking(file: File) -> io::Result<File> {
    let flags = OFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

/// A file that has no name yet, or one nobody looks for.
struct NewFile {
    file: File,
    /// The name it has until it is whole, where it needs one: removed unless it gets its own.
    name: Option<PathBuf>,
}

impl NewFile {
    fn create(path: &Path, readers: Readers) -> io::Result<NewFile> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).mode(readers.mode());
        if let Ok(file) = how.clone().custom_flags(libc::O_TMPFILE).open(directory(path)) {
            return Ok(NewFile { file, name: None });
        }
        // not every file system has files without names (Linux open(2), O_TMPFILE)
        let name = beside(path);
        let file = how.create_new(true).custom_flags(libc::O_NOFOLLOW).open(&name)?;
        Ok(NewFile { file, name: Some(name) })
    }

    /// Gives it its name, in the place of whatever has it.
    fn name_it(mut self, path: &Path) -> io::Result<()> {
        if self.name.is_none() {
            let link = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
            match linkat(AT_FDCWD, &link, AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW) {
                Err(nix::errno::Errno::EEXIST) => {}
                done => return Ok(done?),
            }
            let name = beside(path);
            linkat(AT_FDCWD, &link, AT_FDCWD, &name, AtFlags::AT_SYMLINK_FOLLOW)?;
            self.name = Some(name);
        }
        if let Some(name) = &self.name {
            fs::rename(name, path)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = fs::remove_file(name);
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name in the same directory that is nobody else's.
fn beside(path: &Path) -> PathBuf {
    use std::hash::{BuildHasher, RandomState};
    let number = RandomState::new().hash_one(std::process::id());
    directory(path).join(format!(".hangscope-{number:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn put(path: &Path, readers: Readers, text: &str) -> io::Result<()> {
        write_file(path, readers, |out| out.write_all(text.as_bytes()))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn names(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_file_is_written_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("report");
        put(&path, Readers::Owner, "first").unwrap();
        assert_eq!(mode(&path), 0o600);
        let broken = write_file(&path, Readers::Owner, |out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::Error::other("the disk is full"))
        });
        assert_eq!(broken.unwrap_err().to_string(), "the disk is full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        put(&path, Readers::Umask, "second").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("second", 0o600));
        assert_eq!(names(place.path()), 1, "nothing else is left");
    }

    #[test]
    fn no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let (others, link) = (place.path().join("others"), place.path().join("link"));
        fs::write(&others, "theirs").unwrap();
        symlink(&others, &link).unwrap();
        put(&link, Readers::Owner, "ours").unwrap();
        assert_eq!(fs::read_to_string(&others).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(&link).unwrap(), "ours");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }

    #[test]
    fn pipes_and_devices_are_written_to() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(put(&pipe, Readers::Umask, "x").unwrap_err().to_string().contains("nobody reads"));
        let mut reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        put(&pipe, Readers::Umask, "told").unwrap();
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "told");
        put(Path::new("/dev/null"), Readers::Owner, "x").unwrap();
        assert_eq!(put(Path::new("/dev/full"), Readers::Owner, "x").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(put(place.path(), Readers::Owner, "x").unwrap_err().to_string().contains("directory"));
    }

    #[test]
    fn an_open_file_is_added_to() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before ").unwrap();
        put(Path::new(&format!("/dev/fd/{}", file.as_raw_fd())), Readers::Umask, "after").unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let mut said = String::new();
        file.read_to_string(&mut said).unwrap();
        assert_eq!(said, "before after");
    }
}
