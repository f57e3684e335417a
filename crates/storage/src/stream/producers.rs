//! The state of a stream's idempotent producers (KIP-98): epoch and last five batches of each producer.
//!
//! The writer records every batch here in log order, so that the stream table of a footer is exact for its position.
//! The broker keeps its own copy for the checks before a batch is written.
//!
//! ```text
//! stored form  | producer count varint | producer… |
//! producer     | id zigzag | epoch zigzag | last append ms zigzag | counts varint | batch… |
//! batch        | base sequence zigzag | base offset zigzag | offset count varint | timestamp zigzag |
//! ```
//!
//! The lowest three bits of the counts are the number of batches. The others are the coordinator epoch plus one, or zero.

use std::collections::{HashMap, VecDeque};

use model::batch::{add_sequence, coordinator_epoch};
use model::{BatchHeader, Offset, Timestamp};

use crate::format::{put_signed, put_varint, take_signed, take_varint};

/// Batches remembered of each producer: a producer may have five requests in flight (KIP-98).
pub const REMEMBERED_BATCHES: usize = 5;
/// Bits of their number in the stored form.
const BATCHES_BITS: u32 = 3;

/// One remembered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RememberedBatch {
    /// Sequence of its first record.
    pub base_sequence: i32,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// The number of its records. Zero if only the sequence before it is known.
    pub offset_count: u32,
    /// Its max timestamp.
    pub timestamp: Timestamp,
}

impl RememberedBatch {
    /// Sequence of its last record, or the one before it if it has none.
    pub fn last_sequence(&self) -> i32 {
        match i32::try_from(self.offset_count).unwrap_or(i32::MAX) {
            0 => self.base_sequence.saturating_sub(1),
            count => add_sequence(self.base_sequence, count - 1),
        }
    }
}

/// One producer on one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Producer {
    /// The epoch of its last batch.
    pub epoch: i16,
    /// The time of its last append, in milliseconds since the Unix epoch.
    pub last_append_ms: i64,
    /// The epoch of the coordinator that wrote its last transaction marker. `None` if it has none, or one of nobody's.
    pub coordinator_epoch: Option<i32>,
    /// Its last batches in this epoch, oldest first, without transaction markers.
    pub batches: VecDeque<RememberedBatch>,
}

/// All producers of one stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Producers(HashMap<i64, Producer>);

impl Producers {
    /// The producer `id`, if it is remembered.
    pub fn find(&self, id: i64) -> Option<&Producer> {
        self.0.get(&id)
    }

