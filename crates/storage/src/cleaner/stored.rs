//! Replaces ranges in the object store: compaction of diskless streams, and merging of objects that are small or mostly
//! dead. What stays is gathered in memory and handed to the uploader, which puts it as one object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use model::{Offset, StreamId};

use super::compact::{CompactError, Compaction};
use super::outcome::{RewriteError, RewriteReport};
use super::rewrite::{Rewriter, chunks, decide, empty};
use super::source::{Source, load};
use crate::format::{DirectoryRow, ROW_COMPACTED, index};
use crate::pacer::Pacer;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::stream::{SealedExtent, Stream};
use crate::tier::{ReplaceRight, Replaced, Replacement};

/// How long compaction waits for the object store to take what it left.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a wait looks whether the log is closed.
const CLOSED_CHECK: Duration = Duration::from_millis(100);
/// So many small objects are merged, even if they are not enough for a large one.
const SMALL_MAX: usize = 16;
/// Objects with fewer live bytes than this share of the largest are small. Objects of the default size, half of the largest,
/// are not: they would all be put twice under load.
const SMALL_SHARE: f64 = 0.375;
/// Objects of which at most this share is live are worth a copy by themselves.
const LIVE_MAX: f64 = 0.5;

/// The outcome of a look for objects to merge.
#[derive(Debug)]
pub(crate) enum Merged {
    Nothing,
    /// The uploader has what is left of the objects, and tells when it is stored.
    Queued(Receiver<()>),
}

/// What goes into the next object that replaces others.
struct Gathered {
    right: ReplaceRight,
    ranges: Vec<Replaced>,
    bytes: usize,
}

impl Gathered {
    fn new(right: ReplaceRight) -> Gathered {
        Gathered { right, ranges: Vec::new(), bytes: 0 }
    }
}

