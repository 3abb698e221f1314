//! One process at one instant: identity, threads, mappings, modules. Frozen once made.
//!
//! Knows nothing of locks or runtimes.

use crate::elf::{DebugFiles, ElfFile, Location, Symbol, demangle};
use crate::memory::{FileBytes, Memory, ReadError};
use crate::target::{Files, Mapping, Process, Target, TargetError, ThreadState};
use crate::units::{Addr, LoadBias, ModuleIx, PAGE, PthreadT, Tid, Vaddr};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A program counter and how to look it up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pc {
    /// The address itself.
    pub addr: Addr,
    /// True for the innermost frame and for frames a signal interrupted: the instruction at `addr` is the one. False for
    /// return addresses, whose call stands just before.
    pub exact: bool,
}

impl Pc {
    /// The address to look up functions, lines and unwind rules by.
    #[must_use]
    pub fn lookup(self) -> Addr {
        if self.exact { self.addr } else { self.addr.offset(-1) }
    }
}

/// One loaded file: program, library, loader or vdso.
pub struct Module {
    /// The file as the target names it; `[vdso]` for the kernel's.
    pub path: PathBuf,
    /// Its lowest mapped byte.
    pub start: Addr,
    /// One past its highest mapped byte, its `.bss` not counted.
    pub end: Addr,
    first: Mapping,
    files: Arc<dyn Files>,
    image: OnceLock<Result<Arc<Image>, String>>,
    /// Functions by the address they were asked for.
    functions: Mutex<HashMap<Vaddr, Option<Symbol>>>,
}

/// How a frame is called.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FrameName {
    /// The function as the source writes it: demangled, without parameters.
    pub function: Option<String>,
    /// Its symbol, as the file writes it.
    pub symbol: Option<Symbol>,
    /// Bytes from the function's start to the program counter.
    pub offset: Option<u64>,
    /// The module it lies in.
    pub module: Option<ModuleIx>,
}

/// A module's parsed file and where it was loaded.
pub struct Image {
    /// The file.
    pub elf: ElfFile,
    /// What the loader added to its addresses.
    pub bias: LoadBias,
}

impl Module {
    /// Whether the same part of the same file lies at the same place: a name may meanwhile be another file's.
    fn is_of_file(&self, other: &Module) -> bool {
        let file = |m: &Module| (m.start, m.first.offset, m.first.device, m.first.inode);
        file(self) == file(other) && self.path == other.path
    }

    /// The last part of the path: `libc.so.6`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.file_name().and_then(|n| n.to_str()).unwrap_or("?")
    }

    /// The parsed file, opened on first use.
    ///
    /// # Errors
    /// One line saying why there is none: missing, replaced (another build-id), or no ELF.
    pub fn image(&self) -> Result<&Image, &str> {
        self.image.get_or_init(|| self.open().map(Arc::new)).as_deref().map_err(String::as_str)
    }

    /// Gives the module an image made elsewhere (from memory, for the vdso or a file that is gone). Ignored when there is
    /// one already.
    pub fn set_image(&self, image: Image) {
        let _ = self.image.set(Ok(Arc::new(image)));
    }

    /// As [`Module::image`]; where no file can be had, the image is read from `memory` instead, once and for all.
    fn image_or_memory(&self, memory: &dyn Memory) -> Result<&Image, &str> {
        let make = || self.open().or_else(|why| self.open_in_memory(memory).ok_or(why)).map(Arc::new);
        self.image.get_or_init(make).as_deref().map_err(String::as_str)
    }

    fn open_in_memory(&self, memory: &dyn Memory) -> Option<Image> {
        let elf = ElfFile::from_memory(memory, self.start, self.end.0.saturating_sub(self.start.0)).ok()?;
        let bias = bias_of(&elf, &self.first)?;
        Some(Image { elf: self.with_debug_files(elf), bias })
    }

    fn with_debug_files(&self, elf: ElfFile) -> ElfFile {
        elf.with_debug_files(self.path.clone(), Arc::new(Beside(Arc::clone(&self.files))))
    }

    fn open(&self) -> Result<Image, String> {
        let bytes = self.files.open(&self.first).map_err(|e| e.to_string())?;
        let elf = ElfFile::parse(bytes).map_err(|e| format!("{}: {e}", self.path.display()))?;
        let bias = bias_of(&elf, &self.first)
            .ok_or_else(|| format!("{}: no segment is mapped as it is", self.path.display()))?;
        Ok(Image { elf: self.with_debug_files(elf), bias })
    }

    /// The parts of the file another machine needs to unwind and name without it, by their address in the process.
    #[must_use]
    pub fn analysis_bytes(&self) -> Vec<(Addr, Vec<u8>)> {
        let Ok(image) = self.image() else { return Vec::new() };
        image.elf.analysis_parts().into_iter().map(|(at, bytes)| (image.bias.to_addr(at), bytes.to_vec())).collect()
    }

    /// The parts of the file by which it is known again, by their address in the process.
    #[must_use]
    pub fn identity_bytes(&self) -> Vec<(Addr, Vec<u8>)> {
        let Ok(image) = self.image() else { return Vec::new() };
        image.elf.identity_parts().into_iter().map(|(at, bytes)| (image.bias.to_addr(at), bytes.to_vec())).collect()
    }

    /// The function that holds the file's address `at`, remembered.
    fn function_at(&self, image: &Image, at: Vaddr) -> Option<Symbol> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.entry(at).or_insert_with(|| image.elf.symbol_at(at)).clone()
    }

    /// The symbol named `name`, as an address of the target.
    #[must_use]
    pub fn find_symbol(&self, name: &str) -> Option<(Addr, Symbol)> {
        let image = self.image().ok()?;
        let symbol = image.elf.find_symbol(name)?;
        Some((image.bias.to_addr(symbol.vaddr), symbol))
    }
}

