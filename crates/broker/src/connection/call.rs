//! One request on its way through: decoded, worked on, charged to its client, answered.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use wire::frame::{self, RequestHeader};
use wire::{ApiKey, Chunks, DecodeError, Message, Reader};

use super::turns::{self, Turn, Turns};
use super::{Answer, Refused};
use crate::api;
use crate::api::cluster_requests::ClusterRequest;
use crate::broker::Broker;
use crate::caller::Caller;
use crate::quotas::Quota;

/// Requests that are answered when data comes, or the other members of a group do.
pub const WAITING: [ApiKey; 3] = [ApiKey::Fetch, ApiKey::JoinGroup, ApiKey::SyncGroup];

/// Until when a connection is not read, since its client is over a quota (KIP-219).
#[derive(Debug, Default)]
pub(super) struct Muted {
    /// Milliseconds after `opened`.
    until_ms: AtomicU64,
    opened: OnceLock<Instant>,
}

impl Muted {
    fn mute(&self, ms: i32) {
        let opened = self.opened.get_or_init(Instant::now);
        let until_ms = opened.elapsed().as_millis() + u128::from(ms.unsigned_abs());
        self.until_ms.fetch_max(u64::try_from(until_ms).unwrap_or(u64::MAX), Ordering::Release);
    }

    pub(super) fn until(&self) -> Option<Instant> {
        let until_ms = self.until_ms.load(Ordering::Acquire);
        let opened = self.opened.get().filter(|_| until_ms > 0)?;
        opened.checked_add(Duration::from_millis(until_ms))
    }
}

/// One request on its way through.
pub(super) struct Call {
    pub(super) header: RequestHeader,
    pub(super) reader: Reader,
    pub(super) request_bytes: usize,
    pub(super) begun: Instant,
    /// What threads spent on it; counted where somebody has a quota of that.
    pub(super) spent: Option<Duration>,
    pub(super) caller: Caller,
    /// Held where the request has many elements.
    pub(super) turn: Option<Arc<Turn>>,
    pub(super) muted: Arc<Muted>,
    pub(super) broker: Arc<Broker>,
}

/// Polls `work`, and counts the time that a thread is at it in [`Call::spent`]: waiting costs nothing. What is done on a
/// thread for blocking work is not counted.
pub(super) fn timed<T>(spent: &mut Option<Duration>, work: impl FnOnce() -> T) -> T {
    let Some(spent) = spent else { return work() };
    let begun = Instant::now();
    let polled = work();
    *spent += begun.elapsed();
    polled
}

impl Call {
    fn garbled(&self, error: &DecodeError) -> Refused {
        let (name, version) = (self.header.api_key.name(), self.header.version);
        Refused(format!("a {name} request of version {version} cannot be decoded: {error}"))
    }

    /// Decodes a small request; `None` where it is not small. Bytes behind the message are let pass, as Kafka does:
    /// librdkafka's Metadata v13 has some.
    pub(super) fn decode_small<M: Message>(&mut self) -> Result<Option<M>, Refused> {
        let version = self.header.version;
        let mut reader = self.reader.limited(turns::SMALL_BYTES);
        match timed(&mut self.spent, || M::decode(&mut reader, version)) {
            Ok(message) => Ok(Some(message)),
            Err(DecodeError::Budget { .. }) if reader.budget() < self.reader.budget() => Ok(None),
            Err(error) => Err(self.garbled(&error)),
        }
    }

    /// Decodes a request that is always small.
    pub(super) fn decode_at_once<M: Message>(&mut self) -> Result<M, Refused> {
        let name = self.header.api_key.name();
        self.decode_small()?.ok_or_else(|| Refused(format!("a {name} request has too many elements")))
    }

    /// Decodes any request; one that is not small waits for its turn, and keeps it.
    pub(super) async fn decode<M: Message>(&mut self) -> Result<M, Refused> {
        if let Some(small) = self.decode_small()? {
            return Ok(small);
        }
        let decoded = self.broker.turns.decode(self.reader.clone(), self.header.version).await;
        let (message, turn) = decoded.map_err(|error| self.garbled(&error))?;
        self.turn = Some(Arc::new(turn));
        Ok(message)
    }

