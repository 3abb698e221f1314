//! A CPython in memory that was not made by one, or in a real core (HANGSCOPE_FUZZ_CORE) with words spoilt.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::cpython(bytes));
