//! The broker: everything that its connections share, and what it does by itself in the background.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use meta::{Change, Compare, MetaError, Store};
use model::{Offset, Timestamp};
use parking_lot::{Mutex, RwLock};
use storage::{AppendError, Clock, Committed, Listener, Log, SystemClock};
use tokio::sync::Notify;
use wire::{ErrorCode, Text};

use crate::api::init_producer_id::ProducerIds;
use crate::config::Config;
use crate::connection::Connection;
use crate::coordinator::Coordinator;
use crate::failure::Failure;
use crate::groups::GroupConfig;
use crate::metrics::{BrokerCollector, Metrics};
use crate::partition::Partition;
use crate::session::Sessions;
use crate::signal::Signal;
use crate::topics::{OFFSETS_TOPIC, Topic, TopicError, Topics};

/// Name of the metadata store in the data directory.
pub(crate) const META_FILE: &str = "meta.redb";
const CLUSTER_ID_KEY: &str = "cluster_id";
/// Threads for reads that miss the caches.
const COLD_THREADS: usize = 2;
/// Memory for the batch indexes of sealed segments.
const INDEX_CACHE_BYTES: usize = 32 * 1024 * 1024;
/// How often a wait for a commit looks whether the log has stopped meanwhile.
const STOPPED_CHECK: Duration = Duration::from_millis(500);

/// Why the broker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log cannot be opened.
    #[error("the log cannot be opened: {0}")]
    Log(#[from] storage::OpenError),
    /// The metadata store cannot be opened.
    #[error("the metadata cannot be opened: {0}")]
    Meta(#[from] MetaError),
    /// The groups cannot be read.
    #[error("the consumer groups cannot be read: {0}")]
    Groups(#[from] storage::ReadError),
}

/// An address as Metadata gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address.
    pub host: Text,
    /// TCP port.
    pub port: i32,
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    pub(crate) config: Arc<Config>,
    pub(crate) cluster_id: Text,
    pub(crate) store: Arc<Store>,
    pub(crate) log: Arc<Log>,
    pub(crate) topics: Arc<Topics>,
    pub(crate) sessions: Sessions,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) producer_ids: ProducerIds,
    /// Told when the log has room again.
    pub(crate) room: Arc<Notify>,
    pub(crate) metrics: Arc<Metrics>,
    clock: Arc<SystemClock>,
    advertised: RwLock<Option<Endpoint>>,
    background: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

/// Hears from the log's writer and tells partitions and waiting appends.
struct LogListener {
    /// Weak, since the topics hold the log and the log holds its listener.
    topics: OnceLock<Weak<Topics>>,
    room: Arc<Notify>,
    metrics: Arc<Metrics>,
}

impl Listener for LogListener {
    fn committed(&self, streams: &[Committed]) {
        let Some(topics) = self.topics.get().and_then(Weak::upgrade) else { return };
        for grown in streams {
            if let Some(partition) = topics.of_stream(grown.stream.id()) {
                partition.subscribers.mark(usize::try_from(grown.bytes).unwrap_or(usize::MAX));
            }
        }
    }

    fn room(&self) {
        self.room.notify_waiters();
    }

    fn group_commit(&self, bytes: usize, entries: u32, nanos: u64) {
        self.metrics.commit_bytes.observe(f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)));
        self.metrics.commit_entries.observe(f64::from(entries));
        self.metrics.commit_seconds.observe(Duration::from_nanos(nanos).as_secs_f64());
    }
}

fn bytes_of(setting: i64) -> usize {
    usize::try_from(setting).unwrap_or(usize::MAX)
}

