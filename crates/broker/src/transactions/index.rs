//! The transaction index of a log: the first offsets of the open transactions of its streams, and the aborted
//! transactions.
//!
//! The index is a stream of the log itself. A record is queued in the log before the batch that makes it true: before a
//! transaction's first batch, and before its marker. Whatever a crash cuts off, the index is therefore never behind the
//! data. If it is ahead, the batch does not exist, and opening the index detects that.
//!
//! ```text
//! key    | version u8, 1 | stream u64 | producer id i64 | first offset i64 |     big-endian
//! value  | kind u8: 0 open, 1 aborted, 2 committed | 1 and 2: the marker's offset i64 |       none: it never was,
//!        |                                                                           or nothing is left of it
//! ```
//!
//! Of two records with one key, the later counts. Once most records are superseded, the live ones are written again and
//! the records before them are dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use model::{BatchHeader, Compression, Offset, StreamId, Timestamp};
use parking_lot::Mutex;
use storage::{
    Admission, Append, Completion, Durability, Log, ReadError, ReadRequest, Stream, wait_for_room,
};
use wire::records::{BatchBuilder, RecordView, TransactionResult, records};

use super::partition::AbortedTransaction;
use crate::placement::FIRST_EPOCH;

/// The stream of the index. Streams of partitions have numbers from 1 on.
pub const INDEX_STREAM: StreamId = StreamId(0);

const KEY_VERSION: u8 = 1;
const KEY_BYTES: usize = 25;
const OPEN: u8 = 0;
const ABORTED: u8 = 1;
const COMMITTED: u8 = 2;
const READ_BYTES: usize = 1024 * 1024;
/// Records of the index that one reader has in memory at a time, at most.
const READ_RECORDS: i64 = 1024;
/// The index is rewritten once it has this many records and ...
///
/// A new owner of the log reads them, and each may be in an object of its own.
const REWRITE_RECORDS_MIN: i64 = 256;
/// ... this many times more records than live ones.
const REWRITE_FACTOR: i64 = 4;
const REWRITE_BATCH_RECORDS: usize = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Key {
    stream: StreamId,
    producer_id: i64,
    first_offset: Offset,
}

/// The outcome of a stored transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Open,
    /// Aborted, with the offset of its marker.
    Aborted(Offset),
    /// Committed, with the offset of its marker. Kept in memory only while it is unknown whether the marker exists.
    Committed(Offset),
}

#[derive(Debug)]
struct State {
    next_offset: Offset,
    live: HashMap<Key, Fate>,
    /// Corrections that are not yet written, for records about batches that do not exist. Other batches may take the
    /// offsets of those batches.
    corrections: Vec<(Key, Option<Fate>)>,
    /// Transactions that are open because their markers do not exist, as they are to end. Their records in the index stay:
    /// the partition ends them before it appends anything, so no other batch takes the offset of a marker.
    decided: HashMap<Key, Fate>,
    /// Where the last rewriting begins; after an opening, the start of the index.
    rewritten: Offset,
    /// Where it ends, as long as the records before it are there.
    rewritten_until: Option<Offset>,
}

/// The transaction index of one log.
#[derive(Debug)]
pub struct TransactionIndex {
    stream: Arc<Stream>,
    state: Mutex<State>,
}

/// The transactions of one stream as they were stored.
#[derive(Debug, Default)]
pub struct StoredTransactions {
    /// Producers with an open transaction, each with its first offset.
    pub open: Vec<(i64, Offset)>,
    /// Those of them whose transaction was to end with a marker that the log does not have. In the order of these markers:
    /// a transaction is known to lack its marker as long as the partition does not reach the offset of that marker.
    pub decided: VecDeque<(i64, TransactionResult)>,
    /// In no particular order.
    pub aborted: Vec<AbortedTransaction>,
}

impl TransactionIndex {
    /// Upper bound in bytes of a batch of one record: the batch header, and the record with its lengths. Every
    /// transactional batch and marker reserves this space.
    pub const RECORD_BYTES: usize = model::batch::HEADER_BYTES + 64;

