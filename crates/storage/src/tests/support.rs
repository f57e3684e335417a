//! A log on a simulated disk, a model of what must be in it, and the comparison of the two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use bytes::Bytes;
use disk::SimDisk;
use model::batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES, seal_crc};
use model::{BatchHeader, Offset, StreamId};

use crate::log::{Clock, Options, Parts, ReadRequest, assemble};
use crate::recovery::OpenError;
use crate::request::{Append, AppendError, Completion, Durability, NoListener};
use crate::stream::Stream;
use crate::writer::Patience;

/// A clock that the test moves.
#[derive(Default)]
pub struct TestClock {
    pub ms: AtomicI64,
    nanos: AtomicU64,
}

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        self.ms.load(Ordering::Relaxed)
    }
    fn nanos(&self) -> u64 {
        self.nanos.fetch_add(1, Ordering::Relaxed)
    }
}

/// What became of one append.
#[derive(Default)]
pub struct Outcome(AtomicU8);

impl Outcome {
    pub fn acknowledged(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
    pub fn failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 2
    }
}

impl Completion for Outcome {
    fn complete(&self, result: Result<(), AppendError>) {
        let before = self.0.swap(if result.is_ok() { 1 } else { 2 }, Ordering::Relaxed);
        assert_eq!(before, 0, "a completion is called once");
    }
}

