//! Ids, offsets, log positions and the v2 record batch header: the words every other crate shares.
//!
//! Depends on no other crate of the workspace and does no I/O.

pub mod batch;
pub mod crc;
mod ids;

pub use batch::{BatchError, BatchHeader, Compression, TimestampType};
pub use crc::{crc32c, crc32c_append};
pub use ids::{Offset, StreamId, Timestamp};
