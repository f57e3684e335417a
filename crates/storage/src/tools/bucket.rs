//! Examines the objects of logs in a bucket, without a data directory: their contents, and whether they are as they were
//! put. Nothing is written.
//!
//! [`inspect`] reads headers and footers. [`verify`] reads every byte. Damage becomes a finding; a store that cannot be
//! asked is an error.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use disk::File;
use model::{Offset, StreamId};
use objects::{BucketError, list_all, patiently};

use super::contents::Contents;
use super::examine::StreamSummary;
use super::finding::{Checked, Finding, Hit, Severity};
use super::gather::{Asking, Numbered, Outcome, gather, objects_of};
use super::holdings::{Held, Holdings, KnownBounds};
use super::walk::{Step, checked_batch, walk};
use crate::epochs::Epochs;
use crate::format::{DirectoryRow, EntryKind, RangeBody, SECTOR, STORED, SegmentHeader, index};
use crate::index::BatchIndex;
use crate::ranges::OffsetRanges;
use crate::segment::Segment;
use crate::segment::fetch::{Described, Expected, describe};
use crate::segment::object::ObjectKeys;

/// The keys of the objects of all logs begin so.
const LOGS: &str = "logs/";
/// Bytes that one request reads.
const READ_BYTES: u64 = 8 * 1024 * 1024;

/// The objects of one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogObjects {
    /// Their number.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The logs that have objects in the bucket, by id.
pub fn logs(asking: &Asking) -> Result<BTreeMap<u128, LogObjects>, BucketError> {
    let mut logs: BTreeMap<u128, LogObjects> = BTreeMap::new();
    for object in list_all(&**asking.bucket, LOGS, "", asking.pause)? {
        let id = object.key.strip_prefix(LOGS).and_then(|rest| rest.split_once('/'));
        let Some(id) = id.and_then(|(id, _)| u128::from_str_radix(id, 16).ok()) else { continue };
        let log = logs.entry(id).or_default();
        log.objects += 1;
        log.bytes += object.bytes;
    }
    Ok(logs)
}

/// One object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectSummary {
    /// Its number.
    pub number: u32,
    /// Bytes of the object.
    pub bytes: u64,
    /// Its ranges.
    pub ranges: u64,
    /// Its batches.
    pub batches: u64,
    /// Bytes of these batches.
    pub batch_bytes: u64,
    /// Bytes of the batches in ranges that are still needed: not below the start of their stream, not of a deleted
    /// stream, not replaced by a newer object.
    pub live_bytes: u64,
}

/// The result of [`inspect`].
#[derive(Debug, Default)]
pub struct InspectedObjects {
    /// The objects, by number.
    pub objects: Vec<ObjectSummary>,
    /// The streams, by id.
    pub streams: Vec<StreamSummary>,
    /// Damaged objects, and what is missing.
    pub findings: Vec<Finding>,
}

/// The result of [`verify`].
#[derive(Debug, Default)]
pub struct VerifiedObjects {
    /// In the order of the objects. The last findings are about the log as a whole.
    pub findings: Vec<Finding>,
    /// How much was checked. A segment is an object.
    pub checked: Checked,
}

/// What is known of a stream. `None` if it was deleted.
pub type Known<'a> = dyn Fn(StreamId) -> Option<KnownBounds> + 'a;

/// A range of a stream in an object.
struct Range {
    stream: StreamId,
    base: Offset,
    end: Offset,
    bytes: u64,
}

/// The keys of a log without epochs.
fn keys(log_id: u128) -> ObjectKeys {
    ObjectKeys::new(log_id, Epochs::default())
}

