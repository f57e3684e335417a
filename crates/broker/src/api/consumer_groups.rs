//! ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

use std::sync::Arc;

use wire::messages::consumer_group_describe_response as described;
use wire::messages::consumer_group_heartbeat_response::Assignment;
use wire::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
};
use wire::{ErrorCode, Text};

use super::admin_groups::operations;
use super::offsets::ready;
use crate::broker::Broker;
use crate::caller::Caller;
use crate::coordinator::{Asking, Unserved};
use crate::groups::consumer::{
    ConsumerGroup, ConsumerMember, HeartbeatReply, HeartbeatRequest, Partitions, Refused, listed,
};
use crate::groups::{Group, GroupError, State};
use crate::request::Request;
use crate::request::error_codes::{group_code, unserved_code};
use crate::security::{Operation, ResourceType};

/// Types of members in ConsumerGroupDescribe.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

/// Answers ConsumerGroupHeartbeat once its changes are durable.
pub async fn heartbeat(
    Request { broker, caller, version, body: request, .. }: Request<ConsumerGroupHeartbeatRequest>,
) -> ConsumerGroupHeartbeatResponse {
    let refused = |error: ErrorCode, message: Option<String>| ConsumerGroupHeartbeatResponse {
        error_code: error.code(),
        error_message: Some(message.map_or_else(|| Text::from_static(error.message()), Text::from)),
        ..ConsumerGroupHeartbeatResponse::default()
    };
    let group_id = request.group_id.to_string();
    if let Err(error) = may_join(&broker, &caller, &request) {
        return ConsumerGroupHeartbeatResponse { error_message: None, ..refused(error, None) };
    }
    if group_id.trim().is_empty() {
        return refused(ErrorCode::InvalidRequest, Some("GroupId can't be empty.".to_owned()));
    }
    if let Err(error) = ready(&broker, &group_id).await {
        return refused(error, None);
    }
    match beat(&broker, caller, &request, version).await {
        Ok(reply) => ConsumerGroupHeartbeatResponse {
            member_id: Some(reply.member_id.into()),
            member_epoch: reply.epoch,
            heartbeat_interval_ms: reply.interval_ms,
            assignment: reply
                .assignment
                .map(|partitions| Assignment { topic_partitions: listed(&partitions) }),
            ..ConsumerGroupHeartbeatResponse::default()
        },
        Err(Refused { error, message }) => refused(group_code(error), Some(message)),
    }
}

/// Checks the rights of a member: it needs to read the group and to describe the topics that it names. A pattern simply
/// does not match topics that the member may not describe.
fn may_join(
    broker: &Broker,
    caller: &Caller,
    request: &ConsumerGroupHeartbeatRequest,
) -> Result<(), ErrorCode> {
    broker.authorizer.group(caller, Operation::Read, &request.group_id)?;
    let mut names = request.subscribed_topic_names.iter().flatten();
    names.try_for_each(|name| broker.authorizer.topic(caller, Operation::Describe, name))
}

fn unserved(unserved: Unserved) -> Refused {
    match unserved {
        Unserved::Loading => GroupError::CoordinatorLoadInProgress.into(),
        Unserved::Elsewhere | Unserved::Unavailable => GroupError::NotCoordinator.into(),
    }
}

async fn beat(
    broker: &Arc<Broker>,
    caller: Caller,
    request: &ConsumerGroupHeartbeatRequest,
    version: i16,
) -> Result<HeartbeatReply, Refused> {
    let owned = |text: &Option<Text>| text.as_ref().map(ToString::to_string);
    let owns = |partitions: &Vec<wire::messages::consumer_group_heartbeat_request::TopicPartitions>| {
        let topic = |of: &wire::messages::consumer_group_heartbeat_request::TopicPartitions| {
            (of.topic_id, of.partitions.iter().copied().collect())
        };
        partitions.iter().map(topic).collect::<Partitions>()
    };
    let times = broker.group_config(&request.group_id);
    let heartbeat = HeartbeatRequest {
        version,
        member_id: request.member_id.to_string(),
        epoch: request.member_epoch,
        instance_id: owned(&request.instance_id),
        rack_id: owned(&request.rack_id),
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        names: request
            .subscribed_topic_names
            .as_ref()
            .map(|names| names.iter().map(ToString::to_string).collect()),
        regex: owned(&request.subscribed_topic_regex),
        assignor: owned(&request.server_assignor),
        owned: request.topic_partitions.as_ref().map(owns),
        client_id: caller.client_id.to_string(),
        client_host: caller.host_shown(),
        uuid: uuid::Uuid::new_v4().to_string(),
        session_timeout_ms: times.session_timeout_ms,
        interval_ms: times.heartbeat_interval_ms,
    };
    heartbeat.validate()?;
    let by = Asking { caller: &caller, authorizer: &broker.authorizer };
    // If the group was removed after it was found, it is looked up once more.
    for _ in 0..2 {
        let found = broker.coordinator.find(&request.group_id).map_err(unserved)?;
        if found.is_none() && heartbeat.epoch != 0 {
            return Err(Refused::no_group(&request.group_id, heartbeat.epoch));
        }
        heartbeat.validate_regex()?;
        let create = || broker.coordinator.find_or_create(&request.group_id).map_err(unserved);
        let entry = found.map_or_else(create, Ok)?;
        match broker.coordinator.consumer_heartbeat(&entry, heartbeat.clone(), by).await {
            Err(Refused { error: GroupError::CoordinatorNotAvailable, .. })
                if entry.with(Group::state) == State::Dead => {}
            reply => return reply,
        }
    }
    Err(GroupError::CoordinatorNotAvailable.into())
}

