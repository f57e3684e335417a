//! The preparer: keeps segments ready ahead of the writer, so that rolling costs the write path nothing.
//!
//! A prepared segment carries its final name and header, and has all its blocks written once where there was time for
//! it (zeros, or the recycled contents of an earlier life), because blocks that were never written are slow to sync. Dead
//! segments are recycled under a new generation; a new log starts small and grows its segments, so that an empty start is
//! quick.
//!
//! Zero-filling shares the device with the appends, so it goes in small pieces and rests between them. Where the writer
//! uses room up faster than that, the segment is handed over as it is: large writes hide what blocks that were never
//! written cost, and writing every byte twice would halve the device.
//!
//! A file under preparation is named [`PREPARING`]; whatever a crash leaves under that name is worthless.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{AlignedBuffer, File};

use crate::format::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::log::Shared;
use crate::segment::{Segment, file_name};

/// Name of a file that is being prepared.
pub(crate) const PREPARING: &str = "preparing";
/// Name of a file that the cleaner writes; whatever a crash leaves under that name is worthless.
pub(crate) const CLEANING: &str = "cleaning";
/// Segments kept prepared: the next one, and one more while that one is being filled.
pub(crate) const PREPARED_TARGET: usize = 2;
/// Length of the first segment of an empty log: zero-filled in some 10 ms, so the server is ready at once.
pub(crate) const FIRST_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Each new segment of a young log is this much longer than the last, up to the configured length.
const GROWTH: u64 = 4;
/// Dead segments kept for later: so many, or as many as were made anew in this time, since those that hold a few live
/// bytes besides, of committed offsets for example, die together when the cleaner has waited out its patience.
const SPARES_MIN: usize = 4;
const MADE_REMEMBERED: Duration = Duration::from_secs(300);
/// A file is removed in pieces of so many bytes, with rests like those of zero-filling: the file system may have the device
/// discard them, and a device that discards a gigabyte does nothing else meanwhile.
const REMOVED_AT_ONCE: u64 = 32 * 1024 * 1024;
const REMOVE_REST_MAX: Duration = Duration::from_millis(500);
/// One write of zeros: short enough for an append to wait behind.
const ZERO_FILL_BYTES: usize = 256 * 1024;
/// While there is time, the preparer rests so many times as long as its last piece took, and so long at most: a quarter of
/// the device is enough for it.
const REST_FACTOR: u32 = 3;
const REST_MAX: Duration = Duration::from_millis(20);
/// The next segment is to be ready when this part of the room that was left is used up: 1 / HASTE.
const HASTE: u64 = 2;
/// It may be late by this part of its length: 1 / SLACK.
const SLACK: u64 = 8;

pub(crate) struct Preparer {
    shared: Arc<Shared>,
    next_sequence: u32,
    next_length: u64,
    /// Dead segments that wait to be recycled; one may still have a reader.
    spares: VecDeque<Arc<Segment>>,
    /// When a segment was made for lack of a dead one, in milliseconds since the Unix epoch.
    made_at: VecDeque<i64>,
    /// Whether it may sleep: it has a thread of its own.
    paced: bool,
}

impl Preparer {
    /// Goes on after the highest sequence that recovery saw.
    pub fn new(shared: Arc<Shared>, next_sequence: u32, last_length: u64) -> Preparer {
        let segment_bytes = shared.options.segment_bytes;
        let next_length = (last_length * GROWTH).clamp(FIRST_SEGMENT_BYTES.min(segment_bytes), segment_bytes);
        let (spares, made_at) = (VecDeque::new(), VecDeque::new());
        Preparer { shared, next_sequence, next_length, spares, made_at, paced: false }
    }

    /// From now on zero-filling may rest for the sake of appends.
    pub fn pace(&mut self) {
        self.paced = true;
    }

    /// Recycles what is dead and prepares one segment if one is wanted; true when there may be more to do.
    pub fn turn(&mut self) -> bool {
        self.spares.extend(self.shared.segments.take_dead());
        if self.shared.prepared_count() < PREPARED_TARGET {
            match self.prepare() {
                Ok(segment) => {
                    self.shared.add_prepared(segment);
                    return true;
                }
                Err(_) if self.shared.preparer_stops() => return false,
                Err(error) => {
                    if error.kind() != io::ErrorKind::StorageFull {
                        tracing::error!(%error, "preparing a segment failed");
                    } else if !self.shared.queue.room.out_of_space() {
                        tracing::warn!(
                            "the disk has no room for another segment; appends are refused once the prepared ones are full"
                        );
                    }
                    self.shared.queue.room.set_out_of_space(true);
                    return false;
                }
            }
        }
        self.shared.queue.room.set_out_of_space(false);
        self.remove_surplus()
    }

