//! The location and the leader of partitions: DescribeLogDirs (KIP-113), ElectLeaders (KIP-460), DescribeTopicPartitions
//! (KIP-966).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wire::messages as m;
use wire::messages::describe_log_dirs_response as dld;
use wire::messages::describe_topic_partitions_response as dtp;
use wire::messages::elect_leaders_response as el;
use wire::{ErrorCode, Text};

use crate::api::metadata::NO_LEADER;
use crate::broker::CopyDirectory;
use crate::cluster::replicas::Replicas;
use crate::failure::Failure;
use crate::image::Image;
use crate::logs::{Absent, OpenLog};
use crate::partition::Partition;
use crate::placement::Leader;
use crate::request::Request;
use crate::security::{Operation, ResourceType};
use crate::topics::{TOPIC_NAME_MAX, Topic, check_name};

/// If a request names more partitions of a missing topic, the error of each partition leaves out the topic's name.
pub(super) const NAMED_MAX: usize = 1000;
/// The size of a log directory if it is unknown (KIP-827).
const UNKNOWN_BYTES: i64 = -1;
/// Bound of the partitions in one answer of DescribeTopicPartitions (`max.request.partition.size.limit`).
const PARTITIONS_MAX: usize = 2000;

/// Answers AlterReplicaLogDirs (KIP-113). A partition that is already in the directory succeeds. Moving a partition is
/// not supported and is refused.
pub async fn alter_replica_log_dirs(
    request: Request<m::AlterReplicaLogDirsRequest>,
) -> m::AlterReplicaLogDirsResponse {
    let Request { broker, body: request, .. } = &request;
    use m::alter_replica_log_dirs_response as ard;
    let check = |log: Option<&Arc<OpenLog>>, topic: Option<&Topic>, index: i32| {
        let log = log.ok_or(ErrorCode::LogDirNotFound)?;
        let partition = topic.and_then(|topic| topic.partition(index));
        let partition = partition.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        match partition.log() {
            Ok(held) if held.log_id() == log.id => Ok(()),
            Ok(_) => Err(ErrorCode::InvalidReplicaAssignment),
            Err(Absent::Elsewhere) => Err(ErrorCode::ReplicaNotAvailable),
            Err(Absent::Lost(_)) => Err(ErrorCode::KafkaStorageError),
        }
    };
    let mut results: BTreeMap<Text, Vec<ard::AlterReplicaLogDirPartitionResult>> = BTreeMap::new();
    for dir in &request.dirs {
        let logs = broker.logs.all();
        let log = logs.iter().find(|log| log.path == dir.path.as_str());
        for topic in &dir.topics {
            let found = broker.topics.find(&topic.name);
            let result = |index: &i32| ard::AlterReplicaLogDirPartitionResult {
                partition_index: *index,
                error_code: check(log, found.as_deref(), *index).err().map_or(0, |error| error.code()),
            };
            results.entry(topic.name.clone()).or_default().extend(topic.partitions.iter().map(result));
        }
    }
    let topic = |(topic_name, partitions)| ard::AlterReplicaLogDirTopicResult { topic_name, partitions };
    m::AlterReplicaLogDirsResponse {
        results: results.into_iter().map(topic).collect(),
        ..m::AlterReplicaLogDirsResponse::default()
    }
}

