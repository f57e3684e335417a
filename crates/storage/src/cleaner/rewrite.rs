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
use model::{BatchHeader, Offset};

use super::outcome::{RewriteError, RewriteReport, writing};
use super::source::{RangePlan, Source, load, offset_count, with_slack};
use crate::format::{
    DirectoryRow, Lsn, ROW_COMPACTED, SECTOR, SEGMENT_HEADER_BYTES, SegmentHeader, TRAILER_BYTES, index,
    length32,
};
use crate::index::BatchPlace;
use crate::pacer::Pacer;
use crate::segment::build::{Blocks, Hold, SegmentBuilder};
use crate::segment::{CLEANING, Segment, file_name};
use crate::shared::{Rewriting, Shared};
use crate::stream::{Moved, SealedExtent, Stream, clamp_timestamp};

/// Bytes of batches that are read before they are written: the memory of a copy.
const CHUNK_BYTES: usize = if cfg!(test) { 64 * 1024 } else { 8 * 1024 * 1024 };
/// If a copy becomes longer than its estimate, its file grows by this many bytes beyond the need of the moment.
const GROWTH_BYTES: u64 = if cfg!(test) { 256 * 1024 } else { 16 * 1024 * 1024 };
/// The epoch of all blocks of a copy: the writer's epochs say nothing of it.
const EPOCH: u64 = 0;
/// This part of the reserve (1 / RESERVE_KEPT) is not used for copies.
const RESERVE_KEPT: u64 = 4;
/// Positions in a file have 32 bits.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024 - 1024 * 1024;

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
    builder: SegmentBuilder,
    file: CopyFile<'a>,
    promised: u64,
    ranges: Vec<WrittenRange>,
    report: RewriteReport,
}

/// The file of a copy.
struct CopyFile<'a> {
    shared: &'a Arc<Shared>,
    pacer: &'a mut Pacer,
    file: Arc<dyn File>,
    capacity: u64,
}

