//! The counters and latencies of a run. Each thread of an engine has its own histograms, so that recording does not
//! contend. A sampler swaps them out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::clock::Nanos;
use crate::result::{LatencySeries, LatencySummary, PERCENTILES};

/// Longer than any run. Nanoseconds have three significant digits.
const LATENCY_MAX: Nanos = 24 * 3600 * 1_000_000_000;

/// A histogram of latencies in nanoseconds. Zeros are ordinary values.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("the bounds are in order")
}

/// The three latencies.
pub struct Latencies {
    pub publish: Histogram<u64>,
    pub delay: Histogram<u64>,
    pub end_to_end: Histogram<u64>,
}

impl Latencies {
    pub fn new() -> Latencies {
        Latencies { publish: histogram(), delay: histogram(), end_to_end: histogram() }
    }

    fn all(&mut self) -> [&mut Histogram<u64>; 3] {
        [&mut self.publish, &mut self.delay, &mut self.end_to_end]
    }

    /// Takes over the values of `other`, and leaves it empty.
    pub fn drain(&mut self, other: &mut Latencies) {
        for (mine, theirs) in self.all().into_iter().zip(other.all()) {
            mine.add(&*theirs).expect("all have the same bounds");
            theirs.reset();
        }
    }
}

/// Counts a latency. Values above a day count as a day.
pub fn record(histogram: &mut Histogram<u64>, latency: Nanos) {
    histogram.saturating_record(latency);
}

/// Totals since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub published: u64,
    pub published_bytes: u64,
    /// Bytes of the batches as they were sent. 0 if the engine does not know them.
    pub published_batch_bytes: u64,
    pub failed: u64,
    pub received: u64,
    pub received_bytes: u64,
}

impl std::ops::Sub for Totals {
    type Output = Totals;

    fn sub(self, earlier: Totals) -> Totals {
        Totals {
            published: self.published - earlier.published,
            published_bytes: self.published_bytes - earlier.published_bytes,
            published_batch_bytes: self.published_batch_bytes - earlier.published_batch_bytes,
            failed: self.failed - earlier.failed,
            received: self.received - earlier.received,
            received_bytes: self.received_bytes - earlier.received_bytes,
        }
    }
}

/// The statistics that all threads of a run share.
#[derive(Default)]
pub struct Stats {
    published: AtomicU64,
    published_bytes: AtomicU64,
    published_batch_bytes: AtomicU64,
    failed: AtomicU64,
    resent: AtomicBool,
    received: AtomicU64,
    received_bytes: AtomicU64,
    latencies: Mutex<Vec<std::sync::Arc<Mutex<Latencies>>>>,
}

impl Stats {
    /// Histograms for one more thread.
    pub fn latencies(&self) -> std::sync::Arc<Mutex<Latencies>> {
        let latencies = std::sync::Arc::new(Mutex::new(Latencies::new()));
        self.latencies.lock().push(latencies.clone());
        latencies
    }

    pub fn published(&self, messages: u64, bytes: u64) {
        self.published.fetch_add(messages, Relaxed);
        self.published_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts the bytes of a batch, whose messages count apart.
    pub fn published_batch(&self, bytes: u64) {
        self.published_batch_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn failed(&self, messages: u64) {
        self.failed.fetch_add(messages, Relaxed);
    }

    /// Notes that a batch was refused and sent again without a sequence number. The server may have it twice.
    pub fn resent(&self) {
        self.resent.store(true, Relaxed);
    }

    /// Whether the server may have batches without a known acknowledgement.
    pub fn is_uncertain(&self) -> bool {
        self.resent.load(Relaxed) || self.failed.load(Relaxed) > 0
    }

    pub fn received(&self, messages: u64, bytes: u64) {
        self.received.fetch_add(messages, Relaxed);
        self.received_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn totals(&self) -> Totals {
        Totals {
            published: self.published.load(Relaxed),
            published_bytes: self.published_bytes.load(Relaxed),
            published_batch_bytes: self.published_batch_bytes.load(Relaxed),
            failed: self.failed.load(Relaxed),
            received: self.received.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
        }
    }

    /// Moves everything recorded since the last call into `into`.
    pub fn take(&self, into: &mut Latencies) {
        for latencies in &*self.latencies.lock() {
            into.drain(&mut latencies.lock());
        }
    }
}

/// The summary in microseconds.
pub fn summary(histogram: &Histogram<u64>) -> LatencySummary {
    if histogram.is_empty() {
        return LatencySummary::default();
    }
    let micros = |nanos: u64| nanos as f64 / 1e3;
    LatencySummary {
        avg: histogram.mean() / 1e3,
        at: PERCENTILES.map(|(percentile, _)| micros(histogram.value_at_percentile(percentile))),
        max: micros(histogram.max()),
    }
}

/// Adds the values of the whole test to a series.
pub fn aggregate(series: &mut LatencySeries, histogram: &Histogram<u64>) {
    series.aggregated = summary(histogram);
    let points = histogram.iter_quantiles(5).map(|value| {
        let percentile = value.quantile_iterated_to() * 100.0;
        (percentile, value.value_iterated_to() as f64 / 1e3)
    });
    series.quantiles = points.collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_start_anew() {
        let stats = Stats::default();
        let (one, two) = (stats.latencies(), stats.latencies());
        record(&mut one.lock().publish, 0);
        record(&mut one.lock().publish, 1_000_000);
        record(&mut two.lock().publish, 3_000_000);
        let mut all = Latencies::new();
        stats.take(&mut all);
        stats.take(&mut all);
        assert_eq!((all.publish.len(), all.end_to_end.len()), (3, 0));
        let summary = summary(&all.publish);
        assert!((summary.avg - 1333.3).abs() < 2.0 && (summary.max - 3000.0).abs() < 3.0, "{summary:?}");
        assert!((summary.at[0] - 1000.0).abs() < 1.0, "{summary:?}");
        let mut series = LatencySeries::default();
        aggregate(&mut series, &all.publish);
        assert!(series.quantiles.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
        assert_eq!(series.quantiles.last().map(|(percentile, _)| *percentile), Some(100.0));
    }

    #[test]
    fn totals_are_counted() {
        let stats = Stats::default();
        stats.published(3, 30);
        let before = stats.totals();
        stats.published(2, 20);
        stats.published_batch(25);
        stats.received(1, 10);
        stats.failed(4);
        let since = stats.totals() - before;
        assert_eq!(
            since,
            Totals {
                published: 2,
                published_bytes: 20,
                published_batch_bytes: 25,
                failed: 4,
                received: 1,
                received_bytes: 10
            }
        );
    }
}
