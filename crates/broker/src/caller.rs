//! The sender of a request: its principal, its address, and the listener that it reached.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use wire::Text;

/// The type of all authenticated principals, as in Kafka.
const USER: &str = "User";
/// The name of a principal that has not authenticated.
pub(crate) const ANONYMOUS: &str = "ANONYMOUS";

/// The identity of a client (Kafka's KafkaPrincipal).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    /// `User`, unless an ACL names another type.
    pub kind: Text,
    /// The result of authentication: a user's name, or a certificate's subject.
    pub name: Text,
}

impl Principal {
    /// The principal of the user `name`.
    pub fn user(name: &str) -> Principal {
        Principal { kind: Text::from_static(USER), name: Text::copied(name) }
    }

    /// The principal of a client that has not authenticated.
    pub const fn anonymous() -> Principal {
        Principal { kind: Text::from_static(USER), name: Text::from_static(ANONYMOUS) }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

/// A listener as the broker knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The name in `listeners`.
    pub name: String,
    /// The address that clients are told to connect to, if it is not the address that they reached.
    pub advertised: Option<(String, u16)>,
}

/// The properties shared by all requests of a connection.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Anonymous until the client has authenticated.
    pub principal: Principal,
    /// The client's address.
    pub peer: SocketAddr,
    /// The server's address that the client reached.
    pub local: SocketAddr,
    /// The listener that the client reached.
    pub listener: Arc<Listener>,
}

impl Origin {
    /// The client's address. An IPv4 address that was mapped to IPv6 is returned as IPv4.
    pub fn host(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }

    /// The address at which the client is told to find this server.
    pub(crate) fn endpoint(&self) -> Endpoint {
        match &self.listener.advertised {
            Some((host, port)) => Endpoint { host: Text::copied(host), port: i32::from(*port) },
            None => Endpoint {
                host: Text::from(self.local.ip().to_canonical().to_string()),
                port: i32::from(self.local.port()),
            },
        }
    }
}

/// An address as Metadata returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Host name or IP address.
    pub host: Text,
    /// TCP port.
    pub port: i32,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub origin: Arc<Origin>,
    /// The client id from the request's header.
    pub client_id: Text,
}

impl Caller {
    /// The client's address, as Kafka shows it.
    pub fn host_shown(&self) -> String {
        format!("/{}", self.origin.host())
    }
}
