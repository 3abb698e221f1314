//! On real files: this test binary, and the C library it runs on.

use super::*;
use std::fs::File;

fn open(path: &str) -> ElfFile {
    ElfFile::parse(FileBytes::of_file(File::open(path).unwrap()).unwrap()).unwrap()
}

fn libc() -> ElfFile {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("libc.so")).unwrap();
    open(path)
}

#[test]
fn the_c_library_names_its_functions_both_ways() {
    let libc = libc();
    let lock = libc.find_symbol("pthread_mutex_lock").unwrap();
    assert!(lock.size > 0);
    let last = Vaddr(lock.vaddr.0 + lock.size - 1);
    assert_eq!(&*libc.symbol_at(lock.vaddr).unwrap().name, "pthread_mutex_lock");
    assert_eq!(&*libc.symbol_at(last).unwrap().name, "pthread_mutex_lock");
    assert!(libc.find_symbol("pthread_mutex_loc").is_none());
    assert!(libc.find_symbol("").is_none());
    assert!(libc.build_id().is_some_and(|b| b.len() == 20));
}

#[test]
fn an_undefined_symbol_is_no_symbol() {
    let me = open("/proc/self/exe");
    assert!(me.find_symbol("pthread_mutex_lock").is_none());
}

#[test]
fn a_data_object_is_found_by_extent_and_no_function_is_one() {
    let libc = libc();
    let environ = libc.find_symbol("stdout").unwrap();
    assert_eq!(libc.object_at(Vaddr(environ.vaddr.0 + 3)).unwrap().vaddr, environ.vaddr);
    let lock = libc.find_symbol("pthread_mutex_lock").unwrap();
    assert!(libc.object_at(lock.vaddr).is_none());
    assert!(libc.symbol_at(environ.vaddr).is_none());
}

#[test]
fn read_only_bytes_are_not_given_of_writable_segments() {
    let libc = libc();
    let lock = libc.find_symbol("pthread_mutex_lock").unwrap();
    assert_eq!(libc.read_only_bytes(lock.vaddr, 16).map(<[u8]>::len), Some(16));
    let data = libc.segments().iter().find(|s| s.writable).unwrap();
    assert!(libc.read_only_bytes(data.vaddr, 8).is_none());
    assert!(libc.read_only_bytes(Vaddr(u64::MAX - 3), 8).is_none());
}

#[test]
fn every_cut_of_a_file_is_parsed_or_refused() {
    let whole = std::fs::read("/proc/self/exe").unwrap();
    for n in (0..whole.len().min(5000)).step_by(7).chain([whole.len() / 2, whole.len() - 1]) {
        let cut = whole.get(..n).unwrap().to_vec();
        if let Ok(elf) = ElfFile::parse(FileBytes::owned(cut)) {
            let _ = (elf.build_id(), elf.find_symbol("main"), elf.symbol_at(Vaddr(0x1000)));
        }
    }
}

/// The memory of this test process.
struct Myself(File);

impl crate::memory::Memory for Myself {
    fn read(&self, at: crate::units::Addr, buf: &mut [u8]) -> Result<(), crate::memory::ReadError> {
        use std::os::unix::fs::FileExt;
        self.0.read_exact_at(buf, at.0).map_err(|_| crate::memory::ReadError::Unmapped(at))
    }
}

fn mapped(what: &str) -> (crate::units::Addr, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let spans: Vec<(u64, u64)> = maps
        .lines()
        .filter(|l| l.contains(what))
        .map(|l| {
            let (from, to) = l.split_once(' ').unwrap().0.split_once('-').unwrap();
            (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap())
        })
        .collect();
    (crate::units::Addr(spans[0].0), spans.last().unwrap().1 - spans[0].0)
}

#[test]
fn the_vdso_is_read_from_memory() {
    let (base, span) = mapped("[vdso]");
    let vdso = ElfFile::from_memory(&Myself(File::open("/proc/self/mem").unwrap()), base, span).unwrap();
    let clock = vdso.find_symbol("__vdso_clock_gettime").unwrap();
    assert!(vdso.symbol_at(clock.vaddr).is_some());
    let row = vdso.unwind_row(clock.vaddr, &mut RowScratch::new()).unwrap();
    assert_eq!(row.cfa, CfaRule::Register(crate::arch::x86_64::RSP, 8));
    assert!(vdso.build_id().is_some());
}

#[test]
fn a_library_in_memory_reads_as_its_file_does() {
    let (base, span) = mapped("libc.so");
    let memory = ElfFile::from_memory(&Myself(File::open("/proc/self/mem").unwrap()), base, span).unwrap();
    let file = libc();
    assert_eq!(memory.build_id(), file.build_id());
    assert_eq!(memory.segments(), file.segments());
    for name in ["pthread_mutex_lock", "qsort", "environ", "pthread_cond_wait", "clone"] {
        assert_eq!(memory.find_symbol(name), file.find_symbol(name), "{name}");
    }
    let mut scratch = RowScratch::new();
    let qsort = file.find_symbol("qsort").unwrap();
    for into in 0..qsort.size {
        let at = Vaddr(qsort.vaddr.0 + into);
        assert_eq!(memory.unwind_row(at, &mut scratch), file.unwind_row(at, &mut scratch));
    }
    assert_eq!(memory.symbol_at(qsort.vaddr), file.symbol_at(qsort.vaddr));
}

