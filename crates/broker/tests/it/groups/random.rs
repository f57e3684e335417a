//! Random clients against one group, from a seed. First they do anything; then they follow the protocol, and the group
//! must settle.
//!
//! The test checks, in addition to the group's own checks:
//! - Every token is answered once, and none is left at the end.
//! - Two leaders never share a generation, and two members never share an assignment.
//! - The generation never goes back.
//! - An assignment that a member holds is durable.
//! - After the members have gone, the group is Empty and can be retired.
//!
//! The log becomes durable at random moments, sometimes refuses records, and loses records that are not durable at a
//! restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::groups::{
    Action, CommitRequest, Group, GroupConfig, GroupError, GroupRecord, Held, JoinRequest, Joined,
    LeaveMember, Now, OffsetCommit, OffsetKey, Protocol, Replies, ReplyToken, State, SyncRequest, Synced,
    decode_record,
};
use bytes::Bytes;
use fastrand::Rng;

const CLIENTS: usize = 5;
const GROUP: &str = "g";

/// The request that a token stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    Join,
    Sync,
}

#[derive(Debug, Default, Clone)]
struct Client {
    name: String,
    instance_id: Option<String>,
    version: i16,
    member_id: String,
    joined: Option<Joined>,
    /// Whether the client has synced in the generation that it joined.
    synced: bool,
    waits: Option<ReplyToken>,
    protocols: Vec<&'static str>,
}

struct World {
    seed: u64,
    rng: Rng,
    config: Arc<GroupConfig>,
    group: Group,
    now_ms: u64,
    clients: Vec<Client>,
    waiting: BTreeMap<ReplyToken, (usize, Asked)>,
    ids: u64,
    replies: Replies<Action>,
    /// The records, each with its offset.
    log: Vec<(i64, Bytes, Option<Bytes>)>,
    /// The offset up to which the log is durable.
    durable: i64,
    behaves: bool,
    leaders: BTreeMap<i32, String>,
    assignments: BTreeMap<(i32, Bytes), String>,
    generation: i32,
    position: i64,
}

