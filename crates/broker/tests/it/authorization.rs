//! Every API with no rights, with the rights that Kafka's documentation lists for it, with all of them but one, and
//! with one of them denied. [`cases`] lists the rights of each API. An advertised API that is not listed fails the
//! test.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use broker::{Broker, Connection, Listener, Origin, Principal};
use wire::messages as m;
use wire::{ApiKey, Bytes, Message, Text};

use crate::common::{call, create_topic, open_with};

/// Codes of resource types and operations in requests.
const TOPIC: i8 = 2;
const GROUP: i8 = 3;
const CLUSTER: i8 = 4;
const TRANSACTIONAL_ID: i8 = 5;
const READ: i8 = 3;
const WRITE: i8 = 4;
const CREATE: i8 = 5;
const DELETE: i8 = 6;
const ALTER: i8 = 7;
const DESCRIBE: i8 = 8;
const CLUSTER_ACTION: i8 = 9;
const DESCRIBE_CONFIGS: i8 = 10;
const ALTER_CONFIGS: i8 = 11;
const IDEMPOTENT_WRITE: i8 = 12;
const DENY: i8 = 2;
const ALLOW: i8 = 3;

/// Kafka's error codes.
const NO_TOPIC: i16 = 29;
const NO_GROUP: i16 = 30;
const NO_CLUSTER: i16 = 31;
const NO_TRANSACTIONAL_ID: i16 = 53;
/// Stands for an error if hidden elements are left out of the answer.
const HIDDEN: i16 = -100;

type Right = (i8, &'static str, i8);
type Codes = Pin<Box<dyn Future<Output = Vec<i16>>>>;

/// One row of the table.
struct Case {
    api: ApiKey,
    what: &'static str,
    /// All these rights are needed. The lack of each gives this error.
    needs: Vec<(Right, i16)>,
    /// Sends the request and returns the errors in the answer.
    ask: Box<dyn Fn(Connection) -> Codes>,
}

fn case<Q, A>(
    what: &'static str,
    needs: &[(Right, i16)],
    version: i16,
    request: Q,
    codes: fn(&A) -> Vec<i16>,
) -> Case
where
    Q: Message + Clone + 'static,
    A: Message + 'static,
{
    Case {
        api: ApiKey::from_i16(Q::KEY.unwrap()).unwrap(),
        what,
        needs: needs.to_vec(),
        ask: Box::new(move |mut connection| {
            let request = request.clone();
            Box::pin(async move { codes(&call::<Q, A>(&mut connection, version, &request).await) })
        }),
    }
}

fn text(text: &'static str) -> Text {
    Text::from_static(text)
}

/// Converts a number of elements to a code: no element means that they are hidden.
fn seen(count: usize) -> Vec<i16> {
    vec![if count == 0 { HIDDEN } else { 0 }]
}

fn topic(operation: i8) -> (Right, i16) {
    ((TOPIC, "t", operation), NO_TOPIC)
}

fn group(operation: i8) -> (Right, i16) {
    ((GROUP, "g", operation), NO_GROUP)
}

fn cluster(operation: i8) -> (Right, i16) {
    ((CLUSTER, "kafka-cluster", operation), NO_CLUSTER)
}

fn transactional_id(operation: i8) -> (Right, i16) {
    ((TRANSACTIONAL_ID, "x", operation), NO_TRANSACTIONAL_ID)
}

fn batch() -> Bytes {
    let mut batch = wire::records::BatchBuilder::new(model::Compression::None);
    batch.push(model::Timestamp(0), None, Some(b"v"));
    batch.finish()
}

fn produced() -> m::ProduceRequest {
    let data = m::produce_request::PartitionProduceData { index: 0, records: Some(batch().into()) };
    let topic = m::produce_request::TopicProduceData {
        name: text("t"),
        partition_data: vec![data],
        ..Default::default()
    };
    m::ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], transactional_id: None }
}

