//! The published batches, until every group has received them: checks that nothing is lost, duplicated, reordered or
//! changed, and measures the end-to-end latency.
//!
//! Producers and consumers run in one process, so a batch needs no extra data to be recognized. The producer learns its
//! base offset from the acknowledgement; the consumer sees base offset, count and CRC. The two meet here, in either
//! order. The CRC covers all records, and servers do not change it (offsets and leader epoch lie before it).
//!
//! Invariants, per partition and group:
//! - Batches are received in the order of their offsets. Each begins where the last one ended.
//! - A batch received at an acknowledged offset is the batch that was published there.
//! - In the end, every group has received everything acknowledged.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::clock::Nanos;

/// A batch that a consumer should not have received in this form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("{partition}: records are missing: offsets {from} to {to} were skipped")]
    Missing { partition: String, from: i64, to: i64 },
    #[error(
        "{partition}: records came twice or out of order: offset {got} after everything up to {next} was received"
    )]
    Repeated { partition: String, got: i64, next: i64 },
    #[error("{partition}: what was received at offset {offset} is not what was published there")]
    Changed { partition: String, offset: i64 },
    #[error("{partition}: {records} acknowledged records were never received, the first at offset {first}")]
    Lost { partition: String, records: u64, first: i64 },
    #[error("{partition}: {records} records sent without acknowledgement were never received")]
    LostUnacknowledged { partition: String, records: u64 },
    #[error(
        "{partition}: {records} records were received that nobody published, the first at offset {first}"
    )]
    Unknown { partition: String, records: u64, first: i64 },
}

/// The identity of a batch, known to both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// Negative if unknown: a producer without acknowledgements does not learn it.
    pub base_offset: i64,
    pub count: u32,
    /// The CRC of the batch as published. `None` if the server may have changed it (`LogAppendTime`).
    pub crc: Option<u32>,
}

/// The due time of each record of a batch.
#[derive(Clone, Debug)]
pub struct Schedule {
    first: Nanos,
    /// Due times of the records after the first, in microseconds after it. Four bytes each, because a backlog of hours
    /// is kept here.
    after: Box<[u32]>,
}

impl Schedule {
    /// Creates a schedule of at least one time, in rising order.
    pub fn new(times: &[Nanos]) -> Schedule {
        let first = times[0];
        let micros = |time: &Nanos| u32::try_from(time.saturating_sub(first) / 1000).unwrap_or(u32::MAX);
        Schedule { first, after: times[1..].iter().map(micros).collect() }
    }

    pub fn times(&self) -> impl Iterator<Item = Nanos> {
        let after = self.after.iter().map(|micros| self.first + u64::from(*micros) * 1000);
        std::iter::once(self.first).chain(after)
    }
}

struct Published {
    id: BatchId,
    schedule: Schedule,
    /// The groups that have received the batch, by bit.
    received_by: u64,
}

struct Received {
    id: BatchId,
    at: Nanos,
}

#[derive(Default)]
struct Group {
    /// The next expected offset.
    next: i64,
    /// Batches received before they were known as published.
    early: VecDeque<Received>,
}

struct Partition {
    /// The name as `topic-partition`.
    name: String,
    /// Ordered by offset.
    published: VecDeque<Published>,
    /// Batches sent without acknowledgements, by CRC.
    unacknowledged: HashMap<u32, VecDeque<Published>>,
    groups: Vec<Group>,
}

/// All partitions of a run.
pub struct Ledger {
    partitions: Vec<Mutex<Partition>>,
    all_groups: u64,
}

/// Bound of the groups of one topic, because their bits must fit a word.
pub const GROUPS_MAX: u32 = 64;

impl Ledger {
    /// Creates a ledger for partitions with these names, each consumed by this number of groups.
    pub fn new(names: impl Iterator<Item = String>, groups: u32) -> Ledger {
        assert!(groups <= GROUPS_MAX, "the workload was checked");
        let partition = |name| {
            Mutex::new(Partition {
                name,
                published: VecDeque::new(),
                unacknowledged: HashMap::new(),
                groups: (0..groups).map(|_| Group::default()).collect(),
            })
        };
        let all_groups = if groups == 0 { 0 } else { u64::MAX >> (64 - groups) };
        Ledger { partitions: names.map(partition).collect(), all_groups }
    }

