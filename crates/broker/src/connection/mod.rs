//! One client connection in the broker: request frames in, answers out, in the order of the requests.

pub mod table;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wire::messages as m;
use wire::{ApiKey, Chunks, Reader, frame};

use crate::api;
use crate::broker::Broker;
use crate::caller::{Caller, Origin, Principal};
use crate::quotas::Quota;
use crate::request::call::api::Handler;
use crate::request::call::{Answer, Call, Refused, timed};
use crate::request::connection_state::ConnectionState;
use crate::resources::turns::{self, Turns};

impl Broker {
    /// Accepts a new client connection.
    pub fn connect(self: &Arc<Self>, origin: Origin) -> Connection {
        Connection { broker: self.clone(), origin: Arc::new(origin), state: Arc::default() }
    }
}

/// One client connection.
#[derive(Debug)]
pub struct Connection {
    broker: Arc<Broker>,
    origin: Arc<Origin>,
    state: Arc<ConnectionState>,
}

impl Connection {
    /// The client has authenticated. From its next request on, its principal is `principal`.
    pub fn authenticated(&mut self, principal: Principal) {
        self.origin = Arc::new(Origin { principal, ..Origin::clone(&self.origin) });
    }

    /// The time until which no further request may be read. The client was told to wait until then.
    pub fn muted_until(&self) -> Option<Instant> {
        self.state.muted.until()
    }

    /// Begins a request. `frame` holds everything after the 4-byte size. Work that must happen in the order of the
    /// requests happens here. The rest happens while the answer is awaited. Returns `None` if the request gets no
    /// answer (`acks=0`).
    pub async fn begin(&mut self, frame: Bytes) -> Result<Option<Answer>, Refused> {
        if self.broker.logs.are_outdated() {
            // Clients that have no other connection would go on to ask this broker.
            return Err(Refused(
                "other brokers have the logs of this one, which does not hear of them".to_owned(),
            ));
        }
        let request_bytes = frame.len();
        let mut reader = Reader::new(frame);
        let header = frame::decode_request_header(&mut reader)
            .map_err(|error| Refused(format!("a request header cannot be decoded: {error}")))?;
        let (api_key, version) = (header.api_key, header.version);
        let begun = Instant::now();
        let client_id = header.client_id.clone().unwrap_or_default();
        let caller = Caller { origin: self.origin.clone(), client_id };
        let spent = self.broker.quotas.enabled(Quota::Request).then_some(Duration::ZERO);
        let served = table::row(api_key).filter(|api| api.serves(version));
        let Some(api) = served.or_else(|| table::row(ApiKey::ApiVersions).filter(|api| api.key == api_key))
        else {
            return Err(Refused(format!("{} version {version} is not supported", api_key.name())));
        };
        let (broker, connection) = (self.broker.clone(), self.state.clone());
        let mut call =
            Call { api, header, reader, request_bytes, begun, spent, caller, turn: None, connection, broker };
        if served.is_none() {
            // A client learns the supported versions from an ApiVersions answer of version 0.
            call.header.version = 0;
            return Ok(Some(call.ready(api::api_versions::unsupported(api))));
        }
        match api.handler {
            Handler::InTurn(handler) => Ok(Some(handler(call))),
            Handler::Produce => self.produce(call).await,
        }
    }

    async fn produce(&self, mut call: Call) -> Result<Option<Answer>, Refused> {
        let request: m::ProduceRequest = call.decode().await?;
        let acks = request.acks;
        let version = call.header.version;
        let caller = call.caller.clone();
        let mut work = pin!(api::produce::begin(&self.broker, &caller, request, version));
        let large = call.is_large();
        let mut poll = |context: &mut Context<'_>| turns::beside(large, || work.as_mut().poll(context));
        let begun = poll_fn(|context| timed(&mut call.spent, || poll(context))).await;
        if acks != 0 {
            return Ok(Some(Box::pin(Producing { call, begun, answered: None })));
        }
        call.count(0);
        match begun.first_error() {
            // As in Kafka, a client that asks for no answer learns of an error by a closed connection.
            Some(code) => Err(Refused(format!("a produce request with acks=0 failed with error {code}"))),
            None => {
                // As in Kafka, requests without an answer count only towards the byte quota.
                call.spent = None;
                call.charge(0);
                Ok(None)
            }
        }
    }
}

/// A produce request whose batches are in the log's queue.
struct Producing {
    begun: api::produce::Begun,
    /// The answer, if it waits for room.
    answered: Option<Pin<Box<dyn Future<Output = Chunks> + Send>>>,
    // Dropped last: its turn ends when the memory is free.
    call: Call,
}

impl Future for Producing {
    type Output = Result<Chunks, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Producing { call, begun, answered } = self.get_mut();
        if let Some(answered) = answered {
            return answered.as_mut().poll(context).map(Ok);
        }
        let large = call.is_large();
        let answer = || turns::beside(large, || begun.poll_answer(context));
        let mut message = ready!(timed(&mut call.spent, answer));
        let encoded = call.encode(&mut message)?;
        let Some(room) = call.broker.turns.room_for(encoded.len()) else {
            return Poll::Ready(Ok(encoded));
        };
        answered.insert(Box::pin(Turns::hold(room, encoded))).as_mut().poll(context).map(Ok)
    }
}
