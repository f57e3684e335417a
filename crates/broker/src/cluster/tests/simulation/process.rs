//! One process of a simulated cluster: the broker's own code from its membership down to its logs, on simulated disks and
//! connections.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use disk::{Disk, SimDisk};
use meta::Store;
use model::Offset;
use objects::{Bucket, WatchedBucket};
use parking_lot::Mutex;
use storage::copies::Copies;
use storage::stepped::{Put, Steps};
use storage::{Clock, Log, Mutation};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::links::{ToEtcd, ToStore, Weather};
use super::shelf::{Kept, Shelf, ToDisks};
use super::tasks::{Tasks, pause, without_pauses};
use super::world::{Flaw, START_MS, TTL};
use crate::cluster::Member;
use crate::cluster::host::{Directories, Host, LocalDirectory, Parts};
use crate::cluster::ownership;
use crate::cluster::reassign::{Fetched, JobError, Leaders, Moves, fetch_here};
use crate::cluster::run::duties;
use crate::cluster::threads::Threads;
use crate::config::Config;
use crate::image::Metadata;
use crate::image::records::BrokerRecord;
use crate::logs::{Logs, Opening, Streams};
use crate::placement::Placement;
use crate::settings::resource::ResourceConfigs;
use crate::topics::{Moving, Topics};

/// What all processes share.
pub struct Ground {
    pub now_ms: Arc<AtomicU64>,
    pub runtime: Handle,
    pub store: Arc<dyn Store>,
    pub bucket: Arc<dyn Bucket>,
    pub running: Running,
    pub mutation: Option<Mutation>,
    pub shelf: Arc<Shelf>,
    pub flaw: Flaw,
}

/// The clock of one machine, which may jump.
#[derive(Debug)]
pub struct MachineClock {
    now_ms: Arc<AtomicU64>,
    /// How far the time of day is off, in milliseconds.
    pub off_ms: AtomicI64,
    ticks: AtomicU64,
}

impl Clock for MachineClock {
    fn now_ms(&self) -> i64 {
        let ms = i64::try_from(self.now_ms.load(Ordering::Relaxed)).unwrap();
        START_MS + ms + self.off_ms.load(Ordering::Relaxed)
    }

    fn nanos(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed) * 1_000_000 + self.ticks.fetch_add(1, Ordering::Relaxed)
    }
}

/// The processes of all brokers, the youngest last.
pub type Running = Arc<Mutex<Vec<(i32, Weak<Topics>)>>>;

/// The way to other brokers.
#[derive(Debug)]
struct Neighbours {
    running: Running,
    weather: Arc<Weather>,
}

impl Leaders for Neighbours {
    fn fetch(&self, moving: &Moving, leader: i32, from: Offset) -> Result<Fetched, JobError> {
        pause(Duration::ZERO);
        let all: Vec<_> =
            self.running.lock().iter().filter(|(broker, _)| *broker == leader).cloned().collect();
        let found = all.iter().rev().find_map(|(_, topics)| topics.upgrade()).ok_or(JobError::Away)?;
        if self.weather.strikes() {
            return Err(JobError::Away);
        }
        let partition = found.find_id(&moving.topic.id).and_then(|topic| topic.partition(moving.index));
        let partition = partition.ok_or(JobError::Away)?;
        // The clients of the simulation read in no task, and may wait for a read of this one.
        without_pauses(|| fetch_here(&partition, leader, from, 1 << 12))
    }
}

/// The disks of one process. Each log gets a new one.
#[derive(Debug)]
struct Disks {
    rng: Mutex<fastrand::Rng>,
    fails: AtomicBool,
    all: Mutex<Vec<SimDisk>>,
}

impl Directories for Disks {
    fn empty(&self, name: &str) -> io::Result<LocalDirectory> {
        let mut rng = self.rng.lock();
        if self.fails.load(Ordering::Relaxed) && rng.u8(..) < 64 {
            return Err(io::Error::other("the disk is broken"));
        }
        let disk = SimDisk::new(rng.u64(..));
        self.all.lock().push(disk.clone());
        Ok((name.to_owned(), Arc::new(disk) as Arc<dyn Disk>))
    }
}

/// A log of a process that is open, or was just closed.
struct Opened {
    steps: Steps,
    puts: Vec<Put>,
    closed: bool,
}