fn data() -> Vec<Case> {
    let metadata = |name: Option<&'static str>| m::MetadataRequest {
        topics: name.map(|name| {
            vec![m::metadata_request::MetadataRequestTopic { name: Some(text(name)), ..Default::default() }]
        }),
        allow_auto_topic_creation: true,
        ..Default::default()
    };
    let created: (Right, i16) = ((TOPIC, "new", CREATE), NO_TOPIC);
    let described: (Right, i16) = ((TOPIC, "new", DESCRIBE), NO_TOPIC);
    let transactional = m::ProduceRequest { transactional_id: Some(text("x")), ..produced() };
    let listed = m::ListOffsetsRequest {
        replica_id: -1,
        topics: vec![m::list_offsets_request::ListOffsetsTopic {
            name: text("t"),
            partitions: vec![m::list_offsets_request::ListOffsetsPartition {
                current_leader_epoch: -1,
                timestamp: -1,
                ..Default::default()
            }],
        }],
        ..Default::default()
    };
    let epochs = m::OffsetForLeaderEpochRequest {
        replica_id: -1,
        topics: vec![m::offset_for_leader_epoch_request::OffsetForLeaderTopic {
            topic: text("t"),
            partitions: vec![m::offset_for_leader_epoch_request::OffsetForLeaderPartition {
                current_leader_epoch: -1,
                ..Default::default()
            }],
        }],
    };
    let deleted = m::DeleteRecordsRequest {
        topics: vec![m::delete_records_request::DeleteRecordsTopic {
            name: text("t"),
            partitions: vec![Default::default()],
        }],
        timeout_ms: 1000,
    };
    let fetched = crate::common::fetch_request((0, -1), 0, vec![crate::common::fetch_of("t", 0, 0)]);
    let parts = m::DescribeTopicPartitionsRequest {
        topics: vec![m::describe_topic_partitions_request::TopicRequest { name: text("t") }],
        response_partition_limit: 10,
        cursor: None,
    };
    let all_parts = m::DescribeTopicPartitionsRequest { topics: Vec::new(), ..parts.clone() };
    vec![
        case("", &[topic(WRITE)], 12, produced(), |r: &m::ProduceResponse| {
            vec![r.responses[0].partition_responses[0].error_code]
        }),
        case(
            "with a transactional id",
            &[topic(WRITE), transactional_id(WRITE)],
            12,
            transactional,
            |r: &m::ProduceResponse| vec![r.responses[0].partition_responses[0].error_code],
        ),
        case("", &[topic(READ)], 12, fetched, |r: &m::FetchResponse| {
            vec![r.responses[0].partitions[0].error_code]
        }),
        case("", &[topic(DESCRIBE)], 7, listed, |r: &m::ListOffsetsResponse| {
            vec![r.topics[0].partitions[0].error_code]
        }),
        case("", &[topic(DESCRIBE)], 4, epochs, |r: &m::OffsetForLeaderEpochResponse| {
            vec![r.topics[0].partitions[0].error_code]
        }),
        case("", &[topic(DELETE)], 2, deleted, |r: &m::DeleteRecordsResponse| {
            vec![r.topics[0].partitions[0].error_code]
        }),
        case("of one topic", &[topic(DESCRIBE)], 12, metadata(Some("t")), |r: &m::MetadataResponse| {
            vec![r.topics[0].error_code]
        }),
        case(
            "of all topics",
            &[((TOPIC, "t", DESCRIBE), HIDDEN)],
            12,
            metadata(None),
            |r: &m::MetadataResponse| seen(r.topics.len()),
        ),
        case("that creates", &[described, created], 12, metadata(Some("new")), |r: &m::MetadataResponse| {
            vec![r.topics[0].error_code]
        }),
        case("", &[topic(DESCRIBE)], 0, parts, |r: &m::DescribeTopicPartitionsResponse| {
            vec![r.topics[0].error_code]
        }),
        case(
            "of all topics",
            &[((TOPIC, "t", DESCRIBE), HIDDEN)],
            0,
            all_parts,
            |r: &m::DescribeTopicPartitionsResponse| seen(r.topics.len()),
        ),
    ]
}

