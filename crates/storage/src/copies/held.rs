//! The copies of other logs that a disk has, all in one log of their own.
//!
//! A copy is what one opening of a log has sent: its blocks from some number on, without gaps. It is a stream here: each block is
//! a batch with one offset. So copies of many logs share a write and a sync, and recovery, trims and the reuse of segments are
//! those of any log.
//!
//! A fence refuses the blocks of a log's earlier epochs for ever. It is durable before it is answered.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use disk::Disk;
use model::batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES, seal_crc};
use model::{BatchHeader, Offset, StreamId};
use parking_lot::Mutex;

use super::places::{Begins, Place, batch_at};
use super::replay::whole;
use crate::completion::{AppendError, Completion};
use crate::format::Fields;
use crate::log::Log;
use crate::options::{Clock, Options};
use crate::outgoing::Block;
use crate::reader::{ReadError, ReadRequest};
use crate::recovery::OpenError;
use crate::request::{AdmitError, Append, Durability, Listener};
use crate::segment::{encode_list, read_list, write_file};
use crate::stream::Stream;

/// The local file with the fences, a list: for each log its id, 16 B, and its epoch u32.
const FENCES: &str = "fences";
const FENCE_BYTES: usize = 20;
/// In front of a block, in the body of its batch: log id 16 B, epoch u32, number u64, generation u64.
const PREFIX_BYTES: usize = 36;

/// Streams that one opening of the copies makes: 2^EPOCH_SHIFT at most.
const EPOCH_SHIFT: u32 = 32;

/// The largest block is somewhat longer than the largest batch of a log, which takes an eighth of a segment.
pub(crate) const BATCH_PART: u64 = 4;

/// What sends blocks: one opening of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Opening {
    /// The log.
    pub log_id: u128,
    /// The epoch of this opening.
    pub epoch: u32,
}

/// Why blocks are not taken.
#[derive(Debug, thiserror::Error)]
pub enum RefusedError {
    /// The log has a later epoch.
    #[error("the log is fenced below epoch {0}")]
    Fenced(u32),
    /// Blocks before them are missing.
    #[error("the next block is number {0}")]
    Gap(u64),
    /// A block is not as its owner wrote it.
    #[error("block {0} is damaged")]
    Damaged(u64),
    /// The log of the copies takes nothing at the moment.
    #[error(transparent)]
    Admit(#[from] AdmitError),
}

/// Why copies cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// There is no copy of this opening.
    #[error("there is no copy of epoch {}", .0.epoch)]
    Unknown(Opening),
    /// The read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What was read is not a copy.
    #[error("block {0} of the copy is damaged")]
    Damaged(u64),
}

/// A copy, and how far it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// What has sent it.
    pub of: Opening,
    /// The number of its first block.
    pub first: u64,
    /// The number behind its last block that is synced.
    pub next: u64,
    /// Whether blocks were added since the copies were opened. They follow what is there, so its end has not been lost in a power
    /// cut, by a disk that had said it to be synced.
    pub proven: bool,
}

/// The copies of a disk.
#[derive(Debug)]
pub struct Copies {
    log: Log,
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    /// Held from the look at a copy until its blocks are queued: they are in their order.
    adding: Mutex<()>,
    /// Held while the file of the fences is written.
    writing: Mutex<()>,
}

#[derive(Default, Debug)]
struct State {
    copies: BTreeMap<Opening, Copy>,
    /// The epoch below which each log is fenced.
    fences: BTreeMap<u128, u32>,
    next_stream: u64,
}

#[derive(Debug)]
struct Copy {
    stream: Arc<Stream>,
    /// The number of the block at offset 0.
    begin: u64,
    /// The number behind the last block that was taken.
    next: u64,
    begins: Begins,
    /// Blocks were added since the copies were opened.
    grown: bool,
}

impl Copy {
    fn extent(&self, of: Opening) -> Extent {
        let bounds = self.stream.bounds();
        let number = |offset: Offset| self.begin + u64::try_from(offset.0).unwrap_or_default();
        Extent { of, first: number(bounds.start), next: number(bounds.committed), proven: self.grown }
    }

