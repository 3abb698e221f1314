//! glibc: its mutexes, read-write locks, condition variables, semaphores, barriers, joins, loader locks and inner locks.
//!
//! A waiting thread's registers give a futex word; the bytes around the word say what it is part of, and who owns that.
//! No debug symbols are needed. Names of functions confirm, or name what has no shape of its own. Knows nothing of
//! interpreters or of what the program does with its locks.

mod classify;
mod frames;
mod inner;
mod loader;
mod mutex;
mod objects;
mod owners;

use super::futex::FutexWait;
use super::{Decoder, Held, Runtime, View};
use crate::arch::x86_64::CALLEE_SAVED;
use crate::facts::{Facts, Gap, RuntimeNote};
use crate::layout::{Layouts, StructLayout, Subject, Table, Version};
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::{Module, Snapshot};
use crate::units::{Addr, PAGE};
use loader::RtldGlobal;

/// The GNU C library, dynamic or static.
pub struct Glibc;

impl Runtime for Glibc {
    fn name(&self) -> &'static str {
        "glibc"
    }

    fn find(&self, snapshot: &Snapshot, memory: &dyn Memory) -> Option<Box<dyn Decoder>> {
        GlibcDecoder::find(snapshot, memory).map(|d| Box::new(d) as Box<dyn Decoder>)
    }
}

/// What was found of glibc before the target was held.
struct GlibcDecoder {
    version: Option<String>,
    subject: Subject,
    layouts: Structs,
    global: Option<RtldGlobal>,
    /// The standard streams: where the `FILE` lies, its name.
    streams: Vec<(Addr, &'static str)>,
    /// Whether libc is a library of its own, so that a frame can be told to lie outside it.
    dynamic: bool,
    /// Whether the process runs on another libc, of which only that is told.
    foreign: bool,
    gaps: Vec<Gap>,
}

/// The layouts that apply.
struct Structs {
    mutex: &'static StructLayout,
    pthread: &'static StructLayout,
    /// Those a join may be read by: one, or every one where the version is unknown.
    joins: Vec<&'static StructLayout>,
    condvars: Vec<&'static StructLayout>,
    rwlock: Option<&'static StructLayout>,
    semaphore: Option<&'static StructLayout>,
    barrier: Option<&'static StructLayout>,
    io_lock: Option<&'static StructLayout>,
    file: Option<&'static StructLayout>,
    locked_file: Option<&'static StructLayout>,
    heap: Option<&'static StructLayout>,
}

impl Structs {
    fn choose(table: &'static Table, subject: &Subject) -> Option<Structs> {
        // of an unknown version the newest layout, which stands first: what is read by it must look right anyway
        let unknown = subject.version.is_none();
        let fits = |s: &&StructLayout| unknown || s.applies.to(subject);
        let one = |name: &str| table.structs.iter().filter(|s| s.name == name).find(fits);
        Some(Structs {
            mutex: one("pthread_mutex_t")?,
            pthread: if unknown { table.structs.iter().rfind(|s| s.name == "pthread") } else { one("pthread") }?,
            joins: table.structs.iter().filter(|s| s.name == "pthread").filter(fits).collect(),
            condvars: table.structs.iter().filter(|s| s.name == "pthread_cond_t").filter(fits).collect(),
            rwlock: one("pthread_rwlock_t"),
            semaphore: one("sem_t"),
            barrier: one("pthread_barrier_t"),
            io_lock: one("_IO_lock_t"),
            file: one("_IO_FILE"),
            locked_file: one("locked_FILE"),
            heap: one("heap_info"),
        })
    }
}

impl GlibcDecoder {
    fn find(snapshot: &Snapshot, memory: &dyn Memory) -> Option<GlibcDecoder> {
        let libc = snapshot.modules.iter().find(|m| frames::is_libc(m.name()));
        let loader = snapshot.modules.iter().find(|m| frames::is_loader(m.name()));
        let dynamic = libc.is_some();
        let mut gaps = Vec::new();
        // a static program carries glibc in itself
        let home = match libc {
            Some(libc) => libc,
            None => {
                if let Some(musl) = snapshot.modules.iter().find(|m| is_musl(m.name())) {
                    gaps.push(Gap(format!(
                        "{} is musl libc, whose locks hangscope does not read yet; futexes are named by address",
                        musl.path.display()
                    )));
                    return GlibcDecoder::without_layouts(gaps);
                }
                let exe = program(snapshot).filter(|_| loader.is_none()).filter(|exe| is_static_glibc(exe))?;
                gaps.push(Gap(format!(
                    "{} is linked statically: the loader's locks have no address there and are not read",
                    exe.path.display()
                )));
                exe
            }
        };
        if let Err(why) = home.image() {
            gaps.push(Gap(format!("glibc's version and inner locks are unknown: {why}")));
        }
        let version = read_version(home, memory);
        let subject = Subject::version(version.as_deref().and_then(Version::parse)).with("arch", "x86_64");
        let global = loader.and_then(find_global);
        if let (true, None) = (dynamic, global) {
            let why = match loader {
                None => "no ld.so is mapped".to_owned(),
                Some(ld) => ld.image().err().map_or_else(|| "_rtld_global is not in its symbols".into(), str::to_owned),
            };
            gaps.push(Gap(format!("the loader's locks were not found: {why}")));
        }
        let stream = |symbol: &str, name| Some((home.find_symbol(symbol)?.0, name));
        let streams = [
            stream("_IO_2_1_stdin_", "stdin"),
            stream("_IO_2_1_stdout_", "stdout"),
            stream("_IO_2_1_stderr_", "stderr"),
        ];
        Some(GlibcDecoder {
            layouts: Structs::choose(Layouts::glibc(), &subject)?,
            version,
            subject,
            global,
            streams: streams.into_iter().flatten().collect(),
            dynamic,
            foreign: false,
            gaps,
        })
    }

