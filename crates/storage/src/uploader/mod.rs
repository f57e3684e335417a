//! The uploader: builds objects of what the tiered and diskless streams have gained, and puts them into the bucket.
//!
//! Objects are segments ([`crate::segment::object`]), numbered without gaps. Each has the newest records of all streams
//! that wait, sorted by stream, or ranges that replace those of older objects. Several objects may be on their way at
//! the same time. An object counts once it and all objects before it are stored, and its local file has its name;
//! opening the log then needs no request to the store. Local copies stay until the local retention drops them.
//!
//! An object whose put has no clear outcome is put again under the same key with the same bytes. A key that is taken
//! already was written before a crash, by this log. The object there is adopted if its ranges continue what is stored,
//! and otherwise its number is skipped. If it is another server's, the uploader stops.

mod collect;
mod existing;
#[cfg(any(test, feature = "stepped"))]
mod mutations;
mod object;
mod owner;
mod pass;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use model::{Offset, StreamId};
use objects::{Bucket, BucketError, Put};

use self::object::{Built, Identity, Known, Replaces, Unreadable, Wish, of_replacement, of_streams};
use self::owner::Owners;
use self::pass::Pass;
use crate::cleaner::RewriteError;
use crate::completion::{AppendError, Completion};
use crate::format::{DirectoryRow, ROW_COMPACTED, ROW_REPLACES, STORED, length32};
use crate::reader::Job;
use crate::request::Committed;
use crate::segment::object::{Local, ObjectFile, stored_extent};
use crate::segment::{Segment, file_name, write_file};
use crate::shared::Shared;
use crate::stream::{Stream, Waiter};

const REST_MAX: Duration = Duration::from_secs(1);

/// The outcome of a turn of the uploader.
#[derive(Debug)]
pub(crate) enum Uploaded {
    /// There was nothing to do.
    Nothing,
    /// A put was begun, and none has ended.
    Begun,
    /// An object was stored.
    Object,
    /// The turn failed. The next one tries again.
    Failed(UploadError),
    /// Another server writes the objects of this log. Nothing more is stored.
    Fenced(Arc<str>),
}

/// Why nothing was stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error("reading what is to be stored: {0}")]
    Source(#[from] RewriteError),
    #[error("the next records of the stream {stream} cannot be read: {source}")]
    Unreadable { stream: StreamId, leads: bool, source: RewriteError },
    #[error("writing a local file for the object store: {0}")]
    Local(std::io::Error),
}

/// Puts objects. Only one thread may have one.
pub(crate) struct Uploader {
    shared: Arc<Shared>,
    /// The sequence number of the object that is named next.
    next: u32,
    /// The objects from `next` on that were built and have no local file yet.
    pending: VecDeque<Pending>,
    /// The object `next`, which was found in the bucket and has no local file yet.
    left: Option<Known>,
    /// Set once an object was stored, until a put has no clear outcome. Without it, one is put at a time: objects from before a
    /// crash may be in the way, or the store is slow.
    confirmed: bool,
    /// The last object took the place of others. Such objects and those with new records take turns.
    replaced: bool,
    /// The number of the last put.
    puts: u64,
    owners: Owners,
    /// The newest named object says that the objects below count.
    counted: u32,
    /// Set once the objects that a restore did not count are deleted.
    cleared: bool,
    /// The threads that put objects. Without them, the uploader puts them itself.
    threads: Option<Sender<Job>>,
    /// Dead objects, and since when they are dead, in nanoseconds of the log's clock.
    dead: HashMap<u32, u64>,
    /// Objects without a local file that are still to be deleted.
    doomed: Vec<u32>,
    /// Streams whose next records cannot be read. They wait for another attempt apart from the others.
    aside: HashMap<StreamId, Aside>,
    /// A leading stream whose next records cannot be read, and since when.
    leader_aside: Option<(StreamId, u64)>,
    /// The problems with them that were not told yet.
    problems: Vec<UploadError>,
    pass: Option<Pass>,
    /// The last pass went up to the block with this number.
    passed: u64,
}

struct Aside {
    stream: Arc<Stream>,
    /// Since when they cannot be read, in nanoseconds of the log's clock.
    since: u64,
    /// When its records are read again, in nanoseconds of the log's clock. `None` while they are.
    until: Option<u64>,
    /// The pause before that, which grows.
    pause: Duration,
}

