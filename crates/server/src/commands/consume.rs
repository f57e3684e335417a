//! `mainstem consume`: prints records, of all partitions directly or as a member of a group.
//!
//! A group member commits only records that standard output has accepted, every few seconds and at the end. After a
//! crash, records may be printed again but are never lost. Records of aborted transactions are printed (isolation
//! `read_uncommitted`, as in Kafka's console consumer).

use std::collections::BTreeMap;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::{KafkaError, check};
use model::batch::{BatchHeader, HEADER_BYTES, TimestampType, verify_crc};
use wire::messages::FetchRequest;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::fetch_response::PartitionData;
use wire::records::records;
use wire::{Bytes, ErrorCode, Text};

use super::cluster::{Cluster, RETRY_FOR, Topic, by_leader};
use super::format::{Found, Printed};
use super::member::{Member, Standing};
use super::{OutputError, group};
use crate::arguments::{ConsumeArguments, Place};

const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Time that a server without new records holds the answer back. It also bounds the reaction time to a signal.
const WAIT_MS: i32 = 500;
/// With several servers, a wait for one must not delay the others.
const WAIT_SHARED_MS: i32 = 50;
const FETCH_BYTES: i32 = 16 * 1024 * 1024;
const FETCH_PARTITION_BYTES: i32 = 1024 * 1024;
/// Bound in bytes of a decompressed batch.
const BATCH_BYTES_MAX: usize = 512 * 1024 * 1024;
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Runs the command until its count, the end of the partitions or a signal.
pub fn consume(arguments: &ConsumeArguments) -> anyhow::Result<()> {
    let printed_as = Printed::of(arguments)?;
    let mut cluster = super::connect(&arguments.bootstrap)?;
    let topic = cluster.topic(&arguments.topic, false)?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut reader = Reader {
        arguments,
        cluster,
        topic,
        positions: BTreeMap::new(),
        ends: BTreeMap::new(),
        printed: 0,
        printed_as,
        output: BufWriter::new(io::stdout().lock()),
        failing_since: None,
    };
    match &arguments.group {
        None => {
            let partitions = reader.partitions()?;
            reader.positions = reader.places(&partitions, arguments.from)?;
            reader.note_ends()?;
            while !reader.is_done() {
                reader.round()?;
            }
            Ok(())
        }
        Some(name) => {
            stop_on_signals(stop.clone())?;
            let mut member = Member::join(&mut reader.cluster, name, &arguments.topic)?;
            let result = reader.run_as(&mut member, name, &stop);
            let left = member.leave(&mut reader.cluster);
            result?;
            Ok(left?)
        }
    }
}

/// Sets `stop` on the first SIGINT or SIGTERM, and exits on the second.
fn stop_on_signals(stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if stop.swap(true, Ordering::SeqCst) {
                    std::process::exit(130);
                }
            }
        });
    });
    Ok(())
}

struct Reader<'a> {
    arguments: &'a ConsumeArguments,
    cluster: Cluster,
    topic: Topic,
    /// The next offset to read in each partition.
    positions: BTreeMap<i32, i64>,
    /// With `--exit-at-end`, the end of each partition when reading began; with `--to`, where reading ends.
    ends: BTreeMap<i32, i64>,
    printed: u64,
    printed_as: Printed,
    output: BufWriter<StdoutLock<'static>>,
    failing_since: Option<Instant>,
}