    /// Reads the index of `log` on `readers` threads. Blocks. [`TransactionIndex::write_corrections`] has to follow before anything
    /// else is appended.
    ///
    /// In a log that was taken over, the index lies in many objects, a few records in each.
    pub fn load(log: &Log, readers: usize) -> Result<TransactionIndex, ReadError> {
        let stream = log.stream(INDEX_STREAM);
        // A log that is restored from its objects needs the index, too, and all of it that its records need.
        log.set_leading(&stream);
        let bounds = stream.bounds();
        let mut live = HashMap::new();
        let readers = i64::try_from(readers.max(1)).unwrap_or(i64::MAX);
        let each = (bounds.committed - bounds.start + readers - 1) / readers;
        let each = each.clamp(1, READ_RECORDS);
        let (mut from, mut taken) = (bounds.start, bounds.start);
        while from < bounds.committed {
            let part = |n| {
                let part = (from + n * each, (from + (n + 1) * each).min(bounds.committed));
                (part.0 < part.1).then_some(part)
            };
            let parts: Vec<(Offset, Offset)> = (0..readers).map_while(part).collect();
            for part in read_parts(log, &stream, &parts) {
                for (bytes, next) in part? {
                    take_in_batches(&mut live, bytes, taken)?;
                    taken = next;
                }
            }
            from = parts.last().map_or(bounds.committed, |(_, until)| *until);
        }
        if taken != bounds.committed {
            return Err(missing(taken));
        }
        let state = State {
            next_offset: bounds.committed,
            live,
            corrections: Vec::new(),
            decided: HashMap::new(),
            rewritten: bounds.start,
            rewritten_until: None,
        };
        let index = TransactionIndex { stream, state: Mutex::new(state) };
        index.drop_what_never_was(log);
        Ok(index)
    }

    /// Writes the corrections for which there is room. Waits for it.
    pub fn write_corrections(&self, log: &Log, now_ms: i64) {
        let mut state = self.state.lock();
        for correction in std::mem::take(&mut state.corrections) {
            match wait_for_room(|| log.admit(Self::RECORD_BYTES)) {
                Ok(room) => self.append(log, &mut state, &[correction], room, now_ms, Durability::Written),
                Err(_) => state.corrections.push(correction),
            }
        }
    }

    fn drop_what_never_was(&self, log: &Log) {
        let mut state = self.state.lock();
        let bounds: HashMap<StreamId, storage::Bounds> =
            log.streams().iter().map(|stream| (stream.id(), stream.bounds())).collect();
        let never = |key: &Key| bounds.get(&key.stream).is_none_or(|b| key.first_offset >= b.synced);
        let gone: Vec<Key> = state.live.keys().filter(|key| never(key)).copied().collect();
        for key in gone {
            state.live.remove(&key);
            state.corrections.push((key, None));
        }
        let State { live, decided, .. } = &mut *state;
        live.retain(|key, fate| {
            let (Fate::Aborted(last) | Fate::Committed(last)) = *fate else { return true };
            // A marker that waits for the object store or for copies exists.
            if bounds.get(&key.stream).is_none_or(|b| last >= b.synced) {
                // The marker does not exist, so the transaction is open.
                decided.insert(*key, std::mem::replace(fate, Fate::Open));
            }
            !matches!(fate, Fate::Committed(_))
        });
    }

