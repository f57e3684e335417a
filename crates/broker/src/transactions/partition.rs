//! The transactions of one partition: the open ones, the aborted ones, and the last stable offset (KIP-98).
//!
//! Each event is noted when its batch gets its place in the log. A transaction that has ended holds back the last
//! stable offset until its marker is committed.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use model::Offset;
use wire::records::TransactionResult;

/// An aborted transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbortedTransaction {
    /// The producer's id.
    pub producer_id: i64,
    /// Offset of the transaction's first record.
    pub first_offset: Offset,
    /// Offset of the transaction's marker.
    pub last_offset: Offset,
}

/// The transactions of a partition.
#[derive(Debug, Default)]
pub struct PartitionTransactions {
    /// The first offset of each producer's open transaction.
    open: HashMap<i64, Offset>,
    /// Transactions by first offset. The value is `None` for an open transaction, and the offset after the marker for
    /// an ended one.
    unstable: BTreeMap<Offset, Option<Offset>>,
    /// Aborted transactions in the order of their markers. Each has the offset before which none of the later ones
    /// begins.
    aborted: Vec<(AbortedTransaction, Offset)>,
    /// Producers about to begin a transaction here, each with its check and the number of requests that use it.
    checking: HashMap<i64, (Check, u32)>,
    checks: u64,
    /// Checks up to this number are old.
    old_checks: u64,
}

/// A pending question to the coordinator: does the producer's transaction contain this partition? A marker in the
/// meantime voids the check. A batch that arrives after the end of its transaction must not open another one, because
/// nothing would end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check(u64);

impl PartitionTransactions {
    /// Restores the transactions from their stored form.
    pub fn restored(open: &[(i64, Offset)], mut aborted: Vec<AbortedTransaction>) -> PartitionTransactions {
        aborted.sort_unstable_by_key(|transaction| transaction.last_offset);
        let mut least = open.iter().map(|(_, first)| *first).min().unwrap_or(Offset(i64::MAX));
        let mut aborted: Vec<_> = aborted
            .into_iter()
            .rev()
            .map(|transaction| {
                let behind = least;
                least = least.min(transaction.first_offset);
                // A later transaction begins behind the marker.
                (transaction, behind.min(transaction.last_offset + 1))
            })
            .collect();
        aborted.reverse();
        PartitionTransactions {
            open: open.iter().copied().collect(),
            unstable: open.iter().map(|(_, first)| (*first, None)).collect(),
            aborted,
            ..PartitionTransactions::default()
        }
    }

    /// The first offset of the producer's open transaction.
    pub fn first_offset(&self, producer_id: i64) -> Option<Offset> {
        self.open.get(&producer_id).copied()
    }

    /// Begins a check before the producer's next batch.
    pub fn begin_check(&mut self, producer_id: i64) -> Check {
        self.checks += 1;
        let (check, requests) = self.checking.entry(producer_id).or_insert((Check(self.checks), 0));
        *requests = requests.saturating_add(1);
        *check
    }

