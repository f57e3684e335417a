//! The records inside a batch of format v2 (KIP-98): a reader for them, and a builder of batches.
//!
//! ```text
//! length varint | attributes i8 | timestamp delta varlong | offset delta varint
//! | key length varint | key | value length varint | value
//! | header count varint | ( key length varint | key | value length varint | value )*
//! ```
//! A length of -1 is null; a header's key is never null. Headers keep their order, and two may have the same key.
//!
//! A produce uses `crate::walk` instead, which builds no records. A fetch looks only at the header (`model::batch`).

use bytes::Bytes;
use model::batch::{self, BatchError, BatchHeader, HEADER_BYTES, LENGTH_PREFIX_BYTES};
use model::{Compression, Timestamp};

pub use crate::compression::{DecompressError, compress, decompress};
use crate::{DecodeError, Message, Reader, Writer, messages};

/// Why the records of a batch cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The batch header is invalid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The records cannot be decompressed.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// A record is cut short, or a length in it is impossible.
    #[error("record {index} of the batch: {error}")]
    Decode {
        /// The number of the record in the batch, from 0.
        index: i32,
        /// The error in the record.
        error: DecodeError,
    },
    /// A record's fields do not take the bytes that it claims.
    #[error("record {index} of the batch claims {claimed} bytes but takes {taken}")]
    Length {
        /// The number of the record in the batch, from 0.
        index: i32,
        /// Its length field.
        claimed: usize,
        /// Bytes of its fields.
        taken: usize,
    },
    /// Bytes follow the last record.
    #[error("{0} bytes follow the last record of the batch")]
    Trailing(usize),
}

/// One header of a record: its key, and its value if not null.
pub type RecordHeader = (Bytes, Option<Bytes>);

/// One record; its parts share the (decompressed) batch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordView {
    /// Its offset minus the batch's base offset.
    pub offset_delta: i32,
    /// Its timestamp minus the batch's base timestamp, in milliseconds.
    pub timestamp_delta: i64,
    /// The key, if not null.
    pub key: Option<Bytes>,
    /// The value; null marks a deletion in a compacted topic.
    pub value: Option<Bytes>,
    /// In the producer's order; keys may repeat.
    pub headers: Headers,
}

/// The headers of a record, still encoded: a small batch may hold millions of headers, and few callers read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    count: usize,
    /// These bytes were decoded once, so they decode again.
    bytes: Bytes,
}

impl Headers {
    /// The number of headers.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The headers, as slices of the batch.
    pub fn iter(&self) -> impl Iterator<Item = RecordHeader> + use<> {
        let mut reader = Reader::new(self.bytes.clone());
        (0..self.count).map_while(move |_| read_header(&mut reader).ok())
    }
}

impl From<&[RecordHeader]> for Headers {
    fn from(headers: &[RecordHeader]) -> Headers {
        let mut writer = Writer::reusing(Vec::new());
        Given::Each(headers).put(&mut writer);
        Headers { count: headers.len(), bytes: writer.into_buffer().into() }
    }
}

/// The records of the batch at the front of `bytes`, which may decompress to at most `limit_bytes`.
///
/// Checks the batch's header but not its CRC ([`batch::verify_crc`]).
pub fn records(bytes: &Bytes, limit_bytes: usize) -> Result<(BatchHeader, RecordIter), RecordError> {
    let header = BatchHeader::parse(bytes)?;
    let packed = bytes.slice(HEADER_BYTES..header.total_bytes);
    let reader = Reader::new(decompress(header.compression(), &packed, limit_bytes)?);
    Ok((header, RecordIter { reader, index: 0, count: header.count, done: false }))
}

/// Reads `bytes` as a batch and all its records: the entry point for fuzzing.
pub fn fuzz_records(bytes: &[u8]) {
    const LIMIT_BYTES: usize = 1 << 20;
    let Ok((_, records)) = records(&Bytes::copy_from_slice(bytes), LIMIT_BYTES) else { return };
    let mut taken = 0;
    for record in records.flatten() {
        taken += record.value.map_or(0, |value| value.len());
    }
    assert!(
        taken <= LIMIT_BYTES.max(bytes.len()),
        "values are slices of the batch or of what it decompresses to"
    );
}

/// Iterates over the records of a batch and ends after the first error. A clone continues from the same place.
#[derive(Clone, Debug)]
pub struct RecordIter {
    reader: Reader,
    /// The number of the next record.
    index: i32,
    /// The number of records in the header.
    count: i32,
    done: bool,
}

