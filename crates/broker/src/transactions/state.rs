//! The state of one transactional id: its producer, and the steps that its transaction may take next (KIP-98, KIP-360,
//! KIP-890).
//!
//! Pure: each step returns the next state, and the coordinator makes it durable before it takes effect. The rules are
//! those of Kafka's `TransactionMetadata` and `TransactionCoordinator`.

use std::collections::BTreeSet;

use wire::records::TransactionResult;

/// The partition of a topic.
pub type TopicPartition = (String, i32);

/// The epoch of a new producer.
const NO_EPOCH: i16 = -1;
/// The last epoch that is handed out. The next one is reserved for fencing.
const EPOCH_LAST: i16 = i16::MAX - 1;

/// The status of a transaction. The numbers are those of Kafka's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The producer has not begun a transaction yet.
    Empty,
    /// The transaction contains partitions.
    Ongoing,
    /// The transaction will be committed, and its markers are being written.
    PrepareCommit,
    /// The transaction will be aborted, and its markers are being written.
    PrepareAbort,
    /// The transaction was committed.
    CompleteCommit,
    /// The transaction was aborted.
    CompleteAbort,
}

impl Status {
    /// All statuses, by their numbers.
    pub const ALL: [Status; 6] = [
        Status::Empty,
        Status::Ongoing,
        Status::PrepareCommit,
        Status::PrepareAbort,
        Status::CompleteCommit,
        Status::CompleteAbort,
    ];

    /// The number in the record.
    pub fn code(self) -> i8 {
        Status::ALL.iter().zip(0..).find(|(status, _)| **status == self).map_or(0, |(_, code)| code)
    }

    /// The status with this number. `None` for Kafka's two statuses that are never stored for long.
    pub fn from_code(code: i8) -> Option<Status> {
        usize::try_from(code).ok().and_then(|code| Status::ALL.get(code)).copied()
    }

    /// The name in Kafka's tools.
    pub fn name(self) -> &'static str {
        match self {
            Status::Empty => "Empty",
            Status::Ongoing => "Ongoing",
            Status::PrepareCommit => "PrepareCommit",
            Status::PrepareAbort => "PrepareAbort",
            Status::CompleteCommit => "CompleteCommit",
            Status::CompleteAbort => "CompleteAbort",
        }
    }

    /// The result of a transaction that is ending. `None` in other statuses.
    pub fn ending(self) -> Option<TransactionResult> {
        match self {
            Status::PrepareCommit => Some(TransactionResult::Commit),
            Status::PrepareAbort => Some(TransactionResult::Abort),
            _ => None,
        }
    }
}

/// The reason why a step is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransactionError {
    /// The transactional id has another producer id, or none.
    #[error("the producer id is not the one that the transactional id has")]
    ProducerIdMapping,
    /// A newer producer uses the transactional id.
    #[error("there is a newer producer with the same transactional id")]
    Fenced,
    /// The step is not possible in this status.
    #[error("the producer attempted a transactional operation in an invalid state")]
    InvalidState,
    /// The last transaction is still being completed.
    #[error("the last transaction is still being completed")]
    Concurrent,
    /// The partition was not added to the transaction.
    #[error("Partition was not added to the transaction")]
    NotInTransaction,
    /// The timeout is not positive or larger than the server allows.
    #[error("the transaction timeout is larger than transaction.max.timeout.ms, or not positive")]
    Timeout,
    /// The state could not be written, or could not be read when its partition was loaded.
    #[error("the coordinator is not available")]
    NotAvailable,
}

/// The state of one transactional id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The producer's id.
    pub producer_id: i64,
    /// The previous producer id, whose epochs were used up; -1 for none.
    pub previous_producer_id: i64,
    /// The producer id after this transaction, if the epochs of the current one are used up; -1 for none.
    pub next_producer_id: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// The previous epoch, from which a request may be retried; -1 for none. Not stored.
    pub last_epoch: i16,
    /// A transaction is aborted after this many milliseconds.
    pub timeout_ms: i32,
    /// The transaction's status.
    pub status: Status,
    /// The partitions that contain, or may contain, batches of the transaction.
    pub partitions: BTreeSet<TopicPartition>,
    /// Start of the transaction, in milliseconds since the Unix epoch; -1 for none.
    pub start_ms: i64,
    /// Time of the last change, in milliseconds since the Unix epoch.
    pub updated_ms: i64,
    /// The client's `transaction.version`: 2 bumps the epoch with every transaction (KIP-890).
    pub client_version: i16,
}

