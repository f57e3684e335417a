//! Committed offsets as clients see them: they survive a restart, they do not pile up, and they go with their topic.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use broker::Connection;
use common::{call, close, connect, create_topic, open_with};
use wire::messages as m;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use wire::{ErrorCode, Text};

const PARTITIONS: i32 = 100;
/// Retention, and with it the rewriting of group records, looks this often: also while what a rewriting
/// supersedes is being dropped.
const SETTINGS: [(&str, &str); 2] =
    [("log.retention.check.interval.ms", "10"), ("offsets.topic.num.partitions", "1")];

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

/// Start and end of the only partition of the offsets topic.
async fn bounds(connection: &mut Connection) -> (i64, i64) {
    let mut found = [0; 2];
    for (at, timestamp) in [-2, -1].into_iter().enumerate() {
        let partition = m::list_offsets_request::ListOffsetsPartition { timestamp, ..Default::default() };
        let name = Text::from_static("__consumer_offsets");
        let topic = m::list_offsets_request::ListOffsetsTopic { name, partitions: vec![partition] };
        let request = m::ListOffsetsRequest { topics: vec![topic], ..Default::default() };
        let answer: m::ListOffsetsResponse = call(connection, 7, &request).await;
        found[at] = answer.topics[0].partitions[0].offset;
    }
    (found[0], found[1])
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_groups_that_are_no_more_go() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &[("offsets.topic.num.partitions", "1")]);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", PARTITIONS, &[]).await;
    for offset in 0..100 {
        assert_eq!(commit(&mut connection, "gone", offset).await, vec![0; 100]);
    }
    let request = m::DeleteGroupsRequest { groups_names: vec![Text::from_static("gone")] };
    let answer: m::DeleteGroupsResponse = call(&mut connection, 2, &request).await;
    assert_eq!(answer.results[0].error_code, 0);
    let (start, end) = bounds(&mut connection).await;
    assert!(start == 0 && end > 10_000, "{start}..{end}");
    drop(connection);
    close(broker).await;
    let broker = open_with(directory.path(), &SETTINGS);
    let mut connection = connect(&broker);
    let deadline = Instant::now() + Duration::from_secs(30);
    while bounds(&mut connection).await != (end, end) {
        assert!(Instant::now() < deadline, "{:?}", bounds(&mut connection).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_survive_restarts_and_are_rewritten_when_most_are_superseded() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open_with(directory.path(), &SETTINGS);
    let mut connection = connect(&broker);
    create_topic(&mut connection, "t", PARTITIONS, &[]).await;
    assert_eq!(commit(&mut connection, "quiet", 7).await, vec![0; 100]);
    let mut commits = 0;
    let deadline = Instant::now() + Duration::from_secs(30);
    while bounds(&mut connection).await.0 == 0 {
        assert!(Instant::now() < deadline, "{commits} commits were never rewritten");
        commits += 1;
        assert_eq!(commit(&mut connection, "busy", commits * 1000).await, vec![0; 100]);
    }
    let (start, end) = bounds(&mut connection).await;
    assert!(end - start < 10_000, "{start}..{end} is not much smaller");
    let expected = |base: i64| (0..i64::from(PARTITIONS)).map(|n| base + n).collect::<Vec<_>>();
    assert_eq!(fetch(&mut connection, "busy").await, expected(commits * 1000));
    assert_eq!(fetch(&mut connection, "quiet").await, expected(7));
    drop(connection);
    close(broker).await;
    let broker = open_with(directory.path(), &SETTINGS);
    let mut connection = connect(&broker);
    assert_eq!(fetch(&mut connection, "busy").await, expected(commits * 1000));
    assert_eq!(fetch(&mut connection, "quiet").await, expected(7));
    assert_eq!(bounds(&mut connection).await.0, start);

    // A deleted topic takes its offsets along.
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
