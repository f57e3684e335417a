//! Logs with an object store: what is stored stays readable, whatever the store, the disk and the power do.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use disk::sim::Fault;
use disk::{AlignedBuffer, Disk, SimDisk};
use model::{Offset, StreamId};
use objects::Bucket;
use objects::sim::Faults;

use super::crash::seeds;
use super::restore::{Restored, lose_often};
use super::support::{DISKLESS, LEADING, Left, StreamModel, World, open};
use crate::cleaner::Merged;
use crate::format::STORED;
use crate::log::assemble;
use crate::options::Mutation;
use crate::pacer::Pacer;
use crate::reader::{ReadError, ReadRequest};
use crate::recovery::OpenError;
use crate::request::Durability;
use crate::tools::examine::Severity;
use crate::tools::{examine, salvage};
use crate::uploader::{UploadError, Uploaded};
use crate::writer::{Patience, WRITE_BUFFER_BYTES};

/// Streams 1 and 3 are tiered, stream 2 is diskless, stream 0 is local.
const STREAMS: u64 = 4;

/// How often the load did what does not always work.
#[derive(Default)]
struct Counts {
    stored: u64,
    evicted: usize,
    deleted: u64,
    merged: u32,
    compacted: u32,
}

fn some_load(world: &mut World, counts: &mut Counts) {
    for _ in 0..world.rng.usize(20..150) {
        let stream = world.rng.u64(0..STREAMS);
        let deleted = world.streams.get(&stream).is_some_and(|model| model.deleted.is_some());
        match world.rng.u8(0..100) {
            // The id of a deleted stream is not used again.
            0..50 if deleted => {}
            0..50 => {
                let body = world.rng.usize(0..20_000);
                let durability = if world.rng.bool() { Durability::Written } else { Durability::Synced };
                world.append(stream, body, durability);
            }
            50..65 => {
                let turn = world.upload();
                assert!(!matches!(turn, Uploaded::Fenced(_)), "seed {}: {turn:?}", world.seed);
            }
            65..70 => world.evict(stream),
            70..73 => world.trim(stream),
            73..75 => drop(world.parts.uploader.collect()),
            75..78 => drop(world.clean()),
            78..80 => {
                let shared = world.parts.log.shared.clone();
                // An error is one of the store, which has bad days here.
                let merged = shared.merge_objects(&mut Pacer::new(shared.clone(), false));
                counts.merged += u32::from(matches!(merged, Ok(Merged::Queued(_))));
            }
            // The right to replace is taken while an earlier replacement is on its way.
            80..83 if world.parts.log.shared.tier.begin_replacing().is_some() => {
                counts.compacted += u32::from(world.compact(&[DISKLESS]));
            }
            83 if world.rng.u8(0..4) == 0 => world.delete(stream),
            _ => {
                let turns = world.rng.usize(1..8);
                world.turns(turns);
            }
        }
    }
}

/// Reads everything back while the store has a good day.
fn compare(world: &mut World) {
    world.store().set_faults(Faults::default());
    world.compare();
    for id in 0..STREAMS {
        world.search(id);
        world.read_somewhere(id);
    }
}

/// Stores and deletes until nothing more is to be done, while the store has a good day.
pub fn rest(world: &mut World) {
    world.settle();
    world.store().set_faults(Faults::default());
    world.store().settle();
    // The last ones may have failed before.
    world.run_puts(usize::MAX);
    drop(world.parts.uploader.turn());
    for _ in 0..100 {
        world.parts.writer.turn(Patience::None);
        let uploaded = world.parts.uploader.turn();
        world.run_puts(usize::MAX);
        assert!(
            matches!(uploaded, Uploaded::Nothing | Uploaded::Begun | Uploaded::Object),
            "seed {}: {uploaded:?}",
            world.seed
        );
        world.parts.uploader.collect().unwrap();
    }
    assert_eq!(world.parts.uploader.delete_orphans().unwrap(), None, "seed {}", world.seed);
}

