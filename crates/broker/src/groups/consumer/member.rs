//! A member of a group of the consumer protocol.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::super::Now;
use super::super::member::{Protocol, millis};
use super::Partitions;

/// The progress of a member towards its target assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// The member owns its whole assignment of its epoch.
    Stable,
    /// The member has yet to give up partitions.
    Unrevoked,
    /// The member waits for partitions that other members have yet to give up.
    Unreleased,
}

impl MemberState {
    /// Kafka's number of the state.
    pub fn code(self) -> i8 {
        match self {
            Self::Stable => 1,
            Self::Unrevoked => 2,
            Self::Unreleased => 3,
        }
    }

    /// The state with this number. An unknown number gives a state that the next heartbeat recomputes.
    pub fn from_code(code: i8) -> Self {
        match code {
            1 => Self::Stable,
            2 => Self::Unrevoked,
            _ => Self::Unreleased,
        }
    }
}

/// The data that a member reports about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subscription {
    /// `group.instance.id` (KIP-345).
    pub instance_id: Option<String>,
    /// `client.rack`.
    pub rack_id: Option<String>,
    /// The client id from the request's header.
    pub client_id: String,
    /// The client's address, as "/address".
    pub client_host: String,
    /// Names of topics.
    pub names: BTreeSet<String>,
    /// A regular expression for topic names.
    pub regex: Option<String>,
    /// Milliseconds that the member may take to give up partitions; -1 until it has reported the value.
    pub rebalance_timeout_ms: i32,
    /// The assignor that the member asks for.
    pub assignor: Option<String>,
    /// Present for a member of the classic protocol.
    pub classic: Option<ClassicSide>,
}

/// The data of a member of the classic protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassicSide {
    /// `session.timeout.ms`.
    pub session_timeout_ms: i32,
    /// In order of preference. There is at least one.
    pub protocols: Vec<Protocol>,
}

/// One member.
#[derive(Debug, Clone)]
pub struct ConsumerMember {
    /// Its member id.
    pub id: String,
    /// The data that the member reports about itself.
    pub subscription: Subscription,
    /// The member epoch. [`super::heartbeat::LEFT_STATIC`] for a static member that is away temporarily.
    pub epoch: i32,
    /// The epoch before. A heartbeat with this epoch may come from a member that missed the last answer.
    pub previous_epoch: i32,
    /// The progress towards the target assignment.
    pub state: MemberState,
    /// The partitions that the member owns.
    pub assigned: Partitions,
    /// The epoch at which the member received each partition. Commits at that epoch or later are valid (KIP-1251).
    pub since: BTreeMap<(Uuid, i32), i32>,
    /// Partitions that the member has yet to give up.
    pub revoking: Partitions,
    /// The partitions that the target assignment gives the member.
    pub target: Partitions,
    session_deadline: Option<u64>,
    rebalance_deadline: Option<u64>,
    /// The deadlines for a classic member to join again, and to ask for its assignment.
    pub(super) join_deadline: Option<u64>,
    pub(super) sync_deadline: Option<u64>,
}

impl ConsumerMember {
    pub(super) fn new(id: String) -> Self {
        Self {
            id,
            subscription: Subscription { rebalance_timeout_ms: -1, ..Subscription::default() },
            epoch: 0,
            previous_epoch: 0,
            state: MemberState::Stable,
            assigned: Partitions::new(),
            since: BTreeMap::new(),
            revoking: Partitions::new(),
            target: Partitions::new(),
            session_deadline: None,
            rebalance_deadline: None,
            join_deadline: None,
            sync_deadline: None,
        }
    }

    /// Whether the member uses the classic protocol.
    pub fn is_classic(&self) -> bool {
        self.subscription.classic.is_some()
    }

    /// Whether the member owns its whole target assignment of `epoch`.
    pub(super) fn follows(&self, epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == epoch
    }

    /// The partitions that no other member may own.
    pub(super) fn held(&self) -> impl Iterator<Item = (Uuid, i32)> {
        each(&self.assigned).chain(each(&self.revoking))
    }

    pub(super) fn arm_session(&mut self, now: Now, session_timeout_ms: i32) -> u64 {
        let timeout = self.subscription.classic.as_ref().map_or(session_timeout_ms, |c| c.session_timeout_ms);
        let deadline = now.monotonic_ms + millis(timeout);
        self.session_deadline = Some(deadline);
        deadline
    }

    /// Sets a deadline while the member has partitions to give up. Classic members have the deadlines for joining and
    /// syncing instead.
    pub(super) fn arm_rebalance(&mut self, now: Now) {
        self.rebalance_deadline =
            (self.state == MemberState::Unrevoked && !self.is_classic()).then(|| self.rebalance_limit(now));
    }

    pub(super) fn rebalance_limit(&self, now: Now) -> u64 {
        now.monotonic_ms + millis(self.subscription.rebalance_timeout_ms)
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        [self.session_deadline, self.rebalance_deadline, self.join_deadline, self.sync_deadline]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The partitions one by one.
pub(super) fn each(partitions: &Partitions) -> impl Iterator<Item = (Uuid, i32)> {
    partitions.iter().flat_map(|(topic, indexes)| indexes.iter().map(|index| (*topic, *index)))
}

/// Adds a partition.
pub(super) fn add(partitions: &mut Partitions, (topic, index): (Uuid, i32)) {
    partitions.entry(topic).or_default().insert(index);
}
