//! The owner's side of the copy set of a log ([0030](../../../docs/decisions/0030-copy-sets.md)): the blocks that go out, and the
//! records that wait for copies.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::format::sectors;
use crate::request::{AdmitError, Committed, Listener};
use crate::stream::Waiter;

/// A block with entries, as the disk of the log's owner gets it, without the padding to whole sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number. An opening of a log numbers its blocks from 0 on, without gaps.
    pub number: u64,
    /// The generation of its segment, which seeds its checksums.
    pub generation: u64,
    /// Its header and its entries.
    pub bytes: Bytes,
}

impl Block {
    /// Bytes of memory that it keeps: it is part of a buffer in which blocks begin at sectors.
    pub fn memory_bytes(&self) -> usize {
        sectors(self.bytes.len())
    }
}

/// Takes the blocks of a log in their order.
pub trait BlockSink: Send + Sync {
    /// The next block. The log's own disk does not have it yet. The log's writer calls this, so it must not block.
    fn block(&self, block: Block);

    /// The object store has all records of the blocks below this number, as far as they are still needed. The log's uploader
    /// calls this.
    fn stored(&self, number: u64);
}

/// Records that may wait for the copy set, in batches. Appends to replicated streams are refused beyond that.
const WAITING_MAX: usize = 1 << 20;

/// What a log sends to its copy set. Without a sink it has none, and all its records are visible once they are synced.
#[derive(Default)]
pub(crate) struct Outgoing {
    sink: OnceLock<Arc<dyn BlockSink>>,
    /// A stream waits for the copy set.
    wanted: AtomicBool,
    state: Mutex<State>,
    /// Held while records become visible: streams grow in the order of the blocks.
    showing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The number of the next block.
    next: u64,
    /// The blocks below are synced here.
    synced: u64,
    /// The copy set has the blocks below.
    copied: u64,
    /// The object store has the blocks below.
    stored: u64,
    /// What each synced block has added to replicated streams, of the blocks that the copy set does not have.
    waiting: VecDeque<(u64, Vec<Committed>)>,
    /// The batches in `waiting`.
    batches: usize,
}

impl State {
    /// Takes what the next block has added, if its number is below `number`.
    fn take_below(&mut self, number: u64) -> Option<Vec<Committed>> {
        let (_, added) = self.waiting.pop_front_if(|(of, _)| *of < number)?;
        self.batches -= added.len();
        Some(added)
    }
}

impl Outgoing {
    /// Sends all blocks from now on to `sink`. There is one sink at most.
    pub fn begin(&self, sink: Arc<dyn BlockSink>) {
        assert!(self.sink.set(sink).is_ok(), "a log has one copy set");
    }

    /// A stream waits for the copy set from now on.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    /// Whether a stream has ever waited for the copy set.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Sends a block with entries. Returns its number, if there is a sink.
    pub fn send(&self, generation: u64, bytes: Bytes) -> Option<u64> {
        let sink = self.sink.get()?;
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            state.next - 1
        };
        sink.block(Block { number, generation, bytes });
        Some(number)
    }

    /// Notes that a block is synced here. Keeps what it has `added` to replicated streams until the copy set has the block;
    /// returns it if that is so already.
    pub fn synced(&self, number: Option<u64>, added: Vec<Committed>) -> Vec<Committed> {
        let Some(number) = number else { return added };
        let mut state = self.state.lock();
        state.synced = number + 1;
        if number < state.copied || added.is_empty() {
            return added;
        }
        state.batches += added.len();
        state.waiting.push_back((number, added));
        Vec::new()
    }

    /// The number of the next block, and that of the first one that the object store lacks.
    pub fn sent_and_stored(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.next, state.stored)
    }

    /// The blocks below this number are synced here.
    pub fn synced_below(&self) -> u64 {
        self.state.lock().synced
    }

    /// Fails if too many records wait for the copy set.
    pub fn check(&self) -> Result<(), AdmitError> {
        let waiting = self.state.lock().batches;
        match waiting >= WAITING_MAX {
            true => Err(AdmitError::Unstorable(format!("{waiting} batches wait for their copies").into())),
            false => Ok(()),
        }
    }

    /// The object store has the blocks below `number`. Their records are visible.
    pub fn stored(&self, number: u64) {
        let mut state = self.state.lock();
        state.stored = number;
        while state.take_below(number).is_some() {}
        drop(state);
        if let Some(sink) = self.sink.get() {
            sink.stored(number);
        }
    }

    /// The copy set has the blocks below `number`, as far as they were sent: makes their records visible.
    pub fn copied(&self, number: u64, listener: &dyn Listener) {
        let _showing = self.showing.lock();
        let added: Vec<Committed> = {
            let mut state = self.state.lock();
            let copied = state.copied.max(number.min(state.next));
            state.copied = copied;
            std::iter::from_fn(|| state.take_below(copied)).flatten().collect()
        };
        let (grown, waiters) = show(added);
        // The listener comes before the completions, as in the writer.
        if !grown.is_empty() {
            listener.committed(&grown);
        }
        waiters.into_iter().for_each(|waiter| waiter.done.complete(Ok(())));
    }
}

/// Makes what blocks have `added` to streams visible. Returns what the listener has to hear of, and whoever waited for it. The
/// object store may have been faster.
pub(crate) fn show(added: Vec<Committed>) -> (Vec<Committed>, Vec<Waiter>) {
    let (mut grown, mut waiters) = (Vec::new(), Vec::new());
    for committed in added {
        let shown = committed.stream.lock().show(committed.end);
        if let Some(shown) = shown {
            waiters.extend(shown);
            grown.push(committed);
        }
    }
    (grown, waiters)
}
