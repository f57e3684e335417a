//! Requests that need one right to the cluster as a whole, and the answers that refuse them. The table of APIs names
//! the right.

use std::collections::BTreeSet;

use wire::messages as m;
use wire::{ErrorCode, Message, Text};

/// A request that is allowed or refused as a whole.
pub trait ClusterRequest: Send {
    /// Its answer.
    type Answer: Message + Send + Sync + 'static;

    /// The answer that refuses the request, in Kafka's form.
    fn refused(&self, error: ErrorCode) -> Self::Answer;
}

fn message(error: ErrorCode) -> Option<Text> {
    Some(Text::from_static(error.message()))
}

/// Requests whose answers have a top-level error code, with or without a message.
macro_rules! refused_at_the_top {
    ($($request:ident $answer:ident { $($field:ident: $value:expr),* }),+ $(,)?) => {
        $(impl ClusterRequest for m::$request {
            type Answer = m::$answer;

            fn refused(&self, error: ErrorCode) -> m::$answer {
                m::$answer { error_code: error.code(), $($field: ($value)(error),)* ..m::$answer::default() }
            }
        })+
    };
}

refused_at_the_top! {
    DescribeAclsRequest DescribeAclsResponse { error_message: message },
    DescribeUserScramCredentialsRequest DescribeUserScramCredentialsResponse { error_message: message },
    DescribeQuorumRequest DescribeQuorumResponse { error_message: message },
    UpdateFeaturesRequest UpdateFeaturesResponse { error_message: message },
    UnregisterBrokerRequest UnregisterBrokerResponse { error_message: message },
    ListPartitionReassignmentsRequest ListPartitionReassignmentsResponse { error_message: message },
    DescribeClientQuotasRequest DescribeClientQuotasResponse {
        error_message: |_| None, entries: |_| None
    },
    DescribeLogDirsRequest DescribeLogDirsResponse {},
    CopyBlocksRequest CopyBlocksResponse { error_message: message },
    FenceCopiesRequest FenceCopiesResponse { error_message: message },
    ReadCopiesRequest ReadCopiesResponse { error_message: message },
    LocateRecordsRequest LocateRecordsResponse { error_message: message },
    ListConfigResourcesRequest ListConfigResourcesResponse {},
    AddRaftVoterRequest AddRaftVoterResponse { error_message: message },
    RemoveRaftVoterRequest RemoveRaftVoterResponse { error_message: message },
}

impl ClusterRequest for m::CreateAclsRequest {
    type Answer = m::CreateAclsResponse;

    fn refused(&self, error: ErrorCode) -> m::CreateAclsResponse {
        let result = |_: &_| m::create_acls_response::AclCreationResult {
            error_code: error.code(),
            error_message: message(error),
        };
        let results = self.creations.iter().map(result).collect();
        m::CreateAclsResponse { results, ..m::CreateAclsResponse::default() }
    }
}

impl ClusterRequest for m::DeleteAclsRequest {
    type Answer = m::DeleteAclsResponse;

    fn refused(&self, error: ErrorCode) -> m::DeleteAclsResponse {
        let result = |_: &_| m::delete_acls_response::DeleteAclsFilterResult {
            error_code: error.code(),
            error_message: message(error),
            matching_acls: Vec::new(),
        };
        let filter_results = self.filters.iter().map(result).collect();
        m::DeleteAclsResponse { filter_results, ..m::DeleteAclsResponse::default() }
    }
}

impl ClusterRequest for m::AlterClientQuotasRequest {
    type Answer = m::AlterClientQuotasResponse;

    fn refused(&self, error: ErrorCode) -> m::AlterClientQuotasResponse {
        use m::alter_client_quotas_request::EntryData as Asked;
        use m::alter_client_quotas_response::{EntityData, EntryData};
        let entry = |entry: &Asked| EntryData {
            error_code: error.code(),
            error_message: message(error),
            entity: entry
                .entity
                .iter()
                .map(|of| EntityData {
                    entity_type: of.entity_type.clone(),
                    entity_name: of.entity_name.clone(),
                })
                .collect(),
        };
        let entries = self.entries.iter().map(entry).collect();
        m::AlterClientQuotasResponse { entries, ..m::AlterClientQuotasResponse::default() }
    }
}

impl ClusterRequest for m::AlterUserScramCredentialsRequest {
    type Answer = m::AlterUserScramCredentialsResponse;

    fn refused(&self, error: ErrorCode) -> m::AlterUserScramCredentialsResponse {
        use m::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
        let deleted = self.deletions.iter().map(|of| &of.name);
        let users: BTreeSet<&Text> = deleted.chain(self.upsertions.iter().map(|of| &of.name)).collect();
        let result = |user: &Text| AlterUserScramCredentialsResult {
            user: user.clone(),
            error_code: error.code(),
            error_message: message(error),
        };
        let results = users.into_iter().map(result).collect();
        m::AlterUserScramCredentialsResponse { results, ..m::AlterUserScramCredentialsResponse::default() }
    }
}

impl ClusterRequest for m::ElectLeadersRequest {
    type Answer = m::ElectLeadersResponse;

    fn refused(&self, error: ErrorCode) -> m::ElectLeadersResponse {
        use m::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
        let partition = |index: &i32| PartitionResult {
            partition_id: *index,
            error_code: error.code(),
            error_message: message(error),
        };
        let asked = self.topic_partitions.as_deref().unwrap_or_default().iter();
        let results = asked.map(|topic| ReplicaElectionResult {
            topic: topic.topic.clone(),
            partition_result: topic.partitions.iter().map(partition).collect(),
        });
        m::ElectLeadersResponse {
            error_code: error.code(),
            replica_election_results: results.collect(),
            ..m::ElectLeadersResponse::default()
        }
    }
}

impl ClusterRequest for m::AlterPartitionReassignmentsRequest {
    type Answer = m::AlterPartitionReassignmentsResponse;

    fn refused(&self, error: ErrorCode) -> m::AlterPartitionReassignmentsResponse {
        use m::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
        use m::alter_partition_reassignments_response as answer;
        let partition = |asked: &ReassignablePartition| answer::ReassignablePartitionResponse {
            partition_index: asked.partition_index,
            error_code: error.code(),
            error_message: message(error),
        };
        let topic = |asked: &ReassignableTopic| answer::ReassignableTopicResponse {
            name: asked.name.clone(),
            partitions: asked.partitions.iter().map(partition).collect(),
        };
        m::AlterPartitionReassignmentsResponse {
            error_code: error.code(),
            error_message: message(error),
            responses: self.topics.iter().map(topic).collect(),
            ..m::AlterPartitionReassignmentsResponse::default()
        }
    }
}

impl ClusterRequest for m::AlterReplicaLogDirsRequest {
    type Answer = m::AlterReplicaLogDirsResponse;

    fn refused(&self, error: ErrorCode) -> m::AlterReplicaLogDirsResponse {
        use m::alter_replica_log_dirs_response as answer;
        let partition = |index: &i32| answer::AlterReplicaLogDirPartitionResult {
            partition_index: *index,
            error_code: error.code(),
        };
        let topics = self.dirs.iter().flat_map(|dir| &dir.topics);
        let results = topics.map(|topic| answer::AlterReplicaLogDirTopicResult {
            topic_name: topic.name.clone(),
            partitions: topic.partitions.iter().map(partition).collect(),
        });
        m::AlterReplicaLogDirsResponse {
            results: results.collect(),
            ..m::AlterReplicaLogDirsResponse::default()
        }
    }
}
