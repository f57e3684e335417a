//! The memory that the requests of all connections may hold together (`queued.max.request.bytes`).
//!
//! A connection takes its share before it allocates memory, so a claimed size costs nothing until the bytes arrive. A
//! frame that grows step by step holds a share while it waits for more, so all connections could wait for each other.
//! Therefore one frame at a time may exceed the budget by its size: the holder of the overdraft. It completes, is
//! answered, and returns its share.
//!
//! Small frames have an eighth of the budget for themselves, on top of it, and take their share only when they are
//! whole. Clients that send large frames, or begin to, therefore cannot block clients that send small ones. Until it is
//! whole, a small frame lies in a buffer, and the number of connections bounds these buffers.
//!
//! Small requests that wait for other clients, such as a fetch that waits for data, have a quarter for themselves.
//! Large ones have another eighth. That eighth also covers the requests that a connection sends behind a waiting
//! request, because they are answered even later. However many requests wait, they block no others, and the large ones
//! do not block the small ones.
//!
//! The budget itself is for records. Other requests that are not small have an eighth for themselves, half of it for
//! frames up to [`CONTROL_FRAME_BYTES`]. Larger ones are handled one at a time, and their decoded form needs more
//! memory.
//!
//! A listener may have a budget of its own below that of the process. A share is then taken from both, the listener's
//! first. The holder of the process's overdraft waits for nothing, so the holder of the listener's overdraft does not
//! wait for ever.
//!
//! Invariant: bytes held <= 13/8 of the budget + two largest requests + [`SMALL_FRAME_BYTES`] a connection.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::ApiKey;

/// Bytes per permit. A request takes at least one permit.
const UNIT_BYTES: usize = 1024;

/// Frames up to this size are small.
pub const SMALL_FRAME_BYTES: usize = 16 * 1024;
/// Small frames have this fraction of the budget for themselves.
const SMALL_PART: usize = 8;
/// Small requests that wait have this fraction of the budget for themselves.
const WAITING_PART: usize = 4;
/// Large requests that wait, and requests behind a waiting one, have this fraction of the budget for themselves.
const PATIENT_PART: usize = 8;

/// Requests without records have this fraction of the budget for themselves, once for frames up to
/// [`CONTROL_FRAME_BYTES`] and once for larger ones.
const CONTROL_PART: usize = 16;
/// Frames up to this size (some ten thousand topics) do not wait for larger frames without records.
const CONTROL_FRAME_BYTES: usize = 256 * 1024;

/// Whether the request in a frame may wait for other clients. `None` if the frame is too short to tell.
pub fn waits(frame: &[u8]) -> Option<bool> {
    let key = ApiKey::from_i16(i16::from_be_bytes(*frame.first_chunk()?));
    Some(key.is_some_and(broker::waits))
}

/// The part of the budget from which a large frame takes its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The frame holds records.
    Records,
    /// The frame holds no records and has at most [`CONTROL_FRAME_BYTES`].
    Control,
    /// The frame holds no records and is larger.
    LargeControl,
    /// The request may wait for other clients, or stands behind one that does.
    Patient,
}

impl Part {
    /// The part for a frame of `size` bytes that begins with `frame`. `behind` says whether it stands behind a request
    /// that waits.
    pub fn of(frame: &[u8], size: usize, behind: bool) -> Part {
        let key = frame.first_chunk().and_then(|key| ApiKey::from_i16(i16::from_be_bytes(*key)));
        match key {
            _ if behind || waits(frame) == Some(true) => Part::Patient,
            Some(ApiKey::Produce) => Part::Records,
            _ if size > CONTROL_FRAME_BYTES => Part::LargeControl,
            _ => Part::Control,
        }
    }
}

/// The budget of the process, or of a listener.
#[derive(Debug)]
pub struct Budget {
    large: Pool,
    small: Pool,
    waiting: Pool,
    control: Pool,
    large_control: Pool,
    patient: Pool,
    /// The budget of the process, if this is the budget of a listener.
    above: Option<Arc<Budget>>,
}

