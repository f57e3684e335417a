//! Walks the records of a batch once, without building them: the checks before a server accepts a batch.
//!
//! A producer's header is a claim. Consumers stop at a batch whose records do not decode, and retention uses its
//! largest timestamp. So both are checked here, as in Kafka's `LogValidator` on append.
//!
//! Invariant: whatever the size of the decompressed batch, a walk holds only [`CHUNK_BYTES`] of it and the state of its
//! codec. The caller bounds that state, which is a window or a block.

use std::io::Read;

use model::{BatchHeader, Compression, Timestamp};

use crate::DecodeError;
use crate::compression::{DecompressError, Limits, read_error, reader};
use crate::records::RecordError;

/// Decompressed bytes that are examined together.
const CHUNK_BYTES: usize = 32 * 1024;
/// Bytes of the smallest header of a record: the lengths of its key and value.
const HEADER_BYTES_MIN: u64 = 2;

/// The properties of a batch's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walked {
    /// The largest timestamp of the records; [`Timestamp::NONE`] if no record has one.
    pub max_timestamp: Timestamp,
    /// The smallest timestamp of the records that have one.
    pub min_timestamp: Option<Timestamp>,
    /// Whether some record has no key.
    pub keyless: bool,
}

/// Walks `packed`, the records of a batch with `header`, within `limits`.
///
/// Returns an error unless every record decodes and takes the bytes that it claims, the offsets follow each other from
/// 0, there are as many records as the header says, and nothing follows them. Blocks during decompression.
pub fn walk(header: &BatchHeader, packed: &[u8], limits: Limits) -> Result<Walked, RecordError> {
    let mut walked = Walked { max_timestamp: Timestamp::NONE, min_timestamp: None, keyless: false };
    let passed = pass(
        header,
        packed,
        limits,
        OnRecord(|record: &Seen| {
            if record.offset_delta != record.index {
                // Kafka: "does not have incremental offsets".
                return Err(DecodeError::Length(i64::from(record.offset_delta)));
            }
            walked.keyless |= record.keyless;
            walked.max_timestamp = walked.max_timestamp.max(record.timestamp);
            if record.timestamp != Timestamp::NONE {
                let min = walked.min_timestamp.map_or(record.timestamp, |min| min.min(record.timestamp));
                walked.min_timestamp = Some(min);
            }
            Ok(true)
        }),
    );
    passed.map(|()| walked)
}

/// The offset (relative to the batch's base) and timestamp of the first record for which `wanted` is true of these two.
/// `packed` and `limits` are those of [`walk`]. Offsets are those of any stored batch.
pub fn find(
    header: &BatchHeader,
    packed: &[u8],
    limits: Limits,
    mut wanted: impl FnMut(i32, Timestamp) -> bool,
) -> Result<Option<(i32, Timestamp)>, RecordError> {
    let mut found = None;
    let see = OnRecord(|record: &Seen| {
        found =
            wanted(record.offset_delta, record.timestamp).then_some((record.offset_delta, record.timestamp));
        Ok(found.is_none())
    });
    pass(header, packed, limits, see)?;
    Ok(found)
}

/// Shows the keys of a batch to `visitor`, until it has seen enough. `packed` and `limits` are those of [`walk`].
pub fn visit_keys(
    header: &BatchHeader,
    packed: &[u8],
    limits: Limits,
    visitor: &mut impl VisitKeys,
) -> Result<(), RecordError> {
    pass(header, packed, limits, OnKey(visitor))
}

/// Gets the keys of a batch. A key may be as large as the batch, so it comes in pieces.
pub trait VisitKeys {
    /// The next piece of the key of the next reported record. Not called for an empty key.
    fn piece(&mut self, piece: &[u8]);

    /// The record whose key was shown. Returns false if the visitor has seen enough.
    fn record(&mut self, record: Keyed) -> bool;
}

/// A record without its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keyed {
    /// Relative to the batch's base offset.
    pub offset_delta: i32,
    /// Whether it has a key, which may be empty.
    pub has_key: bool,
    /// Whether it has a value, which may be empty. A record without a value is a tombstone.
    pub has_value: bool,
}

/// Gets the records of a batch from [`pass`].
trait See {
    /// A piece of the key of the next reported record.
    fn key(&mut self, _piece: &[u8]) {}

    /// A record. Returns false if enough was seen.
    fn record(&mut self, record: &Seen) -> Result<bool, DecodeError>;
}

struct OnRecord<F>(F);

impl<F: FnMut(&Seen) -> Result<bool, DecodeError>> See for OnRecord<F> {
    #[inline]
    fn record(&mut self, record: &Seen) -> Result<bool, DecodeError> {
        (self.0)(record)
    }
}

