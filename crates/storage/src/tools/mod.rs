//! The tools behind the `log` commands, for a log that no server has open. They inspect a log, verify it, and salvage
//! the rest of it into a new log. No tool writes to the log that it reads.

mod contents;
pub mod examine;
mod finding;
mod remains;
pub(crate) mod resolve;
pub mod salvage;
pub(crate) mod survey;
mod unwritten;
mod walk;
