//! What a broker does for partitions that move to another log ([`crate::topics::Moving`]): it copies the records into a log that
//! it owns, and seals the partitions that it leads.
//!
//! A job has a thread of its own, and ends as soon as the move is another one, or the broker has lost the log. Whoever owns
//! the logs then goes on with what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::batch::{empty_like, verify_crc};
use model::{BatchError, BatchHeader, Offset, Timestamp};
use parking_lot::Mutex;
use storage::{AdmitError, AppendError, Clock, Completion, Durability, ROOM_PATIENCE, ReadError};
use tokio::runtime::Handle;
use wire::messages as m;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::{ErrorCode, Records};

use super::threads::Threads;
use crate::coordinator::Peers;
use crate::partition::log::PartitionLog;
use crate::partition::sequence::SequenceError;
use crate::partition::{Checked, Order, Partition};
use crate::topics::{MoveError, Moving, Topics};
use crate::transactions::TransactionIndex;

/// A partition takes no records for so long at the most.
const SEALED_WITHIN: Duration = Duration::from_secs(20);
/// Partitions that a broker copies at the same time.
const AT_ONCE: usize = 4;
/// Bytes that are fetched at once.
const FETCH_BYTES: i32 = 1024 * 1024;
/// A leader waits so long for new records before it answers.
const FETCH_WAIT_MS: i32 = 100;
/// The first version with leader epochs and without topic ids.
const FETCH_VERSION: i16 = 12;
/// The same with leader epochs.
const LIST_OFFSETS_VERSION: i16 = 5;
/// As a timestamp: the first record.
const EARLIEST: i64 = -2;
/// Another attempt begins so long after one that failed.
const BACKOFF: Duration = Duration::from_millis(200);
/// Interval at which a wait looks again.
const LOOK: Duration = Duration::from_millis(5);

