//! Transactions as clients see them: the view of read_committed, also after crashes; fencing, time-outs, offsets; and
//! the second version of the protocol (KIP-890).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, Connection, LogDirectory};
use disk::SimDisk;
use disk::sim::Fault;
use model::{Compression, Timestamp};
use wire::messages as m;
use wire::records::{BatchBuilder, records};
use wire::{Bytes, ErrorCode, Text};

use crate::common::transactional::{Producer, Seen, V1, V2, now_ms, read};
use crate::common::{call, close, connect, create_topic, fetch_of, fetch_request, open_on};

const NONE: i16 = 0;
/// A computer whose power can be cut, with a disk for its log, or two.
struct Machine {
    metadata: tempfile::TempDir,
    disk: SimDisk,
    second: Option<SimDisk>,
}

impl Machine {
    fn new() -> Machine {
        Machine { metadata: tempfile::tempdir().unwrap(), disk: SimDisk::new(3), second: None }
    }

    fn open(&self) -> Arc<Broker> {
        self.open_with(&[])
    }

    fn open_with(&self, more: &[(&str, &str)]) -> Arc<Broker> {
        let log = |(path, disk): (&'static str, &SimDisk)| {
            let disk = disk.clone();
            LogDirectory::new(path, move |_| Ok(Arc::new(disk.clone())))
        };
        let disks = [("first", Some(&self.disk)), ("second", self.second.as_ref())];
        let logs = disks.into_iter().filter_map(|(path, disk)| Some(log((path, disk?)))).collect();
        let mut settings = vec![
            ("log.segment.bytes", "1048576"),
            ("log.reserve.bytes", "0"),
            ("group.initial.rebalance.delay.ms", "0"),
        ];
        settings.extend(more);
        open_on(self.metadata.path(), logs, &settings).unwrap()
    }
}

/// Of no producer.
fn plain_batch(value: &str) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(now_ms()), None, Some(value.as_bytes()));
    builder.finish()
}

