//! A log whose disk is lost comes back from its objects, whatever the store does and wherever the restore is cut short.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use disk::sim::Fault;
use disk::{Disk, SimDisk};
use model::{Offset, StreamId};
use objects::sim::Faults;
use objects::{Bucket, BucketError};

use super::crash::seeds;
use super::manifests::write_one;
use super::support::{Appended, DISKLESS, LEADING, Left, Outcome, StreamModel, World};
use super::tier::{rest, world_of, world_with_an_object_in_the_way};
use crate::cleaner::Merged;
use crate::epochs::Epochs;
use crate::pacer::Pacer;
use crate::request::Durability;
use crate::tools::bucket::{self, InspectedObjects, VerifiedObjects};
use crate::tools::examine::{Severity, inspect};
use crate::tools::restore::{Asking, KnownBounds, Pause, Restore, RestoreError, RestoredLog, restore};

/// Streams 1 and 3 are tiered, streams 0 and 2 are not.
const STREAMS: u64 = 4;

pub type Snapshot = HashMap<StreamId, Option<KnownBounds>>;
/// The start of each stream when its disk was lost, and the end of what was stored.
pub type Stored = HashMap<u64, (Offset, Offset)>;

/// What a metadata snapshot would say now.
pub fn snapshot(world: &World) -> Snapshot {
    let known = |(id, model): (&u64, &StreamModel)| {
        let bounds = world.stream(*id).bounds();
        let known = KnownBounds { start: bounds.start, next: bounds.committed, stored: bounds.stored };
        model.deleted.is_none().then_some((StreamId(*id), Some(known)))
    };
    world.streams.iter().filter_map(known).collect()
}

pub fn some_load(world: &mut World) {
    for _ in 0..world.rng.usize(20..120) {
        let stream = world.rng.u64(0..STREAMS);
        let deleted = world.streams.get(&stream).is_some_and(|model| model.deleted.is_some());
        match world.rng.u8(0..100) {
            0..55 if deleted => {}
            0..55 => {
                let body = world.rng.usize(0..20_000);
                world.append(stream, body, Durability::Synced);
            }
            55..70 => drop(world.upload()),
            70..75 => world.evict(stream),
            75..79 => world.trim(stream),
            79..81 => drop(world.parts.uploader.collect()),
            81 => write_one(world),
            82 if stream == 3 => world.delete(stream),
            _ => {
                let turns = world.rng.usize(1..8);
                world.turns(turns);
            }
        }
    }
}

pub fn patient(_: Duration, _: &BucketError) -> bool {
    true
}

/// Restores the log of `world` on `disk`.
pub fn restored(
    world: &World,
    disk: &SimDisk,
    streams: &Snapshot,
    accept_loss: bool,
) -> Result<RestoredLog, RestoreError> {
    let bucket: Arc<dyn Bucket> = Arc::new(world.store().clone());
    let target: Arc<dyn Disk> = Arc::new(disk.clone());
    let asking = Asking { bucket: &bucket, threads: 1, pause: &patient, progress: &|_, _| {} };
    let (log_id, now_ms) = (world.options.log_id, 1_700_000_000_000);
    let epochs = world.options.owned.as_ref().map(|owned| owned.epochs.clone()).unwrap_or_default();
    restore(&target, &Restore { asking, log_id, epochs, streams, opens: false, accept_loss, now_ms })
}

/// Checks that nothing was restored that came behind a record of a leading stream which was not.
fn check_order(world: &World, log: &RestoredLog) {
    let lost = |(id, model): (&u64, &StreamModel)| {
        let next = log.streams.get(&StreamId(*id))?.next.max(model.trimmed_at_most());
        let first = model.appended.iter().find(|appended| appended.end() > next)?;
        (world.leads(*id) && model.deleted.is_none()).then_some(first.order)
    };
    let first_lost = world.streams.iter().filter_map(lost).min().unwrap_or(u64::MAX);
    for (id, model) in &world.streams {
        let Some(found) = log.streams.get(&StreamId(*id)).filter(|found| found.start < found.next) else {
            continue;
        };
        let kept = model.appended.iter().filter(|appended| appended.end() <= found.next);
        let last = kept.map(|appended| appended.order).max().unwrap_or(0);
        assert!(last < first_lost, "seed {}: stream {id} is ahead of a leading stream", world.seed);
    }
}

