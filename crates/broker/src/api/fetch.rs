//! Fetch: reads committed records, and waits for more if there are too few.
//!
//! A fetch looks at every partition only if it begins a session or has none. The later fetches of a session look only
//! at partitions that have changed. While a fetch waits, commits wake it at most once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use model::Offset;
use storage::{Batches, ReadError, ReadRequest, ReadStep, Stretch};
use tokio::time::Instant;
use wire::messages::FetchRequest;
use wire::messages::fetch_response::{
    AbortedTransaction, FetchResponse, FetchableTopicResponse, LeaderIdAndEpoch, PartitionData,
};
use wire::{ErrorCode, Records};

use crate::api::reads::{
    READ_COMMITTED, check_leader_epoch, leaders_told, read_later, tell_failed_read, unknown_isolation,
    without_records,
};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::partition::log::PartitionLog;
use crate::placement::Leader;
use crate::quotas::{Payer, Quota};
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

/// A fetch of very many partitions yields the thread after this many.
const LOOKS_BEFORE_YIELD: usize = 256;

/// A fetch that names more partitions is answered at once, with or without data.
const WAITING_PARTITIONS_MAX: usize = 10_000;

/// Number of partitions read from disk before the reader serves other requests.
const COLD_PORTION: usize = 32;

/// The limits and options of one fetch.
struct Limits {
    caller: Caller,
    payer: Payer,
    bytes_max: usize,
    bytes_min: usize,
    deadline: Instant,
    read_committed: bool,
    /// Whether topics are named by id.
    by_id: bool,
    /// The id of this broker.
    node: i32,
    /// Whether the request comes from a replica.
    by_replica: bool,
    /// Whether the answer can name the leader of a partition that another broker leads (KIP-951).
    leader_told: bool,
    /// An error that replaces the records of every partition.
    refusal: Option<ErrorCode>,
}

/// The result of one look at a partition.
struct Look {
    slot: usize,
    data: PartitionData,
    bytes: usize,
    /// Whether the partition has more records than the look took.
    cut_short: bool,
}

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
    let looks = look_and_wait(&mut slots, limits, true).await;
    let throttle_time_ms = charge(broker, limits, &looks);
    if throttle_time_ms > 0 {
        return FetchResponse { throttle_time_ms, ..FetchResponse::default() };
    }
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
    let looks = look_and_wait(&mut state.slots, limits, false).await;
    let throttle_time_ms = charge(broker, limits, &looks);
    if throttle_time_ms > 0 {
        // The records are not sent, so their partitions must be looked at again.
        looks.iter().for_each(|look| state.slots.signal.mark(look.slot, 0));
        return FetchResponse { throttle_time_ms, session_id: session.id, ..FetchResponse::default() };
    }
    let responses = response_of(&mut state.slots, looks, version, false);
    let node_endpoints = leaders_told(broker, &limits.caller, limits.by_replica, &responses);
    FetchResponse { session_id: session.id, responses, node_endpoints, ..FetchResponse::default() }
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
    for topic in &request.topics {
        let found = if version >= IDS_FROM_VERSION {
            broker.topics.find_id(&topic.topic_id)
        } else {
            broker.topics.find(&topic.topic)
        };
        let (number, asked_name) = slots.topic(&topic.topic, topic.topic_id);
        for partition in &topic.partitions {
            slots.put(Slot {
                topic_number: number,
                topic: asked_name.clone(),
                topic_id: topic.topic_id,
                index: partition.partition,
                partition: found.as_ref().and_then(|topic| topic.partition(partition.partition)),
                offset: partition.fetch_offset,
                bytes_max: partition.partition_max_bytes,
                leader_epoch: partition.current_leader_epoch,
                last_fetched_epoch: partition.last_fetched_epoch,
                told: None,
                name: found.as_ref().map(|topic| topic.name.clone()).unwrap_or_default(),
                allowed: true,
            });
        }
    }
}

