//! FindCoordinator, OffsetCommit, OffsetFetch, OffsetDelete: the coordinator of a group, and the group's committed
//! offsets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use uuid::Uuid;
use wire::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use wire::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use wire::messages::offset_delete_request::OffsetDeleteRequestPartition;
use wire::messages::offset_delete_response::{
    OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use wire::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use wire::messages::{FindCoordinatorRequest, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest};
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::caller::{Caller, Endpoint};
use crate::coordinator::{Entry, Settled};
use crate::groups::{CommitRequest, Group, GroupError, OffsetCommit, OffsetKey, State};
use crate::request::Request;
use crate::request::error_codes::{group_code, unserved_code};
use crate::security::{Operation, ResourceType, audit};
use crate::topics::TOPIC_NAME_MAX;

/// Types of coordinators.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// The first version of FindCoordinator with several keys.
const COORDINATORS_FROM_VERSION: i16 = 4;
/// The first version that names topics by id, and the first that asks for several groups.
const IDS_FROM_VERSION: i16 = 10;
const GROUPS_FROM_VERSION: i16 = 8;
/// The first version of OffsetFetch with a top-level error code.
const ERROR_FROM_VERSION: i16 = 2;

/// Answers FindCoordinator with the broker that coordinates each key.
pub async fn find_coordinator(
    Request { broker, caller, version, body: request, .. }: Request<FindCoordinatorRequest>,
) -> FindCoordinatorResponse {
    let may = |key: &Text| match request.key_type {
        GROUP => broker.authorizer.group(&caller, Operation::Describe, key),
        TRANSACTION => broker.authorizer.transactional_id(&caller, Operation::Describe, key),
        _ => Ok(()),
    };
    let keys: &[Text] = if version >= COORDINATORS_FROM_VERSION {
        &request.coordinator_keys
    } else {
        std::slice::from_ref(&request.key)
    };
    let allowed: Vec<Result<(), ErrorCode>> = keys.iter().map(may).collect();
    // A caller that may describe none of the keys must not create the internal topic.
    let ready = allowed.iter().any(Result::is_ok)
        && match request.key_type {
            TRANSACTION => broker.transactions_topic().await.is_ok(),
            _ => broker.offsets_topic().await.is_ok(),
        };
    let find = |(key, allowed): (&Text, Result<(), ErrorCode>)| {
        let serves = match request.key_type {
            GROUP => Ok(broker.coordinator.served_by(key)),
            TRANSACTION => Ok(broker.transactions.served_by(key)),
            _ => Err(ErrorCode::InvalidRequest),
        };
        let place = match serves {
            _ if let Err(error) = allowed => Err(error),
            Err(error) => Err(error),
            Ok(node) => {
                let node = node.filter(|_| ready);
                let place = node.and_then(|node| broker.placement.node(node, &caller.origin));
                let place = place.map(|node| (node.id, node.endpoint));
                place.ok_or(ErrorCode::CoordinatorNotAvailable)
            }
        };
        let (found, error) = (place.is_ok(), place.as_ref().err().copied().unwrap_or(ErrorCode::None));
        let (node_id, Endpoint { host, port }) =
            place.unwrap_or((-1, Endpoint { host: Text::default(), port: -1 }));
        Coordinator {
            key: key.clone(),
            node_id,
            host,
            port,
            error_code: error.code(),
            error_message: match allowed {
                Ok(()) if !found => Some(Text::from_static(error.message())),
                // Older versions of Kafka's answer contain a message even without an error.
                Ok(()) if version < COORDINATORS_FROM_VERSION => Some(Text::from_static("NONE")),
                // A caller without the right gets the error code alone.
                _ => Some(Text::default()),
            },
        }
    };
    if version >= COORDINATORS_FROM_VERSION {
        let coordinators = keys.iter().zip(allowed).map(find).collect();
        return FindCoordinatorResponse {
            error_message: None,
            coordinators,
            ..FindCoordinatorResponse::default()
        };
    }
    let found = find((&request.key, allowed[0]));
    FindCoordinatorResponse {
        error_code: found.error_code,
        error_message: found.error_message,
        node_id: found.node_id,
        host: found.host,
        port: found.port,
        ..FindCoordinatorResponse::default()
    }
}

/// The name of a topic. A request names it by name or, in newer versions, by id.
pub fn name_of(broker: &Broker, name: &Text, id: Uuid, by_id: bool) -> Result<Arc<str>, ErrorCode> {
    if !by_id {
        return Ok(name.as_str().into());
    }
    broker.topics.find_id(&id).map(|topic| topic.name.as_str().into()).ok_or(ErrorCode::UnknownTopicId)
}

/// The name of the topic, if the topic exists and the caller may read it.
pub fn readable(
    broker: &Broker,
    caller: &Caller,
    name: Result<Arc<str>, ErrorCode>,
) -> Result<Arc<str>, ErrorCode> {
    let name = name?;
    broker.authorizer.topic(caller, Operation::Read, &name)?;
    Ok(name)
}

/// The outcome of a commit: a result for each offset, or one error for all of them.
pub type Committed = Result<Vec<Result<(), GroupError>>, ErrorCode>;

/// The partitions of an OffsetCommit or TxnOffsetCommit.
#[derive(Default)]
pub struct Asked {
    /// For each partition of the request, in order: an error, or the position of its offset in the commit.
    places: Vec<Result<usize, ErrorCode>>,
    /// The position of each key in the commit. If a key occurs several times, its last offset counts.
    by_key: BTreeMap<OffsetKey, usize>,
    /// The offsets to commit.
    pub offsets: Vec<OffsetCommit>,
}

impl Asked {
    /// Adds a partition of the topic `name`. The topic must exist.
    pub fn add(
        &mut self,
        broker: &Broker,
        name: &Result<Arc<str>, ErrorCode>,
        partition: i32,
        offset: impl FnOnce(OffsetKey) -> OffsetCommit,
    ) {
        let place = name.clone().and_then(|topic| {
            let found = broker.topics.find(&topic).and_then(|topic| topic.partition(partition));
            found.ok_or(ErrorCode::UnknownTopicOrPartition)?;
            let key = OffsetKey { topic, partition };
            let next = self.offsets.len();
            let place = *self.by_key.entry(key.clone()).or_insert(next);
            match self.offsets.get_mut(place) {
                Some(before) => *before = offset(key),
                None => self.offsets.push(offset(key)),
            }
            Ok(place)
        });
        self.places.push(place);
    }

    /// The error code for each partition, in the order of the request.
    pub fn errors(self, results: &Committed) -> impl Iterator<Item = ErrorCode> {
        self.places.into_iter().map(move |place| match (place, results) {
            (Err(error), _) => error,
            (Ok(_), Err(error)) => *error,
            (Ok(place), Ok(results)) => results[place].err().map_or(ErrorCode::None, group_code),
        })
    }
}

/// Checks that the group `id` can be written to. Creates the internal topic if it is missing. Fails if the group's
/// partition is lost.
pub async fn ready(broker: &Arc<Broker>, id: &str) -> Result<(), ErrorCode> {
    if broker.offsets_topic().await.is_err() {
        return Err(ErrorCode::CoordinatorNotAvailable);
    }
    broker.coordinator.find(id).map(drop).map_err(unserved_code)
}

/// The group of a commit. A consumer without a generation creates the group if it is missing. Other commits to a
/// missing group get the error `unknown`.
pub async fn group_for_commit(
    broker: &Arc<Broker>,
    id: &str,
    generation: i32,
    unknown: ErrorCode,
) -> Result<Arc<Entry>, ErrorCode> {
    ready(broker, id).await?;
    match broker.coordinator.find(id).map_err(unserved_code)? {
        Some(entry) => Ok(entry),
        None if generation < 0 => broker.coordinator.find_or_create(id).map_err(unserved_code),
        None => Err(unknown),
    }
}

/// Answers OffsetCommit once the offsets are durable.
pub async fn commit(
    Request { broker, caller, version, body: request, .. }: Request<OffsetCommitRequest>,
) -> OffsetCommitResponse {
    let allowed = broker.authorizer.group(&caller, Operation::Read, &request.group_id);
    let mut asked = Asked::default();
    for topic in &request.topics {
        let name = name_of(&broker, &topic.name, topic.topic_id, version >= IDS_FROM_VERSION);
        let name = allowed.and(readable(&broker, &caller, name));
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
    let results = match allowed {
        Ok(()) => commit_offsets(&broker, &request, version, offsets).await,
        Err(error) => Err(error),
    };
    let mut errors = asked.errors(&results);
    // As in Kafka, topics without partitions are left out.
    let asked = request.topics.into_iter().filter(|topic| !topic.partitions.is_empty());
    let topics = asked.map(|topic| {
        let answer = |partition: wire::messages::offset_commit_request::OffsetCommitRequestPartition| {
            let error = errors.next().expect("there is an answer for each partition");
            OffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: error.code(),
            }
        };
        OffsetCommitResponseTopic {
            name: topic.name,
            topic_id: topic.topic_id,
            partitions: topic.partitions.into_iter().map(answer).collect(),
        }
    });
    OffsetCommitResponse { topics: topics.collect(), ..OffsetCommitResponse::default() }
}

async fn commit_offsets(
    broker: &Arc<Broker>,
    request: &OffsetCommitRequest,
    version: i16,
    offsets: Vec<OffsetCommit>,
) -> Committed {
    // As in Kafka, the empty name is a valid group here.
    let generation = request.generation_id_or_member_epoch;
    let unknown = if version >= 9 { ErrorCode::GroupIdNotFound } else { ErrorCode::IllegalGeneration };
    let entry = group_for_commit(broker, &request.group_id, generation, unknown).await?;
    let speaks_the_new_protocol = |group: &Group| {
        let member = group.consumer().and_then(|group| group.member(&request.member_id));
        member.is_some_and(|member| !member.is_classic())
    };
    if version < 9 && entry.with(speaks_the_new_protocol) {
        return Err(ErrorCode::UnsupportedVersion);
    }
    let commit = CommitRequest {
        producer_id: None,
        member_id: request.member_id.to_string(),
        instance_id: request.group_instance_id.as_ref().map(ToString::to_string),
        generation,
        retention_ms: Some(request.retention_time_ms).filter(|ms| *ms >= 0),
        offsets,
    };
    broker.coordinator.commit(&entry, commit, None).await.map_err(group_code)
}

/// The content of OffsetFetch's answer for one partition.
struct Fetched {
    offset: i64,
    leader_epoch: i32,
    metadata: Text,
    error: ErrorCode,
}

fn fetch_one(group: Option<&Group>, key: &OffsetKey, require_stable: bool) -> Fetched {
    let none = |error| Fetched { offset: -1, leader_epoch: -1, metadata: Text::default(), error };
    let Some(group) = group else { return none(ErrorCode::None) };
    if require_stable && group.is_unstable(key) {
        return none(ErrorCode::UnstableOffsetCommit);
    }
    group.offset(key).map_or_else(
        || none(ErrorCode::None),
        |found| Fetched {
            offset: found.offset,
            leader_epoch: found.leader_epoch,
            metadata: Text::from(found.metadata.clone()),
            error: ErrorCode::None,
        },
    )
}

fn fetched_partition(partition_index: i32, fetched: Fetched) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: fetched.offset,
        committed_leader_epoch: fetched.leader_epoch,
        metadata: Some(fetched.metadata),
        error_code: fetched.error.code(),
    }
}

