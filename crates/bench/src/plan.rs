//! The plan of one test, and the state that its threads share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::driver::Driver;
use crate::keys::Keys;
use crate::ledger::Ledger;
use crate::stats::Stats;
use crate::workload::Workload;

/// The plan. It is constant during a test.
pub struct Plan {
    pub workload: Workload,
    pub driver: Driver,
    /// The topics, which are created for this test alone.
    pub topics: Vec<String>,
    /// The names of the groups of each topic.
    pub groups: Vec<Vec<String>>,
    pub payloads: Vec<Vec<u8>>,
    pub keys: Keys,
}

impl Plan {
    pub fn new(workload: Workload, driver: Driver) -> anyhow::Result<Plan> {
        let run: String = std::iter::repeat_with(fastrand::alphanumeric).take(7).collect();
        let topics: Vec<String> =
            (0..workload.topics).map(|topic| format!("test-topic-{topic:07}-{run}")).collect();
        let groups =
            |topic: &String| (0..workload.groups()).map(|group| format!("sub-{group:03}-{topic}")).collect();
        Ok(Plan {
            groups: topics.iter().map(groups).collect(),
            topics,
            payloads: workload.payloads()?,
            keys: Keys::new(),
            workload,
            driver,
        })
    }

    pub fn partitions(&self) -> usize {
        self.workload.partitions_per_topic as usize
    }

    /// Whether records of the topics get the server's time.
    pub fn appends_time(&self) -> bool {
        let name = "message.timestamp.type";
        let of_workload =
            self.workload.topic_properties().find(|(key, _)| key == name).map(|(_, value)| value);
        of_workload.as_ref().or(self.driver.topic.get(name)).is_some_and(|value| value == "LogAppendTime")
    }

    /// A value to send.
    pub fn payload(&self, random: &mut fastrand::Rng) -> &Vec<u8> {
        match &self.payloads[..] {
            [only] => only,
            many => &many[random.usize(..many.len())],
        }
    }

    /// A partition's index in the ledger.
    pub fn place(&self, topic: usize, partition: usize) -> usize {
        topic * self.partitions() + partition
    }

    /// The number of producers of all topics. Producer `n` sends to topic `n % topics`.
    pub fn producers(&self) -> usize {
        self.topics.len() * self.workload.producers_per_topic as usize
    }

    /// The number of consumers of all topics and groups.
    pub fn consumers(&self) -> usize {
        self.topics.len() * (self.workload.groups() * self.workload.consumer_per_subscription) as usize
    }
}

/// The state that the threads of a test share.
pub struct Run {
    pub plan: Plan,
    pub clock: Clock,
    pub stats: Stats,
    pub ledger: Ledger,
    pub control: Control,
}

impl Run {
    pub fn new(plan: Plan) -> Run {
        let partitions = plan.partitions();
        let name = |topic: &String| {
            (0..partitions).map(|partition| format!("{topic}-{partition}")).collect::<Vec<_>>()
        };
        let ledger = Ledger::new(plan.topics.iter().flat_map(name), plan.workload.groups());
        Run { plan, clock: Clock::start(), stats: Stats::default(), ledger, control: Control::default() }
    }
}

/// Controls the test, and collects the reports of its threads.
#[derive(Default)]
pub struct Control {
    rate: AtomicU64,
    rate_changes: AtomicU64,
    paused: AtomicBool,
    producing_ends: AtomicBool,
    ends: AtomicBool,
    ready: AtomicUsize,
    producers_done: AtomicUsize,
    failure: Mutex<Option<anyhow::Error>>,
    failed: AtomicBool,
}

impl Control {
    /// Messages per second over all producers, and the number of changes of this rate. Nothing is sent before the first
    /// change.
    pub fn rate(&self) -> (f64, u64) {
        let changes = self.rate_changes.load(Ordering::Acquire);
        (f64::from_bits(self.rate.load(Ordering::Acquire)), changes)
    }

    pub fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Release);
        self.rate_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether consumers are paused.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }

    /// Whether producers send only what they already have.
    pub fn producing_ends(&self) -> bool {
        self.producing_ends.load(Ordering::Acquire)
    }

    pub fn end_producing(&self) {
        self.producing_ends.store(true, Ordering::Release);
    }

    /// Whether all threads must stop at once.
    pub fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    pub fn end(&self) {
        self.end_producing();
        self.ends.store(true, Ordering::Release);
    }

    /// Counts one more connected producer or consumer.
    pub fn add_ready(&self) {
        self.ready.fetch_add(1, Ordering::AcqRel);
    }

    pub fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    /// Counts one more producer with everything acknowledged after the end of producing.
    pub fn add_done(&self) {
        self.producers_done.fetch_add(1, Ordering::AcqRel);
    }

    pub fn done(&self) -> usize {
        self.producers_done.load(Ordering::Acquire)
    }

    /// Ends the test with `error`. The first error counts.
    pub fn fail(&self, error: anyhow::Error) {
        self.failure.lock().get_or_insert(error);
        self.failed.store(true, Ordering::Release);
        self.end();
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub fn take_failure(&self) -> Option<anyhow::Error> {
        self.failure.lock().take()
    }
}
