//! The copy set of one opening of a log, as pure logic: which disks must have a block before it is answered, and how the set
//! changes ([0030](../../../../docs/decisions/0030-copy-sets.md), [0032](../../../../docs/decisions/0032-copies-of-a-cluster.md)).
//!
//! Rules:
//! - What is answered is on every disk that any set has which etcd may have now, or in the object store.
//! - A disk joins once it has all blocks that were answered, in a row from one on below which all is stored.
//! - The last disk leaves once the object store has everything that was answered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

/// What a disk has of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copy {
    /// It has all blocks from this one on, ...
    from: u64,
    /// ... up to this one.
    next: u64,
    /// Its broker has answered since then.
    reached: bool,
}

/// The disks that get the blocks of a log.
#[derive(Debug, Default)]
pub struct CopySet {
    copies: BTreeMap<Uuid, Copy>,
    /// The set in etcd, as far as it is known.
    set: BTreeSet<Uuid>,
    /// The set that etcd was asked for, and may have by now.
    asked: Option<BTreeSet<Uuid>>,
    /// The object store has what is in the blocks below.
    stored: u64,
    /// The blocks below were answered, now or by the former owner.
    answered: u64,
}

/// What is known of a disk whose broker counts as alive, beside its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// For how long it has lacked a block.
    pub behind: Duration,
    /// For how long it has not answered.
    pub silent: Duration,
}

impl CopySet {
    /// The blocks below `number` came from the copies of the former owner, who may have answered them.
    pub fn was_answered(&mut self, number: u64) {
        self.answered = self.answered.max(number);
    }

    /// A disk gets the blocks from this one on, and none before it. What it had is gone, or lacks some.
    pub fn begins(&mut self, disk: Uuid, from: u64) {
        self.copies.insert(disk, Copy { from, next: from, reached: false });
    }

    /// The broker of a disk has answered.
    pub fn reached(&mut self, disk: Uuid) {
        if let Some(copy) = self.copies.get_mut(&disk) {
            copy.reached = true;
        }
    }

    /// A disk has synced the blocks below `next`.
    pub fn synced(&mut self, disk: Uuid, next: u64) {
        if let Some(copy) = self.copies.get_mut(&disk) {
            copy.next = copy.next.max(next);
            copy.reached = true;
        }
    }

    /// The object store has what is in the blocks below `number`.
    pub fn stored(&mut self, number: u64) {
        self.stored = self.stored.max(number);
    }

    /// The object store has what is in the blocks below.
    pub fn stored_below(&self) -> u64 {
        self.stored
    }

    /// Whether a disk counts: any set has it that etcd may have now.
    pub fn counts(&self, disk: Uuid) -> bool {
        self.set.contains(&disk) || self.asked.as_ref().is_some_and(|asked| asked.contains(&disk))
    }

    /// The number below which a disk has everything that the object store lacks. `None` while it lacks some.
    fn has_below(&self, disk: &Uuid) -> Option<u64> {
        self.copies.get(disk).filter(|copy| copy.from <= self.stored && copy.reached).map(|copy| copy.next)
    }

    /// The blocks below are answered: all disks have them of each set that etcd may have. Where that may be an empty one, the
    /// object store alone answers: whoever owns the log next asks no disk.
    pub fn answered(&mut self) -> u64 {
        let sets = || [Some(&self.set), self.asked.as_ref()].into_iter().flatten();
        if sets().all(|set| !set.is_empty()) {
            let copied = sets().flatten().map(|disk| self.has_below(disk).unwrap_or(0)).min();
            self.answered = self.answered.max(copied.unwrap_or(0));
        }
        self.answered
    }

    /// Whether nothing is lost with all disks: the object store has what was answered.
    fn is_stored(&self) -> bool {
        self.stored >= self.answered
    }

    /// Whether a disk may be in the set: it has everything that was answered, and keeps up.
    fn may_count(&self, disk: &Uuid, member: Member, patience: Duration) -> bool {
        member.behind < patience && self.has_below(disk).is_some_and(|it| it >= self.answered)
    }

