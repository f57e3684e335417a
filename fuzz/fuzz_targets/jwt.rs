//! A signed token. The body is `sasl::fuzzing::jwt`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sasl::fuzzing::jwt(data));
