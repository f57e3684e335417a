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

/// Bytes of memory of blocks that are kept for slow disks.
const KEPT_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of blocks in one request.
const SENT_BYTES: usize = 4 * 1024 * 1024;
/// Blocks in one request. Each needs some kilobytes of room beside its bytes, all at once, of which a log of copies that was just
/// created has not much.
const SENT_BLOCKS: usize = 1000;
/// Blocks gather for this part of the time that a disk may lack them, at most: 1 / GATHER_PART.
const GATHER_PART: u32 = 3;
/// After a request that failed, the next one begins so long after.
const BACKOFF: Duration = Duration::from_millis(20);
/// Disks hear so often what they need not keep, while there is nothing else to say.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// The set is looked at so often.
const LOOK: Duration = Duration::from_millis(50);
/// A log that has just got its owner waits so long for the second disk.
const FIRST_WITHIN: Duration = Duration::from_millis(300);

/// What a copier has to know of the cluster, and may change.
pub trait Cluster: Send + Sync {
    /// The disks that shall have copies of the log. Their brokers count as alive.
    fn targets(&self) -> Arc<BTreeSet<Uuid>>;

    /// Makes `set` the copy set of this opening. Returns whether this process still owns the log in it. Blocks.
    fn set(&self, set: &BTreeSet<Uuid>) -> Result<bool, MetaError>;

    /// Hears of a set that was changed, and is not the first one: the number of disks before and after.
    fn changed(&self, before: usize, after: usize);
}

/// When blocks are sent to the disks of a log, and how long these may take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a disk may lack a block and stay in the set (`replica.lag.time.max.ms`).
    pub patience: Duration,
    /// A request waits until it has blocks of so many bytes (`replica.fetch.min.bytes`).
    pub bytes_min: usize,
    /// It waits for so long at most (`replica.fetch.wait.max.ms`), and for a third of `patience`.
    pub wait_max: Duration,
}

impl Pace {
    /// A request has no more.
    fn bytes_min(&self) -> usize {
        self.bytes_min.min(SENT_BYTES)
    }

    fn wait_max(&self) -> Duration {
        self.wait_max.min(self.patience / GATHER_PART)
    }
}

/// Copies the blocks of one opening of a log.
#[derive(Clone)]
pub struct Copier(Arc<Shared>);

struct Shared {
    of: Opening,
    disks: Arc<dyn CopyDisks>,
    cluster: Box<dyn Cluster>,
    threads: Arc<dyn Threads>,
    pace: Pace,
    /// For the threads that send: blocks, and what else they have to look at.
    news: Signal,
    /// For those that wait for more blocks: there are enough, or something else to look at.
    enough: Signal,
    /// For the thread that changes the set.
    changes: Signal,
    log: OnceLock<Weak<Log>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    set: CopySet,
    /// The newest blocks, each with the time at which it came.
    kept: VecDeque<(Block, Duration)>,
    bytes: usize,
    memory_bytes: usize,
    /// The number of the next block.
    next: u64,
    /// The disks that get blocks.
    disks: BTreeMap<Uuid, Receiver>,
    /// Threads that were begun to send blocks.
    senders: u64,
    /// When each disk answered last: when the request was sent.
    heard: BTreeMap<Uuid, Duration>,
    /// Since when the set should be another one: all disks are asked for a sign of life.
    asking_since: Option<Duration>,
    /// Etcd has a set of this opening.
    has_set: bool,
    /// Another process owns the log.
    lost: bool,
    ended: bool,
}

/// A disk that gets blocks.
#[derive(Clone, Copy)]
struct Receiver {
    /// The thread that sends them.
    sender: u64,
    /// The number of the first block that it lacks. `None`: it lacks blocks that are not kept, or none are known of. It begins anew
    /// once it does not count: whoever owns the log next may need what it has.
    lacks: Option<u64>,
}

