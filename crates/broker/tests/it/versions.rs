//! Every version that ApiVersions advertises is answered, and the answer decodes completely as that version.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::{Connection, Right};
use wire::messages::{self as m, MESSAGES};
use wire::{ApiKey, Bytes, Chunks, Message, Reader, Text, frame};

use crate::common::{call, connect, open, open_with, unframed};

/// Lets the server tell of all APIs that it has.
const TELEMETRY: (&str, &str) = ("client.telemetry.enable", "true");

/// Requests with default values, by API.
fn default_request(api_key: ApiKey, version: i16) -> Chunks {
    macro_rules! of {
        ($($key:ident => $request:ident),+ $(,)?) => {
            match api_key {
                $(ApiKey::$key => {
                    let client = Text::from_static("test");
                    frame::encode_request(api_key, version, 5, Some(&client), &m::$request::default()).unwrap()
                })+
                other => panic!("{} is advertised, add it here", other.name()),
            }
        };
    }
    of!(
        Produce => ProduceRequest, Fetch => FetchRequest, ListOffsets => ListOffsetsRequest,
        Metadata => MetadataRequest, OffsetCommit => OffsetCommitRequest, OffsetFetch => OffsetFetchRequest,
        FindCoordinator => FindCoordinatorRequest, JoinGroup => JoinGroupRequest, Heartbeat => HeartbeatRequest,
        LeaveGroup => LeaveGroupRequest, SyncGroup => SyncGroupRequest, DescribeGroups => DescribeGroupsRequest,
        ListGroups => ListGroupsRequest, ApiVersions => ApiVersionsRequest, CreateTopics => CreateTopicsRequest,
        DeleteTopics => DeleteTopicsRequest, InitProducerId => InitProducerIdRequest,
        OffsetForLeaderEpoch => OffsetForLeaderEpochRequest, DescribeConfigs => DescribeConfigsRequest,
        IncrementalAlterConfigs => IncrementalAlterConfigsRequest, CreatePartitions => CreatePartitionsRequest,
        DeleteGroups => DeleteGroupsRequest, DescribeCluster => DescribeClusterRequest,
        OffsetDelete => OffsetDeleteRequest, DeleteRecords => DeleteRecordsRequest,
        AddPartitionsToTxn => AddPartitionsToTxnRequest, AddOffsetsToTxn => AddOffsetsToTxnRequest,
        AlterConfigs => AlterConfigsRequest, ListConfigResources => ListConfigResourcesRequest,
        DescribeAcls => DescribeAclsRequest, CreateAcls => CreateAclsRequest, DeleteAcls => DeleteAclsRequest,
        AlterReplicaLogDirs => AlterReplicaLogDirsRequest,
        DescribeLogDirs => DescribeLogDirsRequest, ElectLeaders => ElectLeadersRequest,
        AlterPartitionReassignments => AlterPartitionReassignmentsRequest,
        ListPartitionReassignments => ListPartitionReassignmentsRequest,
        DescribeTopicPartitions => DescribeTopicPartitionsRequest,
        DescribeQuorum => DescribeQuorumRequest, UpdateFeatures => UpdateFeaturesRequest,
        UnregisterBroker => UnregisterBrokerRequest,
        ConsumerGroupHeartbeat => ConsumerGroupHeartbeatRequest, ConsumerGroupDescribe => ConsumerGroupDescribeRequest,
        EndTxn => EndTxnRequest, TxnOffsetCommit => TxnOffsetCommitRequest,
        WriteTxnMarkers => WriteTxnMarkersRequest, DescribeProducers => DescribeProducersRequest,
        DescribeClientQuotas => DescribeClientQuotasRequest, AlterClientQuotas => AlterClientQuotasRequest,
        SaslHandshake => SaslHandshakeRequest, SaslAuthenticate => SaslAuthenticateRequest,
        DescribeUserScramCredentials => DescribeUserScramCredentialsRequest,
        AlterUserScramCredentials => AlterUserScramCredentialsRequest,
        GetTelemetrySubscriptions => GetTelemetrySubscriptionsRequest, PushTelemetry => PushTelemetryRequest,
        DescribeTransactions => DescribeTransactionsRequest, ListTransactions => ListTransactionsRequest,
        CreateDelegationToken => CreateDelegationTokenRequest, RenewDelegationToken => RenewDelegationTokenRequest,
        ExpireDelegationToken => ExpireDelegationTokenRequest, DescribeDelegationToken => DescribeDelegationTokenRequest,
        ShareGroupHeartbeat => ShareGroupHeartbeatRequest, ShareGroupDescribe => ShareGroupDescribeRequest,
        ShareFetch => ShareFetchRequest, ShareAcknowledge => ShareAcknowledgeRequest,
        AddRaftVoter => AddRaftVoterRequest, RemoveRaftVoter => RemoveRaftVoterRequest,
        InitializeShareGroupState => InitializeShareGroupStateRequest, ReadShareGroupState => ReadShareGroupStateRequest,
        WriteShareGroupState => WriteShareGroupStateRequest, DeleteShareGroupState => DeleteShareGroupStateRequest,
        ReadShareGroupStateSummary => ReadShareGroupStateSummaryRequest,
        StreamsGroupHeartbeat => StreamsGroupHeartbeatRequest, StreamsGroupDescribe => StreamsGroupDescribeRequest,
        DescribeShareGroupOffsets => DescribeShareGroupOffsetsRequest,
        AlterShareGroupOffsets => AlterShareGroupOffsetsRequest, DeleteShareGroupOffsets => DeleteShareGroupOffsetsRequest,
    )
}

