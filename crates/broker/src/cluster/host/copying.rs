//! The copies of the logs that this process opens: it appends what only copies have, before the partitions lead, and sends its own
//! blocks to the disks of others.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use meta::MetaError;
use parking_lot::Mutex;
use storage::copies::{Block, Extent, Opening, Replay, ReplayError};
use storage::{AdmitError, Log};
use uuid::Uuid;

use super::opening::BringError;
use super::{Parts, STORED_CHECK, Shared};
use crate::cluster::copies::{Added, CopyDisks, DiskError};
use crate::cluster::copying::{Cluster, Copier, Pace};
use crate::cluster::ownership::Process;
use crate::cluster::replicas::{others, targets};
use crate::image::records::OwnerRecord;
use crate::image::{Metadata, Record, Update};
use crate::metrics::Metrics;

/// After one disk of a set has answered, the others have so long: one may have more, where that one has lost a sync. Brokers that
/// are gone are not waited for.
const OTHERS_WITHIN: Duration = Duration::from_secs(1);
/// So long if nothing says that its copy is whole, whether they are there or not.
const ABSENT_WITHIN: Duration = Duration::from_secs(10);
/// They are asked so often then.
const ASKED_EVERY: Duration = Duration::from_millis(500);
/// A copy that could not be read in so many attempts comes after a shorter one.
const READ_ATTEMPTS: u32 = 5;
/// A log waits so long for room, and for the disks that get its blocks.
const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// A log in the cluster, for its copier.
struct InCluster {
    metadata: Arc<Metadata>,
    process: Process,
    log: String,
    epoch: u32,
    /// Brokers beside the owner that get copies.
    others: usize,
    metrics: Arc<Metrics>,
    /// The disks as of a revision of the metadata.
    targets: Mutex<(u64, Arc<BTreeSet<Uuid>>)>,
}

impl InCluster {
    fn owns(&self, owner: &OwnerRecord) -> bool {
        let Process { broker, incarnation } = self.process;
        (owner.broker, owner.incarnation, owner.epoch) == (broker, incarnation, self.epoch)
    }
}

impl Cluster for InCluster {
    fn targets(&self) -> Arc<BTreeSet<Uuid>> {
        let (image, mut known) = (self.metadata.image(), self.targets.lock());
        // There is no revision 0.
        if known.0 != image.revision {
            let chosen = targets(&image, &self.log, self.process.broker, self.others);
            *known = (image.revision, Arc::new(chosen.into_keys().collect()));
        }
        known.1.clone()
    }

    fn set(&self, set: &BTreeSet<Uuid>) -> Result<bool, MetaError> {
        self.metadata.update(|image| {
            let Some(owner) = image.owners.get(&self.log).filter(|owner| self.owns(owner)) else {
                return Ok(Update::new(Vec::new(), false));
            };
            let record = OwnerRecord { set: set.clone(), set_epoch: self.epoch, ..OwnerRecord::clone(owner) };
            let changes = if record == **owner { Vec::new() } else { vec![record.put(&self.log)] };
            Ok(Update::new(changes, true))
        })
    }

    fn changed(&self, before: usize, after: usize) {
        match after.cmp(&before) {
            Ordering::Less => self.metrics.isr_shrinks.inc(),
            Ordering::Greater => self.metrics.isr_expands.inc(),
            Ordering::Equal => return,
        };
        tracing::info!(
            log = self.log,
            before,
            after,
            "the number of disks with copies that count has changed"
        );
    }
}

/// The order in which copies are read that could not be read in so many attempts: the longest first, since a shorter one may be on a
/// disk that has lost a sync. Of those with as many blocks the one that can be read, and a shorter one if the longest cannot be read
/// again and again. Never none at all in place of one.
fn by_preference(extent: Option<Extent>, failures: u32) -> (bool, u32, Reverse<u64>, u32) {
    let next = extent.map_or(0, |extent| extent.next);
    (extent.is_none(), failures / READ_ATTEMPTS, Reverse(next), failures)
}

/// What the disks of a copy set have said.
type Answers = Arc<Mutex<BTreeMap<Uuid, Result<Vec<Extent>, DiskError>>>>;

/// Those that were fenced, with what they have of an opening, and why others were not.
type Fenced = (Vec<(Uuid, Option<Extent>)>, BTreeMap<Uuid, String>);

fn split(answers: &BTreeMap<Uuid, Result<Vec<Extent>, DiskError>>, of: Opening) -> Fenced {
    let (mut fenced, mut failed) = (Vec::new(), BTreeMap::new());
    for (disk, answer) in answers {
        match answer {
            Ok(extents) => fenced.push((*disk, extents.iter().find(|extent| extent.of == of).copied())),
            Err(error) => drop(failed.insert(*disk, error.to_string())),
        }
    }
    (fenced, failed)
}