impl Iterator for RecordIter {
    type Item = Result<RecordView, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.index == self.count {
            self.done = true;
            let left = self.reader.remaining();
            return (left > 0).then_some(Err(RecordError::Trailing(left)));
        }
        let record = read_record(&mut self.reader, self.index);
        self.index += 1;
        self.done = record.is_err();
        Some(record)
    }
}

fn read_record(reader: &mut Reader, index: i32) -> Result<RecordView, RecordError> {
    let failed = |error| RecordError::Decode { index, error };
    let claimed = length(reader).map_err(failed)?.ok_or(failed(DecodeError::Null))?;
    if claimed > reader.remaining() {
        return Err(failed(DecodeError::Truncated { need: claimed, have: reader.remaining() }));
    }
    let from = reader.position();
    let record = read_fields(reader).map_err(failed)?;
    let taken = reader.position() - from;
    if taken == claimed { Ok(record) } else { Err(RecordError::Length { index, claimed, taken }) }
}

fn read_fields(reader: &mut Reader) -> Result<RecordView, DecodeError> {
    let _attributes = reader.i8()?;
    let timestamp_delta = reader.varlong()?;
    let offset_delta = reader.varint()?;
    let key = nullable_bytes(reader)?;
    let value = nullable_bytes(reader)?;
    let count = length(reader)?.ok_or(DecodeError::Null)?;
    // A header takes at least two bytes: the lengths of its key and value.
    if count > reader.remaining() / 2 {
        return Err(DecodeError::Truncated { need: count.saturating_mul(2), have: reader.remaining() });
    }
    let mut ahead = reader.clone();
    for _ in 0..count {
        skip_bytes(&mut ahead)?.ok_or(DecodeError::Null)?;
        skip_bytes(&mut ahead)?;
    }
    let bytes = reader.take(ahead.position() - reader.position())?;
    Ok(RecordView { offset_delta, timestamp_delta, key, value, headers: Headers { count, bytes } })
}

fn read_header(reader: &mut Reader) -> Result<RecordHeader, DecodeError> {
    Ok((nullable_bytes(reader)?.ok_or(DecodeError::Null)?, nullable_bytes(reader)?))
}

fn length(reader: &mut Reader) -> Result<Option<usize>, DecodeError> {
    match reader.varint()? {
        -1 => Ok(None),
        length => usize::try_from(length).map(Some).map_err(|_| DecodeError::Length(i64::from(length))),
    }
}

fn nullable_bytes(reader: &mut Reader) -> Result<Option<Bytes>, DecodeError> {
    length(reader)?.map(|length| reader.take(length)).transpose()
}

fn skip_bytes(reader: &mut Reader) -> Result<Option<()>, DecodeError> {
    length(reader)?.map(|length| reader.skip(length)).transpose()
}

/// The headers of a record to write.
enum Given<'a> {
    Each(&'a [RecordHeader]),
    Encoded(&'a Headers),
}

impl Given<'_> {
    fn count(&self) -> usize {
        match self {
            Given::Each(headers) => headers.len(),
            Given::Encoded(headers) => headers.count,
        }
    }

    fn bytes(&self) -> usize {
        let of = |(key, value): &RecordHeader| bytes_len(Some(key)) + bytes_len(value.as_deref());
        match self {
            Given::Each(headers) => headers.iter().map(of).sum(),
            Given::Encoded(headers) => headers.bytes.len(),
        }
    }

    fn put(&self, fields: &mut Writer) {
        match self {
            Given::Each(headers) => headers.iter().for_each(|(key, value)| {
                put_bytes(fields, Some(key));
                put_bytes(fields, value.as_deref());
            }),
            Given::Encoded(headers) => fields.slice(&headers.bytes),
        }
    }
}

/// Builds one batch. Its base offset is 0 and its leader epoch is -1, like in a batch from a producer.
/// `model::batch::assign` sets both.
#[derive(Debug)]
pub struct BatchBuilder {
    compression: Compression,
    attributes: i16,
    producer: (i64, i16, i32),
    base_timestamp: Timestamp,
    max_timestamp: Timestamp,
    last_offset_delta: i32,
    count: i32,
    /// Room for the header, then the records. An uncompressed batch leaves in this form, so its records are copied only
    /// once.
    bytes: Writer,
}

const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;
const LOG_APPEND_TIME: i16 = 0x08;
const DELETE_HORIZON: i16 = 0x40;

