//! Several log directories on simulated disks: what a lost directory makes unavailable, what stays available, and that
//! no partition comes back empty.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Connection, LogDirectory, OpenError};
use disk::sim::Fault;
use disk::{Disk, SimDisk};
use meta::{Change, Embedded, Store};
use model::{Compression, Timestamp};
use parking_lot::Mutex;
use wire::messages as m;
use wire::records::BatchBuilder;
use wire::{Bytes, ErrorCode, Text};

use crate::common::{
    call, close, connect, create_topic, fetch_of, fetch_request, open_on, produce, try_create_topic,
};

const NONE: i16 = 0;
const STORAGE: i16 = ErrorCode::KafkaStorageError.code();

/// The state of a path.
#[derive(Clone)]
enum There {
    Disk(SimDisk),
    /// A mount that fails.
    Broken,
}

/// A computer whose disks can be removed, swapped and put back between two starts of its server.
struct Machine {
    metadata: tempfile::TempDir,
    paths: Arc<Mutex<BTreeMap<&'static str, There>>>,
}

impl Machine {
    fn new(names: &[&'static str]) -> Machine {
        let machine = Machine { metadata: tempfile::tempdir().unwrap(), paths: Arc::default() };
        names.iter().for_each(|name| machine.put(name, There::Disk(SimDisk::new(7))));
        machine
    }

    fn put(&self, path: &'static str, there: There) {
        self.paths.lock().insert(path, there);
    }

    fn take(&self, path: &str) -> There {
        self.paths.lock().remove(path).unwrap()
    }

    fn disk(&self, path: &str) -> SimDisk {
        match self.paths.lock().get(path) {
            Some(There::Disk(disk)) => disk.clone(),
            _ => panic!("no disk at {path}"),
        }
    }

    fn directory(&self, path: &'static str) -> LogDirectory {
        let paths = self.paths.clone();
        LogDirectory::new(path, move |make| {
            let mut paths = paths.lock();
            if make {
                paths.entry(path).or_insert_with(|| There::Disk(SimDisk::new(8)));
            }
            match paths.get(path) {
                Some(There::Disk(disk)) => Ok(Arc::new(disk.clone()) as Arc<dyn Disk>),
                Some(There::Broken) => Err(io::Error::other("the device is gone")),
                None => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    fn try_start(&self, log_dirs: &[&'static str]) -> Result<Arc<Broker>, OpenError> {
        self.try_start_checking(log_dirs, "100")
    }

    /// Starts a server that looks for expired offsets at this interval in milliseconds.
    fn try_start_checking(
        &self,
        log_dirs: &[&'static str],
        expiry_check_ms: &str,
    ) -> Result<Arc<Broker>, OpenError> {
        let directories = log_dirs.iter().map(|path| self.directory(path)).collect();
        let settings = [
            ("log.reserve.bytes", "0"),
            ("offsets.topic.num.partitions", "4"),
            ("group.initial.rebalance.delay.ms", "0"),
            ("offsets.retention.check.interval.ms", expiry_check_ms),
        ];
        open_on(self.metadata.path(), directories, &settings)
    }

    fn start(&self, log_dirs: &[&'static str]) -> Running {
        Running::of(self.try_start(log_dirs).unwrap())
    }

    /// The directory of each partition, from the metadata of a stopped server.
    fn places(&self, topic: &str) -> Vec<String> {
        let store = Embedded::open(&self.metadata.path().join("meta.redb")).unwrap();
        let read = |key: &str| -> serde_json::Value {
            serde_json::from_slice(&store.find(key).unwrap().unwrap().bytes).unwrap()
        };
        let path_of = |id: &serde_json::Value| {
            read(&format!("logs/{}", id.as_str().unwrap()))["path"].as_str().unwrap().to_owned()
        };
        read(&format!("topics/{topic}"))["logs"].as_array().unwrap().iter().map(path_of).collect()
    }

    /// The only partition of a topic in `path`.
    fn one_in(&self, topic: &str, path: &str) -> i32 {
        let places = self.places(topic);
        assert_eq!(places.iter().filter(|place| *place == path).count(), 1, "{places:?}");
        as_i32(places.iter().position(|place| place == path).unwrap())
    }

    /// Replaces or removes the value of a key in the metadata. Returns the old value.
    fn replace(&self, key: &str, bytes: impl Into<Option<Vec<u8>>>) -> Option<Vec<u8>> {
        let store = Embedded::open(&self.metadata.path().join("meta.redb")).unwrap();
        let before = store.find(key).unwrap().map(|value| value.bytes);
        let key = key.to_owned();
        let change = match bytes.into() {
            Some(bytes) => Change::put(key, bytes),
            None => Change::delete(key),
        };
        store.commit(&[], &[change]).unwrap();
        before
    }

    /// Rewrites the metadata in the form of a version with a single log.
    fn age(&self) {
        let store = Embedded::open(&self.metadata.path().join("meta.redb")).unwrap();
        let gone = |(key, _)| Change::delete(key);
        let mut changes: Vec<_> = store.list("logs/").unwrap().entries.into_iter().map(gone).collect();
        changes.push(Change::delete("first_log"));
        for (key, value) in store.list("topics/").unwrap().entries {
            let mut record: serde_json::Value = serde_json::from_slice(&value.bytes).unwrap();
            record.as_object_mut().unwrap().remove("logs").expect("a record names its logs");
            changes.push(Change::put(key, serde_json::to_vec(&record).unwrap()));
        }
        store.commit(&[], &changes).unwrap();
    }
}

struct Running {
    broker: Arc<Broker>,
    connection: Connection,
}

fn batch(value: &str) -> Bytes {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(i64::try_from(now.as_millis()).unwrap()), None, Some(value.as_bytes()));
    builder.finish()
}

fn as_i32(number: usize) -> i32 {
    i32::try_from(number).unwrap()
}

impl Running {
    fn of(broker: Arc<Broker>) -> Running {
        Running { connection: connect(&broker), broker }
    }

    /// Creates groups in all partitions of `__consumer_offsets` that have committed 7 for partition 0 of `topic`.
    /// Returns their names.
    async fn commit_in_all_directories(&mut self, topic: &'static str) -> Vec<String> {
        let groups: Vec<String> = (0..16).map(|n| format!("group-{n}")).collect();
        for group in &groups {
            assert_eq!(self.coordinator_error(group).await, NONE);
            assert_eq!(self.commit(group, topic, 7).await, NONE);
        }
        groups
    }

    async fn stop(self) {
        drop(self.connection);
        close(self.broker).await;
    }

    async fn create(&mut self, topic: &'static str, partitions: i32) {
        create_topic(&mut self.connection, topic, partitions, &[]).await;
    }

    async fn try_create(&mut self, topic: &'static str, partitions: i32) -> i16 {
        try_create_topic(&mut self.connection, topic, partitions, &[]).await.error_code
    }

    async fn produce(&mut self, topic: &'static str, partition: i32, value: &str) -> (i16, i64) {
        let (error, offset, _) = produce(&mut self.connection, topic, partition, -1, batch(value)).await;
        (error, offset)
    }

    /// Produces to two partitions in one request.
    async fn produce_both(
        &mut self,
        topic: &'static str,
        partitions: [i32; 2],
        acks: i16,
    ) -> [(i16, i64); 2] {
        let data = |index: i32| m::produce_request::PartitionProduceData {
            index,
            records: Some(batch("one").into()),
        };
        let topic = m::produce_request::TopicProduceData {
            name: Text::from_static(topic),
            partition_data: partitions.map(data).into(),
            ..Default::default()
        };
        let request =
            m::ProduceRequest { acks, timeout_ms: 5000, topic_data: vec![topic], transactional_id: None };
        let answer: m::ProduceResponse = call(&mut self.connection, 12, &request).await;
        let answers = &answer.responses[0].partition_responses;
        [0, 1].map(|at: usize| (answers[at].error_code, answers[at].base_offset))
    }

    async fn fetch(&mut self, version: i16, topic: &'static str, partition: i32) -> (i16, usize, i64) {
        let request = fetch_request((0, -1), 0, vec![fetch_of(topic, partition, 0)]);
        let answer: m::FetchResponse = call(&mut self.connection, version, &request).await;
        let data = &answer.responses[0].partitions[0];
        (data.error_code, data.records.as_ref().unwrap().to_bytes().len(), data.high_watermark)
    }

    async fn end(&mut self, topic: &'static str, partition: i32) -> (i16, i64) {
        use m::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
        let asked = ListOffsetsPartition { partition_index: partition, timestamp: -1, ..Default::default() };
        let topics = vec![ListOffsetsTopic { name: Text::from_static(topic), partitions: vec![asked] }];
        let request = m::ListOffsetsRequest { topics, ..Default::default() };
        let answer: m::ListOffsetsResponse = call(&mut self.connection, 7, &request).await;
        let found = &answer.topics[0].partitions[0];
        (found.error_code, found.offset)
    }

    async fn delete_records(&mut self, topic: &'static str, partition: i32, offset: i64) -> i16 {
        use m::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
        let partitions = vec![DeleteRecordsPartition { partition_index: partition, offset }];
        let topics = vec![DeleteRecordsTopic { name: Text::from_static(topic), partitions }];
        let request = m::DeleteRecordsRequest { topics, timeout_ms: 1000 };
        let answer: m::DeleteRecordsResponse = call(&mut self.connection, 2, &request).await;
        answer.topics[0].partitions[0].error_code
    }

    async fn end_of_epoch(&mut self, topic: &'static str, partition: i32) -> i16 {
        use m::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
        let asked = OffsetForLeaderPartition { partition, current_leader_epoch: -1, leader_epoch: 0 };
        let topics = vec![OffsetForLeaderTopic { topic: Text::from_static(topic), partitions: vec![asked] }];
        let request = m::OffsetForLeaderEpochRequest { replica_id: -1, topics };
        let answer: m::OffsetForLeaderEpochResponse = call(&mut self.connection, 4, &request).await;
        answer.topics[0].partitions[0].error_code
    }

    /// The error, the leader and the offline replicas of each partition.
    async fn metadata(&mut self, topic: &'static str) -> Vec<(i16, i32, Vec<i32>)> {
        use m::metadata_request::MetadataRequestTopic;
        let asked = MetadataRequestTopic { name: Some(Text::from_static(topic)), ..Default::default() };
        let request = m::MetadataRequest { topics: Some(vec![asked]), ..Default::default() };
        let answer: m::MetadataResponse = call(&mut self.connection, 12, &request).await;
        assert_eq!(answer.topics[0].error_code, NONE);
        let of = |p: &m::metadata_response::MetadataResponsePartition| {
            assert_eq!((&p.replica_nodes[..], &p.isr_nodes[..]), (&[1][..], &[1][..]));
            (p.error_code, p.leader_id, p.offline_replicas.clone())
        };
        answer.topics[0].partitions.iter().map(of).collect()
    }

    async fn offline(&mut self, topic: &'static str) -> Vec<i32> {
        let all = self.metadata(topic).await;
        (0..).zip(all).filter(|(_, (error, ..))| *error != NONE).map(|(index, _)| index).collect()
    }

    async fn delete(&mut self, topic: &'static str) -> i16 {
        let names = m::DeleteTopicsRequest {
            topics: vec![m::delete_topics_request::DeleteTopicState {
                name: Some(Text::from_static(topic)),
                ..Default::default()
            }],
            timeout_ms: 1000,
            ..Default::default()
        };
        let answer: m::DeleteTopicsResponse = call(&mut self.connection, 6, &names).await;
        answer.responses[0].error_code
    }

    async fn coordinator_error(&mut self, group: &str) -> i16 {
        let keys = vec![Text::from(group.to_owned())];
        let request = m::FindCoordinatorRequest { coordinator_keys: keys, ..Default::default() };
        let answer: m::FindCoordinatorResponse = call(&mut self.connection, 4, &request).await;
        answer.coordinators[0].error_code
    }

    async fn commit(&mut self, group: &str, topic: &'static str, offset: i64) -> i16 {
        use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
        let partition = OffsetCommitRequestPartition {
            committed_offset: offset,
            committed_leader_epoch: -1,
            ..Default::default()
        };
        let request = m::OffsetCommitRequest {
            group_id: Text::from(group.to_owned()),
            generation_id_or_member_epoch: -1,
            topics: vec![OffsetCommitRequestTopic {
                name: Text::from_static(topic),
                partitions: vec![partition],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: m::OffsetCommitResponse = call(&mut self.connection, 8, &request).await;
        answer.topics[0].partitions[0].error_code
    }

    /// The group's error and its committed offset of partition 0.
    async fn committed(&mut self, group: &str, topic: &'static str) -> (i16, Option<i64>) {
        use m::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
        let topics = vec![OffsetFetchRequestTopics {
            name: Text::from_static(topic),
            partition_indexes: vec![0],
            ..Default::default()
        }];
        let group = OffsetFetchRequestGroup {
            group_id: Text::from(group.to_owned()),
            topics: Some(topics),
            ..Default::default()
        };
        let request = m::OffsetFetchRequest { groups: vec![group], ..Default::default() };
        let answer: m::OffsetFetchResponse = call(&mut self.connection, 8, &request).await;
        let group = &answer.groups[0];
        (group.error_code, group.topics.first().map(|topic| topic.partitions[0].committed_offset))
    }

    fn metric(&self, name: &str) -> Vec<String> {
        let mut registry = prometheus_client::registry::Registry::default();
        self.broker.register_metrics(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_fails_takes_only_its_partitions_down_until_it_is_back() {
    let machine = Machine::new(&["a", "b", "c"]);
    let mut server = machine.start(&["a", "b", "c"]);
    server.create("t", 3).await;
    for partition in 0..3 {
        assert_eq!(server.produce("t", partition, "one").await, (NONE, 0));
    }
    assert_eq!(
        server.metric("kafka_log_logmanager_offline"),
        ["kafka_log_logmanager_offlinelogdirectorycount 0"]
    );
    server.stop().await;

    // Each of three equal directories has one partition.
    let gone = machine.one_in("t", "b");
    let b = machine.take("b");
    machine.put("b", There::Broken);
    let mut server = machine.start(&["a", "b", "c"]);
    let lost = (ErrorCode::LeaderNotAvailable.code(), -1, vec![1]);
    let expected: Vec<_> = (0..3).map(|n| if n == gone { lost.clone() } else { (NONE, 1, vec![]) }).collect();
    assert_eq!(server.metadata("t").await, expected);
    assert_eq!(server.produce("t", gone, "two").await, (STORAGE, -1));
    assert_eq!(server.fetch(12, "t", gone).await, (STORAGE, 0, -1));
    assert_eq!(server.fetch(5, "t", gone).await.0, ErrorCode::NotLeaderOrFollower.code());
    assert_eq!(server.end("t", gone).await, (STORAGE, -1));
    assert_eq!(server.delete_records("t", gone, 0).await, STORAGE);
    assert_eq!(server.end_of_epoch("t", gone).await, STORAGE);
    for partition in (0..3).filter(|n| *n != gone) {
        assert_eq!(server.produce("t", partition, "two").await, (NONE, 1));
        let (error, bytes, end) = server.fetch(12, "t", partition).await;
        assert_eq!((error, end), (NONE, 2));
        assert_eq!(bytes, 2 * batch("one").len());
        assert_eq!(server.end("t", partition).await, (NONE, 2));
        assert_eq!(server.delete_records("t", partition, 1).await, NONE);
        assert_eq!(server.end_of_epoch("t", partition).await, NONE);
    }
    // New partitions go to other directories. Changes of settings keep the places of the old partitions.
    server.create("new", 6).await;
    assert_eq!(server.offline("new").await, [0; 0]);
    let grow = m::CreatePartitionsRequest {
        topics: vec![m::create_partitions_request::CreatePartitionsTopic {
            name: Text::from_static("t"),
            count: 5,
            assignments: None,
        }],
        timeout_ms: 1000,
        validate_only: false,
    };
    let grown: m::CreatePartitionsResponse = call(&mut server.connection, 3, &grow).await;
    assert_eq!(grown.results[0].error_code, NONE);
    assert_eq!(server.offline("t").await, [gone]);
    assert_eq!(
        server.metric("kafka_log_logmanager_offline"),
        ["kafka_log_logmanager_offlinelogdirectorycount 1"]
    );
    assert_eq!(
        server.metric("kafka_log_logmanager_logdirectoryoffline{"),
        ["a", "c", "b"].map(|dir| {
            let offline = u8::from(dir == "b");
            format!("kafka_log_logmanager_logdirectoryoffline{{logdirectory=\"{dir}\"}} {offline}")
        })
    );
    assert_eq!(
        server.metric("kafka_server_replicamanager_offlinereplicacount"),
        ["kafka_server_replicamanager_offlinereplicacount 1"]
    );
    assert!(server.broker.failure().is_none());
    server.stop().await;

    machine.put("b", b);
    let mut server = machine.start(&["a", "b", "c"]);
    assert_eq!(server.offline("t").await, [0; 0]);
    assert_eq!(server.end("t", gone).await, (NONE, 1));
    assert_eq!(server.fetch(12, "t", gone).await, (NONE, batch("one").len(), 1));
    assert_eq!(server.produce("t", gone, "two").await, (NONE, 1));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_or_missing_directory_is_not_taken_for_the_one_that_was_there() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a", "b"]);
    server.create("t", 2).await;
    for partition in 0..2 {
        assert_eq!(server.produce("t", partition, "one").await, (NONE, 0));
    }
    server.stop().await;
    let gone = machine.one_in("t", "b");
    let b = machine.take("b");
    // The directory is missing and must not be created.
    let mut server = machine.start(&["a", "b"]);
    assert_eq!(server.offline("t").await, [gone]);
    server.stop().await;
    assert!(!machine.paths.lock().contains_key("b"));
    // The directory is empty, like a mount point without its mount.
    machine.put("b", There::Disk(SimDisk::new(3)));
    let mut server = machine.start(&["a", "b"]);
    assert_eq!(server.offline("t").await, [gone]);
    assert_eq!(server.produce("t", gone, "two").await, (STORAGE, -1));
    server.create("u", 4).await;
    server.stop().await;
    assert!(machine.disk("b").list().unwrap().is_empty(), "no log was begun");
    // Deleting the lost topic accepts the loss. Then the directory is like a new one.
    let mut server = machine.start(&["a", "b"]);
    assert_eq!(server.delete("t").await, NONE);
    server.stop().await;
    let mut server = machine.start(&["a", "b"]);
    assert_eq!(
        server.metric("kafka_log_logmanager_offline"),
        ["kafka_log_logmanager_offlinelogdirectorycount 0"]
    );
    server.create("v", 4).await;
    server.stop().await;
    assert!(machine.places("v").contains(&"b".to_owned()), "the new directory is in use");
    // Partitions that were given up do not come back with the old disk.
    machine.put("old", b);
    let mut server = machine.start(&["a", "old"]);
    server.create("t", 2).await;
    assert_eq!((server.end("t", 0).await, server.end("t", 1).await), ((NONE, 0), (NONE, 0)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_known_by_its_id_wherever_it_stands() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a", "b"]);
    server.create("t", 2).await;
    for partition in 0..2 {
        for _ in 0..=partition {
            assert_eq!(server.produce("t", partition, "x").await.0, NONE);
        }
    }
    server.stop().await;
    let in_b = machine.one_in("t", "b");
    let ends = |a: i64, b: i64| ((NONE, a), (NONE, b));
    // The directories are swapped.
    let (a, b) = (machine.take("a"), machine.take("b"));
    machine.put("a", b.clone());
    machine.put("b", a.clone());
    let mut server = machine.start(&["a", "b"]);
    assert_eq!((server.end("t", 0).await, server.end("t", 1).await), ends(1, 2));
    server.stop().await;
    // One directory moves elsewhere, and a new directory takes its old place.
    machine.take("a");
    machine.put("elsewhere", b);
    let mut server = machine.start(&["a", "b", "elsewhere"]);
    assert_eq!((server.end("t", 0).await, server.end("t", 1).await), ends(1, 2));
    server.create("u", 1).await;
    server.stop().await;
    assert_eq!(machine.one_in("t", "elsewhere"), in_b);
    assert_eq!(machine.places("u"), ["a"]);
    // The directory is no longer listed.
    let mut server = machine.start(&["a", "b"]);
    assert_eq!(server.offline("t").await, [in_b]);
    server.stop().await;
    let mut server = machine.start(&["elsewhere", "b", "a"]);
    assert_eq!((server.end("t", 0).await, server.end("t", 1).await), ends(1, 2));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_logs_of_others_are_refused() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a"]);
    server.create("t", 1).await;
    assert_eq!(server.produce("t", 0, "ours").await, (NONE, 0));
    server.stop().await;
    let other = Machine::new(&["x"]);
    let mut server = other.start(&["x"]);
    server.create("s", 3).await;
    assert_eq!(server.produce("s", 0, "theirs").await, (NONE, 0));
    assert_eq!(server.produce("s", 2, "theirs").await, (NONE, 0));
    server.stop().await;
    let x = other.disk("x");
    machine.put("x", There::Disk(x));
    let mut server = machine.start(&["a", "x"]);
    server.create("u", 4).await;
    assert_eq!(server.end("t", 0).await, (NONE, 1));
    assert_eq!(server.end("u", 1).await, (NONE, 0));
    assert_eq!(
        server.metric("kafka_log_logmanager_offline"),
        ["kafka_log_logmanager_offlinelogdirectorycount 1"]
    );
    server.stop().await;
    let error = machine.try_start(&["x"]).unwrap_err().to_string();
    assert!(error.contains("x: it holds a log that the metadata does not know"), "{error}");
    let mut server = other.start(&["x"]);
    assert_eq!((server.end("s", 0).await, server.end("s", 2).await), ((NONE, 1), (NONE, 1)));
    server.stop().await;
    machine.put("copy", There::Disk(machine.disk("a")));
    let error = machine.try_start(&["a", "copy"]).unwrap_err().to_string();
    assert_eq!(error, "a and copy hold copies of one log; take one of them out of log.dirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_log_it_does_not_start() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a", "b"]);
    server.create("t", 2).await;
    server.stop().await;
    machine.take("a");
    machine.put("b", There::Broken);
    let error = machine.try_start(&["a", "b"]).unwrap_err().to_string();
    assert!(error.contains("b: the device is gone"), "{error}");
    assert!(
        error.contains("a: it does not exist, but 1 partitions are in the log that was there"),
        "{error}"
    );
}

/// After a failure of the log, the outcome is unknown, and no group of the log is served until the next start.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_deletion_fails_is_as_it_was() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a", "b"]);
    server.create("t", 1).await;
    let groups = server.commit_in_all_directories("t").await;
    machine.disk("b").fail_write_after(0, Fault::Forever);
    machine.disk("b").fail_sync_after(0, Fault::Forever);
    let names = groups.iter().map(|group| Text::from(group.clone())).collect();
    let request = m::DeleteGroupsRequest { groups_names: names };
    let answer: m::DeleteGroupsResponse = call(&mut server.connection, 2, &request).await;
    let mut failed = Vec::new();
    for (result, group) in answer.results.iter().zip(&groups) {
        let left = match result.error_code {
            NONE => (NONE, Some(-1)),
            _ => (ErrorCode::NotCoordinator.code(), None),
        };
        assert_eq!(server.committed(group, "t").await, left, "{group}: {}", result.error_code);
        failed.extend((result.error_code != NONE).then_some(group));
    }
    assert!(!failed.is_empty() && failed.len() < groups.len(), "{failed:?}");
    server.stop().await;
    machine.disk("b").clear_faults();
    // A failed write may have reached the disk anyway. Whichever happened, it stays so.
    let mut found = Vec::new();
    for _ in 0..3 {
        let mut server = machine.start(&["a", "b"]);
        let mut committed = Vec::new();
        for group in &failed {
            committed.push(server.committed(group, "t").await);
        }
        server.stop().await;
        found.push(committed);
    }
    let whole = |committed: &(i16, Option<i64>)| [(NONE, Some(7)), (NONE, Some(-1))].contains(committed);
    assert!(found[0].iter().all(whole), "{found:?}");
    assert!(found.iter().all(|committed| *committed == found[0]), "{found:?}");
}

/// A topic is deleted when the metadata says so. Its committed offsets are deleted when the log allows it.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_of_a_deleted_topic_go_once_the_log_takes_records_again() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a", "b"]);
    server.create("t", 1).await;
    let groups = server.commit_in_all_directories("t").await;
    machine.disk("b").fail_write_after(0, Fault::Forever);
    assert_eq!(server.delete("t").await, NONE);
    server.stop().await;
    machine.disk("b").clear_faults();
    let mut server = machine.start(&["a", "b"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    for group in &groups {
        while server.committed(group, "t").await != (NONE, Some(-1)) {
            assert!(Instant::now() < deadline, "{group} keeps its offset");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    server.stop().await;
}

/// The old offsets must not count for a new topic of that name. Until they are gone, the topic cannot be created.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_of_a_deleted_topic_do_not_count_for_the_next_one() {
    let machine = Machine::new(&["a", "b"]);
    let start = || Running::of(machine.try_start_checking(&["a", "b"], "600000").unwrap());
    let mut server = start();
    server.create("t", 1).await;
    let groups = server.commit_in_all_directories("t").await;
    machine.disk("b").fail_write_after(0, Fault::Forever);
    assert_eq!(server.delete("t").await, NONE);
    // Both at once, and after the failure of the log is known.
    for _ in 0..2 {
        assert_eq!(server.try_create("t", 1).await, STORAGE);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    server.stop().await;
    machine.disk("b").clear_faults();
    let mut server = start();
    server.create("t", 1).await;
    for restarted in [false, true] {
        for group in &groups {
            assert_eq!(server.committed(group, "t").await, (NONE, Some(-1)), "{group}, {restarted}");
        }
        server.stop().await;
        server = start();
    }
    server.stop().await;
}

/// The log is created before the metadata mentions it.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_was_killed_half_way_is_no_obstacle() {
    for names in [&["a"][..], &["a", "b"]] {
        let machine = Machine::new(names);
        machine.start(names).stop().await;
        machine.age();
        let mut server = machine.start(names);
        server.create("t", 2).await;
        assert_eq!(server.produce("t", 1, "one").await, (NONE, 0));
        server.stop().await;
    }
}

/// If the metadata were taken for empty, the records of unknown topics would be dropped and used ids would be allocated
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_cannot_be_read_is_not_taken_for_none() {
    let machine = Machine::new(&["a"]);
    let mut server = machine.start(&["a"]);
    server.create("t", 1).await;
    assert_eq!(server.produce("t", 0, "one").await, (NONE, 0));
    server.stop().await;
    let before = machine.replace("topics/t", b"{}".to_vec());
    let error = machine.try_start(&["a"]).err().unwrap().to_string();
    assert!(error.contains("topics/t cannot be read"), "{error}");
    machine.replace("topics/t", before);
    for key in [
        "acls/x",
        "configs/brokers/",
        "quotas/{}",
        "quotas/x",
        "scram/SCRAM-SHA-256/u",
        "logs/x",
        "first_log",
    ] {
        let before = machine.replace(key, b"x".to_vec());
        let error = machine.try_start(&["a"]).err().unwrap().to_string();
        assert!(error.contains(&format!("{key} cannot be read")), "{error}");
        machine.replace(key, before);
    }
    let before = machine.replace("next_stream", b"x".to_vec());
    let mut server = machine.start(&["a"]);
    let topic = m::create_topics_request::CreatableTopic {
        name: Text::from_static("u"),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    };
    let request = m::CreateTopicsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() };
    let answer: m::CreateTopicsResponse = call(&mut server.connection, 7, &request).await;
    assert_ne!(answer.topics[0].error_code, NONE);
    assert_eq!(server.fetch(12, "t", 0).await, (NONE, batch("one").len(), 1));
    server.stop().await;
    machine.replace("next_stream", before);
    let mut server = machine.start(&["a"]);
    server.create("u", 1).await;
    assert_eq!(server.end("t", 0).await, (NONE, 1));
    server.stop().await;
}

/// One request for both logs: the answer for each partition follows the outcome of its own batch.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_a_healthy_log_is_answered_as_done_beside_one_that_fails() {
    for acks in [-1, 1] {
        let machine = Machine::new(&["a", "b"]);
        let mut server = machine.start(&["a", "b"]);
        server.create("t", 2).await;
        server.stop().await;
        let (well, ill) = (machine.one_in("t", "a"), machine.one_in("t", "b"));
        let mut server = machine.start(&["a", "b"]);
        machine.disk("b").fail_write_after(0, Fault::Forever);
        machine.disk("b").fail_sync_after(0, Fault::Forever);
        // With acks=1 the batch need not be synced.
        machine.disk("a").hold_syncs(acks == 1);
        let answer = server.produce_both("t", [well, ill], acks).await;
        machine.disk("a").hold_syncs(false);
        assert_eq!(answer, [(NONE, 0), (STORAGE, -1)], "acks={acks}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_fails_while_it_runs_stops_only_its_own_partitions() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a", "b"]);
    server.create("t", 2).await;
    server.stop().await;
    let (well, ill) = (machine.one_in("t", "a"), machine.one_in("t", "b"));
    let mut server = machine.start(&["a", "b"]);
    for partition in 0..2 {
        assert_eq!(server.produce("t", partition, "one").await, (NONE, 0));
    }
    machine.disk("b").fail_write_after(0, Fault::Forever);
    machine.disk("b").fail_sync_after(0, Fault::Forever);
    assert_eq!(server.produce("t", ill, "two").await, (STORAGE, -1));
    assert_eq!(server.produce("t", well, "two").await, (NONE, 1));
    assert_eq!(server.produce("t", ill, "three").await, (STORAGE, -1));
    assert_eq!(server.produce("t", well, "three").await, (NONE, 2));
    // Records that are in the log can be read.
    assert_eq!(server.fetch(12, "t", ill).await, (NONE, batch("one").len(), 1));
    assert_eq!(server.end("t", ill).await, (NONE, 1));
    assert_eq!(server.metadata("t").await[usize::try_from(ill).unwrap()], (NONE, 1, vec![]));
    assert_eq!(server.broker.failed_logs().len(), 1);
    assert!(server.broker.failure().is_none(), "the server is well");
    assert_eq!(
        server.metric("kafka_log_logmanager_offline"),
        ["kafka_log_logmanager_offlinelogdirectorycount 1"]
    );
    server.create("new", 4).await;
    for partition in 0..4 {
        assert_eq!(server.produce("new", partition, "x").await, (NONE, 0));
    }
    machine.disk("a").fail_write_after(0, Fault::Forever);
    assert_eq!(server.produce("t", well, "four").await, (STORAGE, -1));
    assert!(server.broker.failure().is_some());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_from_before_there_were_several_logs_belong_to_the_log_that_was_there() {
    let machine = Machine::new(&["data"]);
    let mut server = machine.start(&["data"]);
    server.create("t", 2).await;
    assert_eq!(server.produce("t", 1, "one").await, (NONE, 0));
    server.stop().await;
    machine.age();
    // Without the old log, the partitions are offline and not empty, even if new directories are added.
    let mut server = machine.start(&["new"]);
    assert_eq!(server.offline("t").await, [0, 1]);
    server.create("u", 1).await;
    assert_eq!(server.produce("u", 0, "one").await, (NONE, 0));
    server.stop().await;
    for _ in 0..2 {
        let mut server = machine.start(&["new", "data", "newer"]);
        assert_eq!((server.end("t", 0).await, server.end("t", 1).await), ((NONE, 0), (NONE, 1)));
        assert_eq!(server.end("u", 0).await, (NONE, 1));
        server.stop().await;
    }
    machine.take("data");
    let mut server = machine.start(&["new", "data", "newer"]);
    assert_eq!(server.offline("t").await, [0, 1]);
    assert_eq!(server.offline("u").await, [0; 0]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_in_a_lost_directory_have_no_coordinator_and_the_others_do() {
    let machine = Machine::new(&["a", "b"]);
    let mut server = machine.start(&["a", "b"]);
    server.create("t", 1).await;
    let groups: Vec<String> = (0..16).map(|n| format!("group-{n}")).collect();
    for (n, group) in groups.iter().enumerate() {
        assert_eq!(server.coordinator_error(group).await, NONE);
        assert_eq!(server.commit(group, "t", i64::from(as_i32(n))).await, NONE);
    }
    server.stop().await;
    let b = machine.take("b");
    machine.put("b", There::Broken);
    let mut server = machine.start(&["a", "b"]);
    let not_coordinator = ErrorCode::NotCoordinator.code();
    let mut lost = Vec::new();
    for (n, group) in groups.iter().enumerate() {
        match server.coordinator_error(group).await {
            NONE => {
                assert_eq!(server.committed(group, "t").await, (NONE, Some(i64::from(as_i32(n)))));
                assert_eq!(server.commit(group, "t", 100).await, NONE);
            }
            error => {
                assert_eq!(error, ErrorCode::CoordinatorNotAvailable.code());
                assert_eq!(server.committed(group, "t").await, (not_coordinator, None));
                assert_eq!(server.commit(group, "t", 100).await, not_coordinator);
                lost.push((n, group.clone()));
            }
        }
    }
    assert!(!lost.is_empty() && lost.len() < groups.len(), "{lost:?}");
    server.stop().await;
    machine.put("b", b);
    let mut server = machine.start(&["a", "b"]);
    for (n, group) in &lost {
        assert_eq!(server.committed(group, "t").await, (NONE, Some(i64::from(as_i32(*n)))));
    }
    server.stop().await;
    // The lost partitions are given up and begin again. The others keep their records.
    machine.put("b", There::Broken);
    let mut server = machine.start(&["a", "b"]);
    assert_eq!(server.delete("__consumer_offsets").await, NONE);
    assert_eq!(server.delete("__consumer_offsets").await, ErrorCode::InvalidRequest.code());
    for (n, group) in groups.iter().enumerate() {
        let was_lost = lost.iter().any(|(other, _)| *other == n);
        assert_eq!(server.coordinator_error(group).await, NONE);
        assert_eq!(server.committed(group, "t").await, (NONE, Some(if was_lost { -1 } else { 100 })));
        assert_eq!(server.commit(group, "t", 7).await, NONE);
    }
    server.stop().await;
    let mut server = machine.start(&["a"]);
    for group in &groups {
        assert_eq!(server.committed(group, "t").await, (NONE, Some(7)));
    }
    server.stop().await;
}
