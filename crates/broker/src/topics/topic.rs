//! A topic: its partitions, its settings, and its record in the metadata.

use std::sync::Arc;

use parking_lot::RwLock;
use uuid::Uuid;
use wire::Text;

use crate::image::records::TopicRecord;
use crate::partition::Partition;
use crate::partition::traffic::Traffic;
use crate::settings::topic::TopicConfig;

/// The topic of committed offsets and group state.
pub const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// The topic of transaction state.
pub const TRANSACTIONS_TOPIC: &str = "__transaction_state";

/// A topic.
#[derive(Debug)]
pub struct Topic {
    /// The topic's name.
    pub name: Text,
    /// The topic's id (KIP-516).
    pub id: Uuid,
    pub(super) partitions: RwLock<Arc<[Arc<Partition>]>>,
    /// The topic's record in the metadata.
    pub(super) record: RwLock<Arc<TopicRecord>>,
    pub(super) config: RwLock<Arc<TopicConfig>>,
    /// What clients have sent to it and got from it.
    pub traffic: Arc<Traffic>,
}

impl Topic {
    /// All partitions of the topic.
    pub fn partitions(&self) -> Arc<[Arc<Partition>]> {
        self.partitions.read().clone()
    }

    /// The partition `index`.
    pub fn partition(&self, index: i32) -> Option<Arc<Partition>> {
        self.partitions.read().get(usize::try_from(index).ok()?).cloned()
    }

    /// The topic's settings.
    pub fn config(&self) -> Arc<TopicConfig> {
        self.config.read().clone()
    }

    /// The topic's record in the metadata. It contains, among others, the settings that differ from the defaults, as
    /// text.
    pub fn record(&self) -> Arc<TopicRecord> {
        self.record.read().clone()
    }

    /// What its partitions know of it.
    pub(super) fn named(&self) -> (&Text, &Arc<Traffic>) {
        (&self.name, &self.traffic)
    }

    /// Whether the server keeps the topic for itself.
    pub fn is_internal(&self) -> bool {
        is_internal(&self.name)
    }
}

/// Whether the server keeps the topic of this name for itself.
pub(super) fn is_internal(name: &str) -> bool {
    matches!(name, OFFSETS_TOPIC | TRANSACTIONS_TOPIC)
}
