//! A log that gets another owner while the one before goes on: nothing that was answered is lost, and the former owner answers
//! for nothing that the log does not have.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::Arc;

use disk::{Disk, SimDisk};
use model::{Offset, StreamId};
use objects::sim::Faults;
use objects::{Bucket, BucketError};

use super::crash::seeds;
use super::manifests::write_one;
use super::restore::{Snapshot, go_on, patient, restored, snapshot, some_load, stored_of};
use super::support::{Appended, DISKLESS, Outcome, World};
use crate::epochs::{Epochs, Owned, Seal};
use crate::format::STORED;
use crate::options::Mutation;
use crate::request::Durability;
use crate::segment::file_name;
use crate::tools::restore::{Asking, keep_prefetched, prefetch};
use crate::tools::takeover::{TakeOver, TakeOverError};

/// How often what does not always happen did happen.
#[derive(Default)]
struct Passed {
    /// Batches that came along.
    batches: u64,
    /// Batches of the diskless stream that the former owner had not answered, and that did not come along.
    left: usize,
    /// Takeovers that were given up because of a later one.
    fenced: u32,
    /// Takeovers that used what was fetched before.
    prefetched: u32,
}

/// Takes the log of `world` over while it works on.
fn take_over(world: &mut World, epoch: u32, counts: &mut Passed) -> Owned {
    let bucket = Arc::new(world.store().clone());
    let log_id = world.options.log_id;
    let mut earlier = TakeOver::new(bucket.clone(), log_id, epoch - 1);
    let mut takeover = TakeOver::new(bucket, log_id, epoch);
    let mut earlier_ended = false;
    loop {
        for _ in 0..world.rng.usize(0..6) {
            one_thing(world);
        }
        // Another process takes it over at the same time, in the epoch before. It may be the first to seal.
        if !earlier_ended && world.rng.bool() {
            match earlier.step(&|_, _| false) {
                Ok(owned) => earlier_ended = owned.is_some(),
                Err(TakeOverError::Bucket(BucketError::Unclear(_))) => {}
                Err(TakeOverError::Fenced(by)) => {
                    assert_eq!(by, epoch);
                    (earlier_ended, counts.fenced) = (true, counts.fenced + 1);
                }
                Err(error) => panic!("seed {}: {error}", world.seed),
            }
        }
        match takeover.step(&|_, _| false) {
            Ok(Some(owned)) => return owned,
            Ok(None) | Err(TakeOverError::Bucket(BucketError::Unclear(_))) => {}
            Err(error) => panic!("seed {}: {error}", world.seed),
        }
    }
}

pub fn one_thing(world: &mut World) {
    match world.rng.u8(0..11) {
        10 => write_one(world),
        0..3 => {
            let (stream, body) = (world.rng.u64(0..4), world.rng.usize(0..20_000));
            if world.streams.get(&stream).is_none_or(|model| model.deleted.is_none()) {
                world.append(stream, body, Durability::Synced);
            }
        }
        3..6 => world.turns(3),
        6..8 => drop(world.upload()),
        8 => {
            // The same trim again: the start has moved by now, and perhaps no object says so.
            let last = world.streams.iter().filter(|(_, model)| model.deleted.is_none());
            let last = last.filter_map(|(id, model)| Some((*id, model.trims.last()?.0))).next_back();
            last.into_iter().for_each(|(id, to)| world.trim_to(id, to));
        }
        _ => drop(world.parts.uploader.collect()),
    }
}

/// What a process fetched before it takes the log over, perhaps long before: its disk, and the epochs of that time.
type Prefetched = Option<(SimDisk, Epochs)>;

