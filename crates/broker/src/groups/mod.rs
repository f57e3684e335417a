//! The logic of consumer groups: members, generations, assignments and committed offsets. This page describes groups of
//! the classic protocol; [`consumer`] describes the consumer protocol. Pure logic: no I/O, no async, no clock, no
//! randomness. The caller passes in the time and fresh ids. Replies come out as [`Action`]s, and the records to write
//! come out of [`Group::unwritten`].
//!
//! # How the caller drives a group
//! The caller keeps each [`Group`] behind a lock, and the channel of each waiting request under its [`ReplyToken`].
//! - [`Group::join`], [`Group::sync`], [`Group::leave`], [`Group::tick`] and [`Group::close`] return replies
//!   ([`Action`]), in order.
//! - After each of them, and after a heartbeat or a commit, [`Group::next_deadline`] says when to call [`Group::tick`].
//!   The deadline may be too early (a tick without work is harmless) but is never too late.
//! - [`Group::unwritten`] returns the records that an operation requires. The caller queues them in the log before it
//!   releases the lock, so that the order of the log is the order of the changes. It then calls [`Group::written`]. The
//!   replies go out once the records are durable. Records that the log refuses stay unwritten: their replies fail
//!   ([`Action::failed`]), and the next operation tries again.
//!
//! # Requests for a group that does not exist
//! A join with an empty member id creates the group, and so does a commit with a negative generation. Other requests
//! get an error:
//!
//! | request | answer |
//! |---|---|
//! | JoinGroup with a member id, SyncGroup, Heartbeat, LeaveGroup | [`GroupError::UnknownMemberId`] |
//! | OffsetCommit v0-8, TxnOffsetCommit, with a generation | [`GroupError::IllegalGeneration`] |
//! | OffsetCommit v9+ with a generation, OffsetDelete, DeleteGroups | [`GroupError::GroupIdNotFound`] |
//! | OffsetFetch | offset -1 for every partition |
//! | DescribeGroups | state "Dead" |
//!
//! # Invariants
//! 1. Every token given to `join` or `sync` is answered exactly once. A retry that overtakes its first attempt makes
//!    the first attempt fail with [`GroupError::RebalanceInProgress`].
//! 2. A generation's assignment reaches a member only after the assignment is durable, so a restart cannot revoke it.
//! 3. The generation only grows. Members of a generation have one leader and one protocol that all of them support.
//! 4. Every member waits in join, waits in sync, or has a session deadline. No member can stay silent for ever.
//! 5. In PreparingRebalance a join timer is armed. While a sync is missing, a sync timer is armed.
//!
//! `Group::check` tests 3 to 5 after every operation in debug builds.
//!
//! # Differences from Kafka
//! - A restarting static member is admitted to a full group, because it takes its own seat.
//! - If a group is already Empty when offsets are committed, their retention counts from the commit. In Kafka it counts
//!   from the moment the group became Empty, so a fresh commit can expire at once.
//! - A session that expires while a group gathers its first members does not shorten the initial delay.

pub mod consumer;
mod group;
mod join;
mod leave;
mod member;
mod offsets;
mod rebalance;
mod records;
mod replies;
mod sync;

pub use group::{Group, GroupDescription, MemberDescription, State};
pub use join::{JoinRequest, NEW_MEMBER_JOIN_TIMEOUT_MS, PENDING_MEMBERS_MAX};
pub use leave::{LeaveMember, Left};
pub use member::Protocol;
pub use offsets::{CheckedCommit, CommitRequest, CommittedOffset, Expired, OffsetCommit, OffsetKey};
pub use records::{
    GroupRecord, GroupSnapshot, MemberSnapshot, RecordError, decode_record, encode_group, encode_group_key,
    encode_offset, encode_offset_key, subscribed_topics,
};
pub use replies::{Held, Replies};
pub use sync::SyncRequest;

use bytes::Bytes;

/// The protocol type of consumers. The metadata of their members names the topics that they subscribe to.
pub const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// Identifies one waiting request. The caller chooses it and never uses it twice for one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyToken(pub u64);

/// A reading of the monotonic clock and the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since an arbitrary fixed moment; never goes back. Deadlines use this clock.
    pub monotonic_ms: u64,
    /// Milliseconds since the Unix epoch; may jump. Records store this clock.
    pub wall_ms: i64,
}