    /// All producers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.0.iter().map(|(id, producer)| (*id, producer))
    }

    /// The number of remembered producers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no producer is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records an appended batch, the bytes `batch`, with base offset `base_offset`. Returns true if its producer is new to
    /// the stream. A batch without a producer changes nothing.
    pub fn record(&mut self, header: &BatchHeader, batch: &[u8], base_offset: Offset, now_ms: i64) -> bool {
        if !header.is_idempotent() {
            return false;
        }
        let before = self.0.len();
        let producer = self.0.entry(header.producer_id).or_insert_with(|| Producer {
            epoch: header.producer_epoch,
            last_append_ms: now_ms,
            coordinator_epoch: None,
            batches: VecDeque::with_capacity(REMEMBERED_BATCHES),
        });
        if producer.epoch != header.producer_epoch {
            producer.epoch = header.producer_epoch;
            producer.batches.clear();
        }
        producer.last_append_ms = now_ms;
        if header.is_control() {
            producer.coordinator_epoch = coordinator_epoch(batch, header).or(producer.coordinator_epoch);
        }
        if header.is_control() || header.base_sequence < 0 {
            // A transaction marker has an epoch but no sequence. The same is true of a coordinator's batches.
            return self.0.len() > before;
        }
        if producer.batches.len() == REMEMBERED_BATCHES {
            producer.batches.pop_front();
        }
        producer.batches.push_back(RememberedBatch {
            base_sequence: header.base_sequence,
            base_offset,
            offset_count: u32::try_from(header.offset_count()).unwrap_or(u32::MAX),
            timestamp: header.max_timestamp,
        });
        self.0.len() > before
    }

    /// Forgets producers whose last append was before `oldest_ms`. Returns their number.
    pub fn expire(&mut self, oldest_ms: i64) -> usize {
        self.expire_unless(oldest_ms, |_| false)
    }

    /// Like [`Producers::expire`], but keeps the producers for which `keep` is true.
    pub fn expire_unless(&mut self, oldest_ms: i64, keep: impl Fn(i64) -> bool) -> usize {
        let before = self.0.len();
        self.0.retain(|id, producer| producer.last_append_ms >= oldest_ms || keep(*id));
        before - self.0.len()
    }

    /// The producers as they were before any batch at or above `end`, as far as that is known: those with a remembered
    /// batch below, and those of which only a marker is known.
    pub fn below(&self, end: Offset) -> Producers {
        let below = self.0.iter().filter_map(|(id, producer)| {
            let batches: VecDeque<_> =
                producer.batches.iter().copied().filter(|batch| batch.base_offset < end).collect();
            let known = !batches.is_empty() || producer.batches.is_empty();
            known.then(|| (*id, Producer { batches, ..producer.clone() }))
        });
        Producers(below.collect())
    }

    /// Like [`Producers::below`]. Of a producer with later batches alone, the sequence before them is known: a batch of no records at
    /// the end has it. That is the sequence at `end` if the producer had not more than five batches behind, as is so for those
    /// that it has no answer for (KIP-98).
    pub fn until(&self, end: Offset) -> Producers {
        let mut until = self.below(end);
        for (id, producer) in &self.0 {
            let first =
                producer.batches.front().filter(|first| first.base_sequence > 0 && end > Offset::ZERO);
            if let Some(first) = first {
                let before = RememberedBatch { base_offset: end + -1, offset_count: 0, ..*first };
                let batches = VecDeque::from([before]);
                until.0.entry(*id).or_insert_with(|| Producer { batches, ..producer.clone() });
            }
        }
        until
    }

    /// Forgets the batches from `offset` on, which are recorded again. What is known without a batch stays.
    pub(crate) fn forget_from(&mut self, offset: Offset) {
        for producer in self.0.values_mut() {
            producer.batches.retain(|batch| batch.base_offset < offset || batch.offset_count == 0);
            let before = producer.batches.iter_mut().filter(|batch| batch.offset_count == 0);
            before.for_each(|batch| batch.base_offset = batch.base_offset.min(offset + -1));
        }
    }

    /// Like [`Producers::record`], unless the batch or a later one of its producer is remembered.
    pub fn record_newer(&mut self, header: &BatchHeader, batch: &[u8], base_offset: Offset, now_ms: i64) {
        let last = self.0.get(&header.producer_id).and_then(|producer| producer.batches.back());
        if last.is_none_or(|last| last.base_offset < base_offset) {
            self.record(header, batch, base_offset, now_ms);
        }
    }

    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        let mut ids: Vec<i64> = self.0.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let producer = &self.0[&id];
            put_signed(out, id);
            put_signed(out, i64::from(producer.epoch));
            put_signed(out, producer.last_append_ms);
            let coordinator = producer.coordinator_epoch.and_then(|epoch| u64::try_from(epoch).ok());
            let coordinator = coordinator.map_or(0, |epoch| epoch + 1);
            put_varint(out, coordinator << BATCHES_BITS | producer.batches.len() as u64);
            for batch in &producer.batches {
                put_signed(out, i64::from(batch.base_sequence));
                put_signed(out, batch.base_offset.0);
                put_varint(out, u64::from(batch.offset_count));
                put_signed(out, batch.timestamp.0);
            }
        }
    }

    /// Takes the stored form from the front of `bytes`.
    pub fn decode(bytes: &mut &[u8]) -> Option<Producers> {
        let mut producers = HashMap::new();
        for _ in 0..take_varint(bytes)? {
            let id = take_signed(bytes)?;
            let epoch = i16::try_from(take_signed(bytes)?).ok()?;
            let last_append_ms = take_signed(bytes)?;
            let mut batches = VecDeque::with_capacity(REMEMBERED_BATCHES);
            let counts = take_varint(bytes)?;
            let (coordinator, count) = (counts >> BATCHES_BITS, counts & ((1 << BATCHES_BITS) - 1));
            if count > REMEMBERED_BATCHES as u64 {
                return None;
            }
            let coordinator_epoch = match coordinator.checked_sub(1) {
                Some(epoch) => Some(i32::try_from(epoch).ok()?),
                None => None,
            };
            for _ in 0..count {
                batches.push_back(RememberedBatch {
                    base_sequence: i32::try_from(take_signed(bytes)?).ok()?,
                    base_offset: Offset(take_signed(bytes)?),
                    offset_count: u32::try_from(take_varint(bytes)?).ok()?,
                    timestamp: Timestamp(take_signed(bytes)?),
                });
            }
            producers.insert(id, Producer { epoch, last_append_ms, coordinator_epoch, batches });
        }
        Some(Producers(producers))
    }
}

