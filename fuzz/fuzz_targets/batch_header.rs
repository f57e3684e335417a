//! Record batch headers and their CRC. The body is `storage::fuzzing::batch_header`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| storage::fuzzing::batch_header(data));
