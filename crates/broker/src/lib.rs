//! What each Kafka API means: topics, partitions, producers, fetches, consumer groups.
//!
//! Frames come in as bytes and go out as chunks; sockets are the server's business, bytes on disk are storage's. The
//! only crate that knows Kafka's error codes ([`error_codes`] maps them).

mod config;
pub mod groups;

mod accepted_settings;
mod acl;
mod api;
mod blocking;
mod broker;
mod call;
mod caller;
mod cluster_requests;
mod collector;
mod compaction;
mod connection;
mod connection_state;
mod coordinator;
mod error_codes;
mod failure;
mod group_config;
mod image;
mod internal;
mod logs;
mod memory;
mod metrics;
mod offline;
mod oldest;
mod partition;
mod placement;
mod producer_ids;
mod quotas;
mod request;
mod resource_configs;
mod resource_setting;
mod security;
mod sequence;
mod session;
mod signal;
mod stored;
mod table;
mod telemetry;
mod topic_config;
mod topics;
mod transactions;
mod turns;
pub mod users;
mod walks;

pub use broker::{Broker, OpenError};
pub use call::api::{Api, Memory, Right, Versions};
pub use call::{Answer, Refused};
pub use caller::{Listener, Origin, Principal};
pub use config::{Config, ConfigError, Kind, Setting};
pub use connection::Connection;
pub use logs::{LogDirectory, LogsError};
pub use offline::{copy_metadata, stream_names};
pub use quotas::{Rate, Window};
pub use table::{served, waits};