/// Describes the objects of a log by their headers and footers.
pub fn inspect(asking: &Asking, log_id: u128, known: &Known) -> Result<InspectedObjects, BucketError> {
    let mut objects = objects_of(asking, &keys(log_id), "")?;
    let mut inspected = InspectedObjects::default();
    let mut holdings = Holdings::new(objects.iter().map(|(sequence, _)| *sequence));
    let mut ranges: BTreeMap<u32, Vec<Range>> = BTreeMap::new();
    let mut summaries: BTreeMap<u32, ObjectSummary> = BTreeMap::new();
    let mut from = 0;
    while from < objects.len() {
        let (part, mut gone) = (&objects[from..], false);
        gather(asking, log_id, part, &|_| None, |at, outcome| {
            let (sequence, object) = &part[at];
            let mut summary =
                ObjectSummary { number: sequence & !STORED, bytes: object.bytes, ..ObjectSummary::default() };
            match outcome {
                Outcome::Whole(described, _) => {
                    summary.ranges = described.rows.len() as u64;
                    summary.batches = described.rows.iter().map(|row| u64::from(row.batches)).sum();
                    summary.batch_bytes = described.rows.iter().map(|row| row.bytes).sum();
                    ranges.insert(*sequence, described.rows.iter().map(Range::of).collect());
                    holdings.add(*sequence, described);
                }
                Outcome::Damaged(what) => {
                    inspected.findings.push(Finding::new(
                        Severity::Error,
                        &object.key,
                        0,
                        object.bytes,
                        what,
                    ));
                }
                Outcome::Gone => {
                    gone = true;
                    return Ok(());
                }
                Outcome::Failed(error) => return Err(error),
            }
            summaries.insert(*sequence, summary);
            Ok(())
        })?;
        from = objects.len();
        if gone {
            add_later(asking, log_id, &mut objects, &mut holdings)?;
        }
    }
    let _ = holdings.settle();
    for (sequence, bytes) in live(&ranges, &holdings, known) {
        if let Some(summary) = summaries.get_mut(&sequence) {
            summary.live_bytes = bytes;
        }
    }
    inspected.findings.sort_by(|a, b| a.file.cmp(&b.file));
    inspected.findings.extend(wholeness(&objects, &holdings, known));
    inspected.objects = summaries.into_values().collect();
    inspected.streams = streams_of(&holdings, known);
    Ok(inspected)
}

/// Adds the objects that were put since the list was made. They have the records of those that were deleted since.
fn add_later(
    asking: &Asking,
    log_id: u128,
    objects: &mut Vec<Numbered>,
    holdings: &mut Holdings,
) -> Result<(), BucketError> {
    let last = objects.last().map(|(_, object)| object.key.clone()).unwrap_or_default();
    let later = objects_of(asking, &keys(log_id), &last)?;
    holdings.extend(later.iter().map(|(sequence, _)| *sequence));
    objects.extend(later);
    Ok(())
}

impl Range {
    fn of(row: &DirectoryRow) -> Range {
        Range { stream: row.stream, base: row.base_offset, end: row.next_offset, bytes: row.bytes }
    }
}

/// The bytes of each object that are needed. A range counts whole if any offset of it is needed.
fn live(ranges: &BTreeMap<u32, Vec<Range>>, holdings: &Holdings, known: &Known) -> Vec<(u32, u64)> {
    let mut taken: HashMap<StreamId, OffsetRanges> = HashMap::new();
    let mut live = Vec::new();
    // Newer objects replace older ones.
    for (sequence, ranges) in ranges.iter().rev() {
        let mut bytes = 0;
        for range in ranges {
            let Some(bounds) = known(range.stream) else { continue };
            let start = holdings.streams.get(&range.stream).map_or(Offset::ZERO, Held::start);
            let from = range.base.max(start).max(bounds.start);
            let taken = taken.entry(range.stream).or_default();
            if from < range.end && !taken.gaps((from, range.end)).is_empty() {
                bytes += range.bytes;
            }
            taken.add((range.base, range.end));
        }
        live.push((*sequence, bytes));
    }
    live
}

fn streams_of(holdings: &Holdings, known: &Known) -> Vec<StreamSummary> {
    let mut streams = Vec::new();
    for (id, held) in &holdings.streams {
        let Some(bounds) = known(*id) else { continue };
        // What is not stored is no matter of the bucket.
        let stored = KnownBounds { next: bounds.start, stored: None, ..bounds };
        let found = held.resolve(Some(stored), |_, _| {});
        streams.push(StreamSummary {
            stream: *id,
            start: found.start,
            next: found.next,
            bytes: found.bytes,
            extents: found.extents,
            compacted: Offset::ZERO,
            producers: found.producers as u64,
        });
    }
    streams.sort_unstable_by_key(|summary| summary.stream);
    streams
}