fn fetch_before(world: &mut World) -> Prefetched {
    let bucket: Arc<dyn Bucket> = Arc::new(world.store().clone());
    let epochs = TakeOver::new(bucket.clone(), world.options.log_id, 1).epochs(&|_, _| false).ok()?;
    let disk = SimDisk::new(world.rng.u64(..));
    let target: Arc<dyn Disk> = Arc::new(disk.clone());
    let asking = Asking { bucket: &bucket, threads: 1, pause: &|_, _| false, progress: &|_, _| {} };
    let left = std::cell::Cell::new(world.rng.usize(0..40));
    let goes_on = || left.replace(left.get().saturating_sub(1)) > 0;
    prefetch(&target, &asking, world.options.log_id, (epochs.clone(), ""), &goes_on).ok()?;
    Some((disk, epochs))
}

/// What the former owners still do.
pub fn former_go_on(world: &mut World) {
    let World { former, rng, .. } = world;
    former.iter_mut().for_each(|former| former.go_on(rng));
}

/// Loads the log, and passes it on a few times.
fn pass_on(world: &mut World, counts: &mut Passed) {
    let mut lost: Vec<Arc<Outcome>> = Vec::new();
    // No offset below is given out again.
    let mut ends: BTreeMap<u64, Offset> = BTreeMap::new();
    let mut prefetched: Prefetched = None;
    for round in 1..=world.rng.u32(1..4) {
        let faults = if world.rng.bool() { Faults::MANY } else { Faults::default() };
        world.store().set_faults(faults);
        some_load(world);
        if prefetched.is_none() || world.rng.bool() {
            prefetched = fetch_before(world);
        }
        // Two epochs a round: a process that takes it over in the first of them may meet this one.
        let owned = take_over(world, 2 * round + 1, counts);
        for _ in 0..world.rng.usize(0..10) {
            one_thing(world);
        }
        let (known, stored) = (snapshot(world), stored_of(world));
        // Some use it only in a later epoch.
        let used = if world.rng.u8(0..3) == 0 { None } else { prefetched.take() };
        let used = used.filter(|(disk, along)| {
            let target: Arc<dyn Disk> = Arc::new(disk.clone());
            keep_prefetched(&target, along, &owned.epochs).unwrap()
        });
        counts.prefetched += u32::from(used.is_some());
        world.options.owned = Some(owned);
        let disk = used.map_or_else(|| SimDisk::new(world.rng.u64(..)), |(disk, _)| disk);
        let seed = world.seed;
        // Only the objects know the bounds.
        let unknown: Snapshot = known.keys().map(|id| (*id, None)).collect();
        let log =
            restored(world, &disk, &unknown, false).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        ends.retain(|id, _| log.streams.contains_key(&StreamId(*id)));
        for (id, found) in &log.streams {
            let (model, end) = (&world.streams[&id.0], ends.entry(id.0).or_default());
            *end = (*end).max(model.visible());
            assert!(found.next >= *end, "seed {seed}: {id} goes on at {}, not at {end}", found.next);
            assert!(found.start >= model.trimmed(), "seed {seed}: records of {id} come back");
            *end = found.next;
        }
        counts.batches += log.streams.values().map(|stream| stream.batches).sum::<u64>();
        if let (Some(model), Some(found)) =
            (world.streams.get(&DISKLESS), log.streams.get(&StreamId(DISKLESS)))
        {
            let gone = model.appended.iter().filter(|appended| appended.end() > found.next);
            let gone: Vec<&Appended> = gone.collect();
            assert!(
                !gone
                    .iter()
                    .any(|gone| gone.outcome.acknowledged() && gone.durability == Durability::Visible),
                "seed {seed}: an answered batch is lost"
            );
            counts.left += gone.len();
            lost.extend(gone.iter().map(|gone| gone.outcome.clone()));
        }
        world.keep_running();
        go_on(world, disk, &log, &stored);
        for _ in 0..40 {
            one_thing(world);
            former_go_on(world);
        }
        world.settle();
        assert!(
            !lost.iter().any(|lost| lost.acknowledged()),
            "seed {seed}: answered after the log had another owner"
        );
        world.store().set_faults(Faults::default());
        world.compare();
    }
}

