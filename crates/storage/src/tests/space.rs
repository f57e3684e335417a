//! Room: an admitted append is written, on a full disk too; a refused caller is told when there is room; dead data
//! makes room again.

use std::sync::atomic::Ordering;

use disk::{Disk, SimDisk};

use super::crash::seeds;
use super::support::{Left, World, small_options};
use crate::options::Options;
use crate::preparer::spares::Spares;
use crate::request::{AdmitError, Durability};
use crate::segment::REMOVING;
use crate::writer::Patience;

/// Appends to `segments` segments and lets all of them die. Then a minute passes.
fn bunch_dies(world: &mut World, segments: usize) {
    let bytes = usize::try_from(world.options.segment_bytes).unwrap();
    for _ in 0..segments * bytes.div_ceil(60_000) {
        assert!(world.append(1, 60_000, Durability::Synced));
        world.settle();
    }
    let end = world.streams[&1].synced();
    world.trim_to(1, end);
    world.settle();
    world.turns(60);
    pass(world, 60);
}

fn pass(world: &mut World, seconds: u64) {
    world.clock.nanos.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    while world.parts.preparer.turn() {}
}

/// Whether a dead segment is partly removed.
fn is_removing(world: &World) -> bool {
    world.disk.list().unwrap().iter().any(|name| name == REMOVING)
}

/// Segments with a few live bytes die in bunches. Each bunch is reused for the next.
#[test]
fn as_many_dead_segments_are_kept_as_were_lately_wanted() {
    let mut world = World::new(3);
    bunch_dies(&mut world, 8);
    let kept = world.parts.preparer.spares();
    assert!((6..=9).contains(&kept), "{kept} of 8");
    // Reused segments were wanted too, even if no new file was made for long.
    let files = world.disk.list().unwrap().len();
    for round in 0..8 {
        bunch_dies(&mut world, 8);
        assert_eq!(world.disk.list().unwrap().len(), files, "round {round}");
    }
    pass(&mut world, 301);
    assert_eq!(world.parts.preparer.spares(), 4);
    world.compare();
    world.strike(Left::PowerCut);
}

#[test]
fn dead_segments_take_no_more_than_they_leave_free() {
    let mut world = World::new(4);
    bunch_dies(&mut world, 12);
    let kept = world.parts.preparer.spares();
    assert!(kept >= 10, "{kept} of 12");
    let files = world.disk.list().unwrap().len();
    // Other files have filled the disk, except for five segments.
    world.disk.set_capacity((u64::try_from(files).unwrap() + 5) * world.options.segment_bytes);
    pass(&mut world, 1);
    let (left, removed) = (world.parts.preparer.spares(), files - world.disk.list().unwrap().len());
    assert_eq!(left + removed, kept);
    let free = 5 + removed;
    assert!(left <= free && left + 2 >= free, "{left} are left, {removed} were removed");
}

/// A segment is removed in pieces. Between the pieces another segment may be wanted, and the power may fail.
#[test]
fn a_removal_can_be_cut_off_after_each_piece() {
    let (mut seen, mut prepared) = (0, 0);
    for pieces in 0..24 {
        let mut world = World::new(pieces);
        world.parts.preparer.turn();
        bunch_dies(&mut world, 8);
        world.clock.nanos.fetch_add(301_000_000_000, Ordering::Relaxed);
        for _ in 0..pieces {
            assert!(world.parts.preparer.turn());
        }
        let begun = is_removing(&world);
        seen += u32::from(begun);
        if pieces % 2 == 0 {
            // The rest of the file stays and waits.
            let segment = world.parts.preparer.prepare(None).unwrap();
            world.parts.log.shared.add_prepared(segment);
            assert_eq!(is_removing(&world), begun);
            prepared += u32::from(begun);
        }
        assert!(world.append(1, 60_000, Durability::Synced));
        world.strike(if pieces % 3 == 0 { Left::Killed } else { Left::PowerCut });
        assert!(!is_removing(&world));
        world.compare();
    }
    assert!(
        seen > 10 && prepared > 5,
        "{seen} removals were cut off, {prepared} with a segment wanted meanwhile"
    );
}

#[test]
fn what_is_left_of_a_removal_makes_room_for_a_segment() {
    let mut world = World::new(6);
    bunch_dies(&mut world, 8);
    world.clock.nanos.fetch_add(301_000_000_000, Ordering::Relaxed);
    assert!(world.parts.preparer.turn() && world.parts.preparer.turn());
    let names = world.disk.list().unwrap();
    assert!(is_removing(&world));
    // Only the two removed pieces are free.
    world.disk.set_capacity(u64::try_from(names.len()).unwrap() * world.options.segment_bytes);
    for _ in 0..=world.parts.preparer.spares() {
        world.parts.preparer.prepare(None).unwrap();
    }
    assert!(!is_removing(&world));
    assert!(world.parts.preparer.prepare(None).is_err(), "there is no more");
}