    /// A process of another libc: only its gap is told. Its threads' futexes are the kernel's to name.
    fn without_layouts(gaps: Vec<Gap>) -> Option<GlibcDecoder> {
        let subject = Subject::default();
        Some(GlibcDecoder {
            layouts: Structs::choose(Layouts::glibc(), &subject)?,
            version: None,
            subject,
            global: None,
            streams: Vec::new(),
            dynamic: false,
            foreign: true,
            gaps,
        })
    }
}

/// Whether a module file is musl's: its loader, which is its libc, or the same by the name it is installed under.
fn is_musl(name: &str) -> bool {
    name == "libc.so" || name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
}

/// `_rtld_global` and its size, from the loader's dynamic symbols.
fn find_global(loader: &Module) -> Option<RtldGlobal> {
    let (at, symbol) = loader.find_symbol("_rtld_global")?;
    (symbol.size > 0).then_some(RtldGlobal { at, size: symbol.size })
}

/// The version text: `__nptl_version` (exported since 2.34), else what `gnu_get_libc_version` returns.
fn read_version(libc: &Module, memory: &dyn Memory) -> Option<String> {
    let image = libc.image().ok()?;
    let text_at = |at: Addr| {
        let vaddr = image.bias.to_vaddr(at);
        let bytes = match image.elf.read_only_bytes(vaddr, 16) {
            Some(bytes) => bytes.to_vec(),
            None => memory.read_vec(at, 16).ok()?,
        };
        let text = bytes.split(|b| *b == 0).next()?;
        let text = std::str::from_utf8(text).ok()?.trim();
        Version::parse(text).filter(|v| v.part(0) == 2).map(|_| text.to_owned())
    };
    if let Some(text) = libc.find_symbol("__nptl_version").and_then(|(at, _)| text_at(at)) {
        return Some(text);
    }
    by_version_function(libc, &text_at)
}

/// What `gnu_get_libc_version` returns: `lea rax, [rip + disp32]; ret`, with or without `endbr64` before it.
fn by_version_function(libc: &Module, text_at: &dyn Fn(Addr) -> Option<String>) -> Option<String> {
    let image = libc.image().ok()?;
    let (at, symbol) = libc.find_symbol("gnu_get_libc_version")?;
    let code = image.elf.read_only_bytes(symbol.vaddr, 12)?;
    let skip = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
    let lea = code.get(skip..skip + 7)?;
    let disp = i32::from_le_bytes(lea.strip_prefix(&[0x48, 0x8d, 0x05])?.try_into().ok()?);
    let next = at.checked_add(skip as u64 + 7)?;
    text_at(next.offset(i64::from(disp)))
}

/// What only glibc's code says; a static program keeps neither its banner nor, stripped, its symbols.
/// Source: glibc debug/fortify and stdio messages since 2.3x, elf/dl-tunables.list since 2.26, and what 2.25 and older said.
const SAYINGS: [&[u8]; 3] = [b"Fatal glibc error: ", b"glibc.malloc.", b"*** glibc detected"];
/// Bytes of a segment searched for them.
const MAX_SEARCHED: usize = 64 << 20;

/// The program itself: the module its entry point lies in.
fn program(snapshot: &Snapshot) -> Option<&Module> {
    snapshot.process.entry().and_then(|at| snapshot.module_at(at)).map(|(_, m)| m).or(snapshot.modules.first())
}

/// Whether a program without a libc beside it carries glibc in itself.
fn is_static_glibc(exe: &Module) -> bool {
    let Ok(image) = exe.image() else { return false };
    let says = |bytes: &[u8]| SAYINGS.iter().any(|text| bytes.windows(text.len()).any(|w| w == *text));
    // other libcs start programs by a `__libc_start_main` too, but have no such stream
    exe.find_symbol("_IO_2_1_stdout_").is_some()
        || image.elf.segments().iter().filter(|s| !s.writable).any(|segment| {
            let len = usize::try_from(segment.file_size).ok().filter(|len| *len <= MAX_SEARCHED);
            len.and_then(|len| image.elf.read_only_bytes(segment.vaddr, len)).is_some_and(says)
        })
}

/// Bytes before and after a futex word that any object it is part of may fill: a `FILE` before its lock, a mutex after.
const BEFORE: u64 = 0xe0;
const AFTER: u64 = 0x40;

impl Decoder for GlibcDecoder {
    fn gather(&self, held: &Held<'_>) {
        let mut wanted = Vec::new();
        if let Some(global) = self.global {
            wanted.push((global.at, global.len()));
        }
        let file = self.layouts.file.and_then(|f| f.size).and_then(|s| usize::try_from(s).ok()).unwrap_or(0);
        wanted.extend(self.streams.iter().map(|(at, _)| (*at, file)));
        let last = self.layouts.pthread.fields().map(|(_, f)| f.end()).max().unwrap_or(0);
        let pthread = usize::try_from(last).unwrap_or(0);
        for thread in held.threads {
            let base = thread.registers.as_ref().and_then(|r| r.tls_base).filter(|b| *b != 0);
            wanted.extend(base.map(|b| (Addr(b), pthread)));
            let Some(futex) = thread.syscall.and_then(|call| {
                // a restarted call may be a futex: nothing tells before the code is read
                FutexWait::parse(&crate::arch::Syscall { number: call.number.or(Some(202)), ..call })
            }) else {
                continue;
            };
            wanted.extend(around(futex.at));
            wanted.extend(futex.limit().map(|at| (at, 16)));
            if let Some(heap) = heap_of(futex.at) {
                wanted.push((heap, 8));
            }
            if held.snapshot.module_at(futex.at).is_some_and(|(_, m)| frames::is_libc(m.name())) {
                wanted.push((futex.at, objects::ARENA as usize));
            }
            let sp = thread.registers.as_ref().and_then(|r| r.sp()).map(Addr);
            wanted.extend(self.condition_mutexes(held.memory, &futex, sp).map(|at| (at, 64)));
            // a variable of glibc's own: what it sleeps for stands in registers, its own or those it has put aside
            if sp.is_some_and(|sp| sp <= futex.at && futex.at < sp.offset(objects::PAIR_SEARCH as i64)) {
                let saved = thread.registers.iter().flat_map(|r| CALLEE_SAVED.map(|reg| r.file.read(reg)));
                let words = sp.map(|sp| objects::stack_words(held.memory, sp)).unwrap_or_default();
                let values = saved.flatten().map(Addr).chain(words);
                wanted.extend(values.flat_map(|v| mutex::starts(self.layouts.mutex, v)).map(|at| (at, 40)));
            }
        }
        wanted.retain(|(at, len)| *len > 0 && held.snapshot.mapping_at(*at).is_some());
        wanted.sort_unstable();
        wanted.dedup();
        held.memory.expect(&wanted);
    }

