//! Consumers that read from a broker of their rack (KIP-392), where that has copies of the partition's log.
//!
//! The leader sends such a consumer to the nearest broker. That broker asks the leader for everything but the bytes: the leader
//! waits for records, bounds them by the high watermark or the last stable offset, and says where they are in its log. The broker
//! takes them from its copies of the log's blocks. What it does not have there, the leader sends. So a consumer sees what it would
//! see at the leader, and the records cross from one rack to another once.

use std::sync::Arc;
use std::time::Duration;

use storage::copies::{Copies, Opening, Place};
use storage::{Level, ReadError};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;
use wire::messages as m;
use wire::messages::fetch_response::{AbortedTransaction, PartitionData};
use wire::messages::locate_records_request::{LocatePartition, LocateTopic};
use wire::messages::locate_records_response::{LocatedAborted, LocatedBatch, LocatedPartition, LocatedTopic};
use wire::{Bytes, ErrorCode, Text};

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
/// Bytes of records in an answer of a leader.
const BYTES_MAX: usize = 1024 * 1024;
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
        let copied = copied_from(bounds).0..=bounds.visible.0;
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

    /// Asks the leaders of partitions that other brokers lead, to answer at `until` or once they have enough records. Each leader's
    /// answer comes by itself.
    pub fn ask(
        &self,
        slots: &mut Slots,
        numbers: &[usize],
        limits: &Limits,
        taken: usize,
        until: Instant,
    ) -> JoinSet<Vec<Look>> {
        let mut by_leader: Vec<(i32, Vec<Asked>)> = Vec::new();
        let mut gone = Vec::new();
        for number in numbers {
            let (Some(slot), topics) = slots.slot_and_topics(*number) else { continue };
            let Some(partition) = slot.partition.clone() else { continue };
            let topic_id = topics.get(&slot.topic).map_or(Uuid::nil(), |topic| topic.id);
            let topic_id = match topic_id.is_nil() {
                true => self.broker.topics.find(&partition.topic).map(|topic| topic.id),
                false => Some(topic_id),
            };
            let leader = partition.leader().node;
            let Some(topic_id) = topic_id.filter(|_| leader != self.broker.placement.local()) else {
                gone.push(not_here(*number, slot.index));
                continue;
            };
            let wanted = LocatePartition {
                partition: slot.index,
                current_leader_epoch: slot.leader_epoch,
                fetch_offset: slot.offset,
                last_fetched_epoch: slot.last_fetched_epoch,
                partition_max_bytes: slot.bytes_max,
            };
            let asked = Asked { slot: *number, partition, topic_id, wanted };
            match by_leader.iter_mut().find(|(node, _)| *node == leader) {
                Some((_, of_leader)) => of_leader.push(asked),
                None => by_leader.push((leader, vec![asked])),
            }
        }
        let whole = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        let request = m::LocateRecordsRequest {
            min_bytes: whole(limits.bytes_min.saturating_sub(taken)),
            max_bytes: whole(limits.bytes_max.saturating_sub(taken).min(BYTES_MAX)),
            isolation_level: if limits.read_committed { READ_COMMITTED } else { 0 },
            ..m::LocateRecordsRequest::default()
        };
        let turn_until = until.max(Instant::now() + TURN_WITHIN);
        let mut asking = JoinSet::new();
        if !gone.is_empty() {
            asking.spawn(async { gone });
        }
        for (leader, asked) in by_leader {
            let (broker, request) = (self.broker.clone(), request.clone());
            asking.spawn(async move {
                let permit = broker.asking.clone().acquire_owned();
                let Ok(Ok(permit)) = tokio::time::timeout_at(turn_until, permit).await else {
                    return Vec::new();
                };
                let ask = move |broker: &Arc<Broker>| {
                    // Nobody may wait for the answer any more: the thread has the permit until it is there.
                    let _permit = permit;
                    let wait = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
                    let max_wait_ms = i32::try_from(wait.as_millis()).unwrap_or(0);
                    ask(broker, leader, m::LocateRecordsRequest { max_wait_ms, ..request }, asked)
                };
                let looks = broker.blocking(ask).await;
                held(&broker, looks).await
            });
        }
        asking
    }
}

