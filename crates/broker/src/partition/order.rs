//! What comes with a batch that is appended to a partition.

use std::sync::Arc;

use storage::{Admission, Completion, Durability};
use wire::records::TransactionResult;

use crate::transactions::Check;

/// The parameters of an append.
pub struct Order {
    /// Space in the log for the batch.
    pub admission: Admission,
    /// Space for an entry of the transaction index. Required for transactional batches and markers.
    pub index_room: Option<Admission>,
    /// Proof that the transaction coordinator was asked. For transactional batches.
    pub check: Option<Check>,
    /// Whether the producer uses a new epoch for each transaction, so that its first batch here has sequence 0
    /// (KIP-890).
    pub begins_anew: bool,
    /// The leader epoch in which the batch was admitted. A batch of another epoch is refused. `None` skips this check.
    pub leader_epoch: Option<i32>,
    /// The durability at which `done` is called.
    pub durability: Durability,
    /// Called once the batch has reached `durability`, or has failed.
    pub done: Option<Arc<dyn Completion>>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
}

impl Order {
    /// The parameters of a marker, with the room for it and for the transaction index.
    pub fn marker(
        (admission, index_room): (Admission, Admission),
        done: Arc<dyn Completion>,
        now_ms: i64,
    ) -> Order {
        let index_room = Some(index_room);
        Order { index_room, ..Order::plain(admission, Durability::Synced, Some(done), now_ms) }
    }

    /// The parameters of a batch written by the server itself, without a transaction.
    pub fn plain(
        admission: Admission,
        durability: Durability,
        done: Option<Arc<dyn Completion>>,
        now_ms: i64,
    ) -> Order {
        Order {
            admission,
            index_room: None,
            check: None,
            begins_anew: false,
            leader_epoch: None,
            durability,
            done,
            now_ms,
        }
    }
}

/// The end of a producer's transaction, for each of its partitions.
#[derive(Clone, Copy, Debug)]
pub struct Marker {
    /// The producer's id and epoch.
    pub producer: (i64, i16),
    /// Commit or abort.
    pub result: TransactionResult,
    /// The leader epoch in which the sender coordinates the producer. Markers of an earlier coordinator are refused.
    pub coordinator_epoch: i32,
}