/// The parameters of an EndTxn.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The producer's id.
    pub producer_id: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// Commit or abort.
    pub result: TransactionResult,
    /// Whether the client bumps the epoch with every transaction.
    pub bumps: bool,
}

/// The outcome of an EndTxn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndStep {
    /// The transaction has already ended so. The current state gives the answer.
    Done,
    /// This state must be made durable. Then the markers follow, and then the completion.
    Prepare(Transaction),
}

impl Transaction {
    /// The state of a transactional id on its first use.
    pub fn new(producer_id: i64, timeout_ms: i32, now_ms: i64) -> Transaction {
        Transaction {
            producer_id,
            previous_producer_id: -1,
            next_producer_id: -1,
            epoch: NO_EPOCH,
            last_epoch: NO_EPOCH,
            timeout_ms,
            status: Status::Empty,
            partitions: BTreeSet::new(),
            start_ms: -1,
            updated_ms: now_ms,
            client_version: 0,
        }
    }

    /// Whether the producer's next epoch must not be handed out.
    pub fn epoch_is_exhausted(&self) -> bool {
        self.epoch >= EPOCH_LAST
    }

    /// InitProducerId if no transaction is open. `expected` is the producer id and epoch that the client had before
    /// (KIP-360). `fresh_id` is a new producer id, for use if the epochs of the current one are used up.
    pub fn initialize(
        &self,
        expected: Option<(i64, i16)>,
        timeout_ms: i32,
        fresh_id: i64,
        now_ms: i64,
    ) -> Result<Transaction, TransactionError> {
        self.check_expected(expected)?;
        if self.status.ending().is_some() {
            return Err(TransactionError::Concurrent);
        }
        let mut next = self.clone();
        next.status = Status::Empty;
        next.partitions.clear();
        next.start_ms = -1;
        next.updated_ms = now_ms;
        next.timeout_ms = timeout_ms;
        let is_retry = |epoch: i16| self.last_epoch != NO_EPOCH && epoch == self.last_epoch;
        match expected {
            Some((id, epoch)) if id != self.producer_id && self.epoch != NO_EPOCH => {
                // The request names the previous producer id: a retry of the request that changed the id, or a zombie.
                return if is_retry(epoch) { Ok(self.clone()) } else { Err(TransactionError::Fenced) };
            }
            Some((_, epoch)) if self.epoch != NO_EPOCH && epoch != self.epoch => {
                return if is_retry(epoch) { Ok(self.clone()) } else { Err(TransactionError::Fenced) };
            }
            _ => {}
        }
        if self.epoch_is_exhausted() {
            next.previous_producer_id = self.producer_id;
            next.producer_id = fresh_id;
            next.last_epoch = expected.map_or(NO_EPOCH, |_| self.epoch);
            next.epoch = 0;
        } else {
            next.epoch = self.epoch + 1;
            next.last_epoch = expected.map_or(NO_EPOCH, |_| self.epoch);
        }
        Ok(next)
    }

    /// Refuses a client that names neither the current nor the previous producer.
    pub fn check_expected(&self, expected: Option<(i64, i16)>) -> Result<(), TransactionError> {
        match expected {
            Some((id, epoch)) => {
                let before = id == self.previous_producer_id && epoch >= EPOCH_LAST;
                let known = self.epoch == NO_EPOCH || id == self.producer_id || before;
                known.then_some(()).ok_or(TransactionError::Fenced)
            }
            None => Ok(()),
        }
    }

    /// The state that aborts an open transaction and fences its producer.
    pub fn fence(&self, now_ms: i64) -> Transaction {
        let mut next = self.prepared(TransactionResult::Abort, now_ms);
        // One epoch is reserved for this.
        next.epoch = self.epoch.saturating_add(1);
        next.last_epoch = NO_EPOCH;
        next
    }

