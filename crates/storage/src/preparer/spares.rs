//! Dead segments: kept for reuse, or given back to the disk.
//!
//! Segments that also hold a few live bytes, for example committed offsets, die together when the cleaner's patience
//! with them ends. As many dead segments are kept as were wanted lately. Removing them, and making as many new ones
//! soon after, would cost the device every byte twice. Beyond a few, the kept segments never take more of the disk than
//! is free, because the disk may hold another log, or other data.
//!
//! A file is removed in pieces, with rests between them. The file system may have the device discard the blocks, and a
//! device that discards a gigabyte does nothing else meanwhile. The rest of the file is named [`REMOVING`] until it is
//! gone.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::pacer::Pacer;
use crate::segment::{REMOVING, Segment, file_name};
use crate::shared::Shared;

/// Kept in any case, for a time without wishes.
const SPARES_MIN: usize = 4;
/// How long the wish for a segment is remembered.
const WANTED_REMEMBERED: Duration = Duration::from_secs(300);
/// Bytes of one piece of a file that is being removed.
const REMOVED_AT_ONCE: u64 = if cfg!(test) { 64 * 1024 } else { 32 * 1024 * 1024 };
const REMOVE_REST_MAX: Duration = Duration::from_millis(500);

pub(crate) struct Spares {
    shared: Arc<Shared>,
    pacer: Pacer,
    /// In the order of their deaths. One of them may still have a reader.
    dead: VecDeque<Arc<Segment>>,
    /// The times at which segments were wanted, in nanoseconds of the log's clock.
    wanted_at: VecDeque<u64>,
    /// The remaining length of the file under [`REMOVING`].
    removing: Option<u64>,
}

impl Spares {
    pub fn new(shared: Arc<Shared>) -> Spares {
        let pacer = Pacer::new(shared.clone(), true);
        Spares { shared, pacer, dead: VecDeque::new(), wanted_at: VecDeque::new(), removing: None }
    }

    /// The number of dead segments.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.dead.len()
    }

    /// The number of remembered wishes.
    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        self.wanted_at.len()
    }

    /// Whether there is nothing that a later turn could change.
    pub fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.removing.is_none()
    }

    /// Takes over the segments that have died since the last call.
    pub fn collect(&mut self) {
        self.dead.extend(self.shared.segments.take_dead());
    }

    /// Records that a segment was prepared: as many again may be wanted.
    pub fn note_wanted(&mut self) {
        let now = self.shared.clock.nanos();
        self.forget_wanted(now);
        self.wanted_at.push_back(now);
    }

    fn forget_wanted(&mut self, now: u64) {
        let remembered = u64::try_from(WANTED_REMEMBERED.as_nanos()).expect("minutes");
        while self.wanted_at.front().is_some_and(|wanted| now.saturating_sub(*wanted) > remembered) {
            self.wanted_at.pop_front();
        }
    }

    /// A dead segment of full length without a reader.
    pub fn take_full(&mut self) -> Option<Arc<Segment>> {
        let length = self.shared.options.segment_bytes;
        self.take(length..=length)
    }

    /// A dead segment without a reader whose length in bytes is in `lengths`.
    pub fn take(&mut self, lengths: impl RangeBounds<u64>) -> Option<Arc<Segment>> {
        let fits = |spare: &Arc<Segment>| lengths.contains(&u64::from(spare.length)) && is_unread(spare);
        self.dead.remove(self.dead.iter().position(fits)?)
    }

    /// Removes at once a dead segment that is shorter than `bytes`. Returns whether there was one.
    pub fn remove_shorter(&mut self, bytes: u64) -> io::Result<bool> {
        let Some(spare) = self.take(..bytes) else { return Ok(false) };
        self.shared.disk.remove(&file_name(spare.sequence))?;
        Ok(true)
    }

    /// Removes dead segments at once, until the disk has `free` bytes or no dead segments are left.
    pub fn make_free(&mut self, free: u64) -> io::Result<()> {
        let disk = self.shared.disk.clone();
        while free > 0 && disk.free_bytes()? < free {
            if self.remove_rest()? {
                continue;
            }
            if !self.remove_shorter(u64::MAX)? {
                break;
            }
        }
        Ok(())
    }

    /// Removes at once the rest of the file that is being removed. Returns whether there was one.
    pub fn remove_rest(&mut self) -> io::Result<bool> {
        let under_way = self.removing.take().is_some();
        if under_way {
            self.shared.disk.remove(REMOVING)?;
        }
        Ok(under_way)
    }

    /// Removes a piece of a surplus segment. Returns how long the device should be left to appends before the next
    /// piece; `None` if there is nothing to remove.
    pub fn remove_some(&mut self) -> io::Result<Option<Duration>> {
        let begun = Instant::now();
        let disk = self.shared.disk.clone();
        let length = match self.removing {
            Some(length) => length,
            None => {
                let Some(spare) = self.take_surplus()? else { return Ok(None) };
                // From here on the file is cut, so it must not keep the name of a segment.
                disk.rename(&file_name(spare.sequence), REMOVING)?;
                u64::from(spare.length)
            }
        };
        self.removing = length.checked_sub(REMOVED_AT_ONCE).filter(|left| *left > 0);
        match self.removing {
            Some(left) => disk.shorten(REMOVING, left)?.sync()?,
            None => disk.remove(REMOVING)?,
        }
        Ok(Some(self.pacer.rest_after(begun.elapsed(), REMOVE_REST_MAX)))
    }

    fn take_surplus(&mut self) -> io::Result<Option<Arc<Segment>>> {
        let odd = self.dead.iter().position(|spare| !self.is_full(spare) && is_unread(spare));
        if odd.is_none() && self.dead.len() <= self.kept()? {
            return Ok(None);
        }
        let at = odd.or_else(|| self.dead.iter().position(is_unread));
        Ok(at.and_then(|at| self.dead.remove(at)))
    }

    /// How many dead segments are worth keeping.
    fn kept(&mut self) -> io::Result<usize> {
        if self.dead.len() <= SPARES_MIN {
            return Ok(SPARES_MIN);
        }
        self.forget_wanted(self.shared.clock.nanos());
        let room = self.shared.disk.free_bytes()? / self.shared.options.segment_bytes;
        Ok(self.wanted_at.len().min(usize::try_from(room).unwrap_or(usize::MAX)).max(SPARES_MIN))
    }

    fn is_full(&self, spare: &Segment) -> bool {
        u64::from(spare.length) == self.shared.options.segment_bytes
    }
}

fn is_unread(spare: &Arc<Segment>) -> bool {
    Arc::strong_count(spare) == 1
}