async fn advertised(connection: &mut Connection) -> BTreeMap<i16, (i16, i16)> {
    let answer: m::ApiVersionsResponse = call(connection, 4, &crate::common::api_versions()).await;
    answer.api_keys.iter().map(|api| (api.api_key, (api.min_version, api.max_version))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promised_version_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[TELEMETRY]);
    let mut connection = connect(&broker);
    let mut answered = 0;
    for (key, (min, max)) in advertised(&mut connection).await {
        let api_key = ApiKey::from_i16(key).unwrap();
        let response = MESSAGES.iter().find(|info| info.key == Some(key) && !info.is_request).unwrap();
        // Produce is advertised from version 0 for librdkafka, and refused below 3.
        for version in min.max(*api_key.valid_versions().start())..=max {
            let name = format!("{} v{version}", api_key.name());
            let request = default_request(api_key, version);
            let Some(answer) = connection.begin(unframed(&request)).await.unwrap() else {
                assert_eq!(api_key, ApiKey::Produce, "{name}: acks defaults to 0");
                continue;
            };
            let answer =
                tokio::time::timeout(Duration::from_secs(10), answer).await.expect(&name).expect(&name);
            let mut reader = Reader::new(unframed(&answer));
            assert_eq!(frame::decode_response_header(&mut reader, api_key, version).unwrap(), 5, "{name}");
            (response.recode)(&mut reader, version).expect(&name).expect(&name);
            reader.expect_end().expect(&name);
            answered += 1;
        }
    }
    assert!(answered > 100, "{answered}");
    broker.close().await;
}

/// As Kafka without a reporter that takes clients' metrics. librdkafka logs a line at each start where it is otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn clients_hear_of_telemetry_only_where_it_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let told = advertised(&mut connect(&broker)).await;
    assert!(!told.contains_key(&ApiKey::GetTelemetrySubscriptions.code()));
    assert!(!told.contains_key(&ApiKey::PushTelemetry.code()));
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_promised_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[TELEMETRY]);
    let mut connection = connect(&broker);
    let promised = advertised(&mut connection).await;
    for version in 0..3 {
        let header =
            [&0i16.to_be_bytes()[..], &i16::to_be_bytes(version), &[0; 4], &[255, 255], &[0; 64]].concat();
        assert!(connection.begin(Bytes::from(header)).await.is_err(), "Produce v{version}");
    }
    for key in -5..200i16 {
        for version in [-1, 0, 1, 5, 20, 99, i16::MAX] {
            let covered = promised.get(&key).is_some_and(|(min, max)| (*min..=*max).contains(&version));
            if covered || key == ApiKey::ApiVersions.code() {
                continue;
            }
            let header =
                [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0; 4], &[255, 255], &[0; 64]].concat();
            assert!(connection.begin(Bytes::from(header)).await.is_err(), "key {key} version {version}");
        }
    }
    // An unknown version of ApiVersions is answered in version 0, so that the client learns the supported versions.
    let header =
        [&18i16.to_be_bytes()[..], &99i16.to_be_bytes(), &7i32.to_be_bytes(), &[255, 255, 0]].concat();
    let answer = connection.begin(Bytes::from(header)).await.unwrap().unwrap().await.unwrap();
    let mut reader = Reader::new(unframed(&answer));
    assert_eq!(frame::decode_response_header(&mut reader, ApiKey::ApiVersions, 0).unwrap(), 7);
    let answer = m::ApiVersionsResponse::decode(&mut reader, 0).unwrap();
    assert_eq!(answer.error_code, wire::ErrorCode::UnsupportedVersion.code());
    let keys: Vec<i16> = answer.api_keys.iter().map(|versions| versions.api_key).collect();
    assert_eq!(keys, [ApiKey::ApiVersions.code()], "its own key alone, as Kafka");
    // Java clients before 3.9 fail on a feature whose lowest level is 0 (KAFKA-17011).
    for (version, features) in [(3, 0), (4, 2)] {
        let request = m::ApiVersionsRequest {
            client_software_name: Text::from_static("test"),
            client_software_version: Text::from_static("1"),
            ..Default::default()
        };
        let answer: m::ApiVersionsResponse = crate::common::call(&mut connection, version, &request).await;
        assert_eq!((answer.error_code, answer.api_keys.len()), (0, promised.len()));
        assert_eq!(answer.supported_features.len(), features, "version {version}");
    }
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_ask_for_the_same_new_topic_at_once_all_get_it() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[TELEMETRY]);
    let ask = |mut connection: Connection| async move {
        let name = Some(Text::from_static("new"));
        let topic = m::metadata_request::MetadataRequestTopic { name, ..Default::default() };
        let request = m::MetadataRequest {
            topics: Some(vec![topic]),
            allow_auto_topic_creation: true,
            ..Default::default()
        };
        let answer: m::MetadataResponse = call(&mut connection, 12, &request).await;
        (answer.topics[0].error_code, answer.topics[0].topic_id)
    };
    let asking: Vec<_> = (0..16).map(|_| tokio::spawn(ask(connect(&broker)))).collect();
    let mut answers = Vec::new();
    for asked in asking {
        answers.push(asked.await.unwrap());
    }
    assert!(answers.iter().all(|answer| answer.0 == 0 && answer.1 == answers[0].1), "{answers:?}");
    broker.close().await;
}

