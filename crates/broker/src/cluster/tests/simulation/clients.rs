//! The clients of a simulated cluster, and what they may expect of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use model::{BatchHeader, Compression, Offset, Timestamp};
use storage::{Admission, AppendError, Clock, Completion, Durability};
use wire::records::{BatchBuilder, records};

use super::process::Process;
use crate::partition::log::PartitionLog;
use crate::partition::sequence::SequenceError;
use crate::partition::{Appended, Checked, Order, Partition};

/// A partition: the topic's number, and the partition's index in it.
pub type Place = (u32, i32);

pub fn topic_name(topic: u32) -> String {
    format!("topic-{topic}")
}

/// The outcome of a request that waits for the log.
#[derive(Debug, Default)]
pub struct Outcome(AtomicU8);

impl Outcome {
    pub fn done(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }

    pub fn failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 2
    }
}

impl Completion for Outcome {
    fn complete(&self, result: Result<(), AppendError>) {
        let before = self.0.swap(if result.is_ok() { 1 } else { 2 }, Ordering::Relaxed);
        assert_eq!(before, 0, "a completion is called once");
    }
}

/// What is known of a partition for ever: its batches that were answered, or that a consumer saw.
#[derive(Debug, Default)]
pub struct Expected {
    /// The batches by their offsets: number and records of each.
    batches: BTreeMap<i64, (u64, i32)>,
    /// The offset of each batch, by its number.
    places: BTreeMap<u64, i64>,
    /// Records below were deleted, and that was answered.
    pub start: i64,
    /// Records below may be deleted.
    pub start_max: i64,
}

impl Expected {
    /// Notes that the batch `id` of `count` records is at `offset`. Nothing else may be there, and it may be nowhere else.
    pub fn learn(&mut self, offset: i64, (id, count): (u64, i32), how: &str) {
        let there = self.batches.insert(offset, (id, count));
        assert!(
            there.is_none_or(|there| there == (id, count)),
            "{how}: at {offset} is {id}, and was {there:?}"
        );
        let before = self.places.insert(id, offset);
        assert!(
            before.is_none_or(|before| before == offset),
            "{how}: {id} is at {offset}, and was at {before:?}"
        );
        let below = self.batches.range(..offset).next_back();
        let overlaps = below.filter(|(at, (_, count))| **at + i64::from(*count) > offset);
        assert!(overlaps.is_none(), "{how}: {id} at {offset} is in {overlaps:?}");
        let above = self.batches.range(offset + 1..).next();
        let overlaps = above.filter(|(at, _)| **at < offset + i64::from(count));
        assert!(overlaps.is_none(), "{how}: {overlaps:?} is in {id} at {offset}");
    }

    /// The end of the last batch that is known.
    fn end(&self) -> i64 {
        self.batches.last_key_value().map_or(0, |(at, (_, count))| at + i64::from(*count))
    }
}

/// A producer that sends one batch at a time, and sends it again until it is answered.
#[derive(Debug)]
pub struct Producer {
    pub place: Place,
    /// Its id, if it is idempotent.
    id: Option<i64>,
    sequence: i32,
    /// The batch that is to be answered.
    pub current: Option<Batch>,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub id: u64,
    pub count: i32,
    bytes: Bytes,
}

impl Producer {
    pub fn new(place: Place, id: Option<i64>) -> Producer {
        Producer { place, id, sequence: 0, current: None }
    }

    /// The batch to send: the one that was not answered, or a new one with the number `id`. A producer that is not
    /// idempotent never repeats a batch: the cluster could have it twice.
    pub fn batch(&mut self, id: u64, rng: &mut fastrand::Rng) -> Batch {
        if let Some(current) = self.current.as_ref().filter(|_| self.id.is_some()) {
            return current.clone();
        }
        let mut builder = BatchBuilder::new(Compression::None);
        if let Some(producer) = self.id {
            builder = builder.producer(producer, 0, self.sequence);
        }
        let (count, filler) = (rng.i32(1..4), vec![0; rng.usize(0..600)]);
        (0..count).for_each(|_| builder.push(Timestamp(0), Some(&filler), Some(&id.to_le_bytes())));
        let batch = Batch { id, count, bytes: builder.finish() };
        self.current = Some(batch.clone());
        batch
    }

    /// Notes that a batch was answered.
    pub fn answered(&mut self, id: u64) {
        if let Some(batch) = self.current.take_if(|batch| batch.id == id) {
            self.sequence += batch.count;
        }
    }
}

/// A batch on its way to a process, or in it.
pub struct Attempt {
    pub producer: usize,
    pub place: Place,
    pub batch: Batch,
    /// The number of the process.
    pub process: u64,
    pub state: State,
}

pub enum State {
    Sent,
    /// It was admitted in this epoch.
    Admitted(Arc<Partition>, Arc<dyn PartitionLog>, i32, Admission),
    /// It was appended at this offset.
    Waits(i64, Arc<Outcome>),
    /// It was there before, at this offset, and its records end at the other one.
    WaitsForEarlier(i64, Offset, Arc<dyn PartitionLog>),
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Sent => "is sent".to_owned(),
            State::Admitted(..) => "is admitted".to_owned(),
            State::Waits(at, _) => format!("waits at {at}"),
            State::WaitsForEarlier(at, _, log) => format!("waits for that at {at}, of {:?}", log.bounds()),
        };
        write!(f, "{} of {:?} in process {} {state}", self.batch.id, self.place, self.process)
    }
}

