//! Every byte of a segment file, drawn here once; `docs/format.md` tells the same story for readers without the code.
//!
//! ```text
//! segment file      | header 4 KiB | commit block | commit block | … | footer block | unused | trailer 4 KiB |
//! commit block      | block header 48 B | payload | zeros to the next 4 KiB |
//! payload (entries) | entry header 40 B | body | entry header 40 B | body | …
//! payload (footer)  | batch index of each stream | directory, 64 B a stream | stream table |
//! ```
//!
//! All integers are little-endian; a Kafka batch inside a body keeps its own big-endian form. Every CRC is a CRC-32C
//! seeded with the segment's generation, so that remains of an earlier life of a recycled file never pass. This module
//! does no I/O. Every decoder returns `None` or an error for bytes that are not what they claim to be.

use model::{Offset, StreamId, Timestamp};

/// Version of everything in this file. A reader refuses a later version. Version 2 has cleaned segments; a reader of
/// version 1 would not notice that they are missing.
pub const FORMAT_VERSION: u32 = 2;
/// Alignment of blocks.
pub const SECTOR: usize = disk::SECTOR;
/// Bytes of the segment header and of the trailer: one sector each, so that either is written by one atomic write.
pub const SEGMENT_HEADER_BYTES: usize = SECTOR;
/// See [`SEGMENT_HEADER_BYTES`].
pub const TRAILER_BYTES: usize = SECTOR;
/// Bytes of a block header.
pub const BLOCK_HEADER_BYTES: usize = 48;
/// Bytes of an entry header.
pub const ENTRY_HEADER_BYTES: usize = 40;
/// Bytes of one stream's row in a footer's directory.
pub const DIRECTORY_ROW_BYTES: usize = 64;

/// Set in the sequence numbers of the cleaner's segments, which have a numbering of their own.
pub const CLEANED: u32 = 1 << 31;

/// Set in the sequence numbers of the segments in the object store, which have a numbering of their own.
pub const STORED: u32 = 1 << 30;

const SEGMENT_MAGIC: [u8; 8] = *b"MAINSTEM";
const BLOCK_MAGIC: [u8; 4] = *b"MSbk";
const TRAILER_MAGIC: [u8; 8] = *b"MSfooter";

/// A position in the log: the segment's sequence number in the upper half, the byte in the file in the lower.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position of `byte` in segment `sequence`.
    pub fn new(sequence: u32, byte: u32) -> Lsn {
        Lsn(u64::from(sequence) << 32 | u64::from(byte))
    }

    /// The segment's sequence number.
    pub fn sequence(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("32 bits are left")
    }

    /// The byte within the segment's file.
    pub fn byte(self) -> u32 {
        u32::try_from(self.0 & 0xffff_ffff).expect("32 bits are left")
    }
}

impl std::fmt::Display for Lsn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.sequence() {
            sequence if sequence & CLEANED != 0 => "cleaned segment",
            sequence if sequence & STORED != 0 => "stored segment",
            _ => "segment",
        };
        write!(f, "{kind} {} byte {}", self.sequence() & !(CLEANED | STORED), self.byte())
    }
}

/// A length that the format stores in 32 bits. The caller's bounds guarantee that it fits.
pub fn length32(length: usize) -> u32 {
    u32::try_from(length).expect("lengths inside a segment fit 32 bits")
}

/// A position or length from disk as an index.
pub fn index(length: u32) -> usize {
    usize::try_from(length).expect("usize has at least 32 bits")
}

/// `bytes` rounded up to whole sectors.
pub fn sectors(bytes: usize) -> usize {
    bytes.div_ceil(SECTOR) * SECTOR
}

/// CRC-32C of `bytes` seeded with a segment's generation.
pub fn seeded_crc(generation: u64, bytes: &[u8]) -> u32 {
    seeded_crc_of(generation, [bytes])
}

/// CRC-32C of `parts` as one sequence of bytes, seeded with a segment's generation.
pub(crate) fn seeded_crc_of<'a>(generation: u64, parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let seed = model::crc32c(&generation.to_le_bytes());
    parts.into_iter().fold(seed, model::crc32c_append)
}

/// Reads fixed-size little-endian integers from the front of a slice whose length was checked.
pub(crate) struct Fields<'a>(pub &'a [u8]);

