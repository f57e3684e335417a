//! Fetch: reads committed records, and waits for more if there are too few.
//!
//! A fetch looks at every partition only if it begins a session or has none. The later fetches of a session look only
//! at partitions that have changed. While a fetch waits, commits wake it at most once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use wire::messages::FetchRequest;
use wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse};
use wire::{ApiKey, ErrorCode};

use crate::api::fetch_looks::{Limits, Look, look_and_wait};
use crate::api::nearest::{Nearest, RACK_FROM_VERSION};
use crate::api::reads::{READ_COMMITTED, leaders_told, unknown_isolation};
use crate::broker::Broker;
use crate::partition::traffic::Count;
use crate::quotas::Quota;
use crate::request::Request;
use crate::session::{Session, Slot, Slots, next_epoch};

/// The first version with sessions, and the first that names topics by id.
const SESSIONS_FROM_VERSION: i16 = 7;
const IDS_FROM_VERSION: i16 = 13;
/// The first version whose clients read the leader of a partition from the answer.
const LEADER_TOLD_FROM_VERSION: i16 = 16;
/// The first version that names the follower in a separate structure (KIP-903).
const REPLICA_STATE_FROM_VERSION: i16 = 15;
/// Session epochs with a special meaning (KIP-227).
const EPOCH_NEW: i32 = 0;
const EPOCH_NONE: i32 = -1;

/// The first version whose clients know KAFKA_STORAGE_ERROR (KIP-112). Older clients would not retry on it.
const STORAGE_ERROR_FROM_VERSION: i16 = 6;

/// Approximate bytes of a partition in an answer, without its records.
const PARTITION_BYTES: usize = 50;

/// A fetch that names more partitions is answered at once, with or without data.
const WAITING_PARTITIONS_MAX: usize = 10_000;

fn refused(error: ErrorCode, session_id: i32) -> FetchResponse {
    FetchResponse { error_code: error.code(), session_id, ..FetchResponse::default() }
}

/// Answers Fetch.
pub async fn answer(
    Request { broker, caller, version, body: request, .. }: Request<FetchRequest>,
) -> FetchResponse {
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    // The data of a request with very many partitions is not kept while the request waits.
    let named = request.topics.iter().map(|topic| 1 + topic.partitions.len());
    let forgotten = request.forgotten_topics_data.iter().map(|topic| 1 + topic.partitions.len());
    let many = named.chain(forgotten).sum::<usize>() > WAITING_PARTITIONS_MAX;
    let replica = if version >= REPLICA_STATE_FROM_VERSION {
        request.replica_state.replica_id
    } else {
        request.replica_id
    };
    let payer = caller.payer();
    let bytes_max = request.max_bytes.min(broker.config.fetch_max_bytes);
    let bytes_max = bytes_max.min(whole(broker.quotas.window_max(Quota::Fetch, &payer)));
    let limits = Limits {
        caller,
        payer,
        bytes_max: usize::try_from(bytes_max).unwrap_or(0),
        bytes_min: usize::try_from(request.min_bytes.min(bytes_max)).unwrap_or(0),
        deadline: Instant::now() + if many { Duration::ZERO } else { wait },
        read_committed: request.isolation_level == READ_COMMITTED,
        by_id: version >= IDS_FROM_VERSION,
        node: broker.placement.local(),
        by_replica: replica >= 0,
        leader_told: version >= LEADER_TOLD_FROM_VERSION,
        refusal: if replica >= 0 {
            // There is no other server, so there are no followers.
            Some(ErrorCode::NotLeaderOrFollower)
        } else {
            (request.max_bytes < 0).then_some(ErrorCode::UnknownServerError)
        },
        nearest: if version >= RACK_FROM_VERSION && replica < 0 {
            Nearest::of(&broker, &request.rack_id)
        } else {
            None
        },
    };
    if !(0..=READ_COMMITTED).contains(&request.isolation_level) {
        return unknown_isolation(&request, version < IDS_FROM_VERSION);
    }
    let sessions = version >= SESSIONS_FROM_VERSION;
    if request.session_epoch == EPOCH_NONE || request.session_epoch == EPOCH_NEW || !sessions {
        if request.session_id != 0 && sessions {
            broker.sessions.remove(request.session_id);
        }
        return full(&broker, &request, version, &limits, sessions).await;
    }
    let Some(session) = broker.sessions.find(request.session_id) else {
        return refused(ErrorCode::FetchSessionIdNotFound, 0);
    };
    incremental(&broker, &session, &request, version, &limits).await
}

