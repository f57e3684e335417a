//! The partitions of an internal topic that this broker coordinates.
//!
//! Each partition that this broker leads has a *shard*: the entries (groups or transactional ids) restored from the
//! records of the partition. A shard serves one leader epoch. When another broker leads the partition, the shard is
//! unloaded. When this broker leads it again, the shard is loaded anew.
//!
//! Invariants:
//! 1. A shard is loaded only after every record appended by earlier leaders is durable.
//! 2. Appends carry the epoch of the shard. A shard with an old epoch appends nothing.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::BatchHeader;
use parking_lot::Mutex;
use storage::ReadError;
use wire::records::RecordView;

use crate::groups::partition_for;
use crate::internal::read_records;
use crate::logs::Absent;
use crate::partition::log::PartitionLog;
use crate::partition::{Elsewhere, Partition, Replica};
use crate::resources::blocking::blocking;
use crate::topics::Topics;

/// A coordinator: the type of the state it keeps for each key of its internal topic, and the rules to load that state.
pub trait Coordinates: Send + Sync + Sized + 'static {
    /// The name of the internal topic.
    const TOPIC: &'static str;
    /// The state of one key.
    type Entry: Send + Sync + 'static;
    /// The state of a whole partition while its records are being read.
    type Loaded: Default + Send + 'static;

    /// The coordinator's shards.
    fn shards(&self) -> &Shards<Self::Entry>;
    /// Applies a record of the log.
    fn replay(loaded: &mut Self::Loaded, header: &BatchHeader, record: &RecordView);
    /// Inserts the entries of a loaded partition into its shard. No other task sees the shard yet.
    fn restore(self: &Arc<Self>, shard: &Arc<Shard<Self::Entry>>, loaded: Self::Loaded);
    /// Closes an entry that this broker no longer coordinates.
    fn unload(self: &Arc<Self>, entry: &Arc<Self::Entry>);
    /// Called when a partition begins to serve.
    fn loaded(self: &Arc<Self>, _partition: i32) {}
    /// Called when a shard was unloaded and is gone. Its partition may have another shard by then.
    fn unloaded(self: &Arc<Self>) {}
}

/// A partition whose log moves between brokers is read again so long after an attempt that failed.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Why this broker does not serve a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unserved {
    /// Another broker leads the partition of the key.
    Elsewhere,
    /// The partition is being read.
    Loading,
    /// The records of the partition cannot be read, or its log accepts no more appends.
    Unavailable,
}

/// The partition of a shard, and the epoch in which this broker leads it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Weak, so that timers and loads do not keep the files of a dropped broker open.
    partition: Weak<Partition>,
    /// The leader epoch.
    pub epoch: i32,
}

impl Place {
    /// The partition. `None` once the broker is dropped.
    pub fn partition(&self) -> Option<Arc<Partition>> {
        self.partition.upgrade()
    }

    fn is_of(&self, partition: &Arc<Partition>, epoch: i32) -> bool {
        self.epoch == epoch && std::ptr::eq(self.partition.as_ptr(), Arc::as_ptr(partition))
    }
}

/// The entries of one partition in one leader epoch.
pub struct Shard<E> {
    /// The partition and the epoch.
    pub place: Place,
    entries: Mutex<HashMap<String, Arc<E>>>,
}

impl<E> Shard<E> {
    fn new(place: Place) -> Arc<Shard<E>> {
        Arc::new(Shard { place, entries: Mutex::default() })
    }

    /// The entry of a key.
    pub fn find(&self, key: &str) -> Option<Arc<E>> {
        self.entries.lock().get(key).cloned()
    }

