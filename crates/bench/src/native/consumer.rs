//! Consumers of the native engine, many per thread.
//!
//! The partitions of a topic are divided among the consumers of a group by number, without the group protocol. Offsets
//! are still committed under the group's name. A consumer has one fetch session (KIP-227) with each leader, with one
//! fetch in flight. It sends the next fetch before it checks the received batches: the CRC of every batch, and
//! everything in [`crate::ledger`].

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use client::{Coordinated, Security, coordinator_of, error_name, find_coordinator};
use model::TimestampType;
use model::batch::{BatchHeader, HEADER_BYTES, verify_crc};
use parking_lot::Mutex;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::fetch_response::PartitionData;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::{FetchRequest, FetchResponse, FindCoordinatorRequest, OffsetCommitRequest};
use wire::{Bytes, ErrorCode, Text};

use crate::clock::Nanos;
use crate::ledger::BatchId;
use crate::native::admin::Layout;
use crate::native::connection::{Receiver, Sender, call, connect};
use crate::plan::Run;
use crate::settings::ConsumerSettings;
use crate::stats::{Latencies, record};

/// The interval of OMB's Kafka driver in the published experiments.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which paused consumers check whether they may resume.
const PAUSE_LOOK: Duration = Duration::from_millis(5);
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// Bound of the retriable errors in a row before a partition counts as unreadable: with the back-off, half a minute.
const FETCH_ERRORS_MAX: u32 = 300;
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(60);

/// The identity of a consumer: its topic, its group, and its number in the group.
#[derive(Clone, Copy, Debug)]
pub struct ConsumerId {
    pub topic: usize,
    pub group: usize,
    pub member: usize,
}

impl ConsumerId {
    /// The consumer with this number among all consumers.
    pub fn of(run: &Run, number: usize) -> ConsumerId {
        let members = run.plan.workload.consumer_per_subscription as usize;
        let groups = run.plan.workload.groups() as usize;
        ConsumerId {
            member: number % members,
            group: number / members % groups,
            topic: number / members / groups,
        }
    }

    /// The consumer's partitions: a range, as Kafka's `RangeAssignor` assigns.
    fn partitions(&self, run: &Run) -> std::ops::Range<usize> {
        let members = run.plan.workload.consumer_per_subscription as usize;
        let partitions = run.plan.partitions();
        partitions * self.member / members..partitions * (self.member + 1) / members
    }
}

/// Received offsets, for the commits.
type Offsets = Rc<Mutex<BTreeMap<usize, i64>>>;

/// Connects the consumers of one thread and runs them until the end.
pub async fn run(run: Arc<Run>, layout: Arc<Layout>, consumers: Vec<ConsumerId>) -> anyhow::Result<()> {
    let settings = Rc::new(ConsumerSettings::of(&run.plan.driver.consumer)?.0);
    let security = Security::of(&run.plan.driver.consumer)?;
    let latencies = run.stats.latencies();
    let mut tasks = tokio::task::JoinSet::new();
    for consumer in consumers {
        let mut by_leader: HashMap<usize, Vec<usize>> = HashMap::new();
        for partition in consumer.partitions(&run) {
            by_leader.entry(layout.leaders[consumer.topic][partition]).or_default().push(partition);
        }
        let offsets = Offsets::default();
        for (leader, partitions) in by_leader {
            let (sender, receiver) = connect(&layout.servers[leader], &security).await?;
            let fetcher = Fetcher {
                topic: Text::copied(&run.plan.topics[consumer.topic]),
                run: run.clone(),
                consumer,
                settings: settings.clone(),
                latencies: latencies.clone(),
                offsets: offsets.clone(),
                next: partitions.iter().map(|partition| (*partition, 0)).collect(),
                changed: partitions,
                session: Session::default(),
                errors: 0,
                sender,
                receiver,
            };
            tasks.spawn_local(fetcher.run());
        }
        tasks.spawn_local(commit(
            run.clone(),
            consumer,
            offsets,
            security.clone(),
            layout.servers[0].clone(),
        ));
        run.control.add_ready();
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a consumer's task ended")??;
    }
    Ok(())
}

/// A fetch session. Epoch 0 asks for a new one.
#[derive(Default)]
struct Session {
    id: i32,
    epoch: i32,
}

impl Session {
    fn advance(&mut self, id: i32) {
        self.id = id;
        // The server has no sessions, so every fetch is a full one.
        self.epoch = if id == 0 {
            0
        } else if self.epoch == i32::MAX {
            1
        } else {
            self.epoch + 1
        };
    }
}

