//! Newtypes for ids and offsets. They have arithmetic only where it has a meaning.

use std::fmt;
use std::ops::{Add, Sub};

/// The id of one stream (one topic-partition) for the whole life of a log. It is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// The place of a record in its stream; the first is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Offset(pub i64);

impl Offset {
    /// The first offset of every stream.
    pub const ZERO: Offset = Offset(0);
}

impl Add<i64> for Offset {
    type Output = Offset;
    fn add(self, count: i64) -> Offset {
        Offset(self.0 + count)
    }
}

impl Sub for Offset {
    type Output = i64;
    fn sub(self, other: Offset) -> i64 {
        self.0 - other.0
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since the Unix epoch, as clients give them; -1 is Kafka's "none".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Kafka's "no timestamp".
    pub const NONE: Timestamp = Timestamp(-1);
}
