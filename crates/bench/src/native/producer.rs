//! Producers of the native engine, many per thread.
//!
//! Each producer has its own schedule. Its messages are due at regular intervals and stay due if the server is slow, so
//! that the wait counts (no coordinated omission). Due messages go to the accumulator. Ready batches are sent while
//! `max.in.flight.requests.per.connection` allows. A task for each connection receives the answers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use client::{Security, error_name};
use model::batch::{HEADER_BYTES, add_sequence};
use parking_lot::Mutex;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::produce_response::PartitionProduceResponse;
use wire::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use wire::{Bytes, ErrorCode, Records, Text};

use crate::clock::{Nanos, nanos};
use crate::ledger::{BatchId, Schedule};
use crate::native::accumulator::{Accumulator, Gathered};
use crate::native::admin::Layout;
use crate::native::connection::{Receiver, Sender, call, connect};
use crate::native::timer::Timer;
use crate::pacer::Pacer;
use crate::plan::Run;
use crate::settings::ProducerSettings;
use crate::stats::{Latencies, record};

/// Minimum interval between wake-ups of a thread. Messages due within it are handled together.
const TICK: Nanos = 100_000;
/// The interval while nothing may be sent.
const BLOCKED_TICK: Nanos = 1_000_000;
/// Bound of the messages that a lagging producer handles at a time, before the others get their turn.
const BURST_MAX: usize = 2_000;
/// Maximum interval between checks of the control.
const IDLE: Nanos = 20_000_000;
/// Wait before a refused batch is sent again (Java's `retry.backoff.ms`).
const RETRY_BACKOFF: Duration = Duration::from_millis(100);

/// A batch that was sent.
struct Sent {
    partition: usize,
    batch: Bytes,
    count: u32,
    sequence: i32,
    due: Vec<Nanos>,
    first_sent: Nanos,
}

/// A connection to a leader.
struct Link {
    sender: Sender,
    /// Requests that wait for their answers.
    in_flight: VecDeque<(Nanos, Vec<Sent>)>,
}

struct Partition {
    link: usize,
    sequence: i32,
    in_flight: usize,
    /// A batch was acknowledged. A server takes any first sequence of a producer that it does not know, so nothing may follow a
    /// first batch that can still be refused.
    is_known: bool,
    /// Batches refused with a retriable error. They are sent again, in the order of their sequences, when nothing else
    /// is in flight.
    refused: Vec<Sent>,
}

/// One producer.
pub struct Producer {
    run: Arc<Run>,
    settings: Rc<ProducerSettings>,
    latencies: Arc<Mutex<Latencies>>,
    accumulator: Accumulator,
    topic: usize,
    topic_name: Text,
    links: Vec<Link>,
    partitions: Vec<Partition>,
    /// Producer id and epoch of an idempotent producer; otherwise -1.
    id: (i64, i16),
    message_count: u64,
    pacer: Pacer,
    random: fastrand::Rng,
    done: bool,
}

/// Connects the producers of one thread and runs them until the end.
pub async fn run(run: Arc<Run>, layout: Arc<Layout>, numbers: Vec<usize>) -> anyhow::Result<()> {
    let settings = Rc::new(ProducerSettings::of(&run.plan.driver.producer)?.0);
    let security = Security::of(&run.plan.driver.producer)?;
    let latencies = run.stats.latencies();
    let mut producers = Vec::new();
    for number in numbers {
        producers.push(Producer::connect(&run, &layout, &settings, &security, &latencies, number).await?);
        run.control.add_ready();
    }
    let timer = Timer::new().context("a timer cannot be made")?;
    while !run.control.ends() {
        let now = run.clock.now();
        let mut next = now + IDLE;
        for producer in &producers {
            next = next.min(producer.borrow_mut().tick(now)?);
        }
        let now = run.clock.now();
        timer.sleep(next.saturating_sub(now).max(TICK)).await?;
    }
    for producer in &producers {
        producer.borrow().links.iter().for_each(|link| link.sender.close());
    }
    Ok(())
}

