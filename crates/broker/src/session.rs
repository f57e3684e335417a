//! Fetch sessions (KIP-227). The server remembers the partitions that a consumer reads. A fetch then names only
//! changes, and looks only at partitions that have changed.
//!
//! A slot is clean if the last look at it found nothing new. A commit or a change by the client makes it dirty. Only
//! dirty slots are looked at.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;
use wire::Text;

use crate::caller::{Caller, Principal};
use crate::partition::Partition;
use crate::partition::signal::Signal;
use crate::security::{Authorizer, Operation};
use crate::topics::{Topic, Topics};

/// A session used within this time is not evicted for a new one (Kafka's `min.incremental.fetch.session.eviction.ms`).
const EVICTION_AGE: Duration = Duration::from_secs(120);

/// Approximate bytes of a slot with its table entries, and of a topic without its name.
const SLOT_BYTES: usize = 192;
const TOPIC_BYTES: usize = 256;
/// Bound in bytes of all sessions together. A client that finds no room gets no session and names all its partitions
/// each time.
const SESSIONS_BYTES_MAX: usize = 96 * 1024 * 1024;

/// One partition that a client reads.
#[derive(Debug)]
pub struct Slot {
    /// The topic's number in [`Slots::topic`].
    pub topic: u32,
    /// The partition's index.
    pub index: i32,
    /// The partition, if it was found.
    pub partition: Option<Arc<Partition>>,
    /// The offset to read from.
    pub offset: i64,
    /// Bound in bytes of one read.
    pub bytes_max: i32,
    /// The leader epoch that the client assumes; -1 for none.
    pub leader_epoch: i32,
    /// The leader epoch of the last record that the client has; -1 for none.
    pub last_fetched_epoch: i32,
    /// The last values sent to the client: high watermark and log start offset.
    pub told: Option<(i64, i64)>,
    /// Whether the topic was found when the client named the partition.
    pub known: bool,
    /// Whether the client may read the topic.
    pub allowed: bool,
}

/// A topic as a client names it.
#[derive(Debug)]
pub struct AskedTopic {
    /// Its name in the client's requests. Empty if the client uses ids.
    pub asked: Text,
    /// Its id. Nil if the client uses names.
    pub id: Uuid,
    /// The name of the topic that was found. Empty if none was. It stays when the topic is deleted, because the rights to
    /// the topic still count.
    pub name: Text,
    /// The number of its slots.
    slots: usize,
}

/// The slots of a session, or of one fetch without a session.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Option<Slot>>,
    /// Numbers of removed slots, for reuse.
    free: Vec<usize>,
    /// Numbers of topics by name or by id; the other part of the key is empty. Each name is stored once.
    numbers: HashMap<(Text, Uuid), u32>,
    topics: HashMap<u32, AskedTopic>,
    topics_so_far: u32,
    by_partition: HashMap<(u32, i32), usize>,
    /// Bytes of the topic names.
    name_bytes: usize,
    /// Reports the changed slots.
    pub signal: Arc<Signal>,
    subscribed: bool,
    /// The principal, address and ACL version for which the slots were authorized.
    authorized: Option<(Principal, IpAddr, u64)>,
    /// Slots that were added or changed since the last authorization.
    unauthorized: Vec<usize>,
    /// Slots whose partition was missing at the last look.
    pub missing: Vec<usize>,
}