/// What is missing: records between others, and numbers.
fn wholeness(objects: &[Numbered], holdings: &Holdings, known: &Known) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut expected = objects.first().map_or(0, |(sequence, _)| *sequence);
    for (sequence, object) in objects {
        if *sequence > expected {
            let (from, to) = (expected & !STORED, (sequence - 1) & !STORED);
            let what = match from == to {
                true => format!("there is no object {from}: no record needed it, or it is lost"),
                false => {
                    format!("there are no objects {from} to {to}: no record needed them, or they are lost")
                }
            };
            findings.push(Finding::new(Severity::Note, &object.key, 0, 0, what));
        }
        expected = sequence + 1;
    }
    let mut hits = Vec::new();
    for (id, held) in &holdings.streams {
        let Some(bounds) = known(*id) else { continue };
        held.resolve(Some(bounds), |from, to| hits.push(Hit { stream: *id, from, to, batches: None }));
    }
    hits.sort_unstable_by_key(|hit| (hit.stream, hit.from));
    if !hits.is_empty() {
        let what = "no object has these records, though others of their streams are stored";
        findings.push(Finding { hits, ..Finding::new(Severity::Error, "", 0, 0, what) });
    }
    findings
}

/// Checks every byte of the objects of a log.
pub fn verify(asking: &Asking, log_id: u128, known: &Known) -> Result<VerifiedObjects, BucketError> {
    let mut objects = objects_of(asking, &keys(log_id), "")?;
    let mut verified = VerifiedObjects::default();
    let mut holdings = Holdings::new(objects.iter().map(|(sequence, _)| *sequence));
    let mut from = 0;
    while from < objects.len() {
        let mut gone = false;
        for (done, (sequence, object)) in (1..).zip(&objects).skip(from) {
            let expected = Expected { log_id, sequence: *sequence, length: object.bytes };
            match read(asking, &object.key, object.bytes) {
                Ok(bytes) => {
                    let described = verify_object(expected, &object.key, &bytes, &mut verified);
                    described.into_iter().for_each(|described| holdings.add(*sequence, described));
                }
                Err(BucketError::NotFound(_)) => {
                    let what = "it was deleted meanwhile";
                    verified.findings.push(Finding::new(Severity::Note, &object.key, 0, 0, what));
                    gone = true;
                }
                Err(error) => return Err(error),
            }
            (asking.progress)(done, objects.len());
        }
        from = objects.len();
        if gone {
            add_later(asking, log_id, &mut objects, &mut holdings)?;
        }
    }
    holdings.settle();
    verified.findings.extend(wholeness(&objects, &holdings, known));
    Ok(verified)
}

/// The whole object.
fn read(asking: &Asking, key: &str, length: u64) -> Result<Bytes, BucketError> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    while (bytes.len() as u64) < length {
        let from = bytes.len() as u64;
        let until = (from + READ_BYTES).min(length);
        let part = patiently(|| asking.bucket.get(key, from..until), asking.pause)?;
        if part.is_empty() {
            break;
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.into())
}