async fn offset_of(connection: &mut Connection, group: &'static str, stable: bool) -> (i16, i64) {
    let topic = m::offset_fetch_request::OffsetFetchRequestTopics {
        name: Text::from_static("t"),
        partition_indexes: vec![0],
        ..Default::default()
    };
    let group = m::offset_fetch_request::OffsetFetchRequestGroup {
        group_id: Text::from_static(group),
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = m::OffsetFetchRequest { groups: vec![group], require_stable: stable, ..Default::default() };
    let answer: m::OffsetFetchResponse = call(connection, 8, &request).await;
    let partition = &answer.groups[0].topics[0].partitions[0];
    (partition.error_code, partition.committed_offset)
}

async fn describe(connection: &mut Connection, id: &'static str) -> (String, i64) {
    let request = m::DescribeTransactionsRequest { transactional_ids: vec![Text::from_static(id)] };
    let answer: m::DescribeTransactionsResponse = call(connection, 0, &request).await;
    let state = &answer.transaction_states[0];
    assert_eq!(state.error_code, NONE);
    (state.transaction_state.to_string(), state.transaction_start_time_ms)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_aborted_or_is_open_is_not_seen_across_restarts_and_power_cuts() {
    for version in [V1, V2] {
        let mut machine = Machine::new();
        let broker = machine.open();
        let mut reader = connect(&broker);
        create_topic(&mut reader, "t", 2, &[]).await;
        let mut first = Producer::new(&broker, "first", version).await;
        let mut second = Producer::new(&broker, "second", version).await;
        assert_eq!(first.send("t", 0, &["a", "b"]).await, NONE);
        assert_eq!(second.send("t", 0, &["x"]).await, NONE);
        assert_eq!(second.send("t", 1, &["y"]).await, NONE);
        let seen = read(&mut reader, "t", 0, 0, true).await;
        assert_eq!(seen, Seen { values: vec![], last_stable_offset: 0, high_watermark: 3 });
        assert_eq!(read(&mut reader, "t", 0, 0, false).await.values, ["a", "b", "x"]);
        assert_eq!(first.end(true).await, NONE);
        // The later transaction is still open. Records that the other one committed before it are stable.
        let seen = read(&mut reader, "t", 0, 0, true).await;
        assert_eq!(
            seen,
            Seen { values: vec!["a".into(), "b".into()], last_stable_offset: 2, high_watermark: 4 }
        );
        assert_eq!(first.send("t", 0, &["c"]).await, NONE);
        drop((first, second, reader));
        close(broker).await;

        let broker = machine.open();
        let mut reader = connect(&broker);
        let seen = read(&mut reader, "t", 0, 0, true).await;
        assert_eq!(
            seen,
            Seen { values: vec!["a".into(), "b".into()], last_stable_offset: 2, high_watermark: 5 }
        );
        // A new instance ends the transaction of the last one, in both partitions.
        let mut second = Producer::new(&broker, "second", version).await;
        assert_eq!(describe(&mut reader, "second").await.0, "Empty");
        let seen = read(&mut reader, "t", 0, 0, true).await;
        assert_eq!((seen.values, seen.last_stable_offset), (vec!["a".to_owned(), "b".to_owned()], 4));
        assert_eq!(read(&mut reader, "t", 1, 0, true).await.values, [""; 0]);
        assert_eq!(second.send("t", 1, &["z"]).await, NONE);
        assert_eq!(second.end(true).await, NONE);
        let mut first = Producer::new(&broker, "first", version).await;
        assert_eq!(first.send("t", 0, &["d"]).await, NONE);
        assert_eq!(first.end(true).await, NONE);
        assert_eq!(read(&mut reader, "t", 1, 0, true).await.values, ["z"]);
        let all = ["a", "b", "d"];
        assert_eq!(read(&mut reader, "t", 0, 0, true).await.values, all);
        // The same for a read that starts in the middle of aborted records.
        assert_eq!(read(&mut reader, "t", 0, 2, true).await.values, ["d"]);
        assert_eq!(read(&mut reader, "t", 0, 4, true).await.values, ["d"]);
        // Much later, in another segment of the log, the power is cut.
        let filler = "f".repeat(100_000);
        for _ in 0..30 {
            assert_eq!(second.send("t", 1, &[&filler]).await, NONE);
        }
        assert_eq!(second.end(false).await, NONE);
        machine.disk = machine.disk.crash(11);
        drop((first, second, reader));
        close(broker).await;

        let broker = machine.open();
        let mut reader = connect(&broker);
        assert_eq!(read(&mut reader, "t", 0, 0, true).await.values, all);
        assert_eq!(read(&mut reader, "t", 1, 0, true).await.values, ["z"]);
        assert_eq!(describe(&mut reader, "second").await.0, "CompleteAbort");
        drop(reader);
        close(broker).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_are_fenced_and_wrong_steps_get_kafkas_errors() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 1, &[]).await;
    let mut old = Producer::new(&broker, "id", V1).await;
    assert_eq!(old.end(true).await, ErrorCode::InvalidTxnState.code());
    assert_eq!(old.send_alone("t", 0, &["a"]).await, ErrorCode::TransactionAbortable.code());
    assert_eq!(old.add("nowhere", 0).await, ErrorCode::UnknownTopicOrPartition.code());
    assert_eq!(old.send("t", 0, &["a"]).await, NONE);
    assert_eq!(old.end(true).await, NONE);
    assert_eq!(old.end(true).await, NONE);
    assert_eq!(old.end(false).await, ErrorCode::InvalidTxnState.code());
    // A batch that arrives after the end of its transaction.
    assert_eq!(old.send_alone("t", 0, &["late"]).await, ErrorCode::TransactionAbortable.code());
    assert_eq!(old.send("t", 0, &["b"]).await, NONE);

    let mut new = Producer::new(&broker, "id", V2).await;
    assert_eq!(new.id, old.id);
    assert_eq!(old.send_alone("t", 0, &["zombie"]).await, ErrorCode::InvalidProducerEpoch.code());
    assert_eq!(old.add("t", 0).await, ErrorCode::ProducerFenced.code());
    assert_eq!(old.end(true).await, ErrorCode::ProducerFenced.code());
    assert_eq!(old.commit_offset("g", "t", 1).await, ErrorCode::ProducerFenced.code());
    assert_eq!(new.send("t", 0, &["c"]).await, NONE);
    // The same while the newer producer has an open transaction in the partition of the offsets.
    assert_eq!(new.commit_offset("g", "t", 1).await, NONE);
    old.version.commit = 3;
    assert_eq!(old.commit_alone("g", "t", 1).await, ErrorCode::InvalidProducerEpoch.code());
    let before = new.epoch;
    assert_eq!(new.end(true).await, NONE);
    // The answer was lost: the client sends the request again with the previous epoch.
    new.epoch = before;
    assert_eq!(new.end(true).await, NONE);
    assert_eq!(new.end(true).await, ErrorCode::InvalidTxnState.code());
    assert_eq!(new.end(false).await, NONE);
    // Sequence numbers begin again with each epoch.
    new.sequences.insert(0, 5);
    assert_eq!(new.send("t", 0, &["gap"]).await, ErrorCode::OutOfOrderSequenceNumber.code());
    new.sequences.clear();
    assert_eq!(new.send("t", 0, &["d"]).await, NONE);
    assert_eq!(new.end(true).await, NONE);
    assert_eq!(read(&mut reader, "t", 0, 0, true).await.values, ["a", "c", "d"]);

    // The same holds for an unknown producer: a batch before this one was lost. Without an epoch for each transaction,
    // its records may have been deleted.
    let mut fresh = Producer::new(&broker, "fresh", V2).await;
    fresh.sequences.insert(0, 5);
    assert_eq!(fresh.send("t", 0, &["gap"]).await, ErrorCode::OutOfOrderSequenceNumber.code());
    fresh.sequences.clear();
    assert_eq!(fresh.send("t", 0, &["e"]).await, NONE);
    let mut older = Producer::new(&broker, "older", V1).await;
    older.sequences.insert(0, 5);
    assert_eq!(older.send("t", 0, &["f"]).await, NONE);

    // Without a transactional id, the batch belongs to no transaction.
    let mut nobody = Producer::new(&broker, "other", V2).await;
    let batch = nobody.batch(0, &["e"]);
    let answer = crate::common::produce(&mut nobody.connection, "t", 0, -1, batch).await;
    assert_eq!(answer.0, ErrorCode::TransactionalIdAuthorizationFailed.code());
    assert_eq!(nobody.initialize(0).await, ErrorCode::InvalidTransactionTimeout.code());
    assert_eq!(nobody.initialize(900_001).await, ErrorCode::InvalidTransactionTimeout.code());
    drop((old, new, fresh, older, nobody, reader));
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_of_a_transaction_count_when_it_commits_also_after_a_crash() {
    for version in [V1, V2] {
        let mut machine = Machine::new();
        let broker = machine.open();
        let mut reader = connect(&broker);
        create_topic(&mut reader, "t", 1, &[]).await;
        let mut producer = Producer::new(&broker, "id", version).await;
        assert_eq!(producer.commit_offset("g", "t", 5).await, NONE);
        assert_eq!(offset_of(&mut reader, "g", false).await, (NONE, -1));
        assert_eq!(offset_of(&mut reader, "g", true).await.0, ErrorCode::UnstableOffsetCommit.code());
        assert_eq!(producer.end(true).await, NONE);
        assert_eq!(offset_of(&mut reader, "g", true).await, (NONE, 5));
        assert_eq!(producer.commit_offset("g", "t", 6).await, NONE);
        assert_eq!(producer.end(false).await, NONE);
        assert_eq!(offset_of(&mut reader, "g", true).await, (NONE, 5));
        assert_eq!(producer.commit_offset("g", "t", 7).await, NONE);
        assert_eq!(producer.commit_offset("h", "t", 1).await, NONE);
        machine.disk = machine.disk.crash(11);
        drop((producer, reader));
        close(broker).await;

        let broker = machine.open();
        let mut reader = connect(&broker);
        assert_eq!(offset_of(&mut reader, "g", false).await, (NONE, 5));
        assert_eq!(offset_of(&mut reader, "g", true).await.0, ErrorCode::UnstableOffsetCommit.code());
        let mut producer = Producer::new(&broker, "id", version).await;
        assert_eq!(offset_of(&mut reader, "g", true).await, (NONE, 5));
        assert_eq!(offset_of(&mut reader, "h", true).await, (NONE, -1));
        assert_eq!(producer.commit_offset("g", "t", 8).await, NONE);
        assert_eq!(producer.end(true).await, NONE);
        drop((producer, reader));
        close(broker).await;

        let broker = machine.open();
        assert_eq!(offset_of(&mut connect(&broker), "g", true).await, (NONE, 8));
        close(broker).await;
    }
}

/// The committed offsets of a topic are deleted with it, even if an open transaction commits them.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_of_an_open_transaction_do_not_count_for_a_topic_that_is_made_anew() {
    for restart in [false, true] {
        let machine = Machine::new();
        let mut broker = machine.open();
        let mut admin = connect(&broker);
        create_topic(&mut admin, "t", 1, &[]).await;
        create_topic(&mut admin, "other", 1, &[]).await;
        let mut producer = Producer::new(&broker, "id", V1).await;
        assert_eq!(producer.commit_offset("g", "t", 1000).await, NONE);
        assert_eq!(producer.commit_offset("h", "other", 7).await, NONE);
        let delete = m::DeleteTopicsRequest {
            topic_names: vec![Text::from_static("t")],
            timeout_ms: 5000,
            ..Default::default()
        };
        let answer: m::DeleteTopicsResponse = call(&mut admin, 5, &delete).await;
        assert_eq!(answer.responses[0].error_code, NONE);
        create_topic(&mut admin, "t", 1, &[]).await;
        if restart {
            drop(admin);
            let Producer { id, epoch, .. } = producer;
            drop(producer.connection);
            close(broker).await;
            broker = machine.open();
            admin = connect(&broker);
            producer = Producer { connection: connect(&broker), id, epoch, ..producer };
        }
        assert_eq!(producer.end(true).await, NONE);
        assert_eq!(offset_of(&mut admin, "g", true).await, (NONE, -1), "after a restart: {restart}");
        drop((admin, producer));
        close(broker).await;
    }
}

/// If transactions overlap all the time, there is never a moment without an open one.
#[tokio::test(flavor = "multi_thread")]
async fn the_offsets_of_busy_transactions_are_compacted_too() {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let machine = Machine::new();
    let settings = [("offsets.topic.num.partitions", "1"), ("log.cleaner.backoff.ms", "10")];
    let broker = machine.open_with(&settings);
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 100, &[]).await;
    let done = Arc::new(AtomicBool::new(false));
    let work = |name: &'static str| {
        let (broker, done) = (broker.clone(), done.clone());
        async move {
            let mut producer = Producer::new(&broker, name, V2).await;
            let mut last = -1;
            for offset in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                assert_eq!(producer.commit_all(name, "t", 100, offset).await, NONE);
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert_eq!(producer.end(true).await, NONE);
                last = offset;
            }
            last
        }
    };
    let tasks: Vec<_> = NAMES.map(|name| tokio::spawn(work(name))).into();
    let begun = Instant::now();
    let mut largest = 0;
    loop {
        let request = m::DescribeLogDirsRequest { topics: None };
        let answer: m::DescribeLogDirsResponse = call(&mut reader, 4, &request).await;
        let mut topics = answer.results.iter().flat_map(|directory| &directory.topics);
        let topic = topics.find(|topic| topic.name.as_str() == "__consumer_offsets");
        let size = topic.map_or(0, |topic| topic.partitions[0].partition_size);
        if size < largest / 2 {
            break;
        }
        largest = largest.max(size);
        assert!(begun.elapsed() < Duration::from_secs(30), "{largest} bytes were never compacted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut last = Vec::new();
    for task in tasks {
        last.push(task.await.unwrap());
    }
    drop(reader);
    close(broker).await;
    let broker = machine.open_with(&settings);
    let mut reader = connect(&broker);
    for (name, offset) in NAMES.into_iter().zip(last) {
        assert_eq!(offset_of(&mut reader, name, true).await, (NONE, offset), "{name}");
    }
    drop(reader);
    close(broker).await;
}

/// As in Kafka, a producer that does not know the consumer's membership is checked only by its own fencing.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_commits_offsets_of_a_consumer_group_without_saying_whose() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut member = connect(&broker);
    create_topic(&mut member, "t", 1, &[]).await;
    let join = m::ConsumerGroupHeartbeatRequest {
        group_id: Text::from_static("g"),
        member_id: Text::from_static("a"),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec![Text::from_static("t")]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let answer: m::ConsumerGroupHeartbeatResponse = call(&mut member, 1, &join).await;
    assert_eq!(answer.error_code, NONE);
    let member_epoch = answer.member_epoch;
    for version in [V1, V2] {
        let mut producer = Producer::new(&broker, "id", version).await;
        assert_eq!(producer.commit_offset("g", "t", 5).await, NONE);
        assert_eq!(producer.end(true).await, NONE);
    }
    // The request names the member and uses a version with a member id, because earlier versions have no such field.
    let topic = m::offset_fetch_request::OffsetFetchRequestTopics {
        name: Text::from_static("t"),
        partition_indexes: vec![0],
        ..Default::default()
    };
    let group = m::offset_fetch_request::OffsetFetchRequestGroup {
        group_id: Text::from_static("g"),
        member_id: Some(Text::from_static("a")),
        member_epoch,
        topics: Some(vec![topic]),
    };
    let request = m::OffsetFetchRequest { groups: vec![group], require_stable: true, ..Default::default() };
    let answer: m::OffsetFetchResponse = call(&mut member, 9, &request).await;
    assert_eq!(answer.groups[0].topics[0].partitions[0].committed_offset, 5);
    drop(member);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_open_too_long_is_aborted_and_a_hanging_one_can_be() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 1, &[]).await;
    let mut slow = Producer::new(&broker, "slow", V2).await;
    assert_eq!(slow.initialize(1).await, NONE);
    assert_eq!(slow.send("t", 0, &["a"]).await, NONE);
    let begun = Instant::now();
    while describe(&mut reader, "slow").await.0 != "CompleteAbort" {
        assert!(begun.elapsed() < Duration::from_secs(20), "it was not aborted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen = read(&mut reader, "t", 0, 0, true).await;
    assert_eq!(seen, Seen { values: vec![], last_stable_offset: 2, high_watermark: 2 });
    assert_eq!(slow.end(true).await, ErrorCode::InvalidTxnState.code());

    let mut hanging = Producer::new(&broker, "hanging", V2).await;
    assert_eq!(hanging.send("t", 0, &["b"]).await, NONE);
    let topic = m::describe_producers_request::TopicRequest {
        name: Text::from_static("t"),
        partition_indexes: vec![0],
    };
    let request = m::DescribeProducersRequest { topics: vec![topic] };
    let answer: m::DescribeProducersResponse = call(&mut reader, 0, &request).await;
    let producers = &answer.topics[0].partitions[0].active_producers;
    let of = |id: i64| producers.iter().find(|producer| producer.producer_id == id).unwrap();
    assert_eq!((of(slow.id).current_txn_start_offset, of(hanging.id).current_txn_start_offset), (-1, 2));
    let topic = m::write_txn_markers_request::WritableTxnMarkerTopic {
        name: Text::from_static("t"),
        partition_indexes: vec![0, 9],
    };
    let marker = |coordinator_epoch: i32| m::write_txn_markers_request::WritableTxnMarker {
        producer_id: hanging.id,
        producer_epoch: hanging.epoch,
        topics: vec![topic.clone()],
        coordinator_epoch,
        ..Default::default()
    };
    let mut written = async |coordinator_epoch: i32| {
        let request = m::WriteTxnMarkersRequest { markers: vec![marker(coordinator_epoch)] };
        let answer: m::WriteTxnMarkersResponse = call(&mut reader, 1, &request).await;
        let partitions = &answer.markers[0].topics[0].partitions;
        (partitions[0].error_code, partitions[1].error_code)
    };
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(written(7).await, (NONE, unknown));
    // As in Kafka, the marker of a coordinator that another one has replaced is refused.
    assert_eq!(written(6).await, (ErrorCode::TransactionCoordinatorFenced.code(), unknown));
    let seen = read(&mut reader, "t", 0, 0, true).await;
    assert_eq!(seen, Seen { values: vec![], last_stable_offset: 4, high_watermark: 4 });
    let request = m::DescribeProducersRequest {
        topics: vec![m::describe_producers_request::TopicRequest {
            name: Text::from_static("t"),
            partition_indexes: vec![0],
        }],
    };
    let answer: m::DescribeProducersResponse = call(&mut reader, 0, &request).await;
    let producers = &answer.topics[0].partitions[0].active_producers;
    let ended = producers.iter().find(|producer| producer.producer_id == hanging.id).unwrap();
    assert_eq!(ended.coordinator_epoch, 7);

    let request = m::ListTransactionsRequest {
        state_filters: vec![Text::from_static("Ongoing"), Text::from_static("Asleep")],
        duration_filter: -1,
        transactional_id_pattern: Some(Text::from_static("hang.*")),
        ..Default::default()
    };
    let answer: m::ListTransactionsResponse = call(&mut reader, 2, &request).await;
    assert_eq!(answer.unknown_state_filters, [Text::from_static("Asleep")]);
    let ids: Vec<_> = answer.transaction_states.iter().map(|state| state.transactional_id.as_str()).collect();
    assert_eq!(ids, ["hanging"]);
    drop((slow, hanging, reader));
    close(broker).await;
}

/// A producer id is no secret. Therefore the coordinator is asked about a batch with this id, whatever its epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_another_epoch_does_not_join_an_open_transaction() {
    for version in [V1, V2] {
        let machine = Machine::new();
        let broker = machine.open();
        let mut reader = connect(&broker);
        create_topic(&mut reader, "t", 1, &[]).await;
        let mut victim = Producer::new(&broker, "victim", version).await;
        assert_eq!(victim.send("t", 0, &["a"]).await, NONE);
        let mut other = Producer::new(&broker, "other", version).await;
        (other.id, other.epoch) = (victim.id, i16::MAX);
        assert_eq!(other.send_alone("t", 0, &["b"]).await, ErrorCode::InvalidProducerIdMapping.code());
        assert_eq!(victim.end(true).await, NONE);
        let seen = read(&mut reader, "t", 0, 0, true).await;
        assert_eq!(seen, Seen { values: vec!["a".into()], last_stable_offset: 2, high_watermark: 2 });
        drop((victim, other, reader));
        close(broker).await;
    }
}

/// While the marker of a transaction cannot be written, the producer's next transaction does not continue in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_does_not_join_the_one_before_whose_log_is_full() {
    let machine = Machine { second: Some(SimDisk::new(5)), ..Machine::new() };
    let broker = machine.open_with(&[("transaction.state.log.num.partitions", "1")]);
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 2, &[]).await;
    let mut producer = Producer::new(&broker, "id", V2).await;
    let own = directories(&mut reader, "__transaction_state").await[0].clone();
    let places = directories(&mut reader, "t").await;
    let far = i32::from(places[0] == own);
    assert_ne!(places[usize::try_from(far).unwrap()], own);
    let full = if own == "first" { machine.second.as_ref().unwrap() } else { &machine.disk };
    assert_eq!(producer.send("t", far, &["a"]).await, NONE);
    full.set_capacity(0);
    let mut filled = 0;
    while crate::common::produce(&mut reader, "t", far, -1, plain_batch(&"f".repeat(60_000))).await.0 == NONE
    {
        filled += 1;
        assert!(filled < 1000, "it is never full");
    }
    assert_eq!(producer.end(false).await, NONE);
    assert_eq!(describe(&mut reader, "id").await.0, "PrepareAbort");
    full.set_capacity(u64::MAX);
    let begun = Instant::now();
    let mut refused = BTreeMap::new();
    loop {
        let error = producer.send("t", far, &["z"]).await;
        if error == NONE {
            break;
        }
        *refused.entry(error).or_insert(0) += 1;
        assert!(begun.elapsed() < Duration::from_secs(20), "{refused:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Errors on which producers of this version retry.
    let retried =
        [ErrorCode::ConcurrentTransactions, ErrorCode::NotEnoughReplicas, ErrorCode::KafkaStorageError];
    assert!(refused.keys().all(|error| retried.iter().any(|code| code.code() == *error)), "{refused:?}");
    assert_eq!(producer.end(true).await, NONE);
    let seen = read(&mut reader, "t", far, 0, true).await;
    let values: Vec<_> = seen.values.into_iter().filter(|value| value.len() == 1).collect();
    assert_eq!(values, ["z"]);
    drop((producer, reader));
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_request_has_one_producer() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 2, &[]).await;
    let mut one = Producer::new(&broker, "one", V2).await;
    let two = Producer::new(&broker, "two", V2).await;
    let data = |index: i32, batch: Bytes| m::produce_request::PartitionProduceData {
        index,
        records: Some(batch.into()),
    };
    let topic = m::produce_request::TopicProduceData {
        name: Text::from_static("t"),
        partition_data: vec![data(0, one.batch(0, &["a"])), data(1, two.batch(1, &["b"]))],
        ..Default::default()
    };
    let request = m::ProduceRequest {
        acks: -1,
        timeout_ms: 5000,
        topic_data: vec![topic],
        transactional_id: Some(Text::from_static("one")),
    };
    let answer: m::ProduceResponse = call(&mut one.connection, 12, &request).await;
    let errors: Vec<_> =
        answer.responses[0].partition_responses.iter().map(|partition| partition.error_code).collect();
    assert_eq!(errors, [ErrorCode::InvalidProducerIdMapping.code(); 2]);
    drop((one, two, reader));
    close(broker).await;
}

