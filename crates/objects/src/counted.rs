//! A bucket that counts its requests by kind, for metrics and for the bill of the store.
//!
//! Every attempt counts, whatever its outcome: stores charge for most of the failed ones, too.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::{Bucket, BucketError, Listed, Put};

/// The kind of a request, as stores charge for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RequestKind {
    /// An object is put.
    Put,
    /// Bytes of an object are read.
    Get,
    /// The length of an object is asked for.
    Head,
    /// Objects are listed. A long list may take the store several requests, which count as one here.
    List,
    /// An object is deleted.
    Delete,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [RequestKind; 5] =
        [RequestKind::Put, RequestKind::Get, RequestKind::Head, RequestKind::List, RequestKind::Delete];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            RequestKind::Put => "put",
            RequestKind::Get => "get",
            RequestKind::Head => "head",
            RequestKind::List => "list",
            RequestKind::Delete => "delete",
        }
    }
}

/// The requests of one kind so far.
#[derive(Debug, Default)]
struct Count {
    requests: AtomicU64,
    failed: AtomicU64,
}

/// A bucket with counters.
#[derive(Debug)]
pub struct CountedBucket {
    bucket: Arc<dyn Bucket>,
    counts: [Count; RequestKind::ALL.len()],
    put_bytes: AtomicU64,
    got_bytes: AtomicU64,
}

impl CountedBucket {
    /// Counts the requests to `bucket` from now on.
    pub fn new(bucket: Arc<dyn Bucket>) -> CountedBucket {
        CountedBucket {
            bucket,
            counts: Default::default(),
            put_bytes: AtomicU64::new(0),
            got_bytes: AtomicU64::new(0),
        }
    }

    /// The number of requests of a kind, failed ones included.
    pub fn requests(&self, kind: RequestKind) -> u64 {
        self.counts[kind as usize].requests.load(Ordering::Relaxed)
    }

    /// The number of requests of a kind that failed. A missing object is no failure.
    pub fn failed(&self, kind: RequestKind) -> u64 {
        self.counts[kind as usize].failed.load(Ordering::Relaxed)
    }

    /// Bytes that were sent, with those of failed puts.
    pub fn put_bytes(&self) -> u64 {
        self.put_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were received.
    pub fn got_bytes(&self) -> u64 {
        self.got_bytes.load(Ordering::Relaxed)
    }

    fn count<T>(&self, kind: RequestKind, result: Result<T, BucketError>) -> Result<T, BucketError> {
        let count = &self.counts[kind as usize];
        count.requests.fetch_add(1, Ordering::Relaxed);
        if matches!(result, Err(BucketError::Unclear(_) | BucketError::Refused(_))) {
            count.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

impl Bucket for CountedBucket {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        let bytes: usize = body.iter().map(Bytes::len).sum();
        self.put_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.count(RequestKind::Put, self.bucket.put_if_absent(key, body))
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        let got = self.count(RequestKind::Get, self.bucket.get(key, range));
        let bytes = got.as_ref().map_or(0, Bytes::len);
        self.got_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        got
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        self.count(RequestKind::Head, self.bucket.length(key))
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        self.count(RequestKind::List, self.bucket.list(prefix, after, most))
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.count(RequestKind::Delete, self.bucket.delete(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimBucket;

    #[test]
    fn requests_are_counted_by_kind_with_their_bytes() {
        let store = SimBucket::new(1);
        let bucket = CountedBucket::new(Arc::new(store.clone()));
        let body = [Bytes::from_static(b"abc"), Bytes::from_static(b"de")];
        assert_eq!(bucket.put_if_absent("a", &body).unwrap(), Put::Stored);
        assert_eq!(bucket.get("a", 1..4).unwrap(), "bcd");
        assert!(bucket.get("b", 1..4).is_err());
        assert_eq!(bucket.length("a").unwrap(), 5);
        assert_eq!(bucket.list("", "", 9).unwrap().len(), 1);
        bucket.delete("a").unwrap();
        store.set_away(true);
        assert!(bucket.put_if_absent("a", &body).is_err());
        let counts = RequestKind::ALL.map(|kind| (kind.name(), bucket.requests(kind), bucket.failed(kind)));
        assert_eq!(counts, [("put", 2, 1), ("get", 2, 0), ("head", 1, 0), ("list", 1, 0), ("delete", 1, 0)]);
        assert_eq!((bucket.put_bytes(), bucket.got_bytes()), (10, 3));
    }
}
