//! The part of a stream that lies in objects: which offsets, and which of them have no local copy any more.

use std::collections::VecDeque;

use model::{Offset, Timestamp};

use super::{SealedExtent, StreamState};

/// The extents of a stream that lie in objects. Those at the end usually have a local copy, from which they are read.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// In the order of their offsets, without gaps; the last one ends at `to`.
    pub extents: VecDeque<SealedExtent>,
    /// Records below are stored, as far as they are not deleted.
    pub to: Offset,
    /// Where the last read from objects ended.
    read_to: Offset,
    /// Whether a thread fetches ahead of a reader, or is about to.
    fetching_ahead: bool,
}

impl Stored {
    fn end(&self, at: usize) -> Offset {
        self.extents.get(at + 1).map_or(self.to, |next| next.base_offset)
    }
}

impl StreamState {
    /// The first offset that is held locally.
    pub fn local_from(&self) -> Offset {
        self.sealed
            .front()
            .map(|extent| extent.base_offset)
            .or_else(|| self.active_from())
            .unwrap_or(self.next)
    }

    /// The first offset that can be read without the object store, if there are records.
    pub fn local_start(&self) -> Offset {
        self.local_from().max(self.start)
    }

    /// Whether nothing is left to store: what was trimmed is stored by nobody.
    pub fn is_stored(&self) -> bool {
        self.stored_to().unwrap_or(self.start).max(self.start) >= self.synced
    }

    /// Whether objects have neither the records below `end`, nor, if those were trimmed, that the stream went so far: the next owner
    /// has to know that.
    pub fn lacks_in_objects(&self, end: Offset) -> bool {
        let stored = self.stored_to().is_some_and(|stored| stored >= end);
        !self.deleted && !stored && (self.start < end || self.recorded.next() < end)
    }

    /// Records below are stored. `None` if nothing was ever stored.
    pub fn stored_to(&self) -> Option<Offset> {
        self.stored.as_ref().map(|stored| stored.to)
    }

    /// The stored extent that holds `offset` and its end, if `offset` has no local copy.
    pub(super) fn stored_at(&self, offset: Offset) -> Option<(SealedExtent, Offset)> {
        let stored = self.stored.as_ref()?;
        let local_from = self.local_from();
        if offset >= local_from {
            return None;
        }
        let at = stored.extents.partition_point(|extent| extent.base_offset <= offset).saturating_sub(1);
        let extent = stored.extents.get(at)?;
        Some((*extent, stored.end(at).min(local_from)))
    }

    /// Whether the record at `offset` has no local copy.
    pub fn is_only_stored(&self, offset: Offset) -> bool {
        self.stored_at(offset).is_some()
    }

    /// The stored extents without a local copy, each with its end. Of one that has a local copy in part, those bytes count
    /// that have none, or fewer.
    pub(super) fn only_stored(&self) -> impl Iterator<Item = (SealedExtent, Offset)> {
        let local_from = self.local_from();
        self.stored.iter().flat_map(move |stored| {
            let extents = stored.extents.iter().enumerate();
            let extents = extents.take_while(move |(_, extent)| extent.base_offset < local_from);
            extents.map(move |(at, extent)| {
                let (mut extent, end) = (*extent, stored.end(at));
                if end > local_from {
                    let local = u32::try_from(self.local_bytes_below(end)).unwrap_or(u32::MAX);
                    extent.bytes = extent.bytes.saturating_sub(local);
                }
                (extent, end.min(local_from))
            })
        })
    }

    /// Bytes of the local batches below `end`, and of those in the same sealed extent.
    fn local_bytes_below(&self, end: Offset) -> u64 {
        let sealed = self.sealed.iter().take_while(|extent| extent.base_offset < end);
        let active = self.active.iter().flat_map(|active| active.index.from_offset(active.from));
        let active = active.take_while(|place| place.base_offset < end);
        sealed.map(|extent| u64::from(extent.bytes)).sum::<u64>()
            + active.map(|place| u64::from(place.length)).sum::<u64>()
    }

