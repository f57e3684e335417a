//! Manifests spare requests, and nothing else depends on them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use disk::{Disk, SimDisk};
use model::{Offset, StreamId};
use objects::{Bucket, CountedBucket, RequestKind, SimBucket};

use super::restore::{Snapshot, fill, go_on, merge, patient, snapshot, stored_of};
use super::support::World;
use super::tier::rest;
use crate::cleaner::Manifests;
use crate::epochs::Epochs;
use crate::pacer::Pacer;
use crate::segment::manifest::{Entry, ManifestKey, decode, encode};
use crate::tools::restore::{Asking, Restore, RestoredLog, restore};

/// Writes all manifests that are due, and deletes the others.
pub fn write(world: &World) {
    let shared = &world.parts.log.shared;
    let (mut manifests, mut pacer) = (Manifests::new(shared.clone()), Pacer::new(shared.clone(), false));
    while manifests.turn(&mut pacer).unwrap() {}
}

/// Writes a manifest that is due, if the store takes it.
pub fn write_one(world: &World) {
    let shared = &world.parts.log.shared;
    drop(Manifests::new(shared.clone()).turn(&mut Pacer::new(shared.clone(), false)));
}

/// The keys of the manifests in the bucket.
fn keys(world: &World) -> Vec<ManifestKey> {
    world
        .store()
        .keys()
        .iter()
        .filter_map(|key| key.strip_prefix("manifests/"))
        .filter_map(ManifestKey::parse)
        .collect()
}

/// Restores the log, and counts what is read of the bucket.
fn counted(world: &World, bucket: &SimBucket, known: &Snapshot) -> (SimDisk, RestoredLog, u64) {
    let counted = Arc::new(CountedBucket::new(Arc::new(bucket.clone())));
    let (bucket, disk): (Arc<dyn Bucket>, _) = (counted.clone(), SimDisk::new(7));
    let target: Arc<dyn Disk> = Arc::new(disk.clone());
    let asking = Asking { bucket: &bucket, threads: 2, pause: &patient, progress: &|_, _| {} };
    let (log_id, now_ms, epochs) = (world.options.log_id, 1_700_000_000_000, Epochs::default());
    let log = restore(
        &target,
        &Restore { asking, log_id, epochs, streams: known, opens: false, accept_loss: false, now_ms },
    );
    (disk, log.unwrap(), counted.requests(RequestKind::Get))
}

fn bounds(log: &RestoredLog) -> Vec<(StreamId, Offset, Offset)> {
    let mut all: Vec<_> = log.streams.iter().map(|(id, stream)| (*id, stream.start, stream.next)).collect();
    all.sort_unstable();
    all
}

/// Another manifest under the key of one that is there.
fn replace(bucket: &SimBucket, key: &str, entries: &[Entry]) {
    bucket.delete(key).unwrap();
    bucket.put_if_absent(key, &[Bytes::from(encode(42, entries))]).unwrap();
}

#[test]
fn a_restore_reads_manifests_in_place_of_objects() {
    let mut world = World::tiered(1);
    fill(&mut world, 60);
    let (known, objects) = (snapshot(&world), world.objects().len());
    let (_, without, all) = counted(&world, &world.store().clone(), &known);
    assert!(all >= objects as u64, "{all} reads of {objects} objects");
    write(&world);
    // What is in a long stretch is in no short one, and the newest objects are in none.
    let there = keys(&world);
    let long = there.iter().filter(|key| key.stretch.numbers().len() == 16).count();
    let covered = |key: &ManifestKey| there.iter().any(|other| other.stretch.covers(key.stretch));
    assert!(long > 1 && !there.iter().any(covered), "{there:?}");
    let (disk, with, some) = counted(&world, &world.store().clone(), &known);
    assert!(some * 2 < all, "{some} reads with manifests, {all} without");
    assert_eq!(bounds(&with), bounds(&without));
    assert!(with.findings.is_empty(), "{:?}", with.findings);
    let stored = stored_of(&world);
    go_on(&mut world, disk, &with, &stored);
}

#[test]
fn a_manifest_that_is_wrong_costs_requests_alone() {
    let mut world = World::tiered(3);
    fill(&mut world, 60);
    let known = snapshot(&world);
    let (_, without, all) = counted(&world, &world.store().clone(), &known);
    write(&world);
    let (_, _, some) = counted(&world, &world.store().clone(), &known);
    let manifests: Vec<String> =
        world.store().keys().into_iter().filter(|key| key.starts_with("manifests/")).collect();
    let content = |key: &String| world.store().content(key).unwrap();
    let entries: HashMap<String, Vec<Entry>> =
        manifests.iter().map(|key| (key.clone(), decode(42, &content(key)).unwrap())).collect();
    let change = |entry: &mut dyn FnMut(&mut Entry)| {
        for (key, entries) in &entries {
            let mut changed = entries.clone();
            changed.iter_mut().for_each(&mut *entry);
            replace(world.store(), key, &changed);
        }
        let (_, log, reads) = counted(&world, &world.store().clone(), &known);
        assert_eq!(bounds(&log), bounds(&without));
        reads
    };
    // As they are; the same keys of other objects: of another epoch, of another length; other local files.
    assert_eq!(change(&mut |_| {}), some);
    let useless = all + manifests.len() as u64;
    assert_eq!(change(&mut |entry| entry.epoch = 1), useless);
    assert_eq!(change(&mut |entry| entry.length += disk::SECTOR as u64), useless);
    assert_eq!(change(&mut |entry| entry.number += 1), useless);
    assert_eq!(
        change(&mut |entry| entry.local = entry.local.slice(..entry.local.len() - disk::SECTOR)),
        useless
    );
    let mut at = 0;
    let other_byte = &mut |entry: &mut Entry| {
        let mut bytes = entry.local.to_vec();
        at = (at + 997) % (disk::SECTOR / 2);
        let end = bytes.len() - disk::SECTOR + at % 40;
        bytes[end] ^= 1;
        entry.local = bytes.into();
    };
    assert_eq!(change(other_byte), useless);
    for key in &manifests {
        replace(world.store(), key, &entries[key]);
        world.store().damage(key, 100);
    }
    let (disk, log, reads) = counted(&world, &world.store().clone(), &known);
    assert_eq!((bounds(&log), reads), (bounds(&without), useless));
    let stored = stored_of(&world);
    go_on(&mut world, disk, &log, &stored);
}

#[test]
fn manifests_name_objects_that_are_no_more_and_go_with_the_last_of_them() {
    let mut world = World::tiered(5);
    fill(&mut world, 60);
    write(&world);
    let before = keys(&world);
    // Merged objects take the place of those that the manifests name.
    merge(&mut world);
    let known = snapshot(&world);
    let (_, log, _) = counted(&world, &world.store().clone(), &known);
    assert!(log.findings.is_empty(), "{:?}", log.findings);
    for stream in [1, 3] {
        let end = world.stream(stream).bounds().committed;
        world.trim_to(stream, end);
    }
    fill(&mut world, 3);
    rest(&mut world);
    write(&world);
    let left = keys(&world);
    assert!(before.len() > 2 && left.len() < before.len(), "{before:?}, then {left:?}");
    let live = world.parts.log.shared().segments.all_stored();
    let has_one = |key: &ManifestKey| {
        live.iter()
            .any(|segment| key.stretch.numbers().contains(&(segment.sequence & !crate::format::STORED)))
    };
    assert!(left.iter().all(has_one), "{left:?}");
    world.compare();
}
