//! On real files: this test binary, and the C library it runs on.

use super::*;
use std::fs::File;

fn open(path: &str) -> ElfFile {
    ElfFile::parse(FileBytes::map(&File::open(path).unwrap()).unwrap()).unwrap()
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
