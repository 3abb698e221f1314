//! A debugger's answers, right and wrong ones, and the whole analysis of what they tell.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hangscope_fuzz::bridge(bytes));
