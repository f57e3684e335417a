//! The uploader: builds objects of what the tiered streams have gained, and puts them into the bucket.
//!
//! Objects are segments ([`crate::segment::object`]), numbered without gaps. The uploader puts one after the other,
//! each with the newest records of all tiered streams, sorted by stream. An object counts once its local file has its
//! name; opening the log then needs no request to the store. Local copies stay until the local retention drops them.
//!
//! An object whose put has no clear outcome is put again under the same key with the same bytes. A key that is taken
//! already was written before a crash, by this log: the object there is adopted, after a comparison with the log. If it
//! says anything else than the log, another server writes this log's objects, and the uploader stops.

mod collect;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use disk::AlignedBuffer;
use model::{BatchHeader, Offset};
use objects::{Bucket, BucketError, Put};

use crate::cleaner::{RewriteError, Source, load, offset_count};
use crate::format::{
    DirectoryRow, ENTRY_HEADER_BYTES, Lsn, SECTOR, SegmentHeader, TRAILER_BYTES, Trailer, index, length32,
};
use crate::index::BatchPlace;
use crate::pacer::Pacer;
use crate::segment::build::{Blocks, SegmentBuilder};
use crate::segment::object::{Local, ObjectFile, object_key, stored_extent};
use crate::segment::{STORING, Segment, file_name, footer};
use crate::shared::Shared;
use crate::stream::Stream;

const REST_MS_MAX: u64 = 1000;
/// Bytes of batches that are read at once.
const CHUNK_BYTES: usize = 1024 * 1024;

/// The outcome of a turn of the uploader.
#[derive(Debug)]
pub(crate) enum Uploaded {
    /// There was nothing to store.
    Nothing,
    /// An object was stored.
    Object,
    /// The turn failed. The next one tries again.
    Failed(UploadError),
    /// Another server writes the objects of this log. Nothing more is stored.
    Fenced(String),
}

/// Why nothing was stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error("reading what is to be stored: {0}")]
    Source(#[from] RewriteError),
    #[error("writing the local file of a stored object: {0}")]
    Local(std::io::Error),
}

/// Puts objects. Only one thread may have one.
pub(crate) struct Uploader {
    shared: Arc<Shared>,
    /// The sequence number of the next object.
    next: u32,
    /// An object that was built and is not stored for certain.
    unsettled: Option<Built>,
    /// An object that is stored and has no local file yet.
    unnamed: Option<Known>,
    fenced: bool,
    /// Dead objects, and since when they are dead, in nanoseconds of the log's clock.
    dead: HashMap<u32, u64>,
    /// Objects without a local file that are still to be deleted.
    doomed: Vec<u32>,
}

/// An object that is ready to be put.
struct Built {
    body: Bytes,
    streams: Vec<Arc<Stream>>,
    known: Known,
}

/// A stored object as its local file describes it.
struct Known {
    header: SegmentHeader,
    trailer: Trailer,
    rows: Vec<DirectoryRow>,
    /// Header, footer and trailer.
    local: Vec<u8>,
}

/// The bytes of an object, from its header on.
struct Body(Vec<u8>);

impl Blocks for Body {
    type Error = RewriteError;

    fn write(&mut self, position: u32, block: &[u8]) -> Result<(), RewriteError> {
        debug_assert_eq!(index(position), self.0.len(), "blocks come without gaps");
        self.0.extend_from_slice(block);
        Ok(())
    }
}

impl Uploader {
    /// The uploader of a log whose next object has the sequence number `next`.
    pub fn new(shared: Arc<Shared>, next: u32) -> Uploader {
        Uploader {
            shared,
            next,
            unsettled: None,
            unnamed: None,
            fenced: false,
            dead: HashMap::new(),
            doomed: Vec::new(),
        }
    }

    /// Waits until enough waits for an object, for at most a while. Returns false once the log is closed.
    pub fn wait(&self) -> bool {
        let time = Duration::from_millis(self.shared.options.upload_interval_ms.clamp(1, REST_MS_MAX));
        self.shared.tier.wait(time)
    }

    /// Rests for `time` after a failure. Returns false once the log is closed.
    pub fn rest(&self, time: Duration) -> bool {
        self.shared.tier.rest(time)
    }

