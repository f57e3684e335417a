//! Internal topics: batches of the server's own records, written and read back.

use bytes::Bytes;
use model::{BatchHeader, Compression, Offset, Timestamp};
use parking_lot::Mutex;
use storage::{AppendError, Completion, ReadRequest};
use tokio::sync::oneshot;
use wire::records::{self, BatchBuilder};

use crate::partition::{Checked, Home, Partition};

/// A record of an internal topic: key and value; a `None` value is a tombstone.
pub type InternalRecord = (Bytes, Option<Bytes>);

/// Bytes that one batch of records may decompress to.
const RECORDS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes read at once when groups are loaded.
const LOAD_READ_BYTES: usize = 1024 * 1024;

/// Tells one who waits when an append is durable, or never will be.
pub struct Told(Mutex<Option<oneshot::Sender<Result<(), AppendError>>>>);

impl Told {
    /// Through this channel.
    pub fn new(sender: oneshot::Sender<Result<(), AppendError>>) -> Told {
        Told(Mutex::new(Some(sender)))
    }
}

impl Completion for Told {
    fn complete(&self, result: Result<(), AppendError>) {
        if let Some(sender) = self.0.lock().take() {
            // Who waited may have been given up.
            let _ = sender.send(result);
        }
    }
}

/// Records of an internal topic as one batch; with a producer, of its transaction.
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

/// Reads a partition of an internal topic. What cannot be decoded is reported and passed over. Blocks.
pub fn read_records(
    partition: &Partition,
    home: &Home,
    mut take: impl FnMut(&BatchHeader, &records::RecordView),
) -> Result<(), storage::ReadError> {
    let mut from = home.stream.bounds().start;
    loop {
        let request = ReadRequest {
            stream: home.stream.clone(),
            from,
            until: Offset(i64::MAX),
            bytes_max: LOAD_READ_BYTES,
            at_least_one: true,
        };
        let batches = home.log.log.read_blocking(&request)?;
        let Some(next) = batches.next else { return Ok(()) };
        let mut bytes = Bytes::from(batches.chunks.concat());
        let (topic, index) = (partition.topic.as_str(), partition.index);
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
        from = next;
    }
}
