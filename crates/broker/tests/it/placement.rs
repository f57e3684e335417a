//! Two brokers that lead different partitions: which of them serves a request, and what clients are told when a leader
//! changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Connection};
use model::{Compression, Timestamp};
use wire::messages as m;
use wire::records::BatchBuilder;
use wire::{Bytes, ErrorCode, Text};

use crate::common::{call, close, connect, create_topic, fetch_of, fetch_request, open, produce};

const NONE: i16 = 0;
const NOT_LEADER: i16 = ErrorCode::NotLeaderOrFollower.code();
const NOT_COORDINATOR: i16 = ErrorCode::NotCoordinator.code();
const TOPIC: &str = "t";
const ONE: i32 = 1;
const OTHER: i32 = 2;

struct Two {
    brokers: [Arc<Broker>; 2],
    clients: [Connection; 2],
    _directory: tempfile::TempDir,
}

/// Two brokers, and a topic with two partitions. The second broker leads the second partition.
async fn two() -> Two {
    let directory = tempfile::tempdir().unwrap();
    let one = open(directory.path());
    let other = one.beside(OTHER);
    let listeners = |port| BTreeMap::from([("PLAINTEXT".to_owned(), ("127.0.0.1".to_owned(), port))]);
    one.set_others(BTreeMap::from([(OTHER, listeners(9093))]));
    other.set_others(BTreeMap::from([(ONE, listeners(9092))]));
    let mut clients = [connect(&one), connect(&other)];
    create_topic(&mut clients[0], TOPIC, 2, &[]).await;
    place(&one, &[(TOPIC, 1, OTHER)]);
    Two { brokers: [one, other], clients, _directory: directory }
}

/// Sets the leaders of partitions.
fn place(broker: &Broker, places: &[(&str, i32, i32)]) {
    broker.place(|topic, index, node| {
        let place = places.iter().find(|(of, at, _)| (*of, *at) == (topic, index));
        place.map_or(node, |(.., node)| *node)
    });
}

fn batch() -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(1), None, Some(b"value"));
    builder.finish()
}

async fn leaders(client: &mut Connection) -> m::MetadataResponse {
    let topic = m::metadata_request::MetadataRequestTopic {
        name: Some(Text::from_static(TOPIC)),
        ..Default::default()
    };
    call(client, 12, &m::MetadataRequest { topics: Some(vec![topic]), ..Default::default() }).await
}

