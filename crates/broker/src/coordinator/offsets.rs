//! Committed offsets in the coordinator: OffsetCommit, TxnOffsetCommit and the ends of their transactions, OffsetDelete.

use std::sync::Arc;
use std::time::Duration;

use model::Offset;
use tokio::sync::oneshot;

use super::{Coordinator, Entry, State, tombstones};
use crate::groups::{
    CommitRequest, CommittedOffset, GroupError, OffsetCommit, OffsetKey, RecordError, encode_offset,
    encode_offset_key,
};
use crate::partition::Partition;
use crate::transactions::Check;

/// What the record of an offset takes at most beside its group, its topic and the client's note.
const RECORD_BYTES: usize = 100;
const ROOM_PATIENCE: Duration = Duration::from_secs(1);

/// The producer of a TxnOffsetCommit, and that its transaction has the partition of `__consumer_offsets`.
#[derive(Clone, Copy, Debug)]
pub struct Transactional {
    /// Its id.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// `None` when the transaction is open there already.
    pub check: Option<Check>,
}

/// Offset commits of one producer that are on their way.
#[derive(Default)]
pub(super) struct InFlight {
    commits: usize,
    /// How their transaction ended meanwhile: in the log its marker stands behind them.
    ended: Option<bool>,
}

impl Coordinator {
    /// OffsetCommit: checks, appends, and applies what is durable. One result for each offset, in the request's order.
    pub async fn commit(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: CommitRequest,
        transactional: Option<Transactional>,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        // What has begun may go on to its end.
        if transactional.is_none_or(|of| of.check.is_some()) {
            self.pass(&entry.id).await;
        }
        self.wait_for_room(entry, &request).await;
        let receiver = {
            let mut state = entry.state.lock();
            let ended = |of: Transactional| state.transactional.get(&of.producer_id)?.ended;
            if transactional.and_then(ended).is_some() {
                // Its last transaction has ended, and offsets of it are still on their way: these must not be taken for
                // theirs. Clients ask again.
                return Err(GroupError::CoordinatorNotAvailable);
            }
            let prepared = state.group.prepare_commit(self.now(), request)?;
            self.arm(entry, &mut state);
            let results: Vec<_> =
                prepared.results().iter().map(|result| result.as_ref().map(|_| ()).map_err(|e| *e)).collect();
            let encode = |(key, offset): (&OffsetKey, &CommittedOffset)| {
                Ok((encode_offset_key(&entry.id, key)?, Some(encode_offset(offset)?)))
            };
            let records: Result<Vec<_>, RecordError> = prepared.accepted().map(encode).collect();
            let records = match records {
                Ok(records) if !records.is_empty() => records,
                other => {
                    state.group.abandon_commit(prepared);
                    return other.map(|_| results).map_err(|_| GroupError::UnknownServer);
                }
            };
            for (key, _) in prepared.accepted() {
                self.committed_topics.list(entry, &mut state.topics, &key.topic);
            }
            let (sender, receiver) = oneshot::channel();
            if let Some(Transactional { producer_id, .. }) = transactional {
                self.note_uncommitted(producer_id, entry);
                state.transactional.entry(producer_id).or_default().commits += 1;
            }
            self.append_transactional(entry, &mut state, records, transactional, move |state, position| {
                let outcome = match position {
                    Some(position) => {
                        state.group.apply_commit(prepared, position.0);
                        Ok(results)
                    }
                    None => {
                        state.group.abandon_commit(prepared);
                        Err(GroupError::CoordinatorNotAvailable)
                    }
                };
                if let Some(Transactional { producer_id, .. }) = transactional {
                    state.landed(producer_id);
                }
                // A client that went away no longer waits for it.
                let _ = sender.send(outcome);
                Vec::new()
            });
            receiver
        };
        receiver.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable))
    }

    /// Waits as a produce request does where room in the log is being prepared, but not as long: heartbeats may wait behind
    /// it. What it finds is not reserved, and where there is none in the end, the append says so.
    async fn wait_for_room(&self, entry: &Entry, request: &CommitRequest) {
        let Some(partition) = self.partition_of(&entry.id) else { return };
        let Ok(home) = partition.home() else { return };
        let of = |commit: &OffsetCommit| {
            RECORD_BYTES
                + entry.id.len()
                + commit.key.topic.len()
                + commit.metadata.as_ref().map_or(0, String::len)
        };
        let bytes = request.offsets.iter().map(of).sum();
        let _ = tokio::time::timeout(ROOM_PATIENCE, home.log.admit(bytes)).await;
    }

    /// A producer's transaction has ended in a partition of `__consumer_offsets`: its groups' offsets count, or never do.
    pub fn end_transaction(&self, partition: i32, producer_id: i64, committed: bool) {
        let here = |entry: &Arc<Entry>| self.partition_of(&entry.id).is_some_and(|of| of.index == partition);
        let ended = {
            let mut uncommitted = self.uncommitted.lock();
            let all = uncommitted.remove(&producer_id).unwrap_or_default();
            let (ended, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(here);
            if !rest.is_empty() {
                uncommitted.insert(producer_id, rest);
            }
            ended
        };
        for entry in ended {
            let mut state = entry.state.lock();
            match state.transactional.get_mut(&producer_id) {
                Some(in_flight) => in_flight.ended = Some(committed),
                None => state.group.end_transaction(producer_id, committed),
            }
        }
    }

    pub(super) fn note_uncommitted(&self, producer_id: i64, entry: &Arc<Entry>) {
        let mut uncommitted = self.uncommitted.lock();
        let entries = uncommitted.entry(producer_id).or_default();
        if !entries.iter().any(|other| Arc::ptr_eq(other, entry)) {
            entries.push(entry.clone());
        }
    }

    /// The partition of `__consumer_offsets` of group `id`, for a transaction that is to have it.
    pub fn offsets_partition(&self, id: &str) -> Option<Arc<Partition>> {
        self.partition_of(id)
    }

    /// OffsetDelete: a result for each key.
    pub async fn delete_offsets(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        keys: Vec<OffsetKey>,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        let receiver = {
            let mut state = entry.state.lock();
            let checked = state.group.check_offset_delete(&keys)?;
            let gone: Vec<OffsetKey> = keys
                .iter()
                .zip(&checked)
                .filter(|(_, result)| **result == Ok(true))
                .map(|(key, _)| key.clone())
                .collect();
            let results: Vec<_> = checked.into_iter().map(|result| result.map(|_| ())).collect();
            if gone.is_empty() {
                return Ok(results);
            }
            let records = tombstones(&state.group, &gone, false)?;
            let (sender, receiver) = oneshot::channel();
            self.append_then(entry, &mut state, records, move |state, position| {
                if let Some(position) = position {
                    state.group.remove_offsets(&gone, position.0);
                }
                // A client that went away no longer waits for it.
                let _ = sender.send(position.map(|_| results).ok_or(GroupError::CoordinatorNotAvailable));
                Vec::new()
            });
            receiver
        };
        receiver.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable))
    }

    /// Drops what groups committed for a topic that was deleted. Of each group that had such offsets comes whether they are
    /// gone for good; nothing where that is not so.
    pub fn forget_topic(self: &Arc<Self>, topic: &str) -> Vec<oneshot::Receiver<Offset>> {
        let mut forgotten = Vec::new();
        for entry in self.committed_topics.groups(topic) {
            let mut state = entry.state.lock();
            // Also what is on its way and what an open transaction committed: it counts later.
            let gone = state.group.offset_keys(|key| *key.topic == *topic);
            let Some(first) = gone.first() else {
                self.committed_topics.unlist(&entry, &mut state.topics, topic);
                continue;
            };
            let topic = first.topic.clone();
            let (sender, receiver) = oneshot::channel();
            forgotten.push(receiver);
            let Ok(records) = tombstones(&state.group, &gone, false) else { continue };
            let (this, of) = (self.clone(), entry.clone());
            self.append_then(&entry, &mut state, records, move |state, position| {
                // Otherwise the next look finds them again.
                if let Some(position) = position {
                    state.group.remove_offsets(&gone, position.0);
                    if state.group.offset_keys(|key| key.topic == topic).is_empty() {
                        this.committed_topics.unlist(&of, &mut state.topics, &topic);
                    }
                    // Not everybody waits for it.
                    let _ = sender.send(position);
                }
                Vec::new()
            });
        }
        forgotten
    }
}

impl State {
    /// One of a producer's commits is applied, or never will be.
    fn landed(&mut self, producer_id: i64) {
        let Some(in_flight) = self.transactional.get_mut(&producer_id) else { return };
        in_flight.commits -= 1;
        if in_flight.commits == 0 {
            let ended = in_flight.ended;
            self.transactional.remove(&producer_id);
            if let Some(committed) = ended {
                self.group.end_transaction(producer_id, committed);
            }
        }
    }
}
