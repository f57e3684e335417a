//! Manifests: the local files of many objects in one object. Whoever makes a local log of objects reads one manifest instead of
//! the headers and footers of hundreds of objects.
//!
//! A manifest is never needed. It repeats what the objects say of themselves, which does not change as long as they are
//! there: an object is named by a manifest only once it counts, and no key is used for another object after that. So a
//! manifest may name objects that are no more, and lack others; the list of the objects says which there are.
//!
//! ```text
//! manifests/LOG/LEVEL-FIRST-EPOCH-PART    of the objects FIRST and behind, as many as the level has
//! ```

use std::ops::Range;

use bytes::Bytes;

use crate::format::{Fields, STORED, length32};

/// The numbers of a stretch of each level.
const STRETCHES: [u32; LEVELS as usize] = if cfg!(test) { [4, 16] } else { [64, 4096] };
const LEVELS: u8 = 2;
const MAGIC: [u8; 8] = *b"MSmanif1";
/// Magic, log id and count.
const HEAD_BYTES: usize = 8 + 16 + 4;
/// Number, epoch, length of the object, length of the local file.
const ENTRY_BYTES: usize = 4 + 4 + 8 + 4;
const CRC_BYTES: usize = 4;

/// Objects whose numbers follow each other: level 0 has short stretches, level 1 long ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stretch {
    level: u8,
    first: u32,
}

impl Stretch {
    /// All levels, the one with the longest stretches first.
    pub fn levels() -> impl Iterator<Item = u8> {
        (0..LEVELS).rev()
    }

    /// The stretch of this level that has the object `number`.
    pub fn of(level: u8, number: u32) -> Stretch {
        let length = STRETCHES[usize::from(level)];
        Stretch { level, first: number / length * length }
    }

    /// Its numbers.
    pub fn numbers(self) -> Range<u32> {
        self.first..self.first.saturating_add(STRETCHES[usize::from(self.level)])
    }

    /// Whether all numbers of `other` are among these, and it is of a lower level.
    pub fn covers(self, other: Stretch) -> bool {
        self.level > other.level && self.numbers().contains(&other.first)
    }
}

/// The key of a part of a manifest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ManifestKey {
    pub stretch: Stretch,
    /// The epoch of the owner that wrote it; 0 in a log without epochs.
    pub epoch: u32,
    pub part: u32,
}

/// The keys of all manifests of a log begin so.
pub(crate) fn manifest_prefix(log_id: u128) -> String {
    format!("manifests/{log_id:032x}/")
}

impl ManifestKey {
    pub fn key(self, log_id: u128) -> String {
        let ManifestKey { stretch: Stretch { level, first }, epoch, part } = self;
        format!("{}{level}-{first:010}-{epoch:010}-{part:06}", manifest_prefix(log_id))
    }

    /// `None` for what is no key of a manifest.
    pub fn parse(key: &str) -> Option<ManifestKey> {
        let mut fields = key.rsplit_once('/')?.1.split('-').map(str::parse::<u32>);
        let mut next = || fields.next()?.ok();
        let (level, first, epoch, part) = (next()?, next()?, next()?, next()?);
        let level = u8::try_from(level).ok().filter(|level| *level < LEVELS)?;
        let stretch = Stretch::of(level, first);
        (fields.next().is_none() && stretch.first == first && first < STORED).then_some(ManifestKey {
            stretch,
            epoch,
            part,
        })
    }
}

/// What a manifest has of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub number: u32,
    /// 0 in a log without epochs.
    pub epoch: u32,
    /// Bytes of the object.
    pub length: u64,
    /// Its local file.
    pub local: Bytes,
}

