//! The requests to a reader, and their results.

use std::sync::Arc;

use bytes::Bytes;
use model::Offset;

use crate::cache::Stretch;
use crate::format::Lsn;
use crate::stream::Stream;

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The offset is below the start or above the committed end.
    #[error("offset {offset} is outside {start}..={committed}")]
    OutOfRange {
        /// The requested offset.
        offset: Offset,
        /// The first offset of the stream.
        start: Offset,
        /// The committed end of the stream.
        committed: Offset,
    },
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Deleted,
    /// The bytes from disk are not the bytes that were written.
    #[error("damaged data at {lsn}: {what}")]
    Damaged {
        /// Where the damage is.
        lsn: Lsn,
        /// The failed check.
        what: &'static str,
    },
    /// The read from disk failed.
    #[error("reading failed: {0}")]
    Io(#[from] std::io::Error),
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

/// Consecutive batches of one stream.
#[derive(Clone, Debug, Default)]
pub struct Batches {
    /// Their bytes, in order; a batch may span two chunks.
    pub chunks: Vec<Bytes>,
    /// Bytes of all chunks.
    pub bytes: usize,
    /// The offset to continue from.
    pub next: Option<Offset>,
    /// Whether some of them were read from objects.
    pub(crate) from_objects: bool,
}

/// A request to read batches.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The stream.
    pub stream: Arc<Stream>,
    /// The first returned batch is the one that holds this offset.
    pub from: Offset,
    /// Batches from this offset on are not returned (for read_committed it is the last stable offset).
    pub until: Offset,
    /// Upper bound of the batches' bytes.
    pub bytes_max: usize,
    /// Return the first batch even if it alone is larger than `bytes_max` (KIP-74).
    pub at_least_one: bool,
}

/// The outcome of a read that must not block.
#[derive(Debug)]
pub enum ReadStep {
    /// All batches that there are, or as many as the request allows.
    Ready(Batches),
    /// The caches lack the batches: use [`crate::Log::read_later`]. If many readers always read the oldest stretch
    /// first, one at a time and in the order of their positions, they scan the log once together.
    Cold {
        /// The stretch of the first batch that the caches lack.
        stretch: Stretch,
        /// The byte of that batch in its segment, as far as it is known.
        position: u32,
    },
}

/// The caller of a [`crate::Log::read_later`]. It is called once, from a thread of the log.
pub trait ReadDone: Send {
    /// Whether the caller still waits. If not, nothing is read and `done` is not called.
    fn waits(&self) -> bool {
        true
    }

    /// Takes the result of each request.
    fn done(self: Box<Self>, results: Vec<Result<Batches, ReadError>>);
}

impl<F: FnOnce(Vec<Result<Batches, ReadError>>) + Send> ReadDone for F {
    fn done(self: Box<Self>, results: Vec<Result<Batches, ReadError>>) {
        self(results);
    }
}
