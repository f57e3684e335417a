//! Tiered topics (KIP-405): consumers and tools see one log, wherever a record lies.

use std::time::{Duration, Instant};

use broker::Connection;
use wire::messages as m;
use wire::{ErrorCode, Text};

use crate::common::store::{Machine, fill, read_back};
use crate::common::{call, close, connect, create_topic, fetch_of, fetch_request, try_create_topic};

const TOPIC: &str = "tiered";
const EARLIEST: i64 = -2;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;
const PATIENCE: Duration = Duration::from_secs(20);
const TIERED: [(&str, &str); 3] =
    [("remote.storage.enable", "true"), ("local.retention.bytes", "1"), ("retention.ms", "-1")];

async fn offset(connection: &mut Connection, topic: &'static str, timestamp: i64) -> i64 {
    use m::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    let partitions = vec![ListOffsetsPartition { timestamp, ..Default::default() }];
    let topics = vec![ListOffsetsTopic { name: Text::from_static(topic), partitions }];
    let request = m::ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
    let answer: m::ListOffsetsResponse = call(connection, 11, &request).await;
    let found = &answer.topics[0].partitions[0];
    assert_eq!(found.error_code, 0);
    found.offset
}

/// Waits until the offset for a timestamp is what it should be.
async fn until_offset(connection: &mut Connection, timestamp: i64, fits: impl Fn(i64) -> bool) -> i64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = offset(connection, TOPIC, timestamp).await;
        if fits(found) {
            return found;
        }
        assert!(Instant::now() < deadline, "the offset for {timestamp} stays {found}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_do_not_notice_where_a_record_lies() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &TIERED).await;
    create_topic(&mut client, "local", 1, &[("retention.ms", "-1")]).await;
    fill(&mut client, TOPIC, 0..4000).await;
    fill(&mut client, "local", 0..1000).await;
    // Whole segments leave the local disk, and all records stay.
    let local = until_offset(&mut client, EARLIEST_LOCAL, |local| local > 2000).await;
    assert_eq!(offset(&mut client, TOPIC, EARLIEST).await, 0);
    assert_eq!(until_offset(&mut client, LATEST_TIERED, |tiered| tiered == 3999).await, 3999);
    assert_eq!(offset(&mut client, TOPIC, EARLIEST_PENDING_UPLOAD).await, -1);
    assert_eq!(offset(&mut client, TOPIC, 1_700_000_000_777).await, 777);
    for (timestamp, found) in [(EARLIEST_LOCAL, 0), (LATEST_TIERED, -1), (EARLIEST_PENDING_UPLOAD, -1)] {
        assert_eq!(offset(&mut client, "local", timestamp).await, found);
    }
    read_back(&mut client, TOPIC, 0, 4000).await;
    drop(client);
    close(broker).await;

    let broker = machine.open();
    let mut client = connect(&broker);
    // Segments without live records may be found again, until the next check of the local retention.
    until_offset(&mut client, EARLIEST_LOCAL, |found| found >= local).await;
    read_back(&mut client, TOPIC, 0, 4000).await;
    fill(&mut client, TOPIC, 4000..4100).await;
    read_back(&mut client, TOPIC, 3990, 4100).await;

    // What is deleted leaves the bucket, too.
    let before = machine.objects();
    let topic = m::delete_records_request::DeleteRecordsTopic {
        name: Text::from_static(TOPIC),
        partitions: vec![m::delete_records_request::DeleteRecordsPartition {
            partition_index: 0,
            offset: 1500,
        }],
    };
    let request = m::DeleteRecordsRequest { topics: vec![topic], timeout_ms: 5000 };
    let answer: m::DeleteRecordsResponse = call(&mut client, 2, &request).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    assert_eq!(offset(&mut client, TOPIC, EARLIEST).await, 1500);
    read_back(&mut client, TOPIC, 1500, 4100).await;
    let deadline = Instant::now() + PATIENCE;
    while machine.objects() + 4 > before {
        assert!(Instant::now() < deadline, "{} of {before} objects are left", machine.objects());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A topic of which no more is stored has records that are not.
    let uncopied = [TIERED[0], TIERED[2], ("remote.log.copy.disable", "true")];
    create_topic(&mut client, "uncopied", 1, &uncopied).await;
    assert_eq!(offset(&mut client, "uncopied", EARLIEST_PENDING_UPLOAD).await, -1);
    fill(&mut client, "uncopied", 0..10).await;
    assert_eq!(offset(&mut client, "uncopied", EARLIEST_PENDING_UPLOAD).await, 0);
    drop(client);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_say_has_the_brokers_local_retention() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &[TIERED[0], TIERED[2]]).await;
    fill(&mut client, TOPIC, 0..4000).await;
    until_offset(&mut client, LATEST_TIERED, |tiered| tiered == 3999).await;
    assert_eq!(offset(&mut client, TOPIC, EARLIEST_LOCAL).await, 0);
    let (error, message) = alter(&mut client, OF_ALL_BROKERS, &[("log.local.retention.ms", "-1")]).await;
    assert!(error == ErrorCode::InvalidRequest.code() && message.contains("log.retention.ms"), "{message}");
    assert_eq!(alter(&mut client, OF_ALL_BROKERS, &[("log.local.retention.bytes", "1")]).await.0, 0);
    until_offset(&mut client, EARLIEST_LOCAL, |local| local > 2000).await;
    let more = [TIERED[0], ("retention.bytes", "0")];
    let refused = try_create_topic(&mut client, "small", 1, &more).await;
    assert_eq!(refused.error_code, ErrorCode::InvalidConfig.code());
    read_back(&mut client, TOPIC, 0, 4000).await;
    drop(client);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_stops_nobody_but_who_reads_from_it() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &TIERED).await;
    fill(&mut client, TOPIC, 0..4000).await;
    until_offset(&mut client, EARLIEST_LOCAL, |local| local > 2000).await;
    let away = machine.home.path().join("away");
    std::fs::rename(machine.bucket(), &away).unwrap();
    fill(&mut client, TOPIC, 4000..6000).await;
    read_back(&mut client, TOPIC, 4000, 6000).await;
    let request = fetch_request((0, -1), 1000, vec![fetch_of(TOPIC, 0, 0)]);
    let answer: m::FetchResponse = call(&mut client, 12, &request).await;
    assert_eq!(answer.responses[0].partitions[0].error_code, ErrorCode::KafkaStorageError.code());
    let _ = std::fs::remove_dir_all(machine.bucket());
    std::fs::rename(&away, machine.bucket()).unwrap();
    until_offset(&mut client, LATEST_TIERED, |tiered| tiered == 5999).await;
    read_back(&mut client, TOPIC, 0, 6000).await;
    drop(client);
    close(broker).await;
}

