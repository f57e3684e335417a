//! Decides which of the remaining copies of each record of a stream to read, and which records have no copy.
//!
//! The rule is that of opening (`recovery/overlay.rs`), with one addition: an older copy replaces a damaged one. A
//! whole copy hides older copies also where it has no batch, because compaction removed the batches there.

use std::cmp::Reverse;

use model::{Offset, StreamId};

use super::survey::{Damage, Extent, Survey};
use crate::format::Lsn;
use crate::index::BatchPlace;
use crate::ranges::OffsetRanges;
use crate::segment::{file_name, is_cleaned, sequence_of};

/// A part of an extent to read.
pub(crate) struct Part {
    /// The number of the extent in the stream.
    pub extent: usize,
    pub from: Offset,
    pub to: Offset,
}

impl Part {
    /// Its batches.
    pub fn places<'a>(&self, extents: &'a [Extent]) -> impl Iterator<Item = BatchPlace> + 'a {
        let (from, to) = (self.from, self.to);
        let places = extents[self.extent].places.from_offset(from);
        places
            .skip_while(move |place| place.base_offset < from)
            .take_while(move |place| place.base_offset < to)
    }

    /// Bytes of these batches.
    pub fn bytes(&self, extents: &[Extent]) -> u64 {
        self.places(extents).map(|place| u64::from(place.length)).sum()
    }
}

/// Records without a copy.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub stream: StreamId,
    pub from: Offset,
    pub to: Offset,
    pub batches: Option<u64>,
    /// The damage that destroyed them.
    pub damage: Option<usize>,
    /// The file that had them, if it is missing.
    pub missing: Option<String>,
}

/// The remaining records of a stream.
pub(crate) struct Resolved {
    /// The parts, in the order of their offsets.
    pub parts: Vec<Part>,
    /// Records that are in the object store alone.
    pub stored: Vec<(Offset, Offset)>,
    pub lost: Vec<Lost>,
}

/// Decides for every offset of a stream.
pub(crate) fn resolve(survey: &Survey, id: StreamId) -> Resolved {
    let known = &survey.streams[&id];
    let extents = survey.extents.get(&id).map_or(&[][..], Vec::as_slice);
    let sequence = |extent: &Extent| survey.files.segments[extent.segment].segment.sequence;
    let mut order: Vec<usize> = (0..extents.len()).filter(|at| extents[*at].end > known.start).collect();
    // Later segments of the cleaner have higher numbers and higher generations.
    order.sort_by_key(|at| Reverse(Some(sequence(&extents[*at])).filter(|sequence| is_cleaned(*sequence))));
    let (mut parts, mut taken) = (Vec::new(), OffsetRanges::default());
    for at in order {
        let extent = &extents[at];
        let holes: OffsetRanges = extent.holes.iter().map(|hole| (hole.from, hole.to)).collect();
        for whole in holes.gaps((extent.base, extent.end)) {
            parts.extend(taken.gaps(whole).into_iter().map(|(from, to)| Part { extent: at, from, to }));
            taken.add(whole);
        }
    }
    parts.sort_unstable_by_key(|part| part.from);
    let mut lost = Vec::new();
    let in_store = survey.stored.get(&id);
    let nowhere = |gap| in_store.map_or_else(|| vec![gap], |stored| stored.gaps(gap));
    let gaps: Vec<(Offset, Offset)> =
        taken.gaps((known.start, known.next)).into_iter().flat_map(nowhere).collect();
    let local_or_lost: OffsetRanges =
        parts.iter().map(|part| (part.from, part.to)).chain(gaps.iter().copied()).collect();
    let stored = local_or_lost.gaps((known.start, known.next));
    for (from, to) in gaps {
        let mut explained = OffsetRanges::default();
        for (damage, whole, batches) in clues(survey, id, extents) {
            let inside = (whole.0.max(from), whole.1.min(to));
            for (from, to) in explained.gaps(inside) {
                let batches = batches.filter(|_| (from, to) == whole);
                lost.push(Lost { stream: id, from, to, batches, damage: Some(damage), missing: None });
                explained.add((from, to));
            }
        }
        for (from, to) in explained.gaps((from, to)) {
            let (damage, missing) = cause(survey, extents, from, to);
            lost.push(Lost { stream: id, from, to, batches: None, damage, missing });
        }
    }
    lost.sort_unstable_by_key(|lost| lost.from);
    Resolved { parts, stored, lost }
}

/// Which damage destroyed which offsets of a stream, and in how many batches; the most certain clues first.
fn clues(survey: &Survey, id: StreamId, extents: &[Extent]) -> Vec<(usize, (Offset, Offset), Option<u64>)> {
    let holes = extents.iter().flat_map(|extent| &extent.holes);
    let holes = holes.filter_map(|hole| Some((hole.damage?, (hole.from, hole.to), hole.batches)));
    let hits = survey.damages.iter().enumerate().flat_map(|(at, damage)| {
        let hits = damage.hits.iter().filter(|hit| hit.stream == id);
        hits.map(move |hit| (at, (hit.from, hit.to), hit.batches))
    });
    let mut clues: Vec<_> = holes.chain(hits).collect();
    clues.sort_by_key(|(.., batches)| batches.is_none());
    clues
}

/// The damage or missing file that may have taken `from..to`, according to their place in the log.
fn cause(survey: &Survey, extents: &[Extent], from: Offset, to: Offset) -> (Option<usize>, Option<String>) {
    let segments = &survey.files.segments;
    let written = || extents.iter().filter(|extent| !segments[extent.segment].cleaned());
    let lsn = |extent: &Extent, place: BatchPlace| {
        Lsn::new(segments[extent.segment].segment.sequence, place.position)
    };
    let before = written().rfind(|extent| extent.base < from).and_then(|extent| {
        let all = extent.places.from_offset(Offset(i64::MIN));
        Some(lsn(extent, all.take_while(|place| place.next_offset() <= from).last()?))
    });
    let behind = written().find_map(|extent| Some(lsn(extent, extent.places.from_offset(to).next()?)));
    let before = before.unwrap_or_default();
    let behind = behind.unwrap_or(Lsn(u64::MAX));
    let between = |damage: &Damage| {
        let segment = &segments[damage.segment];
        let at = Lsn::new(segment.segment.sequence, damage.from);
        !segment.cleaned() && before < at && at < behind && !damage.explained
    };
    if let Some(at) = survey.damages.iter().position(between) {
        return (Some(at), None);
    }
    let cleaned = |damage: &Damage| segments[damage.segment].cleaned() && !damage.explained;
    if let Some(at) = survey.damages.iter().position(cleaned) {
        // The records may have been moved.
        return (Some(at), None);
    }
    let may = |name: &&String| {
        let sequence = sequence_of(name).unwrap_or_default();
        is_cleaned(sequence) || (before.sequence()..=behind.sequence()).contains(&sequence)
    };
    if let Some(name) = survey.files.unread.iter().chain(&survey.missing).find(may) {
        return (None, Some(name.clone()));
    }
    // Dead segments leave gaps too, so a file is named only if there is no other clue.
    let there = |sequence: &u32| segments.iter().any(|remains| remains.segment.sequence == *sequence);
    let last = behind.sequence().min(survey.end.sequence());
    let mut gone = (before.sequence() + 1..last).filter(|sequence| !there(sequence));
    let only = gone.next().filter(|_| before != Lsn::default() && gone.next().is_none());
    (None, only.map(file_name))
}
