//! Which offset is the newest of each key, in bounded memory.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use model::Offset;

/// Bytes that one key takes, the table's free places counted.
const ENTRY_BYTES: usize = 40;

/// The newest offset of each key that was seen. A key is known by 128 bits of two hashes whose seeds are random, so
/// that no client can make up two keys that are taken for one.
#[derive(Debug)]
pub struct Keys {
    hashes: [RandomState; 2],
    newest: HashMap<u128, Offset, Folded>,
    keys_max: usize,
}

impl Keys {
    /// An empty table of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Keys {
        Keys {
            hashes: Default::default(),
            newest: HashMap::default(),
            keys_max: (bytes_max / ENTRY_BYTES).max(1),
        }
    }

    fn hash(&self, key: &[u8]) -> u128 {
        let [low, high] = [0, 1].map(|n| u128::from(self.hashes[n].hash_one(key)));
        high << 64 | low
    }

    /// Records that `key` was written at `offset`, which is above all before; false when there is no room for it.
    pub fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        let hash = self.hash(key);
        if self.newest.len() >= self.keys_max && !self.newest.contains_key(&hash) {
            return false;
        }
        self.newest.insert(hash, offset);
        true
    }

    /// Whether a newer record of `key` than the one at `offset` was seen.
    pub fn has_newer(&self, key: &[u8], offset: Offset) -> bool {
        self.newest.get(&self.hash(key)).is_some_and(|newest| *newest > offset)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.newest.len()
    }
}

/// Takes half of what is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct Folded(u64);

impl BuildHasher for Folded {
    type Hasher = Folded;
    fn build_hasher(&self) -> Folded {
        Folded(0)
    }
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u128(&mut self, hash: u128) {
        self.0 = u64::try_from(hash & u128::from(u64::MAX)).expect("64 bits are left");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_offset_counts_and_memory_is_bounded() {
        let mut keys = Keys::new(ENTRY_BYTES * 3);
        for (offset, key) in (0..).zip(["a", "b", "a", "c"]) {
            assert!(keys.put(key.as_bytes(), Offset(offset)));
        }
        assert!(!keys.put(b"d", Offset(4)) && keys.put(b"b", Offset(5)));
        assert!(keys.has_newer(b"a", Offset(0)) && !keys.has_newer(b"a", Offset(2)));
        assert!(keys.has_newer(b"b", Offset(1)) && !keys.has_newer(b"d", Offset(0)));
        assert_eq!(keys.len(), 3);
    }
}