impl Producer {
    async fn connect(
        run: &Arc<Run>,
        layout: &Layout,
        settings: &Rc<ProducerSettings>,
        security: &Security,
        latencies: &Arc<Mutex<Latencies>>,
        number: usize,
    ) -> anyhow::Result<Rc<RefCell<Producer>>> {
        let topic = number % run.plan.topics.len();
        let leaders = &layout.leaders[topic];
        let mut servers: Vec<usize> = leaders.clone();
        servers.sort_unstable();
        servers.dedup();
        let mut links = Vec::new();
        let mut receivers = Vec::new();
        for server in &servers {
            let (sender, receiver) = connect(&layout.servers[*server], security).await?;
            links.push(Link { sender, in_flight: VecDeque::new() });
            receivers.push(receiver);
        }
        let id = if settings.idempotent {
            producer_id(&links[0].sender, &mut receivers[0]).await?
        } else {
            (-1, -1)
        };
        let partition = |leader: &usize| Partition {
            link: servers.binary_search(leader).expect("every leader has a connection"),
            sequence: 0,
            in_flight: 0,
            is_known: false,
            refused: Vec::new(),
        };
        let producer = Rc::new(RefCell::new(Producer {
            run: run.clone(),
            settings: settings.clone(),
            latencies: latencies.clone(),
            accumulator: Accumulator::new(settings, leaders.len(), number as u64),
            topic,
            topic_name: Text::copied(&run.plan.topics[topic]),
            links,
            partitions: leaders.iter().map(partition).collect(),
            id,
            message_count: 0,
            pacer: Pacer::new(run.plan.producers(), number),
            random: fastrand::Rng::with_seed(number as u64),
            done: false,
        }));
        for (link, receiver) in receivers.into_iter().enumerate() {
            tokio::task::spawn_local(receive(producer.clone(), link, receiver));
        }
        Ok(producer)
    }

    /// Handles due messages and sends ready batches. Returns the time of the next call.
    fn tick(&mut self, now: Nanos) -> anyhow::Result<Nanos> {
        self.pacer.follow(self.run.control.rate(), now);
        if self.run.control.producing_ends() {
            self.pacer.end();
        }
        self.take_due(now);
        self.send(now)?;
        self.check_answers(now)?;
        if self.run.control.producing_ends() && !self.done && self.is_idle() {
            self.done = true;
            self.run.control.add_done();
        }
        Ok(self.next_tick(now))
    }

    fn next_tick(&mut self, now: Nanos) -> Nanos {
        let due = if self.accumulator.is_full() { Nanos::MAX } else { self.pacer.next() };
        // Ready batches that were not sent wait for an answer, which causes a tick itself.
        let sendable = if self.accumulator.is_ready(now) {
            now + BLOCKED_TICK
        } else {
            self.accumulator.deadline().unwrap_or(Nanos::MAX)
        };
        sendable.min(due)
    }

    fn is_idle(&self) -> bool {
        self.accumulator.is_empty()
            && self.links.iter().all(|link| link.in_flight.is_empty() && link.sender.queued() == 0)
            && self.partitions.iter().all(|partition| partition.refused.is_empty())
    }

    fn take_due(&mut self, now: Nanos) {
        let mut latencies = self.latencies.lock();
        let run = self.run.clone();
        let timestamp = run.clock.timestamp(now);
        for _ in 0..BURST_MAX {
            if self.accumulator.is_full() {
                return;
            }
            let Some(due) = self.pacer.due(now) else { return };
            let payload = run.plan.payload(&mut self.random);
            let key = run.plan.keys.choose(run.plan.workload.key_distributor, self.message_count, due);
            self.accumulator.push(now, timestamp, key, payload, due);
            record(&mut latencies.delay, now - due);
            self.message_count += 1;
            self.pacer.advance();
        }
    }

