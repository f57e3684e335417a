//! The log: every stream of one disk in one sequence of segments.
//!
//! What an append promises: once its completion says [`Durability::Synced`], the batch survives `kill -9` and power
//! loss, and it becomes visible to readers only then. What was admitted is written or the whole log fails. What was
//! read is what was written: everything that comes from disk is checked.
//!
//! No async here and no Kafka API: batches have headers, streams have offsets, that is all it knows of Kafka.

pub mod format;
pub mod index;

mod cache;
mod cleaner;
mod log;
mod options;
mod pacer;
mod preparer;
mod ranges;
mod reader;
mod recovery;
mod request;
mod segment;
mod shared;
mod stream;
mod tools;
mod writer;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(test)]
mod tests;

pub use cache::Stretch;
pub use cleaner::{CompactError, Compaction, RewriteError, RewriteReport, Rewriter, Rewritten};
pub use log::{Log, Statistics};
pub use options::{Clock, Options, SystemClock};
pub use reader::{Batches, ReadDone, ReadError, ReadRequest, ReadStep};
pub use recovery::{OpenError, RecoveryReport};
pub use request::{
    Admission, AdmitError, Append, AppendError, Committed, Completion, Durability, Listener, NoListener,
};
pub use stream::{Bounds, Producer, Producers, REMEMBERED_BATCHES, RememberedBatch, Stream};
pub use tools::{examine, salvage};
