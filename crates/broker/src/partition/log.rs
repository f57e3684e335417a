//! The log of one partition, as everything above it sees it.
//!
//! A trait, because the place of a partition's records will differ: on the local disk, on the disks of several brokers,
//! or in an object store. One call handles one batch or one read; no call handles a single record.

use std::sync::Arc;

use model::{Offset, StreamId, Timestamp};
use storage::index::BatchPlace;
use storage::{
    Admission, AdmitError, Append, AppendError, Batches, Bounds, Completion, Durability, Level, Producers,
    ROOM_PATIENCE, ReadDone, ReadError, ReadRequest, ReadStep, Stream,
};
use tokio::sync::Notify;
use uuid::Uuid;
use wire::records::TransactionResult;

use super::Placed;
use crate::logs::OpenLog;
use crate::transactions::{AbortedTransaction, StoredTransactions};

/// The offsets that bound a partition's records: `start <= visible <= synced`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogBounds {
    /// The first record that is not deleted.
    pub start: Offset,
    /// The offset after the last record that consumers may see: the high watermark. An `acks=all` append is
    /// acknowledged when its records are below.
    pub visible: Offset,
    /// The offset after the last record that this broker's disk keeps through a power cut. A partition that is opened
    /// goes on from here.
    pub synced: Offset,
    /// Bytes of all batches.
    pub bytes: u64,
    /// The first offset with a copy on this broker's disk; the start, or above it if older records are in the object
    /// store alone.
    pub local_start: Offset,
    /// Records below are in the object store. `None` if none ever were.
    pub stored: Option<Offset>,
}

/// What a log knew of a partition when the log was opened.
#[derive(Debug, Default)]
pub struct Restored {
    /// Its idempotent producers.
    pub producers: Producers,
    /// Its open and aborted transactions.
    pub transactions: StoredTransactions,
}

/// Takes the result of [`PartitionLog::search`], on a thread of the log.
pub type Found = Box<dyn FnOnce(Result<Option<BatchPlace>, ReadError>) + Send>;

/// The log of one partition.
///
/// Appends must come in the order of their offsets. A caller holds the partition's lock for that. No method blocks,
/// except [`PartitionLog::read_stretch`]. The leader epoch of the partition is the fence: the partition refuses what an
/// earlier leader admitted, before it calls the log.
pub trait PartitionLog: std::fmt::Debug + Send + Sync {
    /// The id of the log that also holds other partitions. Partitions with one id share group commits and reads.
    fn log_id(&self) -> Uuid;

    /// The partition's bounds at this moment.
    fn bounds(&self) -> LogBounds;

    /// Reserves room for a batch of `bytes`. Comes before the choice of the batch's offset. Fails with
    /// [`AdmitError::Busy`] if room is being made: see [`PartitionLog::room`].
    fn admit(&self, bytes: usize) -> Result<Admission, AdmitError>;

    /// Like [`PartitionLog::admit`], for what the broker writes by itself: also while the object store takes no more of a
    /// diskless partition.
    fn admit_own(&self, bytes: usize) -> Result<Admission, AdmitError>;

    /// Notified when there is room again.
    fn room(&self) -> &Notify;

    /// Queues a batch. An admitted batch is written, or the log stops.
    fn append(&self, batch: Placed);

    /// Notes that a transaction of the producer begins with the next queued batch, at the offset `first`.
    fn begin_transaction(&self, of: (i64, Offset), room: Admission, now_ms: i64);

    /// Notes that the transaction which began at the offset `first` ends with the next queued marker.
    fn end_transaction(
        &self,
        of: (i64, Offset),
        marker: (Offset, TransactionResult),
        room: Admission,
        now_ms: i64,
    );

    /// Notes that nothing is left of an aborted transaction. `done` is called when the note is durable.
    fn forget_transaction(
        &self,
        gone: &AbortedTransaction,
        room: Admission,
        now_ms: i64,
        done: Arc<dyn Completion>,
    );

