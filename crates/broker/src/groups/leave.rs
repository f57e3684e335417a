//! LeaveGroup v0-5: members leave, or an administrator removes them (KIP-345). Each member gets its own result.

use super::group::{Group, State};
use super::{Action, GroupError, Now};

/// A member that leaves. v0-2 name one member and carry no instance id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveMember {
    /// Empty if only the instance id identifies the member.
    pub member_id: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
}

/// The outcome of a LeaveGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// One result for each member, in the request's order.
    pub members: Vec<Result<(), GroupError>>,
    /// The replies to other members that follow.
    pub actions: Vec<Action>,
}

impl Group {
    /// Removes members.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorNotAvailable`] if the group is Dead. Errors of single members are in the result.
    pub fn leave(&mut self, now: Now, leaving: &[LeaveMember]) -> Result<Left, GroupError> {
        if self.state == State::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let members: Vec<_> = leaving.iter().map(|one| self.leave_one(one)).collect();
        if members.iter().any(Result::is_ok) {
            // As in Kafka, even the departure of a pending member makes a settled group rebalance.
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
