//! The `kafka-protocol` crate as a peer. It decodes our messages, encodes the same bytes again, and reads our batches,
//! through codecs in C. We read its batches too.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey as PeerKey, RequestKind, ResponseKind};
use kafka_protocol::records as peer;
use model::{Compression, Timestamp};

use crate::arbitrary::{Arbitrary, Source, Visitor};
use crate::records::BatchBuilder;
use crate::{Message, messages};

/// Random values of each message and version.
const ROUNDS: u64 = 6;
/// Versions that the peer lists and refuses to decode.
const PEER_LACKS: [(&str, i16); 3] =
    [("InitProducerIdRequest", 6), ("OffsetCommitRequest", 10), ("OffsetFetchRequest", 10)];

struct Peer {
    compared: usize,
}

impl Visitor for Peer {
    fn visit<M: Message + Arbitrary + Clone + PartialEq + Default + std::fmt::Debug>(&mut self) {
        let Some(key) = M::KEY.and_then(|key| PeerKey::try_from(key).ok()) else { return };
        let known = key.valid_versions();
        for version in M::VERSIONS.filter(|version| (known.min..=known.max).contains(version)) {
            if PEER_LACKS.contains(&(M::NAME, version)) {
                continue;
            }
            let mut source = Source::new(500 + u64::from(version.cast_unsigned()));
            for _ in 0..ROUNDS {
                let ours = source.any::<M>(version).to_chunks(version).unwrap().to_bytes();
                let mut input = ours.clone();
                let mut theirs = BytesMut::new();
                let done = if M::NAME.ends_with("Request") {
                    RequestKind::decode(key, &mut input, version).and_then(|m| m.encode(&mut theirs, version))
                } else {
                    ResponseKind::decode(key, &mut input, version)
                        .and_then(|m| m.encode(&mut theirs, version))
                };
                done.unwrap_or_else(|error| panic!("{} v{version}: {error}", M::NAME));
                assert!(input.is_empty(), "{} v{version} leaves {} bytes", M::NAME, input.len());
                assert_eq!(theirs.freeze(), ours, "{} v{version}", M::NAME);
                self.compared += 1;
            }
        }
    }
}

#[test]
fn the_peer_reads_our_bytes_and_writes_the_same() {
    let mut peer = Peer { compared: 0 };
    messages::each(&mut peer);
    assert!(peer.compared > 2000, "only {} messages were compared", peer.compared);
}

const CODECS: [(Compression, peer::Compression); 5] = [
    (Compression::None, peer::Compression::None),
    (Compression::Gzip, peer::Compression::Gzip),
    (Compression::Snappy, peer::Compression::Snappy),
    (Compression::Lz4, peer::Compression::Lz4),
    (Compression::Zstd, peer::Compression::Zstd),
];

/// Half random, half repeated, and larger than a zstd block.
fn value(source: &mut Source) -> Bytes {
    let len = source.below(2000);
    let mut value = source.bytes(len);
    value.extend(value.clone());
    Bytes::from(value)
}

#[test]
fn the_peer_reads_our_batches_with_every_codec() {
    for (ours, _) in CODECS {
        let mut source = Source::new(1);
        let mut builder = BatchBuilder::new(ours).producer(5, 1, 100);
        let values: Vec<Bytes> = (0..400).map(|_| value(&mut source)).collect();
        for (index, value) in values.iter().enumerate() {
            let header = (Bytes::from(format!("h{index}")), Some(value.slice(..value.len() / 8)));
            builder.push_with_headers(Timestamp(1_000 + index as i64), None, Some(value), &[header]);
        }
        let set = peer::RecordBatchDecoder::decode(&mut builder.finish()).unwrap();
        assert_eq!(set.records.len(), values.len(), "{ours:?}");
        for (index, (record, value)) in set.records.iter().zip(&values).enumerate() {
            assert_eq!((record.offset, record.timestamp), (index as i64, 1_000 + index as i64));
            assert_eq!((record.producer_id, record.producer_epoch), (5, 1));
            assert_eq!((record.key.as_ref(), record.value.as_ref()), (None, Some(value)));
            let (key, header) = record.headers.first().unwrap();
            assert_eq!(
                (key.to_string(), header.as_deref()),
                (format!("h{index}"), Some(&value[..value.len() / 8]))
            );
        }
    }
}

#[test]
fn we_read_the_peers_batches_with_every_codec() {
    for (ours, theirs) in CODECS {
        let mut source = Source::new(2);
        let sent: Vec<peer::Record> = (0..400)
            .map(|index| peer::Record {
                transactional: false,
                control: false,
                delete_horizon: false,
                partition_leader_epoch: 0,
                producer_id: -1,
                producer_epoch: -1,
                timestamp_type: peer::TimestampType::Creation,
                offset: index,
                sequence: i32::try_from(index).unwrap(),
                timestamp: 5_000 - index,
                key: Some(Bytes::from(index.to_string())),
                value: Some(value(&mut source)),
                headers: [("a".into(), None)].into_iter().collect(),
            })
            .collect();
        let mut bytes = BytesMut::new();
        let options = peer::RecordEncodeOptions { version: 2, compression: theirs };
        peer::RecordBatchEncoder::encode(&mut bytes, &sent, &options).unwrap();
        let (header, records) = crate::records::records(&bytes.freeze(), 4 << 20).unwrap();
        assert_eq!((header.compression(), header.count), (ours, 400));
        let records = records.collect::<Result<Vec<_>, _>>().unwrap();
        for (sent, got) in sent.iter().zip(&records) {
            assert_eq!(header.base_offset.0 + i64::from(got.offset_delta), sent.offset);
            assert_eq!(header.base_timestamp.0 + got.timestamp_delta, sent.timestamp);
            assert_eq!((&got.key, &got.value), (&sent.key, &sent.value));
            assert_eq!(got.headers.iter().collect::<Vec<_>>(), [(Bytes::from_static(b"a"), None)]);
        }
    }
}