    /// Notes a read of `from..next` from objects. Returns true if the caller should fetch ahead: the reader goes on where
    /// the last one ended, and nobody fetches ahead.
    pub fn begin_ahead(&mut self, from: Offset, next: Offset) -> bool {
        let Some(stored) = &mut self.stored else { return false };
        let scans = std::mem::replace(&mut stored.read_to, next) == from;
        scans && !std::mem::replace(&mut stored.fetching_ahead, true)
    }

    /// Ends the fetching of the caller that got true from `begin_ahead`.
    pub fn end_ahead(&mut self) {
        if let Some(stored) = &mut self.stored {
            stored.fetching_ahead = false;
        }
    }

    /// The largest offset up to `until` at which a stored extent ends.
    pub fn stored_cut(&self, until: Offset) -> Offset {
        let Some(stored) = &self.stored else { return Offset::ZERO };
        let ends = (0..stored.extents.len()).map(|at| stored.end(at));
        ends.take_while(|end| *end <= until).last().unwrap_or_default()
    }

    /// The stored extents that begin at or above `from` and end at or below `until`, each with its end.
    pub fn stored_between(&self, from: Offset, until: Offset) -> Vec<(SealedExtent, Offset)> {
        let Some(stored) = &self.stored else { return Vec::new() };
        let all = stored.extents.iter().enumerate().map(|(at, extent)| (*extent, stored.end(at)));
        all.filter(|(extent, end)| extent.base_offset >= from && *end <= until).collect()
    }

    /// The first offset that is neither stored nor in an object that is being put.
    pub fn upload_from(&self) -> Offset {
        self.stored_to().unwrap_or_default().max(self.uploading).max(self.start)
    }

    /// Bytes of the records below `end`, or of all synced ones, that are neither stored nor in an object that is being put.
    /// A sealed extent counts whole.
    pub fn unstored_below(&self, end: Option<Offset>) -> u64 {
        let (from, end) = (self.upload_from(), end.unwrap_or(self.synced).min(self.synced));
        if self.deleted || from >= end {
            return 0;
        }
        let sealed = self.sealed.iter().enumerate();
        let sealed = sealed.filter(|(at, extent)| self.sealed_end(*at) > from && extent.base_offset < end);
        let active = self.active.iter().flat_map(|active| active.index.from_offset(from.max(active.from)));
        let active = active.take_while(|place| place.base_offset < end);
        sealed.map(|(_, extent)| u64::from(extent.bytes)).sum::<u64>()
            + active.map(|place| u64::from(place.length)).sum::<u64>()
    }

    /// Adds an extent that was stored, up to `end`. Returns false if it does not continue what is stored, or if nothing
    /// is stored and the extent begins above the start: records below would seem to be stored.
    pub fn add_stored(&mut self, extent: SealedExtent, end: Offset) -> bool {
        let stored = self.stored.get_or_insert_default();
        let continues = match stored.extents.is_empty() {
            true => extent.base_offset <= self.start,
            false => extent.base_offset == stored.to,
        };
        if !continues || end > self.next {
            if stored.extents.is_empty() {
                self.stored = None;
            }
            return false;
        }
        stored.extents.push_back(extent);
        stored.to = end;
        self.count_stored();
        true
    }

    /// Puts `new`, up to `end`, in the place of the stored extents of its offsets. If it is compacted, their local copies
    /// go, too. `old` are segment and row of the extents that `new` was made from. Returns false if others are there now.
    /// Calls `dropped` with the segment and the bytes of each extent that goes.
    pub fn replace_stored(
        &mut self,
        (new, end): (SealedExtent, Offset),
        old: &[(u32, u32)],
        compacted: bool,
        mut dropped: impl FnMut(u32, u32),
    ) -> bool {
        let Some(stored) = &mut self.stored else { return false };
        let from = stored.extents.partition_point(|extent| extent.base_offset < new.base_offset);
        let to = stored.extents.partition_point(|extent| extent.base_offset < end);
        // Those at the front may have been trimmed since.
        let now = stored.extents.range(from..to).map(|extent| (extent.segment, extent.row));
        if from >= to || !now.rev().eq(old.iter().rev().copied().take(to - from)) || stored.end(to - 1) != end
        {
            return false;
        }
        for extent in stored.extents.drain(from..to) {
            dropped(extent.segment, extent.bytes);
        }
        stored.extents.insert(from, new);
        if compacted {
            self.compacted = self.compacted.max(end);
            self.drop_local(end, dropped);
        }
        self.count_stored();
        true
    }

