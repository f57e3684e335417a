//! Copies extents into a new segment. The cleaner does this to free segments, compaction to drop records.
//!
//! The file of the copy is worthless until it is complete and synced. Then it gets its name, which makes it part of the
//! log at once and for ever (`recovery/overlay.rs` says how the next opening chooses between copy and source). Only
//! after that, the streams are pointed at the copy, one by one under their locks. At every moment, and after a crash at
//! any moment, a reader finds either the source or the copy.
//!
//! A range always has a batch. An extent without a live batch could be dropped while its source still exists, and the
//! records that compaction removed would come back. So an empty batch stays where all records are removed, as in Kafka.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use disk::{AlignedBuffer, File};
use model::{BatchHeader, Offset, StreamId};

use super::outcome::{RewriteError, RewriteReport, writing};
use super::source::{BLOCK_BYTES, RangePlan, Source, load, with_slack};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, DirectoryRow, ENTRY_HEADER_BYTES, EntryHeader, EntryKind,
    Lsn, ROW_COMPACTED, RangeBody, SECTOR, SEGMENT_HEADER_BYTES, SegmentHeader, TRAILER_BYTES, index,
    length32, sectors, seeded_crc,
};
use crate::index::{BatchIndex, BatchPlace};
use crate::pacer::Pacer;
use crate::segment::footer::{self, SealedStream};
use crate::segment::{CLEANING, Segment, file_name};
use crate::shared::{Rewriting, Shared};
use crate::stream::{Moved, SealedExtent, Stream, clamp_timestamp};

/// Bytes of batches that are read before they are written: the memory of a copy.
const CHUNK_BYTES: usize = if cfg!(test) { 64 * 1024 } else { 8 * 1024 * 1024 };
/// If a copy becomes longer than its estimate, its file grows by this many bytes beyond the need of the moment.
const GROWTH_BYTES: u64 = if cfg!(test) { 256 * 1024 } else { 16 * 1024 * 1024 };
/// This part of the reserve (1 / RESERVE_KEPT) is not used for copies.
const RESERVE_KEPT: u64 = 4;
/// Positions in a file have 32 bits.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024 - 1024 * 1024;
/// The stream table of a cleaned segment: it is empty.
const NO_TABLE: [u8; 2] = [1, 0];

/// The rewriter's decision about a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// The batch stays unchanged.
    Keep,
    /// The batch is dropped.
    Drop,
    /// This batch replaces it: the same offsets, fewer records.
    Replace(Bytes),
}

/// Decides what compaction keeps of the batches of a stream. It is called in the order of their offsets.
pub trait Rewriter {
    /// `batch` is one whole batch whose CRC was checked; `header` is its parsed header.
    fn rewrite(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<Rewritten, String>;
}

/// A cleaned segment that is being written.
pub(crate) struct Output<'a> {
    shared: &'a Arc<Shared>,
    rewriting: &'a mut Rewriting,
    pacer: &'a mut Pacer,
    file: Arc<dyn File>,
    sequence: u32,
    generation: u64,
    capacity: u64,
    promised: u64,
    position: u32,
    block: AlignedBuffer,
    filled: usize,
    entries: u32,
    ranges: Vec<WrittenRange>,
    report: RewriteReport,
}

/// A range in the file: the new extent of the stream, and the extents that it replaces.
struct WrittenRange {
    stream: Arc<Stream>,
    base_offset: Offset,
    end: Offset,
    flags: u32,
    index: BatchIndex,
    moved: Moved,
}

/// Bytes of a file beside its ranges: header, trailer, and the heads and ends of the first block and of the footer.
pub(crate) const FILE_BYTES: u64 = (SEGMENT_HEADER_BYTES + TRAILER_BYTES + 4 * SECTOR) as u64;