    /// The offset of the block `number`.
    fn offset(&self, number: u64) -> Offset {
        Offset(i64::try_from(number.saturating_sub(self.begin)).unwrap_or(i64::MAX))
    }
}

impl State {
    /// Fails if blocks of an opening are refused.
    fn check_fence(&self, of: Opening) -> Result<(), RefusedError> {
        match self.fences.get(&of.log_id) {
            Some(fence) if of.epoch < *fence => Err(RefusedError::Fenced(*fence)),
            _ => Ok(()),
        }
    }
}

impl Copies {
    /// Opens the copies on `disk`, of logs that have `options`. `listener` is told of group commits. Blocks during recovery.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Copies, OpenError> {
        let options = Options { batch_part: BATCH_PART, ..options };
        let log = Log::open(disk.clone(), options, clock, listener)?;
        Copies::of(log, disk)
    }

    /// The id of the disk, as the copies on it have it. A disk that was replaced has another one.
    pub fn disk_id(&self) -> u128 {
        self.log.id()
    }

    /// Free bytes of the disk and all of its bytes, if known.
    pub fn space(&self) -> Option<(u64, u64)> {
        Some((self.disk.free_bytes().ok()?, self.disk.capacity_bytes().ok()?))
    }

    /// The copies in an open log.
    pub(crate) fn of(log: Log, disk: Arc<dyn Disk>) -> Result<Copies, OpenError> {
        let io = |source| OpenError::Io { doing: "reading the copies of other logs".into(), source };
        let mut state = State { fences: read_fences(&*disk).map_err(io)?, ..State::default() };
        // Segments that wait for their reuse have rows of copies that are deleted: another copy must not have the id of one of those,
        // which may have been the highest.
        state.next_stream = log.epoch << EPOCH_SHIFT;
        for stream in log.streams() {
            state.next_stream = state.next_stream.max(stream.id().0 + 1);
            let first = read_batches(&log, &stream, Offset::ZERO, 1).map_err(|error| match error {
                ReadError::Io(source) => io(source),
                error => io(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            })?;
            let Some(first) = first.first() else {
                // Nothing of it was synced.
                log.delete(&stream, None);
                continue;
            };
            let what = "a copy of another log is damaged";
            let (at, of, block) =
                parse(first).ok_or_else(|| io(io::Error::new(io::ErrorKind::InvalidData, what)))?;
            let begin = block.number.saturating_sub(at);
            let mut copy = Copy { stream, begin, next: 0, begins: Begins::default(), grown: false };
            copy.next = copy.extent(of).next;
            state.copies.insert(of, copy);
        }
        let (adding, writing) = Default::default();
        Ok(Copies { log, disk, state: Mutex::new(state), adding, writing })
    }

    /// Adds blocks to the copy of an opening. If it `begins` with them, it may be a new one, in place of one that ends before
    /// them. Blocks that are there are left out: a request may arrive twice. A block that was damaged on its way is refused, as
    /// followers in Kafka refuse batches. `done` is called once all of them are synced. It must not add blocks.
    pub fn add(
        &self,
        of: Opening,
        blocks: &[Block],
        begins: bool,
        done: Arc<dyn Completion>,
    ) -> Result<(), RefusedError> {
        let Some(first) = blocks.first().map(|block| block.number) else {
            done.complete(Ok(()));
            return Ok(());
        };
        if let Some(block) = blocks.iter().find(|block| whole(block).is_none()) {
            return Err(RefusedError::Damaged(block.number));
        }
        let _adding = self.adding.lock();
        let next = {
            let state = self.state.lock();
            state.check_fence(of)?;
            state.copies.get(&of).map(|copy| copy.next)
        };
        let in_a_row = blocks.iter().zip(first..).all(|(block, number)| block.number == number);
        let continues = next.is_some_and(|next| first <= next);
        if !in_a_row || !(begins || continues) {
            return Err(RefusedError::Gap(next.unwrap_or(0)));
        }
        let there = next.filter(|_| continues).map_or(0, |next| next - first);
        let blocks = blocks.get(usize::try_from(there).unwrap_or(usize::MAX)..).unwrap_or_default();
        let batches: Vec<Bytes> = blocks.iter().map(|block| encode(of, block)).collect();
        let mut admitted = Vec::with_capacity(blocks.len());
        for batch in &batches {
            admitted.push(self.log.admit(batch.len())?);
        }
        let mut state = self.state.lock();
        // Whoever has fenced the log meanwhile was told of the blocks that were taken before: these are not among them.
        state.check_fence(of)?;
        let State { copies, next_stream, .. } = &mut *state;
        if !continues && let Some(old) = copies.remove(&of) {
            self.log.delete(&old.stream, None);
        }
        let copy = copies.entry(of).or_insert_with(|| {
            let stream = self.log.stream(StreamId(*next_stream));
            *next_stream += 1;
            Copy { stream, begin: first, next: first, begins: Begins::default(), grown: false }
        });
        blocks.iter().for_each(|block| copy.begins.push(block));
        let (stream, mut base_offset) = (copy.stream.clone(), copy.offset(copy.next));
        copy.next += blocks.len() as u64;
        copy.grown |= !blocks.is_empty();
        drop(state);
        if blocks.is_empty() {
            // Others have added them, and may wait for them still. This comes behind them in the log.
            self.log.trim(&stream, Offset::ZERO, Some(done));
            return Ok(());
        }
        // The log completes appends in their order.
        let mut done = Some(done);
        let last = blocks.len() - 1;
        for ((at, batch), admission) in batches.into_iter().enumerate().zip(admitted) {
            self.log.append(Append {
                stream: stream.clone(),
                base_offset,
                header: BatchHeader::parse(&batch).expect("it was just made"),
                batch,
                append_time: None,
                leader_epoch: 0,
                durability: Durability::Synced,
                done: if at == last { done.take() } else { None },
                admission,
            });
            base_offset = base_offset + 1;
        }
        Ok(())
    }

    /// Refuses blocks of the log's epochs below `epoch` from now on, also after a restart. Blocks.
    ///
    /// Blocks that were taken before may still become durable: ask [`Copies::is_settled`].
    pub fn fence(&self, log_id: u128, epoch: u32) -> io::Result<()> {
        let _writing = self.writing.lock();
        let fences = {
            let mut state = self.state.lock();
            let fence = state.fences.entry(log_id).or_default();
            *fence = epoch.max(*fence);
            state.fences.clone()
        };
        write_file(&*self.disk, FENCES, &encode_fences(&fences))
    }

    /// Whether all blocks of the log that were taken are synced. An error if they will never be.
    pub fn is_settled(&self, log_id: u128) -> Result<bool, AppendError> {
        let state = self.state.lock();
        let settled = of_log(&state, log_id).all(|(of, copy)| copy.extent(*of).next >= copy.next);
        match self.log.stopped() {
            Some(error) if !settled => Err(error),
            _ => Ok(settled),
        }
    }

    /// Whether blocks are refused since the disk is full.
    pub fn is_full(&self) -> bool {
        self.log.is_full()
    }

    /// Why nothing is added any more; `None` if that is not so.
    pub fn stopped(&self) -> Option<AppendError> {
        self.log.stopped()
    }

    /// The logs of which there are copies.
    pub fn logs(&self) -> Vec<u128> {
        let state = self.state.lock();
        let mut logs: Vec<u128> = state.copies.keys().map(|of| of.log_id).collect();
        logs.dedup();
        logs
    }

    /// The copy of an opening.
    pub fn extent(&self, of: Opening) -> Option<Extent> {
        self.state.lock().copies.get(&of).map(|copy| copy.extent(of))
    }

    /// The copies of a log, with the lowest epoch first.
    pub fn extents(&self, log_id: u128) -> Vec<Extent> {
        of_log(&self.state.lock(), log_id).map(|(of, copy)| copy.extent(*of)).collect()
    }

    /// The blocks of a copy from number `from` on, or from its first one: about `bytes_max` bytes, and at least one if there is
    /// one. Blocks.
    pub fn read(&self, of: Opening, from: u64, bytes_max: usize) -> Result<Vec<Block>, CopyError> {
        let place = self.state.lock().copies.get(&of).map(|copy| (copy.stream.clone(), copy.offset(from)));
        let (stream, at) = place.ok_or(CopyError::Unknown(of))?;
        let batches = read_batches(&self.log, &stream, at, bytes_max)?;
        let mut next = None;
        let blocks = batches.iter().map(|batch| match parse(batch) {
            Some((_, whose, block)) if whose == of && next.is_none_or(|next| next == block.number) => {
                next = Some(block.number + 1);
                Ok(block)
            }
            _ => Err(CopyError::Damaged(next.unwrap_or(from))),
        });
        blocks.collect()
    }

    /// The batches of a stream that are at `places` in the log of the copy's owner, copied. `None` if one of them is not in a block
    /// that is here. Blocks.
    pub fn batches(&self, of: Opening, stream: StreamId, places: &[Place]) -> Option<Bytes> {
        let (copy, found) = {
            let state = self.state.lock();
            let copy = state.copies.get(&of)?;
            let found = |place: &Place| copy.begins.find(place.lsn);
            let found = places.iter().map(found).collect::<Option<Vec<_>>>()?;
            let offset = |(number, at): (u64, usize)| (number, copy.offset(number), at);
            (copy.stream.clone(), found.into_iter().map(offset).collect::<Vec<_>>())
        };
        let mut last: Option<Block> = None;
        let mut batches = Vec::new();
        for (place, (number, offset, at)) in places.iter().zip(found) {
            if last.as_ref().is_none_or(|block| block.number != number) {
                let read = read_batches(&self.log, &copy, offset, 1).ok()?;
                // The block may have been dropped meanwhile: then this is the next one that is left.
                let (_, whose, block) = unverified(read.first()?)?;
                last = (whose == of && block.number == number).then_some(block);
            }
            batches.extend_from_slice(&batch_at(last.as_ref()?, at, stream, place.length)?);
        }
        Some(Bytes::from(batches))
    }

    /// Drops the blocks of a copy below `number`: the object store has their records. The newest block stays: it says how far
    /// the copy goes.
    pub fn drop_below(&self, of: Opening, number: u64) {
        let mut state = self.state.lock();
        let Some(copy) = state.copies.get_mut(&of) else { return };
        let extent = copy.extent(of);
        let number = number.min(extent.next.saturating_sub(1));
        if number > extent.first {
            copy.begins.drop_below(number);
            self.log.trim(&copy.stream, copy.offset(number), None);
        }
    }

    /// Drops the copies of a log's epochs below `epoch`, and takes no more of them: a later owner is open.
    pub fn drop_before(&self, log_id: u128, epoch: u32) {
        // What is about to be added would come back.
        let _adding = self.adding.lock();
        let mut state = self.state.lock();
        let fence = state.fences.entry(log_id).or_default();
        *fence = epoch.max(*fence);
        let gone: Vec<Opening> =
            of_log(&state, log_id).map(|(of, _)| *of).filter(|of| of.epoch < epoch).collect();
        for of in gone {
            if let Some(copy) = state.copies.remove(&of) {
                self.log.delete(&copy.stream, None);
            }
        }
    }

    /// Finishes all writes, and ends the threads of the log. Blocks.
    pub fn close(&self) {
        self.log.close();
    }
}

