//! One file per API or family of APIs: what it means, and which versions of it are promised.

pub mod acls;
pub mod admin_cluster;
pub mod admin_configs;
pub mod admin_groups;
pub mod admin_replicas;
pub mod admin_topics;
pub mod alter_configs;
pub mod api_versions;
pub mod client_quotas;
pub mod client_telemetry;
pub mod cluster_requests;
pub mod consumer_groups;
pub mod delete_records;
pub mod fetch;
pub mod group_membership;
pub mod init_producer_id;
pub mod list_offsets;
pub mod metadata;
pub mod offsets;
pub mod produce;
pub mod produce_records;
pub mod produce_transactions;
pub mod reads;
pub mod sasl;
pub mod transaction_markers;
pub mod transactions;
pub mod user_credentials;

use std::ops::RangeInclusive;

use wire::ApiKey;

/// The versions of an API that work whole; `None` for an API that is not served.
///
/// Produce is advertised from 0 on, since librdkafka takes its absence for an old broker (KAFKA-18659), but 0 to 2 are
/// refused ([`is_served`]).
pub fn advertised(api_key: ApiKey) -> Option<RangeInclusive<i16>> {
    let schema = api_key.valid_versions();
    Some(match api_key {
        ApiKey::Produce => 0..=*schema.end(),
        // The unstable last version belongs to two-phase commit, and version 6 to share groups.
        ApiKey::InitProducerId => 0..=5,
        ApiKey::FindCoordinator => 0..=5,
        ApiKey::Fetch
        | ApiKey::ListOffsets
        | ApiKey::Metadata
        | ApiKey::OffsetCommit
        | ApiKey::OffsetFetch
        | ApiKey::JoinGroup
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::SyncGroup
        | ApiKey::DescribeGroups
        | ApiKey::ListGroups
        | ApiKey::ApiVersions
        | ApiKey::CreateTopics
        | ApiKey::DeleteTopics
        | ApiKey::DeleteRecords
        | ApiKey::OffsetForLeaderEpoch
        | ApiKey::DescribeConfigs
        | ApiKey::IncrementalAlterConfigs
        | ApiKey::CreatePartitions
        | ApiKey::DeleteGroups
        | ApiKey::DescribeCluster
        | ApiKey::DescribeQuorum
        | ApiKey::UpdateFeatures
        | ApiKey::UnregisterBroker
        | ApiKey::ConsumerGroupHeartbeat
        | ApiKey::ConsumerGroupDescribe
        | ApiKey::OffsetDelete
        | ApiKey::AlterConfigs
        | ApiKey::ListConfigResources
        | ApiKey::DescribeAcls
        | ApiKey::CreateAcls
        | ApiKey::DeleteAcls
        | ApiKey::AlterReplicaLogDirs
        | ApiKey::DescribeLogDirs
        | ApiKey::ElectLeaders
        | ApiKey::AlterPartitionReassignments
        | ApiKey::ListPartitionReassignments
        | ApiKey::DescribeTopicPartitions
        | ApiKey::GetTelemetrySubscriptions
        | ApiKey::PushTelemetry
        | ApiKey::DescribeClientQuotas
        | ApiKey::AlterClientQuotas
        | ApiKey::SaslHandshake
        | ApiKey::SaslAuthenticate
        | ApiKey::DescribeUserScramCredentials
        | ApiKey::AlterUserScramCredentials
        | ApiKey::AddPartitionsToTxn
        | ApiKey::AddOffsetsToTxn
        | ApiKey::EndTxn
        | ApiKey::TxnOffsetCommit
        | ApiKey::WriteTxnMarkers
        | ApiKey::DescribeProducers
        | ApiKey::DescribeTransactions
        | ApiKey::ListTransactions => schema,
        _ => return None,
    })
}

/// Whether a request of this version is answered.
pub fn is_served(api_key: ApiKey, version: i16) -> bool {
    advertised(api_key).is_some_and(|versions| versions.contains(&version))
        && api_key.valid_versions().contains(&version)
}