/// The marker that makes records readable is much smaller than the records.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_transaction_wakes_who_waits_for_many_bytes() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 1, &[]).await;
    let mut producer = Producer::new(&broker, "p", V2).await;
    let waiting = tokio::spawn(async move {
        let request = m::FetchRequest {
            min_bytes: 1000,
            isolation_level: 1,
            ..fetch_request((0, -1), 60_000, vec![fetch_of("t", 0, 0)])
        };
        let answer: m::FetchResponse = call(&mut reader, 12, &request).await;
        answer.responses[0].partitions[0].records.as_ref().unwrap().to_bytes().len()
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(producer.send("t", 0, &[&"a".repeat(2000)]).await, NONE);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "nothing is committed yet");
    assert_eq!(producer.end(true).await, NONE);
    assert!(waiting.await.unwrap() > 2000);
    drop(producer);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_aborted_supersedes_nothing_when_a_topic_is_compacted() {
    let machine = Machine::new();
    let broker = machine.open_with(&[("log.cleaner.backoff.ms", "50")]);
    let mut reader = connect(&broker);
    let configs = [
        ("cleanup.policy", "compact"),
        ("max.compaction.lag.ms", "1"),
        ("min.cleanable.dirty.ratio", "0.0"),
        ("segment.ms", "1"),
    ];
    create_topic(&mut reader, "t", 1, &configs).await;
    let mut producer = Producer::new(&broker, "id", V2).await;
    // All records have one key.
    for (value, committed) in [("kept?", true), ("kept", true), ("aborted", false)] {
        assert_eq!(producer.send("t", 0, &[value]).await, NONE);
        assert_eq!(producer.end(committed).await, NONE);
    }
    let begun = Instant::now();
    while read(&mut reader, "t", 0, 0, false).await.values != ["kept"] {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", read(&mut reader, "t", 0, 0, false).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(read(&mut reader, "t", 0, 0, true).await.values, ["kept"]);
    drop((producer, reader));
    close(broker).await;
}

/// Once nothing is left of an aborted transaction, its marker is removed too, and readers no longer see it in the list.
/// The same holds after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_producer_commits_after_it_aborted_is_compacted_like_anything_else() {
    let machine = Machine::new();
    let settings = [("log.cleaner.backoff.ms", "20")];
    let mut broker = machine.open_with(&settings);
    let mut reader = connect(&broker);
    let configs = [
        ("cleanup.policy", "compact"),
        ("max.compaction.lag.ms", "1"),
        ("min.cleanable.dirty.ratio", "0.0"),
        ("segment.ms", "1"),
        ("delete.retention.ms", "0"),
    ];
    create_topic(&mut reader, "t", 1, &configs).await;
    let mut producer = Producer::new(&broker, "id", V2).await;
    let id = producer.id;
    assert_eq!(producer.send("t", 0, &["aborted"]).await, NONE);
    assert_eq!(producer.end(false).await, NONE);
    for round in 0..8 {
        let value = format!("committed {round}");
        assert_eq!(producer.send("t", 0, &[&value]).await, NONE);
        assert_eq!((producer.end(true).await, producer.id), (NONE, id));
        let begun = Instant::now();
        // All records have one key.
        while read(&mut reader, "t", 0, 0, false).await.values != [&*value] {
            let seen = read(&mut reader, "t", 0, 0, false).await;
            assert!(begun.elapsed() < Duration::from_secs(20), "round {round}: {seen:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(read(&mut reader, "t", 0, 0, true).await.values, [&*value], "round {round}");
        if round == 3 {
            drop((producer, reader));
            close(broker).await;
            broker = machine.open_with(&settings);
            reader = connect(&broker);
            producer = Producer::new(&broker, "id", V2).await;
            assert_eq!(producer.id, id);
        }
    }
    let mut request = fetch_request((0, -1), 0, vec![fetch_of("t", 0, 0)]);
    request.isolation_level = 1;
    let answer: m::FetchResponse = call(&mut reader, 12, &request).await;
    let data = &answer.responses[0].partitions[0];
    assert!(data.aborted_transactions.as_ref().is_none_or(Vec::is_empty), "{:?}", data.aborted_transactions);
    let (header, _) = records(&data.records.as_ref().unwrap().to_bytes(), 1 << 20).unwrap();
    assert!(header.base_offset.0 > 1, "the marker is gone: {header:?}");
    drop((producer, reader));
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_stable_offset_is_never_below_the_start() {
    let machine = Machine::new();
    let broker = machine.open();
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 1, &[]).await;
    let mut producer = Producer::new(&broker, "id", V2).await;
    assert_eq!(producer.send("t", 0, &["a", "b", "c"]).await, NONE);
    let partition = m::delete_records_request::DeleteRecordsPartition { partition_index: 0, offset: 2 };
    let topic = m::delete_records_request::DeleteRecordsTopic {
        name: Text::from_static("t"),
        partitions: vec![partition],
    };
    let request = m::DeleteRecordsRequest { topics: vec![topic], timeout_ms: 5000 };
    let answer: m::DeleteRecordsResponse = call(&mut reader, 2, &request).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, NONE);
    let seen = read(&mut reader, "t", 0, 2, true).await;
    assert_eq!(seen, Seen { values: vec![], last_stable_offset: 2, high_watermark: 3 });
    drop((producer, reader));
    close(broker).await;
}

/// The directory of each partition of a topic.
async fn directories(connection: &mut Connection, topic: &str) -> Vec<String> {
    let answer: m::DescribeLogDirsResponse =
        call(connection, 4, &m::DescribeLogDirsRequest { topics: None }).await;
    let mut found = Vec::new();
    for result in &answer.results {
        for of in result.topics.iter().filter(|of| of.name.as_str() == topic) {
            found.extend(of.partitions.iter().map(|p| (p.partition_index, result.log_dir.to_string())));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, directory)| directory).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_fails_keeps_no_transaction_open_in_the_others() {
    let machine = Machine { second: Some(SimDisk::new(5)), ..Machine::new() };
    let one = [("transaction.state.log.num.partitions", "1")];
    let broker = machine.open_with(&one);
    let mut reader = connect(&broker);
    create_topic(&mut reader, "t", 2, &[]).await;
    let mut producer = Producer::new(&broker, "id", V2).await;
    for (value, committed) in [("a", true), ("b", false), ("c", true)] {
        assert_eq!(producer.send("t", 0, &[value]).await, NONE);
        assert_eq!(producer.send("t", 1, &[value]).await, NONE);
        assert_eq!(producer.end(committed).await, NONE);
    }
    let own = directories(&mut reader, "__transaction_state").await[0].clone();
    let places = directories(&mut reader, "t").await;
    let well = i32::from(places[1] == own);
    assert_eq!(places.iter().filter(|place| **place == own).count(), 1, "{places:?}");
    let failing = if own == "first" { machine.second.as_ref().unwrap() } else { &machine.disk };
    assert_eq!(producer.send("t", 0, &["d"]).await, NONE);
    assert_eq!(producer.send("t", 1, &["d"]).await, NONE);
    failing.fail_write_after(0, Fault::Forever);
    // The marker cannot be written in this log, so the log stops. The transaction is decided anyway.
    let mut ended = producer.end(true).await;
    let begun = Instant::now();
    while ended != NONE {
        assert!(begun.elapsed() < Duration::from_secs(20), "error {ended}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        ended = match describe(&mut reader, "id").await.0.as_str() {
            "PrepareCommit" => NONE,
            _ => producer.end(true).await,
        };
    }
    let seen = read(&mut reader, "t", well, 0, true).await;
    assert_eq!((seen.values, seen.last_stable_offset), (vec!["a".into(), "c".into(), "d".into()], 8));
    assert_eq!(describe(&mut reader, "id").await.0, "PrepareCommit");
    drop((producer, reader));
    close(broker).await;

    // The disk works again, and the decided transaction is completed without a request.
    let mended = |disk: &SimDisk| disk.crash(1);
    let machine = Machine {
        disk: mended(&machine.disk),
        second: machine.second.as_ref().map(mended),
        metadata: machine.metadata,
    };
    let broker = machine.open_with(&one);
    let mut reader = connect(&broker);
    let begun = Instant::now();
    while describe(&mut reader, "id").await.0 != "CompleteCommit" {
        assert!(begun.elapsed() < Duration::from_secs(20), "it was not completed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for partition in 0..2 {
        assert_eq!(read(&mut reader, "t", partition, 0, true).await.values, ["a", "c", "d"]);
    }
    drop(reader);
    close(broker).await;
}
