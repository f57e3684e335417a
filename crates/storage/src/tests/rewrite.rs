//! Single runs of cleaning and compaction: the space that they free, and their behaviour with damage and full disks.
//! `long.rs` tests that they lose nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use disk::{Disk, SimDisk};
use model::batch::LENGTH_PREFIX_BYTES;
use model::{Offset, StreamId};
use parking_lot::Mutex;

use super::support::{Left, World, open, small_options};
use crate::cleaner::{CompactError, Compaction, RewriteError, RewriteReport, Rewriter, Rewritten, Turn};
use crate::options::Options;
use crate::pacer::Pacer;
use crate::reader::{ReadError, ReadRequest};
use crate::recovery::OpenError;
use crate::request::Durability;

const KEPT: u64 = 1;
const FLEETING: u64 = 2;

/// Appends an eighth of `segments` to a stream that is kept and the rest to one that is trimmed at once.
fn fill_mixed(world: &mut World, segments: u64, clean: bool) -> bool {
    let batches = segments * world.options.segment_bytes / 20_000;
    for n in 0..batches {
        let stream = if n.is_multiple_of(8) { KEPT } else { FLEETING };
        if !world.append(stream, 19_900, Durability::Synced) {
            return false;
        }
        world.settle();
        if n % 40 == 39 {
            let end = world.streams[&FLEETING].synced();
            world.trim_to(FLEETING, end);
            world.settle();
            while clean && world.clean() {}
            while world.parts.preparer.turn() {}
        }
    }
    true
}

fn bytes_on_disk(world: &World) -> u64 {
    let names = world.disk.list().unwrap();
    names.iter().map(|name| world.disk.open(name).unwrap().length()).sum()
}

#[test]
fn records_that_are_kept_do_not_hold_the_space_of_others() {
    let mut used = [0, 0];
    for (clean, used) in [false, true].into_iter().zip(&mut used) {
        let mut world = World::new(5);
        assert!(fill_mixed(&mut world, 40, clean));
        *used = bytes_on_disk(&world);
        world.compare();
        world.strike(Left::PowerCut);
        let live = world.stream(KEPT).bounds().bytes;
        assert!(live > 4 << 20, "{live}");
        if clean {
            // The live data, the active segment, two prepared segments, and spare ones.
            assert!(*used < live * 3 / 2 + (8 << 20), "{used} bytes for {live}");
        }
    }
    assert!(used[0] > used[1] * 2, "without a cleaner it is much more: {used:?}");
}

#[test]
fn a_full_disk_is_cleaned_with_what_is_left_free_for_it() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        disk.set_capacity(10 << 20);
        // With a reserve, the preparer leaves room for the copies.
        let options = Options { reserve_bytes: 4096, ..small_options() };
        let mut world = World::with(seed, options, disk);
        let filled = fill_mixed(&mut world, 7, false);
        // Fill the disk with segments of which an eighth is live.
        while world.append(FLEETING, 19_900, Durability::Synced) {
            world.settle();
            while world.parts.preparer.turn() {}
        }
        let end = world.streams[&FLEETING].synced();
        world.trim_to(FLEETING, end);
        world.settle();
        while world.parts.preparer.turn() {}
        while world.clean() {}
        while world.parts.preparer.turn() {}
        assert!(fill_mixed(&mut world, 3, true), "seed {seed}: it stays full, {filled}");
        world.compare();
        world.strike(Left::PowerCut);
    }
}

fn cleaned_name(world: &World) -> String {
    let names = world.disk.list().unwrap();
    names.into_iter().find(|name| name.ends_with(".cleaned")).expect("something was cleaned")
}

