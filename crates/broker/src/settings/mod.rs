//! Settings that change at run time: of topics, of groups, and of the broker.

pub mod accepted;
pub mod group;
pub mod listener;
pub mod resource;
pub mod topic;