impl Slots {
    /// The number of a topic. `found` is the topic, if it exists.
    pub fn topic(&mut self, asked: &Text, id: Uuid, found: Option<&Topic>) -> u32 {
        let key = (asked.clone(), id);
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                let number = self.topics_so_far;
                self.topics_so_far = number.wrapping_add(1);
                let asked = asked.detached();
                self.name_bytes += asked.len();
                self.numbers.insert((asked.clone(), id), number);
                self.topics.insert(number, AskedTopic { asked, id, name: Text::EMPTY, slots: 0 });
                number
            }
        };
        if let (Some(found), Some(topic)) = (found, self.topics.get_mut(&number)) {
            topic.name = found.name.clone();
        }
        number
    }

    /// Adds a slot, or changes an existing one. The slot is dirty afterwards.
    pub fn put(&mut self, slot: Slot) {
        let key = (slot.topic, slot.index);
        let number = match self.by_partition.get(&key) {
            Some(&number) => {
                let old = self.slots[number].as_mut().expect("a named slot is there");
                old.offset = slot.offset;
                old.bytes_max = slot.bytes_max;
                old.leader_epoch = slot.leader_epoch;
                old.last_fetched_epoch = slot.last_fetched_epoch;
                if let Some(partition) = slot.partition {
                    self.set_partition(number, partition);
                }
                number
            }
            None => {
                let number = self.free.pop().unwrap_or(self.slots.len());
                if number == self.slots.len() {
                    self.slots.push(None);
                }
                if self.subscribed
                    && let Some(partition) = &slot.partition
                {
                    partition.subscribers.add(&self.signal, number);
                }
                if let Some(topic) = self.topics.get_mut(&slot.topic) {
                    topic.slots += 1;
                }
                self.slots[number] = Some(slot);
                self.by_partition.insert(key, number);
                number
            }
        };
        self.unauthorized.push(number);
        self.signal.mark(number, 0);
    }

    /// Approximate memory of the slots in bytes.
    fn bytes(&self) -> usize {
        self.slots.len() * SLOT_BYTES + self.topics.len() * TOPIC_BYTES + self.name_bytes
    }

    /// Looks again for missing partitions of topics known by name. Clients name a topic once, and a deleted topic may
    /// have been created again.
    pub fn find_missing(&mut self, topics: &Topics) {
        for number in std::mem::take(&mut self.missing) {
            let Some(slot) = &self.slots[number] else { continue };
            let Some(asked) = self.topics.get_mut(&slot.topic) else { continue };
            let found = match asked.id.is_nil() {
                true => topics.find(&asked.asked),
                false => topics.find_id(&asked.id),
            };
            if let Some(topic) = found
                && let Some(partition) = topic.partition(slot.index)
            {
                asked.name = topic.name.clone();
                self.set_partition(number, partition);
                self.unauthorized.push(number);
            }
        }
    }

    fn set_partition(&mut self, number: usize, partition: Arc<Partition>) {
        let slot = self.slots[number].as_mut().expect("a slot with a partition is there");
        if slot.partition.as_ref().is_some_and(|old| Arc::ptr_eq(old, &partition)) {
            return;
        }
        if self.subscribed {
            partition.subscribers.add(&self.signal, number);
            if let Some(old) = &slot.partition {
                old.subscribers.remove(&self.signal, number);
            }
        }
        (slot.partition, slot.known) = (Some(partition), true);
    }

    /// Checks which slots the client may read: the new ones, or all of them if the ACLs have changed.
    pub fn authorize(&mut self, authorizer: &Authorizer, caller: &Caller) {
        let mut numbers = std::mem::take(&mut self.unauthorized);
        if !authorizer.is_enabled() {
            return;
        }
        let origin = &caller.origin;
        let now = Some((origin.principal.clone(), origin.host(), authorizer.version()));
        if self.authorized != now {
            numbers = self.numbers();
            self.authorized = now;
        }
        // Partitions of a topic are mostly adjacent.
        let mut last: Option<(u32, bool)> = None;
        for number in numbers {
            let Some(slot) = self.slots[number].as_mut() else { continue };
            let Some(topic) = self.topics.get(&slot.topic) else { continue };
            let name = if topic.name.is_empty() { &topic.asked } else { &topic.name };
            // A topic with an unknown id does not exist for any client, so no right is checked.
            let by_unknown_id = name.is_empty();
            let allowed = match &last {
                _ if by_unknown_id => true,
                Some((of, allowed)) if *of == slot.topic => *allowed,
                _ => authorizer.topic(caller, Operation::Read, name).is_ok(),
            };
            last = Some((slot.topic, allowed));
            if slot.allowed != allowed {
                slot.allowed = allowed;
                self.signal.mark(number, 0);
            }
        }
    }

    /// Removes slots of a topic.
    pub fn remove(&mut self, topic: &Text, topic_id: Uuid, indexes: &[i32]) {
        let key = (topic.clone(), topic_id);
        let Some(&topic_number) = self.numbers.get(&key) else { return };
        for index in indexes {
            let Some(number) = self.by_partition.remove(&(topic_number, *index)) else { continue };
            self.free.push(number);
            if let Some(Slot { partition: Some(partition), .. }) = self.slots[number].take()
                && self.subscribed
            {
                partition.subscribers.remove(&self.signal, number);
            }
            let Some(left) = self.topics.get_mut(&topic_number) else { return };
            left.slots -= 1;
            if left.slots == 0 {
                self.topics.remove(&topic_number);
                self.numbers.remove(&key);
                self.name_bytes -= topic.len();
                return;
            }
        }
    }

    /// The slot `number`, if it still exists.
    pub fn slot(&mut self, number: usize) -> Option<&mut Slot> {
        self.slots.get_mut(number)?.as_mut()
    }

    /// The slot `number`, if it still exists, beside all topics by number.
    pub fn slot_and_topics(&mut self, number: usize) -> (Option<&mut Slot>, &HashMap<u32, AskedTopic>) {
        (self.slots.get_mut(number).and_then(Option::as_mut), &self.topics)
    }

    /// The numbers of all slots.
    pub fn numbers(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|number| self.slots[*number].is_some()).collect()
    }

    /// Begins to receive commits.
    pub fn subscribe(&mut self) {
        if std::mem::replace(&mut self.subscribed, true) {
            return;
        }
        for (number, slot) in self.slots.iter().enumerate() {
            if let Some(Slot { partition: Some(partition), .. }) = slot {
                partition.subscribers.add(&self.signal, number);
            }
        }
    }

    /// Whether the client reads no partitions.
    pub fn is_empty(&self) -> bool {
        self.by_partition.is_empty()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if !self.subscribed {
            return;
        }
        for (number, slot) in self.slots.iter().enumerate() {
            if let Some(Slot { partition: Some(partition), .. }) = slot {
                partition.subscribers.remove(&self.signal, number);
            }
        }
    }
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// The session id; never 0.
    pub id: i32,
    /// Locked by the one fetch in progress.
    pub state: tokio::sync::Mutex<SessionState>,
}

