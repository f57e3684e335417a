//! Keeping `__consumer_offsets` small.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use storage::Clock;
use tokio::sync::watch;

use super::{Coordinator, Entry, RecordsDone, State, append_records};
use crate::groups::{
    State as GroupState, encode_group, encode_group_key, encode_offset, encode_offset_key, partition_for,
};
use crate::internal::InternalRecord;
use crate::partition::Partition;

/// A partition of `__consumer_offsets` is rewritten once it has so many records and ...
const REWRITE_RECORDS_MIN: i64 = 10_000;
/// ... so many times more than there are live ones.
const REWRITE_FACTOR: i64 = 4;
/// How often a moment is looked for in which none of its groups has records on their way.
const REWRITE_TRIES: u32 = 50;
const REWRITE_TRY_AGAIN: Duration = Duration::from_millis(5);
/// Where there is none, new commits wait while it is looked for so many times more: what is open mostly ends within
/// milliseconds.
const HOLD_TRIES: u32 = 40;
/// No commit waits longer, whatever becomes of who holds it back.
const HOLD_MAX: Duration = Duration::from_secs(1);
/// Where it was of no use, since some transaction stays open for long, commits are not held back again for so long.
const HOLD_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Holds back the commits of a partition until it is dropped.
struct Held<'a>(&'a watch::Sender<Option<i32>>);

impl Held<'_> {
    fn begin(held: &watch::Sender<Option<i32>>, partition: i32) -> Held<'_> {
        held.send_replace(Some(partition));
        Held(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

impl Coordinator {
    /// Writes the live records of a partition of `__consumer_offsets` anew and drops what stands before them, once most
    /// of it is superseded. Blocks.
    pub fn rewrite(self: &Arc<Self>, partition: &Arc<Partition>, partitions: i32) {
        if self.unread.lock().contains(&partition.index) || self.is_rewriting(partition.index) {
            return;
        }
        let tries = |count| {
            (0..count).any(|_| {
                let done = self.try_rewrite(partition, partitions).is_some();
                if !done {
                    std::thread::sleep(REWRITE_TRY_AGAIN);
                }
                done
            })
        };
        // A busy group has its next moment without records in flight soon; not so where transactions overlap all the time.
        if tries(REWRITE_TRIES) {
            return;
        }
        let index = partition.index;
        let done = self.may_hold(index) && {
            let _held = Held::begin(&self.held, index);
            tries(HOLD_TRIES)
        };
        if done {
            self.held_in_vain.lock().remove(&index);
        } else {
            tracing::debug!(partition = index, "the groups are too busy for their records to be rewritten");
        }
    }

    /// Whether commits of the partition may be held back now; counted as in vain until it was of use.
    fn may_hold(&self, partition: i32) -> bool {
        let mut held_in_vain = self.held_in_vain.lock();
        if held_in_vain.get(&partition).is_some_and(|last| last.elapsed() < HOLD_AGAIN_AFTER) {
            return false;
        }
        held_in_vain.insert(partition, Instant::now());
        true
    }

    /// Whether what an earlier rewriting supersedes is still there, and would be counted again.
    fn is_rewriting(&self, partition: i32) -> bool {
        self.rewriting.lock().get(&partition).is_some_and(|left| left.strong_count() > 0)
    }

    /// Waits while new commits of the group's partition are held back.
    pub(super) async fn pass(&self, group: &str) {
        if self.held.borrow().is_none() {
            return;
        }
        let Some(partition) = self.partition_of(group) else { return };
        let mut held = self.held.subscribe();
        // Then it is no longer held back, or has waited for long enough.
        let _ = tokio::time::timeout(HOLD_MAX, held.wait_for(|held| *held != Some(partition.index))).await;
    }

    /// `None` where a group has records in flight: its newest one would stand before.
    fn try_rewrite(self: &Arc<Self>, partition: &Arc<Partition>, partitions: i32) -> Option<()> {
        let Ok(home) = partition.home() else { return Some(()) };
        let bounds = home.stream.bounds();
        let entries: Vec<_> =
            self.all().into_iter().filter(|e| partition_for(&e.id, partitions) == partition.index).collect();
        let live = |entry: &Arc<Entry>| entry.with(|group| group.records() + group.offsets().count());
        let live: usize = entries.iter().map(live).sum();
        let live = i64::try_from(live).unwrap_or(i64::MAX);
        let records = bounds.committed - bounds.start;
        if records < REWRITE_RECORDS_MIN || records / REWRITE_FACTOR < live {
            return Some(());
        }
        // All locks at once, in the order of the ids, so that no record comes between.
        let states: Vec<_> = entries.iter().map(|entry| (entry, entry.state.lock())).collect();
        let busy = |state: &State| {
            !state.line.waiting.is_empty() || state.group.has_uncommitted() || state.group.has_unwritten()
        };
        // Offsets of a transaction and its marker are of one piece: neither may be rewritten without the other.
        if partition.has_open_transactions() || states.iter().any(|(_, state)| busy(state)) {
            return None;
        }
        let mut batches = Vec::new();
        // A group that was deleted since `entries`: what it was stands before its tombstones, and is to stay there.
        for (entry, state) in states.iter().filter(|(_, state)| state.group.state() != GroupState::Dead) {
            match snapshot_records(&entry.id, state) {
                Ok(records) => batches.extend(records.chunks(1000).map(<[_]>::to_vec)),
                Err(error) => {
                    tracing::warn!(group = entry.id, ?error, "a group cannot be rewritten");
                    return Some(());
                }
            }
        }
        if self.topics.strong_count() == 0 {
            return Some(());
        }
        // Not what is there now: a group that is new since `entries` is only in what came after.
        let first = bounds.committed;
        let left = Arc::new(AtomicUsize::new(batches.len()));
        self.rewriting.lock().insert(partition.index, Arc::downgrade(&left));
        let drop_old = {
            let (home, runtime) = (home.clone(), self.runtime.clone());
            move |left| {
                home.log.log.trim(&home.stream, first, Some(RecordsDone::new(&runtime, |_| drop(left))))
            }
        };
        if batches.is_empty() {
            drop_old(left);
            return Some(());
        }
        for batch in batches {
            let (drop_old, left) = (drop_old.clone(), left.clone());
            let done = RecordsDone::new(&self.runtime, move |result| {
                // Only when every batch is durable may the old records go.
                if result.is_ok() && left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    drop_old(left);
                }
            });
            if append_records(partition, &batch, None, done, self.clock.now_ms()).is_none() {
                break;
            }
        }
        Some(())
    }
}

fn snapshot_records(id: &str, state: &State) -> Result<Vec<InternalRecord>, crate::groups::RecordError> {
    let mut records = state.group.consumer_records()?;
    if let Some(snapshot) = &state.stored {
        records.push((encode_group_key(id)?, Some(encode_group(snapshot)?)));
    }
    for (key, offset) in state.group.offsets() {
        records.push((encode_offset_key(id, key)?, Some(encode_offset(offset)?)));
    }
    Ok(records)
}
