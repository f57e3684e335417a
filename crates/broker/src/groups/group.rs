//! One group: its state, its sessions and timers, its record, and the checks of its invariants.
//!
//! ```text
//!             first member                all joined, or time is up
//!      Empty --------------> PreparingRebalance -------------------> CompletingRebalance
//!        ^                     |    ^        ^                         |        |
//!        '---------------------'    |        '-------------------------'        | assignment durable
//!          no member is left        |          a member comes, goes, changes    v
//!                                   '----------------------------------------- Stable
//! ```
//! Any state may become Dead: the group was removed while a task still held it. A Dead group stays Dead.
//!
//! The requests are in `join`, `sync`, `leave` and `offsets`, the transitions above are in `rebalance`. Every request
//! ends in [`Group::finish`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::consumer::{ConsumerGroup, RecordKey};
use super::member::{Member, Protocol, Roster};
use super::offsets::Offsets;
use super::rebalance::JoinTimer;
use super::records::{self, GroupSnapshot, MemberSnapshot, RecordError};
use super::{Action, CONSUMER_PROTOCOL_TYPE, GroupConfig, GroupError, JoinReply, Joined, Now, ReplyToken};

/// The state of a group, displayed with the name that DescribeGroups and ListGroups show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The group has no members. It may still have offsets.
    Empty,
    /// The group waits until every member has joined.
    PreparingRebalance,
    /// The group waits until the leader's assignment is durable.
    CompletingRebalance,
    /// Every member has an assignment.
    Stable,
    /// The group was removed. A task that still holds it has to look the group up again.
    Dead,
}

impl State {
    /// Kafka's name of the state.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One classic group.
#[derive(Debug)]
pub struct Group {
    pub(super) id: String,
    pub(super) config: Arc<GroupConfig>,
    pub(super) state: State,
    /// Time of entry into the current state, on the wall clock. `None` for a group restored from an old record.
    pub(super) state_since_ms: Option<i64>,
    pub(super) generation: i32,
    /// `None` for a group that has only committed offsets and never had members.
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) leader: Option<String>,
    pub(super) roster: Roster,
    /// Member ids that were handed out and not used to join yet, each with its deadline.
    pub(super) pending: BTreeMap<String, u64>,
    pub(super) join_timer: Option<JoinTimer>,
    /// The deadline after which members without a sync are dropped.
    pub(super) sync_deadline: Option<u64>,
    /// The topics subscribed to. `None` if the members do not use the consumer protocol type, or if their metadata is
    /// missing or cannot be read.
    pub(super) subscribed: Option<BTreeSet<String>>,
    pub(super) offsets: Offsets,
    /// Present while the group uses the consumer protocol. The fields above then hold no members.
    pub(super) consumer: Option<Box<ConsumerGroup>>,
    /// Records that need to be written or replaced by tombstones: the record of a classic group, and the records of the
    /// kind that the group was before.
    pub(super) unwritten: BTreeSet<RecordKey>,
    /// No deadline is earlier than this. A deadline that moves later leaves this value unchanged, and the next tick
    /// corrects it.
    wake_at: Option<u64>,
    outbox: Vec<Action>,
}

/// A group as DescribeGroups and ListGroups (type "classic") show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDescription {
    /// Its state.
    pub state: State,
    /// The protocol type. Empty if the group never had members.
    pub protocol_type: String,
    /// The chosen protocol. Empty unless Stable.
    pub protocol: String,
    /// Its members.
    pub members: Vec<MemberDescription>,
}

/// A member as DescribeGroups shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberDescription {
    /// Its member id.
    pub member_id: String,
    /// Its `group.instance.id`.
    pub instance_id: Option<String>,
    /// Its client id.
    pub client_id: String,
    /// The client's address.
    pub client_host: String,
    /// The member's metadata for the chosen protocol. Empty unless Stable.
    pub metadata: Bytes,
    /// The member's assignment. Empty unless Stable.
    pub assignment: Bytes,
}

