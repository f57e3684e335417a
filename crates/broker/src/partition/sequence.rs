//! The checks that make a producer idempotent (KIP-98). A batch continues its producer's sequence, repeats an appended
//! batch, or is refused.

use model::BatchHeader;
use storage::{Producers, RememberedBatch};

/// The relation of a batch to its producer's history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sequence {
    /// The batch continues the sequence, or its producer has no sequence.
    Next,
    /// The batch repeats this batch.
    Duplicate(RememberedBatch),
}

/// The reason why a batch is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SequenceError {
    /// Earlier batches are missing, or the batch is older than the remembered ones.
    #[error(
        "Out of order sequence number for producer {producer_id}: {found} (incoming seq. number), {last} (current end sequence number)"
    )]
    OutOfOrder {
        /// The producer.
        producer_id: i64,
        /// The first sequence number of the batch.
        found: i32,
        /// The last sequence number that was appended.
        last: i32,
    },
    /// A newer instance of the producer has written to the partition.
    #[error(
        "Epoch of producer {producer_id} is {found}, which is smaller than the last seen epoch {current}"
    )]
    Epoch {
        /// The producer.
        producer_id: i64,
        /// The batch's epoch.
        found: i16,
        /// The current epoch.
        current: i16,
    },
    /// For the coordinator, the partition is not part of the producer's transaction, or no longer is.
    #[error("The transaction of producer {producer_id} does not have this partition")]
    NotInTransaction {
        /// The producer.
        producer_id: i64,
    },
    /// A transaction of an earlier epoch of the producer is open here, because its marker could not be written yet. Or
    /// the marker has just been written.
    #[error("The transaction before of producer {producer_id} is just ending in this partition")]
    AnotherTransaction {
        /// The producer.
        producer_id: i64,
    },
    /// Another broker coordinates the producer's transactions by now.
    #[error("Invalid coordinator epoch for producerId {producer_id}: {found} (zombie), {current} (current)")]
    Coordinator {
        /// The producer.
        producer_id: i64,
        /// The coordinator epoch of the marker.
        found: i32,
        /// The highest coordinator epoch seen.
        current: i32,
    },
    /// The leader has changed since the batch was admitted.
    #[error("The leader of the partition has changed")]
    Moved,
    /// Transactions have ended of which the log has no markers, and there is no room for them. They come before what is
    /// appended.
    #[error("The log has no room to end earlier transactions")]
    Undecided,
    /// The batch is not transactional, but the producer has an open transaction.
    #[error("Expected transactional write from producer {producer_id}")]
    NotTransactional {
        /// The producer.
        producer_id: i64,
    },
}

/// Checks a batch against the remembered state of its producer.
///
/// As in Kafka, an unknown producer may begin with any sequence number, because its records may have been deleted. With
/// `begins_anew`, it has to begin with 0: each transaction has its own epoch (KIP-890), and another number means that a
/// batch is missing.
pub fn check(
    producers: &Producers,
    header: &BatchHeader,
    begins_anew: bool,
) -> Result<Sequence, SequenceError> {
    if !header.is_idempotent() {
        return Ok(Sequence::Next);
    }
    let producer_id = header.producer_id;
    let error = SequenceError::OutOfOrder { producer_id, found: header.base_sequence, last: -1 };
    let Some(producer) = producers.find(producer_id) else {
        return if begins_anew && header.base_sequence > 0 { Err(error) } else { Ok(Sequence::Next) };
    };
    if header.producer_epoch < producer.epoch {
        return Err(SequenceError::Epoch {
            producer_id,
            found: header.producer_epoch,
            current: producer.epoch,
        });
    }
    if header.base_sequence < 0 {
        // A batch written by a coordinator.
        return Ok(Sequence::Next);
    }
    let fresh = header.base_sequence == 0;
    let Some(last) = producer.batches.back() else {
        // A marker has bumped the epoch, so the sequence begins again (KIP-890).
        return if fresh { Ok(Sequence::Next) } else { Err(error) };
    };
    if header.producer_epoch > producer.epoch {
        return if fresh { Ok(Sequence::Next) } else { Err(error) };
    }
    let same = |batch: &&RememberedBatch| {
        batch.base_sequence == header.base_sequence && batch.last_sequence() == header.last_sequence()
    };
    if let Some(duplicate) = producer.batches.iter().find(same) {
        return Ok(Sequence::Duplicate(*duplicate));
    }
    if header.base_sequence == model::batch::add_sequence(last.last_sequence(), 1) {
        return Ok(Sequence::Next);
    }
    Err(SequenceError::OutOfOrder { producer_id, found: header.base_sequence, last: last.last_sequence() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Offset, Timestamp};

    fn batch(producer_epoch: i16, base_sequence: i32, count: i32) -> BatchHeader {
        BatchHeader {
            base_offset: Offset(0),
            total_bytes: 61,
            leader_epoch: 0,
            crc: 0,
            attributes: 0,
            last_offset_delta: count - 1,
            base_timestamp: Timestamp(0),
            max_timestamp: Timestamp(0),
            producer_id: 1,
            producer_epoch,
            base_sequence,
            count,
        }
    }

    #[test]
    fn gaps_are_refused_and_repetitions_found() {
        let mut producers = Producers::default();
        assert_eq!(check(&producers, &batch(0, 77, 5), false), Ok(Sequence::Next));
        assert!(matches!(
            check(&producers, &batch(0, 77, 5), true),
            Err(SequenceError::OutOfOrder { found: 77, last: -1, .. })
        ));
        assert_eq!(check(&producers, &batch(0, 0, 5), true), Ok(Sequence::Next));
        for n in 0..7 {
            let header = batch(0, n * 10, 10);
            assert_eq!(check(&producers, &header, false), Ok(Sequence::Next));
            producers.record(&header, &[], Offset(i64::from(n) * 10), 0);
        }
        assert!(
            matches!(check(&producers, &batch(0, 30, 10), false), Ok(Sequence::Duplicate(b)) if b.base_offset == Offset(30))
        );
        assert!(matches!(
            check(&producers, &batch(0, 0, 10), false),
            Err(SequenceError::OutOfOrder { last: 69, .. })
        ));
        assert!(matches!(check(&producers, &batch(0, 71, 10), false), Err(SequenceError::OutOfOrder { .. })));
        assert!(matches!(check(&producers, &batch(0, 60, 9), false), Err(SequenceError::OutOfOrder { .. })));
        assert_eq!(check(&producers, &batch(0, 70, 1), false), Ok(Sequence::Next));
        assert_eq!(check(&producers, &batch(1, 0, 1), false), Ok(Sequence::Next));
        assert!(check(&producers, &batch(1, 5, 1), false).is_err());
        producers.record(&batch(1, 0, 1), &[], Offset(70), 0);
        assert!(matches!(
            check(&producers, &batch(0, 70, 1), false),
            Err(SequenceError::Epoch { found: 0, current: 1, .. })
        ));
    }

    #[test]
    fn sequences_wrap() {
        let mut producers = Producers::default();
        producers.record(&batch(0, i32::MAX - 4, 5), &[], Offset(0), 0);
        assert_eq!(check(&producers, &batch(0, 0, 3), false), Ok(Sequence::Next));
        producers.record(&batch(0, i32::MAX - 1, 4), &[], Offset(0), 0);
        assert_eq!(check(&producers, &batch(0, 2, 3), false), Ok(Sequence::Next));
    }
}
