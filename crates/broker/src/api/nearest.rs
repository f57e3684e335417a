//! Consumers that read from a broker of their rack (KIP-392), where that has copies of the partition's log.
//!
//! The leader sends such a consumer to the nearest broker. That broker asks the leader for everything but the bytes: the leader
//! waits for records, bounds them by the high watermark or the last stable offset, and says where they are in its log. The broker
//! takes them from its copies of the log's blocks. What it does not have there, the leader sends. So a consumer sees what it would
//! see at the leader, and the records cross from one rack to another once.

use std::sync::Arc;
use std::time::Duration;

use storage::copies::{Opening, Place};
use storage::{Level, ReadError};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;
use wire::messages as m;
use wire::messages::fetch_response::{AbortedTransaction, PartitionData};
use wire::messages::locate_records_request::{LocatePartition, LocateTopic};
use wire::messages::locate_records_response::{LocatedAborted, LocatedBatch, LocatedPartition, LocatedTopic};
use wire::{Bytes, ErrorCode, Records, Text};

use super::fetch;
use super::fetch_looks::{Limits, Look};
use super::reads::{READ_COMMITTED, without_records};
use crate::broker::Broker;
use crate::config::ReplicaSelector;
use crate::partition::Partition;
use crate::partition::log::LogBounds;
use crate::request::Request;
use crate::session::{Slot, Slots};

/// The first version in which a consumer names its rack.
pub const RACK_FROM_VERSION: i16 = 11;
/// A leader is asked to wait for records for so long at most: a request between brokers is given up after ten seconds.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A fetch that should not wait waits so long for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(1);

/// A consumer's rack, and the brokers in it.
pub struct Nearest {
    broker: Arc<Broker>,
    rack: Text,
}

/// A partition that another broker leads, and what the consumer wants of it.
struct Asked {
    slot: usize,
    partition: Arc<Partition>,
    topic_id: Uuid,
    wanted: LocatePartition,
}

impl Nearest {
    /// Where a consumer in `rack` reads. `None` without a rack, and on a broker that is alone.
    pub fn of(broker: &Arc<Broker>, rack: &Text) -> Option<Nearest> {
        let wanted = !rack.is_empty() && broker.copies.is_some();
        wanted.then(|| Nearest { broker: broker.clone(), rack: rack.clone() })
    }

    fn in_sync(&self, partition: &Partition) -> Vec<i32> {
        let topic = self.broker.topics.find(&partition.topic);
        topic.map_or_else(Vec::new, |topic| self.broker.replicas_of(&topic).of(partition).in_sync)
    }

    /// The broker from which the consumer should read a partition that this broker leads, from `offset` on: one in its rack that has
    /// copies of everything from there on. `None` for this one.
    pub fn preferred(
        &self,
        partition: &Partition,
        offset: i64,
        bounds: &LogBounds,
        limits: &Limits,
    ) -> Option<i32> {
        let here = self.broker.placement.local();
        let has_rack = |node: &i32| {
            let node = self.broker.placement.node(*node, &limits.caller.origin);
            node.is_some_and(|node| node.rack.as_ref() == Some(&self.rack))
        };
        // Copies of what the object store has are dropped.
        let copied = bounds.stored.unwrap_or(bounds.start).0..=bounds.visible.0;
        if self.broker.config.replica_selector == ReplicaSelector::None
            || has_rack(&here)
            || !copied.contains(&offset)
        {
            return None;
        }
        self.in_sync(partition).into_iter().find(|node| *node != here && has_rack(node))
    }

    /// Whether this broker serves the consumer a partition that another broker leads.
    pub fn serves(&self, partition: &Partition) -> bool {
        let broker = &self.broker;
        broker.config.rack.get() == Some(&*self.rack)
            && partition.leader().node != broker.placement.local()
            && self.in_sync(partition).contains(&broker.placement.local())
    }