    /// The transactions of all streams.
    pub fn stored(&self) -> HashMap<StreamId, StoredTransactions> {
        let mut all: HashMap<StreamId, StoredTransactions> = HashMap::new();
        let state = self.state.lock();
        let ended = |(key, fate): (&Key, &Fate)| match *fate {
            Fate::Open => None,
            Fate::Aborted(marker) => Some((marker, *key, TransactionResult::Abort)),
            Fate::Committed(marker) => Some((marker, *key, TransactionResult::Commit)),
        };
        let mut decided: Vec<_> = state.decided.iter().filter_map(ended).collect();
        decided.sort_unstable_by_key(|(marker, ..)| *marker);
        for (_, key, result) in decided {
            all.entry(key.stream).or_default().decided.push_back((key.producer_id, result));
        }
        for (key, fate) in &state.live {
            let of = all.entry(key.stream).or_default();
            match fate {
                Fate::Open => of.open.push((key.producer_id, key.first_offset)),
                // A committed transaction needs no entry.
                Fate::Committed(_) => {}
                Fate::Aborted(last_offset) => of.aborted.push(AbortedTransaction {
                    producer_id: key.producer_id,
                    first_offset: key.first_offset,
                    last_offset: *last_offset,
                }),
            }
        }
        all
    }

    /// Notes that a transaction begins with the next queued batch.
    pub fn begin(
        &self,
        log: &Log,
        stream: StreamId,
        (producer_id, first): (i64, Offset),
        room: Admission,
        now_ms: i64,
    ) {
        let key = Key { stream, producer_id, first_offset: first };
        let mut state = self.state.lock();
        // The missing batch may come again and get the same offset.
        state.corrections.retain(|(other, _)| *other != key);
        state.live.insert(key, Fate::Open);
        self.append(log, &mut state, &[(key, Some(Fate::Open))], room, now_ms, Durability::Written);
    }

    /// Notes that a transaction ends with the next queued marker.
    pub fn end(
        &self,
        log: &Log,
        stream: StreamId,
        (producer_id, first): (i64, Offset),
        (marker, result): (Offset, TransactionResult),
        room: Admission,
        now_ms: i64,
    ) {
        let key = Key { stream, producer_id, first_offset: first };
        let mut state = self.state.lock();
        state.decided.remove(&key);
        let fate = match result {
            TransactionResult::Abort => {
                state.live.insert(key, Fate::Aborted(marker));
                Fate::Aborted(marker)
            }
            TransactionResult::Commit => {
                state.live.remove(&key);
                Fate::Committed(marker)
            }
        };
        self.append(log, &mut state, &[(key, Some(fate))], room, now_ms, Durability::Written);
    }

    /// Notes that nothing is left of an aborted transaction. Calls `done` when the note is durable.
    pub fn forget(
        &self,
        log: &Log,
        stream: StreamId,
        gone: &AbortedTransaction,
        room: Admission,
        now_ms: i64,
        done: Arc<dyn Completion>,
    ) {
        let key = Key { stream, producer_id: gone.producer_id, first_offset: gone.first_offset };
        let mut state = self.state.lock();
        state.live.remove(&key);
        let told = (Durability::Synced, Some(done));
        self.append_and_tell(log, &mut state, &[(key, None)], (room, now_ms), told);
    }

    /// Forgets transactions of which nothing is left, writes pending corrections, and rewrites the index if most of it
    /// is superseded. `start_of` returns the start of a stream that also the next owner of the log will know
    /// ([`Log::lasting_start`]), or `None` if the stream does not exist any more.
    pub fn maintain(&self, log: &Arc<Log>, start_of: impl Fn(StreamId) -> Option<Offset>, now_ms: i64) {
        let mut state = self.state.lock();
        state.live.retain(|key, fate| match (start_of(key.stream), *fate) {
            (None, _) => false,
            (Some(start), Fate::Aborted(last)) => last >= start,
            (Some(_), Fate::Open) => true,
            (Some(_), Fate::Committed(_)) => false,
        });
        state.decided.retain(|key, _| start_of(key.stream).is_some());
        for correction in std::mem::take(&mut state.corrections) {
            match log.admit(Self::RECORD_BYTES) {
                Ok(room) => self.append(log, &mut state, &[correction], room, now_ms, Durability::Written),
                Err(_) => state.corrections.push(correction),
            }
        }
        self.shorten_locked(log, &mut state, now_ms);
    }

