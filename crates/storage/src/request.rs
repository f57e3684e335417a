//! The requests to the writer, the bounded queue for them, and the calls that the writer makes when a request is done.
//!
//! Callers reserve room before they give out offsets: [`Queue::admit`] refuses while a refusal still costs nothing. An
//! admitted append is written, or the whole log fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use disk::Waker;
use model::{BatchHeader, Offset, Timestamp};
use parking_lot::Mutex;

pub use crate::completion::{AppendError, Completion};
use crate::format::{BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES, SECTOR};
use crate::index::BATCH_INDEX_BYTES_MAX;
use crate::segment::footer::{STREAM_FOOTER_BYTES, TABLE_PRODUCER_BYTES, TABLE_STREAM_BYTES};
use crate::stream::Stream;

/// Time that an append waits for the log to make room before it is refused.
pub const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// How often a thread that waits for room looks again.
const ROOM_LOOK: Duration = Duration::from_millis(1);

/// Calls `attempt` until it finds room, for at most [`ROOM_PATIENCE`]. Blocks.
pub fn wait_for_room<T>(mut attempt: impl FnMut() -> Result<T, AdmitError>) -> Result<T, AdmitError> {
    let deadline = Instant::now() + ROOM_PATIENCE;
    loop {
        match attempt() {
            Err(AdmitError::Busy) if Instant::now() < deadline => std::thread::sleep(ROOM_LOOK),
            done => return done,
        }
    }
}

/// When an append is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Handed to the device (`acks=1`).
    Written,
    /// On the device: a crash or a power cut does not lose it (`acks=all`).
    Synced,
    /// Visible to readers. That is as [`Durability::Synced`], except in streams that wait ([`crate::Level::waits`]).
    Visible,
}

/// Why an append may not begin.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AdmitError {
    /// Room is being prepared: try again after [`Listener::room`].
    #[error("no prepared segment has room at this moment")]
    Busy,
    /// The disk has no room for another segment.
    #[error("the disk is full")]
    Full,
    /// The batch is larger than a segment takes.
    #[error("a batch of {bytes} bytes is larger than the {bytes_max} that a segment takes")]
    TooLarge {
        /// Bytes of the batch.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The object store does not take the records of a diskless stream at the moment.
    #[error("{0}")]
    Unstorable(Arc<str>),
    /// See [`AppendError`].
    #[error(transparent)]
    Stopped(#[from] AppendError),
}

/// The log's calls to its user, from the thread that makes records visible; they must not block.
pub trait Listener: Send + Sync {
    /// These streams have new committed records: their committed ends and the bytes added. A stream may occur more
    /// than once.
    fn committed(&self, streams: &[Committed]);

    /// Room was made: appends that were refused with [`AdmitError::Busy`] or [`AdmitError::Full`] may be tried again.
    fn room(&self) {}

    /// One group commit: its bytes on disk, its entries, and the nanoseconds from submission to sync.
    fn group_commit(&self, _bytes: usize, _entries: u32, _nanos: u64) {}
}

/// A stream that grew.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The stream.
    pub stream: Arc<Stream>,
    /// Its new committed end.
    pub end: Offset,
    /// Bytes of the batch.
    pub bytes: u32,
}

/// A listener that ignores all calls.
#[derive(Debug)]
pub struct NoListener;

impl Listener for NoListener {
    fn committed(&self, _streams: &[Committed]) {}
}

/// One batch to append.
pub struct Append {
    /// The stream that gets the batch.
    pub stream: Arc<Stream>,
    /// The offset of its first record; at or above the end of the stream.
    pub base_offset: Offset,
    /// As parsed from `batch`.
    pub header: BatchHeader,
    /// The batch as received: exactly `header.total_bytes`.
    pub batch: Bytes,
    /// Set for topics with `message.timestamp.type=LogAppendTime`.
    pub append_time: Option<Timestamp>,
    /// Written into the batch.
    pub leader_epoch: i32,
    /// When `done` is called. Also decides whether the write must be durable at once.
    pub durability: Durability,
    /// Called at the end, after success or failure.
    pub done: Option<Arc<dyn Completion>>,
    /// The room reserved for it.
    pub admission: Admission,
}

