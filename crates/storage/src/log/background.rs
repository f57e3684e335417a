//! The loops of the threads of the cleaner, the preparer and the uploader. They run until the log is closed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::StreamId;
use objects::{BucketError, Patience};

use crate::cleaner::{Cleaner, LOOK_EVERY, Manifests, Merged, Turn};
use crate::pacer::{Pacer, REST_AFTER_FAILURE_MAX};
use crate::preparer::Preparer;
use crate::shared::Shared;
use crate::uploader::{UploadError, Uploaded, Uploader};

/// How long the preparer sleeps before it checks again whether a full disk has room.
const FULL_DISK_RETRY: Duration = Duration::from_secs(1);

pub(super) fn run_cleaner(shared: &Arc<Shared>) {
    let mut cleaner = Cleaner::new(shared.clone(), true);
    let mut rest = LOOK_EVERY;
    loop {
        match cleaner.turn() {
            Turn::Idle => rest = LOOK_EVERY,
            Turn::Cleaned(_) => rest = Duration::ZERO,
            Turn::Failed(_) if shared.cleaner_stops() => return,
            Turn::Failed(error) => {
                rest = (rest.max(LOOK_EVERY) * 2).min(REST_AFTER_FAILURE_MAX);
                tracing::warn!(%error, "cleaning failed; it is tried again in {rest:?}");
            }
        }
        // This thread expires the tail cache, because no other thread wakes up while no appends come.
        shared.tail.expire(shared.clock.nanos());
        let mut news = shared.preparer_news.lock();
        if !news.stop {
            shared.cleaner_wake.wait_for(&mut news, rest);
        }
        if news.stop {
            return;
        }
    }
}

/// The uploader also looks at dead objects so often.
const COLLECT_EVERY: Duration = Duration::from_secs(1);
/// Objects that no record needs are looked for so often, by listing all.
const LIST_EVERY: Duration = Duration::from_secs(3600);
/// A problem of the object store is logged so often.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// When each kind of problem was logged last. Kinds alternate when the puts fail otherwise than the deletions.
#[derive(Default)]
struct Problems(HashMap<Kind, Instant>);

/// A store that is away is another kind than one that refuses. Each unreadable stream is a kind of its own.
type Kind = (Discriminant<UploadError>, bool, Option<StreamId>);

impl Problems {
    /// Whether `problem` is to be logged.
    fn is_due(&mut self, problem: &UploadError) -> bool {
        let refused = matches!(problem, UploadError::Bucket(BucketError::Refused(_)));
        let stream = match problem {
            UploadError::Unreadable { stream, .. } => Some(*stream),
            _ => None,
        };
        let now = Instant::now();
        self.0.retain(|_, told| now.duration_since(*told) < TELL_EVERY);
        let told = self.0.entry((discriminant(problem), refused, stream));
        match told {
            Entry::Occupied(told) if now.duration_since(*told.get()) < TELL_EVERY => false,
            told => {
                told.insert_entry(now);
                true
            }
        }
    }
}

