//! The logs that this process has open. Each is taken over, restored from its objects and opened on a thread of its own,
//! and closed on one.
//!
//! Invariants:
//! - A log has one thread at a time, so nothing is opened in a directory that is still in use. A thread that prefetches has
//!   ended before the log is opened.
//! - Partitions lead only after their log is open, and refuse batches before it is closed.

mod copying;
mod opening;
mod prefetching;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use objects::{Bucket, WatchedBucket};
use parking_lot::Mutex;
use storage::copies::{self, Copies};
use storage::restore::{Epochs, keep_closed};
use uuid::Uuid;

use self::copying::Unread;
use self::opening::BringError;
use super::Holder;
use super::copies::CopyDisks;
use super::copying::Copier;
use super::faults::Faults;
use super::ownership::Process;
pub use super::prefetched::{Directories, LocalDirectory};
use super::prefetched::{Prefetched, Ready};
use super::threads::Threads;
use crate::coordinator::Peers;
use crate::image::Metadata;
use crate::logs::{Logs, OpenLog, Opening};
use crate::topics::Topics;

/// Another attempt to take a log over begins so long after one that failed, ...
const BACKOFF: Duration = Duration::from_secs(1);
/// ... and twice as long after each that follows so many, since each leaves a seal in the object store, ...
const QUICK_ATTEMPTS: u32 = 10;
/// ... up to so long.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A log is open or given up within this time, or it waits for others.
const SOON: Duration = Duration::from_secs(30);
/// The caches of so many logs share the configured memory: those of this broker, and as many of another.
const LOGS_EXPECTED: usize = 4;
/// An orderly close waits so long for the object store.
const STORED_WITHIN: Duration = Duration::from_secs(10);
/// A broker gives its logs to others after the object store has not answered it for so long.
const STORE_AWAY: Duration = Duration::from_secs(15);
/// After so long it asks, since one request may fail although the store answers others, ...
const ASK_AFTER: Duration = Duration::from_secs(1);
/// ... and so often.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Whoever stands by for a log looks for new objects so often.
const STAND_BY_EVERY: Duration = Duration::from_secs(10);
/// It begins so long after the log has got its owner, which takes the log over at first: both would be slower.
const STAND_BY_AFTER: Duration = Duration::from_secs(3);
/// Logs for which new objects are fetched at the same time.
const STAND_BY_AT_ONCE: usize = 2;
/// Whoever is to get a log looks for new objects once more, if the last look is older. The log has no leader while the objects
/// since then are fetched.
const PREPARED_FOR: Duration = Duration::from_secs(1);
/// The owner of the log closes it within this time after that.
const READY_FOR: Duration = Duration::from_secs(20);
/// A broker that etcd does not answer proves so often that its logs are its own.
const PROVED_FOR: Duration = Duration::from_secs(2);
/// It serves nobody after the object store has not answered it either for so long: it cannot know whether others do.
const BLIND_AFTER: Duration = Duration::from_secs(3);
/// Interval at which it looks again.
const STORED_CHECK: Duration = Duration::from_millis(5);
/// A log is opened again after records for the object store could not be read for so long.
const UNREADABLE_MAX: Duration = Duration::from_secs(3);

