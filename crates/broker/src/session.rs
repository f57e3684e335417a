//! Fetch sessions (KIP-227): what a consumer reads is remembered, so that a fetch names only what changed, and looks
//! only at partitions that changed.
//!
//! A slot is clean when the last look at it found nothing new; a commit, or a change that the client sends, makes it
//! dirty again. Only dirty slots are looked at.

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
use crate::topics::Topics;

/// A session that was used so recently is not evicted for a new one (Kafka's `min.incremental.fetch.session.eviction.ms`).
const EVICTION_AGE: Duration = Duration::from_secs(120);

/// Bytes of a slot with its places in the tables, and of a topic beside its name: about that.
const SLOT_BYTES: usize = 320;
const TOPIC_BYTES: usize = 128;
/// Bytes of all sessions together: who finds no room has none, and names all that it wants each time.
const SESSIONS_BYTES_MAX: usize = 160 * 1024 * 1024;

/// What a client reads of one partition.
#[derive(Debug)]
pub struct Slot {
    /// The topic as [`Slots::topic`] knows it.
    pub topic_number: u32,
    /// The topic as the client names it; empty where it uses ids.
    pub topic: Text,
    /// The topic's id; zero where the client uses names.
    pub topic_id: Uuid,
    /// The partition's number.
    pub index: i32,
    /// The partition, if it was found.
    pub partition: Option<Arc<Partition>>,
    /// Where to read.
    pub offset: i64,
    /// Bytes at most.
    pub bytes_max: i32,
    /// The leader epoch that the client believes in; -1 for none.
    pub leader_epoch: i32,
    /// That of the last record it has; -1 for none.
    pub last_fetched_epoch: i32,
    /// What the client was told last: high watermark and log start offset.
    pub told: Option<(i64, i64)>,
    /// The name of the topic that was found.
    pub name: Text,
    /// Whether the client may read it.
    pub allowed: bool,
}

/// The slots of a session, or of one fetch without a session.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Option<Slot>>,
    /// Numbers of slots that were removed, to be used again.
    free: Vec<usize>,
    /// Topics by name, or by id, of which one is empty: each name is kept once.
    topics: HashMap<(Text, Uuid), u32>,
    /// How many slots each has.
    slots_of: HashMap<u32, usize>,
    topics_so_far: u32,
    by_partition: HashMap<(u32, i32), usize>,
    /// Bytes of the names.
    name_bytes: usize,
    /// Tells which slots changed.
    pub signal: Arc<Signal>,
    subscribed: bool,
    /// What was allowed is known of this principal at this address, and of the ACLs of this version.
    authorized: Option<(Principal, IpAddr, u64)>,
    /// Slots that were added or changed since then.
    unauthorized: Vec<usize>,
    /// Slots whose partition was not there when they were last looked at.
    pub missing: Vec<usize>,
}

impl Slots {
    /// The topic as slots know it, and its name as they keep it.
    pub fn topic(&mut self, name: &Text, id: Uuid) -> (u32, Text) {
        let key = (name.clone(), id);
        if let Some((known, number)) = self.topics.get_key_value(&key) {
            return (*number, known.0.clone());
        }
        let name = name.detached();
        let number = self.topics_so_far;
        self.topics_so_far = number.wrapping_add(1);
        self.name_bytes += name.len();
        self.topics.insert((name.clone(), id), number);
        (number, name)
    }

