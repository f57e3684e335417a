//! Produce: checks each batch, queues it in the log, and answers when the log has reached the durability that `acks`
//! asks for.
//!
//! [`begin`] does everything up to the queue, in the order of the connection's requests. The answer is awaited
//! separately, so that several requests share a group commit.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use model::{BatchError, BatchHeader, Compression, Timestamp, batch};
use parking_lot::Mutex;
use storage::{AppendError, Completion, Durability};
use tokio::time::Sleep;
use wire::messages::ProduceRequest;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, ProduceResponse,
    TopicProduceResponse,
};
use wire::records::{RecordView, records};
use wire::{ApiKey, ErrorCode, Records};

use crate::api::produce_leaders::Patience;
use crate::api::produce_records::{believed, check_records, out_of_range, undecodable, walk_records};
use crate::api::produce_tally::{Batch, Tally};
use crate::api::produce_transactions::{ADDS_FROM_VERSION, Transactions};
use crate::broker::{Broker, InSync};
use crate::caller::{Caller, Endpoint};
use crate::failure::Failure;
use crate::metrics::Errors;
use crate::partition::log::PartitionLog;
use crate::partition::traffic::Count;
use crate::partition::{Appended, Checked, Order, Partition, Replica};
use crate::placement::{Leader, Node};
use crate::security::Operation;
use crate::settings::topic::TopicConfig;
use crate::topics::Topic;
use crate::transactions::{Check, TransactionIndex};

/// The first version whose clients know zstd (KIP-110).
const ZSTD_FROM_VERSION: i16 = 7;
/// The first version that names topics by id.
const IDS_FROM_VERSION: i16 = 13;
/// Bounds of the report of invalid records in a batch: their number, because a batch may have millions, and the
/// decompressed bytes that are searched for them, because a refused batch must be cheap for the server.
const WRONG_RECORDS_MAX: usize = 1000;
const WRONG_BYTES_MAX: usize = 1024 * 1024;
/// The first version whose answer can name invalid records.
const RECORD_ERRORS_FROM_VERSION: i16 = 8;
/// Bytes of the smallest record: length, attributes, two deltas, two lengths and the header count.
const RECORD_BYTES_MIN: usize = 7;
/// The first version whose answer can name the leader of a partition that another broker leads (KIP-951).
const LEADER_TOLD_FROM_VERSION: i16 = 10;
/// Minimum time to wait for a batch on its way to the disk, even if the client's timeout is shorter.
pub const DISK_PATIENCE: Duration = Duration::from_secs(5);

/// One partition's part of a request whose batch is queued.
struct Part {
    topic: usize,
    at: usize,
    partition: Arc<Partition>,
    log: Arc<dyn PartitionLog>,
    log_append_time: Option<Timestamp>,
    appended: Appended,
    batch: Arc<Batch>,
    in_sync: Option<InSync>,
}

/// A request whose batches are in the log's queue.
pub struct Begun {
    response: ProduceResponse,
    parts: Vec<Part>,
    tally: Arc<Tally>,
    timeout: Duration,
    /// The time-out. `None` before the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// The wait for duplicates: their partitions must be committed up to the end of the original batches.
    duplicates: Option<Pin<Box<dyn Future<Output = Duplicates> + Send>>>,
    errors: Errors,
}

/// The outcome of duplicate batches, by their positions in [`Begun::parts`].
type Duplicates = Vec<(usize, Result<(), AppendError>)>;

