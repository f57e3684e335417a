//! Room: what is admitted is written, on a full disk too; what was refused is told of; what died gives room again.

use std::sync::atomic::Ordering;

use disk::SimDisk;

use super::crash::seeds;
use super::support::{Left, World, small_options};
use crate::log::Options;
use crate::request::Durability;
use crate::writer::Patience;

/// What holds a few live bytes dies in bunches: each bunch is used again for the next.
#[test]
fn as_many_dead_segments_are_kept_as_were_lately_made() {
    let mut world = World::new(3);
    while world.parts.preparer.turn() {}
    let bytes = usize::try_from(world.options.segment_bytes).unwrap();
    for _ in 0..8 * bytes.div_ceil(60_000) {
        assert!(world.append(1, 60_000, Durability::Synced));
        world.settle();
        while world.parts.preparer.turn() {}
    }
    let end = world.streams[&1].synced();
    world.trim_to(1, end);
    world.settle();
    world.turns(60);
    while world.parts.preparer.turn() {}
    let kept = world.parts.preparer.spares();
    assert!((6..=9).contains(&kept), "{kept} of 8");
    world.clock.ms.fetch_add(301_000, Ordering::Relaxed);
    while world.parts.preparer.turn() {}
    assert_eq!(world.parts.preparer.spares(), 4);
    world.compare();
    world.strike(Left::PowerCut);
}

#[test]
fn what_was_admitted_is_written_even_when_the_disk_is_full() {
    let mut told = 0;
    for seed in seeds(0..60) {
        let disk = SimDisk::new(seed);
        // In large segments one batch is larger than what is kept back for trims.
        let segment_bytes = if seed.is_multiple_of(2) { 1 << 20 } else { 4 << 20 };
        disk.set_capacity((3 + seed % 4) * segment_bytes);
        let mut world = World::with(seed, Options { segment_bytes, ..small_options() }, disk);
        let largest = world.options.batch_bytes_max();
        for round in 0..40 {
            // Admitted all at once, as by many connections, in sizes that leave gaps at the ends of segments.
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
    // Trims are not admitted: they may use up what is kept back, and then wait.
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
