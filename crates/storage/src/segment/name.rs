//! Names of the files of a log.

use crate::format::{CLEANED, STORED};

/// Name of a file that is being prepared. A file that a crash leaves under this name is worthless.
pub(crate) const PREPARING: &str = "preparing";
/// Name of a file that the cleaner writes. A file that a crash leaves under this name is worthless.
pub(crate) const CLEANING: &str = "cleaning";
/// Name of a file that is being removed. A file that a crash leaves under this name is worthless.
pub(crate) const REMOVING: &str = "removing";

/// Name of a small file, or of one for a segment in the object store, that is being written. A file that a crash leaves under this name is
/// worthless.
pub(crate) const STORING: &str = "storing";

/// Name of the file of segment `sequence`.
pub(crate) fn file_name(sequence: u32) -> String {
    if is_cleaned(sequence) {
        format!("{:010}.cleaned", sequence & !CLEANED)
    } else if is_stored(sequence) {
        format!("{:010}.stored", sequence & !STORED)
    } else {
        format!("{sequence:010}.log")
    }
}

/// The sequence number in a segment's file name.
pub(crate) fn sequence_of(name: &str) -> Option<u32> {
    let (digits, kind) = match name.strip_suffix(".log") {
        Some(digits) => (digits, 0),
        None => (name.strip_suffix(".cleaned")?, CLEANED),
    };
    Some(number_of(digits)? | kind)
}

/// The number in ten digits, below those that stand for the kind of a segment.
fn number_of(digits: &str) -> Option<u32> {
    let valid = digits.len() == 10 && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u32 = valid.then(|| digits.parse().ok())??;
    (number < STORED).then_some(number)
}

/// The sequence number in the name of the local file of a segment that lies in the object store.
pub(crate) fn stored_sequence_of(name: &str) -> Option<u32> {
    Some(number_of(name.strip_suffix(".stored")?)? | STORED)
}

/// Whether the writer wrote the segment.
pub(crate) fn is_written(sequence: u32) -> bool {
    sequence & (CLEANED | STORED) == 0
}

/// Whether the segment lies in the object store.
pub(crate) fn is_stored(sequence: u32) -> bool {
    sequence & (CLEANED | STORED) == STORED
}

/// Whether the cleaner wrote the segment. Otherwise the writer wrote it.
pub(crate) fn is_cleaned(sequence: u32) -> bool {
    sequence & CLEANED != 0
}
