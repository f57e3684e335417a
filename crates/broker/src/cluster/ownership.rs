//! Which broker owns which log, as pure logic: what the controller changes, and what a broker has to do.
//!
//! Rules:
//! - A log whose owner is not alive gets another owner, in the next epoch: its home, or the broker with the fewest logs of those
//!   that are not low on space, if there are any.
//! - A log goes back to its home when that is alive, as Kafka's preferred leaders do. Its owner closes it for that.
//! - A broker that is drained, about to end, or without the object store gets no log, and gives away those it has.
//! - Before an owner closes a log for another broker, that one fetches what it can.
//! - The broker that gets a log if its owner dies fetches all the time what it will need then.
//! - A broker that was started again gives itself a new epoch of each log that it owns.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::image::Image;
use crate::image::records::{BrokerRecord, OwnerRecord, broker_id};

/// A broker with its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// The broker's id.
    pub broker: i32,
    /// The process.
    pub incarnation: Uuid,
}

/// What a process has to do with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Its broker owns the log, in an epoch of an earlier process: the process needs an epoch of its own.
    Claim,
    /// Take the log over in this epoch, if it is not open yet, and serve it.
    Serve(u32),
    /// Fetch what can be fetched before the owner, which has the log in this epoch, closes it for this process.
    Prepare(u32),
    /// Close the log, and give it to this process in the next epoch.
    HandOver(Process),
    /// Close the log without another request to the store: it has another owner.
    Leave,
}

/// The brokers that are alive, and what each owns or gets.
#[derive(Clone)]
struct Brokers {
    alive: BTreeMap<i32, Uuid>,
    drained: BTreeSet<i32>,
    /// Those of earlier versions, which know of no copies: they would open a log without what only copies have.
    bare: BTreeSet<i32>,
    low_on_space: BTreeSet<i32>,
    logs: BTreeMap<i32, usize>,
}

impl Brokers {
    fn of(image: &Image) -> Brokers {
        let alive = image.brokers.iter();
        let alive: BTreeMap<i32, Uuid> =
            alive.filter_map(|(name, broker)| Some((broker_id(name).ok()?, broker.incarnation))).collect();
        let drained = image.drains.iter().map(|(name, _)| name);
        let unfit = image.brokers.iter().filter(|(_, broker)| broker.leaving || broker.without_store);
        let drained =
            drained.chain(unfit.map(|(name, _)| name)).filter_map(|name| broker_id(name).ok()).collect();
        let those = |are: fn(&BrokerRecord) -> bool| -> BTreeSet<i32> {
            let those = image.brokers.iter().filter(|(_, broker)| are(broker));
            those.filter_map(|(name, _)| broker_id(name).ok()).collect()
        };
        let bare = those(|broker| broker.disk.is_none());
        let low_on_space = those(|broker| broker.low_on_space);
        let mut logs: BTreeMap<i32, usize> = BTreeMap::new();
        for (_, owner) in image.owners.iter() {
            *logs.entry(owner.next.unwrap_or(owner.broker)).or_default() += 1;
        }
        Brokers { alive, drained, bare, low_on_space, logs }
    }

    /// Whether a broker is alive and may own logs.
    fn takes(&self, broker: i32) -> bool {
        self.alive.contains_key(&broker) && !self.drained.contains(&broker)
    }

    /// The same brokers for a log: where copies count, those that know of copies.
    fn of_log(&self, owner: &OwnerRecord) -> Brokers {
        let mut of_log = self.clone();
        if !owner.set.is_empty() {
            of_log.alive.retain(|broker, _| !self.bare.contains(broker));
        }
        of_log
    }

    fn process(&self, broker: i32) -> Option<Process> {
        Some(Process { broker, incarnation: *self.alive.get(&broker)? })
    }

    /// The broker for a log of `home`. If all brokers that are alive are drained, one of them is as good as another.
    fn best(&self, home: i32) -> Option<i32> {
        if self.takes(home) {
            return Some(home);
        }
        let logs = |broker: &i32| self.logs.get(broker).copied().unwrap_or(0);
        let load = |broker: &i32| (self.low_on_space.contains(broker), logs(broker), *broker);
        let alive = || self.alive.keys().copied();
        alive().filter(|broker| self.takes(*broker)).min_by_key(load).or_else(|| alive().min_by_key(load))
    }

    /// Where a log belongs whose owner is alive. `best` is what [`Brokers::best`] says.
    fn target(&self, owner: &OwnerRecord, best: i32) -> i32 {
        let may_stay = self.takes(owner.broker) && !self.takes(owner.home);
        if may_stay || !self.takes(best) {
            return owner.broker;
        }
        // A move that has begun goes on, although the loads are others by now.
        let begun = owner.next.filter(|next| self.takes(*next) && !self.takes(owner.home));
        begun.unwrap_or(best)
    }