/// A fetch that names all its partitions. With epoch 0 it begins a session.
async fn full(
    broker: &Arc<Broker>,
    request: &FetchRequest,
    version: i16,
    limits: &Limits,
    sessions: bool,
) -> FetchResponse {
    let mut slots = Slots::default();
    put_slots(broker, &mut slots, request, version);
    slots.authorize(&broker.authorizer, &limits.caller);
    let looks = look(broker, &mut slots, limits, true).await;
    let throttle_time_ms = charge(broker, limits, &looks);
    if throttle_time_ms > 0 {
        return FetchResponse { throttle_time_ms, ..FetchResponse::default() };
    }
    count(broker, &mut slots, &looks);
    let responses = response_of(&mut slots, looks, version, true);
    let mut session_id = 0;
    if sessions && request.session_epoch == EPOCH_NEW {
        slots.subscribe();
        // The next fetch looks at every slot, to see commits made before the subscription.
        for number in slots.numbers() {
            slots.signal.mark(number, 0);
        }
        if let Some(session) = broker.sessions.create(slots) {
            session_id = session.id;
        }
    }
    let node_endpoints = leaders_told(broker, &limits.caller, limits.by_replica, &responses);
    FetchResponse { session_id, responses, node_endpoints, ..FetchResponse::default() }
}

async fn incremental(
    broker: &Arc<Broker>,
    session: &Arc<Session>,
    request: &FetchRequest,
    version: i16,
    limits: &Limits,
) -> FetchResponse {
    // A second fetch during the first one has the wrong epoch by definition.
    let Ok(mut state) = session.state.try_lock() else {
        return refused(ErrorCode::InvalidFetchSessionEpoch, 0);
    };
    if state.epoch != request.session_epoch {
        return refused(ErrorCode::InvalidFetchSessionEpoch, 0);
    }
    state.epoch = next_epoch(state.epoch);
    for forgotten in &request.forgotten_topics_data {
        state.slots.remove(&forgotten.topic, forgotten.topic_id, &forgotten.partitions);
    }
    put_slots(broker, &mut state.slots, request, version);
    if !state.grow() {
        // The client starts over without a session.
        broker.sessions.remove(session.id);
        return refused(ErrorCode::FetchSessionIdNotFound, 0);
    }
    if state.slots.is_empty() {
        // As in Kafka, a session ends with its last partition.
        broker.sessions.remove(session.id);
        return FetchResponse::default();
    }
    state.slots.find_missing(&broker.topics);
    state.slots.authorize(&broker.authorizer, &limits.caller);
    let looks = look(broker, &mut state.slots, limits, false).await;
    let throttle_time_ms = charge(broker, limits, &looks);
    if throttle_time_ms > 0 {
        // The records are not sent, so their partitions must be looked at again.
        looks.iter().for_each(|look| state.slots.signal.mark(look.slot, 0));
        return FetchResponse { throttle_time_ms, session_id: session.id, ..FetchResponse::default() };
    }
    count(broker, &mut state.slots, &looks);
    let responses = response_of(&mut state.slots, looks, version, false);
    let node_endpoints = leaders_told(broker, &limits.caller, limits.by_replica, &responses);
    FetchResponse { session_id: session.id, responses, node_endpoints, ..FetchResponse::default() }
}

/// Looks at partitions and waits for records. A former owner of a log does not know the log's end. A client would believe it that
/// an offset is out of range, and begin somewhere else, so it is sent on to the owner until this broker knows who that is.
pub async fn look(broker: &Broker, slots: &mut Slots, limits: &Limits, all: bool) -> Vec<Look> {
    let mut looks = look_and_wait(slots, limits, all).await;
    let beyond_end = looks.iter_mut().filter(|look| look.beyond_end);
    // The lease is looked at behind the reads: the process may have stood still in between.
    beyond_end.filter(|_| !broker.has_lease()).for_each(|look| {
        look.data.error_code = ErrorCode::NotLeaderOrFollower.code();
    });
    looks
}

/// Counts the answer towards the client's quota. If the quota is exceeded, the client gets an empty answer and waits
/// for the returned number of milliseconds.
fn charge(broker: &Broker, limits: &Limits, looks: &[Look]) -> i32 {
    if !broker.quotas.enabled(Quota::Fetch) {
        return 0;
    }
    let bytes: usize = looks.iter().map(|look| look.bytes + PARTITION_BYTES).sum();
    let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
    broker.quotas.record_if_within(Quota::Fetch, &limits.payer, bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "`as` keeps to the bounds of an i32")]
fn whole(value: f64) -> i32 {
    value as i32
}

