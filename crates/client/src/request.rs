//! The table of requests: the response to each, and the versions whose fields the callers know.

use std::ops::RangeInclusive;

use wire::{ApiKey, Message, messages};

/// A request, its response, and the versions that the client speaks.
pub trait Request: Message {
    /// The response.
    type Answer: Message;
    /// The API.
    const API: ApiKey;
    /// The versions of the client. [`crate::Session::version`] picks the highest one that the server has too.
    const OURS: RangeInclusive<i16>;
}

macro_rules! requests {
    ($($api:ident $request:ident $answer:ident $ours:expr;)*) => {
        $(impl Request for messages::$request {
            type Answer = messages::$answer;
            const API: ApiKey = ApiKey::$api;
            const OURS: RangeInclusive<i16> = $ours;
        })*

        /// Each row: the name of the request, the client's versions, `wire`'s versions of the request and the response.
        #[cfg(test)]
        fn rows() -> Vec<(&'static str, RangeInclusive<i16>, [RangeInclusive<i16>; 2])> {
            vec![$((
                messages::$request::NAME,
                <messages::$request as Request>::OURS,
                [messages::$request::VERSIONS, messages::$answer::VERSIONS],
            )),*]
        }
    };
}

// An upper bound below Kafka's newest version: the next version names topics by id. A lower bound above Kafka's oldest version:
// older versions lack a field that the callers need. The fields of FindCoordinator and DeleteTopics depend on the version, and
// `by_version` fills them.
requests! {
    Metadata MetadataRequest MetadataResponse 4..=12;
    CreateTopics CreateTopicsRequest CreateTopicsResponse 4..=7;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse 1..=6;
    CreatePartitions CreatePartitionsRequest CreatePartitionsResponse 0..=3;
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse 1..=4;
    IncrementalAlterConfigs IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse 0..=1;
    ListOffsets ListOffsetsRequest ListOffsetsResponse 1..=8;
    InitProducerId InitProducerIdRequest InitProducerIdResponse 0..=5;
    Produce ProduceRequest ProduceResponse 3..=12;
    Fetch FetchRequest FetchResponse 4..=12;
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse 0..=6;
    ListGroups ListGroupsRequest ListGroupsResponse 0..=5;
    ConsumerGroupDescribe ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse 0..=1;
    DescribeGroups DescribeGroupsRequest DescribeGroupsResponse 0..=5;
    DeleteGroups DeleteGroupsRequest DeleteGroupsResponse 0..=2;
    OffsetFetch OffsetFetchRequest OffsetFetchResponse 8..=9;
    OffsetCommit OffsetCommitRequest OffsetCommitResponse 2..=9;
    JoinGroup JoinGroupRequest JoinGroupResponse 2..=9;
    SyncGroup SyncGroupRequest SyncGroupResponse 0..=5;
    Heartbeat HeartbeatRequest HeartbeatResponse 0..=4;
    LeaveGroup LeaveGroupRequest LeaveGroupResponse 3..=5;
    SaslHandshake SaslHandshakeRequest SaslHandshakeResponse 1..=1;
    SaslAuthenticate SaslAuthenticateRequest SaslAuthenticateResponse 0..=2;
    DescribeUserScramCredentials DescribeUserScramCredentialsRequest DescribeUserScramCredentialsResponse 0..=0;
    AlterUserScramCredentials AlterUserScramCredentialsRequest AlterUserScramCredentialsResponse 0..=0;
    DescribeAcls DescribeAclsRequest DescribeAclsResponse 1..=3;
    CreateAcls CreateAclsRequest CreateAclsResponse 1..=3;
    DeleteAcls DeleteAclsRequest DeleteAclsResponse 1..=3;
    DescribeClientQuotas DescribeClientQuotasRequest DescribeClientQuotasResponse 0..=1;
    AlterClientQuotas AlterClientQuotasRequest AlterClientQuotasResponse 0..=1;
    ListTransactions ListTransactionsRequest ListTransactionsResponse 0..=2;
    DescribeTransactions DescribeTransactionsRequest DescribeTransactionsResponse 0..=0;
    DescribeProducers DescribeProducersRequest DescribeProducersResponse 0..=0;
    WriteTxnMarkers WriteTxnMarkersRequest WriteTxnMarkersResponse 1..=1;
    DescribeLogDirs DescribeLogDirsRequest DescribeLogDirsResponse 1..=5;
    DeleteRecords DeleteRecordsRequest DeleteRecordsResponse 0..=2;
    AlterPartitionReassignments AlterPartitionReassignmentsRequest AlterPartitionReassignmentsResponse 0..=1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_versions_are_ones_that_the_wire_has() {
        let rows = rows();
        assert_eq!(rows.len(), 37);
        for (name, ours, wires) in rows {
            for versions in wires {
                assert!(versions.contains(ours.start()) && versions.contains(ours.end()), "{name} {ours:?}");
            }
        }
    }
}
