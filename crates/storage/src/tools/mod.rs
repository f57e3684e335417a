//! The tools behind the `log` commands, for a log that nobody has open: they inspect it, verify it, and salvage what is left
//! of it into a new one. No tool writes to the log that it reads.

mod contents;
pub mod examine;
mod finding;
mod remains;
pub(crate) mod resolve;
pub mod salvage;
pub(crate) mod survey;
mod unwritten;
mod walk;
