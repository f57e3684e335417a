//! Brokers of a simulated cluster, on one store with a clock of its own. Each does a step when it gets a turn. It may get
//! none for longer than its lease, be killed and started again, and be drained.

use std::sync::atomic::{AtomicU64, Ordering};

use meta::Memory;
use uuid::Uuid;

use crate::cluster::admin::{AdminError, ClusterAdmin, unregister};
use crate::cluster::*;
use crate::image::records::DrainRecord;

const TTL: Duration = Duration::from_secs(3);
const BROKERS: i32 = 4;
const LOGS_EACH: usize = 2;
const STEPS: usize = 400;

/// What all processes did, for ever.
#[derive(Default)]
struct Seen {
    /// The process that took a log over in an epoch.
    taken: BTreeMap<(String, u32), Process>,
}

/// A process with the logs that it holds.
struct Running {
    member: Member,
    held: BTreeMap<String, u32>,
    began: Vec<(String, u32)>,
    /// Logs whose closing has begun.
    closing: BTreeSet<String>,
    fails: bool,
    slow: bool,
    /// The object store does not answer it.
    away: bool,
    /// Little of its disk is free.
    low: bool,
}

impl Running {
    fn start(world: &World, broker: i32) -> Running {
        let record = BrokerRecord {
            incarnation: Uuid::from_u128(u128::from(world.next.fetch_add(1, Ordering::Relaxed))),
            listeners: BTreeMap::from([("PLAINTEXT".into(), ("b".into(), 9092))]),
            rack: None,
            version: "1".into(),
            leaving: false,
            without_store: false,
            low_on_space: false,
            disk: None,
        };
        let metadata = Metadata::open(world.store.clone()).unwrap();
        let now_ms = world.now_ms.clone();
        let clock = Box::new(move || Duration::from_millis(now_ms.load(Ordering::Relaxed)));
        let member = Member::new(metadata, broker, record, TTL, clock);
        Running {
            member,
            held: BTreeMap::new(),
            began: Vec::new(),
            closing: BTreeSet::new(),
            fails: false,
            slow: false,
            away: false,
            low: false,
        }
    }

    /// One turn. Returns false if the process ends, because another one is alive in its place.
    fn turn(&mut self, seen: &mut Seen, looks: bool) -> bool {
        if looks {
            self.member.metadata.refresh().unwrap();
        }
        match self.member.keep_alive() {
            Ok(()) | Err(MemberError::Meta(MetaError::Conflict { .. })) => {}
            Err(MemberError::Duplicate(_)) => return false,
            Err(error) => panic!("{error}"),
        }
        self.member.control().unwrap();
        for closed in std::mem::take(&mut self.closing) {
            self.held.remove(&closed);
        }
        let Running { member, held, began, closing, fails, slow, away, low } = self;
        let (fails, slow, away, low) = (*fails, *slow, *away, *low);
        member.serve(&mut Held { held, began, closing, fails, slow, away, low }).unwrap();
        let process = self.member.process;
        for taken in std::mem::take(&mut self.began) {
            let other = seen.taken.insert(taken.clone(), process);
            assert_eq!(other, None, "{taken:?} is taken over twice");
        }
        true
    }
}

/// The logs of a process, apart from its member.
struct Held<'a> {
    held: &'a mut BTreeMap<String, u32>,
    began: &'a mut Vec<(String, u32)>,
    closing: &'a mut BTreeSet<String>,
    fails: bool,
    slow: bool,
    away: bool,
    low: bool,
}

impl Holder for Held<'_> {
    fn lacks_store(&self) -> bool {
        self.away
    }

    fn is_low_on_space(&self) -> bool {
        self.low
    }

    fn is_stored(&self, _: &str, _: u32) -> bool {
        true
    }

    fn logs(&self) -> BTreeSet<String> {
        self.held.keys().cloned().collect()
    }

    fn held(&self, log: &str) -> Option<u32> {
        self.held.get(log).copied()
    }

    fn prepare(&mut self, _: &str, _: u32) -> bool {
        !self.slow
    }

    fn stand_by(&mut self, log: &str, epoch: u32) {
        assert!(!self.held.contains_key(log) && epoch > 0, "{log} is held, or has no owner");
    }

    fn take_over(&mut self, log: &str, epoch: u32) {
        self.began.push((log.to_owned(), epoch));
        if !self.fails {
            self.held.insert(log.to_owned(), epoch);
        }
    }

    fn close(&mut self, log: &str, _orderly: bool) -> bool {
        if self.slow {
            self.closing.insert(log.to_owned());
        } else {
            self.held.remove(log);
        }
        !self.slow
    }
}

