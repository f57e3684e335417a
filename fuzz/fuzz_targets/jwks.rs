//! A document with keys. The body is `sasl::fuzzing::jwks`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sasl::fuzzing::jwks(data));
