//! The state that the parts of an open log share: settings, queue, caches, streams and segments. Also the ways in which
//! the parts wake each other.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use disk::{BufferPool, Disk};
use model::{Offset, StreamId};
use objects::Bucket;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::cache::{Indexes, Regions, Runs, TailBounds, TailCache};
use crate::format::{BLOCK_HEADER_BYTES, Lsn, SECTOR, sectors};
use crate::options::{Clock, Options};
use crate::outgoing::Outgoing;
use crate::request::{AppendError, Listener, Queue, Room};
use crate::segment::build::BLOCK_BYTES;
use crate::segment::object::ObjectKeys;
use crate::segment::{self, Segment, Segments};
use crate::stream::{Stream, StreamState, Waiter};
use crate::tier::{Class, Tier};

/// The pool keeps so many unused buffers: new memory costs more than the copy into it.
const COPIES_KEPT: usize = 32;

/// The state that the writer, the preparer, the cleaner and the readers share.
pub(crate) struct Shared {
    pub options: Options,
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub listener: Arc<dyn Listener>,
    /// Requests to the writer, and the room for them.
    pub queue: Queue,
    /// Write buffers, whose bytes the tail cache, its readers and objects on their way hold.
    pub buffers: BufferPool,
    /// Bytes of write buffers that objects on their way keep in memory.
    pub kept_by_objects: AtomicUsize,
    /// Buffers for the blocks of cleaned segments and objects.
    pub copies: BufferPool,
    pub tail: TailCache,
    pub regions: Regions,
    pub runs: Runs,
    pub indexes: Indexes,
    pub segments: Segments,
    streams: RwLock<HashMap<StreamId, Arc<Stream>>>,
    prepared: Mutex<VecDeque<Arc<Segment>>>,
    /// Upper bound of the stream table at the last roll.
    table_bytes: AtomicUsize,
    /// Held by the writer while the streams learn that a block is synced: whoever holds it sees a prefix of the log in the
    /// ends of all streams.
    pub announcing: Mutex<()>,
    /// Nothing more is written, and nothing more is synced.
    pub ended: AtomicBool,
    /// The position below which everything is on the device, as the number of an [`Lsn`].
    pub synced: AtomicU64,
    pub rewriting: Mutex<Rewriting>,
    next_generation: AtomicU64,
    /// Bytes that the cleaner and compaction read.
    pub cleaner_read: AtomicU64,
    /// Bytes that the cleaner and compaction wrote.
    pub cleaner_written: AtomicU64,
    pub preparer_news: Mutex<PreparerNews>,
    pub preparer_wake: Condvar,
    /// Notified, with the preparer's news, when the log is closed.
    pub cleaner_wake: Condvar,
    /// What goes to the object store.
    pub tier: Tier,
    /// What goes to the copy set.
    pub outgoing: Outgoing,
    /// Batches that were served from the tail cache.
    pub tail_hits: AtomicU64,
    /// Reads that went to the readers' threads.
    pub cold_reads: AtomicU64,
}

/// News for the preparer.
#[derive(Default)]
pub(crate) struct PreparerNews {
    /// There may be work.
    pub pending: bool,
    /// The log is closed.
    pub stop: bool,
}

/// The right to copy. One copy runs at a time, so that no extent is copied twice.
pub(crate) struct Rewriting {
    /// Sequence number of the next copy's segment.
    pub next_sequence: u32,
    /// Set when a file could be neither finished nor removed. The file may come back at the next opening, and would
    /// then hide any extent that was copied later.
    pub broken: bool,
}

/// The findings of opening that the parts of the log share.
pub(crate) struct Left {
    pub streams: HashMap<StreamId, Arc<Stream>>,
    pub segments: Segments,
    pub prepared: VecDeque<Arc<Segment>>,
    /// The end of the log.
    pub end: Lsn,
    pub next_generation: u64,
    /// Sequence number of the cleaner's next segment.
    pub next_cleaned: u32,
    /// The object store.
    pub bucket: Option<Arc<dyn Bucket>>,
}

impl Shared {
    /// The shared state of an opened log, from the findings in `left`.
    pub fn new(
        disk: Arc<dyn Disk>,
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
        queue: Queue,
        buffers: BufferPool,
        left: Left,
    ) -> Shared {
        let has_bucket = left.bucket.is_some();
        Shared {
            announcing: Mutex::default(),
            ended: AtomicBool::new(false),
            tier: Tier::new(left.bucket, &options, clock.nanos()),
            outgoing: Outgoing::default(),
            tail: TailCache::new(TailBounds {
                bytes_max: options.tail_cache_bytes,
                bytes_kept: options.tail_kept_bytes,
                kept_for: Duration::from_millis(options.tail_cache_ms),
            }),
            regions: Regions::new(options.region_cache_bytes),
            runs: Runs::new(if has_bucket { options.region_cache_bytes } else { 0 }),
            indexes: Indexes::new(options.index_cache_bytes),
            buffers,
            kept_by_objects: AtomicUsize::new(0),
            copies: BufferPool::new(BLOCK_BYTES, COPIES_KEPT),
            options,
            disk,
            clock,
            listener,
            queue,
            segments: left.segments,
            streams: RwLock::new(left.streams),
            prepared: Mutex::new(left.prepared),
            table_bytes: AtomicUsize::new(0),
            synced: AtomicU64::new(left.end.0),
            rewriting: Mutex::new(Rewriting { next_sequence: left.next_cleaned, broken: false }),
            next_generation: AtomicU64::new(left.next_generation),
            cleaner_read: AtomicU64::new(0),
            cleaner_written: AtomicU64::new(0),
            preparer_news: Mutex::default(),
            preparer_wake: Condvar::new(),
            cleaner_wake: Condvar::new(),
            tail_hits: AtomicU64::new(0),
            cold_reads: AtomicU64::new(0),
        }
    }