    /// Looks at partitions that other brokers lead. Returns once one of their leaders has enough records, or at `until`.
    pub async fn look(
        &self,
        slots: &mut Slots,
        numbers: &[usize],
        limits: &Limits,
        taken: usize,
        until: Instant,
    ) -> Vec<Look> {
        let mut by_leader: Vec<(i32, Vec<Asked>)> = Vec::new();
        for number in numbers {
            let Some(asked) = slots.slot(*number).and_then(|slot| self.asked(*number, slot)) else {
                continue;
            };
            let leader = asked.partition.leader().node;
            match by_leader.iter_mut().find(|(node, _)| *node == leader) {
                Some((_, of_leader)) => of_leader.push(asked),
                None => by_leader.push((leader, vec![asked])),
            }
        }
        let whole = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        let wait = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let request = m::LocateRecordsRequest {
            max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(0),
            min_bytes: whole(limits.bytes_min.saturating_sub(taken)),
            max_bytes: whole(limits.bytes_max.saturating_sub(taken)),
            isolation_level: if limits.read_committed { READ_COMMITTED } else { 0 },
            ..m::LocateRecordsRequest::default()
        };
        let turn_until = until.max(Instant::now() + TURN_WITHIN);
        let mut asking = JoinSet::new();
        for (leader, asked) in by_leader {
            let (broker, request) = (self.broker.clone(), request.clone());
            asking.spawn(async move {
                let permit = broker.asking.clone().acquire_owned();
                match tokio::time::timeout_at(turn_until, permit).await {
                    Ok(Ok(_permit)) => ask(&broker, leader, request, asked).await,
                    _ => Vec::new(),
                }
            });
        }
        let mut looks = Vec::new();
        while let Some(of_leader) = asking.join_next().await {
            looks.extend(of_leader.unwrap_or_default());
            // Those of other leaders come in one of the next fetches.
            if looks.iter().any(|look: &Look| look.bytes > 0 || look.data.error_code != 0) {
                break;
            }
        }
        looks
    }

    fn asked(&self, number: usize, slot: &Slot) -> Option<Asked> {
        let partition = slot.partition.clone()?;
        let topic_id = self.broker.topics.find(&partition.topic)?.id;
        let wanted = LocatePartition {
            partition: slot.index,
            current_leader_epoch: slot.leader_epoch,
            fetch_offset: slot.offset,
            last_fetched_epoch: slot.last_fetched_epoch,
            partition_max_bytes: slot.bytes_max,
        };
        Some(Asked { slot: number, partition, topic_id, wanted })
    }
}

/// Asks a leader about partitions. A consumer learns from NOT_LEADER_OR_FOLLOWER that it does not answer, and looks for another one.
async fn ask(
    broker: &Arc<Broker>,
    leader: i32,
    mut request: m::LocateRecordsRequest,
    asked: Vec<Asked>,
) -> Vec<Look> {
    let mut looks = Vec::new();
    let mut lacking = Vec::new();
    for (asked, located) in locate_at(broker, leader, &request, asked).await {
        match located {
            Some(located) if !located.places.is_empty() => {
                let (copies, stream) = (broker.copies.clone(), asked.partition.stream_id);
                let read = broker.blocking(move |_| {
                    let places: Vec<Place> = located.places.iter().map(place_of).collect();
                    let batches =
                        copies.and_then(|copies| copies.batches(opening(&located), stream, &places));
                    (located, batches)
                });
                match read.await {
                    (located, Some(batches)) => {
                        let bytes: usize = batches.iter().map(Bytes::len).sum();
                        broker.metrics.read_from_copies.inc_by(bytes as u64);
                        looks.push(look_of(asked.slot, located, batches));
                    }
                    (_, None) => lacking.push(asked),
                }
            }
            Some(located) => looks.push(look_with_records(asked.slot, located)),
            None => looks.push(not_here(&asked)),
        }
    }
    if !lacking.is_empty() {
        (request.with_records, request.max_wait_ms) = (true, 0);
        let located = locate_at(broker, leader, &request, lacking).await;
        looks.extend(located.into_iter().map(|(asked, located)| match located {
            Some(located) => look_with_records(asked.slot, located),
            None => not_here(&asked),
        }));
    }
    looks
}

