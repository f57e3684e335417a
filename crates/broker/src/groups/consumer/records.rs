//! The records of groups of the consumer protocol in `__consumer_offsets`, as Kafka writes them.
//!
//! ```text
//! key    i16 kind, string group, and where one of a member or an expression is meant, string member or expression
//! value  i16 0, then in compact encoding, ending in tagged fields:
//!  3  ConsumerGroupMetadata               i32 epoch; tag 0: i64 hash of the topics' metadata
//!  5  ConsumerGroupMemberMetadata         string? instance, string? rack, string client id, string client host,
//!                                         [string] topics, string? expression, i32 rebalance timeout, string? assignor;
//!                                         tag 0: nullable struct of i32 session timeout, [string name, bytes metadata]
//!  6  ConsumerGroupTargetAssignmentMetadata  i32 epoch
//!  7  ConsumerGroupTargetAssignmentMember [uuid topic, [i32] partitions]
//!  8  ConsumerGroupCurrentMemberAssignment  i32 epoch, i32 epoch before, i8 state, [assigned], [pending revocation], both
//!                                         as above, with tag 0: [i32] the epoch at which each partition came
//! 16  ConsumerGroupRegularExpression      [string] topics, i64 version, i64 timestamp
//! ```
//! Strings in keys have a length of 16 bits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use wire::messages::consumer_group_heartbeat_response::TopicPartitions;
use wire::messages::join_group_request::JoinGroupRequestProtocol;
use wire::{DecodeError, EncodeError, Part, Reader, Tags, Text, Uuid, Writer};

use super::super::group::{Group, State};
use super::super::member::Protocol;
use super::super::records::{encode_group, encode_group_key};
use super::super::{GroupSnapshot, RecordError};
use super::member::{ClassicSide, MemberState, Subscription};
use super::{ConsumerGroup, ConsumerMember, Partitions};
use crate::internal::InternalRecord;

const METADATA: i16 = 3;
const MEMBER: i16 = 5;
const TARGET_EPOCH: i16 = 6;
const TARGET: i16 = 7;
const CURRENT: i16 = 8;
const REGEX: i16 = 16;
const VALUE_VERSION: i16 = 0;
/// A version in which JoinGroup's protocols use the compact encoding.
const COMPACT_PROTOCOLS: i16 = 6;

/// Identifies one record of a group. Values are written in this order. Tombstones come before them, in reverse order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// The record of a classic group.
    Classic,
    /// The data that a member reports about itself.
    Member(String),
    /// The topics that match a regular expression.
    Regex(String),
    /// The group's epoch.
    Metadata,
    /// The target assignment of a member.
    Target(String),
    /// The epoch of the target assignment.
    TargetEpoch,
    /// The current assignment of a member.
    Current(String),
}

/// A decoded record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerRecord {
    /// The epoch and the hash of the topics' metadata.
    Metadata(i32, i64),
    /// The data that a member reports about itself.
    Member(Box<Subscription>),
    /// The topics of an expression.
    Regex(BTreeSet<String>),
    /// The target assignment of a member.
    Target(Partitions),
    /// The epoch of the target assignment.
    TargetEpoch(i32),
    /// The current assignment of a member.
    Current(Current),
}

/// The current assignment of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    epoch: i32,
    previous_epoch: i32,
    state: MemberState,
    assigned: Vec<HeldTopic>,
    revoking: Vec<HeldTopic>,
}

/// Partitions of one topic, each with the epoch at which the member received it (KIP-1251).
#[derive(Debug, Clone, PartialEq, Eq)]
struct HeldTopic {
    topic_id: Uuid,
    partitions: Vec<i32>,
    /// Kafka wrote no epochs before 4.3.
    epochs: Option<Vec<i32>>,
}

impl Part for HeldTopic {
    const LEAST_BYTES: usize = 18;

    fn min_bytes(_version: i16, _flexible: bool) -> usize {
        Self::LEAST_BYTES
    }

    fn read(value: &mut Reader, version: i16, flexible: bool) -> Result<Self, DecodeError> {
        let mut held =
            HeldTopic { topic_id: value.uuid()?, partitions: value.array(version, flexible)?, epochs: None };
        value.tags(|value, tag| {
            if tag == 0 {
                held.epochs = value.nullable_array(version, flexible, true)?;
            }
            Ok(tag == 0)
        })?;
        Ok(held)
    }