    pub(super) fn is_large(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.large)
    }

    /// Counts the request against its client's quotas, mutes the connection for as long as one of them says, which
    /// may be `throttle_ms` for one that was asked before, and returns how long that is, in milliseconds.
    pub(super) fn charge(&self, mut throttle_ms: i32) -> i32 {
        let quotas = &self.broker.quotas;
        if quotas.any() {
            let payer = self.caller.payer();
            if self.header.api_key == ApiKey::Produce {
                // As in Kafka the whole request, which is little more than its records.
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
            self.muted.mute(throttle_ms);
        }
        throttle_ms
    }

    pub(super) fn encode<M: Message>(&self, message: &mut M) -> Result<Chunks, Refused> {
        let asked_ms = message.throttle_time_ms().map_or(0, |ms| *ms);
        let throttle_ms = self.charge(asked_ms);
        if let Some(ms) = message.throttle_time_ms() {
            *ms = throttle_ms;
        }
        let RequestHeader { api_key, version, correlation_id, .. } = self.header;
        let encoded = frame::encode_response(correlation_id, api_key, version, message).map_err(|error| {
            let name = api_key.name();
            tracing::error!(api = name, version, %error, "an answer cannot be encoded, which is a bug");
            Refused(format!("the answer to a {name} request of version {version} cannot be encoded"))
        })?;
        self.count(encoded.len());
        Ok(encoded)
    }

    /// Counts the request, and its answer of so many bytes, in the metrics.
    pub(super) fn count(&self, bytes_out: usize) {
        if let Some(metrics) = self.broker.metrics.of(self.header.api_key) {
            metrics.requests.inc();
            metrics.bytes_in.inc_by(self.request_bytes as u64);
            metrics.bytes_out.inc_by(bytes_out as u64);
            metrics.seconds.observe(self.begun.elapsed().as_secs_f64());
        }
    }

    /// An answer that depends on nothing that earlier requests may still change.
    pub(super) fn ready<M: Message>(self, mut message: M) -> Answer {
        let encoded = self.encode(&mut message);
        Box::pin(std::future::ready(encoded))
    }

    /// The answer to a request that needs a right to the cluster; refused to whom has not got it.
    pub(super) fn for_cluster<Q, W>(self, work: impl FnOnce(Q) -> W + Send + 'static) -> Answer
    where
        Q: ClusterRequest + Message + 'static,
        W: Future<Output = Q::Answer> + Send + 'static,
    {
        let (broker, caller) = (self.broker.clone(), self.caller.clone());
        self.carried_through(|request: Q| async move {
            match broker.authorizer.cluster(&caller, Q::OPERATION) {
                Ok(()) => work(request).await,
                Err(error) => request.refused(error),
            }
        })
    }

    /// As [`Call::later`], for what changes something: once begun it goes on to its end, and into the audit log, also where
    /// the client does not wait for the answer.
    pub(super) fn carried_through<Q, M, W>(self, work: impl FnOnce(Q) -> W + Send + 'static) -> Answer
    where
        Q: Message + Send + 'static,
        M: Message + Send + Sync + 'static,
        W: Future<Output = M> + Send + 'static,
    {
        let begin = |request, turn: Option<Arc<Turn>>| -> Work<M> {
            let mut work = Box::pin(work(request));
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

    /// An answer that is worked out when its turn comes: it sees what the requests before it did.
    pub(super) fn later<Q, M, W>(self, work: impl FnOnce(Q) -> W + Send + 'static) -> Answer
    where
        Q: Message + Send + 'static,
        M: Message + Send + Sync + 'static,
        W: Future<Output = M> + Send + 'static,
    {
        let begin = |request, _: Option<Arc<Turn>>| -> Work<M> { Box::pin(work(request)) };
        Box::pin(Later { call: self, stage: Stage::Begin(Some(begin)), request: PhantomData })
    }
}

type Work<M> = Pin<Box<dyn Future<Output = M> + Send>>;
type Decoded<Q> = Pin<Box<dyn Future<Output = Result<(Q, Turn), DecodeError>> + Send>>;

/// How far a call has come.
enum Stage<Q, F, M> {
    Begin(Option<F>),
    /// It is not small, and waits for its turn.
    Decoding(Option<F>, Decoded<Q>),
    Working(Work<M>),
    /// Its answer waits for room.
    Answered(Pin<Box<dyn Future<Output = Chunks> + Send>>),
}

/// A call whose answer is worked out. Not an async block: that would hold the work two or three times over, some
/// kilobytes to be moved about for each request.
struct Later<Q, F, M> {
    call: Call,
    stage: Stage<Q, F, M>,
    request: PhantomData<fn() -> Q>,
}

// Nothing in it is pinned where it lies.
impl<Q, F, M> Unpin for Later<Q, F, M> {}

impl<Q, F, M> Future for Later<Q, F, M>
where
    Q: Message + Send + 'static,
    M: Message,
    F: FnOnce(Q, Option<Arc<Turn>>) -> Work<M>,
{
    type Output = Result<Chunks, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Later { call, stage, .. } = self.get_mut();
        loop {
            *stage = match stage {
                Stage::Begin(begin) => match call.decode_small()? {
                    Some(request) => {
                        let begin = begin.take().expect("it begins once");
                        Stage::Working(timed(&mut call.spent, || begin(request, None)))
                    }
                    None => {
                        let (broker, reader, version) =
                            (call.broker.clone(), call.reader.clone(), call.header.version);
                        let decoded = async move { broker.turns.decode(reader, version).await };
                        Stage::Decoding(begin.take(), Box::pin(decoded))
                    }
                },
                Stage::Decoding(begin, decoded) => {
                    let (request, turn) =
                        ready!(decoded.as_mut().poll(context)).map_err(|error| call.garbled(&error))?;
                    let begin = begin.take().expect("it begins once");
                    call.turn = Some(Arc::new(turn));
                    let turn = call.turn.clone();
                    Stage::Working(timed(&mut call.spent, || begin(request, turn)))
                }
                Stage::Working(work) => {
                    let long = call.turn.is_some();
                    let polled =
                        timed(&mut call.spent, || turns::beside(long, || work.as_mut().poll(context)));
                    let Poll::Ready(mut message) = polled else {
                        // Who waits for somebody else keeps nobody waiting. A large fetch does not wait.
                        let fetches = call.header.api_key == ApiKey::Fetch;
                        if WAITING.contains(&call.header.api_key) && !(fetches && call.is_large()) {
                            call.turn = None;
                        }
                        return Poll::Pending;
                    };
                    let encoded = turns::beside(long, || call.encode(&mut message))?;
                    // Records are the log's, and in no answer twice.
                    let counted = call.header.api_key != ApiKey::Fetch || long;
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

/// A produce request whose batches are on their way.
pub(super) struct Producing {
    pub(super) call: Call,
    pub(super) begun: api::produce::Begun,
    /// Its answer, which waits for room.
    pub(super) answered: Option<Pin<Box<dyn Future<Output = Chunks> + Send>>>,
}

impl Future for Producing {
    type Output = Result<Chunks, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Producing { call, begun, answered } = self.get_mut();
        if let Some(answered) = answered {
            return answered.as_mut().poll(context).map(Ok);
        }
        let large = call.is_large();
        let answer = || turns::beside(large, || begun.poll_answer(context, &call.broker));
        let mut message = ready!(timed(&mut call.spent, answer));
        let encoded = call.encode(&mut message)?;
        let Some(room) = call.broker.turns.room_for(encoded.len()) else {
            return Poll::Ready(Ok(encoded));
        };
        answered.insert(Box::pin(Turns::hold(room, encoded))).as_mut().poll(context).map(Ok)
    }
}
