//! Classic-protocol members in a consumer-protocol group, and the migration of groups between the two kinds while they
//! are in use (KIP-848, "Online Migration").

use bytes::Bytes;
use wire::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, consumer_protocol_assignment,
};
use wire::{Message, Reader, Text, Writer};

use super::super::group::{Group, State};
use super::super::join::JoinRequest;
use super::super::leave::{LeaveMember, Left};
use super::super::member::Member;
use super::super::sync::SyncRequest;
use super::super::{Action, CONSUMER_PROTOCOL_TYPE, GroupError, JoinReply, Joined, Now, ReplyToken, Synced};
use super::heartbeat::SUBSCRIPTION_BYTES_MAX;
use super::member::{ClassicSide, MemberState, Subscription, each};
use super::{ConsumerGroup, ConsumerMember, ConsumerState, Partitions, RecordKey, Refused, TopicSource};

/// Bound of a string in the key of a record.
const MEMBER_ID_BYTES_MAX: usize = 32_767;

impl ClassicSide {
    fn supports(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|of| of.name == protocol)
    }

    fn first(&self) -> &str {
        self.protocols.first().map_or("", |protocol| &protocol.name)
    }
}

impl Group {
    /// Makes this a group of the consumer protocol, so that `member` can join it.
    ///
    /// # Errors
    /// `GroupMaxSizeReached`; `GroupIdNotFound` for a classic group that cannot be converted.
    pub(super) fn become_consumer(
        &mut self,
        now: Now,
        member: &str,
        topics: &dyn TopicSource,
    ) -> Result<(), Refused> {
        let members = self.consumer.as_ref().map_or(self.roster.len(), |group| group.members.len());
        let known = self.consumer.as_ref().is_some_and(|group| group.members.contains_key(member));
        let max = self.config.consumer_size_max;
        if members >= max && !known {
            let message = format!("The consumer group has reached its maximum capacity of {max} members.");
            return Err(Refused::new(GroupError::GroupMaxSizeReached, message));
        }
        if self.consumer.is_some() {
            return Ok(());
        }
        // As in Kafka, the epoch begins at 1, and the first member raises it to 2.
        let mut group = ConsumerGroup { id: self.id.clone(), epoch: 1, ..ConsumerGroup::default() };
        if !self.roster.is_empty() {
            if !self.speaks_consumer_protocol() {
                return self.consumer_group().map(drop);
            }
            group = self.upgraded(now, topics).ok_or_else(|| {
                let message = format!(
                    "Cannot upgrade the classic group {} to consumer group because the embedded consumer protocol is \
                     malformed.",
                    self.id
                );
                Refused::new(GroupError::GroupIdNotFound, message)
            })?;
            tracing::info!(group = self.id, "a classic group becomes one of the consumer protocol");
        }
        if self.protocol_type.is_some() {
            self.unwritten.insert(RecordKey::Classic);
        }
        self.disband(GroupError::RebalanceInProgress);
        self.consumer = Some(Box::new(group));
        if let Some(deadline) = self.earliest_deadline() {
            self.arm(deadline);
        }
        Ok(())
    }

