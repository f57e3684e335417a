//! ListOffsets and OffsetForLeaderEpoch: the start and the end of a partition, and the offset of a timestamp or of an
//! epoch's end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use model::batch::HEADER_BYTES;
use model::{BatchHeader, Offset, Timestamp, TimestampType};
use tokio::sync::oneshot;
use tokio::time::Instant;
use wire::messages::list_offsets_request::ListOffsetsTopic;
use wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use wire::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use wire::messages::{ListOffsetsRequest, OffsetForLeaderEpochRequest};
use wire::records::RecordError;
use wire::{Bytes, ErrorCode, Limits};

use crate::api::reads::{READ_COMMITTED, check_leader_epoch, read_batches};
use crate::broker::Broker;
use crate::failure::Failure;
use crate::partition::log::PartitionLog;
use crate::partition::{Partition, Replica};
use crate::placement::FIRST_EPOCH;
use crate::request::Request;
use crate::security::Operation;

/// Timestamps with a special meaning.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
/// The first offset on the local disk (KIP-405).
const EARLIEST_LOCAL: i64 = -4;
/// The last offset in remote storage, and the first one that is not there (KIP-1005, KIP-1023).
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;
/// The first version whose answer contains a leader epoch (KIP-320).
const LEADER_EPOCH_FROM_VERSION: i16 = 4;
/// Bound of the wait for earlier appends to become visible, of all partitions of a request together: each may take an upload.
const SEEN_PATIENCE: Duration = Duration::from_secs(1);
/// Bound in bytes of a decompressed batch whose records are searched for a timestamp.
const SEARCH_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Answers ListOffsets.
pub async fn answer(
    Request { broker, caller, version, body: request, .. }: Request<ListOffsetsRequest>,
) -> ListOffsetsResponse {
    let stable = request.isolation_level == READ_COMMITTED;
    let levels = 0..=READ_COMMITTED;
    let mut topics = Vec::with_capacity(request.topics.len());
    let repeated = if version > 0 { repeated(&request.topics) } else { HashMap::new() };
    let mut places = 0..;
    let seen_until = Instant::now() + SEEN_PATIENCE;
    for topic in request.topics {
        let allowed = broker.authorizer.topic(&caller, Operation::Describe, &topic.name);
        let found = broker.topics.find(&topic.name);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in topic.partitions {
            let partition = found.as_ref().and_then(|topic| topic.partition(asked.partition_index));
            let is_repeated = places.next().and_then(|place| repeated.get(&place));
            if is_repeated == Some(&false) {
                continue;
            }
            let unknown = version < first_version_of(asked.timestamp);
            let epoch = partition.as_ref().map_or(FIRST_EPOCH, |partition| partition.leader().epoch);
            let result = match (&partition, check_leader_epoch(asked.current_leader_epoch, epoch)) {
                _ if allowed.is_err() => Err(ErrorCode::TopicAuthorizationFailed.into()),
                _ if !levels.contains(&request.isolation_level) => Err(ErrorCode::UnknownServerError.into()),
                _ if is_repeated.is_some() => Err(ErrorCode::InvalidRequest.into()),
                (None, _) => Err(ErrorCode::UnknownTopicOrPartition.into()),
                (_, Err(error)) => Err(error.into()),
                // Kafka evaluates neither timestamp, and the client would not understand the answer.
                (Some(_), Ok(())) if unknown => Err(ErrorCode::UnsupportedVersion.into()),
                (Some(partition), Ok(())) => {
                    find(&broker, partition, asked.timestamp, stable, seen_until).await
                }
            };
            let mut answer = ListOffsetsPartitionResponse {
                partition_index: asked.partition_index,
                timestamp: -1,
                offset: -1,
                leader_epoch: -1,
                ..ListOffsetsPartitionResponse::default()
            };
            match result {
                Ok(Some((offset, timestamp))) => {
                    (answer.offset, answer.timestamp) = (offset.0, timestamp.0);
                    if version >= LEADER_EPOCH_FROM_VERSION {
                        answer.leader_epoch =
                            partition.map_or(FIRST_EPOCH, |partition| partition.epoch_at(offset));
                    }
                }
                Ok(None) => {}
                Err(failure) => answer.error_code = failure.code.code(),
            }
            partitions.push(answer);
        }
        if !partitions.is_empty() {
            topics.push(ListOffsetsTopicResponse { name: topic.name, partitions });
        }
    }
    ListOffsetsResponse { topics, ..ListOffsetsResponse::default() }
}

/// The first version whose clients may ask for this special timestamp.
fn first_version_of(timestamp: i64) -> i16 {
    match timestamp {
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        EARLIEST_PENDING_UPLOAD => 11,
        _ => 0,
    }
}

/// The positions in the request of partitions that are named more than once, which Kafka refuses. The value says
/// whether the position is the first of its partition.
fn repeated(topics: &[ListOffsetsTopic]) -> HashMap<usize, bool> {
    let (mut by_name, mut first, mut repeated) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut place = 0;
    for topic in topics {
        let next = by_name.len();
        let topic_number = *by_name.entry(&topic.name).or_insert(next);
        for asked in &topic.partitions {
            let before = *first.entry((topic_number, asked.partition_index)).or_insert(place);
            if before < place {
                repeated.insert(before, true);
                repeated.insert(place, false);
            }
            place += 1;
        }
    }
    repeated
}

type Place = Option<(Offset, Timestamp)>;