/// Checks and queues all batches of `request`.
pub async fn begin(broker: &Arc<Broker>, caller: &Caller, request: ProduceRequest, version: i16) -> Begun {
    let topics = find_topics(broker, caller, &request, version);
    let id = request.transactional_id.as_ref();
    let allowed = id.map(|id| broker.authorizer.transactional_id(caller, Operation::Write, id));
    let durability = match request.acks {
        _ if let Some(Err(error)) = allowed => Err(Failure::new(error)),
        -1 => Ok(Some(Durability::Synced)),
        1 => Ok(Some(Durability::Written)),
        0 => Ok(None),
        _ => Err(Failure::new(ErrorCode::InvalidRequiredAcks)),
    };
    let patience = Patience::new(broker, &request);
    patience.begin(broker, &request, &topics).await;
    let transactions = match &durability {
        Ok(_) if id.is_some() => Box::pin(Transactions::begin(broker, &request, &topics, version)).await,
        _ => Transactions::default(),
    };
    let tally = Arc::new(Tally {
        caller: Arc::as_ptr(&caller.origin).addr() as u64,
        left: AtomicUsize::new(1),
        waiting: Mutex::default(),
    });
    let mut response = ProduceResponse {
        responses: Vec::with_capacity(request.topic_data.len()),
        ..ProduceResponse::default()
    };
    let (mut parts, mut elsewhere) = (Vec::new(), BTreeSet::new());
    let mut naming = Naming::of(request.acks, version);
    for (at_topic, data) in request.topic_data.into_iter().enumerate() {
        let TopicProduceData { name, topic_id, partition_data } = data;
        let topic = &topics[at_topic];
        let mut answers = Vec::with_capacity(partition_data.len());
        for (at, data) in partition_data.into_iter().enumerate() {
            let index = data.index;
            let begun = match (&durability, topic) {
                (Err(failure), _) => Err(failure.clone().into()),
                (_, Err(error)) => Err((*error).into()),
                (Ok(durability), Ok(topic)) => {
                    let transaction = transactions.of(at_topic, at);
                    let batch = Arc::new(Batch { tally: tally.clone(), failure: OnceLock::new() });
                    let done = batch.clone();
                    let appended =
                        append(broker, topic, data, *durability, done, transaction, &mut naming).await;
                    appended.map(|appended| (appended, batch))
                }
            };
            let mut answer = PartitionProduceResponse {
                index,
                log_append_time_ms: -1,
                log_start_offset: -1,
                ..Default::default()
            };
            match begun {
                Ok(((partition, log, appended, log_append_time, in_sync), batch)) => {
                    let topic = at_topic;
                    parts.push(Part { topic, at, partition, log, log_append_time, appended, batch, in_sync });
                }
                Err(refusal) => {
                    if let Ok(topic) = topic
                        && !is_expected(refusal.failure.code)
                    {
                        topic.traffic.add(Count::FailedProduceRequests, 1);
                    }
                    refuse(&mut answer, &refusal.failure);
                    if refusal.failure.code == ErrorCode::NotLeaderOrFollower
                        && version >= LEADER_TOLD_FROM_VERSION
                        && let Ok(topic) = topic
                    {
                        // The log may have been closed since.
                        patience.settle(broker, &[(topic.clone(), index)]).await;
                        let leader = topic.partition(index).map(|partition| partition.leader());
                        // A log that is being closed may have no other leader to name.
                        if let Some(Leader { node, epoch: leader_epoch }) = leader
                            && node != broker.placement.local()
                        {
                            answer.current_leader = LeaderIdAndEpoch { leader_id: node, leader_epoch };
                            elsewhere.insert(node);
                        }
                    }
                    answer.log_start_offset = refusal.log_start_offset;
                    answer.record_errors = refusal.records;
                }
            }
            answers.push(answer);
        }
        response.responses.push(TopicProduceResponse { name, topic_id, partition_responses: answers });
    }
    let endpoint = |node_id: i32| {
        let Node { endpoint: Endpoint { host, port }, rack, .. } =
            broker.placement.node(node_id, &caller.origin)?;
        Some(NodeEndpoint { node_id, host, port, rack })
    };
    response.node_endpoints = elsewhere.into_iter().filter_map(endpoint).collect();
    tally.finish_one();
    // In Kafka the timeout bounds the wait for other replicas. Here the wait for the own disk has a minimum.
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).max(DISK_PATIENCE);
    let errors = broker.metrics.errors(ApiKey::Produce);
    Begun { response, parts, tally, timeout, sleep: None, duplicates: None, errors }
}

