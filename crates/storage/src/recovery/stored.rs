//! Segments in the object store during opening. Their local files say what they hold, so the store is not asked.

use std::collections::HashMap;
use std::sync::Arc;

use disk::{AlignedBuffer, Disk};
use model::{Offset, StreamId};

use super::outcome::{OpenError, RecoveryReport, damaged, doing};
use super::overlay::bytes_between;
use super::sealed::load_sealed;
use super::state::State;
use crate::format::{DirectoryRow, ROW_COMPACTED, SECTOR, SegmentHeader};
use crate::ranges::OffsetRanges;
use crate::segment::object::{Local, ObjectFile, ObjectKeys, Places, stored_extent};
use crate::segment::{Segment, Segments, stored_sequence_of};
use crate::stream::SealedExtent;

/// A local file of more bytes is mostly the index of its batches, which opening does not need.
const READ_WHOLE_MAX: usize = 128 * 1024;

/// A segment in the object store, as its local file describes it.
pub(crate) struct StoredSegment {
    pub segment: Arc<Segment>,
    /// `None` without a valid trailer.
    pub rows: Option<Vec<DirectoryRow>>,
}

impl StoredSegment {
    /// The rows of its directory.
    pub fn into_rows(self) -> Result<(Arc<Segment>, Vec<DirectoryRow>), OpenError> {
        let what = || damaged(self.segment.sequence, self.segment.data_end(), "its trailer is damaged");
        let rows = self.rows.ok_or_else(what)?;
        Ok((self.segment, rows))
    }
}

/// Reads the local files of the segments in the object store, in the order of their sequence numbers. Without `places`,
/// only footers can be read later.
pub(crate) fn open_stored(
    disk: &dyn Disk,
    places: Option<&Places>,
    log_id: Option<u128>,
    report: &mut RecoveryReport,
) -> Result<Vec<StoredSegment>, OpenError> {
    let mut opened = Vec::new();
    for name in disk.list().map_err(doing("listing the data directory"))? {
        let Some(sequence) = stored_sequence_of(&name) else { continue };
        let local = disk.open(&name).map_err(doing(format!("opening {name}")))?;
        let length = local.length();
        if length < 3 * SECTOR as u64 || !length.is_multiple_of(SECTOR as u64) {
            return Err(damaged(sequence, 0, format!("it cannot be {length} bytes long")));
        }
        let whole = usize::try_from(length).ok().filter(|length| *length <= READ_WHOLE_MAX);
        let mut bytes = AlignedBuffer::zeroed(whole.unwrap_or(SECTOR));
        local.read_at(0, &mut bytes).map_err(doing(format!("reading {name}")))?;
        let header = SegmentHeader::decode(&bytes[..SECTOR])
            .map_err(|error| damaged(sequence, 0, error.to_string()))?;
        let possible = header.length <= u64::from(u32::MAX) && header.length >= length;
        if header.sequence != sequence || !possible {
            let what = format!("its header says segment {}, {} bytes", header.sequence, header.length);
            return Err(damaged(sequence, 0, what));
        }
        if log_id.is_some_and(|log_id| log_id != header.log_id) {
            return Err(damaged(sequence, 32, "it belongs to another log"));
        }
        let (local, object) = match places {
            Some(Places { disk, bucket, epochs }) => {
                let key = ObjectKeys::new(header.log_id, epochs.clone()).key(sequence);
                (Local::Named(disk.clone(), name), Some((bucket.clone(), key)))
            }
            None => (Local::Open(local), None),
        };
        let file = Arc::new(ObjectFile::new(object, &header, local, length));
        file.keep(whole.map(|_| bytes));
        let segment = Arc::new(Segment::new(sequence, header.generation, file.clone()));
        let rows = load_sealed(&segment, report)?.map(|(_, rows)| rows);
        file.keep(None);
        opened.push(StoredSegment { segment, rows });
    }
    opened.sort_by_key(|stored| stored.segment.sequence);
    Ok(opened)
}

/// The records of each stream that are in the object store, according to the local files of the objects.
pub(crate) fn stored_ranges(disk: &dyn Disk) -> Result<HashMap<StreamId, OffsetRanges>, OpenError> {
    let mut ranges: HashMap<StreamId, OffsetRanges> = HashMap::new();
    for stored in open_stored(disk, None, None, &mut RecoveryReport::default())? {
        for row in stored.into_rows()?.1 {
            ranges.entry(row.stream).or_default().add((row.base_offset, row.next_offset));
        }
    }
    Ok(ranges)
}