pub struct Process {
    pub broker: i32,
    pub member: Member,
    pub metadata: Arc<Metadata>,
    pub topics: Arc<Topics>,
    pub weather: Arc<Weather>,
    pub clock: Arc<MachineClock>,
    pub host: Host,
    moves: Moves,
    tasks: Arc<Tasks>,
    disks: Arc<Disks>,
    opened: Arc<Mutex<Vec<Opened>>>,
    /// Another process of this broker was started.
    pub former: bool,
    /// It is about to end.
    pub ends: bool,
    /// It does nothing until then, in milliseconds.
    stopped_until: Arc<AtomicU64>,
    /// Its disk with copies, and the work of the log there.
    pub copies: Arc<Copies>,
    of_copies: Mutex<Steps>,
    now_ms: Arc<AtomicU64>,
}

impl Process {
    /// Starts the process number `number` of all as `broker`, with the copies that are on `disk`.
    pub fn start(
        ground: &Ground,
        (broker, disk): (i32, &SimDisk),
        number: u64,
        rng: &mut fastrand::Rng,
    ) -> Process {
        let weather = Arc::new(Weather::new(rng.u64(..)));
        let store = ToEtcd { store: ground.store.clone(), weather: weather.clone() };
        let metadata = Metadata::open(Arc::new(store)).unwrap();
        let config = Arc::new(Config {
            node_id: broker,
            segment_bytes: 1 << 20,
            reserve_bytes: 0,
            tail_cache_bytes: 1 << 20,
            object_bytes: 4096,
            object_interval_ms: if rng.bool() { 0 } else { 5000 },
            diskless_interval_ms: 0,
            object_delete_delay_ms: 0,
            replica_bytes_min: if rng.bool() { 1 } else { 4096 },
            ..Config::default()
        });
        let tasks = Arc::new(Tasks::new(ground.now_ms.clone(), ground.runtime.clone(), rng.fork()));
        let to_store = ToStore { bucket: ground.bucket.clone(), weather: weather.clone() };
        let time = tasks.clone();
        let bucket = Arc::new(WatchedBucket::new(Arc::new(to_store), Box::new(move || time.now())));
        let clock = Arc::new(MachineClock {
            now_ms: ground.now_ms.clone(),
            off_ms: AtomicI64::new(0),
            ticks: AtomicU64::new(0),
        });
        let stopped_until = Arc::<AtomicU64>::default();
        let (kept, of_copies) = ground.shelf.open(disk, clock.clone(), rng.u128(..), stopped_until.clone());
        let Kept { copies, .. } = kept;
        let opened: Arc<Mutex<Vec<Opened>>> = Arc::default();
        let (kept, mutation) = (opened.clone(), ground.mutation);
        let opening = Opening {
            clock: clock.clone(),
            bucket: Some(bucket.clone() as Arc<dyn Bucket>),
            open_storage: Arc::new(move |disk, bucket, mut options, clock, listener| {
                options.mutation = mutation;
                let (log, steps) = Log::open_stepped(disk, bucket, options, clock, listener)?;
                kept.lock().push(Opened { steps, puts: Vec::new(), closed: false });
                Ok(log)
            }),
            ..Opening::of(Config::clone(&config))
        };
        let logs = Arc::new(Logs::moving(&config));
        let placement = Arc::new(Placement::alone(broker, None));
        let configs = ResourceConfigs::new(metadata.clone(), config);
        let topics = Topics::open(metadata.clone(), logs.clone(), configs, placement);
        let streams: Arc<dyn Streams> = topics.clone();
        assert!(opening.topics.set(Arc::downgrade(&streams)).is_ok());
        let (disks, fails) = (Mutex::new(rng.fork()), AtomicBool::new(false));
        let disks = Arc::new(Disks { rng: disks, fails, all: Mutex::default() });
        ground.running.lock().push((broker, Arc::downgrade(&topics)));
        let leaders = Neighbours { running: ground.running.clone(), weather: weather.clone() };
        let moves = Moves {
            topics: topics.clone(),
            leaders: Arc::new(leaders),
            local: broker,
            threads: tasks.clone(),
            clock: clock.clone(),
            busy: Arc::default(),
            sealed: Arc::default(),
            turns: Arc::default(),
        };
        let incarnation = Uuid::from_u128(u128::from(number));
        let to_disks = ToDisks {
            shelf: ground.shelf.clone(),
            weather: weather.clone(),
            now_ms: ground.now_ms.clone(),
            flaw: ground.flaw,
        };
        let host = Host::new(Parts {
            metadata: metadata.clone(),
            process: ownership::Process { broker, incarnation },
            disks: Arc::new(to_disks),
            copies: copies.clone(),
            logs,
            topics: topics.clone(),
            peers: Arc::default(),
            opening,
            bucket,
            directories: disks.clone(),
            threads: tasks.clone(),
        });
        let record = BrokerRecord {
            incarnation,
            listeners: BTreeMap::from([("PLAINTEXT".into(), ("b".into(), 9092))]),
            rack: None,
            version: "1".into(),
            leaving: false,
            without_store: false,
            low_on_space: false,
            disk: Some(Uuid::from_u128(copies.disk_id())),
        };
        let clock_of_member = tasks.clone();
        let clock_of_member = Box::new(move || clock_of_member.now());
        let member = Member::new(metadata.clone(), broker, record, TTL, clock_of_member);
        Process {
            broker,
            member,
            metadata,
            topics,
            weather,
            clock,
            host,
            moves,
            tasks,
            disks,
            opened,
            former: false,
            ends: false,
            stopped_until,
            copies,
            of_copies: Mutex::new(of_copies),
            now_ms: ground.now_ms.clone(),
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped_until.load(Ordering::Relaxed) > self.now_ms.load(Ordering::Relaxed)
    }

    /// Lets it do nothing until then, in milliseconds.
    pub fn stop_until(&self, ms: u64) {
        self.stopped_until.store(ms, Ordering::Relaxed);
    }

    /// What the threads of its membership do in one round. `looks` says whether it hears of the others' changes.
    pub fn turn(&mut self, looks: bool) {
        // Whatever fails is done in a later turn.
        if looks {
            let _ = self.metadata.refresh();
        }
        let _ = self.member.keep_alive();
        let _ = duties(&self.member, &mut self.host);
        self.moves.turn();
    }

    /// Lets one of the threads that open or close logs go on.
    pub fn step(&self, rng: &mut fastrand::Rng) -> bool {
        self.tasks.step(rng)
    }

    /// Lets one of the logs do a part of its work.
    pub fn work(&self, rng: &mut fastrand::Rng) {
        match rng.u8(0..10) {
            0 => drop(self.of_copies.lock().prepare()),
            1..4 => drop(self.of_copies.lock().write()),
            _ => self.work_on_log(rng),
        }
    }

    fn work_on_log(&self, rng: &mut fastrand::Rng) {
        let mut opened = self.opened.lock();
        if opened.is_empty() {
            return;
        }
        let at = rng.usize(..opened.len());
        let log = &mut opened[at];
        match rng.u8(0..16) {
            0..2 => drop(log.steps.prepare()),
            2..7 => log.closed |= !log.steps.write(),
            7..10 => log.steps.upload(),
            10..15 => {
                log.puts.extend(log.steps.puts());
                if !log.puts.is_empty() {
                    let put = rng.usize(..log.puts.len());
                    log.puts.swap_remove(put)();
                }
            }
            _ => log.steps.collect(rng.bool()),
        }
        if log.closed && log.puts.is_empty() {
            opened.swap_remove(at);
        }
    }

    /// Does all the work that there is.
    pub fn work_off(&self, rng: &mut fastrand::Rng) {
        for _ in 0..200 {
            let stepped = self.step(rng);
            let mut of_copies = self.of_copies.lock();
            while of_copies.prepare() {}
            of_copies.write();
            drop(of_copies);
            for log in self.opened.lock().iter_mut() {
                while log.steps.prepare() {}
                log.closed |= !log.steps.write();
                log.steps.upload();
                log.puts.extend(log.steps.puts());
                log.puts.drain(..).for_each(|put| put());
                log.steps.upload();
                log.steps.collect(rng.bool());
            }
            if !stepped {
                break;
            }
        }
    }

    /// Whether a thread opens or closes a log.
    pub fn is_busy(&self) -> bool {
        self.host.is_busy()
    }

    pub fn set_disk_fails(&self, fails: bool) {
        self.disks.fails.store(fails, Ordering::Relaxed);
    }

    /// No file is made any more on the disks of its logs.
    pub fn fill_disks(&self) {
        self.disks.all.lock().iter().for_each(|disk| disk.set_capacity(0));
    }

    /// Ends the process. Returns the puts that were on their way.
    pub fn kill(self) -> Vec<Put> {
        self.tasks.kill();
        let opened = std::mem::take(&mut *self.opened.lock());
        let puts = opened.into_iter().flat_map(|log| {
            let begun = log.steps.puts();
            log.puts.into_iter().chain(begun)
        });
        puts.collect()
    }
}
