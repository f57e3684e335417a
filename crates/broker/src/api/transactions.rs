//! The transaction APIs (KIP-98, KIP-664, KIP-890): the requests of transactional producers, and the requests that
//! describe transactions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use wire::messages as m;
use wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
};
use wire::messages::describe_producers_response as dp;
use wire::messages::describe_transactions_response as dt;
use wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use wire::records::TransactionResult;
use wire::{ErrorCode, Text};

use crate::api::offsets::{Asked, Committed, group_for_commit, name_of, readable};
use crate::broker::{BUMPING, Broker};
use crate::coordinator::{Transactional, Unserved};
use crate::failure::Failure;
use crate::groups::{CommitRequest, GroupError, OffsetCommit};
use crate::request::Request;
use crate::request::error_codes::{group_code, transaction_code, unserved_code};
use crate::security::{Operation, ResourceType};
use crate::topics::{OFFSETS_TOPIC, Topic, check_name};
use crate::transactions::{End, Status, TopicPartition, TransactionError};

/// The first version whose clients know PRODUCER_FENCED. Older ones get INVALID_PRODUCER_EPOCH.
const FENCED_FROM_VERSION: i16 = 2;
/// The first version of AddPartitionsToTxn with several transactions. Only servers send it.
const BATCHED_FROM_VERSION: i16 = 4;
/// The first versions whose clients bump the epoch with every transaction (KIP-890).
const END_BUMPS_FROM_VERSION: i16 = 5;
const COMMIT_ADDS_FROM_VERSION: i16 = 5;
/// The first version whose clients know TRANSACTION_ABORTABLE.
const COMMIT_ABORTABLE_FROM_VERSION: i16 = 4;
const COMMIT_IDS_FROM_VERSION: i16 = 6;
/// `transaction.version` of these clients, and of the others.
const NOT_BUMPING: i16 = 1;

fn code(error: TransactionError, version: i16) -> ErrorCode {
    match error {
        TransactionError::Fenced if version < FENCED_FROM_VERSION => ErrorCode::InvalidProducerEpoch,
        error => transaction_code(error),
    }
}

/// Checks that this broker coordinates the transactional id. If the records of its partition cannot be read, the check
/// passes and the operation itself fails.
pub fn served(broker: &Broker, id: &str) -> Result<(), ErrorCode> {
    match broker.transactions.serves(id) {
        Ok(()) | Err(Unserved::Unavailable) => Ok(()),
        Err(unserved) => Err(unserved_code(unserved)),
    }
}

/// Answers AddPartitionsToTxn.
pub async fn add_partitions(
    Request { broker, caller, version, body: request, .. }: Request<m::AddPartitionsToTxnRequest>,
) -> AddPartitionsToTxnResponse {
    if version < BATCHED_FROM_VERSION {
        let one = m::add_partitions_to_txn_request::AddPartitionsToTxnTransaction {
            transactional_id: request.v3_and_below_transactional_id,
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
            verify_only: false,
            topics: request.v3_and_below_topics,
        };
        let allowed = |topic: &str| broker.authorizer.topic(&caller, Operation::Write, topic);
        let id = one.transactional_id.clone();
        let results_by_topic_v3_and_below =
            match broker.authorizer.transactional_id(&caller, Operation::Write, &id) {
                Ok(()) => add_one(&broker, one, version, &allowed).await,
                Err(error) => refused_partitions(one.topics, error),
            };
        return AddPartitionsToTxnResponse {
            results_by_topic_v3_and_below,
            ..AddPartitionsToTxnResponse::default()
        };
    }
    // These versions come from servers.
    if let Err(error) = broker.authorizer.cluster(&caller, Operation::ClusterAction) {
        return AddPartitionsToTxnResponse {
            error_code: error.code(),
            ..AddPartitionsToTxnResponse::default()
        };
    }
    let mut results = Vec::with_capacity(request.transactions.len());
    for one in request.transactions {
        let transactional_id = one.transactional_id.clone();
        let topic_results = add_one(&broker, one, version, &|_| Ok(())).await;
        results.push(AddPartitionsToTxnResult { transactional_id, topic_results });
    }
    AddPartitionsToTxnResponse { results_by_transaction: results, ..AddPartitionsToTxnResponse::default() }
}