enum State {
    Opening {
        /// Set when the log shall be closed instead.
        unwanted: Arc<AtomicBool>,
        since: Duration,
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
    pub metadata: Arc<Metadata>,
    /// This process.
    pub process: Process,
    /// The disks that keep copies of logs, ...
    pub disks: Arc<dyn CopyDisks>,
    /// ... and this broker's.
    pub copies: Arc<Copies>,
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
    /// Who sends the blocks of each log that is open.
    copiers: Mutex<BTreeMap<String, Copier>>,
    /// How many epochs in a row could not be opened of a log, and the last one.
    failed: Mutex<BTreeMap<String, (u32, u32)>>,
    /// How many attempts in a row could not read the copy of a log on a disk.
    unread: Mutex<BTreeMap<(copies::Opening, Uuid), Unread>>,
    /// The epochs in which logs were closed that the object store has all of.
    stored: Mutex<BTreeMap<String, u32>>,
    faults: Faults,
    /// A thread has ended in a bug, and may have left a log half closed.
    broken: AtomicBool,
    /// Logs got other owners since the broker does not hear of them.
    lost: AtomicBool,
    /// The objects that each log has stored, and since when, while the broker does not hear of other owners.
    proved: Mutex<BTreeMap<String, (u64, Duration)>>,
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
            copiers: Mutex::default(),
            failed: Mutex::default(),
            unread: Mutex::default(),
            stored: Mutex::default(),
            faults: Faults::default(),
            broken: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            proved: Mutex::default(),
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

    /// Whether others should have the logs of this broker: its disk takes none, or is full.
    pub fn is_unfit(&self) -> bool {
        let full = |log: &Held| matches!(&log.state, State::Open(open) if open.log.is_full());
        let full = self.0.held.lock().values().any(full);
        let now = self.threads().now();
        // Without the store nothing can be freed, on no broker.
        let stores = self.0.parts.bucket.away_for().is_zero();
        self.0.faults.note_full(full && stores, now);
        self.0.faults.are_too_many(now)
    }

    /// Drops copies that nobody needs any more.
    pub fn tidy(&self) {
        self.0.tidy_copies();
    }

    /// Whether a bug has left a log half closed.
    pub fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::Acquire)
    }

    /// For a broker that does not hear of the others: closes the logs that have other owners, as the object store says, and
    /// serves nobody once there was one, or while the store does not answer either. Asks nobody.
    pub fn close_fenced(&mut self) {
        // One that has stopped by itself says nothing of owners.
        let fenced = |held: &Held| matches!(&held.state, State::Open(open) if open.log.is_fenced());
        let held = self.0.held.lock();
        let logs: Vec<String> =
            held.iter().filter(|(_, held)| fenced(held)).map(|(name, _)| name.clone()).collect();
        drop(held);
        for log in logs {
            self.0.lost.store(true, Ordering::Release);
            self.close(&log, false);
        }
        let Parts { logs, bucket, .. } = &self.0.parts;
        logs.set_outdated(self.0.lost.load(Ordering::Acquire) || bucket.away_for() >= BLIND_AFTER);
    }

    /// Notes that this broker hears of the others.
    pub fn note_hears(&self) {
        self.0.lost.store(false, Ordering::Release);
        self.0.parts.logs.set_outdated(false);
    }

    /// Finds out which logs have other owners, for a broker that does not hear of them: the object store refuses theirs. Logs
    /// that store something find out by themselves.
    pub fn prove_ownership(&self) {
        let now = self.threads().now();
        let held = self.0.held.lock();
        let open = held.iter().filter_map(|(name, held)| match &held.state {
            State::Open(open) => Some((name, open)),
            _ => None,
        });
        let mut proved = self.0.proved.lock();
        for (name, open) in open {
            let stored = open.log.statistics().objects_stored;
            let known = proved.get(name).filter(|(before, at)| *before != stored || now < *at + PROVED_FOR);
            if known.is_none() {
                open.log.prove_ownership();
            }
            if known.is_none_or(|(before, _)| *before != stored) {
                proved.insert(name.clone(), (stored, now));
            }
        }
    }

    /// The logs of others for which this broker is ready.
    pub fn stands_by_for(&self) -> usize {
        let now = self.threads().now();
        let young = |ready: &Ready| ready.is_younger(3 * STAND_BY_EVERY, now);
        let ready = |of: &&Prefetched| matches!(of, Prefetched::Ended(ready) if young(ready));
        self.0.prefetched.lock().values().filter(ready).count()
    }

    /// Whether a log is being opened, closed or prefetched.
    pub fn is_busy(&self) -> bool {
        let going = |of: &Prefetched| matches!(of, Prefetched::Going { .. });
        let now = self.threads().now();
        let moves = |log: &Held| match &log.state {
            // It may wait for hours for disks with copies.
            State::Opening { since, .. } => now < *since + SOON,
            State::Closing => true,
            _ => false,
        };
        self.0.held.lock().values().any(moves) || self.0.prefetched.lock().values().any(going)
    }

    /// Whether a log that is open has, or had, a stream that waits for copies.
    #[cfg(test)]
    pub fn wants_copies(&self, log: &str) -> bool {
        let held = self.0.held.lock();
        held.get(log).is_some_and(|held| matches!(&held.state, State::Open(open) if open.log.wants_copies()))
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
        let work = move |shared: &Shared| shared.prefetch(&name, &unwanted, before, needed);
        if !self.spawn(&thread_of(log), work) {
            let failed = Prefetched::Failed(self.threads().now() + BACKOFF);
            self.0.prefetched.lock().insert(log.to_owned(), failed);
        }
    }

    /// Returns false if the system has no thread for it.
    fn spawn(&self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> bool {
        let shared = self.0.clone();
        let spawned = self.threads().spawn(name, Box::new(move || work(&shared)));
        if let Err(error) = &spawned {
            tracing::warn!(thread = name, %error, "no thread can be started; another attempt follows");
        }
        spawned.is_ok()
    }
}

