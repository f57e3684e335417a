//! The copies of a log that this process owns: a thread for each disk sends it the blocks, and one asks etcd for changes of the
//! copy set.
//!
//! Invariants:
//! - A block stays in memory until all disks that get blocks have it, or it is too much: a disk that lacks it then begins anew.
//! - The set that counts is in [`CopySet`]. The log hears of what is answered from here, and from the object store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use meta::MetaError;
use parking_lot::Mutex;
use storage::Log;
use storage::copies::{Block, BlockSink, Opening};
use uuid::Uuid;

use super::copies::{CopyDisks, DiskError, Sent};
use super::copy_set::{CopySet, Member};
use super::threads::{Signal, Threads};

/// Bytes of blocks that are kept for slow disks.
const KEPT_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of blocks in one request.
const SENT_BYTES: usize = 4 * 1024 * 1024;
/// After a request that failed, the next one begins so long after.
const BACKOFF: Duration = Duration::from_millis(20);
/// Disks hear so often what they need not keep, while there is nothing else to say.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// They are asked for a sign of life so often while the set is to change.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// The set is looked at so often.
const LOOK: Duration = Duration::from_millis(50);
/// A log that has just got its owner waits so long for the second disk.
const FIRST_WITHIN: Duration = Duration::from_millis(300);

/// What a copier has to know of the cluster, and may change.
pub trait Cluster: Send + Sync {
    /// The disks that shall have copies of the log, and whether their brokers count as alive.
    fn targets(&self) -> BTreeMap<Uuid, bool>;

    /// Makes `set` the copy set of this opening. Returns whether this process still owns the log in it. Blocks.
    fn set(&self, set: &BTreeSet<Uuid>) -> Result<bool, MetaError>;
}

/// Copies the blocks of one opening of a log.
#[derive(Clone)]
pub struct Copier(Arc<Shared>);

struct Shared {
    of: Opening,
    disks: Arc<dyn CopyDisks>,
    cluster: Box<dyn Cluster>,
    threads: Arc<dyn Threads>,
    /// How long a disk may lack a block and stay in the set.
    patience: Duration,
    /// Blocks, and whatever changes in `state`.
    news: Signal,
    log: OnceLock<Weak<Log>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    set: CopySet,
    /// The newest blocks, each with the time at which it came.
    kept: VecDeque<(Block, Duration)>,
    bytes: usize,
    /// The number of the next block.
    next: u64,
    /// The disks that get blocks, with the number of the first one that each lacks. `None`: it lacks blocks that are not kept, or
    /// none are known of. It begins anew once it does not count: whoever owns the log next may need what it has.
    disks: BTreeMap<Uuid, Option<u64>>,
    /// When each disk answered last: when the request was sent.
    heard: BTreeMap<Uuid, Duration>,
    /// Since when the set should be another one: all disks are asked for a sign of life.
    asking_since: Option<Duration>,
    /// Another process owns the log.
    lost: bool,
    ended: bool,
}

impl State {
    /// The number of the oldest block that is kept.
    fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// Drops what all disks have, and what is too much.
    fn trim(&mut self) {
        let all_have = self.disks.values().flatten().min().copied().unwrap_or(self.next);
        while let Some((block, _)) = self.kept.front()
            && (block.number < all_have || self.bytes > KEPT_BYTES)
        {
            self.bytes -= block.bytes.len();
            self.kept.pop_front();
        }
    }

    /// The blocks from `from` on for one request.
    fn take(&self, from: u64) -> Vec<Block> {
        let at = usize::try_from(from - self.first()).unwrap_or(usize::MAX);
        let (mut bytes, mut taken) = (0, Vec::new());
        for (block, _) in self.kept.range(at.min(self.kept.len())..) {
            bytes += block.bytes.len();
            if bytes > SENT_BYTES && !taken.is_empty() {
                break;
            }
            taken.push(block.clone());
        }
        taken
    }

    /// What is known of the disks that get blocks.
    fn members(&self, targets: &BTreeMap<Uuid, bool>, now: Duration) -> BTreeMap<Uuid, Member> {
        let oldest = self.first();
        let member = |disk: &Uuid, alive: bool| {
            let since = match self.disks.get(disk).copied().flatten() {
                Some(lacks) if lacks >= self.next => now,
                Some(lacks) if lacks >= oldest => {
                    let at = usize::try_from(lacks - oldest).unwrap_or(usize::MAX);
                    self.kept.get(at).map_or(now, |(_, since)| *since)
                }
                _ => Duration::ZERO,
            };
            let heard = self.heard.get(disk).copied().unwrap_or_default();
            Member { alive, behind: now.saturating_sub(since), silent: now.saturating_sub(heard) }
        };
        targets.iter().map(|(disk, alive)| (*disk, member(disk, *alive))).collect()
    }
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copier").field("of", &self.0.of).finish_non_exhaustive()
    }
}

