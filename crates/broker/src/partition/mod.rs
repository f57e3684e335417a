//! One partition: the order of its appends, its producers and transactions, and the fetches that wait for new records.
//!
//! One short lock covers the sequence check, the choice of the offset and the position in the log's queue. The order of
//! offsets is therefore the order in the log. The lock is never held across an await.

pub mod sequence;
pub mod signal;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{BatchHeader, Offset, StreamId, Timestamp};
use parking_lot::Mutex;
use storage::{Admission, Append, AppendError, Completion, Durability, Producers, RememberedBatch, Stream};
use wire::Text;
use wire::records::{TransactionResult, end_transaction_marker};

use self::sequence::{Sequence, SequenceError};
use self::signal::Subscribers;
use crate::logs::{Lost, OpenLog};
use crate::placement::{Leader, Leadership};
use crate::transactions::{
    AbortedTransaction, Check, PartitionTransactions, StoredTransactions, TransactionIndex,
};

/// A partition of a topic.
#[derive(Debug)]
pub struct Partition {
    /// The topic's name.
    pub topic: Text,
    /// The partition's index in the topic.
    pub index: i32,
    /// The id of the partition's stream. It does not depend on the log.
    pub stream_id: StreamId,
    home: Result<Home, Arc<Lost>>,
    leadership: Leadership,
    /// The fetches and other tasks that wait for commits.
    pub subscribers: Subscribers,
    state: Mutex<State>,
    deleted: AtomicBool,
}

/// The location of a partition's records.
#[derive(Clone, Debug)]
pub struct Home {
    /// The log that holds the records.
    pub log: Arc<OpenLog>,
    /// The partition's stream in the log.
    pub stream: Arc<Stream>,
}

/// A completion that reports that a transaction is forgotten, or that the log has failed.
struct Forgotten(std::sync::mpsc::Sender<()>);

impl Completion for Forgotten {
    fn complete(&self, _: Result<(), AppendError>) {
        // The sender of the request waits on the channel.
        let _ = self.0.send(());
    }
}

#[derive(Debug)]
struct State {
    next_offset: Offset,
    /// The leader epochs, each with the next offset at its start.
    epochs: Vec<(i32, Offset)>,
    producers: Producers,
    transactions: PartitionTransactions,
}

/// Interval at which a wait for a commit checks whether the log has stopped.
const STOPPED_CHECK: Duration = Duration::from_millis(500);
/// Upper bound in bytes of a transaction marker.
pub const MARKER_BYTES: usize = 128;

/// The parameters of an append.
pub struct Order {
    /// Space in the log for the batch.
    pub admission: Admission,
    /// Space for an entry of the transaction index. Required for transactional batches and markers.
    pub index_room: Option<Admission>,
    /// Proof that the transaction coordinator was asked. For transactional batches.
    pub check: Option<Check>,
    /// Whether the producer uses a new epoch for each transaction, so that its first batch here has sequence 0
    /// (KIP-890).
    pub begins_anew: bool,
    /// The leader epoch in which the batch was admitted. A batch of another epoch is refused. `None` skips this check.
    pub leader_epoch: Option<i32>,
    /// The durability at which `done` is called.
    pub durability: Durability,
    /// Called once the batch has reached `durability`, or has failed.
    pub done: Option<Arc<dyn Completion>>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
}

impl Order {
    /// The parameters of a batch written by the server itself, without a transaction.
    pub fn plain(
        admission: Admission,
        durability: Durability,
        done: Option<Arc<dyn Completion>>,
        now_ms: i64,
    ) -> Order {
        Order {
            admission,
            index_room: None,
            check: None,
            begins_anew: false,
            leader_epoch: None,
            durability,
            done,
            now_ms,
        }
    }
}

/// A producer of a partition, as DescribeProducers shows it.
#[derive(Clone, Debug)]
pub struct ActiveProducer {
    /// The producer's id.
    pub id: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// The sequence number of the producer's last record, or -1.
    pub last_sequence: i32,
    /// Time of the producer's last append, in milliseconds since the Unix epoch.
    pub last_append_ms: i64,
    /// The first offset of the producer's open transaction.
    pub first_offset: Option<Offset>,
}

/// A partition as its leader sees it.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// The location of the records.
    pub home: &'a Home,
    /// The leader epoch.
    pub epoch: i32,
}

