//! The memory that requests of all connections may hold together (`queued.max.request.bytes`).
//!
//! A connection takes its share before it makes room for bytes, so a claimed size costs nothing until the bytes come.
//! Growing a frame step by step means to hold a share and wait for more, which could end with everybody waiting: then
//! one frame at a time, the one with the overdraft, may exceed the budget by its size. It completes, is answered, and
//! gives its share back.
//!
//! Small frames have an eighth of the budget to themselves, on top of it, and take it only once they are whole, so that clients which
//! send large frames, or begin to, cannot stop those who send small ones. Until then a small frame lies in a buffer that
//! is bounded by the number of connections. Small requests that wait for somebody else, as a fetch does for data, have a
//! quarter of their own: many that wait for long stop no others.
//!
//! A listener may have a budget of its own below that of the process. Then a share is of both: the listener's part first.
//! Who has the overdraft of the process waits for nothing, so nobody who has the listener's waits for ever.
//!
//! Invariant: bytes held <= 11/8 of the budget + one largest request + [`SMALL_FRAME_BYTES`] a connection.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::ApiKey;

/// Bytes that one permit stands for; the least a request costs.
const UNIT_BYTES: usize = 1024;

/// Frames up to this size are small.
pub const SMALL_FRAME_BYTES: usize = 16 * 1024;
/// What small frames have of their own: this part of the budget.
const SMALL_PART: usize = 8;
/// What small frames of requests that wait have of their own: this part of the budget.
const WAITING_PART: usize = 4;
/// Requests that are answered when data comes, or the other members of a group do.
const WAITING: [ApiKey; 3] = [ApiKey::Fetch, ApiKey::JoinGroup, ApiKey::SyncGroup];

/// The budget of the process, or of a listener.
#[derive(Debug)]
pub struct Budget {
    pool: Arc<Semaphore>,
    small: Pool,
    waiting: Pool,
    units: u32,
    overdraft: Arc<Semaphore>,
    /// That of the process, of a listener's.
    above: Option<Arc<Budget>>,
}

/// Permits for small frames.
#[derive(Debug)]
struct Pool {
    permits: Arc<Semaphore>,
    units: u32,
}

impl Pool {
    fn new(bytes: usize) -> Pool {
        let units = units_of(bytes);
        Pool { permits: Arc::new(Semaphore::new(units as usize)), units }
    }

    async fn grant(&self, bytes: usize) -> Grant {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units);
        let permits = self.permits.clone().acquire_many_owned(units).await;
        Grant { permits: Some(permits.expect("the pool is never closed")), overdraft: None }
    }

    fn taken(&self) -> usize {
        self.units as usize - self.permits.available_permits()
    }
}

fn units_of(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1)
}

/// What one frame holds of the budgets; given back when dropped.
#[derive(Debug, Default)]
pub struct Share {
    process: Grant,
    listener: Grant,
}

/// What one frame holds of one budget.
#[derive(Debug, Default)]
struct Grant {
    permits: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
}

impl Grant {
    fn units(&self) -> u32 {
        self.permits.as_ref().map_or(0, |permits| u32::try_from(permits.num_permits()).unwrap_or(u32::MAX))
    }
}

