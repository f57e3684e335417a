//! Builds a segment that is complete from the beginning: entries sorted by stream, and a footer. The cleaner writes such
//! segments to the disk, the uploader to an object store.

use bytes::Bytes;
use disk::{BufferPool, FillBuffer};
use model::{BatchHeader, Offset, StreamId, Timestamp};

use super::Segment;
use super::footer::{self, BuiltFooter, SealedStream, TableRow};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, RangeBody,
    SECTOR, index, length32, sectors, seeded_crc_of,
};
use crate::index::{BatchIndex, BatchPlace};

/// Upper bound of a block that holds several entries.
pub(crate) const BLOCK_BYTES: usize = if cfg!(test) { 32 * 1024 } else { 1024 * 1024 };

/// Takes the blocks of a segment, in order and without gaps.
pub(crate) trait Blocks {
    type Error;

    /// Takes the block at `position`, whose bytes come in parts: a single one if all of its batches were copied.
    fn write(&mut self, position: u32, block: Vec<Bytes>) -> Result<(), Self::Error>;
}

/// What a block has of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// A copy.
    Copy,
    /// The batch's own memory, for as long as the block lives.
    Share,
}

/// A range of a stream in the segment.
#[derive(Clone, Debug)]
pub(crate) struct BuiltRange {
    pub stream: StreamId,
    /// The offsets that the range stands for.
    pub base_offset: Offset,
    pub end: Offset,
    /// As in [`crate::format::DirectoryRow::flags`].
    pub flags: u32,
    pub index: BatchIndex,
}

/// The block that entries are added to.
struct OpenBlock {
    /// What comes before the bytes in `buffer`: empty as long as no batch is shared.
    parts: Vec<Bytes>,
    buffer: FillBuffer,
    /// Bytes that stand in `buffer` behind `parts`.
    copied: usize,
    /// Bytes of the block.
    bytes: usize,
    entries: u32,
}

/// A segment under construction.
pub(crate) struct SegmentBuilder {
    pub sequence: u32,
    pub generation: u64,
    epoch: u64,
    synced: Lsn,
    position: u32,
    /// The memory of the blocks, except for batches that are shared.
    buffers: BufferPool,
    block: OpenBlock,
    ranges: Vec<BuiltRange>,
}

impl SegmentBuilder {
    /// Begins a segment. All its blocks have the epoch `epoch`, which is none of the writer's, and say that everything
    /// below `synced` is safe.
    pub fn new(
        buffers: &BufferPool,
        sequence: u32,
        generation: u64,
        epoch: u64,
        synced: Lsn,
    ) -> SegmentBuilder {
        SegmentBuilder {
            sequence,
            generation,
            epoch,
            synced,
            position: Segment::data_start(),
            buffers: buffers.clone(),
            block: OpenBlock::begin(buffers.take()),
            ranges: Vec::new(),
        }
    }

    /// Begins a range, without batches so far.
    pub fn begin_range<B: Blocks>(
        &mut self,
        blocks: &mut B,
        stream: StreamId,
        (base_offset, end): (Offset, Offset),
        flags: u32,
    ) -> Result<(), B::Error> {
        self.ranges.push(BuiltRange { stream, base_offset, end, flags, index: BatchIndex::default() });
        let body = RangeBody { end, flags }.encode();
        let header = EntryHeader {
            stream,
            base_offset,
            max_timestamp: Timestamp::NONE,
            offset_count: 0,
            length: length32(body.len()),
            kind: EntryKind::Range,
        };
        self.begin_entry(blocks, &header, Hold::Copy)?;
        self.block.copy(&body);
        Ok(())
    }

    /// Whether the current range has no batch.
    pub fn range_is_empty(&self) -> bool {
        self.ranges.last().is_none_or(|range| range.index.is_empty())
    }

    /// Adds a batch to the current range. The header's offsets fit 32 bits.
    pub fn push<B: Blocks>(
        &mut self,
        blocks: &mut B,
        header: &BatchHeader,
        offset_count: u32,
        batch: &Bytes,
        hold: Hold,
    ) -> Result<(), B::Error> {
        let range = self.ranges.last().expect("a range was begun");
        let entry = EntryHeader {
            stream: range.stream,
            base_offset: header.base_offset,
            max_timestamp: header.max_timestamp,
            offset_count,
            length: length32(batch.len()),
            kind: EntryKind::Batch,
        };
        let position = self.begin_entry(blocks, &entry, hold)?;
        match hold {
            Hold::Copy => self.block.copy(batch),
            Hold::Share => self.block.share(batch.clone()),
        }
        let range = self.ranges.last_mut().expect("it was just seen");
        range.index.push(BatchPlace {
            base_offset: entry.base_offset,
            offset_count: entry.offset_count,
            position,
            length: entry.length,
            max_timestamp: entry.max_timestamp,
        });
        Ok(())
    }