impl BlockSink for Shared {
    fn block(&self, block: Block) {
        let now = self.threads.now();
        {
            let mut state = self.state.lock();
            state.next = block.number + 1;
            state.bytes += block.bytes.len();
            state.kept.push_back((block, now));
            state.trim();
        }
        self.news.notify();
    }

    fn stored(&self, number: u64) {
        self.state.lock().set.stored(number);
        self.news.notify();
    }
}

impl Copier {
    /// Begins to send the blocks of a log, from its first one on.
    pub fn start(
        log: &Arc<Log>,
        of: Opening,
        patience: Duration,
        (disks, cluster, threads): (Arc<dyn CopyDisks>, Box<dyn Cluster>, Arc<dyn Threads>),
    ) -> Copier {
        let (news, state) = (Signal::default(), Mutex::default());
        let shared =
            Arc::new(Shared { of, disks, cluster, threads, patience, news, log: OnceLock::new(), state });
        let _ = shared.log.set(Arc::downgrade(log));
        log.copy_to(shared.clone());
        let copier = Copier(shared);
        copier.follow_targets();
        copier
    }

    /// Waits until the record of the log names a set that has what was appended so far, and changes the set as is needed from
    /// then on. Returns false if another process owns the log, or `unwanted` says so. Blocks.
    pub fn open(&self, unwanted: &dyn Fn() -> bool) -> bool {
        let Copier(shared) = self;
        let Some(log) = shared.log.get().and_then(Weak::upgrade) else { return false };
        shared.state.lock().set.was_answered(log.sent_blocks());
        log.store_soon(true);
        let began = shared.threads.now();
        loop {
            let seen = shared.news.count();
            if unwanted() || shared.state.lock().ended {
                return false;
            }
            let targets = self.follow_targets();
            let now = shared.threads.now();
            let first = {
                let mut state = shared.state.lock();
                let members = state.members(&targets, now);
                state.set.first(&members, shared.patience, now >= began + FIRST_WITHIN)
            };
            if let Some(first) = first
                && let Some(owned) = self.ask(&first)
            {
                return owned && self.begin_keeping();
            }
            shared.threads.wait(&shared.news, seen, LOOK);
        }
    }

    /// Opens without a set, where the object store has everything that was answered and the record of the log says so.
    pub fn open_alone(&self) -> bool {
        self.begin_keeping()
    }

    fn begin_keeping(&self) -> bool {
        let copier = self.clone();
        let name = format!("copies {:x}", self.0.of.log_id >> 96);
        let begun = self.0.threads.spawn(&name, Box::new(move || copier.keep()));
        begun.inspect_err(|error| tracing::warn!(%error, "no thread for the copies of a log")).is_ok()
    }

    /// Ends all threads.
    pub fn end(&self) {
        self.0.state.lock().ended = true;
        self.0.news.notify();
    }

    /// Changes the set, until the log is closed.
    fn keep(&self) {
        let Copier(shared) = self;
        loop {
            let seen = shared.news.count();
            let Some(log) = shared.log.get().and_then(Weak::upgrade) else { return };
            let targets = self.follow_targets();
            let now = shared.threads.now();
            let (next, alone) = {
                let mut state = shared.state.lock();
                if state.ended || state.lost {
                    return;
                }
                let members = state.members(&targets, now);
                let State { set, asking_since, .. } = &mut *state;
                if !set.should_change(&members, shared.patience) {
                    *asking_since = None;
                } else if asking_since.is_none() {
                    *asking_since = Some(now);
                    shared.news.notify();
                }
                let late = asking_since.is_some_and(|since| now >= since + shared.patience);
                let next = set.next(&members, shared.patience, late);
                (next, set.needs_store(&members, shared.patience))
            };
            log.store_soon(alone);
            if let Some(next) = next {
                self.ask(&next);
            }
            drop(log);
            shared.threads.wait(&shared.news, seen, LOOK);
        }
    }

    /// Asks etcd for a set. Returns whether this process owns the log, if that is known.
    fn ask(&self, set: &BTreeSet<Uuid>) -> Option<bool> {
        let Copier(shared) = self;
        match shared.cluster.set(set) {
            Ok(true) => {
                tracing::debug!(log = shared.of.log_id, ?set, "the copy set is another one");
                shared.state.lock().set.agreed();
                self.answer();
                Some(true)
            }
            Ok(false) => {
                shared.state.lock().lost = true;
                Some(false)
            }
            Err(error) => {
                tracing::debug!(log = shared.of.log_id, %error, "the copy set cannot be changed now");
                shared.threads.sleep(BACKOFF);
                None
            }
        }
    }