/// A part of a budget.
#[derive(Debug)]
struct Pool {
    permits: Arc<Semaphore>,
    units: u32,
    overdraft: Arc<Semaphore>,
}

impl Pool {
    fn new(bytes: usize) -> Pool {
        let units = units_of(bytes);
        let permits = Arc::new(Semaphore::new(units as usize));
        Pool { permits, units, overdraft: Arc::new(Semaphore::new(1)) }
    }

    /// Takes permits for a whole frame at once.
    async fn grant(&self, bytes: usize) -> Grant {
        let permits = self.wait(self.capped(bytes)).await;
        Grant { permits: Some(permits), overdraft: None }
    }

    async fn grow(&self, grant: &mut Grant, bytes: usize) {
        if grant.overdraft.is_some() {
            return;
        }
        let missing = self.capped(bytes).saturating_sub(grant.units());
        if missing == 0 {
            return;
        }
        let permits = match self.permits.clone().try_acquire_many_owned(missing) {
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

    /// The units for this many bytes, at most all units of the pool.
    fn capped(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units)
    }

    async fn wait(&self, units: u32) -> OwnedSemaphorePermit {
        self.permits.clone().acquire_many_owned(units).await.expect("the pool is never closed")
    }

    fn taken(&self) -> usize {
        self.units as usize - self.permits.available_permits()
    }
}

fn units_of(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1)
}

/// The share that one frame holds of the budgets. Dropping it returns the share.
#[derive(Debug, Default)]
pub struct Share {
    process: Grant,
    listener: Grant,
}

/// The share that one frame holds of one budget.
#[derive(Debug, Default)]
struct Grant {
    permits: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
}

impl Grant {
    fn is_empty(&self) -> bool {
        self.permits.is_none() && self.overdraft.is_none()
    }

    fn units(&self) -> u32 {
        self.permits.as_ref().map_or(0, |permits| u32::try_from(permits.num_permits()).unwrap_or(u32::MAX))
    }
}

impl Share {
    /// Bytes that the share holds of the process's budget.
    pub fn bytes(&self) -> usize {
        self.process.units() as usize * UNIT_BYTES
    }

    /// Whether the share holds nothing of any budget.
    pub fn is_empty(&self) -> bool {
        self.process.is_empty() && self.listener.is_empty()
    }
}

impl Budget {
    /// Creates a budget of this many bytes.
    pub fn new(bytes: i64) -> Budget {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        Budget {
            large: Pool::new(bytes),
            small: Pool::new(bytes / SMALL_PART),
            waiting: Pool::new(bytes / WAITING_PART),
            control: Pool::new(bytes / CONTROL_PART),
            large_control: Pool::new(bytes / CONTROL_PART),
            patient: Pool::new(bytes / PATIENT_PART),
            above: None,
        }
    }

    /// Creates the budget of one listener, within the budget `above`.
    pub fn within(above: Arc<Budget>, bytes: i64) -> Budget {
        Budget { above: Some(above), ..Budget::new(bytes) }
    }

    /// Takes the share of a whole small frame. `waits` says whether its request may wait, `behind` whether it stands
    /// behind one that does. Dropping the future returns what it took.
    pub async fn take_small(&self, share: &mut Share, waits: bool, behind: bool, bytes: usize) {
        if let Some(process) = &self.above {
            let listener = self.of_small(waits, behind).grant(bytes).await;
            *share = Share { process: process.of_small(waits, behind).grant(bytes).await, listener };
        } else {
            share.process = self.of_small(waits, behind).grant(bytes).await;
        }
    }

    fn of_small(&self, waits: bool, behind: bool) -> &Pool {
        match (waits, behind) {
            (_, true) => &self.patient,
            (true, false) => &self.waiting,
            (false, false) => &self.small,
        }
    }

