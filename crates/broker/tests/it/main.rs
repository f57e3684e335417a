//! The broker through frames of bytes, as its clients see it, on directories, stores and clusters of this process. One program, since each

//! takes seconds to link. `tests/memory.rs` counts what is allocated, and is a program of its own.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod common;

mod admin;
mod authorization;
mod cluster;
mod configs;
mod consumer_groups;
mod consumer_groups_cases;
mod consumer_groups_model;
mod directories;
mod diskless;
mod group_offsets;
mod groups;
mod placement;
mod produce_fetch;
mod quotas;
mod restore;
mod telemetry;
mod tiered;
mod transactions;
mod transactions_model;
mod users;
mod versions;
