//! One test: its topics, its clients, its warm-up, its measured part, and the wait until everything acknowledged was
//! received.
//!
//! A broken promise of the server ends the test with an error and without a result.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};

use crate::arguments::{Engine, RunArguments};
use crate::clock::{Nanos, nanos};
use crate::driver::Driver;
use crate::phase::{BacklogPlan, PROGRESS_TIMEOUT, Phases, Step, seconds};
use crate::plan::{Plan, Run};
use crate::progress::Progress;
use crate::rate::{CONTROL_PERIOD, FIRST_RATE, RateController};
use crate::result::{Bench, LatencySeries, TestResult};
use crate::stats::{Latencies, Totals, aggregate, summary};
use crate::usage::{Observer, Stolen, environment};
use crate::workload::Workload;
use crate::{native, timestamp, usage};

/// Interval at which a test's state is checked.
const LOOK: Duration = Duration::from_millis(20);
/// Time for clients to connect and for groups to assign their partitions.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after the end without progress of the consumers, after which missing messages count as lost.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for producers to deliver: somewhat more than Java's default `delivery.timeout.ms`.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(150);

/// Runs one workload at one rate with one driver.
pub fn test(workload: Workload, driver: Driver, arguments: &RunArguments) -> anyhow::Result<TestResult> {
    if workload.groups() > crate::ledger::GROUPS_MAX {
        bail!("subscriptionsPerTopic is {} at most", crate::ledger::GROUPS_MAX);
    }
    let plan = Plan::new(workload, driver)?;
    let set = |name: &str, value: &str| plan.driver.producer.get(name).is_some_and(|is| is == value);
    if arguments.engine == Engine::Native && set("acks", "0") && plan.appends_time() {
        bail!(
            "acks=0 and message.timestamp.type=LogAppendTime do not go together: batches that the server changes and does \
             not acknowledge cannot be verified"
        );
    }
    let run = Arc::new(Run::new(plan));
    let layout = native::create_topics(&run)?;
    let threads = match arguments.engine {
        Engine::Native => {
            let threads = arguments.threads.map_or_else(default_threads, |threads| threads as usize);
            native::start(&run, layout, threads)
        }
        #[cfg(feature = "librdkafka")]
        Engine::Librdkafka => crate::librdkafka::start(&run),
    };
    let result = threads.and_then(|threads| {
        let measured = Measurement::new(&run, arguments).and_then(Measurement::run);
        end(&run, threads, measured)
    });
    if !arguments.keep_topics
        && let Err(error) = native::delete_topics(&run)
        && result.is_ok()
    {
        eprintln!("the topics could not be removed: {error:#}");
    }
    result
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |all| all.get() / 4).max(1)
}

/// Ends all threads. The first failure of a thread is the failure of the test.
fn end(
    run: &Run,
    threads: Vec<JoinHandle<()>>,
    result: anyhow::Result<TestResult>,
) -> anyhow::Result<TestResult> {
    run.control.end();
    let mut panicked = false;
    for thread in threads {
        panicked |= thread.join().is_err();
    }
    if let Some(error) = run.control.take_failure() {
        return Err(error);
    }
    if panicked {
        bail!("a thread of the load generator panicked, which is a bug");
    }
    result
}

/// A test in progress.
struct Measurement<'a> {
    run: &'a Run,
    sample: Nanos,
    observer: Observer,
    /// A process to kill, and when.
    victim: Option<(u32, Nanos)>,
    stolen: Stolen,
    result: TestResult,
    /// The latencies of all samples except the last.
    all: Latencies,
    last: Latencies,
    controller: Option<(RateController, f64, Nanos)>,
    progress: Progress,
}