    fn write(&self, out: &mut Writer, version: i16, flexible: bool) -> Result<(), EncodeError> {
        out.uuid(self.topic_id);
        out.array(&self.partitions, version, flexible)?;
        let mut tags = Tags::default();
        if let Some(epochs) = &self.epochs {
            tags.put(0, |out| out.array(epochs, version, flexible))?;
        }
        out.tags(tags);
        Ok(())
    }
}

impl HeldTopic {
    /// Those of `partitions` with the epochs at which the member received them.
    fn listed(member: &ConsumerMember, partitions: &Partitions) -> Vec<HeldTopic> {
        let epoch = |topic, index| member.since.get(&(topic, index)).copied().unwrap_or(member.epoch);
        let topic = |(topic, indexes): (&Uuid, &BTreeSet<i32>)| HeldTopic {
            topic_id: *topic,
            partitions: indexes.iter().copied().collect(),
            epochs: Some(indexes.iter().map(|index| epoch(*topic, *index)).collect()),
        };
        partitions.iter().map(topic).collect()
    }

    /// Converts stored partitions, and notes the epoch of each in `since`.
    fn restore(held: Vec<HeldTopic>, epoch: i32, since: &mut BTreeMap<(Uuid, i32), i32>) -> Partitions {
        let mut partitions = Partitions::new();
        for HeldTopic { topic_id, partitions: indexes, epochs } in held {
            let epochs = epochs.unwrap_or_default().into_iter().chain(std::iter::repeat(epoch));
            since.extend(indexes.iter().zip(epochs).map(|(index, epoch)| ((topic_id, *index), epoch)));
            partitions.insert(topic_id, indexes.into_iter().collect());
        }
        partitions
    }
}

/// The content of all records of a group.
#[derive(Debug, Default)]
pub struct ConsumerRecords {
    /// `None` unless this is a group of the consumer protocol.
    pub(super) epoch: Option<i32>,
    pub(super) metadata_hash: i64,
    pub(super) target_epoch: i32,
    pub(super) members: BTreeMap<String, ConsumerMember>,
    pub(super) regexes: BTreeMap<String, BTreeSet<String>>,
}

impl ConsumerRecords {
    /// Whether the records describe a group of the consumer protocol.
    pub fn is_a_group(&self) -> bool {
        self.epoch.is_some()
    }

    fn member(&mut self, id: String) -> &mut ConsumerMember {
        self.members.entry(id.clone()).or_insert_with(|| ConsumerMember::new(id))
    }

    /// Applies the next record. A value of `None` is a tombstone.
    pub fn take_in(&mut self, key: RecordKey, value: Option<ConsumerRecord>) {
        match (key, value) {
            (RecordKey::Metadata, Some(ConsumerRecord::Metadata(epoch, hash))) => {
                (self.epoch, self.metadata_hash) = (Some(epoch), hash);
            }
            (RecordKey::Metadata, None) => self.epoch = None,
            (RecordKey::Member(id), Some(ConsumerRecord::Member(subscription))) => {
                self.member(id).subscription = *subscription;
            }
            (RecordKey::Member(id), None) => drop(self.members.remove(&id)),
            (RecordKey::Regex(regex), Some(ConsumerRecord::Regex(topics))) => {
                self.regexes.insert(regex, topics);
            }
            (RecordKey::Regex(regex), None) => drop(self.regexes.remove(&regex)),
            (RecordKey::Target(id), Some(ConsumerRecord::Target(target))) => {
                self.member(id).target = target;
            }
            (RecordKey::TargetEpoch, Some(ConsumerRecord::TargetEpoch(epoch))) => self.target_epoch = epoch,
            (RecordKey::TargetEpoch, None) => self.target_epoch = 0,
            (RecordKey::Current(id), Some(ConsumerRecord::Current(current))) => {
                let member = self.member(id);
                (member.epoch, member.previous_epoch) = (current.epoch, current.previous_epoch);
                member.state = current.state;
                let mut since = BTreeMap::new();
                member.assigned = HeldTopic::restore(current.assigned, current.epoch, &mut since);
                member.revoking = HeldTopic::restore(current.revoking, current.epoch, &mut since);
                member.since = since;
            }
            // The member's own tombstone removes the member. Without it, the member stays and has no partitions.
            (RecordKey::Target(id), None) => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.target = Partitions::new();
                }
            }
            (RecordKey::Current(id), None) => {
                if let Some(member) = self.members.get_mut(&id) {
                    (member.assigned, member.revoking) = (Partitions::new(), Partitions::new());
                }
            }
            // The decoder returns matching pairs of keys and values only.
            (_, _) => {}
        }
    }
}