impl Shared {
    /// Begins to send the blocks of a log to the disks of others.
    pub(super) fn start_copier(&self, log: &Arc<Log>, name: &str, epoch: u32) -> Copier {
        let Parts { metadata, process, disks, threads, opening, .. } = &self.parts;
        let cluster = InCluster {
            metadata: metadata.clone(),
            process: *process,
            log: name.to_owned(),
            epoch,
            others: others(&opening.config),
            metrics: opening.metrics.clone(),
            targets: Mutex::default(),
        };
        let config = &opening.config;
        let pace = Pace {
            patience: Duration::from_millis(u64::try_from(config.replica_lag_ms).unwrap_or(u64::MAX)),
            bytes_min: usize::try_from(config.replica_bytes_min).unwrap_or(usize::MAX),
            wait_max: Duration::from_millis(u64::try_from(config.replica_wait_ms).unwrap_or(0)),
        };
        let of = Opening { log_id: log.id(), epoch };
        let copier = Copier::start(log, of, pace, (disks.clone(), Box::new(cluster), threads.clone()));
        self.copiers.lock().insert(name.to_owned(), copier.clone());
        copier
    }

    /// The disks that have what the former owners of a log have acknowledged and the object store may lack, and the epoch of
    /// their copies. This process owns the log in `epoch`, so it does not change any more.
    pub(super) fn former_set(&self, name: &str, epoch: u32) -> Result<(BTreeSet<Uuid>, u32), BringError> {
        let image = self.parts.metadata.image();
        let owner = image.owners.get(name).filter(|owner| owner.epoch == epoch);
        owner.map(|owner| (owner.set.clone(), owner.set_epoch)).ok_or(BringError::Unwanted)
    }

    /// Appends what the copies of a log have and the log lacks. All its streams have their levels, and its blocks are sent on.
    pub(super) fn add_copies(
        &self,
        log: &Log,
        (set, set_epoch): &(BTreeSet<Uuid>, u32),
        epoch: u32,
        unwanted: &AtomicBool,
    ) -> Result<(), BringError> {
        if set.is_empty() {
            return Ok(());
        }
        let of = Opening { log_id: log.id(), epoch: *set_epoch };
        let mut left = self.fence(set, of, epoch, unwanted)?;
        {
            let unreadable = self.unreadable.lock();
            let failures = |disk: Uuid| unreadable.get(&(of.log_id, disk)).copied().unwrap_or(0);
            left.sort_by_key(|(disk, extent)| by_preference(*extent, failures(*disk)));
        }
        let Some((disk, Some(extent))) = left.first().copied() else { return Ok(()) };
        let appended = self.replay(log, disk, extent, unwanted);
        match &appended {
            // A part may be appended, so another disk has to wait for the next attempt. What is wrong with this broker's disk says nothing
            // about the copy: a shorter one may lack records.
            Err(BringError::Copies(_)) => {
                *self.unreadable.lock().entry((of.log_id, disk)).or_default() += 1;
            }
            Err(_) => {}
            Ok(_) => self.unreadable.lock().retain(|(log_id, _), _| *log_id != of.log_id),
        }
        let (name, batches) = (Uuid::from_u128(of.log_id), appended?);
        tracing::info!(log = %name, %disk, batches, "appended what only copies had");
        Ok(())
    }

    /// Fences the disks of a set. Returns those that have answered, with what they have of `of`. One is enough, unless its broker has
    /// started anew since it got its last block: a disk may have lost what it had said to be synced, and then the others are
    /// waited for, also if they are not there yet.
    fn fence(
        &self,
        set: &BTreeSet<Uuid>,
        of: Opening,
        epoch: u32,
        unwanted: &AtomicBool,
    ) -> Result<Vec<(Uuid, Option<Extent>)>, BringError> {
        let Parts { threads, disks, .. } = &self.parts;
        let answers = Answers::default();
        let ask = |disk: Uuid| {
            let (disks, answers): (Arc<dyn CopyDisks>, _) = (disks.clone(), answers.clone());
            let ask = move || {
                let answer = disks.fence(disk, of.log_id, epoch);
                answers.lock().insert(disk, answer);
            };
            threads.spawn("fences", Box::new(ask))
        };
        set.iter().try_for_each(|disk| ask(*disk))?;
        let mut asked_at = threads.now();
        let mut first = None;
        loop {
            if unwanted.load(Acquire) {
                return Err(BringError::Unwanted);
            }
            let now = threads.now();
            let (fenced, failed) = split(&answers.lock(), of);
            if !fenced.is_empty() {
                first.get_or_insert(now);
            }
            let late = |after: Duration| first.is_some_and(|first| now >= first + after);
            let proven = fenced.iter().any(|(_, extent)| extent.is_some_and(|extent| extent.proven));
            let all_said = fenced.len() + failed.len() == set.len();
            if fenced.len() == set.len() || proven && (all_said || late(OTHERS_WITHIN)) || late(ABSENT_WITHIN)
            {
                if !proven && fenced.len() < set.len() {
                    let (log, missing) = (Uuid::from_u128(of.log_id), set.len() - fenced.len());
                    tracing::warn!(
                        %log,
                        missing,
                        "copies count whose brokers have started anew since the last block, as other disks of the copy set are not \
                         there: what one of these disks lost though it had synced it is lost"
                    );
                }
                return Ok(fenced);
            }
            if failed.len() == set.len() {
                let errors: Vec<String> = failed.into_values().collect();
                return Err(BringError::Copies(errors.join("; ")));
            }
            if !failed.is_empty() && now >= asked_at + ASKED_EVERY {
                asked_at = now;
                // Not what has failed since: nobody would ask those again.
                answers.lock().retain(|disk, _| !failed.contains_key(disk));
                failed.keys().try_for_each(|disk| ask(*disk))?;
            }
            threads.sleep(STORED_CHECK);
        }
    }

