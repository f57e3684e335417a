//! Writes manifests of the objects that stay: short stretches first, then long ones in their place.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use disk::AlignedBuffer;
use objects::{Bucket, BucketError, list_all};

use crate::format::{SECTOR, STORED, index};
use crate::segment::Segment;
use crate::segment::manifest::{Entry, ManifestKey, Stretch, encode, manifest_prefix};
use crate::shared::Shared;

/// The newest objects are in no manifest: many of them are about to be merged.
const YOUNG: u32 = if cfg!(test) { 2 } else { 64 };
/// Fewer objects than these are not worth a manifest.
const OBJECTS_MIN: usize = if cfg!(test) { 2 } else { 8 };
/// A part of a manifest ends with the object that reaches these bytes.
const PART_BYTES: usize = if cfg!(test) { 40 * 1024 } else { 8 * 1024 * 1024 };

/// Why a manifest was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error("reading a local file of the object store: {0}")]
    Local(io::Error),
}

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
    /// tried again by a later call.
    pub fn turn(&mut self) -> Result<bool, ManifestError> {
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
        let outcome = self.go_on(&*bucket, &mut there);
        self.there = Some(there);
        outcome
    }

    fn go_on(&self, bucket: &dyn Bucket, there: &mut BTreeSet<ManifestKey>) -> Result<bool, ManifestError> {
        let mut stored = self.shared.segments.all_stored();
        let newest = stored.last().map_or(0, |newest| number(newest));
        // Those without records are soon of no use, and a restore writes others like them.
        stored.retain(|segment| segment.footer().is_some_and(|footer| footer.trailer.rows > 0));
        let due = self.due(&stored, newest, there);
        if let Some(stretch) = due {
            let parts = parts(within(&stored, stretch));
            let epoch = self.shared.options.owned.as_ref().and_then(|owned| owned.epochs.newest());
            let epoch = epoch.map_or(0, |epoch| epoch.epoch);
            // The first part comes last: where it is, all are.
            for (part, objects) in (0..).zip(parts).collect::<Vec<_>>().into_iter().rev() {
                let key = ManifestKey { stretch, epoch, part };
                let entries = objects.iter().filter_map(|object| self.entry(object).transpose());
                let entries: Vec<Entry> = entries.collect::<Result<_, _>>().map_err(ManifestError::Local)?;
                let log_id = self.shared.options.log_id;
                bucket.put_if_absent(&key.key(log_id), &[Bytes::from(encode(log_id, &entries))])?;
                there.insert(key);
            }
        }
        let useless: Vec<ManifestKey> =
            there.iter().copied().filter(|key| self.is_useless(*key, there, &stored)).collect();
        for key in useless {
            bucket.delete(&key.key(self.shared.options.log_id))?;
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

    /// `None` if the object was deleted meanwhile.
    fn entry(&self, object: &Segment) -> io::Result<Option<Entry>> {
        let read = || {
            let file = self.shared.disk.open(&object.name())?;
            let mut local = AlignedBuffer::zeroed(usize::try_from(file.length()).unwrap_or(usize::MAX));
            file.read_at(0, &mut local)?;
            Ok(Bytes::copy_from_slice(&local))
        };
        let (number, length) = (number(object), u64::from(object.length));
        match read() {
            Ok(local) => Ok(Some(Entry { number, epoch: self.epoch_of(number), length, local })),
            Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
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
    let local_bytes = |segment: &Segment| {
        let footer = segment.footer().map_or(segment.length, |footer| footer.trailer.footer_position);
        SECTOR + index(segment.length.saturating_sub(footer))
    };
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
