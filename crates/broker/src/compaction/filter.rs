//! Decides which records compaction keeps, by the rules of Kafka's `Cleaner` and `MemoryRecords.filterTo`.
//!
//! - The newest record of each key stays.
//! - A newest record without a value (a tombstone) stays for `delete.retention.ms` after the first compaction that
//!   meets it. That compaction writes the expiry time into the batch (KIP-534: the delete horizon, attributes bit 6, in
//!   place of the base timestamp).
//! - A transaction's marker is removed in the same way, once no record of the transaction is left.
//! - The last batch of a producer stays, if need be without records, because it carries the producer's sequence.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use model::batch::{HEADER_BYTES, empty_like};
use model::{BatchHeader, Offset, Timestamp, TimestampType};
use parking_lot::Mutex;
use storage::{Producers, Rewriter, Rewritten};
use wire::records::{BatchBuilder, RecordError, RecordView, TransactionResult, marker_of, records};
use wire::{Keyed, VisitKeys, visit_keys};

use super::keys::{KeyHasher, Keys};
use crate::resources::walks::{HELD_BYTES_MAX, Walks};
use crate::transactions::AbortedTransaction;

/// Bound in bytes of a decompressed batch, so that a hostile batch cannot take all memory.
pub const DECOMPRESSED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Tracks the transactions of a partition from its start.
#[derive(Debug, Default)]
pub struct Transactions {
    /// Sorted by first offset, the last one first.
    aborted: Vec<AbortedTransaction>,
    /// The aborted transaction in progress of each producer.
    aborting: HashMap<i64, Aborting>,
    /// Producers with remaining records since their last marker.
    committing: HashSet<i64>,
    gone: Gone,
}

/// Aborted transactions of which only the marker was found. They are no longer needed by readers. Once their markers
/// are removed, they must not be listed any more: a reader would skip everything that the producer wrote since.
pub type Gone = Arc<Mutex<Vec<AbortedTransaction>>>;

#[derive(Debug)]
struct Aborting {
    transaction: AbortedTransaction,
    /// Whether some of the transaction's records are still there.
    seen: bool,
}

/// The decision about a batch, based on its transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Stays,
    /// The batch belongs to an aborted transaction, or is the marker of a transaction without remaining records.
    Goes,
    /// As [`Verdict::Goes`], but readers still need the batch until the transaction is forgotten.
    GoesOnceForgotten,
}

impl Transactions {
    /// Tracks these aborted transactions, given in any order.
    pub fn new(mut aborted: Vec<AbortedTransaction>) -> Transactions {
        aborted.sort_unstable_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        Transactions { aborted, ..Transactions::default() }
    }

    /// The aborted transactions that are found to be gone while batches are judged.
    pub fn gone(&self) -> Gone {
        self.gone.clone()
    }

    /// Judges the next batch.
    pub fn judge(&mut self, header: &BatchHeader, marker: Option<TransactionResult>) -> Verdict {
        let last = header.base_offset + i64::from(header.last_offset_delta);
        while let Some(transaction) = self.aborted.pop_if(|next| next.first_offset <= last) {
            let aborting = Aborting { transaction, seen: false };
            let before = self.aborting.insert(transaction.producer_id, aborting);
            self.end(before);
        }
        // If this batch comes behind the marker of the tracked transaction, the marker is no longer there.
        if self
            .aborting
            .get(&header.producer_id)
            .is_some_and(|of| of.transaction.last_offset < header.base_offset)
        {
            let before = self.aborting.remove(&header.producer_id);
            self.end(before);
        }
        match marker {
            Some(TransactionResult::Abort) => match self.aborting.remove(&header.producer_id) {
                Some(of) if of.seen => Verdict::Stays,
                Some(of) => {
                    self.end(Some(of));
                    Verdict::GoesOnceForgotten
                }
                None => Verdict::Goes,
            },
            Some(TransactionResult::Commit) if self.committing.remove(&header.producer_id) => Verdict::Stays,
            Some(TransactionResult::Commit) => Verdict::Goes,
            // A control record of an unknown kind stays.
            None if header.is_control() || !header.is_transactional() => Verdict::Stays,
            None => match self.aborting.get_mut(&header.producer_id) {
                Some(of) => {
                    of.seen = true;
                    Verdict::Goes
                }
                None => {
                    self.committing.insert(header.producer_id);
                    Verdict::Stays
                }
            },
        }
    }

