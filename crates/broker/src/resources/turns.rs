//! Turns for requests that need much memory for few bytes. A request with a hundred thousand partition indexes, for
//! instance, needs an answer for each of them.
//!
//! The memory of a request is reserved before it is allocated. The decoder measures it:
//! - A small request is decoded at once.
//! - A request that exceeds the small bound waits for a share of the memory for all middling requests.
//! - A request that exceeds the middling bound waits for its turn: large requests are handled one at a time.
//!
//! Middling and large requests are handled beside the threads that serve other connections. An answer that is much
//! larger than an ordinary frame also reserves memory until its client has received it.
//!
//! The allocator keeps freed memory, for each of its arenas. Large requests run on one thread after another, and each
//! would leave its memory in another arena. The turn of a large request therefore ends only when the allocator has
//! given that memory back to the system (see [`Turns::freed`]).
//!
//! Invariant: bytes of decoded elements and of data derived from them <= [`MIDDLING_TOGETHER_BYTES`] + one large
//! request + the small requests that threads are working on; bytes of large answers <= [`ANSWERS_TOGETHER_BYTES`] +
//! one.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::{Chunks, DecodeError, Message, Reader};

/// Bound in bytes of the elements of a small request: about a thousand elements, which take about a millisecond.
pub const SMALL_BYTES: usize = 64 * 1024;
/// Bound in bytes of the elements of a middling request.
const MIDDLING_BYTES: usize = 4 * 1024 * 1024;
/// Memory for the elements while they are handled and answered, as a multiple of their own size.
const DERIVED: usize = 4;
/// A larger frame may hold a large request.
const TRIED_BYTES: usize = 256 * 1024;
const MIDDLING_TOGETHER_BYTES: usize = 48 * 1024 * 1024;
/// Answers up to this size reserve no memory.
const ANSWER_BYTES: usize = 1024 * 1024;
const ANSWERS_TOGETHER_BYTES: usize = 32 * 1024 * 1024;
/// Bytes per permit.
const UNIT_BYTES: usize = 16 * 1024;

/// The turns of all connections.
#[derive(Debug)]
pub struct Turns {
    middling: Arc<Semaphore>,
    /// Held while a frame that may hold a large request is decoded as a middling one.
    trials: Semaphore,
    large: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    freed: Freed,
}

/// Where the turn of a large request goes when the request has released its memory. Without a receiver it ends there.
type Freed = Arc<OnceLock<UnboundedSender<OwnedSemaphorePermit>>>;

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

/// The reservation of a request with many elements, held until the request is answered.
#[derive(Debug)]
pub struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    /// Whether this is the turn of a large request.
    pub large: bool,
    freed: Freed,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.large
            && let (Some(freed), Some(permit)) = (self.freed.get(), self.permit.take())
        {
            // A receiver that is gone gives the permit back with the error, and dropping that ends the turn.
            drop(freed.send(permit));
        }
    }
}

impl Turns {
    /// Decodes a message that is not small, once its memory is reserved.
    pub async fn decode<M: Message>(&self, reader: Reader, version: i16) -> Result<(M, Turn), DecodeError> {
        // Only one such frame is decoded at a time, so that middling requests do not queue behind many of them.
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
        Turn { permit: Some(permit), large, freed: self.freed.clone() }
    }

    /// The turns of large requests that have released their memory. The allocator may still hold it. A turn ends when
    /// what is received is dropped, and the next large request begins. Only the first call gets them.
    pub fn freed(&self) -> UnboundedReceiver<OwnedSemaphorePermit> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.freed.set(sender);
        receiver
    }

    /// Reserves memory for an answer. The reservation ends when the last bytes of the answer are dropped.
    pub async fn hold(answers: Arc<Semaphore>, mut answer: Chunks) -> Chunks {
        let permit = take(&answers, answer.len().min(ANSWERS_TOGETHER_BYTES)).await;
        if let Some(last) = answer.parts.pop() {
            answer.parts.push(Bytes::from_owner(Held { bytes: last, _permit: permit }));
        }
        answer
    }

    /// Reserves memory for so many bytes of an answer that are nobody else's. The reservation ends when `last`, which is sent
    /// behind them, is dropped.
    pub async fn hold_until(&self, last: Bytes, bytes: usize) -> Bytes {
        let permit = take(&self.answers, bytes.min(ANSWERS_TOGETHER_BYTES)).await;
        Bytes::from_owner(Held { bytes: last, _permit: permit })
    }

    /// The pool in which an answer of this size reserves memory. `None` for a small answer.
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

/// Only one thread at a time does long work. The other cores serve other connections.
static BESIDE: Mutex<()> = Mutex::new(());

/// Runs work that may take long. With `long`, other tasks of this thread are first moved to another thread. Must not be
/// nested.
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn large(turns: &Turns) -> Turn {
        turns.turn(take(&turns.large, 1).await, true)
    }

    #[tokio::test]
    async fn the_next_large_request_begins_when_the_memory_of_the_last_was_given_back() {
        let turns = Turns::default();
        drop(large(&turns).await);
        // Without a receiver a turn ends at once.
        assert_eq!(turns.large.available_permits(), 1);
        let mut freed = turns.freed();
        let first = large(&turns).await;
        assert!(turns.large.try_acquire().is_err());
        drop(first);
        let held = freed.recv().await.unwrap();
        assert!(turns.large.try_acquire().is_err(), "the memory is not given back yet");
        drop(held);
        let second = large(&turns).await;
        drop(freed);
        drop(second);
        assert_eq!(turns.large.available_permits(), 1, "nobody gives memory back any more");
    }
}
