//! One ELF file: symbols, lines, and the call frame information of every address asked for.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::elf(bytes));
