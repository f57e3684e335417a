//! Opening and reading a damaged log: never a panic, never bytes that were not written, never a silent loss. The body is `storage::fuzzing::recovery`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| storage::fuzzing::recovery(data));
