//! Internal topics: writes the server's own records as batches, and reads them back.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use model::{BatchHeader, Compression, Offset, Timestamp};
use parking_lot::Mutex;
use storage::{AppendError, Completion, ReadStep, Stretch};
use tokio::sync::oneshot;
use wire::records::{self, BatchBuilder};

use crate::partition::log::PartitionLog;
use crate::partition::{Checked, Partition};

/// A record of an internal topic: key and value; a `None` value is a tombstone.
pub type InternalRecord = (Bytes, Option<Bytes>);

/// Bound in bytes of a decompressed batch of records.
pub const RECORDS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes per read while a partition is loaded.
const LOAD_READ_BYTES: usize = 1024 * 1024;

/// A completion that reports the outcome of an append, or of a trim, to a waiting task.
pub struct Told(Mutex<Option<oneshot::Sender<Result<(), AppendError>>>>);

impl Told {
    /// Reports through this channel.
    pub fn new(sender: oneshot::Sender<Result<(), AppendError>>) -> Told {
        Told(Mutex::new(Some(sender)))
    }
}

impl Completion for Told {
    fn complete(&self, result: Result<(), AppendError>) {
        let sender = self.0.lock().take();
        if let Some(sender) = sender {
            // The waiting task may be gone.
            let _ = sender.send(result);
        }
    }
}

/// Encodes records of an internal topic as one batch. With a producer, the batch belongs to the producer's transaction.
pub fn batch_of(records: &[InternalRecord], now_ms: i64, producer: Option<(i64, i16)>) -> Checked {
    let mut builder = BatchBuilder::new(Compression::None);
    if let Some((producer_id, epoch)) = producer {
        builder = builder.producer(producer_id, epoch, -1).transactional();
    }
    for (key, value) in records {
        builder.push(Timestamp(now_ms), Some(key), value.as_deref());
    }
    let bytes = builder.finish();
    let header = BatchHeader::parse(&bytes).expect("the batch was just built");
    Checked { header, bytes, append_time: None }
}

/// Reads partitions of an internal topic. Calls `take` for each record, with the position of its partition in
/// `partitions`. Data that cannot be decoded is logged and skipped. Returns the outcome for each partition. Blocks.
///
/// The partitions are read together, in the order of their batches in the log. The batches of different partitions are
/// interleaved, so reading one partition after the other would read the log once for each partition.
pub fn read_records(
    partitions: &[(&Partition, &Arc<dyn PartitionLog>)],
    mut take: impl FnMut(usize, &BatchHeader, &records::RecordView),
) -> Vec<Result<(), storage::ReadError>> {
    let mut readers: Vec<_> =
        partitions.iter().map(|(partition, log)| Reader::new(partition, &***log)).collect();
    let mut ended: Vec<Result<(), storage::ReadError>> = partitions.iter().map(|_| Ok(())).collect();
    let mut waiting = BTreeSet::new();
    let mut read_on = |at: usize, from_disk: bool, waiting: &mut BTreeSet<_>| {
        let log = partitions[at].1.log_id();
        match readers[at].read_on(from_disk, |header, record| take(at, header, record)) {
            Ok(Some((stretch, position))) => drop(waiting.insert((log, stretch, position, at))),
            Ok(None) => {}
            Err(error) => ended[at] = Err(error),
        }
    };
    (0..partitions.len()).for_each(|at| read_on(at, false, &mut waiting));
    while let Some((.., at)) = waiting.pop_first() {
        read_on(at, true, &mut waiting);
    }
    ended
}

/// The reader of one partition.
struct Reader<'a> {
    partition: &'a Partition,
    log: &'a dyn PartitionLog,
    from: Offset,
}

