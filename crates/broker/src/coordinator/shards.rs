//! The partitions of an internal topic as this broker coordinates them.
//!
//! A partition that this broker leads is a *shard*: its entries (groups or transactional ids), restored from the records of
//! the partition. A shard serves for one leader epoch. When another broker leads the partition, the shard is unloaded; when
//! this broker leads it again, it is loaded anew.
//!
//! Invariants:
//! 1. A shard is loaded only after every record that the leaders before have appended is durable.
//! 2. Appends carry the epoch of the shard. A shard that was overtaken appends nothing.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use model::BatchHeader;
use parking_lot::Mutex;
use storage::ReadError;
use wire::records::RecordView;

use crate::groups::partition_for;
use crate::internal::read_records;
use crate::partition::{Elsewhere, Home, Partition, Replica};
use crate::resources::blocking::blocking;
use crate::topics::Topics;

/// A coordinator: what it keeps for each key of its internal topic.
pub trait Coordinates: Send + Sync + Sized + 'static {
    /// The internal topic.
    const TOPIC: &'static str;
    /// The state of one key.
    type Entry: Send + Sync + 'static;
    /// What the records of a partition say.
    type Loaded: Default + Send + 'static;

    /// Its shards.
    fn shards(&self) -> &Shards<Self::Entry>;
    /// Applies a record of the log.
    fn replay(loaded: &mut Self::Loaded, header: &BatchHeader, record: &RecordView);
    /// Puts the entries of a loaded partition into its shard, which nobody else sees yet.
    fn restore(self: &Arc<Self>, shard: &Arc<Shard<Self::Entry>>, loaded: Self::Loaded);
    /// Lets go of an entry that this broker does not coordinate any more.
    fn unload(self: &Arc<Self>, entry: &Arc<Self::Entry>);
    /// A partition serves from now on.
    fn loaded(self: &Arc<Self>, _partition: i32) {}
    /// A shard was unloaded, and is gone. Its partition may have another one by now.
    fn unloaded(self: &Arc<Self>) {}
}

/// Why this broker does not serve a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unserved {
    /// Another broker leads its partition.
    Elsewhere,
    /// The partition is being read.
    Loading,
    /// The records of the partition cannot be read, or its log takes no more.
    Unavailable,
}

/// The partition of a shard, and the epoch in which this broker leads it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Weak: timers and loads do not keep the files of a broker that is gone.
    partition: Weak<Partition>,
    /// The epoch of the leader.
    pub epoch: i32,
}

impl Place {
    /// The partition, while the broker is there.
    pub fn partition(&self) -> Option<Arc<Partition>> {
        self.partition.upgrade()
    }

    fn is_of(&self, partition: &Arc<Partition>, epoch: i32) -> bool {
        self.epoch == epoch && std::ptr::eq(self.partition.as_ptr(), Arc::as_ptr(partition))
    }
}

/// One partition.
pub struct Shard<E> {
    /// Which.
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

    /// The entry of a key, new if there is none.
    pub fn find_or_insert(&self, key: &str, new: impl FnOnce() -> E) -> Arc<E> {
        if let Some(found) = self.find(key) {
            return found;
        }
        self.entries.lock().entry(key.to_owned()).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Removes an entry, unless another one has its key by now.
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
    /// Its log has stopped. The entries stay: what they hold may be there again after a restart.
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
    /// This broker.
    node: i32,
    topics: Weak<Topics>,
    slots: Mutex<HashMap<i32, Slot<E>>>,
}

impl<E> Shards<E> {
    /// Those of the broker `node`; none is loaded.
    pub fn new(topics: &Arc<Topics>, node: i32) -> Shards<E> {
        Shards { node, topics: Arc::downgrade(topics), slots: Mutex::default() }
    }

    /// The topics, while the broker is there.
    pub fn topics(&self) -> Option<Arc<Topics>> {
        self.topics.upgrade()
    }

    /// Whether the broker is gone.
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

    /// All entries, in no order.
    pub fn entries(&self) -> Vec<Arc<E>> {
        self.ready().iter().flat_map(|shard| shard.all()).collect()
    }

    /// Whether a partition is being loaded.
    pub fn are_loading(&self) -> bool {
        self.slots.lock().values().any(|slot| matches!(slot, Slot::Loading(_)))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.ready().iter().map(|shard| shard.entries.lock().len()).sum()
    }

    /// The log of a shard has stopped: what its entries show may not be there after a restart, so nobody is served. Returns
    /// whether it served until now.
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

