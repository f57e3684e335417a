//! The logs, one in each log directory, and the state of logs that are unavailable.
//!
//! A log is identified by the id in its segments, wherever its directory is. The metadata stores the log id of each
//! partition, and the directory in which each log was last seen. A partition is therefore found again after its
//! directory has moved. A missing directory never makes a partition look empty: no new log is begun where a log with
//! partitions was last seen.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use disk::Disk;
use meta::{Change, MetaError, Store};
use model::{Offset, StreamId};
use objects::Bucket;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use storage::{AdmitError, AppendError, Committed, Listener, Log, SystemClock};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::Config;
use crate::image::stored;
use crate::metrics::Metrics;
use crate::transactions::{StoredTransactions, TransactionIndex};

/// Threads of each log that serve reads that miss the caches.
const COLD_THREADS: usize = 2;
/// Threads of each log that read from the object store.
/// Objects that are put at the same time.
const OBJECT_PUTS: usize = 4;
const OBJECT_THREADS: usize = 8;
/// Memory, besides the caches, for data that readers received and have not consumed yet: the total over all logs, and
/// the minimum for each log. Data that is being read, written or sent counts as well, even if no reader is slow.
const READERS_BYTES: usize = 64 * 1024 * 1024;
const READERS_BYTES_MIN: usize = 16 * 1024 * 1024;
/// Memory for the batch indexes of sealed segments, over all logs.
const INDEX_CACHE_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of the newest records that stay in memory whatever their age, over all logs.
const TAIL_KEPT_BYTES: usize = 128 * 1024 * 1024;
/// Minimum size of each cache of a log, however many logs share the configured memory.
const CACHE_BYTES_MIN: usize = 4 * 1024 * 1024;

/// The keys of the logs begin so.
pub const LOG_PREFIX: &str = "logs/";
/// The log of partitions whose metadata names no log. They were created when there was only one.
pub const FIRST_LOG_KEY: &str = "first_log";
/// The remedy for a missing log.
const REMEDY: &str = "bring it back and restart, or delete the topics to give the records up";

/// The reason why the logs cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The only log cannot be opened.
    #[error("the log cannot be opened: {0}")]
    Log(storage::OpenError),
    /// The metadata store failed.
    #[error("the metadata cannot be used: {0}")]
    Meta(#[from] MetaError),
    /// No log directory can be used.
    #[error(
        "no log directory can be used: {0}; bring them back, or remove the metadata as well to begin without their records"
    )]
    AllLost(String),
    /// Two directories hold the same log, and it is unknown which copy is older.
    #[error("{0} and {1} hold copies of one log; take one of them out of log.dirs")]
    Copies(String, String),
}

type Opener = dyn Fn(bool) -> io::Result<Arc<dyn Disk>> + Send;

/// A directory for a log.
pub struct LogDirectory {
    path: String,
    open: Box<Opener>,
}

impl LogDirectory {
    /// Creates a description of a directory. Messages and the metadata refer to it as `path`. `open` opens the
    /// directory: with `true` it creates a missing one, with `false` it returns an error of the kind `NotFound`.
    pub fn new(
        path: impl Into<String>,
        open: impl Fn(bool) -> io::Result<Arc<dyn Disk>> + Send + 'static,
    ) -> LogDirectory {
        LogDirectory { path: path.into(), open: Box::new(open) }
    }
}

impl std::fmt::Debug for LogDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LogDirectory").field(&self.path).finish()
    }
}

/// A log that was opened. It may have stopped since.
#[derive(Debug)]
pub struct OpenLog {
    /// The log's id.
    pub id: Uuid,
    /// The log's directory.
    pub path: String,
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

    /// Free bytes on the log's disk, if known.
    pub fn usable_bytes(&self) -> Option<u64> {
        self.disk.free_bytes().ok()
    }