/// The bytes of a manifest with these entries.
pub(crate) fn encode(log_id: u128, entries: &[Entry]) -> Vec<u8> {
    let bytes: usize = entries.iter().map(|entry| ENTRY_BYTES + entry.local.len()).sum();
    let mut all = Vec::with_capacity(HEAD_BYTES + bytes + CRC_BYTES);
    all.extend_from_slice(&MAGIC);
    all.extend_from_slice(&log_id.to_le_bytes());
    all.extend_from_slice(&length32(entries.len()).to_le_bytes());
    for Entry { number, epoch, length, local } in entries {
        all.extend_from_slice(&number.to_le_bytes());
        all.extend_from_slice(&epoch.to_le_bytes());
        all.extend_from_slice(&length.to_le_bytes());
        all.extend_from_slice(&length32(local.len()).to_le_bytes());
        all.extend_from_slice(local);
    }
    let crc = model::crc32c(&all);
    all.extend_from_slice(&crc.to_le_bytes());
    all
}

/// The entries of a manifest of the log `log_id`. `None` if it is damaged, or of another log. The local files are not
/// checked beyond that.
pub(crate) fn decode(log_id: u128, bytes: &Bytes) -> Option<Vec<Entry>> {
    let all = bytes.len().checked_sub(CRC_BYTES).filter(|all| *all >= HEAD_BYTES)?;
    let (head, crc) = bytes.split_at(all);
    if head[..8] != MAGIC || head[8..24] != log_id.to_le_bytes() || crc != model::crc32c(head).to_le_bytes() {
        return None;
    }
    let mut fields = Fields(&head[HEAD_BYTES - 4..]);
    let (count, mut entries) = (fields.u32(), Vec::new());
    for _ in 0..count {
        fields.has(ENTRY_BYTES)?;
        let (number, epoch, length) = (fields.u32(), fields.u32(), fields.u64());
        let local_bytes = crate::format::index(fields.u32());
        fields.has(local_bytes)?;
        let at = all - fields.0.len();
        entries.push(Entry { number, epoch, length, local: bytes.slice(at..at + local_bytes) });
        fields.0 = &fields.0[local_bytes..];
    }
    fields.0.is_empty().then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back() {
        let key = ManifestKey { stretch: Stretch::of(1, 77), epoch: 3, part: 2 };
        assert_eq!(key.stretch.numbers(), 64..80);
        assert_eq!(key.key(5), "manifests/00000000000000000000000000000005/1-0000000064-0000000003-000002");
        assert_eq!(ManifestKey::parse(&key.key(5)), Some(key));
        for wrong in
            ["m/x/1-65-3-2", "m/x/2-64-3-2", "m/x/1-64-3", "m/x/1-64-3-2-1", "m/x/1-64-3-a", "1-64-3-2"]
        {
            assert_eq!(ManifestKey::parse(wrong), None, "{wrong}");
        }
        assert!(
            Stretch::of(1, 77).covers(Stretch::of(0, 65)) && !Stretch::of(1, 77).covers(Stretch::of(0, 80))
        );
        assert!(!Stretch::of(0, 64).covers(Stretch::of(1, 64)));
    }

    #[test]
    fn what_is_damaged_is_no_manifest() {
        let entry = |number: u32| Entry {
            number,
            epoch: 7,
            length: 99,
            local: Bytes::from(vec![u8::try_from(number).unwrap(); 30]),
        };
        let entries = vec![entry(3), entry(9), Entry { local: Bytes::new(), ..entry(10) }];
        let bytes = Bytes::from(encode(5, &entries));
        assert_eq!(decode(5, &bytes), Some(entries));
        assert_eq!(decode(6, &bytes), None);
        for at in 0..bytes.len() {
            let mut other = bytes.to_vec();
            other[at] ^= 1;
            assert_eq!(decode(5, &Bytes::from(other)), None, "byte {at}");
            assert_eq!(decode(5, &bytes.slice(..at)), None, "{at} bytes");
        }
        // A count and lengths that claim more than there is, with a checksum that fits.
        for (at, claim) in [(24, 4_u32), (24, u32::MAX), (44, 31), (44, u32::MAX)] {
            let mut other = bytes[..bytes.len() - CRC_BYTES].to_vec();
            other[at..at + 4].copy_from_slice(&claim.to_le_bytes());
            let crc = model::crc32c(&other);
            other.extend_from_slice(&crc.to_le_bytes());
            assert_eq!(decode(5, &Bytes::from(other)), None, "{claim} at {at}");
        }
    }
}