/// An answer with the same error for every partition.
fn refused_partitions(
    topics: Vec<m::add_partitions_to_txn_request::AddPartitionsToTxnTopic>,
    error: ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let partition = |partition_index: i32| AddPartitionsToTxnPartitionResult {
        partition_index,
        partition_error_code: error.code(),
    };
    let topic = |topic: m::add_partitions_to_txn_request::AddPartitionsToTxnTopic| {
        let results_by_partition = topic.partitions.into_iter().map(partition).collect();
        AddPartitionsToTxnTopicResult { name: topic.name, results_by_partition }
    };
    topics.into_iter().map(topic).collect()
}

/// Each topic and partition once, even if the request repeats it.
fn named_once(
    topics: Vec<m::add_partitions_to_txn_request::AddPartitionsToTxnTopic>,
) -> Vec<m::add_partitions_to_txn_request::AddPartitionsToTxnTopic> {
    let mut places: HashMap<Text, usize> = HashMap::new();
    let mut merged: Vec<m::add_partitions_to_txn_request::AddPartitionsToTxnTopic> = Vec::new();
    for mut topic in topics {
        match places.get(&topic.name) {
            Some(at) => merged[*at].partitions.append(&mut topic.partitions),
            None => {
                places.insert(topic.name.clone(), merged.len());
                merged.push(topic);
            }
        }
    }
    for topic in &mut merged {
        let mut seen = HashSet::new();
        topic.partitions.retain(|index| seen.insert(*index));
    }
    merged
}

async fn add_one(
    broker: &Arc<Broker>,
    mut asked: m::add_partitions_to_txn_request::AddPartitionsToTxnTransaction,
    version: i16,
    allowed: &(dyn Fn(&str) -> Result<(), ErrorCode> + Send + Sync),
) -> Vec<AddPartitionsToTxnTopicResult> {
    if asked.transactional_id.is_empty() && version >= BATCHED_FROM_VERSION {
        return refused_partitions(asked.topics, ErrorCode::InvalidRequest);
    }
    asked.topics = named_once(asked.topics);
    if let Err(error) = served(broker, &asked.transactional_id) {
        return refused_partitions(asked.topics, error);
    }
    let found: Vec<Result<Option<Arc<Topic>>, ErrorCode>> = asked
        .topics
        .iter()
        .map(|topic| allowed(&topic.name).map(|()| broker.topics.find(&topic.name)))
        .collect();
    let exists = |at: usize, index: i32| match &found[at] {
        Ok(Some(topic)) if topic.partition(index).is_some() => Ok(()),
        Ok(_) => Err(ErrorCode::UnknownTopicOrPartition),
        Err(error) => Err(*error),
    };
    let mut named: Vec<(usize, i32)> = Vec::new();
    for (at, topic) in asked.topics.iter().enumerate() {
        named.extend(topic.partitions.iter().map(|index| (at, *index)));
    }
    let name = |at: usize, index: i32| (asked.topics[at].name.to_string(), index);
    let producer = (asked.producer_id, asked.producer_epoch);
    let mut outcomes: Vec<ErrorCode> = Vec::new();
    if !named.iter().all(|(at, index)| exists(*at, *index).is_ok()) {
        outcomes.extend(named.into_iter().map(|(at, index)| match exists(at, index) {
            Ok(()) => ErrorCode::OperationNotAttempted,
            Err(error) => error,
        }));
    } else if asked.verify_only {
        for &(at, index) in &named {
            let of = name(at, index);
            let verified = broker.transactions.verify(&asked.transactional_id, producer, &of).await;
            outcomes.push(verified.map_or_else(|error| code(error, version), |()| ErrorCode::None));
        }
    } else {
        let partitions: Vec<TopicPartition> = named.iter().map(|(at, index)| name(*at, *index)).collect();
        // As in Kafka: brokers ask in these versions, for clients that bump their epoch with each transaction.
        let client_version = if version >= BATCHED_FROM_VERSION { BUMPING } else { NOT_BUMPING };
        let added =
            broker.transactions.add(&asked.transactional_id, producer, partitions, client_version).await;
        let error = added.map_or_else(|error| code(error, version), |()| ErrorCode::None);
        outcomes.resize(named.len(), error);
    }
    let mut outcomes = outcomes.into_iter();
    let topic = |topic: m::add_partitions_to_txn_request::AddPartitionsToTxnTopic| {
        let partition = |partition_index: i32| AddPartitionsToTxnPartitionResult {
            partition_index,
            partition_error_code: outcomes.next().expect("there is one for each partition").code(),
        };
        AddPartitionsToTxnTopicResult {
            name: topic.name,
            results_by_partition: topic.partitions.into_iter().map(partition).collect(),
        }
    };
    asked.topics.into_iter().map(topic).collect()
}

