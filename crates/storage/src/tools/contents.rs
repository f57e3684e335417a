//! The contents of one segment, gathered before its footer is looked at.

use std::collections::HashMap;

use bytes::Bytes;
use model::{Offset, StreamId};

use crate::format::DirectoryRow;
use crate::index::{BatchIndex, BatchPlace};

/// Extents by stream and, in cleaned segments, base offset: base, end, flags and batches.
pub(crate) type Ranges = HashMap<(StreamId, Offset), (Offset, Offset, u32, BatchIndex)>;

/// The contents of one segment.
#[derive(Default)]
pub(crate) struct Contents {
    pub extents: Vec<(StreamId, Offset, Offset, u32, BatchIndex)>,
    /// In segments of the writer: the extent of each stream.
    pub of_stream: HashMap<StreamId, usize>,
    pub footer: Option<(u32, Bytes)>,
    pub damaged: bool,
    /// Entries of a damaged block that have not come yet.
    pub awaited: Option<u32>,
}

impl Contents {
    /// Adds a batch to its extent. Returns false if its offset is below the end of the batch before.
    pub fn push(&mut self, stream: StreamId, place: BatchPlace, cleaned: bool) -> bool {
        let at = if cleaned {
            let fits = |(id, ..): &(StreamId, Offset, Offset, u32, BatchIndex)| *id == stream;
            match self.extents.last().is_some_and(fits) {
                true => self.extents.len() - 1,
                // The head of the range is lost.
                false => {
                    let new = (stream, place.base_offset, place.base_offset, 0, BatchIndex::default());
                    self.extents.push(new);
                    self.extents.len() - 1
                }
            }
        } else {
            *self.of_stream.entry(stream).or_insert_with(|| {
                self.extents.push((stream, place.base_offset, place.base_offset, 0, BatchIndex::default()));
                self.extents.len() - 1
            })
        };
        let (_, _, end, _, places) = &mut self.extents[at];
        if places.next_offset().is_some_and(|next| place.base_offset < next) {
            return false;
        }
        *end = (*end).max(place.next_offset());
        places.push(place);
        true
    }
}

/// Takes the batches of `row` from the ranges that have them.
pub(crate) fn collect_range(built: &mut Ranges, row: &DirectoryRow) -> Option<BatchIndex> {
    let mut found: Vec<BatchPlace> = Vec::new();
    for (_, (.., places)) in built.iter_mut().filter(|(key, _)| key.0 == row.stream) {
        let mut rest = BatchIndex::default();
        for place in places.from_offset(Offset(i64::MIN)) {
            let inside = (row.base_offset..row.next_offset).contains(&place.base_offset);
            if inside { found.push(place) } else { rest.push(place) }
        }
        *places = rest;
    }
    built.retain(|(stream, base), (.., places)| {
        *stream != row.stream || *base != row.base_offset || !places.is_empty()
    });
    found.sort_unstable_by_key(|place| place.position);
    let mut index = BatchIndex::default();
    found.into_iter().for_each(|place| index.push(place));
    Some(index)
}