    /// Runs `note` if the partition is being loaded, before it serves.
    pub fn while_loading(&self, partition: i32, note: impl FnOnce()) -> bool {
        let slots = self.slots.lock();
        let loading = matches!(slots.get(&partition), Some(Slot::Loading(_)));
        if loading {
            note();
        }
        loading
    }
}

/// The partition of a key, once the internal topic exists.
pub fn partition_of<C: Coordinates>(coordinator: &C, key: &str) -> Option<Arc<Partition>> {
    let topic = coordinator.shards().topics()?.find(C::TOPIC)?;
    let count = i32::try_from(topic.partitions().len()).ok()?;
    topic.partition(partition_for(key, count))
}

/// The broker that coordinates a key; `None` while there is none.
pub fn coordinator_of<C: Coordinates>(coordinator: &C, key: &str) -> Option<i32> {
    let partition = partition_of(coordinator, key)?;
    let works = partition.home().is_ok_and(|home| home.log.log.stopped().is_none());
    let here = works && !coordinator.shards().is_unreadable(&partition);
    here.then(|| partition.leader().node)
}

/// The shard of a key; `None` before the internal topic exists.
pub fn shard_of<C: Coordinates>(
    coordinator: &Arc<C>,
    key: &str,
) -> Result<Option<Arc<Shard<C::Entry>>>, Unserved> {
    partition_of(&**coordinator, key).map(|partition| follow(coordinator, &partition)).transpose()
}

/// The shard of a partition, if this broker leads it. A shard that another broker leads is unloaded, and loading begins
/// for one that is new to this broker.
pub fn follow<C: Coordinates>(
    coordinator: &Arc<C>,
    partition: &Arc<Partition>,
) -> Result<Arc<Shard<C::Entry>>, Unserved> {
    let shards = coordinator.shards();
    let replica = partition.replica(shards.node);
    let (found, gone) = {
        let mut slots = shards.slots.lock();
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
            (Ok(replica), None) if partition.next_offset() == replica.home.stream.bounds().start => {
                let shard = Shard::new(place(&replica));
                slots.insert(partition.index, Slot::Ready(shard.clone()));
                Ok(shard)
            }
            (Ok(replica), None) => {
                slots.insert(partition.index, Slot::Loading(place(&replica)));
                let home = replica.home.clone();
                tokio::spawn(load(coordinator.clone(), partition.clone(), home, place(&replica)));
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

async fn load<C: Coordinates>(coordinator: Arc<C>, partition: Arc<Partition>, home: Home, place: Place) {
    // In a task of its own: a panic must not leave the partition loading for ever.
    let read = tokio::spawn(read(coordinator.clone(), partition.clone(), home, place.clone())).await;
    let slot = match read.map_err(|error| error.to_string()).flatten() {
        Ok(shard) => Slot::Ready(shard),
        Err(error) => {
            report_unreadable(&partition, &error);
            Slot::Unreadable(place)
        }
    };
    finish_loading(&coordinator, &partition, slot);
}

async fn read<C: Coordinates>(
    coordinator: Arc<C>,
    partition: Arc<Partition>,
    home: Home,
    place: Place,
) -> Result<Arc<Shard<C::Entry>>, String> {
    // The leader before may have appended records that are not durable yet. It appends none from now on.
    let end = partition.next_offset();
    partition.committed(&home, end).await.map_err(|error| error.to_string())?;
    let loaded = blocking(move || {
        let mut loaded = C::Loaded::default();
        let take = |_, header: &BatchHeader, record: &RecordView| C::replay(&mut loaded, header, record);
        let read = read_records(&[(&*partition, &home)], take).pop();
        read.unwrap_or(Ok(())).map(|()| loaded)
    });
    let loaded = loaded.await.map_err(|error| error.to_string())?;
    let shard = Shard::new(place);
    coordinator.restore(&shard, loaded);
    Ok(shard)
}

/// Replaces the slot of a partition that was being loaded, unless the partition has moved on meanwhile.
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

/// Loads every partition that this broker leads. Where there are several logs, one that cannot be read takes only its
/// partitions down. Blocks.
///
/// # Errors
/// [`ReadError`] of the only log.
pub fn load_all<C: Coordinates>(coordinator: &Arc<C>, only_log: bool) -> Result<(), ReadError> {
    let Some(topic) = coordinator.shards().topics().and_then(|topics| topics.find(C::TOPIC)) else {
        return Ok(());
    };
    let partitions = topic.partitions();
    let here: Vec<_> = partitions
        .iter()
        .filter_map(|partition| Some((partition, partition.replica(coordinator.shards().node).ok()?)))
        .collect();
    let places: Vec<_> = here.iter().map(|(partition, replica)| (&***partition, replica.home)).collect();
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
