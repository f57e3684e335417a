//! One partition: the order of its appends, its producers, and who waits for it to grow.
//!
//! One short lock covers the sequence check, the offset and the place in the log's queue, so that the order of offsets
//! is the order in the log. It is never held across an await.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use model::{BatchHeader, Offset, StreamId, Timestamp};
use parking_lot::Mutex;
use storage::{Admission, Append, Completion, Durability, Producers, RememberedBatch, Stream};
use uuid::Uuid;
use wire::Text;

use crate::logs::{Lost, OpenLog};
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
    /// Its stream, in whichever log.
    pub stream_id: StreamId,
    /// The log of its stream, as the metadata names it.
    pub log_id: Uuid,
    home: Result<Home, Arc<Lost>>,
    /// Who waits for it.
    pub subscribers: Subscribers,
    state: Mutex<State>,
    deleted: AtomicBool,
}

/// Where a partition's records are.
#[derive(Clone, Debug)]
pub struct Home {
    /// The log that holds them.
    pub log: Arc<OpenLog>,
    /// Its stream there.
    pub stream: Arc<Stream>,
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
    /// The partition whose records are in the stream `stream_id` of the log `log_id`, which is found or lost.
    pub fn new(
        topic: Text,
        index: i32,
        stream_id: StreamId,
        log_id: Uuid,
        log: Result<Arc<OpenLog>, Arc<Lost>>,
    ) -> Partition {
        let home = log.map(|log| Home { stream: log.log.stream(stream_id), log });
        let state = home.as_ref().map_or_else(
            |_| State { next_offset: Offset::ZERO, producers: Producers::default() },
            |Home { stream, .. }| State {
                next_offset: stream.bounds().committed,
                producers: stream.producers(),
            },
        );
        Partition {
            topic,
            index,
            stream_id,
            log_id,
            home,
            subscribers: Subscribers::default(),
            state: Mutex::new(state),
            deleted: AtomicBool::new(false),
        }
    }

    /// Where its records are; refused while its log directory is lost.
    pub fn home(&self) -> Result<&Home, &Lost> {
        self.home.as_ref().map_err(|lost| &**lost)
    }

    /// Appends a batch to its log, which is `home`, unless it repeats one or does not continue its producer's sequence.
    pub fn append(
        &self,
        home: &Home,
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
        home.log.log.append(Append {
            stream: home.stream.clone(),
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
