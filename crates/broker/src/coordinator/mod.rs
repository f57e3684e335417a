//! The group coordinator around the pure logic of [`crate::groups`]: locks, waiting requests, timers, and the records
//! in `__consumer_offsets`.
//!
//! One lock per group. Records are put into the log's queue under it, so that the order in the log is the order in the
//! group; what follows when they are durable runs as a task of its own, never on the writer's thread.

mod committed_topics;
mod consumer;
mod load;
mod offsets;
mod rewrite;
mod transactions;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use model::Offset;
use parking_lot::Mutex;
use storage::{AppendError, Clock, Completion, Durability, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use self::committed_topics::{CommittedTopics, OfGroup};
pub use self::consumer::Asking;
use self::consumer::Settling;
use self::offsets::InFlight;
pub use self::offsets::Transactional;
pub use self::transactions::TransactionCoordinator;
use crate::groups::consumer::{HeartbeatReply, Refused};
use crate::groups::{
    Action, Group, GroupConfig, GroupError, GroupSnapshot, JoinReply, Now, OffsetKey, PersistId, ReplyToken,
    SyncRequest, Synced, encode_group, encode_group_key, encode_offset_key, partition_for,
};
use crate::internal::{InternalRecord, batch_of};
use crate::partition::{Appended, Order, Partition};
use crate::topics::{OFFSETS_TOPIC, Topics};
use crate::transactions::TransactionIndex;

enum Waiter {
    Join(oneshot::Sender<JoinReply>),
    Sync(oneshot::Sender<Result<Synced, GroupError>>),
    Heartbeat(oneshot::Sender<Result<HeartbeatReply, Refused>>),
}

struct State {
    group: Group,
    waiters: HashMap<ReplyToken, Waiter>,
    next_token: u64,
    /// When the timer that is running will look at the group.
    armed: Option<u64>,
    /// Records in the log's queue that the group's state does not show yet.
    line: Line,
    /// How many batches of a consumer group's records were begun, and how many of them ended.
    settling: Settling,
    /// The last durable record of a classic group.
    stored: Option<GroupSnapshot>,
    /// Offset commits of producers whose records are in the log's queue.
    transactional: HashMap<i64, InFlight>,
    /// The topics under which the group is in [`Coordinator::committed_topics`].
    topics: OfGroup,
}

/// One group.
pub struct Entry {
    id: String,
    state: Mutex<State>,
}

/// All groups.
pub struct Coordinator {
    /// Weak: timers do not keep the files of a broker that is gone.
    topics: Weak<Topics>,
    clock: Arc<SystemClock>,
    config: Arc<GroupConfig>,
    started: Instant,
    runtime: Handle,
    groups: Mutex<HashMap<String, Arc<Entry>>>,
    /// Groups with offsets of open transactions, by producer; some may have none any more.
    uncommitted: Mutex<HashMap<i64, Vec<Arc<Entry>>>>,
    committed_topics: CommittedTopics,
    /// Partitions of `__consumer_offsets` that could not be read: what their groups committed is not known.
    unread: Mutex<HashSet<i32>>,
    /// The partition of `__consumer_offsets` in which commits wait until it is rewritten.
    held: watch::Sender<Option<i32>>,
    /// Where that was of no use, and when it was begun.
    held_in_vain: Mutex<HashMap<i32, Instant>>,
    /// Partitions of `__consumer_offsets` whose rewriting lasts as long as something holds on to this: until the records
    /// that it supersedes are dropped.
    rewriting: Mutex<HashMap<i32, Weak<AtomicUsize>>>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("groups", &self.groups.lock().len()).finish_non_exhaustive()
    }
}

type Then = Box<dyn FnOnce(Result<(), AppendError>) + Send>;
type Land = Box<dyn FnOnce(&mut State, Option<Offset>) -> Vec<Action> + Send>;

