//! Who sends requests: its principal, where it comes from, and the listener that it reached.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use wire::Text;

/// The type of all principals that authentication gives, as in Kafka.
const USER: &str = "User";
/// The name of who has not authenticated.
pub(crate) const ANONYMOUS: &str = "ANONYMOUS";

/// Whom a client has shown to be (Kafka's KafkaPrincipal).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    /// `User`, unless an ACL speaks of another type.
    pub kind: Text,
    /// What authentication found: a user's name, or a certificate's subject.
    pub name: Text,
}

impl Principal {
    /// The user of this name.
    pub fn user(name: &str) -> Principal {
        Principal { kind: Text::from_static(USER), name: Text::copied(name) }
    }

    /// Who has not authenticated.
    pub const fn anonymous() -> Principal {
        Principal { kind: Text::from_static(USER), name: Text::from_static(ANONYMOUS) }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

/// What the broker knows of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// As in `listeners`.
    pub name: String,
    /// What its clients are told to connect to, in place of the address that they reached.
    pub advertised: Option<(String, u16)>,
}

/// What a connection's requests have in common.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Anonymous until the client has authenticated.
    pub principal: Principal,
    /// The client's address.
    pub peer: SocketAddr,
    /// The address that it reached.
    pub local: SocketAddr,
    /// The listener that it reached.
    pub listener: Arc<Listener>,
}

impl Origin {
    /// The client's address, an IPv4 one as such where it reached us by IPv6.
    pub fn host(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }

    /// Where the client is told to find this server.
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

/// An address as Metadata gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Name or address.
    pub host: Text,
    /// TCP port.
    pub port: i32,
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub origin: Arc<Origin>,
    /// As it calls itself.
    pub client_id: Text,
}

impl Caller {
    /// Its address, as Kafka shows it.
    pub fn host_shown(&self) -> String {
        format!("/{}", self.origin.host())
    }
}