/// Answers AddOffsetsToTxn.
pub async fn add_offsets(
    Request { broker, caller, version, body: request, .. }: Request<m::AddOffsetsToTxnRequest>,
) -> m::AddOffsetsToTxnResponse {
    let refused = |error: ErrorCode| m::AddOffsetsToTxnResponse {
        error_code: error.code(),
        ..m::AddOffsetsToTxnResponse::default()
    };
    let (authorizer, id) = (&broker.authorizer, &request.transactional_id);
    let allowed = authorizer
        .transactional_id(&caller, Operation::Write, id)
        .and_then(|()| authorizer.group(&caller, Operation::Read, &request.group_id));
    if let Err(error) = allowed {
        return refused(error);
    }
    if id.is_empty() {
        return refused(ErrorCode::InvalidRequest);
    }
    if let Err(error) = served(&broker, id) {
        return refused(error);
    }
    if broker.offsets_topic().await.is_err() {
        return refused(ErrorCode::CoordinatorNotAvailable);
    }
    let Some(partition) = broker.coordinator.offsets_partition(&request.group_id) else {
        return refused(ErrorCode::CoordinatorNotAvailable);
    };
    let producer = (request.producer_id, request.producer_epoch);
    let partitions = vec![(OFFSETS_TOPIC.to_owned(), partition.index)];
    match broker.transactions.add(&request.transactional_id, producer, partitions, NOT_BUMPING).await {
        Ok(()) => refused(ErrorCode::None),
        Err(error) => refused(code(error, version)),
    }
}

/// Answers EndTxn once the end is durable.
pub async fn end(
    Request { broker, caller, version, body: request, .. }: Request<m::EndTxnRequest>,
) -> m::EndTxnResponse {
    let id = &request.transactional_id;
    let here = match id.is_empty() {
        true => Err(ErrorCode::InvalidRequest),
        false => served(&broker, id),
    };
    let allowed = broker.authorizer.transactional_id(&caller, Operation::Write, id);
    if let Err(error) = allowed.and(here) {
        return m::EndTxnResponse {
            error_code: error.code(),
            producer_id: -1,
            producer_epoch: -1,
            ..m::EndTxnResponse::default()
        };
    }
    let end = End {
        producer_id: request.producer_id,
        epoch: request.producer_epoch,
        result: if request.committed { TransactionResult::Commit } else { TransactionResult::Abort },
        bumps: version >= END_BUMPS_FROM_VERSION,
    };
    let (error, producer_id, producer_epoch) =
        match broker.transactions.end(&request.transactional_id, end).await {
            Ok((id, epoch)) if end.bumps => (ErrorCode::None, id, epoch),
            Ok(_) => (ErrorCode::None, -1, -1),
            Err(error) => (code(error, version), -1, -1),
        };
    m::EndTxnResponse {
        error_code: error.code(),
        producer_id,
        producer_epoch,
        ..m::EndTxnResponse::default()
    }
}