    /// Rewrites the index if most of it is superseded.
    pub fn shorten(&self, log: &Arc<Log>, now_ms: i64) {
        self.shorten_locked(log, &mut self.state.lock(), now_ms);
    }

    fn shorten_locked(&self, log: &Log, state: &mut State, now_ms: i64) {
        let bounds = self.stream.bounds();
        // An object may record the new start, and have none of the new records yet.
        let kept = if log.epochs().is_some() { bounds.stored.unwrap_or(bounds.start) } else { bounds.synced };
        if let Some(until) = state.rewritten_until {
            if kept < until {
                return;
            }
            log.trim(&self.stream, state.rewritten, None);
            state.rewritten_until = None;
        }
        let records = state.next_offset - state.rewritten;
        let live = i64::try_from(state.live.len()).unwrap_or(i64::MAX);
        if records < REWRITE_RECORDS_MIN || records / REWRITE_FACTOR < live || !state.corrections.is_empty() {
            return;
        }
        let fate_of = |(key, fate): (&Key, &Fate)| (*key, Some(*state.decided.get(key).unwrap_or(fate)));
        let mut all: Vec<_> = state.live.iter().map(fate_of).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        let chunks: Vec<_> = all.chunks(REWRITE_BATCH_RECORDS).collect();
        let rooms: Result<Vec<_>, _> =
            chunks.iter().map(|chunk| log.admit(Self::RECORD_BYTES * chunk.len())).collect();
        // The disk is full. The next call tries again.
        let Ok(rooms) = rooms else { return };
        state.rewritten = state.next_offset;
        for (chunk, room) in chunks.into_iter().zip(rooms) {
            self.append(log, state, chunk, room, now_ms, Durability::Synced);
        }
        // If nothing is live, this is where it begins: all records so far have to be kept.
        state.rewritten_until = Some(state.next_offset);
    }

    fn append(
        &self,
        log: &Log,
        state: &mut State,
        entries: &[(Key, Option<Fate>)],
        admission: Admission,
        now_ms: i64,
        durability: Durability,
    ) {
        self.append_and_tell(log, state, entries, (admission, now_ms), (durability, None));
    }

    fn append_and_tell(
        &self,
        log: &Log,
        state: &mut State,
        entries: &[(Key, Option<Fate>)],
        (admission, now_ms): (Admission, i64),
        (durability, done): (Durability, Option<Arc<dyn Completion>>),
    ) {
        let mut builder = BatchBuilder::new(Compression::None);
        for (key, fate) in entries {
            let value = fate.map(encode_fate);
            builder.push(Timestamp(now_ms), Some(&encode_key(key)), value.as_deref());
        }
        let batch = builder.finish();
        let header = BatchHeader::parse(&batch).expect("the batch was just built");
        let base_offset = state.next_offset;
        state.next_offset = base_offset + header.offset_count();
        log.append(Append {
            stream: self.stream.clone(),
            base_offset,
            header,
            batch,
            append_time: None,
            leader_epoch: FIRST_EPOCH,
            // The batch that the record belongs to stands behind it in the log and is synced when required.
            durability,
            done,
            admission,
        });
    }
}

fn encode_key(key: &Key) -> [u8; KEY_BYTES] {
    let mut out = BytesMut::with_capacity(KEY_BYTES);
    out.put_u8(KEY_VERSION);
    out.put_u64(key.stream.0);
    out.put_i64(key.producer_id);
    out.put_i64(key.first_offset.0);
    out[..].try_into().expect("a key has one length")
}

fn encode_fate(fate: Fate) -> Vec<u8> {
    match fate {
        Fate::Open => vec![OPEN],
        Fate::Aborted(last) => [&[ABORTED][..], &last.0.to_be_bytes()].concat(),
        Fate::Committed(last) => [&[COMMITTED][..], &last.0.to_be_bytes()].concat(),
    }
}

