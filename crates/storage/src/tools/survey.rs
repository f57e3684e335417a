//! A survey: one pass over the rest of a log, from its first segment to its end. It finds the batches of each stream,
//! the damaged bytes, and every contradiction between footers, tables and data.
//!
//! The survey tracks the state of the streams as the writer did: from a stream table, then entry by entry. A valid
//! table has precedence over the entries, because some entries may be missing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use bytes::Bytes;
use disk::Disk;
use model::{Offset, StreamId};

use super::contents::{Contents, Ranges, collect_range};
use super::finding::{Checked, Finding, Hit, Severity};
use super::remains::{LogFiles, Remains};
use super::walk::{Step, checked_batch, walk};
use crate::format::{
    BLOCK_HEADER_BYTES, DIRECTORY_ROW_BYTES, DirectoryRow, ENTRY_HEADER_BYTES, EntryKind, Lsn, RangeBody,
    Trailer, index, length32, seeded_crc,
};
use crate::index::{BatchIndex, BatchPlace};
use crate::ranges::OffsetRanges;
use crate::recovery::scan::{Found, Scanner};
use crate::recovery::stored_ranges;
use crate::segment::footer::{self, TRAILER_COPY_BYTES, TableRow};
use crate::segment::{Segment, file_name};
use crate::stream::Producers;

/// Called with the bytes of the files that are read, and of all of them.
pub type Progress<'a> = dyn Fn(u64, u64) + 'a;

/// The state of a stream according to the log.
#[derive(Default)]
pub(crate) struct Known {
    pub start: Offset,
    pub next: Offset,
    pub producers: Producers,
}

/// Offsets of an extent that are not valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub from: Offset,
    pub to: Offset,
    /// Known if the batch index is.
    pub batches: Option<u64>,
    /// The damage that destroyed them.
    pub damage: Option<usize>,
}

/// The remaining batches of one stream in one segment, or of one range of a cleaned segment.
pub(crate) struct Extent {
    /// Number of its segment in [`LogFiles::segments`].
    pub segment: usize,
    /// The offsets of the extent.
    pub base: Offset,
    pub end: Offset,
    pub flags: u32,
    /// The valid batches.
    pub places: BatchIndex,
    pub holes: Vec<Hole>,
}

/// Bytes that were synced and are not valid.
pub(crate) struct Damage {
    pub segment: usize,
    pub from: u32,
    pub to: u32,
    pub what: &'static str,
    /// The batches in these bytes, as far as they are known.
    pub hits: Vec<Hit>,
    /// Whether the batch indexes account for everything in these bytes.
    pub explained: bool,
}

/// The rest of a log.
pub(crate) struct Survey {
    pub files: LogFiles,
    pub streams: BTreeMap<StreamId, Known>,
    pub extents: HashMap<StreamId, Vec<Extent>>,
    pub damages: Vec<Damage>,
    pub findings: Vec<Finding>,
    pub checked: Checked,
    /// The records that are in the object store, according to the local files of the objects.
    pub stored: HashMap<StreamId, OffsetRanges>,
    /// The end of the log.
    pub end: Lsn,
    /// Segments with a footer.
    pub ended: HashSet<usize>,
    /// Names of missing files.
    pub missing: Vec<String>,
    /// The newest segment with a readable stream table.
    base: u32,
    deleted: HashSet<StreamId>,
    /// The state before the current segment is the one from which its table was made.
    complete: bool,
}

impl Survey {
    /// Reads the whole log on `disk`.
    pub fn of(disk: &dyn Disk, progress: &Progress) -> io::Result<Survey> {
        let mut files = LogFiles::open(disk)?;
        let findings = std::mem::take(&mut files.findings);
        let mut survey = Survey {
            files,
            streams: BTreeMap::new(),
            extents: HashMap::new(),
            damages: Vec::new(),
            findings,
            checked: Checked::default(),
            stored: HashMap::new(),
            end: Lsn::default(),
            ended: HashSet::new(),
            missing: Vec::new(),
            base: 0,
            deleted: HashSet::new(),
            complete: false,
        };
        match stored_ranges(disk) {
            Ok(stored) => survey.stored = stored,
            Err(error) => survey.findings.push(Finding::new(Severity::Error, "", 0, 0, error.to_string())),
        }
        let written = survey.files.segments.partition_point(|remains| !remains.cleaned());
        let length = |remains: &Remains| u64::from(remains.segment.length);
        let all = survey.files.segments.iter().map(length).sum();
        let mut done = 0;
        let (mut epoch, mut expected) = (0, 1);
        for at in 0..written {
            let sequence = survey.files.segments[at].segment.sequence;
            survey.complete &= sequence == expected;
            // A log without an earlier table begins empty.
            survey.complete |= sequence == 1;
            expected = sequence + 1;
            let end = survey.segment(at, &mut epoch, &|in_segment| progress(done + in_segment, all));
            done += length(&survey.files.segments[at]);
            survey.end = Lsn::new(sequence, end);
            if !survey.ended.contains(&at) && survey.end >= survey.files.vouched {
                break;
            }
        }
        for at in written..survey.files.segments.len() {
            survey.segment(at, &mut 0, &|in_segment| progress(done + in_segment, all));
            done += length(&survey.files.segments[at]);
        }
        // Dead segments leave gaps, but not behind the segment whose table opening begins with.
        let there: Vec<u32> =
            survey.files.segments[..written].iter().map(|remains| remains.segment.sequence).collect();
        let last = there.last().copied().unwrap_or_default();
        let gone = (survey.base + 1..last).filter(|sequence| there.binary_search(sequence).is_err());
        survey.missing = gone.map(file_name).collect();
        Ok(survey)
    }

