//! Restores a lost data directory: the metadata from its newest snapshot, and each log from its objects.
//!
//! The metadata is written last, under its name only once it is complete. A directory with metadata is therefore whole.
//! Ids that the lost server may have handed out after the snapshot are not handed out again: stream ids and producer ids
//! go on a long way behind the highest known ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use disk::Disk;
use meta::{Change, Embedded, MetaError, Store, Value};
use model::StreamId;
use objects::{Bucket, BucketError};
use sasl::scram::Credential;
use storage::epochs::Epochs;
use storage::examine::Finding;
use storage::restore::{Asking, KnownBounds, Restore, RestoredLog, RestoredStream, stored_batches};
use uuid::Uuid;
use wire::records::records;

use super::{DecodeError, Snapshot, Stored, all, read};
use crate::coordinator::producer_ids::{NEXT_BLOCK_KEY, PRODUCERS_APART};
use crate::groups::{GroupRecord, OffsetKey, decode_record};
use crate::image::acl::Acl;
use crate::image::records::{ClientQuota, TopicRecord};
use crate::image::{Record, stored};
use crate::internal::RECORDS_BYTES_MAX;
use crate::logs::{FIRST_LOG_KEY, LOG_PREFIX, path_record};
use crate::topics::{NEXT_STREAM_KEY, OFFSETS_TOPIC, STREAMS_APART};
use crate::transactions::INDEX_STREAM;

