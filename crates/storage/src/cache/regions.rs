//! The region cache: regions of segment files, for batches that the tail cache no longer holds. The cache is bounded,
//! and reads ahead.
//!
//! A region serves every stream with batches in it, so readers that lag together share one scan. Read-ahead grows while
//! misses follow each other, and falls back when they do not. The write path never sees this cache: cold reads block
//! only their own few threads, neither the tail cache nor the writer's queue.
//!
//! Two queues keep one long scan from flushing the whole cache. A region begins on probation. It is protected only when
//! it is asked for again after it left the newest half of probation.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::ops::RangeInclusive;

use bytes::Bytes;
use disk::BufferPool;
use parking_lot::{Condvar, Mutex};

use crate::format::{SECTOR, index, length32};
use crate::index::BatchPlace;
use crate::segment::Segment;

/// Bytes of a region: one read serves some dozens of fetches, and a single miss does not read much in vain.
pub(crate) const REGION_BYTES: usize = 256 * 1024;
/// Upper bound of the regions read by one miss.
const READ_AHEAD_REGIONS_MAX: u32 = 4;

/// Buffers kept for the next reads: new memory for each read costs more than the read.
const BUFFERS_KEPT: usize = 16;

/// Remembered regions with unreadable sectors: each further try would cost the device's time-out.
const BAD_REMEMBERED: usize = 64;

/// Stretches of the log that fit the cache: readers may be in different ones.
const STRETCHES: usize = 8;
/// A stretch is at most 1 GiB long, because positions in a segment have 32 bits.
const BYTES_MAX: usize = STRETCHES << 30;

/// Segment and number of the region.
type Key = (u32, u32);

/// A stretch of the log, in the log's order. The batches of streams that lag together are interleaved in it. Readers in
/// the same stretch share one scan; readers in further stretches compete for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    segment: u32,
    number: u32,
}

impl Stretch {
    /// The stretch with the batch at `position` of an object. Its streams do not share reads.
    pub(crate) fn of_object(segment: &Segment, position: u32) -> Stretch {
        Stretch { segment: segment.sequence, number: position / super::RUN_BYTES }
    }

    /// The first stretch of a segment, for a stream whose place in the segment is not known yet.
    pub(crate) fn beginning_of(segment: &Segment) -> Stretch {
        Stretch { segment: segment.sequence, number: 0 }
    }
}

/// Regions of segment files, by segment and number.
#[derive(Debug)]
pub(crate) struct Regions {
    state: Mutex<RegionState>,
    loaded: Condvar,
    regions_max: usize,
    /// One buffer for each region, so that a dropped region, or one that a reader keeps, keeps no other region alive.
    buffers: BufferPool,
}

#[derive(Debug, Default)]
struct RegionState {
    entries: HashMap<Key, Entry>,
    probation: VecDeque<Key>,
    protected: VecDeque<Key>,
    /// The end of the last miss's read, and the number of its regions.
    next_miss: Option<Key>,
    read_ahead: u32,
    /// The furthest region that a scan asked for.
    wanted: Option<Key>,
    /// A thread reads ahead, or is about to.
    reading_ahead: bool,
    loading: Vec<Key>,
    /// Regions that could not be read as a whole lately; the newest is last.
    bad: VecDeque<Key>,
    hits: u64,
    misses: u64,
    arrivals: u64,
}

#[derive(Debug)]
struct Entry {
    bytes: Bytes,
    arrived: u64,
    protected: bool,
}

impl Regions {
    pub fn new(bytes_max: usize) -> Regions {
        let bytes_max = bytes_max.min(BYTES_MAX);
        let regions_max = (bytes_max / REGION_BYTES).max(STRETCHES.max(2 * index(READ_AHEAD_REGIONS_MAX)));
        let buffers = BufferPool::new(REGION_BYTES, BUFFERS_KEPT);
        Regions { state: Mutex::default(), loaded: Condvar::new(), regions_max, buffers }
    }

    /// Upper bound of the bytes in the cache.
    pub fn bytes_max(&self) -> usize {
        self.regions_max * REGION_BYTES
    }

    /// Bytes of buffers that the cache or readers hold.
    pub fn out_bytes(&self) -> usize {
        self.buffers.out_bytes()
    }

    /// The stretch of the log with this batch.
    pub fn stretch(&self, segment: &Segment, place: &BatchPlace) -> Stretch {
        let bytes = self.regions_max / STRETCHES * REGION_BYTES;
        Stretch { segment: segment.sequence, number: place.position / length32(bytes) }
    }

