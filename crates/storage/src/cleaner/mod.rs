//! The cleaner: frees segments with little live data by copying that data into a new segment. Otherwise long-lived
//! records would hold the space of the other records of their segments.
//!
//! A segment is cleaned only after it has stopped dying by itself; the segments of one retention die within a moment.
//! The cleaner takes the segments with the least live data first, writes their live data into one new segment sorted by
//! stream ([`rewrite`]), and leaves the emptied segments to the preparer, which recycles them. It rests while appends
//! come in. On a full disk it does not rest: then its copies make room, and the preparer has left some space for them.

mod compact;
mod manifests;
mod outcome;
mod rewrite;
mod source;
mod stored;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use model::{Offset, StreamId};

pub use self::compact::{CompactError, Compaction};
pub(crate) use self::manifests::Manifests;
pub use self::outcome::{RewriteError, RewriteReport};
use self::rewrite::Output;
pub use self::rewrite::{Rewriter, Rewritten};
use self::source::RangePlan;
pub(crate) use self::source::{Source, load, offset_count};
pub(crate) use self::stored::Merged;
use crate::format::CLEANED;
use crate::pacer::Pacer;
use crate::segment::{Segment, is_stored, is_written};
use crate::shared::Shared;
use crate::stream::Stream;

/// A segment is worth cleaning when at most this share of it is live: at least one byte is freed for each byte written.
const LIVE_MAX: f64 = 0.5;
/// On a full disk, nearly every segment is worth cleaning.
const LIVE_MAX_FULL: f64 = 0.9;
/// Freeing less than this part of an ordinary segment is not worth it (1 / GAIN); the next constant is the bound on a
/// full disk.
const GAIN: u64 = 8;
const GAIN_FULL: u64 = 64;
/// If more than this part (1 / DYING) of a segment died within the cleaner's patience, the segment goes on dying. Its
/// rest is not worth copying.
const DYING: u64 = 16;
/// Cleaned segments smaller than this part (1 / SMALL) of an ordinary segment are merged once there are so many of
/// them.
const SMALL: u64 = 8;
const SMALL_MAX: usize = 8;
/// How often the cleaner looks for work.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The outcome of one turn of the cleaner.
#[derive(Debug)]
pub(crate) enum Turn {
    /// There was no work worth doing.
    Idle,
    /// A segment was written, and others were freed.
    Cleaned(#[allow(dead_code, reason = "read by tests")] RewriteReport),
    /// The turn failed and changed nothing.
    Failed(RewriteError),
}

pub(crate) struct Cleaner {
    shared: Arc<Shared>,
    pacer: Pacer,
    watched: Watched,
}

/// For each segment: the time since which little of it died, in milliseconds since the Unix epoch, and its live bytes
/// then.
#[derive(Debug, Default)]
struct Watched(HashMap<u32, (i64, u64)>);

impl Watched {
    /// Keeps the candidates of which little died for `patience_ms`.
    fn settled(&mut self, candidates: Vec<Candidate>, now_ms: i64, patience_ms: i64) -> Vec<Candidate> {
        let before = std::mem::take(&mut self.0);
        let settled = |candidate: &Candidate| {
            let (since, live) =
                before.get(&candidate.sequence).copied().unwrap_or((now_ms, candidate.live_bytes));
            let dying = live.saturating_sub(candidate.live_bytes) > candidate.length / DYING;
            let watched =
                if dying || since > now_ms { (now_ms, candidate.live_bytes) } else { (since, live) };
            self.0.insert(candidate.sequence, watched);
            now_ms - watched.0 >= patience_ms
        };
        candidates.into_iter().filter(settled).collect()
    }
}

/// The properties of a segment on which the choice depends.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    sequence: u32,
    length: u64,
    live_bytes: u64,
}

impl Cleaner {
    pub fn new(shared: Arc<Shared>, paced: bool) -> Cleaner {
        let pacer = Pacer::new(shared.clone(), paced);
        Cleaner { shared, pacer, watched: Watched::default() }
    }