/// The offsets of one group: the requested ones, or all.
fn fetch_group(
    broker: &Broker,
    caller: &Caller,
    entry: Option<&Entry>,
    asked: Option<&[OffsetFetchRequestTopics]>,
    by_id: bool,
    require_stable: bool,
) -> (Vec<OffsetFetchResponseTopics>, Settled) {
    let look = |group: Option<&Group>| match asked {
        Some(asked) => asked
            .iter()
            .map(|topic| {
                let name = name_of(broker, &topic.name, topic.topic_id, by_id).and_then(|name| {
                    broker.authorizer.topic(caller, Operation::Describe, &name)?;
                    Ok(name)
                });
                // No topic has a longer name, so no offset was committed for it.
                let group = group.filter(|_| topic.name.len() <= TOPIC_NAME_MAX);
                let fetch = |index: &i32| {
                    let fetched = match &name {
                        Ok(name) => fetch_one(
                            group,
                            &OffsetKey { topic: name.clone(), partition: *index },
                            require_stable,
                        ),
                        Err(error) => {
                            Fetched { offset: -1, leader_epoch: -1, metadata: Text::default(), error: *error }
                        }
                    };
                    fetched_partition(*index, fetched)
                };
                OffsetFetchResponseTopics {
                    name: topic.name.clone(),
                    topic_id: topic.topic_id,
                    partitions: topic.partition_indexes.iter().map(fetch).collect(),
                }
            })
            .collect(),
        None => {
            let mut topics: Vec<OffsetFetchResponseTopics> = Vec::new();
            for (key, _) in group.into_iter().flat_map(Group::offsets) {
                let id = broker.topics.find(&key.topic).map_or(Uuid::nil(), |topic| topic.id);
                let describe = Operation::Describe;
                let shown = broker.authorizer.shows(caller, describe, ResourceType::Topic, &key.topic);
                if !shown || (by_id && id.is_nil()) {
                    continue;
                }
                let partition = fetched_partition(key.partition, fetch_one(group, key, require_stable));
                match topics.last_mut().filter(|topic| topic.name.as_str() == &*key.topic) {
                    Some(topic) => topic.partitions.push(partition),
                    None => topics.push(OffsetFetchResponseTopics {
                        name: Text::copied(&key.topic),
                        topic_id: if by_id { id } else { Uuid::nil() },
                        partitions: vec![partition],
                    }),
                }
            }
            topics
        }
    };
    match entry {
        Some(entry) => entry.look(|group| look(Some(group))),
        None => (look(None), Settled::default()),
    }
}

