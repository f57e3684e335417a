//! The header of a Kafka record batch, format v2 (KIP-98).
//!
//! ```text
//!  0 base offset            i64
//!  8 batch length           i32   bytes after this field
//! 12 partition leader epoch i32
//! 16 magic                  i8    2
//! 17 crc                    u32   CRC-32C of everything from byte 21 on
//! 21 attributes             i16   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
//! 23 last offset delta      i32
//! 27 base timestamp         i64
//! 35 max timestamp          i64
//! 43 producer id            i64   -1 when not idempotent
//! 51 producer epoch         i16
//! 53 base sequence          i32
//! 57 record count           i32
//! 61 records
//! ```
//!
//! Base offset and leader epoch lie outside the CRC, so a server sets them without touching the rest. This module never
//! decodes records.

use crate::{Offset, Timestamp};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 61;
/// Bytes before the part that the batch length counts.
pub const LENGTH_PREFIX_BYTES: usize = 12;
/// The CRC covers everything from here on.
pub const CRC_FROM: usize = 21;

/// Compression codec of a batch (attributes bits 0-2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Compression {
    /// Records as they are.
    None,
    /// RFC 1952.
    Gzip,
    /// Snappy, in the framing of xerial's snappy-java or raw.
    Snappy,
    /// LZ4 frame format.
    Lz4,
    /// Zstandard (KIP-110), RFC 8878.
    Zstd,
}

impl Compression {
    /// The codec in `attributes`, if it is a known one.
    pub fn from_attributes(attributes: i16) -> Option<Compression> {
        Some(match attributes & 7 {
            0 => Compression::None,
            1 => Compression::Gzip,
            2 => Compression::Snappy,
            3 => Compression::Lz4,
            4 => Compression::Zstd,
            _ => return None,
        })
    }

    /// The value of the codec in attributes bits 0-2.
    pub fn bits(self) -> i16 {
        match self {
            Compression::None => 0,
            Compression::Gzip => 1,
            Compression::Snappy => 2,
            Compression::Lz4 => 3,
            Compression::Zstd => 4,
        }
    }
}

/// Who set the timestamps of a batch (attributes bit 3, KIP-32).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TimestampType {
    /// The producer.
    CreateTime,
    /// The server, when it appended.
    LogAppendTime,
}

impl std::fmt::Display for TimestampType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TimestampType::CreateTime => "CreateTime",
            TimestampType::LogAppendTime => "LogAppendTime",
        })
    }
}

impl std::str::FromStr for TimestampType {
    type Err = String;

    fn from_str(text: &str) -> Result<TimestampType, String> {
        match text {
            "CreateTime" => Ok(TimestampType::CreateTime),
            "LogAppendTime" => Ok(TimestampType::LogAppendTime),
            _ => Err("it must be CreateTime or LogAppendTime".into()),
        }
    }
}

/// Why bytes are not a valid batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than the header or its length field claim.
    #[error("the batch is cut short: {have} bytes of {need}")]
    Truncated {
        /// Bytes that are present.
        have: usize,
        /// Bytes that are required.
        need: usize,
    },
    /// A batch length that is negative or smaller than the header.
    #[error("the batch length {0} is impossible")]
    Length(i32),
    /// A format other than v2.
    #[error("the batch has magic {0}, only 2 is supported")]
    Magic(i8),
    /// Codec bits that name no codec.
    #[error("the batch names an unknown compression codec {0}")]
    Codec(i16),
    /// A record count that contradicts the last offset delta.
    #[error("the batch claims {count} records and a last offset delta of {last_offset_delta}")]
    Count {
        /// As claimed.
        count: i32,
        /// As claimed.
        last_offset_delta: i32,
    },
    /// The CRC-32C does not match.
    #[error("the batch has crc {stored:#010x} but its bytes give {computed:#010x}")]
    Crc {
        /// In the header.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
}

/// The decoded header of one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Length in bytes of the whole batch, prefix included.
    pub total_bytes: usize,
    /// Epoch of the leader that appended it.
    pub leader_epoch: i32,
    /// CRC-32C of the bytes from the attributes on.
    pub crc: u32,
    /// Raw attribute bits.
    pub attributes: i16,
    /// Offset of the last record minus `base_offset`.
    pub last_offset_delta: i32,
    /// Timestamp of the first record.
    pub base_timestamp: Timestamp,
    /// Largest timestamp of any record.
    pub max_timestamp: Timestamp,
    /// -1 when the producer is not idempotent.
    pub producer_id: i64,
    /// -1 when the producer is not idempotent.
    pub producer_epoch: i16,
    /// Sequence of the first record; -1 when the producer is not idempotent.
    pub base_sequence: i32,
    /// Records in the batch.
    pub count: i32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has the array's length")
}

impl BatchHeader {
    /// Reads the header of the batch at the front of `bytes`. Checks lengths, magic, codec and count against each
    /// other, and that the whole batch is there. Does not check the CRC; see [`verify_crc`].
    pub fn parse(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        let header = BatchHeader::parse_header(bytes)?;
        if bytes.len() < header.total_bytes {
            return Err(BatchError::Truncated { have: bytes.len(), need: header.total_bytes });
        }
        Ok(header)
    }

