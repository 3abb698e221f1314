//! Code objects, each read once: names, file, line table, exception table, bytecode.

use super::frames::{Position, PyFrame};
use super::givers::is_standard;
use super::lines::line_of;
use super::objects::{Objects, int_in, word_in};
use crate::memory::MemoryExt;
use crate::units::{Addr, ByAddr};
use std::collections::HashMap;
use std::rc::Rc;

/// A code object.
#[derive(Debug)]
pub(super) struct Code {
    pub addr: Addr,
    /// Qualified name since 3.11, the bare one before.
    pub function: String,
    pub name: String,
    pub file: String,
    /// Whether that file is part of Python.
    pub is_standard: bool,
    pub first_line: i32,
    lines: Vec<u8>,
    /// `co_exceptiontable`, since 3.11.
    pub exceptions: Vec<u8>,
    /// Where its bytecode begins.
    pub start: Addr,
    /// 2-byte units of bytecode.
    pub units: u64,
    /// `co_tlbc`: copies of the bytecode, free-threaded since 3.14.
    tlbc: Addr,
    pub stacksize: i32,
    /// Slots before the value stack (since 3.11).
    pub nlocalsplus: i32,
}

/// Bytes of a string object asked for ahead.
const STRING_AHEAD: usize = 160;

/// Bytes of names and tables kept of all code objects; those of a large program are a few MiB.
const MAX_KEPT: usize = 256 << 20;

/// The code objects met so far.
#[derive(Default)]
pub(super) struct Codes {
    known: HashMap<Addr, Option<Rc<Code>>, ByAddr>,
    kept: usize,
}

impl Codes {
    /// The code object at `at`, if it was loaded and is one.
    pub(super) fn find(&self, at: Addr) -> Option<&Rc<Code>> {
        self.known.get(&at)?.as_ref()
    }

    /// The code object at `at`, read now if need be.
    pub(super) fn load_one(&mut self, objects: &Objects<'_>, at: Addr) -> Option<Rc<Code>> {
        self.load(objects, std::iter::once(at));
        self.find(at).cloned()
    }

    /// Reads those not known yet, a request for each level.
    pub(super) fn load(&mut self, objects: &Objects<'_>, wanted: impl Iterator<Item = Addr>) {
        let mut new = Vec::new();
        for at in wanted {
            if !at.is_null() && !self.known.contains_key(&at) {
                self.known.insert(at, None);
                new.push(at);
            }
        }
        if new.is_empty() {
            return;
        }
        let o = objects.o;
        let ranges: Vec<_> = new.iter().map(|a| (*a, o.code_size)).collect();
        objects.memory.expect(&ranges);
        let mut blobs = Vec::with_capacity(new.len());
        let mut ranges = Vec::with_capacity(new.len() * 5);
        for at in new {
            if !objects.is(at, "code") {
                continue;
            }
            let Ok(blob) = objects.memory.read_vec(at, o.code_size) else { continue };
            for field in pointers(o) {
                if let Some(p) = word_in(&blob, field).filter(|p| *p != 0) {
                    ranges.push((Addr(p), STRING_AHEAD));
                }
            }
            blobs.push((at, blob));
        }
        objects.memory.expect(&ranges);
        let tables: Vec<_> = blobs
            .iter()
            .flat_map(|(_, blob)| [Some(o.code_linetable), o.code_exceptiontable].map(|f| word_in(blob, f?)))
            .flatten()
            .filter_map(|p| objects.bytes_extent(Addr(p)).ok())
            .collect();
        objects.memory.expect(&tables);
        for (at, blob) in blobs {
            if self.kept > MAX_KEPT {
                break;
            }
            let code = read_code(objects, at, &blob).map(Rc::new);
            self.kept += code.as_ref().map_or(0, |c| c.size());
            self.known.insert(at, code);
        }
    }
}

/// The pointers of a code object that are followed.
fn pointers(o: &super::offsets::Offsets) -> impl Iterator<Item = u64> {
    [
        Some(o.code_filename),
        Some(o.code_name),
        o.code_qualname,
        Some(o.code_linetable),
        o.code_exceptiontable,
        o.code_bytes,
    ]
    .into_iter()
    .flatten()
}

