//! What waits to be stored in the object store: which streams have records for it, how many bytes, and since when. Also
//! the puts that have ended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{Offset, StreamId};
use objects::{Bucket, BucketError, Put};
use parking_lot::{Condvar, Mutex};

use crate::options::Options;
use crate::request::AdmitError;
use crate::stream::{Level, Stream};

/// Counters of what was stored.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub objects: AtomicU64,
    pub bytes: AtomicU64,
    pub deleted: AtomicU64,
}

/// The streams that share objects: those for which somebody waits do not wait for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Diskless,
    Tiered,
}

impl Class {
    /// The class of a stream's records. `None` if they do not go to the object store.
    pub fn of(level: Level) -> Option<Class> {
        match level {
            Level::Local => None,
            Level::Tiered | Level::Replicated => Some(Class::Tiered),
            Level::Diskless => Some(Class::Diskless),
        }
    }
}

/// A range of a stream that takes the place of everything that older objects have of it.
pub(crate) struct Replaced {
    pub stream: Arc<Stream>,
    /// The offsets that the range stands for: those of whole extents.
    pub base_offset: Offset,
    pub end: Offset,
    /// [`crate::format::ROW_COMPACTED`] or nothing.
    pub flags: u32,
    /// Segment and row of each of these extents.
    pub old: Vec<(u32, u32)>,
    pub batches: Vec<Bytes>,
}

/// The right to replace ranges, given back when it is dropped. There is one: of two objects that replace the same range,
/// the newer one would count after a restart, whichever was made from the newer state.
pub(crate) struct ReplaceRight(Arc<AtomicBool>);