/// Checks one object. Returns what it says of itself, if that is whole.
fn verify_object(
    expected: Expected,
    key: &str,
    bytes: &Bytes,
    verified: &mut VerifiedObjects,
) -> Option<Described> {
    let error = |from: u64, to: u64, what: String| Finding::new(Severity::Error, key, from, to, what);
    verified.checked.segments += 1;
    if (bytes.len() as u64) < expected.length || bytes.len() < 3 * SECTOR {
        let what = format!("{} of its {} bytes are there", bytes.len(), expected.length);
        verified.findings.push(error(0, expected.length, what));
        return None;
    }
    let header = match SegmentHeader::decode(bytes) {
        Ok(header) => header,
        Err(problem) => {
            verified.findings.push(error(0, SECTOR as u64, problem.to_string()));
            return None;
        }
    };
    let described = local_of(&header, bytes).and_then(|local| describe(expected, &local));
    let stop = described.as_ref().ok().map(|described| described.trailer.footer_position);
    if let Err(what) = &described {
        verified.findings.push(error(0, expected.length, what.clone()));
    }
    let segment = Segment::new(expected.sequence, header.generation, Arc::new(Memory(bytes.clone())));
    let stop = stop.unwrap_or(segment.data_end());
    // Without a footer, nothing says how far the blocks go.
    let vouched = if described.is_ok() { stop } else { 0 };
    let mut contents = Contents::default();
    let mut damages: Vec<(u32, u32, &'static str)> = Vec::new();
    let checked = &mut verified.checked;
    walk(&segment, 0, vouched, stop, &mut |step| match step {
        Step::Block(block) => {
            checked.blocks += 1;
            checked.bytes += block.total_bytes() as u64;
        }
        Step::Damage { from, to, what, .. } => damages.push((from, to, what)),
        Step::Footer { .. } => {}
        Step::Entry(found) => {
            checked.entries += 1;
            let (stream, base) = (found.entry.stream, found.entry.base_offset);
            let end = found.position + crate::format::length32(found.body.len());
            match found.entry.kind {
                EntryKind::Batch => match checked_batch(&found) {
                    Ok((place, _)) => {
                        checked.batches += 1;
                        if !contents.push(stream, place, true) {
                            damages.push((found.position, end, "an offset goes back"));
                        }
                    }
                    Err(what) => damages.push((found.position, end, what)),
                },
                EntryKind::Range => match RangeBody::decode(found.body) {
                    Some(body) => {
                        contents.extents.push((stream, base, body.end, body.flags, BatchIndex::default()));
                    }
                    None => damages.push((found.position, end, "a range contradicts itself")),
                },
                EntryKind::Trim | EntryKind::Delete => {
                    damages.push((found.position, end, "an entry that does not belong here"));
                }
            }
        }
    });
    let described = described.ok()?;
    let indexes: Vec<(&DirectoryRow, BatchIndex)> =
        described.rows.iter().filter_map(|row| Some((row, index_of(row, bytes)?))).collect();
    let whole = damages.is_empty();
    for (from, to, what) in damages {
        let finding = error(u64::from(from), u64::from(to), what.to_owned());
        verified.findings.push(Finding { hits: hits_of(&indexes, from, to), ..finding });
    }
    // Compares the directory with the data.
    let found: HashMap<(StreamId, Offset), _> = contents
        .extents
        .into_iter()
        .map(|(stream, base, end, flags, places)| ((stream, base), (end, flags, places)))
        .collect();
    let same = |(row, index): &(&DirectoryRow, BatchIndex)| {
        let there = found.get(&(row.stream, row.base_offset));
        there.is_some_and(|(end, flags, places)| {
            (*end, *flags) == (row.next_offset, row.flags) && places == index
        })
    };
    if whole && (found.len() != indexes.len() || !indexes.iter().all(same)) {
        verified.findings.push(error(0, expected.length, "its directory contradicts its records".into()));
    }
    Some(described)
}

/// Header, footer and trailer of an object: the bytes of its local file.
fn local_of(header: &SegmentHeader, bytes: &Bytes) -> Result<Vec<u8>, String> {
    let trailer =
        crate::format::Trailer::decode(&bytes[bytes.len() - SECTOR..], header.generation, bytes.len() as u64);
    let trailer = trailer.ok_or("its trailer is damaged")?;
    let footer = bytes.get(index(trailer.footer_position)..).filter(|footer| footer.len() >= 2 * SECTOR);
    Ok([&bytes[..SECTOR], footer.ok_or("its trailer contradicts itself")?].concat())
}

fn index_of(row: &DirectoryRow, bytes: &Bytes) -> Option<BatchIndex> {
    let from = index(row.index_position);
    BatchIndex::decode(bytes.get(from..from + index(row.index_length))?)
}

/// The batches that stand in `from..to`.
fn hits_of(indexes: &[(&DirectoryRow, BatchIndex)], from: u32, to: u32) -> Vec<Hit> {
    let mut hits: Vec<Hit> = Vec::new();
    for (row, index) in indexes {
        for place in index.from_offset(Offset::ZERO) {
            let end = place.position.saturating_add(place.length);
            if place.position >= to || end < from {
                continue;
            }
            match hits.last_mut().filter(|last| last.stream == row.stream && last.to == place.base_offset) {
                Some(last) => {
                    last.to = place.next_offset();
                    last.batches = last.batches.map(|batches| batches + 1);
                }
                None => hits.push(Hit {
                    stream: row.stream,
                    from: place.base_offset,
                    to: place.next_offset(),
                    batches: Some(1),
                }),
            }
        }
    }
    hits
}

/// An object in memory, as a file.
#[derive(Debug)]
struct Memory(Bytes);

impl File for Memory {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(position).unwrap_or(usize::MAX);
        let bytes = self.0.get(from..from.saturating_add(into.len()));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_allocated(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
