//! Long runs over many segments: rolls, retention, recycling, deletion, reads and searches during writes. Crashes,
//! kills and clean stops come in between, also during recovery itself.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use disk::sim::Fault;
use disk::{AlignedBuffer, Disk, SimDisk};
use model::Timestamp;

use super::crash::seeds;
use super::support::{Left, World, open, small_options};
use crate::format::SegmentHeader;
use crate::options::Options;
use crate::recovery;
use crate::request::Durability;

/// Counts of the events in the runs. A test that no longer exercises an event must fail.
#[derive(Default, Debug)]
pub struct Seen {
    rolls: u64,
    recycled: u64,
    sealed_at_open: u64,
    scanned_at_open: u64,
    unsealed_at_open: u64,
    dropped_blocks: u64,
    failed_opens: u64,
    large_batches: u64,
    clean_stops: u64,
    cleaned: u64,
    compacted: u64,
    failed_rewrites: u64,
    cleaned_at_open: u64,
}

impl Seen {
    fn count(&mut self, world: &World) {
        let report = world.parts.log.recovery();
        self.sealed_at_open += report.sealed_segments as u64;
        self.scanned_at_open += report.scanned_segments as u64;
        self.unsealed_at_open += u64::from(report.scanned_segments > 1);
        self.dropped_blocks += report.dropped_blocks as u64;
        self.cleaned_at_open += report.cleaned_segments as u64;
    }

    /// Counts the rolls and the recycled files of a whole run, by the names and generations that it leaves.
    fn count_segments(&mut self, world: &World) {
        let names = world.disk.list().unwrap();
        let sequences = names.iter().filter_map(|name| crate::segment::sequence_of(name));
        let sequences = sequences.filter(|sequence| !crate::segment::is_cleaned(*sequence));
        let newest = u64::from(sequences.max().unwrap());
        self.rolls += newest.saturating_sub(3);
        self.recycled += newest.saturating_sub(names.len() as u64);
        let generations: HashSet<u64> =
            names.iter().filter_map(|name| generation(&world.disk, name)).collect();
        let files = names.iter().filter(|name| crate::segment::sequence_of(name).is_some()).count();
        assert_eq!(generations.len(), files, "seed {}: every file has a generation of its own", world.seed);
    }
}

fn generation(disk: &SimDisk, name: &str) -> Option<u64> {
    let mut sector = AlignedBuffer::zeroed(4096);
    disk.open(name).unwrap().read_at(0, &mut sector).unwrap();
    crate::segment::sequence_of(name).map(|_| SegmentHeader::decode(&sector).unwrap().generation)
}

/// Ids of the streams. A deleted stream gets a new id at the end, because ids are never reused.
struct Slots([u64; 6]);

impl Slots {
    fn pick(&self, world: &mut World) -> u64 {
        *world.rng.choice(self.0).as_ref().unwrap()
    }

    fn delete(&mut self, world: &mut World) {
        let at = world.rng.usize(0..self.0.len());
        world.delete(self.0[at]);
        self.0[at] += 6;
    }
}

fn work(world: &mut World, slots: &mut Slots, seen: &mut Seen, rewrites: bool) {
    for _ in 0..world.rng.usize(1..150) {
        let stream = slots.pick(world);
        if rewrites && world.rng.u8(..) < 16 {
            rewrite(world, slots, seen);
        }
        world.clock.ms.fetch_add(world.rng.i64(0..2000), Ordering::Relaxed);
        let durability = if world.rng.bool() { Durability::Written } else { Durability::Synced };
        match world.rng.u8(0..100) {
            0..47 => {
                let body = world.rng.usize(0..30_000);
                world.append(stream, body, durability);
            }
            47..54 => {
                let body = world.rng.usize(30_000..world.options.batch_bytes_max() - 61);
                seen.large_batches += u64::from(world.append(stream, body, durability));
            }
            54..58 => world.trim(stream),
            58..67 => {
                let now = world.clock.ms.load(Ordering::Relaxed);
                let oldest = (world.rng.bool()).then_some(Timestamp(now - world.rng.i64(0..400_000)));
                let bytes_max = (world.rng.bool()).then_some(world.rng.u64(0..800_000));
                world.retain(stream, oldest, bytes_max);
            }
            67 => slots.delete(world),
            68..73 => world.search(stream),
            73..80 => world.read_somewhere(stream),
            _ => {
                let turns = world.rng.usize(1..5);
                world.turns(turns);
            }
        }
    }
}

/// Cleans and compacts, sometimes on a disk that fails or is full.
fn rewrite(world: &mut World, slots: &Slots, seen: &mut Seen) {
    let fault = if world.rng.u8(..) < 40 { Fault::Forever } else { Fault::Once };
    match world.rng.u8(0..10) {
        0 => world.disk.fail_write_after(world.rng.u64(0..12), fault),
        1 => world.disk.fail_sync_after(0, fault),
        2 => world.disk.set_capacity(world.rng.u64(0..1 << 23)),
        3 => world.disk.fail_reads(None, fault),
        _ => {}
    }
    let worked = if world.rng.bool() {
        let ids: Vec<u64> = (0..world.rng.usize(1..4)).map(|_| slots.pick(world)).collect();
        let worked = world.compact(&ids);
        seen.compacted += u64::from(worked);
        worked
    } else {
        let before = seen.cleaned;
        while world.clean() {
            seen.cleaned += 1;
        }
        seen.cleaned > before
    };
    seen.failed_rewrites += u64::from(!worked);
    world.disk.clear_faults();
    world.disk.set_capacity(1 << 40);
}

