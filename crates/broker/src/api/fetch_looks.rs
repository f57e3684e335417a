//! The looks of a fetch at its partitions: without the disk first, then from the disk for those that need it, and again
//! when commits wake the fetch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use model::Offset;
use storage::{Batches, ReadError, ReadRequest, ReadStep, Stretch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use wire::messages::fetch_response::{AbortedTransaction, LeaderIdAndEpoch, PartitionData};
use wire::{ErrorCode, Records};

use crate::api::nearest::{Nearest, not_here};
use crate::api::reads::{check_leader_epoch, read_later, tell_failed_read, without_records};
use crate::caller::Caller;
use crate::failure::Failure;
use crate::partition::log::PartitionLog;
use crate::placement::Leader;
use crate::quotas::Payer;
use crate::session::{Slot, Slots};

/// A fetch of very many partitions yields the thread after this many.
const LOOKS_BEFORE_YIELD: usize = 256;

/// Number of partitions read from disk before the reader serves other requests.
const COLD_PORTION: usize = 32;

/// Leaders have so long to say what they have. A consumer of one that says nothing looks for another.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The limits and options of one fetch.
pub struct Limits {
    /// The client.
    pub caller: Caller,
    /// Who is charged for the bytes.
    pub payer: Payer,
    /// Bytes of records in the answer, at most; a first batch that is larger is returned whole.
    pub bytes_max: usize,
    /// Bytes of records for which the fetch waits.
    pub bytes_min: usize,
    /// The end of the wait.
    pub deadline: Instant,
    /// Whether records of open transactions are held back.
    pub read_committed: bool,
    /// Whether topics are named by id.
    pub by_id: bool,
    /// The id of this broker.
    pub node: i32,
    /// Whether the request comes from a replica.
    pub by_replica: bool,
    /// Whether the answer can name the leader of a partition that another broker leads (KIP-951).
    pub leader_told: bool,
    /// An error that replaces the records of every partition.
    pub refusal: Option<ErrorCode>,
    /// Where a consumer that names its rack reads.
    pub nearest: Option<Nearest>,
}

/// The result of one look at a partition.
pub struct Look {
    /// The partition's slot.
    pub slot: usize,
    /// Its part of the answer.
    pub data: PartitionData,
    /// Bytes of its records.
    pub bytes: usize,
    /// Whether the partition has more records than the look took.
    pub cut_short: bool,
    /// Whether the slot's offset is behind the end of the log, as far as this broker has it.
    pub beyond_end: bool,
    /// The offset behind its records, if this broker has read them from the log.
    pub next: Option<Offset>,
}

/// The slots of partitions that other brokers lead, for a consumer that reads here all the same.
#[derive(Default)]
struct Elsewhere {
    /// In the order in which they were found. Those that are not there any more are among them.
    order: Vec<usize>,
    there: HashSet<usize>,
}

impl Elsewhere {
    fn add(&mut self, slot: usize) {
        self.there.insert(slot);
        self.order.push(slot);
    }

    fn remove(&mut self, slot: usize) {
        self.there.remove(&slot);
    }

    fn is_empty(&self) -> bool {
        self.there.is_empty()
    }

    fn all(&self) -> Vec<usize> {
        let mut left = self.there.clone();
        self.order.iter().copied().filter(|slot| left.remove(slot)).collect()
    }
}

/// Looks at the changed slots, and waits for commits until there are enough bytes, an error, or the deadline has
/// passed. Returns the last look at each slot that was looked at.
pub async fn look_and_wait(slots: &mut Slots, limits: &Limits, all: bool) -> Vec<Look> {
    let mut elsewhere = Elsewhere::default();
    let mut looks = look_until_enough(slots, limits, all, &mut elsewhere).await;
    let told: HashSet<usize> = looks.iter().map(|look| look.slot).collect();
    let untold = elsewhere.all().into_iter().filter(|slot| !told.contains(slot));
    looks.extend(untold.filter_map(|slot| Some(not_here(slot, slots.slot(slot)?.index))));
    // No commit here says that they have changed. Those that were served come behind the others.
    let served: HashSet<usize> = looks.iter().filter(|look| look.bytes > 0).map(|look| look.slot).collect();
    let (behind, before): (Vec<_>, Vec<_>) =
        elsewhere.all().into_iter().partition(|slot| served.contains(slot));
    before.into_iter().chain(behind).for_each(|slot| slots.signal.mark(slot, 0));
    looks
}

async fn look_until_enough(
    slots: &mut Slots,
    limits: &Limits,
    all: bool,
    elsewhere: &mut Elsewhere,
) -> Vec<Look> {
    let mut looks = Looks::default();
    if !all {
        slots.subscribe();
    }
    let mut subscribed = !all;
    let mut numbers = slots.signal.take_dirty();
    let (mut asking, mut asked) = (JoinSet::new(), false);
    loop {
        let mut urgent = false;
        let mut cold = Vec::new();
        // Reserve room for the longest-waiting cold partition, even if later partitions have data in the caches.
        let mut reserved = 0;
        looks.reserve(numbers.len());
        for (looked, number) in numbers.into_iter().enumerate() {
            if looked % LOOKS_BEFORE_YIELD == LOOKS_BEFORE_YIELD - 1 {
                tokio::task::yield_now().await;
            }
            looks.remove(number);
            elsewhere.remove(number);
            let Some(slot) = slots.slot(number) else { continue };
            match look_at(slot, number, limits, looks.bytes + reserved) {
                Looked::Done(look) => {
                    // A consumer that should read elsewhere need not wait.
                    urgent |= look.data.error_code != 0 || look.data.preferred_read_replica >= 0;
                    looks.add(look);
                }
                Looked::Cold(look) => {
                    if cold.is_empty() {
                        reserved = usize::try_from(slot.bytes_max).unwrap_or(0);
                    }
                    cold.push(look);
                }
                Looked::Elsewhere => elsewhere.add(number),
            }
        }
        // A cold read has already waited for the disk, so answer now.
        urgent |= !cold.is_empty();
        read_cold(slots, cold, limits, &mut looks).await;
        let now = Instant::now();
        // A fetch without partitions is answered at once. Clients close their session with it.
        let mut enough =
            urgent || looks.bytes >= limits.bytes_min || now >= limits.deadline || slots.is_empty();
        // A look that was cut short makes the answer full enough: batches are whole, and limits may fall inside.
        enough |= looks.bytes > 0 && looks.any(|look| look.cut_short);
        if enough && elsewhere.is_empty() {
            return looks.taken();
        }
        if !enough && !subscribed {
            // The first look was made without a subscription. Look once more with it.
            slots.subscribe();
            subscribed = true;
            numbers = slots.numbers();
            continue;
        }
        // A transaction marker is much smaller than the records it makes readable, so wait for one byte only.
        let held_back = limits.read_committed
            && looks.any(|look| look.data.last_stable_offset < look.data.high_watermark);
        let missing = if held_back { 1 } else { limits.bytes_min.saturating_sub(looks.bytes) };
        if let Some(nearest) = limits.nearest.as_ref().filter(|_| !elsewhere.is_empty()) {
            if enough && !asking.is_empty() {
                // Others have been asked, and have nothing yet.
                return looks.taken();
            }
            // All leaders are asked for what they have, and then for what comes.
            let waits = asked && !enough;
            if asking.is_empty() {
                let until = if waits { limits.deadline } else { now };
                asking = nearest.ask(slots, &elsewhere.all(), limits, looks.bytes, until);
                asked = true;
            }
            let mut patience = if waits { limits.deadline } else { now + ANSWER_WITHIN };
            loop {
                tokio::select! {
                    found = asking.join_next() => {
                        let Some(found) = found else { break };
                        let found = found.unwrap_or_default();
                        if found.iter().any(|look| look.bytes > 0 || look.data.error_code != 0) {
                            (enough, patience) = (true, patience.min(Instant::now() + ANSWER_WITHIN));
                        }
                        for look in found {
                            looks.remove(look.slot);
                            looks.add(look);
                        }
                        if enough && waits {
                            break;
                        }
                    }
                    () = slots.signal.wait(missing), if waits => break,
                    () = tokio::time::sleep_until(patience) => break,
                }
            }
            if enough || Instant::now() >= limits.deadline {
                return looks.taken();
            }
            numbers = slots.signal.take_dirty();
            continue;
        }
        let waited = tokio::time::timeout_at(limits.deadline, slots.signal.wait(missing)).await;
        numbers = slots.signal.take_dirty();
        if waited.is_err() && numbers.is_empty() {
            return looks.taken();
        }
    }
}

/// The last look at each slot, in the order of the looks.
#[derive(Default)]
struct Looks {
    looks: Vec<Option<Look>>,
    by_slot: HashMap<usize, usize>,
    bytes: usize,
}

impl Looks {
    fn reserve(&mut self, looks: usize) {
        self.looks.reserve(looks);
        self.by_slot.reserve(looks);
    }

    fn add(&mut self, look: Look) {
        // Without this, a fetch that is woken again and again would keep an entry for every look.
        if self.looks.len() > 2 * self.by_slot.len() + 64 {
            self.looks.retain(Option::is_some);
            let numbered = self.looks.iter().flatten().enumerate();
            self.by_slot = numbered.map(|(at, look)| (look.slot, at)).collect();
        }
        self.bytes += look.bytes;
        self.by_slot.insert(look.slot, self.looks.len());
        self.looks.push(Some(look));
    }

    fn remove(&mut self, slot: usize) {
        if let Some(look) = self.by_slot.remove(&slot).and_then(|at| self.looks[at].take()) {
            self.bytes -= look.bytes;
        }
    }

    fn any(&self, what: impl FnMut(&Look) -> bool) -> bool {
        self.looks.iter().flatten().any(what)
    }

    fn taken(self) -> Vec<Look> {
        self.looks.into_iter().flatten().collect()
    }
}

/// A look at a partition whose next batch must be read from disk.
struct ColdLook {
    look: Look,
    log: Arc<dyn PartitionLog>,
    stretch: Stretch,
    position: u32,
}

/// The result of a look that does not wait for the disk.
enum Looked {
    Done(Look),
    Cold(ColdLook),
    /// Another broker leads the partition.
    Elsewhere,
}

/// Reads from disk for the partitions at the oldest position of their log, so that they stay together and share one
/// scan, and for the partition that has waited longest. The other partitions are read in a later fetch. If all of them
/// read at once, each at its own position, they would evict from the cache what the next one needs.
async fn read_cold(slots: &mut Slots, mut cold: Vec<ColdLook>, limits: &Limits, looks: &mut Looks) {
    if cold.is_empty() {
        return;
    }
    let log = |cold: &ColdLook| cold.log.log_id();
    // The longest-waiting partition is read before the others, which may fill the answer.
    let first = cold.remove(0);
    cold.sort_by_key(|cold| (log(cold), cold.stretch, cold.position));
    let mut oldest = HashMap::new();
    for cold in cold.iter().chain([&first]) {
        let least = oldest.entry(log(cold)).or_insert(cold.stretch);
        *least = cold.stretch.min(*least);
    }
    let (mut now, later): (Vec<_>, Vec<_>) =
        cold.into_iter().partition(|cold| oldest[&log(cold)] == cold.stretch);
    // They come first in this answer, and so they are first in the next fetch.
    later.into_iter().for_each(|cold| looks.add(cold.look));
    read_portion(slots, vec![first], limits, looks, true).await;
    while let Some(next) = now.first() {
        let of_log = now.iter().take_while(|cold| log(cold) == log(next));
        let rest = now.split_off(of_log.take(COLD_PORTION).count());
        read_portion(slots, std::mem::replace(&mut now, rest), limits, looks, false).await;
    }
}

/// Reads for partitions of one log. `force` returns at least one batch, even if the answer has no room for it.
async fn read_portion(
    slots: &mut Slots,
    mut cold: Vec<ColdLook>,
    limits: &Limits,
    looks: &mut Looks,
    force: bool,
) {
    let mut requests = Vec::with_capacity(cold.len());
    cold.retain(|ColdLook { look, log, .. }| {
        let Some(slot) = slots.slot(look.slot) else { return false };
        let mut request = read_request(slot, &**log, &look.data, limits, looks.bytes);
        request.at_least_one |= force;
        requests.push(request);
        true
    });
    let Some(log) = cold.first().map(|cold| cold.log.clone()) else { return };
    let bytes_max = limits.bytes_max.saturating_sub(looks.bytes);
    let results = read_later(&*log, requests, bytes_max).await;
    for (ColdLook { mut look, .. }, result) in cold.into_iter().zip(results) {
        let slot = slots.slot(look.slot).expect("a fetch removes no slots while it reads");
        look.put(slot, limits, result);
        looks.add(look);
    }
}

/// Looks at one partition from its slot's offset, without waiting for the disk.
fn look_at(slot: &Slot, number: usize, limits: &Limits, taken: usize) -> Looked {
    let mut look = Look {
        data: PartitionData { aborted_transactions: None, ..without_records(slot.index, ErrorCode::None) },
        ..Look::empty(number)
    };
    match log_of(slot, limits, &mut look.data) {
        Ok(log) if let Some(node) = preferred(slot, &**log, limits) => {
            look.data.preferred_read_replica = node;
        }
        Ok(log) => match log.read(&read_request(slot, &**log, &look.data, limits, taken)) {
            Ok(ReadStep::Cold { stretch, position }) => {
                return Looked::Cold(ColdLook { look, log: log.clone(), stretch, position });
            }
            Ok(ReadStep::Ready(batches)) => look.put(slot, limits, Ok(batches)),
            Err(error) => look.put(slot, limits, Err(error)),
        },
        Err(failure) if failure.code == ErrorCode::NotLeaderOrFollower && is_served_here(slot, limits) => {
            return Looked::Elsewhere;
        }
        Err(failure) => {
            look.data.error_code = failure.code.code();
            // Kafka adds an empty list of aborted transactions for a missing or hidden partition.
            let unseen = [
                ErrorCode::UnknownTopicOrPartition,
                ErrorCode::UnknownTopicId,
                ErrorCode::TopicAuthorizationFailed,
            ];
            look.data.aborted_transactions = unseen.contains(&failure.code).then(Vec::new);
            let moved = [ErrorCode::NotLeaderOrFollower, ErrorCode::FencedLeaderEpoch];
            if limits.leader_told
                && moved.contains(&failure.code)
                && let Some(partition) = &slot.partition
            {
                let Leader { node: leader_id, epoch: leader_epoch } = partition.leader();
                look.data.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
            }
        }
    }
    Looked::Done(look)
}

/// The broker from which a consumer should read the slot's partition, if it is another one.
fn preferred(slot: &Slot, log: &dyn PartitionLog, limits: &Limits) -> Option<i32> {
    limits.nearest.as_ref()?.preferred(slot.partition.as_ref()?, slot.offset, &log.bounds(), limits)
}

/// Whether a consumer reads the slot's partition here, though another broker leads it.
fn is_served_here(slot: &Slot, limits: &Limits) -> bool {
    let (Some(nearest), Some(partition)) = (&limits.nearest, &slot.partition) else { return false };
    limits.refusal.is_none() && slot.bytes_max >= 0 && nearest.serves(partition)
}

/// The log of the slot's partition. Puts the partition's bounds into `data`.
fn log_of<'a>(
    slot: &'a Slot,
    limits: &Limits,
    data: &mut PartitionData,
) -> Result<&'a Arc<dyn PartitionLog>, Failure> {
    let unknown_id = limits.by_id && !slot.known;
    let missing = if unknown_id { ErrorCode::UnknownTopicId } else { ErrorCode::UnknownTopicOrPartition };
    if !slot.allowed {
        return Err(ErrorCode::TopicAuthorizationFailed.into());
    }
    let partition = slot.partition.as_ref().filter(|partition| !partition.is_deleted()).ok_or(missing)?;
    // Here any negative epoch means "none".
    let epoch = partition.leader().epoch;
    check_leader_epoch(slot.leader_epoch.max(-1), epoch)?;
    if let Some(error) = limits.refusal {
        return Err(error.into());
    }
    if slot.bytes_max < 0 {
        return Err(ErrorCode::UnknownServerError.into());
    }
    if slot.last_fetched_epoch > epoch {
        // The client asks for records that were never here.
        return Err(ErrorCode::OffsetOutOfRange.into());
    }
    let log = partition.replica(limits.node)?.log;
    let bounds = log.bounds();
    data.high_watermark = bounds.visible.0;
    data.last_stable_offset = partition.last_stable_offset(bounds.visible).0;
    data.log_start_offset = bounds.start.0;
    Ok(log)
}