    /// Like [`BatchHeader::parse`], if only the first [`HEADER_BYTES`] are available.
    pub fn parse_header(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        if bytes.len() < HEADER_BYTES {
            return Err(BatchError::Truncated { have: bytes.len(), need: HEADER_BYTES });
        }
        let length = i32::from_be_bytes(field(bytes, 8));
        let magic = i8::from_be_bytes(field(bytes, 16));
        if magic != 2 {
            return Err(BatchError::Magic(magic));
        }
        let total_bytes =
            usize::try_from(length).map_err(|_| BatchError::Length(length))? + LENGTH_PREFIX_BYTES;
        if total_bytes < HEADER_BYTES {
            return Err(BatchError::Length(length));
        }
        let header = BatchHeader {
            base_offset: Offset(i64::from_be_bytes(field(bytes, 0))),
            total_bytes,
            leader_epoch: i32::from_be_bytes(field(bytes, 12)),
            crc: u32::from_be_bytes(field(bytes, 17)),
            attributes: i16::from_be_bytes(field(bytes, 21)),
            last_offset_delta: i32::from_be_bytes(field(bytes, 23)),
            base_timestamp: Timestamp(i64::from_be_bytes(field(bytes, 27))),
            max_timestamp: Timestamp(i64::from_be_bytes(field(bytes, 35))),
            producer_id: i64::from_be_bytes(field(bytes, 43)),
            producer_epoch: i16::from_be_bytes(field(bytes, 51)),
            base_sequence: i32::from_be_bytes(field(bytes, 53)),
            count: i32::from_be_bytes(field(bytes, 57)),
        };
        if Compression::from_attributes(header.attributes).is_none() {
            return Err(BatchError::Codec(header.attributes & 7));
        }
        // A compacted batch may hold fewer records than its offsets span, so only an impossible count is refused here.
        if header.last_offset_delta < 0
            || header.count < 0
            || i64::from(header.count) > i64::from(header.last_offset_delta) + 1
        {
            return Err(BatchError::Count {
                count: header.count,
                last_offset_delta: header.last_offset_delta,
            });
        }
        Ok(header)
    }

    /// Offsets that the batch takes, gaps included; at least 1.
    pub fn offset_count(&self) -> i64 {
        i64::from(self.last_offset_delta) + 1
    }

    /// The offset after the batch's last.
    pub fn next_offset(&self) -> Offset {
        self.base_offset + self.offset_count()
    }

    /// The codec. `parse` checked that the header names one.
    pub fn compression(&self) -> Compression {
        Compression::from_attributes(self.attributes).expect("parse checked the codec")
    }

    /// Who set the timestamps.
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes & 0x08 != 0 { TimestampType::LogAppendTime } else { TimestampType::CreateTime }
    }

    /// Part of a transaction (KIP-98).
    pub fn is_transactional(&self) -> bool {
        self.attributes & 0x10 != 0
    }

    /// A transaction marker, written by the server only (KIP-98).
    pub fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }

    /// The time from which the tombstones in the batch, or the transaction marker, may be removed, in milliseconds
    /// since the Unix epoch. Compaction writes it in place of the base timestamp (KIP-534).
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        (self.attributes & 0x40 != 0).then_some(self.base_timestamp.0)
    }

    /// Written by an idempotent producer (KIP-98).
    pub fn is_idempotent(&self) -> bool {
        self.producer_id >= 0
    }

    /// Sequence of the last record; sequences wrap from `i32::MAX` to 0.
    pub fn last_sequence(&self) -> i32 {
        add_sequence(self.base_sequence, self.last_offset_delta)
    }
}

/// The batch that replaces a batch with `header` after compaction removed all its records: the same offsets, producer
/// and sequences, and no record (like Kafka's `DefaultRecordBatch.writeEmptyHeader`).
pub fn empty_like(header: &BatchHeader) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    let length = i32::try_from(HEADER_BYTES - LENGTH_PREFIX_BYTES).expect("a small constant");
    out.extend(header.base_offset.0.to_be_bytes());
    out.extend(length.to_be_bytes());
    out.extend(header.leader_epoch.to_be_bytes());
    out.push(2);
    out.extend([0; 4]);
    // Without records there is nothing to compress, and no timestamp needs a base.
    out.extend((header.attributes & !0x47).to_be_bytes());
    out.extend(header.last_offset_delta.to_be_bytes());
    out.extend(Timestamp::NONE.0.to_be_bytes());
    out.extend(header.max_timestamp.0.to_be_bytes());
    out.extend(header.producer_id.to_be_bytes());
    out.extend(header.producer_epoch.to_be_bytes());
    out.extend(header.base_sequence.to_be_bytes());
    out.extend(0i32.to_be_bytes());
    seal_crc(&mut out);
    out
}