    pub fn name(&self, segment: usize) -> &str {
        &self.files.segments[segment].name
    }

    fn find(&mut self, severity: Severity, at: usize, from: u32, to: u32, what: impl Into<String>) {
        let finding = Finding::new(severity, self.name(at), u64::from(from), u64::from(to), what);
        self.findings.push(finding);
    }

    /// Surveys one segment. Returns the end of its data.
    fn segment(&mut self, at: usize, epoch: &mut u64, progress: &dyn Fn(u64)) -> u32 {
        let Remains { segment, trailer, .. } = &self.files.segments[at];
        let (segment, trailer, cleaned) = (segment.clone(), *trailer, self.files.segments[at].cleaned());
        let vouched = self.files.vouched_in(at);
        let stop = trailer.map_or(segment.data_end(), |trailer| trailer.footer_position);
        let mut contents = Contents::default();
        self.checked.segments += 1;
        let before = self.checked.bytes;
        let walked = walk(&segment, *epoch, vouched, stop, &mut |step| match step {
            Step::Block(header) => {
                self.checked.blocks += 1;
                self.checked.bytes += header.total_bytes() as u64;
                progress(self.checked.bytes - before);
            }
            Step::Damage { from, to, what, entries } => {
                contents.damaged = true;
                contents.awaited = entries;
                let (hits, explained) = (Vec::new(), false);
                self.damages.push(Damage { segment: at, from, to, what, hits, explained });
            }
            Step::Entry(found) => {
                self.entry(at, &found, cleaned, &mut contents);
                self.account(at, found.position, &mut contents);
            }
            Step::Footer { position, payload } => {
                contents.footer = Some((position, Bytes::copy_from_slice(payload)));
            }
        });
        *epoch = walked.epoch.max(*epoch);
        // Where a block begins, there may have been more.
        let used =
            Scanner::careful(&segment).header(Segment::data_start()).is_ok_and(|header| header.is_some());
        if let Some((from, to)) = self.files.segments[at].cut
            && (cleaned || used || Lsn::new(segment.sequence, from) < self.files.vouched)
        {
            contents.damaged = true;
            let what = "the file is cut off";
            self.damages.push(Damage { segment: at, from, to, what, hits: Vec::new(), explained: false });
        }
        self.complete &= !contents.damaged;
        let end = if trailer.is_some() || walked.footer {
            self.ended.insert(at);
            self.footer(at, trailer, &mut contents)
        } else {
            if cleaned {
                self.find(Severity::Error, at, walked.end, segment.data_end(), "its footer is not there");
            }
            walked.end
        };
        let first_damage = self.damages.partition_point(|damage| damage.segment < at);
        for (stream, base, end, flags, places) in contents.extents {
            if !self.deleted.contains(&stream) && (cleaned || !places.is_empty()) {
                let holes = self.holes(first_damage, (stream, base, end), &places, None, cleaned);
                let extent = Extent { segment: at, base, end, flags, places, holes };
                self.extents.entry(stream).or_default().push(extent);
            }
        }
        end
    }

    /// Counts the entries of a damaged block whose header gives their number. If all are present, it is known what the
    /// damage hit.
    fn account(&mut self, at: usize, position: u32, contents: &mut Contents) {
        let Some(awaited) = &mut contents.awaited else { return };
        let last = self.damages.last_mut();
        match last.filter(|last| last.segment == at && (last.from..last.to).contains(&position)) {
            Some(last) => {
                *awaited = awaited.saturating_sub(1);
                last.explained |= *awaited == 0;
            }
            None => contents.awaited = None,
        }
    }

