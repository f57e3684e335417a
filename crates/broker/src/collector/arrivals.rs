//! When the records of partitions arrived, as far as scrapes tell: how old the oldest record is that a group has not committed.
//!
//! Each scrape notes the end of a partition. A record arrived between the last scrape that ended before it and the first that ended
//! behind it. Nothing is read from the log for that, which may have to ask the device or the object store.

use std::collections::{HashMap, VecDeque};

use model::StreamId;

/// Bound of the scrapes that are remembered for a partition. Beyond it every second one of the older half is forgotten, so that the
/// oldest stays and the newest are close to each other.
const NOTES_MAX: usize = 64;

/// The end of a partition at one time.
#[derive(Clone, Copy, Debug)]
struct Note {
    at_ms: i64,
    end: i64,
}

/// What was noted of each partition.
#[derive(Debug, Default)]
pub struct Arrivals {
    notes: HashMap<StreamId, VecDeque<Note>>,
}

impl Arrivals {
    /// Notes the ends of partitions, and forgets those that are not named. A partition whose leader did not say its end has none.
    pub fn note(&mut self, ends: &HashMap<StreamId, Option<i64>>, now_ms: i64) {
        self.notes.retain(|stream, _| ends.contains_key(stream));
        for (stream, end) in ends.iter().filter_map(|(stream, end)| Some((stream, (*end)?))) {
            let notes = self.notes.entry(*stream).or_default();
            let note = Note { at_ms: now_ms, end };
            let count = notes.len();
            // Where nothing has come since, only the first and the last time of that end matter.
            if count >= 2 && notes[count - 1].end == end && notes[count - 2].end == end {
                notes[count - 1] = note;
                continue;
            }
            notes.push_back(note);
            if notes.len() > NOTES_MAX {
                let mut at = 0;
                notes.retain(|_| {
                    at += 1;
                    at > NOTES_MAX / 2 || at % 2 == 1
                });
            }
        }
    }

    /// Milliseconds since the record at `offset` has arrived; 0 if there is none. It is at least so long for a record that arrived
    /// before the first scrape.
    pub fn age_ms(&self, stream: StreamId, offset: i64, now_ms: i64) -> i64 {
        let Some(notes) = self.notes.get(&stream) else { return 0 };
        let behind = notes.partition_point(|note| note.end <= offset);
        let Some(next) = notes.get(behind) else { return 0 };
        let Some(last) = behind.checked_sub(1).map(|at| notes[at]) else { return now_ms - next.at_ms };
        // As if the records between two scrapes had come evenly.
        let (records, millis) = (next.end - last.end, next.at_ms - last.at_ms);
        now_ms - last.at_ms - (offset - last.end).saturating_mul(millis) / records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(1);

    fn noted(ends: &[(i64, i64)]) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for (at_ms, end) in ends {
            arrivals.note(&HashMap::from([(STREAM, Some(*end))]), *at_ms);
        }
        arrivals
    }

    #[test]
    fn a_record_is_as_old_as_the_scrapes_around_it_say() {
        let arrivals = noted(&[(1000, 10), (2000, 10), (3000, 10), (4000, 20), (5000, 30)]);
        for (offset, age_ms) in
            [(30, 0), (99, 0), (10, 2000), (15, 1500), (20, 1000), (29, 100), (9, 4000), (0, 4000)]
        {
            assert_eq!(arrivals.age_ms(STREAM, offset, 5000), age_ms, "{offset}");
        }
        assert_eq!(arrivals.age_ms(StreamId(2), 0, 5000), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_reaches_back_to_the_first_scrape() {
        let scrapes: Vec<(i64, i64)> = (0..10_000).map(|n| (n * 1000, n * 10)).collect();
        let arrivals = noted(&scrapes);
        let (now_ms, notes) = (9_999_000, &arrivals.notes[&STREAM]);
        assert!(notes.len() <= NOTES_MAX, "{}", notes.len());
        for behind in [1, 5, 20, 1000, 5000, 9998] {
            let age_ms = arrivals.age_ms(STREAM, (9_999 - behind) * 10, now_ms);
            // Records came evenly, so that the estimate is exact wherever two scrapes are remembered.
            assert_eq!(age_ms, behind * 1000, "{behind}");
        }
    }

    #[test]
    fn a_partition_that_no_group_reads_any_more_is_forgotten() {
        let mut arrivals = noted(&[(1000, 10)]);
        arrivals.note(&HashMap::from([(STREAM, None)]), 1500);
        assert_eq!(arrivals.age_ms(STREAM, 0, 2000), 1000, "its leader is away");
        arrivals.note(&HashMap::new(), 2000);
        assert!(arrivals.notes.is_empty());
    }
}
