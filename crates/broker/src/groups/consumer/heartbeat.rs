//! ConsumerGroupHeartbeat v0-1: members join, stay alive, follow the assignment, and leave.

use super::super::group::{Group, State};
use super::super::{Action, GroupError, Now, ReplyToken};
use super::member::{MemberState, Subscription, each};
use super::reconcile::is_part;
use super::{Assignor, ConsumerGroup, ConsumerMember, Partitions, RecordKey, Refused, TopicSource, pattern};

/// The epoch of a heartbeat that joins.
pub const JOIN: i32 = 0;
/// The epoch of a heartbeat that leaves.
pub const LEAVE: i32 = -1;
/// The epoch of a heartbeat by which a static member leaves temporarily, and the epoch of such a member while it is
/// away.
pub const LEFT_STATIC: i32 = -2;

/// Bound in bytes of the topic names in one subscription. The names are kept in memory and in one record.
pub(super) const SUBSCRIPTION_BYTES_MAX: usize = 1 << 20;

/// A ConsumerGroupHeartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeartbeatRequest {
    /// The version of the API.
    pub version: i16,
    /// The client chooses it. In version 0 it is empty in the first heartbeat.
    pub member_id: String,
    /// The member epoch. 0 joins; -1 and -2 leave.
    pub epoch: i32,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
    /// `client.rack`.
    pub rack_id: Option<String>,
    /// In milliseconds; -1 if unchanged.
    pub rebalance_timeout_ms: i32,
    /// The topic names subscribed to. `None` if unchanged.
    pub names: Option<Vec<String>>,
    /// The regular expression subscribed to. `None` if unchanged, empty for none.
    pub regex: Option<String>,
    /// `None` if unchanged.
    pub assignor: Option<String>,
    /// The partitions that the member owns. `None` if unchanged.
    pub owned: Option<Partitions>,
    /// The client id from the request's header.
    pub client_id: String,
    /// The client's address, as "/address".
    pub client_host: String,
    /// Random and never used before. It becomes the member id if the client sends none.
    pub uuid: String,
    /// The group's `consumer.session.timeout.ms`.
    pub session_timeout_ms: i32,
    /// The group's `consumer.heartbeat.interval.ms`.
    pub interval_ms: i32,
}

/// The answer to a ConsumerGroupHeartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The member's id.
    pub member_id: String,
    /// The member epoch from now on.
    pub epoch: i32,
    /// The interval until the next heartbeat, in milliseconds.
    pub interval_ms: i32,
    /// The partitions that the member owns from now on. `None` if unchanged.
    pub assignment: Option<Partitions>,
}

impl HeartbeatRequest {
    /// Checks everything that does not depend on the group.
    ///
    /// # Errors
    /// `InvalidRequest`, `UnsupportedAssignor`.
    pub fn validate(&self) -> Result<(), Refused> {
        let invalid = |message: &str| Err(Refused::new(GroupError::InvalidRequest, message));
        let is_empty = |text: &Option<String>| text.as_ref().is_some_and(|text| text.trim().is_empty());
        // From version 1 on, clients choose their member ids.
        let may_lack_id = self.version == 0 && self.epoch == JOIN;
        if self.member_id.trim().is_empty() && !(may_lack_id && self.member_id.is_empty()) {
            return invalid("MemberId can't be empty.");
        }
        if is_empty(&self.instance_id) {
            return invalid("InstanceId can't be empty.");
        }
        if is_empty(&self.rack_id) {
            return invalid("RackId can't be empty.");
        }
        let names = self.names.iter().flatten().map(String::len).sum::<usize>();
        if names > SUBSCRIPTION_BYTES_MAX {
            return invalid("The names of the topics subscribed to take more than 1048576 bytes.");
        }
        match self.epoch {
            1.. | LEAVE => {}
            JOIN if self.rebalance_timeout_ms == -1 => {
                return invalid("RebalanceTimeoutMs must be provided in first request.");
            }
            JOIN if self.owned.as_ref().is_none_or(|owned| !owned.is_empty()) => {
                return invalid("TopicPartitions must be empty when (re-)joining.");
            }
            JOIN if self.names.is_none() && self.regex.is_none() => {
                return invalid(
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
                );
            }
            JOIN => {}
            LEFT_STATIC if self.instance_id.is_none() => return invalid("InstanceId can't be null."),
            LEFT_STATIC => {}
            _ => return invalid("MemberEpoch is invalid."),
        }
        if let Some(name) = &self.assignor
            && Assignor::named(name).is_none()
        {
            let known = super::ASSIGNORS.map(Assignor::name).join(", ");
            let message = format!("ServerAssignor {name} is not supported. Supported assignors: {known}.");
            return Err(Refused::new(GroupError::UnsupportedAssignor, message));
        }
        Ok(())
    }

