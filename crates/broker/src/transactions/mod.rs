//! Transactions (KIP-98, KIP-890): what each partition knows of them, what a log stores of that, and their coordinator.

mod coordinator;
mod index;
mod partition;
mod records;
mod state;

pub use coordinator::TransactionCoordinator;
pub use index::{INDEX_STREAM, StoredTransactions, TransactionIndex};
pub use partition::{AbortedTransaction, Check, PartitionTransactions};
pub use state::{End, Status, TopicPartition, Transaction, TransactionError};
