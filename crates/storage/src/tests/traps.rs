//! One test for each former way to lose, hide or bring back data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use disk::{Disk, SimDisk};
use model::{BatchHeader, Offset, StreamId, Timestamp};

use super::crash::seeds;
use super::support::{Left, Outcome, World, batch, open, small_options};
use crate::format::{BlockHeader, BlockKind, Lsn, SECTOR};
use crate::log::Log;
use crate::options::{Clock, Options, SystemClock};
use crate::reader::{Batches, ReadDone, ReadError, ReadRequest, ReadStep};
use crate::recovery::OpenError;
use crate::request::{Append, AppendError, Committed, Completion, Durability, Listener, NoListener};
use crate::segment::file_name;
use crate::writer::{Patience, WRITE_BUFFER_BYTES};

/// Appends to one stream until `segments` more segments are used.
fn fill(world: &mut World, stream: u64, segments: u32) {
    for _ in 0..segments {
        let bytes = usize::try_from(world.options.segment_bytes).unwrap();
        for _ in 0..bytes.div_ceil(60_000) {
            assert!(world.append(stream, 60_000, Durability::Synced));
            world.settle();
        }
    }
}

fn finish(world: &mut World) {
    world.settle();
    world.turns(60);
}

/// A trailer from a killed server can be read, but a power cut may take it. Then the segments are gone that were
/// recycled on the strength of its stream table.
#[test]
fn a_trailer_that_is_trusted_is_made_durable() {
    let mut caught = 0;
    for seed in seeds(0..60) {
        let mut world = World::new(seed);
        while world.parts.preparer.turn() {}
        // There is no room for another segment, so the first one is recycled as soon as it is dead.
        world.disk.set_capacity(3 << 20);
        let sealed = |world: &World| world.parts.log.shared().segments.find(1).unwrap().is_sealed();
        for _ in 0..300 {
            world.append(1, 60_000, Durability::Synced);
            assert!(world.parts.writer.turn(Patience::None));
            if sealed(&world) && world.parts.writer.trailer_in_flight() {
                caught += 1;
                break;
            }
        }
        world.strike(Left::Killed);
        let end = world.streams[&1].synced();
        world.trim_to(1, end);
        world.settle();
        while world.parts.preparer.turn() {}
        world.strike(Left::PowerCut);
    }
    assert!(caught > 20, "{caught}");
}

/// A segment is reused only after the trim or deletion that killed it is durable.
#[test]
fn nothing_is_recycled_for_a_trim_that_a_power_cut_may_still_take() {
    let mut caught = 0;
    for seed in seeds(0..60) {
        let mut world = World::new(seed);
        fill(&mut world, 1, 2);
        finish(&mut world);
        world.disk.set_capacity(0);
        // A segment is wanted, and only a dead one is available.
        while world.parts.log.shared().take_prepared().is_some() {}
        let end = world.streams[&1].synced();
        if seed.is_multiple_of(2) {
            world.trim_to(1, end)
        } else {
            world.delete(1)
        }
        for _ in 0..world.rng.usize(1..4) {
            world.parts.writer.turn(Patience::None);
        }
        let model = &world.streams[&1];
        caught += u32::from(
            model.trims.iter().map(|(_, done)| done).chain(&model.deleted).any(|done| done.pending()),
        );
        while world.parts.preparer.turn() {}
        // The segments taken above stand behind the end, like prepared ones.
        world.strike(Left::PowerCut);
    }
    assert!(caught > 10, "{caught}");
}

/// Blocks that fill half of a buffer each, so that the other half stays unused.
#[test]
fn what_stays_empty_in_write_buffers_counts_for_the_tail_cache() {
    let mut world = World::with(1, Options { tail_cache_bytes: 1 << 20, ..small_options() }, SimDisk::new(1));
    for _ in 0..10 {
        world.append(1, 18_000, Durability::Synced);
        world.settle();
    }
    let held = world.parts.log.statistics().tail_bytes;
    assert!((9 * WRITE_BUFFER_BYTES..=10 * WRITE_BUFFER_BYTES).contains(&held), "{held}");
}

