//! The classic consumer group coordinator: who is in a group, which generation it is in, who got what, and which
//! offsets it committed. Pure logic: no I/O, no async, no clock, no randomness. Time and fresh ids are handed in; replies
//! come out as [`Action`]s, and records to write through [`Group::unwritten`].
//!
//! # How it is driven
//! The caller keeps one [`Group`] behind a lock, and the channel of each waiting request under its [`ReplyToken`].
//! - [`Group::join`], [`Group::sync`], [`Group::leave`], [`Group::tick`] and [`Group::close`] return replies
//!   ([`Action`]), in order.
//! - After each of them, and after a heartbeat or a commit, [`Group::next_deadline`] says when to call
//!   [`Group::tick`]. It may be early (a tick that finds nothing to do is harmless) but never late.
//! - [`Group::unwritten`] gives the records that an operation made necessary. The caller queues them in the log before it
//!   releases the lock, so that the order of the log is the order of the group, and then calls [`Group::written`]. The
//!   replies go out once the records are durable. Records that the log refuses stay unwritten: the replies fail
//!   ([`Action::failed`]), and the next operation tries again.
//!
//! # When there is no such group
//! A group is created by a join with an empty member id, or by a commit with a negative generation. Otherwise:
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
//!    the first fail with [`GroupError::RebalanceInProgress`].
//! 2. A generation's assignment reaches a member only after it is durable, so no restart can take it back.
//! 3. The generation only grows. Members of a generation have one leader and one protocol that all of them support.
//! 4. Every member is waiting in join, or in sync, or has a session deadline: none can stay for ever unheard of.
//! 5. In PreparingRebalance a join timer is armed; while a sync is missing a sync timer is armed.
//!
//! `Group::check` tests 3 to 5 after every operation in debug builds.
//!
//! # Where it parts from Kafka
//! - A restarting static member is let into a full group: it takes its own seat.
//! - Offsets committed to a group that is already Empty count their retention from the commit, not from the moment the
//!   group became Empty, so a fresh commit cannot expire at once.
//! - A failed session while a group is gathering its first members does not cut the initial delay short.

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

/// The type of a group whose members speak the consumer protocol: its metadata names the topics it subscribes to.
pub const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// Names one waiting request; chosen by the caller, never used twice for one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyToken(pub u64);

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since any fixed moment; never goes back. Deadlines are counted on it.
    pub monotonic_ms: u64,
    /// Milliseconds since the Unix epoch; may jump. Stored in records.
    pub wall_ms: i64,
}

/// The settings the coordinator needs, each with Kafka's name and default.
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
    /// Whether a classic member may ask for `session_timeout_ms`. Asked before a group is looked up: one that does not exist
    /// is not created for a request that is refused.
    pub fn check_session_timeout(&self, session_timeout_ms: i32) -> Result<(), GroupError> {
        let allowed = self.session_timeout_ms_min..=self.session_timeout_ms_max;
        if allowed.contains(&session_timeout_ms) { Ok(()) } else { Err(GroupError::InvalidSessionTimeout) }
    }
}