    /// Free bytes for the log's records, or the reason why it takes no new partition.
    fn free_bytes(&self) -> Result<u64, String> {
        match self.log.admit(1) {
            Ok(_) | Err(AdmitError::Busy) => self.disk.free_bytes().map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A missing log, or a directory that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log directory {path} is offline: {why}")]
pub struct Lost {
    /// The directory, or the one in which the log was last seen.
    pub path: String,
    /// The problem with it.
    pub why: String,
}

/// The number of partitions in a log, and the bytes they are expected to add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The number of partitions.
    pub partitions: usize,
    /// Bytes still to come if each partition fills at least one segment.
    pub promised_bytes: u64,
}

/// A log in the metadata.
#[derive(Serialize, Deserialize)]
struct LogRecord {
    /// The directory in which the log was last seen.
    path: String,
}

/// All logs.
#[derive(Debug)]
pub struct Logs {
    open: Vec<Arc<OpenLog>>,
    /// Listed directories that cannot be used.
    lost: Vec<Arc<Lost>>,
    /// Missing logs that hold partitions. The nil id stands for the first log while its id is unknown.
    gone: HashMap<Uuid, Arc<Lost>>,
    first: Option<Uuid>,
    segment_bytes: u64,
}

/// The parameters for opening any log.
pub struct Opening<'a> {
    /// The broker's settings.
    pub config: &'a Config,
    /// Counts the commits of all logs.
    pub metrics: &'a Arc<Metrics>,
    /// The clock of all logs.
    pub clock: &'a Arc<SystemClock>,
    /// Set once the topics are open.
    pub topics: &'a Arc<OnceLock<Weak<dyn Streams>>>,
    /// The object store.
    pub bucket: Option<&'a Arc<dyn Bucket>>,
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

impl Opening<'_> {
    /// Opens the log in a directory, or begins one there. `share` is the number of logs that share the configured
    /// memory.
    fn open(&self, path: &str, disk: Arc<dyn Disk>, share: usize) -> Result<OpenLog, storage::OpenError> {
        let config = self.config;
        let bytes_of = |setting: i64| usize::try_from(setting).unwrap_or(usize::MAX);
        let share_of = |bytes: usize| (bytes / share).max(CACHE_BYTES_MIN);
        let options = storage::Options {
            segment_bytes: segment_bytes(config),
            tail_cache_bytes: share_of(bytes_of(config.tail_cache_bytes)),
            tail_kept_bytes: share_of(TAIL_KEPT_BYTES),
            tail_cache_ms: u64::try_from(config.tail_cache_ms).unwrap_or(0),
            region_cache_bytes: share_of(bytes_of(config.read_cache_bytes)),
            readers_bytes: share_of(READERS_BYTES).max(READERS_BYTES_MIN),
            index_cache_bytes: share_of(INDEX_CACHE_BYTES),
            producer_expiry_ms: config.producer_expiry_ms,
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
            cleaner_bytes_per_second: u64::try_from(config.cleaner_bytes_per_second).unwrap_or(0),
            owned: None,
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
        let log = Arc::new(Log::open_tiered(
            disk.clone(),
            self.bucket.cloned(),
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
            dropped_blocks = report.dropped_blocks,
            dropped_bytes = report.dropped_bytes,
            "the log is open; dropped blocks were written but never acknowledged"
        );
        let transactions =
            TransactionIndex::load(&log, storage::Clock::now_ms(&**self.clock)).map_err(|error| {
                storage::OpenError::Io {
                    doing: "reading the transaction index".into(),
                    source: io::Error::other(error),
                }
            })?;
        Ok(OpenLog {
            id: Uuid::from_u128(log.id()),
            path: path.to_owned(),
            log,
            room,
            stored_transactions: Mutex::new(transactions.stored()),
            transactions,
            disk,
        })
    }
}

fn segment_bytes(config: &Config) -> u64 {
    u64::try_from(config.segment_bytes).unwrap_or(0).next_multiple_of(1024 * 1024)
}

impl Logs {
    /// Opens the logs in `directories`, and begins a new log in an empty directory if no log is expected there.
    /// `placed` gives the number of partitions in each log; the nil id counts those of the first log. The metadata is
    /// in `store`, which lies in `home`. Blocks.
    pub fn open(
        directories: Vec<LogDirectory>,
        opening: &Opening,
        store: &dyn Store,
        home: &Path,
        placed: &BTreeMap<Uuid, usize>,
    ) -> Result<Logs, LogsError> {
        let mut known = known_logs(store)?;
        let mut first = first_log(store)?;
        let share = directories.len().max(1);
        let mut logs = Logs {
            open: Vec::new(),
            lost: Vec::new(),
            gone: HashMap::new(),
            first: None,
            segment_bytes: segment_bytes(opening.config),
        };
        // Existing logs are opened first. Only then is it known which empty directories should hold a log.
        let mut without = Vec::new();
        for directory in directories {
            match look(&directory) {
                Ok(Some((disk, true))) => match opening.open(&directory.path, disk, share) {
                    Ok(log) => logs.add_found(log)?,
                    Err(error) if share == 1 => return Err(LogsError::Log(error)),
                    Err(error) => logs.lose(&directory.path, error.to_string()),
                },
                Ok(there) => without.push((directory, there.map(|(disk, _)| disk))),
                Err(error) => logs.lose(&directory.path, error.to_string()),
            }
        }
        let mut changes = Vec::new();
        let old = placed.contains_key(&Uuid::nil());
        if first.is_none() && old {
            first = logs.first_of(&known);
            changes.extend(first.map(|id| Change::put(FIRST_LOG_KEY, id.to_string())));
        }
        logs.lose_strangers(&known, first);
        let is_first = |id: &Uuid| if id.is_nil() { first } else { Some(*id) };
        let absent: Vec<(Uuid, usize)> = placed
            .iter()
            .filter(|(id, _)| !is_first(id).is_some_and(|id| logs.open.iter().any(|log| log.id == id)))
            .map(|(id, count)| (is_first(id).unwrap_or(Uuid::nil()), *count))
            .collect();
        let last_path = |known: &BTreeMap<Uuid, String>, id: &Uuid| {
            let home = std::path::absolute(home).unwrap_or_else(|_| home.to_owned());
            known.get(id).cloned().unwrap_or_else(|| home.display().to_string())
        };
        for (directory, disk) in without {
            if let Some((_, count)) = absent.iter().find(|(id, _)| last_path(&known, id) == directory.path) {
                let state = if disk.is_some() { "holds no log" } else { "does not exist" };
                let why = format!("it {state}, but {count} partitions are in the log that was there");
                logs.lose(&directory.path, why);
                continue;
            }
            let begun = match disk {
                Some(disk) => Ok(disk),
                None => (directory.open)(true),
            };
            match begun.map(|disk| opening.open(&directory.path, disk, share)) {
                Ok(Ok(log)) => logs.open.push(Arc::new(log)),
                Ok(Err(error)) if share == 1 => return Err(LogsError::Log(error)),
                Ok(Err(error)) => logs.lose(&directory.path, error.to_string()),
                Err(error) => logs.lose(&directory.path, error.to_string()),
            }
        }
        for (id, count) in absent {
            let path = last_path(&known, &id);
            logs.miss(id, path, count);
        }
        if logs.open.is_empty() {
            let all: Vec<String> =
                logs.lost.iter().map(|lost| format!("{}: {}", lost.path, lost.why)).collect();
            return Err(LogsError::AllLost(all.join("; ")));
        }
        for log in &logs.open {
            if known.insert(log.id, log.path.clone()).as_ref() != Some(&log.path) {
                changes.push(Change::put(format!("{LOG_PREFIX}{}", log.id), path_record(&log.path)));
            }
        }
        if !changes.is_empty() {
            store.commit(&[], &changes)?;
        }
        logs.first = first;
        Ok(logs)
    }

    fn add_found(&mut self, log: OpenLog) -> Result<(), LogsError> {
        if let Some(other) = self.open.iter().find(|other| other.id == log.id) {
            return Err(LogsError::Copies(other.path.clone(), log.path));
        }
        self.open.push(Arc::new(log));
        Ok(())
    }

    /// The log from the time before logs had ids in the metadata: a log that the metadata does not know, if possible
    /// one with records.
    fn first_of(&self, known: &BTreeMap<Uuid, String>) -> Option<Uuid> {
        let unknown = || self.open.iter().filter(|log| !known.contains_key(&log.id));
        let found = unknown().find(|log| holds_records(log)).or_else(|| unknown().next());
        found.map(|log| log.id)
    }

    /// Sets logs aside that belong to the metadata of another server. Their streams would be taken for this server's,
    /// or be dropped.
    fn lose_strangers(&mut self, known: &BTreeMap<Uuid, String>, first: Option<Uuid>) {
        let ours =
            |log: &Arc<OpenLog>| known.contains_key(&log.id) || first == Some(log.id) || !holds_records(log);
        let (ours, strangers) = std::mem::take(&mut self.open).into_iter().partition(ours);
        self.open = ours;
        for log in strangers {
            log.log.close();
            let why = "it holds a log that the metadata does not know: give it an empty directory, or the data \
                       directory that it was used with";
            self.lose(&log.path, why.into());
        }
    }

    fn lose(&mut self, path: &str, why: String) {
        tracing::error!(directory = path, why, "a log directory cannot be used; {REMEDY}");
        self.lost.push(Arc::new(Lost { path: path.to_owned(), why }));
    }

    /// Notes that the log `id`, last seen in `path`, is missing.
    fn miss(&mut self, id: Uuid, path: String, partitions: usize) {
        let lost = match self.lost.iter().find(|lost| lost.path == path) {
            Some(lost) => lost.clone(),
            None => {
                let why = "it is the last place of a log that none of log.dirs holds".to_owned();
                Arc::new(Lost { path, why })
            }
        };
        tracing::error!(
            directory = lost.path,
            partitions,
            why = lost.why,
            "partitions are offline with their log directory; {REMEDY}"
        );
        self.gone.insert(id, lost);
    }

    /// The open logs, in the order of log.dirs.
    pub fn all(&self) -> &[Arc<OpenLog>] {
        &self.open
    }

    /// The directories of log.dirs that cannot be used.
    pub fn lost(&self) -> &[Arc<Lost>] {
        &self.lost
    }

    /// The log with this id. The nil id stands for the first log.
    pub fn find(&self, id: Uuid) -> Result<Arc<OpenLog>, Arc<Lost>> {
        let id = if id.is_nil() { self.first.unwrap_or(id) } else { id };
        self.open.iter().find(|log| log.id == id).cloned().ok_or_else(|| {
            let unheard =
                || Arc::new(Lost { path: "(unknown)".into(), why: "its log was never seen".into() });
            self.gone.get(&id).cloned().unwrap_or_else(unheard)
        })
    }

    /// Chooses logs for `count` new partitions: the log with the most free bytes after the promised ones, and among
    /// equals the log with the fewest partitions. `held` returns the content of each log, and is called only if there
    /// is a choice. Blocks.
    ///
    /// # Errors
    /// The reasons of all logs, if none takes a partition.
    pub fn place(
        &self,
        count: usize,
        held: impl FnOnce() -> HashMap<Uuid, Held>,
    ) -> Result<Vec<Uuid>, String> {
        let (mut taking, mut refusals) = (Vec::new(), Vec::new());
        for log in &self.open {
            match log.free_bytes() {
                Ok(free) => taking.push((log.id, free)),
                Err(why) => refusals.push(format!("{}: {why}", log.path)),
            }
        }
        refusals.extend(self.lost.iter().map(|lost| format!("{}: {}", lost.path, lost.why)));
        let mut held = if taking.len() > 1 { held() } else { HashMap::new() };
        let mut placed = Vec::with_capacity(count);
        for _ in 0..count {
            let better = |(at, (id, free)): &(usize, &(Uuid, u64))| {
                let held = held.get(id).copied().unwrap_or_default();
                let left = i128::from(*free) - i128::from(held.promised_bytes);
                (left, std::cmp::Reverse(held.partitions), std::cmp::Reverse(*at))
            };
            let Some((_, (id, _))) = taking.iter().enumerate().max_by_key(better) else {
                return Err(refusals.join("; "));
            };
            let held = held.entry(*id).or_default();
            held.partitions += 1;
            held.promised_bytes += self.segment_bytes;
            placed.push(*id);
        }
        Ok(placed)
    }

    /// Bytes that a partition with records of `bytes` still adds to [`Held::promised_bytes`].
    pub fn promise(&self, bytes: u64) -> u64 {
        self.segment_bytes.saturating_sub(bytes)
    }

    /// Closes all logs. Blocks until all admitted appends are written.
    pub fn close(&self) {
        std::thread::scope(|scope| {
            for log in &self.open {
                scope.spawn(|| log.log.close());
            }
        });
    }
}

/// The disk of a directory, and whether it holds a log. `None` if the directory does not exist.
fn look(directory: &LogDirectory) -> io::Result<Option<(Arc<dyn Disk>, bool)>> {
    match (directory.open)(false) {
        Ok(disk) => {
            let holds = Log::is_on(&*disk)?;
            Ok(Some((disk, holds)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The entry of a log that is in the directory `path`.
pub fn path_record(path: &str) -> Vec<u8> {
    serde_json::to_vec(&LogRecord { path: path.to_owned() }).expect("a path can be written as JSON")
}

fn known_logs(store: &dyn Store) -> Result<BTreeMap<Uuid, String>, MetaError> {
    let mut known = BTreeMap::new();
    for (key, value) in store.list(LOG_PREFIX)?.entries {
        let id = uuid(&key, &key[LOG_PREFIX.len()..])?;
        let record: LogRecord = stored::read(&key, &value)?;
        known.insert(id, record.path);
    }
    Ok(known)
}

fn first_log(store: &dyn Store) -> Result<Option<Uuid>, MetaError> {
    let found = store.find(FIRST_LOG_KEY)?;
    found.map(|value| uuid(FIRST_LOG_KEY, &String::from_utf8_lossy(&value.bytes))).transpose()
}

fn uuid(key: &str, text: &str) -> Result<Uuid, MetaError> {
    text.parse().map_err(|_| stored::unreadable(key, format_args!("{text:?} is not an id")))
}

/// Whether the log has ever held records. A server may stop between the creation of a log and its entry in the
/// metadata.
fn holds_records(log: &OpenLog) -> bool {
    log.log.streams().iter().any(|stream| stream.bounds().committed > Offset::ZERO)
}

#[cfg(test)]
mod tests {
    use disk::SimDisk;
    use disk::sim::Fault;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// Opens logs in directories of these names and sizes, and returns them with their disks.
    fn open(sizes: &[(&'static str, u64)]) -> (Logs, Vec<SimDisk>) {
        let home = tempfile::tempdir().unwrap();
        let store = meta::Memory::default();
        let disks: Vec<SimDisk> = (0..).zip(sizes).map(|(seed, _)| SimDisk::new(seed)).collect();
        let directories = sizes.iter().zip(&disks).map(|((path, bytes), disk)| {
            disk.set_capacity(*bytes);
            let disk = disk.clone();
            LogDirectory::new(*path, move |_| Ok(Arc::new(disk.clone()) as Arc<dyn Disk>))
        });
        let opening = Opening {
            config: &Config { reserve_bytes: 0, ..Config::default() },
            metrics: &Arc::default(),
            clock: &Arc::default(),
            topics: &Arc::default(),
            bucket: None,
        };
        let logs = Logs::open(directories.collect(), &opening, &store, home.path(), &BTreeMap::new());
        (logs.unwrap(), disks)
    }

    /// The number of the `count` partitions that each log gets.
    fn spread(logs: &Logs, count: usize, held: &HashMap<Uuid, Held>) -> Result<Vec<usize>, String> {
        let placed = logs.place(count, || held.clone())?;
        Ok(logs.all().iter().map(|log| placed.iter().filter(|id| **id == log.id).count()).collect())
    }

    #[test]
    fn partitions_go_where_most_is_free_and_evenly_where_that_is_equal() {
        let none = HashMap::new();
        // The logs themselves use less than a GiB, which does not change the number of whole partitions.
        let (logs, _) = open(&[("a", 101 * GIB - 1), ("b", 51 * GIB - 1), ("c", 51 * GIB - 1)]);
        assert_eq!(spread(&logs, 45, &none).unwrap(), [45, 0, 0]);
        let spread_of_many = spread(&logs, 110, &none).unwrap();
        assert!(spread_of_many[0].abs_diff(70) <= 1, "{spread_of_many:?}");
        assert!(spread_of_many[1].abs_diff(spread_of_many[2]) <= 1, "{spread_of_many:?}");
        // Earlier partitions count too, as long as they have no records.
        let before = logs.place(45, HashMap::new).unwrap();
        let promised = Held { partitions: 45, promised_bytes: 45 * logs.promise(0) };
        let held = HashMap::from([(before[0], promised)]);
        let later = spread(&logs, 30, &held).unwrap();
        assert!(later.iter().all(|count| count.abs_diff(10) <= 4), "{later:?}");
        assert_eq!((logs.promise(GIB / 4), logs.promise(3 * GIB)), (3 * GIB / 4, 0));
        logs.close();
        // Beyond the free space, partitions are still spread evenly.
        let (logs, _) = open(&[("a", 2 * GIB), ("b", 2 * GIB)]);
        assert!(spread(&logs, 1001, &none).unwrap()[0].abs_diff(500) <= 1);
        logs.close();
    }

    #[test]
    fn a_stopped_or_full_log_takes_no_partition() {
        let none = HashMap::new();
        // The second log has room for its first segment and for no other.
        let (logs, disks) = open(&[("a", 100 * GIB), ("b", 24 << 20)]);
        assert_eq!(spread(&logs, 3, &none).unwrap(), [3, 0]);
        disks[0].fail_write_after(0, Fault::Forever);
        disks[0].fail_sync_after(0, Fault::Forever);
        let ill = &logs.all()[0];
        ill.log.delete(&ill.log.stream(model::StreamId(1)), None);
        while ill.failure().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(spread(&logs, 3, &none).unwrap(), [0, 3]);
        let full = &logs.all()[1];
        let mut admitted = Vec::new();
        loop {
            match full.log.admit(1 << 20) {
                Ok(admission) => admitted.push(admission),
                Err(AdmitError::Full) => break,
                Err(AdmitError::Busy) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        // Small appends still fit.
        admitted.extend(std::iter::from_fn(|| full.log.admit(1).ok()));
        assert!(full.log.is_full() && !ill.log.is_full());
        let error = spread(&logs, 1, &none).unwrap_err();
        assert!(error.starts_with("a: the log stopped taking appends: "), "{error}");
        assert!(error.ends_with("; b: the disk is full"), "{error}");
        drop(admitted);
        assert_eq!(spread(&logs, 1, &none).unwrap(), [0, 1]);
        logs.close();
    }
}