/// What became of a batch.
pub enum Step {
    GoesOn(State),
    /// It is answered: it is at this offset.
    Answered(i64),
    Failed,
    /// It was refused, because batches before it are missing.
    OutOfOrder,
}

/// What the process does next with a batch.
pub fn proceed(state: State, batch: &Batch, place: Place, process: &Process) -> Step {
    match state {
        State::Sent => {
            let partition =
                process.topics.find(&topic_name(place.0)).and_then(|topic| topic.partition(place.1));
            let Some(partition) = partition else { return Step::Failed };
            let Ok(replica) = partition.replica(process.broker) else { return Step::Failed };
            let (log, epoch) = (replica.log.clone(), replica.epoch);
            match log.admit(batch.bytes.len()) {
                Ok(admission) => Step::GoesOn(State::Admitted(partition, log, epoch, admission)),
                Err(_) => Step::Failed,
            }
        }
        State::Admitted(partition, log, epoch, admission) => {
            let outcome = Arc::new(Outcome::default());
            let header = BatchHeader::parse(&batch.bytes).unwrap();
            let checked = Checked { header, bytes: batch.bytes.clone(), append_time: None };
            let now_ms = process.clock.now_ms();
            let order = Order {
                leader_epoch: Some(epoch),
                ..Order::plain(admission, Durability::Synced, Some(outcome.clone()), now_ms)
            };
            match partition.append(&*log, checked, order) {
                Ok(Appended::New { base_offset }) => Step::GoesOn(State::Waits(base_offset.0, outcome)),
                Ok(Appended::Duplicate { base_offset, end }) => {
                    Step::GoesOn(State::WaitsForEarlier(base_offset.0, end, log))
                }
                Err(SequenceError::OutOfOrder { .. }) => Step::OutOfOrder,
                Err(SequenceError::Moved) => Step::Failed,
                Err(error) => panic!("{error}"),
            }
        }
        State::Waits(at, outcome) if outcome.done() => Step::Answered(at),
        State::Waits(_, outcome) if outcome.failed() => Step::Failed,
        State::WaitsForEarlier(at, end, log) if log.bounds().visible >= end => Step::Answered(at),
        State::WaitsForEarlier(_, _, log) if log.stopped().is_some() => Step::Failed,
        waits => Step::GoesOn(waits),
    }
}

/// Reads a partition of a process from `from`, or from its start. Returns the bounds of what it has and the end of what
/// was read. `None` if the process does not lead it, or cannot read now.
pub fn read(
    process: &Process,
    place: Place,
    from: Option<i64>,
    bytes_max: usize,
    expected: &mut Expected,
) -> Option<(i64, i64, i64)> {
    let partition = process.topics.find(&topic_name(place.0))?.partition(place.1)?;
    let replica = partition.replica(process.broker).ok()?;
    let bounds = replica.log.bounds();
    let from = from.map_or(bounds.start, Offset).max(bounds.start);
    if from >= bounds.visible {
        return Some((bounds.start.0, bounds.visible.0, bounds.visible.0));
    }
    let request = replica.log.request(from, bounds.visible, bytes_max);
    let local = replica.log.local().expect("a log of this process");
    let batches = local.log.log.read_blocking(&request).ok()?;
    let mut bytes = Bytes::from(batches.chunks.concat());
    let mut next = None;
    while !bytes.is_empty() {
        let (header, mut all) = records(&bytes, 1 << 20).unwrap();
        bytes = bytes.slice(header.total_bytes..);
        let first = all.next().unwrap().unwrap();
        let id = u64::from_le_bytes(first.value.unwrap()[..].try_into().unwrap());
        let at = header.base_offset.0;
        assert!(next.is_none_or(|next| next == at), "{place:?}: {at} follows {next:?}");
        assert!(next.is_some() || at <= from.0, "{place:?}: there is nothing at {from}, but at {at}");
        expected.learn(at, (id, header.count), "read");
        next = Some(at + i64::from(header.count));
    }
    Some((bounds.start.0, bounds.visible.0, next.unwrap_or(from.0)))
}

/// Reads a whole partition at rest, and compares it with what is known.
pub fn check(process: &Process, place: Place, expected: &mut Expected) {
    let known_end = expected.end();
    let mut from = None;
    loop {
        let read = read(process, place, from, 1 << 16, expected);
        let (start, end, next) = read.unwrap_or_else(|| panic!("{place:?} cannot be read"));
        assert!(
            start >= expected.start,
            "{place:?}: deleted records came back: {start}, not {}",
            expected.start
        );
        assert!(start <= expected.start_max, "{place:?} begins at {start}, not {}", expected.start_max);
        assert!(
            end >= known_end,
            "{place:?} ends at {end}, not {known_end}: records that were answered are lost"
        );
        if next >= end {
            return;
        }
        assert!(from.is_none_or(|from| next > from), "{place:?}: nothing follows {next}");
        from = Some(next);
    }
}
