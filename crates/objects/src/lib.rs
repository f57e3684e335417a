//! The seam to an object store: everything that the server asks of a bucket, the kinds of buckets, and a simulated one.
//!
//! Objects are immutable: a key's content is set once, by the first [`Bucket::put_if_absent`] that lands. A request
//! whose outcome is unknown may still land later, so it is repeated with the same key and the same bytes, and never
//! taken for a failure.

mod counted;
mod directory;
mod listing;
mod paced;
mod patience;
mod probe;
pub mod sim;
mod watched;

use std::fmt::Debug;
use std::ops::Range;

use bytes::Bytes;

pub use self::counted::{CountedBucket, RequestKind};
pub use self::directory::DirectoryBucket;
pub use self::listing::list_all;
pub use self::paced::PacedBucket;
pub use self::patience::{Patience, patiently};
pub use self::probe::{ProbeError, probe};
pub use self::sim::SimBucket;
pub use self::watched::{Now, WatchedBucket};

/// The outcome of a put that reached the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The key has these bytes now.
    Stored,
    /// The key had an object before: that of somebody else, or of an earlier attempt of the caller. The object tells.
    Exists,
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BucketError {
    /// There is no object with this key.
    #[error("there is no object {0}")]
    NotFound(String),
    /// The store could not be reached, asks for patience, or did not answer. A put or a deletion may have taken effect,
    /// or may do so later.
    #[error("the object store did not answer: {0}")]
    Unclear(String),
    /// The store refuses the request: wrong credentials, a missing bucket, a missing right. Nothing took effect.
    #[error("the object store refused the request: {0}")]
    Refused(String),
}

/// An object as [`Bucket::list`] names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: String,
    /// Bytes of the object.
    pub bytes: u64,
    /// When the object was stored, in milliseconds since the Unix epoch of the store's clock.
    pub stored_ms: i64,
}

/// A bucket, or the part of one below a prefix. All methods block; callers have threads of their own.
///
/// Keys are relative paths of the characters `a-z`, `0-9`, `-`, `.` and `/`.
pub trait Bucket: Send + Sync + Debug {
    /// Stores an object unless the key has one. `body` is the object's bytes, in parts.
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError>;

    /// The bytes `range` of an object; fewer at the end of the object.
    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError>;

    /// Bytes of an object.
    fn length(&self, key: &str) -> Result<u64, BucketError>;

    /// Up to `most` objects whose keys begin with `prefix` and come after `after`, in the order of their keys.
    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError>;

    /// Deletes an object. Succeeds if there is none.
    fn delete(&self, key: &str) -> Result<(), BucketError>;
}
