//! The broker: the state shared by all connections.

mod background;
mod ends;
mod identity;
mod joining;
mod replicas;
mod transactions;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use disk::Disk;
use meta::{Embedded, MetaError, Store};
use objects::{Bucket, CountedBucket, WatchedBucket};
use parking_lot::Mutex;
use storage::copies::Copies;
use storage::{AdmitError, Clock, Log, SystemClock};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::{ErrorCode, Text};

use self::ends::Ends;
use self::identity::cluster_id;
pub(crate) use self::replicas::InSync;
pub use self::transactions::BUMPING;
use crate::cluster::host::Directories;
use crate::cluster::replicas::ReplicaMap;
use crate::cluster::run::Running;
use crate::compaction::Compactor;
use crate::config::Config;
use crate::coordinator::producer_ids::ProducerIds;
use crate::coordinator::{Coordinator, Peers, Remote, TransactionCoordinator};
use crate::failure::Failure;
use crate::groups::GroupConfig;
use crate::image::{Metadata, stored};
use crate::logs::{LogDirectory, Logs, LogsError, OpenLog, Opening, Streams};
use crate::metrics::Metrics;
use crate::partition::{Elsewhere, Partition, Replica};
use crate::placement::{Known, Leader, Listeners, Placement};
use crate::quotas::Quotas;
use crate::resources::blocking::blocking;
use crate::resources::turns::Turns;
use crate::resources::walks::Walks;
use crate::security::Authorizer;
use crate::session::Sessions;
use crate::settings::group::ConsumerGroupConfig;
use crate::settings::listener::ListenerConfigs;
use crate::settings::resource::{ResourceConfigs, ResourceKind};
use crate::snapshots::writer::SnapshotWriter;
use crate::telemetry::Telemetry;
use crate::topics::{Leaders, OFFSETS_TOPIC, Removals, TRANSACTIONS_TOPIC, Topic, TopicError, Topics};
use crate::users::Users;

/// Threads that read the transaction index of a log. Each waits for the object store most of the time.
const INDEX_READERS: usize = 16;
/// Fetches that ask other brokers at the same time. Those behind them wait for their turn.
const ASKING_MAX: usize = 128;
/// A server that stops waits so long for its last metadata snapshot.
const LAST_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why the broker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No log could be opened.
    #[error(transparent)]
    Logs(#[from] LogsError),
    /// The metadata store could not be opened.
    #[error("the metadata cannot be opened: {0}")]
    Meta(#[from] MetaError),
    /// The metadata is of another cluster than the settings want.
    #[error(
        "the data is of the cluster {found}, and cluster.id is {wanted}: name that one, none, or another directory"
    )]
    OtherCluster {
        /// The setting.
        wanted: String,
        /// The cluster of the data.
        found: String,
    },
    /// The copies of other brokers' logs could not be opened.
    #[error(
        "the copies of other brokers' logs in {path} cannot be opened; without that directory, the broker starts with none: {source}"
    )]
    Copies {
        /// The directory.
        path: String,
        /// What is wrong there.
        source: storage::OpenError,
    },
    /// The groups or the transactions could not be read.
    #[error("the consumer groups or transactions cannot be read: {0}")]
    Groups(#[from] storage::ReadError),
    /// A thread could not be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// What a broker is in a cluster.
#[derive(Debug)]
pub struct Membership {
    /// The metadata of all brokers.
    pub store: Arc<dyn Store>,
    /// The local directories of the logs that the broker owns.
    pub directories: Arc<dyn Directories>,
    /// The addresses at which clients and brokers reach it, by listener.
    pub listeners: Listeners,
    /// The listener at which brokers reach each other, and how.
    pub inter_broker: (String, Arc<dyn Remote>),
    /// How long the broker counts as alive after its last sign of life (`broker.session.timeout.ms`).
    pub session: Duration,
    /// The directory for copies of other brokers' logs.
    pub copies: CopyDirectory,
}

/// The directory of a broker for copies of other brokers' logs.
#[derive(Clone, Debug)]
pub struct CopyDirectory {
    /// Its path, as messages call it.
    pub path: String,
    /// The disk.
    pub disk: Arc<dyn Disk>,
}

/// Where the metadata and the logs of a broker are.
enum Place<'a> {
    Alone { logs: Vec<LogDirectory>, directory: &'a Path },
    Cluster(Membership),
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    /// The settings at the start. Settings that change at run time are in `configs`.
    pub(crate) config: Arc<Config>,
    pub(crate) configs: Arc<ResourceConfigs>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) users: Arc<Users>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) cluster_id: Text,
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) logs: Arc<Logs>,
    pub(crate) topics: Arc<Topics>,
    pub(crate) placement: Arc<Placement>,
    pub(crate) sessions: Sessions,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) producer_ids: Arc<ProducerIds>,
    pub(crate) transactions: Arc<TransactionCoordinator>,
    pub(crate) peers: Arc<Peers>,
    compactor: Arc<Compactor>,
    pub(crate) walks: Arc<Walks>,
    pub(crate) turns: Turns,
    pub(crate) metrics: Arc<Metrics>,
    /// The object store, with its counters.
    pub(crate) bucket: Option<Arc<CountedBucket>>,
    pub(crate) snapshots: Option<Arc<SnapshotWriter>>,
    clock: Arc<SystemClock>,
    background: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    /// The threads of a broker in a cluster.
    running: Mutex<Option<Arc<Running>>>,
    replicas: ReplicaMap,
    pub(crate) ends: Ends,
    /// The copies of logs on this broker's disk, in a cluster.
    pub(crate) copies: Option<Arc<Copies>>,
    /// Held by fetches while they ask other brokers, each with a thread and a connection of its own.
    pub(crate) asking: Arc<Semaphore>,
    /// Where they are.
    pub(crate) copy_directory: Option<CopyDirectory>,
}