    /// Whether the object store alone answers now, or has to: no disk counts, or one of them lags.
    pub fn needs_store(&self, members: &BTreeMap<Uuid, Member>, patience: Duration) -> bool {
        let lags = |disk: &Uuid| members.get(disk).is_none_or(|it| it.behind >= patience);
        self.set.is_empty() || self.set.iter().chain(self.asked.iter().flatten()).any(lags)
    }

    /// The disks of `members` that may be in the set, since they keep up within `patience`. `None` if that is none, and they
    /// are needed.
    fn fitting(&mut self, members: &BTreeMap<Uuid, Member>, patience: Duration) -> Option<BTreeSet<Uuid>> {
        self.answered();
        let fits = |(disk, member): &(&Uuid, &Member)| self.may_count(disk, **member, patience);
        let fitting: BTreeSet<Uuid> = members.iter().filter(fits).map(|(disk, _)| *disk).collect();
        (!fitting.is_empty() || self.is_stored()).then_some(fitting)
    }

    /// The first set, in place of that of the former owner: all disks of `members`, or those of them that have everything once
    /// `late`. `None` while there is no such set. The caller asks etcd for it.
    pub fn first(
        &mut self,
        members: &BTreeMap<Uuid, Member>,
        patience: Duration,
        late: bool,
    ) -> Option<BTreeSet<Uuid>> {
        if self.asked.is_none() {
            let fitting = self.fitting(members, patience)?;
            self.asked = (late || fitting.len() >= members.len()).then_some(fitting);
        }
        self.asked.clone()
    }

    /// Whether the set should be another one, as far as is known of the disks.
    pub fn should_change(&mut self, members: &BTreeMap<Uuid, Member>, patience: Duration) -> bool {
        self.asked.is_some() || self.fitting(members, patience).is_some_and(|fitting| fitting != self.set)
    }

    /// The set that etcd is to be asked for: the disks of `members` that keep up, within `patience`. All of them have answered
    /// lately, or are left out once `late`: one that is gone must not be the only one that counts. `None` if etcd has that set,
    /// or there is no such set. The caller asks, and says what came of it.
    pub fn next(
        &mut self,
        members: &BTreeMap<Uuid, Member>,
        patience: Duration,
        late: bool,
    ) -> Option<BTreeSet<Uuid>> {
        // The outcome of an earlier request is unknown: the same again.
        if self.asked.is_none() {
            let silent = |disk: &Uuid| members.get(disk).is_none_or(|member| member.silent >= patience);
            let mut fitting = self.fitting(members, patience)?;
            if fitting == self.set || fitting.iter().any(silent) && !late {
                return None;
            }
            fitting.retain(|disk| !silent(disk));
            let may = fitting != self.set && (!fitting.is_empty() || self.is_stored());
            self.asked = may.then_some(fitting);
        }
        self.asked.clone()
    }