impl Reader<'_> {
    fn run_as(&mut self, member: &mut Member, name: &str, stop: &AtomicBool) -> anyhow::Result<()> {
        loop {
            self.take_over(member, name)?;
            let mut committed = self.positions.clone();
            let mut commit_at = Instant::now() + COMMIT_INTERVAL;
            loop {
                let stopping = self.is_done() || stop.load(Ordering::SeqCst);
                let mut standing = member.heartbeat(&mut self.cluster)?;
                let due = stopping || standing == Standing::Rebalance || Instant::now() >= commit_at;
                if due && standing != Standing::Lost && committed != self.positions {
                    let after = member.commit(&mut self.cluster, &self.positions)?;
                    if after == Standing::Good {
                        committed = self.positions.clone();
                        commit_at = Instant::now() + COMMIT_INTERVAL;
                    } else {
                        standing = after;
                    }
                }
                if stopping {
                    return Ok(());
                }
                if standing != Standing::Good {
                    break;
                }
                if self.positions.is_empty() {
                    std::thread::sleep(Duration::from_millis(u64::from(WAIT_MS.unsigned_abs())));
                } else {
                    self.round()?;
                }
            }
            member.rejoin(&mut self.cluster)?;
        }
    }

    /// Starts to read the member's new partitions from the committed offsets.
    fn take_over(&mut self, member: &Member, name: &str) -> anyhow::Result<()> {
        self.topic = self.cluster.topic(&self.arguments.topic, false)?;
        let committed = group::committed_of_topic(&mut self.cluster, name, &self.arguments.topic)?;
        let new: Vec<i32> =
            member.partitions.iter().copied().filter(|index| !committed.contains_key(index)).collect();
        self.positions = self.places(&new, self.arguments.from)?;
        for index in &member.partitions {
            if let Some(offset) = committed.get(index) {
                self.positions.insert(*index, *offset);
            }
        }
        self.ends.clear();
        self.note_ends()
    }

    fn partitions(&self) -> anyhow::Result<Vec<i32>> {
        let all: Vec<i32> = self.topic.partitions.iter().map(|partition| partition.index).collect();
        let chosen = &self.arguments.partitions;
        if let Some(unknown) = chosen.iter().find(|index| !all.contains(index)) {
            bail!("{} has no partition {unknown}: it has {}", self.topic.name, all.len());
        }
        Ok(if chosen.is_empty() { all } else { chosen.clone() })
    }

    fn places(&mut self, indexes: &[i32], place: Place) -> anyhow::Result<BTreeMap<i32, i64>> {
        let wanted = self.topic.partitions.iter().filter(|partition| indexes.contains(&partition.index));
        let wanted: Vec<_> = wanted.cloned().collect();
        Ok(self.cluster.places(&self.topic.name, &wanted, place)?)
    }

    fn note_ends(&mut self) -> anyhow::Result<()> {
        let end = self.arguments.to.or_else(|| self.arguments.exit_at_end.then_some(Place::Latest));
        if let Some(end) = end {
            let indexes: Vec<i32> = self.positions.keys().copied().collect();
            self.ends = self.places(&indexes, end)?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let enough = self.arguments.count.is_some_and(|count| self.printed >= count);
        let ends = self.arguments.exit_at_end || self.arguments.to.is_some();
        enough || (ends && self.positions.keys().all(|index| self.is_at_end(*index)))
    }

    fn is_at_end(&self, index: i32) -> bool {
        self.ends.get(&index).is_some_and(|end| self.positions[&index] >= *end)
    }

    /// Fetches once from every server, and prints the records.
    fn round(&mut self) -> anyhow::Result<()> {
        let open = |index: &i32| self.positions.contains_key(index) && !self.is_at_end(*index);
        let wanted = self.topic.partitions.iter().filter(|partition| open(&partition.index));
        let wanted: Vec<_> = wanted.cloned().collect();
        let leaders = by_leader(&wanted);
        let wait = if leaders.len() > 1 { WAIT_SHARED_MS } else { WAIT_MS };
        let mut failure = None;
        for (leader, indexes) in leaders {
            let request = self.request(&indexes, wait);
            let answer = self.cluster.node(leader)?.call(&request)?;
            check(answer.error_code, None)?;
            for partition in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
                let index = partition.partition_index;
                if partition.error_code == ErrorCode::OffsetOutOfRange.code() {
                    self.find_place_again(index, &partition)?;
                } else if let Err(error) = check(partition.error_code, None) {
                    failure = Some(error);
                } else if let Some(bytes) = partition.records {
                    self.print_batches(index, &bytes.to_bytes())?;
                }
            }
        }
        self.output.flush().map_err(OutputError)?;
        match failure {
            None => self.failing_since = None,
            Some(error) => self.endure(error)?,
        }
        Ok(())
    }

    fn request(&self, indexes: &[i32], max_wait_ms: i32) -> FetchRequest {
        let partition = |index: &i32| FetchPartition {
            partition: *index,
            fetch_offset: self.positions[index],
            log_start_offset: -1,
            partition_max_bytes: FETCH_PARTITION_BYTES,
            ..FetchPartition::default()
        };
        FetchRequest {
            replica_id: -1,
            max_wait_ms,
            min_bytes: 1,
            max_bytes: FETCH_BYTES,
            session_epoch: -1,
            topics: vec![FetchTopic {
                topic: Text::copied(&self.topic.name),
                partitions: indexes.iter().map(partition).collect(),
                ..FetchTopic::default()
            }],
            ..FetchRequest::default()
        }
    }

    /// Finds a new position after the old one was out of range.
    fn find_place_again(&mut self, index: i32, partition: &PartitionData) -> anyhow::Result<()> {
        if let Place::Offset(offset) = self.arguments.from {
            let message = format!(
                "partition {index} has no offset {offset}, it holds {} to {}",
                partition.log_start_offset, partition.high_watermark
            );
            bail!(KafkaError { code: ErrorCode::OffsetOutOfRange.code(), message: Some(message) });
        }
        let found = self.places(&[index], self.arguments.from)?;
        eprintln!(
            "mainstem: partition {index} no longer has offset {}, going on elsewhere",
            self.positions[&index]
        );
        self.positions.extend(found);
        Ok(())
    }

    /// Waits after an error that may pass.
    fn endure(&mut self, error: KafkaError) -> anyhow::Result<()> {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if !error.is_retriable() || since.elapsed() > RETRY_FOR {
            return Err(error).with_context(|| format!("cannot read {}", self.topic.name));
        }
        std::thread::sleep(RETRY_PAUSE);
        self.topic = self.cluster.topic(&self.arguments.topic, false)?;
        Ok(())
    }

    /// Prints the batches of one partition and moves the position behind them.
    fn print_batches(&mut self, index: i32, bytes: &Bytes) -> anyhow::Result<()> {
        let mut rest = bytes.clone();
        while rest.len() >= HEADER_BYTES && !self.is_at_end(index) {
            let header =
                BatchHeader::parse_header(&rest).context("the server sent a batch that cannot be read")?;
            if header.total_bytes > rest.len() {
                break;
            }
            let batch = rest.split_to(header.total_bytes);
            if !header.is_control() {
                verify_crc(&batch, &header).context("the server sent a damaged batch")?;
                let (header, all) = records(&batch, BATCH_BYTES_MAX)?;
                for record in all {
                    if self.arguments.count.is_some_and(|count| self.printed >= count) {
                        return Ok(());
                    }
                    let record = record?;
                    let offset = header.base_offset.0 + i64::from(record.offset_delta);
                    if offset >= self.positions[&index] && !self.is_at_end(index) {
                        let timestamp = match header.timestamp_type() {
                            TimestampType::LogAppendTime => header.max_timestamp.0,
                            TimestampType::CreateTime => header.base_timestamp.0 + record.timestamp_delta,
                        };
                        let topic = self.topic.name.as_str();
                        let found = Found { topic, partition: index, offset, timestamp, record: &record };
                        self.printed_as.print(&found, &mut self.output).map_err(OutputError)?;
                        self.printed += 1;
                        self.positions.insert(index, offset + 1);
                    }
                }
            }
            let position = self.positions.entry(index).or_default();
            *position = (*position).max(header.next_offset().0);
        }
        Ok(())
    }
}