    /// The `length` bytes at `position` as slices of cached regions. `None` if a region is missing.
    pub fn find(&self, segment: &Segment, position: u32, length: usize) -> Option<Vec<Bytes>> {
        let mut state = self.state.lock();
        let mut parts = Vec::with_capacity(2);
        let (mut at, end) = (index(position), index(position) + length);
        while at < end {
            let region = at / REGION_BYTES;
            let from = at - region * REGION_BYTES;
            let key = (segment.sequence, u32::try_from(region).ok()?);
            let bytes = state.touch(key, self.regions_max)?;
            let to = (end - region * REGION_BYTES).min(bytes.len());
            if to <= from {
                return None;
            }
            parts.push(bytes.slice(from..to));
            at += to - from;
            state.wants(key);
        }
        state.hits += 1;
        Some(parts)
    }

    /// Like [`Regions::find`], but reads missing regions; for threads that may block. Bytes of the file from `stable`
    /// on may still change and are never cached, because the active segment is written there.
    pub fn read(
        &self,
        segment: &Segment,
        position: u32,
        length: usize,
        stable: u32,
    ) -> io::Result<Vec<Bytes>> {
        if let Some(parts) = self.find(segment, position, length) {
            return Ok(parts);
        }
        let (from, end) = (index(position), index(position) + length);
        let (first, last) = (from / REGION_BYTES, (end - 1) / REGION_BYTES);
        if last - first >= self.regions_max / 2 || self.state.lock().has_bad(segment, first..=last) {
            // A batch as large as the cache bypasses it. So does a batch next to an unreadable sector.
            return Ok(vec![segment.read(position, length)?]);
        }
        // Each part is taken as soon as it is loaded: the cache may drop the first part before the last is loaded.
        let parts: io::Result<Vec<_>> = (first..=last)
            .map(|region| {
                let at = region * REGION_BYTES;
                let needed = (end - at).min(REGION_BYTES);
                let number = u32::try_from(region).expect("regions of a segment fit 32 bits");
                let bytes = self.load(segment, number, needed, index(stable))?;
                self.state.lock().wants((segment.sequence, number));
                Ok(bytes.slice(from.saturating_sub(at)..needed))
            })
            .collect();
        // The batch may be readable even if the rest of its region is not.
        parts.or_else(|error| match error.kind() {
            // An object store that does not answer does not answer a smaller read either.
            io::ErrorKind::TimedOut => Err(error),
            _ => Ok(vec![segment.read(position, length)?]),
        })
    }

    /// Whether the caller should read ahead now. Until [`Regions::end_ahead`], no other caller gets true.
    pub fn begin_ahead(&self) -> bool {
        let mut state = self.state.lock();
        let due = !state.reading_ahead && state.ahead(self.stretch_regions() / 2).is_some();
        state.reading_ahead |= due;
        due
    }

    /// Ends the read-ahead of the caller that got true from `begin_ahead`.
    pub fn end_ahead(&self) {
        self.state.lock().reading_ahead = false;
    }

    /// The next region to read ahead. `None` once the read-ahead is a stretch ahead of the scan.
    pub fn next_ahead(&self) -> Option<(u32, u32)> {
        self.state.lock().ahead(self.stretch_regions())
    }

    fn stretch_regions(&self) -> u32 {
        u32::try_from(self.regions_max / STRETCHES).expect("regions of a cache fit 32 bits")
    }

    /// Reads a region ahead, with the regions behind it. Returns false at the end of the stable bytes.
    pub fn read_ahead(&self, segment: &Segment, region: u32, stable: u32) -> io::Result<bool> {
        if index(region) * REGION_BYTES >= index(stable) {
            self.state.lock().read_ahead = 0;
            return Ok(false);
        }
        self.load(segment, region, 1, index(stable))?;
        // Another thread may have read it before.
        let mut state = self.state.lock();
        if state.next_miss == Some((segment.sequence, region)) {
            state.next_miss = Some((segment.sequence, region + 1));
        }
        Ok(true)
    }

