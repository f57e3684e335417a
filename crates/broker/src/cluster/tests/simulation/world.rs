//! A simulated cluster, what happens to it, and what is checked all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use disk::SimDisk;
use meta::{Memory, Store};
use model::Offset;
use objects::sim::Faults;
use objects::{Bucket, SimBucket};
use storage::Mutation;
use storage::stepped::Put;
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::clients::{
    Attempt, Expected, Outcome, Place, Producer, State, Step, check, proceed, read, topic_name,
};
use super::process::{Ground, Process};
use crate::cluster::Holder;
use crate::cluster::admin::ClusterAdmin;
use crate::cluster::tests::members::Careless;
use crate::config::resource_setting::Overrides;
use crate::image::Record;
use crate::image::records::{DrainRecord, OwnerRecord};
use crate::settings::topic::DISKLESS;
use crate::topics::{Leaders, Topic};

pub const TTL: Duration = Duration::from_secs(3);
const BROKERS: i32 = 3;
/// The time of day when a simulation begins.
pub const START_MS: i64 = 1_700_000_000_000;

/// Tasks of coordinators would run there. There are none.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().build().unwrap());

/// A fault that a test plants, to see that the simulation notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// In the log itself.
    Log(Mutation),
    /// The object store lets a put replace an object.
    Overwrites,
    /// Commits do not compare the owners of logs.
    Careless,
    /// Now and then, a seal is deleted.
    DeletesSeals,
    /// A partition that is about to move goes on taking records.
    TakesThoughSealed,
    /// A later owner takes what is stored for everything.
    IgnoresCopies,
    /// Brokers answer for copies that are not synced.
    AnswersUnsynced,
}

/// How often what does not always happen did happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    pub answered: u64,
    /// Answers for a batch that was there already.
    pub repeated: u64,
    pub failed: u64,
    /// Batches that a process with an outdated log refused.
    pub out_of_order: u64,
    pub reads: u64,
    pub trims: u64,
    pub owners: u64,
    pub kills: u64,
    /// Partitions that were to move.
    pub moves: u64,
    /// Partitions that have moved, in the end.
    pub moved: u64,
    /// Disks with copies that were lost.
    pub lost_disks: u64,
    /// Blocks that later owners have read from copies.
    pub from_copies: u64,
}

impl Passed {
    pub fn add(&mut self, other: Passed) {
        let Passed { answered, repeated, failed, out_of_order, reads, trims, owners, kills, .. } = other;
        let Passed { moves, moved, lost_disks, from_copies, .. } = other;
        self.answered += answered;
        self.repeated += repeated;
        self.failed += failed;
        self.out_of_order += out_of_order;
        self.reads += reads;
        self.trims += trims;
        self.owners += owners;
        self.kills += kills;
        self.moves += moves;
        self.moved += moved;
        self.lost_disks += lost_disks;
        self.from_copies += from_copies;
    }
}

/// A deletion of records that was asked for.
struct Trim {
    place: Place,
    to: i64,
    process: u64,
    outcome: Arc<Outcome>,
}

pub struct World {
    flaw: Flaw,
    pub rng: fastrand::Rng,
    ground: Ground,
    bucket: SimBucket,
    /// The disk with copies of each broker.
    disks: BTreeMap<i32, SimDisk>,
    /// All that run, by their numbers.
    pub processes: BTreeMap<u64, Process>,
    next_process: u64,
    expected: BTreeMap<Place, Expected>,
    topics: BTreeSet<u32>,
    next_topic: u32,
    producers: Vec<Producer>,
    next_batch: u64,
    attempts: Vec<Attempt>,
    trims: Vec<Trim>,
    /// Puts of processes that were killed. They may land at any time.
    left: Vec<Put>,
    /// The owners of all logs after the last step.
    seen: BTreeMap<String, OwnerRecord>,
    pub passed: Passed,
}

