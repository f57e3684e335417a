//! Requests of administrators to one server: log directories, elections, reassignments, pages of partitions, settings.

use model::{Compression, Timestamp};
use wire::messages as m;
use wire::records::BatchBuilder;
use wire::{ErrorCode, Text};

use crate::common::{call, close, connect, create_topic, open, produce, try_create_topic};

const NONE: i16 = 0;

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_described_page_by_page() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "b", 3, &[]).await;
    create_topic(&mut connection, "a", 2, &[]).await;
    let (mut cursor, mut seen, mut pages) = (None, Vec::new(), 0);
    loop {
        let request = m::DescribeTopicPartitionsRequest {
            topics: Vec::new(),
            response_partition_limit: 2,
            cursor: cursor.take(),
        };
        let answer: m::DescribeTopicPartitionsResponse = call(&mut connection, 0, &request).await;
        for topic in &answer.topics {
            let name = topic.name.as_ref().unwrap().to_string();
            seen.extend(topic.partitions.iter().map(|partition| (name.clone(), partition.partition_index)));
        }
        pages += 1;
        let Some(next) = answer.next_cursor else { break };
        cursor = Some(m::describe_topic_partitions_request::Cursor {
            topic_name: next.topic_name,
            partition_index: next.partition_index,
        });
    }
    let expected = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)];
    assert_eq!(seen, expected.map(|(name, index)| (name.to_owned(), index)));
    assert_eq!(pages, 3);
    let topics = vec![m::describe_topic_partitions_request::TopicRequest { name: Text::from_static("c") }];
    let request = m::DescribeTopicPartitionsRequest { topics, response_partition_limit: 9, cursor: None };
    let answer: m::DescribeTopicPartitionsResponse = call(&mut connection, 0, &request).await;
    assert_eq!(answer.topics[0].error_code, ErrorCode::UnknownTopicOrPartition.code());
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_directories_elections_and_reassignments_are_those_of_one_server() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 2, &[]).await;
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(1), Some(b"key"), Some(&[7; 1000]));
    assert_eq!(produce(&mut connection, "t", 1, -1, builder.finish()).await.0, NONE);

    let request = m::DescribeLogDirsRequest { topics: None };
    let answer: m::DescribeLogDirsResponse = call(&mut connection, 4, &request).await;
    let result = &answer.results[0];
    assert_eq!((answer.results.len(), result.error_code, result.topics.len()), (1, NONE, 1));
    let sizes: Vec<_> =
        result.topics[0].partitions.iter().map(|partition| partition.partition_size).collect();
    assert!(sizes[0] == 0 && sizes[1] > 1000, "{sizes:?}");
    assert!(result.usable_bytes > 0);
    let here = result.log_dir.clone();
    let dir = |path: Text, partitions: Vec<i32>| {
        let topics = vec![m::alter_replica_log_dirs_request::AlterReplicaLogDirTopic {
            name: Text::from_static("t"),
            partitions,
        }];
        m::alter_replica_log_dirs_request::AlterReplicaLogDir { path, topics }
    };
    let dirs = vec![dir(here, vec![0, 9]), dir(Text::from_static("/nowhere"), vec![1])];
    let answer: m::AlterReplicaLogDirsResponse =
        call(&mut connection, 2, &m::AlterReplicaLogDirsRequest { dirs }).await;
    let errors: Vec<_> = answer.results[0].partitions.iter().map(|partition| partition.error_code).collect();
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(errors, [NONE, unknown, ErrorCode::LogDirNotFound.code()]);

    let asked =
        |partitions| m::elect_leaders_request::TopicPartitions { topic: Text::from_static("t"), partitions };
    let request =
        |topic_partitions| m::ElectLeadersRequest { election_type: 0, topic_partitions, timeout_ms: 100 };
    let answer: m::ElectLeadersResponse =
        call(&mut connection, 2, &request(Some(vec![asked(vec![0, 9])]))).await;
    let errors: Vec<_> =
        answer.replica_election_results[0].partition_result.iter().map(|result| result.error_code).collect();
    assert_eq!(errors, [ErrorCode::ElectionNotNeeded.code(), unknown]);
    let answer: m::ElectLeadersResponse = call(&mut connection, 2, &request(None)).await;
    // As in Kafka, every topic is listed, with only the partitions that needed an election.
    assert!(answer.replica_election_results.iter().all(|topic| topic.partition_result.is_empty()));

    let partition = |partition_index, replicas| {
        m::alter_partition_reassignments_request::ReassignablePartition { partition_index, replicas }
    };
    let topic = m::alter_partition_reassignments_request::ReassignableTopic {
        name: Text::from_static("t"),
        partitions: vec![
            partition(0, Some(vec![1])),
            partition(0, Some(vec![2])),
            partition(0, Some(vec![])),
            partition(0, None),
            partition(9, Some(vec![1])),
        ],
    };
    let request = m::AlterPartitionReassignmentsRequest { topics: vec![topic], ..Default::default() };
    let answer: m::AlterPartitionReassignmentsResponse = call(&mut connection, 1, &request).await;
    let errors: Vec<_> =
        answer.responses[0].partitions.iter().map(|partition| partition.error_code).collect();
    let invalid = ErrorCode::InvalidReplicaAssignment.code();
    assert_eq!(errors, [NONE, invalid, invalid, ErrorCode::NoReassignmentInProgress.code(), unknown]);
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_alter_configs_replaces_all_settings_of_a_topic() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[("retention.ms", "5000"), ("segment.ms", "7000")]).await;
    let config = |name, value: &'static str| m::alter_configs_request::AlterableConfig {
        name: Text::from_static(name),
        value: Some(Text::from_static(value)),
    };
    let request = |configs, validate_only| m::AlterConfigsRequest {
        resources: vec![m::alter_configs_request::AlterConfigsResource {
            resource_type: 2,
            resource_name: Text::from_static("t"),
            configs,
        }],
        validate_only,
    };
    for (configs, validate_only, error) in [
        (vec![config("retention.ms", "8000")], true, NONE),
        (vec![config("retention.ms", "many")], false, ErrorCode::InvalidConfig.code()),
        (vec![config("retention.ms", "9000")], false, NONE),
    ] {
        let answer: m::AlterConfigsResponse =
            call(&mut connection, 2, &request(configs, validate_only)).await;
        assert_eq!(answer.responses[0].error_code, error);
    }
    let resource = m::describe_configs_request::DescribeConfigsResource {
        resource_type: 2,
        resource_name: Text::from_static("t"),
        configuration_keys: Some(vec![Text::from_static("retention.ms"), Text::from_static("segment.ms")]),
    };
    let request = m::DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let answer: m::DescribeConfigsResponse = call(&mut connection, 4, &request).await;
    let values: Vec<_> =
        answer.results[0].configs.iter().map(|config| config.value.clone().unwrap().to_string()).collect();
    assert!(values.contains(&"9000".to_owned()) && !values.contains(&"7000".to_owned()), "{values:?}");

    let request = m::ListConfigResourcesRequest { resource_types: vec![2, 4] };
    let answer: m::ListConfigResourcesResponse = call(&mut connection, 1, &request).await;
    let listed: Vec<_> =
        answer.config_resources.iter().map(|r| (r.resource_type, r.resource_name.to_string())).collect();
    assert_eq!(listed, [(2, "t".to_owned()), (4, "1".to_owned())]);
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_authorizer_security_is_disabled() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let disabled = ErrorCode::SecurityDisabled.code();
    let answer: m::DescribeAclsResponse = call(&mut connection, 3, &m::DescribeAclsRequest::default()).await;
    assert_eq!(answer.error_code, disabled);
    assert_eq!(answer.error_message, Some(Text::from_static("No Authorizer is configured on the broker")));
    let creations = vec![m::create_acls_request::AclCreation::default(); 2];
    let answer: m::CreateAclsResponse = call(&mut connection, 3, &m::CreateAclsRequest { creations }).await;
    assert_eq!(answer.results.iter().map(|result| result.error_code).collect::<Vec<_>>(), [disabled; 2]);
    let filters = vec![m::delete_acls_request::DeleteAclsFilter::default(); 2];
    let answer: m::DeleteAclsResponse = call(&mut connection, 3, &m::DeleteAclsRequest { filters }).await;
    assert_eq!(answer.filter_results.iter().map(|one| one.error_code).collect::<Vec<_>>(), [disabled; 2]);
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_and_special_values_are_refused_as_kafka_refuses_them() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let invalid = ErrorCode::InvalidConfig.code();
    for (configs, code) in [
        (vec![("compression.type", "zstd"), ("compression.zstd.level", "-5")], 0),
        (vec![("compression.type", "brotli")], invalid),
        (vec![("segment.bytes", "13")], invalid),
        (vec![("segment.bytes", "1048576"), ("segment.ms", "1")], 0),
        (vec![("segment.ms", "0")], invalid),
        (vec![("internal.segment.bytes", "13")], 0),
        (vec![("max.compaction.lag.ms", "0")], invalid),
        (vec![("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")], invalid),
        (vec![("flush.messages", "0")], invalid),
        (vec![("retention.bytes", "-2")], 0),
        (vec![("preallocate", "TRUE")], 0),
        (vec![("cleanup.policy", "compact,compact")], 0),
        (vec![("cleanup.policy", "compact,")], invalid),
        (vec![("remote.storage.enable", "true")], invalid),
        (vec![("follower.replication.throttled.replicas", "0:1,1:1")], 0),
        (vec![("follower.replication.throttled.replicas", "all")], invalid),
    ] {
        let found = try_create_topic(&mut connection, "t", 1, &configs).await;
        assert_eq!(found.error_code, code, "{configs:?}: {:?}", found.error_message);
        if code == 0 {
            let request = m::DeleteTopicsRequest {
                topics: vec![m::delete_topics_request::DeleteTopicState {
                    name: Some(Text::from_static("t")),
                    ..Default::default()
                }],
                timeout_ms: 5000,
                ..Default::default()
            };
            let answer: m::DeleteTopicsResponse = call(&mut connection, 6, &request).await;
            assert_eq!(answer.responses[0].error_code, 0);
        }
    }
    let found = try_create_topic(&mut connection, "__cluster_metadata", 1, &[]).await;
    assert_eq!(found.error_code, ErrorCode::InvalidRequest.code());

    // A request with a timeout of zero or less does nothing.
    let topic = m::create_topics_request::CreatableTopic {
        name: Text::from_static("in-no-time"),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    };
    let request = m::CreateTopicsRequest { topics: vec![topic], timeout_ms: 0, ..Default::default() };
    let answer: m::CreateTopicsResponse = call(&mut connection, 7, &request).await;
    assert_eq!(answer.topics[0].error_code, ErrorCode::RequestTimedOut.code());

    // A request names up to 10,000 partitions, and creates up to 10,000 topics and partitions, or nothing.
    let topic = |name, num_partitions| m::create_topics_request::CreatableTopic {
        name: Text::from_static(name),
        num_partitions,
        replication_factor: -1,
        ..Default::default()
    };
    for (first, last, code) in [
        (9_999, -1, ErrorCode::PolicyViolation),
        (9_998, 0, ErrorCode::PolicyViolation),
        (9_997, 0, ErrorCode::None),
    ] {
        let topics = vec![topic("many", first), topic("few", 1), topic("none", last)];
        let request = m::CreateTopicsRequest { topics, timeout_ms: 1000, validate_only: true };
        let answer: m::CreateTopicsResponse = call(&mut connection, 7, &request).await;
        assert_eq!(answer.topics.len(), 3);
        let found: Vec<i16> = answer.topics.iter().take(2).map(|topic| topic.error_code).collect();
        assert_eq!(found, [code.code(); 2], "{first} {last}");
    }

    create_topic(&mut connection, "in-no-time", 1, &[]).await;
    let asked = |timestamp| m::list_offsets_request::ListOffsetsPartition {
        partition_index: 0,
        current_leader_epoch: -1,
        timestamp,
    };
    for (version, timestamps, codes) in [
        (5, vec![-3], vec![ErrorCode::UnsupportedVersion]),
        (7, vec![-3], vec![ErrorCode::None]),
        (8, vec![-5], vec![ErrorCode::UnsupportedVersion]),
        (9, vec![-5], vec![ErrorCode::None]),
        (9, vec![-1, -2], vec![ErrorCode::InvalidRequest]),
    ] {
        let topics = vec![m::list_offsets_request::ListOffsetsTopic {
            name: Text::from_static("in-no-time"),
            partitions: timestamps.into_iter().map(asked).collect(),
        }];
        let request = m::ListOffsetsRequest { topics, replica_id: -1, ..Default::default() };
        let answer: m::ListOffsetsResponse = call(&mut connection, version, &request).await;
        let found: Vec<i16> =
            answer.topics[0].partitions.iter().map(|partition| partition.error_code).collect();
        let codes: Vec<i16> = codes.into_iter().map(ErrorCode::code).collect();
        assert_eq!(found, codes, "version {version}");
    }
    broker.close().await;
}

