//! A log on a simulated disk, a model of its contents, and the comparison of the two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use bytes::Bytes;
use disk::SimDisk;
use model::batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES, seal_crc, set_log_append_time};
use model::{BatchHeader, Offset, StreamId, Timestamp};
use objects::{Bucket, SimBucket};
use parking_lot::Mutex;

use crate::cleaner::{Compaction, RewriteError, Rewriter, Rewritten, Turn};
use crate::copies::{Block, BlockSink};
use crate::log::{Parts, assemble};
use crate::options::Mutation;
use crate::options::{Clock, Options};
use crate::pacer::Pacer;
use crate::reader::{Job, ReadError, ReadRequest, ReadStep};
use crate::recovery::OpenError;
use crate::request::{Append, AppendError, Committed, Completion, Durability, Listener};
use crate::stream::{REMEMBERED_BATCHES, Stream};
use crate::tools::takeover::TakeOver;
use crate::uploader::{Uploaded, Uploader};
use crate::writer::Patience;

/// The number of the stream that is diskless, if there is an object store.
pub const DISKLESS: u64 = 2;
/// A tiered stream that leads.
pub const LEADING: u64 = 3;

/// A clock that the test moves.
#[derive(Default)]
pub struct TestClock {
    pub ms: AtomicI64,
    pub nanos: AtomicU64,
}

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        self.ms.load(Ordering::Relaxed)
    }
    fn nanos(&self) -> u64 {
        self.nanos.fetch_add(1, Ordering::Relaxed)
    }
}

/// Counts the calls of the log.
#[derive(Default)]
pub struct CountingListener {
    pub rooms: AtomicUsize,
    pub commits: AtomicUsize,
}

impl Listener for CountingListener {
    fn committed(&self, streams: &[Committed]) {
        self.commits.fetch_add(streams.len(), Ordering::Relaxed);
        for committed in streams {
            assert!(committed.stream.bounds().committed >= committed.end, "what is announced can be read");
        }
    }
    fn room(&self) {
        self.rooms.fetch_add(1, Ordering::Relaxed);
    }
}

/// The outcome of one append.
#[derive(Default)]
pub struct Outcome(AtomicU8);

impl Outcome {
    pub fn acknowledged(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
    pub fn failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 2
    }
    pub fn pending(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
    pub fn done() -> Arc<Outcome> {
        Arc::new(Outcome(AtomicU8::new(1)))
    }
}

impl Completion for Outcome {
    fn complete(&self, result: Result<(), AppendError>) {
        let before = self.0.swap(if result.is_ok() { 1 } else { 2 }, Ordering::Relaxed);
        assert_eq!(before, 0, "a completion is called once");
    }
}

/// A batch of `count` records whose body is random.
pub fn batch(
    rng: &mut fastrand::Rng,
    count: i32,
    body: usize,
    timestamp: i64,
    producer: Option<(i64, i32)>,
) -> Bytes {
    let mut bytes = vec![0u8; HEADER_BYTES + body];
    rng.fill(&mut bytes[HEADER_BYTES..]);
    let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).unwrap();
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[27..35].copy_from_slice(&timestamp.to_be_bytes());
    bytes[35..43].copy_from_slice(&timestamp.to_be_bytes());
    let (id, sequence) = producer.unwrap_or((-1, -1));
    bytes[43..51].copy_from_slice(&id.to_be_bytes());
    bytes[51..53].copy_from_slice(&(if producer.is_some() { 0i16 } else { -1 }).to_be_bytes());
    bytes[53..57].copy_from_slice(&sequence.to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    seal_crc(&mut bytes);
    Bytes::from(bytes)
}

/// One append in the model.
#[derive(Clone)]
pub struct Appended {
    /// Whether the stream's producer sent it, which has not more than five without an answer.
    pub produced: bool,
    pub base: Offset,
    pub count: i64,
    /// The possible contents, except for base offset and leader epoch; `None` if compaction removed the batch. There
    /// are several if it is not known whether a compaction got that far.
    pub versions: Vec<Option<Bytes>>,
    pub timestamp: Timestamp,
    pub outcome: Arc<Outcome>,
    pub durability: Durability,
    /// Its place among the appends to all streams.
    pub order: u64,
}

impl Appended {
    pub fn end(&self) -> Offset {
        self.base + self.count
    }

    /// Whether the batch may be missing.
    pub fn droppable(&self) -> bool {
        self.versions.contains(&None)
    }

    /// Whether `batch`, which has this base offset, is a possible form of the append.
    pub fn is(&self, batch: &[u8]) -> bool {
        let empty = BatchHeader::parse(batch).unwrap().count == 0;
        self.versions.iter().any(|version| match version {
            Some(version) => version[16..] == batch[16..],
            None => empty,
        })
    }

