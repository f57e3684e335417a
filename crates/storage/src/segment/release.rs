//! Trimming and deleting streams: the segments that held their records count them as live no longer.

use model::Offset;

use super::Segments;
use crate::stream::Stream;

/// Moves a stream's start and releases the extents that are no longer live.
pub(crate) fn trim(stream: &Stream, to: Offset, segments: &Segments) {
    let mut dropped = Vec::new();
    stream.lock().trim(to, |sequence, bytes| dropped.push((sequence, bytes)));
    release(&dropped, segments);
}

/// Drops all that a deleted stream had.
pub(crate) fn delete(stream: &Stream, segments: &Segments) {
    let mut state = stream.lock();
    state.deleted = true;
    state.active = None;
    state.bytes = 0;
    let dropped: Vec<(u32, u32)> =
        state.sealed.drain(..).map(|extent| (extent.segment, extent.bytes)).collect();
    drop(state);
    release(&dropped, segments);
}

fn release(dropped: &[(u32, u32)], segments: &Segments) {
    for (sequence, bytes) in dropped {
        if let Some(segment) = segments.find(*sequence) {
            segment.release(*bytes);
        }
    }
}
