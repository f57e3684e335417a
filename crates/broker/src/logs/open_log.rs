//! One open log: how it is opened, and whom it tells of its commits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use disk::Disk;
use model::StreamId;
use objects::Bucket;
use parking_lot::Mutex;
use storage::OpenError::Unusable;
#[cfg(test)]
use storage::SystemClock;
use storage::copies::Copies;
use storage::epochs::Owned;
use storage::restore::RestoredLog;
use storage::{AdmitError, AppendError, Clock, Committed, Listener, Log, Tuning};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::{Config, ReplicaSelector};
use crate::metrics::Metrics;
use crate::transactions::{StoredTransactions, TransactionIndex};

/// Threads of each log that serve reads that miss the caches.
const COLD_THREADS: usize = 2;
/// Threads of each log that read from the object store.
const OBJECT_THREADS: usize = 8;
/// Objects of a log that are put at the same time.
const OBJECT_PUTS: usize = 4;
/// Memory, besides the caches, for data that readers received and have not consumed yet: the total over all logs, and
/// the minimum for each log. Data that is being read, written or sent counts as well, even if no reader is slow.
const READERS_BYTES: usize = 64 * 1024 * 1024;
const READERS_BYTES_MIN: usize = 16 * 1024 * 1024;
/// Memory for the batch indexes of sealed segments, over all logs.
const INDEX_CACHE_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of the newest records that stay in memory whatever their age, over all logs.
const TAIL_KEPT_BYTES: usize = 128 * 1024 * 1024;
/// Four blocks of the largest size fit, with what is around them.
const COPIES_SEGMENT_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Memory of each cache of the copies of other brokers' logs, where they are read only when such a log gets another owner.
const COPIES_CACHE_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of the newest copies that stay in memory where consumers read them.
const COPIES_READ_BYTES: usize = 64 * 1024 * 1024;
/// Minimum size of each cache of a log, however many logs share the configured memory.
const CACHE_BYTES_MIN: usize = 4 * 1024 * 1024;

/// A log that was opened. It may have stopped since.
#[derive(Debug)]
pub struct OpenLog {
    /// The log's id.
    pub id: Uuid,
    /// The log's directory.
    pub path: String,
    /// The epoch in which this broker owns the log, in a cluster.
    pub epoch: Option<u32>,
    /// The log.
    pub log: Arc<Log>,
    /// Notified when the log has room again.
    pub room: Arc<Notify>,
    /// The log's transaction index.
    pub transactions: TransactionIndex,
    /// The content of the index at the time of opening, for partitions that are not opened yet.
    stored_transactions: Mutex<HashMap<StreamId, StoredTransactions>>,
    disk: Arc<dyn Disk>,
}

impl OpenLog {
    /// The error that stopped the log. `None` if it runs or was closed.
    pub fn failure(&self) -> Option<AppendError> {
        self.log.stopped().filter(|error| matches!(error, AppendError::Poisoned(_)))
    }

    /// Takes the stored transactions of a stream. A second call returns nothing.
    pub fn take_stored_transactions(&self, stream: StreamId) -> StoredTransactions {
        self.stored_transactions.lock().remove(&stream).unwrap_or_default()
    }

