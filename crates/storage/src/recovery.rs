//! Opening a log that was left behind: by a clean stop, by `kill -9`, by a power cut, or by a failing disk.
//!
//! Sealed segments are taken from their trailers and directories; only segments without a valid trailer are scanned.
//! The log ends before the first invalid block, unless a later block vouches for it: a block carries the highest
//! position that was synced when it was written, so an invalid block *below* such a position was acknowledged once and
//! its loss is damage, which is named and refused, never taken for the end.
//!
//! Nothing is written here but the last blocks of the log as they are, the trailer of a segment that had everything
//! else, and new headers for segments that were prepared and may hold stale blocks.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use disk::{AlignedBuffer, Disk, SECTOR};
use model::{Offset, StreamId};

use crate::footer::{self, TableRow};
use crate::format::{
    BLOCK_HEADER_BYTES, CLEANED, DIRECTORY_ROW_BYTES, DirectoryRow, EntryKind, Lsn, SEGMENT_HEADER_BYTES,
    SegmentHeader, TRAILER_BYTES, Trailer, index, length32, seeded_crc,
};
use crate::overlay::Coverage;
use crate::scan::{Found, SCAN_READ_BYTES, ScanEnd, Scanner, place_of, scan, scan_indexes};
use crate::segment::{
    CLEANING, PREPARING, REMOVING, Segment, Segments, delete, file_name, is_cleaned, sequence_of, trim,
    write_header,
};
use crate::stream::{SealedExtent, Stream, clamp_timestamp};

/// Sequence number of the first segment of a log.
pub(crate) const FIRST_SEQUENCE: u32 = 1;
/// How much of a segment behind the one that ends the log is searched for blocks that vouch for what is missing. A
/// segment that was written to has valid blocks at its beginning.
const LATER_SEGMENT_SEARCH_BYTES: u32 = 8 * 1024 * 1024;

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Damage to data that had been acknowledged.
    #[error(
        "segment file {file} is damaged at byte {position}: {what}; `mainstem log verify` says what is hit, `mainstem log salvage` keeps the rest"
    )]
    Damaged {
        /// Name of the file in the data directory.
        file: String,
        /// Where.
        position: u64,
        /// What was found.
        what: String,
    },
    /// A segment file that must be there is not.
    #[error("segment file {file} is missing; restore it, or run `mainstem log salvage` to go on without it")]
    Missing {
        /// Name of the file in the data directory.
        file: String,
    },
    /// Records that a stream must have are in no segment: somebody removed a file.
    #[error(
        "a segment file is missing: no file has the records {from} to {to} of {stream}; restore it, or run `mainstem log salvage` to go on without them"
    )]
    Lost {
        /// Whose records.
        stream: StreamId,
        /// The first that is missing.
        from: Offset,
        /// The first behind them that is there.
        to: Offset,
    },
    /// The disk has no room for what opening has to write.
    #[error("the disk is too full to open the log")]
    Full,
    /// Reading or writing failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// How it failed.
        source: io::Error,
    },
}

/// What opening a log found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments whose trailer was trusted.
    pub sealed_segments: usize,
    /// Segments that the cleaner wrote.
    pub cleaned_segments: usize,
    /// Segments that were scanned.
    pub scanned_segments: usize,
    /// Bytes that were scanned.
    pub scanned_bytes: u64,
    /// Where the log ended.
    pub end: Lsn,
    /// Blocks behind the end that had been written but never acknowledged, and are dropped.
    pub dropped_blocks: usize,
    /// Bytes of those.
    pub dropped_bytes: u64,
}

/// A log as recovery found it.
pub(crate) struct Recovered {
    pub streams: HashMap<StreamId, Arc<Stream>>,
    pub segments: Segments,
    /// The active segment and the position after its last valid block; `None` for an empty directory.
    pub active: Option<(Arc<Segment>, u32)>,
    /// Segments that were ready and are ready again.
    pub prepared: Vec<Arc<Segment>>,
    pub next_sequence: u32,
    /// Number of the next segment that the cleaner writes.
    pub next_cleaned: u32,
    pub next_generation: u64,
    pub next_epoch: u64,
    pub log_id: Option<u128>,
    pub report: RecoveryReport,
}

pub(crate) fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
    let what = what.into();
    move |source| OpenError::Io { doing: what, source }
}