#[test]
fn a_log_that_gets_another_owner_keeps_what_was_answered() {
    let mut counts = Passed::default();
    for seed in seeds(0..200) {
        let mut world = World::owned(seed, None);
        if seed % 2 == 1 {
            world.put_in_parallel();
        }
        pass_on(&mut world, &mut counts);
    }
    let Passed { batches, left, fenced, prefetched } = counts;
    assert!(
        batches > 2000 && left > 100 && fenced > 20 && prefetched > 50,
        "{batches} batches, {left} left, {fenced} fenced, {prefetched} prefetched"
    );
}

/// An owner that takes any object under its key for its own answers for records that the log does not have.
#[test]
fn a_former_owner_that_does_not_look_is_noticed() {
    let harmed = |seed: u64| {
        let run = || pass_on(&mut World::owned(seed, Some(Mutation::TrustsTaken)), &mut Passed::default());
        catch_unwind(run).is_err()
    };
    assert!((0..60).any(harmed));
}

/// An object of which nothing is live may be the only one that says where a stream begins and ends.
#[test]
fn bounds_that_go_with_a_dead_object_are_missed() {
    let harmed = |seed: u64| {
        let run = || pass_on(&mut World::owned(seed, Some(Mutation::ForgetsBounds)), &mut Passed::default());
        catch_unwind(run).is_err()
    };
    assert!((0..200).any(harmed));
}

/// They have the numbers of objects of later epochs.
#[test]
fn what_was_fetched_behind_a_seal_is_of_no_use() {
    let epochs = |seals: &[(u32, u32, u32)]| {
        let seal = |epoch| Seal { log_id: 1, epoch, owner: 1 };
        Epochs::along(&seals.iter().map(|(of, number, next)| (*of, (*number, seal(*next)))).collect())
    };
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    for number in 2..=8 {
        disk.create(&file_name(STORED | number), 4096).unwrap();
    }
    let along = epochs(&[(0, 1, 1)]);
    assert!(!keep_prefetched(&disk, &along, &epochs(&[(0, 1, 2), (2, 5, 3)])).unwrap(), "another chain");
    assert!(!keep_prefetched(&disk, &along, &along).unwrap(), "no epoch behind");
    assert!(keep_prefetched(&disk, &along, &epochs(&[(0, 1, 1), (1, 5, 3), (3, 6, 4)])).unwrap());
    let mut left = disk.list().unwrap();
    left.sort_unstable();
    assert_eq!(left, [2, 3, 4].map(|number| file_name(STORED | number)));
}

#[test]
fn an_epoch_has_one_owner() {
    let world = World::owned(1, None);
    let bucket = Arc::new(world.store().clone());
    let log_id = world.options.log_id;
    let error = TakeOver::new(bucket.clone(), log_id, 1).finish(&patient).unwrap_err();
    assert!(matches!(error, TakeOverError::Fenced(1)), "{error}");
    TakeOver::new(bucket.clone(), log_id, 7).finish(&patient).unwrap();
    let error = TakeOver::new(bucket, log_id, 5).finish(&patient).unwrap_err();
    assert!(matches!(error, TakeOverError::Fenced(7)), "{error}");
}

#[test]
fn an_owner_that_stores_nothing_can_ask_whether_it_still_is_one() {
    let mut world = World::owned(1, None);
    world.append(DISKLESS, 100, Durability::Synced);
    let objects = |world: &World| world.parts.log.statistics().objects_stored;
    let work = |world: &mut World| {
        for _ in 0..20 {
            world.turns(3);
            drop(world.upload());
        }
    };
    work(&mut world);
    let before = objects(&world);
    world.parts.log.prove_ownership();
    work(&mut world);
    assert_eq!((objects(&world), world.parts.log.is_fenced()), (before + 1, false));
    let bucket = Arc::new(world.store().clone());
    TakeOver::new(bucket, world.options.log_id, 2).finish(&patient).unwrap();
    work(&mut world);
    assert!(!world.parts.log.is_fenced(), "it has heard nothing");
    world.parts.log.prove_ownership();
    work(&mut world);
    assert!(world.parts.log.is_fenced());
}