struct OnKey<'a, V>(&'a mut V);

impl<V: VisitKeys> See for OnKey<'_, V> {
    #[inline]
    fn key(&mut self, piece: &[u8]) {
        self.0.piece(piece);
    }

    #[inline]
    fn record(&mut self, record: &Seen) -> Result<bool, DecodeError> {
        let Seen { offset_delta, keyless, has_value, .. } = *record;
        Ok(self.0.record(Keyed { offset_delta, has_key: !keyless, has_value }))
    }
}

/// The properties of one record.
struct Seen {
    /// The number of the record in the batch.
    index: i32,
    offset_delta: i32,
    timestamp: Timestamp,
    keyless: bool,
    has_value: bool,
}

/// Shows each record to `see`, until `see` has seen enough.
fn pass(header: &BatchHeader, packed: &[u8], limits: Limits, see: impl See) -> Result<(), RecordError> {
    let limit_bytes = limits.decompressed;
    match header.compression() {
        Compression::None if packed.len() > limit_bytes => {
            Err(DecompressError::TooLarge { limit_bytes }.into())
        }
        Compression::None => pass_from(header, Plain { bytes: packed, at: 0 }, see),
        codec => {
            let reader = reader(codec, packed, limits);
            let chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
            pass_from(header, Packed { codec, reader, chunk, at: 0, end: 0, passed: 0, limit_bytes }, see)
        }
    }
}

/// Why the next bytes are not available.
enum Fault {
    /// The records are invalid.
    Decode(DecodeError),
    /// The bytes cannot be decompressed.
    Decompress(DecompressError),
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Fault {
        Fault::Decode(error)
    }
}

/// The bytes of the records, from front to back.
trait Source {
    /// The available bytes that were not passed. Empty only at the end.
    fn at_hand(&mut self) -> Result<&[u8], Fault>;
    /// Passes `bytes` bytes, at most the available ones.
    fn advance(&mut self, bytes: usize);
    /// The number of passed bytes.
    fn position(&self) -> u64;

    #[inline]
    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.at_hand()?.first().ok_or(DecodeError::Truncated { need: 1, have: 0 })?;
        self.advance(1);
        Ok(byte)
    }

    /// Passes `left` bytes, and shows them.
    #[inline]
    fn skip(&mut self, mut left: u64, mut show: impl FnMut(&[u8])) -> Result<(), Fault> {
        while left > 0 {
            let pieces = self.at_hand()?;
            let have = pieces.len();
            if have == 0 {
                let need = usize::try_from(left).unwrap_or(usize::MAX);
                return Err(DecodeError::Truncated { need, have }.into());
            }
            let step = usize::try_from(left).map_or(have, |left| left.min(have));
            show(&pieces[..step]);
            self.advance(step);
            left -= step as u64;
        }
        Ok(())
    }

    /// A zigzag LEB128 integer of at most `bits` bits, which are 32 or 64.
    #[inline]
    fn zigzag(&mut self, bits: u32) -> Result<i64, Fault> {
        let mut value = 0u64;
        for shift in (0..bits).step_by(7) {
            let byte = self.byte()?;
            let left = bits - shift;
            if left < 7 && byte >> left != 0 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(DecodeError::Varint.into())
    }

    /// A length, or `None` for null.
    #[inline]
    fn length(&mut self) -> Result<Option<u64>, Fault> {
        match self.zigzag(32)? {
            -1 => Ok(None),
            length => Ok(Some(u64::try_from(length).map_err(|_| DecodeError::Length(length))?)),
        }
    }
}

struct Plain<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Source for Plain<'_> {
    #[inline]
    fn at_hand(&mut self) -> Result<&[u8], Fault> {
        Ok(&self.bytes[self.at..])
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    #[inline]
    fn position(&self) -> u64 {
        self.at as u64
    }
}

struct Packed<R> {
    codec: Compression,
    reader: R,
    chunk: Box<[u8]>,
    /// The position in the chunk.
    at: usize,
    end: usize,
    /// Bytes before the chunk.
    passed: u64,
    limit_bytes: usize,
}

impl<R: Read> Packed<R> {
    #[cold]
    fn refill(&mut self) -> Result<(), Fault> {
        self.passed += self.end as u64;
        (self.at, self.end) = (0, 0);
        loop {
            match self.reader.read(&mut self.chunk) {
                Ok(read) => self.end = read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::Decompress(read_error(self.codec, error))),
            }
            break;
        }
        if self.passed + self.end as u64 > self.limit_bytes as u64 {
            return Err(Fault::Decompress(DecompressError::TooLarge { limit_bytes: self.limit_bytes }));
        }
        Ok(())
    }
}

