//! Builds objects: of what tiered and diskless streams have gained, and of ranges that replace older ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use bytes::Bytes;
use model::{BatchHeader, Offset, StreamId};

use crate::cache::Cached;
use crate::cleaner::{RewriteError, Source, load, offset_count};
use crate::format::{
    BLOCK_HEADER_BYTES, DirectoryRow, ENTRY_HEADER_BYTES, Lsn, ROW_REPLACES, SECTOR, SegmentHeader, Trailer,
    index, sectors,
};
use crate::index::BatchPlace;
#[cfg(any(test, feature = "stepped"))]
use crate::options::Mutation;
use crate::pacer::Pacer;
use crate::reader::ReadError;
use crate::segment::Segment;
use crate::segment::build::{BLOCK_BYTES, Blocks, Hold, SegmentBuilder};
use crate::segment::footer::TableRow;
use crate::shared::Shared;
use crate::stream::{Producers, Stream, StreamState};
use crate::tier::{Class, Cut, ReplaceRight, Replacement};
use crate::uploader::UploadError;

/// Bytes of batches that are read at once.
const CHUNK_BYTES: usize = 1024 * 1024;

/// Shorter batches are copied: that costs less than to send two parts more, the batch and the header before it.
const SHARED_BYTES_MIN: usize = if cfg!(test) { 200 } else { 2048 };

/// An object that is ready to be put.
pub(super) struct Built {
    /// Shared with the thread that puts it.
    pub body: Arc<Body>,
    pub known: Known,
    /// The streams whose newest records it has.
    pub streams: Vec<Arc<Stream>>,
    /// The streams whose bounds it was to record.
    pub recorded: Vec<Arc<Stream>>,
    /// What the object takes the place of.
    pub replaces: Option<Replaces>,
}

/// The extents that an object takes the place of.
pub(super) struct Replaces {
    /// Segment and row of those that a range replaces, by the stream and the first offset of the range.
    pub old: HashMap<(StreamId, Offset), Vec<(u32, u32)>>,
    /// Told once they are replaced.
    pub done: Sender<()>,
    /// Given back then.
    pub _right: ReplaceRight,
}

impl Replaces {
    pub fn of(replacement: Replacement) -> Replaces {
        let Replacement { ranges, right, done } = replacement;
        let old = ranges.into_iter().map(|range| ((range.stream.id(), range.base_offset), range.old));
        Replaces { old: old.collect(), done, _right: right }
    }
}

/// A stored object as its local file describes it.
pub(super) struct Known {
    pub header: SegmentHeader,
    pub trailer: Trailer,
    pub rows: Vec<DirectoryRow>,
    /// Header, footer and trailer.
    pub local: Vec<u8>,
    /// The bounds in its stream table.
    pub bounds: Vec<(StreamId, Offset, Offset)>,
    /// As in [`Identity::counted`].
    pub counted: u32,
}

/// The identity of an object: its number, and who puts it.
#[derive(Clone, Copy)]
pub(super) struct Identity {
    pub sequence: u32,
    pub owner: u64,
    /// All objects below are named, so they count. Those between are on their way.
    pub counted: u32,
}

/// The bytes of an object in parts: its header, the parts of its blocks, its trailer. The memory of the blocks is used again
/// once the object is dropped.
pub(super) struct Body {
    parts: Vec<Bytes>,
    /// Told to readers as long as the object lives.
    _kept: Kept,
}

impl Body {
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

/// The write buffers that an object keeps in memory, because it shares batches of the tail cache.
struct Kept {
    buffers: HashSet<u64>,
    bytes: usize,
    shared: Arc<Shared>,
}

impl Kept {
    /// So many buffers may be kept in any case.
    const BUFFERS: usize = 2;

    fn none(shared: &Arc<Shared>) -> Kept {
        Kept { buffers: HashSet::new(), bytes: 0, shared: shared.clone() }
    }

