//! Makes a new log of all valid data of a damaged one.
//!
//! Batches keep their bytes and their offsets. They are appended to the new log as they were to the old one. A stream
//! of a log has no holes (`recovery/coverage.rs`). Where records are lost, or were compacted away, a batch without
//! records takes their offsets; consumers skip it like the batches that compaction leaves. Such a batch also replaces a
//! lost batch by which the log still recognizes a producer, so that the producer can go on. At the end the new stream
//! is trimmed to the old start.
//!
//! Blocks behind the end of the log are left out, as in opening.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use disk::Disk;
use model::batch::{HEADER_BYTES, empty_like};
use model::{BatchHeader, Offset, StreamId, Timestamp};
use parking_lot::{Condvar, Mutex};

use super::finding::{Finding, Hit, Severity};
use super::resolve::{Lost, resolve};
use super::survey::{Known, Survey};
use super::walk::checked_batch;
use crate::format::{ENTRY_HEADER_BYTES, EntryHeader, index, length32};
use crate::index::BatchPlace;
use crate::log::Log;
use crate::options::{Clock, Options};
use crate::recovery::OpenError;
use crate::recovery::scan::Found;
use crate::request::{AdmitError, Append, AppendError, Completion, Durability, NoListener};
use crate::segment::Segment;
use crate::stream::{RememberedBatch, Stream};

/// Upper bound of the bytes in flight to the new log.
const FLIGHT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of batches that are read before they are appended.
const CHUNK_BYTES: usize = 8 * 1024 * 1024;
/// Batches with a smaller gap between them are read at once, up to so many bytes.
const GAP_BYTES: u32 = 64 * 1024;
const READ_BYTES: u32 = 1024 * 1024;
/// The pause before another try, while segments are prepared.
const BUSY_RETRY: Duration = Duration::from_millis(1);
/// The longest possible segments of a log, by the rules of [`Options::segment_bytes`].
const SEGMENT_BYTES_MAX: u64 = 4095 * 1024 * 1024;

/// Why nothing was salvaged, or less than possible. The contents of the new directory are then worthless.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// The damaged log cannot be read at all.
    #[error("the log cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The new directory has a log already.
    #[error("there is a log in the new directory already")]
    Exists,
    /// The new log cannot be created.
    #[error("the new log cannot be begun: {0}")]
    Open(#[from] OpenError),
    /// The new log refuses a batch.
    #[error("the new log takes no more: {0}")]
    Append(#[from] AdmitError),
}

/// The report of a salvage.
#[derive(Debug, Default)]
pub struct Salvaged {
    /// Streams.
    pub streams: u64,
    /// Batches with records.
    pub batches: u64,
    /// Bytes of these batches.
    pub bytes: u64,
    /// Everything that should be in the new log and is not: one finding for each damaged place or missing file, with
    /// the records that it cost.
    pub dropped: Vec<Finding>,
}

/// The steps of a salvage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The files of the old log are read.
    Reading,
    /// Batches are appended to the new log. It takes the bytes of all blocks that were read at most.
    Copying,
}

/// Copies all valid data of the log on `source` to a new log on `target`. Writes nothing to `source`. Calls
/// `progress` with the bytes that are done and all bytes of a step. Blocks.
pub fn salvage(
    source: &dyn Disk,
    target: Arc<dyn Disk>,
    options: Options,
    clock: Arc<dyn Clock>,
    progress: &dyn Fn(Doing, u64, u64),
) -> Result<Salvaged, SalvageError> {
    let survey = Survey::of(source, &|done, all| progress(Doing::Reading, done, all))?;
    if target.list()?.iter().any(|name| crate::segment::sequence_of(name).is_some()) {
        return Err(SalvageError::Exists);
    }
    // Every batch of the old log must fit the new one.
    let written = survey.files.segments.iter().filter(|remains| !remains.cleaned());
    let longest = written.map(|remains| u64::from(remains.segment.length)).max().unwrap_or_default();
    let segment_bytes =
        longest.next_multiple_of(1024 * 1024).min(SEGMENT_BYTES_MAX).max(options.segment_bytes);
    // The new log keeps the id of the old one, because the metadata names the log of each partition by its id.
    let log_id = survey.files.log_id.unwrap_or(options.log_id);
    let log = Log::open(target, Options { segment_bytes, log_id, ..options }, clock, Arc::new(NoListener))?;
    let mut copier = Copier {
        survey: &survey,
        log: &log,
        flight: Arc::default(),
        salvaged: Salvaged::default(),
        progress,
    };
    let done = copier.all();
    let Copier { salvaged, .. } = copier;
    log.close();
    done.map(|()| salvaged)
}