/// Every object is known to the log, and every object that the log knows is there.
fn check_objects(world: &World) {
    let known: BTreeSet<String> = world
        .parts
        .log
        .shared()
        .segments
        .all()
        .into_iter()
        .filter_map(|segment| {
            let number = segment.sequence.checked_sub(STORED).filter(|number| *number < STORED)?;
            Some(format!("logs/{:032x}/{number:010}", world.options.log_id))
        })
        .collect();
    let there: BTreeSet<String> = world.objects().into_iter().collect();
    assert_eq!(there, known, "seed {}", world.seed);
}

/// Loads the log, with crashes and bad days of the store, and checks that it comes to rest.
fn live(world: &mut World, counts: &mut Counts) {
    let seed = world.seed;
    for _ in 0..world.rng.usize(1..6) {
        let faults = if world.rng.bool() { Faults::MANY } else { Faults::default() };
        world.store().set_faults(faults);
        some_load(world, counts);
        if world.rng.bool() {
            world.settle();
            compare(world);
        }
        let statistics = world.parts.log.statistics();
        counts.stored += statistics.objects_stored;
        counts.deleted += statistics.objects_deleted;
        let evicted = |id: &u64| {
            let bounds = world.stream(*id).bounds();
            bounds.local_start > bounds.start
        };
        counts.evicted += (0..STREAMS).filter(evicted).count();
        world.store().set_faults(Faults::default());
        let left = if world.rng.bool() { Left::Killed } else { Left::PowerCut };
        world.strike(left);
    }
    some_load(world, counts);
    rest(world);
    compare(world);
    check_objects(world);
    let waiting = world
        .streams
        .get(&DISKLESS)
        .map(|model| model.appended.iter().filter(|appended| appended.outcome.pending()).count());
    let bounds = world.stream(DISKLESS).bounds();
    assert_eq!(waiting.unwrap_or(0), 0, "seed {seed}: appends wait for ever at {bounds:?}");
    for id in 0..STREAMS {
        let bounds = world.stream(id).bounds();
        let whole = id == 0 || bounds.committed == bounds.start || bounds.stored == Some(bounds.committed);
        assert!(
            whole,
            "seed {seed}: stream {id} is stored up to {:?} of {}",
            bounds.stored, bounds.committed
        );
    }
    for id in 0..STREAMS {
        world.delete(id);
    }
    rest(world);
    check_objects(world);
    let left = world.objects().len();
    let most = world.options.object_puts;
    assert!(left <= most, "seed {seed}: {left} objects outlive their records: more than the newest ones");
}

/// The world of a seed. Every other one puts several objects at a time.
pub fn world_of(seed: u64, mutation: Option<Mutation>) -> World {
    let mut world = World::tiered_with(seed, mutation);
    if seed % 2 == 1 {
        world.put_in_parallel();
    }
    world
}

#[test]
fn what_is_stored_stays_readable_and_nothing_is_left_behind() {
    let mut counts = Counts::default();
    for seed in seeds(0..600) {
        live(&mut world_of(seed, None), &mut counts);
    }
    let Counts { stored, evicted, deleted, merged, compacted } = counts;
    assert!(
        stored > 1000 && evicted > 50 && deleted > 200,
        "{stored} stored, {evicted} evicted, {deleted} deleted"
    );
    assert!(merged > 100 && compacted > 100, "{merged} merged, {compacted} compacted");
}

/// Each fault that is planted in the log turns the tests with random loads red.
#[test]
fn the_tests_see_the_mutations() {
    use Mutation::{DeletesLinks, DeletesUnknown, IgnoresLeading, TrustsTaken, VisibleWhenSynced};
    let harmed = |seed: u64, mutation: Mutation| {
        let live = || live(&mut world_of(seed, Some(mutation)), &mut Counts::default());
        let restore = || lose_often(&mut world_of(seed, Some(mutation)), &mut Restored::default());
        catch_unwind(live).is_err() || catch_unwind(restore).is_err()
    };
    for mutation in [VisibleWhenSynced, DeletesUnknown, TrustsTaken, DeletesLinks, IgnoresLeading] {
        let seen = (0..60).find(|seed| harmed(*seed, mutation));
        assert!(seen.is_some(), "{mutation:?} was not noticed");
    }
}

