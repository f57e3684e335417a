//! A partition that moves to another log: it is sealed in the old one, and copied into the new one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use model::{BatchHeader, Offset, Timestamp};
use wire::records::transaction_result;

use super::log::PartitionLog;
use super::sequence::SequenceError;
use super::{Checked, Order, Partition};
use crate::logs::Absent;
use crate::placement::{FIRST_EPOCH, Leader};

/// A change of leaders that was planned takes less.
pub const PASSING: Duration = Duration::from_secs(1);

/// The epochs of a partition that is opened. Earlier leaders of a partition with records are one epoch, because nobody
/// has noted where each of them began. No record that a consumer saw is ever cut off, so the end of all of them is the end
/// of each (KIP-320).
pub(super) fn epochs_of(leader: Leader, next_offset: Offset) -> Vec<(i32, Offset)> {
    match leader.epoch > FIRST_EPOCH && next_offset > Offset::ZERO {
        true => vec![(FIRST_EPOCH, Offset::ZERO), (leader.epoch, next_offset)],
        false => vec![(leader.epoch, Offset::ZERO)],
    }
}

impl Partition {
    pub(super) fn set_leader(&self, leader: Leader) {
        // A leader that tries again to open the log has had its time.
        if leader.node != self.leader().node {
            *self.changed.lock() = Instant::now();
        }
        self.leadership.set(leader);
    }

    /// Whether the broker `node` leads the partition, and is about to take records again or to have another broker lead it: its
    /// log is being opened or closed there, or it moves to another log. Returns how much longer that is worth a wait.
    pub fn passes(&self, node: i32) -> Option<Duration> {
        let takes_records = self.log.is_ok() && !self.takes_nothing();
        let absent = matches!(self.log, Err(Absent::Elsewhere));
        if takes_records || self.is_deleted() || self.leader().node != node || !(absent || self.is_sealed()) {
            return None;
        }
        PASSING.checked_sub(self.changed.lock().elapsed()).filter(|left| !left.is_zero())
    }

    /// Says whether the partition takes no more records because it moves to another log.
    pub fn seal(&self, sealed: bool) {
        let state = self.state.lock();
        if self.sealed.swap(sealed, Ordering::AcqRel) != sealed {
            *self.changed.lock() = Instant::now();
        }
        drop(state);
    }

    /// The offset after the last record that a sealed partition has taken in `log`, which is this partition's. `None` if it takes
    /// records, or has no room to end transactions that were decided.
    pub fn sealed_end(&self, log: &dyn PartitionLog, now_ms: i64) -> Option<Offset> {
        let mut state = self.state.lock();
        let leader_epoch = self.leader().epoch;
        let ended = self.is_sealed() && state.end_decided(log, leader_epoch, now_ms).is_ok();
        ended.then_some(state.next_offset)
    }

    /// Whether the partition takes no more records because it moves to another log.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Appends a batch of another log's copy of this partition, with the offsets and the leader epoch that it has there. A batch
    /// that the partition has is passed over. A partition that is copied has no leader yet.
    ///
    /// # Errors
    /// [`SequenceError::Moved`] if the partition is no more to be copied here, or has a part of the batch.
    pub fn append_copy(
        &self,
        log: &dyn PartitionLog,
        batch: Checked,
        mut order: Order,
    ) -> Result<(), SequenceError> {
        let mut state = self.state.lock();
        if self.is_retired() {
            return Err(SequenceError::Moved);
        }
        let BatchHeader { base_offset, leader_epoch, producer_id, .. } = batch.header;
        if batch.header.next_offset() <= state.next_offset {
            return Ok(());
        }
        if base_offset < state.next_offset {
            return Err(SequenceError::Moved);
        }
        state.next_offset = base_offset;
        let room = order.index_room.take();
        let ended =
            if batch.header.is_control() { transaction_result(&batch.bytes).ok().flatten() } else { None };
        if let Some((result, _)) = ended {
            // A crash may have cut off the marker behind its record in the transaction index.
            state.decided.retain(|(id, _)| *id != producer_id);
            if let (Some(first), Some(room)) =
                (state.transactions.end(producer_id, base_offset, result), room)
            {
                log.end_transaction((producer_id, first), (base_offset, result), room, order.now_ms);
            }
        } else if batch.header.is_transactional()
            && !batch.header.is_control()
            && let (true, Some(room)) = (state.transactions.begin(producer_id, base_offset), room)
        {
            log.begin_transaction((producer_id, base_offset), room, order.now_ms);
        }
        state.place(log, batch, leader_epoch, order);
        Ok(())
    }

    /// Lets the partition lead, whose records were copied. Those are of one earlier epoch.
    pub fn begin_to_lead(&self, leader: Leader) {
        let mut state = self.state.lock();
        state.epochs = epochs_of(leader, state.next_offset);
        self.set_leader(leader);
        drop(state);
        self.subscribers.mark(usize::MAX);
    }

    /// Applies retention to `log`, which is this partition's. Returns the new start. A sealed partition keeps what it has.
    pub fn retain(
        &self,
        log: &dyn PartitionLog,
        oldest: Option<Timestamp>,
        bytes_max: Option<u64>,
    ) -> Option<Offset> {
        let _state = self.state.lock();
        if self.is_sealed() { None } else { log.retain(oldest, bytes_max) }
    }
}
