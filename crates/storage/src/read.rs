//! Reading: where the batches of a stream stand, and their bytes from the tail cache, the region cache or the disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use model::batch::HEADER_BYTES;
use model::{BatchHeader, Offset, Timestamp};

use crate::cold::Stretch;
use crate::format::{ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, index};
use crate::index::{BatchIndex, BatchPlace};
use crate::log::Log;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::stream::{ActiveExtent, Stream};

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The offset is below the start or above the committed end.
    #[error("offset {offset} is outside {start}..={committed}")]
    OutOfRange {
        /// Asked for.
        offset: Offset,
        /// First offset there is.
        start: Offset,
        /// The end.
        committed: Offset,
    },
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Deleted,
    /// What the disk returned is not what was written.
    #[error("damaged data at {lsn}: {what}")]
    Damaged {
        /// Where.
        lsn: Lsn,
        /// What was found.
        what: &'static str,
    },
    /// The disk did not answer.
    #[error("reading failed: {0}")]
    Io(#[from] std::io::Error),
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

/// Consecutive batches of one stream.
#[derive(Clone, Debug, Default)]
pub struct Batches {
    /// Their bytes, in order; a batch may span two chunks.
    pub chunks: Vec<Bytes>,
    /// Bytes of all chunks.
    pub bytes: usize,
    /// Where to read on.
    pub next: Option<Offset>,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The stream.
    pub stream: Arc<Stream>,
    /// The first batch returned is the one that holds this offset.
    pub from: Offset,
    /// Batches from here on are not returned (the last stable offset, for read_committed).
    pub until: Offset,
    /// Bytes at most.
    pub bytes_max: usize,
    /// Return the first batch even if it alone is larger than `bytes_max` (KIP-74).
    pub at_least_one: bool,
}

/// The outcome of a read that must not block.
#[derive(Debug)]
pub enum ReadStep {
    /// All that there is, or as much as was asked for.
    Ready(Batches),
    /// The caches do not have it: use [`Log::read_later`]. Many readers that read what is oldest first, one stretch at a
    /// time and in the order of their positions, scan the log once.
    Cold {
        /// The stretch that has the first batch which the caches do not have.
        stretch: Stretch,
        /// The byte of its segment at which that batch stands, as far as that is known.
        position: u32,
    },
}

/// Who asked for a [`Log::read_later`]; told once, from a thread of the log.
pub trait ReadDone: Send {
    /// Whether it still waits: otherwise nothing is read, and it is not told.
    fn waits(&self) -> bool {
        true
    }

    /// Takes an answer for each request.
    fn done(self: Box<Self>, results: Vec<Result<Batches, ReadError>>);
}

impl<F: FnOnce(Vec<Result<Batches, ReadError>>) + Send> ReadDone for F {
    fn done(self: Box<Self>, results: Vec<Result<Batches, ReadError>>) {
        self(results);
    }
}

/// What a read may ask of the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    Nothing,
    /// No more than the stretch that holds the first batch which is not in the tail cache.
    OneStretch,
    AsMuchAsAsked,
}

/// What a reader finds at some offset.
enum Plan {
    Nothing,
    Places { segment: Arc<Segment>, places: Vec<BatchPlace>, more: bool },
    LoadIndex { segment: Arc<Segment>, row: u32 },
}

/// The part of the room for readers that the batches of one read may take. They keep the rest of their buffers as well.
const READERS_PART: usize = 4;
/// However little room there is, a reader gets so much, in memory of its own: who keeps up is to go on keeping up.
const OWN_BYTES: usize = 64 * 1024;

/// Batches looked up at once: the writer waits for the stream's lock as long as that takes.
const PLAN_BATCHES_MAX: usize = 512;

impl Log {
    /// Reads what the caches hold; never blocks. Gives less where [`Log::readers_room`] is short.
    pub fn read(&self, request: &ReadRequest) -> Result<ReadStep, ReadError> {
        self.gather_in_room(request, Disk::Nothing)
    }

