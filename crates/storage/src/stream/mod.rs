//! One stream: its offsets, its extents and its producers.
//!
//! The writer adds a batch when it submits the write, and moves `synced` when the write is synced. `committed` follows at
//! once, or, for a replicated stream, when the copy set has the records, or, for a diskless stream, when the object store
//! has them. Readers see only batches below `committed`.
//! Invariants: `start <= committed <= synced <= next`; the extents' base offsets rise; all sealed extents lie before the
//! active one.

mod producers;
mod recorded;
mod stored;
mod waiters;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use model::{Offset, StreamId, Timestamp};
use parking_lot::Mutex;

pub use self::producers::{Producer, Producers, REMEMBERED_BATCHES, RememberedBatch};
pub(crate) use self::recorded::Recorded;
use self::stored::Stored;
pub(crate) use self::waiters::{Waiter, Waiters};
use crate::index::{BatchIndex, BatchPlace};

/// A sealed extent in memory: at most 24 bytes for each stream and segment. The rest of its description is in the
/// segment's footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedExtent {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Sequence number of its segment.
    pub segment: u32,
    /// Row in the segment's directory.
    pub row: u32,
    /// Bytes of its batches; a segment is smaller than 4 GiB.
    pub bytes: u32,
    /// Its max timestamp in whole seconds, rounded up and clamped: precise enough to choose extents, not for a
    /// response.
    pub max_timestamp_s: u32,
}

const _: () = assert!(size_of::<SealedExtent>() == 24);

/// A timestamp in the form of [`SealedExtent`]. An extent whose records have no timestamps does not expire by time,
/// because their age is not known.
pub(crate) fn clamp_timestamp(timestamp: Timestamp) -> u32 {
    if timestamp <= Timestamp::NONE {
        return u32::MAX;
    }
    u32::try_from(timestamp.0.saturating_add(999).max(0) / 1000).unwrap_or(u32::MAX)
}

/// The extent in the active segment.
#[derive(Debug, Default)]
pub(crate) struct ActiveExtent {
    pub segment: u32,
    /// Compaction moved the batches below into another segment. Readers do not read them here.
    pub from: Offset,
    /// Bytes of the batches below `from`.
    pub moved_bytes: u32,
    /// Shared with the footer that is built from it. Only the writer adds to it, and never while it is shared.
    pub index: Arc<BatchIndex>,
}

/// The state behind a stream's lock.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// Records below are deleted.
    pub start: Offset,
    /// The next batch handed to the writer's segment gets this offset or a higher one.
    pub next: Offset,
    /// Records below are on the device.
    pub synced: Offset,
    /// Records below are visible: they are synced and, as the [`Level`] says, somewhere else.
    pub committed: Offset,
    pub sealed: VecDeque<SealedExtent>,
    pub active: Option<ActiveExtent>,
    /// Bytes of all batches in the local extents.
    pub bytes: u64,
    /// What lies in objects; `None` if nothing ever did.
    pub stored: Option<Box<Stored>>,
    /// Bytes of the stored extents without a local copy.
    pub stored_bytes: u64,
    /// Records below are stored, or in an object that is being put.
    pub uploading: Offset,
    /// The objects that record its bounds, in a log whose owner changes.
    pub recorded: Recorded,
    /// The appends whose completion waits until their records are visible.
    pub waiters: Waiters,
    /// Records below are compacted.
    pub compacted: Offset,
    pub producers: Producers,
    pub deleted: bool,
    /// Start and deletion as they will be once everything handed to the device is synced. A footer vouches for all
    /// entries before it, including those in flight.
    pub placed_start: Offset,
    pub placed_delete: bool,
    /// The highest trim that was queued.
    pub trimming: Offset,
}

/// The part of a stream that was copied to another segment.
#[derive(Clone, Default, Debug)]
pub(crate) struct Moved {
    /// Extents that were copied whole, by segment and row.
    pub whole: Vec<(u32, u32)>,
    /// The segment of the extent of which only the first batches were copied, and the bytes of these batches.
    pub part: Option<(u32, u32)>,
}

