//! Appends what only copies have to a log that was restored from its objects.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use model::{BatchHeader, Offset, StreamId};

use crate::completion::Completion;
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, index,
    seeded_crc,
};
use crate::log::Log;
use crate::outgoing::Block;
use crate::recovery::scan::entry_at;
use crate::request::{AdmitError, Append, Durability, Request};

/// Why blocks cannot be appended.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The block is not as its owner wrote it.
    #[error("block {0} of the copy is damaged")]
    Damaged(u64),
    /// The log does not take them.
    #[error(transparent)]
    Admit(#[from] AdmitError),
}

/// Where the position of a block stands in its header.
const LSN_AT: std::ops::Range<usize> = 16..24;

/// Where a block begins in the log of its owner, as it says itself.
pub(super) fn lsn_of(block: &Block) -> Option<u64> {
    Some(u64::from_le_bytes(block.bytes.get(LSN_AT)?.try_into().ok()?))
}

/// The header and the payload of a block that is as its owner wrote it. `None` for another one.
pub(super) fn whole(block: &Block) -> Option<(BlockHeader, &[u8])> {
    let Block { generation, bytes, .. } = block;
    let header = BlockHeader::decode(bytes, *generation, Lsn(lsn_of(block)?))?;
    let payload = bytes.get(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + index(header.length))?;
    let is_whole = seeded_crc(*generation, payload) == header.payload_crc;
    (is_whole && header.kind == BlockKind::Entries).then_some((header, payload))
}

/// The entries of a block with their bodies, in order. `None` if it is damaged.
fn entries(block: &Block) -> Option<Vec<(EntryHeader, Bytes)>> {
    let Block { generation, bytes, .. } = block;
    let (header, payload) = whole(block)?;
    let (mut entries, mut at) = (Vec::new(), 0);
    for _ in 0..header.entries {
        let found = entry_at(payload, at, 0, *generation)?;
        let from = BLOCK_HEADER_BYTES + at + ENTRY_HEADER_BYTES;
        let body = bytes.slice(from..from + found.body.len());
        at += ENTRY_HEADER_BYTES + body.len();
        entries.push((found.entry, body));
    }
    Some(entries)
}

/// The blocks of a former owner, appended anew, with the offsets and leader epochs that their batches have. Nobody else appends
/// meanwhile.
pub struct Replay<'a> {
    log: &'a Log,
    /// The ends of the streams that have got batches.
    ends: HashMap<StreamId, Offset>,
    /// Held back, so that the last request tells of all.
    last: Option<Request>,
    /// The batches that the log did not have.
    pub batches: u64,
}

impl std::fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("batches", &self.batches).finish_non_exhaustive()
    }
}

impl Log {
    /// Begins to append the blocks of a former owner. All streams have their levels by then: what a stream gets before is not
    /// known to be missing in the object store.
    pub fn replay(&self) -> Replay<'_> {
        Replay { log: self, ends: HashMap::new(), last: None, batches: 0 }
    }
}

impl Replay<'_> {
    /// Appends what the log does not have of the next block. After [`AdmitError::Busy`] the same block may be given again.
    pub fn add(&mut self, block: &Block) -> Result<(), ReplayError> {
        let damaged = || ReplayError::Damaged(block.number);
        for (entry, body) in entries(block).ok_or_else(damaged)? {
            let id = entry.stream;
            let (stream, mut starts) = (self.log.stream(id), None);
            match entry.kind {
                EntryKind::Batch => {
                    let header = BatchHeader::parse(&body).map_err(|_| damaged())?;
                    let end = *self.ends.entry(id).or_insert_with(|| stream.lock().next);
                    // Objects have whole batches of a stream, in their order.
                    if header.next_offset() <= end {
                        continue;
                    }
                    // A request that is held back must not keep others from making room.
                    self.push(None);
                    let admission = self.log.admit(body.len())?;
                    if header.base_offset < end {
                        // All below was trimmed, and the start lies within this batch.
                        stream.lock().begin_with(header.base_offset);
                        starts = Some(Request::Trim { stream: stream.clone(), to: end, done: None });
                    }
                    self.ends.insert(id, header.next_offset());
                    self.batches += 1;
                    self.push(Some(Request::Append(Append {
                        stream,
                        base_offset: header.base_offset,
                        header,
                        batch: body,
                        append_time: None,
                        leader_epoch: header.leader_epoch,
                        durability: Durability::Synced,
                        done: None,
                        admission,
                    })));
                    if starts.is_some() {
                        self.push(starts);
                    }
                }
                EntryKind::Trim => {
                    // No copy has a trim and lacks records below that no object knows of.
                    let end = *self.ends.entry(id).or_insert_with(|| stream.lock().next);
                    let to = entry.base_offset.min(end);
                    let mut state = stream.lock();
                    state.trimming = state.trimming.max(to);
                    drop(state);
                    self.push(Some(Request::Trim { stream, to, done: None }));
                }
                EntryKind::Delete => {
                    self.ends.remove(&id);
                    self.push(Some(Request::Delete { stream, done: None }));
                }
                EntryKind::Range => return Err(damaged()),
            }
        }
        Ok(())
    }

    /// Ends it. `done` is called once everything is synced.
    pub fn finish(mut self, done: Arc<dyn Completion>) {
        match self.last.take() {
            Some(last) => self.log.shared.queue.push(last.with(done)),
            None => done.complete(Ok(())),
        }
    }

    fn push(&mut self, next: Option<Request>) {
        if let Some(request) = std::mem::replace(&mut self.last, next) {
            self.log.shared.queue.push(request);
        }
    }
}
