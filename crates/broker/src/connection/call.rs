//! One request on its way through: decoded, worked on, charged to its client, answered.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use wire::frame::{self, RequestHeader};
use wire::{ApiKey, Chunks, Message, Reader};

use super::{Answer, Refused};
use crate::api;
use crate::api::cluster_requests::ClusterRequest;
use crate::broker::Broker;
use crate::caller::Caller;
use crate::quotas::Quota;

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
    pub(super) fn decode<M: Message>(&mut self) -> Result<M, Refused> {
        let (name, version) = (self.header.api_key.name(), self.header.version);
        // Bytes behind the message are let pass, as Kafka does: librdkafka's Metadata v13 has some.
        let decoded = M::decode(&mut self.reader, version);
        if let Some(spent) = &mut self.spent {
            *spent += self.begun.elapsed();
        }
        decoded.map_err(|error| {
            Refused(format!("a {name} request of version {version} cannot be decoded: {error}"))
        })
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
    pub(super) fn for_cluster<Q, W>(self, request: Q, work: impl FnOnce(Q) -> W + Send + 'static) -> Answer
    where
        Q: ClusterRequest + 'static,
        W: Future<Output = Q::Answer> + Send + 'static,
    {
        let (broker, caller) = (self.broker.clone(), self.caller.clone());
        self.carried_through(async move {
            match broker.authorizer.cluster(&caller, Q::OPERATION) {
                Ok(()) => work(request).await,
                Err(error) => request.refused(error),
            }
        })
    }

    /// As [`Call::later`], for what changes something: once begun it goes on to its end, and into the audit log, also where
    /// the client does not wait for the answer.
    pub(super) fn carried_through<M: Message + Send + Sync + 'static>(
        self,
        work: impl Future<Output = M> + Send + 'static,
    ) -> Answer {
        self.later(async move {
            match tokio::spawn(work).await {
                Ok(message) => message,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        })
    }

    /// An answer that is worked out when its turn comes: it sees what the requests before it did.
    pub(super) fn later<M: Message + Send + Sync + 'static>(
        self,
        work: impl Future<Output = M> + Send + 'static,
    ) -> Answer {
        Box::pin(Later { call: self, work: Box::pin(work) })
    }
}

/// A call whose answer is worked out. Not an async block: that would hold the work two or three times over, some
/// kilobytes to be moved about for each request.
struct Later<W> {
    call: Call,
    work: Pin<Box<W>>,
}

impl<M: Message, W: Future<Output = M>> Future for Later<W> {
    type Output = Result<Chunks, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Later { call, work } = self.get_mut();
        let mut message = ready!(timed(&mut call.spent, || work.as_mut().poll(context)));
        Poll::Ready(call.encode(&mut message))
    }
}

/// A produce request whose batches are on their way.
pub(super) struct Producing {
    pub(super) call: Call,
    pub(super) begun: api::produce::Begun,
}

impl Future for Producing {
    type Output = Result<Chunks, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Producing { call, begun } = self.get_mut();
        let mut message = ready!(timed(&mut call.spent, || begun.poll_answer(context, &call.broker)));
        Poll::Ready(call.encode(&mut message))
    }
}
