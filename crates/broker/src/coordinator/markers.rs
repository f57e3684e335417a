//! The markers that end a transaction in each of its partitions (KIP-98).

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use model::Offset;
use storage::{Admission, AppendError};
use tokio::sync::oneshot;
use uuid::Uuid;
use wire::records::TransactionResult;

use super::Peers;
use crate::internal::Told;
use crate::partition::log::PartitionLog;
use crate::partition::sequence::SequenceError;
use crate::partition::{MARKER_BYTES, Marker, Order, Partition};
use crate::topics::{OFFSETS_TOPIC, Topics};
use crate::transactions::{TopicPartition, Transaction, TransactionError, TransactionIndex};

/// Receives the outcome of an append: the records are durable, or never will be.
pub(super) type Landed = oneshot::Receiver<Result<(), AppendError>>;

/// Waits until records are durable.
pub(super) async fn landed(landed: Landed) -> Result<(), TransactionError> {
    landed.await.ok().and_then(Result::ok).ok_or(TransactionError::NotAvailable)
}

/// Reserves room for records of a log.
pub(super) async fn room(log: &dyn PartitionLog, bytes: usize) -> Result<Admission, TransactionError> {
    log.reserve(bytes).await.map_err(|_| TransactionError::NotAvailable)
}

/// Writes markers, and applies the markers in `__consumer_offsets` to the groups.
pub(super) struct MarkerSender {
    topics: Weak<Topics>,
    peers: Arc<Peers>,
}

/// A partition that gets a marker, with the space reserved for the marker.
struct Target {
    partition: Arc<Partition>,
    log: Arc<dyn PartitionLog>,
    room: Admission,
    index_room: Admission,
}

/// The markers of one transaction, with the space reserved for them.
pub(super) struct Markers {
    marker: Marker,
    targets: Vec<Target>,
    /// Partitions that cannot take a marker now, because their log is lost, stopped or full.
    pub offline: BTreeSet<TopicPartition>,
}

impl Markers {
    /// Whether all markers go into the log with this id.
    pub fn are_all_in(&self, log_id: Uuid) -> bool {
        self.targets.iter().all(|target| target.log.log_id() == log_id)
    }
}

/// Markers that are queued and not yet known to be durable.
pub(super) struct Sent {
    producer_id: i64,
    result: TransactionResult,
    markers: Vec<(Arc<Partition>, Offset, Landed)>,
    /// Partitions that did not take their marker now, because they have no room to end earlier transactions.
    pub refused: BTreeSet<TopicPartition>,
}

impl MarkerSender {
    pub fn new(topics: &Arc<Topics>, peers: Arc<Peers>) -> MarkerSender {
        MarkerSender { topics: Arc::downgrade(topics), peers }
    }

    /// Reserves space for all markers of a transaction that is about to end. A full disk therefore stops the
    /// transaction before its first step, not between two steps. Deleted partitions need no marker.
    ///
    /// The sender coordinates the transaction in the leader epoch `coordinator_epoch`.
    pub async fn admit(&self, of: &Transaction, coordinator_epoch: i32) -> Result<Markers, TransactionError> {
        let topics = self.topics.upgrade().ok_or(TransactionError::NotAvailable)?;
        let result = of.status.ending().ok_or(TransactionError::InvalidState)?;
        let marker = Marker { producer: (of.producer_id, of.epoch), result, coordinator_epoch };
        let mut markers = Markers { marker, targets: Vec::new(), offline: BTreeSet::new() };
        for (topic, index) in &of.partitions {
            let partition = topics.find(topic).and_then(|topic| topic.partition(*index));
            let Some(partition) = partition.filter(|partition| !partition.is_deleted()) else { continue };
            match target(partition).await {
                Some(target) => markers.targets.push(target),
                None => {
                    markers.offline.insert((topic.clone(), *index));
                }
            }
        }
        Ok(markers)
    }

    /// Queues the markers.
    pub fn send(&self, of: Markers, transactional_id: &str, now_ms: i64) -> Sent {
        let mut markers = Vec::with_capacity(of.targets.len());
        let mut refused = BTreeSet::new();
        for Target { partition, log, room, index_room } in of.targets {
            let (sender, marked) = oneshot::channel();
            let order = Order::marker((room, index_room), Arc::new(Told::new(sender)), now_ms);
            match partition.append_marker(&*log, of.marker, order) {
                Ok(offset) => markers.push((partition, offset, marked)),
                Err(SequenceError::Undecided) => {
                    refused.insert((partition.topic.to_string(), partition.index));
                }
                // A newer producer, or another coordinator, has ended the transaction in this partition.
                Err(error) => {
                    let partition = partition.index;
                    tracing::warn!(transactional_id, partition, %error, "no marker was written");
                }
            }
        }
        Sent { producer_id: of.marker.producer.0, result: of.marker.result, markers, refused }
    }

    /// Waits until all markers are durable, and applies the markers in `__consumer_offsets` to the groups.
    pub async fn finish(&self, sent: Sent) -> Result<(), TransactionError> {
        let mut outcome = Ok(());
        for (partition, offset, marked) in sent.markers {
            match landed(marked).await {
                Ok(()) if partition.topic.as_str() == OFFSETS_TOPIC => {
                    if let Some(groups) = self.peers.groups(partition.leader().node) {
                        let committed = sent.result == TransactionResult::Commit;
                        groups.end_transaction(partition.index, sent.producer_id, committed, offset);
                    }
                }
                Ok(()) => {}
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }
}

async fn target(partition: Arc<Partition>) -> Option<Target> {
    let log = partition.log().ok().filter(|log| log.stopped().is_none())?.clone();
    let marker = room(&*log, MARKER_BYTES).await.ok()?;
    let index_room = room(&*log, TransactionIndex::RECORD_BYTES).await.ok()?;
    Some(Target { partition, log, room: marker, index_room })
}