/// The settings of the group coordinator, each with Kafka's name and default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// `group.min.session.timeout.ms`
    pub session_timeout_ms_min: i32,
    /// `group.max.session.timeout.ms`
    pub session_timeout_ms_max: i32,
    /// `group.initial.rebalance.delay.ms`: how long an Empty group waits for more members after the first one.
    pub initial_rebalance_delay_ms: u64,
    /// `group.max.size`, in members.
    pub size_max: usize,
    /// `group.consumer.session.timeout.ms`
    pub consumer_session_timeout_ms: i32,
    /// `group.consumer.max.size`, in members.
    pub consumer_size_max: usize,
    /// `offset.metadata.max.bytes`, which Kafka counts in UTF-16 units.
    pub offset_metadata_max: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            session_timeout_ms_min: 6_000,
            session_timeout_ms_max: 1_800_000,
            initial_rebalance_delay_ms: 3_000,
            size_max: usize::MAX,
            consumer_session_timeout_ms: 45_000,
            consumer_size_max: usize::MAX,
            offset_metadata_max: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
        }
    }
}

impl GroupConfig {
    /// Checks the session timeout that a classic member asks for. The caller checks it before it looks up the group, so
    /// that a refused request does not create a group.
    pub fn check_session_timeout(&self, session_timeout_ms: i32) -> Result<(), GroupError> {
        let allowed = self.session_timeout_ms_min..=self.session_timeout_ms_max;
        if allowed.contains(&session_timeout_ms) { Ok(()) } else { Err(GroupError::InvalidSessionTimeout) }
    }
}

/// The reason why a request is refused. Each variant stands for the Kafka error of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum GroupError {
    /// The client must join again with the member id in the reply (KIP-394).
    #[error("join again with the member id that was just given out")]
    MemberIdRequired,
    /// The session timeout is outside the broker's bounds.
    #[error("the session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms")]
    InvalidSessionTimeout,
    /// The group has `group.max.size` members.
    #[error("the group is full; raise group.max.size or use fewer members")]
    GroupMaxSizeReached,
    /// The member's protocol type or protocols do not fit the group's.
    #[error("the member and the group have no protocol in common; give all members the same assignors")]
    InconsistentGroupProtocol,
    /// The group does not know this member. The client must join as a new member.
    #[error("the group does not know this member; join with an empty member id")]
    UnknownMemberId,
    /// Another process took over this `group.instance.id` (KIP-345).
    #[error("another process uses this group.instance.id; give each process its own")]
    FencedInstanceId,
    /// The request names a generation that is not the current one.
    #[error("the generation is not the current one; join again")]
    IllegalGeneration,
    /// The group is rebalancing.
    #[error("the group is rebalancing; join again")]
    RebalanceInProgress,
    /// The group was removed, or its record could not be written in time. The client looks up the coordinator again.
    #[error("the coordinator is not available; try again")]
    CoordinatorNotAvailable,
    /// This broker does not own the group, or owns it no longer.
    #[error("this broker does not coordinate the group; find its coordinator again")]
    NotCoordinator,
    /// The records of the group are still being read.
    #[error("the coordinator is loading the group; try again")]
    CoordinatorLoadInProgress,
    /// The group's record cannot be written, for instance because the record is too large.
    #[error("the group's record could not be written; see the broker's log")]
    UnknownServer,
    /// The group still has members.
    #[error("the group is not empty; stop its members first")]
    NonEmptyGroup,
    /// The group does not exist.
    #[error("there is no such group")]
    GroupIdNotFound,
    /// An offset's metadata exceeds `offset.metadata.max.bytes`.
    #[error("the offset's metadata exceeds offset.metadata.max.bytes; commit less")]
    OffsetMetadataTooLarge,
    /// The request contradicts itself.
    #[error("the request contradicts itself")]
    InvalidRequest,
    /// The epoch in the request is not the epoch of this consumer-protocol member. The member must give up all
    /// partitions and join again.
    #[error("the member's epoch is not the one known here; give up all partitions and join again")]
    FencedMemberEpoch,
    /// A consumer-protocol member sent an epoch that is not its current one.
    #[error("the member's epoch is not the current one; try again with that of the next heartbeat")]
    StaleMemberEpoch,
    /// Another member holds this `group.instance.id` and has not left.
    #[error("another member uses this group.instance.id; it has to leave first")]
    UnreleasedInstanceId,
    /// The assignor does not exist.
    #[error("there is no such assignor")]
    UnsupportedAssignor,
    /// The subscription is not a valid regular expression.
    #[error("not a regular expression")]
    InvalidRegularExpression,
    /// The request deletes offsets of a topic that a member subscribes to.
    #[error("the group is subscribed to the topic; stop its consumers first")]
    GroupSubscribedToTopic,
}

