//! Client telemetry (KIP-714): the subscriptions of clients, accepted and refused pushes, and the exported values.

use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Connection};
use model::Compression;
use wire::messages as m;
use wire::{Bytes, ErrorCode, Text, Uuid};

use crate::common::{call, close, connect, open_with};

const NONE: i16 = 0;
const THROTTLED: i16 = ErrorCode::ThrottlingQuotaExceeded as i16;
const CLIENT_METRICS: i8 = 16;

async fn subscribe(
    connection: &mut Connection,
    name: &'static str,
    settings: &[(&'static str, &'static str)],
) {
    let config = |(name, value): &(&'static str, &'static str)| {
        m::incremental_alter_configs_request::AlterableConfig {
            name: Text::from_static(name),
            config_operation: i8::from(value.is_empty()),
            value: Some(Text::from_static(value)),
        }
    };
    let resource = m::incremental_alter_configs_request::AlterConfigsResource {
        resource_type: CLIENT_METRICS,
        resource_name: Text::from_static(name),
        configs: settings.iter().map(config).collect(),
    };
    let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer: m::IncrementalAlterConfigsResponse = call(connection, 1, &request).await;
    assert_eq!(answer.responses[0].error_code, NONE, "{:?}", answer.responses[0].error_message);
}

async fn get(connection: &mut Connection, id: Uuid) -> m::GetTelemetrySubscriptionsResponse {
    call(connection, 0, &m::GetTelemetrySubscriptionsRequest { client_instance_id: id }).await
}

async fn push(
    connection: &mut Connection,
    of: &m::GetTelemetrySubscriptionsResponse,
    codec: i8,
    metrics: Bytes,
    terminating: bool,
) -> i16 {
    let request = m::PushTelemetryRequest {
        client_instance_id: of.client_instance_id,
        subscription_id: of.subscription_id,
        terminating,
        compression_type: codec,
        metrics,
    };
    let answer: m::PushTelemetryResponse = call(connection, 0, &request).await;
    answer.error_code
}

/// A protobuf field with a short message, text or byte string.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// One sum since the last push, for one topic.
fn metrics(name: &str, topic: &str, value: f64) -> Bytes {
    let attribute = [field(1, b"topic"), field(2, &field(1, topic.as_bytes()))].concat();
    let point = [field(7, &attribute), vec![4 << 3 | 1], value.to_le_bytes().to_vec()].concat();
    let sum = [field(1, &point), vec![2 << 3, 1]].concat();
    let metric = [field(1, name.as_bytes()), field(7, &sum)].concat();
    Bytes::from(field(1, &field(2, &field(2, &metric))))
}