    /// Makes the next segment, from a dead one where there is one.
    pub fn prepare(&mut self) -> io::Result<Arc<Segment>> {
        self.prepare_within(self.shared.options.reserve_bytes)
    }

    /// As [`Preparer::prepare`], but takes from the reserve: a full disk must not keep a log from being opened.
    pub fn prepare_from_reserve(&mut self) -> io::Result<Arc<Segment>> {
        self.prepare_within(0)
    }

    fn prepare_within(&mut self, reserve_bytes: u64) -> io::Result<Arc<Segment>> {
        self.restore_reserve(reserve_bytes)?;
        let (file, length) = match self.take_spare(true) {
            Some(spare) => self.recycle(&spare)?,
            None => match self.create(reserve_bytes) {
                Ok(file) => {
                    self.made_at.push_back(self.shared.clock.now_ms());
                    (file, self.next_length)
                }
                // A short segment is better than none.
                Err(full) if full.kind() == io::ErrorKind::StorageFull => match self.take_spare(false) {
                    Some(spare) => self.recycle(&spare)?,
                    None => return Err(full),
                },
                Err(error) => return Err(error),
            },
        };
        let header = SegmentHeader {
            sequence: self.next_sequence,
            generation: self.shared.next_generation(),
            length,
            log_id: self.shared.options.log_id,
        };
        write_header(&*file, &header)?;
        self.shared.disk.rename(PREPARING, &file_name(header.sequence))?;
        self.next_sequence += 1;
        let segment_bytes = self.shared.options.segment_bytes;
        self.next_length = (length * GROWTH).clamp(FIRST_SEGMENT_BYTES.min(segment_bytes), segment_bytes);
        Ok(Arc::new(Segment::new(header.sequence, header.generation, file)))
    }

    /// What is left free once there are segments to clean, as the room for copies: as much as one more segment takes.
    /// Without, a full disk with some live data in every segment would stay full for ever.
    fn copy_room(&self, reserve_bytes: u64) -> u64 {
        let wanted = self.shared.segments.count() > 1 && reserve_bytes > 0;
        if wanted { self.next_length } else { 0 }
    }

    /// Gives dead segments back to the disk where copies have used up what is left free for them.
    fn restore_reserve(&mut self, reserve_bytes: u64) -> io::Result<()> {
        let copy_room = self.copy_room(reserve_bytes);
        while copy_room > 0 && self.shared.disk.free_bytes()? < reserve_bytes + copy_room {
            let Some(spare) = self.take_spare(false) else { return Ok(()) };
            self.shared.disk.remove(&file_name(spare.sequence))?;
        }
        Ok(())
    }

    fn recycle(&self, spare: &Segment) -> io::Result<(Arc<dyn File>, u64)> {
        self.shared.disk.rename(&file_name(spare.sequence), PREPARING)?;
        Ok((self.shared.disk.open(PREPARING)?, u64::from(spare.length)))
    }