/// A store that overwrites objects loses records. The test above would see that.
#[test]
fn the_test_sees_a_store_without_conditional_writes() {
    let harmed = |seed: u64| {
        let attempt = std::panic::AssertUnwindSafe(|| {
            let mut world = World::tiered(seed);
            world.store().set_overwrites(true);
            for _ in 0..4 {
                world.store().set_faults(Faults { late: 120, ..Faults::default() });
                some_load(&mut world, &mut Counts::default());
                world.store().set_faults(Faults::default());
                world.strike(Left::PowerCut);
            }
            rest(&mut world);
            for id in 0..STREAMS {
                let stream = world.stream(id);
                world.parts.log.retain_locally(&stream, None, Some(0));
            }
            compare(&mut world);
        });
        std::panic::catch_unwind(attempt).is_err()
    };
    assert!((0..60).any(harmed), "no store without conditional writes was noticed");
}

fn fill(world: &mut World, batches: usize) {
    for _ in 0..batches {
        assert!(world.append(1, 15_000, Durability::Synced));
        world.settle();
        while world.parts.preparer.turn() {}
    }
    rest(world);
}

#[test]
fn a_local_copy_goes_only_where_an_object_has_the_records_and_can_be_read_back() {
    let mut world = World::tiered(1);
    fill(&mut world, 300);
    let stream = world.stream(1);
    let before = stream.bounds();
    assert_eq!((before.local_start, before.stored), (Offset::ZERO, Some(before.committed)));
    world.parts.log.retain_locally(&stream, None, Some(0));
    let after = stream.bounds();
    assert!(after.local_start > Offset::ZERO && after.start == Offset::ZERO);
    assert!(after.bytes >= before.bytes && after.bytes < before.bytes + 64 * 1024 + 20_000);
    let got = world.store().requests().gets;
    world.compare();
    assert!(
        world.store().requests().gets > got,
        "the records below {} are read from objects",
        after.local_start
    );
    world.strike(Left::PowerCut);
    // Retention drops stored records, too, and then their objects.
    let kept = world.stream(1).bounds().bytes / 4;
    world.retain(1, None, Some(kept));
    world.turns(50);
    rest(&mut world);
    let bounds = world.stream(1).bounds();
    assert!(bounds.start > Offset::ZERO && bounds.bytes >= kept);
    check_objects(&world);
    world.compare();
}

#[test]
fn a_store_that_is_away_stops_neither_appends_nor_local_reads() {
    let mut world = World::tiered(2);
    fill(&mut world, 100);
    let stored = world.stream(1).bounds().stored;
    world.store().set_away(true);
    for _ in 0..50 {
        assert!(world.append(1, 15_000, Durability::Synced));
        world.settle();
        while world.parts.preparer.turn() {}
        assert!(!matches!(world.parts.uploader.turn(), Uploaded::Object));
    }
    world.compare();
    assert_eq!(world.stream(1).bounds().stored, stored);
    // The log opens without the store.
    world.strike(Left::Killed);
    world.store().set_away(false);
    rest(&mut world);
    let bounds = world.stream(1).bounds();
    assert_eq!(bounds.stored, Some(bounds.committed));
}

/// Objects share the batches of the tail cache, and a batch keeps the whole write buffer that it stands in.
#[test]
fn objects_on_their_way_keep_a_bounded_part_of_the_write_buffers() {
    let mut world = World::tiered(4);
    fill(&mut world, 5);
    let kept = |world: &World| world.parts.log.shared().kept_by_objects.load(Ordering::Relaxed);
    let most = world.options.object_bytes * 5 / 4;
    // Little of what a buffer has is tiered at first, then all of it. Last, a batch is longer than the usual buffers.
    for (local, body, count) in [(2, 2_500, 20), (0, 2_500, 20), (0, 60_000, 2)] {
        for _ in 0..count {
            for _ in 0..local {
                assert!(world.append(0, 2_500, Durability::Synced));
            }
            assert!(world.append(1, body, Durability::Synced));
            world.settle();
            while world.parts.preparer.turn() {}
        }
        world.store().set_away(true);
        assert!(matches!(world.parts.uploader.turn(), Uploaded::Failed(_)));
        let bytes = kept(&world);
        // Of many buffers, an object keeps as many as it may.
        let least = if local > 0 { most - WRITE_BUFFER_BYTES } else { world.options.object_bytes / 2 };
        assert!(bytes > least && bytes >= body && bytes <= most, "{bytes} bytes are kept");
        world.store().set_away(false);
        rest(&mut world);
        assert_eq!(kept(&world), 0, "nothing is on its way");
        let bounds = world.stream(1).bounds();
        assert_eq!(bounds.stored, Some(bounds.committed));
    }
    // From the objects.
    world.parts.log.retain_locally(&world.stream(1), None, Some(0));
    world.compare();
}

