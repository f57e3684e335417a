//! A decoded request with everything that its handler may know of it.

use std::sync::{Arc, OnceLock};

use crate::broker::Broker;
use crate::caller::Caller;

/// A decoded request.
#[derive(Debug)]
pub(crate) struct Request<Q> {
    /// The broker that it is sent to.
    pub broker: Arc<Broker>,
    /// The client that sent it.
    pub caller: Caller,
    /// The client's library.
    pub software: Arc<Software>,
    /// The version of the API; one that is served.
    pub version: i16,
    /// The message.
    pub body: Q,
}

/// Name and version of a connection's client library, once ApiVersions has told them (KIP-511).
#[derive(Debug, Default)]
pub struct Software(OnceLock<(String, String)>);

impl Software {
    /// Name and version of a library that has not told them.
    const UNKNOWN: &'static str = "unknown";

    /// The first ApiVersions of a connection counts.
    pub fn tell(&self, name: &str, version: &str) {
        self.0.get_or_init(|| (name.to_owned(), version.to_owned()));
    }

    /// Name and version.
    pub fn told(&self) -> (String, String) {
        let unknown = || (Software::UNKNOWN.to_owned(), Software::UNKNOWN.to_owned());
        self.0.get().cloned().unwrap_or_else(unknown)
    }
}
