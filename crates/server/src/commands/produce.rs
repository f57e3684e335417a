//! `mainstem produce`: sends the lines of standard input or of a file as records, in batches.
//!
//! A batch is sent when it is large or when standard input pauses. A person who types sees each line sent, and a file
//! is sent in large requests. One request is in flight at a time, so the order is kept. The producer is not idempotent:
//! a batch is sent again after an error that may pass, and a lost connection ends the command.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::{KafkaError, check};
use model::{Compression, Timestamp};
use serde_json::json;
use wire::messages::ProduceRequest;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::records::BatchBuilder;
use wire::{Bytes, Text};

use super::cluster::{Cluster, RETRY_FOR, Topic};
use super::lines::{Line, parse};
use super::partitioner;
use super::progress::{Progress, Unit};
use crate::arguments::{Acks, Codec, ProduceArguments, now_ms};

/// Size of a batch at which it is sent: half of the default limit of topics.
const BATCH_BYTES: usize = 512 * 1024;
/// Bound in bytes of all batches in one request.
const REQUEST_BYTES: usize = 8 * 1024 * 1024;
/// Bytes read from standard input at a time, and handed over as one block.
const BLOCK_BYTES: usize = 256 * 1024;
/// Standard input counts as paused after this time without data.
const PAUSE: Duration = Duration::from_millis(5);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const TIMEOUT_MS: i32 = 30_000;

/// Runs the command until the end of standard input.
pub fn produce(arguments: &ProduceArguments) -> anyhow::Result<()> {
    let mut sender = Sender::new(arguments)?;
    match arguments.value_files.is_empty() {
        true => send_lines(arguments, &mut sender)?,
        false => sender.send_files(&arguments.value_files)?,
    }
    let sent = json!({"topic": sender.topic.name, "records": sender.records});
    super::show(arguments.bootstrap.shown.output, String::new, || sent)
}

fn send_lines(arguments: &ProduceArguments, sender: &mut Sender) -> anyhow::Result<()> {
    // A wrong name is said before anything is sent.
    let (input, shown): (Box<dyn Read + Send>, _) = match &arguments.file {
        Some(path) => {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            // A pipe has no length.
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            (Box::new(file), (length > 0).then(|| (Progress::new(Unit::Bytes), length)))
        }
        None => (Box::new(io::stdin()), None),
    };
    let (block_sender, blocks) = sync_channel(4);
    // The thread ends with the process, because nothing can wake a read from a terminal.
    std::thread::spawn(move || read_lines(input, |block| block_sender.send(block).is_ok()));
    let (mut line_number, mut read) = (0u64, 0u64);
    while let Some(block) = next(&blocks, sender)? {
        let block = block.context("the input cannot be read")?;
        read += block.len() as u64;
        if let Some((progress, length)) = &shown {
            progress.show("sending", read, *length);
        }
        for line in lines(&block) {
            line_number += 1;
            let added = parse(line, arguments).and_then(|line| sender.add(line));
            if let Err(error) = added {
                sender.flush()?;
                return Err(error.context(format!("line {line_number}")));
            }
        }
    }
    sender.flush()
}

/// The next block. While there is none, the gathered batches are sent. `None` at the end of standard input.
fn next(
    blocks: &Receiver<io::Result<Vec<u8>>>,
    sender: &mut Sender,
) -> anyhow::Result<Option<io::Result<Vec<u8>>>> {
    match blocks.recv_timeout(PAUSE) {
        Ok(block) => Ok(Some(block)),
        Err(RecvTimeoutError::Disconnected) => Ok(None),
        Err(RecvTimeoutError::Timeout) => {
            sender.flush()?;
            Ok(blocks.recv().ok())
        }
    }
}

/// Hands over blocks of whole lines. The last line may lack its line end.
fn read_lines(mut input: impl Read, mut hand_over: impl FnMut(io::Result<Vec<u8>>) -> bool) {
    let mut rest = Vec::new();
    let mut buffer = vec![0; BLOCK_BYTES];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => {
                if !rest.is_empty() {
                    hand_over(Ok(rest));
                }
                return;
            }
            Ok(count) => {
                let read = &buffer[..count];
                let Some(last) = read.iter().rposition(|byte| *byte == b'\n') else {
                    rest.extend_from_slice(read);
                    continue;
                };
                let (whole, begun) = read.split_at(last + 1);
                rest.extend_from_slice(whole);
                if !hand_over(Ok(std::mem::replace(&mut rest, begun.to_vec()))) {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                hand_over(Err(error));
                return;
            }
        }
    }
}

fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    block.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    })
}

/// The batches that are being filled, and the connection to their leaders.
struct Sender<'a> {
    arguments: &'a ProduceArguments,
    cluster: Cluster,
    topic: Topic,
    batches: BTreeMap<i32, BatchBuilder>,
    bytes: usize,
    /// Records so far.
    records: u64,
    /// The partition for records without a key until the next request.
    sticky: usize,
}

