//! One partition: the order of its appends, its producers and transactions, and the fetches that wait for new records.
//!
//! One short lock covers the sequence check, the choice of the offset and the position in the log's queue. The order of
//! offsets is therefore the order in the log. The lock is never held across an await.

pub mod log;
pub mod moving;
mod order;
pub mod sequence;
pub mod signal;
pub mod traffic;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{BatchHeader, Offset, StreamId, Timestamp};
use parking_lot::Mutex;
use storage::{
    Admission, AdmitError, AppendError, Completion, Durability, Producers, RememberedBatch, wait_for_room,
};
use wire::Text;
use wire::records::{TransactionResult, end_transaction_marker};

use self::log::{LocalLog, PartitionLog, Restored};
use self::moving::epochs_of;
pub use self::order::{Marker, Order};
use self::sequence::{Sequence, SequenceError};
use self::signal::Subscribers;
use self::traffic::Traffic;
use crate::logs::{Absent, Lost, OpenLog};
use crate::placement::{FIRST_EPOCH, Leader, Leadership};
use crate::transactions::{AbortedTransaction, Check, PartitionTransactions, TransactionIndex};

/// A partition of a topic.
#[derive(Debug)]
pub struct Partition {
    /// The topic's name.
    pub topic: Text,
    /// What clients have sent to the topic and got from it.
    pub traffic: Arc<Traffic>,
    /// The partition's index in the topic.
    pub index: i32,
    /// The id of the partition's stream. It does not depend on the log.
    pub stream_id: StreamId,
    log: Result<Arc<dyn PartitionLog>, Absent>,
    /// The only leader epoch in which the log may be used, if its owners change.
    epoch: Option<i32>,
    /// Another partition stands in the place of this one, whose log is about to be closed.
    retired: AtomicBool,
    /// The partition is about to move to another log, and takes no more records.
    sealed: AtomicBool,
    leadership: Leadership,
    /// When the leader, or whether the partition takes records, has changed last.
    changed: Mutex<Instant>,
    /// The fetches and other tasks that wait for commits.
    pub subscribers: Subscribers,
    state: Mutex<State>,
    deleted: AtomicBool,
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
    /// Open transactions whose end was decided, and whose markers are lost.
    decided: VecDeque<(i64, TransactionResult)>,
}

/// Interval at which a wait for a commit checks whether the log has stopped.
const STOPPED_CHECK: Duration = Duration::from_millis(500);
/// Interval at which a thread that waits for a sync looks again.
const SYNCED_CHECK: Duration = Duration::from_millis(1);
/// Upper bound in bytes of a transaction marker.
pub const MARKER_BYTES: usize = 128;

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
    /// The epoch of the coordinator that ended the producer's last transaction here, as far as it is known.
    pub coordinator_epoch: Option<i32>,
}

/// A partition as its leader sees it.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// The log of the partition.
    pub log: &'a Arc<dyn PartitionLog>,
    /// The leader epoch.
    pub epoch: i32,
}

/// The reason why a broker cannot serve a partition.
#[derive(Clone, Copy, Debug)]
pub enum Elsewhere<'a> {
    /// Another broker leads the partition, or this one does not have its log yet.
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

/// A batch with its place in the partition, for the log.
pub struct Placed {
    /// The batch.
    pub batch: Checked,
    /// The offset of its first record.
    pub base_offset: Offset,
    /// Written into the batch.
    pub leader_epoch: i32,
    /// When `done` is called.
    pub durability: Durability,
    /// Called once the batch has reached `durability`, or has failed.
    pub done: Option<Arc<dyn Completion>>,
    /// The room reserved for it.
    pub admission: Admission,
}