    /// Size of the log's disk in bytes, if known.
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.disk.capacity_bytes().ok()
    }

    /// Where the log is, and how messages call that.
    pub fn directory(&self) -> (String, Arc<dyn Disk>) {
        (self.path.clone(), self.disk.clone())
    }

    /// Free bytes on the log's disk, if known.
    pub fn usable_bytes(&self) -> Option<u64> {
        self.disk.free_bytes().ok()
    }

    /// Free bytes for the log's records, or the reason why it takes no new partition.
    pub(super) fn free_bytes(&self) -> Result<u64, String> {
        match self.log.admit(1) {
            Ok(_) | Err(AdmitError::Busy) => self.disk.free_bytes().map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Opens the log on a disk and starts its threads. Blocks during recovery.
pub type OpenStorage = dyn Fn(
        Arc<dyn Disk>,
        Option<Arc<dyn Bucket>>,
        storage::Options,
        Arc<dyn Clock>,
        Arc<dyn Listener>,
    ) -> Result<Log, storage::OpenError>
    + Send
    + Sync;

/// Appends what only copies of a log have. Blocks.
pub type AddCopies<'a> = dyn Fn(&Arc<Log>) -> Result<(), storage::OpenError> + 'a;

/// The parameters for opening any log.
#[derive(Clone)]
pub struct Opening {
    /// The broker's settings.
    pub config: Arc<Config>,
    /// Those that change while logs are open.
    pub tuning: Arc<Tuning>,
    /// Counts the commits of all logs.
    pub metrics: Arc<Metrics>,
    /// The clock of all logs.
    pub clock: Arc<dyn Clock>,
    /// [`Log::open_tiered`], except in a simulation.
    pub open_storage: Arc<OpenStorage>,
    /// Set once the topics are open.
    pub topics: Arc<OnceLock<Weak<dyn Streams>>>,
    /// The object store.
    pub bucket: Option<Arc<dyn Bucket>>,
    /// Threads that read the transaction index of a log.
    pub index_readers: usize,
}

/// Receives notice of commits, by stream.
pub trait Streams: std::fmt::Debug + Send + Sync {
    /// `bytes` more of records are committed in a stream.
    fn grown(&self, stream: StreamId, bytes: usize);
}

/// Receives events of one log's writer, and notifies partitions and waiting appends.
struct LogListener {
    /// Weak, because the topics hold the logs and a log holds its listener.
    topics: Arc<OnceLock<Weak<dyn Streams>>>,
    metrics: Arc<Metrics>,
    room: Arc<Notify>,
    path: String,
    log: OnceLock<Weak<Log>>,
    told: AtomicBool,
}

impl Listener for LogListener {
    fn committed(&self, streams: &[Committed]) {
        let Some(topics) = self.topics.get().and_then(Weak::upgrade) else { return };
        for grown in streams {
            topics.grown(grown.stream.id(), usize::try_from(grown.bytes).unwrap_or(usize::MAX));
        }
    }

    fn room(&self) {
        self.room.notify_waiters();
        // A log that stops calls this too. The message adds the directory, which the log does not know.
        let log = self.log.get().and_then(Weak::upgrade);
        if let Some(AppendError::Poisoned(why)) = log.and_then(|log| log.stopped())
            && !self.told.swap(true, Ordering::AcqRel)
        {
            tracing::error!(
                directory = self.path,
                %why,
                "a log directory failed: its partitions can be read and take no more records, all others go on; \
                 restart once the disk is well again"
            );
        }
    }

    fn group_commit(&self, bytes: usize, entries: u32, nanos: u64) {
        self.metrics.commit_bytes.observe(f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)));
        self.metrics.commit_entries.observe(f64::from(entries));
        self.metrics.commit_seconds.observe(Duration::from_nanos(nanos).as_secs_f64());
    }
}

/// Observes how long commits of copies take.
struct CopiesListener(Arc<Metrics>);

impl Listener for CopiesListener {
    fn committed(&self, _: &[Committed]) {}

    fn group_commit(&self, _bytes: usize, _entries: u32, nanos: u64) {
        self.0.copies_commit_seconds.observe(Duration::from_nanos(nanos).as_secs_f64());
    }
}

impl Opening {
    /// With these settings, and nobody who is told.
    #[cfg(test)]
    pub fn of(config: Config) -> Opening {
        let (metrics, topics) = (Arc::default(), Arc::default());
        let clock = Arc::new(SystemClock::default());
        let open_storage = Arc::new(Log::open_tiered);
        Opening {
            config: Arc::new(config),
            tuning: Arc::default(),
            metrics,
            clock,
            open_storage,
            topics,
            bucket: None,
            index_readers: 1,
        }
    }

    /// Opens the copies of other brokers' logs on a disk, which may be empty.
    pub fn open_copies(&self, disk: Arc<dyn Disk>) -> Result<Copies, storage::OpenError> {
        let config = &*self.config;
        let newest = match config.replica_selector {
            ReplicaSelector::None => COPIES_CACHE_BYTES,
            ReplicaSelector::ByRack => COPIES_READ_BYTES,
        };
        #[allow(clippy::needless_update, reason = "simulations have a field more")]
        let options = storage::Options {
            // As those of the logs, whose blocks have to fit, also where segments are small: a batch has a quarter of one at most.
            segment_bytes: segment_bytes(config).max(COPIES_SEGMENT_BYTES_MIN),
            tail_cache_bytes: newest,
            tail_kept_bytes: newest,
            region_cache_bytes: COPIES_CACHE_BYTES,
            readers_bytes: READERS_BYTES_MIN,
            index_cache_bytes: COPIES_CACHE_BYTES,
            reserve_bytes: u64::try_from(config.reserve_bytes).unwrap_or(0),
            log_id: Uuid::new_v4().as_u128(),
            cold_threads: 1,
            ..storage::Options::default()
        };
        Copies::open(disk, options, self.clock.clone(), Arc::new(CopiesListener(self.metrics.clone())))
    }

