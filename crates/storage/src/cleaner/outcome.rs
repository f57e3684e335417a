//! The outcome of a copy: a report, or the error for which nothing was copied.

use std::io;

use crate::pacer::Stopped;
use crate::reader::ReadError;

/// The report of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteReport {
    /// Bytes of the batches that were read.
    pub read_bytes: u64,
    /// Bytes of the batches that stayed, as written.
    pub written_bytes: u64,
    /// Segments that were written.
    pub segments: u32,
}

impl RewriteReport {
    pub(crate) fn add(&mut self, other: RewriteReport) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.segments += other.segments;
    }
}

/// Why extents were not copied. Such an error changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// The source is damaged or cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Writing failed.
    #[error("{doing}: {source}")]
    Write {
        /// The failed step.
        doing: &'static str,
        /// The error of that step.
        source: io::Error,
    },
    /// The disk has no room for the copy.
    #[error("the disk has no room for a copy of {bytes} bytes")]
    Full {
        /// Bytes of the copy.
        bytes: u64,
    },
    /// The rewriter's result for a batch cannot be stored.
    #[error("{0}")]
    Rewriter(String),
    /// What was to be stored in place of older records is not stored yet.
    #[error("the object store does not answer")]
    StoreAway,
    /// The log is closed, or an earlier failure left a file that may come back.
    #[error("the log takes no more copies")]
    Stopped,
}

impl From<io::Error> for RewriteError {
    fn from(error: io::Error) -> RewriteError {
        RewriteError::Read(ReadError::Io(error))
    }
}

impl From<Stopped> for RewriteError {
    fn from(_: Stopped) -> RewriteError {
        RewriteError::Stopped
    }
}

/// Turns an error of the disk into an error of a copy.
pub(crate) fn writing(doing: &'static str) -> impl FnOnce(io::Error) -> RewriteError {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull => RewriteError::Full { bytes: 0 },
        _ => RewriteError::Write { doing, source },
    }
}