    /// Converts the members as they are, all at the group's generation. Returns `None` if the data of a member cannot
    /// be read.
    fn upgraded(&self, now: Now, topics: &dyn TopicSource) -> Option<ConsumerGroup> {
        let mut group = ConsumerGroup { id: self.id.clone(), ..ConsumerGroup::default() };
        (group.epoch, group.target_epoch) = (self.generation, self.generation);
        for member in self.roster.iter() {
            let classic = ClassicSide {
                session_timeout_ms: member.session_timeout_ms,
                protocols: member.protocols().to_vec(),
            };
            if told_bytes(&classic) > SUBSCRIPTION_BYTES_MAX {
                return None;
            }
            let (subscription, _) = decode::<ConsumerProtocolSubscription>(
                &self
                    .protocol
                    .as_deref()
                    .map_or_else(|| classic.protocols[0].metadata.clone(), |of| member.metadata(of)),
            )?;
            let mut new = ConsumerMember::new(member.id.clone());
            new.subscription = Subscription {
                instance_id: member.instance_id.clone(),
                rack_id: subscription.rack_id.as_ref().map(ToString::to_string),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                names: subscription.topics.iter().map(ToString::to_string).collect(),
                regex: None,
                rebalance_timeout_ms: member.rebalance_timeout_ms,
                assignor: None,
                classic: Some(classic),
            };
            (new.epoch, new.previous_epoch) = (self.generation, self.generation);
            new.assigned = match &member.assignment {
                Some(assignment) if assignment.is_empty() => Partitions::new(),
                Some(assignment) => {
                    let (assignment, _) = decode::<ConsumerProtocolAssignment>(assignment)?;
                    let assigned = assignment.assigned_partitions.iter();
                    partitions_of(assigned.map(|t| (&t.topic, &t.partitions)), topics)
                }
                // A new assignment is on its way. The member has not given up the partitions that it reported when it
                // joined.
                None => {
                    let owned = subscription.owned_partitions.iter();
                    partitions_of(owned.map(|t| (&t.topic, &t.partitions)), topics)
                }
            };
            if !new.assigned.is_empty() {
                // A partition must not belong to two members, whatever the leader assigned.
                new.assigned.iter_mut().for_each(|(topic, indexes)| {
                    indexes.retain(|index| !group.holders.contains_key(&(*topic, *index)));
                });
                new.assigned.retain(|_, indexes| !indexes.is_empty());
                new.since = each(&new.assigned).map(|key| (key, self.generation)).collect();
            }
            new.target = new.assigned.clone();
            new.arm_session(now, member.session_timeout_ms);
            group.unwritten.extend(RecordKey::of_member(&new.id));
            group.insert(new);
        }
        group.unwritten.extend([RecordKey::Metadata, RecordKey::TargetEpoch]);
        Some(group)
    }

    /// Converts the group back to a classic group at this generation, if only classic members are left.
    pub(super) fn maybe_downgrade(&mut self, now: Now, generation: i32, rebalance: bool) {
        let Some(group) = &self.consumer else { return };
        let all_classic = group.members.values().all(ConsumerMember::is_classic);
        if group.is_empty() || !all_classic || group.members.len() > self.config.size_max {
            return;
        }
        let Some(group) = self.consumer.take() else { return };
        tracing::info!(group = self.id, "a group of the consumer protocol becomes a classic one");
        self.unwritten.extend(group.keys());
        self.generation = generation;
        self.protocol_type = Some(CONSUMER_PROTOCOL_TYPE.to_owned());
        for member in group.members.values() {
            let Some(classic) = member.subscription.classic.clone() else { continue };
            let version = subscription_version(&classic);
            let mut new =
                Member::new(member.id.clone(), member.subscription.instance_id.clone(), classic.protocols);
            new.client_id = member.subscription.client_id.clone();
            new.client_host = member.subscription.client_host.clone();
            new.session_timeout_ms = classic.session_timeout_ms;
            new.rebalance_timeout_ms = member.subscription.rebalance_timeout_ms;
            // The assignment is what the member owns, not its target: other members may not have given up the target
            // partitions yet.
            new.assignment = Some(group.assignment_bytes(&member.assigned, version));
            let deadline = new.arm_session(now.monotonic_ms);
            self.leader.get_or_insert_with(|| new.id.clone());
            self.roster.insert(new);
            self.arm(deadline);
        }
        self.protocol = self.roster.vote().map(str::to_owned);
        self.enter(State::Stable, now);
        self.subscribed = self.subscriptions();
        if rebalance || group.state() != ConsumerState::Stable {
            self.prepare_rebalance(now);
        }
        // The record is also written during a rebalance, because the records of the consumer protocol are about to be
        // deleted.
        self.unwritten.insert(RecordKey::Classic);
    }

