//! The tail cache: the write buffers of the newest blocks, kept for the readers that follow the end of the log.
//!
//! It holds no copy: what it keeps are the frozen slices that were written. Bounded in bytes; the oldest block goes
//! first. A slice that a slow reader still holds keeps its buffer alive beyond that bound; the broker bounds those.
//!
//! A reader that once fell out of it reads from the disk, and where the disk is busy with writing that is too slow ever to
//! come back. So it is to outlast a short stall of all readers; of a log that takes little that needs little memory.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::format::Lsn;

/// A block is kept so long, as far as there is room for it.
const KEPT_FOR: Duration = Duration::from_secs(2);
/// So many bytes are kept whatever their age.
const KEPT_BYTES: usize = 128 * 1024 * 1024;

/// Blocks from some position of the log to its end.
#[derive(Debug)]
pub(crate) struct TailCache {
    bytes_max: usize,
    blocks: RwLock<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    bytes: usize,
    newest_last: VecDeque<Block>,
}

#[derive(Debug)]
struct Block {
    lsn: Lsn,
    /// When it came, in nanoseconds of the log's clock.
    came: u64,
    bytes: Bytes,
}

impl TailCache {
    pub fn new(bytes_max: usize) -> TailCache {
        TailCache { bytes_max, blocks: RwLock::default() }
    }

    /// Adds the newest block, at `now` in nanoseconds.
    pub fn push(&self, lsn: Lsn, bytes: Bytes, now: u64) {
        let mut blocks = self.blocks.write();
        assert!(blocks.newest_last.back().is_none_or(|last| last.lsn < lsn), "blocks arrive in log order");
        blocks.bytes += bytes.len();
        blocks.newest_last.push_back(Block { lsn, came: now, bytes });
        let evicted = blocks.evict(self.bytes_max, now);
        drop(blocks);
        drop(evicted);
    }

    /// Drops what is too old: nothing else does when no more blocks come.
    pub fn expire(&self, now: u64) {
        let evicted = self.blocks.write().evict(self.bytes_max, now);
        drop(evicted);
    }

    /// The `length` bytes at `lsn`, if their block is still here.
    pub fn find(&self, lsn: Lsn, length: usize) -> Option<Bytes> {
        let blocks = self.blocks.read();
        let at = blocks.newest_last.partition_point(|block| block.lsn <= lsn).checked_sub(1)?;
        let Block { lsn: begin, bytes, .. } = &blocks.newest_last[at];
        let from = usize::try_from(lsn.0 - begin.0).ok()?;
        (from + length <= bytes.len()).then(|| bytes.slice(from..from + length))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.blocks.read().bytes
    }
}

impl Blocks {
    /// The blocks that are to go; freeing them takes a while, which nobody should wait for.
    fn evict(&mut self, bytes_max: usize, now: u64) -> Vec<Bytes> {
        let mut evicted = Vec::new();
        while self.newest_last.len() > 1
            && let Some(oldest) = self.newest_last.front()
        {
            let old = u128::from(now.saturating_sub(oldest.came)) > KEPT_FOR.as_nanos();
            if self.bytes <= bytes_max && !(old && self.bytes > KEPT_BYTES) {
                break;
            }
            let oldest = self.newest_last.pop_front().expect("it was just seen");
            self.bytes -= oldest.bytes.len();
            evicted.push(oldest.bytes);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_blocks_stay_within_the_bound() {
        let cache = TailCache::new(10_000);
        for n in 0..5u8 {
            cache.push(Lsn::new(1, 4096 * (1 + u32::from(n))), Bytes::from(vec![n; 4096]), 0);
        }
        assert_eq!(cache.find(Lsn::new(1, 4096 * 5 + 7), 3).unwrap(), Bytes::from(vec![4u8; 3]));
        assert_eq!(cache.find(Lsn::new(1, 4096 * 4), 4096).unwrap()[0], 3);
        assert_eq!(cache.find(Lsn::new(1, 4096 * 3), 1), None);
        assert_eq!(cache.find(Lsn::new(1, 4096 * 6), 1), None);
        assert_eq!(cache.bytes(), 8192);
    }

    #[test]
    fn what_is_more_than_is_always_kept_goes_when_it_is_old() {
        const MIB: usize = 1024 * 1024;
        let second = 1_000_000_000;
        let cache = TailCache::new(4 * KEPT_BYTES);
        let block = Bytes::from(vec![0; MIB]);
        let push = |n: u32, now| cache.push(Lsn::new(n, 4096), block.clone(), now);
        let (slow, fast) = (40, 150);
        // In 10 s: less than is always kept in 2 s, then more.
        (0..10 * slow).for_each(|n| push(n, u64::from(n) * second / u64::from(slow)));
        assert_eq!(cache.bytes(), KEPT_BYTES);
        let began = 10 * second;
        (0..10 * fast).for_each(|n| push(1000 + n, began + u64::from(n) * second / u64::from(fast)));
        let held = cache.bytes() / MIB;
        assert!((298..=303).contains(&held), "{held} MiB of 150 a second");
        cache.expire(began + 30 * second);
        assert_eq!(cache.bytes(), KEPT_BYTES);
        assert!(cache.find(Lsn::new(1000 + 10 * fast - 1, 4096), MIB).is_some());
        // All at once.
        (0..1000).for_each(|n| push(10_000 + n, began + 31 * second));
        assert_eq!(cache.bytes(), 4 * KEPT_BYTES);
    }
}
