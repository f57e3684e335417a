//! The caches of the readers: the newest blocks, regions of segment files, runs of objects, and batch indexes.

mod indexes;
mod regions;
mod runs;
mod tail;

pub(crate) use self::indexes::Indexes;
pub(crate) use self::regions::Regions;
pub use self::regions::Stretch;
pub(crate) use self::runs::{RUN_BYTES, Runs};
pub(crate) use self::tail::{Cached, TailBounds, TailCache};
