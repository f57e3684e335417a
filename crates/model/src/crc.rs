//! CRC-32C (Castagnoli, RFC 3720), the checksum of record batches and of everything on disk.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of the bytes behind `crc`, followed by `bytes`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // A digest's state is the checksum before its final inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_castagnolis() {
        // The catalogue's check value, and RFC 3720's examples (B.4).
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&[]), 0);
    }

    #[test]
    fn pieces_make_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for cut in [0, 1, 7, 8, 63, 64, 255, 256, 257, 1000, 4999, 5000] {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(crc32c_append(crc32c(front), back), crc32c(&bytes), "cut at {cut}");
        }
        // Bit by bit, as the definition has it.
        let slow = |bytes: &[u8]| {
            let mut state = u32::MAX;
            for byte in bytes {
                state ^= u32::from(*byte);
                (0..8).for_each(|_| state = (state >> 1) ^ (0x82f6_3b78 & (state & 1).wrapping_neg()));
            }
            !state
        };
        for length in (0..300).chain([1023, 1024, 4097]) {
            assert_eq!(crc32c(&bytes[..length]), slow(&bytes[..length]), "{length} bytes");
        }
    }
}
