//! The state of a log during opening: its streams and its segments so far.

use std::collections::HashMap;
use std::sync::Arc;

use model::StreamId;

use super::coverage::Coverage;
use super::outcome::{OpenError, RecoveryReport, damaged};
use super::scan::{ScanEnd, scan_indexes};
use super::sealed::directory_in;
use crate::format::{DirectoryRow, Trailer, length32};
use crate::segment::{Segment, Segments};
use crate::stream::{SealedExtent, Stream, clamp_timestamp};

/// The log so far.
pub(crate) struct State {
    pub streams: HashMap<StreamId, Arc<Stream>>,
    pub segments: Segments,
    pub coverage: Coverage,
    pub report: RecoveryReport,
    pub now_ms: i64,
}

impl State {
    /// Adds the extents of a sealed segment.
    pub fn add_sealed(
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

    /// Rebuilds a segment in the middle of the log whose trailer is gone. Its data must be whole up to its footer
    /// block.
    pub fn rebuild(&mut self, segment: &Arc<Segment>) -> Result<(), OpenError> {
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
}
