//! The memory that requests of all connections may hold together (`queued.max.request.bytes`).
//!
//! A connection takes its share before it makes room for bytes, so a claimed size costs nothing until the bytes come.
//! Growing a frame step by step means to hold a share and wait for more, which could end with everybody waiting: then
//! one frame at a time, the one with the overdraft, may exceed the budget by its size. It completes, is answered, and
//! gives its share back.
//!
//! Small frames have an eighth of the budget to themselves, on top of it, and take it only once they are whole, so that clients which
//! send large frames, or begin to, cannot stop those who send small ones. Until then a small frame lies in a buffer that
//! is bounded by the number of connections.
//!
//! Invariant: bytes held <= 9/8 of the budget + one largest request + [`SMALL_FRAME_BYTES`] a connection.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that one permit stands for; the least a request costs.
const UNIT_BYTES: usize = 1024;

/// Frames up to this size are small.
pub const SMALL_FRAME_BYTES: usize = 16 * 1024;
/// What small frames have of their own: this part of the budget.
const SMALL_PART: usize = 8;

/// The budget of the process.
#[derive(Debug)]
pub struct Budget {
    pool: Arc<Semaphore>,
    small: Arc<Semaphore>,
    small_units: u32,
    units: u32,
    overdraft: Arc<Semaphore>,
}

/// What one frame holds of the budget; given back when dropped.
#[derive(Debug, Default)]
pub struct Share {
    permits: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
}

impl Share {
    fn units(&self) -> u32 {
        self.permits.as_ref().map_or(0, |permits| u32::try_from(permits.num_permits()).unwrap_or(u32::MAX))
    }
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: i64) -> Budget {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        let units = |bytes: usize| u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        let small_units = units(bytes / SMALL_PART);
        let units = units(bytes);
        let semaphore = |units: u32| Arc::new(Semaphore::new(units as usize));
        Budget {
            pool: semaphore(units),
            small: semaphore(small_units),
            small_units,
            units,
            overdraft: semaphore(1),
        }
    }

    /// Takes the share of a whole small frame of `bytes`. Dropping the future leaves the share as it was.
    pub async fn take_small(&self, share: &mut Share, bytes: usize) {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.small_units);
        let permits = self.small.clone().acquire_many_owned(units).await;
        share.permits = Some(permits.expect("the pool is never closed"));
    }

    /// Grows `share` until it covers `bytes`, or the whole budget if that is less. Dropping the future leaves the share
    /// as it was.
    pub async fn grow(&self, share: &mut Share, bytes: usize) {
        if share.overdraft.is_some() {
            return;
        }
        let wanted = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units);
        let missing = wanted.saturating_sub(share.units());
        if missing == 0 {
            return;
        }
        let permits = match self.pool.clone().try_acquire_many_owned(missing) {
            Ok(permits) => permits,
            Err(_) if share.permits.is_none() => self.wait(missing).await,
            Err(_) => tokio::select! {
                biased;
                permits = self.wait(missing) => permits,
                permit = self.overdraft.clone().acquire_owned() => {
                    share.overdraft = Some(permit.expect("the overdraft is never closed"));
                    return;
                }
            },
        };
        match &mut share.permits {
            Some(held) => held.merge(permits),
            None => share.permits = Some(permits),
        }
    }

    async fn wait(&self, units: u32) -> OwnedSemaphorePermit {
        self.pool.clone().acquire_many_owned(units).await.expect("the pool is never closed")
    }

    /// Bytes that requests hold, the overdraft not counted.
    pub fn held_bytes(&self) -> usize {
        let taken = |pool: &Semaphore, units: u32| units as usize - pool.available_permits();
        (taken(&self.pool, self.units) + taken(&self.small, self.small_units)) * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn shares_grow_and_come_back() {
        let budget = Budget::new(10 * 1024);
        let mut share = Share::default();
        budget.grow(&mut share, 1).await;
        assert_eq!(budget.held_bytes(), 1024);
        budget.grow(&mut share, 4096).await;
        budget.grow(&mut share, 100).await;
        assert_eq!(budget.held_bytes(), 4 * 1024);
        let mut new = Share::default();
        assert!(timeout(MOMENT, budget.grow(&mut new, 7 * 1024)).await.is_err(), "a new frame waits");
        assert_eq!(budget.held_bytes(), 4 * 1024);
        drop(share);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_frame_larger_than_the_budget_passes_alone() {
        let budget = Budget::new(4096);
        let mut share = Share::default();
        budget.grow(&mut share, 1 << 30).await;
        assert_eq!(budget.held_bytes(), 4096);
    }

    #[tokio::test]
    async fn when_all_wait_for_more_one_goes_on() {
        let budget = Budget::new(4096);
        let (mut a, mut b) = (Share::default(), Share::default());
        budget.grow(&mut a, 2048).await;
        budget.grow(&mut b, 2048).await;
        timeout(MOMENT, budget.grow(&mut a, 4096)).await.expect("the overdraft is free");
        timeout(MOMENT, budget.grow(&mut a, 1 << 20)).await.expect("it holds for the whole frame");
        assert!(timeout(MOMENT, budget.grow(&mut b, 4096)).await.is_err(), "only one has it");
        drop(a);
        timeout(MOMENT, budget.grow(&mut b, 4096)).await.expect("what it held is free again");
        assert_eq!(budget.held_bytes(), 4096);
    }
}