#[test]
fn a_log_with_records_in_objects_is_refused_without_their_bucket() {
    let mut world = World::tiered(6);
    fill(&mut world, 200);
    // While the disk has all of them, the store is not needed.
    assert!(open(&world.disk.restart(), &world.options, &world.clock).is_ok());
    world.parts.log.retain_locally(&world.stream(1), None, Some(0));
    let disk = world.disk.restart();
    // Segments without live records are reused sooner or later.
    for name in ["0000000001.log", "0000000002.log"] {
        disk.remove(name).unwrap();
    }
    let error = open(&disk, &world.options, &world.clock).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::NoBucket { objects } if objects > 10), "{error}");
    world.reopen(disk, Left::Killed).unwrap();
    let end = world.streams[&1].synced();
    world.trim_to(1, end);
    rest(&mut world);
    assert!(open(&world.disk.restart(), &world.options, &world.clock).is_ok());
}

#[test]
fn the_tools_know_of_records_that_are_in_objects_alone() {
    let mut world = World::tiered(7);
    fill(&mut world, 200);
    let stream = world.stream(1);
    world.parts.log.retain_locally(&stream, None, Some(0));
    let local_start = stream.bounds().local_start;
    world.close();
    let disk = world.disk.restart();
    // Segments without live records are reused sooner or later.
    for name in ["0000000001.log", "0000000002.log"] {
        disk.remove(name).unwrap();
    }
    let verified = examine::verify(&disk, &|_, _| {}).unwrap();
    assert!(
        verified.findings.iter().all(|found| found.severity < Severity::Error),
        "{:?}",
        verified.findings
    );
    let target: Arc<dyn Disk> = Arc::new(SimDisk::new(8));
    let salvaged =
        salvage::salvage(&disk, target, world.options.clone(), world.clock.clone(), &|_, _, _| {}).unwrap();
    let said = salvaged.dropped.iter().find(|found| found.what.contains("in the object store alone"));
    let hit = &said.unwrap().hits[0];
    assert!(hit.from == Offset::ZERO && hit.to <= local_start && hit.to > Offset::ZERO);
}

/// A segment that another stream keeps alive has the dropped local copies again after a restart; one between may be gone.
#[test]
fn dropped_local_copies_that_are_found_again_hide_no_record() {
    let mut world = World::tiered(8);
    for n in 0..400u32 {
        // Stream 0 has records in some segments only.
        let stream = if n % 200 < 20 { 0 } else { 1 };
        assert!(world.append(stream, 15_000, Durability::Synced));
        world.settle();
        while world.parts.preparer.turn() {}
    }
    rest(&mut world);
    let stream = world.stream(1);
    world.parts.log.retain_locally(&stream, None, Some(0));
    let local_start = stream.bounds().local_start;
    for _ in 0..50 {
        while world.parts.preparer.turn() {}
        world.turns(5);
    }
    let alive = |number: u32| world.parts.log.shared().segments.find(number).is_some();
    let first = (1..).find(|number| alive(*number)).unwrap();
    let last = (first..first + 100).rfind(|number| alive(*number)).unwrap();
    let dead: Vec<u32> = (first..last).filter(|number| !alive(*number)).collect();
    assert!(!dead.is_empty(), "no segment between {first} and {last} died");
    let disk = world.disk.restart();
    for number in dead {
        // It was reused, or given back to the file system.
        disk.remove(&format!("{number:010}.log")).unwrap();
    }
    // This reads everything back.
    world.reopen(disk, Left::Killed).unwrap();
    let found = world.stream(1).bounds();
    assert!(
        found.start == Offset::ZERO && found.local_start > Offset::ZERO && found.local_start <= local_start
    );
}