fn groups() -> Vec<Case> {
    let coordinator = |key_type: i8, key: &'static str| m::FindCoordinatorRequest {
        key_type,
        coordinator_keys: vec![text(key)],
        ..Default::default()
    };
    let coordinator_codes = |r: &m::FindCoordinatorResponse| vec![r.coordinators[0].error_code];
    let committed = m::OffsetCommitRequest {
        group_id: text("g"),
        generation_id_or_member_epoch: -1,
        topics: vec![m::offset_commit_request::OffsetCommitRequestTopic {
            name: text("t"),
            partitions: vec![Default::default()],
            ..Default::default()
        }],
        ..Default::default()
    };
    let fetched = |all: bool| m::OffsetFetchRequest {
        groups: vec![m::offset_fetch_request::OffsetFetchRequestGroup {
            group_id: text("g"),
            member_epoch: -1,
            topics: (!all).then(|| {
                vec![m::offset_fetch_request::OffsetFetchRequestTopics {
                    name: text("t"),
                    partition_indexes: vec![0],
                    ..Default::default()
                }]
            }),
            ..Default::default()
        }],
        ..Default::default()
    };
    let old_fetched = m::OffsetFetchRequest {
        group_id: text("g"),
        topics: Some(vec![m::offset_fetch_request::OffsetFetchRequestTopic {
            name: text("t"),
            partition_indexes: vec![0],
        }]),
        ..Default::default()
    };
    let joined = m::JoinGroupRequest {
        group_id: text("g"),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: text("consumer"),
        protocols: vec![m::join_group_request::JoinGroupRequestProtocol {
            name: text("range"),
            ..Default::default()
        }],
        ..Default::default()
    };
    let beat = m::ConsumerGroupHeartbeatRequest {
        group_id: text("new-group"),
        member_id: text("0123456789012345678901"),
        rebalance_timeout_ms: 10_000,
        subscribed_topic_names: Some(vec![text("t")]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let offsets_deleted = m::OffsetDeleteRequest {
        group_id: text("g"),
        topics: vec![m::offset_delete_request::OffsetDeleteRequestTopic {
            name: text("t"),
            partitions: vec![Default::default()],
        }],
    };
    let in_group = |error: i16| move |r: Right| (r, error);
    let new_group = in_group(NO_GROUP)((GROUP, "new-group", READ));
    vec![
        case("of a group", &[group(DESCRIBE)], 4, coordinator(0, "g"), coordinator_codes),
        case(
            "of a transactional id",
            &[transactional_id(DESCRIBE)],
            4,
            coordinator(1, "x"),
            coordinator_codes,
        ),
        case("", &[group(READ), topic(READ)], 9, committed, |r: &m::OffsetCommitResponse| {
            vec![r.topics[0].partitions[0].error_code]
        }),
        case("", &[group(DESCRIBE), topic(DESCRIBE)], 9, fetched(false), |r: &m::OffsetFetchResponse| {
            let of = &r.groups[0];
            let topics = of.topics.iter().flat_map(|topic| &topic.partitions);
            let codes = topics.map(|partition| partition.error_code).filter(|code| *code != 0);
            codes.chain([of.error_code]).filter(|code| *code != 0).collect()
        }),
        case(
            "before it had groups",
            &[group(DESCRIBE), topic(DESCRIBE)],
            7,
            old_fetched,
            |r: &m::OffsetFetchResponse| {
                let topics = r.topics.iter().flat_map(|topic| &topic.partitions);
                topics.map(|partition| partition.error_code).chain([r.error_code]).collect()
            },
        ),
        case(
            "of all topics",
            &[((TOPIC, "t", DESCRIBE), HIDDEN), group(DESCRIBE)],
            9,
            fetched(true),
            |r: &m::OffsetFetchResponse| match r.groups[0].error_code {
                0 => seen(r.groups[0].topics.len()),
                code => vec![code],
            },
        ),
        case("", &[group(READ)], 9, joined, |r: &m::JoinGroupResponse| vec![r.error_code]),
        case(
            "",
            &[group(READ)],
            5,
            m::SyncGroupRequest { group_id: text("g"), member_id: text("m"), ..Default::default() },
            |r: &m::SyncGroupResponse| vec![r.error_code],
        ),
        case(
            "",
            &[group(READ)],
            4,
            m::HeartbeatRequest { group_id: text("g"), member_id: text("m"), ..Default::default() },
            |r: &m::HeartbeatResponse| vec![r.error_code],
        ),
        case(
            "",
            &[group(READ)],
            5,
            m::LeaveGroupRequest { group_id: text("g"), ..Default::default() },
            |r: &m::LeaveGroupResponse| vec![r.error_code],
        ),
        case("", &[new_group, topic(DESCRIBE)], 1, beat, |r: &m::ConsumerGroupHeartbeatResponse| {
            vec![r.error_code]
        }),
        case(
            "",
            &[group(DESCRIBE)],
            1,
            m::ConsumerGroupDescribeRequest { group_ids: vec![text("g")], ..Default::default() },
            |r: &m::ConsumerGroupDescribeResponse| vec![r.groups[0].error_code],
        ),
        case(
            "",
            &[group(DESCRIBE)],
            5,
            m::DescribeGroupsRequest { groups: vec![text("g")], ..Default::default() },
            |r: &m::DescribeGroupsResponse| vec![r.groups[0].error_code],
        ),
        case(
            "",
            &[((GROUP, "g", DESCRIBE), HIDDEN)],
            5,
            m::ListGroupsRequest::default(),
            |r: &m::ListGroupsResponse| seen(r.groups.len()),
        ),
        case(
            "",
            &[group(DELETE)],
            2,
            m::DeleteGroupsRequest { groups_names: vec![text("g")] },
            |r: &m::DeleteGroupsResponse| vec![r.results[0].error_code],
        ),
        case("", &[group(DELETE), topic(READ)], 0, offsets_deleted, |r: &m::OffsetDeleteResponse| {
            let topics = r.topics.iter().flat_map(|topic| &topic.partitions);
            topics.map(|partition| partition.error_code).chain([r.error_code]).collect()
        }),
    ]
}

fn transactions() -> Vec<Case> {
    let add = m::AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: text("x"),
        v3_and_below_topics: vec![m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
            name: text("t"),
            partitions: vec![0],
        }],
        ..Default::default()
    };
    let of_servers = m::AddPartitionsToTxnRequest {
        transactions: vec![m::add_partitions_to_txn_request::AddPartitionsToTxnTransaction {
            transactional_id: text("x"),
            verify_only: true,
            ..Default::default()
        }],
        ..Default::default()
    };
    let commit = m::TxnOffsetCommitRequest {
        transactional_id: text("x"),
        group_id: text("g"),
        generation_id_or_member_epoch: -1,
        topics: vec![m::txn_offset_commit_request::TxnOffsetCommitRequestTopic {
            name: text("t"),
            partitions: vec![Default::default()],
            ..Default::default()
        }],
        ..Default::default()
    };
    let markers = m::WriteTxnMarkersRequest {
        markers: vec![m::write_txn_markers_request::WritableTxnMarker {
            topics: vec![m::write_txn_markers_request::WritableTxnMarkerTopic {
                name: text("t"),
                partition_indexes: vec![0],
            }],
            ..Default::default()
        }],
    };
    let producers = m::DescribeProducersRequest {
        topics: vec![m::describe_producers_request::TopicRequest {
            name: text("t"),
            partition_indexes: vec![0],
        }],
    };
    let init = |transactional_id| m::InitProducerIdRequest {
        transactional_id,
        transaction_timeout_ms: 1000,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    };
    let init_code = |r: &m::InitProducerIdResponse| vec![r.error_code];
    vec![
        case("with a transactional id", &[transactional_id(WRITE)], 4, init(Some(text("x"))), init_code),
        case("of idempotence alone", &[cluster(IDEMPOTENT_WRITE)], 4, init(None), init_code),
        case(
            "of idempotence alone, with a right to write anywhere",
            &[((TOPIC, "other", WRITE), NO_CLUSTER)],
            4,
            init(None),
            init_code,
        ),
        case("", &[transactional_id(WRITE), topic(WRITE)], 3, add, |r: &m::AddPartitionsToTxnResponse| {
            vec![r.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code]
        }),
        case("of servers", &[cluster(CLUSTER_ACTION)], 5, of_servers, |r: &m::AddPartitionsToTxnResponse| {
            vec![r.error_code]
        }),
        case(
            "",
            &[transactional_id(WRITE), group(READ)],
            4,
            m::AddOffsetsToTxnRequest {
                transactional_id: text("x"),
                group_id: text("g"),
                ..Default::default()
            },
            |r: &m::AddOffsetsToTxnResponse| vec![r.error_code],
        ),
        case(
            "",
            &[transactional_id(WRITE)],
            4,
            m::EndTxnRequest { transactional_id: text("x"), ..Default::default() },
            |r: &m::EndTxnResponse| vec![r.error_code],
        ),
        case(
            "",
            &[transactional_id(WRITE), group(READ), topic(READ)],
            4,
            commit,
            |r: &m::TxnOffsetCommitResponse| vec![r.topics[0].partitions[0].error_code],
        ),
        case("", &[cluster(ALTER)], 1, markers.clone(), |r: &m::WriteTxnMarkersResponse| {
            vec![r.markers[0].topics[0].partitions[0].error_code]
        }),
        case("of servers", &[cluster(CLUSTER_ACTION)], 1, markers, |r: &m::WriteTxnMarkersResponse| {
            vec![r.markers[0].topics[0].partitions[0].error_code]
        }),
        case("", &[topic(READ)], 0, producers, |r: &m::DescribeProducersResponse| {
            vec![r.topics[0].partitions[0].error_code]
        }),
        case(
            "",
            &[transactional_id(DESCRIBE)],
            0,
            m::DescribeTransactionsRequest { transactional_ids: vec![text("x")] },
            |r: &m::DescribeTransactionsResponse| vec![r.transaction_states[0].error_code],
        ),
        case(
            "",
            &[((TRANSACTIONAL_ID, "x", DESCRIBE), HIDDEN)],
            1,
            m::ListTransactionsRequest { duration_filter: -1, ..Default::default() },
            |r: &m::ListTransactionsResponse| seen(r.transaction_states.len()),
        ),
    ]
}