impl Measurement<'_> {
    fn new<'a>(run: &'a Run, arguments: &'a RunArguments) -> anyhow::Result<Measurement<'a>> {
        let plan = &run.plan;
        let short = plan.workload.test_duration() <= Duration::from_secs(300);
        let sample_seconds = arguments.sample_seconds.unwrap_or(if short { 1.0 } else { 10.0 });
        let sample = Duration::try_from_secs_f64(sample_seconds).unwrap_or_default();
        if sample < Duration::from_millis(100) {
            bail!("--sample-seconds is 0.1 at least");
        }
        let mut environment = environment(arguments.server_data_dir.as_deref());
        environment.server_cpus.clone_from(&arguments.server_cpus);
        environment.load_cpus.clone_from(&arguments.load_cpus);
        let shown = [
            "acks",
            "linger.ms",
            "batch.size",
            "compression.type",
            "enable.idempotence",
            "security.protocol",
        ];
        let of_producer = shown
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), plan.driver.producer.get(*name)?.clone())));
        let name = "max.partition.fetch.bytes";
        let of_consumer = plan.driver.consumer.get(name).map(|value| (name.to_owned(), value.clone()));
        let bench = Bench {
            version: env!("CARGO_PKG_VERSION").into(),
            engine: arguments.engine.name().into(),
            contender: arguments.contender.clone(),
            round: arguments.round,
            durability: arguments.durability.clone(),
            setup: arguments.server_setup.iter().cloned().collect(),
            sample_seconds,
            producer_rate: plan.workload.producer_rate,
            groups: plan.workload.groups(),
            client: of_producer.chain(of_consumer).collect(),
            environment,
            ..Bench::default()
        };
        let workload = &plan.workload;
        let result = TestResult {
            workload: workload.name.clone(),
            driver: plan.driver.name.clone(),
            message_size: workload.message_size as u64,
            topics: workload.topics,
            partitions: workload.partitions_per_topic,
            producers_per_topic: workload.producers_per_topic,
            consumers_per_topic: workload.consumer_per_subscription,
            bench,
            ..TestResult::default()
        };
        let observer = Observer::new(&arguments.server_pid, arguments.server_data_dir.clone());
        let victim = arguments.kill_pid.zip(arguments.kill_after);
        let victim =
            victim.map(|(pid, after)| (pid, nanos(Duration::try_from_secs_f64(after).unwrap_or_default())));
        Ok(Measurement {
            run,
            sample: nanos(sample),
            observer,
            victim,
            stolen: Stolen::default(),
            result,
            all: Latencies::new(),
            last: Latencies::new(),
            controller: None,
            progress: Progress::new(),
        })
    }

    fn run(mut self) -> anyhow::Result<TestResult> {
        self.wait_until_ready()?;
        self.begin_load();
        self.warm_up()?;
        self.measure()?;
        self.settle()?;
        self.progress.end();
        Ok(self.result)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let clients = self.run.plan.producers() + self.run.plan.consumers();
        let until = Instant::now() + READY_TIMEOUT;
        while self.run.control.ready() < clients {
            self.look()?;
            if Instant::now() > until {
                let ready = self.run.control.ready();
                bail!("only {ready} of {clients} clients were ready after {} s", READY_TIMEOUT.as_secs());
            }
        }
        Ok(())
    }

    /// Waits a little. Fails if a client has failed.
    fn look(&self) -> anyhow::Result<()> {
        std::thread::sleep(LOOK);
        if self.run.control.has_failed() { bail!("a client failed") } else { Ok(()) }
    }

    fn begin_load(&mut self) {
        let rate = self.run.plan.workload.producer_rate;
        if rate > 0.0 {
            self.run.control.set_rate(rate);
            return;
        }
        self.run.control.set_rate(FIRST_RATE);
        let totals = self.run.stats.totals();
        let controller = RateController::new(totals.published, self.received_by_one(totals));
        self.controller = Some((controller, FIRST_RATE, self.run.clock.now()));
    }

    /// The messages that one group has received, on average.
    fn received_by_one(&self, totals: Totals) -> u64 {
        match u64::from(self.run.plan.workload.groups()) {
            0 => totals.published,
            groups => totals.received / groups,
        }
    }

    fn backlog(&self, totals: Totals) -> u64 {
        (totals.published * u64::from(self.run.plan.workload.groups())).saturating_sub(totals.received)
    }

    fn control_rate(&mut self, now: Nanos, totals: Totals) {
        let received = self.received_by_one(totals);
        let Some((controller, rate, since)) = &mut self.controller else { return };
        if now - *since < nanos(CONTROL_PERIOD) {
            return;
        }
        *rate = controller.next_rate(*rate, Duration::from_nanos(now - *since), totals.published, received);
        *since = now;
        self.run.control.set_rate(*rate);
    }

    fn warm_up(&mut self) -> anyhow::Result<()> {
        let begun = self.run.clock.now();
        let until = begun + nanos(self.run.plan.workload.warmup_duration());
        let mut before = (begun, self.run.stats.totals());
        loop {
            let now = self.run.clock.now();
            if now >= until {
                break;
            }
            self.look()?;
            let totals = self.run.stats.totals();
            self.control_rate(now, totals);
            if now - before.0 >= self.sample {
                self.progress.say(
                    "warming up",
                    seconds(now - before.0),
                    totals - before.1,
                    self.backlog(totals),
                    None,
                    Some(seconds(until - now)),
                );
                before = (now, totals);
            }
        }
        // Measurements before this point, and the rate sustained so far, are not part of the test.
        self.run.stats.take(&mut Latencies::new());
        if let Some((controller, ..)) = &mut self.controller {
            controller.forget_sustained();
        }
        Ok(())
    }

    fn measure(&mut self) -> anyhow::Result<()> {
        self.result.bench.begin_time = timestamp::rfc3339(SystemTime::now());
        self.observer.begin();
        self.stolen = Stolen::of(self.result.bench.environment.cpus);
        let begun = self.run.clock.now();
        let first = self.run.stats.totals();
        let workload = &self.run.plan.workload;
        let plan = BacklogPlan::new(
            workload.consumer_backlog_size_gb,
            workload.message_size,
            workload.backlog_drain_ratio,
        );
        let (mut phases, step) = Phases::begin(begun, workload.test_duration(), plan);
        self.run.control.pause(step == Step::Pause);
        let mut before = (begun, first);
        loop {
            self.look()?;
            let now = self.run.clock.now();
            let totals = self.run.stats.totals();
            self.control_rate(now, totals);
            self.kill_when_due(now - begun)?;
            let step = phases.look(now, self.backlog(totals), totals.received);
            if step == Step::Resume {
                self.run.control.pause(false);
            }
            if step == Step::Stuck {
                bail!(
                    "{}: no progress for {} s, {} messages wait",
                    phases.name(),
                    PROGRESS_TIMEOUT.as_secs(),
                    self.backlog(totals)
                );
            }
            if now - before.0 >= self.sample || step == Step::End {
                self.take_sample(seconds(now - before.0), totals - before.1, totals, &phases, now);
                before = (now, totals);
            }
            if step == Step::End {
                self.conclude(seconds(now - begun), totals - first, &phases);
                return Ok(());
            }
        }
    }

    fn kill_when_due(&mut self, elapsed: Nanos) -> anyhow::Result<()> {
        let Some((pid, _)) = self.victim.take_if(|(_, due)| elapsed >= *due) else { return Ok(()) };
        usage::kill(pid).with_context(|| format!("the process {pid} cannot be killed"))?;
        self.result.bench.killed_after = Some(seconds(elapsed));
        Ok(())
    }

    fn take_sample(&mut self, length: f64, since: Totals, totals: Totals, phases: &Phases, now: Nanos) {
        let mut latencies = Latencies::new();
        self.run.stats.take(&mut latencies);
        let result = &mut self.result;
        result.publish_rate.push(since.published as f64 / length);
        result.publish_error_rate.push(since.failed as f64 / length);
        result.consume_rate.push(since.received as f64 / length);
        result.publish_latency.samples.push(summary(&latencies.publish));
        result.publish_delay.samples.push(summary(&latencies.delay));
        result.end_to_end_latency.samples.push(summary(&latencies.end_to_end));
        result.bench.stolen.extend(self.stolen.share(length));
        self.all.drain(&mut self.last);
        self.last = latencies;
        let backlog = self.backlog(totals);
        self.result.backlog.push(backlog);
        let p99 = summary(&self.last.publish).percentile(99.0);
        self.progress.say(phases.name(), length, since, backlog, p99, phases.left(now));
    }

    /// Collects the remaining latencies after the last answer. Messages that were due in the measured part and answered
    /// after it count too, in the last sample.
    fn conclude_latencies(&mut self) {
        self.run.stats.take(&mut self.last);
        let series: [(&mut LatencySeries, _, _); 3] = [
            (&mut self.result.publish_latency, &mut self.all.publish, &self.last.publish),
            (&mut self.result.publish_delay, &mut self.all.delay, &self.last.delay),
            (&mut self.result.end_to_end_latency, &mut self.all.end_to_end, &self.last.end_to_end),
        ];
        for (series, all, last) in series {
            if let Some(sample) = series.samples.last_mut() {
                *sample = summary(last);
            }
            all.add(last).expect("all have the same bounds");
            aggregate(series, all);
        }
    }

    fn conclude(&mut self, length: f64, measured: Totals, phases: &Phases) {
        let observed = self.observer.end();
        let bench = &mut self.result.bench;
        bench.seconds = length;
        bench.published_messages = measured.published;
        bench.published_bytes = measured.published_bytes;
        bench.published_batch_bytes = Some(measured.published_batch_bytes).filter(|bytes| *bytes > 0);
        bench.consumed_messages = measured.received;
        bench.consumed_bytes = measured.received_bytes;
        bench.backlog = phases.backlog;
        bench.sustainable_rate = self.controller.as_ref().and_then(|(controller, ..)| controller.sustained());
        bench.server = observed.server;
        bench.device = observed.device;
        bench.load_cpu_seconds = observed.load_cpu_seconds;
    }

    /// Waits until everything acknowledged was received. Missing messages are a failure.
    fn settle(&mut self) -> anyhow::Result<()> {
        let control = &self.run.control;
        control.pause(false);
        control.end_producing();
        let until = Instant::now() + DELIVERY_TIMEOUT;
        while control.done() < self.run.plan.producers() {
            self.look()?;
            if Instant::now() > until {
                bail!(
                    "producers did not get everything acknowledged within {} s",
                    DELIVERY_TIMEOUT.as_secs()
                );
            }
        }
        let mut received = self.run.stats.totals().received;
        let mut progress = Instant::now();
        while !self.run.ledger.is_settled() && progress.elapsed() < SETTLE_TIMEOUT {
            self.look()?;
            let now = self.run.stats.totals().received;
            if now != received {
                (received, progress) = (now, Instant::now());
            }
        }
        let failed = self.run.stats.totals().failed;
        let violations = self.run.ledger.settle(self.run.stats.is_uncertain());
        match &violations[..] {
            [] => {}
            [only] => bail!("{only}"),
            [first, more @ ..] => bail!("{first} (and {} more partitions)", more.len()),
        }
        self.conclude_latencies();
        self.result.bench.deleted_messages = native::deleted_messages(self.run);
        self.result.bench.publish_errors = failed;
        self.result.bench.verified = self.run.plan.consumers() > 0;
        Ok(())
    }
}
