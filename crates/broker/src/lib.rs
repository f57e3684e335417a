//! The meaning of each Kafka API: topics, partitions, producers, fetches, consumer groups.
//!
//! Requests come in as bytes and answers go out as chunks. The server crate owns the sockets, and the storage crate
//! owns the bytes on disk. This is the only crate that knows Kafka's error codes ([`request::error_codes`] maps them).

mod config;
pub mod groups;

mod api;
mod broker;
mod caller;
mod cluster;
mod collector;
mod compaction;
mod connection;
mod coordinator;
mod failure;
mod image;
mod internal;
mod logs;
mod metrics;
mod partition;
mod placement;
mod quotas;
mod request;
mod resources;
mod security;
mod session;
mod settings;
pub mod snapshots;
mod telemetry;
mod topics;
mod transactions;
pub mod users;

pub use broker::{Broker, CopyDirectory, Membership, OpenError};
pub use caller::{Listener, Origin, Principal};
pub use cluster::admin::{AdminError, BrokerState, ClusterAdmin, ClusterState, LogState};
pub use cluster::host::Directories;
pub use config::{Config, ConfigError, Kind, Setting};
pub use connection::Connection;
pub use connection::table::{served, waits};
pub use coordinator::Remote;
pub use image::offline::{copy_metadata, has_metadata, stream_names};
pub use logs::{LogDirectory, LogsError};
pub use metrics::{AnsweredRequest, RequestObserver};
pub use quotas::{Rate, Window};
pub use request::call::api::{Api, Memory, Right, Versions};
pub use request::call::{Answer, Refused};
pub use resources::memory::process_memory_bytes;
pub use settings::accepted::accepted_problem;
pub use settings::listener::ListenerConfigs;
