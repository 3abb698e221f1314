//! HSA's and HIP's objects in memory that was not made by them, or in a real core (HANGSCOPE_FUZZ_CORE) with words spoilt.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::rocm(bytes));
