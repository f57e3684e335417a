//! Examines a log without opening it: its contents, and whether they are as they were written.
//!
//! This module writes nothing and does not stop at damage. [`inspect`] is quick: it tries on paper what opening would
//! do. [`verify`] reads every byte. [`entries`] hands out the contents of the files, entry by entry.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use disk::Disk;
use model::{BatchHeader, Offset, StreamId};

pub use super::finding::{Checked, Finding, Hit, Severity};
use super::remains::LogFiles;
use super::resolve::{Lost, resolve};
pub use super::survey::Progress;
use super::survey::{Known, Survey};
use super::unwritten::Unwritten;
use super::walk::{Step, checked_batch, walk};
use crate::format::{CLEANED, EntryHeader, EntryKind, Lsn, ROW_COMPACTED, SegmentHeader};
use crate::ranges::OffsetRanges;
use crate::recovery::{OpenError, Recovered, RecoveryReport, recover};
use crate::segment::{Segment, file_name, is_cleaned, sequence_of};
use crate::stream::Stream;

/// The result of [`verify`].
#[derive(Debug)]
pub struct Verified {
    /// In the order of the files. The last findings are about the log as a whole.
    pub findings: Vec<Finding>,
    /// How much was checked.
    pub checked: Checked,
    /// The end of the log.
    pub end: Lsn,
    /// The outcome that opening would have.
    pub opening: Result<RecoveryReport, OpenError>,
}

/// Checks everything in a log, and says to `progress` how far it is. Fails only if the directory cannot be listed.
pub fn verify(disk: &dyn Disk, progress: &Progress) -> io::Result<Verified> {
    let mut survey = Survey::of(disk, progress)?;
    let ids: Vec<StreamId> = survey.streams.keys().copied().collect();
    let lost: Vec<Lost> = ids.iter().flat_map(|id| resolve(&survey, *id).lost).collect();
    let mut findings = std::mem::take(&mut survey.findings);
    findings.extend(damages(&mut survey, &lost));
    let order = |finding: &Finding| sequence_of(&finding.file).unwrap_or(u32::MAX);
    findings.sort_by_key(|finding| (order(finding), finding.from));
    let opening = recover(&Unwritten::new(disk), None, 0).map(|recovered| recovered.report);
    match &opening {
        Err(error) => {
            let refused = opening_error(error);
            for finding in findings.iter_mut().filter(|finding| finding.file == refused.file) {
                if (finding.from..finding.to.max(finding.from + 1)).contains(&refused.from) {
                    finding.severity = Severity::Error;
                }
            }
            findings.push(refused);
        }
        Ok(report) if report.dropped_blocks > 0 => {
            let what = format!(
                "{} blocks ({} bytes) behind the end of the log were never acknowledged: opening drops them",
                report.dropped_blocks, report.dropped_bytes
            );
            let (file, at) = (file_name(report.end.sequence()), u64::from(report.end.byte()));
            findings.push(Finding::new(Severity::Note, &file, at, at, what));
        }
        Ok(_) => {}
    }
    Ok(Verified { findings, checked: survey.checked, end: survey.end, opening })
}

fn opening_error(error: &OpenError) -> Finding {
    let (file, at, hits) = match error {
        OpenError::Damaged { file, position, .. } => (file.clone(), *position, Vec::new()),
        OpenError::Missing { file } => (file.clone(), 0, Vec::new()),
        OpenError::Lost { stream, from, to } => {
            (String::new(), 0, vec![Hit { stream: *stream, from: *from, to: *to, batches: None }])
        }
        OpenError::NoBucket { .. } | OpenError::Full | OpenError::Unusable { .. } | OpenError::Io { .. } => {
            (String::new(), 0, Vec::new())
        }
    };
    Finding {
        hits,
        ..Finding::new(Severity::Error, &file, at, at, format!("opening refuses the log: {error}"))
    }
}