/// The metadata while it is being written; worthless.
const UNFINISHED: &str = "meta.restoring";

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The object store cannot be asked.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// There is nothing to restore.
    #[error("the bucket has no metadata snapshot{0}")]
    NoSnapshot(String),
    /// It is not said which cluster to restore.
    #[error("the bucket has snapshots of several clusters: {}; choose one of them", .0.join(", "))]
    Clusters(Vec<String>),
    /// All snapshots are damaged, or one is of another version.
    #[error("the metadata snapshot {0} cannot be used: {1}")]
    Snapshot(String, DecodeError),
    /// A log cannot be restored.
    #[error("the log {0}: {1}")]
    Log(Uuid, #[source] storage::restore::RestoreError),
    /// The metadata cannot be read or written.
    #[error("the metadata: {0}")]
    Meta(#[from] MetaError),
    /// The metadata cannot get its name.
    #[error("writing the metadata: {0}")]
    Local(#[from] io::Error),
}

/// The snapshot to restore from.
#[derive(Debug)]
pub struct Newest {
    /// The place of the snapshot.
    pub stored: Stored,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Newer snapshots that are damaged.
    pub passed_over: Vec<Stored>,
}

/// The ids of all clusters that have snapshots. `wait` is as in [`objects::patiently`].
pub fn clusters(
    bucket: &dyn Bucket,
    wait: impl FnMut(Duration, &BucketError) -> bool,
) -> Result<BTreeSet<String>, RestoreError> {
    Ok(all(bucket, wait)?.into_iter().map(|stored| stored.cluster_id).collect())
}

/// The newest snapshot of a cluster that is whole. The cluster may be left out if the bucket has only one. `wait` is as
/// in [`objects::patiently`].
pub fn newest(
    bucket: &dyn Bucket,
    cluster_id: Option<&str>,
    mut wait: impl FnMut(Duration, &BucketError) -> bool,
) -> Result<Newest, RestoreError> {
    let mut found = all(bucket, &mut wait)?;
    if let Some(wanted) = cluster_id {
        found.retain(|stored| stored.cluster_id == wanted);
    }
    let clusters: BTreeSet<&String> = found.iter().map(|stored| &stored.cluster_id).collect();
    if clusters.len() > 1 {
        return Err(RestoreError::Clusters(clusters.into_iter().cloned().collect()));
    }
    let mut passed_over = Vec::new();
    for stored in found.into_iter().rev() {
        match read(bucket, &stored, &mut wait) {
            Ok(Ok(snapshot)) => return Ok(Newest { stored, snapshot, passed_over }),
            // An older snapshot would lack what the newer version knows.
            Ok(Err(error @ DecodeError::Version(_))) => {
                return Err(RestoreError::Snapshot(stored.key, error));
            }
            Ok(Err(DecodeError::Damaged)) => passed_over.push(stored),
            // A server has deleted it since.
            Err(BucketError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match passed_over.into_iter().next() {
        Some(stored) => Err(RestoreError::Snapshot(stored.key, DecodeError::Damaged)),
        None => {
            let of = cluster_id.map_or(String::new(), |cluster| format!(" of the cluster {cluster}"));
            Err(RestoreError::NoSnapshot(of))
        }
    }
}

/// A log to restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogToRestore {
    /// Its id.
    pub id: Uuid,
    /// The directory in which it was, if it was open.
    pub path: Option<String>,
    /// The number of its partitions.
    pub partitions: usize,
}

impl Snapshot {
    fn value<'a>(&'a self, key: &str) -> Option<&'a [u8]> {
        self.entries.iter().find(|(other, _)| other == key).map(|(_, value)| &value[..])
    }

    /// The topics, by name.
    fn topics(&self) -> Result<BTreeMap<String, TopicRecord>, MetaError> {
        let mut topics = BTreeMap::new();
        for (key, value) in &self.entries {
            let Some(name) = key.strip_prefix(TopicRecord::PREFIX) else { continue };
            let record = TopicRecord::parse(name, value).map_err(|why| stored::unreadable(key, why))?;
            topics.insert(name.to_owned(), record);
        }
        Ok(topics)
    }

    /// The log that partitions without a log are in.
    fn first_log(&self) -> Result<Option<Uuid>, MetaError> {
        let Some(value) = self.value(FIRST_LOG_KEY) else { return Ok(None) };
        let text = String::from_utf8_lossy(value);
        text.parse().map(Some).map_err(|_| stored::unreadable(FIRST_LOG_KEY, "it is no id"))
    }

    fn number<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<Option<T>, MetaError> {
        let value = self.value(key).map(|bytes| Value { revision: 0, bytes: bytes.to_vec() });
        value.map(|value| stored::read(key, &value)).transpose()
    }

    /// The streams of each log.
    fn streams(&self) -> Result<BTreeMap<Uuid, Vec<StreamId>>, MetaError> {
        let first = self.first_log()?.unwrap_or(Uuid::nil());
        let mut streams: BTreeMap<Uuid, Vec<StreamId>> = BTreeMap::new();
        for record in self.topics()?.values() {
            for (stream, log) in record.places() {
                streams.entry(if log.is_nil() { first } else { log }).or_default().push(stream);
            }
        }
        Ok(streams)
    }

    /// The streams of one log that are in use, with their bounds if the log was open.
    pub fn streams_of(&self, log: Uuid) -> Result<HashMap<StreamId, Option<KnownBounds>>, MetaError> {
        let mut streams: HashMap<StreamId, Option<KnownBounds>> = HashMap::from([(INDEX_STREAM, None)]);
        streams.extend(self.streams()?.remove(&log).into_iter().flatten().map(|id| (id, None)));
        let known = self.logs.iter().filter(|known| known.id == log);
        for (id, bounds) in known.flat_map(|known| &known.streams) {
            streams.entry(*id).and_modify(|known| *known = Some(*bounds));
        }
        Ok(streams)
    }

    /// The first stream id that was never used.
    pub fn next_stream(&self) -> Result<StreamId, MetaError> {
        Ok(StreamId(self.number(NEXT_STREAM_KEY)?.unwrap_or(1)))
    }

    /// The topic and partition of each stream.
    pub fn stream_names(&self) -> Result<BTreeMap<StreamId, (String, i32)>, MetaError> {
        let mut names = BTreeMap::new();
        for (topic, record) in self.topics()? {
            for (partition, (stream, _)) in (0..).zip(record.places()) {
                names.insert(stream, (topic.clone(), partition));
            }
        }
        Ok(names)
    }

    /// The logs to restore: those that were open, and those that have partitions.
    pub fn logs(&self) -> Result<Vec<LogToRestore>, MetaError> {
        let mut streams = self.streams()?;
        let mut logs: Vec<LogToRestore> = Vec::new();
        for log in &self.logs {
            let partitions = streams.remove(&log.id).map_or(0, |streams| streams.len());
            logs.push(LogToRestore { id: log.id, path: Some(log.path.clone()), partitions });
        }
        let rest = streams.into_iter();
        logs.extend(rest.map(|(id, streams)| LogToRestore { id, path: None, partitions: streams.len() }));
        Ok(logs)
    }
}

/// A directory for a restored log.
#[derive(Debug)]
pub struct LogTarget {
    /// The log.
    pub id: Uuid,
    /// The directory, as the metadata names it.
    pub path: String,
    /// The directory.
    pub disk: Arc<dyn Disk>,
}

/// A restored partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredPartition {
    /// The topic.
    pub topic: String,
    /// Its index.
    pub index: i32,
    /// Its records.
    pub stream: RestoredStream,
}

/// What came back.
#[derive(Debug, Default)]
pub struct Restored {
    /// Each log with what was found of it.
    pub logs: Vec<(Uuid, RestoredLog)>,
    /// Topics.
    pub topics: usize,
    /// Partitions, by topic and index.
    pub partitions: Vec<RestoredPartition>,
    /// Users with a password.
    pub users: usize,
    /// ACLs.
    pub acls: usize,
    /// Entities with quotas.
    pub quotas: usize,
    /// Groups with committed offsets.
    pub groups: usize,
    /// Streams of topics that are younger than the snapshot. Their records are not restored.
    pub younger: Vec<(StreamId, RestoredStream)>,
}

impl Restored {
    /// All findings about objects.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.logs.iter().flat_map(|(_, log)| &log.findings)
    }
}

