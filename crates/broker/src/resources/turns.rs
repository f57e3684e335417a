//! Turns for requests that make much of few bytes: each of a hundred thousand indexes is answered, and may be kept.
//!
//! What a request makes us allocate is charged before it is made. How much that will be, its decoder finds out: a request of
//! few elements is decoded at once; one that runs out of that bound waits for its share of what middling requests have
//! together, and one that runs out of that, too, for its turn, since large ones are worked on one at a time. Both are
//! worked on beside the threads that serve everybody else.
//!
//! An answer of much more than a frame of ordinary size takes room of its own until its client has taken it.
//!
//! Invariant: bytes of decoded elements and what is derived of them <= [`MIDDLING_TOGETHER_BYTES`] + one large request + the
//! small ones that threads are at; bytes of large answers <= [`ANSWERS_TOGETHER_BYTES`] + one.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use wire::{Chunks, DecodeError, Message, Reader};

/// Element memory of a small request: a thousand elements, worked on in a millisecond or so.
pub const SMALL_BYTES: usize = 64 * 1024;
/// Element memory of a middling one.
const MIDDLING_BYTES: usize = 4 * 1024 * 1024;
/// What elements become while they are worked on and answered, in times their own size.
const DERIVED: usize = 4;
/// Frames of more than this may be of a large request.
const TRIED_BYTES: usize = 256 * 1024;
const MIDDLING_TOGETHER_BYTES: usize = 48 * 1024 * 1024;
/// Answers up to this size take no room.
const ANSWER_BYTES: usize = 1024 * 1024;
const ANSWERS_TOGETHER_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that a permit stands for.
const UNIT_BYTES: usize = 16 * 1024;

/// The turns of all connections.
#[derive(Debug)]
pub struct Turns {
    middling: Arc<Semaphore>,
    /// Held while a frame that may be large is tried as a middling one.
    trials: Semaphore,
    large: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    /// Told when much memory was freed.
    freed: Arc<Notify>,
}

impl Default for Turns {
    fn default() -> Turns {
        let units = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT_BYTES));
        Turns {
            middling: units(MIDDLING_TOGETHER_BYTES),
            trials: Semaphore::new(1),
            large: Arc::new(Semaphore::new(1)),
            answers: units(ANSWERS_TOGETHER_BYTES),
            freed: Arc::default(),
        }
    }
}

/// What a request of many elements holds until it is answered.
#[derive(Debug)]
pub struct Turn {
    _permit: OwnedSemaphorePermit,
    /// Whether it is the one of a large request.
    pub large: bool,
    freed: Arc<Notify>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.large {
            self.freed.notify_one();
        }
    }
}

impl Turns {
    /// Decodes a message that is not small, once there is room for it.
    pub async fn decode<M: Message>(&self, reader: Reader, version: i16) -> Result<(M, Turn), DecodeError> {
        // One such frame at a time, so that others that are middling do not queue behind all of them.
        let tried = reader.remaining() > TRIED_BYTES;
        let trial = if tried { Some(self.trials.acquire().await.expect("it is never closed")) } else { None };
        let mut permit = take(&self.middling, MIDDLING_BYTES * DERIVED).await;
        let mut bounded = reader.limited(MIDDLING_BYTES);
        match beside(true, || M::decode(&mut bounded, version)) {
            Err(DecodeError::Budget { .. }) if bounded.budget() < reader.budget() => {}
            decoded => {
                let used = (MIDDLING_BYTES.min(reader.budget()) - bounded.budget()) * DERIVED;
                drop(permit.split(permit.num_permits().saturating_sub(used.div_ceil(UNIT_BYTES))));
                return decoded.map(|message| (message, self.turn(permit, false)));
            }
        }
        drop((permit, bounded, trial));
        let turn = self.turn(take(&self.large, 1).await, true);
        let mut reader = reader;
        Ok((beside(true, || M::decode(&mut reader, version))?, turn))
    }

    fn turn(&self, permit: OwnedSemaphorePermit, large: bool) -> Turn {
        Turn { _permit: permit, large, freed: self.freed.clone() }
    }

    /// Waits until a large request was answered since the last call: the allocator may hold what it needed.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Waits for room for an answer; it is given back once the last of its bytes is dropped.
    pub async fn hold(answers: Arc<Semaphore>, mut answer: Chunks) -> Chunks {
        let permit = take(&answers, answer.len().min(ANSWERS_TOGETHER_BYTES)).await;
        if let Some(last) = answer.parts.pop() {
            answer.parts.push(Bytes::from_owner(Held { bytes: last, _permit: permit }));
        }
        answer
    }

    /// Where an answer of so many bytes takes room, if it does.
    pub fn room_for(&self, bytes: usize) -> Option<Arc<Semaphore>> {
        (bytes > ANSWER_BYTES).then(|| self.answers.clone())
    }
}

async fn take(pool: &Arc<Semaphore>, bytes: usize) -> OwnedSemaphorePermit {
    let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
    pool.clone().acquire_many_owned(units).await.expect("a pool is never closed")
}

struct Held {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// One thread at a time is at what takes long: the other cores are for everybody else.
static BESIDE: Mutex<()> = Mutex::new(());

/// Does what may take long; with `long`, what else waits for this thread is handed to another one before. Not to be called
/// within itself.
pub fn beside<T>(long: bool, work: impl FnOnce() -> T) -> T {
    let others = || Handle::try_current().is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread);
    if long && others() {
        tokio::task::block_in_place(|| {
            let _one = BESIDE.lock();
            work()
        })
    } else {
        work()
    }
}
