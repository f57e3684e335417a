//! Runs one script against one group and records the outcome.
//!
//! All durable data goes through the real codec into a map that represents the compacted topic. `restart` rebuilds the
//! group from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::groups::{
    Action, CommitRequest, CommittedOffset, Group, GroupConfig, GroupError, GroupRecord, GroupSnapshot, Held,
    JoinRequest, JoinedMember, LeaveMember, Now, OffsetCommit, OffsetKey, Protocol, Replies, ReplyToken,
    SyncRequest, decode_record, encode_group_key, encode_offset, encode_offset_key, subscribed_topics,
};
use bytes::{BufMut, Bytes, BytesMut};

const GROUP: &str = "g";

/// Runs a script. Returns it with the actual `->` lines.
pub fn run(script: &str) -> String {
    let mut runner = Runner::new();
    let mut out = String::new();
    for line in script.lines().filter(|line| !line.starts_with("->")) {
        out.push_str(line);
        out.push('\n');
        let command = line.split('#').next().unwrap_or_default();
        runner.execute(command);
        for said in runner.said.drain(..) {
            out.push_str("-> ");
            out.push_str(&said);
            out.push('\n');
        }
    }
    out
}

#[derive(Default, Clone)]
struct Client {
    member_id: String,
    instance_id: Option<String>,
    generation: i32,
}

struct Runner {
    config: GroupConfig,
    group: Group,
    now_ms: u64,
    /// Records become durable only when the script says so.
    durable_by_hand: bool,
    /// The log refuses records.
    refuses: bool,
    clients: BTreeMap<String, Client>,
    waiting: BTreeMap<ReplyToken, String>,
    /// The number of member ids handed out, by their prefix.
    ids_used: BTreeMap<String, u32>,
    tokens: u64,
    replies: Replies<Action>,
    /// Records that are not durable yet.
    tail: Vec<(Bytes, i64, Option<Bytes>)>,
    /// The compacted topic: position and value by key.
    log: BTreeMap<Bytes, (i64, Bytes)>,
    position: i64,
    said: Vec<String>,
    during_advance: bool,
}

/// The words of a command: plain words in order, `name=value` words by name.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.named.get(name).map(|v| v.parse().ok().unwrap_or_else(|| panic!("{name}={v} is not a number")))
    }

    fn text(&self, name: &str) -> Option<String> {
        self.named.get(name).map(|v| (*v).to_owned())
    }

    fn pairs(&self, name: &str) -> Vec<(&'a str, &'a str)> {
        let list = self.named.get(name).copied().unwrap_or_default();
        list.split(',').filter(|p| !p.is_empty()).map(|p| p.split_once(':').unwrap_or((p, ""))).collect()
    }
}

impl Runner {
    fn new() -> Self {
        let config = GroupConfig { initial_rebalance_delay_ms: 0, ..GroupConfig::default() };
        let group = Group::new(GROUP, Arc::new(config.clone()), Now { monotonic_ms: 0, wall_ms: 0 });
        Self {
            config,
            group,
            now_ms: 0,
            durable_by_hand: false,
            refuses: false,
            clients: BTreeMap::new(),
            waiting: BTreeMap::new(),
            ids_used: BTreeMap::new(),
            tokens: 0,
            replies: Replies::default(),
            tail: Vec::new(),
            log: BTreeMap::new(),
            position: 0,
            said: Vec::new(),
            during_advance: false,
        }
    }

    fn now(&self) -> Now {
        Now { monotonic_ms: self.now_ms, wall_ms: self.now_ms.try_into().unwrap() }
    }

    fn say(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.said.push(if self.during_advance { format!("@{} {what}", self.now_ms) } else { what });
    }

    fn token(&mut self, client: &str) -> ReplyToken {
        self.tokens += 1;
        self.waiting.insert(ReplyToken(self.tokens), client.to_owned());
        ReplyToken(self.tokens)
    }

    fn client(&mut self, name: &str) -> &mut Client {
        self.clients.entry(name.to_owned()).or_default()
    }