/// Where the records of a stream are kept beside the local disk, and when they are visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Level {
    /// On the local disk alone.
    Local,
    /// They go to the object store later.
    Tiered,
    /// They are visible once the copy set of the log has them, and go to the object store later.
    Replicated,
    /// They are visible once they are in the object store.
    Diskless,
}

impl Level {
    /// Whether records are visible later than they are synced, and the object store has all of the stream in the end. Local
    /// copies are a cache then.
    pub fn waits(self) -> bool {
        matches!(self, Level::Diskless | Level::Replicated)
    }
}

/// A stream of a log; cheap to share.
#[derive(Debug)]
pub struct Stream {
    id: StreamId,
    /// A [`Level`].
    level: AtomicU8,
    /// Whether the uploader knows that there is something to store.
    awaits_upload: AtomicBool,
    /// It waits apart from the others.
    aside: AtomicBool,
    /// Whether it is one of the leading streams of [`crate::tier`].
    leads: AtomicBool,
    state: Mutex<StreamState>,
}

/// The visible bounds of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The first record of the stream.
    pub start: Offset,
    /// The offset after the last committed record.
    pub committed: Offset,
    /// The offset after the last synced record.
    pub synced: Offset,
    /// Bytes of all its batches.
    pub bytes: u64,
    /// The first offset with a local copy; the start, or above it if older records are in the object store alone.
    pub local_start: Offset,
    /// Records below are in the object store. `None` if none ever were.
    pub stored: Option<Offset>,
}

impl Stream {
    pub(crate) fn new(id: StreamId) -> Stream {
        Stream::with(id, StreamState::default())
    }

    pub(crate) fn restored(id: StreamId, start: Offset, next: Offset, producers: Producers) -> Stream {
        let state = StreamState {
            start,
            next,
            synced: next,
            committed: next,
            producers,
            trimming: start,
            placed_start: start,
            ..StreamState::default()
        };
        Stream::with(id, state)
    }

    fn with(id: StreamId, state: StreamState) -> Stream {
        let (level, awaits_upload) = (AtomicU8::new(Level::Local as u8), AtomicBool::new(false));
        let (aside, leads) = (AtomicBool::new(false), AtomicBool::new(false));
        Stream { id, level, awaits_upload, aside, leads, state: Mutex::new(state) }
    }

    /// Makes it a leading stream.
    pub(crate) fn set_leads(&self) {
        self.leads.store(true, Ordering::Relaxed);
    }

    /// Whether it is a leading stream.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Its id.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Start, committed end and size.
    pub fn bounds(&self) -> Bounds {
        let state = self.state.lock();
        debug_assert!(state.start <= state.committed, "what was trimmed of {:?} was visible", self.id);
        Bounds {
            start: state.start,
            committed: state.committed,
            synced: state.synced,
            bytes: state.bytes + state.stored_bytes,
            local_start: state.local_start(),
            stored: state.stored_to(),
        }
    }

    /// Records below are compacted; at least the start.
    pub fn compacted(&self) -> Offset {
        let state = self.state.lock();
        state.compacted.max(state.start)
    }

    /// The largest offset up to `until` at which a stored extent ends: compaction of a diskless stream goes so far.
    pub fn stored_cut(&self, until: Offset) -> Offset {
        self.state.lock().stored_cut(until)
    }

    /// A copy of the remembered state of its producers.
    pub fn producers(&self) -> Producers {
        self.state.lock().producers.clone()
    }

    pub(crate) fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Release);
    }

    /// Where its records are kept.
    pub fn level(&self) -> Level {
        match self.level.load(Ordering::Acquire) {
            level if level == Level::Local as u8 => Level::Local,
            level if level == Level::Tiered as u8 => Level::Tiered,
            level if level == Level::Replicated as u8 => Level::Replicated,
            _ => Level::Diskless,
        }
    }

    /// Notes whether the uploader knows that there is something to store. Returns what was noted before.
    pub(crate) fn note_awaits_upload(&self, awaits: bool) -> bool {
        self.awaits_upload.swap(awaits, Ordering::AcqRel)
    }

    /// Notes whether the stream waits apart from the others, because its next records cannot be read.
    pub(crate) fn set_aside(&self, aside: bool) {
        self.aside.store(aside, Ordering::Release);
    }

    /// Whether the stream waits apart from the others.
    pub(crate) fn is_aside(&self) -> bool {
        self.aside.load(Ordering::Acquire)
    }

    /// Whether the uploader knows that there is something to store.
    pub(crate) fn awaits_upload(&self) -> bool {
        self.awaits_upload.load(Ordering::Acquire)
    }

    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, StreamState> {
        self.state.lock()
    }
}