fn administration() -> Vec<Case> {
    let create = m::CreateTopicsRequest {
        topics: vec![m::create_topics_request::CreatableTopic {
            name: text("new"),
            num_partitions: 1,
            replication_factor: -1,
            ..Default::default()
        }],
        timeout_ms: 1000,
        ..Default::default()
    };
    let delete = m::DeleteTopicsRequest {
        topics: vec![m::delete_topics_request::DeleteTopicState {
            name: Some(text("t")),
            ..Default::default()
        }],
        timeout_ms: 1000,
        ..Default::default()
    };
    let grow = m::CreatePartitionsRequest {
        topics: vec![m::create_partitions_request::CreatePartitionsTopic {
            name: text("t"),
            count: 2,
            assignments: None,
        }],
        timeout_ms: 1000,
        ..Default::default()
    };
    let describe = |resource_type: i8, name: &'static str| m::DescribeConfigsRequest {
        resources: vec![m::describe_configs_request::DescribeConfigsResource {
            resource_type,
            resource_name: text(name),
            configuration_keys: None,
        }],
        ..Default::default()
    };
    let described = |r: &m::DescribeConfigsResponse| vec![r.results[0].error_code];
    let alter = |resource_type: i8, name: &'static str| m::IncrementalAlterConfigsRequest {
        resources: vec![m::incremental_alter_configs_request::AlterConfigsResource {
            resource_type,
            resource_name: text(name),
            configs: Vec::new(),
        }],
        ..Default::default()
    };
    let altered = |r: &m::IncrementalAlterConfigsResponse| vec![r.responses[0].error_code];
    let replace = m::AlterConfigsRequest {
        resources: vec![m::alter_configs_request::AlterConfigsResource {
            resource_type: 2,
            resource_name: text("t"),
            configs: Vec::new(),
        }],
        ..Default::default()
    };
    let created: (Right, i16) = ((TOPIC, "new", CREATE), NO_TOPIC);
    let anywhere: (Right, i16) = ((CLUSTER, "kafka-cluster", CREATE), NO_TOPIC);
    let anything: (Right, i16) = ((CLUSTER, "kafka-cluster", DELETE), NO_TOPIC);
    let create_codes = |r: &m::CreateTopicsResponse| vec![r.topics[0].error_code];
    let delete_codes = |r: &m::DeleteTopicsResponse| vec![r.responses[0].error_code];
    vec![
        case("by the topic", &[created], 7, create.clone(), create_codes),
        case("by the cluster", &[anywhere], 7, create, create_codes),
        case("by the topic", &[topic(DELETE)], 6, delete.clone(), delete_codes),
        case("by the cluster", &[anything], 6, delete, delete_codes),
        case("", &[topic(ALTER)], 3, grow, |r: &m::CreatePartitionsResponse| vec![r.results[0].error_code]),
        case("of a topic", &[topic(DESCRIBE_CONFIGS)], 4, describe(2, "t"), described),
        case("of the broker", &[cluster(DESCRIBE_CONFIGS)], 4, describe(4, "1"), described),
        case("of a group", &[group(DESCRIBE_CONFIGS)], 4, describe(32, "g"), described),
        case("of a subscription", &[cluster(DESCRIBE_CONFIGS)], 4, describe(16, "s"), described),
        case("of a topic", &[topic(ALTER_CONFIGS)], 1, alter(2, "t"), altered),
        case("of the broker", &[cluster(ALTER_CONFIGS)], 1, alter(4, "1"), altered),
        case("of a group", &[group(ALTER_CONFIGS)], 1, alter(32, "g"), altered),
        case("of a subscription", &[cluster(ALTER_CONFIGS)], 1, alter(16, "s"), altered),
        case("", &[topic(ALTER_CONFIGS)], 2, replace, |r: &m::AlterConfigsResponse| {
            vec![r.responses[0].error_code]
        }),
    ]
}