/// The reason why a broker cannot serve a partition.
#[derive(Clone, Copy, Debug)]
pub enum Elsewhere<'a> {
    /// Another broker leads the partition.
    Remote,
    /// The partition's log directory is lost.
    Offline(&'a Lost),
}

/// The outcome of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Appended {
    /// The batch is in the log's queue.
    New {
        /// The offset of its first record.
        base_offset: Offset,
    },
    /// The batch was appended before. It counts as done once the stream is committed up to `end`.
    Duplicate {
        /// The offset of its first record at that time.
        base_offset: Offset,
        /// The offset after its last record.
        end: Offset,
    },
}

/// A batch that has passed the checks and may be appended.
#[derive(Debug)]
pub struct Checked {
    /// As parsed from `bytes`.
    pub header: BatchHeader,
    /// The whole batch.
    pub bytes: Bytes,
    /// The append time, for topics with `message.timestamp.type=LogAppendTime`.
    pub append_time: Option<Timestamp>,
}

impl Partition {
    /// Creates a partition whose records are in the stream `stream_id` of `log`. The log is open or lost.
    pub fn new(
        topic: Text,
        index: i32,
        stream_id: StreamId,
        log: Result<Arc<OpenLog>, Arc<Lost>>,
        leader: Leader,
    ) -> Partition {
        let home = log.map(|log| Home { stream: log.log.stream(stream_id), log });
        let state = home.as_ref().map_or_else(
            |_| State {
                next_offset: Offset::ZERO,
                epochs: vec![(leader.epoch, Offset::ZERO)],
                producers: Producers::default(),
                transactions: PartitionTransactions::default(),
            },
            |Home { stream, log }| {
                let StoredTransactions { open, aborted } = log.take_stored_transactions(stream.id());
                State {
                    next_offset: stream.bounds().committed,
                    epochs: vec![(leader.epoch, Offset::ZERO)],
                    producers: stream.producers(),
                    transactions: PartitionTransactions::restored(&open, aborted),
                }
            },
        );
        Partition {
            topic,
            index,
            stream_id,
            home,
            leadership: Leadership::new(leader),
            subscribers: Subscribers::default(),
            state: Mutex::new(state),
            deleted: AtomicBool::new(false),
        }
    }

    /// The leader and its epoch.
    pub fn leader(&self) -> Leader {
        self.leadership.get()
    }

    /// The partition for use by its leader. Fails if the broker `node` does not lead the partition.
    pub fn replica(&self, node: i32) -> Result<Replica<'_>, Elsewhere<'_>> {
        let leader = self.leader();
        if leader.node != node {
            return Err(Elsewhere::Remote);
        }
        let home = self.home().map_err(Elsewhere::Offline)?;
        Ok(Replica { home, epoch: leader.epoch })
    }

    /// Sets a new leader. Batches that an earlier leader admitted and has not appended yet are refused. Waiting fetches
    /// are answered. Does nothing if the epoch is not higher than the current one.
    pub fn lead(&self, leader: Leader) {
        let mut state = self.state.lock();
        if leader.epoch <= self.leader().epoch {
            return;
        }
        let next_offset = state.next_offset;
        // As in Kafka, an epoch without records is removed.
        state.epochs.retain(|(_, began)| *began < next_offset);
        state.epochs.push((leader.epoch, next_offset));
        self.leadership.set(leader);
        drop(state);
        self.subscribers.mark(usize::MAX);
    }

    /// The end of an epoch (KIP-320): the largest epoch up to `epoch`, and the offset after its last record. For the
    /// current epoch, this offset is `end`. `None` for an epoch that has not begun.
    pub fn epoch_end(&self, epoch: i32, end: Offset) -> Option<(i32, Offset)> {
        let state = self.state.lock();
        let next = state.epochs.partition_point(|(began, _)| *began <= epoch);
        let last = next.checked_sub(1).map(|at| state.epochs[at].0);
        match (last, state.epochs.get(next)) {
            (Some(last), Some((_, begins))) => Some((last, *begins)),
            (Some(last), None) if last == epoch => Some((epoch, end)),
            // As in Kafka, epochs before the first known one have no records.
            (None, Some((_, begins))) => Some((epoch, *begins)),
            (_, None) => None,
        }
    }

    /// The leader epoch of the record at `offset`, which may not be appended yet.
    pub fn epoch_at(&self, offset: Offset) -> i32 {
        let state = self.state.lock();
        let next = state.epochs.partition_point(|(_, began)| *began <= offset);
        state.epochs[next.saturating_sub(1)].0
    }