/// The state that a fetch works on.
#[derive(Debug)]
pub struct SessionState {
    /// The session epoch that the next fetch must carry.
    pub epoch: i32,
    /// The partitions that the client reads.
    pub slots: Slots,
    /// The session's share of [`SESSIONS_BYTES_MAX`].
    share: Share,
}

impl SessionState {
    /// Reserves memory for added slots. Returns false if there is no room.
    pub fn grow(&mut self) -> bool {
        self.share.grow(self.slots.bytes())
    }
}

/// The memory of one session, counted towards the total of all sessions.
#[derive(Debug)]
struct Share {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Share {
    fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            Some(used + more).filter(|used| more == 0 || *used <= SESSIONS_BYTES_MAX)
        });
        self.bytes += if taken.is_ok() { more } else { 0 };
        taken.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// All sessions. Their number is bounded.
#[derive(Debug)]
pub struct Sessions {
    sessions_max: usize,
    /// Bytes used by all sessions.
    used: Arc<AtomicUsize>,
    sessions: Mutex<HashMap<i32, (Arc<Session>, Instant)>>,
}

impl Sessions {
    /// Allows at most `sessions_max` sessions.
    pub fn new(sessions_max: usize) -> Sessions {
        Sessions { sessions_max, used: Arc::default(), sessions: Mutex::default() }
    }

    /// Keeps `slots` as a new session, if there is room or an old session can be evicted.
    pub fn create(&self, slots: Slots) -> Option<Arc<Session>> {
        let mut share = Share { bytes: 0, used: self.used.clone() };
        if !share.grow(slots.bytes()) {
            return None;
        }
        let mut sessions = self.sessions.lock();
        if sessions.len() >= self.sessions_max {
            let oldest =
                sessions.iter().min_by_key(|(_, (_, used))| *used).map(|(id, (_, used))| (*id, *used));
            match oldest {
                Some((id, used)) if used.elapsed() > EVICTION_AGE => sessions.remove(&id),
                _ => return None,
            };
        }
        let id = loop {
            let id = fastrand::i32(1..);
            if !sessions.contains_key(&id) {
                break id;
            }
        };
        let state = tokio::sync::Mutex::new(SessionState { epoch: 1, slots, share });
        let session = Arc::new(Session { id, state });
        sessions.insert(id, (session.clone(), Instant::now()));
        Some(session)
    }

    /// The session `id`.
    pub fn find(&self, id: i32) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        let (session, used) = sessions.get_mut(&id)?;
        *used = Instant::now();
        Some(session.clone())
    }

    /// Ends a session.
    pub fn remove(&self, id: i32) {
        self.sessions.lock().remove(&id);
    }

    /// The number of sessions.
    pub fn count(&self) -> usize {
        self.sessions.lock().len()
    }
}

/// The epoch after `epoch`. 0 and -1 have special meanings and are skipped.
pub fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}
