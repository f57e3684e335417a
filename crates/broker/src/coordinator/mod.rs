//! The group coordinator around the pure logic of [`crate::groups`]: locks, waiting requests, timers, and the records
//! in `__consumer_offsets`.
//!
//! Each group has one lock. An operation holds the lock and
//! 1. changes the group, which yields the replies and the records to write;
//! 2. queues the records in the log, so that the order of the log is the order of the changes;
//! 3. keeps the replies until the records are durable ([`Replies`]).
//!
//! If the log refuses records (a full disk), the records stay unwritten and their replies fail. The next operation
//! writes them. If a queued record does not become durable, the log has stopped for good. Then all replies fail, and
//! the shard serves no requests until its records are read again ([`shards`]).

mod committed_topics;
mod consumer;
mod entry;
mod load;
mod markers;
mod offsets;
mod peers;
pub mod producer_ids;
mod shards;
mod transactions;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use model::{BatchHeader, Offset};
use parking_lot::Mutex;
use storage::{AppendError, Clock, Completion, Durability, ReadError, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use wire::records::RecordView;

use self::committed_topics::CommittedTopics;
pub use self::consumer::Asking;
pub use self::entry::{Entry, Settled};
use self::entry::{Reply, State, Waiter};
use self::load::LoadedPartition;
use self::offsets::Ended;
pub use self::offsets::Transactional;
pub use self::peers::{BROKER_CLIENT_ID, Peers, Remote};
pub use self::shards::Unserved;
use self::shards::{Coordinates, Shard, Shards, coordinator_of, follow, load_all, partition_of, shard_of};
pub use self::transactions::TransactionCoordinator;
use crate::groups::{
    Action, Group, GroupConfig, GroupError, Now, OffsetKey, SyncRequest, Synced, encode_offset_key,
};
use crate::internal::{InternalRecord, batch_of};
use crate::partition::sequence::SequenceError;
use crate::partition::{Appended, Order, Partition};
use crate::topics::{OFFSETS_TOPIC, Topics};
use crate::transactions::TransactionIndex;

type GroupShard = Shard<Entry>;
/// Groups by partition and producer id.
type Uncommitted = HashMap<(i32, i64), Vec<Weak<Entry>>>;

/// All groups that this broker coordinates.
pub struct Coordinator {
    shards: Shards<Entry>,
    clock: Arc<SystemClock>,
    config: Arc<GroupConfig>,
    started: Instant,
    runtime: Handle,
    /// Groups with offsets of open transactions, by partition and producer id. A listed group may have no such offsets
    /// any more.
    uncommitted: Mutex<Uncommitted>,
    /// Transactions that ended in a partition while the partition was being loaded.
    ended: Mutex<HashMap<i32, Vec<Ended>>>,
    committed_topics: CommittedTopics,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("groups", &self.shards.len()).finish_non_exhaustive()
    }
}

impl Coordinates for Coordinator {
    const TOPIC: &'static str = OFFSETS_TOPIC;
    type Entry = Entry;
    type Loaded = LoadedPartition;

    fn shards(&self) -> &Shards<Entry> {
        &self.shards
    }

    fn replay(loaded: &mut LoadedPartition, header: &BatchHeader, record: &RecordView) {
        loaded.take_in(header, record);
    }

    fn restore(self: &Arc<Self>, shard: &Arc<GroupShard>, loaded: LoadedPartition) {
        if let Some(topics) = self.shards.topics() {
            self.restore_groups(&topics, shard, loaded);
        }
    }

    fn unload(self: &Arc<Self>, entry: &Arc<Entry>) {
        let mut state = entry.state.lock();
        state.close();
        self.committed_topics.remove(entry, &mut state.topics);
    }

