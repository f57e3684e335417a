//! A decoded request with everything that its handler may use.

pub mod call;
pub mod cluster_requests;
pub mod connection_state;
pub mod error_codes;

use std::sync::Arc;

use crate::broker::Broker;
use crate::caller::Caller;
use crate::request::connection_state::ConnectionState;

/// A decoded request.
#[derive(Debug)]
pub(crate) struct Request<Q> {
    /// The broker that received the request.
    pub broker: Arc<Broker>,
    /// The client that sent it.
    pub caller: Caller,
    /// The connection that the request came in on.
    pub connection: Arc<ConnectionState>,
    /// The version of the API. It is one that this server supports.
    pub version: i16,
    /// The message.
    pub body: Q,
}
