//! Client quotas: which quota applies to a client, what a client over its quota is told, and that a restart keeps the
//! quotas.

use std::time::{Duration, Instant};

use broker::Connection;
use model::{Compression, Timestamp};
use wire::messages as m;
use wire::records::BatchBuilder;
use wire::{ErrorCode, Text};

use crate::common::{call, close, connect, create_topic, fetch_of, fetch_request, open, open_with};

const NONE: i16 = 0;
const INVALID_REQUEST: i16 = ErrorCode::InvalidRequest as i16;
const PRODUCE: &str = "producer_byte_rate";
const FETCH: &str = "consumer_byte_rate";
const REQUEST: &str = "request_percentage";
const MUTATION: &str = "controller_mutation_rate";

type Entity<'a> = &'a [(&'a str, Option<&'a str>)];

fn text(text: &str) -> Text {
    Text::from(text.to_owned())
}

/// Sets or removes a quota. Returns the error code and message.
async fn alter(
    connection: &mut Connection,
    entity: Entity<'_>,
    ops: &[(&str, Option<f64>)],
) -> (i16, String) {
    let part = |(part, name): &(&str, Option<&str>)| m::alter_client_quotas_request::EntityData {
        entity_type: text(part),
        entity_name: name.map(text),
    };
    let op = |(key, value): &(&str, Option<f64>)| m::alter_client_quotas_request::OpData {
        key: text(key),
        value: value.unwrap_or_default(),
        remove: value.is_none(),
    };
    let entry = m::alter_client_quotas_request::EntryData {
        entity: entity.iter().map(part).collect(),
        ops: ops.iter().map(op).collect(),
    };
    let request = m::AlterClientQuotasRequest { entries: vec![entry], validate_only: false };
    let answer: m::AlterClientQuotasResponse = call(connection, 1, &request).await;
    let answer = &answer.entries[0];
    (answer.error_code, answer.error_message.as_ref().map(ToString::to_string).unwrap_or_default())
}

/// All quotas, as `part=name ...: key=value ...`.
async fn all(connection: &mut Connection) -> Vec<String> {
    let answer: m::DescribeClientQuotasResponse =
        call(connection, 1, &m::DescribeClientQuotasRequest::default()).await;
    let entry = |entry: &m::describe_client_quotas_response::EntryData| {
        let name = |of: &m::describe_client_quotas_response::EntityData| {
            format!("{}={}", of.entity_type, of.entity_name.as_ref().map_or("<default>", Text::as_str))
        };
        let value = |of: &m::describe_client_quotas_response::ValueData| format!("{}={}", of.key, of.value);
        let names: Vec<String> = entry.entity.iter().map(name).collect();
        let values: Vec<String> = entry.values.iter().map(value).collect();
        format!("{}: {}", names.join(" "), values.join(" "))
    };
    answer.entries.unwrap().iter().map(entry).collect()
}

