//! JoinGroup, SyncGroup, Heartbeat, LeaveGroup: membership in a classic consumer group.

use wire::messages::join_group_response::{JoinGroupResponse, JoinGroupResponseMember};
use wire::messages::leave_group_response::{LeaveGroupResponse, MemberResponse};
use wire::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest,
    SyncGroupResponse,
};
use wire::{ErrorCode, Text};

use super::offsets::ready;
use crate::coordinator::{Asking, Unserved};
use crate::groups::{GroupError, JoinReply, JoinRequest, LeaveMember, Protocol, SyncRequest};
use crate::request::Request;
use crate::request::error_codes::{group_code, unserved_code};
use crate::security::Operation;

/// The first version of SyncGroup that must name the protocol (KIP-559).
const SYNC_PROTOCOL_FROM_VERSION: i16 = 5;
/// Bound of the protocols that a member may offer.
const PROTOCOLS_MAX: usize = 1000;

fn owned(text: &Option<Text>) -> Option<String> {
    text.as_ref().map(ToString::to_string)
}

fn refused_join(error: ErrorCode, member_id: Text, version: i16) -> JoinGroupResponse {
    JoinGroupResponse {
        error_code: error.code(),
        generation_id: -1,
        member_id,
        protocol_type: None,
        protocol_name: (version < 7).then(Text::default),
        ..JoinGroupResponse::default()
    }
}

/// Answers JoinGroup once the rebalance is complete.
pub async fn join(
    Request { broker, caller, version, body: request, .. }: Request<JoinGroupRequest>,
) -> JoinGroupResponse {
    let refuse = |error: ErrorCode| refused_join(error, request.member_id.clone(), version);
    if let Err(error) = broker.authorizer.group(&caller, Operation::Read, &request.group_id) {
        return refuse(error);
    }
    if request.group_id.is_empty() {
        return refuse(ErrorCode::InvalidGroupId);
    }
    // The protocols are kept for as long as the member stays. Real clients offer a handful.
    if request.protocols.len() > PROTOCOLS_MAX {
        return refuse(ErrorCode::InconsistentGroupProtocol);
    }
    if let Err(error) = ready(&broker, &request.group_id).await {
        return refuse(error);
    }
    if let Err(error) = broker.coordinator.config().check_session_timeout(request.session_timeout_ms) {
        return refuse(group_code(error));
    }
    let join = JoinRequest {
        version,
        member_id: request.member_id.to_string(),
        instance_id: owned(&request.group_instance_id),
        client_id: caller.client_id.to_string(),
        client_host: caller.host_shown(),
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms: if version == 0 { -1 } else { request.rebalance_timeout_ms },
        protocol_type: request.protocol_type.to_string(),
        protocols: request
            .protocols
            .iter()
            .map(|p| Protocol {
                name: p.name.to_string(),
                metadata: wire::Bytes::copy_from_slice(&p.metadata),
            })
            .collect(),
        uuid: uuid::Uuid::new_v4().to_string(),
    };
    let by = Asking { caller: &caller, authorizer: &broker.authorizer };
    // If the group was removed after it was found, it is looked up once more.
    for _ in 0..2 {
        let found = match join.member_id.is_empty() {
            true => broker.coordinator.find_or_create(&request.group_id).map(Some),
            false => broker.coordinator.find(&request.group_id),
        };
        let entry = match found {
            Ok(Some(entry)) => entry,
            Ok(None) => return refuse(ErrorCode::UnknownMemberId),
            Err(unserved) => return refuse(unserved_code(unserved)),
        };
        let reply = broker.coordinator.join(&entry, join.clone(), by).await;
        match reply {
            Ok(JoinReply { result: Err(GroupError::CoordinatorNotAvailable), .. }) => continue,
            Ok(reply) => return join_response(reply, version),
            Err(_) => break,
        }
    }
    refuse(ErrorCode::CoordinatorNotAvailable)
}

fn join_response(reply: JoinReply, version: i16) -> JoinGroupResponse {
    let member_id = Text::from(reply.member_id);
    let joined = match reply.result {
        Ok(joined) => joined,
        Err(error) => return refused_join(group_code(error), member_id, version),
    };
    let member = |member: crate::groups::JoinedMember| JoinGroupResponseMember {
        member_id: member.member_id.into(),
        group_instance_id: member.instance_id.map(Text::from),
        metadata: member.metadata,
    };
    JoinGroupResponse {
        generation_id: joined.generation,
        protocol_type: Some(joined.protocol_type.into()),
        protocol_name: Some(joined.protocol_name.into()),
        leader: joined.leader.into(),
        skip_assignment: joined.skip_assignment,
        member_id,
        members: joined.members.into_iter().map(member).collect(),
        ..JoinGroupResponse::default()
    }
}