/// The bounds of the pause before unreadable records are read again.
const ASIDE_MIN: Duration = Duration::from_secs(1);
const ASIDE_MAX: Duration = Duration::from_secs(60);

/// An object on its way.
struct Pending {
    built: Built,
    put: Progress,
}

enum Progress {
    /// To be put, perhaps again.
    Due,
    /// The put with this number goes on.
    Going(u64),
    Ended(Put),
}

impl Uploader {
    /// The uploader of a log whose next object has the sequence number `next`.
    pub fn new(shared: Arc<Shared>, next: u32) -> Uploader {
        let owned = shared.options.owned.as_ref();
        let first = owned.and_then(|owned| owned.epochs.newest()).map_or(0, |newest| STORED | newest.first);
        let owners = owned.map(|owned| Owners::of(owned, shared.options.log_id)).unwrap_or_default();
        Uploader {
            next: next.max(first),
            // Where all objects count, none is to be deleted.
            cleared: owned.is_some(),
            owners,
            shared,
            pending: VecDeque::new(),
            left: None,
            confirmed: false,
            replaced: false,
            puts: 0,
            counted: 0,
            threads: None,
            dead: HashMap::new(),
            doomed: Vec::new(),
            aside: HashMap::new(),
            leader_aside: None,
            problems: Vec::new(),
            pass: None,
            passed: 0,
        }
    }

    /// From now on the receivers behind `threads` put the objects.
    pub fn set_threads(&mut self, threads: Sender<Job>) {
        self.threads = Some(threads);
    }

    /// The sequence number of the object that is named next.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Waits until there is something to do, for at most a while. Returns false once the log is closed.
    pub fn wait(&self) -> bool {
        self.shared.tier.wait(self.may_begin(), self.shared.clock.nanos(), REST_MAX)
    }

    /// Rests for `time` after a failure. Returns false once the log is closed.
    pub fn rest(&self, time: Duration) -> bool {
        self.shared.tier.rest(time)
    }

    /// Whether another server writes this log's objects.
    pub fn is_fenced(&self) -> bool {
        self.shared.tier.fenced().is_some()
    }

    /// Begins a put, if there is enough to store, and names the objects whose puts have ended.
    pub fn turn(&mut self) -> Uploaded {
        let Some(bucket) = self.shared.tier.bucket.clone() else { return Uploaded::Nothing };
        if self.is_fenced() {
            return Uploaded::Nothing;
        }
        self.try_those_aside();
        self.begin_pass();
        let begun = self.begin(&bucket);
        self.note_unreadable();
        let mut failed = None;
        for (put, result) in self.shared.tier.take_ended() {
            let same = |pending: &&mut Pending| matches!(pending.put, Progress::Going(of) if of == put);
            // Without a match, the object was given up.
            let Some(pending) = self.pending.iter_mut().find(same) else { continue };
            pending.put = match result {
                Ok(put) => Progress::Ended(put),
                Err(error) => {
                    failed = Some(error.into());
                    self.confirmed = false;
                    Progress::Due
                }
            };
        }
        #[cfg(any(test, feature = "stepped"))]
        self.mutate(&*bucket, failed.is_some());
        let settled = self.settle(&*bucket);
        self.end_pass();
        match (settled, begun, failed) {
            (Ok(fenced @ Uploaded::Fenced(_)), ..) => fenced,
            (Err(error), ..) | (_, Err(error), _) | (_, _, Some(error)) => Uploaded::Failed(error),
            (Ok(Uploaded::Nothing), Ok(true), _) => Uploaded::Begun,
            (Ok(settled), ..) => settled,
        }
    }

    /// Whether another object may be built.
    fn may_begin(&self) -> bool {
        let most = if self.confirmed { self.shared.options.object_puts.max(1) } else { 1 };
        self.left.is_none() && self.pending.len() < most
    }

    /// Begins the puts that are due, and another one if there is enough to store. Returns whether it began any.
    fn begin(&mut self, bucket: &Arc<dyn Bucket>) -> Result<bool, UploadError> {
        let due = |(at, pending): (usize, &Pending)| matches!(pending.put, Progress::Due).then_some(at);
        let mut due: Vec<usize> = self.pending.iter().enumerate().filter_map(due).collect();
        let built = if self.may_begin() { self.build(&**bucket) } else { Ok(None) };
        let (built, failed) = match built {
            Ok(built) => (built, None),
            Err(error) => (None, Some(error)),
        };
        if let Some(built) = built {
            due.push(self.pending.len());
            self.pending.push_back(Pending { built, put: Progress::Due });
        }
        if !self.confirmed {
            // A slow connection takes one object in its time, and not four.
            due.retain(|at| *at == 0);
        }
        for at in &due {
            self.put(*at, bucket);
        }
        failed.map_or(Ok(!due.is_empty()), Err)
    }