    /// Checks that the regular expression is valid. The caller first makes sure that the group exists.
    ///
    /// # Errors
    /// `InvalidRegularExpression`.
    pub fn validate_regex(&self) -> Result<(), Refused> {
        if let Some(regex) = self.regex.as_ref().filter(|regex| !regex.is_empty()) {
            pattern::compile(regex).map_err(|why| {
                let message =
                    format!("SubscribedTopicRegex `{regex}` is not a valid regular expression: {why}.");
                Refused::new(GroupError::InvalidRegularExpression, message)
            })?;
        }
        Ok(())
    }

    /// The member's subscription after this heartbeat. Fields that the heartbeat leaves out keep their value from
    /// `before`.
    fn subscription(&self, before: &Subscription) -> Subscription {
        let or = |new: &Option<String>, old: &Option<String>| new.clone().or_else(|| old.clone());
        let rebalance_timeout_ms = match self.rebalance_timeout_ms {
            -1 => before.rebalance_timeout_ms,
            given => given,
        };
        Subscription {
            instance_id: or(&self.instance_id, &before.instance_id),
            rack_id: or(&self.rack_id, &before.rack_id),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            names: match &self.names {
                Some(names) => names.iter().cloned().collect(),
                None => before.names.clone(),
            },
            regex: or(&self.regex, &before.regex).filter(|regex| !regex.is_empty()),
            rebalance_timeout_ms,
            assignor: or(&self.assignor, &before.assignor),
            classic: None,
        }
    }

    fn is_full(&self) -> bool {
        let subscribes = self.names.is_some() || self.regex.is_some();
        self.epoch == JOIN || (self.rebalance_timeout_ms != -1 && subscribes && self.owned.is_some())
    }
}

impl Group {
    /// A member of the consumer protocol joins, shows that it is alive, or leaves.
    pub fn consumer_heartbeat(
        &mut self,
        now: Now,
        request: HeartbeatRequest,
        topics: &dyn TopicSource,
        token: ReplyToken,
    ) -> Vec<Action> {
        let reply = self.try_heartbeat(now, request, topics);
        self.emit(Action::Heartbeat { token, reply });
        self.finish()
    }

    fn try_heartbeat(
        &mut self,
        now: Now,
        mut request: HeartbeatRequest,
        topics: &dyn TopicSource,
    ) -> Result<HeartbeatReply, Refused> {
        if self.state() == State::Dead {
            return Err(GroupError::CoordinatorNotAvailable.into());
        }
        if matches!(request.epoch, LEAVE | LEFT_STATIC) {
            return self.leave_consumer(now, &request);
        }
        if request.epoch == JOIN {
            self.become_consumer(now, &request.member_id, topics)?;
        }
        if request.member_id.is_empty() {
            request.member_id = std::mem::take(&mut request.uuid);
        }
        let id = request.member_id.clone();
        let group = self.consumer_group()?;
        group.admit(&request)?;
        let before = group.members[&id].assigned.clone();
        let subscription = request.subscription(&group.members[&id].subscription);
        group.subscribe(&id, subscription, topics);
        group.reconcile(&id, request.owned.as_ref(), now);
        let member = group.members.get_mut(&id).expect("it was let in above");
        (member.join_deadline, member.sync_deadline) = (None, None);
        member.arm_session(now, request.session_timeout_ms);
        let changed = request.is_full() || member.assigned != before;
        let reply = HeartbeatReply {
            member_id: id,
            epoch: member.epoch,
            interval_ms: request.interval_ms,
            assignment: changed.then(|| member.assigned.clone()),
        };
        self.arm_member(&reply.member_id);
        Ok(reply)
    }

    fn leave_consumer(&mut self, now: Now, request: &HeartbeatRequest) -> Result<HeartbeatReply, Refused> {
        let id = &request.member_id;
        let group = self.consumer_group()?;
        group.check_member(id, request.instance_id.as_deref())?;
        if request.epoch == LEFT_STATIC {
            group.leave_for_a_while(id, now);
        } else {
            self.fence(now, id);
        }
        Ok(HeartbeatReply { member_id: id.clone(), epoch: request.epoch, interval_ms: 0, assignment: None })
    }

