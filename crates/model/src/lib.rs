//! Ids, offsets and the v2 record batch header: the terms that all other crates share.
//!
//! Depends on no other crate of the workspace and does no I/O.

pub mod batch;
pub mod crc;
mod ids;

pub use batch::{BatchError, BatchHeader, Compression, TimestampType};
pub use crc::{crc32c, crc32c_append};
pub use ids::{Offset, StreamId, Timestamp};