    /// The entry of a key. A missing entry is created by `new`.
    pub fn find_or_insert(&self, key: &str, new: impl FnOnce() -> E) -> Arc<E> {
        if let Some(found) = self.find(key) {
            return found;
        }
        self.entries.lock().entry(key.to_owned()).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Removes an entry, unless the key has another entry by now.
    pub fn remove(&self, key: &str, entry: &Arc<E>) {
        let mut entries = self.entries.lock();
        if entries.get(key).is_some_and(|other| Arc::ptr_eq(other, entry)) {
            entries.remove(key);
        }
    }

    /// All entries, in no order.
    pub fn all(&self) -> Vec<Arc<E>> {
        self.entries.lock().values().cloned().collect()
    }
}

enum Slot<E> {
    Loading(Place),
    Ready(Arc<Shard<E>>),
    Unreadable(Place),
    /// The log of the shard has stopped. The entries stay, because a restart may restore them.
    Failed(Arc<Shard<E>>),
}

impl<E> Slot<E> {
    fn place(&self) -> &Place {
        match self {
            Slot::Loading(place) | Slot::Unreadable(place) => place,
            Slot::Ready(shard) | Slot::Failed(shard) => &shard.place,
        }
    }
}

/// The shards of one coordinator, by partition.
pub struct Shards<E> {
    /// The id of this broker.
    node: i32,
    topics: Weak<Topics>,
    slots: Mutex<HashMap<i32, Slot<E>>>,
}

impl<E> Shards<E> {
    /// Creates the shards of the broker `node`. No shard is loaded.
    pub fn new(topics: &Arc<Topics>, node: i32) -> Shards<E> {
        Shards { node, topics: Arc::downgrade(topics), slots: Mutex::default() }
    }

    /// The topics. `None` once the broker is dropped.
    pub fn topics(&self) -> Option<Arc<Topics>> {
        self.topics.upgrade()
    }

    /// Whether the broker is dropped.
    pub fn are_abandoned(&self) -> bool {
        self.topics.strong_count() == 0
    }

    fn ready(&self) -> Vec<Arc<Shard<E>>> {
        let slots = self.slots.lock();
        let ready = |slot: &Slot<E>| match slot {
            Slot::Ready(shard) => Some(shard.clone()),
            _ => None,
        };
        slots.values().filter_map(ready).collect()
    }

    /// All entries of the shards that serve, in no order.
    pub fn entries(&self) -> Vec<Arc<E>> {
        self.ready().iter().flat_map(|shard| shard.all()).collect()
    }

    /// Whether a partition is being loaded.
    pub fn are_loading(&self) -> bool {
        self.slots.lock().values().any(|slot| matches!(slot, Slot::Loading(_)))
    }

    /// The number of entries in the shards that serve.
    pub fn len(&self) -> usize {
        self.ready().iter().map(|shard| shard.entries.lock().len()).sum()
    }

    /// Marks a shard as failed because its log has stopped. A restart may lose what its entries show, so the shard
    /// stops serving. Returns whether the shard was serving until now.
    pub fn fail(&self, shard: &Arc<Shard<E>>) -> bool {
        let mut slots = self.slots.lock();
        let serves = |slot: &&mut Slot<E>| matches!(slot, Slot::Ready(of) if Arc::ptr_eq(of, shard));
        let slot = slots.values_mut().find(serves);
        let served = slot.is_some();
        slot.into_iter().for_each(|slot| *slot = Slot::Failed(shard.clone()));
        served
    }

    /// Whether the records of a partition cannot be read, or its log has stopped.
    fn is_unreadable(&self, partition: &Arc<Partition>) -> bool {
        match self.slots.lock().get(&partition.index) {
            Some(slot @ (Slot::Unreadable(_) | Slot::Failed(_))) => {
                slot.place().is_of(partition, slot.place().epoch)
            }
            _ => false,
        }
    }