    /// AddPartitionsToTxn and AddOffsetsToTxn. Returns `None` if the transaction already contains the partitions.
    pub fn add(
        &self,
        producer_id: i64,
        epoch: i16,
        partitions: impl Iterator<Item = TopicPartition>,
        client_version: i16,
        now_ms: i64,
    ) -> Result<Option<Transaction>, TransactionError> {
        self.check_producer(producer_id, epoch)?;
        if self.status.ending().is_some() {
            return Err(TransactionError::Concurrent);
        }
        let mut next = self.clone();
        if self.status != Status::Ongoing {
            next.partitions.clear();
            next.start_ms = now_ms;
        }
        next.status = Status::Ongoing;
        next.updated_ms = now_ms;
        next.client_version = client_version;
        next.partitions.extend(partitions);
        let same = self.status == Status::Ongoing && next.partitions == self.partitions;
        Ok((!same).then_some(next))
    }

    /// Checks that a batch of the producer for this partition belongs to the open transaction.
    pub fn verify(
        &self,
        producer_id: i64,
        epoch: i16,
        partition: &TopicPartition,
    ) -> Result<(), TransactionError> {
        self.check_producer(producer_id, epoch)?;
        if self.status.ending().is_some() {
            return Err(TransactionError::Concurrent);
        }
        let has = self.status == Status::Ongoing && self.partitions.contains(partition);
        has.then_some(()).ok_or(TransactionError::NotInTransaction)
    }

    fn check_producer(&self, producer_id: i64, epoch: i16) -> Result<(), TransactionError> {
        if self.producer_id != producer_id {
            return Err(TransactionError::ProducerIdMapping);
        }
        if self.epoch != epoch {
            return Err(TransactionError::Fenced);
        }
        Ok(())
    }

    /// EndTxn. `fresh_id` is a new producer id, for use if the epochs of the current one are used up.
    pub fn end(&self, end: End, fresh_id: i64, now_ms: i64) -> Result<EndStep, TransactionError> {
        let End { producer_id, epoch, result, bumps } = end;
        // The answer to the request that bumped the epoch may have been lost.
        let bumped = bumps && producer_id == self.producer_id && self.epoch > 0 && epoch == self.epoch - 1;
        let rotated =
            bumps && producer_id == self.previous_producer_id && epoch >= EPOCH_LAST && self.epoch == 0;
        let retry = bumped || rotated;
        if self.producer_id != producer_id && !rotated {
            return Err(TransactionError::ProducerIdMapping);
        }
        if self.epoch != epoch && !retry {
            return Err(TransactionError::Fenced);
        }
        let completed = match self.status {
            Status::CompleteCommit => Some(TransactionResult::Commit),
            Status::CompleteAbort => Some(TransactionResult::Abort),
            _ => None,
        };
        match self.status {
            // No end of a transaction has bumped the epoch, so another producer with this id has.
            Status::Ongoing | Status::Empty if retry => Err(TransactionError::Fenced),
            Status::Ongoing => Ok(EndStep::Prepare(self.ending(end, fresh_id, now_ms))),
            Status::PrepareCommit | Status::PrepareAbort => {
                let same = self.status.ending() == Some(result);
                Err(if same { TransactionError::Concurrent } else { TransactionError::InvalidState })
            }
            Status::CompleteCommit | Status::CompleteAbort
                if completed == Some(result) && (retry || !bumps) =>
            {
                Ok(EndStep::Done)
            }
            // A client that bumps epochs also aborts transactions that the server may not know (KIP-890).
            Status::Empty | Status::CompleteCommit | Status::CompleteAbort
                if bumps && !retry && result == TransactionResult::Abort =>
            {
                let mut next = self.ending(end, fresh_id, now_ms);
                next.partitions.clear();
                Ok(EndStep::Prepare(next))
            }
            Status::Empty | Status::CompleteCommit | Status::CompleteAbort => {
                Err(TransactionError::InvalidState)
            }
        }
    }

    fn ending(&self, end: End, fresh_id: i64, now_ms: i64) -> Transaction {
        let mut next = self.prepared(end.result, now_ms);
        if end.bumps {
            next.client_version = next.client_version.max(2);
            if self.epoch_is_exhausted() {
                next.next_producer_id = fresh_id;
            }
            next.last_epoch = self.epoch;
            next.epoch = self.epoch.saturating_add(1);
        }
        next
    }

    fn prepared(&self, result: TransactionResult, now_ms: i64) -> Transaction {
        let status = match result {
            TransactionResult::Commit => Status::PrepareCommit,
            TransactionResult::Abort => Status::PrepareAbort,
        };
        Transaction { status, updated_ms: now_ms, ..self.clone() }
    }