/// Fetches a consumer's partitions from one leader.
struct Fetcher {
    run: Arc<Run>,
    consumer: ConsumerId,
    topic: Text,
    settings: Rc<ConsumerSettings>,
    latencies: Arc<Mutex<Latencies>>,
    offsets: Offsets,
    /// The next offset to fetch from each partition.
    next: BTreeMap<usize, i64>,
    /// Partitions whose offset the server's session does not know yet.
    changed: Vec<usize>,
    session: Session,
    /// The number of fetches in a row with a retriable error.
    errors: u32,
    sender: Sender,
    receiver: Receiver,
}

/// The received batches of one partition.
struct Came {
    partition: usize,
    batches: Vec<(BatchHeader, Bytes)>,
}

impl Fetcher {
    async fn run(mut self) -> anyhow::Result<()> {
        let run = self.run.clone();
        let control = &run.control;
        let mut in_flight = false;
        loop {
            if control.ends() {
                self.sender.close();
                return Ok(());
            }
            if !in_flight {
                if control.is_paused() {
                    tokio::time::sleep(PAUSE_LOOK).await;
                    continue;
                }
                self.fetch()?;
            }
            let answer = self.receiver.receive::<FetchRequest>().await;
            in_flight = false;
            let at = run.clock.now();
            let answer = match answer {
                // The server may end first.
                Err(_) if control.ends() => return Ok(()),
                answer => answer?,
            };
            let errors = self.errors;
            let came = self.take(answer)?;
            if self.errors > errors {
                tokio::time::sleep(RETRY_BACKOFF).await;
            } else {
                self.errors = 0;
            }
            if !control.is_paused() && !control.ends() {
                self.fetch()?;
                in_flight = true;
                // The fetch is written before the checks, which take longer than the write.
                tokio::task::yield_now().await;
            }
            came.into_iter().try_for_each(|came| self.check(came, at))?;
        }
    }

    /// Sends a fetch for the changed partitions, or for all of them in a new session.
    fn fetch(&mut self) -> anyhow::Result<()> {
        let changed = std::mem::take(&mut self.changed);
        let all: Vec<usize> =
            if self.session.epoch == 0 { self.next.keys().copied().collect() } else { changed };
        let partition = |partition: &usize| FetchPartition {
            partition: i32::try_from(*partition).unwrap_or(i32::MAX),
            current_leader_epoch: -1,
            fetch_offset: self.next[partition],
            last_fetched_epoch: -1,
            log_start_offset: -1,
            partition_max_bytes: self.settings.partition_bytes_max,
            ..FetchPartition::default()
        };
        let topics = if all.is_empty() {
            Vec::new()
        } else {
            vec![FetchTopic {
                topic: self.topic.clone(),
                partitions: all.iter().map(partition).collect(),
                ..FetchTopic::default()
            }]
        };
        let request = FetchRequest {
            max_wait_ms: i32::try_from(self.settings.wait_max.as_millis()).unwrap_or(i32::MAX),
            min_bytes: self.settings.min_bytes,
            max_bytes: self.settings.bytes_max,
            session_id: self.session.id,
            session_epoch: self.session.epoch,
            topics,
            ..FetchRequest::default()
        };
        Ok(self.sender.send(&request)?)
    }

    /// Takes an answer apart and advances the offsets.
    fn take(&mut self, answer: FetchResponse) -> anyhow::Result<Vec<Came>> {
        match ErrorCode::from_code(answer.error_code) {
            Some(ErrorCode::None) => self.session.advance(answer.session_id),
            Some(ErrorCode::FetchSessionIdNotFound | ErrorCode::InvalidFetchSessionEpoch) => {
                self.session = Session::default();
                return Ok(Vec::new());
            }
            _ => bail!("a fetch was refused: {}", error_name(answer.error_code)),
        }
        let mut came = Vec::new();
        let mut failed = false;
        for data in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
            let passes = ErrorCode::from_code(data.error_code).is_some_and(ErrorCode::is_retriable);
            if passes && self.errors < FETCH_ERRORS_MAX {
                // The leader of a new topic may not know the topic yet.
                failed = true;
                self.changed.extend(usize::try_from(data.partition_index).ok());
                continue;
            }
            came.extend(self.take_partition(data)?);
        }
        self.errors += u32::from(failed);
        Ok(came)
    }

    fn take_partition(&mut self, data: PartitionData) -> anyhow::Result<Option<Came>> {
        let name = || format!("{}-{}", self.topic, data.partition_index);
        if data.error_code != 0 {
            bail!("{}: fetching failed: {}", name(), error_name(data.error_code));
        }
        let partition = usize::try_from(data.partition_index).ok().filter(|at| self.next.contains_key(at));
        let partition = partition.with_context(|| format!("{} was not asked for", name()))?;
        let Some(records) = data.records else { return Ok(None) };
        let mut bytes = records.to_bytes();
        let mut batches = Vec::new();
        let mut next = self.next[&partition];
        while bytes.len() >= HEADER_BYTES {
            let header =
                BatchHeader::parse_header(&bytes).with_context(|| format!("{}: damaged batch", name()))?;
            // Servers cut the last batch at their byte limit.
            if header.total_bytes > bytes.len() {
                break;
            }
            let batch = bytes.split_to(header.total_bytes);
            next = header.next_offset().0;
            batches.push((header, batch));
        }
        if batches.is_empty() {
            return Ok(None);
        }
        self.next.insert(partition, next);
        self.changed.push(partition);
        Ok(Some(Came { partition, batches }))
    }

    fn check(&self, came: Came, at: Nanos) -> anyhow::Result<()> {
        let place = self.run.plan.place(self.consumer.topic, came.partition);
        let message_bytes = self.run.plan.workload.message_size as u64;
        for (header, batch) in came.batches {
            let offset = header.base_offset.0;
            verify_crc(&batch, &header).with_context(|| {
                format!("{}-{}: the batch at offset {offset} was damaged", self.topic, came.partition)
            })?;
            let count = u32::try_from(header.offset_count()).context("a batch of more than 2^32 records")?;
            let as_sent = header.timestamp_type() == TimestampType::CreateTime;
            let id = BatchId { base_offset: offset, count, crc: as_sent.then_some(header.crc) };
            let mut latencies = self.latencies.lock();
            self.run.ledger.received(place, self.consumer.group, id, at, |latency| {
                record(&mut latencies.end_to_end, latency);
            })?;
            drop(latencies);
            self.run.stats.received(u64::from(count), u64::from(count) * message_bytes);
            self.offsets.lock().insert(came.partition, header.next_offset().0);
        }
        Ok(())
    }
}

