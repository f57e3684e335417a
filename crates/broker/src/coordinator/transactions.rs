//! The transaction coordinator around the pure logic of [`crate::transactions`]: one lock per transactional id, the records in
//! `__transaction_state`, the markers, and the timers.
//!
//! A lock is held until the step is durable, so requests for one transactional id follow each other where Kafka answers
//! CONCURRENT_TRANSACTIONS. Where everything lies in one log, the end of a transaction is one group commit: the record
//! that decides it, the markers and the record that completes it are queued in this order, and a crash keeps a prefix.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use storage::{Admission, AppendError, Clock, Durability, ReadError, SystemClock};
use tokio::sync::{OwnedMutexGuard, oneshot};
use wire::records::{RecordView, TransactionResult};

use super::Coordinator;
use crate::blocking::blocking;
use crate::config::Config;
use crate::groups::partition_for;
use crate::internal::{InternalRecord, Told, batch_of, read_records};
use crate::logs::{Logs, OpenLog};
use crate::partition::{Checked, Home, MARKER_BYTES, Order, Partition};
use crate::producer_ids::ProducerIds;
use crate::topics::{OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topics};
use crate::transactions::{
    End, EndStep, Status, TopicPartition, Transaction, TransactionError, TransactionIndex, records,
};

/// How often overdue transactions and unused transactional ids are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

type State = Option<Transaction>;
type Locked = OwnedMutexGuard<State>;
type Landed = oneshot::Receiver<Result<(), AppendError>>;

struct Entry {
    id: String,
    state: Arc<tokio::sync::Mutex<State>>,
    /// The same, for those who only look.
    shown: Mutex<State>,
}

/// What an EndTxn answers: the producer and epoch to go on with.
pub type EndResult = Result<(i64, i16), TransactionError>;

/// All transactional ids.
pub struct TransactionCoordinator {
    /// Weak, as is what else holds files: steps that are under way do not keep those of a broker that is gone.
    topics: Weak<Topics>,
    producer_ids: Weak<ProducerIds>,
    groups: Arc<Coordinator>,
    config: Arc<Config>,
    clock: Arc<SystemClock>,
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    /// Partitions of `__transaction_state` that could not be read.
    unread: Mutex<HashSet<i32>>,
}

impl std::fmt::Debug for TransactionCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = self.entries.lock().len();
        f.debug_struct("TransactionCoordinator").field("ids", &ids).finish_non_exhaustive()
    }
}

async fn landed(landed: Landed) -> Result<(), TransactionError> {
    landed.await.ok().and_then(Result::ok).ok_or(TransactionError::NotAvailable)
}

async fn all_landed(all: &mut Vec<Landed>) -> Result<(), TransactionError> {
    for one in all.drain(..) {
        landed(one).await?;
    }
    Ok(())
}

/// A partition that gets a marker, with the room for it.
struct Target {
    partition: Arc<Partition>,
    home: Home,
    room: Admission,
    index_room: Admission,
}

async fn room(log: &OpenLog, bytes: usize) -> Result<Admission, TransactionError> {
    log.admit(bytes).await.map_err(|_| TransactionError::NotAvailable)
}

