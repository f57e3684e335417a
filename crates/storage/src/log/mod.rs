//! The public face of the log: open, append, read, trim, close.
//!
//! All methods are callable from any thread. A method blocks only if its comment says so. The writer, the preparer and
//! the cold readers do the work, each on threads of its own.

mod background;
mod levels;
mod recorded;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use disk::{BufferPool, Disk};
use model::{Offset, StreamId, Timestamp};
use objects::Bucket;
use parking_lot::Mutex;

use self::background::{run_cleaner, run_merger, run_preparer, run_uploader};
use self::recorded::StartRecorded;
use crate::cleaner::{Cleaner, CompactError, Compaction, RewriteReport};
use crate::epochs::Epochs;
use crate::format::Lsn;
use crate::index::BatchPlace;
use crate::options::{Clock, Options};
use crate::pacer::Pacer;
use crate::preparer::{FIRST_SEGMENT_BYTES, Preparer};
use crate::reader::{Batches, ReadDone, ReadError, ReadRequest, ReadStep, Reader, jobs};
use crate::recovery::{self, OpenError, RecoveryReport};
use crate::request::{Admission, AdmitError, Append, AppendError, Completion, Listener, Queue, Request};
use crate::segment::Segment;
use crate::segment::object::Places;
use crate::shared::{Left, Shared};
use crate::stream::Stream;
use crate::uploader::Uploader;
use crate::writer::{Patience, Position, QUEUE_DEPTH, WRITE_BUFFER_BYTES, Writer};

/// So many unused write buffers are kept.
const SPARE_BUFFERS: usize = 8;

/// Counters for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Batches served from the tail cache.
    pub tail_hits: u64,
    /// Reads that went to the cold readers.
    pub cold_reads: u64,
    /// Region look-ups that found all regions cached.
    pub region_hits: u64,
    /// Regions that were read from disk.
    pub region_misses: u64,
    /// Bytes in the tail cache.
    pub tail_bytes: usize,
    /// Bytes in the region cache.
    pub region_bytes: usize,
    /// Look-ups of batches in objects that found them fetched.
    pub run_hits: u64,
    /// Reads from objects.
    pub run_misses: u64,
    /// Bytes in the cache of what was fetched from objects.
    pub run_bytes: usize,
    /// Bytes in the cache of sealed indexes.
    pub index_bytes: usize,
    /// Segments that hold part of the log.
    pub segments: usize,
    /// Segments prepared ahead.
    pub prepared_segments: usize,
    /// Streams in the log.
    pub streams: usize,
    /// Bytes that the cleaner and compaction read.
    pub cleaner_read_bytes: u64,
    /// Bytes that the cleaner and compaction wrote.
    pub cleaner_written_bytes: u64,
    /// Objects that were stored.
    pub objects_stored: u64,
    /// Bytes of these objects.
    pub object_bytes_stored: u64,
    /// Objects that were deleted.
    pub objects_deleted: u64,
    /// Bytes of records that wait to be stored.
    pub unstored_bytes: u64,
}

/// An open log.
pub struct Log {
    pub(crate) shared: Arc<Shared>,
    pub(crate) reader: Reader,
    report: RecoveryReport,
    /// Grows by one with every opening of the log.
    pub(crate) epoch: u64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("report", &self.report).finish_non_exhaustive()
    }
}

/// A log for tests that drive its writer and preparer by hand.
pub(crate) struct Parts {
    pub log: Log,
    pub uploader: Uploader,
    pub writer: Writer,
    pub preparer: Preparer,
    #[cfg_attr(not(test), allow(dead_code, reason = "an open log's cleaner has a thread of its own"))]
    pub cleaner: Cleaner,
}

