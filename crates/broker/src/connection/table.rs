//! The table of APIs. Each API has one row, which holds everything that differs between APIs except the work itself.
//!
//! To add an API, write its handler in [`crate::api`] and add its row here.

use wire::ApiKey;
use wire::messages::{
    AddRaftVoterRequest, DeleteShareGroupStateRequest, InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest, ReadShareGroupStateSummaryRequest, RemoveRaftVoterRequest,
    WriteShareGroupStateRequest,
};

use crate::api::{
    acls, admin_cluster, admin_configs, admin_groups, admin_replicas, admin_topics, alter_configs,
    api_versions, client_quotas, client_telemetry, consumer_groups, copies, delete_records, fetch,
    group_membership, init_producer_id, list_offsets, metadata, nearest, offsets, reassignments, sasl,
    transaction_markers, transactions, user_credentials, without,
};
use crate::quotas::Quota;
use crate::request::call::api::{Api, Handler, Memory, Right, Versions};
use crate::security::Operation;

/// All supported APIs, by key.
static APIS: &[Api] = &[
    // librdkafka takes a server whose Produce lacks version 0 for an old broker (KAFKA-18659). Versions 0 to 2 are
    // advertised but refused.
    Api {
        versions: Versions::FromZero,
        quota: Some(Quota::Produce),
        handler: Handler::Produce,
        ..Api::new(ApiKey::Produce, |_| unreachable!("produce requests begin in order"))
    },
    Api {
        memory: Memory::Records,
        quota: Some(Quota::Fetch),
        ..Api::new(ApiKey::Fetch, |call| call.answer(fetch::answer))
    },
    Api::new(ApiKey::ListOffsets, |call| call.answer(list_offsets::answer)),
    Api {
        quota: Some(Quota::ControllerMutation),
        ..Api::new(ApiKey::Metadata, |call| call.answer(metadata::answer))
    },
    Api::new(ApiKey::OffsetCommit, |call| call.answer(offsets::commit)),
    Api::new(ApiKey::OffsetFetch, |call| call.answer(offsets::fetch)),
    Api::new(ApiKey::FindCoordinator, |call| call.answer(offsets::find_coordinator)),
    Api {
        memory: Memory::Waiting,
        ..Api::new(ApiKey::JoinGroup, |call| call.answer(group_membership::join))
    },
    Api::new(ApiKey::Heartbeat, |call| call.answer(group_membership::heartbeat)),
    Api::new(ApiKey::LeaveGroup, |call| call.answer(group_membership::leave)),
    Api {
        memory: Memory::Waiting,
        ..Api::new(ApiKey::SyncGroup, |call| call.answer(group_membership::sync))
    },
    Api::new(ApiKey::DescribeGroups, |call| call.answer(admin_groups::describe)),
    Api::new(ApiKey::ListGroups, |call| call.answer(admin_groups::list)),
    Api {
        right: Right::Free,
        memory: Memory::Small,
        ..Api::new(ApiKey::SaslHandshake, |call| call.answer(sasl::handshake))
    },
    Api {
        right: Right::Free,
        memory: Memory::Small,
        ..Api::new(ApiKey::ApiVersions, |call| call.answer(|request| api_versions::answer(request, shown())))
    },
    Api {
        quota: Some(Quota::ControllerMutation),
        carried_through: true,
        ..Api::new(ApiKey::CreateTopics, |call| call.answer(admin_topics::create))
    },
    Api {
        quota: Some(Quota::ControllerMutation),
        carried_through: true,
        ..Api::new(ApiKey::DeleteTopics, |call| call.answer(admin_topics::delete))
    },
    Api {
        carried_through: true,
        ..Api::new(ApiKey::DeleteRecords, |call| call.answer(delete_records::answer))
    },
    // The last version of the schema is for two-phase commit.
    Api {
        versions: Versions::UpTo(5),
        ..Api::new(ApiKey::InitProducerId, |call| call.answer(init_producer_id::answer))
    },
    Api::new(ApiKey::OffsetForLeaderEpoch, |call| call.answer(list_offsets::offset_for_leader_epoch)),
    Api::new(ApiKey::AddPartitionsToTxn, |call| call.answer(transactions::add_partitions)),
    Api::new(ApiKey::AddOffsetsToTxn, |call| call.answer(transactions::add_offsets)),
    Api::new(ApiKey::EndTxn, |call| call.answer(transactions::end)),
    Api {
        carried_through: true,
        ..Api::new(ApiKey::WriteTxnMarkers, |call| call.answer(transaction_markers::write_markers))
    },
    Api::new(ApiKey::TxnOffsetCommit, |call| call.answer(transactions::commit_offsets)),
    Api::of_cluster(ApiKey::DescribeAcls, Operation::Describe, |call| {
        call.answer_for_cluster(acls::describe)
    }),
    Api {
        carried_through: true,
        ..Api::of_cluster(ApiKey::CreateAcls, Operation::Alter, |call| call.answer_for_cluster(acls::create))
    },
    Api {
        carried_through: true,
        ..Api::of_cluster(ApiKey::DeleteAcls, Operation::Alter, |call| call.answer_for_cluster(acls::delete))
    },
    Api::new(ApiKey::DescribeConfigs, |call| call.answer(admin_configs::describe)),
    Api {
        carried_through: true,
        ..Api::new(ApiKey::AlterConfigs, |call| call.answer(alter_configs::replace))
    },
    Api::of_cluster(ApiKey::AlterReplicaLogDirs, Operation::Alter, |call| {
        call.answer_for_cluster(admin_replicas::alter_replica_log_dirs)
    }),
    Api::of_cluster(ApiKey::DescribeLogDirs, Operation::Describe, |call| {
        call.answer_for_cluster(admin_replicas::describe_log_dirs)
    }),
    Api {
        right: Right::Free,
        memory: Memory::Small,
        ..Api::new(ApiKey::SaslAuthenticate, |call| call.answer(sasl::authenticate))
    },
    Api {
        quota: Some(Quota::ControllerMutation),
        carried_through: true,
        ..Api::new(ApiKey::CreatePartitions, |call| call.answer(admin_topics::create_partitions))
    },
    Api::refused(ApiKey::CreateDelegationToken, |call| call.answer(without::create_token)),
    Api::refused(ApiKey::RenewDelegationToken, |call| call.answer(without::renew_token)),
    Api::refused(ApiKey::ExpireDelegationToken, |call| call.answer(without::expire_token)),
    Api::refused(ApiKey::DescribeDelegationToken, |call| call.answer(without::describe_tokens)),
    Api { carried_through: true, ..Api::new(ApiKey::DeleteGroups, |call| call.answer(admin_groups::delete)) },
    Api::of_cluster(ApiKey::ElectLeaders, Operation::Alter, |call| {
        call.answer_for_cluster(admin_replicas::elect_leaders)
    }),
    Api {
        carried_through: true,
        ..Api::new(ApiKey::IncrementalAlterConfigs, |call| call.answer(alter_configs::alter))
    },
    Api::of_cluster(ApiKey::AlterPartitionReassignments, Operation::Alter, |call| {
        call.answer_for_cluster(reassignments::alter_reassignments)
    }),
    Api::of_cluster(ApiKey::ListPartitionReassignments, Operation::Describe, |call| {
        call.answer_for_cluster(reassignments::list_reassignments)
    }),
    Api { carried_through: true, ..Api::new(ApiKey::OffsetDelete, |call| call.answer(offsets::delete)) },
    Api::of_cluster(ApiKey::DescribeClientQuotas, Operation::DescribeConfigs, |call| {
        call.answer_for_cluster(client_quotas::describe)
    }),
    Api {
        carried_through: true,
        ..Api::of_cluster(ApiKey::AlterClientQuotas, Operation::AlterConfigs, |call| {
            call.answer_for_cluster(client_quotas::alter)
        })
    },
    Api::of_cluster(ApiKey::DescribeUserScramCredentials, Operation::Describe, |call| {
        call.answer_for_cluster(user_credentials::describe)
    }),
    Api {
        carried_through: true,
        ..Api::of_cluster(ApiKey::AlterUserScramCredentials, Operation::Alter, |call| {
            call.answer_for_cluster(user_credentials::alter)
        })
    },
    Api::of_cluster(ApiKey::DescribeQuorum, Operation::Describe, |call| {
        call.answer_for_cluster(admin_cluster::describe_quorum)
    }),
    Api::of_cluster(ApiKey::UpdateFeatures, Operation::Alter, |call| {
        call.answer_for_cluster(admin_cluster::update_features)
    }),
    // Every caller may see the nodes. The handler checks which operations on the cluster the caller may do.
    Api {
        right: Right::Free,
        ..Api::new(ApiKey::DescribeCluster, |call| call.answer(metadata::describe_cluster))
    },
    Api::new(ApiKey::DescribeProducers, |call| call.answer(transactions::describe_producers)),
    Api::of_cluster(ApiKey::UnregisterBroker, Operation::Alter, |call| {
        call.answer_for_cluster(admin_cluster::unregister_broker)
    }),
    Api::new(ApiKey::DescribeTransactions, |call| call.answer(transactions::describe)),
    Api::new(ApiKey::ListTransactions, |call| call.answer(transactions::list)),
    Api::new(ApiKey::ConsumerGroupHeartbeat, |call| call.answer(consumer_groups::heartbeat)),
    Api::new(ApiKey::ConsumerGroupDescribe, |call| call.answer(consumer_groups::describe)),
    Api {
        right: Right::Free,
        ..Api::new(ApiKey::GetTelemetrySubscriptions, |call| call.answer(client_telemetry::get))
    },
    Api { right: Right::Free, ..Api::new(ApiKey::PushTelemetry, |call| call.answer(client_telemetry::push)) },
    Api::of_cluster(ApiKey::ListConfigResources, Operation::DescribeConfigs, |call| {
        call.answer_for_cluster(admin_configs::list_resources)
    }),
    Api::new(ApiKey::DescribeTopicPartitions, |call| call.answer(admin_replicas::describe_topic_partitions)),
    Api::refused(ApiKey::ShareGroupHeartbeat, |call| call.answer(without::share_group_heartbeat)),
    Api::refused(ApiKey::ShareGroupDescribe, |call| call.answer(without::share_group_describe)),
    Api::refused(ApiKey::ShareFetch, |call| call.answer(without::share_fetch)),
    Api::refused(ApiKey::ShareAcknowledge, |call| call.answer(without::share_acknowledge)),
    Api::of_cluster(ApiKey::AddRaftVoter, Operation::Alter, |call| {
        call.answer_for_cluster(without::refuse::<AddRaftVoterRequest>)
    }),
    Api::of_cluster(ApiKey::RemoveRaftVoter, Operation::Alter, |call| {
        call.answer_for_cluster(without::refuse::<RemoveRaftVoterRequest>)
    }),
    Api::of_cluster(ApiKey::InitializeShareGroupState, Operation::ClusterAction, |call| {
        call.answer_for_cluster(without::refuse::<InitializeShareGroupStateRequest>)
    }),
    Api::of_cluster(ApiKey::ReadShareGroupState, Operation::ClusterAction, |call| {
        call.answer_for_cluster(without::refuse::<ReadShareGroupStateRequest>)
    }),
    Api::of_cluster(ApiKey::WriteShareGroupState, Operation::ClusterAction, |call| {
        call.answer_for_cluster(without::refuse::<WriteShareGroupStateRequest>)
    }),
    Api::of_cluster(ApiKey::DeleteShareGroupState, Operation::ClusterAction, |call| {
        call.answer_for_cluster(without::refuse::<DeleteShareGroupStateRequest>)
    }),
    Api::of_cluster(ApiKey::ReadShareGroupStateSummary, Operation::ClusterAction, |call| {
        call.answer_for_cluster(without::refuse::<ReadShareGroupStateSummaryRequest>)
    }),
    Api::refused(ApiKey::StreamsGroupHeartbeat, |call| call.answer(without::streams_group_heartbeat)),
    Api::refused(ApiKey::StreamsGroupDescribe, |call| call.answer(without::streams_group_describe)),
    Api::refused(ApiKey::DescribeShareGroupOffsets, |call| {
        call.answer(without::describe_share_group_offsets)
    }),
    Api::refused(ApiKey::AlterShareGroupOffsets, |call| call.answer(without::alter_share_group_offsets)),
    Api::refused(ApiKey::DeleteShareGroupOffsets, |call| call.answer(without::delete_share_group_offsets)),
    // Brokers send each other the rest.
    Api {
        carried_through: true,
        ..Api::of_cluster(ApiKey::CopyBlocks, Operation::ClusterAction, |call| {
            call.answer_for_cluster(copies::add)
        })
    },
    Api {
        carried_through: true,
        ..Api::of_cluster(ApiKey::FenceCopies, Operation::ClusterAction, |call| {
            call.answer_for_cluster(copies::fence)
        })
    },
    Api::of_cluster(ApiKey::ReadCopies, Operation::ClusterAction, |call| {
        call.answer_for_cluster(copies::read)
    }),
    Api {
        memory: Memory::Records,
        ..Api::of_cluster(ApiKey::LocateRecords, Operation::ClusterAction, |call| {
            call.answer_for_cluster(nearest::locate)
        })
    },
];

