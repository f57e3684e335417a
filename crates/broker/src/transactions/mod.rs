//! Transactions (KIP-98, KIP-890): what each partition knows of them, what a log stores of that, and what a transaction may do next.

mod index;
mod partition;
pub mod records;
mod state;

pub use index::{INDEX_STREAM, StoredTransactions, TransactionIndex};
pub use partition::{AbortedTransaction, Check, PartitionTransactions};
pub use state::{End, EndStep, Status, TopicPartition, Transaction, TransactionError};
