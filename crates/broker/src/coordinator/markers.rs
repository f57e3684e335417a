//! The markers that end a transaction in each of its partitions (KIP-98).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use model::Offset;
use storage::{Admission, AppendError};
use tokio::sync::oneshot;
use uuid::Uuid;
use wire::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use wire::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use wire::records::TransactionResult;
use wire::{ErrorCode, Text};

use super::Peers;
use crate::internal::Told;
use crate::logs::Absent;
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

/// Partitions by the broker that leads them.
type Remotes = BTreeMap<i32, BTreeSet<TopicPartition>>;

/// The version of WriteTxnMarkers between brokers.
const MARKERS_VERSION: i16 = 1;

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
    /// Partitions that brokers in other processes lead, by broker.
    remote: Remotes,
    /// Partitions that cannot take a marker now, because their log is lost, stopped or full.
    pub offline: BTreeSet<TopicPartition>,
}

impl Markers {
    /// Whether all markers go into the log with this id.
    pub fn are_all_in(&self, log_id: Uuid) -> bool {
        self.remote.is_empty() && self.targets.iter().all(|target| target.log.log_id() == log_id)
    }
}

/// Markers that are queued and not yet known to be durable.
pub(super) struct Sent {
    marker: Marker,
    markers: Vec<(Arc<Partition>, Offset, Landed)>,
    remote: Remotes,
    /// Partitions that did not take their marker now: they have no room to end earlier transactions, or their log moves.
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
        let (targets, remote, offline) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let mut markers = Markers { marker, targets, remote, offline };
        for (topic, index) in &of.partitions {
            let partition = topics.find(topic).and_then(|topic| topic.partition(*index));
            let Some(partition) = partition.filter(|partition| !partition.is_deleted()) else { continue };
            if matches!(partition.log(), Err(Absent::Elsewhere)) {
                let leader = partition.leader().node;
                markers.remote.entry(leader).or_default().insert((topic.clone(), *index));
                continue;
            }
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
                Err(SequenceError::Undecided | SequenceError::Moved) => {
                    refused.insert((partition.topic.to_string(), partition.index));
                }
                // A newer producer, or another coordinator, has ended the transaction in this partition.
                Err(error) => {
                    let partition = partition.index;
                    tracing::warn!(transactional_id, partition, %error, "no marker was written");
                }
            }
        }
        Sent { marker: of.marker, markers, remote: of.remote, refused }
    }

    /// Waits until all markers are durable, and applies the markers in `__consumer_offsets` to the groups. Returns the
    /// partitions of other brokers that did not take theirs.
    pub async fn finish(&self, sent: Sent) -> Result<BTreeSet<TopicPartition>, TransactionError> {
        let Marker { producer: (producer_id, _), result, .. } = sent.marker;
        let asked: Vec<_> = sent
            .remote
            .into_iter()
            .map(|(node, partitions)| {
                let (peers, marker) = (self.peers.clone(), sent.marker);
                tokio::spawn(async move { write_elsewhere(&peers, node, marker, partitions).await })
            })
            .collect();
        let mut outcome = Ok(BTreeSet::new());
        for (partition, offset, marked) in sent.markers {
            match landed(marked).await {
                Ok(()) if partition.topic.as_str() == OFFSETS_TOPIC => {
                    if let Some(groups) = self.peers.groups(partition.leader().node) {
                        let committed = result == TransactionResult::Commit;
                        groups.end_transaction(partition.index, producer_id, committed, offset);
                    }
                }
                Ok(()) => {}
                Err(error) => outcome = Err(error),
            }
        }
        for asked in asked {
            match (asked.await, &mut outcome) {
                (Ok(mut refused), Ok(all)) => all.append(&mut refused),
                (Ok(_), Err(_)) => {}
                (Err(_), _) => outcome = Err(TransactionError::NotAvailable),
            }
        }
        outcome
    }
}

/// Lets another broker write a marker into its partitions. Returns those that have none for sure.
async fn write_elsewhere(
    peers: &Peers,
    node: i32,
    marker: Marker,
    partitions: BTreeSet<TopicPartition>,
) -> BTreeSet<TopicPartition> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, index) in &partitions {
        topics.entry(topic).or_default().push(*index);
    }
    let topic = |(name, partition_indexes): (&str, Vec<i32>)| WritableTxnMarkerTopic {
        name: Text::copied(name),
        partition_indexes,
    };
    let request = WriteTxnMarkersRequest {
        markers: vec![WritableTxnMarker {
            producer_id: marker.producer.0,
            producer_epoch: marker.producer.1,
            transaction_result: marker.result == TransactionResult::Commit,
            topics: topics.into_iter().map(topic).collect(),
            coordinator_epoch: marker.coordinator_epoch,
            ..WritableTxnMarker::default()
        }],
    };
    let answer: Option<WriteTxnMarkersResponse> = peers.ask(node, MARKERS_VERSION, &request).await;
    let results = answer.into_iter().flat_map(|answer| answer.markers).flat_map(|marker| marker.topics);
    let written: BTreeSet<TopicPartition> = results
        .flat_map(|topic| {
            let name = topic.name.to_string();
            topic.partitions.into_iter().map(move |of| (name.clone(), of))
        })
        .filter(|(topic, of)| {
            let error = ErrorCode::from_code(of.error_code);
            // A newer producer, or another coordinator, has ended the transaction in this partition.
            let ended = matches!(
                error,
                Some(ErrorCode::InvalidProducerEpoch | ErrorCode::TransactionCoordinatorFenced)
            );
            if ended {
                tracing::warn!(topic, partition = of.partition_index, ?error, "no marker was written");
            }
            ended || of.error_code == 0
        })
        .map(|(topic, of)| (topic, of.partition_index))
        .collect();
    partitions.into_iter().filter(|partition| !written.contains(partition)).collect()
}

async fn target(partition: Arc<Partition>) -> Option<Target> {
    let log = partition.log().ok().filter(|log| log.stopped().is_none())?.clone();
    let marker = room(&*log, MARKER_BYTES).await.ok()?;
    let index_room = room(&*log, TransactionIndex::RECORD_BYTES).await.ok()?;
    Some(Target { partition, log, room: marker, index_room })
}
