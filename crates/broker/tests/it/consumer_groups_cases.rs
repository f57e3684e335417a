//! Groups of the consumer protocol (KIP-848) in rare situations that random clients seldom reach: take-overs, topics
//! that change during a heartbeat, changes of the protocol during a rebalance.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use broker::groups::consumer::{HeartbeatReply, HeartbeatRequest, Partitions, Refused, TopicSource};
use broker::groups::{
    Action, Group, GroupConfig, GroupError, JoinReply, JoinRequest, LeaveMember, Now, Protocol, ReplyToken,
    State, SyncRequest,
};
use uuid::Uuid;
use wire::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, consumer_protocol_assignment,
    consumer_protocol_subscription,
};
use wire::{Bytes, Message, Text, Writer};

const TOKEN: ReplyToken = ReplyToken(1);

/// One topic, `t`, which may grow right after it was looked up.
struct Topic {
    version: Cell<u64>,
    partitions: Cell<i32>,
    grows_to: RefCell<Option<i32>>,
}

impl Topic {
    fn of(partitions: i32) -> Topic {
        Topic { version: Cell::new(1), partitions: Cell::new(partitions), grows_to: RefCell::default() }
    }

    fn grow(&self, partitions: i32) {
        self.partitions.set(partitions);
        self.version.set(self.version.get() + 1);
    }
}

impl TopicSource for Topic {
    fn version(&self) -> u64 {
        self.version.get()
    }
    fn shape(&self, name: &str) -> Option<(Uuid, i32)> {
        let partitions = self.partitions.get();
        if let Some(partitions) = self.grows_to.take() {
            self.grow(partitions);
        }
        (name == "t").then_some((Uuid::from_u128(1), partitions))
    }
    fn names(&self) -> Vec<String> {
        vec!["t".to_owned()]
    }
}

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall_ms: 0 }
}

fn new_group() -> Group {
    let config = GroupConfig { initial_rebalance_delay_ms: 0, ..GroupConfig::default() };
    Group::new("g", Arc::new(config), now(0))
}

fn request(id: &str, epoch: i32) -> HeartbeatRequest {
    let joins = epoch == 0;
    HeartbeatRequest {
        version: 1,
        member_id: id.to_owned(),
        epoch,
        rebalance_timeout_ms: if joins { 60_000 } else { -1 },
        names: joins.then(|| vec!["t".to_owned()]),
        owned: joins.then(Partitions::new),
        session_timeout_ms: 45_000,
        ..HeartbeatRequest::default()
    }
}

fn beat(group: &mut Group, topic: &Topic, request: HeartbeatRequest) -> Result<HeartbeatReply, Refused> {
    let mut actions = group.consumer_heartbeat(now(1), request, topic, TOKEN);
    group.unwritten().unwrap();
    group.written();
    match actions.pop() {
        Some(Action::Heartbeat { reply, .. }) => reply,
        other => panic!("{other:?}"),
    }
}

/// Sends heartbeats of a member that gives up the requested partitions, until nothing changes any more.
fn follow(group: &mut Group, topic: &Topic, id: &str, instance: Option<&str>) -> Partitions {
    for _ in 0..5 {
        let member = group.consumer().unwrap().member(id).unwrap();
        let request = HeartbeatRequest {
            instance_id: instance.map(str::to_owned),
            owned: Some(member.assigned.clone()),
            ..request(id, member.epoch)
        };
        beat(group, topic, request).unwrap();
    }
    group.consumer().unwrap().member(id).unwrap().assigned.clone()
}

fn encode(message: &impl Message) -> Bytes {
    let mut out = Writer::new();
    out.i16(1);
    message.encode(&mut out, 1).unwrap();
    out.finish().to_bytes()
}

fn join(id: &str, uuid: &str, owned: &[i32]) -> JoinRequest {
    let owned = consumer_protocol_subscription::TopicPartition {
        topic: Text::from_static("t"),
        partitions: owned.to_vec(),
    };
    let subscription = ConsumerProtocolSubscription {
        topics: vec![Text::from_static("t")],
        owned_partitions: vec![owned],
        ..ConsumerProtocolSubscription::default()
    };
    JoinRequest {
        version: 3,
        member_id: id.to_owned(),
        instance_id: None,
        client_id: "c".to_owned(),
        client_host: "/h".to_owned(),
        session_timeout_ms: 45_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![Protocol { name: "cooperative-sticky".to_owned(), metadata: encode(&subscription) }],
        uuid: uuid.to_owned(),
    }
}

fn joined(actions: Vec<Action>) -> JoinReply {
    let reply = actions.into_iter().find_map(|action| match action {
        Action::Join { reply, .. } => Some(reply),
        _ => None,
    });
    reply.unwrap()
}

