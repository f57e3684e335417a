//! Compaction (`cleanup.policy=compact`): chooses the partitions that are due and compacts them.
//!
//! It first gathers the newest offset of each key from the records written since the last compaction, in bounded
//! memory. Then the log copies the whole partition through [`filter::Filter`], which drops every record with a newer
//! one. The log performs the copy and makes it safe ([`storage::Log::compact`]).
//!
//! Kafka never compacts the newest segment of a partition. Here all partitions share segments, so the amount of new
//! data counts instead: new data of less than a segment waits until it is older than `segment.ms`.

pub mod filter;
pub mod keys;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use model::batch::HEADER_BYTES;
use model::{BatchHeader, Offset, StreamId, Timestamp};
use parking_lot::Mutex;
use storage::{
    CompactError, Compaction, Level, Log, ReadError, ReadRequest, RewriteError, RewriteReport, Rewriter,
    Rewritten, Stream,
};
use wire::{Keyed, VisitKeys, visit_keys};

use self::filter::{DECOMPRESSED_BYTES_MAX, Filter, Gone, Transactions};
use self::keys::{KeyHasher, Keys};
use crate::logs::Logs;
use crate::partition::Partition;
use crate::partition::log::LocalLog;
use crate::resources::walks::Walks;
use crate::settings::resource::ResourceConfigs;
use crate::settings::topic::{CompactionConfig, TopicConfig};
use crate::topics::Topics;

/// Bytes per read while keys are gathered.
const READ_BYTES: usize = 1024 * 1024;
/// New bytes of a partition that make it due, however large `segment.bytes` is.
const DIRTY_BYTES_ENOUGH: u64 = 64 * 1024 * 1024;
/// The same for internal topics. Loading one of their partitions reads it as a whole, so they are kept shorter.
const INTERNAL_DIRTY_BYTES_ENOUGH: u64 = 1024 * 1024;
/// Pause after a partition could not be compacted.
const REST_AFTER_FAILURE_MS: i64 = 600_000;
/// Pause after the object store did not take what is left of a partition.
const REST_WITHOUT_STORE_MS: i64 = 60_000;

/// The state that is kept between two runs.
#[derive(Debug)]
pub struct Compactor {
    topics: Arc<Topics>,
    logs: Arc<Logs>,
    configs: Arc<ResourceConfigs>,
    walks: Arc<Walks>,
    running: Mutex<()>,
    /// Partitions that failed, each with the end of its pause.
    failed: Mutex<HashMap<StreamId, i64>>,
}

/// Keeps all records: the local copy is compacted already.
struct KeepAll;

impl Rewriter for KeepAll {
    fn rewrite(&mut self, _: &BatchHeader, _: &Bytes) -> Result<Rewritten, String> {
        Ok(Rewritten::Keep)
    }
}

/// A partition that is due.
#[derive(Debug)]
struct Due {
    partition: Arc<Partition>,
    stream: Arc<Stream>,
    config: CompactionConfig,
    /// The last compaction has covered the records below this offset.
    clean_until: Offset,
    /// Records from this offset on are too young.
    until: Offset,
    dirty_ratio: f64,
}

impl Compactor {
    /// Creates a compactor of these topics.
    pub fn new(
        topics: Arc<Topics>,
        logs: Arc<Logs>,
        configs: Arc<ResourceConfigs>,
        walks: Arc<Walks>,
    ) -> Compactor {
        Compactor { topics, logs, configs, walks, running: Mutex::default(), failed: Mutex::default() }
    }

    /// Compacts the partitions that are due at `now_ms`, in milliseconds since the Unix epoch. Blocks.
    pub fn run(&self, now_ms: i64) {
        // If another run is still in progress, there is nothing to do.
        let Some(_running) = self.running.try_lock() else { return };
        self.failed.lock().retain(|_, until| *until > now_ms);
        for log in self.logs.all().iter() {
            let due = self.due(&log.log, now_ms);
            let in_objects = |due: &Due| due.stream.level().waits();
            let (in_objects, local): (Vec<Due>, Vec<Due>) = due.into_iter().partition(in_objects);
            // What the object store has of these is made as short as the local copy.
            let is_tiered = |due: &&Due| due.stream.level() == Level::Tiered;
            let stored: Vec<Arc<Stream>> =
                local.iter().filter(is_tiered).map(|due| due.stream.clone()).collect();
            self.compact(&log.log, local, now_ms, Log::compact);
            self.compact(&log.log, in_objects, now_ms, Log::compact_stored);
            self.store_again(&log.log, stored);
        }
    }

    /// Replaces what the object store has of compacted streams by what their local copies have left.
    fn store_again(&self, log: &Log, streams: Vec<Arc<Stream>>) {
        let job = |stream: Arc<Stream>| {
            let until = stream.stored_cut(stream.compacted());
            (until > Offset::ZERO).then(|| Compaction { stream, until, rewriter: Box::new(KeepAll) as _ })
        };
        if let Err(error) = log.compact_stored(&mut streams.into_iter().filter_map(job))
            && !log.is_closing()
        {
            tracing::warn!(%error, "the object store keeps records that compaction has removed, until the next compaction");
        }
    }