    /// Upper bound of its bytes.
    fn bytes(&self) -> u64 {
        let largest =
            self.versions.iter().map(|version| version.as_ref().map_or(HEADER_BYTES, Bytes::len)).max();
        largest.unwrap_or_default() as u64
    }
}

/// Drops, keeps and replaces batches at random, and records its decisions.
struct RandomRewriter<'a> {
    rng: fastrand::Rng,
    drops: u8,
    done: &'a std::cell::RefCell<Vec<(Offset, Rewritten)>>,
}

impl Rewriter for RandomRewriter<'_> {
    fn rewrite(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<Rewritten, String> {
        let rewritten = match self.rng.u8(0..100) {
            n if n < self.drops => Rewritten::Drop,
            n if n < 80 || header.count == 0 => Rewritten::Keep,
            _ => {
                let kept = self.rng.usize(HEADER_BYTES..=batch.len());
                let mut shorter = batch[..kept].to_vec();
                let length = i32::try_from(kept - LENGTH_PREFIX_BYTES).unwrap();
                shorter[8..12].copy_from_slice(&length.to_be_bytes());
                shorter[57..61].copy_from_slice(&self.rng.i32(1..=header.count).to_be_bytes());
                seal_crc(&mut shorter);
                Rewritten::Replace(shorter.into())
            }
        };
        if header.count > 0 {
            self.done.borrow_mut().push((header.base_offset, rewritten.clone()));
        }
        Ok(rewritten)
    }
}

#[derive(Clone, Default)]
pub struct StreamModel {
    pub appended: Vec<Appended>,
    pub next: Offset,
    /// Requested trims.
    pub trims: Vec<(Offset, Arc<Outcome>)>,
    /// The start after retention, which has no completion.
    pub retained: Offset,
    pub deleted: Option<Arc<Outcome>>,
    pub next_sequence: i32,
}

impl StreamModel {
    /// Lower bound of the start.
    pub fn trimmed(&self) -> Offset {
        self.trims.iter().filter(|(_, done)| done.acknowledged()).map(|(to, _)| *to).max().unwrap_or_default()
    }
    /// Upper bound of the start.
    pub fn trimmed_at_most(&self) -> Offset {
        self.trims.iter().map(|(to, _)| *to).max().unwrap_or_default().max(self.retained)
    }
    /// Everything below was acknowledged as synced.
    pub fn synced(&self) -> Offset {
        let synced = |a: &&Appended| a.outcome.acknowledged() && a.durability != Durability::Written;
        self.appended.iter().filter(synced).map(Appended::end).max().unwrap_or_default()
    }
    /// Everything below was acknowledged, and survives all but a power cut.
    pub fn acknowledged(&self) -> Offset {
        self.appended.iter().filter(|a| a.outcome.acknowledged()).map(Appended::end).max().unwrap_or_default()
    }
    /// Everything below was acknowledged as visible, and stays so.
    pub fn visible(&self) -> Offset {
        let visible = |a: &&Appended| a.outcome.acknowledged() && a.durability == Durability::Visible;
        self.appended.iter().filter(visible).map(Appended::end).max().unwrap_or_default()
    }
    /// Whether the disk has something to do. What waits for the object store does not count: appends, and trims of a log
    /// whose owner changes.
    fn pending(&self, owned: bool) -> bool {
        self.appended.iter().any(|a| a.outcome.pending() && a.durability != Durability::Visible)
            || !owned && self.trims.iter().any(|(_, done)| done.pending())
            || self.deleted.as_ref().is_some_and(|done| done.pending())
    }
}

/// The state of the disk after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// The process was killed: written data is kept.
    Killed,
    /// The power was cut: synced data is kept.
    PowerCut,
}

pub struct World {
    pub seed: u64,
    pub rng: fastrand::Rng,
    pub disk: SimDisk,
    pub parts: Parts,
    pub clock: Arc<TestClock>,
    pub listener: Arc<CountingListener>,
    pub streams: BTreeMap<u64, StreamModel>,
    pub options: Options,
    /// The object store, if there is one. Streams with an odd number are tiered then, and stream 2 is diskless.
    pub bucket: Option<SimBucket>,
    /// Set for a restored log: producers are forgotten if none of their last batches was stored.
    pub producers_may_be_forgotten: bool,
    /// The puts of an uploader that puts several objects at the same time. Without, it puts them itself.
    puts: Option<Puts>,
    /// Logs that have lost their right to put objects and go on all the same.
    pub former: Vec<Former>,
    /// What the log sends to its copy set, if it has one. Its streams are replicated then, except for the diskless one.
    pub sent: Option<Arc<Sent>>,
    /// What the next opening appends anew.
    pub replay: Vec<Block>,
    keeps: bool,
    /// Appends so far.
    appends: u64,
}