    /// Deletes the records below `to`, at most those that are visible. `done` is called when that is durable.
    fn trim(&self, to: Offset, done: Arc<dyn Completion>);

    /// Deletes the records that are older than `oldest`, and the oldest beyond `bytes_max`. Returns the new start if
    /// it moves.
    fn retain(&self, oldest: Option<Timestamp>, bytes_max: Option<u64>) -> Option<Offset>;

    /// Says whether the records go to the object store from now on, and when they are visible. A partition is diskless
    /// from its first record on, and stays so.
    fn set_level(&self, level: Level);

    /// Sends the records to the object store, and no record of another partition that came behind one of them before it.
    /// Call this after opening.
    fn set_leading(&self);

    /// Drops local copies of stored records: those older than `oldest`, and the oldest beyond `bytes_max`.
    fn retain_locally(&self, oldest: Option<Timestamp>, bytes_max: Option<u64>);

    /// Deletes the records that are in the object store alone, and gives up the copies there. It takes several calls.
    fn forget_stored(&self);

    /// Deletes all records, for a partition that is deleted.
    fn delete(&self);

    /// A request to read from this log.
    fn request(&self, from: Offset, until: Offset, bytes_max: usize) -> ReadRequest;

    /// Reads from memory, or says that the records are not there.
    fn read(&self, request: &ReadRequest) -> Result<ReadStep, ReadError>;

    /// Reads on a thread of the log. The requests are of partitions with this log id. They return at most `bytes_max`
    /// bytes together.
    fn read_later(&self, requests: Vec<ReadRequest>, bytes_max: usize, done: Box<dyn ReadDone>);

    /// Reads also from disk, up to the end of the stretch of the log in which the read begins. Blocks.
    fn read_stretch(&self, request: &ReadRequest) -> Result<Batches, ReadError>;

    /// Finds the first batch with a record at or after `timestamp`; without a timestamp the first one that holds the
    /// largest timestamp.
    fn search(&self, timestamp: Option<Timestamp>, found: Found);

    /// The error for which the log takes no more appends.
    fn stopped(&self) -> Option<AppendError>;

    /// What the log knew of the partition when it was opened. A second call returns no transactions.
    fn take_restored(&self) -> Restored;

    /// The local log, if the records are in one: for compaction and for what shows directories.
    fn local(&self) -> Option<&LocalLog>;
}

impl dyn PartitionLog + '_ {
    /// Reserves room for a batch of `bytes`. Waits for it, for at most [`ROOM_PATIENCE`].
    pub async fn reserve(&self, bytes: usize) -> Result<Admission, AdmitError> {
        match self.admit(bytes) {
            // The wait is apart, because its state makes every future large that may wait.
            Err(AdmitError::Busy) => Box::pin(self.reserve_later(bytes)).await,
            admitted => admitted,
        }
    }

    async fn reserve_later(&self, bytes: usize) -> Result<Admission, AdmitError> {
        let deadline = tokio::time::Instant::now() + ROOM_PATIENCE;
        loop {
            let room = self.room().notified();
            match self.admit(bytes) {
                Err(AdmitError::Busy) if tokio::time::timeout_at(deadline, room).await.is_ok() => {}
                admitted => return admitted,
            }
        }
    }
}

/// A partition's log on a disk of this broker. Its records are visible once they are synced, or, of a diskless topic, once
/// they are in the object store.
#[derive(Clone, Debug)]
pub struct LocalLog {
    /// The log, which holds other partitions too.
    pub log: Arc<OpenLog>,
    /// The partition's stream in it.
    pub stream: Arc<Stream>,
}

impl LocalLog {
    /// The log of the partition whose records are in the stream `id` of `log`.
    pub fn new(log: Arc<OpenLog>, id: StreamId) -> LocalLog {
        LocalLog { stream: log.log.stream(id), log }
    }
}

impl PartitionLog for LocalLog {
    fn log_id(&self) -> Uuid {
        self.log.id
    }