struct World {
    now_ms: Arc<AtomicU64>,
    next: AtomicU64,
    store: Arc<dyn Store>,
    running: BTreeMap<i32, Running>,
    /// Processes that others have taken the place of, and that do not know it yet.
    zombies: Vec<Running>,
    seen: Seen,
    log: Commits,
}

/// Checks every commit: the epochs of a log grow, and a change of the owner is a change of the epoch.
struct Commits {
    watch: Box<dyn meta::Watch>,
    owners: BTreeMap<String, OwnerRecord>,
}

impl Commits {
    fn check(&mut self) {
        loop {
            let events = self.watch.next(Duration::ZERO).unwrap();
            if events.changes.is_empty() {
                return;
            }
            for event in events.changes {
                let Some(log) = event.key.strip_prefix(OwnerRecord::PREFIX) else { continue };
                let new = OwnerRecord::parse(log, &event.bytes.expect("no owner is deleted")).unwrap();
                if let Some(old) = self.owners.get(log) {
                    let same = (old.broker, old.incarnation) == (new.broker, new.incarnation);
                    assert!(
                        new.epoch == old.epoch + 1 || (new.epoch == old.epoch && same),
                        "{old:?} {new:?}"
                    );
                }
                self.owners.insert(log.to_owned(), new);
            }
        }
    }
}

impl World {
    fn new(careless: bool) -> World {
        let now_ms = Arc::new(AtomicU64::new(0));
        let clock = now_ms.clone();
        let store = Arc::new(Memory::with_clock(Arc::new(move || {
            Duration::from_millis(clock.load(Ordering::Relaxed))
        })));
        let store: Arc<dyn Store> = if careless { Arc::new(Careless(store)) } else { store };
        let log = Commits { watch: store.watch("", 0), owners: BTreeMap::new() };
        let mut world = World {
            now_ms,
            next: AtomicU64::new(1),
            store,
            running: BTreeMap::new(),
            zombies: Vec::new(),
            seen: Seen::default(),
            log,
        };
        for broker in 1..=BROKERS {
            let mut running = Running::start(&world, broker);
            assert!(running.turn(&mut world.seen, true));
            for log in 0..LOGS_EACH {
                running.member.add_log(&format!("log-{broker}-{log}")).unwrap();
            }
            world.running.insert(broker, running);
        }
        world
    }

    fn drain(&self, broker: i32, drained: bool) {
        let name = broker.to_string();
        let change = if drained { DrainRecord {}.put(&name) } else { DrainRecord::delete(&name) };
        self.store.commit(&[], &[change]).unwrap();
    }

    /// A turn of everybody, until nothing changes any more.
    fn rest(&mut self) {
        for mut zombie in std::mem::take(&mut self.zombies) {
            zombie.away = false;
            // If it came back before the process that was to take its place, that one ends.
            if zombie.turn(&mut self.seen, true) {
                self.running.insert(zombie.member.process.broker, zombie);
            }
        }
        self.running.values_mut().for_each(|running| (running.fails, running.slow) = (false, false));
        let mut settled = BTreeMap::new();
        for round in 0..40 {
            if round == 30 {
                settled = self.log.owners.clone();
            }
            self.now_ms.fetch_add(500, Ordering::Relaxed);
            for running in self.running.values_mut() {
                // Another process of the broker may count as alive for the time of a lease.
                running.turn(&mut self.seen, true);
            }
            self.log.check();
        }
        assert_eq!(self.log.owners, settled, "logs go from broker to broker");
    }

    /// The owners as the last commit shows them: broker by log.
    fn owners(&self) -> BTreeMap<String, i32> {
        self.log.owners.iter().map(|(log, owner)| (log.clone(), owner.broker)).collect()
    }

