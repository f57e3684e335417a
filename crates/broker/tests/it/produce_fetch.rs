//! Produce and Fetch as clients see them: idempotence across restarts, timestamps, sessions, long polls, limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::LogDirectory;
use model::{Compression, Timestamp};
use prometheus_client::registry::Registry;
use wire::messages as m;
use wire::records::{BatchBuilder, records};
use wire::{Bytes, ErrorCode, Text};

use crate::common::{
    call, close, connect, create_topic, fetch_of, fetch_request, metric, open, open_on, open_with, produce,
};

fn batch(values: &[&str], timestamp: i64, producer: Option<(i64, i16, i32)>) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    if let Some((id, epoch, sequence)) = producer {
        builder = builder.producer(id, epoch, sequence);
    }
    for value in values {
        builder.push(Timestamp(timestamp), Some(b"key"), Some(value.as_bytes()));
    }
    builder.finish()
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// The values in the answer of a fetch, by partition.
fn values(answer: &m::FetchResponse) -> Vec<(i32, Vec<String>)> {
    let partitions = answer.responses.iter().flat_map(|topic| &topic.partitions);
    let read = |partition: &m::fetch_response::PartitionData| {
        let mut bytes = partition.records.as_ref().unwrap().to_bytes();
        let mut values = Vec::new();
        while !bytes.is_empty() {
            let (header, records) = records(&bytes, 1 << 20).unwrap();
            values.extend(records.map(|r| String::from_utf8(r.unwrap().value.unwrap().to_vec()).unwrap()));
            bytes = bytes.slice(header.total_bytes..);
        }
        (partition.partition_index, values)
    };
    partitions.map(read).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_are_answered_as_success_and_gaps_refused_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    let id: m::InitProducerIdResponse =
        call(&mut connection, 4, &m::InitProducerIdRequest { transactional_id: None, ..Default::default() })
            .await;
    let id = id.producer_id;
    let now = now_ms();
    for n in 0..3 {
        let sent = batch(&["a", "b"], now, Some((id, 0, n * 2)));
        assert_eq!(produce(&mut connection, "t", 0, -1, sent).await, (0, i64::from(n) * 2, -1));
    }
    assert_eq!(
        produce(&mut connection, "t", 0, -1, batch(&["a", "b"], now, Some((id, 0, 2)))).await,
        (0, 2, -1)
    );
    let gap = produce(&mut connection, "t", 0, -1, batch(&["x"], now, Some((id, 0, 9)))).await;
    assert_eq!(gap.0, ErrorCode::OutOfOrderSequenceNumber.code());
    drop(connection);
    close(broker).await;

    let broker = open(directory.path());
    let mut connection = connect(&broker);
    assert_eq!(
        produce(&mut connection, "t", 0, -1, batch(&["a", "b"], now, Some((id, 0, 0)))).await,
        (0, 0, -1)
    );
    let gap = produce(&mut connection, "t", 0, 1, batch(&["x"], now, Some((id, 0, 9)))).await;
    assert_eq!(gap.0, ErrorCode::OutOfOrderSequenceNumber.code());
    assert_eq!(produce(&mut connection, "t", 0, -1, batch(&["c"], now, Some((id, 0, 6)))).await, (0, 6, -1));
    let old_epoch = produce(&mut connection, "t", 0, -1, batch(&["d"], now, Some((id, 1, 0)))).await;
    assert_eq!(old_epoch, (0, 7, -1));
    let fenced = produce(&mut connection, "t", 0, -1, batch(&["e"], now, Some((id, 0, 7)))).await;
    assert_eq!(fenced.0, ErrorCode::InvalidProducerEpoch.code());
    let next: m::InitProducerIdResponse =
        call(&mut connection, 4, &m::InitProducerIdRequest { transactional_id: None, ..Default::default() })
            .await;
    assert!(next.producer_id > id);
    let answer: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((0, -1), 0, vec![fetch_of("t", 0, 0)])).await;
    assert_eq!(values(&answer), [(0, ["a", "b", "a", "b", "a", "b", "c", "d"].map(String::from).to_vec())]);
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_batches_get_kafkas_errors_and_harm_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[("max.message.bytes", "1000")]).await;
    let now = now_ms();
    let mut flipped = batch(&["a"], now, None).to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    let mut old = batch(&["a"], now, None).to_vec();
    old[16] = 1;
    let mut miscounted = batch(&["a", "b"], now, None).to_vec();
    miscounted[57..61].copy_from_slice(&1i32.to_be_bytes());
    model::batch::seal_crc(&mut miscounted);
    let mut twice = batch(&["a"], now, None).to_vec();
    twice.extend_from_slice(&twice.clone());
    let control = {
        let mut control = batch(&["a"], now, None).to_vec();
        control[22] |= 0x20;
        model::batch::seal_crc(&mut control);
        control
    };
    let cases: [(Vec<u8>, ErrorCode); 8] = [
        (flipped, ErrorCode::CorruptMessage),
        (old, ErrorCode::InvalidRecord),
        (miscounted, ErrorCode::InvalidRecord),
        (twice, ErrorCode::InvalidRecord),
        (control, ErrorCode::InvalidRecord),
        (Vec::new(), ErrorCode::InvalidRecord),
        (batch(&["x".repeat(2000).as_str()], now, None).to_vec(), ErrorCode::MessageTooLarge),
        (batch(&["a"], now + 7_200_000, None).to_vec(), ErrorCode::InvalidTimestamp),
    ];
    for (bytes, error) in cases {
        assert_eq!(produce(&mut connection, "t", 0, -1, Bytes::from(bytes)).await, (error.code(), -1, -1));
    }
    assert_eq!(
        produce(&mut connection, "t", 7, -1, batch(&["a"], now, None)).await.0,
        ErrorCode::UnknownTopicOrPartition.code()
    );
    assert_eq!(
        produce(&mut connection, "t", 0, 3, batch(&["a"], now, None)).await.0,
        ErrorCode::InvalidRequiredAcks.code()
    );
    assert_eq!(produce(&mut connection, "t", 0, 1, batch(&["a"], now, None)).await, (0, 0, -1));
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_sets_timestamps_where_the_topic_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[("message.timestamp.type", "LogAppendTime")]).await;
    let before = now_ms();
    let (error, _, appended) = produce(&mut connection, "t", 0, -1, batch(&["a", "b"], 5, None)).await;
    assert!(error == 0 && appended >= before && appended <= now_ms());
    let answer: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((0, -1), 0, vec![fetch_of("t", 0, 0)])).await;
    let bytes = answer.responses[0].partitions[0].records.as_ref().unwrap().to_bytes();
    let header = model::BatchHeader::parse(&bytes).unwrap();
    model::batch::verify_crc(&bytes, &header).unwrap();
    assert_eq!(
        (header.max_timestamp.0, header.timestamp_type()),
        (appended, model::TimestampType::LogAppendTime)
    );
    let asked = m::list_offsets_request::ListOffsetsPartition {
        partition_index: 0,
        timestamp: appended,
        ..Default::default()
    };
    let topic =
        m::list_offsets_request::ListOffsetsTopic { name: Text::from_static("t"), partitions: vec![asked] };
    let request = m::ListOffsetsRequest { topics: vec![topic], ..Default::default() };
    let answer: m::ListOffsetsResponse = call(&mut connection, 7, &request).await;
    let found = &answer.topics[0].partitions[0];
    assert_eq!((found.offset, found.timestamp), (0, appended));
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_answers_with_what_changed_and_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let (mut connection, mut producer) = (connect(&broker), connect(&broker));
    create_topic(&mut connection, "t", 3, &[]).await;
    let topics = (0..3).map(|partition| fetch_of("t", partition, 0)).collect();
    let first: m::FetchResponse = call(&mut connection, 12, &fetch_request((0, 0), 0, topics)).await;
    assert!(first.session_id != 0 && values(&first).len() == 3);
    let session = first.session_id;
    // Nothing has changed: after the wait the answer is empty.
    let begun = Instant::now();
    let idle: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((session, 1), 200, Vec::new())).await;
    assert!(idle.responses.is_empty() && begun.elapsed() >= Duration::from_millis(200));
    // A commit ends the wait, and the answer contains only its partition.
    let waiting = tokio::spawn(async move {
        let answer: m::FetchResponse =
            call(&mut connection, 12, &fetch_request((session, 2), 30_000, Vec::new())).await;
        (connection, answer)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(produce(&mut producer, "t", 1, -1, batch(&["x"], now_ms(), None)).await.0, 0);
    let (mut connection, answer) = waiting.await.unwrap();
    assert_eq!(values(&answer), [(1, vec!["x".to_owned()])]);
    // The client continues behind the record. That partition has nothing new, and the next one has a record.
    assert_eq!(produce(&mut producer, "t", 2, -1, batch(&["y"], now_ms(), None)).await.0, 0);
    let answer: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((session, 3), 0, vec![fetch_of("t", 1, 1)])).await;
    assert_eq!(values(&answer), [(2, vec!["y".to_owned()])]);
    // A wrong epoch and an unknown session are refused.
    let wrong: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((session, 9), 0, Vec::new())).await;
    assert_eq!(wrong.error_code, ErrorCode::InvalidFetchSessionEpoch.code());
    let unknown: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((session ^ 1, 1), 0, Vec::new())).await;
    assert_eq!(unknown.error_code, ErrorCode::FetchSessionIdNotFound.code());
    broker.close().await;
}

