//! What waits to be stored in the object store: which streams have records for it, how many bytes, and since when.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use objects::Bucket;
use parking_lot::{Condvar, Mutex};

use crate::stream::Stream;

/// Counters of what was stored.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub objects: AtomicU64,
    pub bytes: AtomicU64,
    pub deleted: AtomicU64,
}

/// The log's side of an object store.
pub(crate) struct Tier {
    pub bucket: Option<Arc<dyn Bucket>>,
    pub counters: Counters,
    object_bytes: u64,
    news: Mutex<News>,
    wake: Condvar,
}

#[derive(Default)]
struct News {
    /// Streams with records to store, each once.
    waiting: Vec<Arc<Stream>>,
    /// Bytes that were appended to them since the last object.
    bytes: u64,
    /// When the oldest of these records was synced, in nanoseconds of the log's clock.
    since: Option<u64>,
    stop: bool,
}

impl Tier {
    pub fn new(bucket: Option<Arc<dyn Bucket>>, object_bytes: usize) -> Tier {
        Tier {
            bucket,
            counters: Counters::default(),
            object_bytes: object_bytes as u64,
            news: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    /// Notes that a tiered stream has `bytes` more of synced records.
    pub fn grew(&self, stream: &Arc<Stream>, bytes: u64, now_ns: u64) {
        let mut news = self.news.lock();
        if !stream.note_awaits_upload(true) {
            news.waiting.push(stream.clone());
        }
        let since = *news.since.get_or_insert(now_ns);
        news.bytes += bytes;
        if news.bytes >= self.object_bytes || since == now_ns {
            self.wake.notify_one();
        }
    }

    /// Takes the waiting streams, if they have enough records for an object, or have them since `before`. `None` is
    /// before the clock began.
    pub fn take_waiting(&self, before: Option<u64>) -> Vec<Arc<Stream>> {
        let mut news = self.news.lock();
        let waited = news.since.zip(before).is_some_and(|(since, before)| since <= before);
        let due = news.bytes >= self.object_bytes || waited;
        if !due {
            return Vec::new();
        }
        (news.bytes, news.since) = (0, None);
        std::mem::take(&mut news.waiting)
    }

    /// Bytes of records that wait.
    pub fn waiting_bytes(&self) -> u64 {
        self.news.lock().bytes
    }

    /// Waits until enough waits for an object, for at most `time`. Returns false once the log is closed.
    pub fn wait(&self, time: Duration) -> bool {
        let mut news = self.news.lock();
        if !news.stop && news.bytes < self.object_bytes {
            self.wake.wait_for(&mut news, time);
        }
        !news.stop
    }

    /// Waits for `time`, however much waits. Returns false once the log is closed.
    pub fn rest(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut news = self.news.lock();
        while !news.stop && !self.wake.wait_until(&mut news, until).timed_out() {}
        !news.stop
    }

    pub fn stop(&self) {
        self.news.lock().stop = true;
        self.wake.notify_all();
    }

    pub fn stored(&self, bytes: u64) {
        self.counters.objects.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
