//! Every message at every version: an encoded message decodes to an equal one, and a hostile one is an error.

use bytes::Bytes;

use crate::arbitrary::{Arbitrary, Source, Visitor};
use crate::{ApiKey, DecodeError, EncodeError, Message, Reader, Text, frame, messages};

/// Random values of each message and version.
const ROUNDS: u64 = 12;

struct RoundTrip;

impl Visitor for RoundTrip {
    fn visit<M: Message + Arbitrary + Clone + PartialEq + Default + std::fmt::Debug>(&mut self) {
        for version in M::VERSIONS {
            let mut source = Source::new(version.cast_unsigned().into());
            let values = (0..ROUNDS).map(|_| source.any::<M>(version)).chain([M::default()]);
            for value in values {
                let encoded =
                    value.to_chunks(version).unwrap_or_else(|e| panic!("{} v{version}: {e}", M::NAME));
                let encoded = encoded.to_bytes();
                let mut reader = Reader::new(encoded.clone());
                let decoded = M::decode(&mut reader, version)
                    .unwrap_or_else(|e| panic!("{} v{version}: {e}\n{value:?}\n{encoded:?}", M::NAME));
                assert_eq!(decoded, value, "{} v{version}", M::NAME);
                reader.expect_end().unwrap();
                assert_eq!(decoded.to_chunks(version).unwrap().to_bytes(), encoded);
            }
        }
    }
}

#[test]
fn every_message_comes_back_at_every_version() {
    messages::each(&mut RoundTrip);
}

#[test]
fn the_table_and_the_api_keys_agree() {
    assert!(messages::MESSAGES.len() > 150);
    for &key in ApiKey::ALL {
        assert_eq!(ApiKey::from_i16(key as i16), Some(key));
        let of_key: Vec<_> = messages::MESSAGES.iter().filter(|info| info.key == Some(key as i16)).collect();
        assert_eq!(of_key.len(), 2, "{}", key.name());
        let request = of_key.iter().find(|info| info.is_request).unwrap();
        assert_eq!(request.name, format!("{}Request", key.name()));
        assert_eq!(request.version_min..=request.version_max, key.valid_versions());
    }
    assert_eq!(ApiKey::from_i16(4), None);
    assert_eq!(ApiKey::Produce.valid_versions(), 3..=13);
    assert_eq!(
        (ApiKey::Fetch.first_flexible_version(), ApiKey::SaslHandshake.first_flexible_version()),
        (12, i16::MAX)
    );
    assert_eq!((ApiKey::Fetch.request_header_version(11), ApiKey::Fetch.request_header_version(12)), (1, 2));
    assert_eq!(
        (ApiKey::Fetch.response_header_version(11), ApiKey::Fetch.response_header_version(12)),
        (0, 1)
    );
    assert_eq!(
        (ApiKey::ApiVersions.request_header_version(4), ApiKey::ApiVersions.response_header_version(4)),
        (2, 0)
    );
    assert!(ApiKey::InitProducerId.latest_version_unstable() && !ApiKey::Fetch.latest_version_unstable());
}

#[test]
fn defaults_are_the_schemas() {
    let fetch = messages::FetchRequest::default();
    assert_eq!(
        (fetch.replica_id, fetch.max_bytes, fetch.session_epoch, fetch.cluster_id),
        (-1, i32::MAX, -1, None)
    );
    assert_eq!(messages::MetadataRequest::default().topics, Some(Vec::new()));
    assert!(messages::MetadataRequest::default().allow_auto_topic_creation);
    assert_eq!(messages::ProduceRequest::default().transactional_id, None);
}