fn read_request(
    slot: &Slot,
    log: &dyn PartitionLog,
    data: &PartitionData,
    limits: &Limits,
    taken: usize,
) -> ReadRequest {
    // Records committed during a read from disk are above the high watermark in the answer, and so are not read.
    let until = if limits.read_committed { data.last_stable_offset } else { data.high_watermark };
    let own_max = usize::try_from(slot.bytes_max).unwrap_or(0);
    let bytes_max = own_max.min(limits.bytes_max.saturating_sub(taken));
    let request = log.request(Offset(slot.offset), Offset(until), bytes_max);
    ReadRequest { at_least_one: taken == 0, ..request }
}

/// The aborted transactions with records from the slot's offset up to `next`, the end of the batches read.
fn aborted(slot: &Slot, next: Option<Offset>) -> Vec<AbortedTransaction> {
    let (Some(partition), Some(next)) = (&slot.partition, next) else { return Vec::new() };
    let told = |transaction: crate::transactions::AbortedTransaction| AbortedTransaction {
        producer_id: transaction.producer_id,
        first_offset: transaction.first_offset.0,
    };
    partition.aborted_between(Offset(slot.offset), next).into_iter().map(told).collect()
}

impl Look {
    /// A look that has found nothing.
    pub fn empty(slot: usize) -> Look {
        Look {
            slot,
            data: PartitionData::default(),
            bytes: 0,
            cut_short: false,
            beyond_end: false,
            next: None,
        }
    }