pub(crate) fn damaged(sequence: u32, position: u32, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { file: file_name(sequence), position: u64::from(position), what: what.into() }
}

/// Makes the blocks up to `end` durable that no other block vouches for yet, before the next one does. They can be read,
/// which does not mean that they are on the device: a killed server may have left writes that no sync covered, and
/// after a failed sync they may be lost although a later sync succeeds. So they are written once more, as they are.
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

/// Opens whatever `disk` holds of a log.
pub(crate) fn recover(disk: &dyn Disk, now_ms: i64) -> Result<Recovered, OpenError> {
    let mut opened = open_segments(disk)?;
    let mut report = RecoveryReport::default();
    let next_generation = opened.iter().map(|(segment, _)| segment.generation).max().unwrap_or(0) + 1;
    let log_id = opened.first().map(|(_, header)| header.log_id);
    let cleaned = opened.split_off(opened.partition_point(|(segment, _)| !is_cleaned(segment.sequence)));
    let next_sequence = opened.last().map_or(FIRST_SEQUENCE, |(segment, _)| segment.sequence + 1);
    let next_cleaned = cleaned.last().map_or(CLEANED + 1, |(segment, _)| segment.sequence + 1);

    let mut sealed: Vec<Option<(Trailer, Vec<DirectoryRow>)>> = Vec::new();
    for (segment, _) in &opened {
        sealed.push(load_sealed(segment, &mut report)?);
    }
    // Everything up to the newest sealed segment whose table is readable is taken from footers.
    let mut table = HashMap::new();
    let mut tail_from = 0;
    for at in (0..opened.len()).rev() {
        let Some((trailer, _)) = &sealed[at] else { continue };
        if let Some(found) = load_table(&opened[at].0, trailer)? {
            table = found;
            tail_from = at + 1;
            break;
        }
    }
    let expected = if tail_from == 0 { FIRST_SEQUENCE } else { opened[tail_from - 1].0.sequence + 1 };
    let tail_sequences = opened[tail_from..].iter().map(|(segment, _)| segment.sequence);
    if let Some((missing, _)) = (expected..).zip(tail_sequences).find(|(expected, found)| expected != found) {
        return Err(OpenError::Missing { file: file_name(missing) });
    }
    if let Some((newest, _)) = tail_from.checked_sub(1).map(|at| &opened[at]) {
        // A killed server may have left a trailer that can be read but is not durable. Segments before it are recycled
        // on the strength of its table, so it must not vanish in a power cut afterwards.
        newest.file.sync().map_err(doing(format!("syncing {}", file_name(newest.sequence))))?;
    }

    let mut state = State {
        streams: restore_streams(table),
        segments: Segments::default(),
        coverage: Coverage::default(),
        report,
        now_ms,
    };
    let mut epoch = 0;
    for (at, (segment, _)) in opened.iter().enumerate().take(tail_from) {
        match sealed[at].take() {
            Some((trailer, rows)) => {
                epoch = epoch.max(trailer.epoch);
                state.report.sealed_segments += 1;
                state.add_sealed(segment, trailer, None, &rows);
            }
            None => state.rebuild(segment)?,
        }
    }
    let tail: Vec<Arc<Segment>> = opened.drain(tail_from..).map(|(segment, _)| segment).collect();
    let mut next_generation = next_generation;
    let (active, prepared) = state.scan_tail(&tail, &mut epoch, log_id, &mut next_generation)?;
    state.overlay(cleaned.into_iter().map(|(segment, _)| segment).collect())?;
    state.coverage.check(&state.streams)?;
    Ok(Recovered {
        streams: state.streams,
        segments: state.segments,
        active,
        prepared,
        next_sequence,
        next_cleaned,
        next_generation,
        next_epoch: epoch + 1,
        log_id,
        report: state.report,
    })
}

fn restore_streams(table: HashMap<StreamId, TableRow>) -> HashMap<StreamId, Arc<Stream>> {
    let restore = |(id, row): (StreamId, TableRow)| {
        (id, Arc::new(Stream::restored(id, row.start, row.next, row.producers)))
    };
    table.into_iter().map(restore).collect()
}

