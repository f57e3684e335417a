//! Which records compaction keeps: the rules of Kafka's `Cleaner` and `MemoryRecords.filterTo`.
//!
//! Of each key the newest record stays. A newest record without a value, a tombstone, stays for `delete.retention.ms`
//! after the first compaction that meets it: that one writes the time at which it may go into the batch (KIP-534: the
//! delete horizon, attributes bit 6, in the place of the base timestamp). A transaction's marker goes the same way, once
//! nothing of the transaction is left. The last batch of a producer stays, without records if need be, for its sequence.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use model::batch::empty_like;
use model::{BatchHeader, Offset, Timestamp, TimestampType};
use storage::{Producers, Rewriter, Rewritten};
use wire::records::{BatchBuilder, RecordView, TransactionResult, marker_of, records};

use super::keys::Keys;
use crate::transactions::AbortedTransaction;

/// What one batch may decompress to: a hostile one must not take all memory.
pub const DECOMPRESSED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Follows the transactions of a partition from its start on.
#[derive(Debug, Default)]
pub struct Transactions {
    /// By first offset, those that come last first.
    aborted: Vec<AbortedTransaction>,
    /// Aborted ones that have begun, and whether some of their records are still there.
    aborting: HashMap<i64, bool>,
    /// Producers with records since their last marker, of which some are kept.
    committing: HashSet<i64>,
}

impl Transactions {
    /// With these aborted ones, in any order.
    pub fn new(mut aborted: Vec<AbortedTransaction>) -> Transactions {
        aborted.sort_unstable_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        Transactions { aborted, ..Transactions::default() }
    }

    /// Takes a batch in; whether its records go: they were aborted, or it is the marker of a transaction of which
    /// nothing is left.
    pub fn discards(&mut self, header: &BatchHeader, marker: Option<TransactionResult>) -> bool {
        let last = header.base_offset + i64::from(header.last_offset_delta);
        while let Some(next) = self.aborted.pop_if(|next| next.first_offset <= last) {
            self.aborting.entry(next.producer_id).or_default();
        }
        match marker {
            Some(TransactionResult::Abort) => !self.aborting.remove(&header.producer_id).unwrap_or_default(),
            Some(TransactionResult::Commit) => !self.committing.remove(&header.producer_id),
            // Another kind of control record: nothing is known of it, so it stays.
            None if header.is_control() || !header.is_transactional() => false,
            None => match self.aborting.get_mut(&header.producer_id) {
                Some(seen) => {
                    *seen = true;
                    true
                }
                None => {
                    self.committing.insert(header.producer_id);
                    false
                }
            },
        }
    }
}

/// The rules for one compaction of one partition.
#[derive(Debug)]
pub struct Filter {
    /// The newest offset of each key, of records below `known_until`.
    pub keys: Keys,
    /// Records from here on are not among `keys`: all of them stay.
    pub known_until: Offset,
    /// See [`Transactions`].
    pub transactions: Transactions,
    /// For the last batch of each.
    pub producers: Producers,
    /// When the compaction began, in milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
}

impl Filter {
    fn stays(&self, header: &BatchHeader, record: &RecordView) -> bool {
        let offset = header.base_offset + i64::from(record.offset_delta);
        if offset >= self.known_until {
            return true;
        }
        let Some(key) = &record.key else { return false };
        let due = header.delete_horizon_ms().is_some_and(|horizon| self.now_ms >= horizon);
        !self.keys.has_newer(key, offset) && (record.value.is_some() || !due)
    }

    /// Whether the batch is the last that its producer wrote here, so that it carries the producer's sequence.
    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        let Some(producer) = self.producers.find(header.producer_id) else { return false };
        match producer.batches.back() {
            Some(last) => last.base_offset + i64::from(last.offset_count) == header.next_offset(),
            None => header.is_control() && header.producer_epoch == producer.epoch,
        }
    }
}