    /// Stores one object, if enough waits to be stored.
    pub fn turn(&mut self) -> Uploaded {
        let Some(bucket) = self.shared.tier.bucket.clone() else { return Uploaded::Nothing };
        if self.fenced {
            return Uploaded::Nothing;
        }
        match self.store(&*bucket) {
            Ok(outcome) => outcome,
            Err(error) => Uploaded::Failed(error),
        }
    }

    fn store(&mut self, bucket: &dyn Bucket) -> Result<Uploaded, UploadError> {
        if let Some(known) = self.unnamed.take() {
            return self.name(known);
        }
        let built = match self.unsettled.take() {
            Some(built) => built,
            None => match self.build()? {
                Some(built) => built,
                None => return Ok(Uploaded::Nothing),
            },
        };
        let key = object_key(self.shared.options.log_id, self.next);
        match bucket.put_if_absent(&key, std::slice::from_ref(&built.body)) {
            Ok(Put::Stored) => {
                self.shared.tier.stored(built.body.len() as u64);
                let named = self.name(built.known);
                // A part of a stream may be left, because the object was full.
                self.wait_again(&built.streams);
                named
            }
            Ok(Put::Exists) => {
                let adopted = self.adopt(bucket, Some(&built.known));
                if adopted.is_ok() || self.unnamed.is_some() {
                    self.wait_again(&built.streams);
                } else {
                    // The object may be one of a request that is still on its way.
                    self.unsettled = Some(built);
                }
                adopted
            }
            Err(error) => {
                self.unsettled = Some(built);
                Err(error.into())
            }
        }
    }

    /// Builds the next object of the streams that wait.
    fn build(&mut self) -> Result<Option<Built>, UploadError> {
        let shared = self.shared.clone();
        let interval_ns = shared.options.upload_interval_ms.saturating_mul(1_000_000);
        let before = shared.clock.nanos().checked_sub(interval_ns);
        let mut streams = shared.tier.take_waiting(before);
        streams.sort_unstable_by_key(|stream| stream.id());
        // Before their ends are looked at: what comes later makes them wait again.
        for stream in &streams {
            stream.note_awaits_upload(false);
        }
        let built = self.build_of(&streams);
        if !matches!(built, Ok(Some(_))) {
            self.wait_again(&streams);
        }
        Ok(built?.map(|(body, known)| Built { body, streams, known }))
    }

    /// Makes streams wait again that still have something to store.
    fn wait_again(&self, streams: &[Arc<Stream>]) {
        for stream in streams {
            self.shared.store_later(stream);
        }
    }

    fn build_of(&self, streams: &[Arc<Stream>]) -> Result<Option<(Bytes, Known)>, RewriteError> {
        let shared = &self.shared;
        let mut pacer = Pacer::new(shared.clone(), false);
        let mut builder = SegmentBuilder::new(self.next, shared.next_generation());
        let mut body =
            Body(Vec::with_capacity(shared.options.object_bytes + shared.options.object_bytes / 8));
        body.0.resize(index(Segment::data_start()), 0);
        let mut empty = true;
        for stream in streams {
            let room = shared.options.object_bytes.saturating_sub(builder.bytes());
            if room == 0 {
                break;
            }
            let (from, sources) = shared.unstored(stream, room)?;
            let (Some(first), Some(last)) = (sources.first(), sources.last()) else { continue };
            empty = false;
            // The range continues what is stored, also where compaction left no batch, and begins with a whole batch.
            let base_offset = from.min(first.base_offset);
            builder.begin_range(&mut body, stream.id(), (base_offset, last.end), 0)?;
            for source in &sources {
                for chunk in chunks(&source.places) {
                    for batch in load_newest(shared, &mut pacer, stream, &source.segment, chunk)? {
                        let header = BatchHeader::parse_header(&batch)
                            .map_err(|error| RewriteError::Rewriter(error.to_string()))?;
                        builder.push(&mut body, &header, offset_count(&header)?, &batch)?;
                    }
                }
            }
        }
        if empty {
            return Ok(None);
        }
        let built = builder.finish(&mut body)?;
        let Body(mut bytes) = body;
        bytes.extend_from_slice(&built.trailer.encode(builder.generation));
        let header = SegmentHeader {
            sequence: builder.sequence,
            generation: builder.generation,
            length: bytes.len() as u64,
            log_id: shared.options.log_id,
        };
        bytes[..SECTOR].copy_from_slice(&header.encode());
        let local = [&bytes[..SECTOR], &bytes[index(built.trailer.footer_position)..]].concat();
        let known = Known { header, trailer: built.trailer, rows: built.rows, local };
        Ok(Some((Bytes::from(bytes), known)))
    }