    fn execute(&mut self, line: &str) {
        let mut words = line.split_whitespace().peekable();
        if let Some(at) = words.peek().and_then(|w| w.strip_suffix("ms")).and_then(|w| w.parse().ok()) {
            words.next();
            self.advance(at);
        }
        let Some(command) = words.next() else { return };
        let (named, plain): (Vec<_>, Vec<_>) = words.partition(|w| w.contains('=') && !is_offset(w));
        let named = named.into_iter().filter_map(|w| w.split_once('=')).collect();
        let words = Words { plain, named };
        match command {
            "config" => self.configure(&words),
            "join" => self.join(&words),
            "sync" => self.sync(&words),
            "heartbeat" => self.heartbeat(&words),
            "leave" => self.leave(&words),
            "durable" => self.durable(),
            "commit" => self.commit(&words),
            "end-txn" => {
                self.position += 1;
                let (producer_id, committed) = (words.plain[0].parse().unwrap(), words.plain[1] == "commit");
                self.group.end_transaction(producer_id, committed, self.position);
            }
            "fetch" => self.fetch(&words),
            "delete-offsets" => self.delete_offsets(&words),
            "expire" => self.expire(),
            "delete-group" => self.delete_group(),
            "describe" => self.describe(),
            "restart" => self.restart(),
            other => panic!("unknown command {other}"),
        }
        if !self.durable_by_hand {
            self.durable();
        }
    }

    fn advance(&mut self, at: u64) {
        assert!(at >= self.now_ms, "time goes on");
        self.during_advance = true;
        while let Some(deadline) = self.group.next_deadline().filter(|deadline| *deadline <= at) {
            self.now_ms = self.now_ms.max(deadline);
            let actions = self.group.tick(self.now());
            self.carry_out(actions);
            let next = self.group.next_deadline();
            assert!(next.is_none_or(|next| next > deadline), "a tick does what is due");
        }
        self.now_ms = at;
        self.during_advance = false;
    }

    fn configure(&mut self, words: &Words<'_>) {
        if let Some(ms) = words.number("initial-delay") {
            self.config.initial_rebalance_delay_ms = ms;
        }
        if let Some(size) = words.number("max-size") {
            self.config.size_max = size;
        }
        if let Some(ms) = words.number("retention") {
            self.config.offsets_retention_ms = ms;
        }
        self.durable_by_hand |= words.named.get("durable") == Some(&"by-hand");
        if let Some(log) = words.named.get("log") {
            self.refuses = *log == "full";
        }
        if self.log.is_empty() && self.clients.is_empty() {
            self.group = Group::new(GROUP, Arc::new(self.config.clone()), self.now());
        }
    }

    fn join(&mut self, words: &Words<'_>) {
        let name = words.plain[0];
        let instance_id = words.text("instance");
        let client = self.client(name);
        if instance_id.is_some() {
            client.instance_id = instance_id;
        }
        let member_id = words.text("member").unwrap_or(client.member_id.clone());
        let member_id = if member_id == "-" { String::new() } else { member_id };
        let instance_id = client.instance_id.clone();
        let ids_used = self.ids_used.entry(instance_id.clone().unwrap_or(name.to_owned())).or_default();
        *ids_used += u32::from(member_id.is_empty());
        let uuid = ids_used.to_string();
        let protocols = match words.pairs("protocols") {
            none if none.is_empty() => vec![("range", "")],
            some => some,
        };
        let request = JoinRequest {
            version: words.number("v").unwrap_or(3),
            member_id,
            instance_id,
            client_id: name.to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            session_timeout_ms: words.number("session").unwrap_or(10_000),
            rebalance_timeout_ms: words.number("rebalance").unwrap_or(30_000),
            protocol_type: words.text("type").unwrap_or("consumer".to_owned()),
            protocols: protocols
                .into_iter()
                .map(|(name, metadata)| Protocol { name: name.to_owned(), metadata: to_metadata(metadata) })
                .collect(),
            uuid,
        };
        let token = self.token(name);
        let actions = self.group.join(self.now(), request, token);
        self.carry_out(actions);
    }