    /// JoinGroup of a classic member. If the group has no members, it becomes a classic group.
    pub fn consumer_join(
        &mut self,
        now: Now,
        request: JoinRequest,
        topics: &dyn TopicSource,
        token: ReplyToken,
    ) -> Vec<Action> {
        if self.state() == State::Dead {
            return self.join(now, request, token);
        }
        if self.consumer.as_ref().is_none_or(|group| group.is_empty()) {
            if let Some(group) = self.consumer.take() {
                self.generation = group.epoch;
                self.unwritten.extend(group.keys());
            }
            return self.join(now, request, token);
        }
        let asked = request.member_id.clone();
        let reply = match self.try_consumer_join(now, request.normalise(), topics) {
            Ok((member_id, joined)) => JoinReply { member_id, result: Ok(joined) },
            Err((member_id, error)) => {
                JoinReply { member_id: member_id.unwrap_or(asked), result: Err(error) }
            }
        };
        self.emit(Action::Join { token, reply });
        self.finish()
    }

    /// An error comes with the member id for the reply, if it differs from the one in the request.
    fn try_consumer_join(
        &mut self,
        now: Now,
        request: JoinRequest,
        topics: &dyn TopicSource,
    ) -> Result<(String, Joined), (Option<String>, GroupError)> {
        let keep_id = |error| (None, error);
        self.become_consumer(now, &request.member_id, topics).map_err(|refused| keep_id(refused.error))?;
        let group = self.consumer_group().map_err(|refused| keep_id(refused.error))?;
        let classic = ClassicSide {
            session_timeout_ms: request.session_timeout_ms,
            protocols: request.protocols.clone(),
        };
        if told_bytes(&classic) > SUBSCRIPTION_BYTES_MAX {
            return Err(keep_id(GroupError::UnknownServer));
        }
        let told = classic.protocols.first().map(|protocol| protocol.metadata.clone()).unwrap_or_default();
        let (told, _) = decode::<ConsumerProtocolSubscription>(&told)
            .filter(|_| {
                request.protocol_type == CONSUMER_PROTOCOL_TYPE
                    && group.has_protocol_for(&classic, &request.member_id)
            })
            .ok_or(keep_id(GroupError::InconsistentGroupProtocol))?;
        let instance = request.instance_id.as_deref();
        let id = match request.member_id.as_str() {
            "" => request.new_member_id(),
            id => id.to_owned(),
        };
        if id.len() > MEMBER_ID_BYTES_MAX {
            return Err(keep_id(GroupError::UnknownServer));
        }
        if request.member_id.is_empty() && request.needs_member_id() {
            return Err((Some(id), GroupError::MemberIdRequired));
        }
        let seat = instance.and_then(|instance| group.statics.get(instance)).cloned();
        let replaces_consumer = match seat {
            Some(owner) if request.member_id.is_empty() => {
                let replaces = group.members.get(&owner).is_some_and(|member| !member.is_classic());
                group.replace(&owner, &id);
                replaces
            }
            _ if instance.is_some() && !request.member_id.is_empty() => {
                group.check_member(&id, instance).map_err(|refused| keep_id(refused.error))?;
                false
            }
            _ => {
                if !group.members.contains_key(&id) {
                    group.seat(&id);
                }
                false
            }
        };
        let before = &group.members[&id].subscription;
        let protocol_name = classic.first().to_owned();
        let subscription = Subscription {
            instance_id: request.instance_id.clone().or_else(|| before.instance_id.clone()),
            rack_id: told.rack_id.as_ref().map(ToString::to_string),
            client_id: request.client_id.clone(),
            client_host: request.client_host.clone(),
            names: told.topics.iter().map(ToString::to_string).collect(),
            regex: None,
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            assignor: None,
            classic: Some(classic),
        };
        let owned = partitions_of(told.owned_partitions.iter().map(|t| (&t.topic, &t.partitions)), topics);
        group.subscribe(&id, subscription, topics);
        group.reconcile(&id, Some(&owned), now);
        let member = group.members.get_mut(&id).expect("it was seated above");
        member.join_deadline = None;
        member.sync_deadline = Some(member.rebalance_limit(now));
        member.arm_session(now, request.session_timeout_ms);
        let joined = Joined {
            generation: member.epoch,
            protocol_type: CONSUMER_PROTOCOL_TYPE.to_owned(),
            protocol_name,
            // The server assigns, so no member is told to.
            leader: String::new(),
            skip_assignment: false,
            members: Vec::new(),
        };
        self.arm_member(&id);
        if replaces_consumer {
            let epoch = self.consumer.as_ref().map_or(joined.generation, |group| group.epoch);
            self.maybe_downgrade(now, epoch, false);
        }
        Ok((id, joined))
    }

