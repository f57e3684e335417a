//! The steps of a rebalance: wait until all members have joined, drop the missing ones, choose a leader and a protocol,
//! and answer.
//!
//! A generation begins in one place only. All waiting joins are answered there.

use super::consumer::RecordKey;
use super::group::{Group, State};
use super::member::Member;
use super::{GroupError, Joined, JoinedMember, Now};

/// The timer that ends PreparingRebalance if some members do not join.
#[derive(Debug, Clone, Copy)]
pub(super) enum JoinTimer {
    /// The group was Empty. It waits for more members, and extends the wait while new members arrive.
    Initial { deadline: u64, delay_ms: u64, remaining_ms: u64, grew: bool },
    /// Members that have not joined by the deadline are dropped.
    Rebalance { deadline: u64 },
}

impl JoinTimer {
    pub fn deadline(self) -> u64 {
        match self {
            Self::Initial { deadline, .. } | Self::Rebalance { deadline } => deadline,
        }
    }
}

impl Group {
    /// Handles the departure of members, or of pending member ids only.
    pub(super) fn after_departure(&mut self, now: Now, members_gone: bool) {
        match self.state {
            State::Stable | State::CompletingRebalance if members_gone => self.prepare_rebalance(now),
            State::PreparingRebalance => self.maybe_complete_join(now),
            _ => {}
        }
    }

    /// Removes a member. Its parked requests are answered with an error that makes the client start over.
    pub(super) fn remove_member(&mut self, id: &str) {
        let Some((_, parked)) = self.roster.remove(id) else { return };
        if let Some(token) = parked.join {
            self.refuse_join(token, String::new(), GroupError::UnknownMemberId);
        }
        if let Some(token) = parked.sync {
            self.refuse_sync(token, GroupError::UnknownMemberId);
        }
        if self.leader.as_deref() == Some(id) {
            self.leader = self.roster.iter().next().map(|m| m.id.clone());
        }
        if self.roster.missing_syncs() == 0 {
            self.sync_deadline = None;
        }
    }

    /// Begins a rebalance, or continues the one in progress.
    pub(super) fn rebalance(&mut self, now: Now) {
        match self.state {
            State::Empty | State::Stable | State::CompletingRebalance => self.prepare_rebalance(now),
            State::PreparingRebalance => self.maybe_complete_join(now),
            State::Dead => {}
        }
    }

    pub(super) fn prepare_rebalance(&mut self, now: Now) {
        if self.state == State::CompletingRebalance {
            self.drop_assignments(now, GroupError::RebalanceInProgress);
        }
        for id in self.roster.ids() {
            self.roster.set_sync_missing(&id, false);
        }
        self.sync_deadline = None;
        // An unwritten classic record describes the state that ends here.
        self.unwritten.remove(&RecordKey::Classic);
        let initial = self.state == State::Empty;
        self.enter(State::PreparingRebalance, now);
        let delay_ms = self.config.initial_rebalance_delay_ms;
        if initial && delay_ms > 0 {
            let deadline = now.monotonic_ms + delay_ms;
            let remaining_ms = self.roster.rebalance_timeout_ms().saturating_sub(delay_ms);
            self.join_timer = Some(JoinTimer::Initial { deadline, delay_ms, remaining_ms, grew: false });
            self.arm(deadline);
        } else if initial || self.all_joined() {
            self.complete_join(now);
        } else {
            self.wait_for_joins(now);
        }
    }

    fn wait_for_joins(&mut self, now: Now) {
        let deadline = now.monotonic_ms + self.roster.rebalance_timeout_ms();
        self.join_timer = Some(JoinTimer::Rebalance { deadline });
        self.arm(deadline);
    }

    fn all_joined(&self) -> bool {
        self.pending.is_empty() && self.roster.waiting_joins() == self.roster.len()
    }

    /// The initial delay is not cut short, even if all known members have joined.
    pub(super) fn maybe_complete_join(&mut self, now: Now) {
        assert_eq!(self.state, State::PreparingRebalance);
        let initial = matches!(self.join_timer, Some(JoinTimer::Initial { .. }));
        if !initial && self.all_joined() {
            self.complete_join(now);
        }
    }