impl BatchBuilder {
    /// An empty batch without a producer id.
    pub fn new(compression: Compression) -> BatchBuilder {
        BatchBuilder::with_capacity(compression, HEADER_BYTES)
    }

    /// Like [`BatchBuilder::new`], with memory for a batch of `bytes` before compression.
    pub fn with_capacity(compression: Compression, bytes: usize) -> BatchBuilder {
        let mut bytes = Writer::reusing(Vec::with_capacity(bytes.max(HEADER_BYTES)));
        bytes.slice(&[0; HEADER_BYTES]);
        BatchBuilder {
            compression,
            attributes: compression.bits(),
            producer: (-1, -1, -1),
            base_timestamp: Timestamp::NONE,
            max_timestamp: Timestamp::NONE,
            last_offset_delta: -1,
            count: 0,
            bytes,
        }
    }

    /// Sets an idempotent producer: its id, its epoch, and the sequence of the first record.
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> BatchBuilder {
        self.producer = (id, epoch, base_sequence);
        self
    }

    /// Marks the batch as part of a transaction.
    pub fn transactional(mut self) -> BatchBuilder {
        self.attributes |= TRANSACTIONAL;
        self
    }

    /// Marks a control batch: its records are the server's own.
    pub fn control(mut self) -> BatchBuilder {
        self.attributes |= CONTROL;
        self
    }

    /// Sets the server's time, which is then the timestamp of every record (KIP-32). Call this after the last record.
    pub fn log_append_time(mut self, now: Timestamp) -> BatchBuilder {
        self.attributes |= LOG_APPEND_TIME;
        self.max_timestamp = now;
        self
    }

    /// Sets the time from which compaction may remove the contents (KIP-534). Call this before the first record.
    pub fn delete_horizon(mut self, horizon: Timestamp) -> BatchBuilder {
        self.attributes |= DELETE_HORIZON;
        self.base_timestamp = horizon;
        self
    }

    /// Gives the batch all offsets up to `delta`, with records or without.
    ///
    /// Panics if a record has a higher offset.
    pub fn last_offset_delta(mut self, delta: i32) -> BatchBuilder {
        assert!(delta >= self.last_offset_delta, "all records lie within the batch");
        self.last_offset_delta = delta;
        self
    }

    /// The number of records so far.
    pub fn count(&self) -> i32 {
        self.count
    }

    /// Bytes of the records so far, before compression.
    pub fn records_bytes(&self) -> usize {
        self.bytes.len() - HEADER_BYTES
    }

    /// Appends a record without headers at the next offset.
    pub fn push(&mut self, timestamp: Timestamp, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.push_with_headers(timestamp, key, value, &[]);
    }

    /// Appends a record at the next offset.
    pub fn push_with_headers(
        &mut self,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[RecordHeader],
    ) {
        self.push_at(self.last_offset_delta + 1, timestamp, key, value, headers);
    }

    /// Appends a record at `offset_delta`. If this is not the next offset, it leaves a gap.
    ///
    /// Panics if it is not after the offset of the last record.
    pub fn push_at(
        &mut self,
        offset_delta: i32,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[RecordHeader],
    ) {
        self.put(offset_delta, timestamp, key, value, &Given::Each(headers));
    }

    /// Appends a record of another batch at its offset, like [`BatchBuilder::push_at`].
    ///
    /// Panics if it is not after the offset of the last record.
    pub fn push_view(&mut self, timestamp: Timestamp, record: &RecordView) {
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        self.put(record.offset_delta, timestamp, key, value, &Given::Encoded(&record.headers));
    }

    fn put(
        &mut self,
        offset_delta: i32,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &Given,
    ) {
        assert!(offset_delta > self.last_offset_delta, "offsets rise within a batch");
        if self.count == 0 && self.attributes & DELETE_HORIZON == 0 {
            self.base_timestamp = timestamp;
        }
        let timestamp_delta = timestamp.0 - self.base_timestamp.0;
        let header_count = varint_length(headers.count());
        let length = 1
            + varlong_len(timestamp_delta)
            + varlong_len(i64::from(offset_delta))
            + bytes_len(key)
            + bytes_len(value)
            + varlong_len(i64::from(header_count))
            + headers.bytes();
        let fields = &mut self.bytes;
        fields.varint(varint_length(length));
        fields.i8(0);
        fields.varlong(timestamp_delta);
        fields.varint(offset_delta);
        put_bytes(fields, key);
        put_bytes(fields, value);
        fields.varint(header_count);
        headers.put(fields);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.last_offset_delta = offset_delta;
        self.count += 1;
    }