impl Drop for ReplaceRight {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The contents of an object that replaces parts of older ones.
pub(crate) struct Replacement {
    pub ranges: Vec<Replaced>,
    pub right: ReplaceRight,
    /// Told once the object has taken their place. Dropped if it will not.
    pub done: Sender<()>,
}

/// After a log has got another owner, whoever writes to it has waited for that: for so many nanoseconds, ...
const MOVED_LATELY: u64 = 1_000_000_000;
/// ... records wait for others to share an object with for so many.
const SOON: u64 = 10_000_000;

/// When records of a class are due.
#[derive(Clone, Copy, Debug)]
struct Limit {
    bytes: u64,
    nanos: u64,
}

/// The log's side of an object store.
pub(crate) struct Tier {
    pub bucket: Option<Arc<dyn Bucket>>,
    pub counters: Counters,
    /// Since when there are records that are to be stored and cannot be read, in nanoseconds of the log's clock. 0: there are none.
    pub unreadable_since: AtomicU64,
    /// By [`Class`].
    limits: [Limit; 2],
    /// Until this time of the log's clock, records of diskless streams wait for [`SOON`] only.
    soon_until: u64,
    /// Bytes of diskless streams that may wait.
    backlog_bytes: u64,
    replacing: Arc<AtomicBool>,
    leading: Mutex<Leading>,
    /// Bytes of leading streams between two marks.
    mark_bytes: u64,
    news: Mutex<News>,
    /// Notified for the uploader, and when the log is closed.
    wake: Condvar,
    /// Notified when the log is closed.
    closed: Condvar,
}

#[derive(Default)]
struct News {
    /// By [`Class`].
    waiting: [Waiting; 2],
    /// Puts that have ended, by their numbers.
    ended: Vec<(u64, Result<Put, BucketError>)>,
    replacements: VecDeque<Replacement>,
    /// The streams whose bounds the next object records.
    to_record: BTreeMap<StreamId, Arc<Stream>>,
    /// When the first of them was to be recorded that does not wait for an object with records.
    record_since: Option<u64>,
    /// Records are due as soon as they are synced.
    hurry: bool,
    /// Records of replicated streams are due as early as those of diskless ones: nobody else answers for them.
    soon: bool,
    /// Why nothing more is stored.
    fenced: Option<Arc<str>>,
    stop: bool,
}

impl News {
    /// The nanoseconds until the records of a class with `limit` are due; zero if they are.
    fn due_in(&self, class: usize, limits: [Limit; 2], now_ns: u64) -> Option<u64> {
        let like = if self.soon { Class::Diskless as usize } else { class };
        let due = self.waiting[class].due_in(limits[like], now_ns);
        if self.hurry { due.map(|_| 0) } else { due }
    }
}

/// Streams whose records reach the store no later than the records of other streams that were appended behind them.
#[derive(Default)]
struct Leading {
    streams: Vec<Arc<Stream>>,
    /// Bytes that were appended to them since the last mark, or since an object had all of them.
    bytes: u64,
    /// Their ends at moments in the past, for a store that is behind: an object of the usual size goes from one mark to the
    /// next. Each with the bytes since the one before.
    marks: VecDeque<(u64, Vec<(StreamId, Offset)>)>,
}

/// The records of leading streams that an object should have.
pub(crate) enum Cut {
    /// All that are synced.
    Now,
    /// Those below these ends.
    Mark(HashMap<StreamId, Offset>),
    /// A part of them, without order among the streams: the marks of before a restart are lost.
    Part,
}

#[derive(Default)]
struct Waiting {
    /// Streams with records to store, each once.
    streams: Vec<Arc<Stream>>,
    /// Bytes that were appended to them since the last object.
    bytes: u64,
    /// When the oldest of these records was synced, in nanoseconds of the log's clock.
    since: Option<u64>,
}

impl Waiting {
    /// The nanoseconds until the records are due; zero if they are.
    fn due_in(&self, limit: Limit, now_ns: u64) -> Option<u64> {
        let since = self.since?;
        if self.bytes >= limit.bytes {
            return Some(0);
        }
        Some(since.saturating_add(limit.nanos).saturating_sub(now_ns))
    }
}

impl Tier {
    pub fn new(bucket: Option<Arc<dyn Bucket>>, options: &Options, now_ns: u64) -> Tier {
        let limit =
            |bytes: usize, ms: u64| Limit { bytes: bytes as u64, nanos: ms.saturating_mul(1_000_000) };
        let diskless = limit(options.diskless_bytes.min(options.object_bytes), options.diskless_interval_ms);
        let tiered = limit(options.object_bytes, options.upload_interval_ms);
        Tier {
            bucket,
            counters: Counters::default(),
            unreadable_since: AtomicU64::new(0),
            limits: [diskless, tiered],
            soon_until: options.owned.as_ref().map_or(0, |_| now_ns.saturating_add(MOVED_LATELY)),
            backlog_bytes: options.diskless_backlog_bytes,
            replacing: Arc::default(),
            leading: Mutex::default(),
            mark_bytes: options.object_bytes as u64,
            news: Mutex::default(),
            wake: Condvar::new(),
            closed: Condvar::new(),
        }
    }

    /// Makes a stream a leading one.
    pub fn lead(&self, stream: &Arc<Stream>) {
        let leading = &mut *self.leading.lock();
        leading.streams.retain(|other| !other.lock().deleted && other.id() != stream.id());
        leading.streams.push(stream.clone());
        if !stream.leads() {
            // What is there since before a restart.
            leading.bytes += stream.lock().unstored_below(None);
            stream.set_leads();
        }
    }

    /// The leading streams.
    pub fn leading(&self) -> Vec<Arc<Stream>> {
        self.leading.lock().streams.clone()
    }

    /// Notes that leading streams have `bytes` more of synced records. The caller announces a block.
    pub fn leading_grew(&self, bytes: u64) {
        let leading = &mut *self.leading.lock();
        leading.bytes += bytes;
        if leading.bytes >= self.mark_bytes && self.fenced().is_none() {
            let ends = leading.streams.iter().map(|of| (of.id(), of.lock().synced)).collect();
            leading.marks.push_back((std::mem::take(&mut leading.bytes), ends));
        }
    }