/// Lets a file find those that go with it, as the target would.
struct Beside(Arc<dyn Files>);

impl DebugFiles for Beside {
    fn open(&self, path: &Path) -> Option<FileBytes> {
        self.0.open_path(path).ok()
    }

    fn directories(&self) -> Vec<PathBuf> {
        self.0.debug_directories()
    }
}

/// The load bias of a file from one of its mappings: the mapping's address less the address the file gives that offset.
fn bias_of(elf: &ElfFile, mapping: &Mapping) -> Option<LoadBias> {
    let segment = elf.segments().iter().find(|s| {
        let from = s.offset & !(PAGE - 1);
        from <= mapping.offset && mapping.offset < s.offset.saturating_add(s.file_size.max(1))
    })?;
    let vaddr_of_mapping =
        (segment.vaddr.0 & !(PAGE - 1)).wrapping_add(mapping.offset.wrapping_sub(segment.offset & !(PAGE - 1)));
    Some(LoadBias(mapping.start.0.wrapping_sub(vaddr_of_mapping)))
}

/// A process at one instant.
pub struct Snapshot {
    /// Who it is.
    pub process: Process,
    /// Its threads, ascending by host tid.
    pub threads: Vec<ThreadState>,
    /// Whether there may be threads that are not listed: of a tid that is none of theirs nothing is then known.
    pub unlisted: bool,
    /// Its mappings, ascending.
    pub mappings: Vec<Mapping>,
    /// Its modules, ascending by address.
    pub modules: Vec<Module>,
    /// How files are opened as the target sees them.
    pub files: Arc<dyn Files>,
}

impl Snapshot {
    /// Lists mappings and modules of `target`. Threads are added by [`Snapshot::freeze`]; until then there are none.
    ///
    /// # Errors
    /// When the mappings cannot be had.
    pub fn prepare(target: &dyn Target) -> Result<Snapshot, TargetError> {
        let files = target.files();
        let mappings = target.mappings()?;
        let modules = modules_of(&mappings, &files);
        let process = target.process().clone();
        Ok(Snapshot { process, threads: Vec::new(), unlisted: target.may_lack_threads(), mappings, modules, files })
    }

    /// Takes the threads of the instant. Where the mappings changed meanwhile, the new ones are taken and modules already
    /// opened are kept.
    pub fn freeze(&mut self, threads: Vec<ThreadState>, mappings: Option<Vec<Mapping>>) {
        self.threads = threads;
        if let Some(new) = mappings.filter(|m| *m != self.mappings) {
            let mut modules = modules_of(&new, &self.files);
            for m in &mut modules {
                if let Some(old) = self.modules.iter_mut().find(|o| o.is_of_file(m)) {
                    std::mem::swap(&mut m.image, &mut old.image);
                }
            }
            self.mappings = new;
            self.modules = modules;
        }
    }

    /// Takes over the files that an earlier look at the same process opened, where they still lie at the same place.
    pub fn share_images(&self, earlier: &Snapshot) {
        for m in &self.modules {
            let Some(image) = earlier.modules.iter().find(|e| e.is_of_file(m)).and_then(|e| e.image.get()) else {
                continue;
            };
            let _ = m.image.set(image.clone());
        }
    }

    /// Opens every module's file, and gives those whose file cannot be had (the vdso, deleted files, a core without its
    /// binaries) an image from `memory`. Called while the target runs: good for what does not change once it is loaded.
    pub fn images_from_memory(&self, memory: &dyn Memory) {
        for module in &self.modules {
            let _ = module.image_or_memory(memory);
        }
    }

    /// The same for those modules only whose file is known to be gone: the vdso and deleted files. The others are opened
    /// when something lies in them: a program that maps 150 libraries runs in a few.
    pub fn images_of_absent_files(&self, memory: &dyn Memory) {
        for module in self.modules.iter().filter(|m| m.first.deleted || !m.first.is_file()) {
            let _ = module.image_or_memory(memory);
        }
    }