    /// Whether the object may keep the write buffer `buffer`, which has a batch of `length`. All that an object keeps is at most
    /// a quarter more than the upper bound of its bytes. Batches of other buffers are copied.
    fn may_keep(&mut self, buffer: u64, length: usize) -> bool {
        if self.buffers.contains(&buffer) {
            return true;
        }
        let usual = self.shared.buffers.buffer_bytes();
        // A larger batch has a buffer of its own.
        let bytes = usual.max(sectors(BLOCK_HEADER_BYTES + ENTRY_HEADER_BYTES + length));
        let most = (self.shared.options.object_bytes / 4 * 5).max(Self::BUFFERS * usual);
        let fits = self.bytes + bytes <= most;
        if fits {
            self.buffers.insert(buffer);
            self.bytes += bytes;
            self.shared.kept_by_objects.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.shared.kept_by_objects.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Blocks for Vec<Bytes> {
    type Error = RewriteError;

    fn write(&mut self, position: u32, mut block: Vec<Bytes>) -> Result<(), RewriteError> {
        debug_assert_eq!(index(position), self.iter().map(Bytes::len).sum(), "blocks come without gaps");
        if let [only] = &mut block[..]
            && only.len() < BLOCK_BYTES / 2
        {
            // A short block would keep a whole buffer. One with shared batches does: that is one buffer an object.
            *only = Bytes::copy_from_slice(only);
        }
        self.append(&mut block);
        Ok(())
    }
}

/// An object under construction.
struct Draft<'a> {
    shared: &'a Shared,
    builder: SegmentBuilder,
    parts: Vec<Bytes>,
    kept: Kept,
    table: Vec<(StreamId, TableRow)>,
}

impl<'a> Draft<'a> {
    fn new(shared: &'a Arc<Shared>, identity: Identity) -> Draft<'a> {
        let Identity { sequence, owner, counted } = identity;
        let (generation, synced) = (shared.next_generation(), Lsn::new(counted, 0));
        let builder = SegmentBuilder::new(&shared.copies, sequence, generation, owner, synced);
        // The header is written last.
        let parts = vec![Bytes::from_static(&[0; SECTOR])];
        Draft { shared, builder, parts, kept: Kept::none(shared), table: Vec::new() }
    }

    fn begin(
        &mut self,
        stream: &Stream,
        (base_offset, end): (Offset, Offset),
        flags: u32,
    ) -> Result<(), RewriteError> {
        self.builder.begin_range(&mut self.parts, stream.id(), (base_offset, end), flags)?;
        let state = stream.lock();
        // The batches of the range follow.
        let producers = match flags & ROW_REPLACES == 0 {
            true => self.known_at(&state, base_offset),
            false => state.producers.below(end),
        };
        let row = TableRow { start: state.start, next: end, producers };
        drop(state);
        match self.table.last_mut() {
            Some((id, last)) if *id == stream.id() => *last = row,
            _ => self.table.push((stream.id(), row)),
        }
        Ok(())
    }

    /// The producers as of `next`, the first offset that no object has. One that has appended often since is remembered by later
    /// batches alone, and what it sent before may have been deleted before any object had it. In a cluster, copies have what it was
    /// answered behind; otherwise an object may know better.
    fn known_at(&self, state: &StreamState, next: Offset) -> Producers {
        match self.shared.options.owned {
            Some(_) => state.producers.until(next),
            None => state.producers.below(next),
        }
    }

    /// Records the bounds of those streams of which the object has no range.
    fn record(&mut self, streams: &[Arc<Stream>]) {
        let there: HashSet<StreamId> = self.table.iter().map(|(id, _)| *id).collect();
        for stream in streams.iter().filter(|stream| !there.contains(&stream.id())) {
            let state = stream.lock();
            if !state.deleted {
                // All below is in the objects before this one, or deleted.
                let next = state.upload_from();
                let row = TableRow { start: state.start, next, producers: self.known_at(&state, next) };
                self.table.push((stream.id(), row));
            }
        }
    }

    /// Adds a batch. `buffer` is the write buffer that it stands in.
    fn push(&mut self, batch: &Bytes, buffer: Option<u64>) -> Result<(), RewriteError> {
        let header =
            BatchHeader::parse_header(batch).map_err(|error| RewriteError::Rewriter(error.to_string()))?;
        if let Some((_, row)) = self.table.last_mut() {
            row.producers.record_newer(&header, batch, header.base_offset, self.shared.clock.now_ms());
        }
        let buffer = buffer.filter(|_| batch.len() >= SHARED_BYTES_MIN);
        let shares = buffer.is_some_and(|buffer| self.kept.may_keep(buffer, batch.len()));
        let hold = if shares { Hold::Share } else { Hold::Copy };
        self.builder.push(&mut self.parts, &header, offset_count(&header)?, batch, hold)
    }

    fn finish(mut self) -> Result<(Body, Known), RewriteError> {
        self.table.sort_by_key(|(id, _)| *id);
        let built = self.builder.finish(&mut self.parts, &self.table)?;
        let mut body = Body { parts: self.parts, _kept: self.kept };
        body.parts.push(Bytes::copy_from_slice(&built.trailer.encode(self.builder.generation)));
        let header = SegmentHeader {
            sequence: self.builder.sequence,
            generation: self.builder.generation,
            length: body.bytes() as u64,
            log_id: self.shared.options.log_id,
        };
        body.parts[0] = Bytes::copy_from_slice(&header.encode());
        let [first, .., footer, trailer] = &body.parts[..] else { unreachable!("an object has a footer") };
        let local = [&first[..], footer, trailer].concat();
        let counted = self.builder.synced().sequence();
        let bounds = self.table.iter().map(|(id, row)| (*id, row.start, row.next)).collect();
        let known = Known { header, trailer: built.trailer, rows: built.rows, local, bounds, counted };
        Ok((body, known))
    }
}

/// The records of a stream that an object is to have.
struct Wanted {
    stream: Arc<Stream>,
    /// The records below.
    end: Offset,
    leads: bool,
}

/// The records that the next object is to have, sorted by stream.
pub(super) struct Wish {
    wanted: Vec<Wanted>,
    /// The bytes that leading streams may have together.
    leading_room: usize,
}

impl Wish {
    /// The newest records of `waiting`, and of all leading streams.
    pub fn new(shared: &Shared, waiting: Vec<Arc<Stream>>) -> Wish {
        let ignores = false;
        #[cfg(any(test, feature = "stepped"))]
        let ignores = ignores || shared.options.mutation == Some(Mutation::IgnoresLeading);
        let synced = |leads: bool| {
            move |stream: Arc<Stream>| {
                let end = stream.lock().synced;
                Wanted { stream, end, leads }
            }
        };
        let others = waiting.into_iter().filter(|stream| ignores || !stream.leads());
        // The ends of the leading streams come from a later moment, and all from the same.
        let mut wanted: Vec<Wanted> = others.map(synced(false)).collect();
        let bytes_max = shared.options.object_bytes;
        let announcing = shared.announcing.lock();
        let leading = if ignores { Vec::new() } else { shared.tier.leading() };
        let cut = shared.tier.cut((LEADING_FACTOR * bytes_max) as u64);
        wanted.extend(leading.into_iter().map(synced(true)));
        drop(announcing);
        let mut leading_room = usize::MAX;
        match cut {
            Cut::Now => {}
            // The mark may be older than the records of the others.
            Cut::Mark(ends) => {
                for of in &mut wanted {
                    of.end = ends.get(&of.stream.id()).map_or(Offset::ZERO, |end| of.end.min(*end));
                }
            }
            Cut::Part => {
                leading_room = bytes_max;
                wanted.iter_mut().filter(|of| !of.leads).for_each(|of| of.end = Offset::ZERO);
            }
        }
        wanted.sort_unstable_by_key(|of| of.stream.id());
        Wish { wanted, leading_room }
    }

    /// The streams, sorted by their ids.
    pub fn into_streams(self) -> Vec<Arc<Stream>> {
        self.wanted.into_iter().map(|of| of.stream).collect()
    }
}

/// So many times the bytes of an object may come from leading streams, so that the object has all of them. Beyond, after a
/// restart, objects have other records only when the leading streams have caught up.
const LEADING_FACTOR: usize = 4;

/// An object of newest records.
pub(super) struct Newest {
    /// Its bytes. `None` if there are no records for it.
    pub object: Option<(Body, Known)>,
    /// Streams of which it has fewer records than it was to have, because the next ones cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// A stream whose next records to store cannot be read.
pub(super) struct Unreadable {
    pub stream: Arc<Stream>,
    pub why: RewriteError,
}

/// Whether the records themselves are the problem.
fn is_of_records(error: &RewriteError) -> bool {
    matches!(error, RewriteError::Read(ReadError::Damaged { .. } | ReadError::Io(_)))
}

/// The object with the records of `wish`, some of them if it is full, and with the bounds of the streams `recorded`.
///
/// # Errors
/// Records of a leading stream cannot be read: others must not be stored before them.
pub(super) fn of_streams(
    shared: &Arc<Shared>,
    identity: Identity,
    wish: &Wish,
    recorded: &[Arc<Stream>],
) -> Result<Newest, UploadError> {
    let mut pacer = Pacer::new(shared.clone(), false);
    let bytes_max = shared.options.object_bytes;
    let (mut leading_room, mut room) = (wish.leading_room, bytes_max);
    let mut draft = Draft::new(shared, identity);
    let (mut empty, mut unreadable) = (recorded.is_empty(), Vec::new());
    for Wanted { stream, end, leads } in &wish.wanted {
        let room = if *leads { &mut leading_room } else { &mut room };
        if *room == 0 {
            continue;
        }
        let Unstored { range, batches, problem } = load_unstored(shared, &mut pacer, stream, *end, *room)?;
        if let Some(why) = problem {
            if *leads {
                return Err(UploadError::Unreadable { stream: stream.id(), leads: true, source: why });
            }
            unreadable.push(Unreadable { stream: stream.clone(), why });
        }
        let Some(range) = range else { continue };
        empty = false;
        let before = draft.builder.bytes();
        draft.begin(stream, range, 0)?;
        for (batch, buffer) in batches {
            draft.push(&batch, buffer)?;
        }
        *room = room.saturating_sub(draft.builder.bytes() - before);
    }
    draft.record(recorded);
    let object = if empty { None } else { Some(draft.finish()?) };
    Ok(Newest { object, unreadable })
}

/// A batch, and the write buffer that it stands in if the tail cache has it.
type Loaded = (Bytes, Option<u64>);

/// Records of one stream.
#[derive(Default)]
struct Unstored {
    /// Their first offset, and the one behind them. `None` if there are none.
    range: Option<(Offset, Offset)>,
    batches: Vec<Loaded>,
    /// Why the next ones cannot be read.
    problem: Option<RewriteError>,
}

/// The records of a stream below `end` that are not stored yet, about `bytes_max` of them, up to the first one that cannot
/// be read.
fn load_unstored(
    shared: &Arc<Shared>,
    pacer: &mut Pacer,
    stream: &Arc<Stream>,
    end: Offset,
    bytes_max: usize,
) -> Result<Unstored, RewriteError> {
    let mut loaded = Unstored::default();
    let (from, sources) = match shared.unstored(stream, end, bytes_max) {
        Ok(unstored) => unstored,
        Err(error) if is_of_records(&error) => return Ok(Unstored { problem: Some(error), ..loaded }),
        Err(error) => return Err(error),
    };
    // The range continues what is stored, also where compaction left no batch, and begins with a whole batch.
    let begin = from.min(sources.first().map_or(from, |first| first.base_offset));
    for source in &sources {
        for chunk in chunks(&source.places) {
            let mut load = |places: &[BatchPlace]| {
                let batches = load_newest(shared, pacer, stream, &source.segment, places)?;
                loaded.batches.extend(batches);
                loaded.range = places.last().map(|last| (begin, last.next_offset())).or(loaded.range);
                Ok(())
            };
            let done = match load(chunk) {
                // Those before the damage may be good.
                Err(error) if is_of_records(&error) => chunk.chunks(1).try_for_each(load),
                done => done,
            };
            match done {
                Ok(()) => {}
                Err(error) if is_of_records(&error) => {
                    return Ok(Unstored { problem: Some(error), ..loaded });
                }
                Err(error) => return Err(error),
            }
        }
        loaded.range = Some((begin, source.end));
    }
    Ok(loaded)
}

/// The object with the ranges of `replacement`.
pub(super) fn of_replacement(
    shared: &Arc<Shared>,
    identity: Identity,
    replacement: &Replacement,
) -> Result<(Body, Known), RewriteError> {
    let mut draft = Draft::new(shared, identity);
    for range in &replacement.ranges {
        draft.begin(&range.stream, (range.base_offset, range.end), range.flags | ROW_REPLACES)?;
        for batch in &range.batches {
            draft.push(batch, None)?;
        }
    }
    draft.finish()
}

/// Parts of `places`, each of about [`CHUNK_BYTES`].
fn chunks(places: &[BatchPlace]) -> impl Iterator<Item = &[BatchPlace]> {
    let mut bytes = 0;
    places.chunk_by(move |place, _| {
        bytes += index(place.length);
        let goes_on = bytes < CHUNK_BYTES;
        if !goes_on {
            bytes = 0;
        }
        goes_on
    })
}

/// The bytes of batches of one segment, from the tail cache if it has all of them.
fn load_newest(
    shared: &Shared,
    pacer: &mut Pacer,
    stream: &Stream,
    segment: &Arc<Segment>,
    places: &[BatchPlace],
) -> Result<Vec<Loaded>, RewriteError> {
    let cached = |place: &BatchPlace| {
        let body = Lsn(Lsn::new(segment.sequence, place.position).0 + ENTRY_HEADER_BYTES as u64);
        shared.tail.find(body, index(place.length)).map(|Cached { bytes, buffer }| (bytes, Some(buffer)))
    };
    if let Some(all) = places.iter().map(cached).collect() {
        return Ok(all);
    }
    let wanted: Vec<_> = places.iter().map(|place| (segment, place)).collect();
    Ok(load(shared, pacer, stream, &wanted)?.into_iter().map(|batch| (batch, None)).collect())
}

impl Shared {
    /// Lets the uploader know of a stream that has records to store.
    pub fn store_later(&self, stream: &Arc<Stream>) {
        let Some(class) = Class::of(stream.level()) else { return };
        let bytes = {
            let state = stream.lock();
            let from = state.upload_from();
            if state.deleted || from >= state.synced { 0 } else { state.unstored_bytes(from) }
        };
        if bytes > 0 {
            self.tier.found(class, stream, bytes, self.clock.nanos());
        }
    }

    /// The records of a stream below `end` that are not stored yet, from the first on: about `bytes_max`, and at least
    /// one batch. Also the offset from which on nothing is stored.
    fn unstored(
        &self,
        stream: &Arc<Stream>,
        end: Offset,
        bytes_max: usize,
    ) -> Result<(Offset, Vec<Source>), RewriteError> {
        let (from, until) = {
            let state = stream.lock();
            let from = state.upload_from();
            let goes = !state.deleted && Class::of(stream.level()).is_some();
            // A stream that was deleted may begin anew.
            if goes { (from, end.min(state.synced).max(from)) } else { (from, from) }
        };
        let mut bytes = 0;
        let mut sources = Vec::new();
        for mut source in self.sources_between(stream, from, until)? {
            let fits = |place: &&BatchPlace| {
                let first = bytes == 0;
                bytes += index(place.length);
                first || bytes <= bytes_max
            };
            let count = source.places.iter().take_while(fits).count();
            let all = count == source.places.len();
            source.places.truncate(count);
            let Some(last) = source.places.last() else { break };
            if !all {
                source.end = last.next_offset();
            }
            sources.push(source);
            if !all {
                break;
            }
        }
        Ok((from, sources))
    }
}
