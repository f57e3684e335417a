//! Writes manifests of the objects that stay: short stretches first, then long ones in their place.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use disk::AlignedBuffer;
use objects::{Bucket, BucketError, list_all};

use crate::format::{SECTOR, STORED, index};
use crate::pacer::Pacer;
use crate::segment::Segment;
use crate::segment::manifest::{Entry, ManifestKey, Stretch, encode, manifest_prefix};
use crate::shared::Shared;

/// The newest objects are in no manifest: many of them are about to be merged.
const YOUNG: u32 = if cfg!(test) { 2 } else { 64 };
/// Fewer objects than these are not worth a manifest.
const OBJECTS_MIN: usize = if cfg!(test) { 2 } else { 8 };
/// A part of a manifest ends with the object that reaches these bytes.
const PART_BYTES: usize = if cfg!(test) { 40 * 1024 } else { 2 * 1024 * 1024 };

/// The manifests of a log, for the one thread that writes them.
pub(crate) struct Manifests {
    shared: Arc<Shared>,
    /// Those in the bucket. `None` before they are listed.
    there: Option<BTreeSet<ManifestKey>>,
}

impl Manifests {
    pub fn new(shared: Arc<Shared>) -> Manifests {
        Manifests { shared, there: None }
    }

    /// Writes a manifest that is due, and deletes those that are of no use any more. Returns whether it wrote one. What fails is
    /// tried again by a later call. Ends early when the log is closed.
    pub fn turn(&mut self, pacer: &mut Pacer) -> Result<bool, BucketError> {
        let Some(bucket) = self.shared.tier.bucket.clone().filter(|_| self.shared.tier.fenced().is_none())
        else {
            return Ok(false);
        };
        let log_id = self.shared.options.log_id;
        let mut there = match self.there.take() {
            Some(there) => there,
            None => {
                let listed = list_all(&*bucket, &manifest_prefix(log_id), "", |_, _| false)?;
                listed.iter().filter_map(|object| ManifestKey::parse(&object.key)).collect()
            }
        };
        let outcome = self.go_on(&*bucket, &mut there, pacer);
        self.there = Some(there);
        outcome
    }

    fn go_on(
        &self,
        bucket: &dyn Bucket,
        there: &mut BTreeSet<ManifestKey>,
        pacer: &mut Pacer,
    ) -> Result<bool, BucketError> {
        let log_id = self.shared.options.log_id;
        let mut stored = self.shared.segments.all_stored();
        let newest = stored.last().map_or(0, |newest| number(newest));
        // Others are soon deleted, or have no records, which a restore writes files without rows for.
        let wanted = |segment: &Arc<Segment>| {
            segment.live() > 0 && segment.footer().is_some_and(|footer| footer.trailer.rows > 0)
        };
        stored.retain(wanted);
        let epoch = self.shared.options.owned.as_ref().and_then(|owned| owned.epochs.newest());
        let epoch = epoch.map_or(0, |epoch| epoch.epoch);
        let due = self.due(&stored, newest, there);
        if let Some(stretch) = due {
            // The first part comes last: where it is, all are.
            for (part, objects) in
                (0..).zip(parts(within(&stored, stretch))).collect::<Vec<_>>().into_iter().rev()
            {
                let key = ManifestKey { stretch, epoch, part };
                if there.contains(&key) {
                    continue;
                }
                let mut entries = Vec::with_capacity(objects.len());
                for object in objects {
                    let begun = Instant::now();
                    entries.extend(self.entry(object));
                    let Ok(()) = pacer.did(local_bytes(object), begun) else { return Ok(false) };
                }
                bucket.put_if_absent(&key.key(log_id), &[Bytes::from(encode(log_id, &entries))])?;
                there.insert(key);
            }
        }
        let useless = |key: &ManifestKey| key.epoch <= epoch && self.is_useless(*key, there, &stored);
        for key in there.iter().copied().filter(useless).collect::<Vec<_>>() {
            if self.shared.cleaner_stops() {
                return Ok(false);
            }
            bucket.delete(&key.key(log_id))?;
            there.remove(&key);
        }
        Ok(due.is_some())
    }

    /// The next stretch whose objects need a manifest. `stored` are in the order of their numbers.
    fn due(&self, stored: &[Arc<Segment>], newest: u32, there: &BTreeSet<ManifestKey>) -> Option<Stretch> {
        Stretch::levels().find_map(|level| {
            let stretch = |segment: &Arc<Segment>| Stretch::of(level, number(segment));
            stored.chunk_by(|a, b| stretch(a) == stretch(b)).find_map(|objects| {
                let stretch = stretch(&objects[0]);
                let old = stretch.numbers().end.saturating_add(YOUNG) <= newest;
                let has = |key: &ManifestKey| {
                    (key.stretch == stretch || key.stretch.covers(stretch)) && self.is_whole(*key)
                };
                (old && objects.len() >= OBJECTS_MIN && !there.iter().any(has)).then_some(stretch)
            })
        })
    }

    /// Whether the key says that its manifest has all objects of its stretch. That of a former owner has those of its own epoch
    /// and before.
    fn is_whole(&self, key: ManifestKey) -> bool {
        key.part == 0 && key.epoch >= self.epoch_of(key.stretch.numbers().end - 1)
    }

    /// The epoch of an object; 0 in a log without epochs.
    fn epoch_of(&self, number: u32) -> u32 {
        self.shared.options.owned.as_ref().and_then(|owned| owned.epochs.of(number)).unwrap_or(0)
    }

    fn is_useless(&self, key: ManifestKey, there: &BTreeSet<ManifestKey>, stored: &[Arc<Segment>]) -> bool {
        let replaces = |other: &ManifestKey| {
            let newer = other.stretch == key.stretch && other.epoch > key.epoch;
            (newer || other.stretch.covers(key.stretch)) && self.is_whole(*other)
        };
        within(stored, key.stretch).is_empty() || there.iter().any(replaces)
    }

    /// `None` if the local file cannot be read: the object may have been deleted meanwhile.
    fn entry(&self, object: &Segment) -> Option<Entry> {
        let file = self.shared.disk.open(&object.name()).ok()?;
        let mut local = AlignedBuffer::zeroed(usize::try_from(file.length()).ok()?);
        file.read_at(0, &mut local).ok()?;
        let (number, local) = (number(object), Bytes::copy_from_slice(&local));
        Some(Entry { number, epoch: self.epoch_of(number), length: u64::from(object.length), local })
    }
}

fn number(segment: &Segment) -> u32 {
    segment.sequence & !STORED
}

/// Those of `stored` whose numbers are in the stretch.
fn within(stored: &[Arc<Segment>], stretch: Stretch) -> &[Arc<Segment>] {
    let numbers = stretch.numbers();
    let at = |end: u32| stored.partition_point(|segment| number(segment) < end);
    &stored[at(numbers.start)..at(numbers.end)]
}

/// The objects of each part.
fn parts(objects: &[Arc<Segment>]) -> Vec<&[Arc<Segment>]> {
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (at, object) in objects.iter().enumerate() {
        bytes += local_bytes(object);
        if bytes >= PART_BYTES || at + 1 == objects.len() {
            parts.push(&objects[from..=at]);
            (from, bytes) = (at + 1, 0);
        }
    }
    parts
}

/// Bytes of the local file of an object.
fn local_bytes(segment: &Segment) -> usize {
    let footer = segment.footer().map_or(segment.length, |footer| footer.trailer.footer_position);
    SECTOR + index(segment.length.saturating_sub(footer))
}