    /// The mapping that holds `at`.
    #[must_use]
    pub fn mapping_at(&self, at: Addr) -> Option<&Mapping> {
        let i = self.mappings.partition_point(|m| m.end <= at);
        self.mappings.get(i).filter(|m| m.contains(at))
    }

    /// The module whose span holds `at`.
    #[must_use]
    pub fn module_at(&self, at: Addr) -> Option<(ModuleIx, &Module)> {
        let mapping = self.mapping_at(at)?;
        let i = self.modules.partition_point(|m| m.end <= at);
        // paths as plain bytes: comparing them part by part costs more than the search
        let path = mapping.path.as_ref()?.as_os_str();
        let module = self.modules.get(i).filter(|m| m.start <= at && m.path.as_os_str() == path)?;
        Some((ModuleIx(u32::try_from(i).ok()?), module))
    }

    /// A module by index.
    #[must_use]
    pub fn module(&self, ix: ModuleIx) -> Option<&Module> {
        self.modules.get(ix.0 as usize)
    }

    /// The function at a program counter: its symbol and how far into it the pc stands, in bytes.
    #[must_use]
    pub fn function_at(&self, pc: Pc) -> Option<(Symbol, u64)> {
        let (_, module) = self.module_at(pc.lookup())?;
        let image = module.image().ok()?;
        let vaddr = image.bias.to_vaddr(pc.lookup());
        let symbol = module.function_at(image, vaddr)?;
        let into = image.bias.to_vaddr(pc.addr).0.wrapping_sub(symbol.vaddr.0);
        Some((symbol, into))
    }

    /// What a person calls the place a program counter stands at. Reads no debug information: see [`Snapshot::lines`].
    #[must_use]
    pub fn describe(&self, pc: Pc) -> FrameName {
        let module = self.module_at(pc.lookup()).map(|(ix, _)| ix);
        let found = self.function_at(pc);
        let function = found.as_ref().map(|(symbol, _)| demangle(&symbol.name));
        let (symbol, offset) = found.unzip();
        FrameName { function, symbol, offset, module }
    }

    /// Where a program counter stands in the source: innermost inlined function first, last the function whose frame it
    /// is. Empty where the module has no debug information. The first question about a module opens and indexes its debug
    /// information (tens of milliseconds for a large one), so ask only for frames that will be shown.
    #[must_use]
    pub fn lines(&self, pc: Pc) -> Vec<Location> {
        let found = self.module_at(pc.lookup()).and_then(|(_, m)| m.image().ok());
        found.map_or_else(Vec::new, |image| image.elf.locate(image.bias.to_vaddr(pc.lookup())))
    }

    /// The data symbol that holds `at` exactly or by extent, as `name` and `name+offset`.
    #[must_use]
    pub fn object_at(&self, at: Addr) -> Option<(Symbol, u64, &Module)> {
        // .bss lies after the file's mapping, in the anonymous mapping that follows it
        let module = self.module_at(at).map(|(_, m)| m).or_else(|| {
            let mapping = self.mapping_at(at)?;
            let i = self.modules.partition_point(|m| m.start <= at);
            self.modules.get(i.checked_sub(1)?).filter(|m| m.end == mapping.start && mapping.path.is_none())
        })?;
        let image = module.image().ok()?;
        let vaddr = image.bias.to_vaddr(at);
        let symbol = image.elf.object_at(vaddr)?;
        let into = vaddr.0.wrapping_sub(symbol.vaddr.0);
        Some((symbol, into, module))
    }

    /// The thread with this tid (of the target's namespace): its index.
    #[must_use]
    pub fn thread_by_tid(&self, tid: Tid) -> Option<usize> {
        self.threads.iter().position(|t| t.tid == tid)
    }

    /// The thread whose TLS base is this `pthread_t`: its index.
    #[must_use]
    pub fn thread_by_pthread(&self, pthread: PthreadT) -> Option<usize> {
        self.threads.iter().position(|t| t.registers.as_ref().and_then(|r| r.tls_base) == Some(pthread.0))
    }
}

/// Groups mappings by file into modules. Only files with an executable mapping count: fonts and data files are not modules.
fn modules_of(mappings: &[Mapping], files: &Arc<dyn Files>) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    let mut executable: Vec<bool> = Vec::new();
    for m in mappings {
        let Some(path) = &m.path else { continue };
        let vdso = path.as_os_str() == "[vdso]";
        if !m.is_file() && !vdso {
            continue;
        }
        // a file may be mapped twice at different places: a new module begins where the offset falls back to 0
        match (modules.last_mut(), executable.last_mut()) {
            (Some(last), Some(exec)) if last.path == *path && m.offset != 0 => {
                last.end = m.end;
                *exec |= m.permissions.execute;
            }
            _ => {
                modules.push(Module {
                    path: path.clone(),
                    start: m.start,
                    end: m.end,
                    first: m.clone(),
                    files: Arc::clone(files),
                    image: OnceLock::new(),
                    functions: Mutex::default(),
                });
                executable.push(m.permissions.execute);
            }
        }
    }
    let mut keep = executable.into_iter();
    modules.retain(|_| keep.next().unwrap_or(false));
    modules
}

