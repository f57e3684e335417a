//! Delivers commits to the fetches that wait for them. Each fetch has a [`Signal`]. Each partition has a list of the
//! signals of its waiting fetches. A commit marks the partition's slot in each signal, and wakes a fetch once, when
//! enough bytes are committed.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Waits for commits to a set of partitions, which are known by slot number.
#[derive(Debug, Default)]
pub struct Signal {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Slots that have changed since the last look, in the order of their first change.
    dirty: VecDeque<usize>,
    queued: Vec<bool>,
    /// Bytes committed to the dirty slots.
    bytes: usize,
    /// The number of bytes that wakes the waiter. `None` if nothing waits.
    wanted: Option<usize>,
}

impl Signal {
    /// Notes that `bytes` were committed to the partition in `slot`, and wakes the waiter if it has enough bytes.
    pub fn mark(&self, slot: usize, bytes: usize) {
        let mut state = self.state.lock();
        if state.queued.len() <= slot {
            state.queued.resize(slot + 1, false);
        }
        if !state.queued[slot] {
            state.queued[slot] = true;
            state.dirty.push_back(slot);
        }
        state.bytes = state.bytes.saturating_add(bytes);
        let wake = state.wanted.is_some_and(|wanted| state.bytes >= wanted);
        if wake {
            state.wanted = None;
        }
        drop(state);
        if wake {
            self.notify.notify_one();
        }
    }

    /// Takes the dirty slots and resets the byte count.
    pub fn take_dirty(&self) -> Vec<usize> {
        let mut state = self.state.lock();
        state.bytes = 0;
        let dirty: Vec<usize> = state.dirty.drain(..).collect();
        for slot in &dirty {
            state.queued[*slot] = false;
        }
        dirty
    }

    /// Waits until `bytes` (at least one) have been committed since [`Signal::take_dirty`].
    pub async fn wait(&self, bytes: usize) {
        loop {
            let woken = self.notify.notified();
            {
                let mut state = self.state.lock();
                if state.bytes >= bytes.max(1) {
                    state.wanted = None;
                    return;
                }
                state.wanted = Some(bytes.max(1));
            }
            woken.await;
        }
    }
}

/// The signals of one partition.
#[derive(Debug, Default)]
pub struct Subscribers(Mutex<Vec<(Arc<Signal>, usize)>>);

impl Subscribers {
    /// Registers `slot` of `signal`. Every commit from now on marks it.
    pub fn add(&self, signal: &Arc<Signal>, slot: usize) {
        self.0.lock().push((signal.clone(), slot));
    }

    /// Removes the registration.
    pub fn remove(&self, signal: &Arc<Signal>, slot: usize) {
        self.0.lock().retain(|(other, n)| *n != slot || !Arc::ptr_eq(other, signal));
    }

    /// Registers a new signal, as [`Subscribers::add`] does, until the returned value is dropped.
    pub fn subscribe(&self) -> Subscription<'_> {
        let signal = Arc::new(Signal::default());
        self.add(&signal, 0);
        Subscription { of: self, signal }
    }

    /// Marks all registered signals with `bytes` more.
    pub fn mark(&self, bytes: usize) {
        for (signal, slot) in self.0.lock().iter() {
            signal.mark(*slot, bytes);
        }
    }
}

/// The registration of one signal. Dropping it ends the registration, for instance when a client disconnects or its
/// time is over.
#[derive(Debug)]
pub struct Subscription<'a> {
    of: &'a Subscribers,
    signal: Arc<Signal>,
}

impl Subscription<'_> {
    /// The registered signal.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        self.of.remove(&self.signal, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_fetch_is_woken_once_enough_bytes_stand() {
        let (signal, partition) = (Arc::new(Signal::default()), Subscribers::default());
        partition.add(&signal, 3);
        partition.mark(10);
        partition.mark(10);
        let early = tokio::time::timeout(Duration::from_millis(20), signal.wait(30)).await;
        assert!(early.is_err());
        let waiting = tokio::spawn({
            let signal = signal.clone();
            async move { signal.wait(30).await }
        });
        tokio::task::yield_now().await;
        partition.mark(10);
        waiting.await.unwrap();
        assert_eq!(signal.take_dirty(), [3]);
        assert!(signal.take_dirty().is_empty());
        partition.remove(&signal, 3);
        partition.mark(10);
        assert!(signal.take_dirty().is_empty());
    }

    #[test]
    fn a_subscription_that_is_dropped_leaves_nothing() {
        let partition = Subscribers::default();
        let subscription = partition.subscribe();
        partition.mark(10);
        assert_eq!(subscription.signal().take_dirty(), [0]);
        drop(subscription);
        assert!(partition.0.lock().is_empty());
    }
}
