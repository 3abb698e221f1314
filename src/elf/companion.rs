//! Files that hold what was stripped from another: the separate debug file, its dwz supplement, and the small symbol table
//! some distributions embed (`.gnu_debugdata`).

use super::headers::{self, Headers, string_at};
use super::section::decompress_mini;
use super::symbols::Table;
use super::tables_by_sections;
use crate::memory::{FileBytes, u32_at};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Opens files beside the one at hand.
pub trait DebugFiles: Send + Sync {
    /// The bytes of the file at `path`, as the target names it.
    fn open(&self, path: &Path) -> Option<FileBytes>;

    /// Directories that hold separate debug files, most wanted first: `/usr/lib/debug`.
    fn directories(&self) -> Vec<PathBuf>;
}

/// A file that goes with another.
pub(super) struct Companion {
    pub bytes: FileBytes,
    pub headers: Headers,
    path: PathBuf,
}

impl Companion {
    fn parse(bytes: FileBytes, path: PathBuf) -> Option<Companion> {
        let headers = Headers::parse(&bytes).ok()?;
        Some(Companion { bytes, headers, path })
    }

    fn build_id(&self) -> Option<&[u8]> {
        self.headers.note_sections(&self.bytes).find_map(|notes| headers::build_id_in(notes, 4))
    }

    /// Its `.symtab` (and `.dynsym`, of which it has no bytes).
    pub(super) fn tables(&self) -> Vec<Table> {
        tables_by_sections(&self.bytes, &self.headers)
    }

    /// The dwz supplement it names in `.gnu_debugaltlink`.
    pub(super) fn find_supplement(&self, files: &dyn DebugFiles) -> Option<Companion> {
        find_supplement(&self.bytes, &self.headers, &self.path, files)
    }
}

/// `.build-id/ab/cdef….debug` below each debug directory.
fn by_build_id<'a>(build_id: &'a [u8], files: &'a dyn DebugFiles) -> impl Iterator<Item = PathBuf> + 'a {
    let hex: String = build_id.iter().map(|b| format!("{b:02x}")).collect();
    files.directories().into_iter().filter_map(move |dir| {
        let (first, rest) = hex.split_at_checked(2)?;
        (!rest.is_empty()).then(|| dir.join(".build-id").join(first).join(format!("{rest}.debug")))
    })
}

/// The separate debug file of the file at `path`: by build-id, else by `.gnu_debuglink`. One that belongs to another build
/// is no answer.
pub(super) fn find_debug_file(
    bytes: &FileBytes,
    headers: &Headers,
    build_id: Option<&[u8]>,
    path: &Path,
    files: &dyn DebugFiles,
) -> Option<Companion> {
    let open = |at: PathBuf| Companion::parse(files.open(&at)?, at);
    let found = build_id.and_then(|id| {
        by_build_id(id, files).find_map(|at| open(at).filter(|c| c.build_id().is_none_or(|theirs| theirs == id)))
    });
    if found.is_some() {
        return found;
    }
    let link = headers.section_bytes(bytes, ".gnu_debuglink")?;
    let name = string_at(link, 0).filter(|n| !n.is_empty() && !n.contains(&b'/'))?;
    let crc = u32_at(link, (name.len() + 1).next_multiple_of(4))?;
    let name = OsStr::from_bytes(name);
    let dir = path.parent()?;
    let beside = [dir.join(name), dir.join(".debug").join(name)].into_iter().filter(|at| at != path);
    let below = files.directories().into_iter().map(|d| d.join(dir.strip_prefix("/").unwrap_or(dir)).join(name));
    let belongs = |c: &Companion| match (build_id, c.build_id()) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => c.bytes.all().is_some_and(|all| crc32(all) == crc),
    };
    beside.chain(below).find_map(|at| open(at).filter(|c| belongs(c)))
}

/// The dwz supplement that `.gnu_debugaltlink` of the file at `path` names.
pub(super) fn find_supplement(
    bytes: &FileBytes,
    headers: &Headers,
    path: &Path,
    files: &dyn DebugFiles,
) -> Option<Companion> {
    let link = headers.section_bytes(bytes, ".gnu_debugaltlink")?;
    let name = string_at(link, 0).filter(|n| !n.is_empty())?;
    let build_id = link.get(name.len() + 1..).filter(|id| (8..=64).contains(&id.len()))?;
    let named = path.parent()?.join(OsStr::from_bytes(name));
    std::iter::once(named).chain(by_build_id(build_id, files)).find_map(|at| {
        let found = Companion::parse(files.open(&at)?, at)?;
        (found.build_id() == Some(build_id)).then_some(found)
    })
}

/// The symbol table in `.gnu_debugdata`.
pub(super) fn mini_tables(bytes: &FileBytes, headers: &Headers) -> Vec<Table> {
    let Some(mini) = headers.section_bytes(bytes, ".gnu_debugdata").and_then(decompress_mini) else {
        return Vec::new();
    };
    let mini = FileBytes::owned(mini);
    Headers::parse(&mini).map_or_else(|_| Vec::new(), |h| tables_by_sections(&mini, &h))
}

/// The CRC of `.gnu_debuglink`: that of Ethernet and gzip.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