/// What a leader says about each partition. `None` if it says nothing.
async fn locate_at(
    broker: &Broker,
    leader: i32,
    request: &m::LocateRecordsRequest,
    asked: Vec<Asked>,
) -> Vec<(Asked, Option<LocatedPartition>)> {
    let mut request = request.clone();
    for asked in &asked {
        match request.topics.last_mut().filter(|topic| topic.topic_id == asked.topic_id) {
            Some(topic) => topic.partitions.push(asked.wanted.clone()),
            None => request
                .topics
                .push(LocateTopic { topic_id: asked.topic_id, partitions: vec![asked.wanted.clone()] }),
        }
    }
    let answer: Option<m::LocateRecordsResponse> = broker.peers.ask(leader, 0, &request).await;
    let mut located: Vec<(Uuid, LocatedPartition)> = Vec::new();
    for LocatedTopic { topic_id, partitions } in answer.into_iter().flat_map(|answer| answer.topics) {
        located.extend(partitions.into_iter().map(|partition| (topic_id, partition)));
    }
    let of = |asked: Asked| {
        let is_it = |(topic_id, of): &(Uuid, LocatedPartition)| {
            *topic_id == asked.topic_id && of.partition_index == asked.partition.index
        };
        let found = located.iter().position(is_it).map(|at| located.swap_remove(at).1);
        (asked, found)
    };
    asked.into_iter().map(of).collect()
}

fn place_of(batch: &LocatedBatch) -> Place {
    Place { lsn: batch.lsn.cast_unsigned(), length: batch.length.cast_unsigned() }
}

fn opening(located: &LocatedPartition) -> Opening {
    Opening { log_id: located.log_id.as_u128(), epoch: located.epoch.cast_unsigned() }
}

fn not_here(asked: &Asked) -> Look {
    let data = without_records(asked.partition.index, ErrorCode::NotLeaderOrFollower);
    Look { data: PartitionData { aborted_transactions: None, ..data }, ..Look::empty(asked.slot) }
}

fn look_with_records(slot: usize, mut located: LocatedPartition) -> Look {
    let records = located.records.take().unwrap_or_default();
    look_of(slot, located, records.chunks().cloned().collect())
}

fn look_of(slot: usize, located: LocatedPartition, batches: Vec<Bytes>) -> Look {
    let told = |aborted: LocatedAborted| AbortedTransaction {
        producer_id: aborted.producer_id,
        first_offset: aborted.first_offset,
    };
    let mut records = Records::new();
    batches.into_iter().for_each(|batch| records.push(batch));
    Look {
        bytes: records.len(),
        cut_short: located.cut_short,
        data: PartitionData {
            partition_index: located.partition_index,
            error_code: located.error_code,
            high_watermark: located.high_watermark,
            last_stable_offset: located.last_stable_offset,
            log_start_offset: located.log_start_offset,
            aborted_transactions: located.aborted_transactions.map(|all| all.into_iter().map(told).collect()),
            records: Some(records),
            ..PartitionData::default()
        },
        ..Look::empty(slot)
    }
}

