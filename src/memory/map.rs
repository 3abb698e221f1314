//! A file's bytes, mapped read-only where possible.
#![allow(unsafe_code)] // mapping a file is the one thing here that needs it

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// The bytes of a file, or of an ELF image copied out of memory. Cheap to clone.
#[derive(Clone)]
pub struct FileBytes(Repr);

#[derive(Clone)]
enum Repr {
    Mapped(Arc<memmap2::Mmap>),
    Owned(Arc<Vec<u8>>),
}

impl FileBytes {
    /// Maps all of `file`.
    ///
    /// # Errors
    /// When the file is empty, is no regular file, or cannot be mapped.
    pub fn map(file: &File) -> io::Result<FileBytes> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if meta.len() == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"));
        }
        // SAFETY: the mapping is private and read-only. Someone who truncates the file while we read could raise
        // SIGBUS; debuggers accept the same risk for the libraries and cores they map.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(FileBytes(Repr::Mapped(Arc::new(map))))
    }

    /// Bytes that did not come from a file.
    #[must_use]
    pub fn owned(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Repr::Owned(Arc::new(bytes)))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Mapped(m) => m,
            Repr::Owned(v) => v,
        }
    }
}

impl std::fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileBytes({} bytes)", self.len())
    }
}