    /// Ends the segment with a footer, which has the stream table `table`. Sorts the ranges by stream and offset. Returns
    /// the footer, whose trailer stands at [`SegmentBuilder::position`]. Header and trailer are the caller's.
    pub fn finish<B: Blocks>(
        &mut self,
        blocks: &mut B,
        table: &[(StreamId, TableRow)],
    ) -> Result<BuiltFooter, B::Error> {
        if self.block.entries > 0 {
            self.write_block(blocks, BlockKind::Entries)?;
        }
        self.ranges.sort_by_key(|range| (range.stream, range.base_offset));
        let sealed: Vec<SealedStream> = self.ranges.iter().map(BuiltRange::sealed).collect();
        let payload_position = self.position + length32(BLOCK_HEADER_BYTES);
        let built = footer::build(
            self.sequence,
            self.generation,
            self.epoch,
            self.position,
            payload_position,
            &sealed,
            footer::encode_rows(table),
        );
        self.block.reserve(&self.buffers, built.payload.len());
        self.block.copy(&built.payload);
        self.write_block(blocks, BlockKind::Footer)?;
        Ok(built)
    }

    /// The position below which everything is safe, as its blocks say.
    pub fn synced(&self) -> Lsn {
        self.synced
    }

    /// The end of the blocks so far.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Bytes of the blocks so far, and of the open block.
    pub fn bytes(&self) -> usize {
        crate::format::index(self.position) + self.block.bytes
    }

    /// Adds an entry's header to the open block, which then has room for the body too. Returns the entry's position in the
    /// segment.
    fn begin_entry<B: Blocks>(
        &mut self,
        blocks: &mut B,
        entry: &EntryHeader,
        hold: Hold,
    ) -> Result<u32, B::Error> {
        let bytes = ENTRY_HEADER_BYTES + index(entry.length);
        if self.block.bytes + bytes > BLOCK_BYTES && self.block.entries > 0 {
            self.write_block(blocks, BlockKind::Entries)?;
        }
        self.block.reserve(&self.buffers, if hold == Hold::Copy { bytes } else { ENTRY_HEADER_BYTES });
        let position = self.position + length32(self.block.bytes);
        self.block.copy(&entry.encode(self.generation));
        self.block.entries += 1;
        Ok(position)
    }

    fn write_block<B: Blocks>(&mut self, blocks: &mut B, kind: BlockKind) -> Result<(), B::Error> {
        let position = self.position;
        let header = BlockHeader {
            kind,
            epoch: self.epoch,
            lsn: Lsn::new(self.sequence, position),
            synced: self.synced,
            length: length32(self.block.bytes - BLOCK_HEADER_BYTES),
            entries: self.block.entries,
            payload_crc: 0,
        };
        self.position += length32(sectors(self.block.bytes));
        let parts = self.block.finish(&self.buffers, header, self.generation);
        blocks.write(position, parts)
    }
}

impl OpenBlock {
    fn begin(buffer: FillBuffer) -> OpenBlock {
        let parts = Vec::new();
        OpenBlock { parts, buffer, copied: BLOCK_HEADER_BYTES, bytes: BLOCK_HEADER_BYTES, entries: 0 }
    }

    /// Makes the buffer long enough to copy `bytes` more, and to fill the last sector of a block without shared batches.
    fn reserve(&mut self, buffers: &BufferPool, bytes: usize) {
        let wanted = sectors(self.copied + bytes);
        if wanted > self.buffer.remaining() {
            let mut longer = buffers.take_at_least(wanted);
            longer.unfilled()[..self.copied].copy_from_slice(&self.buffer.unfilled()[..self.copied]);
            self.buffer = longer;
        }
    }

    /// Adds bytes, for which there is room.
    fn copy(&mut self, bytes: &[u8]) {
        self.buffer.unfilled()[self.copied..][..bytes.len()].copy_from_slice(bytes);
        self.copied += bytes.len();
        self.bytes += bytes.len();
    }

    /// Adds `bytes` where they are.
    fn share(&mut self, bytes: Bytes) {
        self.parts.push(self.buffer.freeze(std::mem::take(&mut self.copied)));
        self.bytes += bytes.len();
        self.parts.push(bytes);
    }

