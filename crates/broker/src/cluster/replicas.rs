//! Which brokers have copies of a log, as pure logic: the disks that shall have them, and what clients are told of replicas.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

use crate::config::Config;
use crate::image::Image;
use crate::image::records::{BrokerRecord, OwnerRecord, broker_id};

/// The brokers with copies of a log, as clients are told of them. As in Kafka, the first of `all` leads if it can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    /// Those that have copies, or shall have some.
    pub all: Vec<i32>,
    /// Those whose copies count.
    pub in_sync: Vec<i32>,
    /// Those that are not alive.
    pub offline: Vec<i32>,
}

impl Replicas {
    /// Those of a log without copies on other brokers.
    pub fn alone(owner: i32) -> Replicas {
        Replicas { all: vec![owner], in_sync: vec![owner], offline: Vec::new() }
    }

    /// Those of a log. Where fewer brokers than `factor` are alive, the brokers that had logs once take the places of those
    /// that are missing, as in Kafka.
    fn of(image: &Image, log: &str, record: &OwnerRecord, factor: usize) -> Replicas {
        let owner = record.broker;
        let is_alive = |broker: &i32| image.brokers.get(&broker.to_string()).is_some();
        let Replicas { mut all, mut in_sync, .. } = Replicas::alone(owner);
        let disks =
            image.brokers.iter().filter(|(_, broker)| broker.disk.is_some_and(|it| record.set.contains(&it)));
        in_sync.extend(disks.filter_map(|(name, _)| broker_id(name).ok()).filter(|broker| *broker != owner));
        in_sync[1..].sort_unstable();
        all.extend(&in_sync[1..]);
        let mut gone: Vec<i32> =
            image.owners.iter().map(|(_, other)| other.home).filter(|it| !is_alive(it)).collect();
        gone.sort_by_key(|broker| weight(log, *broker));
        for broker in targets(image, log, owner, factor - 1).into_values().chain(gone) {
            if all.len() < factor && !all.contains(&broker) {
                all.push(broker);
            }
        }
        all.sort_unstable();
        first(&mut all, record.home);
        let offline = all.iter().copied().filter(|broker| !is_alive(broker)).collect();
        Replicas { all, in_sync, offline }
    }

    /// Those of a partition of the log: its leader is among them, since it hears of its log's owner by itself, and they are in the
    /// order in which they were `assigned`, if they are led by the first of them and no other.
    pub fn of_partition(&self, leader: i32, assigned: &[i32]) -> Replicas {
        let mut replicas = self.clone();
        for of in [&mut replicas.all, &mut replicas.in_sync] {
            if !of.contains(&leader) {
                of.push(leader);
            }
        }
        if assigned.first() == replicas.all.first() {
            let place = |broker: &i32| assigned.iter().position(|it| it == broker).unwrap_or(usize::MAX);
            replicas.all.sort_by_key(place);
        }
        replicas
    }
}

/// The broker that is alive and has this disk.
pub fn with_disk(image: &Image, disk: Uuid) -> Option<i32> {
    let mut brokers = image.brokers.iter().filter(|(_, broker)| broker.disk == Some(disk));
    brokers.find_map(|(name, _)| broker_id(name).ok())
}

/// Puts `broker` before the others, if it is one of them.
fn first(brokers: &mut [i32], broker: i32) {
    if let Some(at) = brokers.iter().position(|it| *it == broker) {
        brokers[..=at].rotate_right(1);
    }
}

/// The replicas of each log.
pub type ByLog = HashMap<Uuid, Replicas>;

/// The replicas of all logs, worked out once for each revision of the metadata.
#[derive(Debug)]
pub struct ReplicaMap {
    factor: usize,
    known: Mutex<(u64, Arc<ByLog>)>,
}

impl ReplicaMap {
    pub fn new(config: &Config) -> ReplicaMap {
        ReplicaMap { factor: others(config) + 1, known: Mutex::default() }
    }

    /// The replicas of each log.
    pub fn at(&self, image: &Image) -> Arc<ByLog> {
        let mut known = self.known.lock();
        // There is no revision 0.
        if known.0 != image.revision {
            let logs = image.owners.iter().filter_map(|(name, owner)| {
                Some((name.parse().ok()?, Replicas::of(image, name, owner, self.factor)))
            });
            *known = (image.revision, Arc::new(logs.collect()));
        }
        known.1.clone()
    }
}

/// The brokers beside the owner that get copies of a log.
pub fn others(config: &Config) -> usize {
    usize::try_from(config.replication_factor - 1).unwrap_or(0)
}