    fn send(&mut self, now: Nanos) -> anyhow::Result<()> {
        while self.accumulator.is_ready(now)
            || (self.run.control.producing_ends() && !self.accumulator.is_empty())
        {
            let mut sent_any = false;
            for link in 0..self.links.len() {
                let in_flight = self.links[link].in_flight.len().max(self.links[link].sender.queued());
                if in_flight >= self.settings.in_flight_max {
                    continue;
                }
                let partitions = &self.partitions;
                let wanted = |partition: usize| {
                    let of = &partitions[partition];
                    of.link == link && of.refused.is_empty() && (of.is_known || of.in_flight == 0)
                };
                let gathered = self.accumulator.take(wanted);
                if !gathered.is_empty() {
                    sent_any = true;
                    let batches = gathered.into_iter().map(|gathered| self.seal(gathered, now)).collect();
                    self.send_batches(link, batches, now)?;
                }
            }
            if !sent_any {
                break;
            }
        }
        Ok(())
    }

    fn seal(&mut self, gathered: Gathered, now: Nanos) -> Sent {
        let partition = &mut self.partitions[gathered.partition];
        let count = gathered.batch.count();
        let sequence = partition.sequence;
        let mut batch = gathered.batch;
        if self.settings.idempotent {
            batch = batch.producer(self.id.0, self.id.1, sequence);
            partition.sequence = add_sequence(sequence, count);
        }
        Sent {
            partition: gathered.partition,
            batch: batch.finish(),
            count: count.unsigned_abs(),
            sequence,
            due: gathered.due,
            first_sent: now,
        }
    }

    fn send_batches(&mut self, link: usize, batches: Vec<Sent>, now: Nanos) -> anyhow::Result<()> {
        let data = |sent: &Sent| PartitionProduceData {
            index: i32::try_from(sent.partition).unwrap_or(i32::MAX),
            records: Some(Records::from(sent.batch.clone())),
        };
        let request = ProduceRequest {
            transactional_id: None,
            acks: self.settings.acks,
            timeout_ms: i32::try_from(self.settings.request_timeout.as_millis()).unwrap_or(i32::MAX),
            topic_data: vec![TopicProduceData {
                name: self.topic_name.clone(),
                partition_data: batches.iter().map(data).collect(),
                ..TopicProduceData::default()
            }],
        };
        if self.settings.acks == 0 {
            self.links[link].sender.send_unanswered(&request)?;
            return batches.into_iter().try_for_each(|sent| self.published(sent, -1, true, now));
        }
        self.links[link].sender.send(&request)?;
        batches.iter().for_each(|sent| self.partitions[sent.partition].in_flight += 1);
        self.links[link].in_flight.push_back((now, batches));
        Ok(())
    }

    /// A server that is silent for `request.timeout.ms` ends the test.
    fn check_answers(&self, now: Nanos) -> anyhow::Result<()> {
        let timeout = nanos(self.settings.request_timeout);
        for link in &self.links {
            if let Some((sent, _)) = link.in_flight.front()
                && now.saturating_sub(*sent) > timeout
            {
                bail!(
                    "{} did not answer a produce request within request.timeout.ms={}",
                    link.sender.address(),
                    self.settings.request_timeout.as_millis()
                );
            }
        }
        Ok(())
    }

    /// Handles the answer to the oldest request.
    fn answered(&mut self, link: usize, answer: ProduceResponse, now: Nanos) -> anyhow::Result<()> {
        let (_, batches) = self.links[link].in_flight.pop_front().context("an answer to nothing")?;
        let mut answers = answer.responses.into_iter().flat_map(|topic| topic.partition_responses);
        let mut by_partition: Vec<PartitionProduceResponse> = answers.by_ref().collect();
        by_partition.sort_unstable_by_key(|answer| answer.index);
        for sent in batches {
            let index = i32::try_from(sent.partition).unwrap_or(i32::MAX);
            let answer = by_partition.binary_search_by_key(&index, |answer| answer.index).ok();
            let answer = &by_partition[answer.context("a produce answer does not name all partitions")?];
            self.partitions[sent.partition].in_flight -= 1;
            self.take_answer(sent, answer, now)?;
        }
        let now = self.run.clock.now();
        self.tick(now).map(|_| ())
    }