/// Answers TxnOffsetCommit once the offsets are durable.
pub async fn commit_offsets(
    Request { broker, caller, version, body: request, .. }: Request<m::TxnOffsetCommitRequest>,
) -> TxnOffsetCommitResponse {
    let (authorizer, id) = (&broker.authorizer, &request.transactional_id);
    let allowed = authorizer
        .transactional_id(&caller, Operation::Write, id)
        .and_then(|()| authorizer.group(&caller, Operation::Read, &request.group_id));
    let mut asked = Asked::default();
    for topic in &request.topics {
        let name = name_of(&broker, &topic.name, topic.topic_id, version >= COMMIT_IDS_FROM_VERSION);
        let name = allowed.and_then(|()| readable(&broker, &caller, name));
        for partition in &topic.partitions {
            asked.add(&broker, &name, partition.partition_index, |key| OffsetCommit {
                key,
                offset: partition.committed_offset,
                leader_epoch: partition.committed_leader_epoch,
                metadata: partition.committed_metadata.as_ref().map(ToString::to_string),
            });
        }
    }
    let offsets = std::mem::take(&mut asked.offsets);
    let results = match offsets.is_empty() {
        true => Ok(Vec::new()),
        false => commit_all(&broker, &request, version, offsets).await,
    };
    let mut errors = asked.errors(&results);
    let asked = request.topics.into_iter().filter(|topic| !topic.partitions.is_empty());
    let topics = asked.map(|topic| {
        let mut answer = |partition_index: i32| {
            let error = errors.next().expect("there is an answer for each partition");
            TxnOffsetCommitResponsePartition { partition_index, error_code: error.code() }
        };
        TxnOffsetCommitResponseTopic {
            name: topic.name,
            topic_id: topic.topic_id,
            partitions: topic.partitions.iter().map(|asked| answer(asked.partition_index)).collect(),
        }
    });
    TxnOffsetCommitResponse { topics: topics.collect(), ..TxnOffsetCommitResponse::default() }
}

async fn commit_all(
    broker: &Arc<Broker>,
    request: &m::TxnOffsetCommitRequest,
    version: i16,
    offsets: Vec<OffsetCommit>,
) -> Committed {
    if request.transactional_id.is_empty() {
        return Err(ErrorCode::InvalidRequest);
    }
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let generation = request.generation_id_or_member_epoch;
    let unknown = ErrorCode::IllegalGeneration;
    let entry = group_for_commit(broker, &request.group_id, generation, unknown).await?;
    let partition =
        broker.coordinator.offsets_partition(&request.group_id).ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let (producer_id, epoch) = (request.producer_id, request.producer_epoch);
    let check = partition.begin_check((producer_id, epoch));
    let of = (OFFSETS_TOPIC.to_owned(), partition.index);
    let (id, producer) = (request.transactional_id.as_str(), (producer_id, epoch));
    let result = match check.is_some() && version >= COMMIT_ADDS_FROM_VERSION {
        true => broker.add_to_transaction(id, producer, vec![of]).await,
        // The check is needed even if a transaction is open, because it may belong to a newer instance of the producer.
        false => broker.verify_in_transaction(id, producer, of).await,
    };
    if let (Err(_), Some(check)) = (&result, check) {
        partition.cancel_check(producer_id, check);
    }
    result.map_err(|error| match error {
        TransactionError::Fenced => ErrorCode::InvalidProducerEpoch,
        // Clients of these versions retry only if the coordinator is loading.
        TransactionError::Concurrent if version < COMMIT_ADDS_FROM_VERSION => {
            ErrorCode::CoordinatorLoadInProgress
        }
        TransactionError::NotInTransaction if version < COMMIT_ABORTABLE_FROM_VERSION => {
            ErrorCode::InvalidTxnState
        }
        error => transaction_code(error),
    })?;
    let commit = CommitRequest {
        producer_id: Some(producer_id),
        member_id: request.member_id.to_string(),
        instance_id: request.group_instance_id.as_ref().map(ToString::to_string),
        generation,
        retention_ms: None,
        offsets,
    };
    let transactional = Transactional { producer_id, epoch, check };
    let results = broker.coordinator.commit(&entry, commit, Some(transactional)).await;
    // As in Kafka: producers do not know STALE_MEMBER_EPOCH and would treat it as fatal.
    let known = |error: GroupError| match error {
        GroupError::StaleMemberEpoch => GroupError::IllegalGeneration,
        error => error,
    };
    let results = results.map_err(|error| group_code(known(error)))?;
    Ok(results.into_iter().map(|result| result.map_err(known)).collect())
}