impl Rewriter for Filter {
    fn rewrite(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<Rewritten, String> {
        let (_, all) = records(batch, DECOMPRESSED_BYTES_MAX).map_err(|error| error.to_string())?;
        let all = all.collect::<Result<Vec<RecordView>, _>>().map_err(|error| error.to_string())?;
        let marker = match all.first().filter(|_| header.is_control()) {
            Some(record) => {
                marker_of(record.clone()).map_err(|error| error.to_string())?.map(|(result, _)| result)
            }
            None => None,
        };
        let discards = self.transactions.discards(header, marker);
        let horizon = header.delete_horizon_ms();
        let kept: Vec<&RecordView> = if header.is_control() {
            let due = horizon.is_some_and(|horizon| horizon <= self.now_ms);
            all.iter().filter(|_| !(discards && due)).collect()
        } else {
            all.iter().filter(|record| !discards && self.stays(header, record)).collect()
        };
        if kept.is_empty() {
            let needed = header.is_idempotent() && self.is_last_of_producer(header)
                || header.next_offset() == self.known_until;
            return Ok(match needed {
                true if header.count == 0 => Rewritten::Keep,
                true => Rewritten::Replace(empty_like(header).into()),
                false => Rewritten::Drop,
            });
        }
        let transient =
            if header.is_control() { discards } else { kept.iter().any(|record| record.value.is_none()) };
        let new_horizon =
            (transient && horizon.is_none()).then(|| self.now_ms.saturating_add(self.delete_retention_ms));
        if kept.len() == all.len() && new_horizon.is_none() {
            return Ok(Rewritten::Keep);
        }
        Ok(Rewritten::Replace(rebuild(header, &kept, new_horizon.or(horizon))))
    }
}

/// The batch of `header` with only the records in `kept`, at their offsets and times.
fn rebuild(header: &BatchHeader, kept: &[&RecordView], horizon_ms: Option<i64>) -> Bytes {
    let mut builder = BatchBuilder::new(header.compression()).producer(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    );
    if header.is_transactional() {
        builder = builder.transactional();
    }
    if header.is_control() {
        builder = builder.control();
    }
    if let Some(horizon_ms) = horizon_ms {
        builder = builder.delete_horizon(Timestamp(horizon_ms));
    }
    let appended_at = header.timestamp_type() == TimestampType::LogAppendTime;
    for record in kept {
        let created = Timestamp(header.base_timestamp.0.wrapping_add(record.timestamp_delta));
        let timestamp = if appended_at { header.max_timestamp } else { created };
        builder.push_at(
            record.offset_delta,
            timestamp,
            record.key.as_deref(),
            record.value.as_deref(),
            &record.headers,
        );
    }
    if appended_at {
        builder = builder.log_append_time(header.max_timestamp);
    }
    let bytes = builder.last_offset_delta(header.last_offset_delta).finish();
    let mut bytes = bytes.to_vec();
    model::batch::assign(&mut bytes, header.base_offset, header.leader_epoch);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use model::Compression;
    use wire::records::end_transaction_marker;

    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;
    const RETENTION_MS: i64 = 5000;

    type Pair<'a> = (&'a str, Option<&'a str>);

    fn at(batch: Bytes, base: i64) -> Bytes {
        let mut bytes = batch.to_vec();
        model::batch::assign(&mut bytes, Offset(base), 3);
        bytes.into()
    }

    fn batch(base: i64, pairs: &[Pair], codec: Compression) -> Bytes {
        let mut builder = BatchBuilder::new(codec);
        for (n, (key, value)) in (0..).zip(pairs) {
            let header = (Bytes::from_static(b"h"), None);
            let value = value.map(str::as_bytes);
            builder.push_with_headers(Timestamp(1000 + n), Some(key.as_bytes()), value, &[header]);
        }
        at(builder.finish(), base)
    }

    fn filter(batches: &[Bytes], now_ms: i64) -> Filter {
        let mut keys = Keys::new(1 << 20);
        let (mut producers, mut known_until) = (Producers::default(), Offset::ZERO);
        for bytes in batches {
            let (header, all) = records(bytes, DECOMPRESSED_BYTES_MAX).unwrap();
            for record in all.map(Result::unwrap).filter(|_| !header.is_control()) {
                keys.put(&record.key.unwrap(), header.base_offset + i64::from(record.offset_delta));
            }
            producers.record(&header, header.base_offset, 0);
            known_until = header.next_offset();
        }
        Filter {
            keys,
            known_until,
            transactions: Transactions::default(),
            producers,
            now_ms,
            delete_retention_ms: RETENTION_MS,
        }
    }

    fn run(filter: &mut Filter, batches: &[Bytes]) -> Vec<Bytes> {
        let rewrite = |bytes: &Bytes| {
            let header = BatchHeader::parse(bytes).unwrap();
            match filter.rewrite(&header, bytes).unwrap() {
                Rewritten::Keep => Some(bytes.clone()),
                Rewritten::Drop => None,
                Rewritten::Replace(new) => {
                    let kept = BatchHeader::parse(&new).unwrap();
                    model::batch::verify_crc(&new, &kept).unwrap();
                    let place = |h: &BatchHeader| {
                        (h.base_offset, h.last_offset_delta, h.leader_epoch, h.base_sequence)
                    };
                    assert_eq!(place(&kept), place(&header));
                    assert!(kept.count == 0 || kept.compression() == header.compression());
                    Some(new)
                }
            }
        };
        batches.iter().filter_map(rewrite).collect()
    }

    /// Offset, timestamp, key and value of each record.
    fn contents(batches: &[Bytes]) -> Vec<(i64, i64, String, Option<String>)> {
        let mut out = Vec::new();
        for bytes in batches {
            let (header, all) = records(bytes, DECOMPRESSED_BYTES_MAX).unwrap();
            for record in all.map(Result::unwrap) {
                let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
                let timestamp = header.base_timestamp.0 + record.timestamp_delta;
                let offset = header.base_offset.0 + i64::from(record.offset_delta);
                out.push((offset, timestamp, text(record.key.unwrap()), record.value.map(text)));
            }
        }
        out
    }

    #[test]
    fn the_newest_record_of_each_key_stays_through_every_codec() {
        for codec in
            [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd]
        {
            let all = [
                batch(0, &[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))], codec),
                batch(3, &[("a", Some("2")), ("a", Some("3"))], codec),
                batch(5, &[("d", Some("1"))], codec),
                batch(6, &[("b", Some("2")), ("d", Some("2"))], codec),
            ];
            let left = run(&mut filter(&all, NOW_MS), &all);
            let want = [(2, 1002, "c", "1"), (4, 1001, "a", "3"), (6, 1000, "b", "2"), (7, 1001, "d", "2")];
            let want = want.map(|(o, t, k, v)| (o, t, k.to_owned(), Some(v.to_owned())));
            assert_eq!(contents(&left), want, "{codec:?}");
            assert_eq!(left.len(), 3, "a batch without records goes");
            assert_eq!(run(&mut filter(&all, NOW_MS), &left), left, "nothing is left to do");
        }
    }

    #[test]
    fn a_tombstone_stays_until_its_time_has_come() {
        let all = [
            batch(0, &[("a", Some("1")), ("b", Some("1"))], Compression::Lz4),
            batch(2, &[("a", None)], Compression::Lz4),
            batch(3, &[("c", Some("1"))], Compression::Lz4),
        ];
        let first = run(&mut filter(&all, NOW_MS), &all);
        let want = vec![
            (1, 1001, "b".to_owned(), Some("1".to_owned())),
            (2, 1000, "a".to_owned(), None),
            (3, 1000, "c".to_owned(), Some("1".to_owned())),
        ];
        assert_eq!(contents(&first), want, "the records' timestamps are those they had");
        let horizon = BatchHeader::parse(&first[1]).unwrap().delete_horizon_ms();
        assert_eq!(horizon, Some(NOW_MS + RETENTION_MS));
        let again = run(&mut filter(&all, NOW_MS + RETENTION_MS - 1), &first);
        assert_eq!(again, first, "the time is set once");
        let later = run(&mut filter(&all, NOW_MS + RETENTION_MS), &first);
        assert_eq!(contents(&later), [want[0].clone(), want[2].clone()]);
    }

    #[test]
    fn a_producers_last_batch_and_the_last_of_all_stay_without_records() {
        let idempotent = |base: i64, sequence: i32| {
            let mut builder = BatchBuilder::new(Compression::Zstd).producer(7, 1, sequence);
            builder.push(Timestamp(5), Some(b"a"), Some(b"x"));
            builder.push(Timestamp(9), Some(b"a"), Some(b"y"));
            at(builder.finish(), base)
        };
        let all = [idempotent(0, 0), idempotent(2, 2), batch(4, &[("a", Some("1"))], Compression::None)];
        let left = run(&mut filter(&all, NOW_MS), &all);
        assert_eq!(left.len(), 2);
        let header = BatchHeader::parse(&left[0]).unwrap();
        assert_eq!(
            (header.count, header.producer_id, header.producer_epoch, header.last_sequence()),
            (0, 7, 1, 3)
        );
        assert_eq!((header.max_timestamp, header.compression()), (Timestamp(9), Compression::None));
        let mut newer = filter(&all, NOW_MS);
        newer.keys.put(b"a", Offset(9));
        let left = run(&mut newer, &all[2..]);
        assert_eq!(BatchHeader::parse(&left[0]).unwrap().count, 0, "so that the end is known");
    }

    #[test]
    fn a_log_append_time_stays_that() {
        let mut first = batch(0, &[("a", Some("1")), ("b", Some("1"))], Compression::None).to_vec();
        model::batch::set_log_append_time(&mut first, Timestamp(7777));
        let all = [Bytes::from(first), batch(2, &[("a", Some("2"))], Compression::None)];
        let left = run(&mut filter(&all, NOW_MS), &all);
        let header = BatchHeader::parse(&left[0]).unwrap();
        assert_eq!(
            (header.timestamp_type(), header.max_timestamp),
            (TimestampType::LogAppendTime, Timestamp(7777))
        );
        assert_eq!(header.count, 1);
    }

    #[test]
    fn aborted_records_go_at_once_and_markers_when_nothing_is_left_of_their_transaction() {
        let data = |base: i64, id: i64, key: &str| {
            let mut builder = BatchBuilder::new(Compression::None).producer(id, 0, 0).transactional();
            builder.push(Timestamp(1), Some(key.as_bytes()), Some(b"v"));
            at(builder.finish(), base)
        };
        let marker = |base, id, result| at(end_transaction_marker(id, 0, result, 0, Timestamp(2)), base);
        let all = [
            data(0, 1, "a"),
            data(1, 2, "b"),
            marker(2, 1, TransactionResult::Abort),
            marker(3, 2, TransactionResult::Commit),
            data(4, 1, "b"),
            marker(5, 1, TransactionResult::Commit),
            batch(6, &[("z", Some("1"))], Compression::None),
        ];
        let aborted =
            || vec![AbortedTransaction { producer_id: 1, first_offset: Offset(0), last_offset: Offset(2) }];
        let pass = |batches: &[Bytes], now_ms| {
            let mut filter = filter(&all, now_ms);
            filter.transactions = Transactions::new(aborted());
            let left = run(&mut filter, batches);
            let bases: Vec<i64> = left.iter().map(|b| BatchHeader::parse(b).unwrap().base_offset.0).collect();
            (left, bases)
        };
        // The aborted record is gone; the one that was overwritten left its batch, for the producer's sequence, and so
        // its marker. All markers are there.
        let (first, bases) = pass(&all, NOW_MS);
        assert_eq!(bases, [1, 2, 3, 4, 5, 6]);
        assert_eq!(contents(&first[..1]), []);
        // Only now is it known that nothing is left of the aborted transaction.
        let (second, bases) = pass(&first, NOW_MS);
        assert_eq!(bases, [1, 2, 3, 4, 5, 6]);
        let horizon = |bytes: &Bytes| BatchHeader::parse(bytes).unwrap().delete_horizon_ms();
        assert_eq!(
            second.iter().map(horizon).collect::<Vec<_>>(),
            [None, Some(NOW_MS + RETENTION_MS), None, None, None, None]
        );
        let (_, bases) = pass(&second, NOW_MS + RETENTION_MS);
        assert_eq!(bases, [1, 3, 4, 5, 6]);
    }
}