    /// Etcd has the set that it was asked for. Returns the number of disks in the former one and in this one.
    pub fn agreed(&mut self) -> (usize, usize) {
        let before = self.set.len();
        if let Some(set) = self.asked.take() {
            self.set = set;
        }
        (before, self.set.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(300);
    const WELL: Member = Member { behind: Duration::ZERO, silent: Duration::ZERO };
    const SILENT: Member = Member { silent: PATIENCE, ..WELL };
    const LAGS: Member = Member { behind: PATIENCE, ..WELL };

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn members(all: &[(u128, Member)]) -> BTreeMap<Uuid, Member> {
        all.iter().map(|(number, member)| (id(*number), *member)).collect()
    }

    fn set(numbers: &[u128]) -> Option<BTreeSet<Uuid>> {
        Some(numbers.iter().map(|number| id(*number)).collect())
    }

    /// Two disks in the set, with the blocks below 10.
    fn two() -> CopySet {
        let mut copies = CopySet::default();
        copies.begins(id(1), 0);
        copies.begins(id(2), 0);
        copies.reached(id(1));
        assert_eq!(copies.first(&members(&[(1, WELL), (2, WELL)]), PATIENCE, false), None, "one may be lost");
        copies.reached(id(2));
        assert_eq!(copies.next(&members(&[(1, WELL), (2, WELL)]), PATIENCE, false), set(&[1, 2]));
        copies.agreed();
        copies.synced(id(1), 10);
        copies.synced(id(2), 10);
        assert_eq!(copies.answered(), 10);
        copies
    }

    #[test]
    fn a_block_is_answered_once_all_have_it_that_count() {
        let mut copies = two();
        copies.synced(id(1), 12);
        assert_eq!(copies.answered(), 10);
        // One that is to leave counts until etcd has agreed.
        let lags = members(&[(1, WELL), (2, LAGS)]);
        assert!(copies.needs_store(&lags, PATIENCE));
        assert_eq!(copies.next(&lags, PATIENCE, false), set(&[1]));
        assert_eq!(copies.answered(), 10);
        assert_eq!(
            copies.next(&members(&[(1, LAGS), (2, WELL)]), PATIENCE, false),
            set(&[1]),
            "the same again"
        );
        copies.agreed();
        assert_eq!(copies.answered(), 12);
        assert_eq!(copies.next(&lags, PATIENCE, false), None);
    }

    #[test]
    fn a_disk_joins_with_all_that_was_answered_and_counts_from_then_on() {
        let mut copies = two();
        let three = members(&[(1, WELL), (2, WELL), (3, WELL)]);
        copies.begins(id(3), 8);
        copies.synced(id(3), 10);
        assert_eq!(copies.next(&three, PATIENCE, false), None, "the store lacks what is before");
        copies.stored(8);
        assert_eq!(copies.next(&three, PATIENCE, false), set(&[1, 2, 3]));
        [1, 2].iter().for_each(|disk| copies.synced(id(*disk), 15));
        assert_eq!(copies.answered(), 10, "it counts before etcd has agreed");
        copies.agreed();
        copies.synced(id(3), 14);
        assert_eq!(copies.answered(), 14);
        // Its disk is another one, or has lost some.
        copies.begins(id(3), 15);
        copies.synced(id(3), 20);
        [1, 2].iter().for_each(|disk| copies.synced(id(*disk), 20));
        assert_eq!(copies.answered(), 14);
    }

    #[test]
    fn a_disk_that_is_gone_does_not_stay_alone() {
        let mut copies = two();
        let gone = members(&[(1, SILENT), (2, LAGS)]);
        assert!(copies.should_change(&gone, PATIENCE));
        assert_eq!(copies.next(&gone, PATIENCE, false), None, "it is asked");
        assert_eq!(copies.next(&gone, PATIENCE, true), None, "nobody else has what was answered");
        copies.stored(10);
        assert_eq!(copies.next(&gone, PATIENCE, true), set(&[]));
    }

    #[test]
    fn the_last_disk_leaves_once_everything_is_stored() {
        let mut copies = two();
        let dead = members(&[]);
        assert_eq!(copies.next(&dead, PATIENCE, false), None);
        assert!(copies.needs_store(&dead, PATIENCE));
        copies.stored(10);
        assert_eq!(copies.next(&dead, PATIENCE, false), set(&[]));
        [1, 2].iter().for_each(|disk| copies.synced(id(*disk), 20));
        assert_eq!(copies.answered(), 10, "etcd may have the empty set");
        copies.agreed();
        assert_eq!(copies.answered(), 10, "no disk counts");
        assert_eq!(copies.next(&members(&[(1, WELL)]), PATIENCE, false), set(&[1]));
        assert_eq!(copies.answered(), 10, "etcd may have the empty set still");
        copies.agreed();
        assert_eq!(copies.answered(), 20);
    }

    #[test]
    fn a_log_with_blocks_of_its_former_owner_needs_a_disk_that_has_them() {
        let mut copies = CopySet::default();
        copies.was_answered(5);
        copies.begins(id(1), 0);
        copies.synced(id(1), 4);
        let one = members(&[(1, WELL)]);
        assert_eq!(copies.next(&one, PATIENCE, false), None);
        copies.synced(id(1), 5);
        assert_eq!(copies.next(&one, PATIENCE, false), set(&[1]));
    }
}