    fn loaded(self: &Arc<Self>, partition: i32) {
        // Without the lock: a transaction that ends in a partition which is being loaded takes the locks in the other order.
        let ended = self.ended.lock().remove(&partition).unwrap_or_default();
        for Ended { producer_id, committed, marker } in ended {
            self.end_transaction(partition, producer_id, committed, marker);
        }
    }

    fn unloaded(self: &Arc<Self>) {
        self.uncommitted.lock().retain(|_, entries| {
            entries.retain(|entry| entry.strong_count() > 0);
            !entries.is_empty()
        });
    }
}

/// The completion of a batch: runs `then` in a task once the records are durable or have failed.
struct RecordsDone<F> {
    runtime: Handle,
    then: Mutex<Option<F>>,
}

impl<F: FnOnce(Result<(), AppendError>) + Send + 'static> Completion for RecordsDone<F> {
    fn complete(&self, result: Result<(), AppendError>) {
        let then = self.then.lock().take();
        if let Some(then) = then {
            self.runtime.spawn(async move { then(result) });
        }
    }
}

impl Coordinator {
    /// Creates a coordinator of the broker `node`, without groups. Must be called inside a tokio runtime.
    pub fn new(
        topics: &Arc<Topics>,
        node: i32,
        clock: Arc<SystemClock>,
        config: Arc<GroupConfig>,
    ) -> Coordinator {
        Coordinator {
            shards: Shards::new(topics, node),
            clock,
            config,
            started: Instant::now(),
            runtime: Handle::current(),
            uncommitted: Mutex::default(),
            ended: Mutex::default(),
            committed_topics: CommittedTopics::default(),
        }
    }

    /// Restores all groups whose partition this broker leads. Blocks.
    ///
    /// # Errors
    /// [`ReadError`], if `only_log` is set and the log cannot be read.
    pub fn load(self: &Arc<Self>, only_log: bool) -> Result<(), ReadError> {
        load_all(self, only_log)
    }

    /// Loads or unloads the groups of a partition of `__consumer_offsets`, depending on whether this broker leads the
    /// partition.
    pub fn follow(self: &Arc<Self>, partition: &Arc<Partition>) {
        // The outcome is not needed here: each request calls `follow` again.
        let _ = follow(self, partition);
    }