/// Otherwise the consumer would wait for ever instead of resetting its offset (`auto.offset.reset`).
#[tokio::test(flavor = "multi_thread")]
async fn who_is_beyond_the_end_is_told_also_when_others_took_all_that_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 2, &[]).await;
    assert_eq!(produce(&mut connection, "t", 0, -1, batch(&["x"], now_ms(), None)).await.0, 0);
    let topics = vec![fetch_of("t", 0, 0), fetch_of("t", 1, 7)];
    let little = |session, topics| m::FetchRequest { max_bytes: 1, ..fetch_request(session, 0, topics) };
    let first: m::FetchResponse = call(&mut connection, 12, &little((0, 0), topics)).await;
    assert_eq!(values(&first)[0], (0, vec!["x".to_owned()]));
    let next: m::FetchResponse = call(&mut connection, 12, &little((first.session_id, 1), Vec::new())).await;
    let told = next.responses.iter().flat_map(|topic| &topic.partitions);
    let told: Vec<(i32, i16)> = told.map(|of| (of.partition_index, of.error_code)).collect();
    assert!(told.contains(&(1, ErrorCode::OffsetOutOfRange.code())), "{told:?}");
    broker.close().await;
}

/// As in Kafka, a fetch waits only if it requests bytes (ReplicaManager.fetchMessages). A client that closes its
/// session requests none.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_nothing_does_not_wait() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    let of_t = || vec![fetch_of("t", 0, 0)];
    let opened: m::FetchResponse = call(&mut connection, 12, &fetch_request((0, 0), 0, of_t())).await;
    let session = opened.session_id;
    // A call that takes 10 s fails.
    let no_bytes =
        |session, topics| m::FetchRequest { min_bytes: 0, ..fetch_request(session, 60_000, topics) };
    let answer: m::FetchResponse = call(&mut connection, 12, &no_bytes((0, -1), of_t())).await;
    assert_eq!(values(&answer), [(0, Vec::new())]);
    let answer: m::FetchResponse = call(&mut connection, 12, &no_bytes((session, 1), Vec::new())).await;
    assert_eq!((answer.error_code, values(&answer)), (0, Vec::new()));
    let close = fetch_request((session, -1), 60_000, Vec::new());
    let answer: m::FetchResponse = call(&mut connection, 12, &close).await;
    assert_eq!((answer.error_code, values(&answer)), (0, Vec::new()));
    broker.close().await;
}

