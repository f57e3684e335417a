//! InitProducerId: an id for an idempotent producer, and an epoch for a transactional one (KIP-98). Ids are taken from the metadata store in blocks, so that
//! one is never given out twice, whatever crashes.

use std::sync::Arc;

use meta::{Change, Compare, MetaError, Store};
use parking_lot::Mutex;
use wire::ErrorCode;
use wire::messages::{InitProducerIdRequest, InitProducerIdResponse};

use crate::broker::Broker;
use crate::caller::Caller;
use crate::failure::transaction_code;
use crate::security::{Operation, ResourceType};
use crate::stored;
use crate::transactions::TransactionError;

/// Ids taken from the store at once.
const BLOCK_IDS: i64 = 1000;
/// The first version whose clients know PRODUCER_FENCED.
const FENCED_FROM_VERSION: i16 = 4;
const NEXT_BLOCK_KEY: &str = "next_producer_id";

/// Hands out producer ids.
#[derive(Debug, Default)]
pub struct ProducerIds(Mutex<std::ops::Range<i64>>);

impl ProducerIds {
    /// An id that was never given out. Blocks now and then.
    pub fn take(&self, store: &Store) -> Result<i64, MetaError> {
        let mut block = self.0.lock();
        if block.is_empty() {
            let stored = store.find(NEXT_BLOCK_KEY)?;
            let revision = stored.as_ref().map(|value| value.revision);
            let stored = stored.map(|value| stored::read(NEXT_BLOCK_KEY, &value)).transpose()?;
            let first: i64 = stored.unwrap_or(0);
            let bytes = serde_json::to_vec(&(first + BLOCK_IDS)).expect("a number can be written as JSON");
            let compare = Compare { key: NEXT_BLOCK_KEY.into(), revision };
            store.commit(&[compare], &[Change::Put { key: NEXT_BLOCK_KEY.into(), bytes }])?;
            *block = first..first + BLOCK_IDS;
        }
        Ok(block.next().expect("the block was just filled if it was empty"))
    }
}

/// Answers InitProducerId.
pub async fn answer(
    broker: Arc<Broker>,
    caller: Caller,
    request: InitProducerIdRequest,
    version: i16,
) -> InitProducerIdResponse {
    let refused = |error: ErrorCode| InitProducerIdResponse {
        error_code: error.code(),
        producer_id: -1,
        producer_epoch: -1,
        ..InitProducerIdResponse::default()
    };
    let authorizer = &broker.authorizer;
    if let Some(id) = request.transactional_id {
        if let Err(error) = authorizer.transactional_id(&caller, Operation::Write, &id) {
            return refused(error);
        }
        if id.is_empty() {
            return refused(ErrorCode::InvalidRequest);
        }
        if broker.transactions_topic().await.is_err() {
            return refused(ErrorCode::CoordinatorNotAvailable);
        }
        let expected = match (request.producer_id, request.producer_epoch) {
            (-1, -1) => None,
            (-1, _) | (_, -1) => return refused(ErrorCode::InvalidRequest),
            expected => Some(expected),
        };
        let (id, timeout_ms) = (id.to_string(), request.transaction_timeout_ms);
        return match broker.transactions.initialize(id, expected, timeout_ms).await {
            Ok((producer_id, producer_epoch)) => {
                InitProducerIdResponse { producer_id, producer_epoch, ..InitProducerIdResponse::default() }
            }
            Err(TransactionError::Fenced) if version < FENCED_FROM_VERSION => {
                refused(ErrorCode::InvalidProducerEpoch)
            }
            Err(error) => refused(transaction_code(error)),
        };
    }
    if (request.producer_id == -1) != (request.producer_epoch == -1) {
        return refused(ErrorCode::InvalidRequest);
    }
    // Who may write to any topic may do so idempotently (KIP-679).
    if !authorizer.allows_somewhere(&caller, Operation::Write, ResourceType::Topic)
        && let Err(error) = authorizer.cluster(&caller, Operation::IdempotentWrite)
    {
        return refused(error);
    }
    let taken = broker.blocking(|broker| broker.producer_ids.take(&broker.store)).await;
    match taken {
        Ok(producer_id) => {
            InitProducerIdResponse { producer_id, producer_epoch: 0, ..InitProducerIdResponse::default() }
        }
        Err(error) => {
            tracing::error!(%error, "no producer id could be taken");
            refused(ErrorCode::CoordinatorNotAvailable)
        }
    }
}
