//! The logs that this process has open. Each is taken over, restored from its objects and opened on a thread of its own,
//! and closed on one.
//!
//! Invariants:
//! - A log has one thread at a time, so nothing is opened in a directory that is still in use. A thread that prefetches has
//!   ended before the log is opened.
//! - Partitions lead only after their log is open, and refuse batches before it is closed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use meta::MetaError;
use model::StreamId;
use objects::{Bucket, BucketError, WatchedBucket};
use parking_lot::Mutex;
use storage::OpenError;
use storage::restore::{
    Asking, Epochs, KnownBounds, Restore, RestoreError, keep_closed, keep_prefetched, prefetch,
};
use storage::takeover::{TakeOver, TakeOverError};
use uuid::Uuid;

use super::Holder;
pub use super::prefetched::{Directories, LocalDirectory};
use super::prefetched::{PrefetchError, Prefetched, Ready};
use super::threads::Threads;
use crate::coordinator::Peers;
use crate::logs::{Logs, OpenLog, Opening};
use crate::topics::Topics;
use crate::transactions::INDEX_STREAM;

/// Another attempt to take a log over begins so long after one that failed.
const BACKOFF: Duration = Duration::from_secs(1);
/// The caches of so many logs share the configured memory: those of this broker, and as many of another.
const LOGS_EXPECTED: usize = 4;
/// An orderly close waits so long for the object store.
const STORED_WITHIN: Duration = Duration::from_secs(10);
/// A broker gives its logs to others after its disk refused so many, one after the other.
const REFUSED_MAX: u32 = 5;
/// A broker gives its logs to others after the object store has not answered it for so long.
const STORE_AWAY: Duration = Duration::from_secs(15);
/// After so long it asks, since one request may fail although the store answers others, ...
const ASK_AFTER: Duration = Duration::from_secs(1);
/// ... and so often.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// A prefetch ends after so long. The restore fetches the rest. The owner goes on meanwhile, and waits a little longer.
const PREFETCH_WITHIN: Duration = Duration::from_secs(300);
/// Whoever stands by for a log looks for new objects so often.
const STAND_BY_EVERY: Duration = Duration::from_secs(10);
/// It begins so long after the log has got its owner, which takes the log over at first: both would be slower.
const STAND_BY_AFTER: Duration = Duration::from_secs(3);
/// Each so many times it looks for those that are no more, too.
const ROUNDS: u32 = 60;
/// Logs for which new objects are fetched at the same time.
const STAND_BY_AT_ONCE: usize = 2;
/// Whoever is to get a log looks for new objects once more, if the last look is older. The log has no leader while the objects
/// since then are fetched.
const PREPARED_FOR: Duration = Duration::from_secs(1);
/// The owner of the log closes it within this time after that.
const READY_FOR: Duration = Duration::from_secs(20);
/// It looks again if the look itself took longer than [`PREPARED_FOR`]: so often at most.
const LOOKS_MAX: u32 = 4;
/// Interval at which it looks again.
const STORED_CHECK: Duration = Duration::from_millis(5);

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
enum BringError {
    #[error("{0} is not the id of a log")]
    Name(String),
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    #[error("its directory: {0}")]
    Directory(#[from] io::Error),
    #[error(transparent)]
    Restore(#[from] storage::restore::RestoreError),
    #[error(transparent)]
    Open(#[from] storage::OpenError),
    #[error("the metadata: {0}")]
    Meta(#[from] MetaError),
    #[error("it has another owner by now")]
    Unwanted,
    #[error("a bug, which is in the log")]
    Bug,
}

impl BringError {
    /// Whether the disk of this broker is the problem. Another broker may open the log.
    fn is_local(&self) -> bool {
        match self {
            BringError::Directory(_) | BringError::Restore(RestoreError::Local(..)) => true,
            BringError::Restore(RestoreError::Open(error)) | BringError::Open(error) => {
                matches!(error, OpenError::Io { .. })
            }
            _ => false,
        }
    }
}

enum State {
    Opening {
        /// Set when the log shall be closed instead.
        unwanted: Arc<AtomicBool>,
    },
    Open(Arc<OpenLog>),
    Closing,
    /// The last attempt failed. Another one may begin at this time.
    Failed(Duration),
}

struct Held {
    epoch: u32,
    state: State,
}

/// The parts of the broker that a host works with.
pub struct Parts {
    pub logs: Arc<Logs>,
    pub topics: Arc<Topics>,
    pub peers: Arc<Peers>,
    pub opening: Opening,
    pub bucket: Arc<WatchedBucket>,
    pub directories: Arc<dyn Directories>,
    pub threads: Arc<dyn Threads>,
}

/// The logs that this process has open, takes over or closes.
#[derive(Clone)]
pub struct Host(Arc<Shared>);

struct Shared {
    parts: Parts,
    held: Mutex<BTreeMap<String, Held>>,
    prefetched: Mutex<BTreeMap<String, Prefetched>>,
    /// The epochs of logs that this process stands by for, and since when it knows of them.
    seen: Mutex<BTreeMap<String, (u32, Duration)>>,
    /// Logs that the disk of this broker did not take, one after the other.
    refused: AtomicU32,
    store: Mutex<StoreState>,
}

/// Whether the object store answers this broker.
#[derive(Default)]
struct StoreState {
    away: bool,
    asks: bool,
    /// When it may be asked again.
    next: Duration,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("logs", &self.logs()).finish_non_exhaustive()
    }
}

impl Host {
    /// A host without logs.
    pub fn new(parts: Parts) -> Host {
        Host(Arc::new(Shared {
            parts,
            held: Mutex::default(),
            prefetched: Mutex::default(),
            seen: Mutex::default(),
            refused: AtomicU32::new(0),
            store: Mutex::default(),
        }))
    }

    /// Closes all logs in an orderly way, and waits for that. Blocks.
    pub fn close_all(&mut self) {
        loop {
            let logs = self.logs();
            let closed: Vec<bool> = logs.iter().map(|log| self.close(log, true)).collect();
            if closed.iter().all(|closed| *closed) {
                return;
            }
            self.threads().sleep(STORED_CHECK);
        }
    }

    /// Whether the disk of this broker takes no log.
    pub fn is_unfit(&self) -> bool {
        self.0.refused.load(Ordering::Acquire) >= REFUSED_MAX
    }

    /// Whether a log is being opened, closed or prefetched.
    pub fn is_busy(&self) -> bool {
        let going = |of: &Prefetched| matches!(of, Prefetched::Going { .. });
        let moves = |log: &Held| matches!(log.state, State::Opening { .. } | State::Closing);
        self.0.held.lock().values().any(moves) || self.0.prefetched.lock().values().any(going)
    }

    /// Whether a log is open, and not only about to be taken over once more.
    #[cfg(test)]
    pub fn has_open(&self, log: &str) -> bool {
        self.0.held.lock().get(log).is_some_and(|held| matches!(held.state, State::Open(_)))
    }

    fn threads(&self) -> &dyn Threads {
        &*self.0.parts.threads
    }

    /// `before` is what was fetched before, and the epoch of the log's owner. `needed` says whether an owner waits for it.
    fn begin_prefetch(&self, log: &str, before: Option<(Ready, u32)>, needed: bool) {
        let unwanted = Arc::new(AtomicBool::new(false));
        let going = Prefetched::Going { unwanted: unwanted.clone() };
        self.0.prefetched.lock().insert(log.to_owned(), going);
        let name = log.to_owned();
        self.spawn(&thread_of(log), move |shared| shared.prefetch(&name, &unwanted, before, needed));
    }

    fn spawn(&self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) {
        let shared = self.0.clone();
        self.threads().spawn(name, Box::new(move || work(&shared)));
    }
}

fn thread_of(log: &str) -> String {
    format!("log {log}")
}

impl Holder for Host {
    fn logs(&self) -> BTreeSet<String> {
        self.0.held.lock().keys().cloned().collect()
    }

    fn held(&self, log: &str) -> Option<u32> {
        let held = self.0.held.lock();
        let held = held.get(log)?;
        match &held.state {
            State::Failed(until) if *until <= self.threads().now() => None,
            // It is of no use: it is closed, and taken over anew. Epochs begin at 1.
            State::Open(open) if open.log.stopped().is_some() || open.log.is_fenced() => Some(0),
            _ => Some(held.epoch),
        }
    }

    fn prepare(&mut self, log: &str, epoch: u32) -> bool {
        let now = self.threads().now();
        let before = match self.0.prefetched.lock().get(log) {
            Some(Prefetched::Ended(ready)) if ready.is_younger(PREPARED_FOR, now) => return true,
            // The owner is about to close the log.
            Some(Prefetched::Ended(ready)) if ready.needed && ready.is_younger(READY_FOR, now) => {
                return true;
            }
            Some(Prefetched::Ended(ready)) if now < ready.again_at => return false,
            // It stands by for the log. What is new since then takes time that nobody waits for yet.
            Some(Prefetched::Ended(ready)) => Some((ready.clone(), epoch)),
            Some(Prefetched::Going { .. }) => return false,
            Some(Prefetched::Failed(until)) if now < *until => return false,
            Some(Prefetched::Failed(_)) | None => None,
        };
        self.begin_prefetch(log, before, true);
        false
    }

    fn stand_by(&mut self, log: &str, epoch: u32) {
        let now = self.threads().now();
        let mut seen = self.0.seen.lock();
        let (of, since) = seen.entry(log.to_owned()).or_insert((epoch, now));
        if *of != epoch {
            (*of, *since) = (epoch, now);
        }
        if now < *since + STAND_BY_AFTER {
            return;
        }
        drop(seen);
        let prefetched = self.0.prefetched.lock();
        let going = |of: &&Prefetched| matches!(of, Prefetched::Going { .. });
        if prefetched.values().filter(going).count() >= STAND_BY_AT_ONCE {
            return;
        }
        let before = match prefetched.get(log) {
            Some(Prefetched::Going { .. }) => return,
            Some(Prefetched::Failed(until)) if now < *until => return,
            Some(Prefetched::Ended(ready)) if ready.is_younger(STAND_BY_EVERY, now) => return,
            Some(Prefetched::Ended(ready)) if now < ready.again_at => return,
            Some(Prefetched::Ended(ready)) => Some((ready.clone(), epoch)),
            Some(Prefetched::Failed(_)) | None => None,
        };
        drop(prefetched);
        self.begin_prefetch(log, before, false);
    }

    fn take_over(&mut self, log: &str, epoch: u32) {
        let unwanted = Arc::new(AtomicBool::new(false));
        let state = State::Opening { unwanted: unwanted.clone() };
        self.0.held.lock().insert(log.to_owned(), Held { epoch, state });
        let name = log.to_owned();
        self.spawn(&thread_of(log), move |shared| shared.bring(&name, epoch, &unwanted));
    }

    /// A broker without logs has nothing to ask the store for, so this asks whether it answers again.
    fn lacks_store(&self) -> bool {
        let away_for = self.0.parts.bucket.away_for();
        let mut store = self.0.store.lock();
        store.away = !away_for.is_zero() && (store.away || away_for >= STORE_AWAY);
        let now = self.threads().now();
        if away_for >= ASK_AFTER && !store.asks && now >= store.next {
            (store.asks, store.next) = (true, now + ASK_EVERY);
            self.spawn("asks the store", |shared| {
                // The bucket notes the answer.
                drop(shared.parts.bucket.list("logs/", "", 1));
                shared.store.lock().asks = false;
            });
        }
        store.away
    }

    fn close(&mut self, log: &str, orderly: bool) -> bool {
        let mut held = self.0.held.lock();
        let Some(entry) = held.get_mut(log) else { return true };
        match &entry.state {
            State::Opening { unwanted } => {
                unwanted.store(true, Ordering::Release);
                false
            }
            State::Closing => false,
            State::Failed(_) => {
                held.remove(log);
                true
            }
            State::Open(open) => {
                let (open, name) = (open.clone(), log.to_owned());
                entry.state = State::Closing;
                drop(held);
                self.spawn(&thread_of(log), move |shared| shared.shut(&name, &open, orderly));
                false
            }
        }
    }
}

impl Shared {
    fn millis_since(&self, begun: Duration) -> u64 {
        u64::try_from((self.parts.threads.now() - begun).as_millis()).unwrap_or(u64::MAX)
    }

    fn bring(&self, name: &str, epoch: u32, unwanted: &AtomicBool) {
        let begun = self.parts.threads.now();
        let opened = catch_unwind(AssertUnwindSafe(|| self.open(name, epoch, unwanted)));
        let opened = opened.unwrap_or(Err(BringError::Bug));
        let mut held = self.held.lock();
        let Some(entry) = held.get_mut(name) else { return };
        match opened {
            Ok(open) if unwanted.load(Ordering::Acquire) => {
                entry.state = State::Closing;
                drop(held);
                self.shut(name, &open, false);
            }
            Ok(open) => {
                let millis = self.millis_since(begun);
                tracing::info!(log = name, epoch, millis, "took a log over");
                self.refused.store(0, Ordering::Release);
                entry.state = State::Open(open);
            }
            Err(error) => {
                self.refused.fetch_add(u32::from(error.is_local()), Ordering::AcqRel);
                tracing::warn!(log = name, epoch, %error, "a log could not be taken over; another attempt follows");
                entry.state = State::Failed(self.parts.threads.now() + BACKOFF);
            }
        }
    }

    fn prefetch(&self, name: &str, unwanted: &AtomicBool, before: Option<(Ready, u32)>, needed: bool) {
        let threads = &self.parts.threads;
        let begun = threads.now();
        let fetch = || {
            let (mut objects, mut ready) = self.fetch(name, unwanted, begun, before.as_ref())?;
            let mut since = begun;
            for _ in 1..LOOKS_MAX {
                let now = threads.now();
                let slow = now - since >= PREPARED_FOR && now - begun < PREFETCH_WITHIN;
                // An owner waits for it.
                if !needed || !slow || unwanted.load(Ordering::Acquire) {
                    break;
                }
                since = now;
                let epoch = ready.along.newest().map_or(0, |newest| newest.epoch);
                let (more, newer) = self.fetch(name, unwanted, begun, Some(&(ready, epoch)))?;
                (objects, ready) = (objects + more, newer);
            }
            Ok((objects, Ready { needed, ..ready }))
        };
        let fetched = catch_unwind(AssertUnwindSafe(fetch)).unwrap_or(Err(PrefetchError::Bug));
        let outcome = match (fetched, before) {
            (Ok((objects, ready)), before) => {
                let millis = self.millis_since(begun);
                match before {
                    None => tracing::info!(log = name, objects, millis, "is ready for a log"),
                    Some(_) => tracing::debug!(log = name, objects, millis, "is still ready for a log"),
                }
                Prefetched::Ended(ready)
            }
            (Err(error), Some((ready, _))) if !error.is_local() => {
                tracing::debug!(log = name, %error, "what is new of a log cannot be fetched; another attempt follows");
                let pause = if needed { BACKOFF } else { STAND_BY_EVERY };
                Prefetched::Ended(Ready { again_at: threads.now() + pause, needed: false, ..ready })
            }
            (Err(error), _) => {
                self.refused.fetch_add(u32::from(needed && error.is_local()), Ordering::AcqRel);
                tracing::warn!(log = name, %error, "a log cannot be prepared for; another attempt follows");
                Prefetched::Failed(self.parts.threads.now() + BACKOFF)
            }
        };
        self.prefetched.lock().insert(name.to_owned(), outcome);
    }

    /// Fetches what the log will need: what is new since `before`, or all of it into an empty directory. Also returns the
    /// number of objects.
    fn fetch(
        &self,
        name: &str,
        unwanted: &AtomicBool,
        begun: Duration,
        before: Option<&(Ready, u32)>,
    ) -> Result<(usize, Ready), PrefetchError> {
        let Parts { directories, threads, .. } = &self.parts;
        let bucket: Arc<dyn Bucket> = self.parts.bucket.clone();
        let id: Uuid = name.parse().map_err(|_| PrefetchError::Name(name.to_owned()))?;
        let goes_on = || !unwanted.load(Ordering::Acquire) && threads.now() - begun < PREFETCH_WITHIN;
        let pause = |wait: Duration, _: &BucketError| {
            threads.sleep(wait);
            goes_on()
        };
        let mut ready = match before {
            Some((ready, epoch)) if ready.is_of(*epoch) => ready.clone(),
            before => {
                let look =
                    TakeOver::new(bucket.clone(), id.as_u128(), 1).with_threads(threads.of_a_restore());
                let along = look.epochs(&pause)?;
                let kept = match before {
                    Some((ready, _)) if ready.along.all() == along.all() => {
                        Some((ready.directory.clone(), ready.last.clone()))
                    }
                    Some((ready, _)) if keep_prefetched(&ready.directory.1, &ready.along, &along)? => {
                        Some((ready.directory.clone(), String::new()))
                    }
                    _ => None,
                };
                let (directory, last) = match kept {
                    Some(kept) => kept,
                    None => (directories.empty(name)?, String::new()),
                };
                Ready { last, ..Ready::unseen(directory, along) }
            }
        };
        ready.rounds += 1;
        if ready.rounds.is_multiple_of(ROUNDS) {
            ready.last.clear();
        }
        let asking =
            Asking { bucket: &bucket, threads: threads.of_a_restore(), pause: &pause, progress: &|_, _| {} };
        let from = (ready.along.clone(), ready.last.as_str());
        let fetched = prefetch(&ready.directory.1, &asking, id.as_u128(), from, &goes_on)?;
        ready.last = fetched.last.unwrap_or(ready.last);
        ready.at = Some(threads.now());
        Ok((fetched.objects, ready))
    }

    /// The directory for the log `name`, which was taken over: with what was prefetched of it, or else empty.
    fn directory(
        &self,
        name: &str,
        taken: &Epochs,
        unwanted: &AtomicBool,
    ) -> Result<LocalDirectory, BringError> {
        loop {
            match self.prefetched.lock().get(name) {
                Some(Prefetched::Going { unwanted }) => unwanted.store(true, Ordering::Release),
                _ => break,
            }
            if unwanted.load(Ordering::Acquire) {
                return Err(BringError::Unwanted);
            }
            self.parts.threads.sleep(STORED_CHECK);
        }
        if let Some(Prefetched::Ended(ready)) = self.prefetched.lock().remove(name)
            && keep_prefetched(&ready.directory.1, &ready.along, taken)?
        {
            return Ok(ready.directory);
        }
        Ok(self.parts.directories.empty(name)?)
    }

    /// Takes the log over, restores it, opens it, and makes its partitions lead.
    fn open(&self, name: &str, epoch: u32, unwanted: &AtomicBool) -> Result<Arc<OpenLog>, BringError> {
        let Parts { logs, topics, opening, threads, .. } = &self.parts;
        let bucket: Arc<dyn Bucket> = self.parts.bucket.clone();
        let id: Uuid = name.parse().map_err(|_| BringError::Name(name.to_owned()))?;
        let pause = |wait: Duration, _: &BucketError| {
            threads.sleep(wait);
            !unwanted.load(Ordering::Acquire)
        };
        let owned = TakeOver::new(bucket.clone(), id.as_u128(), epoch)
            .with_threads(threads.of_a_restore())
            .finish(&pause)?;
        // The former owner stores nothing that counts from here on, so every stream with records is known now.
        let known = topics.streams_of(id)?;
        let mut streams: HashMap<StreamId, Option<KnownBounds>> =
            known.owned.iter().map(|id| (*id, None)).collect();
        streams.insert(INDEX_STREAM, None);
        let (path, disk) = self.directory(name, &owned.epochs, unwanted)?;
        let now_ms = opening.clock.now_ms();
        let asking =
            Asking { bucket: &bucket, threads: threads.of_a_restore(), pause: &pause, progress: &|_, _| {} };
        let (log_id, epochs) = (id.as_u128(), owned.epochs.clone());
        let request =
            Restore { asking, log_id, epochs, streams: &streams, opens: true, accept_loss: false, now_ms };
        let restored = storage::restore::restore(&disk, &request)?;
        let open = Arc::new(opening.open(&path, disk, LOGS_EXPECTED, Some((owned, restored)))?);
        // Entries of the index that a crash left ahead of the data: before other batches take their offsets.
        let start_of =
            |stream| known.owned.contains(&stream).then(|| open.log.lasting_start(&open.log.stream(stream)));
        open.transactions.maintain(&open.log, start_of, now_ms);
        if unwanted.load(Ordering::Acquire) {
            open.log.close();
            return Err(BringError::Unwanted);
        }
        logs.add(open.clone());
        let partitions = topics.opened(&open);
        topics.drop_orphans(&open, known.next);
        partitions.iter().for_each(|partition| self.parts.peers.follow(partition));
        Ok(open)
    }

    /// Keeps the directory of a log that was closed in an orderly way, as if what it has had been prefetched.
    fn keep(&self, name: &str, directory: LocalDirectory, along: Epochs) -> Option<Ready> {
        match keep_closed(&*directory.1) {
            Ok(()) => Some(Ready::unseen(directory, along)),
            Err(error) => {
                tracing::debug!(log = name, %error, "the directory of a log is not kept");
                None
            }
        }
    }

    /// Closes a log. Its partitions refuse batches first. `orderly` waits until everything that it has is stored, and keeps what
    /// taking the log over again will need.
    fn shut(&self, name: &str, open: &Arc<OpenLog>, orderly: bool) {
        let Parts { logs, topics, peers, threads, .. } = &self.parts;
        logs.remove(open.id);
        topics.closed(open.id).iter().for_each(|partition| peers.follow(partition));
        if orderly {
            open.log.store_at_once();
            let until = threads.now() + STORED_WITHIN;
            let waits = || {
                let streams = open.log.streams();
                let behind = streams.iter().any(|stream| {
                    let bounds = stream.bounds();
                    bounds.stored.unwrap_or(bounds.start) < bounds.synced
                });
                let may = open.log.stopped().is_none() && !self.store.lock().away;
                behind && may && threads.now() < until
            };
            while waits() {
                threads.sleep(STORED_CHECK);
            }
        }
        open.log.close();
        let along = open.log.epochs().filter(|_| orderly).cloned();
        if along.is_some() {
            // Whoever takes the log over here again waits for it.
            let going = Prefetched::Going { unwanted: Arc::default() };
            self.prefetched.lock().insert(name.to_owned(), going);
        }
        self.held.lock().remove(name);
        tracing::info!(log = name, orderly, "closed a log");
        if let Some(along) = along {
            let kept = self.keep(name, open.directory(), along);
            let mut prefetched = self.prefetched.lock();
            match kept {
                Some(ready) => drop(prefetched.insert(name.to_owned(), Prefetched::Ended(ready))),
                None => drop(prefetched.remove(name)),
            }
        }
    }
}