/// Puts that were begun and not done yet, also those of a process that was killed.
#[derive(Default)]
struct Puts {
    begun: Option<Receiver<Job>>,
    jobs: Vec<Job>,
}

impl Puts {
    /// Does up to `count` of the puts, in any order.
    fn run(&mut self, rng: &mut fastrand::Rng, count: usize) {
        self.jobs.extend(self.begun.iter().flat_map(Receiver::try_iter));
        for _ in 0..count.min(self.jobs.len()) {
            self.jobs.swap_remove(rng.usize(0..self.jobs.len()))();
        }
    }

    /// Begins with an uploader; some puts of the one before may still land.
    fn serve(&mut self, rng: &mut fastrand::Rng, uploader: &mut Uploader) {
        self.run(rng, 0);
        self.jobs.retain(|_| rng.bool());
        let (sender, begun) = channel();
        uploader.set_threads(sender);
        self.begun = Some(begun);
    }
}

pub fn small_options() -> Options {
    Options {
        segment_bytes: 1024 * 1024,
        tail_cache_bytes: 300_000,
        region_cache_bytes: 1024 * 1024,
        index_cache_bytes: 20_000,
        reserve_bytes: 0,
        log_id: 42,
        cleaner_patience_ms: 0,
        ..Options::default()
    }
}

fn tiered_options(mutation: Option<Mutation>) -> Options {
    Options {
        mutation,
        object_bytes: 64 * 1024,
        upload_interval_ms: 0,
        diskless_interval_ms: 0,
        merged_bytes: 256 * 1024,
        object_grace_ms: 0,
        ..small_options()
    }
}

/// What a log has sent to its copy set.
#[derive(Default)]
pub struct Sent {
    pub blocks: Mutex<Vec<Block>>,
    /// Blocks below this number are stored.
    pub stored: AtomicU64,
}

impl BlockSink for Sent {
    fn block(&self, block: Block) {
        let mut blocks = self.blocks.lock();
        assert_eq!(block.number, blocks.len() as u64, "blocks are numbered without gaps");
        blocks.push(block);
    }

    fn stored(&self, number: u64) {
        let before = self.stored.swap(number, Ordering::Relaxed);
        assert!(before <= number, "what was stored once");
    }
}

/// A log that another one has taken over, and that has not noticed.
pub struct Former {
    parts: Parts,
    puts: Option<Puts>,
    pub sent: Option<Arc<Sent>>,
}

impl Former {
    /// Its copy set has the blocks below `number`.
    pub fn copied(&self, number: u64) {
        self.parts.log.copied(number);
    }

    /// Does something of what the log would still do.
    pub fn go_on(&mut self, rng: &mut fastrand::Rng) {
        let Parts { uploader, writer, preparer, .. } = &mut self.parts;
        match rng.u8(0..10) {
            0..3 => drop(writer.turn(Patience::None)),
            3 => drop(preparer.turn()),
            4..8 => {
                uploader.turn();
                let count = rng.usize(0..4);
                self.puts.iter_mut().for_each(|puts| puts.run(rng, count));
            }
            8 => drop(uploader.collect()),
            _ => drop(uploader.delete_orphans()),
        }
    }
}

pub fn open(disk: &SimDisk, options: &Options, clock: &Arc<TestClock>) -> Result<Parts, OpenError> {
    let listener = Arc::new(CountingListener::default());
    assemble(Arc::new(disk.clone()), None, options.clone(), clock.clone(), listener)
}

impl World {
    pub fn new(seed: u64) -> World {
        World::with(seed, small_options(), SimDisk::new(seed))
    }

    /// A log with an object store, in which streams with an odd number are tiered.
    pub fn tiered(seed: u64) -> World {
        World::tiered_with(seed, None)
    }

    /// Like [`World::tiered`], with a fault in the log itself.
    pub fn tiered_with(seed: u64, mutation: Option<Mutation>) -> World {
        World::opened(seed, tiered_options(mutation), SimDisk::new(seed), Some(SimBucket::new(seed)))
    }

    pub fn with(seed: u64, options: Options, disk: SimDisk) -> World {
        World::opened(seed, options, disk, None)
    }