fn shown(broker: &Arc<Broker>) -> Vec<String> {
    let mut registry = prometheus_client::registry::Registry::default();
    broker.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text.lines().filter(|line| line.starts_with("mainstem_client_metric{")).map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_get_what_is_asked_of_them_and_push_it() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[]);
    let (mut admin, mut client) = (connect(&broker), connect(&broker));
    let software = m::ApiVersionsRequest {
        client_software_name: Text::from_static("test-library"),
        client_software_version: Text::from_static("1.0"),
        ..Default::default()
    };
    let _: m::ApiVersionsResponse = call(&mut client, 4, &software).await;
    subscribe(
        &mut admin,
        "one",
        &[("metrics", "org.b,org.a"), ("interval.ms", "200"), ("match", "client_software_name=test-.*")],
    )
    .await;
    subscribe(&mut admin, "two", &[("metrics", "org.a,org.c"), ("interval.ms", "300")]).await;
    subscribe(&mut admin, "other", &[("metrics", "*"), ("match", "client_id=nobody")]).await;

    let asked = get(&mut client, Uuid::nil()).await;
    assert!(asked.error_code == NONE && !asked.client_instance_id.is_nil() && asked.delta_temporality);
    assert_eq!(asked.requested_metrics, ["org.a", "org.b", "org.c"].map(Text::from_static));
    assert_eq!((asked.push_interval_ms, asked.telemetry_max_bytes), (200, 1_048_576));
    assert_eq!(asked.accepted_compression_types, [4, 3, 1, 2]);
    // A request that comes too early, and a client that only one subscription selects.
    assert_eq!(get(&mut client, asked.client_instance_id).await.error_code, THROTTLED);
    let other = get(&mut admin, Uuid::nil()).await;
    assert_eq!((other.push_interval_ms, other.requested_metrics.len()), (300, 2));

    // The first push may come at any time. Sums since the last push add up, whatever their compression.
    let plain = metrics("org.a.sum", "t", 2.0);
    assert_eq!(push(&mut client, &asked, 0, plain.clone(), false).await, NONE);
    assert_eq!(push(&mut client, &asked, 0, plain.clone(), false).await, THROTTLED);
    let codecs = [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    for codec in codecs {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let pushed = Bytes::from(wire::compress(codec, &plain));
        assert_eq!(push(&mut client, &asked, i8::try_from(codec.bits()).unwrap(), pushed, false).await, NONE);
    }
    let lines = shown(&broker);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(r#"client_id="test",metric="org.a.sum",topic="t"} 10"#), "{lines:?}");

    // A changed subscription takes effect at once, with another id.
    subscribe(&mut admin, "two", &[("metrics", "*")]).await;
    assert_eq!(
        push(&mut client, &asked, 0, plain.clone(), false).await,
        ErrorCode::UnknownSubscriptionId.code()
    );
    let again = get(&mut client, asked.client_instance_id).await;
    assert_eq!(get(&mut client, asked.client_instance_id).await.error_code, THROTTLED);
    assert_eq!(again.requested_metrics, [Text::from_static("*")]);
    assert_ne!(again.subscription_id, asked.subscription_id);
    drop((admin, client));
    close(broker).await;
    // Subscriptions survive a restart.
    let broker = open_with(directory.path(), &[]);
    let mut client = connect(&broker);
    assert_eq!(get(&mut client, Uuid::nil()).await.requested_metrics, [Text::from_static("*")]);
    drop(client);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_that_cannot_be_taken_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[("telemetry.max.bytes", "1000")]);
    let mut client = connect(&broker);
    subscribe(&mut client, "all", &[("metrics", "*"), ("interval.ms", "100")]).await;
    let plain = metrics("m", "t", 1.0);
    let bomb = Bytes::from(wire::compress(Compression::Gzip, &vec![0; 100 << 20])).slice(..900);
    for (codec, pushed, error) in [
        (5, plain.clone(), ErrorCode::UnsupportedCompressionType),
        (-1, plain.clone(), ErrorCode::UnsupportedCompressionType),
        (8, plain.clone(), ErrorCode::UnsupportedCompressionType),
        (0, Bytes::from(vec![0; 1001]), ErrorCode::TelemetryTooLarge),
        (0, Bytes::from_static(b"no metrics"), ErrorCode::InvalidRecord),
        (1, plain.clone(), ErrorCode::InvalidRecord),
        (1, bomb, ErrorCode::InvalidRecord),
        (0, Bytes::new(), ErrorCode::None),
    ] {
        let asked = get(&mut client, Uuid::new_v4()).await;
        assert_eq!(push(&mut client, &asked, codec, pushed, false).await, error.code(), "{error:?}");
    }
    let asked = get(&mut client, Uuid::nil()).await;
    let mut nobody = asked.clone();
    for id in [0, 1] {
        nobody.client_instance_id = Uuid::from_u128(id);
        let error = push(&mut client, &nobody, 0, plain.clone(), false).await;
        assert_eq!(error, ErrorCode::InvalidRequest.code());
    }
    // The terminating push may come early, and is the last one.
    assert_eq!(push(&mut client, &asked, 0, plain.clone(), false).await, NONE);
    assert_eq!(push(&mut client, &asked, 0, plain.clone(), true).await, NONE);
    assert_eq!(push(&mut client, &asked, 0, plain.clone(), true).await, ErrorCode::InvalidRequest.code());
    assert_eq!(shown(&broker).len(), 1);
    drop(client);
    close(broker).await;
}