    /// Chooses the ends of the leading streams that the next object should have, so that it has at most `bytes_max` of
    /// them. The caller keeps blocks from being announced.
    pub fn cut(&self, bytes_max: u64) -> Cut {
        let leading = &mut *self.leading.lock();
        // Marks that have been reached.
        while let Some((_, ends)) = leading.marks.front()
            && leading.streams.iter().all(|stream| {
                let end = ends.iter().find(|(id, _)| *id == stream.id()).map(|(_, end)| *end);
                stream.lock().unstored_below(end.or(Some(Offset::ZERO))) == 0
            })
        {
            leading.marks.pop_front();
        }
        let behind: u64 = leading.marks.iter().map(|(bytes, _)| bytes).sum();
        if behind + leading.bytes <= bytes_max {
            leading.marks.clear();
            leading.bytes = 0;
            return Cut::Now;
        }
        match leading.marks.front_mut() {
            Some((bytes, ends)) if *bytes <= bytes_max => Cut::Mark(ends.iter().copied().collect()),
            Some((bytes, _)) => {
                *bytes = bytes.saturating_sub(self.mark_bytes);
                Cut::Part
            }
            None => {
                leading.bytes = leading.bytes.saturating_sub(self.mark_bytes);
                Cut::Part
            }
        }
    }

    /// Counts what the leading streams have to store anew, after an object with it was not made or was given up.
    pub fn recount(&self) {
        let leading = &mut *self.leading.lock();
        let marked: u64 = leading.marks.iter().map(|(bytes, _)| bytes).sum();
        let all: u64 = leading.streams.iter().map(|of| of.lock().unstored_below(None)).sum();
        leading.bytes = all.saturating_sub(marked);
    }

    /// Notes that a stream has `bytes` more of synced records.
    pub fn grew(&self, class: Class, stream: &Arc<Stream>, bytes: u64, now_ns: u64) {
        self.add(&mut self.news.lock(), class, stream, bytes, now_ns);
    }

    /// Notes that a stream has `bytes` of synced records, unless that is known.
    pub fn found(&self, class: Class, stream: &Arc<Stream>, bytes: u64, now_ns: u64) {
        let mut news = self.news.lock();
        if !stream.awaits_upload() {
            self.add(&mut news, class, stream, bytes, now_ns);
        }
    }

    fn add(&self, news: &mut News, class: Class, stream: &Arc<Stream>, bytes: u64, now_ns: u64) {
        if stream.is_aside() {
            return;
        }
        let soon_all = news.soon;
        let waiting = &mut news.waiting[class as usize];
        if !stream.note_awaits_upload(true) {
            waiting.streams.push(stream.clone());
        }
        waiting.bytes += bytes;
        let first = waiting.since.is_none();
        let limit = self.limits[if soon_all { Class::Diskless } else { class } as usize];
        let soon = class == Class::Diskless && now_ns < self.soon_until;
        let spared = if soon { limit.nanos.saturating_sub(SOON) } else { 0 };
        waiting.since.get_or_insert(now_ns.saturating_sub(spared));
        if first || waiting.bytes >= limit.bytes {
            self.wake.notify_one();
        }
    }

    /// Takes the waiting streams of one class, if they have enough records for an object, or have them for long enough.
    pub fn take_waiting(&self, now_ns: u64) -> Vec<Arc<Stream>> {
        let mut news = self.news.lock();
        for class in 0..self.limits.len() {
            if news.due_in(class, self.limits, now_ns) == Some(0) {
                let waiting = &mut news.waiting[class];
                (waiting.bytes, waiting.since) = (0, None);
                return std::mem::take(&mut waiting.streams);
            }
        }
        Vec::new()
    }