/// Appends that are not complete yet.
#[derive(Default)]
struct Flight {
    state: Mutex<(usize, Option<AppendError>)>,
    landed: Condvar,
}

impl Flight {
    /// Waits until at most `bytes` are in flight.
    fn wait(&self, bytes: usize) -> Result<(), AdmitError> {
        let mut state = self.state.lock();
        while state.0 > bytes && state.1.is_none() {
            self.landed.wait(&mut state);
        }
        state.1.clone().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// One append.
struct Landing {
    flight: Arc<Flight>,
    bytes: usize,
}

impl Completion for Landing {
    fn complete(&self, result: Result<(), AppendError>) {
        let mut state = self.flight.state.lock();
        state.0 -= self.bytes;
        if let Err(error) = result {
            state.1.get_or_insert(error);
        }
        self.flight.landed.notify_all();
    }
}

struct Copier<'a> {
    survey: &'a Survey,
    log: &'a Log,
    flight: Arc<Flight>,
    salvaged: Salvaged,
    progress: &'a dyn Fn(Doing, u64, u64),
}

/// The progress of one stream.
struct Progress {
    stream: Arc<Stream>,
    /// The first offset that is still to be written.
    at: Offset,
    start: Offset,
    /// Timestamp of the last batch, for the batches without records.
    timestamp: Option<Timestamp>,
    /// The remembered batches of producers, by offset. Finished ones are taken off the end.
    remembered: Vec<(i64, i16, RememberedBatch)>,
}

impl Progress {
    fn of(log: &Log, id: StreamId, known: &Known) -> Progress {
        let mut remembered: Vec<(i64, i16, RememberedBatch)> = Vec::new();
        for (producer_id, producer) in known.producers.iter() {
            remembered.extend(producer.batches.iter().map(|batch| (producer_id, producer.epoch, *batch)));
        }
        remembered.sort_unstable_by_key(|(.., batch)| std::cmp::Reverse(batch.base_offset));
        Progress { stream: log.stream(id), at: Offset::ZERO, start: known.start, timestamp: None, remembered }
    }
}

impl Copier<'_> {
    fn all(&mut self) -> Result<(), SalvageError> {
        let mut lost = Vec::new();
        for (id, known) in &self.survey.streams {
            self.stream(*id, known, &mut lost)?;
            self.salvaged.streams += 1;
        }
        self.flight.wait(0)?;
        for (id, known) in &self.survey.streams {
            if known.start > Offset::ZERO {
                let done = self.landing(1);
                self.log.trim(&self.log.stream(*id), known.start, Some(done));
            }
        }
        self.flight.wait(0)?;
        self.salvaged.dropped.extend(dropped(self.survey, lost));
        Ok(())
    }

    fn landing(&self, bytes: usize) -> Arc<Landing> {
        self.flight.state.lock().0 += bytes;
        Arc::new(Landing { flight: self.flight.clone(), bytes })
    }