impl Broker {
    /// Opens the broker on its logs, with its metadata in `directory`. Blocks while the logs recover. Must be called
    /// inside a tokio runtime. If there are several logs, an unusable log makes only its own partitions unavailable.
    pub fn open(config: Config, logs: Vec<LogDirectory>, directory: &Path) -> Result<Arc<Broker>, OpenError> {
        Broker::open_with_bucket(config, logs, directory, None)
    }

    /// Like [`Broker::open`], for a broker whose tiered topics are in `bucket`, too.
    pub fn open_with_bucket(
        config: Config,
        logs: Vec<LogDirectory>,
        directory: &Path,
        bucket: Option<Arc<dyn Bucket>>,
    ) -> Result<Arc<Broker>, OpenError> {
        Broker::open_at(config, Place::Alone { logs, directory }, bucket)
    }

    /// Opens a broker of a cluster, whose records go to `bucket`. It owns no log on return; it joins and takes logs over while it
    /// runs. Must be called inside a tokio runtime. Blocks.
    pub fn open_in_cluster(
        config: Config,
        membership: Membership,
        bucket: Arc<dyn Bucket>,
    ) -> Result<Arc<Broker>, OpenError> {
        Broker::open_at(config, Place::Cluster(membership), Some(bucket))
    }

    fn open_at(
        config: Config,
        place: Place,
        bucket: Option<Arc<dyn Bucket>>,
    ) -> Result<Arc<Broker>, OpenError> {
        let config = Arc::new(config);
        let counted = bucket.map(|bucket| Arc::new(CountedBucket::new(bucket)));
        let began = Instant::now();
        let watch = |bucket| Arc::new(WatchedBucket::new(bucket, Box::new(move || began.elapsed())));
        let watched = counted.clone().map(|bucket| watch(bucket as Arc<dyn Bucket>));
        let bucket = watched.clone().map(|bucket| bucket as Arc<dyn Bucket>);
        let store: Arc<dyn Store> = match &place {
            Place::Alone { directory, .. } => Arc::new(Embedded::open(&directory.join(stored::META_FILE))?),
            Place::Cluster(membership) => membership.store.clone(),
        };
        let cluster_id = cluster_id(&*store, config.cluster_id.get())?;
        let metadata = Metadata::open(store.clone())?;
        let metrics = Arc::new(Metrics::default());
        let clock = Arc::new(SystemClock::default());
        let topics_later = Arc::new(OnceLock::new());
        let configs = ResourceConfigs::new(metadata.clone(), config.clone());
        let opening = Opening {
            config: config.clone(),
            tuning: configs.tuning(),
            metrics: metrics.clone(),
            clock: clock.clone(),
            open_storage: Arc::new(Log::open_tiered),
            topics: topics_later.clone(),
            bucket: bucket.clone(),
            index_readers: INDEX_READERS,
        };
        let (logs, membership) = match place {
            Place::Alone { logs, directory } => {
                let placed = Topics::placed(&metadata.image());
                (Logs::open(logs, &opening, &*store, directory, &placed)?, None)
            }
            Place::Cluster(membership) => (Logs::moving(&config), Some(membership)),
        };
        let copy_directory = membership.as_ref().map(|membership| membership.copies.clone());
        let open_copies = |CopyDirectory { path, disk }: &CopyDirectory| {
            let copies = opening.open_copies(disk.clone());
            copies.map(Arc::new).map_err(|source| OpenError::Copies { path: path.clone(), source })
        };
        let copies = copy_directory.as_ref().map(open_copies).transpose()?;
        let logs = Arc::new(logs);
        metadata.refresh()?;
        // The metadata of a cluster is kept by its store.
        let snapshots = bucket.clone().filter(|_| membership.is_none()).map(|bucket| {
            let interval =
                Duration::from_millis(u64::try_from(config.object_snapshot_interval_ms).unwrap_or(u64::MAX));
            Arc::new(SnapshotWriter::new(bucket, metadata.clone(), logs.clone(), &cluster_id, interval))
        });
        let placement = Arc::new(Placement::alone(config.node_id, config.rack.get()));
        let topics = Topics::open(metadata.clone(), logs.clone(), configs.clone(), placement.clone());
        assert!(topics_later.set(Arc::downgrade(&topics) as Weak<dyn Streams>).is_ok(), "set once");
        let group_config = GroupConfig {
            session_timeout_ms_min: config.group_session_timeout_ms_min,
            session_timeout_ms_max: config.group_session_timeout_ms_max,
            initial_rebalance_delay_ms: u64::try_from(config.group_initial_rebalance_delay_ms).unwrap_or(0),
            size_max: usize::try_from(config.group_size_max).unwrap_or(usize::MAX),
            offset_metadata_max: usize::try_from(config.offset_metadata_max).unwrap_or(0),
            offsets_retention_ms: i64::from(config.offsets_retention_minutes) * 60_000,
            consumer_session_timeout_ms: config.consumer_session_timeout_ms,
            consumer_size_max: usize::try_from(config.consumer_group_size_max).unwrap_or(usize::MAX),
        };
        let quotas = Quotas::new(metadata.clone(), &config);
        let authorizer = Authorizer::new(metadata.clone(), &config);
        let users = Arc::new(Users::new(metadata.clone()));
        let telemetry = Telemetry::new(&metadata, configs.clone(), config.telemetry_max_bytes);
        let producer_ids = Arc::new(ProducerIds::new(metadata.clone()));
        let peers = Arc::new(Peers::default());
        let node = config.node_id;
        let coordinator = Coordinator::new(&topics, node, clock.clone(), Arc::new(group_config));
        let (coordinator, transactions) = (
            Arc::new(coordinator),
            Arc::new(TransactionCoordinator::new(
                &topics,
                node,
                &producer_ids,
                &peers,
                config.clone(),
                clock.clone(),
            )),
        );
        topics.tell_removals(Arc::downgrade(&coordinator) as Weak<dyn Removals>);
        topics.tell_removals(Arc::downgrade(&peers) as Weak<dyn Removals>);
        peers.add(node, &coordinator, &transactions);
        let walks = Arc::new(Walks::default());
        let compactor =
            Arc::new(Compactor::new(topics.clone(), logs.clone(), configs.clone(), walks.clone()));
        let broker = Arc::new(Broker {
            replicas: ReplicaMap::new(&config),
            ends: Ends::default(),
            sessions: Sessions::new(usize::try_from(config.fetch_sessions_max).unwrap_or(0)),
            coordinator,
            config,
            configs,
            quotas,
            authorizer,
            users,
            telemetry,
            cluster_id,
            metadata,
            logs,
            topics,
            placement,
            producer_ids,
            transactions,
            peers,
            compactor,
            walks,
            turns: Turns::default(),
            metrics,
            bucket: counted,
            snapshots,
            clock,
            background: Mutex::default(),
            running: Mutex::default(),
            copies,
            asking: Arc::new(Semaphore::new(ASKING_MAX)),
            copy_directory,
        });
        let only_log = broker.logs.all().len() == 1;
        broker.coordinator.load(only_log)?;
        broker.transactions.load(only_log)?;
        // Index entries that a crash left ahead of the data must be corrected before other batches take their offsets.
        broker.maintain_transaction_indexes();
        broker.start_background();
        if let (Some(membership), Some(bucket)) = (membership, watched) {
            let copies = broker.copies.clone().expect("they were opened");
            broker.join(membership, opening, bucket, copies)?;
        }
        Ok(broker)
    }

