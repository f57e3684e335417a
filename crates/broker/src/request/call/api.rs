//! A row of the table of APIs.

use std::ops::RangeInclusive;

use wire::ApiKey;

use super::{Answer, Call};
use crate::quotas::Quota;
use crate::security::Operation;

/// An API as this server supports it. ApiVersions, dispatch, metrics, memory, quotas, rights and `docs/protocol.md` are
/// derived from it.
#[derive(Debug)]
pub struct Api {
    /// The API's key.
    pub key: ApiKey,
    /// The advertised versions.
    pub versions: Versions,
    /// The right that the request as a whole needs.
    pub right: Right,
    /// How the memory of a request is bounded.
    pub memory: Memory,
    /// The quota that the request counts towards, besides the quota of request time.
    pub quota: Option<Quota>,
    /// Whether a request in progress is carried to its end after its client disconnects. True for requests that change
    /// something.
    pub carried_through: bool,
    /// The API's handler.
    pub(crate) handler: Handler,
}

/// The advertised versions of an API, a part of those in Kafka's schema.
#[derive(Clone, Copy, Debug)]
pub enum Versions {
    /// All versions.
    All,
    /// The first version up to this one.
    UpTo(i16),
    /// All versions, and also the earlier ones from 0 on. The earlier ones are refused.
    FromZero,
}

/// The right that a request needs as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// No right.
    Free,
    /// This right to the cluster. Without it the request is refused.
    Cluster(Operation),
    /// The handler checks the right to each topic, group or transactional id in the request.
    PerResource,
}

/// How the memory of a request is bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// The request has few elements. One with many is refused.
    Small,
    /// A request with many elements waits for its turn and keeps it until its answer is complete (see
    /// [`crate::resources::turns`]).
    Elements,
    /// As [`Memory::Elements`], but the request gives its turn back while it waits for other group members.
    Waiting,
    /// A request with few elements is treated as [`Memory::Waiting`], because it waits for records. The records of its
    /// answer belong to the log and are not counted.
    Records,
}

/// How an API is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    /// After the earlier answers of the connection have been sent.
    InTurn(fn(Call) -> Answer),
    /// Produce: appends begin in the order of the requests. The answers come later, or never.
    Produce,
}

impl Api {
    /// A row with the defaults: all versions, rights checked by the handler, any number of elements.
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

    /// A row of an API that is refused whoever asks.
    pub(crate) const fn refused(key: ApiKey, handler: fn(Call) -> Answer) -> Api {
        Api { right: Right::Free, ..Api::new(key, handler) }
    }

    /// A row of an API that needs the right `operation` to the cluster.
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

    /// Whether the server answers requests of this version.
    pub fn serves(&self, version: i16) -> bool {
        self.advertised().contains(&version) && self.key.valid_versions().contains(&version)
    }

    /// Whether requests of this API may wait for other clients.
    pub fn waits(&self) -> bool {
        matches!(self.memory, Memory::Waiting | Memory::Records)
    }
}
