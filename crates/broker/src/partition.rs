//! One partition: the order of its appends, its producers, and who waits for it to grow.
//!
//! One short lock covers the sequence check, the offset and the place in the log's queue, so that the order of offsets
//! is the order in the log. It is never held across an await.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use model::{BatchHeader, Offset, Timestamp};
use parking_lot::Mutex;
use storage::{Admission, Append, Completion, Durability, Log, Producers, RememberedBatch, Stream};
use wire::Text;

use crate::sequence::{self, Sequence, SequenceError};
use crate::signal::Subscribers;

/// The only leader epoch there is: one server, and nothing that consumers saw is ever truncated.
pub const LEADER_EPOCH: i32 = 0;

/// A partition of a topic.
#[derive(Debug)]
pub struct Partition {
    /// The topic's name.
    pub topic: Text,
    /// Its number in the topic.
    pub index: i32,
    /// Its records.
    pub stream: Arc<Stream>,
    /// Who waits for it.
    pub subscribers: Subscribers,
    state: Mutex<State>,
    deleted: AtomicBool,
}

#[derive(Debug)]
struct State {
    next_offset: Offset,
    producers: Producers,
}

/// What became of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Appended {
    /// It is on its way.
    New {
        /// The offset of its first record.
        base_offset: Offset,
    },
    /// It had been appended before; it counts as done once the stream is committed up to `end`.
    Duplicate {
        /// The offset its first record got then.
        base_offset: Offset,
        /// The offset after its last record.
        end: Offset,
    },
}

/// A batch that was checked and may be appended.
#[derive(Debug)]
pub struct Checked {
    /// As parsed from `bytes`.
    pub header: BatchHeader,
    /// The whole batch.
    pub bytes: Bytes,
    /// Set for topics with `message.timestamp.type=LogAppendTime`.
    pub append_time: Option<Timestamp>,
}

impl Partition {
    /// The partition whose records are in `stream`.
    pub fn new(topic: Text, index: i32, stream: Arc<Stream>) -> Partition {
        let state = State { next_offset: stream.bounds().committed, producers: stream.producers() };
        Partition {
            topic,
            index,
            stream,
            subscribers: Subscribers::default(),
            state: Mutex::new(state),
            deleted: AtomicBool::new(false),
        }
    }

    /// Appends a batch, unless it repeats one or does not continue its producer's sequence.
    pub fn append(
        &self,
        log: &Log,
        batch: Checked,
        admission: Admission,
        durability: Durability,
        done: Option<Arc<dyn Completion>>,
        now_ms: i64,
    ) -> Result<Appended, SequenceError> {
        let mut state = self.state.lock();
        if let Sequence::Duplicate(RememberedBatch { base_offset, offset_count, .. }) =
            sequence::check(&state.producers, &batch.header)?
        {
            return Ok(Appended::Duplicate { base_offset, end: base_offset + i64::from(offset_count) });
        }
        let base_offset = state.next_offset;
        state.next_offset = base_offset + batch.header.offset_count();
        state.producers.record(&batch.header, base_offset, now_ms);
        log.append(Append {
            stream: self.stream.clone(),
            base_offset,
            header: batch.header,
            batch: batch.bytes,
            append_time: batch.append_time,
            leader_epoch: LEADER_EPOCH,
            durability,
            done,
            admission,
        });
        Ok(Appended::New { base_offset })
    }

    /// Forgets producers that last appended before `oldest_ms`.
    pub fn expire_producers(&self, oldest_ms: i64) {
        self.state.lock().producers.expire(oldest_ms);
    }

    /// Marks it as gone, for those that still hold it.
    pub fn set_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
        self.subscribers.mark(1);
    }

    /// Whether its topic was deleted.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }
}