/// Clients that do not read their responses: with data read back from the disk, and with new data.
#[test]
fn readers_that_keep_what_they_were_given_hold_a_bounded_part_of_the_memory() {
    const BATCH: usize = 100_000;
    let options = Options { readers_bytes: 4 << 20, ..small_options() };
    let mut world = World::with(1, options, SimDisk::new(1));
    let caches = world.options.tail_cache_bytes + world.parts.log.shared().regions.bytes_max();
    let out = |world: &World| {
        world.parts.log.shared().buffers.out_bytes() + world.parts.log.shared().regions.out_bytes()
    };
    let request = |world: &World, from| ReadRequest {
        stream: world.stream(1),
        from,
        until: Offset(i64::MAX),
        bytes_max: 1 << 20,
        at_least_one: true,
    };
    // For each of these batches, one reader began when the batch was new, and one reads it back at the end.
    let mut kept = Vec::new();
    for _ in 0..300 {
        world.append(1, BATCH, Durability::Synced);
        world.settle();
        while world.parts.preparer.turn() {}
        let newest = world.streams[&1].appended.last().unwrap().base;
        match world.parts.log.read(&request(&world, newest)).unwrap() {
            ReadStep::Ready(batches) => kept.push(batches),
            ReadStep::Cold { .. } => panic!("the newest batch is in the tail cache"),
        }
    }
    let bases: Vec<Offset> = world.streams[&1].appended.iter().map(|appended| appended.base).collect();
    for base in bases {
        kept.push(world.parts.log.reader.read_stretch(&request(&world, base)).unwrap());
    }
    let held: usize = kept.iter().map(|batches| batches.bytes).sum();
    assert!(kept.iter().all(|batches| batches.bytes >= BATCH) && held > 60_000_000, "{held}");
    // In addition: one read of four regions, and the buffers that the writer fills.
    let most = 2 * caches + (4 << 20) + (1 << 20) + 2 * WRITE_BUFFER_BYTES;
    assert!(out(&world) <= most, "{} of {most} bytes, {held} are kept", out(&world));
    let short = world.parts.log.reader.readers_room();
    assert!(short < 4 * 64 * 1024, "they took what there was, but {short}");
    // A reader that keeps up still gets more than one batch at a time.
    let (from, count) = (Offset(0), 40);
    for _ in 0..count {
        world.append(2, 1000, Durability::Synced);
    }
    world.settle();
    let small = ReadRequest { stream: world.stream(2), from, ..request(&world, from) };
    match world.parts.log.read(&small).unwrap() {
        ReadStep::Ready(batches) => assert!(batches.bytes >= count * 1000, "{}", batches.bytes),
        ReadStep::Cold { .. } => panic!("the newest batches are in the tail cache"),
    }
    world.compare();

    kept.clear();
    let first = world.parts.log.reader.read_stretch(&request(&world, Offset(0))).unwrap();
    assert!(first.bytes >= 2 * BATCH, "all that fits, once there is room again: {}", first.bytes);
}

#[test]
fn an_index_larger_than_its_cache_can_be_read() {
    let options = Options { index_cache_bytes: 0, tail_cache_bytes: 1, ..small_options() };
    let mut world = World::with(1, options, SimDisk::new(1));
    fill(&mut world, 1, 3);
    world.compare();
}

#[test]
fn a_stream_that_begins_behind_a_gap_is_read_from_its_first_batch() {
    for sealed in [false, true] {
        let mut world = World::new(1);
        world.append(1, 10, Durability::Synced);
        let model = world.streams.get_mut(&1).unwrap();
        model.next = model.next + 100;
        world.settle();
        world.append(2, 10, Durability::Synced);
        world.streams.entry(3).or_default().next = Offset(50);
        for _ in 0..3 {
            world.append(3, 100, Durability::Synced);
        }
        world.append(1, 10, Durability::Synced);
        world.settle();
        if sealed {
            fill(&mut world, 9, 2);
            world.append(3, 100, Durability::Synced);
            world.settle();
        }
        world.compare();
        assert_eq!(
            world.read(3, Offset(0), Offset(i64::MAX), 1, true),
            Some(world.streams[&3].appended[0].end())
        );
    }
}

