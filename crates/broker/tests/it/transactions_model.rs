//! Transactions of seeded random producers on two brokers that pass partitions and coordinators to each other, through power
//! cuts: what is acknowledged as committed is read, what is not committed is not, and no transaction is torn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Connection, LogDirectory};
use disk::SimDisk;
use fastrand::Rng;
use wire::messages as m;
use wire::{ErrorCode, Text};

use crate::common::transactional::{Producer, V1, V2, Version, read};
use crate::common::{call, close, connect, create_topic, let_go, open_on};

const NONE: i16 = 0;
const TOPIC: &str = "t";
const PARTITIONS: i32 = 3;
/// Transactional ids, each with a group of the same name.
const NAMES: [&str; 3] = ["a", "b", "c"];
const STEPS: usize = 40;
/// For a client that looks for the right broker, or asks again.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a transaction ended, as far as its client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Open,
    Committed,
    Aborted,
    /// The power was cut before the answer.
    Unknown,
}

#[derive(Debug)]
struct Transaction {
    of: usize,
    /// Each with its partition.
    values: Vec<(i32, String)>,
    /// The last offset that it committed for its group.
    offset: Option<i64>,
    outcome: Outcome,
}

struct Client {
    producer: Producer,
    /// To the other broker.
    other: Connection,
    seed: u64,
}

struct World {
    seed: u64,
    rng: Rng,
    metadata: tempfile::TempDir,
    disk: SimDisk,
    brokers: Vec<Arc<Broker>>,
    versions: [Version; NAMES.len()],
    clients: Vec<Client>,
    transactions: Vec<Transaction>,
    next: i64,
    /// No partition had a higher leader epoch so far.
    highest_epoch: i32,
}

/// Another broker has it now, or will have it in a moment.
fn is_passing(error: i16) -> bool {
    [
        ErrorCode::NotCoordinator,
        ErrorCode::CoordinatorLoadInProgress,
        ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotLeaderOrFollower,
        ErrorCode::ConcurrentTransactions,
        // As Kafka tells producers that the coordinator cannot be asked now.
        ErrorCode::NotEnoughReplicas,
    ]
    .iter()
    .any(|code| code.code() == error)
}

impl Client {
    /// Asks one broker, then the other, until the answer is not that another one is to be asked.
    async fn insist(&mut self, mut ask: impl AsyncFnMut(&mut Producer) -> i16) -> i16 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let error = ask(&mut self.producer).await;
            if !is_passing(error) {
                return error;
            }
            assert!(Instant::now() < deadline, "seed {}: told {error} for ever", self.seed);
            std::mem::swap(&mut self.producer.connection, &mut self.other);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl World {
    async fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let versions = std::array::from_fn(|_| if rng.bool() { V1 } else { V2 });
        let mut world = World {
            seed,
            disk: SimDisk::new(rng.u64(..)),
            rng,
            metadata: tempfile::tempdir().unwrap(),
            brokers: Vec::new(),
            versions,
            clients: Vec::new(),
            transactions: Vec::new(),
            next: 0,
            highest_epoch: 0,
        };
        world.start();
        create_topic(&mut connect(&world.brokers[0]), TOPIC, PARTITIONS, &[]).await;
        for of in 0..NAMES.len() {
            world.connect(of).await;
        }
        world
    }

    fn start(&mut self) {
        let disk = self.disk.clone();
        let log = LogDirectory::new("only", move |_| Ok(Arc::new(disk.clone())));
        let settings = [
            ("log.segment.bytes", "1048576"),
            ("log.reserve.bytes", "0"),
            ("offsets.topic.num.partitions", "2"),
            ("transaction.state.log.num.partitions", "2"),
        ];
        let one = open_on(self.metadata.path(), vec![log], &settings);
        let one = one.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        let other = one.beside(2);
        let listeners = || BTreeMap::from([("PLAINTEXT".to_owned(), ("127.0.0.1".to_owned(), 9093))]);
        one.set_others(BTreeMap::from([(2, listeners())]));
        other.set_others(BTreeMap::from([(1, listeners())]));
        self.brokers = vec![one, other];
        // Producers keep the epoch of the coordinator that ended their last transaction: a lower one is refused.
        self.highest_epoch += 1;
        self.brokers[0].continue_at(self.highest_epoch);
    }

    /// A new instance of the producer: what the one before left open is aborted, or ends as it was decided.
    async fn connect(&mut self, of: usize) {
        let producer = Producer {
            connection: connect(&self.brokers[0]),
            version: self.versions[of],
            transactional_id: NAMES[of],
            id: -1,
            epoch: -1,
            sequences: BTreeMap::new(),
        };
        let mut client = Client { producer, other: connect(&self.brokers[1]), seed: self.seed };
        let error = client.insist(async |producer| producer.initialize(60_000).await).await;
        assert_eq!(error, NONE, "seed {}", self.seed);
        match self.clients.get_mut(of) {
            Some(before) => *before = client,
            None => self.clients.push(client),
        }
        self.finish(of, Outcome::Aborted);
    }

