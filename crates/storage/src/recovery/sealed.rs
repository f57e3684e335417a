//! Sealed segments: reads their trailer, directory and stream table. Rebuilds a damaged directory from the data.

use std::collections::HashMap;
use std::sync::Arc;

use model::StreamId;

use super::outcome::{OpenError, RecoveryReport, damaged, doing};
use super::scan::{ScanEnd, scan_indexes};
use crate::format::{
    BLOCK_HEADER_BYTES, DIRECTORY_ROW_BYTES, DirectoryRow, TRAILER_BYTES, Trailer, index, length32,
    seeded_crc,
};
use crate::segment::footer::{self, TableRow};
use crate::segment::{Segment, file_name};

/// Trailer and directory of a sealed segment; `None` without a valid trailer. With a valid trailer, a damaged directory
/// is rebuilt from the data.
pub(crate) fn load_sealed(
    segment: &Arc<Segment>,
    report: &mut RecoveryReport,
) -> Result<Option<(Trailer, Vec<DirectoryRow>)>, OpenError> {
    let reading = || doing(format!("reading {}", file_name(segment.sequence)));
    let sector = segment.read(segment.data_end(), TRAILER_BYTES).map_err(reading())?;
    let Some(trailer) = Trailer::decode(&sector, segment.generation, u64::from(segment.length)) else {
        return Ok(None);
    };
    if trailer.sequence != segment.sequence {
        return Ok(None);
    }
    let bytes = segment
        .read(trailer.directory_position, index(trailer.rows) * DIRECTORY_ROW_BYTES)
        .map_err(reading())?;
    if let Some(rows) = footer::decode_directory(&bytes, &trailer, segment.generation) {
        segment.set_footer(trailer, None);
        return Ok(Some((trailer, rows)));
    }
    tracing::warn!(
        segment = segment.sequence,
        "the footer of a sealed segment is damaged; rebuilding it from the data"
    );
    let (streams, end) = scan_indexes(segment, Some(trailer.footer_position), report)?;
    let ScanEnd::Open { position } = end else {
        return Err(damaged(
            segment.sequence,
            trailer.footer_position,
            "a footer stands where its trailer says data is",
        ));
    };
    if position != trailer.footer_position {
        return Err(damaged(segment.sequence, position, "an acknowledged block is invalid"));
    }
    let payload_position = trailer.footer_position + length32(BLOCK_HEADER_BYTES);
    let table = segment.read(trailer.table_position, index(trailer.table_length)).map_err(reading())?;
    let built = footer::build(
        segment.sequence,
        segment.generation,
        trailer.epoch,
        trailer.footer_position,
        payload_position,
        &streams,
        table.to_vec(),
    );
    // The table is copied unchanged; its CRC decides whether it can be used.
    let trailer = Trailer { table_crc: trailer.table_crc, ..built.trailer };
    segment.set_footer(trailer, Some((payload_position, built.payload.into())));
    Ok(Some((trailer, built.rows)))
}

/// The stream table of a sealed segment; `None` if it is damaged.
pub(crate) fn load_table(
    segment: &Segment,
    trailer: &Trailer,
) -> Result<Option<HashMap<StreamId, TableRow>>, OpenError> {
    let bytes = segment
        .read(trailer.table_position, index(trailer.table_length))
        .map_err(doing(format!("reading {}", file_name(segment.sequence))))?;
    if seeded_crc(segment.generation, &bytes) != trailer.table_crc {
        tracing::warn!(
            segment = segment.sequence,
            "the stream table of a sealed segment is damaged; scanning from an older one"
        );
        return Ok(None);
    }
    Ok(footer::decode_table(&bytes))
}

/// The directory in the payload of a footer block.
pub(crate) fn directory_in(
    payload: &[u8],
    payload_position: u32,
    trailer: &Trailer,
    segment: &Segment,
) -> Result<Vec<DirectoryRow>, OpenError> {
    trailer
        .directory_position
        .checked_sub(payload_position)
        .and_then(|at| payload.get(index(at)..))
        .and_then(|bytes| footer::decode_directory(bytes, trailer, segment.generation))
        .ok_or_else(|| damaged(segment.sequence, trailer.footer_position, "its footer contradicts itself"))
}