/// Records of one group on their way to the log, in its order, and what follows when they are there. Each is told of by a
/// task of its own, so the last may be heard of first: what follows still comes in the order of the log.
#[derive(Default)]
struct Line {
    /// The number of the first.
    first: u64,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    land: Land,
    /// Once known.
    result: Option<Result<(), AppendError>>,
    /// The offset of its first record.
    position: Option<Offset>,
}

impl Line {
    /// A new last one; returns its number.
    fn enter(&mut self, land: Land) -> u64 {
        self.waiting.push_back(Waiting { land, result: None, position: None });
        self.first + self.waiting.len() as u64 - 1
    }

    fn get(&mut self, number: u64) -> Option<&mut Waiting> {
        self.waiting.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The first, once it is known what became of it.
    fn landed(&mut self) -> Option<(Land, Option<Offset>)> {
        self.waiting.front()?.result.as_ref()?;
        let Waiting { land, result, position } = self.waiting.pop_front()?;
        self.first += 1;
        Some((land, result.and_then(Result::ok).and(position)))
    }
}

/// Called when records of a group are durable.
struct RecordsDone {
    runtime: Handle,
    then: Mutex<Option<Then>>,
}

impl RecordsDone {
    fn new(
        runtime: &Handle,
        then: impl FnOnce(Result<(), AppendError>) + Send + 'static,
    ) -> Arc<RecordsDone> {
        Arc::new(RecordsDone { runtime: runtime.clone(), then: Mutex::new(Some(Box::new(then))) })
    }
}

impl Completion for RecordsDone {
    fn complete(&self, result: Result<(), AppendError>) {
        if let Some(then) = self.then.lock().take() {
            self.runtime.spawn(async move { then(result) });
        }
    }
}

impl Coordinator {
    /// A coordinator without groups; must be called inside a tokio runtime.
    pub fn new(topics: &Arc<Topics>, clock: Arc<SystemClock>, config: GroupConfig) -> Coordinator {
        Coordinator {
            topics: Arc::downgrade(topics),
            clock,
            config: Arc::new(config),
            started: Instant::now(),
            runtime: Handle::current(),
            groups: Mutex::default(),
            uncommitted: Mutex::default(),
            committed_topics: CommittedTopics::default(),
            unread: Mutex::default(),
            held: watch::Sender::new(None),
            held_in_vain: Mutex::default(),
            rewriting: Mutex::default(),
        }
    }

    fn insert(&self, id: String, group: Group) -> Arc<Entry> {
        let state = State {
            group,
            waiters: HashMap::new(),
            next_token: 0,
            armed: None,
            line: Line::default(),
            settling: Settling::default(),
            stored: None,
            transactional: HashMap::new(),
            topics: OfGroup::default(),
        };
        let entry = Arc::new(Entry { id: id.clone(), state: Mutex::new(state) });
        self.groups.lock().entry(id).or_insert(entry).clone()
    }

    /// Both clocks.
    pub fn now(&self) -> Now {
        let monotonic_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Now { monotonic_ms, wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX) }
    }

    /// Whether the broker `node` coordinates group `id`, whose records must be readable. Kafka answers NOT_COORDINATOR for every
    /// group whose records are in a lost log directory, and COORDINATOR_NOT_AVAILABLE to whoever looks for its coordinator.
    pub fn serves(&self, id: &str, node: i32) -> bool {
        self.partition_of(id)
            .is_none_or(|partition| partition.leader().node == node && self.has_read(&partition))
    }

    /// The broker that coordinates group `id`; `None` while there is none.
    pub fn served_by(&self, id: &str) -> Option<i32> {
        self.partition_of(id)
            .filter(|partition| self.has_read(partition))
            .map(|partition| partition.leader().node)
    }

    /// Whether the records of a partition of `__consumer_offsets` are known.
    fn has_read(&self, partition: &Partition) -> bool {
        partition.home().is_ok() && !self.unread.lock().contains(&partition.index)
    }

