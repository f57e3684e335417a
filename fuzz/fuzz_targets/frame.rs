//! The frame decoder; see `wire::fuzz_decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::fuzz_decode(bytes));