    /// A region with at least its first `needed` bytes. Concurrent calls for the same region read it once.
    fn load(&self, segment: &Segment, region: u32, needed: usize, stable: usize) -> io::Result<Bytes> {
        let key = (segment.sequence, region);
        let count = {
            let mut state = self.state.lock();
            while state.loading.contains(&key) {
                self.loaded.wait(&mut state);
            }
            if let Some(entry) = state.entries.get(&key).filter(|entry| entry.bytes.len() >= needed) {
                return Ok(entry.bytes.clone());
            }
            state.misses += 1;
            // The readers of one stretch do not ask in the order of the file, so a near region counts like the next
            // one.
            let reach = self.stretch_regions();
            let next = state.next_miss.filter(|(sequence, next)| {
                *sequence == segment.sequence && region <= next + reach / 2 && *next <= region + reach
            });
            state.read_ahead =
                if next.is_some() { (state.read_ahead * 2).clamp(1, READ_AHEAD_REGIONS_MAX) } else { 1 };
            if next.is_none() {
                state.wanted = Some(key);
            }
            let wanted = region..region + state.read_ahead;
            let stable_regions =
                u32::try_from(stable.div_ceil(REGION_BYTES)).expect("regions of a segment fit 32 bits");
            let free = |state: &RegionState, n: u32| {
                let key = (segment.sequence, n);
                n < stable_regions && !state.entries.contains_key(&key) && !state.loading.contains(&key)
            };
            let count = wanted.take_while(|n| free(&state, *n)).count();
            let count = u32::try_from(count).expect("bounded by the read-ahead").max(1);
            let end = next.map_or(0, |(_, next)| next).max(region + count);
            state.next_miss = Some((segment.sequence, end));
            state.loading.extend((region..region + count).map(|n| (segment.sequence, n)));
            count
        };
        let from = index(region) * REGION_BYTES;
        // The requested bytes are committed, so they are stable. With a wrong index, the caller gets whatever the file
        // holds.
        let bytes =
            (index(count) * REGION_BYTES).min(stable.max(from + needed.next_multiple_of(SECTOR)) - from);
        let all = self.read_file(segment, from as u64, bytes);
        let read = match all {
            // Perhaps only the following regions are unreadable.
            Err(error) if count > 1 && error.kind() != io::ErrorKind::TimedOut => {
                self.read_file(segment, from as u64, REGION_BYTES)
            }
            read => read,
        };
        let mut state = self.state.lock();
        if read.as_ref().is_ok_and(|read| read.len() < index(count)) {
            state.read_ahead = 0;
        }
        if read.is_err() {
            state.note_bad(key);
        }
        state
            .loading
            .retain(|(sequence, n)| *sequence != segment.sequence || !(region..region + count).contains(n));
        self.loaded.notify_all();
        let read = read?;
        let first = read.first().expect("a region at least is read").clone();
        for (number, bytes) in (region..).zip(read) {
            state.insert((segment.sequence, number), bytes, self.regions_max);
        }
        Ok(first)
    }

    /// `bytes` of a file, region by region.
    fn read_file(&self, segment: &Segment, from: u64, bytes: usize) -> io::Result<Vec<Bytes>> {
        let mut buffers: Vec<_> = (0..bytes.div_ceil(REGION_BYTES)).map(|_| self.buffers.take()).collect();
        let lengths = |at: usize| (bytes - at * REGION_BYTES).min(REGION_BYTES);
        let mut parts: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(at, buffer)| IoSliceMut::new(&mut buffer.unfilled()[..lengths(at)]))
            .collect();
        segment.file.read_vectored_at(from, &mut parts)?;
        Ok(buffers.iter_mut().enumerate().map(|(at, buffer)| buffer.freeze(lengths(at))).collect())
    }

    /// Hits and misses so far, and bytes held.
    pub fn statistics(&self) -> (u64, u64, usize) {
        let state = self.state.lock();
        (state.hits, state.misses, state.entries.values().map(|entry| entry.bytes.len()).sum())
    }
}

impl RegionState {
    fn note_bad(&mut self, key: Key) {
        self.read_ahead = 0;
        self.bad.push_back(key);
        if self.bad.len() > BAD_REMEMBERED {
            self.bad.pop_front();
        }
    }

    fn has_bad(&self, segment: &Segment, mut regions: RangeInclusive<usize>) -> bool {
        !self.bad.is_empty()
            && regions.any(|n| self.bad.iter().any(|bad| *bad == (segment.sequence, length32(n))))
    }

    /// Records how far a scan has come.
    fn wants(&mut self, key: Key) {
        if let Some((sequence, furthest)) = &mut self.wanted
            && *sequence == key.0
        {
            *furthest = key.1.max(*furthest);
        }
    }

    /// The next region to read ahead, if misses follow each other and the read-ahead is less than `regions` ahead.
    fn ahead(&self, regions: u32) -> Option<Key> {
        let ((wanted_in, wanted), (sequence, next)) = (self.wanted?, self.next_miss?);
        let scans = self.read_ahead >= READ_AHEAD_REGIONS_MAX && sequence == wanted_in;
        (scans && next < wanted + regions).then_some((sequence, next))
    }