impl StreamState {
    /// Makes the records below `end` visible, as far as they are synced. Returns whoever waited for that, or `None` if
    /// they were visible already.
    pub fn show(&mut self, end: Offset) -> Option<Vec<Waiter>> {
        let end = end.min(self.synced);
        if end <= self.committed {
            return None;
        }
        self.committed = end;
        Some(self.waiters.take_below(end))
    }

    /// Lets a stream without batches begin at `offset`, below its start: the first batch has this offset, and holds the start.
    pub fn begin_with(&mut self, offset: Offset) {
        let bare = self.active.is_none() && self.sealed.is_empty() && self.start == self.next;
        assert!(
            bare && offset < self.start,
            "what is stored of a stream ends with a whole batch, or at its start"
        );
        (self.start, self.next, self.synced, self.committed) = (offset, offset, offset, offset);
        (self.placed_start, self.trimming) = (offset, offset);
        self.producers.forget_from(offset);
    }

    /// Adds a batch that the writer places in `segment`. Returns whether it is the stream's first batch there, and by
    /// how many bytes the stored form of the index grows.
    pub fn place(&mut self, segment: u32, place: BatchPlace) -> (bool, usize) {
        let first = self.active.as_ref().is_none_or(|active| active.segment != segment);
        if first {
            assert!(self.active.is_none(), "an extent is sealed before the next segment is used");
            self.active = Some(ActiveExtent { segment, ..ActiveExtent::default() });
        }
        let active = self.active.as_mut().expect("an active extent was just made if there was none");
        let before = active.index.stored_bytes();
        Arc::make_mut(&mut active.index).push(place);
        let grown = active.index.stored_bytes() - before;
        self.bytes += u64::from(place.length);
        self.next = place.next_offset();
        (first, grown)
    }

    /// Adds a sealed extent behind the others. There is one for each stream and segment, so the list grows by an
    /// eighth, not to twice its length.
    pub fn push_sealed(&mut self, extent: SealedExtent) {
        if self.sealed.len() == self.sealed.capacity() {
            self.sealed.reserve_exact(1 + self.sealed.len() / 8);
        }
        self.sealed.push_back(extent);
    }

    /// The sealed extent that holds `offset`, or the first one behind `offset`; with the offset of its end. An extent in
    /// an object, if there is no local copy.
    pub fn sealed_at(&self, offset: Offset) -> Option<(SealedExtent, Offset)> {
        if let Some(found) = self.stored_at(offset) {
            return Some(found);
        }
        if self.active_from().is_some_and(|from| from <= offset) {
            return None;
        }
        let at = self.sealed.partition_point(|extent| extent.base_offset <= offset).saturating_sub(1);
        self.sealed.get(at).map(|extent| (*extent, self.sealed_end(at)))
    }

    /// The last possible end of the sealed extent number `at`: the start of what follows it.
    pub fn sealed_end(&self, at: usize) -> Offset {
        let following = self.sealed.get(at + 1).map(|extent| extent.base_offset);
        following.or_else(|| self.active_from()).unwrap_or(self.next)
    }

    /// Bytes of the local batches from `from` on. Of a sealed extent that begins before, one byte counts.
    pub fn unstored_bytes(&self, from: Offset) -> u64 {
        let sealed = self.sealed.iter().enumerate().filter(|(at, _)| self.sealed_end(*at) > from);
        let sealed =
            sealed.map(|(_, extent)| if extent.base_offset < from { 1 } else { u64::from(extent.bytes) });
        let active = self.active.iter().flat_map(|active| active.index.from_offset(from.max(active.from)));
        sealed.sum::<u64>() + active.map(|place| u64::from(place.length)).sum::<u64>()
    }

    /// The begin of the active extent.
    fn active_from(&self) -> Option<Offset> {
        let active = self.active.as_ref()?;
        active.index.base_offset().map(|base| base.max(active.from))
    }

