//! What the writer is asked to do, the bounded queue on which it is asked, and what it calls when it is done.
//!
//! Room is reserved before offsets are given out: [`Queue::admit`] refuses while a refusal still costs nothing. What was
//! admitted is written, or the whole log fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use disk::Waker;
use model::{BatchHeader, Offset, Timestamp};
use parking_lot::Mutex;

use crate::format::{BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES, SECTOR};
use crate::index::BATCH_INDEX_BYTES_MAX;
use crate::stream::Stream;

/// When an append is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Handed to the device (`acks=1`).
    Written,
    /// On the device: a crash or a power cut does not lose it (`acks=all`).
    Synced,
}

/// Called once for each append, from the writer's thread, in log order; must not block.
pub trait Completion: Send + Sync {
    /// The append reached its durability, or never will.
    fn complete(&self, result: Result<(), AppendError>);
}

/// Why an append was not done although it had been admitted. Nothing of it will ever be visible to readers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// A write or sync failed; the log takes no more appends until the server is restarted.
    #[error("the log stopped taking appends: {0}")]
    Poisoned(Arc<str>),
    /// The server is shutting down.
    #[error("the log is closed")]
    Closed,
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
    /// Larger than a segment takes.
    #[error("a batch of {bytes} bytes is larger than the {bytes_max} that a segment takes")]
    TooLarge {
        /// Of the batch.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// See [`AppendError`].
    #[error(transparent)]
    Stopped(#[from] AppendError),
}

/// What the log tells its user; called from the writer's thread, must not block.
pub trait Listener: Send + Sync {
    /// These streams have new committed records: their committed ends and the bytes added. A stream may occur more
    /// than once.
    fn committed(&self, streams: &[Committed]);

    /// Room was made: appends refused with [`AdmitError::Busy`] or [`AdmitError::Full`] may be tried again.
    fn room(&self) {}

    /// One group commit: its bytes on disk, its entries, and the nanoseconds from submission to being synced.
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

/// A listener for those who do not care.
#[derive(Debug)]
pub struct NoListener;

impl Listener for NoListener {
    fn committed(&self, _streams: &[Committed]) {}
}

/// One batch on its way into the log.
pub struct Append {
    /// Where it goes.
    pub stream: Arc<Stream>,
    /// The offset its first record gets; at or above the end of the stream.
    pub base_offset: Offset,
    /// As parsed from `batch`.
    pub header: BatchHeader,
    /// The batch as received: exactly `header.total_bytes`.
    pub batch: Bytes,
    /// Set for topics with `message.timestamp.type=LogAppendTime`.
    pub append_time: Option<Timestamp>,
    /// Written into the batch.
    pub leader_epoch: i32,
    /// When `done` is called; also decides whether its write must be durable at once.
    pub durability: Durability,
    /// Called in the end.
    pub done: Option<Arc<dyn Completion>>,
    /// The room reserved for it.
    pub admission: Admission,
}

pub(crate) enum Request {
    Append(Append),
    Trim { stream: Arc<Stream>, to: Offset, done: Option<Arc<dyn Completion>> },
    Delete { stream: Arc<Stream>, done: Option<Arc<dyn Completion>> },
    Stop,
}

/// Room in prepared segments, given back when dropped.
#[derive(Debug)]
pub struct Admission {
    room: Arc<Room>,
    bytes: u64,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.room.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// How many bytes the active and prepared segments still take, and how many of them are promised.
#[derive(Debug, Default)]
pub(crate) struct Room {
    free: AtomicU64,
    reserved: AtomicU64,
    out_of_space: std::sync::atomic::AtomicBool,
}

/// Kept back from appends so that trims and deletions, which make room, can always be written.
const ROOM_KEPT_BYTES: u64 = 256 * 1024;

impl Room {
    /// What a segment with `free` bytes left offers to appends: an eighth is left for footer and padding.
    pub fn of_segment(length: u32, free: u32) -> u64 {
        u64::from(free.saturating_sub(length / 8))
    }

    pub fn set_free(&self, bytes: u64) {
        self.free.store(bytes, Ordering::Release);
    }

    pub fn set_out_of_space(&self, out: bool) {
        self.out_of_space.store(out, Ordering::Release);
    }

    pub fn out_of_space(&self) -> bool {
        self.out_of_space.load(Ordering::Acquire)
    }

    fn admit(self: &Arc<Room>, batch_bytes: usize) -> Result<Admission, AdmitError> {
        // At worst a batch gets a block of its own.
        let padded = crate::format::sectors(batch_bytes + ENTRY_HEADER_BYTES + BLOCK_HEADER_BYTES);
        let bytes = (padded + BATCH_INDEX_BYTES_MAX) as u64;
        let before = self.reserved.fetch_add(bytes, Ordering::AcqRel);
        let admission = Admission { room: self.clone(), bytes };
        if before + bytes + ROOM_KEPT_BYTES > self.free.load(Ordering::Acquire) {
            drop(admission);
            return Err(if self.out_of_space() { AdmitError::Full } else { AdmitError::Busy });
        }
        Ok(admission)
    }
}

/// The way to the writer. Bounded by what [`Queue::admit`] lets in and by the broker's bound on bytes in flight.
pub(crate) struct Queue {
    pub room: Arc<Room>,
    state: Mutex<QueueState>,
    waker: Arc<dyn Waker>,
    batch_bytes_max: usize,
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<Request>,
    stopped: Option<AppendError>,
}

impl Queue {
    pub fn new(waker: Arc<dyn Waker>, room: Arc<Room>, batch_bytes_max: usize) -> Queue {
        Queue { room, state: Mutex::default(), waker, batch_bytes_max }
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

    /// Queues a request; after the end it fails at once through its completion.
    pub fn push(&self, request: Request) {
        let mut state = self.state.lock();
        if let Some(error) = state.stopped.clone() {
            drop(state);
            request.fail(&error);
            return;
        }
        let wake = state.requests.is_empty();
        state.requests.push_back(request);
        drop(state);
        if wake {
            self.waker.wake();
        }
    }

    /// Moves all queued requests to the end of `into`.
    pub fn take(&self, into: &mut VecDeque<Request>) {
        let mut state = self.state.lock();
        if into.is_empty() {
            std::mem::swap(into, &mut state.requests);
        } else {
            into.append(&mut state.requests);
        }
    }

    /// Refuses everything from now on with `error`; returns what was still queued.
    pub fn stop(&self, error: AppendError) -> VecDeque<Request> {
        let mut state = self.state.lock();
        state.stopped.get_or_insert(error);
        std::mem::take(&mut state.requests)
    }

    /// Whether something waits to be taken.
    pub fn has_requests(&self) -> bool {
        !self.state.lock().requests.is_empty()
    }

    pub fn stopped(&self) -> Option<AppendError> {
        self.state.lock().stopped.clone()
    }

    /// Wakes the writer, for news that is not a request.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

impl Request {
    pub fn fail(self, error: &AppendError) {
        let done = match self {
            Request::Append(append) => append.done,
            Request::Trim { done, .. } | Request::Delete { done, .. } => done,
            Request::Stop => None,
        };
        if let Some(done) = done {
            done.complete(Err(error.clone()));
        }
    }
}

const _: () = assert!(ROOM_KEPT_BYTES.is_multiple_of(SECTOR as u64));
