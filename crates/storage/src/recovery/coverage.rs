//! Coverage: the offsets of each stream for which some segment has an extent. A log with missing offsets is refused.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Offset, StreamId};

use super::outcome::OpenError;
use crate::ranges::OffsetRanges;
use crate::stream::Stream;

/// The covered offsets of each stream.
#[derive(Default)]
pub(crate) struct Coverage(HashMap<StreamId, OffsetRanges>);

impl Coverage {
    /// Records that `from..to` is covered.
    pub fn add(&mut self, stream: StreamId, from: Offset, to: Offset) {
        self.0.entry(stream).or_default().add((from, to));
    }

    /// The parts of a range of offsets that are not covered.
    pub fn gaps(&self, stream: StreamId, range: (Offset, Offset)) -> Vec<(Offset, Offset)> {
        self.0.get(&stream).map_or_else(|| vec![range], |ranges| ranges.gaps(range))
    }

    /// Forgets what is covered below `to`.
    pub fn forget_below(&mut self, stream: StreamId, to: Offset) {
        let Some(ranges) = self.0.get_mut(&stream) else { return };
        let Some(end) = ranges.end().filter(|end| *end > to) else {
            *ranges = OffsetRanges::default();
            return;
        };
        let missing: OffsetRanges = ranges.gaps((to, end)).into_iter().collect();
        *ranges = missing.gaps((to, end)).into_iter().collect();
    }

    /// Forgets a deleted stream.
    pub fn forget(&mut self, stream: StreamId) {
        self.0.remove(&stream);
    }

    /// Refuses a log if a stream has offsets without a segment.
    pub fn check(&mut self, streams: &HashMap<StreamId, Arc<Stream>>) -> Result<(), OpenError> {
        for (id, stream) in streams {
            let (start, next) = {
                let state = stream.lock();
                (state.start, state.next)
            };
            let ranges = self.0.entry(*id).or_default();
            let end = ranges.end().map_or(next, |end| end.max(next));
            if let Some((from, to)) = ranges.gaps((start, end)).first() {
                return Err(OpenError::Lost { stream: *id, from: *from, to: *to });
            }
        }
        Ok(())
    }
}
