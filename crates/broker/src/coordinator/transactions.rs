//! The transaction coordinator around the pure logic of [`crate::transactions`]: a lock for each transactional id, the
//! records in `__transaction_state`, and the timers.
//!
//! A transaction ends in three steps (KIP-98):
//! 1. The record of the decision is durable.
//! 2. The markers are durable in all partitions of the transaction ([`markers`](super::markers)).
//! 3. The record of the completion is written.
//!
//! If all records go into one log, the three steps are queued one behind the other and committed as a group. A crash
//! keeps a prefix of them.
//!
//! The lock is held until the step is durable. Requests for one transactional id therefore wait for each other where
//! Kafka answers CONCURRENT_TRANSACTIONS.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::BatchHeader;
use parking_lot::Mutex;
use storage::{Admission, Clock, Durability, ReadError, SystemClock};
use tokio::sync::{OwnedMutexGuard, oneshot};
use wire::records::RecordView;

use super::Peers;
use super::markers::{Landed, MarkerSender, landed, room};
use super::shards::{Coordinates, Shard, Shards, Unserved, coordinator_of, follow, load_all, shard_of};
use crate::config::Config;
use crate::coordinator::producer_ids::ProducerIds;
use crate::internal::{InternalRecord, Told, batch_of};
use crate::partition::log::PartitionLog;
use crate::partition::{Checked, Order, Partition};
use crate::resources::blocking::blocking;
use crate::topics::{TRANSACTIONS_TOPIC, Topics};
use crate::transactions::{End, EndStep, Status, TopicPartition, Transaction, TransactionError, records};

/// Interval of the search for overdue transactions and unused transactional ids.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

type State = Option<Transaction>;
type Locked = OwnedMutexGuard<State>;
type TransactionShard = Shard<Entry>;

/// One transactional id.
pub struct Entry {
    id: String,
    /// The shard is gone once another broker coordinates the transactional id.
    shard: Weak<TransactionShard>,
    state: Arc<tokio::sync::Mutex<State>>,
    /// A copy of `state` for readers that do not take its lock.
    shown: Mutex<State>,
}

/// The result of an EndTxn: the producer id and epoch that the client continues with.
pub type EndResult = Result<(i64, i16), TransactionError>;

/// All transactional ids that this broker coordinates.
pub struct TransactionCoordinator {
    shards: Shards<Entry>,
    /// Weak, so that steps in progress do not keep the files of a dropped broker open.
    producer_ids: Weak<ProducerIds>,
    markers: MarkerSender,
    config: Arc<Config>,
    clock: Arc<SystemClock>,
}

impl Coordinates for TransactionCoordinator {
    const TOPIC: &'static str = TRANSACTIONS_TOPIC;
    type Entry = Entry;
    type Loaded = HashMap<String, Transaction>;

    fn shards(&self) -> &Shards<Entry> {
        &self.shards
    }

    fn replay(loaded: &mut Self::Loaded, _: &BatchHeader, record: &RecordView) {
        take_in(loaded, record);
    }

    fn restore(self: &Arc<Self>, shard: &Arc<TransactionShard>, loaded: Self::Loaded) {
        for (id, state) in loaded {
            shard.find_or_insert(&id, || Entry::new(shard, &id, Some(state)));
        }
    }

    fn unload(self: &Arc<Self>, _: &Arc<Entry>) {
        // No request is parked in an entry. A step in progress finds that its shard is gone.
    }
}

impl std::fmt::Debug for TransactionCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionCoordinator").field("ids", &self.shards.len()).finish_non_exhaustive()
    }
}

async fn all_landed(all: &mut Vec<Landed>) -> Result<(), TransactionError> {
    for one in all.drain(..) {
        landed(one).await?;
    }
    Ok(())
}

/// The log and leader epoch in which a transactional id writes its records.
struct Place {
    partition: Arc<Partition>,
    log: Arc<dyn PartitionLog>,
    epoch: i32,
}