/// Builds a log without threads: recovers it, prepares the first segments, and writes the barrier of a new epoch.
pub(crate) fn assemble(
    disk: Arc<dyn Disk>,
    bucket: Option<Arc<dyn Bucket>>,
    options: Options,
    clock: Arc<dyn Clock>,
    listener: Arc<dyn Listener>,
) -> Result<Parts, OpenError> {
    let mut options = options;
    let io = |doing: &str| {
        let doing = doing.to_owned();
        move |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::StorageFull => OpenError::Full,
            _ => OpenError::Io { doing, source },
        }
    };
    let epochs = options.owned.as_ref().map(|owned| owned.epochs.clone()).unwrap_or_default();
    let places = bucket.clone().map(|bucket| Places { disk: disk.clone(), bucket, epochs });
    let recovered = recovery::recover(&*disk, places.as_ref(), clock.now_ms())?;
    let needs_objects = |stream: &Arc<Stream>| {
        let state = stream.lock();
        state.local_start() > state.start
    };
    if bucket.is_none() && recovered.streams.values().any(needs_objects) {
        return Err(OpenError::NoBucket { objects: recovered.segments.live_stored().len() });
    }
    // The generations of a log begin at a secret number. A client that knew it could put bytes into its records that
    // pass for a block, if the records ever lie behind the end of the log.
    let first_generation = 1 + u64::try_from(options.log_id >> 65).expect("63 bits are left");
    let next_generation =
        if recovered.log_id.is_some() { recovered.next_generation } else { first_generation };
    options.log_id = recovered.log_id.unwrap_or(options.log_id);
    let ring = disk.queue(QUEUE_DEPTH).map_err(io("setting up the write queue"))?;
    let queue = Queue::new(ring.waker(), options.batch_bytes_max());
    let mut prepared = VecDeque::from(recovered.prepared);
    let last_length = recovered.active.as_ref().map_or(0, |(segment, _)| u64::from(segment.length));
    let grown = prepared.back().map(|segment| u64::from(segment.length)).unwrap_or(last_length);
    let first_length = FIRST_SEGMENT_BYTES.min(options.segment_bytes);
    let begun = recovered.active.or_else(|| {
        let next = prepared.pop_front()?;
        recovered.segments.insert(next.clone());
        Some((next, Segment::data_start()))
    });
    let buffers = BufferPool::new(WRITE_BUFFER_BYTES, SPARE_BUFFERS);
    let left = Left {
        streams: recovered.streams,
        segments: recovered.segments,
        prepared,
        end: recovered.report.end,
        next_generation,
        next_cleaned: recovered.next_cleaned,
        bucket,
    };
    let shared = Arc::new(Shared::new(disk, options, clock, listener, queue, buffers, left));
    let mut preparer = Preparer::new(shared.clone(), recovered.next_sequence, grown.max(first_length / 4));
    let (segment, position) = match begun {
        Some(begun) => begun,
        None => {
            let next = preparer.prepare_from_reserve().map_err(io("preparing the first segment"))?;
            shared.segments.insert(next.clone());
            (next, Segment::data_start())
        }
    };
    let here = |stream: &Arc<Stream>| stream.lock().active.is_some();
    let touched = shared.streams().into_iter().filter(here).collect();
    let synced = Lsn::new(segment.sequence, position);
    let at = Position { segment, position, epoch: recovered.next_epoch, touched, synced };
    let mut writer = Writer::new(shared.clone(), ring, at);
    if !writer.has_room_for_barrier() && shared.prepared_count() == 0 {
        let next = preparer.prepare_from_reserve().map_err(io("preparing a segment"))?;
        shared.add_prepared(next);
    }
    writer.write_barrier().map_err(|error| OpenError::Io {
        doing: "writing the first block of a new epoch".into(),
        source: std::io::Error::other(error.to_string()),
    })?;
    let reader = Reader::new(shared.clone());
    let epoch = recovered.next_epoch;
    let log = Log { shared, reader, report: recovered.report, epoch, threads: Mutex::default() };
    let cleaner = Cleaner::new(log.shared.clone(), false);
    let uploader = Uploader::new(log.shared.clone(), recovered.next_stored);
    Ok(Parts { log, writer, preparer, cleaner, uploader })
}

