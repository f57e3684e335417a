//! A message of PLAIN. The body is `sasl::fuzzing::plain`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sasl::fuzzing::plain(data));
