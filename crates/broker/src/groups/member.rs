//! The members of a group, and the counts that follow from them: how many members support each protocol, wait in join,
//! and have yet to sync.
//!
//! Only [`Roster`] changes the counted fields, so the counts cannot drift. [`Roster::check`] recomputes them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::ReplyToken;

/// A protocol (assignor) that a member supports, with the member's metadata for the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protocol {
    /// For instance "range" or "cooperative-sticky".
    pub name: String,
    /// Opaque to the broker, except for the topics of the consumer protocol type.
    pub metadata: Bytes,
}

/// One member of a group.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub id: String,
    pub instance_id: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    /// The assignment of this generation. `None` until it is durable.
    pub assignment: Option<Bytes>,
    /// The member has not finished its first join. It cannot send heartbeats, so it may expire even while it waits.
    pub is_new: bool,
    /// The session deadline on the monotonic clock. `None` only while the member waits.
    pub session_deadline: Option<u64>,
    /// In order of preference. Each name occurs once.
    protocols: Vec<Protocol>,
    join: Option<ReplyToken>,
    sync: Option<ReplyToken>,
    sync_missing: bool,
}

impl Member {
    pub fn new(id: String, instance_id: Option<String>, protocols: Vec<Protocol>) -> Self {
        Self {
            id,
            instance_id,
            client_id: String::new(),
            client_host: String::new(),
            rebalance_timeout_ms: 0,
            session_timeout_ms: 0,
            assignment: None,
            is_new: false,
            session_deadline: None,
            protocols,
            join: None,
            sync: None,
            sync_missing: false,
        }
    }

    pub fn protocols(&self) -> &[Protocol] {
        &self.protocols
    }

    /// The member's metadata for a protocol. Empty if the member does not support the protocol.
    pub fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols.iter().find(|p| p.name == protocol).map(|p| p.metadata.clone()).unwrap_or_default()
    }

    pub fn waits_in_join(&self) -> bool {
        self.join.is_some()
    }

    pub fn waits_in_sync(&self) -> bool {
        self.sync.is_some()
    }

    pub fn sync_missing(&self) -> bool {
        self.sync_missing
    }

    /// A parked request shows that the client is alive. This does not hold for a new member, whose client may have come
    /// back under another id many times. The wait of a new member is therefore bounded.
    pub fn alive_by_waiting(&self) -> bool {
        !self.is_new && (self.waits_in_join() || self.waits_in_sync())
    }

    pub fn arm_session(&mut self, now_ms: u64) -> u64 {
        let deadline = now_ms + millis(self.session_timeout_ms);
        self.session_deadline = Some(deadline);
        deadline
    }
}

/// Converts a timeout from the wire to milliseconds. A negative timeout is 0.
pub(super) fn millis(timeout_ms: i32) -> u64 {
    u64::try_from(timeout_ms).unwrap_or(0)
}

/// All members of a group, by id.
#[derive(Debug, Default)]
pub(super) struct Roster {
    members: BTreeMap<String, Member>,
    /// Maps `group.instance.id` to member id.
    statics: BTreeMap<String, String>,
    /// The number of members that support each protocol; never 0.
    supporters: BTreeMap<String, usize>,
    waiting_joins: usize,
    missing_syncs: usize,
}

/// The parked requests of a removed or replaced member.
#[derive(Debug, Default)]
pub(super) struct Parked {
    pub join: Option<ReplyToken>,
    pub sync: Option<ReplyToken>,
}

impl Roster {
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn has(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }

    pub fn get(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.values_mut()
    }

    pub fn ids(&self) -> Vec<String> {
        self.members.keys().cloned().collect()
    }

    pub fn static_member(&self, instance_id: &str) -> Option<&str> {
        self.statics.get(instance_id).map(String::as_str)
    }

    pub fn waiting_joins(&self) -> usize {
        self.waiting_joins
    }

    pub fn missing_syncs(&self) -> usize {
        self.missing_syncs
    }

    pub fn rebalance_timeout_ms(&self) -> u64 {
        self.members.values().map(|m| millis(m.rebalance_timeout_ms)).max().unwrap_or(0)
    }

    pub fn supported_by_all(&self, protocol: &str) -> bool {
        self.supporters.get(protocol).copied().unwrap_or(0) == self.members.len()
    }