impl Log {
    /// Opens the log on `disk`, or creates one if there is none, and starts its threads. Blocks during recovery.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Log, OpenError> {
        Log::open_tiered(disk, None, options, clock, listener)
    }

    /// Like [`Log::open`], for a log whose tiered streams go to `bucket`. Opening does not need the store.
    pub fn open_tiered(
        disk: Arc<dyn Disk>,
        bucket: Option<Arc<dyn Bucket>>,
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Log, OpenError> {
        let cold_threads = options.cold_threads.max(1);
        let object_threads = if bucket.is_some() { options.object_threads.max(1) } else { 0 };
        let spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name).spawn(work);
            spawned.map_err(|source| OpenError::Io { doing: "starting a thread".into(), source })
        };
        // A ring belongs to the thread that first waits on it, so the writer's own thread opens the log and writes the
        // barrier. The writer's thread is first in the list, because `close` ends the threads in this order.
        let (opened, opening) = std::sync::mpsc::sync_channel(1);
        let work = move || match assemble(disk, bucket, options, clock, listener) {
            Ok(Parts { log, mut writer, preparer, uploader, .. }) => {
                // Without a receiver, the process is about to end.
                let _ = opened.send(Ok((log, preparer, uploader)));
                while writer.turn(Patience::Block) {}
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let mut threads = vec![spawn("log-writer".into(), Box::new(work))?];
        let (log, mut preparer, mut uploader) = opening.recv().unwrap_or_else(|_| {
            Err(OpenError::Io {
                doing: "opening the log".into(),
                source: std::io::Error::other("the log's writer panicked, which is a bug"),
            })
        })?;
        let shared = log.shared.clone();
        threads.push(spawn("log-preparer".into(), Box::new(move || run_preparer(&shared, &mut preparer)))?);
        let (sender, jobs) = jobs();
        for n in 0..cold_threads {
            let jobs = jobs.clone();
            threads.push(spawn(format!("log-reader-{n}"), Box::new(move || jobs.work()))?);
        }
        let shared = log.shared.clone();
        threads.push(spawn("log-cleaner".into(), Box::new(move || run_cleaner(&shared)))?);
        log.reader.set_threads(Some(sender));
        if object_threads > 0 {
            let (sender, jobs) = self::jobs();
            for n in 0..object_threads {
                let jobs = jobs.clone();
                threads.push(spawn(format!("log-fetcher-{n}"), Box::new(move || jobs.work()))?);
            }
            log.reader.set_object_threads(Some(sender));
            let (sender, jobs) = self::jobs();
            for n in 0..log.shared.options.object_puts.max(1) {
                let jobs = jobs.clone();
                threads.push(spawn(format!("log-putter-{n}"), Box::new(move || jobs.work()))?);
            }
            uploader.set_threads(sender);
            let shared = log.shared.clone();
            threads.push(spawn("log-merger".into(), Box::new(move || run_merger(&shared)))?);
            threads.push(spawn("log-uploader".into(), Box::new(move || run_uploader(&mut uploader)))?);
        }
        *log.threads.lock() = threads;
        Ok(log)
    }

    /// Whether `disk` holds a log, without opening it. Blocks.
    pub fn is_on(disk: &dyn Disk) -> std::io::Result<bool> {
        Ok(disk.list()?.iter().any(|name| crate::segment::sequence_of(name).is_some()))
    }

    /// The id of this log. The log gets it at its creation and keeps it in each of its segments.
    pub fn id(&self) -> u128 {
        self.shared.options.log_id
    }

    /// The findings of recovery.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    /// The largest batch that the log takes, in bytes.
    pub fn batch_bytes_max(&self) -> usize {
        self.shared.options.batch_bytes_max()
    }

    /// The stream `id`. An unknown stream is created empty.
    pub fn stream(&self, id: StreamId) -> Arc<Stream> {
        self.shared.stream(id)
    }

    /// All streams of the log.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        self.shared.streams()
    }

    /// Reserves room for a batch of `bytes`. Call this before giving out offsets: an admitted batch is never refused
    /// while the log works.
    pub fn admit(&self, bytes: usize) -> Result<Admission, AdmitError> {
        let result = self.shared.queue.admit(bytes);
        if matches!(result, Err(AdmitError::Busy | AdmitError::Full)) {
            self.shared.wake_preparer();
        }
        result
    }

    /// Whether the disk is full: an append was refused for lack of space, and would be refused now.
    pub fn is_full(&self) -> bool {
        self.shared.queue.room.is_full()
    }

    /// Appends a batch. Calls for one stream must come in the order of their offsets. After a failure the log calls the
    /// completion at once.
    pub fn append(&self, append: Append) {
        self.shared.queue.push(Request::Append(append));
    }

    /// Moves the start of a stream up to `to`, at most to its committed end. `done` is called when the trim is durable: in a
    /// log whose owner changes, when an object records it.
    pub fn trim(&self, stream: &Arc<Stream>, to: Offset, done: Option<Arc<dyn Completion>>) {
        let to = {
            let mut state = stream.lock();
            let to = to.min(state.committed);
            state.trimming = state.trimming.max(to);
            to
        };
        let done = match self.shared.options.owned {
            Some(_) => Some(StartRecorded::then(done, &self.shared, stream, to)),
            None => done,
        };
        self.shared.queue.push(Request::Trim { stream: stream.clone(), to, done });
    }

    /// Applies `retention.ms` (as the oldest timestamp to keep) and `retention.bytes` to a stream. Returns the new
    /// start if it moves.
    pub fn retain(
        &self,
        stream: &Arc<Stream>,
        oldest: Option<Timestamp>,
        bytes_max: Option<u64>,
    ) -> Option<Offset> {
        let to = {
            let state = stream.lock();
            let to = state.retained_from(oldest, bytes_max);
            (to > state.trimming && to > state.start).then_some(to)?
        };
        self.trim(stream, to, None);
        Some(to)
    }

    /// Drops a stream and all its records. `done` is called when the deletion is durable.
    pub fn delete(&self, stream: &Arc<Stream>, done: Option<Arc<dyn Completion>>) {
        self.shared.queue.push(Request::Delete { stream: stream.clone(), done });
    }

    /// Reads from the caches; never blocks. Returns less when the memory for readers is short.
    pub fn read(&self, request: &ReadRequest) -> Result<ReadStep, ReadError> {
        self.reader.read(request)
    }

    /// Like [`Log::read`], but also reads from disk. Blocks.
    pub fn read_blocking(&self, request: &ReadRequest) -> Result<Batches, ReadError> {
        self.reader.read_blocking(request)
    }

    /// Like [`Log::read_blocking`], but ends with the stretch of the log in which the disk read began. A caller that
    /// always reads the partition whose next batch is first in the log reads many partitions in one scan. Blocks.
    pub fn read_stretch(&self, request: &ReadRequest) -> Result<Batches, ReadError> {
        self.reader.read_stretch(request)
    }

    /// Reads on a thread of the log, also from disk, and calls `done` there; calls it at once when the log is closed.
    /// Each result ends with the stretch of the log in which its disk read began.
    ///
    /// All requests together return at most `bytes_max` bytes, except that a first batch may be larger. Requests for
    /// which no bytes are left return empty. Requests in the order of their positions cost the fewest reads. After
    /// `done`, the thread reads ahead behind them.
    pub fn read_later(&self, requests: Vec<ReadRequest>, bytes_max: usize, done: Box<dyn ReadDone>) {
        self.reader.read_later(requests, bytes_max, done);
    }

    /// The first batch from the start on whose max timestamp is at least `timestamp` (`ListOffsets`): its base offset
    /// and max timestamp. Blocks.
    pub fn first_at_or_after(
        &self,
        stream: &Stream,
        timestamp: Timestamp,
    ) -> Result<Option<BatchPlace>, ReadError> {
        self.reader.first_at_or_after(stream, timestamp)
    }

    /// The first batch that has the largest timestamp of the stream (KIP-734). Blocks.
    pub fn with_max_timestamp(&self, stream: &Stream) -> Result<Option<BatchPlace>, ReadError> {
        self.reader.with_max_timestamp(stream)
    }

    /// Bytes of the batches that begin in `from..until`. Blocks.
    pub fn bytes_between(&self, stream: &Stream, from: Offset, until: Offset) -> Result<u64, ReadError> {
        self.reader.bytes_between(stream, from, until)
    }

    /// The first committed batch that ends above `offset`. Blocks.
    pub fn batch_from(&self, stream: &Stream, offset: Offset) -> Result<Option<BatchPlace>, ReadError> {
        self.reader.batch_from(stream, offset)
    }

    /// Runs `job` on a thread of the cold readers. If the log is closed, drops it without a call.
    pub fn spawn_read(&self, job: impl FnOnce(&Log) + Send + 'static) {
        let log = self.handle();
        self.reader.spawn(move || job(&log));
    }

    /// Compacts streams, one after the other. The batches that a stream's rewriter keeps are copied into new segments
    /// and replace all batches below `until`. Several streams may share a new segment, so the effect of one stream may
    /// show only when the next streams are done. Deleted streams are skipped. After an error, finished segments stay,
    /// and the rest is unchanged. Blocks.
    pub fn compact<'a>(
        &self,
        jobs: &mut dyn Iterator<Item = Compaction<'a>>,
    ) -> Result<RewriteReport, CompactError> {
        let mut pacer = Pacer::new(self.shared.clone(), true);
        self.shared.compact(jobs, &mut pacer)
    }

    /// Like [`Log::compact`], for streams whose records are in the object store: what is left goes into new objects. A
    /// stream is compacted up to the last stored extent that ends at or below `until`. Fails if the object store does
    /// not answer for a while. Blocks.
    pub fn compact_stored<'a>(
        &self,
        jobs: &mut dyn Iterator<Item = Compaction<'a>>,
    ) -> Result<RewriteReport, CompactError> {
        let mut pacer = Pacer::new(self.shared.clone(), true);
        let shared = &self.shared;
        shared.compact_stored(jobs, &mut pacer, &mut |outcome| shared.await_replaced(outcome))
    }

    /// The epochs of a log that may get another owner, who has only what is in the object store.
    pub fn epochs(&self) -> Option<&Epochs> {
        self.shared.options.owned.as_ref().map(|owned| &owned.epochs)
    }

    /// The start of a stream that the next owner of the log will know, as far as this is known. That of a log without epochs is
    /// its start.
    pub fn lasting_start(&self, stream: &Stream) -> Offset {
        let state = stream.lock();
        match self.shared.options.owned {
            Some(_) => state.recorded.start().min(state.start),
            None => state.start,
        }
    }

    /// Whether another server writes this log's objects, so that nothing more is stored.
    pub fn is_fenced(&self) -> bool {
        self.shared.tier.fenced().is_some()
    }

    /// From now on, records of tiered and diskless streams go to the object store as soon as they are synced. For a log
    /// that is to be closed once everything is stored.
    pub fn store_at_once(&self) {
        self.shared.tier.hurry();
    }

    /// Puts an object though there is nothing to store. It is refused if the log has another owner, and [`Log::is_fenced`] says
    /// so then.
    pub fn prove_ownership(&self) {
        let streams = self.shared.streams().into_iter().take(1).collect();
        self.shared.tier.record(streams, Some(self.shared.clock.nanos()));
    }

    /// For how long there have been records that the object store lacks and that cannot be read.
    pub fn unreadable_for(&self) -> Duration {
        match self.shared.tier.unreadable_since.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            since => Duration::from_nanos(self.shared.clock.nanos().saturating_sub(since)),
        }
    }

    /// The error for which the log takes no more appends, if any.
    pub fn stopped(&self) -> Option<AppendError> {
        self.shared.queue.stopped()
    }

    /// Whether the log was closed, or stopped by itself.
    pub fn is_closing(&self) -> bool {
        self.shared.queue.is_stopping()
    }

    /// Whether the log was closed, and all that was appended is synced, or never will be.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Counters for metrics.
    pub fn statistics(&self) -> Statistics {
        let (region_hits, region_misses, region_bytes) = self.shared.regions.statistics();
        let (run_hits, run_misses, run_bytes) = self.shared.runs.statistics();
        Statistics {
            tail_hits: self.shared.tail_hits.load(Ordering::Relaxed),
            cold_reads: self.shared.cold_reads.load(Ordering::Relaxed),
            region_hits,
            region_misses,
            tail_bytes: self.shared.tail.bytes(),
            region_bytes,
            run_hits,
            run_misses,
            run_bytes,
            index_bytes: self.shared.indexes.bytes(),
            segments: self.shared.segments.count(),
            prepared_segments: self.shared.prepared_count(),
            streams: self.shared.stream_count(),
            cleaner_read_bytes: self.shared.cleaner_read.load(Ordering::Relaxed),
            cleaner_written_bytes: self.shared.cleaner_written.load(Ordering::Relaxed),
            objects_stored: self.shared.tier.counters.objects.load(Ordering::Relaxed),
            object_bytes_stored: self.shared.tier.counters.bytes.load(Ordering::Relaxed),
            objects_deleted: self.shared.tier.counters.deleted.load(Ordering::Relaxed),
            unstored_bytes: self.shared.tier.waiting_bytes(),
        }
    }

    /// Finishes and syncs all appends, and ends the threads. Blocks until that is done.
    pub fn close(&self) {
        self.shared.queue.ask_to_stop();
        // The last appends may need one more segment, so the preparer ends after the writer.
        let mut threads = std::mem::take(&mut *self.threads.lock()).into_iter();
        let writer = threads.next();
        // Without threads, its steps go on.
        let ends = writer.is_some();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the writer of the log panicked");
        }
        self.shared.stop_background();
        self.reader.set_threads(None);
        self.reader.set_object_threads(None);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the log panicked");
            }
        }
        if ends {
            self.shared.end();
        }
    }

    /// Asks the writer to end, without waiting for it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn ask_to_stop(&self) {
        self.shared.queue.ask_to_stop();
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Another handle to the same log, without its threads.
    fn handle(&self) -> Log {
        Log {
            shared: self.shared.clone(),
            reader: Reader::new(self.shared.clone()),
            report: self.report.clone(),
            epoch: self.epoch,
            threads: Mutex::default(),
        }
    }
}
