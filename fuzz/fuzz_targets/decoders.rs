//! What a segment's footer holds: batch indexes, producers, the stream table, headers. The body is `storage::fuzzing::decoders`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| storage::fuzzing::decoders(data));