    /// Takes over the object that has the next key already, if this log wrote it. `built` was put under this key.
    fn adopt(&mut self, bucket: &dyn Bucket, built: Option<&Known>) -> Result<Uploaded, UploadError> {
        let key = object_key(self.shared.options.log_id, self.next);
        match self.find_left(bucket, &key, built)? {
            Ok(known) => self.name(known),
            Err(why) => {
                self.fenced = true;
                Ok(Uploaded::Fenced(why))
            }
        }
    }

    /// Whether another server writes this log's objects.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Whether an object of the next number was built here and may have been put.
    fn is_putting(&self) -> bool {
        self.unsettled.is_some() || self.unnamed.is_some()
    }

    /// The object that has the key already, after a comparison with the log. `Err` within is the difference.
    fn find_left(
        &self,
        bucket: &dyn Bucket,
        key: &str,
        built: Option<&Known>,
    ) -> Result<Result<Known, String>, BucketError> {
        let length = bucket.length(key)?;
        let sector = SECTOR as u64;
        let first = bucket.get(key, 0..sector)?;
        let last = bucket.get(key, length.saturating_sub(TRAILER_BYTES as u64)..length)?;
        let differs = |why: &str| Ok(Err(format!("the object {key} is not one of this log: {why}")));
        let Ok(header) = SegmentHeader::decode(&first) else { return differs("its header is damaged") };
        let ours = (self.shared.options.log_id, self.next, length);
        if (header.log_id, header.sequence, header.length) != ours {
            return differs("its header names another log, segment or length");
        }
        let Some(trailer) = Trailer::decode(&last, header.generation, length) else {
            return differs("its trailer is damaged");
        };
        let from = u64::from(trailer.footer_position);
        let footer = bucket.get(key, from..length)?;
        let directory = trailer.directory_position.checked_sub(trailer.footer_position).map(index);
        let rows = directory
            .and_then(|at| footer.get(at..))
            .and_then(|bytes| footer::decode_directory(bytes, &trailer, header.generation));
        let Some(rows) = rows else { return differs("its directory is damaged") };
        let local = [&first[..], &footer[..]].concat();
        let known = Known { header, trailer, rows, local };
        if built.is_some_and(|built| built.local == known.local) {
            // An earlier request of this very put has landed.
            return Ok(Ok(known));
        }
        Ok(self.compare(&known).map(|()| known).map_err(|why| {
            format!(
                "the object {key} contradicts the log: {why}; does another server have a copy of this log?"
            )
        }))
    }

    /// Checks that the object has the batches which the log has.
    fn compare(&self, known: &Known) -> Result<(), String> {
        for row in &known.rows {
            let Some(stream) = self.shared.find_stream(row.stream) else { continue };
            let (next, start, stored, compacted) = {
                let state = stream.lock();
                (state.next, state.start, state.stored_to(), state.compacted)
            };
            if compacted > row.base_offset {
                // The log has other batches by now, and has them locally.
                continue;
            }
            if next == Offset::ZERO {
                // It was deleted, and somebody has asked for it since.
                continue;
            }
            if row.next_offset > next {
                return Err(format!("stream {} ends at {next} and not at {}", row.stream, row.next_offset));
            }
            if stored.is_some_and(|stored| row.base_offset < stored) {
                return Err(format!("stream {} is stored up to {}", row.stream, stored.unwrap_or_default()));
            }
            let wanted = self.shared.places_between(&stream, row.base_offset.max(start), row.next_offset);
            let wanted = wanted.map_err(|error| error.to_string())?;
            let (from, length) = (row.index_position, index(row.index_length));
            let at = from.checked_sub(known.trailer.footer_position).map(|at| SECTOR + index(at));
            let bytes = at.and_then(|at| known.local.get(at..at + length));
            let index = bytes.and_then(crate::index::BatchIndex::decode);
            let found = index.as_ref().map(|index| index.from_offset(row.base_offset.max(start)));
            let same = |a: &BatchPlace, b: &BatchPlace| {
                (a.base_offset, a.offset_count, a.length, a.max_timestamp)
                    == (b.base_offset, b.offset_count, b.length, b.max_timestamp)
            };
            let equal = found.is_some_and(|found| {
                let found: Vec<BatchPlace> = found.collect();
                found.len() == wanted.len() && found.iter().zip(&wanted).all(|(a, b)| same(a, b))
            });
            if !equal {
                return Err(format!("other batches of stream {} at {}", row.stream, row.base_offset));
            }
        }
        Ok(())
    }

