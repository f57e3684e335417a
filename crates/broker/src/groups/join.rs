//! JoinGroup v0-9: admits members, hands out member ids, replaces static members, and begins rebalances.
//!
//! A join is answered at once or parked in the member. Parked joins are answered where a generation begins.

use std::collections::BTreeSet;

use super::consumer::RecordKey;
use super::group::{Group, State};
use super::member::{Member, Protocol};
use super::rebalance::JoinTimer;
use super::{Action, GroupError, Joined, Now, ReplyToken};

/// Bound in bytes of the client id or instance id within a member id. With its UUID, the member id must fit into a
/// string of the protocol, because all members of a group learn each other's ids.
const MEMBER_NAME_BYTES_MAX: usize = 1024;

/// Time that a new member may wait in its first join before it is asked to start over. Without this bound, a client
/// that gives up and comes back under another id would leave dead members behind for the whole of a long rebalance
/// (KIP-394).
pub const NEW_MEMBER_JOIN_TIMEOUT_MS: u64 = 5 * 60 * 1_000;

/// Bound of the member ids that are handed out and not used to join yet. Beyond it, the id with the earliest deadline
/// is forgotten, so that clients that only ask for ids cannot fill the memory.
pub const PENDING_MEMBERS_MAX: usize = 10_000;

/// From this version on, a dynamic member must join with a member id that it received before (KIP-394).
const MEMBER_ID_REQUIRED_SINCE: i16 = 4;
/// From this version on, a static leader can be told to keep the current assignment (KIP-814).
const SKIP_ASSIGNMENT_SINCE: i16 = 9;

/// A JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The version of the API.
    pub version: i16,
    /// Empty for a client that has no member id yet.
    pub member_id: String,
    /// `group.instance.id` (KIP-345).
    pub instance_id: Option<String>,
    /// The client id from the request's header.
    pub client_id: String,
    /// The client's address, as "/address".
    pub client_host: String,
    /// The member is dropped after this many milliseconds without a heartbeat.
    pub session_timeout_ms: i32,
    /// Milliseconds that the member may take to join again. A negative value (v0 has no field) means the session
    /// timeout.
    pub rebalance_timeout_ms: i32,
    /// For instance "consumer".
    pub protocol_type: String,
    /// In order of preference. If a name occurs twice, the first one counts.
    pub protocols: Vec<Protocol>,
    /// Random and never used before. It makes a new member id unique.
    pub uuid: String,
}

impl JoinRequest {
    pub(super) fn normalise(mut self) -> Self {
        if self.rebalance_timeout_ms < 0 {
            self.rebalance_timeout_ms = self.session_timeout_ms;
        }
        let mut seen = BTreeSet::new();
        self.protocols.retain(|p| seen.insert(p.name.clone()));
        self
    }

    /// Whether the client has to join again with the member id that it receives (KIP-394).
    pub(super) fn needs_member_id(&self) -> bool {
        self.instance_id.is_none() && self.version >= MEMBER_ID_REQUIRED_SINCE
    }

    pub(super) fn new_member_id(&self) -> String {
        let name = self.instance_id.as_ref().unwrap_or(&self.client_id);
        format!("{}-{}", &name[..name.floor_char_boundary(MEMBER_NAME_BYTES_MAX)], self.uuid)
    }

    fn member(&self, id: String) -> Member {
        let mut member = Member::new(id, self.instance_id.clone(), self.protocols.clone());
        member.client_id = self.client_id.clone();
        member.client_host = self.client_host.clone();
        member.session_timeout_ms = self.session_timeout_ms;
        member.rebalance_timeout_ms = self.rebalance_timeout_ms;
        member
    }
}

impl Group {
    /// A client joins as a new member, or a member joins again.
    pub fn join(&mut self, now: Now, request: JoinRequest, token: ReplyToken) -> Vec<Action> {
        let asked = request.member_id.clone();
        if let Err((member_id, error)) = self.try_join(now, request.normalise(), token) {
            self.refuse_join(token, member_id.unwrap_or(asked), error);
        }
        self.finish()
    }

