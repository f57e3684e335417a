//! One partition: the order of its appends, its producers, and who waits for it to grow.
//!
//! One short lock covers the sequence check, the offset and the place in the log's queue, so that the order of offsets
//! is the order in the log. It is never held across an await.

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
    /// Its number in the topic.
    pub index: i32,
    /// Its stream, in whichever log.
    pub stream_id: StreamId,
    home: Result<Home, Arc<Lost>>,
    leadership: Leadership,
    /// Who waits for it.
    pub subscribers: Subscribers,
    state: Mutex<State>,
    deleted: AtomicBool,
}

/// Where a partition's records are.
#[derive(Clone, Debug)]
pub struct Home {
    /// The log that holds them.
    pub log: Arc<OpenLog>,
    /// Its stream there.
    pub stream: Arc<Stream>,
}

/// Tells that a transaction is forgotten, or that the log has failed.
struct Forgotten(std::sync::mpsc::Sender<()>);

impl Completion for Forgotten {
    fn complete(&self, _: Result<(), AppendError>) {
        // Who asked waits for it.
        let _ = self.0.send(());
    }
}

#[derive(Debug)]
struct State {
    next_offset: Offset,
    /// The epochs of the leaders, and the offset that was next when each began.
    epochs: Vec<(i32, Offset)>,
    producers: Producers,
    transactions: PartitionTransactions,
}

/// How often a wait for a commit looks whether the log has stopped meanwhile.
const STOPPED_CHECK: Duration = Duration::from_millis(500);
/// Bytes of a transaction marker at most.
pub const MARKER_BYTES: usize = 128;

/// How a batch is to be appended.
pub struct Order {
    /// Room in the log.
    pub admission: Admission,
    /// Room for what the transaction index may have to note; for transactional batches and markers.
    pub index_room: Option<Admission>,
    /// That the coordinator was asked; for transactional batches.
    pub check: Option<Check>,
    /// Whether its producer has a new epoch for each transaction, so that here it begins with sequence 0 (KIP-890).
    pub begins_anew: bool,
    /// The epoch of the leader that admitted the batch. The server's own batches have none.
    pub leader_epoch: Option<i32>,
    /// When `done` is called.
    pub durability: Durability,
    /// Called in the end.
    pub done: Option<Arc<dyn Completion>>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
}

impl Order {
    /// Of a batch of the server's own, without a transaction.
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

/// One producer of a partition, as DescribeProducers tells of it.
#[derive(Clone, Debug)]
pub struct ActiveProducer {
    /// Its id.
    pub id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The sequence of its last record, or -1.
    pub last_sequence: i32,
    /// When it last appended, in milliseconds since the Unix epoch.
    pub last_append_ms: i64,
    /// Where its open transaction begins.
    pub first_offset: Option<Offset>,
}

/// A partition as its leader has it.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// Where its records are.
    pub home: &'a Home,
    /// The leader's epoch.
    pub epoch: i32,
}

/// Why a broker cannot serve a partition.
#[derive(Clone, Copy, Debug)]
pub enum Elsewhere<'a> {
    /// Another broker leads it.
    Remote,
    /// Its log directory is lost.
    Offline(&'a Lost),
}

/// What became of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Appended {
    /// It is on its way.
    New {
        /// The offset of its first record.
        base_offset: Offset,
    },
    /// It had been appended before; it counts as done once the stream is committed up to `end`.
    Duplicate {
        /// The offset its first record got then.
        base_offset: Offset,
        /// The offset after its last record.
        end: Offset,
    },
}

/// A batch that was checked and may be appended.
#[derive(Debug)]
pub struct Checked {
    /// As parsed from `bytes`.
    pub header: BatchHeader,
    /// The whole batch.
    pub bytes: Bytes,
    /// Set for topics with `message.timestamp.type=LogAppendTime`.
    pub append_time: Option<Timestamp>,
}

impl Partition {
    /// The partition whose records are in the stream `stream_id` of `log`, which is there or lost.
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

    /// Who leads it.
    pub fn leader(&self) -> Leader {
        self.leadership.get()
    }

    /// The partition as the broker `node` leads it.
    pub fn replica(&self, node: i32) -> Result<Replica<'_>, Elsewhere<'_>> {
        let leader = self.leader();
        if leader.node != node {
            return Err(Elsewhere::Remote);
        }
        let home = self.home().map_err(Elsewhere::Offline)?;
        Ok(Replica { home, epoch: leader.epoch })
    }

    /// Has another leader from now on. Batches of clients that the leader before has admitted and not appended yet are refused,
    /// and a fetch that waits for records is answered. Nothing happens if the epoch is not higher.
    pub fn lead(&self, leader: Leader) {
        let mut state = self.state.lock();
        if leader.epoch <= self.leader().epoch {
            return;
        }
        let next_offset = state.next_offset;
        // As in Kafka, an epoch without records is forgotten.
        state.epochs.retain(|(_, began)| *began < next_offset);
        state.epochs.push((leader.epoch, next_offset));
        self.leadership.set(leader);
        drop(state);
        self.subscribers.mark(usize::MAX);
    }