/// Opens the log with failing writes or syncs, or stops before the first block of the new epoch, so that the next
/// opening meets an interrupted recovery.
fn crash_while_opening(world: &mut World, mut disk: SimDisk, seen: &mut Seen) -> SimDisk {
    for _ in 0..world.rng.usize(0..3) {
        match world.rng.u8(0..3) {
            0 => drop(
                recovery::recover(&disk, None, 0)
                    .unwrap_or_else(|error| panic!("seed {}: {error}", world.seed)),
            ),
            1 => disk.fail_write_after(world.rng.u64(0..6), Fault::Forever),
            _ => disk.fail_sync_after(world.rng.u64(0..6), Fault::Forever),
        }
        seen.failed_opens += u64::from(open(&disk, &world.options, &world.clock).is_err());
        disk = disk.crash(world.rng.u64(..));
    }
    disk
}

pub fn run(seed: u64, seen: &mut Seen, rewrites: bool) -> World {
    let segment_bytes = if seed.is_multiple_of(2) { 1 << 20 } else { 1 << 19 };
    let mut world = World::with(seed, Options { segment_bytes, ..small_options() }, SimDisk::new(seed));
    if seed.is_multiple_of(3) {
        world.disk.set_tear_bytes(512);
    }
    let mut slots = Slots(std::array::from_fn(|at| at as u64));
    for _ in 0..8 {
        work(&mut world, &mut slots, seen, rewrites);
        if world.rng.bool() {
            world.settle();
            world.compare();
        }
        match world.rng.u8(0..10) {
            0..3 => world.strike(Left::Killed),
            3..5 => {
                world.close();
                seen.clean_stops += 1;
                world.strike(Left::PowerCut);
            }
            5..8 => world.strike(Left::PowerCut),
            8 => {
                let next = world.rng.u64(..);
                let disk = world.disk.crash(next);
                let disk = crash_while_opening(&mut world, disk, seen);
                world.reopen(disk, Left::PowerCut).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            _ => {
                // A kill, and a power cut during the next opening: only synced data may be relied on.
                let disk = world.disk.restart();
                let disk = crash_while_opening(&mut world, disk, seen);
                let disk = disk.crash(world.rng.u64(..));
                world.reopen(disk, Left::PowerCut).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        }
        seen.count(&world);
    }
    world.settle();
    world.compare();
    seen.count_segments(&world);
    world
}

#[test]
fn many_segments_keep_what_was_synced_through_everything() {
    let mut seen = Seen::default();
    let seeds = seeds(0..120);
    for seed in seeds.clone() {
        run(seed, &mut seen, false);
    }
    let runs = seeds.end - seeds.start;
    if runs >= 20 {
        println!("{runs} runs: {seen:?}");
        assert!(seen.rolls > 5 * runs, "segments roll: {seen:?}");
        assert!(seen.recycled > 2 * runs, "dead segments are used again: {seen:?}");
        assert!(seen.sealed_at_open > 4 * runs && seen.scanned_at_open > 4 * runs, "{seen:?}");
        assert!(seen.unsealed_at_open > runs / 20, "several segments were unsealed: {seen:?}");
        assert!(seen.dropped_blocks > runs && seen.failed_opens > runs / 4, "{seen:?}");
        assert!(seen.large_batches > 5 * runs && seen.clean_stops > runs / 2, "{seen:?}");
    }
}

#[test]
fn cleaning_and_compaction_keep_what_they_must_through_everything() {
    let mut seen = Seen::default();
    let seeds = seeds(0..150);
    for seed in seeds.clone() {
        run(seed, &mut seen, true);
    }
    let runs = seeds.end - seeds.start;
    if runs >= 20 {
        println!("{runs} runs: {seen:?}");
        assert!(seen.cleaned > 2 * runs && seen.compacted > 4 * runs, "{seen:?}");
        assert!(seen.failed_rewrites > runs && seen.cleaned_at_open > 4 * runs, "{seen:?}");
    }
}

#[test]
fn the_same_seed_leaves_the_same_bytes() {
    let image = |seed| {
        let world = run(seed, &mut Seen::default(), seed.is_multiple_of(2));
        let mut names = world.disk.list().unwrap();
        names.sort();
        let crcs: Vec<(String, u32)> = names
            .into_iter()
            .map(|name| {
                let file = world.disk.open(&name).unwrap();
                let mut bytes = vec![0; usize::try_from(file.length()).unwrap()];
                file.read_at(0, &mut bytes).unwrap();
                (name, model::crc32c(&bytes))
            })
            .collect();
        (crcs, world.disk.counters())
    };
    for seed in 0..4 {
        assert_eq!(image(seed), image(seed), "seed {seed}");
    }
}
