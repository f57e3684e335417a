//! Metadata and DescribeCluster: the nodes and the topics. Creates missing topics on first use if that is enabled.

use std::collections::HashSet;
use std::sync::Arc;

use wire::messages::describe_cluster_response::{DescribeClusterBroker, DescribeClusterResponse};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use wire::messages::{DescribeClusterRequest, MetadataRequest};
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::caller::{Caller, Endpoint};
use crate::cluster::replicas::Replicas;
use crate::failure::Failure;
use crate::placement::{Leader, Node};
use crate::request::Request;
use crate::security::acl::CLUSTER_NAME;
use crate::security::{Operation, ResourceType, audit};
use crate::topics::{Topic, check_name};

/// The value for "not asked for" where a client may ask for its allowed operations (KIP-430).
const OPERATIONS_UNKNOWN: i32 = i32::MIN;
/// A request for very many topics yields the thread after this many.
const LOOKS_BEFORE_YIELD: usize = 256;
/// The first version with a field for a topic id, and the first version whose clients may use it.
const IDS_FROM_VERSION: i16 = 10;
const BY_ID_FROM_VERSION: i16 = 12;
/// Bound of the topics created by one request. A client that wants more asks again.
const CREATED_MAX: usize = 100;
/// The leader id of a partition without a leader.
pub const NO_LEADER: i32 = -1;
/// Answers Metadata.
pub async fn answer(
    Request { broker, caller, version, body: request, .. }: Request<MetadataRequest>,
) -> MetadataResponse {
    let with_operations = request.include_topic_authorized_operations;
    let describe = |topic: &Topic| {
        let operations = || broker.authorizer.operations(&caller, ResourceType::Topic, &topic.name);
        described(&broker, topic, if with_operations { operations() } else { OPERATIONS_UNKNOWN })
    };
    if let Some(refused) = wrongly_named(&request, version) {
        return refused;
    }
    let ids_only = version >= BY_ID_FROM_VERSION
        && request.topics.iter().flatten().any(|topic| !topic.topic_id.is_nil());
    // Version 0 has no null list: an empty list asks for all topics.
    let asked = request.topics.as_ref().filter(|asked| version > 0 || !asked.is_empty());
    let topics = match asked {
        None => {
            let all = broker.topics.all();
            let shown = |topic: &&Arc<Topic>| {
                broker.authorizer.shows(&caller, Operation::Describe, ResourceType::Topic, &topic.name)
            };
            all.iter().filter(shown).map(|topic| describe(topic)).collect()
        }
        Some(asked) => {
            let (mut found, mut created) = (Vec::new(), 0);
            // As in Kafka, a repeated topic is described once, so that the size of the answer stays proportional to the
            // request.
            let mut named = HashSet::new();
            let asked = asked.iter().filter(|topic| named.insert((&topic.name, topic.topic_id)));
            // As in Kafka, if one topic is named by id, topics named otherwise are ignored.
            let asked = asked.filter(|topic| !ids_only || !topic.topic_id.is_nil());
            for (looked, topic) in asked.enumerate() {
                if looked % LOOKS_BEFORE_YIELD == LOOKS_BEFORE_YIELD - 1 {
                    tokio::task::yield_now().await;
                }
                let may_create = (request.allow_auto_topic_creation || version < 4) && created < CREATED_MAX;
                created +=
                    usize::from(topic.name.as_ref().is_some_and(|name| broker.topics.find(name).is_none()));
                found.push(match find(&broker, &caller, topic, may_create).await {
                    Ok(topic) => describe(&topic),
                    Err(failure) => MetadataResponseTopic {
                        error_code: failure.code.code(),
                        name: topic.name.clone().or((version < 12).then(Text::default)),
                        topic_id: topic.topic_id,
                        topic_authorized_operations: match &topic.name {
                            Some(name) if with_operations && topic.topic_id.is_nil() => {
                                operations_of_missing(&broker, &caller, name, &failure)
                            }
                            _ => OPERATIONS_UNKNOWN,
                        },
                        ..MetadataResponseTopic::default()
                    },
                });
            }
            found
        }
    };
    let node = |Node { id: node_id, endpoint: Endpoint { host, port }, rack }| MetadataResponseBroker {
        node_id,
        host,
        port,
        rack,
    };
    MetadataResponse {
        brokers: broker.placement.nodes(&caller.origin).into_iter().map(node).collect(),
        cluster_id: Some(broker.cluster_id.clone()),
        controller_id: broker.placement.controller(),
        topics,
        cluster_authorized_operations: cluster_operations(
            &broker,
            &caller,
            request.include_cluster_authorized_operations,
        ),
        ..MetadataResponse::default()
    }
}

/// The error for a request whose version has the field but does not yet allow topic ids, or that leaves out the name.
fn wrongly_named(request: &MetadataRequest, version: i16) -> Option<MetadataResponse> {
    let mut asked = request.topics.iter().flatten();
    if !(IDS_FROM_VERSION..BY_ID_FROM_VERSION).contains(&version)
        || asked.all(|topic| topic.name.is_some() && topic.topic_id.is_nil())
    {
        return None;
    }
    let topic = |topic: &MetadataRequestTopic| MetadataResponseTopic {
        error_code: ErrorCode::InvalidRequest.code(),
        name: topic.name.clone().or_else(|| Some(Text::default())),
        topic_id: topic.topic_id,
        topic_authorized_operations: OPERATIONS_UNKNOWN,
        ..MetadataResponseTopic::default()
    };
    Some(MetadataResponse {
        topics: request.topics.iter().flatten().map(topic).collect(),
        cluster_id: None,
        controller_id: -1,
        cluster_authorized_operations: OPERATIONS_UNKNOWN,
        ..MetadataResponse::default()
    })
}