    /// Where the records of an epoch end: the largest epoch up to `epoch` and the offset after its last record, which is `end`
    /// for the current one (KIP-320). `None` for an epoch that is still to come.
    pub fn epoch_end(&self, epoch: i32, end: Offset) -> Option<(i32, Offset)> {
        let state = self.state.lock();
        let next = state.epochs.partition_point(|(began, _)| *began <= epoch);
        let last = next.checked_sub(1).map(|at| state.epochs[at].0);
        match (last, state.epochs.get(next)) {
            (Some(last), Some((_, begins))) => Some((last, *begins)),
            (Some(last), None) if last == epoch => Some((epoch, end)),
            // As Kafka: the epochs before the first have no records.
            (None, Some((_, begins))) => Some((epoch, *begins)),
            (_, None) => None,
        }
    }

    /// The epoch of the leader that appended, or is to append, the record at `offset`.
    pub fn epoch_at(&self, offset: Offset) -> i32 {
        let state = self.state.lock();
        let next = state.epochs.partition_point(|(_, began)| *began <= offset);
        state.epochs[next.saturating_sub(1)].0
    }

    /// Where its records are, whoever leads it; refused while its log directory is lost.
    pub fn home(&self) -> Result<&Home, &Lost> {
        self.home.as_ref().map_err(|lost| &**lost)
    }

    /// Appends a batch to its log, which is `home`, unless it repeats one or does not continue its producer's sequence.
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
                // The coordinator had said yes, but a marker came since: whoever asks again learns how it is.
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

    /// Appends the marker that ends a producer's transaction, if one is open; returns its offset.
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

    /// Whether the coordinator has to be asked before a transactional batch of the producer of this epoch is appended:
    /// `None` when its transaction is open. Another epoch has another transaction.
    pub fn begin_check(&self, (producer_id, epoch): (i64, i16)) -> Option<Check> {
        let mut state = self.state.lock();
        let open = state.open_epoch(producer_id) == Some(epoch);
        (!open).then(|| state.transactions.begin_check(producer_id))
    }

    /// The coordinator refused what the check was for.
    pub fn cancel_check(&self, producer_id: i64, check: Check) {
        self.state.lock().transactions.cancel_check(producer_id, check);
    }

    /// The offset that the next record gets: all before it were handed to the log, and some may not be committed yet.
    pub fn next_offset(&self) -> Offset {
        self.state.lock().next_offset
    }

    /// Waits until it is committed up to `end`. Its records are in `home`.
    ///
    /// # Errors
    /// [`AppendError`], if the log has stopped.
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
            // Elapsed or woken, the loop looks again.
            let _ = tokio::time::timeout(STOPPED_CHECK, signal.wait(1)).await;
            signal.take_dirty();
        }
    }

    /// Where the open transaction of a producer begins.
    pub fn transaction_start(&self, producer_id: i64) -> Option<Offset> {
        self.state.lock().transactions.first_offset(producer_id)
    }

    /// The last stable offset of a partition that is committed up to `committed`.
    pub fn last_stable_offset(&self, committed: Offset) -> Offset {
        // The start may have moved into an open transaction.
        let start = self.home.as_ref().map_or(Offset::ZERO, |home| home.stream.bounds().start);
        let stable = self.state.lock().transactions.last_stable_offset(committed);
        stable.max(start).min(committed)
    }

    /// The aborted transactions with records in `from..until`.
    pub fn aborted_between(&self, from: Offset, until: Offset) -> Vec<AbortedTransaction> {
        self.state.lock().transactions.aborted_between(from, until)
    }

    /// Forgets aborted transactions of which nothing is left; durable on return. Where the disk is full they stay, and
    /// are found gone again. Blocks.
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
        // Ends when the last of them has told.
        forgotten.iter().for_each(drop);
    }

    /// Its producers.
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

    /// Forgets producers that last appended before `oldest_ms`.
    pub fn expire_producers(&self, oldest_ms: i64) {
        let mut state = self.state.lock();
        let State { producers, transactions, .. } = &mut *state;
        producers.expire_unless(oldest_ms, |id| transactions.first_offset(id).is_some());
        if let Ok(home) = &self.home {
            let bounds = home.stream.bounds();
            transactions.forget_below(bounds.start);
            // Also where nobody reads.
            transactions.last_stable_offset(bounds.committed);
        }
        transactions.forget_checks();
    }

    /// Marks it as gone, for those that still hold it.
    pub fn set_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
        // However few bytes there are for who waits.
        self.subscribers.mark(usize::MAX);
    }

    /// Whether its topic was deleted.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }
}

impl State {
    /// The epoch of the producer whose transaction is open.
    fn open_epoch(&self, producer_id: i64) -> Option<i16> {
        self.transactions.first_offset(producer_id)?;
        // It is kept as long as its transaction is open.
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
