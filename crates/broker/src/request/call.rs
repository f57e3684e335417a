//! The processing of one request: decode, handle, charge to the client's quotas, answer.

pub mod api;

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use wire::frame::{self, RequestHeader};
use wire::{Chunks, DecodeError, Message, Reader};

use self::api::{Api, Memory, Right};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::metrics::AnsweredRequest;
use crate::quotas::Quota;
use crate::request::Request;
use crate::request::cluster_requests::ClusterRequest;
use crate::request::connection_state::ConnectionState;
use crate::resources::turns::{self, Turn, Turns};

/// The future answer to one request. Answers are awaited and sent one after the other, in the order of the requests.
pub type Answer = Pin<Box<dyn Future<Output = Result<Chunks, Refused>> + Send>>;

/// The reason why a connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// A request that is being processed.
pub(crate) struct Call {
    /// The requested API.
    pub api: &'static Api,
    pub header: RequestHeader,
    pub reader: Reader,
    pub request_bytes: usize,
    pub begun: Instant,
    /// Time that threads have spent on the request. `None` if no client has a quota of request time.
    pub spent: Option<Duration>,
    pub caller: Caller,
    /// Held while a request with many elements is handled.
    pub turn: Option<Arc<Turn>>,
    pub connection: Arc<ConnectionState>,
    pub broker: Arc<Broker>,
}

/// Polls `work` and adds the time of the poll to [`Call::spent`]. Waiting is not counted, nor is work on a thread for
/// blocking work.
pub fn timed<T>(spent: &mut Option<Duration>, work: impl FnOnce() -> T) -> T {
    let Some(spent) = spent else { return work() };
    let begun = Instant::now();
    let polled = work();
    *spent += begun.elapsed();
    polled
}

impl Call {
    fn garbled(&self, error: &DecodeError) -> Refused {
        let (name, version) = (self.api.key.name(), self.header.version);
        Refused(format!("a {name} request of version {version} cannot be decoded: {error}"))
    }

    /// Decodes a small request. Returns `None` if the request is not small. As in Kafka, bytes after the message are
    /// ignored: librdkafka's Metadata v13 has some.
    pub fn decode_small<M: Message>(&mut self) -> Result<Option<M>, Refused> {
        let version = self.header.version;
        let mut reader = self.reader.limited(turns::SMALL_BYTES);
        match timed(&mut self.spent, || M::decode(&mut reader, version)) {
            Ok(message) => Ok(Some(message)),
            Err(DecodeError::Budget { .. }) if reader.budget() < self.reader.budget() => Ok(None),
            Err(error) => Err(self.garbled(&error)),
        }
    }

    /// Decodes a request of any size. A request that is not small waits for its turn and keeps it.
    pub async fn decode<M: Message>(&mut self) -> Result<M, Refused> {
        if let Some(small) = self.decode_small()? {
            return Ok(small);
        }
        let decoded = self.broker.turns.decode(self.reader.clone(), self.header.version).await;
        let (message, turn) = decoded.map_err(|error| self.garbled(&error))?;
        self.turn = Some(Arc::new(turn));
        Ok(message)
    }

