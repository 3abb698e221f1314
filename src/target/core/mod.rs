//! The door to a core file: the kernel's, gcore's, or a minicore of our own.
//!
//! The file is mapped, not read; a read is a binary search over its segments. What a core does not hold is
//! [`ReadError::NotInCore`], never a zero and never a neighbour's bytes. Knows nothing of what the bytes mean.

mod compressed;
pub(super) mod files;
pub(super) mod identity;
mod maps;
mod notes;
pub(super) mod own;
mod segments;
#[cfg(test)]
mod tests;

use super::{Files, Mapping, Process, Target, TargetError, ThreadState};
use crate::memory::{FileBytes, Memory, ReadError};
use crate::units::Addr;
use segments::Segments;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the files of the program that left the core may be.
#[derive(Clone, Debug, Default)]
pub struct CoreOptions {
    /// The program itself (`--exe`), instead of the path the core names.
    pub exe: Option<PathBuf>,
    /// A directory that holds the program's file system (`--sysroot`).
    pub sysroot: Option<PathBuf>,
    /// Directories of separate debug files, most wanted first (`--debug-dir`).
    pub debug_dirs: Vec<PathBuf>,
    /// Files a debugger found by its own search: taken where the core proves that they are the ones.
    pub resolved: Vec<PathBuf>,
}

/// A core file, opened.
pub struct CoreFile {
    segments: Arc<Segments>,
    process: Process,
    threads: Vec<ThreadState>,
    mappings: Vec<Mapping>,
    files: Arc<files::CoreFiles>,
    warnings: Vec<String>,
    truncated: bool,
    lacks_threads: bool,
}

impl CoreFile {
    /// Whether the file ends before what its headers promise: the disk was full, or its size was limited.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Opens the core at `path`: maps it and reads its headers and notes.
    ///
    /// # Errors
    /// [`TargetError::BadCore`] or [`TargetError::WrongArch`], one line each: no such file, a directory, empty, no ELF, not
    /// a core, another CPU, or without one thread to look at. A truncated or partly damaged core opens with what it has
    /// and says so in [`Target::warnings`].
    pub fn open(path: &Path, options: &CoreOptions) -> Result<CoreFile, TargetError> {
        let name = path.display().to_string();
        let bad = |cause: String| TargetError::BadCore { path: name.clone(), cause };
        if let Some(exe) = options.exe.as_ref().filter(|exe| !exe.is_file()) {
            let cause = if exe.exists() { "not a file" } else { "there is no such file; check --exe" };
            return Err(TargetError::File { path: exe.display().to_string(), cause: cause.into() });
        }
        let meta = std::fs::metadata(path).map_err(|e| bad(why_not_opened(&e)))?;
        if meta.is_dir() {
            return Err(bad("it is a directory; give the core file itself".into()));
        }
        if !meta.is_file() {
            return Err(bad("it is not a regular file; copy the core to a file first".into()));
        }
        if meta.len() == 0 {
            return Err(bad(
                "the file is empty; the disk may have been full or the core size limited (`ulimit -c`) when it was written".into()
            ));
        }
        let file = File::open(path).map_err(|e| bad(why_not_opened(&e)))?;
        let bytes = FileBytes::of_file(file).map_err(|e| bad(e.to_string()))?;
        CoreFile::parse(bytes, &name, options)
    }

    /// Reads a core from its bytes; `name` stands in messages.
    ///
    /// # Errors
    /// As [`CoreFile::open`], those of the file system aside.
    pub fn parse(bytes: FileBytes, name: &str, options: &CoreOptions) -> Result<CoreFile, TargetError> {
        let mut warnings = Vec::new();
        let bytes = compressed::unpack(bytes, name, &mut warnings)?;
        let cut = warnings.first().map(|w| format!("it is cut off before its notes, so not one thread is known: {w}"));
        let headers = segments::parse(bytes, name, &mut warnings)?;
        let notes = notes::parse(&headers, &mut warnings);
        let bad = |cause: &str| TargetError::BadCore { path: name.to_owned(), cause: cause.to_owned() };
        if notes.threads.is_empty() && !notes.own.has_threads() {
            return Err(bad(match (headers.truncated, cut.as_deref()) {
                (true, Some(why)) => why,
                (true, None) => {
                    "it is cut off before its notes, so not one thread is known; the disk may have been full when it was written"
                }
                (false, _) => "it holds no thread (no NT_PRSTATUS note)",
            }));
        }
        let truncated = headers.truncated;
        let lacks_threads = notes.lacks_threads || notes.own.lacks_threads || headers.notes_are_cut();
        if notes.files.is_empty() && notes.own.mappings.is_empty() {
            warnings
                .push("the core does not list the files that were mapped (NT_FILE): its modules are unknown".into());
        }
        let mut segments = headers.segments;
        let mappings = maps::union(&segments, &notes);
        segments.set_spans(&mappings);
        let segments = Arc::new(segments);
        let process = identity::process(&notes, &mappings, &segments);
        let threads = identity::threads(&notes, &process, &mappings, &segments, &mut warnings);
        let files = Arc::new(files::CoreFiles::new(segments.clone(), &process, &mappings, options));
        let mappings = files.complete_permissions(mappings);
        Ok(CoreFile { segments, process, threads, mappings, files, warnings, truncated, lacks_threads })
    }
}

fn why_not_opened(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "there is no such file; check the path".into(),
        std::io::ErrorKind::PermissionDenied => {
            "permission denied; cores belong to the user whose program crashed, run as that user or root".into()
        }
        _ => e.to_string(),
    }
}

impl Memory for CoreFile {
    /// # Errors
    /// [`ReadError::NotInCore`] where the core knows the mapping but holds no bytes, [`ReadError::Unmapped`] elsewhere.
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.segments.read(at, buf)
    }
}

impl Target for CoreFile {
    fn process(&self) -> &Process {
        &self.process
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(self.threads.clone())
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(self.mappings.clone())
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::clone(&self.files) as Arc<dyn Files>
    }

    fn may_lack_threads(&self) -> bool {
        self.lacks_threads
    }

    fn warnings(&self) -> Vec<String> {
        let mut all = self.warnings.clone();
        all.extend(self.files.warnings());
        all
    }
}
