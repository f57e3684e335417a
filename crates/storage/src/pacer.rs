//! The pacer: makes background work rest for appends. The cleaner, compaction and the preparer share the device with
//! appends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::shared::Shared;

/// While appends come in, copying and preparing rest this many times as long as the last piece of work took, and at
/// most `REST_MAX`. A quarter of the device is enough for them.
pub(crate) const REST_FACTOR: u32 = 3;
pub(crate) const REST_MAX: Duration = Duration::from_millis(20);
/// Upper bound of the cleaner's rest after a failure.
pub(crate) const REST_AFTER_FAILURE_MAX: Duration = Duration::from_secs(300);

/// The log is closed: a copy in progress may be dropped.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Rests for appends, and reports when the log is closed.
pub(crate) struct Pacer {
    shared: Arc<Shared>,
    synced: u64,
    paced: bool,
}

impl Pacer {
    pub fn new(shared: Arc<Shared>, paced: bool) -> Pacer {
        let synced = shared.synced.load(Ordering::Relaxed);
        Pacer { shared, synced, paced }
    }

    /// How long to rest after a piece of work that took `took`. Zero if no appends come, or if room is short.
    pub fn rest_after(&mut self, took: Duration, at_most: Duration) -> Duration {
        let synced = self.shared.synced.load(Ordering::Relaxed);
        let appends = std::mem::replace(&mut self.synced, synced) != synced;
        let room = &self.shared.queue.room;
        if appends && !room.is_refusing() && !room.out_of_space() {
            (took * REST_FACTOR).min(at_most)
        } else {
            Duration::ZERO
        }
    }

    /// Rests after a piece of work on `bytes`.
    pub fn did(&mut self, bytes: usize, begun: Instant) -> Result<(), Stopped> {
        if self.shared.cleaner_stops() {
            return Err(Stopped);
        }
        if !self.paced {
            return Ok(());
        }
        let rest = self.rest_after(begun.elapsed(), REST_MAX);
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        // The limit may be raised, and the log closed, while a small one is kept to.
        while let Some(rest) = self.due(bytes, begun) {
            if self.shared.cleaner_stops() {
                return Err(Stopped);
            }
            std::thread::sleep(rest.min(REST_MAX));
        }
        Ok(())
    }

    /// How long a piece of work on `bytes` has to last still, by the limit in force.
    fn due(&self, bytes: usize, begun: Instant) -> Option<Duration> {
        let limit = self.shared.options.tuning.cleaner_bytes_per_second();
        if limit == 0 {
            return None;
        }
        let due = Duration::from_secs_f64(bytes as f64 / limit as f64);
        Some(due.saturating_sub(begun.elapsed())).filter(|rest| !rest.is_zero())
    }
}
