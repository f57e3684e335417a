//! The batches of one partition, in memory, with Kafka's check of sequences (KIP-98).
//!
//! Invariant: batches are ordered by offset, without gaps.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use model::batch::{BatchHeader, add_sequence, assign, verify_crc};
use model::{Compression, Offset, Timestamp};
use wire::ErrorCode;
use wire::records::BatchBuilder;

/// Number of batches that Kafka remembers of each producer to detect duplicates.
const REMEMBERED: usize = 5;
const LEADER_EPOCH: i32 = 3;

/// A remembered batch: its first and last sequence number, and its offset.
type Remembered = (i32, i32, i64);

#[derive(Default)]
pub struct Log {
    pub batches: Vec<Bytes>,
    /// The next offset.
    pub end: i64,
    /// Remembered batches, by producer id.
    producers: HashMap<i64, VecDeque<Remembered>>,
    /// The number of duplicate batches, and of batches that came too early.
    pub duplicates: usize,
    pub out_of_order: usize,
}

/// The header of a batch that was checked on arrival.
pub fn header(batch: &[u8]) -> BatchHeader {
    BatchHeader::parse(batch).expect("it was checked when it came")
}

impl Log {
    /// Appends a producer's batch. Returns its offset.
    pub fn append(&mut self, batch: &Bytes) -> Result<i64, ErrorCode> {
        let header = BatchHeader::parse(batch).map_err(|_| ErrorCode::CorruptMessage)?;
        verify_crc(batch, &header).map_err(|_| ErrorCode::CorruptMessage)?;
        if header.is_idempotent() {
            let remembered = self.producers.entry(header.producer_id).or_default();
            let same = |(first, last, _): &&Remembered| {
                (*first, *last) == (header.base_sequence, header.last_sequence())
            };
            if let Some((_, _, offset)) = remembered.iter().find(same) {
                self.duplicates += 1;
                return Ok(*offset);
            }
            let expected = remembered.back().map(|(_, last, _)| add_sequence(*last, 1));
            if expected.is_some_and(|expected| expected != header.base_sequence) {
                self.out_of_order += 1;
                return Err(ErrorCode::OutOfOrderSequenceNumber);
            }
            remembered.push_back((header.base_sequence, header.last_sequence(), self.end));
            if remembered.len() > REMEMBERED {
                remembered.pop_front();
            }
        }
        Ok(self.keep(batch))
    }

    /// Keeps a batch without a check of its sequence. Returns its offset.
    pub fn keep(&mut self, batch: &Bytes) -> i64 {
        let offset = self.end;
        let mut kept = batch.to_vec();
        assign(&mut kept, Offset(offset), LEADER_EPOCH);
        self.end += header(batch).offset_count();
        self.batches.push(kept.into());
        offset
    }

    /// Keeps a batch that was never published.
    pub fn invent(&mut self) -> i64 {
        let mut batch = BatchBuilder::new(Compression::None);
        batch.push(Timestamp(1), None, Some(b"nobody's"));
        let batch = batch.finish();
        self.keep(&batch)
    }

    /// The position of the batch that contains `offset`.
    pub fn place(&self, offset: i64) -> usize {
        self.batches.partition_point(|batch| header(batch).next_offset().0 <= offset)
    }
}