impl Group {
    /// The records that the log does not hold yet, in the order of one batch. There may be none.
    ///
    /// # Errors
    /// [`RecordError::TooLong`].
    pub fn unwritten(&self) -> Result<Vec<InternalRecord>, RecordError> {
        if self.state() == State::Dead {
            // The tombstones of a removed group are already written, and a new group may have its name by now.
            return Ok(Vec::new());
        }
        let of_consumer = self.consumer.iter().flat_map(|group| &group.unwritten);
        let keys: BTreeSet<&RecordKey> = self.unwritten.iter().chain(of_consumer).collect();
        let (mut values, mut tombstones) = (Vec::new(), Vec::new());
        for key in keys {
            match self.encode_record(key)? {
                (key, None) => tombstones.push((key, None)),
                record => values.push(record),
            }
        }
        tombstones.reverse();
        tombstones.append(&mut values);
        Ok(tombstones)
    }

    /// Notes that the log has accepted the records of [`Group::unwritten`].
    pub fn written(&mut self) {
        self.unwritten.clear();
        if let Some(group) = &mut self.consumer {
            group.unwritten.clear();
        }
    }

    /// The keys of all records of the group, except its offsets.
    ///
    /// # Errors
    /// [`RecordError::TooLong`].
    pub fn record_keys(&self) -> Result<Vec<Bytes>, RecordError> {
        let mut keys = self.consumer.as_ref().map(|group| group.keys()).unwrap_or_default();
        keys.extend(self.unwritten.iter().cloned());
        keys.insert(RecordKey::Classic);
        keys.iter().rev().map(|key| key.encode(&self.id)).collect()
    }

    fn encode_record(&self, key: &RecordKey) -> Result<InternalRecord, RecordError> {
        let value = match (key, &self.consumer) {
            (RecordKey::Classic, _) => {
                self.classic_snapshot().map(|snapshot| encode_group(&snapshot)).transpose()?
            }
            (key, Some(group)) => group.encode_value(key).map_err(|_| RecordError::TooLong)?,
            (_, None) => None,
        };
        Ok((key.encode(&self.id)?, value))
    }

    fn classic_snapshot(&self) -> Option<GroupSnapshot> {
        let is_one = self.consumer.is_none() && self.protocol_type.is_some() && self.state() != State::Dead;
        is_one.then(|| self.snapshot(|member| member.assignment.clone().unwrap_or_default()))
    }
}

impl RecordKey {
    /// All records of a member.
    pub(super) fn of_member(id: &str) -> [RecordKey; 3] {
        [
            RecordKey::Member(id.to_owned()),
            RecordKey::Target(id.to_owned()),
            RecordKey::Current(id.to_owned()),
        ]
    }

    fn encode(&self, group: &str) -> Result<Bytes, RecordError> {
        let (kind, part) = match self {
            RecordKey::Classic => return encode_group_key(group),
            RecordKey::Metadata => (METADATA, None),
            RecordKey::Member(id) => (MEMBER, Some(id)),
            RecordKey::TargetEpoch => (TARGET_EPOCH, None),
            RecordKey::Target(id) => (TARGET, Some(id)),
            RecordKey::Current(id) => (CURRENT, Some(id)),
            RecordKey::Regex(regex) => (REGEX, Some(regex)),
        };
        let mut out = Writer::new();
        out.i16(kind);
        for text in std::iter::once(group).chain(part.map(String::as_str)) {
            out.text(&Text::copied(text), false).map_err(|_| RecordError::TooLong)?;
        }
        Ok(out.finish().to_bytes())
    }
}

