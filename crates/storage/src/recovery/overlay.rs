//! Cleaned segments during opening: each of their ranges replaces the extents that it was copied from.
//!
//! A cleaned segment was complete and synced before it got its name. Its source segments may still exist, in full or in
//! part, or may be gone. Only this rule decides which copy of a record to read: a cleaned segment has precedence over a
//! segment of the writer, and of two cleaned segments the one with the higher generation has precedence.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Offset, StreamId};

use super::outcome::{OpenError, damaged, doing};
use super::scan::{ScanEnd, scan_indexes};
use super::sealed::{directory_in, load_sealed};
use super::state::State;
use crate::format::{DirectoryRow, ROW_COMPACTED, length32};
use crate::ranges::OffsetRanges;
use crate::segment::{Segment, Segments};
use crate::stream::{SealedExtent, StreamState, clamp_timestamp};

/// A possible extent of a stream.
struct Candidate {
    extent: SealedExtent,
    end: Offset,
    /// The precedence: zero for a segment of the writer, else the generation of the cleaned segment.
    priority: u64,
    compacted: bool,
}

impl State {
    /// Replaces the source extents by the ranges of the cleaned segments.
    pub fn overlay(&mut self, cleaned: Vec<Arc<Segment>>) -> Result<(), OpenError> {
        let mut candidates: HashMap<StreamId, Vec<Candidate>> = HashMap::new();
        for segment in cleaned {
            let rows = self.open_cleaned(&segment)?;
            segment.set_live(0, 0);
            segment.mark_sealed();
            self.report.cleaned_segments += 1;
            for (at, row) in rows.iter().enumerate() {
                if self.streams.contains_key(&row.stream) {
                    self.coverage.add(row.stream, row.base_offset, row.next_offset);
                    candidates.entry(row.stream).or_default().push(Candidate {
                        extent: SealedExtent {
                            base_offset: row.base_offset,
                            segment: segment.sequence,
                            row: length32(at),
                            bytes: u32::try_from(row.bytes).unwrap_or(u32::MAX),
                            max_timestamp_s: clamp_timestamp(row.max_timestamp),
                        },
                        end: row.next_offset,
                        priority: segment.generation,
                        compacted: row.flags & ROW_COMPACTED != 0,
                    });
                }
            }
            self.segments.insert(segment);
        }
        for (id, candidates) in candidates {
            let mut state = self.streams[&id].lock();
            resolve(&mut state, candidates, &self.segments)?;
        }
        Ok(())
    }

    /// The directory of a cleaned segment. Its name says that it is complete.
    fn open_cleaned(&mut self, segment: &Arc<Segment>) -> Result<Vec<DirectoryRow>, OpenError> {
        if let Some((_, rows)) = load_sealed(segment, &mut self.report)? {
            return Ok(rows);
        }
        tracing::warn!(
            segment = segment.name(),
            "the trailer of a cleaned segment is damaged; scanning its data"
        );
        match scan_indexes(segment, None, &mut self.report)? {
            (_, ScanEnd::Footer { trailer, payload_position, payload }) => {
                let rows = directory_in(&payload, payload_position, &trailer, segment)?;
                segment.set_footer(trailer, Some((payload_position, payload.into())));
                Ok(rows)
            }
            (_, ScanEnd::Open { position }) => {
                Err(damaged(segment.sequence, position, "a block that was synced is invalid"))
            }
        }
    }
}

/// Decides for every offset of a stream which extent holds it.
fn resolve(
    state: &mut StreamState,
    mut candidates: Vec<Candidate>,
    segments: &Segments,
) -> Result<(), OpenError> {
    for at in 0..state.sealed.len() {
        let (extent, end) = (state.sealed[at], state.sealed_end(at));
        if let Some(segment) = segments.find(extent.segment) {
            segment.release(extent.bytes);
        }
        state.bytes -= u64::from(extent.bytes);
        candidates.push(Candidate { extent, end, priority: 0, compacted: false });
    }
    state.sealed.clear();
    candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.priority));
    let start = state.start;
    let mut taken = OffsetRanges::default();
    for Candidate { extent, end, compacted, .. } in candidates {
        let whole = (extent.base_offset, end);
        for (from, to) in taken.gaps(whole).into_iter().filter(|(_, to)| *to > start) {
            let mut extent = SealedExtent { base_offset: from, ..extent };
            if (from, to) != whole {
                extent.bytes = bytes_between(segments, &extent, from, to)?;
            }
            if let Some(segment) = segments.find(extent.segment) {
                segment.set_live(segment.live() + 1, segment.live_bytes() + u64::from(extent.bytes));
            }
            state.bytes += u64::from(extent.bytes);
            state.push_sealed(extent);
            if compacted {
                state.compacted = state.compacted.max(to);
            }
        }
        taken.add(whole);
    }
    state.sealed.make_contiguous().sort_unstable_by_key(|extent| extent.base_offset);
    let sealed_to = taken.end().unwrap_or_default();
    if let Some(active) = &mut state.active
        && active.index.base_offset().is_some_and(|base| base < sealed_to)
    {
        // Compaction may have moved the first batches of the active extent.
        let moved = active.index.from_offset(Offset::ZERO).take_while(|place| place.base_offset < sealed_to);
        active.moved_bytes = moved.map(|place| place.length).sum();
        active.from = sealed_to;
        state.bytes -= u64::from(active.moved_bytes);
    }
    Ok(())
}

/// Bytes of the batches of an extent that begin in `from..to`.
pub(super) fn bytes_between(
    segments: &Segments,
    extent: &SealedExtent,
    from: Offset,
    to: Offset,
) -> Result<u32, OpenError> {
    let segment =
        segments.find(extent.segment).expect("the extents of a stream are in segments that are there");
    let index = segment.load_index(extent.row).map_err(doing(format!("reading {}", segment.name())))?;
    // A read meets a damaged index again and reports it.
    let Some(index) = index else { return Ok(extent.bytes) };
    let inside = index.from_offset(from).take_while(|place| place.base_offset < to);
    Ok(inside.map(|place| place.length).sum())
}