/// As in Kafka, a client whose wait exceeds `timeout.ms` gets a time-out. The batch is still appended, once.
#[tokio::test(flavor = "multi_thread")]
async fn who_waited_too_long_is_told_and_the_batch_is_there_once() {
    let directory = tempfile::tempdir().unwrap();
    let disk = disk::SimDisk::new(5);
    let of_log = disk.clone();
    let log = LogDirectory::new("log", move |_| Ok(Arc::new(of_log.clone())));
    let settings = [("log.segment.bytes", "1048576"), ("log.reserve.bytes", "0")];
    let broker = open_on(directory.path(), vec![log], &settings).unwrap();
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 2, &[]).await;
    let no_id = m::InitProducerIdRequest { transactional_id: None, ..Default::default() };
    let id: m::InitProducerIdResponse = call(&mut connection, 4, &no_id).await;
    let data = |index| m::produce_request::PartitionProduceData {
        index,
        records: Some(batch(&["a"], now_ms(), Some((id.producer_id, 0, 0))).into()),
    };
    // The second partition does not exist.
    let topic = m::produce_request::TopicProduceData {
        name: Text::from_static("t"),
        partition_data: vec![data(0), data(7), data(1)],
        ..Default::default()
    };
    let request = |timeout_ms| m::ProduceRequest {
        acks: -1,
        timeout_ms,
        topic_data: vec![topic.clone()],
        transactional_id: None,
    };
    disk.hold_durable_writes(true);
    let [none, late, unknown] =
        [ErrorCode::None, ErrorCode::RequestTimedOut, ErrorCode::UnknownTopicOrPartition]
            .map(ErrorCode::code);
    // The second request repeats batches that are still on their way.
    for (timeout_ms, hold, expected) in [
        (50, true, [late, unknown, late]),
        (50, true, [late, unknown, late]),
        (9000, false, [none, unknown, none]),
    ] {
        let begun = Instant::now();
        disk.hold_durable_writes(hold);
        let answer: m::ProduceResponse = call(&mut connection, 12, &request(timeout_ms)).await;
        let codes: Vec<i16> =
            answer.responses[0].partition_responses.iter().map(|one| one.error_code).collect();
        assert_eq!(codes, expected);
        assert!(!hold || begun.elapsed() >= Duration::from_millis(50), "it waited for as long as it was to");
    }
    let of_t = vec![fetch_of("t", 0, 0)];
    let answer: m::FetchResponse = call(&mut connection, 12, &fetch_request((0, -1), 0, of_t)).await;
    assert_eq!(values(&answer), [(0, vec!["a".to_owned()])]);
    drop(connection);
    close(broker).await;
}