    /// Reads the monotonic clock and the wall clock.
    pub fn now(&self) -> Now {
        let monotonic_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Now { monotonic_ms, wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX) }
    }

    /// The broker that coordinates group `id`. `None` if no broker does at present.
    pub fn served_by(&self, id: &str) -> Option<i32> {
        coordinator_of(self, id)
    }

    /// The group `id`. No group exists before `__consumer_offsets` exists.
    ///
    /// # Errors
    /// [`Unserved`] if this broker does not coordinate the group.
    pub fn find(self: &Arc<Self>, id: &str) -> Result<Option<Arc<Entry>>, Unserved> {
        Ok(shard_of(self, id)?.and_then(|shard| shard.find(id)))
    }

    /// The settings of groups.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// The group `id`. A missing group is created.
    ///
    /// # Errors
    /// [`Unserved`] if this broker does not coordinate the group, or if `__consumer_offsets` does not exist yet.
    pub fn find_or_create(self: &Arc<Self>, id: &str) -> Result<Arc<Entry>, Unserved> {
        let shard = shard_of(self, id)?.ok_or(Unserved::Unavailable)?;
        let new = || Entry::new(&shard, id, Group::new(id, self.config.clone(), self.now()));
        Ok(shard.find_or_insert(id, new))
    }

    /// Whether a load is under way. The groups of that load are not in [`Coordinator::all`] yet.
    pub fn is_loading(&self) -> bool {
        self.shards.are_loading()
    }

    /// All loaded groups, ordered by id.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        let mut all = self.shards.entries();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// SyncGroup. The answer comes when the leader's assignment is durable.
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
        // If the log refuses the records, the replies carry the error.
        let _ = self.carry_out(entry, &mut state, actions);
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

    /// LeaveGroup. Returns one result for each member once the change is durable.
    pub async fn leave(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        members: &[crate::groups::LeaveMember],
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        let (members, settled) = {
            let mut state = entry.state.lock();
            let left = match state.group.consumer() {
                Some(_) => state.group.consumer_classic_leave(self.now(), members),
                None => state.group.leave(self.now(), members)?,
            };
            let written = self.carry_out(entry, &mut state, left.actions);
            (left.members, written.map(|()| state.settled())?)
        };
        settled.wait().await.map(|()| members)
    }

    /// DeleteGroups for one group. Returns once the tombstones are durable.
    pub async fn delete(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), GroupError> {
        let settled = {
            let mut state = entry.state.lock();
            let keys = state.group.check_delete().map_err(|error| entry.refusal(error))?;
            let records = tombstones(&state.group, &keys, true)?;
            self.append(entry, &mut state, &records, None)?;
            state.group.delete();
            self.forget(entry, &mut state);
            state.settled()
        };
        settled.wait().await
    }

    /// Removes expired offsets and groups (KIP-211). Also removes offsets of deleted topics: at the time of the
    /// deletion, the log may have refused the tombstones.
    pub fn expire(self: &Arc<Self>) {
        if let Some(topics) = self.shards.topics() {
            self.forget_missing(&topics);
        }
        for entry in self.shards.entries() {
            let mut state = entry.state.lock();
            let expired = state.group.expired(self.now());
            if expired.offsets.is_empty() && !expired.group {
                continue;
            }
            let Ok(records) = tombstones(&state.group, &expired.offsets, expired.group) else { continue };
            let Ok(position) = self.append(&entry, &mut state, &records, None) else { continue };
            state.group.remove_offsets(&expired.offsets, position.0);
            if expired.group && state.group.retire_if_unused() {
                self.forget(&entry, &mut state);
            }
        }
    }

    /// Removes a group from its shard, so that a new group may take its id. The group stays listed under its topics
    /// until its tombstones are durable, because a new topic of the same name has to wait for the tombstones.
    fn forget(self: &Arc<Self>, entry: &Arc<Entry>, state: &mut State) {
        if let Some(shard) = entry.shard.upgrade() {
            shard.remove(&entry.id, entry);
        }
        let (this, entry, settled) = (self.clone(), entry.clone(), state.settled());
        self.runtime.spawn(async move {
            // If the tombstones do not become durable, the log has failed. The group stays listed, so the topic is not
            // created.
            if settled.wait().await.is_ok() {
                this.committed_topics.remove(&entry, &mut entry.state.lock().topics);
            }
        });
    }

    /// Writes the changes of an operation, and sends the replies once the records are durable. Returns whether the log
    /// accepted the records.
    fn carry_out(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: &mut State,
        actions: Vec<Action>,
    ) -> Result<(), GroupError> {
        let written = match state.group.unwritten() {
            Ok(records) if records.is_empty() => Ok(()),
            Ok(records) => self.append(entry, state, &records, None).map(|_| state.group.written()),
            Err(error) => {
                tracing::error!(group = entry.id, %error, "a group's record cannot be written");
                Err(GroupError::UnknownServer)
            }
        };
        for action in actions {
            match written {
                Ok(()) => state.reply(Reply::Member(action)),
                Err(error) => state.deliver(action.failed(error)),
            }
        }
        self.arm(entry, state);
        written
    }

    /// Queues records of the group as one batch, and returns the offset of the first record. The waiting replies are
    /// sent when the batch is durable.
    fn append(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: &mut State,
        records: &[InternalRecord],
        transactional: Option<Transactional>,
    ) -> Result<Offset, GroupError> {
        let shard = entry.shard.upgrade().ok_or(GroupError::NotCoordinator)?;
        let partition = shard.place.partition().ok_or(GroupError::NotCoordinator)?;
        // Take the batch number before queueing, because the log may complete the batch at once. The group's lock
        // delays the completion until the batch is registered below.
        let batch = state.replies.last() + 1;
        let (this, of) = (self.clone(), entry.clone());
        let done = Arc::new(RecordsDone {
            runtime: self.runtime.clone(),
            then: Mutex::new(Some(move |result| this.settle(&of, batch, result))),
        });
        let now_ms = self.clock.now_ms();
        let first = append_records(&partition, shard.place.epoch, records, transactional, done, now_ms)
            .inspect_err(|_| self.check_log(&shard, &partition))?;
        state.replies.queued(batch);
        Ok(first)
    }

    /// Fails the shard if its log has stopped.
    fn check_log(self: &Arc<Self>, shard: &Arc<GroupShard>, partition: &Partition) {
        if partition.log().is_ok_and(|log| log.stopped().is_some()) {
            self.fail(shard);
        }
    }

    /// Answers all requests that wait in the groups of a shard whose log has stopped. This runs in a task, because the
    /// caller holds the lock of a group.
    fn fail(self: &Arc<Self>, shard: &Arc<GroupShard>) {
        if self.shards.fail(shard) {
            let shard = shard.clone();
            self.runtime
                .spawn(async move { shard.all().iter().for_each(|entry| entry.state.lock().close()) });
        }
    }

    /// Handles the completion of batch `batch`: its records are durable, or never will be.
    fn settle(self: &Arc<Self>, entry: &Arc<Entry>, batch: i64, result: Result<(), AppendError>) {
        let mut state = entry.state.lock();
        if result.is_ok() {
            for reply in state.replies.durable(batch) {
                state.send(reply);
            }
            return;
        }
        state.fail(GroupError::CoordinatorNotAvailable);
        drop(state);
        if let Some(shard) = entry.shard.upgrade() {
            self.fail(&shard);
        }
    }

    /// Arms a timer for the group's next deadline, unless an earlier timer is armed.
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
            // If an earlier timer was armed since, this timer has nothing to do.
            if state.armed == Some(deadline) {
                state.armed = None;
                let actions = state.group.tick(this.now());
                let _ = this.carry_out(&entry, &mut state, actions);
            }
        });
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

