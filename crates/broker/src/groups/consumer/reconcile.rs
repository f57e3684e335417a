//! Moves a member to the target assignment: it first gives up the partitions it loses, then receives partitions that
//! others gave up.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::super::Now;
use super::member::{MemberState, add, each};
use super::{ConsumerGroup, Partitions, RecordKey};

impl ConsumerGroup {
    /// Moves a member one step towards the target, if possible. `owned` holds the partitions that the member reports;
    /// `None` if it reported none.
    pub(super) fn reconcile(&mut self, id: &str, owned: Option<&Partitions>, now: Now) {
        let Some(member) = self.members.get(id) else { return };
        let still_owns = |partitions: &Partitions| owned.is_none_or(|owned| overlap(owned, partitions));
        let epoch = match member.state {
            MemberState::Stable if member.epoch == self.target_epoch => return,
            MemberState::Stable | MemberState::Unreleased => member.epoch,
            MemberState::Unrevoked if still_owns(&member.revoking) => return,
            // The member has given up all partitions and moves on. If it has to give up more, this epoch lies between
            // its epoch and the target's.
            MemberState::Unrevoked => member.epoch + 1,
        };
        let mut assigned = Partitions::new();
        let mut revoking = Partitions::new();
        for key in each(&member.assigned) {
            let kept = contains(&member.target, key);
            add(if kept { &mut assigned } else { &mut revoking }, key);
        }
        let missing = each(&member.target).filter(|key| !contains(&assigned, *key));
        let (free, unreleased): (Vec<_>, Vec<_>) = missing.partition(|key| !self.holders.contains_key(key));
        if !revoking.is_empty() && still_owns(&revoking) {
            return self.set_current(id, MemberState::Unrevoked, epoch, assigned, revoking, now);
        }
        free.into_iter().for_each(|key| add(&mut assigned, key));
        let state = if unreleased.is_empty() { MemberState::Stable } else { MemberState::Unreleased };
        self.set_current(id, state, self.target_epoch, assigned, Partitions::new(), now);
    }

    /// Whether all partitions that an Unreleased member waits for are free by now.
    pub(super) fn may_go_on(&self, id: &str) -> bool {
        let Some(member) = self.members.get(id) else { return false };
        let missing = each(&member.target).filter(|key| !contains(&member.assigned, *key));
        member.state == MemberState::Unreleased
            && missing.into_iter().all(|key| !self.holders.contains_key(&key))
    }

    fn set_current(
        &mut self,
        id: &str,
        state: MemberState,
        epoch: i32,
        assigned: Partitions,
        revoking: Partitions,
        now: Now,
    ) {
        let Some(member) = self.members.get_mut(id) else { return };
        let before: Vec<(Uuid, i32)> = member.held().collect();
        let changed = (member.state, member.epoch) != (state, epoch)
            || (&member.assigned, &member.revoking) != (&assigned, &revoking);
        if !changed {
            return;
        }
        if member.epoch != epoch {
            member.previous_epoch = member.epoch;
        }
        (member.state, member.epoch) = (state, epoch);
        (member.assigned, member.revoking) = (assigned, revoking);
        let since =
            member.held().map(|key| (key, member.since.get(&key).copied().unwrap_or(epoch))).collect();
        member.since = since;
        member.arm_rebalance(now);
        for key in member.held() {
            *self.holders.entry(key).or_default() += 1;
        }
        for key in before {
            self.release(key);
        }
        self.unwritten.insert(RecordKey::Current(id.to_owned()));
    }
}

fn contains(partitions: &Partitions, (topic, index): (Uuid, i32)) -> bool {
    partitions.get(&topic).is_some_and(|indexes| indexes.contains(&index))
}

fn overlap(one: &Partitions, other: &Partitions) -> bool {
    one.iter().any(|(topic, indexes)| other.get(topic).is_some_and(|others| !indexes.is_disjoint(others)))
}

/// Whether all of `part` is in `whole`.
pub(super) fn is_part(part: &Partitions, whole: &Partitions) -> bool {
    let none = BTreeSet::new();
    part.iter().all(|(topic, indexes)| indexes.is_subset(whole.get(topic).unwrap_or(&none)))
}
