//! `mainstem consume`: prints records, of all partitions directly or as a member of a group.
//!
//! A group member commits only records that standard output has accepted, every few seconds and at the end. After a
//! crash, records may be printed again but are never lost. Records of aborted transactions are printed (isolation
//! `read_uncommitted`, as in Kafka's console consumer).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::{KafkaError, check};
use model::batch::{BatchHeader, HEADER_BYTES, TimestampType, verify_crc};
use regex::Regex;
use wire::messages::FetchRequest;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::records::records;
use wire::{Bytes, ErrorCode, Text};

use super::cluster::{Cluster, RETRY_FOR, Topic};
use super::format::{Found, Printed};
use super::member::{Member, Positions, Standing};
use super::peer::ClientError;
use super::{Misuse, OutputError, group};
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
const NEW_TOPICS_EVERY: Duration = Duration::from_secs(5);

/// Runs the command until its count, the end of the partitions or a signal.
pub fn consume(arguments: &ConsumeArguments) -> anyhow::Result<()> {
    let printed_as = Printed::of(arguments)?;
    let mut reader = Reader {
        arguments,
        pattern: arguments.pattern.as_deref().map(whole).transpose()?,
        cluster: super::connect(&arguments.bootstrap)?,
        topics: BTreeMap::new(),
        looked_at: Instant::now(),
        positions: BTreeMap::new(),
        ends: BTreeMap::new(),
        printed: 0,
        printed_as,
        output: BufWriter::new(io::stdout().lock()),
        failing_since: None,
    };
    match &arguments.group {
        Some(name) => {
            let stop = Arc::new(AtomicBool::new(false));
            stop_on_signals(stop.clone())?;
            reader.topics = reader.named()?;
            let names = reader.names();
            let mut member = Member::join(&mut reader.cluster, name, names)?;
            let result = reader.run_as(&mut member, name, &stop);
            let left = member.leave(&mut reader.cluster);
            result?;
            Ok(left?)
        }
        None => {
            reader.topics = reader.named()?;
            let partitions = reader.partitions()?;
            reader.positions = reader.places(&partitions, arguments.from)?;
            reader.note_ends()?;
            while !reader.is_done() {
                reader.round()?;
                reader.look_for_new_topics()?;
            }
            Ok(())
        }
    }
}

/// A pattern that fits whole names.
fn whole(pattern: &str) -> anyhow::Result<Regex> {
    let whole = Regex::new(&format!("^(?:{pattern})$"));
    Ok(whole.map_err(|error| Misuse(format!("--pattern: {pattern} is no regular expression: {error}")))?)
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

/// A partition of a topic.
type Key = (String, i32);

struct Reader<'a> {
    arguments: &'a ConsumeArguments,
    pattern: Option<Regex>,
    cluster: Cluster,
    /// By name.
    topics: BTreeMap<String, Topic>,
    /// When topics were last compared with the pattern.
    looked_at: Instant,
    /// The next offset to read in each partition.
    positions: BTreeMap<Key, i64>,
    /// With `--exit-at-end`, the end of each partition when reading began; with `--to`, where reading ends.
    ends: BTreeMap<Key, i64>,
    printed: u64,
    printed_as: Printed,
    output: BufWriter<StdoutLock<'static>>,
    failing_since: Option<Instant>,
}