fn whole_cluster() -> Vec<Case> {
    let acls = m::CreateAclsRequest {
        creations: vec![m::create_acls_request::AclCreation {
            resource_type: TOPIC,
            resource_name: text("another"),
            resource_pattern_type: 3,
            principal: text("User:b"),
            host: text("*"),
            operation: READ,
            permission_type: ALLOW,
        }],
    };
    let no_acls = m::DeleteAclsRequest {
        filters: vec![m::delete_acls_request::DeleteAclsFilter {
            resource_type_filter: TOPIC,
            resource_name_filter: Some(text("nothing")),
            pattern_type_filter: 3,
            operation: 1,
            permission_type: 1,
            ..Default::default()
        }],
    };
    let some_acls = m::DescribeAclsRequest {
        resource_type_filter: 1,
        pattern_type_filter: 1,
        operation: 1,
        permission_type: 1,
        ..Default::default()
    };
    let credentials = m::AlterUserScramCredentialsRequest {
        deletions: vec![m::alter_user_scram_credentials_request::ScramCredentialDeletion {
            name: text("b"),
            mechanism: 1,
        }],
        upsertions: Vec::new(),
    };
    let elect = m::ElectLeadersRequest {
        topic_partitions: Some(vec![m::elect_leaders_request::TopicPartitions {
            topic: text("t"),
            partitions: vec![0],
        }]),
        timeout_ms: 1000,
        ..Default::default()
    };
    let reassign = m::AlterPartitionReassignmentsRequest {
        topics: vec![m::alter_partition_reassignments_request::ReassignableTopic {
            name: text("t"),
            partitions: vec![Default::default()],
        }],
        timeout_ms: 1000,
        ..Default::default()
    };
    let move_one = m::AlterReplicaLogDirsRequest {
        dirs: vec![m::alter_replica_log_dirs_request::AlterReplicaLogDir {
            path: text("/nowhere"),
            topics: vec![m::alter_replica_log_dirs_request::AlterReplicaLogDirTopic {
                name: text("t"),
                partitions: vec![0],
            }],
        }],
    };
    let quotas = m::AlterClientQuotasRequest {
        entries: vec![m::alter_client_quotas_request::EntryData {
            entity: vec![m::alter_client_quotas_request::EntityData {
                entity_type: text("user"),
                entity_name: Some(text("b")),
            }],
            ops: Vec::new(),
        }],
        validate_only: true,
    };
    vec![
        case("", &[cluster(DESCRIBE)], 3, some_acls, |r: &m::DescribeAclsResponse| vec![r.error_code]),
        case("", &[cluster(ALTER)], 3, acls, |r: &m::CreateAclsResponse| vec![r.results[0].error_code]),
        case("", &[cluster(ALTER)], 3, no_acls, |r: &m::DeleteAclsResponse| {
            vec![r.filter_results[0].error_code]
        }),
        case(
            "",
            &[cluster(DESCRIBE)],
            0,
            m::DescribeUserScramCredentialsRequest { users: None },
            |r: &m::DescribeUserScramCredentialsResponse| vec![r.error_code],
        ),
        case("", &[cluster(ALTER)], 0, credentials, |r: &m::AlterUserScramCredentialsResponse| {
            vec![r.results[0].error_code]
        }),
        case("", &[cluster(ALTER)], 2, elect, |r: &m::ElectLeadersResponse| {
            vec![r.error_code, r.replica_election_results[0].partition_result[0].error_code]
        }),
        case("", &[cluster(ALTER)], 0, reassign, |r: &m::AlterPartitionReassignmentsResponse| {
            vec![r.error_code, r.responses[0].partitions[0].error_code]
        }),
        case(
            "",
            &[cluster(DESCRIBE)],
            0,
            m::ListPartitionReassignmentsRequest { timeout_ms: 1000, topics: None },
            |r: &m::ListPartitionReassignmentsResponse| vec![r.error_code],
        ),
        case("", &[cluster(ALTER)], 2, move_one, |r: &m::AlterReplicaLogDirsResponse| {
            vec![r.results[0].partitions[0].error_code]
        }),
        case(
            "",
            &[cluster(DESCRIBE)],
            4,
            m::DescribeLogDirsRequest { topics: None },
            |r: &m::DescribeLogDirsResponse| vec![r.error_code],
        ),
        case(
            "",
            &[cluster(DESCRIBE_CONFIGS)],
            1,
            m::DescribeClientQuotasRequest::default(),
            |r: &m::DescribeClientQuotasResponse| vec![r.error_code],
        ),
        case("", &[cluster(ALTER_CONFIGS)], 1, quotas, |r: &m::AlterClientQuotasResponse| {
            vec![r.entries[0].error_code]
        }),
        case(
            "",
            &[cluster(DESCRIBE_CONFIGS)],
            1,
            m::ListConfigResourcesRequest::default(),
            |r: &m::ListConfigResourcesResponse| vec![r.error_code],
        ),
        case(
            "",
            &[cluster(DESCRIBE)],
            2,
            m::DescribeQuorumRequest::default(),
            |r: &m::DescribeQuorumResponse| vec![r.error_code],
        ),
        case(
            "",
            &[cluster(ALTER)],
            2,
            m::UpdateFeaturesRequest::default(),
            |r: &m::UpdateFeaturesResponse| vec![r.error_code],
        ),
        case(
            "",
            &[cluster(ALTER)],
            0,
            m::UnregisterBrokerRequest { broker_id: 77 },
            |r: &m::UnregisterBrokerResponse| vec![r.error_code],
        ),
    ]
}

