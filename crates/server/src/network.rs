//! All listeners: bound, checked, and started.
//!
//! A bound socket does not listen yet. A taken port or an invalid key is therefore reported before a long recovery.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use broker::{Broker, Origin, Window};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::{Admission, ListenerBounds, Rules};
use crate::budget::Budget;
use crate::connection::Limits;
use crate::listener::{self, Bounds, DRAIN, Shared, Tls};
use crate::listener_configs::{Open, OpenListeners};
use crate::lobby::Lobby;
use crate::sasl::{Gate, Hashing, LogIn, Report, Sasl};
use crate::settings::{ListenerSettings, Settings};
use crate::tls::Keys;

/// Upper bound of time-outs that are set to be endless, because clocks cannot count to `i64::MAX` milliseconds.
const IDLE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A listener that is bound and does not listen yet.
pub struct Bound {
    settings: ListenerSettings,
    socket: TcpSocket,
    keys: Option<Arc<Keys>>,
    log_in: Option<LogIn>,
}

/// The settings of each listener, and its address.
pub fn addresses(bound: &[Bound]) -> std::io::Result<Vec<(ListenerSettings, SocketAddr)>> {
    bound.iter().map(|bound| Ok((bound.settings.clone(), bound.socket.local_addr()?))).collect()
}

/// Binds every listener, and loads its keys.
pub async fn bind_all(settings: &Settings) -> anyhow::Result<Vec<Bound>> {
    let mut bound = Vec::new();
    for listener in &settings.listeners {
        let socket = bind(&listener.address).await?;
        check_exposure(settings, listener, socket.local_addr()?)?;
        let keys = load_keys(listener)?.map(Arc::new);
        let log_in = match &listener.sasl {
            Some(sasl) => {
                check_keys_of_tokens(settings, &sasl.oauth.jwks_url)?;
                let prepared = LogIn::prepare(sasl).await;
                Some(prepared.with_context(|| format!("listener {}", listener.name))?)
            }
            None => None,
        };
        bound.push(Bound { settings: listener.clone(), socket, keys, log_in });
    }
    Ok(bound)
}

/// Checks what a start checks of listeners, without listening.
pub fn check(settings: &Settings) -> anyhow::Result<()> {
    for listener in &settings.listeners {
        let resolved = listener.address.to_socket_addrs().map(|mut all| all.next());
        let at = resolved.with_context(|| format!("{} has no address", listener.address))?;
        at.map_or(Ok(()), |at| check_exposure(settings, listener, at))?;
        load_keys(listener)?;
    }
    Ok(())
}

/// The keys of a listener that encrypts.
fn load_keys(listener: &ListenerSettings) -> anyhow::Result<Option<Keys>> {
    let loaded = listener.ssl.as_ref().map(|ssl| Keys::load(&listener.name, ssl)).transpose();
    loaded.map_err(|problem| anyhow::anyhow!("listener {}: {problem}", listener.name))
}

/// Refuses listeners whose traffic others could read, or which others could use without authentication, or warns of them where that is
/// allowed.
fn check_exposure(settings: &Settings, listener: &ListenerSettings, at: SocketAddr) -> anyhow::Result<()> {
    if listener.is_secure() || at.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let name = if settings.text("listeners").is_empty() { "listen" } else { "listeners" };
    let lacks = if listener.protocol.encrypts() {
        "does not authenticate its clients: set ssl.client.auth=required or use SASL_SSL"
    } else if listener.protocol.has_sasl() {
        "does not encrypt: use SASL_SSL"
    } else {
        "neither encrypts nor authenticates: use SASL_SSL, or SSL with ssl.client.auth=required"
    };
    if settings.text("allow.insecure.listeners") == "true" {
        let listener = &listener.name;
        tracing::warn!(
            listener,
            "can be reached from other machines and {lacks}; allow.insecure.listeners allows that"
        );
        return Ok(());
    }
    let problem = format!(
        "the listener {} ({}) can be reached from other machines and {lacks}. On a network that nobody else can reach, set \
         allow.insecure.listeners=true",
        listener.name,
        listener.protocol.name(),
    );
    Err(settings.refuse(name, problem).into())
}

/// Refuses a URL for token keys that is open to an attacker on the way, who could replace the keys and impersonate any
/// user.
fn check_keys_of_tokens(settings: &Settings, url: &str) -> anyhow::Result<()> {
    let Some(rest) = url.strip_prefix("http://") else { return Ok(()) };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // Text before an @ is not the host, whatever it looks like.
    let is_here = !authority.contains('@')
        && (host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()));
    if is_here || settings.text("allow.insecure.listeners") == "true" {
        return Ok(());
    }
    let problem =
        "keys that come over http:// can be replaced by anybody on the way: use https:// or file://";
    Err(settings.refuse("sasl.oauthbearer.jwks.endpoint.url", problem.to_owned()).into())
}

/// Warns of settings without effect, if an operator might rely on them for security.
pub fn warn_of_settings_without_effect(settings: &Settings) {
    for listener in &settings.listeners {
        let asked = settings.text("ssl.client.auth");
        if listener.protocol.has_sasl() && listener.protocol.encrypts() && asked == "required" {
            let listener = &listener.name;
            tracing::warn!(
                listener,
                "ssl.client.auth is for SSL: on SASL_SSL clients log in by SASL; \
                 set listener.name.NAME.ssl.client.auth to ask for certificates as well"
            );
        }
    }
    if !settings.without_meaning().is_empty() {
        tracing::warn!(
            names = settings.without_meaning().join(", "),
            "settings of Kafka that have no meaning here"
        );
    }
    let config = &settings.broker;
    if config.value("authorizer.class.name").is_some_and(|class| class.is_empty())
        && config.value("super.users").is_some_and(|users| !users.is_empty())
    {
        tracing::warn!("super.users is set, but authorizer.class.name is empty: everybody may do everything");
    }
}

