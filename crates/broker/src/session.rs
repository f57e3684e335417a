//! Fetch sessions (KIP-227): what a consumer reads is remembered, so that a fetch names only what changed, and looks
//! only at partitions that changed.
//!
//! A slot is clean when the last look at it found nothing new; a commit, or a change that the client sends, makes it
//! dirty again. Only dirty slots are looked at.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;
use wire::Text;

use crate::broker::Broker;
use crate::caller::{Caller, Principal};
use crate::partition::Partition;
use crate::security::Operation;
use crate::signal::Signal;

/// A session that was used so recently is not evicted for a new one (Kafka's `min.incremental.fetch.session.eviction.ms`).
const EVICTION_AGE: Duration = Duration::from_secs(120);

/// What a client reads of one partition.
#[derive(Debug)]
pub struct Slot {
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
    by_partition: HashMap<(Text, Uuid, i32), usize>,
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
    /// Adds a slot or changes what is asked of it; it is dirty afterwards.
    pub fn put(&mut self, slot: Slot) {
        let key = (slot.topic.detached(), slot.topic_id, slot.index);
        let number = match self.by_partition.get(&key) {
            Some(&number) => {
                let old = self.slots[number].as_mut().expect("a named slot is there");
                old.offset = slot.offset;
                old.bytes_max = slot.bytes_max;
                old.leader_epoch = slot.leader_epoch;
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
                let topic = key.0.clone();
                self.slots[number] = Some(Slot { topic, ..slot });
                self.by_partition.insert(key, number);
                number
            }
        };
        self.unauthorized.push(number);
        self.signal.mark(number, 0);
    }

    /// Looks again for the partitions of topics that are known by name and were not there: clients name them once, and a
    /// topic that was deleted may have been created again.
    pub fn find_missing(&mut self, broker: &Broker) {
        for number in std::mem::take(&mut self.missing) {
            let Some(slot) = self.slots[number].as_ref().filter(|slot| slot.topic_id.is_nil()) else {
                continue;
            };
            if let Some(topic) = broker.topics.find(&slot.topic)
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
    pub fn authorize(&mut self, broker: &Broker, caller: &Caller) {
        let authorizer = &broker.authorizer;
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

    /// Removes a slot.
    pub fn remove(&mut self, topic: &Text, topic_id: Uuid, index: i32) {
        let Some(number) = self.by_partition.remove(&(topic.clone(), topic_id, index)) else { return };
        self.free.push(number);
        if let Some(Slot { partition: Some(partition), .. }) = self.slots[number].take()
            && self.subscribed
        {
            partition.subscribers.remove(&self.signal, number);
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
}

/// All sessions, bounded in number.
#[derive(Debug)]
pub struct Sessions {
    sessions_max: usize,
    sessions: Mutex<HashMap<i32, (Arc<Session>, Instant)>>,
}

impl Sessions {
    /// At most `sessions_max` of them.
    pub fn new(sessions_max: usize) -> Sessions {
        Sessions { sessions_max, sessions: Mutex::default() }
    }

    /// Keeps `slots` as a new session, if there is room or an old one may go for it.
    pub fn create(&self, slots: Slots) -> Option<Arc<Session>> {
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
        let session =
            Arc::new(Session { id, state: tokio::sync::Mutex::new(SessionState { epoch: 1, slots }) });
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