#[test]
fn an_append_behind_the_deletion_of_its_stream_does_not_bring_it_back() {
    let mut world = World::new(1);
    world.append(1, 10, Durability::Synced);
    world.settle();
    let stream = world.stream(1);
    world.delete(1);
    world.append(1, 10, Durability::Synced);
    world.settle();
    finish(&mut world);
    assert!(world.streams[&1].appended[1].outcome.acknowledged());
    world.strike(Left::PowerCut);
    let request = ReadRequest { stream, from: Offset(0), until: Offset(9), bytes_max: 9, at_least_one: true };
    assert!(matches!(world.parts.log.read_blocking(&request), Err(ReadError::Deleted)));
    assert_eq!(world.stream(1).bounds().committed, Offset(0));
}

#[test]
fn streams_without_records_take_no_room_in_footers() {
    let mut world = World::new(1);
    for id in 100..60_000 {
        world.stream(id);
    }
    fill(&mut world, 1, 3);
    world.strike(Left::PowerCut);
    assert_eq!(world.parts.log.streams().len(), 1);
}

#[test]
fn a_transaction_marker_leaves_the_sequences_alone() {
    let mut world = World::new(1);
    world.append(2, 10, Durability::Synced);
    world.settle();
    let sequence = world.streams[&2].next_sequence;
    let mut marker = batch(&mut world.rng, 1, 10, 5, Some((7, -1))).to_vec();
    marker[22] |= 0x30;
    model::batch::seal_crc(&mut marker);
    let outcome = Arc::new(Outcome::default());
    world.parts.log.append(Append {
        stream: world.stream(2),
        base_offset: world.streams[&2].next,
        header: BatchHeader::parse(&marker).unwrap(),
        batch: marker.clone().into(),
        append_time: None,
        leader_epoch: 0,
        durability: Durability::Synced,
        done: Some(outcome.clone()),
        admission: world.parts.log.admit(marker.len()).unwrap(),
    });
    for _ in 0..50 {
        world.turns(1);
    }
    assert!(outcome.acknowledged());
    let last = |parts: &crate::log::Parts| {
        let producers = parts.log.stream(StreamId(2)).producers();
        producers.find(7).unwrap().batches.back().unwrap().last_sequence() + 1
    };
    assert_eq!(last(&world.parts), sequence);
    let disk = world.disk.crash(1);
    assert_eq!(last(&open(&disk, &world.options, &world.clock).unwrap()), sequence);
}

/// The entries in a missing segment may be trims and deletions, so a missing segment without records is an error too.
#[test]
fn a_missing_segment_behind_the_newest_table_is_named() {
    for missing in 2..4 {
        let mut world = World::new(7);
        fill(&mut world, 1, 4);
        finish(&mut world);
        let disk = world.disk.restart();
        // Without trailers, all of them are the tail of the log.
        for name in disk.list().unwrap() {
            let length = disk.open(&name).unwrap().length();
            disk.damage(&name, length - 4096..length);
        }
        disk.remove(&file_name(missing)).unwrap();
        match open(&disk, &world.options, &world.clock) {
            Err(OpenError::Missing { file }) => assert_eq!(file, file_name(missing)),
            other => panic!("segment {missing}: {:?}", other.map(|parts| parts.log)),
        }
    }
}

#[test]
fn generations_cannot_be_guessed() {
    let options = Options { log_id: 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef, ..small_options() };
    let world = World::with(1, options, SimDisk::new(1));
    let segment = world.parts.log.shared().segments.find(1).unwrap();
    assert!(segment.generation > 1 << 32);
}

