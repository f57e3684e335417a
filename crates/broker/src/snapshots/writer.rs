//! Writes metadata snapshots into the bucket: after a change, and not more often than the settings say.
//!
//! One snapshot is under way at a time. A put without a clear outcome is repeated with the same key and bytes. A key that
//! is taken by other bytes belongs to an earlier life of this server: the snapshot then gets the next number. The newest
//! snapshots stay, older ones are deleted. A server with a copy of another one's data directory writes none: a restore
//! would take its metadata for that of the records in the bucket.
//!
//! All of this blocks, so the caller has a thread that may.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use meta::MetaError;
use objects::{Bucket, BucketError, Patience, Put, list_all};
use parking_lot::Mutex;
use storage::restore::KnownBounds;

use super::{LogBounds, Snapshot, key_of, number_of, prefix_of};
use crate::image::Metadata;
use crate::image::records::is_of_processes;
use crate::logs::Logs;
use crate::resources::seldom::Seldom;

/// Snapshots that stay. The newest one is read; the others are there in case it is damaged.
const KEPT: usize = 5;
/// A problem is logged so often.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Changes of the metadata within this time go into one snapshot.
const CHANGES_TOGETHER: Duration = Duration::from_secs(1);

/// Why no snapshot was written.
#[derive(Debug, thiserror::Error)]
enum SnapshotError {
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Writes the snapshots of one broker.
#[derive(Debug)]
pub struct SnapshotWriter {
    bucket: Arc<dyn Bucket>,
    metadata: Arc<Metadata>,
    logs: Arc<Logs>,
    cluster_id: String,
    interval: Duration,
    state: Mutex<State>,
    tell: Seldom,
    written: AtomicU64,
    taken_ms: AtomicI64,
}

/// What a snapshot says: the revision, and a hash of the bounds.
type Content = (u64, u64);

#[derive(Debug, Default)]
struct State {
    /// The numbers of the snapshots in the bucket; `None` until they were listed.
    there: Option<BTreeSet<u32>>,
    /// What the newest snapshot says.
    last: Option<Content>,
    written: Option<Instant>,
    looked: Option<Instant>,
    /// A snapshot that may or may not be in the bucket.
    unsettled: Option<Unsettled>,
    patience: Patience,
    rest_until: Option<Instant>,
}

#[derive(Debug)]
struct Unsettled {
    number: u32,
    bytes: Bytes,
    content: Content,
    taken_ms: i64,
}

impl SnapshotWriter {
    /// A writer that writes a snapshot within a second after a change of the metadata, and at most one in `interval`
    /// while only the bounds of streams move.
    pub fn new(
        bucket: Arc<dyn Bucket>,
        metadata: Arc<Metadata>,
        logs: Arc<Logs>,
        cluster_id: &str,
        interval: Duration,
    ) -> SnapshotWriter {
        SnapshotWriter {
            bucket,
            metadata,
            logs,
            cluster_id: cluster_id.to_owned(),
            interval,
            state: Mutex::default(),
            tell: Seldom::every(TELL_EVERY),
            written: AtomicU64::new(0),
            taken_ms: AtomicI64::new(0),
        }
    }

    /// Snapshots that were written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// When the newest of them was taken, in milliseconds since the Unix epoch; 0 if none was written.
    pub fn taken_ms(&self) -> i64 {
        self.taken_ms.load(Ordering::Relaxed)
    }

    /// Writes a snapshot, if one is due. Makes few requests, so that a store that is away does not hold the caller for
    /// long. Blocks.
    pub fn turn(&self, now_ms: i64) {
        if self.is_fenced() {
            return;
        }
        let mut state = self.state.lock();
        if state.rest_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if state.unsettled.is_none() && !self.is_due(&state) {
            return;
        }
        self.attempt(&mut state, now_ms);
    }

    /// Writes a last snapshot, if the newest one says anything else than the logs and the metadata now. Tries once.
    /// Blocks.
    pub fn finish(&self, now_ms: i64) {
        if self.is_fenced() {
            return;
        }
        let mut state = self.state.lock();
        if state.unsettled.is_some() && !self.attempt(&mut state, now_ms) {
            return;
        }
        self.attempt(&mut state, now_ms);
    }

    /// Whether another server writes objects of these logs.
    fn is_fenced(&self) -> bool {
        self.logs.all().iter().any(|log| log.log.is_fenced())
    }

    fn is_due(&self, state: &State) -> bool {
        let within = |at: Option<Instant>, time: Duration| at.is_some_and(|at| at.elapsed() < time);
        // Records of a topic that no snapshot knows do not come back. Topics change seldom, and records all the time.
        if state.last.is_none_or(|(revision, _)| self.metadata.image().revision != revision) {
            return !within(state.written, self.interval.min(CHANGES_TOGETHER));
        }
        // Looking at all bounds costs more than at the revision.
        !within(state.written, self.interval) && !within(state.looked, self.interval)
    }