impl<'a> Output<'a> {
    /// Creates a file with room for `estimate` bytes of ranges.
    pub fn create(
        shared: &'a Arc<Shared>,
        rewriting: &'a mut Rewriting,
        pacer: &'a mut Pacer,
        estimate: u64,
    ) -> Result<Output<'a>, RewriteError> {
        if rewriting.broken {
            return Err(RewriteError::Stopped);
        }
        let capacity = (FILE_BYTES + estimate).next_multiple_of(SECTOR as u64);
        let disk = &shared.disk;
        if disk.list().map_err(writing("listing the data directory"))?.iter().any(|name| name == CLEANING) {
            disk.remove(CLEANING).map_err(writing("removing an old copy"))?;
        }
        if estimate > shared.copy_room()? {
            return Err(RewriteError::Full { bytes: capacity });
        }
        let file = disk.create(CLEANING, capacity).map_err(writing("making the file of a copy"))?;
        Ok(Output {
            shared,
            sequence: rewriting.next_sequence,
            generation: shared.next_generation(),
            rewriting,
            pacer,
            file,
            capacity,
            promised: FILE_BYTES,
            position: Segment::data_start(),
            block: AlignedBuffer::zeroed(sectors(BLOCK_BYTES)),
            filled: BLOCK_HEADER_BYTES,
            entries: 0,
            ranges: Vec::new(),
            report: RewriteReport::default(),
        })
    }

    /// How many of `sources`, from the first on, still fit, even if compaction makes them somewhat larger.
    pub fn fitting(&self, sources: &[Source]) -> usize {
        let mut promised = self.promised;
        let fits = |source: &&Source| {
            promised += with_slack(source.estimate());
            promised <= self.capacity
        };
        sources.iter().take_while(fits).count()
    }

    pub fn has(&self, stream: &Arc<Stream>) -> bool {
        self.ranges.iter().any(|range| Arc::ptr_eq(&range.stream, stream))
    }

    /// Copies a range, through `rewriter` if there is one.
    pub fn copy(
        &mut self,
        plan: &RangePlan,
        mut rewriter: Option<&mut (dyn Rewriter + '_)>,
    ) -> Result<(), RewriteError> {
        let (Some(first), Some(last)) = (plan.sources.first(), plan.sources.last()) else { return Ok(()) };
        if plan.sources.iter().all(|source| source.places.is_empty()) {
            // The whole range lies below the stream's start.
            return Ok(());
        }
        self.promised += plan.sources.iter().map(|source| with_slack(source.estimate())).sum::<u64>();
        let (stream, base_offset, end) = (plan.stream.clone(), first.base_offset, last.end);
        let part = plan.sources.iter().find(|source| source.whole.is_none());
        let moved = Moved {
            whole: plan.sources.iter().filter_map(|s| Some((s.segment.sequence, s.whole?))).collect(),
            part: part.map(|source| (source.segment.sequence, source.bytes)),
        };
        self.ranges.push(WrittenRange {
            stream: stream.clone(),
            base_offset,
            end,
            flags: plan.flags,
            index: BatchIndex::default(),
            moved,
        });
        let body = RangeBody { end, flags: plan.flags }.encode();
        let header = EntryHeader {
            stream: stream.id(),
            base_offset,
            max_timestamp: model::Timestamp::NONE,
            offset_count: 0,
            length: length32(body.len()),
            kind: EntryKind::Range,
        };
        self.push_entry(&header, &body)?;
        let mut last_header = None;
        let mut places =
            plan.sources.iter().flat_map(|s| s.places.iter().map(|place| (&s.segment, place))).peekable();
        while places.peek().is_some() {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while let Some((_, place)) = places.peek()
                && (chunk.is_empty() || bytes + index(place.length) <= CHUNK_BYTES)
            {
                bytes += index(place.length);
                chunk.extend(places.next());
            }
            for (batch, (_, place)) in load(self.shared, self.pacer, &stream, &chunk)?.into_iter().zip(chunk)
            {
                self.report.read_bytes += u64::from(place.length);
                let header = BatchHeader::parse_header(&batch)
                    .map_err(|error| RewriteError::Rewriter(error.to_string()))?;
                last_header = Some(header);
                let rewritten = match &mut rewriter {
                    Some(rewriter) => rewriter.rewrite(&header, &batch).map_err(RewriteError::Rewriter)?,
                    None => Rewritten::Keep,
                };
                match rewritten {
                    Rewritten::Keep => self.push(stream.id(), &header, &batch)?,
                    Rewritten::Drop => {}
                    Rewritten::Replace(batch) => {
                        let new = checked(&header, &batch)?;
                        self.push(stream.id(), &new, &batch)?;
                    }
                }
            }
        }
        let range = self.ranges.last().expect("it was just pushed");
        if range.index.is_empty()
            && let Some(last) = last_header
        {
            let batch = Bytes::from(model::batch::empty_like(&last));
            let header = checked(&last, &batch)?;
            self.push(stream.id(), &header, &batch)?;
        }
        Ok(())
    }

    /// Adds a batch to the current range.
    fn push(&mut self, stream: StreamId, header: &BatchHeader, batch: &Bytes) -> Result<(), RewriteError> {
        let entry = EntryHeader {
            stream,
            base_offset: header.base_offset,
            max_timestamp: header.max_timestamp,
            offset_count: u32::try_from(header.offset_count())
                .map_err(|_| RewriteError::Rewriter("a batch spans too many offsets".into()))?,
            length: length32(batch.len()),
            kind: EntryKind::Batch,
        };
        let position = self.push_entry(&entry, batch)?;
        self.report.written_bytes += batch.len() as u64;
        let range = self.ranges.last_mut().expect("a range was begun");
        range.index.push(BatchPlace {
            base_offset: entry.base_offset,
            offset_count: entry.offset_count,
            position,
            length: entry.length,
            max_timestamp: entry.max_timestamp,
        });
        Ok(())
    }

    /// Adds an entry to the open block; returns its position in the file.
    fn push_entry(&mut self, entry: &EntryHeader, body: &[u8]) -> Result<u32, RewriteError> {
        let bytes = ENTRY_HEADER_BYTES + body.len();
        if self.filled + bytes > BLOCK_BYTES && self.entries > 0 {
            self.write_block(BlockKind::Entries)?;
        }
        self.reserve(bytes);
        let position = self.position + length32(self.filled);
        self.block[self.filled..self.filled + ENTRY_HEADER_BYTES]
            .copy_from_slice(&entry.encode(self.generation));
        self.block[self.filled + ENTRY_HEADER_BYTES..self.filled + bytes].copy_from_slice(body);
        self.filled += bytes;
        self.entries += 1;
        Ok(position)
    }

    /// Makes the block's buffer long enough for `bytes` more.
    fn reserve(&mut self, bytes: usize) {
        let wanted = sectors(self.filled + bytes);
        if wanted > self.block.len() {
            let mut longer = AlignedBuffer::zeroed(wanted);
            longer[..self.filled].copy_from_slice(&self.block[..self.filled]);
            self.block = longer;
        }
    }

    /// Makes the file at least `bytes` long. A compacted batch may be longer than its source, if the client compresses
    /// better than this server.
    fn make_room(&mut self, bytes: u64) -> Result<(), RewriteError> {
        if bytes <= self.capacity {
            return Ok(());
        }
        let capacity = (bytes + GROWTH_BYTES).next_multiple_of(SECTOR as u64).min(OUTPUT_BYTES_MAX);
        if bytes > capacity {
            return Err(RewriteError::Rewriter("what compaction leaves is more than a segment holds".into()));
        }
        if capacity - self.capacity > self.shared.copy_room()? {
            return Err(RewriteError::Full { bytes: capacity });
        }
        let longer = self.shared.disk.lengthen(CLEANING, capacity);
        self.file = longer.map_err(writing("making the file of a copy longer"))?;
        self.capacity = capacity;
        Ok(())
    }

    fn write_block(&mut self, kind: BlockKind) -> Result<(), RewriteError> {
        let total = sectors(self.filled);
        self.make_room(u64::from(self.position) + (total + TRAILER_BYTES) as u64)?;
        self.block[self.filled..total].fill(0);
        let header = BlockHeader {
            kind,
            epoch: 0,
            lsn: Lsn::new(self.sequence, self.position),
            synced: Lsn::default(),
            length: length32(self.filled - BLOCK_HEADER_BYTES),
            entries: self.entries,
            payload_crc: seeded_crc(self.generation, &self.block[BLOCK_HEADER_BYTES..self.filled]),
        };
        header.encode(self.generation, &mut self.block);
        let begun = Instant::now();
        self.file
            .write_at(u64::from(self.position), &self.block[..total])
            .map_err(writing("writing a copy"))?;
        self.shared.cleaner_written.fetch_add(total as u64, Ordering::Relaxed);
        self.position += length32(total);
        self.filled = BLOCK_HEADER_BYTES;
        self.entries = 0;
        Ok(self.pacer.did(total, begun)?)
    }

    /// Completes the file, makes it part of the log, and points the streams at it.
    pub fn finish(mut self) -> Result<RewriteReport, RewriteError> {
        let (segment, rows) = match self.complete() {
            Ok(done) => done,
            Err(error) => {
                // The file goes under either of its names: the next opening must not find a copy that no stream uses.
                let disk = &self.shared.disk;
                let gone = |name: &str| match disk.remove(name) {
                    Err(error) => error.kind() == io::ErrorKind::NotFound,
                    Ok(()) => true,
                };
                self.rewriting.broken = !(gone(CLEANING) & gone(&file_name(self.sequence)));
                return Err(error);
            }
        };
        self.rewriting.next_sequence += 1;
        let rows_bytes: u64 = rows.iter().map(|row| row.bytes).sum();
        segment.set_live(length32(rows.len()) + 1, rows_bytes);
        segment.mark_sealed();
        self.shared.segments.insert(segment.clone());
        for (at, (range, row)) in self.ranges.iter().zip(&rows).enumerate() {
            self.publish(&segment, length32(at), range, row);
        }
        segment.release(0);
        self.shared.wake_preparer();
        self.report.segments = 1;
        Ok(self.report)
    }

    /// Writes the footer and gives the file its name.
    fn complete(&mut self) -> Result<(Arc<Segment>, Vec<DirectoryRow>), RewriteError> {
        if self.entries > 0 {
            self.write_block(BlockKind::Entries)?;
        }
        self.ranges.sort_by_key(|range| (range.stream.id(), range.base_offset));
        let sealed: Vec<SealedStream> = self
            .ranges
            .iter()
            .map(|range| SealedStream {
                stream: range.stream.id(),
                index: Arc::new(range.index.clone()),
                base_offset: range.base_offset,
                next_offset: range.end,
                flags: range.flags,
            })
            .collect();
        let payload_position = self.position + length32(BLOCK_HEADER_BYTES);
        let built = footer::build(
            self.sequence,
            self.generation,
            0,
            self.position,
            payload_position,
            &sealed,
            NO_TABLE.to_vec(),
        );
        self.reserve(built.payload.len());
        self.block[self.filled..self.filled + built.payload.len()].copy_from_slice(&built.payload);
        self.filled += built.payload.len();
        self.write_block(BlockKind::Footer)?;
        let length = u64::from(self.position) + TRAILER_BYTES as u64;
        let disk = &self.shared.disk;
        if length < self.capacity {
            self.file = disk.shorten(CLEANING, length).map_err(writing("cutting a copy to its length"))?;
        }
        let header = SegmentHeader {
            sequence: self.sequence,
            generation: self.generation,
            length,
            log_id: self.shared.options.log_id,
        };
        let mut sector = AlignedBuffer::zeroed(SECTOR);
        sector.copy_from_slice(&header.encode());
        let first = self.file.write_at(0, &sector);
        sector.copy_from_slice(&built.trailer.encode(self.generation));
        let last = self.file.write_at(u64::from(self.position), &sector);
        first.and(last).and_then(|()| self.file.sync()).map_err(writing("syncing a copy"))?;
        disk.rename(CLEANING, &file_name(self.sequence)).map_err(writing("naming a copy"))?;
        let segment = Arc::new(Segment::new(self.sequence, self.generation, self.file.clone()));
        segment.set_footer(built.trailer, None);
        Ok((segment, built.rows))
    }

    fn publish(&self, segment: &Arc<Segment>, row_number: u32, range: &WrittenRange, row: &DirectoryRow) {
        let bytes = u32::try_from(row.bytes).expect("a segment is smaller than 4 GiB");
        let new = SealedExtent {
            base_offset: row.base_offset,
            segment: segment.sequence,
            row: row_number,
            bytes,
            max_timestamp_s: clamp_timestamp(row.max_timestamp),
        };
        let segments = &self.shared.segments;
        let mut state = range.stream.lock();
        let taken =
            state.supersede(new, range.base_offset..range.end, &range.moved, |sequence, bytes, all| {
                if let Some(source) = segments.find(sequence) {
                    if all { source.release(bytes) } else { source.release_part(bytes) }
                }
            });
        if !taken {
            segment.release(bytes);
        } else if range.flags & ROW_COMPACTED != 0 {
            state.compacted = state.compacted.max(range.end);
        }
    }
}

