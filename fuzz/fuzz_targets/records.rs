//! The records of a batch; see `wire::records::fuzz_records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::records::fuzz_records(bytes));