    fn end(&mut self, aborting: Option<Aborting>) {
        if let Some(Aborting { transaction, seen: false }) = aborting {
            self.gone.lock().push(transaction);
        }
    }
}

/// The rules of one compaction of one partition.
#[derive(Debug)]
pub struct Filter {
    /// The newest offset of each key among the records below `known_until`.
    pub keys: Keys,
    /// Records from this offset on are not in `keys`, and all of them stay.
    pub known_until: Offset,
    /// The memory for decompressing batches.
    pub walks: Arc<Walks>,
    /// The transactions of the partition.
    pub transactions: Transactions,
    /// The producers of the partition, to find the last batch of each.
    pub producers: Producers,
    /// Start of the compaction, in milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
}

impl Filter {
    /// Whether a record stays. `key` is the hash of its key, if it has one.
    fn stays(&self, header: &BatchHeader, offset_delta: i32, key: Option<u128>, has_value: bool) -> bool {
        let offset = header.base_offset + i64::from(offset_delta);
        if offset >= self.known_until {
            return true;
        }
        let Some(key) = key else { return false };
        let due = header.delete_horizon_ms().is_some_and(|horizon| self.now_ms >= horizon);
        !self.keys.has_newer(key, offset) && (has_value || !due)
    }

    fn view_stays(&self, header: &BatchHeader, record: &RecordView) -> bool {
        let hash = |key: &Bytes| {
            let mut hasher = self.keys.hasher();
            hasher.write(key);
            hasher.finish()
        };
        self.stays(header, record.offset_delta, record.key.as_ref().map(hash), record.value.is_some())
    }

    /// Counts the records of a data batch that stay, without building them.
    fn count(&self, header: &BatchHeader, batch: &Bytes) -> Result<Counted, RecordError> {
        let packed = &batch[HEADER_BYTES..header.total_bytes];
        self.walks.run_blocking(DECOMPRESSED_BYTES_MAX, |limits| {
            let empty = self.keys.hasher();
            let mut counting =
                Counting { filter: self, header, key: empty.clone(), empty, counted: Counted::default() };
            visit_keys(header, packed, limits, &mut counting)?;
            Ok(counting.counted)
        })
    }

    /// Whether the batch is the last one of its producer here, so that it carries the producer's sequence.
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
        // The server writes control batches itself, and they are small.
        let marker = match header.is_control() {
            true => {
                let (_, mut all) = records(batch, HELD_BYTES_MAX).map_err(|error| error.to_string())?;
                let first = all.next().transpose();
                first
                    .and_then(|first| first.map_or(Ok(None), marker_of))
                    .map_err(|error| error.to_string())?
            }
            false => None,
        };
        let verdict = self.transactions.judge(header, marker.map(|(result, _)| result));
        let discards = verdict != Verdict::Stays;
        let horizon = header.delete_horizon_ms();
        let due = horizon.is_some_and(|horizon| horizon <= self.now_ms);
        let all_go = if header.is_control() { verdict == Verdict::Goes && due } else { discards };
        let count = u32::try_from(header.count).map_err(|_| "the batch claims less than no records")?;
        let Counted { kept, gone, tombstones } = match (all_go, header.is_control()) {
            (true, _) => Counted { kept: 0, gone: count, tombstones: false },
            (false, true) => Counted { kept: count, gone: 0, tombstones: false },
            (false, false) => self.count(header, batch).map_err(|error| error.to_string())?,
        };
        if kept == 0 {
            let needed = header.is_idempotent() && self.is_last_of_producer(header)
                || header.next_offset() == self.known_until;
            return Ok(match needed {
                true if header.count == 0 => Rewritten::Keep,
                true => Rewritten::Replace(empty_like(header).into()),
                false => Rewritten::Drop,
            });
        }
        let transient = if header.is_control() { discards } else { tombstones };
        let new_horizon =
            (transient && horizon.is_none()).then(|| self.now_ms.saturating_add(self.delete_retention_ms));
        if gone == 0 && new_horizon.is_none() {
            return Ok(Rewritten::Keep);
        }
        // The batch is rebuilt even if it becomes longer, because its producer compressed better. A record that stayed
        // now would stay for good, and its key would come back once the tombstone is removed.
        let (all, _memory) =
            self.walks.records(batch, DECOMPRESSED_BYTES_MAX).map_err(|error| error.to_string())?;
        let kept = all.flatten().filter(|record| header.is_control() || self.view_stays(header, record));
        Ok(Rewritten::Replace(rebuild(header, kept, new_horizon.or(horizon))))
    }
}