    /// Grows `share` until it covers `bytes`, or the whole of `part` if that is less. `part` must stay the same while
    /// the share holds anything. Dropping the future leaves the share no smaller than before.
    pub async fn grow(&self, share: &mut Share, part: Part, bytes: usize) {
        if let Some(process) = &self.above {
            if share.process.overdraft.is_some() {
                return;
            }
            self.of_large(part).grow(&mut share.listener, bytes).await;
            process.of_large(part).grow(&mut share.process, bytes).await;
        } else {
            self.of_large(part).grow(&mut share.process, bytes).await;
        }
    }

    fn of_large(&self, part: Part) -> &Pool {
        match part {
            Part::Records => &self.large,
            Part::Control => &self.control,
            Part::LargeControl => &self.large_control,
            Part::Patient => &self.patient,
        }
    }

    /// Bytes that requests hold, without overdrafts.
    pub fn held_bytes(&self) -> usize {
        let control = [&self.control, &self.large_control];
        let pools = [&self.large, &self.small, &self.waiting, &self.patient].into_iter().chain(control);
        pools.map(Pool::taken).sum::<usize>() * UNIT_BYTES
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
        budget.grow(&mut share, Part::Records, 1).await;
        assert_eq!(budget.held_bytes(), 1024);
        budget.grow(&mut share, Part::Records, 4096).await;
        budget.grow(&mut share, Part::Records, 100).await;
        assert_eq!(budget.held_bytes(), 4 * 1024);
        let mut new = Share::default();
        assert!(
            timeout(MOMENT, budget.grow(&mut new, Part::Records, 7 * 1024)).await.is_err(),
            "a new frame waits"
        );
        assert_eq!(budget.held_bytes(), 4 * 1024);
        drop(share);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn a_request_that_waits_is_known_by_its_first_bytes() {
        let of = |key: ApiKey| (key as i16).to_be_bytes();
        for (key, expected) in [(ApiKey::Fetch, true), (ApiKey::SyncGroup, true), (ApiKey::Produce, false)] {
            assert_eq!(waits(&[&of(key)[..], b"rest"].concat()), Some(expected));
        }
        assert_eq!((waits(&[0]), waits(&[0x7f, 0xff])), (None, Some(false)));
        let part = |key, behind| Part::of(&of(key), 100_000, behind);
        assert_eq!(Part::of(&of(ApiKey::Metadata), CONTROL_FRAME_BYTES + 1, false), Part::LargeControl);
        assert_eq!(
            (part(ApiKey::Produce, false), part(ApiKey::Produce, true)),
            (Part::Records, Part::Patient)
        );
        assert_eq!(
            (part(ApiKey::Metadata, false), part(ApiKey::Fetch, false)),
            (Part::Control, Part::Patient)
        );
    }

    #[tokio::test]
    async fn large_requests_without_records_stop_none_with_records() {
        let budget = Budget::new(64 * 1024);
        let (mut control, mut another, mut records) = (Share::default(), Share::default(), Share::default());
        budget.grow(&mut control, Part::LargeControl, 1 << 20).await;
        assert_eq!(budget.held_bytes(), 4 * 1024);
        let more = budget.grow(&mut another, Part::LargeControl, 1);
        assert!(timeout(MOMENT, more).await.is_err(), "there is no more");
        timeout(MOMENT, budget.grow(&mut another, Part::Control, 4096))
            .await
            .expect("smaller ones have their own");
        timeout(MOMENT, budget.grow(&mut records, Part::Records, 64 * 1024))
            .await
            .expect("records have their own");
    }

    #[tokio::test]
    async fn requests_that_wait_stop_no_others() {
        let process = Arc::new(Budget::new(256 * 1024));
        let listener = Budget::within(process.clone(), 1 << 20);
        let mut held = Vec::new();
        let taken = |bytes| process.held_bytes() == bytes;
        // Large frames and frames behind others, until the part is used up.
        let mut share = Share::default();
        listener.grow(&mut share, Part::Patient, 20 * 1024).await;
        held.push(share);
        for _ in 0..12 {
            let mut share = Share::default();
            listener.take_small(&mut share, false, true, 1000).await;
            held.push(share);
        }
        assert!(taken(32 * 1024));
        let (mut share, mut large) = (Share::default(), Share::default());
        let one_more = listener.take_small(&mut share, true, true, 1000);
        assert!(timeout(MOMENT, one_more).await.is_err(), "there is no more");
        assert!(
            timeout(MOMENT, listener.grow(&mut large, Part::Patient, 20_000)).await.is_err(),
            "there is no more"
        );
        // While these requests wait, there is still room for small requests of other clients.
        for _ in 0..64 {
            let mut share = Share::default();
            let small = listener.take_small(&mut share, true, false, 1000);
            timeout(MOMENT, small).await.expect("small ones that wait have their own");
            held.push(share);
        }
        assert!(taken(96 * 1024));
        let one_more = listener.take_small(&mut share, true, false, 1000);
        assert!(timeout(MOMENT, one_more).await.is_err(), "there is no more");
        let ordinary = listener.take_small(&mut share, false, false, 1000);
        timeout(MOMENT, ordinary).await.expect("others have their own");
        // The permits of the listener's old part are not those of the new part.
        large = Share::default();
        let ordinary = listener.grow(&mut large, Part::Records, 256 * 1024);
        timeout(MOMENT, ordinary).await.expect("others have their own");
        drop((large, held));
        drop(share);
        assert_eq!((listener.held_bytes(), process.held_bytes()), (0, 0));
    }

    #[tokio::test]
    async fn a_frame_larger_than_the_budget_passes_alone() {
        let budget = Budget::new(4096);
        let mut share = Share::default();
        budget.grow(&mut share, Part::Records, 1 << 30).await;
        assert_eq!(budget.held_bytes(), 4096);
    }

    #[tokio::test]
    async fn when_all_wait_for_more_one_goes_on() {
        let budget = Budget::new(4096);
        let (mut a, mut b) = (Share::default(), Share::default());
        budget.grow(&mut a, Part::Records, 2048).await;
        budget.grow(&mut b, Part::Records, 2048).await;
        timeout(MOMENT, budget.grow(&mut a, Part::Records, 4096)).await.expect("the overdraft is free");
        timeout(MOMENT, budget.grow(&mut a, Part::Records, 1 << 20))
            .await
            .expect("it holds for the whole frame");
        assert!(timeout(MOMENT, budget.grow(&mut b, Part::Records, 4096)).await.is_err(), "only one has it");
        drop(a);
        timeout(MOMENT, budget.grow(&mut b, Part::Records, 4096)).await.expect("what it held is free again");
        assert_eq!(budget.held_bytes(), 4096);
    }

    #[tokio::test]
    async fn a_listeners_budget_lies_within_that_of_the_process() {
        let process = Arc::new(Budget::new(16 * 1024));
        let (narrow, wide) =
            (Budget::within(process.clone(), 4096), Budget::within(process.clone(), 1 << 20));
        let (mut a, mut b) = (Share::default(), Share::default());
        narrow.grow(&mut a, Part::Records, 4096).await;
        assert_eq!((narrow.held_bytes(), process.held_bytes()), (4096, 4096));
        assert!(
            timeout(MOMENT, narrow.grow(&mut b, Part::Records, 1024)).await.is_err(),
            "the listener has no more"
        );
        assert_eq!(process.held_bytes(), 4096);
        timeout(MOMENT, wide.grow(&mut b, Part::Records, 12 * 1024)).await.expect("another one has");
        assert_eq!(process.held_bytes(), 16 * 1024);
        // The holder of the process's overdraft waits for nothing, not even for the listener's budget.
        timeout(MOMENT, narrow.grow(&mut a, Part::Records, 1 << 20)).await.expect("both overdrafts are free");
        timeout(MOMENT, narrow.grow(&mut a, Part::Records, 1 << 21))
            .await
            .expect("and held for the whole frame");
        drop((a, b));
        assert_eq!((narrow.held_bytes(), wide.held_bytes(), process.held_bytes()), (0, 0, 0));
    }
}