/// The topic of each part of the request, if the topic exists and the caller may write to it.
fn find_topics(
    broker: &Broker,
    caller: &Caller,
    request: &ProduceRequest,
    version: i16,
) -> Vec<Result<Arc<Topic>, ErrorCode>> {
    let find = |asked: &TopicProduceData| {
        if version >= IDS_FROM_VERSION {
            let topic = broker.topics.find_id(&asked.topic_id).ok_or(ErrorCode::UnknownTopicId)?;
            broker.authorizer.topic(caller, Operation::Write, &topic.name)?;
            return Ok(topic);
        }
        broker.authorizer.topic(caller, Operation::Write, &asked.name)?;
        broker.topics.find(&asked.name).ok_or(ErrorCode::UnknownTopicOrPartition)
    };
    request.topic_data.iter().map(find).collect()
}

impl Begun {
    /// Waits until the log is done with all batches, and returns the answer once. A time-out is reported as such, but
    /// the batches are still appended.
    pub fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<ProduceResponse> {
        let duplicates = match self.poll_done(context) {
            Poll::Ready(duplicates) => Some(duplicates),
            Poll::Pending => {
                let timeout = self.timeout;
                let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                ready!(sleep.as_mut().poll(context));
                None
            }
        };
        Poll::Ready(self.answer(duplicates))
    }

    fn poll_done(&mut self, context: &mut Context<'_>) -> Poll<Duplicates> {
        if self.duplicates.is_none() {
            ready!(self.tally.poll(context));
            let duplicate = |(number, part): (usize, &Part)| match part.appended {
                Appended::Duplicate { end, .. } => {
                    Some((number, part.partition.clone(), part.log.clone(), end))
                }
                Appended::New { .. } => None,
            };
            let all: Vec<_> = self.parts.iter().enumerate().filter_map(duplicate).collect();
            if all.is_empty() {
                return Poll::Ready(Vec::new());
            }
            self.duplicates = Some(Box::pin(async move {
                let mut outcomes = Vec::with_capacity(all.len());
                for (number, partition, log, end) in all {
                    outcomes.push((number, partition.committed(&*log, end).await));
                }
                outcomes
            }));
        }
        let duplicates = self.duplicates.as_mut().expect("it was just set where it was not");
        duplicates.as_mut().poll(context)
    }

    /// Builds the answer. `duplicates` holds the outcome of duplicate batches, or is `None` after a time-out.
    fn answer(&mut self, duplicates: Option<Duplicates>) -> ProduceResponse {
        let mut response = std::mem::take(&mut self.response);
        let of_duplicate = |number: usize, all: &Duplicates| {
            let at = all.binary_search_by_key(&number, |(of, _)| *of).ok()?;
            Some(all[at].1.clone())
        };
        for (number, part) in self.parts.iter().enumerate() {
            let answer = &mut response.responses[part.topic].partition_responses[part.at];
            let outcome = match (&duplicates, &part.appended) {
                (None, _) => Err(Failure::new(ErrorCode::RequestTimedOut)),
                (Some(_), Appended::New { .. }) => {
                    part.batch.failure.get().map_or(Ok(()), |error| Err(error.clone().into()))
                }
                (Some(all), Appended::Duplicate { .. }) => {
                    of_duplicate(number, all).unwrap_or(Ok(())).map_err(Failure::from)
                }
            };
            match outcome {
                // The records stay, and consumers see them.
                Ok(()) if part.in_sync.as_ref().is_some_and(|needed| !needed.is_met()) => {
                    refuse(answer, &ErrorCode::NotEnoughReplicasAfterAppend.into());
                }
                Ok(()) => {
                    let (Appended::New { base_offset } | Appended::Duplicate { base_offset, .. }) =
                        part.appended;
                    answer.base_offset = base_offset.0;
                    answer.log_append_time_ms = part.log_append_time.map_or(-1, |time| time.0);
                    answer.log_start_offset = part.log.bounds().start.0;
                }
                Err(failure) => refuse(answer, &failure),
            }
        }
        let answers = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        answers.for_each(|answer| self.errors.count(answer.error_code));
        response
    }