    /// Applies an entry, as the writer did.
    fn entry(&mut self, at: usize, found: &Found, cleaned: bool, contents: &mut Contents) {
        let (id, position) = (found.entry.stream, found.position);
        let to = position + length32(ENTRY_HEADER_BYTES + found.body.len());
        self.checked.entries += 1;
        if self.deleted.contains(&id) && !cleaned {
            self.find(Severity::Error, at, position, to, format!("{id} was deleted before"));
            return;
        }
        match found.entry.kind {
            EntryKind::Batch => match checked_batch(found) {
                Ok((place, header)) => {
                    self.checked.batches += 1;
                    if !contents.push(id, place, cleaned) {
                        let what = format!("an offset of {id} goes back to {}", place.base_offset);
                        self.find(Severity::Error, at, position, to, what);
                        return;
                    }
                    if !cleaned {
                        let known = self.streams.entry(id).or_default();
                        known.next = known.next.max(place.next_offset());
                        known.producers.record(&header, found.body, place.base_offset, 0);
                    }
                }
                Err(what) => {
                    let from = found.entry.base_offset;
                    let hit = Hit {
                        stream: id,
                        from,
                        to: from + i64::from(found.entry.offset_count),
                        batches: Some(1),
                    };
                    contents.damaged = true;
                    if !cleaned {
                        let known = self.streams.entry(id).or_default();
                        known.next = known.next.max(hit.to);
                    }
                    let last = self.damages.last_mut();
                    match last.filter(|last| last.segment == at && (last.from..last.to).contains(&position)) {
                        Some(last) => last.hits.push(hit),
                        None => self.damages.push(Damage {
                            segment: at,
                            from: position,
                            to,
                            what,
                            hits: vec![hit],
                            explained: true,
                        }),
                    }
                }
            },
            EntryKind::Range if cleaned => match RangeBody::decode(found.body) {
                Some(body) => {
                    let base = found.entry.base_offset;
                    contents.extents.push((id, base, body.end, body.flags, BatchIndex::default()));
                }
                None => self.find(Severity::Error, at, position, to, "a range contradicts itself"),
            },
            EntryKind::Trim if !cleaned => {
                if let Some(known) = self.streams.get_mut(&id) {
                    known.start = known.start.max(found.entry.base_offset);
                }
            }
            EntryKind::Delete if !cleaned => {
                self.streams.remove(&id);
                self.extents.remove(&id);
                self.deleted.insert(id);
            }
            _ => self.find(Severity::Error, at, position, to, "an entry that does not belong here"),
        }
    }

    /// Compares the footer of a segment with its data. Returns the end of the footer.
    fn footer(&mut self, at: usize, trailer: Option<Trailer>, contents: &mut Contents) -> u32 {
        let Remains { segment, .. } = &self.files.segments[at];
        let segment = segment.clone();
        let cleaned = self.files.segments[at].cleaned();
        let block = contents.footer.take();
        let copy = block.as_ref().and_then(|(_, payload)| {
            let from = payload.len().checked_sub(TRAILER_COPY_BYTES)?;
            Trailer::decode(&payload[from..], segment.generation, u64::from(segment.length))
        });
        let Some(valid) = trailer.or(copy) else {
            let position = block.map_or(segment.data_end(), |(position, _)| position);
            self.find(Severity::Error, at, position, segment.data_end(), "its footer contradicts itself");
            return segment.data_end();
        };
        if trailer.is_none() {
            let newest = Lsn::new(segment.sequence, valid.end) >= self.files.vouched;
            let (severity, what) = if newest && !cleaned {
                (Severity::Note, "the segment is complete and has no trailer yet: opening writes it")
            } else {
                (Severity::Warning, "the trailer is damaged: opening scans the segment instead")
            };
            self.find(severity, at, segment.data_end(), segment.length, what);
        }
        let read = |position: u32, length: u32| read(&segment, position, length);
        let payload = valid.footer_position + length32(BLOCK_HEADER_BYTES);
        let sound =
            Scanner::careful(&segment).block(valid.footer_position).is_ok_and(|block| block.is_some());
        let directory = read(valid.directory_position, valid.rows * length32(DIRECTORY_ROW_BYTES));
        let rows = directory.and_then(|bytes| footer::decode_directory(&bytes, &valid, segment.generation));
        let table = read(valid.table_position, valid.table_length)
            .filter(|bytes| seeded_crc(segment.generation, bytes) == valid.table_crc)
            .and_then(|bytes| footer::decode_table(&bytes));
        if rows.is_none() {
            let end = valid.directory_position + valid.rows * length32(DIRECTORY_ROW_BYTES);
            let what = "the directory of the footer is damaged: opening rebuilds it from the data";
            self.find(Severity::Warning, at, valid.directory_position, end, what);
        }
        let mut named = rows.is_none() || trailer.is_none() && !sound;
        if table.is_none() {
            named = true;
            let end = valid.table_position + valid.table_length;
            let what = "the stream table is damaged: opening starts from an older one";
            self.find(Severity::Warning, at, valid.table_position, end, what);
        }
        let rows = rows.unwrap_or_default();
        named |= self.indexes(at, &rows, contents);
        if !sound && !named {
            let what = "the footer block does not match its crc, what it holds does";
            self.find(Severity::Warning, at, valid.footer_position, payload.max(valid.end), what);
        }
        if let Some(table) = table.filter(|_| !cleaned) {
            self.table(at, &valid, table, contents.damaged);
        }
        self.checked.bytes += u64::from(valid.end - valid.footer_position);
        valid.end
    }