#[test]
fn without_section_headers_the_dynamic_section_and_the_search_table_do() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("libc.so")).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let bare = ElfFile::parse(FileBytes::owned(bytes)).unwrap();
    let whole = libc();
    let lock = whole.find_symbol("pthread_mutex_lock").unwrap();
    assert_eq!(bare.find_symbol("pthread_mutex_lock"), Some(lock.clone()));
    assert_eq!(bare.build_id(), whole.build_id());
    let mut scratch = RowScratch::new();
    let row = bare.unwind_row(lock.vaddr, &mut scratch);
    assert!(row.is_some());
    assert_eq!(row, whole.unwind_row(lock.vaddr, &mut scratch));
}

#[test]
fn a_search_table_and_a_linear_index_find_the_same_rows() {
    let libc = libc();
    let section = libc.headers.section(&libc.bytes, ".eh_frame").unwrap();
    let range = libc.headers.bytes_of(&libc.bytes, section).unwrap();
    let linear = FrameSection::eh(libc.bytes.clone(), range, section.vaddr, None);
    let code = libc.segments().iter().find(|s| s.executable).unwrap();
    let mut scratch = RowScratch::new();
    let mut rows = 0;
    for at in (code.vaddr.0..code.vaddr.0 + code.memory_size).step_by(97).map(Vaddr) {
        let row = libc.unwind_row(at, &mut scratch);
        assert_eq!(row, linear.row(at, &mut scratch), "{at:?}");
        assert_eq!(row.as_ref().map(|r| r.covers.clone()), libc.frame_description_at(at));
        rows += usize::from(row.is_some());
    }
    assert!(rows > 1000);
}

/// A small generator of numbers, the same in every run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % below.max(1) as u64).unwrap()
    }
}

/// A file damaged in `part` must be refused or answer; never panic, hang or ask for the moon.
fn damage(
    bytes: &[u8],
    part: Range<usize>,
    numbers: &mut Numbers,
    rounds: usize,
    ask: impl Fn(&ElfFile, &mut Numbers),
) {
    for _ in 0..rounds {
        let mut bytes = bytes.to_vec();
        for _ in 0..1 + numbers.next(8) {
            let at = part.start + numbers.next(part.len());
            let values = [0, 0xff, 0x7f, 0x80, numbers.next(256)];
            bytes[at] = u8::try_from(values[numbers.next(values.len())]).unwrap();
        }
        if let Ok(elf) = ElfFile::parse(FileBytes::owned(bytes)) {
            ask(&elf, numbers);
        }
    }
}

#[test]
fn damaged_files_are_refused_or_answer() {
    let libc = libc();
    let whole = libc.bytes.all().unwrap().to_vec();
    let mut numbers = Numbers(1);
    let code = libc.segments().iter().find(|s| s.executable).copied().unwrap();
    let somewhere = |n: &mut Numbers| Vaddr(code.vaddr.0 + n.next(usize::try_from(code.memory_size).unwrap()) as u64);
    let everything = |elf: &ElfFile, n: &mut Numbers| {
        let mut scratch = RowScratch::new();
        for _ in 0..4 {
            let at = somewhere(n);
            let _ = (elf.unwind_row(at, &mut scratch), elf.symbol_at(at), elf.read_only_bytes(at, n.next(100)));
        }
        let _ = (elf.build_id(), elf.object_at(somewhere(n)), elf.find_symbol("qsort"), elf.find_symbol("no such"));
    };
    let rows = |elf: &ElfFile, n: &mut Numbers| {
        let mut scratch = RowScratch::new();
        for _ in 0..500 {
            let _ = elf.unwind_row(somewhere(n), &mut scratch);
        }
    };
    let part = |name: &str| libc.headers.bytes_of(&libc.bytes, libc.headers.section(&libc.bytes, name)?);
    damage(&whole, 0..64 + 14 * 56, &mut numbers, 60, everything);
    for name in [".dynsym", ".gnu.hash", ".gnu.version", ".note.gnu.build-id", ".dynamic"] {
        damage(&whole, part(name).unwrap(), &mut numbers, 10, everything);
    }
    for name in [".eh_frame_hdr", ".eh_frame"] {
        damage(&whole, part(name).unwrap(), &mut numbers, 40, rows);
    }
    // section headers
    damage(&whole, whole.len() - 64 * 64..whole.len(), &mut numbers, 30, everything);
}

#[test]
fn damaged_debug_information_answers_or_does_not() {
    let whole = std::fs::read("/proc/self/exe").unwrap();
    let me = ElfFile::parse(FileBytes::owned(whole.clone())).unwrap();
    let mut numbers = Numbers(2);
    let at = me.headers.section(&me.bytes, ".text").map(|s| (s.vaddr, s.size)).unwrap();
    let ask = |elf: &ElfFile, n: &mut Numbers| {
        for _ in 0..20 {
            let _ = elf.locate(Vaddr(at.0 + n.next(usize::try_from(at.1).unwrap()) as u64));
        }
    };
    for name in [".debug_info", ".debug_abbrev", ".debug_line", ".debug_ranges", ".debug_str"] {
        let Some(section) = me.headers.section(&me.bytes, name) else { continue };
        let part = me.headers.bytes_of(&me.bytes, section).unwrap();
        // damage near the start, where all units pass
        damage(&whole, part.start..part.start + part.len().min(4096), &mut numbers, 2, ask);
    }
}