    /// The partition of `__consumer_offsets` that group `id` is in, once there is that topic.
    fn partition_of(&self, id: &str) -> Option<Arc<Partition>> {
        let topic = self.topics.upgrade()?.find(OFFSETS_TOPIC)?;
        let count = i32::try_from(topic.partitions().len()).ok()?;
        topic.partition(partition_for(id, count))
    }

    /// The group `id`.
    pub fn find(&self, id: &str) -> Option<Arc<Entry>> {
        self.groups.lock().get(id).cloned()
    }

    /// The settings of groups.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// The group `id`, new if there is none.
    pub fn find_or_create(&self, id: &str) -> Arc<Entry> {
        if let Some(entry) = self.find(id) {
            return entry;
        }
        self.insert(id.to_owned(), Group::new(id, self.config.clone(), self.now()))
    }

    /// All groups, by id.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<_> = self.groups.lock().values().cloned().collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// SyncGroup; the answer comes when the leader's assignment is durable.
    pub fn sync(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: SyncRequest,
    ) -> oneshot::Receiver<Result<Synced, GroupError>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = entry.state.lock();
        let token = state.token(Waiter::Sync(sender));
        let actions = match state.group.consumer() {
            Some(_) => state.group.consumer_sync(self.now(), &request, token),
            None => state.group.sync(self.now(), request, token),
        };
        self.carry_out(entry, &mut state, actions);
        receiver
    }

    /// Heartbeat.
    pub fn heartbeat(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), GroupError> {
        let mut state = entry.state.lock();
        let now = self.now();
        let result = match state.group.consumer() {
            Some(_) => state.group.consumer_classic_heartbeat(now, member_id, instance_id, generation),
            None => state.group.heartbeat(now, member_id, instance_id, generation),
        };
        self.arm(entry, &mut state);
        result
    }

    /// LeaveGroup: a result for each member.
    pub fn leave(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        members: &[crate::groups::LeaveMember],
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        let mut state = entry.state.lock();
        let left = match state.group.consumer() {
            Some(_) => state.group.consumer_classic_leave(self.now(), members),
            None => state.group.leave(self.now(), members)?,
        };
        self.carry_out(entry, &mut state, left.actions);
        Ok(left.members)
    }

    /// DeleteGroups, for one group.
    pub async fn delete(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), GroupError> {
        let receiver = {
            let mut state = entry.state.lock();
            let keys = state.group.delete()?;
            let (sender, receiver) = oneshot::channel();
            let records = tombstones(&state.group, &keys, true).inspect_err(|_| state.group.undelete())?;
            // Until they are durable nobody begins a group of this name: what it commits has to stand behind them.
            let (this, of) = (self.clone(), entry.clone());
            self.append_then(entry, &mut state, records, move |state, position| {
                match position {
                    Some(_) => this.forget(&of, state),
                    None => state.group.undelete(),
                }
                // A client that went away no longer waits for it.
                let _ = sender.send(position.map(|_| ()).ok_or(GroupError::CoordinatorNotAvailable));
                Vec::new()
            });
            receiver
        };
        receiver.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable))
    }

    /// Removes offsets and groups whose time has passed (KIP-211), and offsets of topics that are no more: when the topic
    /// was deleted, the log may have taken no records.
    pub fn expire(self: &Arc<Self>) {
        if let Some(topics) = self.topics.upgrade() {
            for topic in self.committed_topics.topics(|name| topics.find(name).is_none()) {
                self.forget_topic(&topic);
            }
        }
        for entry in self.all() {
            let mut state = entry.state.lock();
            let expired = state.group.expired(self.now());
            if expired.offsets.is_empty() && !expired.group {
                continue;
            }
            let Ok(records) = tombstones(&state.group, &expired.offsets, expired.group) else { continue };
            let (this, gone, of) = (self.clone(), expired.offsets, entry.clone());
            self.append_then(&entry, &mut state, records, move |state, position| {
                if let Some(position) = position {
                    state.group.remove_offsets(&gone, position.0);
                    if expired.group && state.group.retire_if_unused() {
                        this.forget(&of, state);
                    }
                }
                Vec::new()
            });
        }
    }

    fn forget(&self, entry: &Arc<Entry>, state: &mut State) {
        self.committed_topics.remove(entry, &mut state.topics);
        let mut groups = self.groups.lock();
        if groups.get(&entry.id).is_some_and(|other| Arc::ptr_eq(other, entry)) {
            groups.remove(&entry.id);
        }
    }

    /// Answers who waits, and appends what must be durable.
    fn deliver(self: &Arc<Self>, entry: &Arc<Entry>, state: &mut State, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Join { token, reply } => {
                    if let Some(Waiter::Join(sender)) = state.waiters.remove(&token) {
                        // A member that went away is found by its session time-out.
                        let _ = sender.send(reply);
                    }
                }
                Action::Sync { token, reply } => {
                    if let Some(Waiter::Sync(sender)) = state.waiters.remove(&token) {
                        // As above.
                        let _ = sender.send(reply);
                    }
                }
                Action::Heartbeat { token, reply } => {
                    if let Some(Waiter::Heartbeat(sender)) = state.waiters.remove(&token) {
                        // As above.
                        let _ = sender.send(reply);
                    }
                }
                Action::Persist { id, snapshot } => self.persist(entry, state, id, snapshot),
            }
        }
    }

    fn persist(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: &mut State,
        id: PersistId,
        snapshot: GroupSnapshot,
    ) {
        let record = encode_group_key(&entry.id).and_then(|key| Ok((key, Some(encode_group(&snapshot)?))));
        let (records, failure) = match record {
            Ok(record) => (vec![record], GroupError::CoordinatorNotAvailable),
            Err(error) => {
                tracing::error!(group = entry.id, %error, "a group's record cannot be written");
                (Vec::new(), GroupError::UnknownServer)
            }
        };
        let this = self.clone();
        self.append_then(entry, state, records, move |state, position| {
            if position.is_some() && state.group.consumer().is_none() {
                state.stored = Some(snapshot);
            }
            state.group.persisted(this.now(), id, position.map(|_| ()).ok_or(failure))
        });
    }

    /// Appends `records` to the group's partition and, when they are durable (or never will be: `None`), calls `then`
    /// with the offset of the first, under the group's lock, and carries out what it returns.
    fn append_then(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: &mut State,
        records: Vec<InternalRecord>,
        then: impl FnOnce(&mut State, Option<Offset>) -> Vec<Action> + Send + 'static,
    ) {
        self.append_transactional(entry, state, records, None, then);
    }

    fn append_transactional(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: &mut State,
        records: Vec<InternalRecord>,
        transactional: Option<Transactional>,
        then: impl FnOnce(&mut State, Option<Offset>) -> Vec<Action> + Send + 'static,
    ) {
        let number = state.line.enter(Box::new(then));
        let (this, of) = (self.clone(), entry.clone());
        let finish = move |result: Result<(), AppendError>| {
            let mut state = of.state.lock();
            if let Some(waiting) = state.line.get(number) {
                waiting.result = Some(result);
            }
            while let Some((land, position)) = state.line.landed() {
                let actions = land(&mut state, position);
                // What failed is not tried again at once: the next operation does.
                this.deliver(&of, &mut state, actions);
            }
            this.arm(&of, &mut state);
        };
        let done = RecordsDone::new(&self.runtime, finish);
        let appended = self.partition_of(&entry.id).filter(|_| !records.is_empty()).and_then(|partition| {
            append_records(&partition, &records, transactional, done.clone(), self.clock.now_ms())
        });
        match appended {
            Some(offset) => {
                if let Some(waiting) = state.line.get(number) {
                    waiting.position = Some(offset);
                }
            }
            None => done.complete(Err(AppendError::Closed)),
        }
    }

    /// Makes sure that a timer looks at the group in time.
    fn arm(self: &Arc<Self>, entry: &Arc<Entry>, state: &mut State) {
        let Some(deadline) = state.group.next_deadline() else { return };
        if state.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        state.armed = Some(deadline);
        let (this, entry) = (self.clone(), Arc::downgrade(entry));
        let wait = Duration::from_millis(deadline.saturating_sub(self.now().monotonic_ms));
        self.runtime.spawn(async move {
            tokio::time::sleep(wait).await;
            let Some(entry) = entry.upgrade() else { return };
            let mut state = entry.state.lock();
            // A timer that an earlier one overtook has nothing to do.
            if state.armed == Some(deadline) {
                state.armed = None;
                let actions = state.group.tick(this.now());
                this.carry_out(&entry, &mut state, actions);
            }
        });
    }
}

