//! Settings that clients change at run time: of the broker, of groups, of client-metrics subscriptions.

use broker::Connection;
use model::{Compression, Timestamp};
use wire::messages as m;
use wire::records::BatchBuilder;
use wire::{ErrorCode, Text};

use crate::common::{call, close, connect, create_topic, open, open_with, produce};

const NONE: i16 = 0;
const INVALID_REQUEST: i16 = ErrorCode::InvalidRequest as i16;
const INVALID_CONFIG: i16 = ErrorCode::InvalidConfig as i16;
/// Types of resources.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;
/// Operations.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;

type Change<'a> = (&'a str, i8, Option<&'a str>);

fn text(text: &str) -> Text {
    Text::from(text.to_owned())
}

/// Requests changes of one resource. Returns the error code and message.
async fn alter(connection: &mut Connection, kind: i8, name: &str, changes: &[Change<'_>]) -> (i16, String) {
    let config = |(name, operation, value): &Change| m::incremental_alter_configs_request::AlterableConfig {
        name: text(name),
        config_operation: *operation,
        value: value.map(text),
    };
    let resource = m::incremental_alter_configs_request::AlterConfigsResource {
        resource_type: kind,
        resource_name: text(name),
        configs: changes.iter().map(config).collect(),
    };
    let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer: m::IncrementalAlterConfigsResponse = call(connection, 1, &request).await;
    let answer = &answer.responses[0];
    (answer.error_code, answer.error_message.as_ref().map(ToString::to_string).unwrap_or_default())
}

/// A described setting: value, whether it is read-only, source, and the synonyms with their sources.
type Shown = (String, bool, i8, Vec<(String, String, i8)>);

async fn describe(connection: &mut Connection, kind: i8, name: &str, key: &str) -> Option<Shown> {
    let resource = m::describe_configs_request::DescribeConfigsResource {
        resource_type: kind,
        resource_name: text(name),
        configuration_keys: Some(vec![text(key)]),
    };
    let request = m::DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: true,
    };
    let answer: m::DescribeConfigsResponse = call(connection, 4, &request).await;
    assert_eq!(answer.results[0].error_code, NONE);
    let config = answer.results[0].configs.first()?;
    assert!(config.documentation.as_ref().is_some_and(|text| !text.is_empty()));
    let shown = |of: &m::describe_configs_response::DescribeConfigsSynonym| {
        (of.name.to_string(), of.value.clone().unwrap().to_string(), of.source)
    };
    let synonyms = config.synonyms.iter().map(shown).collect();
    Some((config.value.clone().unwrap().to_string(), config.read_only, config.config_source, synonyms))
}

fn synonyms(of: &[(&str, &str, i8)]) -> Vec<(String, String, i8)> {
    of.iter().map(|(name, value, source)| ((*name).to_owned(), (*value).to_owned(), *source)).collect()
}

async fn list(connection: &mut Connection, version: i16, kinds: Vec<i8>) -> Vec<(i8, String)> {
    let request = m::ListConfigResourcesRequest { resource_types: kinds };
    let answer: m::ListConfigResourcesResponse = call(connection, version, &request).await;
    assert_eq!(answer.error_code, NONE);
    answer.config_resources.iter().map(|of| (of.resource_type, of.resource_name.to_string())).collect()
}