impl Group {
    /// Creates an Empty group.
    pub fn new(id: impl Into<String>, config: Arc<GroupConfig>, now: Now) -> Self {
        Self {
            id: id.into(),
            config,
            state: State::Empty,
            state_since_ms: Some(now.wall_ms),
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            roster: Roster::default(),
            pending: BTreeMap::new(),
            join_timer: None,
            sync_deadline: None,
            subscribed: None,
            offsets: Offsets::default(),
            consumer: None,
            unwritten: BTreeSet::new(),
            wake_at: None,
            outbox: Vec::new(),
        }
    }

    /// Restores a group from its last record: Stable if it has members, Empty otherwise. Members get a fresh session. A
    /// group with more members than `group.max.size` rebalances, and the members that join last are refused.
    /// [`Group::restore_offset`] restores the offsets one by one.
    ///
    /// # Errors
    /// [`RecordError::Inconsistent`] if the record contradicts itself.
    pub fn from_snapshot(
        id: impl Into<String>,
        snapshot: GroupSnapshot,
        config: Arc<GroupConfig>,
        now: Now,
    ) -> Result<Self, RecordError> {
        snapshot.validate()?;
        let mut group = Self::new(id, config, now);
        group.generation = snapshot.generation;
        group.protocol_type = Some(snapshot.protocol_type).filter(|t| !t.is_empty());
        group.state_since_ms = snapshot.state_timestamp_ms;
        group.leader = snapshot.leader.filter(|_| !snapshot.members.is_empty());
        group.protocol = snapshot.protocol.filter(|_| !snapshot.members.is_empty());
        for stored in snapshot.members {
            let name = group.protocol.clone().unwrap_or_default();
            let protocols = vec![Protocol { name, metadata: stored.subscription }];
            let mut member = Member::new(stored.member_id, stored.instance_id, protocols);
            member.client_id = stored.client_id;
            member.client_host = stored.client_host;
            member.session_timeout_ms = stored.session_timeout_ms;
            member.rebalance_timeout_ms = stored.rebalance_timeout_ms;
            member.assignment = Some(stored.assignment);
            let deadline = member.arm_session(now.monotonic_ms);
            group.roster.insert(member);
            group.arm(deadline);
        }
        if !group.roster.is_empty() {
            group.state = State::Stable;
        }
        group.subscribed = group.subscriptions();
        if group.roster.len() > group.config.size_max {
            group.prepare_rebalance(now);
        }
        let actions = group.finish();
        assert!(actions.is_empty(), "nobody waits for a group that was just restored");
        Ok(group)
    }

    /// Restores a group of the consumer protocol from its records.
    pub fn from_consumer(group: ConsumerGroup, config: Arc<GroupConfig>, now: Now) -> Self {
        let mut of = Self::new(group.id(), config, now);
        of.consumer = Some(Box::new(group));
        of.wake_at = of.earliest_deadline();
        of
    }

