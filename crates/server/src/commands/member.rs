//! One member of a consumer group, by the classic protocol: join, sync, heartbeat, commit, leave.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use client::{KafkaError, SessionError, check};
use wire::messages::join_group_request::JoinGroupRequestProtocol;
use wire::messages::leave_group_request::MemberIdentity;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::sync_group_request::SyncGroupRequestAssignment;
use wire::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest, SyncGroupRequest,
    consumer_protocol_assignment,
};
use wire::{Bytes, DecodeError, ErrorCode, Message, Reader, Text, Writer};

use super::assignor;
use super::cluster::Cluster;
use super::peer::ClientError;

const PROTOCOL_TYPE: &str = "consumer";
const ASSIGNOR: &str = "range";
/// Kafka's defaults: `session.timeout.ms` and `heartbeat.interval.ms`. The rebalance time-out is longer than the
/// session's.
const SESSION_TIMEOUT_MS: i32 = 45_000;
const REBALANCE_TIMEOUT_MS: i32 = 60_000;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// If a group does not settle within this time, another join will not help.
const JOIN_FOR: Duration = Duration::from_secs(180);
const JOIN_PAUSE: Duration = Duration::from_millis(20);
/// Version of the messages inside JoinGroup and SyncGroup. Every client reads version 0, and version 1 adds fields that
/// are not used here.
const EMBEDDED_VERSION: i16 = 0;

/// A member that has joined a group.
#[derive(Debug)]
pub struct Member {
    group: String,
    topics: BTreeSet<String>,
    id: Text,
    generation: i32,
    /// What the leader shared out: how many partitions the topics of all members have.
    shared: Option<BTreeMap<String, usize>>,
    heartbeat_at: Instant,
    /// The partitions that the member owns in this generation, by topic.
    pub partitions: BTreeMap<String, Vec<i32>>,
}

/// Offsets by topic and partition.
pub type Positions = BTreeMap<String, BTreeMap<i32, i64>>;

/// The state of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Good,
    /// The group rebalances: commit, then join again.
    Rebalance,
    /// The group went on without this member. Join again; other members own the uncommitted records.
    Lost,
}

impl Member {
    /// Joins `group` to read `topics`.
    pub fn join(cluster: &mut Cluster, group: &str, topics: BTreeSet<String>) -> Result<Member, ClientError> {
        let mut member = Member {
            group: group.into(),
            topics: BTreeSet::new(),
            id: Text::EMPTY,
            generation: -1,
            shared: None,
            heartbeat_at: Instant::now(),
            partitions: BTreeMap::new(),
        };
        member.rejoin(cluster, topics)?;
        Ok(member)
    }

    /// Whether the group has to share out anew: this member reads other `topics` now, or, as Kafka's consumers do it, the leader
    /// sees another number of partitions.
    pub fn is_outdated(&self, cluster: &mut Cluster, topics: &BTreeSet<String>) -> Result<bool, ClientError> {
        if self.topics != *topics {
            return Ok(true);
        }
        let Some(shared) = &self.shared else { return Ok(false) };
        Ok(cluster.partition_counts(shared.keys())? != *shared)
    }