    fn bounds(&self) -> LogBounds {
        let Bounds { start, committed, synced, bytes, local_start, stored } = self.stream.bounds();
        LogBounds { start, visible: committed, synced, bytes, local_start, stored }
    }

    fn admit(&self, bytes: usize) -> Result<Admission, AdmitError> {
        self.log.log.admit_to(&self.stream, bytes)
    }

    fn admit_own(&self, bytes: usize) -> Result<Admission, AdmitError> {
        self.log.log.admit(bytes)
    }

    fn room(&self) -> &Notify {
        &self.log.room
    }

    fn append(&self, Placed { batch, base_offset, leader_epoch, durability, done, admission }: Placed) {
        let durability = match durability {
            Durability::Synced if self.stream.level().waits() => Durability::Visible,
            durability => durability,
        };
        self.log.log.append(Append {
            stream: self.stream.clone(),
            base_offset,
            header: batch.header,
            batch: batch.bytes,
            append_time: batch.append_time,
            leader_epoch,
            durability,
            done,
            admission,
        });
    }

    fn begin_transaction(&self, of: (i64, Offset), room: Admission, now_ms: i64) {
        self.log.transactions.begin(&self.log.log, self.stream.id(), of, room, now_ms);
    }

    fn end_transaction(
        &self,
        of: (i64, Offset),
        marker: (Offset, TransactionResult),
        room: Admission,
        now_ms: i64,
    ) {
        self.log.transactions.end(&self.log.log, self.stream.id(), of, marker, room, now_ms);
    }

    fn forget_transaction(
        &self,
        gone: &AbortedTransaction,
        room: Admission,
        now_ms: i64,
        done: Arc<dyn Completion>,
    ) {
        self.log.transactions.forget(&self.log.log, self.stream.id(), gone, room, now_ms, done);
    }

    fn trim(&self, to: Offset, done: Arc<dyn Completion>) {
        self.log.log.trim(&self.stream, to, Some(done));
    }

    fn retain(&self, oldest: Option<Timestamp>, bytes_max: Option<u64>) -> Option<Offset> {
        self.log.log.retain(&self.stream, oldest, bytes_max)
    }

    fn set_level(&self, level: Level) {
        self.log.log.set_level(&self.stream, level);
    }

    fn set_leading(&self) {
        self.log.log.set_leading(&self.stream);
    }

    fn retain_locally(&self, oldest: Option<Timestamp>, bytes_max: Option<u64>) {
        self.log.log.retain_locally(&self.stream, oldest, bytes_max);
    }

    fn forget_stored(&self) {
        self.log.log.forget_stored(&self.stream);
    }

    fn delete(&self) {
        self.log.log.delete(&self.stream, None);
    }

    fn request(&self, from: Offset, until: Offset, bytes_max: usize) -> ReadRequest {
        ReadRequest { stream: self.stream.clone(), from, until, bytes_max, at_least_one: true }
    }

    fn read(&self, request: &ReadRequest) -> Result<ReadStep, ReadError> {
        self.log.log.read(request)
    }

    fn read_later(&self, requests: Vec<ReadRequest>, bytes_max: usize, done: Box<dyn ReadDone>) {
        self.log.log.read_later(requests, bytes_max, done);
    }

    fn read_stretch(&self, request: &ReadRequest) -> Result<Batches, ReadError> {
        self.log.log.read_stretch(request)
    }

    fn search(&self, timestamp: Option<Timestamp>, found: Found) {
        let stream = self.stream.clone();
        self.log.log.spawn_read(move |log| {
            found(match timestamp {
                Some(timestamp) => log.first_at_or_after(&stream, timestamp),
                None => log.with_max_timestamp(&stream),
            });
        });
    }

    fn stopped(&self) -> Option<AppendError> {
        self.log.log.stopped()
    }

    fn take_restored(&self) -> Restored {
        Restored {
            producers: self.stream.producers(),
            transactions: self.log.take_stored_transactions(self.stream.id()),
        }
    }

    fn local(&self) -> Option<&LocalLog> {
        Some(self)
    }
}
