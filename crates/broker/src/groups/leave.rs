//! LeaveGroup v0-5: members go, alone or removed by an administrator (KIP-345), each with an answer of its own.

use super::group::{Group, State};
use super::{Action, GroupError, Now};

/// Who leaves. v0-2 name one member and have no instance id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveMember {
    /// Empty if the member is known by its instance id alone.
    pub member_id: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
}

/// What came of a LeaveGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// One answer for each member, in the request's order.
    pub members: Vec<Result<(), GroupError>>,
    /// What follows from it for the others.
    pub actions: Vec<Action>,
}

impl Group {
    /// Members leave.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorNotAvailable`] if the group is Dead; errors of single members are in the answer.
    pub fn leave(&mut self, now: Now, leaving: &[LeaveMember]) -> Result<Left, GroupError> {
        if self.state == State::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let members: Vec<_> = leaving.iter().map(|one| self.leave_one(one)).collect();
        if members.iter().any(Result::is_ok) {
            // As Kafka does, even a pending member's leave makes a settled group rebalance.
            self.after_departure(now, true);
        }
        Ok(Left { members, actions: self.finish() })
    }

    fn leave_one(&mut self, leaving: &LeaveMember) -> Result<(), GroupError> {
        let LeaveMember { member_id, instance_id } = leaving;
        if member_id.is_empty() {
            let seat = instance_id.as_deref().and_then(|instance| self.roster.static_member(instance));
            let id = seat.ok_or(GroupError::UnknownMemberId)?.to_owned();
            self.remove_member(&id);
            return Ok(());
        }
        if self.pending.remove(member_id).is_some() {
            return Ok(());
        }
        self.validate_member(member_id, instance_id.as_deref())?;
        self.remove_member(member_id);
        Ok(())
    }
}
