//! What the `log` commands do with a log that nobody has open: they look at it, check it, and make a new one of what is
//! left of it. Nothing here writes to the log that it looks at.

mod contents;
pub mod examine;
mod finding;
mod remains;
pub(crate) mod resolve;
pub mod salvage;
pub(crate) mod survey;
mod unwritten;
mod walk;