/// What was given up is not taken for stored after a restart, and can be stored again.
#[test]
fn copies_that_were_given_up_do_not_count_after_a_restart() {
    for (seed, again) in [(9, false), (10, true)] {
        let mut world = World::tiered(seed);
        for n in 0..200u32 {
            // Objects without a record of stream 3 die when those of stream 1 are given up.
            let stream = if n % 40 < 20 { 3 } else { 1 };
            assert!(world.append(stream, 15_000, Durability::Synced));
            world.settle();
            while world.parts.preparer.turn() {}
            drop(world.parts.uploader.turn());
        }
        rest(&mut world);
        let (stream, before) = (world.stream(1), world.objects().len());
        world.parts.log.forget_stored(&stream);
        assert_eq!(stream.bounds().stored, None);
        rest(&mut world);
        assert!(world.objects().len() < before, "seed {seed}: no object died");
        if again {
            world.parts.log.set_tiered(&stream, true);
            rest(&mut world);
        }
        // `strike` makes stream 1 tiered again.
        world.strike(Left::PowerCut);
        rest(&mut world);
        let stream = world.stream(1);
        assert_eq!(stream.bounds().stored, Some(stream.bounds().committed), "seed {seed}");
        world.parts.log.retain_locally(&stream, None, Some(0));
        assert!(stream.bounds().local_start > Offset::ZERO);
        world.compare();
        world.strike(Left::PowerCut);
    }
}

/// The answer to a put is lost, and then the local disk fails while the object is adopted.
#[test]
fn an_object_is_named_once_whatever_fails_between() {
    for seed in 0..20 {
        let mut world = World::tiered(seed);
        fill(&mut world, 20);
        assert!(world.append(1, 15_000, Durability::Synced));
        world.settle();
        world.store().set_faults(Faults { after: 255, ..Faults::default() });
        assert!(matches!(world.parts.uploader.turn(), Uploaded::Failed(_)));
        world.store().set_faults(Faults::default());
        world.disk.fail_write_after(0, Fault::Once);
        assert!(matches!(world.parts.uploader.turn(), Uploaded::Failed(_)), "seed {seed}");
        world.disk.clear_faults();
        rest(&mut world);
        fill(&mut world, 20);
        let stream = world.stream(1);
        assert_eq!(stream.bounds().stored, Some(stream.bounds().committed), "seed {seed}");
        world.compare();
        check_objects(&world);
        let end = world.streams[&1].synced();
        world.trim_to(1, end);
        world.settle();
        world.strike(Left::Killed);
    }
}

/// A crash left an object without the one before it. Its number is in the way of an object with records of a leading
/// stream, and the object behind that one, with records of stream 1, is stored already.
pub fn world_with_an_object_in_the_way(seed: u64) -> World {
    let mut world = World::tiered(seed);
    world.put_in_parallel();
    let put = |world: &mut World, streams: &[u64]| {
        for stream in streams {
            assert!(world.append(*stream, 1000, Durability::Synced));
        }
        // Settling the log would store the records, too.
        for _ in 0..10 {
            world.parts.writer.turn(Patience::None);
        }
        let turn = world.parts.uploader.turn();
        assert!(matches!(turn, Uploaded::Begun), "seed {seed}, {streams:?}: {turn:?}");
    };
    let name = |world: &mut World| {
        world.run_puts(usize::MAX);
        assert!(matches!(world.parts.uploader.turn(), Uploaded::Object));
    };
    put(&mut world, &[DISKLESS]);
    name(&mut world);
    put(&mut world, &[DISKLESS]);
    put(&mut world, &[DISKLESS]);
    world.run_last_put();
    world.strike(Left::Killed);
    put(&mut world, &[DISKLESS]);
    name(&mut world);
    put(&mut world, &[LEADING, DISKLESS]);
    put(&mut world, &[1]);
    world.run_puts(usize::MAX);
    world
}

