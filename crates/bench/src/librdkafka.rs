//! The engine on `librdkafka`, the C library below most clients, to measure what such clients see of a server.
//!
//! Java's settings are translated. Groups use the group protocol, and are joined before the load begins. A message is
//! identified by its partition and offset. In the ledger, its CRC is that of its value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use client::Properties;
use parking_lot::Mutex;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::RDKafkaErrorCode::{PurgeInflight, PurgeQueue};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use crate::clock::Nanos;
use crate::ledger::{BatchId, Schedule};
use crate::pacer::Pacer;
use crate::plan::Run;
use crate::stats::{Latencies, record};

/// Interval at which a producer's thread checks what is due.
const TICK: Duration = Duration::from_micros(100);
const POLL: Duration = Duration::from_millis(20);
/// As in the native engine, and as in the published experiments.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// A server that is away is asked again. After this number of errors in a row it counts as lost.
const ERRORS_MAX: u32 = 50;
/// The library retries for as long as a message may take, which is minutes. A client that cannot reach its server for
/// this time has lost it.
const OUTAGE_MAX: Duration = Duration::from_secs(10);
/// Requests in flight of an idempotent producer.
const IN_FLIGHT_MAX: u32 = 5;
/// Time-out of a last question to the server before it counts as lost.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts a thread for each producer and each consumer. The library has further threads.
pub fn start(run: &Arc<Run>) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let mut started = Vec::new();
    let plan = &run.plan;
    let members = plan.workload.consumer_per_subscription as usize;
    for topic in 0..plan.topics.len() {
        for group in 0..plan.groups[topic].len() {
            let assignments = Arc::new(Assignments::new(members, plan.partitions()));
            for member in 0..members {
                let (shared, assignments) = (run.clone(), assignments.clone());
                let work = move || consume(&shared, topic, group, member, assignments);
                started.push(spawn(run, format!("consumer-{topic}-{group}-{member}"), work)?);
            }
        }
    }
    for number in 0..plan.producers() {
        let shared = run.clone();
        started.push(spawn(run, format!("producer-{number}"), move || produce(&shared, number))?);
    }
    Ok(started)
}