/// APIs of features that are off. What else is refused of them needs no right.
fn off() -> Vec<Case> {
    macro_rules! share_state {
        ($($request:ident $answer:ident $module:ident $data:ident $version:literal;)*) => {
            vec![$({
                let topic = m::$module::$data { partitions: vec![Default::default()], ..Default::default() };
                let request = m::$request { topics: vec![topic], ..Default::default() };
                case("", &[cluster(CLUSTER_ACTION)], $version, request, |r: &m::$answer| {
                    vec![r.results[0].partitions[0].error_code]
                })
            },)*]
        };
    }
    let mut cases = share_state! {
        InitializeShareGroupStateRequest InitializeShareGroupStateResponse
            initialize_share_group_state_request InitializeStateData 0;
        ReadShareGroupStateRequest ReadShareGroupStateResponse read_share_group_state_request ReadStateData 0;
        WriteShareGroupStateRequest WriteShareGroupStateResponse write_share_group_state_request WriteStateData 1;
        DeleteShareGroupStateRequest DeleteShareGroupStateResponse delete_share_group_state_request DeleteStateData 0;
        ReadShareGroupStateSummaryRequest ReadShareGroupStateSummaryResponse
            read_share_group_state_summary_request ReadStateSummaryData 1;
    };
    let voter = m::AddRaftVoterRequest::default();
    cases.push(case("", &[cluster(ALTER)], 1, voter, |r: &m::AddRaftVoterResponse| vec![r.error_code]));
    let voter = m::RemoveRaftVoterRequest::default();
    cases.push(case("", &[cluster(ALTER)], 0, voter, |r: &m::RemoveRaftVoterResponse| vec![r.error_code]));
    cases
}

