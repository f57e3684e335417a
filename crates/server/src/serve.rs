//! The server from start to end: lock, disk, broker, listeners, signals, and the shutdown in the opposite order.
//!
//! Standard output gets one line when clients can connect. Everything else is logged to standard error.

use std::future::Future;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use broker::{Broker, LogDirectory, Membership};
use disk::DirectoryLock;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::admin::{self, Admin};
use crate::bucket;
use crate::cluster;
use crate::log_dirs::{self, Locks};
use crate::process;
use crate::sasl::Report;
use crate::settings::{LogFormat, Settings};
use crate::{listener, listener_collector, network, otlp};

/// Runs the server until it is told to stop.
pub fn run(settings: Settings, exported: otlp::Settings) -> anyhow::Result<()> {
    start_logging(&settings);
    match process::raise_open_files() {
        Ok(limit) => tracing::debug!(limit, "the most files that may be open"),
        Err(error) => tracing::warn!(%error, "the limit of open files could not be raised"),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("mainstem")
        .build()
        .context("the runtime could not be started")?;
    let result = runtime.block_on(serve(settings, exported));
    // All necessary work is done. A task that does not yield, which would be a bug, must not keep the process alive.
    runtime.shutdown_background();
    result
}

fn start_logging(settings: &Settings) {
    let filter = tracing_subscriber::EnvFilter::new(&settings.log_level);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let on_terminal = io::IsTerminal::is_terminal(&io::stderr());
    match settings.log_format {
        LogFormat::Auto if !on_terminal => builder.json().flatten_event(true).init(),
        LogFormat::Auto | LogFormat::Text => builder.with_ansi(on_terminal).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(%panic, %backtrace, "a bug: please report it");
    }));
}

async fn serve(settings: Settings, exported: otlp::Settings) -> anyhow::Result<()> {
    let started = Instant::now();
    network::warn_of_settings_without_effect(&settings);
    let mut signals = Signals::new()?;
    let directory = settings.data_dir.clone();
    let _lock = lock(&directory)?;
    // Held until the end, as the lock above.
    let locks = Locks::default();
    let logs = log_dirs::prepare(&settings.log_directories(), &directory, settings.engine, &locks)?;
    // The sockets are bound now, so that a taken port is reported before a long recovery. They listen only after it.
    let bound = network::bind_all(&settings).await?;
    let admin = Arc::new(Admin::new(&settings.text("admin.token")));
    let admin_address = start_admin(&settings, &admin).await?;
    let membership = cluster::membership(&settings, &network::addresses(&bound)?)?;
    let in_cluster = membership.is_some();
    let Some(opened) = signals.unless_stopped(open(&settings, logs, membership)).await else {
        tracing::info!("stopped before recovery was done");
        // The recovery's thread cannot be cancelled, and recovery may be cut short at any point.
        std::process::exit(0);
    };
    let broker = opened?;
    tokio::spawn(give_memory_back(broker.memory_freed()));
    let broker_seen = broker.clone();
    admin.watch(move || broker_seen.failure());
    let shared = network::share(&broker);
    let report = Report::default();
    admin.register(|registry| {
        broker.register_metrics(registry);
        listener_collector::register(&shared, registry);
        report.register(registry);
    });

    let exports = otlp::start(exported, &admin)?;
    if let Some(observer) = exports.observer() {
        broker.observe_requests(observer);
    }
    let (stop, stopped) = watch::channel(false);
    let (addresses, mut accepting) = network::start(bound, &settings, &shared, &broker, &report, &stopped)?;
    let address = addresses.join(", ");
    admin.set_ready(true);
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let durability = "acks=all is answered when records are on the device";
    tracing::info!(address, millis, version = env!("CARGO_PKG_VERSION"), durability, "ready");
    let ready = format!(
        "mainstem is ready on {address} (data {}, admin {})",
        directory.display(),
        admin_address.as_deref().unwrap_or("off"),
    );
    announce(format!("{ready}\n{}", settings.text("ready.message")).trim_end());

    let name = signals.next().await;
    tracing::info!(signal = name, "stopping");
    admin.set_ready(false);
    if in_cluster {
        // Clients are served until others have the logs.
        let leaving = broker.clone();
        let left = tokio::task::spawn_blocking(move || leaving.leave());
        if signals.unless_stopped(left).await.is_none() {
            tracing::warn!("a second signal: the others take the logs over when the lease is over");
        }
    }
    let _ = stop.send(true);
    let down = async {
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a listener ended in a bug");
            }
        }
        // A closed log fails appends too, so the failures are collected before the close.
        let failed = broker.failed_logs();
        broker.close().await;
        let _ = tokio::task::spawn_blocking(move || exports.end()).await;
        failed
    };
    let Some(failed) = signals.unless_stopped(down).await else {
        tracing::warn!("a second signal: stopped at once");
        std::process::exit(1);
    };
    if !failed.is_empty() {
        bail!("stopped after a failure: {}", failed.join("; "));
    }
    tracing::info!("stopped");
    Ok(())
}

