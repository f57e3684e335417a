//! The tools behind the `log` commands, for a log that no server has open. They inspect a log, verify it, and salvage
//! the rest of it into a new log. They also restore a log from its objects. No tool writes to the log that it reads.

pub mod bucket;
mod contents;
pub mod examine;
mod finding;
pub(crate) mod gather;
pub(crate) mod holdings;
mod remains;
pub(crate) mod resolve;
pub mod restore;
pub mod salvage;
pub(crate) mod stored;
pub(crate) mod survey;
pub mod takeover;
mod unwritten;
mod walk;