/// Why a job ends early. It begins again as long as the move is there.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(transparent)]
    Move(#[from] MoveError),
    #[error("the new log: {0}")]
    Room(#[from] AdmitError),
    #[error("the new log: {0}")]
    Append(#[from] AppendError),
    #[error("the partition: {0}")]
    Sequence(#[from] SequenceError),
    #[error("reading: {0}")]
    Read(#[from] ReadError),
    #[error("a copied batch: {0}")]
    Batch(#[from] BatchError),
    #[error("the leader answers with the error {0}")]
    Leader(i16),
    #[error("the leader does not answer")]
    Away,
    #[error("the log has another owner")]
    Lost,
}

/// The part of a partition that its leader has given.
#[derive(Debug)]
pub struct Fetched {
    /// Batches, one behind the other. The last one may be cut off.
    pub records: Bytes,
    /// The offset of the first record that is not deleted.
    pub start: Offset,
    /// The offset after the last one that consumers may see.
    pub end: Offset,
}

/// The brokers, as leaders of partitions.
pub trait Leaders: std::fmt::Debug + Send + Sync {
    /// Asks the broker `leader` for records of the partition from `from` on. Blocks.
    fn fetch(&self, moving: &Moving, leader: i32, from: Offset) -> Result<Fetched, JobError>;
}

/// The moves to and from one broker.
#[derive(Clone)]
pub struct Moves {
    pub topics: Arc<Topics>,
    pub leaders: Arc<dyn Leaders>,
    /// This broker.
    pub local: i32,
    pub threads: Arc<dyn Threads>,
    pub clock: Arc<dyn Clock>,
    /// The new streams of moves for which a thread is at work, each with whether it copies.
    pub busy: Arc<Mutex<BTreeSet<(u64, bool)>>>,
    /// Since when this broker leads partitions that take no records, by the new streams of their moves.
    pub sealed: Arc<Mutex<BTreeMap<u64, Duration>>>,
    pub turns: Arc<AtomicUsize>,
}

/// The outcome of a trim, once there is one.
#[derive(Default)]
struct Trimmed(Mutex<Option<Result<(), AppendError>>>);

impl Completion for Trimmed {
    fn complete(&self, outcome: Result<(), AppendError>) {
        *self.0.lock() = Some(outcome);
    }
}

/// A thread at work, until it ends.
struct Busy {
    all: Arc<Mutex<BTreeSet<(u64, bool)>>>,
    key: (u64, bool),
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.lock().remove(&self.key);
    }
}

impl Moves {
    /// Begins what is to be done. The jobs go on by themselves.
    pub fn turn(&self) {
        let mut all = self.topics.moves();
        // None waits for ever behind others that fail.
        let first = self.turns.fetch_add(1, Ordering::Relaxed);
        let first = if all.is_empty() { 0 } else { first % all.len() };
        all.rotate_left(first);
        let at_work = |of: &&Moving| !of.of.ready && self.busy.lock().contains(&(of.of.stream, true));
        let mut copies = all.iter().filter(at_work).count();
        for moving in &all {
            let copy = self.topics.copy_of(&moving.of);
            // Whoever waits for the last records does not keep others from copying.
            if copy.is_some_and(|copy| !copy.is_retired()) && (moving.of.ready || copies < AT_ONCE) {
                copies += usize::from(self.begin(moving.clone(), true));
            }
            let leads = moving.partition().is_some_and(|it| it.replica(self.local).is_ok());
            if leads && moving.of.ready {
                if moving.of.bounds.is_none() {
                    self.begin(moving.clone(), false);
                }
                self.watch(moving);
            }
        }
        let streams: BTreeSet<u64> = all.iter().map(|moving| moving.of.stream).collect();
        self.sealed.lock().retain(|stream, _| streams.contains(stream));
    }

    /// Lets a partition take records again that has waited too long for the end of its move. The copy begins anew.
    fn watch(&self, moving: &Moving) {
        let now = self.threads.now();
        let since = *self.sealed.lock().entry(moving.of.stream).or_insert(now);
        if now - since < SEALED_WITHIN {
            return;
        }
        let (topic, partition) = (&moving.topic.name, moving.index);
        tracing::warn!(%topic, partition, "the move of a partition does not end: its copy begins anew");
        if let Err(error) = self.topics.copy_anew(moving) {
            tracing::debug!(%topic, partition, %error, "another attempt follows");
        }
    }

    /// Returns whether a thread was begun.
    fn begin(&self, moving: Moving, copies: bool) -> bool {
        let key = (moving.of.stream, copies);
        if !self.busy.lock().insert(key) {
            return false;
        }
        let moves = self.clone();
        let work = move || {
            let _busy = Busy { all: moves.busy.clone(), key };
            let done = if copies { moves.copy(&moving) } else { moves.seal(&moving) };
            if let Err(error) = done {
                let (topic, partition) = (&moving.topic.name, moving.index);
                tracing::info!(%topic, partition, %error, "the move of a partition is interrupted");
                moves.threads.sleep(BACKOFF);
            }
        };
        let begun = self.threads.spawn("partition move", Box::new(work));
        if let Err(error) = &begun {
            tracing::warn!(%error, "no thread can be started for the move of a partition; another attempt follows");
            self.busy.lock().remove(&key);
        }
        begun.is_ok()
    }

    /// The same move as the metadata shows it now.
    fn again(&self, moving: &Moving) -> Result<Moving, JobError> {
        let topic = self.topics.find_id(&moving.topic.id).ok_or(MoveError::NoMove)?;
        let of = topic.record().moves.get(&moving.index).cloned();
        let of = of.filter(|of| of.stream == moving.of.stream).ok_or(MoveError::NoMove)?;
        Ok(Moving { topic, index: moving.index, of })
    }

    /// Waits until everything that the sealed partition has taken is stored, and names its bounds.
    fn seal(&self, moving: &Moving) -> Result<(), JobError> {
        let partition = moving.partition().ok_or(JobError::Lost)?;
        let replica = partition.replica(self.local).map_err(|_| JobError::Lost)?;
        let end = partition.sealed_end(&**replica.log, self.clock.now_ms()).ok_or(JobError::Lost)?;
        self.wait_until_visible(&partition, &**replica.log, end)?;
        // Behind all trims that were begun.
        self.trim(&partition, &**replica.log, Offset::ZERO)?;
        let start = replica.log.bounds().start;
        Ok(self.topics.note_bounds(moving, &partition, (start, end))?)
    }

    fn trim(&self, partition: &Partition, log: &dyn PartitionLog, to: Offset) -> Result<(), JobError> {
        let trimmed = Arc::new(Trimmed::default());
        log.trim(to, trimmed.clone());
        loop {
            let outcome = trimmed.0.lock().take();
            if let Some(outcome) = outcome {
                return Ok(outcome?);
            }
            self.pause(partition, log)?;
        }
    }

    fn wait_until_visible(
        &self,
        partition: &Partition,
        log: &dyn PartitionLog,
        end: Offset,
    ) -> Result<(), JobError> {
        while log.bounds().visible < end {
            self.pause(partition, log)?;
        }
        Ok(())
    }

    /// Waits a moment for the log, as long as the partition is in it.
    fn pause(&self, partition: &Partition, log: &dyn PartitionLog) -> Result<(), JobError> {
        if let Some(error) = log.stopped() {
            return Err(error.into());
        }
        if partition.is_retired() || partition.is_deleted() {
            return Err(JobError::Lost);
        }
        self.threads.sleep(LOOK);
        Ok(())
    }

    /// Copies the records of a partition, until it is here.
    fn copy(&self, moving: &Moving) -> Result<(), JobError> {
        let copy = self.topics.copy_of(&moving.of).ok_or(JobError::Lost)?;
        let log = copy.log().map_err(|_| JobError::Lost)?;
        let mut start = Offset::ZERO;
        loop {
            let moving = self.again(moving)?;
            if copy.is_retired() {
                return Err(JobError::Lost);
            }
            let next = copy.next_offset();
            if moving.of.bounds.is_some_and(|bounds| next >= Offset(bounds.end)) {
                match self.finish(&moving, &copy)? {
                    true => return Ok(()),
                    false => continue,
                }
            }
            let from = Offset(moving.of.from);
            let fetched = self.fetch(&moving, next.max(from).max(start))?;
            start = fetched.start;
            if next == Offset::ZERO && start > from {
                // A deletion that is not durable yet may be undone there, and these records are not copied.
                self.topics.note_from(&moving, start)?;
                continue;
            }
            if next > Offset::ZERO && start > next {
                // What was deleted there may have ended transactions, and sequences of producers, that the copy has.
                return Ok(self.topics.copy_anew(&moving)?);
            }
            let none = fetched.records.is_empty();
            self.append(&copy, &**log, fetched.records)?;
            let all = copy.next_offset().max(start).max(from) >= fetched.end;
            match moving.of.bounds {
                // The last ones are deleted there. A leader that has lost the log knows a lower end.
                Some(bounds) if all && none && fetched.end >= Offset(bounds.end) => {
                    self.append(&copy, &**log, nothing_before(Offset(bounds.end)))?;
                }
                None if all && !moving.of.ready => self.topics.note_ready(&moving)?,
                _ if all => self.threads.sleep(LOOK),
                _ => {}
            }
        }
    }

    /// Ends the move, unless the bounds are to be named again.
    fn finish(&self, moving: &Moving, copy: &Partition) -> Result<bool, JobError> {
        let log = copy.log().map_err(|_| JobError::Lost)?;
        self.wait_until_visible(copy, &**log, copy.next_offset())?;
        let bounds = moving.of.bounds.ok_or(MoveError::NoMove)?;
        self.trim(copy, &**log, Offset(bounds.start.max(moving.of.from)))?;
        let moved = self.topics.finish_move(moving, copy)?;
        if moved {
            let (topic, partition) = (&moving.topic.name, moving.index);
            tracing::info!(%topic, partition, end = %copy.next_offset(), "a partition has moved to this broker");
        }
        Ok(moved)
    }

    /// Calls `attempt` until it finds room, for at most [`ROOM_PATIENCE`].
    fn room<T>(&self, mut attempt: impl FnMut() -> Result<T, AdmitError>) -> Result<T, AdmitError> {
        let until = self.threads.now() + ROOM_PATIENCE;
        loop {
            match attempt() {
                Err(AdmitError::Busy) if self.threads.now() < until => self.threads.sleep(LOOK),
                done => return done,
            }
        }
    }

    /// Appends batches to the copy.
    fn append(&self, copy: &Partition, log: &dyn PartitionLog, mut records: Bytes) -> Result<(), JobError> {
        let now_ms = self.clock.now_ms();
        while !records.is_empty() {
            let header = match BatchHeader::parse(&records) {
                Ok(header) => header,
                Err(BatchError::Truncated { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            let bytes = records.split_to(header.total_bytes);
            verify_crc(&bytes, &header)?;
            let admission = self.room(|| log.admit(bytes.len()))?;
            let index_room = match header.is_transactional() {
                true => Some(self.room(|| log.admit_own(TransactionIndex::RECORD_BYTES))?),
                false => None,
            };
            let order = Order { index_room, ..Order::plain(admission, Durability::Written, None, now_ms) };
            copy.append_copy(log, Checked { header, bytes, append_time: None }, order)?;
        }
        Ok(())
    }

    /// Asks the leader for the records from `from` on.
    fn fetch(&self, moving: &Moving, from: Offset) -> Result<Fetched, JobError> {
        let partition = moving.partition().ok_or(JobError::Lost)?;
        self.leaders.fetch(moving, partition.leader().node, from)
    }
}

/// Reads a partition that the broker `leader` leads in this process.
pub fn fetch_here(
    partition: &Partition,
    leader: i32,
    from: Offset,
    bytes_max: usize,
) -> Result<Fetched, JobError> {
    let replica = partition.replica(leader).map_err(|_| JobError::Away)?;
    let bounds = replica.log.bounds();
    let request = replica.log.request(from.max(bounds.start), bounds.visible, bytes_max);
    let batches = replica.log.read_stretch(&request)?;
    Ok(Fetched { records: batches.chunks.concat().into(), start: bounds.start, end: bounds.visible })
}

/// Leaders that are asked as consumers ask them.
#[derive(Debug)]
pub struct PeerLeaders {
    /// This broker.
    pub local: i32,
    pub peers: Arc<Peers>,
    pub runtime: Handle,
}

impl Leaders for PeerLeaders {
    fn fetch(&self, moving: &Moving, leader: i32, from: Offset) -> Result<Fetched, JobError> {
        if leader == self.local {
            let partition = moving.partition().ok_or(JobError::Lost)?;
            return fetch_here(&partition, leader, from, usize::try_from(FETCH_BYTES).unwrap_or(0));
        }
        let asked = m::FetchRequest {
            replica_id: -1,
            max_wait_ms: FETCH_WAIT_MS,
            min_bytes: 1,
            max_bytes: FETCH_BYTES,
            session_epoch: -1,
            topics: vec![FetchTopic {
                topic: moving.topic.name.clone(),
                partitions: vec![FetchPartition {
                    partition: moving.index,
                    current_leader_epoch: -1,
                    fetch_offset: from.0,
                    last_fetched_epoch: -1,
                    log_start_offset: -1,
                    partition_max_bytes: FETCH_BYTES,
                    ..FetchPartition::default()
                }],
                ..FetchTopic::default()
            }],
            ..m::FetchRequest::default()
        };
        let answer = self.runtime.block_on(self.peers.ask(leader, FETCH_VERSION, &asked));
        let answer: m::FetchResponse = answer.ok_or(JobError::Away)?;
        let found = answer.responses.into_iter().next().and_then(|topic| topic.partitions.into_iter().next());
        let found = found.ok_or(JobError::Leader(answer.error_code))?;
        let out_of_range = ErrorCode::OffsetOutOfRange.code();
        match found.error_code {
            0 => Ok(Fetched {
                records: found.records.as_ref().map(Records::to_bytes).unwrap_or_default(),
                start: Offset(found.log_start_offset.max(0)),
                end: Offset(found.high_watermark),
            }),
            error if error == out_of_range => {
                // They were deleted in the meantime. The next request begins at the start, which this answer does not have.
                let start = self.start_of(moving, leader)?;
                match start > from {
                    true => Ok(Fetched { records: Bytes::new(), start, end: Offset(i64::MAX) }),
                    false => Err(JobError::Leader(error)),
                }
            }
            error => Err(JobError::Leader(error)),
        }
    }
}

impl PeerLeaders {
    /// Asks the leader for the offset of the first record that is not deleted.
    fn start_of(&self, moving: &Moving, leader: i32) -> Result<Offset, JobError> {
        let partition = ListOffsetsPartition {
            partition_index: moving.index,
            current_leader_epoch: -1,
            timestamp: EARLIEST,
        };
        let topic = ListOffsetsTopic { name: moving.topic.name.clone(), partitions: vec![partition] };
        let asked = m::ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        let answer = self.runtime.block_on(self.peers.ask(leader, LIST_OFFSETS_VERSION, &asked));
        let answer: m::ListOffsetsResponse = answer.ok_or(JobError::Away)?;
        let found = answer.topics.into_iter().next().and_then(|topic| topic.partitions.into_iter().next());
        let found = found.ok_or(JobError::Away)?;
        if found.error_code == 0 { Ok(Offset(found.offset)) } else { Err(JobError::Leader(found.error_code)) }
    }
}

/// A batch without records that takes the last offset before `end`.
fn nothing_before(end: Offset) -> Bytes {
    let header = BatchHeader {
        base_offset: end + -1,
        total_bytes: 0,
        leader_epoch: 0,
        crc: 0,
        attributes: 0,
        last_offset_delta: 0,
        base_timestamp: Timestamp::NONE,
        max_timestamp: Timestamp::NONE,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        count: 0,
    };
    Bytes::from(empty_like(&header))
}