    fn opened(seed: u64, options: Options, disk: SimDisk, bucket: Option<SimBucket>) -> World {
        let clock = Arc::new(TestClock { ms: AtomicI64::new(1_700_000_000_000), nanos: AtomicU64::new(0) });
        let listener = Arc::new(CountingListener::default());
        let store = bucket.clone().map(|bucket| Arc::new(bucket) as Arc<dyn Bucket>);
        let parts = assemble(Arc::new(disk.clone()), store, options.clone(), clock.clone(), listener.clone());
        let rng = fastrand::Rng::with_seed(seed);
        let streams = BTreeMap::new();
        let parts = parts.unwrap();
        World {
            seed,
            rng,
            disk,
            parts,
            clock,
            listener,
            streams,
            options,
            bucket,
            producers_may_be_forgotten: false,
            puts: None,
            former: Vec::new(),
            sent: None,
            replay: Vec::new(),
            keeps: false,
            appends: 0,
        }
    }

    /// Gives the log, in which nothing was appended yet, a copy set.
    pub fn replicate(&mut self) {
        let sent = Arc::new(Sent::default());
        self.parts.log.copy_to(sent.clone());
        self.sent = Some(sent);
    }

    /// Like [`World::tiered_with`], for a log with epochs, which is owned in the epoch 1.
    pub fn owned(seed: u64, mutation: Option<Mutation>) -> World {
        let bucket = SimBucket::new(seed);
        let options = tiered_options(mutation);
        let mut takeover = TakeOver::new(Arc::new(bucket.clone()), options.log_id, 1);
        let owned = Some(takeover.finish(&|_, _| true).unwrap());
        World::opened(seed, Options { owned, ..options }, SimDisk::new(seed), Some(bucket))
    }

    /// The next opening leaves the log as it is now running beside it.
    pub fn keep_running(&mut self) {
        self.keeps = true;
    }

    /// From now on several objects are put at the same time.
    pub fn put_in_parallel(&mut self) {
        let puts = self.puts.get_or_insert_default();
        puts.serve(&mut self.rng, &mut self.parts.uploader);
    }

    /// Lets the uploader work once, and then some of its puts.
    pub fn upload(&mut self) -> Uploaded {
        let uploaded = self.parts.uploader.turn();
        let count = self.rng.usize(0..4);
        self.run_puts(count);
        uploaded
    }

    /// Does up to `count` of the puts that were begun.
    pub fn run_puts(&mut self, count: usize) {
        if let Some(puts) = &mut self.puts {
            puts.run(&mut self.rng, count);
        }
    }

    /// Does the last one of the puts that were begun. The others are lost.
    pub fn run_last_put(&mut self) {
        let Some(puts) = &mut self.puts else { return };
        puts.run(&mut self.rng, 0);
        if let Some(last) = puts.jobs.pop() {
            last();
        }
        puts.jobs.clear();
    }

    /// The requests of a server that is lost: some have landed, the others never will.
    pub fn end_requests(&mut self) {
        let count = self.rng.usize(0..4);
        self.run_puts(count);
        if let Some(puts) = &mut self.puts {
            puts.jobs.clear();
        }
        self.store().settle();
    }

    /// The store from which the log reads and to which it writes.
    pub fn store(&self) -> &SimBucket {
        self.bucket.as_ref().expect("this world has an object store")
    }

    /// The keys of all objects in the store, without the claims of the log's owners.
    pub fn objects(&self) -> Vec<String> {
        self.store().keys().into_iter().filter(|key| key.starts_with("logs/")).collect()
    }

    fn set_level(&self, id: u64) {
        match id {
            _ if self.bucket.is_none() => {}
            _ if self.is_replicated(id) => {
                self.parts.log.set_replicated(&self.stream(id));
                if self.leads(id) {
                    self.parts.log.set_leading(&self.stream(id));
                }
            }
            DISKLESS => self.parts.log.set_diskless(&self.stream(id)),
            _ if self.leads(id) => self.parts.log.set_leading(&self.stream(id)),
            _ if id % 2 == 1 => self.parts.log.set_tiered(&self.stream(id), true),
            _ => {}
        }
    }

    /// Whether a stream is a leading one: one of the tiered streams, or both.
    pub fn leads(&self, id: u64) -> bool {
        id == LEADING || (id == 1 && self.seed.is_multiple_of(4))
    }

    fn is_diskless(&self, id: u64) -> bool {
        self.bucket.is_some() && id == DISKLESS
    }

    fn is_replicated(&self, id: u64) -> bool {
        self.sent.is_some() && !self.is_diskless(id)
    }

    /// Drops local copies of a stream's stored records, up to any place.
    pub fn evict(&mut self, id: u64) {
        let stream = self.stream(id);
        let bytes_max = self.rng.u64(0..=stream.bounds().bytes);
        self.parts.log.retain_locally(&stream, None, Some(bytes_max));
    }

    pub fn stream(&self, id: u64) -> Arc<Stream> {
        self.parts.log.stream(StreamId(id))
    }