impl World {
    pub fn new(seed: u64, flaw: Flaw) -> World {
        let mut rng = fastrand::Rng::with_seed(seed);
        let now_ms = Arc::new(AtomicU64::new(0));
        let clock = now_ms.clone();
        let memory = Arc::new(Memory::with_clock(Arc::new(move || {
            Duration::from_millis(clock.load(Ordering::Relaxed))
        })));
        let store: Arc<dyn Store> = if flaw == Flaw::Careless { Arc::new(Careless(memory)) } else { memory };
        let bucket = SimBucket::new(rng.u64(..));
        bucket.set_overwrites(flaw == Flaw::Overwrites);
        let mutation = if let Flaw::Log(mutation) = flaw { Some(mutation) } else { None };
        let shared: Arc<dyn Bucket> = Arc::new(bucket.clone());
        let runtime = RUNTIME.handle().clone();
        let (running, shelf) = Default::default();
        let ground = Ground { now_ms, runtime, store, bucket: shared, running, mutation, shelf, flaw };
        let mut world = World {
            flaw,
            rng,
            ground,
            bucket,
            disks: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_process: 1,
            expected: BTreeMap::new(),
            topics: BTreeSet::new(),
            next_topic: 0,
            producers: Vec::new(),
            next_batch: 1,
            attempts: Vec::new(),
            trims: Vec::new(),
            left: Vec::new(),
            seen: BTreeMap::new(),
            passed: Passed::default(),
        };
        for broker in 1..=BROKERS {
            let number = world.start(broker);
            let process = world.processes.get_mut(&number).unwrap();
            process.turn(true);
            let log = Uuid::from_u128(u128::try_from(broker).unwrap());
            process.member.add_log(&log.to_string()).unwrap();
        }
        world.processes.values().for_each(|process| process.metadata.refresh().unwrap());
        world.create_topic();
        world.settle();
        world
    }

    fn start(&mut self, broker: i32) -> u64 {
        let number = self.next_process;
        self.next_process += 1;
        for process in self.processes.values_mut().filter(|process| process.broker == broker) {
            process.former = true;
        }
        // The process before was killed, or the power was cut, or it cannot use its data directory any more.
        let seed = self.rng.u64(..);
        let disk = match self.disks.get(&broker) {
            Some(disk) if self.rng.bool() => disk.crash(seed),
            Some(disk) => disk.restart(),
            None => SimDisk::new(seed),
        };
        let process = Process::start(&self.ground, (broker, &disk), number, &mut self.rng);
        self.disks.insert(broker, disk);
        self.processes.insert(number, process);
        number
    }

    fn kill(&mut self, number: u64) {
        // What it had answered until now counts.
        self.proceed_all(Some(number));
        self.attempts.retain(|attempt| attempt.process != number);
        self.trims.retain(|trim| trim.process != number);
        let process = self.processes.remove(&number).unwrap();
        self.left.extend(process.kill());
        self.passed.kills += 1;
    }