/// Answers ConsumerGroupDescribe.
pub async fn describe(request: Request<ConsumerGroupDescribeRequest>) -> ConsumerGroupDescribeResponse {
    let version = request.version;
    let Request { broker, caller, body: request, .. } = &request;
    let describe_one = |id: &Text| {
        let refused = |error: ErrorCode, message: Text| described::DescribedGroup {
            error_code: error.code(),
            error_message: Some(message),
            group_id: id.clone(),
            authorized_operations: i32::MIN,
            ..described::DescribedGroup::default()
        };
        if let Err(error) = broker.authorizer.group(caller, Operation::Describe, id) {
            return described::DescribedGroup { error_message: None, ..refused(error, Text::default()) };
        }
        if id.is_empty() {
            let refused = refused(ErrorCode::InvalidGroupId, Text::default());
            return described::DescribedGroup { error_message: None, ..refused };
        }
        let found = match broker.coordinator.find(id) {
            Ok(found) => found,
            Err(unserved) => {
                let error = unserved_code(unserved);
                return refused(error, Text::from_static(error.message()));
            }
        };
        let Some(entry) = found.filter(|entry| entry.with(Group::state) != State::Dead) else {
            return refused(ErrorCode::GroupIdNotFound, format!("Group {id} not found.").into());
        };
        let found = entry.with(|group| group.consumer().map(|group| describe_group(broker, group, version)));
        let Some(mut group) = found else {
            return refused(
                ErrorCode::GroupIdNotFound,
                format!("Group {id} is not a consumer group.").into(),
            );
        };
        // As in Kafka, a group is hidden if the caller may not describe one of its topics.
        let shown =
            |topic: &Text| broker.authorizer.shows(caller, Operation::Describe, ResourceType::Topic, topic);
        if !topics_of(&group).all(shown) {
            return refused(
                ErrorCode::TopicAuthorizationFailed,
                Text::from_static(
                    "The described group uses topics that the client is not authorized to describe.",
                ),
            );
        }
        group.group_id = id.clone();
        group.authorized_operations = operations(broker, caller, id, request.include_authorized_operations);
        group
    };
    // A repeated group is described once, so that the size of the answer stays proportional to the request.
    let mut named = std::collections::HashSet::new();
    let asked = request.group_ids.iter().filter(|id| named.insert(*id));
    ConsumerGroupDescribeResponse {
        groups: asked.map(describe_one).collect(),
        ..ConsumerGroupDescribeResponse::default()
    }
}

/// The topics in a group's description. Some occur several times.
fn topics_of(group: &described::DescribedGroup) -> impl Iterator<Item = &Text> {
    group.members.iter().flat_map(|member| {
        let assignments = [&member.assignment, &member.target_assignment].into_iter();
        let assigned = assignments.flat_map(|of| of.topic_partitions.iter().map(|of| &of.topic_name));
        member.subscribed_topic_names.iter().chain(assigned)
    })
}

fn describe_group(broker: &Broker, group: &ConsumerGroup, version: i16) -> described::DescribedGroup {
    let assignment = |partitions: &Partitions| {
        let topic = |(topic_id, partitions): (&uuid::Uuid, &std::collections::BTreeSet<i32>)| {
            Some(described::TopicPartitions {
                topic_id: *topic_id,
                topic_name: broker.topics.find_id(topic_id)?.name.clone(),
                partitions: partitions.iter().copied().collect(),
            })
        };
        described::Assignment { topic_partitions: partitions.iter().filter_map(topic).collect() }
    };
    let text = |text: &Option<String>| text.clone().map(Text::from);
    let member = |member: &ConsumerMember| {
        let of = &member.subscription;
        described::Member {
            member_id: member.id.clone().into(),
            instance_id: text(&of.instance_id),
            rack_id: text(&of.rack_id),
            member_epoch: member.epoch,
            client_id: of.client_id.clone().into(),
            client_host: of.client_host.clone().into(),
            subscribed_topic_names: of.names.iter().cloned().map(Text::from).collect(),
            subscribed_topic_regex: Some(of.regex.clone().unwrap_or_default().into()),
            assignment: assignment(&member.assigned),
            target_assignment: assignment(&member.target),
            member_type: match version {
                0 => -1,
                _ if member.is_classic() => CLASSIC_MEMBER,
                _ => CONSUMER_MEMBER,
            },
        }
    };
    described::DescribedGroup {
        error_message: None,
        group_state: Text::from_static(group.state().name()),
        group_epoch: group.epoch(),
        assignment_epoch: group.target_epoch(),
        assignor_name: Text::from_static(group.assignor().name()),
        members: group.members().map(member).collect(),
        ..described::DescribedGroup::default()
    }
}