    /// The partitions in `log` that are due, those with the largest share of new data first.
    fn due(&self, log: &Arc<Log>, now_ms: i64) -> Vec<Due> {
        let mut due = Vec::new();
        for topic in self.topics.all() {
            let config = topic.config();
            let Some(rules) = &config.compaction else { continue };
            let dirty_enough = match topic.is_internal() {
                true => INTERNAL_DIRTY_BYTES_ENOUGH,
                false => config.segment_bytes.min(DIRTY_BYTES_ENOUGH),
            };
            let record = topic.record();
            for partition in topic.partitions().iter() {
                if record.moves.contains_key(&partition.index) {
                    // Its copy may have records of a transaction, and not the marker yet.
                    continue;
                }
                let Some(LocalLog { stream, .. }) = partition
                    .log()
                    .ok()
                    .and_then(|held| held.local())
                    .filter(|held| Arc::ptr_eq(&held.log.log, log))
                else {
                    continue;
                };
                if self.failed.lock().contains_key(&stream.id()) {
                    continue;
                }
                match look(log, partition, stream, (&config, dirty_enough), rules, now_ms) {
                    Ok(found) => due.extend(found),
                    Err(error) => self.fail(partition, stream.id(), &error.to_string(), now_ms),
                }
            }
        }
        due.sort_by(|a, b| b.dirty_ratio.total_cmp(&a.dirty_ratio));
        due
    }

