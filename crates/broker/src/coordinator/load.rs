//! Rebuilds the state of each group from the records of `__consumer_offsets`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use model::BatchHeader;
use wire::records::{self, TransactionResult};

use super::{Coordinator, Entry, GroupShard};
use crate::groups::consumer::{ConsumerGroup, ConsumerRecords, decode_consumer_record};
use crate::groups::{CommittedOffset, Group, GroupRecord, GroupSnapshot, OffsetKey, decode_record};
use crate::topics::Topics;

/// Offsets, each with the log position of its record.
pub type LoadedOffsets = BTreeMap<OffsetKey, (CommittedOffset, i64)>;

/// The state of one group, as its records describe it.
#[derive(Default)]
pub struct Loaded {
    /// The last snapshot of the group as a classic group.
    pub snapshot: Option<GroupSnapshot>,
    /// The records of the group as a consumer-protocol group.
    pub consumer: ConsumerRecords,
    /// Committed offsets.
    pub offsets: LoadedOffsets,
    /// Offsets of open transactions, by producer id.
    pub uncommitted: HashMap<i64, LoadedOffsets>,
}

/// The state of all groups of one partition of `__consumer_offsets`.
#[derive(Default)]
pub struct LoadedPartition {
    /// The groups, by id.
    pub groups: HashMap<String, Loaded>,
    /// Groups with offsets of open transactions, by producer id. A listed group may have no such offsets any more.
    open: HashMap<i64, HashSet<String>>,
}

impl LoadedPartition {
    /// Applies one record.
    pub fn take_in(&mut self, header: &BatchHeader, record: &records::RecordView) {
        match header.is_control() {
            true => self.end_transaction(header, record),
            false => self.take_in_data(header, record),
        }
    }

    /// Applies a transaction marker: it commits or drops the offsets of its producer.
    fn end_transaction(&mut self, header: &BatchHeader, record: &records::RecordView) {
        let Ok(Some((result, _))) = records::marker_of(record.clone()) else { return };
        for group in self.open.remove(&header.producer_id).unwrap_or_default() {
            let Some(loaded) = self.groups.get_mut(&group) else { continue };
            let Some(offsets) = loaded.uncommitted.remove(&header.producer_id) else { continue };
            if result == TransactionResult::Commit {
                for (key, (value, position)) in offsets {
                    // Of two records for one key, the record at the higher position counts.
                    if loaded.offsets.get(&key).is_none_or(|(_, before)| *before < position) {
                        loaded.offsets.insert(key, (value, position));
                    }
                }
            }
        }
    }

    fn take_in_data(&mut self, header: &BatchHeader, record: &records::RecordView) {
        let position = header.base_offset.0 + i64::from(record.offset_delta);
        let Some(key) = &record.key else { return };
        match decode_record(key, record.value.as_deref()) {
            Ok(GroupRecord::Offset { group, key, value: Some(value) }) => {
                if header.is_transactional() {
                    self.open.entry(header.producer_id).or_default().insert(group.clone());
                }
                let loaded = self.groups.entry(group).or_default();
                let into = match header.is_transactional() {
                    true => loaded.uncommitted.entry(header.producer_id).or_default(),
                    false => &mut loaded.offsets,
                };
                into.insert(key, (value, position));
            }
            Ok(GroupRecord::Offset { group, key, value: None }) => {
                let loaded = self.groups.entry(group).or_default();
                loaded.offsets.remove(&key);
                loaded.uncommitted.values_mut().for_each(|offsets| drop(offsets.remove(&key)));
            }
            Ok(GroupRecord::Group { group, value }) => self.groups.entry(group).or_default().snapshot = value,
            Ok(GroupRecord::Unknown { version }) => {
                match decode_consumer_record(key, record.value.as_ref()) {
                    Ok(Some((group, key, value))) => {
                        self.groups.entry(group).or_default().consumer.take_in(key, value);
                    }
                    Ok(None) => tracing::debug!(version, "a group record of an unknown kind was skipped"),
                    Err(error) => tracing::error!(%error, "a group record cannot be decoded"),
                }
            }
            Err(error) => tracing::error!(%error, "a group record cannot be decoded"),
        }
    }
}

impl Coordinator {
    /// Creates the groups of a partition from their loaded records.
    pub(super) fn restore_groups(
        self: &Arc<Self>,
        topics: &Topics,
        shard: &Arc<GroupShard>,
        loaded: LoadedPartition,
    ) {
        let now = self.now();
        for (id, loaded) in loaded.groups {
            let group = match loaded.snapshot {
                _ if loaded.consumer.is_a_group() => {
                    let timeout = self.config.consumer_session_timeout_ms;
                    let group = ConsumerGroup::restore(id.clone(), loaded.consumer, topics, timeout, now);
                    Group::from_consumer(group, self.config.clone(), now)
                }
                Some(snapshot) => {
                    match Group::from_snapshot(id.clone(), snapshot, self.config.clone(), now) {
                        Ok(group) => group,
                        Err(error) => {
                            tracing::error!(group = id, %error, "a group's record cannot be read; it starts empty");
                            Group::new(id.clone(), self.config.clone(), now)
                        }
                    }
                }
                None if loaded.offsets.is_empty() && loaded.uncommitted.is_empty() => continue,
                None => Group::new(id.clone(), self.config.clone(), now),
            };
            let entry = shard.find_or_insert(&id, || Entry::new(shard, &id, group));
            let mut state = entry.state.lock();
            for (key, (value, position)) in loaded.offsets {
                self.committed_topics.list(&entry, &mut state.topics, &key.topic);
                state.group.restore_offset(key, value, position, None);
            }
            for (producer_id, offsets) in loaded.uncommitted {
                self.note_uncommitted(shard, producer_id, &entry);
                for (key, (value, position)) in offsets {
                    self.committed_topics.list(&entry, &mut state.topics, &key.topic);
                    state.group.restore_offset(key, value, position, Some(producer_id));
                }
            }
            self.arm(&entry, &mut state);
        }
        // Topics that were deleted while nobody coordinated these groups.
        self.forget_missing(topics);
    }
}
