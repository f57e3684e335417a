//! A bucket in memory that behaves as badly as a real one may, and repeats its behaviour for the same seed.
//!
//! A request may land though its answer is lost, land only many requests later, or be refused before or after it
//! landed. The bucket has no clock and makes no threads: a seed and the sequence of calls decide everything. It keeps
//! what real stores promise: a key's content is set once, and what was stored stays until it is deleted.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Bucket, BucketError, Listed, Put};

/// How often each fault strikes, in parts of 256 requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The request is refused before it takes effect (503, "slow down").
    pub before: u8,
    /// The request takes effect, and its answer is lost.
    pub after: u8,
    /// The answer is lost, and a put or a deletion takes effect up to [`LATE_MAX`] requests later.
    pub late: u8,
    /// A conflict with a request in progress (409) is answered as "exists", though no object is there yet: the request
    /// before it lands later.
    pub conflict: u8,
}

impl Faults {
    /// A store that has a bad day.
    pub const MANY: Faults = Faults { before: 40, after: 24, late: 16, conflict: 8 };
}

/// The latest time for a late request, counted in requests.
pub const LATE_MAX: u64 = 64;

/// Requests since the bucket was made, also those that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Puts.
    pub puts: u64,
    /// Reads and look-ups of a length.
    pub gets: u64,
    /// Lists.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
    /// Bytes of puts.
    pub put_bytes: u64,
    /// Bytes that reads returned.
    pub got_bytes: u64,
}

/// A handle to a simulated bucket; clones share it.
#[derive(Clone, Debug)]
pub struct SimBucket(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    faults: Faults,
    away: bool,
    overwrites: bool,
    objects: BTreeMap<String, (Bytes, i64)>,
    /// Requests that land at these times.
    late: Vec<(u64, Late)>,
    now: u64,
    requests: Requests,
}

#[derive(Debug)]
enum Late {
    Put(String, Bytes),
    Delete(String),
}

impl SimBucket {
    /// An empty bucket without faults.
    pub fn new(seed: u64) -> SimBucket {
        SimBucket(Arc::new(Mutex::new(State {
            random: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
            away: false,
            overwrites: false,
            objects: BTreeMap::new(),
            late: Vec::new(),
            now: 0,
            requests: Requests::default(),
        })))
    }

    /// Sets how often faults strike from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Takes the store away: every request fails, and none takes effect. Late requests wait.
    pub fn set_away(&self, away: bool) {
        self.0.lock().away = away;
    }

    /// Makes every put overwrite what is there: a store without conditional writes, for tests of tests.
    pub fn set_overwrites(&self, overwrites: bool) {
        self.0.lock().overwrites = overwrites;
    }

    /// Lets all late requests land.
    pub fn settle(&self) {
        let mut state = self.0.lock();
        state.now = state.now.saturating_add(LATE_MAX);
        state.land();
    }

    /// The keys of all objects.
    pub fn keys(&self) -> Vec<String> {
        self.0.lock().objects.keys().cloned().collect()
    }

    /// The content of an object.
    pub fn content(&self, key: &str) -> Option<Bytes> {
        self.0.lock().objects.get(key).map(|(bytes, _)| bytes.clone())
    }

    /// Changes a bit of an object, as no store should.
    pub fn damage(&self, key: &str, at: usize) {
        if let Some((bytes, _)) = self.0.lock().objects.get_mut(key) {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            *bytes = damaged.into();
        }
    }

    /// Requests so far.
    pub fn requests(&self) -> Requests {
        self.0.lock().requests
    }
}

impl State {
    /// Begins a request. Fails if a fault strikes before it takes effect.
    fn begin(&mut self) -> Result<(), BucketError> {
        self.now += 1;
        if self.away {
            return Err(unclear("the store is away"));
        }
        self.land();
        if self.strikes(self.faults.before) { Err(unclear("slow down")) } else { Ok(()) }
    }

    fn strikes(&mut self, parts: u8) -> bool {
        self.random.u8(..) < parts
    }

    fn land(&mut self) {
        let now = self.now;
        let due: Vec<(u64, Late)> = self.late.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, late) in due {
            match late {
                Late::Put(key, bytes) => drop(self.store(key, bytes)),
                Late::Delete(key) => drop(self.objects.remove(&key)),
            }
        }
    }

    fn store(&mut self, key: String, bytes: Bytes) -> Put {
        if self.objects.contains_key(&key) && !self.overwrites {
            return Put::Exists;
        }
        let stored_ms = i64::try_from(self.now).unwrap_or(i64::MAX);
        self.objects.insert(key, (bytes, stored_ms));
        Put::Stored
    }

    fn later(&mut self, late: Late) -> BucketError {
        let at = self.now + self.random.u64(1..=LATE_MAX);
        self.late.push((at, late));
        unclear("timed out")
    }

    /// Ends a request that took effect.
    fn end<T>(&mut self, answer: T) -> Result<T, BucketError> {
        if self.strikes(self.faults.after) { Err(unclear("the answer was lost")) } else { Ok(answer) }
    }

    fn find(&self, key: &str) -> Result<Bytes, BucketError> {
        let found = self.objects.get(key);
        found.map(|(bytes, _)| bytes.clone()).ok_or_else(|| BucketError::NotFound(key.to_owned()))
    }
}

fn unclear(why: &str) -> BucketError {
    BucketError::Unclear(why.to_owned())
}

impl Bucket for SimBucket {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        let bytes = Bytes::from(body.concat());
        let mut state = self.0.lock();
        state.requests.puts += 1;
        state.requests.put_bytes += bytes.len() as u64;
        state.begin()?;
        let waits = state.late.iter().any(|(_, late)| matches!(late, Late::Put(of, _) if of == key));
        let conflict = state.faults.conflict;
        if waits && state.strikes(conflict) {
            return Ok(Put::Exists);
        }
        let late = state.faults.late;
        if state.strikes(late) {
            return Err(state.later(Late::Put(key.to_owned(), bytes)));
        }
        let put = state.store(key.to_owned(), bytes);
        state.end(put)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        let mut state = self.0.lock();
        state.requests.gets += 1;
        state.begin()?;
        let bytes = state.find(key)?;
        let within = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(bytes.len());
        let found = bytes.slice(within(range.start)..within(range.end).max(within(range.start)));
        state.requests.got_bytes += found.len() as u64;
        state.end(found)
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        let mut state = self.0.lock();
        state.requests.gets += 1;
        state.begin()?;
        let length = state.find(key)?.len() as u64;
        state.end(length)
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        let mut state = self.0.lock();
        state.requests.lists += 1;
        state.begin()?;
        let from = Bound::Excluded(after.to_owned());
        let listed = state.objects.range((from, Bound::Unbounded)).filter(|(key, _)| key.starts_with(prefix));
        let listed = listed.take(most).map(|(key, (bytes, stored_ms))| Listed {
            key: key.clone(),
            bytes: bytes.len() as u64,
            stored_ms: *stored_ms,
        });
        let listed = listed.collect();
        state.end(listed)
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        let mut state = self.0.lock();
        state.requests.deletes += 1;
        state.begin()?;
        let late = state.faults.late;
        if state.strikes(late) {
            return Err(state.later(Late::Delete(key.to_owned())));
        }
        state.objects.remove(key);
        state.end(())
    }
}