    /// Writes the local file of a stored object, gives it its name, and lets the streams know.
    fn name(&mut self, known: Known) -> Result<Uploaded, UploadError> {
        assert_eq!(known.header.sequence, self.next, "objects are named in the order of their numbers");
        let written = write_local(&self.shared, &known);
        if let Err(error) = written {
            self.unnamed = Some(known);
            return Err(UploadError::Local(error));
        }
        self.next += 1;
        let Known { header, trailer, rows, local } = known;
        let name = Local::Named(self.shared.disk.clone(), file_name(header.sequence));
        let file = ObjectFile::new(self.shared.tier.bucket.clone(), &header, name, local.len() as u64);
        let segment = Arc::new(Segment::new(header.sequence, header.generation, Arc::new(file)));
        segment.set_footer(trailer, None);
        segment.set_live(length32(rows.len()) + 1, rows.iter().map(|row| row.bytes).sum());
        segment.mark_sealed();
        self.shared.segments.insert(segment.clone());
        for (row, at) in rows.iter().zip(0..) {
            let extent = stored_extent(row, &segment, at);
            let stream = self.shared.find_stream(row.stream);
            let taken = stream.is_some_and(|stream| {
                let mut state = stream.lock();
                !state.deleted && row.next_offset > state.start && state.add_stored(extent, row.next_offset)
            });
            if !taken {
                segment.release(extent.bytes);
            }
        }
        segment.release(0);
        Ok(Uploaded::Object)
    }
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

fn write_local(shared: &Shared, known: &Known) -> std::io::Result<()> {
    let disk = &shared.disk;
    if disk.list()?.iter().any(|name| name == STORING) {
        disk.remove(STORING)?;
    }
    let mut bytes = AlignedBuffer::zeroed(known.local.len());
    bytes.copy_from_slice(&known.local);
    let file = disk.create(STORING, known.local.len() as u64)?;
    file.write_at(0, &bytes)?;
    file.sync()?;
    disk.rename(STORING, &file_name(known.header.sequence))
}

/// The bytes of batches of one segment, from the tail cache if it has all of them.
fn load_newest(
    shared: &Shared,
    pacer: &mut Pacer,
    stream: &Stream,
    segment: &Arc<Segment>,
    places: &[BatchPlace],
) -> Result<Vec<Bytes>, RewriteError> {
    let cached = |place: &BatchPlace| {
        let body = Lsn(Lsn::new(segment.sequence, place.position).0 + ENTRY_HEADER_BYTES as u64);
        shared.tail.find(body, index(place.length))
    };
    if let Some(all) = places.iter().map(cached).collect() {
        return Ok(all);
    }
    let wanted: Vec<_> = places.iter().map(|place| (segment, place)).collect();
    load(shared, pacer, stream, &wanted)
}

impl Shared {
    /// Lets the uploader know of a stream that has records to store.
    pub fn store_later(&self, stream: &Arc<Stream>) {
        let bytes = {
            let state = stream.lock();
            let from = state.stored_to().unwrap_or_default().max(state.start);
            if state.deleted || from >= state.committed { 0 } else { state.unstored_bytes(from) }
        };
        if bytes > 0 && stream.is_tiered() {
            self.tier.grew(stream, bytes, self.clock.nanos());
        }
    }

    /// The synced records of a stream that are not stored yet, from the first on: about `bytes_max`, and at least one
    /// batch. Also the offset from which on nothing is stored.
    fn unstored(
        &self,
        stream: &Arc<Stream>,
        bytes_max: usize,
    ) -> Result<(Offset, Vec<Source>), RewriteError> {
        let (from, until) = {
            let state = stream.lock();
            let from = state.stored_to().unwrap_or_default().max(state.start);
            if state.deleted || !stream.is_tiered() { (from, from) } else { (from, state.committed) }
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

    fn places_between(
        &self,
        stream: &Arc<Stream>,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<BatchPlace>, RewriteError> {
        let sources = self.sources_between(stream, from, until)?;
        Ok(sources.into_iter().flat_map(|source| source.places).collect())
    }
}