/// The records of a batch that stay.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    kept: u32,
    gone: u32,
    /// Whether tombstones are among the records that stay.
    tombstones: bool,
}

struct Counting<'a> {
    filter: &'a Filter,
    header: &'a BatchHeader,
    key: KeyHasher,
    empty: KeyHasher,
    counted: Counted,
}

impl VisitKeys for Counting<'_> {
    fn piece(&mut self, piece: &[u8]) {
        self.key.write(piece);
    }

    fn record(&mut self, record: Keyed) -> bool {
        let key = std::mem::replace(&mut self.key, self.empty.clone()).finish();
        let key = record.has_key.then_some(key);
        match self.filter.stays(self.header, record.offset_delta, key, record.has_value) {
            true => {
                self.counted.kept += 1;
                self.counted.tombstones |= !record.has_value;
            }
            false => self.counted.gone += 1,
        }
        true
    }
}

/// Builds a batch with the records in `kept` only, at their offsets and timestamps.
fn rebuild(header: &BatchHeader, kept: impl Iterator<Item = RecordView>, horizon_ms: Option<i64>) -> Bytes {
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
        builder.push_view(timestamp, &record);
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
                let mut hasher = keys.hasher();
                hasher.write(&record.key.unwrap());
                keys.put(hasher.finish(), header.base_offset + i64::from(record.offset_delta));
            }
            producers.record(&header, bytes, header.base_offset, 0);
            known_until = header.next_offset();
        }
        Filter {
            keys,
            known_until,
            walks: Arc::default(),
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

    /// The offset, timestamp, key and value of each record.
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

    /// If a client compresses better than the server, the rest of a batch may be longer than the whole. The test uses
    /// Zstandard, because the Gzip implementation depends on the other crates in the build.
    #[test]
    fn a_deleted_key_does_not_come_back_where_its_batch_becomes_longer() {
        let mut longer = 0;
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let keys: Vec<String> = (0..8).map(|n| n.to_string()).collect();
            let values: Vec<String> =
                (0..8).map(|_| "abcd"[..rng.usize(0..4)].repeat(rng.usize(0..4))).collect();
            let pairs: Vec<Pair> =
                keys.iter().zip(&values).map(|(key, value)| (key.as_str(), Some(value.as_str()))).collect();
            let deleted = keys[rng.usize(0..8)].as_str();
            let all = [
                batch(0, &pairs, Compression::Zstd),
                batch(8, &[(deleted, None)], Compression::Zstd),
                batch(9, &[("last", None)], Compression::Zstd),
            ];
            let left = run(&mut filter(&all, NOW_MS), &all);
            longer += u32::from(left[0].len() > all[0].len());
            // The next compaction knows only the keys of newer records.
            let later = Filter { keys: Keys::new(1 << 20), ..filter(&left, NOW_MS + RETENTION_MS) };
            let left = run(&mut { later }, &left);
            assert!(contents(&left).iter().all(|(_, _, key, _)| key != deleted), "seed {seed}");
            assert_eq!(contents(&left).len(), 7, "seed {seed}");
        }
        assert!((1..2000).contains(&longer), "{longer} became longer");
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
        let mut a = newer.keys.hasher();
        a.write(b"a");
        newer.keys.put(a.finish(), Offset(9));
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
        let listed = [AbortedTransaction { producer_id: 1, first_offset: Offset(0), last_offset: Offset(2) }];
        let pass = |batches: &[Bytes], now_ms, aborted: &[AbortedTransaction]| {
            let mut filter = filter(&all, now_ms);
            filter.transactions = Transactions::new(aborted.to_vec());
            let gone = filter.transactions.gone();
            let left = run(&mut filter, batches);
            let bases: Vec<i64> = left.iter().map(|b| BatchHeader::parse(b).unwrap().base_offset.0).collect();
            let gone = gone.lock().clone();
            (left, bases, gone)
        };
        // The aborted record is removed. The overwritten record left its batch, for the producer's sequence, and so its
        // marker. All markers are there.
        let (first, bases, gone) = pass(&all, NOW_MS, &listed);
        assert_eq!((bases, gone), (vec![1, 2, 3, 4, 5, 6], vec![]));
        assert_eq!(contents(&first[..1]), []);
        // Only now is it known that nothing is left of the aborted transaction.
        let (second, bases, gone) = pass(&first, NOW_MS, &listed);
        assert_eq!((bases, &gone[..]), (vec![1, 2, 3, 4, 5, 6], &listed[..]));
        let horizon = |bytes: &Bytes| BatchHeader::parse(bytes).unwrap().delete_horizon_ms();
        assert_eq!(
            second.iter().map(horizon).collect::<Vec<_>>(),
            [None, Some(NOW_MS + RETENTION_MS), None, None, None, None]
        );
        // While readers still list the transaction, they need its marker.
        let (_, bases, _) = pass(&second, NOW_MS + RETENTION_MS, &listed);
        assert_eq!(bases, [1, 2, 3, 4, 5, 6]);
        let (third, bases, gone) = pass(&second, NOW_MS + RETENTION_MS, &[]);
        assert_eq!((bases, gone), (vec![1, 3, 4, 5, 6], vec![]));
        let left = |batches: &[Bytes]| contents(&batches[2..3]);
        assert_eq!(left(&third), [(4, 1, "b".to_owned(), Some("v".to_owned()))]);
        // A listed transaction without a marker does not include what its producer wrote later.
        let (fourth, bases, gone) = pass(&third, NOW_MS + RETENTION_MS, &listed);
        assert_eq!((left(&fourth), bases, &gone[..]), (left(&third), vec![1, 3, 4, 5, 6], &listed[..]));
    }

    /// Trims remove records first; the list of aborted transactions follows later.
    #[test]
    fn what_was_aborted_below_the_start_is_no_reason_to_drop_what_came_since() {
        let data = |base: i64| {
            let mut builder = BatchBuilder::new(Compression::None).producer(1, 0, 0).transactional();
            builder.push(Timestamp(1), Some(b"a"), Some(b"v"));
            at(builder.finish(), base)
        };
        let marker = |base, result| at(end_transaction_marker(1, 0, result, 0, Timestamp(2)), base);
        let all =
            [data(7), marker(8, TransactionResult::Commit), data(9), marker(10, TransactionResult::Abort)];
        let aborted = |first, last| AbortedTransaction {
            producer_id: 1,
            first_offset: Offset(first),
            last_offset: Offset(last),
        };
        let mut filter = filter(&all[..2], NOW_MS);
        filter.known_until = Offset(11);
        filter.transactions = Transactions::new(vec![aborted(9, 10), aborted(3, 5), aborted(0, 2)]);
        let gone = filter.transactions.gone();
        let left = run(&mut filter, &all);
        let counts: Vec<(i64, u32)> = left
            .iter()
            .map(|bytes| BatchHeader::parse(bytes).unwrap())
            .map(|header| (header.base_offset.0, u32::try_from(header.count).unwrap()))
            .collect();
        assert_eq!(counts, [(7, 1), (8, 1), (10, 1)]);
        assert_eq!(*gone.lock(), [aborted(0, 2), aborted(3, 5)]);
    }
}