impl Partition {
    /// Creates a partition whose records are in the stream `stream_id` of `log`. Its leader epoch is that of the log and
    /// `epoch_base`.
    pub fn new(
        (topic, traffic): (Text, Arc<Traffic>),
        index: i32,
        (stream_id, epoch_base): (StreamId, i32),
        log: Result<Arc<OpenLog>, Absent>,
        leader: Leader,
    ) -> Partition {
        let epoch = log.as_ref().ok().and_then(|log| log.epoch);
        let epoch = epoch.map(|epoch| i32::try_from(epoch).unwrap_or(i32::MAX).saturating_add(epoch_base));
        let log = log.map(|log| Arc::new(LocalLog::new(log, stream_id)) as Arc<dyn PartitionLog>);
        let (next_offset, Restored { producers, transactions }) = match &log {
            Ok(log) => (log.bounds().synced, log.take_restored()),
            Err(_) => (Offset::ZERO, Restored::default()),
        };
        let state = State {
            next_offset,
            epochs: epochs_of(leader, next_offset),
            producers,
            decided: transactions.decided,
            transactions: PartitionTransactions::restored(&transactions.open, transactions.aborted),
        };
        Partition {
            topic,
            traffic,
            index,
            stream_id,
            log,
            epoch,
            retired: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            leadership: Leadership::new(leader),
            changed: Mutex::new(Instant::now()),
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
        // A log that was opened in an earlier epoch may lack what another owner acknowledged since.
        let outdated = self.epoch.is_some_and(|epoch| epoch != leader.epoch);
        if leader.node != node || outdated || self.is_retired() {
            return Err(Elsewhere::Remote);
        }
        match &self.log {
            Ok(log) => Ok(Replica { log, epoch: leader.epoch }),
            Err(Absent::Lost(lost)) => Err(Elsewhere::Offline(lost)),
            Err(Absent::Elsewhere) => Err(Elsewhere::Remote),
        }
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
        self.set_leader(leader);
        drop(state);
        self.subscribers.mark(usize::MAX);
    }

    /// Refuses all further batches, and wakes the fetches that wait. For a partition whose log is about to be closed, and
    /// in whose place another one stands.
    pub fn retire(&self) {
        let state = self.state.lock();
        self.retired.store(true, Ordering::Release);
        drop(state);
        self.subscribers.mark(usize::MAX);
    }

    /// Whether the owners of the partition's log change.
    pub fn moves(&self) -> bool {
        self.epoch.is_some()
    }

    /// Whether another partition stands in the place of this one.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn takes_nothing(&self) -> bool {
        self.is_retired() || self.is_sealed()
    }

    /// The epoch of this log in which the partition was opened here. `None` where the owners of logs do not change.
    pub fn opened_in(&self) -> Option<i32> {
        self.epoch
    }

    /// The end of an epoch (KIP-320): the largest epoch up to `epoch`, and the offset after its last record. For the
    /// current epoch, this is the log's end, as in Kafka: the high watermark may be behind. `None` for an epoch that has not
    /// begun.
    pub fn epoch_end(&self, epoch: i32) -> Option<(i32, Offset)> {
        let state = self.state.lock();
        let next = state.epochs.partition_point(|(began, _)| *began <= epoch);
        let last = next.checked_sub(1).map(|at| state.epochs[at].0);
        match (last, state.epochs.get(next)) {
            (Some(last), Some((_, begins))) => Some((last, *begins)),
            (Some(last), None) if last == epoch => Some((epoch, state.next_offset)),
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

    /// The partition's log, regardless of the leader, if it is open here.
    pub fn log(&self) -> Result<&Arc<dyn PartitionLog>, &Absent> {
        self.log.as_ref()
    }

    /// Whether the partition's log is lost.
    pub fn is_lost(&self) -> bool {
        matches!(self.log, Err(Absent::Lost(_)))
    }

    /// Appends a batch to `log`, which is this partition's, unless the batch is a duplicate or does not continue its producer's
    /// sequence.
    pub fn append(
        &self,
        log: &dyn PartitionLog,
        batch: Checked,
        mut order: Order,
    ) -> Result<Appended, SequenceError> {
        let mut state = self.state.lock();
        let leader_epoch = self.leader().epoch;
        if self.takes_nothing() || order.leader_epoch.is_some_and(|epoch| epoch != leader_epoch) {
            return Err(SequenceError::Moved);
        }
        let producer_id = batch.header.producer_id;
        let ends = state.decided.iter().any(|(of, _)| *of == producer_id);
        state.end_decided(log, leader_epoch, order.now_ms).map_err(|_| SequenceError::Undecided)?;
        if ends && batch.header.is_transactional() {
            // The check with the coordinator was left out, because this transaction was open. The client retries.
            return Err(SequenceError::AnotherTransaction { producer_id });
        }
        if let Sequence::Duplicate(RememberedBatch { base_offset, offset_count, .. }) =
            sequence::check(&state.producers, &batch.header, order.begins_anew)?
        {
            return Ok(Appended::Duplicate { base_offset, end: base_offset + i64::from(offset_count) });
        }
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
                log.begin_transaction((producer_id, base_offset), room, order.now_ms);
            }
        } else if batch.header.is_idempotent() && state.transactions.first_offset(producer_id).is_some() {
            return Err(SequenceError::NotTransactional { producer_id });
        }
        state.place(log, batch, leader_epoch, order);
        Ok(Appended::New { base_offset })
    }