/// Why a request was refused. Each stands for the Kafka error of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum GroupError {
    /// Join again with the member id in the reply (KIP-394).
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
    /// The group does not know this member; it must join anew.
    #[error("the group does not know this member; join with an empty member id")]
    UnknownMemberId,
    /// Another process took over this `group.instance.id` (KIP-345).
    #[error("another process uses this group.instance.id; give each process its own")]
    FencedInstanceId,
    /// The request is for another generation than the current one.
    #[error("the generation is not the current one; join again")]
    IllegalGeneration,
    /// The group is rebalancing.
    #[error("the group is rebalancing; join again")]
    RebalanceInProgress,
    /// The group was removed, or its record could not be written in time; the client looks the coordinator up again.
    #[error("the coordinator is not available; try again")]
    CoordinatorNotAvailable,
    /// This broker does not, or no longer, own the group.
    #[error("this broker does not coordinate the group; find its coordinator again")]
    NotCoordinator,
    /// The records of the group are being read.
    #[error("the coordinator is loading the group; try again")]
    CoordinatorLoadInProgress,
    /// The group's record cannot be written, for instance because it is too large.
    #[error("the group's record could not be written; see the broker's log")]
    UnknownServer,
    /// The group still has members.
    #[error("the group is not empty; stop its members first")]
    NonEmptyGroup,
    /// There is no such group.
    #[error("there is no such group")]
    GroupIdNotFound,
    /// An offset's metadata exceeds `offset.metadata.max.bytes`.
    #[error("the offset's metadata exceeds offset.metadata.max.bytes; commit less")]
    OffsetMetadataTooLarge,
    /// The request contradicts itself.
    #[error("the request contradicts itself")]
    InvalidRequest,
    /// A member of the consumer protocol is not at the epoch it says; it must give up all and join anew.
    #[error("the member's epoch is not the one known here; give up all partitions and join again")]
    FencedMemberEpoch,
    /// A member of the consumer protocol is at another epoch by now.
    #[error("the member's epoch is not the current one; try again with that of the next heartbeat")]
    StaleMemberEpoch,
    /// Another member has this `group.instance.id` and did not leave.
    #[error("another member uses this group.instance.id; it has to leave first")]
    UnreleasedInstanceId,
    /// There is no such assignor.
    #[error("there is no such assignor")]
    UnsupportedAssignor,
    /// Not a regular expression.
    #[error("not a regular expression")]
    InvalidRegularExpression,
    /// A member subscribes to the topic whose offsets were to be deleted.
    #[error("the group is subscribed to the topic; stop its consumers first")]
    GroupSubscribedToTopic,
}

/// A reply to a waiting request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Answer a JoinGroup.
    Join {
        /// Who waits for it.
        token: ReplyToken,
        /// The answer.
        reply: JoinReply,
    },
    /// Answer a SyncGroup.
    Sync {
        /// Who waits for it.
        token: ReplyToken,
        /// The answer.
        reply: Result<Synced, GroupError>,
    },
    /// Answer a ConsumerGroupHeartbeat.
    Heartbeat {
        /// Who waits for it.
        token: ReplyToken,
        /// The answer.
        reply: Result<consumer::HeartbeatReply, consumer::Refused>,
    },
}

impl Action {
    /// The same reply where the records that it depends on could not be written.
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
    /// The member id to answer with; empty where the client has to forget the one it has.
    pub member_id: String,
    /// The generation joined, or why not. On an error the generation on the wire is -1.
    pub result: Result<Joined, GroupError>,
}

/// A generation, as one member sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The group's generation.
    pub generation: i32,
    /// For instance "consumer".
    pub protocol_type: String,
    /// The protocol the members voted for, for instance "range".
    pub protocol_name: String,
    /// The member id of the leader.
    pub leader: String,
    /// The leader must not compute an assignment: the current one stands (KIP-814, v9).
    pub skip_assignment: bool,
    /// All members, for the leader alone; empty for the others.
    pub members: Vec<JoinedMember>,
}

/// A member, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its member id.
    pub member_id: String,
    /// Its `group.instance.id`, if it is static.
    pub instance_id: Option<String>,
    /// Its metadata for the protocol chosen.
    pub metadata: Bytes,
}

/// The answer to a SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// For instance "consumer".
    pub protocol_type: String,
    /// The protocol the members voted for.
    pub protocol_name: String,
    /// What the leader assigned to the member; opaque.
    pub assignment: Bytes,
}

/// The partition of `__consumer_offsets` that holds a group: Java's `String.hashCode` of the id, its absolute value
/// modulo the number of partitions, as Kafka computes it.
///
/// # Panics
/// If `partitions` is not positive.
pub fn partition_for(group_id: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "__consumer_offsets has at least one partition");
    let hash =
        group_id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // Kafka takes the absolute value of the one number that has none to be 0.
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
        // Outside the basic plane a character is two units: "\u{1F600}".hashCode() == 0xD83D * 31 + 0xDE00 == 1772899.
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
