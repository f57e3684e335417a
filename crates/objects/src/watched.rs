//! A bucket that knows for how long it has not answered.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Bucket, BucketError, Listed, Put};

/// The time since some moment. It never goes back.
pub type Now = Box<dyn Fn() -> Duration + Send + Sync>;

/// A bucket that is watched. It counts as away from the begin of a request until one succeeds. A missing object is an answer.
pub struct WatchedBucket {
    bucket: Arc<dyn Bucket>,
    now: Now,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    requests: usize,
    /// The begin of the oldest request that may still succeed, or has failed, with no success after it.
    since: Option<Duration>,
}

impl fmt::Debug for WatchedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedBucket").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl WatchedBucket {
    /// Watches the requests to `bucket` from now on.
    pub fn new(bucket: Arc<dyn Bucket>, now: Now) -> WatchedBucket {
        WatchedBucket { bucket, now, waiting: Mutex::default() }
    }

    /// For how long no request has succeeded, although one was waiting. Zero if the last one has succeeded.
    pub fn away_for(&self) -> Duration {
        self.waiting.lock().since.map_or(Duration::ZERO, |since| (self.now)().saturating_sub(since))
    }

    fn watch<T>(&self, request: impl FnOnce() -> Result<T, BucketError>) -> Result<T, BucketError> {
        {
            let mut waiting = self.waiting.lock();
            waiting.requests += 1;
            waiting.since.get_or_insert_with(&self.now);
        }
        let result = request();
        let mut waiting = self.waiting.lock();
        waiting.requests -= 1;
        if matches!(result, Ok(_) | Err(BucketError::NotFound(_))) {
            waiting.since = (waiting.requests > 0).then(&self.now);
        }
        result
    }
}

impl Bucket for WatchedBucket {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        self.watch(|| self.bucket.put_if_absent(key, body))
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        self.watch(|| self.bucket.get(key, range))
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        self.watch(|| self.bucket.length(key))
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        self.watch(|| self.bucket.list(prefix, after, most))
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.watch(|| self.bucket.delete(key))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::SimBucket;

    #[test]
    fn a_bucket_is_away_from_the_first_request_without_an_answer_until_one_succeeds() {
        let (store, clock) = (SimBucket::new(1), Arc::new(AtomicU64::new(0)));
        let seconds = clock.clone();
        let now: Now = Box::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        let bucket = WatchedBucket::new(Arc::new(store.clone()), now);
        let away = |at: u64| {
            clock.store(at, Ordering::Relaxed);
            bucket.away_for().as_secs()
        };
        assert_eq!(away(10), 0);
        store.set_away(true);
        assert!(bucket.length("a").is_err());
        assert_eq!(away(15), 5);
        assert!(bucket.list("", "", 1).is_err());
        assert_eq!(away(17), 7);
        store.set_away(false);
        assert!(matches!(bucket.length("a"), Err(BucketError::NotFound(_))));
        assert_eq!(away(20), 0);
        // A request that waits, while others are answered and after that.
        let ended = bucket.watch(|| {
            assert_eq!(away(24), 4);
            bucket.put_if_absent("a", &[]).unwrap();
            assert_eq!(away(30), 6);
            Err::<(), _>(BucketError::Refused("wrong key".into()))
        });
        assert!(ended.is_err());
        assert_eq!(away(31), 7);
    }
}
