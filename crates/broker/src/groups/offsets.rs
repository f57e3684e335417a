//! Committed offsets of a group: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, their expiry (KIP-211), and
//! the removal of groups.
//!
//! A commit has two steps. [`Group::check_commit`] checks it; the caller queues its records in the log, which says where
//! they stand, and hands it to [`Group::apply_commit`]. Deletions likewise: first the keys, then tombstones, then
//! [`Group::remove_offsets`]. The caller answers a client, and shows it offsets, once the records are durable.
//!
//! Invariant: of two records for one key the one at the higher log position counts, whichever is applied first. So the
//! group always agrees with what replaying the log would give.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::group::{Group, State};
use super::{GroupError, Now};

/// The partition an offset is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetKey {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: i32,
}

/// An offset, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the last record read (KIP-320); -1 if unknown.
    pub leader_epoch: i32,
    /// The client's note.
    pub metadata: String,
    /// When it was committed, in milliseconds since the Unix epoch.
    pub commit_timestamp_ms: i64,
    /// When it expires, if the client said so (OffsetCommit v2-4); otherwise `offsets.retention.minutes` decides.
    pub expire_timestamp_ms: Option<i64>,
}

/// One offset to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetCommit {
    /// The partition.
    pub key: OffsetKey,
    /// The next offset to read.
    pub offset: i64,
    /// -1 if unknown.
    pub leader_epoch: i32,
    /// The client's note; none is the empty one.
    pub metadata: Option<String>,
}

/// An OffsetCommit or a TxnOffsetCommit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRequest {
    /// The producer of a TxnOffsetCommit. Its offsets count once its transaction commits.
    pub producer_id: Option<i64>,
    /// Empty for a consumer that is not a member of a group.
    pub member_id: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
    /// The generation; negative for a consumer that is not a member of a group.
    pub generation: i32,
    /// How long to keep the offsets (v2-4); `None` for the broker's setting, which the wire spells -1.
    pub retention_ms: Option<i64>,
    /// What to commit.
    pub offsets: Vec<OffsetCommit>,
}

/// A commit that passed the checks; not visible before it is applied.
#[derive(Debug)]
pub struct CheckedCommit {
    producer_id: Option<i64>,
    results: Vec<Result<(OffsetKey, CommittedOffset), GroupError>>,
}

impl CheckedCommit {
    /// One result for each offset of the request, in its order.
    pub fn results(&self) -> &[Result<(OffsetKey, CommittedOffset), GroupError>] {
        &self.results
    }

    /// The offsets to append, one record each. May be none.
    pub fn accepted(&self) -> impl Iterator<Item = (&OffsetKey, &CommittedOffset)> {
        self.results.iter().flatten().map(|(key, offset)| (key, offset))
    }
}

/// What time has made superfluous.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expired {
    /// Offsets to write tombstones for.
    pub offsets: Vec<OffsetKey>,
    /// Nothing else is left: write the group's tombstone too, then call [`Group::retire_if_unused`].
    pub group: bool,
}

/// All offsets of a group.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: BTreeMap<OffsetKey, Stored>,
    /// Of open transactions, by producer id.
    uncommitted: BTreeMap<i64, BTreeMap<OffsetKey, Stored>>,
}

#[derive(Debug, Clone)]
struct Stored {
    value: CommittedOffset,
    /// Where its record is in the partition of `__consumer_offsets`.
    position: i64,
}

impl Offsets {
    fn store(into: &mut BTreeMap<OffsetKey, Stored>, key: OffsetKey, stored: Stored) {
        if into.get(&key).is_none_or(|before| before.position < stored.position) {
            into.insert(key, stored);
        }
    }

    fn is_unstable(&self, key: &OffsetKey) -> bool {
        self.uncommitted.values().any(|offsets| offsets.contains_key(key))
    }

    fn has_none(&self) -> bool {
        self.committed.is_empty() && self.uncommitted.is_empty()
    }
}

