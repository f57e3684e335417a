//! The log: every stream of one disk in one sequence of segments.
//!
//! Promises:
//! - When the completion of an append says [`Durability::Synced`], the batch survives `kill -9` and power loss. Readers
//!   see the batch only from then on.
//! - An admitted batch is written, or the whole log fails.
//! - A read returns the bytes that were written: everything from disk is checked.
//!
//! No async and no Kafka API. Of Kafka, this crate knows only the batch header and the offsets of a stream.

pub mod epochs;
pub mod format;
pub mod index;

mod cache;
mod cleaner;
mod completion;
pub mod copies;
mod log;
mod options;
mod outgoing;
mod pacer;
mod preparer;
mod ranges;
mod reader;
mod recovery;
mod request;
mod segment;
mod shared;
#[cfg(feature = "stepped")]
pub mod stepped;
mod stream;
mod tier;
mod tools;
mod uploader;
mod writer;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(test)]
mod tests;

pub use cache::Stretch;
pub use cleaner::{CompactError, Compaction, RewriteError, RewriteReport, Rewriter, Rewritten};
pub use log::{Log, Statistics};
#[cfg(feature = "stepped")]
pub use options::Mutation;
pub use options::{Clock, Options, SystemClock, Tuning};
pub use reader::{Batches, ReadDone, ReadError, ReadRequest, ReadStep};
pub use recovery::{OpenError, RecoveryReport};
pub use request::{
    Admission, AdmitError, Append, AppendError, Committed, Completion, Durability, Listener, NoListener,
    ROOM_PATIENCE, wait_for_room,
};
pub use stream::{Bounds, Level, Producer, Producers, REMEMBERED_BATCHES, RememberedBatch, Stream};
pub use tools::{bucket, examine, restore, salvage, takeover};
