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
/// A copy that could not be read in so many attempts comes after others.
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

/// How often a copy could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Unread {
    /// Its broker has said that it cannot be read, or blocks were not as they were written.
    failed: u32,
    /// Its broker has not answered, which says nothing about the copy.
    away: u32,
}

/// Copies of an opening, each with its disk.
type Found = Vec<(Uuid, Option<Extent>)>;

/// Puts copies in the order in which they are read: the longest first, since a shorter one may be on a disk that has lost a sync. Of
/// those with as many blocks the one that could be read more often. A shorter one only where the longest is damaged, as it seems,
/// or where its broker does not answer again and again and a copy that is there has lost nothing. Never none at all in place of one.
fn order(copies: &mut Found, unread: impl Fn(Uuid) -> Unread) {
    let is_there = |disk| unread(disk).away < READ_ATTEMPTS;
    let may_do_without =
        copies.iter().any(|(disk, copy)| is_there(*disk) && copy.is_some_and(|copy| copy.proven));
    copies.sort_by_key(|(disk, copy)| {
        let Unread { failed, away } = unread(*disk);
        let next = copy.map_or(0, |copy| copy.next);
        let is_away = may_do_without && !is_there(*disk);
        (copy.is_none(), failed / READ_ATTEMPTS, is_away, Reverse(next), failed + away)
    });
}

/// What the disks of a copy set have said.
type Answers = Arc<Mutex<BTreeMap<Uuid, Result<Vec<Extent>, DiskError>>>>;

/// Those that were fenced, with what they have of an opening, and why others were not.
type Fenced = (Found, BTreeMap<Uuid, String>);

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
        name: &str,
        log: &Log,
        (set, set_epoch): &(BTreeSet<Uuid>, u32),
        epoch: u32,
        unwanted: &AtomicBool,
    ) -> Result<(), BringError> {
        if set.is_empty() {
            return Ok(());
        }
        let of = Opening { log_id: log.id(), epoch: *set_epoch };
        let mut copies = self.fence(name, (set, of), epoch, unwanted)?;
        {
            let mut unread = self.unread.lock();
            // What was wrong with the copies of an earlier owner says nothing about these.
            unread.retain(|(opening, _), _| opening.log_id != of.log_id || *opening == of);
            order(&mut copies, |disk| unread.get(&(of, disk)).copied().unwrap_or_default());
        }
        let Some((disk, Some(extent))) = copies.first().copied() else { return Ok(()) };
        let appended = self.replay(log, disk, extent, unwanted);
        let note = |note: fn(&mut Unread)| note(self.unread.lock().entry((of, disk)).or_default());
        match &appended {
            // A part may be appended, so another disk has to wait for the next attempt. What is wrong with this broker's disk says nothing
            // about the copy: a shorter one may lack records.
            Err(BringError::Copies(_)) => note(|unread| unread.failed += 1),
            Err(BringError::Away(_)) => note(|unread| unread.away += 1),
            Err(_) => {}
            Ok(_) => self.unread.lock().retain(|(opening, _), _| *opening != of),
        }
        let batches = appended?;
        tracing::info!(log = name, %disk, batches, "appended what only copies had");
        Ok(())
    }

    /// Fences the disks of a set. Returns those that have answered, with what they have of `of`. One is enough, unless its broker has
    /// started anew since it got its last block: a disk may have lost what it had said to be synced, and then the others are
    /// waited for, also if they are not there yet. While none answers, all are asked again: a further attempt to take the log over
    /// would leave one more seal in the object store, and restore all of it anew.
    fn fence(
        &self,
        name: &str,
        (set, of): (&BTreeSet<Uuid>, Opening),
        epoch: u32,
        unwanted: &AtomicBool,
    ) -> Result<Found, BringError> {
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
        let (mut first, mut told) = (None, None);
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
                    self.parts.opening.metrics.unproven_copies.inc();
                    tracing::warn!(
                        log = name,
                        missing = set.len() - fenced.len(),
                        "copies count whose brokers have started anew since the last block, as other disks of the copy set are not \
                         there: what one of these disks lost though it had synced it is lost"
                    );
                }
                return Ok(fenced);
            }
            if failed.len() == set.len() && told.as_ref() != Some(&failed) {
                let errors: Vec<&str> = failed.values().map(String::as_str).collect();
                tracing::warn!(
                    log = name,
                    epoch,
                    error = errors.join("; "),
                    "no disk of the copy set answers, so the log is not opened yet; they are asked again and again"
                );
                told = Some(failed.clone());
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
            let blocks = blocks.map_err(|error| match error {
                DiskError::Away(error) => BringError::Away(error),
                error => BringError::Copies(error.to_string()),
            })?;
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
        let copy =
            |next, proven| Some(Extent { of: Opening { log_id: 1, epoch: 1 }, first: 0, next, proven });
        let (short, long) = (copy(80, false), copy(100, false));
        // Which of two copies is read first, that could not be read so often.
        let first = |copies: [(Option<Extent>, Unread); 2]| {
            let unread = copies.map(|(_, unread)| unread);
            let at = |disk: Uuid| usize::try_from(disk.as_u128()).unwrap();
            let mut found: Found =
                (0..).zip(copies).map(|(at, (copy, _))| (Uuid::from_u128(at), copy)).collect();
            order(&mut found, |disk| unread[at(disk)]);
            at(found[0].0)
        };
        let (well, failed, away) = (
            Unread::default(),
            |failed| Unread { failed, ..Unread::default() },
            |away| Unread { away, ..Unread::default() },
        );
        assert_eq!(first([(short, well), (long, well)]), 1);
        assert_eq!(first([(short, well), (long, failed(READ_ATTEMPTS - 1))]), 1, "one request may fail");
        assert_eq!(first([(short, well), (long, failed(READ_ATTEMPTS))]), 0);
        assert_eq!(first([(short, failed(READ_ATTEMPTS)), (long, failed(READ_ATTEMPTS))]), 1);
        assert_eq!(first([(long, failed(1)), (long, well)]), 1);
        assert_eq!(first([(None, well), (long, failed(7 * READ_ATTEMPTS))]), 1);
        // A broker that does not answer may have what the other has lost.
        assert_eq!(first([(short, well), (long, away(9 * READ_ATTEMPTS))]), 1);
        let proven = copy(80, true);
        assert_eq!(first([(proven, well), (long, away(READ_ATTEMPTS - 1))]), 1);
        assert_eq!(first([(proven, well), (long, away(READ_ATTEMPTS))]), 0);
        assert_eq!(first([(proven, away(READ_ATTEMPTS)), (long, away(READ_ATTEMPTS))]), 1);
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