    fn compact(
        &self,
        log: &Log,
        due: Vec<Due>,
        now_ms: i64,
        by: impl Fn(&Log, &mut dyn Iterator<Item = Compaction<'static>>) -> Result<RewriteReport, CompactError>,
    ) {
        let partitions: HashMap<_, _> =
            due.iter().map(|due| (due.stream.id(), due.partition.clone())).collect();
        let mut due = due.into_iter();
        let dedupe_bytes = usize::try_from(self.configs.now().cleaner_dedupe_bytes).unwrap_or(usize::MAX);
        loop {
            let mut found = Vec::new();
            let mut jobs = due.by_ref().filter_map(|due| {
                if log.is_closing() || due.partition.is_deleted() {
                    return None;
                }
                match prepare(log, &self.walks, &due, dedupe_bytes, now_ms) {
                    Ok((job, gone)) => {
                        found.push((due.partition, gone));
                        Some(job)
                    }
                    Err(why) => {
                        self.fail(&due.partition, due.stream.id(), &why, now_ms);
                        None
                    }
                }
            });
            let compacted = by(log, &mut jobs);
            drop(jobs);
            // The next compaction removes the markers of these transactions.
            for (partition, gone) in found {
                partition.forget_aborted(&gone.lock(), now_ms);
            }
            match compacted {
                Ok(report) => {
                    if report.segments > 0 {
                        tracing::info!(
                            read_bytes = report.read_bytes,
                            written_bytes = report.written_bytes,
                            "partitions were compacted"
                        );
                    }
                    return;
                }
                Err(_) if log.is_closing() => return,
                Err(CompactError { stream, error: RewriteError::StoreAway }) => {
                    tracing::warn!("compaction waits for the object store; it is tried again in a minute");
                    self.failed.lock().insert(stream, now_ms.saturating_add(REST_WITHOUT_STORE_MS));
                }
                Err(error) => match partitions.get(&error.stream) {
                    Some(partition) => self.fail(partition, error.stream, &error.error.to_string(), now_ms),
                    None => return tracing::error!(%error, "compaction failed"),
                },
            }
        }
    }

    fn fail(&self, partition: &Partition, stream: StreamId, why: &str, now_ms: i64) {
        tracing::error!(
            topic = %partition.topic,
            partition = partition.index,
            why,
            "compaction of the partition failed; it is left alone for ten minutes"
        );
        self.failed.lock().insert(stream, now_ms.saturating_add(REST_AFTER_FAILURE_MS));
    }
}

/// Whether a partition is due, by Kafka's rules (`LogCleanerManager.grabFilthiestCompactedLog`).
fn look(
    log: &Log,
    partition: &Arc<Partition>,
    stream: &Arc<Stream>,
    (topic, dirty_enough): (&TopicConfig, u64),
    rules: &CompactionConfig,
    now_ms: i64,
) -> Result<Option<Due>, ReadError> {
    let (bounds, clean_until) = (stream.bounds(), stream.compacted());
    let mut until = partition.last_stable_offset(bounds.committed);
    match stream.level() {
        Level::Local => {}
        // A record must not leave the object store before the newer one of its key is there.
        Level::Tiered => until = until.min(bounds.stored.unwrap_or_default()),
        // Objects are replaced by whole ranges.
        Level::Diskless | Level::Replicated => until = stream.stored_cut(until),
    }
    if rules.min_lag_ms > 0
        && let Some(young) =
            log.first_at_or_after(stream, Timestamp(now_ms.saturating_sub(rules.min_lag_ms) + 1))?
    {
        until = until.min(young.base_offset);
    }
    if until <= clean_until {
        return Ok(None);
    }
    let clean = log.bytes_between(stream, bounds.start, clean_until)?;
    let dirty = log.bytes_between(stream, clean_until, until)?;
    let Some(oldest) = log.batch_from(stream, clean_until)? else { return Ok(None) };
    let age_ms = now_ms.saturating_sub(oldest.max_timestamp.0);
    let dirty_ratio = dirty as f64 / (clean + dirty).max(1) as f64;
    let rolled = dirty >= dirty_enough || age_ms >= topic.segment_ms;
    let overdue = age_ms > rules.max_lag_ms;
    let due = overdue || (rolled && dirty_ratio > rules.min_dirty_ratio);
    Ok(due.then(|| Due {
        partition: partition.clone(),
        stream: stream.clone(),
        config: rules.clone(),
        clean_until,
        until,
        dirty_ratio,
    }))
}

/// Gathers the keys of the new records and prepares the filter.
fn prepare(
    log: &Log,
    walks: &Arc<Walks>,
    due: &Due,
    dedupe_bytes: usize,
    now_ms: i64,
) -> Result<(Compaction<'static>, Gone), String> {
    let stream = due.stream.clone();
    let mut keys = Keys::new(dedupe_bytes);
    let until = gather(log, walks, due, &mut keys)?;
    if until <= due.clean_until {
        return Err("the keys of one batch do not fit log.cleaner.dedupe.buffer.size".into());
    }
    tracing::debug!(topic = %due.partition.topic, partition = due.partition.index, keys = keys.len(), "compacting");
    let aborted = due.partition.aborted_between(stream.bounds().start, until);
    let transactions = Transactions::new(aborted);
    let gone = transactions.gone();
    let filter = Filter {
        keys,
        known_until: until,
        walks: walks.clone(),
        transactions,
        producers: stream.producers(),
        now_ms,
        delete_retention_ms: due.config.delete_retention_ms,
    };
    Ok((Compaction { stream, until, rewriter: Box::new(filter) }, gone))
}

/// Puts the keys of the new records into `keys`. Returns the offset up to which they fit. Records of aborted
/// transactions replace nothing.
fn gather(log: &Log, walks: &Walks, due: &Due, keys: &mut Keys) -> Result<Offset, String> {
    let (stream, from, until) = (&due.stream, due.clean_until, due.until);
    let mut aborted: HashMap<i64, Vec<(Offset, Offset)>> = HashMap::new();
    for of in due.partition.aborted_between(from, until) {
        aborted.entry(of.producer_id).or_default().push((of.first_offset, of.last_offset));
    }
    let is_aborted = |header: &BatchHeader| {
        header.is_transactional()
            && aborted.get(&header.producer_id).is_some_and(|all| {
                all.iter().any(|(first, last)| (*first..*last).contains(&header.base_offset))
            })
    };
    let mut at = from;
    while at < until {
        if log.is_closing() {
            return Err("the log is closed".into());
        }
        let request = ReadRequest {
            stream: stream.clone(),
            from: at,
            until,
            bytes_max: READ_BYTES,
            at_least_one: true,
        };
        let read = log.read_blocking(&request).map_err(|error| error.to_string())?;
        let Some(next) = read.next else { break };
        let mut bytes = bytes::BytesMut::with_capacity(read.bytes);
        read.chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
        let mut bytes = bytes.freeze();
        while !bytes.is_empty() {
            let header = BatchHeader::parse(&bytes).map_err(|error| error.to_string())?;
            let batch = bytes.split_to(header.total_bytes);
            if header.is_control() || header.next_offset() <= from || is_aborted(&header) {
                continue;
            }
            let packed = &batch[HEADER_BYTES..];
            let fitted = walks.run_blocking(DECOMPRESSED_BYTES_MAX, |limits| {
                let empty = keys.hasher();
                let mut gathered =
                    Gathered { keys, base: header.base_offset, key: empty.clone(), empty, full: false };
                visit_keys(&header, packed, limits, &mut gathered)?;
                Ok(!gathered.full)
            });
            if !fitted.map_err(|error| error.to_string())? {
                return Ok(header.base_offset);
            }
        }
        at = next;
    }
    Ok(until)
}

/// Adds the keys of one batch to those of the others.
struct Gathered<'a> {
    keys: &'a mut Keys,
    base: Offset,
    key: KeyHasher,
    empty: KeyHasher,
    /// Whether a key found no room.
    full: bool,
}

impl VisitKeys for Gathered<'_> {
    fn piece(&mut self, piece: &[u8]) {
        self.key.write(piece);
    }

    fn record(&mut self, record: Keyed) -> bool {
        let key = std::mem::replace(&mut self.key, self.empty.clone()).finish();
        let offset = self.base + i64::from(record.offset_delta);
        self.full = record.has_key && !self.keys.put(key, offset);
        !self.full
    }
}
