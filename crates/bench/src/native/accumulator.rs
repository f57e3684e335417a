//! Gathers records into batches, as Kafka's Java producer does (`RecordAccumulator`, `BuiltInPartitioner`).
//!
//! A batch is closed when the next record does not fit under `batch.size`. Batches may be sent when one is closed, when
//! one has waited for `linger.ms`, or when memory is used up. Then the oldest batch of every partition is sent along,
//! as far as `max.request.size` allows. Records without a key fill one partition up to `batch.size`, then another
//! random one.

use std::collections::VecDeque;

use model::{Compression, Timestamp};
use wire::records::BatchBuilder;

use crate::clock::{Nanos, nanos};
use crate::settings::ProducerSettings;

/// Upper bound in bytes of a record without key, value and headers (Java's `MAX_RECORD_OVERHEAD`).
const RECORD_OVERHEAD_BYTES: usize = 21;
/// The first memory of a batch. With many partitions, most batches stay small.
const FIRST_BYTES: usize = 4 * 1024;

/// A batch that may be sent.
pub struct Gathered {
    pub partition: usize,
    pub batch: BatchBuilder,
    /// The due time of each record.
    pub due: Vec<Nanos>,
}

struct Open {
    batch: BatchBuilder,
    due: Vec<Nanos>,
    serial: u64,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Open>,
    /// Whether the partition is in `filled`.
    listed: bool,
}

/// The records of one producer that are not sent yet.
pub struct Accumulator {
    linger: Nanos,
    batch_bytes: usize,
    request_bytes_max: usize,
    buffer_bytes: usize,
    compression: Compression,
    queues: Vec<Queue>,
    /// Partitions with batches, in the order in which they are to be sent.
    filled: VecDeque<usize>,
    closed: usize,
    /// Linger deadlines: deadline, partition, serial number. Entries of batches that are gone remain.
    lingering: VecDeque<(Nanos, usize, u64)>,
    next_serial: u64,
    bytes: usize,
    sticky: usize,
    sticky_bytes: usize,
    random: fastrand::Rng,
}

impl Accumulator {
    pub fn new(settings: &ProducerSettings, partitions: usize, seed: u64) -> Accumulator {
        let mut random = fastrand::Rng::with_seed(seed);
        Accumulator {
            linger: nanos(settings.linger),
            batch_bytes: settings.batch_bytes,
            request_bytes_max: settings.request_bytes_max,
            buffer_bytes: settings.buffer_bytes,
            compression: settings.compression,
            queues: (0..partitions).map(|_| Queue::default()).collect(),
            filled: VecDeque::new(),
            closed: 0,
            lingering: VecDeque::new(),
            next_serial: 0,
            bytes: 0,
            sticky: random.usize(..partitions),
            sticky_bytes: 0,
            random,
        }
    }

    /// Whether a record has to wait for memory (`buffer.memory`).
    pub fn is_full(&self) -> bool {
        self.bytes >= self.buffer_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }

    /// The partition of the next record without a key.
    fn sticky(&mut self, bytes: usize) -> usize {
        if self.sticky_bytes >= self.batch_bytes {
            self.sticky = self.random.usize(..self.queues.len());
            self.sticky_bytes = 0;
        }
        self.sticky_bytes += bytes;
        self.sticky
    }

    /// Adds a record that was due at `due`.
    pub fn push(&mut self, now: Nanos, timestamp: Timestamp, key: Option<&[u8]>, value: &[u8], due: Nanos) {
        let bytes = RECORD_OVERHEAD_BYTES + key.map_or(0, <[u8]>::len) + value.len();
        let partition = match key {
            Some(key) => crate::keys::partition_of(key, self.queues.len()),
            None => self.sticky(bytes),
        };
        let queue = &mut self.queues[partition];
        let fits = |open: &Open| {
            !open.closed
                && model::batch::HEADER_BYTES + open.batch.records_bytes() + bytes <= self.batch_bytes
        };
        if !queue.batches.back().is_some_and(fits) {
            if let Some(last) = queue.batches.back_mut()
                && !last.closed
            {
                last.closed = true;
                self.closed += 1;
            }
            let memory = if key.is_none() { self.batch_bytes } else { FIRST_BYTES.min(self.batch_bytes) };
            let memory = memory.max(model::batch::HEADER_BYTES + bytes);
            let serial = self.next_serial;
            self.next_serial += 1;
            queue.batches.push_back(Open {
                batch: BatchBuilder::with_capacity(self.compression, memory),
                due: Vec::new(),
                serial,
                closed: false,
            });
            self.lingering.push_back((now + self.linger, partition, serial));
            if !queue.listed {
                queue.listed = true;
                self.filled.push_back(partition);
            }
        }
        let open = queue.batches.back_mut().expect("one was there or was just added");
        open.batch.push(timestamp, key, Some(value));
        open.due.push(due);
        self.bytes += bytes;
    }

    /// The time at which batches may be sent although none is closed. `None` if there are no batches.
    pub fn deadline(&mut self) -> Option<Nanos> {
        while let Some((deadline, partition, serial)) = self.lingering.front() {
            let first = self.queues[*partition].batches.front();
            if first.is_some_and(|open| open.serial <= *serial) {
                return Some(*deadline);
            }
            self.lingering.pop_front();
        }
        None
    }

