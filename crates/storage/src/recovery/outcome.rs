//! The outcome of opening a log: a report, or the error for which the log is refused.

use std::io;

use model::{Offset, StreamId};

use crate::format::Lsn;
use crate::segment::file_name;

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Damage to data that was acknowledged.
    #[error(
        "segment file {file} is damaged at byte {position}: {what}; `mainstem log verify` says what is hit, `mainstem log salvage` keeps the rest"
    )]
    Damaged {
        /// Name of the file in the data directory.
        file: String,
        /// The position in the file.
        position: u64,
        /// The failed check.
        what: String,
    },
    /// A required segment file is missing.
    #[error("segment file {file} is missing; restore it, or run `mainstem log salvage` to go on without it")]
    Missing {
        /// Name of the file in the data directory.
        file: String,
    },
    /// No segment has some required records of a stream: a file was removed.
    #[error(
        "a segment file is missing: no file has the records {from} to {to} of {stream}; restore it, or run `mainstem log salvage` to go on without them"
    )]
    Lost {
        /// The stream of the records.
        stream: StreamId,
        /// The first missing offset.
        from: Offset,
        /// The first offset behind them that exists.
        to: Offset,
    },
    /// Records are in an object store, and no bucket is given.
    #[error(
        "{objects} objects of this log are in an object store: set object.store to their bucket, or delete the topics that are tiered before it is left out"
    )]
    NoBucket {
        /// Objects with live records.
        objects: usize,
    },
    /// The disk has no room for the writes of recovery.
    #[error("the disk is too full to open the log")]
    Full,
    /// The log is open and cannot be used.
    #[error("{doing}: {source}")]
    Unusable {
        /// The failed step.
        doing: &'static str,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Reading or writing failed.
    #[error("{doing}: {source}")]
    Io {
        /// The failed step.
        doing: String,
        /// The error of that step.
        source: io::Error,
    },
}

/// The report of opening a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments with a trusted trailer.
    pub sealed_segments: usize,
    /// Cleaned segments.
    pub cleaned_segments: usize,
    /// Segments in the object store.
    pub stored_segments: usize,
    /// Scanned segments.
    pub scanned_segments: usize,
    /// Scanned bytes.
    pub scanned_bytes: u64,
    /// The end of the log.
    pub end: Lsn,
    /// Blocks behind the end. They were written but never acknowledged, and are dropped.
    pub dropped_blocks: usize,
    /// Bytes of these blocks.
    pub dropped_bytes: u64,
}

/// Turns an error of the disk into an error of opening.
pub(crate) fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
    let what = what.into();
    move |source| OpenError::Io { doing: what, source }
}

/// The error for a damaged place in a segment.
pub(crate) fn damaged(sequence: u32, position: u32, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { file: file_name(sequence), position: u64::from(position), what: what.into() }
}