/// Produces this number of bytes. Returns the throttle time.
async fn produce(connection: &mut Connection, bytes: usize) -> i32 {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(1), None, Some(&vec![7; bytes]));
    let data = m::produce_request::PartitionProduceData { index: 0, records: Some(builder.finish().into()) };
    let topic = m::produce_request::TopicProduceData {
        name: text("t"),
        partition_data: vec![data],
        ..Default::default()
    };
    let request =
        m::ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], transactional_id: None };
    let answer: m::ProduceResponse = call(connection, 12, &request).await;
    assert_eq!(answer.responses[0].partition_responses[0].error_code, NONE, "it is taken all the same");
    answer.throttle_time_ms
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_set_described_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let user: Entity = &[("user", Some("u"))];
    for (entity, ops, error) in [
        (user, vec![(PRODUCE, Some(1000.0)), (REQUEST, Some(0.5))], NONE),
        (&[("user", Some("u")), ("client-id", None)], vec![(FETCH, Some(5.0))], NONE),
        (&[("ip", None)], vec![("connection_creation_rate", Some(7.0))], NONE),
        (user, vec![(PRODUCE, Some(0.0))], INVALID_REQUEST),
        (user, vec![(PRODUCE, Some(1.5))], INVALID_REQUEST),
        (user, vec![(PRODUCE, Some(f64::NAN))], INVALID_REQUEST),
        (user, vec![(REQUEST, Some(f64::INFINITY))], INVALID_REQUEST),
        (user, vec![(PRODUCE, Some(1e300))], INVALID_REQUEST),
        (user, vec![("connection_creation_rate", Some(1.0))], INVALID_REQUEST),
        (user, vec![(FETCH, Some(1.0)), (FETCH, Some(2.0))], INVALID_REQUEST),
        (user, vec![(FETCH, Some(1.0)), ("other", Some(2.0))], INVALID_REQUEST),
        (&[], vec![(PRODUCE, Some(1.0))], INVALID_REQUEST),
        (&[("user", Some(""))], vec![(PRODUCE, Some(1.0))], INVALID_REQUEST),
        (&[("planet", Some("u"))], vec![(PRODUCE, Some(1.0))], INVALID_REQUEST),
        (&[("ip", None), ("user", None)], vec![(PRODUCE, Some(1.0))], INVALID_REQUEST),
    ] {
        let answer = alter(&mut connection, entity, &ops).await;
        assert_eq!(answer.0, error, "{entity:?} {ops:?}: {}", answer.1);
    }
    let expected = [
        "client-id=<default> user=u: consumer_byte_rate=5",
        "ip=<default>: connection_creation_rate=7",
        "user=u: producer_byte_rate=1000 request_percentage=0.5",
    ];
    assert_eq!(all(&mut connection).await, expected);
    drop(connection);
    close(broker).await;

    let broker = open(directory.path());
    let mut connection = connect(&broker);
    assert_eq!(all(&mut connection).await, expected);
    let component =
        |entity_type, match_type, name: Option<&str>| m::describe_client_quotas_request::ComponentData {
            entity_type: text(entity_type),
            match_type,
            match_: name.map(text),
        };
    for (components, strict, found) in [
        (vec![component("user", 0, Some("u"))], false, Some(2)),
        (vec![component("user", 0, Some("u"))], true, Some(1)),
        (vec![component("client-id", 1, None)], false, Some(1)),
        (vec![component("ip", 2, None)], false, Some(1)),
        (vec![component("user", 0, Some("v"))], false, Some(0)),
        (vec![component("user", 0, None)], false, None),
        (vec![component("user", 2, None), component("user", 2, None)], false, None),
        (vec![component("user", 2, None), component("ip", 2, None)], false, None),
    ] {
        let request = m::DescribeClientQuotasRequest { components, strict };
        let answer: m::DescribeClientQuotasResponse = call(&mut connection, 1, &request).await;
        assert_eq!(answer.entries.map(|entries| entries.len()), found, "{request:?}");
    }
    assert_eq!(alter(&mut connection, &[("ip", None)], &[("connection_creation_rate", None)]).await.0, NONE);
    assert_eq!(all(&mut connection).await, [expected[0], expected[2]]);
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_over_its_quota_is_told_to_wait_and_not_read_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    assert_eq!(produce(&mut connection, 100_000).await, 0);
    assert!(connection.muted_until().is_none());

    // Ten seconds' worth may come at once. The rest has to wait: 100 s for 100 kB.
    let anonymous: Entity = &[("user", Some("ANONYMOUS"))];
    assert_eq!(alter(&mut connection, anonymous, &[(PRODUCE, Some(1000.0))]).await.0, NONE);
    let begun = Instant::now();
    let throttle = produce(&mut connection, 100_000).await;
    assert!((89_000..=92_000).contains(&throttle), "{throttle}");
    let muted = connection.muted_until().unwrap().duration_since(begun);
    assert!(muted >= Duration::from_secs(89) && muted <= Duration::from_secs(95), "{muted:?}");

    // Another connection of the same user shares the quota. Then this client id gets its own quota, which takes
    // precedence.
    let mut other = connect(&broker);
    assert!(produce(&mut other, 10).await > 80_000);
    let own: Entity = &[("user", Some("ANONYMOUS")), ("client-id", Some("test"))];
    assert_eq!(alter(&mut other, own, &[(PRODUCE, Some(1e9))]).await.0, NONE);
    assert_eq!(produce(&mut connect(&broker), 100_000).await, 0);
    drop((connection, other));
    close(broker).await;

    let broker = open(directory.path());
    let mut connection = connect(&broker);
    assert_eq!(produce(&mut connection, 100_000).await, 0);
    assert_eq!(alter(&mut connection, own, &[(PRODUCE, None)]).await.0, NONE);
    assert!(produce(&mut connection, 100_000).await > 80_000, "the user's quota was kept");
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_over_its_quota_gets_nothing_and_misses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // Windows that are short enough to wait for.
    let broker = open_with(directory.path(), &[("quota.window.num", "2")]);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    for _ in 0..3 {
        produce(&mut connection, 10_000).await;
    }
    let id: Entity = &[("client-id", Some("test"))];
    assert_eq!(alter(&mut connection, id, &[(FETCH, Some(15_000.0))]).await.0, NONE);
    let bytes = |answer: &m::FetchResponse| -> usize {
        let all = answer.responses.iter().flat_map(|topic| &topic.partitions);
        all.map(|partition| partition.records.as_ref().map_or(0, |records| records.len())).sum()
    };
    let topics = || vec![fetch_of("t", 0, 0)];
    // A fetch does not look for more than the quota allows in a whole window.
    let first: m::FetchResponse = call(&mut connection, 12, &fetch_request((0, 0), 0, topics())).await;
    assert!((10_000..15_000).contains(&bytes(&first)), "{}", bytes(&first));
    assert_eq!(first.throttle_time_ms, 0);
    let second: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((first.session_id, 1), 0, Vec::new())).await;
    assert_eq!((bytes(&second), second.error_code, second.session_id), (0, NONE, first.session_id));
    assert!((200..=1000).contains(&second.throttle_time_ms), "{}", second.throttle_time_ms);
    // A fetch without a session is held back as well.
    let other: m::FetchResponse = call(&mut connection, 12, &fetch_request((0, -1), 0, topics())).await;
    assert!(bytes(&other) == 0 && other.throttle_time_ms > 0);
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let third: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((first.session_id, 2), 0, Vec::new())).await;
    assert_eq!((bytes(&third), third.throttle_time_ms), (bytes(&first), 0), "the session goes on");
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_of_threads_and_changes_of_topics_have_quotas_too() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    let everybody: Entity = &[("client-id", None)];
    assert_eq!(alter(&mut connection, everybody, &[(REQUEST, Some(1e-9))]).await.0, NONE);
    // Any request exceeds a quota of nearly nothing, but no client waits longer than one sample.
    let metadata = m::MetadataRequest::default();
    let answer: m::MetadataResponse = call(&mut connection, 12, &metadata).await;
    assert_eq!(answer.throttle_time_ms, 1000);
    assert!(connection.muted_until().is_some());
    assert_eq!(alter(&mut connection, everybody, &[(REQUEST, None), (MUTATION, Some(1.0))]).await.0, NONE);
    let answer: m::MetadataResponse = call(&mut connection, 12, &metadata).await;
    assert_eq!(answer.throttle_time_ms, 0);

    // Eleven partitions may be created at once, and later requests must wait. Older clients are only told to wait
    // (KIP-599).
    let create = |name, partitions| {
        let topic = m::create_topics_request::CreatableTopic {
            name: text(name),
            num_partitions: partitions,
            replication_factor: 1,
            ..Default::default()
        };
        m::CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() }
    };
    let answer: m::CreateTopicsResponse = call(&mut connection, 7, &create("many", 20)).await;
    assert_eq!((answer.topics[0].error_code, answer.throttle_time_ms), (NONE, 0));
    let answer: m::CreateTopicsResponse = call(&mut connection, 7, &create("more", 1)).await;
    assert_eq!(answer.topics[0].error_code, ErrorCode::ThrottlingQuotaExceeded.code());
    assert!((7000..=9000).contains(&answer.throttle_time_ms), "{}", answer.throttle_time_ms);
    let answer: m::CreateTopicsResponse = call(&mut connection, 5, &create("older", 1)).await;
    assert_eq!(answer.topics[0].error_code, NONE);
    assert!((8000..=10_000).contains(&answer.throttle_time_ms), "{}", answer.throttle_time_ms);
    let topic = m::delete_topics_request::DeleteTopicState { name: Some(text("many")), ..Default::default() };
    let request = m::DeleteTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    let answer: m::DeleteTopicsResponse = call(&mut connection, 6, &request).await;
    assert_eq!(answer.responses[0].error_code, ErrorCode::ThrottlingQuotaExceeded.code());
    let topic =
        m::create_partitions_request::CreatePartitionsTopic { name: text("t"), count: 2, assignments: None };
    let request = m::CreatePartitionsRequest { topics: vec![topic], timeout_ms: 1000, validate_only: false };
    let answer: m::CreatePartitionsResponse = call(&mut connection, 3, &request).await;
    assert_eq!(answer.results[0].error_code, ErrorCode::ThrottlingQuotaExceeded.code());
    drop(connection);
    close(broker).await;
}
