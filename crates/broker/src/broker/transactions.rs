//! What leaders of partitions ask the coordinator of a transaction, which may be another broker (KIP-890).

use std::collections::BTreeMap;
use std::sync::Arc;

use wire::messages::add_partitions_to_txn_request::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use wire::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use wire::{ErrorCode, Text};

use super::Broker;
use crate::coordinator::TransactionCoordinator;
use crate::transactions::{TopicPartition, TransactionError};

/// The version of AddPartitionsToTxn between brokers.
const ADD_VERSION: i16 = 5;
/// The `transaction.version` of clients that leave the addition of partitions to the brokers. They use a new epoch for each
/// transaction.
pub const BUMPING: i16 = 2;

/// The coordinator of a transaction.
enum Place {
    Here(Arc<TransactionCoordinator>),
    Elsewhere(i32),
}

impl Broker {
    /// Adds partitions to a producer's transaction, for clients that leave this to the brokers.
    pub(crate) async fn add_to_transaction(
        &self,
        id: &str,
        producer: (i64, i16),
        partitions: Vec<TopicPartition>,
    ) -> Result<(), TransactionError> {
        match self.place_of(id) {
            Place::Here(transactions) => transactions.add(id, producer, partitions, BUMPING).await,
            Place::Elsewhere(node) => self.ask(node, id, producer, partitions, false).await,
        }
    }

    /// Checks that a producer's open transaction contains a partition.
    pub(crate) async fn verify_in_transaction(
        &self,
        id: &str,
        producer: (i64, i16),
        partition: TopicPartition,
    ) -> Result<(), TransactionError> {
        match self.place_of(id) {
            Place::Here(transactions) => transactions.verify(id, producer, &partition).await,
            Place::Elsewhere(node) => self.ask(node, id, producer, vec![partition], true).await,
        }
    }

    fn place_of(&self, id: &str) -> Place {
        match self.transactions.served_by(id) {
            Some(node) if node != self.placement.local() => {
                self.peers.transactions(node).map_or(Place::Elsewhere(node), Place::Here)
            }
            _ => Place::Here(self.transactions.clone()),
        }
    }

    async fn ask(
        &self,
        node: i32,
        id: &str,
        (producer_id, producer_epoch): (i64, i16),
        partitions: Vec<TopicPartition>,
        verify_only: bool,
    ) -> Result<(), TransactionError> {
        let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        for (topic, index) in partitions {
            topics.entry(topic).or_default().push(index);
        }
        let topic = |(name, partitions): (String, Vec<i32>)| AddPartitionsToTxnTopic {
            name: Text::from(name),
            partitions,
        };
        let transaction = AddPartitionsToTxnTransaction {
            transactional_id: Text::copied(id),
            producer_id,
            producer_epoch,
            verify_only,
            topics: topics.into_iter().map(topic).collect(),
        };
        let request = AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() };
        let answer: Option<AddPartitionsToTxnResponse> = self.peers.ask(node, ADD_VERSION, &request).await;
        let answer = answer.ok_or(TransactionError::NotAvailable)?;
        if answer.error_code != 0 {
            return Err(error_of(answer.error_code));
        }
        let results = answer.results_by_transaction.into_iter().flat_map(|of| of.topic_results);
        let mut codes = results.flat_map(|of| of.results_by_partition).map(|of| of.partition_error_code);
        // An answer without any partition says nothing.
        let first = codes.next().ok_or(TransactionError::NotAvailable)?;
        let failed = std::iter::once(first).chain(codes).find(|code| *code != 0);
        failed.map_or(Ok(()), |code| Err(error_of(code)))
    }
}

/// The error of another broker's coordinator.
fn error_of(code: i16) -> TransactionError {
    match ErrorCode::from_code(code) {
        Some(ErrorCode::InvalidProducerIdMapping) => TransactionError::ProducerIdMapping,
        Some(ErrorCode::ProducerFenced | ErrorCode::InvalidProducerEpoch) => TransactionError::Fenced,
        Some(ErrorCode::InvalidTxnState) => TransactionError::InvalidState,
        Some(ErrorCode::ConcurrentTransactions) => TransactionError::Concurrent,
        Some(ErrorCode::TransactionAbortable) => TransactionError::NotInTransaction,
        _ => TransactionError::NotAvailable,
    }
}
