//! The headers, notes and whole analysis of a core, from its bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::core(bytes));
