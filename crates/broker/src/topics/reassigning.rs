//! Partitions that move to another log (KIP-455): the records of moves, and the partitions into which records are copied.
//!
//! A move in steps, each a change of the topic's record:
//! 1. It begins: the partition has a new stream in another log. The owner of that log copies the records.
//! 2. The copy has almost all of them. The leader takes no more.
//! 3. The leader has stored what it has taken, and names the start and the end.
//! 4. The copy is stored up to there. The new stream is the partition, with a higher leader epoch.
//!
//! Invariants:
//! - Whoever names them owns the log in the epoch in which it has sealed the partition, and the commit compares that. A
//!   later owner knows of the seal, because the image shows it no later than its own ownership.
//! - The move ends only by a commit of the owner of the new log, which compares its ownership.

use std::collections::BTreeMap;
use std::sync::Arc;

use meta::{Compare, MetaError};
use model::{Offset, StreamId};
use uuid::Uuid;

use super::{Topic, TopicError, Topics, found, set_levels};
use crate::image::records::{Move, OwnerRecord, Rest, SealedBounds, TopicRecord};
use crate::image::{Image, Record, Update};
use crate::partition::Partition;

/// The leader epochs in the new log begin so much higher. The log that the partition leaves may get so many owners meanwhile.
const EPOCHS_BETWEEN: i32 = 1000;

/// Why a partition is not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The topic, or the metadata.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The broker owns no log of its own now.
    #[error("broker {0} has no log of its own at the moment")]
    NoLog(i32),
    /// The log that the partition leaves has had too many owners meanwhile.
    #[error("the leader epoch would go back")]
    Epochs,
    /// The partition does not move.
    #[error("No partition reassignment is in progress.")]
    NoMove,
}

impl From<MetaError> for MoveError {
    fn from(error: MetaError) -> MoveError {
        MoveError::Topic(error.into())
    }
}

/// A move of a partition.
#[derive(Clone, Debug)]
pub struct Moving {
    /// The topic.
    pub topic: Arc<Topic>,
    /// The partition's index.
    pub index: i32,
    /// The move, as the image shows it.
    pub of: Move,
}

impl Moving {
    /// The partition as it is now.
    pub fn partition(&self) -> Option<Arc<Partition>> {
        self.topic.partition(self.index)
    }
}

fn owner(image: &Image, log: Uuid) -> Option<&OwnerRecord> {
    image.owners.get(&log.to_string()).map(|owner| &**owner)
}

/// The condition that a log has the owner that the image shows.
fn same_owner(image: &Image, log: Uuid) -> Compare {
    let key = OwnerRecord::key(&log.to_string());
    Compare { revision: image.revision_of(&key), key }
}

fn epoch_of(owner: &OwnerRecord) -> i32 {
    i32::try_from(owner.epoch).unwrap_or(i32::MAX)
}

impl Topics {
    /// The partitions that move.
    pub fn moves(&self) -> Vec<Moving> {
        let names = self.moving.lock().clone();
        let mut moves = Vec::new();
        for topic in names.iter().filter_map(|name| self.find(name)) {
            let record = topic.record();
            let all = record.moves.iter();
            moves.extend(all.map(|(index, of)| Moving {
                topic: topic.clone(),
                index: *index,
                of: of.clone(),
            }));
        }
        moves
    }

    /// The partition into which the records of a move are copied, if its log is open here.
    pub fn copy_of(&self, of: &Move) -> Option<Arc<Partition>> {
        self.of_stream(StreamId(of.stream)).filter(|copy| copy.log().is_ok())
    }

    /// The brokers from which and to which a partition moves: the homes of both logs.
    pub fn between(&self, moving: &Moving) -> Option<(i32, i32)> {
        let image = self.metadata.image();
        let (_, from) = place(&moving.topic.record(), moving.index).ok()?;
        Some((owner(&image, from)?.home, owner(&image, moving.of.log)?.home))
    }

    /// Whether a stream has the records of a partition, or a copy of them. The transaction index asks while it is locked.
    pub fn knows(&self, stream: StreamId) -> bool {
        let open = self.by_stream.read().contains_key(&stream);
        // A copy may not be open yet, or any more.
        open || self.moves().iter().any(|moving| moving.of.stream == stream.0)
    }