/// The damaged places with the records that they cost, and the records that are lost without a damaged place.
pub(crate) fn damages(survey: &mut Survey, lost: &[Lost]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for lost in lost {
        match lost.damage {
            Some(at) => {
                let hits = &mut survey.damages[at].hits;
                let known: OffsetRanges = hits
                    .iter()
                    .filter(|hit| hit.stream == lost.stream)
                    .map(|hit| (hit.from, hit.to))
                    .collect();
                for (from, to) in known.gaps((lost.from, lost.to)) {
                    hits.push(Hit { stream: lost.stream, from, to, batches: None });
                }
            }
            None => {
                let what = "no file has these records";
                let hit = Hit { stream: lost.stream, from: lost.from, to: lost.to, batches: lost.batches };
                let file = lost.missing.clone().unwrap_or_default();
                findings
                    .push(Finding { hits: vec![hit], ..Finding::new(Severity::Error, &file, 0, 0, what) });
            }
        }
    }
    for damage in &survey.damages {
        let needed = |hit: &&Hit| survey.streams.get(&hit.stream).is_some_and(|known| hit.to > known.start);
        let hits: Vec<Hit> = damage.hits.iter().filter(needed).copied().collect();
        let costs = !hits.is_empty() || !damage.explained;
        let severity = if costs { Severity::Error } else { Severity::Warning };
        let rest = match (hits.is_empty(), damage.explained) {
            (true, true) => "; nothing that is still needed stood there",
            (true, false) => "; what stood there is not known",
            (false, _) => "",
        };
        let what = format!("{}{rest}", damage.what);
        let (from, to) = (u64::from(damage.from), u64::from(damage.to));
        findings
            .push(Finding { hits, ..Finding::new(severity, survey.name(damage.segment), from, to, what) });
    }
    findings
}

/// One segment file.
#[derive(Clone, Debug)]
pub struct SegmentSummary {
    /// The name of the file.
    pub name: String,
    /// Its sequence number in the log, or among the cleaned segments.
    pub sequence: u32,
    /// Its present generation; 0 if its header cannot be read.
    pub generation: u64,
    /// The length of the file in bytes.
    pub length: u64,
    /// `active`, `sealed`, `prepared`, `cleaned`, `dead`, or, if the log cannot be opened, `unknown`.
    pub state: &'static str,
    /// Bytes of its blocks, footer included.
    pub data_bytes: u64,
    /// Bytes of live batches in it.
    pub live_bytes: u64,
    /// Streams with live batches in it.
    pub streams: u64,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct StreamSummary {
    /// Its id.
    pub stream: StreamId,
    /// The first record of the stream.
    pub start: Offset,
    /// The offset of the next record.
    pub next: Offset,
    /// Bytes of its batches.
    pub bytes: u64,
    /// Segments that have batches of it; each range counts.
    pub extents: u64,
    /// Records below are compacted.
    pub compacted: Offset,
    /// Remembered idempotent producers.
    pub producers: u64,
}

/// The result of [`inspect`].
#[derive(Debug)]
pub struct Inspected {
    /// The log id, the same in all segments.
    pub log_id: Option<u128>,
    /// The segments, by name.
    pub segments: Vec<SegmentSummary>,
    /// The streams, by id.
    pub streams: Vec<StreamSummary>,
    /// The outcome that opening would have.
    pub opening: Result<RecoveryReport, OpenError>,
}

/// Describes the log as opening would find it. If opening would refuse it, describes what can be seen without opening.
/// Reads little if the log is in order.
pub fn inspect(disk: &dyn Disk) -> io::Result<Inspected> {
    let mut segments = Vec::new();
    let mut log_id = None;
    for name in disk.list()? {
        let Some(sequence) = sequence_of(&name) else { continue };
        let file = disk.open(&name)?;
        let mut sector = disk::AlignedBuffer::zeroed(disk::SECTOR);
        let header = file.read_at(0, &mut sector).ok().and_then(|()| SegmentHeader::decode(&sector).ok());
        log_id = log_id.or(header.map(|header| header.log_id));
        segments.push(SegmentSummary {
            name,
            sequence: sequence & !CLEANED,
            generation: header.map_or(0, |header| header.generation),
            length: file.length(),
            state: if is_cleaned(sequence) { "cleaned" } else { "unknown" },
            data_bytes: 0,
            live_bytes: 0,
            streams: 0,
        });
    }
    segments.sort_by_key(|segment| sequence_of(&segment.name));
    let (streams, opening) = match recover(&Unwritten::new(disk), None, 0) {
        Ok(recovered) => {
            fill(&mut segments, &recovered);
            (streams_of(&recovered), Ok(recovered.report))
        }
        Err(error) => (surveyed(disk)?, Err(error)),
    };
    Ok(Inspected { log_id, segments, streams, opening })
}

fn fill(summaries: &mut [SegmentSummary], recovered: &Recovered) {
    let active = recovered.active.as_ref().map(|(segment, end)| (segment.sequence, *end));
    let all = recovered.segments.all();
    let dead: HashSet<u32> = recovered.segments.take_dead().iter().map(|segment| segment.sequence).collect();
    for summary in summaries {
        let Some(sequence) = sequence_of(&summary.name) else { continue };
        let Some(segment) = all.iter().find(|segment| segment.sequence == sequence) else {
            summary.state = "prepared";
            continue;
        };
        let begin = Segment::data_start();
        summary.data_bytes = u64::from(segment.footer().map_or(begin, |footer| footer.trailer.end) - begin);
        (summary.live_bytes, summary.streams) = (segment.live_bytes(), u64::from(segment.live()));
        summary.state = match active {
            Some((active, end)) if active == sequence => {
                summary.data_bytes = u64::from(end - begin);
                for stream in recovered.streams.values() {
                    if let Some(active) = &stream.lock().active {
                        summary.live_bytes += u64::from(active.index.bytes() - active.moved_bytes);
                        summary.streams += 1;
                    }
                }
                "active"
            }
            _ if dead.contains(&sequence) => "dead",
            _ if is_cleaned(sequence) => "cleaned",
            _ => "sealed",
        };
    }
}

fn streams_of(recovered: &Recovered) -> Vec<StreamSummary> {
    let summary = |(id, stream): (&StreamId, &Arc<Stream>)| {
        let state = stream.lock();
        StreamSummary {
            stream: *id,
            start: state.start,
            next: state.next,
            bytes: state.bytes,
            extents: (state.sealed.len() + usize::from(state.active.is_some())) as u64,
            compacted: state.compacted,
            producers: state.producers.len() as u64,
        }
    };
    let mut streams: Vec<StreamSummary> = recovered.streams.iter().map(summary).collect();
    streams.sort_unstable_by_key(|summary| summary.stream);
    streams
}

fn surveyed(disk: &dyn Disk) -> io::Result<Vec<StreamSummary>> {
    let survey = Survey::of(disk, &|_, _| {})?;
    let summary = |(id, known): (&StreamId, &Known)| {
        let parts = resolve(&survey, *id).parts;
        let extents = survey.extents.get(id).map_or(&[][..], Vec::as_slice);
        let compacted = |at: &usize| extents[*at].flags & ROW_COMPACTED != 0;
        StreamSummary {
            stream: *id,
            start: known.start,
            next: known.next,
            bytes: parts.iter().map(|part| part.bytes(extents)).sum(),
            extents: parts.len() as u64,
            compacted: parts.iter().filter(|p| compacted(&p.extent)).map(|p| p.to).max().unwrap_or_default(),
            producers: known.producers.len() as u64,
        }
    };
    Ok(survey.streams.iter().map(summary).collect())
}

/// An item in a segment file.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// An entry.
    Entry {
        /// The name of the file.
        file: &'a str,
        /// The position of its header.
        position: u32,
        /// Its header.
        header: EntryHeader,
        /// Its body: a batch, if the entry is of kind batch.
        body: &'a [u8],
        /// The header of the batch, or the failed check.
        batch: Result<Option<BatchHeader>, &'static str>,
    },
    /// Bytes that should be entries and are not.
    Damage {
        /// The name of the file.
        file: &'a str,
        /// The position of the first byte.
        from: u32,
        /// The position behind the last byte.
        to: u32,
        /// The failed check.
        what: &'static str,
    },
}

