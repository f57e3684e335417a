//! A log with all its threads on a real directory, with either engine. There are many appenders with either durability,
//! readers that follow the tail, and readers that read everything from the start through small caches. All contents are
//! compared, before and after the log is closed and opened again.

#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not by their directory")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use disk::{Engine, open_directory};
use model::batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES, seal_crc};
use model::{BatchHeader, Offset, StreamId};
use storage::copies::{Block, Copies, Opening, RefusedError};
use storage::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, Lsn, seeded_crc};
use storage::{
    AdmitError, Append, AppendError, Committed, Completion, Durability, Listener, Log, NoListener, Options,
    ReadRequest, ReadStep, SystemClock,
};

const APPENDERS: u64 = 4;
const STREAMS_EACH: u64 = 25;
const RUN: Duration = Duration::from_millis(1500);
/// Upper bound of the bytes that each thread appends. Every reader of an old stream reads all of them.
const APPENDED_BYTES_MAX: usize = 16 * 1024 * 1024;
const TAIL_KEPT_BYTES: usize = 1024 * 1024;

/// The batch at `offset` of `stream`. Its bytes follow from its place, so that readers need no copy for the comparison.
fn batch(stream: u64, offset: i64) -> Bytes {
    let mut rng = fastrand::Rng::with_seed(stream << 40 | offset.cast_unsigned());
    let body = if rng.u8(..) == 0 { rng.usize(0..600_000) } else { rng.usize(0..4000) };
    let mut bytes = vec![0u8; HEADER_BYTES + body];
    rng.fill(&mut bytes[HEADER_BYTES..]);
    bytes[0..8].copy_from_slice(&offset.to_be_bytes());
    let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).unwrap();
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    bytes[43..51].copy_from_slice(&(-1i64).to_be_bytes());
    bytes[57..61].copy_from_slice(&1i32.to_be_bytes());
    seal_crc(&mut bytes);
    Bytes::from(bytes)
}

#[derive(Default)]
struct Signals {
    changed: Condvar,
    generation: Mutex<u64>,
    commits: AtomicUsize,
}

impl Signals {
    fn signal(&self) {
        *self.generation.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let guard = self.generation.lock().unwrap();
        drop(self.changed.wait_timeout(guard, Duration::from_millis(20)).unwrap());
    }
}

impl Listener for Signals {
    fn committed(&self, streams: &[Committed]) {
        self.commits.fetch_add(streams.len(), Ordering::Relaxed);
        self.signal();
    }
    fn room(&self) {
        self.signal();
    }
}

struct Answered {
    count: Arc<AtomicUsize>,
    signals: Arc<Signals>,
}

impl Completion for Answered {
    fn complete(&self, result: Result<(), AppendError>) {
        result.expect("no append fails");
        self.count.fetch_add(1, Ordering::Relaxed);
        self.signals.signal();
    }
}

/// Appends to its own streams until `stop`, with a few hundred appends in flight. Returns the end of each stream.
fn append_until(log: &Log, signals: &Arc<Signals>, stop: &AtomicBool, first: u64) -> Vec<(u64, i64)> {
    let mut rng = fastrand::Rng::with_seed(first);
    let mut ends: Vec<(u64, i64)> = (first..first + STREAMS_EACH).map(|id| (id, 0)).collect();
    let (mut sent, answered) = (0, Arc::new(AtomicUsize::new(0)));
    let mut bytes = 0;
    while !stop.load(Ordering::Relaxed) && bytes < APPENDED_BYTES_MAX {
        let (id, end) = rng.choice(ends.iter_mut()).unwrap();
        let batch = batch(*id, *end);
        bytes += batch.len();
        let admission = loop {
            match log.admit(batch.len()) {
                Ok(admission) => break admission,
                Err(AdmitError::Busy) => signals.wait(),
                Err(error) => panic!("{error}"),
            }
        };
        log.append(Append {
            stream: log.stream(StreamId(*id)),
            base_offset: Offset(*end),
            header: BatchHeader::parse(&batch).unwrap(),
            batch,
            append_time: None,
            leader_epoch: 0,
            durability: if rng.bool() { Durability::Synced } else { Durability::Written },
            done: Some(Arc::new(Answered { count: answered.clone(), signals: signals.clone() })),
            admission,
        });
        *end += 1;
        sent += 1;
        while sent - answered.load(Ordering::Relaxed) > 300 {
            signals.wait();
        }
    }
    ends
}

