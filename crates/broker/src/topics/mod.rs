//! The topics, by name and by id. They are created, changed and deleted through the metadata store.
//!
//! A change is first made durable in the store, and then in memory. If a crash separates the two, opening the broker
//! completes the change. Stream ids are never used twice.

mod moving;
mod names;
mod reassigning;
mod topic;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use meta::{Change, Compare, MetaError};
use model::StreamId;
use parking_lot::{Mutex, RwLock};
use storage::{Clock, SystemClock};
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;
use wire::Text;

pub use self::moving::Leaders;
use self::names::Names;
pub use self::names::{TOPIC_NAME_MAX, check_name};
pub use self::reassigning::{MoveError, Moving};
use self::topic::is_internal;
pub use self::topic::{OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic};
use crate::config::resource_setting::Overrides;
use crate::image::records::TopicRecord;
use crate::image::stored;
use crate::image::{Delta, Image, Metadata, Observer, Record, Update};
use crate::logs::{Held, Logs, Streams};
use crate::partition::Partition;
use crate::partition::traffic::Traffic;
use crate::placement::Placement;
use crate::settings::accepted::MIN_INSYNC;
use crate::settings::resource::{ResourceConfigs, ResourceKind};
use crate::settings::topic::{TopicConfig, settle_diskless, settle_level};

/// The name of the log in which Kafka's controllers keep their metadata.
const METADATA_TOPIC: &str = "__cluster_metadata";

/// The key of the first stream id that was never used.
pub const NEXT_STREAM_KEY: &str = "next_stream";
/// After a restore, stream ids go on so far behind the highest known one.
pub const STREAMS_APART: u64 = 1 << 20;

/// The reason why a change is refused.
#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    /// A topic of this name exists.
    #[error("Topic '{0}' already exists.")]
    Exists(String),
    /// The topic does not exist.
    #[error("This server does not host this topic-partition.")]
    Unknown,
    /// The name is not legal.
    #[error("{0}")]
    Name(String),
    /// Kafka reserves the name.
    #[error("Creation of internal topic {METADATA_TOPIC} is prohibited.")]
    Prohibited,
    /// The number of partitions is not possible.
    #[error("{0}")]
    Partitions(String),
    /// A setting is not possible in a cluster.
    #[error("{0}")]
    Config(String),
    /// No log takes the new partitions.
    #[error("no log directory takes new partitions: {0}")]
    NoLog(String),
    /// Offsets committed for a deleted topic of this name are still there.
    #[error(
        "the offsets committed for a deleted topic of this name cannot be removed now: the log takes no records"
    )]
    Offsets,
    /// The metadata store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Streams for new partitions.
struct NewStreams {
    /// The stream id and the log of each partition.
    places: Vec<(StreamId, Uuid)>,
    /// The condition that no other writer has taken the ids.
    unused: Compare,
    /// The change that marks the ids as used.
    used: Change,
}

impl NewStreams {
    /// An update that makes `change`, which uses the new streams.
    fn taken(self, change: Change) -> Update<()> {
        Update { compares: vec![self.unused], changes: vec![self.used, change], result: () }
    }
}

/// Learns of topics that are gone and of partitions that have moved, also where another broker has changed that.
pub trait Removals: std::fmt::Debug + Send + Sync {
    /// The topic `name` is gone. Another one may have the name already.
    fn removed(self: Arc<Self>, _name: &str) {}

    /// A partition has moved: another one stands in its place.
    fn moved(&self, _partition: &Arc<Partition>) {}
}

/// All topics.
#[derive(Debug)]
pub struct Topics {
    metadata: Arc<Metadata>,
    logs: Arc<Logs>,
    configs: Arc<ResourceConfigs>,
    placement: Arc<Placement>,
    by_name: RwLock<Names>,
    by_id: RwLock<HashMap<Uuid, Arc<Topic>>>,
    by_stream: RwLock<HashMap<StreamId, Arc<Partition>>>,
    /// Held during a change of a topic.
    change: Mutex<()>,
    /// Held while topics and partitions are added, replaced and removed in memory.
    shape: Mutex<()>,
    removals: RwLock<Vec<Weak<dyn Removals>>>,
    /// Topics with partitions that move to other logs.
    moving: Mutex<BTreeSet<String>>,
    /// Number of times that a topic was created, was deleted, or got partitions.
    changes: watch::Sender<u64>,
    /// Bytes of requests that may still wait for leaders.
    settling: Semaphore,
    /// What all topics count together, also those that are gone.
    pub traffic: Arc<Traffic>,
}