    /// As [`Log::read`], but reads from disk where it must. Blocks.
    pub fn read_blocking(&self, request: &ReadRequest) -> Result<Batches, ReadError> {
        self.gather(request, request.bytes_max, Disk::AsMuchAsAsked).map(ready)
    }

    /// As [`Log::read_blocking`], but ends with the stretch of the log where it had to begin reading from disk.
    pub(crate) fn read_stretch(&self, request: &ReadRequest) -> Result<Batches, ReadError> {
        self.gather_in_room(request, Disk::OneStretch).map(ready)
    }

    /// Bytes of buffers that readers may take on.
    ///
    /// What they were given keeps its buffers until they let go of it, whether a cache still has them or not, and a client that
    /// is dead holds its answer for as long as the server waits for it. So all buffers together are bounded: by what the
    /// caches may hold and `readers_bytes`, and what the caches take in when there is no room any more. Beyond that a reader gets
    /// [`OWN_BYTES`] or one batch, in memory of its own, which is not counted here.
    pub(crate) fn readers_room(&self) -> usize {
        let Shared { buffers, regions, options, .. } = &*self.shared;
        let most = options
            .tail_cache_bytes
            .saturating_add(regions.bytes_max())
            .saturating_add(options.readers_bytes);
        most.saturating_sub(buffers.out_bytes() + regions.out_bytes())
    }

    /// As [`Log::gather`], within a part of the room, so that many at once do not all count on the same one.
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

    /// The first batch from the start on whose max timestamp is at least `timestamp` (`ListOffsets`): its base offset
    /// and max timestamp. Blocks.
    pub fn first_at_or_after(
        &self,
        stream: &Stream,
        timestamp: Timestamp,
    ) -> Result<Option<BatchPlace>, ReadError> {
        self.search(
            stream,
            |max| max >= timestamp,
            |index, from, _| index.first_at_or_after(from, timestamp),
            true,
        )
    }

    /// The first batch that has the largest timestamp of the stream (KIP-734). Blocks.
    pub fn with_max_timestamp(&self, stream: &Stream) -> Result<Option<BatchPlace>, ReadError> {
        self.search(stream, |_| true, |index, from, until| index.with_max_timestamp_until(from, until), false)
    }

    /// Bytes of the batches that begin in `from..until`. Blocks.
    pub fn bytes_between(&self, stream: &Stream, from: Offset, until: Offset) -> Result<u64, ReadError> {
        let (sealed, active) = {
            let state = stream.lock();
            let ends = (0..state.sealed.len()).map(|at| state.sealed_end(at));
            let sealed: Vec<_> = state.sealed.iter().copied().zip(ends).collect();
            let here = state.active.as_ref().map(|active| (active.from, active.index.clone()));
            (sealed, here)
        };
        let count = |index: &BatchIndex, from: Offset, end: Offset| -> u64 {
            let inside = index.from_offset(from).skip_while(|place| place.base_offset < from);
            inside.take_while(|place| place.base_offset < end).map(|place| u64::from(place.length)).sum()
        };
        let mut bytes = 0;
        for (extent, end) in sealed {
            let (first, last) = (extent.base_offset.max(from), end.min(until));
            if (first, last) == (extent.base_offset, end) {
                bytes += u64::from(extent.bytes);
            } else if first < last
                && let Some(segment) = self.shared.segments.find(extent.segment)
            {
                bytes += count(&*self.load_index(&segment, extent.row)?, first, last);
            }
        }
        if let Some((moved_to, index)) = active {
            bytes += count(&index, moved_to.max(from), until);
        }
        Ok(bytes)
    }

    /// The first batch that ends above `offset`, if one is committed. Blocks.
    pub fn batch_from(&self, stream: &Stream, offset: Offset) -> Result<Option<BatchPlace>, ReadError> {
        let at = offset.max(stream.bounds().start);
        self.search_from(stream, at, |_| true, |index, from, _| index.from_offset(from).next(), true)
    }

