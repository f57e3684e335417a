//! The partitions of logs that move between the brokers of a cluster: who leads them, and what happens to them when
//! this broker opens or closes their log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::MetaError;
use model::StreamId;
use storage::{Clock, Log, SystemClock};
use tokio::sync::watch;
use uuid::Uuid;

use super::reassigning::log_at;
use super::{NEXT_STREAM_KEY, Topic, Topics, is_internal, set_levels};
use crate::image::records::{OwnerRecord, TopicRecord};
use crate::image::{Image, stored};
use crate::logs::{Absent, OpenLog};
use crate::partition::Partition;
use crate::placement::Leader;
use crate::transactions::INDEX_STREAM;

/// Bytes of requests that wait for leaders. Others are refused, and clients repeat them.
pub(super) const SETTLING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Of one request.
const SETTLING_BYTES_EACH: u32 = 1024 * 1024;
/// A request counts as so many at least.
const SETTLING_BYTES_MIN: usize = 4096;

/// The brokers that shall lead new partitions, by index, where they were chosen.
pub type Leaders = BTreeMap<i32, i32>;

/// The streams of a log, as the metadata knows them.
#[derive(Debug)]
pub struct KnownStreams {
    /// The streams that a topic owns.
    pub owned: Vec<StreamId>,
    /// The first stream that was never given out, as far as the list goes.
    pub next: StreamId,
}

/// A log that new partitions may lie in.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    log: Uuid,
    /// The owner.
    broker: i32,
    rack: Option<&'a str>,
    /// The partitions of the log.
    partitions: usize,
    /// Little of its disk is free.
    low_on_space: bool,
}