pub fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..world.rng.usize(20..150) {
        world.step();
    }
    world.settle();
    world.end();
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let config = Arc::new(GroupConfig {
            initial_rebalance_delay_ms: [0, 0, 3_000][rng.usize(..3)],
            size_max: [usize::MAX, usize::MAX, 3][rng.usize(..3)],
            ..GroupConfig::default()
        });
        let client = |index: usize| Client {
            name: format!("c{index}"),
            instance_id: rng.bool().then(|| format!("i{index}")),
            version: [3, 5, 9][rng.usize(..3)],
            protocols: vec!["range"],
            ..Client::default()
        };
        let clients = (0..CLIENTS).map(client).collect();
        let group = Group::new(GROUP, config.clone(), Now { monotonic_ms: 0, wall_ms: 0 });
        Self {
            seed,
            rng,
            config,
            group,
            now_ms: 0,
            clients,
            waiting: BTreeMap::new(),
            ids: 0,
            replies: Replies::default(),
            log: Vec::new(),
            durable: 0,
            behaves: false,
            leaders: BTreeMap::new(),
            assignments: BTreeMap::new(),
            generation: 0,
            position: 0,
        }
    }

    fn now(&self) -> Now {
        Now { monotonic_ms: self.now_ms, wall_ms: self.now_ms.try_into().unwrap() }
    }

    fn token(&mut self, client: usize, asked: Asked) -> ReplyToken {
        self.ids += 1;
        let token = ReplyToken(self.ids);
        self.waiting.insert(token, (client, asked));
        self.clients[client].waits = Some(token);
        token
    }

    fn step(&mut self) {
        let client = self.rng.usize(..CLIENTS);
        match self.rng.u8(..100) {
            0..25 => self.join(client),
            25..45 => self.sync(client),
            45..55 => self.heartbeat(client),
            55..60 => self.leave(client),
            // The process dies and comes back without its member id.
            60..68 => self.clients[client].member_id.clear(),
            68..73 => {
                let all = [vec!["range"], vec!["range", "sticky"], vec!["sticky", "range"], vec!["sticky"]];
                self.clients[client].protocols = self.rng.choice(all).unwrap();
            }
            73..88 => self.make_durable(),
            88..96 => {
                let most = [100, 5_000, 40_000][self.rng.usize(..3)];
                let ms = self.rng.u64(..most);
                self.advance(ms);
            }
            96..98 => self.commit(client),
            _ => self.restart(),
        }
    }

    fn join(&mut self, index: usize) {
        let token = self.token(index, Asked::Join);
        self.ids += 1;
        let client = &self.clients[index];
        let metadata = Bytes::copy_from_slice(&[self.rng.u8(..2)]);
        let protocol = |name: &&str| Protocol { name: (*name).to_owned(), metadata: metadata.clone() };
        let request = JoinRequest {
            version: client.version,
            member_id: client.member_id.clone(),
            instance_id: client.instance_id.clone(),
            client_id: client.name.clone(),
            client_host: "/127.0.0.1".to_owned(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 20_000,
            protocol_type: "consumer".to_owned(),
            protocols: client.protocols.iter().map(protocol).collect(),
            uuid: self.ids.to_string(),
        };
        let actions = self.group.join(self.now(), request, token);
        self.carry_out(actions);
    }

    fn sync(&mut self, index: usize) {
        let Some(joined) = self.clients[index].joined.clone() else { return };
        let token = self.token(index, Asked::Sync);
        let leads = joined.leader == self.clients[index].member_id && !joined.skip_assignment;
        let mut assignments = Vec::new();
        for member in joined.members.iter().filter(|_| leads) {
            self.ids += 1;
            let assignment = format!("{}/{}", joined.generation, self.ids);
            assignments.push((member.member_id.clone(), Bytes::from(assignment)));
        }
        let request = SyncRequest {
            member_id: self.clients[index].member_id.clone(),
            instance_id: self.clients[index].instance_id.clone(),
            generation: joined.generation,
            protocol_type: Some(joined.protocol_type),
            protocol_name: Some(joined.protocol_name),
            assignments,
        };
        let actions = self.group.sync(self.now(), request, token);
        self.carry_out(actions);
    }

    fn heartbeat(&mut self, index: usize) {
        let Some(joined) = &self.clients[index].joined else { return };
        let generation = joined.generation;
        let now = self.now();
        let client = &mut self.clients[index];
        match self.group.heartbeat(now, &client.member_id, client.instance_id.as_deref(), generation) {
            Ok(()) => {}
            Err(GroupError::UnknownMemberId | GroupError::FencedInstanceId) => client.member_id.clear(),
            Err(_) => client.joined = None,
        }
        if client.member_id.is_empty() {
            client.joined = None;
        }
    }

    fn leave(&mut self, index: usize) {
        let client = &self.clients[index];
        let leaving =
            LeaveMember { member_id: client.member_id.clone(), instance_id: client.instance_id.clone() };
        let left = self.group.leave(self.now(), &[leaving]).unwrap();
        self.carry_out(left.actions);
        self.clients[index].member_id.clear();
        self.clients[index].joined = None;
    }

    fn commit(&mut self, index: usize) {
        let client = &self.clients[index];
        let generation = client.joined.as_ref().map_or(-1, |joined| joined.generation);
        let key = OffsetKey { topic: "t".into(), partition: 0 };
        let offset = i64::try_from(self.now_ms).unwrap();
        let request = CommitRequest {
            producer_id: None,
            member_id: client.member_id.clone(),
            instance_id: client.instance_id.clone(),
            generation,
            retention_ms: None,
            offsets: vec![OffsetCommit { key: key.clone(), offset, leader_epoch: -1, metadata: None }],
        };
        if let Ok(checked) = self.group.check_commit(self.now(), request) {
            self.position += 1;
            self.replies.queued(self.position + 1);
            self.group.apply_commit(checked, self.position);
            assert_eq!(self.group.offset(&key).map(|o| o.offset), Some(offset), "seed {}", self.seed);
        }
    }

    fn make_all_durable(&mut self) {
        self.durable = self.position;
        self.make_durable();
        self.durable = self.position + 1;
        self.replies.durable(self.durable).into_iter().for_each(|action| self.deliver(action));
    }

    /// Makes some or all of the records durable.
    fn make_durable(&mut self) {
        self.durable = self.rng.i64(self.durable..=self.position + 1);
        for action in self.replies.durable(self.durable) {
            self.deliver(action);
        }
    }

    fn advance(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while let Some(deadline) = self.group.next_deadline().filter(|deadline| *deadline <= until) {
            self.now_ms = self.now_ms.max(deadline);
            let actions = self.group.tick(self.now());
            self.carry_out(actions);
        }
        self.now_ms = until;
    }

    /// The broker restarts: waiting requests are lost, and the group is restored from the log.
    fn restart(&mut self) {
        self.waiting.clear();
        self.replies = Replies::default();
        self.log.retain(|(position, ..)| *position < self.durable);
        for client in &mut self.clients {
            client.waits = None;
        }
        self.group = match self.log.last() {
            None | Some((.., None)) => Group::new(GROUP, self.config.clone(), self.now()),
            Some((_, key, Some(value))) => {
                let Ok(GroupRecord::Group { value: Some(snapshot), .. }) = decode_record(key, Some(value))
                else {
                    panic!("seed {}: the record cannot be read", self.seed);
                };
                Group::from_snapshot(GROUP, snapshot, self.config.clone(), self.now()).unwrap()
            }
        };
        // Generations that were never durable may be used again.
        self.generation = self.group.generation();
        self.leaders.retain(|generation, _| *generation <= self.generation);
        self.assignments.retain(|(generation, _), _| *generation <= self.generation);
        if self.log.is_empty() {
            self.leaders.clear();
        }
    }

    /// Like the coordinator: records first, then answers.
    fn carry_out(&mut self, actions: Vec<Action>) {
        let records = self.group.unwritten().unwrap();
        let refused = !records.is_empty() && !self.behaves && self.rng.u8(..10) == 0;
        if !refused {
            for (key, value) in records {
                self.position += 1;
                self.log.push((self.position, key, value));
                self.replies.queued(self.position + 1);
            }
            self.group.written();
        }
        for action in actions {
            if refused {
                self.deliver(action.failed(GroupError::CoordinatorNotAvailable));
            } else if let Held::Due(action) = self.replies.hold(action) {
                self.deliver(action);
            }
        }
        assert!(self.group.generation() >= self.generation, "seed {}: the generation went back", self.seed);
        self.generation = self.group.generation();
    }

    fn deliver(&mut self, action: Action) {
        let seed = self.seed;
        match action {
            Action::Join { token, reply } => {
                let (index, asked) = self.waiting.remove(&token).expect("answered once");
                assert_eq!(asked, Asked::Join, "seed {seed}");
                if let Ok(joined) = &reply.result {
                    self.check_joined(&reply.member_id, joined);
                }
                let client = &mut self.clients[index];
                // An answer to a request that the client gave up does not reach it.
                if client.waits == Some(token) {
                    client.waits = None;
                    client.synced = false;
                    client.member_id = match reply.result {
                        Err(GroupError::UnknownMemberId | GroupError::FencedInstanceId) => String::new(),
                        _ => reply.member_id,
                    };
                    client.joined = reply.result.ok();
                }
            }
            Action::Sync { token, reply } => {
                let (index, asked) = self.waiting.remove(&token).expect("answered once");
                assert_eq!(asked, Asked::Sync, "seed {seed}");
                if let Ok(synced) = &reply {
                    self.check_synced(index, token, synced);
                }
                let client = &mut self.clients[index];
                if client.waits == Some(token) {
                    client.waits = None;
                    client.synced = reply.is_ok();
                    match reply {
                        Ok(_) => {}
                        Err(GroupError::UnknownMemberId | GroupError::FencedInstanceId) => {
                            client.member_id.clear();
                            client.joined = None;
                        }
                        Err(_) => client.joined = None,
                    }
                }
            }
            Action::Heartbeat { .. } => unreachable!("nobody here speaks the consumer protocol"),
        }
    }

    fn check_joined(&mut self, member_id: &str, joined: &Joined) {
        if joined.members.is_empty() {
            return;
        }
        assert_eq!(joined.leader, member_id, "seed {}: only the leader sees the members", self.seed);
        assert!(joined.members.iter().any(|m| m.member_id == member_id), "seed {}", self.seed);
        if !joined.skip_assignment {
            let leader = self.leaders.entry(joined.generation).or_insert_with(|| member_id.to_owned());
            assert_eq!(leader, member_id, "seed {}: two leaders in one generation", self.seed);
        }
    }

    fn check_synced(&mut self, index: usize, token: ReplyToken, synced: &Synced) {
        let assignment = String::from_utf8_lossy(&synced.assignment);
        let contains = |value: &Bytes| String::from_utf8_lossy(value).contains(assignment.as_ref());
        let mut durable = self.log.iter().filter(|(position, ..)| *position < self.durable);
        let stored = durable.any(|(_, _, value)| value.as_ref().is_some_and(contains));
        assert!(stored, "seed {}: {assignment} is not durable", self.seed);
        // A rebalance may have begun since. Then the member learns of it with its next heartbeat.
        let generation = assignment.split('/').next().and_then(|generation| generation.parse().ok());
        let current = self.group.generation();
        let is_known = generation.is_none_or(|of: i32| of <= current);
        assert!(is_known, "seed {}: {assignment} in {current}", self.seed);
        let client = &self.clients[index];
        if client.waits == Some(token) && !synced.assignment.is_empty() {
            let key = (generation.unwrap_or(current), synced.assignment.clone());
            let owner = self.assignments.entry(key).or_insert_with(|| client.name.clone());
            assert_eq!(*owner, client.name, "seed {}: two members share an assignment", self.seed);
        }
    }

    /// From now on, clients follow the protocol. The group has to become Stable with all members that fit in.
    fn settle(&mut self) {
        let seats = CLIENTS.min(self.config.size_max);
        for client in &mut self.clients {
            client.protocols = vec!["sticky", "range"];
        }
        self.behaves = true;
        for _ in 0..200 {
            for index in 0..CLIENTS {
                let client = &self.clients[index];
                if client.waits.is_some_and(|token| self.waiting.contains_key(&token)) {
                    continue;
                }
                match &client.joined {
                    None => self.join_steadily(index),
                    Some(_) if !client.synced => self.sync(index),
                    Some(_) => self.heartbeat(index),
                }
            }
            self.make_all_durable();
            if self.settled(seats) {
                return;
            }
            self.advance(1_000);
        }
        panic!("seed {}: not settled after 200 seconds: {:?}", self.seed, self.group.describe());
    }

    /// Joins with the same metadata every time.
    fn join_steadily(&mut self, index: usize) {
        let rng = std::mem::replace(&mut self.rng, Rng::with_seed(1));
        self.join(index);
        self.rng = rng;
    }

    fn settled(&self, seats: usize) -> bool {
        let synced: BTreeSet<_> =
            self.clients.iter().filter(|c| c.joined.is_some() && c.synced).map(|c| &c.member_id).collect();
        let shown = self.group.describe();
        let members: BTreeSet<_> = shown.members.iter().map(|m| &m.member_id).collect();
        shown.state == State::Stable && members.len() == seats && members == synced
    }

    /// All clients die. No request waits for ever, and nothing of the group stays.
    fn end(&mut self) {
        for _ in 0..10 {
            self.advance(600_000);
            self.make_all_durable();
        }
        assert!(self.waiting.is_empty(), "seed {}: never answered: {:?}", self.seed, self.waiting);
        assert_eq!(self.group.state(), State::Empty, "seed {}", self.seed);
        assert_eq!(self.group.next_deadline(), None, "seed {}: a timer without purpose", self.seed);
        self.now_ms += 8 * 24 * 3_600_000;
        let expired = self.group.expired(self.now());
        assert!(expired.group, "seed {}", self.seed);
        self.group.remove_offsets(&expired.offsets, self.position + 1);
        assert!(self.group.retire_if_unused(), "seed {}", self.seed);
    }
}
