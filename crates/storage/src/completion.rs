//! The outcome of a request to the log, and the call that reports it.

use std::sync::Arc;

/// Called once for each append, in log order, from the writer's thread; must not block. Appends that wait until
/// they are visible are completed in the order of their stream, from the thread that makes them visible.
pub trait Completion: Send + Sync {
    /// The append reached its durability, or never will.
    fn complete(&self, result: Result<(), AppendError>);

    /// The waiting caller, as a number that stays the same for this caller. With many callers, their appends wait a
    /// little for each other. An append with `None` never waits.
    fn caller(&self) -> Option<u64> {
        None
    }
}

/// Why an admitted append failed. Readers will never see any of it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// A write or sync failed; the log takes no more appends until the server is restarted.
    #[error("the log stopped taking appends: {0}")]
    Poisoned(Arc<str>),
    /// The server is shutting down.
    #[error("the log is closed")]
    Closed,
    /// The records are on the local disk, and do not get into the object store. Readers may see them later.
    #[error("the records are not in the object store: {0}")]
    Unstored(Arc<str>),
}
