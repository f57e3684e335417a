//! The bucket of a command: opened, asked with patience, and several objects at a time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use objects::{Bucket, BucketError};
use storage::restore::Asking;
use tokio::runtime::Runtime;

use super::Misuse;
use super::progress::{Progress, Unit};

/// Requests at the same time. More would not be faster: objects are described by short reads.
const THREADS: usize = 16;
/// A command gives up once it should wait longer than this for a store: after a quarter of a minute or more.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// A bucket, and the threads of its requests.
pub struct Store {
    pub bucket: Arc<dyn Bucket>,
    _runtime: Runtime,
}

impl Store {
    /// Opens the bucket at `address`, which is as in `object.store`.
    pub fn open(address: &str) -> anyhow::Result<Store> {
        if !address.contains("://") && !Path::new(address).is_dir() {
            let shapes = "s3://NAME/PREFIX, gs://NAME/PREFIX, az://NAME/PREFIX or a directory";
            bail!(Misuse(format!("there is no bucket {address}: it is {shapes}")));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("the runtime could not be started")?;
        let bucket = clouds::open(address, &BTreeMap::new(), runtime.handle().clone())?;
        Ok(Store { bucket, _runtime: runtime })
    }

    /// Calls `ask` with the way to ask for many objects. `doing` names the work for who watches its progress.
    pub fn asking<T>(&self, doing: &'static str, ask: impl FnOnce(Asking) -> T) -> T {
        let shown = Progress::new(Unit::Objects);
        let progress = |done: usize, all: usize| shown.show(doing, done as u64, all as u64);
        ask(Asking { bucket: &self.bucket, threads: THREADS, pause: &pause, progress: &progress })
    }
}

/// Waits before a request is repeated. Returns false to give up.
pub fn pause(time: Duration, error: &BucketError) -> bool {
    let goes_on = time < PAUSE_MAX;
    if goes_on {
        if time > Duration::from_secs(1) {
            eprintln!("mainstem: {error}; trying again");
        }
        std::thread::sleep(time);
    }
    goes_on
}