/// Finds the offset for a timestamp. With `stable`, only offsets visible to a read_committed consumer count.
async fn find(
    broker: &Arc<Broker>,
    partition: &Partition,
    timestamp: i64,
    stable: bool,
    seen_until: Instant,
) -> Result<Place, Failure> {
    let log = broker.replica(partition)?.log;
    if !matches!(timestamp, EARLIEST | EARLIEST_LOCAL) {
        // Records acknowledged with acks=1 may not be visible yet, so wait until they are: one group commit at most. If
        // the log has stopped or the disk hangs, the visible records decide.
        let seen = partition.committed(&**log, partition.next_offset());
        let _ = tokio::time::timeout_at(seen_until, seen).await;
    }
    let bounds = log.bounds();
    let end = match stable {
        true => partition.last_stable_offset(bounds.visible),
        false => bounds.visible,
    };
    let visible = |place: Place| place.filter(|(offset, _)| *offset < end);
    match timestamp {
        LATEST => Ok(Some((end, Timestamp::NONE))),
        EARLIEST => Ok(Some((bounds.start, Timestamp::NONE))),
        EARLIEST_LOCAL => Ok(Some((bounds.local_start, Timestamp::NONE))),
        // As in Kafka, the offset of the last stored record, and of the first visible one that is not stored.
        LATEST_TIERED => Ok(bounds.stored.map(|stored| (stored + -1, Timestamp::NONE))),
        EARLIEST_PENDING_UPLOAD => {
            let topic = broker.topics.find(&partition.topic);
            let stores = topic.is_some_and(|topic| topic.config().tiering.is_some());
            let pending = bounds.stored.unwrap_or_default().max(bounds.start);
            Ok(visible(stores.then_some((pending, Timestamp::NONE))))
        }
        MAX_TIMESTAMP => search(broker, log, None).await.map(visible),
        0.. => search(broker, log, Some(Timestamp(timestamp))).await.map(visible),
        // A later version of Kafka may know this timestamp.
        _ => Err(ErrorCode::UnsupportedVersion.into()),
    }
}

/// The first record at or after `timestamp`. Without a timestamp, the record with the largest timestamp.
async fn search(
    broker: &Arc<Broker>,
    log: &Arc<dyn PartitionLog>,
    timestamp: Option<Timestamp>,
) -> Result<Place, Failure> {
    let (sender, receiver) = oneshot::channel();
    // If the client disconnected, no task waits for the result.
    log.search(timestamp, Box::new(move |place| drop(sender.send(place))));
    let place = receiver.await.unwrap_or(Err(storage::ReadError::Closed))?;
    let Some(place) = place else { return Ok(None) };
    let from = place.base_offset.max(log.bounds().start);
    let request = log.request(from, Offset(i64::MAX), 1);
    let batch = Bytes::from(read_batches(&**log, request).await?.chunks.concat());
    let start = log.bounds().start;
    // A small batch may hold millions of records.
    let found = broker.walks.run(SEARCH_BYTES_MAX, move |limits| record_in(&batch, timestamp, start, limits));
    found.await.map_err(|why| Failure::because(ErrorCode::CorruptMessage, why.to_string()))
}

/// The first record of a batch at or after `start` whose timestamp is at or after `timestamp`, or equals the batch's
/// largest timestamp if `timestamp` is `None`.
fn record_in(
    batch: &Bytes,
    timestamp: Option<Timestamp>,
    start: Offset,
    limits: Limits,
) -> Result<Place, RecordError> {
    let header = BatchHeader::parse(batch)?;
    let packed = &batch[HEADER_BYTES..header.total_bytes];
    let wanted = timestamp.unwrap_or(header.max_timestamp);
    let appended = header.timestamp_type() == TimestampType::LogAppendTime;
    let time = |own: Timestamp| if appended { header.max_timestamp } else { own };
    let offset = |delta: i32| header.base_offset + i64::from(delta);
    let found =
        wire::find(&header, packed, limits, |delta, own| time(own) >= wanted && offset(delta) >= start)?;
    Ok(found.map(|(delta, own)| (offset(delta), time(own))))
}

/// Answers OffsetForLeaderEpoch (KIP-279): the end offset of an epoch.
pub async fn offset_for_leader_epoch(
    Request { ref broker, ref caller, body: request, .. }: Request<OffsetForLeaderEpochRequest>,
) -> OffsetForLeaderEpochResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    // Between servers, a replica would ask this.
    let server = broker.authorizer.shows_cluster(caller, Operation::ClusterAction);
    for topic in request.topics {
        let allowed = server || broker.authorizer.topic(caller, Operation::Describe, &topic.topic).is_ok();
        let found = broker.topics.find(&topic.topic);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in topic.partitions {
            let partition = found.as_ref().and_then(|topic| topic.partition(asked.partition));
            let mut answer = EpochEndOffset { partition: asked.partition, ..EpochEndOffset::default() };
            let epoch = partition.as_ref().map_or(FIRST_EPOCH, |partition| partition.leader().epoch);
            match (partition, check_leader_epoch(asked.current_leader_epoch, epoch)) {
                _ if !allowed => answer.error_code = ErrorCode::TopicAuthorizationFailed.code(),
                (None, _) => answer.error_code = ErrorCode::UnknownTopicOrPartition.code(),
                (_, Err(error)) => answer.error_code = error.code(),
                (Some(partition), Ok(())) => match broker.replica(&partition) {
                    Err(elsewhere) => answer.error_code = Failure::from(elsewhere).code.code(),
                    Ok(Replica { log, .. }) if asked.leader_epoch != -1 => {
                        if let Some((epoch, end)) = partition.epoch_end(asked.leader_epoch) {
                            answer.leader_epoch = epoch;
                            answer.end_offset = end.max(log.bounds().start).0;
                        }
                    }
                    Ok(_) => {}
                },
            }
            partitions.push(answer);
        }
        topics.push(OffsetForLeaderTopicResult { topic: topic.topic, partitions });
    }
    OffsetForLeaderEpochResponse { topics, ..OffsetForLeaderEpochResponse::default() }
}