/// Logs for `count` new partitions of a topic, each the one with the fewest partitions, if not all disks are low on space one on a
/// disk that is not. Of several such logs, it is one in the
/// rack with the fewest of the new partitions, so that a topic's leaders lie in many racks, as Kafka places them; then one whose
/// owner has the fewest partitions. `None` without logs.
fn choose(logs: &mut [Place<'_>], count: usize) -> Option<Vec<Uuid>> {
    let mut of_racks: HashMap<Option<&str>, usize> = HashMap::new();
    let mut of_brokers: HashMap<i32, usize> = HashMap::new();
    for Place { broker, partitions, .. } in &*logs {
        *of_brokers.entry(*broker).or_default() += partitions;
    }
    let mut next = || {
        let rank = |place: &Place| {
            let in_rack = of_racks.get(&place.rack).copied().unwrap_or(0);
            (place.low_on_space, place.partitions, in_rack, of_brokers[&place.broker])
        };
        let place = logs.iter_mut().min_by_key(|place| rank(place))?;
        place.partitions += 1;
        *of_racks.entry(place.rack).or_default() += 1;
        *of_brokers.entry(place.broker).or_default() += 1;
        Some(place.log)
    };
    (0..count).map(|_| next()).collect()
}

impl Topics {
    /// The leader of a partition of a log. `base` is as in [`TopicRecord::epochs`].
    pub(super) fn leader_of(&self, image: &Image, log: Uuid, base: i32) -> Leader {
        let owner = image.owners.get(&log.to_string());
        owner.map_or_else(|| self.placement.first_leader(), |owner| leader(owner, base))
    }

    /// Chooses logs for new partitions of a topic of a cluster: those of the brokers that shall lead them, or as [`choose`] says, among
    /// those whose owner is alive.
    ///
    /// # Errors
    /// The reason, if no log takes a partition.
    pub(super) fn place_in_cluster(
        image: &Image,
        indexes: Range<i32>,
        leaders: &Leaders,
    ) -> Result<Vec<Uuid>, String> {
        let mut placed = Topics::placed(image);
        let mut logs: Vec<Place> = Vec::new();
        for (name, owner) in image.owners.iter() {
            let broker = image.brokers.get(&owner.broker.to_string());
            let (Some(broker), Ok(log)) = (broker, name.parse()) else { continue };
            let partitions = placed.get(&log).copied().unwrap_or(0);
            let (rack, low_on_space) = (broker.rack.as_deref(), broker.low_on_space);
            logs.push(Place { log, broker: owner.broker, rack, partitions, low_on_space });
        }
        let mut logs = choose(&mut logs, indexes.len()).ok_or("no broker that is alive owns a log")?;
        for (index, log) in indexes.zip(&mut logs) {
            // A broker that has no log yet gets the partition later, when it moves there.
            let chosen = leaders.get(&index).and_then(|leader| log_at(image, &mut placed, *leader));
            *log = chosen.unwrap_or(*log);
        }
        Ok(logs)
    }

    /// Whether partitions have other leaders now and then.
    pub fn may_move(&self) -> bool {
        self.logs.are_moving()
    }

    /// Waits until no partition of `all` is about to have another leader ([`Partition::passes`]), or until `until`. `bytes` is
    /// what the caller holds meanwhile: it does not wait with many, or where many wait.
    pub async fn settle(&self, all: &[(Arc<Topic>, i32)], bytes: usize, until: Instant) {
        let bytes = u32::try_from(bytes.max(SETTLING_BYTES_MIN)).unwrap_or(u32::MAX);
        let waits = (bytes <= SETTLING_BYTES_EACH).then(|| self.settling.try_acquire_many(bytes));
        let Some(Ok(_waits)) = waits else { return };
        for (topic, index) in all {
            let mut changes: Option<watch::Receiver<u64>> = None;
            while let Some(left) = self.passes(topic, *index) {
                let left = left.min(until.saturating_duration_since(Instant::now()));
                match &mut changes {
                    _ if left.is_zero() => break,
                    // What changes in between is seen at the next look.
                    None => changes = Some(self.changes.subscribe()),
                    Some(changes) => drop(tokio::time::timeout(left, changes.changed()).await),
                }
            }
        }
    }

    /// As [`Partition::passes`], for a partition that this broker may lead.
    pub fn passes(&self, topic: &Topic, index: i32) -> Option<Duration> {
        topic.partition(index)?.passes(self.placement.local())
    }

    /// The streams of a log. Every stream that has records by now is among them. Blocks.
    pub fn streams_of(&self, log: Uuid) -> Result<KnownStreams, MetaError> {
        // A stream gets its topic and its number in one commit, before its first record.
        let next = self.metadata.store().find(NEXT_STREAM_KEY)?;
        if let Some(next) = &next {
            self.metadata.reach(next.revision)?;
        }
        let next = next.map_or(Ok(1), |value| stored::read(NEXT_STREAM_KEY, &value))?;
        let image = self.metadata.image();
        // The topics here may not show the end of a move yet that the image shows.
        let mut owned = BTreeSet::new();
        let records: Vec<Arc<TopicRecord>> = self.all().iter().map(|topic| topic.record()).collect();
        for record in image.topics.iter().map(|(_, record)| record).chain(&records) {
            let copies = record.moves.values().map(|of| (StreamId(of.stream), of.log));
            let places = record.places().chain(copies);
            owned.extend(places.filter(|(_, of)| *of == log).map(|(stream, _)| stream));
        }
        let owned = owned.into_iter().collect();
        Ok(KnownStreams { owned, next: StreamId(next) })
    }

    /// Gives the streams of a log their levels, before its partitions are made.
    pub fn set_levels_of(&self, log: &Log, id: Uuid) {
        log.set_leading(&log.stream(INDEX_STREAM));
        let image = self.metadata.image();
        // The topics here may not show the end of a move yet that the image shows.
        let mut here: Vec<_> =
            self.all().iter().map(|topic| (topic.name.to_string(), topic.record())).collect();
        here.sort_by(|(a, _), (b, _)| a.cmp(b));
        let there = image.topics.iter().map(|(name, record)| (name.to_owned(), record.clone()));
        for (name, record) in here.into_iter().chain(there) {
            let level = self.config_of(&record.configs).tiering.map(|tiering| tiering.level);
            let copies = record.moves.values().map(|of| (StreamId(of.stream), of.log));
            for (stream, _) in record.places().chain(copies).filter(|(_, of)| *of == id) {
                let stream = log.stream(stream);
                if is_internal(&name) {
                    log.set_leading(&stream);
                }
                level.iter().for_each(|level| log.set_level(&stream, *level));
            }
        }
    }

    /// Drops streams of a log that no topic owns, which a crash during a deletion may have left. Streams from `below` on
    /// may have an owner that is not known yet.
    pub fn drop_orphans(&self, log: &OpenLog, below: StreamId) {
        let owned = self.by_stream.read();
        let orphan = |id: StreamId| id != INDEX_STREAM && id < below && !owned.contains_key(&id);
        for stream in log.log.streams().into_iter().filter(|stream| orphan(stream.id())) {
            tracing::info!(
                stream = stream.id().0,
                directory = log.path,
                "dropping a stream that no topic owns"
            );
            log.log.delete(&stream, None);
        }
    }

    /// Makes the partitions of a log anew, which this broker has opened and added to its logs. Returns them. Blocks.
    pub fn opened(&self, log: &Arc<OpenLog>) -> Vec<Arc<Partition>> {
        self.renew(log.id, |partition| {
            let local = partition.log().ok().and_then(|held| held.local());
            local.is_some_and(|local| Arc::ptr_eq(&local.log, log))
        })
    }

    /// Makes the partitions of a log anew, which this broker has taken out of its logs. Returns them.
    pub fn closed(&self, log: Uuid) -> Vec<Arc<Partition>> {
        let shape = self.shape.lock();
        for moving in self.moves() {
            self.close_copies(&moving.topic, log);
        }
        drop(shape);
        self.renew(log, |partition| partition.log().is_err_and(|absent| *absent == Absent::Elsewhere))
    }

    /// Replaces the partitions of a log, except those that are `right` already.
    fn renew(&self, log: Uuid, right: impl Fn(&Partition) -> bool) -> Vec<Arc<Partition>> {
        let _one = self.shape.lock();
        let image = self.metadata.image();
        let mut all = self.all();
        // Internal topics first: nothing of the others goes to the object store before their partitions lead.
        // Of the rest, the order decides what shares an object.
        all.sort_by_cached_key(|topic| (!is_internal(&topic.name), topic.name.clone()));
        let mut renewed = Vec::new();
        for topic in all {
            let (record, before) = (topic.record(), topic.partitions());
            let places: Vec<_> = record.places().collect();
            let copies = record.moves.iter().filter(|(_, of)| of.log == log);
            copies.for_each(|(index, of)| self.open_copy(&topic, *index, of));
            let stays = |at: usize| places.get(at).is_none_or(|(_, of)| *of != log) || right(&before[at]);
            if (0..before.len()).all(stays) {
                continue;
            }
            let partitions: Arc<[Arc<Partition>]> = (0..)
                .zip(before.iter().enumerate())
                .map(|(index, (at, old))| match stays(at) {
                    true => old.clone(),
                    false => self.partition(&image, topic.named(), &record, index, places[at]),
                })
                .collect();
            let new = partitions.iter().zip(before.iter()).filter(|(new, old)| !Arc::ptr_eq(new, old));
            let new: Vec<Arc<Partition>> = new.map(|(new, _)| new.clone()).collect();
            set_levels(&topic.name, &new, &topic.config());
            new.iter().for_each(|partition| partition.end_decided(SystemClock::default().now_ms()));
            *topic.partitions.write() = partitions;
            let replaced = (0..before.len()).filter(|at| !stays(*at));
            replaced.for_each(|at| before[at].retire());
            renewed.extend(new);
        }
        self.note_change();
        renewed
    }

    /// Updates a topic to its record in the metadata. Returns the partitions that have moved.
    pub(super) fn replace(
        &self,
        image: &Image,
        topic: &Topic,
        record: &Arc<TopicRecord>,
    ) -> Vec<Arc<Partition>> {
        let old = std::mem::replace(&mut *topic.record.write(), record.clone());
        if old.configs != record.configs {
            let config = Arc::new(self.config_of(&record.configs));
            set_levels(&topic.name, &topic.partitions(), &config);
            *topic.config.write() = config;
        }
        if old.streams == record.streams {
            if old.moves != record.moves {
                self.follow_moves(topic, &old, record);
                self.note_change();
            }
            return Vec::new();
        }
        let before = topic.partitions();
        let kept = |index: usize, stream| before.get(index).filter(|old| old.stream_id == stream).cloned();
        let partitions = (0..).zip(record.places()).map(|(index, place)| {
            let at = usize::try_from(index).unwrap_or(usize::MAX);
            kept(at, place.0)
                .or_else(|| self.copied(image, record, index, place))
                .unwrap_or_else(|| self.partition(image, topic.named(), record, index, place))
        });
        let partitions: Arc<[Arc<Partition>]> = partitions.collect();
        set_levels(&topic.name, &partitions, &topic.config());
        *topic.partitions.write() = partitions.clone();
        let replaced = before.iter().enumerate().filter(|(at, old)| {
            partitions.get(*at).is_none_or(|partition| partition.stream_id != old.stream_id)
        });
        let (mut gone, mut moved) = (Vec::new(), Vec::new());
        for (at, old) in replaced {
            gone.push(old);
            moved.extend(partitions.get(at).cloned());
        }
        for old in gone {
            if !self.logs.are_moving() {
                self.close(old);
                continue;
            }
            // It has moved. Clients that ask for it are to look for its leader.
            self.by_stream.write().remove(&old.stream_id);
            old.retire();
            if let Ok(log) = old.log() {
                log.delete();
            }
        }
        if !old.moves.is_empty() || !record.moves.is_empty() {
            self.follow_moves(topic, &old, record);
        }
        self.note_change();
        moved
    }

    /// Sets the leaders of the partitions of logs that have other owners now.
    pub(super) fn lead(&self, image: &Image, logs: impl Iterator<Item = Uuid>) {
        let logs: Vec<Uuid> = logs.collect();
        if logs.is_empty() {
            return;
        }
        for topic in self.all() {
            let record = topic.record();
            for (partition, (_, log)) in topic.partitions().iter().zip(record.places()) {
                if logs.contains(&log) {
                    partition.lead(self.leader_of(image, log, record.epoch_base(partition.index)));
                }
            }
        }
        self.note_change();
    }
}

fn leader(owner: &OwnerRecord, base: i32) -> Leader {
    let epoch = i32::try_from(owner.epoch).unwrap_or(i32::MAX).saturating_add(base);
    Leader { node: owner.broker, epoch }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The brokers of the logs that are chosen, for logs of (broker, rack, partitions).
    fn chosen(logs: &[(i32, Option<&'static str>, usize)], count: usize) -> Vec<i32> {
        let place = |(at, &(broker, rack, partitions)): (usize, &(i32, Option<&'static str>, usize))| Place {
            log: Uuid::from_u128(at as u128),
            broker,
            rack,
            partitions,
            low_on_space: false,
        };
        let mut places: Vec<Place> = logs.iter().enumerate().map(place).collect();
        let chosen = choose(&mut places, count).unwrap();
        chosen.into_iter().map(|log| logs[usize::try_from(log.as_u128()).unwrap()].0).collect()
    }

    #[test]
    fn new_partitions_lie_where_there_are_few_and_in_many_racks() {
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        assert_eq!(chosen(&[(1, None, 0), (2, None, 0), (3, None, 0)], 6), [1, 2, 3, 1, 2, 3]);
        // Each two in a row lie in different racks.
        let racks = [(1, a, 0), (2, a, 0), (3, b, 0), (4, b, 0), (5, c, 0), (6, c, 0)];
        assert_eq!(chosen(&racks, 6), [1, 3, 5, 2, 4, 6]);
        // The load counts first.
        assert_eq!(chosen(&[(1, a, 3), (2, a, 1), (3, b, 2)], 4), [2, 3, 2, 3]);
        // Of logs with as many partitions, the one of a broker that has few in all.
        assert_eq!(chosen(&[(1, None, 1), (1, None, 5), (2, None, 1), (2, None, 2)], 1), [2]);
        assert_eq!(choose(&mut [], 1), None);
        assert_eq!(choose(&mut [], 0), Some(Vec::new()));
    }
}
