//! Trimming, evicting and deleting streams: releases their extents in the segments that hold them.

use model::Offset;

use super::Segments;
use crate::completion::AppendError;
use crate::stream::{Stream, Waiter};

/// Moves a stream's start and releases the extents below it. What was trimmed was visible, which a copy that has the trim may not
/// say: the visible end is never below the start.
pub(crate) fn trim(stream: &Stream, to: Offset, segments: &Segments) {
    let mut dropped = Vec::new();
    let shown = {
        let mut state = stream.lock();
        state.trim(to, |sequence, bytes| dropped.push((sequence, bytes)));
        let start = state.start;
        state.show(start)
    };
    release(&dropped, segments);
    shown.into_iter().flatten().for_each(|waiter| waiter.done.complete(Ok(())));
}

/// Drops the local copies of a stream's records below `to`, as far as they are stored in objects.
pub(crate) fn evict(stream: &Stream, to: Offset, segments: &Segments) {
    let mut dropped = Vec::new();
    stream.lock().evict(to, |sequence, bytes| dropped.push((sequence, bytes)));
    release(&dropped, segments);
}

/// Releases the stored extents of a stream whose records all have local copies.
pub(crate) fn forget_stored(stream: &Stream, segments: &Segments) {
    let mut dropped = Vec::new();
    let mut state = stream.lock();
    if state.local_start() <= state.start {
        state.drop_stored(|sequence, bytes| dropped.push((sequence, bytes)));
    }
    drop(state);
    release(&dropped, segments);
}

/// Releases all extents of a deleted stream.
pub(crate) fn delete(stream: &Stream, segments: &Segments) {
    let mut state = stream.lock();
    state.deleted = true;
    state.active = None;
    state.bytes = 0;
    let mut dropped: Vec<(u32, u32)> =
        state.sealed.drain(..).map(|extent| (extent.segment, extent.bytes)).collect();
    state.drop_stored(|sequence, bytes| dropped.push((sequence, bytes)));
    let waiters = state.waiters.take();
    let mut recorded = std::mem::take(&mut state.recorded);
    drop(state);
    release(&dropped, segments);
    Waiter::fail_all(waiters, &deleted());
    recorded.fail(&deleted());
}

/// The outcome of an append that waited to be stored when its stream was deleted.
pub(crate) fn deleted() -> AppendError {
    AppendError::Unstored("the topic was deleted".into())
}

fn release(dropped: &[(u32, u32)], segments: &Segments) {
    for (sequence, bytes) in dropped {
        if let Some(segment) = segments.find(*sequence) {
            segment.release(*bytes);
        }
    }
}
