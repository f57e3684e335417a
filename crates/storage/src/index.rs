//! The batch index of one extent: the place of each batch of one stream in one segment.
//!
//! The index grows batch by batch while the segment is active. The footer stores it as it is, and a read of an old
//! extent loads it again. Batches are delta-coded in chunks of [`CHUNK_BATCHES`]. The head of a chunk is absolute, so a
//! search is a binary search over heads and a walk of one chunk.
//!
//! ```text
//! stored form  | chunk count u32 | coded length u32 | heads, 40 B each | coded batches |
//! head         | base offset i64 | base timestamp i64 | max timestamp i64 | position u32 | code at u32 | bytes before u32 | batches u32 |
//! coded batch  | gap varint | offset count varint | position delta varint | length varint | timestamp delta, zigzag varint |
//! ```
//!
//! Invariants: base offsets and positions rise strictly; `bytes before` is the sum of the lengths of earlier chunks.

use model::{Offset, Timestamp};

use crate::format::{Fields, index, length32, put_signed, put_varint, take_signed, take_varint};

/// Batches in a chunk: a compromise between 40 bytes a chunk in memory and the walk of half a chunk per search.
pub const CHUNK_BATCHES: u32 = 64;
const HEAD_BYTES: usize = 40;
/// Upper bound of the bytes that one more batch adds to the stored form, with the head of a new chunk.
pub const BATCH_INDEX_BYTES_MAX: usize = HEAD_BYTES + 5 + 5 + 5 + 5 + 10;

/// One batch of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchPlace {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offsets that the batch takes.
    pub offset_count: u32,
    /// Position of its entry header in the segment's file.
    pub position: u32,
    /// Bytes of the batch.
    pub length: u32,
    /// Largest timestamp in it.
    pub max_timestamp: Timestamp,
}

impl BatchPlace {
    /// The offset after the batch's last.
    pub fn next_offset(&self) -> Offset {
        self.base_offset + i64::from(self.offset_count)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChunkHead {
    base_offset: Offset,
    base_timestamp: i64,
    max_timestamp: i64,
    position: u32,
    code_at: u32,
    bytes_before: u32,
    batches: u32,
}

/// The batches of one stream in one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchIndex {
    heads: Vec<ChunkHead>,
    code: Vec<u8>,
    last: Option<BatchPlace>,
    bytes: u32,
    batches: u32,
}

impl BatchIndex {
    /// Appends a batch behind all others.
    pub fn push(&mut self, place: BatchPlace) {
        let previous = self.last;
        if let Some(last) = previous {
            assert!(place.base_offset >= last.next_offset(), "offsets rise within an extent");
            assert!(place.position > last.position, "positions rise within an extent");
        }
        let full = self.heads.last().is_none_or(|head| head.batches == CHUNK_BATCHES);
        if full {
            self.heads.push(ChunkHead {
                base_offset: place.base_offset,
                base_timestamp: place.max_timestamp.0,
                max_timestamp: place.max_timestamp.0,
                position: place.position,
                code_at: length32(self.code.len()),
                bytes_before: self.bytes,
                batches: 0,
            });
        }
        let head = self.heads.last_mut().expect("a chunk was just opened if there was none");
        let (from_offset, from_position, from_timestamp) = match previous {
            Some(last) if !full => (last.next_offset(), last.position, last.max_timestamp.0),
            _ => (head.base_offset, head.position, head.base_timestamp),
        };
        put_varint(&mut self.code, (place.base_offset - from_offset).cast_unsigned());
        put_varint(&mut self.code, u64::from(place.offset_count));
        put_varint(&mut self.code, u64::from(place.position - from_position));
        put_varint(&mut self.code, u64::from(place.length));
        put_signed(&mut self.code, place.max_timestamp.0.wrapping_sub(from_timestamp));
        head.batches += 1;
        head.max_timestamp = head.max_timestamp.max(place.max_timestamp.0);
        self.last = Some(place);
        self.bytes += place.length;
        self.batches += 1;
    }

    /// Whether no batch was pushed.
    pub fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// The number of batches.
    pub fn batches(&self) -> u32 {
        self.batches
    }

    /// Bytes of all batches.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Bytes of memory that the index holds.
    pub fn memory_bytes(&self) -> usize {
        self.heads.capacity() * HEAD_BYTES + self.code.capacity() + size_of::<Self>()
    }

    /// Offset of the first record.
    pub fn base_offset(&self) -> Option<Offset> {
        self.heads.first().map(|head| head.base_offset)
    }