    /// Notes a published batch: it was acknowledged. Without acknowledgements, it is about to be sent or, in some
    /// clients, was sent. Calls `latency` with each end-to-end latency that is known now.
    pub fn published(
        &self,
        partition: usize,
        id: BatchId,
        schedule: Schedule,
        mut latency: impl FnMut(Nanos),
    ) -> Result<(), Violation> {
        if self.all_groups == 0 {
            return Ok(());
        }
        let mut guard = self.partitions[partition].lock();
        let partition = &mut *guard;
        let mut entry = Published { id, schedule, received_by: 0 };
        let unacknowledged = id.base_offset < 0;
        for (number, group) in partition.groups.iter_mut().enumerate() {
            let at = if unacknowledged {
                group.early.iter().position(|early| early.id.crc == id.crc)
            } else {
                group.early.binary_search_by_key(&id.base_offset, |early| early.id.base_offset).ok()
            };
            let Some(early) = at.and_then(|at| group.early.remove(at)) else { continue };
            meet(&partition.name, &mut entry, number, &early, &mut latency)?;
        }
        if entry.received_by == self.all_groups {
            return Ok(());
        }
        if unacknowledged {
            let crc = id.crc.expect("a batch of ours has its crc");
            partition.unacknowledged.entry(crc).or_default().push_back(entry);
        } else {
            let at = partition.published.partition_point(|other| other.id.base_offset < id.base_offset);
            partition.published.insert(at, entry);
        }
        Ok(())
    }

    /// Notes that a group received a batch at `at`. Its CRC was checked against its bytes before.
    pub fn received(
        &self,
        partition: usize,
        group: usize,
        id: BatchId,
        at: Nanos,
        mut latency: impl FnMut(Nanos),
    ) -> Result<(), Violation> {
        let mut guard = self.partitions[partition].lock();
        let partition = &mut *guard;
        let name = || partition.name.clone();
        let next = partition.groups[group].next;
        if id.base_offset > next {
            return Err(Violation::Missing { partition: name(), from: next, to: id.base_offset - 1 });
        }
        if id.base_offset < next {
            return Err(Violation::Repeated { partition: name(), got: id.base_offset, next });
        }
        partition.groups[group].next = id.base_offset + i64::from(id.count);
        let received = Received { id, at };
        if let Ok(at) =
            partition.published.binary_search_by_key(&id.base_offset, |entry| entry.id.base_offset)
        {
            let entry = &mut partition.published[at];
            meet(&partition.name, entry, group, &received, &mut latency)?;
            if entry.received_by == self.all_groups {
                partition.published.remove(at);
            }
            return Ok(());
        }
        let bit = 1 << group;
        if let Some(crc) = id.crc
            && let Some(entries) = partition.unacknowledged.get_mut(&crc)
            && let Some(at) = entries.iter().position(|entry| entry.received_by & bit == 0)
        {
            meet(&partition.name, &mut entries[at], group, &received, &mut latency)?;
            if entries[at].received_by == self.all_groups {
                entries.remove(at);
            }
            if entries.is_empty() {
                partition.unacknowledged.remove(&crc);
            }
            return Ok(());
        }
        partition.groups[group].early.push_back(received);
        Ok(())
    }

    /// Whether every group has received everything published.
    pub fn is_settled(&self) -> bool {
        self.partitions.iter().all(|partition| {
            let partition = partition.lock();
            partition.published.is_empty() && partition.unacknowledged.is_empty()
        })
    }

    /// The violations when nothing more arrives, at most one for each partition. Records whose publishing failed, or
    /// that were sent again without idempotence, may have arrived anyway. If the server may have such records
    /// (`uncertain`), unknown records are not a violation.
    pub fn settle(&self, uncertain: bool) -> Vec<Violation> {
        let mut found = Vec::new();
        for partition in &self.partitions {
            let partition = partition.lock();
            let name = || partition.name.clone();
            if let Some(first) = partition.published.front() {
                let records = partition.published.iter().map(|entry| u64::from(entry.id.count)).sum();
                let first = first.id.base_offset;
                found.push(Violation::Lost { partition: name(), records, first });
                continue;
            }
            let unacknowledged = partition.unacknowledged.values().flatten();
            let records: u64 = unacknowledged.map(|entry| u64::from(entry.id.count)).sum();
            if records > 0 {
                found.push(Violation::LostUnacknowledged { partition: name(), records });
                continue;
            }
            let early = || partition.groups.iter().flat_map(|group| &group.early);
            let records = early().map(|early| u64::from(early.id.count)).sum();
            if let Some(first) = early().map(|early| early.id.base_offset).min().filter(|_| !uncertain) {
                found.push(Violation::Unknown { partition: name(), records, first });
            }
        }
        found
    }
}

