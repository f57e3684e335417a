//! The files of a log that may be damaged, opened as far as possible.
//!
//! This module writes nothing, and refuses a file only if nothing can be read from it. It accepts a file whose length
//! differs from the header's. For a file whose header is lost, it searches the generation near those of the other
//! files, because no CRC can be checked without the generation.
//!
//! The passes over block headers in this module come before a walk ([`super::walk`]). They find the generation and the
//! highest synced position, which the walk needs.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use disk::{AlignedBuffer, Disk, SECTOR};

use super::finding::{Finding, Severity};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, HeaderError, Lsn, SEGMENT_HEADER_BYTES, SegmentHeader, TRAILER_BYTES,
    Trailer, index, length32,
};
use crate::recovery::scan::Scanner;
use crate::segment::{Segment, is_cleaned, sequence_of};

/// How far from the known generations the generation of a file without a header is searched.
const GENERATIONS_AROUND: u64 = 1 << 16;
/// For each generation, this many sectors that look like a block are tried.
const SAMPLES: usize = 8;

/// A segment file.
pub(crate) struct Remains {
    pub name: String,
    pub segment: Arc<Segment>,
    /// Its trailer, if it is valid.
    pub trailer: Option<Trailer>,
    /// The bytes behind the end of the file that should exist according to its header.
    pub cut: Option<(u32, u32)>,
}

impl Remains {
    pub fn cleaned(&self) -> bool {
        is_cleaned(self.segment.sequence)
    }
}

/// All files of a log.
pub(crate) struct LogFiles {
    /// The log id in most of the headers.
    pub log_id: Option<u128>,
    /// The segments of the writer in order, then those of the cleaner.
    pub segments: Vec<Remains>,
    /// Everything below was synced once.
    pub vouched: Lsn,
    pub findings: Vec<Finding>,
    /// Names of files in which nothing can be read.
    pub unread: Vec<String>,
}

fn error(file: &str, from: u64, to: u64, what: impl Into<String>) -> Finding {
    Finding::new(Severity::Error, file, from, to, what)
}

impl LogFiles {
    /// Opens the files on `disk`. Fails only if they cannot be listed.
    pub fn open(disk: &dyn Disk) -> io::Result<LogFiles> {
        let mut names = disk.list()?;
        names.sort_unstable();
        let mut findings = Vec::new();
        let mut sectors = Vec::new();
        for name in names.iter().cloned() {
            let Some(sequence) = sequence_of(&name) else { continue };
            let file = match disk.open(&name) {
                Ok(file) => file,
                Err(cause) => {
                    findings.push(error(&name, 0, 0, format!("it cannot be opened: {cause}")));
                    continue;
                }
            };
            let length = file.length() / SECTOR as u64 * SECTOR as u64;
            if length < (SEGMENT_HEADER_BYTES + SECTOR) as u64 || u32::try_from(length).is_err() {
                let what = format!("a segment file cannot be {} bytes long", file.length());
                findings.push(error(&name, 0, file.length().max(2 * SECTOR as u64), what));
                continue;
            }
            let mut sector = AlignedBuffer::zeroed(SEGMENT_HEADER_BYTES);
            let header = match file.read_at(0, &mut sector) {
                Ok(()) => SegmentHeader::decode(&sector),
                Err(_) => Err(HeaderError::Damaged),
            };
            let stored = u64::from_le_bytes(sector[16..24].try_into().expect("eight bytes"));
            sectors.push((name, sequence, file, length, header, stored));
        }
        let mut ids: HashMap<u128, usize> = HashMap::new();
        for (_, _, _, _, header, _) in &sectors {
            if let Ok(header) = header {
                *ids.entry(header.log_id).or_default() += 1;
            }
        }
        let log_id = ids.into_iter().max_by_key(|(id, files)| (*files, *id)).map(|(id, _)| id);
        let mut generations: Vec<u64> =
            sectors.iter().filter_map(|(.., header, _)| header.as_ref().ok().map(|h| h.generation)).collect();
        generations.sort_unstable();
        let mut segments: Vec<Remains> = Vec::new();
        for (name, sequence, file, length, header, stored) in sectors {
            let file_length = file.length();
            let mut segment = Segment::new(sequence, 0, file);
            // If the file was cut off, its last sector may be data.
            segment.length =
                length32(usize::try_from(length).unwrap_or_default()).saturating_add(length32(TRAILER_BYTES));
            let mut cut = None;
            match header {
                Ok(header) if Some(header.log_id) != log_id => {
                    findings.push(error(&name, 32, 48, "it belongs to another log, and is left out"));
                    continue;
                }
                Ok(header) => {
                    segment.generation = header.generation;
                    if header.sequence != sequence {
                        let what = format!("its header says that it is segment {}", header.sequence);
                        findings.push(error(&name, 12, 16, what));
                        segment.sequence = header.sequence;
                    }
                    if header.length != file_length {
                        let (from, to) = (header.length.min(file_length), header.length.max(file_length));
                        let what =
                            format!("it is {file_length} bytes long, its header says {}", header.length);
                        findings.push(error(&name, from, to, what));
                    }
                    let stated = u32::try_from(header.length).unwrap_or(u32::MAX);
                    if header.length <= file_length {
                        segment.length = stated;
                    } else {
                        cut = Some((segment.data_end(), stated));
                    }
                }
                Err(HeaderError::Version(version)) => {
                    let what = format!("its format version {version} is not known, and it is left out");
                    findings.push(error(&name, 8, 12, what));
                    continue;
                }
                Err(HeaderError::Damaged) => {
                    segment.length = length32(usize::try_from(length).unwrap_or_default());
                    let known = generation(&segment, stored, &generations);
                    let rest =
                        if known.is_some() { "" } else { ", and without it nothing in the file can be read" };
                    let what = format!("its header is damaged{rest}");
                    findings.push(error(&name, 0, SEGMENT_HEADER_BYTES as u64, what));
                    let Some(known) = known else { continue };
                    segment.generation = known;
                }
            }
            let segment = Arc::new(segment);
            let trailer = trailer_of(&segment);
            segments.push(Remains { name, segment, trailer, cut });
        }
        segments.sort_by_key(|remains| remains.segment.sequence);
        segments.dedup_by(|later, first| {
            let same = later.segment.sequence == first.segment.sequence;
            if same {
                findings.push(error(
                    &later.name,
                    0,
                    0,
                    format!("it is left out, {} is the same", first.name),
                ));
            }
            same
        });
        let vouched = vouched(&segments);
        let read = |name: &String| segments.iter().any(|remains| remains.name == *name);
        let unread = names.into_iter().filter(|name| sequence_of(name).is_some() && !read(name)).collect();
        Ok(LogFiles { log_id, segments, vouched, findings, unread })
    }