pub(super) fn run_uploader(uploader: &mut Uploader) {
    let mut patience = Patience::default();
    let mut problems = Problems::default();
    let mut tell = |problem: &UploadError| {
        if !problems.is_due(problem) {
            return;
        }
        match problem {
            UploadError::Unreadable { leads: true, .. } => tracing::error!(
                %problem,
                "nothing goes to the object store: no record may be there before these, which groups and transactions \
                 need; check the disk, and see `mainstem log verify`"
            ),
            UploadError::Unreadable { .. } => tracing::error!(
                %problem,
                "these records stay on the local disk alone, and so do those behind them; check the disk, and see \
                 `mainstem log verify`"
            ),
            _ => tracing::warn!(
                %problem,
                "nothing goes to the object store: the local disk keeps the records until it is back; check the store, \
                 the credentials and the network"
            ),
        }
    };
    let (mut collected, mut listed) = (Instant::now(), None::<Instant>);
    loop {
        let before = uploader.next();
        let uploaded = uploader.turn();
        uploader.take_problems().iter().for_each(&mut tell);
        let goes_on = match uploaded {
            Uploaded::Nothing if uploader.is_fenced() => uploader.rest(COLLECT_EVERY),
            Uploaded::Nothing => uploader.wait(),
            Uploaded::Begun => uploader.rest(Duration::ZERO),
            Uploaded::Object => {
                patience = Patience::default();
                uploader.rest(Duration::ZERO)
            }
            Uploaded::Failed(error) => {
                tell(&error);
                // One put of several failed: the store works.
                if uploader.next() != before {
                    patience = Patience::default();
                }
                uploader.rest(patience.pause())
            }
            Uploaded::Fenced(why) => {
                tell_fenced(&why);
                uploader.rest(COLLECT_EVERY)
            }
        };
        if !goes_on {
            return;
        }
        if collected.elapsed() >= COLLECT_EVERY {
            collected = Instant::now();
            let due = listed.is_none_or(|listed| listed.elapsed() >= LIST_EVERY);
            let outcome = match uploader.collect() {
                Ok(None) if due => {
                    let outcome = uploader.delete_orphans();
                    if outcome.is_ok() {
                        listed = Some(Instant::now());
                    }
                    outcome
                }
                outcome => outcome,
            };
            match outcome {
                Ok(fenced) => fenced.iter().for_each(|why| tell_fenced(why)),
                Err(error) => tell(&error),
            }
        }
    }
}

/// Objects to merge are looked for so often.
const MERGE_EVERY: Duration = Duration::from_secs(10);

pub(super) fn run_merger(shared: &Arc<Shared>) {
    let mut pacer = Pacer::new(shared.clone(), true);
    let mut manifests = Manifests::new(shared.clone());
    let (mut rest, mut fails) = (MERGE_EVERY, false);
    while shared.tier.rest(rest) {
        let wrote = manifests.turn(&mut pacer);
        if let Err(error) = &wrote
            && !fails
        {
            tracing::warn!(%error, "writing manifests to the object store failed; it is tried again");
        }
        fails = wrote.is_err();
        rest = match shared.merge_objects(&mut pacer) {
            Ok(Merged::Nothing) if matches!(wrote, Ok(true)) => Duration::ZERO,
            Ok(Merged::Nothing) => MERGE_EVERY,
            Ok(Merged::Queued(outcome)) => match shared.await_replaced(&outcome) {
                Ok(()) => Duration::ZERO,
                Err(_) => MERGE_EVERY,
            },
            Err(error) => {
                if !shared.cleaner_stops() {
                    tracing::warn!(%error, "merging objects failed; it is tried again later");
                }
                (rest.max(MERGE_EVERY) * 2).min(REST_AFTER_FAILURE_MAX)
            }
        };
    }
}

fn tell_fenced(why: &str) {
    tracing::error!(
        why,
        "this log takes no more part in the object store: its new records stay on the local disk alone"
    );
}

pub(super) fn run_preparer(shared: &Shared, preparer: &mut Preparer) {
    preparer.pace();
    loop {
        while preparer.turn() {
            let until = Instant::now() + preparer.rest();
            let mut news = shared.preparer_news.lock();
            // Most news report more dead segments, and these can wait.
            while !news.stop
                && !preparer.wants_segment()
                && !shared.preparer_wake.wait_until(&mut news, until).timed_out()
            {}
            if news.stop {
                return;
            }
        }
        let mut news = shared.preparer_news.lock();
        let retry = preparer.looks_again();
        while !news.pending && !news.stop {
            if retry {
                shared.preparer_wake.wait_for(&mut news, FULL_DISK_RETRY);
                break;
            }
            shared.preparer_wake.wait(&mut news);
        }
        if news.stop {
            return;
        }
        news.pending = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_problem_is_logged_once_a_minute() {
        let unclear = UploadError::Bucket(BucketError::Unclear("503".into()));
        let refused = UploadError::Bucket(BucketError::Refused("404".into()));
        let mut problems = Problems::default();
        assert!(problems.is_due(&unclear) && problems.is_due(&refused));
        assert!(!problems.is_due(&unclear) && !problems.is_due(&refused), "they alternate");
    }
}