async fn produced(connection: &mut Connection, bytes: usize) -> i16 {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(1), None, Some(&vec![7; bytes]));
    produce(connection, "t", 0, -1, builder.finish()).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn the_brokers_settings_change_while_it_runs_and_stay_changed() {
    const MAX: &str = "message.max.bytes";
    let directory = tempfile::tempdir().unwrap();
    let started_with = [(MAX, "5000")];
    let broker = open_with(directory.path(), &started_with);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    assert_eq!(produced(&mut connection, 4000).await, NONE);

    assert_eq!(alter(&mut connection, BROKER, "", &[(MAX, SET, Some("3000"))]).await.0, NONE);
    assert_eq!(produced(&mut connection, 4000).await, ErrorCode::MessageTooLarge.code());
    assert_eq!(produced(&mut connection, 2000).await, NONE);
    assert_eq!(alter(&mut connection, BROKER, "1", &[(MAX, SET, Some("1000"))]).await.0, NONE);
    assert_eq!(produced(&mut connection, 2000).await, ErrorCode::MessageTooLarge.code());

    // The value in force comes first: the broker's own, the value for all brokers, the file's, the default (KIP-226).
    let all = [(MAX, "1000", 2), (MAX, "3000", 3), (MAX, "5000", 4), (MAX, "1048588", 5)];
    let expected = Some(("1000".to_owned(), false, 2, synonyms(&all)));
    assert_eq!(describe(&mut connection, BROKER, "1", MAX).await, expected);
    let (value, read_only, source, of_topic) =
        describe(&mut connection, TOPIC, "t", "max.message.bytes").await.unwrap();
    assert_eq!((value.as_str(), read_only, source, of_topic), ("1000", false, 2, synonyms(&all)));
    let of_all = Some(("3000".to_owned(), false, 3, synonyms(&all[1..2])));
    assert_eq!(describe(&mut connection, BROKER, "", MAX).await, of_all);
    assert_eq!(describe(&mut connection, BROKER, "", "log.retention.ms").await, None);
    assert!(describe(&mut connection, BROKER, "1", "node.id").await.unwrap().1, "read-only");
    drop(connection);
    close(broker).await;

    let broker = open_with(directory.path(), &started_with);
    let mut connection = connect(&broker);
    assert_eq!(describe(&mut connection, BROKER, "1", MAX).await, expected);
    assert_eq!(produced(&mut connection, 2000).await, ErrorCode::MessageTooLarge.code());
    assert_eq!(alter(&mut connection, BROKER, "1", &[(MAX, DELETE, None)]).await.0, NONE);
    assert_eq!(alter(&mut connection, BROKER, "", &[(MAX, DELETE, None)]).await.0, NONE);
    assert_eq!(produced(&mut connection, 4000).await, NONE);
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_change_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let retention = ("log.retention.ms", SET, Some("7000"));
    for (name, changes, error, message) in [
        ("1", vec![retention, ("node.id", SET, Some("2"))], INVALID_REQUEST, "dynamically: [node.id]"),
        ("1", vec![retention, ("message.max.bytes", SET, Some("x"))], INVALID_REQUEST, "type INT"),
        ("1", vec![retention, retention], INVALID_REQUEST, "duplicate config keys"),
        ("1", vec![retention, ("message.max.bytes", SET, None)], INVALID_REQUEST, "Null value"),
        ("1", vec![retention, ("message.max.bytes", APPEND, Some("1"))], INVALID_CONFIG, "append"),
        ("1", vec![("log.retention.ms", 9, Some("1"))], INVALID_REQUEST, "operations type 9"),
        ("7", vec![retention], INVALID_REQUEST, "expected 1"),
        ("seven", vec![retention], INVALID_REQUEST, "integer"),
        ("1", vec![("log.cleanup.policy", SET, Some(&"x,".repeat(5000)))], INVALID_REQUEST, "bytes at most"),
    ] {
        let answer = alter(&mut connection, BROKER, name, &changes).await;
        assert!(answer.0 == error && answer.1.contains(message), "{answer:?} for {message}");
        let (.., source, _) = describe(&mut connection, BROKER, "1", "log.retention.ms").await.unwrap();
        assert_eq!(source, 5, "{message}");
    }
    assert_eq!(
        alter(&mut connection, BROKER, "1", &[("log.cleanup.policy", APPEND, Some("compact"))]).await.0,
        NONE
    );
    let (policy, ..) = describe(&mut connection, BROKER, "1", "log.cleanup.policy").await.unwrap();
    assert_eq!(policy, "delete,compact");
    let logger = alter(&mut connection, BROKER_LOGGER, "1", &[("root", SET, Some("WARN"))]).await;
    assert_eq!(logger, (INVALID_CONFIG, "Logger root does not exist!".to_owned()));
    assert_eq!(alter(&mut connection, 7, "x", &[]).await.1, "Unknown resource type 7");
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_and_subscriptions_have_settings_within_bounds() {
    const SESSION: &str = "consumer.session.timeout.ms";
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    for (kind, name, value, error) in [
        (GROUP, SESSION, "44999", INVALID_CONFIG),
        (GROUP, SESSION, "60001", INVALID_CONFIG),
        (GROUP, SESSION, "x", INVALID_CONFIG),
        (GROUP, "other", "1", INVALID_CONFIG),
        (GROUP, SESSION, "50000", NONE),
        (CLIENT_METRICS, "interval.ms", "99", INVALID_REQUEST),
        (CLIENT_METRICS, "match", "planet=x", INVALID_CONFIG),
        (CLIENT_METRICS, "other", "1", INVALID_REQUEST),
        (CLIENT_METRICS, "metrics", "org.apache.kafka.", NONE),
    ] {
        let (code, message) = alter(&mut connection, kind, "g", &[(name, SET, Some(value))]).await;
        assert_eq!(code, error, "{name} {value}: {message}");
        assert_eq!(alter(&mut connection, kind, "", &[(name, SET, Some(value))]).await.0, INVALID_REQUEST);
    }
    drop(connection);
    close(broker).await;
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let default = ("group.consumer.session.timeout.ms", "45000", 5);
    assert_eq!(
        describe(&mut connection, GROUP, "g", SESSION).await,
        Some(("50000".into(), false, 8, synonyms(&[(SESSION, "50000", 8), default])))
    );
    assert_eq!(
        describe(&mut connection, GROUP, "h", SESSION).await,
        Some(("45000".into(), false, 5, synonyms(&[default])))
    );
    assert_eq!(
        describe(&mut connection, CLIENT_METRICS, "g", "metrics").await,
        Some(("org.apache.kafka.".into(), false, 7, synonyms(&[("metrics", "org.apache.kafka.", 7)])))
    );
    let (group, metrics) = ((GROUP, "g".to_owned()), (CLIENT_METRICS, "g".to_owned()));
    assert_eq!(list(&mut connection, 1, vec![GROUP, GROUP]).await, vec![group.clone()]);
    assert_eq!(list(&mut connection, 0, vec![]).await, vec![metrics.clone()]);
    let all = list(&mut connection, 1, vec![]).await;
    assert_eq!(all, [(BROKER, "1".into()), (BROKER_LOGGER, "1".into()), metrics, group]);
    assert_eq!(alter(&mut connection, GROUP, "g", &[(SESSION, DELETE, None)]).await.0, NONE);
    assert_eq!(list(&mut connection, 1, vec![GROUP]).await, []);
    drop(connection);
    close(broker).await;
}