    /// Removes a member from the group. If only classic members are left, the group becomes a classic one.
    pub(super) fn fence(&mut self, now: Now, id: &str) {
        let Some(group) = self.consumer.as_mut() else { return };
        let epoch = group.epoch;
        let Some(gone) = group.depart(id) else { return };
        if !gone.is_classic() {
            // The other members are at the previous epoch. They have to join again and must not consider themselves
            // expelled.
            self.maybe_downgrade(now, epoch, true);
        }
    }

    /// Removes members that have passed a deadline.
    pub(in super::super) fn tick_consumer(&mut self, now: Now) {
        let overdue = self.consumer.as_ref().map(|group| group.overdue(now)).unwrap_or_default();
        for id in overdue {
            tracing::info!(
                group = self.id,
                member = id,
                "a member was not heard of in time and leaves the group"
            );
            self.fence(now, &id);
        }
    }

    pub(super) fn consumer_group(&mut self) -> Result<&mut ConsumerGroup, Refused> {
        if self.state() == State::Dead {
            return Err(GroupError::CoordinatorNotAvailable.into());
        }
        let id = &self.id;
        let not_one =
            || Refused::new(GroupError::GroupIdNotFound, format!("Group {id} is not a consumer group."));
        self.consumer.as_deref_mut().ok_or_else(not_one)
    }

    /// Arms the timer for one member after its request. The deadlines of other members have not moved closer.
    pub(super) fn arm_member(&mut self, id: &str) {
        let member = self.consumer.as_ref().and_then(|group| group.members.get(id));
        if let Some(deadline) = member.and_then(ConsumerMember::deadline) {
            self.arm(deadline);
        }
    }
}

impl ConsumerGroup {
    /// Finds or creates the member that sends the heartbeat. The member exists afterwards.
    fn admit(&mut self, request: &HeartbeatRequest) -> Result<(), Refused> {
        let id = &request.member_id;
        let seat = request.instance_id.as_ref().and_then(|instance| self.statics.get(instance)).cloned();
        if request.epoch != JOIN {
            let member = self.check_member(id, request.instance_id.as_deref())?;
            return member.check_epoch(request.epoch, request.owned.as_ref());
        }
        match seat {
            Some(owner) if owner != *id => {
                let away = self.members.get(&owner).is_some_and(|m| m.epoch == LEFT_STATIC || m.is_classic());
                if !away {
                    let instance = request.instance_id.as_deref().unwrap_or_default();
                    let message = format!(
                        "Static member {id} with instance id {instance} cannot join the group because the instance id \
                         is owned by {owner} member."
                    );
                    return Err(Refused::new(GroupError::UnreleasedInstanceId, message));
                }
                self.replace(&owner, id);
            }
            // A member that joins again missed the answer or lost its state. It receives the same assignment again.
            _ => {
                if !self.members.contains_key(id) {
                    self.seat(id);
                }
            }
        }
        if let Some(member) = self.members.get_mut(id)
            && member.epoch == LEFT_STATIC
        {
            member.epoch = JOIN;
            member.previous_epoch = JOIN;
        }
        Ok(())
    }

    /// Adds a new member without partitions.
    pub(super) fn seat(&mut self, id: &str) {
        self.insert(ConsumerMember::new(id.to_owned()));
        self.unwritten.extend(RecordKey::of_member(id));
        self.bump_epoch();
    }

    /// A static member comes back under another member id. It takes over its seat with its partitions.
    pub(super) fn replace(&mut self, old: &str, new: &str) {
        let Some(mut member) = self.remove(old) else { return };
        // A member that already uses the new id loses its own seat.
        self.remove(new);
        member.id = new.to_owned();
        member.epoch = JOIN;
        member.previous_epoch = JOIN;
        self.insert(member);
        self.unwritten.extend(RecordKey::of_member(new));
    }

    /// The member that sends a request. A given `instance` must belong to this member.
    pub(super) fn check_member(&self, id: &str, instance: Option<&str>) -> Result<&ConsumerMember, Refused> {
        if let Some(instance) = instance {
            match self.statics.get(instance) {
                None => {
                    let message = format!("Instance id {instance} is unknown.");
                    return Err(Refused::new(GroupError::UnknownMemberId, message));
                }
                Some(owner) if owner != id => {
                    let message = format!(
                        "Static member {id} with instance id {instance} was fenced by member {owner}."
                    );
                    return Err(Refused::new(GroupError::FencedInstanceId, message));
                }
                Some(_) => {}
            }
        }
        self.members.get(id).ok_or_else(|| {
            let message = format!("Member {id} is not a member of group {}.", self.id);
            Refused::new(GroupError::UnknownMemberId, message)
        })
    }