    /// Compares directory and batch indexes with the batches found, and missing batches with the damaged places.
    /// Returns whether it found a fault.
    fn indexes(&mut self, at: usize, rows: &[DirectoryRow], contents: &mut Contents) -> bool {
        let segment = self.files.segments[at].segment.clone();
        let cleaned = self.files.segments[at].cleaned();
        let first_damage = self.damages.partition_point(|damage| damage.segment < at);
        let mut explained = !rows.is_empty();
        let mut wrong = false;
        let mut built: Ranges = HashMap::new();
        for (stream, base, end, flags, places) in std::mem::take(&mut contents.extents) {
            let key = if cleaned { base } else { Offset::ZERO };
            built.insert((stream, key), (base, end, flags, places));
        }
        for row in rows {
            let key = (row.stream, if cleaned { row.base_offset } else { Offset::ZERO });
            let found = if cleaned && contents.damaged {
                // The head of the range may be lost. Its batches are then in the range before it.
                collect_range(&mut built, row)
            } else {
                built.remove(&key).map(|(.., places)| places)
            };
            let deleted = self.deleted.contains(&row.stream);
            let (position, end) = (row.index_position, row.index_position.saturating_add(row.index_length));
            let stored = read(&segment, position, row.index_length)
                .filter(|bytes| seeded_crc(segment.generation, bytes) == row.index_crc)
                .and_then(|bytes| BatchIndex::decode(&bytes));
            let places = found.unwrap_or_default();
            match &stored {
                None => {
                    explained = false;
                    wrong = true;
                    let what = "a batch index is damaged: these records cannot be read";
                    let finding = Finding::new(
                        Severity::Error,
                        self.name(at),
                        u64::from(position),
                        u64::from(end),
                        what,
                    );
                    let hit = Hit {
                        stream: row.stream,
                        from: row.base_offset,
                        to: row.next_offset,
                        batches: Some(u64::from(row.batches)),
                    };
                    if self.streams.get(&row.stream).is_none_or(|known| row.next_offset > known.start) {
                        self.findings.push(Finding { hits: vec![hit], ..finding });
                    } else {
                        self.findings.push(Finding { severity: Severity::Warning, ..finding });
                    }
                }
                Some(stored)
                    if !contents.damaged && !deleted && (*stored != places || !footer::fits(row, stored)) =>
                {
                    wrong = true;
                    let what = format!("the batch index of {} contradicts the data", row.stream);
                    self.find(Severity::Error, at, position, end, what);
                }
                Some(_) => {}
            }
            let range = (row.stream, row.base_offset, row.next_offset);
            let holes = self.holes(first_damage, range, &places, stored.as_ref(), cleaned);
            if !deleted {
                let extent = Extent {
                    segment: at,
                    base: row.base_offset,
                    end: row.next_offset,
                    flags: row.flags,
                    places,
                    holes,
                };
                self.extents.entry(row.stream).or_default().push(extent);
            }
        }
        for damage in &mut self.damages[first_damage..] {
            damage.explained |= explained;
        }
        for ((stream, _), (base, end, flags, places)) in built {
            let bare = places.is_empty() || self.deleted.contains(&stream);
            if !rows.is_empty() && !contents.damaged && !bare {
                wrong = true;
                let what = format!("the directory does not have {stream}, the data does");
                self.find(Severity::Error, at, Segment::data_start(), segment.data_end(), what);
            }
            contents.extents.push((stream, base, end, flags, places));
        }
        wrong
    }