    /// Checks that each log is held by its owner in its epoch and by nobody else.
    fn check_held(&self) {
        for (log, owner) in &self.log.owners {
            let holders: Vec<(i32, u32)> = self
                .running
                .iter()
                .filter_map(|(broker, running)| Some((*broker, *running.held.get(log)?)))
                .collect();
            assert_eq!(holders, [(owner.broker, owner.epoch)], "{log}");
        }
    }
}

fn home(log: &str) -> i32 {
    log.split('-').nth(1).unwrap().parse().unwrap()
}

/// A store that does not look at the owners that a commit compares.
#[derive(Debug)]
pub(super) struct Careless(pub(super) Arc<Memory>);

impl Store for Careless {
    fn find(&self, key: &str) -> Result<Option<meta::Value>, MetaError> {
        self.0.find(key)
    }

    fn list(&self, prefix: &str) -> Result<meta::Listing, MetaError> {
        self.0.list(prefix)
    }

    fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError> {
        let others = compares.iter().filter(|compare| !compare.key.starts_with(OwnerRecord::PREFIX));
        self.0.commit(&others.cloned().collect::<Vec<_>>(), changes)
    }

    fn watch(&self, prefix: &str, after: u64) -> Box<dyn meta::Watch> {
        self.0.watch(prefix, after)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.0.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.0.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.0.revoke(lease)
    }
}

/// Some hundred things that happen to the brokers, then rest. Everything is checked.
fn run(seed: u64, careless: bool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(careless);
    for _ in 0..STEPS {
        let broker = random.i32(1..=BROKERS);
        match random.u32(0..100) {
            0..60 => {
                let looks = random.u32(0..4) > 0;
                if let Some(running) = world.running.get_mut(&broker) {
                    running.fails = random.u32(0..8) == 0;
                    running.slow = random.bool();
                    running.turn(&mut world.seen, looks);
                }
            }
            // Some do not get a turn for longer than their lease.
            60..85 => drop(world.now_ms.fetch_add(random.u64(0..1500), Ordering::Relaxed)),
            85..88 => {
                let old = world.running.remove(&broker);
                let new = Running::start(&world, broker);
                world.running.insert(broker, new);
                // It was killed, or stopped for longer than its lease and goes on later.
                if random.bool() {
                    let ttl_ms = u64::try_from(TTL.as_millis()).unwrap();
                    world.now_ms.fetch_add(ttl_ms, Ordering::Relaxed);
                    world.zombies.extend(old);
                }
            }
            88..91 => world.drain(broker, random.bool()),
            91 => {
                if let Some(running) = world.running.get_mut(&broker) {
                    (running.away, running.low) = (random.bool(), random.bool());
                }
            }
            92..94 => {
                if let Some(running) = world.running.get_mut(&broker) {
                    // The lease may be over already.
                    let _ = running.member.leave();
                }
            }
            94 => {
                // It ends as soon as it owns nothing, and is started again.
                let Some(mut running) = world.running.remove(&broker) else { continue };
                let _ = running.member.announce_leaving();
                for _ in 0..random.usize(0..40) {
                    world.now_ms.fetch_add(100, Ordering::Relaxed);
                    let gone = !running.turn(&mut world.seen, true);
                    if gone || !running.member.gives_away() {
                        break;
                    }
                    for other in world.running.values_mut() {
                        other.turn(&mut world.seen, random.bool());
                    }
                }
                let _ = running.member.leave();
                let again = Running::start(&world, broker);
                world.running.insert(broker, again);
            }
            _ => {
                if !world.zombies.is_empty() {
                    let at = random.usize(..world.zombies.len());
                    if !world.zombies[at].turn(&mut world.seen, random.bool()) {
                        drop(world.zombies.swap_remove(at));
                    }
                }
            }
        }
        world.log.check();
    }
    (1..=BROKERS).for_each(|broker| world.drain(broker, false));
    world.running.values_mut().for_each(|running| running.away = false);
    world.rest();
    world.check_held();
    let owners = world.owners();
    assert!(owners.iter().all(|(log, broker)| home(log) == *broker), "seed {seed}: {owners:?}");
}

