//! Reads what an object says of itself: header, footer and trailer, without the records. These are the bytes of its
//! local file, so the local file of a lost disk is made from them.
//!
//! Bytes from the store are checked before use. An object that contradicts itself is described in words; a store that
//! cannot be asked is an error.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use model::StreamId;
use objects::BucketError;

use super::footer::{self, TableRow};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, DirectoryRow, Lsn, SECTOR, SegmentHeader, TRAILER_BYTES,
    Trailer, index, seeded_crc,
};
use crate::index::BatchIndex;

/// Bytes at the end of an object that are read at once: nearly every footer is shorter.
const TAIL_BYTES: u64 = 128 * 1024;
/// The shortest object, and the shortest local file: header, footer block and trailer.
const SECTORS_MIN: u64 = 3;

/// What an object says of itself.
#[derive(Debug)]
pub(crate) struct Described {
    pub header: SegmentHeader,
    pub trailer: Trailer,
    pub rows: Vec<DirectoryRow>,
    /// The streams with a range in the object, as of the end of their ranges.
    pub table: HashMap<StreamId, TableRow>,
    /// When it was built, all objects with lower sequence numbers counted. Those between were on their way.
    pub counted: u32,
}

/// The object that is expected under a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub log_id: u128,
    pub sequence: u32,
    /// Bytes of the object.
    pub length: u64,
}

/// Reads and checks what an object says of itself. The bytes are those of its local file. `get` reads a range of the
/// object.
///
/// # Errors
/// That of the store. `Err` within says what is wrong with the object.
pub(crate) fn fetch(
    expected: Expected,
    mut get: impl FnMut(Range<u64>) -> Result<Bytes, BucketError>,
) -> Result<Result<(Described, Vec<u8>), String>, BucketError> {
    let (sector, length) = (SECTOR as u64, expected.length);
    if !is_possible(length) {
        return Ok(Err(format!("an object cannot be {length} bytes long")));
    }
    let tail_from = (length.saturating_sub(TAIL_BYTES) / sector * sector).max(sector);
    let (mut local, tail) = match tail_from == sector {
        // One request for all of it.
        true => {
            let all = get(0..length)?;
            let head = all.len().min(SECTOR);
            (all[..head].to_vec(), all.slice(head..))
        }
        false => (get(0..sector)?.to_vec(), get(tail_from..length)?),
    };
    let header = SegmentHeader::decode(&local);
    let trailer = tail.len().checked_sub(TRAILER_BYTES).map(|at| &tail[at..]);
    let trailer = header.ok().zip(trailer);
    let trailer = trailer.and_then(|(header, bytes)| Trailer::decode(bytes, header.generation, length));
    // A damaged trailer is named below.
    let footer = trailer.map_or(tail_from, |trailer| u64::from(trailer.footer_position));
    if footer < sector || footer > length - 2 * sector || !footer.is_multiple_of(sector) {
        return Ok(Err("its trailer contradicts itself".into()));
    }
    if footer < tail_from {
        local.extend_from_slice(&get(footer..tail_from)?);
    }
    local.extend_from_slice(&tail[index_of(footer.saturating_sub(tail_from)).min(tail.len())..]);
    Ok(describe(expected, &local).map(|described| (described, local)))
}

fn is_possible(length: u64) -> bool {
    let whole = length.is_multiple_of(SECTOR as u64) && length >= SECTORS_MIN * SECTOR as u64;
    whole && u32::try_from(length).is_ok()
}

fn index_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Checks the bytes of the local file of an object.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn describe(expected: Expected, local: &[u8]) -> Result<Described, String> {
    let length = expected.length;
    if !is_possible(length) || !is_possible(local.len() as u64) || local.len() as u64 > length {
        return Err("it has an impossible length".into());
    }
    let header = SegmentHeader::decode(local).map_err(|error| error.to_string())?;
    if header.log_id != expected.log_id || header.sequence != expected.sequence {
        return Err("its header names another log or another number".into());
    }
    if header.length != length {
        return Err(format!("it is {length} bytes long, its header says {}", header.length));
    }
    let (head, sealed) = local.split_at(local.len() - TRAILER_BYTES);
    let trailer = Trailer::decode(sealed, header.generation, length)
        .filter(|trailer| trailer.sequence == header.sequence)
        .ok_or("its trailer is damaged")?;
    let footer = &head[SECTOR..];
    if u64::from(trailer.footer_position) + (footer.len() + TRAILER_BYTES) as u64 != length {
        return Err("its trailer contradicts itself".into());
    }
    let lsn = Lsn::new(header.sequence, trailer.footer_position);
    let (payload, counted) = BlockHeader::decode(footer, header.generation, lsn)
        .filter(|block| block.kind == BlockKind::Footer)
        .and_then(|block| {
            let payload = footer.get(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + index(block.length))?;
            let whole = seeded_crc(header.generation, payload) == block.payload_crc;
            whole.then_some((payload, block.synced.sequence()))
        })
        .ok_or("its footer does not match its crc")?;
    let payload_position = index(trailer.footer_position) + BLOCK_HEADER_BYTES;
    let part = |position: u32, length: usize| {
        let from = index(position).checked_sub(payload_position)?;
        payload.get(from..from.checked_add(length)?)
    };
    let directory = index(trailer.rows) * crate::format::DIRECTORY_ROW_BYTES;
    let rows = part(trailer.directory_position, directory)
        .and_then(|bytes| footer::decode_directory(bytes, &trailer, header.generation))
        .ok_or("its directory is damaged")?;
    let table = part(trailer.table_position, index(trailer.table_length))
        .filter(|bytes| seeded_crc(header.generation, bytes) == trailer.table_crc)
        .and_then(footer::decode_table)
        .ok_or("its stream table is damaged")?;
    for row in &rows {
        let found = part(row.index_position, index(row.index_length))
            .filter(|bytes| seeded_crc(header.generation, bytes) == row.index_crc)
            .and_then(BatchIndex::decode)
            .is_some_and(|found| row.batches == 0 || footer::fits(row, &found));
        if !found {
            return Err(format!("the batch index of {} is damaged", row.stream));
        }
    }
    Ok(Described { header, trailer, rows, table, counted })
}
