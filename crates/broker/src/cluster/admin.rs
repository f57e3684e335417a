//! What administrators ask of a cluster: its state, drains, moves of logs, and the end of a broker that is gone.
//!
//! The controller and the owners act on the records that are written here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meta::{Change, Compare, MetaError, Store};
use uuid::Uuid;

use super::ownership::{Process, owned};
use super::replicas::with_disk;
use super::{CHANGES_MAX, compare};
use crate::coordinator::producer_ids::{NEXT_BLOCK_KEY, PRODUCERS_APART};
use crate::image::records::{BrokerRecord, DrainRecord, OwnerRecord, broker_id};
use crate::image::{Image, Metadata, Record, Update, stored};
use crate::placement::Listeners;
use crate::topics::{NEXT_STREAM_KEY, STREAMS_APART};

/// Why a request of an administrator is refused.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The metadata store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The cluster has no such broker.
    #[error("Broker ID {0} is not currently registered")]
    NotRegistered(i32),
    /// The broker has to be stopped first.
    #[error("Broker ID {0} is alive. Stop it first.")]
    Alive(i32),
    /// The broker is not alive, so it can own nothing.
    #[error("broker {0} is not alive")]
    NotAlive(i32),
    /// The broker is drained, so it shall own nothing.
    #[error("broker {0} is drained")]
    Drained(i32),
    /// The cluster has no such log.
    #[error("there is no log {0}")]
    NoLog(String),
    /// The owner of the log has opened it, so it lacks nothing.
    #[error("broker {0} has the log open, so nothing is lost")]
    Open(i32),
    /// A broker that is alive has a disk with what is to be given up.
    #[error("broker {0} is alive and has a copy that counts, so nothing is lost")]
    HasCopy(i32),
}

/// A broker of the cluster. It is registered as long as it is alive, owns a log, is the home of one, or is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerState {
    /// Whether it holds its lease.
    pub alive: bool,
    /// Whether it acts as the controller.
    pub controller: bool,
    /// Whether it shall own nothing.
    pub drained: bool,
    /// Whether it is about to end.
    pub leaving: bool,
    /// Whether the object store does not answer it.
    pub without_store: bool,
    /// Whether little of its disk is free.
    pub low_on_space: bool,
    /// `broker.rack`. Unknown while it is not alive, as the next two.
    pub rack: Option<String>,
    /// The version of the program.
    pub version: Option<String>,
    /// Its addresses.
    pub listeners: Listeners,
    /// Logs that it owns.
    pub logs: usize,
    /// Partitions in these logs.
    pub partitions: usize,
}

/// A log of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The broker that gets the log when it is alive.
    pub home: i32,
    /// The owner.
    pub owner: i32,
    /// The epoch of the owner.
    pub epoch: u32,
    /// The broker for which the owner closes the log.
    pub next: Option<i32>,
    /// Partitions in the log.
    pub partitions: usize,
    /// The brokers beside the owner with copies that count. `None` for a disk whose broker is not alive.
    pub copies: Vec<Option<i32>>,
}

/// The cluster at one revision of its metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Its brokers, by id.
    pub brokers: BTreeMap<i32, BrokerState>,
    /// Its logs, by id.
    pub logs: BTreeMap<String, LogState>,
}