/// The operations that the caller may do on a missing topic. As in Kafka, they are reported if the caller may describe
/// the topic.
fn operations_of_missing(broker: &Broker, caller: &Caller, name: &Text, failure: &Failure) -> i32 {
    match failure.code {
        ErrorCode::TopicAuthorizationFailed => OPERATIONS_UNKNOWN,
        _ => broker.authorizer.operations(caller, ResourceType::Topic, name),
    }
}

async fn find(
    broker: &Arc<Broker>,
    caller: &Caller,
    asked: &MetadataRequestTopic,
    may_create: bool,
) -> Result<Arc<Topic>, Failure> {
    let authorizer = &broker.authorizer;
    if !asked.topic_id.is_nil() {
        let topic = broker.topics.find_id(&asked.topic_id).ok_or(ErrorCode::UnknownTopicId)?;
        authorizer.topic(caller, Operation::Describe, &topic.name)?;
        return Ok(topic);
    }
    let name = asked.name.as_ref().ok_or(ErrorCode::InvalidRequest)?;
    // This check comes first, so that the answer does not reveal whether the topic exists.
    authorizer.topic(caller, Operation::Describe, name)?;
    if let Some(topic) = broker.topics.find(name) {
        return Ok(topic);
    }
    let creates = may_create && broker.config.auto_create_topics;
    if creates && !authorizer.shows_cluster(caller, Operation::Create) {
        authorizer.topic(caller, Operation::Create, name)?;
    }
    check_name(name)?;
    if !creates {
        return Err(ErrorCode::UnknownTopicOrPartition.into());
    }
    create(broker.clone(), caller.clone(), name.clone()).await
}

/// Creates a topic on first use. Once begun, the creation continues to its end and into the audit log, even if the
/// client disconnects.
async fn create(broker: Arc<Broker>, caller: Caller, name: Text) -> Result<Arc<Topic>, Failure> {
    let partitions = broker.config.num_partitions;
    // A client over its quota of changes (KIP-599) learns that the topic does not exist yet, and retries.
    if broker.quotas.record_mutations(&caller.payer(), f64::from(partitions), true).is_err() {
        return Err(ErrorCode::UnknownTopicOrPartition.into());
    }
    let work = async move {
        let topic = broker.find_or_create_topic(&name, partitions, &[]).await?;
        audit::changed(&caller.origin, "created topic", &name, "on first use");
        Ok(topic)
    };
    match tokio::spawn(work).await {
        Ok(created) => created,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The operations that the caller may do on the cluster, if it asks for them and may describe the cluster.
fn cluster_operations(broker: &Broker, caller: &Caller, asked: bool) -> i32 {
    match asked {
        false => OPERATIONS_UNKNOWN,
        true if broker.authorizer.cluster(caller, Operation::Describe).is_err() => 0,
        true => broker.authorizer.operations(caller, ResourceType::Cluster, CLUSTER_NAME),
    }
}

fn described(broker: &Broker, topic: &Topic, operations: i32) -> MetadataResponseTopic {
    let (partitions, replicas) = (topic.partitions(), broker.replicas_of(topic));
    MetadataResponseTopic {
        error_code: 0,
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: partitions
            .iter()
            .map(|partition| {
                // Kafka answers so for the only replica if its log directory is offline (KIP-112, KIP-858).
                let lost = partition.is_lost();
                let error = if lost { ErrorCode::LeaderNotAvailable } else { ErrorCode::None };
                let Leader { node, epoch: leader_epoch } = partition.leader();
                let Replicas { all, in_sync, offline } = replicas.of(partition);
                MetadataResponsePartition {
                    error_code: error.code(),
                    partition_index: partition.index,
                    leader_id: if lost { NO_LEADER } else { node },
                    leader_epoch,
                    replica_nodes: all,
                    isr_nodes: in_sync,
                    offline_replicas: offline,
                }
            })
            .collect(),
        topic_authorized_operations: operations,
    }
}

/// Answers DescribeCluster (KIP-700).
pub async fn describe_cluster(request: Request<DescribeClusterRequest>) -> DescribeClusterResponse {
    let Request { broker, caller, body: request, .. } = &request;
    const BROKERS: i8 = 1;
    const CONTROLLERS: i8 = 2;
    if !(BROKERS..=CONTROLLERS).contains(&request.endpoint_type) {
        let why = format!("Unsupported endpoint type {}", request.endpoint_type);
        return DescribeClusterResponse {
            error_code: ErrorCode::UnsupportedEndpointType.code(),
            error_message: Some(why.into()),
            endpoint_type: BROKERS,
            ..DescribeClusterResponse::default()
        };
    }
    if request.endpoint_type != BROKERS {
        return DescribeClusterResponse {
            error_code: ErrorCode::MismatchedEndpointType.code(),
            error_message: Some(Text::from_static(
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
            )),
            endpoint_type: BROKERS,
            ..DescribeClusterResponse::default()
        };
    }
    let node = |Node { id: broker_id, endpoint: Endpoint { host, port }, rack }| DescribeClusterBroker {
        broker_id,
        host,
        port,
        rack,
        is_fenced: false,
    };
    DescribeClusterResponse {
        error_message: None,
        endpoint_type: BROKERS,
        cluster_id: broker.cluster_id.clone(),
        controller_id: broker.placement.controller(),
        brokers: broker.placement.nodes(&caller.origin).into_iter().map(node).collect(),
        cluster_authorized_operations: cluster_operations(
            broker,
            caller,
            request.include_cluster_authorized_operations,
        ),
        ..DescribeClusterResponse::default()
    }
}