/// The wait after so many attempts that failed.
fn backoff(failed: u32) -> Duration {
    let doublings = failed.saturating_sub(QUICK_ATTEMPTS).min(8);
    (BACKOFF * (1 << doublings)).min(BACKOFF_MAX)
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
            State::Open(open) if self.0.lacks_records(open) => Some(0),
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
        let state = State::Opening { unwanted: unwanted.clone(), since: self.threads().now() };
        self.0.stored.lock().remove(log);
        self.0.held.lock().insert(log.to_owned(), Held { epoch, state });
        let name = log.to_owned();
        if !self.spawn(&thread_of(log), move |shared| shared.bring(&name, epoch, &unwanted)) {
            let state = State::Failed(self.threads().now() + BACKOFF);
            self.0.held.lock().insert(log.to_owned(), Held { epoch, state });
        }
    }

    fn is_stored(&self, log: &str, epoch: u32) -> bool {
        self.0.stored.lock().get(log) == Some(&epoch)
    }

    /// A broker without logs has nothing to ask the store for, so this asks whether it answers again.
    fn lacks_store(&self) -> bool {
        let away_for = self.0.parts.bucket.away_for();
        let mut store = self.0.store.lock();
        store.away = !away_for.is_zero() && (store.away || away_for >= STORE_AWAY);
        let now = self.threads().now();
        if away_for >= ASK_AFTER && !store.asks && now >= store.next {
            store.next = now + ASK_EVERY;
            store.asks = self.spawn("asks the store", |shared| {
                // The bucket notes the answer.
                drop(shared.parts.bucket.list("logs/", "", 1));
                shared.store.lock().asks = false;
            });
        }
        store.away
    }

    fn is_low_on_space(&self) -> bool {
        let now = self.threads().now();
        self.0.parts.copies.space().is_some_and(|(free, all)| self.0.faults.note_space(free, all, now))
    }

    fn close(&mut self, log: &str, orderly: bool) -> bool {
        let mut held = self.0.held.lock();
        let Some(entry) = held.get_mut(log) else { return true };
        match &entry.state {
            State::Opening { unwanted, .. } => {
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
                let closing = open.clone();
                let begun = self.spawn(&thread_of(log), move |shared| shared.end(&name, &closing, orderly));
                if let Some(entry) = self.0.held.lock().get_mut(log).filter(|_| !begun) {
                    entry.state = State::Open(open);
                }
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
                self.end(name, &open, false);
            }
            Ok(open) => {
                let millis = self.millis_since(begun);
                self.failed.lock().remove(name);
                tracing::info!(log = name, epoch, millis, "took a log over");
                entry.state = State::Open(open);
            }
            Err(error) => {
                let copier = self.copiers.lock().remove(name);
                if let Some(copier) = copier {
                    copier.end();
                }
                if error.is_local() {
                    self.faults.note(self.parts.threads.now());
                }
                tracing::warn!(log = name, epoch, %error, "a log could not be taken over; another attempt follows");
                let failed = {
                    let mut failed = self.failed.lock();
                    let (count, last) = failed.entry(name.to_owned()).or_default();
                    *count = if *last + 1 == epoch { *count } else { 0 };
                    *count += u32::from(!unwanted.load(Ordering::Acquire));
                    *last = epoch;
                    *count
                };
                entry.state = State::Failed(self.parts.threads.now() + backoff(failed));
            }
        }
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

    /// Whether a log has records for the object store that it has not been able to read for a while. The store and the copies have
    /// what was answered, so the log is opened from those. Without the store it could not be opened again.
    fn lacks_records(&self, open: &OpenLog) -> bool {
        open.log.unreadable_for() >= UNREADABLE_MAX && self.parts.bucket.away_for().is_zero()
    }

    /// Closes a log. After a bug, its directory may be in use for ever.
    fn end(&self, name: &str, open: &Arc<OpenLog>, orderly: bool) {
        let unreadable = self.lacks_records(open);
        if unreadable {
            tracing::error!(
                log = name,
                "records that the object store does not have cannot be read: the log is opened from the store and the copies; \
                 check the disk"
            );
        }
        if unreadable || open.failure().is_some() {
            self.faults.note(self.parts.threads.now());
        }
        if catch_unwind(AssertUnwindSafe(|| self.shut(name, open, orderly))).is_err() {
            self.broken.store(true, Ordering::Release);
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
                    // What was trimmed is stored by nobody.
                    bounds.stored.unwrap_or(bounds.start).max(bounds.start) < bounds.synced
                });
                let may = open.log.stopped().is_none() && !self.store.lock().away;
                (behind || !open.log.is_stored()) && may && threads.now() < until
            };
            while waits() {
                threads.sleep(STORED_CHECK);
            }
        }
        open.log.close();
        let copier = self.copiers.lock().remove(name);
        if let Some(copier) = copier {
            copier.end();
        }
        while orderly && !open.log.has_ended() {
            threads.sleep(STORED_CHECK);
        }
        if let Some(epoch) = open.epoch.filter(|_| orderly && open.log.is_stored()) {
            self.stored.lock().insert(name.to_owned(), epoch);
        }
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
