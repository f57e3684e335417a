//! Committed offsets as clients see them: they survive a restart, they do not pile up, and they are deleted with their
//! topic.

use std::time::{Duration, Instant};

use broker::Connection;
use wire::messages as m;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use wire::{ErrorCode, Text};

use crate::common::{call, close, connect, create_topic, open_with};

const PARTITIONS: i32 = 100;
const SETTINGS: [(&str, &str); 2] = [("log.cleaner.backoff.ms", "10"), ("offsets.topic.num.partitions", "1")];
/// New bytes that make a partition due for compaction (see `compaction`).
const DIRTY_BYTES: i64 = 1024 * 1024;

async fn commit(connection: &mut Connection, group: &'static str, offset: i64) -> Vec<i16> {
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: offset + i64::from(partition_index),
        committed_metadata: Some(Text::from_static("note")),
        ..Default::default()
    };
    let topic = OffsetCommitRequestTopic {
        name: Text::from_static("t"),
        partitions: (0..PARTITIONS).map(partition).collect(),
        ..Default::default()
    };
    let request = m::OffsetCommitRequest {
        group_id: Text::from_static(group),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    let answer: m::OffsetCommitResponse = call(connection, 9, &request).await;
    answer.topics[0].partitions.iter().map(|partition| partition.error_code).collect()
}

async fn fetch(connection: &mut Connection, group: &'static str) -> Vec<i64> {
    let topic = OffsetFetchRequestTopics {
        name: Text::from_static("t"),
        partition_indexes: (0..PARTITIONS).collect(),
        ..Default::default()
    };
    let group = OffsetFetchRequestGroup {
        group_id: Text::from_static(group),
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = m::OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let answer: m::OffsetFetchResponse = call(connection, 9, &request).await;
    answer.groups[0].topics[0].partitions.iter().map(|partition| partition.committed_offset).collect()
}

/// Size in bytes of the only partition of the offsets topic.
async fn size(connection: &mut Connection) -> i64 {
    let request = m::DescribeLogDirsRequest { topics: None };
    let answer: m::DescribeLogDirsResponse = call(connection, 4, &request).await;
    let topic = answer.results[0].topics.iter().find(|topic| topic.name.as_str() == "__consumer_offsets");
    topic.unwrap().partitions[0].partition_size
}

/// Commits offsets of the group `busy`, starting at `from`, until compaction has made the partition smaller. Returns
/// the last offset.
async fn commit_until_compacted(connection: &mut Connection, from: i64) -> i64 {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut largest = 0;
    for commits in from.. {
        assert!(Instant::now() < deadline, "{commits} commits were never compacted");
        assert_eq!(commit(connection, "busy", commits * 1000).await, vec![0; 100]);
        let now = size(connection).await;
        if now < largest / 2 {
            return commits;
        }
        largest = largest.max(now);
    }
    unreachable!("it ends with the deadline")
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_groups_that_are_no_more_go() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[("offsets.topic.num.partitions", "1")]);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", PARTITIONS, &[]).await;
    for offset in 0..300 {
        assert_eq!(commit(&mut connection, "gone", offset).await, vec![0; 100]);
    }
    let request = m::DeleteGroupsRequest { groups_names: vec![Text::from_static("gone")] };
    let answer: m::DeleteGroupsResponse = call(&mut connection, 2, &request).await;
    assert_eq!(answer.results[0].error_code, 0);
    let before = size(&mut connection).await;
    assert!(before > DIRTY_BYTES, "{before}");
    drop(connection);
    close(broker).await;
    let broker = open_with(directory.path(), &SETTINGS);
    let mut connection = connect(&broker);
    assert_eq!(fetch(&mut connection, "gone").await, vec![-1; 100]);
    // Only the tombstones are left.
    let deadline = Instant::now() + Duration::from_secs(30);
    while size(&mut connection).await > before / 50 {
        assert!(Instant::now() < deadline, "{:?}", size(&mut connection).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(fetch(&mut connection, "gone").await, vec![-1; 100]);
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_survive_restarts_and_compaction() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &SETTINGS);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", PARTITIONS, &[]).await;
    assert_eq!(commit(&mut connection, "quiet", 7).await, vec![0; 100]);
    let last = commit_until_compacted(&mut connection, 1).await;
    let expected = |base: i64| (0..i64::from(PARTITIONS)).map(|n| base + n).collect::<Vec<_>>();
    assert_eq!(fetch(&mut connection, "busy").await, expected(last * 1000));
    assert_eq!(fetch(&mut connection, "quiet").await, expected(7));
    drop(connection);
    close(broker).await;
    let broker = open_with(directory.path(), &SETTINGS);
    let mut connection = connect(&broker);
    assert_eq!(fetch(&mut connection, "busy").await, expected(last * 1000));
    assert_eq!(fetch(&mut connection, "quiet").await, expected(7));

    // A deleted topic takes its committed offsets with it.
    let request = m::DeleteTopicsRequest {
        topic_names: vec![Text::from_static("t")],
        timeout_ms: 5000,
        ..Default::default()
    };
    let answer: m::DeleteTopicsResponse = call(&mut connection, 5, &request).await;
    assert_eq!(answer.responses[0].error_code, 0);
    assert_eq!(
        commit(&mut connection, "busy", 1).await,
        vec![ErrorCode::UnknownTopicOrPartition.code(); 100]
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while fetch(&mut connection, "busy").await != vec![-1; 100] {
        assert!(Instant::now() < deadline, "the offsets of a deleted topic stay");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(connection);
    close(broker).await;
}
