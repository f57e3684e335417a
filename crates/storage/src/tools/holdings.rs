//! What the objects of a log hold, stream by stream: which offsets, and the state of each stream as of the end of its
//! newest records.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::{Offset, StreamId};

use crate::ranges::OffsetRanges;
use crate::segment::fetch::Described;
use crate::segment::footer::TableRow;
use crate::stream::{Producer, Producers};

/// What a metadata snapshot knows of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KnownBounds {
    /// The first record.
    pub start: Offset,
    /// The offset of the next record.
    pub next: Offset,
    /// Records below were stored; `None` if none were.
    pub stored: Option<Offset>,
}

/// A stream as its objects have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredStream {
    /// Its first record.
    pub start: Offset,
    /// The offset of its next record.
    pub next: Offset,
    /// Batches in the objects; some may lie below the start, or be replaced by newer ones.
    pub batches: u64,
    /// Bytes of these batches.
    pub bytes: u64,
    /// Ranges of these batches.
    pub extents: u64,
    /// Producers that it remembers.
    pub producers: usize,
    /// Offsets that the log had according to a snapshot, and that no object has. They may have been deleted since.
    pub missing: Vec<(Offset, Offset)>,
}

/// What all objects hold of one stream.
#[derive(Debug, Default)]
pub(crate) struct Held {
    ranges: OffsetRanges,
    batches: u64,
    bytes: u64,
    extents: u64,
    /// The highest start that an object knows.
    start: Option<Offset>,
    /// The highest end that an object knows.
    next: Offset,
    /// Each producer as of the highest end at which an object knows it.
    producers: HashMap<i64, (Offset, Producer)>,
    /// What the last objects hold, by their numbers.
    late: BTreeMap<u32, Late>,
}

/// What one of the last objects holds of a stream. Several objects are put at the same time, so a crash may leave one of
/// them without those before it. Such an object never counted.
#[derive(Debug, Default)]
struct Late {
    ranges: Vec<(Offset, Offset)>,
    /// Its row of the stream table: next offset and producers.
    table: Option<(Offset, Producers)>,
}

/// What an object says of those before it.
#[derive(Clone, Copy, Debug)]
struct BuiltBehind {
    /// The opening of the log that built it.
    owner: u64,
    /// The first of the objects that were on their way.
    counted: u32,
}

/// The last objects that may have been put without those before them; more than are put at the same time.
const LATE: u32 = 16;

/// What all objects hold.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    pub streams: HashMap<StreamId, Held>,
    /// The highest generation.
    pub generation: u64,
    /// The first of the last objects.
    late_from: u32,
    /// The last objects, also damaged ones.
    present: BTreeSet<u32>,
    /// The last objects that are not damaged.
    built: BTreeMap<u32, BuiltBehind>,
    /// All objects below count: one that was built later says so.
    counted_to: u32,
    last_producer: Option<i64>,
}

impl Holdings {
    /// The holdings of a log with the objects `sequences`.
    pub fn new(sequences: impl DoubleEndedIterator<Item = u32> + Clone) -> Holdings {
        let late_from = sequences.clone().next_back().map_or(0, |last| last.saturating_sub(LATE - 1));
        let present = sequences.filter(|sequence| *sequence >= late_from).collect();
        Holdings { late_from, present, ..Holdings::default() }
    }

    /// The holdings of a log whose objects all count.
    pub fn sealed() -> Holdings {
        Holdings { late_from: u32::MAX, ..Holdings::default() }
    }

    /// Notes objects that were put since, with higher numbers.
    pub fn extend(&mut self, sequences: impl Iterator<Item = u32>) {
        self.present.extend(sequences);
    }

