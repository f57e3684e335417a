//! Groups of the consumer protocol (KIP-848) under seeded random clients of both protocols, with changing topics, lost
//! answers, refused or delayed writes, and restarts that lose what is not durable. A partition never has two owners. In
//! the end, without failures, each partition has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::groups::consumer::{
    ConsumerGroup, ConsumerRecords, ConsumerState, HeartbeatReply, HeartbeatRequest, Partitions, TopicSource,
    decode_consumer_record,
};
use broker::groups::{
    Action, Group, GroupConfig, GroupError, GroupRecord, Held, JoinReply, JoinRequest, LeaveMember, Now,
    Protocol, Replies, ReplyToken, SyncRequest, Synced, decode_record,
};
use fastrand::Rng;
use uuid::Uuid;
use wire::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, consumer_protocol_assignment,
};
use wire::{Bytes, Message, Reader, Text, Writer};

const SESSION_MS: i32 = 45_000;
const INTERVAL_MS: u64 = 5_000;
const REBALANCE_MS: i32 = 300_000;
const CLIENTS: usize = 5;

#[derive(Default)]
struct Topics {
    version: u64,
    all: BTreeMap<String, (Uuid, i32)>,
}

impl TopicSource for Topics {
    fn version(&self) -> u64 {
        self.version
    }
    fn shape(&self, name: &str) -> Option<(Uuid, i32)> {
        self.all.get(name).copied()
    }
    fn names(&self) -> Vec<String> {
        self.all.keys().cloned().collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Protocols {
    Consumer,
    Classic,
}

/// A client's view of its own state.
#[derive(Debug, Clone)]
struct Client {
    speaks: Protocols,
    instance: Option<String>,
    running: bool,
    member_id: String,
    epoch: i32,
    owned: Partitions,
    /// The partitions that the client last reported. They are reported again only after a change.
    told: Option<Partitions>,
    topics: Vec<String>,
    regex: Option<String>,
    tell_subscription: bool,
    heard_ms: u64,
}

struct World {
    seed: u64,
    rng: Rng,
    group: Group,
    config: Arc<GroupConfig>,
    topics: Topics,
    clients: Vec<Client>,
    log: Vec<(Bytes, Option<Bytes>)>,
    /// The number of durable records of the log.
    durable: usize,
    replies: Replies<Action>,
    now_ms: u64,
    next: u64,
    joins: BTreeMap<ReplyToken, JoinReply>,
    syncs: BTreeMap<ReplyToken, Result<Synced, GroupError>>,
    beats: BTreeMap<ReplyToken, Result<HeartbeatReply, GroupError>>,
    failures: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let config = Arc::new(GroupConfig { initial_rebalance_delay_ms: 0, ..GroupConfig::default() });
        let now = Now { monotonic_ms: 0, wall_ms: 0 };
        let client = |index: usize| Client {
            speaks: Protocols::Consumer,
            instance: index.is_multiple_of(2).then(|| format!("i{index}")),
            running: false,
            member_id: String::new(),
            epoch: 0,
            owned: Partitions::new(),
            told: None,
            topics: Vec::new(),
            regex: None,
            tell_subscription: true,
            heard_ms: 0,
        };
        World {
            seed,
            rng: Rng::with_seed(seed),
            group: Group::new("g", config.clone(), now),
            config,
            topics: Topics::default(),
            clients: (0..CLIENTS).map(client).collect(),
            log: Vec::new(),
            durable: 0,
            replies: Replies::default(),
            now_ms: 0,
            next: 0,
            joins: BTreeMap::new(),
            syncs: BTreeMap::new(),
            beats: BTreeMap::new(),
            failures: true,
        }
    }

    fn now(&self) -> Now {
        Now { monotonic_ms: self.now_ms, wall_ms: i64::try_from(self.now_ms).unwrap() }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.failures && self.rng.u32(..100) < percent
    }

    fn token(&mut self) -> ReplyToken {
        self.next += 1;
        ReplyToken(self.next)
    }

    /// Like the coordinator: records first, then answers.
    fn carry_out(&mut self, actions: Vec<Action>) {
        let records = self.group.unwritten().unwrap();
        let refused = !records.is_empty() && self.chance(5);
        if !refused {
            self.log.extend(records);
            self.group.written();
            self.replies.queued(self.log.len().try_into().unwrap());
        }
        for action in actions {
            if refused {
                self.deliver(action.failed(GroupError::CoordinatorNotAvailable));
            } else if let Held::Due(action) = self.replies.hold(action) {
                self.deliver(action);
            }
        }
        if !self.chance(20) {
            self.durable = self.log.len();
            for action in self.replies.durable(self.log.len().try_into().unwrap()) {
                self.deliver(action);
            }
        }
    }

    fn deliver(&mut self, action: Action) {
        match action {
            Action::Join { token, reply } => drop(self.joins.insert(token, reply)),
            Action::Sync { token, reply } => drop(self.syncs.insert(token, reply)),
            Action::Heartbeat { token, reply } => {
                drop(self.beats.insert(token, reply.map_err(|refused| refused.error)));
            }
        }
    }

    /// A crash and a reload from the log.
    fn restart(&mut self) {
        self.log.truncate(self.durable);
        self.replies = Replies::default();
        let mut records = ConsumerRecords::default();
        let mut snapshot = None;
        for (key, value) in &self.log {
            match decode_record(key, value.as_deref()).unwrap() {
                GroupRecord::Group { value, .. } => snapshot = value,
                GroupRecord::Unknown { .. } => {
                    let (group, key, value) = decode_consumer_record(key, value.as_ref()).unwrap().unwrap();
                    assert_eq!(group, "g");
                    records.take_in(key, value);
                }
                other => panic!("{other:?}"),
            }
        }
        let now = self.now();
        self.group = if records.is_a_group() {
            assert!(snapshot.is_none(), "seed {}: a group is of one kind", self.seed);
            let group = ConsumerGroup::restore("g", records, &self.topics, SESSION_MS, now);
            Group::from_consumer(group, self.config.clone(), now)
        } else {
            match snapshot {
                Some(snapshot) => Group::from_snapshot("g", snapshot, self.config.clone(), now).unwrap(),
                None => Group::new("g", self.config.clone(), now),
            }
        };
        (self.joins, self.syncs, self.beats) = Default::default();
    }

    /// The client owns these partitions from now on. No other client in the group may believe that it owns one of them.
    fn own(&mut self, index: usize, partitions: Partitions) {
        let (seed, now_ms) = (self.seed, self.now_ms);
        for (other, client) in self.clients.iter().enumerate() {
            // A client that was silent for a session has lost its partitions, and learns of it with its next request.
            let in_group = client.running && now_ms < client.heard_ms + 10_000;
            if other == index || !in_group {
                continue;
            }
            for (topic, indexes) in &partitions {
                let both = client.owned.get(topic).is_some_and(|others| !others.is_disjoint(indexes));
                assert!(
                    !both,
                    "seed {seed}: clients {index} and {other} both own {partitions:?}\n{client:?}"
                );
            }
        }
        self.clients[index].owned = partitions;
    }

    fn start(&mut self, index: usize) {
        let speaks = if self.rng.u32(..3) == 0 { Protocols::Classic } else { Protocols::Consumer };
        let mut topics: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        if self.rng.bool() {
            topics.truncate(self.rng.usize(1..3));
        }
        let regex = (speaks == Protocols::Consumer && self.rng.bool()).then(|| "(b|d).*".to_owned());
        let member_id = format!("m{index}-{}", self.token().0);
        let client = &mut self.clients[index];
        (client.speaks, client.running, client.epoch) = (speaks, true, 0);
        (client.topics, client.regex) = (topics, regex);
        client.member_id = if speaks == Protocols::Consumer { member_id } else { String::new() };
        client.owned.clear();
        client.told = None;
        client.tell_subscription = true;
        client.heard_ms = self.now_ms;
    }

    fn turn(&mut self, index: usize) {
        if !self.clients[index].running {
            return;
        }
        match self.clients[index].speaks {
            Protocols::Consumer => self.beat(index),
            Protocols::Classic => self.classic_turn(index),
        }
    }

    fn beat(&mut self, index: usize) {
        let token = self.token();
        let client = &self.clients[index];
        let joins = client.epoch == 0;
        let all = joins || client.tell_subscription;
        let owned = if joins { Partitions::new() } else { client.owned.clone() };
        let request = HeartbeatRequest {
            version: 1,
            member_id: client.member_id.clone(),
            epoch: client.epoch,
            instance_id: client.instance.clone(),
            rebalance_timeout_ms: if all { REBALANCE_MS } else { -1 },
            names: all.then(|| client.topics.clone()),
            regex: all.then(|| client.regex.clone().unwrap_or_default()),
            owned: (all || client.told.as_ref() != Some(&owned)).then(|| owned.clone()),
            session_timeout_ms: SESSION_MS,
            interval_ms: i32::try_from(INTERVAL_MS).unwrap(),
            ..HeartbeatRequest::default()
        };
        request.validate().unwrap();
        let now = self.now();
        let actions = self.group.consumer_heartbeat(now, request, &self.topics, token);
        self.carry_out(actions);
        let lost = self.chance(10);
        // A late answer counts as lost.
        let reply = self.beats.remove(&token);
        if let Some(Ok(_)) = reply {
            self.clients[index].heard_ms = self.now_ms;
        }
        let Some(reply) = reply.filter(|_| !lost) else {
            // A client without an answer repeats all its data, as real clients do.
            self.clients[index].told = None;
            self.clients[index].tell_subscription = true;
            return;
        };
        let client = &mut self.clients[index];
        match reply {
            Ok(reply) => {
                (client.epoch, client.told, client.tell_subscription) = (reply.epoch, Some(owned), false);
                if let Some(assignment) = reply.assignment {
                    self.own(index, assignment);
                }
            }
            Err(
                GroupError::FencedMemberEpoch | GroupError::UnknownMemberId | GroupError::GroupIdNotFound,
            ) => {
                client.owned.clear();
                client.epoch = 0;
            }
            Err(GroupError::FencedInstanceId) => client.running = false,
            Err(GroupError::CoordinatorNotAvailable) => {
                client.told = None;
                client.tell_subscription = true;
            }
            Err(GroupError::UnreleasedInstanceId) => {}
            Err(other) => panic!("seed {}: {other:?}", self.seed),
        }
    }

    /// A turn of an eager client: it gives up all partitions before it joins.
    fn classic_turn(&mut self, index: usize) {
        let now = self.now();
        let client = self.clients[index].clone();
        if client.epoch > 0 {
            let (id, instance) = (&client.member_id, client.instance.as_deref());
            let beat = match self.group.consumer() {
                Some(_) => self.group.consumer_classic_heartbeat(now, id, instance, client.epoch),
                None => self.group.heartbeat(now, id, instance, client.epoch),
            };
            match beat {
                Ok(()) => self.clients[index].heard_ms = self.now_ms,
                Err(error) => self.give_up(index, error),
            }
            return;
        }
        let token = self.token();
        let request = JoinRequest {
            version: 9,
            member_id: client.member_id.clone(),
            instance_id: client.instance.clone(),
            client_id: "c".to_owned(),
            client_host: "/h".to_owned(),
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: REBALANCE_MS,
            protocol_type: "consumer".to_owned(),
            protocols: vec![Protocol { name: "range".to_owned(), metadata: subscription(&client.topics) }],
            uuid: format!("u{}", token.0),
        };
        let actions = match self.group.consumer() {
            Some(_) => self.group.consumer_join(now, request, &self.topics, token),
            None => self.group.join(now, request, token),
        };
        self.carry_out(actions);
        // In a classic group the other members have to join too, which happens with time and their turns. A client
        // without an answer joins once more.
        let Some(reply) = self.joins.remove(&token) else { return };
        self.clients[index].member_id = reply.member_id;
        let joined = match reply.result {
            Ok(joined) => joined,
            Err(GroupError::MemberIdRequired) => return,
            Err(error) => return self.give_up(index, error),
        };
        self.clients[index].heard_ms = self.now_ms;
        let assignments = joined.members.iter().map(|m| (m.member_id.clone(), Bytes::new())).collect();
        let token = self.token();
        let request = SyncRequest {
            member_id: self.clients[index].member_id.clone(),
            instance_id: client.instance.clone(),
            generation: joined.generation,
            protocol_type: None,
            protocol_name: None,
            assignments,
        };
        let actions = match self.group.consumer() {
            Some(_) => self.group.consumer_sync(now, &request, token),
            None => self.group.sync(now, request, token),
        };
        self.carry_out(actions);
        let Some(reply) = self.syncs.remove(&token) else { return };
        match reply {
            Ok(synced) => {
                self.clients[index].epoch = joined.generation;
                let assigned = self.assigned(&synced.assignment);
                self.own(index, assigned);
            }
            Err(error) => self.give_up(index, error),
        }
    }

    fn give_up(&mut self, index: usize, error: GroupError) {
        let client = &mut self.clients[index];
        client.owned.clear();
        client.epoch = 0;
        match error {
            GroupError::UnknownMemberId => client.member_id.clear(),
            GroupError::FencedInstanceId => client.running = false,
            _ => {}
        }
    }

    fn assigned(&self, bytes: &Bytes) -> Partitions {
        if bytes.is_empty() {
            return Partitions::new();
        }
        let mut reader = Reader::new(bytes.clone());
        let version = reader.i16().unwrap();
        let assignment = ConsumerProtocolAssignment::decode(&mut reader, version).unwrap();
        let topic = |t: consumer_protocol_assignment::TopicPartition| {
            let (id, _) = self.topics.shape(&t.topic)?;
            Some((id, t.partitions.into_iter().collect()))
        };
        assignment.assigned_partitions.into_iter().filter_map(topic).collect()
    }

    fn stop(&mut self, index: usize) {
        let client = self.clients[index].clone();
        let now = self.now();
        self.clients[index].running = false;
        self.clients[index].owned.clear();
        // Some clients disappear without leaving.
        if client.member_id.is_empty() || self.rng.bool() {
            return;
        }
        if client.speaks == Protocols::Consumer {
            let token = self.token();
            let request = HeartbeatRequest {
                version: 1,
                member_id: client.member_id,
                epoch: if client.instance.is_some() && self.rng.bool() { -2 } else { -1 },
                instance_id: client.instance,
                rebalance_timeout_ms: -1,
                ..HeartbeatRequest::default()
            };
            let actions = self.group.consumer_heartbeat(now, request, &self.topics, token);
            self.carry_out(actions);
        } else {
            let leaving = [LeaveMember { member_id: client.member_id, instance_id: client.instance }];
            let left = match self.group.consumer() {
                Some(_) => self.group.consumer_classic_leave(now, &leaving),
                None => self.group.leave(now, &leaving).unwrap(),
            };
            self.carry_out(left.actions);
        }
    }

    fn change_topics(&mut self) {
        let name = ["a", "b", "c", "d"][self.rng.usize(..4)].to_owned();
        self.topics.version += 1;
        match self.topics.all.get_mut(&name) {
            Some(_) if self.rng.u32(..4) == 0 => drop(self.topics.all.remove(&name)),
            Some((_, partitions)) => *partitions += 1,
            None => {
                let id = Uuid::from_u128(u128::from(self.rng.u64(1..)));
                self.topics.all.insert(name, (id, self.rng.i32(1..6)));
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        if self.group.next_deadline().is_some_and(|at| at <= self.now_ms) {
            let actions = self.group.tick(self.now());
            self.carry_out(actions);
        }
    }

    fn run(&mut self) {
        for _ in 0..3 {
            self.change_topics();
        }
        for _ in 0..300 {
            let index = self.rng.usize(..CLIENTS);
            match self.rng.u32(..100) {
                0..8 if !self.clients[index].running => self.start(index),
                8..11 if self.clients[index].running => self.stop(index),
                11..14 => self.change_topics(),
                14..16 => self.restart(),
                16..17 => self.pass(60_000),
                _ => self.turn(index),
            }
            self.pass(200);
        }
        self.settle();
    }

    /// Without failures, every running client gets its share.
    fn settle(&mut self) {
        self.failures = false;
        for index in 0..CLIENTS {
            if !self.clients[index].running && self.rng.bool() {
                self.start(index);
            }
        }
        if !self.clients.iter().any(|client| client.running && client.speaks == Protocols::Consumer) {
            return;
        }
        for _ in 0..200 {
            for index in 0..CLIENTS {
                self.turn(index);
            }
            self.pass(3_000);
        }
        let seed = self.seed;
        let group = self.group.consumer().expect("a member of the consumer protocol is in the group");
        assert_eq!(group.state(), ConsumerState::Stable, "seed {seed}");
        let mut owned = BTreeSet::new();
        let mut wanted = BTreeSet::new();
        for client in self.clients.iter().filter(|client| client.running) {
            let member = group.member(&client.member_id).unwrap_or_else(|| panic!("seed {seed}: {client:?}"));
            assert_eq!(client.owned, member.assigned, "seed {seed}: {client:?}");
            owned.extend(client.owned.iter().flat_map(|(t, indexes)| indexes.iter().map(|i| (*t, *i))));
            let by_regex = ["b", "d"].into_iter().filter(|_| client.regex.is_some());
            for name in client.topics.iter().map(String::as_str).chain(by_regex) {
                let Some((id, partitions)) = self.topics.shape(name) else { continue };
                wanted.extend((0..partitions).map(|index| (id, index)));
            }
        }
        assert_eq!(owned, wanted, "seed {seed}");
        // The log agrees with the state of the group.
        let before = group.members().map(|m| (m.id.clone(), m.epoch, m.assigned.clone())).collect::<Vec<_>>();
        let epoch = group.epoch();
        self.restart();
        let group = self.group.consumer().expect("it is in the log");
        let after = group.members().map(|m| (m.id.clone(), m.epoch, m.assigned.clone())).collect::<Vec<_>>();
        assert_eq!((epoch, before), (group.epoch(), after), "seed {seed}");
    }
}

fn subscription(topics: &[String]) -> Bytes {
    let subscription = ConsumerProtocolSubscription {
        topics: topics.iter().map(|topic| Text::copied(topic)).collect(),
        ..ConsumerProtocolSubscription::default()
    };
    let mut out = Writer::new();
    out.i16(1);
    subscription.encode(&mut out, 1).unwrap();
    out.finish().to_bytes()
}

#[test]
fn a_partition_never_has_two_owners_and_in_the_end_it_has_one() {
    let seeds = std::env::var("MAINSTEM_SEEDS").ok().and_then(|range| {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    for seed in seeds.unwrap_or(0..400) {
        World::new(seed).run();
    }
}
