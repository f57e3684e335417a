//! The sources of a copy: extents, the places of their batches, and their bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use model::{BatchHeader, Offset};

use super::outcome::RewriteError;
use crate::format::{
    DIRECTORY_ROW_BYTES, ENTRY_HEADER_BYTES, Lsn, RANGE_BODY_BYTES, SECTOR, index, length32,
};
use crate::index::{BATCH_INDEX_BYTES_MAX, BatchPlace};
use crate::pacer::{Pacer, REST_AFTER_FAILURE_MAX};
use crate::reader::{ReadError, check_entry};
use crate::segment::Segment;
use crate::segment::build::BLOCK_BYTES;
use crate::shared::Shared;
use crate::stream::{SealedExtent, Stream};

/// Batches with a smaller gap between them are read at once.
const GAP_BYTES: u32 = 64 * 1024;
/// Upper bound of one read.
const READ_BYTES: u32 = 1024 * 1024;

/// An extent to copy, or its first batches.
pub(crate) struct Source {
    pub base_offset: Offset,
    pub end: Offset,
    pub segment: Arc<Segment>,
    /// Bytes of all its batches, including those below the stream's start.
    pub bytes: u32,
    /// The batches to copy.
    pub places: Vec<BatchPlace>,
    /// Its row, if the whole extent is copied.
    pub whole: Option<u32>,
    pub flags: u32,
}

impl Source {
    /// Upper bound of the bytes of its copy in a file.
    pub fn estimate(&self) -> u64 {
        let batch = |place: &BatchPlace| {
            let bytes = ENTRY_HEADER_BYTES + index(place.length) + BATCH_INDEX_BYTES_MAX;
            // A batch that does not fit the open block closes it.
            bytes + if index(place.length) * 2 > BLOCK_BYTES { 2 * SECTOR } else { 0 }
        };
        let batches: usize = self.places.iter().map(batch).sum();
        let range = ENTRY_HEADER_BYTES + RANGE_BODY_BYTES + 8 + DIRECTORY_ROW_BYTES;
        // The empty batch of a range without records, and the ends of blocks, which are at least half full.
        let rest = 2 * model::batch::HEADER_BYTES + (batches + range) * 4 * SECTOR / BLOCK_BYTES;
        (batches + range + rest) as u64
    }
}

/// Consecutive extents of one stream that become one range of the new segment.
pub(crate) struct RangePlan {
    pub stream: Arc<Stream>,
    pub sources: Vec<Source>,
    pub flags: u32,
}

/// Compaction compresses records anew, sometimes less well.
pub(crate) fn with_slack(estimate: u64) -> u64 {
    estimate + estimate / 4
}

/// The number of offsets of a batch, as an entry has it.
pub(crate) fn offset_count(header: &BatchHeader) -> Result<u32, RewriteError> {
    u32::try_from(header.offset_count())
        .map_err(|_| RewriteError::Rewriter("a batch spans too many offsets".into()))
}

/// Reads batches from disk in the given order, and checks them.
pub(crate) fn load(
    shared: &Shared,
    pacer: &mut Pacer,
    stream: &Stream,
    wanted: &[(&Arc<Segment>, &BatchPlace)],
) -> Result<Vec<Bytes>, RewriteError> {
    let mut loaded = Vec::with_capacity(wanted.len());
    let mut at = 0;
    while at < wanted.len() {
        let (segment, first) = wanted[at];
        let end_of = |place: &BatchPlace| place.position + length32(ENTRY_HEADER_BYTES) + place.length;
        let near = |(other, place): &&(&Arc<Segment>, &BatchPlace)| {
            Arc::ptr_eq(other, segment) && end_of(place) - first.position <= READ_BYTES
        };
        let mut end = end_of(first);
        let more = wanted[at + 1..].iter().take_while(near).take_while(|(_, place)| {
            let close = place.position.checked_sub(end).is_some_and(|gap| gap <= GAP_BYTES);
            end = end.max(end_of(place));
            close
        });
        let count = 1 + more.count();
        let last = wanted[at + count - 1].1;
        let begun = Instant::now();
        let length = index(end_of(last) - first.position);
        let bytes = segment.read(first.position, length).inspect_err(|_| shared.avoid(segment))?;
        shared.cleaner_read.fetch_add(length as u64, Ordering::Relaxed);
        pacer.did(length, begun)?;
        for (segment, place) in &wanted[at..at + count] {
            let from = index(place.position - first.position);
            let entry = bytes.slice(from..from + ENTRY_HEADER_BYTES + index(place.length));
            let parts = check_entry(vec![entry], stream, segment, place);
            let body = parts.inspect_err(|_| segment.avoid_for_good())?;
            loaded.push(body.into_iter().next().unwrap_or_default());
        }
        at += count;
    }
    Ok(loaded)
}