    /// Settles which of the last objects count, once all are added: those without a gap in their numbers behind the
    /// objects that are known to count, if the objects that were on their way when they were built count as well. The
    /// uploader takes over no others ([`crate::uploader`]). Returns those that do not count.
    pub fn settle(&mut self) -> Vec<u32> {
        let mut counting = BTreeSet::new();
        for sequence in &self.present {
            let built = self.built.get(sequence);
            let from = built.map_or(self.counted_to, |built| built.counted).max(self.late_from);
            let counts = |before: u32| match self.built.get(&before) {
                Some(other) => {
                    counting.contains(&before) && built.is_none_or(|built| built.owner == other.owner)
                }
                // It is damaged, or was deleted after it had counted.
                None => self.present.contains(&before) || before < self.counted_to,
            };
            if (from..*sequence).all(counts) {
                counting.insert(*sequence);
            }
        }
        for held in self.streams.values_mut() {
            for (sequence, late) in std::mem::take(&mut held.late) {
                if counting.contains(&sequence) {
                    held.count(late);
                }
            }
        }
        self.present.difference(&counting).copied().collect()
    }

    /// Adds the object `sequence`.
    pub fn add(&mut self, sequence: u32, described: Described) {
        self.generation = self.generation.max(described.header.generation);
        self.counted_to = self.counted_to.max(described.counted);
        if sequence >= self.late_from {
            let built = BuiltBehind { owner: described.trailer.epoch, counted: described.counted };
            self.built.insert(sequence, built);
        }
        for row in &described.rows {
            let held = self.streams.entry(row.stream).or_default();
            let range = (row.base_offset, row.next_offset);
            if sequence >= self.late_from {
                held.late.entry(sequence).or_default().ranges.push(range);
            } else {
                held.ranges.add(range);
            }
            held.batches += u64::from(row.batches);
            held.bytes += row.bytes;
            held.extents += 1;
        }
        for (id, TableRow { start, next, producers }) in described.table {
            let held = self.streams.entry(id).or_default();
            held.start = held.start.max(Some(start));
            self.last_producer = self.last_producer.max(producers.iter().map(|(id, _)| id).max());
            if sequence >= self.late_from {
                held.late.entry(sequence).or_default().table = Some((next, producers));
                continue;
            }
            held.note_end(next, &producers);
        }
    }

    /// The highest producer that any object remembers.
    pub fn last_producer(&self) -> Option<i64> {
        self.last_producer
    }
}

impl Held {
    /// The highest start that an object knows.
    pub fn start(&self) -> Offset {
        self.start.unwrap_or_default()
    }

    /// The producers as of the end of the newest records, as far as the objects know them.
    pub fn producers(&self) -> Producers {
        self.producers.iter().map(|(id, (_, producer))| (*id, producer.clone())).collect()
    }

    /// Counts what one of the last objects holds.
    fn count(&mut self, late: Late) {
        late.ranges.into_iter().for_each(|range| self.ranges.add(range));
        if let Some((next, producers)) = late.table {
            self.note_end(next, &producers);
        }
    }

    /// Notes an object's end of the stream, and the producers that it knows as of this end.
    fn note_end(&mut self, next: Offset, producers: &Producers) {
        self.next = self.next.max(next);
        for (id, producer) in producers.iter() {
            let rank = |next: Offset, producer: &Producer| (next, producer.batches.len());
            let known = self.producers.get(&id);
            if known.is_none_or(|(known, of)| rank(next, producer) > rank(*known, of)) {
                self.producers.insert(id, (next, producer.clone()));
            }
        }
    }