/// Runs a step to its end, whatever becomes of the client that asked for it.
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
    /// Without transactional ids.
    pub fn new(
        topics: &Arc<Topics>,
        producer_ids: &Arc<ProducerIds>,
        groups: Arc<Coordinator>,
        config: Arc<Config>,
        clock: Arc<SystemClock>,
    ) -> TransactionCoordinator {
        TransactionCoordinator {
            topics: Arc::downgrade(topics),
            producer_ids: Arc::downgrade(producer_ids),
            groups,
            config,
            clock,
            entries: Mutex::default(),
            unread: Mutex::default(),
        }
    }

    /// Restores all states from `__transaction_state`. Blocks.
    pub fn load(&self, topics: &Topics, logs: &Logs) -> Result<(), ReadError> {
        let Some(topic) = topics.find(TRANSACTIONS_TOPIC) else { return Ok(()) };
        let partitions = topic.partitions();
        let there: Vec<_> =
            partitions.iter().filter_map(|partition| Some((&**partition, partition.home().ok()?))).collect();
        let mut loaded: Vec<HashMap<_, _>> = there.iter().map(|_| HashMap::new()).collect();
        let read = read_records(&there, |at, _, record| take_in(&mut loaded[at], record));
        for (((partition, home), found), read) in there.iter().zip(loaded).zip(read) {
            match read {
                Ok(()) => {}
                Err(error) if logs.all().len() == 1 => return Err(error),
                Err(error) => {
                    let (directory, partition) = (&home.log.path, partition.index);
                    tracing::error!(directory, partition, %error, "the transactions of a partition cannot be read");
                    self.unread.lock().insert(partition);
                }
            }
            let mut entries = self.entries.lock();
            for (id, state) in found {
                entries.insert(id.clone(), Arc::new(Entry::new(id, Some(state))));
            }
        }
        Ok(())
    }

    /// Looks after overdue and unfinished transactions until the broker is gone.
    pub fn watch(self: &Arc<Self>) -> tokio::task::JoinHandle<()> {
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                if this.topics.strong_count() == 0 {
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
        let all: Vec<_> = self.entries.lock().values().cloned().collect();
        for entry in all {
            // Without a state its first record is being written, or never was.
            let due = entry.shown.lock().as_ref().is_none_or(|state| {
                state.is_overdue(now_ms)
                    || state.status.ending().is_some()
                    || state.is_unused(now_ms, expiry_ms)
            });
            // Whoever holds the lock is about to change it.
            let Some(state) = due.then(|| entry.state.clone().try_lock_owned().ok()).flatten() else {
                continue;
            };
            let Some(current) = state.clone() else {
                self.entries.lock().remove(&entry.id);
                continue;
            };
            // It may have changed since.
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
        let (_, partition, home) = self.place_of(&entry.id)?;
        let batch = self.record_of(&entry.id, None)?;
        let room = room(&home.log, batch.bytes.len()).await?;
        landed(self.append(&partition, &home, batch, room)).await?;
        *state = None;
        *entry.shown.lock() = None;
        self.entries.lock().remove(&entry.id);
        Ok(())
    }

    /// The partition of `__transaction_state` that a transactional id is in, once there is that topic.
    fn partition_of(&self, id: &str) -> Option<Arc<Partition>> {
        let topic = self.topics.upgrade()?.find(TRANSACTIONS_TOPIC)?;
        let count = i32::try_from(topic.partitions().len()).ok()?;
        topic.partition(partition_for(id, count))
    }

    /// Whether the records of a partition of `__transaction_state` are known.
    fn has_read(&self, partition: &Partition) -> bool {
        partition.home().is_ok() && !self.unread.lock().contains(&partition.index)
    }

    /// Whether the broker `node` coordinates the transactional id, whose records must be readable.
    pub fn serves(&self, id: &str, node: i32) -> bool {
        self.partition_of(id)
            .is_none_or(|partition| partition.leader().node == node && self.has_read(&partition))
    }

    /// The broker that coordinates the transactional id; `None` while there is none.
    pub fn served_by(&self, id: &str) -> Option<i32> {
        self.partition_of(id)
            .filter(|partition| self.has_read(partition))
            .map(|partition| partition.leader().node)
    }

    /// Whether another broker coordinates the transactional id.
    pub fn is_elsewhere(&self, id: &str, node: i32) -> bool {
        self.partition_of(id).is_some_and(|partition| partition.leader().node != node)
    }

    fn place_of(&self, id: &str) -> Result<(Arc<Topics>, Arc<Partition>, Home), TransactionError> {
        let gone = TransactionError::NotAvailable;
        let topics = self.topics.upgrade().ok_or(gone)?;
        let partition = self.partition_of(id).filter(|partition| self.has_read(partition)).ok_or(gone)?;
        let home = partition.home().map_err(|_| gone)?.clone();
        Ok((topics, partition, home))
    }

    fn find(&self, id: &str) -> Option<Arc<Entry>> {
        self.entries.lock().get(id).cloned()
    }

    /// InitProducerId: the producer's id and epoch. `expected` is what the client had before (KIP-360).
    pub async fn initialize(
        self: &Arc<Self>,
        id: String,
        expected: Option<(i64, i16)>,
        timeout_ms: i32,
    ) -> Result<(i64, i16), TransactionError> {
        let this = self.clone();
        whole(async move {
            this.place_of(&id)?;
            if timeout_ms <= 0 || timeout_ms > this.config.transaction_timeout_ms_max {
                return Err(TransactionError::Timeout);
            }
            loop {
                let entry = {
                    let mut entries = this.entries.lock();
                    let new = || Arc::new(Entry::new(id.clone(), None));
                    entries.entry(id.clone()).or_insert_with(new).clone()
                };
                let mut state = entry.state.clone().lock_owned().await;
                if this.find(&id).is_none_or(|known| !Arc::ptr_eq(&known, &entry)) {
                    // It expired meanwhile.
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
                            // The epoch that fences it is never given out.
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

    /// AddPartitionsToTxn, AddOffsetsToTxn, and what KIP-890 has Produce and TxnOffsetCommit do.
    pub async fn add(
        self: &Arc<Self>,
        id: &str,
        (producer_id, epoch): (i64, i16),
        partitions: Vec<TopicPartition>,
        client_version: i16,
    ) -> Result<(), TransactionError> {
        let entry = self.find(id).ok_or(self.missing(id))?;
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

    /// Whether the producer's open transaction has the partition.
    pub async fn verify(
        &self,
        id: &str,
        (producer_id, epoch): (i64, i16),
        partition: &TopicPartition,
    ) -> Result<(), TransactionError> {
        let entry = self.find(id).ok_or(self.missing(id))?;
        let state = entry.state.lock().await;
        state.as_ref().ok_or(TransactionError::ProducerIdMapping)?.verify(producer_id, epoch, partition)
    }

    /// EndTxn.
    pub async fn end(self: &Arc<Self>, id: &str, end: End) -> EndResult {
        let entry = self.find(id).ok_or(self.missing(id))?;
        let this = self.clone();
        whole(async move {
            let state = this.settled(&entry).await?;
            let current = state.as_ref().ok_or(TransactionError::ProducerIdMapping)?;
            let fresh = if current.epoch_is_exhausted() { this.fresh_id().await? } else { -1 };
            let answer = |state: &Transaction| (state.producer_id, state.epoch);
            match current.end(end, fresh, this.clock.now_ms())? {
                EndStep::Done => Ok(answer(current)),
                EndStep::Prepare(next) => {
                    // As it will be, whether or not all markers can be written now.
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

    fn missing(&self, id: &str) -> TransactionError {
        if self.partition_of(id).is_none_or(|partition| self.has_read(&partition)) {
            TransactionError::ProducerIdMapping
        } else {
            TransactionError::NotAvailable
        }
    }

    /// The state's lock, with a transaction completed that was left in the middle.
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
        let (_, partition, home) = self.place_of(&entry.id)?;
        let batch = self.record_of(&entry.id, Some(&next))?;
        let room = room(&home.log, batch.bytes.len()).await?;
        landed(self.append(&partition, &home, batch, room)).await?;
        entry.set(state, next);
        Ok(())
    }

    /// Makes `prepared` durable, if it is `new`, writes its markers and completes it. `Concurrent`: it is decided, but
    /// some of its partitions cannot be written now.
    async fn finish(
        &self,
        entry: &Arc<Entry>,
        mut state: Locked,
        prepared: Transaction,
        new: bool,
    ) -> Result<Locked, TransactionError> {
        let (topics, partition, home) = self.place_of(&entry.id)?;
        let Some(result) = prepared.status.ending() else { return Err(TransactionError::InvalidState) };
        let completed = prepared.completed(self.clock.now_ms());
        let decision = self.record_of(&entry.id, Some(&prepared))?;
        let completion = self.record_of(&entry.id, Some(&completed))?;
        // All room there may be need of, before the first step: nothing stops in the middle for a full disk.
        let decision_room = room(&home.log, decision.bytes.len()).await?;
        let completion_room = room(&home.log, completion.bytes.len()).await?;
        let (targets, offline) = targets(&topics, &prepared).await;
        let one_log = targets.iter().all(|target| Arc::ptr_eq(&target.home.log, &home.log));

        let mut own = Vec::new();
        if new {
            own.push(self.append(&partition, &home, decision, decision_room));
            entry.set(&mut state, prepared.clone());
            if !one_log {
                all_landed(&mut own).await?;
            }
        }
        let mut markers = Vec::with_capacity(targets.len());
        for target in targets {
            let (sender, marked) = oneshot::channel();
            let order = Order {
                admission: target.room,
                index_room: Some(target.index_room),
                check: None,
                begins_anew: false,
                leader_epoch: None,
                durability: Durability::Synced,
                done: Some(Arc::new(Told::new(sender))),
                now_ms: self.clock.now_ms(),
            };
            let producer = (prepared.producer_id, prepared.epoch);
            match target.partition.append_marker(&target.home, producer, result, order) {
                Ok(_) => markers.push((target.partition, marked)),
                // A newer producer ended the transaction there.
                Err(error) => {
                    let partition = target.partition.index;
                    tracing::warn!(transactional_id = entry.id, partition, %error, "no marker was written");
                }
            }
        }
        let mut last = Some((completion, completion_room));
        let mut complete = || last.take().map(|(batch, room)| self.append(&partition, &home, batch, room));
        if one_log && offline.is_empty() {
            // Behind the markers in the same log: a crash does not keep it without them.
            own.extend(complete());
        }
        let mut failed = None;
        for (marked, done) in markers {
            match landed(done).await {
                Ok(()) if marked.topic.as_str() == OFFSETS_TOPIC => {
                    let committed = result == TransactionResult::Commit;
                    self.groups.end_transaction(marked.index, prepared.producer_id, committed);
                }
                Ok(()) => {}
                Err(error) => failed = Some(error),
            }
        }
        all_landed(&mut own).await?;
        if let Some(error) = failed {
            return Err(error);
        }
        if !offline.is_empty() {
            // The others need not be told again.
            entry.set(&mut state, Transaction { partitions: offline, ..prepared });
            return Err(TransactionError::Concurrent);
        }
        own.extend(complete());
        all_landed(&mut own).await?;
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

    fn append(&self, partition: &Partition, home: &Home, batch: Checked, room: Admission) -> Landed {
        let (sender, landed) = oneshot::channel();
        let done = Arc::new(Told::new(sender));
        let order = Order::plain(room, Durability::Synced, Some(done), self.clock.now_ms());
        let appended = partition.append(home, batch, order);
        debug_assert!(appended.is_ok(), "a batch without a producer is always new");
        landed
    }

    /// The states of all transactional ids, by id.
    pub fn all(&self) -> Vec<(String, Transaction)> {
        let entries = self.entries.lock();
        let shown = |entry: &Arc<Entry>| Some((entry.id.clone(), entry.shown.lock().clone()?));
        let mut all: Vec<_> = entries.values().filter_map(shown).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// The state of one transactional id.
    pub fn look(&self, id: &str) -> Option<Transaction> {
        self.find(id).and_then(|entry| entry.shown.lock().clone())
    }
}

impl Entry {
    fn new(id: String, state: State) -> Entry {
        Entry { id, state: Arc::new(tokio::sync::Mutex::new(state.clone())), shown: Mutex::new(state) }
    }

    fn set(&self, state: &mut Locked, next: Transaction) {
        *self.shown.lock() = Some(next.clone());
        **state = Some(next);
    }
}

/// Where markers go, and the partitions that can have none now: their log is lost, has stopped or is full. Those that were
/// deleted need none.
async fn targets(topics: &Topics, of: &Transaction) -> (Vec<Target>, BTreeSet<TopicPartition>) {
    let (mut targets, mut offline) = (Vec::new(), BTreeSet::new());
    for (topic, index) in &of.partitions {
        let partition = topics.find(topic).and_then(|topic| topic.partition(*index));
        let Some(partition) = partition.filter(|partition| !partition.is_deleted()) else { continue };
        match target(partition).await {
            Some(target) => targets.push(target),
            None => {
                offline.insert((topic.clone(), *index));
            }
        }
    }
    (targets, offline)
}

async fn target(partition: Arc<Partition>) -> Option<Target> {
    let home = partition.home().ok().filter(|home| home.log.log.stopped().is_none())?.clone();
    let marker = room(&home.log, MARKER_BYTES).await.ok()?;
    let index_room = room(&home.log, TransactionIndex::RECORD_BYTES).await.ok()?;
    Some(Target { partition, home, room: marker, index_room })
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
