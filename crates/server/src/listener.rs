//! A listening socket: accepts connections, bounds and counts them, and ends all of them when the server stops.
//!
//! A panic in a connection's task ends only that connection. [`Shared`] holds the state of all listeners, [`Bounds`]
//! that of one listener.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use broker::{Origin, Principal};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::admission::{Admission, Admitted, ListenerBounds, Rejection};
use crate::budget::Budget;
use crate::closing::Closing;
use crate::connection::{self, Handler, Limits};
use crate::connection_metrics::{Counters, Reason};
use crate::lobby::{Lobby, Place};
use crate::principal_mapping::MappingRules;
use crate::process;
use crate::tls::{self, HandshakeError, Keys};
use crate::turns::Turns;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 1024;
/// Interval of log lines, so that a client that repeats a mistake cannot fill the disk with them.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which is mostly caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bound of the connections over the quota of their addresses that are held until the address may connect again. Beyond
/// it, the oldest is closed.
const KEPT_MAX: usize = 1000;
/// Time within which requests in flight are answered when the server stops.
pub const DRAIN: Duration = Duration::from_secs(5);

/// The state shared by all listeners.
#[derive(Debug)]
pub struct Shared {
    pub budget: Arc<Budget>,
    pub lobby: Arc<Lobby>,
    pub admission: Arc<Admission>,
    /// Turns for TLS handshakes.
    pub handshakes: Turns,
    pub counters: Counters,
}

/// The TLS settings of a listener.
#[derive(Debug)]
pub struct Tls {
    pub keys: Arc<Keys>,
    pub rules: MappingRules,
}

/// The settings and bounds for the connections of one listener.
#[derive(Debug)]
pub struct Bounds {
    /// The listener as the broker knows it.
    pub listener: Arc<broker::Listener>,
    /// Bounds of connections of this listener, within those of the server.
    pub connections: Arc<ListenerBounds>,
    pub limits: Limits,
    /// The budget of the server, or the listener's budget within it.
    pub budget: Arc<Budget>,
    pub tls: Option<Tls>,
    /// Whether clients must authenticate by SASL.
    pub has_sasl: bool,
    pub shared: Arc<Shared>,
}

/// Binds an address without listening. Clients are refused, and no other process can take the address.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Binds the first address that `host_port` resolves to.
pub async fn resolve_and_bind(host_port: &str) -> io::Result<TcpSocket> {
    let mut addresses = lookup_host(host_port).await?;
    let address = addresses.next().ok_or_else(|| io::Error::other("the name has no address"))?;
    bind(address)
}

/// Begins to listen.
pub fn listen(socket: TcpSocket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)
}