impl Broker {
    /// Opens the broker on `disk`, with its metadata in `directory`. Blocks while the log recovers; must be called
    /// inside a tokio runtime.
    pub fn open(
        config: Config,
        disk: Arc<dyn disk::Disk>,
        directory: &Path,
    ) -> Result<Arc<Broker>, OpenError> {
        let config = Arc::new(config);
        let store = Arc::new(Store::open(&directory.join(META_FILE))?);
        let cluster_id = cluster_id(&store)?;
        let (room, metrics) = (Arc::new(Notify::new()), Arc::new(Metrics::default()));
        let listener =
            Arc::new(LogListener { topics: OnceLock::new(), room: room.clone(), metrics: metrics.clone() });
        let clock = Arc::new(SystemClock::default());
        let options = storage::Options {
            segment_bytes: u64::try_from(config.segment_bytes).unwrap_or(0).next_multiple_of(1024 * 1024),
            tail_cache_bytes: bytes_of(config.tail_cache_bytes),
            region_cache_bytes: bytes_of(config.read_cache_bytes),
            index_cache_bytes: INDEX_CACHE_BYTES,
            producer_expiry_ms: config.producer_expiry_ms,
            reserve_bytes: u64::try_from(config.reserve_bytes).unwrap_or(0),
            log_id: uuid::Uuid::new_v4().as_u128(),
            cleaner_bytes_per_second: 0,
            cold_threads: COLD_THREADS,
        };
        let log = Arc::new(Log::open(disk, options, clock.clone(), listener.clone())?);
        let report = log.recovery();
        tracing::info!(
            sealed_segments = report.sealed_segments,
            scanned_segments = report.scanned_segments,
            scanned_bytes = report.scanned_bytes,
            end = %report.end,
            dropped_blocks = report.dropped_blocks,
            dropped_bytes = report.dropped_bytes,
            "the log is open; dropped blocks were written but never acknowledged"
        );
        let topics = Arc::new(Topics::open(store.clone(), log.clone(), config.clone())?);
        assert!(listener.topics.set(Arc::downgrade(&topics)).is_ok(), "set once");
        let group_config = GroupConfig {
            session_timeout_ms_min: config.group_session_timeout_ms_min,
            session_timeout_ms_max: config.group_session_timeout_ms_max,
            initial_rebalance_delay_ms: u64::try_from(config.group_initial_rebalance_delay_ms).unwrap_or(0),
            size_max: usize::try_from(config.group_size_max).unwrap_or(usize::MAX),
            offset_metadata_max: usize::try_from(config.offset_metadata_max).unwrap_or(0),
            offsets_retention_ms: i64::from(config.offsets_retention_minutes) * 60_000,
        };
        let broker = Arc::new_cyclic(|broker: &Weak<Broker>| Broker {
            sessions: Sessions::new(usize::try_from(config.fetch_sessions_max).unwrap_or(0)),
            coordinator: Arc::new(Coordinator::new(broker.clone(), group_config)),
            config,
            cluster_id,
            store,
            log,
            topics,
            producer_ids: ProducerIds::default(),
            room,
            metrics,
            clock,
            advertised: RwLock::default(),
            background: Mutex::default(),
        });
        broker.coordinator.load(&broker.topics, &broker.log)?;
        broker.start_background();
        Ok(broker)
    }