    /// The open transaction of a producer.
    fn open(&mut self, of: usize) -> Option<&mut Transaction> {
        let of =
            |transaction: &&mut Transaction| transaction.of == of && transaction.outcome == Outcome::Open;
        self.transactions.iter_mut().find(of)
    }

    fn finish(&mut self, of: usize, outcome: Outcome) {
        if let Some(transaction) = self.open(of) {
            transaction.outcome = outcome;
        }
    }

    fn open_or_begin(&mut self, of: usize) -> &mut Transaction {
        if self.open(of).is_none() {
            self.transactions.push(Transaction {
                of,
                values: Vec::new(),
                offset: None,
                outcome: Outcome::Open,
            });
        }
        self.open(of).unwrap()
    }

    async fn step(&mut self) {
        let of = self.rng.usize(..NAMES.len());
        match self.rng.u32(..100) {
            0..40 => self.send(of).await,
            40..55 => self.commit_offset(of).await,
            55..75 => self.end(of).await,
            75..80 => self.connect(of).await,
            80..95 => self.move_partitions(),
            95..98 => self.cut_power(None).await,
            _ => self.cut_power(Some(of)).await,
        }
    }

    async fn send(&mut self, of: usize) {
        let partition = self.rng.i32(0..PARTITIONS);
        self.next += 1;
        let value = format!("{}-{}", NAMES[of], self.next);
        // Each request goes to whom it is for: the coordinator, or the leader of the partition.
        let client = &mut self.clients[of];
        if client.producer.version.produce < V2.produce {
            let error = client.insist(async |producer| producer.add(TOPIC, partition).await).await;
            assert_eq!(error, NONE, "seed {}: {value}", self.seed);
        }
        let send = async |producer: &mut Producer| producer.send_alone(TOPIC, partition, &[&value]).await;
        let error = client.insist(send).await;
        assert_eq!(error, NONE, "seed {}: {value}", self.seed);
        self.open_or_begin(of).values.push((partition, value));
    }

    async fn commit_offset(&mut self, of: usize) {
        self.next += 1;
        let offset = self.next;
        let client = &mut self.clients[of];
        if client.producer.version.commit < V2.commit {
            let error = client.insist(async |producer| producer.add_offsets(NAMES[of]).await).await;
            assert_eq!(error, NONE, "seed {}: {offset}", self.seed);
        }
        let commit = async |producer: &mut Producer| producer.commit_alone(NAMES[of], TOPIC, offset).await;
        let error = client.insist(commit).await;
        assert_eq!(error, NONE, "seed {}: {offset}", self.seed);
        self.open_or_begin(of).offset = Some(offset);
    }

    async fn end(&mut self, of: usize) {
        if self.open(of).is_none() {
            return;
        }
        let committed = self.rng.bool();
        let error = self.clients[of].insist(async |producer| producer.end(committed).await).await;
        assert_eq!(error, NONE, "seed {}", self.seed);
        self.finish(of, if committed { Outcome::Committed } else { Outcome::Aborted });
    }

    /// Coordinators more often than others.
    fn move_partitions(&mut self) {
        self.highest_epoch += 1;
        let rng = &mut self.rng;
        self.brokers[0].place(|topic, _, node| {
            let moves = rng.f64() < if topic == TOPIC { 0.3 } else { 0.6 };
            if moves { 3 - node } else { node }
        });
    }

    /// What is not synced is lost; with `ending`, while that producer ends its transaction.
    async fn cut_power(&mut self, ending: Option<usize>) {
        let ending = ending.filter(|of| self.open(*of).is_some());
        let (committed, micros) = (self.rng.bool(), self.rng.u64(..2_000));
        let seed = self.rng.u64(..);
        let after = match ending {
            Some(of) => {
                let Client { producer, .. } = &mut self.clients[of];
                let cut = async {
                    tokio::time::sleep(Duration::from_micros(micros)).await;
                    self.disk.crash(seed)
                };
                // Whatever is answered: it may have been after the cut.
                let (_, after) = tokio::join!(producer.end(committed), cut);
                after
            }
            None => self.disk.crash(seed),
        };
        self.clients.clear();
        let_go(self.brokers.pop().unwrap()).await;
        close(self.brokers.pop().unwrap()).await;
        self.disk = after;
        self.start();
        for of in 0..NAMES.len() {
            match ending {
                // Decided or not: the next instance finds out, and the test at the end.
                Some(unknown) if unknown == of && committed => self.finish(of, Outcome::Unknown),
                _ => {}
            }
            self.connect(of).await;
        }
    }