    /// The users with a password.
    pub fn users(&self) -> &Arc<Users> {
        &self.users
    }

    /// Counts a connection from `address` towards the quota of that address (KIP-612). A connection over the quota is
    /// not counted. It must be held for the returned time and then closed.
    pub fn record_connection(&self, address: IpAddr) -> Option<Duration> {
        self.quotas.record_connection(address)
    }

    /// The reason why no log accepts appends: each has stopped, or its disk is full. `None` if a log accepts appends.
    pub fn failure(&self) -> Option<String> {
        let why = |log: &OpenLog| match log.failure() {
            Some(error) => Some(error.to_string()),
            None => log.log.is_full().then(|| AdmitError::Full.to_string()),
        };
        let logs = self.logs.all();
        if logs.is_empty() {
            // A broker of a cluster that owns no log at the moment.
            return None;
        }
        let reasons = logs.iter().map(|log| Some(format!("{}: {}", log.path, why(log)?)));
        reasons.collect::<Option<Vec<String>>>().map(|reasons| reasons.join("; "))
    }

    /// The logs that have stopped after an error, each with the reason.
    pub fn failed_logs(&self) -> Vec<String> {
        let logs = self.logs.all();
        logs.iter().filter_map(|log| log.failure().map(|error| format!("{}: {error}", log.path))).collect()
    }