const OF_TOPIC: (i8, &str) = (2, TOPIC);
const OF_ALL_BROKERS: (i8, &str) = (4, "");

async fn alter(
    connection: &mut Connection,
    (resource_type, name): (i8, &'static str),
    settings: &[(&str, &str)],
) -> (i16, String) {
    use m::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let configs = settings.iter().map(|(name, value)| AlterableConfig {
        name: Text::from((*name).to_owned()),
        config_operation: 0,
        value: Some(Text::from((*value).to_owned())),
    });
    let resource = AlterConfigsResource {
        resource_type,
        resource_name: Text::from_static(name),
        configs: configs.collect(),
    };
    let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer: m::IncrementalAlterConfigsResponse = call(connection, 1, &request).await;
    let answer = &answer.responses[0];
    (answer.error_code, answer.error_message.as_ref().map_or(String::new(), |message| message.to_string()))
}

/// The rules are those of Kafka's `LogConfig`.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_contradict_each_other_are_refused_as_in_kafka() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut client = connect(&broker);
    let invalid = ErrorCode::InvalidConfig.code();
    let on = ("remote.storage.enable", "true");
    for (settings, said) in [
        (vec![on, ("cleanup.policy", "compact")], "only supports topics with cleanup.policy=delete"),
        (vec![on, ("local.retention.ms", "10"), ("retention.ms", "5")], "Value must not be more than"),
        (vec![on, ("local.retention.ms", "-1"), ("retention.ms", "5")], "Value must not be -1"),
        (vec![on, ("local.retention.bytes", "10"), ("retention.bytes", "5")], "Value must not be more than"),
        (vec![on, ("remote.log.copy.disable", "true"), ("local.retention.ms", "1")], "identical value"),
    ] {
        let found = try_create_topic(&mut client, TOPIC, 1, &settings).await;
        let message = found.error_message.map_or(String::new(), |message| message.to_string());
        assert!(found.error_code == invalid && message.contains(said), "{settings:?}: {message}");
    }
    create_topic(&mut client, TOPIC, 1, &TIERED).await;
    fill(&mut client, TOPIC, 0..4000).await;
    until_offset(&mut client, LATEST_TIERED, |tiered| tiered == 3999).await;
    // Objects that were put at the same time as the newest one stay until another one says that they count.
    fill(&mut client, TOPIC, 4000..4010).await;
    until_offset(&mut client, LATEST_TIERED, |tiered| tiered == 4009).await;
    let local = until_offset(&mut client, EARLIEST_LOCAL, |local| local > 2000).await;
    let (error, message) = alter(&mut client, OF_TOPIC, &[("remote.storage.enable", "false")]).await;
    assert!(error == invalid && message.contains("without deleting remote data"), "{message}");
    let off = [("remote.storage.enable", "false"), ("remote.log.delete.on.disable", "true")];
    assert_eq!(alter(&mut client, OF_TOPIC, &off).await.0, 0);
    // What was in the object store alone is gone, the rest is not.
    let start = until_offset(&mut client, EARLIEST, |start| start >= local).await;
    assert_eq!(until_offset(&mut client, LATEST_TIERED, |tiered| tiered == -1).await, -1);
    read_back(&mut client, TOPIC, start, 4010).await;
    let deadline = Instant::now() + PATIENCE;
    while machine.objects() > 1 {
        assert!(Instant::now() < deadline, "{} objects are left", machine.objects());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(client);
    close(broker).await;
}