#[test]
fn it_is_forgotten_in_time_how_many_segments_were_wanted() {
    let world = World::new(7);
    let mut spares = Spares::new(world.parts.log.shared.clone());
    for _ in 0..10_000 {
        spares.note_wanted();
        world.clock.nanos.fetch_add(1_000_000_000, Ordering::Relaxed);
    }
    assert!((290..310).contains(&spares.remembered()), "{}", spares.remembered());
}

/// The space kept back for copies is restored without any append.
#[test]
fn dead_segments_give_way_to_what_others_need() {
    let mut world = World::with(5, Options { reserve_bytes: 1 << 20, ..small_options() }, SimDisk::new(5));
    bunch_dies(&mut world, 8);
    assert!(world.append(1, 60_000, Durability::Synced));
    world.settle();
    pass(&mut world, 301);
    assert_eq!(world.parts.preparer.spares(), 4);
    let files = u64::try_from(world.disk.list().unwrap().len()).unwrap();
    let segment_bytes = world.options.segment_bytes;
    world.disk.set_capacity(files * segment_bytes);
    pass(&mut world, 1);
    assert!(world.disk.free_bytes().unwrap() >= world.options.reserve_bytes, "{files} files");
    assert!(world.parts.preparer.spares() > 0, "only what is needed is given back");
}

#[test]
fn what_was_admitted_is_written_even_when_the_disk_is_full() {
    let mut told = 0;
    for seed in seeds(0..60) {
        let disk = SimDisk::new(seed);
        // In large segments one batch is larger than the room kept back for trims.
        let segment_bytes = if seed.is_multiple_of(2) { 1 << 20 } else { 4 << 20 };
        disk.set_capacity((3 + seed % 4) * segment_bytes);
        let mut world = World::with(seed, Options { segment_bytes, ..small_options() }, disk);
        let largest = world.options.batch_bytes_max();
        for round in 0..40 {
            // Admits all batches at once, like many connections, in sizes that leave gaps at the ends of segments.
            let (mut refused, mut body, mut rooms) = (false, 0, 0);
            while !refused {
                body = if world.rng.u8(..) < 60 {
                    world.rng.usize(largest * 2 / 3..largest - 61)
                } else {
                    world.rng.usize(0..20_000)
                };
                let stream =
                    world.rng.u64(0..3) + if world.rng.u8(..) < 20 { world.rng.u64(0..3000) } else { 0 };
                rooms = world.listener.rooms.load(Ordering::Relaxed);
                refused = !world.append(stream, body, Durability::Synced);
                if world.rng.u8(..) < if round % 2 == 0 { 10 } else { 100 } {
                    world.turns(1);
                }
            }
            world.settle();
            world.turns(8);
            if world.parts.log.admit(body + 61).is_ok() {
                assert!(
                    world.listener.rooms.load(Ordering::Relaxed) > rooms,
                    "seed {seed} round {round}: nobody is told"
                );
                told += 1;
            } else if world.rng.u8(..) < 128 {
                for id in world.streams.keys().copied().collect::<Vec<_>>() {
                    let end = world.streams[&id].synced();
                    world.trim_to(id, end);
                }
                world.settle();
                world.turns(20);
            } else {
                break;
            }
        }
        world.compare();
        world.strike(Left::PowerCut);
    }
    assert!(told > 40, "{told}");
}

/// Sizes that leave the largest gaps at the ends of segments, and one batch that is already gathered in a block.
#[test]
fn no_promise_is_too_large_for_the_segments_there_are() {
    for seed in 0..48 {
        let segments = 1 + seed % 3;
        let disk = SimDisk::new(seed);
        disk.set_capacity(segments << 22);
        let mut world = World::with(seed, Options { segment_bytes: 4 << 20, ..small_options() }, disk);
        while world.parts.preparer.turn() {}
        let largest = world.options.batch_bytes_max() - 100;
        let body = largest * usize::try_from(20 - seed % 16).unwrap() / 20;
        for body in [10, largest] {
            assert!(world.append(1, body, Durability::Synced), "seed {seed}");
            world.parts.writer.turn(Patience::None);
        }
        let mut promised = 2;
        while world.append(1, body, Durability::Synced) {
            promised += 1;
        }
        world.settle();
        let bytes = promised * body as u64;
        assert!(
            bytes > (segments << 22) / 3,
            "seed {seed}: only {bytes} bytes of {segments} segments were promised"
        );
        world.compare();
    }
}