/// A reply to a waiting request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Answer a JoinGroup.
    Join {
        /// The request that this action answers.
        token: ReplyToken,
        /// The answer.
        reply: JoinReply,
    },
    /// Answer a SyncGroup.
    Sync {
        /// The request that this action answers.
        token: ReplyToken,
        /// The answer.
        reply: Result<Synced, GroupError>,
    },
    /// Answer a ConsumerGroupHeartbeat.
    Heartbeat {
        /// The request that this action answers.
        token: ReplyToken,
        /// The answer.
        reply: Result<consumer::HeartbeatReply, consumer::Refused>,
    },
}

impl Action {
    /// The same reply with `error`, for the case that its records could not be written.
    pub fn failed(self, error: GroupError) -> Action {
        match self {
            Action::Join { token, reply } => {
                Action::Join { token, reply: JoinReply { member_id: reply.member_id, result: Err(error) } }
            }
            Action::Sync { token, .. } => Action::Sync { token, reply: Err(error) },
            Action::Heartbeat { token, .. } => Action::Heartbeat { token, reply: Err(error.into()) },
        }
    }
}

/// The answer to a JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinReply {
    /// The member id in the reply. Empty if the client has to forget its member id.
    pub member_id: String,
    /// The generation joined, or the error. For an error, the generation on the wire is -1.
    pub result: Result<Joined, GroupError>,
}

/// A generation, as one member sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The group's generation.
    pub generation: i32,
    /// For instance "consumer".
    pub protocol_type: String,
    /// The protocol that the members voted for, for instance "range".
    pub protocol_name: String,
    /// The member id of the leader.
    pub leader: String,
    /// The leader must not compute an assignment, because the current one stays valid (KIP-814, v9).
    pub skip_assignment: bool,
    /// All members, if this member is the leader. Otherwise empty.
    pub members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its member id.
    pub member_id: String,
    /// Its `group.instance.id`, if it is static.
    pub instance_id: Option<String>,
    /// The member's metadata for the chosen protocol.
    pub metadata: Bytes,
}

/// The answer to a SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// For instance "consumer".
    pub protocol_type: String,
    /// The protocol that the members voted for.
    pub protocol_name: String,
    /// The assignment that the leader computed for the member; opaque.
    pub assignment: Bytes,
}

/// The partition of `__consumer_offsets` that holds a group, computed as in Kafka: the absolute value of Java's
/// `String.hashCode` of the id, modulo the number of partitions.
///
/// # Panics
/// If `partitions` is not positive.
pub fn partition_for(group_id: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "__consumer_offsets has at least one partition");
    let hash =
        group_id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // `i32::MIN` has no absolute value. Kafka uses 0 for it.
    hash.checked_abs().unwrap_or(0) % partitions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_follows_java_hash() {
        // "hello".hashCode() == 99162322, "".hashCode() == 0, "polygenelubricants".hashCode() == Integer.MIN_VALUE.
        assert_eq!(partition_for("hello", 50), 22);
        assert_eq!(partition_for("", 50), 0);
        assert_eq!(partition_for("polygenelubricants", 50), 0);
        // A character outside the basic plane is two units: "\u{1F600}".hashCode() == 0xD83D * 31 + 0xDE00 == 1772899.
        assert_eq!(partition_for("\u{1F600}", 1_000_000), 772_899);
    }

    #[test]
    fn a_session_timeout_lies_within_its_bounds() {
        let check = |ms| GroupConfig::default().check_session_timeout(ms);
        assert_eq!((check(6000), check(1_800_000)), (Ok(()), Ok(())));
        for outside in [5999, 1_800_001, 0, -1] {
            assert_eq!(check(outside), Err(GroupError::InvalidSessionTimeout));
        }
    }
}
