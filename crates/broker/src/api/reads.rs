//! Code shared by Fetch and ListOffsets: reads of batches, and answers without records.

use std::collections::BTreeSet;
use std::time::Duration;

use storage::{Batches, ReadDone, ReadError, ReadRequest, ReadStep};
use wire::messages::FetchRequest;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse, NodeEndpoint, PartitionData};
use wire::{ErrorCode, Records};

use crate::broker::Broker;
use crate::caller::{Caller, Endpoint};
use crate::partition::log::PartitionLog;
use crate::placement::Node;
use crate::resources::seldom::Seldom;

/// The `isolation_level` of consumers that see no records of open or aborted transactions. It is the largest level.
pub const READ_COMMITTED: i8 = 1;

/// A partition's part of an answer, without records.
pub fn without_records(partition_index: i32, error: ErrorCode) -> PartitionData {
    PartitionData {
        partition_index,
        error_code: error.code(),
        high_watermark: -1,
        last_stable_offset: -1,
        log_start_offset: -1,
        aborted_transactions: Some(Vec::new()),
        records: Some(Records::new()),
        ..PartitionData::default()
    }
}

/// The answer for an unknown isolation level, on which Kafka fails. With `named`, the answer lists the topics.
pub fn unknown_isolation(request: &FetchRequest, named: bool) -> FetchResponse {
    let error = ErrorCode::UnknownServerError;
    let topic = |topic: &FetchTopic| {
        let partition = |asked: &FetchPartition| without_records(asked.partition, error);
        FetchableTopicResponse {
            topic: topic.topic.clone(),
            topic_id: topic.topic_id,
            partitions: topic.partitions.iter().map(partition).collect(),
        }
    };
    let named = request.topics.iter().filter(|_| named);
    FetchResponse {
        responses: named.map(topic).collect(),
        error_code: error.code(),
        ..FetchResponse::default()
    }
}

/// Reads from the caches, or on a thread of the log if the caches do not hold the data.
pub async fn read_batches(log: &dyn PartitionLog, request: ReadRequest) -> Result<Batches, ReadError> {
    match log.read(&request)? {
        ReadStep::Ready(batches) => Ok(batches),
        ReadStep::Cold { .. } => {
            let bytes_max = request.bytes_max;
            read_later(log, vec![request], bytes_max).await.pop().unwrap_or(Err(ReadError::Closed))
        }
    }
}

/// A fetch that waits for the disk, until the fetch is dropped.
struct Reader(tokio::sync::oneshot::Sender<Vec<Result<Batches, ReadError>>>);

impl ReadDone for Reader {
    fn waits(&self) -> bool {
        !self.0.is_closed()
    }

    fn done(self: Box<Self>, results: Vec<Result<Batches, ReadError>>) {
        // The receiver may be dropped if the fetch has ended.
        drop(self.0.send(results));
    }
}

/// Reads on a thread of the log. Returns one result for each request, or the same error for all of them.
pub async fn read_later(
    log: &dyn PartitionLog,
    requests: Vec<ReadRequest>,
    bytes_max: usize,
) -> Vec<Result<Batches, ReadError>> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let count = requests.len();
    log.read_later(requests, bytes_max, Box::new(Reader(sender)));
    receiver.await.unwrap_or_else(|_| (0..count).map(|_| Err(ReadError::Closed)).collect())
}

/// How often a failed read is logged: consumers of records in an object store that is away come back at once, all of them.
static FAILURES: Seldom = Seldom::every(Duration::from_secs(10));

/// Logs that reading from disk or from the object store failed.
pub fn tell_failed_read(topic: Option<&str>, partition: i32, error: &ReadError) {
    if matches!(error, ReadError::Damaged { .. } | ReadError::Io(_)) && FAILURES.is_due() {
        tracing::error!(topic, partition, %error, "a read failed; others are not logged for ten seconds");
    }
}

/// The endpoints of the leaders that an answer names. As in Kafka, a replica's fetch gets none.
pub fn leaders_told(
    broker: &Broker,
    caller: &Caller,
    by_replica: bool,
    responses: &[FetchableTopicResponse],
) -> Vec<NodeEndpoint> {
    let responses = if by_replica { &[] } else { responses };
    let partitions = responses.iter().flat_map(|topic| &topic.partitions);
    let told = partitions.map(|partition| partition.current_leader.leader_id).filter(|node| *node >= 0);
    let told: BTreeSet<i32> = told.collect();
    let endpoint = |node_id: i32| {
        let Node { endpoint: Endpoint { host, port }, rack, .. } =
            broker.placement.node(node_id, &caller.origin)?;
        Some(NodeEndpoint { node_id, host, port, rack })
    };
    told.into_iter().filter_map(endpoint).collect()
}

/// Refuses a client that assumes another leader epoch than `current` (KIP-320). -1 means no epoch.
pub fn check_leader_epoch(epoch: i32, current: i32) -> Result<(), ErrorCode> {
    match epoch {
        -1 => Ok(()),
        _ if epoch < current => Err(ErrorCode::FencedLeaderEpoch),
        _ if epoch > current => Err(ErrorCode::UnknownLeaderEpoch),
        _ => Ok(()),
    }
}