    fn search(
        &self,
        stream: &Stream,
        candidate: impl Fn(Timestamp) -> bool,
        find: impl Fn(&BatchIndex, Offset, Offset) -> Option<BatchPlace>,
        first_wins: bool,
    ) -> Result<Option<BatchPlace>, ReadError> {
        let start = stream.bounds().start;
        self.search_from(stream, start, candidate, find, first_wins)
    }

    fn search_from(
        &self,
        stream: &Stream,
        start: Offset,
        candidate: impl Fn(Timestamp) -> bool,
        find: impl Fn(&BatchIndex, Offset, Offset) -> Option<BatchPlace>,
        first_wins: bool,
    ) -> Result<Option<BatchPlace>, ReadError> {
        let committed = stream.bounds().committed;
        let mut best: Option<BatchPlace> = None;
        let mut consider = |place: Option<BatchPlace>| {
            if let Some(place) = place.filter(|place| place.next_offset() <= committed)
                && best.is_none_or(|best| place.max_timestamp > best.max_timestamp)
            {
                best = Some(place);
            }
            best
        };
        let mut at = start;
        loop {
            // The active extent may be sealed while an older one is searched, so each is looked up in its turn.
            // Its segment is taken under the same lock: the cleaner may move the extent at any time.
            let (extent, end, segment) = {
                let state = stream.lock();
                match state.sealed_at(at) {
                    Some((extent, end)) => (extent, end, self.shared.segments.find(extent.segment)),
                    None => {
                        let find =
                            |active: &ActiveExtent| find(&active.index, at.max(active.from), committed);
                        return Ok(consider(state.active.as_ref().and_then(find)));
                    }
                }
            };
            // Where compaction cut an extent, its index still has what is no longer there.
            let from = at.max(extent.base_offset);
            if end <= at {
                return Ok(best);
            }
            at = end;
            let at_most = Timestamp(i64::from(extent.max_timestamp_s).saturating_mul(1000));
            if extent.max_timestamp_s != u32::MAX && !candidate(at_most) {
                continue;
            }
            let Some(segment) = segment else { continue };
            let index = self.load_index(&segment, extent.row)?;
            if let Some(found) = consider(find(&index, from, committed.min(end)))
                && first_wins
            {
                return Ok(Some(found));
            }
        }
    }