    /// SyncGroup of a classic member.
    pub fn consumer_sync(&mut self, now: Now, request: &SyncRequest, token: ReplyToken) -> Vec<Action> {
        let reply = self.try_consumer_sync(now, request);
        self.emit(Action::Sync { token, reply });
        self.finish()
    }

    fn try_consumer_sync(&mut self, now: Now, request: &SyncRequest) -> Result<Synced, GroupError> {
        let group = self.consumer_group().map_err(|refused| refused.error)?;
        let epoch = group.epoch;
        let member =
            group.classic_member(&request.member_id, request.instance_id.as_deref(), request.generation)?;
        let Some(classic) = member.subscription.classic.clone() else {
            return Err(GroupError::UnknownMemberId);
        };
        let differs =
            |given: &Option<String>, ours: &str| given.as_deref().is_some_and(|given| given != ours);
        if differs(&request.protocol_type, CONSUMER_PROTOCOL_TYPE)
            || differs(&request.protocol_name, classic.first())
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        // A member with partitions to give up has already joined. It joins again once it has given them up.
        if epoch > member.epoch && member.state != MemberState::Unrevoked {
            member.await_join(now);
            self.arm_member(&request.member_id);
            return Err(GroupError::RebalanceInProgress);
        }
        member.sync_deadline = None;
        member.arm_session(now, classic.session_timeout_ms);
        let assigned = member.assigned.clone();
        let assignment = group.assignment_bytes(&assigned, subscription_version(&classic));
        self.arm_member(&request.member_id);
        Ok(Synced {
            protocol_type: CONSUMER_PROTOCOL_TYPE.to_owned(),
            protocol_name: classic.first().to_owned(),
            assignment,
        })
    }

    /// Heartbeat of a classic member.
    ///
    /// # Errors
    /// As [`Group::heartbeat`].
    pub fn consumer_classic_heartbeat(
        &mut self,
        now: Now,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), GroupError> {
        let group = self.consumer_group().map_err(|refused| refused.error)?;
        let epoch = group.epoch;
        let may_go_on = group.may_go_on(member_id);
        let member = group.classic_member(member_id, instance_id, generation)?;
        member.arm_session(now, 0);
        let rejoin = member.epoch < epoch || member.state == MemberState::Unrevoked || may_go_on;
        if rejoin {
            member.await_join(now);
        }
        self.arm_member(member_id);
        if rejoin { Err(GroupError::RebalanceInProgress) } else { Ok(()) }
    }

    /// LeaveGroup in a group of the consumer protocol: removes classic members, and members that an administrator
    /// names.
    pub fn consumer_classic_leave(&mut self, now: Now, leaving: &[LeaveMember]) -> Left {
        let epoch = self.consumer.as_ref().map_or(0, |group| group.epoch);
        let mut last_of_its_kind = false;
        let mut leave_one = |leaving: &LeaveMember| {
            let group = self.consumer_group().map_err(|refused| refused.error)?;
            let instance = leaving.instance_id.as_deref();
            let seat = instance.and_then(|instance| group.statics.get(instance)).cloned();
            // An administrator may identify a static member by its instance id alone.
            let id = match seat {
                Some(owner) if leaving.member_id.is_empty() => owner,
                _ => leaving.member_id.clone(),
            };
            let member = group.check_member(&id, instance).map_err(|refused| refused.error)?;
            last_of_its_kind |= !member.is_classic();
            group.depart(&id);
            Ok(())
        };
        let members = leaving.iter().map(&mut leave_one).collect();
        if last_of_its_kind {
            self.maybe_downgrade(now, epoch, true);
        }
        Left { members, actions: self.finish() }
    }
}

impl ConsumerGroup {
    /// Whether all classic members share a protocol with this one.
    fn has_protocol_for(&self, joining: &ClassicSide, id: &str) -> bool {
        let others = || self.members.values().filter(|member| member.id != id);
        let common = |name: &str| {
            others().filter_map(|m| m.subscription.classic.as_ref()).all(|other| other.supports(name))
        };
        joining.protocols.iter().any(|protocol| common(&protocol.name))
    }