fn known(bytes: Option<u64>) -> i64 {
    bytes.map_or(UNKNOWN_BYTES, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Answers DescribeLogDirs.
pub async fn describe_log_dirs(
    Request { ref broker, body: request, .. }: Request<m::DescribeLogDirsRequest>,
) -> m::DescribeLogDirsResponse {
    let asked: Option<BTreeMap<Text, BTreeSet<i32>>> = request.topics.map(|topics| {
        topics.into_iter().map(|topic| (topic.topic, topic.partitions.into_iter().collect())).collect()
    });
    let wanted = |partition: &Partition| {
        asked.as_ref().is_none_or(|asked| {
            asked.get(&partition.topic).is_some_and(|indexes| indexes.contains(&partition.index))
        })
    };
    let all = broker.topics.all();
    let mut results: Vec<dld::DescribeLogDirsResult> = broker
        .logs
        .all()
        .iter()
        .map(|log| {
            let topics = topics_in(&all, |_| {
                |partition: &Partition| {
                    let held = partition.log().ok().filter(|held| held.log_id() == log.id)?;
                    wanted(partition).then(|| i64::try_from(held.bounds().bytes).unwrap_or(i64::MAX))
                }
            });
            let failed = log.failure().is_some();
            let error = if failed { ErrorCode::KafkaStorageError } else { ErrorCode::None };
            dld::DescribeLogDirsResult {
                error_code: error.code(),
                log_dir: Text::from(log.path.clone()),
                topics,
                total_bytes: known(log.capacity_bytes()),
                usable_bytes: known(log.usable_bytes()),
                is_cordoned: false,
            }
        })
        .collect();
    results.extend(broker.logs.lost().iter().map(|lost| dld::DescribeLogDirsResult {
        error_code: ErrorCode::KafkaStorageError.code(),
        log_dir: Text::from(lost.path.clone()),
        total_bytes: UNKNOWN_BYTES,
        usable_bytes: UNKNOWN_BYTES,
        ..dld::DescribeLogDirsResult::default()
    }));
    results.extend(broker.copy_directory.as_ref().map(|CopyDirectory { path, disk }| {
        let local = broker.placement.local();
        // What a copy takes is not known for each partition: it is a copy of the whole log, until the object store has it.
        let topics = topics_in(&all, |topic| {
            let replicas = broker.replicas_of(topic);
            move |partition: &Partition| {
                let is_copied =
                    partition.leader().node != local && replicas.of(partition).in_sync.contains(&local);
                (is_copied && wanted(partition)).then_some(0)
            }
        });
        dld::DescribeLogDirsResult {
            error_code: ErrorCode::None.code(),
            log_dir: Text::from(path.clone()),
            topics,
            total_bytes: known(disk.capacity_bytes().ok()),
            usable_bytes: known(disk.free_bytes().ok()),
            is_cordoned: false,
        }
    }));
    m::DescribeLogDirsResponse { results, ..m::DescribeLogDirsResponse::default() }
}

/// The partitions of a log directory: those of which the topic's function says how many bytes they take.
fn topics_in<F: Fn(&Partition) -> Option<i64>>(
    topics: &[Arc<Topic>],
    sizes: impl Fn(&Topic) -> F,
) -> Vec<dld::DescribeLogDirsTopic> {
    let mut there = Vec::new();
    for topic in topics {
        let size = sizes(topic);
        let partition = |partition: &Arc<Partition>| {
            Some(dld::DescribeLogDirsPartition {
                partition_index: partition.index,
                partition_size: size(partition)?,
                offset_lag: 0,
                is_future_key: false,
            })
        };
        let partitions: Vec<_> = topic.partitions().iter().filter_map(partition).collect();
        if !partitions.is_empty() {
            there.push(dld::DescribeLogDirsTopic { name: topic.name.clone(), partitions });
        }
    }
    there
}

/// Answers ElectLeaders. The only replica leads, if its log is available. In a cluster, the home of its log is the preferred
/// leader: the log goes back as soon as the home is ready for it, so an election before that finds no preferred leader.
pub async fn elect_leaders(request: Request<m::ElectLeadersRequest>) -> m::ElectLeadersResponse {
    let version = request.version;
    let Request { broker, body: request, .. } = &request;
    const PREFERRED: i8 = 0;
    const UNCLEAN: i8 = 1;
    if request.timeout_ms <= 0 {
        return elected_nothing(request, version);
    }
    let image = broker.metadata.image();
    let known = (PREFERRED..=UNCLEAN).contains(&request.election_type);
    let unknown_type = format!("Unknown election type {}", request.election_type);
    let unknown_type = Failure::because(ErrorCode::InvalidRequest, unknown_type).text();
    let elect = |topic: &Topic, index: i32| -> (ErrorCode, Text) {
        if !known {
            return (ErrorCode::InvalidRequest, unknown_type.clone());
        }
        let Some(partition) = topic.partition(index) else {
            let why = format!("No such partition as {}-{index}", topic.name);
            return (ErrorCode::UnknownTopicOrPartition, why.into());
        };
        let preferred = request.election_type == PREFERRED;
        let error = match partition.is_lost() || preferred && is_away(&image, topic, index) {
            false => {
                let why = Text::from_static("Leader election not needed for topic partition.");
                return (ErrorCode::ElectionNotNeeded, why);
            }
            true if preferred => ErrorCode::PreferredLeaderNotAvailable,
            true => ErrorCode::EligibleLeadersNotAvailable,
        };
        (error, Text::from_static(error.message()))
    };
    let result = |index: i32, (error, message): (ErrorCode, Text)| el::PartitionResult {
        partition_id: index,
        error_code: error.code(),
        error_message: Some(message),
    };
    // The message is the same for all partitions of a topic.
    let asked_of = |topic: &m::elect_leaders_request::TopicPartitions| {
        let name = &topic.topic;
        let found = broker.topics.find(name);
        let missing = match known {
            // With very many partitions, the name would be repeated too often, so the message leaves it out.
            true if topic.partitions.len() > NAMED_MAX => {
                Text::from_static(ErrorCode::UnknownTopicOrPartition.message())
            }
            true => Failure::because(
                ErrorCode::UnknownTopicOrPartition,
                format!("No such topic as {}", shown(name)),
            )
            .text(),
            false => unknown_type.clone(),
        };
        let code = if known { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::InvalidRequest };
        let outcome = |index: &i32| match &found {
            Some(topic) => result(*index, elect(topic, *index)),
            None => result(*index, (code, missing.clone())),
        };
        el::ReplicaElectionResult {
            topic: name.clone(),
            partition_result: topic.partitions.iter().map(outcome).collect(),
        }
    };
    let mut results = Vec::new();
    match &request.topic_partitions {
        Some(asked) => results.extend(asked.iter().map(asked_of)),
        // A request for all partitions gets no entries for partitions that need no election.
        None => {
            for topic in broker.topics.all() {
                let partitions = topic.partitions();
                let outcomes = partitions.iter().map(|p| (p.index, elect(&topic, p.index)));
                let partition_result: Vec<_> = outcomes
                    .filter(|(_, (error, _))| *error != ErrorCode::ElectionNotNeeded)
                    .map(|(index, outcome)| result(index, outcome))
                    .collect();
                results.push(el::ReplicaElectionResult { topic: topic.name.clone(), partition_result });
            }
        }
    }
    let error = if known { ErrorCode::None } else { ErrorCode::InvalidRequest };
    m::ElectLeadersResponse {
        error_code: error.code(),
        replica_election_results: results,
        ..m::ElectLeadersResponse::default()
    }
}

/// Whether the log of a partition has another owner than its home. Without a cluster, no log has.
fn is_away(image: &Image, topic: &Topic, index: i32) -> bool {
    let (record, at) = (topic.record(), usize::try_from(index).ok());
    let log = at.and_then(|at| record.logs.get(at));
    let owner = log.and_then(|log| image.owners.get(&log.to_string()));
    owner.is_some_and(|owner| owner.broker != owner.home)
}

/// As in Kafka's controller, a request with a timeout of zero or less does nothing.
fn elected_nothing(request: &m::ElectLeadersRequest, version: i16) -> m::ElectLeadersResponse {
    let error = ErrorCode::RequestTimedOut;
    let partition = |index: &i32| el::PartitionResult {
        partition_id: *index,
        error_code: error.code(),
        error_message: None,
    };
    let topic = |topic: &m::elect_leaders_request::TopicPartitions| el::ReplicaElectionResult {
        topic: topic.topic.clone(),
        partition_result: topic.partitions.iter().map(partition).collect(),
    };
    m::ElectLeadersResponse {
        // Version 0 has errors only for single partitions.
        error_code: if version == 0 { 0 } else { error.code() },
        replica_election_results: request.topic_partitions.iter().flatten().map(topic).collect(),
        ..m::ElectLeadersResponse::default()
    }
}

/// Answers DescribeTopicPartitions: topics by name, a limited number of partitions, and a cursor for the next request.
pub async fn describe_topic_partitions(
    Request { ref broker, ref caller, body: request, .. }: Request<m::DescribeTopicPartitionsRequest>,
) -> m::DescribeTopicPartitionsResponse {
    let mut forbidden = Vec::new();
    let everything = request.topics.is_empty();
    if let Some(cursor) = &request.cursor
        && (cursor.partition_index < 0
            || !everything && request.topics.iter().all(|topic| topic.name != cursor.topic_name))
    {
        let wrong = |topic: m::describe_topic_partitions_request::TopicRequest| {
            refused(topic.name, ErrorCode::InvalidRequest)
        };
        return m::DescribeTopicPartitionsResponse {
            topics: request.topics.into_iter().map(wrong).collect(),
            ..m::DescribeTopicPartitionsResponse::default()
        };
    }
    let mut names: BTreeSet<Text> = match everything {
        true => broker.topics.all().iter().map(|topic| topic.name.clone()).collect(),
        false => request.topics.into_iter().map(|topic| topic.name).collect(),
    };
    let (authorizer, see) = (&broker.authorizer, Operation::Describe);
    names.retain(|name| {
        if everything {
            return authorizer.shows(caller, see, ResourceType::Topic, name);
        }
        let allowed = authorizer.topic(caller, see, name);
        if let Err(error) = allowed {
            forbidden.push(refused(name.clone(), error));
        }
        allowed.is_ok()
    });
    let mut first_index = 0;
    if let Some(cursor) = request.cursor {
        names.retain(|name| name.as_str() >= cursor.topic_name.as_str());
        if names.first().is_some_and(|name| *name == cursor.topic_name) {
            first_index = usize::try_from(cursor.partition_index).unwrap_or(0);
        }
    }
    let mut left = usize::try_from(request.response_partition_limit).unwrap_or(0).clamp(1, PARTITIONS_MAX);
    let (mut topics, mut next_cursor) = (Vec::new(), None);
    for name in names {
        let from = std::mem::take(&mut first_index);
        if left == 0 {
            next_cursor = Some(dtp::Cursor { topic_name: name, partition_index: 0 });
            break;
        }
        let Some(topic) = broker.topics.find(&name) else {
            let error = match check_name(&name) {
                Ok(()) => ErrorCode::UnknownTopicOrPartition,
                Err(_) => ErrorCode::InvalidTopicException,
            };
            // As in Kafka, the allowed operations are reported even for a topic that does not exist.
            let operations = authorizer.operations(caller, ResourceType::Topic, &name);
            topics.push(dtp::DescribeTopicPartitionsResponseTopic {
                topic_authorized_operations: operations,
                ..refused(name, error)
            });
            continue;
        };
        let (partitions, replicas) = (topic.partitions(), broker.replicas_of(&topic));
        let shown = partitions.iter().skip(from).take(left);
        let shown: Vec<_> = shown.map(|it| described(it, replicas.of(it))).collect();
        left -= shown.len();
        let next = from + shown.len();
        if next < partitions.len() {
            let partition_index = i32::try_from(next).unwrap_or(i32::MAX);
            next_cursor = Some(dtp::Cursor { topic_name: name, partition_index });
        }
        let operations = authorizer.operations(caller, ResourceType::Topic, &topic.name);
        topics.push(with_partitions(&topic, shown, operations));
        if next_cursor.is_some() {
            break;
        }
    }
    topics.extend(forbidden);
    m::DescribeTopicPartitionsResponse {
        topics,
        next_cursor,
        ..m::DescribeTopicPartitionsResponse::default()
    }
}

/// The name, cut to the length of a topic name. The client may have sent a longer one, and the answer repeats it for
/// many partitions.
pub(super) fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(TOPIC_NAME_MAX)]
}

