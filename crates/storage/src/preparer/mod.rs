//! The preparer: keeps segments ready ahead of the writer, so that rolling costs the write path nothing.
//!
//! A prepared segment has its final name and header. Where there was time, all its blocks were written once (with
//! zeros, or as the recycled contents of an earlier life), because blocks that were never written are slow to sync.
//! Dead segments are recycled under a new generation. A new log starts with a small segment and grows its segments, so
//! that an empty start is quick.
//!
//! Zero-filling shares the device with appends, so it works in small pieces and rests between them. If the writer uses
//! up room faster, the segment is handed over as it is. Large writes hide the cost of blocks that were never written,
//! and writing every byte twice would halve the throughput of the device.
//!
//! The name of a file under preparation is [`PREPARING`]. A file that a crash leaves under that name is worthless.

pub(crate) mod spares;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{AlignedBuffer, File};

use self::spares::Spares;
use crate::format::SegmentHeader;
use crate::pacer::{REST_FACTOR, REST_MAX};
use crate::segment::{PREPARING, Segment, file_name, write_header};
use crate::shared::Shared;

/// Segments kept prepared: the next one, and one more for the time in which the next one is filled.
const PREPARED_TARGET: usize = 2;
/// While segments grow, the next one alone, so that a log with little in it takes little of the disk. It is several times as long as
/// the one that is being filled.
const PREPARED_WHILE_YOUNG: usize = 1;
/// Length of the first segment of an empty log. Zero-filling it takes some 10 ms, so the server is ready at once.
pub(crate) const FIRST_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Each new segment of a young log is this many times as long as the last, up to the configured length.
const GROWTH: u64 = 4;
/// What a segment has besides batches, at most, when it is made for one.
const BESIDE_BATCHES: u64 = 4 * 1024 * 1024;
/// One write of zeros: short, because an append may have to wait behind it.
const ZERO_FILL_BYTES: usize = 256 * 1024;
/// The next segment should be ready when this part of the remaining room is used up: 1 / HASTE.
const HASTE: u64 = 2;
/// Zero-filling may be late by this part of the segment's length: 1 / SLACK.
const SLACK: u64 = 8;

pub(crate) struct Preparer {
    shared: Arc<Shared>,
    next_sequence: u32,
    /// Of the newest segment.
    last_length: u64,
    next_length: u64,
    /// How many segments of the full length there were since the log was opened, the prepared ones among them.
    full: usize,
    spares: Spares,
    /// How long the next turn should leave the device to appends, unless a segment is wanted.
    rest: Duration,
    /// Whether the preparer may sleep, because it has a thread of its own.
    paced: bool,
}

impl Preparer {
    /// Continues after the highest sequence number that recovery saw.
    pub fn new(shared: Arc<Shared>, next_sequence: u32, last_length: u64) -> Preparer {
        let segment_bytes = shared.options.segment_bytes;
        let next_length = (last_length * GROWTH).clamp(FIRST_SEGMENT_BYTES.min(segment_bytes), segment_bytes);
        let full = usize::from(last_length >= segment_bytes);
        let spares = Spares::new(shared.clone());
        let rest = Duration::ZERO;
        Preparer { shared, next_sequence, last_length, next_length, full, spares, rest, paced: false }
    }

    /// From now on zero-filling may rest for appends.
    pub fn pace(&mut self) {
        self.paced = true;
    }

    /// How many segments shall be prepared: more than one once the writer has one of the full length.
    pub fn target(&self) -> usize {
        if self.full > self.shared.prepared_count() { PREPARED_TARGET } else { PREPARED_WHILE_YOUNG }
    }

    /// Whether one more segment shall be prepared: also where there are enough, but all of them are too short for a batch.
    pub fn wants_segment(&self) -> bool {
        self.shared.prepared_count() < self.target() || self.long_enough().is_some()
    }

    /// The length of a segment for a batch that is too long for those that there are.
    fn long_enough(&self) -> Option<u64> {
        let most = self.shared.options.segment_bytes;
        if self.last_length >= most {
            return None;
        }
        let wanted = self.shared.queue.room.too_long()? + BESIDE_BATCHES;
        let mut length = self.last_length * GROWTH;
        while length < most && length - length / 32 < wanted {
            length *= GROWTH;
        }
        Some(length.min(most))
    }