#[test]
fn whatever_happens_to_brokers_each_epoch_has_one_owner_and_all_logs_are_served_in_the_end() {
    (0..300).for_each(|seed| run(seed, false));
}

#[test]
fn a_store_that_does_not_compare_owners_is_found_out() {
    let red = |seed: &u64| {
        let problem = std::panic::catch_unwind(|| run(*seed, true)).err();
        problem.and_then(|problem| problem.downcast::<String>().ok())
    };
    let reds: Vec<String> = (0..50).filter_map(|seed| red(&seed).map(|problem| *problem)).collect();
    assert!(!reds.is_empty());
    let twice =
        |problem: &&String| problem.contains("is taken over twice") || problem.contains("OwnerRecord");
    assert_eq!(reds.iter().filter(twice).count(), reds.len(), "{reds:?}");
}

#[test]
fn the_logs_of_a_broker_that_died_are_spread_over_the_others_and_come_back_with_it() {
    let mut world = World::new(false);
    world.rest();
    let dead = world.running.remove(&1);
    world.rest();
    drop(dead);
    let of_dead: Vec<i32> =
        world.owners().iter().filter(|(log, _)| home(log) == 1).map(|(_, owner)| *owner).collect();
    assert_eq!(of_dead, [2, 3]);
    world.drain(2, true);
    world.rest();
    assert!(world.owners().values().all(|owner| [3, 4].contains(owner)), "{:?}", world.owners());
    let again = Running::start(&world, 1);
    world.running.insert(1, again);
    world.rest();
    world.check_held();
    assert!(world.owners().iter().all(|(log, owner)| *owner != 2 && (home(log) == 2 || home(log) == *owner)));
    // With all of them drained, every log stays where it is.
    (1..=BROKERS).for_each(|broker| world.drain(broker, true));
    let before = world.owners();
    world.rest();
    assert_eq!(world.owners(), before);
}

#[test]
fn a_broker_without_the_object_store_gives_its_logs_away_until_it_answers() {
    let mut world = World::new(false);
    world.rest();
    let set_away = |world: &mut World, brokers: std::ops::RangeInclusive<i32>, away: bool| {
        brokers.for_each(|broker| world.running.get_mut(&broker).unwrap().away = away);
        world.rest();
    };
    set_away(&mut world, 1..=1, true);
    assert!(
        world.owners().iter().all(|(log, owner)| (home(log) == 1) == (home(log) != *owner) && *owner != 1)
    );
    // Where it answers nobody, nothing moves.
    let before = world.owners();
    set_away(&mut world, 1..=BROKERS, true);
    assert_eq!(world.owners(), before);
    set_away(&mut world, 1..=BROKERS, false);
    assert!(world.owners().iter().all(|(log, owner)| home(log) == *owner));
    world.check_held();
}

#[test]
fn a_broker_that_is_low_on_space_gets_the_logs_of_others_last() {
    let mut world = World::new(false);
    world.running.get_mut(&2).unwrap().low = true;
    world.rest();
    let admin = ClusterAdmin::open(world.store.clone()).unwrap();
    let low = |broker| admin.state().unwrap().brokers[&broker].low_on_space;
    assert!(low(2) && !low(1) && !low(3));
    let at_home =
        |owners: &BTreeMap<String, i32>| owners.iter().filter(|(log, owner)| home(log) == **owner).count();
    assert_eq!(at_home(&world.owners()), world.owners().len(), "it keeps its own");
    admin.drain(1, true).unwrap();
    world.rest();
    assert!(world.owners().iter().all(|(log, owner)| home(log) != 1 || *owner > 2), "{:?}", world.owners());
    // There is no other one.
    (3..=BROKERS).for_each(|broker| assert!(admin.drain(broker, true).is_ok()));
    world.rest();
    assert!(world.owners().values().all(|owner| *owner == 2), "{:?}", world.owners());
    world.running.get_mut(&2).unwrap().low = false;
    world.rest();
    assert!(!low(2));
    world.check_held();
}