impl<'a> Reader<'a> {
    fn new(partition: &'a Partition, log: &'a dyn PartitionLog) -> Reader<'a> {
        Reader { partition, log, from: log.bounds().start }
    }

    /// Reads data that is in the caches. With `from_disk`, first reads the partition's batches of one stretch of the
    /// log, from disk if they are not cached. Returns the stretch that the reader needs next, or `None` at the end.
    fn read_on(
        &mut self,
        from_disk: bool,
        mut take: impl FnMut(&BatchHeader, &records::RecordView),
    ) -> Result<Option<(Stretch, u32)>, storage::ReadError> {
        let log = self.log;
        let mut request = log.request(self.from, Offset(i64::MAX), LOAD_READ_BYTES);
        let mut read = match from_disk {
            true => ReadStep::Ready(log.read_stretch(&request)?),
            false => log.read(&request)?,
        };
        loop {
            let batches = match read {
                ReadStep::Ready(batches) => batches,
                ReadStep::Cold { stretch, position } => return Ok(Some((stretch, position))),
            };
            let Some(next) = batches.next else { return Ok(None) };
            self.take_in(Bytes::from(batches.chunks.concat()), &mut take);
            (self.from, request.from) = (next, next);
            read = log.read(&request)?;
        }
    }

    fn take_in(&self, mut bytes: Bytes, mut take: impl FnMut(&BatchHeader, &records::RecordView)) {
        let (topic, index) = (self.partition.topic.as_str(), self.partition.index);
        while !bytes.is_empty() {
            match records::records(&bytes, RECORDS_BYTES_MAX) {
                Ok((header, records)) => {
                    let _ = bytes.split_to(header.total_bytes);
                    for record in records {
                        match record {
                            Ok(record) => take(&header, &record),
                            Err(error) => {
                                tracing::error!(%error, topic, partition = index, "a record cannot be read")
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(%error, topic, partition = index, "a batch cannot be read");
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::sync::Arc;

    use disk::{Disk, SimDisk};
    use model::StreamId;
    use storage::{AdmitError, Durability};
    use wire::Text;

    use super::*;
    use crate::config::Config;
    use crate::logs::{LogDirectory, Logs, Opening};
    use crate::partition::Order;
    use crate::placement::Leader;

    const PARTITIONS: u64 = 20;
    const ROUNDS: u32 = 150;
    const RECORD_BYTES: usize = 8 * 1024;
    const LOG_BYTES: u64 = PARTITIONS * ROUNDS as u64 * RECORD_BYTES as u64;
    const LEADER: Leader = Leader { node: 1, epoch: 0 };
    const MIB: i64 = 1 << 20;
    /// The smallest unit that a log reads from disk.
    const REGION_BYTES: u64 = 256 * 1024;

    fn open(disk: &SimDisk, store: &meta::Memory, home: &std::path::Path) -> (Logs, Vec<Partition>) {
        let disk = disk.clone();
        let directory = LogDirectory::new("a", move |_| Ok(Arc::new(disk.clone()) as Arc<dyn Disk>));
        let config = Config {
            reserve_bytes: 0,
            segment_bytes: 4 * MIB,
            read_cache_bytes: 4 * MIB,
            tail_cache_bytes: 4 * MIB,
            ..Config::default()
        };
        let opening = Opening::of(config);
        let logs = Logs::open(vec![directory], &opening, store, home, &BTreeMap::new()).unwrap();
        let log = logs.all()[0].clone();
        let partition = |index: u64| {
            let topic = Text::from_static("__consumer_offsets");
            Partition::new(
                (topic, Arc::default()),
                i32::try_from(index).unwrap(),
                (StreamId(index + 1), 0),
                Ok(log.clone()),
                LEADER,
            )
        };
        (logs, (0..PARTITIONS).map(partition).collect())
    }

    fn append(partition: &Partition, record: InternalRecord) {
        let log = partition.log().unwrap();
        let batch = batch_of(&[record], 0, None);
        let admission = loop {
            match log.admit(batch.bytes.len()) {
                Ok(admission) => break admission,
                // The log is preparing another segment.
                Err(AdmitError::Busy) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let order = Order::plain(admission, Durability::Written, None, 0);
        partition.append(&**log, batch, order).unwrap();
    }

    #[test]
    fn partitions_that_lie_between_each_other_are_read_in_one_pass() {
        let (disk, store) = (SimDisk::new(0), meta::Memory::default());
        let home = tempfile::tempdir().unwrap();
        let (logs, partitions) = open(&disk, &store, home.path());
        let value = Bytes::from(vec![7; RECORD_BYTES]);
        for round in 0..ROUNDS {
            for partition in &partitions {
                append(partition, (Bytes::copy_from_slice(&round.to_be_bytes()), Some(value.clone())));
            }
        }
        logs.close();
        let (logs, partitions) = open(&disk, &store, home.path());
        let there: Vec<_> =
            partitions.iter().map(|partition| (partition, partition.log().unwrap())).collect();
        let mut found: HashMap<usize, Vec<u32>> = HashMap::new();
        let read = read_records(&there, |at, _, record| {
            let key = record.key.as_ref().unwrap();
            found.entry(at).or_default().push(u32::from_be_bytes(key[..].try_into().unwrap()));
        });
        assert!(read.iter().all(Result::is_ok));
        let all: Vec<u32> = (0..ROUNDS).collect();
        assert_eq!(found.len(), partitions.len());
        assert!(found.values().all(|rounds| *rounds == all));
        // Each region is read once. A few are read twice, at their ends or if a reader comes back for a second batch.
        let regions = logs.all()[0].log.statistics().region_misses;
        assert!(regions <= 2 * LOG_BYTES / REGION_BYTES, "{regions} regions were read");
        logs.close();
    }

    #[test]
    fn a_partition_of_many_small_batches_is_read_in_large_pieces() {
        const BATCHES: u32 = 20_000;
        let (disk, store) = (SimDisk::new(1), meta::Memory::default());
        let home = tempfile::tempdir().unwrap();
        let (logs, partitions) = open(&disk, &store, home.path());
        for number in 0..BATCHES {
            append(&partitions[0], (Bytes::copy_from_slice(&number.to_be_bytes()), None));
        }
        logs.close();
        let (logs, partitions) = open(&disk, &store, home.path());
        let mut expected = 0;
        let read = read_records(&[(&partitions[0], partitions[0].log().unwrap())], |_, _, record| {
            assert_eq!(record.key.as_ref().unwrap()[..], u32::to_be_bytes(expected));
            expected += 1;
        });
        assert!(read[0].is_ok() && expected == BATCHES, "{expected}");
        // Each batch is looked up a few times at most, whether it is cached or not.
        let statistics = logs.all()[0].log.statistics();
        let looked_up = statistics.region_hits + statistics.region_misses;
        assert!(looked_up <= 3 * u64::from(BATCHES), "{looked_up} look-ups for {BATCHES} batches");
        logs.close();
    }
}
