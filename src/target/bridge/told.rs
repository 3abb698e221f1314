//! What the debugger told, taken apart: numbers bounded, names made paths. Touches only bytes.

use super::sections::{self, Section};
use super::wire::{Broken, shown, unhex};
use crate::arch::ThreadRegisters;
use crate::arch::x86_64::{self, WORD_NAMES};
use crate::target::{Mapping, Permissions};
use crate::units::{Addr, HostTid};
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Threads taken at most.
pub(super) const MAX_THREADS: usize = 1 << 17;
/// Mappings, files and auxiliary entries taken at most.
const MAX_MAPPINGS: usize = 1 << 20;
const MAX_FILES: usize = 1 << 14;
const MAX_AUXV: usize = 256;
/// The largest pid Linux gives (`PID_MAX_LIMIT`).
const PID_MAX: i32 = 1 << 22;

/// What the debugger has before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A process of this machine, stopped.
    Live,
    /// A process that another program (gdbserver) holds, here or elsewhere.
    Remote,
    /// A core.
    Core,
}

/// The answer to `process`.
pub(super) struct Told {
    pub kind: Kind,
    pub pid: i32,
    pub exe: Option<PathBuf>,
    pub core: Option<PathBuf>,
    pub sysroot: Option<PathBuf>,
    /// The thread the person looks at.
    pub selected: Option<HostTid>,
    /// Whether files can be fetched from where it runs.
    pub fetches: bool,
}

/// What `process` said, or why there is nothing to look at.
pub(super) enum Before {
    Process(Told),
    /// No program was started, attached to or loaded.
    Nothing,
    /// It runs.
    Running,
    /// It is of another CPU, as the debugger names it.
    Other(String),
}

/// A thread the debugger told of.
pub(super) struct ToldThread {
    pub tid: HostTid,
    pub name: Option<String>,
    pub registers: Option<ThreadRegisters>,
}

fn garbage(what: &str, word: &str) -> Broken {
    Broken::Garbage(what.to_owned(), format!("'{}'", shown(word)))
}

fn path(word: &str) -> Option<PathBuf> {
    let bytes = unhex(word.as_bytes()).filter(|b| !b.is_empty() && b.len() <= 4096 && !b.contains(&0))?;
    let path = PathBuf::from(OsString::from_vec(bytes));
    path.is_absolute().then_some(path)
}

fn number(word: &str) -> Option<u64> {
    // from_str_radix takes a sign
    word.chars().all(|c| c.is_ascii_hexdigit()).then(|| u64::from_str_radix(word, 16).ok())?
}

fn id(word: &str) -> Option<i32> {
    word.parse().ok().filter(|id| (1..=PID_MAX).contains(id))
}

/// `KIND ARCH PID EXE CORE SYSROOT SELECTED`.
pub(super) fn process(words: &[String]) -> Result<Before, Broken> {
    let bad = |word: &str| garbage("process", word);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let kind = match words.first() {
        Some(&"none") => return Ok(Before::Nothing),
        Some(&"running") => return Ok(Before::Running),
        Some(&"live") => Kind::Live,
        Some(&"remote") => Kind::Remote,
        Some(&"core") => Kind::Core,
        other => return Err(bad(other.copied().unwrap_or("nothing"))),
    };
    let [_, arch, pid, exe, core, sysroot, selected] = words.as_slice() else { return Err(bad("words are missing")) };
    if !["x86_64", "x86-64"].iter().any(|a| arch.contains(a)) {
        return Ok(Before::Other(shown(arch)));
    }
    Ok(Before::Process(Told {
        kind,
        pid: id(pid).ok_or_else(|| bad(pid))?,
        exe: path(exe),
        core: path(core),
        sysroot: path(sysroot).filter(|p| p.as_os_str() != "/"),
        selected: id(selected).map(HostTid),
        fetches: true,
    }))
}

/// The registers to ask for, by their names, and which word of `user_regs_struct` each is.
pub(super) const WANTED: [usize; 19] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 21];