    /// Drops the stored extents that end at or below the start. Calls `dropped` with the segment and the bytes of each.
    pub(super) fn trim_stored(&mut self, mut dropped: impl FnMut(u32, u32)) {
        let start = self.start;
        let Some(stored) = &mut self.stored else { return };
        while !stored.extents.is_empty() && stored.end(0) <= start {
            let extent = stored.extents.pop_front().expect("it was just seen not to be empty");
            dropped(extent.segment, extent.bytes);
        }
        self.count_stored();
    }

    /// Drops all stored extents.
    pub fn drop_stored(&mut self, mut dropped: impl FnMut(u32, u32)) {
        let Some(stored) = self.stored.take() else { return };
        stored.extents.iter().for_each(|extent| dropped(extent.segment, extent.bytes));
        (self.stored_bytes, self.uploading) = (0, Offset::ZERO);
    }

    /// Drops the local copies of sealed extents that end at or below `to`, as far as they are stored. Calls `dropped`
    /// with the segment and the bytes of each.
    pub fn evict(&mut self, to: Offset, mut dropped: impl FnMut(u32, u32)) {
        let Some(to) = self.stored_to().map(|stored| stored.min(to)) else { return };
        while !self.sealed.is_empty() && self.sealed_end(0) <= to {
            let extent = self.sealed.pop_front().expect("it was just seen not to be empty");
            self.bytes -= u64::from(extent.bytes);
            dropped(extent.segment, extent.bytes);
        }
        self.count_stored();
    }

    /// Drops the local copies below `to`, also of extents that go on behind it. Calls `dropped` with the segment and the
    /// bytes of each extent that goes as a whole.
    pub fn drop_local(&mut self, to: Offset, mut dropped: impl FnMut(u32, u32)) {
        while !self.sealed.is_empty() && self.sealed_end(0) <= to {
            let extent = self.sealed.pop_front().expect("it was just seen not to be empty");
            self.bytes -= u64::from(extent.bytes);
            dropped(extent.segment, extent.bytes);
        }
        // The rest of an extent keeps its bytes: they say how much of the segment is in use.
        if let Some(first) = self.sealed.front_mut() {
            first.base_offset = first.base_offset.max(to);
        } else if let Some(active) = &mut self.active
            && active.from < to
        {
            let gone = active.index.from_offset(active.from).take_while(|place| place.base_offset < to);
            let bytes: u32 = gone.map(|place| place.length).sum();
            active.from = to;
            active.moved_bytes += bytes;
            self.bytes -= u64::from(bytes);
        }
        self.count_stored();
    }

    /// The offset up to which local copies may be dropped: their records are older than `oldest`, or beyond the newest
    /// `bytes_max` (`local.retention.ms`, `local.retention.bytes`).
    pub fn kept_locally_from(&self, oldest: Option<Timestamp>, bytes_max: Option<u64>) -> Offset {
        let Some(stored) = self.stored_to() else { return self.start };
        let (mut to, mut bytes) = (self.start, self.bytes);
        for (at, extent) in self.sealed.iter().enumerate() {
            let expired = extent.is_older(oldest);
            let too_big = bytes_max.is_some_and(|max| bytes - u64::from(extent.bytes) >= max);
            if self.sealed_end(at) > stored || !(expired || too_big) {
                break;
            }
            bytes -= u64::from(extent.bytes);
            to = to.max(self.sealed_end(at));
        }
        to
    }

    /// Counts the bytes without a local copy.
    fn count_stored(&mut self) {
        self.stored_bytes = self.only_stored().map(|(extent, _)| u64::from(extent.bytes)).sum();
    }
}

impl SealedExtent {
    /// Whether all its records are older than `oldest`.
    pub(super) fn is_older(&self, oldest: Option<Timestamp>) -> bool {
        oldest.is_some_and(|oldest| i64::from(self.max_timestamp_s) * 1000 < oldest.0)
    }
}