    /// Runs `note` if the partition is being loaded, before the shard can serve. Returns whether `note` ran.
    pub fn while_loading(&self, partition: i32, note: impl FnOnce()) -> bool {
        let slots = self.slots.lock();
        let loading = matches!(slots.get(&partition), Some(Slot::Loading(_)));
        if loading {
            note();
        }
        loading
    }
}

/// The partition that holds a key. `None` if the internal topic does not exist yet.
pub fn partition_of<C: Coordinates>(coordinator: &C, key: &str) -> Option<Arc<Partition>> {
    let topic = coordinator.shards().topics()?.find(C::TOPIC)?;
    let count = i32::try_from(topic.partitions().len()).ok()?;
    topic.partition(partition_for(key, count))
}

/// The broker that coordinates a key. `None` if no broker does at present.
pub fn coordinator_of<C: Coordinates>(coordinator: &C, key: &str) -> Option<i32> {
    let partition = partition_of(coordinator, key)?;
    let works = match partition.log() {
        Ok(log) => log.stopped().is_none() && !coordinator.shards().is_unreadable(&partition),
        Err(Absent::Lost(_)) => false,
        Err(Absent::Elsewhere) => true,
    };
    works.then(|| partition.leader().node)
}

/// The shard of a key. `None` if the internal topic does not exist yet.
pub fn shard_of<C: Coordinates>(
    coordinator: &Arc<C>,
    key: &str,
) -> Result<Option<Arc<Shard<C::Entry>>>, Unserved> {
    partition_of(&**coordinator, key).map(|partition| follow(coordinator, &partition)).transpose()
}

/// The shard of a partition, if this broker leads it. Unloads a shard of another leader or another epoch. Begins to
/// load a partition that has no shard here.
pub fn follow<C: Coordinates>(
    coordinator: &Arc<C>,
    partition: &Arc<Partition>,
) -> Result<Arc<Shard<C::Entry>>, Unserved> {
    let shards = coordinator.shards();
    let replica = partition.replica(shards.node);
    let (found, gone) = {
        let mut slots = shards.slots.lock();
        let topic = shards.topics().and_then(|topics| topics.find(C::TOPIC));
        let current = topic.and_then(|topic| topic.partition(partition.index));
        if current.is_some_and(|current| !Arc::ptr_eq(&current, partition)) {
            // Another partition stands in its place since the caller has looked, perhaps with a shard of the same epoch.
            return Err(Unserved::Elsewhere);
        }
        let stays = |slot: &Slot<C::Entry>| {
            replica.as_ref().is_ok_and(|replica| slot.place().is_of(partition, replica.epoch))
        };
        let gone = match slots.get(&partition.index) {
            Some(slot) if !stays(slot) => slots.remove(&partition.index),
            _ => None,
        };
        let place =
            |replica: &Replica<'_>| Place { partition: Arc::downgrade(partition), epoch: replica.epoch };
        let found = match (replica, slots.get(&partition.index)) {
            (Err(Elsewhere::Remote), _) => Err(Unserved::Elsewhere),
            (Err(Elsewhere::Offline(_)), _) => Err(Unserved::Unavailable),
            (Ok(_), Some(Slot::Unreadable(_) | Slot::Failed(_))) => Err(Unserved::Unavailable),
            (Ok(_), Some(Slot::Ready(shard))) => Ok(shard.clone()),
            (Ok(_), Some(Slot::Loading(_))) => Err(Unserved::Loading),
            (Ok(replica), None) if partition.next_offset() == replica.log.bounds().start => {
                let shard = Shard::new(place(&replica));
                slots.insert(partition.index, Slot::Ready(shard.clone()));
                Ok(shard)
            }
            (Ok(replica), None) => {
                slots.insert(partition.index, Slot::Loading(place(&replica)));
                let log = replica.log.clone();
                tokio::spawn(load(coordinator.clone(), partition.clone(), log, place(&replica)));
                Err(Unserved::Loading)
            }
        };
        (found, gone)
    };
    if let Some(slot) = gone {
        let_go(coordinator, slot);
    }
    found
}

fn let_go<C: Coordinates>(coordinator: &Arc<C>, slot: Slot<C::Entry>) {
    if let Slot::Ready(shard) | Slot::Failed(shard) = slot {
        shard.all().iter().for_each(|entry| coordinator.unload(entry));
        drop(shard);
        coordinator.unloaded();
    }
}

async fn load<C: Coordinates>(
    coordinator: Arc<C>,
    partition: Arc<Partition>,
    log: Arc<dyn PartitionLog>,
    place: Place,
) {
    // The load runs in a task of its own. A panic must not leave the partition in the state Loading for ever.
    let slot = loop {
        let read =
            tokio::spawn(read(coordinator.clone(), partition.clone(), log.clone(), place.clone())).await;
        match read.map_err(|error| error.to_string()).flatten() {
            Ok(shard) => break Slot::Ready(shard),
            Err(error) => report_unreadable(&partition, &error),
        }
        // The records of a log that has moved are in the object store alone, which may be away for a while.
        let again = partition.moves() && partition.replica(coordinator.shards().node).is_ok();
        if !again || coordinator.shards().are_abandoned() || log.stopped().is_some() {
            break Slot::Unreadable(place);
        }
        tokio::time::sleep(RELOAD_INTERVAL).await;
    };
    finish_loading(&coordinator, &partition, slot);
}

async fn read<C: Coordinates>(
    coordinator: Arc<C>,
    partition: Arc<Partition>,
    log: Arc<dyn PartitionLog>,
    place: Place,
) -> Result<Arc<Shard<C::Entry>>, String> {
    // Earlier leaders may have appended records that are not durable yet. They append nothing from now on.
    let end = partition.next_offset();
    partition.committed(&*log, end).await.map_err(|error| error.to_string())?;
    let loaded = blocking(move || {
        let mut loaded = C::Loaded::default();
        let take = |_, header: &BatchHeader, record: &RecordView| C::replay(&mut loaded, header, record);
        let read = read_records(&[(&*partition, &log)], take).pop();
        read.unwrap_or(Ok(())).map(|()| loaded)
    });
    let loaded = loaded.await.map_err(|error| error.to_string())?;
    let shard = Shard::new(place);
    coordinator.restore(&shard, loaded);
    Ok(shard)
}

/// Replaces the slot of a partition that was being loaded, unless the partition has another leader or epoch by now.
fn finish_loading<C: Coordinates>(coordinator: &Arc<C>, partition: &Arc<Partition>, slot: Slot<C::Entry>) {
    let overtaken = {
        let mut slots = coordinator.shards().slots.lock();
        match slots.get_mut(&partition.index) {
            Some(current @ Slot::Loading(_)) if current.place().is_of(partition, slot.place().epoch) => {
                *current = slot;
                None
            }
            _ => Some(slot),
        }
    };
    match overtaken {
        Some(slot) => let_go(coordinator, slot),
        None => coordinator.loaded(partition.index),
    }
}

fn report_unreadable(partition: &Partition, error: &str) {
    let (topic, index) = (partition.topic.as_str(), partition.index);
    tracing::error!(
        topic,
        partition = index,
        error,
        "the records of a partition cannot be read: its keys have no coordinator"
    );
}

/// Loads every partition that this broker leads. With several logs, an unreadable log makes only its own partitions
/// unavailable. Blocks.
///
/// # Errors
/// [`ReadError`], if `only_log` is set and the log cannot be read.
pub fn load_all<C: Coordinates>(coordinator: &Arc<C>, only_log: bool) -> Result<(), ReadError> {
    let Some(topic) = coordinator.shards().topics().and_then(|topics| topics.find(C::TOPIC)) else {
        return Ok(());
    };
    let partitions = topic.partitions();
    let here: Vec<_> = partitions
        .iter()
        .filter_map(|partition| Some((partition, partition.replica(coordinator.shards().node).ok()?)))
        .collect();
    let places: Vec<_> = here.iter().map(|(partition, replica)| (&***partition, replica.log)).collect();
    let mut loaded: Vec<C::Loaded> = here.iter().map(|_| C::Loaded::default()).collect();
    let read = read_records(&places, |at, header, record| C::replay(&mut loaded[at], header, record));
    for (((partition, replica), loaded), read) in here.iter().zip(loaded).zip(read) {
        let place = Place { partition: Arc::downgrade(partition), epoch: replica.epoch };
        let slot = match read {
            Ok(()) => {
                let shard = Shard::new(place);
                coordinator.restore(&shard, loaded);
                Slot::Ready(shard)
            }
            Err(error) if only_log => return Err(error),
            Err(error) => {
                report_unreadable(partition, &error.to_string());
                Slot::Unreadable(place)
            }
        };
        coordinator.shards().slots.lock().insert(partition.index, slot);
    }
    Ok(())
}