/// Looks at the changed slots, and waits for commits until there are enough bytes, an error, or the deadline has
/// passed. Returns the last look at each slot that was looked at.
async fn look_and_wait(slots: &mut Slots, limits: &Limits, all: bool) -> Vec<Look> {
    let mut looks = Looks::default();
    if !all {
        slots.subscribe();
    }
    let mut subscribed = !all;
    let mut numbers = slots.signal.take_dirty();
    loop {
        let mut urgent = false;
        let mut cold = Vec::new();
        // Reserve room for the longest-waiting cold partition, even if later partitions have data in the caches.
        let mut reserved = 0;
        for (looked, number) in numbers.into_iter().enumerate() {
            if looked % LOOKS_BEFORE_YIELD == LOOKS_BEFORE_YIELD - 1 {
                tokio::task::yield_now().await;
            }
            looks.remove(number);
            let Some(slot) = slots.slot(number) else { continue };
            match look_at(slot, number, limits, looks.bytes + reserved) {
                Looked::Done(look) => {
                    urgent |= look.data.error_code != 0;
                    looks.add(look);
                }
                Looked::Cold(look) => {
                    if cold.is_empty() {
                        reserved = usize::try_from(slot.bytes_max).unwrap_or(0);
                    }
                    cold.push(look);
                }
            }
        }
        // A cold read has already waited for the disk, so answer now.
        urgent |= !cold.is_empty();
        read_cold(slots, cold, limits, &mut looks).await;
        let now = Instant::now();
        // A fetch without partitions is answered at once. Clients close their session with it.
        if urgent || looks.bytes >= limits.bytes_min || now >= limits.deadline || slots.is_empty() {
            return looks.taken();
        }
        // A look that was cut short makes the answer full enough: batches are whole, and limits may fall inside.
        if looks.bytes > 0 && looks.any(|look| look.cut_short) {
            return looks.taken();
        }
        if !subscribed {
            // The first look was made without a subscription. Look once more with it.
            slots.subscribe();
            subscribed = true;
            numbers = slots.numbers();
            continue;
        }
        // A transaction marker is much smaller than the records it makes readable, so wait for one byte only.
        let held_back = limits.read_committed
            && looks.any(|look| look.data.last_stable_offset < look.data.high_watermark);
        let missing = if held_back { 1 } else { limits.bytes_min - looks.bytes };
        let waited = tokio::time::timeout_at(limits.deadline, slots.signal.wait(missing)).await;
        numbers = slots.signal.take_dirty();
        if waited.is_err() && numbers.is_empty() {
            return looks.taken();
        }
    }
}

/// The last look at each slot, in the order of the looks.
#[derive(Default)]
struct Looks {
    looks: Vec<Option<Look>>,
    by_slot: HashMap<usize, usize>,
    bytes: usize,
}

impl Looks {
    fn add(&mut self, look: Look) {
        // Without this, a fetch that is woken again and again would keep an entry for every look.
        if self.looks.len() > 2 * self.by_slot.len() + 64 {
            self.looks.retain(Option::is_some);
            let numbered = self.looks.iter().flatten().enumerate();
            self.by_slot = numbered.map(|(at, look)| (look.slot, at)).collect();
        }
        self.bytes += look.bytes;
        self.by_slot.insert(look.slot, self.looks.len());
        self.looks.push(Some(look));
    }

    fn remove(&mut self, slot: usize) {
        if let Some(look) = self.by_slot.remove(&slot).and_then(|at| self.looks[at].take()) {
            self.bytes -= look.bytes;
        }
    }

    fn any(&self, what: impl FnMut(&Look) -> bool) -> bool {
        self.looks.iter().flatten().any(what)
    }

    fn taken(self) -> Vec<Look> {
        self.looks.into_iter().flatten().collect()
    }
}

/// A look at a partition whose next batch must be read from disk.
struct ColdLook {
    look: Look,
    log: Arc<dyn PartitionLog>,
    stretch: Stretch,
    position: u32,
}

/// The result of a look that does not wait for the disk.
enum Looked {
    Done(Look),
    Cold(ColdLook),
}

/// Reads from disk for the partitions at the oldest position of their log, so that they stay together and share one
/// scan, and for the partition that has waited longest. The other partitions are read in a later fetch. If all of them
/// read at once, each at its own position, they would evict from the cache what the next one needs.
async fn read_cold(slots: &mut Slots, mut cold: Vec<ColdLook>, limits: &Limits, looks: &mut Looks) {
    if cold.is_empty() {
        return;
    }
    let log = |cold: &ColdLook| cold.log.log_id();
    // The longest-waiting partition is read before the others, which may fill the answer.
    let first = cold.remove(0);
    cold.sort_by_key(|cold| (log(cold), cold.stretch, cold.position));
    let mut oldest = HashMap::new();
    for cold in cold.iter().chain([&first]) {
        let least = oldest.entry(log(cold)).or_insert(cold.stretch);
        *least = cold.stretch.min(*least);
    }
    let (mut now, later): (Vec<_>, Vec<_>) =
        cold.into_iter().partition(|cold| oldest[&log(cold)] == cold.stretch);
    // They come first in this answer, and so they are first in the next fetch.
    later.into_iter().for_each(|cold| looks.add(cold.look));
    read_portion(slots, vec![first], limits, looks, true).await;
    while let Some(next) = now.first() {
        let of_log = now.iter().take_while(|cold| log(cold) == log(next));
        let rest = now.split_off(of_log.take(COLD_PORTION).count());
        read_portion(slots, std::mem::replace(&mut now, rest), limits, looks, false).await;
    }
}