impl ClusterState {
    fn of(image: &Image) -> ClusterState {
        let mut state = ClusterState::default();
        let mut partitions: BTreeMap<String, usize> = BTreeMap::new();
        for (_, topic) in image.topics.iter() {
            for (_, log) in topic.places() {
                *partitions.entry(log.to_string()).or_default() += 1;
            }
        }
        for id in registered(image) {
            let alive = image.brokers.get(&id.to_string());
            state.brokers.insert(
                id,
                BrokerState {
                    alive: alive.is_some(),
                    controller: image.controller.get("").is_some_and(|controller| controller.broker == id),
                    drained: image.drains.get(&id.to_string()).is_some(),
                    leaving: alive.is_some_and(|broker| broker.leaving),
                    without_store: alive.is_some_and(|broker| broker.without_store),
                    low_on_space: alive.is_some_and(|broker| broker.low_on_space),
                    rack: alive.and_then(|broker| broker.rack.clone()),
                    version: alive.map(|broker| broker.version.clone()),
                    listeners: alive.map(|broker| broker.listeners.clone()).unwrap_or_default(),
                    ..BrokerState::default()
                },
            );
        }
        for (log, record) in image.owners.iter() {
            let partitions = partitions.get(log).copied().unwrap_or_default();
            if let Some(owner) = state.brokers.get_mut(&record.broker) {
                owner.logs += 1;
                owner.partitions += partitions;
            }
            let OwnerRecord { home, broker: owner, epoch, next, .. } = **record;
            let copies = record.set.iter().map(|disk| with_disk(image, *disk)).collect();
            state.logs.insert(log.to_owned(), LogState { home, owner, epoch, next, partitions, copies });
        }
        state
    }
}

/// The ids of the brokers that the cluster has.
fn registered(image: &Image) -> BTreeSet<i32> {
    let alive = image.brokers.iter().filter_map(|(name, _)| broker_id(name).ok());
    let drained = image.drains.iter().filter_map(|(name, _)| broker_id(name).ok());
    let of_logs = image.owners.iter().flat_map(|(_, owner)| [owner.home, owner.broker]);
    alive.chain(drained).chain(of_logs).collect()
}

/// The administrator's view of a cluster. All methods block.
#[derive(Debug)]
pub struct ClusterAdmin(Arc<Metadata>);

impl ClusterAdmin {
    /// Reads the metadata of the cluster that `store` has.
    pub fn open(store: Arc<dyn Store>) -> Result<ClusterAdmin, MetaError> {
        Ok(ClusterAdmin(Metadata::open(store)?))
    }

    /// The cluster as it is now.
    pub fn state(&self) -> Result<ClusterState, MetaError> {
        self.0.refresh()?;
        Ok(ClusterState::of(&self.0.image()))
    }

    /// Says that a broker shall own nothing, or that it may own logs again. Its logs move afterwards.
    pub fn drain(&self, broker: i32, drained: bool) -> Result<(), AdminError> {
        let name = broker.to_string();
        self.0.refresh()?;
        self.0.update(|image| {
            if !registered(image).contains(&broker) {
                return Err(AdminError::NotRegistered(broker));
            }
            let changes = match (image.drains.get(&name).is_some(), drained) {
                (false, true) => vec![DrainRecord {}.put(&name)],
                (true, false) => vec![DrainRecord::delete(&name)],
                _ => Vec::new(),
            };
            Ok(Update::new(changes, ()))
        })
    }

    /// Makes the ids of streams and producers go on far behind those of the metadata, which is an older copy: none of those that
    /// were given out since is given out again.
    pub fn restored(&self) -> Result<(), AdminError> {
        self.0.refresh()?;
        self.0.update(|image| {
            if let Some((name, _)) = image.brokers.iter().next() {
                return Err(AdminError::Alive(broker_id(name).unwrap_or(-1)));
            }
            let mut update = Update::new(Vec::new(), ());
            for (key, first, apart) in
                [(NEXT_STREAM_KEY, 1, STREAMS_APART), (NEXT_BLOCK_KEY, 0, PRODUCERS_APART)]
            {
                let found = self.0.store().find(key)?;
                let revision = found.as_ref().map(|value| value.revision);
                let next = found.map(|value| stored::read(key, &value)).transpose()?;
                let next: u64 = next.unwrap_or(first);
                let bytes = serde_json::to_vec(&(next + apart)).expect("a number can be written as JSON");
                update.compares.push(Compare { key: key.to_owned(), revision });
                update.changes.push(Change::put(key, bytes));
            }
            Ok(update)
        })
    }