/// Accepts connections until `stop` is true, and returns when the last one has ended, at the latest shortly after
/// [`Limits::drain`].
pub async fn run<H, C>(listener: TcpListener, bounds: Arc<Bounds>, connect: C, stop: watch::Receiver<bool>)
where
    H: Handler + 'static,
    C: Fn(Origin) -> H + Send + Sync + 'static,
{
    let connect = Arc::new(connect);
    let complaints = Arc::new(Complaints::default());
    let mut tasks = JoinSet::new();
    let mut kept = Kept::default();
    // The time until which no connection is accepted, because the rate of new connections is exceeded, or file descriptors are
    // scarce.
    let mut closed_until: Option<Instant> = None;
    let mut stopping = stop.clone();
    let mut stopping = pin!(async move {
        let _ = stopping.wait_for(|stop| *stop).await;
    });
    loop {
        tokio::select! {
            biased;
            () = &mut stopping => break,
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => log_panic(ended),
            () = kept.close_due(), if !kept.0.is_empty() => {}
            () = sleep_until(closed_until), if closed_until.is_some() => {
                closed_until = process::lacks_descriptors().then(|| Instant::now() + ACCEPT_PAUSE);
            }
            accepted = listener.accept(), if closed_until.is_none() => match accepted {
                Ok((stream, peer)) => {
                    let wait = bounds.shared.admission.count(&bounds.connections);
                    let scarce = process::is_kept_back(&stream).then_some(ACCEPT_PAUSE);
                    if scarce.is_some()
                        && let Some(times) = complaints.accept.now()
                    {
                        tracing::warn!(times, "connections wait: the process has too few file descriptors (ulimit -n)");
                    }
                    closed_until = wait.max(scarce).map(|wait| Instant::now() + wait);
                    let admitted = if tasks.len() < bounds.connections.connections_max() {
                        bounds.shared.admission.admit(peer.ip())
                    } else {
                        Err(Rejection::Full)
                    };
                    match admitted {
                        Ok(admitted) => {
                            let told = (stop.clone(), complaints.clone());
                            let task = take_in(stream, peer, admitted, bounds.clone(), connect.clone(), told);
                            if let Some(task) = task {
                                tasks.spawn(task);
                            }
                        }
                        Err(rejection) => {
                            reject(rejection, peer, &bounds, &complaints);
                            if let Rejection::Rate(wait) = rejection {
                                kept.keep(stream, wait);
                            }
                        }
                    }
                }
                Err(error) => {
                    if let Some(times) = complaints.accept.now() {
                        tracing::warn!(%error, times, "a connection could not be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop((listener, kept));
    // Each connection keeps to its own time limit. This one is for a task that hangs.
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            log_panic(ended)
        }
    };
    let late = bounds.limits.drain + Duration::from_millis(500);
    if tokio::time::timeout(late, all).await.is_err() {
        tracing::warn!(connections = tasks.len(), "connections were cut off with requests in flight");
        tasks.shutdown().await;
    }
}

async fn sleep_until(time: Option<Instant>) {
    if let Some(time) = time {
        tokio::time::sleep_until(time.into()).await;
    }
}

fn reject(rejection: Rejection, peer: SocketAddr, bounds: &Bounds, complaints: &Complaints) {
    let (reason, seldom, why) = match rejection {
        Rejection::Full => (Reason::MaxConnections, &complaints.full, "max.connections are open"),
        Rejection::Address => (
            Reason::MaxConnectionsPerIp,
            &complaints.address,
            "max.connections.per.ip are open of its address",
        ),
        Rejection::Rate(_) => {
            (Reason::ConnectionCreationRate, &complaints.rate, "its address is over connection_creation_rate")
        }
    };
    bounds.shared.counters.reject(reason);
    if let Some(times) = seldom.now() {
        tracing::warn!(%peer, times, listener = bounds.listener.name, "a connection was closed: {why}");
    }
}

/// Starts the task of a connection, if the connection is still open.
fn take_in<H, C>(
    stream: TcpStream,
    peer: SocketAddr,
    admitted: Admitted,
    bounds: Arc<Bounds>,
    connect: Arc<C>,
    (stop, complaints): (watch::Receiver<bool>, Arc<Complaints>),
) -> Option<impl Future<Output = ()> + Send + use<H, C>>
where
    H: Handler + 'static,
    C: Fn(Origin) -> H + Send + Sync + 'static,
{
    let local = stream.set_nodelay(true).and_then(|()| stream.local_addr());
    let local =
        local.inspect_err(|error| tracing::debug!(%peer, %error, "the connection was gone at once")).ok()?;
    let open = bounds.shared.counters.opened(&bounds.listener.name);
    let origin = Origin { principal: Principal::anonymous(), peer, local, listener: bounds.listener.clone() };
    let place = (bounds.tls.is_some() || bounds.has_sasl).then(|| bounds.shared.lobby.enter());
    Some(async move {
        let _held = (open, admitted);
        let (limits, budget) = (bounds.limits.clone(), &bounds.budget);
        let closing = match (&bounds.tls, place) {
            (Some(tls), Some(place)) => {
                // The future is boxed, so that a plain connection does not need memory for it.
                let secured =
                    Box::pin(secure(stream, origin, place, tls, &bounds, stop.clone(), &complaints));
                let Some((stream, origin, place)) = secured.await else { return };
                let served = connection::serve(stream, connect(origin), limits, budget, place, stop);
                Box::pin(served).await
            }
            (_, place) => connection::serve(stream, connect(origin), limits, budget, place, stop).await,
        };
        bounds.shared.counters.closed(&closing);
        let times = if closing.is_notable() { complaints.closed.now() } else { None };
        if let Some(times) = times {
            tracing::info!(%peer, reason = %closing, times, "closed a connection");
        } else {
            tracing::debug!(%peer, reason = %closing, "closed a connection");
        }
    })
}

/// Does the TLS handshake. The place in the lobby is kept if the client must also authenticate by SASL.
async fn secure(
    stream: TcpStream,
    mut origin: Origin,
    place: Place,
    tls: &Tls,
    bounds: &Bounds,
    mut stop: watch::Receiver<bool>,
    complaints: &Complaints,
) -> Option<(tls::TlsStream, Origin, Option<Place>)> {
    let peer = origin.peer;
    let until = place.since + bounds.limits.authentication;
    let mut place = Some(place);
    let accepted = tokio::select! {
        biased;
        accepted = bounds.shared.handshakes.take(tls::accept(stream, &tls.keys, &tls.rules)) => accepted,
        () = tokio::time::sleep_until(until.into()) => {
            bounds.shared.counters.closed(&Closing::NotAuthenticated);
            tracing::debug!(%peer, reason = %Closing::NotAuthenticated, "closed a connection");
            return None;
        }
        () = Place::lost(&mut place) => {
            bounds.shared.counters.closed(&Closing::Crowded);
            tracing::debug!(%peer, reason = %Closing::Crowded, "closed a connection");
            return None;
        }
        _ = stop.wait_for(|stop| *stop) => return None,
    };
    match accepted {
        Ok((stream, principal)) => {
            if bounds.has_sasl {
                return Some((stream, origin, place));
            }
            origin.principal = principal;
            Some((stream, origin, None))
        }
        Err(error) => {
            bounds.shared.counters.handshakes_failed.inc();
            // A client that only probes the port is not worth a log line.
            let quiet = matches!(error, HandshakeError::Closed | HandshakeError::Socket(_));
            match complaints.handshake.now_unless(quiet) {
                Some(times) => tracing::info!(%peer, times, %error, "a connection could not be secured"),
                None => tracing::debug!(%peer, %error, "a connection could not be secured"),
            }
            None
        }
    }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task ended in a bug; the server goes on");
    }
}

/// Connections that are closed later.
#[derive(Default)]
struct Kept(VecDeque<(Instant, TcpStream)>);

impl Kept {
    fn keep(&mut self, stream: TcpStream, wait: Duration) {
        if self.0.len() >= KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((Instant::now() + wait, stream));
    }

    /// Waits until the first of them is due, and closes it. Waits differ by less than a sample, so the order is
    /// accurate enough.
    async fn close_due(&mut self) {
        sleep_until(self.0.front().map(|(due, _)| *due)).await;
        self.0.pop_front();
    }
}

/// Rate limits for log lines, one for each kind.
#[derive(Default)]
struct Complaints {
    accept: Seldom,
    full: Seldom,
    address: Seldom,
    rate: Seldom,
    handshake: Seldom,
    closed: Seldom,
}

/// Lets one log line through per interval.
#[derive(Default)]
struct Seldom(Mutex<(Option<Instant>, u64)>);

impl Seldom {
    /// The number of events since the last log line, if the next one is due.
    fn now(&self) -> Option<u64> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, times) = &mut *guard;
        *times += 1;
        if last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return None;
        }
        *last = Some(Instant::now());
        Some(std::mem::take(times))
    }

    fn now_unless(&self, quiet: bool) -> Option<u64> {
        if quiet { None } else { self.now() }
    }
}