impl Shared {
    /// See [`crate::Log::compact_stored`]. Calls `wait` for what it has handed to the uploader.
    pub fn compact_stored<'a>(
        self: &Arc<Shared>,
        jobs: &mut dyn Iterator<Item = Compaction<'a>>,
        pacer: &mut Pacer,
        wait: &mut dyn FnMut(&Receiver<()>) -> Result<(), RewriteError>,
    ) -> Result<RewriteReport, CompactError> {
        let mut report = RewriteReport::default();
        let mut gathered = None;
        let mut last = StreamId(0);
        for mut job in jobs {
            last = job.stream.id();
            let failed = |error| CompactError { stream: last, error };
            let mut from = Offset::ZERO;
            loop {
                let mut into = match gathered.take() {
                    Some(gathered) => gathered,
                    None => Gathered::new(self.await_right().map_err(failed)?),
                };
                let extents = self.next_stored(&job.stream, from, job.until);
                let Some((_, end)) = extents.last().copied() else {
                    gathered = Some(into);
                    break;
                };
                let rewriter = Some(&mut *job.rewriter);
                // The local copy of other streams is compacted by itself.
                let flags = if job.stream.level().waits() { ROW_COMPACTED } else { 0 };
                let extents: Vec<_> = extents.into_iter().map(|(extent, end)| (extent, end, flags)).collect();
                self.gather(&job.stream, &extents, rewriter, pacer, &mut report, &mut into)
                    .map_err(failed)?;
                from = end;
                if into.bytes >= self.options.object_bytes {
                    self.flush(into, &mut report, wait).map_err(failed)?;
                } else {
                    gathered = Some(into);
                }
            }
        }
        if let Some(gathered) = gathered {
            self.flush(gathered, &mut report, wait).map_err(|error| CompactError { stream: last, error })?;
        }
        Ok(report)
    }

    /// Waits for the right to replace ranges.
    fn await_right(&self) -> Result<ReplaceRight, RewriteError> {
        let begun = Instant::now();
        loop {
            match self.tier.begin_replacing() {
                Some(right) => return Ok(right),
                None if self.cleaner_stops() => return Err(RewriteError::Stopped),
                None if begun.elapsed() >= PATIENCE => return Err(RewriteError::StoreAway),
                None => std::thread::sleep(CLOSED_CHECK),
            }
        }
    }

    /// The stored extents from `from` on that end at or below `until`, as many as an object holds, and at least one.
    fn next_stored(&self, stream: &Stream, from: Offset, until: Offset) -> Vec<(SealedExtent, Offset)> {
        let mut extents = stream.lock().stored_between(from, until);
        let mut bytes = 0;
        let fits = |(extent, _): &&(SealedExtent, Offset)| {
            bytes += index(extent.bytes);
            bytes <= self.options.object_bytes
        };
        let count = extents.iter().take_while(fits).count().max(1);
        extents.truncate(count);
        extents
    }

    /// Adds what `rewriter` leaves of consecutive stored extents of a stream, which become one range. Each extent comes
    /// with its end and the flags of its row, which are the same for all.
    fn gather(
        self: &Arc<Shared>,
        stream: &Arc<Stream>,
        extents: &[(SealedExtent, Offset, u32)],
        mut rewriter: Option<&mut (dyn Rewriter + '_)>,
        pacer: &mut Pacer,
        report: &mut RewriteReport,
        into: &mut Gathered,
    ) -> Result<(), RewriteError> {
        let (Some((first, ..)), Some((_, end, flags))) = (extents.first(), extents.last()) else {
            return Ok(());
        };
        let old = extents.iter().map(|(extent, ..)| (extent.segment, extent.row)).collect();
        let mut sources = Vec::new();
        for (extent, end, _) in extents {
            sources.extend(self.stored_sources(stream, *extent, *end)?);
        }
        let (mut batches, mut last_header, mut bytes) = (Vec::new(), None, 0);
        for chunk in chunks(&sources) {
            for batch in load(self, pacer, stream, &chunk)? {
                report.read_bytes += batch.len() as u64;
                let (header, kept) = decide(&batch, rewriter.as_deref_mut())?;
                last_header = Some(header);
                if let Some((_, batch)) = kept {
                    bytes += batch.len();
                    batches.push(batch);
                }
            }
        }
        if batches.is_empty()
            && let Some(last) = last_header
        {
            batches.push(empty(&last)?.1);
        }
        if batches.is_empty() {
            // The stream was trimmed or deleted meanwhile.
            return Ok(());
        }
        report.written_bytes += bytes as u64;
        into.bytes += bytes;
        let (base_offset, end, flags) = (first.base_offset, *end, flags & ROW_COMPACTED);
        into.ranges.push(Replaced { stream: stream.clone(), base_offset, end, flags, old, batches });
        Ok(())
    }

    /// The batches of a stored extent: from the local disk if they are there, else from the object.
    fn stored_sources(
        &self,
        stream: &Arc<Stream>,
        extent: SealedExtent,
        end: Offset,
    ) -> Result<Vec<Source>, RewriteError> {
        let is_local = {
            let state = stream.lock();
            state.local_from() <= extent.base_offset && state.start <= extent.base_offset
        };
        if is_local {
            let sources = self.sources_between(stream, extent.base_offset, end)?;
            // The local copies may have been dropped meanwhile.
            if stream.lock().local_from() <= extent.base_offset {
                return Ok(sources);
            }
        }
        let gone = || RewriteError::Rewriter("an object was replaced meanwhile".into());
        let segment = self.segments.find(extent.segment).ok_or_else(gone)?;
        let places = self.places(&segment, extent.row, extent.base_offset, end)?;
        let (base_offset, bytes) = (extent.base_offset, extent.bytes);
        Ok(vec![Source { base_offset, end, segment, bytes, places, whole: Some(extent.row), flags: 0 }])
    }

    /// Puts what is gathered, and waits until it is stored.
    fn flush(
        &self,
        gathered: Gathered,
        report: &mut RewriteReport,
        wait: &mut dyn FnMut(&Receiver<()>) -> Result<(), RewriteError>,
    ) -> Result<(), RewriteError> {
        let Some(outcome) = self.hand_over(gathered) else { return Ok(()) };
        wait(&outcome)?;
        report.segments += 1;
        Ok(())
    }

    /// Hands what is gathered to the uploader. `None` if it is nothing.
    fn hand_over(&self, Gathered { right, ranges, .. }: Gathered) -> Option<Receiver<()>> {
        if ranges.is_empty() {
            return None;
        }
        let (done, outcome) = channel();
        self.tier.replace(Replacement { ranges, right, done });
        Some(outcome)
    }

    /// Waits until the uploader has stored what was handed to it.
    pub fn await_replaced(&self, outcome: &Receiver<()>) -> Result<(), RewriteError> {
        let begun = Instant::now();
        loop {
            match outcome.recv_timeout(CLOSED_CHECK) {
                Ok(()) => return Ok(()),
                // The uploader gave it up: the number of the object was taken.
                Err(RecvTimeoutError::Disconnected) => return Err(RewriteError::Stopped),
                Err(RecvTimeoutError::Timeout) if self.cleaner_stops() => return Err(RewriteError::Stopped),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() >= PATIENCE => {
                    return Err(RewriteError::StoreAway);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Hands what is live in small or mostly dead objects to the uploader, if that is worth an object.
    pub fn merge_objects(self: &Arc<Shared>, pacer: &mut Pacer) -> Result<Merged, RewriteError> {
        let Some(right) = self.tier.begin_replacing() else { return Ok(Merged::Nothing) };
        let chosen = choose(&self.segments.live_stored(), self.options.merged_bytes as u64);
        if chosen.is_empty() {
            return Ok(Merged::Nothing);
        }
        let mut extents: BTreeMap<StreamId, Vec<(SealedExtent, Offset, u32)>> = BTreeMap::new();
        for segment in &chosen {
            for (row, at) in self.directory(segment)?.into_iter().zip(0u32..) {
                let Some(stream) = self.find_stream(row.stream) else { continue };
                let stored = stream.lock().stored_between(Offset::ZERO, row.next_offset);
                let here =
                    stored.into_iter().filter(|(of, _)| (of.segment, of.row) == (segment.sequence, at));
                extents.entry(row.stream).or_default().extend(here.map(|(of, end)| (of, end, row.flags)));
            }
        }
        let mut report = RewriteReport::default();
        let mut gathered = Gathered::new(right);
        for (id, mut of_stream) in extents {
            let Some(stream) = self.find_stream(id) else { continue };
            of_stream.sort_unstable_by_key(|(extent, ..)| extent.base_offset);
            let same = |a: u32, b: u32| (a ^ b) & ROW_COMPACTED == 0;
            for run in of_stream.chunk_by(|a, b| a.1 == b.0.base_offset && same(a.2, b.2)) {
                self.gather(&stream, run, None, pacer, &mut report, &mut gathered)?;
            }
        }
        Ok(self.hand_over(gathered).map_or(Merged::Nothing, Merged::Queued))
    }

    fn directory(&self, segment: &Segment) -> Result<Vec<DirectoryRow>, RewriteError> {
        let damaged = || RewriteError::Rewriter(format!("the directory of {} is damaged", segment.name()));
        segment.load_directory()?.ok_or_else(damaged)
    }
}

/// The objects to merge next: the oldest that are small or mostly dead, with at most `bytes_max` live bytes together. They
/// are worth it if they fill half of that, or are many, or if one of them is mostly dead. `all` are in the order of their
/// numbers. There may be others between the chosen ones: under load, each large object has small ones around it.
fn choose(all: &[Arc<Segment>], bytes_max: u64) -> Vec<Arc<Segment>> {
    let half_dead = |segment: &Segment| segment.live_bytes() as f64 <= LIVE_MAX * f64::from(segment.length);
    let small = |segment: &Segment| (segment.live_bytes() as f64) < SMALL_SHARE * bytes_max as f64;
    let worth = |segment: &Arc<Segment>| small(segment) || half_dead(segment);
    let mut live = 0;
    let fits = |segment: &&Arc<Segment>| {
        live += segment.live_bytes();
        live <= bytes_max
    };
    let group: Vec<Arc<Segment>> =
        all.iter().filter(|segment| worth(segment)).take_while(fits).cloned().collect();
    let live: u64 = group.iter().map(|segment| segment.live_bytes()).sum();
    let dead: u64 = group.iter().map(|segment| u64::from(segment.length) - segment.live_bytes()).sum();
    // Header, footer and padding of an object count as dead.
    let frees = dead > live && group.iter().any(|segment| half_dead(segment)) && dead > bytes_max / 16;
    let worth_it = group.len() > 1 && (live >= bytes_max / 2 || group.len() >= SMALL_MAX) || frees;
    if worth_it { group } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use disk::{Disk, SimDisk};

    use super::*;

    fn object(disk: &SimDisk, number: u32, length: u64, live: u64) -> Arc<Segment> {
        let file = disk.create(&format!("{number}"), length).unwrap();
        let segment = Segment::new(number, 1, file);
        segment.set_live(1, live);
        Arc::new(segment)
    }

    fn numbers(chosen: &[Arc<Segment>]) -> Vec<u32> {
        chosen.iter().map(|segment| segment.sequence).collect()
    }

    #[test]
    fn small_objects_are_merged_once_they_fill_half_of_one_or_are_many() {
        let disk = SimDisk::new(1);
        let k = 4096;
        let objects: Vec<_> = (1..=20).map(|n| object(&disk, n, 2 * k, 2 * k - 100)).collect();
        assert_eq!(numbers(&choose(&objects[..5], 20 * k)), [0u32; 0]);
        assert_eq!(numbers(&choose(&objects[..6], 20 * k)), [1, 2, 3, 4, 5, 6]);
        assert_eq!(numbers(&choose(&objects, 20 * k)), (1..=10).collect::<Vec<u32>>());
        assert_eq!(numbers(&choose(&objects[..15], 200 * k)), [0u32; 0]);
        assert_eq!(choose(&objects[..16], 200 * k).len(), 16);
        let of_default_size: Vec<_> = (21..=40).map(|n| object(&disk, n, 10 * k, 9 * k)).collect();
        assert_eq!(numbers(&choose(&of_default_size, 20 * k)), [0u32; 0]);
        let mixed: Vec<_> =
            objects.iter().zip(&of_default_size).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
        assert_eq!(numbers(&choose(&mixed, 20 * k)), (1..=10).collect::<Vec<u32>>());
    }

    #[test]
    fn an_object_that_is_mostly_dead_is_copied_alone() {
        let disk = SimDisk::new(2);
        let k = 4096;
        let full = object(&disk, 1, 20 * k, 20 * k - 100);
        let dead = object(&disk, 2, 20 * k, 2 * k);
        assert_eq!(numbers(&choose(&[full.clone(), dead.clone(), full.clone()], 20 * k)), [2]);
        assert_eq!(numbers(&choose(&[full], 20 * k)), [0u32; 0]);
    }
}