    fn touch(&mut self, key: Key, regions_max: usize) -> Option<Bytes> {
        let arrivals = self.arrivals;
        let entry = self.entries.get_mut(&key)?;
        let bytes = entry.bytes.clone();
        if !entry.protected && arrivals - entry.arrived > regions_max as u64 / 4 {
            entry.protected = true;
            self.probation.retain(|other| *other != key);
            self.protected.push_back(key);
            if self.protected.len() > regions_max / 2
                && let Some(demoted) = self.protected.pop_front()
            {
                if let Some(entry) = self.entries.get_mut(&demoted) {
                    entry.protected = false;
                    entry.arrived = arrivals;
                }
                self.probation.push_back(demoted);
            }
        }
        Some(bytes)
    }

    fn insert(&mut self, key: Key, bytes: Bytes, regions_max: usize) {
        self.arrivals += 1;
        let entry = Entry { bytes, arrived: self.arrivals, protected: false };
        if self.entries.insert(key, entry).is_none() {
            self.probation.push_back(key);
        }
        while self.entries.len() > regions_max {
            let Some(oldest) = self.probation.pop_front().or_else(|| self.protected.pop_front()) else {
                return;
            };
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::{Disk, SimDisk};
    use model::{Offset, Timestamp};

    #[test]
    fn regions_return_what_the_file_holds_and_stay_within_the_bound() {
        let disk = SimDisk::new(1);
        let length = 40 * REGION_BYTES;
        let file = disk.create("0000000001.log", length as u64).unwrap();
        let mut contents = vec![0u8; length];
        fastrand::Rng::with_seed(1).fill(&mut contents);
        file.write_at(0, &contents).unwrap();
        let segment = Segment::new(1, 1, file);
        let regions = Regions::new(10 * REGION_BYTES);
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..500 {
            let at = rng.usize(0..length - 600_000);
            let bytes = rng.usize(1..600_000);
            let parts = regions.read(&segment, u32::try_from(at).unwrap(), bytes, segment.length).unwrap();
            assert_eq!(parts.concat(), contents[at..at + bytes]);
            assert!(regions.statistics().2 <= 10 * REGION_BYTES);
        }
    }

    #[test]
    fn a_cache_larger_than_any_segment_has_stretches() {
        let disk = SimDisk::new(1);
        let segment = Segment::new(1, 1, disk.create("0000000001.log", 1 << 20).unwrap());
        let place = BatchPlace {
            base_offset: Offset(0),
            offset_count: 1,
            position: 4096,
            length: 70,
            max_timestamp: Timestamp(0),
        };
        let regions = Regions::new(usize::MAX);
        assert_eq!(regions.stretch(&segment, &place), Stretch::beginning_of(&segment));
        regions.read(&segment, 4096, 70, segment.length).unwrap();
    }

    #[test]
    fn reading_ahead_ends_a_stretch_ahead_and_at_what_is_stable() {
        const REGIONS: u32 = 100;
        let disk = SimDisk::new(1);
        let file = disk.create("0000000001.log", u64::from(REGIONS) * REGION_BYTES as u64).unwrap();
        let segment = Segment::new(1, 1, file);
        let regions = Regions::new(64 * REGION_BYTES);
        let at = |region: u32| region * length32(REGION_BYTES);
        let ahead = |stable: u32| {
            let mut read = Vec::new();
            while let Some((_, region)) = regions.next_ahead()
                && regions.read_ahead(&segment, region, at(stable)).unwrap()
            {
                assert!(read.last().is_none_or(|last| *last < region), "it goes on");
                read.push(region);
            }
            read
        };
        regions.read(&segment, at(0), 1, at(REGIONS)).unwrap();
        assert_eq!(ahead(REGIONS), [], "one miss is no scan");
        // A cached region does not end the read-ahead.
        regions.read(&segment, at(9), 1, at(REGIONS)).unwrap();
        for region in 1..6 {
            regions.read(&segment, at(region), 1, at(REGIONS)).unwrap();
        }
        let read = ahead(REGIONS);
        assert!(!read.is_empty() && regions.find(&segment, at(10), 1).is_some());
        assert!(regions.find(&segment, at(16), 1).is_none(), "a stretch is enough");
        regions.read(&segment, at(50), 1, at(REGIONS)).unwrap();
        for region in 51..60 {
            regions.read(&segment, at(region), 1, at(REGIONS)).unwrap();
        }
        ahead(62);
        assert!(regions.find(&segment, at(61), 1).is_some() && regions.find(&segment, at(62), 1).is_none());
    }
}