/// The table of docs/protocol.md, from the answer of ApiVersions.
async fn table(connection: &mut Connection) -> String {
    use std::fmt::Write;

    let answer: m::ApiVersionsResponse = call(connection, 4, &crate::common::api_versions()).await;
    let promised: BTreeMap<i16, (i16, i16)> =
        answer.api_keys.iter().map(|api| (api.api_key, (api.min_version, api.max_version))).collect();
    let mut table = String::from(
        "| key | API | versions | in Kafka 4.4's schemas | right | quota | when the client hangs up |\n|---|---|---|---|---|---|---|\n",
    );
    let (mut missing, mut of_brokers) = (Vec::new(), Vec::new());
    for api_key in ApiKey::ALL {
        let schema = api_key.valid_versions();
        match promised.get(&api_key.code()) {
            Some((min, max)) => {
                let row = broker::served().iter().find(|row| row.key == *api_key).unwrap();
                let right = match row.right {
                    Right::Free => "none".to_owned(),
                    Right::PerResource => "by resource".to_owned(),
                    Right::Cluster(operation) => format!("{operation:?} on the cluster"),
                };
                let quota = row.quota.map_or("request time", |quota| quota.name());
                let end = if row.carried_through { "goes on" } else { "stops" };
                let (code, name) = (api_key.code(), api_key.name());
                let schema = format!("{} to {}", schema.start(), schema.end());
                writeln!(
                    table,
                    "| {code} | {name} | {min} to {max} | {schema} | {right} | {quota} | {end} |"
                )
                .unwrap();
            }
            None if broker::served().iter().any(|row| row.key == *api_key) => {
                of_brokers.push(format!("{} ({})", api_key.name(), api_key.code()));
            }
            None => missing.push(api_key.name()),
        }
    }
    writeln!(table, "\nNot served: {}.", missing.join(", ")).unwrap();
    let own = of_brokers.join(", ");
    writeln!(table, "\nNot in Kafka, for brokers of a cluster alone, with the right ClusterAction: {own}.")
        .unwrap();
    table.push_str("\n| feature | levels | level |\n|---|---|---|\n");
    for feature in &answer.supported_features {
        let level = answer.finalized_features.iter().find(|other| other.name == feature.name).unwrap();
        let (min, max) = (feature.min_version, feature.max_version);
        writeln!(table, "| `{}` | {min} to {max} | {} |", feature.name, level.max_version_level).unwrap();
    }
    table
}

/// `MAINSTEM_WRITE_DOCS=1 cargo test -p mainstem-broker --test it versions::` rewrites the table.
#[tokio::test(flavor = "multi_thread")]
async fn the_documents_say_what_apiversions_answers() {
    const BEGIN: &str = "<!-- the table -->\n";
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[TELEMETRY]);
    let table = table(&mut connect(&broker)).await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (head, shown) = page.split_once(BEGIN).expect("the page has a place for the table");
    if std::env::var_os("MAINSTEM_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{BEGIN}{table}")).unwrap();
    } else {
        assert_eq!(shown, table, "docs/protocol.md is out of date");
    }
    broker.close().await;
}