fn spawn(
    run: &Arc<Run>,
    name: String,
    work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<JoinHandle<()>> {
    let run = run.clone();
    let thread = move || {
        if let Err(error) = work() {
            run.control.fail(error);
        }
    };
    std::thread::Builder::new().name(name).spawn(thread).context("a thread cannot be started")
}

/// Java's settings under the library's names. `None` for a setting without a counterpart.
fn translated(properties: &Properties) -> BTreeMap<String, String> {
    const JAVA_ONLY: [&str; 9] = [
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "default.api.timeout.ms",
        "max.poll.records",
        "max.block.ms",
        "ssl.truststore.type",
        "ssl.keystore.type",
    ];
    let mut all = BTreeMap::new();
    for (name, value) in properties {
        let mut set = |name: &str, value: &str| drop(all.insert(name.to_owned(), value.to_owned()));
        match name.as_str() {
            name if JAVA_ONLY.contains(&name) => {}
            "buffer.memory" => {
                let bytes: u64 = value.parse().unwrap_or(33_554_432);
                set("queue.buffering.max.kbytes", &(bytes / 1024).max(1).to_string());
            }
            "max.request.size" => set("message.max.bytes", value),
            "fetch.max.wait.ms" => set("fetch.wait.max.ms", value),
            "ssl.truststore.location" => set("ssl.ca.location", value),
            "ssl.keystore.location" => {
                set("ssl.certificate.location", value);
                set("ssl.key.location", value);
            }
            "sasl.jaas.config" => {
                for (ours, option) in [("sasl.username", "username"), ("sasl.password", "password")] {
                    sasl::jaas::option(value, option).into_iter().for_each(|value| set(ours, &value));
                }
            }
            name => set(name, value),
        }
    }
    all
}

/// Whether a producer is idempotent unless it says otherwise, as in Java (KIP-679): its other settings do not contradict.
fn may_be_idempotent(properties: &BTreeMap<String, String>) -> bool {
    let of = |name: &str| properties.get(name).map(String::as_str);
    let in_flight = of("max.in.flight.requests.per.connection").and_then(|text| text.parse().ok());
    matches!(of("acks"), None | Some("all" | "-1")) && in_flight.is_none_or(|most: u32| most <= IN_FLIGHT_MAX)
}

/// A client with these settings. Settings that the library does not know are left out and reported once per run.
fn client<C: ClientContext, T: FromClientConfigAndContext<C>>(
    properties: BTreeMap<String, String>,
    context: impl Fn() -> C,
) -> anyhow::Result<T> {
    static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut properties = properties;
    loop {
        let mut config = ClientConfig::new();
        for (name, value) in &properties {
            config.set(name, value);
        }
        match config.create_with_context(context()) {
            Ok(client) => return Ok(client),
            Err(KafkaError::ClientConfig(_, what, name, _)) if what.starts_with("No such") => {
                properties.remove(&name);
                if NAMED.lock().insert(name.clone()) {
                    eprintln!(
                        "settings of clients: ignored, because librdkafka has none of the name: {name}"
                    );
                }
            }
            Err(error) => return Err(error).context("librdkafka refuses the settings"),
        }
    }
}

/// The complaints of a client about its server: the time of the first, and the text of the last.
#[derive(Default)]
struct Outage(Mutex<Option<(Instant, String)>>);

impl Outage {
    fn note(&self, error: &KafkaError, reason: &str) {
        let outage = &mut *self.0.lock();
        let all_down = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        match outage {
            // This error says less than the one before.
            Some(_) if all_down => {}
            Some((_, last)) => reason.clone_into(last),
            None => *outage = Some((Instant::now(), reason.to_owned())),
        }
    }

    /// Fails if a complaint is old enough and the server does not answer `client` now.
    fn check<C: ClientContext>(&self, client: &Client<C>, topic: &str) -> anyhow::Result<()> {
        let due =
            |(since, reason): &(Instant, String)| (since.elapsed() >= OUTAGE_MAX).then(|| reason.clone());
        let Some(reason) = self.0.lock().as_ref().and_then(due) else { return Ok(()) };
        let asked = client.fetch_metadata(Some(topic), ASK_TIMEOUT);
        asked.with_context(|| format!("the server does not answer any more: {reason}"))?;
        *self.0.lock() = None;
        Ok(())
    }
}

/// Receives delivery reports.
struct Reports {
    run: Arc<Run>,
    outage: Arc<Outage>,
    topic: usize,
    latencies: Arc<Mutex<Latencies>>,
}

impl ClientContext for Reports {
    fn error(&self, error: KafkaError, reason: &str) {
        self.outage.note(&error, reason);
    }
}

impl ProducerContext for Reports {
    /// The due time of the message.
    type DeliveryOpaque = Box<Nanos>;

    fn delivery(&self, result: &DeliveryResult<'_>, due: Box<Nanos>) {
        let now = self.run.clock.now();
        let taken = match result {
            Ok(message) => {
                let value = message.payload().unwrap_or_default();
                self.run.stats.published(1, value.len() as u64);
                let mut latencies = self.latencies.lock();
                record(&mut latencies.publish, now.saturating_sub(*due));
                let id = BatchId { base_offset: message.offset(), count: 1, crc: Some(model::crc32c(value)) };
                let partition = usize::try_from(message.partition()).unwrap_or(0);
                let place = self.run.plan.place(self.topic, partition);
                let schedule = Schedule::new(&[*due]);
                self.run
                    .ledger
                    .published(place, id, schedule, |latency| record(&mut latencies.end_to_end, latency))
                    .map_err(anyhow::Error::from)
            }
            // Messages discarded in the end were never acknowledged.
            Err(_) if self.run.control.ends() => Ok(()),
            // A producer that has failed discards its messages and reports the reason itself.
            Err((KafkaError::MessageProduction(PurgeQueue | PurgeInflight), _)) => Ok(()),
            Err((error, _)) => {
                self.run.stats.failed(1);
                Err(anyhow::Error::new(error.clone()).context("a message could not be delivered"))
            }
        };
        if let Err(error) = taken {
            self.run.control.fail(error);
        }
    }
}

fn produce(run: &Arc<Run>, number: usize) -> anyhow::Result<()> {
    let plan = &run.plan;
    let topic = number % plan.topics.len();
    let latencies = run.stats.latencies();
    let mut properties = translated(&plan.driver.producer);
    // The Java client's choice of partitions, so that both engines load a server in the same way.
    properties.entry("partitioner".into()).or_insert_with(|| "murmur2_random".into());
    if may_be_idempotent(&properties) {
        properties.entry("enable.idempotence".into()).or_insert_with(|| "true".into());
    }
    let outage = Arc::new(Outage::default());
    let reports =
        || Reports { run: run.clone(), outage: outage.clone(), topic, latencies: latencies.clone() };
    let producer: BaseProducer<Reports> = client(properties, reports)?;
    run.control.add_ready();
    let mut pacer = Pacer::new(plan.producers(), number);
    let mut random = fastrand::Rng::with_seed(number as u64);
    let mut count = 0;
    while !run.control.ends() {
        producer.poll(Duration::ZERO);
        outage.check(producer.client(), &plan.topics[topic])?;
        let now = run.clock.now();
        pacer.follow(run.control.rate(), now);
        if run.control.producing_ends() {
            pacer.end();
            if producer.in_flight_count() == 0 {
                run.control.add_done();
                break;
            }
        }
        while let Some(due) = pacer.due(now) {
            let payload = plan.payload(&mut random);
            let record_of = BaseRecord::with_opaque_to(&plan.topics[topic], Box::new(due)).payload(payload);
            let key = plan.keys.choose(plan.workload.key_distributor, count, due);
            let sent = match key {
                Some(key) => producer.send(record_of.key(key)).map_err(|(error, _)| error),
                None => producer.send::<[u8], _>(record_of).map_err(|(error, _)| error),
            };
            match sent {
                Ok(()) => {}
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => break,
                Err(error) => return Err(error).context("a message was refused"),
            }
            record(&mut latencies.lock().delay, now - due);
            pacer.advance();
            count += 1;
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// The number of partitions of each group member.
struct Assignments {
    members: Mutex<(Vec<Option<usize>>, bool)>,
    partitions: usize,
}

impl Assignments {
    fn new(members: usize, partitions: usize) -> Assignments {
        Assignments { members: Mutex::new((vec![None; members], false)), partitions }
    }

    /// Sets a member's partitions. Returns whether the group is now complete for the first time: every member has
    /// reported, and every partition is assigned once.
    fn set(&self, member: usize, partitions: Option<usize>) -> bool {
        let (members, complete) = &mut *self.members.lock();
        members[member] = partitions;
        let heard: Option<usize> = members.iter().copied().sum();
        let now = !*complete && heard == Some(self.partitions);
        *complete |= now;
        now
    }
}

struct Membership {
    run: Arc<Run>,
    outage: Arc<Outage>,
    member: usize,
    members: usize,
    assignments: Arc<Assignments>,
}

impl ClientContext for Membership {
    fn error(&self, error: KafkaError, reason: &str) {
        self.outage.note(&error, reason);
    }
}

impl ConsumerContext for Membership {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(_) = rebalance {
            // An error means that there is nothing to commit.
            let _ = consumer.commit_consumer_state(CommitMode::Sync);
            self.assignments.set(self.member, None);
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance
            && self.assignments.set(self.member, Some(partitions.count()))
        {
            (0..self.members).for_each(|_| self.run.control.add_ready());
        }
    }
}

fn consume(
    run: &Arc<Run>,
    topic: usize,
    group: usize,
    member: usize,
    assignments: Arc<Assignments>,
) -> anyhow::Result<()> {
    let plan = &run.plan;
    let mut properties = translated(&plan.driver.consumer);
    properties.insert("group.id".into(), plan.groups[topic][group].clone());
    properties.insert("enable.auto.commit".into(), "false".into());
    properties.insert("auto.offset.reset".into(), "earliest".into());
    properties.entry("check.crcs".into()).or_insert_with(|| "true".into());
    let members = plan.workload.consumer_per_subscription as usize;
    let outage = Arc::new(Outage::default());
    let membership = || Membership {
        run: run.clone(),
        outage: outage.clone(),
        member,
        members,
        assignments: assignments.clone(),
    };
    let consumer: BaseConsumer<Membership> = client(properties, membership)?;
    consumer.subscribe(&[&plan.topics[topic]]).context("subscribing")?;
    let consumed = consume_with(&consumer, run, topic, group, &outage);
    if consumed.is_err() || run.control.has_failed() {
        // Leaving the group needs a server that answers, and the library waits for it without limit. The process ends
        // soon.
        std::mem::forget(consumer);
    }
    consumed
}

/// Polls until the end of the test.
fn consume_with(
    consumer: &BaseConsumer<Membership>,
    run: &Run,
    topic: usize,
    group: usize,
    outage: &Outage,
) -> anyhow::Result<()> {
    let plan = &run.plan;
    let latencies = run.stats.latencies();
    let mut resting = false;
    let mut errors = 0;
    let mut commit_at = Instant::now() + COMMIT_INTERVAL;
    while !run.control.ends() {
        // A paused consumer keeps polling. Otherwise it would lose its place in the group.
        if resting != run.control.is_paused() {
            resting = !resting;
            let mine = consumer.assignment()?;
            if resting { consumer.pause(&mine)? } else { consumer.resume(&mine)? }
        }
        match consumer.poll(POLL) {
            None => outage.check(consumer.client(), &plan.topics[topic])?,
            Some(Ok(message)) => {
                errors = 0;
                let at = run.clock.now();
                let value = message.payload().unwrap_or_default();
                let id = BatchId { base_offset: message.offset(), count: 1, crc: Some(model::crc32c(value)) };
                let place = plan.place(topic, usize::try_from(message.partition()).unwrap_or(0));
                let mut latencies = latencies.lock();
                run.ledger
                    .received(place, group, id, at, |latency| record(&mut latencies.end_to_end, latency))?;
                run.stats.received(1, value.len() as u64);
            }
            Some(Err(error)) => {
                errors += 1;
                if errors > ERRORS_MAX || matches!(error, KafkaError::MessageConsumptionFatal(_)) {
                    return Err(error).context("consuming failed");
                }
            }
        }
        if Instant::now() >= commit_at {
            commit_at = Instant::now() + COMMIT_INTERVAL;
            // An error means that there is nothing to commit.
            let _ = consumer.commit_consumer_state(CommitMode::Async);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn javas_names_are_translated() {
        let pairs = [
            ("buffer.memory", "2048"),
            ("linger.ms", "1"),
            ("key.serializer", "x"),
            ("ssl.keystore.location", "k.pem"),
            ("sasl.jaas.config", "M required username=\"u\" password=\"p\";"),
        ];
        let properties =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let expected = [
            ("linger.ms", "1"),
            ("queue.buffering.max.kbytes", "2"),
            ("sasl.password", "p"),
            ("sasl.username", "u"),
            ("ssl.certificate.location", "k.pem"),
            ("ssl.key.location", "k.pem"),
        ];
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(translated(&properties), expected);
    }

    #[test]
    fn producers_are_idempotent_where_java_makes_them_so() {
        let may_be = |pairs: &[(&str, &str)]| {
            may_be_idempotent(&pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
        };
        assert!(may_be(&[]) && may_be(&[("acks", "all"), ("max.in.flight.requests.per.connection", "5")]));
        assert!(!may_be(&[("acks", "1")]) && !may_be(&[("max.in.flight.requests.per.connection", "6")]));
    }

    #[test]
    fn a_group_is_complete_when_every_partition_is_given_out_once() {
        let assignments = Assignments::new(2, 16);
        assert!(!assignments.set(0, Some(16)));
        // The second member joins and is told first.
        assert!(!assignments.set(1, Some(8)));
        assert!(!assignments.set(0, None));
        assert!(assignments.set(0, Some(8)));
        assert!(!assignments.set(0, Some(8)), "it counts once");
    }
}