/// Answers SyncGroup once the leader's assignment is durable.
pub async fn sync(
    Request { broker, caller, version, body: request, .. }: Request<SyncGroupRequest>,
) -> SyncGroupResponse {
    let refuse = |error: ErrorCode| SyncGroupResponse {
        error_code: error.code(),
        protocol_type: None,
        protocol_name: None,
        ..SyncGroupResponse::default()
    };
    if let Err(error) = broker.authorizer.group(&caller, Operation::Read, &request.group_id) {
        return refuse(error);
    }
    if version >= SYNC_PROTOCOL_FROM_VERSION
        && (request.protocol_type.is_none() || request.protocol_name.is_none())
    {
        return refuse(ErrorCode::InconsistentGroupProtocol);
    }
    if request.group_id.is_empty() {
        return refuse(ErrorCode::InvalidGroupId);
    }
    let entry = match broker.coordinator.find(&request.group_id) {
        Ok(Some(entry)) => entry,
        Ok(None) => return refuse(ErrorCode::UnknownMemberId),
        Err(unserved) => return refuse(unserved_code(unserved)),
    };
    let sync = SyncRequest {
        member_id: request.member_id.to_string(),
        instance_id: owned(&request.group_instance_id),
        generation: request.generation_id,
        protocol_type: owned(&request.protocol_type),
        protocol_name: owned(&request.protocol_name),
        assignments: request
            .assignments
            .iter()
            .map(|a| (a.member_id.to_string(), wire::Bytes::copy_from_slice(&a.assignment)))
            .collect(),
    };
    match broker.coordinator.sync(&entry, sync).await {
        Ok(Ok(synced)) => SyncGroupResponse {
            protocol_type: Some(synced.protocol_type.into()),
            protocol_name: Some(synced.protocol_name.into()),
            assignment: synced.assignment,
            ..SyncGroupResponse::default()
        },
        Ok(Err(error)) => refuse(group_code(error)),
        Err(_) => refuse(ErrorCode::CoordinatorNotAvailable),
    }
}

/// Answers Heartbeat.
pub async fn heartbeat(request: Request<HeartbeatRequest>) -> HeartbeatResponse {
    let Request { broker, caller, body: request, .. } = &request;
    let error = if let Err(error) = broker.authorizer.group(caller, Operation::Read, &request.group_id) {
        error
    } else if request.group_id.is_empty() {
        ErrorCode::InvalidGroupId
    } else {
        match broker.coordinator.find(&request.group_id) {
            // As in Kafka, the member may go on while the group is being loaded.
            Err(Unserved::Loading) => ErrorCode::None,
            Err(unserved) => unserved_code(unserved),
            Ok(None) => ErrorCode::UnknownMemberId,
            Ok(Some(entry)) => {
                let instance = request.group_instance_id.as_ref().map(Text::as_str);
                let beat =
                    broker.coordinator.heartbeat(&entry, &request.member_id, instance, request.generation_id);
                beat.err().map_or(ErrorCode::None, group_code)
            }
        }
    };
    HeartbeatResponse { error_code: error.code(), ..HeartbeatResponse::default() }
}

/// Answers LeaveGroup. Before version 3 it names one member.
pub async fn leave(request: Request<LeaveGroupRequest>) -> LeaveGroupResponse {
    let version = request.version;
    let Request { broker, caller, body: request, .. } = &request;
    let failed =
        |error: ErrorCode| LeaveGroupResponse { error_code: error.code(), ..LeaveGroupResponse::default() };
    if let Err(error) = broker.authorizer.group(caller, Operation::Read, &request.group_id) {
        return failed(error);
    }
    if request.group_id.is_empty() {
        return failed(ErrorCode::InvalidGroupId);
    }
    let leaving: Vec<LeaveMember> = if version < 3 {
        vec![LeaveMember { member_id: request.member_id.to_string(), instance_id: None }]
    } else {
        let member = |m: &wire::messages::leave_group_request::MemberIdentity| LeaveMember {
            member_id: m.member_id.to_string(),
            instance_id: owned(&m.group_instance_id),
        };
        request.members.iter().map(member).collect()
    };
    let results = match broker.coordinator.find(&request.group_id) {
        Err(unserved) => return failed(unserved_code(unserved)),
        // In a group that does not exist, every member is unknown.
        Ok(None) => Ok(leaving.iter().map(|_| Err(GroupError::UnknownMemberId)).collect()),
        Ok(Some(entry)) => broker.coordinator.leave(&entry, &leaving).await,
    };
    let results = match results {
        Ok(results) => results,
        Err(error) => return failed(group_code(error)),
    };
    if version < 3 {
        let error = results.first().and_then(|result| result.err());
        return failed(error.map_or(ErrorCode::None, group_code));
    }
    let member = |(asked, result): (LeaveMember, Result<(), GroupError>)| MemberResponse {
        member_id: asked.member_id.into(),
        group_instance_id: asked.instance_id.map(Text::from),
        error_code: result.err().map_or(0, |error| group_code(error).code()),
    };
    LeaveGroupResponse {
        members: leaving.into_iter().zip(results).map(member).collect(),
        ..LeaveGroupResponse::default()
    }
}