#[test]
fn a_damaged_footer_of_a_cleaned_segment_is_rebuilt_and_damaged_data_is_named() {
    let mut damaged = [0; 3];
    for seed in 0..60 {
        let mut world = World::new(seed);
        fill_mixed(&mut world, 3, true);
        world.compact(&[KEPT]);
        world.close();
        let name = cleaned_name(&world);
        let length = world.disk.open(&name).unwrap().length();
        let index = usize::try_from(seed % 3).unwrap();
        let disk = world.disk.restart();
        // Damage the trailer, the footer before it, or the data.
        match index {
            0 => disk.damage(&name, length - 4096..length - 4000),
            1 => disk.damage(&name, length - 4096 - 300..length - 4096 - 200),
            _ => {
                let at = world.rng.u64(4096..length / 2);
                disk.damage(&name, at..at + 10);
            }
        }
        match open(&disk, &world.options, &world.clock) {
            Ok(parts) => {
                world.parts = parts;
                world.disk = disk;
                if index < 2 {
                    damaged[index] += 1;
                    world.compare();
                    continue;
                }
                let stream = world.stream(KEPT);
                let mut from = stream.bounds().start;
                while from < stream.bounds().committed {
                    let (stream, until) = (stream.clone(), Offset(i64::MAX));
                    let request = ReadRequest { stream, from, until, bytes_max: 1, at_least_one: true };
                    match world.parts.log.read_blocking(&request) {
                        Ok(read) => from = read.next.unwrap_or(from + 1),
                        Err(ReadError::Damaged { lsn, .. }) => {
                            assert!(crate::segment::file_name(lsn.sequence()) == name, "seed {seed}: {lsn}");
                            damaged[2] += 1;
                            break;
                        }
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            }
            Err(OpenError::Damaged { file, .. }) => assert_eq!(file, name, "seed {seed}"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(damaged[0] >= 15 && damaged[1] >= 15 && damaged[2] > 3, "{damaged:?}");
}

#[test]
fn a_segment_that_cannot_be_read_is_left_alone_and_the_others_are_cleaned() {
    for damaged in [true, false] {
        let mut world = World::with(3, Options { tail_cache_bytes: 1, ..small_options() }, SimDisk::new(3));
        fill_mixed(&mut world, 6, false);
        let end = world.streams[&FLEETING].synced();
        world.trim_to(FLEETING, end);
        world.settle();
        // The whole data of the second segment.
        let (name, range) = ("0000000002.log", 4096..900_000);
        if damaged {
            world.disk.damage(name, range);
        } else {
            world.disk.fail_reads_of(name, range);
        }
        let (mut failed, mut cleaned) = (0, 0);
        for _ in 0..20 {
            match world.parts.cleaner.turn() {
                Turn::Failed(_) => failed += 1,
                Turn::Cleaned(_) => cleaned += 1,
                Turn::Idle => break,
            }
        }
        assert!(failed == 1 && cleaned > 0, "{failed} failed, {cleaned} cleaned");
        let shared = world.parts.log.shared();
        assert!(shared.segments.find(2).is_some_and(|segment| segment.live() > 0));
        assert!(shared.segments.find(1).is_none_or(|segment| segment.live() == 0));
        // An error of the device may pass. Damage does not.
        world.disk.clear_faults();
        world.clock.nanos.fetch_add(301_000_000_000, Ordering::Relaxed);
        while world.clean() {}
        let shared = world.parts.log.shared();
        assert_eq!(shared.segments.find(2).is_some_and(|segment| segment.live() > 0), damaged);
    }
}

#[test]
fn a_sector_that_cannot_be_read_costs_the_batches_in_it_and_no_others() {
    for bytes_max in [1, 100_000, 1 << 20] {
        let mut world = World::with(4, Options { tail_cache_bytes: 1, ..small_options() }, SimDisk::new(4));
        for _ in 0..70 {
            assert!(world.append(KEPT, 19_900, Durability::Synced));
            world.settle();
            while world.parts.preparer.turn() {}
        }
        world.disk.fail_reads_of("0000000001.log", 600_000..600_001);
        let stream = world.stream(KEPT);
        let mut bases = world.streams[&KEPT].appended.iter().map(|appended| appended.base);
        let (mut from, mut lost) = (Offset::ZERO, 0);
        while from < stream.bounds().committed {
            let (stream, until) = (stream.clone(), Offset(i64::MAX));
            let request = ReadRequest { stream, from, until, bytes_max, at_least_one: true };
            match world.parts.log.read_blocking(&request) {
                Ok(read) => from = read.next.expect("at least a batch is read"),
                Err(ReadError::Io(_)) => {
                    lost += 1;
                    from = bases.find(|base| *base > from).expect("not the last one");
                }
                Err(error) => panic!("{error}"),
            }
        }
        // The sector may hold the end of one batch and the beginning of the next.
        assert!((1..=2).contains(&lost), "{lost} batches cannot be read, {bytes_max} bytes at once");
        // Each failed read may take a device seconds.
        let failed = world.disk.counters().failed_reads;
        assert!(failed < 10, "{failed} reads failed, {bytes_max} bytes at once");
    }
}

#[test]
fn opening_says_which_records_have_lost_their_segment() {
    for cleaned in [false, true] {
        let mut world = World::new(9);
        fill_mixed(&mut world, 4, cleaned);
        world.close();
        let name = if cleaned { cleaned_name(&world) } else { "0000000002.log".to_owned() };
        let disk = world.disk.restart();
        disk.remove(&name).unwrap();
        match open(&disk, &world.options, &world.clock) {
            Err(OpenError::Lost { stream, from, to }) => {
                assert_eq!(stream, StreamId(KEPT));
                assert!(from < to && to <= world.streams[&KEPT].synced());
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
}

/// Records that compaction removed from a range stay removed, even if nothing of the range is left.
#[test]
fn a_range_that_is_compacted_away_does_not_come_back() {
    struct DropAll;
    impl Rewriter for DropAll {
        fn rewrite(&mut self, _: &model::BatchHeader, _: &Bytes) -> Result<Rewritten, String> {
            Ok(Rewritten::Drop)
        }
    }
    for seed in 0..20 {
        let mut world = World::new(seed);
        for _ in 0..30 {
            world.append(KEPT, 1000, Durability::Synced);
            world.append(3, 3000, Durability::Synced);
        }
        world.settle();
        let stream = world.stream(KEPT);
        let until = stream.bounds().committed;
        let shared = world.parts.log.shared.clone();
        for _ in 0..2 {
            let job = Compaction { stream: stream.clone(), until, rewriter: Box::new(DropAll) };
            let report =
                shared.compact(&mut [job].into_iter(), &mut Pacer::new(shared.clone(), false)).unwrap();
            assert_eq!((report.written_bytes, report.segments), (61, 1));
        }
        for appended in &mut world.streams.get_mut(&KEPT).unwrap().appended {
            appended.versions = vec![None];
        }
        world.compare();
        world.strike(if seed.is_multiple_of(2) { Left::PowerCut } else { Left::Killed });
        assert_eq!(world.stream(KEPT).bounds().bytes, 61);
        assert_eq!(world.stream(KEPT).compacted(), until);
    }
}

/// Makes batches this many times as long, like a client that compresses better than this server.
struct Longer(usize);

impl Longer {
    fn batch(&self, batch: &[u8]) -> Bytes {
        let mut bytes = batch.to_vec();
        bytes.resize(self.0 * batch.len(), 7);
        let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        model::batch::seal_crc(&mut bytes);
        bytes.into()
    }
}

impl Rewriter for Longer {
    fn rewrite(&mut self, _: &model::BatchHeader, batch: &Bytes) -> Result<Rewritten, String> {
        Ok(Rewritten::Replace(self.batch(batch)))
    }
}

fn append_a_segment_and_a_half(world: &mut World) {
    while world.stream(KEPT).bounds().bytes < world.options.segment_bytes * 3 / 2 {
        assert!(world.append(KEPT, 19_900, Durability::Synced));
        world.settle();
        while world.parts.preparer.turn() {}
    }
}

fn compact_kept(world: &World, rewriter: Longer) -> Result<RewriteReport, CompactError> {
    let stream = world.stream(KEPT);
    let until = stream.bounds().committed;
    let shared = world.parts.log.shared.clone();
    let job = Compaction { stream, until, rewriter: Box::new(rewriter) };
    shared.compact(&mut [job].into_iter(), &mut Pacer::new(shared.clone(), false))
}

#[test]
fn a_copy_that_becomes_much_longer_finds_its_room() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        append_a_segment_and_a_half(&mut world);
        let bounds = world.stream(KEPT).bounds();
        assert_eq!(compact_kept(&world, Longer(3)).unwrap().written_bytes, 3 * bounds.bytes);
        assert_eq!(world.stream(KEPT).compacted(), bounds.committed);
        for appended in &mut world.streams.get_mut(&KEPT).unwrap().appended {
            appended.versions =
                appended.versions.iter().map(|v| v.as_deref().map(|v| Longer(3).batch(v))).collect();
        }
        world.compare();
        world.strike(if seed.is_multiple_of(2) { Left::PowerCut } else { Left::Killed });
        world.compare();
    }
}

/// The cleaner would merge the finished and the unfinished part of the stream.
#[test]
fn nothing_is_cleaned_between_two_segments_that_one_stream_is_compacted_into() {
    /// Records how often another thread held the right to copy.
    struct Watching {
        longer: Longer,
        turns: Arc<AtomicUsize>,
        seen: Arc<Mutex<Vec<usize>>>,
    }
    impl Rewriter for Watching {
        fn rewrite(&mut self, header: &model::BatchHeader, batch: &Bytes) -> Result<Rewritten, String> {
            let mut seen = self.seen.lock();
            if seen.is_empty() {
                // A lock is handed over to a thread that has slept for it. Otherwise the same thread usually takes it
                // again.
                std::thread::sleep(Duration::from_millis(3));
            }
            seen.push(self.turns.load(Ordering::SeqCst));
            self.longer.rewrite(header, batch)
        }
    }
    for seed in 0..20 {
        let mut world = World::new(seed);
        append_a_segment_and_a_half(&mut world);
        let shared = world.parts.log.shared.clone();
        let (turns, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let ended = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    let _rewriting = shared.rewriting.lock();
                    turns.fetch_add(1, Ordering::SeqCst);
                }
            });
            let rewriter = Watching { longer: Longer(3), turns: turns.clone(), seen: seen.clone() };
            let stream = world.stream(KEPT);
            let until = stream.bounds().committed;
            let job = Compaction { stream, until, rewriter: Box::new(rewriter) };
            let report = shared.compact(&mut [job].into_iter(), &mut Pacer::new(shared.clone(), false));
            ended.store(true, Ordering::SeqCst);
            report.unwrap()
        });
        let seen = seen.lock();
        assert!(report.segments > 1, "seed {seed}: {report:?}");
        assert!(seen.iter().all(|turns| *turns == seen[0]), "seed {seed}: {seen:?}");
    }
}

#[test]
fn a_copy_that_becomes_longer_than_the_disk_is_given_up() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        disk.set_capacity(12 << 20);
        let mut world = World::with(seed, small_options(), disk);
        append_a_segment_and_a_half(&mut world);
        let used = bytes_on_disk(&world);
        let error = compact_kept(&world, Longer(20)).unwrap_err().error;
        assert!(matches!(error, RewriteError::Full { .. }), "{error}");
        assert_eq!(bytes_on_disk(&world), used);
        world.compare();
        assert!(world.append(KEPT, 1000, Durability::Synced));
        world.settle();
        world.strike(Left::Killed);
        world.compare();
    }
}