impl ConsumerGroup {
    /// The keys of all records of the group, and of records that the log may still hold.
    pub(in super::super) fn keys(&self) -> BTreeSet<RecordKey> {
        let mut keys = self.unwritten.clone();
        keys.extend([RecordKey::Metadata, RecordKey::TargetEpoch]);
        keys.extend(self.members.keys().flat_map(|id| RecordKey::of_member(id)));
        keys.extend(self.regexes.keys().cloned().map(RecordKey::Regex));
        keys
    }

    fn encode_value(&self, key: &RecordKey) -> Result<Option<Bytes>, EncodeError> {
        let mut out = Writer::new();
        out.i16(VALUE_VERSION);
        let mut tags = Tags::default();
        match key {
            RecordKey::Classic => return Ok(None),
            RecordKey::Metadata => {
                out.i32(self.epoch);
                if self.metadata_hash != 0 {
                    tags.put(0, |out| {
                        out.i64(self.metadata_hash);
                        Ok(())
                    })?;
                }
            }
            RecordKey::TargetEpoch => out.i32(self.target_epoch),
            RecordKey::Regex(regex) => {
                let Some(resolved) = self.regexes.get(regex) else { return Ok(None) };
                texts(&mut out, &resolved.topics)?;
                // The version of Kafka's metadata log and the time of an hourly refresh. This server has neither.
                out.i64(0);
                out.i64(0);
            }
            RecordKey::Member(id) | RecordKey::Target(id) | RecordKey::Current(id) => {
                let Some(member) = self.members.get(id) else { return Ok(None) };
                match key {
                    RecordKey::Member(_) => member.subscription.encode(&mut out, &mut tags)?,
                    RecordKey::Target(_) => out.array(&listed(&member.target), 0, true)?,
                    _ => {
                        out.i32(member.epoch);
                        out.i32(member.previous_epoch);
                        out.i8(member.state.code());
                        out.array(&HeldTopic::listed(member, &member.assigned), 0, true)?;
                        out.array(&HeldTopic::listed(member, &member.revoking), 0, true)?;
                    }
                }
            }
        }
        out.tags(tags);
        Ok(Some(out.finish().to_bytes()))
    }
}

impl Subscription {
    fn encode(&self, out: &mut Writer, tags: &mut Tags) -> Result<(), EncodeError> {
        let nullable = |text: &Option<String>| text.as_deref().map(Text::copied);
        out.nullable_text(&nullable(&self.instance_id), true, true, "InstanceId")?;
        out.nullable_text(&nullable(&self.rack_id), true, true, "RackId")?;
        out.text(&Text::copied(&self.client_id), true)?;
        out.text(&Text::copied(&self.client_host), true)?;
        texts(out, &self.names)?;
        out.nullable_text(&nullable(&self.regex), true, true, "SubscribedTopicRegex")?;
        out.i32(self.rebalance_timeout_ms);
        out.nullable_text(&nullable(&self.assignor), true, true, "ServerAssignor")?;
        if let Some(classic) = &self.classic {
            tags.put(0, |out| {
                // A nullable structure begins with a byte that says whether it is present.
                out.i8(1);
                out.i32(classic.session_timeout_ms);
                let protocol = |of: &Protocol| JoinGroupRequestProtocol {
                    name: Text::copied(&of.name),
                    metadata: of.metadata.clone(),
                };
                let protocols: Vec<_> = classic.protocols.iter().map(protocol).collect();
                out.array(&protocols, COMPACT_PROTOCOLS, true)?;
                out.no_tags();
                Ok(())
            })?;
        }
        Ok(())
    }

    fn decode(value: &mut Reader) -> Result<Subscription, DecodeError> {
        let owned = |text: Option<Text>| text.map(|text| text.to_string());
        let mut subscription = Subscription {
            instance_id: owned(value.nullable_text(true, true)?),
            rack_id: owned(value.nullable_text(true, true)?),
            client_id: value.text(true)?.to_string(),
            client_host: value.text(true)?.to_string(),
            names: read_texts(value)?,
            regex: owned(value.nullable_text(true, true)?),
            rebalance_timeout_ms: value.i32()?,
            assignor: owned(value.nullable_text(true, true)?),
            classic: None,
        };
        value.tags(|value, tag| {
            if tag != 0 {
                return Ok(false);
            }
            if value.i8()? >= 0 {
                let session_timeout_ms = value.i32()?;
                let protocols: Vec<JoinGroupRequestProtocol> = value.array(COMPACT_PROTOCOLS, true)?;
                value.skip_tags()?;
                let protocol = |of: JoinGroupRequestProtocol| Protocol {
                    name: of.name.to_string(),
                    metadata: Bytes::copy_from_slice(&of.metadata),
                };
                let protocols = protocols.into_iter().map(protocol).collect();
                subscription.classic = Some(ClassicSide { session_timeout_ms, protocols });
            }
            Ok(true)
        })?;
        Ok(subscription)
    }
}