pub(crate) enum Request {
    Append(Append),
    Trim { stream: Arc<Stream>, to: Offset, done: Option<Arc<dyn Completion>> },
    Delete { stream: Arc<Stream>, done: Option<Arc<dyn Completion>> },
}

/// A reservation of room in prepared segments. Dropping it gives the room back.
#[derive(Debug)]
pub struct Admission {
    room: Arc<Room>,
    bytes: u64,
}

impl Admission {
    /// Takes over the reservation of `other`.
    pub(crate) fn absorb(&mut self, mut other: Admission) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.room.release(self.bytes);
        }
    }
}

/// The bytes that the active and the prepared segments still take, and the share of them that is promised.
///
/// Batches are placed in the order of their arrival and never split. Every segment but the last may therefore end with
/// a gap into which the next batch did not fit. A promise counts this gap as large as the largest promised batch. The
/// promised batches then fit in any order.
pub(crate) struct Room {
    state: Mutex<RoomState>,
    out_of_space: AtomicBool,
    waker: Arc<dyn Waker>,
}

#[derive(Debug, Default)]
struct RoomState {
    active: u64,
    prepared: Vec<u64>,
    reserved: u64,
    /// The largest promise since there was last none.
    largest: u64,
    /// The smallest refused request since the last call of [`Listener::room`].
    refused: Option<u64>,
    /// The disk has no room for a segment that takes requests of so many bytes.
    too_long: Option<u64>,
}

/// Kept back from appends, so that trims and deletions can always be written. They make room.
const ROOM_KEPT_BYTES: u64 = 256 * 1024;
/// What others may have been promised while a request waits that is longer than all segments.
const ROOM_LONG_BYTES: u64 = 1024 * 1024;
/// Segments whose stream table grows with one more stream or producer: the active one and the prepared ones.
const SEGMENTS_AHEAD: usize = 4;

impl Room {
    fn new(waker: Arc<dyn Waker>) -> Room {
        Room { state: Mutex::default(), out_of_space: AtomicBool::new(false), waker }
    }

    /// The bytes that a segment of `length` bytes offers to appends, with `free` bytes left for blocks and a footer of
    /// `footer` bytes. A small part is kept back for blocks that no append pays for: barriers, marks, trims.
    pub fn of_segment(length: u32, free: u32, footer: usize) -> u64 {
        u64::from(free.saturating_sub(length / 32)).saturating_sub(footer as u64)
    }

    /// Sets the bytes that the active segment offers, as of its last block.
    pub fn set_active(&self, bytes: u64) {
        self.state.lock().active = bytes;
    }

    /// Sets the bytes that the prepared segments offer, in the order of their use.
    pub fn set_prepared(&self, bytes: impl Iterator<Item = u64>) {
        let mut state = self.state.lock();
        state.prepared.clear();
        state.prepared.extend(bytes);
    }

    pub fn set_out_of_space(&self, out: bool) {
        self.out_of_space.store(out, Ordering::Release);
    }

    pub fn out_of_space(&self) -> bool {
        self.out_of_space.load(Ordering::Acquire)
    }

    /// Bytes of segments that are neither used nor promised.
    pub fn left(&self) -> u64 {
        let state = self.state.lock();
        (state.active + state.prepared.iter().sum::<u64>()).saturating_sub(state.reserved)
    }

    /// Whether a refused caller waits for room.
    pub fn is_refusing(&self) -> bool {
        self.state.lock().refused.is_some()
    }

    /// Whether a request was refused for lack of disk space, and would still be refused.
    pub fn is_full(&self) -> bool {
        let state = self.state.lock();
        self.out_of_space() && state.refused.is_some_and(|bytes| !state.fits(bytes))
    }