    /// Replaces everything in `range` that `moved` names by the extent `new`: sealed extents by segment and row, and
    /// one segment of which only the batches below the range's end were moved, with their bytes. If all of that is gone
    /// meanwhile, puts in nothing and returns false. For each extent that is dropped or cut, calls `released` with its
    /// segment, the bytes that are no longer live in it, and whether the extent is dropped.
    pub fn supersede(
        &mut self,
        new: SealedExtent,
        range: Range<Offset>,
        moved: &Moved,
        mut released: impl FnMut(u32, u32, bool),
    ) -> bool {
        let mut found = false;
        self.sealed.retain_mut(|extent| {
            if moved.whole.contains(&(extent.segment, extent.row)) {
                self.bytes -= u64::from(extent.bytes);
                released(extent.segment, extent.bytes, true);
                found = true;
                return false;
            }
            let Some((segment, bytes)) = moved.part else { return true };
            // The segment may have another extent of the stream, from before the range.
            if extent.segment != segment || !range.contains(&extent.base_offset) {
                return true;
            }
            // The active extent was sealed in the meantime.
            found = true;
            self.bytes -= u64::from(bytes);
            let all = bytes == extent.bytes;
            released(segment, bytes, all);
            extent.bytes -= bytes;
            extent.base_offset = range.end;
            !all
        });
        if let (Some(active), Some((segment, bytes))) = (&mut self.active, moved.part)
            && active.segment == segment
            && active.from < range.end
        {
            found = true;
            active.from = range.end;
            active.moved_bytes += bytes;
            self.bytes -= u64::from(bytes);
        }
        if found {
            let at = self.sealed.partition_point(|extent| extent.base_offset < new.base_offset);
            self.sealed.insert(at, new);
            self.bytes += u64::from(new.bytes);
        }
        found
    }

    /// Moves the start to `to` and drops the sealed extents that end at or below it. Calls `dropped` with the segment
    /// and the bytes of each.
    pub fn trim(&mut self, to: Offset, mut dropped: impl FnMut(u32, u32)) {
        self.start = self.start.max(to);
        self.trimming = self.trimming.max(to);
        self.placed_start = self.placed_start.max(to);
        while !self.sealed.is_empty() && self.sealed_end(0) <= self.start {
            let extent = self.sealed.pop_front().expect("it was just seen not to be empty");
            self.bytes -= u64::from(extent.bytes);
            dropped(extent.segment, extent.bytes);
        }
        self.trim_stored(dropped);
    }