    /// Lets partitions of a topic move, each to a broker: to the log of that broker with the fewest partitions. Those that
    /// are in such a log stay there. Without a broker, the move of a partition is given up. One commit. Blocks.
    pub fn alter_moves(
        &self,
        topic: &Topic,
        wanted: &[(i32, Option<Vec<i32>>)],
    ) -> Result<Vec<Result<(), MoveError>>, TopicError> {
        let name = topic.name.as_str();
        let _one = self.change.lock();
        self.metadata.update(|image| {
            let old = found(image, name, &topic.id)?;
            let (mut record, mut placed) = (TopicRecord::clone(old), Topics::placed(image));
            let mut begun: BTreeMap<i32, (Uuid, i32)> = BTreeMap::new();
            // Of several wishes for a partition, the last one counts.
            let mut alter = |(index, to): &(i32, Option<Vec<i32>>)| {
                let begins = begun.remove(index).is_some();
                let Some((first, others)) = to.as_ref().and_then(|to| to.split_first()) else {
                    let moves = record.moves.remove(index).is_some() || begins;
                    return if moves { Ok(()) } else { Err(MoveError::NoMove) };
                };
                let begins = plan(image, &mut record, &mut placed, *index, *first)?;
                match others {
                    [] => drop(record.assigned.remove(index)),
                    _ => drop(record.assigned.insert(*index, to.clone().unwrap_or_default())),
                }
                begun.extend(begins.map(|to| (*index, to)));
                Ok(())
            };
            let outcomes: Vec<Result<(), MoveError>> = wanted.iter().map(&mut alter).collect();
            if begun.is_empty() {
                let changes = if record == *old { Vec::new() } else { vec![record.put(name)] };
                return Ok(Update::new(changes, outcomes));
            }
            let streams = self.streams_in(begun.values().map(|(log, _)| *log).collect())?;
            for ((index, (log, epoch)), (stream, _)) in begun.into_iter().zip(&streams.places) {
                record.moves.insert(
                    index,
                    Move {
                        stream: stream.0,
                        log,
                        epoch,
                        from: 0,
                        ready: false,
                        bounds: None,
                        rest: Rest::new(),
                    },
                );
            }
            let Update { compares, changes, .. } = streams.taken(record.put(name));
            Ok(Update { compares, changes, result: outcomes })
        })
    }

    /// Lets the copy of a move begin anew, in another stream. Blocks.
    pub fn copy_anew(&self, moving: &Moving) -> Result<(), MoveError> {
        let name = moving.topic.name.as_str();
        let _one = self.change.lock();
        self.metadata.update(|image| {
            let mut record = TopicRecord::clone(found(image, name, &moving.topic.id)?);
            let of = current(&mut record, moving)?;
            let streams = self.streams_in(vec![of.log])?;
            *of = Move { stream: streams.places[0].0.0, from: 0, ready: false, bounds: None, ..of.clone() };
            Ok(streams.taken(record.put(name)))
        })
    }

    /// Says that the copy begins at `from`. Blocks.
    pub fn note_from(&self, moving: &Moving, from: Offset) -> Result<(), MoveError> {
        self.change_move(&moving.topic, moving.index, |_, record| {
            current(record, moving)?.from = from.0;
            Ok(Vec::new())
        })
    }

    /// Says that the leader shall take no more records, as the copy has almost all. Blocks.
    pub fn note_ready(&self, moving: &Moving) -> Result<(), MoveError> {
        self.change_move(&moving.topic, moving.index, |_, record| {
            let of = current(record, moving)?;
            of.ready = true;
            Ok(Vec::new())
        })
    }