/// Reads parts of the index, each on a thread of its own: batches, with the offset behind them. A batch that lies in several parts
/// is in the last one.
fn read_parts(
    log: &Log,
    stream: &Arc<Stream>,
    parts: &[(Offset, Offset)],
) -> Vec<Result<Vec<(Bytes, Offset)>, ReadError>> {
    let read = |(mut from, until): (Offset, Offset)| {
        let mut all = Vec::new();
        while from < until {
            let request = ReadRequest {
                stream: stream.clone(),
                from,
                until,
                bytes_max: READ_BYTES,
                at_least_one: true,
            };
            let batches = log.read_blocking(&request)?;
            let Some(next) = batches.next else { break };
            all.push((Bytes::from(batches.chunks.concat()), next));
            from = next;
        }
        Ok(all)
    };
    if let [part] = parts {
        return vec![read(*part)];
    }
    std::thread::scope(|scope| {
        let readers: Vec<_> = parts.iter().map(|part| scope.spawn(move || read(*part))).collect();
        let joined = readers.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|read| read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn missing(from: Offset) -> ReadError {
    let what = format!("its record {from} is missing");
    ReadError::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
}

/// Takes in the records of several batches, which go on at `from`.
fn take_in_batches(
    live: &mut HashMap<Key, Fate>,
    mut bytes: Bytes,
    mut from: Offset,
) -> Result<(), ReadError> {
    while !bytes.is_empty() {
        match records(&bytes, READ_BYTES) {
            Ok((header, all)) => {
                if header.base_offset > from {
                    return Err(missing(from));
                }
                from = header.base_offset + header.offset_count();
                bytes = bytes.slice(header.total_bytes..);
                all.filter_map(Result::ok).for_each(|record| take_in(live, &record));
            }
            Err(error) => {
                // The log's checksums have passed, so the batch was written in this form.
                tracing::error!(%error, "a batch of the transaction index cannot be read");
                break;
            }
        }
    }
    Ok(())
}

fn take_in(live: &mut HashMap<Key, Fate>, record: &RecordView) {
    let Some(key) = record.key.as_deref().and_then(decode_key) else { return };
    match record.value.as_deref().map(decode_fate) {
        None => {
            live.remove(&key);
        }
        Some(Some(fate)) => {
            live.insert(key, fate);
        }
        Some(None) => tracing::error!(?key, "a record of the transaction index cannot be read"),
    }
}

fn decode_key(bytes: &[u8]) -> Option<Key> {
    let bytes: &[u8; KEY_BYTES] = bytes.try_into().ok()?;
    let field = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (bytes[0] == KEY_VERSION).then(|| Key {
        stream: StreamId(field(1).cast_unsigned()),
        producer_id: field(9),
        first_offset: Offset(field(17)),
    })
}

fn decode_fate(bytes: &[u8]) -> Option<Fate> {
    match bytes {
        [OPEN] => Some(Fate::Open),
        [ABORTED, last @ ..] => Some(Fate::Aborted(Offset(i64::from_be_bytes(last.try_into().ok()?)))),
        [COMMITTED, last @ ..] => Some(Fate::Committed(Offset(i64::from_be_bytes(last.try_into().ok()?)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::SimDisk;
    use storage::takeover::TakeOver;
    use storage::{NoListener, Options, SystemClock};

    const STREAM: StreamId = StreamId(5);
    const ABORT: TransactionResult = TransactionResult::Abort;
    const COMMIT: TransactionResult = TransactionResult::Commit;

    fn open(disk: &SimDisk) -> (Arc<Log>, TransactionIndex) {
        let options = Options { segment_bytes: 1 << 20, reserve_bytes: 0, ..Options::default() };
        let (clock, listener) = (Arc::new(SystemClock::default()), Arc::new(NoListener));
        let log = Arc::new(Log::open(Arc::new(disk.clone()), options, clock, listener).unwrap());
        let end = log.stream(INDEX_STREAM).bounds().committed;
        let index = TransactionIndex::load(&log, 2).unwrap();
        assert_eq!(index.state.lock().next_offset, end, "nothing is written before the log may be used");
        index.write_corrections(&log, 0);
        (log, index)
    }

    fn room(log: &Log) -> Admission {
        loop {
            match log.admit(TransactionIndex::RECORD_BYTES) {
                Ok(room) => return room,
                // The log is preparing another segment.
                Err(storage::AdmitError::Busy) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A batch of one record.
    fn append(log: &Log, base: i64) {
        let mut builder = BatchBuilder::new(Compression::None);
        builder.push(Timestamp(1), None, Some(b"value"));
        let batch = builder.finish();
        log.append(Append {
            stream: log.stream(STREAM),
            base_offset: Offset(base),
            header: BatchHeader::parse(&batch).unwrap(),
            admission: log.admit(batch.len()).unwrap(),
            batch,
            append_time: None,
            leader_epoch: 0,
            durability: Durability::Synced,
            done: None,
        });
    }

    fn open_ones(index: &TransactionIndex) -> Vec<(i64, i64)> {
        let stored = index.stored().remove(&STREAM).unwrap_or_default();
        let mut open: Vec<_> = stored.open.iter().map(|(producer, first)| (*producer, first.0)).collect();
        open.sort_unstable();
        open
    }

    #[test]
    fn what_is_ahead_of_the_data_is_taken_back_when_the_log_is_opened() {
        let disk = SimDisk::new(1);
        let (log, index) = open(&disk);
        for producer in 0..3 {
            index.begin(&log, STREAM, (producer, Offset(producer)), room(&log), 0);
            append(&log, producer);
        }
        // One transaction is aborted and has its marker. One is committed and one aborted, both without a marker. One
        // has no batch.
        index.end(&log, STREAM, (0, Offset(0)), (Offset(3), ABORT), room(&log), 0);
        append(&log, 3);
        index.end(&log, STREAM, (1, Offset(1)), (Offset(4), COMMIT), room(&log), 0);
        index.end(&log, STREAM, (2, Offset(2)), (Offset(5), ABORT), room(&log), 0);
        index.begin(&log, STREAM, (9, Offset(4)), room(&log), 0);
        assert_eq!(open_ones(&index), [(9, 4)]);
        log.close();

        let (log, index) = open(&disk);
        assert_eq!(open_ones(&index), [(1, 1), (2, 2)]);
        let stored = index.stored().remove(&STREAM).unwrap();
        assert_eq!((stored.aborted.len(), stored.decided), (1, [(1, COMMIT), (2, ABORT)].into()));
        index.maintain(&log, |stream| (stream == STREAM).then_some(Offset(0)), 0);
        log.close();

        // There was no room for the markers. The next opening knows of them, too.
        let (log, index) = open(&disk);
        let decided = |index: &TransactionIndex| index.stored().remove(&STREAM).unwrap().decided;
        assert_eq!(decided(&index).len(), 2);
        index.end(&log, STREAM, (1, Offset(1)), (Offset(4), COMMIT), room(&log), 0);
        append(&log, 4);
        assert_eq!(decided(&index), [(2, ABORT)]);
        log.close();

        let (log, index) = open(&disk);
        assert_eq!(open_ones(&index), [(2, 2)]);
        index.end(&log, STREAM, (2, Offset(2)), (Offset(5), ABORT), room(&log), 0);
        append(&log, 5);
        log.close();

        let (log, index) = open(&disk);
        assert_eq!(open_ones(&index), []);
        // The index keeps nothing about a stream that does not exist any more.
        index.maintain(&log, |_| None, 0);
        assert!(index.stored().is_empty());
        log.close();
    }

    #[test]
    fn the_index_is_written_anew_when_most_of_it_is_superseded() {
        let disk = SimDisk::new(2);
        let (log, index) = open(&disk);
        append(&log, 0);
        append(&log, 1);
        index.begin(&log, STREAM, (7, Offset(0)), room(&log), 0);
        for _ in 0..REWRITE_RECORDS_MIN {
            index.begin(&log, STREAM, (8, Offset(1)), room(&log), 0);
        }
        let before = index.stream.bounds().start;
        // The log may be preparing its next segment, as it may in use, and the index is then rewritten by a later call.
        // The old records are dropped when the new ones are durable. A log that is being closed accepts no such
        // request.
        while index.stream.bounds().start <= before + REWRITE_RECORDS_MIN {
            index.maintain(&log, |_| Some(Offset(0)), 0);
            std::thread::yield_now();
        }
        log.close();
        let (log, index) = open(&disk);
        assert!(index.stream.bounds().start > before + REWRITE_RECORDS_MIN);
        assert_eq!(open_ones(&index), [(7, 0), (8, 1)]);
        log.close();
    }

    /// A log with a store, which stores nothing for now.
    fn open_owned() -> (Arc<Log>, TransactionIndex) {
        let bucket: Arc<dyn objects::Bucket> = Arc::new(objects::sim::SimBucket::new(1));
        let owned = TakeOver::new(bucket.clone(), 1, 1).finish(&|_, _| false).unwrap();
        let options = Options {
            segment_bytes: 1 << 20,
            reserve_bytes: 0,
            log_id: 1,
            owned: Some(owned),
            upload_interval_ms: 3_600_000,
            ..Options::default()
        };
        let (clock, listener) = (Arc::new(SystemClock::default()), Arc::new(NoListener));
        let disk = Arc::new(SimDisk::new(3));
        let log = Arc::new(Log::open_tiered(disk, Some(bucket), options, clock, listener).unwrap());
        let index = TransactionIndex::load(&log, 1).unwrap();
        (log, index)
    }

    /// The next owner gets the start that an object records, with the records behind it.
    #[test]
    fn an_aborted_transaction_is_known_as_long_as_the_next_owner_may_have_its_records() {
        let (log, index) = open_owned();
        append(&log, 0);
        index.begin(&log, STREAM, (7, Offset(0)), room(&log), 0);
        index.end(&log, STREAM, (7, Offset(0)), (Offset(1), ABORT), room(&log), 0);
        append(&log, 1);
        append(&log, 2);
        let stream = log.stream(STREAM);
        while stream.bounds().committed < Offset(3) {
            std::thread::yield_now();
        }
        log.trim(&stream, Offset(2), None);
        while stream.bounds().start < Offset(2) {
            std::thread::yield_now();
        }
        let maintain = || index.maintain(&log, |stream| Some(log.lasting_start(&log.stream(stream))), 0);
        maintain();
        assert_eq!(index.stored().remove(&STREAM).unwrap().aborted.len(), 1);
        // Nobody waits for the trim. The next object records it.
        log.store_at_once();
        while log.lasting_start(&stream) < Offset(2) {
            index.begin(&log, STREAM, (8, Offset(2)), room(&log), 0);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        maintain();
        assert!(index.stored().remove(&STREAM).is_none_or(|stored| stored.aborted.is_empty()));
        log.close();
    }

    /// The next owner has only what is in objects: the old records, or the new ones.
    #[test]
    fn where_a_log_may_move_old_records_stay_until_the_new_ones_are_stored() {
        let (log, index) = open_owned();
        append(&log, 0);
        for _ in 0..REWRITE_RECORDS_MIN {
            index.begin(&log, STREAM, (7, Offset(0)), room(&log), 0);
        }
        while index.state.lock().rewritten_until.is_none() {
            index.shorten(&log, 0);
        }
        let end = index.state.lock().next_offset;
        while index.stream.bounds().synced < end {
            std::thread::yield_now();
        }
        index.shorten(&log, 0);
        assert!(index.state.lock().rewritten_until.is_some(), "nothing is stored");
        log.store_at_once();
        while index.stream.bounds().start < Offset(REWRITE_RECORDS_MIN) {
            index.shorten(&log, 0);
            std::thread::yield_now();
        }
        log.close();
    }
}