/// Creates the data directory if it is missing, and locks it.
fn lock(directory: &Path) -> anyhow::Result<DirectoryLock> {
    log_dirs::create(directory)
        .with_context(|| format!("the data directory {} cannot be created", directory.display()))?;
    log_dirs::check_access("data directory", directory)?;
    log_dirs::check_restored(directory)?;
    match disk::lock_directory(directory) {
        Ok(lock) => Ok(lock),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            bail!(log_dirs::in_use("data directory", directory));
        }
        Err(error) => {
            Err(error).with_context(|| format!("the data directory {} cannot be locked", directory.display()))
        }
    }
}

/// Starts the admin listener if one is configured, and returns its address.
async fn start_admin(settings: &Settings, admin: &Arc<Admin>) -> anyhow::Result<Option<String>> {
    let Some(address) = &settings.admin_listen else { return Ok(None) };
    let wrong = || format!("admin.listen = {address}; choose another or leave it empty");
    let socket = network::bind(address).await.with_context(wrong)?;
    if !socket.local_addr()?.ip().to_canonical().is_loopback() && settings.text("admin.token").is_empty() {
        let problem = "it can be reached from other machines, which needs admin.token, a secret that whoever asks for \
                       metrics must say (Authorization: Bearer …)";
        return Err(settings.refuse("admin.listen", problem.into()).into());
    }
    let listener = listener::listen(socket).with_context(wrong)?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(admin::run(listener, admin.clone()));
    Ok(Some(address))
}

/// Opens the disks and the broker on a thread that may block.
async fn open(
    settings: &Settings,
    logs: Vec<LogDirectory>,
    membership: Option<Membership>,
) -> anyhow::Result<Arc<Broker>> {
    let (directory, config) = (settings.data_dir.clone(), settings.broker.clone());
    let runtime = Handle::current();
    let opening = tokio::task::spawn_blocking(move || {
        let bucket = bucket::open(&config, &runtime)?;
        let opened = match (membership, bucket) {
            (Some(membership), Some(bucket)) => Broker::open_in_cluster(config, membership, bucket),
            (_, bucket) => Broker::open_with_bucket(config, logs, &directory, bucket),
        };
        opened.with_context(|| format!("cannot start on the data directory {}", directory.display()))
    });
    opening.await.context("opening the log ended in a bug")?
}

/// Returns the memory of every large request to the system before the next one begins.
async fn give_memory_back(mut freed: UnboundedReceiver<OwnedSemaphorePermit>) {
    while let Some(turn) = freed.recv().await {
        if tokio::task::spawn_blocking(disk::allocator::give_back).await.is_err() {
            // The runtime is shutting down.
            return;
        }
        drop(turn);
    }
}

/// Prints a line to standard output. A supervisor may have closed it, which must not stop the server.
fn announce(lines: &str) {
    let mut output = io::stdout().lock();
    if let Err(error) = writeln!(output, "{lines}").and_then(|()| output.flush()) {
        tracing::debug!(%error, "the ready line could not be printed");
    }
}

/// The signals that stop the server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Runs `work`. Returns `None` if a signal comes first.
    async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = self.next() => None,
        }
    }
}
