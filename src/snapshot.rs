//! One process at one instant: identity, threads, mappings, modules. Frozen once made.
//!
//! Knows nothing of locks or runtimes.

use crate::elf::{ElfFile, Symbol};
use crate::memory::{Memory, ReadError};
use crate::target::{Files, Mapping, Process, Target, TargetError, ThreadState};
use crate::units::{Addr, LoadBias, ModuleIx, PAGE, PthreadT, Tid};
use std::collections::BTreeSet;
use std::path::PathBuf;
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
}

/// A module's parsed file and where it was loaded.
pub struct Image {
    /// The file.
    pub elf: ElfFile,
    /// What the loader added to its addresses.
    pub bias: LoadBias,
}

impl Module {
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
        Some(Image { elf, bias })
    }

    fn open(&self) -> Result<Image, String> {
        let bytes = self.files.open(&self.first).map_err(|e| e.to_string())?;
        let elf = ElfFile::parse(bytes).map_err(|e| format!("{}: {e}", self.path.display()))?;
        let bias = bias_of(&elf, &self.first).ok_or_else(|| format!("{}: no loadable segment", self.path.display()))?;
        Ok(Image { elf, bias })
    }

    /// The parts of the file another machine needs to unwind and name without it, by their address in the process.
    #[must_use]
    pub fn analysis_bytes(&self) -> Vec<(Addr, Vec<u8>)> {
        let Ok(image) = self.image() else { return Vec::new() };
        image.elf.analysis_parts().into_iter().map(|(at, bytes)| (image.bias.to_addr(at), bytes.to_vec())).collect()
    }

    /// The symbol named `name`, as an address of the target.
    #[must_use]
    pub fn find_symbol(&self, name: &str) -> Option<(Addr, Symbol)> {
        let image = self.image().ok()?;
        let symbol = image.elf.find_symbol(name)?;
        Some((image.bias.to_addr(symbol.vaddr), symbol))
    }
}

/// The load bias of a file from one of its mappings: the mapping's address less the address the file gives that offset.
fn bias_of(elf: &ElfFile, mapping: &Mapping) -> Option<LoadBias> {
    let segment = elf
        .segments()
        .iter()
        .find(|s| {
            let from = s.offset & !(PAGE - 1);
            from <= mapping.offset && mapping.offset < s.offset.saturating_add(s.file_size.max(1))
        })
        .or(elf.segments().first())?;
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
        Ok(Snapshot { process: target.process().clone(), threads: Vec::new(), mappings, modules, files })
    }

    /// Takes the threads of the instant. Where the mappings changed meanwhile, the new ones are taken and modules already
    /// opened are kept.
    pub fn freeze(&mut self, threads: Vec<ThreadState>, mappings: Option<Vec<Mapping>>) {
        self.threads = threads;
        if let Some(new) = mappings.filter(|m| *m != self.mappings) {
            let mut modules = modules_of(&new, &self.files);
            for m in &mut modules {
                if let Some(old) = self.modules.iter_mut().find(|o| o.start == m.start && o.path == m.path) {
                    std::mem::swap(&mut m.image, &mut old.image);
                }
            }
            self.mappings = new;
            self.modules = modules;
        }
    }

    /// Opens every module's file, and gives those whose file cannot be had (the vdso, deleted files, a core without its
    /// binaries) an image from `memory`. Called while the target runs: good for what does not change once it is loaded.
    pub fn images_from_memory(&self, memory: &dyn Memory) {
        for module in &self.modules {
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
        let module = self.modules.get(i).filter(|m| m.start <= at && Some(&m.path) == mapping.path.as_ref())?;
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
        let symbol = image.elf.symbol_at(vaddr)?;
        let into = image.bias.to_vaddr(pc.addr).0.wrapping_sub(symbol.vaddr.0);
        Some((symbol, into))
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
        used.into_iter().filter_map(|page| Some((page, self.from_file(page, PAGE as usize)?.to_vec()))).collect()
    }

    fn from_file(&self, at: Addr, len: usize) -> Option<&[u8]> {
        let (_, module) = self.snapshot.module_at(at)?;
        let image = module.image().ok()?;
        image.elf.read_only_bytes(image.bias.to_vaddr(at), len)
    }
}

impl Memory for WithImages<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        let Err(first) = self.memory.read(at, buf) else { return Ok(()) };
        buf.copy_from_slice(self.from_file(at, buf.len()).ok_or(first)?);
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