#[test]
fn administrators_move_logs_drain_brokers_and_end_them() {
    let mut world = World::new(false);
    world.rest();
    let admin = ClusterAdmin::open(world.store.clone()).unwrap();
    admin.move_log("log-1-0", 2).unwrap();
    world.rest();
    assert_eq!(world.owners()["log-1-0"], 2);
    assert!(matches!(admin.move_log("log-9-9", 2), Err(AdminError::NoLog(_))));
    assert!(matches!(admin.move_log("log-1-0", 9), Err(AdminError::NotRegistered(9))));
    assert!(matches!(admin.drain(9, true), Err(AdminError::NotRegistered(9))));

    admin.drain(3, true).unwrap();
    assert!(matches!(admin.move_log("log-1-0", 3), Err(AdminError::Drained(3))));
    world.rest();
    let state = admin.state().unwrap();
    let logs: Vec<usize> = state.brokers.values().map(|broker| broker.logs).collect();
    // Its logs went to the brokers with the fewest.
    assert_eq!(logs, [3, 3, 0, 2]);
    assert!(state.brokers[&3].drained && state.brokers[&3].alive && state.logs["log-3-0"].home == 3);

    let metadata = Metadata::open(world.store.clone()).unwrap();
    assert!(matches!(unregister(&metadata, 3), Err(AdminError::Alive(3))));
    assert!(matches!(unregister(&metadata, 9), Err(AdminError::NotRegistered(9))));
    drop(world.running.remove(&3));
    world.rest();
    assert!(matches!(admin.move_log("log-1-0", 3), Err(AdminError::NotAlive(3))));
    let before = world.owners();
    metadata.refresh().unwrap();
    unregister(&metadata, 3).unwrap();
    assert!(matches!(unregister(&metadata, 3), Err(AdminError::NotRegistered(3))));
    world.rest();
    let state = admin.state().unwrap();
    assert_eq!(state.brokers.keys().copied().collect::<Vec<_>>(), [1, 2, 4]);
    assert!(state.logs.values().all(|log| log.owner == log.home), "{state:?}");
    assert_eq!(world.owners(), before, "they stay where they are");
    world.check_held();
}

#[test]
fn ids_go_on_behind_all_that_may_have_been_given_out() {
    let memory = Arc::new(Memory::default());
    let admin = ClusterAdmin::open(memory.clone()).unwrap();
    let number = |key: &str| -> u64 {
        let found = memory.find(key).unwrap().unwrap();
        serde_json::from_slice(&found.bytes).unwrap()
    };
    admin.restored().unwrap();
    assert_eq!((number("next_stream"), number("next_producer_id")), (1 + (1 << 20), 1 << 32));
    memory.commit(&[], &[Change::put("next_stream", "70"), Change::put("next_producer_id", "3000")]).unwrap();
    admin.restored().unwrap();
    assert_eq!((number("next_stream"), number("next_producer_id")), (70 + (1 << 20), 3000 + (1 << 32)));
    let world = World::new(false);
    let running = ClusterAdmin::open(world.store.clone()).unwrap();
    assert!(matches!(running.restored(), Err(AdminError::Alive(_))));
}

#[test]
fn a_lease_that_ends_wrongly_costs_no_log_its_owner() {
    let mut world = World::new(false);
    world.rest();
    let before = world.log.owners.clone();
    let controller = world.running.values().find(|running| {
        running.member.metadata.refresh().unwrap();
        running.member.is_controller(&running.member.metadata.image())
    });
    let controller = controller.unwrap().member.process.broker;
    let other = if controller == 1 { 2 } else { 1 };
    for (broker, comes_back) in [(other, true), (other, false)] {
        let lease = world.running[&broker].member.lease.lock().unwrap();
        world.store.revoke(lease).unwrap();
        let turn = |world: &World| {
            let member = &world.running[&controller].member;
            member.metadata.refresh().unwrap();
            member.control().unwrap();
        };
        turn(&world);
        if comes_back {
            let member = &world.running[&broker].member;
            member.rejoin().unwrap();
            assert_eq!(*member.lease.lock(), Some(lease), "it has not heard of it");
            member.metadata.refresh().unwrap();
            member.rejoin().unwrap();
            assert_ne!(*member.lease.lock(), Some(lease));
        }
        world.now_ms.fetch_add(1000, Ordering::Relaxed);
        turn(&world);
        world.log.check();
        assert_eq!(world.log.owners == before, comes_back);
    }
}