    /// Appends the blocks of a copy. Returns the batches that the log lacked.
    fn replay(
        &self,
        log: &Log,
        disk: Uuid,
        extent: Extent,
        unwanted: &AtomicBool,
    ) -> Result<u64, BringError> {
        let Parts { threads, disks, .. } = &self.parts;
        let mut replay = log.replay();
        let name = Uuid::from_u128(extent.of.log_id).to_string();
        let copier = self.copiers.lock().get(&name).cloned();
        // All of it together, since a disk may take no more at all.
        let until = threads.now() + ROOM_WITHIN;
        let crowded = || threads.now() < until && copier.as_ref().is_some_and(Copier::is_crowded);
        let mut from = extent.first;
        while from < extent.next {
            let blocks = disks.read(disk, extent.of, from);
            let blocks = blocks.map_err(|error| BringError::Copies(error.to_string()))?;
            let end = from + blocks.len() as u64;
            if blocks.is_empty() || !blocks.iter().map(|block| block.number).eq(from..end) {
                return Err(BringError::Copies(format!("blocks from number {from} on are gone")));
            }
            for block in &blocks {
                self.add_block(&mut replay, block, &crowded, unwanted)?;
            }
            from = end;
        }
        let batches = replay.batches;
        let done = Arc::new(Added::default());
        replay.finish(done.clone());
        loop {
            match done.outcome() {
                Some(Ok(())) => return Ok(batches),
                Some(Err(error)) => return Err(AdmitError::from(error).into()),
                None => threads.sleep(STORED_CHECK),
            }
        }
    }

    fn add_block(
        &self,
        replay: &mut Replay<'_>,
        block: &Block,
        crowded: &dyn Fn() -> bool,
        unwanted: &AtomicBool,
    ) -> Result<(), BringError> {
        let threads = &self.parts.threads;
        let until = threads.now() + ROOM_WITHIN;
        loop {
            if unwanted.load(Acquire) {
                return Err(BringError::Unwanted);
            }
            // Blocks that a disk lacks and that are not kept any more have to be stored before it counts.
            if crowded() {
                threads.sleep(STORED_CHECK);
                continue;
            }
            match replay.add(block) {
                Err(ReplayError::Admit(AdmitError::Busy)) if threads.now() < until => {
                    threads.sleep(STORED_CHECK);
                }
                added => return Ok(added?),
            }
        }
    }

    /// Drops copies that nobody needs: those of before the last owner that was open.
    pub(super) fn tidy_copies(&self) {
        let Parts { metadata, copies, .. } = &self.parts;
        let image = metadata.image();
        for log_id in copies.logs() {
            let Some(owner) = image.owners.get(&Uuid::from_u128(log_id).to_string()) else { continue };
            if copies.extents(log_id).iter().any(|extent| extent.of.epoch < owner.set_epoch) {
                copies.drop_before(log_id, owner.set_epoch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_copy_is_read_first_and_none_never_in_place_of_one() {
        let extent =
            |next| Some(Extent { of: Opening { log_id: 1, epoch: 1 }, first: 0, next, proven: true });
        let first = |copies: &[(Option<Extent>, u32)]| {
            let best = copies
                .iter()
                .enumerate()
                .min_by_key(|(_, (extent, failures))| by_preference(*extent, *failures));
            best.unwrap().0
        };
        assert_eq!(first(&[(extent(80), 0), (extent(100), 0)]), 1);
        assert_eq!(first(&[(extent(80), 0), (extent(100), READ_ATTEMPTS - 1)]), 1, "one request may fail");
        assert_eq!(first(&[(extent(80), 0), (extent(100), READ_ATTEMPTS)]), 0);
        assert_eq!(first(&[(extent(80), READ_ATTEMPTS), (extent(100), READ_ATTEMPTS)]), 1);
        assert_eq!(first(&[(extent(100), 1), (extent(100), 0)]), 1);
        assert_eq!(first(&[(None, 0), (extent(100), 7 * READ_ATTEMPTS)]), 1);
    }

    #[test]
    fn what_is_wrong_with_the_own_disk_says_nothing_about_a_copy() {
        let of_copy = |error: ReplayError| matches!(BringError::from(error), BringError::Copies(_));
        assert!(of_copy(ReplayError::Damaged(7)));
        assert!(!of_copy(AdmitError::Full.into()) && !of_copy(AdmitError::Busy.into()));
        assert!(
            BringError::from(AdmitError::Full).is_local() && BringError::from(AdmitError::Busy).is_local()
        );
        // No broker takes it: they must not leave, one after the other.
        let large = AdmitError::TooLarge { bytes: 9, bytes_max: 8 };
        assert!(!BringError::from(large.clone()).is_local() && !of_copy(large.into()));
    }
}