    /// An error comes with the member id for the reply, if it differs from the one in the request.
    fn try_join(
        &mut self,
        now: Now,
        request: JoinRequest,
        token: ReplyToken,
    ) -> Result<(), (Option<String>, GroupError)> {
        let keep_id = |error| (None, error);
        if self.state == State::Dead {
            return Err(keep_id(GroupError::CoordinatorNotAvailable));
        }
        if !self.has_room_for(&request) {
            self.turn_away(now, &request.member_id);
            return Err((Some(String::new()), GroupError::GroupMaxSizeReached));
        }
        if !self.fits_protocols(&request) {
            return Err(keep_id(GroupError::InconsistentGroupProtocol));
        }
        if !request.member_id.is_empty() {
            return self.join_known(now, request, token).map_err(keep_id);
        }
        let new_id = request.new_member_id();
        if self.roster.has(&new_id) || self.pending.contains_key(&new_id) {
            // The caller's random numbers repeat. The client has to start over, so that two clients do not share a
            // member.
            return Err(keep_id(GroupError::CoordinatorNotAvailable));
        }
        let seat = request.instance_id.as_deref().and_then(|instance| self.roster.static_member(instance));
        if let Some(old_id) = seat.map(str::to_owned) {
            self.replace_static(now, &old_id, new_id, request, token);
        } else if request.needs_member_id() {
            self.reserve(now, new_id.clone(), request.session_timeout_ms);
            return Err((Some(new_id), GroupError::MemberIdRequired));
        } else {
            self.admit(now, new_id, &request, token);
        }
        Ok(())
    }

    /// In PreparingRebalance, only the members that have already joined occupy seats. If the group is too large, the
    /// members that join last are refused.
    fn has_room_for(&self, request: &JoinRequest) -> bool {
        let seat = match &request.instance_id {
            Some(instance) if request.member_id.is_empty() => self.roster.static_member(instance),
            _ => Some(request.member_id.as_str()),
        };
        let member = seat.and_then(|id| self.roster.get(id));
        match self.state {
            State::Empty | State::Dead => true,
            State::PreparingRebalance => {
                member.is_some_and(Member::waits_in_join)
                    || self.roster.waiting_joins() < self.config.size_max
            }
            State::CompletingRebalance | State::Stable => {
                member.is_some() || self.roster.len() < self.config.size_max
            }
        }
    }

    fn turn_away(&mut self, now: Now, member_id: &str) {
        self.pending.remove(member_id);
        let was_member = self.roster.has(member_id);
        self.remove_member(member_id);
        self.after_departure(now, was_member);
    }