    /// The state after all markers of a prepared transaction are written.
    pub fn completed(&self, now_ms: i64) -> Transaction {
        let status = match self.status.ending() {
            Some(TransactionResult::Commit) => Status::CompleteCommit,
            Some(TransactionResult::Abort) => Status::CompleteAbort,
            None => self.status,
        };
        let mut next = Transaction { status, updated_ms: now_ms, ..self.clone() };
        next.partitions.clear();
        if self.next_producer_id >= 0 {
            next.previous_producer_id = self.producer_id;
            next.producer_id = self.next_producer_id;
            next.next_producer_id = -1;
            next.epoch = 0;
        }
        next
    }

    /// Whether the transaction has been open for longer than its timeout.
    pub fn is_overdue(&self, now_ms: i64) -> bool {
        self.status == Status::Ongoing && now_ms.saturating_sub(self.start_ms) > i64::from(self.timeout_ms)
    }

    /// Whether the transactional id was unused for `expiry_ms` and has no transaction to end.
    pub fn is_unused(&self, now_ms: i64, expiry_ms: i64) -> bool {
        let at_rest = self.status != Status::Ongoing && self.status.ending().is_none();
        at_rest && now_ms.saturating_sub(self.updated_ms) > expiry_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABORT: TransactionResult = TransactionResult::Abort;
    const COMMIT: TransactionResult = TransactionResult::Commit;

    fn partition(index: i32) -> impl Iterator<Item = TopicPartition> {
        std::iter::once(("t".to_owned(), index))
    }

    fn ongoing(epoch: i16) -> Transaction {
        let mut state = Transaction::new(7, 1000, 0);
        state.epoch = epoch;
        state.add(7, epoch, partition(0), 2, 5).unwrap().unwrap()
    }

    fn prepare(state: &Transaction, epoch: i16, result: TransactionResult, bumps: bool) -> Transaction {
        match state.end(End { producer_id: 7, epoch, result, bumps }, 8, 9).unwrap() {
            EndStep::Prepare(next) => next,
            EndStep::Done => panic!("it was not done"),
        }
    }

    #[test]
    fn each_instance_gets_an_epoch_and_fences_the_one_before() {
        let state = Transaction::new(7, 1000, 0).initialize(None, 1000, 8, 0).unwrap();
        assert_eq!((state.producer_id, state.epoch, state.status), (7, 0, Status::Empty));
        let second = state.initialize(None, 2000, 8, 0).unwrap();
        assert_eq!((second.epoch, second.timeout_ms), (1, 2000));
        assert_eq!(second.add(7, 0, partition(0), 0, 0), Err(TransactionError::Fenced));
        assert_eq!(second.add(6, 1, partition(0), 0, 0), Err(TransactionError::ProducerIdMapping));
        // A client that bumps its own epoch, and retries because the answer was lost (KIP-360).
        let third = second.initialize(Some((7, 1)), 2000, 8, 0).unwrap();
        assert_eq!((third.epoch, third.last_epoch), (2, 1));
        assert_eq!(third.initialize(Some((7, 1)), 2000, 8, 0).unwrap(), third);
        assert_eq!(third.initialize(Some((7, 0)), 2000, 8, 0), Err(TransactionError::Fenced));
        assert_eq!(third.initialize(Some((5, 0)), 2000, 8, 0), Err(TransactionError::Fenced));
    }

    #[test]
    fn epochs_that_are_used_up_change_the_producer_id() {
        let mut state = Transaction::new(7, 1000, 0);
        state.epoch = i16::MAX - 1;
        let next = state.initialize(Some((7, i16::MAX - 1)), 1000, 8, 0).unwrap();
        assert_eq!((next.producer_id, next.epoch, next.previous_producer_id), (8, 0, 7));
        assert_eq!(next.initialize(Some((7, i16::MAX - 1)), 1000, 9, 0).unwrap(), next);
        // Another instance changed the epoch.
        let other = state.initialize(None, 1000, 8, 0).unwrap();
        let zombie = Some((7, i16::MAX - 1));
        assert_eq!(other.initialize(zombie, 1000, 9, 0), Err(TransactionError::Fenced));

        let state = ongoing(i16::MAX - 1);
        let prepared = prepare(&state, i16::MAX - 1, COMMIT, true);
        assert_eq!((prepared.epoch, prepared.next_producer_id), (i16::MAX, 8));
        let done = prepared.completed(1);
        assert_eq!((done.producer_id, done.epoch, done.previous_producer_id), (8, 0, 7));
        let retry = End { producer_id: 7, epoch: i16::MAX - 1, result: COMMIT, bumps: true };
        assert_eq!(done.end(retry, 9, 9), Ok(EndStep::Done));
    }

    #[test]
    fn a_transaction_of_the_first_version_ends_with_its_epoch() {
        let state = ongoing(3);
        assert_eq!(state.add(7, 3, partition(0), 2, 5), Ok(None));
        assert!(state.verify(7, 3, &("t".to_owned(), 0)).is_ok());
        assert_eq!(state.verify(7, 3, &("t".to_owned(), 1)), Err(TransactionError::NotInTransaction));
        let prepared = prepare(&state, 3, COMMIT, false);
        assert_eq!((prepared.epoch, prepared.partitions.len()), (3, 1));
        let end = |result| End { producer_id: 7, epoch: 3, result, bumps: false };
        assert_eq!(prepared.end(end(COMMIT), 8, 9), Err(TransactionError::Concurrent));
        assert_eq!(prepared.end(end(ABORT), 8, 9), Err(TransactionError::InvalidState));
        assert_eq!(prepared.add(7, 3, partition(1), 0, 9), Err(TransactionError::Concurrent));
        let done = prepared.completed(1);
        assert_eq!((done.status, done.partitions.len()), (Status::CompleteCommit, 0));
        assert_eq!(done.end(end(COMMIT), 8, 9), Ok(EndStep::Done));
        assert_eq!(done.end(end(ABORT), 8, 9), Err(TransactionError::InvalidState));
        let next = done.add(7, 3, partition(1), 0, 20).unwrap().unwrap();
        assert_eq!((next.status, next.start_ms, next.partitions.len()), (Status::Ongoing, 20, 1));
        assert!(!next.is_overdue(1020) && next.is_overdue(1021));
        assert!(!next.is_unused(9_000_000, 100) && !prepared.is_unused(9_000_000, 100), "it is open");
        assert!(!done.is_unused(done.updated_ms + 100, 100) && done.is_unused(done.updated_ms + 101, 100));
    }

    #[test]
    fn a_transaction_of_the_second_version_bumps_the_epoch() {
        let state = ongoing(3);
        let prepared = prepare(&state, 3, COMMIT, true);
        assert_eq!(prepared.epoch, 4);
        let done = prepared.completed(1);
        let end = |epoch, result| End { producer_id: 7, epoch, result, bumps: true };
        assert_eq!(done.end(end(3, COMMIT), 8, 9), Ok(EndStep::Done));
        assert_eq!(done.end(end(3, ABORT), 8, 9), Err(TransactionError::InvalidState));
        assert_eq!(done.end(end(2, COMMIT), 8, 9), Err(TransactionError::Fenced));
        assert_eq!(done.end(end(4, COMMIT), 8, 9), Err(TransactionError::InvalidState));
        // An abort of a transaction that never began here bumps the epoch too.
        let aborted = prepare(&done, 4, ABORT, true).completed(2);
        assert_eq!((aborted.status, aborted.epoch), (Status::CompleteAbort, 5));
        // Another producer with this id has come, and has not begun a transaction.
        let fresh = aborted.initialize(None, 1000, 8, 11).unwrap();
        assert_eq!((fresh.status, fresh.epoch), (Status::Empty, 6));
        for result in [COMMIT, ABORT] {
            assert_eq!(fresh.end(end(5, result), 8, 9), Err(TransactionError::Fenced));
        }
    }

    #[test]
    fn a_new_instance_or_a_timeout_fences_an_open_transaction() {
        let fenced = ongoing(3).fence(9);
        assert_eq!((fenced.status, fenced.epoch), (Status::PrepareAbort, 4));
        let done = fenced.completed(10);
        let late = End { producer_id: 7, epoch: 3, result: COMMIT, bumps: false };
        assert_eq!(done.end(late, 8, 9), Err(TransactionError::Fenced));
        assert_eq!(done.initialize(None, 1000, 8, 11).unwrap().epoch, 5);
        // The last epoch is reserved for fencing.
        assert_eq!(ongoing(i16::MAX - 1).fence(9).epoch, i16::MAX);
    }
}
