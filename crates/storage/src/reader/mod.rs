//! The reader: finds the batches from an offset of a stream on, and takes their bytes from the tail cache, the region
//! cache or the disk.

mod ahead;
mod entry;
mod jobs;
mod request;
mod search;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use bytes::Bytes;
use model::Offset;
use parking_lot::Mutex;

pub(crate) use self::entry::check_entry;
pub(crate) use self::jobs::{Job, jobs};
pub use self::request::{Batches, ReadDone, ReadError, ReadRequest, ReadStep};
use crate::cache::{RUN_BYTES, Stretch};
use crate::format::{ENTRY_HEADER_BYTES, Lsn, index, length32};
use crate::index::{BatchIndex, BatchPlace};
use crate::segment::{Segment, is_stored};
use crate::shared::Shared;
use crate::stream::Stream;

/// How much a read may ask of the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    Nothing,
    /// At most the stretch with the first batch that is not in the tail cache.
    OneStretch,
    AsMuchAsAsked,
}

/// What the reader finds at an offset.
enum Plan {
    Nothing,
    Places { segment: Arc<Segment>, places: Vec<BatchPlace>, run_end: u32, more: bool },
    LoadIndex { segment: Arc<Segment>, row: u32 },
}

/// The batches of one read may take at most this part of the room for readers (1 / READERS_PART). They keep the rest of
/// their buffers alive as well.
const READERS_PART: usize = 4;
/// A read gets at least this many bytes, as a copy, however short the room is: a consumer that keeps up must not fall
/// behind.
const OWN_BYTES: usize = 64 * 1024;

/// Batches of one look-up. The writer waits for the stream's lock during a look-up.
const PLAN_BATCHES_MAX: usize = 512;

/// Reads the log.
pub(crate) struct Reader {
    shared: Arc<Shared>,
    /// The sender of its jobs, while there are threads for them.
    threads: Mutex<Option<Sender<Job>>>,
    /// Threads for reads from the object store, which may not answer for long.
    object_threads: Mutex<Option<Sender<Job>>>,
}

impl Reader {
    /// A reader without threads. It does not do jobs for threads.
    pub fn new(shared: Arc<Shared>) -> Reader {
        Reader { shared, threads: Mutex::new(None), object_threads: Mutex::new(None) }
    }

    /// See [`crate::Log::read`].
    pub fn read(&self, request: &ReadRequest) -> Result<ReadStep, ReadError> {
        let step = self.gather_in_room(request, Disk::Nothing)?;
        if let ReadStep::Ready(Batches { next: Some(next), from_objects: true, .. }) = step {
            self.read_from_objects(&request.stream, request.from, next);
        }
        Ok(step)
    }

    /// See [`crate::Log::read_blocking`].
    pub fn read_blocking(&self, request: &ReadRequest) -> Result<Batches, ReadError> {
        self.gather(request, request.bytes_max, Disk::AsMuchAsAsked).map(ready)
    }

    /// Like [`Reader::read_blocking`], but ends with the stretch of the log in which the disk read began.
    pub fn read_stretch(&self, request: &ReadRequest) -> Result<Batches, ReadError> {
        self.gather_in_room(request, Disk::OneStretch).map(ready)
    }

    /// Bytes of buffers that readers may still take.
    ///
    /// The batches given to a reader keep their buffers alive until the reader drops them, whether a cache still has
    /// them or not. A dead client holds its response for as long as the server waits for it. So the bytes of all
    /// buffers together are bounded: by the bounds of the caches and `readers_bytes`, by what objects on their way keep,
    /// and by what the caches take in when no room is left. Beyond that a reader gets [`OWN_BYTES`] or one batch, as a copy, which is not counted
    /// here.
    pub fn readers_room(&self) -> usize {
        let Shared { buffers, regions, runs, options, kept_by_objects, .. } = &*self.shared;
        let most = options
            .tail_cache_bytes
            .saturating_add(regions.bytes_max())
            .saturating_add(runs.bytes_max())
            .saturating_add(kept_by_objects.load(Ordering::Relaxed))
            .saturating_add(options.readers_bytes);
        most.saturating_sub(buffers.out_bytes() + regions.out_bytes() + runs.out_bytes())
    }

