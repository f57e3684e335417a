//! The recently used batch indexes of sealed extents, in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::index::BatchIndex;

/// Segment and directory row.
type Key = (u32, u32);

/// Batch indexes of sealed extents, by segment and directory row. The least recently used ones are dropped first.
#[derive(Debug)]
pub(crate) struct Indexes {
    bytes_max: usize,
    state: Mutex<IndexState>,
}

#[derive(Debug, Default)]
struct IndexState {
    entries: HashMap<Key, (Arc<BatchIndex>, u64)>,
    /// Keys with the tick of the use that put them here. Stale entries are skipped.
    uses: VecDeque<(Key, u64)>,
    tick: u64,
    bytes: usize,
}

impl Indexes {
    pub fn new(bytes_max: usize) -> Indexes {
        Indexes { bytes_max, state: Mutex::default() }
    }

    pub fn find(&self, segment: u32, row: u32) -> Option<Arc<BatchIndex>> {
        let mut state = self.state.lock();
        state.tick += 1;
        let tick = state.tick;
        let (found, used) = state.entries.get_mut(&(segment, row))?;
        *used = tick;
        let found = found.clone();
        state.uses.push_back(((segment, row), tick));
        state.drop_stale();
        Some(found)
    }

    pub fn insert(&self, segment: u32, row: u32, index: Arc<BatchIndex>) {
        let mut state = self.state.lock();
        state.tick += 1;
        let tick = state.tick;
        state.bytes += index.memory_bytes();
        if let Some((old, _)) = state.entries.insert((segment, row), (index, tick)) {
            state.bytes -= old.memory_bytes();
        }
        state.uses.push_back(((segment, row), tick));
        while state.bytes > self.bytes_max {
            let Some((key, tick)) = state.uses.pop_front() else { break };
            if state.entries.get(&key).is_some_and(|(_, used)| *used == tick) {
                let (old, _) = state.entries.remove(&key).expect("it was just seen");
                state.bytes -= old.memory_bytes();
            }
        }
        state.drop_stale();
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl IndexState {
    /// Keeps the list of uses proportional to the number of entries.
    fn drop_stale(&mut self) {
        if self.uses.len() > 64 + 4 * self.entries.len() {
            let entries = &self.entries;
            self.uses.retain(|(key, tick)| entries.get(key).is_some_and(|(_, used)| used == tick));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::BatchPlace;
    use model::{Offset, Timestamp};

    #[test]
    fn indexes_stay_within_the_bound_and_the_used_ones_stay() {
        let mut index = BatchIndex::default();
        index.push(BatchPlace {
            base_offset: Offset(0),
            offset_count: 1,
            position: 4096,
            length: 70,
            max_timestamp: Timestamp(0),
        });
        let index = Arc::new(index);
        let cache = Indexes::new(index.memory_bytes() * 10);
        for row in 0..100 {
            cache.insert(1, row, index.clone());
            assert!(cache.find(1, 0).is_some());
        }
        assert!(cache.bytes() <= index.memory_bytes() * 10);
        assert!(cache.find(1, 99).is_some() && cache.find(1, 50).is_none());
    }
}
