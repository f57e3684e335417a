//! Segments in the object store during opening. Their local files say what they hold, so the store is not asked.

use std::collections::HashMap;
use std::sync::Arc;

use disk::{AlignedBuffer, Disk};
use model::StreamId;
use objects::Bucket;

use super::outcome::{OpenError, RecoveryReport, damaged, doing};
use super::sealed::load_sealed;
use super::state::State;
use crate::format::{SECTOR, SegmentHeader, length32};
use crate::ranges::OffsetRanges;
use crate::segment::object::{ObjectFile, stored_extent};
use crate::segment::{Segment, stored_sequence_of};

/// Opens the local files of the segments in `bucket`, in the order of their sequence numbers.
pub(crate) fn open_stored(
    disk: &dyn Disk,
    bucket: Option<&Arc<dyn Bucket>>,
) -> Result<Vec<(Arc<Segment>, SegmentHeader)>, OpenError> {
    let mut opened = Vec::new();
    for name in disk.list().map_err(doing("listing the data directory"))? {
        let Some(sequence) = stored_sequence_of(&name) else { continue };
        let local = disk.open(&name).map_err(doing(format!("opening {name}")))?;
        let mut sector = AlignedBuffer::zeroed(SECTOR);
        local.read_at(0, &mut sector).map_err(doing(format!("reading {name}")))?;
        let header =
            SegmentHeader::decode(&sector).map_err(|error| damaged(sequence, 0, error.to_string()))?;
        let possible = header.length <= u64::from(u32::MAX)
            && header.length >= local.length()
            && local.length() >= 3 * SECTOR as u64;
        if header.sequence != sequence || !possible {
            let what = format!("its header says segment {}, {} bytes", header.sequence, header.length);
            return Err(damaged(sequence, 0, what));
        }
        let file = ObjectFile::new(bucket.cloned(), &header, local);
        opened.push((Arc::new(Segment::new(sequence, header.generation, Arc::new(file))), header));
    }
    opened.sort_by_key(|(segment, _)| segment.sequence);
    Ok(opened)
}

/// The records of each stream that are in the object store, according to the local files of the objects.
pub(crate) fn stored_ranges(disk: &dyn Disk) -> Result<HashMap<StreamId, OffsetRanges>, OpenError> {
    let mut ranges: HashMap<StreamId, OffsetRanges> = HashMap::new();
    for (segment, _) in open_stored(disk, None)? {
        let (_, rows) = load_sealed(&segment, &mut RecoveryReport::default())?
            .ok_or_else(|| damaged(segment.sequence, segment.data_end(), "its trailer is damaged"))?;
        for row in rows {
            ranges.entry(row.stream).or_default().add((row.base_offset, row.next_offset));
        }
    }
    Ok(ranges)
}

impl State {
    /// Adds the extents of a segment in the object store.
    pub fn add_stored(&mut self, segment: &Arc<Segment>) -> Result<(), OpenError> {
        let Some((_, rows)) = load_sealed(segment, &mut self.report)? else {
            return Err(damaged(segment.sequence, segment.data_end(), "its trailer is damaged"));
        };
        let (mut live, mut live_bytes) = (0, 0);
        for (row, at) in rows.iter().zip(0..) {
            let Some(stream) = self.streams.get(&row.stream) else { continue };
            self.coverage.add(row.stream, row.base_offset, row.next_offset);
            let mut state = stream.lock();
            if row.next_offset <= state.start {
                continue;
            }
            let extent = stored_extent(row, segment, at);
            if !state.add_stored(extent, row.next_offset) {
                let what = format!("it does not continue what is stored of stream {}", row.stream);
                return Err(damaged(segment.sequence, row.index_position, what));
            }
            live += 1;
            live_bytes += u64::from(extent.bytes);
        }
        segment.set_live(length32(live), live_bytes);
        segment.mark_sealed();
        self.report.stored_segments += 1;
        self.segments.insert(segment.clone());
        Ok(())
    }
}