/// The error for a request whose member id or epoch is not valid in the group (KIP-848).
fn check_member(entry: Option<&Entry>, asked: &OffsetFetchRequestGroup) -> Result<(), ErrorCode> {
    let member_id = asked.member_id.as_ref().map(Text::as_str);
    let check = |entry: &Entry| entry.with(|group| group.check_fetch(member_id, asked.member_epoch));
    entry.map_or(Ok(()), check).map_err(group_code)
}

/// Answers OffsetFetch.
pub async fn fetch(
    Request { ref broker, ref caller, version, body: request, .. }: Request<OffsetFetchRequest>,
) -> OffsetFetchResponse {
    let find = |group: &str| {
        broker.authorizer.group(caller, Operation::Describe, group)?;
        broker.coordinator.find(group).map_err(unserved_code)
    };
    if version < GROUPS_FROM_VERSION {
        let asked: Option<Vec<OffsetFetchRequestTopics>> = request.topics.map(|topics| {
            let topic =
                |t: wire::messages::offset_fetch_request::OffsetFetchRequestTopic| OffsetFetchRequestTopics {
                    name: t.name,
                    partition_indexes: t.partition_indexes,
                    ..OffsetFetchRequestTopics::default()
                };
            topics.into_iter().map(topic).collect()
        });
        let fetched = match find(&request.group_id) {
            Ok(entry) => {
                let (entry, topics) = (entry.as_deref(), asked.as_deref());
                let (found, settled) =
                    fetch_group(broker, caller, entry, topics, false, request.require_stable);
                settled.wait().await.map(|()| found).map_err(group_code)
            }
            Err(error) => Err(error),
        };
        let (error_code, found) = match fetched {
            Ok(found) => (0, found),
            // The first two versions have no top-level error code.
            Err(error) if version < ERROR_FROM_VERSION => {
                (error.code(), unfetched(asked.unwrap_or_default()))
            }
            Err(error) => (error.code(), Vec::new()),
        };
        let partition = |p: OffsetFetchResponsePartitions| OffsetFetchResponsePartition {
            partition_index: p.partition_index,
            committed_offset: p.committed_offset,
            committed_leader_epoch: p.committed_leader_epoch,
            metadata: p.metadata,
            // The first two versions have no top-level error code.
            error_code: if error_code != 0 { error_code } else { p.error_code },
        };
        let topic = |t: OffsetFetchResponseTopics| OffsetFetchResponseTopic {
            name: t.name,
            partitions: t.partitions.into_iter().map(partition).collect(),
        };
        return OffsetFetchResponse {
            topics: found.into_iter().map(topic).collect(),
            error_code,
            ..OffsetFetchResponse::default()
        };
    }
    let by_id = version >= IDS_FROM_VERSION;
    let fetch = |asked: &OffsetFetchRequestGroup| {
        let entry = find(&asked.group_id)?;
        let (entry, topics) = (entry.as_deref(), asked.topics.as_deref());
        check_member(entry, asked)?;
        Ok(fetch_group(broker, caller, entry, topics, by_id, request.require_stable))
    };
    // A repeated group is described once, so that the size of the answer stays proportional to the request.
    let mut named = HashSet::new();
    let whole =
        |asked: &OffsetFetchRequestGroup| asked.topics.is_some() || named.insert(asked.group_id.clone());
    let fetched: Vec<_> =
        request.groups.into_iter().filter(whole).map(|asked| (fetch(&asked), asked.group_id)).collect();
    let mut groups = Vec::with_capacity(fetched.len());
    for (fetched, group_id) in fetched {
        let fetched = match fetched {
            Ok((topics, settled)) => settled.wait().await.map(|()| topics).map_err(group_code),
            Err(error) => Err(error),
        };
        groups.push(OffsetFetchResponseGroup {
            group_id,
            error_code: fetched.as_ref().err().map_or(0, |error| error.code()),
            topics: fetched.unwrap_or_default(),
        });
    }
    OffsetFetchResponse { groups, ..OffsetFetchResponse::default() }
}

