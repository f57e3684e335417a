//! The writer: the one owner of the active segment and of the ring (the disk queue) that writes it.
//!
//! Requests come in on a bounded queue, leave as commit blocks, and complete in log order. Group commit adapts:
//! - With no write in flight, a block is written at once, or waits a little for more callers (see [`Pace`]).
//! - With a write in flight, the block gathers entries until that write finishes or the write buffer is full.
//! - A few writes may be in flight.
//!
//! Invariants: `committed = synced <= written <= submitted`; submitted bytes are never written again; the offsets of a
//! stream rise. A failed write or sync ends the log without a retry, because the content of the device is then unknown.
//!
//! The writer has no clock and no thread of its own. [`Writer::turn`] does one round of work. The log loops it on a
//! thread; tests call it step by step.

mod block;
mod complete;
mod pace;
mod roll;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use disk::{FillBuffer, Finished, SECTOR};
use model::{Offset, Timestamp};

use self::block::{Effect, InFlight, OpenBlock, Progress};
use self::pace::{Pace, Wait};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, index,
    length32, sectors, seeded_crc,
};
use crate::index::{BATCH_INDEX_BYTES_MAX, BatchPlace};
use crate::options::Clock;
use crate::request::{AppendError, Committed, Durability, Request, Room};
use crate::segment::Segment;
use crate::segment::footer::{
    self, STREAM_FOOTER_BYTES, TABLE_PRODUCER_BYTES, TABLE_STREAM_BYTES, TableBound,
};
use crate::shared::Shared;
use crate::stream::{Stream, Waiter};

/// Size of a write buffer, and so of the largest ordinary block: large enough for sequential speed, small enough to
/// fill quickly. Tests have small segments and therefore small buffers, so that several writes are in flight there too.
pub(crate) const WRITE_BUFFER_BYTES: usize = if cfg!(test) { 32 * 1024 } else { 1024 * 1024 };
/// Block writes in flight. More than one hides the device's turn-around time; each may hold a whole write buffer.
const WRITES_IN_FLIGHT_MAX: usize = 4;
/// Bound of the blocks that are written and wait for a sync. Beyond it, a slow sync also holds up callers that do not
/// wait for it.
const UNSYNCED_BLOCKS_MAX: usize = 64;
/// Depth of the ring: block writes, one sync, and trailers.
pub(crate) const QUEUE_DEPTH: usize = WRITES_IN_FLIGHT_MAX + 4;
/// While a write is in flight, the writer is woken only for so many new bytes. A wake-up for each append costs more
/// than its copy.
const BYTES_MEANWHILE: usize = 128 * 1024;
/// After this time an idle log writes one empty block, which vouches for everything before it.
const IDLE_MARK_AFTER: Duration = Duration::from_millis(500);

/// How long [`Writer::turn`] may wait when there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Not at all: for tests that drive the writer by hand.
    #[cfg(any(test, feature = "fuzzing", feature = "stepped"))]
    None,
    /// Until an operation finishes or a request comes.
    Block,
}

/// The end of the log after recovery, where the writer goes on.
pub(crate) struct Position {
    pub segment: Arc<Segment>,
    pub position: u32,
    pub epoch: u64,
    /// Streams with batches in the active segment.
    pub touched: Vec<Arc<Stream>>,
    /// Recovery found the blocks below this position.
    pub synced: Lsn,
}

/// One reading of the log's clocks.
#[derive(Clone, Copy)]
struct Now {
    /// Milliseconds since the Unix epoch.
    ms: i64,
    /// Nanoseconds of the clock that never goes back.
    nanos: u64,
}