#[test]
fn a_value_that_a_version_cannot_carry_is_refused_unless_it_may_be_dropped() {
    let mut request = messages::FetchRequest { rack_id: Text::from("a"), ..Default::default() };
    request.to_chunks(4).expect("the rack is ignorable");
    request.forgotten_topics_data.push(Default::default());
    let field = "FetchRequest.ForgottenTopicsData";
    assert_eq!(request.to_chunks(4).unwrap_err(), EncodeError::Unsupported { field, version: 4 });
    let all = messages::MetadataRequest { topics: None, ..Default::default() };
    assert_eq!(all.to_chunks(0).unwrap_err(), EncodeError::Null { field: "MetadataRequest.Topics" });
    all.to_chunks(1).unwrap();
    let message = "FetchRequest";
    assert_eq!(request.to_chunks(19).unwrap_err(), EncodeError::UnsupportedVersion { message, version: 19 });
}

#[test]
fn frames_come_back_with_their_headers() {
    let body =
        messages::ApiVersionsRequest { client_software_name: Text::from("test"), ..Default::default() };
    let client = Text::from("client");
    let sent = frame::encode_request(ApiKey::ApiVersions, 3, 7, Some(&client), &body).unwrap().to_bytes();
    assert_eq!(sent[..4], i32::try_from(sent.len() - 4).unwrap().to_be_bytes());
    let mut reader = Reader::new(sent.slice(4..));
    let header = frame::decode_request_header(&mut reader).unwrap();
    let expected = frame::RequestHeader {
        api_key: ApiKey::ApiVersions,
        version: 3,
        correlation_id: 7,
        client_id: Some(client),
    };
    assert_eq!(header, expected);
    assert_eq!(messages::ApiVersionsRequest::decode(&mut reader, 3).unwrap(), body);
    reader.expect_end().unwrap();

    let answer = messages::HeartbeatResponse { error_code: 27, ..Default::default() };
    for version in ApiKey::Heartbeat.valid_versions() {
        let sent = frame::encode_response(9, ApiKey::Heartbeat, version, &answer).unwrap().to_bytes();
        let mut reader = Reader::new(sent.slice(4..));
        assert_eq!(frame::decode_response_header(&mut reader, ApiKey::Heartbeat, version), Ok(9));
        assert_eq!(messages::HeartbeatResponse::decode(&mut reader, version).unwrap(), answer);
        reader.expect_end().unwrap();
    }

    let unknown = Bytes::from_static(b"\x7f\xff\x00\x02\x00\x00\x00\x05");
    let error = DecodeError::UnknownApiKey { key: 0x7fff, version: 2, correlation_id: 5 };
    assert_eq!(frame::decode_request_header(&mut Reader::new(unknown)), Err(error));
}

#[test]
fn record_data_is_shared_and_never_copied() {
    let data = Bytes::from(vec![1; 100_000]);
    let partition =
        messages::fetch_response::PartitionData { records: Some(data.clone().into()), ..Default::default() };
    let topic = messages::fetch_response::FetchableTopicResponse {
        partitions: vec![partition],
        ..Default::default()
    };
    let response = messages::FetchResponse { responses: vec![topic], ..Default::default() };
    let chunks = frame::encode_response(1, ApiKey::Fetch, 13, &response).unwrap();
    assert!(chunks.parts.iter().any(|part| part.as_ptr() == data.as_ptr() && part.len() == data.len()));
    let frame = chunks.to_bytes();
    let mut reader = Reader::new(frame.slice(4..));
    frame::decode_response_header(&mut reader, ApiKey::Fetch, 13).unwrap();
    let decoded = messages::FetchResponse::decode(&mut reader, 13).unwrap();
    let records = decoded.responses[0].partitions[0].records.as_ref().unwrap();
    assert!(frame.as_ptr_range().contains(&records.first.as_ptr()));
}

/// Decodes hostile variants of valid messages. A variant that still decodes must encode.
struct Hostile;

fn decode<M: Message>(bytes: Vec<u8>, version: i16) -> Result<(), DecodeError> {
    let value = M::decode(&mut Reader::new(Bytes::from(bytes)), version)?;
    value
        .to_chunks(version)
        .unwrap_or_else(|e| panic!("{} v{version} decodes but does not encode: {e}", M::NAME));
    Ok(())
}