/// Data dropped from a segment behind the end of the log stays invalid, whatever is written there later.
#[test]
fn every_opening_gives_prepared_segments_a_new_generation() {
    let mut world = World::new(1);
    while world.parts.preparer.turn() {}
    let generations = |world: &World| -> Vec<u64> {
        let generation = |sequence: u32| {
            let mut sector = disk::AlignedBuffer::zeroed(4096);
            world.disk.open(&file_name(sequence)).unwrap().read_at(0, &mut sector).unwrap();
            crate::format::SegmentHeader::decode(&sector).unwrap().generation
        };
        (1..=3).map(generation).collect()
    };
    let before = generations(&world);
    world.strike(Left::Killed);
    let after = generations(&world);
    assert_eq!(before[0], after[0]);
    assert!(after[1] > before[2] && after[2] > after[1], "{before:?} {after:?}");
}

/// The successor's blocks reveal damage far behind a segment's end of data, however large the first of them is.
#[test]
fn a_large_first_block_does_not_hide_what_vouches_for_the_segment_before() {
    let options = Options { segment_bytes: 128 << 20, tail_cache_bytes: 1 << 20, ..small_options() };
    let mut world = World::with(3, options, SimDisk::new(3));
    let large = world.options.batch_bytes_max() - 100;
    while world.parts.log.shared().segments.count() == 1 {
        while world.parts.preparer.turn() {}
        // Two appends at once: the first is written while the footer before it is still being written.
        assert!(world.append(1, large, Durability::Synced) && world.append(1, large, Durability::Synced));
        world.settle();
    }
    for _ in 0..2 {
        world.append(1, 10, Durability::Synced);
        world.settle();
    }
    let disk = world.disk.restart();
    let footer = world.parts.log.shared().segments.find(1).unwrap().footer().unwrap().trailer;
    let name = file_name(1);
    let length = disk.open(&name).unwrap().length();
    disk.damage(&name, length - 4096..length);
    disk.damage(&name, u64::from(footer.footer_position)..u64::from(footer.footer_position) + 64);
    assert!(matches!(open(&disk, &world.options, &world.clock), Err(OpenError::Damaged { .. })));
}

#[test]
fn retention_by_time_stops_at_the_first_batch_that_is_young_enough() {
    let mut world = World::new(5);
    for n in 0..400 {
        world.clock.ms.fetch_add(10_000, Ordering::Relaxed);
        world.append(1 + n % 2, 8000, Durability::Synced);
        world.settle();
    }
    let now = world.clock.ms.load(Ordering::Relaxed);
    world.retain(1, Some(Timestamp(now - 1_000_000)), None);
    world.retain(2, None, Some(300_000));
    finish(&mut world);
    let bounds = world.stream(1).bounds();
    assert!(bounds.start > Offset(0) && bounds.start < bounds.committed);
    let left = world.stream(2).bounds().bytes;
    assert!((300_000..1_500_000).contains(&left), "{left}");
    assert!(world.parts.log.statistics().segments <= 3, "dead segments are taken");
    world.compare();
    world.strike(Left::PowerCut);
}

/// A slow sync does not hold up appends that wait only for the write, and takes no more memory than some blocks.
#[test]
fn who_waits_for_the_write_alone_does_not_wait_for_syncs() {
    let mut world = World::new(6);
    world.append(1, 100, Durability::Synced);
    world.settle();
    world.disk.hold_syncs(true);
    for _ in 0..20 {
        world.append(1, 30_000, Durability::Written);
        world.settle();
    }
    let (acknowledged, synced) = (world.streams[&1].acknowledged(), world.streams[&1].synced());
    assert_eq!(world.stream(1).bounds().committed, synced, "what is not synced is not committed");
    assert!(synced < acknowledged);
    // Appends that wait for the sync still wait. At last, the others wait too.
    world.append(1, 100, Durability::Synced);
    world.turns(1000);
    assert!(world.streams[&1].appended.last().unwrap().outcome.pending());
    let mut taken = 0;
    while world.append(1, 30_000, Durability::Written) && {
        world.turns(100);
        !world.streams[&1].appended.last().unwrap().outcome.pending()
    } {
        taken += 1;
    }
    assert!((20..100).contains(&taken), "{taken} blocks wait for a sync");
    world.disk.hold_syncs(false);
    world.settle();
    world.turns(1000);
    assert_eq!(world.stream(1).bounds().committed, world.streams[&1].acknowledged());
    world.compare();
    world.strike(Left::PowerCut);
}

