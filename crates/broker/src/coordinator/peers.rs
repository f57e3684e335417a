//! The coordinators of all brokers in this process, by broker id.
//!
//! The leader of a partition asks the transaction coordinator whether a transaction contains the partition. A group
//! coordinator has to learn how transactions end. A process with a single broker finds only that broker here.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::{Coordinator, TransactionCoordinator};
use crate::partition::Partition;
use crate::topics::{OFFSETS_TOPIC, TRANSACTIONS_TOPIC};

#[derive(Debug, Default)]
struct Peer {
    groups: Weak<Coordinator>,
    transactions: Weak<TransactionCoordinator>,
}

/// The coordinators, by broker id.
#[derive(Debug, Default)]
pub struct Peers(RwLock<BTreeMap<i32, Peer>>);

impl Peers {
    /// Adds the coordinators of a broker.
    pub fn add(&self, node: i32, groups: &Arc<Coordinator>, transactions: &Arc<TransactionCoordinator>) {
        let peer = Peer { groups: Arc::downgrade(groups), transactions: Arc::downgrade(transactions) };
        self.0.write().insert(node, peer);
    }

    /// Makes every coordinator load or unload a partition of an internal topic, depending on the leader of the
    /// partition.
    pub fn follow(&self, partition: &Arc<Partition>) {
        let topic = partition.topic.as_str();
        for Peer { groups, transactions } in self.0.read().values() {
            match (topic, groups.upgrade(), transactions.upgrade()) {
                (OFFSETS_TOPIC, Some(groups), _) => groups.follow(partition),
                (TRANSACTIONS_TOPIC, _, Some(transactions)) => transactions.follow(partition),
                _ => {}
            }
        }
    }

    /// The group coordinator of a broker.
    pub fn groups(&self, node: i32) -> Option<Arc<Coordinator>> {
        self.0.read().get(&node)?.groups.upgrade()
    }

    /// The transaction coordinator of a broker.
    pub fn transactions(&self, node: i32) -> Option<Arc<TransactionCoordinator>> {
        self.0.read().get(&node)?.transactions.upgrade()
    }
}