    fn start_background(self: &Arc<Self>) {
        let every = |ms: i64, work: fn(&Arc<Broker>)| {
            let broker = Arc::downgrade(self);
            let period = Duration::from_millis(u64::try_from(ms).unwrap_or(1).max(1));
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(period).await;
                    let Some(broker) = broker.upgrade() else { return };
                    broker.blocking(work).await;
                }
            })
        };
        let tasks = [
            every(self.config.retention_check_interval_ms, Broker::apply_retention),
            every(self.config.offsets_check_interval_ms, |broker| broker.coordinator.expire()),
        ];
        self.background.lock().extend(tasks);
    }

    /// Applies every topic's retention, and forgets idle producers.
    fn apply_retention(self: &Arc<Self>) {
        let now_ms = self.now_ms();
        for topic in self.topics.all() {
            let (config, partitions) = (topic.config(), topic.partitions());
            for partition in partitions.iter() {
                partition.expire_producers(now_ms - self.config.producer_expiry_ms);
                if topic.is_internal() {
                    // Kept small by rewriting, since it is compacted.
                    let count = i32::try_from(partitions.len()).unwrap_or(i32::MAX);
                    self.coordinator.rewrite(partition, count);
                    continue;
                }
                let oldest = config.retention_ms.map(|ms| Timestamp(now_ms.saturating_sub(ms)));
                if let Some(start) = self.log.retain(&partition.stream, oldest, config.retention_bytes) {
                    tracing::debug!(topic = %topic.name, partition = partition.index, %start, "retention");
                }
            }
        }
    }

    /// Takes a new client connection in. `local` is the address the client reached, which Metadata answers with where
    /// no other is advertised.
    pub fn connect(self: &Arc<Self>, peer: SocketAddr, local: SocketAddr) -> Connection {
        Connection::new(self.clone(), peer, local)
    }

    /// Sets the address that Metadata answers with, in place of the one that a client reached.
    pub fn advertise(&self, host: &str, port: u16) {
        *self.advertised.write() =
            Some(Endpoint { host: Text::from(host.to_owned()), port: i32::from(port) });
    }

    /// The address to give to a client that reached `local`.
    pub(crate) fn endpoint(&self, local: SocketAddr) -> Endpoint {
        let advertised = self.advertised.read().clone();
        let reached = || Endpoint {
            host: Text::from(local.ip().to_canonical().to_string()),
            port: i32::from(local.port()),
        };
        advertised.unwrap_or_else(reached)
    }

    /// Why it takes no more appends, if it does not.
    pub fn failure(&self) -> Option<String> {
        match self.log.stopped() {
            Some(error @ AppendError::Poisoned(_)) => Some(error.to_string()),
            Some(AppendError::Closed) | None => None,
        }
    }

    /// Adds all metrics to `registry`.
    pub fn register_metrics(self: &Arc<Self>, registry: &mut prometheus_client::registry::Registry) {
        self.metrics.register(registry);
        registry.register_collector(Box::new(BrokerCollector(Arc::downgrade(self))));
    }

    /// Finishes what is in flight and closes the log: nothing acknowledged or admitted is lost. No request may be begun
    /// any more.
    pub async fn close(&self) {
        for task in std::mem::take(&mut *self.background.lock()) {
            task.abort();
        }
        let log = self.log.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || log.close()).await {
            tracing::error!(%error, "closing the log failed");
        }
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Runs what blocks on a thread that may.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Broker>) -> T + Send + 'static,
    ) -> T {
        let broker = self.clone();
        match tokio::task::spawn_blocking(move || work(&broker)).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    pub(crate) async fn create_topic(
        self: &Arc<Self>,
        name: &str,
        partitions: i32,
        configs: BTreeMap<String, String>,
    ) -> Result<Arc<Topic>, Failure> {
        let name = name.to_owned();
        Ok(self.blocking(move |broker| broker.topics.create(&name, partitions, configs)).await?)
    }

    /// The topic `name`, created where there is none. Two clients may ask for the same new topic at once: both get it.
    pub(crate) async fn find_or_create_topic(
        self: &Arc<Self>,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<Arc<Topic>, Failure> {
        if let Some(topic) = self.topics.find(name) {
            return Ok(topic);
        }
        let configs = configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        match self.create_topic(name, partitions, configs).await {
            Err(failure) if failure.code == ErrorCode::TopicAlreadyExists => {
                self.topics.find(name).ok_or(ErrorCode::UnknownTopicOrPartition.into())
            }
            result => result,
        }
    }

    pub(crate) async fn delete_topic(self: &Arc<Self>, topic: &Arc<Topic>) -> Result<(), Failure> {
        let name = topic.name.to_string();
        self.blocking(move |broker| {
            broker.topics.delete(&name)?;
            broker.coordinator.forget_topic(&name);
            Ok(())
        })
        .await
        .map_err(|error: TopicError| error.into())
    }

    /// The topic of committed offsets, created on first use.
    pub(crate) async fn offsets_topic(self: &Arc<Self>) -> Result<Arc<Topic>, Failure> {
        let compacted = [("cleanup.policy", "compact")];
        self.find_or_create_topic(OFFSETS_TOPIC, self.config.offsets_partitions, &compacted).await
    }

    /// Waits until `partition` is committed up to `end`.
    pub(crate) async fn committed(&self, partition: &Partition, end: Offset) -> Result<(), AppendError> {
        let signal = Arc::new(Signal::default());
        partition.subscribers.add(&signal, 0);
        let result = loop {
            if partition.stream.bounds().committed >= end {
                break Ok(());
            }
            if let Some(error) = self.log.stopped() {
                break Err(error);
            }
            // Elapsed or woken, the loop looks again.
            let _ = tokio::time::timeout(STOPPED_CHECK, signal.wait(1)).await;
            signal.take_dirty();
        };
        partition.subscribers.remove(&signal, 0);
        result
    }
}

/// The cluster's id, made up once (22 letters, as Kafka's are).
fn cluster_id(store: &Store) -> Result<Text, MetaError> {
    if let Some(found) = store.find(CLUSTER_ID_KEY)? {
        return Ok(Text::from(String::from_utf8_lossy(&found.bytes).into_owned()));
    }
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let random = uuid::Uuid::new_v4().as_u128();
    let letter = |n: u32| char::from(LETTERS[usize::try_from(random >> (6 * n) & 63).expect("below 64")]);
    let id: String = (0..22).map(|n| if n == 21 { 'A' } else { letter(n) }).collect();
    let compare = Compare { key: CLUSTER_ID_KEY.into(), revision: None };
    store
        .commit(&[compare], &[Change::Put { key: CLUSTER_ID_KEY.into(), bytes: id.clone().into_bytes() }])?;
    Ok(Text::from(id))
}