    fn moves(&mut self, from: i32, to: i32) {
        if let Some(logs) = self.logs.get_mut(&from) {
            *logs = logs.saturating_sub(1);
        }
        *self.logs.entry(to).or_default() += 1;
    }
}

/// The changes that the controller makes next: the logs, each with its new record. Empty if all is as it should be. Brokers that
/// were lost `lately` keep their logs.
pub fn changes(image: &Image, lately: &BTreeSet<i32>) -> Vec<(String, OwnerRecord)> {
    let mut changes = decide(image, Brokers::of(image));
    changes.retain(|(log, _)| image.owners.get(log).is_none_or(|owner| !lately.contains(&owner.broker)));
    changes
}

/// The broker that each log gets if its owner dies now.
pub fn successors(image: &Image) -> BTreeMap<String, i32> {
    let owners: BTreeSet<i32> = image.owners.iter().map(|(_, owner)| owner.broker).collect();
    let mut successors = BTreeMap::new();
    for owner in owners {
        let mut left = Brokers::of(image);
        left.alive.remove(&owner);
        let of_owner = |log: &str| image.owners.get(log).is_some_and(|record| record.broker == owner);
        let taken = decide(image, left).into_iter().filter(|(log, _)| of_owner(log));
        successors.extend(taken.map(|(log, record)| (log, record.broker)));
    }
    successors
}

fn decide(image: &Image, mut brokers: Brokers) -> Vec<(String, OwnerRecord)> {
    let mut changes = Vec::new();
    for (log, owner) in image.owners.iter() {
        let fit = if brokers.bare.is_empty() { None } else { Some(brokers.of_log(owner)) };
        let fit = fit.as_ref().unwrap_or(&brokers);
        let Some(best) = fit.best(owner.home).and_then(|best| fit.process(best)) else { continue };
        let changed = if !fit.alive.contains_key(&owner.broker) {
            // The broker that was to get it may have fetched some of it.
            let begun = owner.next.filter(|next| fit.takes(*next) && !fit.takes(owner.home));
            let to = begun.and_then(|next| fit.process(next)).unwrap_or(best);
            brokers.moves(owner.next.unwrap_or(owner.broker), to.broker);
            owned(owner, to)
        } else {
            let target = fit.target(owner, best.broker);
            let next = (target != owner.broker).then_some(target);
            if next == owner.next {
                continue;
            }
            brokers.moves(owner.next.unwrap_or(owner.broker), target);
            OwnerRecord { next, ready: None, ..OwnerRecord::clone(owner) }
        };
        changes.push((log.to_owned(), changed));
    }
    changes
}

/// Whether a broker other than `broker` may own logs.
pub fn others_take(image: &Image, broker: i32) -> bool {
    let brokers = Brokers::of(image);
    brokers.alive.keys().any(|other| *other != broker && brokers.takes(*other))
}

/// The record of a log that `to` owns next.
pub fn owned(owner: &OwnerRecord, to: Process) -> OwnerRecord {
    let Process { broker, incarnation } = to;
    let epoch = owner.epoch + 1;
    OwnerRecord { broker, incarnation, epoch, next: None, ready: None, ..OwnerRecord::clone(owner) }
}

/// What `process` has to do with a log. `None` for a log that it has nothing to do with.
pub fn duty(image: &Image, log: &str, process: Process, open: bool) -> Option<Duty> {
    let otherwise = open.then_some(Duty::Leave);
    let Some(owner) = image.owners.get(log) else { return otherwise };
    // It may also be an earlier process of the broker, or a later one that has taken its place.
    let current = image.brokers.get(&process.broker.to_string());
    let is_current = current.is_some_and(|broker| broker.incarnation == process.incarnation);
    if owner.broker != process.broker {
        let gets_it = owner.next == Some(process.broker) && is_current && !open;
        return if gets_it { Some(Duty::Prepare(owner.epoch)) } else { otherwise };
    }
    if owner.incarnation != process.incarnation {
        return if is_current { Some(Duty::Claim) } else { otherwise };
    }
    let next = owner.next.and_then(|next| {
        let incarnation = image.brokers.get(&next.to_string())?.incarnation;
        (owner.ready == Some(incarnation)).then_some(Process { broker: next, incarnation })
    });
    Some(next.map_or(Duty::Serve(owner.epoch), Duty::HandOver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Record;

    #[test]
    fn fields_of_a_newer_version_stay() {
        let owner = br#"{"home":1,"broker":2,"incarnation":"00000000-0000-0000-0000-000000000003","epoch":4,"next":null,"new":5}"#;
        let owner = OwnerRecord::parse("a", owner).unwrap();
        let process = Process { broker: 1, incarnation: Uuid::nil() };
        let again: serde_json::Value = serde_json::from_slice(&owned(&owner, process).encode()).unwrap();
        assert_eq!((&again["epoch"], &again["new"]), (&5.into(), &5.into()));
    }
}