/// The epoch of the coordinator in the transaction marker `batch`, whose header is `header` (KIP-98). `None` for other batches,
/// and for a marker that no coordinator wrote.
pub fn coordinator_epoch(batch: &[u8], header: &BatchHeader) -> Option<i32> {
    let marker = header.is_control() && header.is_transactional() && header.count == 1;
    // The value ends the record, but for the number of its headers, which is 0, and the epoch ends the value.
    let end = header.total_bytes.checked_sub(1).filter(|end| marker && *end >= HEADER_BYTES + 4)?;
    let epoch = batch.get(end - 4..end)?;
    Some(i32::from_be_bytes(field(epoch, 0))).filter(|epoch| *epoch >= 0)
}

/// `sequence + count`, wrapping from `i32::MAX` to 0 as producers count (KIP-98).
pub fn add_sequence(sequence: i32, count: i32) -> i32 {
    if sequence > i32::MAX - count { count - (i32::MAX - sequence) - 1 } else { sequence + count }
}

/// Checks the CRC-32C of the whole batch `bytes`, which [`BatchHeader::parse`] accepted.
pub fn verify_crc(bytes: &[u8], header: &BatchHeader) -> Result<(), BatchError> {
    let computed = crate::crc32c(&bytes[CRC_FROM..header.total_bytes]);
    if computed == header.crc { Ok(()) } else { Err(BatchError::Crc { stored: header.crc, computed }) }
}

/// Sets the two fields that the server owns, both outside the CRC.
pub fn assign(batch: &mut [u8], base_offset: Offset, leader_epoch: i32) {
    batch[0..8].copy_from_slice(&base_offset.0.to_be_bytes());
    batch[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
}

/// Sets the server's time as the timestamp of the batch (KIP-32). Sets the timestamp type and the max timestamp, which
/// consumers then use for every record. Recomputes the CRC, which covers both.
pub fn set_log_append_time(batch: &mut [u8], now: Timestamp) {
    batch[22] |= 0x08;
    set_max_timestamp(batch, now);
}

/// Sets the largest timestamp of the records, and recomputes the CRC, which covers it.
pub fn set_max_timestamp(batch: &mut [u8], timestamp: Timestamp) {
    batch[35..43].copy_from_slice(&timestamp.0.to_be_bytes());
    seal_crc(batch);
}

/// Computes and stores the CRC of a batch that this process built or changed.
pub fn seal_crc(batch: &mut [u8]) {
    let crc = crate::crc32c(&batch[CRC_FROM..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = vec![0u8; HEADER_BYTES + 10];
        let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes[16] = 2;
        bytes[23..27].copy_from_slice(&2i32.to_be_bytes());
        bytes[43..51].copy_from_slice(&(-1i64).to_be_bytes());
        bytes[57..61].copy_from_slice(&3i32.to_be_bytes());
        seal_crc(&mut bytes);
        bytes
    }

    #[test]
    fn a_batch_is_read_back_and_its_crc_holds() {
        let mut bytes = sample();
        assign(&mut bytes, Offset(77), 5);
        let header = BatchHeader::parse(&bytes).unwrap();
        assert_eq!(
            (header.base_offset, header.leader_epoch, header.next_offset()),
            (Offset(77), 5, Offset(80))
        );
        verify_crc(&bytes, &header).unwrap();
        bytes[65] ^= 1;
        assert!(matches!(verify_crc(&bytes, &header), Err(BatchError::Crc { .. })));
    }

    #[test]
    fn log_append_time_is_covered_by_a_new_crc() {
        let mut bytes = sample();
        set_log_append_time(&mut bytes, Timestamp(123_456));
        let header = BatchHeader::parse(&bytes).unwrap();
        assert_eq!(header.timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!(header.max_timestamp, Timestamp(123_456));
        verify_crc(&bytes, &header).unwrap();
    }

    #[test]
    fn impossible_headers_are_refused() {
        let good = sample();
        let mut bad = good.clone();
        bad[8..12].copy_from_slice(&(-5i32).to_be_bytes());
        assert_eq!(BatchHeader::parse(&bad), Err(BatchError::Length(-5)));
        let mut bad = good.clone();
        bad[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
        assert!(matches!(BatchHeader::parse(&bad), Err(BatchError::Truncated { .. })));
        let mut bad = good.clone();
        bad[16] = 1;
        assert_eq!(BatchHeader::parse(&bad), Err(BatchError::Magic(1)));
        let mut bad = good.clone();
        bad[57..61].copy_from_slice(&9i32.to_be_bytes());
        assert_eq!(BatchHeader::parse(&bad), Err(BatchError::Count { count: 9, last_offset_delta: 2 }));
        assert!(matches!(BatchHeader::parse(&good[..40]), Err(BatchError::Truncated { .. })));
    }

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(add_sequence(i32::MAX, 1), 0);
        assert_eq!(add_sequence(i32::MAX - 1, 3), 1);
        assert_eq!(add_sequence(5, 3), 8);
    }
}