    /// Puts the pending object number `at`.
    fn put(&mut self, at: usize, bucket: &Arc<dyn Bucket>) {
        self.puts += 1;
        let number = self.puts;
        let pending = &mut self.pending[at];
        pending.put = Progress::Going(number);
        let key = self.shared.object_key(self.next + length32(at));
        let (shared, bucket, body) = (self.shared.clone(), bucket.clone(), pending.built.body.clone());
        let job: Job = Box::new(move || {
            let result = bucket.put_if_absent(&key, body.parts());
            drop(body);
            shared.tier.ended(number, result);
        });
        match &self.threads {
            // A closed channel means a closed log.
            Some(threads) => drop(threads.send(job)),
            None => job(),
        }
    }

    /// Builds the next object, if there is enough to store.
    fn build(&mut self, bucket: &dyn Bucket) -> Result<Option<Built>, UploadError> {
        let shared = self.shared.clone();
        if !std::mem::take(&mut self.replaced)
            && let Some(replacement) = shared.tier.take_replacement()
        {
            let built = self.identity(bucket).and_then(|identity| {
                of_replacement(&shared, identity, &replacement).map_err(UploadError::from)
            });
            return match built {
                Ok((body, known)) => {
                    self.replaced = true;
                    let replaces = Some(Replaces::of(replacement));
                    let (streams, recorded) = (Vec::new(), Vec::new());
                    Ok(Some(Built { body: Arc::new(body), known, streams, recorded, replaces }))
                }
                Err(error @ UploadError::Source(_)) => Err(error),
                Err(error) => {
                    shared.tier.put_back(replacement);
                    Err(error)
                }
            };
        }
        let now = shared.clock.nanos();
        let waiting = shared.tier.take_waiting(now);
        let recorded = shared.tier.take_to_record(now, !waiting.is_empty());
        if waiting.is_empty() && recorded.is_empty() {
            return Ok(None);
        }
        // Before their ends are looked at: what comes later makes them wait again.
        for stream in &waiting {
            stream.note_awaits_upload(false);
        }
        let identity = match self.identity(bucket) {
            Ok(identity) => identity,
            Err(error) => {
                waiting.iter().for_each(|stream| shared.store_later(stream));
                shared.tier.record(recorded, Some(now));
                return Err(error);
            }
        };
        let wish = Wish::new(&shared, waiting);
        let built = of_streams(&shared, identity, &wish, &recorded).map(|newest| {
            newest.unreadable.into_iter().for_each(|unreadable| self.put_aside(unreadable));
            newest.object
        });
        let streams = wish.into_streams();
        self.leader_aside = match &built {
            Err(UploadError::Unreadable { stream, .. }) => {
                let since = self.leader_aside.filter(|(before, _)| before == stream);
                Some((*stream, since.map_or_else(|| shared.clock.nanos(), |(_, since)| since)))
            }
            _ => None,
        };
        if built.is_ok() && !self.aside.is_empty() {
            // Those that were read at last. An object may be full before it has any of their records.
            let rows = match &built {
                Ok(Some((_, known))) => &known.rows[..],
                Ok(None) | Err(_) => &[],
            };
            let was_read = |id: &StreamId| rows.iter().any(|row| row.stream == *id);
            self.aside.retain(|id, aside| aside.until.is_some() || !was_read(id));
        }
        match &built {
            Ok(Some((_, known))) => {
                for row in &known.rows {
                    if let Ok(at) = streams.binary_search_by_key(&row.stream, |stream| stream.id()) {
                        streams[at].lock().uploading = row.next_offset;
                    }
                }
            }
            Ok(None) | Err(_) => {
                shared.tier.recount();
                shared.tier.record(recorded.clone(), Some(now));
            }
        }
        // A part may be left, because the object was full.
        streams.iter().for_each(|stream| shared.store_later(stream));
        Ok(built?.map(|(body, known)| {
            let body = Arc::new(body);
            Built { body, known, streams, recorded, replaces: None }
        }))
    }