/// Commits a consumer's offsets every five seconds, as a consumer without group membership may.
async fn commit(
    run: Arc<Run>,
    consumer: ConsumerId,
    offsets: Offsets,
    security: Security,
    bootstrap: String,
) -> anyhow::Result<()> {
    let group = Text::copied(&run.plan.groups[consumer.topic][consumer.group]);
    let mut connection = None;
    let mut committed = BTreeMap::new();
    loop {
        let until = tokio::time::Instant::now() + COMMIT_INTERVAL;
        while tokio::time::Instant::now() < until {
            if run.control.ends() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let now = offsets.lock().clone();
        if now == committed {
            continue;
        }
        if connection.is_none() {
            connection = Some(coordinator(&group, &security, &bootstrap).await?);
        }
        let (sender, receiver) = connection.as_mut().expect("it was just made");
        let partition = |(partition, offset): (&usize, &i64)| OffsetCommitRequestPartition {
            partition_index: i32::try_from(*partition).unwrap_or(i32::MAX),
            committed_offset: *offset,
            committed_leader_epoch: -1,
            ..OffsetCommitRequestPartition::default()
        };
        let request = OffsetCommitRequest {
            group_id: group.clone(),
            generation_id_or_member_epoch: -1,
            retention_time_ms: -1,
            topics: vec![OffsetCommitRequestTopic {
                name: Text::copied(&run.plan.topics[consumer.topic]),
                partitions: now.iter().map(partition).collect(),
                ..OffsetCommitRequestTopic::default()
            }],
            ..OffsetCommitRequest::default()
        };
        let answer = match call(sender, receiver, &request).await {
            Err(_) if run.control.ends() => return Ok(()),
            answer => answer?,
        };
        let codes =
            answer.topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.error_code);
        match codes.into_iter().find(|code| *code != 0) {
            None => committed = now,
            // The coordinator may still be loading, or may move. The next commit covers everything.
            Some(code) if ErrorCode::from_code(code).is_some_and(ErrorCode::is_retriable) => {
                connection = None
            }
            Some(code) => bail!("committing offsets of {group} failed: {}", error_name(code)),
        }
    }
}

async fn coordinator(
    group: &Text,
    security: &Security,
    bootstrap: &str,
) -> anyhow::Result<(Sender, Receiver)> {
    let (sender, mut receiver) = connect(bootstrap, security).await?;
    let version = sender.version::<FindCoordinatorRequest>()?;
    let until = tokio::time::Instant::now() + COORDINATOR_TIMEOUT;
    loop {
        let answer =
            call(&sender, &mut receiver, &find_coordinator(version, Coordinated::Group, group)).await?;
        match coordinator_of(version, &answer) {
            Ok(found) if found.address == bootstrap => return Ok((sender, receiver)),
            Ok(found) => {
                sender.close();
                return Ok(connect(&found.address, security).await?);
            }
            Err(error) if error.is_retriable() && tokio::time::Instant::now() <= until => {}
            Err(error) => bail!("{group} has no coordinator: {}", error_name(error.code)),
        }
        tokio::time::sleep(RETRY_BACKOFF).await;
    }
}