/// The names of the registers to ask for.
pub(super) fn wanted() -> String {
    let names: Vec<&str> = WANTED.iter().filter_map(|i| WORD_NAMES.get(*i).copied()).collect();
    names.join(" ")
}

/// `TID:NAME:VALUE,VALUE,…` each, the values in the order of [`wanted`].
pub(super) fn threads(words: &[String]) -> Result<Vec<ToldThread>, Broken> {
    let mut out = Vec::new();
    let mut seen = HashSet::new();
    for word in words.iter().take(MAX_THREADS) {
        let bad = || garbage("threads", word);
        let mut parts = word.split(':');
        let (Some(tid), Some(name), Some(values), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let tid = HostTid(id(tid).ok_or_else(bad)?);
        let name = unhex(name.as_bytes()).ok_or_else(bad)?;
        let mut told = [None; 27];
        let mut values = values.split(',');
        for i in WANTED {
            let value = values.next().ok_or_else(bad)?;
            if value != "-" {
                let value = number(value).ok_or_else(bad)?;
                if let Some(slot) = told.get_mut(i) {
                    *slot = Some(value);
                }
            }
        }
        if values.next().is_some() {
            return Err(bad());
        }
        if seen.insert(tid) {
            let name: String = String::from_utf8_lossy(&name).chars().take(64).collect();
            let registers = x86_64::from_words(&told);
            out.push(ToldThread { tid, name: Some(name).filter(|n| !n.is_empty()), registers });
        }
    }
    Ok(out)
}

/// `START-END:RIGHTS:OFFSET:NAME` each; ascending, without overlaps. And whether every mapping told its rights: a list without
/// them, or one of sections, is that of files only.
pub(super) fn maps(words: &[String]) -> Result<(Vec<Mapping>, bool), Broken> {
    let mut out = Vec::new();
    let mut complete = true;
    let mut without_offset = false;
    let mut sections = Vec::new();
    for word in words.iter().take(MAX_MAPPINGS) {
        let bad = || garbage("maps", word);
        let mut parts = word.split(':');
        let (Some(range), Some(rights), Some(offset), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let (start, end) = range.split_once('-').ok_or_else(bad)?;
        let (start, end) = (number(start).ok_or_else(bad)?, number(end).ok_or_else(bad)?);
        let told = if offset == "-" { None } else { Some(number(offset).ok_or_else(bad)?) };
        let name = String::from_utf8_lossy(&unhex(name.as_bytes()).ok_or_else(bad)?).into_owned();
        let (name, deleted) = match name.strip_suffix(" (deleted)") {
            Some(name) => (name.to_owned(), true),
            None => (name, false),
        };
        if start >= end {
            continue;
        }
        if rights != "-" && !rights.chars().all(|c| "rwxps-".contains(c)) {
            // as gdb writes files that it reads through a server
            let path = PathBuf::from(name.strip_prefix("target:").unwrap_or(&name));
            if path.is_absolute() {
                sections.push(Section { start, end, name: rights.to_owned(), path });
            }
            continue;
        }
        let has = |c| rights.contains(c);
        complete &= rights != "-";
        without_offset |= told.is_none();
        out.push(Mapping {
            start: Addr(start),
            end: Addr(end),
            offset: told.unwrap_or(0),
            permissions: Permissions { read: has('r'), write: has('w'), execute: has('x'), shared: has('s') },
            device: (0, 0),
            inode: 0,
            path: (!name.is_empty() && name.len() <= 4096).then(|| PathBuf::from(name)),
            deleted,
        });
    }
    if !sections.is_empty() {
        (complete, without_offset) = (false, true);
        let files = sections::mappings(sections);
        // what is listed without a file's name beside them
        let first_behind = |at: Addr| files.get(files.partition_point(|f| f.end <= at));
        out.retain(|m| first_behind(m.start).is_none_or(|f| f.start >= m.end));
        out.extend(files);
    }
    out.sort_by_key(|m| (m.start, m.end));
    let mut last = Addr::NULL;
    out.retain(|m| {
        let fits = m.start >= last;
        last = last.max(m.end);
        fits
    });
    if without_offset {
        // as the linker lays out the segments of a file: as far apart as in it
        let mut base: Option<(Option<PathBuf>, Addr)> = None;
        for m in out.iter_mut().filter(|m| m.path.is_some()) {
            match &base {
                Some((path, start)) if *path == m.path => m.offset = m.start.0 - start.0,
                _ => base = Some((m.path.clone(), m.start)),
            }
        }
    }
    Ok((out, complete))
}

/// `KIND=VALUE` each.
pub(super) fn auxv(words: &[String]) -> Result<Vec<(u64, u64)>, Broken> {
    let entry = |word: &String| {
        let (kind, value) = word.split_once('=')?;
        Some((number(kind)?, number(value)?))
    };
    words.iter().take(MAX_AUXV).map(|w| entry(w).ok_or_else(|| garbage("auxv", w))).collect()
}

/// A path each; those that are no files of this machine (`target:/lib/…`) are passed over.
pub(super) fn files(words: &[String]) -> Vec<PathBuf> {
    words.iter().take(MAX_FILES).filter_map(|w| path(w)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::{RDI, RIP};

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn registers_land_where_they_belong_and_unknown_ones_stay_unknown() {
        let values: Vec<String> = WANTED.iter().map(|i| if *i == 21 { "-".into() } else { format!("{i:x}") }).collect();
        let line = format!("12:6d61696e:{}", values.join(","));
        let told = threads(&words(&line)).unwrap();
        let registers = told[0].registers.as_ref().unwrap();
        assert_eq!((told[0].tid, told[0].name.as_deref()), (HostTid(12), Some("main")));
        assert_eq!((registers.file.read(RDI), registers.file.read(RIP)), (Some(14), Some(16)));
        assert_eq!((registers.tls_base, registers.syscall_register), (None, Some(15)));
        let without = vec!["-"; WANTED.len()].join(",");
        assert!(threads(&words(&format!("7:-:{without}"))).unwrap()[0].registers.is_none());
    }

    #[test]
    fn what_does_not_parse_is_refused() {
        for bad in ["1", "x:-:1", "1:-:1,2", "1:zz:-", "0:-:-", "-4:-:-", "1:-:+1"] {
            assert!(threads(&words(bad)).is_err(), "{bad}");
        }
        for bad in ["1000", "1000-2000:r", "z-2000:r:0:-", "1000-2000:r:0:2f6", "+1-2:r:0:-"] {
            assert!(maps(&words(bad)).is_err(), "{bad}");
        }
        assert!(auxv(&words("3=zz")).is_err());
        assert!(process(&words("live x86_64")).is_err());
        assert!(matches!(process(&words("live aarch64 1 - - - -")), Ok(Before::Other(_))));
    }

    #[test]
    fn sections_stand_for_the_files_that_regions_do_not_name() {
        let regions = "1000-2000:r-xp:-:- 2000-3000:rw-p:-:- 7000-9000:rw-p:-:-";
        let (told, complete) =
            maps(&words(&format!("{regions} 1200-1900:.text:-:2f61 2000-2010:.data:-:2f61"))).unwrap();
        let named: Vec<_> = told.iter().map(|m| (m.start.0, m.offset, m.is_file())).collect();
        assert_eq!((named, complete), (vec![(0x1000, 0, true), (0x2000, 0x1000, true), (0x7000, 0, false)], false));
    }

    #[test]
    fn mappings_are_sorted_and_disjoint() {
        let (told, complete) = maps(&words("3000-4000:r--p:0:2f6120286465 1000-3800:-:1000:-")).unwrap();
        assert_eq!((told.len(), complete), (1, false));
        assert_eq!(told[0].start, Addr(0x1000));
        let (told, _) = maps(&words("1000-2000:r-xp:0:2f61202864656c6574656429")).unwrap();
        assert_eq!((told[0].path.as_deref(), told[0].deleted), (Some(std::path::Path::new("/a")), true));
    }
}