/// Answers DescribeProducers.
pub async fn describe_producers(
    Request { ref broker, ref caller, body: request, .. }: Request<m::DescribeProducersRequest>,
) -> m::DescribeProducersResponse {
    let describe = |found: Option<&Topic>, allowed: Result<(), ErrorCode>, partition_index: i32| {
        let partition = found.and_then(|topic| topic.partition(partition_index));
        let error = match &partition {
            _ if let Err(error) = allowed => Some(Failure::new(error)),
            None => Some(Failure::new(ErrorCode::UnknownTopicOrPartition)),
            Some(partition) => broker.replica(partition).err().map(Failure::from),
        };
        let Some(partition) = partition.filter(|_| error.is_none()) else {
            let failure = error.unwrap_or_else(|| ErrorCode::UnknownServerError.into());
            return dp::PartitionResponse {
                partition_index,
                error_code: failure.code.code(),
                error_message: Some(failure.text()),
                active_producers: Vec::new(),
            };
        };
        let producer = |producer: crate::partition::ActiveProducer| dp::ProducerState {
            producer_id: producer.id,
            producer_epoch: i32::from(producer.epoch),
            last_sequence: producer.last_sequence,
            last_timestamp: producer.last_append_ms,
            coordinator_epoch: producer.coordinator_epoch.unwrap_or(-1),
            current_txn_start_offset: producer.first_offset.map_or(-1, |offset| offset.0),
        };
        let mut active_producers: Vec<_> = partition.producers().into_iter().map(producer).collect();
        active_producers.sort_unstable_by_key(|producer| producer.producer_id);
        dp::PartitionResponse { partition_index, error_code: 0, error_message: None, active_producers }
    };
    let topic = |topic: m::describe_producers_request::TopicRequest| {
        let named = check_name(&topic.name).map_err(Failure::from);
        let allowed = match &named {
            Ok(()) => broker.authorizer.topic(caller, Operation::Read, &topic.name),
            Err(failure) => Err(failure.code),
        };
        let found = broker.topics.find(&topic.name);
        // A repeated partition is described once, so that the size of the answer stays proportional to the request.
        let partitions = topic.partition_indexes.iter().copied().collect::<BTreeSet<i32>>().into_iter();
        let mut partitions: Vec<_> =
            partitions.map(|index| describe(found.as_deref(), allowed, index)).collect();
        // The message about an invalid name repeats the name, so only the first partition gets it.
        if let (Err(failure), Some(first)) = (named, partitions.first_mut()) {
            first.error_message = Some(failure.text());
        }
        dp::TopicResponse { partitions, name: topic.name }
    };
    m::DescribeProducersResponse {
        topics: request.topics.into_iter().map(topic).collect(),
        ..m::DescribeProducersResponse::default()
    }
}

