//! The tail cache: the write buffers of the newest blocks, kept for readers that follow the end of the log.
//!
//! The cache holds no copies: it keeps the frozen slices that were written. It is bounded in bytes, and drops the
//! oldest block first. A slice that a slow reader or an object on its way to the store still holds keeps its buffer alive beyond
//! that bound. `Reader::readers_room` and `Kept` of the uploader bound such buffers.
//!
//! A reader that falls out of the cache reads from the disk. Where the disk is busy with writes, that reader is too
//! slow to catch up again. So the cache should outlast a short stall of all readers. A log with few appends needs
//! little memory for that.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::format::Lsn;

/// Upper bound of the blocks dropped for their age with each new block: freeing memory takes time that the writer does
/// not have.
const OLD_AT_ONCE: usize = 4;

/// Bounds of a [`TailCache`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailBounds {
    /// Upper bound of the bytes.
    pub bytes_max: usize,
    /// This many bytes are kept whatever their age.
    pub bytes_kept: usize,
    /// Bytes beyond that are dropped after this time.
    pub kept_for: Duration,
}

/// The blocks from some position of the log to its end.
#[derive(Debug)]
pub(crate) struct TailCache {
    bounds: TailBounds,
    blocks: RwLock<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    bytes: usize,
    newest_last: VecDeque<Block>,
    /// Counts buffers.
    buffer: u64,
}

#[derive(Debug)]
struct Block {
    lsn: Lsn,
    /// When the block came, in nanoseconds of the log's clock.
    came: u64,
    bytes: Bytes,
    /// Bytes of its buffer that do not belong to other blocks.
    cost: usize,
    buffer: u64,
}

/// Bytes of the tail cache.
#[derive(Debug)]
pub(crate) struct Cached {
    pub bytes: Bytes,
    /// The same number for all bytes of a buffer.
    pub buffer: u64,
}

impl TailCache {
    pub fn new(bounds: TailBounds) -> TailCache {
        TailCache { bounds, blocks: RwLock::default() }
    }

    /// Adds the newest block, at `now` in nanoseconds.
    pub fn push(&self, lsn: Lsn, bytes: Bytes, now: u64) {
        let mut blocks = self.blocks.write();
        assert!(blocks.newest_last.back().is_none_or(|last| last.lsn < lsn), "blocks arrive in log order");
        let cost = bytes.len();
        blocks.bytes += cost;
        let buffer = blocks.buffer;
        blocks.newest_last.push_back(Block { lsn, came: now, bytes, cost, buffer });
        let evicted = blocks.evict(&self.bounds, now, OLD_AT_ONCE);
        drop(blocks);
        drop(evicted);
    }

    /// The newest block's buffer has no other block after it: `unused` bytes stay empty.
    pub fn waste(&self, unused: usize) {
        let mut blocks = self.blocks.write();
        blocks.buffer += 1;
        if let Some(newest) = blocks.newest_last.back_mut() {
            newest.cost += unused;
            blocks.bytes += unused;
        }
    }

    /// Drops blocks that are too old, for times in which no new blocks come.
    pub fn expire(&self, now: u64) {
        let evicted = self.blocks.write().evict(&self.bounds, now, usize::MAX);
        drop(evicted);
    }

    /// The `length` bytes at `lsn`, if their block is still here.
    pub fn find(&self, lsn: Lsn, length: usize) -> Option<Cached> {
        let blocks = self.blocks.read();
        let at = blocks.newest_last.partition_point(|block| block.lsn <= lsn).checked_sub(1)?;
        let Block { lsn: begin, bytes, buffer, .. } = &blocks.newest_last[at];
        let from = usize::try_from(lsn.0 - begin.0).ok()?;
        (from + length <= bytes.len())
            .then(|| Cached { bytes: bytes.slice(from..from + length), buffer: *buffer })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.blocks.read().bytes
    }
}