/// What is stored of the streams that are not deleted.
pub fn stored_of(world: &World) -> Stored {
    let there = |id: &u64| world.streams.get(id).is_some_and(|model| model.deleted.is_none());
    let bounds = |id: u64| {
        let bounds = world.stream(id).bounds();
        Some((id, (bounds.start, bounds.stored?)))
    };
    (0..STREAMS).filter(there).filter_map(bounds).collect()
}

/// Goes on with the restored log. Checks everything in it, and that nothing is lost that was stored.
pub fn go_on(world: &mut World, disk: SimDisk, log: &RestoredLog, stored: &Stored) {
    let seed = world.seed;
    check_order(world, log);
    for (id, model) in &mut world.streams {
        let Some(found) = log.streams.get(&StreamId(*id)) else {
            // Its topic is gone, or younger than the snapshot.
            *model = StreamModel { deleted: Some(Outcome::done()), ..Default::default() };
            continue;
        };
        if let Some((start, stored)) = stored.get(id)
            && start < stored
        {
            assert!(found.next >= *stored, "seed {seed}: stream {id} ends at {}, not {stored}", found.next);
            assert!(found.start <= *start, "seed {seed}: stream {id} starts at {}, not {start}", found.start);
        }
        model.deleted = None;
        model.appended.retain(|appended| appended.end() <= found.next);
        let end = model.appended.last().map_or(found.next, Appended::end);
        assert!(
            end == found.next || found.start == found.next,
            "seed {seed}: stream {id} was cut in a batch"
        );
        if found.start == found.next {
            model.appended.clear();
        }
        model.appended.iter_mut().for_each(|appended| appended.outcome = Outcome::done());
        model.next = found.next;
        model.trims = vec![(found.start, Outcome::done())];
        model.retained = Offset::ZERO;
    }
    world.producers_may_be_forgotten = true;
    // A read tries a few times only.
    world.store().set_faults(Faults::default());
    world.reopen(disk, Left::Killed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    world.compare();
}

/// How often what does not always happen did happen.
#[derive(Default)]
pub struct Restored {
    records: u64,
    interrupted: u32,
    cut: u32,
}

/// Loads the log, loses its disk and restores it, a few times.
pub fn lose_often(world: &mut World, counts: &mut Restored) {
    let seed = world.seed;
    for _ in 0..world.rng.usize(1..4) {
        let faults = if world.rng.bool() { Faults::MANY } else { Faults::default() };
        world.store().set_faults(faults);
        some_load(world);
        // The snapshot may be older than the newest records, trims and topics.
        let known = snapshot(world);
        let stale = world.rng.bool();
        if stale {
            some_load(world);
        }
        world.settle();
        let stored = stored_of(world);
        world.end_requests();
        let mut disk = SimDisk::new(world.rng.u64(..));
        for attempt in 0.. {
            if attempt < 20 {
                disk.fail_write_after(world.rng.u64(0..12), Fault::Forever);
                disk.fail_sync_after(world.rng.u64(0..12), Fault::Forever);
            }
            // What was deleted since the snapshot, with objects between others, looks like damage.
            let result = restored(world, &disk, &known, stale);
            disk.clear_faults();
            match result {
                Ok(log) => {
                    counts.records += log.streams.values().map(|stream| stream.batches).sum::<u64>();
                    counts.cut += u32::from(log.streams.values().any(|stream| !stream.missing.is_empty()));
                    let disk = disk.crash(world.rng.u64(..));
                    go_on(world, disk, &log, &stored);
                    break;
                }
                Err(RestoreError::Local(..)) if attempt < 20 => {
                    counts.interrupted += 1;
                    disk = disk.crash(world.rng.u64(..));
                    let named = disk.list().unwrap().iter().any(|name| name.ends_with(".stored"));
                    let opened = inspect(&disk).unwrap().opening;
                    assert!(!named || opened.is_err(), "seed {seed}: half of a log was opened");
                }
                Err(error) => panic!("seed {seed}: {error}: {error:?}"),
            }
        }
    }
}

#[test]
fn what_was_stored_comes_back_and_can_be_lost_again() {
    let mut counts = Restored::default();
    for seed in seeds(0..300) {
        lose_often(&mut world_of(seed, None), &mut counts);
    }
    let Restored { records, interrupted, cut } = counts;
    assert!(
        records > 3000 && interrupted > 300 && cut > 100,
        "{records} batches, {interrupted} interrupted, {cut} cut"
    );
}

pub fn fill(world: &mut World, batches: usize) {
    for _ in 0..batches {
        for stream in [1, 3] {
            assert!(world.append(stream, 15_000, Durability::Synced));
        }
        world.settle();
        while world.parts.preparer.turn() {}
        drop(world.parts.uploader.turn());
    }
    rest(world);
}

#[test]
fn the_restored_log_goes_on_behind_its_objects() {
    let mut world = World::tiered(1);
    fill(&mut world, 60);
    let (known, before) = (snapshot(&world), world.objects());
    let generation = world.parts.log.shared().next_generation();
    let disk = SimDisk::new(2);
    let log = restored(&world, &disk, &known, false).unwrap();
    assert_eq!((log.objects, log.last_stream), (before.len(), Some(StreamId(3))));
    assert!(log.findings.is_empty() && log.others.is_empty(), "{:?}", log.findings);
    assert!(log.streams.values().all(|stream| stream.missing.is_empty()));
    // It is a log now, and nothing to restore into.
    assert!(matches!(restored(&world, &disk, &known, false), Err(RestoreError::Exists)));
    go_on(&mut world, disk, &log, &HashMap::new());
    assert!(world.parts.log.shared().next_generation() > generation + (1 << 31));
    fill(&mut world, 20);
    let keys = world.objects();
    assert!(keys.len() > before.len() && keys.starts_with(&before));
    world.strike(Left::PowerCut);
    world.compare();
}

#[test]
fn objects_do_not_count_without_those_they_were_built_behind() {
    for seed in [1, 2, 3] {
        let world = world_with_an_object_in_the_way(seed);
        let log = restored(&world, &SimDisk::new(9), &snapshot(&world), false).unwrap();
        check_order(&world, &log);
        let records = [1, DISKLESS, LEADING].map(|id| {
            let stream = &log.streams[&StreamId(id)];
            stream.next > stream.start
        });
        assert_eq!(records, [false, true, false], "seed {seed}");
    }
}

#[test]
fn a_damaged_object_is_named_and_costs_its_records_only_if_that_is_accepted() {
    for (seed, newest) in [(3, false), (4, true)] {
        let mut world = World::tiered(seed);
        fill(&mut world, 60);
        let known = snapshot(&world);
        let keys = world.objects();
        let key = if newest { keys.last() } else { keys.get(keys.len() / 2) }.unwrap().clone();
        let length = world.store().content(&key).unwrap().len();
        world.store().damage(&key, length - 2 * disk::SECTOR + 100);
        let disk = SimDisk::new(5);
        let Err(RestoreError::Damaged(findings)) = restored(&world, &disk, &known, false) else {
            panic!("seed {seed}: it was restored")
        };
        assert!(findings.iter().any(|finding| finding.file == key), "{findings:?}");
        let hits: Vec<StreamId> =
            findings.iter().flat_map(|finding| &finding.hits).map(|hit| hit.stream).collect();
        assert_eq!(hits, [StreamId(1), StreamId(3)]);
        // The same again, without the records that cannot be reached.
        let log = restored(&world, &disk, &known, true).unwrap();
        for stream in log.streams.values() {
            assert_eq!(stream.start == Offset::ZERO, newest, "{stream:?}");
        }
        go_on(&mut world, disk, &log, &HashMap::new());
        fill(&mut world, 20);
        world.compare();
        assert!(!world.objects().contains(&key) || newest);
    }
}

#[test]
fn a_missing_object_is_found_by_the_records_around_it() {
    let mut world = World::tiered(6);
    fill(&mut world, 60);
    let known = snapshot(&world);
    let keys = world.objects();
    for key in [&keys[keys.len() / 2], keys.last().unwrap()] {
        let content = world.store().content(key).unwrap();
        world.store().delete(key).unwrap();
        let refused = restored(&world, &SimDisk::new(7), &known, false);
        let Err(RestoreError::Damaged(findings)) = refused else { panic!("{key} is missing: {refused:?}") };
        assert_eq!(findings[0].hits.len(), 2, "{findings:?}");
        world.store().put_if_absent(key, &[content]).unwrap();
    }
    // Without the oldest object the records look as if retention had deleted them, which is said and no error.
    world.store().delete(&keys[0]).unwrap();
    let log = restored(&world, &SimDisk::new(7), &known, false).unwrap();
    let stream = &log.streams[&StreamId(1)];
    assert_eq!(stream.missing, [(Offset::ZERO, stream.start)]);
}

#[test]
fn streams_that_the_snapshot_does_not_know_are_named_and_left_out() {
    let mut world = World::tiered(8);
    fill(&mut world, 30);
    let mut known = snapshot(&world);
    known.remove(&StreamId(3));
    let end = world.stream(3).bounds().committed;
    let disk = SimDisk::new(9);
    let log = restored(&world, &disk, &known, false).unwrap();
    let other = &log.others[&StreamId(3)];
    assert_eq!((other.start, other.next), (Offset::ZERO, end));
    go_on(&mut world, disk, &log, &HashMap::new());
    assert_eq!(world.stream(3).bounds().committed, Offset::ZERO);
    rest(&mut world);
}

#[test]
fn a_server_that_still_writes_is_noticed() {
    let mut world = World::tiered(10);
    fill(&mut world, 30);
    let known = snapshot(&world);
    let next = world.objects().len() + 1;
    let late = format!("logs/{:032x}/{next:010}", world.options.log_id);
    let store = world.store().clone();
    let bucket: Arc<dyn Bucket> = Arc::new(store.clone());
    let target: Arc<dyn Disk> = Arc::new(SimDisk::new(11));
    let put = |_, _| {
        store.put_if_absent(&late, &[]).unwrap();
    };
    let asking = Asking { bucket: &bucket, threads: 3, pause: &patient, progress: &put };
    let log_id = world.options.log_id;
    let wanted = Restore {
        asking,
        log_id,
        epochs: Epochs::default(),
        streams: &known,
        opens: false,
        accept_loss: false,
        now_ms: 1,
    };
    let log = restore(&target, &wanted).unwrap();
    assert!(log.findings[0].file == late && log.findings[0].what.contains("still writes"), "{log:?}");
}

#[test]
fn a_store_that_is_away_ends_the_restore() {
    let mut world = World::tiered(12);
    fill(&mut world, 10);
    let known = snapshot(&world);
    world.store().set_away(true);
    let bucket: Arc<dyn Bucket> = Arc::new(world.store().clone());
    let target: Arc<dyn Disk> = Arc::new(SimDisk::new(13));
    let impatient: &Pause = &|_: Duration, _: &BucketError| false;
    let asking = Asking { bucket: &bucket, threads: 1, pause: impatient, progress: &|_, _| {} };
    let log_id = world.options.log_id;
    let wanted = Restore {
        asking,
        log_id,
        epochs: Epochs::default(),
        streams: &known,
        opens: false,
        accept_loss: false,
        now_ms: 1,
    };
    assert!(matches!(restore(&target, &wanted), Err(RestoreError::Bucket(BucketError::Unclear(_)))));
}

fn examined(world: &World, known: &bucket::Known) -> (InspectedObjects, VerifiedObjects) {
    let store: Arc<dyn Bucket> = Arc::new(world.store().clone());
    let asking = Asking { bucket: &store, threads: 2, pause: &patient, progress: &|_, _| {} };
    let log_id = world.options.log_id;
    (bucket::inspect(&asking, log_id, known).unwrap(), bucket::verify(&asking, log_id, known).unwrap())
}

/// Merges some objects of a log, whose deletion then takes effect.
pub fn merge(world: &mut World) {
    let shared = world.parts.log.shared.clone();
    let merged = shared.merge_objects(&mut Pacer::new(shared.clone(), false));
    assert!(matches!(merged, Ok(Merged::Queued(_))));
    rest(world);
}

/// Merged objects take the place of those that the list named.
#[test]
fn a_bucket_is_examined_beside_its_server() {
    for read_whole in [true, false] {
        let mut world = World::tiered(21);
        fill(&mut world, 60);
        let (ends, before) = (snapshot(&world), world.objects());
        let known = |id: StreamId| ends.get(&id).copied().flatten();
        let (log_id, world) = (world.options.log_id, RefCell::new(world));
        let store: Arc<dyn Bucket> = Arc::new(world.borrow().store().clone());
        let progress = |done: usize, _: usize| {
            if done == 1 {
                merge(&mut world.borrow_mut());
            }
        };
        let asking = Asking { bucket: &store, threads: 1, pause: &patient, progress: &progress };
        let findings = match read_whole {
            true => bucket::verify(&asking, log_id, &known).unwrap().findings,
            false => bucket::inspect(&asking, log_id, &known).unwrap().findings,
        };
        let after = world.borrow().objects();
        assert!(after.last() > before.last() && after.len() < before.len(), "{before:?} {after:?}");
        assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{findings:?}");
    }
}

#[test]
fn a_bucket_is_examined_without_its_server() {
    let mut world = World::tiered(20);
    fill(&mut world, 60);
    let ends = snapshot(&world);
    let known = |id: StreamId| ends.get(&id).copied().flatten();
    let (inspected, verified) = examined(&world, &known);
    assert!(inspected.findings.is_empty() && verified.findings.is_empty(), "{:?}", verified.findings);
    let batches: u64 = inspected.objects.iter().map(|object| object.batches).sum();
    assert_eq!((batches, verified.checked.batches), (120, 120));
    assert!(inspected.objects.iter().all(|object| object.batch_bytes == object.live_bytes));
    for stream in &inspected.streams {
        assert_eq!(stream.next, world.stream(stream.stream.0).bounds().committed);
    }
    // Records that were deleted are dead, and so is a stream that was deleted.
    let gone = |id: StreamId| known(id).filter(|_| id != StreamId(3));
    let (inspected, _) = examined(&world, &gone);
    assert!(inspected.objects.iter().all(|object| object.live_bytes * 2 < object.batch_bytes + 2000));
    let middle = world.stream(1).bounds().committed.0 / 2;
    let trimmed = |id: StreamId| known(id).map(|known| KnownBounds { start: Offset(middle), ..known });
    let (inspected, _) = examined(&world, &trimmed);
    let dead = inspected.objects.iter().filter(|object| object.live_bytes < object.batch_bytes).count();
    assert!(dead > 10 && dead < inspected.objects.len() - 10, "{dead} of {}", inspected.objects.len());

    // Every kind of damage is a finding.
    let keys = world.objects();
    let key = &keys[keys.len() / 2];
    let length = world.store().content(key).unwrap().len();
    let places =
        [(20, false), (disk::SECTOR + 20, true), (disk::SECTOR + 5000, true), (length - 8000, false)];
    for (at, hits) in places {
        world.store().damage(key, at);
        let (_, verified) = examined(&world, &known);
        let errors: Vec<_> =
            verified.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        let found = errors.iter().find(|finding| finding.file == *key);
        let found = found.unwrap_or_else(|| panic!("byte {at} of {length}: {errors:?}"));
        assert_eq!(!found.hits.is_empty(), hits, "byte {at}: {found:?}");
        world.store().damage(key, at);
    }
    assert!(examined(&world, &known).1.findings.is_empty());
    // An object that is gone is a number, and the records that are missing.
    world.store().delete(key).unwrap();
    let (inspected, verified) = examined(&world, &known);
    for findings in [inspected.findings, verified.findings] {
        assert!(findings[0].severity == Severity::Note && findings[0].what.contains("there is no object"));
        assert_eq!((findings[1].severity, findings[1].hits.len()), (Severity::Error, 2), "{findings:?}");
    }
}