fn refused(name: Text, error: ErrorCode) -> dtp::DescribeTopicPartitionsResponseTopic {
    dtp::DescribeTopicPartitionsResponseTopic {
        error_code: error.code(),
        name: Some(name),
        ..dtp::DescribeTopicPartitionsResponseTopic::default()
    }
}

fn with_partitions(
    topic: &Topic,
    partitions: Vec<dtp::DescribeTopicPartitionsResponsePartition>,
    topic_authorized_operations: i32,
) -> dtp::DescribeTopicPartitionsResponseTopic {
    dtp::DescribeTopicPartitionsResponseTopic {
        error_code: 0,
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions,
        topic_authorized_operations,
    }
}

fn described(partition: &Partition, replicas: Replicas) -> dtp::DescribeTopicPartitionsResponsePartition {
    let (Leader { node, epoch: leader_epoch }, lost) = (partition.leader(), partition.is_lost());
    let error = if lost { ErrorCode::LeaderNotAvailable } else { ErrorCode::None };
    dtp::DescribeTopicPartitionsResponsePartition {
        error_code: error.code(),
        partition_index: partition.index,
        leader_id: if lost { NO_LEADER } else { node },
        leader_epoch,
        replica_nodes: replicas.all,
        isr_nodes: replicas.in_sync,
        eligible_leader_replicas: Some(Vec::new()),
        last_known_elr: Some(Vec::new()),
        offline_replicas: replicas.offline,
    }
}
