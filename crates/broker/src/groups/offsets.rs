//! The committed offsets of a group: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, their expiry (KIP-211),
//! and the removal of groups.
//!
//! A commit has two steps. [`Group::check_commit`] checks the commit. The caller queues its records in the log, learns
//! their position, and passes the commit to [`Group::apply_commit`]. A deletion works likewise: first the keys, then
//! the tombstones, then [`Group::remove_offsets`]. The caller answers a client and shows it offsets only when the
//! records are durable.
//!
//! Invariant: of two records for one key, the record at the higher log position counts, in whichever order they are
//! applied. The group therefore always agrees with a replay of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::group::{Group, State};
use super::{GroupError, Now};

/// The partition that an offset belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetKey {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: i32,
}

/// An offset as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the last record read (KIP-320); -1 if unknown.
    pub leader_epoch: i32,
    /// The client's metadata.
    pub metadata: String,
    /// Time of the commit, in milliseconds since the Unix epoch.
    pub commit_timestamp_ms: i64,
    /// Time of expiry in milliseconds since the Unix epoch, if the client chose one (OffsetCommit v2-4). Otherwise
    /// `offsets.retention.minutes` decides.
    pub expire_timestamp_ms: Option<i64>,
}

/// One offset to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetCommit {
    /// The partition.
    pub key: OffsetKey,
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the last record read; -1 if unknown.
    pub leader_epoch: i32,
    /// The client's metadata. `None` is stored as the empty string.
    pub metadata: Option<String>,
}

/// An OffsetCommit or a TxnOffsetCommit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRequest {
    /// The producer of a TxnOffsetCommit. Its offsets become committed when its transaction commits.
    pub producer_id: Option<i64>,
    /// Empty for a consumer that is not a member of the group.
    pub member_id: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
    /// The generation. Negative for a consumer that is not a member of the group.
    pub generation: i32,
    /// Retention of the offsets in milliseconds (v2-4). `None` stands for the broker's setting; the wire encodes it as
    /// -1.
    pub retention_ms: Option<i64>,
    /// The offsets to commit.
    pub offsets: Vec<OffsetCommit>,
}

/// A commit that has passed the checks. It is not visible before it is applied.
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

    /// The offsets to append, one record each. There may be none.
    pub fn accepted(&self) -> impl Iterator<Item = (&OffsetKey, &CommittedOffset)> {
        self.results.iter().flatten().map(|(key, offset)| (key, offset))
    }
}

/// Offsets, and possibly the group itself, that have expired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expired {
    /// Offsets to write tombstones for.
    pub offsets: Vec<OffsetKey>,
    /// The group has nothing else left: write its tombstone too, then call [`Group::retire_if_unused`].
    pub group: bool,
}

/// All offsets of a group.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: BTreeMap<OffsetKey, Stored>,
    /// Offsets of open transactions, by producer id.
    uncommitted: BTreeMap<i64, BTreeMap<OffsetKey, Stored>>,
}

#[derive(Debug, Clone)]
struct Stored {
    value: CommittedOffset,
    /// The position of the offset's record in the partition of `__consumer_offsets`.
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
    /// A negative generation is accepted if the group has no members. In a transaction, a negative generation without
    /// member id and instance id is always accepted.
    ///
    /// # Errors
    /// For the whole request: `CoordinatorNotAvailable` if the group is Dead; `UnknownMemberId`, `FencedInstanceId`,
    /// `IllegalGeneration`; `StaleMemberEpoch` in a group of the consumer protocol; `RebalanceInProgress` in
    /// CompletingRebalance, where the member does not know its partitions yet. For single offsets:
    /// `OffsetMetadataTooLarge`.
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
                // The producer does not know the consumer's membership (before KIP-447). The fencing of the producer
                // has to be enough.
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