fn open_segments(disk: &dyn Disk) -> Result<Vec<(Arc<Segment>, SegmentHeader)>, OpenError> {
    let names = disk.list().map_err(doing("listing the data directory"))?;
    for worthless in [PREPARING, CLEANING, REMOVING] {
        if names.iter().any(|name| name == worthless) {
            disk.remove(worthless).map_err(doing(format!("removing {worthless}")))?;
        }
    }
    let mut opened = Vec::new();
    for name in names {
        let Some(sequence) = sequence_of(&name) else { continue };
        let file = disk.open(&name).map_err(doing(format!("opening {name}")))?;
        let fits = u32::try_from(file.length())
            .is_ok_and(|length| index(length) >= SEGMENT_HEADER_BYTES + TRAILER_BYTES);
        if !fits || !file.length().is_multiple_of(SECTOR as u64) {
            return Err(damaged(
                sequence,
                0,
                format!("a segment file cannot be {} bytes long", file.length()),
            ));
        }
        let mut sector = AlignedBuffer::zeroed(SEGMENT_HEADER_BYTES);
        file.read_at(0, &mut sector).map_err(doing(format!("reading {name}")))?;
        let header =
            SegmentHeader::decode(&sector).map_err(|error| damaged(sequence, 0, error.to_string()))?;
        if header.sequence != sequence || header.length != file.length() {
            let what = format!("its header says segment {}, {} bytes", header.sequence, header.length);
            return Err(damaged(sequence, 0, what));
        }
        opened.push((Arc::new(Segment::new(sequence, header.generation, file)), header));
    }
    opened.sort_by_key(|(segment, _)| segment.sequence);
    if let Some((_, first)) = opened.first()
        && let Some((segment, _)) = opened.iter().find(|(_, header)| header.log_id != first.log_id)
    {
        return Err(damaged(segment.sequence, 32, "it belongs to another log"));
    }
    Ok(opened)
}

/// Trailer and directory of a sealed segment; `None` when it has no valid trailer. A valid trailer with a damaged
/// directory is rebuilt from the data.
pub(crate) fn load_sealed(
    segment: &Arc<Segment>,
    report: &mut RecoveryReport,
) -> Result<Option<(Trailer, Vec<DirectoryRow>)>, OpenError> {
    let reading = || doing(format!("reading {}", file_name(segment.sequence)));
    let sector = segment.read(segment.data_end(), TRAILER_BYTES).map_err(reading())?;
    let Some(trailer) = Trailer::decode(&sector, segment.generation, u64::from(segment.length)) else {
        return Ok(None);
    };
    if trailer.sequence != segment.sequence {
        return Ok(None);
    }
    let bytes = segment
        .read(trailer.directory_position, index(trailer.rows) * DIRECTORY_ROW_BYTES)
        .map_err(reading())?;
    if let Some(rows) = footer::decode_directory(&bytes, &trailer, segment.generation) {
        segment.set_footer(trailer, None);
        return Ok(Some((trailer, rows)));
    }
    tracing::warn!(
        segment = segment.sequence,
        "the footer of a sealed segment is damaged; rebuilding it from the data"
    );
    let (streams, end) = scan_indexes(segment, Some(trailer.footer_position), report)?;
    let ScanEnd::Open { position } = end else {
        return Err(damaged(
            segment.sequence,
            trailer.footer_position,
            "a footer stands where its trailer says data is",
        ));
    };
    if position != trailer.footer_position {
        return Err(damaged(segment.sequence, position, "an acknowledged block is invalid"));
    }
    let payload_position = trailer.footer_position + length32(BLOCK_HEADER_BYTES);
    let table = segment.read(trailer.table_position, index(trailer.table_length)).map_err(reading())?;
    let built = footer::build(
        segment.sequence,
        segment.generation,
        trailer.epoch,
        trailer.footer_position,
        payload_position,
        &streams,
        table.to_vec(),
    );
    // The table is copied as it is; its CRC decides whether it can be used.
    let trailer = Trailer { table_crc: trailer.table_crc, ..built.trailer };
    segment.set_footer(trailer, Some((payload_position, built.payload.into())));
    Ok(Some((trailer, built.rows)))
}