/// Binds one address. The error says whether another process holds it.
pub async fn bind(address: &str) -> anyhow::Result<TcpSocket> {
    listener::resolve_and_bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("cannot listen on {address}: another process listens there already")
        }
        _ => anyhow::Error::new(error).context(format!("cannot listen on {address}")),
    })
}

/// The state shared by all listeners, from the settings.
pub fn share(broker: &Arc<Broker>) -> Arc<Shared> {
    let config = broker.config();
    let (settings_now, quota) = (broker.clone(), broker.clone());
    let rules = Rules {
        now: Box::new(move || settings_now.config_now()),
        window: Window {
            samples: i64::from(config.quota_samples),
            sample_ms: i64::from(config.quota_sample_seconds) * 1000,
        },
        quota: Box::new(move |address| quota.record_connection(address)),
    };
    Arc::new(Shared {
        budget: Arc::new(Budget::new(config.requests_in_flight_bytes)),
        lobby: Arc::new(Lobby::default()),
        admission: Arc::new(Admission::new(rules)),
        handshakes: Default::default(),
        counters: Default::default(),
    })
}

/// Begins to accept clients. Returns the addresses. The tasks end when `stop` is true.
pub fn start(
    bound: Vec<Bound>,
    settings: &Settings,
    shared: &Arc<Shared>,
    broker: &Arc<Broker>,
    report: &Report,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<(Vec<String>, JoinSet<()>)> {
    let alone = bound.len() == 1;
    let (mut addresses, mut listeners, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
    let mut open = Vec::new();
    // All listeners listen before the first client is accepted.
    let mut listening: Vec<(TcpListener, Arc<Bounds>, Option<Arc<Sasl>>)> = Vec::new();
    let hashing = Hashing::default();
    for Bound { settings: of, socket, keys, log_in } in bound {
        let listener =
            listener::listen(socket).with_context(|| format!("cannot listen on {}", of.address))?;
        let address = listener.local_addr()?;
        listeners.push(format!("{}://{address} ({})", of.name, of.protocol.name()));
        addresses.push(if alone { address.to_string() } else { format!("{}://{address}", of.name) });
        let sasl =
            log_in.map(|log_in| Sasl::new(log_in, broker.users().clone(), hashing.clone(), report.clone()));
        let bounds = Arc::new(bounds(&of, settings, keys.clone(), shared, broker.config()));
        open.push(Open { name: of.name, keys, bounds: bounds.connections.clone() });
        listening.push((listener, bounds, sasl));
    }
    if listening.is_empty() {
        bail!("there is no listener");
    }
    let keys: Vec<Arc<Keys>> = open.iter().filter_map(|open| open.keys.clone()).collect();
    let opened = OpenListeners { settings: settings.clone(), listeners: open };
    // With the settings of the start instead, a listener could let in whom a client's setting keeps out.
    let unusable = |problem| anyhow::anyhow!("a setting that a client has set cannot be used: {problem}");
    broker.apply_to_listeners(Arc::new(opened)).map_err(unusable)?;
    for keys in keys {
        // The first client already meets these keys.
        keys.reload().map_err(unusable)?;
        tokio::spawn(keys.watch());
    }
    tracing::info!(listeners = listeners.join(", "), "listening");
    for (listener, bounds, sasl) in listening {
        let broker = broker.clone();
        match sasl {
            None => {
                let connect = move |origin| broker.connect(origin);
                tasks.spawn(listener::run(listener, bounds, connect, stop.clone()));
            }
            Some(sasl) => {
                let connect = move |origin: Origin| {
                    let peer = origin.peer;
                    Gate::new(sasl.clone(), broker.connect(origin), peer)
                };
                tasks.spawn(listener::run(listener, bounds, connect, stop.clone()));
            }
        }
    }
    Ok((addresses, tasks))
}

/// The settings and bounds of one listener.
fn bounds(
    of: &ListenerSettings,
    settings: &Settings,
    keys: Option<Arc<Keys>>,
    shared: &Arc<Shared>,
    config: &broker::Config,
) -> Bounds {
    let idle = Duration::from_millis(u64::try_from(config.connections_max_idle_ms).unwrap_or(0));
    let values = settings.values();
    let rules = of.ssl.as_ref().map(|ssl| ssl.mapping_rules.clone());
    Bounds {
        listener: Arc::new(broker::Listener { name: of.name.clone(), advertised: of.advertised.clone() }),
        connections: Arc::new(ListenerBounds::new(of.connections_max, of.connection_rate_max)),
        limits: Limits {
            request_bytes_max: of.request_bytes_max.unwrap_or(positive(config.request_max_bytes)),
            in_flight_max: positive(config.requests_in_flight_per_connection),
            in_flight_bytes_max: positive(config.requests_in_flight_bytes_per_connection),
            idle: idle.min(IDLE_MAX),
            frame_stall: Duration::from_secs(30),
            held_stall: Duration::from_secs(10),
            write_stall: Duration::from_secs(60),
            drain: DRAIN,
            authentication: values.millis("sasl.authentication.timeout.ms"),
            failed_authentication_delay: values.millis("connection.failed.authentication.delay.ms"),
        },
        budget: match of.in_flight_bytes {
            Some(bytes) => Arc::new(Budget::within(shared.budget.clone(), bytes)),
            None => shared.budget.clone(),
        },
        tls: keys.zip(rules).map(|(keys, rules)| Tls { keys, rules }),
        has_sasl: of.sasl.is_some(),
        shared: shared.clone(),
    }
}

fn positive(value: i32) -> usize {
    usize::try_from(value).unwrap_or(1)
}