/// Compares both sides of a batch.
fn meet(
    partition: &str,
    published: &mut Published,
    group: usize,
    received: &Received,
    latency: &mut impl FnMut(Nanos),
) -> Result<(), Violation> {
    let same_crc = match (published.id.crc, received.id.crc) {
        (Some(published), Some(received)) => published == received,
        _ => true,
    };
    if published.id.count != received.id.count || !same_crc {
        return Err(Violation::Changed { partition: partition.into(), offset: received.id.base_offset });
    }
    published.received_by |= 1 << group;
    published.schedule.times().for_each(|due| latency(received.at.saturating_sub(due)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(groups: u32) -> Ledger {
        Ledger::new(["t-0".to_owned()].into_iter(), groups)
    }

    fn id(base_offset: i64, count: u32) -> BatchId {
        BatchId { base_offset, count, crc: Some(u32::try_from(base_offset.abs()).unwrap() + 7) }
    }

    fn publish(ledger: &Ledger, id: BatchId) -> Vec<Nanos> {
        let mut latencies = Vec::new();
        let times: Vec<Nanos> = (0..u64::from(id.count)).map(|at| 1_000_000 + at * 1_000).collect();
        ledger.published(0, id, Schedule::new(&times), |latency| latencies.push(latency)).unwrap();
        latencies
    }

    fn receive(ledger: &Ledger, group: usize, id: BatchId, at: Nanos) -> Result<Vec<Nanos>, Violation> {
        let mut latencies = Vec::new();
        ledger.received(0, group, id, at, |latency| latencies.push(latency)).map(|()| latencies)
    }

    #[test]
    fn both_sides_meet_whichever_comes_first() {
        let ledger = ledger(2);
        assert!(publish(&ledger, id(0, 2)).is_empty());
        assert_eq!(receive(&ledger, 0, id(0, 2), 3_000_000).unwrap(), [2_000_000, 1_999_000]);
        assert!(!ledger.is_settled());
        assert_eq!(receive(&ledger, 1, id(0, 2), 4_000_000).unwrap(), [3_000_000, 2_999_000]);
        assert!(ledger.is_settled());
        // One group receives the second batch before its acknowledgement.
        assert!(receive(&ledger, 1, id(2, 1), 5_000_000).unwrap().is_empty());
        assert!(matches!(ledger.settle(false)[..], [Violation::Unknown { records: 1, first: 2, .. }]));
        assert_eq!(publish(&ledger, id(2, 1)), [4_000_000]);
        assert!(matches!(ledger.settle(true)[..], [Violation::Lost { records: 1, first: 2, .. }]));
        assert_eq!(receive(&ledger, 0, id(2, 1), 9_000_000).unwrap(), [8_000_000]);
        assert!(ledger.is_settled() && ledger.settle(false).is_empty());
    }

    #[test]
    fn gaps_repetitions_and_changes_are_seen() {
        let ledger = ledger(1);
        publish(&ledger, id(0, 2));
        publish(&ledger, id(2, 3));
        assert!(matches!(receive(&ledger, 0, id(2, 3), 9), Err(Violation::Missing { from: 0, to: 1, .. })));
        receive(&ledger, 0, id(0, 2), 9).unwrap();
        assert!(matches!(receive(&ledger, 0, id(0, 2), 9), Err(Violation::Repeated { got: 0, next: 2, .. })));
        let other = BatchId { crc: Some(1), ..id(2, 3) };
        assert!(matches!(receive(&ledger, 0, other, 9), Err(Violation::Changed { offset: 2, .. })));
    }

    #[test]
    fn acknowledgements_may_come_in_any_order() {
        let ledger = ledger(1);
        for at in [4, 0, 2] {
            publish(&ledger, id(at, 2));
        }
        for at in [0, 2, 4] {
            assert_eq!(receive(&ledger, 0, id(at, 2), 2_000_000).unwrap().len(), 2);
        }
        assert!(ledger.is_settled());
    }

    #[test]
    fn without_acknowledgements_batches_are_known_by_their_crc() {
        let ledger = ledger(2);
        let sent = BatchId { base_offset: -1, count: 2, crc: Some(5) };
        publish(&ledger, sent);
        publish(&ledger, sent);
        assert!(matches!(ledger.settle(false)[..], [Violation::LostUnacknowledged { records: 4, .. }]));
        for group in [0, 1] {
            for base_offset in [0, 2] {
                assert_eq!(
                    receive(&ledger, group, BatchId { base_offset, ..sent }, 2_000_000).unwrap().len(),
                    2
                );
            }
        }
        assert!(ledger.is_settled() && ledger.settle(false).is_empty());
        // One group was faster than the client's report.
        assert!(receive(&ledger, 1, BatchId { base_offset: 4, ..sent }, 3_000_000).unwrap().is_empty());
        assert_eq!(publish(&ledger, sent).len(), 2);
        assert!(!ledger.is_settled());
        assert_eq!(receive(&ledger, 0, BatchId { base_offset: 4, ..sent }, 3_000_000).unwrap().len(), 2);
        assert!(ledger.is_settled() && ledger.settle(false).is_empty());
    }

    #[test]
    fn a_server_may_change_the_timestamps() {
        let ledger = ledger(1);
        publish(&ledger, id(0, 2));
        assert_eq!(receive(&ledger, 0, BatchId { crc: None, ..id(0, 2) }, 2_000_000).unwrap().len(), 2);
    }

    #[test]
    fn schedules_keep_the_microsecond() {
        let times = [1_234_567, 1_235_000, 9_001_234_567];
        let kept: Vec<Nanos> = Schedule::new(&times).times().collect();
        assert_eq!(kept, [1_234_567, 1_234_567, 9_001_234_567]);
    }
}
