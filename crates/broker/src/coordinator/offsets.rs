//! Committed offsets in the coordinator: OffsetCommit, TxnOffsetCommit, the end of transactions, and OffsetDelete.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use model::Offset;

use super::{Coordinator, Entry, GroupShard, Settled, State, partition_of, tombstones};
use crate::groups::{
    CommitRequest, CommittedOffset, GroupError, OffsetCommit, OffsetKey, RecordError, encode_offset,
    encode_offset_key,
};
use crate::partition::Partition;
use crate::topics::{Removals, Topics};
use crate::transactions::Check;

/// Upper bound in bytes of an offset's record, without its group, its topic and the client's metadata.
const RECORD_BYTES: usize = 100;
const ROOM_PATIENCE: Duration = Duration::from_secs(1);
/// Time that a new topic waits for moving coordinators, so that offsets of an earlier topic do not become its own.
const MOVING_PATIENCE: Duration = Duration::from_secs(5);
/// How often it looks again.
const MOVING_LOOK: Duration = Duration::from_millis(5);

/// The producer of a TxnOffsetCommit, and the check that its transaction contains the partition of
/// `__consumer_offsets`.
#[derive(Clone, Copy, Debug)]
pub struct Transactional {
    /// The producer's id.
    pub producer_id: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// `None` if the transaction is already open in the partition.
    pub check: Option<Check>,
}

/// The end of a producer's transaction in a partition of `__consumer_offsets`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub producer_id: i64,
    pub committed: bool,
    /// The offset of the marker.
    pub marker: Offset,
}

impl Coordinator {
    /// OffsetCommit: checks the offsets, appends the accepted ones and waits until they are durable. Returns one result
    /// for each offset, in the request's order.
    pub async fn commit(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: CommitRequest,
        transactional: Option<Transactional>,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        self.wait_for_room(entry, &request).await;
        let (results, settled) = {
            let mut state = entry.state.lock();
            if let Some(of) = transactional
                && self.is_ending(entry, &state, of.producer_id)
            {
                // Offsets of the producer's last transaction are not applied yet. The new offsets must not be mixed
                // with them. Clients retry.
                return Err(GroupError::CoordinatorNotAvailable);
            }
            let checked = state.group.check_commit(self.now(), request)?;
            self.arm(entry, &mut state);
            let results: Vec<_> =
                checked.results().iter().map(|result| result.as_ref().map(|_| ()).map_err(|e| *e)).collect();
            let encode = |(key, offset): (&OffsetKey, &CommittedOffset)| {
                Ok((encode_offset_key(&entry.id, key)?, Some(encode_offset(offset)?)))
            };
            let records: Result<Vec<_>, RecordError> = checked.accepted().map(encode).collect();
            let records = records.map_err(|_| GroupError::UnknownServer)?;
            if records.is_empty() {
                return Ok(results);
            }
            for (key, _) in checked.accepted() {
                self.committed_topics.list(entry, &mut state.topics, &key.topic);
            }
            if let (Some(of), Some(shard)) = (transactional, entry.shard.upgrade()) {
                self.note_uncommitted(&shard, of.producer_id, entry);
            }
            let position = self.append(entry, &mut state, &records, transactional)?;
            state.group.apply_commit(checked, position.0);
            (results, state.settled())
        };
        settled.wait().await.map(|()| results)
    }

    /// Whether the group still holds offsets of a transaction of the producer that has ended in the log.
    fn is_ending(&self, entry: &Entry, state: &State, producer_id: i64) -> bool {
        let Some(first) = state.group.first_uncommitted(producer_id) else { return false };
        let partition = entry.shard.upgrade().and_then(|shard| shard.place.partition());
        let began = partition.and_then(|partition| partition.transaction_start(producer_id));
        began.is_none_or(|began| first < began.0)
    }

    /// Waits while the log prepares room, as Produce does, but for a shorter time: heartbeats may wait behind this
    /// request. The room is not reserved. If there is no room in the end, the append fails.
    async fn wait_for_room(&self, entry: &Entry, request: &CommitRequest) {
        let Some(partition) = entry.shard.upgrade().and_then(|shard| shard.place.partition()) else { return };
        let Ok(log) = partition.log() else { return };
        let of = |commit: &OffsetCommit| {
            RECORD_BYTES
                + entry.id.len()
                + commit.key.topic.len()
                + commit.metadata.as_ref().map_or(0, String::len)
        };
        let bytes = request.offsets.iter().map(of).sum();
        let _ = tokio::time::timeout(ROOM_PATIENCE, log.reserve(bytes)).await;
    }

    /// Applies the end of a producer's transaction in a partition of `__consumer_offsets`. `marker` is the offset of
    /// the marker. The pending offsets of the producer become committed or are dropped.
    pub fn end_transaction(&self, partition: i32, producer_id: i64, committed: bool, marker: Offset) {
        let ended = Ended { producer_id, committed, marker };
        // A load may have read past this position before the marker was written. It then sees the transaction as open,
        // so the end is noted for it.
        let note = || self.ended.lock().entry(partition).or_default().push(ended);
        if self.shards.while_loading(partition, note) {
            return;
        }
        let ended = self.uncommitted.lock().remove(&(partition, producer_id)).unwrap_or_default();
        for entry in ended.iter().filter_map(Weak::upgrade) {
            let mut state = entry.state.lock();
            state.group.end_transaction(producer_id, committed, marker.0);
            if let (Some(_), Some(shard)) =
                (state.group.first_uncommitted(producer_id), entry.shard.upgrade())
            {
                self.note_uncommitted(&shard, producer_id, &entry);
            }
        }
    }