impl Blocks {
    /// The blocks to drop. Freeing them takes a while, so do it outside the lock.
    fn evict(&mut self, bounds: &TailBounds, now: u64, old_at_once: usize) -> Vec<Bytes> {
        let mut evicted = Vec::new();
        while self.newest_last.len() > 1
            && let Some(oldest) = self.newest_last.front()
        {
            let old = u128::from(now.saturating_sub(oldest.came)) > bounds.kept_for.as_nanos();
            let due = old && self.bytes > bounds.bytes_kept && evicted.len() < old_at_once;
            if self.bytes <= bounds.bytes_max && !due {
                break;
            }
            let oldest = self.newest_last.pop_front().expect("it was just seen");
            self.bytes -= oldest.cost;
            evicted.push(oldest.bytes);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;
    const SECOND: u64 = 1_000_000_000;

    fn cache(bytes_max: usize, bytes_kept: usize) -> TailCache {
        TailCache::new(TailBounds { bytes_max, bytes_kept, kept_for: Duration::from_secs(2) })
    }

    #[test]
    fn the_newest_blocks_stay_within_the_bound() {
        let cache = cache(10_000, 10_000);
        for n in 0..5u8 {
            cache.push(Lsn::new(1, 4096 * (1 + u32::from(n))), Bytes::from(vec![n; 4096]), 0);
        }
        assert_eq!(cache.find(Lsn::new(1, 4096 * 5 + 7), 3).unwrap().bytes, Bytes::from(vec![4u8; 3]));
        assert_eq!(cache.find(Lsn::new(1, 4096 * 4), 4096).unwrap().bytes[0], 3);
        assert!(cache.find(Lsn::new(1, 4096 * 3), 1).is_none());
        assert!(cache.find(Lsn::new(1, 4096 * 6), 1).is_none());
        assert_eq!(cache.bytes(), 8192);
    }

    #[test]
    fn what_is_more_than_is_always_kept_goes_when_it_is_old() {
        let cache = cache(512 * MIB, 128 * MIB);
        let block = Bytes::from(vec![0; MIB]);
        let push = |n: u32, now| cache.push(Lsn::new(n, 4096), block.clone(), now);
        let (slow, fast) = (40, 150);
        // In 10 s: less than is always kept in 2 s, then more.
        (0..10 * slow).for_each(|n| push(n, u64::from(n) * SECOND / u64::from(slow)));
        assert_eq!(cache.bytes(), 128 * MIB);
        let began = 10 * SECOND;
        (0..10 * fast).for_each(|n| push(1000 + n, began + u64::from(n) * SECOND / u64::from(fast)));
        let held = cache.bytes() / MIB;
        assert!((298..=303).contains(&held), "{held} MiB of 150 a second");
        push(3000, began + 30 * SECOND);
        assert_eq!(cache.bytes() / MIB, held + 1 - OLD_AT_ONCE, "the writer does not wait for all of it");
        cache.expire(began + 30 * SECOND);
        assert_eq!(cache.bytes(), 128 * MIB);
        assert!(cache.find(Lsn::new(3000, 4096), MIB).is_some());
        // All at once.
        (0..1000).for_each(|n| push(10_000 + n, began + 31 * SECOND));
        assert_eq!(cache.bytes(), 512 * MIB);
    }

    /// What counts is the memory, and a buffer is freed as a whole.
    #[test]
    fn what_stays_empty_in_a_buffer_counts() {
        let cache = cache(10 * MIB, 10 * MIB);
        for n in 0..20 {
            cache.push(Lsn::new(1 + n, 4096), Bytes::from(vec![0; MIB / 2]), 0);
            cache.waste(MIB / 2);
        }
        assert_eq!(cache.bytes(), 10 * MIB);
        assert!(cache.find(Lsn::new(11, 4096), 1).is_some() && cache.find(Lsn::new(10, 4096), 1).is_none());
    }
}