    /// Returns false after a failure.
    fn attempt(&self, state: &mut State, now_ms: i64) -> bool {
        match self.step(state, now_ms) {
            Ok(()) => {
                (state.patience, state.rest_until) = (Patience::default(), None);
                true
            }
            Err(problem) => {
                state.rest_until = Some(Instant::now() + state.patience.pause());
                if self.tell.is_due() {
                    tracing::warn!(
                        %problem,
                        "the metadata does not go to the object store: a restore would not know its last changes; check \
                         the store, the credentials and the network"
                    );
                }
                false
            }
        }
    }

    fn step(&self, state: &mut State, now_ms: i64) -> Result<(), SnapshotError> {
        let highest = match &state.there {
            Some(there) => there.last().copied(),
            None => {
                let listed = list_all(&*self.bucket, &prefix_of(&self.cluster_id), "", |_, _| false)?;
                let there: BTreeSet<u32> =
                    listed.iter().filter_map(|object| number_of(&object.key)).collect();
                state.there.insert(there).last().copied()
            }
        };
        if state.unsettled.is_none() {
            state.looked = Some(Instant::now());
            let snapshot = self.take(now_ms)?;
            let content = (snapshot.revision, hash_of(&snapshot.logs));
            if state.last == Some(content) {
                return Ok(());
            }
            let number = highest.unwrap_or(0) + 1;
            let bytes = Bytes::from(snapshot.encode());
            state.unsettled = Some(Unsettled { number, bytes, content, taken_ms: now_ms });
        }
        while let Some(unsettled) = &mut state.unsettled {
            let key = key_of(&self.cluster_id, unsettled.number);
            let stored = match self.bucket.put_if_absent(&key, std::slice::from_ref(&unsettled.bytes))? {
                Put::Stored => true,
                // A request of this very put may have landed, or one of an earlier life.
                Put::Exists => {
                    let bytes = unsettled.bytes.len() as u64;
                    let there = self.bucket.get(&key, 0..bytes + 1).map_err(|error| match error {
                        BucketError::NotFound(key) => {
                            BucketError::Unclear(format!("{key} is said to exist, and is not there yet"))
                        }
                        error => error,
                    })?;
                    there == unsettled.bytes
                }
            };
            state.there.get_or_insert_default().insert(unsettled.number);
            if !stored {
                unsettled.number += 1;
                continue;
            }
            (state.last, state.written) = (Some(unsettled.content), Some(Instant::now()));
            self.written.fetch_add(1, Ordering::Relaxed);
            self.taken_ms.store(unsettled.taken_ms, Ordering::Relaxed);
            state.unsettled = None;
        }
        self.delete_old(state);
        Ok(())
    }

    /// Deletes old snapshots. What fails is tried again after the next snapshot.
    fn delete_old(&self, state: &mut State) {
        let Some(there) = &mut state.there else { return };
        while there.len() > KEPT
            && let Some(oldest) = there.first().copied()
        {
            if let Err(problem) = self.bucket.delete(&key_of(&self.cluster_id, oldest)) {
                if self.tell.is_due() {
                    tracing::warn!(%problem, "an old metadata snapshot cannot be deleted from the object store");
                }
                return;
            }
            there.remove(&oldest);
        }
    }

    /// The metadata and the bounds now.
    fn take(&self, now_ms: i64) -> Result<Snapshot, MetaError> {
        let listing = self.metadata.store().list("")?;
        let entries = listing.entries.into_iter().filter(|(key, _)| !is_of_processes(key));
        let entries = entries.map(|(key, value)| (key, value.bytes)).collect();
        let open = self.logs.all();
        let logs = open.iter().map(|log| {
            let mut streams: Vec<_> = log
                .log
                .streams()
                .iter()
                .map(|stream| {
                    let bounds = stream.bounds();
                    let known =
                        KnownBounds { start: bounds.start, next: bounds.committed, stored: bounds.stored };
                    (stream.id(), known)
                })
                .collect();
            streams.sort_unstable_by_key(|(id, _)| *id);
            LogBounds { id: log.id, path: log.path.clone(), streams }
        });
        Ok(Snapshot {
            cluster_id: self.cluster_id.clone(),
            taken_ms: now_ms,
            revision: listing.revision,
            logs: logs.collect(),
            entries,
        })
    }
}

fn hash_of(logs: &[LogBounds]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for LogBounds { id, path: _, streams } in logs {
        id.hash(&mut hasher);
        for (stream, KnownBounds { start, next, stored }) in streams {
            (stream, start, next, stored).hash(&mut hasher);
        }
    }
    hasher.finish()
}