    /// Whether batches may be sent now.
    pub fn is_ready(&mut self, now: Nanos) -> bool {
        self.closed > 0 || self.is_full() || self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Takes one batch of each partition for which `wanted` is true, oldest partitions first, for one request.
    pub fn take(&mut self, wanted: impl Fn(usize) -> bool) -> Vec<Gathered> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        for _ in 0..self.filled.len() {
            let Some(partition) = self.filled.pop_front() else { break };
            let queue = &mut self.queues[partition];
            let open = queue.batches.front().expect("a partition that is listed has a batch");
            let more = open.batch.records_bytes();
            if !wanted(partition) || (bytes > 0 && bytes + more > self.request_bytes_max) {
                self.filled.push_back(partition);
                continue;
            }
            bytes += more;
            let open = queue.batches.pop_front().expect("it was just seen");
            self.closed -= usize::from(open.closed);
            if queue.batches.is_empty() {
                queue.listed = false;
            } else {
                self.filled.push_back(partition);
            }
            taken.push(Gathered { partition, batch: open.batch, due: open.due });
        }
        taken
    }

    /// Releases the memory of answered records, as counted by [`Accumulator::push`].
    pub fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// The bytes that [`Accumulator::push`] counts for this number of records with this total of key and value bytes.
    pub fn counted(records: usize, bytes: usize) -> usize {
        records * RECORD_OVERHEAD_BYTES + bytes
    }
}

#[cfg(test)]
mod tests {
    use client::Properties;

    use super::*;

    fn accumulator(pairs: &[(&str, &str)], partitions: usize) -> Accumulator {
        let properties: Properties =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Accumulator::new(&ProducerSettings::of(&properties).unwrap().0, partitions, 1)
    }

    fn push(accumulator: &mut Accumulator, now: Nanos, key: Option<&[u8]>) {
        accumulator.push(now, Timestamp(1), key, &[7; 100], now);
    }

    #[test]
    fn a_batch_goes_when_it_is_full_or_has_lingered() {
        let mut accumulator = accumulator(&[("linger.ms", "1"), ("batch.size", "390")], 1);
        push(&mut accumulator, 10, None);
        assert!(!accumulator.is_ready(1_000_009));
        assert_eq!(accumulator.deadline(), Some(1_000_010));
        assert!(accumulator.is_ready(1_000_010));
        // Two records fit below 390 bytes. The third begins another batch.
        push(&mut accumulator, 20, None);
        assert!(!accumulator.is_ready(20));
        push(&mut accumulator, 30, None);
        assert!(accumulator.is_ready(30));
        let taken = accumulator.take(|_| true);
        assert_eq!(taken.iter().map(|batch| batch.due.clone()).collect::<Vec<_>>(), [vec![10, 20]]);
        assert_eq!((taken[0].batch.count(), accumulator.deadline()), (2, Some(1_000_030)));
        assert!(!accumulator.is_ready(31) && !accumulator.is_empty());
        assert_eq!(accumulator.take(|_| true).len(), 1);
        assert!(accumulator.is_empty() && accumulator.deadline().is_none());
    }

    #[test]
    fn a_request_takes_one_batch_of_each_partition() {
        let mut accumulator = accumulator(&[("batch.size", "200"), ("max.request.size", "250")], 8);
        let keys: Vec<Vec<u8>> = (0..40u8).map(|key| vec![key]).collect();
        keys.iter().for_each(|key| push(&mut accumulator, 0, Some(key)));
        let mut sent = 0;
        let mut seen = std::collections::BTreeSet::new();
        while !accumulator.is_empty() {
            let taken = accumulator.take(|_| true);
            assert!((1..=2).contains(&taken.len()), "{}", taken.len());
            seen.extend(taken.iter().map(|batch| batch.partition));
            sent += taken.iter().map(|batch| batch.due.len()).sum::<usize>();
        }
        assert_eq!(sent, 40);
        assert!(seen.len() > 5, "{seen:?}");
        assert!(accumulator.take(|_| true).is_empty());
    }

    #[test]
    fn memory_is_bounded_and_given_back() {
        let mut accumulator = accumulator(&[("buffer.memory", "300")], 1);
        for _ in 0..3 {
            assert!(!accumulator.is_full());
            push(&mut accumulator, 0, None);
        }
        assert!(accumulator.is_full() && accumulator.is_ready(0));
        let taken = accumulator.take(|_| true);
        assert!(accumulator.is_full());
        accumulator.release(Accumulator::counted(taken[0].due.len(), 300));
        assert!(!accumulator.is_full());
    }

    #[test]
    fn records_without_a_key_stay_until_the_batch_is_full() {
        let mut accumulator = accumulator(&[("batch.size", "1000"), ("max.request.size", "1000000")], 50);
        (0..800).for_each(|_| push(&mut accumulator, 0, None));
        let taken = accumulator.take(|_| true);
        assert!(taken.len() > 20, "{}", taken.len());
        assert!(taken.iter().all(|batch| batch.batch.count() >= 7), "batches are full");
        let none = accumulator.take(|partition| partition == usize::MAX);
        assert!(none.is_empty());
    }
}