    /// Names the bounds of a partition that is sealed here: by this broker, which owns its log in the epoch of `sealed`. Blocks.
    pub fn note_bounds(
        &self,
        moving: &Moving,
        sealed: &Partition,
        (start, end): (Offset, Offset),
    ) -> Result<(), MoveError> {
        let local = self.placement.local();
        self.change_move(&moving.topic, moving.index, |image, record| {
            let (place, base) = (place(record, moving.index)?, record.epoch_base(moving.index));
            let of = current(record, moving)?;
            let owned = owner(image, place.1).filter(|owner| owner.broker == local);
            let epoch = owned.map(|owner| epoch_of(owner).saturating_add(base));
            let Some(epoch) = epoch.filter(|epoch| Some(*epoch) == sealed.opened_in()) else {
                return Err(MoveError::NoMove);
            };
            if place.0 != sealed.stream_id || of.bounds.is_some() {
                return Err(MoveError::NoMove);
            }
            of.bounds = Some(SealedBounds { start: start.0, end: end.0, epoch });
            Ok(vec![same_owner(image, place.1)])
        })
    }

    /// Ends a move: `copy` has every record and is stored. This broker owns its log in the epoch of `copy`. Returns false if the
    /// bounds are to be named again, because the old log has another owner by now. Blocks.
    pub fn finish_move(&self, moving: &Moving, copy: &Partition) -> Result<bool, MoveError> {
        let local = self.placement.local();
        let name = moving.topic.name.as_str();
        self.metadata.update(|image| {
            let mut record = TopicRecord::clone(found(image, name, &moving.topic.id)?);
            let (place, base) = (place(&record, moving.index)?, record.epoch_base(moving.index));
            let of = current(&mut record, moving)?;
            let owned = owner(image, of.log).filter(|owner| owner.broker == local);
            let next = owned.map(|owner| epoch_of(owner).saturating_add(of.epoch));
            let next = next.filter(|next| Some(*next) == copy.opened_in()).ok_or(MoveError::NoMove)?;
            let bounds = of.bounds.ok_or(MoveError::NoMove)?;
            let before = owner(image, place.1).map_or(0, epoch_of).saturating_add(base);
            let compares = vec![same_owner(image, place.1), same_owner(image, of.log)];
            let moves = bounds.epoch == before;
            match moves {
                // Epochs may not go back. The administrator asks again.
                true if next <= before => return Err(MoveError::Epochs),
                true => record.finish_move(moving.index),
                false => of.bounds = None,
            }
            Ok(Update { compares, changes: vec![record.put(name)], result: moves })
        })
    }

    /// Changes a record in a commit with the conditions that `change` returns.
    fn change_move(
        &self,
        topic: &Topic,
        index: i32,
        change: impl Fn(&Image, &mut TopicRecord) -> Result<Vec<Compare>, MoveError>,
    ) -> Result<(), MoveError> {
        let name = topic.name.as_str();
        self.metadata.update(|image| {
            let mut record = TopicRecord::clone(found(image, name, &topic.id)?);
            let before = record.moves.get(&index).cloned();
            let compares = change(image, &mut record)?;
            let changes =
                if record.moves.get(&index) == before.as_ref() { Vec::new() } else { vec![record.put(name)] };
            Ok(Update { compares, changes, result: () })
        })
    }

    /// Does what a topic's record says of moves. The lock `shape` is held.
    pub(super) fn follow_moves(&self, topic: &Topic, old: &TopicRecord, record: &TopicRecord) {
        for (index, of) in &old.moves {
            let finished = record.streams.contains(&of.stream);
            let goes_on = record.moves.get(index).is_some_and(|now| now.stream == of.stream);
            if !finished && !goes_on {
                self.drop_copy(of);
            }
        }
        record.moves.iter().for_each(|(index, of)| self.open_copy(topic, *index, of));
        for partition in topic.partitions().iter() {
            let moves = |of: &TopicRecord| of.moves.get(&partition.index).is_some_and(|of| of.ready);
            if moves(old) || moves(record) {
                partition.seal(moves(record));
            }
        }
        let mut moving = self.moving.lock();
        match record.moves.is_empty() {
            true => moving.remove(topic.name.as_str()),
            false => moving.insert(topic.name.to_string()),
        };
    }

