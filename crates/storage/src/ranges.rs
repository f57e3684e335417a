//! Sets of offsets.

use std::collections::BTreeMap;

use model::Offset;

/// Offsets of one stream, as ranges that neither overlap nor touch. Maps the first offset of each range to the offset
/// behind its last.
#[derive(Clone, Debug, Default)]
pub(crate) struct OffsetRanges(BTreeMap<Offset, Offset>);

impl OffsetRanges {
    /// Adds the offsets of `from..to`.
    pub fn add(&mut self, (mut from, mut to): (Offset, Offset)) {
        if from >= to {
            return;
        }
        // Usually the new range continues the last one, for example for each batch that recovery scans.
        if let Some(mut last) = self.0.last_entry()
            && *last.key() <= from
            && *last.get() >= from
        {
            *last.get_mut() = to.max(*last.get());
            return;
        }
        while let Some((base, end)) = self.0.range(..=to).next_back().map(|(base, end)| (*base, *end))
            && end >= from
        {
            self.0.remove(&base);
            (from, to) = (from.min(base), to.max(end));
        }
        self.0.insert(from, to);
    }

    /// The offsets of `from..to` that are not in the set, as ranges in order.
    pub fn gaps(&self, (from, to): (Offset, Offset)) -> Vec<(Offset, Offset)> {
        if from >= to {
            return Vec::new();
        }
        let mut at = self.0.range(..=from).next_back().map_or(from, |(_, end)| from.max(*end));
        let mut gaps = Vec::new();
        for (base, end) in self.0.range(from..to) {
            if *base > at {
                gaps.push((at, *base));
            }
            at = at.max(*end);
        }
        if at < to {
            gaps.push((at, to));
        }
        gaps
    }

    /// The last of the ranges, if any.
    pub fn last(&self) -> Option<(Offset, Offset)> {
        self.0.last_key_value().map(|(from, to)| (*from, *to))
    }

    /// The offset behind the last offset of the set, if any.
    pub fn end(&self) -> Option<Offset> {
        self.0.last_key_value().map(|(_, end)| *end)
    }
}

impl FromIterator<(Offset, Offset)> for OffsetRanges {
    fn from_iter<T: IntoIterator<Item = (Offset, Offset)>>(ranges: T) -> OffsetRanges {
        let mut set = OffsetRanges::default();
        ranges.into_iter().for_each(|range| set.add(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_was_not_added() {
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut range = |length_max| {
                let from = rng.i64(0..60);
                (Offset(from), Offset(from + rng.i64(0..length_max)))
            };
            let asked = range(30);
            let added: Vec<_> = (0..seed % 20).map(|_| range(9)).collect();
            let set: OffsetRanges = added.iter().copied().collect();
            let inside = |ranges: &[(Offset, Offset)], offset| {
                ranges.iter().filter(|(from, to)| (*from..*to).contains(&offset)).count()
            };
            let gaps = set.gaps(asked);
            for offset in (0..100).map(Offset) {
                let wanted = inside(&[asked], offset) == 1 && inside(&added, offset) == 0;
                assert_eq!(inside(&gaps, offset), usize::from(wanted), "seed {seed}, {offset}");
            }
            let ranges: Vec<_> = set.0.into_iter().collect();
            for pair in [gaps, ranges].iter().flat_map(|ranges| ranges.windows(2)) {
                assert!(pair[0].1 < pair[1].0, "seed {seed}: ranges that touch are one");
            }
        }
    }
}
