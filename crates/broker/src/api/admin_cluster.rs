//! DescribeQuorum, UpdateFeatures, UnregisterBroker: requests of tools to the controllers of a cluster.
//!
//! The metadata store takes the place of Kafka's quorum. Each broker answers as the controller would, from its own image.
//! A server without a cluster answers as its own quorum.

use wire::messages::describe_quorum_request::{PartitionData as AskedPartition, TopicData as AskedTopic};
use wire::messages::describe_quorum_response::{
    DescribeQuorumResponse, Listener, Node, PartitionData, ReplicaState, TopicData,
};
use wire::messages::update_features_response::{UpdatableFeatureResult, UpdateFeaturesResponse};
use wire::messages::{
    DescribeQuorumRequest, UnregisterBrokerRequest, UnregisterBrokerResponse, UpdateFeaturesRequest,
};
use wire::{ErrorCode, Text};

use super::api_versions::FEATURES;
use crate::cluster::admin::unregister;
use crate::failure::Failure;
use crate::image::records::{ControllerRecord, broker_id};
use crate::image::{Image, Record};
use crate::request::Request;

/// Kafka's log of the cluster's metadata. Here the metadata store takes its place, with revisions as offsets.
const METADATA_TOPIC: &str = "__cluster_metadata";

/// The controllers of a cluster as Kafka's tools see them.
struct Quorum {
    /// The elected controller.
    leader: i32,
    /// Grows with each election.
    epoch: i32,
    /// The brokers that may be elected, by id.
    voters: Vec<i32>,
    /// The revision of the metadata.
    revision: i64,
}

impl Quorum {
    /// The quorum at one revision of the metadata, as the broker `local` sees it. `None` while no controller is elected.
    fn of(image: &Image, local: i32) -> Option<Quorum> {
        let revision = i64::try_from(image.revision).unwrap_or(i64::MAX);
        // The owners of logs stay while no broker is alive.
        let in_cluster = image.brokers.iter().next().is_some() || image.owners.iter().next().is_some();
        if !in_cluster {
            return Some(Quorum { leader: local, epoch: 0, voters: vec![local], revision });
        }
        let mut voters: Vec<i32> =
            image.brokers.iter().filter_map(|(name, _)| broker_id(name).ok()).collect();
        voters.sort_unstable();
        // Tools look for the leader among the voters.
        let leader = image.controller.get("").map(|controller| controller.broker);
        let leader = leader.filter(|leader| voters.contains(leader))?;
        let elected = image.revision_of(&ControllerRecord::key(""))?;
        Some(Quorum { leader, epoch: epoch_of(elected), voters, revision })
    }

    /// The state of the log of metadata. Every voter reads the same store, so none lags behind.
    fn partition(&self, now_ms: i64) -> PartitionData {
        let voter = |id: &i32| ReplicaState {
            replica_id: *id,
            log_end_offset: self.revision,
            last_fetch_timestamp: now_ms,
            last_caught_up_timestamp: now_ms,
            ..ReplicaState::default()
        };
        PartitionData {
            error_message: Some(Text::EMPTY),
            leader_id: self.leader,
            leader_epoch: self.epoch,
            high_watermark: self.revision,
            current_voters: self.voters.iter().map(voter).collect(),
            ..PartitionData::default()
        }
    }
}

/// The leader epoch of a controller that was elected at this revision: its low 31 bits.
fn epoch_of(revision: u64) -> i32 {
    i32::try_from(revision & u64::from(i32::MAX.unsigned_abs())).unwrap_or(i32::MAX)
}