    /// A broker loses its disk with all processes on it, at whatever moment: owners may be dead or stopped, and logs on their
    /// way to others. There are copies of everything on another disk, and another broker may be killed at the same time. Nothing
    /// else fails until no copy set names the lost disk: an owner that does not know of the loss may choose that disk and none
    /// else.
    fn lose_disk(&mut self, broker: i32) {
        let current = |process: &&Process| process.broker == broker && !process.former;
        let Some(process) = self.processes.values().find(current) else { return };
        let lost = Uuid::from_u128(process.copies.disk_id());
        let there: BTreeSet<Uuid> = self
            .processes
            .values()
            .filter(|process| !process.former)
            .map(|process| Uuid::from_u128(process.copies.disk_id()))
            .filter(|disk| *disk != lost)
            .collect();
        let survives = |owner: &OwnerRecord| !owner.set.contains(&lost) || !owner.set.is_disjoint(&there);
        if !self.owners().values().all(survives) {
            return;
        }
        let also = self.rng.i32(1..=2 * BROKERS);
        let dies = |process: &Process| process.broker == broker || process.broker == also;
        let dying = self.processes.iter().filter(|(_, process)| dies(process));
        let numbers: Vec<u64> = dying.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.kill(number));
        self.ground.shelf.remove(lost);
        self.disks.remove(&broker);
        self.passed.lost_disks += 1;
        self.start(broker);
        if also != broker && also <= BROKERS {
            self.start(also);
        }
        self.calm_down();
        self.processes.values().for_each(|process| drop(process.member.keep_alive()));
        for pass in 0..300 {
            self.pass();
            if pass >= 4 && self.owners().values().all(|owner| !owner.set.contains(&lost)) {
                return;
            }
        }
        panic!("a copy set names a lost disk: {:?}", self.owners());
    }

    /// Lets all processes do what there is to do.
    fn pass(&mut self) {
        self.ground.now_ms.fetch_add(300, Ordering::Relaxed);
        for process in self.processes.values_mut() {
            process.turn(true);
            process.work_off(&mut self.rng);
        }
        self.check_owners();
        self.proceed_all(None);
    }

    /// One of the processes that run.
    fn any(&mut self) -> u64 {
        let at = self.rng.usize(..self.processes.len());
        *self.processes.keys().nth(at).unwrap()
    }

    fn create_topic(&mut self) {
        let number = self.any();
        let (topic, partitions) = (self.next_topic, self.rng.i32(1..5));
        self.next_topic += 1;
        let diskless = (DISKLESS.to_owned(), self.rng.bool().to_string());
        let configs = Overrides::from([diskless]);
        let created = self.processes[&number].topics.create(
            &topic_name(topic),
            (partitions, &Leaders::new()),
            configs,
            || true,
        );
        // A topic may be there though its creation failed. Nobody uses it.
        if created.is_err() {
            return;
        }
        self.topics.insert(topic);
        for partition in 0..partitions {
            let place = (topic, partition);
            self.expected.insert(place, Expected::default());
            let id = self.rng.bool().then_some(i64::from(topic) * 100 + i64::from(partition));
            self.producers.push(Producer::new(place, id));
        }
    }

    fn delete_topic(&mut self) {
        let topics: Vec<u32> = self.topics.iter().copied().collect();
        let number = self.any();
        let Some(chosen) = self.rng.choice(&topics).copied().filter(|_| topics.len() > 1) else { return };
        let there = &self.processes[&number].topics;
        let Some(topic) = there.find(&topic_name(chosen)) else { return };
        // It may be gone though its deletion failed: nobody asks for it again.
        let _ = there.delete(&topic);
        self.topics.remove(&chosen);
        self.expected.retain(|place, _| place.0 != chosen);
        self.attempts.retain(|attempt| attempt.place.0 != chosen);
        self.trims.retain(|trim| trim.place.0 != chosen);
    }

    /// A place that clients use.
    fn place(&mut self) -> Place {
        let at = self.rng.usize(..self.expected.len());
        *self.expected.keys().nth(at).unwrap()
    }

    /// The process that leads a partition, as some process says, or one that did.
    fn leader(&mut self, place: Place) -> Option<u64> {
        let asked = self.any();
        let topic = self.processes[&asked].topics.find(&topic_name(place.0))?;
        let leader = topic.partition(place.1)?.leader().node;
        let of_broker = |(number, process): (&u64, &Process)| (process.broker == leader).then_some(*number);
        let found: Vec<u64> = self.processes.iter().filter_map(of_broker).collect();
        self.rng.choice(&found).copied()
    }

    fn send(&mut self) {
        let producer = self.rng.usize(..self.producers.len());
        let place = self.producers[producer].place;
        if !self.expected.contains_key(&place) {
            return;
        }
        let Some(process) = self.leader(place) else { return };
        let id = self.next_batch;
        self.next_batch += 1;
        let batch = self.producers[producer].batch(id, &mut self.rng);
        self.attempts.push(Attempt { producer, place, batch, process, state: State::Sent });
    }

    fn send_all(&mut self) {
        for producer in 0..self.producers.len() {
            let place = self.producers[producer].place;
            let waits = self.producers[producer].current.is_some() && self.expected.contains_key(&place);
            if let Some(process) = self.leader(place).filter(|_| waits) {
                let batch = self.producers[producer].batch(self.next_batch, &mut self.rng);
                self.next_batch += 1;
                self.attempts.push(Attempt { producer, place, batch, process, state: State::Sent });
            }
        }
    }

    /// Lets an attempt go on.
    fn proceed(&mut self, at: usize) {
        let Attempt { producer, place, batch, process, state } = self.attempts.swap_remove(at);
        let Some(serving) = self.processes.get(&process) else { return };
        if serving.is_stopped() {
            self.attempts.push(Attempt { producer, place, batch, process, state });
            return;
        }
        let (again, former) = (matches!(state, State::WaitsForEarlier(..)), serving.former);
        match proceed(state, &batch, place, serving) {
            Step::GoesOn(state) => self.attempts.push(Attempt { producer, place, batch, process, state }),
            Step::Answered(offset) => {
                self.passed.answered += 1;
                self.passed.repeated += u64::from(again);
                let expected = self.expected.get_mut(&place).expect("attempts end with their topic");
                expected.learn(offset, (batch.id, batch.count), "answered");
                // The answer may be lost.
                if self.rng.u8(0..8) > 0 {
                    self.producers[producer].answered(batch.id);
                }
            }
            Step::Failed => self.passed.failed += 1,
            Step::OutOfOrder => {
                let current = self.producers[producer].current.as_ref().map(|batch| batch.id);
                assert!(
                    former || current != Some(batch.id) || !self.owns(process, place),
                    "{place:?}: batch {}",
                    batch.id
                );
                self.passed.out_of_order += 1;
            }
        }
    }

    /// Whether a process owns the log of a partition.
    fn owns(&self, process: u64, place: Place) -> bool {
        let serving = &self.processes[&process];
        let image = crate::image::Metadata::open(self.ground.store.clone()).unwrap().image();
        let record = image.topics.get(&topic_name(place.0)).cloned();
        let log = record.and_then(|record| record.places().nth(usize::try_from(place.1).unwrap()));
        let owner = log.and_then(|(_, log)| image.owners.get(&log.to_string()).cloned());
        owner.is_some_and(|owner| {
            owner.broker == serving.broker && owner.incarnation == Uuid::from_u128(process.into())
        })
    }

    /// Lets all attempts go on, or those of one process.
    fn proceed_all(&mut self, of: Option<u64>) {
        for at in (0..self.attempts.len()).rev() {
            if of.is_none_or(|process| self.attempts[at].process == process) {
                self.proceed(at);
            }
        }
        let mut trims = std::mem::take(&mut self.trims);
        trims.retain(|trim| {
            if trim.outcome.done() {
                let expected = self.expected.get_mut(&trim.place).expect("trims end with their topic");
                expected.start = expected.start.max(trim.to);
                self.passed.trims += 1;
            }
            !trim.outcome.done() && !trim.outcome.failed()
        });
        self.trims = trims;
    }

    /// Asks a leader to delete the records below some offset.
    fn trim(&mut self) {
        let place = self.place();
        let Some(process) = self.leader(place) else { return };
        let serving = &self.processes[&process];
        let partition = serving.topics.find(&topic_name(place.0)).and_then(|topic| topic.partition(place.1));
        let Some(partition) = partition else { return };
        let Ok(replica) = partition.replica(serving.broker) else { return };
        let to = self.rng.i64(0..=replica.log.bounds().visible.0);
        let outcome = Arc::new(Outcome::default());
        let expected = self.expected.get_mut(&place).unwrap();
        expected.start_max = expected.start_max.max(to);
        if partition.trim(&**replica.log, Offset(to), outcome.clone()).is_err() {
            return;
        }
        self.trims.push(Trim { place, to, process, outcome });
    }

    /// Lets a partition move to some broker, or gives its move up.
    fn reassign(&mut self) {
        let place = self.place();
        let number = self.any();
        let there = &self.processes[&number].topics;
        let Some(topic) = there.find(&topic_name(place.0)) else { return };
        let to = (self.rng.u8(0..4) > 0).then(|| vec![self.rng.i32(1..=BROKERS)]);
        // Nobody may move, and the broker may own nothing.
        if topic.partition(place.1).is_some() && there.alter_moves(&topic, &[(place.1, to)]).is_ok() {
            self.passed.moves += 1;
        }
    }

    fn consume(&mut self) {
        let place = self.place();
        let Some(process) = self.leader(place) else { return };
        let from = self.rng.bool().then(|| self.rng.i64(0..200));
        let bytes_max = self.rng.usize(1..20_000);
        let expected = self.expected.get_mut(&place).unwrap();
        if read(&self.processes[&process], place, from, bytes_max, expected).is_some() {
            self.passed.reads += 1;
        }
    }

    /// One thing that happens. While the weather is calm, nothing fails that did not fail before.
    pub fn step(&mut self, calm: bool) {
        let number = self.any();
        let process = self.processes.get_mut(&number).unwrap();
        match self.rng.u16(0..1000) {
            0..560 if process.is_stopped() => {}
            0..150 => process.turn(self.rng.u8(0..4) > 0),
            150..300 => {
                let most = self.rng.u8(1..8);
                let goes_on = |_: &u8| process.step(&mut self.rng);
                let _ = (0..most).take_while(goes_on).count();
            }
            300..560 => process.work(&mut self.rng),
            560..680 => self.send(),
            680..860 if !self.attempts.is_empty() => {
                let at = self.rng.usize(..self.attempts.len());
                // A request, or a connection, may be lost.
                if self.rng.u8(0..32) == 0 {
                    self.attempts.swap_remove(at);
                } else {
                    self.proceed(at);
                }
            }
            860..900 => self.consume(),
            900..903 => self.trim(),
            903..905 => self.ground.shelf.deliver(&mut self.rng),
            905..940 => {
                let most = if calm { 300 } else { 1000 };
                self.ground.now_ms.fetch_add(self.rng.u64(0..most), Ordering::Relaxed);
            }
            940.. if calm => {}
            940..944 => {
                let now = self.ground.now_ms.load(Ordering::Relaxed);
                process.stop_until(now + self.rng.u64(0..12_000));
            }
            944..950 => {
                let many = if self.rng.bool() { Faults::MANY } else { Faults::default() };
                self.bucket.set_faults(many);
            }
            950..956 => {
                // Killed, or stopped for longer than its lease: it goes on later.
                let (broker, former) = (process.broker, process.former);
                match self.rng.u8(0..3) {
                    0 => self.kill(number),
                    1 => {
                        let ttl_ms = u64::try_from(TTL.as_millis()).unwrap();
                        let now = self.ground.now_ms.load(Ordering::Relaxed);
                        process.stop_until(now + ttl_ms + self.rng.u64(0..12_000));
                    }
                    // Two processes with one id.
                    _ => {}
                }
                if !former {
                    self.start(broker);
                }
            }
            956..962 if process.former => self.kill(number),
            962..974 => {
                let weather = process.weather.clone();
                match self.rng.u8(0..4) {
                    0 => weather.no_etcd.store(true, Ordering::Relaxed),
                    1 => weather.no_store.store(true, Ordering::Relaxed),
                    2 => weather.failures.store(self.rng.u8(0..60), Ordering::Relaxed),
                    _ => process.set_disk_fails(self.rng.bool()),
                }
            }
            974..978 => process.weather.clear(),
            978..980 => self.bucket.set_away(self.rng.u8(0..3) == 0),
            980..983 => {
                let off_ms = self.rng.i64(-3_600_000..3_600_000);
                process.clock.off_ms.store(off_ms, Ordering::Relaxed);
            }
            983..986 => {
                let (name, drained) = (process.broker.to_string(), self.rng.bool());
                let change = if drained { DrainRecord {}.put(&name) } else { DrainRecord::delete(&name) };
                self.ground.store.commit(&[], &[change]).unwrap();
            }
            987 => {
                let log = Uuid::from_u128(self.rng.u128(1..=3)).to_string();
                let to = self.rng.i32(1..=BROKERS);
                // The broker may be away, or drained.
                let _ = ClusterAdmin::open(self.ground.store.clone()).unwrap().move_log(&log, to);
            }
            986 | 988 => {
                let broker = process.broker;
                self.lose_disk(broker);
            }
            989 => self.reassign(),
            990..993 => {
                process.ends = true;
                let _ = process.member.announce_leaving();
            }
            993..994 => self.create_topic(),
            994..996 => self.reassign(),
            996..997 => self.delete_topic(),
            997..999 if !self.left.is_empty() => {
                let at = self.rng.usize(..self.left.len());
                self.left.swap_remove(at)();
            }
            _ if self.flaw == Flaw::TakesThoughSealed => {
                let named = process.topics.moves().into_iter().filter(|moving| moving.of.bounds.is_some());
                named.filter_map(|moving| moving.partition()).for_each(|partition| partition.seal(false));
            }
            _ if self.flaw == Flaw::DeletesSeals => {
                let keys = self.bucket.keys();
                let length = |key: &String| self.bucket.content(key).map_or(0, |bytes| bytes.len());
                let seals: Vec<&String> =
                    keys.iter().filter(|key| key.starts_with("logs/") && length(key) < 100).collect();
                if let Some(seal) = self.rng.choice(&seals) {
                    let _ = self.bucket.delete(seal);
                }
            }
            _ => {}
        }
    }

    /// Nothing fails any more.
    pub fn calm_down(&mut self) {
        for process in self.processes.values_mut() {
            process.weather.clear();
            process.set_disk_fails(false);
            if !process.former {
                process.stop_until(0);
            }
        }
        self.bucket.set_away(false);
        self.bucket.set_faults(Faults::default());
    }

    /// The owners of all logs.
    fn owners(&self) -> BTreeMap<String, OwnerRecord> {
        let listing = self.ground.store.list(OwnerRecord::PREFIX).unwrap();
        let parse = |(key, value): (String, meta::Value)| {
            let log = key.strip_prefix(OwnerRecord::PREFIX).unwrap().to_owned();
            let record = OwnerRecord::parse(&log, &value.bytes).unwrap();
            (log, record)
        };
        listing.entries.into_iter().map(parse).collect()
    }

    fn is_at_rest(&self) -> bool {
        let opened = |(log, owner): (&String, &OwnerRecord)| {
            let process = self.processes.values().find(|process| process.broker == owner.broker);
            let open = |process: &Process| {
                !process.is_busy()
                    && process.host.held(log) == Some(owner.epoch)
                    && process.host.has_open(log)
            };
            let whole = match process.is_some_and(|process| process.host.wants_copies(log)) {
                true => owner.set.len() == 2 && owner.set_epoch == owner.epoch,
                false => owner.set.is_empty(),
            };
            owner.broker == owner.home && owner.next.is_none() && whole && process.is_some_and(open)
        };
        let waits =
            |producer: &Producer| producer.current.is_some() && self.expected.contains_key(&producer.place);
        let moves = self.processes.values().any(|process| !process.topics.moves().is_empty());
        self.owners().iter().all(opened)
            && !moves
            && self.trims.is_empty()
            && self.attempts.is_empty()
            && !self.producers.iter().any(waits)
    }

    /// Mends everything, and settles.
    pub fn rest(&mut self) {
        self.calm_down();
        let numbers: Vec<u64> = self.processes.keys().copied().collect();
        for number in numbers {
            let process = &self.processes[&number];
            let (broker, former) = (process.broker, process.former);
            if former || process.ends || process.member.is_leaving() {
                self.kill(number);
                if !former {
                    self.start(broker);
                }
            }
        }
        (1..=BROKERS).for_each(|broker| {
            self.ground.store.commit(&[], &[DrainRecord::delete(&broker.to_string())]).unwrap();
        });
        self.bucket.settle();
        self.left.drain(..).for_each(|put| put());
        self.settle();
    }

    /// Appends to a partition while the disk of its leader is full, until another broker has its log.
    pub fn fill_a_disk(&mut self) {
        let place = self.place();
        let number = self.leader(place).unwrap();
        self.processes[&number].fill_disks();
        for _ in 0..5000 {
            self.ground.now_ms.fetch_add(200, Ordering::Relaxed);
            (0..10).for_each(|_| self.send());
            for process in self.processes.values_mut() {
                process.turn(true);
                process.work_off(&mut self.rng);
            }
            self.check_owners();
            self.proceed_all(None);
            let other = self.leader(place).is_some_and(|leader| leader != number);
            if self.processes[&number].member.is_leaving() && other {
                return;
            }
        }
        panic!("the leader of {place:?} keeps its log: {:?}", self.owners());
    }

    /// Waits until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..300 {
            self.pass();
            if self.attempts.is_empty() {
                self.send_all();
            }
            if self.is_at_rest() {
                return;
            }
        }
        let attempts: Vec<String> = self.attempts.iter().map(Attempt::to_string).collect();
        let held: Vec<_> = self.processes.values().map(|process| (process.broker, &process.host)).collect();
        panic!("no rest: {:?}, {held:?}, {attempts:?}", self.owners());
    }

    /// Kills all processes, and starts the brokers again. They have nothing but what is in the bucket.
    pub fn restart_all(&mut self) {
        self.kill_all();
        for broker in 1..=BROKERS {
            self.start(broker);
        }
    }

    pub fn kill_all(&mut self) {
        let numbers: Vec<u64> = self.processes.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.kill(number));
    }

    /// Checks that no epoch has had two owners.
    pub fn check_owners(&mut self) {
        for (log, owner) in self.owners() {
            let before = self.seen.insert(log, owner.clone());
            let Some(before) = before else { continue };
            let same = (before.broker, before.incarnation) == (owner.broker, owner.incarnation);
            assert!(
                owner.epoch == before.epoch && same || owner.epoch > before.epoch,
                "an epoch has two owners: {before:?} {owner:?}"
            );
            self.passed.owners += u64::from(!same);
        }
    }

    /// Reads all that there is.
    pub fn check(&mut self) {
        let owners = self.owners();
        let topics = self.processes.values().next().map(|process| process.topics.all());
        let moved =
            |topic: &Arc<Topic>| topic.record().epochs.iter().filter(|base| **base > 0).count() as u64;
        self.passed.from_copies = self.ground.shelf.read.load(Ordering::Relaxed);
        self.passed.moved = topics.iter().flatten().map(moved).sum();
        for (place, expected) in &mut self.expected {
            let process = self.processes.values().find(|process| {
                let topic = process.topics.find(&topic_name(place.0));
                let partition = topic.and_then(|topic| topic.partition(place.1));
                partition.is_some_and(|partition| partition.replica(process.broker).is_ok())
            });
            let process = process.unwrap_or_else(|| panic!("nobody leads {place:?}: {owners:?}"));
            check(process, *place, expected);
        }
    }
}