/// A range in the file: the new extent of the stream, and the extents that it replaces.
struct WrittenRange {
    stream: Arc<Stream>,
    base_offset: Offset,
    end: Offset,
    flags: u32,
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
            builder: SegmentBuilder::new(
                &shared.copies,
                rewriting.next_sequence,
                shared.next_generation(),
                EPOCH,
                Lsn::default(),
            ),
            rewriting,
            file: CopyFile { shared, pacer, file, capacity },
            promised: FILE_BYTES,
            ranges: Vec::new(),
            report: RewriteReport::default(),
        })
    }

    /// How many of `sources`, from the first on, still fit, even if compaction makes them somewhat larger.
    pub fn fitting(&self, sources: &[Source]) -> usize {
        let mut promised = self.promised;
        let fits = |source: &&Source| {
            promised += with_slack(source.estimate());
            promised <= self.file.capacity
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
        self.ranges.push(WrittenRange { stream: stream.clone(), base_offset, end, flags: plan.flags, moved });
        self.builder.begin_range(&mut self.file, stream.id(), (base_offset, end), plan.flags)?;
        let mut last_header = None;
        for chunk in chunks(&plan.sources) {
            for batch in load(self.shared, self.file.pacer, &stream, &chunk)? {
                self.report.read_bytes += batch.len() as u64;
                let (header, kept) = decide(&batch, rewriter.as_deref_mut())?;
                last_header = Some(header);
                if let Some((header, batch)) = kept {
                    self.push(&header, &batch)?;
                }
            }
        }
        if self.builder.range_is_empty()
            && let Some(last) = last_header
        {
            let (header, batch) = empty(&last)?;
            self.push(&header, &batch)?;
        }
        Ok(())
    }

    /// Adds a batch to the current range.
    fn push(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<(), RewriteError> {
        let offset_count = offset_count(header)?;
        self.report.written_bytes += batch.len() as u64;
        self.builder.push(&mut self.file, header, offset_count, batch, Hold::Copy)
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
                self.rewriting.broken = !(gone(CLEANING) & gone(&file_name(self.builder.sequence)));
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
        let built = self.builder.finish(&mut self.file, &[])?;
        self.ranges.sort_by_key(|range| (range.stream.id(), range.base_offset));
        let (sequence, generation) = (self.builder.sequence, self.builder.generation);
        let end = u64::from(self.builder.position());
        let length = end + TRAILER_BYTES as u64;
        let disk = &self.shared.disk;
        if length < self.file.capacity {
            let shorter = disk.shorten(CLEANING, length);
            self.file.file = shorter.map_err(writing("cutting a copy to its length"))?;
        }
        let file = &self.file.file;
        let header = SegmentHeader { sequence, generation, length, log_id: self.shared.options.log_id };
        let mut sector = AlignedBuffer::zeroed(SECTOR);
        sector.copy_from_slice(&header.encode());
        let first = file.write_at(0, &sector);
        sector.copy_from_slice(&built.trailer.encode(generation));
        let last = file.write_at(end, &sector);
        first.and(last).and_then(|()| file.sync()).map_err(writing("syncing a copy"))?;
        disk.rename(CLEANING, &file_name(sequence)).map_err(writing("naming a copy"))?;
        let segment = Arc::new(Segment::new(sequence, generation, file.clone()));
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

impl CopyFile<'_> {
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
}

impl Blocks for CopyFile<'_> {
    type Error = RewriteError;

    fn write(&mut self, position: u32, block: Vec<Bytes>) -> Result<(), RewriteError> {
        // Batches are copied into a block for a file, whose bytes must be aligned.
        let [block] = &block[..] else { unreachable!("a block for a file has one part") };
        self.make_room(u64::from(position) + (block.len() + TRAILER_BYTES) as u64)?;
        let begun = Instant::now();
        self.file.write_at(u64::from(position), block).map_err(writing("writing a copy"))?;
        self.shared.cleaner_written.fetch_add(block.len() as u64, Ordering::Relaxed);
        Ok(self.pacer.did(block.len(), begun)?)
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

/// The batches of `sources`, in parts of about [`CHUNK_BYTES`].
pub(super) fn chunks(sources: &[Source]) -> impl Iterator<Item = Vec<(&Arc<Segment>, &BatchPlace)>> {
    let mut places =
        sources.iter().flat_map(|s| s.places.iter().map(move |place| (&s.segment, place))).peekable();
    std::iter::from_fn(move || {
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while let Some((_, place)) = places.peek()
            && (chunk.is_empty() || bytes + index(place.length) <= CHUNK_BYTES)
        {
            bytes += index(place.length);
            chunk.extend(places.next());
        }
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// A batch and its header.
pub(super) type Kept = (BatchHeader, Bytes);

/// The header of a batch, and what `rewriter` leaves of it.
pub(super) fn decide(
    batch: &Bytes,
    rewriter: Option<&mut (dyn Rewriter + '_)>,
) -> Result<(BatchHeader, Option<Kept>), RewriteError> {
    let header =
        BatchHeader::parse_header(batch).map_err(|error| RewriteError::Rewriter(error.to_string()))?;
    let rewritten = match rewriter {
        Some(rewriter) => rewriter.rewrite(&header, batch).map_err(RewriteError::Rewriter)?,
        None => Rewritten::Keep,
    };
    let kept = match rewritten {
        Rewritten::Keep => Some((header, batch.clone())),
        Rewritten::Drop => None,
        Rewritten::Replace(batch) => Some((checked(&header, &batch)?, batch)),
    };
    Ok((header, kept))
}

/// The empty batch of a range of which nothing is left; `last` is the header of the range's last batch.
pub(super) fn empty(last: &BatchHeader) -> Result<Kept, RewriteError> {
    let batch = Bytes::from(model::batch::empty_like(last));
    Ok((checked(last, &batch)?, batch))
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