    /// Checks the epoch of a member's OffsetFetch.
    pub(in super::super) fn check_epoch_of(&self, id: &str, epoch: i32) -> Result<(), GroupError> {
        match self.members.get(id) {
            None => Err(GroupError::UnknownMemberId),
            Some(member) if member.epoch == epoch => Ok(()),
            Some(member) if member.is_classic() => Err(GroupError::IllegalGeneration),
            Some(_) => Err(GroupError::StaleMemberEpoch),
        }
    }

    /// Checks the epoch of a member's commit. An epoch older than the member's may still be valid for some partitions.
    pub(in super::super) fn check_commit(&self, id: &str, epoch: i32) -> Result<(), GroupError> {
        let older = |member: &&ConsumerMember| !member.is_classic() && (0..member.epoch).contains(&epoch);
        match self.members.get(id).filter(older) {
            Some(_) => Ok(()),
            None => self.check_epoch_of(id, epoch),
        }
    }

    /// Checks one partition of a commit that [`Self::check_commit`] accepted. The member must have owned the partition
    /// at that epoch, and must still own it (KIP-1251).
    pub(in super::super) fn check_partition(
        &self,
        id: &str,
        epoch: i32,
        topic: &str,
        partition: i32,
    ) -> Result<(), GroupError> {
        let Some(member) = self.members.get(id).filter(|member| member.epoch != epoch) else { return Ok(()) };
        let topic = self.topics.get(topic).map(|(topic, _)| *topic);
        let since = topic.and_then(|topic| member.since.get(&(topic, partition)));
        if since.is_some_and(|since| *since <= epoch) { Ok(()) } else { Err(GroupError::StaleMemberEpoch) }
    }

    /// A static member leaves temporarily. It keeps its seat until its session ends.
    fn leave_for_a_while(&mut self, id: &str, now: Now) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.epoch = LEFT_STATIC;
        let revoked = std::mem::take(&mut member.revoking);
        if member.state == MemberState::Unrevoked {
            member.state = MemberState::Unreleased;
            member.arm_rebalance(now);
        }
        for key in each(&revoked) {
            member.since.remove(&key);
        }
        each(&revoked).for_each(|key| self.release(key));
        self.unwritten.insert(RecordKey::Current(id.to_owned()));
    }

    /// Updates the member's subscription, and computes a new target assignment if the subscription or the topics
    /// require it.
    pub(super) fn subscribe(&mut self, id: &str, subscription: Subscription, topics: &dyn TopicSource) {
        let Some(member) = self.members.get_mut(id) else { return };
        let before = std::mem::replace(&mut member.subscription, subscription.clone());
        if before != subscription {
            self.unwritten.insert(RecordKey::Member(id.to_owned()));
            if let Some(instance) =
                before.instance_id.as_ref().filter(|_| before.instance_id != subscription.instance_id)
            {
                self.statics.remove(instance);
            }
            if let Some(instance) = &subscription.instance_id {
                self.statics.insert(instance.clone(), id.to_owned());
            }
        }
        let changed = (&before.names, &before.regex) != (&subscription.names, &subscription.regex);
        if changed || self.departed || self.seen != Some(topics.version()) {
            let other_topics = self.refresh(topics);
            // A new member has already bumped the epoch.
            if (changed || other_topics) && self.epoch == self.target_epoch {
                self.bump_epoch();
            }
        }
        if self.epoch > self.target_epoch {
            self.assign();
        }
    }
}

impl ConsumerMember {
    fn check_epoch(&self, epoch: i32, owned: Option<&Partitions>) -> Result<(), Refused> {
        let known = self.epoch;
        let fenced = |how: &str| {
            let message = format!(
                "The consumer group member has a {how} member epoch ({epoch}) than the one known by the group \
                 coordinator ({known}). The member must abandon all its partitions and rejoin."
            );
            Err(Refused::new(GroupError::FencedMemberEpoch, message))
        };
        if epoch > known {
            return fenced("greater");
        }
        // The answer that moved the member to the new epoch may have been lost.
        let answer_lost =
            epoch == self.previous_epoch && owned.is_some_and(|owned| is_part(owned, &self.assigned));
        if epoch < known && !answer_lost {
            return fenced("smaller");
        }
        Ok(())
    }
}
