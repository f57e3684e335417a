//! A broker whose disk is lost comes back from its bucket: the metadata as it was, and every stored record.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::snapshots::restore::{LogTarget, RestoreError, Restored, newest, restore};
use broker::{Broker, Config, Connection, LogDirectory};
use bytes::Bytes;
use disk::{Disk, Engine, open_directory};
use meta::{Embedded, Store};
use model::{Compression, Offset, StreamId, Timestamp};
use objects::sim::Faults;
use objects::{Bucket, BucketError, DirectoryBucket, SimBucket};
use sasl::scram::{Credential, Hash};
use storage::restore::Asking;
use wire::Text;
use wire::messages as m;
use wire::records::{BatchBuilder, records};

use crate::common::{call, close, connect, create_topic, fetch_of, fetch_request, produce};

const TOPIC: &str = "tiered";
const LATEST_TIERED: i64 = -5;
const PATIENCE: Duration = Duration::from_secs(20);
const TIERED: [(&str, &str); 3] =
    [("remote.storage.enable", "true"), ("local.retention.bytes", "1"), ("retention.ms", "-1")];

/// A data directory, and its log directories.
struct Disks {
    home: PathBuf,
    logs: Vec<PathBuf>,
}

impl Disks {
    fn new(parent: &Path, name: &str, logs: usize) -> Disks {
        let home = parent.join(name);
        let logs: Vec<PathBuf> = match logs {
            1 => vec![home.clone()],
            _ => (0..logs).map(|log| home.join(format!("log-{log}"))).collect(),
        };
        logs.iter().for_each(|path| std::fs::create_dir_all(path).unwrap());
        Disks { home, logs }
    }

    fn open(&self, bucket: &Arc<dyn Bucket>, more: &[(&str, &str)]) -> Arc<Broker> {
        let settings = [
            ("log.segment.bytes", "1048576"),
            ("log.reserve.bytes", "0"),
            ("log.retention.check.interval.ms", "10"),
            ("offsets.topic.num.partitions", "3"),
            ("object.store", "somewhere"),
            ("object.store.object.bytes", "65536"),
            ("object.store.upload.interval.ms", "20"),
            ("object.store.metadata.snapshot.interval.ms", "20"),
            ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
            ("super.users", "User:ANONYMOUS"),
        ];
        let mut config = Config::default();
        settings.iter().chain(more).for_each(|(name, value)| config.set(name, value).unwrap());
        let directory = |path: &PathBuf| {
            let (shown, path) = (path.display().to_string(), path.clone());
            LogDirectory::new(shown, move |_| {
                Ok(Arc::new(open_directory(&path, Engine::Plain)?) as Arc<dyn Disk>)
            })
        };
        let logs = self.logs.iter().map(directory).collect();
        Broker::open_with_bucket(config, logs, &self.home, Some(bucket.clone())).unwrap()
    }

    fn metadata(&self) -> BTreeMap<String, Vec<u8>> {
        let store = Embedded::open_copy(&self.home.join("meta.redb")).unwrap();
        store.list("").unwrap().entries.into_iter().map(|(key, value)| (key, value.bytes)).collect()
    }
}

fn patient(_: Duration, _: &BucketError) -> bool {
    true
}

/// Restores what is in the bucket.
fn restored(bucket: &Arc<dyn Bucket>, disks: &Disks) -> Result<Restored, RestoreError> {
    let found = newest(&**bucket, None, patient)?;
    let logs = found.snapshot.logs().unwrap();
    assert_eq!(logs.len(), disks.logs.len());
    let target = |(log, path): (&broker::snapshots::restore::LogToRestore, &PathBuf)| LogTarget {
        id: log.id,
        path: path.display().to_string(),
        disk: Arc::new(open_directory(path, Engine::Plain).unwrap()),
    };
    let targets: Vec<LogTarget> = logs.iter().zip(&disks.logs).map(target).collect();
    let asking = Asking { bucket, threads: 4, pause: &patient, progress: &|_, _| {} };
    restore(asking, &found.snapshot, &disks.home, &targets, (false, 1_700_000_000_000))
}