    /// Waits for all work in progress and closes the logs. Nothing acknowledged or admitted is lost. No request may
    /// begin after this call.
    pub async fn close(&self) {
        let background = std::mem::take(&mut *self.background.lock());
        background.iter().for_each(tokio::task::JoinHandle::abort);
        let (logs, copies, running) = (self.logs.clone(), self.copies.clone(), self.running.lock().take());
        let close = move || {
            running.iter().for_each(|running| running.stop());
            logs.close();
            copies.iter().for_each(|copies| copies.close());
        };
        if let Err(error) = tokio::task::spawn_blocking(close).await {
            tracing::error!(%error, "closing the logs failed");
        }
        if let Some(snapshots) = self.snapshots.clone() {
            let now_ms = self.now_ms();
            let last = tokio::task::spawn_blocking(move || snapshots.finish(now_ms));
            if tokio::time::timeout(LAST_SNAPSHOT_TIMEOUT, last).await.is_err() {
                tracing::warn!(
                    "the object store does not take the last metadata snapshot: a restore would use an older one"
                );
            }
        }
    }

    /// Creates another broker of the cluster on the logs and the metadata of this one. To clients, it is a second
    /// broker. It coordinates the groups and transactions whose partitions it leads. It has no background tasks. For
    /// tests.
    #[doc(hidden)]
    pub fn beside(&self, node: i32) -> Arc<Broker> {
        let groups = Arc::new(self.coordinator.config().clone());
        let coordinator = Arc::new(Coordinator::new(&self.topics, node, self.clock.clone(), groups));
        let transactions = Arc::new(TransactionCoordinator::new(
            &self.topics,
            node,
            &self.producer_ids,
            &self.peers,
            self.config.clone(),
            self.clock.clone(),
        ));
        self.topics.tell_removals(Arc::downgrade(&coordinator) as Weak<dyn Removals>);
        self.peers.add(node, &coordinator, &transactions);
        Arc::new(Broker {
            replicas: ReplicaMap::new(&self.config),
            ends: Ends::default(),
            config: self.config.clone(),
            configs: self.configs.clone(),
            quotas: self.quotas.clone(),
            authorizer: self.authorizer.clone(),
            users: self.users.clone(),
            telemetry: self.telemetry.clone(),
            cluster_id: self.cluster_id.clone(),
            metadata: self.metadata.clone(),
            logs: self.logs.clone(),
            topics: self.topics.clone(),
            placement: Arc::new(Placement::alone(node, None)),
            sessions: Sessions::new(usize::try_from(self.config.fetch_sessions_max).unwrap_or(0)),
            coordinator,
            producer_ids: self.producer_ids.clone(),
            transactions,
            peers: self.peers.clone(),
            compactor: self.compactor.clone(),
            walks: self.walks.clone(),
            turns: Turns::default(),
            metrics: self.metrics.clone(),
            bucket: self.bucket.clone(),
            snapshots: None,
            clock: self.clock.clone(),
            background: Mutex::default(),
            running: Mutex::default(),
            copies: self.copies.clone(),
            asking: Arc::new(Semaphore::new(ASKING_MAX)),
            copy_directory: self.copy_directory.clone(),
        })
    }

    /// Replaces the other brokers' ids and their listeners by name. For tests.
    #[doc(hidden)]
    pub fn set_others(&self, others: BTreeMap<i32, Listeners>) {
        let known = others.into_iter().map(|(node, listeners)| (node, Known { listeners, rack: None }));
        self.placement.set_others(known.collect());
    }