/// A number for a broker and a log, the same on all brokers of this version: the copies of many logs are spread evenly.
fn weight(log: &str, broker: i32) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((log, broker))
}

/// The brokers beside the owner that shall have copies of a log, and their disks: `others` of those that are alive and are not
/// about to end, in as many racks as there are. One that is low on space is among them if its copy counts already, since it loses
/// that as soon as the object store has the records, or if there are not enough others.
pub fn targets(image: &Image, log: &str, owner: i32, others: usize) -> BTreeMap<Uuid, i32> {
    let alive = image.brokers.iter().filter_map(|(name, record)| Some((broker_id(name).ok()?, record)));
    let mut free: Vec<(i32, &BrokerRecord, Uuid)> = alive
        .filter(|(broker, record)| *broker != owner && !record.leaving)
        .filter_map(|(broker, record)| Some((broker, &**record, record.disk?)))
        .collect();
    free.sort_by_key(|(broker, ..)| weight(log, *broker));
    let rack_of = |broker: i32| image.brokers.get(&broker.to_string()).and_then(|it| it.rack.clone());
    let counts = |disk: &Uuid| image.owners.get(log).is_some_and(|owner| owner.set.contains(disk));
    let mut racks = vec![rack_of(owner)];
    let mut chosen = BTreeMap::new();
    while chosen.len() < others && !free.is_empty() {
        let rank = |(_, record, disk): &(i32, &BrokerRecord, Uuid)| {
            (record.low_on_space && !counts(disk), racks.contains(&record.rack))
        };
        // The first of equals.
        let Some(at) = (0..free.len()).min_by_key(|at| rank(&free[*at])) else { break };
        let (broker, record, disk) = free.remove(at);
        racks.push(record.rack.clone());
        chosen.insert(disk, broker);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use meta::{Memory, Store};

    use super::*;
    use crate::image::records::Rest;
    use crate::image::{Metadata, Record};

    fn store(brokers: &[(i32, Option<&str>, bool)]) -> Arc<Memory> {
        let store = Arc::new(Memory::default());
        for (broker, rack, leaving) in brokers {
            let record = BrokerRecord {
                incarnation: Uuid::nil(),
                listeners: BTreeMap::new(),
                rack: rack.map(str::to_owned),
                version: "1".into(),
                leaving: *leaving,
                without_store: false,
                low_on_space: false,
                disk: Some(Uuid::from_u128(u128::from(broker.cast_unsigned()))),
            };
            store.commit(&[], &[record.put(&broker.to_string())]).unwrap();
        }
        store
    }

    fn image(brokers: &[(i32, Option<&str>, bool)]) -> Arc<Image> {
        Metadata::open(store(brokers)).unwrap().image()
    }

    fn chosen(image: &Image, log: &str, owner: i32) -> BTreeSet<i32> {
        targets(image, log, owner, 2).into_values().collect()
    }

    #[test]
    fn copies_lie_on_brokers_that_stay_and_in_other_racks() {
        let three = image(&[(1, None, false), (2, None, false), (3, None, false)]);
        assert_eq!(chosen(&three, "a", 2), BTreeSet::from([1, 3]));
        let ends = image(&[(1, None, false), (2, None, false), (3, None, true)]);
        assert_eq!(chosen(&ends, "a", 2), BTreeSet::from([1]));
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        let racks =
            [(1, a, false), (2, a, false), (3, b, false), (4, b, false), (5, c, false), (6, c, false)];
        let racks = image(&racks);
        for log in 0..50 {
            let chosen: Vec<i32> = chosen(&racks, &format!("log {log}"), 1).into_iter().collect();
            assert!(matches!(chosen[..], [3 | 4, 5 | 6]), "{chosen:?}");
        }
    }

    #[test]
    fn copies_avoid_disks_that_are_low_on_space() {
        let rack = |broker: i32| if broker == 4 { Some("b") } else { Some("a") };
        let store = store(&(1..=4).map(|broker| (broker, rack(broker), false)).collect::<Vec<_>>());
        let metadata = Metadata::open(store.clone()).unwrap();
        let all = |image: &Image| -> BTreeSet<i32> {
            (0..50).flat_map(|log| chosen(image, &format!("log {log}"), 1)).collect()
        };
        assert_eq!(all(&metadata.image()), BTreeSet::from([2, 3, 4]));
        let lowers = |broker: i32| {
            let name = broker.to_string();
            let record = BrokerRecord {
                low_on_space: true,
                ..BrokerRecord::clone(metadata.image().brokers.get(&name).unwrap())
            };
            store.commit(&[], &[record.put(&name)]).unwrap();
            metadata.refresh().unwrap();
            all(&metadata.image())
        };
        assert_eq!(lowers(4), BTreeSet::from([2, 3]), "although it is the one in another rack");
        assert_eq!(lowers(2), BTreeSet::from([3, 4]), "where there are too few others, racks decide");
        let disk = |broker: u128| Uuid::from_u128(broker);
        let owner = OwnerRecord {
            home: 1,
            broker: 1,
            incarnation: Uuid::nil(),
            epoch: 1,
            next: None,
            ready: None,
            set: BTreeSet::from([disk(2), disk(3)]),
            set_epoch: 1,
            rest: Rest::new(),
        };
        let log = Uuid::from_u128(9).to_string();
        store.commit(&[], &[owner.put(&log)]).unwrap();
        metadata.refresh().unwrap();
        let of_log = || -> BTreeSet<i32> { targets(&metadata.image(), &log, 1, 1).into_values().collect() };
        let both = targets(&metadata.image(), &log, 1, 2);
        assert!(both.values().all(|broker| [2, 3].contains(broker)), "copies that count stay: {both:?}");
        assert!(of_log().is_subset(&BTreeSet::from([2, 3])));
    }

    #[test]
    fn clients_are_told_of_the_set_of_those_to_come_and_of_those_that_are_gone() {
        let disk = |broker: i32| Uuid::from_u128(u128::from(broker.cast_unsigned()));
        let owner = |home: i32, broker: i32, set: &[i32]| OwnerRecord {
            home,
            broker,
            incarnation: Uuid::nil(),
            epoch: 1,
            next: None,
            ready: None,
            set: set.iter().map(|broker| disk(*broker)).collect(),
            set_epoch: 1,
            rest: Rest::new(),
        };
        let three = [(1, None, false), (2, None, false), (3, None, false)];
        let told = |brokers: &[(i32, Option<&str>, bool)], record: &OwnerRecord| {
            let store = store(brokers);
            let log = |log: u128| Uuid::from_u128(log).to_string();
            store.commit(&[], &[record.put(&log(7))]).unwrap();
            for home in 1..=3 {
                store
                    .commit(&[], &[owner(home, home, &[]).put(&log(u128::from(home.unsigned_abs())))])
                    .unwrap();
            }
            let image = Metadata::open(store).unwrap().image();
            let map = ReplicaMap::new(&Config::default());
            map.at(&image)[&Uuid::from_u128(7)].clone()
        };
        let Replicas { all, in_sync, offline } = told(&three, &owner(2, 2, &[3, 1]));
        assert_eq!((all, in_sync, offline), (vec![2, 1, 3], vec![2, 1, 3], vec![]));
        let Replicas { all, in_sync, offline } = told(&three, &owner(2, 2, &[3]));
        assert_eq!((all, in_sync, offline), (vec![2, 1, 3], vec![2, 3], vec![]));
        // Broker 3 is gone, and counts still, as far as the metadata says.
        let Replicas { all, in_sync, offline } = told(&three[..2], &owner(2, 2, &[3, 1]));
        assert_eq!((all, in_sync, offline), (vec![2, 1, 3], vec![2, 1], vec![3]));
        let of = told(&three, &owner(2, 2, &[3]));
        let in_order = |leader, assigned: &[i32]| {
            let Replicas { all, in_sync, .. } = of.of_partition(leader, assigned);
            (all, in_sync)
        };
        assert_eq!(in_order(2, &[2, 3, 1]), (vec![2, 3, 1], vec![2, 3]));
        assert_eq!(in_order(2, &[2]), (vec![2, 1, 3], vec![2, 3]));
        assert_eq!(in_order(1, &[3, 2]), (vec![2, 1, 3], vec![2, 3, 1]), "its home is another one by now");
        let away = told(&three, &owner(3, 2, &[3]));
        assert_eq!((away.all, away.in_sync), (vec![3, 1, 2], vec![2, 3]));
    }

    #[test]
    fn the_copies_of_many_logs_are_spread() {
        let brokers: Vec<_> = (1..=10).map(|broker| (broker, None, false)).collect();
        let image = image(&brokers);
        let mut load = BTreeMap::<i32, usize>::new();
        for log in 0..1000 {
            for broker in chosen(&image, &format!("log {log}"), log % 10 + 1) {
                *load.entry(broker).or_default() += 1;
            }
        }
        assert!(load.values().all(|copies| (150..250).contains(copies)), "{load:?}");
    }
}