    /// Deletes the records of `log`, which is this partition's, below `to`.
    pub fn trim(
        &self,
        log: &dyn PartitionLog,
        to: Offset,
        done: Arc<dyn Completion>,
    ) -> Result<(), SequenceError> {
        // A partition that is sealed names its start.
        let _state = self.state.lock();
        if self.takes_nothing() {
            return Err(SequenceError::Moved);
        }
        log.trim(to, done);
        Ok(())
    }

    /// Appends the marker that ends a producer's transaction, if one is open. Returns the offset of the marker.
    pub fn append_marker(
        &self,
        log: &dyn PartitionLog,
        marker: Marker,
        order: Order,
    ) -> Result<Offset, SequenceError> {
        let mut state = self.state.lock();
        if self.takes_nothing() {
            return Err(SequenceError::Moved);
        }
        let leader_epoch = self.leader().epoch;
        state.end_decided(log, leader_epoch, order.now_ms).map_err(|_| SequenceError::Undecided)?;
        state.mark(log, marker, leader_epoch, order)
    }

    /// Writes the markers that a crash or a lost disk has cut off behind their records in the transaction index. The
    /// coordinator may have completed these transactions, so it does not write them. If there is no room for them, the next
    /// append writes them first. Otherwise they are durable on return, for whoever loads the partition. Blocks.
    pub fn end_decided(&self, now_ms: i64) {
        let Ok(log) = &self.log else { return };
        if self.state.lock().decided.is_empty() {
            return;
        }
        let leader_epoch = self.leader().epoch;
        let ended = wait_for_room(|| self.state.lock().end_decided(&**log, leader_epoch, now_ms));
        if let Err(error) = ended {
            let (topic, partition) = (&self.topic, self.index);
            tracing::error!(%topic, partition, %error, "a transaction that has ended stays open until the next append");
        }
        let end = self.next_offset();
        while log.bounds().synced < end && log.stopped().is_none() {
            std::thread::sleep(SYNCED_CHECK);
        }
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

    /// Waits until the records below `end` are visible in `log`, which is this partition's.
    ///
    /// # Errors
    /// [`AppendError`] if the log has stopped.
    pub async fn committed(&self, log: &dyn PartitionLog, end: Offset) -> Result<(), AppendError> {
        let subscription = self.subscribers.subscribe();
        let signal = subscription.signal();
        loop {
            if log.bounds().visible >= end {
                return Ok(());
            }
            if let Some(error) = log.stopped() {
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
        let start = self.log.as_ref().map_or(Offset::ZERO, |log| log.bounds().start);
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
        let Ok(log) = self.log() else { return };
        let (sender, forgotten) = std::sync::mpsc::channel();
        for transaction in gone {
            let Ok(room) = log.admit(TransactionIndex::RECORD_BYTES) else { break };
            let mut state = self.state.lock();
            if state.transactions.forget_aborted(transaction) {
                let done = Arc::new(Forgotten(sender.clone()));
                log.forget_transaction(transaction, room, now_ms, done);
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
            coordinator_epoch: producer.coordinator_epoch,
        };
        state.producers.iter().map(active).collect()
    }

    /// Removes producers whose last append was before `oldest_ms` and that have no open transaction.
    pub fn expire_producers(&self, oldest_ms: i64) {
        let mut state = self.state.lock();
        let State { producers, transactions, .. } = &mut *state;
        producers.expire_unless(oldest_ms, |id| transactions.first_offset(id).is_some());
        if let Ok(log) = &self.log {
            let bounds = log.bounds();
            transactions.forget_below(bounds.start);
            // This updates the transactions of a partition that nobody reads.
            transactions.last_stable_offset(bounds.visible);
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

    /// Ends the transactions of which the transaction index has the end, and the log no marker. Fails if there is no room.
    fn end_decided(
        &mut self,
        log: &dyn PartitionLog,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<(), AdmitError> {
        while let Some((producer_id, result)) = self.decided.front().copied() {
            let admission = log.admit_own(MARKER_BYTES)?;
            let index_room = Some(log.admit_own(TransactionIndex::RECORD_BYTES)?);
            let producer = self.producers.find(producer_id);
            let epoch = producer.map_or(0, |producer| producer.epoch);
            let coordinator_epoch = producer.and_then(|it| it.coordinator_epoch).unwrap_or(FIRST_EPOCH);
            let marker = Marker { producer: (producer_id, epoch), result, coordinator_epoch };
            let order = Order { index_room, ..Order::plain(admission, Durability::Written, None, now_ms) };
            // Nobody has appended anything since, so no newer epoch is known.
            if let Err(error) = self.mark(log, marker, leader_epoch, order) {
                tracing::error!(producer_id, %error, "no marker was written");
            }
            self.decided.pop_front();
        }
        Ok(())
    }

    fn mark(
        &mut self,
        log: &dyn PartitionLog,
        Marker { producer: (producer_id, epoch), result, coordinator_epoch }: Marker,
        leader_epoch: i32,
        mut order: Order,
    ) -> Result<Offset, SequenceError> {
        if let Some(known) = self.producers.find(producer_id) {
            if epoch < known.epoch {
                return Err(SequenceError::Epoch { producer_id, found: epoch, current: known.epoch });
            }
            if let Some(current) = known.coordinator_epoch.filter(|current| coordinator_epoch < *current) {
                return Err(SequenceError::Coordinator { producer_id, found: coordinator_epoch, current });
            }
        }
        let offset = self.next_offset;
        if let Some(first) = self.transactions.end(producer_id, offset, result) {
            let room = order.index_room.take().expect("a marker comes with room for the index");
            log.end_transaction((producer_id, first), (offset, result), room, order.now_ms);
        }
        let timestamp = Timestamp(order.now_ms);
        let bytes = end_transaction_marker(producer_id, epoch, result, coordinator_epoch, timestamp);
        let header = BatchHeader::parse(&bytes).expect("the batch was just built");
        self.place(log, Checked { header, bytes, append_time: None }, leader_epoch, order);
        Ok(offset)
    }

    fn place(&mut self, log: &dyn PartitionLog, batch: Checked, leader_epoch: i32, order: Order) {
        let Order { admission, durability, done, now_ms, .. } = order;
        let base_offset = self.next_offset;
        self.next_offset = base_offset + batch.header.offset_count();
        self.producers.record(&batch.header, &batch.bytes, base_offset, now_ms);
        log.append(Placed { batch, base_offset, leader_epoch, durability, done, admission });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use disk::{Disk, SimDisk};

    use super::*;
    use crate::Config;
    use crate::internal::batch_of;
    use crate::logs::{LogDirectory, Logs, Opening};

    const STREAM: StreamId = StreamId(5);
    const LEADER: Leader = Leader { node: 1, epoch: FIRST_EPOCH };
    const COMMIT: TransactionResult = TransactionResult::Commit;

    fn open(disk: &SimDisk, store: &meta::Memory) -> (Logs, Partition) {
        let home = tempfile::tempdir().unwrap();
        let disk = disk.clone();
        let directory = LogDirectory::new("a", move |_| Ok(Arc::new(disk.clone()) as Arc<dyn Disk>));
        let opening = Opening::of(Config { reserve_bytes: 0, segment_bytes: 1 << 20, ..Config::default() });
        let logs = Logs::open(vec![directory], &opening, store, home.path(), &BTreeMap::new()).unwrap();
        let partition =
            Partition::new(("t".into(), Arc::default()), 0, (STREAM, 0), Ok(logs.all()[0].clone()), LEADER);
        (logs, partition)
    }

    fn room(log: &dyn PartitionLog) -> Admission {
        wait_for_room(|| log.admit(1000)).unwrap()
    }

    fn append(
        partition: &Partition,
        producer: Option<(i64, i16)>,
        room: Admission,
    ) -> Result<i64, SequenceError> {
        let log = partition.log().unwrap();
        let batch = batch_of(&[(Bytes::from_static(b"k"), None)], 0, producer);
        let mut order = Order::plain(room, Durability::Synced, None, 0);
        order.index_room = producer.map(|_| self::room(&**log));
        order.check = producer.and_then(|producer| partition.begin_check(producer));
        partition.append(&**log, batch, order).map(|appended| match appended {
            Appended::New { base_offset } | Appended::Duplicate { base_offset, .. } => base_offset.0,
        })
    }

    #[test]
    fn a_transaction_that_was_decided_ends_before_the_next_append() {
        let (disk, store) = (SimDisk::new(1), meta::Memory::default());
        let (logs, partition) = open(&disk, &store);
        assert_eq!(append(&partition, Some((7, 0)), room(&**partition.log().unwrap())).unwrap(), 0);
        // The crash comes between the record in the index and the marker.
        let log = partition.log().unwrap();
        log.end_transaction((7, Offset(0)), (Offset(1), COMMIT), room(&**log), 0);
        logs.all()[0].log.close();

        let (logs, partition) = open(&disk, &store);
        let log = partition.log().unwrap();
        assert_eq!(partition.transaction_start(7), Some(Offset(0)));
        // The disk becomes full.
        disk.set_capacity(0);
        let kept = room(&**log);
        let mut taken = Vec::new();
        let mut bytes = 1 << 16;
        let mut refused = 0;
        while refused < 100 {
            match log.admit(bytes) {
                Ok(admission) => {
                    taken.push(admission);
                    refused = 0;
                }
                Err(AdmitError::Full | AdmitError::Busy) => {
                    bytes = (bytes / 2).max(1);
                    refused += 1;
                    // A segment may be ready in a moment. No other can follow it.
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(append(&partition, None, kept), Err(SequenceError::Undecided));
        let marker = Marker { producer: (8, 0), result: COMMIT, coordinator_epoch: FIRST_EPOCH };
        let order = Order::plain(taken.pop().unwrap(), Durability::Synced, None, 0);
        let refused = partition.append_marker(&**log, marker, order);
        assert_eq!((refused, partition.next_offset()), (Err(SequenceError::Undecided), Offset(1)));
        drop(taken);
        disk.set_capacity(u64::MAX);
        partition.end_decided(0);
        assert_eq!(partition.transaction_start(7), None);
        assert_eq!(append(&partition, None, room(&**log)), Ok(2));
        // The next crash finds nothing to do.
        logs.all()[0].log.close();
        let (logs, partition) = open(&disk, &store);
        partition.end_decided(0);
        assert_eq!((partition.next_offset(), partition.transaction_start(7)), (Offset(3), None));
        logs.all()[0].log.close();
    }
}