impl Entry {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Looks at the group.
    pub fn with<T>(&self, look: impl FnOnce(&Group) -> T) -> T {
        look(&self.state.lock().group)
    }
}

impl State {
    fn token(&mut self, waiter: Waiter) -> ReplyToken {
        self.next_token += 1;
        let token = ReplyToken(self.next_token);
        self.waiters.insert(token, waiter);
        token
    }
}

fn tombstones(group: &Group, keys: &[OffsetKey], whole: bool) -> Result<Vec<InternalRecord>, GroupError> {
    let mut records = Vec::with_capacity(keys.len() + 1);
    for key in keys {
        records.push((encode_offset_key(group.id(), key).map_err(|_| GroupError::UnknownServer)?, None));
    }
    if whole {
        let keys = group.record_keys().map_err(|_| GroupError::UnknownServer)?;
        records.extend(keys.into_iter().map(|key| (key, None)));
    }
    Ok(records)
}

/// Puts records into the log's queue as one batch; the offset of the first, or `None` when the log takes none.
fn append_records(
    partition: &Partition,
    records: &[InternalRecord],
    transactional: Option<Transactional>,
    done: Arc<dyn Completion>,
    now_ms: i64,
) -> Option<Offset> {
    let home = partition.home().ok()?;
    let batch = batch_of(records, now_ms, transactional.map(|of| (of.producer_id, of.epoch)));
    let admit = |bytes: usize| {
        let admitted = home.log.log.admit(bytes);
        admitted.map_err(|error| tracing::warn!(%error, "a group's records cannot be written")).ok()
    };
    let admission = admit(batch.bytes.len())?;
    let mut order = Order::plain(admission, Durability::Synced, Some(done), now_ms);
    if let Some(of) = transactional {
        order.index_room = Some(admit(TransactionIndex::RECORD_BYTES)?);
        order.check = of.check;
    }
    match partition.append(home, batch, order) {
        Ok(Appended::New { base_offset }) => Some(base_offset),
        Ok(Appended::Duplicate { .. }) => unreachable!("a batch without a sequence is always new"),
        Err(error) => {
            // Its transaction ended, or its producer was fenced, since it was checked.
            tracing::debug!(%error, "an offset commit of a transaction came too late");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_comes_in_the_order_of_the_log_whichever_is_heard_of_first() {
        let mut line = Line::default();
        let numbers: Vec<u64> = (0..3).map(|_| line.enter(Box::new(|_, _| Vec::new()))).collect();
        let hear = |line: &mut Line, number: usize, result: Result<(), AppendError>| {
            let waiting = line.get(numbers[number]).expect("it waits");
            waiting.position = Some(Offset(10 + number as i64));
            waiting.result = Some(result);
            let mut landed = Vec::new();
            while let Some((_, position)) = line.landed() {
                landed.push(position.map(|offset| offset.0));
            }
            landed
        };
        assert!(hear(&mut line, 2, Ok(())).is_empty());
        assert_eq!(hear(&mut line, 0, Ok(())), [Some(10)]);
        assert_eq!(hear(&mut line, 1, Err(AppendError::Closed)), [None, Some(12)]);
        assert!(line.waiting.is_empty() && line.get(numbers[1]).is_none());
        assert_eq!(line.enter(Box::new(|_, _| Vec::new())), 3);
    }
}