/// Answers DescribeTransactions.
pub async fn describe(
    Request { ref broker, ref caller, body: request, .. }: Request<m::DescribeTransactionsRequest>,
) -> m::DescribeTransactionsResponse {
    let describe = |transactional_id: Text| {
        let failed = |error: ErrorCode| dt::TransactionState {
            error_code: error.code(),
            transactional_id: transactional_id.clone(),
            ..dt::TransactionState::default()
        };
        let (authorizer, describe) = (&broker.authorizer, Operation::Describe);
        if let Err(error) = authorizer.transactional_id(caller, describe, &transactional_id) {
            return failed(error);
        }
        if transactional_id.is_empty() {
            return failed(ErrorCode::InvalidRequest);
        }
        if let Err(unserved) = broker.transactions.serves(&transactional_id) {
            return failed(unserved_code(unserved));
        }
        let Some(state) = broker.transactions.look(&transactional_id) else {
            return failed(ErrorCode::TransactionalIdNotFound);
        };
        let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for (topic, index) in &state.partitions {
            if authorizer.shows(caller, describe, ResourceType::Topic, topic) {
                topics.entry(topic).or_default().push(*index);
            }
        }
        let topic = |(topic, partitions): (&str, Vec<i32>)| dt::TopicData {
            topic: Text::from(topic.to_owned()),
            partitions,
        };
        dt::TransactionState {
            error_code: 0,
            transactional_id: transactional_id.clone(),
            transaction_state: Text::from_static(state.status.name()),
            transaction_timeout_ms: state.timeout_ms,
            transaction_start_time_ms: state.start_ms,
            producer_id: state.producer_id,
            producer_epoch: state.epoch,
            topics: topics.into_iter().map(topic).collect(),
        }
    };
    // A repeated id is described once, so that the size of the answer stays proportional to the request.
    let mut named = HashSet::new();
    let ids = request.transactional_ids.into_iter().filter(|id| named.insert(id.clone()));
    m::DescribeTransactionsResponse {
        transaction_states: ids.map(describe).collect(),
        ..m::DescribeTransactionsResponse::default()
    }
}

/// Answers ListTransactions.
pub async fn list(request: Request<m::ListTransactionsRequest>) -> m::ListTransactionsResponse {
    let Request { broker, caller, body: request, .. } = &request;
    // "Dead" is a state of Kafka's, but no transaction is listed in it.
    let known = |name: &Text| {
        name.as_str() == "Dead" || Status::ALL.iter().any(|status| status.name() == name.as_str())
    };
    let filters: BTreeSet<Text> = request.state_filters.iter().cloned().collect();
    let (states, unknown): (Vec<Text>, Vec<Text>) = filters.into_iter().partition(known);
    let pattern = request.transactional_id_pattern.as_ref().filter(|pattern| !pattern.is_empty());
    let pattern = match pattern.map(|pattern| regex::Regex::new(&format!("^(?:{pattern})$"))).transpose() {
        Ok(pattern) => pattern,
        Err(_) => {
            return m::ListTransactionsResponse {
                error_code: ErrorCode::InvalidRegularExpression.code(),
                ..m::ListTransactionsResponse::default()
            };
        }
    };
    let of_producers: HashSet<i64> = request.producer_id_filters.iter().copied().collect();
    let in_states: HashSet<&str> = states.iter().map(Text::as_str).collect();
    let now_ms = broker.now_ms();
    let listed = broker.transactions.all().into_iter().filter(|(id, state)| {
        let in_state = request.state_filters.is_empty() || in_states.contains(state.status.name());
        let of_producer = of_producers.is_empty() || of_producers.contains(&state.producer_id);
        let long = request.duration_filter < 0
            || (state.start_ms >= 0 && now_ms.saturating_sub(state.start_ms) > request.duration_filter);
        let describe = Operation::Describe;
        let shown = || broker.authorizer.shows(caller, describe, ResourceType::TransactionalId, id);
        in_state
            && of_producer
            && long
            && shown()
            && pattern.as_ref().is_none_or(|pattern| pattern.is_match(id))
    });
    let state = |(id, state): (String, crate::transactions::Transaction)| {
        m::list_transactions_response::TransactionState {
            transactional_id: Text::from(id),
            producer_id: state.producer_id,
            transaction_state: Text::from_static(state.status.name()),
        }
    };
    m::ListTransactionsResponse {
        transaction_states: listed.map(state).collect(),
        unknown_state_filters: unknown,
        ..m::ListTransactionsResponse::default()
    }
}