impl<'a> Sender<'a> {
    fn new(arguments: &'a ProduceArguments) -> anyhow::Result<Sender<'a>> {
        let mut cluster = super::connect(&arguments.bootstrap)?;
        let topic = cluster.topic(&arguments.topic, true)?;
        // Many short runs of the command must not all begin with the first partition.
        let sticky = usize::try_from(now().0 & 0xffff).unwrap_or(0) % topic.partitions.len().max(1);
        let sender =
            Sender { arguments, cluster, topic, batches: BTreeMap::new(), bytes: 0, records: 0, sticky };
        arguments.partition.map(|partition| sender.known(partition)).transpose()?;
        Ok(sender)
    }

    /// Sends each file as the value of one record.
    fn send_files(&mut self, paths: &[PathBuf]) -> anyhow::Result<()> {
        for path in paths {
            let value = std::fs::read(path).with_context(|| path.display().to_string())?;
            // The rest is as for a line without a key.
            let line = Line { value: Some(Cow::Owned(value)), ..parse(b"", self.arguments)? };
            self.add(line).with_context(|| path.display().to_string())?;
        }
        self.flush()
    }

    fn add(&mut self, line: Line<'_>) -> anyhow::Result<()> {
        let count = self.topic.partitions.len();
        let partition = match (line.partition, &line.key) {
            (Some(partition), _) => self.known(partition)?,
            (None, Some(key)) => self.topic.partitions[partitioner::of_key(key, count)].index,
            (None, None) => self.topic.partitions[self.sticky % count].index,
        };
        let compression = compression(self.arguments.compression);
        let batch = self.batches.entry(partition).or_insert_with(|| BatchBuilder::new(compression));
        let before = batch.records_bytes();
        if batch.count() > 0 && before + line.len() > BATCH_BYTES {
            self.flush()?;
            return self.add(line);
        }
        let timestamp = line.timestamp.map_or_else(now, Timestamp);
        batch.push_with_headers(timestamp, line.key.as_deref(), line.value.as_deref(), &line.headers);
        self.bytes += batch.records_bytes() - before;
        self.records += 1;
        if self.bytes >= REQUEST_BYTES { self.flush() } else { Ok(()) }
    }

    /// The partition, if the topic has it.
    fn known(&self, partition: i32) -> anyhow::Result<i32> {
        if !self.topic.partitions.iter().any(|known| known.index == partition) {
            bail!("{} has no partition {partition}: it has {}", self.topic.name, self.topic.partitions.len());
        }
        Ok(partition)
    }

    /// Sends all batches. Retries batches after an error that may pass.
    fn flush(&mut self) -> anyhow::Result<()> {
        let batches = std::mem::take(&mut self.batches).into_iter();
        let mut batches: BTreeMap<i32, Bytes> =
            batches.map(|(index, batch)| (index, batch.finish())).collect();
        self.bytes = 0;
        self.sticky += 1;
        let until = Instant::now() + RETRY_FOR;
        while !batches.is_empty() {
            let Some(error) = self.send(&mut batches)? else { continue };
            if !error.is_retriable() || Instant::now() >= until {
                return Err(error).with_context(|| format!("cannot produce to {}", self.topic.name));
            }
            std::thread::sleep(RETRY_PAUSE);
            self.topic = self.cluster.topic(&self.arguments.topic, true)?;
        }
        Ok(())
    }

    /// Sends batches to their leaders once, and removes the accepted ones.
    fn send(&mut self, batches: &mut BTreeMap<i32, Bytes>) -> anyhow::Result<Option<KafkaError>> {
        let mut requests: BTreeMap<i32, Vec<PartitionProduceData>> = BTreeMap::new();
        for (index, batch) in batches.iter() {
            let known = self.topic.partitions.iter().find(|partition| partition.index == *index);
            let leader = known.context("a partition of the topic is gone")?.leader;
            let data = PartitionProduceData { index: *index, records: Some(batch.clone().into()) };
            requests.entry(leader).or_default().push(data);
        }
        let mut failure = None;
        for (leader, partition_data) in requests {
            let indexes: Vec<i32> = partition_data.iter().map(|data| data.index).collect();
            let data = TopicProduceData {
                name: Text::copied(&self.topic.name),
                partition_data,
                ..TopicProduceData::default()
            };
            let acks = match self.arguments.acks {
                Acks::All => -1,
                Acks::One => 1,
                Acks::None => 0,
            };
            let request = ProduceRequest {
                acks,
                timeout_ms: TIMEOUT_MS,
                topic_data: vec![data],
                ..ProduceRequest::default()
            };
            let peer = self.cluster.node(leader)?;
            if self.arguments.acks == Acks::None {
                peer.tell(&request)?;
                indexes.iter().for_each(|index| drop(batches.remove(index)));
                continue;
            }
            let answer = peer.call(&request)?;
            for partition in answer.responses.iter().flat_map(|topic| &topic.partition_responses) {
                match check(partition.error_code, partition.error_message.as_ref()) {
                    Ok(()) => drop(batches.remove(&partition.index)),
                    Err(error) => failure = Some(error),
                }
            }
        }
        Ok(failure)
    }
}

fn compression(codec: Codec) -> Compression {
    match codec {
        Codec::None => Compression::None,
        Codec::Gzip => Compression::Gzip,
        Codec::Snappy => Compression::Snappy,
        Codec::Lz4 => Compression::Lz4,
        Codec::Zstd => Compression::Zstd,
    }
}

fn now() -> Timestamp {
    Timestamp(now_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns its input in pieces of this many bytes.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(into.len());
            let (now, later) = self.0.split_at(count);
            into[..count].copy_from_slice(now);
            self.0 = later;
            Ok(count)
        }
    }

    #[test]
    fn lines_are_cut_whatever_the_pieces() {
        let input = b"one\n\nthree\r\nfour \xff five\nlast";
        for piece in 1..input.len() + 1 {
            let mut all = Vec::new();
            read_lines(Pieces(input, piece), |block| {
                let block = block.unwrap();
                all.extend(lines(&block).map(<[u8]>::to_vec));
                true
            });
            assert_eq!(all, [&b"one"[..], b"", b"three", b"four \xff five", b"last"], "pieces of {piece}");
        }
    }
}
