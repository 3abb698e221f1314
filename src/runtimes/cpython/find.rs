//! Finding `_PyRuntime` and the version, and choosing the layout. Done while the target runs: none of it moves.

use super::objects::Objects;
use super::offsets::{NoOffsets, Offsets};
use super::signals::find_table;
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::{Module, Snapshot};
use crate::units::{Addr, LoadBias};
use std::ops::Range;

/// A CPython found in a process.
#[derive(Debug)]
pub(super) struct Found {
    /// `_PyRuntime`.
    pub runtime: Addr,
    /// The module it lies in.
    pub module: String,
    pub version: PyVersion,
    pub free_threaded: bool,
    /// How it is read, or why it cannot be.
    pub offsets: Result<Offsets, NoOffsets>,
    /// Where `_PyEval_EvalFrameDefault` lies, its pieces.
    pub loops: Vec<Range<Addr>>,
    /// The table of Python signal handlers, where it was found.
    pub handlers: Option<Addr>,
}

/// What is known of the version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PyVersion {
    pub minor: u32,
    pub micro: Option<u32>,
    /// `3.11.2`, `3.15.0rc1`; `3.9` where no more is known.
    pub text: String,
}

/// The first bytes of `_Py_DebugOffsets`, since 3.13.
const COOKIE: &[u8; 8] = b"xdebugpy";

/// Writable bytes of a module searched at most.
const MAX_DATA: u64 = 16 << 20;

/// Finds every CPython of the process: shared libraries first, then the program itself.
pub(super) fn find_all(snapshot: &Snapshot, memory: &dyn Memory) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for module in candidates(snapshot) {
        if let Some(f) = find_in(snapshot, memory, module)
            && !found.iter().any(|have| have.runtime == f.runtime)
        {
            found.push(f);
        }
    }
    found
}

/// Modules that may hold an interpreter.
fn candidates(snapshot: &Snapshot) -> impl Iterator<Item = &Module> {
    let entry = snapshot.process.entry();
    let program = move |m: &&Module| match (&snapshot.process.exe, entry) {
        (_, Some(entry)) if m.start <= entry && entry < m.end => true,
        (Some(exe), _) => m.path == *exe,
        _ => false,
    };
    let libraries = snapshot.modules.iter().filter(|m| is_python_name(m.name()) && m.name().contains(".so"));
    libraries.chain(snapshot.modules.iter().filter(program))
}

fn is_python_name(name: &str) -> bool {
    name.starts_with("libpython3") || name.starts_with("python3") || name == "python"
}

fn find_in(snapshot: &Snapshot, memory: &dyn Memory, module: &Module) -> Option<Found> {
    let image = module.image().ok();
    let by_symbol = module.find_symbol("_PyRuntime").map(|(at, _)| at);
    let by_section = || {
        let image = image?;
        image.elf.section_at(".PyRuntime").map(|at| image.bias.to_addr(at))
    };
    let by_cookie = || is_python_name(module.name()).then(|| find_cookie(snapshot, memory, module)).flatten();
    let runtime = by_symbol.or_else(by_section).or_else(by_cookie)?;
    let has_cookie = memory.read_vec(runtime, 8).is_ok_and(|b| b == COOKIE);
    let (version, free_threaded) = if has_cookie {
        let hex = memory.read_u64(runtime.offset(8)).ok()?;
        (version_of_hex(hex)?, memory.read_u64(runtime.offset(16)).ok()? == 1)
    } else {
        let named = || module.find_symbol("Py_Version").and_then(|(at, _)| memory.read_u32(at).ok());
        let version = named()
            .and_then(|v| version_of_hex(u64::from(v)))
            .or_else(|| find_version_text(snapshot, memory, module))
            .or_else(|| version_of_name(module.name()));
        (version?, false)
    };
    let own = has_cookie.then_some((runtime, memory));
    let mut offsets = Offsets::choose((version.minor, version.micro), free_threaded, own);
    if let (Ok(offsets), Some(section)) = (&mut offsets, find_asyncio_account(snapshot, module)) {
        offsets.asyncio.correct(memory, section);
    }
    let loops = image.map(|image| find_loops(module, image.bias)).unwrap_or_default();
    let handlers =
        offsets.as_ref().ok().and_then(|o| find_table(&Objects::new(memory, o), &writable(snapshot, module)));
    Some(Found { runtime, module: module.name().to_owned(), version, free_threaded, offsets, loops, handlers })
}

/// asyncio's own account of its layout: in its module, or in the interpreter it is linked into (since 3.14).
fn find_asyncio_account(snapshot: &Snapshot, interpreter: &Module) -> Option<Addr> {
    let modules = snapshot.modules.iter().filter(|m| m.name().starts_with("_asyncio."));
    modules.chain(std::iter::once(interpreter)).find_map(|m| {
        let image = m.image().ok()?;
        image.elf.section_at(".AsyncioDebug").map(|at| image.bias.to_addr(at))
    })
}

/// The evaluation loop, and the rarely run piece of it that compilers put elsewhere.
fn find_loops(module: &Module, bias: LoadBias) -> Vec<Range<Addr>> {
    ["_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault.cold"]
        .iter()
        .filter_map(|name| {
            let symbol = module.image().ok()?.elf.find_symbol(name)?;
            let from = bias.to_addr(symbol.vaddr);
            (symbol.size > 0).then(|| from..from.offset(symbol.size.cast_signed()))
        })
        .collect()
}