    fn put(&mut self, slot: &Slot, limits: &Limits, result: Result<Batches, ReadError>) {
        let data = &mut self.data;
        match result {
            Ok(batches) => {
                (self.bytes, self.next) = (batches.bytes, batches.next);
                let end = if limits.read_committed { data.last_stable_offset } else { data.high_watermark };
                self.cut_short = batches.next.map_or(slot.offset, |next| next.0) < end;
                if limits.read_committed {
                    data.aborted_transactions = Some(aborted(slot, batches.next));
                }
                let mut records = Records::new();
                batches.chunks.into_iter().for_each(|chunk| records.push(chunk));
                data.records = Some(records);
            }
            Err(error) => {
                let topic = slot.partition.as_ref().map(|partition| &*partition.topic);
                tell_failed_read(topic, slot.index, &error);
                self.beyond_end =
                    matches!(error, ReadError::OutOfRange { offset, start, .. } if offset > start);
                let failure: Failure = error.into();
                if failure.code == ErrorCode::OffsetOutOfRange {
                    // As in Kafka, this error comes without offsets.
                    (data.high_watermark, data.last_stable_offset, data.log_start_offset) = (-1, -1, -1);
                }
                data.error_code = failure.code.code();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(slot: usize, bytes: usize) -> Look {
        Look { bytes, ..Look::empty(slot) }
    }

    #[test]
    fn a_fetch_that_is_woken_often_keeps_its_last_looks_only() {
        let mut looks = Looks::default();
        (0..3).for_each(|slot| looks.add(look(slot, 1)));
        for bytes in 0..100_000 {
            looks.remove(1);
            looks.add(look(1, bytes));
            assert!(looks.looks.len() <= 71 && looks.by_slot.len() == 3);
        }
        looks.remove(0);
        looks.add(look(0, 5));
        assert_eq!(looks.bytes, 1 + 99_999 + 5);
        let taken: Vec<(usize, usize)> = looks.taken().iter().map(|look| (look.slot, look.bytes)).collect();
        assert_eq!(taken, [(2, 1), (1, 99_999), (0, 5)]);
    }
}