    fn sync(&mut self, words: &Words<'_>) {
        let name = words.plain[0];
        let client = self.client(name).clone();
        let assigned = words.pairs("assign").into_iter();
        let assignments =
            assigned.map(|(to, what)| (self.client(to).member_id.clone(), to_bytes(what))).collect();
        let request = SyncRequest {
            member_id: words.text("member").unwrap_or(client.member_id),
            instance_id: client.instance_id,
            generation: words.number("generation").unwrap_or(client.generation),
            protocol_type: words.text("type"),
            protocol_name: words.text("protocol"),
            assignments,
        };
        let token = self.token(name);
        let actions = self.group.sync(self.now(), request, token);
        self.carry_out(actions);
    }

    fn heartbeat(&mut self, words: &Words<'_>) {
        let client = self.client(words.plain[0]).clone();
        let member_id = words.text("member").unwrap_or(client.member_id);
        let generation = words.number("generation").unwrap_or(client.generation);
        let now = self.now();
        let result = self.group.heartbeat(now, &member_id, client.instance_id.as_deref(), generation);
        self.say(verdict(&result));
    }

    fn leave(&mut self, words: &Words<'_>) {
        let mut leaving: Vec<LeaveMember> = Vec::new();
        for name in &words.plain {
            let client = self.client(name).clone();
            leaving.push(LeaveMember { member_id: client.member_id, instance_id: client.instance_id });
        }
        if let Some(instance_id) = words.text("instance") {
            leaving.push(LeaveMember { member_id: String::new(), instance_id: Some(instance_id) });
        }
        match self.group.leave(self.now(), &leaving) {
            Ok(left) => {
                left.members.iter().for_each(|result| self.say(verdict(result)));
                self.carry_out(left.actions);
            }
            Err(error) => self.say(verdict(&Err(error))),
        }
    }

    fn durable(&mut self) {
        for (key, position, value) in self.tail.drain(..) {
            match value {
                Some(value) => self.log.insert(key, (position, value)),
                None => self.log.remove(&key),
            };
        }
        for action in self.replies.durable(self.position + 1) {
            self.deliver(action);
        }
    }

    fn append(&mut self, key: Bytes, value: Option<Bytes>) {
        self.position += 1;
        self.tail.push((key, self.position, value));
    }

