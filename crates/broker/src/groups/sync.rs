//! SyncGroup v0-5 and Heartbeat v0-4, and what follows when a group's record is durable.
//!
//! The leader's assignment is handed out as a record first; members learn of it only in [`Group::persisted`].

use std::collections::BTreeMap;

use bytes::Bytes;

use super::group::{Group, State};
use super::member::Member;
use super::{Action, GroupError, Now, PersistId, ReplyToken, Synced};

/// A SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncRequest {
    /// The member.
    pub member_id: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
    /// The generation it joined.
    pub generation: i32,
    /// v5; must be the group's, if given.
    pub protocol_type: Option<String>,
    /// v5; must be the group's, if given.
    pub protocol_name: Option<String>,
    /// Member id to assignment; from the leader alone.
    pub assignments: Vec<(String, Bytes)>,
}

/// What a record was handed out for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The leader's assignment of a generation, by member id.
    Assignment { generation: i32, assignments: BTreeMap<String, Bytes> },
    /// A static member came back under a new id.
    Replacement(Box<Replacement>),
    /// The last member has gone. If it is not written, a restart brings the old members back, and they expire.
    Empty,
}

/// A static member that came back, until its new id is durable.
#[derive(Debug)]
pub(super) struct Replacement {
    pub generation: i32,
    pub new_id: String,
    /// The member as it was, to go back to.
    pub before: Member,
    pub leader_before: String,
    pub version: i16,
}

impl Group {
    /// A member asks for its assignment; the leader brings all of them.
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
                if self.leader.as_deref() == Some(id.as_str()) && !self.assignment_on_its_way() {
                    self.persist_assignments(request.assignments);
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

    /// Members the leader forgot get nothing; assignments to strangers are dropped.
    fn persist_assignments(&mut self, assignments: Vec<(String, Bytes)>) {
        let assignments: BTreeMap<String, Bytes> =
            assignments.into_iter().filter(|(id, _)| self.roster.has(id)).collect();
        let generation = self.generation;
        self.persist(Purpose::Assignment { generation, assignments: assignments.clone() }, |m| {
            assignments.get(&m.id).cloned().unwrap_or_default()
        });
    }

    /// A leader that repeats its sync does not get a second assignment in: the log and the members must agree on one.
    pub(super) fn assignment_on_its_way(&self) -> bool {
        let current = |p: &Purpose| matches!(p, Purpose::Assignment { generation, .. } if *generation == self.generation);
        self.persists.values().any(current)
    }

    /// A record handed out by [`Action::Persist`] is durable, or could not be made so; the error is what waiting
    /// members are told. An id that is not known, or no longer, is ignored.
    pub fn persisted(&mut self, now: Now, id: PersistId, result: Result<(), GroupError>) -> Vec<Action> {
        match self.persists.remove(&id) {
            Some(Purpose::Assignment { generation, assignments }) => {
                // A rebalance may have begun in between; then the assignment has no takers.
                if self.state == State::CompletingRebalance && self.generation == generation {
                    self.end_assignment(now, assignments, result);
                }
            }
            Some(Purpose::Replacement(replacement)) => self.end_replacement(now, *replacement, result),
            Some(Purpose::Empty) | None => {}
        }
        self.finish()
    }

    fn end_assignment(
        &mut self,
        now: Now,
        mut assignments: BTreeMap<String, Bytes>,
        result: Result<(), GroupError>,
    ) {
        if let Err(error) = result {
            self.drop_assignments(now, error);
            return self.prepare_rebalance(now);
        }
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
    }

    /// Takes assignments back and answers every waiting sync with the error.
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

    /// Members that never asked for their assignment go, and the rest shares anew.
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
    /// [`GroupError::RebalanceInProgress`] tells it to join again (its session goes on); `UnknownMemberId`,
    /// `FencedInstanceId`, `IllegalGeneration`, and `CoordinatorNotAvailable` if the group is Dead.
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
