//! The connections of a simulated process to etcd and to the object store.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use meta::{Change, Compare, Events, LeaseId, Listing, MetaError, Store, Value, Watch, WatchError};
use objects::{Bucket, BucketError, Listed, Put};
use parking_lot::Mutex;

use super::tasks::pause;

/// What is wrong with the connections of a process.
#[derive(Debug)]
pub struct Weather {
    rng: Mutex<fastrand::Rng>,
    pub no_etcd: AtomicBool,
    pub no_store: AtomicBool,
    /// How many of 256 requests to etcd fail.
    pub failures: AtomicU8,
}

impl Weather {
    pub fn new(seed: u64) -> Weather {
        Weather {
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            no_etcd: AtomicBool::new(false),
            no_store: AtomicBool::new(false),
            failures: AtomicU8::new(0),
        }
    }

    /// No request fails any more.
    pub fn clear(&self) {
        self.no_etcd.store(false, Ordering::Relaxed);
        self.no_store.store(false, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Whether something fails now.
    pub fn strikes(&self) -> bool {
        self.rng.lock().u8(..) < self.failures.load(Ordering::Relaxed)
    }

    /// Whether a request to etcd gets there.
    fn reaches_etcd(&self) -> Result<(), MetaError> {
        if self.no_etcd.load(Ordering::Relaxed) || self.strikes() { Err(lost("the request")) } else { Ok(()) }
    }

    /// The answer of etcd, unless it is lost.
    fn answer<T>(&self, answer: Result<T, MetaError>) -> Result<T, MetaError> {
        if self.strikes() { Err(lost("the answer")) } else { answer }
    }
}

fn lost(what: &str) -> MetaError {
    MetaError::Store(format!("{what} is lost").into())
}

/// The way to etcd.
#[derive(Debug)]
pub struct ToEtcd {
    pub store: Arc<dyn Store>,
    pub weather: Arc<Weather>,
}

impl Store for ToEtcd {
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError> {
        self.weather.reaches_etcd()?;
        self.store.find(key)
    }

    fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.weather.reaches_etcd()?;
        self.store.list(prefix)
    }

    fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError> {
        self.weather.reaches_etcd()?;
        self.weather.answer(self.store.commit(compares, changes))
    }

    fn watch(&self, prefix: &str, after: u64) -> Box<dyn Watch> {
        Box::new(Watched { watch: self.store.watch(prefix, after), weather: self.weather.clone() })
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.weather.reaches_etcd()?;
        self.weather.answer(self.store.grant(ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.weather.reaches_etcd()?;
        self.weather.answer(self.store.keep_alive(lease))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.weather.reaches_etcd()?;
        self.weather.answer(self.store.revoke(lease))
    }
}

struct Watched {
    watch: Box<dyn Watch>,
    weather: Arc<Weather>,
}

impl Watch for Watched {
    fn next(&mut self, patience: Duration) -> Result<Events, WatchError> {
        self.weather.reaches_etcd()?;
        if self.weather.strikes() {
            return Err(WatchError::Compacted(0));
        }
        self.watch.next(patience)
    }
}

/// The way to the object store.
#[derive(Debug)]
pub struct ToStore {
    pub bucket: Arc<dyn Bucket>,
    pub weather: Arc<Weather>,
}

impl ToStore {
    /// Waits for the caller's turn. Others may do anything meanwhile.
    fn reach(&self) -> Result<(), BucketError> {
        pause(Duration::ZERO);
        if self.weather.no_store.load(Ordering::Relaxed) {
            return Err(BucketError::Unclear("the request is lost".into()));
        }
        Ok(())
    }
}

impl Bucket for ToStore {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        self.reach()?;
        self.bucket.put_if_absent(key, body)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        self.reach()?;
        self.bucket.get(key, range)
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        self.reach()?;
        self.bucket.length(key)
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        self.reach()?;
        self.bucket.list(prefix, after, most)
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.reach()?;
        self.bucket.delete(key)
    }
}