/// Memory with the read-only parts of the modules' files beneath it: what the door did not keep or the core does not
/// hold is taken from segments the program cannot write.
pub struct WithImages<'a> {
    memory: &'a (dyn Memory + Sync),
    snapshot: &'a Snapshot,
    /// Pages that were taken from files, where someone wants to know.
    used: Option<Mutex<BTreeSet<Addr>>>,
}

impl<'a> WithImages<'a> {
    /// `memory` is what the door gave.
    #[must_use]
    pub fn new(memory: &'a (dyn Memory + Sync), snapshot: &'a Snapshot) -> WithImages<'a> {
        WithImages { memory, snapshot, used: None }
    }

    /// Notes which pages come from files: a minicore takes them along.
    #[must_use]
    pub fn noting_pages(mut self) -> WithImages<'a> {
        self.used = Some(Mutex::default());
        self
    }

    /// The pages that came from files, ascending, with their bytes.
    #[must_use]
    pub fn pages_used(&self) -> Vec<(Addr, Vec<u8>)> {
        let Some(used) = &self.used else { return Vec::new() };
        let used = std::mem::take(&mut *used.lock().unwrap_or_else(PoisonError::into_inner));
        used.into_iter().filter_map(|page| Some((page, self.file_bytes(page, PAGE as usize)?.to_vec()))).collect()
    }

    fn file_bytes(&self, at: Addr, len: usize) -> Option<&[u8]> {
        let (_, module) = self.snapshot.module_at(at)?;
        let image = module.image().ok()?;
        image.elf.read_only_bytes(image.bias.to_vaddr(at), len)
    }
}

impl Memory for WithImages<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        let Err(first) = self.memory.read(at, buf) else { return Ok(()) };
        buf.copy_from_slice(self.file_bytes(at, buf.len()).ok_or(first)?);
        if let Some(used) = &self.used {
            let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
            let last = at.offset(i64::try_from(buf.len().saturating_sub(1)).unwrap_or(0)).page();
            let mut page = at.page();
            while page <= last {
                used.insert(page);
                page = page.offset(PAGE as i64);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtimes::tests::MadeUp;
    use std::fs::File;

    /// Every file is this program.
    struct Ourselves;

    impl Files for Ourselves {
        fn open(&self, _: &Mapping) -> Result<FileBytes, TargetError> {
            Ok(FileBytes::of_file(File::open("/proc/self/exe").unwrap()).unwrap())
        }

        fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
            Err(TargetError::File { path: path.display().to_string(), cause: "made up".to_owned() })
        }
    }

    fn mapping(offset: u64, inode: u64) -> Mapping {
        Mapping {
            start: Addr(0x5555_0000_0000),
            end: Addr(0x5555_0000_1000),
            offset,
            permissions: crate::target::Permissions { read: true, execute: true, ..Default::default() },
            device: (8, 1),
            inode,
            path: Some(PathBuf::from("/usr/bin/program")),
            deleted: false,
        }
    }

    #[test]
    fn where_a_file_was_loaded_only_a_mapping_of_a_segment_tells() {
        let elf = ElfFile::parse(Ourselves.open(&mapping(0, 1)).unwrap()).unwrap();
        let first = elf.segments()[0];
        assert_eq!(bias_of(&elf, &mapping(first.offset, 1)), Some(LoadBias(0x5555_0000_0000 - first.vaddr.0)));
        assert_eq!(bias_of(&elf, &mapping(1 << 40, 1)), None);
    }

    #[test]
    fn a_file_that_took_the_place_of_another_is_opened_anew() {
        let mut snapshot = MadeUp::new().snapshot;
        snapshot.files = Arc::new(Ourselves);
        let kept = |snapshot: &Snapshot| snapshot.modules[0].image.get().is_some();
        snapshot.freeze(Vec::new(), Some(vec![mapping(0, 1)]));
        snapshot.modules[0].image().unwrap();
        let more = Mapping { end: Addr(0x5555_0000_2000), ..mapping(0, 1) };
        snapshot.freeze(Vec::new(), Some(vec![more]));
        assert!(kept(&snapshot), "a longer mapping of the same file");
        snapshot.freeze(Vec::new(), Some(vec![mapping(0, 2)]));
        assert!(!kept(&snapshot));
    }
}
