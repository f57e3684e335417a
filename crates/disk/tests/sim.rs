//! The guarantees of a simulated disk, and the faults that it may show beyond them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use disk::sim::Fault;
use disk::{AlignedBuffer, Disk, File, Finished, Queue, SECTOR, SimDisk};

const LENGTH: u64 = 64 * SECTOR as u64;

fn filled(sectors: usize, value: u8) -> Bytes {
    let mut buffer = AlignedBuffer::zeroed(sectors * SECTOR);
    buffer.fill(value);
    buffer.into_bytes()
}

fn contents(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name).unwrap();
    let mut bytes = vec![0; usize::try_from(file.length()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// A disk with one file whose name is durable.
fn disk_with_file(seed: u64) -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::new(seed);
    disk.create("new", LENGTH).unwrap();
    disk.rename("new", "a").unwrap();
    let file = disk.open("a").unwrap();
    (disk, file)
}

fn finish_all(queue: &mut dyn Queue) -> Vec<Finished> {
    let mut finished = Vec::new();
    while queue.in_flight() > 0 {
        let before = finished.len();
        queue.wait(true, None, &mut finished).unwrap();
        assert!(finished.len() > before);
    }
    finished
}

#[test]
fn synced_writes_survive_and_unsynced_ones_may_not() {
    let mut kept = [0; 4];
    for seed in 0..200 {
        let (disk, file) = disk_with_file(seed);
        let mut queue = disk.queue(8).unwrap();
        queue.write(0, &file, 0, filled(1, 1), true);
        queue.write(1, &file, 4096, filled(1, 2), false);
        assert_eq!(finish_all(&mut *queue).len(), 2);
        queue.sync(2, &file);
        finish_all(&mut *queue);
        queue.write(3, &file, 8192, filled(1, 3), false);
        finish_all(&mut *queue);
        file.write_at(12288, &filled(1, 4)).unwrap();
        assert_eq!(contents(&disk, "a")[12288], 4, "reads see completed writes");
        let after = contents(&disk.crash(seed), "a");
        for (sector, kept) in kept.iter_mut().enumerate() {
            *kept += usize::from(after[sector * SECTOR] == sector as u8 + 1);
        }
    }
    assert_eq!(&kept[..2], &[200, 200]);
    assert!(kept[2..].iter().all(|kept| (50..150).contains(kept)), "{kept:?}");
}

#[test]
fn writes_in_flight_are_kept_dropped_or_torn_by_a_power_cut() {
    let (mut whole, mut none, mut prefix, mut torn) = (0, 0, 0, 0);
    for seed in 0..400 {
        let (disk, file) = disk_with_file(seed);
        let mut queue = disk.queue(1).unwrap();
        queue.write(0, &file, 0, filled(8, 7), true);
        let after = contents(&disk.crash(seed), "a");
        let sectors: Vec<bool> = after.chunks(SECTOR).take(8).map(|sector| sector[0] == 7).collect();
        assert!(after.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        match sectors.iter().filter(|kept| **kept).count() {
            0 => none += 1,
            8 => whole += 1,
            count if sectors[..count].iter().all(|kept| *kept) => prefix += 1,
            _ => torn += 1,
        }
        let finished = finish_all(&mut *queue);
        assert!(finished[0].result.is_err(), "the old disk is dead");
    }
    assert!([whole, none, prefix, torn].iter().all(|count| *count > 40), "{whole} {none} {prefix} {torn}");
}

#[test]
fn a_sector_tears_at_512_bytes_only_when_asked() {
    let mut mixed = 0;
    for seed in 0..100 {
        let (disk, file) = disk_with_file(seed);
        disk.set_tear_bytes(512);
        file.write_at(0, &filled(4, 9)).unwrap();
        let after = contents(&disk.crash(seed), "a");
        assert!(after.chunks(512).all(|unit| unit.iter().all(|byte| *byte == unit[0])));
        mixed += usize::from(after.chunks(SECTOR).any(|sector| sector.iter().any(|byte| *byte != sector[0])));
    }
    assert!(mixed > 20, "{mixed}");
}

#[test]
fn a_sync_covers_only_writes_reported_before_it_started() {
    let mut lost = 0;
    for seed in 0..100 {
        let (disk, file) = disk_with_file(seed);
        let mut queue = disk.queue(2).unwrap();
        queue.write(0, &file, 0, filled(1, 1), false);
        queue.sync(1, &file);
        finish_all(&mut *queue);
        lost += usize::from(contents(&disk.crash(seed), "a")[0] == 0);
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn kill_keeps_completed_writes_and_whole_ones_in_flight() {
    let mut kept = 0;
    for seed in 0..100 {
        let (disk, file) = disk_with_file(seed);
        disk.create("unsynced name", LENGTH).unwrap();
        file.write_at(0, &filled(4, 1)).unwrap();
        let mut queue = disk.queue(1).unwrap();
        queue.write(0, &file, 16384, filled(4, 2), true);
        let after = disk.restart();
        assert_eq!(after.list().unwrap(), ["a", "unsynced name"]);
        assert!(file.write_at(0, &filled(1, 1)).is_err());
        assert!(disk.list().is_err());
        let bytes = contents(&after, "a");
        assert!(bytes[..16384].iter().all(|byte| *byte == 1));
        assert!(bytes[16384..32768].iter().all(|byte| *byte == bytes[16384]));
        kept += usize::from(bytes[16384] == 2);
        let lost = contents(&after.crash(seed), "a")[..16384].contains(&0);
        kept += 1000 * usize::from(lost);
    }
    assert!((20..80).contains(&(kept % 1000)), "{kept}");
    assert!(kept / 1000 > 20, "completed writes are still not durable: {kept}");
}

#[test]
fn names_are_durable_after_rename_or_remove() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        for name in ["a", "b", "c"] {
            disk.create(name, 4096).unwrap();
        }
        disk.remove("b").unwrap();
        disk.rename("c", "a").unwrap();
        disk.create("d", 4096).unwrap();
        assert_eq!(disk.create("d", 4096).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(disk.open("b").unwrap_err().kind(), ErrorKind::NotFound);
        match disk.crash(seed).list().unwrap().len() {
            1 => lost += 1,
            count => assert_eq!(count, 2),
        }
    }
    assert!((20..80).contains(&lost), "{lost}");
}

#[test]
fn reopened_after_replacing_rename_reads_the_new_file() {
    let disk = SimDisk::new(1);
    let old = disk.create("a", 4096).unwrap();
    old.write_at(0, &filled(1, 1)).unwrap();
    disk.create("b", 8192).unwrap().write_at(0, &filled(2, 2)).unwrap();
    disk.rename("b", "a").unwrap();
    assert_eq!(contents(&disk, "a"), vec![2; 8192]);
    let mut bytes = vec![0; 4096];
    old.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, vec![1; 4096], "an open file outlives its name");
}

/// Random operations; returns everything a caller could observe.
fn run(seed: u64) -> (Vec<(u64, bool)>, Vec<u8>, Vec<u8>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (disk, file) = disk_with_file(seed);
    disk.fail_write_after(30, Fault::Once);
    disk.fail_sync_after(5, Fault::Once);
    let mut queues = [disk.queue(8).unwrap(), disk.queue(8).unwrap()];
    let mut finished = Vec::new();
    for token in 0..200 {
        let queue = &mut queues[rng.usize(..2)];
        if queue.in_flight() == 8 || rng.u8(..4) == 0 {
            queue.wait(rng.bool(), Some(Duration::ZERO), &mut finished).unwrap();
        } else if rng.u8(..8) == 0 {
            queue.sync(token, &file);
        } else {
            queue.write(token, &file, rng.u64(..60) * 4096, filled(rng.usize(1..=4), rng.u8(..)), rng.bool());
        }
    }
    let order = finished.iter().map(|finished| (finished.token, finished.result.is_ok())).collect();
    let before = contents(&disk, "a");
    (order, before, contents(&disk.crash(seed), "a"))
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in 0..20 {
        let first = run(seed);
        assert_eq!(first, run(seed), "seed {seed}");
        assert!(first.0.iter().any(|(_, ok)| !ok), "the faults struck, seed {seed}");
        assert!(!first.0.is_sorted(), "completions are reordered, seed {seed}");
        assert_ne!(first.2, run(seed + 1000).2);
    }
}

#[test]
fn capacity_bounds_files() {
    let disk = SimDisk::new(1);
    disk.set_capacity(3 * 4096);
    disk.create("a", 2 * 4096).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 4096);
    assert_eq!(disk.create("b", 2 * 4096).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.list().unwrap(), ["a"]);
    disk.remove("a").unwrap();
    disk.create("b", 2 * 4096).unwrap();
}

#[test]
fn faults_strike_when_asked() {
    let (disk, file) = disk_with_file(1);
    disk.fail_write_after(1, Fault::Once);
    file.write_at(0, &filled(1, 1)).unwrap();
    assert!(file.write_at(4096, &filled(1, 1)).is_err());
    file.write_at(8192, &filled(1, 1)).unwrap();
    disk.fail_sync_after(0, Fault::Forever);
    assert!(file.sync().is_err() && file.sync().is_err());
    disk.clear_faults();
    file.sync().unwrap();
    let other = disk.create("b", 4096).unwrap();
    let mut sector = [0; SECTOR];
    disk.fail_reads(Some("a"), Fault::Once);
    other.read_at(0, &mut sector).unwrap();
    assert!(file.read_at(0, &mut sector).is_err());
    file.read_at(0, &mut sector).unwrap();
    disk.fail_reads(None, Fault::Forever);
    assert!(other.read_at(0, &mut sector).is_err() && file.read_at(0, &mut sector).is_err());
    disk.fail_reads_of("a", 5000..5001);
    assert!(file.read_at(4096, &mut sector).is_err() && file.read_at(4096, &mut sector).is_err());
    disk.clear_faults();
    assert_eq!(other.read_at(4096, &mut sector).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let counters = disk.counters();
    assert_eq!((counters.writes, counters.syncs, counters.reads, counters.bytes_written), (2, 1, 2, 8192));
}

#[test]
fn corruption_reaches_readers_and_the_medium() {
    let (disk, file) = disk_with_file(1);
    file.write_at(0, &filled(2, 0)).unwrap();
    file.sync().unwrap();
    disk.flip_bit("a", 4097, 3);
    disk.damage("a", 10..4000);
    let bytes = contents(&disk, "a");
    assert_eq!(bytes[4097], 8);
    assert!(bytes[..10].iter().chain(&bytes[4000..4097]).all(|byte| *byte == 0));
    assert!(bytes[10..4000].iter().filter(|byte| **byte != 0).count() > 3000);
    assert_eq!(contents(&disk.crash(1), "a"), bytes);
}

#[test]
fn a_disk_that_lies_loses_synced_writes() {
    let mut lost = 0;
    for seed in 0..100 {
        let (disk, file) = disk_with_file(seed);
        disk.lie_about_sync(true);
        let mut queue = disk.queue(1).unwrap();
        queue.write(0, &file, 0, filled(1, 1), true);
        assert!(finish_all(&mut *queue)[0].result.is_ok());
        file.sync().unwrap();
        lost += usize::from(contents(&disk.crash(seed), "a")[0] == 0);
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn a_large_file_costs_little_memory_and_reads_as_zeros() {
    let disk = SimDisk::new(1);
    let file = disk.create("a", 1 << 30).unwrap();
    let mut bytes = vec![1; 8192];
    file.read_at((1 << 30) - 8192, &mut bytes).unwrap();
    assert_eq!(bytes, vec![0; 8192]);
    file.write_at((1 << 30) - 4096, &filled(1, 5)).unwrap();
    file.read_at((1 << 30) - 8192, &mut bytes).unwrap();
    assert_eq!((bytes[4095], bytes[4096], bytes[8191]), (0, 5, 5));
}

#[test]
fn waker_ends_a_wait_with_nothing_in_flight() {
    let disk = SimDisk::new(1);
    let mut queue = disk.queue(1).unwrap();
    let (sent, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (waker, counts) = (queue.waker(), (sent.clone(), seen.clone()));
    let thread = std::thread::spawn(move || {
        for round in 1..=10_000 {
            counts.0.store(round, Ordering::Release);
            waker.wake();
            while counts.1.load(Ordering::Acquire) < round {
                std::hint::spin_loop();
                std::thread::yield_now();
            }
        }
    });
    let mut round = 0;
    while round < 10_000 {
        queue.wait(true, Some(Duration::from_secs(20)), &mut Vec::new()).unwrap();
        let now = sent.load(Ordering::Acquire);
        assert!(now > round, "a wake-up was lost in round {round}");
        round = now;
        seen.store(round, Ordering::Release);
    }
    thread.join().unwrap();
    queue.wait(true, Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
    assert_eq!(queue.in_flight(), 0);
}

#[test]
#[should_panic(expected = "operations in flight")]
fn more_than_depth_in_flight_panics() {
    let (disk, file) = disk_with_file(1);
    let mut queue = disk.queue(1).unwrap();
    queue.sync(1, &file);
    queue.sync(2, &file);
}

#[test]
#[should_panic(expected = "is aligned")]
fn unaligned_data_panics() {
    let (disk, file) = disk_with_file(1);
    disk.queue(1).unwrap().write(1, &file, 0, filled(2, 1).slice(1..4097), true);
}

#[test]
fn a_dropped_queue_finishes_its_operations() {
    let (disk, file) = disk_with_file(1);
    let mut queue = disk.queue(4).unwrap();
    queue.write(1, &file, 0, filled(1, 1), true);
    drop(queue);
    assert_eq!(contents(&disk, "a")[0], 1);
}