    /// The keys of this log's objects.
    pub fn object_keys(&self) -> ObjectKeys {
        let owned = self.options.owned.as_ref();
        ObjectKeys::new(self.options.log_id, owned.map(|owned| owned.epochs.clone()).unwrap_or_default())
    }

    /// The key of the object with the segment `sequence`.
    pub fn object_key(&self, sequence: u32) -> String {
        self.object_keys().key(sequence)
    }

    /// The stream `id`. An unknown stream is created empty.
    pub fn stream(&self, id: StreamId) -> Arc<Stream> {
        if let Some(stream) = self.streams.read().get(&id) {
            return stream.clone();
        }
        self.streams.write().entry(id).or_insert_with(|| Arc::new(Stream::new(id))).clone()
    }

    /// The number of streams.
    pub fn stream_count(&self) -> usize {
        self.streams.read().len()
    }

    /// All streams, by id: what is done with each of them comes in the same order after the same history.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<Arc<Stream>> = self.streams.read().values().cloned().collect();
        streams.sort_unstable_by_key(|stream| stream.id());
        streams
    }

    /// Notes that the writer has ended, and fails whatever waits.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // Their records are on the disk, and go to the object store after the next opening.
        self.fail_waiters(&AppendError::Closed);
    }

    /// Fails whatever waits for the object store.
    pub fn fail_waiters(&self, error: &AppendError) {
        for stream in self.streams() {
            let (waiters, mut recorded) = {
                let mut state = stream.lock();
                (state.waiters.take(), std::mem::take(&mut state.recorded))
            };
            Waiter::fail_all(waiters, error);
            recorded.fail(error);
        }
    }

    /// The stream `id`, if it is known.
    pub fn find_stream(&self, id: StreamId) -> Option<Arc<Stream>> {
        self.streams.read().get(&id).cloned()
    }

    /// A generation that no file of the log has ever had.
    pub fn next_generation(&self) -> u64 {
        self.next_generation.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the log is closed, so that a copy in progress may be dropped.
    pub fn cleaner_stops(&self) -> bool {
        self.preparer_stops() || self.queue.is_stopping()
    }

    pub fn set_synced(&self, synced: Lsn) {
        self.synced.store(synced.0, Ordering::Release);
    }

    /// Applies a trim that is synced. The caller announces its block.
    pub fn apply_trim(&self, stream: &Arc<Stream>, to: Offset) {
        segment::trim(stream, to, &self.segments);
        // No object gets the records any more. One has to say where they ended before the copy set drops them.
        let goes = self.options.owned.is_some() && Class::of(stream.level()).is_some();
        let emptied =
            |state: &StreamState| state.start >= state.synced && state.lacks_in_objects(state.synced);
        if goes && emptied(&stream.lock()) {
            self.tier.record(vec![stream.clone()], None);
        }
        self.wake_preparer();
    }

    pub fn apply_delete(&self, stream: &Arc<Stream>) {
        self.streams.write().remove(&stream.id());
        segment::delete(stream, &self.segments);
        self.wake_preparer();
    }

    pub fn prepared_count(&self) -> usize {
        self.prepared.lock().len()
    }

    /// The next prepared segment. It counts as room until the writer calls [`Shared::count_prepared`].
    pub fn take_prepared(&self) -> Option<Arc<Segment>> {
        let taken = self.prepared.lock().pop_front();
        self.wake_preparer();
        taken
    }

    pub fn add_prepared(&self, segment: Arc<Segment>) {
        {
            let mut prepared = self.prepared.lock();
            prepared.push_back(segment);
            self.set_prepared(&prepared);
        }
        self.queue.room.set_out_of_space(false);
        self.queue.wake();
        self.listener.room();
    }

    /// Records the room of the prepared segments, when their stream tables take `table_bytes`.
    pub fn count_prepared(&self, table_bytes: usize) {
        let prepared = self.prepared.lock();
        self.table_bytes.store(table_bytes, Ordering::Relaxed);
        self.set_prepared(&prepared);
    }

    /// The caller keeps the list locked, so that the newest list is the one that counts.
    fn set_prepared(&self, prepared: &VecDeque<Arc<Segment>>) {
        let footer = sectors(BLOCK_HEADER_BYTES + self.table_bytes.load(Ordering::Relaxed)) + SECTOR;
        self.queue.room.set_prepared(prepared.iter().map(|segment| {
            let free = segment.data_end() - Segment::data_start();
            Room::of_segment(segment.length, free, footer)
        }));
    }

    /// Whether the log is closed and needs no more segments.
    pub fn preparer_stops(&self) -> bool {
        self.preparer_news.lock().stop
    }

    pub fn wake_preparer(&self) {
        self.preparer_news.lock().pending = true;
        self.preparer_wake.notify_one();
    }

    /// Makes the threads of the preparer, the cleaner and the uploader end.
    pub fn stop_background(&self) {
        self.tier.stop();
        let mut news = self.preparer_news.lock();
        news.stop = true;
        self.preparer_wake.notify_all();
        self.cleaner_wake.notify_all();
    }
}
