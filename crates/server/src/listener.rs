//! The listening socket: takes connections in, counts them, and ends them all when the server stops.
//!
//! A connection's task that panics ends that connection only. Past `max.connections` a new one is closed at once.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::budget::Budget;
use crate::connection::{self, Handler, Limits};

/// Connections that the kernel keeps for us until they are accepted.
const BACKLOG: u32 = 1024;
/// A client that makes mistakes in a loop must not fill the disk with log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// After a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For time-outs that are said to be endless; clocks cannot count to `i64::MAX` milliseconds.
const IDLE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Counters of connections.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub open: Gauge,
    pub accepted: Counter,
    pub rejected: Counter,
}

/// What all connections of the listener share.
#[derive(Debug)]
pub struct Bounds {
    pub connections_max: usize,
    pub limits: Limits,
    pub budget: Budget,
    pub counters: Counters,
}

impl Bounds {
    /// As the settings say.
    pub fn new(config: &broker::Config) -> Bounds {
        let positive = |value: i32| usize::try_from(value).unwrap_or(1);
        let idle = Duration::from_millis(u64::try_from(config.connections_max_idle_ms).unwrap_or(0));
        Bounds {
            connections_max: positive(config.connections_max),
            limits: Limits {
                request_bytes_max: positive(config.request_max_bytes),
                in_flight_max: positive(config.requests_in_flight_per_connection),
                idle: idle.min(IDLE_MAX),
                frame_stall: Duration::from_secs(30),
                held_stall: Duration::from_secs(10),
                write_stall: Duration::from_secs(60),
                drain: DRAIN,
            },
            budget: Budget::new(config.requests_in_flight_bytes),
            counters: Counters::default(),
        }
    }
}

impl Bounds {
    /// Adds the metrics of the listener to `registry`.
    pub fn register(self: &Arc<Bounds>, registry: &mut Registry) {
        let Counters { open, accepted, rejected } = self.counters.clone();
        registry.register("mainstem_connections_open", "Client connections that are open", open);
        registry.register("mainstem_connections_accepted", "Client connections taken in", accepted);
        let help = "Client connections closed at once because of max.connections";
        registry.register("mainstem_connections_rejected", help, rejected);
        registry.register_collector(Box::new(HeldBytes(self.clone())));
    }
}

/// Reads the budget when it is asked for, instead of counting at each request.
#[derive(Debug)]
struct HeldBytes(Arc<Bounds>);

impl Collector for HeldBytes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let held = i64::try_from(self.0.budget.held_bytes()).unwrap_or(i64::MAX);
        let help = "Memory that requests hold, of queued.max.request.bytes";
        let name = "mainstem_request_bytes_held";
        ConstGauge::new(held).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

/// What is in flight when the server stops is answered within this.
pub const DRAIN: Duration = Duration::from_secs(5);

/// An address that is ours but does not listen yet: clients are refused, and nobody else gets it.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Binds the first address that `host_port` stands for.
pub async fn resolve_and_bind(host_port: &str) -> io::Result<TcpSocket> {
    let mut addresses = lookup_host(host_port).await?;
    let address = addresses.next().ok_or_else(|| io::Error::other("the name has no address"))?;
    bind(address)
}

/// Begins to take connections in.
pub fn listen(socket: TcpSocket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)
}

/// Takes connections in until `stop` says true, and returns when the last one has ended; at the latest a little after
/// [`Limits::drain`].
pub async fn run<H, C>(listener: TcpListener, bounds: Arc<Bounds>, connect: C, stop: watch::Receiver<bool>)
where
    H: Handler + 'static,
    C: Fn(SocketAddr, SocketAddr) -> H + 'static,
{
    let mut tasks = JoinSet::new();
    let mut complaints = Seldom::new();
    let mut stopping = stop.clone();
    let mut stopping = pin!(async move {
        let _ = stopping.wait_for(|stop| *stop).await;
    });
    loop {
        tokio::select! {
            biased;
            () = &mut stopping => break,
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => log_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) if tasks.len() < bounds.connections_max => {
                    if let Some(task) = take_in(stream, peer, &bounds, &connect, stop.clone()) {
                        tasks.spawn(task);
                    }
                }
                Ok((_, peer)) => {
                    bounds.counters.rejected.inc();
                    if let Some(times) = complaints.now() {
                        tracing::warn!(%peer, times, max = bounds.connections_max, "closed at once: max.connections are open");
                    }
                }
                Err(error) => {
                    if let Some(times) = complaints.now() {
                        tracing::warn!(%error, times, "a connection could not be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    // Each connection keeps to its own bound; the second is for one that has lost its way.
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

/// A connection's task, if the connection is still there.
fn take_in<H, C>(
    stream: TcpStream,
    peer: SocketAddr,
    bounds: &Arc<Bounds>,
    connect: &C,
    stop: watch::Receiver<bool>,
) -> Option<impl Future<Output = ()> + Send + use<H, C>>
where
    H: Handler + 'static,
    C: Fn(SocketAddr, SocketAddr) -> H + 'static,
{
    let local = stream.set_nodelay(true).and_then(|()| stream.local_addr());
    let local =
        local.inspect_err(|error| tracing::debug!(%peer, %error, "the connection was gone at once")).ok()?;
    bounds.counters.accepted.inc();
    let handler = connect(peer, local);
    let bounds = bounds.clone();
    let open = Open::new(bounds.counters.open.clone());
    Some(async move {
        let _open = open;
        let closing = connection::serve(stream, handler, bounds.limits.clone(), &bounds.budget, stop).await;
        if closing.is_notable() {
            tracing::info!(%peer, reason = %closing, "closed a connection");
        } else {
            tracing::debug!(%peer, reason = %closing, "closed a connection");
        }
    })
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task ended in a bug; the server goes on");
    }
}

/// Counts a connection as open while it exists, panics included.
struct Open(Gauge);

impl Open {
    fn new(gauge: Gauge) -> Open {
        gauge.inc();
        Open(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Lets one complaint through in each interval.
struct Seldom {
    last: Option<Instant>,
    times: u64,
}

impl Seldom {
    fn new() -> Seldom {
        Seldom { last: None, times: 0 }
    }

    /// How often it happened since the last complaint, if it is time for the next.
    fn now(&mut self) -> Option<u64> {
        self.times += 1;
        if self.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}