    pub(super) fn end_join_timer(&mut self, now: Now) {
        let Some(JoinTimer::Initial { delay_ms, remaining_ms, grew: true, .. }) = self.join_timer else {
            return self.complete_join(now);
        };
        if remaining_ms == 0 {
            return self.complete_join(now);
        }
        let next_delay_ms = self.config.initial_rebalance_delay_ms.min(remaining_ms);
        let deadline = now.monotonic_ms + next_delay_ms;
        self.join_timer = Some(JoinTimer::Initial {
            deadline,
            delay_ms: next_delay_ms,
            remaining_ms: remaining_ms.saturating_sub(delay_ms),
            grew: false,
        });
        self.arm(deadline);
    }

    /// Ends PreparingRebalance: drops the members that have not joined and begins the next generation with the rest.
    /// Static members that have not joined stay until their session ends.
    fn complete_join(&mut self, now: Now) {
        assert_eq!(self.state, State::PreparingRebalance);
        self.join_timer = None;
        let absent = |m: &&Member| m.instance_id.is_none() && !m.waits_in_join();
        let absent: Vec<String> = self.roster.iter().filter(absent).map(|m| m.id.clone()).collect();
        for id in &absent {
            self.remove_member(id);
        }
        if self.roster.is_empty() {
            return self.begin_empty_generation(now);
        }
        if !self.elect_leader() {
            // The group has only static members, and none has come back. Their sessions will end, or one of them will
            // join.
            return self.wait_for_joins(now);
        }
        self.begin_generation(now);
    }

    /// Keeps the leader if it has joined, otherwise elects a member that has joined. Returns false if none has.
    fn elect_leader(&mut self) -> bool {
        let joined = |id: &String| self.roster.get(id).is_some_and(Member::waits_in_join);
        if !self.leader.as_ref().is_some_and(joined) {
            let Some(member) = self.roster.iter().find(|m| m.waits_in_join()) else { return false };
            self.leader = Some(member.id.clone());
        }
        true
    }

    fn advance_generation(&mut self) {
        // Kafka lets the generation overflow. Starting over at 1 avoids the negative values, which mean "no
        // generation".
        self.generation = self.generation.checked_add(1).unwrap_or(1);
    }

    fn begin_empty_generation(&mut self, now: Now) {
        self.advance_generation();
        self.protocol = None;
        self.subscribed = self.subscriptions();
        self.enter(State::Empty, now);
        self.unwritten.insert(RecordKey::Classic);
    }

    fn begin_generation(&mut self, now: Now) {
        self.advance_generation();
        self.protocol = self.roster.vote().map(str::to_owned);
        assert!(self.protocol.is_some(), "members with nothing in common are turned away when they join");
        self.subscribed = self.subscriptions();
        self.enter(State::CompletingRebalance, now);
        // The same holds for the record of a group that became a classic one during the rebalance. If it were written
        // now, the members of this generation would have an empty assignment after a restart.
        self.unwritten.remove(&RecordKey::Classic);
        for id in self.roster.ids() {
            if let Some(token) = self.roster.unpark_join(&id) {
                let joined = self.joined(&id);
                self.accept_join(token, id.clone(), joined);
            }
            self.roster.set_sync_missing(&id, true);
            if let Some(member) = self.roster.get_mut(&id) {
                member.is_new = false;
                member.assignment = None;
            }
            self.arm_session(&id, now);
        }
        let deadline = now.monotonic_ms + self.roster.rebalance_timeout_ms();
        self.sync_deadline = Some(deadline);
        self.arm(deadline);
    }

    /// The current generation as a member sees it.
    pub(super) fn joined(&self, id: &str) -> Joined {
        let leads = self.leader.as_deref() == Some(id);
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol_name: self.protocol.clone().unwrap_or_default(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            members: if leads { self.joined_members() } else { Vec::new() },
        }
    }

    fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let show = |m: &Member| JoinedMember {
            member_id: m.id.clone(),
            instance_id: m.instance_id.clone(),
            metadata: m.metadata(protocol),
        };
        self.roster.iter().map(show).collect()
    }
}
