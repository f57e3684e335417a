//! Recovery: opens a log after a clean stop, `kill -9`, a power cut, or a disk failure.
//!
//! Recovery reads the trailers and directories of sealed segments. It scans only segments without a valid trailer. The
//! log ends before the first invalid block, unless a later block vouches for it. A block carries the highest position
//! that was synced when the block was written. An invalid block *below* such a position was acknowledged once, so its
//! loss is damage: recovery names the damage and refuses the log, and never takes the damage for the end.
//!
//! Recovery writes only: the last blocks of the log as they are, the trailer of a segment that is otherwise complete,
//! and new headers for prepared segments that may hold stale blocks.

mod coverage;
mod outcome;
mod overlay;
pub(crate) mod scan;
mod sealed;
mod state;
mod stored;
mod tail;

use std::collections::HashMap;
use std::sync::Arc;

use disk::{AlignedBuffer, Disk, SECTOR};
use model::StreamId;

use self::coverage::Coverage;
pub use self::outcome::{OpenError, RecoveryReport};
pub(crate) use self::outcome::{damaged, doing};
pub(crate) use self::sealed::load_sealed;
use self::sealed::load_table;
use self::state::State;
pub(crate) use self::stored::{StoredSegment, open_stored, stored_ranges};
use crate::format::{
    CLEANED, DirectoryRow, SEGMENT_HEADER_BYTES, STORED, SegmentHeader, TRAILER_BYTES, Trailer, index,
};
use crate::segment::footer::TableRow;
use crate::segment::object::Places;
use crate::segment::{
    CLEANING, PREPARING, REMOVING, STORING, Segment, Segments, file_name, is_cleaned, sequence_of,
};
use crate::stream::Stream;

/// Sequence number of the first segment of a log.
const FIRST_SEQUENCE: u32 = 1;

/// The result of recovery.
pub(crate) struct Recovered {
    pub streams: HashMap<StreamId, Arc<Stream>>,
    pub segments: Segments,
    /// The active segment and the position after its last valid block; `None` for an empty directory.
    pub active: Option<(Arc<Segment>, u32)>,
    /// Prepared segments, prepared once more.
    pub prepared: Vec<Arc<Segment>>,
    pub next_sequence: u32,
    /// Sequence number of the cleaner's next segment.
    pub next_cleaned: u32,
    pub next_generation: u64,
    pub next_epoch: u64,
    /// Sequence number of the next segment in the object store.
    pub next_stored: u32,
    pub log_id: Option<u128>,
    pub report: RecoveryReport,
}

/// Opens the log on `disk`, or an empty one. `places` says where the segments in the
/// object store are, which is not asked for anything.
pub(crate) fn recover(disk: &dyn Disk, places: Option<&Places>, now_ms: i64) -> Result<Recovered, OpenError> {
    let mut opened = open_segments(disk)?;
    let mut report = RecoveryReport::default();
    let log_id = opened.first().map(|(_, header)| header.log_id);
    let stored = open_stored(disk, places, log_id, &mut report)?;
    let segments = opened.iter().map(|(segment, _)| segment);
    let all = segments.chain(stored.iter().map(|stored| &stored.segment));
    let next_generation = all.map(|segment| segment.generation).max().unwrap_or(0) + 1;
    let next_stored = stored.last().map_or(STORED + 1, |last| last.segment.sequence + 1);
    let cleaned = opened.split_off(opened.partition_point(|(segment, _)| !is_cleaned(segment.sequence)));
    let next_sequence = opened.last().map_or(FIRST_SEQUENCE, |(segment, _)| segment.sequence + 1);
    let next_cleaned = cleaned.last().map_or(CLEANED + 1, |(segment, _)| segment.sequence + 1);

    let mut sealed: Vec<Option<(Trailer, Vec<DirectoryRow>)>> = Vec::new();
    for (segment, _) in &opened {
        sealed.push(load_sealed(segment, &mut report)?);
    }
    // Footers describe everything up to the newest sealed segment with a readable table.
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
        // on the strength of its table, so a later power cut must not lose it.
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
    if let Some(first) = stored.first().filter(|_| log_id.is_none()) {
        return Err(damaged(first.segment.sequence, 32, "it belongs to another log"));
    }
    state.add_stored(stored)?;
    state.coverage.check(&state.streams)?;
    Ok(Recovered {
        streams: state.streams,
        segments: state.segments,
        active,
        prepared,
        next_sequence,
        next_cleaned,
        next_stored,
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
    for worthless in [PREPARING, CLEANING, STORING, REMOVING] {
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
