//! Checks the records of a produced batch: decodes them to verify the header, and applies the settings of their topic.
//!
//! The header is a claim of the producer. Decoding builds no records, so memory stays bounded whatever they decompress
//! to.

use std::sync::Arc;

use bytes::Bytes;
use model::{BatchHeader, Timestamp, TimestampType, batch};
use wire::records::{DecompressError, RecordError};
use wire::{ErrorCode, Limits, Walked};

use crate::compaction::filter::DECOMPRESSED_BYTES_MAX;
use crate::failure::Failure;
use crate::resources::walks::{HELD_BYTES_MAX, Walks};
use crate::settings::topic::TopicConfig;

/// Bound in bytes of a batch, before and after decompression, whose records are walked on the connection's own thread.
/// This takes less than a millisecond even for the smallest records. Other batches take a permit and a thread that may
/// block ([`Walks`]).
const WALKED_AT_ONCE_BYTES_MAX: usize = 128 * 1024;

/// Decodes the records of a batch to verify its header (see [`wire::walk`]).
pub(super) async fn walk_records(
    walks: &Arc<Walks>,
    header: BatchHeader,
    bytes: &Bytes,
) -> Result<Walked, RecordError> {
    let packed = bytes.slice(batch::HEADER_BYTES..);
    if packed.len() <= WALKED_AT_ONCE_BYTES_MAX {
        let limits = Limits { decompressed: WALKED_AT_ONCE_BYTES_MAX, held: HELD_BYTES_MAX };
        match wire::walk(&header, &packed, limits) {
            Err(RecordError::Decompress(
                DecompressError::TooLarge { .. } | DecompressError::Window { .. },
            )) => {}
            walked => return walked,
        }
    }
    Box::pin(walks.run(DECOMPRESSED_BYTES_MAX, move |limits| wire::walk(&header, &packed, limits))).await
}

/// The failure for records that cannot be decoded. Producers do not retry on any of these codes.
pub(super) fn undecodable(error: &RecordError) -> Failure {
    let code = match error {
        RecordError::Decompress(DecompressError::TooLarge { .. }) => ErrorCode::MessageTooLarge,
        _ => ErrorCode::InvalidRecord,
    };
    Failure::because(code, error.to_string())
}

/// Checks the records. Returns the timestamp that the server sets, if it does.
pub(super) fn check_records(
    header: &BatchHeader,
    walked: &Walked,
    config: &TopicConfig,
    now_ms: i64,
) -> Result<Option<Timestamp>, Failure> {
    if config.compaction.is_some() && walked.keyless {
        // Compaction needs the key to know which records a record replaces.
        let why = "Compacted topic cannot accept message without key";
        return Err(Failure::because(ErrorCode::InvalidRecord, why));
    }
    let append_time = (config.timestamp_type == TimestampType::LogAppendTime).then_some(Timestamp(now_ms));
    if append_time.is_none() {
        check_timestamps(header, walked, config, now_ms)?;
    }
    Ok(append_time)
}

/// Sets the header's largest timestamp to that of the records, whatever the producer wrote there (as Kafka's
/// `LogValidator`; Sarama before 1.45.2 writes -1). Retention and ListOffsets depend on it. A batch with the right
/// value is not copied.
pub(super) fn believed(header: BatchHeader, bytes: Bytes, walked: &Walked) -> (BatchHeader, Bytes) {
    if header.max_timestamp == walked.max_timestamp {
        return (header, bytes);
    }
    let mut bytes = Vec::from(bytes);
    batch::set_max_timestamp(&mut bytes, walked.max_timestamp);
    let header = BatchHeader::parse(&bytes).expect("it was parsed before, and no length changed");
    (header, Bytes::from(bytes))
}

/// Checks Kafka's bounds on the timestamps of records (KIP-937). A record without a timestamp passes.
fn check_timestamps(
    header: &BatchHeader,
    walked: &Walked,
    config: &TopicConfig,
    now_ms: i64,
) -> Result<(), Failure> {
    if header.timestamp_type() == TimestampType::LogAppendTime {
        let why = "Invalid timestamp type LogAppendTime in a batch of a topic with CreateTime";
        return Err(Failure::because(ErrorCode::InvalidTimestamp, why));
    }
    let wrong = |time: &Timestamp| out_of_range(*time, config, now_ms);
    if let Some(wrong) = walked.min_timestamp.filter(wrong).or(Some(walked.max_timestamp).filter(wrong)) {
        let why = format!("Timestamp {} of the batch is out of range at {now_ms}", wrong.0);
        return Err(Failure::because(ErrorCode::InvalidTimestamp, why));
    }
    Ok(())
}

pub(super) fn out_of_range(time: Timestamp, config: &TopicConfig, now_ms: i64) -> bool {
    let before = |time: i64| now_ms.checked_sub(time).is_none_or(|age| age > config.timestamp_before_max_ms);
    time != Timestamp::NONE
        && (before(time.0) || time.0.saturating_sub(now_ms) > config.timestamp_after_max_ms)
}