#[test]
fn an_object_does_not_count_without_those_it_was_built_behind() {
    for seed in [1, 2, 3] {
        let mut world = world_with_an_object_in_the_way(seed);
        for _ in 0..10 {
            assert!(!matches!(world.parts.uploader.turn(), Uploaded::Fenced(_) | Uploaded::Failed(_)));
            let stored = |id: u64| world.stream(id).bounds().stored;
            assert!(stored(1).is_none() || stored(LEADING).is_some(), "seed {seed}: stream 1 is ahead");
            world.run_puts(usize::MAX);
        }
        let known = world.parts.log.shared().segments.all_stored().len();
        assert_eq!(world.objects().len(), known + 2, "seed {seed}: nothing was in the way");
        rest(&mut world);
        compare(&mut world);
        check_objects(&world);
        for id in [1, DISKLESS, LEADING] {
            let bounds = world.stream(id).bounds();
            assert_eq!(bounds.stored, Some(bounds.committed), "seed {seed}: stream {id}");
        }
    }
}

/// The other streams of a world with records that cannot be read.
fn others_than(damaged: u64) -> Vec<u64> {
    [1, DISKLESS, LEADING].into_iter().filter(|id| *id != damaged).collect()
}

/// The second record of a stream cannot be read from the local disk, and is not stored. Returns its offset.
fn damage(world: &mut World, damaged: u64) -> Offset {
    let others = others_than(damaged);
    for stream in [damaged, damaged, others[0], others[1]] {
        assert!(world.append(stream, 5000, Durability::Synced));
        for _ in 0..10 {
            world.parts.writer.turn(Patience::None);
        }
    }
    // Nothing is in memory afterwards.
    world.strike(Left::Killed);
    let shared = world.parts.log.shared.clone();
    let stream = world.stream(damaged);
    let sources = shared.sources_between(&stream, Offset::ZERO, stream.bounds().synced).unwrap();
    let second = &sources[0].places[1];
    let (segment, at) = (sources[0].segment.name(), u64::from(second.position) + 4096);
    world.disk.fail_reads_of(&segment, at..at + 1);
    second.base_offset
}