impl Now {
    fn of(clock: &dyn Clock) -> Now {
        Now { ms: clock.now_ms(), nanos: clock.nanos() }
    }
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    queue: Box<dyn disk::Queue>,
    requests: VecDeque<Request>,
    segment: Arc<Segment>,
    position: u32,
    epoch: u64,
    buffer: Option<FillBuffer>,
    open: OpenBlock,
    pace: Pace,
    in_flight: VecDeque<InFlight>,
    sync_in_flight: Option<(u64, u64)>,
    trailers_due: VecDeque<Arc<Segment>>,
    trailer_in_flight: Option<(u64, Arc<Segment>)>,
    next_token: u64,
    synced: Lsn,
    /// Whether there are written entries for which no later block vouches yet.
    unmarked: bool,
    touched: Vec<Arc<Stream>>,
    /// Bytes of the footer of the active segment so far, without the stream table.
    footer_bytes: usize,
    /// Upper bound of the stream table so far.
    table: TableBound,
    stopping: bool,
    /// The log has ended, by a stop or by a failure.
    ended: bool,
    finished: Vec<Finished>,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, queue: Box<dyn disk::Queue>, at: Position) -> Writer {
        let footer_bytes = at.touched.iter().map(|stream| Self::footer_bytes_of(stream)).sum();
        let table = TableBound::of(&shared.streams());
        let writer = Writer {
            shared,
            queue,
            requests: VecDeque::new(),
            segment: at.segment,
            position: at.position,
            epoch: at.epoch,
            buffer: None,
            open: OpenBlock::default(),
            pace: Pace::new(),
            in_flight: VecDeque::new(),
            sync_in_flight: None,
            trailers_due: VecDeque::new(),
            trailer_in_flight: None,
            next_token: 1,
            synced: at.synced,
            unmarked: true,
            touched: at.touched,
            footer_bytes,
            table,
            stopping: false,
            ended: false,
            finished: Vec::new(),
        };
        writer.count_room();
        writer.shared.count_prepared(table.bytes(producer_bytes_max(&writer.segment)));
        writer
    }

    fn footer_bytes_of(stream: &Stream) -> usize {
        let state = stream.lock();
        let index = state.active.as_ref().map_or(0, |active| active.index.stored_bytes());
        STREAM_FOOTER_BYTES + index
    }

    /// Whether the active segment has room for one more block. If not, the next segment has to be prepared first.
    pub fn has_room_for_barrier(&self) -> bool {
        index(self.position) + self.end_bytes(0) <= index(self.segment.data_end())
    }

    /// Upper bound in bytes of the open block with `body` more bytes, and of the footer behind it.
    fn end_bytes(&self, body: usize) -> usize {
        let block = sectors(self.open.bytes + ENTRY_HEADER_BYTES + body);
        let one_more =
            STREAM_FOOTER_BYTES + BATCH_INDEX_BYTES_MAX + TABLE_STREAM_BYTES + TABLE_PRODUCER_BYTES;
        block + self.footer_block_bytes(self.footer_bytes + one_more)
    }

    /// Upper bound in bytes of the footer block, with `extents` bytes of indexes and directory rows.
    fn footer_block_bytes(&self, extents: usize) -> usize {
        let table = self.table.bytes(producer_bytes_max(&self.segment));
        sectors(BLOCK_HEADER_BYTES + extents + table + footer::TRAILER_COPY_BYTES)
    }

    /// Records the room that the active segment has behind the submitted blocks.
    fn count_room(&self) {
        let free = self.segment.data_end().saturating_sub(self.position);
        let room = Room::of_segment(self.segment.length, free, self.footer_block_bytes(self.footer_bytes));
        self.shared.queue.room.set_active(room);
    }

    /// Writes the barrier of a new epoch and waits until it is synced. From then on, all blocks that an earlier life
    /// left behind the end of the log are stale.
    pub fn write_barrier(&mut self) -> Result<(), AppendError> {
        self.open.durable = true;
        if !self.ensure_room(0) {
            return Err(AppendError::Poisoned("no room for the first block of a new epoch".into()));
        }
        self.submit_block(BlockKind::Entries);
        while !self.in_flight.is_empty() {
            self.reap(Patience::Block, None);
            if let Some(error) = self.shared.queue.stopped() {
                return Err(error);
            }
            self.submit_followups();
        }
        Ok(())
    }

    /// One round: takes finished operations, writes waiting requests, completes callers. Returns false when the log has
    /// ended.
    pub fn turn(&mut self, patience: Patience) -> bool {
        if self.ended {
            return false;
        }
        self.stopping |= self.shared.queue.take(&mut self.requests);
        let wait = self.gather();
        self.submit_followups();
        let idle = self.open.entries == 0 && self.requests.is_empty();
        if self.stopping && !idle && self.in_flight.is_empty() && self.shared.queue.room.out_of_space() {
            // The admitted requests no longer fit and nothing will make room. Fail them instead of waiting for ever.
            self.requests.drain(..).for_each(|request| request.fail(&AppendError::Closed));
        }
        if self.stopping && idle && self.in_flight.is_empty() {
            if self.unmarked {
                self.submit_mark();
            } else if self.trailers_due.is_empty() && self.trailer_in_flight.is_none() {
                self.shared
                    .queue
                    .stop(AppendError::Closed)
                    .into_iter()
                    .for_each(|r| r.fail(&AppendError::Closed));
                self.ended = true;
                return false;
            }
        }
        self.reap(patience, wait);
        if let Some(error) = self.shared.queue.stopped() {
            self.fail_all(&error);
            return false;
        }
        if self.shared.queue.room.reopened() {
            self.shared.listener.room();
        }
        true
    }

    /// Whether a trailer write is in flight.
    #[cfg(test)]
    pub fn trailer_in_flight(&self) -> bool {
        self.trailer_in_flight.is_some()
    }

    /// Moves requests into the open block, and submits the block if the group-commit rule says so. Otherwise returns
    /// what the block waits for besides writes in flight.
    fn gather(&mut self) -> Option<Wait> {
        let mut now = None;
        while let Some(request) = self.requests.pop_front() {
            let body = match &request {
                Request::Append(append) => append.batch.len(),
                _ => 0,
            };
            if !self.ensure_buffer(body) || !self.ensure_room(body) {
                self.requests.push_front(request);
                break;
            }
            // Rolling to another segment may have used up the buffer.
            if !self.ensure_buffer(body) {
                self.requests.push_front(request);
                break;
            }
            match request {
                Request::Append(append) if append.stream.lock().placed_delete => {
                    // The append raced with the deletion of its stream. Its entry would bring the stream back to life.
                    if let Some(done) = append.done {
                        done.complete(Ok(()));
                    }
                }
                Request::Append(append) => {
                    // A reading for each append would cost a tenth of the writer's time.
                    let now = *now.get_or_insert_with(|| Now::of(&*self.shared.clock));
                    self.place_batch(append, now);
                }
                Request::Trim { stream, to, done } => {
                    self.place_event(&stream, to, EntryKind::Trim);
                    let mut state = stream.lock();
                    state.placed_start = state.placed_start.max(to);
                    drop(state);
                    self.open.effects.push(Effect::Trimmed { stream, to });
                    self.open.on_synced.extend(done);
                }
                Request::Delete { stream, done } => {
                    self.place_event(&stream, Offset::ZERO, EntryKind::Delete);
                    stream.lock().placed_delete = true;
                    self.open.effects.push(Effect::Deleted { stream });
                    self.open.on_synced.extend(done);
                }
            }
        }
        if self.open.entries == 0 || self.writing() > 0 || !self.may_submit(1) {
            return None;
        }
        let wait = self.wait();
        if wait.is_none() {
            self.submit_block(BlockKind::Entries);
        }
        wait
    }

    /// The number of blocks whose write is in flight, without written blocks that wait for a sync.
    fn writing(&self) -> usize {
        self.in_flight.iter().filter(|block| block.progress == Progress::Submitted).count()
    }

    /// Whether `blocks` more blocks may be in flight.
    fn may_submit(&self, blocks: usize) -> bool {
        self.in_flight.len() + blocks <= UNSYNCED_BLOCKS_MAX
            && self.writing() + blocks <= WRITES_IN_FLIGHT_MAX
    }

    /// What the open block should wait for now, if anything.
    fn wait(&self) -> Option<Wait> {
        let waits = self.requests.is_empty() && !self.stopping;
        if waits { self.pace.wait(self.open.bytes, self.shared.clock.nanos()) } else { None }
    }

    /// Makes an entry of `body` bytes fit into the open block. If needed, submits the open block and takes a new
    /// buffer. Returns false if all writes are in flight already.
    fn ensure_buffer(&mut self, body: usize) -> bool {
        let needed = ENTRY_HEADER_BYTES + body;
        if let Some(buffer) = &self.buffer
            && self.open.bytes + needed <= buffer.remaining()
        {
            return true;
        }
        if self.open.entries > 0 {
            if !self.may_submit(1) {
                return false;
            }
            self.submit_block(BlockKind::Entries);
        }
        let fits =
            self.buffer.as_ref().is_some_and(|buffer| BLOCK_HEADER_BYTES + needed <= buffer.remaining());
        if !fits {
            let bytes = sectors(BLOCK_HEADER_BYTES + needed);
            self.take_buffer(bytes.max(WRITE_BUFFER_BYTES));
        }
        true
    }

    /// Continues in another buffer. The whole old buffer stays in memory as long as one of its blocks does.
    fn take_buffer(&mut self, bytes: usize) {
        self.leave_buffer();
        self.buffer = Some(self.shared.buffers.take_at_least(bytes));
    }

    /// The unused rest of a buffer counts for the tail cache as long as a block of the buffer does.
    fn leave_buffer(&mut self) {
        if let Some(left) = self.buffer.take().filter(|left| left.filled() > 0) {
            self.shared.tail.waste(left.remaining());
        }
    }

    /// Makes the active segment take an entry of `body` bytes more and its footer. If needed, rolls to the next
    /// prepared segment. Returns false if that has to wait.
    fn ensure_room(&mut self, body: usize) -> bool {
        loop {
            let end = index(self.position) + self.end_bytes(body);
            if end <= index(self.segment.data_end()) {
                return true;
            }
            if !self.may_submit(2) || !self.roll() {
                return false;
            }
        }
    }

    fn place_batch(&mut self, append: crate::request::Append, now: Now) {
        let stream = append.stream;
        match &mut self.open.admission {
            Some(admission) => admission.absorb(append.admission),
            none => *none = Some(append.admission),
        }
        let entry = EntryHeader {
            stream: stream.id(),
            base_offset: append.base_offset,
            max_timestamp: append.append_time.unwrap_or(append.header.max_timestamp),
            offset_count: u32::try_from(append.header.offset_count())
                .expect("a batch spans at most i32::MAX + 1 offsets"),
            length: length32(append.batch.len()),
            kind: EntryKind::Batch,
        };
        assert_eq!(append.batch.len(), append.header.total_bytes, "the caller hands over one whole batch");
        if let Some(done) = &append.done {
            self.pace.append(done.caller(), append.batch.len(), now.nanos);
        }
        let position = self.position + length32(self.open.bytes);
        let body = self.place(&entry, append.batch.len());
        body.copy_from_slice(&append.batch);
        model::batch::assign(body, append.base_offset, append.leader_epoch);
        if let Some(now) = append.append_time {
            model::batch::set_log_append_time(body, now);
        }
        let place = BatchPlace {
            base_offset: append.base_offset,
            offset_count: entry.offset_count,
            position,
            length: entry.length,
            max_timestamp: entry.max_timestamp,
        };
        let mut state = stream.lock();
        assert!(append.base_offset >= state.next, "the broker hands out rising offsets");
        let known_before = state.next > Offset::ZERO;
        let (first, index_bytes) = state.place(self.segment.sequence, place);
        let header = model::BatchHeader { max_timestamp: entry.max_timestamp, ..append.header };
        let new_producer = state.producers.record(&header, &append.batch, append.base_offset, now.ms);
        drop(state);
        self.table.streams += usize::from(!known_before);
        self.table.producers += usize::from(new_producer);
        self.footer_bytes += index_bytes;
        if first {
            self.footer_bytes += STREAM_FOOTER_BYTES;
            self.touched.push(stream.clone());
        }
        let (end, mut done) = (place.next_offset(), append.done);
        if append.durability == Durability::Visible
            && let Some(done) = done.take()
        {
            self.open.on_visible.push((stream.clone(), Waiter { end, done }));
        }
        let committed = Committed { stream, end, bytes: entry.length };
        self.open.effects.push(Effect::Grew { committed });
        match append.durability {
            Durability::Written => self.open.on_written.extend(done),
            Durability::Synced | Durability::Visible => {
                self.open.durable = true;
                self.open.on_synced.extend(done);
            }
        }
    }

    fn place_event(&mut self, stream: &Stream, to: Offset, kind: EntryKind) {
        let entry = EntryHeader {
            stream: stream.id(),
            base_offset: to,
            max_timestamp: Timestamp::NONE,
            offset_count: 0,
            length: 0,
            kind,
        };
        self.open.durable = true;
        self.place(&entry, 0);
    }

    /// Adds an entry header to the open block and returns the room for the body.
    fn place(&mut self, entry: &EntryHeader, body: usize) -> &mut [u8] {
        let at = self.open.bytes;
        self.open.bytes += ENTRY_HEADER_BYTES + body;
        self.open.entries += 1;
        let header = entry.encode(self.segment.generation);
        let buffer = self.buffer.as_mut().expect("ensure_buffer came first");
        let room = &mut buffer.unfilled()[at..self.open.bytes];
        room[..ENTRY_HEADER_BYTES].copy_from_slice(&header);
        &mut room[ENTRY_HEADER_BYTES..]
    }

    /// Closes the open block and starts its write.
    fn submit_block(&mut self, kind: BlockKind) {
        let open = std::mem::take(&mut self.open);
        self.pace.submitted(self.shared.clock.nanos());
        let lsn = Lsn::new(self.segment.sequence, self.position);
        let total = sectors(open.bytes);
        if self.buffer.as_ref().is_none_or(|buffer| buffer.remaining() < total) {
            assert_eq!(open.bytes, BLOCK_HEADER_BYTES, "a block with entries has its buffer");
            self.take_buffer(WRITE_BUFFER_BYTES);
        }
        let buffer = self.buffer.as_mut().expect("there was one or it was just taken");
        let block = &mut buffer.unfilled()[..total];
        block[open.bytes..].fill(0);
        let header = BlockHeader {
            kind,
            epoch: self.epoch,
            lsn,
            synced: self.synced,
            length: length32(open.bytes - BLOCK_HEADER_BYTES),
            entries: open.entries,
            payload_crc: seeded_crc(self.segment.generation, &block[BLOCK_HEADER_BYTES..open.bytes]),
        };
        header.encode(self.segment.generation, block);
        let bytes = buffer.freeze(total);
        let full = buffer.remaining() < 2 * SECTOR;
        self.unmarked = open.entries > 0 || kind == BlockKind::Footer;
        self.submit(lsn, bytes, open, None);
        if full {
            self.leave_buffer();
        }
    }

    /// Hands a finished block to the device and to the tail cache.
    fn submit(&mut self, lsn: Lsn, block: Bytes, open: OpenBlock, footer_of: Option<Arc<Segment>>) {
        let token = self.token();
        let now = self.shared.clock.nanos();
        self.position += length32(block.len());
        assert!(self.position <= self.segment.data_end(), "a block stays within its segment");
        self.shared.tail.push(lsn, block.clone(), now);
        let entries = open.entries > 0;
        let send = || self.shared.outgoing.send(self.segment.generation, block.slice(..open.bytes));
        let number = entries.then(send).flatten();
        self.in_flight.push_back(InFlight {
            token,
            lsn,
            number,
            bytes: block.len(),
            entries: open.entries,
            durable: open.durable,
            progress: Progress::Submitted,
            submitted_ns: now,
            effects: open.effects,
            on_written: open.on_written,
            on_synced: open.on_synced,
            on_visible: open.on_visible,
            written_answered: false,
            footer_of,
        });
        self.queue.write(token, &self.segment.file, u64::from(lsn.byte()), block, open.durable);
        self.count_room();
        drop(open.admission);
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// An empty block. It says how far the log is synced, so that damage before it can never pass for a torn tail.
    fn submit_mark(&mut self) {
        self.open.durable = true;
        if self.ensure_room(0) {
            self.submit_block(BlockKind::Entries);
        } else {
            // Without room for the mark, the log ends without it. Recovery is then as strict as it can be.
            self.unmarked = false;
        }
    }
}

/// The part of a footer that idempotent producers may take.
fn producer_bytes_max(segment: &Segment) -> usize {
    index(segment.length) / 4
}