    pub fn append(&mut self, stream: u64, body: usize, durability: Durability) -> bool {
        self.set_level(stream);
        let durability = match durability {
            Durability::Synced if self.is_diskless(stream) || self.is_replicated(stream) => {
                Durability::Visible
            }
            durability => durability,
        };
        let count = self.rng.i32(1..20);
        let now = self.clock.now_ms();
        let timestamp = now + self.rng.i64(-5000..5000);
        let append_time = (self.rng.u8(..) < 30).then_some(Timestamp(now));
        let model = self.streams.entry(stream).or_default();
        let committed = self.parts.log.stream(StreamId(stream)).bounds().committed;
        let unanswered = model.appended.iter().filter(|a| a.produced && a.end() > committed).count();
        let produced = stream.is_multiple_of(2) && unanswered < REMEMBERED_BATCHES;
        let producer = produced.then_some((7, model.next_sequence));
        let sent = batch(&mut self.rng, count, body, timestamp, producer);
        let Ok(admission) = self.parts.log.admit(sent.len()) else { return false };
        let outcome = Arc::new(Outcome::default());
        let header = BatchHeader::parse(&sent).unwrap();
        let mut stored = sent.to_vec();
        if let Some(now) = append_time {
            set_log_append_time(&mut stored, now);
        }
        self.parts.log.append(Append {
            stream: self.parts.log.stream(StreamId(stream)),
            base_offset: model.next,
            header,
            batch: sent,
            append_time,
            leader_epoch: 0,
            durability,
            done: Some(outcome.clone()),
            admission,
        });
        let base = model.next;
        self.appends += 1;
        model.next = base + header.offset_count();
        model.next_sequence += if produced { count } else { 0 };
        model.appended.push(Appended {
            produced,
            base,
            count: header.offset_count(),
            versions: vec![Some(stored.into())],
            timestamp: append_time.unwrap_or(Timestamp(timestamp)),
            outcome,
            durability,
            order: self.appends,
        });
        true
    }

    pub fn trim(&mut self, stream: u64) {
        let Some(model) = self.streams.get(&stream) else { return };
        let to = Offset(self.rng.i64(0..=model.synced().0));
        let to = to.min(self.stream(stream).bounds().committed);
        self.trim_to(stream, to);
    }

    pub fn trim_to(&mut self, stream: u64, to: Offset) {
        let Some(model) = self.streams.get_mut(&stream) else { return };
        let outcome = Arc::new(Outcome::default());
        model.trims.push((to, outcome.clone()));
        self.parts.log.trim(&self.parts.log.stream(StreamId(stream)), to, Some(outcome));
    }

    pub fn delete(&mut self, stream: u64) {
        let Some(model) = self.streams.get_mut(&stream) else { return };
        if model.deleted.is_none() {
            let outcome = Arc::new(Outcome::default());
            model.deleted = Some(outcome.clone());
            self.parts.log.delete(&self.parts.log.stream(StreamId(stream)), Some(outcome));
        }
    }

    /// Applies retention and checks that it drops nothing it must keep.
    pub fn retain(&mut self, id: u64, oldest: Option<Timestamp>, bytes_max: Option<u64>) {
        let stream = self.stream(id);
        let seed = self.seed;
        let Some(model) = self.streams.get_mut(&id).filter(|model| model.deleted.is_none()) else { return };
        let start = stream.bounds().start;
        let Some(to) = self.parts.log.retain(&stream, oldest, bytes_max) else { return };
        assert!(
            to > start && to <= stream.bounds().committed,
            "seed {seed}: retention moves the start up to the end"
        );
        let left: u64 = model.appended.iter().filter(|a| a.end() > to).map(Appended::bytes).sum();
        let gone = |a: &&Appended| a.base >= start && a.end() <= to && !a.droppable();
        for dropped in model.appended.iter().filter(gone) {
            let expired = oldest.is_some_and(|oldest| dropped.timestamp < oldest);
            let surplus = bytes_max.is_some_and(|max| left >= max);
            assert!(expired || surplus, "seed {seed}: stream {id} lost {} to retention", dropped.base);
        }
        model.retained = model.retained.max(to);
    }

    /// Lets the writer and the preparer do `count` rounds of work.
    pub fn turns(&mut self, count: usize) {
        for _ in 0..count {
            if self.rng.u8(..) < 40 {
                self.parts.preparer.turn();
            }
            if !self.parts.writer.turn(Patience::None) {
                return;
            }
        }
    }

    /// Lets the cleaner work once. Returns true if it did something.
    pub fn clean(&mut self) -> bool {
        matches!(self.parts.cleaner.turn(), Turn::Cleaned(_))
    }