/// Restores the metadata into `directory`, and the logs of `snapshot` into their directories. Blocks.
///
/// All directories are empty, or hold what an earlier call for the same logs has left. `accept_loss` and `now_ms` are as
/// in [`Restore`].
pub fn restore(
    asking: Asking,
    snapshot: &Snapshot,
    directory: &Path,
    targets: &[LogTarget],
    (accept_loss, now_ms): (bool, i64),
) -> Result<Restored, RestoreError> {
    let mut logs = Vec::new();
    for target in targets {
        let failed = |error| RestoreError::Log(target.id, error);
        let removing =
            |error| failed(storage::restore::RestoreError::Local("removing a segment".into(), error));
        storage::restore::take_back(&*target.disk).map_err(removing)?;
        let wanted = snapshot.streams_of(target.id)?;
        let (log_id, streams) = (target.id.as_u128(), &wanted);
        let request =
            Restore { asking, log_id, epochs: Epochs::default(), streams, opens: false, accept_loss, now_ms };
        let log = storage::restore::restore(&target.disk, &request);
        logs.push((target.id, log.map_err(failed)?));
    }
    let groups = count_groups(asking.bucket, snapshot, targets)?;
    write_metadata(directory, &entries_of(snapshot, targets, &logs)?)?;
    report(snapshot, logs, groups)
}

/// The entries of the snapshot, changed so that no id is handed out twice.
fn entries_of(
    snapshot: &Snapshot,
    targets: &[LogTarget],
    logs: &[(Uuid, RestoredLog)],
) -> Result<BTreeMap<String, Vec<u8>>, RestoreError> {
    let mut entries: BTreeMap<String, Vec<u8>> = snapshot.entries.iter().cloned().collect();
    let json = |number: serde_json::Number| number.to_string().into_bytes();
    let last = logs.iter().filter_map(|(_, log)| log.last_stream).max();
    let streams = snapshot.next_stream()?.0.max(last.map_or(0, |last| last.0.saturating_add(1)));
    entries.insert(NEXT_STREAM_KEY.into(), json(streams.saturating_add(STREAMS_APART).into()));
    let last = logs.iter().filter_map(|(_, log)| log.last_producer).max();
    let producers = snapshot.number::<i64>(NEXT_BLOCK_KEY)?.unwrap_or(0);
    let producers = producers.max(last.map_or(0, |last| last.saturating_add(1)));
    entries.insert(NEXT_BLOCK_KEY.into(), json(producers.saturating_add_unsigned(PRODUCERS_APART).into()));
    for target in targets {
        entries.insert(format!("{LOG_PREFIX}{}", target.id), path_record(&target.path));
    }
    Ok(entries)
}