fn read_code(objects: &Objects<'_>, at: Addr, blob: &[u8]) -> Option<Code> {
    let o = objects.o;
    let pointer = |f: u64| word_in(blob, f).map(Addr);
    let text = |f: u64| objects.string(pointer(f)?).ok();
    let name = text(o.code_name).unwrap_or_else(|| "?".to_owned());
    let file = text(o.code_filename).unwrap_or_else(|| "?".to_owned());
    let (start, units) = match (o.code_adaptive, o.code_bytes) {
        (Some(f), _) => (at.checked_add(f)?, word_in(blob, o.ob_size)?.min(1 << 24)),
        (None, Some(f)) => {
            let (start, len) = objects.bytes_extent(pointer(f)?).ok()?;
            (start, len as u64 / 2)
        }
        (None, None) => return None,
    };
    Some(Code {
        addr: at,
        function: o.code_qualname.and_then(text).unwrap_or_else(|| name.clone()),
        name,
        is_standard: is_standard(&file),
        file,
        first_line: int_in(blob, o.code_firstlineno)?,
        lines: objects.bytes(pointer(o.code_linetable)?).unwrap_or_default(),
        exceptions: o.code_exceptiontable.and_then(|f| objects.bytes(pointer(f)?).ok()).unwrap_or_default(),
        start,
        units,
        tlbc: o.code_tlbc.and_then(pointer).unwrap_or(Addr::NULL),
        stacksize: int_in(blob, o.code_stacksize)?,
        nlocalsplus: match o.code_nlocalsplus {
            Some(f) => int_in(blob, f)?,
            None => int_in(blob, o.code_nlocals)?,
        },
    })
}

impl Code {
    /// Bytes of its names and tables.
    fn size(&self) -> usize {
        [self.function.len(), self.name.len(), self.file.len(), self.lines.len(), self.exceptions.len()].iter().sum()
    }

    /// The last part of its file's path.
    pub(super) fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }

    /// Whether it is of the standard library's package `asyncio`.
    pub(super) fn is_of_asyncio(&self) -> bool {
        is_of_asyncio(&self.file)
    }

    /// The position of `frame` in this code, in 2-byte units; −1 before the first instruction. `None` where it does not
    /// lie inside.
    pub(super) fn unit_of(&self, objects: &Objects<'_>, frame: &PyFrame) -> Option<i64> {
        let at = match frame.position {
            Position::Unit(unit) => return (unit < self.units.cast_signed()).then_some(unit),
            Position::At(at) => at,
        };
        let inside = |start: Addr| {
            let bytes = at.0.wrapping_sub(start.0).cast_signed();
            let unit = bytes.div_euclid(2);
            (-1 <= unit && unit < self.units.cast_signed()).then_some(unit)
        };
        inside(self.start).or_else(|| {
            // a thread's own copy of the code: {size, entries[]}
            let entry = u64::try_from(frame.tlbc_index).ok().filter(|i| *i > 0 && !self.tlbc.is_null())?;
            let copies = objects.word(self.tlbc, 0).ok()?;
            let copy = (entry < copies).then(|| objects.addr(self.tlbc, 8 + entry * 8).ok()).flatten()?;
            inside(copy)
        })
    }

    /// The line of the instruction at `unit`, from 1.
    pub(super) fn line_at(&self, objects: &Objects<'_>, unit: i64) -> Option<u32> {
        line_of(objects.o.line_table, &self.lines, self.first_line, unit)
    }

    /// The line `frame` executes, from 1.
    pub(super) fn line_of(&self, objects: &Objects<'_>, frame: &PyFrame) -> Option<u32> {
        line_of(objects.o.line_table, &self.lines, self.first_line, self.unit_of(objects, frame)?)
    }
}

/// Whether a file is one of the standard library's package `asyncio`, wherever Python was installed or built; a program's own
/// directory may have the name too.
fn is_of_asyncio(file: &str) -> bool {
    let mut directories = file.rsplit('/').skip(1);
    let holds_packages = |d: &str| d.starts_with("python3") || d == "Lib" || d.ends_with(".zip");
    directories.next() == Some("asyncio") && directories.next().is_none_or(holds_packages)
}

/// Whether a file was installed beside the standard library: its modules may bear the names of that one's.
pub(super) fn is_installed(file: &str) -> bool {
    file.contains("/site-packages/") || file.contains("/dist-packages/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asyncio_is_the_standard_librarys() {
        for file in [
            "/usr/lib/python3.11/asyncio/tasks.py",
            "/opt/lib/python3.13t/asyncio/locks.py",
            "/src/cpython/Lib/asyncio/events.py",
            "/opt/app/python311.zip/asyncio/events.py",
            "asyncio/base_events.py",
        ] {
            assert!(is_of_asyncio(file), "{file}");
        }
        for file in ["/home/user/asyncio/server.py", "/usr/lib/python3.11/queue.py", "/srv/asyncio/jobs/run.py", "x.py"]
        {
            assert!(!is_of_asyncio(file), "{file}");
        }
    }
}