    /// The start after retention. Retention drops sealed extents whose every record is older than `oldest`, such
    /// batches of the active extent, and the oldest data beyond `bytes_max` (Kafka's `retention.ms` and
    /// `retention.bytes`: the newest data that reaches the size stays).
    pub fn retained_from(&self, oldest: Option<Timestamp>, bytes_max: Option<u64>) -> Offset {
        let (mut start, mut bytes) = (self.start, self.bytes + self.stored_bytes);
        // The bytes of what is stored were counted earlier, and some may have gone since.
        let too_big = |bytes: u64, part: u64| bytes_max.is_some_and(|max| bytes.saturating_sub(part) >= max);
        let local = self.sealed.iter().enumerate().map(|(at, extent)| (*extent, self.sealed_end(at)));
        for (extent, end) in self.only_stored().chain(local) {
            if !extent.is_older(oldest) && !too_big(bytes, u64::from(extent.bytes)) {
                return start.min(self.committed);
            }
            bytes = bytes.saturating_sub(u64::from(extent.bytes));
            start = start.max(end);
        }
        let Some(active) = &self.active else { return start.min(self.committed) };
        let in_active = u64::from(active.index.bytes() - active.moved_bytes);
        let expired = |max: Timestamp| max > Timestamp::NONE && oldest.is_some_and(|oldest| max < oldest);
        let may_go = |before: u32, max_before| {
            expired(max_before) || too_big(in_active, u64::from(before.saturating_sub(active.moved_bytes)))
        };
        if let Some(cut) = active.index.last_cut(may_go) {
            start = start.max(cut);
        }
        if active.index.max_timestamp().is_some_and(expired) {
            start = start.max(self.next);
        }
        start.min(self.committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(base: i64, position: u32, length: u32, timestamp: i64) -> BatchPlace {
        BatchPlace {
            base_offset: Offset(base),
            offset_count: 10,
            position,
            length,
            max_timestamp: Timestamp(timestamp),
        }
    }

    fn sample() -> StreamState {
        let mut state = StreamState::default();
        for (n, seconds) in [1u32, 2, 3].into_iter().enumerate() {
            let n = u32::try_from(n).unwrap();
            state.sealed.push_back(SealedExtent {
                base_offset: Offset(i64::from(n) * 10),
                segment: n,
                row: 0,
                bytes: 100,
                max_timestamp_s: seconds,
            });
            state.bytes += 100;
        }
        state.place(3, place(30, 4096, 100, 4000));
        state.committed = Offset(40);
        state
    }

    #[test]
    fn retention_drops_whole_old_extents_by_age_and_by_size() {
        let state = sample();
        assert_eq!(state.retained_from(None, None), Offset(0));
        assert_eq!(state.retained_from(Some(Timestamp(2500)), None), Offset(20));
        assert_eq!(state.retained_from(Some(Timestamp(4001)), None), Offset(40));
        assert_eq!(state.retained_from(None, Some(250)), Offset(10));
        assert_eq!(state.retained_from(None, Some(200)), Offset(20));
        assert_eq!(state.retained_from(None, Some(0)), Offset(30));
    }

    /// What lies in an object and, in part, on the local disk does not count twice: retention would drop too much.
    #[test]
    fn retention_counts_the_bytes_once() {
        let mut state = sample();
        for (base, end) in [(0, 15), (15, 40)] {
            let extent = SealedExtent {
                base_offset: Offset(base),
                segment: 1 << 31,
                row: 0,
                bytes: if base == 0 { 150 } else { 250 },
                max_timestamp_s: 1,
            };
            assert!(state.add_stored(extent, Offset(end)));
        }
        assert_eq!((state.bytes, state.stored_bytes), (400, 0));
        // The second object's first 50 bytes have no local copy, and the other 200 have one.
        state.evict(Offset(20), |_, _| {});
        assert_eq!((state.bytes, state.stored_bytes), (200, 200));
        for (bytes_max, start) in [(400, 0), (251, 0), (250, 15), (201, 15), (200, 20), (199, 20), (100, 30)]
        {
            assert_eq!(state.retained_from(None, Some(bytes_max)), Offset(start), "{bytes_max} bytes stay");
        }
    }

    /// A cleaned segment may hold two extents of a stream, of which the second is compacted in parts.
    #[test]
    fn a_part_of_an_extent_is_not_taken_from_another_one_in_its_segment() {
        let mut state = sample();
        for extent in &mut state.sealed {
            (extent.row, extent.segment) = (extent.segment, 7);
        }
        let new = SealedExtent { base_offset: Offset(10), segment: 8, row: 0, bytes: 30, max_timestamp_s: 2 };
        let moved = Moved { whole: Vec::new(), part: Some((7, 60)) };
        let mut released = Vec::new();
        let taken = state.supersede(new, Offset(10)..Offset(15), &moved, |segment, bytes, all| {
            released.push((segment, bytes, all));
        });
        assert!(taken);
        assert_eq!(released, [(7, 60, false)]);
        let left: Vec<_> =
            state.sealed.iter().map(|e| (e.base_offset.0, e.segment, e.row, e.bytes)).collect();
        assert_eq!(left, [(0, 7, 0, 100), (10, 8, 0, 30), (15, 7, 1, 40), (20, 7, 2, 100)]);
        assert_eq!(state.bytes, 370);
    }

    #[test]
    fn a_trim_drops_extents_that_end_below_it_only() {
        let mut state = sample();
        let mut dropped = Vec::new();
        state.trim(Offset(15), |segment, _| dropped.push(segment));
        assert_eq!((dropped.clone(), state.start, state.bytes), (vec![0], Offset(15), 300));
        state.trim(Offset(40), |segment, _| dropped.push(segment));
        assert_eq!((dropped, state.bytes), (vec![0, 1, 2], 100));
        assert!(state.sealed_at(Offset(15)).is_none());
    }
}
