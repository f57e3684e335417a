//! One client connection: frames in, answers out, and every way in which it ends.
//!
//! One task reads and writes. While an answer is being written nothing is read, so a client that does not take its
//! answers is not served further; past the bound on requests in flight nothing is read either.
//!
//! One lazy timer watches all time limits: it is pulled nearer when a stall begins, and otherwise only when it fires.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use broker::{Answer, Refused};
use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::budget::{Budget, Share};
use crate::inbound::{Inbound, Read};
use crate::outbound::Outbound;

/// What is done with frames: the broker, or a test's stand-in.
pub trait Handler: Send {
    /// See [`broker::Connection::begin`].
    fn begin(&mut self, frame: Bytes) -> impl Future<Output = Result<Option<Answer>, Refused>> + Send;

    /// See [`broker::Connection::muted_until`].
    fn muted_until(&self) -> Option<Instant> {
        None
    }
}

impl Handler for broker::Connection {
    fn begin(&mut self, frame: Bytes) -> impl Future<Output = Result<Option<Answer>, Refused>> + Send {
        broker::Connection::begin(self, frame)
    }

    fn muted_until(&self) -> Option<Instant> {
        broker::Connection::muted_until(self)
    }
}

/// The bounds of one connection.
#[derive(Clone, Debug)]
pub struct Limits {
    /// `socket.request.max.bytes`.
    pub request_bytes_max: usize,
    /// `max.in.flight.requests.per.connection`.
    pub in_flight_max: usize,
    /// `connections.max.idle.ms`.
    pub idle: Duration,
    /// A frame that has begun must go on within this.
    pub frame_stall: Duration,
    /// The same for a frame that holds memory which others may wait for.
    pub held_stall: Duration,
    /// A client must take something of its answer within this.
    pub write_stall: Duration,
    /// At its end a connection may still answer what is in flight for so long.
    pub drain: Duration,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Closing {
    #[error("the client closed it")]
    ByClient,
    #[error("the server is stopping")]
    Stopping,
    #[error("a request claims {claimed} bytes, allowed are 1 to {max} (socket.request.max.bytes){hint}")]
    Size { claimed: i32, max: usize, hint: &'static str },
    #[error("the client closed it in the middle of a request")]
    Truncated,
    #[error("{0}")]
    Refused(Refused),
    #[error("it was idle for longer than connections.max.idle.ms")]
    Idle,
    #[error("the rest of a request did not come in time")]
    FrameStalled,
    #[error("the client took nothing of its answer for too long")]
    WriteStalled,
    #[error("answers were still in flight when its time to end was over")]
    DrainTimeout,
    #[error(transparent)]
    Socket(std::io::Error),
}

impl Closing {
    /// Whether an operator may want to know: somebody's mistake rather than the ordinary end of a connection.
    pub fn is_notable(&self) -> bool {
        match self {
            Closing::Size { .. } | Closing::Refused(_) | Closing::FrameStalled | Closing::WriteStalled => {
                true
            }
            Closing::ByClient
            | Closing::Stopping
            | Closing::Truncated
            | Closing::Idle
            | Closing::DrainTimeout
            | Closing::Socket(_) => false,
        }
    }
}

/// The state of one connection besides its sockets and its handler.
struct State {
    inbound: Inbound,
    outbound: Outbound,
    limits: Limits,
    last_request: Instant,
    reading: bool,
    /// Until when nothing is read, since the client was told to wait.
    muted_until: Option<Instant>,
    /// Whether the handler is at a request that has no place in `outbound` yet.
    beginning: bool,
    /// Set once nothing is read any more: why, and until when answers are still sent.
    ending: Option<(Closing, Instant)>,
}

enum Event {
    Read(Read),
    Wrote,
    Timer,
    Stop,
}

/// Serves a connection until it ends; dropping the stream closes it.
pub async fn serve<H: Handler>(
    mut stream: TcpStream,
    mut handler: H,
    limits: Limits,
    budget: &Budget,
    mut stop: watch::Receiver<bool>,
) -> Closing {
    let mut state = State {
        inbound: Inbound::new(limits.request_bytes_max),
        outbound: Outbound::default(),
        last_request: Instant::now(),
        reading: true,
        muted_until: None,
        beginning: false,
        ending: None,
        limits,
    };
    let (mut reader, mut writer) = stream.split();
    let mut timer = pin!(tokio::time::sleep(state.limits.idle));
    // Kept over all rounds: to wait anew in each would cost a lock that all connections share.
    let mut stop = pin!(async move {
        // An error: whoever could tell us to stop is gone, which is the same.
        let _ = stop.wait_for(|stop| *stop).await;
    });
    loop {
        if state.outbound.is_empty()
            && let Some((closing, _)) = state.ending.take()
        {
            return closing;
        }
        state.muted_until = handler.muted_until().filter(|until| *until > Instant::now());
        state.pull_nearer(timer.as_mut());
        let may_read = state.may_read();
        let (sending, stoppable) = (!state.outbound.is_empty(), state.ending.is_none());
        let State { inbound, outbound, .. } = &mut state;
        let event = tokio::select! {
            biased;
            result = poll_fn(|cx| outbound.poll_step(cx, &mut writer)), if sending => result.map(|()| Event::Wrote),
            result = inbound.next(&mut reader, budget), if may_read => result.map(Event::Read),
            () = &mut timer => Ok(Event::Timer),
            () = &mut stop, if stoppable => Ok(Event::Stop),
        };
        match event {
            Ok(Event::Read(Read::Frame(frame, share))) => {
                state.last_request = Instant::now();
                let begin = pin!(handler.begin(frame));
                state.beginning = true;
                let begun = begun(begin, &mut state, &mut writer, timer.as_mut()).await;
                state.beginning = false;
                match begun {
                    Ok(Ok(Some(answer))) => state.outbound.push(answer, share),
                    Ok(Ok(None)) => drop::<Share>(share),
                    Ok(Err(refused)) => state.end(Closing::Refused(refused)),
                    Err(closing) => return closing,
                }
            }
            Ok(Event::Read(Read::End)) => state.end(Closing::ByClient),
            Ok(Event::Read(Read::Waiting) | Event::Wrote) => {}
            Ok(Event::Timer) => {
                if let Err(closing) = state.expire(timer.as_mut()) {
                    return closing;
                }
            }
            Ok(Event::Stop) => state.end(Closing::Stopping),
            Err(closing @ Closing::Size { .. }) => state.end(closing),
            Err(closing) => return closing,
        }
        state.pull_nearer(timer.as_mut());
    }
}

/// Waits until a request has begun, and meanwhile sends answers to those before it: it may wait for room that they hold.
async fn begun<B, W>(
    mut begin: Pin<&mut B>,
    state: &mut State,
    writer: &mut W,
    mut timer: Pin<&mut Sleep>,
) -> Result<B::Output, Closing>
where
    B: Future,
    W: tokio::io::AsyncWrite + Unpin,
{
    loop {
        let sending = !state.outbound.is_empty();
        tokio::select! {
            biased;
            result = &mut begin => return Ok(result),
            result = poll_fn(|cx| state.outbound.poll_step(cx, writer)), if sending => result?,
            () = &mut timer => state.expire(timer.as_mut())?,
        }
        state.pull_nearer(timer.as_mut());
    }
}

impl State {
    fn may_read(&mut self) -> bool {
        let may = self.ending.is_none()
            // A frame that was begun and holds budget is finished: others wait for it.
            && (self.muted_until.is_none() || self.inbound.holds_budget())
            && !self.outbound.is_writing()
            && self.outbound.len() < self.limits.in_flight_max;
        if may && !self.reading {
            self.inbound.resume();
        }
        self.reading = may;
        may
    }

    fn end(&mut self, closing: Closing) {
        self.ending.get_or_insert((closing, Instant::now() + self.limits.drain));
    }

    /// When something is too late, and what that means.
    fn deadline(&self) -> Option<(Instant, Closing)> {
        let write =
            self.outbound.stalled_from().map(|from| (from + self.limits.write_stall, Closing::WriteStalled));
        let frame = self.inbound.stalled_from().filter(|_| self.reading);
        let limit =
            if self.inbound.holds_budget() { self.limits.held_stall } else { self.limits.frame_stall };
        let frame = frame.map(|from| (from + limit, Closing::FrameStalled));
        let idle = !self.beginning
            && self.outbound.is_empty()
            && self.inbound.stalled_from().is_none()
            && self.ending.is_none();
        let idle = idle.then(|| (self.last_request + self.limits.idle, Closing::Idle));
        let drain = self.ending.as_ref().map(|(_, until)| (*until, Closing::DrainTimeout));
        [write, frame, idle, drain].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// The timer fired: something is too late, or the timer is set anew.
    fn expire(&self, timer: Pin<&mut Sleep>) -> Result<(), Closing> {
        let now = Instant::now();
        let at = match self.deadline() {
            Some((at, closing)) if at <= now => return Err(closing),
            Some((at, _)) => at,
            // An answer is being waited for, which is not the client's fault.
            None => now + self.limits.idle,
        };
        // Then it is read again.
        let unmuted = self.muted_until.filter(|until| *until > now);
        timer.reset(unmuted.map_or(at, |until| at.min(until)).into());
        Ok(())
    }

    fn pull_nearer(&self, timer: Pin<&mut Sleep>) {
        let deadline = self.deadline().map(|(at, _)| at);
        if let Some(at) = deadline.into_iter().chain(self.muted_until).min()
            && timer.deadline() > at.into()
        {
            timer.reset(at.into());
        }
    }
}

#[cfg(test)]
mod tests;