    fn load_index(&self, segment: &Segment, row: u32) -> Result<Arc<BatchIndex>, ReadError> {
        if let Some(index) = self.shared.indexes.find(segment.sequence, row) {
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
        self.shared.indexes.insert(segment.sequence, row, index.clone());
        Ok(index)
    }

    /// Collects batches extent by extent, `bytes_max` bytes at most whatever the request allows.
    fn gather(&self, request: &ReadRequest, bytes_max: usize, disk: Disk) -> Result<ReadStep, ReadError> {
        let mut out = Batches::default();
        let mut stretch = None;
        let mut from = request.from;
        // Kept here too: one index may be larger than the whole cache.
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
                    match self.load_index(&segment, row) {
                        Ok(index) => loaded = Some((segment.sequence, row, index)),
                        // The next read begins there and is told.
                        Err(_) if out.bytes > 0 => return Ok(ReadStep::Ready(out)),
                        Err(error) => return Err(error),
                    }
                }
                Plan::Places { segment, places, more } => {
                    let next = places.last().map(BatchPlace::next_offset);
                    for place in places {
                        let chunks = match self.appended_lately(&segment, &place) {
                            Some(chunk) => vec![chunk],
                            None => {
                                let here = self.shared.regions.stretch(&segment, &place);
                                let left = *stretch.get_or_insert(here) != here;
                                if left && out.bytes > 0 && disk != Disk::AsMuchAsAsked {
                                    return Ok(ReadStep::Ready(out));
                                }
                                let block = disk != Disk::Nothing;
                                match self.fetch(&request.stream, &segment, &place, block) {
                                    Ok(Some(chunks)) => chunks,
                                    // As above.
                                    Err(_) if out.bytes > 0 => return Ok(ReadStep::Ready(out)),
                                    Err(error) => return Err(error),
                                    // Not even with what was found: half a stretch would be read twice.
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

    /// Where the batches from `from` on stand, as far as one extent reaches.
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
        // What is not synced yet is there all the same: `acks=1` was told so. It is seen later.
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
                return Ok(Plan::Places { segment, places, more: !full && more });
            }
            if full || row.is_none() {
                return Ok(Plan::Nothing);
            }
            // Offsets may end before the extent does, where records were compacted away.
            at = end;
        }
        Ok(Plan::Nothing)
    }

    /// The position in `segment` below which nothing is written any more.
    pub(crate) fn stable_end(&self, segment: &Segment) -> u32 {
        let synced = Lsn(self.shared.synced.load(Ordering::Acquire));
        if synced.sequence() == segment.sequence { synced.byte() } else { segment.data_end() }
    }

    /// The bytes of a batch that the tail cache has.
    fn appended_lately(&self, segment: &Segment, place: &BatchPlace) -> Option<Bytes> {
        let body = Lsn(Lsn::new(segment.sequence, place.position).0 + ENTRY_HEADER_BYTES as u64);
        let found = self.shared.tail.find(body, index(place.length))?;
        self.shared.tail_hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// The bytes of a batch that the tail cache does not have; `None` when no cache does and `block` is not set.
    fn fetch(
        &self,
        stream: &Stream,
        segment: &Segment,
        place: &BatchPlace,
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

/// The batches of a read that was allowed to block.
fn ready(step: ReadStep) -> Batches {
    match step {
        ReadStep::Ready(batches) => batches,
        ReadStep::Cold { .. } => unreachable!("a read that may block finds everything"),
    }
}

/// Checks an entry that came from disk against what the index says of it and against its own CRCs; returns its body.
pub(crate) fn check_entry(
    parts: Vec<Bytes>,
    stream: &Stream,
    segment: &Segment,
    place: &BatchPlace,
) -> Result<Vec<Bytes>, ReadError> {
    let lsn = Lsn::new(segment.sequence, place.position);
    let damaged = |what| ReadError::Damaged { lsn, what };
    let mut head = [0u8; ENTRY_HEADER_BYTES + HEADER_BYTES];
    let mut filled = 0;
    for part in &parts {
        let take = part.len().min(head.len() - filled);
        head[filled..filled + take].copy_from_slice(&part[..take]);
        filled += take;
    }
    let entry =
        EntryHeader::decode(&head, segment.generation).ok_or(damaged("the entry header is invalid"))?;
    let expected = (stream.id(), place.base_offset, place.length, EntryKind::Batch);
    if (entry.stream, entry.base_offset, entry.length, entry.kind) != expected {
        return Err(damaged("the entry is not the one that the index names"));
    }
    let header = BatchHeader::parse_header(&head[ENTRY_HEADER_BYTES..filled])
        .map_err(|_| damaged("the batch header is invalid"))?;
    if header.total_bytes != index(place.length) || header.base_offset != place.base_offset {
        return Err(damaged("the batch contradicts its entry"));
    }
    let mut skip = ENTRY_HEADER_BYTES;
    let mut body = Vec::with_capacity(parts.len());
    for part in parts {
        let drop = skip.min(part.len());
        skip -= drop;
        if part.len() > drop {
            body.push(part.slice(drop..));
        }
    }
    let mut before_crc = model::batch::CRC_FROM;
    let mut crc = 0;
    for part in &body {
        let drop = before_crc.min(part.len());
        before_crc -= drop;
        crc = model::crc32c_append(crc, &part[drop..]);
    }
    if crc != header.crc {
        return Err(damaged("the batch does not match its crc"));
    }
    Ok(body)
}