macro_rules! fields {
    ($($name:ident: $type:ty),*) => {$(
        pub(crate) fn $name(&mut self) -> $type {
            let (head, rest) = self.0.split_at(size_of::<$type>());
            self.0 = rest;
            <$type>::from_le_bytes(head.try_into().expect("split_at gave the length"))
        }
    )*};
}

impl Fields<'_> {
    fields!(u32: u32, u64: u64, i64: i64);

    /// Returns `None` if fewer than `bytes` bytes are left.
    pub(crate) fn has(&self, bytes: usize) -> Option<()> {
        (self.0.len() >= bytes).then_some(())
    }
}

/// The first sector of a segment file.
///
/// ```text
///  0 magic "MAINSTEM"   8 version u32   12 sequence u32   16 generation u64   24 length u64   32 log id 16 B
/// 48 crc u32 of bytes 0..48
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The place of the segment in the log, and the number in its file name.
    pub sequence: u32,
    /// Unique for every life of a file. Seeds all CRCs.
    pub generation: u64,
    /// Length of the file in bytes.
    pub length: u64,
    /// The same in all segments of a log.
    pub log_id: u128,
}

/// The reason why the first sector of a segment is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// Not a segment, or damaged.
    #[error("its header is damaged")]
    Damaged,
    /// Written by another version of Mainstem.
    #[error("its format version is {0}, this server reads up to {FORMAT_VERSION}")]
    Version(u32),
}

impl SegmentHeader {
    /// The whole first sector.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEADER_BYTES);
        out.extend(SEGMENT_MAGIC);
        out.extend(FORMAT_VERSION.to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.extend(self.log_id.to_le_bytes());
        let crc = model::crc32c(&out);
        out.extend(crc.to_le_bytes());
        out.resize(SEGMENT_HEADER_BYTES, 0);
        out
    }

    /// Reads the first sector.
    pub fn decode(sector: &[u8]) -> Result<SegmentHeader, HeaderError> {
        if sector.len() < SEGMENT_HEADER_BYTES || sector[..8] != SEGMENT_MAGIC {
            return Err(HeaderError::Damaged);
        }
        let crc = model::crc32c(&sector[..48]);
        let mut fields = Fields(&sector[8..]);
        let version = fields.u32();
        let (sequence, generation, length) = (fields.u32(), fields.u64(), fields.u64());
        let log_id = u128::from(fields.u64()) | u128::from(fields.u64()) << 64;
        if fields.u32() != crc {
            return Err(HeaderError::Damaged);
        }
        if !(1..=FORMAT_VERSION).contains(&version) {
            return Err(HeaderError::Version(version));
        }
        Ok(SegmentHeader { sequence, generation, length, log_id })
    }
}

/// The contents of a commit block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Entries. A barrier, or the mark of an idle log, has none.
    Entries,
    /// The footer: the last block of a segment.
    Footer,
}

/// The head of every commit block.
///
/// ```text
///  0 magic "MSbk"  4 kind u8  5 zero 3 B  8 epoch u64  16 lsn u64  24 synced u64  32 payload length u32
/// 36 entry count u32  40 payload crc u32  44 header crc u32 of bytes 0..44
/// ```
///
/// A worked crash: blocks A, B and C are written at once. A and C reach the medium, B does not, and power fails. C's
/// `synced` is at most A's start, so B may be missing: the log ends after A, and nothing acknowledged is lost. If B had
/// been acknowledged, B was synced, and every block written after that carries a `synced` beyond B. An invalid B is
/// then damage, and recovery refuses the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// The kind of the payload.
    pub kind: BlockKind,
    /// Grows by one with every opening of the log; blocks of a lower epoch behind a higher one are stale.
    pub epoch: u64,
    /// Its own position.
    pub lsn: Lsn,
    /// Everything below this position was known to be synced when this block was written.
    pub synced: Lsn,
    /// Bytes of the payload without padding.
    pub length: u32,
    /// Entries in the payload.
    pub entries: u32,
    /// Seeded CRC of the payload.
    pub payload_crc: u32,
}

impl BlockHeader {
    /// Bytes of the whole block with padding.
    pub fn total_bytes(&self) -> usize {
        sectors(BLOCK_HEADER_BYTES + index(self.length))
    }

