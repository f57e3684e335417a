//! DeleteRecords (KIP-107): moves the start of partitions forward.

use std::sync::Arc;
use std::time::Duration;

use model::Offset;
use storage::{AppendError, Completion};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use wire::ErrorCode;
use wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use wire::messages::{DeleteRecordsRequest, delete_records_request::DeleteRecordsPartition};

use crate::api::produce::DISK_PATIENCE;
use crate::broker::Broker;
use crate::failure::Failure;
use crate::internal::Told;
use crate::partition::log::PartitionLog;
use crate::request::Request;
use crate::security::{Operation, audit};
use crate::topics::Topic;

/// In a request: all records. In an answer: no offset.
const ALL: i64 = -1;

/// Answers DeleteRecords once the new starts are durable: in a cluster, once the object store has them.
pub async fn answer(
    Request { broker, caller, body: request, .. }: Request<DeleteRecordsRequest>,
) -> DeleteRecordsResponse {
    let patience = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).max(DISK_PATIENCE);
    let deadline = Instant::now() + patience;
    let mut topics = Vec::with_capacity(request.topics.len());
    for asked in request.topics {
        let allowed = broker.authorizer.topic(&caller, Operation::Delete, &asked.name);
        let topic = broker.topics.find(&asked.name);
        if let (Some(topic), Ok(())) = (&topic, allowed) {
            // What is not visible by then is out of range.
            let _ = timeout_at(deadline, until_visible(&broker, topic, &asked.partitions)).await;
        }
        // All trims of a topic are started before the first is awaited.
        let begun: Vec<_> = asked
            .partitions
            .iter()
            .map(|partition| {
                allowed.map_err(Failure::from).and_then(|()| begin(&broker, topic.as_deref(), partition))
            })
            .collect();
        let mut partitions = Vec::with_capacity(begun.len());
        for (asked, begun) in asked.partitions.iter().zip(begun) {
            let result = match begun {
                Ok(begun) => {
                    let finished = timeout_at(deadline, begun.finish()).await;
                    finished.unwrap_or(Err(ErrorCode::RequestTimedOut.into()))
                }
                Err(failure) => Err(failure),
            };
            let (low_watermark, code) =
                result.map_or_else(|failure| (ALL, failure.code), |start| (start.0, ErrorCode::None));
            partitions.push(DeleteRecordsPartitionResult {
                partition_index: asked.partition_index,
                low_watermark,
                error_code: code.code(),
            });
        }
        let done: Vec<String> = partitions
            .iter()
            .filter(|partition: &&DeleteRecordsPartitionResult| partition.error_code == 0)
            .map(|partition| format!("{} to {}", partition.partition_index, partition.low_watermark))
            .collect();
        if !done.is_empty() {
            let details = format!("of partitions {}", done.join(", "));
            audit::changed(&caller.origin, "deleted records of topic", &asked.name, &details);
        }
        topics.push(DeleteRecordsTopicResult { name: asked.name, partitions });
    }
    DeleteRecordsResponse { topics, ..DeleteRecordsResponse::default() }
}

/// Waits until the records are visible that were answered before the request came (acks=1): a client that names one of them
/// was told that it exists.
async fn until_visible(broker: &Broker, topic: &Topic, asked: &[DeleteRecordsPartition]) {
    for of in asked {
        let Some(partition) = topic.partition(of.partition_index) else { continue };
        let Ok(replica) = broker.replica(&partition) else { continue };
        let next = partition.next_offset();
        let to = if of.offset == ALL { next } else { Offset(of.offset) };
        if to <= next && to > replica.log.bounds().visible {
            // A log that has stopped is an error of what follows.
            let _ = partition.committed(&**replica.log, to).await;
        }
    }
}

struct Begun {
    log: Arc<dyn PartitionLog>,
    done: oneshot::Receiver<Result<(), AppendError>>,
}

impl Begun {
    async fn finish(self) -> Result<Offset, Failure> {
        self.done.await.unwrap_or(Err(AppendError::Closed))?;
        Ok(self.log.bounds().start)
    }
}

fn begin(broker: &Broker, topic: Option<&Topic>, asked: &DeleteRecordsPartition) -> Result<Begun, Failure> {
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if topic.is_internal() {
        return Err(ErrorCode::InvalidTopicException.into());
    }
    let partition = topic.partition(asked.partition_index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if !topic.config().deletes {
        return Err(ErrorCode::PolicyViolation.into());
    }
    let log = broker.replica(&partition)?.log;
    let bounds = log.bounds();
    let to = if asked.offset == ALL { bounds.visible } else { Offset(asked.offset) };
    if to < Offset::ZERO || to > bounds.visible {
        return Err(ErrorCode::OffsetOutOfRange.into());
    }
    let (sender, done) = oneshot::channel();
    let trimmed = Told::new(sender);
    if to <= bounds.start && !broker.logs.are_moving() {
        // The start has moved once that was durable. In a cluster, the object store may not have it yet.
        trimmed.complete(Ok(()));
    } else {
        partition.trim(&**log, to, Arc::new(trimmed))?;
    }
    Ok(Begun { log: log.clone(), done })
}