/// Behind the end there may be the header of a block that an earlier recovery cut off, with later blocks in its former
/// range.
#[test]
fn a_block_in_the_range_of_one_that_was_cut_off_vouches_all_the_same() {
    let mut world = World::new(7);
    world.append(1, 100, Durability::Synced);
    world.settle();
    let shared = world.parts.log.shared();
    let lsn = Lsn(shared.synced.load(Ordering::Acquire));
    let segment = shared.segments.find(lsn.sequence()).unwrap();
    // The damage below hits the first block. The second says that the first was synced.
    for _ in 0..2 {
        world.append(1, 100, Durability::Synced);
        world.settle();
    }
    let cut_off = BlockHeader {
        kind: BlockKind::Entries,
        epoch: 0,
        lsn,
        synced: Lsn::default(),
        length: 60_000,
        entries: 1,
        payload_crc: 0,
    };
    let mut sector = vec![0; SECTOR];
    cut_off.encode(segment.generation, &mut sector);
    segment.file.write_at(u64::from(lsn.byte()), &sector).unwrap();
    let restarted = world.disk.restart();
    let opened = world.reopen(restarted, Left::Killed);
    assert!(matches!(opened, Err(OpenError::Damaged { .. })), "{opened:?}");
}

/// A clock that moves on at every look.
struct Hurrying {
    nanos: AtomicU64,
    step: u64,
}

impl Clock for Hurrying {
    fn now_ms(&self) -> i64 {
        0
    }
    fn nanos(&self) -> u64 {
        self.nanos.fetch_add(self.step, Ordering::Relaxed)
    }
}

struct Named {
    caller: u64,
    outcome: Arc<Outcome>,
}

impl Completion for Named {
    fn complete(&self, result: Result<(), AppendError>) {
        self.outcome.complete(result);
    }
    fn caller(&self) -> Option<u64> {
        Some(self.caller)
    }
}

/// The reason for which a block waits may end at any moment, also between two looks at the clock.
#[test]
fn a_block_that_waited_for_others_is_written_without_them() {
    for micros in [30, 70, 110, 170, 230] {
        let clock = Hurrying { nanos: AtomicU64::new(1), step: micros * 1000 };
        let disk = Arc::new(SimDisk::new(micros));
        let log = Log::open(disk, small_options(), Arc::new(clock), Arc::new(NoListener)).unwrap();
        for round in 0..60 {
            // Four of eight callers wait, so the other four are expected.
            let callers = 0..4u64;
            let outcomes: Vec<_> = callers
                .map(|caller| {
                    let outcome = Arc::new(Outcome::default());
                    let caller = caller + round % 2 * 4;
                    let base = i64::try_from(round).unwrap();
                    let done = Arc::new(Named { caller, outcome: outcome.clone() });
                    assert!(append(&log, caller, base, 100, done), "there is room");
                    outcome
                })
                .collect();
            let answered = || outcomes.iter().all(|outcome| outcome.acknowledged());
            eventually("every append is answered, whoever comes", answered);
        }
        log.close();
    }
}

struct Panicking(AtomicUsize);

impl Listener for Panicking {
    fn committed(&self, _streams: &[Committed]) {}
    fn group_commit(&self, _bytes: usize, entries: u32, _nanos: u64) {
        assert!(entries == 0 || self.0.fetch_add(1, Ordering::Relaxed) < 1, "a listener that panics");
    }
}

