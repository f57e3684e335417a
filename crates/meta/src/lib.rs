//! Small consistent state: topics, settings, users, ids. Keys and values with compare-and-set, watches and leases, in the shape
//! that etcd has, so that a cluster can keep them there.
//!
//! [`Store`] is what the broker uses; [`Embedded`] keeps the state in a file of the data directory, [`Memory`] in memory.
//! A store is never written per batch.

mod embedded;
mod history;
mod leases;
mod local;
mod memory;

use std::error::Error;
use std::fmt;
use std::time::Duration;

pub use embedded::Embedded;
pub use local::Clock;
pub use memory::Memory;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The engine cannot read or write.
    #[error("the metadata store failed: {0}")]
    Store(Box<dyn Error + Send + Sync>),
    /// A compare did not hold; nothing was changed.
    #[error("the metadata changed meanwhile: {key}")]
    Conflict {
        /// The key that was not as expected.
        key: String,
    },
    /// A value is not what this version writes.
    #[error("the metadata under {key} cannot be read: {why}")]
    Unreadable {
        /// Where it is.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// The lease has expired, or was revoked, or never was.
    #[error("the lease {} is not held", .0.0)]
    NoLease(LeaseId),
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The revision of the commit that wrote it; grows with every commit of the store.
    pub revision: u64,
    /// As written.
    pub bytes: Vec<u8>,
}

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes `bytes` under `key`.
    Put {
        /// Not empty.
        key: String,
        /// Anything.
        bytes: Vec<u8>,
        /// The key goes when this lease ends. Without one it stays, also if an earlier put had one.
        lease: Option<LeaseId>,
    },
    /// Removes `key`; nothing happens where it does not exist.
    Delete {
        /// Not empty.
        key: String,
    },
}

impl Change {
    /// Writes `bytes` under `key` for good.
    pub fn put(key: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Change {
        Change::Put { key: key.into(), bytes: bytes.into(), lease: None }
    }

    /// Writes `bytes` under `key` for as long as `lease` is held.
    pub fn put_leased(key: impl Into<String>, bytes: impl Into<Vec<u8>>, lease: LeaseId) -> Change {
        Change::Put { key: key.into(), bytes: bytes.into(), lease: Some(lease) }
    }

    /// Removes `key`.
    pub fn delete(key: impl Into<String>) -> Change {
        Change::Delete { key: key.into() }
    }

    /// The key that is changed.
    pub fn key(&self) -> &str {
        match self {
            Change::Put { key, .. } | Change::Delete { key } => key,
        }
    }
}

/// A condition of a commit: `key` has this revision, or does not exist (`None`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Not empty.
    pub key: String,
    /// As read before.
    pub revision: Option<u64>,
}

impl Compare {
    /// Holds while there is nothing under `key`.
    pub fn absent(key: impl Into<String>) -> Compare {
        Compare { key: key.into(), revision: None }
    }
}

/// All keys below a prefix at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The revision of the last commit that it shows; 0 before the first.
    pub revision: u64,
    /// In the order of the keys.
    pub entries: Vec<(String, Value)>,
}

/// A change as a watch tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key that was changed.
    pub key: String,
    /// The revision of the commit that changed it.
    pub revision: u64,
    /// What was written; `None`: the key was removed.
    pub bytes: Option<Vec<u8>>,
}

/// The commits that a watch has seen since it was asked last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// All commits up to this revision are told.
    pub revision: u64,
    /// In the order of the commits; all changes of a commit stand in one answer.
    pub changes: Vec<Event>,
}

/// Names a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// Why a watch cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Commits that it has not told are forgotten: list the keys, and watch from the revision of the listing on.
    #[error("the changes since revision {0} are no longer known")]
    Compacted(u64),
    /// The store failed; the watch may be asked again.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Tells the changes of a store from some revision on.
pub trait Watch: Send {
    /// The next commits, as soon as there is one; without changes once `patience` is over. Blocks.
    fn next(&mut self, patience: Duration) -> Result<Events, WatchError>;
}

/// A store of keys and values. All its methods block.
pub trait Store: fmt::Debug + Send + Sync {
    /// The value under `key`.
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError>;

    /// All keys that begin with `prefix`.
    fn list(&self, prefix: &str) -> Result<Listing, MetaError>;

    /// Makes all `changes` or, where a compare does not hold, none. Durable on return; returns the new revision, or that of
    /// the last commit if nothing was changed. A key is changed once.
    ///
    /// After [`MetaError::Store`] nothing was changed either, unless the engine failed again while that was found out: then
    /// only a later listing, or a watch that is told to list again, says what became of the commit.
    fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError>;

    /// Tells the changes of keys that begin with `prefix`, of commits after the revision `after`.
    fn watch(&self, prefix: &str, after: u64) -> Box<dyn Watch>;

    /// Begins a lease that ends `ttl` after it was kept alive last. Its keys are then removed in one commit.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError>;

    /// Begins the time of a lease anew.
    fn keep_alive(&self, lease: LeaseId) -> Result<(), MetaError>;

    /// Ends a lease now.
    fn revoke(&self, lease: LeaseId) -> Result<(), MetaError>;
}