impl Group {
    /// Checks a commit. A member's commit counts as a sign of life.
    ///
    /// # Errors
    /// For the whole request: `CoordinatorNotAvailable` if the group is Dead; `UnknownMemberId`, `FencedInstanceId`,
    /// `IllegalGeneration`; `RebalanceInProgress` in CompletingRebalance, where the member does not know yet which
    /// partitions are its own. A negative generation and no member id are accepted if the group is Empty, and in a
    /// transaction always. For single offsets: `OffsetMetadataTooLarge`.
    pub fn check_commit(&mut self, now: Now, request: CommitRequest) -> Result<CheckedCommit, GroupError> {
        self.validate_commit(&request)?;
        if self.consumer.is_none() && matches!(self.state, State::Stable | State::PreparingRebalance) {
            self.arm_session(&request.member_id, now);
        }
        let expire_timestamp_ms = request.retention_ms.map(|ms| now.wall_ms.saturating_add(ms));
        let metadata_max = self.config.offset_metadata_max;
        let consumer = self.consumer.as_deref();
        let accept = |commit: OffsetCommit| {
            if let Some(group) = consumer {
                let OffsetKey { topic, partition } = &commit.key;
                group.check_partition(&request.member_id, request.generation, topic, *partition)?;
            }
            let metadata = commit.metadata.unwrap_or_default();
            if metadata.encode_utf16().count() > metadata_max {
                return Err(GroupError::OffsetMetadataTooLarge);
            }
            let value = CommittedOffset {
                offset: commit.offset,
                leader_epoch: commit.leader_epoch,
                metadata,
                commit_timestamp_ms: now.wall_ms,
                expire_timestamp_ms,
            };
            Ok((commit.key, value))
        };
        let results = request.offsets.into_iter().map(accept).collect();
        Ok(CheckedCommit { producer_id: request.producer_id, results })
    }

    fn validate_commit(&self, request: &CommitRequest) -> Result<(), GroupError> {
        let transactional = request.producer_id.is_some();
        if self.state == State::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if request.generation < 0 && self.has_no_members() {
            return Ok(());
        }
        let stranger =
            request.generation < 0 && request.member_id.is_empty() && request.instance_id.is_none();
        if let Some(group) = &self.consumer {
            if transactional && stranger {
                // A producer that was told nothing of the consumer's membership (before KIP-447): its own fencing must do.
                return Ok(());
            }
            return group.check_commit(&request.member_id, request.generation);
        }
        if !stranger {
            self.validate_member(&request.member_id, request.instance_id.as_deref())?;
            if request.generation != self.generation {
                return Err(GroupError::IllegalGeneration);
            }
        } else if !transactional {
            return Err(GroupError::UnknownMemberId);
        }
        if self.state == State::CompletingRebalance && !transactional {
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    /// Whether a member may fetch offsets (OffsetFetch v9+); without a member id, anyone may.
    ///
    /// # Errors
    /// `UnknownMemberId`, `StaleMemberEpoch`, `IllegalGeneration`, in a group of the consumer protocol.
    pub fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), GroupError> {
        match (&self.consumer, member_id) {
            (None, _) => Ok(()),
            (Some(_), None) if epoch < 0 => Ok(()),
            (Some(group), member_id) => group.check_epoch_of(member_id.unwrap_or_default(), epoch),
        }
    }

    /// Applies a commit whose records are in the log, the first of them at the offset `position` and the others behind it. The
    /// offsets of a transaction wait for its end.
    pub fn apply_commit(&mut self, commit: CheckedCommit, position: i64) {
        let into = match commit.producer_id {
            Some(producer_id) => self.offsets.uncommitted.entry(producer_id).or_default(),
            None => &mut self.offsets.committed,
        };
        for ((key, value), position) in commit.results.into_iter().flatten().zip(position..) {
            Offsets::store(into, key, Stored { value, position });
        }
        self.drop_empty_transactions();
    }

    fn drop_empty_transactions(&mut self) {
        self.offsets.uncommitted.retain(|_, offsets| !offsets.is_empty());
    }

    /// The transaction of a producer has ended with the marker at the offset `marker`: the offsets before it become visible, or
    /// are forgotten. Those behind it belong to the next transaction of the producer.
    pub fn end_transaction(&mut self, producer_id: i64, committed: bool, marker: i64) {
        let Some(offsets) = self.offsets.uncommitted.get_mut(&producer_id) else { return };
        for (key, stored) in offsets.extract_if(.., |_, stored| stored.position < marker) {
            if committed {
                Offsets::store(&mut self.offsets.committed, key, stored);
            }
        }
        self.drop_empty_transactions();
    }

    /// Where the first of a producer's offsets stands whose transaction has not ended here.
    pub fn first_uncommitted(&self, producer_id: i64) -> Option<i64> {
        self.offsets.uncommitted.get(&producer_id)?.values().map(|stored| stored.position).min()
    }

    /// Puts back an offset read from the log at `position`; with a producer id, one of a transaction that may be open.
    pub fn restore_offset(
        &mut self,
        key: OffsetKey,
        value: CommittedOffset,
        position: i64,
        producer_id: Option<i64>,
    ) {
        let into = match producer_id {
            Some(producer_id) => self.offsets.uncommitted.entry(producer_id).or_default(),
            None => &mut self.offsets.committed,
        };
        Offsets::store(into, key, Stored { value, position });
    }

    /// The committed offset of a partition.
    pub fn offset(&self, key: &OffsetKey) -> Option<&CommittedOffset> {
        self.offsets.committed.get(key).map(|stored| &stored.value)
    }

    /// All committed offsets, ordered by topic and partition.
    pub fn offsets(&self) -> impl Iterator<Item = (&OffsetKey, &CommittedOffset)> {
        self.offsets.committed.iter().map(|(key, stored)| (key, &stored.value))
    }

    /// An open transaction may change the partition's offset: OffsetFetch v7+ with `require_stable` answers
    /// UNSTABLE_OFFSET_COMMIT (KIP-447).
    pub fn is_unstable(&self, key: &OffsetKey) -> bool {
        self.offsets.is_unstable(key)
    }

    /// Checks an OffsetDelete. For each key, in order: is there anything to write a tombstone for?
    ///
    /// # Errors
    /// For the whole request: `GroupIdNotFound` if the group is Dead, `NonEmptyGroup` if it has members that do not
    /// speak the consumer protocol. For single keys: `GroupSubscribedToTopic`.
    pub fn check_offset_delete(
        &self,
        keys: &[OffsetKey],
    ) -> Result<Vec<Result<bool, GroupError>>, GroupError> {
        match self.state {
            State::Dead => return Err(GroupError::GroupIdNotFound),
            _ if self.consumer.is_some() => {}
            State::Empty => {}
            _ if self.speaks_consumer_protocol() => {}
            _ => return Err(GroupError::NonEmptyGroup),
        }
        let check = |key: &OffsetKey| {
            if self.is_subscribed_to(&key.topic) {
                return Err(GroupError::GroupSubscribedToTopic);
            }
            Ok(self.offsets.committed.contains_key(key) || self.offsets.is_unstable(key))
        };
        Ok(keys.iter().map(check).collect())
    }

    /// Forgets offsets whose tombstones are durable, the last of them at `position`; commits that came later stay.
    pub fn remove_offsets(&mut self, keys: &[OffsetKey], position: i64) {
        for key in keys {
            for offsets in self.offsets.uncommitted.values_mut().chain([&mut self.offsets.committed]) {
                if offsets.get(key).is_some_and(|stored| stored.position < position) {
                    offsets.remove(key);
                }
            }
        }
        self.drop_empty_transactions();
    }

    /// A consumer group that has not told its topics is taken to subscribe to all.
    fn is_subscribed_to(&self, topic: &str) -> bool {
        if let Some(group) = &self.consumer {
            return group.is_subscribed_to(topic);
        }
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.speaks_consumer_protocol(),
        }
    }

