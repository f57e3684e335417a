//! Power cuts, kills, damage and failing writes, over many seeds. The log loses nothing synced, serves nothing invalid,
//! and never takes damage for its end.

use super::support::{Left, World, open};
use crate::recovery::OpenError;
use crate::request::Durability;
use disk::sim::Fault;

/// `MAINSTEM_SEEDS=from..to` selects other seeds than the default ones.
pub fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("MAINSTEM_SEEDS") else { return default };
    let (from, to) = range.split_once("..").expect("MAINSTEM_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn some_load(world: &mut World) {
    for _ in 0..world.rng.usize(1..120) {
        let stream = world.rng.u64(0..6);
        match world.rng.u8(0..100) {
            0..75 => {
                let body =
                    if world.rng.u8(..) < 8 { world.rng.usize(0..100_000) } else { world.rng.usize(0..3000) };
                let durability = if world.rng.u8(..) < 60 { Durability::Written } else { Durability::Synced };
                world.append(stream, body, durability);
            }
            75..78 => world.trim(stream),
            _ => {
                let turns = world.rng.usize(1..6);
                world.turns(turns);
            }
        }
    }
}

#[test]
fn nothing_synced_is_lost_in_a_power_cut() {
    for seed in seeds(0..1500) {
        let mut world = World::new(seed);
        for _ in 0..world.rng.usize(1..5) {
            some_load(&mut world);
            if world.rng.bool() {
                world.settle();
                world.compare();
            }
            let left = if world.rng.u8(..) < 60 { Left::Killed } else { Left::PowerCut };
            world.strike(left);
        }
        some_load(&mut world);
        world.settle();
        world.compare();
    }
}

#[test]
fn the_test_sees_a_disk_that_lies_about_syncs() {
    let lost = |seed: u64| {
        let mut world = World::new(seed);
        world.disk.lie_about_sync(true);
        some_load(&mut world);
        world.settle();
        let disk = world.disk.crash(seed);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.reopen(disk, Left::PowerCut).is_err()))
            .unwrap_or(true)
    };
    let seen = (0..20).filter(|seed| lost(*seed)).count();
    assert!(seen > 10, "only {seen} of 20 lying disks were noticed");
}

#[test]
fn damage_below_what_was_synced_is_never_taken_for_the_end() {
    let (mut refused, mut served) = (0, 0);
    for seed in seeds(0..400) {
        let mut world = World::new(seed);
        for _ in 0..3 {
            some_load(&mut world);
            world.settle();
        }
        // The barrier of a reopened log vouches for everything before it. The damage below cannot reach all of these
        // barriers at once. Otherwise it could hit the last block together with all blocks that vouch for it.
        for _ in 0..3 {
            world.strike(Left::Killed);
        }
        let disk = world.disk.restart();
        let names: Vec<String> =
            disk::Disk::list(&disk).unwrap().into_iter().filter(|n| n.ends_with(".log")).collect();
        let name = world.rng.choice(&names).unwrap().clone();
        let length = disk::Disk::open(&disk, &name).unwrap().length();
        let from = world.rng.u64(0..length - 1);
        disk.damage(&name, from..(from + world.rng.u64(1..9000)).min(length));
        match open(&disk, &world.options, &world.clock) {
            Err(OpenError::Damaged { file, .. }) => {
                assert_eq!(file, name, "seed {seed}");
                refused += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
            Ok(parts) => {
                world.parts = parts;
                for (id, model) in &world.streams {
                    let stream = world.parts.log.stream(model::StreamId(*id));
                    assert!(
                        stream.bounds().committed >= model.synced(),
                        "seed {seed}: damage was taken for the end"
                    );
                }
                served += 1;
            }
        }
    }
    assert!(refused > 20 && served > 20, "{refused} refused, {served} served");
}

#[test]
fn a_failed_write_or_sync_ends_the_log_and_loses_nothing_acknowledged() {
    for seed in seeds(0..400) {
        let mut world = World::new(seed);
        some_load(&mut world);
        let after = world.rng.u64(0..20);
        if world.rng.bool() {
            world.disk.fail_write_after(after, Fault::Once);
        } else {
            world.disk.fail_sync_after(after, Fault::Once);
        }
        for _ in 0..5 {
            some_load(&mut world);
        }
        world.settle();
        let left = if world.rng.bool() { Left::Killed } else { Left::PowerCut };
        world.strike(left);
        // Everything that the first recovery accepted must be durable by then, whatever the failed sync left behind.
        some_load(&mut world);
        world.settle();
        world.strike(Left::PowerCut);
    }
}

#[test]
fn a_full_disk_refuses_appends_and_takes_them_again_once_there_is_room() {
    for seed in seeds(0..60) {
        let mut world = World::new(seed);
        world.disk.set_capacity(6 * 1024 * 1024);
        let mut refused = false;
        for _ in 0..3000 {
            refused |= !world.append(1, 5000, Durability::Synced);
            world.turns(2);
        }
        assert!(refused, "seed {seed}");
        world.settle();
        world.compare();
        let end = world.streams[&1].synced();
        world.trim_to(1, end);
        world.settle();
        for _ in 0..50 {
            world.turns(20);
        }
        assert!(world.append(1, 5000, Durability::Synced), "seed {seed}: a trim gave no room");
        world.settle();
        world.strike(Left::PowerCut);
    }
}