    fn stream(&mut self, id: StreamId, known: &Known, lost: &mut Vec<Lost>) -> Result<(), SalvageError> {
        let resolved = resolve(self.survey, id);
        lost.extend(resolved.lost);
        for (from, to) in &resolved.stored {
            let what = "these records are in the object store alone; they are not copied";
            let hits = vec![Hit { stream: id, from: *from, to: *to, batches: None }];
            self.salvaged.dropped.push(Finding { hits, ..Finding::new(Severity::Error, "", 0, 0, what) });
        }
        let extents = self.survey.extents.get(&id).map_or(&[][..], Vec::as_slice);
        let mut progress = Progress::of(self.log, id, known);
        let mut places = resolved
            .parts
            .iter()
            .flat_map(|part| part.places(extents).map(|place| (extents[part.extent].segment, place)))
            .filter(|(_, place)| place.next_offset() > known.start)
            .peekable();
        while places.peek().is_some() {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while let Some((_, place)) = places.peek()
                && (chunk.is_empty() || bytes + index(place.length) <= CHUNK_BYTES)
            {
                bytes += index(place.length);
                chunk.extend(places.next());
            }
            for ((segment, place), batch) in chunk.iter().zip(self.load(&chunk)) {
                let (base, end) = (place.base_offset, place.next_offset());
                let Some((header, batch)) = batch.filter(|_| base >= progress.at) else {
                    // The batch was readable just now.
                    let missing = Some(self.survey.name(*segment).to_owned());
                    lost.push(Lost {
                        stream: id,
                        from: base,
                        to: end,
                        batches: Some(1),
                        damage: None,
                        missing,
                    });
                    continue;
                };
                self.fill(&mut progress, base, header.max_timestamp)?;
                self.salvaged.batches += u64::from(header.count > 0);
                self.salvaged.bytes += batch.len() as u64;
                (self.progress)(Doing::Copying, self.salvaged.bytes, self.survey.checked.bytes);
                self.append(&mut progress, header, batch)?;
            }
        }
        self.fill(&mut progress, known.next, Timestamp::NONE)?;
        if progress.at < known.next {
            // The whole stream lies below the start. The next offset has to be preserved.
            progress.at = known.next + -1;
            self.empty(&mut progress, known.next, Timestamp::NONE, None)?;
        }
        Ok(())
    }

    /// Fills the offsets up to `to` with batches without records: all offsets from the start of the stream on, and
    /// below the start those by which its producers are recognized.
    fn fill(&mut self, progress: &mut Progress, to: Offset, near: Timestamp) -> Result<(), SalvageError> {
        while let Some((id, epoch, batch)) = progress.remembered.last().copied() {
            let end = batch.base_offset + i64::from(batch.offset_count);
            if end > to {
                break;
            }
            progress.remembered.pop();
            if batch.base_offset < progress.at || batch.offset_count == 0 {
                continue;
            }
            self.gap(progress, batch.base_offset, near)?;
            progress.at = batch.base_offset;
            self.empty(progress, end, batch.timestamp, Some((id, epoch, batch.base_sequence)))?;
        }
        self.gap(progress, to, near)
    }

    fn gap(&mut self, progress: &mut Progress, to: Offset, near: Timestamp) -> Result<(), SalvageError> {
        if progress.start.max(progress.at) >= to {
            return Ok(());
        }
        progress.at = progress.at.max(progress.start);
        while progress.at < to {
            let end = to.min(progress.at + i64::from(i32::MAX));
            let timestamp = progress.timestamp.unwrap_or(near);
            self.empty(progress, end, timestamp, None)?;
        }
        Ok(())
    }

    /// Appends a batch without records that takes the offsets up to `end`.
    fn empty(
        &mut self,
        progress: &mut Progress,
        end: Offset,
        max_timestamp: Timestamp,
        producer: Option<(i64, i16, i32)>,
    ) -> Result<(), SalvageError> {
        let (producer_id, producer_epoch, base_sequence) = producer.unwrap_or((-1, -1, -1));
        let like = BatchHeader {
            base_offset: progress.at,
            total_bytes: HEADER_BYTES,
            leader_epoch: 0,
            crc: 0,
            attributes: 0,
            last_offset_delta: i32::try_from(end - progress.at - 1).unwrap_or(i32::MAX),
            base_timestamp: Timestamp::NONE,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count: 0,
        };
        let batch = Bytes::from(empty_like(&like));
        let header = BatchHeader::parse(&batch).expect("it was just made");
        self.append(progress, header, batch)
    }