    /// Like the coordinator: records first, then answers.
    fn carry_out(&mut self, actions: Vec<Action>) {
        let records = self.group.unwritten().unwrap();
        let refused = !records.is_empty() && self.refuses;
        if refused {
            self.say("refused by the log");
        } else {
            for (key, value) in records {
                match decode_record(&key, value.as_deref()).unwrap() {
                    GroupRecord::Group { value: Some(snapshot), .. } => self.say(show_record(&snapshot)),
                    other => panic!("{other:?}"),
                }
                self.append(key, value);
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
        if !self.durable_by_hand {
            self.durable();
        }
    }

    fn deliver(&mut self, action: Action) {
        match action {
            Action::Join { token, reply } => {
                let name = self.waiting.remove(&token).expect("answered once");
                let client = self.clients.get_mut(&name).unwrap();
                client.member_id = reply.member_id.clone();
                let said = match reply.result {
                    Err(error) => {
                        format!("join {name} {} member={}", verdict(&Err(error)), reply.member_id)
                    }
                    Ok(joined) => {
                        client.generation = joined.generation;
                        let members: Vec<_> = joined.members.iter().map(show_member).collect();
                        let skip = if joined.skip_assignment { " skip-assignment" } else { "" };
                        format!(
                            "join {name} ok member={} generation={} protocol={}/{} leader={} members={}{skip}",
                            reply.member_id,
                            joined.generation,
                            joined.protocol_type,
                            joined.protocol_name,
                            joined.leader,
                            members.join(","),
                        )
                    }
                };
                self.say(said);
            }
            Action::Sync { token, reply } => {
                let name = self.waiting.remove(&token).expect("answered once");
                let said = match reply {
                    Err(error) => verdict(&Err(error)),
                    Ok(synced) => format!(
                        "ok protocol={}/{} assignment={}",
                        synced.protocol_type,
                        synced.protocol_name,
                        from_bytes(&synced.assignment)
                    ),
                };
                self.say(format!("sync {name} {said}"));
            }
            Action::Heartbeat { .. } => unreachable!("nobody here speaks the consumer protocol"),
        }
    }

    fn commit(&mut self, words: &Words<'_>) {
        let name = words.plain[0];
        let simple = Client { generation: -1, ..Client::default() };
        let client = if name == "-" { simple } else { self.client(name).clone() };
        let offset = |word: &&str| {
            let (key, rest) = word.split_once('=')?;
            let (offset, note) =
                rest.split_once('/').map_or((rest, None), |(offset, note)| (offset, Some(note)));
            let metadata = match note {
                Some("LONG") => Some("x".repeat(4_097)),
                other => other.map(str::to_owned),
            };
            Some(OffsetCommit { key: to_key(key), offset: offset.parse().ok()?, leader_epoch: 3, metadata })
        };
        let request = CommitRequest {
            producer_id: words.number("producer"),
            member_id: words.text("member").unwrap_or(client.member_id),
            instance_id: client.instance_id,
            generation: words.number("generation").unwrap_or(client.generation),
            retention_ms: words.number("retain"),
            offsets: words.plain.iter().filter_map(offset).collect(),
        };
        let checked = match self.group.check_commit(self.now(), request) {
            Ok(checked) => checked,
            Err(error) => return self.say(verdict(&Err(error))),
        };
        for result in checked.results() {
            self.say(match result {
                Ok((key, _)) => format!("{} ok", show_key(key)),
                Err(error) => verdict(&Err(*error)),
            });
        }
        let first = self.position + 1;
        let records: Vec<_> = checked
            .accepted()
            .map(|(key, value)| (encode_offset_key(GROUP, key).unwrap(), encode_offset(value).unwrap()))
            .collect();
        for (key, value) in records {
            self.append(key, Some(value));
        }
        self.group.apply_commit(checked, first);
    }

    fn fetch(&mut self, words: &Words<'_>) {
        for word in &words.plain {
            let key = to_key(word);
            let unstable = if self.group.is_unstable(&key) { " unstable" } else { "" };
            let said = match self.group.offset(&key) {
                None => format!("{word} none{unstable}"),
                Some(CommittedOffset { offset, metadata, .. }) => {
                    format!("{word} {offset}/{metadata}{unstable}")
                }
            };
            self.say(said);
        }
    }

    fn bury_offsets(&mut self, keys: &[OffsetKey]) {
        for key in keys {
            self.append(encode_offset_key(GROUP, key).unwrap(), None);
        }
        self.group.remove_offsets(keys, self.position);
    }

    fn delete_offsets(&mut self, words: &Words<'_>) {
        let keys: Vec<_> = words.plain.iter().map(|word| to_key(word)).collect();
        match self.group.check_offset_delete(&keys) {
            Err(error) => self.say(verdict(&Err(error))),
            Ok(results) => {
                let mut gone = Vec::new();
                for (key, result) in keys.into_iter().zip(results) {
                    self.say(match result {
                        Err(error) => verdict(&Err(error)),
                        Ok(true) => format!("{} ok", show_key(&key)),
                        Ok(false) => format!("{} ok, was not there", show_key(&key)),
                    });
                    gone.extend((result == Ok(true)).then_some(key));
                }
                self.bury_offsets(&gone);
            }
        }
    }

    fn expire(&mut self) {
        let expired = self.group.expired(self.now());
        for key in &expired.offsets {
            self.say(format!("expired {}", show_key(key)));
        }
        self.bury_offsets(&expired.offsets);
        if expired.group {
            self.append(encode_group_key(GROUP).unwrap(), None);
            assert!(self.group.retire_if_unused());
            self.say("group retired");
        } else {
            self.say("group stays");
        }
    }

    fn delete_group(&mut self) {
        match self.group.check_delete() {
            Err(error) => self.say(verdict(&Err(error))),
            Ok(keys) => {
                self.group.delete();
                let keys: Vec<_> = keys.iter().map(show_key).collect();
                self.say(format!("ok, tombstones {}", keys.join(",")));
            }
        }
    }

    fn describe(&mut self) {
        let shown = self.group.describe();
        self.say(format!(
            "{} generation={} protocol={}/{}",
            shown.state,
            self.group.generation(),
            shown.protocol_type,
            shown.protocol
        ));
        for member in shown.members {
            let instance = member.instance_id.map(|id| format!(" instance={id}")).unwrap_or_default();
            self.say(format!(
                "  {}{instance} client={}{} metadata={} assignment={}",
                member.member_id,
                member.client_id,
                member.client_host,
                show_metadata(&member.metadata),
                from_bytes(&member.assignment)
            ));
        }
    }

    fn restart(&mut self) {
        self.waiting.clear();
        self.tail.clear();
        self.replies = Replies::default();
        let config = Arc::new(self.config.clone());
        let mut group = Group::new(GROUP, config.clone(), self.now());
        let records: Vec<_> = self
            .log
            .iter()
            .map(|(key, (position, value))| (*position, decode_record(key, Some(value)).unwrap()))
            .collect();
        for (_, record) in &records {
            if let GroupRecord::Group { value: Some(snapshot), .. } = record {
                group = Group::from_snapshot(GROUP, snapshot.clone(), config.clone(), self.now()).unwrap();
            }
        }
        for (position, record) in records {
            if let GroupRecord::Offset { key, value: Some(value), .. } = record {
                group.restore_offset(key, value, position, None);
            }
        }
        self.group = group;
    }
}

fn show_record(snapshot: &GroupSnapshot) -> String {
    let show = |m: &broker::groups::MemberSnapshot| {
        format!("{}:{}:{}", m.member_id, show_metadata(&m.subscription), from_bytes(&m.assignment))
    };
    let members: Vec<_> = snapshot.members.iter().map(show).collect();
    format!(
        "persist generation={} protocol={} leader={} members={}",
        snapshot.generation,
        snapshot.protocol.as_deref().unwrap_or("-"),
        snapshot.leader.as_deref().unwrap_or("-"),
        members.join(","),
    )
}

fn is_offset(word: &str) -> bool {
    word.split_once('=').is_some_and(|(key, _)| key.contains('-'))
        && !["initial-delay", "max-size"].iter().any(|name| word.starts_with(name))
}

fn to_key(word: &str) -> OffsetKey {
    let (topic, partition) = word.rsplit_once('-').unwrap();
    OffsetKey { topic: topic.into(), partition: partition.parse().unwrap() }
}

fn show_key(key: &OffsetKey) -> String {
    format!("{}-{}", key.topic, key.partition)
}

fn to_bytes(word: &str) -> Bytes {
    Bytes::copy_from_slice(word.as_bytes())
}

fn from_bytes(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `@t+u` is a consumer's subscription (version 0, no user data).
fn to_metadata(word: &str) -> Bytes {
    let Some(topics) = word.strip_prefix('@') else { return to_bytes(word) };
    let topics: Vec<_> = topics.split('+').filter(|t| !t.is_empty()).collect();
    let mut out = BytesMut::new();
    out.put_i16(0);
    out.put_i32(topics.len().try_into().unwrap());
    for topic in topics {
        out.put_i16(topic.len().try_into().unwrap());
        out.put_slice(topic.as_bytes());
    }
    out.put_i32(-1);
    out.freeze()
}

fn show_metadata(bytes: &Bytes) -> String {
    match subscribed_topics(bytes) {
        Ok(topics) => format!("@{}", topics.into_iter().collect::<Vec<_>>().join("+")),
        Err(_) => from_bytes(bytes),
    }
}

fn show_member(member: &JoinedMember) -> String {
    format!("{}:{}", member.member_id, show_metadata(&member.metadata))
}

fn verdict(result: &Result<(), GroupError>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}
