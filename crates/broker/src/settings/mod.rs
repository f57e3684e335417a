//! Settings that change while the server runs: of topics, of groups, of the broker itself.

pub mod accepted;
pub mod group;
pub mod resource;
pub mod topic;
