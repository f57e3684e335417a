//! Searches for single batches of a stream. They read batch indexes, never batches.

use model::{Offset, Timestamp};

use super::Reader;
use super::request::ReadError;
use crate::index::{BatchIndex, BatchPlace};
use crate::stream::{ActiveExtent, Stream};

impl Reader {
    /// See [`crate::Log::first_at_or_after`].
    pub fn first_at_or_after(
        &self,
        stream: &Stream,
        timestamp: Timestamp,
    ) -> Result<Option<BatchPlace>, ReadError> {
        self.search(
            stream,
            |max| max >= timestamp,
            |index, from, _| index.first_at_or_after(from, timestamp),
            true,
        )
    }

    /// See [`crate::Log::with_max_timestamp`].
    pub fn with_max_timestamp(&self, stream: &Stream) -> Result<Option<BatchPlace>, ReadError> {
        self.search(stream, |_| true, |index, from, until| index.with_max_timestamp_until(from, until), false)
    }

    /// See [`crate::Log::bytes_between`].
    pub fn bytes_between(&self, stream: &Stream, from: Offset, until: Offset) -> Result<u64, ReadError> {
        let (sealed, active) = {
            let state = stream.lock();
            let ends = (0..state.sealed.len()).map(|at| state.sealed_end(at));
            let sealed: Vec<_> = state.sealed.iter().copied().zip(ends).collect();
            let here = state.active.as_ref().map(|active| (active.from, active.index.clone()));
            (sealed, here)
        };
        let count = |index: &BatchIndex, from: Offset, end: Offset| -> u64 {
            let inside = index.from_offset(from).skip_while(|place| place.base_offset < from);
            inside.take_while(|place| place.base_offset < end).map(|place| u64::from(place.length)).sum()
        };
        let mut bytes = 0;
        for (extent, end) in sealed {
            let (first, last) = (extent.base_offset.max(from), end.min(until));
            if (first, last) == (extent.base_offset, end) {
                bytes += u64::from(extent.bytes);
            } else if first < last
                && let Some(segment) = self.shared.segments.find(extent.segment)
            {
                bytes += count(&*self.shared.index_of(&segment, extent.row)?, first, last);
            }
        }
        if let Some((moved_to, index)) = active {
            bytes += count(&index, moved_to.max(from), until);
        }
        Ok(bytes)
    }

    /// See [`crate::Log::batch_from`].
    pub fn batch_from(&self, stream: &Stream, offset: Offset) -> Result<Option<BatchPlace>, ReadError> {
        let at = offset.max(stream.bounds().start);
        self.search_from(stream, at, |_| true, |index, from, _| index.from_offset(from).next(), true)
    }

    fn search(
        &self,
        stream: &Stream,
        candidate: impl Fn(Timestamp) -> bool,
        find: impl Fn(&BatchIndex, Offset, Offset) -> Option<BatchPlace>,
        first_wins: bool,
    ) -> Result<Option<BatchPlace>, ReadError> {
        let start = stream.bounds().start;
        self.search_from(stream, start, candidate, find, first_wins)
    }

    fn search_from(
        &self,
        stream: &Stream,
        start: Offset,
        candidate: impl Fn(Timestamp) -> bool,
        find: impl Fn(&BatchIndex, Offset, Offset) -> Option<BatchPlace>,
        first_wins: bool,
    ) -> Result<Option<BatchPlace>, ReadError> {
        let committed = stream.bounds().committed;
        let mut best: Option<BatchPlace> = None;
        let mut consider = |place: Option<BatchPlace>| {
            if let Some(place) = place.filter(|place| place.next_offset() <= committed)
                && best.is_none_or(|best| place.max_timestamp > best.max_timestamp)
            {
                best = Some(place);
            }
            best
        };
        let mut at = start;
        loop {
            // The active extent may be sealed during the search of an older one, so each extent is looked up in its
            // turn. Its segment is taken under the same lock, because the cleaner may move the extent at any time.
            let (extent, end, segment) = {
                let state = stream.lock();
                match state.sealed_at(at) {
                    Some((extent, end)) => (extent, end, self.shared.segments.find(extent.segment)),
                    None => {
                        let find =
                            |active: &ActiveExtent| find(&active.index, at.max(active.from), committed);
                        return Ok(consider(state.active.as_ref().and_then(find)));
                    }
                }
            };
            // After compaction cut an extent, its index still has the batches before the cut.
            let from = at.max(extent.base_offset);
            if end <= at {
                return Ok(best);
            }
            at = end;
            let at_most = Timestamp(i64::from(extent.max_timestamp_s).saturating_mul(1000));
            if extent.max_timestamp_s != u32::MAX && !candidate(at_most) {
                continue;
            }
            let Some(segment) = segment else { continue };
            let index = self.shared.index_of(&segment, extent.row)?;
            if let Some(found) = consider(find(&index, from, committed.min(end)))
                && first_wins
            {
                return Ok(Some(found));
            }
        }
    }
}