/// Clients of these versions name a topic by its name, and only once.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_finds_a_topic_that_was_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let (mut connection, mut producer) = (connect(&broker), connect(&broker));
    create_topic(&mut connection, "t", 1, &[]).await;
    let begin = fetch_request((0, 0), 0, vec![fetch_of("t", 0, 0)]);
    let first: m::FetchResponse = call(&mut connection, 12, &begin).await;
    let session = first.session_id;
    assert_ne!(session, 0);
    let request = m::DeleteTopicsRequest {
        topic_names: vec![Text::from_static("t")],
        timeout_ms: 5000,
        ..Default::default()
    };
    let answer: m::DeleteTopicsResponse = call(&mut producer, 5, &request).await;
    assert_eq!(answer.responses[0].error_code, 0);
    for epoch in 1..3 {
        let gone: m::FetchResponse =
            call(&mut connection, 12, &fetch_request((session, epoch), 60_000, Vec::new())).await;
        let error = gone.responses[0].partitions[0].error_code;
        assert_eq!(error, ErrorCode::UnknownTopicOrPartition.code());
    }
    create_topic(&mut producer, "t", 1, &[]).await;
    let there: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((session, 3), 0, Vec::new())).await;
    assert_eq!(values(&there), [(0, Vec::new())]);
    // The session also receives commits.
    let waiting = tokio::spawn(async move {
        let answer: m::FetchResponse =
            call(&mut connection, 12, &fetch_request((session, 4), 60_000, Vec::new())).await;
        values(&answer)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(produce(&mut producer, "t", 0, -1, batch(&["x"], now_ms(), None)).await.0, 0);
    assert_eq!(waiting.await.unwrap(), [(0, vec!["x".to_owned()])]);
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_but_one_batch_always_comes() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    let value = "v".repeat(5000);
    for _ in 0..10 {
        assert_eq!(produce(&mut connection, "t", 0, -1, batch(&[&value], now_ms(), None)).await.0, 0);
    }
    let fetch = |partition_bytes: i32, bytes: i32| {
        let mut topic = fetch_of("t", 0, 0);
        topic.partitions[0].partition_max_bytes = partition_bytes;
        m::FetchRequest { max_bytes: bytes, ..fetch_request((0, -1), 0, vec![topic]) }
    };
    for (partition_bytes, bytes, expected) in
        [(1, 1 << 20, 1), (1 << 20, 1, 1), (12_000, 1 << 20, 2), (1 << 20, 16_000, 3), (1 << 20, 1 << 20, 10)]
    {
        let answer: m::FetchResponse = call(&mut connection, 12, &fetch(partition_bytes, bytes)).await;
        assert_eq!(values(&answer)[0].1.len(), expected, "{partition_bytes} {bytes}");
    }
    // min.bytes makes the fetch wait although there are records.
    let begun = Instant::now();
    let patient = m::FetchRequest { min_bytes: 1 << 19, max_wait_ms: 300, ..fetch(1 << 20, 1 << 20) };
    let answer: m::FetchResponse = call(&mut connection, 12, &patient).await;
    assert!(begun.elapsed() >= Duration::from_millis(300) && values(&answer)[0].1.len() == 10);
    // The fetch does not wait if there is more than the limits allow: two batches are less than min.bytes, and three
    // are too many.
    let limited = m::FetchRequest { min_bytes: 12_000, max_wait_ms: 60_000, ..fetch(12_000, 1 << 20) };
    let answer: m::FetchResponse = call(&mut connection, 12, &limited).await;
    assert_eq!(values(&answer)[0].1.len(), 2);
    let beyond: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((0, -1), 1000, vec![fetch_of("t", 0, 99)])).await;
    assert_eq!(beyond.responses[0].partitions[0].error_code, ErrorCode::OffsetOutOfRange.code());
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_moves_the_start_and_offsets_go_on_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [("log.retention.check.interval.ms", "50")];
    let broker = open_with(directory.path(), &settings);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[("retention.ms", "1000")]).await;
    let old = now_ms() - 100_000;
    for _ in 0..5 {
        assert_eq!(produce(&mut connection, "t", 0, -1, batch(&["a", "b"], old, None)).await.0, 0);
    }
    let earliest = |timestamp: i64| {
        let asked = m::list_offsets_request::ListOffsetsPartition {
            partition_index: 0,
            timestamp,
            ..Default::default()
        };
        let topic = m::list_offsets_request::ListOffsetsTopic {
            name: Text::from_static("t"),
            partitions: vec![asked],
        };
        m::ListOffsetsRequest { topics: vec![topic], ..Default::default() }
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer: m::ListOffsetsResponse = call(&mut connection, 7, &earliest(-2)).await;
        if answer.topics[0].partitions[0].offset == 10 {
            break;
        }
        assert!(Instant::now() < deadline, "retention never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let gone: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((0, -1), 0, vec![fetch_of("t", 0, 3)])).await;
    assert_eq!(gone.responses[0].partitions[0].error_code, ErrorCode::OffsetOutOfRange.code());
    drop(connection);
    close(broker).await;
    let broker = open_with(directory.path(), &settings);
    let mut connection = connect(&broker);
    let answer: m::ListOffsetsResponse = call(&mut connection, 7, &earliest(-2)).await;
    assert_eq!(answer.topics[0].partitions[0].offset, 10);
    assert_eq!(produce(&mut connection, "t", 0, -1, batch(&["c"], now_ms(), None)).await, (0, 10, -1));
    broker.close().await;
}

fn delete_records(topic: &'static str, partition: i32, offset: i64) -> m::DeleteRecordsRequest {
    use m::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
    let partitions = vec![DeleteRecordsPartition { partition_index: partition, offset }];
    let topics = vec![DeleteRecordsTopic { name: Text::from_static(topic), partitions }];
    m::DeleteRecordsRequest { topics, timeout_ms: 1000 }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_records_stay_deleted_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    create_topic(&mut connection, "compacted", 1, &[("cleanup.policy", "compact")]).await;
    for value in ["a", "b", "c", "d"] {
        assert_eq!(produce(&mut connection, "t", 0, -1, batch(&[value], now_ms(), None)).await.0, 0);
    }
    let cases = [
        ("t", 0, 5, ErrorCode::OffsetOutOfRange, -1),
        ("t", 0, -2, ErrorCode::OffsetOutOfRange, -1),
        ("t", 1, 0, ErrorCode::UnknownTopicOrPartition, -1),
        ("nowhere", 0, 0, ErrorCode::UnknownTopicOrPartition, -1),
        ("compacted", 0, 0, ErrorCode::PolicyViolation, -1),
        ("t", 0, 0, ErrorCode::None, 0),
        ("t", 0, 3, ErrorCode::None, 3),
        ("t", 0, 1, ErrorCode::None, 3),
    ];
    for (topic, partition, offset, code, low) in cases {
        let answer: m::DeleteRecordsResponse =
            call(&mut connection, 2, &delete_records(topic, partition, offset)).await;
        let result = &answer.topics[0].partitions[0];
        assert_eq!(
            (result.error_code, result.low_watermark),
            (code.code(), low),
            "{topic} {partition} {offset}"
        );
    }
    drop(connection);
    close(broker).await;

    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let answer: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((0, -1), 0, vec![fetch_of("t", 0, 2)])).await;
    assert_eq!(answer.responses[0].partitions[0].error_code, ErrorCode::OffsetOutOfRange.code());
    let answer: m::FetchResponse =
        call(&mut connection, 12, &fetch_request((0, -1), 0, vec![fetch_of("t", 0, 3)])).await;
    assert_eq!(values(&answer), [(0, vec!["d".to_owned()])]);
    assert_eq!(answer.responses[0].partitions[0].log_start_offset, 3);
    let answer: m::DeleteRecordsResponse = call(&mut connection, 2, &delete_records("t", 0, -1)).await;
    assert_eq!(answer.topics[0].partitions[0].low_watermark, 4);
    broker.close().await;
}