    pub(super) fn note_uncommitted(&self, shard: &GroupShard, producer_id: i64, entry: &Arc<Entry>) {
        let Some(partition) = shard.place.partition() else { return };
        let mut uncommitted = self.uncommitted.lock();
        let entries = uncommitted.entry((partition.index, producer_id)).or_default();
        if !entries.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(entry))) {
            entries.push(Arc::downgrade(entry));
        }
    }

    /// The partition of `__consumer_offsets` that holds group `id`. A transaction adds this partition.
    pub fn offsets_partition(&self, id: &str) -> Option<Arc<Partition>> {
        partition_of(self, id)
    }

    /// OffsetDelete. Returns one result for each key.
    pub async fn delete_offsets(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        keys: Vec<OffsetKey>,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        let (results, settled) = {
            let mut state = entry.state.lock();
            let checked = state.group.check_offset_delete(&keys).map_err(|error| entry.refusal(error))?;
            let gone: Vec<OffsetKey> = keys
                .iter()
                .zip(&checked)
                .filter(|(_, result)| **result == Ok(true))
                .map(|(key, _)| key.clone())
                .collect();
            let results: Vec<_> = checked.into_iter().map(|result| result.map(|_| ())).collect();
            if !gone.is_empty() {
                let records = tombstones(&state.group, &gone, false)?;
                let position = self.append(entry, &mut state, &records, None)?;
                state.group.remove_offsets(&gone, position.0);
            }
            (results, state.settled())
        };
        settled.wait().await.map(|()| results)
    }

    /// Drops the committed offsets of a deleted topic, unless a topic of this name exists again.
    pub fn forget_topic(self: &Arc<Self>, topic: Arc<str>) {
        let topics = self.shards.topics();
        self.forget_topic_if(&topic, || topics.as_ref().is_none_or(|topics| topics.find(&topic).is_none()));
    }

    /// Drops the committed offsets of all topics that do not exist.
    pub(super) fn forget_missing(self: &Arc<Self>, topics: &Topics) {
        for topic in self.committed_topics.topics(|name| topics.find(name).is_none()) {
            self.forget_topic(topic);
        }
    }

    fn forget_topic_if(self: &Arc<Self>, topic: &Arc<str>, may: impl Fn() -> bool) {
        let (begun, topic) = (self.begin_to_forget(topic, may), topic.clone());
        if begun.is_empty() {
            return;
        }
        let this = self.clone();
        self.runtime.spawn(async move {
            for (entry, settled) in begun {
                // If the tombstones fail, the group stays listed, and the next `expire` finds it.
                if let Ok(settled) = settled
                    && settled.wait().await.is_ok()
                {
                    this.end_forgetting(&entry, &topic);
                }
            }
        });
    }

    /// Drops the committed offsets of earlier topics of this name. Returns whether all of them are durably gone. Waits
    /// while partitions of the offsets move from one coordinator to another. Blocks.
    pub fn forget_topic_for_good(self: &Arc<Self>, topic: &str) -> bool {
        let deadline = Instant::now() + MOVING_PATIENCE;
        loop {
            let mut moving = self.shards.are_loading();
            if !moving {
                let mut gone = true;
                for (entry, settled) in self.begin_to_forget(topic, || true) {
                    match settled.and_then(Settled::wait_blocking) {
                        Ok(()) => self.end_forgetting(&entry, topic),
                        Err(GroupError::NotCoordinator) => moving = true,
                        Err(_) => gone = false,
                    }
                }
                if !gone || !moving {
                    return gone;
                }
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(MOVING_LOOK);
        }
    }

    /// Queues tombstones for the offsets of a topic. `may` is evaluated under the lock of each group, so that no offset
    /// of a new topic can be committed between the check and the append.
    fn begin_to_forget(
        self: &Arc<Self>,
        topic: &str,
        may: impl Fn() -> bool,
    ) -> Vec<(Arc<Entry>, Result<Settled, GroupError>)> {
        let forget = |entry: Arc<Entry>| {
            let mut state = entry.state.lock();
            if !may() {
                return None;
            }
            // These include offsets of open transactions, which would become committed later.
            let gone = state.group.offset_keys(|key| *key.topic == *topic);
            let written = match gone.is_empty() {
                true => Ok(()),
                false => tombstones(&state.group, &gone, false)
                    .and_then(|records| self.append(&entry, &mut state, &records, None))
                    .map(|position| state.group.remove_offsets(&gone, position.0)),
            };
            let settled = written.map(|()| state.settled());
            drop(state);
            Some((entry, settled))
        };
        self.committed_topics.groups(topic).into_iter().filter_map(forget).collect()
    }

    fn end_forgetting(&self, entry: &Arc<Entry>, topic: &str) {
        let mut state = entry.state.lock();
        if state.group.offset_keys(|key| *key.topic == *topic).is_empty() {
            self.committed_topics.unlist(entry, &mut state.topics, topic);
        }
    }
}

impl Removals for Coordinator {
    fn removed(self: Arc<Self>, name: &str) {
        // Nobody on this broker knows another topic of this name yet.
        self.forget_topic_if(&Arc::from(name), || true);
    }
}
