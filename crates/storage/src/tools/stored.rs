//! Reads the batches of streams from the objects of a log that is not open, in no particular order: also batches below
//! the start of their stream, and those that a later object replaces.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use disk::Disk;
use model::{BatchHeader, Offset, StreamId};
use objects::Bucket;

use super::walk::checked_batch;
use crate::epochs::Epochs;
use crate::format::{ENTRY_HEADER_BYTES, EntryHeader, index};
use crate::recovery::scan::Found;
use crate::recovery::{OpenError, RecoveryReport, StoredSegment, damaged, doing, open_stored};
use crate::segment::object::Places;

/// Hands out the batches of `streams` that the objects have, which the local files on `disk` name.
pub fn stored_batches(
    disk: &Arc<dyn Disk>,
    bucket: &Arc<dyn Bucket>,
    streams: &HashSet<StreamId>,
    mut each: impl FnMut(StreamId, BatchHeader, Bytes),
) -> Result<(), OpenError> {
    let places = Places { disk: disk.clone(), bucket: bucket.clone(), epochs: Epochs::default() };
    for stored in open_stored(&**disk, Some(&places), None, &mut RecoveryReport::default())? {
        let StoredSegment { segment, rows: Some(rows) } = stored else { continue };
        for (at, row) in (0..).zip(&rows).filter(|(_, row)| streams.contains(&row.stream)) {
            let reading = || doing(format!("reading {}", segment.name()));
            let places = segment.load_index(at).map_err(reading())?;
            for place in places.iter().flat_map(|places| places.from_offset(Offset::ZERO)) {
                let entry_bytes = ENTRY_HEADER_BYTES + index(place.length);
                let bytes = segment.read(place.position, entry_bytes).map_err(reading())?;
                let entry = EntryHeader::decode(&bytes, segment.generation);
                let body = bytes.slice(ENTRY_HEADER_BYTES..);
                let found = entry.map(|entry| Found { entry, position: place.position, body: &body });
                let checked = found.as_ref().and_then(|found| checked_batch(found).ok());
                let Some((_, header)) = checked else {
                    return Err(damaged(segment.sequence, place.position, "a batch is damaged"));
                };
                each(row.stream, header, body);
            }
        }
    }
    Ok(())
}
