//! Dead segments: kept for the next ones that are wanted, or given back to the disk.
//!
//! Segments that hold a few live bytes besides, of committed offsets for example, die together, when the cleaner has waited
//! out its patience with them. So many are kept as were lately wanted: removing them, to make as many new ones soon
//! after, would cost the device every byte twice. Beyond a few they never take more of the disk than they leave free,
//! since that may be another log's, or not a log's at all.
//!
//! A file is removed in pieces, with rests between them: the file system may have the device discard them, and a device
//! that discards a gigabyte does nothing else meanwhile. What is left of it is named [`REMOVING`] until then.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::pacer::Pacer;
use crate::segment::{REMOVING, Segment, file_name};
use crate::shared::Shared;

/// Kept in any case, for a time without news.
const SPARES_MIN: usize = 4;
/// How long it is remembered that a segment was wanted.
const WANTED_REMEMBERED: Duration = Duration::from_secs(300);
/// A piece of a file that is being removed.
const REMOVED_AT_ONCE: u64 = if cfg!(test) { 64 * 1024 } else { 32 * 1024 * 1024 };
const REMOVE_REST_MAX: Duration = Duration::from_millis(500);

pub(crate) struct Spares {
    shared: Arc<Shared>,
    pacer: Pacer,
    /// In the order of their deaths; one may still have a reader.
    dead: VecDeque<Arc<Segment>>,
    /// When segments were wanted, in nanoseconds of the log's clock.
    wanted_at: VecDeque<u64>,
    /// How long the file under [`REMOVING`] still is.
    removing: Option<u64>,
}

impl Spares {
    pub fn new(shared: Arc<Shared>) -> Spares {
        let pacer = Pacer::new(shared.clone(), true);
        Spares { shared, pacer, dead: VecDeque::new(), wanted_at: VecDeque::new(), removing: None }
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.dead.len()
    }

    /// How many times it is remembered that one was wanted.
    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        self.wanted_at.len()
    }

    /// Whether there is something that time may change.
    pub fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.removing.is_none()
    }

    /// Takes over what has died since.
    pub fn collect(&mut self) {
        self.dead.extend(self.shared.segments.take_dead());
    }

    /// A segment was prepared: as many as that may be wanted again.
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

    /// One of full length that nobody reads any more.
    pub fn take_full(&mut self) -> Option<Arc<Segment>> {
        let length = self.shared.options.segment_bytes;
        self.take(length..=length)
    }

    /// One of such a length, in bytes, that nobody reads any more.
    pub fn take(&mut self, lengths: impl RangeBounds<u64>) -> Option<Arc<Segment>> {
        let fits = |spare: &Arc<Segment>| lengths.contains(&u64::from(spare.length)) && is_unread(spare);
        self.dead.remove(self.dead.iter().position(fits)?)
    }

    /// Gives back at once one that is shorter than `bytes`; whether there was one.
    pub fn remove_shorter(&mut self, bytes: u64) -> io::Result<bool> {
        let Some(spare) = self.take(..bytes) else { return Ok(false) };
        self.shared.disk.remove(&file_name(spare.sequence))?;
        Ok(true)
    }

    /// Gives them back at once until the disk has `free` bytes, or there are none.
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

    /// Gives back at once what is left of the one that is being removed; whether there was one.
    pub fn remove_rest(&mut self) -> io::Result<bool> {
        let under_way = self.removing.take().is_some();
        if under_way {
            self.shared.disk.remove(REMOVING)?;
        }
        Ok(under_way)
    }

    /// Removes a piece of one that is not worth keeping, and says how long the device is to be left to appends before
    /// the next one; `None` when there is nothing to remove.
    pub fn remove_some(&mut self) -> io::Result<Option<Duration>> {
        let begun = Instant::now();
        let disk = self.shared.disk.clone();
        let length = match self.removing {
            Some(length) => length,
            None => {
                let Some(spare) = self.take_surplus()? else { return Ok(None) };
                // A segment that is cut off is none any more.
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

    /// How many are worth keeping.
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
