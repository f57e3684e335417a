//! The real binary, as its users start and ask it. One program, since each takes seconds to link.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod administration;
mod groups;
mod log_dirs;
mod network;
mod otlp;
mod restore;
mod serve;
mod terminal;
mod users;