fn cases() -> Vec<Case> {
    [data(), groups(), transactions(), administration(), whole_cluster(), off()]
        .into_iter()
        .flatten()
        .collect()
}

fn connect_as(broker: &Arc<Broker>, user: &str) -> Connection {
    let address = "10.0.0.1:5000".parse().unwrap();
    broker.connect(Origin {
        principal: Principal::user(user),
        peer: address,
        local: address,
        listener: Arc::new(Listener { name: "SASL_SSL".into(), advertised: None }),
    })
}

async fn put_acl(root: &mut Connection, (resource_type, name, operation): Right, permission_type: i8) {
    let creation = m::create_acls_request::AclCreation {
        resource_type,
        resource_name: text(name),
        resource_pattern_type: 3,
        principal: text("User:a"),
        host: text("*"),
        operation,
        permission_type,
    };
    let request = m::CreateAclsRequest { creations: vec![creation] };
    let answer: m::CreateAclsResponse = call(root, 3, &request).await;
    assert_eq!(answer.results[0].error_code, 0, "{answer:?}");
}

async fn forget_acls(root: &mut Connection) {
    let filter = m::delete_acls_request::DeleteAclsFilter {
        resource_name_filter: None,
        principal_filter: None,
        host_filter: None,
        resource_type_filter: 1,
        pattern_type_filter: 1,
        operation: 1,
        permission_type: 1,
    };
    let request = m::DeleteAclsRequest { filters: vec![filter] };
    let answer: m::DeleteAclsResponse = call(root, 3, &request).await;
    let result = &answer.filter_results[0];
    assert_eq!((result.error_code, result.matching_acls.is_empty()), (0, false), "{answer:?}");
}

const AUTHORIZER: (&str, &str) =
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer");

/// A broker with the topic t, an offset of the group g in it, and the transactional id x.
async fn prepared(directory: &std::path::Path) -> (Arc<Broker>, Connection) {
    let settings = [AUTHORIZER, ("super.users", "User:root"), ("group.initial.rebalance.delay.ms", "0")];
    let broker = open_with(directory, &settings);
    let mut root = connect_as(&broker, "root");
    create_topic(&mut root, "t", 1, &[]).await;
    let commit = m::OffsetCommitRequest {
        group_id: text("g"),
        generation_id_or_member_epoch: -1,
        topics: vec![m::offset_commit_request::OffsetCommitRequestTopic {
            name: text("t"),
            partitions: vec![Default::default()],
            ..Default::default()
        }],
        ..Default::default()
    };
    let answer: m::OffsetCommitResponse = call(&mut root, 8, &commit).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    let init = m::InitProducerIdRequest {
        transactional_id: Some(text("x")),
        transaction_timeout_ms: 10_000,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    };
    let answer: m::InitProducerIdResponse = call(&mut root, 4, &init).await;
    assert_eq!(answer.error_code, 0);
    (broker, root)
}