    /// Recycles dead segments and prepares one segment if one is wanted. Returns true if there may be more to do.
    pub fn turn(&mut self) -> bool {
        self.spares.collect();
        let enough = self.shared.prepared_count() >= self.target();
        let long = if enough { self.long_enough() } else { None };
        if !enough || long.is_some() {
            match self.prepare(long) {
                Ok(segment) => {
                    self.shared.queue.room.forget_too_long();
                    self.shared.add_prepared(segment);
                    return true;
                }
                Err(_) if self.shared.preparer_stops() => return false,
                Err(error) if enough => {
                    if self.shared.queue.room.refuse_too_long() {
                        tracing::warn!(%error, "the disk has no room for a segment that is long enough for a batch; it is refused");
                    }
                    self.shared.listener.room();
                }
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
        self.remove_surplus().unwrap_or_else(|error| {
            tracing::warn!(%error, "removing a dead segment failed");
            false
        })
    }

    /// Makes the next segment, from a dead one if there is one. One of at least `long` bytes, if that is given: another one that is too
    /// short would only take the disk's room.
    pub fn prepare(&mut self, long: Option<u64>) -> io::Result<Arc<Segment>> {
        self.next_length = long.unwrap_or(self.next_length);
        self.prepare_within(self.shared.options.reserve_bytes, long.unwrap_or(self.least_bytes()))
    }

    /// Like [`Preparer::prepare`], but also uses the reserve: a full disk must not prevent the opening of a log.
    pub fn prepare_from_reserve(&mut self) -> io::Result<Arc<Segment>> {
        self.prepare_within(0, self.least_bytes())
    }

    /// Makes a segment of at least `least` bytes.
    fn prepare_within(&mut self, reserve_bytes: u64, least: u64) -> io::Result<Arc<Segment>> {
        self.restore_reserve(reserve_bytes)?;
        let (file, length) = match self.spares.take_full() {
            Some(spare) => self.recycle(&spare)?,
            None => match self.create(reserve_bytes, least) {
                Ok(file) => (file, self.next_length),
                Err(full) if full.kind() == io::ErrorKind::StorageFull => {
                    // A cleaned segment is only as long as its contents. It may be too short for a footer, or for any
                    // append.
                    if self.spares.remove_rest()? || self.spares.remove_shorter(least)? {
                        return self.prepare_within(reserve_bytes, least);
                    }
                    // A short segment is better than none.
                    match self.spares.take(least..) {
                        Some(spare) => self.recycle(&spare)?,
                        None => return Err(full),
                    }
                }
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
        self.spares.note_wanted();
        self.next_sequence += 1;
        self.full += usize::from(length >= self.shared.options.segment_bytes);
        self.last_length = length;
        self.next_length = (length * GROWTH).clamp(self.least_bytes(), self.shared.options.segment_bytes);
        Ok(Arc::new(Segment::new(header.sequence, header.generation, file)))
    }

    /// The space that stays free for copies once there are segments to clean: that of one more segment. Without it, a
    /// full disk with some live data in every segment would stay full for ever.
    fn copy_room(&self, reserve_bytes: u64) -> u64 {
        let wanted = self.shared.segments.count() > 1 && reserve_bytes > 0;
        if wanted { self.next_length } else { 0 }
    }

    /// Gives dead segments back to the disk, if copies have used up the space that stays free for them.
    fn restore_reserve(&mut self, reserve_bytes: u64) -> io::Result<()> {
        match self.copy_room(reserve_bytes) {
            0 => Ok(()),
            copy_room => self.spares.make_free(reserve_bytes + copy_room),
        }
    }

    /// The shortest segment that takes appends.
    fn least_bytes(&self) -> u64 {
        FIRST_SEGMENT_BYTES.min(self.shared.options.segment_bytes)
    }

    fn recycle(&self, spare: &Segment) -> io::Result<(Arc<dyn File>, u64)> {
        self.shared.disk.rename(&file_name(spare.sequence), PREPARING)?;
        Ok((self.shared.disk.open(PREPARING)?, u64::from(spare.length)))
    }

    /// Makes a new file of `next_length` bytes, or a shorter one, of at least `least` bytes, if the disk has no room for that.
    fn create(&mut self, reserve_bytes: u64, least: u64) -> io::Result<Arc<dyn File>> {
        let disk = &self.shared.disk;
        if disk.list()?.iter().any(|name| name == PREPARING) {
            disk.remove(PREPARING)?;
        }
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
        // Without allocated blocks, the segment could meet a full disk after appends to it were promised.
        let allocated = file.is_allocated();
        if allocated && !file.wants_zeros() {
            return Ok(file);
        }
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
                if !behind && (self.shared.prepared_count() > 0 || self.target() == PREPARED_WHILE_YOUNG) {
                    std::thread::sleep((begun.elapsed() * REST_FACTOR).min(REST_MAX));
                }
            }
        }
        file.sync()?;
        Ok(file)
    }

    /// Whether the file, of which `filled` bytes are filled, will be late if appends continue at their rate since the
    /// room was `room`.
    fn falls_behind(&self, filled: u64, room: u64) -> bool {
        let used = room.saturating_sub(self.shared.queue.room.left());
        let wanted = u128::from(used * HASTE) * u128::from(self.next_length);
        let filled = u128::from(filled + self.next_length / SLACK);
        self.shared.queue.room.is_refusing() || filled * u128::from(room) < wanted
    }

    /// Gives dead segments back to the disk: to restore the reserve, or a piece of a surplus one. Returns true if it
    /// removed a piece.
    fn remove_surplus(&mut self) -> io::Result<bool> {
        if self.spares.is_empty() {
            return Ok(false);
        }
        self.restore_reserve(self.shared.options.reserve_bytes)?;
        let rest = self.spares.remove_some()?;
        self.rest = rest.unwrap_or_default();
        Ok(rest.is_some())
    }

    /// How long the next turn should leave the device to appends, unless a segment is wanted.
    pub fn rest(&mut self) -> Duration {
        std::mem::take(&mut self.rest)
    }

    /// Whether a later turn may find work without news: the disk is full, or there are dead segments.
    pub fn looks_again(&self) -> bool {
        self.shared.queue.room.out_of_space() || !self.spares.is_empty()
    }

    /// The number of dead segments that are kept.
    #[cfg(test)]
    pub fn spares(&self) -> usize {
        self.spares.count()
    }
}