impl Shared {
    /// The local batches of a stream that lie in `from..until`, extent by extent.
    pub fn sources_between(
        &self,
        stream: &Stream,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<Source>, ReadError> {
        // The segments are taken under the stream's lock: the cleaner may move an extent at any time, and a segment that
        // is held keeps its contents.
        let held = |sequence: u32| {
            let lsn = Lsn::new(sequence, 0);
            self.segments.find(sequence).ok_or(ReadError::Damaged { lsn, what: "its segment is gone" })
        };
        let (sealed, active) = {
            let state = stream.lock();
            let ends = (0..state.sealed.len()).map(|at| state.sealed_end(at));
            let inside = |(extent, end): &(SealedExtent, Offset)| *end > from && extent.base_offset < until;
            let sealed = state.sealed.iter().copied().zip(ends).filter(inside);
            let sealed = sealed.map(|(extent, end)| Ok((held(extent.segment)?, extent, end)));
            let sealed = sealed.collect::<Result<Vec<_>, ReadError>>()?;
            let active = state.active.as_ref();
            let active = match active {
                Some(active) => Some((held(active.segment)?, active.from, active.index.clone())),
                None => None,
            };
            (sealed, active)
        };
        let source = |segment: Arc<Segment>, places: Vec<BatchPlace>| {
            let (first, last) = (places.first()?, places.last()?);
            let (base_offset, end) = (first.base_offset, last.next_offset());
            let bytes = places.iter().map(|place| place.length).sum();
            Some(Source { base_offset, end, segment, bytes, places, whole: None, flags: 0 })
        };
        let mut sources = Vec::new();
        for (segment, extent, end) in sealed {
            let first = extent.base_offset.max(from);
            let places = self.places(&segment, extent.row, first, end.min(until))?;
            sources.extend(source(segment, places));
        }
        if let Some((segment, moved_to, index)) = active {
            let places = index.from_offset(from.max(moved_to));
            let places = places.take_while(|place| place.next_offset() <= until).collect();
            sources.extend(source(segment, places));
        }
        Ok(sources)
    }

    /// Leaves a segment alone for as long as the cleaner's longest rest after a failure. An error of the device may
    /// pass.
    pub fn avoid(&self, segment: &Segment) {
        let rest = u64::try_from(REST_AFTER_FAILURE_MAX.as_nanos()).expect("minutes");
        segment.avoid_until(self.clock.nanos() + rest);
    }

    /// The places of the batches in `from..until` of a sealed extent. They do not go into the cache: a run of the
    /// cleaner must not flush the readers' entries.
    pub fn places(
        &self,
        segment: &Segment,
        row: u32,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<BatchPlace>, ReadError> {
        let index = match self.indexes.find(segment.sequence, row) {
            Some(index) => index,
            None => {
                let read = segment.load_index(row).inspect_err(|_| self.avoid(segment))?;
                Arc::new(read.ok_or_else(|| {
                    segment.avoid_for_good();
                    let lsn = Lsn::new(segment.sequence, 0);
                    ReadError::Damaged { lsn, what: "the batch index in the footer is invalid" }
                })?)
            }
        };
        Ok(index.from_offset(from).take_while(|place| place.next_offset() <= until).collect())
    }
}
