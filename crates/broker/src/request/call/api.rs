//! What a row of the table of APIs says.

use std::ops::RangeInclusive;

use wire::ApiKey;

use super::{Answer, Call};
use crate::quotas::Quota;
use crate::security::Operation;

/// An API as it is served. ApiVersions, dispatch, metrics, memory, quotas, rights and `docs/protocol.md` follow from it.
#[derive(Debug)]
pub struct Api {
    /// Which API.
    pub key: ApiKey,
    /// The advertised versions.
    pub versions: Versions,
    /// The right that the whole request needs.
    pub right: Right,
    /// How its memory is bounded.
    pub memory: Memory,
    /// The quota that it counts for besides request time, which all requests count for.
    pub quota: Option<Quota>,
    /// Whether a request that has begun goes on to its end after its client hangs up: those that change something do.
    pub carried_through: bool,
    /// Its handler.
    pub(crate) handler: Handler,
}

/// The advertised versions of an API, out of those of Kafka's schema.
#[derive(Clone, Copy, Debug)]
pub enum Versions {
    /// All.
    All,
    /// From the first to this one.
    UpTo(i16),
    /// All, and before them those from 0 on, which are refused.
    FromZero,
}

/// The right that a request needs as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// None.
    Free,
    /// This right to the cluster: the request is refused without it.
    Cluster(Operation),
    /// The handler asks for the right to each topic, group or transactional id that is named.
    PerResource,
}

/// How the memory of a request is bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// It has few elements; one of many is refused.
    Small,
    /// One of many elements waits for its turn, and keeps it until it is answered (see [`crate::resources::turns`]).
    Elements,
    /// As [`Memory::Elements`], but it gives its turn back while it waits for other members of a group.
    Waiting,
    /// As [`Memory::Waiting`] where it has few elements: it waits for records. The records of its answer are the log's.
    Records,
}

/// How an API is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    /// When the answers before it are sent.
    InTurn(fn(Call) -> Answer),
    /// Produce: appends begin in the order of the requests, and are answered later or not at all.
    Produce,
}

impl Api {
    /// A row with what most APIs have: all versions, rights that the handler asks for, any number of elements.
    pub(crate) const fn new(key: ApiKey, handler: fn(Call) -> Answer) -> Api {
        Api {
            key,
            versions: Versions::All,
            right: Right::PerResource,
            memory: Memory::Elements,
            quota: None,
            carried_through: false,
            handler: Handler::InTurn(handler),
        }
    }

    /// A row of an API that needs `operation` on the cluster.
    pub(crate) const fn of_cluster(key: ApiKey, operation: Operation, handler: fn(Call) -> Answer) -> Api {
        Api { right: Right::Cluster(operation), ..Api::new(key, handler) }
    }

    /// The advertised versions.
    pub fn advertised(&self) -> RangeInclusive<i16> {
        let schema = self.key.valid_versions();
        match self.versions {
            Versions::All => schema,
            Versions::UpTo(last) => *schema.start()..=last,
            Versions::FromZero => 0..=*schema.end(),
        }
    }

    /// Whether a request of this version is answered.
    pub fn serves(&self, version: i16) -> bool {
        self.advertised().contains(&version) && self.key.valid_versions().contains(&version)
    }

    /// Whether its requests may wait for other clients.
    pub fn waits(&self) -> bool {
        matches!(self.memory, Memory::Waiting | Memory::Records)
    }
}
