//! A bucket with a bound on its requests and bytes a second, for a store or a network that others use as well, and for its
//! bill.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Bucket, BucketError, Listed, Put};

/// What a bound saves up while nothing is asked for.
const BURST: Duration = Duration::from_secs(1);

/// A bound on units a second.
#[derive(Debug)]
struct Bound {
    per_second: f64,
    /// When everything that was asked for is paid.
    paid: Mutex<Instant>,
}

impl Bound {
    /// `None` for no bound.
    fn new(per_second: u64) -> Option<Bound> {
        let paid = Instant::now().checked_sub(BURST).unwrap_or_else(Instant::now);
        (per_second > 0).then(|| Bound { per_second: per_second as f64, paid: Mutex::new(paid) })
    }

    /// Takes `units`; returns how long the caller has to wait before it uses them.
    fn take(&self, units: f64, now: Instant) -> Duration {
        let mut paid = self.paid.lock();
        let from = now.checked_sub(BURST).map_or(*paid, |oldest| (*paid).max(oldest));
        *paid = from + Duration::from_secs_f64(units / self.per_second);
        paid.saturating_duration_since(now)
    }
}

/// A bucket whose requests wait until the bounds allow them. The bytes of a read are known, and paid, only afterwards.
#[derive(Debug)]
pub struct PacedBucket {
    bucket: Arc<dyn Bucket>,
    requests: Option<Bound>,
    bytes: Option<Bound>,
}

impl PacedBucket {
    /// Bounds the requests to `bucket`, and the bytes that are sent and received together; 0 for no bound.
    pub fn new(bucket: Arc<dyn Bucket>, requests_per_second: u64, bytes_per_second: u64) -> PacedBucket {
        let (requests, bytes) = (Bound::new(requests_per_second), Bound::new(bytes_per_second));
        PacedBucket { bucket, requests, bytes }
    }

    fn wait(&self, bytes: usize) {
        let now = Instant::now();
        let requests = self.requests.as_ref().map(|bound| bound.take(1.0, now));
        let bytes = self.bytes.as_ref().map(|bound| bound.take(bytes as f64, now));
        let rest = requests.unwrap_or_default().max(bytes.unwrap_or_default());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}

impl Bucket for PacedBucket {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        self.wait(body.iter().map(Bytes::len).sum());
        self.bucket.put_if_absent(key, body)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        self.wait(0);
        let got = self.bucket.get(key, range)?;
        if let Some(bytes) = &self.bytes {
            // The next request waits for them.
            bytes.take(got.len() as f64, Instant::now());
        }
        Ok(got)
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        self.wait(0);
        self.bucket.length(key)
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        self.wait(0);
        self.bucket.list(prefix, after, most)
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.wait(0);
        self.bucket.delete(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimBucket;

    #[test]
    fn a_bound_saves_up_one_second_and_then_makes_callers_wait_in_turn() {
        let bound = Bound::new(10).unwrap();
        let begun = Instant::now();
        let waits: Vec<u128> = (0..14).map(|_| bound.take(1.0, begun).as_millis()).collect();
        assert!(waits[..9].iter().all(|wait| *wait <= 1), "{waits:?}");
        assert!(waits[10] >= 90 && waits[13] >= 390 && waits[13] <= 410, "{waits:?}");
        let later = begun + Duration::from_secs(60);
        assert_eq!(bound.take(5.0, later), Duration::ZERO);
        assert!(Bound::new(0).is_none());
    }

    #[test]
    fn requests_and_bytes_pass_no_faster_than_allowed() {
        let bucket = PacedBucket::new(Arc::new(SimBucket::new(1)), 0, 1_000_000);
        let begun = Instant::now();
        let body = [Bytes::from(vec![1; 400_000])];
        for n in 0..4 {
            bucket.put_if_absent(&format!("{n}"), &body).unwrap();
        }
        // 1.6 MB, of which one second's worth was saved up.
        assert!(begun.elapsed() >= Duration::from_millis(590), "{:?}", begun.elapsed());
        let bucket = PacedBucket::new(Arc::new(SimBucket::new(1)), 100, 0);
        let begun = Instant::now();
        (0..120).for_each(|n| drop(bucket.length(&format!("{n}"))));
        assert!(begun.elapsed() >= Duration::from_millis(190), "{:?}", begun.elapsed());
    }
}