/// Decodes a record of a group of the consumer protocol, with the group's id. Returns `None` for a record of another
/// kind or a value of an unknown version.
///
/// # Errors
/// [`DecodeError`].
pub fn decode(
    key: &Bytes,
    value: Option<&Bytes>,
) -> Result<Option<(String, RecordKey, Option<ConsumerRecord>)>, DecodeError> {
    let mut key = Reader::new(key.clone());
    let kind = key.i16()?;
    if !matches!(kind, METADATA | MEMBER | TARGET_EPOCH | TARGET | CURRENT | REGEX) {
        return Ok(None);
    }
    let group = key.text(false)?.to_string();
    let part = match kind {
        METADATA | TARGET_EPOCH => String::new(),
        _ => key.text(false)?.to_string(),
    };
    let key = match kind {
        METADATA => RecordKey::Metadata,
        TARGET_EPOCH => RecordKey::TargetEpoch,
        MEMBER => RecordKey::Member(part),
        TARGET => RecordKey::Target(part),
        CURRENT => RecordKey::Current(part),
        _ => RecordKey::Regex(part),
    };
    let Some(value) = value else { return Ok(Some((group, key, None))) };
    let mut value = Reader::new(value.clone());
    if value.i16()? != VALUE_VERSION {
        return Ok(None);
    }
    let record = match &key {
        RecordKey::Metadata => {
            let (epoch, mut hash) = (value.i32()?, 0);
            value.tags(|value, tag| {
                if tag == 0 {
                    hash = value.i64()?;
                }
                Ok(tag == 0)
            })?;
            ConsumerRecord::Metadata(epoch, hash)
        }
        RecordKey::TargetEpoch => ConsumerRecord::TargetEpoch(value.i32()?),
        RecordKey::Regex(_) => ConsumerRecord::Regex(read_texts(&mut value)?),
        RecordKey::Target(_) => ConsumerRecord::Target(read_listed(&mut value)?),
        RecordKey::Current(_) => ConsumerRecord::Current(Current {
            epoch: value.i32()?,
            previous_epoch: value.i32()?,
            state: MemberState::from_code(value.i8()?),
            assigned: value.array(0, true)?,
            revoking: value.array(0, true)?,
        }),
        RecordKey::Member(_) | RecordKey::Classic => {
            ConsumerRecord::Member(Box::new(Subscription::decode(&mut value)?))
        }
    };
    Ok(Some((group, key, Some(record))))
}

/// Encodes partitions for heartbeats and records.
pub fn listed(partitions: &Partitions) -> Vec<TopicPartitions> {
    let topic = |(id, indexes): (&Uuid, &BTreeSet<i32>)| TopicPartitions {
        topic_id: *id,
        partitions: indexes.iter().copied().collect(),
    };
    partitions.iter().map(topic).collect()
}

fn read_listed(value: &mut Reader) -> Result<Partitions, DecodeError> {
    let listed: Vec<TopicPartitions> = value.array(0, true)?;
    Ok(listed.into_iter().map(|of| (of.topic_id, of.partitions.into_iter().collect())).collect())
}

fn texts(out: &mut Writer, texts: &BTreeSet<String>) -> Result<(), EncodeError> {
    let texts: Vec<Text> = texts.iter().map(|text| Text::copied(text)).collect();
    out.array(&texts, 0, true)
}

fn read_texts(value: &mut Reader) -> Result<BTreeSet<String>, DecodeError> {
    let texts: Vec<Text> = value.array(0, true)?;
    Ok(texts.into_iter().map(|text| text.to_string()).collect())
}
