//! The end of the log during opening: scans the segments behind the newest sealed one, up to the first invalid block.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use disk::{AlignedBuffer, SECTOR};
use model::StreamId;

use super::coverage::Coverage;
use super::outcome::{OpenError, damaged, doing};
use super::scan::{Found, SCAN_READ_BYTES, ScanEnd, Scanner, place_of, scan};
use super::sealed::directory_in;
use super::state::State;
use crate::format::{EntryKind, Lsn, SegmentHeader, TRAILER_BYTES, index, length32};
use crate::segment::{Segment, Segments, delete, file_name, trim, write_header};
use crate::stream::Stream;

/// The part of each segment behind the end that is searched for blocks which vouch for missing ones. A segment with
/// writes has valid blocks at its beginning.
const LATER_SEGMENT_SEARCH_BYTES: u32 = 8 * 1024 * 1024;

/// The active segment with the position after its last valid block, and the prepared segments.
type Tail = (Option<(Arc<Segment>, u32)>, Vec<Arc<Segment>>);

impl State {
    /// Scans the segments behind the newest sealed one up to the end of the log.
    pub fn scan_tail(
        &mut self,
        tail: &[Arc<Segment>],
        epoch: &mut u64,
        log_id: Option<u128>,
        next_generation: &mut u64,
    ) -> Result<Tail, OpenError> {
        for (at, segment) in tail.iter().enumerate() {
            self.segments.insert(segment.clone());
            let streams = &mut self.streams;
            let (segments, coverage) = (&self.segments, &mut self.coverage);
            let now_ms = self.now_ms;
            let scanned = scan(segment, None, *epoch, &mut self.report, |found| {
                apply(streams, segments, coverage, segment, &found, now_ms)
            })?;
            *epoch = scanned.epoch.max(*epoch);
            let secure = |end| {
                secure(segment, scanned.vouched, end)
                    .map_err(doing(format!("syncing {}", file_name(segment.sequence))))
            };
            match scanned.end {
                ScanEnd::Footer { trailer, payload_position, payload } => {
                    secure(trailer.end)?;
                    let rows = directory_in(&payload, payload_position, &trailer, segment)?;
                    for stream in self.streams.values() {
                        let mut state = stream.lock();
                        if let Some(active) = state.active.take() {
                            state.bytes -= u64::from(active.index.bytes());
                        }
                    }
                    let mut sector = AlignedBuffer::zeroed(TRAILER_BYTES);
                    sector.copy_from_slice(&trailer.encode(segment.generation));
                    let written = segment
                        .file
                        .write_at(u64::from(segment.data_end()), &sector)
                        .and_then(|()| segment.file.sync());
                    written.map_err(doing(format!("completing {}", file_name(segment.sequence))))?;
                    self.add_sealed(segment, trailer, Some((payload_position, payload)), &rows);
                    segment.seal();
                }
                ScanEnd::Open { position } => {
                    secure(position)?;
                    self.report.end = Lsn::new(segment.sequence, position);
                    self.look_behind(segment, position, &tail[at + 1..], epoch)?;
                    let prepared = self.reprepare(&tail[at + 1..], log_id, next_generation)?;
                    return Ok((Some((segment.clone(), position)), prepared));
                }
            }
        }
        // The last segment ended with its footer and no segment was prepared behind it, or there is no log yet.
        Ok((None, Vec::new()))
    }