impl FromIterator<(i64, Producer)> for Producers {
    fn from_iter<T: IntoIterator<Item = (i64, Producer)>>(producers: T) -> Producers {
        Producers(producers.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> BatchHeader {
        BatchHeader {
            base_offset: Offset(0),
            total_bytes: 61,
            leader_epoch: 0,
            crc: 0,
            attributes: 0,
            last_offset_delta: 9,
            base_timestamp: Timestamp(5),
            max_timestamp: Timestamp(6),
            producer_id,
            producer_epoch,
            base_sequence,
            count: 10,
        }
    }

    #[test]
    fn the_sequence_before_five_later_batches_is_known() {
        let mut producers = Producers::default();
        for (producer, first, count) in [(1, 0, 6), (2, 0, 5), (3, 10, 5), (4, 0, 1)] {
            for n in 0..count {
                let header = batch(producer, 0, first + n * 10);
                producers.record(&header, &[], Offset(100 * producer + i64::from(n) * 10), 1);
            }
        }
        let until = |end| {
            let until = producers.until(Offset(end));
            let last = move |id| {
                let last = until.find(id)?.batches.back().copied()?;
                Some((last.base_offset.0, last.offset_count, last.last_sequence()))
            };
            [1, 2, 3, 4].map(last)
        };
        assert_eq!(until(1000), [(150, 10, 59), (240, 10, 49), (340, 10, 59), (400, 10, 9)].map(Some));
        assert_eq!(until(240), [Some((150, 10, 59)), Some((230, 10, 39)), Some((239, 0, 9)), None]);
        assert_eq!(until(110), [Some((109, 0, 9)), None, Some((109, 0, 9)), None]);
        assert_eq!(until(0), [None; 4]);
        // A copy may begin with a batch that the end lies in.
        let mut earlier = producers.until(Offset(240));
        earlier.forget_from(Offset(235));
        let last =
            |id| earlier.find(id)?.batches.back().map(|last| (last.base_offset.0, last.last_sequence()));
        assert_eq!([1, 2, 3].map(last), [Some((150, 59)), Some((230, 39)), Some((234, 9))]);
        let (mut stored, known) = (Vec::new(), producers.until(Offset(110)));
        known.encode(&mut stored);
        assert_eq!(Producers::decode(&mut &stored[..]), Some(known));
    }

    #[test]
    fn the_last_five_batches_of_the_last_epoch_are_remembered_and_stored() {
        let mut producers = Producers::default();
        assert!(!producers.record(&batch(-1, -1, -1), &[], Offset(0), 1));
        for n in 0..7 {
            producers.record(&batch(4, 0, n * 10), &[], Offset(i64::from(n) * 10), 100);
        }
        producers.record(&batch(9, 3, 0), &[], Offset(70), 200);
        assert_eq!(producers.find(4).unwrap().batches.len(), REMEMBERED_BATCHES);
        assert_eq!(producers.find(4).unwrap().batches[0].base_sequence, 20);
        let mut stored = Vec::new();
        producers.encode(&mut stored);
        assert_eq!(Producers::decode(&mut &stored[..]), Some(producers.clone()));
        for cut in 0..stored.len() {
            assert_eq!(Producers::decode(&mut &stored[..cut]), None);
        }
        producers.record(&batch(4, 1, 0), &[], Offset(80), 300);
        assert_eq!(producers.find(4).unwrap().batches.len(), 1);
        let coordinated = |epoch| {
            let one = |(id, it): (i64, &Producer)| (id, Producer { coordinator_epoch: epoch, ..it.clone() });
            producers.iter().map(one).collect::<Producers>()
        };
        for epoch in [0, 1, i32::MAX].map(Some) {
            let (mut stored, producers) = (Vec::new(), coordinated(epoch));
            producers.encode(&mut stored);
            assert_eq!(Producers::decode(&mut &stored[..]), Some(producers));
        }
        assert_eq!(producers.expire(250), 1);
        assert_eq!(producers.len(), 1);
    }
}
