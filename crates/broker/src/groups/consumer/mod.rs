//! Groups of the consumer protocol (KIP-848). The coordinator assigns the partitions. Members learn their assignment
//! and report the partitions they own by heartbeats alone. Pure logic, like the classic group. A
//! [`Group`](super::Group) is of one kind at a time, and its committed offsets stay when the kind changes.
//!
//! # Epochs
//! - The **group epoch** grows with every change of the members, their subscriptions, or the topics they subscribe to.
//! - The **target assignment** is computed for a group epoch, by the next heartbeat of any member.
//! - Each member has a **member epoch** and moves to the target's epoch on its own. It gives up the partitions it is to
//!   lose and reports so. It receives new partitions as soon as other members have given them up.
//!
//! ```text
//!              it has to give up partitions            it has given them up
//!     STABLE ---------------------------> UNREVOKED ------------------------------> STABLE, at the target's epoch
//!        '------------------------------------------------> UNRELEASED -----------------^
//!              it waits for partitions that others still hold
//! ```
//!
//! # Classic members
//! Members of the classic protocol may be in the group while it migrates in either direction. Their JoinGroup is a
//! heartbeat that joins, their generation is the member epoch, and SyncGroup returns their assignment. A classic group
//! becomes a consumer-protocol group when the first member of the new protocol joins. It becomes a classic group again
//! when the last of them leaves.
//!
//! # Invariants
//! 1. No partition is assigned to a member before every other member has given it up.
//! 2. A member learns of an assignment only after its record is durable (the caller holds the answer back).
//! 3. Every member has a session deadline.

mod assign;
mod classic;
mod heartbeat;
mod member;
mod pattern;
mod reconcile;
mod records;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use regex::Regex;
use uuid::Uuid;

pub use self::assign::{ASSIGNORS, Assignor};
pub use self::heartbeat::{HeartbeatReply, HeartbeatRequest};
pub use self::member::{ConsumerMember, MemberState, Subscription};
pub use self::records::{
    ConsumerRecord, ConsumerRecords, RecordKey, decode as decode_consumer_record, listed,
};

use self::assign::Subject;
use super::{GroupError, Now};

/// Partition indexes by topic id. A topic without partitions has no entry.
pub type Partitions = BTreeMap<Uuid, BTreeSet<i32>>;

/// The information about topics that groups need.
pub trait TopicSource {
    /// A number that changes whenever a topic is created, is deleted, or gets partitions.
    fn version(&self) -> u64;
    /// The id and the number of partitions of a topic.
    fn shape(&self, name: &str) -> Option<(Uuid, i32)>;
    /// The names of all topics.
    fn names(&self) -> Vec<String>;
}

/// A refusal, with the error message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The error.
    pub error: GroupError,
    /// The message, in Kafka's words.
    pub message: String,
}

impl Refused {
    pub(super) fn new(error: GroupError, message: impl Into<String>) -> Refused {
        Refused { error, message: message.into() }
    }

    /// The refusal of a heartbeat of this epoch for a group that does not exist.
    pub fn no_group(id: &str, epoch: i32) -> Refused {
        let what = if epoch < 0 { "Group" } else { "Consumer group" };
        Refused::new(GroupError::GroupIdNotFound, format!("{what} {id} not found."))
    }
}

impl From<GroupError> for Refused {
    fn from(error: GroupError) -> Refused {
        Refused::new(error, error.to_string())
    }
}

/// The state of a group, as ConsumerGroupDescribe and ListGroups name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerState {
    /// The group has no members. It may still have offsets.
    Empty,
    /// The target assignment is older than the group epoch.
    Assigning,
    /// A member has not reached the target assignment yet.
    Reconciling,
    /// Every member owns what the target assignment gives it.
    Stable,
}

impl ConsumerState {
    /// Kafka's name of the state.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Assigning => "Assigning",
            Self::Reconciling => "Reconciling",
            Self::Stable => "Stable",
        }
    }
}

/// A regular expression in the subscriptions of members.
#[derive(Debug, Default)]
struct Resolved {
    /// Compiled on first use.
    pattern: Option<Regex>,
    /// The topics that match.
    topics: BTreeSet<String>,
}

/// One group of the consumer protocol, without its offsets.
#[derive(Debug, Default)]
pub struct ConsumerGroup {
    id: String,
    epoch: i32,
    target_epoch: i32,
    /// A hash of the topics subscribed to; 0 for no topics.
    metadata_hash: i64,
    members: BTreeMap<String, ConsumerMember>,
    /// Maps `group.instance.id` to member id.
    statics: BTreeMap<String, String>,
    /// The regular expressions in use, each with the topics that match it.
    regexes: BTreeMap<String, Resolved>,
    /// The existing topics that members subscribe to, each with its id and number of partitions.
    topics: BTreeMap<String, (Uuid, i32)>,
    /// The version of the topic source at the last update of `topics`.
    seen: Option<u64>,
    /// Whether a member has left since then.
    departed: bool,
    /// The number of members that own each partition or have yet to give it up.
    holders: HashMap<(Uuid, i32), u32>,
    /// Records whose value in the log is out of date.
    unwritten: BTreeSet<RecordKey>,
}