    /// Searches behind the end of the log. A block that vouches for the missing one makes it damage. The other blocks
    /// were never acknowledged and are dropped.
    fn look_behind(
        &mut self,
        segment: &Segment,
        position: u32,
        later: &[Arc<Segment>],
        epoch: &mut u64,
    ) -> Result<(), OpenError> {
        let end = Lsn::new(segment.sequence, position);
        let mut places = vec![(segment, position, segment.data_end())];
        for segment in later {
            let to = segment.data_end().min(LATER_SEGMENT_SEARCH_BYTES);
            places.push((segment, Segment::data_start(), to));
        }
        for (searched, from, mut to) in places {
            let mut scanner = Scanner::new(searched);
            let mut at = from;
            while at < to {
                let mut step = length32(SECTOR);
                if let Some(header) = scanner.header(at)? {
                    if header.synced > end {
                        let what = format!(
                            "a block that was acknowledged is invalid: the block at {} vouches for everything below {}",
                            header.lsn, header.synced
                        );
                        return Err(damaged(segment.sequence, position, what));
                    }
                    *epoch = (*epoch).max(header.epoch);
                    self.report.dropped_blocks += 1;
                    self.report.dropped_bytes += header.total_bytes() as u64;
                    // A whole block is skipped: no later write is inside it. A block that is not whole was torn, or was
                    // cut off by an earlier recovery and then partly overwritten. The found bytes do not count towards
                    // the searched part.
                    let length = length32(header.total_bytes().min(index(searched.data_end() - at)));
                    step = if scanner.block(at)?.is_some() { length } else { step };
                    to = to.saturating_add(length).min(searched.data_end());
                }
                at += step;
            }
            self.report.scanned_bytes += scanner.read_bytes;
        }
        Ok(())
    }

    /// Gives prepared segments a new generation, so that their stale blocks stay invalid.
    fn reprepare(
        &mut self,
        later: &[Arc<Segment>],
        log_id: Option<u128>,
        next_generation: &mut u64,
    ) -> Result<Vec<Arc<Segment>>, OpenError> {
        let mut prepared = Vec::new();
        for old in later {
            let header = SegmentHeader {
                sequence: old.sequence,
                generation: *next_generation,
                length: u64::from(old.length),
                log_id: log_id.expect("there are segments"),
            };
            write_header(&*old.file, &header)
                .map_err(doing(format!("preparing {}", file_name(old.sequence))))?;
            *next_generation += 1;
            prepared.push(Arc::new(Segment::new(old.sequence, header.generation, old.file.clone())));
        }
        Ok(prepared)
    }
}

/// Makes the blocks up to `end` durable for which no other block vouches yet, before the next block does. These blocks
/// can be read, but may not be on the device: a killed server may have left writes that no sync covered, and after a
/// failed sync they may be lost although a later sync succeeds. So they are written once more, unchanged.
fn secure(segment: &Segment, vouched: Lsn, end: u32) -> io::Result<()> {
    let vouched = if vouched.sequence() == segment.sequence { vouched.byte() } else { 0 };
    let (mut at, end) = (index(vouched.max(Segment::data_start())), index(end));
    let mut buffer = AlignedBuffer::zeroed(SCAN_READ_BYTES.min(end.saturating_sub(at)));
    while at < end {
        let bytes = buffer.len().min(end - at);
        segment.file.read_at(at as u64, &mut buffer[..bytes])?;
        segment.file.write_at(at as u64, &buffer[..bytes])?;
        at += bytes;
    }
    segment.file.sync()
}

/// Applies an entry of the log's tail, like the writer did when it wrote the entry.
fn apply(
    streams: &mut HashMap<StreamId, Arc<Stream>>,
    segments: &Segments,
    coverage: &mut Coverage,
    segment: &Segment,
    found: &Found,
    now_ms: i64,
) -> Result<(), OpenError> {
    let id = found.entry.stream;
    let contradicts = || damaged(segment.sequence, found.position, "a batch contradicts its entry");
    match found.entry.kind {
        EntryKind::Batch => {
            let (place, header) = place_of(found).ok_or_else(contradicts)?;
            let stream = streams.entry(id).or_insert_with(|| Arc::new(Stream::new(id)));
            let mut state = stream.lock();
            if place.base_offset < state.next {
                return Err(damaged(segment.sequence, found.position, "an offset of a stream goes back"));
            }
            state.place(segment.sequence, place);
            (state.synced, state.committed) = (state.next, state.next);
            coverage.add(id, place.base_offset, place.next_offset());
            state.producers.record(&header, found.body, place.base_offset, now_ms);
        }
        EntryKind::Trim => {
            if let Some(stream) = streams.get(&id) {
                trim(stream, found.entry.base_offset, segments);
            }
        }
        EntryKind::Delete => {
            if let Some(stream) = streams.remove(&id) {
                delete(&stream, segments);
            }
            coverage.forget(id);
        }
        EntryKind::Range => return Err(contradicts()),
    }
    Ok(())
}