    /// The first error code in the answer, if any. With `acks=0`, the client learns of it by a closed connection.
    pub fn first_error(&self) -> Option<i16> {
        let all = self.response.responses.iter().flat_map(|topic| &topic.partition_responses);
        all.map(|partition| partition.error_code).find(|code| *code != 0)
    }
}

/// The reason why a batch was not appended, and the start of the partition's log if the batch got as far as the log. As
/// in Kafka, the start is reported only then.
struct Refusal {
    failure: Failure,
    log_start_offset: i64,
    /// The invalid records, each with a message (KIP-467).
    records: Vec<BatchIndexAndErrorMessage>,
}

impl Refusal {
    fn by_log(log: &dyn PartitionLog, failure: impl Into<Failure>) -> Refusal {
        let log_start_offset = log.bounds().start.0;
        Refusal { failure: failure.into(), log_start_offset, records: Vec::new() }
    }

    /// Adds the invalid records, with Kafka's messages. Does nothing if no single record is invalid.
    fn because_of(mut self, wrong: Vec<(i32, String)>) -> Refusal {
        if !wrong.is_empty() {
            let shown =
                |(index, why): &(i32, String)| format!("RecordError(batchIndex={index}, message='{why}')");
            let first: Vec<String> = wrong.iter().take(3).map(shown).collect();
            self.failure.message = Some(if self.failure.code == ErrorCode::InvalidTimestamp {
                "One or more records have been rejected due to invalid timestamp".into()
            } else {
                format!(
                    "One or more records have been rejected due to {} record errors in total, and only showing the first three errors at most: [{}]",
                    wrong.len(),
                    first.join(", ")
                )
                .into()
            });
        }
        let record = |(batch_index, why): (i32, String)| BatchIndexAndErrorMessage {
            batch_index,
            batch_index_error_message: Some(why.into()),
        };
        self.records = wrong.into_iter().map(record).collect();
        self
    }
}

impl<T: Into<Failure>> From<T> for Refusal {
    fn from(failure: T) -> Refusal {
        Refusal { failure: failure.into(), log_start_offset: -1, records: Vec::new() }
    }
}

/// Whether a refusal with this code is no sign that the server has failed. As Kafka, which does not count them as failures
/// (`ReplicaManager`).
fn is_expected(code: ErrorCode) -> bool {
    use ErrorCode::*;
    matches!(
        code,
        UnknownTopicOrPartition
            | UnknownTopicId
            | NotLeaderOrFollower
            | MessageTooLarge
            | RecordListTooLarge
            | CorruptMessage
            | KafkaStorageError
    )
}

fn refuse(answer: &mut PartitionProduceResponse, failure: &Failure) {
    answer.error_code = failure.code.code();
    answer.base_offset = -1;
    answer.error_message = failure.message.clone();
}

