//! Metadata and DescribeCluster: who serves, which topics there are; topics are created on first use where that is on.

use std::collections::HashSet;
use std::sync::Arc;

use uuid::Uuid;
use wire::messages::describe_cluster_response::{DescribeClusterBroker, DescribeClusterResponse};
use wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use wire::messages::{DescribeClusterRequest, MetadataRequest};
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::partition::LEADER_EPOCH;
use crate::topics::{Topic, check_name};

/// "Not asked for", where a client may ask which operations it is allowed (KIP-430).
const OPERATIONS_UNKNOWN: i32 = i32::MIN;
/// In place of a leader where there is none.
pub const NO_LEADER: i32 = -1;
/// Bits of the operations that make sense on a topic: read, write, create, delete, alter, describe, and configs.
pub const TOPIC_OPERATIONS: i32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// Those on a cluster: create, alter, describe, cluster action, configs, idempotent write.
const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// Answers Metadata.
pub async fn answer(
    broker: Arc<Broker>,
    caller: Caller,
    request: MetadataRequest,
    version: i16,
) -> MetadataResponse {
    let operations =
        if request.include_topic_authorized_operations { TOPIC_OPERATIONS } else { OPERATIONS_UNKNOWN };
    let describe = |topic: &Topic| described(&broker, topic, operations);
    let topics = match &request.topics {
        None => broker.topics.all().iter().map(|topic| describe(topic)).collect(),
        // Version 0 had no null: an empty list asks for all.
        Some(asked) if asked.is_empty() && version == 0 => {
            broker.topics.all().iter().map(|topic| describe(topic)).collect()
        }
        Some(asked) => {
            let mut found = Vec::new();
            // A topic that is named many times is described once, as in Kafka: the answer stays in proportion.
            let mut named = HashSet::new();
            for topic in asked.iter().filter(|topic| named.insert((&topic.name, topic.topic_id))) {
                let may_create = request.allow_auto_topic_creation || version < 4;
                found.push(match find(&broker, topic.name.as_ref(), topic.topic_id, may_create).await {
                    Ok(topic) => describe(&topic),
                    Err(failure) => MetadataResponseTopic {
                        error_code: failure.code.code(),
                        name: topic.name.clone().or((version < 12).then(Text::default)),
                        topic_id: topic.topic_id,
                        topic_authorized_operations: OPERATIONS_UNKNOWN,
                        ..MetadataResponseTopic::default()
                    },
                });
            }
            found
        }
    };
    let endpoint = caller.origin.endpoint();
    let cluster = request.include_cluster_authorized_operations;
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: broker.config.node_id,
            host: endpoint.host,
            port: endpoint.port,
            rack: None,
        }],
        cluster_id: Some(broker.cluster_id.clone()),
        controller_id: broker.config.node_id,
        topics,
        cluster_authorized_operations: if cluster { CLUSTER_OPERATIONS } else { OPERATIONS_UNKNOWN },
        ..MetadataResponse::default()
    }
}

async fn find(
    broker: &Arc<Broker>,
    name: Option<&Text>,
    id: Uuid,
    may_create: bool,
) -> Result<Arc<Topic>, Failure> {
    if !id.is_nil() {
        return broker.topics.find_id(&id).ok_or(ErrorCode::UnknownTopicId.into());
    }
    let name = name.ok_or(ErrorCode::InvalidRequest)?;
    if let Some(topic) = broker.topics.find(name) {
        return Ok(topic);
    }
    check_name(name)?;
    if !may_create || !broker.config.auto_create_topics {
        return Err(ErrorCode::UnknownTopicOrPartition.into());
    }
    broker.find_or_create_topic(name, broker.config.num_partitions, &[]).await
}

fn described(broker: &Broker, topic: &Topic, operations: i32) -> MetadataResponseTopic {
    let node = broker.config.node_id;
    let partitions = topic.partitions();
    MetadataResponseTopic {
        error_code: 0,
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: partitions
            .iter()
            .map(|partition| {
                // As Kafka shows the only replica when its log directory is offline (KIP-112, KIP-858).
                let lost = partition.home().is_err();
                let error = if lost { ErrorCode::LeaderNotAvailable } else { ErrorCode::None };
                MetadataResponsePartition {
                    error_code: error.code(),
                    partition_index: partition.index,
                    leader_id: if lost { NO_LEADER } else { node },
                    leader_epoch: LEADER_EPOCH,
                    replica_nodes: vec![node],
                    isr_nodes: vec![node],
                    offline_replicas: if lost { vec![node] } else { Vec::new() },
                }
            })
            .collect(),
        topic_authorized_operations: operations,
    }
}

/// Answers DescribeCluster (KIP-700).
pub fn describe_cluster(
    broker: &Broker,
    caller: &Caller,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    const BROKERS: i8 = 1;
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
    let operations = request.include_cluster_authorized_operations;
    let endpoint = caller.origin.endpoint();
    DescribeClusterResponse {
        error_message: None,
        endpoint_type: BROKERS,
        cluster_id: broker.cluster_id.clone(),
        controller_id: broker.config.node_id,
        brokers: vec![DescribeClusterBroker {
            broker_id: broker.config.node_id,
            host: endpoint.host,
            port: endpoint.port,
            rack: None,
            is_fenced: false,
        }],
        cluster_authorized_operations: if operations { CLUSTER_OPERATIONS } else { OPERATIONS_UNKNOWN },
        ..DescribeClusterResponse::default()
    }
}