/// Queues records as one batch under the leader epoch `epoch`, and returns the offset of the first record.
///
/// # Errors
/// `CoordinatorNotAvailable` if the log refuses the records; `NotCoordinator` if another broker leads the partition by
/// now.
fn append_records(
    partition: &Partition,
    epoch: i32,
    records: &[InternalRecord],
    transactional: Option<Transactional>,
    done: Arc<dyn Completion>,
    now_ms: i64,
) -> Result<Offset, GroupError> {
    let log = partition.log().map_err(|_| GroupError::NotCoordinator)?;
    let batch = batch_of(records, now_ms, transactional.map(|of| (of.producer_id, of.epoch)));
    let admit = |bytes: usize| {
        log.admit(bytes).map_err(|error| {
            tracing::warn!(%error, "a group's records cannot be written");
            GroupError::CoordinatorNotAvailable
        })
    };
    let admission = admit(batch.bytes.len())?;
    let mut order = Order::plain(admission, Durability::Synced, Some(done), now_ms);
    order.leader_epoch = Some(epoch);
    if let Some(of) = transactional {
        order.index_room = Some(admit(TransactionIndex::RECORD_BYTES)?);
        order.check = of.check;
    }
    match partition.append(&**log, batch, order) {
        Ok(Appended::New { base_offset }) => Ok(base_offset),
        Ok(Appended::Duplicate { .. }) => unreachable!("a batch without a sequence is always new"),
        Err(SequenceError::Moved) => Err(GroupError::NotCoordinator),
        Err(error) => {
            // After the check, the transaction ended or the producer was fenced.
            tracing::debug!(%error, "an offset commit of a transaction came too late");
            Err(GroupError::CoordinatorNotAvailable)
        }
    }
}