async fn offset(connection: &mut Connection, partition_index: i32, timestamp: i64) -> i64 {
    use m::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    let partitions = vec![ListOffsetsPartition { partition_index, timestamp, ..Default::default() }];
    let topics = vec![ListOffsetsTopic { name: Text::from_static(TOPIC), partitions }];
    let request = m::ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
    let answer: m::ListOffsetsResponse = call(connection, 11, &request).await;
    let found = &answer.topics[0].partitions[0];
    assert_eq!(found.error_code, 0);
    found.offset
}

async fn until_stored(connection: &mut Connection, partition: i32, end: i64) {
    let deadline = Instant::now() + PATIENCE;
    while offset(connection, partition, LATEST_TIERED).await != end - 1 {
        assert!(Instant::now() < deadline, "partition {partition} is not stored up to {end}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn value(partition: i32, number: i64) -> Vec<u8> {
    let seed = u64::try_from(number).unwrap() << 8 | u64::from(partition.unsigned_abs());
    let mut value = vec![0; 1000];
    fastrand::Rng::with_seed(seed).fill(&mut value);
    value
}

/// Appends records with the numbers `numbers`, 20 in a batch.
async fn fill(
    connection: &mut Connection,
    topic: &'static str,
    partition: i32,
    numbers: std::ops::Range<i64>,
) {
    let numbers: Vec<i64> = numbers.collect();
    for chunk in numbers.chunks(20) {
        let mut batch = BatchBuilder::new(Compression::None);
        chunk.iter().for_each(|number| {
            batch.push(Timestamp(1_700_000_000_000 + number), None, Some(&value(partition, *number)))
        });
        let (error, base, _) = produce(connection, topic, partition, -1, batch.finish()).await;
        assert_eq!((error, base), (0, chunk[0]));
    }
}

/// Fetches everything of a partition, and checks it.
async fn read_back(connection: &mut Connection, partition: i32, end: i64) {
    let mut at = 0;
    while at < end {
        let request = fetch_request((0, -1), 1000, vec![fetch_of(TOPIC, partition, at)]);
        let answer: m::FetchResponse = call(connection, 12, &request).await;
        let found = &answer.responses[0].partitions[0];
        assert_eq!(found.error_code, 0, "at {at}");
        let mut bytes: Bytes = found.records.as_ref().unwrap().to_bytes();
        assert!(!bytes.is_empty(), "nothing at {at} of {end}");
        while !bytes.is_empty() {
            let (header, all) = records(&bytes, 1 << 20).unwrap();
            bytes = bytes.slice(header.total_bytes..);
            let from = at;
            for (record, number) in all.zip(header.base_offset.0..).filter(|(_, number)| *number >= from) {
                let expected = value(partition, number);
                assert_eq!(record.unwrap().value.as_deref(), Some(&expected[..]), "record {number}");
                at = number + 1;
            }
        }
    }
}

async fn commit(connection: &mut Connection, committed_offset: i64) {
    use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    let partitions = vec![OffsetCommitRequestPartition { committed_offset, ..Default::default() }];
    let topics =
        vec![OffsetCommitRequestTopic { name: Text::from_static(TOPIC), partitions, ..Default::default() }];
    let group_id = Text::from_static("g");
    let generation_id_or_member_epoch = -1;
    let request =
        m::OffsetCommitRequest { group_id, generation_id_or_member_epoch, topics, ..Default::default() };
    let answer: m::OffsetCommitResponse = call(connection, 9, &request).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

async fn committed(connection: &mut Connection) -> i64 {
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
    let answer: m::OffsetFetchResponse = call(connection, 9, &request).await;
    answer.groups[0].topics[0].partitions[0].committed_offset
}

async fn producer_id(connection: &mut Connection) -> i64 {
    let request = m::InitProducerIdRequest { transactional_id: None, ..Default::default() };
    let answer: m::InitProducerIdResponse = call(connection, 4, &request).await;
    assert_eq!(answer.error_code, 0);
    answer.producer_id
}

/// Makes entries of every kind.
async fn configure(broker: &Arc<Broker>, connection: &mut Connection) {
    let iterations = NonZeroU32::new(4096).unwrap();
    let credential = Credential::new(Hash::Sha256, "secret", vec![1, 2, 3], iterations);
    broker
        .users()
        .change(|_| ((), vec![("anna".to_owned(), Hash::Sha256, Some(credential.clone()))]))
        .unwrap();
    let acl = m::create_acls_request::AclCreation {
        resource_type: 2,
        resource_name: Text::from_static(TOPIC),
        resource_pattern_type: 3,
        principal: Text::from_static("User:anna"),
        host: Text::from_static("*"),
        operation: 3,
        permission_type: 3,
    };
    let request = m::CreateAclsRequest { creations: vec![acl] };
    let answer: m::CreateAclsResponse = call(connection, 3, &request).await;
    assert_eq!(answer.results[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_stored_comes_back_on_new_disks() {
    for logs in [1, 2] {
        let parent = tempfile::tempdir().unwrap();
        let bucket: Arc<dyn Bucket> = Arc::new(DirectoryBucket::open(parent.path().join("bucket")).unwrap());
        let old = Disks::new(parent.path(), "old", logs);
        let broker = old.open(&bucket, &[]);
        let mut client = connect(&broker);
        create_topic(&mut client, TOPIC, 4, &TIERED).await;
        create_topic(&mut client, "local", 1, &[("retention.ms", "-1")]).await;
        configure(&broker, &mut client).await;
        for partition in 0..4 {
            fill(&mut client, TOPIC, partition, 0..600).await;
        }
        fill(&mut client, "local", 0, 0..100).await;
        commit(&mut client, 17).await;
        let producer = producer_id(&mut client).await;
        for partition in 0..4 {
            until_stored(&mut client, partition, 600).await;
        }
        drop(client);
        close(broker).await;
        let before = old.metadata();
        std::fs::remove_dir_all(&old.home).unwrap();

        let new = Disks::new(parent.path(), "new", logs);
        let back = restored(&bucket, &new).unwrap();
        assert_eq!((back.users, back.acls, back.logs.len()), (1, 1, logs));
        assert!(back.findings().next().is_none() && back.younger.is_empty());
        let partitions = back.partitions.iter().filter(|partition| partition.topic == TOPIC);
        let whole = partitions
            .filter(|partition| partition.stream.missing.is_empty() && partition.stream.next == Offset(600));
        assert_eq!(whole.count(), 4, "{:?}", back.partitions);
        let local = back.partitions.iter().find(|partition| partition.topic == "local").unwrap();
        assert_eq!(local.stream.missing, [(Offset(0), Offset(100))]);
        // Ids go on behind, the directories are others, and everything else is as it was.
        let after = new.metadata();
        let number = |of: &BTreeMap<String, Vec<u8>>, key: &str| -> i64 {
            std::str::from_utf8(&of[key]).unwrap().parse().unwrap()
        };
        for key in ["next_stream", "next_producer_id"] {
            assert!(number(&after, key) > number(&before, key) + 1_000_000, "{key}");
        }
        let same = |key: &&String| !key.starts_with("next_") && !key.starts_with("logs/");
        assert!(before.keys().filter(same).all(|key| before[key] == after[key]));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());

        let broker = new.open(&bucket, &[]);
        let mut client = connect(&broker);
        assert!(broker.users().all().contains_key("anna"));
        for partition in 0..4 {
            read_back(&mut client, partition, 600).await;
            fill(&mut client, TOPIC, partition, 600..700).await;
        }
        // Nothing was stored of the topic, so its offsets go on.
        fill(&mut client, "local", 0, 100..120).await;
        assert!(producer_id(&mut client).await > producer + 1_000_000);
        let expected = if back.groups == 1 { 17 } else { -1 };
        assert_eq!(committed(&mut client).await, expected);
        create_topic(&mut client, "younger", 1, &TIERED).await;
        for partition in 0..4 {
            until_stored(&mut client, partition, 700).await;
        }
        drop(client);
        close(broker).await;

        // The restored server is lost as well.
        std::fs::remove_dir_all(&new.home).unwrap();
        let third = Disks::new(parent.path(), "third", logs);
        let back = restored(&bucket, &third).unwrap();
        assert!(back.partitions.iter().any(|partition| partition.topic == "younger"));
        let broker = third.open(&bucket, &[]);
        let mut client = connect(&broker);
        for partition in 0..4 {
            read_back(&mut client, partition, 700).await;
        }
        drop(client);
        close(broker).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_stored_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let store = SimBucket::new(1);
    let bucket: Arc<dyn Bucket> = Arc::new(store.clone());
    let old = Disks::new(parent.path(), "old", 1);
    let broker = old.open(&bucket, &[("object.store.upload.interval.ms", "3600000")]);
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &TIERED).await;
    // A part is stored, because objects are full. The rest waits.
    let (mut appended, mut stored) = (0, 0);
    while stored < 500 || stored == appended {
        assert!(appended < 20_000, "{stored} of {appended} are stored");
        fill(&mut client, TOPIC, 0, appended..appended + 20).await;
        appended += 20;
        // The uploader may be behind, so its end has to stand still.
        let mut before = -1;
        while appended >= 600 && before != stored {
            before = stored;
            tokio::time::sleep(Duration::from_millis(500)).await;
            stored = offset(&mut client, 0, LATEST_TIERED).await + 1;
        }
    }
    drop(client);
    close(broker).await;
    let new = Disks::new(parent.path(), "new", 1);
    let back = restored(&bucket, &new).unwrap();
    let stream = &back.partitions[0].stream;
    let end = stream.next.0;
    assert_eq!(
        (stream.next, &stream.missing[..]),
        (Offset(stored), &[(Offset(stored), Offset(appended))][..])
    );
    let broker = new.open(&bucket, &[]);
    let mut client = connect(&broker);
    read_back(&mut client, 0, end).await;
    fill(&mut client, TOPIC, 0, end..end + 40).await;
    read_back(&mut client, 0, end + 40).await;
    drop(client);
    close(broker).await;
}

/// The offsets of groups are records as any other. Here, an ordinary topic has them, and is renamed in the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn groups_come_back_with_the_records_of_their_offsets() {
    use broker::groups::{CommittedOffset, OffsetKey, encode_offset, encode_offset_key};
    let parent = tempfile::tempdir().unwrap();
    let bucket: Arc<dyn Bucket> = Arc::new(SimBucket::new(3));
    let old = Disks::new(parent.path(), "old", 1);
    let broker = old.open(&bucket, &[]);
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &TIERED).await;
    create_topic(&mut client, "kept", 1, &[]).await;
    for (group, offset, lives) in [("g", 11, true), ("gone", 5, true), ("g", 17, true), ("gone", 0, false)] {
        let key = OffsetKey { topic: TOPIC.into(), partition: 0 };
        let value = CommittedOffset {
            offset,
            leader_epoch: -1,
            metadata: String::new(),
            commit_timestamp_ms: i64::MAX / 2,
            expire_timestamp_ms: None,
        };
        let mut batch = BatchBuilder::new(Compression::None);
        let (key, value) = (encode_offset_key(group, &key).unwrap(), encode_offset(&value).unwrap());
        batch.push(Timestamp(1_700_000_000_000), Some(&key), lives.then_some(&value[..]));
        assert_eq!(produce(&mut client, TOPIC, 0, -1, batch.finish()).await.0, 0);
    }
    until_stored(&mut client, 0, 4).await;
    drop(client);
    close(broker).await;
    let mut found = newest(&*bucket, None, patient).unwrap();
    for (key, _) in &mut found.snapshot.entries {
        match key.as_str() {
            "topics/tiered" => *key = "topics/__consumer_offsets".into(),
            "topics/kept" => *key = "topics/tiered".into(),
            _ => {}
        }
    }
    let new = Disks::new(parent.path(), "new", 1);
    let target = LogTarget {
        id: found.snapshot.logs().unwrap()[0].id,
        path: new.home.display().to_string(),
        disk: Arc::new(open_directory(&new.home, Engine::Plain).unwrap()),
    };
    let asking = Asking { bucket: &bucket, threads: 1, pause: &patient, progress: &|_, _| {} };
    let back = restore(asking, &found.snapshot, &new.home, &[target], (false, 1_700_000_000_000)).unwrap();
    assert_eq!(back.groups, 1);
    let broker = new.open(&bucket, &[]);
    let mut client = connect(&broker);
    assert_eq!(committed(&mut client).await, 17);
    drop(client);
    close(broker).await;
}

/// The snapshots of a cluster in a bucket.
fn snapshots(store: &SimBucket) -> Vec<String> {
    store.keys().into_iter().filter(|key| key.starts_with("metadata/")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_follow_the_metadata_whatever_the_store_does() {
    let parent = tempfile::tempdir().unwrap();
    let store = SimBucket::new(7);
    let bucket: Arc<dyn Bucket> = Arc::new(store.clone());
    let disks = Disks::new(parent.path(), "data", 1);
    for round in 0..3 {
        let broker = disks.open(&bucket, &[]);
        let mut client = connect(&broker);
        store.set_faults(Faults::MANY);
        for topic in 0..4 {
            let name: &'static str = format!("t-{round}-{topic}").leak();
            create_topic(&mut client, name, 1, &[]).await;
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        store.set_faults(Faults::default());
        drop(client);
        close(broker).await;
        store.settle();
        let found = newest(&*bucket, None, patient).unwrap();
        let (snapshot, metadata) = (&found.snapshot, disks.metadata());
        let entries: BTreeMap<String, Vec<u8>> = snapshot.entries.iter().cloned().collect();
        assert_eq!(entries, metadata, "round {round}");
        assert!(found.passed_over.is_empty());
    }
    // Few snapshots stay; a late put may bring one back for a while.
    let keys = snapshots(&store);
    assert!(keys.len() < 12, "{keys:?}");

    // A damaged snapshot is passed over, and one of a newer version is not.
    let newest_key = keys.last().unwrap();
    store.damage(newest_key, 200);
    let found = newest(&*bucket, None, patient).unwrap();
    assert_eq!((found.passed_over.len(), &found.stored.key), (1, &keys[keys.len() - 2]));
    let cluster = found.stored.cluster_id.clone();
    let other = newest(&*bucket, Some("another"), patient);
    assert!(matches!(other, Err(RestoreError::NoSnapshot(_))), "{other:?}");
    let content = store.content(&found.stored.key).unwrap();
    bucket.put_if_absent("metadata/61/0000000001", &[content]).unwrap();
    let several = newest(&*bucket, None, patient);
    let Err(RestoreError::Clusters(found)) = several else { panic!("{several:?}") };
    assert!(found.len() == 2 && found.contains(&cluster) && found.contains(&"a".to_owned()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_writes_no_snapshots() {
    let parent = tempfile::tempdir().unwrap();
    let store = SimBucket::new(9);
    let bucket: Arc<dyn Bucket> = Arc::new(store.clone());
    let disks = Disks::new(parent.path(), "data", 1);
    let broker = disks.open(&bucket, &[]);
    let deadline = Instant::now() + PATIENCE;
    while snapshots(&store).is_empty() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let puts = store.requests().puts;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(store.requests().puts, puts);
    close(broker).await;
    assert_eq!(store.requests().puts, puts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_younger_than_the_snapshot_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let store = SimBucket::new(11);
    let bucket: Arc<dyn Bucket> = Arc::new(store.clone());
    let old = Disks::new(parent.path(), "old", 1);
    let broker = old.open(&bucket, &[]);
    let mut client = connect(&broker);
    create_topic(&mut client, "known", 1, &[]).await;
    close_to(&store).await;
    let kept = snapshots(&store);
    let content = store.content(kept.last().unwrap()).unwrap();
    create_topic(&mut client, TOPIC, 1, &TIERED).await;
    fill(&mut client, TOPIC, 0, 0..200).await;
    until_stored(&mut client, 0, 200).await;
    drop(client);
    close(broker).await;
    for key in snapshots(&store) {
        bucket.delete(&key).unwrap();
    }
    bucket.put_if_absent(kept.last().unwrap(), &[content]).unwrap();
    let new = Disks::new(parent.path(), "new", 1);
    let back = restored(&bucket, &new).unwrap();
    let (stream, there) = &back.younger[0];
    assert_eq!((*stream, there.start, there.next), (StreamId(2), Offset(0), Offset(200)));
    let broker = new.open(&bucket, &[]);
    let mut client = connect(&broker);
    create_topic(&mut client, TOPIC, 1, &TIERED).await;
    fill(&mut client, TOPIC, 0, 0..100).await;
    until_stored(&mut client, 0, 100).await;
    read_back(&mut client, 0, 100).await;
    drop(client);
    close(broker).await;
}

/// Waits until the snapshots stand still.
async fn close_to(store: &SimBucket) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = snapshots(store);
        tokio::time::sleep(Duration::from_millis(200)).await;
        if !before.is_empty() && before == snapshots(store) {
            return;
        }
        assert!(Instant::now() < deadline, "snapshots do not stand still");
    }
}
