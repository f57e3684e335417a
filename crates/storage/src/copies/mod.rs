//! The copies of a log on other brokers: its copy set ([0030](../../../../docs/decisions/0030-copy-sets.md)).
//!
//! The owner of a log hands each of its blocks with entries to a [`BlockSink`], as the bytes that its own disk gets. The records
//! of *replicated* streams are visible once all brokers of the copy set have synced their block, or once the object store has
//! them. Which brokers these are, and what they have, is up to the caller ([`crate::Log::copied`]).
//!
//! Another broker keeps the blocks in its [`Copies`]. Whoever owns the log next reads them there and appends what the object
//! store does not have ([`crate::Log::replay`]).

pub(crate) mod held;
mod places;
mod replay;

pub use self::held::{Copies, CopyError, Extent, Opening, RefusedError};
pub use self::places::Place;
pub use self::replay::{Replay, ReplayError};
pub use crate::outgoing::{Block, BlockSink};