/// 40 MB in 20 partitions, read through caches of 4 MiB. Some partitions are at the same position, one is far behind,
/// one far ahead.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_lag_are_read_from_one_scan_and_none_starves() {
    const PARTITIONS: usize = 20;
    const ROUNDS: usize = 40;
    const BATCH_BYTES: usize = 50_000;
    let directory = tempfile::tempdir().unwrap();
    let settings = [
        ("log.tail.cache.bytes", "4194304"),
        ("log.read.cache.bytes", "4194304"),
        ("log.segment.bytes", "16777216"),
    ];
    let broker = open_with(directory.path(), &settings);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", i32::try_from(PARTITIONS).unwrap(), &[]).await;
    let value = |partition: usize, round: usize| {
        let mut value = format!("{partition} {round} ");
        value.extend(std::iter::repeat_n('x', BATCH_BYTES));
        value
    };
    let now = now_ms();
    for round in 0..ROUNDS {
        for partition in 0..PARTITIONS {
            let sent = batch(&[&value(partition, round)], now, None);
            let index = i32::try_from(partition).unwrap();
            assert_eq!(produce(&mut connection, "t", index, -1, sent).await.0, 0);
        }
    }
    let from = |partition: usize| match partition {
        18 => 0,
        19 => ROUNDS - 12,
        partition => partition,
    };
    let mut at: Vec<usize> = (0..PARTITIONS).map(from).collect();
    let fetches = |at: &[usize], changed: &[usize]| {
        let fetch = |partition: &usize| {
            fetch_of("t", i32::try_from(*partition).unwrap(), i64::try_from(at[*partition]).unwrap())
        };
        changed.iter().map(fetch).collect()
    };
    let mut registry = Registry::default();
    broker.register_metrics(&mut registry);
    let misses = || metric(&registry, "mainstem_log_read_cache_misses_total");
    let before = misses();
    let mut changed: Vec<usize> = (0..PARTITIONS).collect();
    let (mut session, mut count) = ((0, 0), 0);
    while at.iter().any(|at| *at < ROUNDS) {
        let request = fetch_request(session, 5000, fetches(&at, &changed));
        let answer: m::FetchResponse = call(&mut connection, 12, &request).await;
        session = (answer.session_id, session.1 + 1);
        changed.clear();
        for (index, got) in values(&answer) {
            let partition = usize::try_from(index).unwrap();
            for got in got {
                assert!(got == value(partition, at[partition]), "partition {partition} at {}", at[partition]);
                at[partition] += 1;
                changed.push(partition);
            }
        }
        changed.dedup();
        assert!(!changed.is_empty(), "a fetch brought nothing though there was more");
        count += 1;
        if at[0] == ROUNDS / 2 {
            assert!(at[19] > from(19), "who is ahead waits for all others");
        }
    }
    let read = misses() - before;
    let once = PARTITIONS * ROUNDS * BATCH_BYTES / (256 * 1024);
    assert!(read < 2 * u64::try_from(once).unwrap(), "{read} reads for {once} regions, {count} fetches");
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_wrong_records_learns_which_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "keyed", 1, &[("cleanup.policy", "compact")]).await;
    create_topic(&mut connection, "timed", 1, &[]).await;
    let future = Timestamp(now_ms() + 10_000_000);
    let mut builder = BatchBuilder::new(Compression::Zstd);
    for (time, key) in [(Timestamp(now_ms()), Some(&b"k"[..])), (future, None), (Timestamp(now_ms()), None)] {
        builder.push(time, key, Some(b"v"));
    }
    let batch = builder.finish();
    for (topic, error, wrong) in
        [("keyed", ErrorCode::InvalidRecord, vec![1, 2]), ("timed", ErrorCode::InvalidTimestamp, vec![1])]
    {
        let data = m::produce_request::PartitionProduceData { index: 0, records: Some(batch.clone().into()) };
        let topic = m::produce_request::TopicProduceData {
            name: Text::from_static(topic),
            partition_data: vec![data],
            ..Default::default()
        };
        let request =
            m::ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], transactional_id: None };
        let answer: m::ProduceResponse = call(&mut connection, 12, &request).await;
        let answer = &answer.responses[0].partition_responses[0];
        assert_eq!(answer.error_code, error.code());
        let named: Vec<i32> = answer.record_errors.iter().map(|record| record.batch_index).collect();
        assert_eq!(named, wrong);
        assert!(answer.error_message.as_ref().unwrap().as_str().starts_with("One or more records"));
    }
    // However many batches there are, an answer names at most a thousand records. Without a field for them it names
    // none.
    let mut builder = BatchBuilder::new(Compression::Zstd);
    (0..600).for_each(|_| builder.push(future, Some(b"k"), None));
    let batch = builder.finish();
    for (version, named) in [(12, 1000), (7, 0)] {
        let data = m::produce_request::PartitionProduceData { index: 0, records: Some(batch.clone().into()) };
        let topic = m::produce_request::TopicProduceData {
            name: Text::from_static("timed"),
            partition_data: vec![data; 5],
            ..Default::default()
        };
        let request =
            m::ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], transactional_id: None };
        let answer: m::ProduceResponse = call(&mut connection, version, &request).await;
        let answers = &answer.responses[0].partition_responses;
        assert!(answers.iter().all(|answer| answer.error_code == ErrorCode::InvalidTimestamp.code()));
        assert_eq!(answers.iter().map(|answer| answer.record_errors.len()).sum::<usize>(), named);
    }
    broker.close().await;
}