    /// Joins until a generation begins, to read `topics` from now on.
    pub fn rejoin(&mut self, cluster: &mut Cluster, topics: BTreeSet<String>) -> Result<(), ClientError> {
        self.topics = topics;
        let until = Instant::now() + JOIN_FOR;
        loop {
            match self.try_join(cluster) {
                Err(ClientError::Kafka(error)) if self.may_try_again(&error) && Instant::now() < until => {
                    std::thread::sleep(JOIN_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Updates the member after an error of JoinGroup or SyncGroup. Returns whether it may try again.
    fn may_try_again(&mut self, error: &KafkaError) -> bool {
        match error.known() {
            Some(
                ErrorCode::MemberIdRequired | ErrorCode::RebalanceInProgress | ErrorCode::IllegalGeneration,
            ) => true,
            Some(ErrorCode::UnknownMemberId) => {
                self.id = Text::EMPTY;
                true
            }
            _ => false,
        }
    }

    fn try_join(&mut self, cluster: &mut Cluster) -> Result<(), ClientError> {
        let subscription = ConsumerProtocolSubscription {
            topics: self.topics.iter().map(|topic| Text::copied(topic)).collect(),
            ..ConsumerProtocolSubscription::default()
        };
        let request = JoinGroupRequest {
            group_id: Text::copied(&self.group),
            session_timeout_ms: SESSION_TIMEOUT_MS,
            rebalance_timeout_ms: REBALANCE_TIMEOUT_MS,
            member_id: self.id.clone(),
            protocol_type: Text::from_static(PROTOCOL_TYPE),
            protocols: vec![JoinGroupRequestProtocol {
                name: Text::from_static(ASSIGNOR),
                metadata: embedded(&subscription)?,
            }],
            ..JoinGroupRequest::default()
        };
        let mut given = None;
        let joined = cluster.ask_coordinator(&self.group, &request, |answer| {
            if answer.error_code == ErrorCode::MemberIdRequired.code() {
                return Ok(());
            }
            check(answer.error_code, None)
        })?;
        if !joined.member_id.is_empty() {
            given = Some(joined.member_id.detached());
        }
        self.id = given.unwrap_or_else(|| self.id.clone());
        check(joined.error_code, None)?;
        self.generation = joined.generation_id;
        self.shared = None;
        let mut assignments = Vec::new();
        if joined.leader == joined.member_id {
            let members = subscriptions(&joined)?;
            let topics: BTreeSet<&String> = members.values().flatten().collect();
            let counts = cluster.partition_counts(topics.into_iter())?;
            assignments = assign(&members, &counts)?;
            self.shared = Some(counts);
        }
        let request = SyncGroupRequest {
            group_id: Text::copied(&self.group),
            generation_id: self.generation,
            member_id: self.id.clone(),
            protocol_type: Some(Text::from_static(PROTOCOL_TYPE)),
            protocol_name: Some(Text::from_static(ASSIGNOR)),
            assignments,
            ..SyncGroupRequest::default()
        };
        let synced =
            cluster.ask_coordinator(&self.group, &request, |answer| check(answer.error_code, None))?;
        self.partitions = assignment(synced.assignment).map_err(|error| {
            ClientError::of(&format!("the leader of group {}", self.group), SessionError::Garbled(error))
        })?;
        self.heartbeat_at = Instant::now() + HEARTBEAT_INTERVAL;
        Ok(())
    }

    /// Sends a heartbeat if one is due.
    pub fn heartbeat(&mut self, cluster: &mut Cluster) -> Result<Standing, ClientError> {
        if Instant::now() < self.heartbeat_at {
            return Ok(Standing::Good);
        }
        self.heartbeat_at = Instant::now() + HEARTBEAT_INTERVAL;
        let request = HeartbeatRequest {
            group_id: Text::copied(&self.group),
            generation_id: self.generation,
            member_id: self.id.clone(),
            ..HeartbeatRequest::default()
        };
        let answer = cluster.ask_coordinator(&self.group, &request, |answer| check(answer.error_code, None));
        standing(answer.map(|_| ()))
    }

    /// Commits the positions where reading continues.
    pub fn commit(&mut self, cluster: &mut Cluster, positions: &Positions) -> Result<Standing, ClientError> {
        let owner = (self.generation, self.id.clone());
        standing(commit(cluster, &self.group, owner, positions))
    }

    /// Leaves the group, so that the other members need not wait for the end of the session.
    pub fn leave(&self, cluster: &mut Cluster) -> Result<(), ClientError> {
        let identity = MemberIdentity { member_id: self.id.clone(), ..MemberIdentity::default() };
        let request = LeaveGroupRequest {
            group_id: Text::copied(&self.group),
            members: vec![identity],
            ..LeaveGroupRequest::default()
        };
        cluster.ask_coordinator(&self.group, &request, |answer| check(answer.error_code, None))?;
        Ok(())
    }
}

/// Commits offsets as a member of a generation, or without a member id for a group without members.
pub fn commit(
    cluster: &mut Cluster,
    group: &str,
    (generation, member_id): (i32, Text),
    positions: &Positions,
) -> Result<(), ClientError> {
    let partition = |(&partition_index, &committed_offset): (&i32, &i64)| OffsetCommitRequestPartition {
        partition_index,
        committed_offset,
        ..OffsetCommitRequestPartition::default()
    };
    let topic = |(name, partitions): (&String, &BTreeMap<i32, i64>)| OffsetCommitRequestTopic {
        name: Text::copied(name),
        partitions: partitions.iter().map(partition).collect(),
        ..OffsetCommitRequestTopic::default()
    };
    let request = OffsetCommitRequest {
        group_id: Text::copied(group),
        generation_id_or_member_epoch: generation,
        member_id,
        topics: positions.iter().map(topic).collect(),
        ..OffsetCommitRequest::default()
    };
    // A topic that was deleted does not come back by asking again. The other offsets are committed.
    let gone = |code: i16| code == ErrorCode::UnknownTopicOrPartition.code();
    let answer = cluster.ask_coordinator(group, &request, |answer| {
        let all = answer.topics.iter().flat_map(|topic| &topic.partitions);
        all.map(|of| of.error_code).filter(|code| !gone(*code)).try_for_each(|code| check(code, None))
    })?;
    let mut all = answer.topics.iter().flat_map(|topic| &topic.partitions);
    Ok(all.try_for_each(|partition| check(partition.error_code, None))?)
}

fn standing(result: Result<(), ClientError>) -> Result<Standing, ClientError> {
    match result {
        Ok(()) => Ok(Standing::Good),
        Err(error) => match error.code() {
            Some(ErrorCode::RebalanceInProgress) => Ok(Standing::Rebalance),
            Some(ErrorCode::IllegalGeneration | ErrorCode::UnknownMemberId) => Ok(Standing::Lost),
            // It was deleted while it was read.
            Some(ErrorCode::UnknownTopicOrPartition) => Ok(Standing::Good),
            _ => Err(error),
        },
    }
}

/// What each member reads, by its id.
fn subscriptions(joined: &JoinGroupResponse) -> Result<BTreeMap<String, BTreeSet<String>>, ClientError> {
    let mut members = BTreeMap::new();
    for member in &joined.members {
        let garbled = |error| {
            let address = format!("member {} of the group", member.member_id);
            ClientError::of(&address, SessionError::Garbled(error))
        };
        let topics = subscription(member.metadata.clone()).map_err(garbled)?;
        members.insert(member.member_id.to_string(), topics);
    }
    Ok(members)
}

/// Computes the assignment that the leader sends. A topic that does not exist yet has no partitions to assign.
fn assign(
    members: &BTreeMap<String, BTreeSet<String>>,
    counts: &BTreeMap<String, usize>,
) -> Result<Vec<SyncGroupRequestAssignment>, ClientError> {
    let count =
        |(topic, count): (&String, &usize)| (topic.clone(), i32::try_from(*count).unwrap_or(i32::MAX));
    let partitions = counts.iter().filter(|(_, count)| **count > 0).map(count).collect();
    let part = |(topic, partitions): (String, Vec<i32>)| consumer_protocol_assignment::TopicPartition {
        topic: Text::from(topic),
        partitions,
    };
    let mut assignments = Vec::new();
    for (id, own) in assignor::range(members, &partitions) {
        let message = ConsumerProtocolAssignment {
            assigned_partitions: own.into_iter().map(part).collect(),
            ..ConsumerProtocolAssignment::default()
        };
        let assignment = embedded(&message)?;
        assignments.push(SyncGroupRequestAssignment { member_id: Text::from(id), assignment });
    }
    Ok(assignments)
}

/// Encodes a message inside a message, with its version in front.
fn embedded<M: Message>(message: &M) -> Result<Bytes, ClientError> {
    let mut writer = Writer::new();
    writer.i16(EMBEDDED_VERSION);
    message.encode(&mut writer, EMBEDDED_VERSION)?;
    Ok(writer.finish().to_bytes())
}

/// Decodes a message inside a message. Another client may use a newer version, whose first fields are the same.
fn unembedded<M: Message>(bytes: Bytes) -> Result<M, DecodeError> {
    let mut reader = Reader::new(bytes);
    let version = reader.i16()?;
    M::decode(&mut reader, version.clamp(*M::VERSIONS.start(), *M::VERSIONS.end()))
}

fn subscription(bytes: Bytes) -> Result<BTreeSet<String>, DecodeError> {
    let message: ConsumerProtocolSubscription = unembedded(bytes)?;
    Ok(message.topics.iter().map(ToString::to_string).collect())
}

/// The partitions in an assignment. An empty assignment is encoded as no bytes.
pub fn assignment(bytes: Bytes) -> Result<BTreeMap<String, Vec<i32>>, DecodeError> {
    if bytes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let message: ConsumerProtocolAssignment = unembedded(bytes)?;
    let all = message.assigned_partitions.into_iter();
    Ok(all.map(|part| (part.topic.to_string(), part.partitions)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_messages_come_back() {
        let topics = vec![Text::from_static("a"), Text::from_static("b")];
        let message = ConsumerProtocolSubscription { topics, ..ConsumerProtocolSubscription::default() };
        let read = subscription(embedded(&message).unwrap()).unwrap();
        assert_eq!(read, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        let part = consumer_protocol_assignment::TopicPartition {
            topic: Text::from_static("a"),
            partitions: vec![0, 4],
        };
        let message = ConsumerProtocolAssignment { assigned_partitions: vec![part], user_data: None };
        let read = assignment(embedded(&message).unwrap()).unwrap();
        assert_eq!(read, BTreeMap::from([("a".to_owned(), vec![0, 4])]));
        assert_eq!(assignment(Bytes::new()).unwrap(), BTreeMap::new());
        assert!(assignment(Bytes::from_static(&[0, 0, 127, 0, 0, 0])).is_err());
    }
}