/// Runs a step to its end in a task, even if the client that asked for it disconnects.
async fn whole<T: Send + 'static>(
    step: impl Future<Output = Result<T, TransactionError>> + Send + 'static,
) -> Result<T, TransactionError> {
    match tokio::spawn(step).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(TransactionError::NotAvailable),
    }
}

impl TransactionCoordinator {
    /// Creates a coordinator of the broker `node`, without transactional ids.
    pub fn new(
        topics: &Arc<Topics>,
        node: i32,
        producer_ids: &Arc<ProducerIds>,
        peers: &Arc<Peers>,
        config: Arc<Config>,
        clock: Arc<SystemClock>,
    ) -> TransactionCoordinator {
        TransactionCoordinator {
            shards: Shards::new(topics, node),
            producer_ids: Arc::downgrade(producer_ids),
            markers: MarkerSender::new(topics, peers.clone()),
            config,
            clock,
        }
    }

    /// Restores all transactional ids whose partition this broker leads. Blocks.
    ///
    /// # Errors
    /// [`ReadError`], if `only_log` is set and the log cannot be read.
    pub fn load(self: &Arc<Self>, only_log: bool) -> Result<(), ReadError> {
        load_all(self, only_log)
    }

    /// Loads or unloads the transactional ids of a partition of `__transaction_state`, depending on whether this broker
    /// leads the partition.
    pub fn follow(self: &Arc<Self>, partition: &Arc<Partition>) {
        // The outcome is not needed here: each request calls `follow` again.
        let _ = follow(self, partition);
    }