/// Writes the metadata, and gives it its name once it is complete and durable.
fn write_metadata(directory: &Path, entries: &BTreeMap<String, Vec<u8>>) -> Result<(), RestoreError> {
    let unfinished = directory.join(UNFINISHED);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let store = Embedded::open(&unfinished)?;
    let changes: Vec<Change> =
        entries.iter().map(|(key, value)| Change::put(key.as_str(), value.as_slice())).collect();
    store.commit(&[], &changes)?;
    drop(store);
    fs::rename(&unfinished, directory.join(stored::META_FILE))?;
    Ok(fs::File::open(directory)?.sync_all()?)
}

/// The number of groups with committed offsets in the objects.
fn count_groups(
    bucket: &Arc<dyn Bucket>,
    snapshot: &Snapshot,
    targets: &[LogTarget],
) -> Result<usize, RestoreError> {
    let topics = snapshot.topics()?;
    let Some(offsets) = topics.get(OFFSETS_TOPIC) else { return Ok(0) };
    let streams: HashSet<StreamId> = offsets.places().map(|(stream, _)| stream).collect();
    // Of several records for one key, the one with the highest offset counts.
    let mut newest: HashMap<(String, OffsetKey), (i64, bool)> = HashMap::new();
    for target in targets {
        let read = stored_batches(&target.disk, bucket, &streams, |_, header, batch| {
            let Ok((_, all)) = records(&batch, RECORDS_BYTES_MAX) else { return };
            for record in all.flatten().filter(|_| !header.is_control()) {
                let offset = header.base_offset.0 + i64::from(record.offset_delta);
                let Some(decoded) = record.key.map(|key| decode_record(&key, record.value.as_deref())) else {
                    continue;
                };
                if let Ok(GroupRecord::Offset { group, key, value }) = decoded {
                    let known = newest.entry((group, key)).or_insert((offset, value.is_some()));
                    if known.0 <= offset {
                        *known = (offset, value.is_some());
                    }
                }
            }
        });
        read.map_err(|error| RestoreError::Log(target.id, error.into()))?;
    }
    let committed = newest.into_iter().filter(|(_, (_, committed))| *committed);
    Ok(committed.map(|((group, _), _)| group).collect::<HashSet<String>>().len())
}

fn report(
    snapshot: &Snapshot,
    mut logs: Vec<(Uuid, RestoredLog)>,
    groups: usize,
) -> Result<Restored, RestoreError> {
    let topics = snapshot.topics()?;
    let first = snapshot.first_log()?.unwrap_or(Uuid::nil());
    let mut partitions = Vec::new();
    for (name, record) in &topics {
        for (index, (stream, log)) in (0..).zip(record.places()) {
            let log = if log.is_nil() { first } else { log };
            let log = logs.iter_mut().find(|(id, _)| *id == log);
            let stream = log.and_then(|(_, log)| log.streams.remove(&stream)).unwrap_or_default();
            partitions.push(RestoredPartition { topic: name.clone(), index, stream });
        }
    }
    let next_stream = snapshot.next_stream()?;
    let others = logs.iter().flat_map(|(_, log)| &log.others);
    let mut younger: Vec<_> =
        others.filter(|(id, _)| **id >= next_stream).map(|(id, stream)| (*id, stream.clone())).collect();
    younger.sort_unstable_by_key(|(id, _)| *id);
    let count = |prefix: &str| snapshot.entries.iter().filter(|(key, _)| key.starts_with(prefix)).count();
    let credentials = snapshot.entries.iter().filter_map(|(key, _)| key.strip_prefix(Credential::PREFIX));
    let users: HashSet<&str> = credentials.filter_map(|name| Some(name.split_once('/')?.1)).collect();
    Ok(Restored {
        topics: topics.len(),
        partitions,
        users: users.len(),
        acls: count(Acl::PREFIX),
        quotas: count(ClientQuota::PREFIX),
        groups,
        younger,
        logs,
    })
}
