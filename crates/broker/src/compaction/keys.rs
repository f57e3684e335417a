//! The newest offset of each key, in bounded memory.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, RandomState};
use std::hash::{BuildHasher, Hasher};

use model::Offset;

/// Bytes per key, including the free slots of the table.
const ENTRY_BYTES: usize = 40;

/// The newest offset of each key seen. A key is identified by 128 bits of two hashes with random seeds, so that no
/// client can construct two keys with the same identity.
#[derive(Debug)]
pub struct Keys {
    hashes: [RandomState; 2],
    newest: HashMap<u128, Offset, Folded>,
    keys_max: usize,
}

impl Keys {
    /// Creates an empty table of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Keys {
        Keys {
            hashes: Default::default(),
            newest: HashMap::default(),
            keys_max: (bytes_max / ENTRY_BYTES).max(1),
        }
    }

    /// Begins to hash a key.
    pub fn hasher(&self) -> KeyHasher {
        KeyHasher([0, 1].map(|n| self.hashes[n].build_hasher()))
    }

    /// Notes that the key of `hash` was written at `offset`, which is above all earlier offsets. Returns false if there
    /// is no room.
    pub fn put(&mut self, hash: u128, offset: Offset) -> bool {
        if self.newest.len() >= self.keys_max && !self.newest.contains_key(&hash) {
            return false;
        }
        self.newest.insert(hash, offset);
        true
    }

    /// Whether a newer record of the key of `hash` than the one at `offset` was seen.
    pub fn has_newer(&self, hash: u128, offset: Offset) -> bool {
        self.newest.get(&hash).is_some_and(|newest| *newest > offset)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.newest.len()
    }
}

/// Hashes a key piece by piece. The result does not depend on where the pieces are split.
#[derive(Clone, Debug)]
pub struct KeyHasher([DefaultHasher; 2]);

impl KeyHasher {
    /// Adds the next piece of the key.
    pub fn write(&mut self, piece: &[u8]) {
        self.0.iter_mut().for_each(|hasher| hasher.write(piece));
    }

    /// The hash of the whole key.
    pub fn finish(&self) -> u128 {
        let [low, high] = self.0.each_ref().map(|hasher| u128::from(hasher.finish()));
        high << 64 | low
    }
}

/// A hasher for keys that are already hashes: it takes half of the bits.
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
        let template = keys.hasher();
        let hash = |key: &str| {
            let mut hasher = template.clone();
            hasher.write(key.as_bytes());
            hasher.finish()
        };
        for (offset, key) in (0..).zip(["a", "b", "a", "c"]) {
            assert!(keys.put(hash(key), Offset(offset)));
        }
        assert!(!keys.put(hash("d"), Offset(4)) && keys.put(hash("b"), Offset(5)));
        assert!(keys.has_newer(hash("a"), Offset(0)) && !keys.has_newer(hash("a"), Offset(2)));
        assert!(keys.has_newer(hash("b"), Offset(1)) && !keys.has_newer(hash("d"), Offset(0)));
        assert_eq!(keys.len(), 3);
    }

    #[test]
    fn a_key_has_one_hash_however_it_comes() {
        let keys = Keys::new(ENTRY_BYTES);
        let key: Vec<u8> = (0..=255).collect();
        let of = |pieces: &[usize]| {
            let (mut hasher, mut at) = (keys.hasher(), 0);
            for piece in pieces {
                hasher.write(&key[at..at + piece]);
                at += piece;
            }
            hasher.write(&key[at..]);
            hasher.finish()
        };
        let whole = of(&[]);
        for first in 0..20 {
            for second in 0..20 {
                assert_eq!(of(&[first, second]), whole, "{first} {second}");
            }
        }
        assert_ne!(of(&[]), keys.hasher().finish());
    }
}