    /// The offset after the last record.
    pub fn next_offset(&self) -> Option<Offset> {
        self.last.map(|last| last.next_offset())
    }

    /// Largest timestamp of all batches.
    pub fn max_timestamp(&self) -> Option<Timestamp> {
        self.heads.iter().map(|head| Timestamp(head.max_timestamp)).max()
    }

    /// All batches from the one with `offset` on, or from the first one behind `offset`.
    pub fn from_offset(&self, offset: Offset) -> impl Iterator<Item = BatchPlace> + '_ {
        let chunk = self.heads.partition_point(|head| head.base_offset <= offset).saturating_sub(1);
        self.walk(chunk).skip_while(move |place| place.next_offset() <= offset)
    }

    /// The first batch from `offset` on whose max timestamp is at least `timestamp`.
    pub fn first_at_or_after(&self, offset: Offset, timestamp: Timestamp) -> Option<BatchPlace> {
        let from = self.heads.partition_point(|head| head.base_offset <= offset).saturating_sub(1);
        let chunk =
            from + self.heads.get(from..)?.iter().position(|head| head.max_timestamp >= timestamp.0)?;
        self.walk(chunk).find(|place| place.next_offset() > offset && place.max_timestamp >= timestamp)
    }

    /// The first of the batches from `offset` on that has the largest max timestamp of all of them.
    pub fn with_max_timestamp(&self, offset: Offset) -> Option<BatchPlace> {
        self.with_max_timestamp_until(offset, Offset(i64::MAX))
    }

    /// Like [`BatchIndex::with_max_timestamp`], for the batches that end at or below `until`.
    pub fn with_max_timestamp_until(&self, offset: Offset, until: Offset) -> Option<BatchPlace> {
        let mut best: Option<BatchPlace> = None;
        for place in self.from_offset(offset).take_while(|place| place.next_offset() <= until) {
            if best.is_none_or(|best| place.max_timestamp > best.max_timestamp) {
                best = Some(place);
            }
        }
        best
    }

    /// The place at which retention cuts an active extent: the last batch for which `may_go` allows to delete all
    /// batches before it. `may_go` gets the bytes and the largest timestamp of these earlier batches. After a "no" it
    /// must not say "yes" again.
    pub fn last_cut(&self, may_go: impl Fn(u32, Timestamp) -> bool) -> Option<Offset> {
        let (mut chunk, mut max_before, mut max) = (0, i64::MIN, i64::MIN);
        for (number, head) in self.heads.iter().enumerate() {
            if number > 0 && !may_go(head.bytes_before, Timestamp(max)) {
                break;
            }
            (chunk, max_before) = (number, max);
            max = max.max(head.max_timestamp);
        }
        let head = self.heads.get(chunk)?;
        let (mut bytes, mut max, mut found) = (head.bytes_before, max_before, head.base_offset);
        for (number, place) in self.walk(chunk).take(index(head.batches)).enumerate() {
            if number > 0 && !may_go(bytes, Timestamp(max)) {
                break;
            }
            found = place.base_offset;
            bytes += place.length;
            max = max.max(place.max_timestamp.0);
        }
        Some(found)
    }