/// A batch of `count` records whose body is random.
pub fn batch(rng: &mut fastrand::Rng, count: i32, body: usize, timestamp: i64, producer: Option<(i64, i32)>) -> Bytes {
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

/// One append as the model remembers it.
pub struct Appended {
    pub base: Offset,
    pub count: i64,
    pub batch: Bytes,
    pub outcome: Arc<Outcome>,
    pub durability: Durability,
}

#[derive(Default)]
pub struct StreamModel {
    pub appended: Vec<Appended>,
    pub next: Offset,
    /// Trims that were asked for; the last that is known to be durable.
    pub trims: Vec<(Offset, Arc<Outcome>)>,
    pub next_sequence: i32,
}

impl StreamModel {
    /// The start must be at least this.
    fn trimmed(&self) -> Offset {
        self.trims.iter().filter(|(_, done)| done.acknowledged()).map(|(to, _)| *to).max().unwrap_or_default()
    }
    /// The start may be up to this.
    fn trimmed_at_most(&self) -> Offset {
        self.trims.iter().map(|(to, _)| *to).max().unwrap_or_default()
    }
    /// Everything below was acknowledged as synced.
    pub fn synced(&self) -> Offset {
        let synced = |a: &&Appended| a.outcome.acknowledged() && a.durability == Durability::Synced;
        self.appended.iter().filter(synced).map(|a| a.base + a.count).max().unwrap_or_default()
    }
}

pub struct World {
    pub seed: u64,
    pub rng: fastrand::Rng,
    pub disk: SimDisk,
    pub parts: Parts,
    pub clock: Arc<TestClock>,
    pub streams: BTreeMap<u64, StreamModel>,
    pub options: Options,
}

pub fn small_options() -> Options {
    Options {
        segment_bytes: 1024 * 1024,
        tail_cache_bytes: 300_000,
        region_cache_bytes: 1024 * 1024,
        index_cache_bytes: 20_000,
        reserve_bytes: 0,
        log_id: 42,
        ..Options::default()
    }
}

pub fn open(disk: &SimDisk, options: &Options, clock: &Arc<TestClock>) -> Result<Parts, OpenError> {
    assemble(Arc::new(disk.clone()), options.clone(), clock.clone(), Arc::new(NoListener))
}

impl World {
    pub fn new(seed: u64) -> World {
        let disk = SimDisk::new(seed);
        let (options, clock) = (small_options(), Arc::new(TestClock::default()));
        let parts = open(&disk, &options, &clock).unwrap();
        World { seed, rng: fastrand::Rng::with_seed(seed), disk, parts, clock, streams: BTreeMap::new(), options }
    }

    pub fn append(&mut self, stream: u64, body: usize, durability: Durability) -> bool {
        let count = self.rng.i32(1..20);
        let model = self.streams.entry(stream).or_default();
        let producer = stream.is_multiple_of(2).then_some((7, model.next_sequence));
        let batch = batch(&mut self.rng, count, body, self.clock.now_ms(), producer);
        let Ok(admission) = self.parts.log.admit(batch.len()) else { return false };
        let outcome = Arc::new(Outcome::default());
        let header = BatchHeader::parse(&batch).unwrap();
        self.parts.log.append(Append {
            stream: self.parts.log.stream(StreamId(stream)),
            base_offset: model.next,
            header,
            batch: batch.clone(),
            append_time: None,
            leader_epoch: 0,
            durability,
            done: Some(outcome.clone()),
            admission,
        });
        let base = model.next;
        model.next = base + header.offset_count();
        model.next_sequence += count;
        model.appended.push(Appended { base, count: header.offset_count(), batch, outcome, durability });
        true
    }

    pub fn trim(&mut self, stream: u64) {
        let Some(model) = self.streams.get_mut(&stream) else { return };
        let to = Offset(self.rng.i64(0..=model.synced().0));
        let outcome = Arc::new(Outcome::default());
        model.trims.push((to, outcome.clone()));
        self.parts.log.trim(&self.parts.log.stream(StreamId(stream)), to, Some(outcome));
    }

    /// Lets the writer and the preparer work for a while.
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

    /// Works until everything that was asked for is answered.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let pending = |m: &StreamModel| {
                m.appended.iter().any(|a| !a.outcome.acknowledged() && !a.outcome.failed())
                    || m.trims.iter().any(|(_, done)| !done.acknowledged() && !done.failed())
            };
            if !self.streams.values().any(pending) {
                return;
            }
            while self.parts.preparer.turn() {}
            if !self.parts.writer.turn(Patience::None) {
                return;
            }
        }
        panic!("seed {}: the log does not settle", self.seed);
    }

    /// The state after a crash or restart of `disk`: reopens and compares, and makes the model what is really there.
    pub fn reopen(&mut self, disk: SimDisk) -> Result<(), OpenError> {
        self.disk = disk;
        self.parts = open(&self.disk, &self.options, &self.clock)?;
        let seed = self.seed;
        for (id, model) in &mut self.streams {
            let stream = self.parts.log.stream(StreamId(*id));
            let bounds = stream.bounds();
            assert!(bounds.committed >= model.synced(), "seed {seed}: stream {id} lost {} of {}", bounds.committed, model.synced());
            assert!(bounds.committed <= model.next, "seed {seed}: stream {id} has records that were never sent");
            assert!(bounds.start >= model.trimmed(), "seed {seed}: stream {id} forgot a trim");
            assert!(bounds.start <= model.trimmed_at_most(), "seed {seed}: stream {id} was trimmed by itself");
            model.appended.retain(|a| a.base + a.count <= bounds.committed);
            for appended in &mut model.appended {
                // What recovery kept is durable from now on.
                appended.durability = Durability::Synced;
                appended.outcome = Arc::default();
                appended.outcome.complete(Ok(()));
            }
            model.next = model.appended.last().map_or(bounds.committed, |a| a.base + a.count);
            assert_eq!(model.next, bounds.committed, "seed {seed}: stream {id} was cut inside a batch");
            model.trims = vec![(bounds.start, Arc::default())];
            model.trims[0].1.complete(Ok(()));
            let sequences: i64 = model.appended.iter().map(|a| a.count).sum();
            model.next_sequence = i32::try_from(sequences).unwrap();
            check_producers(seed, *id, &stream, model);
        }
        self.compare();
        Ok(())
    }

    /// Reads every stream whole and compares it with the model.
    pub fn compare(&mut self) {
        for (id, model) in &self.streams {
            let stream = self.parts.log.stream(StreamId(*id));
            let bounds = stream.bounds();
            let mut from = bounds.start;
            let mut expected = model.appended.iter().skip_while(|a| a.base + a.count <= bounds.start);
            while from < bounds.committed {
                let request = ReadRequest {
                    stream: stream.clone(),
                    from,
                    until: Offset(i64::MAX),
                    bytes_max: self.rng.usize(1..200_000),
                    at_least_one: true,
                };
                let read = self.parts.log.read_blocking(&request);
                let read = read.unwrap_or_else(|error| panic!("seed {}: stream {id} at {from}: {error}", self.seed));
                let got = read.chunks.concat();
                assert!(!got.is_empty(), "seed {}: stream {id} ends at {from}, not {}", self.seed, bounds.committed);
                let mut at = 0;
                while at < got.len() {
                    let header = BatchHeader::parse(&got[at..]).unwrap();
                    let want = expected.next().expect("no more batches than were sent");
                    assert_eq!(header.base_offset, want.base, "seed {} stream {id}", self.seed);
                    assert!(got[at + 16..at + header.total_bytes] == want.batch[16..], "seed {} stream {id}", self.seed);
                    at += header.total_bytes;
                }
                from = read.next.unwrap();
            }
        }
    }
}

fn check_producers(seed: u64, id: u64, stream: &Stream, model: &StreamModel) {
    if !id.is_multiple_of(2) || model.appended.is_empty() {
        return;
    }
    let producers = stream.producers();
    let producer = producers.find(7).unwrap_or_else(|| panic!("seed {seed}: stream {id} forgot its producer"));
    let last = producer.batches.back().unwrap();
    assert_eq!(last.last_sequence() + 1, model.next_sequence, "seed {seed} stream {id}");
    assert_eq!(last.base_offset, model.appended.last().unwrap().base, "seed {seed} stream {id}");
}