impl Visitor for Hostile {
    fn visit<M: Message + Arbitrary + Clone + PartialEq + Default + std::fmt::Debug>(&mut self) {
        for version in M::VERSIONS {
            let mut source = Source::new(77 + u64::from(version.cast_unsigned()));
            let valid = (0..20)
                .map(|_| source.any::<M>(version).to_chunks(version).unwrap().to_bytes())
                .filter(|bytes| bytes.len() < 1500)
                .max_by_key(Bytes::len)
                .unwrap_or_else(|| M::default().to_chunks(version).unwrap().to_bytes());
            for len in 0..valid.len() {
                assert!(
                    decode::<M>(valid[..len].to_vec(), version).is_err(),
                    "{} v{version} cut to {len}",
                    M::NAME
                );
            }
            for at in 0..valid.len() {
                let mut flipped = valid.to_vec();
                flipped[at] ^= 1 << source.below(8);
                let _ = decode::<M>(flipped, version);
                // 2^31 - 1, -2^31 and 2^32 - 1 as lengths of each kind.
                let lie = [&b"\x7f\xff\xff\xff"[..], b"\x80\0\0\0", b"\xff\xff\xff\xff\x0f"][at % 3];
                let mut lying = valid[..at].to_vec();
                lying.extend_from_slice(lie);
                lying.extend_from_slice(valid.get(at + lie.len()..).unwrap_or_default());
                let _ = decode::<M>(lying, version);
            }
            for _ in 0..40 {
                let len = source.below(200);
                let _ = decode::<M>(source.bytes(len), version);
            }
        }
        for version in [i16::MIN, -1, *M::VERSIONS.start() - 1, *M::VERSIONS.end() + 1, i16::MAX] {
            let error = decode::<M>(vec![0; 64], version).unwrap_err();
            assert_eq!(error, DecodeError::UnsupportedVersion { message: M::NAME, version });
        }
    }
}

#[test]
fn hostile_bytes_never_panic_and_a_message_cut_short_is_always_an_error() {
    messages::each(&mut Hostile);
}

#[test]
fn two_billion_topics_are_refused_before_they_are_allocated() {
    let body = Bytes::from_static(b"\x7f\xff\xff\xff");
    let error = messages::MetadataRequest::decode(&mut Reader::new(body), 1).unwrap_err();
    assert_eq!(error, DecodeError::Caps { count: i32::MAX as usize, cap: 1_000_000 });
}

#[test]
fn random_frames_go_through_the_fuzz_entry() {
    let mut source = Source::new(3);
    for &key in ApiKey::ALL {
        for version in -1..=key.valid_versions().end() + 1 {
            for _ in 0..20 {
                let len = source.below(120);
                let mut bytes = [(key as i16).to_be_bytes(), version.to_be_bytes()].concat();
                bytes.extend_from_slice(&[0, 0, 0, 1, 0xff, 0xff, 0]);
                bytes.extend(source.bytes(len));
                crate::fuzz_decode(&bytes);
            }
        }
    }
}

/// Writes random messages for `tests/java/CheckMessages.java`, which compares them with Kafka's own classes.
#[test]
#[ignore = "needs Java and Kafka's clients jar: see tests/java/CheckMessages.java"]
fn dump_for_java() {
    struct Dump(String);
    impl Visitor for Dump {
        fn visit<M: Message + Arbitrary + Clone + PartialEq + Default + std::fmt::Debug>(&mut self) {
            for version in M::VERSIONS {
                let mut source = Source::new(1000 + u64::from(version.cast_unsigned()));
                let values = (0..ROUNDS).map(|_| source.any::<M>(version)).chain([M::default()]);
                for value in values {
                    let bytes = value.to_chunks(version).unwrap().to_bytes();
                    self.0 += &format!("{} {version} {bytes:x}\n", M::NAME);
                }
            }
        }
    }
    let path = std::env::var("MAINSTEM_WIRE_DUMP").expect("set MAINSTEM_WIRE_DUMP to a path");
    let mut dump = Dump(String::new());
    messages::each(&mut dump);
    std::fs::write(path, dump.0).unwrap();
}
