//! A store in this process: an engine that keeps the values, and the commits, watches and leases above it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::history::History;
use crate::leases::Leases;
use crate::{Change, Compare, Event, Events, LeaseId, Listing, MetaError, Store, Value, Watch, WatchError};

/// A clock: the time since some moment. It never goes back.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A clock that starts now.
pub fn clock() -> Clock {
    let begun = Instant::now();
    Arc::new(move || begun.elapsed())
}

/// Keeps keys and values. The caller makes one commit at a time.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError>;

    fn list(&self, prefix: &str) -> Result<Listing, MetaError>;

    /// The revision of the last commit; 0 before the first.
    fn revision(&self) -> Result<u64, MetaError>;

    /// Makes the commit `revision`, which follows the last one; otherwise like [`Store::commit`]. Remembers which keys
    /// have leases.
    fn commit(&self, revision: u64, compares: &[Compare], changes: &[Change]) -> Result<(), MetaError>;

    /// The keys with a lease.
    fn leased(&self) -> Result<Vec<String>, MetaError>;
}

/// A store in this process.
#[derive(Debug)]
pub struct Local<E>(Arc<Shared<E>>);

struct Shared<E> {
    engine: E,
    history: History,
    /// A commit holds this lock. Reads go on meanwhile.
    leases: Mutex<Leases>,
    /// When the first lease expires, in milliseconds of the clock; `u64::MAX` if there is none.
    first_end_ms: AtomicU64,
    clock: Clock,
}

impl<E: fmt::Debug> fmt::Debug for Shared<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl<E: Engine> Local<E> {
    /// Makes a store and removes the keys whose leases were held at the last use of the engine: leases end with the
    /// process.
    pub(crate) fn new(engine: E, clock: Clock) -> Result<Local<E>, MetaError> {
        let history = History::new(engine.revision()?);
        let local = Local(Arc::new(Shared {
            engine,
            history,
            leases: Mutex::default(),
            first_end_ms: AtomicU64::new(u64::MAX),
            clock,
        }));
        let gone: Vec<Change> = local.0.engine.leased()?.into_iter().map(Change::delete).collect();
        if !gone.is_empty() {
            local.0.commit(&mut local.0.lock(), &[], &gone)?;
        }
        Ok(local)
    }
}

impl<E: Engine> Shared<E> {
    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases without the expired ones.
    fn current(&self) -> Result<MutexGuard<'_, Leases>, MetaError> {
        let mut leases = self.lock();
        while let Some(over) = leases.over((self.clock)()) {
            self.end(&mut leases, over)?;
        }
        Ok(leases)
    }

    fn end(&self, leases: &mut Leases, lease: LeaseId) -> Result<(), MetaError> {
        let removal = leases.removal(lease)?;
        if !removal.is_empty() {
            self.commit(leases, &[], &removal)?;
        }
        leases.end(lease);
        self.note_first_end(leases);
        Ok(())
    }

    fn note_first_end(&self, leases: &Leases) {
        let ms = |end: Duration| u64::try_from(end.as_millis()).unwrap_or(u64::MAX);
        self.first_end_ms.store(leases.first_end().map_or(u64::MAX, ms), Ordering::Release);
    }

    fn first_end(&self) -> Duration {
        Duration::from_millis(self.first_end_ms.load(Ordering::Acquire))
    }

    /// Ends expired leases.
    fn expire(&self) -> Result<(), MetaError> {
        if (self.clock)() >= self.first_end() {
            drop(self.current()?);
        }
        Ok(())
    }

    /// `changes` without removals of keys that do not exist.
    fn effective(&self, changes: &[Change]) -> Result<Vec<Change>, MetaError> {
        let mut effective = Vec::with_capacity(changes.len());
        for change in changes {
            if matches!(change, Change::Put { .. }) || self.engine.find(change.key())?.is_some() {
                effective.push(change.clone());
            }
        }
        Ok(effective)
    }

    fn compare(&self, compares: &[Compare]) -> Result<(), MetaError> {
        for Compare { key, revision } in compares {
            if self.engine.find(key)?.map(|value| value.revision) != *revision {
                return Err(MetaError::Conflict { key: key.clone() });
            }
        }
        Ok(())
    }

    fn commit(
        &self,
        leases: &mut Leases,
        compares: &[Compare],
        changes: &[Change],
    ) -> Result<u64, MetaError> {
        leases.check(changes)?;
        let changes = self.effective(changes)?;
        let last = self.engine.revision()?;
        if changes.is_empty() {
            // As in etcd, a commit without changes is no commit.
            return self.compare(compares).map(|()| last);
        }
        let revision = last + 1;
        if let Err(error) = self.engine.commit(revision, compares, &changes) {
            // The engine may have kept the commit although it reports a failure.
            if let Ok(last) = self.engine.revision() {
                self.history.skip_to(last);
            }
            return Err(error);
        }
        leases.follow(&changes);
        let event = |change| match change {
            Change::Put { key, bytes, .. } => Event { key, revision, bytes: Some(bytes) },
            Change::Delete { key } => Event { key, revision, bytes: None },
        };
        self.history.push(revision, changes.into_iter().map(event));
        Ok(revision)
    }
}

impl<E: Engine> Store for Local<E> {
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError> {
        self.0.expire()?;
        self.0.engine.find(key)
    }

    fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.0.expire()?;
        self.0.engine.list(prefix)
    }

    fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError> {
        let mut keys: Vec<&str> = changes.iter().map(Change::key).collect();
        let compared = compares.iter().map(|compare| compare.key.as_str());
        assert!(keys.iter().copied().chain(compared).all(|key| !key.is_empty()), "keys are not empty");
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "a commit changes a key once");
        self.0.commit(&mut *self.0.current()?, compares, changes)
    }

    fn watch(&self, prefix: &str, after: u64) -> Box<dyn Watch> {
        Box::new(LocalWatch { shared: self.0.clone(), prefix: prefix.to_owned(), after })
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        let mut leases = self.0.current()?;
        let lease = leases.grant(ttl, (self.0.clock)());
        self.0.note_first_end(&leases);
        Ok(lease)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), MetaError> {
        let mut leases = self.0.current()?;
        leases.keep_alive(lease, (self.0.clock)())?;
        self.0.note_first_end(&leases);
        Ok(())
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.0.end(&mut *self.0.current()?, lease)
    }
}

struct LocalWatch<E> {
    shared: Arc<Shared<E>>,
    prefix: String,
    after: u64,
}

impl<E: Engine> Watch for LocalWatch<E> {
    fn next(&mut self, patience: Duration) -> Result<Events, WatchError> {
        let deadline = (self.shared.clock)() + patience;
        loop {
            // No other caller may be there to end a lease.
            self.shared.expire()?;
            let (now, until) = ((self.shared.clock)(), self.shared.first_end().min(deadline));
            let events = self.shared.history.wait(&self.prefix, self.after, until.saturating_sub(now))?;
            self.after = events.revision;
            if !events.changes.is_empty() || (self.shared.clock)() >= deadline {
                return Ok(events);
            }
        }
    }
}
