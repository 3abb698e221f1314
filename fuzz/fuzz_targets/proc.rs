//! The files of `/proc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::proc(bytes));