    /// Ends the block with `header`, whose CRC is computed here, and begins the next one. Returns the parts of the block.
    fn finish(&mut self, buffers: &BufferPool, mut header: BlockHeader, generation: u64) -> Vec<Bytes> {
        let padding = sectors(self.bytes) - self.bytes;
        let end = self.buffer.unfilled();
        let mut parts = std::mem::take(&mut self.parts);
        if parts.is_empty() {
            end[self.copied..][..padding].fill(0);
            header.payload_crc = seeded_crc_of(generation, [&end[BLOCK_HEADER_BYTES..self.copied]]);
            header.encode(generation, end);
            parts.push(self.buffer.freeze(self.copied + padding));
        } else {
            let last = &end[..self.copied];
            let payload = || parts.iter().map(|part| &part[..]);
            let first = payload().take(1).map(|first| &first[BLOCK_HEADER_BYTES..]);
            let shared = first.chain(payload().skip(1)).chain([last]);
            header.payload_crc = seeded_crc_of(generation, shared);
            let mut encoded = [0; BLOCK_HEADER_BYTES];
            header.encode(generation, &mut encoded);
            // The room for the header is in memory that is shared already.
            parts[0] = parts[0].slice(BLOCK_HEADER_BYTES..);
            parts.insert(0, Bytes::copy_from_slice(&encoded));
            parts.push(self.buffer.freeze(self.copied));
            parts.push(Bytes::from_static(&[0; SECTOR]).slice(..padding));
            parts.retain(|part| !part.is_empty());
        }
        // A footer, or the only block of a small object, leaves room.
        if self.buffer.remaining() < self.buffer.capacity() / 2 {
            self.buffer = buffers.take();
        }
        (self.copied, self.bytes, self.entries) = (BLOCK_HEADER_BYTES, BLOCK_HEADER_BYTES, 0);
        parts
    }
}

impl BuiltRange {
    fn sealed(&self) -> SealedStream {
        SealedStream {
            stream: self.stream,
            index: std::sync::Arc::new(self.index.clone()),
            base_offset: self.base_offset,
            next_offset: self.end,
            flags: self.flags,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::batch;

    impl Blocks for Vec<(u32, Vec<Bytes>)> {
        type Error = std::convert::Infallible;

        fn write(&mut self, position: u32, block: Vec<Bytes>) -> Result<(), Self::Error> {
            self.push((position, block));
            Ok(())
        }
    }

    /// The bytes of a segment with batches of `lengths`, of which `shares` are not copied, and the number of its parts.
    fn built(lengths: &[usize], shares: impl Fn(usize) -> bool) -> (Vec<u8>, usize) {
        let (mut rng, mut blocks) = (fastrand::Rng::with_seed(1), Vec::new());
        let mut builder = SegmentBuilder::new(&BufferPool::new(BLOCK_BYTES, 2), 7, 11, 3, Lsn::default());
        for (at, length) in lengths.iter().enumerate() {
            let offset = i64::try_from(at).unwrap();
            if at % 3 == 0 {
                builder
                    .begin_range(&mut blocks, StreamId(at as u64), (Offset(offset), Offset(offset + 3)), 0)
                    .unwrap();
            }
            let mut batch = batch(&mut rng, 1, *length, 5, None).to_vec();
            batch[..8].copy_from_slice(&offset.to_be_bytes());
            let batch = Bytes::from(batch);
            let header = BatchHeader::parse_header(&batch).unwrap();
            let hold = if shares(at) { Hold::Share } else { Hold::Copy };
            builder.push(&mut blocks, &header, 1, &batch, hold).unwrap();
        }
        let (mut bytes, mut parts) = (Vec::new(), 0);
        builder.finish(&mut blocks, &[]).unwrap();
        for (position, block) in blocks {
            assert_eq!(
                index(position),
                index(Segment::data_start()) + bytes.len(),
                "blocks come without gaps"
            );
            assert!(block.iter().all(|part| !part.is_empty()));
            parts += block.len();
            bytes.extend(block.concat());
        }
        (bytes, parts)
    }

    #[test]
    fn a_segment_has_the_same_bytes_whether_its_batches_are_shared_or_copied() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            // Also batches that fill a sector or a block to the byte, or are longer than a block.
            let special =
                [SECTOR - 61, BLOCK_BYTES - 61 - ENTRY_HEADER_BYTES - BLOCK_HEADER_BYTES, BLOCK_BYTES, 0];
            let length = |rng: &mut fastrand::Rng| match rng.u8(..) {
                0..30 => special[rng.usize(..special.len())],
                _ => rng.usize(0..9000),
            };
            let lengths: Vec<usize> = (0..rng.usize(1..40)).map(|_| length(&mut rng)).collect();
            let (copied, blocks) = built(&lengths, |_| false);
            let chosen: Vec<bool> = lengths.iter().map(|_| rng.bool()).collect();
            for shares in [chosen, vec![true; lengths.len()]] {
                let (shared, parts) = built(&lengths, |at| shares[at]);
                assert!(shared == copied, "seed {seed}, lengths {lengths:?}, shared {shares:?}");
                assert!(!shares.contains(&true) || parts > blocks, "seed {seed}: nothing is shared");
            }
        }
    }
}