    /// Writes the header into the first [`BLOCK_HEADER_BYTES`] of `out`.
    pub fn encode(&self, generation: u64, out: &mut [u8]) {
        out[0..4].copy_from_slice(&BLOCK_MAGIC);
        out[4..8].copy_from_slice(&[if self.kind == BlockKind::Entries { 1 } else { 2 }, 0, 0, 0]);
        out[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.synced.0.to_le_bytes());
        out[32..36].copy_from_slice(&self.length.to_le_bytes());
        out[36..40].copy_from_slice(&self.entries.to_le_bytes());
        out[40..44].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = seeded_crc(generation, &out[..44]);
        out[44..48].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header at position `lsn` of a segment of `generation`; `None` for anything else.
    pub fn decode(bytes: &[u8], generation: u64, lsn: Lsn) -> Option<BlockHeader> {
        let bytes = bytes.get(..BLOCK_HEADER_BYTES)?;
        if bytes[..4] != BLOCK_MAGIC || bytes[44..48] != seeded_crc(generation, &bytes[..44]).to_le_bytes() {
            return None;
        }
        let kind = match bytes[4] {
            1 => BlockKind::Entries,
            2 => BlockKind::Footer,
            _ => return None,
        };
        let mut fields = Fields(&bytes[8..]);
        let header = BlockHeader {
            kind,
            epoch: fields.u64(),
            lsn: Lsn(fields.u64()),
            synced: Lsn(fields.u64()),
            length: fields.u32(),
            entries: fields.u32(),
            payload_crc: fields.u32(),
        };
        (header.lsn == lsn).then_some(header)
    }
}

/// The meaning of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// The body is one record batch.
    Batch,
    /// The stream now starts at `base_offset`; no body.
    Trim,
    /// The stream is deleted; no body.
    Delete,
    /// Only in cleaned segments: between `base_offset` and the end in the body, a [`RangeBody`], the stream has only
    /// the batches that follow.
    Range,
}

/// The body of a [`EntryKind::Range`].
///
/// ```text
///  0 end i64, the offset after the range   8 flags u32, as in a directory row   12 zero 4 B
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeBody {
    /// The offset after the range.
    pub end: Offset,
    /// As in [`DirectoryRow::flags`].
    pub flags: u32,
}

/// Bytes of a [`RangeBody`].
pub const RANGE_BODY_BYTES: usize = 16;