    /// The batch, with its CRC.
    ///
    /// Panics if the batch has no record, or more than 2 GiB of records.
    pub fn finish(self) -> Bytes {
        assert!(self.count > 0, "a batch holds a record at least");
        let mut bytes = self.bytes.into_buffer();
        if self.compression != Compression::None {
            let packed = compress(self.compression, &bytes[HEADER_BYTES..]);
            bytes.truncate(HEADER_BYTES);
            bytes.extend_from_slice(&packed);
        }
        let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).expect("a batch is under 2 GiB");
        let (producer_id, producer_epoch, base_sequence) = self.producer;
        let mut header = Writer::reusing(Vec::with_capacity(HEADER_BYTES));
        header.i64(0);
        header.i32(length);
        header.i32(-1);
        header.i8(2);
        header.u32(0);
        header.i16(self.attributes);
        header.i32(self.last_offset_delta);
        header.i64(self.base_timestamp.0);
        header.i64(self.max_timestamp.0);
        header.i64(producer_id);
        header.i16(producer_epoch);
        header.i32(base_sequence);
        header.i32(self.count);
        bytes[..HEADER_BYTES].copy_from_slice(&header.into_buffer());
        batch::seal_crc(&mut bytes);
        Bytes::from(bytes)
    }
}

fn varint_length(length: usize) -> i32 {
    i32::try_from(length).expect("a record is under 2 GiB")
}

/// Bytes of a zigzag LEB128 integer. A 32-bit integer takes as many bytes as the same 64-bit integer.
fn varlong_len(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)).cast_unsigned();
    // Seven bits a byte, and one byte for zero.
    usize::from(zigzag == 0) + (u64::BITS - zigzag.leading_zeros()).div_ceil(7) as usize
}

/// Bytes that a nullable byte field takes.
fn bytes_len(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varlong_len(i64::from(varint_length(bytes.len()))) + bytes.len())
}

fn put_bytes(writer: &mut Writer, bytes: Option<&[u8]>) {
    match bytes {
        None => writer.varint(-1),
        Some(bytes) => {
            writer.varint(varint_length(bytes.len()));
            writer.slice(bytes);
        }
    }
}

/// The end of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionResult {
    /// Read-committed consumers drop its records.
    Abort,
    /// Read-committed consumers see its records.
    Commit,
}

/// The batch that ends a producer's transaction in a partition (KIP-98). It has one control record. The key names the
/// result, and the value has the coordinator's epoch. Both begin with the version of their schema, 0.
pub fn end_transaction_marker(
    producer_id: i64,
    producer_epoch: i16,
    result: TransactionResult,
    coordinator_epoch: i32,
    timestamp: Timestamp,
) -> Bytes {
    let mut key = Writer::new();
    key.i16(0);
    key.i16(i16::from(result == TransactionResult::Commit));
    let mut value = Writer::new();
    value.i16(0);
    value.i32(coordinator_epoch);
    let mut builder = BatchBuilder::new(Compression::None)
        .producer(producer_id, producer_epoch, -1)
        .transactional()
        .control();
    builder.push(timestamp, Some(&key.into_buffer()), Some(&value.into_buffer()));
    builder.finish()
}

/// The end of the transaction in the control batch at the front of `bytes`. `None` for control records of other kinds.
pub fn transaction_result(bytes: &Bytes) -> Result<Option<(TransactionResult, i32)>, RecordError> {
    let (_, mut records) = records(bytes, bytes.len())?;
    let Some(record) = records.next().transpose()? else { return Ok(None) };
    marker_of(record)
}