/// A batch that is longer than what a young log has prepared, as the first thing that it gets.
#[test]
fn a_young_log_makes_room_for_a_batch_that_is_longer_than_its_segments() {
    const BODY: usize = 70 << 20;
    let young = |capacity: Option<u64>| {
        let disk = SimDisk::new(3);
        if let Some(bytes) = capacity {
            disk.set_capacity(bytes);
        }
        let options = Options { segment_bytes: 256 << 20, batch_part: 2, ..small_options() };
        let mut world = World::with(3, options, disk);
        while world.parts.preparer.turn() {}
        assert!(!world.append(1, BODY, Durability::Synced), "the segments have 16 and 64 MiB");
        while world.parts.preparer.turn() {}
        world
    };

    let mut world = young(None);
    assert_eq!(world.parts.log.shared.prepared_count(), 2);
    assert!(world.append(1, BODY, Durability::Synced));
    world.settle();
    assert!(world.append(2, 100, Durability::Synced));
    world.settle();
    world.compare();
    world.strike(Left::PowerCut);

    // There is room for a segment, but not for one that is long enough: it says so, and keeps the room.
    let mut world = young(Some(200 << 20));
    assert_eq!(world.parts.log.shared.prepared_count(), 1);
    assert!(matches!(world.parts.log.admit(BODY), Err(AdmitError::Full)));
    assert!(world.listener.rooms.load(Ordering::Relaxed) > 0, "who waits is told");
    while world.parts.preparer.turn() {}
    assert!(!world.parts.log.is_full(), "for others it is not");
    assert!(world.append(2, 100, Durability::Synced));
    world.settle();
    while world.append(2, 1 << 20, Durability::Visible) {}
    assert!(matches!(world.parts.log.admit(1 << 20), Err(AdmitError::Busy)), "they are on their way");
    world.settle();
    world.compare();
}

#[test]
fn short_segments_of_a_young_log_are_used_again_on_a_full_disk() {
    let disk = SimDisk::new(1);
    disk.set_capacity(70 << 20);
    let options = Options { segment_bytes: 64 << 20, ..small_options() };
    let mut world = World::with(1, options, disk);
    for round in 0..4 {
        let mut appended = 0;
        while world.append(1, 200_000, Durability::Synced) {
            appended += 1;
            world.settle();
            world.turns(4);
        }
        assert!(appended > 20, "round {round}: {appended} appends until the disk is full");
        let end = world.streams[&1].synced();
        world.trim_to(1, end);
        world.settle();
        world.turns(50);
    }
    world.strike(Left::PowerCut);
}

/// A cleaned segment is only as long as its copied data. A footer may not fit it, and even less an append.
#[test]
fn what_was_cleaned_and_died_is_not_appended_to_however_full_the_disk() {
    let mut world = World::new(8);
    assert!(world.append(1, 1000, Durability::Synced));
    for _ in 0..120 {
        assert!(world.append(2, 19_900, Durability::Synced));
        world.settle();
        while world.parts.preparer.turn() {}
    }
    let trim = |world: &mut World, stream| {
        let end = world.streams[&stream].synced();
        world.trim_to(stream, end);
        world.settle();
    };
    trim(&mut world, 2);
    while world.clean() {}
    let lengths = |world: &World| -> Vec<u64> {
        let names = world.disk.list().unwrap();
        names.iter().map(|name| world.disk.open(name).unwrap().length()).collect()
    };
    assert!(lengths(&world).iter().any(|length| *length < 100_000), "{:?}", lengths(&world));
    world.disk.set_capacity(lengths(&world).iter().sum());
    while world.append(3, 19_900, Durability::Synced) {
        world.settle();
        world.turns(4);
    }
    trim(&mut world, 1);
    world.turns(50);
    let segment_bytes = world.options.segment_bytes;
    assert!(lengths(&world).iter().all(|length| *length == segment_bytes), "{:?}", lengths(&world));
    trim(&mut world, 3);
    world.turns(50);
    for _ in 0..60 {
        assert!(world.append(3, 19_900, Durability::Synced));
        world.settle();
    }
    world.compare();
    world.strike(Left::PowerCut);
}

#[test]
fn a_log_without_any_room_still_closes_and_opens_again_from_the_reserve() {
    let disk = SimDisk::new(1);
    disk.set_capacity(4 << 20);
    let options = Options { reserve_bytes: 1 << 20, ..small_options() };
    let mut world = World::with(1, options, disk);
    while world.append(1, 50_000, Durability::Synced) {
        world.settle();
        world.turns(4);
    }
    // Trims are not admitted. They may use up the room kept back for them, and then wait.
    let start = world.stream(1).bounds().start;
    for _ in 0..600 {
        world.trim_to(1, start);
        world.turns(3);
    }
    let waiting = world.streams[&1].trims.iter().filter(|(_, done)| done.pending()).count();
    assert!(waiting > 0);
    world.close();
    assert!(world.streams[&1].trims.iter().all(|(_, done)| !done.pending()));
    world.strike(Left::PowerCut);
}
