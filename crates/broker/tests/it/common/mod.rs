//! A broker in a temporary directory, and requests to it in the form of clients.
#![allow(dead_code, clippy::unwrap_used)]

pub mod slow_disk;
pub mod store;
pub mod transactional;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Config, Connection, Listener, LogDirectory, OpenError, Origin, Principal};
use wire::messages as m;
use wire::{ApiKey, Bytes, Chunks, Message, Reader, Text, frame};

pub fn open(directory: &std::path::Path) -> Arc<Broker> {
    open_with(directory, &[])
}

pub fn open_with(directory: &std::path::Path, settings: &[(&str, &str)]) -> Arc<Broker> {
    let disk = Arc::new(disk::open_directory(directory, disk::Engine::Auto).unwrap());
    open_on(directory, vec![LogDirectory::new("the data directory", move |_| Ok(disk.clone()))], settings)
        .unwrap()
}

/// Opens a broker on these logs, with its metadata in `directory`.
pub fn open_on(
    directory: &std::path::Path,
    logs: Vec<LogDirectory>,
    settings: &[(&str, &str)],
) -> Result<Arc<Broker>, OpenError> {
    let mut config = Config::default();
    for (name, value) in settings {
        config.set(name, value).unwrap();
    }
    let metadata = directory.join("meta.redb");
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    // A task of the broker before may hold the metadata a moment longer than anybody holds the broker.
    while metadata.exists()
        && meta::Embedded::open(&metadata).is_err()
        && std::time::Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    Broker::open(config, logs, directory)
}

/// Closes a broker and waits until nothing holds its files any more.
pub async fn close(broker: Arc<Broker>) {
    broker.close().await;
    let_go(broker).await;
}

/// Waits until nobody else holds a broker any more.
pub async fn let_go(broker: Arc<Broker>) {
    let gone = Arc::downgrade(&broker);
    drop(broker);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while gone.strong_count() > 0 {
        assert!(std::time::Instant::now() < deadline, "something still holds the broker");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub fn connect(broker: &Arc<Broker>) -> Connection {
    let address: SocketAddr = "127.0.0.1:9092".parse().unwrap();
    broker.connect(Origin {
        principal: Principal::anonymous(),
        peer: address,
        local: address,
        listener: Arc::new(Listener { name: "PLAINTEXT".into(), advertised: None }),
    })
}

/// A frame without its size.
pub fn unframed(frame: &Chunks) -> Bytes {
    frame.to_bytes().slice(4..)
}

pub async fn call<Q: Message, A: Message>(connection: &mut Connection, version: i16, request: &Q) -> A {
    let api_key = ApiKey::from_i16(Q::KEY.unwrap()).unwrap();
    let client = Text::from_static("test");
    let request = frame::encode_request(api_key, version, 77, Some(&client), request).unwrap();
    let answer = connection.begin(unframed(&request)).await.unwrap().expect("there is an answer");
    let answer =
        tokio::time::timeout(Duration::from_secs(10), answer).await.expect("it comes in time").unwrap();
    let mut reader = Reader::new(unframed(&answer));
    assert_eq!(frame::decode_response_header(&mut reader, api_key, version).unwrap(), 77);
    let message = A::decode(&mut reader, version).unwrap();
    reader.expect_end().unwrap();
    message
}

/// The ApiVersions request of a client.
pub fn api_versions() -> m::ApiVersionsRequest {
    m::ApiVersionsRequest {
        client_software_name: Text::from_static("test"),
        client_software_version: Text::from_static("1.0"),
        ..Default::default()
    }
}

/// Creates a topic with these settings.
pub async fn create_topic(
    connection: &mut Connection,
    name: &'static str,
    partitions: i32,
    configs: &[(&str, &str)],
) {
    let result = try_create_topic(connection, name, partitions, configs).await;
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
}

pub async fn try_create_topic(
    connection: &mut Connection,
    name: &'static str,
    partitions: i32,
    configs: &[(&str, &str)],
) -> m::create_topics_response::CreatableTopicResult {
    let config = |(name, value): &(&str, &str)| m::create_topics_request::CreatableTopicConfig {
        name: Text::from((*name).to_owned()),
        value: Some(Text::from((*value).to_owned())),
    };
    let topic = m::create_topics_request::CreatableTopic {
        name: Text::from_static(name),
        num_partitions: partitions,
        replication_factor: -1,
        configs: configs.iter().map(config).collect(),
        ..Default::default()
    };
    let request = m::CreateTopicsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() };
    let answer: m::CreateTopicsResponse = call(connection, 7, &request).await;
    answer.topics[0].clone()
}

/// Sends one batch; returns error code, base offset and log append time.
pub async fn produce(
    connection: &mut Connection,
    topic: &'static str,
    partition: i32,
    acks: i16,
    batch: Bytes,
) -> (i16, i64, i64) {
    let answer = try_produce(connection, topic, partition, acks, batch).await;
    (answer.error_code, answer.base_offset, answer.log_append_time_ms)
}

/// Sends one batch; returns all that is said of it.
pub async fn try_produce(
    connection: &mut Connection,
    topic: &'static str,
    partition: i32,
    acks: i16,
    batch: Bytes,
) -> m::produce_response::PartitionProduceResponse {
    let data = m::produce_request::PartitionProduceData { index: partition, records: Some(batch.into()) };
    let topic = m::produce_request::TopicProduceData {
        name: Text::from_static(topic),
        partition_data: vec![data],
        ..Default::default()
    };
    let request =
        m::ProduceRequest { acks, timeout_ms: 5000, topic_data: vec![topic], transactional_id: None };
    let mut answer: m::ProduceResponse = call(connection, 12, &request).await;
    answer.responses.remove(0).partition_responses.remove(0)
}

/// A fetch of one partition.
pub fn fetch_of(topic: &'static str, partition: i32, offset: i64) -> m::fetch_request::FetchTopic {
    m::fetch_request::FetchTopic {
        topic: Text::from_static(topic),
        partitions: vec![m::fetch_request::FetchPartition {
            partition,
            fetch_offset: offset,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// A fetch in a session, or one that begins a session (epoch 0).
pub fn fetch_request(
    session: (i32, i32),
    wait_ms: i32,
    topics: Vec<m::fetch_request::FetchTopic>,
) -> m::FetchRequest {
    m::FetchRequest {
        max_wait_ms: wait_ms,
        min_bytes: 1,
        max_bytes: 1 << 24,
        session_id: session.0,
        session_epoch: session.1,
        topics,
        ..Default::default()
    }
}

/// The value of a metric without labels, or the sum over its labels.
pub fn metric(registry: &prometheus_client::registry::Registry, name: &str) -> u64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values: Vec<u64> = lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(!values.is_empty(), "there is no {name}");
    values.into_iter().sum()
}
