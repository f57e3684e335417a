//! The frame decoder and the record decoder, fuzzed for a few seconds each (`FUZZ_SECONDS`, 5 by default): valid frames
//! of every message and version, damaged, and plain random bytes. `fuzz/` runs the same bodies guided by coverage.

use crate::arbitrary::{Arbitrary, Source, Visitor};
use crate::records::{BatchBuilder, fuzz_records};
use crate::{ApiKey, Message, Text, frame, fuzz_decode, messages};
use model::{Compression, Timestamp};

fn run(target: fn(&[u8]), seeds: &[Vec<u8>]) {
    let rounds = testing::fuzz::run(5, seeds, target);
    assert!(rounds > 1000, "only {rounds} rounds were run");
}

struct Frames(Vec<Vec<u8>>);

impl Visitor for Frames {
    fn visit<M: Message + Arbitrary + Clone + PartialEq + Default + std::fmt::Debug>(&mut self) {
        let api_key = M::KEY.and_then(ApiKey::from_i16).filter(|_| M::NAME.ends_with("Request"));
        let Some(api_key) = api_key else { return };
        for version in M::VERSIONS {
            let message = Source::new(version.unsigned_abs().into()).any::<M>(version);
            let frame =
                frame::encode_request(api_key, version, 1, Some(&Text::from_static("fuzz")), &message)
                    .unwrap();
            self.0.push(frame.to_bytes()[4..].to_vec());
        }
    }
}

#[test]
fn fuzz_frames() {
    let mut frames = Frames(Vec::new());
    messages::each(&mut frames);
    assert!(frames.0.len() > 200);
    run(fuzz_decode, &frames.0);
}

#[test]
fn fuzz_batches() {
    let codecs =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    let batch = |codec: Compression| {
        let mut builder = BatchBuilder::new(codec);
        for n in 0..20i64 {
            let header = (bytes::Bytes::from_static(b"h"), Some(bytes::Bytes::from_static(b"v")));
            builder.push_with_headers(Timestamp(n), Some(b"key"), Some(&[7; 30]), &[header.clone(), header]);
        }
        builder.finish().to_vec()
    };
    run(fuzz_records, &codecs.map(batch));
}