/// The error, the records, and the leader in the answer to a fetch.
async fn fetched(
    client: &mut Connection,
    partition: i32,
    epoch: i32,
    wait_ms: i32,
) -> (i16, usize, (i32, i32)) {
    let mut topic = fetch_of(TOPIC, partition, 0);
    topic.partitions[0].current_leader_epoch = epoch;
    // This version names topics by id.
    (topic.topic, topic.topic_id) = (Text::EMPTY, leaders(client).await.topics[0].topic_id);
    let answer: m::FetchResponse = call(client, 17, &fetch_request((0, -1), wait_ms, vec![topic])).await;
    let data = &answer.responses[0].partitions[0];
    let leader = (data.current_leader.leader_id, data.current_leader.leader_epoch);
    let told: Vec<i32> = answer.node_endpoints.iter().map(|node| node.node_id).collect();
    assert_eq!(told, if leader.0 < 0 { vec![] } else { vec![leader.0] });
    (data.error_code, data.records.as_ref().map_or(0, |records| records.len()), leader)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_tell_the_same_leaders_and_each_serves_its_own() {
    let mut two = two().await;
    for (at, client) in two.clients.iter_mut().enumerate() {
        let answer = leaders(client).await;
        let ports: Vec<_> = answer.brokers.iter().map(|broker| (broker.node_id, broker.port)).collect();
        // Each broker has the address that the client reached. The other broker has the address of its listener.
        assert_eq!(ports, [(ONE, 9092), (OTHER, if at == 0 { 9093 } else { 9092 })]);
        assert_eq!(answer.controller_id, ONE);
        let led: Vec<_> =
            answer.topics[0].partitions.iter().map(|of| (of.leader_id, of.leader_epoch)).collect();
        assert_eq!(led, [(ONE, 0), (OTHER, 1)]);
        for partition in 0..2 {
            let expected = if partition == i32::try_from(at).unwrap() { NONE } else { NOT_LEADER };
            assert_eq!(produce(client, TOPIC, partition, -1, batch()).await.0, expected);
            let (error, bytes, leader) = fetched(client, partition, -1, 0).await;
            assert_eq!((error, bytes > 0), (expected, expected == NONE));
            let told = if partition == 0 { (ONE, 0) } else { (OTHER, 1) };
            assert_eq!(leader, if expected == NONE { (-1, -1) } else { told });
            let data =
                m::produce_request::PartitionProduceData { index: partition, records: Some(batch().into()) };
            let topic_data = vec![m::produce_request::TopicProduceData {
                name: Text::from_static(TOPIC),
                partition_data: vec![data],
                ..Default::default()
            }];
            let request =
                m::ProduceRequest { acks: -1, timeout_ms: 5000, topic_data, transactional_id: None };
            let answer: m::ProduceResponse = call(client, 12, &request).await;
            let leader = &answer.responses[0].partition_responses[0].current_leader;
            assert_eq!(
                (leader.leader_id, leader.leader_epoch),
                if expected == NONE { (-1, -1) } else { told }
            );
            assert_eq!(answer.node_endpoints.len(), usize::from(expected != NONE));
        }
    }
    let [one, other] = two.brokers;
    drop((two.clients, other));
    close(one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_believes_in_another_epoch_is_told_so_and_finds_where_each_ended() {
    let mut two = two().await;
    assert_eq!(produce(&mut two.clients[1], TOPIC, 1, -1, batch()).await.1, 0);
    place(&two.brokers[0], &[(TOPIC, 1, ONE)]);
    assert_eq!(produce(&mut two.clients[1], TOPIC, 1, -1, batch()).await.0, NOT_LEADER);
    for offset in 1..3 {
        assert_eq!(produce(&mut two.clients[0], TOPIC, 1, -1, batch()).await, (NONE, offset, -1));
    }
    let epochs =
        [(1, ErrorCode::FencedLeaderEpoch), (2, ErrorCode::None), (3, ErrorCode::UnknownLeaderEpoch)];
    for (epoch, error) in epochs {
        assert_eq!(fetched(&mut two.clients[0], 1, epoch, 0).await.0, error.code(), "{epoch}");
    }
    // Epoch 0 has no record, epoch 1 has one, epoch 2 is current, and epoch 3 has not begun.
    for (asked, expected) in [(0, (0, 0)), (1, (1, 1)), (2, (2, 3)), (3, (-1, -1)), (-1, (-1, -1))] {
        use m::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
        let partition = OffsetForLeaderPartition { partition: 1, leader_epoch: asked, ..Default::default() };
        let topic = OffsetForLeaderTopic { topic: Text::from_static(TOPIC), partitions: vec![partition] };
        let request = m::OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic] };
        let answer: m::OffsetForLeaderEpochResponse = call(&mut two.clients[0], 4, &request).await;
        let end = &answer.topics[0].partitions[0];
        assert_eq!(
            (end.error_code, end.leader_epoch, end.end_offset),
            (NONE, expected.0, expected.1),
            "{asked}"
        );
    }
    // Batches carry the epoch of the leader that appended them.
    let mut topic = fetch_of(TOPIC, 1, 0);
    topic.partitions[0].current_leader_epoch = 2;
    let answer: m::FetchResponse =
        call(&mut two.clients[0], 12, &fetch_request((0, -1), 0, vec![topic])).await;
    let records = answer.responses[0].partitions[0].records.clone().unwrap().to_bytes();
    let mut epochs = Vec::new();
    let mut rest = records;
    while !rest.is_empty() {
        let header = model::BatchHeader::parse(&rest).unwrap();
        epochs.push(header.leader_epoch);
        rest = rest.slice(header.total_bytes..);
    }
    assert_eq!(epochs, [1, 2, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_waits_learns_at_once_that_the_leader_has_changed() {
    let mut two = two().await;
    let broker = two.brokers[0].clone();
    let begun = Instant::now();
    let moved = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        place(&broker, &[(TOPIC, 0, OTHER)]);
    });
    let (error, _, leader) = fetched(&mut two.clients[0], 0, -1, 8000).await;
    assert_eq!((error, leader), (NOT_LEADER, (OTHER, 1)));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    moved.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinators_are_where_the_partitions_of_their_topics_are_led() {
    let mut two = two().await;
    let ask = |key_type| m::FindCoordinatorRequest {
        key_type,
        coordinator_keys: vec![Text::from_static("x")],
        ..Default::default()
    };
    for (key_type, leader) in [(0, ONE), (1, ONE), (0, OTHER), (1, OTHER)] {
        // The first request creates the topic.
        let _: m::FindCoordinatorResponse = call(&mut two.clients[0], 4, &ask(key_type)).await;
        two.brokers[0].place(|topic, _, node| if topic.starts_with("__") { leader } else { node });
        // Each broker has the address that the client reached. The other broker has the address of its listener.
        for (client, other_port) in two.clients.iter_mut().zip([9093, 9092]) {
            let answer: m::FindCoordinatorResponse = call(client, 4, &ask(key_type)).await;
            let found = &answer.coordinators[0];
            let port = if leader == ONE { 9092 } else { other_port };
            assert_eq!((found.error_code, found.node_id, found.port), (NONE, leader, port));
        }
    }
    let heartbeat = m::HeartbeatRequest { group_id: Text::from_static("x"), ..Default::default() };
    let answer: m::HeartbeatResponse = call(&mut two.clients[0], 4, &heartbeat).await;
    assert_eq!(answer.error_code, NOT_COORDINATOR);
    let answer: m::HeartbeatResponse = call(&mut two.clients[1], 4, &heartbeat).await;
    assert_eq!(answer.error_code, ErrorCode::UnknownMemberId.code());
    let begin = m::InitProducerIdRequest {
        transactional_id: Some(Text::from_static("x")),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    };
    let answer: m::InitProducerIdResponse = call(&mut two.clients[0], 4, &begin).await;
    assert_eq!(answer.error_code, NOT_COORDINATOR);
    let answer: m::InitProducerIdResponse = call(&mut two.clients[1], 4, &begin).await;
    assert_eq!(answer.error_code, NONE);
}

/// Makes one broker the coordinator of all groups and transactions.
fn move_coordinators(two: &Two, leader: i32) {
    two.brokers[0].place(|topic, _, node| if topic.starts_with("__") { leader } else { node });
}

/// Retries while the coordinator reads its partition.
async fn offset_of(client: &mut Connection) -> (i16, i64) {
    use m::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
    let topic = OffsetFetchRequestTopics {
        name: Text::from_static(TOPIC),
        partition_indexes: vec![0],
        ..Default::default()
    };
    let group = OffsetFetchRequestGroup {
        group_id: Text::from_static("g"),
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = m::OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer: m::OffsetFetchResponse = call(client, 9, &request).await;
        let group = &answer.groups[0];
        if group.error_code != ErrorCode::CoordinatorLoadInProgress.code() {
            let offset = group.topics.first().map_or(-1, |topic| topic.partitions[0].committed_offset);
            return (group.error_code, offset);
        }
        assert!(Instant::now() < deadline, "it is never loaded");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_goes_on_with_the_broker_that_takes_over_its_partition() {
    let mut two = two().await;
    let join = |member_id: Text| m::JoinGroupRequest {
        group_id: Text::from_static("g"),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        member_id,
        protocol_type: Text::from_static("consumer"),
        protocols: vec![m::join_group_request::JoinGroupRequestProtocol {
            name: Text::from_static("range"),
            metadata: Bytes::new(),
        }],
        ..Default::default()
    };
    let first: m::JoinGroupResponse = call(&mut two.clients[0], 3, &join(Text::default())).await;
    assert_eq!(first.error_code, NONE);
    let (member_id, generation_id) = (first.member_id.clone(), first.generation_id);
    let sync = m::SyncGroupRequest {
        group_id: Text::from_static("g"),
        generation_id,
        member_id: member_id.clone(),
        assignments: vec![m::sync_group_request::SyncGroupRequestAssignment {
            member_id: member_id.clone(),
            assignment: Bytes::from_static(b"all"),
        }],
        ..Default::default()
    };
    let synced: m::SyncGroupResponse = call(&mut two.clients[0], 3, &sync).await;
    assert_eq!(synced.error_code, NONE);
    let commit = |offset| m::OffsetCommitRequest {
        group_id: Text::from_static("g"),
        generation_id_or_member_epoch: generation_id,
        member_id: member_id.clone(),
        topics: vec![m::offset_commit_request::OffsetCommitRequestTopic {
            name: Text::from_static(TOPIC),
            partitions: vec![m::offset_commit_request::OffsetCommitRequestPartition {
                partition_index: 0,
                committed_offset: offset,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let heartbeat = m::HeartbeatRequest {
        group_id: Text::from_static("g"),
        generation_id,
        member_id: member_id.clone(),
        ..Default::default()
    };
    for (turn, node) in (1..).zip([OTHER, ONE, OTHER]) {
        let before = usize::from(node == ONE);
        let answer: m::OffsetCommitResponse = call(&mut two.clients[before], 7, &commit(turn)).await;
        assert_eq!(answer.topics[0].partitions[0].error_code, NONE);
        move_coordinators(&two, node);
        let after = 1 - before;
        assert_eq!(offset_of(&mut two.clients[after]).await, (NONE, turn));
        // The member stays a member at the new coordinator, and the old one does not know the group any more.
        let answer: m::HeartbeatResponse = call(&mut two.clients[after], 3, &heartbeat).await;
        assert_eq!(answer.error_code, NONE);
        let answer: m::HeartbeatResponse = call(&mut two.clients[before], 3, &heartbeat).await;
        assert_eq!(answer.error_code, NOT_COORDINATOR);
        assert_eq!(offset_of(&mut two.clients[before]).await, (NOT_COORDINATOR, -1));
    }
    // A member that waits for others is answered at once.
    let mut waiting = connect(&two.brokers[1]);
    let waiting = tokio::spawn(async move {
        let answer: m::JoinGroupResponse = call(&mut waiting, 3, &join(Text::default())).await;
        answer.error_code
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer: m::HeartbeatResponse = call(&mut two.clients[1], 3, &heartbeat).await;
        if answer.error_code == ErrorCode::RebalanceInProgress.code() {
            break;
        }
        assert!(Instant::now() < deadline, "no rebalance begins");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begun = Instant::now();
    move_coordinators(&two, ONE);
    assert_eq!(waiting.await.unwrap(), NOT_COORDINATOR);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