impl Shared {
    /// Bytes of ranges that a copy may have now: the free space, except for a part of the reserve that the metadata may
    /// need.
    pub fn copy_room(&self) -> Result<u64, RewriteError> {
        let free = self.disk.free_bytes().map_err(writing("asking for free space"))?;
        let kept = self.options.reserve_bytes / RESERVE_KEPT + FILE_BYTES + SECTOR as u64;
        Ok(free.saturating_sub(kept).min(OUTPUT_BYTES_MAX - FILE_BYTES))
    }
}

impl Drop for Output<'_> {
    /// An unfinished copy is removed at once, because it may take space on a full disk.
    fn drop(&mut self) {
        if self.report.segments == 0 && !self.rewriting.broken {
            // If this fails, the next copy or the next opening removes the file.
            let _ = self.shared.disk.remove(CLEANING);
        }
    }
}

/// The header of a batch that replaces the batch with `header`.
fn checked(header: &BatchHeader, batch: &Bytes) -> Result<BatchHeader, RewriteError> {
    let refuse = |what: String| RewriteError::Rewriter(format!("a rewritten batch is invalid: {what}"));
    let new = BatchHeader::parse_header(batch).map_err(|error| refuse(error.to_string()))?;
    let same = (new.base_offset, new.last_offset_delta) == (header.base_offset, header.last_offset_delta);
    if !same || new.total_bytes != batch.len() {
        return Err(refuse("it has other offsets or another length than it says".into()));
    }
    Ok(new)
}
