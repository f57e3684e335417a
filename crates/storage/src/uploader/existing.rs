//! An object that has the key of the next one already: it is an earlier attempt of this put, an object from before a
//! crash, or another server's.

use std::sync::Arc;
use std::time::Duration;

use model::Offset;
use objects::{Bucket, BucketError, Put, patiently};

use super::object::Known;
use super::{Progress, UploadError, Uploader};
use crate::epochs::SEAL_BYTES;
use crate::format::{DirectoryRow, ROW_REPLACES, SECTOR, index};
use crate::index::{BatchIndex, BatchPlace};
use crate::segment::fetch::{Described, Expected, fetch};
use crate::stream::Stream;
use crate::tier::Tier;

/// Attempts of each of the requests that read an object. On a bad day of the store, one of several would nearly always
/// fail, and the next turn begins with the first of them.
const ATTEMPTS: u32 = 3;

fn repeatedly<T>(tier: &Tier, request: impl FnMut() -> Result<T, BucketError>) -> Result<T, BucketError> {
    let mut left = ATTEMPTS;
    patiently(request, |_, _| {
        left -= 1;
        left > 0 && tier.rest(Duration::ZERO)
    })
}

impl Uploader {
    /// Decides about the key of the first pending object, which is taken. Returns why another server writes this log's
    /// objects, if one does.
    pub(super) fn settle_existing(&mut self, bucket: &dyn Bucket) -> Result<Option<String>, UploadError> {
        let known = match self.read_existing(bucket, self.next)? {
            Ok(known) => known,
            Err(why) => return Ok(Some(why)),
        };
        if let Some(first) = self.pending.front_mut()
            && first.built.known.local == known.local
        {
            // An earlier request of this very put has landed.
            first.put = Progress::Ended(Put::Stored);
            return Ok(None);
        }
        let continues = match self.continues(&known) {
            Ok(continues) => continues,
            Err(why) => return Ok(Some(why)),
        };
        self.discard();
        if continues {
            self.left = Some(known);
        } else {
            // The list of orphans finds it.
            self.next += 1;
        }
        Ok(None)
    }

    /// The object with the sequence number `sequence`. `Err` within: why it is not one of this log.
    pub(super) fn read_existing(
        &self,
        bucket: &dyn Bucket,
        sequence: u32,
    ) -> Result<Result<Known, String>, BucketError> {
        let key = self.shared.object_key(sequence);
        let tier = &self.shared.tier;
        let length = repeatedly(tier, || bucket.length(&key))?;
        if self.shared.options.owned.is_some() && length == SEAL_BYTES as u64 {
            return Ok(Err(format!("the log has another owner: {key} ends this epoch")));
        }
        let expected = Expected { log_id: self.shared.options.log_id, sequence, length };
        let differs = |why: String| Ok(Err(format!("the object {key} is not one of this log: {why}")));
        let (described, local) =
            match fetch(expected, |range| repeatedly(tier, || bucket.get(&key, range.clone())))? {
                Ok(fetched) => fetched,
                Err(why) => return differs(why),
            };
        let Described { header, trailer, rows, table, counted } = described;
        if !self.owners.has(trailer.epoch) {
            return differs("another server put it, which has a copy of this log".to_owned());
        }
        let bounds = table.into_iter().map(|(id, row)| (id, row.start, row.next)).collect();
        Ok(Ok(Known { header, trailer, rows, local, bounds, counted }))
    }

    /// Whether each range of the object continues what is stored of its stream. If not, the object is of no use: it
    /// replaces ranges, or an object before it was lost in a crash and built again in another form. `Err` says in which
    /// way it contradicts the log.
    pub(super) fn continues(&self, known: &Known) -> Result<bool, String> {
        let mut continues = self.has_those_before(known);
        for row in &known.rows {
            if row.flags & ROW_REPLACES != 0 {
                continues = false;
                continue;
            }
            let Some(stream) = self.shared.find_stream(row.stream) else { continue };
            self.compare(known, row, &stream).map_err(|why| {
                format!(
                    "the object {} contradicts the log: {why}; does another server have a copy of this log?",
                    self.shared.object_key(known.header.sequence)
                )
            })?;
            let state = stream.lock();
            // A stream without records was deleted, and somebody has asked for it since.
            if state.next > Offset::ZERO && row.next_offset > state.start {
                let stored = state.stored.as_ref().filter(|stored| !stored.extents.is_empty());
                continues &= match stored {
                    Some(stored) => stored.to == row.base_offset,
                    None => row.base_offset <= state.start,
                };
            }
        }
        Ok(continues)
    }

    /// Whether the objects that were on their way when this one was built are stored as they were built then. It may lack
    /// records of leading streams that they have.
    fn has_those_before(&self, known: &Known) -> bool {
        (known.counted..known.header.sequence).all(|sequence| {
            let segment = self.shared.segments.find(sequence);
            let footer = segment.as_ref().and_then(|segment| segment.footer());
            footer.is_some_and(|footer| footer.trailer.epoch == known.trailer.epoch)
        })
    }

    /// Checks that a range of the object has the batches that the local disk has, as far as it has them.
    fn compare(&self, known: &Known, row: &DirectoryRow, stream: &Arc<Stream>) -> Result<(), String> {
        let (synced, from, compacted) = {
            let state = stream.lock();
            (state.synced, state.local_start().max(row.base_offset), state.compacted)
        };
        if synced == Offset::ZERO || compacted > row.base_offset {
            // It was deleted, or the log has other batches by now.
            return Ok(());
        }
        if row.next_offset > synced {
            return Err(format!("{} ends at {synced} and not at {}", row.stream, row.next_offset));
        }
        let wanted = self.shared.sources_between(stream, from, row.next_offset);
        let wanted = wanted.map_err(|error| error.to_string())?;
        let wanted = wanted.iter().flat_map(|source| &source.places);
        let (at, length) = (row.index_position, index(row.index_length));
        let at = at.checked_sub(known.trailer.footer_position).map(|at| SECTOR + index(at));
        let bytes = at.and_then(|at| known.local.get(at..at + length));
        let found = bytes.and_then(BatchIndex::decode).ok_or("an index in its footer is damaged")?;
        let named =
            |place: &BatchPlace| (place.base_offset, place.offset_count, place.length, place.max_timestamp);
        if found.from_offset(from).map(|place| named(&place)).eq(wanted.map(named)) {
            Ok(())
        } else {
            Err(format!("other batches of {} from {from} on", row.stream))
        }
    }
}