/// Reads for partitions of one log. `force` returns at least one batch, even if the answer has no room for it.
async fn read_portion(
    slots: &mut Slots,
    mut cold: Vec<ColdLook>,
    limits: &Limits,
    looks: &mut Looks,
    force: bool,
) {
    let mut requests = Vec::with_capacity(cold.len());
    cold.retain(|ColdLook { look, log, .. }| {
        let Some(slot) = slots.slot(look.slot) else { return false };
        let mut request = read_request(slot, &**log, &look.data, limits, looks.bytes);
        request.at_least_one |= force;
        requests.push(request);
        true
    });
    let Some(log) = cold.first().map(|cold| cold.log.clone()) else { return };
    let bytes_max = limits.bytes_max.saturating_sub(looks.bytes);
    let results = read_later(&*log, requests, bytes_max).await;
    for (ColdLook { mut look, .. }, result) in cold.into_iter().zip(results) {
        let slot = slots.slot(look.slot).expect("a fetch removes no slots while it reads");
        look.put(slot, limits, result);
        looks.add(look);
    }
}

/// Looks at one partition from its slot's offset, without waiting for the disk.
fn look_at(slot: &Slot, number: usize, limits: &Limits, taken: usize) -> Looked {
    let mut look = Look {
        slot: number,
        data: PartitionData { aborted_transactions: None, ..without_records(slot.index, ErrorCode::None) },
        bytes: 0,
        cut_short: false,
    };
    match log_of(slot, limits, &mut look.data) {
        Ok(log) => match log.read(&read_request(slot, &**log, &look.data, limits, taken)) {
            Ok(ReadStep::Cold { stretch, position }) => {
                return Looked::Cold(ColdLook { look, log: log.clone(), stretch, position });
            }
            Ok(ReadStep::Ready(batches)) => look.put(slot, limits, Ok(batches)),
            Err(error) => look.put(slot, limits, Err(error)),
        },
        Err(failure) => {
            look.data.error_code = failure.code.code();
            // Kafka adds an empty list of aborted transactions for a missing or hidden partition.
            let unseen = [
                ErrorCode::UnknownTopicOrPartition,
                ErrorCode::UnknownTopicId,
                ErrorCode::TopicAuthorizationFailed,
            ];
            look.data.aborted_transactions = unseen.contains(&failure.code).then(Vec::new);
            let moved = [ErrorCode::NotLeaderOrFollower, ErrorCode::FencedLeaderEpoch];
            if limits.leader_told
                && moved.contains(&failure.code)
                && let Some(partition) = &slot.partition
            {
                let Leader { node: leader_id, epoch: leader_epoch } = partition.leader();
                look.data.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
            }
        }
    }
    Looked::Done(look)
}

/// The log of the slot's partition. Puts the partition's bounds into `data`.
fn log_of<'a>(
    slot: &'a Slot,
    limits: &Limits,
    data: &mut PartitionData,
) -> Result<&'a Arc<dyn PartitionLog>, Failure> {
    let unknown_id = limits.by_id && slot.name.is_empty();
    let missing = if unknown_id { ErrorCode::UnknownTopicId } else { ErrorCode::UnknownTopicOrPartition };
    if !slot.allowed {
        return Err(ErrorCode::TopicAuthorizationFailed.into());
    }
    let partition = slot.partition.as_ref().filter(|partition| !partition.is_deleted()).ok_or(missing)?;
    // Here any negative epoch means "none".
    let epoch = partition.leader().epoch;
    check_leader_epoch(slot.leader_epoch.max(-1), epoch)?;
    if let Some(error) = limits.refusal {
        return Err(error.into());
    }
    if slot.bytes_max < 0 {
        return Err(ErrorCode::UnknownServerError.into());
    }
    if slot.last_fetched_epoch > epoch {
        // The client asks for records that were never here.
        return Err(ErrorCode::OffsetOutOfRange.into());
    }
    let log = partition.replica(limits.node)?.log;
    let bounds = log.bounds();
    data.high_watermark = bounds.visible.0;
    data.last_stable_offset = partition.last_stable_offset(bounds.visible).0;
    data.log_start_offset = bounds.start.0;
    Ok(log)
}

