//! The outcome of opening a log: a report of what was found, or the error for which the log is refused.

use std::io;

use model::{Offset, StreamId};

use crate::format::Lsn;
use crate::segment::file_name;

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Damage to data that had been acknowledged.
    #[error(
        "segment file {file} is damaged at byte {position}: {what}; `mainstem log verify` says what is hit, `mainstem log salvage` keeps the rest"
    )]
    Damaged {
        /// Name of the file in the data directory.
        file: String,
        /// Where.
        position: u64,
        /// What was found.
        what: String,
    },
    /// A segment file that must be there is not.
    #[error("segment file {file} is missing; restore it, or run `mainstem log salvage` to go on without it")]
    Missing {
        /// Name of the file in the data directory.
        file: String,
    },
    /// Records that a stream must have are in no segment: somebody removed a file.
    #[error(
        "a segment file is missing: no file has the records {from} to {to} of {stream}; restore it, or run `mainstem log salvage` to go on without them"
    )]
    Lost {
        /// Whose records.
        stream: StreamId,
        /// The first that is missing.
        from: Offset,
        /// The first behind them that is there.
        to: Offset,
    },
    /// The disk has no room for what opening has to write.
    #[error("the disk is too full to open the log")]
    Full,
    /// Reading or writing failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// How it failed.
        source: io::Error,
    },
}

/// What opening a log found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments whose trailer was trusted.
    pub sealed_segments: usize,
    /// Segments that the cleaner wrote.
    pub cleaned_segments: usize,
    /// Segments that were scanned.
    pub scanned_segments: usize,
    /// Bytes that were scanned.
    pub scanned_bytes: u64,
    /// Where the log ended.
    pub end: Lsn,
    /// Blocks behind the end that had been written but never acknowledged, and are dropped.
    pub dropped_blocks: usize,
    /// Bytes of those.
    pub dropped_bytes: u64,
}

/// Makes an error of the disk one of opening.
pub(crate) fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
    let what = what.into();
    move |source| OpenError::Io { doing: what, source }
}

/// Says what is damaged in a segment.
pub(crate) fn damaged(sequence: u32, position: u32, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { file: file_name(sequence), position: u64::from(position), what: what.into() }
}