#[test]
fn a_member_that_takes_over_a_static_seat_leaves_nothing_behind() {
    let (topic, mut group) = (Topic::of(4), new_group());
    let of_i = |request: HeartbeatRequest| HeartbeatRequest { instance_id: Some("i".to_owned()), ..request };
    beat(&mut group, &topic, of_i(request("s", 0))).unwrap();
    beat(&mut group, &topic, request("x", 0)).unwrap();
    follow(&mut group, &topic, "s", Some("i"));
    assert_eq!(follow(&mut group, &topic, "x", None).values().next().unwrap().len(), 2);
    beat(&mut group, &topic, of_i(request("s", -2))).unwrap();
    // The other member comes back as the one that left. Its own partitions become free again.
    beat(&mut group, &topic, of_i(request("x", 0))).unwrap();
    assert_eq!(group.consumer().unwrap().members().count(), 1);
    topic.grow(5);
    assert_eq!(
        follow(&mut group, &topic, "x", None),
        Partitions::from([(Uuid::from_u128(1), (0..5).collect())])
    );
}

#[test]
fn a_topic_that_grows_during_a_heartbeat_is_found_by_the_next() {
    let (topic, mut group) = (Topic::of(1), new_group());
    topic.grows_to.replace(Some(3));
    beat(&mut group, &topic, request("a", 0)).unwrap();
    assert_eq!(follow(&mut group, &topic, "a", None).values().next().unwrap().len(), 3);
}

#[test]
fn a_classic_member_keeps_what_it_did_not_give_up_when_the_protocol_changes_during_a_rebalance() {
    let (topic, mut group) = (Topic::of(2), new_group());
    let reply = joined(group.join(now(1), join("", "u1", &[]), TOKEN));
    let (id, generation) = (reply.member_id, reply.result.unwrap().generation);
    let assigned = consumer_protocol_assignment::TopicPartition {
        topic: Text::from_static("t"),
        partitions: vec![0, 1],
    };
    let assignment = ConsumerProtocolAssignment {
        assigned_partitions: vec![assigned],
        ..ConsumerProtocolAssignment::default()
    };
    let sync = SyncRequest {
        member_id: id.clone(),
        instance_id: None,
        generation,
        protocol_type: None,
        protocol_name: None,
        assignments: vec![(id.clone(), encode(&assignment))],
    };
    assert!(matches!(group.sync(now(1), sync, TOKEN)[..], [Action::Sync { reply: Ok(_), .. }]));
    assert_eq!(group.state(), State::Stable);
    joined(group.join(now(1), join(&id, "u2", &[0, 1]), TOKEN)).result.unwrap();
    assert_eq!(group.state(), State::CompletingRebalance);
    let reply = beat(&mut group, &topic, request("new", 0)).unwrap();
    assert_eq!(reply.assignment, Some(Partitions::new()));
}

#[test]
fn all_who_are_named_leave_though_the_group_changes_its_protocol_by_it() {
    let (topic, mut group) = (Topic::of(4), new_group());
    beat(&mut group, &topic, request("k", 0)).unwrap();
    let ids = ["u1", "u2"]
        .map(|uuid| joined(group.consumer_join(now(1), join("", uuid, &[]), &topic, TOKEN)).member_id);
    let leaving = ["k", &ids[0]].map(|id| LeaveMember { member_id: id.to_owned(), instance_id: None });
    assert_eq!(group.consumer_classic_leave(now(1), &leaving).members, [Ok(()), Ok(())]);
    assert!(group.consumer().is_none());
    assert_eq!(group.describe().members.len(), 1);
}

#[test]
fn a_group_that_was_deleted_writes_nothing_more() {
    let (topic, mut group) = (Topic::of(1), new_group());
    beat(&mut group, &topic, request("a", 0)).unwrap();
    beat(&mut group, &topic, request("a", -1)).unwrap();
    assert_eq!(group.check_delete(), Ok(Vec::new()));
    group.delete();
    let reply = joined(group.consumer_join(now(1), join("", "u", &[]), &topic, TOKEN));
    assert_eq!(reply.result, Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(group.unwritten(), Ok(Vec::new()), "its name may be another group's by now");
}

#[test]
fn a_member_cannot_bring_more_than_a_record_holds() {
    let (topic, mut group) = (Topic::of(1), new_group());
    beat(&mut group, &topic, request("k", 0)).unwrap();
    let mut large = join("", "u", &[]);
    large.protocols.push(Protocol { name: "other".to_owned(), metadata: Bytes::from(vec![0; 2 << 20]) });
    let reply = joined(group.consumer_join(now(1), large, &topic, TOKEN));
    assert_eq!(reply.result, Err(GroupError::UnknownServer));
    let many = HeartbeatRequest { names: Some(vec!["x".repeat(2 << 20)]), ..request("a", 0) };
    assert_eq!(many.validate().unwrap_err().error, GroupError::InvalidRequest);
}