    /// Like [`Reader::gather`], within a part of the room, so that concurrent reads do not all count on the same room.
    fn gather_in_room(&self, request: &ReadRequest, disk: Disk) -> Result<ReadStep, ReadError> {
        let part = self.readers_room() / READERS_PART;
        let least = if request.at_least_one { OWN_BYTES } else { 0 };
        let mut step = self.gather(request, request.bytes_max.min(part.max(least)), disk)?;
        if part < OWN_BYTES
            && let ReadStep::Ready(batches) = &mut step
        {
            batches.chunks.iter_mut().for_each(|chunk| *chunk = Bytes::copy_from_slice(chunk));
        }
        Ok(step)
    }

    /// Collects batches extent by extent, at most `bytes_max` bytes whatever the request allows.
    fn gather(&self, request: &ReadRequest, bytes_max: usize, disk: Disk) -> Result<ReadStep, ReadError> {
        let mut out = Batches::default();
        let mut stretch = None;
        let mut from = request.from;
        // The index is kept here too, because one index may be larger than the whole cache.
        let mut loaded = None;
        loop {
            let budget = bytes_max.saturating_sub(out.bytes);
            let force = request.at_least_one && out.bytes == 0;
            if budget == 0 && !force {
                return Ok(ReadStep::Ready(out));
            }
            match self.plan(request, from, budget, force, loaded.as_ref())? {
                Plan::Nothing => return Ok(ReadStep::Ready(out)),
                Plan::LoadIndex { segment, row } => {
                    let ends = disk == Disk::OneStretch && stretch.is_some();
                    if out.bytes > 0 && (ends || disk == Disk::Nothing) {
                        return Ok(ReadStep::Ready(out));
                    }
                    if disk == Disk::Nothing {
                        return Ok(ReadStep::Cold { stretch: Stretch::beginning_of(&segment), position: 0 });
                    }
                    match self.shared.index_of(&segment, row) {
                        Ok(index) => loaded = Some((segment.sequence, row, index)),
                        // The next read begins at this batch and gets the error.
                        Err(_) if out.bytes > 0 => return Ok(ReadStep::Ready(out)),
                        Err(error) => return Err(error),
                    }
                }
                Plan::Places { segment, places, run_end, more } => {
                    let next = places.last().map(BatchPlace::next_offset);
                    out.from_objects |= is_stored(segment.sequence);
                    for place in places {
                        let chunks = match self.appended_lately(&segment, &place) {
                            Some(chunk) => vec![chunk],
                            None if let Some(found) = self.fetched(&request.stream, &segment, &place) => {
                                found
                            }
                            None => {
                                let here = self.stretch_of(&segment, &place);
                                let left = *stretch.get_or_insert(here) != here;
                                if left && out.bytes > 0 && disk != Disk::AsMuchAsAsked {
                                    return Ok(ReadStep::Ready(out));
                                }
                                let block = disk != Disk::Nothing;
                                match self.fetch(&request.stream, &segment, &place, run_end, block) {
                                    Ok(Some(chunks)) => chunks,
                                    // As above.
                                    Err(_) if out.bytes > 0 => return Ok(ReadStep::Ready(out)),
                                    Err(error) => return Err(error),
                                    // Drops the batches found so far, too: otherwise half a stretch would be read
                                    // twice.
                                    Ok(None) => {
                                        let position = place.position;
                                        return Ok(ReadStep::Cold { stretch: here, position });
                                    }
                                }
                            }
                        };
                        out.bytes += index(place.length);
                        out.next = Some(place.next_offset());
                        out.chunks.extend(chunks);
                    }
                    match next {
                        Some(next) if more => from = next,
                        _ => return Ok(ReadStep::Ready(out)),
                    }
                }
            }
        }
    }