/// The end of a partition, or the offset of a timestamp, from ListOffsets.
async fn offset_at(connection: &mut broker::Connection, topic: &'static str, timestamp: i64) -> i64 {
    use m::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    let asked = ListOffsetsPartition { partition_index: 0, current_leader_epoch: -1, timestamp };
    let topic = ListOffsetsTopic { name: Text::from_static(topic), partitions: vec![asked] };
    let request =
        m::ListOffsetsRequest { replica_id: -1, isolation_level: 0, topics: vec![topic], timeout_ms: 0 };
    let answer: m::ListOffsetsResponse = call(connection, 5, &request).await;
    let found = &answer.topics[0].partitions[0];
    assert_eq!(found.error_code, 0);
    found.offset
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_largest_timestamp_is_set_right_and_retention_keeps_the_records() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[("log.retention.check.interval.ms", "50")]);
    let mut connection = connect(&broker);
    let now = now_ms();
    let topics = ["claims-none", "claims-0", "claims-later"];
    for (topic, claimed) in topics.into_iter().zip([-1, 0, now + 40_000_000_000]) {
        create_topic(&mut connection, topic, 1, &[("retention.ms", "3600000")]).await;
        let mut builder = BatchBuilder::new(Compression::Lz4);
        for time in [now - 5, now, now - 3] {
            builder.push(Timestamp(time), None, Some(b"v"));
        }
        let mut wrong = builder.finish().to_vec();
        model::batch::set_max_timestamp(&mut wrong, Timestamp(claimed));
        assert_eq!(produce(&mut connection, topic, 0, -1, Bytes::from(wrong)).await, (0, 0, -1));
        let answer: m::FetchResponse =
            call(&mut connection, 12, &fetch_request((0, -1), 0, vec![fetch_of(topic, 0, 0)])).await;
        let stored = answer.responses[0].partitions[0].records.clone().unwrap().to_bytes();
        let header = model::BatchHeader::parse(&stored).unwrap();
        assert_eq!(header.max_timestamp, Timestamp(now));
        model::batch::verify_crc(&stored, &header).unwrap();
        assert_eq!(offset_at(&mut connection, topic, now).await, 1);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for topic in topics {
        assert_eq!(offset_at(&mut connection, topic, -2).await, 0, "{topic}: retention dropped records");
    }
    // A record with a timestamp a year ahead is refused, whatever the header says.
    let mut ahead = batch(&["a"], now + 31_536_000_000, None).to_vec();
    model::batch::set_max_timestamp(&mut ahead, Timestamp(now));
    let code = produce(&mut connection, "claims-none", 0, -1, Bytes::from(ahead)).await.0;
    assert_eq!(code, ErrorCode::InvalidTimestamp.code());
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_consumers_cannot_decode_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    let good = batch(&["one", "two"], now_ms(), None).to_vec();
    let sealed = |mut bytes: Vec<u8>| {
        let length = i32::try_from(bytes.len() - 12).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        model::batch::seal_crc(&mut bytes);
        bytes
    };
    let mut cases = Vec::new();
    for codec in 1..=7 {
        let mut lies = good.clone();
        lies[22] |= codec;
        cases.push((format!("says codec {codec}, is plain"), sealed(lies)));
    }
    let mut garbage = good.clone();
    garbage[61..].fill(0xff);
    cases.push(("garbage".into(), sealed(garbage)));
    let mut longer = good.clone();
    longer.extend_from_slice(b"more");
    cases.push(("bytes behind the records".into(), sealed(longer)));
    let mut gap = BatchBuilder::new(Compression::Zstd);
    gap.push(Timestamp(now_ms()), None, Some(b"a"));
    gap.push_at(5, Timestamp(now_ms()), None, Some(b"b"), &[]);
    let mut gap = gap.finish().to_vec();
    gap[23..27].copy_from_slice(&1i32.to_be_bytes());
    cases.push(("offset deltas 0 and 5".into(), sealed(gap)));
    // Batches that are too large for a connection's thread to walk, and batches that decompress to more than is
    // allowed.
    let mut bomb = BatchBuilder::new(Compression::Zstd);
    bomb.push(Timestamp(now_ms()), None, Some(&vec![0; 130 << 20]));
    cases.push(("a bomb".into(), bomb.finish().to_vec()));
    for (name, bytes) in cases {
        let code = produce(&mut connection, "t", 0, -1, Bytes::from(bytes)).await.0;
        let refused = if name == "a bomb" { ErrorCode::MessageTooLarge } else { ErrorCode::InvalidRecord };
        assert_eq!(code, refused.code(), "{name}");
    }
    assert_eq!(produce(&mut connection, "t", 0, -1, Bytes::from(good)).await.0, 0);
    assert_eq!(offset_at(&mut connection, "t", -1).await, 2);
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_acks_1_was_told_is_below_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", 1, &[]).await;
    for number in 0..100 {
        let told = produce(&mut connection, "t", 0, 1, batch(&["a"], now_ms(), None)).await;
        assert_eq!((told.0, told.1), (0, number));
        let answer: m::FetchResponse =
            call(&mut connection, 12, &fetch_request((0, -1), 0, vec![fetch_of("t", 0, number + 1)])).await;
        let code = answer.responses.first().map_or(0, |topic| topic.partitions[0].error_code);
        assert_eq!(code, 0, "a fetch at the end of what was acknowledged");
        assert_eq!(offset_at(&mut connection, "t", -1).await, number + 1);
    }
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_goes_by_batch_while_a_topic_is_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[("log.retention.check.interval.ms", "20")]);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "by-time", 1, &[("retention.ms", "3600000")]).await;
    create_topic(&mut connection, "by-size", 1, &[("retention.bytes", "5000")]).await;
    let value = "v".repeat(1000);
    let old = now_ms() - 7_200_000;
    for (number, time) in [old, old, now_ms(), old, now_ms()].into_iter().enumerate() {
        let told = produce(&mut connection, "by-time", 0, -1, batch(&["a", "b"], time, None)).await;
        assert_eq!((told.0, told.1), (0, 2 * i64::try_from(number).unwrap()));
    }
    for _ in 0..20 {
        assert_eq!(produce(&mut connection, "by-size", 0, -1, batch(&[&value], now_ms(), None)).await.0, 0);
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let starts = (
            offset_at(&mut connection, "by-time", -2).await,
            offset_at(&mut connection, "by-size", -2).await,
        );
        // Old records behind newer ones stay with them. By size, as many batches as fit stay, or one more.
        if starts.0 == 4 && (15..=16).contains(&starts.1) {
            break;
        }
        assert!(starts.0 <= 4 && starts.1 <= 16, "retention dropped too much: {starts:?}");
        assert!(std::time::Instant::now() < deadline, "retention stands still: {starts:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    broker.close().await;
}
