//! Whole clusters, simulated: the broker's own code from membership to logs, on disks, clocks, an object store and an etcd
//! that a seed decides about. Processes are killed, stopped and started, and lose their connections, while clients
//! produce, consume, and delete records and topics, and partitions move from log to log.
//!
//! Half of the topics have copies on the disks of brokers, which are lost with them now and then: one at a time.
//!
//! What must hold:
//! - A batch that was answered, or that a consumer saw, is at its offset for ever, and nowhere else.
//! - An epoch of a log belongs to one process.
//! - With everything mended, each log is open at its home, and whatever waits is answered.
//!
//! Not simulated: connections of clients, coordinators of groups and transactions, the orderly end of a process, retention,
//! compaction, merging, and disks that fail after they were opened.

mod clients;
mod links;
mod process;
mod shelf;
mod tasks;
mod world;

use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use storage::Mutation;

use self::world::{Flaw, Passed, World};

/// Things that happen.
const STEPS: usize = 1500;
/// Steps until the weather may change.
const PHASE: usize = 150;

/// Things happen to a cluster, then it rests. Everything is checked: with what the owners have, and with what the bucket has.
fn run(seed: u64, flaw: Flaw) -> Passed {
    // The pauses between retries are random.
    fastrand::seed(seed);
    let mut world = World::new(seed, flaw);
    let mut calm = true;
    for step in 0..STEPS {
        if step % PHASE == 0 {
            calm = world.rng.bool();
            if calm {
                world.calm_down();
            }
        }
        world.step(calm);
        world.check_owners();
    }
    world.rest();
    world.check();
    world.restart_all();
    world.rest();
    world.check();
    world.kill_all();
    world.passed
}

/// `MAINSTEM_SEEDS=from..to` selects other seeds than the default ones.
fn seeds(default: Range<u64>) -> Range<u64> {
    let Ok(range) = std::env::var("MAINSTEM_SEEDS") else { return default };
    let (from, to) = range.split_once("..").expect("MAINSTEM_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// Runs with all seeds, on all processors.
fn passed(seeds: &Range<u64>, flaw: Flaw) -> Result<Passed, String> {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let work = || {
        let mut all = Passed::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failed.load(Ordering::Relaxed) {
                return Ok(all);
            }
            match catch_unwind(|| run(seed, flaw)) {
                Ok(passed) => all.add(passed),
                Err(problem) => {
                    failed.store(true, Ordering::Relaxed);
                    let problem =
                        problem.downcast::<String>().map_or_else(|_| "a panic".into(), |text| *text);
                    return Err(format!("seed {seed}: {problem}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Passed::default();
        for thread in threads {
            all.add(thread.join().unwrap()?);
        }
        Ok(all)
    })
}

#[test]
fn whatever_happens_to_a_cluster_what_was_answered_stays() {
    let seeds = seeds(0..1200);
    let all = passed(&seeds, Flaw::None).unwrap();
    let count = seeds.end - seeds.start;
    let Passed { answered, repeated, failed, reads, trims, owners, kills, moves, moved, .. } = all;
    let Passed { lost_disks, from_copies, .. } = all;
    assert!(
        answered > 20 * count && repeated > 5 * count && failed > 20 * count && reads > 10 * count,
        "{all:?}"
    );
    assert!(trims > count && owners > 2 * count && kills > 2 * count, "{all:?}");
    assert!(moves > count && 5 * moved > count, "{all:?}");
    assert!(6 * lost_disks > count && from_copies > count, "{all:?}");
}

#[test]
fn a_broker_whose_disk_is_full_gives_its_logs_away() {
    let mut world = World::new(2, Flaw::None);
    world.fill_a_disk();
    world.rest();
    world.check();
    world.kill_all();
}

/// A seed that fails once fails again.
#[test]
fn a_seed_decides_everything() {
    for seed in 0..20 {
        assert_eq!(run(seed, Flaw::None), run(seed, Flaw::None), "seed {seed}");
    }
}

#[test]
fn planted_faults_are_found() {
    let flaws = [
        Flaw::Overwrites,
        Flaw::Careless,
        Flaw::DeletesSeals,
        Flaw::TakesThoughSealed,
        Flaw::IgnoresCopies,
        Flaw::AnswersUnsynced,
        Flaw::Log(Mutation::VisibleWhenSynced),
        Flaw::Log(Mutation::TrustsTaken),
        Flaw::Log(Mutation::DeletesLinks),
    ];
    for flaw in flaws {
        let found = passed(&(0..1000), flaw).expect_err("no seed notices it");
        println!("{flaw:?}: {found}");
    }
}