/// Like [`transaction_result`], for the control record itself.
pub fn marker_of(record: RecordView) -> Result<Option<(TransactionResult, i32)>, RecordError> {
    let failed = |error| RecordError::Decode { index: 0, error };
    let mut key = Reader::new(record.key.unwrap_or_default());
    // Later versions may only add fields at the end.
    let _version = key.i16().map_err(failed)?;
    let result = match messages::ControlRecordTypeSchema::decode(&mut key, 0).map_err(failed)?.type_ {
        0 => TransactionResult::Abort,
        1 => TransactionResult::Commit,
        _ => return Ok(None),
    };
    let mut value = Reader::new(record.value.unwrap_or_default());
    let _version = value.i16().map_err(failed)?;
    let marker = messages::EndTxnMarker::decode(&mut value, 0).map_err(failed)?;
    Ok(Some((result, marker.coordinator_epoch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODECS: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    fn sample(codec: Compression) -> Bytes {
        let mut builder = BatchBuilder::new(codec).producer(9, 2, 40);
        let twice = Bytes::from_static(b"trace");
        let headers = [
            (twice.clone(), Some(Bytes::from_static(b"1"))),
            (twice.clone(), None),
            (twice, Some(Bytes::new())),
        ];
        builder.push_with_headers(Timestamp(1000), Some(b"k"), Some(b"v"), &headers);
        builder.push(Timestamp(990), None, None);
        builder.push_at(7, Timestamp(2000), Some(b""), Some(&[5; 70_000]), &[]);
        builder.finish()
    }

    #[test]
    fn records_come_back_through_every_codec_with_repeated_headers() {
        for codec in CODECS {
            let bytes = sample(codec);
            let (header, records) = records(&bytes, 1 << 20).unwrap();
            batch::verify_crc(&bytes, &header).unwrap();
            assert_eq!((header.compression(), header.count, header.last_offset_delta), (codec, 3, 7));
            assert_eq!((header.base_timestamp, header.max_timestamp), (Timestamp(1000), Timestamp(2000)));
            assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (9, 2, 40));
            let records = records.collect::<Result<Vec<_>, _>>().unwrap();
            let headers: Vec<RecordHeader> = records[0].headers.iter().collect();
            let expected = |value: Option<&'static [u8]>| (Bytes::from("trace"), value.map(Bytes::from));
            assert_eq!(headers, [expected(Some(b"1")), expected(None), expected(Some(b""))]);
            let second = RecordView { offset_delta: 1, timestamp_delta: -10, ..RecordView::default() };
            assert_eq!(records[1], second);
            assert_eq!((records[2].offset_delta, records[2].timestamp_delta), (7, 1000));
            assert_eq!(records[2].value.as_ref().map(Bytes::len), Some(70_000));
            assert_eq!(records.len(), 3);
        }
    }

    #[test]
    fn hostile_lengths_are_errors() {
        let good = sample(Compression::None);
        for (at, bytes) in [(61, &b"\xff\xff\xff\xff\x0f"[..]), (61, b"\x01"), (61, b"\x03"), (61, b"\x0a")] {
            let mut bad = good.to_vec();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            let (_, mut all) = records(&Bytes::from(bad), 1 << 20).unwrap();
            assert!(all.next().unwrap().is_err());
            assert!(all.next().is_none(), "the first error is the end");
        }
        let mut fewer = good.to_vec();
        fewer[57..61].copy_from_slice(&2i32.to_be_bytes());
        let (_, all) = records(&Bytes::from(fewer), 1 << 20).unwrap();
        assert!(matches!(all.last(), Some(Err(RecordError::Trailing(_)))));
    }

    #[test]
    fn bit_flips_and_truncations_never_panic() {
        let mut source = crate::arbitrary::Source::new(5);
        for codec in CODECS {
            let mut builder = BatchBuilder::new(codec);
            for index in 0..20 {
                let value = source.bytes(index * 7);
                let header = (Bytes::from_static(b"h"), Some(Bytes::from_static(b"value")));
                builder.push_with_headers(Timestamp(1), Some(b"key"), Some(&value), &[header]);
            }
            let good = builder.finish();
            for len in 0..good.len() {
                assert!(records(&good.slice(..len), 1 << 20).is_err());
            }
            for _ in 0..3000 {
                let mut bad = good.to_vec();
                let at =
                    HEADER_BYTES + usize::try_from(source.below((bad.len() - HEADER_BYTES) as u64)).unwrap();
                bad[at] ^= 1 << source.below(8);
                if let Ok((_, all)) = records(&Bytes::from(bad), 1 << 20) {
                    assert!(all.count() <= 21);
                }
            }
        }
    }

    #[test]
    fn a_transaction_marker_says_how_it_ended() {
        for result in [TransactionResult::Abort, TransactionResult::Commit] {
            let bytes = end_transaction_marker(77, 3, result, 12, Timestamp(5));
            let header = BatchHeader::parse(&bytes).unwrap();
            assert!(header.is_control() && header.is_transactional());
            assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (77, 3, -1));
            assert_eq!(transaction_result(&bytes).unwrap(), Some((result, 12)));
            assert_eq!(model::batch::coordinator_epoch(&bytes, &header), Some(12));
            let nobodys = end_transaction_marker(77, 3, result, -1, Timestamp(5));
            assert_eq!(model::batch::coordinator_epoch(&nobodys, &header), None);
        }
    }
}