/// Answers LocateRecords: as Fetch would, with the places of records instead of the records themselves.
pub async fn locate(
    Request { broker, caller, body: request, .. }: Request<m::LocateRecordsRequest>,
) -> m::LocateRecordsResponse {
    let mut slots = Slots::default();
    for LocateTopic { topic_id, partitions } in &request.topics {
        let found = broker.topics.find_id(topic_id);
        let topic = slots.topic(&Text::EMPTY, *topic_id, found.as_deref());
        for wanted in partitions {
            slots.put(Slot {
                topic,
                index: wanted.partition,
                partition: found.as_ref().and_then(|topic| topic.partition(wanted.partition)),
                offset: wanted.fetch_offset,
                bytes_max: wanted.partition_max_bytes,
                leader_epoch: wanted.current_leader_epoch,
                last_fetched_epoch: wanted.last_fetched_epoch,
                told: None,
                known: found.is_some(),
                allowed: true,
            });
        }
    }
    let bytes = |bytes: i32| usize::try_from(bytes.min(broker.config.fetch_max_bytes)).unwrap_or(0);
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(WAIT_MAX);
    let limits = Limits {
        payer: caller.payer(),
        caller,
        bytes_max: bytes(request.max_bytes),
        bytes_min: bytes(request.min_bytes),
        deadline: Instant::now() + wait,
        read_committed: request.isolation_level == READ_COMMITTED,
        by_id: true,
        node: broker.placement.local(),
        by_replica: true,
        leader_told: false,
        refusal: None,
        nearest: None,
    };
    let looks = fetch::look(&broker, &mut slots, &limits, true).await;
    let mut topics: Vec<LocatedTopic> = Vec::new();
    for look in looks {
        let (Some(slot), asked) = slots.slot_and_topics(look.slot) else { continue };
        let Some(topic_id) = asked.get(&slot.topic).map(|topic| topic.id) else { continue };
        let partition = slot.partition.clone().filter(|_| look.bytes > 0 && !request.with_records);
        let located = located(&broker, look, partition, slot.offset).await;
        match topics.last_mut().filter(|topic| topic.topic_id == topic_id) {
            Some(topic) => topic.partitions.push(located),
            None => topics.push(LocatedTopic { topic_id, partitions: vec![located] }),
        }
    }
    m::LocateRecordsResponse { topics, ..m::LocateRecordsResponse::default() }
}

/// What a look has found, with places instead of records, if `partition` has some for all of them.
async fn located(
    broker: &Arc<Broker>,
    look: Look,
    partition: Option<Arc<Partition>>,
    from: i64,
) -> LocatedPartition {
    let Look { data, bytes, cut_short, next, .. } = look;
    let told = |aborted: AbortedTransaction| LocatedAborted {
        producer_id: aborted.producer_id,
        first_offset: aborted.first_offset,
    };
    let mut located = LocatedPartition {
        partition_index: data.partition_index,
        error_code: data.error_code,
        high_watermark: data.high_watermark,
        last_stable_offset: data.last_stable_offset,
        log_start_offset: data.log_start_offset,
        aborted_transactions: data.aborted_transactions.map(|all| all.into_iter().map(told).collect()),
        cut_short,
        ..LocatedPartition::default()
    };
    let places = match (partition, next) {
        (Some(partition), Some(next)) => {
            broker.blocking(move |_| places(&partition, model::Offset(from), next)).await
        }
        _ => None,
    };
    // The batches may have moved within the log since they were read.
    let all = |(.., places): &(Uuid, u32, Vec<Place>)| {
        places.iter().map(|place| place.length as usize).sum::<usize>() == bytes
    };
    match places.filter(all) {
        Some((log_id, epoch, places)) => {
            (located.log_id, located.epoch) = (log_id, epoch.cast_signed());
            let batch = |place: Place| LocatedBatch {
                lsn: place.lsn.cast_signed(),
                length: place.length.cast_signed(),
            };
            located.places = places.into_iter().map(batch).collect();
        }
        None => located.records = data.records,
    }
    located
}

/// The log, the epoch of its owner, and the places in it of a partition's batches in `from..until`. `None` if they may have no
/// copies. Blocks.
fn places(
    partition: &Partition,
    from: model::Offset,
    until: model::Offset,
) -> Option<(Uuid, u32, Vec<Place>)> {
    let log = partition.log().ok()?;
    let local = log.local().filter(|local| local.stream.level() == Level::Replicated)?;
    let bounds = log.bounds();
    if from < bounds.stored.unwrap_or(bounds.start) {
        return None;
    }
    let places: Result<_, ReadError> = local.log.log.places(&local.stream, from, until);
    Some((local.log.id, local.log.epoch?, places.ok()?))
}
