//! The batches of one Produce request on their way to the disk.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use storage::{AppendError, Completion};

/// Counts the batches of a request that are not done yet. The log completes every batch that it has accepted, also when
/// it stops.
pub struct Tally {
    /// The connection that waits for the batches.
    pub caller: u64,
    /// The number of unfinished batches, plus one for the request itself until all batches are queued.
    pub left: AtomicUsize,
    pub waiting: Mutex<Option<Waker>>,
}

impl Tally {
    pub fn finish_one(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(waker) = self.waiting.lock().take()
        {
            waker.wake();
        }
    }

    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let done = || self.left.load(Ordering::Acquire) == 0;
        if done() {
            return Poll::Ready(());
        }
        self.waiting.lock().replace(context.waker().clone());
        // The last batch may have finished before the waker was stored.
        if done() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// One batch of a request. Its partition may be in another log than those of the other batches.
pub struct Batch {
    pub tally: Arc<Tally>,
    pub failure: OnceLock<AppendError>,
}

impl Completion for Batch {
    fn complete(&self, result: Result<(), AppendError>) {
        if let Err(error) = result {
            let _ = self.failure.set(error);
        }
        self.tally.finish_one();
    }

    fn caller(&self) -> Option<u64> {
        Some(self.tally.caller)
    }
}