impl<R: Read> Source for Packed<R> {
    #[inline]
    fn at_hand(&mut self) -> Result<&[u8], Fault> {
        if self.at == self.end {
            self.refill()?;
        }
        Ok(&self.chunk[self.at..self.end])
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    #[inline]
    fn position(&self) -> u64 {
        self.passed + self.at as u64
    }
}

fn pass_from(header: &BatchHeader, mut source: impl Source, mut see: impl See) -> Result<(), RecordError> {
    for index in 0..header.count {
        let failed = |fault| match fault {
            Fault::Decode(error) => RecordError::Decode { index, error },
            Fault::Decompress(error) => error.into(),
        };
        let claimed =
            source.length().and_then(|length| Ok(length.ok_or(DecodeError::Null)?)).map_err(failed)?;
        let from = source.position();
        let seen = pass_record(header, index, &mut source, from + claimed, &mut see).map_err(failed)?;
        let taken = source.position() - from;
        if taken != claimed {
            let bytes = |count| usize::try_from(count).unwrap_or(usize::MAX);
            return Err(RecordError::Length { index, claimed: bytes(claimed), taken: bytes(taken) });
        }
        if !see.record(&seen).map_err(|error| failed(error.into()))? {
            return Ok(());
        }
    }
    match source.at_hand() {
        Ok([]) => Ok(()),
        Ok(rest) => Err(RecordError::Trailing(rest.len())),
        Err(Fault::Decompress(error)) => Err(error.into()),
        Err(Fault::Decode(error)) => Err(RecordError::Decode { index: header.count, error }),
    }
}

/// One record. It claims to end at `end`.
#[inline]
fn pass_record(
    header: &BatchHeader,
    index: i32,
    source: &mut impl Source,
    end: u64,
    see: &mut impl See,
) -> Result<Seen, Fault> {
    // Reads only within the record: a length that reaches beyond its end is refused before it is followed.
    let check = |source: &mut _, length: u64| {
        let have = end.saturating_sub(Source::position(source));
        if length > have {
            let bytes = |count| usize::try_from(count).unwrap_or(usize::MAX);
            return Err(Fault::from(DecodeError::Truncated { need: bytes(length), have: bytes(have) }));
        }
        Ok(())
    };
    let field = |source: &mut _, length: u64| {
        check(source, length)?;
        Source::skip(source, length, |_| {})
    };
    let _attributes = source.byte()?;
    let timestamp = Timestamp(header.base_timestamp.0.wrapping_add(source.zigzag(64)?));
    let offset_delta = source.zigzag(32)?;
    let offset_delta = i32::try_from(offset_delta).map_err(|_| DecodeError::Length(offset_delta))?;
    let key = source.length()?;
    if let Some(length) = key {
        check(source, length)?;
        source.skip(length, |piece| see.key(piece))?;
    }
    let value = source.length()?;
    if let Some(length) = value {
        field(source, length)?;
    }
    let headers = source.length()?.ok_or(DecodeError::Null)?;
    let have = end.saturating_sub(source.position());
    if headers > have / HEADER_BYTES_MIN {
        return Err(DecodeError::Length(i64::try_from(headers).unwrap_or(i64::MAX)).into());
    }
    for _ in 0..headers {
        let key = source.length()?.ok_or(DecodeError::Null)?;
        field(source, key)?;
        if let Some(value) = source.length()? {
            field(source, value)?;
        }
    }
    Ok(Seen { index, offset_delta, timestamp, keyless: key.is_none(), has_value: value.is_some() })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::batch::HEADER_BYTES;

    use super::*;
    use crate::records::{BatchBuilder, records};

    const CODECS: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    fn walked(batch: &[u8], limit_bytes: usize) -> Result<Walked, RecordError> {
        let header = BatchHeader::parse(batch)?;
        let limits = Limits { decompressed: limit_bytes, held: usize::MAX };
        walk(&header, &batch[HEADER_BYTES..header.total_bytes], limits)
    }

    fn sample(codec: Compression, large: usize) -> Vec<u8> {
        let mut builder = BatchBuilder::new(codec);
        let header = (Bytes::from_static(b"h"), Some(Bytes::from_static(b"value")));
        builder.push_with_headers(Timestamp(1000), Some(b"k"), Some(b"v"), &[header.clone(), header]);
        builder.push(Timestamp(-1), None, None);
        builder.push(Timestamp(3000), Some(b""), Some(&vec![5; large]));
        builder.push(Timestamp(900), Some(b"last"), None);
        builder.finish().to_vec()
    }

    #[test]
    fn every_codec_tells_the_timestamps_and_that_a_key_is_missing() {
        for codec in CODECS {
            for large in [0, 70_000, 300_000] {
                let found = walked(&sample(codec, large), 1 << 20).unwrap();
                let (max_timestamp, min_timestamp) = (Timestamp(3000), Some(Timestamp(900)));
                assert_eq!(
                    found,
                    Walked { max_timestamp, min_timestamp, keyless: true },
                    "{codec:?} {large}"
                );
            }
            let mut builder = BatchBuilder::new(codec);
            builder.push(Timestamp(-1), Some(b"k"), None);
            let found = walked(&builder.finish(), 1 << 20).unwrap();
            let nothing = Walked { max_timestamp: Timestamp::NONE, min_timestamp: None, keyless: false };
            assert_eq!(found, nothing);
        }
    }

    #[test]
    fn more_than_the_limit_is_refused() {
        for codec in CODECS {
            let batch = sample(codec, 300_000);
            let error = walked(&batch, 300_000).unwrap_err();
            assert!(
                matches!(error, RecordError::Decompress(DecompressError::TooLarge { .. })),
                "{codec:?} {error}"
            );
            walked(&batch, 300_100).unwrap();
        }
    }

    #[test]
    fn keys_come_in_pieces_and_in_order() {
        #[derive(Default)]
        struct Gathered(Vec<u8>, Vec<(Vec<u8>, Keyed)>);
        impl VisitKeys for Gathered {
            fn piece(&mut self, piece: &[u8]) {
                self.0.extend_from_slice(piece);
            }
            fn record(&mut self, record: Keyed) -> bool {
                self.1.push((std::mem::take(&mut self.0), record));
                self.1.len() < 3
            }
        }
        for codec in CODECS {
            let long: Vec<u8> = (0..100_000u32).flat_map(u32::to_be_bytes).collect();
            let mut builder = BatchBuilder::new(codec);
            builder.push(Timestamp(1), Some(&long), Some(b""));
            builder.push(Timestamp(1), None, None);
            builder.push_at(7, Timestamp(1), Some(b""), Some(b"v"), &[]);
            builder.push_at(9, Timestamp(1), Some(b"unseen"), None, &[]);
            let batch = builder.finish();
            let header = BatchHeader::parse(&batch).unwrap();
            let mut found = Gathered::default();
            let limits = Limits { decompressed: 1 << 20, held: usize::MAX };
            visit_keys(&header, &batch[HEADER_BYTES..], limits, &mut found).unwrap();
            let keyed = |offset_delta, has_key, has_value| Keyed { offset_delta, has_key, has_value };
            let expected = [
                (long, keyed(0, true, true)),
                (vec![], keyed(1, false, false)),
                (vec![], keyed(7, true, true)),
            ];
            assert_eq!(found.1, expected, "{codec:?}");
        }
    }

    #[test]
    fn gaps_counts_and_what_follows_are_errors() {
        for codec in CODECS {
            let mut builder = BatchBuilder::new(codec);
            builder.push(Timestamp(1), Some(b"k"), None);
            builder.push_at(5, Timestamp(1), Some(b"k"), None, &[]);
            assert!(walked(&builder.finish(), 1 << 20).is_err(), "{codec:?}: a gap");
            for (count, why) in [(3i32, "one less"), (5, "one more")] {
                let mut batch = sample(codec, 10);
                batch[57..61].copy_from_slice(&count.to_be_bytes());
                batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
                assert!(walked(&batch, 1 << 20).is_err(), "{codec:?}: {why}");
            }
        }
        // A codec that does not match the records.
        let plain = sample(Compression::None, 100);
        for codec in &CODECS[1..] {
            let mut lies = plain.clone();
            lies[22] = u8::try_from(codec.bits()).unwrap();
            assert!(walked(&lies, 1 << 20).is_err(), "{codec:?}");
        }
    }

    #[test]
    fn a_walk_accepts_no_batch_that_a_consumer_cannot_read() {
        let mut source = crate::arbitrary::Source::new(23);
        let (mut taken, mut refused) = (0, 0);
        for codec in CODECS {
            let good = sample(codec, 60);
            for _ in 0..4000 {
                let mut bad = good.clone();
                let at =
                    HEADER_BYTES + usize::try_from(source.below((bad.len() - HEADER_BYTES) as u64)).unwrap();
                bad[at] ^= 1 << source.below(8);
                let Ok(found) = walked(&bad, 1 << 16) else {
                    refused += 1;
                    continue;
                };
                taken += 1;
                let (header, all) = records(&Bytes::from(bad), 1 << 16).unwrap();
                let times =
                    all.map(|record| header.base_timestamp.0.wrapping_add(record.unwrap().timestamp_delta));
                assert_eq!(times.max().unwrap().max(-1), found.max_timestamp.0);
            }
        }
        assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
    }
}
