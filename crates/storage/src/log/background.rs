//! The loops of the cleaner's and the preparer's threads. They run until the log is closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cleaner::{Cleaner, LOOK_EVERY, Turn};
use crate::pacer::REST_AFTER_FAILURE_MAX;
use crate::preparer::{PREPARED_TARGET, Preparer};
use crate::shared::Shared;

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

pub(super) fn run_preparer(shared: &Shared, preparer: &mut Preparer) {
    preparer.pace();
    loop {
        while preparer.turn() {
            let until = Instant::now() + preparer.rest();
            let mut news = shared.preparer_news.lock();
            // Most news report more dead segments, and these can wait.
            while !news.stop
                && shared.prepared_count() >= PREPARED_TARGET
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