impl Topics {
    /// Opens the topics of the metadata. Drops streams without a topic, which a crash during a deletion may have left.
    pub fn open(
        metadata: Arc<Metadata>,
        logs: Arc<Logs>,
        configs: Arc<ResourceConfigs>,
        placement: Arc<Placement>,
    ) -> Arc<Topics> {
        let topics = Arc::new(Topics {
            metadata,
            logs,
            configs,
            placement,
            by_name: RwLock::default(),
            by_id: RwLock::default(),
            by_stream: RwLock::default(),
            change: Mutex::default(),
            shape: Mutex::default(),
            removals: RwLock::default(),
            moving: Mutex::default(),
            changes: watch::Sender::new(0),
            settling: Semaphore::new(moving::SETTLING_BYTES_MAX),
            traffic: Arc::default(),
        });
        let image = topics.metadata.image();
        // Internal topics first: nothing of the others goes to the object store before their partitions lead.
        for internal in [true, false] {
            for (name, record) in image.topics.iter().filter(|(name, _)| is_internal(name) == internal) {
                topics.insert(&image, Text::from(name.to_owned()), record);
            }
        }
        for log in topics.logs.all().iter() {
            topics.drop_orphans(log, StreamId(u64::MAX));
        }
        let observer = Arc::downgrade(&topics);
        topics.metadata.observe(observer);
        topics
    }

    /// Tells `removals` of every topic that is gone from now on, before the caller that deleted it continues.
    pub fn tell_removals(&self, removals: Weak<dyn Removals>) {
        self.removals.write().push(removals);
    }

    /// The topic of this name.
    pub fn find(&self, name: &str) -> Option<Arc<Topic>> {
        // A request may use a name of 32 KB with a hundred thousand indexes, so long names are refused before the
        // look-up.
        (name.len() <= TOPIC_NAME_MAX).then(|| self.by_name.read().topics.get(name).cloned()).flatten()
    }

    /// The topic with this id.
    pub fn find_id(&self, id: &Uuid) -> Option<Arc<Topic>> {
        self.by_id.read().get(id).cloned()
    }

    /// A number that changes whenever a topic is created, is deleted, or gets partitions, and when partitions move.
    pub fn changes(&self) -> u64 {
        *self.changes.borrow()
    }

    fn note_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The partition that owns `stream`.
    pub fn of_stream(&self, stream: StreamId) -> Option<Arc<Partition>> {
        self.by_stream.read().get(&stream).cloned()
    }