    /// Lets the next object record the bounds of `streams`. With the time `since`, as with records of diskless streams there is
    /// an object after a while, also if there are no records for it.
    pub fn record(&self, streams: Vec<Arc<Stream>>, since: Option<u64>) {
        if streams.is_empty() {
            return;
        }
        let mut news = self.news.lock();
        news.to_record.extend(streams.into_iter().map(|stream| (stream.id(), stream)));
        if let Some(since) = since {
            let first = news.record_since.is_none();
            news.record_since.get_or_insert(since);
            if first {
                self.wake.notify_one();
            }
        }
    }

    /// Takes the streams whose bounds are to be recorded, if there is an object with records, or they waited for long enough.
    pub fn take_to_record(&self, now_ns: u64, with_records: bool) -> Vec<Arc<Stream>> {
        let mut news = self.news.lock();
        if !with_records && self.record_due_in(&news, now_ns) != Some(0) {
            return Vec::new();
        }
        news.record_since = None;
        std::mem::take(&mut news.to_record).into_values().collect()
    }

    /// The streams whose bounds are to be recorded.
    pub fn to_record(&self) -> Vec<Arc<Stream>> {
        self.news.lock().to_record.values().cloned().collect()
    }

    /// The nanoseconds until bounds are to be recorded.
    fn record_due_in(&self, news: &News, now_ns: u64) -> Option<u64> {
        let wait = if news.hurry { 0 } else { self.limits[Class::Diskless as usize].nanos };
        Some(news.record_since?.saturating_add(wait).saturating_sub(now_ns))
    }

    /// From now on, records go to the store as soon as they are synced.
    pub fn hurry(&self) {
        self.news.lock().hurry = true;
        self.wake.notify_one();
    }

    /// Whether records of replicated streams go to the store as early as those of diskless ones.
    pub fn set_soon(&self, soon: bool) {
        let before = std::mem::replace(&mut self.news.lock().soon, soon);
        if soon && !before {
            self.wake.notify_one();
        }
    }

    /// The right to replace ranges, unless somebody has it.
    pub fn begin_replacing(&self) -> Option<ReplaceRight> {
        let taken = self.replacing.swap(true, Ordering::AcqRel);
        (!taken).then(|| ReplaceRight(self.replacing.clone()))
    }

    /// Queues the contents of an object. Drops them if nothing more is stored.
    pub fn replace(&self, replacement: Replacement) {
        let mut news = self.news.lock();
        if news.fenced.is_none() && !news.stop {
            news.replacements.push_back(replacement);
            self.wake.notify_one();
        }
    }

    /// Takes the next contents of an object that are queued.
    pub fn take_replacement(&self) -> Option<Replacement> {
        self.news.lock().replacements.pop_front()
    }

    /// Undoes [`Tier::take_replacement`].
    pub fn put_back(&self, replacement: Replacement) {
        self.news.lock().replacements.push_front(replacement);
    }

    /// The streams that wait, of all classes.
    pub fn waiting(&self) -> Vec<Arc<Stream>> {
        self.news.lock().waiting.iter().flat_map(|waiting| &waiting.streams).cloned().collect()
    }

    /// Bytes of records that wait, of all classes.
    pub fn waiting_bytes(&self) -> u64 {
        self.news.lock().waiting.iter().map(|waiting| waiting.bytes).sum()
    }

    /// Fails if no record of a diskless stream may be appended: it might never become visible.
    pub fn check_diskless(&self) -> Result<(), AdmitError> {
        let refuse = |why: String| Err(AdmitError::Unstorable(why.into()));
        if self.bucket.is_none() {
            return refuse("the server has no object store, which diskless topics need".into());
        }
        let news = self.news.lock();
        if let Some(why) = &news.fenced {
            return Err(AdmitError::Unstorable(why.clone()));
        }
        let waiting = news.waiting[Class::Diskless as usize].bytes;
        if waiting >= self.backlog_bytes {
            return refuse(format!("{waiting} bytes of diskless topics wait for the object store"));
        }
        Ok(())
    }

    /// Notes that a put has ended.
    pub fn ended(&self, put: u64, result: Result<Put, BucketError>) {
        self.news.lock().ended.push((put, result));
        self.wake.notify_one();
    }