fn of_log(state: &State, log_id: u128) -> impl Iterator<Item = (&Opening, &Copy)> {
    state.copies.range(Opening { log_id, epoch: 0 }..=Opening { log_id, epoch: u32::MAX })
}

/// Whole batches of a stream from `from` on.
fn read_batches(
    log: &Log,
    stream: &Arc<Stream>,
    from: Offset,
    bytes_max: usize,
) -> Result<Vec<Bytes>, ReadError> {
    let (bounds, stream) = (stream.bounds(), stream.clone());
    let from = from.max(bounds.start);
    let request = ReadRequest { stream, from, until: bounds.committed, bytes_max, at_least_one: true };
    let read = log.read_blocking(&request)?;
    let mut bytes = match &read.chunks[..] {
        [chunk] => chunk.clone(),
        chunks => Bytes::from(chunks.concat()),
    };
    let mut batches = Vec::new();
    while let Ok(header) = BatchHeader::parse(&bytes) {
        batches.push(bytes.split_to(header.total_bytes));
    }
    Ok(batches)
}

/// A block as a batch, which gets its offset later.
fn encode(of: Opening, block: &Block) -> Bytes {
    let total = HEADER_BYTES + PREFIX_BYTES + block.bytes.len();
    let length = i32::try_from(total - LENGTH_PREFIX_BYTES).expect("a block is shorter than a segment");
    let mut batch = Vec::with_capacity(total);
    batch.extend(0i64.to_be_bytes());
    batch.extend(length.to_be_bytes());
    batch.extend(0i32.to_be_bytes());
    batch.push(2);
    // Checksum, attributes and the last offset delta.
    batch.extend([0; 4 + 2 + 4]);
    let none = i64::from(-1).to_be_bytes();
    // Both timestamps, the id, the epoch and the sequence of a producer.
    batch.extend([none, none, none].as_flattened());
    batch.extend((-1i16).to_be_bytes());
    batch.extend((-1i32).to_be_bytes());
    batch.extend(1i32.to_be_bytes());
    debug_assert_eq!(batch.len(), HEADER_BYTES, "the header is whole");
    batch.extend(of.log_id.to_le_bytes());
    batch.extend(of.epoch.to_le_bytes());
    batch.extend(block.number.to_le_bytes());
    batch.extend(block.generation.to_le_bytes());
    batch.extend(&block.bytes);
    seal_crc(&mut batch);
    Bytes::from(batch)
}

