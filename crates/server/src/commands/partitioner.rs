//! The partition of a keyed record. It equals that of Kafka's Java client.

/// The partition among `count` for a key: murmur2 of the key, without its sign bit, modulo `count`.
pub fn of_key(key: &[u8], count: usize) -> usize {
    let positive = murmur2(key) & 0x7fff_ffff;
    usize::try_from(positive).expect("31 bits fit") % count
}

/// MurmurHash2, 32 bits, with the seed of `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    // Kafka's keys are Java arrays, whose length is an int.
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ (k >> R)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn it_hashes_as_java_does() {
        let cases: [(&[u8], i32); 7] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
        ];
        for (data, hash) in cases {
            assert_eq!(murmur2(data).cast_signed(), hash, "{data:?}");
        }
        assert_eq!(of_key(b"21", 7), usize::try_from((-973_932_308i32) & 0x7fff_ffff).unwrap() % 7);
    }
}