/// Who owns the log learns of it, and may have the records elsewhere.
#[test]
fn a_log_says_for_how_long_records_cannot_be_read() {
    for (owned, damaged) in [(true, 1), (true, DISKLESS), (true, LEADING), (false, 1), (false, LEADING)] {
        let mut world = if owned { World::owned(1, None) } else { World::tiered(1) };
        damage(&mut world, damaged);
        assert_eq!(world.parts.log.unreadable_for(), Duration::ZERO);
        for second in 0..10 {
            for _ in 0..4 {
                drop(world.parts.uploader.turn());
                world.run_puts(usize::MAX);
            }
            assert_eq!(world.parts.log.unreadable_for().as_secs(), second, "stream {damaged}");
            world.clock.nanos.fetch_add(1_000_000_000, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_log_goes_on_once_its_records_can_be_read() {
    for damaged in [1, LEADING] {
        let mut world = World::owned(1, None);
        damage(&mut world, damaged);
        for second in 0..6 {
            if second == 2 {
                world.disk.clear_faults();
            }
            for _ in 0..4 {
                drop(world.parts.uploader.turn());
                world.run_puts(usize::MAX);
            }
            world.clock.nanos.fetch_add(1_000_000_000, Ordering::SeqCst);
        }
        assert_eq!(world.parts.log.unreadable_for(), Duration::ZERO);
        rest(&mut world);
        compare(&mut world);
        let bounds = world.stream(damaged).bounds();
        assert_eq!(bounds.stored, Some(bounds.synced), "stream {damaged}");
    }
}

#[test]
fn a_stream_is_stored_again_once_records_that_cannot_be_read_are_deleted() {
    let mut world = World::tiered(1);
    damage(&mut world, 1);
    for _ in 0..10 {
        drop(world.parts.uploader.turn());
        world.run_puts(usize::MAX);
    }
    assert!(world.stream(1).is_aside());
    let end = world.stream(1).bounds().synced;
    world.trim_to(1, end);
    for _ in 0..10 {
        world.parts.writer.turn(Patience::None);
    }
    drop(world.parts.uploader.turn());
    assert!(!world.stream(1).is_aside());
    assert_eq!(world.parts.log.unreadable_for(), Duration::ZERO);
}

/// A record on the local disk is lost before it is stored.
#[test]
fn records_that_cannot_be_read_hold_up_no_other_stream() {
    for (damaged, others_go_on) in [(1, true), (DISKLESS, true), (LEADING, false)] {
        let mut world = World::tiered(1);
        let second = damage(&mut world, damaged);
        let mut problems = 0;
        for _ in 0..10 {
            let uploaded = world.parts.uploader.turn();
            let mut told = world.parts.uploader.take_problems();
            told.extend(match uploaded {
                Uploaded::Failed(error) => Some(error),
                _ => None,
            });
            for problem in told {
                let UploadError::Unreadable { stream, leads, .. } = problem else { panic!("{problem}") };
                assert_eq!((stream, leads), (StreamId(damaged), !others_go_on));
                problems += 1;
            }
        }
        // It is tried again after a while.
        assert!(if others_go_on { problems == 1 } else { problems > 1 }, "{problems} for stream {damaged}");
        let stored = |id: u64| world.stream(id).bounds().stored;
        let before = others_go_on.then_some(second);
        assert_eq!(stored(damaged), before, "stream {damaged} up to the damage");
        for other in others_than(damaged) {
            let end = others_go_on.then(|| world.stream(other).bounds().synced);
            assert_eq!(stored(other), end, "stream {other} beside stream {damaged}");
        }
        world.disk.clear_faults();
        world.clock.nanos.fetch_add(2_000_000_000, Ordering::SeqCst);
        rest(&mut world);
        compare(&mut world);
        check_objects(&world);
    }
}

#[test]
fn a_damaged_object_is_an_error_and_never_a_record() {
    let mut world = World::tiered(3);
    fill(&mut world, 200);
    let stream = world.stream(1);
    world.parts.log.retain_locally(&stream, None, Some(0));
    let key = world.objects()[0].clone();
    world.store().damage(&key, 10_000);
    let (until, bytes_max) = (stream.bounds().committed, 1 << 20);
    let request = ReadRequest { stream, from: Offset::ZERO, until, bytes_max, at_least_one: true };
    let error = world.parts.log.read_blocking(&request).map(|batches| batches.bytes);
    assert!(matches!(error, Err(ReadError::Damaged { .. })), "{error:?}");
    // What was fetched is not kept: the object is read again.
    world.store().damage(&key, 10_000);
    world.compare();
}

/// A disk with the files of another.
fn copied(disk: &SimDisk) -> SimDisk {
    let copy = SimDisk::new(9);
    for name in disk.list().unwrap() {
        let file = disk.open(&name).unwrap();
        let mut bytes = AlignedBuffer::zeroed(usize::try_from(file.length()).unwrap());
        file.read_at(0, &mut bytes).unwrap();
        let file = copy.create(&name, file.length()).unwrap();
        file.write_at(0, &bytes).unwrap();
        file.sync().unwrap();
        copy.rename(&name, &name).unwrap();
    }
    copy
}

#[test]
fn two_servers_with_copies_of_one_log_do_not_mix_their_objects() {
    let mut world = World::tiered(4);
    fill(&mut world, 50);
    let copy = copied(&world.disk);
    let before = world.objects().len();
    let mut other = World::tiered(5);
    let store: Arc<dyn Bucket> = Arc::new(world.store().clone());
    let listener = other.listener.clone();
    let parts =
        assemble(Arc::new(copy.clone()), Some(store), world.options.clone(), other.clock.clone(), listener);
    (other.disk, other.parts, other.bucket) = (copy, parts.unwrap(), world.bucket.clone());
    let end = other.stream(1).bounds().committed;
    other.streams.insert(1, StreamModel { next: end, ..StreamModel::default() });
    let mut fenced = 0;
    for of in [&mut world, &mut other] {
        assert!(of.append(1, 15_000, Durability::Synced));
        of.settle();
        for _ in 0..5 {
            fenced += usize::from(matches!(of.parts.uploader.turn(), Uploaded::Fenced(_)));
        }
    }
    assert_eq!(fenced, 1, "one of them is fenced, and says so once");
    assert_eq!(world.objects().len(), before + 1);
}