    /// Each member votes for the first of its protocols that all members support. The protocol with the most votes
    /// wins; a tie goes to the name that sorts first.
    pub fn vote(&self) -> Option<&str> {
        let mut votes = BTreeMap::<&str, usize>::new();
        for member in self.members.values() {
            let choice = member.protocols.iter().find(|p| self.supported_by_all(&p.name))?;
            *votes.entry(&choice.name).or_default() += 1;
        }
        let most = votes.values().copied().max()?;
        votes.into_iter().find(|(_, count)| *count == most).map(|(name, _)| name)
    }

    pub fn insert(&mut self, member: Member) {
        assert!(!self.has(&member.id), "a member is added once");
        assert!(
            member.join.is_none() && member.sync.is_none(),
            "a member is added before its request is parked"
        );
        if let Some(instance) = &member.instance_id {
            let taken = self.statics.insert(instance.clone(), member.id.clone());
            assert!(taken.is_none(), "an instance id has one member");
        }
        self.missing_syncs += usize::from(member.sync_missing);
        self.count_protocols(&member.protocols);
        self.members.insert(member.id.clone(), member);
    }

    /// Removes a member. The caller has to answer its parked requests.
    pub fn remove(&mut self, id: &str) -> Option<(Member, Parked)> {
        let mut member = self.members.remove(id)?;
        if let Some(instance) = &member.instance_id {
            self.statics.remove(instance);
        }
        self.uncount_protocols(&member.protocols);
        self.waiting_joins -= usize::from(member.join.is_some());
        self.missing_syncs -= usize::from(member.sync_missing);
        let parked = Parked { join: member.join.take(), sync: member.sync.take() };
        Some((member, parked))
    }

    pub fn set_protocols(&mut self, id: &str, protocols: Vec<Protocol>) {
        let Some(member) = self.members.get_mut(id) else { return };
        let before = std::mem::replace(&mut member.protocols, protocols.clone());
        self.uncount_protocols(&before);
        self.count_protocols(&protocols);
    }

    /// Parks a join, and returns an earlier join of the member that it replaces.
    pub fn park_join(&mut self, id: &str, token: ReplyToken) -> Option<ReplyToken> {
        let member = self.members.get_mut(id)?;
        let before = member.join.replace(token);
        self.waiting_joins += usize::from(before.is_none());
        before
    }

    pub fn unpark_join(&mut self, id: &str) -> Option<ReplyToken> {
        let token = self.members.get_mut(id)?.join.take()?;
        self.waiting_joins -= 1;
        Some(token)
    }

    /// Parks a sync, and returns an earlier sync of the member that it replaces.
    pub fn park_sync(&mut self, id: &str, token: ReplyToken) -> Option<ReplyToken> {
        self.members.get_mut(id)?.sync.replace(token)
    }

    pub fn unpark_sync(&mut self, id: &str) -> Option<ReplyToken> {
        self.members.get_mut(id)?.sync.take()
    }

    pub fn set_sync_missing(&mut self, id: &str, missing: bool) {
        let Some(member) = self.members.get_mut(id) else { return };
        self.missing_syncs -= usize::from(member.sync_missing);
        self.missing_syncs += usize::from(missing);
        member.sync_missing = missing;
    }

    fn count_protocols(&mut self, protocols: &[Protocol]) {
        for protocol in protocols {
            *self.supporters.entry(protocol.name.clone()).or_default() += 1;
        }
    }

    fn uncount_protocols(&mut self, protocols: &[Protocol]) {
        for protocol in protocols {
            if let Some(count) = self.supporters.get_mut(&protocol.name) {
                *count -= 1;
                if *count == 0 {
                    self.supporters.remove(&protocol.name);
                }
            }
        }
    }

    /// Recomputes the counts and compares them.
    pub fn check(&self) {
        let mut supporters = BTreeMap::<String, usize>::new();
        for member in self.members.values() {
            for protocol in &member.protocols {
                *supporters.entry(protocol.name.clone()).or_default() += 1;
            }
            if let Some(instance) = &member.instance_id {
                assert_eq!(self.statics.get(instance), Some(&member.id), "an instance id names its member");
            }
            let heard_of =
                member.session_deadline.is_some() || member.join.is_some() || member.sync.is_some();
            assert!(heard_of, "member {} waits for nothing and never expires", member.id);
        }
        assert_eq!(supporters, self.supporters);
        assert_eq!(self.statics.len(), self.members.values().filter(|m| m.instance_id.is_some()).count());
        assert_eq!(self.waiting_joins, self.members.values().filter(|m| m.join.is_some()).count());
        assert_eq!(self.missing_syncs, self.members.values().filter(|m| m.sync_missing).count());
        assert!(self.members.is_empty() || self.vote().is_some(), "members share a protocol");
    }
}
