//! Appends to a diskless or replicated stream that wait until their records are visible.

use std::collections::VecDeque;
use std::sync::Arc;

use model::Offset;

use crate::completion::{AppendError, Completion};

/// A synced append whose caller waits until the records below `end` are visible.
pub(crate) struct Waiter {
    pub end: Offset,
    pub done: Arc<dyn Completion>,
}

/// The waiting appends of one stream, in the order of their offsets. Most streams never have one.
#[derive(Default)]
pub(crate) struct Waiters(VecDeque<Waiter>);

impl Waiters {
    pub fn push(&mut self, waiter: Waiter) {
        self.0.push_back(waiter);
    }

    /// Takes those whose records are below `committed`.
    pub fn take_below(&mut self, committed: Offset) -> Vec<Waiter> {
        let count = self.0.partition_point(|waiter| waiter.end <= committed);
        self.0.drain(..count).collect()
    }

    /// Takes all.
    pub fn take(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.0).into()
    }
}

impl Waiter {
    /// Tells callers that their records are not stored.
    pub fn fail_all(waiters: Vec<Waiter>, error: &AppendError) {
        waiters.into_iter().for_each(|waiter| waiter.done.complete(Err(error.clone())));
    }
}

impl std::fmt::Debug for Waiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ends: Vec<Offset> = self.0.iter().map(|waiter| waiter.end).collect();
        f.debug_tuple("Waiters").field(&ends).finish()
    }
}