fn request(log: &Log, id: u64, from: Offset) -> ReadRequest {
    ReadRequest {
        stream: log.stream(StreamId(id)),
        from,
        until: Offset(i64::MAX),
        bytes_max: 200_000,
        at_least_one: true,
    }
}

/// Reads stream `id` once from `from`, through the cold readers if needed. Returns the offset to continue from.
fn read(log: &Log, id: u64, from: Offset) -> Offset {
    let request = request(log, id, from);
    let batches = match log.read(&request).unwrap() {
        ReadStep::Ready(batches) => batches,
        ReadStep::Cold { .. } => {
            let (sender, receiver) = std::sync::mpsc::channel();
            let bytes_max = request.bytes_max;
            log.read_later(vec![request], bytes_max, Box::new(move |results| sender.send(results).unwrap()));
            receiver.recv().unwrap().pop().unwrap().unwrap()
        }
    };
    let (got, mut at, mut offset) = (batches.chunks.concat(), 0, from.0);
    while at < got.len() {
        let want = batch(id, offset);
        assert!(got[at..].starts_with(&want), "stream {id} at {offset}");
        at += want.len();
        offset += 1;
    }
    assert_eq!(batches.next.unwrap_or(from), Offset(offset));
    Offset(offset)
}

fn read_all(log: &Log, ends: &[(u64, i64)]) {
    for (id, end) in ends {
        let mut from = Offset(0);
        while from.0 < *end {
            let next = read(log, *id, from);
            assert!(next > from, "stream {id} ends at {from} and not at {end}");
            from = next;
        }
        assert_eq!(log.stream(StreamId(*id)).bounds().committed, Offset(*end));
    }
}

/// Follows the end of one stream, and reads others from their start, until `stop`.
fn read_until(log: &Log, signals: &Signals, stop: &AtomicBool, seed: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (followed, mut at, mut reads) = (rng.u64(0..APPENDERS * STREAMS_EACH), Offset(0), 0);
    let (mut old, mut old_at) = (0, Offset(0));
    while !stop.load(Ordering::Relaxed) {
        let next = read(log, followed, at);
        if next == at {
            signals.wait();
        }
        at = next;
        let next = read(log, old, old_at);
        (old, old_at) =
            if next == old_at { (rng.u64(0..APPENDERS * STREAMS_EACH), Offset(0)) } else { (old, next) };
        reads += 1;
    }
    reads
}

fn options() -> Options {
    Options {
        segment_bytes: 16 * 1024 * 1024,
        tail_cache_bytes: 4 * 1024 * 1024,
        tail_kept_bytes: TAIL_KEPT_BYTES,
        tail_cache_ms: 1000,
        index_cache_bytes: 20_000,
        reserve_bytes: 0,
        log_id: 7,
        ..Options::default()
    }
}

fn run(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let Ok(disk) = open_directory(directory.path(), engine) else {
        println!("{engine:?} does not work here");
        return;
    };
    let disk = Arc::new(disk);
    let signals = Arc::new(Signals::default());
    let open = |region_cache_bytes| {
        let options = Options { region_cache_bytes, ..options() };
        Log::open(disk.clone(), options, Arc::new(SystemClock::default()), signals.clone()).unwrap()
    };
    let (log, stop) = (open(2 << 20), AtomicBool::new(false));
    let ends = std::thread::scope(|scope| {
        let (log, signals, stop) = (&log, &signals, &stop);
        let appenders: Vec<_> = (0..APPENDERS)
            .map(|n| scope.spawn(move || append_until(log, signals, stop, n * STREAMS_EACH)))
            .collect();
        let readers: Vec<_> =
            (0..3).map(|n| scope.spawn(move || read_until(log, signals, stop, n))).collect();
        let start = Instant::now();
        while start.elapsed() < RUN {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        let ends: Vec<(u64, i64)> =
            appenders.into_iter().flat_map(|appender| appender.join().unwrap()).collect();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 10));
        ends
    });
    let appends: i64 = ends.iter().map(|(_, end)| end).sum();
    // Memory is given back even without further appends.
    let deadline = Instant::now() + Duration::from_secs(20);
    while log.statistics().tail_bytes > TAIL_KEPT_BYTES {
        assert!(Instant::now() < deadline, "{} bytes are kept", log.statistics().tail_bytes);
        std::thread::sleep(Duration::from_millis(10));
    }
    log.close();
    assert_eq!(signals.commits.load(Ordering::Relaxed), usize::try_from(appends).unwrap());
    let segments = log.statistics().segments;
    drop(log);
    let log = open(128 << 20);
    assert_eq!(log.recovery().dropped_blocks, 0);
    read_all(&log, &ends);
    log.close();
    println!("{engine:?}: {appends} appends in {segments} segments");
    assert!(segments > 1, "{segments} segments");
}

