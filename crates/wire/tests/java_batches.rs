//! Batches that Kafka 4.4.0's Java producer code wrote, with the codecs it carries (zstd at its default level and at
//! 22, whose frames ask for a window of 128 MiB), read back record by record.
//!
//! `tests/java/CheckBatches.java` makes the fixture, from batches of this crate that it has checked.

use model::batch::verify_crc;
use model::{Compression, Offset, Timestamp};
use wire::Bytes;
use wire::records::{BatchBuilder, Headers, RecordHeader, RecordView, records};

/// More than two zstd blocks in all, and easy to compress, so that the fixture stays small.
fn expected() -> Vec<RecordView> {
    let header =
        |value: Option<String>| -> RecordHeader { (Bytes::from_static(b"twice"), value.map(Bytes::from)) };
    (0..300)
        .map(|index: i32| RecordView {
            offset_delta: index,
            timestamp_delta: i64::from(index % 7),
            key: (index % 3 > 0).then(|| Bytes::from(format!("key {}", index % 5))),
            value: (index % 50 > 0).then(|| Bytes::from(format!("value {}", index % 11).repeat(150))),
            headers: if index % 40 == 0 {
                Headers::from(&[header(Some(format!("{index}"))), header(None)][..])
            } else {
                Headers::default()
            },
        })
        .collect()
}

fn unhex(line: &str) -> Bytes {
    let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).expect("the fixture is hex");
    (0..line.len()).step_by(2).map(byte).collect()
}

#[test]
fn javas_batches_are_read_with_every_codec() {
    let mut codecs = Vec::new();
    for line in include_str!("fixtures/java-4.4.0-batches.txt").lines() {
        let bytes = unhex(line);
        let (header, all) = records(&bytes, 1 << 20).expect("the header is good and the records decompress");
        verify_crc(&bytes, &header).expect("Java's crc holds");
        assert_eq!((header.base_offset, header.base_timestamp), (Offset(100), Timestamp(1_000)));
        assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (7, 2, 40));
        assert_eq!((header.leader_epoch, header.is_transactional()), (3, true));
        let all = all.collect::<Result<Vec<_>, _>>().expect("every record is good");
        assert_eq!(all, expected(), "{:?}", header.compression());
        codecs.push(header.compression());
    }
    use Compression::{Gzip, Lz4, Snappy, Zstd};
    assert_eq!(codecs, [Gzip, Snappy, Lz4, Lz4, Zstd, Zstd]);
}

#[test]
#[ignore = "writes the input of tests/java/CheckBatches.java"]
fn dump_batches_for_java() {
    let codecs =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    let mut lines = String::new();
    for codec in codecs {
        let mut builder = BatchBuilder::new(codec);
        for record in expected() {
            let timestamp = Timestamp(1_000 + record.timestamp_delta);
            builder.push_with_headers(
                timestamp,
                record.key.as_deref(),
                record.value.as_deref(),
                &record.headers.iter().collect::<Vec<_>>(),
            );
        }
        lines += &format!("{:x}\n", builder.finish());
    }
    let path = std::env::var("MAINSTEM_WIRE_DUMP").expect("set MAINSTEM_WIRE_DUMP to a path");
    std::fs::write(path, lines).expect("the path can be written");
}
