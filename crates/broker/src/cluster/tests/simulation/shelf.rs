//! The disks with copies of a simulated cluster, and the way to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use disk::{Disk, SimDisk};
use parking_lot::Mutex;
use storage::copies::{Block, Copies, Extent, Opening};
use storage::stepped::Steps;
use storage::{Clock, Completion, Options};
use uuid::Uuid;

use super::links::Weather;
use super::tasks::pause;
use super::world::Flaw;
use crate::cluster::copies::{Added, CopyDisks, DiskError, Sent, fence_here, refused, unread};

/// Whoever waits for a disk looks so often.
const LOOK: Duration = Duration::from_millis(5);
/// A request is given up after so long.
const ANSWERED_WITHIN_MS: u64 = 10_000;

/// The copies of a broker, as its newest process has them.
#[derive(Clone, Debug)]
pub struct Kept {
    pub copies: Arc<Copies>,
    /// The process does nothing until then, in milliseconds.
    pub stopped_until: Arc<AtomicU64>,
}

/// All disks with copies that a process has, by their ids.
#[derive(Debug, Default)]
pub struct Shelf {
    kept: Mutex<BTreeMap<Uuid, Kept>>,
    /// Requests that arrive later, or never.
    late: Mutex<Vec<Late>>,
    /// Blocks that were read by later owners.
    pub read: AtomicU64,
}

/// A request with blocks that has not arrived yet.
#[derive(Debug)]
struct Late {
    disk: Uuid,
    of: Opening,
    begins: bool,
    stored: u64,
    blocks: Vec<Block>,
}

impl Shelf {
    /// Opens the copies on a disk, which has some or none.
    pub fn open(
        &self,
        disk: &SimDisk,
        clock: Arc<dyn Clock>,
        id: u128,
        kept: Arc<AtomicU64>,
    ) -> (Kept, Steps) {
        let options = Options {
            segment_bytes: 1 << 20,
            reserve_bytes: 0,
            tail_cache_bytes: 1 << 20,
            log_id: id,
            ..Options::default()
        };
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let (copies, steps) = Copies::open_stepped(disk, options, clock).unwrap();
        let kept = Kept { copies: Arc::new(copies), stopped_until: kept };
        self.kept.lock().insert(Uuid::from_u128(kept.copies.disk_id()), kept.clone());
        (kept, steps)
    }

    /// A disk is reached no more.
    pub fn remove(&self, disk: Uuid) {
        self.kept.lock().remove(&disk);
    }

    fn find(&self, disk: Uuid) -> Result<Kept, DiskError> {
        self.kept.lock().get(&disk).cloned().ok_or_else(|| away("there is no such disk"))
    }

    /// Lets one of the requests arrive that were lost, or forgets it.
    pub fn deliver(&self, rng: &mut fastrand::Rng) {
        let mut late = self.late.lock();
        if late.is_empty() {
            return;
        }
        let at = rng.usize(..late.len());
        let Late { disk, of, begins, stored, blocks } = late.swap_remove(at);
        drop(late);
        if let Some(Kept { copies, .. }) = self.kept.lock().get(&disk).filter(|_| rng.bool()) {
            // Nobody waits for the answer.
            let _ = copies.add(of, &blocks, begins, Arc::new(Added::default()));
            copies.drop_below(of, stored);
        }
    }
}

fn away(why: &str) -> DiskError {
    DiskError::Away(why.to_owned())
}

/// The way of one process to all disks.
#[derive(Debug)]
pub struct ToDisks {
    pub shelf: Arc<Shelf>,
    pub weather: Arc<Weather>,
    pub now_ms: Arc<AtomicU64>,
    pub flaw: Flaw,
}

impl ToDisks {
    fn now(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    /// The disk, once its process goes on.
    fn reach(&self, disk: Uuid) -> Result<Kept, DiskError> {
        pause(Duration::ZERO);
        let until = self.now() + ANSWERED_WITHIN_MS;
        loop {
            let kept = self.shelf.find(disk)?;
            if kept.stopped_until.load(Ordering::Relaxed) <= self.now() {
                return if self.weather.strikes() { Err(away("the request is lost")) } else { Ok(kept) };
            }
            if self.now() >= until {
                return Err(away("it does not answer"));
            }
            pause(LOOK);
        }
    }

    fn answer<T>(&self, answer: T) -> Result<T, DiskError> {
        if self.weather.strikes() { Err(away("the answer is lost")) } else { Ok(answer) }
    }
}

impl CopyDisks for ToDisks {
    fn add(&self, disk: Uuid, sent: &Sent<'_>) -> Result<u64, DiskError> {
        let Sent { of, begins, stored, blocks } = *sent;
        let kept = self.reach(disk).inspect_err(|_| {
            self.shelf.late.lock().push(Late { disk, of, begins, stored, blocks: blocks.to_vec() });
        })?;
        let until = self.now() + ANSWERED_WITHIN_MS;
        let done = Arc::new(Added::default());
        kept.copies.drop_below(of, stored);
        kept.copies.add(of, blocks, begins, done.clone()).map_err(|error| refused(&error))?;
        if self.flaw == Flaw::AnswersUnsynced {
            done.complete(Ok(()));
        }
        let outcome = loop {
            match done.outcome() {
                Some(outcome) => break outcome,
                None if self.now() >= until => return Err(away("it does not answer")),
                None => pause(LOOK),
            }
        };
        outcome.map_err(|error| DiskError::Failed(error.to_string()))?;
        self.answer(blocks.last().map_or(0, |block| block.number + 1))
    }

    fn fence(&self, disk: Uuid, log_id: u128, epoch: u32) -> Result<Vec<Extent>, DiskError> {
        let kept = self.reach(disk)?;
        let extents = fence_here(&kept.copies, log_id, epoch, &|| pause(LOOK))?;
        self.answer(if self.flaw == Flaw::IgnoresCopies { Vec::new() } else { extents })
    }

    fn read(&self, disk: Uuid, of: Opening, from: u64) -> Result<Vec<Block>, DiskError> {
        let kept = self.reach(disk)?;
        // A few at a time.
        let read = kept.copies.read(of, from, 4096).map_err(|error| unread(&error))?;
        self.shelf.read.fetch_add(read.len() as u64, Ordering::Relaxed);
        self.answer(read)
    }
}
