//! Findings about the files of a log, the records that each costs, and how much was looked at.

use model::{Offset, StreamId};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// As a crash may leave a log: opening makes it good, and nothing is lost.
    Note,
    /// Damage that costs nothing: opening makes it good, or nothing that is still needed stands there.
    Warning,
    /// Opening refuses it, or somebody who reads gets an error.
    Error,
}

/// Records of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Whose.
    pub stream: StreamId,
    /// The first.
    pub from: Offset,
    /// Behind the last.
    pub to: Offset,
    /// In how many batches, where that is known.
    pub batches: Option<u64>,
}

/// Something about a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The file's name; of one that is missing the name it would have, or nothing.
    pub file: String,
    /// The bytes in question.
    pub from: u64,
    /// Behind the last of them.
    pub to: u64,
    /// What it is.
    pub what: String,
    /// The records that stood there, as far as it is known.
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

/// How much was looked at.
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