    /// Tells the log what is answered.
    fn answer(&self) {
        let answered = {
            let mut state = self.0.state.lock();
            if state.lost || state.ended {
                return;
            }
            state.set.answered()
        };
        if let Some(log) = self.0.log.get().and_then(Weak::upgrade) {
            log.copied(answered);
        }
    }

    /// Begins to send to disks that shall have copies, and ends with the others that do not count.
    fn follow_targets(&self) -> BTreeMap<Uuid, bool> {
        let targets = self.0.cluster.targets();
        let new: Vec<Uuid> = {
            let mut state = self.0.state.lock();
            let State { disks, set, .. } = &mut *state;
            disks.retain(|disk, _| targets.contains_key(disk) || set.counts(*disk));
            targets.keys().filter(|disk| !disks.contains_key(*disk)).copied().collect()
        };
        for disk in new {
            self.0.state.lock().disks.insert(disk, None);
            let copier = self.clone();
            let begun = self.0.threads.spawn("copies", Box::new(move || copier.send_to(disk)));
            if let Err(error) = begun {
                tracing::warn!(%error, "no thread for the copies of a log");
                self.0.state.lock().disks.remove(&disk);
            }
        }
        targets
    }

    /// Sends blocks to a disk, until it shall have none, or the log is closed.
    fn send_to(&self, disk: Uuid) {
        let Copier(shared) = self;
        let (mut begins, mut told_at) = (false, None::<Duration>);
        let mut failed: Option<String> = None;
        loop {
            let seen = shared.news.count();
            let now = shared.threads.now();
            let (blocks, stored, wanted) = {
                let mut state = shared.state.lock();
                let goes_on = !state.ended && !state.lost;
                let Some(lacks) = state.disks.get(&disk).copied().filter(|_| goes_on) else {
                    state.disks.remove(&disk);
                    return;
                };
                let (first, counts) = (state.first(), state.set.counts(disk));
                match lacks.filter(|lacks| *lacks >= first) {
                    Some(lacks) => (state.take(lacks), state.set.stored_below(), state.asking_since),
                    None if counts => {
                        state.disks.insert(disk, None);
                        (Vec::new(), state.set.stored_below(), None)
                    }
                    None => {
                        state.disks.insert(disk, Some(first));
                        state.set.begins(disk, first);
                        (begins, told_at) = (true, None);
                        (state.take(first), state.set.stored_below(), None)
                    }
                }
            };
            let every = if wanted.is_some() { ASKED_EVERY } else { TOLD_EVERY };
            if let Some(at) = told_at.filter(|at| blocks.is_empty() && now < *at + every) {
                shared.threads.wait(&shared.news, seen, at + every - now);
                continue;
            }
            let end = blocks.last().map(|block| block.number + 1);
            let sent = Sent { of: shared.of, begins: begins && end.is_some(), stored, blocks: &blocks };
            match (shared.disks.add(disk, &sent), end) {
                (Ok(next), Some(end)) if next >= end => {
                    (begins, told_at) = (false, Some(now));
                    {
                        let mut state = shared.state.lock();
                        if let Some(lacks) = state.disks.get_mut(&disk) {
                            *lacks = Some(end);
                        }
                        state.set.synced(disk, end);
                        state.heard.insert(disk, now);
                        state.trim();
                    }
                    self.answer();
                    // The set may change with it.
                    shared.news.notify();
                    if failed.take().is_some() {
                        tracing::info!(%disk, "a disk takes copies again");
                    }
                }
                (Ok(_), None) => {
                    told_at = Some(now);
                    let mut state = shared.state.lock();
                    state.set.reached(disk);
                    state.heard.insert(disk, now);
                    drop(state);
                    if wanted.is_some() || begins {
                        shared.news.notify();
                    }
                }
                (Ok(_), Some(_)) | (Err(DiskError::Gap), _) => {
                    // It has lost blocks that it had synced, or its copy was dropped.
                    tracing::warn!(%disk, "a disk lacks blocks that it was sent: it begins anew");
                    if let Some(lacks) = shared.state.lock().disks.get_mut(&disk) {
                        *lacks = None;
                    }
                    shared.news.notify();
                    shared.threads.sleep(BACKOFF);
                }
                (Err(DiskError::Fenced), _) => {
                    shared.state.lock().lost = true;
                    return;
                }
                (Err(DiskError::Away(error)), _) => {
                    if failed.as_ref() != Some(&error) {
                        tracing::warn!(%disk, error, "a disk takes no copies now; another attempt follows");
                        failed = Some(error);
                    }
                    shared.threads.sleep(BACKOFF);
                }
            }
        }
    }
}
