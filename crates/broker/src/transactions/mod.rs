//! Transactions (KIP-98, KIP-890): their state in each partition, their index in each log, and the state machine of a
//! transactional id.

mod index;
mod partition;
pub mod records;
mod state;

pub use index::{INDEX_STREAM, StoredTransactions, TransactionIndex};
pub use partition::{AbortedTransaction, Check, PartitionTransactions};
pub use state::{End, EndStep, Status, TopicPartition, Transaction, TransactionError};