impl ConsumerGroup {
    /// Restores a group from its records. Every member gets a fresh session of `session_timeout_ms`.
    pub fn restore(
        id: impl Into<String>,
        records: ConsumerRecords,
        topics: &dyn TopicSource,
        session_timeout_ms: i32,
        now: Now,
    ) -> Self {
        let mut group = Self {
            id: id.into(),
            epoch: records.epoch.unwrap_or(0),
            target_epoch: records.target_epoch,
            metadata_hash: records.metadata_hash,
            regexes: records
                .regexes
                .into_iter()
                .map(|(regex, topics)| (regex, Resolved { pattern: None, topics }))
                .collect(),
            ..Self::default()
        };
        for (_, mut member) in records.members {
            member.arm_session(now, session_timeout_ms);
            member.arm_rebalance(now);
            group.insert(member);
        }
        // The next heartbeat finds out whether the topics have changed since.
        group.topics = group.look_up(topics);
        group
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its state.
    pub fn state(&self) -> ConsumerState {
        if self.members.is_empty() {
            ConsumerState::Empty
        } else if self.epoch > self.target_epoch {
            ConsumerState::Assigning
        } else if self.members.values().any(|member| !member.follows(self.target_epoch)) {
            ConsumerState::Reconciling
        } else {
            ConsumerState::Stable
        }
    }

    /// The group epoch.
    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    /// The epoch of the target assignment.
    pub fn target_epoch(&self) -> i32 {
        self.target_epoch
    }

    /// The members, ordered by id.
    pub fn members(&self) -> impl Iterator<Item = &ConsumerMember> {
        self.members.values()
    }

    /// The member `id`.
    pub fn member(&self, id: &str) -> Option<&ConsumerMember> {
        self.members.get(id)
    }

    /// The assignor that most members ask for.
    pub fn assignor(&self) -> Assignor {
        let votes = |of: Assignor| {
            let asks = |member: &&ConsumerMember| member.subscription.assignor.as_deref() == Some(of.name());
            self.members.values().filter(asks).count()
        };
        // A tie goes to the first assignor, which is the default.
        ASSIGNORS.into_iter().rev().max_by_key(|of| votes(*of)).unwrap_or(Assignor::Uniform)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        self.members.values().any(|member| member.subscription.names.contains(topic))
            || self.regexes.values().any(|regex| regex.topics.contains(topic))
    }

    pub(super) fn earliest_deadline(&self) -> Option<u64> {
        self.members.values().filter_map(ConsumerMember::deadline).min()
    }

    /// The members that have passed a deadline.
    pub(super) fn overdue(&self, now: Now) -> Vec<String> {
        let overdue = |member: &&ConsumerMember| member.deadline().is_some_and(|at| at <= now.monotonic_ms);
        self.members.values().filter(overdue).map(|member| member.id.clone()).collect()
    }

    fn insert(&mut self, member: ConsumerMember) {
        for key in member.held() {
            *self.holders.entry(key).or_default() += 1;
        }
        if let Some(instance) = &member.subscription.instance_id {
            self.statics.insert(instance.clone(), member.id.clone());
        }
        self.members.insert(member.id.clone(), member);
    }

    /// Removes a member. The caller has to bump the epoch.
    fn remove(&mut self, id: &str) -> Option<ConsumerMember> {
        let member = self.members.remove(id)?;
        for key in member.held() {
            self.release(key);
        }
        if let Some(instance) = &member.subscription.instance_id
            && self.statics.get(instance).is_some_and(|owner| owner == id)
        {
            self.statics.remove(instance);
        }
        self.unwritten.extend(RecordKey::of_member(id));
        Some(member)
    }

    fn release(&mut self, key: (Uuid, i32)) {
        if let Some(count) = self.holders.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.holders.remove(&key);
            }
        }
    }

    /// Removes a member that leaves or is expelled. Its partitions become free for the remaining members.
    pub(super) fn depart(&mut self, id: &str) -> Option<ConsumerMember> {
        let member = self.remove(id)?;
        self.drop_unused_regexes();
        self.departed = true;
        self.bump_epoch();
        Some(member)
    }

    fn bump_epoch(&mut self) {
        self.epoch += 1;
        self.unwritten.insert(RecordKey::Metadata);
    }

    fn drop_unused_regexes(&mut self) {
        let used: BTreeSet<&String> =
            self.members.values().filter_map(|member| member.subscription.regex.as_ref()).collect();
        let gone: Vec<String> = self.regexes.keys().filter(|regex| !used.contains(regex)).cloned().collect();
        for regex in gone {
            self.regexes.remove(&regex);
            self.unwritten.insert(RecordKey::Regex(regex));
        }
    }

    /// Resolves the regular expressions again and looks up all topics subscribed to. Returns true if a new assignment
    /// is needed.
    fn refresh(&mut self, topics: &dyn TopicSource) -> bool {
        // The version is read first, so that the next heartbeat sees changes that happen from now on.
        let version = topics.version();
        let other_topics = self.seen != Some(version);
        self.drop_unused_regexes();
        let used: BTreeSet<String> =
            self.members.values().filter_map(|member| member.subscription.regex.clone()).collect();
        let unresolved = |regex: &String| other_topics || !self.regexes.contains_key(regex);
        let used: Vec<String> = used.into_iter().filter(unresolved).collect();
        let names = if used.is_empty() { Vec::new() } else { topics.names() };
        for regex in used {
            let known = self.regexes.contains_key(&regex);
            let resolved = self.regexes.entry(regex.clone()).or_default();
            if resolved.pattern.is_none() {
                // Expressions that do not compile are refused when they arrive, so this never loses a pattern.
                resolved.pattern = pattern::compile(&regex).ok();
            }
            let found = resolved
                .pattern
                .as_ref()
                .map(|pattern| pattern::matching(pattern, &names))
                .unwrap_or_default();
            if !known || resolved.topics != found {
                resolved.topics = found;
                self.unwritten.insert(RecordKey::Regex(regex));
            }
        }
        self.topics = self.look_up(topics);
        (self.seen, self.departed) = (Some(version), false);
        let mut hasher = DefaultHasher::new();
        self.topics.hash(&mut hasher);
        // Kafka computes another hash, but the two are never compared.
        let hash = if self.topics.is_empty() { 0 } else { i64::from_ne_bytes(hasher.finish().to_ne_bytes()) };
        std::mem::replace(&mut self.metadata_hash, hash) != hash
    }

    fn look_up(&self, topics: &dyn TopicSource) -> BTreeMap<String, (Uuid, i32)> {
        let names = self.members.values().flat_map(|member| &member.subscription.names);
        let by_regex = self.regexes.values().flat_map(|regex| &regex.topics);
        let all: BTreeSet<&String> = names.chain(by_regex).collect();
        all.into_iter().filter_map(|name| Some((name.clone(), topics.shape(name)?))).collect()
    }

    /// The existing topics that a member subscribes to.
    fn subscribed(&self, member: &ConsumerMember) -> BTreeMap<Uuid, i32> {
        let by_regex = member.subscription.regex.as_ref().and_then(|regex| self.regexes.get(regex));
        let names =
            member.subscription.names.iter().chain(by_regex.into_iter().flat_map(|regex| &regex.topics));
        names.filter_map(|name| self.topics.get(name)).copied().collect()
    }

    /// The name of a topic subscribed to.
    fn topic_name(&self, id: &Uuid) -> Option<&str> {
        self.topics.iter().find(|(_, (other, _))| other == id).map(|(name, _)| name.as_str())
    }

    /// Computes the target assignment for the group epoch.
    fn assign(&mut self) {
        let subjects: Vec<Subject> = self
            .members
            .values()
            .map(|member| Subject {
                id: &member.id,
                instance_id: member.subscription.instance_id.as_deref(),
                topics: self.subscribed(member),
                before: &member.target,
            })
            .collect();
        let targets = self.assignor().assign(&subjects);
        for (member, target) in self.members.values_mut().zip(targets) {
            if member.target != target {
                member.target = target;
                self.unwritten.insert(RecordKey::Target(member.id.clone()));
            }
        }
        self.target_epoch = self.epoch;
        self.unwritten.insert(RecordKey::TargetEpoch);
    }

    /// Checks the invariants that hold between operations.
    pub(super) fn check(&self) {
        let mut holders: HashMap<(Uuid, i32), u32> = HashMap::new();
        let mut assigned = BTreeSet::new();
        for member in self.members.values() {
            member.held().for_each(|key| *holders.entry(key).or_default() += 1);
            for (topic, partitions) in &member.assigned {
                for partition in partitions {
                    assert!(assigned.insert((*topic, *partition)), "a partition has one owner");
                }
            }
            assert!(member.deadline().is_some(), "member {} never expires", member.id);
            if let Some(instance) = &member.subscription.instance_id {
                assert_eq!(self.statics.get(instance), Some(&member.id), "an instance id names its member");
            }
        }
        assert_eq!(holders, self.holders);
        assert!(self.target_epoch <= self.epoch);
    }
}