/// A row of a stored segment.
struct StoredRow {
    segment: Arc<Segment>,
    extent: SealedExtent,
    end: Offset,
    compacted: bool,
}

/// The last run without a gap, where the newest row counts for each offset. `rows` are in the order of their segments.
fn newest_run(rows: Vec<StoredRow>, segments: &Segments) -> Result<Vec<StoredRow>, OpenError> {
    let (mut taken, mut newest) = (OffsetRanges::default(), Vec::new());
    for row in rows.into_iter().rev() {
        let whole = (row.extent.base_offset, row.end);
        for (from, end) in taken.gaps(whole) {
            let mut extent = SealedExtent { base_offset: from, ..row.extent };
            if (from, end) != whole {
                extent.bytes = bytes_between(segments, &extent, from, end)?;
            }
            newest.push(StoredRow { segment: row.segment.clone(), extent, end, compacted: row.compacted });
        }
        taken.add(whole);
    }
    newest.sort_unstable_by_key(|row| std::cmp::Reverse(row.extent.base_offset));
    let mut begin = None;
    let goes_on =
        |row: &&StoredRow| begin.replace(row.extent.base_offset).is_none_or(|begin| begin == row.end);
    let count = newest.iter().take_while(goes_on).count();
    newest.truncate(count);
    newest.reverse();
    Ok(newest)
}

impl State {
    /// Adds the segments in the object store, in the order of their sequence numbers.
    ///
    /// Of rows that overlap, the newest counts: compaction and merging replace rows, and copies that were given up may be
    /// stored again. Of what is left, only the newest run without a gap counts, and only if it begins at or below the
    /// stream's start. What does not count must be there locally, or opening refuses the log.
    pub fn add_stored(&mut self, segments: Vec<StoredSegment>) -> Result<(), OpenError> {
        let mut found: HashMap<StreamId, Vec<StoredRow>> = HashMap::new();
        for stored in segments {
            let (segment, rows) = stored.into_rows()?;
            for (row, at) in rows.iter().zip(0..) {
                let Some(stream) = self.streams.get(&row.stream) else { continue };
                let (start, next) = {
                    let state = stream.lock();
                    (state.start, state.next)
                };
                // In a restored log, objects that never counted may hold more than the log has.
                if row.next_offset <= start || row.next_offset > next {
                    continue;
                }
                found.entry(row.stream).or_default().push(StoredRow {
                    segment: segment.clone(),
                    extent: stored_extent(row, &segment, at),
                    end: row.next_offset,
                    compacted: row.flags & ROW_COMPACTED != 0,
                });
            }
            segment.set_live(0, 0);
            segment.mark_sealed();
            self.report.stored_segments += 1;
            self.segments.insert(segment);
        }
        for (id, rows) in found {
            self.add_run(id, &newest_run(rows, &self.segments)?);
        }
        Ok(())
    }

    fn add_run(&mut self, id: StreamId, run: &[StoredRow]) {
        let mut state = self.streams[&id].lock();
        if run.first().is_none_or(|first| first.extent.base_offset > state.start) {
            return;
        }
        // Local copies that were dropped may be found again, in segments that others keep alive, and may have holes.
        // All below the last hole were dropped, and so were those of records that are compacted in an object.
        let hole = self.coverage.gaps(id, (state.start, state.next)).pop();
        let compacted = run.iter().rfind(|row| row.compacted).map(|row| row.end).unwrap_or_default();
        let gone_below = hole.map_or(Offset::ZERO, |(_, end)| end);
        let release = |segment: u32, bytes: u32| {
            if let Some(segment) = self.segments.find(segment) {
                segment.release(bytes);
            }
        };
        while let Some(first) = state.sealed.front().copied().filter(|it| it.base_offset < gone_below) {
            state.sealed.pop_front();
            state.bytes -= u64::from(first.bytes);
            release(first.segment, first.bytes);
        }
        if let Some((_, hole_end)) = hole {
            self.coverage.forget_below(id, hole_end);
        }
        for StoredRow { segment, extent, end, .. } in run {
            if state.add_stored(*extent, *end) {
                self.coverage.add(id, extent.base_offset, *end);
                segment.set_live(segment.live() + 1, segment.live_bytes() + u64::from(extent.bytes));
            }
        }
        if compacted > Offset::ZERO {
            state.compacted = state.compacted.max(compacted);
            state.drop_local(compacted, release);
        }
    }
}
