//! SyncGroup v0-5 and Heartbeat v0-4.
//!
//! The leader's assignment makes the group Stable. The caller writes the record of the group before it sends the
//! answers.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::consumer::RecordKey;
use super::group::{Group, State};
use super::{Action, GroupError, Now, ReplyToken, Synced};

/// A SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncRequest {
    /// The member.
    pub member_id: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
    /// The generation that the member joined.
    pub generation: i32,
    /// Since v5. If present, it must equal the group's.
    pub protocol_type: Option<String>,
    /// Since v5. If present, it must equal the group's.
    pub protocol_name: Option<String>,
    /// Assignments by member id. Only the leader sends them.
    pub assignments: Vec<(String, Bytes)>,
}

impl Group {
    /// A member asks for its assignment. The leader's request carries the assignments of all members.
    pub fn sync(&mut self, now: Now, request: SyncRequest, token: ReplyToken) -> Vec<Action> {
        if let Err(error) = self.try_sync(now, request, token) {
            self.refuse_sync(token, error);
        }
        self.finish()
    }

    fn try_sync(&mut self, now: Now, request: SyncRequest, token: ReplyToken) -> Result<(), GroupError> {
        self.validate_sync(&request)?;
        let id = request.member_id;
        match self.state {
            State::Empty => return Err(GroupError::UnknownMemberId),
            State::Dead => return Err(GroupError::CoordinatorNotAvailable),
            State::PreparingRebalance => return Err(GroupError::RebalanceInProgress),
            State::CompletingRebalance => {
                if let Some(overtaken) = self.roster.park_sync(&id, token) {
                    self.refuse_sync(overtaken, GroupError::RebalanceInProgress);
                }
                self.note_sync(&id);
                if self.leader.as_deref() == Some(id.as_str()) {
                    self.assign(now, request.assignments);
                }
            }
            State::Stable => {
                self.note_sync(&id);
                self.arm_session(&id, now);
                let reply = Ok(self.synced(&id));
                self.emit(Action::Sync { token, reply });
            }
        }
        Ok(())
    }

    fn validate_sync(&self, request: &SyncRequest) -> Result<(), GroupError> {
        if self.state == State::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.validate_member(&request.member_id, request.instance_id.as_deref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        let differ = |given: &Option<String>, ours: &Option<String>| {
            given.is_some() && ours.is_some() && given != ours
        };
        if differ(&request.protocol_type, &self.protocol_type)
            || differ(&request.protocol_name, &self.protocol)
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn note_sync(&mut self, id: &str) {
        self.roster.set_sync_missing(id, false);
        if self.roster.missing_syncs() == 0 {
            self.sync_deadline = None;
        }
    }

    /// Distributes the leader's assignments and answers every waiting sync. Members that the leader left out get an
    /// empty assignment. Assignments of unknown members are dropped.
    fn assign(&mut self, now: Now, assignments: Vec<(String, Bytes)>) {
        let mut assignments: BTreeMap<String, Bytes> = assignments.into_iter().collect();
        self.enter(State::Stable, now);
        for id in self.roster.ids() {
            if let Some(member) = self.roster.get_mut(&id) {
                member.assignment = Some(assignments.remove(&id).unwrap_or_default());
            }
            if let Some(token) = self.roster.unpark_sync(&id) {
                let reply = Ok(self.synced(&id));
                self.emit(Action::Sync { token, reply });
                self.arm_session(&id, now);
            }
        }
        self.unwritten.insert(RecordKey::Classic);
    }

    /// Clears all assignments and answers every waiting sync with the error.
    pub(super) fn drop_assignments(&mut self, now: Now, error: GroupError) {
        for id in self.roster.ids() {
            if let Some(member) = self.roster.get_mut(&id) {
                member.assignment = None;
            }
            if let Some(token) = self.roster.unpark_sync(&id) {
                self.refuse_sync(token, error);
                self.arm_session(&id, now);
            }
        }
    }

    /// Removes the members that never asked for their assignment, and rebalances the rest.
    pub(super) fn drop_missing_syncs(&mut self, now: Now) {
        let missing: Vec<String> =
            self.roster.iter().filter(|m| m.sync_missing()).map(|m| m.id.clone()).collect();
        assert!(!missing.is_empty(), "the sync timer runs only while a sync is missing");
        for id in &missing {
            self.remove_member(id);
        }
        self.prepare_rebalance(now);
    }

    fn synced(&self, id: &str) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol_name: self.protocol.clone().unwrap_or_default(),
            assignment: self.roster.get(id).and_then(|m| m.assignment.clone()).unwrap_or_default(),
        }
    }

    /// A member shows that it is alive.
    ///
    /// # Errors
    /// [`GroupError::RebalanceInProgress`] tells the member to join again; its session continues. Other errors:
    /// `UnknownMemberId`, `FencedInstanceId`, `IllegalGeneration`, and `CoordinatorNotAvailable` if the group is Dead.
    pub fn heartbeat(
        &mut self,
        now: Now,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), GroupError> {
        if self.state == State::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.validate_member(member_id, instance_id)?;
        if generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        self.arm_session(member_id, now);
        if self.state == State::PreparingRebalance { Err(GroupError::RebalanceInProgress) } else { Ok(()) }
    }
}