    /// The places of the batches from `from` on, within one extent.
    fn plan(
        &self,
        request: &ReadRequest,
        from: Offset,
        budget: usize,
        force: bool,
        loaded: Option<&(u32, u32, Arc<BatchIndex>)>,
    ) -> Result<Plan, ReadError> {
        let state = request.stream.lock();
        if state.deleted {
            return Err(ReadError::Deleted);
        }
        // Offsets that are not synced yet are allowed: producers with `acks=1` already know them. Their batches become
        // visible later.
        if from < state.start || from > state.next.max(state.committed) {
            return Err(ReadError::OutOfRange {
                offset: from,
                start: state.start,
                committed: state.committed,
            });
        }
        let limit = state.committed.min(request.until);
        let mut at = from;
        while at < limit {
            let (sequence, row, end) = match state.sealed_at(at) {
                Some((extent, end)) => {
                    at = at.max(extent.base_offset);
                    (extent.segment, Some(extent.row), end)
                }
                None => match &state.active {
                    Some(active) => (active.segment, None, state.next),
                    None => return Ok(Plan::Nothing),
                },
            };
            let Some(segment) = self.shared.segments.find(sequence) else { return Ok(Plan::Nothing) };
            let held = loaded
                .filter(|(of, at, _)| (*of, Some(*at)) == (sequence, row))
                .map(|(_, _, index)| index.clone());
            let sealed = match row {
                Some(row) => match held.or_else(|| self.shared.indexes.find(sequence, row)) {
                    Some(index) => Some(index),
                    None => return Ok(Plan::LoadIndex { segment, row }),
                },
                None => None,
            };
            let active = state.active.as_ref().map(|active| &active.index);
            let Some(index) = sealed.as_ref().or(active) else { return Ok(Plan::Nothing) };
            let (mut places, mut bytes, mut full, mut more) = (Vec::new(), 0, false, row.is_some());
            for place in index.from_offset(at) {
                let length = crate::format::index(place.length);
                if place.base_offset >= end {
                    break;
                }
                if places.len() == PLAN_BATCHES_MAX {
                    more = true;
                    break;
                }
                let fits = bytes + length <= budget || (force && places.is_empty());
                if place.next_offset() > limit || !fits {
                    full = true;
                    break;
                }
                bytes += length;
                places.push(place);
            }
            if !places.is_empty() {
                let stored = is_stored(segment.sequence);
                let run_end = if stored { run_of(index, &places[0], end).end } else { 0 };
                return Ok(Plan::Places { segment, places, run_end, more: !full && more });
            }
            if full || row.is_none() {
                return Ok(Plan::Nothing);
            }
            // Where records were compacted away, the batches may end before the extent does.
            at = end;
        }
        Ok(Plan::Nothing)
    }

    /// The position in `segment` below which no more bytes are written.
    fn stable_end(&self, segment: &Segment) -> u32 {
        let synced = Lsn(self.shared.synced.load(Ordering::Acquire));
        if synced.sequence() == segment.sequence { synced.byte() } else { segment.data_end() }
    }