    fn take_answer(
        &mut self,
        sent: Sent,
        answer: &PartitionProduceResponse,
        now: Nanos,
    ) -> anyhow::Result<()> {
        if answer.error_code == 0 {
            self.partitions[sent.partition].is_known = true;
            return self.published(sent, answer.base_offset, answer.log_append_time_ms < 0, now);
        }
        let error = ErrorCode::from_code(answer.error_code);
        let again = self.settings.idempotent && error == Some(ErrorCode::OutOfOrderSequenceNumber);
        let in_time = now.saturating_sub(sent.first_sent) < nanos(self.settings.delivery_timeout);
        if in_time && (again || error.is_some_and(ErrorCode::is_retriable)) {
            if !self.settings.idempotent {
                self.run.stats.resent();
            }
            self.partitions[sent.partition].refused.push(sent);
            return Ok(());
        }
        self.run.stats.failed(sent.due.len() as u64);
        let message =
            answer.error_message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
        bail!(
            "a batch for {}-{} was refused: {}{message}",
            self.topic_name,
            sent.partition,
            error_name(answer.error_code)
        )
    }

    fn published(&mut self, sent: Sent, base_offset: i64, as_sent: bool, now: Nanos) -> anyhow::Result<()> {
        let records = sent.due.len();
        let key_bytes = self.run.plan.keys.bytes(self.run.plan.workload.key_distributor);
        let value_bytes = records * self.run.plan.workload.message_size;
        self.accumulator.release(Accumulator::counted(records, value_bytes + records * key_bytes));
        self.run.stats.published(records as u64, value_bytes as u64);
        self.run.stats.published_batch(sent.batch.len() as u64);
        let crc = &sent.batch[17..21];
        debug_assert!(sent.batch.len() > HEADER_BYTES);
        let crc = as_sent.then(|| u32::from_be_bytes([crc[0], crc[1], crc[2], crc[3]]));
        let id = BatchId { base_offset, count: sent.count, crc };
        let mut latencies = self.latencies.lock();
        for due in &sent.due {
            record(&mut latencies.publish, now.saturating_sub(*due));
        }
        let place = self.run.plan.place(self.topic, sent.partition);
        self.run.ledger.published(place, id, Schedule::new(&sent.due), |latency| {
            record(&mut latencies.end_to_end, latency);
        })?;
        Ok(())
    }

    /// Whether any partition has refused batches to send again.
    fn has_refused(&self) -> bool {
        self.partitions.iter().any(|partition| !partition.refused.is_empty())
    }

    fn send_refused(&mut self, now: Nanos) -> anyhow::Result<()> {
        for at in 0..self.partitions.len() {
            let partition = &mut self.partitions[at];
            if partition.refused.is_empty() || partition.in_flight > 0 {
                continue;
            }
            let mut refused = std::mem::take(&mut partition.refused);
            let link = partition.link;
            refused.sort_by_key(|sent| sent.sequence);
            for sent in refused {
                self.send_batches(link, vec![sent], now)?;
            }
        }
        Ok(())
    }
}

async fn producer_id(sender: &Sender, receiver: &mut Receiver) -> anyhow::Result<(i64, i16)> {
    let until = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let request = InitProducerIdRequest { transactional_id: None, ..InitProducerIdRequest::default() };
        let answer = call(sender, receiver, &request).await?;
        match ErrorCode::from_code(answer.error_code) {
            Some(ErrorCode::None) => return Ok((answer.producer_id, answer.producer_epoch)),
            Some(error) if error.is_retriable() && tokio::time::Instant::now() < until => {
                tokio::time::sleep(RETRY_BACKOFF).await;
            }
            _ => bail!("no producer id: {}", error_name(answer.error_code)),
        }
    }
}

/// Receives the answers of one connection until the test ends.
async fn receive(producer: Rc<RefCell<Producer>>, link: usize, mut receiver: Receiver) {
    let run = producer.borrow().run.clone();
    let taken = async {
        loop {
            let answer = receiver.receive::<ProduceRequest>().await?;
            let now = run.clock.now();
            producer.borrow_mut().answered(link, answer, now)?;
            if producer.borrow().has_refused() {
                tokio::time::sleep(RETRY_BACKOFF).await;
                producer.borrow_mut().send_refused(run.clock.now())?;
            }
        }
    };
    let result: anyhow::Result<()> = taken.await;
    if let Err(error) = result
        && !run.control.ends()
    {
        run.control.fail(error);
    }
}
