//! Two messages of SCRAM, with a zero byte between them. The body is `sasl::fuzzing::scram`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sasl::fuzzing::scram(data));
