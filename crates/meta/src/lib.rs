//! Small consistent state: topics, settings, users, ids. It has keys and values with compare-and-set, watches and
//! leases, in the shape of etcd, so that a cluster can keep the state there.
//!
//! The broker uses [`Store`]. [`Embedded`] keeps the state in a file of the data directory, [`Memory`] in memory. The
//! crate `etcd` keeps it in etcd. The server never writes to a store for each batch.

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
    /// A compare did not hold. Nothing was changed.
    #[error("the metadata changed meanwhile: {key}")]
    Conflict {
        /// The key that was not as expected.
        key: String,
    },
    /// A value is not one that this version writes.
    #[error("the metadata under {key} cannot be read: {why}")]
    Unreadable {
        /// The key of the value.
        key: String,
        /// What is wrong with the value.
        why: String,
    },
    /// The lease has expired, was revoked, or never existed.
    #[error("the lease {} is not held", .0.0)]
    NoLease(LeaseId),
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The revision of the commit that wrote it. It grows with every commit of the store.
    pub revision: u64,
    /// The bytes that were written.
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
        /// The key is removed when this lease ends. Without a lease the key stays, even if an earlier put had one.
        lease: Option<LeaseId>,
    },
    /// Removes `key`. Does nothing if the key does not exist.
    Delete {
        /// Not empty.
        key: String,
    },
}

impl Change {
    /// Writes `bytes` under `key` permanently.
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
    /// The revision from an earlier read.
    pub revision: Option<u64>,
}

impl Compare {
    /// Holds while `key` does not exist.
    pub fn absent(key: impl Into<String>) -> Compare {
        Compare { key: key.into(), revision: None }
    }
}

/// All keys below a prefix at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The revision of the store at which it shows the keys. 0 before the first commit, unless others use the same etcd.
    pub revision: u64,
    /// In the order of the keys.
    pub entries: Vec<(String, Value)>,
}

/// A change, as a watch reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key that was changed.
    pub key: String,
    /// The revision of the commit that changed it.
    pub revision: u64,
    /// The new value; `None` if the key was removed.
    pub bytes: Option<Vec<u8>>,
}

/// The commits that a watch has seen since the last call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// The watch has reported all commits up to this revision.
    pub revision: u64,
    /// In the order of the commits. All changes of a commit are in the same `Events`.
    pub changes: Vec<Event>,
}

/// Names a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// Why a watch cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Commits that the watch has not reported are forgotten. List the keys, and watch from the revision of the listing
    /// on.
    #[error("the changes since revision {0} are no longer known")]
    Compacted(u64),
    /// The store failed. The watch may be asked again.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Reports the changes of a store from some revision on.
pub trait Watch: Send {
    /// The next commits, as soon as there is one. Without changes once `patience` is over. Blocks.
    fn next(&mut self, patience: Duration) -> Result<Events, WatchError>;
}

/// A store of keys and values. All its methods block.
pub trait Store: fmt::Debug + Send + Sync {
    /// The value under `key`.
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError>;

    /// All keys that begin with `prefix`.
    fn list(&self, prefix: &str) -> Result<Listing, MetaError>;

    /// Makes all `changes`, or none if a compare does not hold. The commit is durable on return. Returns the new
    /// revision, which a watch of all keys reaches. If nothing was changed, it may be that of the last commit. A commit
    /// changes each key at most once.
    ///
    /// After [`MetaError::Store`] nothing was changed either, unless the engine failed again while the store determined
    /// that. Then only a later listing, or a watch that has to list again, shows whether the commit was made.
    fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError>;

    /// Bound of the changes of a commit, each with a compare.
    fn changes_max(&self) -> usize {
        usize::MAX
    }

    /// Reports the changes of keys that begin with `prefix`, in commits after the revision `after`.
    fn watch(&self, prefix: &str, after: u64) -> Box<dyn Watch>;

    /// Begins a lease that ends `ttl` after the last keep-alive. Then one commit removes its keys.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError>;

    /// Restarts the time of a lease.
    fn keep_alive(&self, lease: LeaseId) -> Result<(), MetaError>;

    /// Ends a lease now.
    fn revoke(&self, lease: LeaseId) -> Result<(), MetaError>;
}