    /// The missing batches of an extent.
    fn holes(
        &mut self,
        first_damage: usize,
        (stream, base, end): (StreamId, Offset, Offset),
        places: &BatchIndex,
        stored: Option<&BatchIndex>,
        cleaned: bool,
    ) -> Vec<Hole> {
        let damages = &mut self.damages[first_damage..];
        if damages.is_empty() {
            return Vec::new();
        }
        let all = |index: &BatchIndex| index.from_offset(Offset(i64::MIN)).collect::<Vec<BatchPlace>>();
        let places = all(places);
        let mut holes: Vec<Hole> = Vec::new();
        if let Some(stored) = stored {
            for damage in &mut *damages {
                // These hits were found without the index.
                damage.hits.retain(|hit| hit.stream != stream || hit.to <= base || hit.from >= end);
            }
            let valid: HashSet<u32> = places.iter().map(|place| place.position).collect();
            for place in all(stored).into_iter().filter(|place| !valid.contains(&place.position)) {
                let end = place.position + length32(ENTRY_HEADER_BYTES) + place.length;
                let damage = damages.iter().position(|d| d.from < end && place.position < d.to);
                let (from, to) = (place.base_offset, place.next_offset());
                if let Some(last) = holes.last_mut().filter(|last| last.to == from) {
                    last.to = to;
                    last.batches = last.batches.map(|batches| batches + 1);
                } else {
                    let damage = damage.map(|at| at + first_damage);
                    holes.push(Hole { from, to, batches: Some(1), damage });
                }
                if let Some(damage) = damage {
                    add_hit(&mut damages[damage].hits, stream, from, to);
                }
            }
            return holes;
        }
        // Without an index: the offsets that are left out around a damaged place.
        let (mut offset, mut position) = (base, 0);
        let last = (end, u32::MAX);
        let ends = places.iter().map(|place| (place.base_offset, place.position)).chain([last]);
        for (at, (base, next_position)) in ends.enumerate() {
            let damage = damages.iter().position(|d| position <= d.from && d.from < next_position);
            if base > offset && (damage.is_some() || !cleaned) {
                let damage = damage.map(|at| at + first_damage);
                holes.push(Hole { from: offset, to: base, batches: None, damage });
            }
            if let Some(place) = places.get(at) {
                (offset, position) = (place.next_offset(), place.position);
            }
        }
        holes
    }

    /// Compares a stream table with the state from the entries, and continues with the table.
    fn table(&mut self, at: usize, trailer: &Trailer, table: HashMap<StreamId, TableRow>, damaged: bool) {
        let (from, to) = (trailer.table_position, trailer.table_position + trailer.table_length);
        let complete = self.complete && !damaged;
        for (id, row) in &table {
            let known = self.streams.get(id);
            let (start, next) = known.map_or((Offset::ZERO, Offset::ZERO), |known| (known.start, known.next));
            let same = (row.start, row.next) == (start, next);
            let behind = row.start < start || row.next < next;
            if (complete && !same) || behind || row.start > row.next {
                let what = format!(
                    "the stream table says that {id} goes from {} to {}, the entries before say {start} to {next}",
                    row.start, row.next
                );
                self.find(Severity::Error, at, from, to, what);
            }
        }
        let missing: Vec<StreamId> =
            self.streams.keys().filter(|id| !table.contains_key(*id)).copied().collect();
        for id in missing {
            if complete {
                let what = format!("the stream table leaves out {id}");
                self.find(Severity::Error, at, from, to, what);
            }
            // The entry that deleted the stream is missing.
            self.extents.remove(&id);
        }
        let known = |(id, row): (StreamId, TableRow)| {
            (id, Known { start: row.start, next: row.next, producers: row.producers })
        };
        self.streams = table.into_iter().map(known).collect();
        self.complete = true;
        self.base = self.files.segments[at].segment.sequence;
    }
}

/// Bytes of a segment's data, if they are readable.
fn read(segment: &Segment, position: u32, length: u32) -> Option<Bytes> {
    let inside = position.checked_add(length).is_some_and(|end| end <= segment.data_end());
    inside.then(|| segment.read(position, index(length)).ok()).flatten()
}

/// Adds a batch to the hits of a damage.
fn add_hit(hits: &mut Vec<Hit>, stream: StreamId, from: Offset, to: Offset) {
    match hits.last_mut() {
        Some(last) if last.stream == stream && last.to == from => {
            last.to = to;
            last.batches = last.batches.map(|batches| batches + 1);
        }
        _ => hits.push(Hit { stream, from, to, batches: Some(1) }),
    }
}
