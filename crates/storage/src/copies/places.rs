//! Where the batches of a stream are in the blocks of its log: the owner says it, and whoever has copies of the blocks finds the
//! batches there (KIP-392).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use model::{BatchHeader, Offset, StreamId};

use super::replay::lsn_of;
use crate::format::{ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, index};
use crate::log::Log;
use crate::outgoing::Block;
use crate::reader::ReadError;
use crate::stream::Stream;

/// The place of a batch in the log of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The position of its entry in the log.
    pub lsn: u64,
    /// Bytes of the batch.
    pub length: u32,
}

impl Log {
    /// The places of the batches of a stream with offsets in `from..until`, the one that has `from` among them. Blocks.
    ///
    /// # Errors
    /// The place of a batch cannot be told, because it is in no segment here.
    pub fn places(&self, stream: &Arc<Stream>, from: Offset, until: Offset) -> Result<Vec<Place>, ReadError> {
        let mut places = Vec::new();
        for source in self.shared.sources_between(stream, from, until)? {
            places.extend(source.places.iter().map(|place| Place {
                lsn: Lsn::new(source.segment.sequence, place.position).0,
                length: place.length,
            }));
        }
        Ok(places)
    }
}

/// Where the blocks of a copy begin in the log of their owner, of the newest blocks without a gap.
#[derive(Default, Debug)]
pub(super) struct Begins {
    /// The number of the first block that is known.
    first: u64,
    lsns: VecDeque<u64>,
}

impl Begins {
    /// Notes the next block.
    pub fn push(&mut self, block: &Block) {
        let Some(lsn) = lsn_of(block) else { return self.lsns.clear() };
        let follows = self.first + self.lsns.len() as u64 == block.number;
        if !follows || self.lsns.back().is_some_and(|last| *last >= lsn) {
            self.lsns.clear();
        }
        if self.lsns.is_empty() {
            self.first = block.number;
        }
        self.lsns.push_back(lsn);
    }

    /// Forgets the blocks below `number`.
    pub fn drop_below(&mut self, number: u64) {
        let count = usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let count = count.min(self.lsns.len());
        self.lsns.drain(..count);
        self.first += count as u64;
    }

    /// The number of the block that would have what is at `lsn`, and where that is in it.
    pub fn find(&self, lsn: u64) -> Option<(u64, usize)> {
        let at = self.lsns.partition_point(|begin| *begin <= lsn).checked_sub(1)?;
        let within = usize::try_from(lsn - self.lsns[at]).ok()?;
        Some((self.first + at as u64, within))
    }
}

/// The batch of a stream whose entry is at `at` in a block. `None` if there is none: the owner has its batch elsewhere by now.
pub(super) fn batch_at(block: &Block, at: usize, stream: StreamId, length: u32) -> Option<Bytes> {
    let entry = EntryHeader::decode(block.bytes.get(at..)?, block.generation)?;
    if entry.kind != EntryKind::Batch || entry.stream != stream || entry.length != length {
        return None;
    }
    let from = at.checked_add(ENTRY_HEADER_BYTES)?;
    let end = from.checked_add(index(length))?;
    if end > block.bytes.len() {
        return None;
    }
    let batch = block.bytes.slice(from..end);
    let header = BatchHeader::parse(&batch).ok().filter(|header| header.total_bytes == batch.len())?;
    model::batch::verify_crc(&batch, &header).ok()?;
    Some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, lsn: u64) -> Block {
        let mut bytes = vec![0; 48];
        bytes[16..24].copy_from_slice(&lsn.to_le_bytes());
        Block { number, generation: 1, bytes: bytes.into() }
    }

    #[test]
    fn blocks_are_found_by_what_is_in_them() {
        let mut begins = Begins::default();
        assert_eq!(begins.find(0), None);
        for (number, lsn) in [(7, 1000), (8, 2000), (9, 5000)] {
            begins.push(&block(number, lsn));
        }
        assert_eq!(begins.find(999), None);
        assert_eq!(
            [1000, 1999, 2000, 9000].map(|lsn| begins.find(lsn)),
            [Some((7, 0)), Some((7, 999)), Some((8, 0)), Some((9, 4000))]
        );
        begins.drop_below(8);
        assert_eq!((begins.find(1999), begins.find(2001)), (None, Some((8, 1))));
        begins.drop_below(3);
        assert_eq!(begins.find(2001), Some((8, 1)));
        begins.push(&block(11, 9000));
        assert_eq!((begins.find(5000), begins.find(9001)), (None, Some((11, 1))), "there was a gap");
        begins.push(&block(12, 10));
        assert_eq!((begins.find(9), begins.find(12)), (None, Some((12, 2))), "positions rise");
        begins.drop_below(u64::MAX);
        assert_eq!(begins.find(u64::MAX), None);
    }
}