    /// What has expired (KIP-211): each offset `offsets.retention.minutes` after
    /// - the group became Empty, or the commit if that was later, if it once had members;
    /// - the commit, if the group is Stable and subscribes to other topics, or never had members.
    ///
    /// Nothing expires while a group rebalances.
    pub fn expired(&self, now: Now) -> Expired {
        if self.state == State::Dead {
            // Another group may have its name by now.
            return Expired::default();
        }
        let Some(since) = self.retention_counts_from() else { return Expired::default() };
        let has_expired = |key: &OffsetKey, value: &CommittedOffset| {
            if self.offsets.is_unstable(key) || self.is_subscribed_to(&key.topic) {
                return false;
            }
            match value.expire_timestamp_ms {
                Some(at) => now.wall_ms >= at,
                None => {
                    let age_ms = now.wall_ms.saturating_sub(value.commit_timestamp_ms.max(since));
                    age_ms >= self.config.offsets_retention_ms
                }
            }
        };
        let offsets: Vec<_> =
            self.offsets().filter(|(k, v)| has_expired(k, v)).map(|(k, _)| k.clone()).collect();
        let all = offsets.len() == self.offsets.committed.len() && self.offsets.uncommitted.is_empty();
        Expired { offsets, group: all && self.has_no_members() && self.pending.is_empty() }
    }

