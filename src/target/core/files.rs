//! The files a core's program had mapped, as found today: only those that are the very ones it ran.

use super::CoreOptions;
use super::segments::{EHDR, PHDR};
use crate::memory::{FileBytes, Memory, MemoryExt, u16_at, u64_at};
use crate::target::{Files, Mapping, Permissions, Process, TargetError};
use crate::units::{Addr, PAGE};
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::ProgramHeader;
use goblin::elf::header::{ELFCLASS64, ELFMAG};
use goblin::elf::note::{NT_GNU_BUILD_ID, NoteDataIterator};
use goblin::elf::program_header::{PT_LOAD, PT_NOTE};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Program headers of one file looked at, at most.
const MAX_HEADERS: usize = 512;
/// Bytes of one note segment looked at, at most.
const MAX_NOTES: u64 = 1 << 16;
/// Bytes of a vdso, at most; it is two pages today.
const MAX_VDSO: u64 = 1 << 20;
/// Names shown in one warning.
const SHOWN: usize = 4;

/// Brings a file from the target's machine.
pub(in crate::target) type Remote = Box<dyn Fn(&Path) -> Option<FileBytes> + Send + Sync>;

/// Finds and checks files.
pub(in crate::target) struct CoreFiles {
    memory: Arc<dyn Memory + Send + Sync>,
    options: CoreOptions,
    /// What asks the target's own machine for a file, where that is another one than ours.
    remote: Option<Remote>,
    /// By their last names, the files a debugger found.
    resolved: HashMap<OsString, Vec<PathBuf>>,
    exe: Option<PathBuf>,
    /// For each file, the mappings of its first byte: where they begin, and their length.
    bases: HashMap<PathBuf, Vec<(u64, u64)>>,
    trouble: Mutex<Trouble>,
}

#[derive(Default)]
struct Trouble {
    unverified: BTreeSet<PathBuf>,
    refused: BTreeMap<PathBuf, String>,
}

/// The start of an ELF file: its program headers and build-id.
struct ElfStart {
    headers: Vec<ProgramHeader>,
    /// The bytes of the program headers.
    table: Vec<u8>,
    /// `Err` where the note lies in bytes that could not be had.
    build_id: Result<Option<Vec<u8>>, ()>,
}