    /// Adds a slot of a topic or changes what is asked of it; it is dirty afterwards.
    pub fn put(&mut self, slot: Slot) {
        let key = (slot.topic_number, slot.index);
        let number = match self.by_partition.get(&key) {
            Some(&number) => {
                let old = self.slots[number].as_mut().expect("a named slot is there");
                old.offset = slot.offset;
                old.bytes_max = slot.bytes_max;
                old.leader_epoch = slot.leader_epoch;
                old.last_fetched_epoch = slot.last_fetched_epoch;
                if let Some(partition) = slot.partition {
                    self.set_partition(number, partition, slot.name);
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
                *self.slots_of.entry(slot.topic_number).or_default() += 1;
                self.slots[number] = Some(slot);
                self.by_partition.insert(key, number);
                number
            }
        };
        self.unauthorized.push(number);
        self.signal.mark(number, 0);
    }

    /// Bytes of memory that it takes, about.
    fn bytes(&self) -> usize {
        self.slots.len() * SLOT_BYTES + self.topics.len() * TOPIC_BYTES + self.name_bytes
    }

    /// Looks again for the partitions of topics that are known by name and were not there: clients name them once, and a
    /// topic that was deleted may have been created again.
    pub fn find_missing(&mut self, topics: &Topics) {
        for number in std::mem::take(&mut self.missing) {
            let Some(slot) = &self.slots[number] else { continue };
            let found = match slot.topic_id.is_nil() {
                true => topics.find(&slot.topic),
                false => topics.find_id(&slot.topic_id),
            };
            if let Some(topic) = found
                && let Some(partition) = topic.partition(slot.index)
            {
                self.set_partition(number, partition, topic.name.clone());
                self.unauthorized.push(number);
            }
        }
    }

    fn set_partition(&mut self, number: usize, partition: Arc<Partition>, name: Text) {
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
        (slot.partition, slot.name) = (Some(partition), name);
    }

    /// Finds out which slots the client may read: those that are new, or all of them once the ACLs have changed.
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
        // Partitions of a topic mostly stand together.
        let mut last: Option<(Text, bool)> = None;
        for number in numbers {
            let Some(slot) = self.slots[number].as_mut() else { continue };
            let name = if slot.name.is_empty() { &slot.topic } else { &slot.name };
            // A topic that is named by an id that nobody has is not there for anybody.
            let by_unknown_id = name.is_empty();
            let allowed = match &last {
                _ if by_unknown_id => true,
                Some((of, allowed)) if of == name => *allowed,
                _ => authorizer.topic(caller, Operation::Read, name).is_ok(),
            };
            last = Some((name.clone(), allowed));
            if slot.allowed != allowed {
                slot.allowed = allowed;
                self.signal.mark(number, 0);
            }
        }
    }

    /// Removes slots of a topic.
    pub fn remove(&mut self, topic: &Text, topic_id: Uuid, indexes: &[i32]) {
        let key = (topic.clone(), topic_id);
        let Some(&topic_number) = self.topics.get(&key) else { return };
        for index in indexes {
            let Some(number) = self.by_partition.remove(&(topic_number, *index)) else { continue };
            self.free.push(number);
            if let Some(Slot { partition: Some(partition), .. }) = self.slots[number].take()
                && self.subscribed
            {
                partition.subscribers.remove(&self.signal, number);
            }
            let slots = self.slots_of.entry(topic_number).or_default();
            *slots -= 1;
            if *slots == 0 {
                self.slots_of.remove(&topic_number);
                self.topics.remove(&key);
                self.name_bytes -= topic.len();
                return;
            }
        }
    }

    /// The slot `number`, if it is still there.
    pub fn slot(&mut self, number: usize) -> Option<&mut Slot> {
        self.slots.get_mut(number)?.as_mut()
    }

    /// The numbers of all slots.
    pub fn numbers(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|number| self.slots[*number].is_some()).collect()
    }

    /// Begins to hear of commits.
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

    /// Whether there are no partitions.
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
    /// Its id; not 0.
    pub id: i32,
    /// Held by the one fetch that is under way.
    pub state: tokio::sync::Mutex<SessionState>,
}

/// What a fetch works on.
#[derive(Debug)]
pub struct SessionState {
    /// The epoch that the next fetch must carry.
    pub epoch: i32,
    /// What is read.
    pub slots: Slots,
    /// Bytes that it takes of [`SESSIONS_BYTES_MAX`].
    share: Share,
}

impl SessionState {
    /// Takes what slots that were added need; false where there is no room.
    pub fn grow(&mut self) -> bool {
        self.share.grow(self.slots.bytes())
    }
}

/// What one session takes of what there is for all.
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

/// All sessions, bounded in number.
#[derive(Debug)]
pub struct Sessions {
    sessions_max: usize,
    /// Bytes of all.
    used: Arc<AtomicUsize>,
    sessions: Mutex<HashMap<i32, (Arc<Session>, Instant)>>,
}

impl Sessions {
    /// At most `sessions_max` of them.
    pub fn new(sessions_max: usize) -> Sessions {
        Sessions { sessions_max, used: Arc::default(), sessions: Mutex::default() }
    }

    /// Keeps `slots` as a new session, if there is room or an old one may go for it.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sessions.lock().len()
    }
}

/// The epoch after `epoch`; 0 and -1 have meanings of their own.
pub fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}
