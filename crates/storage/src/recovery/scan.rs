//! Scans: read a segment from front to back, with every valid block and entry, up to the first invalid one.
//!
//! A scan is not the walk of the tools (`tools/walk.rs`). In a scan the first invalid block ends the segment. A failed
//! read ends the opening, because unreadable bytes must not pass for the end of the log.

use std::collections::HashMap;
use std::sync::Arc;

use disk::{AlignedBuffer, SECTOR};
use model::{BatchHeader, Offset, StreamId};

use super::outcome::{OpenError, RecoveryReport, damaged, doing};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, RangeBody,
    Trailer, index, length32, seeded_crc,
};
use crate::index::{BatchIndex, BatchPlace};
use crate::segment::footer::{self, SealedStream};
use crate::segment::{Segment, file_name};

/// Bytes of one read of a scan: large enough for the device's full sequential speed.
pub(crate) const SCAN_READ_BYTES: usize = 4 * 1024 * 1024;

/// Reads a segment forwards, block by block.
pub(crate) struct Scanner<'a> {
    segment: &'a Segment,
    window: AlignedBuffer,
    from: usize,
    filled: usize,
    pub read_bytes: u64,
    careful: bool,
}

impl<'a> Scanner<'a> {
    pub fn new(segment: &'a Segment) -> Scanner<'a> {
        let window = AlignedBuffer::zeroed(SCAN_READ_BYTES);
        Scanner { segment, window, from: 0, filled: 0, read_bytes: 0, careful: false }
    }

    /// A scanner that reads as little as possible after a failed read. Bytes next to unreadable ones may be readable.
    pub fn careful(segment: &'a Segment) -> Scanner<'a> {
        Scanner { careful: true, ..Scanner::new(segment) }
    }

    /// The bytes `position..position + length`, up to the end of the segment's data area.
    pub fn bytes(&mut self, position: u32, length: usize) -> Result<&[u8], OpenError> {
        let position = index(position);
        let length = length.min(index(self.segment.data_end()).saturating_sub(position));
        if position < self.from || position + length > self.from + self.filled {
            let from = position / SECTOR * SECTOR;
            let wanted = (position + length - from).div_ceil(SECTOR) * SECTOR;
            if wanted > self.window.len() {
                self.window = AlignedBuffer::zeroed(wanted);
            }
            let to = (from + self.window.len()).min(index(self.segment.data_end()));
            self.filled = to - from;
            self.from = from;
            let mut read = self.segment.file.read_at(from as u64, &mut self.window[..self.filled]);
            if read.is_err() && self.careful {
                self.window = AlignedBuffer::zeroed(wanted);
                self.filled = wanted.min(to - from);
                read = self.segment.file.read_at(from as u64, &mut self.window[..self.filled]);
            }
            if read.is_err() {
                self.filled = 0;
            }
            read.map_err(doing(format!("reading {}", file_name(self.segment.sequence))))?;
            self.read_bytes += self.filled as u64;
        }
        Ok(&self.window[position - self.from..position - self.from + length])
    }

    pub fn header(&mut self, position: u32) -> Result<Option<BlockHeader>, OpenError> {
        let lsn = Lsn::new(self.segment.sequence, position);
        let generation = self.segment.generation;
        Ok(BlockHeader::decode(self.bytes(position, BLOCK_HEADER_BYTES)?, generation, lsn))
    }

    /// The whole block at `position` with its payload, if it is valid.
    pub fn block(&mut self, position: u32) -> Result<Option<(BlockHeader, &[u8])>, OpenError> {
        let Some(header) = self.header(position)? else { return Ok(None) };
        let payload_bytes = index(header.length);
        let generation = self.segment.generation;
        let bytes = self.bytes(position, BLOCK_HEADER_BYTES + payload_bytes)?;
        let Some(payload) = bytes.get(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + payload_bytes) else {
            return Ok(None);
        };
        Ok((seeded_crc(generation, payload) == header.payload_crc).then_some((header, payload)))
    }
}

/// An entry found by a scan.
pub(crate) struct Found<'a> {
    pub entry: EntryHeader,
    pub position: u32,
    pub body: &'a [u8],
}

/// The entry at `at` in the payload of a block. The payload stands at `payload_position`.
pub(crate) fn entry_at(
    payload: &[u8],
    at: usize,
    payload_position: u32,
    generation: u64,
) -> Option<Found<'_>> {
    let entry = EntryHeader::decode(payload.get(at..)?, generation)?;
    let from = at + ENTRY_HEADER_BYTES;
    let body = payload.get(from..from + index(entry.length))?;
    Some(Found { entry, position: payload_position + length32(at), body })
}

/// The end of a scan of one segment.
pub(crate) enum ScanEnd {
    /// The segment ends with its footer, which has this trailer copy and payload.
    Footer { trailer: Trailer, payload_position: u32, payload: Vec<u8> },
    /// The segment ends before the first invalid or stale block, or at the given stop.
    Open { position: u32 },
}