impl ElfStart {
    /// Reads it through `read`, which takes an offset in the file and a length. `None`: no 64-bit ELF file, or not to be had.
    fn read(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<ElfStart> {
        let header = read(0, EHDR)?;
        if !header.starts_with(ELFMAG) || header.get(4) != Some(&ELFCLASS64) {
            return None;
        }
        let (at, size, count) = (u64_at(&header, 32)?, u16_at(&header, 54)?, usize::from(u16_at(&header, 56)?));
        if usize::from(size) != PHDR || count > MAX_HEADERS {
            return None;
        }
        let table = read(at, count * PHDR)?;
        let ctx = Ctx::new(Container::Big, Endian::Little);
        let headers = ProgramHeader::parse(&table, 0, count, ctx).ok()?;
        let mut build_id = Ok(None);
        for p in headers.iter().filter(|p| p.p_type == PT_NOTE && p.p_filesz <= MAX_NOTES) {
            let Some(data) = usize::try_from(p.p_filesz).ok().and_then(|len| read(p.p_offset, len)) else {
                build_id = Err(());
                continue;
            };
            let align = if p.p_align == 8 { 8 } else { 4 };
            let notes = NoteDataIterator { data: &data, size: data.len(), offset: 0, ctx: (align, ctx) };
            let found = notes
                .map_while(Result::ok)
                .find(|n| n.name == "GNU" && n.n_type == NT_GNU_BUILD_ID && !n.desc.is_empty());
            if let Some(note) = found {
                build_id = Ok(Some(note.desc.iter().take(64).copied().collect()));
                break;
            }
        }
        Some(ElfStart { headers, table, build_id })
    }

    fn of_file(bytes: &FileBytes) -> Option<ElfStart> {
        ElfStart::read(|at, len| {
            let at = usize::try_from(at).ok()?;
            bytes.get_at(at, len).map(<[u8]>::to_vec)
        })
    }

    /// The rights of the segment that holds `at` bytes from the file's first mapped byte.
    fn permissions(&self, at: u64) -> Option<Permissions> {
        let mut loads = self.headers.iter().filter(|p| p.p_type == PT_LOAD);
        let base = loads.clone().next()?.p_vaddr & !(PAGE - 1);
        let segment = loads.find(|p| {
            let start = (p.p_vaddr & !(PAGE - 1)).wrapping_sub(base);
            let end = p.p_vaddr.wrapping_sub(base).saturating_add(p.p_memsz);
            start <= at && at < end
        })?;
        Some(Permissions {
            read: segment.is_read(),
            write: segment.is_write(),
            execute: segment.is_executable(),
            shared: false,
        })
    }
}

/// Whether a file on disk is the one that was mapped.
enum Match {
    Same,
    Unknown,
    Other(String),
}

fn compare(core: Option<&ElfStart>, disk: Option<&ElfStart>) -> Match {
    let Some(core) = core else { return Match::Unknown };
    let Some(disk) = disk else { return Match::Other("replaced: it is no 64-bit ELF file now".into()) };
    match (&core.build_id, &disk.build_id) {
        (Ok(Some(a)), Ok(Some(b))) if a == b => Match::Same,
        (Ok(Some(a)), Ok(Some(b))) => {
            Match::Other(format!("replaced: build-id {} in the core, {} on disk", hex(a), hex(b)))
        }
        (Ok(Some(a)), _) => Match::Other(format!("replaced: build-id {} in the core, none on disk", hex(a))),
        (Ok(None), Ok(Some(b))) => Match::Other(format!("replaced: no build-id in the core, {} on disk", hex(b))),
        _ if core.table != disk.table => {
            Match::Other("replaced: its program headers differ from those in the core".into())
        }
        // no build-id to compare, but the same segments to the byte: likely, not proven
        _ => Match::Unknown,
    }
}

/// Opens a file unless it is a device or a pipe: a core may name anything, and opening those can act or block.
fn open_regular(path: &Path) -> io::Result<FileBytes> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    FileBytes::of_file(File::open(path)?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl CoreFiles {
    pub fn new(
        memory: Arc<dyn Memory + Send + Sync>,
        process: &Process,
        mappings: &[Mapping],
        options: &CoreOptions,
    ) -> CoreFiles {
        let mut bases: HashMap<PathBuf, Vec<(u64, u64)>> = HashMap::new();
        for m in mappings.iter().filter(|m| m.offset == 0) {
            if let Some(path) = m.path.as_ref().filter(|_| m.is_file()) {
                bases.entry(path.clone()).or_default().push((m.start.0, m.end.0 - m.start.0));
            }
        }
        let mut resolved: HashMap<OsString, Vec<PathBuf>> = HashMap::new();
        for path in &options.resolved {
            // a mapping bears the name behind all links
            for name in [Some(path.clone()), std::fs::canonicalize(path).ok()].into_iter().flatten() {
                if let Some(name) = name.file_name() {
                    resolved.entry(name.to_owned()).or_default().push(path.clone());
                }
            }
        }
        let (exe, options) = (process.exe.clone(), options.clone());
        CoreFiles { memory, options, remote: None, resolved, exe, bases, trouble: Mutex::default() }
    }

    /// The same, for a process on another machine: files of this one count only where memory proves them.
    pub fn on_another_machine(mut self, remote: Remote) -> CoreFiles {
        self.remote = Some(remote);
        self
    }

    /// Where the file behind `mapping` begins in memory: start and bytes of the mapping of its first byte.
    fn base(&self, mapping: &Mapping) -> Option<(u64, u64)> {
        let bases = self.bases.get(mapping.path.as_ref()?)?;
        bases.get(bases.partition_point(|(start, _)| *start <= mapping.start.0).checked_sub(1)?).copied()
    }

    /// The start of the file as the core's memory holds it.
    fn start_in_core(&self, mapping: &Mapping) -> Option<ElfStart> {
        let (base, len) = self.base(mapping)?;
        ElfStart::read(|at, n| {
            let end = at.checked_add(n as u64)?;
            (end <= len).then(|| self.memory.read_vec(Addr(base.checked_add(at)?), n).ok())?
        })
    }

    /// Where the file may be, best first; and whether the core must prove it is the one.
    fn candidates(&self, path: &Path, build_id: Option<&[u8]>) -> Vec<(PathBuf, bool)> {
        let mut all = Vec::new();
        if self.exe.as_deref() == Some(path) {
            all.extend(self.options.exe.iter().map(|exe| (exe.clone(), false)));
        }
        let inside = path.strip_prefix("/").unwrap_or(path);
        all.extend(self.options.sysroot.iter().map(|root| (root.join(inside), false)));
        // beside a sysroot, this machine's file of the same name is likely another
        let found = path.file_name().and_then(|name| self.resolved.get(name)).into_iter().flatten();
        all.extend(found.map(|path| (path.clone(), true)));
        all.push((path.to_owned(), self.options.sysroot.is_some() || self.remote.is_some()));
        if let Some((first, rest)) = build_id.and_then(|id| id.split_first()) {
            let name = Path::new(".build-id").join(hex(&[*first])).join(hex(rest));
            for dir in self.debug_directories() {
                let in_root = self.options.sysroot.as_ref().zip(dir.strip_prefix("/").ok()).map(|(r, d)| r.join(d));
                all.extend(in_root.into_iter().chain([dir]).map(|dir| (dir.join(&name), true)));
            }
        }
        all
    }

    fn find(&self, mapping: &Mapping) -> Result<FileBytes, String> {
        let path = mapping.path.as_deref().ok_or("no file stands behind this mapping")?;
        if path.as_os_str() == "[vdso]" {
            return self.vdso(mapping).ok_or_else(|| "it is not in the core".to_owned());
        }
        let core = self.start_in_core(mapping);
        let build_id = core.as_ref().and_then(|c| c.build_id.as_ref().ok()?.as_deref());
        let mut refusal = None;
        for (candidate, must_prove) in self.candidates(path, build_id) {
            let bytes = match open_regular(&candidate) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => {
                    let why = match e.kind() {
                        io::ErrorKind::PermissionDenied => "permission denied; run as its owner or root".to_owned(),
                        _ => e.to_string(),
                    };
                    refusal.get_or_insert(if candidate == path {
                        why
                    } else {
                        format!("{}: {why}", candidate.display())
                    });
                    continue;
                }
            };
            match compare(core.as_ref(), ElfStart::of_file(&bytes).as_ref()) {
                Match::Same => return Ok(bytes),
                Match::Unknown if !must_prove && !mapping.deleted => {
                    self.trouble().unverified.insert(path.to_owned());
                    return Ok(bytes);
                }
                Match::Unknown if mapping.deleted => {}
                Match::Unknown => {
                    refusal.get_or_insert(
                        "nothing in memory shows that the file here is the same; give --sysroot".to_owned(),
                    );
                }
                Match::Other(why) => {
                    refusal.get_or_insert(format!("{why}; give --sysroot or --debug-dir"));
                }
            }
        }
        if let Some(bytes) = self.remote.as_ref().filter(|_| !mapping.deleted).and_then(|bring| bring(path)) {
            match compare(core.as_ref(), ElfStart::of_file(&bytes).as_ref()) {
                Match::Same => return Ok(bytes),
                // at least its program headers are those in memory
                Match::Unknown if core.is_some() => return Ok(bytes),
                Match::Unknown => {}
                Match::Other(why) => refusal = Some(why),
            }
        }
        Err(refusal.unwrap_or_else(|| match mapping.deleted {
            true => "deleted since it was mapped; give --sysroot".to_owned(),
            false => "missing; give --sysroot".to_owned(),
        }))
    }

    fn vdso(&self, mapping: &Mapping) -> Option<FileBytes> {
        let len = mapping.end.0.checked_sub(mapping.start.0).filter(|n| *n <= MAX_VDSO)?;
        self.memory.read_vec(mapping.start, usize::try_from(len).ok()?).ok().map(FileBytes::owned)
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives file mappings that no segment covers their rights: from the file's program headers in the core, else on disk.
    /// gcore lists no segment for what the program never wrote, its code among that.
    pub fn complete_permissions(&self, mut mappings: Vec<Mapping>) -> Vec<Mapping> {
        let mut starts: HashMap<(PathBuf, Option<u64>), Option<ElfStart>> = HashMap::new();
        for m in mappings.iter_mut().filter(|m| m.is_file() && m.permissions == Permissions::default()) {
            let Some(path) = m.path.clone() else { continue };
            let base = self.base(m).map(|(start, _)| start);
            let start = starts
                .entry((path.clone(), base))
                .or_insert_with(|| self.start_in_core(m).or_else(|| self.start_on_disk(&path)));
            match (start, base) {
                (Some(start), Some(base)) => {
                    m.permissions = start.permissions(m.start.0.saturating_sub(base)).unwrap_or_default();
                }
                _ => {
                    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                    let code = name.ends_with(".so") || name.contains(".so.") || self.exe.as_deref() == Some(&path);
                    m.permissions = Permissions { read: true, execute: code, ..Permissions::default() };
                }
            }
        }
        mappings
    }

    fn start_on_disk(&self, path: &Path) -> Option<ElfStart> {
        self.candidates(path, None).iter().find_map(|(p, _)| ElfStart::of_file(&open_regular(p).ok()?))
    }

    /// What the files found so far lacked.
    pub fn warnings(&self) -> Vec<String> {
        let trouble = self.trouble();
        let mut all = Vec::new();
        if !trouble.unverified.is_empty() {
            let names = listed(trouble.unverified.iter().map(|p| p.display().to_string()), trouble.unverified.len());
            let place = if self.remote.is_some() { "memory" } else { "the core" };
            all.push(format!("not verified, because {place} lacks their build-id: {names}"));
        }
        let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (path, why) in &trouble.refused {
            by_reason.entry(why).or_default().push(path.display().to_string());
        }
        for (why, paths) in by_reason {
            let count = paths.len();
            all.push(format!("cannot use {}: {why}", listed(paths.into_iter(), count)));
        }
        all
    }
}

fn listed(names: impl Iterator<Item = String>, count: usize) -> String {
    let shown: Vec<String> = names.take(SHOWN).collect();
    match count.saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl Files for CoreFiles {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        self.find(mapping).map_err(|cause| {
            let path = mapping.path.clone().unwrap_or_default();
            if mapping.is_file() {
                self.trouble().refused.insert(path.clone(), cause.clone());
            }
            TargetError::File { path: path.display().to_string(), cause }
        })
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        let inside = path.strip_prefix("/").unwrap_or(path);
        let in_root = self.options.sysroot.as_ref().map(|root| root.join(inside));
        let mut last = None;
        for candidate in in_root.into_iter().chain([path.to_owned()]) {
            match open_regular(&candidate) {
                Ok(bytes) => return Ok(bytes),
                Err(e) => last = Some(e.to_string()),
            }
        }
        Err(TargetError::File { path: path.display().to_string(), cause: last.unwrap_or_else(|| "missing".into()) })
    }

    fn debug_directories(&self) -> Vec<PathBuf> {
        let mut all = self.options.debug_dirs.clone();
        all.push(PathBuf::from("/usr/lib/debug"));
        all
    }
}