    /// Lets a stream wait apart from the others.
    fn put_aside(&mut self, Unreadable { stream, why }: Unreadable) {
        let (id, now) = (stream.id(), self.shared.clock.nanos());
        let before = self.aside.get(&id).map(|aside| (aside.since, aside.pause));
        let since = before.map_or(now, |(since, _)| since);
        let pause = before.map_or(ASIDE_MIN, |(_, pause)| (pause * 2).min(ASIDE_MAX));
        let until = Some(now.saturating_add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX)));
        stream.set_aside(true);
        self.aside.insert(id, Aside { stream, since, until, pause });
        self.problems.push(UploadError::Unreadable { stream: id, leads: false, source: why });
    }

    /// Lets the streams wait with the others again whose time has come.
    fn try_those_aside(&mut self) {
        if self.aside.is_empty() {
            return;
        }
        let (shared, now) = (&self.shared, self.shared.clock.nanos());
        self.aside.retain(|_, aside| {
            let (deleted, stored) = {
                let state = aside.stream.lock();
                (state.deleted, state.is_stored())
            };
            // Records that are trimmed need not be read any more. Those behind them wait as all others do.
            if stored || aside.until.is_some_and(|until| until <= now) {
                aside.until = None;
                aside.stream.set_aside(false);
                shared.store_later(&aside.stream);
            }
            !deleted && !stored
        });
    }

    /// Says since when records cannot be read.
    fn note_unreadable(&self) {
        let since = self.aside.values().map(|aside| aside.since);
        let since = since.chain(self.leader_aside.map(|(_, since)| since)).min();
        // 0 says that there are none.
        self.shared.tier.unreadable_since.store(since.map_or(0, |since| since.max(1)), Ordering::Release);
    }

    /// The problems with single streams since the last call.
    pub fn take_problems(&mut self) -> Vec<UploadError> {
        std::mem::take(&mut self.problems)
    }

    /// The identity of the object behind the pending ones.
    fn identity(&mut self, bucket: &dyn Bucket) -> Result<Identity, UploadError> {
        self.delete_uncounted(bucket)?;
        let owner = self.owners.current(&self.shared, bucket)?;
        Ok(Identity { sequence: self.next + length32(self.pending.len()), owner, counted: self.next })
    }

    /// Names the objects that are stored without a gap.
    fn settle(&mut self, bucket: &dyn Bucket) -> Result<Uploaded, UploadError> {
        let mut settled = Uploaded::Nothing;
        loop {
            if let Some(known) = &self.left {
                self.name(known, None)?;
                self.counted = self.counted.max(known.counted);
                (self.left, self.next) = (None, self.next + 1);
                settled = Uploaded::Object;
                continue;
            }
            let Some(first) = self.pending.front_mut() else { return Ok(settled) };
            match first.put {
                Progress::Due | Progress::Going(_) => return Ok(settled),
                Progress::Ended(Put::Stored) => {
                    let Built { known, replaces, .. } = &self.pending[0].built;
                    self.name(known, replaces.as_ref())?;
                    let Built { body, known, replaces, .. } =
                        self.pending.pop_front().expect("it was just seen").built;
                    self.counted = self.counted.max(known.counted);
                    self.shared.tier.stored(body.bytes() as u64);
                    if let Some(replaces) = replaces {
                        let done = replaces.done.clone();
                        // Whoever waits may replace something else at once.
                        drop(replaces);
                        // Nobody may wait any more.
                        let _ = done.send(());
                    }
                    self.next += 1;
                    self.confirmed = true;
                    settled = Uploaded::Object;
                }
                Progress::Ended(Put::Exists) => {
                    // If this fails, the object may be one of a request that is still on its way.
                    first.put = Progress::Due;
                    if let Some(why) = self.settle_existing(bucket)? {
                        return Ok(Uploaded::Fenced(self.fence(why)));
                    }
                }
            }
        }
    }

    /// Gives up all objects that are on their way: their numbers are taken. Their records go into other objects.
    fn discard(&mut self) {
        // They may still land under the next numbers. Objects that are put meanwhile would have to give way again.
        self.confirmed = false;
        let (mut streams, mut recorded): (Vec<Arc<Stream>>, Vec<Arc<Stream>>) = Default::default();
        for pending in self.pending.drain(..) {
            streams.extend(pending.built.streams);
            recorded.extend(pending.built.recorded);
        }
        self.shared.tier.record(recorded, Some(self.shared.clock.nanos()));
        for stream in &streams {
            stream.lock().uploading = Offset::ZERO;
        }
        self.shared.tier.recount();
        streams.iter().for_each(|stream| self.shared.store_later(stream));
    }

    /// Stores nothing any more.
    fn fence(&mut self, why: String) -> Arc<str> {
        let why: Arc<str> = why.into();
        self.shared.tier.fence(why.clone());
        self.pending.clear();
        self.left = None;
        self.shared.fail_waiters(&AppendError::Unstored(why.clone()));
        why
    }

    /// Writes the local file of a stored object, gives it its name, and lets the streams know.
    fn name(&self, known: &Known, replaces: Option<&Replaces>) -> Result<(), UploadError> {
        let Known { header, trailer, rows, local, .. } = known;
        assert_eq!(header.sequence, self.next, "objects are named in the order of their numbers");
        let name = file_name(header.sequence);
        write_file(&*self.shared.disk, &name, local).map_err(UploadError::Local)?;
        let name = Local::Named(self.shared.disk.clone(), name);
        let object =
            self.shared.tier.bucket.clone().map(|bucket| (bucket, self.shared.object_key(header.sequence)));
        let file = ObjectFile::new(object, header, name, local.len() as u64);
        let segment = Arc::new(Segment::new(header.sequence, header.generation, Arc::new(file)));
        segment.set_footer(*trailer, None);
        segment.set_live(length32(rows.len()) + 1, rows.iter().map(|row| row.bytes).sum());
        segment.mark_sealed();
        self.shared.segments.insert(segment.clone());
        let (mut grown, mut visible) = (Vec::new(), Vec::new());
        for (row, at) in rows.iter().zip(0..) {
            let old = replaces.and_then(|replaces| replaces.old.get(&(row.stream, row.base_offset)));
            let old = old.map_or(&[][..], Vec::as_slice);
            if !self.publish(row, (at, &segment), old, &mut grown, &mut visible) {
                segment.release(stored_extent(row, &segment, at).bytes);
            }
        }
        let recorded = self.note_bounds(known);
        segment.release(0);
        // The listener comes before the completions, as in the writer.
        if !grown.is_empty() {
            self.shared.listener.committed(&grown);
        }
        visible.into_iter().for_each(|waiter: Waiter| waiter.done.complete(Ok(())));
        recorded.into_iter().for_each(|done| done.complete(Ok(())));
        self.shared.wake_preparer();
        Ok(())
    }

    /// Lets the streams know that an object records their bounds. Returns those who waited for it.
    fn note_bounds(&self, known: &Known) -> Vec<Arc<dyn Completion>> {
        if self.shared.options.owned.is_none() {
            return Vec::new();
        }
        let mut done = Vec::new();
        for (id, start, next) in &known.bounds {
            if let Some(stream) = self.shared.find_stream(*id) {
                done.extend(stream.lock().recorded.note(*start, *next, known.header.sequence));
            }
        }
        done
    }

    /// Lets the stream of the directory's row number `at` know of it; `old` are the extents that it replaces. Returns false if the stream does not need it.
    fn publish(
        &self,
        row: &DirectoryRow,
        (at, segment): (u32, &Segment),
        old: &[(u32, u32)],
        grown: &mut Vec<Committed>,
        visible: &mut Vec<Waiter>,
    ) -> bool {
        let Some(stream) = self.shared.find_stream(row.stream) else { return false };
        let (extent, replaces) = (stored_extent(row, segment, at), row.flags & ROW_REPLACES != 0);
        let mut dropped = Vec::new();
        let mut state = stream.lock();
        let wanted = !state.deleted && row.next_offset > state.start;
        let taken = match replaces {
            true => {
                let compacted = row.flags & ROW_COMPACTED != 0;
                wanted
                    && state.replace_stored((extent, row.next_offset), old, compacted, |sequence, bytes| {
                        dropped.push((sequence, bytes));
                    })
            }
            false => wanted && state.add_stored(extent, row.next_offset),
        };
        if taken
            && stream.level().waits()
            && let Some(shown) = state.show(row.next_offset)
        {
            visible.extend(shown);
            grown.push(Committed { stream: stream.clone(), end: state.committed, bytes: extent.bytes });
        }
        let refused = wanted && !taken && !replaces;
        if refused {
            state.uploading = Offset::ZERO;
        }
        drop(state);
        for (sequence, bytes) in dropped {
            if let Some(segment) = self.shared.segments.find(sequence) {
                segment.release(bytes);
            }
        }
        if refused {
            self.shared.store_later(&stream);
        }
        taken
    }
}
