//! APIs of features that are off here: share groups, groups of the streams protocol, delegation tokens, changes of the quorum.
//!
//! Kafka names these APIs also where the feature is off, and refuses each request. Tools read the version of a server from the APIs
//! that it names (franz-go's `kversion`).

use wire::messages as m;
use wire::{ErrorCode, Text};

use crate::caller::Principal;
use crate::request::Request;
use crate::request::cluster_requests::ClusterRequest;

/// The first version of CreateDelegationToken that tells who asked (KIP-373).
const REQUESTER_FROM_VERSION: i16 = 3;
const OFF: i16 = ErrorCode::UnsupportedVersion.code();

fn message() -> Option<Text> {
    Some(Text::from_static(ErrorCode::UnsupportedVersion.message()))
}

/// Refuses a request that was allowed.
pub async fn refuse<Q: ClusterRequest>(request: Request<Q>) -> Q::Answer {
    request.body.refused(ErrorCode::UnsupportedVersion)
}

/// Answers whose error is at the top.
macro_rules! refused_at_the_top {
    ($($name:ident $request:ident $answer:ident;)*) => {
        $(
            /// Refuses the request.
            pub async fn $name(_: Request<m::$request>) -> m::$answer {
                m::$answer { error_code: OFF, error_message: message(), ..m::$answer::default() }
            }
        )*
    };
}

refused_at_the_top! {
    share_group_heartbeat ShareGroupHeartbeatRequest ShareGroupHeartbeatResponse;
    share_fetch ShareFetchRequest ShareFetchResponse;
    share_acknowledge ShareAcknowledgeRequest ShareAcknowledgeResponse;
    streams_group_heartbeat StreamsGroupHeartbeatRequest StreamsGroupHeartbeatResponse;
    alter_share_group_offsets AlterShareGroupOffsetsRequest AlterShareGroupOffsetsResponse;
    delete_share_group_offsets DeleteShareGroupOffsetsRequest DeleteShareGroupOffsetsResponse;
}

/// Answers whose error is in each group.
macro_rules! refused_by_group {
    ($($name:ident $request:ident $ids:ident $answer:ident $module:ident;)*) => {
        $(
            /// Refuses each group.
            pub async fn $name(request: Request<m::$request>) -> m::$answer {
                let group = |group_id: &Text| m::$module::DescribedGroup {
                    group_id: group_id.clone(),
                    error_code: OFF,
                    error_message: message(),
                    ..m::$module::DescribedGroup::default()
                };
                let groups = request.body.$ids.iter().map(group).collect();
                m::$answer { groups, ..m::$answer::default() }
            }
        )*
    };
}

refused_by_group! {
    share_group_describe ShareGroupDescribeRequest group_ids ShareGroupDescribeResponse share_group_describe_response;
    streams_group_describe StreamsGroupDescribeRequest group_ids StreamsGroupDescribeResponse streams_group_describe_response;
}

/// Refuses each group.
pub async fn describe_share_group_offsets(
    request: Request<m::DescribeShareGroupOffsetsRequest>,
) -> m::DescribeShareGroupOffsetsResponse {
    use m::describe_share_group_offsets_response::DescribeShareGroupOffsetsResponseGroup as Group;
    let group =
        |asked: &m::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup| Group {
            group_id: asked.group_id.clone(),
            error_code: OFF,
            error_message: message(),
            ..Group::default()
        };
    let groups = request.body.groups.iter().map(group).collect();
    m::DescribeShareGroupOffsetsResponse { groups, ..m::DescribeShareGroupOffsetsResponse::default() }
}

/// Requests of brokers to the coordinator of share groups: the answers have an error for each partition.
macro_rules! share_state {
    ($($request:ident $answer:ident $module:ident $result:ident;)*) => {
        $(impl ClusterRequest for m::$request {
            type Answer = m::$answer;

            #[allow(clippy::needless_update, reason = "some results have more fields")]
            fn refused(&self, error: ErrorCode) -> m::$answer {
                let partition = |partition: i32| m::$module::PartitionResult {
                    partition,
                    error_code: error.code(),
                    error_message: Some(Text::from_static(error.message())),
                    ..m::$module::PartitionResult::default()
                };
                let results = self.topics.iter().map(|topic| m::$module::$result {
                    topic_id: topic.topic_id,
                    partitions: topic.partitions.iter().map(|asked| partition(asked.partition)).collect(),
                });
                m::$answer { results: results.collect() }
            }
        })*
    };
}

share_state! {
    InitializeShareGroupStateRequest InitializeShareGroupStateResponse initialize_share_group_state_response InitializeStateResult;
    ReadShareGroupStateRequest ReadShareGroupStateResponse read_share_group_state_response ReadStateResult;
    WriteShareGroupStateRequest WriteShareGroupStateResponse write_share_group_state_response WriteStateResult;
    DeleteShareGroupStateRequest DeleteShareGroupStateResponse delete_share_group_state_response DeleteStateResult;
    ReadShareGroupStateSummaryRequest ReadShareGroupStateSummaryResponse read_share_group_state_summary_response ReadStateSummaryResult;
}

/// Kafka takes no request about tokens from a client that is not authenticated, and has none without a secret key.
fn without_tokens(principal: &Principal) -> i16 {
    match *principal == Principal::anonymous() {
        true => ErrorCode::DelegationTokenRequestNotAllowed.code(),
        false => ErrorCode::DelegationTokenAuthDisabled.code(),
    }
}

/// Refuses to make a token.
pub async fn create_token(
    Request { caller, version, body: request, .. }: Request<m::CreateDelegationTokenRequest>,
) -> m::CreateDelegationTokenResponse {
    let requester = &caller.origin.principal;
    let owner = match (request.owner_principal_type, request.owner_principal_name) {
        (Some(kind), Some(name)) if !name.is_empty() => Principal { kind, name },
        _ => requester.clone(),
    };
    let nobody = Principal { kind: Text::EMPTY, name: Text::EMPTY };
    let told = if version >= REQUESTER_FROM_VERSION { requester.clone() } else { nobody };
    m::CreateDelegationTokenResponse {
        error_code: without_tokens(requester),
        principal_type: owner.kind,
        principal_name: owner.name,
        token_requester_principal_type: told.kind,
        token_requester_principal_name: told.name,
        issue_timestamp_ms: -1,
        expiry_timestamp_ms: -1,
        max_timestamp_ms: -1,
        ..m::CreateDelegationTokenResponse::default()
    }
}

/// Refuses to renew a token.
pub async fn renew_token(
    request: Request<m::RenewDelegationTokenRequest>,
) -> m::RenewDelegationTokenResponse {
    m::RenewDelegationTokenResponse {
        error_code: without_tokens(&request.caller.origin.principal),
        expiry_timestamp_ms: -1,
        ..m::RenewDelegationTokenResponse::default()
    }
}

/// Refuses to end a token.
pub async fn expire_token(
    request: Request<m::ExpireDelegationTokenRequest>,
) -> m::ExpireDelegationTokenResponse {
    m::ExpireDelegationTokenResponse {
        error_code: without_tokens(&request.caller.origin.principal),
        expiry_timestamp_ms: -1,
        ..m::ExpireDelegationTokenResponse::default()
    }
}

/// Refuses to show tokens.
pub async fn describe_tokens(
    request: Request<m::DescribeDelegationTokenRequest>,
) -> m::DescribeDelegationTokenResponse {
    m::DescribeDelegationTokenResponse {
        error_code: without_tokens(&request.caller.origin.principal),
        ..m::DescribeDelegationTokenResponse::default()
    }
}