fn refusals(codes: &[i16]) -> Vec<i16> {
    let is_refusal =
        |code: &&i16| [NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TRANSACTIONAL_ID, HIDDEN].contains(code);
    codes.iter().filter(is_refusal).copied().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_api_needs_its_rights_all_of_them_and_none_denied() {
    for case in cases() {
        let name = format!("{} {}", case.api.name(), case.what);
        let directory = tempfile::tempdir().unwrap();
        let (broker, mut root) = prepared(directory.path()).await;
        let ask = || (case.ask)(connect_as(&broker, "a"));
        assert!(!refusals(&ask().await).is_empty(), "{name}: without any right");
        for (missing, error) in &case.needs {
            for (right, _) in case.needs.iter().filter(|(right, _)| right != missing) {
                put_acl(&mut root, *right, ALLOW).await;
            }
            assert!(ask().await.contains(error), "{name}: without {missing:?}");
            if case.needs.len() > 1 {
                forget_acls(&mut root).await;
            }
        }
        for (right, _) in &case.needs {
            put_acl(&mut root, *right, ALLOW).await;
        }
        for (denied, error) in &case.needs {
            put_acl(&mut root, *denied, DENY).await;
            assert!(ask().await.contains(error), "{name}: {denied:?} denied, all allowed");
            forget_acls(&mut root).await;
            for (right, _) in &case.needs {
                put_acl(&mut root, *right, ALLOW).await;
            }
        }
        assert_eq!(refusals(&ask().await), Vec::<i16>::new(), "{name}: with all rights");
        broker.close().await;
    }
}

#[tokio::test]
async fn every_advertised_api_is_in_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[AUTHORIZER]);
    let mut connection = connect_as(&broker, "a");
    let answer: m::ApiVersionsResponse = call(&mut connection, 4, &crate::common::api_versions()).await;
    let mut missing = Vec::new();
    for api in answer.api_keys.iter().filter_map(|api| ApiKey::from_i16(api.api_key)) {
        let of_api: Vec<Case> = cases().into_iter().filter(|case| case.api == api).collect();
        let row = broker::served().iter().find(|row| row.key == api).unwrap();
        let as_in_the_row = match row.right {
            broker::Right::Free => of_api.is_empty(),
            broker::Right::PerResource => !of_api.is_empty(),
            broker::Right::Cluster(operation) => {
                !of_api.is_empty() && of_api.iter().all(|case| case.needs == [cluster(operation.code())])
            }
        };
        if !as_in_the_row {
            missing.push(api.name());
        }
    }
    assert_eq!(
        missing,
        Vec::<&str>::new(),
        "each is in the cases, with the right of its row, or is free, and not both"
    );
    let request = m::DescribeClusterRequest {
        include_cluster_authorized_operations: true,
        endpoint_type: 1,
        ..Default::default()
    };
    let answer: m::DescribeClusterResponse = call(&mut connection, 1, &request).await;
    assert_eq!((answer.error_code, answer.cluster_authorized_operations), (0, 0));
    assert_eq!(answer.brokers.len(), 1);
}

#[tokio::test]
async fn an_acl_takes_effect_in_a_fetch_session_that_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let (broker, mut root) = prepared(directory.path()).await;
    assert_eq!(crate::common::produce(&mut root, "t", 0, -1, batch()).await.0, 0);
    put_acl(&mut root, (TOPIC, "t", READ), ALLOW).await;
    let mut reader = connect_as(&broker, "a");
    let begin = crate::common::fetch_request((0, 0), 0, vec![crate::common::fetch_of("t", 0, 0)]);
    let begun: m::FetchResponse = call(&mut reader, 12, &begin).await;
    assert_eq!((begun.responses[0].partitions[0].error_code, begun.session_id != 0), (0, true));
    let go_on = |epoch| crate::common::fetch_request((begun.session_id, epoch), 0, Vec::new());
    put_acl(&mut root, (TOPIC, "t", READ), DENY).await;
    let denied: m::FetchResponse = call(&mut reader, 12, &go_on(1)).await;
    let partition = &denied.responses[0].partitions[0];
    assert_eq!(partition.error_code, NO_TOPIC);
    assert_eq!(partition.records.as_ref().map_or(0, |records| records.to_bytes().len()), 0);
    forget_acls(&mut root).await;
    put_acl(&mut root, (TOPIC, "t", READ), ALLOW).await;
    let again: m::FetchResponse = call(&mut reader, 12, &go_on(2)).await;
    assert_eq!(again.responses[0].partitions[0].error_code, 0);
    // The session id grants no right. The rights of the other principal are checked.
    let mut thief = connect_as(&broker, "b");
    let stolen: m::FetchResponse = call(&mut thief, 12, &go_on(3)).await;
    assert_eq!(stolen.responses[0].partitions[0].error_code, NO_TOPIC);
}
