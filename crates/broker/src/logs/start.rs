//! Opens the logs of a server's log directories when it starts, and finds out which of them are missing.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disk::Disk;
use meta::{Change, MetaError, Store};
use model::Offset;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use storage::Log;
use uuid::Uuid;

use super::open_log::{OpenLog, Opening, segment_bytes};
use super::{Logs, Lost};
use crate::image::stored;

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

/// A log in the metadata.
#[derive(Serialize, Deserialize)]
struct LogRecord {
    /// The directory in which the log was last seen.
    path: String,
}

/// What is found in the log directories.
#[derive(Default)]
struct Found {
    open: Vec<Arc<OpenLog>>,
    lost: Vec<Arc<Lost>>,
    gone: HashMap<Uuid, Arc<Lost>>,
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
        let mut logs = Found::default();
        // Existing logs are opened first. Only then is it known which empty directories should hold a log.
        let mut without = Vec::new();
        for directory in directories {
            match look(&directory) {
                Ok(Some((disk, true))) => match opening.open(&directory.path, disk, share, None) {
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
            match begun.map(|disk| opening.open(&directory.path, disk, share, None)) {
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
        let Found { open, lost, gone } = logs;
        let segment_bytes = segment_bytes(&opening.config);
        let (open, outdated) = (RwLock::new(open.into()), AtomicBool::new(false));
        Ok(Logs { open, lost, gone, first, moving: false, outdated, segment_bytes })
    }
}

impl Found {
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
