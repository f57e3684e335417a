//! Which brokers have copies of a log, as pure logic: the disks that shall have them, and what clients are told of replicas.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use uuid::Uuid;

use crate::image::Image;
use crate::image::records::{BrokerRecord, broker_id};

/// A number for a broker and a log, the same on all brokers of this version: the copies of many logs are spread evenly.
fn weight(log: &str, broker: i32) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((log, broker))
}

/// The brokers beside the owner that shall have copies of a log, and their disks: `others` of those that are alive and are not
/// about to end, in as many racks as there are.
pub fn targets(image: &Image, log: &str, owner: i32, others: usize) -> BTreeMap<Uuid, i32> {
    let alive = image.brokers.iter().filter_map(|(name, record)| Some((broker_id(name).ok()?, record)));
    let mut free: Vec<(i32, &BrokerRecord, Uuid)> = alive
        .filter(|(broker, record)| *broker != owner && !record.leaving)
        .filter_map(|(broker, record)| Some((broker, &**record, record.disk?)))
        .collect();
    free.sort_by_key(|(broker, ..)| weight(log, *broker));
    let rack_of = |broker: i32| image.brokers.get(&broker.to_string()).and_then(|it| it.rack.clone());
    let mut racks = vec![rack_of(owner)];
    let mut chosen = BTreeMap::new();
    while chosen.len() < others && !free.is_empty() {
        let elsewhere = free.iter().position(|(_, record, _)| !racks.contains(&record.rack));
        let (broker, record, disk) = free.remove(elsewhere.unwrap_or(0));
        racks.push(record.rack.clone());
        chosen.insert(disk, broker);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use meta::{Memory, Store};

    use super::*;
    use crate::image::{Metadata, Record};

    fn image(brokers: &[(i32, Option<&str>, bool)]) -> Arc<Image> {
        let store = Arc::new(Memory::default());
        for (broker, rack, leaving) in brokers {
            let record = BrokerRecord {
                incarnation: Uuid::nil(),
                listeners: BTreeMap::new(),
                rack: rack.map(str::to_owned),
                version: "1".into(),
                leaving: *leaving,
                without_store: false,
                disk: Some(Uuid::from_u128(u128::from(broker.cast_unsigned()))),
            };
            store.commit(&[], &[record.put(&broker.to_string())]).unwrap();
        }
        Metadata::open(store).unwrap().image()
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