    /// The end of the synced bytes in segment `at`.
    pub fn vouched_in(&self, at: usize) -> u32 {
        let Remains { segment, trailer, .. } = &self.segments[at];
        if is_cleaned(segment.sequence) {
            // A cleaned segment got its name only when it was complete.
            return trailer.map_or(segment.data_end(), |trailer| trailer.footer_position);
        }
        match segment.sequence.cmp(&self.vouched.sequence()) {
            std::cmp::Ordering::Less => segment.data_end(),
            std::cmp::Ordering::Equal => self.vouched.byte(),
            std::cmp::Ordering::Greater => 0,
        }
    }
}

fn trailer_of(segment: &Segment) -> Option<Trailer> {
    let mut sector = AlignedBuffer::zeroed(TRAILER_BYTES);
    segment.file.read_at(u64::from(segment.data_end()), &mut sector).ok()?;
    let trailer = Trailer::decode(&sector, segment.generation, u64::from(segment.length))?;
    (trailer.sequence == segment.sequence).then_some(trailer)
}

/// The highest position that was synced, according to a trailer or a block.
fn vouched(segments: &[Remains]) -> Lsn {
    let mut vouched = Lsn::default();
    for Remains { segment, trailer, .. } in segments.iter().filter(|remains| !remains.cleaned()) {
        if let Some(trailer) = trailer {
            vouched = vouched.max(Lsn::new(segment.sequence, trailer.end));
            continue;
        }
        let mut scanner = Scanner::careful(segment);
        let mut at = Segment::data_start();
        while at < segment.data_end() {
            let mut step = SECTOR;
            if let Ok(Some(header)) = scanner.header(at) {
                vouched = vouched.max(header.synced);
                step = header.total_bytes().min(index(segment.data_end() - at));
            }
            at += length32(step);
        }
    }
    vouched
}

/// The generation of a file whose header is lost: the stored one, or one near those of the other files.
fn generation(segment: &Segment, stored: u64, known: &[u64]) -> Option<u64> {
    let (first, last) = (known.first().copied().unwrap_or(stored), known.last().copied().unwrap_or(stored));
    let around = first.saturating_sub(GENERATIONS_AROUND).max(1)..=last.saturating_add(GENERATIONS_AROUND);
    let mut scanner = Scanner::careful(segment);
    let (mut samples, mut at) = (Vec::new(), Segment::data_start());
    while at < segment.data_end() && samples.len() < SAMPLES {
        if let Ok(bytes) = scanner.bytes(at, BLOCK_HEADER_BYTES)
            && bytes.starts_with(b"MSbk")
        {
            samples.push((Lsn::new(segment.sequence, at), bytes.to_vec()));
        }
        at += length32(SECTOR);
    }
    let taken = |generation: &u64| known.binary_search(generation).is_ok();
    let fits = |generation: &u64| {
        samples.iter().any(|(lsn, bytes)| BlockHeader::decode(bytes, *generation, *lsn).is_some())
    };
    std::iter::once(stored).chain(around).filter(|generation| !taken(generation)).find(fits)
}