    /// Starts a task that aborts overdue transactions, completes unfinished ones and expires unused transactional ids,
    /// until the broker is dropped.
    pub fn watch(self: &Arc<Self>) -> tokio::task::JoinHandle<()> {
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                if this.shards.are_abandoned() {
                    return;
                }
                this.look_after().await;
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        })
    }

    async fn look_after(self: &Arc<Self>) {
        let now_ms = self.clock.now_ms();
        let expiry_ms = self.config.transactional_id_expiry_ms;
        for entry in self.shards.entries() {
            // An entry without a state: its first record is being written, or was never written.
            let due = entry.shown.lock().as_ref().is_none_or(|state| {
                state.is_overdue(now_ms)
                    || state.status.ending().is_some()
                    || state.is_unused(now_ms, expiry_ms)
            });
            // The holder of the lock is about to change the state, so skip the entry this time.
            let Some(state) = due.then(|| entry.state.clone().try_lock_owned().ok()).flatten() else {
                continue;
            };
            let Some(current) = state.clone() else {
                entry.forget();
                continue;
            };
            // The state may have changed before the lock was taken.
            let step = if current.is_overdue(now_ms) {
                tracing::info!(
                    transactional_id = entry.id,
                    producer_id = current.producer_id,
                    "aborting a transaction that was open for longer than its timeout"
                );
                self.finish(&entry, state, current.fence(now_ms), true).await.map(|_| ())
            } else if current.status.ending().is_some() {
                self.finish(&entry, state, current, false).await.map(|_| ())
            } else if current.is_unused(now_ms, expiry_ms) {
                self.expire(&entry, state).await
            } else {
                Ok(())
            };
            if let Err(error) = step {
                tracing::warn!(transactional_id = entry.id, %error, "a transaction cannot be completed; trying again");
            }
        }
    }

    async fn expire(&self, entry: &Arc<Entry>, mut state: Locked) -> Result<(), TransactionError> {
        let place = entry.place()?;
        let batch = self.record_of(&entry.id, None)?;
        let room = room(&*place.log, batch.bytes.len()).await?;
        landed(self.append(&place, batch, room)?).await?;
        *state = None;
        *entry.shown.lock() = None;
        entry.forget();
        Ok(())
    }

    /// Checks that this broker coordinates the transactional id and that its records are readable. The check passes if
    /// `__transaction_state` does not exist yet.
    pub fn serves(self: &Arc<Self>, id: &str) -> Result<(), Unserved> {
        shard_of(self, id).map(|_| ())
    }

    /// The broker that coordinates the transactional id. `None` if no broker does at present.
    pub fn served_by(&self, id: &str) -> Option<i32> {
        coordinator_of(self, id)
    }

    fn shard_of(self: &Arc<Self>, id: &str) -> Result<Arc<TransactionShard>, TransactionError> {
        shard_of(self, id).ok().flatten().ok_or(TransactionError::NotAvailable)
    }

    /// The entry of a transactional id.
    ///
    /// # Errors
    /// `NotAvailable` if this broker does not coordinate the transactional id; `ProducerIdMapping` if it has no entry.
    fn find(self: &Arc<Self>, id: &str) -> Result<Arc<Entry>, TransactionError> {
        let shard = shard_of(self, id).map_err(|_| TransactionError::NotAvailable)?;
        shard.and_then(|shard| shard.find(id)).ok_or(TransactionError::ProducerIdMapping)
    }

    /// InitProducerId: returns the producer's id and epoch. `expected` is the producer id and epoch that the client had
    /// before (KIP-360).
    pub async fn initialize(
        self: &Arc<Self>,
        id: String,
        expected: Option<(i64, i16)>,
        timeout_ms: i32,
    ) -> Result<(i64, i16), TransactionError> {
        let this = self.clone();
        whole(async move {
            this.shard_of(&id)?;
            if timeout_ms <= 0 || timeout_ms > this.config.transaction_timeout_ms_max {
                return Err(TransactionError::Timeout);
            }
            loop {
                let shard = this.shard_of(&id)?;
                let entry = shard.find_or_insert(&id, || Entry::new(&shard, &id, None));
                let mut state = entry.state.clone().lock_owned().await;
                if shard.find(&id).is_none_or(|known| !Arc::ptr_eq(&known, &entry)) {
                    // The entry expired before its lock was taken.
                    continue;
                }
                let now_ms = this.clock.now_ms();
                let mut expected = expected;
                let current = match state.clone() {
                    None => Transaction::new(this.fresh_id().await?, timeout_ms, now_ms),
                    Some(current) => {
                        current.check_expected(expected)?;
                        if current.status == Status::Ongoing {
                            if expected
                                .is_some_and(|expected| expected != (current.producer_id, current.epoch))
                            {
                                return Err(TransactionError::Fenced);
                            }
                            // The epoch that fences the old producer is never handed out.
                            expected = None;
                            state = this.finish(&entry, state, current.fence(now_ms), true).await?;
                        } else if current.status.ending().is_some() {
                            state = this.finish(&entry, state, current, false).await?;
                        }
                        state.clone().ok_or(TransactionError::NotAvailable)?
                    }
                };
                let fresh = if current.epoch_is_exhausted() { this.fresh_id().await? } else { -1 };
                let next = current.initialize(expected, timeout_ms, fresh, now_ms)?;
                let answer = (next.producer_id, next.epoch);
                if state.as_ref() != Some(&next) {
                    this.persist(&entry, &mut state, next).await?;
                }
                return Ok(answer);
            }
        })
        .await
    }

    /// Adds partitions to a transaction: AddPartitionsToTxn, AddOffsetsToTxn, and the implicit addition by Produce and
    /// TxnOffsetCommit (KIP-890).
    pub async fn add(
        self: &Arc<Self>,
        id: &str,
        (producer_id, epoch): (i64, i16),
        partitions: Vec<TopicPartition>,
        client_version: i16,
    ) -> Result<(), TransactionError> {
        let entry = self.find(id)?;
        let this = self.clone();
        whole(async move {
            let mut state = this.settled(&entry).await?;
            let current = state.as_ref().ok_or(TransactionError::ProducerIdMapping)?;
            let now_ms = this.clock.now_ms();
            match current.add(producer_id, epoch, partitions.into_iter(), client_version, now_ms)? {
                Some(next) => this.persist(&entry, &mut state, next).await,
                None => Ok(()),
            }
        })
        .await
    }

    /// Checks that the producer's open transaction contains the partition.
    pub async fn verify(
        self: &Arc<Self>,
        id: &str,
        (producer_id, epoch): (i64, i16),
        partition: &TopicPartition,
    ) -> Result<(), TransactionError> {
        let entry = self.find(id)?;
        let state = entry.state.lock().await;
        state.as_ref().ok_or(TransactionError::ProducerIdMapping)?.verify(producer_id, epoch, partition)
    }

    /// EndTxn.
    pub async fn end(self: &Arc<Self>, id: &str, end: End) -> EndResult {
        let entry = self.find(id)?;
        let this = self.clone();
        whole(async move {
            let state = this.settled(&entry).await?;
            let current = state.as_ref().ok_or(TransactionError::ProducerIdMapping)?;
            let fresh = if current.epoch_is_exhausted() { this.fresh_id().await? } else { -1 };
            let answer = |state: &Transaction| (state.producer_id, state.epoch);
            match current.end(end, fresh, this.clock.now_ms())? {
                EndStep::Done => Ok(answer(current)),
                EndStep::Prepare(next) => {
                    // The answer after completion. It is the same if some markers cannot be written now.
                    let promised = answer(&next.completed(0));
                    let this = this.clone();
                    match this.finish(&entry, state, next, true).await {
                        Ok(_) | Err(TransactionError::Concurrent) => Ok(promised),
                        Err(error) => Err(error),
                    }
                }
            }
        })
        .await
    }

    /// Locks the state. Completes a transaction first if its end was left unfinished.
    async fn settled(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Locked, TransactionError> {
        let state = entry.state.clone().lock_owned().await;
        match &*state {
            Some(current) if current.status.ending().is_some() => {
                let current = current.clone();
                self.finish(entry, state, current, false).await
            }
            _ => Ok(state),
        }
    }

    async fn persist(
        &self,
        entry: &Arc<Entry>,
        state: &mut Locked,
        next: Transaction,
    ) -> Result<(), TransactionError> {
        let place = entry.place()?;
        let batch = self.record_of(&entry.id, Some(&next))?;
        let room = room(&*place.log, batch.bytes.len()).await?;
        landed(self.append(&place, batch, room)?).await?;
        entry.set(state, next);
        Ok(())
    }

    /// Ends a transaction: makes `prepared` durable if it is `new`, writes the markers and completes the transaction.
    ///
    /// # Errors
    /// `Concurrent` if the decision is durable, but some partitions cannot take their markers now.
    async fn finish(
        &self,
        entry: &Arc<Entry>,
        mut state: Locked,
        prepared: Transaction,
        new: bool,
    ) -> Result<Locked, TransactionError> {
        let place = entry.place()?;
        let log = &*place.log;
        let completed = prepared.completed(self.clock.now_ms());
        let decision = self.record_of(&entry.id, Some(&prepared))?;
        let completion = self.record_of(&entry.id, Some(&completed))?;
        // Reserve all space before the first step, so that a full disk cannot stop the transaction between two steps.
        let decision_room = room(log, decision.bytes.len()).await?;
        let completion_room = room(log, completion.bytes.len()).await?;
        let mut markers = self.markers.admit(&prepared, place.epoch).await?;
        let mut offline = std::mem::take(&mut markers.offline);
        let one_log = markers.are_all_in(log.log_id());

        let mut own = Vec::new();
        if new {
            own.push(self.append(&place, decision, decision_room)?);
            entry.set(&mut state, prepared.clone());
            if !one_log {
                all_landed(&mut own).await?;
            }
        }
        if !place.is_current() {
            // Another broker coordinates the transactional id by now and sends the markers.
            return Err(TransactionError::NotAvailable);
        }
        let mut sent = self.markers.send(markers, &entry.id, self.clock.now_ms());
        offline.append(&mut sent.refused);
        let mut completion = Some((completion, completion_room));
        if one_log && offline.is_empty() {
            // The completion stands behind the markers in the same log, so a crash cannot keep it without them.
            let (batch, room) = completion.take().expect("it is queued once");
            own.push(self.append(&place, batch, room)?);
        }
        let marked = self.markers.finish(sent).await;
        all_landed(&mut own).await?;
        offline.append(&mut marked?);
        if !offline.is_empty() {
            // Only these partitions still need a marker.
            entry.set(&mut state, Transaction { partitions: offline, ..prepared });
            return Err(TransactionError::Concurrent);
        }
        if let Some((batch, room)) = completion {
            landed(self.append(&place, batch, room)?).await?;
        }
        entry.set(&mut state, completed);
        Ok(state)
    }

    async fn fresh_id(&self) -> Result<i64, TransactionError> {
        let ids = self.producer_ids.upgrade().ok_or(TransactionError::NotAvailable)?;
        blocking(move || ids.take()).await.map_err(|error| {
            tracing::error!(%error, "no producer id could be taken");
            TransactionError::NotAvailable
        })
    }

    fn record_of(&self, id: &str, state: Option<&Transaction>) -> Result<Checked, TransactionError> {
        let failed = |error: wire::EncodeError| {
            tracing::error!(transactional_id = id, %error, "a transaction's record cannot be written");
            TransactionError::NotAvailable
        };
        let key = records::encode_key(id).map_err(failed)?;
        let value = state.map(records::encode_value).transpose().map_err(failed)?;
        let record: InternalRecord = (key, value);
        Ok(batch_of(&[record], self.clock.now_ms(), None))
    }

    /// Queues a record of `__transaction_state`.
    ///
    /// # Errors
    /// `NotAvailable` if another broker leads the partition by now.
    fn append(&self, place: &Place, batch: Checked, room: Admission) -> Result<Landed, TransactionError> {
        let (sender, landed) = oneshot::channel();
        let done = Arc::new(Told::new(sender));
        let mut order = Order::plain(room, Durability::Synced, Some(done), self.clock.now_ms());
        order.leader_epoch = Some(place.epoch);
        place.partition.append(&*place.log, batch, order).map_err(|_| TransactionError::NotAvailable)?;
        Ok(landed)
    }

    /// The states of all transactional ids, ordered by id.
    pub fn all(&self) -> Vec<(String, Transaction)> {
        let shown = |entry: &Arc<Entry>| Some((entry.id.clone(), entry.shown.lock().clone()?));
        let mut all: Vec<_> = self.shards.entries().iter().filter_map(shown).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// The state of one transactional id.
    pub fn look(self: &Arc<Self>, id: &str) -> Option<Transaction> {
        self.find(id).ok().and_then(|entry| entry.shown.lock().clone())
    }
}

impl Place {
    /// Whether this broker still leads the partition in this epoch.
    fn is_current(&self) -> bool {
        self.partition.leader().epoch == self.epoch
    }
}

impl Entry {
    fn new(shard: &Arc<TransactionShard>, id: &str, state: State) -> Entry {
        Entry {
            id: id.to_owned(),
            shard: Arc::downgrade(shard),
            state: Arc::new(tokio::sync::Mutex::new(state.clone())),
            shown: Mutex::new(state),
        }
    }

    /// The log and leader epoch for the records of this transactional id.
    ///
    /// # Errors
    /// `NotAvailable` once another broker coordinates the transactional id.
    fn place(&self) -> Result<Place, TransactionError> {
        let gone = TransactionError::NotAvailable;
        let place = self.shard.upgrade().ok_or(gone)?.place.clone();
        let partition = place.partition().ok_or(gone)?;
        let log = partition.log().map_err(|_| gone)?.clone();
        Ok(Place { partition, log, epoch: place.epoch })
    }

    /// Removes the entry from its shard.
    fn forget(self: &Arc<Self>) {
        if let Some(shard) = self.shard.upgrade() {
            shard.remove(&self.id, self);
        }
    }

    fn set(&self, state: &mut Locked, next: Transaction) {
        *self.shown.lock() = Some(next.clone());
        **state = Some(next);
    }
}

fn take_in(found: &mut HashMap<String, Transaction>, record: &RecordView) {
    let key = record.key.clone().map_or(Ok(None), records::decode_key);
    let Ok(Some(id)) = key else { return };
    let Some(value) = &record.value else {
        found.remove(&id);
        return;
    };
    match records::decode_value(value.clone()) {
        Ok(Some(state)) => {
            found.insert(id, state);
        }
        other => tracing::error!(transactional_id = id, ?other, "a transaction's record cannot be read"),
    }
}