    fn classic_member(
        &mut self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<&mut ConsumerMember, GroupError> {
        self.check_member(id, instance).map_err(|refused| refused.error)?;
        let member = self.members.get_mut(id).filter(|member| member.is_classic());
        let member = member.ok_or(GroupError::UnknownMemberId)?;
        if generation != member.epoch {
            return Err(GroupError::IllegalGeneration);
        }
        Ok(member)
    }

    /// Encodes partitions as SyncGroup carries them.
    fn assignment_bytes(&self, partitions: &Partitions, version: i16) -> Bytes {
        let topic = |(id, indexes): (&uuid::Uuid, &std::collections::BTreeSet<i32>)| {
            let name = self.topic_name(id)?;
            Some(consumer_protocol_assignment::TopicPartition {
                topic: Text::copied(name),
                partitions: indexes.iter().copied().collect(),
            })
        };
        let assignment = ConsumerProtocolAssignment {
            assigned_partitions: partitions.iter().filter_map(topic).collect(),
            user_data: None,
        };
        let mut out = Writer::new();
        out.i16(version);
        match assignment.encode(&mut out, version) {
            Ok(()) => out.finish().to_bytes(),
            // Topic names are short and there are fewer than 2^31 of them, so this does not happen.
            Err(_) => Bytes::new(),
        }
    }
}

impl ConsumerMember {
    /// Sets the deadline by which the member has to join again.
    fn await_join(&mut self, now: Now) {
        let limit = self.rebalance_limit(now);
        self.join_deadline.get_or_insert(limit);
    }
}

/// Decodes a classic member's metadata or assignment. Of a newer version, only the known fields are read.
fn decode<T: Message>(bytes: &Bytes) -> Option<(T, i16)> {
    let mut reader = Reader::new(bytes.clone());
    let version = reader.i16().ok()?.min(*T::VERSIONS.end());
    Some((T::decode(&mut reader, version).ok()?, version))
}

/// Bytes kept in memory of a classic member's protocols.
fn told_bytes(classic: &ClassicSide) -> usize {
    classic.protocols.iter().map(|protocol| protocol.name.len() + protocol.metadata.len()).sum()
}

/// The version in which the member's assignment is encoded.
fn subscription_version(classic: &ClassicSide) -> i16 {
    let told = classic.protocols.first().map(|protocol| &protocol.metadata);
    told.and_then(decode::<ConsumerProtocolSubscription>).map_or(0, |(_, version)| version)
}

/// Partitions by topic id. Partitions of deleted topics are left out.
fn partitions_of<'a>(
    of: impl Iterator<Item = (&'a Text, &'a Vec<i32>)>,
    topics: &dyn TopicSource,
) -> Partitions {
    let mut partitions = Partitions::new();
    for (name, indexes) in of {
        let Some((id, _)) = topics.shape(name) else { continue };
        partitions.entry(id).or_default().extend(indexes);
    }
    partitions
}

#[cfg(test)]
mod tests {
    use wire::messages::consumer_protocol_subscription;

    use super::*;

    #[test]
    fn a_subscription_of_a_newer_version_is_read_as_far_as_it_is_known() {
        let told = ConsumerProtocolSubscription {
            topics: vec![Text::from_static("t")],
            owned_partitions: vec![consumer_protocol_subscription::TopicPartition {
                topic: Text::from_static("t"),
                partitions: vec![1],
            }],
            ..ConsumerProtocolSubscription::default()
        };
        let mut out = Writer::new();
        out.i16(9);
        told.encode(&mut out, 3).unwrap();
        out.i32(77);
        let (read, version) = decode::<ConsumerProtocolSubscription>(&out.finish().to_bytes()).unwrap();
        assert_eq!((read, version), (told, 3));
        assert!(decode::<ConsumerProtocolSubscription>(&Bytes::from_static(b"\0")).is_none());
        assert!(decode::<ConsumerProtocolSubscription>(&Bytes::from_static(b"\xff\xff")).is_none());
    }
}
