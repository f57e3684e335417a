//! Findings about the files of a log, the records that each costs, and how much was checked.

use model::{Offset, StreamId};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// A crash may leave a log in this state. Opening repairs it, and nothing is lost.
    Note,
    /// The damage costs nothing: opening repairs it, or the damaged bytes are no longer needed.
    Warning,
    /// Opening refuses the log, or a reader gets an error.
    Error,
}

/// Records of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// The stream of the records.
    pub stream: StreamId,
    /// The first offset.
    pub from: Offset,
    /// The offset behind the last.
    pub to: Offset,
    /// The number of their batches, where it is known.
    pub batches: Option<u64>,
}

/// A finding about a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The file's name. A missing file has the name that it would have, or none.
    pub file: String,
    /// The first of the bytes in question.
    pub from: u64,
    /// The position behind the last of them.
    pub to: u64,
    /// What is wrong, in words.
    pub what: String,
    /// The records that stood in these bytes, as far as they are known.
    pub hits: Vec<Hit>,
}

impl Finding {
    pub(crate) fn new(
        severity: Severity,
        file: &str,
        from: u64,
        to: u64,
        what: impl Into<String>,
    ) -> Finding {
        Finding { severity, file: file.to_owned(), from, to, what: what.into(), hits: Vec::new() }
    }
}

/// How much was checked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Checked {
    /// Segments.
    pub segments: u64,
    /// Valid blocks.
    pub blocks: u64,
    /// Valid entries, batches and others.
    pub entries: u64,
    /// Valid batches.
    pub batches: u64,
    /// Bytes of valid blocks.
    pub bytes: u64,
}