    /// The puts that have ended since the last call.
    pub fn take_ended(&self) -> Vec<(u64, Result<Put, BucketError>)> {
        std::mem::take(&mut self.news.lock().ended)
    }

    /// Notes why nothing more is stored.
    pub fn fence(&self, why: Arc<str>) {
        let mut news = self.news.lock();
        news.fenced = Some(why);
        news.replacements.clear();
    }

    /// Why nothing more is stored.
    pub fn fenced(&self) -> Option<Arc<str>> {
        self.news.lock().fenced.clone()
    }

    /// Waits until a put has ended, or, if another object may be begun, until records are due; for at most `time`.
    /// `now_ns` is the time of the log's clock. Returns false once the log is closed.
    pub fn wait(&self, may_begin: bool, now_ns: u64, time: Duration) -> bool {
        let mut news = self.news.lock();
        let due = (0..self.limits.len()).filter_map(|class| news.due_in(class, self.limits, now_ns));
        let due = due.chain(self.record_due_in(&news, now_ns)).min();
        let due = if news.replacements.is_empty() { due } else { Some(0) };
        let time = match due {
            Some(nanos) if may_begin => time.min(Duration::from_nanos(nanos)),
            _ => time,
        };
        if !news.stop && news.ended.is_empty() && !time.is_zero() {
            self.wake.wait_for(&mut news, time);
        }
        !news.stop
    }

    /// Waits for `time`, whatever happens. Returns false once the log is closed.
    pub fn rest(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut news = self.news.lock();
        while !news.stop && !self.closed.wait_until(&mut news, until).timed_out() {}
        !news.stop
    }

    pub fn stop(&self) {
        let mut news = self.news.lock();
        news.stop = true;
        news.replacements.clear();
        self.wake.notify_all();
        self.closed.notify_all();
    }

    pub fn stored(&self, bytes: u64) {
        self.counters.objects.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epochs::{Epochs, Owned};

    #[test]
    fn records_of_a_log_that_moved_lately_are_due_soon() {
        let owned = Some(Owned { epochs: Epochs::along(&BTreeMap::new()), owner: 1 });
        let options = Options { owned, diskless_interval_ms: 250, ..Options::default() };
        let begin = 5_000_000_000;
        let tier = Tier::new(None, &options, begin);
        let stream = Arc::new(Stream::new(StreamId(1)));
        for (at, due) in [(begin, begin + SOON), (begin + MOVED_LATELY, begin + MOVED_LATELY + 250_000_000)] {
            tier.grew(Class::Diskless, &stream, 1, at);
            assert!(tier.take_waiting(due - 1).is_empty());
            assert_eq!(tier.take_waiting(due).len(), 1);
            stream.note_awaits_upload(false);
        }
    }

    #[test]
    fn records_are_due_by_bytes_or_by_time_and_diskless_ones_first() {
        let options = Options {
            object_bytes: 1000,
            upload_interval_ms: 10,
            diskless_bytes: 100,
            diskless_interval_ms: 1,
            ..Options::default()
        };
        let tier = Tier::new(None, &options, 0);
        let [a, b] = [1, 2].map(|id| Arc::new(Stream::new(StreamId(id))));
        tier.grew(Class::Tiered, &a, 999, 0);
        tier.grew(Class::Diskless, &b, 99, 9_500_000);
        assert!(tier.take_waiting(9_600_000).is_empty());
        let ids = |streams: Vec<Arc<Stream>>| streams.iter().map(|stream| stream.id().0).collect::<Vec<_>>();
        assert_eq!(ids(tier.take_waiting(10_500_000)), [2]);
        assert_eq!(ids(tier.take_waiting(10_500_000)), [1]);
        assert!(tier.take_waiting(u64::MAX).is_empty());
        b.note_awaits_upload(false);
        tier.grew(Class::Diskless, &b, 100, 20_000_000);
        assert_eq!(ids(tier.take_waiting(20_000_000)), [2]);
    }
}
