//! What was fetched of a log before this process takes it over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use disk::Disk;
use storage::restore::{Epochs, RestoreError};
use storage::takeover::TakeOverError;

/// A directory, and how messages call it.
pub type LocalDirectory = (String, Arc<dyn Disk>);

/// The local directories of logs.
pub trait Directories: std::fmt::Debug + Send + Sync {
    /// An empty directory for the log `name`, in place of one that may be there.
    fn empty(&self, name: &str) -> io::Result<LocalDirectory>;
}

/// Why nothing was prefetched.
#[derive(Debug, thiserror::Error)]
pub enum PrefetchError {
    #[error("{0} is not the id of a log")]
    Name(String),
    #[error(transparent)]
    Look(#[from] TakeOverError),
    #[error("its directory: {0}")]
    Directory(#[from] io::Error),
    #[error(transparent)]
    Restore(#[from] storage::restore::RestoreError),
    #[error("a bug, which is in the log")]
    Bug,
}

impl PrefetchError {
    /// Whether the disk of this broker is the problem.
    pub fn is_local(&self) -> bool {
        matches!(self, PrefetchError::Directory(_) | PrefetchError::Restore(RestoreError::Local(..)))
    }
}

/// What was fetched of a log whose owner goes on.
pub enum Prefetched {
    Going {
        /// Set when it shall end.
        unwanted: Arc<AtomicBool>,
    },
    Ended(Ready),
    /// The disk refused it. Another attempt may begin at this time.
    Failed(Duration),
}

/// A directory with what taking a log over will need.
#[derive(Clone)]
pub struct Ready {
    pub directory: LocalDirectory,
    /// The epochs of the log at that time.
    pub along: Epochs,
    /// The next look begins behind this key. Objects that land late may lie before it: the restore fetches them.
    pub last: String,
    /// When the last look ended that found out what there is. `None` if there was none.
    pub at: Option<Duration>,
    /// The last look was for a broker that is to get the log. Others take too long for that.
    pub needed: bool,
    /// After a look that failed, the next one begins at this time.
    pub again_at: Duration,
    pub rounds: u32,
}

impl Ready {
    /// A directory that nobody has looked at, with what there is of the log along these epochs.
    pub fn unseen(directory: LocalDirectory, along: Epochs) -> Ready {
        let (last, again_at) = (String::new(), Duration::ZERO);
        Ready { directory, along, last, at: None, needed: false, again_at, rounds: 0 }
    }

    /// Whether the last look was less than `age` ago.
    pub fn is_younger(&self, age: Duration, now: Duration) -> bool {
        self.at.is_some_and(|at| now < at + age)
    }

    /// Whether the owner of the log is the same as it was then.
    pub fn is_of(&self, epoch: u32) -> bool {
        self.along.newest().is_some_and(|newest| newest.epoch == epoch)
    }
}