    /// Opens the log in a directory, or begins one there. `share` is the number of logs that share the configured
    /// memory. `owned` is the right to the log's objects, in a cluster, and what was restored of it: its transaction index is not
    /// corrected yet.
    pub fn open(
        &self,
        path: &str,
        disk: Arc<dyn Disk>,
        share: usize,
        owned: Option<(Owned, RestoredLog, &AddCopies<'_>)>,
    ) -> Result<OpenLog, storage::OpenError> {
        let config = &*self.config;
        let (owned, restored, add_copies) = owned
            .map_or((None, None, None), |(owned, restored, add)| (Some(owned), Some(restored), Some(add)));
        let epoch = owned.as_ref().and_then(|owned| owned.epochs.newest()).map(|newest| newest.epoch);
        let bytes_of = |setting: i64| usize::try_from(setting).unwrap_or(usize::MAX);
        let share_of = |bytes: usize| (bytes / share).max(CACHE_BYTES_MIN);
        #[allow(clippy::needless_update, reason = "simulations have a field more")]
        let options = storage::Options {
            segment_bytes: segment_bytes(config),
            tail_cache_bytes: share_of(bytes_of(config.tail_cache_bytes)),
            tail_kept_bytes: share_of(TAIL_KEPT_BYTES),
            tail_cache_ms: u64::try_from(config.tail_cache_ms).unwrap_or(0),
            region_cache_bytes: share_of(bytes_of(config.read_cache_bytes)),
            readers_bytes: share_of(READERS_BYTES).max(READERS_BYTES_MIN),
            index_cache_bytes: share_of(INDEX_CACHE_BYTES),
            tuning: self.tuning.clone(),
            reserve_bytes: u64::try_from(config.reserve_bytes).unwrap_or(0),
            log_id: Uuid::new_v4().as_u128(),
            cold_threads: COLD_THREADS,
            object_threads: OBJECT_THREADS,
            object_bytes: usize::try_from(config.object_bytes).unwrap_or(usize::MAX),
            upload_interval_ms: u64::try_from(config.object_interval_ms).unwrap_or(u64::MAX),
            diskless_interval_ms: u64::try_from(config.diskless_interval_ms).unwrap_or(u64::MAX),
            diskless_bytes: usize::try_from(config.diskless_bytes).unwrap_or(usize::MAX),
            diskless_backlog_bytes: u64::try_from(config.diskless_backlog_bytes).unwrap_or(u64::MAX),
            merged_bytes: usize::try_from(config.merged_bytes).unwrap_or(usize::MAX),
            object_puts: OBJECT_PUTS,
            object_grace_ms: u64::try_from(config.object_delete_delay_ms).unwrap_or(u64::MAX),
            cleaner_patience_ms: config.cleaner_patience_ms,
            owned,
            ..storage::Options::default()
        };
        let room = Arc::new(Notify::new());
        let listener = Arc::new(LogListener {
            topics: self.topics.clone(),
            metrics: self.metrics.clone(),
            room: room.clone(),
            path: path.to_owned(),
            log: OnceLock::new(),
            told: AtomicBool::new(false),
        });
        let log = Arc::new((self.open_storage)(
            disk.clone(),
            self.bucket.clone(),
            options,
            self.clock.clone(),
            listener.clone(),
        )?);
        assert!(listener.log.set(Arc::downgrade(&log)).is_ok(), "set once");
        let report = log.recovery();
        tracing::info!(
            directory = path,
            sealed_segments = report.sealed_segments,
            scanned_segments = report.scanned_segments,
            scanned_bytes = report.scanned_bytes,
            end = %report.end,
            "the log is open"
        );
        if report.dropped_blocks > 0 {
            tracing::info!(
                directory = path,
                blocks = report.dropped_blocks,
                bytes = report.dropped_bytes,
                "what was written last and never acknowledged is dropped"
            );
        }
        let loaded = || {
            restored.map_or(Ok(()), |restored| restored.is_in(&log)).map_err(|error| Unusable {
                doing: "comparing it with what was restored",
                source: error.into(),
            })?;
            // Before its index is read.
            add_copies.map_or(Ok(()), |add_copies| add_copies(&log))?;
            TransactionIndex::load(&log, self.index_readers)
                .map_err(|error| Unusable { doing: "reading the transaction index", source: error.into() })
        };
        // Its threads would go on.
        let transactions = loaded().inspect_err(|_| log.close())?;
        if epoch.is_none() {
            transactions.write_corrections(&log, self.clock.now_ms());
        }
        Ok(OpenLog {
            id: Uuid::from_u128(log.id()),
            epoch,
            path: path.to_owned(),
            log,
            room,
            stored_transactions: Mutex::new(transactions.stored()),
            transactions,
            disk,
        })
    }
}

pub(super) fn segment_bytes(config: &Config) -> u64 {
    u64::try_from(config.segment_bytes).unwrap_or(0).next_multiple_of(1024 * 1024)
}