    pub fn is_large(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.large)
    }

    /// Charges the request to its client's quotas. `throttle_ms` is the throttle time of a quota that was checked
    /// before. Mutes the connection for the longest throttle time and returns that time in milliseconds.
    pub fn charge(&self, mut throttle_ms: i32) -> i32 {
        let quotas = &self.broker.quotas;
        if quotas.any() {
            let payer = self.caller.payer();
            if self.api.quota == Some(Quota::Produce) {
                // As in Kafka, the size of the whole request counts, which is little more than its records.
                let bytes = f64::from(u32::try_from(self.request_bytes).unwrap_or(u32::MAX));
                throttle_ms = throttle_ms.max(quotas.record(Quota::Produce, &payer, bytes));
            }
            if let Some(spent) = self.spent {
                let percent = spent.as_secs_f64() * 100.0;
                let limited_ms = quotas.record(Quota::Request, &payer, percent);
                throttle_ms = throttle_ms.max(limited_ms.min(quotas.request_throttle_ms_max()));
            }
        }
        if throttle_ms > 0 {
            self.connection.muted.mute(throttle_ms);
            self.broker.metrics.throttle(self.api.key, throttle_ms);
        }
        throttle_ms
    }

    pub fn encode<M: Message>(&self, message: &mut M) -> Result<Chunks, Refused> {
        let asked_ms = message.throttle_time_ms().map_or(0, |ms| *ms);
        let throttle_ms = self.charge(asked_ms);
        if let Some(ms) = message.throttle_time_ms() {
            *ms = throttle_ms;
        }
        let RequestHeader { version, correlation_id, .. } = self.header;
        let api_key = self.api.key;
        let encoded = frame::encode_response(correlation_id, api_key, version, message).map_err(|error| {
            let name = api_key.name();
            tracing::error!(api = name, version, %error, "an answer cannot be encoded, which is a bug");
            Refused(format!("the answer to a {name} request of version {version} cannot be encoded"))
        })?;
        self.count(encoded.len());
        Ok(encoded)
    }

    /// Counts the request, and its answer of `bytes_out` bytes, in the metrics.
    pub fn count(&self, bytes_out: usize) {
        let metrics = self.broker.metrics.of(self.api.key);
        metrics.requests.inc();
        metrics.bytes_in.inc_by(self.request_bytes as u64);
        metrics.bytes_out.inc_by(bytes_out as u64);
        let took = self.begun.elapsed();
        metrics.seconds.observe(took.as_secs_f64());
        if let Some(observer) = self.broker.metrics.observer.get() {
            observer.answered(&AnsweredRequest {
                api: self.api.key.name(),
                version: self.header.version,
                client_id: &self.caller.client_id,
                origin: &self.caller.origin,
                took,
                bytes_in: self.request_bytes,
                bytes_out,
            });
        }
    }

    /// Answers with a message that does not depend on earlier requests of the connection.
    pub fn ready<M: Message>(self, mut message: M) -> Answer {
        let encoded = self.encode(&mut message);
        Box::pin(std::future::ready(encoded))
    }

    fn request<Q>(&self, body: Q) -> Request<Q> {
        Request {
            broker: self.broker.clone(),
            caller: self.caller.clone(),
            connection: self.connection.clone(),
            version: self.header.version,
            body,
        }
    }

    /// Answers with the result of `handler`. The handler is called after the earlier answers were sent, so that it sees
    /// the effects of those requests.
    pub fn answer<Q, M, W>(self, handler: impl FnOnce(Request<Q>) -> W + Send + 'static) -> Answer
    where
        Q: Message + Send + 'static,
        M: Message + Send + Sync + 'static,
        W: Future<Output = M> + Send + 'static,
    {
        let carried_through = self.api.carried_through;
        let begin = move |request, turn: Option<Arc<Turn>>| -> Work<M> {
            if !carried_through {
                return Box::pin(handler(request));
            }
            let mut work = Box::pin(handler(request));
            let polled = move |context: &mut Context<'_>| {
                turns::beside(turn.is_some(), || work.as_mut().poll(context))
            };
            let task = tokio::spawn(std::future::poll_fn(polled));
            Box::pin(async move {
                match task.await {
                    Ok(message) => message,
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            })
        };
        Box::pin(Later { call: self, stage: Stage::Begin(Some(begin)), request: PhantomData })
    }

    /// As [`Call::answer`], for an API whose row requires a right to the cluster. A caller without the right is
    /// refused.
    pub fn answer_for_cluster<Q, W>(self, handler: impl FnOnce(Request<Q>) -> W + Send + 'static) -> Answer
    where
        Q: ClusterRequest + Message + 'static,
        W: Future<Output = Q::Answer> + Send + 'static,
    {
        let Right::Cluster(operation) = self.api.right else {
            panic!("the row of {} names no right to the cluster", self.api.key.name())
        };
        self.answer(move |request: Request<Q>| async move {
            match request.broker.authorizer.cluster(&request.caller, operation) {
                Ok(()) => handler(request).await,
                Err(error) => request.body.refused(error),
            }
        })
    }
}

type Work<M> = Pin<Box<dyn Future<Output = M> + Send>>;
type Decoded<Q> = Pin<Box<dyn Future<Output = Result<(Q, Turn), DecodeError>> + Send>>;

/// The progress of a call.
enum Stage<Q, F, M> {
    Begin(Option<F>),
    /// The request is not small and waits for its turn.
    Decoding(Option<F>, Decoded<Q>),
    Working(Work<M>),
    /// The answer waits for room.
    Answered(Pin<Box<dyn Future<Output = Chunks> + Send>>),
}

/// A call whose answer is still being computed. This is not an async block, which would hold the work two or three
/// times: several kilobytes to move for each request.
struct Later<Q, F, M> {
    // Dropped before the call, whose turn ends when the memory is free.
    stage: Stage<Q, F, M>,
    call: Call,
    request: PhantomData<fn() -> Q>,
}

// No field is pinned in place.
impl<Q, F, M> Unpin for Later<Q, F, M> {}

impl<Q, F, M> Future for Later<Q, F, M>
where
    Q: Message + Send + 'static,
    M: Message,
    F: FnOnce(Request<Q>, Option<Arc<Turn>>) -> Work<M>,
{
    type Output = Result<Chunks, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Later { call, stage, .. } = self.get_mut();
        loop {
            *stage = match stage {
                Stage::Begin(begin) => match call.decode_small()? {
                    Some(body) => {
                        let begin = begin.take().expect("it begins once");
                        let request = call.request(body);
                        Stage::Working(timed(&mut call.spent, || begin(request, None)))
                    }
                    None if call.api.memory == Memory::Small => {
                        let name = call.api.key.name();
                        return Poll::Ready(Err(Refused(format!("a {name} request has too many elements"))));
                    }
                    None => {
                        let (broker, reader, version) =
                            (call.broker.clone(), call.reader.clone(), call.header.version);
                        let decoded = async move { broker.turns.decode(reader, version).await };
                        Stage::Decoding(begin.take(), Box::pin(decoded))
                    }
                },
                Stage::Decoding(begin, decoded) => {
                    let (body, turn) =
                        ready!(decoded.as_mut().poll(context)).map_err(|error| call.garbled(&error))?;
                    let begin = begin.take().expect("it begins once");
                    call.turn = Some(Arc::new(turn));
                    let (request, turn) = (call.request(body), call.turn.clone());
                    Stage::Working(timed(&mut call.spent, || begin(request, turn)))
                }
                Stage::Working(work) => {
                    let long = call.turn.is_some();
                    let polled =
                        timed(&mut call.spent, || turns::beside(long, || work.as_mut().poll(context)));
                    let Poll::Ready(mut message) = polled else {
                        // A request that waits for other clients must not block those clients by keeping its turn.
                        match call.api.memory {
                            Memory::Records if call.is_large() => {}
                            Memory::Waiting | Memory::Records => call.turn = None,
                            Memory::Small | Memory::Elements => {}
                        }
                        return Poll::Pending;
                    };
                    let encoded = turns::beside(long, || call.encode(&mut message))?;
                    // The records belong to the log and are not copied into the answer, so they are not counted.
                    let counted = call.api.memory != Memory::Records || long;
                    match call.broker.turns.room_for(encoded.len()).filter(|_| counted) {
                        Some(room) => Stage::Answered(Box::pin(Turns::hold(room, encoded))),
                        None => return Poll::Ready(Ok(encoded)),
                    }
                }
                Stage::Answered(held) => return held.as_mut().poll(context).map(Ok),
            };
        }
    }
}
