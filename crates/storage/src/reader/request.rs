//! Questions to a reader, and its answers.

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
        /// The offset that was asked for.
        offset: Offset,
        /// The first offset of the stream.
        start: Offset,
        /// The committed end of the stream.
        committed: Offset,
    },
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Deleted,
    /// What the disk returned is not what was written.
    #[error("damaged data at {lsn}: {what}")]
    Damaged {
        /// Where the damage is.
        lsn: Lsn,
        /// What was found.
        what: &'static str,
    },
    /// The disk did not answer.
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
    /// Where to read on.
    pub next: Option<Offset>,
}

/// A question: which batches to read.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The stream.
    pub stream: Arc<Stream>,
    /// The first batch returned is the one that holds this offset.
    pub from: Offset,
    /// Batches from here on are not returned (the last stable offset, for read_committed).
    pub until: Offset,
    /// Bytes of the batches at most.
    pub bytes_max: usize,
    /// Return the first batch even if it alone is larger than `bytes_max` (KIP-74).
    pub at_least_one: bool,
}

/// The outcome of a read that must not block.
#[derive(Debug)]
pub enum ReadStep {
    /// All that there is, or as much as was asked for.
    Ready(Batches),
    /// The caches do not have it: use [`crate::Log::read_later`]. Many readers that read what is oldest first, one stretch at a
    /// time and in the order of their positions, scan the log once.
    Cold {
        /// The stretch that has the first batch which the caches do not have.
        stretch: Stretch,
        /// The byte of its segment at which that batch stands, as far as that is known.
        position: u32,
    },
}

/// Who asked for a [`crate::Log::read_later`]; told once, from a thread of the log.
pub trait ReadDone: Send {
    /// Whether somebody still waits. Otherwise nothing is read, and nobody is told.
    fn waits(&self) -> bool {
        true
    }

    /// Takes an answer for each request.
    fn done(self: Box<Self>, results: Vec<Result<Batches, ReadError>>);
}

impl<F: FnOnce(Vec<Result<Batches, ReadError>>) + Send> ReadDone for F {
    fn done(self: Box<Self>, results: Vec<Result<Batches, ReadError>>) {
        self(results);
    }
}