    /// The consumer-protocol part of the group. `None` for a classic group.
    pub fn consumer(&self) -> Option<&ConsumerGroup> {
        self.consumer.as_deref()
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its generation; 0 before the first rebalance.
    pub fn generation(&self) -> i32 {
        self.generation
    }

    /// The time of the next call of [`Group::tick`], in milliseconds on the monotonic clock.
    pub fn next_deadline(&self) -> Option<u64> {
        self.wake_at
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.consumer.as_ref().map_or(self.roster.len(), |consumer| consumer.members().count())
    }

    /// The group as DescribeGroups and ListGroups show it.
    pub fn describe(&self) -> GroupDescription {
        let protocol = self.protocol.clone().filter(|_| self.state == State::Stable);
        let describe_member = |m: &Member| MemberDescription {
            member_id: m.id.clone(),
            instance_id: m.instance_id.clone(),
            client_id: m.client_id.clone(),
            client_host: m.client_host.clone(),
            metadata: protocol.as_deref().map(|name| m.metadata(name)).unwrap_or_default(),
            assignment: m.assignment.clone().filter(|_| protocol.is_some()).unwrap_or_default(),
        };
        GroupDescription {
            state: self.state,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            members: self.roster.iter().map(describe_member).collect(),
            protocol: protocol.unwrap_or_default(),
        }
    }

    /// Handles all deadlines that have passed: expires sessions and pending member ids, and ends the phases of a
    /// rebalance. An early call does nothing.
    pub fn tick(&mut self, now: Now) -> Vec<Action> {
        let now_ms = now.monotonic_ms;
        if self.wake_at.is_none_or(|at| at > now_ms) {
            return Vec::new();
        }
        self.tick_consumer(now);
        self.expire_sessions(now);
        if self.join_timer.is_some_and(|timer| timer.deadline() <= now_ms) {
            self.end_join_timer(now);
        }
        if self.sync_deadline.is_some_and(|deadline| deadline <= now_ms) {
            self.drop_missing_syncs(now);
        }
        self.wake_at = self.earliest_deadline();
        self.finish()
    }

    /// Answers all waiting requests with the error and makes the group Dead. For a broker that stops or hands the group
    /// to another broker. Writes nothing.
    pub fn close(&mut self, error: GroupError) -> Vec<Action> {
        self.disband(error);
        self.bury();
        self.finish()
    }

    /// Removes all members of the classic group, answers all waiting requests with the error, and resets the group.
    pub(super) fn disband(&mut self, error: GroupError) {
        for id in self.roster.ids() {
            if let Some((_, parked)) = self.roster.remove(&id) {
                if let Some(token) = parked.join {
                    self.refuse_join(token, id, error);
                }
                if let Some(token) = parked.sync {
                    self.refuse_sync(token, error);
                }
            }
        }
        self.state = State::Empty;
        (self.protocol_type, self.protocol, self.subscribed) = (None, None, None);
        self.forget_timers();
    }

    /// Makes a group without members Dead.
    pub(super) fn bury(&mut self) {
        assert!(self.roster.is_empty(), "a group with members is not buried");
        self.state = State::Dead;
        self.forget_timers();
        self.wake_at = None;
    }

    fn forget_timers(&mut self) {
        self.leader = None;
        self.join_timer = None;
        self.sync_deadline = None;
        self.pending.clear();
    }

    /// Whether the group has no members of either protocol.
    pub(super) fn has_no_members(&self) -> bool {
        match &self.consumer {
            Some(group) => group.is_empty() && self.state != State::Dead,
            None => self.state == State::Empty,
        }
    }

    fn expire_sessions(&mut self, now: Now) {
        let now_ms = now.monotonic_ms;
        let pending = self.pending.len();
        self.pending.retain(|_, deadline| *deadline > now_ms);
        let mut gone = pending != self.pending.len();

        let mut expired = Vec::new();
        for member in self.roster.iter_mut() {
            if member.session_deadline.is_some_and(|deadline| deadline <= now_ms) {
                if member.alive_by_waiting() {
                    // The answer to the waiting request arms the session again.
                    member.session_deadline = None;
                } else {
                    expired.push(member.id.clone());
                }
            }
        }
        for id in &expired {
            self.remove_member(id);
        }
        gone |= !expired.is_empty();
        if gone {
            self.after_departure(now, !expired.is_empty());
        }
    }

    pub(super) fn accept_join(&mut self, token: ReplyToken, member_id: String, joined: Joined) {
        self.outbox.push(Action::Join { token, reply: JoinReply { member_id, result: Ok(joined) } });
    }

    pub(super) fn refuse_join(&mut self, token: ReplyToken, member_id: String, error: GroupError) {
        self.outbox.push(Action::Join { token, reply: JoinReply { member_id, result: Err(error) } });
    }

    pub(super) fn refuse_sync(&mut self, token: ReplyToken, error: GroupError) {
        self.outbox.push(Action::Sync { token, reply: Err(error) });
    }

    pub(super) fn emit(&mut self, action: Action) {
        self.outbox.push(action);
    }

    /// The group's record. `assignment` gives the assignment of each member.
    pub(super) fn snapshot(&self, assignment: impl Fn(&Member) -> Bytes) -> GroupSnapshot {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let store = |m: &Member| MemberSnapshot {
            member_id: m.id.clone(),
            instance_id: m.instance_id.clone(),
            client_id: m.client_id.clone(),
            client_host: m.client_host.clone(),
            rebalance_timeout_ms: m.rebalance_timeout_ms,
            session_timeout_ms: m.session_timeout_ms,
            subscription: m.metadata(protocol),
            assignment: assignment(m),
        };
        GroupSnapshot {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_timestamp_ms: self.state_since_ms,
            members: self.roster.iter().map(store).collect(),
        }
    }

    pub(super) fn enter(&mut self, state: State, now: Now) {
        self.state = state;
        self.state_since_ms = Some(now.wall_ms);
    }

    pub(super) fn arm(&mut self, deadline: u64) {
        self.wake_at = Some(self.wake_at.map_or(deadline, |at| at.min(deadline)));
    }

    pub(super) fn arm_session(&mut self, id: &str, now: Now) {
        if let Some(member) = self.roster.get_mut(id) {
            let deadline = member.arm_session(now.monotonic_ms);
            self.arm(deadline);
        }
    }

    pub(super) fn earliest_deadline(&self) -> Option<u64> {
        let sessions = self.roster.iter().filter_map(|m| m.session_deadline);
        let timers = self.join_timer.map(JoinTimer::deadline).into_iter().chain(self.sync_deadline);
        let consumers = self.consumer.as_ref().and_then(|group| group.earliest_deadline());
        sessions.chain(timers).chain(self.pending.values().copied()).chain(consumers).min()
    }

    /// An instance id belongs to one member id. A request with the instance id and another member id is fenced
    /// (KIP-345).
    pub(super) fn validate_member(
        &self,
        member_id: &str,
        instance_id: Option<&str>,
    ) -> Result<(), GroupError> {
        if let Some(instance_id) = instance_id {
            match self.roster.static_member(instance_id) {
                None => return Err(GroupError::UnknownMemberId),
                Some(owner) if owner != member_id => return Err(GroupError::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.roster.has(member_id) { Ok(()) } else { Err(GroupError::UnknownMemberId) }
    }

    pub(super) fn speaks_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE)
    }

    pub(super) fn subscriptions(&self) -> Option<BTreeSet<String>> {
        if !self.speaks_consumer_protocol() {
            return None;
        }
        if self.roster.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol.as_deref()?;
        let mut topics = BTreeSet::new();
        for member in self.roster.iter() {
            topics.extend(records::subscribed_topics(&member.metadata(protocol)).ok()?);
        }
        Some(topics)
    }

    /// Ends an operation: checks the invariants in debug builds and returns the replies.
    pub(super) fn finish(&mut self) -> Vec<Action> {
        if cfg!(debug_assertions) {
            self.check();
        }
        std::mem::take(&mut self.outbox)
    }

    /// Checks the invariants that hold between operations (see the module's page).
    fn check(&self) {
        self.roster.check();
        if let Some(group) = &self.consumer {
            assert!(self.roster.is_empty(), "a group is of one kind at a time");
            group.check();
        }
        let leads = |id: &String| self.roster.has(id);
        assert_eq!(
            self.leader.as_ref().is_some_and(leads),
            !self.roster.is_empty(),
            "the leader is a member"
        );
        assert!(self.pending.keys().all(|id| !self.roster.has(id)), "a pending id is not a member yet");
        assert_eq!(
            self.join_timer.is_some(),
            self.state == State::PreparingRebalance,
            "joins have a time limit"
        );
        assert_eq!(self.sync_deadline.is_some(), self.roster.missing_syncs() > 0, "syncs have a time limit");
        if let Some(earliest) = self.earliest_deadline() {
            assert!(self.wake_at.is_some_and(|at| at <= earliest), "the timer is never late");
        }
        let waiting_syncs = self.roster.iter().filter(|m| m.waits_in_sync()).count();
        match self.state {
            State::Empty | State::Dead => assert!(self.roster.is_empty(), "{} has no members", self.state),
            State::PreparingRebalance => assert_eq!(waiting_syncs, 0, "nobody syncs while members join"),
            State::CompletingRebalance => {
                assert_eq!(self.roster.waiting_joins(), 0, "joins are answered when a generation begins");
                assert!(!self.roster.is_empty());
                let leader = self.leader.as_ref().and_then(|id| self.roster.get(id));
                let synced = leader.is_some_and(|m| !m.sync_missing());
                assert!(!synced, "the assignment of the leader makes the group Stable");
            }
            State::Stable => {
                assert!(!self.roster.is_empty());
                assert_eq!(waiting_syncs, 0, "syncs are answered when a group becomes stable");
                assert!(self.roster.iter().all(|m| m.assignment.is_some()), "every member has an assignment");
                assert!(self.protocol.is_some());
            }
        }
    }
}