fn load_table(
    segment: &Segment,
    trailer: &Trailer,
) -> Result<Option<HashMap<StreamId, TableRow>>, OpenError> {
    let bytes = segment
        .read(trailer.table_position, index(trailer.table_length))
        .map_err(doing(format!("reading {}", file_name(segment.sequence))))?;
    if seeded_crc(segment.generation, &bytes) != trailer.table_crc {
        tracing::warn!(
            segment = segment.sequence,
            "the stream table of a sealed segment is damaged; scanning from an older one"
        );
        return Ok(None);
    }
    Ok(footer::decode_table(&bytes))
}

pub(crate) struct State {
    pub streams: HashMap<StreamId, Arc<Stream>>,
    pub segments: Segments,
    pub coverage: Coverage,
    pub report: RecoveryReport,
    now_ms: i64,
}

/// The active segment with the position after its last valid block, and the prepared segments.
type Tail = (Option<(Arc<Segment>, u32)>, Vec<Arc<Segment>>);

impl State {
    /// Takes the extents of a sealed segment in.
    fn add_sealed(
        &mut self,
        segment: &Arc<Segment>,
        trailer: Trailer,
        payload: Option<(u32, Vec<u8>)>,
        rows: &[DirectoryRow],
    ) {
        if let Some((position, payload)) = payload {
            segment.set_footer(trailer, Some((position, payload.into())));
        }
        let (mut live, mut live_bytes) = (0, 0);
        for (at, row) in rows.iter().enumerate() {
            let Some(stream) = self.streams.get(&row.stream) else { continue };
            self.coverage.add(row.stream, row.base_offset, row.next_offset);
            let mut state = stream.lock();
            if row.next_offset <= state.start {
                continue;
            }
            state.bytes += row.bytes;
            state.push_sealed(SealedExtent {
                base_offset: row.base_offset,
                segment: segment.sequence,
                row: length32(at),
                bytes: u32::try_from(row.bytes).unwrap_or(u32::MAX),
                max_timestamp_s: clamp_timestamp(row.max_timestamp),
            });
            live += 1;
            live_bytes += u64::from(u32::try_from(row.bytes).unwrap_or(u32::MAX));
        }
        segment.set_live(live, live_bytes);
        segment.mark_sealed();
        self.segments.insert(segment.clone());
    }

    /// A segment in the middle of the log whose trailer is gone: its data must be whole up to its footer block.
    fn rebuild(&mut self, segment: &Arc<Segment>) -> Result<(), OpenError> {
        tracing::warn!(
            segment = segment.sequence,
            "the trailer of a sealed segment is damaged; scanning its data"
        );
        match scan_indexes(segment, None, &mut self.report)? {
            (_, ScanEnd::Footer { trailer, payload_position, payload }) => {
                let rows = directory_in(&payload, payload_position, &trailer, segment)?;
                self.add_sealed(segment, trailer, Some((payload_position, payload)), &rows);
                Ok(())
            }
            (_, ScanEnd::Open { position }) => Err(damaged(
                segment.sequence,
                position,
                "a block that was acknowledged is invalid (later segments vouch for it)",
            )),
        }
    }

    /// Scans the segments behind the newest sealed one up to the end of the log.
    fn scan_tail(
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
        // The last segment ended with its footer and nothing was prepared behind it, or there is no log yet.
        Ok((None, Vec::new()))
    }

    /// Searches behind the end of the log: blocks that vouch for the missing one make it damage; the others were never
    /// acknowledged and are dropped.
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
                    // Whole: nothing was written into it later. Otherwise it was torn, or cut off by an earlier
                    // recovery and written over since. What is found does not count for what is searched.
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

    /// Gives prepared segments a new generation, so that stale blocks in them are invalid for good.
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

pub(crate) fn directory_in(
    payload: &[u8],
    payload_position: u32,
    trailer: &Trailer,
    segment: &Segment,
) -> Result<Vec<DirectoryRow>, OpenError> {
    trailer
        .directory_position
        .checked_sub(payload_position)
        .and_then(|at| payload.get(index(at)..))
        .and_then(|bytes| footer::decode_directory(bytes, trailer, segment.generation))
        .ok_or_else(|| damaged(segment.sequence, trailer.footer_position, "its footer contradicts itself"))
}

/// Applies one entry of the log's tail, as the writer did when it wrote it.
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
            state.committed = state.next;
            coverage.add(id, place.base_offset, place.next_offset());
            state.producers.record(&header, place.base_offset, now_ms);
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