/// Hands out everything in the segments that `wanted` names, in the order of the files and up to the end of the log,
/// with superseded and deleted entries. `each` returns whether to go on.
pub fn entries(
    disk: &dyn Disk,
    wanted: impl Fn(&str) -> bool,
    mut each: impl FnMut(Item) -> bool,
) -> io::Result<Vec<Finding>> {
    let files = LogFiles::open(disk)?;
    let (mut epoch, mut more, mut ended) = (0, true, false);
    for (at, remains) in files.segments.iter().enumerate() {
        if remains.cleaned() {
            epoch = 0;
        } else if ended {
            continue;
        }
        let (file, segment) = (remains.name.as_str(), &remains.segment);
        let stop = remains.trailer.map_or(segment.data_end(), |trailer| trailer.footer_position);
        if !wanted(file) || !more {
            continue;
        }
        let walked = walk(segment, epoch, files.vouched_in(at), stop, &mut |step| match step {
            Step::Entry(found) if more => {
                let batch = match found.entry.kind {
                    EntryKind::Batch => checked_batch(&found).map(|(_, header)| Some(header)),
                    _ => Ok(None),
                };
                let (position, header, body) = (found.position, found.entry, found.body);
                more = each(Item::Entry { file, position, header, body, batch });
            }
            Step::Damage { from, to, what, .. } if more => more = each(Item::Damage { file, from, to, what }),
            _ => {}
        });
        if !remains.cleaned() {
            epoch = walked.epoch;
            let sealed = walked.footer || remains.trailer.is_some();
            ended = !sealed && Lsn::new(segment.sequence, walked.end) >= files.vouched;
        }
    }
    Ok(files.findings)
}