    fn fits_protocols(&self, request: &JoinRequest) -> bool {
        if self.state == State::Empty {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(request.protocol_type.as_str())
            && request.protocols.iter().any(|p| self.roster.supported_by_all(&p.name))
    }

    fn reserve(&mut self, now: Now, id: String, session_timeout_ms: i32) {
        if self.pending.len() >= PENDING_MEMBERS_MAX {
            let first = self.pending.iter().min_by_key(|(_, deadline)| **deadline).map(|(id, _)| id.clone());
            first.and_then(|id| self.pending.remove(&id));
        }
        let deadline = now.monotonic_ms + super::member::millis(session_timeout_ms);
        self.pending.insert(id, deadline);
        self.arm(deadline);
    }

    fn admit(&mut self, now: Now, id: String, request: &JoinRequest, token: ReplyToken) {
        self.pending.remove(&id);
        if self.roster.is_empty() {
            self.protocol_type = Some(request.protocol_type.clone());
        }
        if let Some(JoinTimer::Initial { grew, .. }) = &mut self.join_timer {
            *grew = true;
        }
        let deadline = now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS;
        let mut member = request.member(id.clone());
        member.is_new = true;
        member.session_deadline = Some(deadline);
        self.arm(deadline);
        self.roster.insert(member);
        self.leader.get_or_insert_with(|| id.clone());
        self.roster.park_join(&id, token);
        self.rebalance(now);
    }

    fn join_known(&mut self, now: Now, request: JoinRequest, token: ReplyToken) -> Result<(), GroupError> {
        let id = request.member_id.clone();
        let instance_id = request.instance_id.as_deref();
        if instance_id.is_none() && self.pending.contains_key(&id) {
            self.admit(now, id, &request, token);
            return Ok(());
        }
        self.validate_member(&id, instance_id)?;
        let unchanged = self.roster.get(&id).is_some_and(|m| m.protocols() == request.protocols);
        let leads = self.leader.as_deref() == Some(id.as_str());
        let answer_at_once = match self.state {
            // The member may have missed the first answer.
            State::CompletingRebalance => unchanged,
            // A leader that joins again has seen a change that affects the assignment, for instance new partitions.
            State::Stable => unchanged && !leads,
            State::Empty | State::PreparingRebalance | State::Dead => false,
        };
        if answer_at_once {
            let joined = self.joined(&id);
            self.accept_join(token, id, joined);
        } else {
            self.update(&id, request, token);
            self.rebalance(now);
        }
        Ok(())
    }

    /// Updates the member from its request, and parks its join.
    fn update(&mut self, id: &str, request: JoinRequest, token: ReplyToken) {
        self.roster.set_protocols(id, request.protocols);
        if let Some(member) = self.roster.get_mut(id) {
            member.session_timeout_ms = request.session_timeout_ms;
            member.rebalance_timeout_ms = request.rebalance_timeout_ms;
        }
        if let Some(overtaken) = self.roster.park_join(id, token) {
            self.refuse_join(overtaken, id.to_owned(), GroupError::RebalanceInProgress);
        }
    }

    /// A static member comes back and takes its seat under a new member id (KIP-345). A Stable group does not rebalance
    /// if its choice of protocol stays the same. The new id is made durable before the reply.
    fn replace_static(
        &mut self,
        now: Now,
        old_id: &str,
        new_id: String,
        request: JoinRequest,
        token: ReplyToken,
    ) {
        let leader_before = self.leader.clone().unwrap_or_default();
        self.reseat(old_id, &new_id);
        let version = request.version;
        self.update(&new_id, request, token);
        self.arm_session(&new_id, now);
        match self.state {
            State::Stable if self.roster.vote() == self.protocol.as_deref() => {
                self.unwritten.insert(RecordKey::Classic);
                self.answer_replacement(new_id, leader_before, version);
            }
            // In CompletingRebalance the leader may be assigning to the old id, so all members have to join again.
            _ => self.rebalance(now),
        }
    }

    /// Moves a static member to another member id and fences the requests parked under the old one.
    fn reseat(&mut self, old_id: &str, new_id: &str) {
        let Some((mut member, parked)) = self.roster.remove(old_id) else { return };
        if let Some(token) = parked.join {
            self.refuse_join(token, old_id.to_owned(), GroupError::FencedInstanceId);
        }
        if let Some(token) = parked.sync {
            self.refuse_sync(token, GroupError::FencedInstanceId);
        }
        member.id = new_id.to_owned();
        member.is_new = false;
        self.roster.insert(member);
        if self.leader.as_deref() == Some(old_id) {
            self.leader = Some(new_id.to_owned());
        }
    }

    /// Answers the join of a static member that took its seat under a new id, without a rebalance.
    fn answer_replacement(&mut self, new_id: String, leader_before: String, version: i16) {
        let Some(token) = self.roster.unpark_join(&new_id) else { return };
        let joined = self.joined(&new_id);
        let leads = joined.leader == new_id;
        let joined = if version >= SKIP_ASSIGNMENT_SINCE {
            Joined { skip_assignment: leads, ..joined }
        } else {
            // An older client would compute an assignment if it saw itself as the leader, and the group would ignore
            // it. The reply names the leader's previous member id, so the client does not.
            Joined { leader: leader_before, members: Vec::new(), ..joined }
        };
        self.accept_join(token, new_id, joined);
    }
}