/// Answers DescribeQuorum.
pub async fn describe_quorum(request: Request<DescribeQuorumRequest>) -> DescribeQuorumResponse {
    let Request { broker, caller, body: request, .. } = &request;
    let now_ms = broker.now_ms();
    let quorum = Quorum::of(&broker.metadata.image(), broker.placement.local());
    let partition = |topic: &Text, asked: &AskedPartition| {
        let partition_index = asked.partition_index;
        let known = topic.as_str() == METADATA_TOPIC && partition_index == 0;
        let error = match &quorum {
            Some(quorum) if known => return PartitionData { partition_index, ..quorum.partition(now_ms) },
            // As Kafka's controllers answer that are not the leader.
            None if known => ErrorCode::NotLeaderOrFollower,
            _ => ErrorCode::UnknownTopicOrPartition,
        };
        PartitionData {
            partition_index,
            error_code: error.code(),
            error_message: Some(Text::from_static(error.message())),
            ..PartitionData::default()
        }
    };
    let topic = |asked: &AskedTopic| TopicData {
        topic_name: asked.topic_name.clone(),
        partitions: asked.partitions.iter().map(|of| partition(&asked.topic_name, of)).collect(),
    };
    let topics: Vec<TopicData> = request.topics.iter().map(topic).collect();
    let found = topics.iter().flat_map(|topic| &topic.partitions).any(|partition| partition.error_code == 0);
    let node = |id: &i32| {
        let endpoint = broker.placement.node(*id, &caller.origin)?.endpoint;
        let listener = Listener {
            name: Text::copied(&caller.origin.listener.name),
            host: endpoint.host,
            port: u16::try_from(endpoint.port).unwrap_or(0),
        };
        Some(Node { node_id: *id, listeners: vec![listener] })
    };
    let voters = quorum.iter().filter(|_| found).flat_map(|quorum| &quorum.voters);
    DescribeQuorumResponse {
        error_message: Some(Text::default()),
        topics,
        nodes: voters.filter_map(node).collect(),
        ..DescribeQuorumResponse::default()
    }
}

/// Answers UpdateFeatures (KIP-584, KIP-1022): all updates apply or none. The program fixes the levels. A request for
/// the current level changes nothing, and other levels are refused.
pub async fn update_features(request: Request<UpdateFeaturesRequest>) -> UpdateFeaturesResponse {
    let version = request.version;
    let Request { broker, body: request, .. } = &request;
    let node_id = broker.placement.controller();
    let problem = |feature: &str, level: i16, downgrades: bool| {
        match FEATURES.iter().find(|(name, _)| *name == feature) {
        _ if level < 0 => Some("A feature version cannot be less than 0.".to_owned()),
        None => Some(format!("Local controller {node_id} does not support this feature.")),
        Some((_, has)) if *has == level => None,
        Some((_, has)) if level < *has && !downgrades => Some(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe \
             downgrade."
                .to_owned(),
        ),
        Some((_, has)) if level < *has => {
            Some(format!("Local controller {node_id} has it at version {has}, and cannot go back."))
        }
        Some((_, has)) => Some(format!("Local controller {node_id} only supports versions 0-{has}")),
    }
    };
    let mut response = UpdateFeaturesResponse { error_message: None, ..UpdateFeaturesResponse::default() };
    for update in &request.feature_updates {
        let (feature, level) = (&update.feature, update.max_version_level);
        // `upgrade_type`, from version 1: an upgrade, a downgrade without loss, or a downgrade that may lose data.
        let (known, downgrades) = match version {
            0 => (true, update.allow_downgrade),
            _ => ((1..=3).contains(&update.upgrade_type), update.upgrade_type > 1),
        };
        let unknown = || "The controller does not support the given upgrade type.".to_owned();
        let problem = if known { problem(feature, level, downgrades) } else { Some(unknown()) };
        if let Some(problem) = problem {
            let why = format!(
                "The update failed for all features since the following feature had an error: Invalid update version \
                 {level} for feature {feature}. {problem}"
            );
            response.error_code = ErrorCode::InvalidUpdateVersion.code();
            response.error_message = Some(why.into());
            return response;
        }
    }
    if version < 2 {
        let done = |feature: &Text| UpdatableFeatureResult {
            feature: feature.clone(),
            // Kafka spells it so.
            error_message: Some(Text::from_static("NONE")),
            ..UpdatableFeatureResult::default()
        };
        response.results = request.feature_updates.iter().map(|update| done(&update.feature)).collect();
    }
    response
}

/// Answers UnregisterBroker. A broker that is alive has to be stopped first; the only broker cannot be unregistered.
pub async fn unregister_broker(
    Request { ref broker, body: request, .. }: Request<UnregisterBrokerRequest>,
) -> UnregisterBrokerResponse {
    let id = request.broker_id;
    let alone = id == broker.placement.local() && broker.metadata.image().brokers.iter().next().is_none();
    let done = match alone {
        true => {
            let why = "The only broker of a cluster cannot be unregistered.".to_owned();
            Err(Failure::because(ErrorCode::InvalidRequest, why))
        }
        false => {
            let done = broker.blocking(move |broker| unregister(&broker.metadata, id)).await;
            done.map_err(Failure::from)
        }
    };
    let (code, message) = match done {
        Ok(()) => (ErrorCode::None, None),
        Err(failure) => (failure.code, failure.message),
    };
    UnregisterBrokerResponse {
        error_code: code.code(),
        error_message: message,
        ..UnregisterBrokerResponse::default()
    }
}