    fn append(
        &mut self,
        progress: &mut Progress,
        header: BatchHeader,
        batch: Bytes,
    ) -> Result<(), SalvageError> {
        self.flight.wait(FLIGHT_BYTES_MAX)?;
        let admission = loop {
            match self.log.admit(batch.len()) {
                Err(AdmitError::Busy) => std::thread::sleep(BUSY_RETRY),
                admitted => break admitted?,
            }
        };
        progress.at = header.next_offset();
        progress.timestamp = Some(header.max_timestamp);
        let done = self.landing(batch.len());
        self.log.append(Append {
            stream: progress.stream.clone(),
            base_offset: header.base_offset,
            header,
            batch,
            append_time: None,
            leader_epoch: header.leader_epoch,
            durability: Durability::Synced,
            done: Some(done),
            admission,
        });
        Ok(())
    }

    /// Reads batches, grouped by segment, and checks them once more.
    fn load(&self, wanted: &[(usize, BatchPlace)]) -> Vec<Option<(BatchHeader, Bytes)>> {
        let mut loaded = Vec::with_capacity(wanted.len());
        let mut rest = wanted;
        while let Some((number, first)) = rest.first() {
            let end = |place: &BatchPlace| place.position + length32(ENTRY_HEADER_BYTES) + place.length;
            let mut to = end(first);
            let close = |(other, place): &&(usize, BatchPlace)| {
                let near = other == number
                    && place.position >= to
                    && place.position - to <= GAP_BYTES
                    && end(place) - first.position <= READ_BYTES;
                if near {
                    to = end(place);
                }
                near
            };
            let together = 1 + rest[1..].iter().take_while(close).count();
            let (now, later) = rest.split_at(together);
            let segment = &self.survey.files.segments[*number].segment;
            let read = segment.read(first.position, index(to - first.position)).ok();
            for (_, place) in now {
                let bytes = match &read {
                    Some(bytes) => {
                        let from = index(place.position - first.position);
                        Some(bytes.slice(from..from + ENTRY_HEADER_BYTES + index(place.length)))
                    }
                    None => segment.read(place.position, ENTRY_HEADER_BYTES + index(place.length)).ok(),
                };
                loaded.push(bytes.and_then(|bytes| checked(segment, place, &bytes)));
            }
            rest = later;
        }
        loaded
    }
}

fn checked(segment: &Segment, place: &BatchPlace, bytes: &Bytes) -> Option<(BatchHeader, Bytes)> {
    let entry = EntryHeader::decode(bytes, segment.generation)?;
    let body = bytes.slice(ENTRY_HEADER_BYTES..);
    let (found, header) = checked_batch(&Found { entry, position: place.position, body: &body }).ok()?;
    // A copy, so that the batch does not keep the region of its read alive.
    (found == *place).then(|| (header, Bytes::copy_from_slice(&body)))
}

/// Groups the lost records by cause.
fn dropped(survey: &Survey, lost: Vec<Lost>) -> Vec<Finding> {
    let finding = |file: &str, from: u32, to: u32, what: &str| {
        Finding::new(Severity::Error, file, u64::from(from), u64::from(to), what)
    };
    let mut by_damage: Vec<Vec<Hit>> = survey.damages.iter().map(|_| Vec::new()).collect();
    let mut dropped = Vec::new();
    for lost in lost {
        let hit = Hit { stream: lost.stream, from: lost.from, to: lost.to, batches: lost.batches };
        match lost.damage {
            Some(at) => by_damage[at].push(hit),
            None => {
                let file = lost.missing.unwrap_or_default();
                dropped
                    .push(Finding { hits: vec![hit], ..finding(&file, 0, 0, "no file has these records") });
            }
        }
    }
    for file in survey.missing.iter().chain(&survey.files.unread) {
        let what = "nothing can be read of the file; what else stood in it is not known";
        dropped.push(finding(file, 0, 0, what));
    }
    for (damage, hits) in survey.damages.iter().zip(by_damage) {
        let name = survey.name(damage.segment);
        if !hits.is_empty() || !damage.explained {
            let rest = if damage.explained { "" } else { "; what else stood there is not known" };
            let what = format!("{}{rest}", damage.what);
            dropped.push(Finding { hits, ..finding(name, damage.from, damage.to, &what) });
        }
    }
    dropped
}
