//! How what a log will need is fetched before it is taken over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use objects::{Bucket, BucketError};
use storage::restore::{Asking, keep_prefetched, prefetch};
use storage::takeover::TakeOver;
use uuid::Uuid;

use super::{BACKOFF, PREPARED_FOR, Parts, STAND_BY_EVERY, Shared};
use crate::cluster::prefetched::{PrefetchError, Prefetched, Ready};

/// A prefetch ends after so long. The restore fetches the rest. The owner goes on meanwhile, and waits a little longer.
const PREFETCH_WITHIN: Duration = Duration::from_secs(300);
/// Each so many times, a broker that stands by looks for objects that are no more, too.
const ROUNDS: u32 = 60;
/// Whoever is to get a log looks again if the look itself took longer than [`PREPARED_FOR`]: so often at most.
const LOOKS_MAX: u32 = 4;

impl Shared {
    pub(super) fn prefetch(
        &self,
        name: &str,
        unwanted: &AtomicBool,
        before: Option<(Ready, u32)>,
        needed: bool,
    ) {
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
                if needed && error.is_local() {
                    self.faults.note(threads.now());
                }
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
}