/// The rows of all APIs, by key.
pub fn served() -> &'static [Api] {
    APIS
}

/// The rows of Kafka's APIs: clients do not hear of those that only brokers use.
fn shown() -> &'static [Api] {
    &APIS[..APIS.len() - OF_BROKERS]
}

/// Whether requests of `key` may wait for other clients.
pub fn waits(key: ApiKey) -> bool {
    row(key).is_some_and(Api::waits)
}

/// The row of `key`; `None` if the API is not served.
pub fn row(key: ApiKey) -> Option<&'static Api> {
    ROWS[key.index()]
}

/// APIs that only brokers of this project use: the last ones.
const OF_BROKERS: usize = 4;

static ROWS: [Option<&'static Api>; ApiKey::COUNT] = {
    let mut rows: [Option<&'static Api>; ApiKey::COUNT] = [None; ApiKey::COUNT];
    let mut next = 0;
    while next < APIS.len() {
        rows[APIS[next].key.index()] = Some(&APIS[next]);
        next += 1;
    }
    rows
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_row_for_a_key_and_they_are_in_order() {
        assert!(APIS.windows(2).all(|pair| pair[0].key.code() < pair[1].key.code()));
        for api in APIS {
            assert_eq!(row(api.key).map(|row| row.key), Some(api.key));
            let (versions, schema) = (api.advertised(), api.key.valid_versions());
            assert!(versions.end() <= schema.end(), "{}", api.key.name());
        }
    }
}
