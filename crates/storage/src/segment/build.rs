//! Builds a segment that is complete from the beginning: entries sorted by stream, and a footer. The cleaner writes such
//! segments to the disk, the uploader to an object store.

use bytes::Bytes;
use disk::{BufferPool, FillBuffer};
use model::{BatchHeader, Offset, StreamId, Timestamp};

use super::Segment;
use super::footer::{self, BuiltFooter, SealedStream, TableRow};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, RangeBody,
    length32, sectors, seeded_crc,
};
use crate::index::{BatchIndex, BatchPlace};

/// Upper bound of a block that holds several entries.
pub(crate) const BLOCK_BYTES: usize = if cfg!(test) { 32 * 1024 } else { 1024 * 1024 };

/// Takes the blocks of a segment, in order and without gaps.
pub(crate) trait Blocks {
    type Error;

    /// Takes the block at `position`.
    fn write(&mut self, position: u32, block: Bytes) -> Result<(), Self::Error>;
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

/// A segment under construction.
pub(crate) struct SegmentBuilder {
    pub sequence: u32,
    pub generation: u64,
    epoch: u64,
    synced: Lsn,
    position: u32,
    /// The memory of the blocks.
    buffers: BufferPool,
    block: FillBuffer,
    filled: usize,
    entries: u32,
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
            block: buffers.take(),
            filled: BLOCK_HEADER_BYTES,
            entries: 0,
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
        self.push_entry(blocks, &header, &body).map(drop)
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
        let position = self.push_entry(blocks, &entry, batch)?;
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
        if self.entries > 0 {
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
        self.reserve(built.payload.len());
        self.block.unfilled()[self.filled..][..built.payload.len()].copy_from_slice(&built.payload);
        self.filled += built.payload.len();
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
        crate::format::index(self.position) + self.filled
    }

    /// Adds an entry to the open block; returns its position in the segment.
    fn push_entry<B: Blocks>(
        &mut self,
        blocks: &mut B,
        entry: &EntryHeader,
        body: &[u8],
    ) -> Result<u32, B::Error> {
        let bytes = ENTRY_HEADER_BYTES + body.len();
        if self.filled + bytes > BLOCK_BYTES && self.entries > 0 {
            self.write_block(blocks, BlockKind::Entries)?;
        }
        self.reserve(bytes);
        let position = self.position + length32(self.filled);
        let (head, rest) = self.block.unfilled()[self.filled..].split_at_mut(ENTRY_HEADER_BYTES);
        head.copy_from_slice(&entry.encode(self.generation));
        rest[..body.len()].copy_from_slice(body);
        self.filled += bytes;
        self.entries += 1;
        Ok(position)
    }

    /// Makes the block's buffer long enough for `bytes` more.
    fn reserve(&mut self, bytes: usize) {
        let wanted = sectors(self.filled + bytes);
        if wanted > self.block.remaining() {
            let mut longer = self.buffers.take_at_least(wanted);
            longer.unfilled()[..self.filled].copy_from_slice(&self.block.unfilled()[..self.filled]);
            self.block = longer;
        }
    }

    fn write_block<B: Blocks>(&mut self, blocks: &mut B, kind: BlockKind) -> Result<(), B::Error> {
        let total = sectors(self.filled);
        let block = &mut self.block.unfilled()[..total];
        block[self.filled..].fill(0);
        let header = BlockHeader {
            kind,
            epoch: self.epoch,
            lsn: Lsn::new(self.sequence, self.position),
            synced: self.synced,
            length: length32(self.filled - BLOCK_HEADER_BYTES),
            entries: self.entries,
            payload_crc: seeded_crc(self.generation, &block[BLOCK_HEADER_BYTES..self.filled]),
        };
        header.encode(self.generation, block);
        let (full, position) = (self.block.freeze(total), self.position);
        // A footer, or the only block of a small object, leaves room.
        if self.block.remaining() < self.block.capacity() / 2 {
            self.block = self.buffers.take();
        }
        self.position += length32(total);
        self.filled = BLOCK_HEADER_BYTES;
        self.entries = 0;
        blocks.write(position, full)
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