/// The result of a scan of one segment.
pub(crate) struct Scanned {
    pub end: ScanEnd,
    /// The epoch of the last block.
    pub epoch: u64,
    /// The highest position below which some block knew everything to be synced.
    pub vouched: Lsn,
}

/// Scans the blocks of `segment` from its start and hands every entry to `each`. Stops at `stop`, at the first invalid
/// block, or at a block whose epoch is below that of the block before it.
pub(crate) fn scan(
    segment: &Segment,
    stop: Option<u32>,
    mut epoch: u64,
    report: &mut RecoveryReport,
    mut each: impl FnMut(Found) -> Result<(), OpenError>,
) -> Result<Scanned, OpenError> {
    let mut scanner = Scanner::new(segment);
    let mut vouched = Lsn::default();
    let mut position = Segment::data_start();
    report.scanned_segments += 1;
    let end = loop {
        if stop.is_some_and(|stop| position >= stop) || position >= segment.data_end() {
            break ScanEnd::Open { position };
        }
        let Some((header, payload)) = scanner.block(position)? else { break ScanEnd::Open { position } };
        if header.epoch < epoch {
            break ScanEnd::Open { position };
        }
        epoch = header.epoch;
        vouched = vouched.max(header.synced);
        let payload_position = position + length32(BLOCK_HEADER_BYTES);
        if header.kind == BlockKind::Footer {
            let length = u64::from(segment.length);
            let copy = payload.len().checked_sub(footer::TRAILER_COPY_BYTES).map(|at| &payload[at..]);
            let trailer = copy.and_then(|copy| Trailer::decode(copy, segment.generation, length));
            let trailer = trailer
                .ok_or_else(|| damaged(segment.sequence, position, "its footer contradicts itself"))?;
            break ScanEnd::Footer { trailer, payload_position, payload: payload.to_vec() };
        }
        let mut at = 0;
        for _ in 0..header.entries {
            let found = entry_at(payload, at, payload_position, segment.generation).ok_or_else(|| {
                damaged(segment.sequence, position, "an entry of a valid block contradicts itself")
            })?;
            at += ENTRY_HEADER_BYTES + found.body.len();
            each(found)?;
        }
        position += length32(header.total_bytes());
    };
    report.scanned_bytes += scanner.read_bytes;
    Ok(Scanned { end, epoch, vouched })
}

/// The place of a batch that a scan found.
pub(crate) fn place_of(found: &Found) -> Option<(BatchPlace, BatchHeader)> {
    let header = BatchHeader::parse(found.body).ok()?;
    let place = BatchPlace {
        base_offset: found.entry.base_offset,
        offset_count: found.entry.offset_count,
        position: found.position,
        length: found.entry.length,
        max_timestamp: found.entry.max_timestamp,
    };
    (header.base_offset == place.base_offset && header.offset_count() == i64::from(place.offset_count))
        .then_some((place, header))
}

/// The batch indexes of one segment, built from its data.
pub(crate) fn scan_indexes(
    segment: &Segment,
    stop: Option<u32>,
    report: &mut RecoveryReport,
) -> Result<(Vec<SealedStream>, ScanEnd), OpenError> {
    let mut indexes: HashMap<StreamId, BatchIndex> = HashMap::new();
    let mut ranges: Vec<(StreamId, Offset, RangeBody, BatchIndex)> = Vec::new();
    let contradicts = |position| damaged(segment.sequence, position, "a batch contradicts its entry");
    let Scanned { end, .. } = scan(segment, stop, 0, report, |found| {
        match found.entry.kind {
            EntryKind::Batch => {
                let (place, _) = place_of(&found).ok_or_else(|| contradicts(found.position))?;
                match ranges.last_mut() {
                    Some((stream, _, _, index)) if *stream == found.entry.stream => index.push(place),
                    Some(_) => return Err(contradicts(found.position)),
                    None => indexes.entry(found.entry.stream).or_default().push(place),
                }
            }
            EntryKind::Range => {
                let body = RangeBody::decode(found.body).ok_or_else(|| contradicts(found.position))?;
                ranges.push((found.entry.stream, found.entry.base_offset, body, BatchIndex::default()));
            }
            EntryKind::Delete => {
                indexes.remove(&found.entry.stream);
            }
            EntryKind::Trim => {}
        }
        Ok(())
    })?;
    let written = indexes.into_iter().map(|(stream, index)| SealedStream::written(stream, Arc::new(index)));
    let moved = ranges.into_iter().map(|(stream, base_offset, body, index)| SealedStream {
        stream,
        index: Arc::new(index),
        base_offset,
        next_offset: body.end,
        flags: body.flags,
    });
    let mut streams: Vec<SealedStream> = written.chain(moved).collect();
    streams.sort_unstable_by_key(|sealed| (sealed.stream, sealed.base_offset));
    Ok((streams, end))
}