    /// All topics, ordered by name.
    pub fn all(&self) -> Vec<Arc<Topic>> {
        let mut all: Vec<_> = self.by_name.read().topics.values().cloned().collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Checks whether a topic of this name can be created.
    pub fn check_new(&self, name: &str) -> Result<(), TopicError> {
        check_name(name)?;
        if name == METADATA_TOPIC {
            return Err(TopicError::Prohibited);
        }
        let by_name = self.by_name.read();
        if by_name.topics.contains_key(name) {
            return Err(TopicError::Exists(name.to_owned()));
        }
        // As in Kafka, names with the same metric name are refused.
        if let Some(other) = by_name.collision(name) {
            return Err(TopicError::Name(format!("Topic '{name}' collides with existing topic: {other}")));
        }
        Ok(())
    }

    /// Checks whether a new topic can have this number of partitions.
    pub fn check_count(&self, partitions: i32) -> Result<(), TopicError> {
        if partitions < 1 || partitions > self.configs.now().partitions_max {
            let max = self.configs.now().partitions_max;
            return Err(TopicError::Partitions(format!("Number of partitions must be from 1 to {max}.")));
        }
        Ok(())
    }

    /// Creates a topic. Its settings must be checked before. `forget` first removes what is left of an earlier topic of
    /// this name. Durable on return. Blocks.
    pub fn create(
        &self,
        name: &str,
        (partitions, leaders): (i32, &Leaders),
        mut configs: Overrides,
        forget: impl FnOnce() -> bool,
    ) -> Result<Arc<Topic>, TopicError> {
        if self.logs.are_moving() {
            let image = self.metadata.image();
            // A broker of an earlier version keeps no copies.
            let copies = image.brokers.iter().all(|(_, broker)| broker.disk.is_some());
            settle_level(&mut configs, &self.configs.now(), copies)
                .map_err(|why| TopicError::Config(why.to_owned()))?;
        } else if !is_internal(name) {
            settle_diskless(&mut configs, &self.configs.now());
        }
        let _one = self.change.lock();
        self.check_new(name)?;
        self.check_count(partitions)?;
        if !forget() {
            return Err(TopicError::Offsets);
        }
        let id = Uuid::new_v4();
        self.metadata.update(|image| {
            if image.topics.get(name).is_some() {
                return Err(TopicError::Exists(name.to_owned()));
            }
            let streams = self.new_streams(image, 0..partitions, leaders)?;
            let mut record = TopicRecord::new(id, configs.clone());
            streams.places.iter().for_each(|place| record.push(*place));
            Ok(streams.taken(record.put(name)))
        })?;
        tracing::info!(topic = name, partitions, "created a topic");
        self.find_id(&id).ok_or(TopicError::Unknown)
    }

    /// Adds partitions up to `total`. Durable on return. Blocks.
    pub fn add_partitions(&self, name: &str, total: i32, leaders: &Leaders) -> Result<(), TopicError> {
        let _one = self.change.lock();
        let topic = self.find(name).ok_or(TopicError::Unknown)?;
        self.metadata.update(|image| {
            let mut record = TopicRecord::clone(found(image, name, &topic.id)?);
            // Another writer may have added partitions in the meantime.
            let now = i32::try_from(record.streams.len()).unwrap_or(i32::MAX);
            self.check_total(&topic.name, now, total)?;
            let streams = self.new_streams(image, now..total, leaders)?;
            streams.places.iter().for_each(|place| record.push(*place));
            Ok(streams.taken(record.put(name)))
        })
    }

    /// Checks whether the topic `name` with `now` partitions can have `total`.
    pub fn check_total(&self, name: &str, now: i32, total: i32) -> Result<(), TopicError> {
        if total == now {
            return Err(TopicError::Partitions(format!("Topic already has {now} partition(s).")));
        }
        if total < now {
            return Err(TopicError::Partitions(format!(
                "The topic {name} currently has {now} partition(s); {total} would not be an increase."
            )));
        }
        if total > self.configs.now().partitions_max {
            let max = self.configs.now().partitions_max;
            return Err(TopicError::Partitions(format!("Number of partitions must be at most {max}.")));
        }
        Ok(())
    }

    /// Replaces the settings of a topic by the result of `change`. Durable on return. Blocks.
    pub fn configure<E: From<TopicError> + From<MetaError>>(
        &self,
        name: &str,
        change: impl Fn(&Overrides) -> Result<Overrides, E>,
    ) -> Result<(), E> {
        let _one = self.change.lock();
        self.metadata.update(|image| {
            let old = image.topics.get(name).ok_or(TopicError::Unknown)?;
            let record = TopicRecord { configs: change(&old.configs)?, ..TopicRecord::clone(old) };
            Ok(Update::new(vec![record.put(name)], ()))
        })
    }

    /// Recomputes the settings of all topics after a change of the broker's settings, which give the defaults.
    fn reconfigure(&self) {
        // Most topics have no settings of their own and share one value.
        let mut worked_out: HashMap<Overrides, Arc<TopicConfig>> = HashMap::new();
        for topic in self.all() {
            let config = worked_out.entry(topic.record().configs.clone());
            let config = config.or_insert_with_key(|overrides| Arc::new(self.config_of(overrides)));
            *topic.config.write() = config.clone();
        }
    }

    /// The settings of a topic with these overrides.
    fn config_of(&self, overrides: &Overrides) -> TopicConfig {
        match self.logs.are_moving() {
            true => {
                let mut config = TopicConfig::in_cluster(overrides, &self.configs.now());
                let says = overrides.contains_key(MIN_INSYNC) || !config.is_replicated();
                if !says {
                    config.in_sync_min = self.configs.in_sync_min();
                }
                config
            }
            false => TopicConfig::new(overrides, &self.configs.now()),
        }
    }

    /// Deletes a topic and its records. `forget` removes what other modules keep under its name, before a new topic can
    /// take the name. The deletion is durable on return. Blocks.
    pub fn delete(&self, topic: &Topic) -> Result<(), TopicError> {
        let _one = self.change.lock();
        // The name may belong to another topic by now.
        let topic = self.find_id(&topic.id).ok_or(TopicError::Unknown)?;
        let name = topic.name.as_str();
        self.metadata.update(|image| {
            found(image, name, &topic.id)?;
            Ok::<_, TopicError>(Update::new(vec![TopicRecord::delete(name)], ()))
        })?;
        tracing::info!(topic = name, "deleted a topic");
        Ok(())
    }

    /// Gives up the partitions of a topic whose log directories are lost. They begin again, empty, in other
    /// directories. All other partitions stay as they are. Returns the number of replaced partitions. Durable on
    /// return. Blocks.
    pub fn give_up_lost(&self, name: &str) -> Result<usize, TopicError> {
        let _one = self.change.lock();
        let topic = self.find(name).ok_or(TopicError::Unknown)?;
        let partitions = topic.partitions();
        let lost: HashSet<u64> =
            partitions.iter().filter(|it| it.is_lost()).map(|it| it.stream_id.0).collect();
        let count = self.metadata.update(|image| {
            let mut record = TopicRecord::clone(found(image, name, &topic.id)?);
            // Some partitions may have been replaced in the meantime and have new records.
            let lost: Vec<usize> =
                (0..record.streams.len()).filter(|at| lost.contains(&record.streams[*at])).collect();
            let count = i32::try_from(lost.len()).unwrap_or(i32::MAX);
            let streams = self.new_streams(image, 0..count, &Leaders::new())?;
            for (at, place) in lost.iter().zip(&streams.places) {
                record.replace(*at, *place);
            }
            let Update { compares, changes, .. } = streams.taken(record.put(name));
            Ok::<_, TopicError>(Update { compares, changes, result: lost.len() })
        })?;
        tracing::warn!(topic = name, partitions = count, "gave up lost partitions; they begin anew");
        Ok(count)
    }

    /// The number of partitions in each log according to the metadata. The nil id counts those of the first log.
    pub fn placed(image: &Image) -> BTreeMap<Uuid, usize> {
        let mut placed = BTreeMap::new();
        for (_, record) in image.topics.iter() {
            record.places().for_each(|(_, log)| *placed.entry(log).or_default() += 1);
        }
        placed
    }

    /// The content of each log.
    fn held(&self) -> HashMap<Uuid, Held> {
        let mut all: HashMap<Uuid, Held> = HashMap::new();
        let partitions: Vec<Arc<Partition>> = self.by_stream.read().values().cloned().collect();
        for log in partitions.iter().filter_map(|partition| partition.log().ok()) {
            let held = all.entry(log.log_id()).or_default();
            held.partitions += 1;
            held.promised_bytes += self.logs.promise(log.bounds().bytes);
        }
        all
    }

    /// Chooses logs for the new streams of partitions, and allocates their ids.
    fn new_streams(
        &self,
        image: &Image,
        indexes: Range<i32>,
        leaders: &Leaders,
    ) -> Result<NewStreams, TopicError> {
        let logs = match self.logs.are_moving() {
            true => Topics::place_in_cluster(image, indexes, leaders),
            false => self.logs.place(indexes.len(), || self.held()),
        };
        self.streams_in(logs.map_err(TopicError::NoLog)?)
    }

    /// Allocates the ids of new streams in these logs.
    fn streams_in(&self, logs: Vec<Uuid>) -> Result<NewStreams, TopicError> {
        let next = self.metadata.store().find(NEXT_STREAM_KEY)?;
        let unused =
            Compare { key: NEXT_STREAM_KEY.into(), revision: next.as_ref().map(|value| value.revision) };
        let next = next.map(|value| stored::read(NEXT_STREAM_KEY, &value)).transpose()?;
        let first: u64 = next.unwrap_or(1);
        let next = first + logs.len() as u64;
        let bytes = serde_json::to_vec(&next).expect("a number can be written as JSON");
        let places = (first..next).map(StreamId).zip(logs).collect();
        Ok(NewStreams { places, unused, used: Change::put(NEXT_STREAM_KEY, bytes) })
    }

    fn partition(
        &self,
        image: &Image,
        (topic, traffic): (&Text, &Arc<Traffic>),
        record: &TopicRecord,
        index: i32,
        (stream, log): (StreamId, Uuid),
    ) -> Arc<Partition> {
        let base = record.epoch_base(index);
        let leader = self.leader_of(image, log, base);
        let name = (topic.clone(), traffic.clone());
        let partition = Partition::new(name, index, (stream, base), self.logs.find(log), leader);
        if record.moves.get(&index).is_some_and(|of| of.ready) {
            partition.seal(true);
        }
        let partition = Arc::new(partition);
        self.by_stream.write().insert(stream, partition.clone());
        partition
    }

    fn insert(&self, image: &Image, name: Text, record: &Arc<TopicRecord>) {
        let (places, traffic) = ((0..).zip(record.places()), Traffic::within(&self.traffic));
        let of = (&name, &traffic);
        let partitions: Vec<_> =
            places.map(|(index, place)| self.partition(image, of, record, index, place)).collect();
        let config = Arc::new(self.config_of(&record.configs));
        // Before anybody finds the topic: a record of a diskless topic must not be visible too early.
        set_levels(&name, &partitions, &config);
        partitions.iter().for_each(|partition| partition.end_decided(SystemClock::default().now_ms()));
        let topic = Arc::new(Topic {
            name: name.clone(),
            id: record.id,
            partitions: RwLock::new(partitions.into()),
            record: RwLock::new(record.clone()),
            config: RwLock::new(config),
            traffic,
        });
        self.by_id.write().insert(record.id, topic.clone());
        self.by_name.write().insert(topic.clone());
        self.note_change();
        if !record.moves.is_empty() {
            self.follow_moves(&topic, record, record);
        }
    }

    fn remove(&self, topic: &Topic) {
        self.by_name.write().remove(&topic.name);
        self.by_id.write().remove(&topic.id);
        topic.partitions().iter().for_each(|partition| self.close(partition));
        self.note_change();
        topic.record().moves.values().for_each(|of| self.drop_copy(of));
        self.moving.lock().remove(topic.name.as_str());
    }

    /// Closes a partition whose records are no longer needed.
    fn close(&self, partition: &Partition) {
        self.by_stream.write().remove(&partition.stream_id);
        partition.set_deleted();
        // Streams in a lost directory are dropped when the directory is back, because no topic owns them.
        if let Ok(log) = partition.log() {
            log.delete();
        }
    }
}

impl Observer for Topics {
    fn changed(&self, image: &Arc<Image>, delta: &Delta) {
        if ResourceKind::Broker.is_in(delta) {
            self.reconfigure();
        }
        let (mut removed, mut moved) = (Vec::new(), Vec::new());
        let shape = self.shape.lock();
        for name in &delta.topics {
            let (there, record) = (self.find(name), image.topics.get(name));
            match (there, record) {
                (Some(topic), Some(record)) if topic.id == record.id => {
                    moved.extend(self.replace(image, &topic, record));
                }
                (there, record) => {
                    if let Some(topic) = there {
                        self.remove(&topic);
                        removed.push(name);
                    }
                    if let Some(record) = record {
                        self.insert(image, Text::from(name.clone()), record);
                    }
                }
            }
        }
        drop(shape);
        if !removed.is_empty() || !moved.is_empty() {
            for told in self.removals.read().iter().filter_map(Weak::upgrade) {
                removed.iter().for_each(|name| told.clone().removed(name));
                moved.iter().for_each(|partition| told.moved(partition));
            }
        }
        self.lead(image, delta.owners.iter().filter_map(|log| log.parse().ok()));
    }
}

/// The record of a topic, if the name still belongs to the topic with this id.
fn found<'a>(image: &'a Image, name: &str, id: &Uuid) -> Result<&'a TopicRecord, TopicError> {
    let record = image.topics.get(name).filter(|record| record.id == *id);
    record.map(|record| &**record).ok_or(TopicError::Unknown)
}

impl Streams for Topics {
    fn grown(&self, stream: StreamId, bytes: usize) {
        if let Some(partition) = self.of_stream(stream) {
            partition.subscribers.mark(bytes);
        }
    }
}

/// Tells the logs of a topic's partitions whether their records go to the object store. Those of internal topics do, so
/// that a lost disk can be replaced: before the records that they tell of.
fn set_levels(name: &str, partitions: &[Arc<Partition>], config: &TopicConfig) {
    for log in partitions.iter().filter_map(|partition| partition.log().ok()) {
        if is_internal(name) {
            log.set_leading();
        }
        // What is stored is given up step by step, with the retention checks.
        match &config.tiering {
            Some(tiering) if !is_internal(name) || tiering.level.waits() => log.set_level(tiering.level),
            _ => {}
        }
    }
}