    /// Cleans at most as much live data as fills one segment.
    pub fn turn(&mut self) -> Turn {
        let shared = self.shared.clone();
        // A compaction may hold the lock for long, and the cleaner's thread has other work too.
        let Some(mut rewriting) = shared.rewriting.try_lock_for(LOOK_EVERY) else { return Turn::Idle };
        let room = match shared.copy_room() {
            Ok(room) => room,
            Err(error) => return Turn::Failed(error),
        };
        let mut victims = self.victims(room);
        let (plans, estimate) = loop {
            if victims.is_empty() {
                return Turn::Idle;
            }
            let plans = match self.plan(&victims) {
                Ok(plans) => plans,
                Err(error) => return Turn::Failed(error),
            };
            let estimate = plans.iter().flat_map(|plan| &plan.sources).map(Source::estimate).sum();
            if estimate <= room {
                break (plans, estimate);
            }
            // The copies of small batches take more space than the batches.
            victims.pop();
        };
        if plans.is_empty() {
            return Turn::Idle;
        }
        let copied =
            Output::create(&shared, &mut rewriting, &mut self.pacer, estimate).and_then(|mut output| {
                for plan in &plans {
                    output.copy(plan, None)?;
                }
                output.finish()
            });
        match copied {
            Ok(report) => {
                tracing::debug!(
                    segments = victims.len(),
                    bytes = report.written_bytes,
                    "segments were cleaned"
                );
                Turn::Cleaned(report)
            }
            Err(error) => Turn::Failed(error),
        }
    }

    /// The segments to clean next.
    fn victims(&mut self, room: u64) -> Vec<Arc<Segment>> {
        let segments = self.shared.segments.all();
        // The newest sealed segment stays for its stream table, however little of it is live.
        let newest =
            segments.iter().rev().find(|s| is_written(s.sequence) && s.is_sealed()).map(|s| s.sequence);
        let now = self.shared.clock.nanos();
        let open = |segment: &&Arc<Segment>| {
            segment.is_sealed()
                && segment.live() > 0
                && Some(segment.sequence) != newest
                && !is_stored(segment.sequence)
                && !segment.is_avoided(now)
        };
        let candidates: Vec<Candidate> = segments
            .iter()
            .filter(open)
            .map(|segment| Candidate {
                sequence: segment.sequence,
                length: u64::from(segment.length),
                live_bytes: segment.live_bytes(),
            })
            .collect();
        let full = self.shared.queue.room.out_of_space();
        let (now_ms, patience_ms) = (self.shared.clock.now_ms(), self.shared.options.cleaner_patience_ms);
        let candidates =
            if full { candidates } else { self.watched.settled(candidates, now_ms, patience_ms) };
        let chosen = choose(&candidates, self.shared.options.segment_bytes, room, full);
        chosen.into_iter().filter_map(|sequence| self.shared.segments.find(sequence)).collect()
    }

    /// The live data of `victims`, as ranges of streams.
    fn plan(&self, victims: &[Arc<Segment>]) -> Result<Vec<RangePlan>, RewriteError> {
        let mut sources: BTreeMap<(StreamId, Offset), (Arc<Stream>, Source)> = BTreeMap::new();
        for victim in victims {
            let mut found = false;
            for (stream, source) in self.sources(victim)? {
                found = true;
                sources.insert((stream.id(), source.base_offset), (stream, source));
            }
            if !found {
                // The segment counts live bytes but has no live batches. Another try would gain nothing.
                victim.avoid_for_good();
            }
        }
        let mut plans: Vec<RangePlan> = Vec::new();
        for (stream, source) in sources.into_values() {
            match plans.last_mut() {
                Some(plan) if plan.continues(&stream, &source) => plan.sources.push(source),
                _ => plans.push(RangePlan { stream, flags: source.flags, sources: vec![source] }),
            }
        }
        Ok(plans)
    }

    /// The live extents of one segment.
    fn sources(&self, victim: &Arc<Segment>) -> Result<Vec<(Arc<Stream>, Source)>, RewriteError> {
        if victim.footer().is_none() {
            return Ok(Vec::new());
        }
        let rows = victim.load_directory().inspect_err(|_| self.shared.avoid(victim))?;
        let Some(rows) = rows else {
            victim.avoid_for_good();
            return Err(RewriteError::Rewriter(format!("the directory of {} is damaged", victim.name())));
        };
        let mut sources = Vec::new();
        for (row, at) in rows.iter().zip(0..) {
            let Some(stream) = self.shared.find_stream(row.stream) else { continue };
            let (extents, start) = {
                let state = stream.lock();
                let here = |(_, extent): &(usize, &crate::stream::SealedExtent)| {
                    (extent.segment, extent.row) == (victim.sequence, at)
                };
                let extents: Vec<(Offset, Offset)> = state
                    .sealed
                    .iter()
                    .enumerate()
                    .filter(here)
                    .map(|(n, extent)| (extent.base_offset, state.sealed_end(n)))
                    .collect();
                (extents, state.start)
            };
            for (base_offset, end) in extents {
                let all = self.shared.places(victim, at, base_offset, end)?;
                let bytes = all.iter().map(|place| place.length).sum();
                let places: Vec<_> = all.into_iter().filter(|place| place.next_offset() > start).collect();
                if places.is_empty() {
                    continue;
                }
                let (segment, whole, flags) = (victim.clone(), Some(at), row.flags);
                sources.push((
                    stream.clone(),
                    Source { base_offset, end, segment, bytes, places, whole, flags },
                ));
            }
        }
        Ok(sources)
    }
}