    fn decode(&self, view: &View<'_>) -> Facts {
        let mut facts = Facts { gaps: self.gaps.clone(), ..Facts::default() };
        if self.foreign {
            return facts;
        }
        facts.runtime = Some(RuntimeNote { name: "glibc", version: self.version.clone(), build: None });
        classify::Scene::new(self, view).decode(&mut facts);
        facts
    }
}

impl GlibcDecoder {
    /// The mutexes a condition waiter's stack pairs with the condition, if the futex is a condition's.
    fn condition_mutexes(
        &self,
        memory: &dyn Memory,
        futex: &FutexWait,
        sp: Option<Addr>,
    ) -> impl Iterator<Item = Addr> + use<> {
        let bases: Vec<Addr> = objects::condvar_bases(&self.layouts.condvars, futex).map(|(base, _)| base).collect();
        let pairs = sp.map(|sp| objects::find_pairs(memory, sp, &bases)).unwrap_or_default();
        pairs.into_iter().map(|(_, _, mutex)| mutex)
    }
}

/// What to read around a futex word, cut at page ends so that one missing page does not cost the other.
fn around(at: Addr) -> impl Iterator<Item = (Addr, usize)> {
    let from = at.0.saturating_sub(BEFORE);
    let to = at.0.saturating_add(AFTER);
    let edge = Addr(to).page().0;
    let pieces = if from < edge && edge < to { [(from, edge), (edge, to)] } else { [(from, to), (to, to)] };
    pieces.into_iter().filter_map(|(a, b)| Some((Addr(a), usize::try_from(b - a).ok()?)))
}

/// The start of the malloc heap an arena's word would lie in, when its place in the heap fits. Heaps are aligned to 64 MiB
/// (glibc malloc/arena.c, `HEAP_MAX_SIZE` on 64 bits).
fn heap_of(at: Addr) -> Option<Addr> {
    const HEAP: u64 = 64 << 20;
    (at.0 % HEAP < PAGE).then_some(Addr(at.0 - at.0 % HEAP)).filter(|heap| !heap.is_null())
}

#[cfg(test)]
mod tests;