    /// Compacts streams up to a random offset. Returns true if that worked.
    pub fn compact(&mut self, ids: &[u64]) -> bool {
        let drops = self.rng.u8(0..100);
        let done: Vec<_> = ids.iter().map(|_| std::cell::RefCell::default()).collect();
        let mut jobs = Vec::new();
        for (id, done) in ids.iter().zip(&done) {
            let stream = self.stream(*id);
            let committed = stream.bounds().committed;
            let until = if self.rng.bool() { committed } else { Offset(self.rng.i64(0..=committed.0 + 1)) };
            let rng = self.rng.fork();
            jobs.push(Compaction { stream, until, rewriter: Box::new(RandomRewriter { rng, drops, done }) });
        }
        let shared = self.parts.log.shared.clone();
        let (mut jobs, mut pacer) = (jobs.into_iter(), Pacer::new(shared.clone(), false));
        let worked = if ids.iter().all(|id| self.is_diskless(*id)) {
            let (uploader, puts, rng) = (&mut self.parts.uploader, &mut self.puts, &mut self.rng);
            let mut turn = || {
                uploader.turn();
                puts.iter_mut().for_each(|puts| puts.run(rng, 2));
            };
            shared
                .compact_stored(&mut jobs, &mut pacer, &mut |outcome| turn_until(&mut turn, outcome))
                .is_ok()
        } else {
            shared.compact(&mut jobs, &mut pacer).is_ok()
        };
        drop(jobs);
        for (id, done) in ids.iter().zip(done) {
            let Some(model) = self.streams.get_mut(id) else { continue };
            for (base, rewritten) in done.into_inner() {
                let appended =
                    model.appended.iter_mut().find(|a| a.base == base).expect("a batch that was sent");
                let version = match rewritten {
                    Rewritten::Keep => continue,
                    Rewritten::Drop => None,
                    Rewritten::Replace(batch) => Some(batch),
                };
                if worked {
                    appended.versions = vec![version];
                } else {
                    appended.versions.push(version);
                }
            }
        }
        worked
    }

    /// Works until every request is complete.
    pub fn settle(&mut self) {
        for _ in 0..20_000 {
            if !self.streams.values().any(|model| model.pending(self.options.owned.is_some())) {
                return;
            }
            while self.parts.preparer.turn() {}
            if !self.parts.writer.turn(Patience::None) {
                return;
            }
        }
        panic!("seed {}: the log does not settle", self.seed);
    }

    /// Stops the log like `close`.
    pub fn close(&mut self) {
        self.parts.log.ask_to_stop();
        for _ in 0..20_000 {
            while self.parts.preparer.turn() {}
            if !self.parts.writer.turn(Patience::None) {
                return;
            }
        }
        panic!("seed {}: the log does not close", self.seed);
    }

    /// Kills the process or cuts the power, and opens the log again.
    pub fn strike(&mut self, left: Left) {
        let next = self.rng.u64(..);
        let disk = if left == Left::Killed { self.disk.restart() } else { self.disk.crash(next) };
        let seed = self.seed;
        self.reopen(disk, left).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }

    /// Reopens the log after a crash or restart of `disk`, compares, and sets the model to the actual contents.
    pub fn reopen(&mut self, disk: SimDisk, left: Left) -> Result<(), OpenError> {
        self.disk = disk;
        let (disk, options) = (Arc::new(self.disk.clone()), self.options.clone());
        let store = self.bucket.clone().map(|bucket| Arc::new(bucket) as Arc<dyn Bucket>);
        let parts = assemble(disk, store, options, self.clock.clone(), self.listener.clone())?;
        let parts = std::mem::replace(&mut self.parts, parts);
        if std::mem::take(&mut self.keeps) {
            let puts = self.puts.as_mut().map(std::mem::take);
            self.former.push(Former { parts, puts, sent: self.sent.clone() });
        }
        let replicated = self.sent.is_some();
        if replicated {
            self.replicate();
            self.streams.keys().for_each(|id| self.set_level(*id));
            let Parts { log, writer, preparer, uploader, .. } = &mut self.parts;
            let (mut replay, done) = (log.replay(), Arc::new(Outcome::default()));
            for block in self.replay.drain(..) {
                while preparer.turn() {}
                writer.turn(Patience::None);
                replay.add(&block).unwrap();
                if self.rng.u8(..) < 64 {
                    uploader.turn();
                }
            }
            replay.finish(done.clone());
            while done.pending() {
                while preparer.turn() {}
                writer.turn(Patience::None);
            }
            assert!(done.acknowledged(), "seed {}: the copies could not be appended", self.seed);
        }
        if self.puts.is_some() {
            self.put_in_parallel();
        }
        self.streams.keys().for_each(|id| self.set_level(*id));
        let seed = self.seed;
        for (id, model) in &mut self.streams {
            let stream = self.parts.log.stream(StreamId(*id));
            let bounds = stream.bounds();
            if let Some(done) = &model.deleted {
                let gone = bounds.synced == Offset::ZERO;
                if done.acknowledged() || gone {
                    assert!(gone, "seed {seed}: stream {id} came back after it was deleted");
                    *model = StreamModel { deleted: Some(Outcome::done()), ..StreamModel::default() };
                    continue;
                }
                model.deleted = None;
            }
            let kept = if left == Left::Killed { model.acknowledged() } else { model.synced() };
            assert!(bounds.synced >= kept, "seed {seed}: stream {id} lost {} of {kept}", bounds.synced);
            let visible = model.visible();
            // What was copied is visible again once the log is open.
            assert!(
                bounds.committed >= visible || replicated && *id != DISKLESS,
                "seed {seed}: stream {id}: {visible} is not visible any more"
            );
            assert!(bounds.synced <= model.next, "seed {seed}: stream {id} has records that were never sent");
            assert!(bounds.start >= model.trimmed(), "seed {seed}: stream {id} forgot a trim");
            assert!(
                bounds.start <= model.trimmed_at_most(),
                "seed {seed}: stream {id} was trimmed by itself"
            );
            model.appended.retain(|a| a.end() <= bounds.synced);
            for appended in &mut model.appended {
                // Data that recovery kept is durable from now on.
                let was_visible =
                    appended.durability == Durability::Visible && appended.outcome.acknowledged();
                if !was_visible {
                    appended.durability = Durability::Synced;
                }
                appended.outcome = Outcome::done();
            }
            model.next = model.appended.last().map_or(bounds.synced, Appended::end);
            assert_eq!(model.next, bounds.synced, "seed {seed}: stream {id} was cut inside a batch");
            // A trim that only a copy had is as it was: done once an object records it.
            let trimmed = if replicated { model.trimmed() } else { bounds.start };
            model.trims = vec![(trimmed, Outcome::done())];
            model.retained = bounds.start;
            let sequences: i64 = model.appended.iter().filter(|a| a.produced).map(|a| a.count).sum();
            model.next_sequence = i32::try_from(sequences).unwrap();
            if !(self.producers_may_be_forgotten && stream.producers().is_empty()) {
                check_producers(seed, *id, &stream, model);
            }
        }
        self.compare();
        Ok(())
    }

    /// Reads every stream whole and compares it with the model.
    pub fn compare(&mut self) {
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        for id in ids {
            if self.streams[&id].deleted.is_some() {
                continue;
            }
            let bounds = self.stream(id).bounds();
            let mut from = bounds.start;
            while from < bounds.committed {
                let bytes_max = self.rng.usize(1..200_000);
                let next = self.read(id, from, Offset(i64::MAX), bytes_max, true);
                from = next.unwrap_or_else(|| {
                    let left = self.streams[&id]
                        .appended
                        .iter()
                        .filter(|a| a.end() > from && a.end() <= bounds.committed);
                    assert!(
                        left.into_iter().all(Appended::droppable),
                        "seed {}: stream {id} ends at {from}, not {}",
                        self.seed,
                        bounds.committed
                    );
                    bounds.committed
                });
            }
            assert_eq!(from, bounds.committed.max(bounds.start), "seed {}: stream {id}", self.seed);
        }
    }

    /// Reads once and compares with the model. Returns the offset to continue from.
    pub fn read(
        &mut self,
        id: u64,
        from: Offset,
        until: Offset,
        bytes_max: usize,
        block: bool,
    ) -> Option<Offset> {
        let stream = self.stream(id);
        let at_least_one = true;
        let request = ReadRequest { stream: stream.clone(), from, until, bytes_max, at_least_one };
        let read = if block {
            self.parts.log.read_blocking(&request)
        } else {
            match self.parts.log.read(&request) {
                Ok(ReadStep::Cold { .. }) => return None,
                Ok(ReadStep::Ready(batches)) => Ok(batches),
                Err(error) => Err(error),
            }
        };
        let (seed, bounds) = (self.seed, stream.bounds());
        let read = match read {
            Err(ReadError::OutOfRange { .. }) => {
                assert!(from < bounds.start || from > bounds.committed, "seed {seed}: stream {id} at {from}");
                return None;
            }
            read => read.unwrap_or_else(|error| panic!("seed {seed}: stream {id} at {from}: {error}")),
        };
        let got = read.chunks.concat();
        assert_eq!(got.len(), read.bytes);
        let mut expected = self.streams[&id].appended.iter().skip_while(|a| a.end() <= from);
        let (mut at, mut end) = (0, from);
        while at < got.len() {
            let header = BatchHeader::parse(&got[at..]).unwrap();
            let want = loop {
                let want = expected.next().expect("no more batches than were sent");
                if header.base_offset == want.base {
                    break want;
                }
                assert!(want.droppable(), "seed {seed} stream {id}: {} is missing", want.base);
            };
            assert!(
                want.is(&got[at..at + header.total_bytes]),
                "seed {seed} stream {id} at {}: {} bytes, {} records, not one of {:?}",
                want.base,
                header.total_bytes,
                header.count,
                want.versions.iter().map(|v| v.as_ref().map(Bytes::len)).collect::<Vec<_>>()
            );
            end = want.end();
            at += header.total_bytes;
            assert!(
                at <= bytes_max || at == header.total_bytes,
                "seed {seed} stream {id}: more than was asked for"
            );
        }
        assert!(
            end <= bounds.committed && (got.is_empty() || end <= until),
            "seed {seed}: stream {id} at {from}: too much"
        );
        if got.is_empty() {
            let first = expected.find(|a| !a.droppable()).map(Appended::end);
            let nothing = first.is_none_or(|end| end > bounds.committed || end > until);
            assert!(nothing, "seed {seed}: stream {id} at {from}: committed records are not served");
        }
        read.next
    }