    /// The location of the records, regardless of the leader. Fails if the log directory is lost.
    pub fn home(&self) -> Result<&Home, &Lost> {
        self.home.as_ref().map_err(|lost| &**lost)
    }

    /// Appends a batch to the log of `home`, unless the batch is a duplicate or does not continue its producer's
    /// sequence.
    pub fn append(&self, home: &Home, batch: Checked, mut order: Order) -> Result<Appended, SequenceError> {
        let mut state = self.state.lock();
        let leader_epoch = self.leader().epoch;
        if order.leader_epoch.is_some_and(|epoch| epoch != leader_epoch) {
            return Err(SequenceError::Moved);
        }
        if let Sequence::Duplicate(RememberedBatch { base_offset, offset_count, .. }) =
            sequence::check(&state.producers, &batch.header, order.begins_anew)?
        {
            return Ok(Appended::Duplicate { base_offset, end: base_offset + i64::from(offset_count) });
        }
        let producer_id = batch.header.producer_id;
        let base_offset = state.next_offset;
        if batch.header.is_transactional() {
            if state.open_epoch(producer_id).is_some_and(|epoch| epoch != batch.header.producer_epoch) {
                return Err(SequenceError::AnotherTransaction { producer_id });
            }
            if !state.transactions.may_append(producer_id, order.check) {
                // The coordinator had accepted the batch, but a marker was written since. The client retries and gets
                // the current answer.
                return Err(match order.check {
                    Some(_) => SequenceError::AnotherTransaction { producer_id },
                    None => SequenceError::NotInTransaction { producer_id },
                });
            }
            if state.transactions.begin(producer_id, base_offset) {
                let room =
                    order.index_room.take().expect("a transactional batch comes with room for the index");
                let log = &home.log;
                log.transactions.begin(
                    &log.log,
                    self.stream_id,
                    (producer_id, base_offset),
                    room,
                    order.now_ms,
                );
            }
        } else if batch.header.is_idempotent() && state.transactions.first_offset(producer_id).is_some() {
            return Err(SequenceError::NotTransactional { producer_id });
        }
        state.place(home, batch, leader_epoch, order);
        Ok(Appended::New { base_offset })
    }

    /// Appends the marker that ends a producer's transaction, if one is open. Returns the offset of the marker.
    pub fn append_marker(
        &self,
        home: &Home,
        (producer_id, epoch): (i64, i16),
        result: TransactionResult,
        mut order: Order,
    ) -> Result<Offset, SequenceError> {
        let bytes = end_transaction_marker(producer_id, epoch, result, 0, Timestamp(order.now_ms));
        let header = BatchHeader::parse(&bytes).expect("the batch was just built");
        let mut state = self.state.lock();
        if let Some(current) = state.producers.find(producer_id).map(|producer| producer.epoch)
            && epoch < current
        {
            return Err(SequenceError::Epoch { producer_id, found: epoch, current });
        }
        let offset = state.next_offset;
        if let Some(first) = state.transactions.end(producer_id, offset, result) {
            let room = order.index_room.take().expect("a marker comes with room for the index");
            let log = &home.log;
            log.transactions.end(
                &log.log,
                self.stream_id,
                (producer_id, first),
                (offset, result),
                room,
                order.now_ms,
            );
        }
        let marker = Checked { header, bytes, append_time: None };
        let leader_epoch = self.leader().epoch;
        state.place(home, marker, leader_epoch, order);
        Ok(offset)
    }

    /// Begins a check with the coordinator before a transactional batch is appended. Returns `None` if the transaction
    /// of this producer and epoch is already open here: another epoch is another transaction.
    pub fn begin_check(&self, (producer_id, epoch): (i64, i16)) -> Option<Check> {
        let mut state = self.state.lock();
        let open = state.open_epoch(producer_id) == Some(epoch);
        (!open).then(|| state.transactions.begin_check(producer_id))
    }

    /// Cancels a check that the coordinator refused.
    pub fn cancel_check(&self, producer_id: i64, check: Check) {
        self.state.lock().transactions.cancel_check(producer_id, check);
    }

    /// The offset of the next record. All records before it are in the log's queue, but some may not be committed yet.
    pub fn next_offset(&self) -> Offset {
        self.state.lock().next_offset
    }

