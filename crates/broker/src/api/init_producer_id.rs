//! InitProducerId: a producer id for an idempotent producer, and an id with an epoch for a transactional one (KIP-98).

use wire::ErrorCode;
use wire::messages::{InitProducerIdRequest, InitProducerIdResponse};

use crate::api::transactions::served;
use crate::request::Request;
use crate::request::error_codes::transaction_code;
use crate::security::{Operation, ResourceType};
use crate::transactions::TransactionError;

/// The first version whose clients know PRODUCER_FENCED.
const FENCED_FROM_VERSION: i16 = 4;

/// Answers InitProducerId.
pub async fn answer(
    Request { broker, caller, version, body: request, .. }: Request<InitProducerIdRequest>,
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
        if let Err(error) = served(&broker, &id) {
            return refused(error);
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
    // A caller that may write to any topic may also write idempotently (KIP-679).
    if !authorizer.allows_somewhere(&caller, Operation::Write, ResourceType::Topic)
        && let Err(error) = authorizer.cluster(&caller, Operation::IdempotentWrite)
    {
        return refused(error);
    }
    let taken = broker.blocking(|broker| broker.producer_ids.take()).await;
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
