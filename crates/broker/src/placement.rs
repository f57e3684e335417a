//! Who leads a partition.

/// The only leader epoch: there is one server, and nothing that consumers saw is ever truncated.
pub const LEADER_EPOCH: i32 = 0;