impl Share {
    /// Bytes of the process's budget that it holds.
    pub fn bytes(&self) -> usize {
        self.process.units() as usize * UNIT_BYTES
    }
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: i64) -> Budget {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        let units = units_of(bytes);
        Budget {
            pool: Arc::new(Semaphore::new(units as usize)),
            small: Pool::new(bytes / SMALL_PART),
            waiting: Pool::new(bytes / WAITING_PART),
            units,
            overdraft: Arc::new(Semaphore::new(1)),
            above: None,
        }
    }

    /// The same for what comes through one listener, within `above`.
    pub fn within(above: Arc<Budget>, bytes: i64) -> Budget {
        Budget { above: Some(above), ..Budget::new(bytes) }
    }

    /// Takes the share of a whole small frame. Dropping the future gives back what it took.
    pub async fn take_small(&self, share: &mut Share, frame: &[u8]) {
        if let Some(process) = &self.above {
            let listener = self.pool_of(frame).grant(frame.len()).await;
            *share = Share { process: process.pool_of(frame).grant(frame.len()).await, listener };
        } else {
            share.process = self.pool_of(frame).grant(frame.len()).await;
        }
    }

    fn pool_of(&self, frame: &[u8]) -> &Pool {
        let key = frame.first_chunk().and_then(|key| ApiKey::from_i16(i16::from_be_bytes(*key)));
        if key.is_some_and(|key| WAITING.contains(&key)) { &self.waiting } else { &self.small }
    }

    /// Grows `share` until it covers `bytes`, or the whole budget if that is less. Dropping the future leaves a share
    /// that covers no less than before.
    pub async fn grow(&self, share: &mut Share, bytes: usize) {
        if let Some(process) = &self.above {
            if share.process.overdraft.is_some() {
                return;
            }
            self.grow_grant(&mut share.listener, bytes).await;
            process.grow_grant(&mut share.process, bytes).await;
        } else {
            self.grow_grant(&mut share.process, bytes).await;
        }
    }

    async fn grow_grant(&self, grant: &mut Grant, bytes: usize) {
        if grant.overdraft.is_some() {
            return;
        }
        let wanted = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units);
        let missing = wanted.saturating_sub(grant.units());
        if missing == 0 {
            return;
        }
        let permits = match self.pool.clone().try_acquire_many_owned(missing) {
            Ok(permits) => permits,
            Err(_) if grant.permits.is_none() => self.wait(missing).await,
            Err(_) => tokio::select! {
                biased;
                permits = self.wait(missing) => permits,
                permit = self.overdraft.clone().acquire_owned() => {
                    grant.overdraft = Some(permit.expect("the overdraft is never closed"));
                    return;
                }
            },
        };
        match &mut grant.permits {
            Some(held) => held.merge(permits),
            None => grant.permits = Some(permits),
        }
    }

    async fn wait(&self, units: u32) -> OwnedSemaphorePermit {
        self.pool.clone().acquire_many_owned(units).await.expect("the pool is never closed")
    }

    /// Bytes that requests hold, the overdraft not counted.
    pub fn held_bytes(&self) -> usize {
        let large = self.units as usize - self.pool.available_permits();
        (large + self.small.taken() + self.waiting.taken()) * UNIT_BYTES
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
    async fn requests_that_wait_stop_no_others() {
        let process = Arc::new(Budget::new(64 * 1024));
        let listener = Budget::within(process.clone(), 1 << 20);
        let frame = |key: ApiKey| {
            let mut frame = vec![0; 1000];
            frame[..2].copy_from_slice(&(key as i16).to_be_bytes());
            frame
        };
        let mut waiting = Vec::new();
        for _ in 0..16 {
            let mut share = Share::default();
            listener.take_small(&mut share, &frame(ApiKey::Fetch)).await;
            waiting.push(share);
        }
        assert_eq!(process.held_bytes(), 16 * 1024);
        let mut share = Share::default();
        let one_more = frame(ApiKey::SyncGroup);
        assert!(
            timeout(MOMENT, listener.take_small(&mut share, &one_more)).await.is_err(),
            "there is no more"
        );
        let produce = frame(ApiKey::Produce);
        timeout(MOMENT, listener.take_small(&mut share, &produce)).await.expect("others have their own");
        drop((share, waiting));
        assert_eq!((listener.held_bytes(), process.held_bytes()), (0, 0));
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

    #[tokio::test]
    async fn a_listeners_budget_lies_within_that_of_the_process() {
        let process = Arc::new(Budget::new(16 * 1024));
        let (narrow, wide) =
            (Budget::within(process.clone(), 4096), Budget::within(process.clone(), 1 << 20));
        let (mut a, mut b) = (Share::default(), Share::default());
        narrow.grow(&mut a, 4096).await;
        assert_eq!((narrow.held_bytes(), process.held_bytes()), (4096, 4096));
        assert!(timeout(MOMENT, narrow.grow(&mut b, 1024)).await.is_err(), "the listener has no more");
        assert_eq!(process.held_bytes(), 4096);
        timeout(MOMENT, wide.grow(&mut b, 12 * 1024)).await.expect("another one has");
        assert_eq!(process.held_bytes(), 16 * 1024);
        // Whoever holds the overdraft of the process waits for nothing any more, the listener's budget included.
        timeout(MOMENT, narrow.grow(&mut a, 1 << 20)).await.expect("both overdrafts are free");
        timeout(MOMENT, narrow.grow(&mut a, 1 << 21)).await.expect("and held for the whole frame");
        drop((a, b));
        assert_eq!((narrow.held_bytes(), wide.held_bytes(), process.held_bytes()), (0, 0, 0));
    }
}