async fn append(
    broker: &Arc<Broker>,
    topic: &Topic,
    data: PartitionProduceData,
    durability: Option<Durability>,
    done: Arc<Batch>,
    transaction: Option<Result<Option<Check>, Failure>>,
    naming: &mut Naming,
) -> Result<(Arc<Partition>, Arc<dyn PartitionLog>, Appended, Option<Timestamp>, Option<InSync>), Refusal> {
    topic.traffic.add(Count::ProduceRequests, 1);
    let partition = topic.partition(data.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if topic.is_internal() {
        return Err(ErrorCode::InvalidTopicException.into());
    }
    let Replica { log, epoch } = broker.replica(&partition)?;
    let log = log.clone();
    let now_ms = broker.now_ms();
    let (header, bytes) = parse(data.records)?;
    let config = topic.config();
    let in_sync = InSync::needed(broker, &config, &*log, durability)?;
    let refuse = |failure: Failure, naming: &mut Naming| match failure.code {
        ErrorCode::InvalidRecord | ErrorCode::InvalidTimestamp => {
            let wrong = naming.wrong_records(&bytes, &partition, &config, failure.code, now_ms);
            Refusal::by_log(&*log, failure).because_of(wrong)
        }
        _ => failure.into(),
    };
    if let Err(failure) = check_header(&header, &bytes, &config, naming.version) {
        if failure.code == ErrorCode::MessageTooLarge {
            topic.traffic.add(Count::BytesRejected, header.total_bytes as u64);
        }
        return Err(refuse(failure, naming));
    }
    let walked = match walk_records(&broker.walks, header, &bytes).await {
        Ok(walked) => walked,
        Err(error) => return Err(Refusal::by_log(&*log, undecodable(&error))),
    };
    let append_time = match check_records(&header, &walked, &config, now_ms) {
        Ok(append_time) => append_time,
        Err(failure) => return Err(refuse(failure, naming)),
    };
    let (header, bytes) = believed(header, bytes, &walked);
    let batch = Checked { header, bytes, append_time };
    let (mut check, mut index_room) = (None, None);
    if batch.header.is_transactional() {
        // Without a transactional id, a transactional batch belongs to no transaction.
        check = transaction.ok_or(ErrorCode::TransactionalIdAuthorizationFailed)??;
        index_room = Some(log.reserve(TransactionIndex::RECORD_BYTES).await?);
    }
    let admission = log.reserve(batch.bytes.len()).await?;
    if partition.is_deleted() {
        return Err(ErrorCode::UnknownTopicOrPartition.into());
    }
    let (log_append_time, size) = (batch.append_time, (batch.bytes.len(), batch.header.count));
    let tally = done.tally.clone();
    let done = durability.map(|_| {
        tally.left.fetch_add(1, Ordering::AcqRel);
        done as Arc<dyn Completion>
    });
    let waits = done.is_some();
    let durability = durability.unwrap_or(Durability::Written);
    let begins_anew = check.is_some() && naming.version >= ADDS_FROM_VERSION;
    let order = Order {
        admission,
        index_room,
        check,
        begins_anew,
        leader_epoch: Some(epoch),
        durability,
        done,
        now_ms,
    };
    let appended = partition.append(&*log, batch, order);
    if waits && !matches!(appended, Ok(Appended::New { .. })) {
        tally.finish_one();
    }
    let appended = appended.map_err(|error| Refusal::by_log(&*log, error))?;
    if let Appended::New { .. } = appended {
        topic.traffic.add(Count::BytesIn, size.0 as u64);
        topic.traffic.add(Count::MessagesIn, u64::try_from(size.1).unwrap_or(0));
    }
    Ok((partition, log, appended, log_append_time, in_sync))
}

/// The only batch in a partition's part of a request.
fn parse(records: Option<Records>) -> Result<(BatchHeader, Bytes), Failure> {
    let invalid = |why: &'static str| Failure::because(ErrorCode::InvalidRecord, why);
    let bytes: Bytes = records.map(|records| records.to_bytes()).unwrap_or_default();
    if bytes.is_empty() {
        return Err(invalid(
            "Produce requests with version 3 or higher must have one record batch per partition",
        ));
    }
    let header = BatchHeader::parse(&bytes).map_err(|error| match error {
        BatchError::Magic(magic) => {
            let why = format!("record batches of magic {magic} are not supported, only 2 is");
            Failure::because(ErrorCode::InvalidRecord, why)
        }
        BatchError::Truncated { .. } => invalid(
            "Record batch for partition is cut short: there must be exactly one record batch per partition",
        ),
        error => corrupt(error),
    })?;
    if bytes.len() != header.total_bytes {
        return Err(invalid(
            "Produce requests with version 3 or higher must have exactly one record batch per partition",
        ));
    }
    Ok((header, bytes))
}

fn corrupt(error: BatchError) -> Failure {
    let code = match error {
        BatchError::Count { .. } | BatchError::Codec(_) => ErrorCode::InvalidRecord,
        _ => ErrorCode::CorruptMessage,
    };
    Failure::because(code, error.to_string())
}

/// Checks a batch before its records are read.
fn check_header(
    header: &BatchHeader,
    bytes: &Bytes,
    config: &TopicConfig,
    version: i16,
) -> Result<(), Failure> {
    let invalid = |why: &'static str| Failure::because(ErrorCode::InvalidRecord, why);
    if header.total_bytes > config.message_bytes_max {
        let (have, max) = (header.total_bytes, config.message_bytes_max);
        let why = format!(
            "The record batch size is {have} bytes, which exceeds the maximum configured size of {max}."
        );
        return Err(Failure::because(ErrorCode::MessageTooLarge, why));
    }
    batch::verify_crc(bytes, header).map_err(corrupt)?;
    if i64::from(header.count) != header.offset_count() || header.count == 0 {
        return Err(invalid("the record count and the last offset delta of the batch do not fit"));
    }
    let least = usize::try_from(header.count).unwrap_or(usize::MAX).saturating_mul(RECORD_BYTES_MIN);
    if header.compression() == Compression::None && least > header.total_bytes - batch::HEADER_BYTES {
        return Err(invalid("the batch is too small for the records it claims"));
    }
    if header.is_control() {
        return Err(invalid("Clients are not allowed to write control records"));
    }
    if header.is_transactional() && !header.is_idempotent() {
        return Err(invalid("a transactional batch needs a producer id"));
    }
    if header.is_idempotent() && (header.base_sequence < 0 || header.producer_epoch < 0) {
        return Err(invalid("an idempotent batch needs a sequence and an epoch"));
    }
    if header.compression() == Compression::Zstd && version < ZSTD_FROM_VERSION {
        return Err(ErrorCode::UnsupportedCompressionType.into());
    }
    Ok(())
}

/// The remaining budget for naming the invalid records of a request's batches (KIP-467). Such batches are cheap to
/// send.
struct Naming {
    /// The version of the request.
    version: i16,
    records: usize,
    bytes: usize,
}

impl Naming {
    /// The budget is zero if the answer cannot name records.
    fn of(acks: i16, version: i16) -> Naming {
        if acks == 0 || version < RECORD_ERRORS_FROM_VERSION {
            return Naming { version, records: 0, bytes: 0 };
        }
        Naming { version, records: WRONG_RECORDS_MAX, bytes: WRONG_BYTES_MAX }
    }

    /// The positions of the records for which a batch is refused with `code`. The batch was already checked as a whole,
    /// so this is called only for a refused batch.
    fn wrong_records(
        &mut self,
        batch: &Bytes,
        partition: &Partition,
        config: &TopicConfig,
        code: ErrorCode,
        now_ms: i64,
    ) -> Vec<(i32, String)> {
        let from = now_ms.saturating_sub(config.timestamp_before_max_ms);
        let to = now_ms.saturating_add(config.timestamp_after_max_ms);
        if self.records == 0 || self.bytes == 0 {
            return Vec::new();
        }
        let Ok((header, all)) = records(batch, self.bytes) else {
            // The batch exceeds the budget or is damaged. In both cases the budget is spent.
            self.bytes = 0;
            return Vec::new();
        };
        let wrong = |index: i32, record: &RecordView| match code {
            ErrorCode::InvalidTimestamp => {
                let time = Timestamp(header.base_timestamp.0.wrapping_add(record.timestamp_delta));
                out_of_range(time, config, now_ms).then(|| {
                    format!(
                        "Timestamp {} of message with offset {index} is out of range. The timestamp should be within [{from}, {to}]",
                        time.0
                    )
                })
            }
            _ => (config.compaction.is_some() && record.key.is_none()).then(|| {
                let (topic, partition) = (&partition.topic, partition.index);
                format!(
                    "Compacted topic cannot accept message without key in topic partition {topic}-{partition}"
                )
            }),
        };
        // The decompressed size is unknown here, so it is estimated from the smallest record.
        let count = usize::try_from(header.count).unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(batch.len().max(count * RECORD_BYTES_MIN));
        let all = (0..).zip(all.map_while(Result::ok));
        let found: Vec<_> = all
            .filter_map(|(index, record)| Some((index, wrong(index, &record)?)))
            .take(self.records)
            .collect();
        self.records -= found.len();
        found
    }
}