    /// The bytes of a batch, if the tail cache has them.
    fn appended_lately(&self, segment: &Segment, place: &BatchPlace) -> Option<Bytes> {
        let body = Lsn(Lsn::new(segment.sequence, place.position).0 + ENTRY_HEADER_BYTES as u64);
        let found = self.shared.tail.find(body, index(place.length))?.bytes;
        self.shared.tail_hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// The bytes of a batch in an object, if they were fetched and are not damaged.
    fn fetched(&self, stream: &Stream, segment: &Segment, place: &BatchPlace) -> Option<Vec<Bytes>> {
        if !is_stored(segment.sequence) {
            return None;
        }
        let end = place.position + length32(ENTRY_HEADER_BYTES) + place.length;
        let found = self.shared.runs.find(segment, place.position..end)?;
        let checked = check_entry(vec![found], stream, segment, place);
        checked.inspect_err(|_| self.shared.runs.forget(segment, place.position)).ok()
    }

    fn stretch_of(&self, segment: &Segment, place: &BatchPlace) -> Stretch {
        if is_stored(segment.sequence) {
            Stretch::of_object(segment, place.position)
        } else {
            self.shared.regions.stretch(segment, place)
        }
    }

    /// The bytes of a batch that the tail cache lacks; a batch in an object with those behind it, up to `run_end`. `None` if no cache has them and `block` is not set.
    fn fetch(
        &self,
        stream: &Stream,
        segment: &Segment,
        place: &BatchPlace,
        run_end: u32,
        block: bool,
    ) -> Result<Option<Vec<Bytes>>, ReadError> {
        let length = ENTRY_HEADER_BYTES + index(place.length);
        if u64::from(place.position) + length as u64 > u64::from(segment.data_end()) {
            let lsn = Lsn::new(segment.sequence, place.position);
            return Err(ReadError::Damaged {
                lsn,
                what: "the batch index names a place outside the segment",
            });
        }
        if is_stored(segment.sequence) {
            if !block {
                return Ok(None);
            }
            let wanted = place.position..place.position + length32(length);
            let run = place.position..run_end.max(wanted.end);
            let bytes = self.shared.runs.read(segment, wanted.clone(), run.clone())?;
            let checked = check_entry(vec![bytes], stream, segment, place).or_else(|_| {
                // What arrived may be damaged while the object is not.
                self.shared.runs.forget(segment, place.position);
                let bytes = self.shared.runs.read(segment, wanted, run)?;
                check_entry(vec![bytes], stream, segment, place)
                    .inspect_err(|_| self.shared.runs.forget(segment, place.position))
            });
            return checked.map(Some);
        }
        let parts = match self.shared.regions.find(segment, place.position, length) {
            Some(parts) => {
                if !block {
                    self.keep_ahead();
                }
                parts
            }
            None if block => {
                self.shared.regions.read(segment, place.position, length, self.stable_end(segment))?
            }
            None => return Ok(None),
        };
        check_entry(parts, stream, segment, place).map(Some)
    }
}

impl Shared {
    /// The batch index of a sealed extent, from the cache or the segment's footer. Blocks.
    fn index_of(&self, segment: &Segment, row: u32) -> Result<Arc<BatchIndex>, ReadError> {
        if let Some(index) = self.indexes.find(segment.sequence, row) {
            return Ok(index);
        }
        let Some(index) = segment.load_index(row)? else {
            let lsn = Lsn::new(
                segment.sequence,
                segment.footer().map_or(0, |footer| footer.trailer.directory_position),
            );
            return Err(ReadError::Damaged { lsn, what: "the batch index in the footer is invalid" });
        };
        let index = Arc::new(index);
        self.indexes.insert(segment.sequence, row, index.clone());
        Ok(index)
    }
}

/// Where a run ends: behind this byte of the segment, before this offset.
struct RunEnd {
    end: u32,
    next: Offset,
}

/// The end of the run that begins with the batch `first` of an object: of the batches that begin before `end`, as many as
/// are read at once.
fn run_of(index: &BatchIndex, first: &BatchPlace, end: Offset) -> RunEnd {
    let end_of = |place: &BatchPlace| place.position + length32(ENTRY_HEADER_BYTES) + place.length;
    let inside = |place: &BatchPlace| {
        place.base_offset < end && end_of(place).saturating_sub(first.position) <= RUN_BYTES
    };
    let last = index.from_offset(first.base_offset).take_while(inside).last().unwrap_or(*first);
    RunEnd { end: end_of(&last), next: last.next_offset() }
}

/// The batches of a read that was allowed to block.
fn ready(step: ReadStep) -> Batches {
    match step {
        ReadStep::Ready(batches) => batches,
        ReadStep::Cold { .. } => unreachable!("a read that may block finds everything"),
    }
}
