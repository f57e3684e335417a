//! WriteTxnMarkers (KIP-98): the markers that end a transaction in the partitions of this broker. The coordinators of other
//! brokers send them, and administrators, who end hanging transactions so: a change for the audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::Offset;
use tokio::sync::oneshot;
use wire::messages as m;
use wire::messages::write_txn_markers_response as wm;
use wire::records::TransactionResult;
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::coordinator::BROKER_CLIENT_ID;
use crate::failure::Failure;
use crate::internal::Told;
use crate::partition::{MARKER_BYTES, Marker, Order, Partition};
use crate::request::Request;
use crate::security::{Operation, audit};
use crate::topics::{OFFSETS_TOPIC, Topic};
use crate::transactions::TransactionIndex;

/// Answers WriteTxnMarkers. `kafka-transactions.sh abort` uses it to end a transaction without a coordinator.
pub async fn write_markers(
    Request { broker, caller, body: request, .. }: Request<m::WriteTxnMarkersRequest>,
) -> m::WriteTxnMarkersResponse {
    let allowed = match broker.authorizer.shows_cluster(&caller, Operation::Alter) {
        true => Ok(()),
        false => broker.authorizer.cluster(&caller, Operation::ClusterAction),
    };
    // Only brokers may have the right of brokers.
    let of_broker = caller.client_id.as_str() == BROKER_CLIENT_ID
        && broker.authorizer.shows_cluster(&caller, Operation::ClusterAction);
    // If a producer, topic or partition occurs several times, the last one counts. A topic without partitions is left
    // out.
    let mut told: BTreeMap<i64, BTreeMap<Text, BTreeMap<i32, ErrorCode>>> = BTreeMap::new();
    for marker in request.markers {
        let result =
            if marker.transaction_result { TransactionResult::Commit } else { TransactionResult::Abort };
        let written = Marker {
            producer: (marker.producer_id, marker.producer_epoch),
            result,
            coordinator_epoch: marker.coordinator_epoch,
        };
        // All markers are queued before the first is awaited, so that they share a group commit.
        let mut begun = Vec::new();
        for topic in &marker.topics {
            let found = broker.topics.find(&topic.name);
            // A repeated partition gets one marker.
            let indexes: BTreeSet<i32> = topic.partition_indexes.iter().copied().collect();
            for index in indexes {
                begun.push(match allowed {
                    Ok(()) => begin_marker(&broker, found.as_deref(), index, written).await,
                    Err(error) => Err(error.into()),
                });
            }
        }
        let mut begun = begun.into_iter();
        for topic in marker.topics {
            let indexes: BTreeSet<i32> = topic.partition_indexes.into_iter().collect();
            for index in indexes {
                let outcome = match begun.next().expect("there is one for each") {
                    Ok(landed) => end_marker(&broker, &topic.name, index, written, landed).await,
                    Err(failure) => Err(failure),
                };
                if outcome.is_ok() && !of_broker {
                    let details = format!("partition {index}, producer {}", marker.producer_id);
                    audit::changed(&caller.origin, "ended a transaction in topic", &topic.name, &details);
                }
                let error = outcome.err().map_or(ErrorCode::None, |failure| failure.code);
                let topics = told.entry(marker.producer_id).or_default();
                topics.entry(topic.name.clone()).or_default().insert(index, error);
            }
        }
    }
    let partition = |(partition_index, error): (i32, ErrorCode)| wm::WritableTxnMarkerPartitionResult {
        partition_index,
        error_code: error.code(),
    };
    let topic = |(name, partitions): (Text, BTreeMap<i32, ErrorCode>)| wm::WritableTxnMarkerTopicResult {
        name,
        partitions: partitions.into_iter().map(partition).collect(),
    };
    let marker = |(producer_id, topics): (i64, BTreeMap<Text, BTreeMap<i32, ErrorCode>>)| {
        wm::WritableTxnMarkerResult { producer_id, topics: topics.into_iter().map(topic).collect() }
    };
    m::WriteTxnMarkersResponse { markers: told.into_iter().map(marker).collect() }
}

/// The offset of a marker, and the receiver of its outcome.
type Landed = (Offset, oneshot::Receiver<Result<(), storage::AppendError>>);

async fn begin_marker(
    broker: &Arc<Broker>,
    topic: Option<&Topic>,
    index: i32,
    marker: Marker,
) -> Result<Landed, Failure> {
    let partition: Option<Arc<Partition>> = topic.and_then(|topic| topic.partition(index));
    let partition = partition.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let log = broker.replica(&partition)?.log.clone();
    let admission = log.reserve(MARKER_BYTES).await?;
    let index_room = log.reserve(TransactionIndex::RECORD_BYTES).await?;
    let (sender, landed) = oneshot::channel();
    let done = Arc::new(Told::new(sender));
    let order = Order::marker((admission, index_room), done, broker.now_ms());
    let offset = partition.append_marker(&*log, marker, order)?;
    Ok((offset, landed))
}

async fn end_marker(
    broker: &Arc<Broker>,
    topic: &str,
    index: i32,
    marker: Marker,
    (offset, landed): Landed,
) -> Result<(), Failure> {
    landed.await.unwrap_or(Err(storage::AppendError::Closed))?;
    if topic == OFFSETS_TOPIC {
        let committed = marker.result == TransactionResult::Commit;
        broker.coordinator.end_transaction(index, marker.producer.0, committed, offset);
    }
    Ok(())
}