/// What a fence has not told of was not taken: whoever replays the copy has everything that was answered.
#[test]
fn blocks_that_are_added_beside_a_fence_are_refused_or_told_of() {
    const ROUNDS: u32 = 60;
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(open_directory(directory.path(), Engine::Plain).unwrap());
    let options = Options { segment_bytes: 64 << 20, reserve_bytes: 0, ..Options::default() };
    let copies = Copies::open(disk, options, Arc::new(SystemClock::default()), Arc::new(NoListener)).unwrap();
    // Large enough that copying one takes longer than a fence.
    let payload = vec![7; 2 << 20];
    let header = BlockHeader {
        kind: BlockKind::Entries,
        epoch: 1,
        lsn: Lsn(0),
        synced: Lsn(0),
        length: 2 << 20,
        entries: 0,
        payload_crc: seeded_crc(1, &payload),
    };
    let mut bytes = vec![0; BLOCK_HEADER_BYTES];
    header.encode(1, &mut bytes);
    bytes.extend(payload);
    let bytes = Bytes::from(bytes);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..ROUNDS {
        let of = Opening { log_id: u128::from(round), epoch: 1 };
        let answered = std::thread::scope(|scope| {
            let add = scope.spawn(|| {
                let mut answered = 0;
                for number in 0.. {
                    let block = Block { number, generation: 1, bytes: bytes.clone() };
                    let done = Arc::new(Answer::default());
                    match copies.add(of, &[block], number == 0, done.clone()) {
                        Ok(()) => done.wait(),
                        Err(RefusedError::Admit(AdmitError::Busy)) => continue,
                        Err(RefusedError::Fenced(_)) => return answered,
                        Err(error) => panic!("{error}"),
                    }
                    answered = number + 1;
                }
                answered
            });
            std::thread::sleep(Duration::from_micros(u64::from(round) * 150));
            copies.fence(of.log_id, 2).unwrap();
            while !copies.is_settled(of.log_id).unwrap() {
                std::thread::sleep(Duration::from_micros(50));
            }
            let told = copies.extent(of).map_or(0, |extent| extent.next);
            let answered = add.join().unwrap();
            assert!(
                answered <= told,
                "round {round}: {answered} blocks were answered, and the fence told of {told}"
            );
            answered
        });
        refused += u32::from(answered == 0);
        taken += answered;
        copies.drop_before(of.log_id, 2);
    }
    println!("{taken} blocks were taken, none in {refused} rounds");
    assert!(taken > 0);
    copies.close();
}

/// Waits for the outcome of an append.
#[derive(Default)]
struct Answer(Mutex<Option<Result<(), AppendError>>>, Condvar);

impl Answer {
    fn wait(&self) {
        let outcome = self.0.lock().unwrap();
        let outcome = self.1.wait_while(outcome, |outcome| outcome.is_none()).unwrap();
        outcome.clone().unwrap().unwrap();
    }
}

impl Completion for Answer {
    fn complete(&self, result: Result<(), AppendError>) {
        *self.0.lock().unwrap() = Some(result);
        self.1.notify_all();
    }
}

#[test]
fn threads_on_a_directory_with_io_uring() {
    run(Engine::Uring);
}

#[test]
fn threads_on_a_directory_without_io_uring() {
    run(Engine::Direct);
}

#[test]
fn threads_on_a_directory_in_the_page_cache() {
    run(Engine::Plain);
}
