//! The transactional batches of a produce request: asks the coordinator whether each batch may be appended to its
//! partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::BatchHeader;
use wire::ErrorCode;
use wire::messages::ProduceRequest;

use crate::broker::Broker;
use crate::failure::Failure;
use crate::partition::Partition;
use crate::request::error_codes::transaction_code;
use crate::topics::Topic;
use crate::transactions::{Check, TransactionError};

/// The first version whose clients know TRANSACTION_ABORTABLE.
const ABORTABLE_FROM_VERSION: i16 = 11;
/// The first version in which Produce adds the partitions to the transaction. Its producers use a new epoch for each
/// transaction (KIP-890).
pub const ADDS_FROM_VERSION: i16 = 12;

/// The coordinator's answers for the transactional batches of a request, by their positions in the request.
#[derive(Default)]
pub struct Transactions {
    /// Whether the request names a transactional id.
    named: bool,
    checks: BTreeMap<(usize, usize), Result<Check, Failure>>,
}

/// A batch that needs an answer of the coordinator.
struct Asked {
    at: (usize, usize),
    topic: String,
    partition: Arc<Partition>,
    check: Check,
}

impl Asked {
    fn name(&self) -> (String, i32) {
        (self.topic.clone(), self.partition.index)
    }
}

impl Transactions {
    /// Asks the coordinator about every transactional batch whose transaction is not open in its partition yet. Older
    /// clients must have added their partitions before. For newer clients the partitions are added here, once for the
    /// whole request (KIP-890).
    pub async fn begin(
        broker: &Arc<Broker>,
        request: &ProduceRequest,
        topics: &[Result<Arc<Topic>, ErrorCode>],
        version: i16,
    ) -> Transactions {
        let Some(id) = &request.transactional_id else { return Transactions::default() };
        let mut asked = Vec::new();
        let mut places = Vec::new();
        let (mut one, mut several) = (None, false);
        for (at_topic, data) in request.topic_data.iter().enumerate() {
            let Ok(topic) = &topics[at_topic] else { continue };
            for (at, data) in data.partition_data.iter().enumerate() {
                let header =
                    data.records.as_ref().map(|records| BatchHeader::parse_header(&records.to_bytes()));
                let Some((partition, Ok(header))) = topic.partition(data.index).zip(header) else { continue };
                if !header.is_transactional() || !header.is_idempotent() {
                    continue;
                }
                let producer = (header.producer_id, header.producer_epoch);
                several |= *one.get_or_insert(producer) != producer;
                places.push((at_topic, at));
                if several {
                    continue;
                }
                if let Some(check) = partition.begin_check(producer) {
                    asked.push(Asked { at: (at_topic, at), topic: topic.name.to_string(), partition, check });
                }
            }
        }
        let mut checks = BTreeMap::new();
        let mut answer = |asked: Asked, producer_id, result: Result<(), Failure>| {
            if result.is_err() {
                asked.partition.cancel_check(producer_id, asked.check);
            }
            checks.insert(asked.at, result.map(|()| asked.check));
        };
        match one {
            // As in Kafka, a transactional id has one producer.
            Some(producer) if several => {
                let failure = Failure::because(
                    ErrorCode::InvalidProducerIdMapping,
                    "Transactional records contained more than one producer ID",
                );
                asked.into_iter().for_each(|asked| answer(asked, producer.0, Err(failure.clone())));
                checks.extend(places.into_iter().map(|place| (place, Err(failure.clone()))));
            }
            Some(producer) if version >= ADDS_FROM_VERSION && !asked.is_empty() => {
                let partitions = asked.iter().map(Asked::name).collect();
                let added = broker.add_to_transaction(id, producer, partitions).await;
                let added = added.map_err(|error| refusal(error, version));
                asked.into_iter().for_each(|asked| answer(asked, producer.0, added.clone()));
            }
            Some(producer) => {
                for asked in asked {
                    let verified = broker.verify_in_transaction(id, producer, asked.name()).await;
                    answer(asked, producer.0, verified.map_err(|error| refusal(error, version)));
                }
            }
            None => {}
        }
        Transactions { named: true, checks }
    }

    /// The answer for the batch at this position: `None` without a transactional id, `Ok(None)` if no check is needed.
    pub fn of(&self, topic: usize, at: usize) -> Option<Result<Option<Check>, Failure>> {
        self.named.then(|| self.checks.get(&(topic, at)).cloned().transpose())
    }
}

/// Kafka's error for a producer whose transaction does not contain the partition.
fn refusal(error: TransactionError, version: i16) -> Failure {
    let message = error.to_string();
    let code = match error {
        TransactionError::Fenced => ErrorCode::InvalidProducerEpoch,
        TransactionError::NotInTransaction if version < ABORTABLE_FROM_VERSION => ErrorCode::InvalidTxnState,
        // Clients of these versions retry only on this code (KIP-890).
        TransactionError::Concurrent if version < ADDS_FROM_VERSION => ErrorCode::NotEnoughReplicas,
        TransactionError::NotAvailable => ErrorCode::NotEnoughReplicas,
        error => transaction_code(error),
    };
    Failure::because(code, message)
}
