//! The leaders of partitions and the addresses of brokers. Only this module tells requests which broker this is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use wire::Text;

use crate::caller::{Endpoint, Origin};

/// The epoch of the first leader of a partition.
pub const FIRST_EPOCH: i32 = 0;

/// The leader of a partition and its epoch (KIP-101). Each later leader has a higher epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The leader's broker id.
    pub node: i32,
    /// The leader epoch.
    pub epoch: i32,
}

/// The leader of a partition. Id and epoch are read and changed together.
pub struct Leadership(AtomicU64);

impl Leadership {
    pub fn new(leader: Leader) -> Leadership {
        Leadership(AtomicU64::new(pack(leader)))
    }

    pub fn get(&self) -> Leader {
        let packed = self.0.load(Ordering::Acquire);
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("half of it").cast_signed();
        Leader { node: half(packed >> 32), epoch: half(packed) }
    }

    pub fn set(&self, leader: Leader) {
        self.0.store(pack(leader), Ordering::Release);
    }
}

fn pack(leader: Leader) -> u64 {
    u64::from(leader.node.cast_unsigned()) << 32 | u64::from(leader.epoch.cast_unsigned())
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// The listeners of a broker by name, with the addresses at which clients reach them.
pub type Listeners = BTreeMap<String, (String, u16)>;

/// What is known of another broker.
#[derive(Clone, Debug)]
pub struct Known {
    /// Where it is reached.
    pub listeners: Listeners,
    /// `broker.rack`.
    pub rack: Option<String>,
}

/// A broker as a client is told of it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its id.
    pub id: i32,
    /// The address for this client.
    pub endpoint: Endpoint,
    /// `broker.rack`.
    pub rack: Option<Text>,
}

/// The brokers of the cluster, as one of them sees them.
#[derive(Debug)]
pub struct Placement {
    local: i32,
    rack: Option<Text>,
    others: RwLock<Arc<BTreeMap<i32, Known>>>,
    /// The elected controller of a cluster.
    controller: RwLock<Option<i32>>,
}

impl Placement {
    /// The placement of a broker `local` in `rack` without other brokers.
    pub fn alone(local: i32, rack: Option<&str>) -> Placement {
        let rack = rack.map(Text::copied);
        Placement { local, rack, others: RwLock::default(), controller: RwLock::default() }
    }

    /// The id of this broker.
    pub fn local(&self) -> i32 {
        self.local
    }

    /// The leader of a new partition.
    pub fn first_leader(&self) -> Leader {
        Leader { node: self.local, epoch: FIRST_EPOCH }
    }

    /// The controller: the elected one, or else the broker with the lowest id.
    pub fn controller(&self) -> i32 {
        let lowest = || self.others.read().keys().next().map_or(self.local, |first| self.local.min(*first));
        self.controller.read().unwrap_or_else(lowest)
    }

    /// Sets the elected controller.
    pub fn set_controller(&self, broker: Option<i32>) {
        *self.controller.write() = broker;
    }

    /// Whether a broker with this id exists.
    pub fn has(&self, node: i32) -> bool {
        node == self.local || self.others.read().contains_key(&node)
    }

    /// The number of brokers.
    pub fn count(&self) -> i32 {
        i32::try_from(self.others.read().len()).unwrap_or(i32::MAX).saturating_add(1)
    }

    /// Replaces the other brokers.
    pub fn set_others(&self, others: BTreeMap<i32, Known>) {
        *self.others.write() = Arc::new(others);
    }

    /// The brokers that a client of this origin can reach, by id. This broker has the address that the client reached.
    /// The other brokers have their listeners of the same name.
    pub fn nodes(&self, origin: &Origin) -> Vec<Node> {
        let others = self.others.read().clone();
        let others = others.keys().filter_map(|id| self.other(&others, *id, origin));
        let mut nodes: Vec<Node> = std::iter::once(self.own(origin)).chain(others).collect();
        nodes.sort_unstable_by_key(|node| node.id);
        nodes
    }

    /// A broker, if a client of this origin can reach it.
    pub fn node(&self, id: i32, origin: &Origin) -> Option<Node> {
        if id == self.local {
            return Some(self.own(origin));
        }
        self.other(&self.others.read(), id, origin)
    }

    fn own(&self, origin: &Origin) -> Node {
        Node { id: self.local, endpoint: origin.endpoint(), rack: self.rack.clone() }
    }

    fn other(&self, others: &BTreeMap<i32, Known>, id: i32, origin: &Origin) -> Option<Node> {
        let Known { listeners, rack } = others.get(&id)?;
        let (host, port) = listeners.get(&origin.listener.name)?;
        let endpoint = Endpoint { host: Text::copied(host), port: i32::from(*port) };
        Some(Node { id, endpoint, rack: rack.as_deref().map(Text::copied) })
    }

    /// The address of another broker's listener.
    pub fn address(&self, node: i32, listener: &str) -> Option<(String, u16)> {
        self.others.read().get(&node)?.listeners.get(listener).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaders_come_back_as_they_were_set() {
        for leader in [(1, 0), (0, i32::MAX), (i32::MAX, 7), (-1, -1)] {
            let leader = Leader { node: leader.0, epoch: leader.1 };
            let leadership = Leadership::new(Leader { node: 5, epoch: 5 });
            leadership.set(leader);
            assert_eq!(leadership.get(), leader);
        }
    }
}