/// The requested partitions, without offsets.
fn unfetched(asked: Vec<OffsetFetchRequestTopics>) -> Vec<OffsetFetchResponseTopics> {
    let none = |index: i32| {
        let metadata = Text::default();
        let (offset, leader_epoch) = (-1, -1);
        fetched_partition(index, Fetched { offset, leader_epoch, metadata, error: ErrorCode::None })
    };
    let topic = |topic: OffsetFetchRequestTopics| OffsetFetchResponseTopics {
        name: topic.name,
        topic_id: topic.topic_id,
        partitions: topic.partition_indexes.into_iter().map(none).collect(),
    };
    asked.into_iter().map(topic).collect()
}

/// Answers OffsetDelete (KIP-496).
pub async fn delete(
    Request { broker, caller, body: request, .. }: Request<OffsetDeleteRequest>,
) -> OffsetDeleteResponse {
    let refused = |error: ErrorCode| OffsetDeleteResponse {
        error_code: error.code(),
        ..OffsetDeleteResponse::default()
    };
    if let Err(error) = broker.authorizer.group(&caller, Operation::Delete, &request.group_id) {
        return refused(error);
    }
    if request.group_id.is_empty() {
        return refused(ErrorCode::InvalidGroupId);
    }
    let entry = match broker.coordinator.find(&request.group_id) {
        Ok(Some(entry)) => entry,
        Ok(None) => return refused(ErrorCode::GroupIdNotFound),
        Err(unserved) => return refused(unserved_code(unserved)),
    };
    if entry.with(Group::state) == State::Dead {
        return refused(ErrorCode::GroupIdNotFound);
    }
    // These errors of partitions do not depend on the group. A repeated topic is merged into its first occurrence.
    let mut topics: Vec<OffsetDeleteResponseTopic> = Vec::new();
    let mut places: HashMap<Text, usize> = HashMap::new();
    let (mut keys, mut waiting) = (Vec::new(), Vec::new());
    for topic in request.topics {
        let allowed = broker.authorizer.topic(&caller, Operation::Read, &topic.name);
        let found = broker.topics.find(&topic.name);
        let place = *places.entry(topic.name.clone()).or_insert_with(|| {
            let (name, partitions) = (topic.name.clone(), Vec::new());
            topics.push(OffsetDeleteResponseTopic { name, partitions });
            topics.len() - 1
        });
        let name: Arc<str> = topic.name.as_str().into();
        for OffsetDeleteRequestPartition { partition_index, .. } in topic.partitions {
            let exists = found.as_ref().is_some_and(|topic| topic.partition(partition_index).is_some());
            let error = match allowed {
                Ok(()) if !exists => ErrorCode::UnknownTopicOrPartition,
                Ok(()) => ErrorCode::None,
                Err(error) => error,
            };
            if error == ErrorCode::None {
                keys.push(OffsetKey { topic: name.clone(), partition: partition_index });
                waiting.push((place, topics[place].partitions.len()));
            }
            let answer = OffsetDeleteResponsePartition { partition_index, error_code: error.code() };
            topics[place].partitions.push(answer);
        }
    }
    let results = match broker.coordinator.delete_offsets(&entry, keys).await {
        Ok(results) => results,
        Err(error) => return refused(group_code(error)),
    };
    audit::changed(&caller.origin, "deleted offsets of group", &request.group_id, "");
    for ((topic, partition), result) in waiting.into_iter().zip(results) {
        let error = result.err().map_or(ErrorCode::None, group_code);
        topics[topic].partitions[partition].error_code = error.code();
    }
    OffsetDeleteResponse { topics, ..OffsetDeleteResponse::default() }
}
