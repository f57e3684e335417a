//! The settings and the clock of a log.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::epochs::Owned;

/// Time for the log. The caller hands it in, so that tests control it.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
    /// Nanoseconds of a clock that never goes back.
    fn nanos(&self) -> u64;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock(std::time::Instant);

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock(std::time::Instant::now())
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Settings that may change while logs are open, and hold for all of them.
#[derive(Debug)]
pub struct Tuning {
    producer_expiry_ms: AtomicI64,
    cleaner_bytes_per_second: AtomicU64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { producer_expiry_ms: (24 * 3600 * 1000).into(), cleaner_bytes_per_second: 0.into() }
    }
}

impl Tuning {
    /// Idempotent producers are forgotten after this many milliseconds without an append (`producer.id.expiration.ms`).
    pub fn producer_expiry_ms(&self) -> i64 {
        self.producer_expiry_ms.load(Ordering::Relaxed)
    }

    /// Sets it for all logs.
    pub fn set_producer_expiry_ms(&self, ms: i64) {
        self.producer_expiry_ms.store(ms, Ordering::Relaxed);
    }

    /// Upper bound of the bytes a second that the cleaner and compaction read and write
    /// (`log.cleaner.io.max.bytes.per.second`); 0 for no limit.
    pub fn cleaner_bytes_per_second(&self) -> u64 {
        self.cleaner_bytes_per_second.load(Ordering::Relaxed)
    }

    /// Sets it for all logs.
    pub fn set_cleaner_bytes_per_second(&self, bytes: u64) {
        self.cleaner_bytes_per_second.store(bytes, Ordering::Relaxed);
    }
}

/// Settings of a log; values, not components.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length in bytes of a full-size segment: a multiple of 1 MiB, from 16 MiB to below 4 GiB.
    pub segment_bytes: u64,
    /// Bound of the tail cache in bytes.
    pub tail_cache_bytes: usize,
    /// The tail cache keeps this many bytes whatever their age.
    pub tail_kept_bytes: usize,
    /// The tail cache drops bytes beyond that after this many milliseconds.
    pub tail_cache_ms: u64,
    /// Bound in bytes of the cache of regions read back from disk.
    pub region_cache_bytes: usize,
    /// Bytes of buffers that readers may hold in addition to these two caches.
    pub readers_bytes: usize,
    /// Bound in bytes of the cache of sealed batch indexes.
    pub index_cache_bytes: usize,
    /// Settings that may change while the log is open.
    pub tuning: Arc<Tuning>,
    /// Bytes of the disk that stay free: no new segment uses them.
    pub reserve_bytes: u64,
    /// The id of a new log; an existing log keeps its own. It is random, because it seeds numbers that clients must not
    /// guess.
    pub log_id: u128,
    /// A segment is cleaned only after little of it has died for this many milliseconds. Records that expire soon are
    /// not worth copying.
    pub cleaner_patience_ms: i64,
    /// Threads for reads that miss the caches. Their number is the depth of such reads.
    pub cold_threads: usize,
    /// Threads for reads from the object store, if there is one.
    pub object_threads: usize,
    /// Bytes of records in one object. A larger batch has an object of its own.
    pub object_bytes: usize,
    /// Records go to the object store after this many milliseconds at the latest, if the store answers.
    pub upload_interval_ms: u64,
    /// Like `upload_interval_ms`, for the records of diskless streams, which are not visible before.
    pub diskless_interval_ms: u64,
    /// Bytes of such records that are put as an object without waiting any longer.
    pub diskless_bytes: usize,
    /// Appends to diskless streams are refused while this many bytes of them wait for the store.
    pub diskless_backlog_bytes: u64,
    /// Small objects are merged into objects of up to so many bytes.
    pub merged_bytes: usize,
    /// Objects that are put at the same time.
    pub object_puts: usize,
    /// An object is deleted this many milliseconds after the last of its records.
    pub object_grace_ms: u64,
    /// The largest batch takes this part of a segment (1 / `batch_part`).
    pub batch_part: u64,
    /// The epoch in which this process owns the log, of a log with epochs.
    pub owned: Option<Owned>,
    /// A fault in the log itself.
    #[cfg(any(test, feature = "stepped"))]
    pub mutation: Option<Mutation>,
}

/// A fault that a test plants in the log, to see that the tests notice it.
#[cfg(any(test, feature = "stepped"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Records of diskless streams are acknowledged and visible before the store has them.
    VisibleWhenSynced,
    /// An object whose put has an unknown outcome is deleted, and then put again.
    DeletesUnknown,
    /// A key that is taken counts as the success of an earlier attempt, unread.
    TrustsTaken,
    /// Objects have records without those of the leading streams before them.
    IgnoresLeading,
    /// A dead object goes although those behind it do not say yet that they count without it.
    DeletesLinks,
    /// A dead object goes although it alone records the bounds of a stream.
    ForgetsBounds,
    /// The copy set is told that blocks are stored whose objects are still on their way.
    ToldTooEarly,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 1024 * 1024 * 1024,
            tail_cache_bytes: 128 * 1024 * 1024,
            tail_kept_bytes: 128 * 1024 * 1024,
            tail_cache_ms: 2000,
            region_cache_bytes: 64 * 1024 * 1024,
            readers_bytes: 64 * 1024 * 1024,
            index_cache_bytes: 32 * 1024 * 1024,
            tuning: Arc::default(),
            reserve_bytes: 256 * 1024 * 1024,
            log_id: 0,
            cleaner_patience_ms: 120_000,
            cold_threads: 2,
            object_threads: 8,
            object_bytes: 32 * 1024 * 1024,
            upload_interval_ms: 10_000,
            diskless_interval_ms: 250,
            diskless_bytes: 8 * 1024 * 1024,
            diskless_backlog_bytes: 1024 * 1024 * 1024,
            merged_bytes: 64 * 1024 * 1024,
            object_puts: 4,
            object_grace_ms: 60_000,
            batch_part: 8,
            owned: None,
            #[cfg(any(test, feature = "stepped"))]
            mutation: None,
        }
    }
}

impl Options {
    /// The largest batch that a log with these options takes.
    pub fn batch_bytes_max(&self) -> usize {
        usize::try_from(self.segment_bytes / self.batch_part).expect("segments are smaller than 4 GiB")
    }
}
