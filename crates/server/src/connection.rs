//! One client connection: frames in, answers out, and every way in which it ends.
//!
//! One task reads and writes. It does not read while it writes an answer, so a client that does not read its answers is
//! not served further. It does not read either while the number of requests in flight is at its bound.
//!
//! One lazy timer watches all time limits. It is moved forward when a stall begins, and otherwise only when it fires.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use broker::{Answer, Refused};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::budget::{Budget, Share};
use crate::closing::Closing;
use crate::inbound::{Arrived, Inbound, Read};
use crate::lobby::Place;
use crate::outbound::Outbound;
use crate::transport::Transport;

/// Handles frames: the broker, or a substitute in tests.
pub trait Handler: Send {
    /// See [`broker::Connection::begin`].
    fn begin(&mut self, frame: Bytes) -> impl Future<Output = Result<Option<Answer>, Refused>> + Send;

    /// See [`broker::Connection::muted_until`].
    fn muted_until(&self) -> Option<Instant> {
        None
    }

    /// Whether the client has authenticated. Called only on listeners that require it, until it returns true. Before
    /// that, the client may have one request in flight at a time, and a limited time.
    fn authenticated(&self) -> bool {
        true
    }

    /// Bound in bytes of a frame before the client has authenticated.
    fn frame_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Called after each request has begun. Returns the reason to stop reading, if any. Answers in progress are still
    /// sent.
    fn refused(&mut self) -> Option<Refused> {
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
    /// `max.in.flight.request.bytes.per.connection`.
    pub in_flight_bytes_max: usize,
    /// `connections.max.idle.ms`.
    pub idle: Duration,
    /// Time within which a frame that has begun must make progress.
    pub frame_stall: Duration,
    /// The same limit for a frame that holds memory which other connections may wait for.
    pub held_stall: Duration,
    /// Time within which a client must accept some bytes of its answer.
    pub write_stall: Duration,
    /// Time that a closing connection has to answer the requests in flight.
    pub drain: Duration,
    /// `sasl.authentication.timeout.ms`.
    pub authentication: Duration,
    /// `connection.failed.authentication.delay.ms`.
    pub failed_authentication_delay: Duration,
}

/// The state of one connection, without its socket and its handler.
struct State {
    inbound: Inbound,
    outbound: Outbound,
    limits: Limits,
    last_request: Instant,
    /// Held until the client has authenticated.
    place: Option<Place>,
    reading: bool,
    /// The time until which nothing is read, because the client was told to wait.
    muted_until: Option<Instant>,
    /// Whether the handler works on a request that has no entry in `outbound` yet.
    beginning: bool,
    /// Set once nothing more is read.
    ending: Option<Ending>,
}

struct Ending {
    closing: Closing,
    /// The earliest time of the close. After a failed authentication it lies in the future.
    from: Instant,
    /// The time until which answers are still sent.
    until: Instant,
}

/// The time limit that has passed.
#[derive(Clone, Copy)]
enum Late {
    Write,
    Frame,
    Idle,
    Drain,
    Unknown,
}

impl Late {
    fn closing(self) -> Closing {
        match self {
            Late::Write => Closing::WriteStalled,
            Late::Frame => Closing::FrameStalled,
            Late::Idle => Closing::Idle,
            Late::Drain => Closing::DrainTimeout,
            Late::Unknown => Closing::NotAuthenticated,
        }
    }
}

enum Event {
    Read(Read),
    Wrote,
    Timer,
    Stop,
    Crowded,
}

/// Serves a connection until it ends. Dropping the stream closes it. A client with a `place` in the lobby must
/// authenticate first.
pub async fn serve<T: Transport, H: Handler>(
    mut stream: T,
    handler: H,
    limits: Limits,
    budget: &Budget,
    place: Option<Place>,
    stop: watch::Receiver<bool>,
) -> Closing {
    let closing = converse(&mut stream, handler, limits, budget, place, stop).await;
    stream.close();
    closing
}

async fn converse<T: Transport, H: Handler>(
    stream: &mut T,
    mut handler: H,
    limits: Limits,
    budget: &Budget,
    place: Option<Place>,
    mut stop: watch::Receiver<bool>,
) -> Closing {
    let lobby = place.as_ref().map(Place::lobby);
    let bound = if lobby.is_some() { handler.frame_bytes_max() } else { usize::MAX };
    let mut state = State {
        inbound: Inbound::new(limits.request_bytes_max.min(bound)),
        outbound: Outbound::default(),
        last_request: Instant::now(),
        place,
        reading: true,
        muted_until: None,
        beginning: false,
        ending: None,
        limits,
    };
    let (mut reader, mut writer) = stream.split();
    let mut timer = pin!(tokio::time::sleep(state.limits.idle));
    // This future is kept over all rounds. A new wait in each round would take a lock that all connections share.
    let mut stop = pin!(async move {
        // An error means that the sender is dropped, which also stops the connection.
        let _ = stop.wait_for(|stop| *stop).await;
    });
    loop {
        if let Some(ending) =
            state.ending.take_if(|ending| state.outbound.is_empty() && ending.from <= Instant::now())
        {
            return ending.closing;
        }
        if state.place.is_some() && handler.authenticated() {
            state.place = None;
            state.inbound.bound_frames(state.limits.request_bytes_max);
        }
        state.muted_until = handler.muted_until().filter(|until| *until > Instant::now());
        state.pull_nearer(timer.as_mut());
        let may_read = state.may_read();
        let (sending, stoppable) = (!state.outbound.is_empty(), state.ending.is_none());
        // Until a client has authenticated, its frames take memory from the lobby's budget.
        let budget = lobby.as_ref().filter(|_| state.place.is_some()).map_or(budget, |lobby| &lobby.budget);
        let behind = state.outbound.waits();
        let State { inbound, outbound, place, .. } = &mut state;
        let waiting = place.is_some() && stoppable;
        let event = tokio::select! {
            biased;
            result = poll_fn(|cx| outbound.poll_step(cx, &mut writer)), if sending => result.map(|()| Event::Wrote),
            result = inbound.next(&mut reader, budget, behind), if may_read => result.map(Event::Read),
            () = &mut timer => Ok(Event::Timer),
            () = &mut stop, if stoppable => Ok(Event::Stop),
            () = Place::lost(place), if waiting => Ok(Event::Crowded),
        };
        match event {
            Ok(Event::Read(Read::Frame(Arrived { bytes: frame, share, waits }))) => {
                state.last_request = Instant::now();
                state.beginning = true;
                let begun = {
                    let begin = pin!(handler.begin(frame));
                    begun(begin, &mut state, &mut writer, timer.as_mut()).await
                };
                state.beginning = false;
                match begun {
                    Ok(Ok(Some(answer))) => state.outbound.push(answer, share, waits),
                    Ok(Ok(None)) => drop::<Share>(share),
                    Ok(Err(refused)) => state.end(Closing::Refused(refused)),
                    Err(closing) => return closing,
                }
                if let Some(refused) = handler.refused() {
                    state.end(Closing::Refused(refused));
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
            Ok(Event::Crowded) => return Closing::Crowded,
            Err(closing @ Closing::Size { .. }) => state.end(closing),
            Err(closing) => return closing,
        }
    }
}

/// Waits until a request has begun, and meanwhile sends answers to earlier requests. The request may wait for room that
/// those requests hold.
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
            // A frame that has begun and holds budget is read to its end, because other connections wait for its
            // memory.
            && (self.muted_until.is_none() || self.inbound.holds_budget())
            && !self.outbound.is_writing()
            && self.outbound.len() < if self.place.is_some() { 1 } else { self.limits.in_flight_max }
            && (self.outbound.held_bytes() < self.limits.in_flight_bytes_max || self.inbound.holds_budget());
        if may && !self.reading {
            self.inbound.resume();
        }
        self.reading = may;
        may
    }

    fn end(&mut self, closing: Closing) {
        if self.ending.is_some() {
            return;
        }
        let now = Instant::now();
        // A client that guesses passwords waits after each attempt. Meanwhile nothing that it sent is kept.
        let (closing, from) = match closing {
            Closing::Refused(refused) if self.place.is_some() => {
                (Closing::NotLoggedIn(refused), now + self.limits.failed_authentication_delay)
            }
            closing => (closing, now),
        };
        self.inbound = Inbound::new(0);
        self.ending = Some(Ending { closing, from, until: from + self.limits.drain });
    }

    /// The next time limit, and its meaning.
    fn deadline(&self) -> Option<(Instant, Late)> {
        let mut first = None;
        let mut due = |since: Option<Instant>, limit: Duration, late: Late| {
            if let Some(at) = since.map(|since| since + limit)
                && first.is_none_or(|(earlier, _)| at < earlier)
            {
                first = Some((at, late));
            }
        };
        let limits = &self.limits;
        due(self.outbound.stalled_from(), limits.write_stall, Late::Write);
        let frame = self.inbound.stalled_from();
        if self.reading {
            let held = self.inbound.holds_budget();
            due(frame, if held { limits.held_stall } else { limits.frame_stall }, Late::Frame);
        }
        match &self.ending {
            Some(ending) => due(Some(ending.until), Duration::ZERO, Late::Drain),
            None => {
                if !self.beginning && self.outbound.is_empty() && frame.is_none() {
                    due(Some(self.last_request), limits.idle, Late::Idle);
                }
                due(self.place.as_ref().map(|place| place.since), limits.authentication, Late::Unknown);
            }
        }
        first
    }

    /// Handles the timer: a time limit has passed, or the timer is set again.
    fn expire(&self, timer: Pin<&mut Sleep>) -> Result<(), Closing> {
        let now = Instant::now();
        let at = match self.deadline() {
            Some((at, late)) if at <= now => return Err(late.closing()),
            Some((at, _)) => at,
            // An answer is pending, which is not the client's fault.
            None => now + self.limits.idle,
        };
        let earlier = self.wake_at().filter(|until| *until > now);
        timer.reset(earlier.map_or(at, |until| at.min(until)).into());
        Ok(())
    }

    /// The next time at which the connection is read again or closed.
    fn wake_at(&self) -> Option<Instant> {
        let closed = self.ending.as_ref().filter(|_| self.outbound.is_empty()).map(|ending| ending.from);
        self.muted_until.into_iter().chain(closed).min()
    }

    fn pull_nearer(&self, timer: Pin<&mut Sleep>) {
        let deadline = self.deadline().map(|(at, _)| at);
        if let Some(at) = deadline.into_iter().chain(self.wake_at()).min()
            && timer.deadline() > at.into()
        {
            timer.reset(at.into());
        }
    }
}

#[cfg(test)]
mod lobby_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