    /// Makes a new file of `next_length` bytes, or of fewer where the disk has no room for that.
    fn create(&mut self, reserve_bytes: u64) -> io::Result<Arc<dyn File>> {
        let disk = &self.shared.disk;
        if disk.list()?.iter().any(|name| name == PREPARING) {
            disk.remove(PREPARING)?;
        }
        let least = FIRST_SEGMENT_BYTES.min(self.shared.options.segment_bytes);
        let free = disk.free_bytes()?.saturating_sub(reserve_bytes);
        while free < self.next_length + self.copy_room(reserve_bytes) {
            if self.next_length / 2 < least {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.next_length = (self.next_length / 2).next_multiple_of(ZERO_FILL_BYTES as u64);
        }
        let file = disk.create(PREPARING, self.next_length)?;
        let zeros = AlignedBuffer::zeroed(
            ZERO_FILL_BYTES.min(usize::try_from(self.next_length).unwrap_or(usize::MAX)),
        );
        // Without its blocks a segment could meet a full disk once appends to it were promised.
        let allocated = file.is_allocated();
        let room = self.shared.queue.room.left();
        let mut at = 0;
        while at < self.next_length {
            let bytes = zeros.len().min(usize::try_from(self.next_length - at).unwrap_or(usize::MAX));
            let begun = Instant::now();
            file.write_at(at, &zeros[..bytes])?;
            at += bytes as u64;
            if self.paced {
                if self.shared.preparer_stops() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let behind = self.falls_behind(at, room);
                if behind && allocated {
                    break;
                }
                if !behind && self.shared.prepared_count() > 0 {
                    rest(begun, REST_MAX);
                }
            }
        }
        file.sync()?;
        Ok(file)
    }

    /// Whether the file that is `filled` so far will not be complete early enough when appends go on as they did since
    /// there was `room`.
    fn falls_behind(&self, filled: u64, room: u64) -> bool {
        let used = room.saturating_sub(self.shared.queue.room.left());
        let wanted = u128::from(used * HASTE) * u128::from(self.next_length);
        let filled = u128::from(filled + self.next_length / SLACK);
        self.shared.queue.room.is_refusing() || filled * u128::from(room) < wanted
    }

    /// A dead segment, of full length or of any, that nobody reads any more.
    fn take_spare(&mut self, full_length: bool) -> Option<Arc<Segment>> {
        let fits = |spare: &Arc<Segment>| {
            let full = u64::from(spare.length) == self.shared.options.segment_bytes;
            (full || !full_length) && Arc::strong_count(spare) == 1
        };
        let at = self.spares.iter().position(fits)?;
        self.spares.remove(at)
    }

    /// Removes one dead segment that is not worth keeping; true when it did.
    fn remove_surplus(&mut self) -> bool {
        let full = |spare: &Arc<Segment>| u64::from(spare.length) == self.shared.options.segment_bytes;
        let unread = |spare: &Arc<Segment>| Arc::strong_count(spare) == 1;
        let odd = self.spares.iter().position(|spare| !full(spare) && unread(spare));
        let oldest =
            self.shared.clock.now_ms() - i64::try_from(MADE_REMEMBERED.as_millis()).expect("minutes");
        while self.made_at.front().is_some_and(|made| *made < oldest) {
            self.made_at.pop_front();
        }
        let kept = SPARES_MIN.max(self.made_at.len());
        let surplus = || (self.spares.len() > kept).then(|| self.spares.iter().position(unread)).flatten();
        let Some(at) = odd.or_else(surplus) else { return false };
        let spare = self.spares.remove(at).expect("the position was just found");
        if let Err(error) = self.remove(&spare) {
            tracing::warn!(%error, segment = spare.sequence, "removing a dead segment failed");
            return false;
        }
        true
    }

    fn remove(&self, spare: &Segment) -> io::Result<()> {
        let disk = &self.shared.disk;
        if !self.paced {
            return disk.remove(&file_name(spare.sequence));
        }
        // A segment that is cut off is none any more.
        disk.rename(&file_name(spare.sequence), PREPARING)?;
        let mut length = u64::from(spare.length);
        while length > REMOVED_AT_ONCE && !self.shared.preparer_stops() {
            if self.shared.prepared_count() < PREPARED_TARGET {
                // What is prepared next takes the place of the rest.
                return Ok(());
            }
            let begun = Instant::now();
            length -= REMOVED_AT_ONCE;
            disk.shorten(PREPARING, length)?.sync()?;
            rest(begun, REMOVE_REST_MAX);
        }
        disk.remove(PREPARING)
    }

    /// Dead segments that are kept.
    pub fn spares(&self) -> usize {
        self.spares.len()
    }
}

/// Leaves the device to appends, after a piece that was begun then.
fn rest(begun: Instant, at_most: Duration) {
    std::thread::sleep((begun.elapsed() * REST_FACTOR).min(at_most));
}

/// Makes a segment's header durable.
pub(crate) fn write_header(file: &dyn File, header: &SegmentHeader) -> io::Result<()> {
    let mut sector = AlignedBuffer::zeroed(SEGMENT_HEADER_BYTES);
    sector.copy_from_slice(&header.encode());
    file.write_at(0, &sector)?;
    file.sync()
}