/// Counts records that are not the log's towards the memory for large answers, until they are sent.
async fn held(broker: &Broker, mut looks: Vec<Look>) -> Vec<Look> {
    let bytes = looks.iter().map(|look| look.bytes).sum();
    let last = looks.iter_mut().rfind(|look| look.bytes > 0).and_then(|look| look.data.records.as_mut());
    if let Some(records) = last {
        let part = records.rest.last_mut().unwrap_or(&mut records.first);
        *part = broker.turns.hold_until(std::mem::take(part), bytes).await;
    }
    looks
}

/// Asks a leader about partitions. A consumer learns from NOT_LEADER_OR_FOLLOWER that it does not answer, and looks for another one.
/// Blocks.
fn ask(broker: &Broker, leader: i32, mut request: m::LocateRecordsRequest, asked: Vec<Asked>) -> Vec<Look> {
    let mut looks = Vec::new();
    let mut lacking = Vec::new();
    for (asked, located) in locate_at(broker, leader, &request, asked) {
        match located {
            Some(located) if !located.places.is_empty() => {
                let places: Vec<Place> = located.places.iter().map(place_of).collect();
                let read = |copies: &Arc<Copies>| {
                    copies.batches(opening(&located), asked.partition.stream_id, &places)
                };
                match broker.copies.as_ref().and_then(read) {
                    Some(batches) => {
                        broker.metrics.read_from_copies.inc_by(batches.len() as u64);
                        looks.push(look_of(asked.slot, located, Some(batches)));
                    }
                    None => lacking.push(asked),
                }
            }
            Some(located) => looks.push(look_of(asked.slot, located, None)),
            None => looks.push(not_here(asked.slot, asked.partition.index)),
        }
    }
    if !lacking.is_empty() {
        (request.with_records, request.max_wait_ms) = (true, 0);
        let located = locate_at(broker, leader, &request, lacking);
        looks.extend(located.into_iter().map(|(asked, located)| match located {
            Some(located) => look_of(asked.slot, located, None),
            None => not_here(asked.slot, asked.partition.index),
        }));
    }
    looks
}

/// What a leader says about each partition. `None` if it says nothing.
fn locate_at(
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
    let answer: std::io::Result<m::LocateRecordsResponse> = broker.peers.ask_blocking(leader, 0, &request);
    if let Err(error) = &answer {
        tracing::debug!(broker = leader, %error, "another broker did not say what consumers may read");
    }
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

/// The look at a partition of which its leader says nothing.
pub fn not_here(slot: usize, index: i32) -> Look {
    let data = without_records(index, ErrorCode::NotLeaderOrFollower);
    Look { data: PartitionData { aborted_transactions: None, ..data }, ..Look::empty(slot) }
}

/// What a leader has said about a partition, with the records that it sent, or with those from copies.
fn look_of(slot: usize, located: LocatedPartition, from_copies: Option<Bytes>) -> Look {
    let told = |aborted: LocatedAborted| AbortedTransaction {
        producer_id: aborted.producer_id,
        first_offset: aborted.first_offset,
    };
    let mut records = located.records.unwrap_or_default();
    from_copies.into_iter().for_each(|batches| records.push(batches));
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

/// The first offset that may have copies.
fn copied_from(bounds: &LogBounds) -> model::Offset {
    // Records that were deleted may have been stored or not.
    bounds.stored.map_or(bounds.start, |stored| stored.max(bounds.start))
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
    if from < copied_from(&bounds) {
        return None;
    }
    let places: Result<_, ReadError> = local.log.log.places(&local.stream, from, until);
    Some((local.log.id, local.log.epoch?, places.ok()?))
}
