//! Groups of the consumer protocol (KIP-848) as clients see them: heartbeats and their refusals, offsets, descriptions,
//! regular expressions, migration from and to the classic protocol, and restarts.

use broker::Connection;
use wire::messages as m;
use wire::messages::consumer_group_heartbeat_request::TopicPartitions;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use wire::{ErrorCode, Message, Text, Writer};

use crate::common::{call, close, connect, create_topic, open};

fn join(member: &str, topic: &'static str) -> m::ConsumerGroupHeartbeatRequest {
    m::ConsumerGroupHeartbeatRequest {
        group_id: Text::from_static("g"),
        member_id: Text::copied(member),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec![Text::from_static(topic)]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    }
}

/// A heartbeat at `epoch`.
fn stay(member: &str, epoch: i32) -> m::ConsumerGroupHeartbeatRequest {
    m::ConsumerGroupHeartbeatRequest {
        member_epoch: epoch,
        rebalance_timeout_ms: -1,
        subscribed_topic_names: None,
        topic_partitions: None,
        ..join(member, "")
    }
}

/// The same, from a member that reports its partitions.
fn own(
    member: &str,
    epoch: i32,
    topic_id: uuid::Uuid,
    partitions: Vec<i32>,
) -> m::ConsumerGroupHeartbeatRequest {
    let owned = vec![TopicPartitions { topic_id, partitions }];
    m::ConsumerGroupHeartbeatRequest { topic_partitions: Some(owned), ..stay(member, epoch) }
}

async fn beat(
    connection: &mut Connection,
    request: &m::ConsumerGroupHeartbeatRequest,
) -> m::ConsumerGroupHeartbeatResponse {
    call(connection, 1, request).await
}

async fn refused(
    connection: &mut Connection,
    request: &m::ConsumerGroupHeartbeatRequest,
) -> (ErrorCode, String) {
    let answer = beat(connection, request).await;
    assert_ne!(answer.error_code, 0, "{answer:?}");
    (ErrorCode::from_code(answer.error_code).unwrap(), answer.error_message.unwrap().to_string())
}

/// The epoch and the partitions of an answer with an assignment.
fn assigned(answer: &m::ConsumerGroupHeartbeatResponse) -> (i32, Vec<i32>) {
    assert_eq!(answer.error_code, 0, "{answer:?}");
    let assignment = answer.assignment.as_ref().expect("there is an assignment");
    let partitions = assignment.topic_partitions.iter().flat_map(|topic| topic.partitions.clone());
    (answer.member_epoch, partitions.collect())
}

async fn topic_id(connection: &mut Connection, name: &'static str) -> uuid::Uuid {
    let topic = m::metadata_request::MetadataRequestTopic {
        name: Some(Text::from_static(name)),
        ..Default::default()
    };
    let request = m::MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let answer: m::MetadataResponse = call(connection, 12, &request).await;
    answer.topics[0].topic_id
}

async fn commit(connection: &mut Connection, member: &'static str, epoch: i32) -> i16 {
    let partition = OffsetCommitRequestPartition { committed_offset: 5, ..Default::default() };
    let topic = OffsetCommitRequestTopic {
        name: Text::from_static("t"),
        partitions: vec![partition],
        ..Default::default()
    };
    let request = m::OffsetCommitRequest {
        group_id: Text::from_static("g"),
        member_id: Text::from_static(member),
        generation_id_or_member_epoch: epoch,
        topics: vec![topic],
        ..Default::default()
    };
    let answer: m::OffsetCommitResponse = call(connection, 9, &request).await;
    answer.topics[0].partitions[0].error_code
}

/// The group's error, and the offset of the first partition.
async fn fetch(connection: &mut Connection, member: Option<&'static str>, epoch: i32) -> (i16, Option<i64>) {
    let topic = OffsetFetchRequestTopics {
        name: Text::from_static("t"),
        partition_indexes: vec![0],
        ..Default::default()
    };
    let group = OffsetFetchRequestGroup {
        group_id: Text::from_static("g"),
        member_id: member.map(Text::from_static),
        member_epoch: epoch,
        topics: Some(vec![topic]),
    };
    let request = m::OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let answer: m::OffsetFetchResponse = call(connection, 9, &request).await;
    let topics = &answer.groups[0].topics;
    (answer.groups[0].error_code, topics.first().map(|topic| topic.partitions[0].committed_offset))
}

async fn describe(connection: &mut Connection) -> m::consumer_group_describe_response::DescribedGroup {
    let request =
        m::ConsumerGroupDescribeRequest { group_ids: vec![Text::from_static("g")], ..Default::default() };
    let answer: m::ConsumerGroupDescribeResponse = call(connection, 1, &request).await;
    answer.groups.into_iter().next().unwrap()
}