/// What is off is refused with the error that Kafka gives, for each group that is asked for, and for tokens by who asks.
#[tokio::test(flavor = "multi_thread")]
async fn features_that_are_off_are_refused_as_kafka_refuses_them() {
    const UNSUPPORTED_VERSION: i16 = 35;
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let heartbeat: m::ShareGroupHeartbeatResponse =
        call(&mut connection, 1, &m::ShareGroupHeartbeatRequest::default()).await;
    assert_eq!(heartbeat.error_code, UNSUPPORTED_VERSION);
    assert_eq!(heartbeat.error_message.unwrap().as_str(), "The version of API is not supported.");
    let groups = vec![Text::from_static("a"), Text::from_static("b")];
    let request = m::ShareGroupDescribeRequest { group_ids: groups, ..Default::default() };
    let described: m::ShareGroupDescribeResponse = call(&mut connection, 1, &request).await;
    let shown: Vec<_> =
        described.groups.iter().map(|group| (group.group_id.as_str(), group.error_code)).collect();
    assert_eq!(shown, [("a", UNSUPPORTED_VERSION), ("b", UNSUPPORTED_VERSION)]);
    // DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    let tokens: m::DescribeDelegationTokenResponse =
        call(&mut connection, 3, &m::DescribeDelegationTokenRequest::default()).await;
    assert_eq!(tokens.error_code, 64);
    broker.close().await;
}