    /// The bytes of a refused request that would not be admitted either if next to nothing else were promised: the segments are too
    /// short for it.
    pub fn too_long(&self) -> Option<u64> {
        let state = self.state.lock();
        state.refused.filter(|bytes| !state.fits_beside(ROOM_LONG_BYTES, *bytes, *bytes))
    }

    /// From now on, requests as long as the refused one are refused for lack of disk space, which others are not. Returns false
    /// if such requests were so before.
    pub fn refuse_too_long(&self) -> bool {
        let mut state = self.state.lock();
        let (from, before) = (state.refused.take(), state.too_long);
        state.too_long = [from, before].into_iter().flatten().min();
        state.too_long != before
    }

    /// Takes [`Room::refuse_too_long`] back: there is another segment.
    pub fn forget_too_long(&self) {
        self.state.lock().too_long = None;
    }

    /// Whether a refused request would be admitted now. Reports it once.
    pub fn reopened(&self) -> bool {
        let mut state = self.state.lock();
        let reopened = state.refused.is_some_and(|bytes| state.fits(bytes));
        if reopened {
            state.refused = None;
        }
        reopened
    }

    fn admit(self: &Arc<Room>, batch_bytes: usize) -> Result<Admission, AdmitError> {
        // At worst a batch gets a block of its own, and is the first of its stream and of its producer.
        let padded = crate::format::sectors(batch_bytes + ENTRY_HEADER_BYTES + BLOCK_HEADER_BYTES);
        let footer = BATCH_INDEX_BYTES_MAX + STREAM_FOOTER_BYTES;
        let bytes = (padded + footer + SEGMENTS_AHEAD * (TABLE_STREAM_BYTES + TABLE_PRODUCER_BYTES)) as u64;
        let mut state = self.state.lock();
        if !state.fits(bytes) {
            state.refused = Some(state.refused.map_or(bytes, |least| least.min(bytes)));
            let too_long = state.too_long.is_some_and(|from| bytes >= from);
            return Err(if self.out_of_space() || too_long { AdmitError::Full } else { AdmitError::Busy });
        }
        state.reserved += bytes;
        state.largest = state.largest.max(bytes);
        Ok(Admission { room: self.clone(), bytes })
    }

    fn release(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.reserved -= bytes;
        if state.reserved == 0 {
            state.largest = 0;
        }
        let news = state.refused.is_some_and(|bytes| state.fits(bytes));
        drop(state);
        if news {
            // The writer calls the listener.
            self.waker.wake();
        }
    }
}

impl RoomState {
    fn fits(&self, bytes: u64) -> bool {
        self.fits_beside(self.reserved, self.largest.max(bytes), bytes)
    }

    /// Whether `bytes` fit where `reserved` bytes are promised, in batches of which `gap` is the largest.
    fn fits_beside(&self, reserved: u64, gap: u64, bytes: u64) -> bool {
        let (last, before) =
            self.prepared.split_last().map_or((self.active, None), |(last, rest)| (*last, Some(rest)));
        let before = before
            .map_or(0, |rest| rest.iter().chain([&self.active]).map(|room| room.saturating_sub(gap)).sum());
        reserved + bytes + ROOM_KEPT_BYTES <= last + before
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Room").field(&*self.state.lock()).finish()
    }
}

/// The queue to the writer. The bounds are the reservations of [`Queue::admit`] and the broker's bound on bytes in
/// flight.
pub(crate) struct Queue {
    pub room: Arc<Room>,
    state: Mutex<QueueState>,
    waker: Arc<dyn Waker>,
    batch_bytes_max: usize,
}

/// The appends or bytes for which it is worth waking the writer: either of the two is enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Enough {
    pub appends: usize,
    pub bytes: usize,
}

impl Enough {
    pub const ANY: Enough = Enough { appends: 1, bytes: 1 };
}

