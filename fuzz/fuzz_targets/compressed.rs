//! Compressed cores: what is in them, and what they only claim.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::compressed(bytes));