    /// Checks whether a member may fetch offsets (OffsetFetch v9+). A request without a member id always passes.
    ///
    /// # Errors
    /// In a group of the consumer protocol: `UnknownMemberId`, `StaleMemberEpoch`, `IllegalGeneration`.
    pub fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), GroupError> {
        match (&self.consumer, member_id) {
            (None, _) => Ok(()),
            (Some(_), None) if epoch < 0 => Ok(()),
            (Some(group), member_id) => group.check_epoch_of(member_id.unwrap_or_default(), epoch),
        }
    }

    /// Applies a commit whose records are in the log, the first of them at the offset `position`. The offsets of a
    /// transaction stay pending until the transaction ends.
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

    /// Applies the end of a producer's transaction. `marker` is the offset of the marker. Pending offsets before the
    /// marker become visible or are dropped. Offsets behind it belong to the producer's next transaction.
    pub fn end_transaction(&mut self, producer_id: i64, committed: bool, marker: i64) {
        let Some(offsets) = self.offsets.uncommitted.get_mut(&producer_id) else { return };
        for (key, stored) in offsets.extract_if(.., |_, stored| stored.position < marker) {
            if committed {
                Offsets::store(&mut self.offsets.committed, key, stored);
            }
        }
        self.drop_empty_transactions();
    }

    /// The position of the producer's first pending offset. `None` if the producer has no pending offsets here.
    pub fn first_uncommitted(&self, producer_id: i64) -> Option<i64> {
        self.offsets.uncommitted.get(&producer_id)?.values().map(|stored| stored.position).min()
    }

    /// Restores an offset that was read from the log at `position`. With a producer id, the offset belongs to a
    /// transaction that may be open.
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

    /// Whether an open transaction may change the partition's offset. OffsetFetch v7+ with `require_stable` then
    /// answers UNSTABLE_OFFSET_COMMIT (KIP-447).
    pub fn is_unstable(&self, key: &OffsetKey) -> bool {
        self.offsets.is_unstable(key)
    }

    /// Checks an OffsetDelete. The result for each key, in order, says whether the key needs a tombstone.
    ///
    /// # Errors
    /// For the whole request: `GroupIdNotFound` if the group is Dead, `NonEmptyGroup` if it has members that do not use
    /// the consumer protocol type. For single keys: `GroupSubscribedToTopic`.
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

    /// Removes offsets whose tombstones are in the log, the last of them at `position`. Commits at later positions
    /// stay.
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

    /// A group whose consumers did not report their topics counts as subscribed to every topic.
    fn is_subscribed_to(&self, topic: &str) -> bool {
        if let Some(group) = &self.consumer {
            return group.is_subscribed_to(topic);
        }
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.speaks_consumer_protocol(),
        }
    }

    /// The offsets and the group that have expired (KIP-211). If the client chose no expiry time, an offset expires
    /// `offsets.retention.minutes` after
    /// - the group became Empty, or the commit if that was later, if the group once had members;
    /// - the commit, if the group is Stable and does not subscribe to the topic, or never had members.
    ///
    /// Nothing expires while a group rebalances.
    pub fn expired(&self, now: Now) -> Expired {
        if self.state == State::Dead {
            // A new group may have the name of this one by now.
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

    /// The earliest start of any retention, in milliseconds since the Unix epoch. `None` if nothing may expire.
    fn retention_counts_from(&self) -> Option<i64> {
        match (&self.protocol_type, self.state) {
            (None, _) => Some(i64::MIN),
            (Some(_), State::Empty) => Some(self.state_since_ms.unwrap_or(i64::MIN)),
            (Some(_), State::Stable) if self.subscribed.is_some() => Some(i64::MIN),
            _ => None,
        }
    }

    /// Makes the group Dead if it has no members, no pending member ids and no offsets. Returns whether the group is
    /// Dead; the caller then removes it.
    pub fn retire_if_unused(&mut self) -> bool {
        if self.has_no_members() && self.pending.is_empty() && self.offsets.has_none() {
            self.bury();
        }
        self.state == State::Dead
    }

    /// Checks a DeleteGroups. Returns the offsets that need tombstones in addition to the group's own. The caller
    /// queues the tombstones and then calls [`Group::delete`].
    ///
    /// # Errors
    /// `GroupIdNotFound` if the group is already Dead; `NonEmptyGroup` if it has members.
    pub fn check_delete(&self) -> Result<Vec<OffsetKey>, GroupError> {
        match self.state {
            State::Dead => Err(GroupError::GroupIdNotFound),
            _ if self.has_no_members() => Ok(self.offset_keys(|_| true)),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }

    /// Makes the group Dead. Its tombstones must be in the log.
    pub fn delete(&mut self) {
        self.bury();
        self.offsets = Offsets::default();
    }

    /// The keys of all offsets for which `wanted` is true, committed or in open transactions.
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
        // A marker of the producer is applied late. The offsets of the next transaction stand behind that marker.
        group.apply_commit(second, 20);
        group.end_transaction(7, true, 18);
        assert_eq!(group.offset(&key()).map(|o| o.offset), Some(1));
        assert!(group.is_unstable(&key()));
        group.end_transaction(7, true, 25);
        assert_eq!((group.offset(&key()).map(|o| o.offset), group.first_uncommitted(7)), (Some(2), None));
    }
}
