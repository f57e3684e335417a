//! Compaction of streams: which extents of each are copied through its rewriter, and into how many segments.

use std::sync::Arc;

use model::{Offset, StreamId};

use super::outcome::{RewriteError, RewriteReport};
use super::rewrite::{Output, Rewriter};
use super::source::{RangePlan, Source, with_slack};
use crate::format::ROW_COMPACTED;
use crate::index::BatchPlace;
use crate::pacer::Pacer;
use crate::reader::ReadError;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::stream::{SealedExtent, Stream};

/// Compaction creates a segment of at least this size, to share it with the small streams that follow. The segment is
/// cut to its length at the end.
const SHARED_OUTPUT_BYTES: u64 = 64 * 1024 * 1024;

/// Compaction of a stream failed.
#[derive(Debug, thiserror::Error)]
#[error("stream {stream}: {error}")]
pub struct CompactError {
    /// The stream, or the first of several streams that shared a segment.
    pub stream: StreamId,
    /// The error.
    pub error: RewriteError,
}

/// One stream to compact.
pub struct Compaction<'a> {
    /// The stream.
    pub stream: Arc<Stream>,
    /// Batches that end above this offset stay unchanged.
    pub until: Offset,
    /// Decides which batches and records stay.
    pub rewriter: Box<dyn Rewriter + 'a>,
}

impl Shared {
    /// The extents of `stream` in `from..until`, in the order of offsets; of the last extent perhaps only the first
    /// batches.
    fn compaction_sources(
        &self,
        stream: &Stream,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<Source>, ReadError> {
        let (start, until, sealed, active) = {
            let state = stream.lock();
            if state.deleted {
                return Ok(Vec::new());
            }
            let ends = (0..state.sealed.len()).map(|at| state.sealed_end(at));
            let sealed: Vec<(SealedExtent, Offset)> = state.sealed.iter().copied().zip(ends).collect();
            let active = state.active.as_ref().map(|a| (a.segment, a.from, a.index.clone()));
            (state.start, until.min(state.committed), sealed, active)
        };
        let source = |segment: Arc<Segment>, base_offset, end, all: Vec<BatchPlace>, whole| Source {
            base_offset,
            end,
            segment,
            bytes: all.iter().map(|place| place.length).sum(),
            places: all.into_iter().filter(|place| place.next_offset() > start).collect(),
            whole,
            flags: ROW_COMPACTED,
        };
        let mut sources = Vec::new();
        for (extent, end) in sealed.into_iter().filter(|(extent, _)| extent.base_offset >= from) {
            if extent.base_offset >= until {
                return Ok(sources);
            }
            let Some(segment) = self.segments.find(extent.segment) else { continue };
            let mut all = self.places(&segment, extent.row, extent.base_offset, end)?;
            let below = all.iter().take_while(|place| place.next_offset() <= until).count();
            if below == all.len() {
                // The whole extent, even if an earlier compaction left no batch up to its end: its offsets must stay
                // covered.
                sources.push(source(segment, extent.base_offset, end, all, Some(extent.row)));
                continue;
            }
            all.truncate(below);
            if let Some(last) = all.last() {
                let end = last.next_offset();
                sources.push(source(segment, extent.base_offset, end, all, None));
            }
            return Ok(sources);
        }
        if let Some((sequence, moved_to, index)) = active
            && let Some(segment) = self.segments.find(sequence)
            && let Some(first) = index.base_offset()
        {
            let base_offset = first.max(moved_to);
            let all: Vec<BatchPlace> =
                index.from_offset(base_offset).take_while(|place| place.next_offset() <= until).collect();
            if let Some(last) = all.last().filter(|_| base_offset >= from) {
                let end = last.next_offset();
                sources.push(source(segment, base_offset, end, all, None));
            }
        }
        Ok(sources)
    }

    /// See [`crate::Log::compact`].
    pub fn compact<'a>(
        self: &Arc<Shared>,
        jobs: &mut dyn Iterator<Item = Compaction<'a>>,
        pacer: &mut Pacer,
    ) -> Result<RewriteReport, CompactError> {
        let mut report = RewriteReport::default();
        // The job that did not fit the last segment, and the offset up to which it is done.
        let mut begun: Option<(Compaction<'a>, Offset)> = None;
        let mut next = |begun: &mut Option<(Compaction<'a>, Offset)>| {
            while let Some((job, from)) = begun.take().or_else(|| Some((jobs.next()?, Offset::ZERO))) {
                let stream = job.stream.id();
                let sources = self.compaction_sources(&job.stream, from, job.until);
                let sources = sources.map_err(|error| CompactError { stream, error: error.into() })?;
                if !sources.is_empty() {
                    return Ok(Some((job, sources)));
                }
            }
            Ok(None)
        };
        let mut held = None;
        loop {
            let mut rewriting = held.take().unwrap_or_else(|| self.rewriting.lock());
            let Some((mut job, mut sources)) = next(&mut begun)? else { return Ok(report) };
            let first = job.stream.id();
            let failed = |error| CompactError { stream: first, error };
            let wanted = self.output_bytes(&sources).map_err(failed)?;
            let mut output = Output::create(self, &mut rewriting, pacer, wanted).map_err(failed)?;
            loop {
                let fitting = output.fitting(&sources);
                let rest = sources.split_off(fitting);
                let end = sources.last().map(|source| source.end);
                let plan = RangePlan { stream: job.stream.clone(), sources, flags: ROW_COMPACTED };
                let stream = job.stream.id();
                let copied = output.copy(&plan, Some(&mut *job.rewriter));
                copied.map_err(|error| CompactError { stream, error })?;
                if let Some(left) = rest.first() {
                    begun = Some((job, end.unwrap_or(left.base_offset)));
                    break;
                }
                match next(&mut begun)? {
                    // This very segment is about to replace the sources of that job.
                    Some((again, _)) if output.has(&again.stream) => {
                        begun = Some((again, Offset::ZERO));
                        break;
                    }
                    // A job that fits only in part begins the next segment.
                    Some((following, all)) if output.fitting(&all) < all.len() => {
                        begun = Some((following, Offset::ZERO));
                        break;
                    }
                    Some(following) => (job, sources) = following,
                    None => break,
                }
            }
            report.add(output.finish().map_err(failed)?);
            // The cleaner could merge the finished and the unfinished part of a stream into one extent, which
            // compaction would then skip. So the right to copy is kept until the job is done.
            let half_done = begun.as_ref().is_some_and(|(_, from)| *from > Offset::ZERO);
            held = half_done.then_some(rewriting);
        }
    }

    /// The size of a new segment for `sources` and the jobs that may follow; at least the first source fits.
    fn output_bytes(&self, sources: &[Source]) -> Result<u64, RewriteError> {
        let room = self.copy_room()?;
        let most = room.min(self.options.segment_bytes);
        let estimates = sources.iter().map(|source| with_slack(source.estimate()));
        let wanted = estimates.clone().sum::<u64>().max(SHARED_OUTPUT_BYTES).min(most);
        let first = estimates.take(1).sum();
        let bytes = wanted.max(first);
        if bytes > room { Err(RewriteError::Full { bytes }) } else { Ok(bytes) }
    }
}
