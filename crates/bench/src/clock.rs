//! The time in a run: monotonic nanoseconds since its start, and the wall clock for the timestamps of records.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use model::Timestamp;

/// Nanoseconds since the run began.
pub type Nanos = u64;

/// The clock of one run, shared by producers and consumers. A latency is the difference of two of its readings.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    wall_ms: i64,
}

impl Clock {
    pub fn start() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { origin: Instant::now(), wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX) }
    }

    pub fn now(&self) -> Nanos {
        u64::try_from(self.origin.elapsed().as_nanos()).expect("a run is shorter than 500 years")
    }

    /// The wall clock at a reading of this clock.
    pub fn timestamp(&self, at: Nanos) -> Timestamp {
        Timestamp(self.wall_ms + i64::try_from(at / 1_000_000).unwrap_or(0))
    }
}

/// Converts to nanoseconds. The value saturates at more than 500 years.
pub fn nanos(duration: std::time::Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