    /// The stream: its newest records without a gap. Calls `lost` with offsets that objects had and that cannot be
    /// reached.
    pub fn resolve(
        &self,
        known: Option<KnownBounds>,
        mut lost: impl FnMut(Offset, Offset),
    ) -> RestoredStream {
        let told = self.start.max(known.map(|known| known.start)).unwrap_or_default();
        let end = known.map(|known| known.next).unwrap_or_default().max(self.next);
        let mut restored = RestoredStream {
            batches: self.batches,
            bytes: self.bytes,
            extents: self.extents,
            ..RestoredStream::default()
        };
        let last = self.ranges.last().filter(|(_, next)| *next > told);
        let Some((base, next)) = last else {
            // Nothing is left below the known end. The stream goes on there, so that no offset means two records.
            (restored.start, restored.next) = (end.max(told), end.max(told));
            if told < end {
                restored.missing.push((told, end));
            }
            return restored;
        };
        (restored.start, restored.next) = (told.max(base), next);
        restored.producers = self.producers.len();
        // What is left of a stream whose stored copies were given up has gaps.
        let given_up = known.is_some_and(|known| known.stored.is_none());
        if told < base {
            match self.ranges.gaps((told, base)).first() {
                // Older records are there, so retention has not deleted those between.
                Some((from, _)) if *from > told && !given_up => lost(told, base),
                _ => restored.missing.push((told, base)),
            }
        }
        if let Some(stored) = known.and_then(|known| known.stored).filter(|stored| *stored > next) {
            lost(next, stored);
        }
        if next < end {
            restored.missing.push((next, end));
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{STORED, SegmentHeader, Trailer};
    use crate::segment::footer;

    fn held(ranges: &[(i64, i64)], start: Option<i64>) -> Held {
        let ranges = ranges.iter().map(|(from, to)| (Offset(*from), Offset(*to))).collect();
        Held { ranges, start: start.map(Offset), ..Held::default() }
    }

    fn known(start: i64, next: i64, stored: Option<i64>) -> Option<KnownBounds> {
        Some(KnownBounds { start: Offset(start), next: Offset(next), stored: stored.map(Offset) })
    }

    /// Start, next, missing and lost offsets.
    type Found = (i64, i64, Vec<(i64, i64)>, Vec<(i64, i64)>);

    fn found(held: &Held, known: Option<KnownBounds>) -> Found {
        let plain = |ranges: Vec<(Offset, Offset)>| ranges.iter().map(|(from, to)| (from.0, to.0)).collect();
        let mut lost = Vec::new();
        let stream = held.resolve(known, |from, to| lost.push((from, to)));
        (stream.start.0, stream.next.0, plain(stream.missing), plain(lost))
    }

    #[test]
    fn a_stream_has_the_newest_records_without_a_gap() {
        let whole = held(&[(0, 50), (50, 80)], Some(0));
        assert_eq!(found(&whole, known(0, 80, Some(50))), (0, 80, vec![], vec![]));
        // The end was known to be higher, and the start moved since.
        let trimmed = held(&[(0, 50), (50, 80)], Some(60));
        assert_eq!(found(&trimmed, known(10, 95, Some(80))), (60, 80, vec![(80, 95)], vec![]));
        // Objects replace older ones.
        let merged = held(&[(0, 50), (50, 80), (80, 90), (0, 80)], Some(0));
        assert_eq!(found(&merged, known(0, 90, Some(80))), (0, 90, vec![], vec![]));
        // Retention took the oldest, or an object is missing: nobody knows.
        assert_eq!(found(&held(&[(50, 80)], None), known(0, 80, None)), (50, 80, vec![(0, 50)], vec![]));
        // In the middle there is no doubt.
        let hole = held(&[(0, 20), (50, 80)], Some(0));
        assert_eq!(found(&hole, known(0, 80, Some(70))), (50, 80, vec![], vec![(0, 50)]));
        assert_eq!(found(&hole, None), (50, 80, vec![], vec![(0, 50)]));
        // The stored copies were given up, and these are left.
        assert_eq!(found(&hole, known(0, 90, None)), (50, 80, vec![(0, 50), (80, 90)], vec![]));
        // At the end neither, if more was stored.
        let short = held(&[(0, 20)], Some(0));
        assert_eq!(found(&short, known(0, 80, Some(60))), (0, 20, vec![(20, 80)], vec![(20, 60)]));
    }

    #[test]
    fn an_object_that_was_put_without_those_before_it_does_not_count() {
        // Objects by number, the opening that built them, and the number below which they say that all count.
        let ends_of = |objects: &[(u32, u64, u32)]| {
            let mut holdings = Holdings::new(objects.iter().map(|(number, ..)| STORED | number));
            for (number, owner, counted) in objects {
                let (header, mut trailer) = bare();
                trailer.epoch = *owner;
                let from = i64::from(*number) * 10;
                let next = Offset(from + 10);
                let table = HashMap::from([(
                    StreamId(4),
                    TableRow { start: Offset(0), next, producers: remembered(i64::from(*number)) },
                )]);
                let described =
                    Described { header, trailer, rows: Vec::new(), table, counted: STORED | counted };
                holdings.add(STORED | number, described);
            }
            holdings.settle();
            let counted = holdings.streams[&StreamId(4)].producers.values().map(|(next, _)| next.0 / 10 - 1);
            let mut counted: Vec<i64> = counted.collect();
            counted.sort_unstable();
            counted
        };
        let ends = |sequences: &[u32], counted: u32| {
            let objects: Vec<_> = sequences.iter().map(|number| (*number, 1, counted)).collect();
            ends_of(&objects).last().map(|last| last * 10 + 10)
        };
        assert_eq!(ends(&[1, 2, 3], 1), Some(40));
        // The second was lost in a crash, and the third never counted.
        assert_eq!(ends(&[1, 3], 1), Some(20));
        // The second was deleted, after the third had counted.
        assert_eq!(ends(&[1, 3, 4], 4), Some(50));
        assert_eq!(ends(&[5], 3), None);
        // The first of two on their way was lost in a crash, and the next opening put another one in its place. The one
        // behind the second was built without it.
        let put = [(1, 1, 1), (2, 2, 2), (3, 1, 2), (4, 2, 3)];
        assert_eq!(ends_of(&put), [1, 2]);
        // They do not count either once the next object says that all before it do.
        assert_eq!(ends_of(&[&put[..], &[(5, 2, 5), (6, 2, 5)]].concat()), [1, 2, 5, 6]);
        // Both of an opening are there.
        assert_eq!(ends_of(&[(1, 1, 1), (2, 1, 2), (3, 1, 2), (4, 2, 4)]), [1, 2, 3, 4]);
    }

    #[test]
    fn a_stream_without_records_goes_on_at_its_known_end() {
        assert_eq!(found(&Held::default(), known(7, 40, None)), (40, 40, vec![(7, 40)], vec![]));
        assert_eq!(found(&Held::default(), known(40, 40, Some(40))), (40, 40, vec![], vec![]));
        assert_eq!(
            found(&held(&[(0, 30)], Some(0)), known(35, 40, Some(30))),
            (40, 40, vec![(35, 40)], vec![])
        );
        assert_eq!(found(&Held::default(), None), (0, 0, vec![], vec![]));
    }

    #[test]
    fn each_producer_is_that_of_the_highest_end() {
        let row = |next: i64, producer: i64| TableRow {
            start: Offset(0),
            next: Offset(next),
            producers: remembered(producer),
        };
        let mut holdings = Holdings { late_from: u32::MAX, ..Holdings::default() };
        let described = |row| {
            let (header, trailer) = bare();
            Described {
                header,
                trailer,
                rows: Vec::new(),
                table: HashMap::from([(StreamId(4), row)]),
                counted: 0,
            }
        };
        for (number, (next, producer)) in (1..).zip([(10, 100), (30, 300), (20, 200), (5, 300)]) {
            holdings.add(STORED | number, described(row(next, producer)));
        }
        let held = &holdings.streams[&StreamId(4)];
        let mut ends: Vec<_> = held.producers.iter().map(|(id, (next, _))| (*id, next.0)).collect();
        ends.sort_unstable();
        assert_eq!(ends, [(100, 10), (200, 20), (300, 30)]);
        assert_eq!(holdings.last_producer(), Some(300));
    }

    /// One producer without batches.
    fn remembered(id: i64) -> Producers {
        [(id, Producer { epoch: 0, last_append_ms: 5, coordinator_epoch: None, batches: [].into() })]
            .into_iter()
            .collect()
    }

    fn bare() -> (SegmentHeader, Trailer) {
        let header = SegmentHeader { sequence: STORED | 1, generation: 1, length: 0, log_id: 1 };
        (header, footer::build(STORED | 1, 1, 0, 4096, 4144, &[], vec![1, 0]).trailer)
    }
}