impl RangeBody {
    /// The body's bytes.
    pub fn encode(&self) -> [u8; RANGE_BODY_BYTES] {
        let mut out = [0; RANGE_BODY_BYTES];
        out[0..8].copy_from_slice(&self.end.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// Reads a body. Returns `None` if it has another length.
    pub fn decode(bytes: &[u8]) -> Option<RangeBody> {
        if bytes.len() != RANGE_BODY_BYTES {
            return None;
        }
        let mut fields = Fields(bytes);
        Some(RangeBody { end: Offset(fields.i64()), flags: fields.u32() })
    }
}

/// The head of every entry.
///
/// ```text
///  0 stream u64  8 base offset i64  16 max timestamp i64  24 offset count u32  28 body length u32
/// 32 kind u8  33 zero 3 B  36 crc u32 of bytes 0..36
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryHeader {
    /// The stream it belongs to.
    pub stream: StreamId,
    /// Offset of the first record, or the new start of a trimmed stream.
    pub base_offset: Offset,
    /// Largest timestamp in the batch.
    pub max_timestamp: Timestamp,
    /// Offsets that the batch takes.
    pub offset_count: u32,
    /// Bytes of the body.
    pub length: u32,
    /// The meaning of the entry.
    pub kind: EntryKind,
}

impl EntryHeader {
    /// The header's bytes.
    pub fn encode(&self, generation: u64) -> [u8; ENTRY_HEADER_BYTES] {
        let mut out = [0; ENTRY_HEADER_BYTES];
        out[0..8].copy_from_slice(&self.stream.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.base_offset.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.max_timestamp.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.offset_count.to_le_bytes());
        out[28..32].copy_from_slice(&self.length.to_le_bytes());
        out[32] = match self.kind {
            EntryKind::Batch => 1,
            EntryKind::Trim => 2,
            EntryKind::Delete => 3,
            EntryKind::Range => 4,
        };
        let crc = seeded_crc(generation, &out[..36]);
        out[36..40].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header written in a segment of `generation`; `None` for anything else.
    pub fn decode(bytes: &[u8], generation: u64) -> Option<EntryHeader> {
        let bytes = bytes.get(..ENTRY_HEADER_BYTES)?;
        if bytes[36..40] != seeded_crc(generation, &bytes[..36]).to_le_bytes() {
            return None;
        }
        let kind = match bytes[32] {
            1 => EntryKind::Batch,
            2 => EntryKind::Trim,
            3 => EntryKind::Delete,
            4 => EntryKind::Range,
            _ => return None,
        };
        let mut fields = Fields(bytes);
        Some(EntryHeader {
            stream: StreamId(fields.u64()),
            base_offset: Offset(fields.i64()),
            max_timestamp: Timestamp(fields.i64()),
            offset_count: fields.u32(),
            length: fields.u32(),
            kind,
        })
    }
}

/// One stream's row in the directory of a footer; rows are sorted by stream.
///
/// ```text
///  0 stream u64  8 base offset i64  16 next offset i64  24 max timestamp i64  32 bytes u64
/// 40 index position u32 (in the file)  44 index length u32  48 index crc u32  52 batch count u32  56 flags u32
/// 60 zero 4 B
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryRow {
    /// The stream.
    pub stream: StreamId,
    /// Offset of its first record in the segment.
    pub base_offset: Offset,
    /// The offset after its last record in the segment.
    pub next_offset: Offset,
    /// Largest timestamp of the extent.
    pub max_timestamp: Timestamp,
    /// Bytes of its batches.
    pub bytes: u64,
    /// Position of its batch index in the file.
    pub index_position: u32,
    /// Bytes of the batch index.
    pub index_length: u32,
    /// Seeded CRC of the batch index.
    pub index_crc: u32,
    /// Batches of the extent.
    pub batches: u32,
    /// [`ROW_COMPACTED`], [`ROW_REPLACES`], both or nothing.
    pub flags: u32,
}

/// In [`DirectoryRow::flags`]: the extent was compacted.
pub const ROW_COMPACTED: u32 = 1;
/// In [`DirectoryRow::flags`], of an object: the extent takes the place of all extents of its offsets in older objects.
pub const ROW_REPLACES: u32 = 2;

impl DirectoryRow {
    /// Appends the row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend(self.stream.0.to_le_bytes());
        out.extend(self.base_offset.0.to_le_bytes());
        out.extend(self.next_offset.0.to_le_bytes());
        out.extend(self.max_timestamp.0.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        for field in [self.index_position, self.index_length, self.index_crc, self.batches, self.flags] {
            out.extend(field.to_le_bytes());
        }
        out.resize(from + DIRECTORY_ROW_BYTES, 0);
    }

    /// Reads a row; the directory's CRC was checked.
    pub fn decode(bytes: &[u8]) -> Option<DirectoryRow> {
        let mut fields = Fields(bytes.get(..DIRECTORY_ROW_BYTES)?);
        Some(DirectoryRow {
            stream: StreamId(fields.u64()),
            base_offset: Offset(fields.i64()),
            next_offset: Offset(fields.i64()),
            max_timestamp: Timestamp(fields.i64()),
            bytes: fields.u64(),
            index_position: fields.u32(),
            index_length: fields.u32(),
            index_crc: fields.u32(),
            batches: fields.u32(),
            flags: fields.u32(),
        })
    }
}

/// The last sector of a sealed segment. It is written only after everything up to the end of the footer is synced. A
/// valid trailer therefore vouches for the whole segment.
///
/// ```text
///  0 magic "MSfooter"  8 sequence u32  12 footer position u32  16 directory position u32  20 rows u32
/// 24 directory crc u32  28 table position u32  32 table length u32  36 table crc u32  40 end u32  44 zero 4 B
/// 48 epoch u64  56 crc u32 of bytes 0..56
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// The segment's sequence number.
    pub sequence: u32,
    /// Position of the footer block.
    pub footer_position: u32,
    /// Position of the directory.
    pub directory_position: u32,
    /// Rows of the directory.
    pub rows: u32,
    /// Seeded CRC of the directory.
    pub directory_crc: u32,
    /// Position of the stream table.
    pub table_position: u32,
    /// Bytes of the stream table.
    pub table_length: u32,
    /// Seeded CRC of the stream table.
    pub table_crc: u32,
    /// End of the footer block.
    pub end: u32,
    /// Epoch of the footer block.
    pub epoch: u64,
}

impl Trailer {
    /// The whole last sector.
    pub fn encode(&self, generation: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(TRAILER_BYTES);
        out.extend(TRAILER_MAGIC);
        for field in [
            self.sequence,
            self.footer_position,
            self.directory_position,
            self.rows,
            self.directory_crc,
            self.table_position,
            self.table_length,
            self.table_crc,
            self.end,
            0,
        ] {
            out.extend(field.to_le_bytes());
        }
        out.extend(self.epoch.to_le_bytes());
        let crc = seeded_crc(generation, &out);
        out.extend(crc.to_le_bytes());
        out.resize(TRAILER_BYTES, 0);
        out
    }

    /// Reads the last sector of a segment of `length` bytes. Returns `None` if the segment is not sealed.
    pub fn decode(sector: &[u8], generation: u64, length: u64) -> Option<Trailer> {
        let sector = sector.get(..60)?;
        if sector[..8] != TRAILER_MAGIC
            || sector[56..60] != seeded_crc(generation, &sector[..56]).to_le_bytes()
        {
            return None;
        }
        let mut fields = Fields(&sector[8..]);
        let trailer = Trailer {
            sequence: fields.u32(),
            footer_position: fields.u32(),
            directory_position: fields.u32(),
            rows: fields.u32(),
            directory_crc: fields.u32(),
            table_position: fields.u32(),
            table_length: fields.u32(),
            table_crc: fields.u32(),
            end: fields.u32(),
            epoch: {
                fields.u32();
                fields.u64()
            },
        };
        let directory_end = u64::from(trailer.directory_position) + u64::from(trailer.rows) * 64;
        let table_end = u64::from(trailer.table_position) + u64::from(trailer.table_length);
        let sane = directory_end <= length && table_end <= length && u64::from(trailer.end) <= length;
        sane.then_some(trailer)
    }
}

const _: () = {
    assert!(DIRECTORY_ROW_BYTES == 64);
    assert!(BLOCK_HEADER_BYTES + ENTRY_HEADER_BYTES < SECTOR);
};

/// Appends `value` as a base-128 varint, low bits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a signed `value`, zigzag-coded.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, (value << 1 ^ value >> 63).cast_unsigned());
}

/// Takes a varint from the front of `bytes`.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Takes a zigzag-coded varint.
pub(crate) fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let value = take_varint(bytes)?;
    Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_another_generation_does_not_pass() {
        let header = SegmentHeader { sequence: 3, generation: 9, length: 1 << 24, log_id: 77 << 90 };
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        let mut newer = header.encode();
        newer[8] = 9;
        let crc = model::crc32c(&newer[..48]);
        newer[48..52].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&newer), Err(HeaderError::Version(9)));

        let lsn = Lsn::new(3, 8192);
        let block = BlockHeader {
            kind: BlockKind::Footer,
            epoch: 4,
            lsn,
            synced: Lsn::new(3, 4096),
            length: 5000,
            entries: 2,
            payload_crc: 1,
        };
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        block.encode(9, &mut bytes);
        assert_eq!(BlockHeader::decode(&bytes, 9, lsn), Some(block));
        assert_eq!(BlockHeader::decode(&bytes, 8, lsn), None);
        assert_eq!(BlockHeader::decode(&bytes, 9, Lsn::new(3, 12288)), None);
        assert_eq!(block.total_bytes(), 8192);

        let entry = EntryHeader {
            stream: StreamId(5),
            base_offset: Offset(100),
            max_timestamp: Timestamp(-1),
            offset_count: 3,
            length: 70,
            kind: EntryKind::Batch,
        };
        assert_eq!(EntryHeader::decode(&entry.encode(9), 9), Some(entry));
        assert_eq!(EntryHeader::decode(&entry.encode(9), 10), None);
    }

    #[test]
    fn varints_come_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(take_varint(&mut &out[..]), Some(value));
        }
        for value in [0, -1, 1, i64::MIN, i64::MAX] {
            let mut out = Vec::new();
            put_signed(&mut out, value);
            assert_eq!(take_signed(&mut &out[..]), Some(value));
        }
        assert_eq!(take_varint(&mut &[0x80u8; 20][..]), None);
        assert_eq!(take_varint(&mut &[0x80u8][..]), None);
    }
}
