//! Keys of messages, and the partition that Kafka's clients choose for a key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::workload::KeyDistributor;

/// As in OMB: the number of different keys, which have 7 random bytes in base 64.
const POOL: usize = 10_000;
const RANDOM_BYTES: usize = 7;
/// The golden ratio of 2^64. Its multiples are far apart (Knuth's multiplicative hashing).
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// The keys of a run.
pub struct Keys {
    pool: Vec<Vec<u8>>,
}

impl Keys {
    pub fn new() -> Keys {
        let mut random = fastrand::Rng::with_seed(0x6b65_7973);
        let key = |_| {
            let mut bytes = [0; RANDOM_BYTES];
            random.fill(&mut bytes);
            URL_SAFE_NO_PAD.encode(bytes).into_bytes()
        };
        Keys { pool: (0..POOL).map(key).collect() }
    }

    /// Bytes of each key.
    pub fn bytes(&self, distributor: KeyDistributor) -> usize {
        if distributor == KeyDistributor::NoKey { 0 } else { self.pool[0].len() }
    }

    /// The key of a producer's `count`th message.
    pub fn choose(&self, distributor: KeyDistributor, count: u64, now: u64) -> Option<&[u8]> {
        let number = match distributor {
            KeyDistributor::NoKey => return None,
            KeyDistributor::KeyRoundRobin => count,
            // Messages are due at regular intervals, often whole milliseconds. Without hashing they would use few keys,
            // or one.
            KeyDistributor::RandomNano => now.wrapping_mul(GOLDEN_RATIO) >> 32,
        };
        let at = usize::try_from(number % POOL as u64).expect("below the size of the pool");
        Some(&self.pool[at])
    }
}

/// The partition of a key among `partitions`, by murmur2 as in Kafka's `BuiltInPartitioner.partitionForKey`.
pub fn partition_of(key: &[u8], partitions: usize) -> usize {
    let positive = murmur2(key) & 0x7fff_ffff;
    positive as usize % partitions
}

/// Kafka's `Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const FACTOR: u32 = 0x5bd1_e995;
    #[allow(clippy::cast_possible_truncation, reason = "a key is below 4 GiB")]
    let mut hash = SEED ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut value = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        value ^= value >> 24;
        hash = hash.wrapping_mul(FACTOR) ^ value.wrapping_mul(FACTOR);
    }
    for (at, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(FACTOR);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(FACTOR);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_is_kafkas() {
        // The values are those of Kafka's UtilsTest.
        let cases: [(&str, i32); 6] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
    }

    #[test]
    fn keys_go_round() {
        let keys = Keys::new();
        assert_eq!(keys.choose(KeyDistributor::NoKey, 1, 1), None);
        let of = |count| keys.choose(KeyDistributor::KeyRoundRobin, count, 0).unwrap();
        assert_eq!(of(3), of(3 + POOL as u64));
        assert_ne!(of(3), of(4));
        assert_eq!(of(0).len(), 10);
        let mut seen = vec![0; 16];
        (0..POOL as u64).for_each(|count| seen[partition_of(of(count), 16)] += 1);
        assert!(seen.iter().all(|count| (400..900).contains(count)), "{seen:?}");
    }

    #[test]
    fn random_keys_are_many_at_even_distances_too() {
        let keys = Keys::new();
        for step in [1_000_u64, 500_000, 1_000_000, 1_000_000_000] {
            let of = |count| keys.choose(KeyDistributor::RandomNano, 0, 77 + count * step).unwrap();
            let mut seen = vec![0; 16];
            (0..10_000).for_each(|count| seen[partition_of(of(count), 16)] += 1);
            assert!(seen.iter().all(|count| (400..900).contains(count)), "every {step} ns: {seen:?}");
        }
    }
}