fn read_request(
    slot: &Slot,
    log: &dyn PartitionLog,
    data: &PartitionData,
    limits: &Limits,
    taken: usize,
) -> ReadRequest {
    // Records committed during a read from disk are above the high watermark in the answer, and so are not read.
    let until = if limits.read_committed { data.last_stable_offset } else { data.high_watermark };
    let own_max = usize::try_from(slot.bytes_max).unwrap_or(0);
    let bytes_max = own_max.min(limits.bytes_max.saturating_sub(taken));
    let request = log.request(Offset(slot.offset), Offset(until), bytes_max);
    ReadRequest { at_least_one: taken == 0, ..request }
}

/// The aborted transactions with records from the slot's offset up to `next`, the end of the batches read.
fn aborted(slot: &Slot, next: Option<Offset>) -> Vec<AbortedTransaction> {
    let (Some(partition), Some(next)) = (&slot.partition, next) else { return Vec::new() };
    let told = |transaction: crate::transactions::AbortedTransaction| AbortedTransaction {
        producer_id: transaction.producer_id,
        first_offset: transaction.first_offset.0,
    };
    partition.aborted_between(Offset(slot.offset), next).into_iter().map(told).collect()
}

impl Look {
    fn put(&mut self, slot: &Slot, limits: &Limits, result: Result<Batches, ReadError>) {
        let data = &mut self.data;
        match result {
            Ok(batches) => {
                self.bytes = batches.bytes;
                let end = if limits.read_committed { data.last_stable_offset } else { data.high_watermark };
                self.cut_short = batches.next.map_or(slot.offset, |next| next.0) < end;
                if limits.read_committed {
                    data.aborted_transactions = Some(aborted(slot, batches.next));
                }
                let mut records = Records::new();
                batches.chunks.into_iter().for_each(|chunk| records.push(chunk));
                data.records = Some(records);
            }
            Err(error) => {
                let topic = slot.partition.as_ref().map(|partition| &*partition.topic);
                tell_failed_read(topic, slot.index, &error);
                let failure: Failure = error.into();
                if failure.code == ErrorCode::OffsetOutOfRange {
                    // As in Kafka, this error comes without offsets.
                    (data.high_watermark, data.last_stable_offset, data.log_start_offset) = (-1, -1, -1);
                }
                data.error_code = failure.code.code();
            }
        }
    }
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
        let Some(slot) = slots.slot(look.slot) else { continue };
        let told = Some((look.data.high_watermark, look.data.log_start_offset));
        let failed = look.data.error_code != 0;
        let missing_codes = [ErrorCode::UnknownTopicOrPartition.code(), ErrorCode::UnknownTopicId.code()];
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
        if !all && look.bytes == 0 && !failed && slot.told == told {
            continue;
        }
        slot.told = told;
        match responses.last_mut().filter(|_| last == Some(slot.topic_number)) {
            Some(topic) => topic.partitions.push(look.data),
            None => responses.push(FetchableTopicResponse {
                topic: slot.topic.clone(),
                topic_id: slot.topic_id,
                partitions: vec![look.data],
            }),
        }
        last = Some(slot.topic_number);
    }
    // The served slots come behind the slots that got nothing.
    served.into_iter().for_each(|slot| signal.mark(slot, 0));
    slots.missing = missing;
    responses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(slot: usize, bytes: usize) -> Look {
        Look { slot, data: PartitionData::default(), bytes, cut_short: false }
    }

    #[test]
    fn a_fetch_that_is_woken_often_keeps_its_last_looks_only() {
        let mut looks = Looks::default();
        (0..3).for_each(|slot| looks.add(look(slot, 1)));
        for bytes in 0..100_000 {
            looks.remove(1);
            looks.add(look(1, bytes));
            assert!(looks.looks.len() <= 71 && looks.by_slot.len() == 3);
        }
        looks.remove(0);
        looks.add(look(0, 5));
        assert_eq!(looks.bytes, 1 + 99_999 + 5);
        let taken: Vec<(usize, usize)> = looks.taken().iter().map(|look| (look.slot, look.bytes)).collect();
        assert_eq!(taken, [(2, 1), (1, 99_999), (0, 5)]);
    }
}