/// `PY_VERSION_HEX`: major, minor, micro, level and serial. CPython `Include/patchlevel.h`.
fn version_of_hex(hex: u64) -> Option<PyVersion> {
    let hex = u32::try_from(hex).ok()?;
    let [low, micro, minor, major] = hex.to_le_bytes();
    if major != 3 {
        return None;
    }
    let level = match low >> 4 {
        0xa => format!("a{}", low & 15),
        0xb => format!("b{}", low & 15),
        0xc => format!("rc{}", low & 15),
        _ => String::new(),
    };
    Some(PyVersion {
        minor: u32::from(minor),
        micro: Some(u32::from(micro)),
        text: format!("3.{minor}.{micro}{level}"),
    })
}

/// `libpython3.11.so.1.0`, `python3.8`, `libpython3.7m.so.1.0`.
fn version_of_name(name: &str) -> Option<PyVersion> {
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python3.")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let minor = digits.parse().ok()?;
    Some(PyVersion { minor, micro: None, text: format!("3.{minor}") })
}

/// The writable mappings of a module, with the anonymous one behind it that is its `.bss`.
fn writable(snapshot: &Snapshot, module: &Module) -> Vec<Range<Addr>> {
    let mut out: Vec<Range<Addr>> = Vec::new();
    for m in snapshot.mappings.iter().filter(|m| m.start >= module.start) {
        let own = m.path.as_ref() == Some(&module.path) && m.start < module.end;
        let bss = m.path.is_none() && m.start == module.end;
        if (own || bss) && m.permissions.write {
            out.push(m.start..m.end);
        }
        if bss {
            break;
        }
    }
    out
}

/// Goes through a module's writable bytes, a bounded piece at a time, until `look` finds something.
fn search_writable<T>(
    snapshot: &Snapshot,
    memory: &dyn Memory,
    module: &Module,
    look: impl Fn(Addr, &[u8]) -> Option<T>,
) -> Option<T> {
    const PIECE: u64 = 1 << 20;
    // so that nothing is cut in two by the end of a piece
    const OVERLAP: u64 = 512;
    let mut left = MAX_DATA;
    for range in writable(snapshot, module) {
        let mut at = range.start;
        while at < range.end && left > 0 {
            let len = PIECE.min(range.end.0 - at.0).min(left);
            if let Ok(bytes) = memory.read_vec(at, usize::try_from(len).ok()?)
                && let Some(found) = look(at, &bytes)
            {
                return Some(found);
            }
            left -= len;
            let step = if len > OVERLAP { len - OVERLAP } else { len };
            at = at.offset((if at.0 + len >= range.end.0 { len } else { step }).cast_signed());
        }
    }
    None
}

/// `_PyRuntime` by the cookie it begins with.
fn find_cookie(snapshot: &Snapshot, memory: &dyn Memory, module: &Module) -> Option<Addr> {
    search_writable(snapshot, memory, module, |at, bytes| {
        bytes.as_chunks::<8>().0.iter().position(|w| w == COOKIE).map(|i| at.offset((i as i64) * 8))
    })
}

/// The text `Py_GetVersion()` formats when the interpreter starts: `3.8.18 (default, …) \n[GCC 12.2.0]`.
fn find_version_text(snapshot: &Snapshot, memory: &dyn Memory, module: &Module) -> Option<PyVersion> {
    search_writable(snapshot, memory, module, |_, bytes| version_in(bytes))
}

fn version_in(bytes: &[u8]) -> Option<PyVersion> {
    bytes.windows(2).enumerate().filter(|(_, w)| *w == b"3.").find_map(|(i, _)| {
        let text = bytes.get(i..)?;
        let text = text.get(..text.iter().take(300).position(|b| *b == 0)?)?;
        let text = std::str::from_utf8(text).ok()?;
        let (version, rest) = text.split_once(" (")?;
        if version.len() > 16 || !(rest.contains(") [") || rest.contains(") \n[")) {
            return None;
        }
        let mut parts = version.trim_end_matches('+').splitn(3, '.');
        parts.next()?;
        let minor = parts.next()?.parse().ok()?;
        let micro: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
        Some(PyVersion { minor, micro: Some(micro.parse().ok()?), text: version.trim_end_matches('+').to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(minor: u32, micro: Option<u32>, text: &str) -> Option<PyVersion> {
        Some(PyVersion { minor, micro, text: text.to_owned() })
    }

    #[test]
    fn versions_as_numbers() {
        assert_eq!(version_of_hex(0x030b02f0), version(11, Some(2), "3.11.2"));
        assert_eq!(version_of_hex(0x030e00c1), version(14, Some(0), "3.14.0rc1"));
        assert_eq!(version_of_hex(0x02071200), None);
        assert_eq!(version_of_hex(u64::MAX), None);
    }

    #[test]
    fn versions_as_names() {
        assert_eq!(version_of_name("libpython3.11.so.1.0"), version(11, None, "3.11"));
        assert_eq!(version_of_name("python3.8"), version(8, None, "3.8"));
        assert_eq!(version_of_name("libpython3.13t.so.1.0"), version(13, None, "3.13"));
        assert_eq!(version_of_name("python"), None);
        assert_eq!(version_of_name("libpython3.so"), None);
    }

    #[test]
    fn versions_as_text() {
        let data = b"\0\x013.x\0zz3.8.18 (default, Mar  1 2024, 10:00:00) \n[GCC 12.2.0]\0tail";
        assert_eq!(version_in(data), version(8, Some(18), "3.8.18"));
        let data = b"3.10.13+ (heads/3.10:abc, Mar  1 2024) [GCC 12.2.0]\0";
        assert_eq!(version_in(data), version(10, Some(13), "3.10.13"));
        assert_eq!(version_in(b"3.8.18 (default\0"), None);
        assert_eq!(version_in(b"3."), None);
    }
}
