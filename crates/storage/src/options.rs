//! What a log is made with: its settings and its clock.

/// Time as the log needs it; handed in, so that tests decide what time it is.
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

/// Settings of a log; values, not components.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length in bytes of a full-size segment: a multiple of 1 MiB, from 16 MiB to below 4 GiB.
    pub segment_bytes: u64,
    /// Bound of the tail cache in bytes.
    pub tail_cache_bytes: usize,
    /// Of the tail cache, so many bytes are kept whatever their age.
    pub tail_kept_bytes: usize,
    /// What is more than that goes after so many milliseconds.
    pub tail_cache_ms: u64,
    /// Bound in bytes of the cache of regions read back from disk.
    pub region_cache_bytes: usize,
    /// Bytes of buffers that readers may hold beside what these two caches may.
    pub readers_bytes: usize,
    /// Bound in bytes of the cache of sealed batch indexes.
    pub index_cache_bytes: usize,
    /// Idempotent producers that did not append for so long are forgotten (`producer.id.expiration.ms`).
    pub producer_expiry_ms: i64,
    /// Bytes of the disk left free: no new segment is made that would use them.
    pub reserve_bytes: u64,
    /// Identifies a new log; an existing one keeps its own. Random, for it also seeds what a client must not guess.
    pub log_id: u128,
    /// Bytes a second that the cleaner and compaction read and write at most (`log.cleaner.io.max.bytes.per.second`);
    /// 0 for no limit.
    pub cleaner_bytes_per_second: u64,
    /// A segment is cleaned when little of it died for so many milliseconds: what is about to expire is not worth copying.
    pub cleaner_patience_ms: i64,
    /// Threads for reads that miss the caches, and so the depth of such reads.
    pub cold_threads: usize,
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
            producer_expiry_ms: 24 * 3600 * 1000,
            reserve_bytes: 256 * 1024 * 1024,
            log_id: 0,
            cleaner_bytes_per_second: 0,
            cleaner_patience_ms: 120_000,
            cold_threads: 2,
        }
    }
}

impl Options {
    /// The largest batch a log with these options takes: an eighth of a segment.
    pub fn batch_bytes_max(&self) -> usize {
        usize::try_from(self.segment_bytes / 8).expect("segments are smaller than 4 GiB")
    }
}