impl State {
    /// The number of the oldest block that is kept.
    fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// Drops what all disks have, and what is too much.
    fn trim(&mut self) {
        let all_have = self.disks.values().filter_map(|it| it.lacks).min().unwrap_or(self.next);
        while let Some((block, _)) = self.kept.front()
            && (block.number < all_have || self.memory_bytes > KEPT_BYTES)
        {
            self.bytes -= block.bytes.len();
            self.memory_bytes -= block.memory_bytes();
            self.kept.pop_front();
        }
    }

    /// How long the blocks from `from` on shall still gather.
    fn gather(&self, from: u64, pace: &Pace, now: Duration) -> Option<Duration> {
        let at = usize::try_from(from - self.first()).unwrap_or(usize::MAX).min(self.kept.len());
        let (_, since) = self.kept.get(at)?;
        let mut sums = self.kept.range(at..).scan(0, |sum, (block, _)| {
            *sum += block.bytes.len();
            Some(*sum)
        });
        if sums.any(|bytes| bytes >= pace.bytes_min()) {
            return None;
        }
        let rest = pace.wait_max().saturating_sub(now.saturating_sub(*since));
        (!rest.is_zero()).then_some(rest)
    }

    /// The blocks from `from` on for one request.
    fn take(&self, from: u64) -> Vec<Block> {
        let at = usize::try_from(from - self.first()).unwrap_or(usize::MAX);
        let (mut bytes, mut taken) = (0, Vec::new());
        for (block, _) in self.kept.range(at.min(self.kept.len())..).take(SENT_BLOCKS) {
            bytes += block.bytes.len();
            if bytes > SENT_BYTES && !taken.is_empty() {
                break;
            }
            taken.push(block.clone());
        }
        taken
    }

    /// What is known of the disks that get blocks.
    fn members(&self, targets: &BTreeSet<Uuid>, now: Duration) -> BTreeMap<Uuid, Member> {
        let oldest = self.first();
        let member = |disk: &Uuid| {
            let since = match self.disks.get(disk).and_then(|it| it.lacks) {
                Some(lacks) if lacks >= self.next => now,
                Some(lacks) if lacks >= oldest => {
                    let at = usize::try_from(lacks - oldest).unwrap_or(usize::MAX);
                    self.kept.get(at).map_or(now, |(_, since)| *since)
                }
                _ => Duration::ZERO,
            };
            let heard = self.heard.get(disk).copied().unwrap_or_default();
            Member { behind: now.saturating_sub(since), silent: now.saturating_sub(heard) }
        };
        targets.iter().map(|disk| (*disk, member(disk))).collect()
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
        let enough = {
            let mut state = self.state.lock();
            state.next = block.number + 1;
            state.bytes += block.bytes.len();
            state.memory_bytes += block.memory_bytes();
            state.kept.push_back((block, now));
            state.trim();
            state.bytes >= self.pace.bytes_min()
        };
        self.news.notify();
        if enough {
            self.enough.notify();
        }
    }

    fn stored(&self, number: u64) {
        let may_change = {
            let mut state = self.state.lock();
            state.set.stored(number);
            state.asking_since.is_some() || state.disks.keys().any(|disk| !state.set.counts(*disk))
        };
        // The next request to each disk says it.
        if may_change {
            self.changes.notify();
        }
    }
}