impl RangePlan {
    /// Whether `source` follows the last extent of this range without a gap.
    fn continues(&self, stream: &Arc<Stream>, source: &Source) -> bool {
        let end = self.sources.last().map(|last| last.end);
        Arc::ptr_eq(&self.stream, stream) && end == Some(source.base_offset) && self.flags == source.flags
    }
}

/// The sequence numbers of the segments to clean next. Together they have at most as much live data as one segment
/// holds, and as there is `room` for.
fn choose(candidates: &[Candidate], segment_bytes: u64, room: u64, full: bool) -> Vec<u32> {
    let live_max = if full { LIVE_MAX_FULL } else { LIVE_MAX };
    let part = |candidate: &Candidate| candidate.live_bytes as f64 / candidate.length as f64;
    let mut worth: Vec<Candidate> = candidates.iter().copied().filter(|c| part(c) <= live_max).collect();
    worth.sort_by(|a, b| part(a).total_cmp(&part(b)));
    if worth.is_empty() {
        worth = candidates.iter().filter(|candidate| small(candidate, segment_bytes)).copied().collect();
    }
    worth.retain(|candidate| candidate.live_bytes <= room);
    let chosen = up_to_one_segment(&worth, (segment_bytes * 7 / 8).min(room));
    // A nearly empty segment is mostly header and footer, and so is its copy.
    let gain: u64 = chosen.iter().map(|c| c.length.saturating_sub(c.live_bytes)).sum();
    let needed = segment_bytes / if full { GAIN_FULL } else { GAIN };
    let small = chosen.iter().filter(|c| small(c, segment_bytes)).count() >= SMALL_MAX;
    if gain < needed && !small {
        return Vec::new();
    }
    chosen.iter().map(|candidate| candidate.sequence).collect()
}

/// Whether the candidate is a cleaned segment that should be merged with others.
fn small(candidate: &Candidate, segment_bytes: u64) -> bool {
    candidate.sequence & CLEANED != 0 && candidate.length < segment_bytes / SMALL
}

/// As many of `worth`, from the first on, as have `bytes_max` together; always at least the first.
fn up_to_one_segment(worth: &[Candidate], bytes_max: u64) -> &[Candidate] {
    let mut live = 0;
    let fits = |candidate: &&Candidate| {
        live += candidate.live_bytes;
        live <= bytes_max
    };
    let count = worth.iter().take_while(fits).count().max(1);
    &worth[..count.min(worth.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(sequence: u32, length: u64, live_bytes: u64) -> Candidate {
        Candidate { sequence, length, live_bytes }
    }

    #[test]
    fn the_emptiest_segments_are_chosen_until_one_is_filled() {
        let all =
            [candidate(1, 100, 60), candidate(2, 100, 40), candidate(3, 100, 10), candidate(4, 100, 30)];
        assert_eq!(choose(&all, 100, 1000, false), [3, 4, 2]);
        assert_eq!(choose(&all[..1], 100, 1000, false), [0u32; 0]);
        assert_eq!(choose(&all[..1], 100, 1000, true), [1]);
        assert_eq!(choose(&[candidate(1, 100, 95)], 100, 1000, true), [0u32; 0]);
        assert_eq!(choose(&[candidate(1, 10, 1)], 100, 1000, false), [0u32; 0]);
        assert_eq!(choose(&all, 100, 35, false), [3]);
        assert_eq!(choose(&all, 100, 9, true), [0u32; 0]);
    }

    #[test]
    fn a_segment_that_goes_on_dying_is_left_to_die() {
        let mut watched = Watched::default();
        let mut look = |live_bytes, now_ms| {
            !watched.settled(vec![candidate(1, 160, live_bytes)], now_ms, 100).is_empty()
        };
        assert!(!look(80, 1000));
        assert!(!look(60, 1050), "20 of 160 died");
        assert!(!look(55, 1120), "since 1050");
        assert!(look(52, 1150));
        assert!(!look(40, 1160) && !look(40, 1250) && look(40, 1260));
        assert!(!look(40, 100), "a clock that was set back");
    }

    #[test]
    fn small_cleaned_segments_are_put_together() {
        let small: Vec<Candidate> = (0..8).map(|n| candidate(CLEANED | n, 10, 9)).collect();
        assert_eq!(choose(&small, 100, 1000, false).len(), 8);
        assert_eq!(choose(&small[..7], 100, 1000, false), [0u32; 0]);
        let written: Vec<Candidate> = (0..8).map(|n| candidate(n, 10, 9)).collect();
        assert_eq!(choose(&written, 100, 1000, false), [0u32; 0]);
    }
}
