//! Reports of facts that no decoder would tell, in every format.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::report(bytes));