    /// Makes the partition into which records are copied, if its log is open here.
    pub(super) fn open_copy(&self, topic: &Topic, index: i32, of: &Move) {
        let stream = StreamId(of.stream);
        if self.copy_of(of).is_some_and(|copy| !copy.is_retired()) {
            return;
        }
        let Ok(log) = self.logs.find(of.log) else { return };
        let leader = topic.partition(index).map_or_else(|| self.placement.first_leader(), |it| it.leader());
        let name = (topic.name.clone(), topic.traffic.clone());
        let copy = Partition::new(name, index, (stream, of.epoch), Ok(log), leader);
        let copy = Arc::new(copy);
        set_levels(&topic.name, std::slice::from_ref(&copy), &topic.config());
        self.by_stream.write().insert(stream, copy);
    }

    /// The partition with the copied records, which leads from now on.
    pub(super) fn copied(
        &self,
        image: &Image,
        record: &TopicRecord,
        index: i32,
        (stream, log): (StreamId, Uuid),
    ) -> Option<Arc<Partition>> {
        let copy = self.of_stream(stream).filter(|copy| copy.log().is_ok() && !copy.is_retired())?;
        copy.begin_to_lead(self.leader_of(image, log, record.epoch_base(index)));
        Some(copy)
    }

    /// Drops what was copied.
    pub(super) fn drop_copy(&self, of: &Move) {
        if let Some(copy) = self.of_stream(StreamId(of.stream)) {
            self.close(&copy);
            copy.retire();
        }
    }

    /// The log of copies was closed here.
    pub(super) fn close_copies(&self, topic: &Topic, log: Uuid) {
        for of in topic.record().moves.values().filter(|of| of.log == log) {
            // The lock is not held while the partition's is taken: whoever has that may wait for the transaction index.
            let copy = self.by_stream.write().remove(&StreamId(of.stream));
            copy.iter().for_each(|copy| copy.retire());
        }
    }
}

/// Gives up the move of a partition that there is, and says where it goes: into this log, with this base of its epochs. `None`
/// if it stays, or its move goes on.
fn plan(
    image: &Image,
    record: &mut TopicRecord,
    placed: &mut BTreeMap<Uuid, usize>,
    index: i32,
    to: i32,
) -> Result<Option<(Uuid, i32)>, MoveError> {
    let (_, from) = place(record, index)?;
    let of_broker = |log: Uuid| owner(image, log).is_some_and(|owner| owner.home == to);
    if record.moves.get(&index).is_some_and(|of| of_broker(of.log)) {
        return Ok(None);
    }
    if of_broker(from) {
        record.moves.remove(&index);
        return Ok(None);
    }
    // One that others have at the moment comes back, and the move goes on wherever it is.
    let log = log_at(image, placed, to).ok_or(MoveError::NoLog(to))?;
    record.moves.remove(&index);
    let [old, new] = [from, log].map(|log| owner(image, log).map_or(0, epoch_of));
    let base = record.epoch_base(index).saturating_add(old).saturating_add(EPOCHS_BETWEEN);
    Ok(Some((log, base.saturating_sub(new).max(0))))
}

/// The log with the fewest partitions of those whose home is a broker: one that it has, if there is one. Counts one more in it.
pub(super) fn log_at(image: &Image, placed: &mut BTreeMap<Uuid, usize>, broker: i32) -> Option<Uuid> {
    let at_home = |(log, owner): (&str, &Arc<OwnerRecord>)| {
        let log: Uuid = log.parse().ok()?;
        let partitions = placed.get(&log).copied().unwrap_or(0);
        (owner.home == broker).then_some((owner.broker != broker, partitions, log))
    };
    let (.., log) = image.owners.iter().filter_map(at_home).min()?;
    *placed.entry(log).or_default() += 1;
    Some(log)
}

fn place(record: &TopicRecord, index: i32) -> Result<(StreamId, Uuid), TopicError> {
    let at = usize::try_from(index).map_err(|_| TopicError::Unknown)?;
    record.places().nth(at).ok_or(TopicError::Unknown)
}

/// The move in the record, if it is still this one.
fn current<'a>(record: &'a mut TopicRecord, moving: &Moving) -> Result<&'a mut Move, MoveError> {
    let of = record.moves.get_mut(&moving.index).filter(|of| of.stream == moving.of.stream);
    of.ok_or(MoveError::NoMove)
}