/// The offset, the sender and the block in a batch.
fn parse(batch: &Bytes) -> Option<(u64, Opening, Block)> {
    let header = BatchHeader::parse(batch).ok()?;
    model::batch::verify_crc(batch, &header).ok()?;
    unverified(batch)
}

/// As [`parse`], for a caller that looks at the checksums of what it takes from the block.
fn unverified(batch: &Bytes) -> Option<(u64, Opening, Block)> {
    let header = BatchHeader::parse(batch).ok()?;
    let at = u64::try_from(header.base_offset.0).ok()?;
    let (prefix, _) = batch.get(HEADER_BYTES..)?.split_at_checked(PREFIX_BYTES)?;
    let mut fields = Fields(prefix);
    let log_id = u128::from(fields.u64()) | u128::from(fields.u64()) << 64;
    let of = Opening { log_id, epoch: fields.u32() };
    let (number, generation) = (fields.u64(), fields.u64());
    Some((at, of, Block { number, generation, bytes: batch.slice(HEADER_BYTES + PREFIX_BYTES..) }))
}

fn encode_fences(fences: &BTreeMap<u128, u32>) -> Vec<u8> {
    encode_list(fences.iter().map(|(log, epoch)| {
        let mut fence = [0; FENCE_BYTES];
        fence[..16].copy_from_slice(&log.to_le_bytes());
        fence[16..].copy_from_slice(&epoch.to_le_bytes());
        fence
    }))
}

/// The fences in the local file. None if there is no file.
fn read_fences(disk: &dyn Disk) -> io::Result<BTreeMap<u128, u32>> {
    let fence = |fence: [u8; FENCE_BYTES]| {
        let mut fields = Fields(&fence);
        let log = u128::from(fields.u64()) | u128::from(fields.u64()) << 64;
        (log, fields.u32())
    };
    Ok(read_list(disk, FENCES)?.into_iter().map(fence).collect())
}