async fn list(connection: &mut Connection) -> Vec<(String, String)> {
    let answer: m::ListGroupsResponse = call(connection, 5, &m::ListGroupsRequest::default()).await;
    answer.groups.iter().map(|g| (g.group_type.to_string(), g.group_state.to_string())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_share_follow_and_leave() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut c = connect(&broker);
    create_topic(&mut c, "t", 4, &[]).await;
    let id = topic_id(&mut c, "t").await;

    let first = beat(&mut c, &join("a", "t")).await;
    assert_eq!(assigned(&first), (2, vec![0, 1, 2, 3]));
    assert_eq!((first.member_id.as_deref(), first.heartbeat_interval_ms), (Some("a"), 5000));
    assert_eq!(describe(&mut c).await.group_state.as_str(), "Stable");

    // The second member gets partitions only after the first has given them up.
    assert_eq!(assigned(&beat(&mut c, &join("b", "t")).await), (3, vec![]));
    assert_eq!(describe(&mut c).await.group_state.as_str(), "Reconciling");
    let (epoch, keeps) = assigned(&beat(&mut c, &stay("a", 2)).await);
    assert_eq!((epoch, keeps.len()), (2, 2));
    assert!(beat(&mut c, &stay("b", 3)).await.assignment.is_none());
    assert!(beat(&mut c, &own("a", 2, id, vec![0, 1, 2, 3])).await.assignment.is_none());
    let given_up = beat(&mut c, &own("a", 2, id, keeps.clone())).await;
    assert_eq!((given_up.error_code, given_up.member_epoch), (0, 3));
    let (epoch, gets) = assigned(&beat(&mut c, &stay("b", 3)).await);
    assert_eq!(epoch, 3);
    let mut all = [keeps.clone(), gets].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3]);
    let group = describe(&mut c).await;
    assert_eq!((group.group_state.as_str(), group.group_epoch, group.assignment_epoch), ("Stable", 3, 3));
    assert_eq!((group.assignor_name.as_str(), group.members.len()), ("uniform", 2));
    assert_eq!(group.members[0].assignment.topic_partitions[0].topic_name.as_str(), "t");
    assert_eq!(list(&mut c).await, [("consumer".to_owned(), "Stable".to_owned())]);

    // The answer that moved the member on may have been lost. Any other epoch is fenced.
    assert_eq!(beat(&mut c, &own("a", 2, id, keeps.clone())).await.error_code, 0);
    let (error, message) = refused(&mut c, &own("a", 2, id, vec![0, 1, 2, 3])).await;
    assert_eq!(error, ErrorCode::FencedMemberEpoch);
    assert!(
        message.contains("has a smaller member epoch (2) than the one known by the group coordinator (3)")
    );
    assert_eq!(refused(&mut c, &stay("a", 4)).await.0, ErrorCode::FencedMemberEpoch);
    assert_eq!(
        refused(&mut c, &stay("x", 3)).await,
        (ErrorCode::UnknownMemberId, "Member x is not a member of group g.".to_owned())
    );

    // Only members at their current epoch may use offsets.
    assert_eq!(commit(&mut c, "a", 3).await, 0);
    assert_eq!(commit(&mut c, "a", 2).await, 0, "it had the partition then already");
    assert_eq!(commit(&mut c, "a", 1).await, ErrorCode::StaleMemberEpoch.code());
    assert_eq!(commit(&mut c, "a", 4).await, ErrorCode::StaleMemberEpoch.code());
    assert_eq!(commit(&mut c, "b", 2).await, ErrorCode::StaleMemberEpoch.code());
    assert_eq!(commit(&mut c, "x", 3).await, ErrorCode::UnknownMemberId.code());
    assert_eq!(commit(&mut c, "", -1).await, ErrorCode::UnknownMemberId.code());
    assert_eq!(fetch(&mut c, Some("a"), 3).await, (0, Some(5)));
    assert_eq!(fetch(&mut c, None, -1).await, (0, Some(5)));
    assert_eq!(fetch(&mut c, Some("a"), 2).await, (ErrorCode::StaleMemberEpoch.code(), None));
    assert_eq!(fetch(&mut c, Some("x"), 3).await, (ErrorCode::UnknownMemberId.code(), None));

    // A restart loses nothing of this.
    drop(c);
    close(broker).await;
    let broker = open(directory.path());
    let mut c = connect(&broker);
    let again = describe(&mut c).await;
    assert_eq!((again.members, again.group_epoch), (group.members, 3));
    assert_eq!(beat(&mut c, &own("a", 3, id, keeps)).await.error_code, 0);

    // The partitions of a member that leaves go to the other one with its next heartbeat. A group without members
    // allows any commit of offsets, and can be deleted.
    let left = beat(&mut c, &stay("b", -1)).await;
    assert_eq!((left.error_code, left.member_epoch), (0, -1));
    assert_eq!(assigned(&beat(&mut c, &stay("a", 3)).await), (4, vec![0, 1, 2, 3]));
    let delete = m::DeleteGroupsRequest { groups_names: vec![Text::from_static("g")] };
    let answer: m::DeleteGroupsResponse = call(&mut c, 2, &delete).await;
    assert_eq!(answer.results[0].error_code, ErrorCode::NonEmptyGroup.code());
    beat(&mut c, &stay("a", -1)).await;
    assert_eq!(commit(&mut c, "", -1).await, 0);
    assert_eq!(list(&mut c).await, [("consumer".to_owned(), "Empty".to_owned())]);
    let answer: m::DeleteGroupsResponse = call(&mut c, 2, &delete).await;
    assert_eq!(answer.results[0].error_code, 0);
    drop(c);
    close(broker).await;
    let broker = open(directory.path());
    let mut c = connect(&broker);
    assert_eq!(list(&mut c).await, []);
    assert_eq!(refused(&mut c, &stay("a", 4)).await.0, ErrorCode::GroupIdNotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_falls_silent_loses_what_it_had() {
    let directory = tempfile::tempdir().unwrap();
    let settings =
        [("group.consumer.session.timeout.ms", "200"), ("group.consumer.heartbeat.interval.ms", "50")];
    let broker = crate::common::open_with(directory.path(), &settings);
    let mut c = connect(&broker);
    create_topic(&mut c, "t", 2, &[]).await;
    assert_eq!(beat(&mut c, &join("silent", "t")).await.heartbeat_interval_ms, 50);
    assert_eq!(assigned(&beat(&mut c, &join("b", "t")).await).1, Vec::<i32>::new());
    // The same holds for a broker that was restarted in the meantime.
    drop(c);
    close(broker).await;
    let broker = crate::common::open_with(directory.path(), &settings);
    let mut c = connect(&broker);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut epoch = 3;
    loop {
        let answer = beat(&mut c, &stay("b", epoch)).await;
        assert_eq!(answer.error_code, 0, "{answer:?}");
        epoch = answer.member_epoch;
        if answer.assignment.is_some_and(|assignment| assignment.topic_partitions[0].partitions == [0, 1]) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "what was the other's comes in time");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(refused(&mut c, &stay("silent", 2)).await.0, ErrorCode::UnknownMemberId);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_member_keeps_its_seat() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut c = connect(&broker);
    create_topic(&mut c, "t", 2, &[]).await;
    let with = |instance: &'static str, request: m::ConsumerGroupHeartbeatRequest| {
        m::ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from_static(instance)), ..request }
    };
    assert_eq!(assigned(&beat(&mut c, &with("i", join("a", "t"))).await), (2, vec![0, 1]));
    let (error, message) = refused(&mut c, &with("i", join("b", "t"))).await;
    assert_eq!(error, ErrorCode::UnreleasedInstanceId);
    assert_eq!(
        message,
        "Static member b with instance id i cannot join the group because the instance id is owned by a member."
    );
    // The member leaves temporarily. No other member gets its partitions, not even after a restart. A member with
    // another id takes them over.
    assert_eq!(beat(&mut c, &with("i", stay("a", -2))).await.member_epoch, -2);
    drop(c);
    close(broker).await;
    let broker = open(directory.path());
    let mut c = connect(&broker);
    assert_eq!(assigned(&beat(&mut c, &with("j", join("c", "t"))).await), (3, vec![]));
    assert_eq!(beat(&mut c, &with("j", stay("c", 3))).await.assignment, None);
    let (epoch, partitions) = assigned(&beat(&mut c, &with("i", join("b", "t"))).await);
    assert_eq!((epoch, partitions.len()), (3, 1));
    assert_eq!(refused(&mut c, &with("i", stay("a", 2))).await.0, ErrorCode::FencedInstanceId);
    assert_eq!(refused(&mut c, &with("k", stay("a", 2))).await.0, ErrorCode::UnknownMemberId);
    assert_eq!(describe(&mut c).await.members.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_regular_expression_follows_the_topics() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut c = connect(&broker);
    create_topic(&mut c, "orders-1", 1, &[]).await;
    create_topic(&mut c, "my-orders-1", 1, &[]).await;
    let regex = |regex: &'static str| m::ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: None,
        subscribed_topic_regex: Some(Text::from_static(regex)),
        ..join("a", "")
    };
    let (error, message) = refused(&mut c, &regex("(")).await;
    assert_eq!(error, ErrorCode::InvalidRegularExpression);
    assert!(message.starts_with("SubscribedTopicRegex `(` is not a valid regular expression: "), "{message}");
    assert_eq!(list(&mut c).await, [], "what is refused leaves nothing behind");
    assert_eq!(assigned(&beat(&mut c, &regex("orders-.*")).await), (2, vec![0]));
    assert!(beat(&mut c, &stay("a", 2)).await.assignment.is_none());
    create_topic(&mut c, "orders-2", 2, &[]).await;
    let answer = beat(&mut c, &stay("a", 2)).await;
    assert_eq!((assigned(&answer).0, answer.assignment.unwrap().topic_partitions.len()), (3, 2));
    // A restarted broker finds the same assignment and does not start over.
    drop(c);
    close(broker).await;
    let broker = open(directory.path());
    let mut c = connect(&broker);
    let answer = beat(&mut c, &stay("a", 3)).await;
    assert_eq!((answer.error_code, answer.member_epoch, answer.assignment), (0, 3, None));
    let described = describe(&mut c).await;
    assert_eq!(described.members[0].subscribed_topic_regex.as_deref(), Some("orders-.*"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut c = connect(&broker);
    create_topic(&mut c, "t", 1, &[]).await;
    let cases = [
        (
            m::ConsumerGroupHeartbeatRequest { group_id: Text::EMPTY, ..join("a", "t") },
            "GroupId can't be empty.",
        ),
        (join("", "t"), "MemberId can't be empty."),
        (
            m::ConsumerGroupHeartbeatRequest { rebalance_timeout_ms: -1, ..join("a", "t") },
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            m::ConsumerGroupHeartbeatRequest { topic_partitions: None, ..join("a", "t") },
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            m::ConsumerGroupHeartbeatRequest { subscribed_topic_names: None, ..join("a", "t") },
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (stay("a", -2), "InstanceId can't be null."),
        (stay("a", -3), "MemberEpoch is invalid."),
        (
            m::ConsumerGroupHeartbeatRequest { instance_id: Some(Text::EMPTY), ..join("a", "t") },
            "InstanceId can't be empty.",
        ),
    ];
    for (request, message) in cases {
        assert_eq!(refused(&mut c, &request).await, (ErrorCode::InvalidRequest, message.to_owned()));
    }
    let assignor = Some(Text::from_static("sticky"));
    let request = m::ConsumerGroupHeartbeatRequest { server_assignor: assignor, ..join("a", "t") };
    let message = "ServerAssignor sticky is not supported. Supported assignors: uniform, range.";
    assert_eq!(refused(&mut c, &request).await, (ErrorCode::UnsupportedAssignor, message.to_owned()));
    assert_eq!(list(&mut c).await, []);
    // A valid assignor, and topics that do not exist.
    let assignor = Some(Text::from_static("range"));
    let request = m::ConsumerGroupHeartbeatRequest { server_assignor: assignor, ..join("a", "none") };
    assert_eq!(assigned(&beat(&mut c, &request).await), (2, vec![]));
    assert_eq!(describe(&mut c).await.assignor_name.as_str(), "range");
    // Each type of group is described by its own API.
    let classic = m::DescribeGroupsRequest { groups: vec![Text::from_static("g")], ..Default::default() };
    let answer: m::DescribeGroupsResponse = call(&mut c, 6, &classic).await;
    assert_eq!(answer.groups[0].error_code, ErrorCode::GroupIdNotFound.code());
    assert_eq!(answer.groups[0].error_message.as_deref(), Some("Group g is not a classic group."));
}

async fn join_classic(
    connection: &mut Connection,
    member: &str,
    topic: &'static str,
) -> m::JoinGroupResponse {
    let subscription =
        m::ConsumerProtocolSubscription { topics: vec![Text::from_static(topic)], ..Default::default() };
    let mut metadata = Writer::new();
    metadata.i16(1);
    subscription.encode(&mut metadata, 1).unwrap();
    let protocol = m::join_group_request::JoinGroupRequestProtocol {
        name: Text::from_static("range"),
        metadata: metadata.finish().to_bytes(),
    };
    let request = m::JoinGroupRequest {
        group_id: Text::from_static("g"),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        member_id: Text::copied(member),
        protocol_type: Text::from_static("consumer"),
        protocols: vec![protocol],
        ..Default::default()
    };
    call(connection, 9, &request).await
}

async fn sync_classic(connection: &mut Connection, member: &Text, generation: i32) -> m::SyncGroupResponse {
    let request = m::SyncGroupRequest {
        group_id: Text::from_static("g"),
        generation_id: generation,
        member_id: member.clone(),
        protocol_type: Some(Text::from_static("consumer")),
        protocol_name: Some(Text::from_static("range")),
        ..Default::default()
    };
    call(connection, 5, &request).await
}

async fn heartbeat_classic(connection: &mut Connection, member: &Text, generation: i32) -> i16 {
    let request = m::HeartbeatRequest {
        group_id: Text::from_static("g"),
        generation_id: generation,
        member_id: member.clone(),
        ..Default::default()
    };
    let answer: m::HeartbeatResponse = call(connection, 4, &request).await;
    answer.error_code
}

/// The partitions of the only topic in a classic assignment.
fn decode_assignment(bytes: &wire::Bytes) -> Vec<i32> {
    let mut reader = wire::Reader::new(bytes.clone());
    let version = reader.i16().unwrap();
    let assignment = m::ConsumerProtocolAssignment::decode(&mut reader, version).unwrap();
    assignment.assigned_partitions.into_iter().flat_map(|topic| topic.partitions).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_changes_its_protocol_while_it_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let broker = crate::common::open_with(directory.path(), &[("group.initial.rebalance.delay.ms", "0")]);
    let mut c = connect(&broker);
    create_topic(&mut c, "t", 2, &[]).await;
    let id = join_classic(&mut c, "", "t").await.member_id;
    let joined = join_classic(&mut c, &id, "t").await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!(sync_classic(&mut c, &id, 1).await.error_code, 0);
    assert_eq!(commit(&mut c, "", -1).await, ErrorCode::UnknownMemberId.code());

    // The first member of the new protocol joins. The classic member is told to join again, and then they share the
    // partitions.
    assert_eq!(
        assigned(&beat(&mut c, &join("new", "t")).await).1.len(),
        1,
        "the leader had assigned nothing"
    );
    assert_eq!(list(&mut c).await, [("consumer".to_owned(), "Reconciling".to_owned())]);
    assert_eq!(heartbeat_classic(&mut c, &id, 1).await, ErrorCode::RebalanceInProgress.code());
    let joined = join_classic(&mut c, &id, "t").await;
    assert_eq!((joined.error_code, joined.generation_id, joined.leader.as_str()), (0, 2, ""));
    assert_eq!(sync_classic(&mut c, &id, 1).await.error_code, ErrorCode::IllegalGeneration.code());
    let synced = sync_classic(&mut c, &id, 2).await;
    assert_eq!((synced.error_code, decode_assignment(&synced.assignment).len()), (0, 1));
    assert_eq!(heartbeat_classic(&mut c, &id, 2).await, 0);
    let described = describe(&mut c).await;
    let mut kinds: Vec<i8> = described.members.iter().map(|member| member.member_type).collect();
    kinds.sort_unstable();
    assert_eq!((kinds, described.group_state.as_str()), (vec![0, 1], "Stable"));

    // A restart keeps this state.
    drop(c);
    close(broker).await;
    let broker = crate::common::open_with(directory.path(), &[("group.initial.rebalance.delay.ms", "0")]);
    let mut c = connect(&broker);
    assert_eq!(heartbeat_classic(&mut c, &id, 2).await, 0);
    assert_eq!(beat(&mut c, &stay("new", 2)).await.error_code, 0);

    // The last member of the new protocol leaves. The group becomes a classic one and rebalances. This change is
    // durable too.
    assert_eq!(beat(&mut c, &stay("new", -1)).await.error_code, 0);
    assert_eq!(list(&mut c).await[0].0, "classic");
    assert_eq!(heartbeat_classic(&mut c, &id, 2).await, ErrorCode::RebalanceInProgress.code());
    assert_eq!(refused(&mut c, &stay("new", 2)).await.0, ErrorCode::GroupIdNotFound);
    assert_eq!(describe(&mut c).await.error_message.as_deref(), Some("Group g is not a consumer group."));
    let joined = join_classic(&mut c, &id, "t").await;
    assert_eq!((joined.error_code, joined.leader.as_str()), (0, id.as_str()));
    assert_eq!(sync_classic(&mut c, &id, joined.generation_id).await.error_code, 0);
    drop(c);
    close(broker).await;
    let broker = crate::common::open_with(directory.path(), &[("group.initial.rebalance.delay.ms", "0")]);
    let mut c = connect(&broker);
    assert_eq!(list(&mut c).await, [("classic".to_owned(), "Stable".to_owned())]);
    assert_eq!(heartbeat_classic(&mut c, &id, joined.generation_id).await, 0);
}
