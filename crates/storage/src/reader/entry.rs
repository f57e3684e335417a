//! The check of an entry from disk against its place in the batch index.

use bytes::Bytes;
use model::BatchHeader;
use model::batch::HEADER_BYTES;

use super::request::ReadError;
use crate::format::{ENTRY_HEADER_BYTES, EntryHeader, EntryKind, Lsn, index};
use crate::index::BatchPlace;
use crate::segment::Segment;
use crate::stream::Stream;

/// Checks an entry from disk against its place in the index and against its own CRCs. Returns its body.
pub(crate) fn check_entry(
    parts: Vec<Bytes>,
    stream: &Stream,
    segment: &Segment,
    place: &BatchPlace,
) -> Result<Vec<Bytes>, ReadError> {
    let lsn = Lsn::new(segment.sequence, place.position);
    let damaged = |what| ReadError::Damaged { lsn, what };
    let mut head = [0u8; ENTRY_HEADER_BYTES + HEADER_BYTES];
    let mut filled = 0;
    for part in &parts {
        let take = part.len().min(head.len() - filled);
        head[filled..filled + take].copy_from_slice(&part[..take]);
        filled += take;
    }
    let entry =
        EntryHeader::decode(&head, segment.generation).ok_or(damaged("the entry header is invalid"))?;
    let expected = (stream.id(), place.base_offset, place.length, EntryKind::Batch);
    if (entry.stream, entry.base_offset, entry.length, entry.kind) != expected {
        return Err(damaged("the entry is not the one that the index names"));
    }
    let header = BatchHeader::parse_header(&head[ENTRY_HEADER_BYTES..filled])
        .map_err(|_| damaged("the batch header is invalid"))?;
    if header.total_bytes != index(place.length) || header.base_offset != place.base_offset {
        return Err(damaged("the batch contradicts its entry"));
    }
    let mut skip = ENTRY_HEADER_BYTES;
    let mut body = Vec::with_capacity(parts.len());
    for part in parts {
        let drop = skip.min(part.len());
        skip -= drop;
        if part.len() > drop {
            body.push(part.slice(drop..));
        }
    }
    let mut before_crc = model::batch::CRC_FROM;
    let mut crc = 0;
    for part in &body {
        let drop = before_crc.min(part.len());
        before_crc -= drop;
        crc = model::crc32c_append(crc, &part[drop..]);
    }
    if crc != header.crc {
        return Err(damaged("the batch does not match its crc"));
    }
    Ok(body)
}