    /// Sets the leader of every partition. `choose` gets the topic, the index and the current leader, and returns the
    /// new leader. A different leader gets the next epoch. For tests.
    #[doc(hidden)]
    pub fn place(&self, mut choose: impl FnMut(&str, i32, i32) -> i32) {
        for topic in self.topics.all() {
            for partition in topic.partitions().iter() {
                let Leader { node, epoch } = partition.leader();
                let chosen = choose(&topic.name, partition.index, node);
                if chosen != node {
                    partition.lead(Leader { node: chosen, epoch: epoch + 1 });
                    self.peers.follow(partition);
                }
            }
        }
    }

    /// Gives every partition the leader epoch `epoch`, as a cluster does after a restart: its epochs never fall. For tests.
    #[doc(hidden)]
    pub fn continue_at(&self, epoch: i32) {
        for topic in self.topics.all() {
            for partition in topic.partitions().iter() {
                partition.lead(Leader { epoch, ..partition.leader() });
                self.peers.follow(partition);
            }
        }
    }

    /// The settings at the start.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The settings in force, with what clients have changed.
    pub fn config_now(&self) -> Arc<Config> {
        self.configs.now()
    }

    /// From now on, `listeners` take the settings of single listeners that clients have set and set later. Once only. Blocks.
    /// The error says what of them cannot be used.
    pub fn apply_to_listeners(&self, listeners: Arc<dyn ListenerConfigs>) -> Result<(), String> {
        self.configs.apply_to_listeners(listeners)
    }

    /// The settings of a consumer group of the newer protocol (KIP-848), from its overrides and the broker's settings.
    pub(crate) fn group_config(&self, group_id: &str) -> ConsumerGroupConfig {
        let overrides = self.configs.of(ResourceKind::Group, group_id);
        ConsumerGroupConfig::new(&overrides, &self.configs.now())
    }

    /// The partition, if this broker leads it.
    pub(crate) fn replica<'a>(&self, partition: &'a Partition) -> Result<Replica<'a>, Elsewhere<'a>> {
        partition.replica(self.placement.local())
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// The turns of large requests that have released their memory, for the first caller. The allocator may still hold
    /// that memory: whoever receives a turn gives it back to the system, and then drops the turn. The next large request
    /// waits for that.
    pub fn memory_freed(&self) -> UnboundedReceiver<OwnedSemaphorePermit> {
        self.turns.freed()
    }

    /// Runs blocking work on a thread that may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Broker>) -> T + Send + 'static,
    ) -> T {
        let broker = self.clone();
        blocking(move || work(&broker)).await
    }

    pub(crate) async fn create_topic(
        self: &Arc<Self>,
        name: &str,
        partitions: i32,
        leaders: Leaders,
        configs: BTreeMap<String, String>,
    ) -> Result<Arc<Topic>, Failure> {
        let name = name.to_owned();
        let create = move |broker: &Arc<Broker>| {
            // A topic of this name may have been deleted while the log accepted no records. The offsets committed for
            // it must not count for the new topic, not even after a crash.
            let forget = || broker.coordinator.forget_topic_for_good(&name);
            broker.topics.create(&name, (partitions, &leaders), configs, forget)
        };
        Ok(self.blocking(create).await?)
    }

    /// The topic `name`. A missing topic is created. If two clients ask for the same new topic at once, both get it.
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
        match self.create_topic(name, partitions, Leaders::new(), configs).await {
            Err(failure) if failure.code == ErrorCode::TopicAlreadyExists => {
                self.topics.find(name).ok_or(ErrorCode::UnknownTopicOrPartition.into())
            }
            result => result,
        }
    }

    pub(crate) async fn delete_topic(self: &Arc<Self>, topic: &Arc<Topic>) -> Result<(), Failure> {
        let topic = topic.clone();
        self.blocking(move |broker| broker.topics.delete(&topic))
            .await
            .map_err(|error: TopicError| error.into())
    }

    /// The topic of committed offsets, created on first use.
    pub(crate) async fn offsets_topic(self: &Arc<Self>) -> Result<Arc<Topic>, Failure> {
        let compacted = [("cleanup.policy", "compact")];
        self.find_or_create_topic(OFFSETS_TOPIC, self.config.offsets_partitions, &compacted).await
    }

    /// The topic of transaction state, created on first use.
    pub(crate) async fn transactions_topic(self: &Arc<Self>) -> Result<Arc<Topic>, Failure> {
        let compacted = [("cleanup.policy", "compact")];
        self.find_or_create_topic(TRANSACTIONS_TOPIC, self.config.transactions_partitions, &compacted).await
    }
}