impl Reader<'_> {
    fn run_as(&mut self, member: &mut Member, name: &str, stop: &AtomicBool) -> anyhow::Result<()> {
        loop {
            // A place that was found is committed at once: who takes the partition over goes on there.
            let mut committed = self.take_over(member, name)?;
            let mut commit_at = Instant::now();
            loop {
                let stopping = self.is_done() || stop.load(Ordering::SeqCst);
                let mut standing = member.heartbeat(&mut self.cluster)?;
                if standing == Standing::Good && self.is_time_to_look() {
                    self.look()?;
                    let names = self.names();
                    if member.is_outdated(&mut self.cluster, &names)? {
                        standing = Standing::Rebalance;
                    }
                }
                let due = stopping || standing == Standing::Rebalance || Instant::now() >= commit_at;
                if due && standing != Standing::Lost && committed != self.positions {
                    let mut positions = Positions::new();
                    for ((topic, index), offset) in &self.positions {
                        positions.entry(topic.clone()).or_default().insert(*index, *offset);
                    }
                    let after = member.commit(&mut self.cluster, &positions)?;
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
            // With what it reads from now on, so that it need not join once more.
            self.look()?;
            let names = self.names();
            member.rejoin(&mut self.cluster, names)?;
        }
    }

    /// Starts to read the member's new partitions from the committed offsets, which are returned.
    fn take_over(&mut self, member: &Member, name: &str) -> anyhow::Result<BTreeMap<Key, i64>> {
        self.look()?;
        let committed = group::committed(&mut self.cluster, name)?;
        let own = member.partitions.iter();
        let own = own.flat_map(|(topic, own)| own.iter().map(move |index| (topic.clone(), *index)));
        let place = |(topic, index): &Key| committed.get(topic)?.get(index).copied();
        let (known, new): (Vec<Key>, Vec<Key>) = own.partition(|key| place(key).is_some());
        let known: BTreeMap<Key, i64> =
            known.into_iter().filter_map(|key| place(&key).map(|at| (key, at))).collect();
        self.positions = self.places(&new, self.arguments.from)?;
        self.positions.extend(known.clone());
        self.ends.clear();
        self.note_ends()?;
        Ok(known)
    }

    /// Looks at the topics again. What cannot be answered now is asked later.
    fn look(&mut self) -> anyhow::Result<()> {
        match self.named() {
            Ok(topics) => self.topics = topics,
            Err(error) => match error.downcast_ref::<ClientError>() {
                Some(ClientError::Kafka(error))
                    if error.is_retriable() && error.known() != Some(ErrorCode::UnknownTopicOrPartition) => {}
                _ => return Err(error),
            },
        }
        Ok(())
    }

    fn names(&self) -> BTreeSet<String> {
        self.topics.keys().cloned().collect()
    }

    /// The topics that the arguments name, as they are now.
    fn named(&mut self) -> anyhow::Result<BTreeMap<String, Topic>> {
        let topics = match (&self.pattern, &self.arguments.topic) {
            (Some(pattern), _) => {
                let mut topics = self.cluster.topics()?;
                topics.retain(|topic| !topic.is_internal && pattern.is_match(&topic.name));
                topics
            }
            // Others of a group read what this member cannot.
            (None, Some(name)) if self.arguments.group.is_some() => vec![self.cluster.topic_as_it_is(name)?],
            (None, Some(name)) => vec![self.cluster.topic(name, false)?],
            (None, None) => Vec::new(),
        };
        Ok(topics.into_iter().map(|topic| (topic.name.clone(), topic)).collect())
    }

    /// Begins to read topics that fit the pattern and were created meanwhile.
    fn look_for_new_topics(&mut self) -> anyhow::Result<()> {
        // What ends at a place that was there reads nothing new.
        let fixed = self.pattern.is_none() || self.arguments.exit_at_end || self.arguments.to.is_some();
        if fixed || !self.is_time_to_look() {
            return Ok(());
        }
        self.topics = self.named()?;
        let keys = self.topics.values().flat_map(keys_of);
        let new: Vec<Key> = keys.filter(|key| !self.positions.contains_key(key)).collect();
        self.forget_deleted();
        // All of it is new.
        let places = self.places(&new, Place::Earliest)?;
        self.positions.extend(places);
        Ok(())
    }

    /// Whether it is time to compare the topics with what is read.
    fn is_time_to_look(&mut self) -> bool {
        let due = self.looked_at.elapsed() >= NEW_TOPICS_EVERY;
        if due {
            self.looked_at = Instant::now();
        }
        due
    }

    fn forget_deleted(&mut self) {
        let topics = &self.topics;
        self.positions.retain(|(topic, _), _| topics.contains_key(topic));
    }

    fn partitions(&self) -> anyhow::Result<Vec<Key>> {
        let chosen = &self.arguments.partitions;
        let mut keys = Vec::new();
        for topic in self.topics.values() {
            let partitions = topic.clone().chosen(chosen)?;
            keys.extend(partitions.iter().map(|partition| (topic.name.clone(), partition.index)));
        }
        Ok(keys)
    }

    fn places(&mut self, keys: &[Key], place: Place) -> anyhow::Result<BTreeMap<Key, i64>> {
        let mut places = BTreeMap::new();
        for (name, topic) in &self.topics {
            let wanted = |index: i32| keys.iter().any(|(of, wanted)| of == name && *wanted == index);
            let mut partitions = topic.partitions.clone();
            partitions.retain(|partition| wanted(partition.index));
            let found = self.cluster.places(name, &partitions, place)?;
            places.extend(found.into_iter().map(|(index, offset)| ((name.clone(), index), offset)));
        }
        Ok(places)
    }

    fn note_ends(&mut self) -> anyhow::Result<()> {
        let end = self.arguments.to.or_else(|| self.arguments.exit_at_end.then_some(Place::Latest));
        if let Some(end) = end {
            let keys: Vec<Key> = self.positions.keys().cloned().collect();
            self.ends = self.places(&keys, end)?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let ends = self.arguments.exit_at_end || self.arguments.to.is_some();
        self.is_enough() || (ends && self.positions.keys().all(|key| self.is_at_end(key)))
    }

    fn is_enough(&self) -> bool {
        self.arguments.count.is_some_and(|count| self.printed >= count)
    }

    fn is_at_end(&self, key: &Key) -> bool {
        self.ends.get(key).is_some_and(|end| self.positions[key] >= *end)
    }

    /// The partitions that are read, by leader and topic.
    fn by_leader(&self) -> BTreeMap<i32, BTreeMap<&str, Vec<i32>>> {
        let mut leaders: BTreeMap<i32, BTreeMap<&str, Vec<i32>>> = BTreeMap::new();
        for key @ (name, index) in self.positions.keys() {
            let partitions = self.topics.get(name).map_or(&[][..], |topic| &topic.partitions);
            let found = partitions.iter().find(|partition| partition.index == *index);
            if let (Some(partition), false) = (found, self.is_at_end(key)) {
                leaders.entry(partition.leader).or_default().entry(name).or_default().push(*index);
            }
        }
        leaders
    }

    /// Fetches once from every server, and prints the records.
    fn round(&mut self) -> anyhow::Result<()> {
        let leaders = self.by_leader();
        let wait = if leaders.len() > 1 { WAIT_SHARED_MS } else { WAIT_MS };
        let requests: Vec<(i32, FetchRequest)> =
            leaders.iter().map(|(leader, topics)| (*leader, self.request(topics, wait))).collect();
        if requests.is_empty() {
            std::thread::sleep(Duration::from_millis(u64::from(WAIT_MS.unsigned_abs())));
        }
        let mut failure = None;
        for (leader, request) in requests {
            let answer = self.cluster.node(leader)?.call(&request)?;
            check(answer.error_code, None)?;
            for topic in answer.responses {
                for partition in topic.partitions {
                    let key = (topic.topic.to_string(), partition.partition_index);
                    if partition.error_code == ErrorCode::OffsetOutOfRange.code() {
                        self.find_place_again(key)?;
                    } else if let Err(error) = check(partition.error_code, None) {
                        failure = Some(error);
                    } else if let Some(bytes) = partition.records {
                        self.print_batches(&key, &bytes.to_bytes())?;
                    }
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

    fn request(&self, topics: &BTreeMap<&str, Vec<i32>>, max_wait_ms: i32) -> FetchRequest {
        let partition = |name: &str, index: i32| FetchPartition {
            partition: index,
            fetch_offset: self.positions[&(name.to_owned(), index)],
            log_start_offset: -1,
            partition_max_bytes: FETCH_PARTITION_BYTES,
            ..FetchPartition::default()
        };
        let topic = |(name, indexes): (&&str, &Vec<i32>)| FetchTopic {
            topic: Text::copied(name),
            partitions: indexes.iter().map(|index| partition(name, *index)).collect(),
            ..FetchTopic::default()
        };
        FetchRequest {
            replica_id: -1,
            max_wait_ms,
            min_bytes: 1,
            max_bytes: FETCH_BYTES,
            session_epoch: -1,
            topics: topics.iter().map(topic).collect(),
            ..FetchRequest::default()
        }
    }

    /// Finds a new position after the old one was out of range.
    fn find_place_again(&mut self, key: Key) -> anyhow::Result<()> {
        let (topic, index) = (key.0.clone(), key.1);
        if let Place::Offset(offset) = self.arguments.from {
            // The answer to the fetch has no bounds.
            let mut bound = |place| -> anyhow::Result<i64> {
                Ok(self.places(std::slice::from_ref(&key), place)?.into_values().next().unwrap_or(-1))
            };
            let (start, end) = (bound(Place::Earliest)?, bound(Place::Latest)?);
            let message =
                format!("partition {index} of {topic} has no offset {offset}, it holds {start} to {end}");
            bail!(KafkaError { code: ErrorCode::OffsetOutOfRange.code(), message: Some(message) });
        }
        eprintln!(
            "mainstem: partition {index} of {topic} no longer has offset {}, going on elsewhere",
            self.positions[&key]
        );
        let found = self.places(&[key], self.arguments.from)?;
        self.positions.extend(found);
        Ok(())
    }

    /// Waits after an error that may pass.
    fn endure(&mut self, error: KafkaError) -> anyhow::Result<()> {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if !error.is_retriable() || since.elapsed() > RETRY_FOR {
            let names: Vec<&str> = self.topics.keys().map(String::as_str).collect();
            return Err(error).with_context(|| format!("cannot read {}", names.join(", ")));
        }
        std::thread::sleep(RETRY_PAUSE);
        self.look()?;
        self.forget_deleted();
        Ok(())
    }

    /// Prints the batches of one partition and moves the position behind them.
    fn print_batches(&mut self, key: &Key, bytes: &Bytes) -> anyhow::Result<()> {
        let mut rest = bytes.clone();
        while rest.len() >= HEADER_BYTES && !self.is_at_end(key) {
            let header =
                BatchHeader::parse_header(&rest).context("the server sent a batch that cannot be read")?;
            if header.total_bytes > rest.len() {
                break;
            }
            let batch = rest.split_to(header.total_bytes);
            if !header.is_control() {
                verify_crc(&batch, &header).context("the server sent a damaged batch")?;
                if !self.print_batch(key, &batch)? {
                    return Ok(());
                }
            }
            let position = self.positions.entry(key.clone()).or_default();
            *position = (*position).max(header.next_offset().0);
        }
        Ok(())
    }

    /// Returns whether the position is behind all of its records.
    fn print_batch(&mut self, key: &Key, batch: &Bytes) -> anyhow::Result<bool> {
        let (header, all) = records(batch, BATCH_BYTES_MAX)?;
        let end = self.ends.get(key).copied().unwrap_or(i64::MAX);
        let mut position = self.positions[key];
        for record in all {
            if self.is_enough() {
                self.positions.insert(key.clone(), position);
                return Ok(false);
            }
            let record = record?;
            let offset = header.base_offset.0 + i64::from(record.offset_delta);
            if offset >= position && position < end {
                let timestamp = match header.timestamp_type() {
                    TimestampType::LogAppendTime => header.max_timestamp.0,
                    TimestampType::CreateTime => header.base_timestamp.0 + record.timestamp_delta,
                };
                let (topic, partition) = (key.0.as_str(), key.1);
                let found = Found { topic, partition, offset, timestamp, record: &record };
                self.printed_as.print(&found, &mut self.output).map_err(OutputError)?;
                self.printed += 1;
                position = offset + 1;
            }
        }
        self.positions.insert(key.clone(), position);
        Ok(true)
    }
}

fn keys_of(topic: &Topic) -> impl Iterator<Item = Key> {
    topic.partitions.iter().map(|partition| (topic.name.clone(), partition.index))
}
