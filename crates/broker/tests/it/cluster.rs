//! Three brokers with one metadata store and one object store: each owns logs, others take them over when it dies, and
//! nothing acknowledged is lost.

#[path = "common/cluster_administration.rs"]
mod administration;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use administration::alter_config;
use broker::{
    AdminError, Broker, ClusterAdmin, Config, Connection, CopyDirectory, Directories, Membership, Remote,
};
use bytes::Bytes;
use disk::{Disk, Engine, open_directory};
use model::{Compression, Timestamp};
use objects::{Bucket, DirectoryBucket};
use prometheus_client::registry::Registry;
use wire::messages as m;
use wire::records::{BatchBuilder, records};
use wire::{Chunks, ErrorCode, Text};

use crate::common::slow_disk::SlowDisk;
use crate::common::transactional::{Producer, Seen, V1, V2, Version, now_ms, read as read_committed};
use crate::common::{call, connect, fetch_of, fetch_request, metric, try_create_topic, unframed};

const TOPIC: &str = "t";
const SHORT: &str = "short";
const LONG: &str = "long";
const PARTITIONS: i32 = 12;
const SESSION: Duration = Duration::from_millis(600);
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Local(PathBuf);

impl Directories for Local {
    fn empty(&self, name: &str) -> io::Result<(String, Arc<dyn Disk>)> {
        let path = self.0.join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path)?;
        Ok((path.display().to_string(), Arc::new(open_directory(&path, Engine::Plain)?)))
    }
}

struct Cluster {
    home: tempfile::TempDir,
    store: Arc<meta::Memory>,
    brokers: BTreeMap<i32, Arc<Broker>>,
    /// The values that were acknowledged, by partition.
    acknowledged: Vec<Vec<String>>,
    sent: usize,
    starts: usize,
    reached: Reached,
    /// How late the disk with copies is of each broker, in milliseconds.
    late_ms: BTreeMap<i32, Arc<AtomicU64>>,
    /// Brokers that come back have the copies that they had.
    keeps_copies: bool,
    /// Settings of all brokers.
    settings: &'static [(&'static str, &'static str)],
}

/// The brokers by their ports.
type Reached = Arc<Mutex<BTreeMap<u16, Arc<Broker>>>>;

fn port(node: i32) -> u16 {
    u16::try_from(9092 + node).unwrap()
}

/// Requests between the brokers.
#[derive(Debug)]
struct Wire(Reached);

impl Remote for Wire {
    fn call(
        &self,
        (_, port): (String, u16),
        request: Chunks,
    ) -> Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + '_>> {
        Box::pin(async move {
            let broker =
                self.0.lock().unwrap().get(&port).cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
            let answer =
                connect(&broker).begin(unframed(&request)).await.unwrap().expect("there is an answer");
            Ok(unframed(&answer.await.map_err(|_| io::ErrorKind::ConnectionReset)?))
        })
    }

    fn call_blocking(&self, address: (String, u16), request: &Chunks) -> io::Result<Bytes> {
        tokio::runtime::Handle::current().block_on(self.call(address, request.clone()))
    }
}

impl Cluster {
    fn new(settings: &'static [(&'static str, &'static str)]) -> Cluster {
        let mut cluster = Cluster {
            home: tempfile::tempdir().unwrap(),
            store: Arc::default(),
            brokers: BTreeMap::new(),
            acknowledged: vec![Vec::new(); PARTITIONS.unsigned_abs() as usize],
            sent: 0,
            starts: 0,
            reached: Reached::default(),
            late_ms: BTreeMap::new(),
            keeps_copies: false,
            settings,
        };
        (1..=3).for_each(|node| cluster.start(node));
        cluster
    }

    /// A disk for the copies of others: a broker that comes back has lost the one that it had, unless it is to keep it.
    fn copies(&mut self, node: i32) -> CopyDirectory {
        // The brokers are started in the order of their numbers at first.
        let first = usize::try_from(node).unwrap();
        let number = if self.keeps_copies { first } else { self.starts };
        let path = self.home.path().join(format!("copies-{number}"));
        std::fs::create_dir_all(&path).unwrap();
        let inner = Arc::new(open_directory(&path, Engine::Plain).unwrap());
        let disk = Arc::new(SlowDisk { inner, late_ms: self.late_ms.entry(node).or_default().clone() });
        CopyDirectory { path: path.display().to_string(), disk }
    }

    fn start(&mut self, node: i32) {
        let mut config = Config { node_id: node, ..Config::default() };
        let bucket = self.home.path().join("bucket");
        for (name, value) in [
            ("log.segment.bytes", "1048576"),
            ("log.reserve.bytes", "0"),
            ("object.store", bucket.to_str().unwrap()),
            ("object.store.diskless.interval.ms", "20"),
            ("group.initial.rebalance.delay.ms", "0"),
            ("auto.create.topics.enable", "false"),
            ("log.retention.check.interval.ms", "10"),
            ("object.store.delete.delay.ms", "0"),
            ("broker.rack", &format!("rack {node}")),
            ("log.cleaner.backoff.ms", "50"),
        ] {
            config.set(name, value).unwrap();
        }
        for (name, value) in self.settings {
            config.set(name, value).unwrap();
        }
        self.starts += 1;
        let membership = Membership {
            store: self.store.clone(),
            directories: Arc::new(Local(self.home.path().join(self.starts.to_string()))),
            listeners: BTreeMap::from([("PLAINTEXT".to_owned(), ("a broker".to_owned(), port(node)))]),
            inter_broker: ("PLAINTEXT".to_owned(), Arc::new(Wire(self.reached.clone()))),
            session: SESSION,
            copies: self.copies(node),
        };
        let bucket: Arc<dyn Bucket> = Arc::new(DirectoryBucket::open(bucket).unwrap());
        let broker = Broker::open_in_cluster(config, membership, bucket).unwrap();
        self.reached.lock().unwrap().insert(port(node), broker.clone());
        self.brokers.insert(node, broker);
    }

    /// A broker that goes on without being told that it counts as dead: as a process that was stopped for a while.
    fn stop_signs(&mut self, node: i32) -> Arc<Broker> {
        let broker = self.brokers.remove(&node).unwrap();
        broker.halt();
        broker
    }

    fn client(&self) -> Connection {
        connect(self.brokers.values().next().unwrap())
    }

    /// The leader of each partition, and its epoch.
    async fn leaders(&self) -> Vec<(i32, i32)> {
        let answer = metadata(&mut self.client()).await;
        let partitions = &answer.topics[0].partitions;
        let mut leaders: Vec<_> =
            partitions.iter().map(|at| (at.partition_index, (at.leader_id, at.leader_epoch))).collect();
        leaders.sort_unstable();
        leaders.into_iter().map(|(_, leader)| leader).collect()
    }

