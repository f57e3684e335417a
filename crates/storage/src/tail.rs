//! The tail cache: the write buffers of the newest blocks, kept for the readers that follow the end of the log.
//!
//! It holds no copy: what it keeps are the frozen slices that were written. Bounded in bytes; the oldest block goes
//! first. A slice that a slow reader still holds keeps its buffer alive beyond that bound; the broker bounds those.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::format::Lsn;

/// Blocks from some position of the log to its end.
#[derive(Debug)]
pub(crate) struct TailCache {
    bytes_max: usize,
    blocks: RwLock<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    bytes: usize,
    newest_last: VecDeque<(Lsn, Bytes)>,
}

impl TailCache {
    pub fn new(bytes_max: usize) -> TailCache {
        TailCache { bytes_max, blocks: RwLock::default() }
    }

    /// Adds the newest block.
    pub fn push(&self, lsn: Lsn, block: Bytes) {
        let mut evicted = Vec::new();
        let mut blocks = self.blocks.write();
        assert!(blocks.newest_last.back().is_none_or(|(last, _)| *last < lsn), "blocks arrive in log order");
        blocks.bytes += block.len();
        blocks.newest_last.push_back((lsn, block));
        while blocks.bytes > self.bytes_max && blocks.newest_last.len() > 1 {
            let (_, oldest) = blocks.newest_last.pop_front().expect("more than one block is there");
            blocks.bytes -= oldest.len();
            evicted.push(oldest);
        }
        drop(blocks);
        drop(evicted);
    }

    /// The `length` bytes at `lsn`, if their block is still here.
    pub fn find(&self, lsn: Lsn, length: usize) -> Option<Bytes> {
        let blocks = self.blocks.read();
        let at = blocks.newest_last.partition_point(|(from, _)| *from <= lsn).checked_sub(1)?;
        let (from, block) = &blocks.newest_last[at];
        let from = usize::try_from(lsn.0 - from.0).ok()?;
        (from + length <= block.len()).then(|| block.slice(from..from + length))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.blocks.read().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_blocks_stay_within_the_bound() {
        let cache = TailCache::new(10_000);
        for n in 0..5u8 {
            cache.push(Lsn::new(1, 4096 * (1 + u32::from(n))), Bytes::from(vec![n; 4096]));
        }
        assert_eq!(cache.find(Lsn::new(1, 4096 * 5 + 7), 3).unwrap(), Bytes::from(vec![4u8; 3]));
        assert_eq!(cache.find(Lsn::new(1, 4096 * 4), 4096).unwrap()[0], 3);
        assert_eq!(cache.find(Lsn::new(1, 4096 * 3), 1), None);
        assert_eq!(cache.find(Lsn::new(1, 4096 * 6), 1), None);
        assert_eq!(cache.bytes(), 8192);
    }
}