fn put_slots(broker: &Broker, slots: &mut Slots, request: &FetchRequest, version: i16) {
    for topic in request.topics.iter().filter(|topic| !topic.partitions.is_empty()) {
        let found = if version >= IDS_FROM_VERSION {
            broker.topics.find_id(&topic.topic_id)
        } else {
            broker.topics.find(&topic.topic)
        };
        let number = slots.topic(&topic.topic, topic.topic_id, found.as_deref());
        for partition in &topic.partitions {
            slots.put(Slot {
                topic: number,
                index: partition.partition,
                partition: found.as_ref().and_then(|topic| topic.partition(partition.partition)),
                offset: partition.fetch_offset,
                bytes_max: partition.partition_max_bytes,
                leader_epoch: partition.current_leader_epoch,
                last_fetched_epoch: partition.last_fetched_epoch,
                told: None,
                known: found.is_some(),
                allowed: true,
            });
        }
    }
}

/// Counts what is sent, for the topics' metrics.
fn count(broker: &Broker, slots: &mut Slots, looks: &[Look]) {
    let errors = broker.metrics.errors(ApiKey::Fetch);
    for look in looks {
        errors.count(look.data.error_code);
        let (Some(slot), _) = slots.slot_and_topics(look.slot) else { continue };
        let Some(partition) = &slot.partition else { continue };
        partition.traffic.add(Count::FetchRequests, 1);
        partition.traffic.add(Count::BytesOut, look.bytes as u64);
        if look.data.error_code != 0 && !ErrorCode::from_code(look.data.error_code).is_some_and(is_expected) {
            partition.traffic.add(Count::FailedFetchRequests, 1);
        }
    }
}

/// Whether an error with this code is no sign that the server has failed. As Kafka, which does not count them as failures
/// (`ReplicaManager`).
fn is_expected(code: ErrorCode) -> bool {
    use ErrorCode::*;
    matches!(
        code,
        UnknownTopicOrPartition
            | UnknownTopicId
            | InconsistentTopicId
            | NotLeaderOrFollower
            | UnknownLeaderEpoch
            | FencedLeaderEpoch
            | ReplicaNotAvailable
            | KafkaStorageError
            | OffsetOutOfRange
    )
}

/// Groups the looks by topic, notes what the client is told, and keeps slots dirty that have more to read.
fn response_of(slots: &mut Slots, looks: Vec<Look>, version: i16, all: bool) -> Vec<FetchableTopicResponse> {
    let mut responses: Vec<FetchableTopicResponse> = Vec::new();
    let mut last = None;
    let storage_error = ErrorCode::KafkaStorageError.code();
    let signal = slots.signal.clone();
    let (mut served, mut missing) = (Vec::new(), Vec::new());
    for mut look in looks {
        if look.data.error_code == storage_error && version < STORAGE_ERROR_FROM_VERSION {
            look.data.error_code = ErrorCode::NotLeaderOrFollower.code();
        }
        let (Some(slot), topics) = slots.slot_and_topics(look.slot) else { continue };
        let told = Some((look.data.high_watermark, look.data.log_start_offset));
        let failed = look.data.error_code != 0;
        // Another partition may stand in the place of this one, because the topic is new, or its log has moved.
        let missing_codes = [
            ErrorCode::UnknownTopicOrPartition.code(),
            ErrorCode::UnknownTopicId.code(),
            ErrorCode::NotLeaderOrFollower.code(),
        ];
        if missing_codes.contains(&look.data.error_code) {
            missing.push(look.slot);
        }
        // A client that received data will ask for more. A slot without data for lack of budget must be looked at
        // again. So must a slot beyond the end, whose error needs budget too.
        let behind = look.data.high_watermark != slot.offset;
        if (failed || behind) && look.bytes > 0 {
            served.push(look.slot);
        } else if failed || behind {
            signal.mark(look.slot, 0);
        }
        let moves = look.data.preferred_read_replica >= 0;
        if !all && look.bytes == 0 && !failed && !moves && slot.told == told {
            continue;
        }
        slot.told = told;
        if last != Some(slot.topic) {
            let Some(asked) = topics.get(&slot.topic) else { continue };
            responses.push(FetchableTopicResponse {
                topic: asked.asked.clone(),
                topic_id: asked.id,
                partitions: Vec::new(),
            });
        }
        last = Some(slot.topic);
        if let Some(topic) = responses.last_mut() {
            topic.partitions.push(look.data);
        }
    }
    // The served slots come behind the slots that got nothing.
    served.into_iter().for_each(|slot| signal.mark(slot, 0));
    slots.missing = missing;
    responses
}