    /// Reads at any place of a stream, within the committed records.
    pub fn read_somewhere(&mut self, id: u64) {
        if self.streams.get(&id).is_none_or(|model| model.deleted.is_some()) {
            return;
        }
        let bounds = self.stream(id).bounds();
        let from = Offset(self.rng.i64(bounds.start.0..=bounds.committed.0));
        let until =
            if self.rng.bool() { Offset(i64::MAX) } else { Offset(self.rng.i64(0..=bounds.committed.0 + 5)) };
        let bytes_max = self.rng.usize(1..400_000);
        let block = self.rng.bool();
        self.read(id, from, until, bytes_max, block);
    }

    /// Searches by timestamp and compares with a walk over the model.
    pub fn search(&mut self, id: u64) {
        let Some(model) = self.streams.get(&id).filter(|model| model.deleted.is_none()) else { return };
        if model.appended.iter().any(Appended::droppable) {
            // Empty batches of compaction have timestamps too, and the model does not know which empty batches exist.
            return;
        }
        let (stream, seed) = (self.stream(id), self.seed);
        let bounds = stream.bounds();
        let live: Vec<&Appended> =
            model.appended.iter().filter(|a| a.end() > bounds.start && a.end() <= bounds.committed).collect();
        let timestamp = match live.get(self.rng.usize(0..live.len().max(1))) {
            Some(near) => Timestamp(near.timestamp.0 + self.rng.i64(-2..=2)),
            None => Timestamp(0),
        };
        let want = live.iter().find(|a| a.timestamp >= timestamp).map(|a| (a.base, a.timestamp));
        let got = self.parts.log.first_at_or_after(&stream, timestamp).unwrap();
        assert_eq!(
            got.map(|place| (place.base_offset, place.max_timestamp)),
            want,
            "seed {seed} stream {id}"
        );
        let largest = live.iter().map(|a| a.timestamp).max();
        let want = live.iter().find(|a| Some(a.timestamp) == largest).map(|a| (a.base, a.timestamp));
        let got = self.parts.log.with_max_timestamp(&stream).unwrap();
        assert_eq!(
            got.map(|place| (place.base_offset, place.max_timestamp)),
            want,
            "seed {seed} stream {id}"
        );
    }
}

/// Lets the uploader work until it has replaced what was handed to it, unless the store is too bad for that.
fn turn_until(turn: &mut dyn FnMut(), outcome: &Receiver<()>) -> Result<(), RewriteError> {
    for _ in 0..50 {
        turn();
        match outcome.try_recv() {
            Ok(()) => return Ok(()),
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {}
        }
    }
    Err(RewriteError::Stopped)
}

fn check_producers(seed: u64, id: u64, stream: &Stream, model: &StreamModel) {
    if model.next_sequence == 0 {
        return;
    }
    let producers = stream.producers();
    let producer =
        producers.find(7).unwrap_or_else(|| panic!("seed {seed}: stream {id} forgot its producer"));
    let remembered = producer.batches.iter().rev().filter(|batch| batch.offset_count > 0);
    for (got, want) in remembered.zip(model.appended.iter().rev().filter(|a| a.produced)) {
        assert_eq!((got.base_offset, got.timestamp), (want.base, want.timestamp), "seed {seed} stream {id}");
    }
    let last = producer.batches.back().unwrap();
    assert_eq!(last.last_sequence() + 1, model.next_sequence, "seed {seed} stream {id}");
}
