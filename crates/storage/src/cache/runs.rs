//! Runs: the bytes of one stream in an object, as they were fetched from the store. An object is sorted by stream, so a
//! run holds nothing but what its reader asks for next. The cache is bounded; the run that was fetched first goes first.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::format::index;
use crate::segment::Segment;

/// Upper bound of a run, except for one larger batch.
pub(crate) const RUN_BYTES: u32 = 1024 * 1024;

/// Segment and first byte.
type Key = (u32, u32);

/// The runs that were fetched last.
#[derive(Debug)]
pub(crate) struct Runs {
    state: Mutex<RunState>,
    loaded: Condvar,
    bytes_max: usize,
    /// Bytes of the runs that the cache or readers hold.
    out: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct RunState {
    runs: BTreeMap<Key, Bytes>,
    /// In the order in which they were fetched.
    order: VecDeque<Key>,
    bytes: usize,
    loading: Vec<(u32, Range<u32>)>,
    hits: u64,
    misses: u64,
}

impl RunState {
    fn find(&self, segment: u32, wanted: &Range<u32>) -> Option<Bytes> {
        let ((of, from), bytes) = self.runs.range(..=(segment, wanted.start)).next_back()?;
        if *of != segment {
            return None;
        }
        let at = index(wanted.start - from);
        let end = at + index(wanted.end - wanted.start);
        (end <= bytes.len()).then(|| bytes.slice(at..end))
    }

    fn is_loading(&self, segment: u32, at: u32) -> bool {
        self.loading.iter().any(|(of, range)| *of == segment && range.contains(&at))
    }
}

/// Bytes of a run that count as long as somebody holds them.
struct Counted {
    bytes: Vec<u8>,
    out: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.out.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Runs {
    pub fn new(bytes_max: usize) -> Runs {
        let (state, loaded) = (Mutex::default(), Condvar::new());
        Runs { state, loaded, bytes_max, out: Arc::default() }
    }

    /// Upper bound of the bytes in the cache.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes of runs that the cache or readers hold.
    pub fn out_bytes(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }

    /// The bytes `wanted` of a segment, if they were fetched.
    pub fn find(&self, segment: &Segment, wanted: Range<u32>) -> Option<Bytes> {
        let mut state = self.state.lock();
        let found = state.find(segment.sequence, &wanted);
        state.hits += u64::from(found.is_some());
        found
    }

    /// Drops the run with the byte at `at`: it is damaged.
    pub fn forget(&self, segment: &Segment, at: u32) {
        let mut state = self.state.lock();
        let Some((key, bytes)) = state.runs.range(..=(segment.sequence, at)).next_back() else { return };
        let (key, length) = (*key, bytes.len());
        if key.0 == segment.sequence && index(at - key.1) < length {
            state.runs.remove(&key);
            state.order.retain(|other| *other != key);
            state.bytes -= length;
        }
    }

    /// Whether the byte at `at` was fetched, or is being fetched.
    pub fn covers(&self, segment: &Segment, at: u32) -> bool {
        let state = self.state.lock();
        state.is_loading(segment.sequence, at) || state.find(segment.sequence, &(at..at + 1)).is_some()
    }

    /// The bytes `wanted` of a segment. If they are missing, the whole `run` is fetched, which begins with them. Fetches
    /// of several callers that overlap at the first byte are one. Blocks.
    pub fn read(&self, segment: &Segment, wanted: Range<u32>, run: Range<u32>) -> io::Result<Bytes> {
        let sequence = segment.sequence;
        {
            let mut state = self.state.lock();
            while state.is_loading(sequence, wanted.start) {
                self.loaded.wait(&mut state);
            }
            if let Some(found) = state.find(sequence, &wanted) {
                return Ok(found);
            }
            state.misses += 1;
            state.loading.push((sequence, run.clone()));
        }
        let mut bytes = vec![0; index(run.end - run.start)];
        let read = segment.file.read_at(u64::from(run.start), &mut bytes);
        let mut state = self.state.lock();
        let at = state.loading.iter().position(|(of, range)| *of == sequence && *range == run);
        state.loading.swap_remove(at.expect("it was put there"));
        self.loaded.notify_all();
        read?;
        self.out.fetch_add(bytes.len(), Ordering::Relaxed);
        let bytes = Bytes::from_owner(Counted { bytes, out: self.out.clone() });
        let found = bytes.slice(..index(wanted.end - wanted.start));
        state.bytes += bytes.len();
        let key = (sequence, run.start);
        match state.runs.insert(key, bytes) {
            // A shorter one with the same beginning.
            Some(before) => state.bytes -= before.len(),
            None => state.order.push_back(key),
        }
        while state.bytes > self.bytes_max
            && let Some(oldest) = state.order.pop_front()
        {
            state.bytes -= state.runs.remove(&oldest).map_or(0, |run| run.len());
        }
        Ok(found)
    }

    /// Hits and misses so far, and bytes held.
    pub fn statistics(&self) -> (u64, u64, usize) {
        let state = self.state.lock();
        (state.hits, state.misses, state.bytes)
    }
}

#[cfg(test)]
mod tests {
    use disk::{Disk, SimDisk};
    use objects::{Bucket, SimBucket};

    use super::*;
    use crate::format::{SECTOR, STORED, SegmentHeader};
    use crate::segment::object::{Local, ObjectFile};

    fn object(contents: &[u8]) -> Segment {
        let (disk, bucket) = (SimDisk::new(1), Arc::new(SimBucket::new(1)));
        let (sequence, generation, length) = (STORED | 1, 1, contents.len() as u64);
        let header = SegmentHeader { sequence, generation, length, log_id: 7 };
        bucket.put_if_absent("object", &[Bytes::copy_from_slice(contents)]).unwrap();
        let local = Local::Open(disk.create("local", SECTOR as u64).unwrap());
        let file = ObjectFile::new(Some((bucket, "object".into())), &header, local, SECTOR as u64);
        Segment::new(sequence, generation, Arc::new(file))
    }

    #[test]
    fn runs_return_what_the_object_holds_and_stay_within_the_bound() {
        let mut contents = vec![0u8; 1024 * 1024];
        fastrand::Rng::with_seed(1).fill(&mut contents);
        let segment = object(&contents);
        let runs = Runs::new(100_000);
        let mut rng = fastrand::Rng::with_seed(2);
        let mut held = Vec::new();
        for _ in 0..500 {
            let from = rng.u32(0..900_000);
            let wanted = from..from + rng.u32(1..1000);
            let run = from..wanted.end + rng.u32(0..50_000);
            let got = runs.read(&segment, wanted.clone(), run).unwrap();
            assert_eq!(got, contents[index(wanted.start)..index(wanted.end)]);
            assert_eq!(runs.find(&segment, wanted.clone()), Some(got.clone()));
            assert!(runs.covers(&segment, wanted.start) && runs.statistics().2 <= 100_000);
            held.push(got);
        }
        assert!(runs.out_bytes() > 100_000, "what readers hold counts");
        held.clear();
        assert!(runs.out_bytes() <= 100_000 && runs.out_bytes() == runs.statistics().2);
    }

    #[test]
    fn concurrent_readers_fetch_a_run_once() {
        let segment = object(&[0; 100_000]);
        let runs = Runs::new(1_000_000);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| runs.read(&segment, 5..10, 5..50_000).unwrap());
            }
        });
        assert_eq!(runs.statistics().1, 1);
    }
}