    /// Appends a record to each partition with acks=all, and finds the leaders again until each has taken it.
    async fn produce(&mut self) {
        let until = Instant::now() + PATIENCE;
        self.sent += 1;
        let value = format!("record {}", self.sent);
        for partition in 0..PARTITIONS {
            loop {
                assert!(
                    Instant::now() < until,
                    "partition {partition} takes no record: {:?}",
                    self.leaders().await
                );
                let (node, _) = self.leaders().await[partition.unsigned_abs() as usize];
                if let Some(broker) = self.brokers.get(&node) {
                    let (error, _, _) =
                        crate::common::produce(&mut connect(broker), TOPIC, partition, -1, batch(&value))
                            .await;
                    if error == 0 {
                        break;
                    }
                    assert!(may_be_retried(error), "{:?}", ErrorCode::from_code(error));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.acknowledged[partition.unsigned_abs() as usize].push(value.clone());
        }
    }

    /// Waits until all partitions have replicas on all three brokers, those of `nodes` in sync, and one of them leads.
    async fn until_in_sync(&self, nodes: &[i32]) {
        let until = Instant::now() + PATIENCE;
        let sorted = |all: &[i32]| all.iter().copied().collect::<BTreeSet<i32>>();
        type Partition<'a> = (i32, &'a Vec<i32>, &'a Vec<i32>, &'a Vec<i32>);
        let is_right = |(leader, in_sync, replicas, offline): Partition<'_>| {
            sorted(in_sync) == sorted(nodes)
                && sorted(replicas) == BTreeSet::from([1, 2, 3])
                && offline.iter().all(|node| !nodes.contains(node))
                && nodes.contains(&leader)
        };
        let topics =
            vec![m::describe_topic_partitions_request::TopicRequest { name: Text::from_static(TOPIC) }];
        let described =
            m::DescribeTopicPartitionsRequest { topics, response_partition_limit: 100, cursor: None };
        loop {
            let answer = metadata(&mut self.client()).await;
            // What kafka-topics.sh asks for.
            let asked: m::DescribeTopicPartitionsResponse = call(&mut self.client(), 0, &described).await;
            let told = answer.topics[0].partitions.iter();
            let told = told.map(|it| (it.leader_id, &it.isr_nodes, &it.replica_nodes, &it.offline_replicas));
            let found = asked.topics[0].partitions.iter();
            let found =
                found.map(|it| (it.leader_id, &it.isr_nodes, &it.replica_nodes, &it.offline_replicas));
            if told.len() == found.len() && told.chain(found).all(is_right) {
                return;
            }
            assert!(Instant::now() < until, "{nodes:?} are not in sync: {answer:?}, {asked:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the sum of a metric over all brokers is as `wanted`.
    async fn until_metric(&self, name: &str, wanted: &dyn Fn(u64) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = metric_of(self.brokers.values(), name);
            if wanted(now) {
                return;
            }
            assert!(Instant::now() < until, "{name} is {now}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reads every partition, and compares it with what was acknowledged. Records may come twice, because an append
    /// whose answer was an error is repeated.
    async fn read_all(&self) {
        self.read_all_but(&[]).await;
    }

    /// The same, where other producers wrote `others`.
    async fn read_all_but(&self, others: &[&str]) {
        let until = Instant::now() + PATIENCE;
        for partition in 0..PARTITIONS {
            let expected = &self.acknowledged[partition.unsigned_abs() as usize];
            let found = loop {
                assert!(Instant::now() < until, "partition {partition} cannot be read");
                let (node, _) = self.leaders().await[partition.unsigned_abs() as usize];
                if let Some(broker) = self.brokers.get(&node)
                    && let Some(found) = read(&mut connect(broker), partition).await
                {
                    break found;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            let mut without_repeats = found.clone();
            without_repeats.retain(|value| !others.contains(&value.as_str()));
            without_repeats.dedup();
            assert_eq!(&without_repeats, expected, "partition {partition}");
        }
    }

    /// Waits until the leaders are as `right` wants them.
    async fn until(&self, what: &str, right: impl Fn(&[(i32, i32)]) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let leaders = self.leaders().await;
            if right(&leaders) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {leaders:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Asks one broker after the other, until one of them leads the partition: `ask` returns error code and result.
    async fn any_broker<T>(&self, what: &str, ask: impl AsyncFn(&mut Connection) -> (i16, T)) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "nobody answers for {what}");
            for broker in self.brokers.values() {
                let (error, found) = ask(&mut connect(broker)).await;
                if error == 0 {
                    return found;
                }
                assert!(may_be_retried(error), "{:?}", ErrorCode::from_code(error));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_all_lead(&self) {
        self.until("every broker leads as many partitions", |leaders| {
            self.brokers.keys().all(|node| {
                let led = leaders.iter().filter(|(leader, _)| leader == node).count();
                led == PARTITIONS.unsigned_abs() as usize / 3
            })
        })
        .await;
    }
}

async fn metadata(client: &mut Connection) -> m::MetadataResponse {
    metadata_of(client, TOPIC).await
}

async fn metadata_of(client: &mut Connection, name: &'static str) -> m::MetadataResponse {
    let topic = m::metadata_request::MetadataRequestTopic {
        name: Some(Text::from_static(name)),
        ..Default::default()
    };
    call(client, 12, &m::MetadataRequest { topics: Some(vec![topic]), ..Default::default() }).await
}

fn batch(value: &str) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(now_ms()), None, Some(value.as_bytes()));
    builder.finish()
}

/// What clients repeat. A broker that has not heard of a new topic answers `UnknownTopicOrPartition`, as in Kafka.
fn may_be_retried(error: i16) -> bool {
    matches!(
        ErrorCode::from_code(error),
        Some(
            ErrorCode::NotLeaderOrFollower
                | ErrorCode::NotEnoughReplicas
                | ErrorCode::NotEnoughReplicasAfterAppend
                | ErrorCode::KafkaStorageError
                | ErrorCode::RequestTimedOut
                | ErrorCode::NotCoordinator
                | ErrorCode::CoordinatorLoadInProgress
                | ErrorCode::CoordinatorNotAvailable
                | ErrorCode::UnknownTopicOrPartition
        )
    )
}

/// All values of a partition. `None` if the broker does not lead it.
async fn read(client: &mut Connection, partition: i32) -> Option<Vec<String>> {
    let (mut found, mut next) = (Vec::new(), 0);
    loop {
        let request = fetch_request((0, -1), 0, vec![fetch_of(TOPIC, partition, next)]);
        let answer: m::FetchResponse = call(client, 12, &request).await;
        let data = &answer.responses[0].partitions[0];
        if data.error_code != 0 {
            assert!(may_be_retried(data.error_code), "{:?}", ErrorCode::from_code(data.error_code));
            return None;
        }
        let mut bytes: Bytes = data.records.as_ref().map(|records| records.to_bytes()).unwrap_or_default();
        if bytes.is_empty() {
            return Some(found);
        }
        while !bytes.is_empty() {
            let (header, all) = records(&bytes, 1 << 20).unwrap();
            bytes = bytes.slice(header.total_bytes..);
            let values = all.filter(|_| !header.is_control()).map(|record| record.unwrap().value.unwrap());
            found.extend(values.map(|value| String::from_utf8(value.to_vec()).unwrap()));
            next = header.base_offset.0 + header.offset_count();
        }
    }
}

/// The error of a fetch from `offset`.
async fn fetch_error(broker: &Arc<Broker>, partition: i32, offset: i64) -> ErrorCode {
    let request = fetch_request((0, -1), 0, vec![fetch_of(TOPIC, partition, offset)]);
    let answer: m::FetchResponse = call(&mut connect(broker), 12, &request).await;
    ErrorCode::from_code(answer.responses[0].partitions[0].error_code).unwrap()
}

/// Three brokers, and a topic whose partitions are spread over them.
async fn cluster() -> Cluster {
    cluster_with(&[]).await
}

/// The same, with these settings of all brokers.
async fn cluster_with(settings: &'static [(&'static str, &'static str)]) -> Cluster {
    cluster_of(settings, &[]).await
}

/// The same, with these settings of the topic.
async fn cluster_of(settings: &'static [(&'static str, &'static str)], configs: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::new(settings);
    let until = Instant::now() + PATIENCE;
    loop {
        let mut client = cluster.client();
        let brokers = metadata(&mut client).await.brokers.len();
        let owners = {
            use meta::Store;
            cluster.store.list("owners/").unwrap().entries.len()
        };
        if brokers == 3 && owners == 6 {
            // The broker that is asked for the topic may not have heard of all logs yet. It has heard of what it changes, and of all before.
            const OF_BROKERS: i8 = 4;
            let asked = cluster.brokers.values().next().unwrap();
            for value in [Some("604800000"), None] {
                alter_config(asked, OF_BROKERS, "", "log.retention.ms", value).await;
            }
            let tiered = ("remote.storage.enable", "true");
            let refused = try_create_topic(&mut client, TOPIC, PARTITIONS, &[tiered]).await;
            assert_eq!(refused.error_code, ErrorCode::InvalidConfig.code());
            let created = try_create_topic(&mut client, TOPIC, PARTITIONS, configs).await;
            assert_eq!(created.error_code, 0, "{:?}", created.error_message);
            break;
        }
        assert!(Instant::now() < until, "{brokers} brokers found each other, and own {owners} logs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.until_all_lead().await;
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_broker_that_dies_loses_its_logs_to_the_others_and_nothing_else() {
    let mut cluster = cluster().await;
    for _ in 0..3 {
        cluster.produce().await;
    }
    cluster.read_all().await;
    let before = cluster.leaders().await;
    let zombie = cluster.stop_signs(1);
    cluster.until("the others lead", |leaders| leaders.iter().all(|(node, _)| *node != 1)).await;
    for _ in 0..3 {
        cluster.produce().await;
    }
    cluster.read_all().await;
    for ((old, old_epoch), (_, epoch)) in before.iter().zip(cluster.leaders().await) {
        assert!(if *old == 1 { epoch > *old_epoch } else { epoch == *old_epoch });
    }
    // The former owner has its logs open, and answers for nothing that comes behind the seal.
    for partition in (0..PARTITIONS).filter(|at| before[at.unsigned_abs() as usize].0 == 1) {
        let (error, _, _) =
            crate::common::produce(&mut connect(&zombie), TOPIC, partition, -1, batch("too late")).await;
        assert!(may_be_retried(error), "{error}");
        // What is behind the end that it knows is nothing that it can refuse.
        let records = cluster.acknowledged[partition.unsigned_abs() as usize].len();
        let offset = i64::try_from(records).unwrap();
        assert_eq!(fetch_error(&zombie, partition, offset).await, ErrorCode::NotLeaderOrFollower);
        let owner = &cluster.brokers[&cluster.leaders().await[partition.unsigned_abs() as usize].0];
        assert_eq!(fetch_error(owner, partition, offset + 1000).await, ErrorCode::OffsetOutOfRange);
        assert_eq!(fetch_error(owner, partition, offset).await, ErrorCode::None);
        assert_eq!(
            fetch_error(&zombie, partition, -1).await,
            ErrorCode::OffsetOutOfRange,
            "no log begins there"
        );
    }
    cluster.read_all().await;
    cluster.start(1);
    cluster.until_all_lead().await;
    for _ in 0..3 {
        cluster.produce().await;
    }
    cluster.read_all().await;
    let told = metadata(&mut cluster.client()).await.brokers;
    let racks: Vec<_> = told.iter().map(|broker| (broker.node_id, broker.rack.as_deref())).collect();
    assert_eq!(racks, [(1, Some("rack 1")), (2, Some("rack 2")), (3, Some("rack 3"))]);
    // Nobody is ended who is alive, or whom nobody knows.
    for (broker_id, expected) in [(1, ErrorCode::InvalidRequest), (7, ErrorCode::BrokerIdNotRegistered)] {
        let request = m::UnregisterBrokerRequest { broker_id };
        let answer: m::UnregisterBrokerResponse = call(&mut cluster.client(), 0, &request).await;
        assert_eq!(answer.error_code, expected.code());
    }
    zombie.close().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// What was acknowledged is in copies alone when a broker dies, and again when the next one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copies_outlive_their_owners() {
    let late = &[("object.store.upload.interval.ms", "600000")];
    let mut cluster = cluster_of(late, &[("diskless.enable", "false")]).await;
    let mut gone = Vec::new();
    for node in [1, 2] {
        for _ in 0..3 {
            cluster.produce().await;
        }
        gone.push(cluster.stop_signs(node));
        cluster.until("the others lead", |leaders| leaders.iter().all(|(it, _)| *it != node)).await;
        cluster.read_all().await;
        cluster.produce().await;
        cluster.start(node);
        cluster.until_all_lead().await;
        cluster.read_all().await;
    }
    gone.extend(cluster.brokers.into_values());
    for broker in gone {
        broker.close().await;
    }
}

/// The limit of copies: all disks of a set are lost before the object store has what was acknowledged. The logs wait for the disks,
/// and are opened without them once somebody says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_all_copies_had_is_lost_with_them_and_given_up_only_on_demand() {
    // Nothing reaches the store early, also not because a disk lags.
    let late = &[("object.store.upload.interval.ms", "600000"), ("replica.lag.time.max.ms", "600000")];
    let mut cluster = cluster_with(late).await;
    cluster.until_in_sync(&[1, 2, 3]).await;
    cluster.produce().await;
    let admin = ClusterAdmin::open(cluster.store.clone()).unwrap();
    let logs: Vec<String> = admin.state().unwrap().logs.into_keys().collect();
    for log in &logs {
        assert!(matches!(admin.accept_loss(log), Err(AdminError::Open(_))));
    }
    // At once: who has a lease while another's is over may do without that one's copy.
    let all: Vec<Arc<Broker>> = std::mem::take(&mut cluster.brokers).into_values().collect();
    std::thread::scope(|halts| all.iter().for_each(|broker| drop(halts.spawn(|| broker.halt()))));
    for broker in all {
        broker.close().await;
    }
    // A broker with the id of one whose lease is not over waits for that.
    (1..=3).for_each(|node| cluster.start(node));
    let until = Instant::now() + PATIENCE;
    // All have other disks and own logs again, which they cannot open.
    let is_waiting = |admin: &ClusterAdmin| {
        let state = admin.state().unwrap();
        let is_lost = |copies: &[Option<i32>]| !copies.is_empty() && copies.iter().all(Option::is_none);
        let waits = |log: &broker::LogState| state.brokers[&log.owner].alive && is_lost(&log.copies);
        state.brokers.values().filter(|broker| broker.alive).count() == 3 && state.logs.values().all(waits)
    };
    while !is_waiting(&admin) {
        assert!(Instant::now() < until, "{:?}", admin.state());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let settled = |state: &broker::ClusterState| {
        state.logs.values().all(|log| log.owner == log.home && log.next.is_none())
    };
    while !settled(&admin.state().unwrap()) {
        assert!(Instant::now() < until, "{:?}", admin.state());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let waits = admin.state().unwrap().logs;
    for _ in 0..20 {
        for (partition, (node, _)) in (0..).zip(cluster.leaders().await) {
            let mut client = connect(&cluster.brokers[&node]);
            assert_eq!(read(&mut client, partition).await, None, "it has nothing, and says so");
        }
        tokio::time::sleep(SESSION / 5).await;
    }
    assert!(is_waiting(&admin));
    // Each further attempt to take a log over would leave something in the object store.
    assert_eq!(admin.state().unwrap().logs, waits);
    logs.iter().for_each(|log| admin.accept_loss(log).unwrap());
    cluster.acknowledged.iter_mut().for_each(Vec::clear);
    cluster.until_all_lead().await;
    cluster.produce().await;
    // What was acknowledged before is gone.
    cluster.read_all().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// All brokers have started anew since they got copies, and one of them stays away: what the others have counts after ten seconds, and
/// a metric says that it may be less than what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copies_of_which_nothing_says_that_they_are_whole_are_counted() {
    let late = &[("object.store.upload.interval.ms", "600000"), ("replica.lag.time.max.ms", "600000")];
    let mut cluster = cluster_with(late).await;
    cluster.keeps_copies = true;
    let unproven =
        |cluster: &Cluster| metric_of(cluster.brokers.values(), "mainstem_cluster_copies_unproven_total");
    cluster.until_in_sync(&[1, 2, 3]).await;
    cluster.produce().await;
    assert_eq!(unproven(&cluster), 0);
    let all: Vec<Arc<Broker>> = std::mem::take(&mut cluster.brokers).into_values().collect();
    std::thread::scope(|halts| all.iter().for_each(|broker| drop(halts.spawn(|| broker.halt()))));
    for broker in all {
        broker.close().await;
    }
    cluster.start(1);
    cluster.start(2);
    cluster.until("two brokers lead", |leaders| leaders.iter().all(|(node, _)| [1, 2].contains(node))).await;
    cluster.read_all().await;
    assert!(unproven(&cluster) > 0);
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// A log without a topic that waits for copies has none. It gets them with the first topic that does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copies_come_with_the_first_topic_that_waits_for_them() {
    let mut cluster = cluster_of(&[], &[("diskless.enable", "true")]).await;
    for _ in 0..5 {
        cluster.produce().await;
    }
    let admin = ClusterAdmin::open(cluster.store.clone()).unwrap();
    assert!(admin.state().unwrap().logs.values().all(|log| log.copies.is_empty()), "{:?}", admin.state());
    let mut client = cluster.client();
    let created = try_create_topic(&mut client, SHORT, PARTITIONS, &[("min.insync.replicas", "3")]).await;
    assert_eq!(created.error_code, 0, "{:?}", created.error_message);
    // Producers that begin at once are not refused.
    let told = metadata_of(&mut client, SHORT).await;
    let in_sync = told.topics[0].partitions.iter().map(|partition| partition.isr_nodes.len());
    assert_eq!(in_sync.collect::<Vec<usize>>(), [3; PARTITIONS.unsigned_abs() as usize]);
    let until = Instant::now() + PATIENCE;
    while !admin.state().unwrap().logs.values().all(|log| log.copies.len() == 2) {
        assert!(Instant::now() < until, "{:?}", admin.state());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.produce().await;
    cluster.read_all().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// With fewer replicas in sync than `min.insync.replicas`, acks=all is refused and acks=1 is not. Clients are told of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acks_all_needs_replicas_in_sync() {
    let mut cluster = cluster().await;
    let needs = async |cluster: &Cluster, min| {
        const OF_TOPIC: i8 = 2;
        for broker in cluster.brokers.values() {
            alter_config(broker, OF_TOPIC, TOPIC, "min.insync.replicas", Some(min)).await;
        }
    };
    needs(&cluster, "2").await;
    cluster.until_in_sync(&[1, 2, 3]).await;
    cluster.produce().await;
    for (node, broker) in &cluster.brokers {
        let request = m::DescribeLogDirsRequest { topics: None };
        let answer: m::DescribeLogDirsResponse = call(&mut connect(broker), 4, &request).await;
        let topics = answer.results.iter().flat_map(|dir| &dir.topics).filter(|topic| topic.name == TOPIC);
        let mut found: Vec<i32> =
            topics.flat_map(|topic| &topic.partitions).map(|it| it.partition_index).collect();
        found.sort_unstable();
        assert_eq!(
            found,
            (0..PARTITIONS).collect::<Vec<i32>>(),
            "broker {node} has all partitions, in a log or copied"
        );
    }
    cluster
        .until_metric("kafka_server_replicamanager_underreplicatedpartitions", &|missing| missing == 0)
        .await;
    let stay = cluster.brokers.iter().filter(|(node, _)| **node != 1).map(|(_, broker)| broker);
    let shrinks = metric_of(stay, "kafka_server_replicamanager_isrshrinks_total");
    cluster.stop_signs(1);
    cluster.until_in_sync(&[2, 3]).await;
    cluster.produce().await;
    // Each partition lacks the broker that is gone.
    let all_miss = |missing| missing == u64::try_from(PARTITIONS).unwrap();
    cluster.until_metric("kafka_server_replicamanager_underreplicatedpartitions", &all_miss).await;
    cluster.until_metric("kafka_server_replicamanager_isrshrinks_total", &|now| now > shrinks).await;
    // A busy machine may let a lease end, and a log move.
    let answered = async |cluster: &Cluster, acks: i16| {
        let until = Instant::now() + PATIENCE;
        loop {
            let (node, _) = cluster.leaders().await[0];
            let asked = cluster.brokers.get(&node).map(connect);
            if let Some(mut client) = asked {
                let error = crate::common::produce(&mut client, TOPIC, 0, acks, batch("another")).await.0;
                if error == ErrorCode::NotEnoughReplicas.code() || !may_be_retried(error) {
                    return error;
                }
            }
            assert!(Instant::now() < until, "partition 0 takes no record");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    needs(&cluster, "3").await;
    assert_eq!(answered(&cluster, -1).await, ErrorCode::NotEnoughReplicas.code());
    assert_eq!(answered(&cluster, 1).await, 0);
    needs(&cluster, "2").await;
    assert_eq!(answered(&cluster, -1).await, 0);
    cluster.stop_signs(2);
    cluster.until_in_sync(&[3]).await;
    assert_eq!(answered(&cluster, -1).await, ErrorCode::NotEnoughReplicas.code());
    let expands = metric_of(cluster.brokers.values(), "kafka_server_replicamanager_isrexpands_total");
    cluster.start(1);
    cluster.until_in_sync(&[1, 3]).await;
    cluster.produce().await;
    cluster.until_metric("kafka_server_replicamanager_isrexpands_total", &|now| now > expands).await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// A disk that is slow does not count after 300 ms, and holds nobody up. It counts again once it is as fast as the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_disk_leaves_the_replicas_in_sync() {
    const LATE_MS: u64 = 2000;
    const LATE: Duration = Duration::from_millis(LATE_MS);
    let mut cluster = cluster_of(&[], &[("min.insync.replicas", "2")]).await;
    cluster.until_in_sync(&[1, 2, 3]).await;
    cluster.produce().await;
    let slow = cluster.late_ms[&2].clone();
    slow.store(LATE_MS, Ordering::Relaxed);
    // The broker leads its own partitions as before: each lacks no replica.
    let counts = async |cluster: &Cluster| {
        let answer = metadata(&mut cluster.client()).await;
        let mut of_others = answer.topics[0].partitions.iter().filter(|it| it.leader_id != 2).peekable();
        // On a slow machine, leases may end, and one broker may lead all partitions.
        of_others.peek().is_none() || of_others.any(|it| it.isr_nodes.contains(&2))
    };
    cluster.produce().await;
    let until = Instant::now() + PATIENCE;
    while counts(&cluster).await {
        assert!(Instant::now() < until, "the slow disk still counts");
        cluster.produce().await;
    }
    // From now on, one write of the slow disk takes longer than all twelve records together.
    let mut fastest = LATE;
    while fastest >= LATE || counts(&cluster).await {
        assert!(Instant::now() < until, "records wait for the slow disk");
        let begun = Instant::now();
        cluster.produce().await;
        fastest = fastest.min(begun.elapsed());
    }
    slow.store(0, Ordering::Relaxed);
    cluster.until_in_sync(&[1, 2, 3]).await;
    cluster.produce().await;
    cluster.read_all().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Where the settings say so, blocks for the replicas gather until there are enough bytes. Only acks=all waits with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn blocks_for_replicas_gather_where_the_settings_say_so() {
    // For longer than anybody waits here.
    let settings = &[
        ("replica.lag.time.max.ms", "600000"),
        ("replica.fetch.wait.max.ms", "200000"),
        ("replica.fetch.min.bytes", "100000"),
    ];
    let cluster = cluster_with(settings).await;
    let until = Instant::now() + PATIENCE;
    // Again where a lease ends on a slow machine, and the log moves.
    let gathered = async || {
        cluster.until_in_sync(&[1, 2, 3]).await;
        let (leader, _) = cluster.leaders().await[0];
        let send = |acks, value: &str| {
            let (mut client, sent) = (connect(&cluster.brokers[&leader]), batch(value));
            async move { crate::common::produce(&mut client, TOPIC, 0, acks, sent).await.0 }
        };
        let waits = tokio::spawn(send(-1, "little"));
        let early = send(1, "acks=1").await;
        tokio::time::sleep(SESSION).await;
        let waited = !waits.is_finished();
        let enough = send(-1, &"much".repeat(25_000)).await;
        (early, waited, enough, waits.await.unwrap())
    };
    loop {
        match gathered().await {
            (0, true, 0, 0) => break,
            (early, _, enough, late) => {
                // Just before the set changes, nothing gathers.
                assert!(Instant::now() < until, "{early} {enough} {late}");
            }
        }
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Where a replica that is needed leaves while an append waits for it, acks=all fails, and the record stays, as in Kafka.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_record_stays_whose_replicas_became_too_few() {
    let cluster = cluster_of(&[], &[("min.insync.replicas", "3")]).await;
    let until = Instant::now() + PATIENCE;
    let (mut value, mut refused) = (0, Vec::new());
    loop {
        assert!(Instant::now() < until, "no record is appended while all replicas count");
        cluster.until_in_sync(&[1, 2, 3]).await;
        let (leader, _) = cluster.leaders().await[0];
        let away = if leader == 1 { 2 } else { 1 };
        // It goes on to give signs of life, and nobody reaches it.
        let unreached = cluster.reached.lock().unwrap().remove(&port(away)).unwrap();
        let mut client = connect(&cluster.brokers[&leader]);
        let sent = batch(&format!("value {value}"));
        let error = crate::common::produce(&mut client, TOPIC, 0, -1, sent).await.0;
        cluster.reached.lock().unwrap().insert(port(away), unreached);
        if error == ErrorCode::NotEnoughReplicasAfterAppend.code() {
            break;
        }
        // On a slow machine, the replica left before.
        assert!(may_be_retried(error), "{error}");
        refused.push(format!("value {value}"));
        value += 1;
    }
    let found = loop {
        assert!(Instant::now() < until, "partition 0 cannot be read");
        cluster.until_in_sync(&[1, 2, 3]).await;
        let (leader, _) = cluster.leaders().await[0];
        if let Some(found) = read(&mut connect(&cluster.brokers[&leader]), 0).await {
            break found;
        }
    };
    let found: Vec<String> = found.into_iter().filter(|value| !refused.contains(value)).collect();
    assert_eq!(found, [format!("value {value}")]);
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Whoever still asks the old leader waits until there is another one, and is told who: no client looks for a leader that does
/// not lead yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn producers_are_led_to_the_next_leader_of_a_log_that_moves() {
    // More than a request waits.
    const HELD: Duration = Duration::from_secs(1);
    let mut cluster = cluster().await;
    // A broker may learn of a new topic after others. Each leads some of its partitions.
    cluster.produce().await;
    let admin = ClusterAdmin::open(cluster.store.clone()).unwrap();
    let now = Instant::now();
    // Who leads each partition, as its client knows it, and when it asked for what was taken last.
    let mut known: Vec<(i32, Instant)> =
        cluster.leaders().await.into_iter().map(|(node, _)| (node, now)).collect();
    let (until, mut taken) = (now + PATIENCE, BTreeMap::new());
    admin.drain(1, true).unwrap();
    // Until the partitions of broker 1 have other leaders, and each has taken a record from its last one.
    while known.iter().any(|(node, _)| *node == 1) || taken.len() < known.len() {
        assert!(Instant::now() < until, "{known:?} lead, {taken:?} took a record");
        for (partition, (leader, last)) in (0..).zip(&mut known) {
            let (mut client, asked) = (connect(&cluster.brokers[leader]), Instant::now());
            let said = crate::common::try_produce(&mut client, TOPIC, partition, -1, batch("value")).await;
            let next = said.current_leader.leader_id;
            if said.error_code == 0 {
                *last = asked;
                taken.insert(partition, *leader);
                continue;
            }
            assert_eq!(said.error_code, ErrorCode::NotLeaderOrFollower.code(), "{said:?}");
            taken.remove(&partition);
            if next >= 0 && next != *leader {
                *leader = next;
            } else {
                // On a slow machine, a log is closed or opened for longer than a request waits.
                let passed = last.elapsed();
                assert!(
                    passed >= HELD,
                    "partition {partition}: no next leader {passed:?} after {leader} led"
                );
            }
        }
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// As one whose disk is full or broken. It is alive, and would be the home of its logs for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_broker_whose_disk_takes_no_log_gives_its_logs_away() {
    let mut cluster = cluster().await;
    cluster.produce().await;
    cluster.stop_signs(1).close().await;
    cluster.until("the others lead", |leaders| leaders.iter().all(|(node, _)| *node != 1)).await;
    // A file has the name of its directory.
    std::fs::write(cluster.home.path().join((cluster.starts + 1).to_string()), "").unwrap();
    cluster.start(1);
    let admin = ClusterAdmin::open(cluster.store.clone()).unwrap();
    let until = Instant::now() + PATIENCE;
    while !admin.state().unwrap().brokers[&1].leaving {
        assert!(Instant::now() < until, "the broker keeps trying");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.until("the others lead", |leaders| leaders.iter().all(|(node, _)| *node != 1)).await;
    for _ in 0..3 {
        cluster.produce().await;
    }
    cluster.read_all().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Whoever knows the end of a stream from its records alone gives offsets out twice once they are deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn offsets_go_on_where_all_records_are_deleted() {
    let mut cluster = cluster().await;
    for (name, settings) in [(SHORT, &[("retention.ms", "1")][..]), (LONG, &[])] {
        let created = try_create_topic(&mut cluster.client(), name, PARTITIONS, settings).await;
        assert_eq!(created.error_code, 0);
    }
    let mut ends = [[0_i64; PARTITIONS.unsigned_abs() as usize]; 2];
    // A record that was answered with acks=1 may be named at once.
    let appended = async |client: &mut Connection| {
        let (error, base, _) = crate::common::produce(client, LONG, 0, 1, batch("short")).await;
        (error, base)
    };
    ends[1][0] = cluster.any_broker(LONG, appended).await + 1;
    delete_records(&cluster, LONG, 0, ends[1][0]).await;
    for round in 0..6 {
        if round == 3 {
            for (partition, end) in (0..).zip(ends[1]) {
                delete_records(&cluster, LONG, partition, end).await;
            }
            // Everything that is expired is deleted by now, also in the store.
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.stop_signs(1).close().await;
            for (partition, end) in (0..).zip(ends[1]) {
                assert_eq!(start_of(&cluster, LONG, partition).await, end, "records came back");
            }
        }
        for (name, ends) in [SHORT, LONG].into_iter().zip(&mut ends) {
            for (partition, end) in (0..).zip(ends) {
                let base = cluster
                    .any_broker(name, async |client| {
                        let (error, base, _) =
                            crate::common::produce(client, name, partition, -1, batch("short")).await;
                        (error, base)
                    })
                    .await;
                assert_eq!(
                    base, *end,
                    "an offset of {name}-{partition} was left out, or was given out before"
                );
                *end = base + 1;
            }
        }
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// A group's coordinator shows how far the group is behind, also where another broker leads the partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_lag_of_groups_is_shown_whoever_leads_their_partitions() {
    const GROUPS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let cluster = cluster().await;
    assert_eq!(try_create_topic(&mut cluster.client(), LONG, 1, &[]).await.error_code, 0);
    for _ in 0..3 {
        let produce = async |client: &mut Connection| {
            (crate::common::produce(client, LONG, 0, -1, batch("one")).await.0, ())
        };
        cluster.any_broker("a record", produce).await;
    }
    let mut coordinators = BTreeSet::new();
    for group in GROUPS {
        coordinators.insert(commit(&cluster, group, 1).await);
    }
    assert_eq!(coordinators.len(), 3, "every broker coordinates a group");
    let shown = |name: &str| -> Vec<u64> {
        let of = |broker: &Arc<Broker>| {
            let (mut registry, mut text) = (Registry::default(), String::new());
            broker.register_metrics(&mut registry);
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(LONG));
            lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect::<Vec<u64>>()
        };
        cluster.brokers.values().flat_map(of).collect()
    };
    assert_eq!(shown("kafka_consumergroup_current_offset{"), [1; GROUPS.len()]);
    let until = Instant::now() + PATIENCE;
    while shown("kafka_consumergroup_lag{") != [2; GROUPS.len()] {
        assert!(Instant::now() < until, "{:?}", shown("kafka_consumergroup_lag{"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Whichever broker deletes a topic, the coordinators of all groups forget its offsets.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn offsets_of_a_deleted_topic_are_forgotten_by_all_brokers() {
    const GROUPS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let cluster = cluster().await;
    assert_eq!(try_create_topic(&mut cluster.client(), LONG, 1, &[]).await.error_code, 0);
    let mut coordinators = BTreeSet::new();
    for group in GROUPS {
        coordinators.insert(commit(&cluster, group, 5).await);
        assert_eq!(committed(&cluster, group).await, 5);
    }
    assert_eq!(coordinators.len(), 3, "every broker coordinates a group");
    let request = m::DeleteTopicsRequest {
        topic_names: vec![Text::from_static(LONG)],
        timeout_ms: 10_000,
        ..Default::default()
    };
    let answer: m::DeleteTopicsResponse = call(&mut cluster.client(), 5, &request).await;
    assert_eq!(answer.responses[0].error_code, 0);
    assert_eq!(try_create_topic(&mut cluster.client(), LONG, 1, &[]).await.error_code, 0);
    let until = Instant::now() + PATIENCE;
    for group in GROUPS {
        while committed(&cluster, group).await != -1 {
            assert!(Instant::now() < until, "{group} has an offset of a topic that is gone");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Commits an offset of a group in `LONG`. Returns the group's coordinator.
async fn commit(cluster: &Cluster, group: &'static str, committed_offset: i64) -> i32 {
    use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    // The coordinator's partition is made, and opened.
    let until = Instant::now() + PATIENCE;
    let node = loop {
        assert!(Instant::now() < until, "nobody coordinates {group}");
        match coordinator(&mut cluster.client(), GROUP, group).await {
            Some(node) => break node,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let partitions = vec![OffsetCommitRequestPartition { committed_offset, ..Default::default() }];
    let topic = OffsetCommitRequestTopic { name: Text::from_static(LONG), partitions, ..Default::default() };
    let request = m::OffsetCommitRequest {
        group_id: Text::from_static(group),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    cluster
        .any_broker(group, async |client| {
            let answer: m::OffsetCommitResponse = call(client, 8, &request).await;
            (answer.topics[0].partitions[0].error_code, ())
        })
        .await;
    node
}

/// The committed offset of a group in `LONG`.
async fn committed(cluster: &Cluster, group: &'static str) -> i64 {
    use m::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
    let topic = OffsetFetchRequestTopics {
        name: Text::from_static(LONG),
        partition_indexes: vec![0],
        ..Default::default()
    };
    let of_group = OffsetFetchRequestGroup {
        group_id: Text::from_static(group),
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = m::OffsetFetchRequest { groups: vec![of_group], ..Default::default() };
    cluster
        .any_broker(group, async |client| {
            let answer: m::OffsetFetchResponse = call(client, 8, &request).await;
            let group = &answer.groups[0];
            let offset = group.topics.first().map_or(-1, |topic| topic.partitions[0].committed_offset);
            (group.error_code, offset)
        })
        .await
}

async fn delete_records(cluster: &Cluster, name: &'static str, partition: i32, offset: i64) {
    use m::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
    let partitions = vec![DeleteRecordsPartition { partition_index: partition, offset }];
    let topics = vec![DeleteRecordsTopic { name: Text::from_static(name), partitions }];
    let request = m::DeleteRecordsRequest { topics, timeout_ms: 10_000 };
    let start = cluster
        .any_broker(name, async |client| {
            let answer: m::DeleteRecordsResponse = call(client, 2, &request).await;
            let partition = &answer.topics[0].partitions[0];
            (partition.error_code, partition.low_watermark)
        })
        .await;
    assert_eq!(start, offset);
}

async fn start_of(cluster: &Cluster, name: &'static str, partition: i32) -> i64 {
    use m::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    let asked = ListOffsetsPartition { partition_index: partition, timestamp: -2, ..Default::default() };
    let topics = vec![ListOffsetsTopic { name: Text::from_static(name), partitions: vec![asked] }];
    let request = m::ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
    cluster
        .any_broker(name, async |client| {
            let answer: m::ListOffsetsResponse = call(client, 5, &request).await;
            let partition = &answer.topics[0].partitions[0];
            (partition.error_code, partition.offset)
        })
        .await
}

/// A transaction with records in the partitions of all brokers. Its coordinator is one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_span_brokers() {
    let cluster = cluster().await;
    let mut seen = 0;
    for (version, committed) in [(V1, true), (V2, true), (V1, false), (V2, false)] {
        let until = Instant::now() + PATIENCE;
        let id = if version.end == V1.end { "one" } else { "two" };
        let mut producer = transactional(&cluster, id, version).await;
        let leaders = cluster.leaders().await;
        for partition in 0..PARTITIONS {
            let at = partition.unsigned_abs() as usize;
            if version.produce < V2.produce {
                assert_eq!(producer.add(TOPIC, partition).await, 0);
            }
            let to_coordinator =
                std::mem::replace(&mut producer.connection, connect(&cluster.brokers[&leaders[at].0]));
            loop {
                let error = producer.send_alone(TOPIC, partition, &["in a transaction"]).await;
                if error == 0 {
                    break;
                }
                assert!(Instant::now() < until && may_be_retried(error), "{:?}", ErrorCode::from_code(error));
            }
            producer.connection = to_coordinator;
        }
        assert_eq!(producer.end(committed).await, 0);
        seen += usize::from(committed);
        for partition in 0..PARTITIONS {
            let (node, _) = leaders[partition.unsigned_abs() as usize];
            let mut reader = connect(&cluster.brokers[&node]);
            loop {
                let found = read_committed(&mut reader, TOPIC, partition, 0, true).await;
                // The markers of other brokers come after the answer.
                if found.last_stable_offset == found.high_watermark && found.values.len() >= seen {
                    assert_eq!(found.values.len(), seen, "{version:?} {committed}");
                    break;
                }
                assert!(Instant::now() < until, "the transaction stays open: {found:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// A consumer of a rack as it is told about a partition by one broker. `committed`: it sees no open or aborted transactions.
async fn fetched_in(
    broker: &Arc<Broker>,
    (partition, offset): (i32, i64),
    rack: &str,
    committed: bool,
    wait_ms: i32,
) -> m::fetch_response::PartitionData {
    let request = m::FetchRequest {
        rack_id: Text::copied(rack),
        isolation_level: committed.into(),
        ..fetch_request((0, -1), wait_ms, vec![fetch_of(TOPIC, partition, offset)])
    };
    let mut answer: m::FetchResponse = call(&mut connect(broker), 12, &request).await;
    answer.responses.remove(0).partitions.remove(0)
}

fn bytes_of(data: &m::fetch_response::PartitionData) -> Bytes {
    data.records.as_ref().map(|records| records.to_bytes()).unwrap_or_default()
}

/// The bytes that consumers got from copies of other brokers' logs.
fn read_from_copies(broker: &Arc<Broker>) -> u64 {
    metric_of([broker].into_iter(), "mainstem_copies_fetched_bytes_total")
}

/// The sum of a metric over brokers.
fn metric_of<'a>(brokers: impl Iterator<Item = &'a Arc<Broker>>, name: &str) -> u64 {
    let of = |broker: &Arc<Broker>| {
        let mut registry = Registry::default();
        broker.register_metrics(&mut registry);
        metric(&registry, name)
    };
    brokers.map(of).sum()
}

const BY_RACK: (&str, &str) =
    ("replica.selector.class", "org.apache.kafka.common.replica.RackAwareReplicaSelector");

/// KIP-392: the leader names the broker in the consumer's rack, which gives what the leader would give, from its copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn consumers_read_from_the_copies_in_their_rack() {
    const NOT_LEADER: i16 = ErrorCode::NotLeaderOrFollower.code();
    let mut cluster = cluster_with(&[BY_RACK, ("object.store.upload.interval.ms", "600000")]).await;
    cluster.until_in_sync(&[1, 2, 3]).await;
    for _ in 0..3 {
        cluster.produce().await;
    }
    let mut producer = transactional(&cluster, "one", V1).await;
    for (value, commits) in [("aborted", false), ("committed", true), ("open", true)] {
        assert_eq!(producer.add(TOPIC, 0).await, 0);
        send(&cluster, &mut producer, value).await;
        if value != "open" {
            assert_eq!(producer.end(commits).await, 0);
        }
    }
    let until = Instant::now() + PATIENCE;
    // The markers of another broker come after the answer.
    while seen(&cluster, 0).await.last_stable_offset < 7 {
        assert!(Instant::now() < until, "{:?}", seen(&cluster, 0).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let leaders = cluster.leaders().await;
    for (partition, (leader, _)) in (0..).zip(leaders) {
        for (node, broker) in &cluster.brokers {
            let (rack, at_leader) = (format!("rack {node}"), &cluster.brokers[&leader]);
            // Only what has no records may wait.
            let told = fetched_in(at_leader, (partition, 0), &rack, false, 60_000);
            let told = tokio::time::timeout(PATIENCE, told).await.unwrap();
            let nearest = if *node == leader { -1 } else { *node };
            assert_eq!((told.error_code, told.preferred_read_replica), (0, nearest));
            assert_eq!(bytes_of(&told).is_empty(), *node != leader);
            let before = read_from_copies(broker);
            for committed in [false, true] {
                let expected = fetched_in(at_leader, (partition, 0), "", committed, 0).await;
                let found = fetched_in(broker, (partition, 0), &rack, committed, 0).await;
                assert!(!bytes_of(&found).is_empty());
                assert_eq!(found, expected, "partition {partition} of {leader}, read at {node}");
            }
            assert_eq!(read_from_copies(broker) > before, *node != leader);
            // Those of other racks, or of none, have to go to the leader.
            for rack in ["", "rack", "rack 7"] {
                let found = fetched_in(broker, (partition, 0), rack, false, 0).await;
                assert_eq!(found.error_code, if *node == leader { 0 } else { NOT_LEADER }, "{rack:?}");
                assert_eq!(found.preferred_read_replica, -1);
            }
            let behind = fetched_in(broker, (partition, 1000), &rack, false, 0).await;
            assert_eq!(behind.error_code, ErrorCode::OffsetOutOfRange.code());
        }
    }
    // A fetch waits for the next record, and for no other one.
    let (leader, _) = cluster.leaders().await[1];
    let (node, broker) = cluster.brokers.iter().find(|(node, _)| **node != leader).unwrap();
    let (rack, broker) = (format!("rack {node}"), broker.clone());
    let end = fetched_in(&broker, (1, 0), &rack, false, 0).await.high_watermark;
    let empty = fetched_in(&broker, (1, end), &rack, false, 20).await;
    assert_eq!((empty.error_code, bytes_of(&empty).len(), empty.high_watermark), (0, 0, end));
    let waits = tokio::spawn(async move { fetched_in(&broker, (1, end), &rack, false, 60_000).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waits.is_finished());
    cluster.produce().await;
    assert!(!bytes_of(&tokio::time::timeout(PATIENCE, waits).await.unwrap().unwrap()).is_empty());
    // So does one in a session: in fetches that name nothing, it reads on where it was.
    let (node, broker) = cluster.brokers.iter().find(|(node, _)| **node != leader).unwrap();
    let (rack, mut consumer) = (format!("rack {node}"), connect(broker));
    let (mut session, mut next) = ((0, 0), 0);
    for (number, names) in [true, true, false, false, true].into_iter().enumerate() {
        let (records, produces) = (number == 0 || number >= 3, number >= 3);
        let topics = if names { vec![fetch_of(TOPIC, 1, next)] } else { vec![] };
        let wait_ms = if records { 60_000 } else { 20 };
        let request =
            m::FetchRequest { rack_id: Text::copied(&rack), ..fetch_request(session, wait_ms, topics) };
        let answer = call::<_, m::FetchResponse>(&mut consumer, 12, &request);
        let produce = async {
            if produces {
                cluster.produce().await;
            }
        };
        let (answer, ()) = tokio::join!(answer, produce);
        session = (answer.session_id, session.1 + 1);
        let data = answer.responses.first().map(|topic| &topic.partitions[0]);
        assert!(data.is_none_or(|data| data.error_code == 0), "{data:?}");
        assert_eq!(data.is_some_and(|data| !bytes_of(data).is_empty()), records, "{session:?}");
        next = data.map_or(next, |data| data.high_watermark);
    }
    // Without its leader nobody knows what may be read.
    let gone = cluster.stop_signs(leader);
    cluster.reached.lock().unwrap().remove(&port(leader));
    let (node, broker) = cluster.brokers.iter().next().unwrap();
    assert_eq!(fetched_in(broker, (1, 0), &format!("rack {node}"), false, 0).await.error_code, NOT_LEADER);
    gone.close().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// What is in the object store has no copies: consumers are not sent to them, and those that are there get it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn consumers_get_what_has_no_copies_any_more() {
    let mut cluster = cluster_with(&[BY_RACK, ("object.store.upload.interval.ms", "20")]).await;
    cluster.until_in_sync(&[1, 2, 3]).await;
    cluster.produce().await;
    let leaders = cluster.leaders().await;
    let (leader, _) = leaders[0];
    let (node, broker) = cluster.brokers.iter().find(|(node, _)| **node != leader).unwrap();
    let rack = format!("rack {node}");
    let until = Instant::now() + PATIENCE;
    let stored = loop {
        let found = fetched_in(&cluster.brokers[&leader], (0, 0), &rack, false, 0).await;
        if found.preferred_read_replica == -1 {
            break found;
        }
        assert!(Instant::now() < until, "it is never stored");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let before = read_from_copies(broker);
    assert!(!bytes_of(&stored).is_empty());
    assert_eq!(fetched_in(broker, (0, 0), &rack, false, 0).await, stored);
    assert_eq!(read_from_copies(broker), before);
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Transactions that had ended are not ended again by the next owner, and an open one stays open, where only copies have them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_outlive_their_owners_in_copies() {
    let late = &[("object.store.upload.interval.ms", "600000")];
    let mut cluster = cluster_with(late).await;
    cluster.until_in_sync(&[1, 2, 3]).await;
    let mut producer = transactional(&cluster, "one", V1).await;
    for (value, ends) in [("a", true), ("b", true), ("c", false)] {
        assert_eq!(producer.add(TOPIC, 0).await, 0);
        send(&cluster, &mut producer, value).await;
        if ends {
            assert_eq!(producer.end(true).await, 0);
        }
    }
    let is_open = |seen: &Seen| seen.high_watermark == 5 && seen.last_stable_offset == 4;
    let until = Instant::now() + PATIENCE;
    // The markers of another broker come after the answer.
    while !is_open(&seen(&cluster, 0).await) {
        assert!(Instant::now() < until, "{:?}", seen(&cluster, 0).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (leader, _) = cluster.leaders().await[0];
    let gone = cluster.stop_signs(leader);
    cluster.until("others lead", |leaders| leaders.iter().all(|(node, _)| *node != leader)).await;
    let found = read_again(&cluster, false).await;
    assert!(is_open(&found), "{found:?}");
    loop {
        assert!(Instant::now() < until, "the transaction cannot be aborted");
        producer.connection = coordinator_of(&cluster, "one").await;
        let error = producer.end(false).await;
        if error == 0 {
            break;
        }
        let waits = error == ErrorCode::ConcurrentTransactions.code();
        assert!(waits || may_be_retried(error), "{:?}", ErrorCode::from_code(error));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    loop {
        let found = read_again(&cluster, true).await;
        if found.last_stable_offset == 6 {
            assert_eq!((found.high_watermark, &found.values[..]), (6, &["a".to_owned(), "b".to_owned()][..]));
            break;
        }
        assert!(Instant::now() < until, "{found:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gone.close().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// What is in partition 0 of `TOPIC`, once its leader has it open.
async fn read_again(cluster: &Cluster, committed: bool) -> Seen {
    let until = Instant::now() + PATIENCE;
    loop {
        let (leader, _) = cluster.leaders().await[0];
        let mut client = connect(&cluster.brokers[&leader]);
        if read(&mut client, 0).await.is_some() {
            return read_committed(&mut client, TOPIC, 0, 0, committed).await;
        }
        assert!(Instant::now() < until, "nobody has partition 0");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A partition moves with its records, start, producers and transactions, while clients go on, and whichever brokers die.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_partition_moves_to_another_broker_with_everything_that_it_has() {
    let mut cluster = cluster().await;
    for _ in 0..5 {
        cluster.produce().await;
    }
    // A partition with a start, one of whose records is left, and one of which none is.
    let created = try_create_topic(&mut cluster.client(), LONG, 2, &[]).await;
    assert_eq!(created.error_code, 0);
    let mut last = [0; 2];
    for (sequence, value) in (0..).zip(["a", "b", "c"]) {
        for partition in 0..2 {
            last[partition as usize] = idempotent(&cluster, partition, sequence, value).await;
        }
    }
    delete_records(&cluster, LONG, 0, 2).await;
    delete_records(&cluster, LONG, 1, 3).await;
    // It moves although nothing is in it.
    for to in [1, 2] {
        assert_eq!(reassign(&cluster, LONG, 1, Some(to)).await, ErrorCode::None);
        let until = Instant::now() + PATIENCE;
        while !reassigning(&cluster).await.is_empty() {
            assert!(Instant::now() < until, "an empty partition does not move");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(start_of(&cluster, LONG, 1).await, 3);
    }
    // As in Kafka, a producer is known by its records, and none is left.
    last[1] = idempotent(&cluster, 1, 2, "c").await;
    assert_eq!(last[1], 3);
    // An open transaction.
    let mut producer = transactional(&cluster, "one", V1).await;
    assert_eq!(producer.add(TOPIC, 0).await, 0);
    send(&cluster, &mut producer, "in a transaction").await;

    for (round, kill) in [None, Some(true), Some(false), None].into_iter().enumerate() {
        let leaders = cluster.leaders().await;
        let (leader, epoch) = leaders[0];
        let to = leader % 3 + 1;
        for (topic, partition) in [(TOPIC, 0), (LONG, 0), (LONG, 1)] {
            assert_eq!(
                reassign(&cluster, topic, partition, Some(to)).await,
                ErrorCode::None,
                "round {round}"
            );
        }
        if round == 0 {
            assert_eq!(reassign(&cluster, TOPIC, 1, Some(9)).await, ErrorCode::InvalidReplicaAssignment);
            assert_eq!(reassign(&cluster, TOPIC, 1, None).await, ErrorCode::NoReassignmentInProgress);
        }
        let dead = match kill {
            Some(true) => Some(leader),
            Some(false) => Some(to),
            None => None,
        };
        if let Some(dead) = dead {
            tokio::time::sleep(Duration::from_millis(60)).await;
            cluster.stop_signs(dead).close().await;
        }
        for _ in 0..3 {
            cluster.produce().await;
        }
        if let Some(dead) = dead {
            cluster.start(dead);
        }
        let until = Instant::now() + PATIENCE;
        while !reassigning(&cluster).await.is_empty() {
            assert!(Instant::now() < until, "{:?} still move", reassigning(&cluster).await);
            cluster.produce().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        cluster.until("the other broker leads", |leaders| leaders[0].0 == to && leaders[0].1 > epoch).await;
        cluster.produce().await;
        cluster.read_all_but(&["in a transaction"]).await;
        assert_eq!((start_of(&cluster, LONG, 0).await, start_of(&cluster, LONG, 1).await), (2, 3));
        // The last batch of the producer is a duplicate, and its next one goes on.
        for partition in 0..2 {
            let at = last[partition as usize];
            let sequence = 2 + i32::try_from(round).unwrap();
            assert_eq!(
                idempotent(&cluster, partition, sequence, "c").await,
                at,
                "a duplicate of {LONG}-{partition}"
            );
            let next = idempotent(&cluster, partition, sequence + 1, "next").await;
            assert_eq!(next, at + 1);
            last[partition as usize] = next;
        }
    }
    // The transaction is still open, and is aborted where its partition is now.
    let (leader, _) = cluster.leaders().await[0];
    let mut reader = connect(&cluster.brokers[&leader]);
    let found = read_committed(&mut reader, TOPIC, 0, 0, true).await;
    assert!(found.last_stable_offset < found.high_watermark, "{found:?}");
    let until = Instant::now() + PATIENCE;
    loop {
        producer.connection = coordinator_of(&cluster, "one").await;
        let error = producer.end(false).await;
        if error == 0 {
            break;
        }
        assert!(Instant::now() < until && may_be_retried(error), "{:?}", ErrorCode::from_code(error));
    }
    loop {
        let found = read_committed(&mut reader, TOPIC, 0, 0, true).await;
        if found.last_stable_offset == found.high_watermark {
            assert!(!found.values.iter().any(|value| *value == "in a transaction"), "{found:?}");
            break;
        }
        assert!(Instant::now() < until, "the transaction stays open: {found:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A move that is given up leaves the partition where it is.
    let (leader, _) = cluster.leaders().await[0];
    assert_eq!(reassign(&cluster, TOPIC, 0, Some(leader % 3 + 1)).await, ErrorCode::None);
    let given_up = reassign(&cluster, TOPIC, 0, None).await;
    assert!(matches!(given_up, ErrorCode::None | ErrorCode::NoReassignmentInProgress), "{given_up:?}");
    cluster.produce().await;
    cluster.read_all_but(&["in a transaction"]).await;
    assert!(reassigning(&cluster).await.is_empty());
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Asks a broker to move a partition to another one, or to give the move up.
/// New partitions are at the brokers that were chosen for them from the beginning: nothing moves there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn new_partitions_begin_at_the_brokers_that_were_chosen() {
    use m::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
    let cluster = cluster().await;
    let mut client = cluster.client();
    let chosen = [vec![3], vec![1, 2], vec![3, 1], vec![2]];
    let assignment = |(partition_index, broker_ids): (i32, &Vec<i32>)| CreatableReplicaAssignment {
        partition_index,
        broker_ids: broker_ids.clone(),
    };
    let topic = CreatableTopic {
        name: Text::from_static(SHORT),
        num_partitions: -1,
        replication_factor: -1,
        assignments: (0..).zip(&chosen).map(assignment).collect(),
        ..Default::default()
    };
    let request = m::CreateTopicsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() };
    let answer: m::CreateTopicsResponse = call(&mut client, 7, &request).await;
    assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0].error_message);
    let led = async |client: &mut Connection| {
        let answer = metadata_of(client, SHORT).await;
        let mut led: Vec<_> = answer.topics[0]
            .partitions
            .iter()
            .map(|at| (at.partition_index, at.leader_id, at.leader_epoch))
            .collect();
        led.sort_unstable();
        led
    };
    let before = led(&mut client).await;
    assert_eq!(before.iter().map(|(_, leader, _)| *leader).collect::<Vec<_>>(), [3, 1, 3, 2]);
    assert!(reassigning(&cluster).await.is_empty());
    let topic = m::create_partitions_request::CreatePartitionsTopic {
        name: Text::from_static(SHORT),
        count: 6,
        assignments: Some(
            [vec![2], vec![1]]
                .map(|broker_ids| m::create_partitions_request::CreatePartitionsAssignment { broker_ids })
                .into(),
        ),
    };
    let request = m::CreatePartitionsRequest { topics: vec![topic], timeout_ms: 5000, validate_only: false };
    let answer: m::CreatePartitionsResponse = call(&mut client, 3, &request).await;
    assert_eq!(answer.results[0].error_code, 0, "{:?}", answer.results[0].error_message);
    let after = led(&mut client).await;
    assert_eq!(after[..4], before[..], "nothing has moved");
    assert_eq!(after[4..].iter().map(|(_, leader, _)| *leader).collect::<Vec<_>>(), [2, 1]);
    assert!(reassigning(&cluster).await.is_empty());
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

async fn reassign(cluster: &Cluster, topic: &'static str, partition: i32, to: Option<i32>) -> ErrorCode {
    use m::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
    let partitions =
        vec![ReassignablePartition { partition_index: partition, replicas: to.map(|to| vec![to]) }];
    let topics = vec![ReassignableTopic { name: Text::from_static(topic), partitions }];
    let request = m::AlterPartitionReassignmentsRequest { timeout_ms: 10_000, topics, ..Default::default() };
    let answer: m::AlterPartitionReassignmentsResponse = call(&mut cluster.client(), 1, &request).await;
    assert_eq!(answer.error_code, 0);
    ErrorCode::from_code(answer.responses[0].partitions[0].error_code).unwrap()
}

/// The partitions that move, as a broker lists them.
async fn reassigning(cluster: &Cluster) -> Vec<(String, i32)> {
    let request = m::ListPartitionReassignmentsRequest { timeout_ms: 10_000, ..Default::default() };
    let answer: m::ListPartitionReassignmentsResponse = call(&mut cluster.client(), 0, &request).await;
    let of = |topic: &m::list_partition_reassignments_response::OngoingTopicReassignment| {
        let indexes = topic.partitions.iter().map(|partition| partition.partition_index);
        indexes.map(|index| (topic.name.to_string(), index)).collect::<Vec<_>>()
    };
    answer.topics.iter().flat_map(of).collect()
}

/// Appends a record of an idempotent producer to `LONG`. Returns its offset.
async fn idempotent(cluster: &Cluster, partition: i32, sequence: i32, value: &str) -> i64 {
    let mut builder = BatchBuilder::new(Compression::None).producer(4711, 0, sequence);
    builder.push(Timestamp(now_ms()), None, Some(value.as_bytes()));
    let batch = builder.finish();
    cluster
        .any_broker(LONG, async |client| {
            let (error, base, _) = crate::common::produce(client, LONG, partition, -1, batch.clone()).await;
            (error, base)
        })
        .await
}

/// A transactional producer, with a connection to its coordinator.
async fn transactional(cluster: &Cluster, id: &'static str, version: Version) -> Producer {
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "nobody coordinates {id}");
        let (connection, sequences) = (coordinator_of(cluster, id).await, BTreeMap::new());
        let mut producer =
            Producer { connection, version, transactional_id: id, id: -1, epoch: -1, sequences };
        let error = producer.initialize(60_000).await;
        if error == 0 {
            return producer;
        }
        // The coordinator may wait for the answers to the markers of the transaction before.
        let waits = error == ErrorCode::ConcurrentTransactions.code();
        assert!(waits || may_be_retried(error), "{:?}", ErrorCode::from_code(error));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn coordinator_of(cluster: &Cluster, id: &'static str) -> Connection {
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "nobody coordinates {id}");
        let node = coordinator(&mut cluster.client(), TRANSACTION, id).await;
        if let Some(broker) = node.and_then(|node| cluster.brokers.get(&node)) {
            return connect(broker);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Appends a record of a transaction to partition 0 of `TOPIC`.
async fn send(cluster: &Cluster, producer: &mut Producer, value: &'static str) {
    assert_eq!(send_to(cluster, producer, 0, value).await, ErrorCode::None);
}

/// Sends a record to the leader of a partition of `TOPIC`, until the answer is none that clients repeat it for.
async fn send_to(
    cluster: &Cluster,
    producer: &mut Producer,
    partition: i32,
    value: &'static str,
) -> ErrorCode {
    let until = Instant::now() + PATIENCE;
    let (leader, _) = cluster.leaders().await[partition.unsigned_abs() as usize];
    let to_coordinator = std::mem::replace(&mut producer.connection, connect(&cluster.brokers[&leader]));
    let error = loop {
        let error = producer.send_alone(TOPIC, partition, &[value]).await;
        let waits = error == ErrorCode::ConcurrentTransactions.code();
        if !waits && !may_be_retried(error) {
            break error;
        }
        assert!(Instant::now() < until, "{:?}", ErrorCode::from_code(error));
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    producer.connection = to_coordinator;
    ErrorCode::from_code(error).unwrap()
}

/// What is in a partition of `TOPIC`, as its leader says.
async fn seen(cluster: &Cluster, partition: i32) -> Seen {
    let (leader, _) = cluster.leaders().await[partition.unsigned_abs() as usize];
    read_committed(&mut connect(&cluster.brokers[&leader]), TOPIC, partition, 0, false).await
}

/// The leader of a partition asks the coordinator, which is another broker, and appends nothing that is not in a transaction
/// (KIP-890).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leaders_refuse_what_the_coordinator_on_another_broker_does_not_know() {
    const NOTHING: Seen = Seen { values: Vec::new(), last_stable_offset: 0, high_watermark: 0 };
    const ABORTABLE: ErrorCode = ErrorCode::TransactionAbortable;
    let cluster = cluster().await;
    let mut old = transactional(&cluster, "one", V1).await;
    let node = coordinator(&mut cluster.client(), TRANSACTION, "one").await.unwrap();
    let leaders = cluster.leaders().await;
    let elsewhere = (0..).zip(&leaders).filter(|(_, (leader, _))| *leader != node);
    let elsewhere: Vec<i32> = elsewhere.map(|(partition, _)| partition).collect();
    let [inside, outside, other, ..] = elsewhere[..] else { panic!("{node} leads all of {leaders:?}") };
    // No transaction is open. Then one is, in another partition.
    assert_eq!(send_to(&cluster, &mut old, outside, "no transaction").await, ABORTABLE);
    assert_eq!(old.add(TOPIC, inside).await, 0);
    assert_eq!(send_to(&cluster, &mut old, inside, "inside").await, ErrorCode::None);
    assert_eq!(send_to(&cluster, &mut old, outside, "outside").await, ABORTABLE);
    assert_eq!(seen(&cluster, outside).await, NOTHING);
    assert_eq!(old.end(true).await, 0);
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        let found = seen(&cluster, inside).await;
        if found.last_stable_offset == found.high_watermark {
            break found;
        }
        assert!(Instant::now() < until, "the transaction stays open: {found:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(ended, Seen { values: vec!["inside".into()], last_stable_offset: 2, high_watermark: 2 });
    assert_eq!(send_to(&cluster, &mut old, inside, "too late").await, ABORTABLE);
    assert_eq!(seen(&cluster, inside).await, ended);

    // The next producer adds its partitions by sending. The coordinator fences the one before.
    let mut new = transactional(&cluster, "one", V2).await;
    assert_eq!(send_to(&cluster, &mut old, outside, "fenced").await, ErrorCode::InvalidProducerEpoch);
    assert_eq!(seen(&cluster, outside).await, NOTHING);
    assert_eq!(send_to(&cluster, &mut new, inside, "of the next").await, ErrorCode::None);
    let before = new.epoch;
    assert_eq!(new.end(true).await, 0);
    new.epoch = before;
    assert_eq!(send_to(&cluster, &mut new, other, "too late").await, ErrorCode::InvalidProducerEpoch);
    assert_eq!(seen(&cluster, other).await, NOTHING);
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Each broker gives ids out of blocks of its own, and another process of it begins a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_producer_id_is_given_out_twice() {
    // More than a block for each broker, in all rounds.
    const TASKS: usize = 4;
    const IDS_OF_A_TASK: usize = 300;
    let mut cluster = cluster().await;
    let mut given = BTreeSet::new();
    for (node, transactional_id) in [(1, "a"), (2, "b"), (3, "c")] {
        let of_a_broker = |broker: &Arc<Broker>| {
            let client = || {
                let mut client = connect(broker);
                tokio::spawn(async move {
                    let mut ids = Vec::new();
                    for _ in 0..IDS_OF_A_TASK {
                        ids.push(producer_id(&mut client).await);
                    }
                    ids
                })
            };
            (0..TASKS).map(|_| client()).collect::<Vec<_>>()
        };
        let tasks: Vec<_> = cluster.brokers.values().flat_map(of_a_broker).collect();
        let mut ids = vec![transactional(&cluster, transactional_id, V1).await.id];
        for task in tasks {
            ids.extend(task.await.unwrap());
        }
        assert_eq!(ids.len(), 1 + 3 * TASKS * IDS_OF_A_TASK);
        for id in ids {
            assert!(id >= 0 && given.insert(id), "{id} was given out before");
        }
        // One process ends in order, the others as if they were killed.
        match node {
            1 => cluster.brokers.remove(&node).unwrap().close().await,
            _ => cluster.stop_signs(node).close().await,
        }
        cluster.start(node);
    }
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// A new producer id, for an idempotent producer.
async fn producer_id(client: &mut Connection) -> i64 {
    let request = m::InitProducerIdRequest { transactional_id: None, ..Default::default() };
    let answer: m::InitProducerIdResponse = call(client, 5, &request).await;
    assert_eq!((answer.error_code, answer.producer_epoch), (0, 0));
    answer.producer_id
}

/// The partitions of internal topics move, too, and their coordinators with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn coordinators_follow_the_partitions_that_move() {
    let cluster = cluster().await;
    assert_eq!(try_create_topic(&mut cluster.client(), LONG, 1, &[]).await.error_code, 0);
    commit(&cluster, "a", 5).await;
    let mut producer = transactional(&cluster, "one", V1).await;
    for (topic, key_type, id) in
        [("__consumer_offsets", GROUP, "a"), ("__transaction_state", TRANSACTION, "one")]
    {
        let Some(before) = coordinator(&mut cluster.client(), key_type, id).await else {
            panic!("nobody coordinates {id}")
        };
        let to = before % 3 + 1;
        for partition in 0..50 {
            assert_eq!(reassign(&cluster, topic, partition, Some(to)).await, ErrorCode::None);
        }
        let until = Instant::now() + PATIENCE;
        while !reassigning(&cluster).await.is_empty() {
            assert!(Instant::now() < until, "{:?} still move", reassigning(&cluster).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while coordinator(&mut cluster.client(), key_type, id).await != Some(to) {
            assert!(Instant::now() < until, "{id} is coordinated elsewhere");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(committed(&cluster, "a").await, 5);
    commit(&cluster, "a", 6).await;
    assert_eq!(committed(&cluster, "a").await, 6);
    let until = Instant::now() + PATIENCE;
    loop {
        producer.connection = coordinator_of(&cluster, "one").await;
        let error = producer.add(TOPIC, 0).await;
        if error == 0 {
            break;
        }
        assert!(Instant::now() < until && may_be_retried(error), "{:?}", ErrorCode::from_code(error));
    }
    assert_eq!(producer.end(true).await, 0);
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// A coordinator that lost its partition may still send markers. Whoever leads a partition later refuses them as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_leads_next_knows_the_coordinator_of_the_last_marker() {
    let mut cluster = cluster().await;
    assert_eq!(end_by_marker(&cluster, 7).await, ErrorCode::None);
    for _ in 0..2 {
        let (leader, _) = cluster.leaders().await[0];
        cluster.stop_signs(leader).close().await;
        cluster.until("another leads", |leaders| leaders[0].0 != leader).await;
        assert_eq!(end_by_marker(&cluster, 6).await, ErrorCode::TransactionCoordinatorFenced);
        // A record behind the marker: the object with the marker is not the newest one.
        cluster.produce().await;
        cluster.start(leader);
        cluster.until("it leads again", |leaders| leaders[0].0 == leader).await;
        assert_eq!(end_by_marker(&cluster, 6).await, ErrorCode::TransactionCoordinatorFenced);
    }
    assert_eq!(end_by_marker(&cluster, 7).await, ErrorCode::None);
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Ends a transaction of a producer in partition 0, as the coordinator of an epoch does.
async fn end_by_marker(cluster: &Cluster, coordinator_epoch: i32) -> ErrorCode {
    use m::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
    let topics = vec![WritableTxnMarkerTopic { name: Text::from_static(TOPIC), partition_indexes: vec![0] }];
    let marker = WritableTxnMarker {
        producer_id: 77,
        producer_epoch: 3,
        coordinator_epoch,
        topics,
        ..Default::default()
    };
    let request = m::WriteTxnMarkersRequest { markers: vec![marker] };
    let refused = ErrorCode::TransactionCoordinatorFenced.code();
    let error = cluster
        .any_broker(TOPIC, async |client| {
            let answer: m::WriteTxnMarkersResponse = call(client, 1, &request).await;
            let error = answer.markers[0].topics[0].partitions[0].error_code;
            if error == refused { (0, error) } else { (error, error) }
        })
        .await;
    ErrorCode::from_code(error).unwrap()
}

/// The broker that coordinates a transactional id.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

async fn coordinator(client: &mut Connection, key_type: i8, id: &'static str) -> Option<i32> {
    let request = m::FindCoordinatorRequest {
        key_type,
        coordinator_keys: vec![Text::from_static(id)],
        ..Default::default()
    };
    let answer: m::FindCoordinatorResponse = call(client, 4, &request).await;
    let found = &answer.coordinators[0];
    (found.error_code == 0).then_some(found.node_id)
}

/// Tools may ask any broker who is the controller.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_brokers_give_the_same_answer_about_the_controller() {
    let mut cluster = cluster().await;
    let first = quorum(&cluster).await;
    cluster.stop_signs(first.leader_id).close().await;
    let second = quorum(&cluster).await;
    assert!(second.leader_id != first.leader_id && second.leader_epoch > first.leader_epoch, "{second:?}");
    // The broker is a voter again.
    cluster.start(first.leader_id);
    let third = quorum(&cluster).await;
    assert!(third.leader_epoch >= second.leader_epoch, "{third:?}");
    assert!(third.high_watermark > second.high_watermark, "{third:?}");
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// What all brokers answer about the quorum, once the voters are those that are alive.
async fn quorum(cluster: &Cluster) -> m::describe_quorum_response::PartitionData {
    use m::describe_quorum_request::{PartitionData, TopicData};
    let partitions = vec![PartitionData { partition_index: 0 }];
    let topics = vec![TopicData { topic_name: Text::from_static("__cluster_metadata"), partitions }];
    let request = m::DescribeQuorumRequest { topics };
    let (until, alive) = (Instant::now() + PATIENCE, Vec::from_iter(cluster.brokers.keys().copied()));
    loop {
        let mut answers = Vec::new();
        for broker in cluster.brokers.values() {
            let mut client = connect(broker);
            let answer: m::DescribeQuorumResponse = call(&mut client, 2, &request).await;
            let nodes: Vec<i32> = answer.nodes.iter().map(|node| node.node_id).collect();
            let mut partition = answer.topics[0].partitions[0].clone();
            for voter in &mut partition.current_voters {
                let age_ms = now_ms() - voter.last_caught_up_timestamp;
                assert!(age_ms.abs() < 10_000, "{age_ms}");
                assert_eq!(voter.last_fetch_timestamp, voter.last_caught_up_timestamp);
                assert_eq!(voter.log_end_offset, partition.high_watermark);
                // The clock of the broker that answers.
                (voter.last_fetch_timestamp, voter.last_caught_up_timestamp) = (0, 0);
            }
            answers.push((nodes, partition, metadata(&mut client).await.controller_id));
        }
        let (nodes, found, controller) = &answers[0];
        let voters: Vec<i32> = found.current_voters.iter().map(|voter| voter.replica_id).collect();
        if voters == alive && *controller == found.leader_id && answers.iter().all(|of| *of == answers[0]) {
            assert_eq!((found.error_code, nodes), (0, &alive));
            assert!(alive.contains(&found.leader_id) && found.leader_epoch > 0, "{found:?}");
            assert!(found.observers.is_empty() && found.high_watermark > 0, "{found:?}");
            return found.clone();
        }
        assert!(Instant::now() < until, "{answers:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A log goes back to its home by itself. Until then, no preferred leader can be elected, as if it were not in sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_election_is_needless_only_where_the_preferred_broker_leads() {
    let mut cluster = cluster().await;
    cluster.produce().await;
    let all = |leads: &dyn Fn(i32) -> bool| {
        let error = |partition: i32| match leads(partition) {
            true => ErrorCode::ElectionNotNeeded,
            false => ErrorCode::PreferredLeaderNotAvailable,
        };
        (0..PARTITIONS).map(|partition| (partition, error(partition))).collect::<BTreeMap<_, _>>()
    };
    until_elected(&cluster, PREFERRED, &all(&|_| true)).await;
    let homes: Vec<i32> = cluster.leaders().await.into_iter().map(|(node, _)| node).collect();
    let admin = ClusterAdmin::open(cluster.store.clone()).unwrap();
    admin.drain(1, true).unwrap();
    cluster.until("the others lead", |leaders| leaders.iter().all(|(node, _)| *node != 1)).await;
    until_elected(&cluster, PREFERRED, &all(&|at| homes[at.unsigned_abs() as usize] != 1)).await;
    until_elected(&cluster, UNCLEAN, &all(&|_| true)).await;
    admin.drain(1, false).unwrap();
    cluster.until_all_lead().await;
    until_elected(&cluster, PREFERRED, &all(&|_| true)).await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

/// Types of elections.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// Waits until all brokers give these answers to a request for an election in the partitions of `TOPIC`, and those to a request
/// for all partitions that leave out what needs none.
async fn until_elected(cluster: &Cluster, election_type: i8, expected: &BTreeMap<i32, ErrorCode>) {
    use m::elect_leaders_request::TopicPartitions;
    let mut needed = expected.clone();
    needed.retain(|_, error| *error != ErrorCode::ElectionNotNeeded);
    let named = TopicPartitions { topic: Text::from_static(TOPIC), partitions: (0..PARTITIONS).collect() };
    let until = Instant::now() + PATIENCE;
    for broker in cluster.brokers.values() {
        for (topic_partitions, expected) in [(Some(vec![named.clone()]), expected), (None, &needed)] {
            let request = m::ElectLeadersRequest { election_type, topic_partitions, timeout_ms: 10_000 };
            loop {
                let answer: m::ElectLeadersResponse = call(&mut connect(broker), 2, &request).await;
                assert_eq!(answer.error_code, 0);
                let topics = answer.replica_election_results.iter().filter(|of| of.topic == TOPIC);
                let partitions = topics.flat_map(|of| &of.partition_result);
                let found: BTreeMap<i32, ErrorCode> = partitions
                    .map(|of| (of.partition_id, ErrorCode::from_code(of.error_code).unwrap()))
                    .collect();
                if found == *expected {
                    break;
                }
                assert!(Instant::now() < until, "{found:?} instead of {expected:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// As Kafka's administrators do after they have removed a broker for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_broker_that_is_gone_can_be_unregistered() {
    let mut cluster = cluster().await;
    cluster.produce().await;
    assert_eq!(unregister(&cluster, 3).await, ErrorCode::InvalidRequest);
    // It gives its logs away, and stays their home.
    cluster.brokers.remove(&3).unwrap().close().await;
    let admin = ClusterAdmin::open(cluster.store.clone()).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let state = admin.state().unwrap();
        if !state.brokers[&3].alive && state.brokers[&3].logs == 0 {
            break;
        }
        assert!(Instant::now() < until, "{state:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    loop {
        match unregister(&cluster, 3).await {
            ErrorCode::None => break,
            // The broker that is asked may not have heard of the end yet.
            ErrorCode::InvalidRequest if Instant::now() < until => {}
            error => panic!("{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let state = admin.state().unwrap();
    assert_eq!(state.brokers.keys().copied().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(state.logs.len(), 6);
    assert!(state.logs.values().all(|log| log.home != 3 && log.owner != 3), "{state:?}");
    assert_eq!(unregister(&cluster, 3).await, ErrorCode::BrokerIdNotRegistered);
    cluster.produce().await;
    cluster.read_all().await;
    for broker in cluster.brokers.values() {
        broker.close().await;
    }
}

async fn unregister(cluster: &Cluster, broker_id: i32) -> ErrorCode {
    let request = m::UnregisterBrokerRequest { broker_id };
    let answer: m::UnregisterBrokerResponse = call(&mut cluster.client(), 0, &request).await;
    ErrorCode::from_code(answer.error_code).unwrap()
}