    /// Waits until the partition is committed up to `end`. `home` must be its location.
    ///
    /// # Errors
    /// [`AppendError`] if the log has stopped.
    pub async fn committed(&self, home: &Home, end: Offset) -> Result<(), AppendError> {
        let subscription = self.subscribers.subscribe();
        let signal = subscription.signal();
        loop {
            if home.stream.bounds().committed >= end {
                return Ok(());
            }
            if let Some(error) = home.log.log.stopped() {
                return Err(error);
            }
            // After a time-out or a wake-up, the loop checks both conditions again.
            let _ = tokio::time::timeout(STOPPED_CHECK, signal.wait(1)).await;
            signal.take_dirty();
        }
    }

    /// The first offset of a producer's open transaction.
    pub fn transaction_start(&self, producer_id: i64) -> Option<Offset> {
        self.state.lock().transactions.first_offset(producer_id)
    }

    /// The last stable offset of a partition that is committed up to `committed`.
    pub fn last_stable_offset(&self, committed: Offset) -> Offset {
        // The log start may have moved into an open transaction.
        let start = self.home.as_ref().map_or(Offset::ZERO, |home| home.stream.bounds().start);
        let stable = self.state.lock().transactions.last_stable_offset(committed);
        stable.max(start).min(committed)
    }

    /// The aborted transactions with records in `from..until`.
    pub fn aborted_between(&self, from: Offset, until: Offset) -> Vec<AbortedTransaction> {
        self.state.lock().transactions.aborted_between(from, until)
    }

    /// Forgets aborted transactions whose records are all gone. Durable on return. If the disk is full, the
    /// transactions stay and are found again later. Blocks.
    pub fn forget_aborted(&self, gone: &[AbortedTransaction], now_ms: i64) {
        let Ok(home) = self.home() else { return };
        let (sender, forgotten) = std::sync::mpsc::channel();
        for transaction in gone {
            let Ok(room) = home.log.log.admit(TransactionIndex::RECORD_BYTES) else { break };
            let mut state = self.state.lock();
            if state.transactions.forget_aborted(transaction) {
                let done = Arc::new(Forgotten(sender.clone()));
                home.log.transactions.forget(&home.log.log, self.stream_id, transaction, room, now_ms, done);
            }
        }
        drop(sender);
        // The loop ends when the last completion has dropped its sender.
        forgotten.iter().for_each(drop);
    }

    /// The producers of the partition.
    pub fn producers(&self) -> Vec<ActiveProducer> {
        let state = self.state.lock();
        let active = |(id, producer): (i64, &storage::Producer)| ActiveProducer {
            id,
            epoch: producer.epoch,
            last_sequence: producer.batches.back().map_or(-1, RememberedBatch::last_sequence),
            last_append_ms: producer.last_append_ms,
            first_offset: state.transactions.first_offset(id),
        };
        state.producers.iter().map(active).collect()
    }

    /// Removes producers whose last append was before `oldest_ms` and that have no open transaction.
    pub fn expire_producers(&self, oldest_ms: i64) {
        let mut state = self.state.lock();
        let State { producers, transactions, .. } = &mut *state;
        producers.expire_unless(oldest_ms, |id| transactions.first_offset(id).is_some());
        if let Ok(home) = &self.home {
            let bounds = home.stream.bounds();
            transactions.forget_below(bounds.start);
            // This updates the transactions of a partition that nobody reads.
            transactions.last_stable_offset(bounds.committed);
        }
        transactions.forget_checks();
    }

    /// Marks the partition as deleted for tasks that still hold it.
    pub fn set_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
        // Wake every waiter, whatever number of bytes it waits for.
        self.subscribers.mark(usize::MAX);
    }

    /// Whether the topic was deleted.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }
}

impl State {
    /// The epoch of the producer's open transaction. `None` if none is open.
    fn open_epoch(&self, producer_id: i64) -> Option<i16> {
        self.transactions.first_offset(producer_id)?;
        // A producer is kept while its transaction is open.
        self.producers.find(producer_id).map(|producer| producer.epoch)
    }

    fn place(&mut self, home: &Home, batch: Checked, leader_epoch: i32, order: Order) {
        let Order { admission, durability, done, now_ms, .. } = order;
        let base_offset = self.next_offset;
        self.next_offset = base_offset + batch.header.offset_count();
        self.producers.record(&batch.header, base_offset, now_ms);
        home.log.log.append(Append {
            stream: home.stream.clone(),
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
}