impl Copier {
    /// Begins to send the blocks of a log, from its first one on.
    pub fn start(
        log: &Arc<Log>,
        of: Opening,
        pace: Pace,
        (disks, cluster, threads): (Arc<dyn CopyDisks>, Box<dyn Cluster>, Arc<dyn Threads>),
    ) -> Copier {
        let shared = Arc::new(Shared {
            of,
            disks,
            cluster,
            threads,
            pace,
            news: Signal::default(),
            enough: Signal::default(),
            changes: Signal::default(),
            log: OnceLock::new(),
            state: Mutex::default(),
        });
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
            let seen = shared.changes.count();
            if unwanted() || shared.state.lock().ended {
                return false;
            }
            let targets = self.follow_targets();
            let now = shared.threads.now();
            let first = {
                let mut state = shared.state.lock();
                let members = state.members(&targets, now);
                state.set.first(&members, shared.pace.patience, now >= began + FIRST_WITHIN)
            };
            if let Some(first) = first
                && let Some(owned) = self.ask(&first)
            {
                return owned && self.begin_keeping();
            }
            shared.threads.wait(&shared.changes, seen, LOOK);
        }
    }

    /// Whether many blocks are kept for disks that lack them: more would begin a copy anew.
    pub fn is_crowded(&self) -> bool {
        self.0.state.lock().memory_bytes > KEPT_BYTES / 2
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
        self.0.enough.notify();
        self.0.changes.notify();
    }

    /// Changes the set, until the log is closed.
    fn keep(&self) {
        let Copier(shared) = self;
        loop {
            let seen = shared.changes.count();
            let Some(log) = shared.log.get().and_then(Weak::upgrade) else { return };
            let targets = self.follow_targets();
            let now = shared.threads.now();
            let (next, members, alone) = {
                let mut state = shared.state.lock();
                if state.ended || state.lost {
                    return;
                }
                let members = state.members(&targets, now);
                let State { set, asking_since, .. } = &mut *state;
                if !set.should_change(&members, shared.pace.patience) {
                    *asking_since = None;
                } else if asking_since.is_none() {
                    *asking_since = Some(now);
                    shared.news.notify();
                    shared.enough.notify();
                }
                let late = asking_since.is_some_and(|since| now >= since + shared.pace.patience);
                let next = set.next(&members, shared.pace.patience, late);
                let alone = set.needs_store(&members, shared.pace.patience);
                (next, members, alone)
            };
            log.store_soon(alone);
            if let Some(next) = next
                && self.ask(&next) == Some(true)
            {
                log.store_soon(shared.state.lock().set.needs_store(&members, shared.pace.patience));
            }
            drop(log);
            shared.threads.wait(&shared.changes, seen, LOOK);
        }
    }

    /// Asks etcd for a set. Returns whether this process owns the log, if that is known.
    fn ask(&self, set: &BTreeSet<Uuid>) -> Option<bool> {
        let Copier(shared) = self;
        match shared.cluster.set(set) {
            Ok(true) => {
                tracing::debug!(log = shared.of.log_id, ?set, "the copy set is another one");
                let (opens, before, after) = {
                    let mut state = shared.state.lock();
                    let opens = std::mem::replace(&mut state.has_set, true);
                    let (before, after) = state.set.agreed();
                    (!opens, before, after)
                };
                if !opens {
                    shared.cluster.changed(before, after);
                }
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
    fn follow_targets(&self) -> Arc<BTreeSet<Uuid>> {
        let log = self.0.log.get().and_then(Weak::upgrade);
        let targets = match log.is_some_and(|log| log.wants_copies()) {
            true => self.0.cluster.targets(),
            false => Arc::default(),
        };
        let new: Vec<Uuid> = {
            let mut state = self.0.state.lock();
            let State { disks, set, .. } = &mut *state;
            disks.retain(|disk, _| targets.contains(disk) || set.counts(*disk));
            targets.iter().filter(|disk| !disks.contains_key(*disk)).copied().collect()
        };
        for disk in new {
            let id = {
                let mut state = self.0.state.lock();
                state.senders += 1;
                let sender = state.senders;
                state.disks.insert(disk, Receiver { sender, lacks: None });
                sender
            };
            let copier = self.clone();
            let begun = self.0.threads.spawn("copies", Box::new(move || copier.send_to(disk, id)));
            if let Err(error) = begun {
                tracing::warn!(%error, "no thread for the copies of a log");
                self.0.state.lock().disks.remove(&disk);
            }
        }
        targets
    }

    /// Sends blocks to a disk, until it shall have none and knows that it needs none, or the log is closed.
    fn send_to(&self, disk: Uuid, id: u64) {
        let Copier(shared) = self;
        let mut sender =
            Sender { id, disk, begins: false, sent: 0, told_at: None, told_stored: 0, failed: None };
        loop {
            let (seen, seen_enough) = (shared.news.count(), shared.enough.count());
            let now = shared.threads.now();
            let due = shared.state.lock().due(&mut sender, &shared.pace, now);
            let Some(Due { blocks, stored, asked, gathers }) = due else { return };
            if let Some(rest) = gathers {
                shared.threads.wait(&shared.enough, seen_enough, rest);
                continue;
            }
            // Often enough that none that is alive is silent for as long as one may be.
            let every = if asked { shared.pace.patience / 3 } else { TOLD_EVERY };
            if let Some(at) = sender.told_at.filter(|at| blocks.is_empty() && now < *at + every) {
                shared.threads.wait(&shared.news, seen, at + every - now);
                continue;
            }
            let end = blocks.last().map(|block| block.number + 1);
            let begins = sender.begins && end.is_some();
            sender.sent = sender.sent.max(end.unwrap_or(0));
            let answer = shared.disks.add(disk, &Sent { of: shared.of, begins, stored, blocks: &blocks });
            if answer.is_ok() {
                sender.told_stored = stored;
            }
            if !self.hear(&mut sender, answer, end, now) {
                return;
            }
        }
    }

    /// Takes in what a disk has answered to a request that was sent at `sent_at`, with blocks below `end`. Returns whether it is
    /// sent more.
    fn hear(
        &self,
        sender: &mut Sender,
        answer: Result<u64, DiskError>,
        end: Option<u64>,
        sent_at: Duration,
    ) -> bool {
        let (Copier(shared), disk) = (self, sender.disk);
        let later = match answer {
            Ok(next) if end.is_none_or(|end| next >= end) => {
                sender.told_at = Some(sent_at);
                if end.is_some() {
                    sender.begins = false;
                }
                if sender.failed.take().is_some() {
                    tracing::info!(%disk, "a disk takes copies again");
                }
                let may_change = shared.state.lock().answered_by(sender, end, sent_at);
                if end.is_some() {
                    self.answer();
                }
                if may_change {
                    shared.changes.notify();
                }
                return true;
            }
            Ok(_) | Err(DiskError::Gap) => {
                // It has lost blocks that it had synced, or its copy was dropped.
                if let Some(receiver) = shared.state.lock().receiver(sender) {
                    receiver.lacks = None;
                }
                shared.changes.notify();
                "it lacks blocks that it was sent, and begins anew".to_owned()
            }
            Err(DiskError::Fenced) => {
                shared.state.lock().lost = true;
                shared.changes.notify();
                return false;
            }
            Err(DiskError::Away(error) | DiskError::Failed(error)) => error,
        };
        if sender.failed.as_ref() != Some(&later) {
            tracing::warn!(%disk, error = later, "a disk takes no copies now; another attempt follows");
            sender.failed = Some(later);
        }
        shared.threads.sleep(BACKOFF);
        true
    }
}

/// The thread that sends blocks to a disk.
struct Sender {
    id: u64,
    disk: Uuid,
    /// The copy begins with the next blocks.
    begins: bool,
    /// It was sent blocks below this number.
    sent: u64,
    /// It knows that the object store has the blocks below.
    told_stored: u64,
    /// When the last request was sent that the disk has answered.
    told_at: Option<Duration>,
    /// Why the last request failed.
    failed: Option<String>,
}

/// What a disk is to be sent.
struct Due {
    blocks: Vec<Block>,
    /// The object store has the blocks below.
    stored: u64,
    /// It is asked for a sign of life.
    asked: bool,
    /// Blocks for it shall gather for so long.
    gathers: Option<Duration>,
}

impl State {
    /// What a sender sends to, unless another one does by now, or nobody.
    fn receiver(&mut self, sender: &Sender) -> Option<&mut Receiver> {
        self.disks.get_mut(&sender.disk).filter(|it| it.sender == sender.id)
    }

    /// What a disk is to be sent next. `None` if that is nothing any more.
    fn due(&mut self, sender: &mut Sender, pace: &Pace, now: Duration) -> Option<Due> {
        let (disk, first, stored) = (sender.disk, self.first(), self.set.stored_below());
        let due = |blocks, asked| Some(Due { blocks, stored, asked, gathers: None });
        if self.ended || self.lost {
            return None;
        }
        let Some(Receiver { lacks, .. }) = self.receiver(sender).copied() else {
            // It gets no more blocks. Those that it has go once it knows that the object store has them.
            let knows = sender.told_stored >= sender.sent || sender.failed.is_some();
            let goes_on = !knows && !self.disks.contains_key(&disk);
            return if goes_on { due(Vec::new(), false) } else { None };
        };
        match lacks.filter(|lacks| *lacks >= first) {
            Some(lacks) => {
                let asked = self.asking_since.is_some();
                let gathers = if asked || !self.has_set { None } else { self.gather(lacks, pace, now) };
                let blocks = if gathers.is_some() { Vec::new() } else { self.take(lacks) };
                Some(Due { blocks, stored, asked, gathers })
            }
            None if self.set.counts(disk) => {
                self.disks.insert(disk, Receiver { sender: sender.id, lacks: None });
                due(Vec::new(), false)
            }
            None => {
                self.disks.insert(disk, Receiver { sender: sender.id, lacks: Some(first) });
                self.set.begins(disk, first);
                (sender.begins, sender.told_at) = (true, None);
                due(self.take(first), false)
            }
        }
    }

    /// A disk has answered a request that was sent at `sent_at`, with blocks below `end`: it has synced them. Returns whether the
    /// set may change with it.
    fn answered_by(&mut self, sender: &Sender, end: Option<u64>, sent_at: Duration) -> bool {
        let disk = sender.disk;
        let Some(receiver) = self.receiver(sender) else { return false };
        if end.is_some() {
            receiver.lacks = end;
        }
        self.heard.insert(disk, sent_at);
        match end {
            Some(end) => {
                self.set.synced(disk, end);
                self.trim();
            }
            None => self.set.reached(disk),
        }
        self.asking_since.is_some() || !self.set.counts(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oldest blocks that a disk lacks, each of which has so many bytes.
    fn kept(blocks: u64, bytes: usize) -> State {
        let content = vec![0; bytes];
        let mut state = State::default();
        let lacks = Receiver { sender: 1, lacks: Some(0) };
        state.disks.insert(Uuid::nil(), lacks);
        for number in 0..blocks {
            let block = Block { number, generation: 1, bytes: content.clone().into() };
            state.next = number + 1;
            state.bytes += block.bytes.len();
            state.memory_bytes += block.memory_bytes();
            state.kept.push_back((block, Duration::ZERO));
            state.trim();
        }
        state
    }

    /// Each has a sector of a buffer, however small it is.
    #[test]
    fn small_blocks_that_a_disk_lacks_are_charged_with_their_memory() {
        let sector = Block { number: 0, generation: 1, bytes: vec![1].into() }.memory_bytes();
        let state = kept(50_000, 200);
        assert_eq!(state.kept.len(), KEPT_BYTES / sector);
        assert_eq!((state.memory_bytes, state.bytes), (KEPT_BYTES, 200 * KEPT_BYTES / sector));
    }

    #[test]
    fn a_request_has_no_more_blocks_than_find_room() {
        let numbers = |state: &State| {
            let taken = state.take(0);
            (taken.first().unwrap().number, taken.len())
        };
        assert_eq!(numbers(&kept(3000, 200)), (0, SENT_BLOCKS));
        assert_eq!(numbers(&kept(30, 1 << 20)), (0, SENT_BYTES >> 20));
        assert_eq!(numbers(&kept(2, SENT_BYTES + 1)), (0, 1), "one at least");
    }
}
