//! The first message of OAUTHBEARER, and its token. The body is `sasl::fuzzing::oauthbearer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sasl::fuzzing::oauthbearer(data));