impl Default for Enough {
    fn default() -> Enough {
        Enough::ANY
    }
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<Request>,
    /// Bytes of the queued appends.
    bytes: usize,
    /// When the writer is woken for the queue.
    wake_from: Enough,
    /// A stop was asked for. Queued requests are still done.
    stopping: bool,
    stopped: Option<AppendError>,
}

impl Queue {
    pub fn new(waker: Arc<dyn Waker>, batch_bytes_max: usize) -> Queue {
        Queue { room: Arc::new(Room::new(waker.clone())), state: Mutex::default(), waker, batch_bytes_max }
    }

    pub fn admit(&self, bytes: usize) -> Result<Admission, AdmitError> {
        if bytes > self.batch_bytes_max {
            return Err(AdmitError::TooLarge { bytes, bytes_max: self.batch_bytes_max });
        }
        if let Some(error) = &self.state.lock().stopped {
            return Err(error.clone().into());
        }
        self.room.admit(bytes)
    }

    /// Queues a request. After the end of the log, the request fails at once through its completion.
    pub fn push(&self, request: Request) {
        let mut state = self.state.lock();
        if let Some(error) = state.stopped.clone() {
            drop(state);
            request.fail(&error);
            return;
        }
        let wake = match &request {
            Request::Append(append) => {
                state.bytes += append.batch.len();
                state.requests.len() + 1 >= state.wake_from.appends || state.bytes >= state.wake_from.bytes
            }
            Request::Trim { .. } | Request::Delete { .. } => true,
        };
        state.requests.push_back(request);
        drop(state);
        if wake {
            self.waker.wake();
        }
    }

    /// Whether a stop was asked for, or the log stopped by itself.
    pub fn is_stopping(&self) -> bool {
        let state = self.state.lock();
        state.stopping || state.stopped.is_some()
    }

    /// Asks the writer to end after all queued requests. This is not a request itself, because a request that waits for
    /// room must not delay it.
    pub fn ask_to_stop(&self) {
        self.state.lock().stopping = true;
        self.waker.wake();
    }

    /// Moves all queued requests to the end of `into`. Returns true if the writer is asked to end.
    pub fn take(&self, into: &mut VecDeque<Request>) -> bool {
        let mut state = self.state.lock();
        state.bytes = 0;
        if into.is_empty() {
            std::mem::swap(into, &mut state.requests);
        } else {
            into.append(&mut state.requests);
        }
        state.stopping
    }

    /// Refuses all further requests with `error`. Returns the requests that were still queued.
    pub fn stop(&self, error: AppendError) -> VecDeque<Request> {
        let mut state = self.state.lock();
        state.stopped.get_or_insert(error);
        std::mem::take(&mut state.requests)
    }

    /// From now on the writer is woken when `enough` appends are queued, and at once for other requests. Returns false
    /// if that many are queued already.
    pub fn wake_from(&self, enough: Enough) -> bool {
        let mut state = self.state.lock();
        let there = state.requests.len() >= enough.appends || state.bytes >= enough.bytes;
        state.wake_from = enough;
        !there
    }

    /// Whether requests are queued.
    pub fn has_requests(&self) -> bool {
        !self.state.lock().requests.is_empty()
    }

    pub fn stopped(&self) -> Option<AppendError> {
        self.state.lock().stopped.clone()
    }

    /// Wakes the writer for news other than a request.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

impl Request {
    /// The same request, which calls `completion` at the end.
    pub fn with(mut self, completion: Arc<dyn Completion>) -> Request {
        match &mut self {
            Request::Append(append) => append.done = Some(completion),
            Request::Trim { done, .. } | Request::Delete { done, .. } => *done = Some(completion),
        }
        self
    }

    pub fn fail(self, error: &AppendError) {
        let done = match self {
            Request::Append(append) => append.done,
            Request::Trim { done, .. } | Request::Delete { done, .. } => done,
        };
        if let Some(done) = done {
            done.complete(Err(error.clone()));
        }
    }
}

const _: () = assert!(ROOM_KEPT_BYTES.is_multiple_of(SECTOR as u64));
