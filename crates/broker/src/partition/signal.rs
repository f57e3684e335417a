//! How a commit reaches the fetches that wait for it: each fetch has a [`Signal`], each partition the signals of those
//! that look at it. A commit marks the slot of the partition, and wakes the fetch once, when enough bytes stand.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What waits for partitions to grow; the partitions are known to it by slot numbers.
#[derive(Debug, Default)]
pub struct Signal {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Slots that changed since they were last looked at, in the order of the first change.
    dirty: VecDeque<usize>,
    queued: Vec<bool>,
    /// Bytes committed to those.
    bytes: usize,
    /// Wakes at so many bytes; `None` while nobody waits.
    wanted: Option<usize>,
}

impl Signal {
    /// Notes that `bytes` were committed to the partition in `slot`, and wakes who waits for them.
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

    /// Takes the marked slots.
    pub fn take_dirty(&self) -> Vec<usize> {
        let mut state = self.state.lock();
        state.bytes = 0;
        let dirty: Vec<usize> = state.dirty.drain(..).collect();
        for slot in &dirty {
            state.queued[*slot] = false;
        }
        dirty
    }

    /// Waits until `bytes` (at least one) were committed since [`Signal::take_dirty`].
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
    /// Marks `slot` of `signal` with every commit from now on.
    pub fn add(&self, signal: &Arc<Signal>, slot: usize) {
        self.0.lock().push((signal.clone(), slot));
    }

    /// Ends that.
    pub fn remove(&self, signal: &Arc<Signal>, slot: usize) {
        self.0.lock().retain(|(other, n)| *n != slot || !Arc::ptr_eq(other, signal));
    }

    /// As [`Subscribers::add`], for a signal of its own, until what is returned is dropped.
    pub fn subscribe(&self) -> Subscription<'_> {
        let signal = Arc::new(Signal::default());
        self.add(&signal, 0);
        Subscription { of: self, signal }
    }

    /// Tells all of `bytes` more.
    pub fn mark(&self, bytes: usize) {
        for (signal, slot) in self.0.lock().iter() {
            signal.mark(*slot, bytes);
        }
    }
}

/// Ends when it is dropped, as it is when a client goes or its time is over.
#[derive(Debug)]
pub struct Subscription<'a> {
    of: &'a Subscribers,
    signal: Arc<Signal>,
}

impl Subscription<'_> {
    /// What is marked.
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
