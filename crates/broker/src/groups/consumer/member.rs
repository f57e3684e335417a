//! A member of a group of the consumer protocol.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::super::Now;
use super::super::member::{Protocol, millis};
use super::Partitions;

/// How far a member has followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// It has what it was to get at its epoch.
    Stable,
    /// It has yet to give partitions up.
    Unrevoked,
    /// It waits for partitions that others have yet to give up.
    Unreleased,
}

impl MemberState {
    /// Kafka's number for it.
    pub fn code(self) -> i8 {
        match self {
            Self::Stable => 1,
            Self::Unrevoked => 2,
            Self::Unreleased => 3,
        }
    }

    /// The state of a number; of one that is not known, the one that is worked out anew.
    pub fn from_code(code: i8) -> Self {
        match code {
            1 => Self::Stable,
            2 => Self::Unrevoked,
            _ => Self::Unreleased,
        }
    }
}

/// What a member says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subscription {
    /// `group.instance.id` (KIP-345).
    pub instance_id: Option<String>,
    /// `client.rack`.
    pub rack_id: Option<String>,
    /// From the request's header.
    pub client_id: String,
    /// Where the client connects from, as "/address".
    pub client_host: String,
    /// Topics by name.
    pub names: BTreeSet<String>,
    /// Topics by a regular expression.
    pub regex: Option<String>,
    /// Milliseconds it may take to give partitions up; -1 until it has said so.
    pub rebalance_timeout_ms: i32,
    /// The assignor it asks for.
    pub assignor: Option<String>,
    /// Of a member of the classic protocol.
    pub classic: Option<ClassicSide>,
}

/// What a member of the classic protocol brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassicSide {
    /// `session.timeout.ms`.
    pub session_timeout_ms: i32,
    /// In order of preference; at least one.
    pub protocols: Vec<Protocol>,
}

/// One member.
#[derive(Debug, Clone)]
pub struct ConsumerMember {
    /// Its member id.
    pub id: String,
    /// What it says of itself.
    pub subscription: Subscription,
    /// How far it has followed; [`super::heartbeat::LEFT_STATIC`] of a static member that is away for a while.
    pub epoch: i32,
    /// The epoch before: a heartbeat of it may be one whose answer was lost.
    pub previous_epoch: i32,
    /// Where it stands.
    pub state: MemberState,
    /// Its own.
    pub assigned: Partitions,
    /// The epoch at which each of them came to it: what it committed at that one or since is its own (KIP-1251).
    pub since: BTreeMap<(Uuid, i32), i32>,
    /// It has yet to give them up.
    pub revoking: Partitions,
    /// What the target assignment gives it.
    pub target: Partitions,
    session_deadline: Option<u64>,
    rebalance_deadline: Option<u64>,
    /// When a classic member must have joined again, or must have asked for its assignment.
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

    /// Whether it speaks the classic protocol.
    pub fn is_classic(&self) -> bool {
        self.subscription.classic.is_some()
    }

    /// Has it all that the target assignment of `epoch` gives it?
    pub(super) fn follows(&self, epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == epoch
    }

    /// The partitions that nobody else may have.
    pub(super) fn held(&self) -> impl Iterator<Item = (Uuid, i32)> {
        each(&self.assigned).chain(each(&self.revoking))
    }

    pub(super) fn arm_session(&mut self, now: Now, session_timeout_ms: i32) -> u64 {
        let timeout = self.subscription.classic.as_ref().map_or(session_timeout_ms, |c| c.session_timeout_ms);
        let deadline = now.monotonic_ms + millis(timeout);
        self.session_deadline = Some(deadline);
        deadline
    }

    /// While it has partitions to give up there is a limit; classic members have those of joining and syncing.
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

/// Each partition by itself.
pub(super) fn each(partitions: &Partitions) -> impl Iterator<Item = (Uuid, i32)> {
    partitions.iter().flat_map(|(topic, indexes)| indexes.iter().map(|index| (*topic, *index)))
}

/// Adds a partition.
pub(super) fn add(partitions: &mut Partitions, (topic, index): (Uuid, i32)) {
    partitions.entry(topic).or_default().insert(index);
}