    /// Cancels a check that the coordinator refused, so that a client with invented ids leaves nothing behind.
    pub fn cancel_check(&mut self, producer_id: i64, check: Check) {
        if let Entry::Occupied(mut entry) = self.checking.entry(producer_id)
            && entry.get().0 == check
        {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }

    /// Forgets checks that were begun before the previous call and were never used.
    pub fn forget_checks(&mut self) {
        self.checking.retain(|_, (check, _)| check.0 > self.old_checks);
        self.old_checks = self.checks;
    }

    /// Whether a batch of the producer may be appended: its transaction is open here, or the check is still valid.
    pub fn may_append(&self, producer_id: i64, check: Option<Check>) -> bool {
        self.open.contains_key(&producer_id)
            || check.is_some_and(|check| self.checking.get(&producer_id).is_some_and(|(of, _)| *of == check))
    }

    /// Notes that a transactional batch was placed at `offset`. Returns whether it is the first one of its transaction.
    pub fn begin(&mut self, producer_id: i64, offset: Offset) -> bool {
        self.checking.remove(&producer_id);
        if self.open.contains_key(&producer_id) {
            return false;
        }
        self.open.insert(producer_id, offset);
        self.unstable.insert(offset, None);
        true
    }

    /// Notes that a marker was placed at `offset`. Returns the first offset of the transaction that it ends, if one was
    /// open.
    pub fn end(&mut self, producer_id: i64, offset: Offset, result: TransactionResult) -> Option<Offset> {
        self.checking.remove(&producer_id);
        let first = self.open.remove(&producer_id)?;
        self.unstable.insert(first, Some(offset + 1));
        if result == TransactionResult::Abort {
            let behind = self.open.values().copied().min().unwrap_or(Offset(i64::MAX)).min(offset + 1);
            let aborted = AbortedTransaction { producer_id, first_offset: first, last_offset: offset };
            self.aborted.push((aborted, behind));
        }
        Some(first)
    }

    /// The offset below which every transaction has ended. The partition is committed up to `committed`.
    pub fn last_stable_offset(&mut self, committed: Offset) -> Offset {
        while let Some(entry) = self.unstable.first_entry() {
            if entry.get().is_none_or(|end| end > committed) {
                return committed.min(*entry.key());
            }
            entry.remove();
        }
        committed
    }

    /// The aborted transactions with records in `from..until`, in the order of their markers.
    pub fn aborted_between(&self, from: Offset, until: Offset) -> Vec<AbortedTransaction> {
        let at = self.aborted.partition_point(|(transaction, _)| transaction.last_offset < from);
        let mut found = Vec::new();
        for (transaction, behind) in &self.aborted[at..] {
            if transaction.first_offset < until {
                found.push(*transaction);
            }
            if *behind >= until {
                break;
            }
        }
        found
    }

    /// Removes an aborted transaction of which nothing is left. Returns whether it was known.
    pub fn forget_aborted(&mut self, gone: &AbortedTransaction) -> bool {
        let at = self.aborted.iter().position(|(transaction, _)| transaction == gone);
        at.is_some_and(|at| {
            self.aborted.remove(at);
            true
        })
    }

    /// Forgets aborted transactions below the start of the log.
    pub fn forget_below(&mut self, start: Offset) {
        let at = self.aborted.partition_point(|(transaction, _)| transaction.last_offset < start);
        self.aborted.drain(..at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABORT: TransactionResult = TransactionResult::Abort;
    const COMMIT: TransactionResult = TransactionResult::Commit;

    #[test]
    fn the_last_stable_offset_waits_for_the_oldest_and_for_its_marker_to_be_committed() {
        let mut transactions = PartitionTransactions::default();
        assert_eq!(transactions.last_stable_offset(Offset(7)), Offset(7));
        assert!(transactions.begin(1, Offset(10)));
        assert!(!transactions.begin(1, Offset(11)));
        assert!(transactions.begin(2, Offset(12)));
        assert_eq!(transactions.last_stable_offset(Offset(5)), Offset(5));
        assert_eq!(transactions.last_stable_offset(Offset(20)), Offset(10));
        assert_eq!(transactions.end(2, Offset(20), ABORT), Some(Offset(12)));
        assert_eq!(transactions.end(2, Offset(21), ABORT), None);
        assert_eq!(transactions.last_stable_offset(Offset(22)), Offset(10));
        assert_eq!(transactions.end(1, Offset(22), COMMIT), Some(Offset(10)));
        assert_eq!(transactions.last_stable_offset(Offset(22)), Offset(10));
        assert_eq!(transactions.last_stable_offset(Offset(23)), Offset(23));
        // A producer's next transaction is tracked separately while its last one is not committed.
        assert!(transactions.begin(1, Offset(23)));
        assert_eq!(transactions.end(1, Offset(24), COMMIT), Some(Offset(23)));
        assert!(transactions.begin(1, Offset(25)));
        assert_eq!(transactions.last_stable_offset(Offset(24)), Offset(23));
        assert_eq!(transactions.last_stable_offset(Offset(30)), Offset(25));
    }

    #[test]
    fn a_check_that_was_refused_leaves_nothing_behind_once_nobody_shares_it() {
        let mut of = PartitionTransactions::default();
        for producer_id in 0..10_000 {
            let check = of.begin_check(producer_id);
            of.cancel_check(producer_id, check);
        }
        assert!(of.checking.is_empty());
        // Two requests at once. The coordinator refuses one.
        let (refused, held) = (of.begin_check(7), of.begin_check(7));
        of.cancel_check(7, refused);
        assert!(of.may_append(7, Some(held)));
        of.cancel_check(7, held);
        assert!(!of.may_append(7, Some(held)) && of.checking.is_empty());
        // A check that a marker has voided is not valid for a later request.
        let voided = of.begin_check(7);
        of.end(7, Offset(0), TransactionResult::Abort);
        let later = of.begin_check(7);
        of.cancel_check(7, voided);
        assert!(of.may_append(7, Some(later)));
    }

    #[test]
    fn readers_learn_of_the_aborted_ones_that_reach_into_what_they_read() {
        let mut transactions = PartitionTransactions::default();
        for (producer, first, last, result) in
            [(1, 0, 9, ABORT), (2, 5, 10, COMMIT), (3, 7, 20, ABORT), (1, 11, 12, ABORT)]
        {
            transactions.begin(producer, Offset(first));
            transactions.end(producer, Offset(last), result);
        }
        let firsts = |transactions: &PartitionTransactions, from, until| -> Vec<i64> {
            let all = transactions.aborted_between(Offset(from), Offset(until));
            all.iter().map(|transaction| transaction.first_offset.0).collect()
        };
        // The transactions come in the order of the calls above, so they are sorted again.
        let aborted = transactions.aborted_between(Offset(0), Offset(100));
        let mut transactions = PartitionTransactions::restored(&[(4, Offset(30))], aborted);
        assert_eq!(firsts(&transactions, 0, 100), [0, 11, 7]);
        assert_eq!(firsts(&transactions, 10, 12), [11, 7]);
        assert_eq!(firsts(&transactions, 13, 15), [7]);
        assert_eq!(firsts(&transactions, 0, 7), [0]);
        assert_eq!(transactions.last_stable_offset(Offset(40)), Offset(30));
        transactions.forget_below(Offset(10));
        assert_eq!(firsts(&transactions, 0, 100), [11, 7]);
    }

    #[test]
    fn a_search_ends_where_no_later_one_can_reach_back_and_misses_none() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let mut transactions = PartitionTransactions::default();
            let mut all = Vec::new();
            for offset in 0..80 {
                let producer_id = rng.i64(0..5);
                match transactions.first_offset(producer_id) {
                    Some(first_offset) if rng.bool() => {
                        let result = if rng.bool() { ABORT } else { COMMIT };
                        transactions.end(producer_id, Offset(offset), result);
                        if result == ABORT {
                            let last_offset = Offset(offset);
                            all.push(AbortedTransaction { producer_id, first_offset, last_offset });
                        }
                    }
                    _ => drop(transactions.begin(producer_id, Offset(offset))),
                }
            }
            let open: Vec<_> = transactions.open.iter().map(|(id, first)| (*id, *first)).collect();
            for restored in [false, true] {
                if restored {
                    transactions = PartitionTransactions::restored(&open, all.clone());
                }
                for _ in 0..20 {
                    let from = rng.i64(0..80);
                    let (from, until) = (Offset(from), Offset(rng.i64(from..=80)));
                    let expected: Vec<_> = all
                        .iter()
                        .filter(|transaction| {
                            transaction.last_offset >= from && transaction.first_offset < until
                        })
                        .copied()
                        .collect();
                    assert_eq!(transactions.aborted_between(from, until), expected);
                }
            }
        }
    }

    #[test]
    fn a_marker_voids_a_check() {
        let mut transactions = PartitionTransactions::default();
        let check = Some(transactions.begin_check(1));
        assert_eq!(Some(transactions.begin_check(1)), check, "two requests may be under way");
        assert!(transactions.may_append(1, check) && !transactions.may_append(1, None));
        assert!(!transactions.may_append(2, check));
        transactions.end(1, Offset(3), COMMIT);
        assert!(!transactions.may_append(1, check));
        let check = Some(transactions.begin_check(1));
        assert!(transactions.may_append(1, check));
        transactions.begin(1, Offset(4));
        assert!(transactions.may_append(1, None));
    }
}
