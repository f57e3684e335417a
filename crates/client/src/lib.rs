//! The client's side of Kafka's protocol, without sockets: the common part of the commands and the load generator.
//!
//! A connection begins as an [`Opening`]: ApiVersions, then SASL. It becomes a [`Session`] with the negotiated versions,
//! the correlation ids and the order of the responses. [`Request`] is the table of requests and their versions.
//! [`Security`] holds the settings for TLS and SASL from `client.properties`.
//!
//! Frames come in and go out as bytes. The caller owns the socket, the time-outs and the memory of the frames. The commands
//! block on one request at a time; the load generator has many requests in flight on an asynchronous connection. The only
//! I/O here is in [`Security`], which reads the files that the properties name.
//!
//! Invariants:
//! - A server is untrusted: any bytes lead to a response or an error, never to a panic.
//! - A response belongs to the oldest request without one. Another correlation id is an error.
//! - No error and no `Debug` output shows a password or a token.

mod by_version;
mod error;
mod log_in;
mod opening;
pub mod properties;
mod request;
mod security;
mod session;

pub use by_version::{Coordinated, Coordinator, coordinator_of, delete_topics, find_coordinator};
pub use error::{KafkaError, SessionError, check, error_name};
pub use log_in::LogIn;
pub use opening::{Opening, Progress};
pub use properties::Properties;
pub use request::Request;
pub use security::{Security, SecurityError, server_name};
pub use session::{Session, Software, address, frame_bytes};