    /// Gives up what only the copies of a log had, all of which are lost: its next owner opens it without them. What was
    /// acknowledged and had not reached the object store is gone then, and its offsets are given out again.
    pub fn accept_loss(&self, log: &str) -> Result<(), AdminError> {
        self.0.refresh()?;
        self.0.update(|image| {
            let owner = image.owners.get(log).ok_or_else(|| AdminError::NoLog(log.to_owned()))?;
            let name = owner.broker.to_string();
            let runs = image.brokers.get(&name).is_some_and(|broker| broker.incarnation == owner.incarnation);
            if runs && owner.set_epoch == owner.epoch {
                return Err(AdminError::Open(owner.broker));
            }
            if let Some(broker) = owner.set.iter().find_map(|disk| with_disk(image, *disk)) {
                return Err(AdminError::HasCopy(broker));
            }
            if owner.set.is_empty() {
                return Ok(Update::new(Vec::new(), ()));
            }
            // In an epoch of its own: an owner that comes back, and counts as one again, does not go on with its set.
            let nobody = Process { broker: owner.broker, incarnation: Uuid::nil() };
            let given_up = OwnerRecord { set: BTreeSet::new(), ..owned(owner, nobody) };
            let compares = vec![compare::<BrokerRecord>(image, &name)];
            Ok(Update { compares, changes: vec![given_up.put(log)], result: () })
        })
    }

    /// Makes a broker the home of a log. The log moves afterwards.
    pub fn move_log(&self, log: &str, to: i32) -> Result<(), AdminError> {
        self.0.refresh()?;
        self.0.update(|image| {
            let owner = image.owners.get(log).ok_or_else(|| AdminError::NoLog(log.to_owned()))?;
            match () {
                () if !registered(image).contains(&to) => return Err(AdminError::NotRegistered(to)),
                () if image.brokers.get(&to.to_string()).is_none() => return Err(AdminError::NotAlive(to)),
                () if image.drains.get(&to.to_string()).is_some() => return Err(AdminError::Drained(to)),
                () => {}
            }
            let at_home = owner.home == to;
            let moved = OwnerRecord { home: to, ..OwnerRecord::clone(owner) };
            Ok(Update::new(if at_home { Vec::new() } else { vec![moved.put(log)] }, ()))
        })
    }
}

/// Ends a broker that is not alive: other brokers become the homes of its logs. Blocks.
pub fn unregister(metadata: &Metadata, broker: i32) -> Result<(), AdminError> {
    let name = broker.to_string();
    let mut known = false;
    loop {
        let left = metadata.update(|image| {
            if !known && !registered(image).contains(&broker) {
                return Err(AdminError::NotRegistered(broker));
            }
            if image.brokers.get(&name).is_some() {
                return Err(AdminError::Alive(broker));
            }
            let mut changes: Vec<Change> = Vec::new();
            let all = rehomed(image, broker);
            let left = all.len() > CHANGES_MAX;
            changes.extend(all.into_iter().take(CHANGES_MAX).map(|(log, owner)| owner.put(&log)));
            if image.drains.get(&name).is_some() {
                changes.push(DrainRecord::delete(&name));
            }
            let compares: Vec<Compare> = vec![compare::<BrokerRecord>(image, &name)];
            Ok(Update { compares, changes, result: left })
        })?;
        known = true;
        if !left {
            return Ok(());
        }
    }
}

/// The logs whose home is `broker`, each with the record of another home: its owner, or the broker that is alive and the
/// home of the fewest.
fn rehomed(image: &Image, broker: i32) -> Vec<(String, OwnerRecord)> {
    let mut homes: BTreeMap<i32, usize> =
        image.brokers.iter().filter_map(|(name, _)| Some((broker_id(name).ok()?, 0))).collect();
    for (_, owner) in image.owners.iter() {
        homes.entry(owner.home).and_modify(|logs| *logs += 1);
    }
    let mut all = Vec::new();
    for (log, owner) in image.owners.iter().filter(|(_, owner)| owner.home == broker) {
        let fewest = homes.iter().min_by_key(|(_, logs)| **logs).map(|(id, _)| *id);
        let home = Some(owner.broker).filter(|owner| homes.contains_key(owner)).or(fewest);
        let Some(home) = home else { break };
        *homes.entry(home).or_default() += 1;
        all.push((log.to_owned(), OwnerRecord { home, ..OwnerRecord::clone(owner) }));
    }
    all
}