    /// The moment before which no retention begins; `None` if nothing may expire.
    fn retention_counts_from(&self) -> Option<i64> {
        match (&self.protocol_type, self.state) {
            (None, _) => Some(i64::MIN),
            (Some(_), State::Empty) => Some(self.state_since_ms.unwrap_or(i64::MIN)),
            (Some(_), State::Stable) if self.subscribed.is_some() => Some(i64::MIN),
            _ => None,
        }
    }

    /// Makes the group Dead if it has no members, no member ids given out and no offsets; then the caller forgets it. True if
    /// it is Dead.
    pub fn retire_if_unused(&mut self) -> bool {
        if self.has_no_members() && self.pending.is_empty() && self.offsets.has_none() {
            self.bury();
        }
        self.state == State::Dead
    }

    /// Checks a DeleteGroups, and names the offsets to write tombstones for, next to the group's own. Once those are in the log,
    /// the caller calls [`Group::delete`].
    ///
    /// # Errors
    /// `GroupIdNotFound` if it is Dead already; `NonEmptyGroup` if it has members.
    pub fn check_delete(&self) -> Result<Vec<OffsetKey>, GroupError> {
        match self.state {
            State::Dead => Err(GroupError::GroupIdNotFound),
            _ if self.has_no_members() => Ok(self.offset_keys(|_| true)),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }

    /// Makes a group Dead whose tombstones are in the log.
    pub fn delete(&mut self) {
        self.bury();
        self.offsets = Offsets::default();
    }

    /// The `wanted` ones of all partitions that there are offsets for: committed, or of open transactions.
    pub fn offset_keys(&self, wanted: impl Fn(&OffsetKey) -> bool) -> Vec<OffsetKey> {
        let offsets = self.offsets.uncommitted.values().chain([&self.offsets.committed]);
        let keys: BTreeSet<_> = offsets.flat_map(BTreeMap::keys).filter(|key| wanted(key)).collect();
        keys.into_iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::groups::GroupConfig;

    const NOW: Now = Now { monotonic_ms: 0, wall_ms: 0 };

    fn commit(group: &mut Group, producer_id: Option<i64>, offset: i64) -> CheckedCommit {
        let offset = OffsetCommit { key: key(), offset, leader_epoch: -1, metadata: None };
        let request = CommitRequest {
            producer_id,
            member_id: String::new(),
            instance_id: None,
            generation: -1,
            retention_ms: None,
            offsets: vec![offset],
        };
        group.check_commit(NOW, request).unwrap()
    }

    fn key() -> OffsetKey {
        OffsetKey { topic: "t".into(), partition: 0 }
    }

    #[test]
    fn the_higher_position_counts_whatever_the_order() {
        let mut group = Group::new("g", Arc::new(GroupConfig::default()), NOW);
        let (first, second) = (commit(&mut group, None, 1), commit(&mut group, None, 2));
        group.apply_commit(second, 20);
        group.apply_commit(first, 10);
        assert_eq!(group.offset(&key()).map(|o| o.offset), Some(2));
        assert!(!group.retire_if_unused());
        group.remove_offsets(&[key()], 19);
        assert_eq!(group.offset(&key()).map(|o| o.offset), Some(2));
        group.remove_offsets(&[key()], 21);
        assert_eq!(group.offset(&key()), None);
        assert_eq!(group.check_delete(), Ok(Vec::new()));
        assert!(group.retire_if_unused());
        assert_eq!(group.check_delete(), Err(GroupError::GroupIdNotFound));
        assert_eq!(group.expired(Now { wall_ms: i64::MAX, ..NOW }), Expired::default());
    }

    #[test]
    fn a_marker_ends_the_transaction_before_it_and_not_the_next_one() {
        let mut group = Group::new("g", Arc::new(GroupConfig::default()), NOW);
        let (first, second) = (commit(&mut group, Some(7), 1), commit(&mut group, Some(7), 2));
        group.apply_commit(first, 10);
        assert_eq!(group.first_uncommitted(7), Some(10));
        group.end_transaction(7, true, 15);
        assert_eq!((group.offset(&key()).map(|o| o.offset), group.first_uncommitted(7)), (Some(1), None));
        // Another marker of the producer is heard of late: the offsets of its next transaction stand behind that marker.
        group.apply_commit(second, 20);
        group.end_transaction(7, true, 18);
        assert_eq!(group.offset(&key()).map(|o| o.offset), Some(1));
        assert!(group.is_unstable(&key()));
        group.end_transaction(7, true, 25);
        assert_eq!((group.offset(&key()).map(|o| o.offset), group.first_uncommitted(7)), (Some(2), None));
    }
}