fn append_to(log: &Log, base: i64, body: usize) -> Arc<Outcome> {
    let outcome = Arc::new(Outcome::default());
    if append(log, 1, base, body, outcome.clone()) { outcome } else { Outcome::done() }
}

/// Returns false if there is no room.
fn append(log: &Log, stream: u64, base: i64, body: usize, done: Arc<dyn Completion>) -> bool {
    let batch = batch(&mut fastrand::Rng::with_seed(1), 1, body, 0, None);
    let Ok(admission) = log.admit(batch.len()) else { return false };
    log.append(Append {
        stream: log.stream(StreamId(stream)),
        base_offset: Offset(base),
        header: BatchHeader::parse(&batch).unwrap(),
        batch,
        append_time: None,
        leader_epoch: 0,
        durability: Durability::Synced,
        done: Some(done),
        admission,
    });
    true
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed().as_secs() < 20, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_writer_that_panics_leaves_nobody_waiting() {
    let disk = Arc::new(SimDisk::new(1));
    let log = Log::open(
        disk,
        small_options(),
        Arc::new(SystemClock::default()),
        Arc::new(Panicking(AtomicUsize::new(0))),
    );
    let log = log.unwrap();
    let first = append_to(&log, 0, 1000);
    eventually("the first append is answered", || first.acknowledged());
    let outcomes: Vec<_> = (1..50).map(|base| append_to(&log, base, 1000)).collect();
    eventually("every append is answered", || outcomes.iter().all(|outcome| !outcome.pending()));
    assert!(outcomes.iter().any(|outcome| outcome.failed()) && log.stopped().is_some());
    log.close();
}

#[test]
fn what_was_appended_before_the_end_is_written_and_reads_after_it_are_answered() {
    for seed in 0..20 {
        let disk = Arc::new(SimDisk::new(seed));
        let log =
            Log::open(disk, small_options(), Arc::new(SystemClock::default()), Arc::new(NoListener)).unwrap();
        let outcomes: Vec<_> = (0..200).map(|base| append_to(&log, base, 9000)).collect();
        log.close();
        assert!(outcomes.iter().all(|outcome| outcome.acknowledged()), "seed {seed}");
        let (sender, receiver) = std::sync::mpsc::channel();
        let stream = log.stream(StreamId(1));
        let request =
            ReadRequest { stream, from: Offset(0), until: Offset(9), bytes_max: 9, at_least_one: true };
        log.read_later(
            vec![request],
            9,
            Box::new(move |results: Vec<_>| {
                sender.send(matches!(results[..], [Err(ReadError::Closed)])).unwrap();
            }),
        );
        assert_eq!(receiver.recv(), Ok(true));
    }
}

/// Reports whether it was called.
struct GivenUp(std::sync::mpsc::Sender<()>);

impl ReadDone for GivenUp {
    fn waits(&self) -> bool {
        false
    }
    fn done(self: Box<Self>, _: Vec<Result<Batches, ReadError>>) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn nothing_is_read_for_who_gave_up() {
    let disk = Arc::new(SimDisk::new(1));
    let options = Options { tail_cache_bytes: 1, ..small_options() };
    let log = Log::open(disk, options, Arc::new(SystemClock::default()), Arc::new(NoListener)).unwrap();
    let outcome = append_to(&log, 0, 100);
    eventually("it is appended", || outcome.acknowledged());
    let request = || ReadRequest {
        stream: log.stream(StreamId(1)),
        from: Offset(0),
        until: Offset(9),
        bytes_max: 9,
        at_least_one: true,
    };
    let (sender, told) = std::sync::mpsc::channel();
    log.read_later(vec![request()], 9, Box::new(GivenUp(sender)));
    assert!(told.recv().is_err(), "it is dropped without a word");
    let (sender, told) = std::sync::mpsc::channel();
    log.read_later(vec![request()], 9, Box::new(move |results: Vec<_>| sender.send(results).unwrap()));
    assert!(matches!(told.recv().unwrap()[..], [Ok(_)]));
    log.close();
}