    async fn values(&mut self, partition: i32) -> Vec<String> {
        let leader = usize::from(self.leads(1, partition));
        let mut connection = connect(&self.brokers[leader]);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = read(&mut connection, TOPIC, partition, 0, true).await;
            if seen.last_stable_offset == seen.high_watermark {
                return seen.values;
            }
            assert!(Instant::now() < deadline, "seed {}: partition {partition} stays unstable", self.seed);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether the broker of this place leads the partition.
    fn leads(&self, place: i32, partition: i32) -> bool {
        let mut leader = 0;
        self.brokers[0].place(|topic, index, node| {
            if topic == TOPIC && index == partition {
                leader = node;
            }
            node
        });
        leader == place + 1
    }

    async fn offset(&mut self, of: usize) -> i64 {
        let topic = m::offset_fetch_request::OffsetFetchRequestTopics {
            name: Text::from_static(TOPIC),
            partition_indexes: vec![0],
            ..Default::default()
        };
        let group = m::offset_fetch_request::OffsetFetchRequestGroup {
            group_id: Text::from_static(NAMES[of]),
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let request =
            m::OffsetFetchRequest { groups: vec![group], require_stable: true, ..Default::default() };
        let mut found = -1;
        let ask = async |producer: &mut Producer| {
            let answer: m::OffsetFetchResponse = call(&mut producer.connection, 8, &request).await;
            let Some(topic) = answer.groups[0].topics.first() else { return answer.groups[0].error_code };
            found = topic.partitions[0].committed_offset;
            match topic.partitions[0].error_code {
                // The marker is on its way to the group.
                error if error == ErrorCode::UnstableOffsetCommit.code() => ErrorCode::NotCoordinator.code(),
                error => error,
            }
        };
        let error = self.clients[of].insist(ask).await;
        assert_eq!(error, NONE, "seed {}", self.seed);
        found
    }

    async fn check(&mut self) {
        let seed = self.seed;
        for of in 0..NAMES.len() {
            self.connect(of).await;
        }
        let mut seen = Vec::new();
        for partition in 0..PARTITIONS {
            seen.push(self.values(partition).await);
        }
        let has =
            |(partition, value): &(i32, String)| seen[usize::try_from(*partition).unwrap()].contains(value);
        let mut expected: Vec<Vec<&String>> = vec![Vec::new(); seen.len()];
        let mut committed = Vec::new();
        for transaction in &self.transactions {
            let is_seen = match transaction.outcome {
                Outcome::Open => panic!("seed {seed}: {transaction:?} is open"),
                Outcome::Committed => true,
                Outcome::Aborted => false,
                Outcome::Unknown => transaction.values.first().is_some_and(has),
            };
            committed.push(is_seen);
            for (partition, value) in transaction.values.iter().filter(|_| is_seen) {
                expected[usize::try_from(*partition).unwrap()].push(value);
            }
        }
        for (seen, mut expected) in seen.iter().zip(expected) {
            // Transactions overlap: the records stand in the order in which they were sent.
            expected.sort_by_key(|value| value.split('-').nth(1).unwrap().parse::<i64>().unwrap());
            assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "seed {seed}: {:#?}", self.transactions);
        }
        for of in 0..NAMES.len() {
            let found = self.offset(of).await;
            let mut may = vec![-1];
            for (transaction, committed) in self.transactions.iter().zip(&committed) {
                let Some(offset) = transaction.offset.filter(|_| transaction.of == of) else { continue };
                match (transaction.outcome, transaction.values.is_empty()) {
                    // Its records say how it ended; without any it is not known.
                    (Outcome::Unknown, true) => may.push(offset),
                    _ if *committed => may = vec![offset],
                    _ => {}
                }
            }
            assert!(may.contains(&found), "seed {seed}: {found} of {may:?}: {:#?}", self.transactions);
        }
    }
}

async fn run(seed: u64) {
    let mut world = World::new(seed).await;
    for _ in 0..STEPS {
        world.step().await;
    }
    world.check().await;
    let World { mut brokers, clients, .. } = world;
    drop(clients);
    let_go(brokers.pop().unwrap()).await;
    close(brokers.pop().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_whole_whoever_coordinates_them_and_whenever_the_power_goes() {
    let seeds = std::env::var("MAINSTEM_SEEDS").ok().and_then(|range| {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    for seed in seeds.unwrap_or(0..60) {
        run(seed).await;
    }
}