    fn walk(&self, chunk: usize) -> impl Iterator<Item = BatchPlace> + '_ {
        self.heads.get(chunk..).unwrap_or_default().iter().flat_map(|head| {
            let mut code = self.code.get(index(head.code_at)..).unwrap_or_default();
            let (mut offset, mut position, mut timestamp) =
                (head.base_offset, head.position, head.base_timestamp);
            (0..head.batches).map_while(move |_| {
                let gap = i64::try_from(take_varint(&mut code)?).ok()?;
                let offset_count = u32::try_from(take_varint(&mut code)?).ok()?;
                position = position.checked_add(u32::try_from(take_varint(&mut code)?).ok()?)?;
                let length = u32::try_from(take_varint(&mut code)?).ok()?;
                timestamp = timestamp.wrapping_add(take_signed(&mut code)?);
                let base_offset = Offset(offset.0.checked_add(gap)?);
                offset = Offset(base_offset.0.checked_add(i64::from(offset_count))?);
                Some(BatchPlace {
                    base_offset,
                    offset_count,
                    position,
                    length,
                    max_timestamp: Timestamp(timestamp),
                })
            })
        })
    }

    /// Bytes of the stored form.
    pub fn stored_bytes(&self) -> usize {
        8 + self.heads.len() * HEAD_BYTES + self.code.len()
    }

    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(length32(self.heads.len()).to_le_bytes());
        out.extend(length32(self.code.len()).to_le_bytes());
        for head in &self.heads {
            out.extend(head.base_offset.0.to_le_bytes());
            out.extend(head.base_timestamp.to_le_bytes());
            out.extend(head.max_timestamp.to_le_bytes());
            for field in [head.position, head.code_at, head.bytes_before, head.batches] {
                out.extend(field.to_le_bytes());
            }
        }
        out.extend(&self.code);
    }

    /// Reads the stored form, whose CRC was checked. Returns `None` if it contradicts itself.
    pub fn decode(bytes: &[u8]) -> Option<BatchIndex> {
        let mut fields = Fields(bytes);
        fields.has(8)?;
        let (chunks, coded) = (index(fields.u32()), index(fields.u32()));
        fields.has(chunks.checked_mul(HEAD_BYTES)?.checked_add(coded)?)?;
        let mut heads = Vec::with_capacity(chunks);
        for _ in 0..chunks {
            heads.push(ChunkHead {
                base_offset: Offset(fields.i64()),
                base_timestamp: fields.i64(),
                max_timestamp: fields.i64(),
                position: fields.u32(),
                code_at: fields.u32(),
                bytes_before: fields.u32(),
                batches: fields.u32(),
            });
        }
        let code = fields.0[..coded].to_vec();
        let batches = heads.iter().try_fold(0u32, |sum, head| sum.checked_add(head.batches))?;
        let mut decoded = BatchIndex { heads, code, last: None, bytes: 0, batches };
        let mut walked = 0;
        if let Some(head) = decoded.heads.last() {
            let (mut bytes, mut last) = (head.bytes_before, None);
            for place in decoded.walk(decoded.heads.len() - 1) {
                bytes = bytes.checked_add(place.length)?;
                last = Some(place);
                walked += 1;
            }
            if walked != head.batches {
                return None;
            }
            (decoded.last, decoded.bytes) = (last, bytes);
        }
        Some(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(batches: u32, seed: u64) -> (BatchIndex, Vec<BatchPlace>) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut index, mut all) = (BatchIndex::default(), Vec::new());
        let (mut offset, mut position) = (Offset(rng.i64(0..1000)), 4096 + 48);
        for _ in 0..batches {
            let place = BatchPlace {
                base_offset: offset + rng.i64(0..3),
                offset_count: rng.u32(1..50),
                position,
                length: rng.u32(61..3000),
                max_timestamp: Timestamp(1_700_000_000_000 + rng.i64(-500..500)),
            };
            offset = place.next_offset();
            position += place.length + 40 + rng.u32(0..10_000);
            index.push(place);
            all.push(place);
        }
        (index, all)
    }

    #[test]
    fn every_batch_is_found_by_every_offset_and_survives_the_stored_form() {
        for seed in 0..20 {
            let (index, all) = sample(300, seed);
            let mut stored = Vec::new();
            index.encode(&mut stored);
            assert_eq!(stored.len(), index.stored_bytes());
            let loaded = BatchIndex::decode(&stored).unwrap();
            assert_eq!(
                (loaded.batches(), loaded.bytes(), loaded.next_offset()),
                (300, index.bytes(), index.next_offset())
            );
            for (n, place) in all.iter().enumerate() {
                for offset in [place.base_offset, place.next_offset() + -1] {
                    assert_eq!(
                        loaded.from_offset(offset).collect::<Vec<_>>(),
                        all[n..],
                        "seed {seed} batch {n}"
                    );
                }
            }
            for target in (1_699_999_999_400..1_700_000_000_600).step_by(97) {
                let want = all[40..].iter().find(|place| place.max_timestamp.0 >= target).copied();
                assert_eq!(index.first_at_or_after(all[40].base_offset, Timestamp(target)), want);
            }
            let max = all.iter().map(|place| place.max_timestamp).max();
            assert_eq!(index.max_timestamp(), max);
            assert_eq!(index.with_max_timestamp(Offset(0)).map(|place| place.max_timestamp), max);
        }
    }

    #[test]
    fn damaged_stored_forms_are_refused_or_harmless() {
        let (index, _) = sample(200, 1);
        let mut stored = Vec::new();
        index.encode(&mut stored);
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..2000 {
            let mut bad = stored.clone();
            let at = rng.usize(0..bad.len());
            bad[at] = rng.u8(..);
            bad.truncate(rng.usize(0..=bad.len()));
            if let Some(index) = BatchIndex::decode(&bad) {
                index.from_offset(Offset(rng.i64(..))).count();
            }
        }
    }
}
